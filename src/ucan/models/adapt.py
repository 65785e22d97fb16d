"""Adapt models: find out on one input what a model returns, and read its own labels and preprocessing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ucan.errors import ModelError, OtherClasses, UcanError
from ucan.estimators import as_estimator, check_classes
from ucan.models.build import STATISTICS
from ucan.models.normalise import Normalise, Statistics
from ucan.readiness import cannot_answer
from ucan.votes import as_answer

# Number of noisy copies of the input on which a single output is checked.
PROBES = 32


@dataclass(frozen=True)
class Adapted:
    """A classifier that returns logits or class numbers, its number of classes, and their names if known."""

    model: Any
    num_classes: int
    classes: tuple[str, ...] | None = None


class Logits(nn.Module):
    """Returns the logits of a module that returns a record with logits (Hugging Face), or a tuple that holds them."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The logits alone."""
        found: torch.Tensor = _logits(self.inner(x))
        return found


class OneLogit(nn.Module):
    """A module with one logit per input: class 1 where it is above 0, class 0 elsewhere."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits (n, 2): 0 for class 0, the module's own for class 1."""
        own = _logits(self.inner(x)).reshape(-1, 1)
        return torch.cat([torch.zeros_like(own), own], dim=1)


def adapt(model: Any, x: torch.Tensor, num_classes: int | None = None) -> Adapted:
    """Adapt a model to the interface of a classifier, by its output on one input x (1, *event).

    Estimators state their classes. A module may return logits, a record that holds logits, or one logit, which means two
    classes. Names of classes come from the model itself: an estimator's ``classes_``, ``config.id2label``.
    """
    estimator = as_estimator(model)
    if estimator is not None:
        check_classes(estimator, num_classes)
        return Adapted(estimator, estimator.num_classes, estimator.classes)
    output = _asked(model, x)
    logits = _logits(output)
    if isinstance(model, nn.Module) and logits is not output:
        model = Logits(model).train(model.training)
    if not isinstance(logits, torch.Tensor):
        logits = as_answer(logits)
    if logits.is_floating_point() and logits.shape in ((1, 1), (1,)):
        return _two_classes(model, x)
    if logits.ndim == 2:
        width = int(logits.shape[1])
        if num_classes not in (None, width):
            raise OtherClasses(
                f"the model returns {width} logits, but num_classes is {num_classes}: use num_classes={width} (on the "
                "command line --classes).",
                width,
            )
        return Adapted(model, width, _own_names(model, width))
    if logits.ndim > 2 or (logits.ndim == 1 and logits.is_floating_point()):
        raise ModelError(
            f"the model's answer to one input has shape {tuple(logits.shape)}: return logits of shape (n, classes), or class "
            "numbers of shape (n,) as integers."
        )
    if num_classes is None:
        raise ModelError("the model returns class numbers: give the number of classes (--classes).")
    return Adapted(model, num_classes)


def normalised(model: nn.Module, how: str | Statistics, channels: int) -> nn.Module:
    """Put a normalisation in front of a module: imagenet, cifar10, half, (mean, std), or "model", its own (timm).

    Noise is added before it, to pixels in [0, 1]: radii are in the units of the pictures, not of the normalised ones.
    """
    if isinstance(how, str) and how == "model":
        own = getattr(model, "pretrained_cfg", None) or getattr(model, "default_cfg", None)
        if not own or "mean" not in own or "std" not in own:
            raise ModelError(
                f"{type(model).__name__} does not state how its input is normalised: give imagenet, half, …"
            )
        how = (tuple(own["mean"]), tuple(own["std"]))
    if isinstance(how, str):
        if how not in STATISTICS:
            raise ModelError(f"normalise must be one of {', '.join(STATISTICS)}, model, or (mean, std), got {how!r}.")
        how = STATISTICS[how]
    if len(how[0]) != channels:
        raise ModelError(
            f"normalise has {len(how[0])} channels, but the pictures have {channels}: give one value per channel."
        )
    return nn.Sequential(Normalise(*how), model).train(model.training)


def _asked(model: Any, x: torch.Tensor) -> Any:
    try:
        with torch.inference_mode():
            return model(x.clone())  # protects the input from a model that works in place
    except UcanError:
        raise
    except Exception as error:  # whatever the user's model raises
        raise cannot_answer(x, error) from error


def _logits(output: Any) -> Any:
    """The logits in a module's output; the output itself if it is neither a record nor a tuple of tensors."""
    if isinstance(output, tuple | list) and not any(isinstance(part, torch.Tensor) for part in output):
        return output
    held = isinstance(output, dict | tuple | list) or hasattr(output, "logits")
    return as_answer(output) if held else output


def _two_classes(model: Any, x: torch.Tensor) -> Adapted:
    """One number per input is a logit, unless it looks like a probability, whose threshold is not 0."""
    if not isinstance(model, nn.Module):
        raise ModelError("the function returns one number per input: return logits of two classes, or class numbers.")
    noise = torch.randn(PROBES, *x.shape[1:], generator=torch.Generator().manual_seed(0)).to(x)
    found = _logits(_asked(model, torch.cat([x, x + noise, 10 * noise])))
    if bool(((found >= 0) & (found <= 1)).all()):
        raise ModelError(
            "the model returns one number within [0, 1] per input, which seems to be a probability, not a logit: remove its "
            "last sigmoid, or wrap it in a module that returns torch.cat([1 - p, p], 1)."
        )
    return Adapted(OneLogit(model).train(model.training), 2)


def _own_names(model: Any, width: int) -> tuple[str, ...] | None:
    """The labels of a Hugging Face model; placeholders such as LABEL_0 are ignored."""
    inner = model.inner if isinstance(model, Logits) else model
    labels = getattr(getattr(inner, "config", None), "id2label", None)
    if not isinstance(labels, dict) or len(labels) != width or set(map(int, labels)) != set(range(width)):
        return None
    names = tuple(str(labels[key]) for key in sorted(labels, key=int))
    return None if all(re.fullmatch(r"LABEL_\d+", name) for name in names) else names
