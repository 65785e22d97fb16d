"""The references of a run's config: which model, data, law and noise the job was made with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ucan.data import Labelled
from ucan.data.tables import Table
from ucan.fingerprint import weights_hash
from ucan.questions.smoothed import Smoothed
from ucan.routed import Deployed
from ucan.runs.config import DataRef, LawRef, ModelRef, NoiseRef
from ucan.runs.jobs import Inputs, Pipeline
from ucan.smoothed import SmoothedClassifier


def model_ref(
    asked: Pipeline, g: Deployed | Smoothed, given: bool = False, class_names: Sequence[str] | None = None
) -> ModelRef:
    """The config's record of the model; with ``given``, also how its number of classes and its name were given."""
    weights = None if asked.weights is None else str(asked.weights)
    spelled = (asked.classes, asked.model_id) if given else (None, None)
    weights_of = weights_hash(g.f.model) if isinstance(g, Smoothed) else None
    hashes = (weights_of, g.identity())
    named = tuple(asked.class_names or ()) if given else ()
    return ModelRef(
        asked.spec, weights, *spelled, *hashes, tuple(class_names or ()), named, asked.trust or None, asked.normalise
    )


def data_ref(asked: Inputs, dataset: Labelled) -> DataRef:
    """The config's record of the data."""
    train = str(asked.train) if isinstance(asked.train, str | Path) else None
    return DataRef(
        asked.source,
        asked.split,
        asked.size,
        asked.channels,
        asked.skip,
        dataset.fingerprint(),
        asked.target,
        asked.id,
        train,
        tuple(asked.hold),
        tuple(asked.vary),
        tuple(column.name for column in dataset.columns) if isinstance(dataset, Table) else (),
        asked.unit,
    )


def law_ref(g: Deployed) -> LawRef:
    """The config's record of the law; a router's parts have their own."""
    return LawRef.of(g.law) if isinstance(g, SmoothedClassifier) else LawRef()


def noise_ref(g: Deployed | Smoothed) -> NoiseRef:
    """The config's record of the noise."""
    if not isinstance(g, Smoothed):
        return NoiseRef(None, g.describe())
    return NoiseRef(None, g.M.describe(), dict(g.M.settings()), weights_hash(g.M))
