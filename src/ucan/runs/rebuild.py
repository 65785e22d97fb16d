"""Rebuild a run's data, and its classifier under its noise, from its config."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ucan.arithmetic import REAL, step_of
from ucan.backends import PRECISIONS
from ucan.certificate import Abstention, Certificate
from ucan.data import Labelled, is_known, load
from ucan.data.frames import is_table
from ucan.data.tables import Table
from ucan.errors import InvalidInput
from ucan.estimators import as_estimator
from ucan.generators import Generator, kind_of
from ucan.models import load_model
from ucan.models.adapt import adapt, normalised
from ucan.models.rows import TableModel
from ucan.places import data_root, found, loadable
from ucan.plan import CertifyPlan
from ucan.runs.config import AskConfig, DataRef, ModelRef, RunConfig
from ucan.runs.read import Run
from ucan.smoothed import SmoothedClassifier
from ucan.training import TrainedRun, is_trained_run, load_run
from ucan.verify import noise_again

# The votes of a certificate of a trained run, which states none: enough for a radius, and quickly counted.
VOTES = 10_000


def data_of(data: DataRef, source: str | None = None, base: Path | None = None, trust: bool = False) -> Labelled:
    """The inputs that a run certified, or those at ``source`` if they have moved.

    ``base`` is the directory that the run was started in (``Run.base``). A file that lies there under the name of a known
    data set is not taken for it, but its folder ``data`` is searched where there is none here, with a warning. ``trust``
    searches it for a module that the run names as well (``loadable``).
    """
    named = source or data.source
    if source is None and named is not None and not is_known(named):
        named = loadable(named, base, trust)
    if named is None:
        raise InvalidInput("this run does not state its data: give them with --data.")
    if is_table(named):
        if data.columns and data.train is None and data.source is None:
            raise InvalidInput("this run was made in Python from a table with its own settings: open it from Python.")
        train = None if data.train is None else found(data.train, base)
        return Table(named, data.target, data.id, data.hold, data.vary, train, data.columns or None)
    beside = data_root(base) if source is None and is_known(named) else None
    return _loaded(named, data, beside)


def inputs_of(
    config: RunConfig | AskConfig, source: str | None = None, base: Path | None = None, trust: bool = False
) -> Labelled:
    """``data_of`` a run, with labels numbered as the run has them: a model may have its classes in another order than a folder.

    The hash of the data follows from that order, too. A table is put in order by its model (``Table.for_model``).
    """
    return in_order(data_of(config.data, source, base, trust), config.model.class_names)


def in_order(dataset: Labelled, order: Sequence[str]) -> Labelled:
    """The data with their labels numbered in a model's order of the classes, where it has all of their names."""
    if isinstance(dataset, Table) or dataset.classes is None or not set(dataset.classes) <= set(order):
        return dataset
    return dataset.in_order(order)


def _loaded(named: str, data: DataRef, beside: Path | None) -> Labelled:
    """The data by name or path; if they are not here, those ``beside`` the run, if any. Whoever made the run chose these."""

    def load_from(root: Path | None) -> Labelled:
        return load(named, data.split or "test", root, data.size, data.channels or 3, data.unit)

    try:
        return load_from(None)
    except InvalidInput:
        if beside is None:
            raise
    found = load_from(beside)
    warnings.warn(
        f"{named} is read from {beside}, beside the run: whoever made the run may have put other data there. To use your own, "
        "set UCAN_DATA_DIR to the folder that they are in.",
        stacklevel=3,
    )
    return found


def located(
    known: ModelRef, model: str | None, weights: str | Path | None, base: Path | None, trust: bool
) -> tuple[str, str | Path | None]:
    """Where the model of a run is, and its weights: where the caller says, or where the run does."""
    if model is not None:
        return model, weights  # another model has its own weights
    if known.spec is None:
        raise InvalidInput("this run does not state its model: give it with --model.")
    own = None if known.weights is None else found(known.weights, base)
    return loadable(known.spec, base, trust), weights or own


