"""Build the classifier to train from the settings, and check it before the first step."""

from __future__ import annotations

import functools
import warnings
from pathlib import Path

import torch
from torch import nn

from ucan.catalogue import call
from ucan.data import Labelled
from ucan.errors import InvalidInput, TrainingError, first_line
from ucan.models import Denoised, Ensemble, build_model, load_model
from ucan.models.build import BuiltIn
from ucan.models.weights import classifier_part, load_weights, read_weights
from ucan.readiness import TRANSPOSED, channels_last
from ucan.training.layers import own_draws
from ucan.training.settings import TrainSettings

SMALLEST = 4  # what is no higher or wider is hardly a picture


def build_classifier(settings: TrainSettings, shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """The classifier that the settings name: a built-in one, or a user's ``package.module:name``; an ensemble of several, or
    behind a fresh denoiser, if the settings say so.
    """
    model = _build(settings, shape, num_classes)
    if settings.denoiser is None:
        return model
    with own_draws():
        torch.manual_seed(settings.seed)
        make = functools.partial(Denoised.training_for, model, shape[0])
        denoised: Denoised = call("denoiser", make, settings.denoiser)
    return denoised


def load_start(classifier: nn.Module, start: Path) -> nn.Module:
    """Load the weights to start from, and return the module that has them.

    Behind a denoiser they are the classifier's, unless they have a denoiser's as well.
    """
    if not isinstance(classifier, Denoised):
        load_weights(classifier, start)
        return classifier
    whole = classifier_part(read_weights(start))
    if not any(name.startswith("denoiser.") for name in whole):
        load_weights(classifier.classifier, start)
        return classifier.classifier
    try:
        classifier.load_state_dict(whole)
    except RuntimeError as error:
        raise TrainingError(
            f"{start} does not fit this denoiser and model: {' '.join(str(error).split())[:300]}"
        ) from error
    return classifier


def _build(settings: TrainSettings, shape: tuple[int, ...], num_classes: int) -> nn.Module:
    made = [_network(settings, shape, num_classes, settings.seed + k) for k in range(settings.networks or 1)]
    if len({id(network) for network in made}) < len(made):
        raise TrainingError(
            f"{settings.model} is one module, and an ensemble needs {len(made)}: give a class, or a function that makes one."
        )
    return made[0] if settings.networks is None else Ensemble(made)


def _network(settings: TrainSettings, shape: tuple[int, ...], num_classes: int, seed: int) -> nn.Module:
    if ":" not in settings.model:
        return build_model(settings.model, shape, num_classes, seed=seed)
    with own_draws():  # the initial weights of a class depend on the seed
        torch.manual_seed(seed)
        model = load_model(settings.model)
    if not isinstance(model, nn.Module):
        raise TrainingError(f"{settings.model} is not a torch.nn.Module, so it cannot be trained: give a module.")
    return model


def count_outputs(settings: TrainSettings, classifier: nn.Module, dataset: Labelled) -> int:
    """The number of the classifier's outputs, found by calling it; refused if it cannot be trained on these data.

    It may have more classes than the data.
    """
    if not isinstance(classifier, nn.Module):
        raise TrainingError(f"a {type(classifier).__name__} cannot be trained: give a torch.nn.Module.")
    known = ":" in settings.model or isinstance(classifier, BuiltIn)
    name = settings.model if known else type(classifier).__name__
    shape, classes = dataset.event_shape, dataset.num_classes
    if bool((dataset.labels < 0).any()):
        raise InvalidInput(f"{dataset.name} has inputs without a label: leave them out of the training set.")
    _tell_doubts(dataset, classifier)
    weight = next(classifier.parameters(), None)
    if weight is None:
        raise TrainingError(f"the model {name} has no weights to train.")
    # Lightning Fabric brings weights to the precisions that end in -true, but for 32-true; and inputs are float32 otherwise.
    as_they_are = settings.precision == "32-true" or settings.precision.endswith("-mixed")
    wide = torch.float32 if as_they_are and weight.is_floating_point() else weight.dtype
    narrow = torch.float16 if settings.precision == "16-mixed" and weight.is_cuda else torch.bfloat16
    refused = f"the model {name} does not fit data of shape {shape} with {classes} classes"
    try:
        with torch.no_grad(), torch.autocast(weight.device.type, narrow, settings.precision.endswith("-mixed")):
            logits = classifier.eval()(torch.zeros(2, *shape, dtype=wide, device=weight.device))
    except Exception as error:  # whatever a user's own model raises
        reason = first_line(error).rstrip(".")
        other = (
            "" if wide == weight.dtype else f" Its weights are {weight.dtype}, and precision is {settings.precision}."
        )
        raise TrainingError(
            f"{refused}: on a batch of two inputs it fails with “{reason}”.{other} Fix the model."
        ) from error
    if not isinstance(logits, torch.Tensor) or logits.ndim != 2 or len(logits) != 2:
        what = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
        raise TrainingError(f"{refused}: on a batch of two inputs it returns {what} instead of logits (2, classes).")
    if logits.shape[1] < classes:
        raise TrainingError(f"{refused}: it has only {logits.shape[1]} outputs. Give it {classes}, one per class.")
    return logits.shape[1]


def _tell_doubts(dataset: Labelled, classifier: nn.Module) -> None:
    """Warn of data that can be trained on, and hardly mean what they say."""
    shape = dataset.event_shape
    if dataset.classes is None and int(dataset.labels.min()) > 0:
        warnings.warn(
            f"no input has the label 0, and the largest is {int(dataset.labels.max())}: labels count from 0. If yours count "
            "from 1, give labels - 1; otherwise the model has a class without inputs.",
            stacklevel=4,
        )
    # A model of the user's own may want what it is given; so may one of ours, of inputs a few numbers high or wide.
    if isinstance(classifier, BuiltIn) and channels_last(shape) and min(shape[:2]) > SMALLEST:
        warnings.warn(
            f"inputs of shape {shape} are taken for pictures of {shape[0]} channels. {TRANSPOSED}",
            stacklevel=4,
        )


def fastest_layout(classifier: nn.Module, shape: tuple[int, ...]) -> torch.memory_format:
    """The memory layout of pictures in which it trains fastest; its weights are brought to it.

    That is channels_last, for convolutions on a GPU and pooling on a CPU, unless the classifier fails in it, as one that
    calls ``view`` on pictures does.
    """
    if len(shape) != 3:
        return torch.contiguous_format
    try:
        classifier.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        weight = next(classifier.parameters())
        pictures = torch.zeros(2, *shape, dtype=weight.dtype, device=weight.device)
        with torch.no_grad():
            classifier.eval()(pictures.contiguous(memory_format=torch.channels_last))
    except RuntimeError:
        classifier.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        return torch.contiguous_format
    return torch.channels_last