def pipeline_of(
    known: ModelRef,
    outcome: Certificate | Abstention,
    device: torch.device,
    model: str | None = None,
    weights: str | Path | None = None,
    dataset: Labelled | None = None,
    trust: bool = False,
    base: Path | None = None,
) -> SmoothedClassifier:
    """The deployed pipeline behind an outcome of a run: a trained run's with its generator, or one under fixed noise.

    ``model`` and ``weights`` are their paths, if they have moved; another model has its own weights. For a table, ``dataset``
    is needed, and the result classifies its rows: ``holding`` fixes one row. It also tells the shape of an abstention's input.
    A run cannot request to read a pickle, to import a module that lies beside it, or to call something with its own values:
    the caller must set ``trust``. ``base`` is the directory that the run was started in (``Run.base``).
    """
    given = weights
    model, weights = located(known, model, weights, base, trust)
    if given is not None and is_trained_run(model):
        raise InvalidInput(f"{model} is a trained run with its own network and noise: leave out --weights.")
    law, classes, precision = outcome.evidence.law, len(outcome.evidence.counts), _precision(outcome)
    shape = _event(outcome, dataset)
    if isinstance(dataset, Table):
        f = load_model(model, weights, classes, device, trust=trust)
        rows = TableModel(f, dataset.columns, classes, known.model_id)
        step = None if outcome.evidence.arithmetic == REAL else dataset.step
        return SmoothedClassifier(rows, law, noise_again(outcome, shape=shape), classes, step=step)
    step = step_of(outcome.evidence.arithmetic)
    on_model = getattr(kind_of(outcome.evidence.noise), "on_model", False)
    if is_trained_run(model):
        trained = load_run(model, trust=trust)
        own = trained.classifier.to(device)
        noise = noise_again(outcome, own, shape) if on_model else trained.generator
        return SmoothedClassifier(own, law, noise, classes, precision=precision, step=step)
    # What can be refused is, before the model is loaded.
    before = None if on_model else noise_again(outcome, shape=shape)
    f = _adapted(load_model(model, weights, classes, device, shape, trust=trust), known, shape, device)
    noise = noise_again(outcome, f, shape) if before is None else before
    named = outcome.evidence.model or ""
    return SmoothedClassifier(
        f,
        law,
        noise,
        classes,
        precision=precision,
        model_id=named.removeprefix("id:") if named.startswith("id:") else None,
        step=step,
    )


def refuse_other_model(run: Path, model: str | None, weights: str | Path | None) -> None:
    """Refuse a model or weights given beside a trained run."""
    if model is not None or weights is not None:
        raise InvalidInput(f"{run} is a trained run and brings its own model: leave out --model and --weights.")


def trained_on(trained: TrainedRun) -> DataRef:
    """The data of a trained run; their test split, as for a certificate."""
    return DataRef(trained.settings.data, size=trained.settings.size, channels=trained.shape[0])


def smoothed_as_trained(
    trained: TrainedRun, dataset: Labelled | None, device: torch.device
) -> tuple[SmoothedClassifier, CertifyPlan]:
    """The classifier of a trained run under its own noise, and the plan of its certificates, of which the run states none."""
    law, noise, step = trained.law, trained.generator, usual_step(dataset, trained.generator)
    g = SmoothedClassifier(trained.classifier.to(device), law, noise, trained.num_classes, step=step)
    return g, CertifyPlan(n=VOTES, norm=noise.usual_norm(law), budget=trained.budget)


def usual_step(dataset: Labelled | None, noise: Generator) -> float | torch.Tensor | None:
    """The step of a trained run's inputs where nobody asks for an arithmetic: that of its data, as `ucan certify` takes it.

    Where the data are not here, or have none, it is the one that the noise needs, if any.
    """
    step = None if dataset is None else dataset.step
    return noise.own_step if step is None else step


def shape_of(run: Run, outcome: Certificate | Abstention, dataset: Labelled | None) -> tuple[int, ...]:
    """The shape of a run's inputs, by one of its outcomes or by its data."""
    found = _event(outcome, dataset)
    if found is None:
        raise InvalidInput(
            f"neither the data of {run.folder} are here nor a certificate that tells their shape: give --data."
        )
    return found


def _event(outcome: Certificate | Abstention, dataset: Labelled | None) -> tuple[int, ...] | None:
    """The shape of an outcome's input, which an abstention does not tell; None without its data."""
    if isinstance(outcome, Certificate):
        return tuple(outcome.region.shape)
    return None if dataset is None else tuple(dataset.event_shape)


def _adapted(model: Any, known: ModelRef, shape: tuple[int, ...] | None, device: torch.device) -> Any:
    """The model as the run uses it: with its normalisation, and with logits if it returns a record or one logit."""
    if shape is None:
        return model
    if known.normalise is not None and isinstance(model, nn.Module):
        model = normalised(model, known.normalise, shape[0])
    if not isinstance(model, nn.Module):
        return as_estimator(model) or model
    return adapt(model, torch.zeros(1, *shape, device=device)).model


def _precision(outcome: Certificate | Abstention) -> str | None:
    """The classifier's precision, if it is one that can be set."""
    claimed = outcome.evidence.precision
    return claimed if claimed in PRECISIONS and not outcome.evidence.copy else None
