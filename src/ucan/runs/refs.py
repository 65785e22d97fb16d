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
    return ModelRef(
        spec=asked.spec,
        weights=None if asked.weights is None else str(asked.weights),
        classes=asked.classes if given else None,
        model_id=asked.model_id if given else None,
        weights_hash=weights_hash(g.f.model) if isinstance(g, Smoothed) else None,
        identity=g.identity(),
        class_names=tuple(class_names or ()),
        named=tuple(asked.class_names or ()) if given else (),
        trust=asked.trust or None,
        normalise=asked.normalise,
    )


def data_ref(asked: Inputs, dataset: Labelled) -> DataRef:
    """The config's record of the data."""
    return DataRef(
        source=asked.source,
        split=asked.split,
        size=asked.size,
        channels=asked.channels,
        skip=asked.skip,
        fingerprint=dataset.fingerprint(),
        target=asked.target,
        id=asked.id,
        train=str(asked.train) if isinstance(asked.train, str | Path) else None,
        hold=tuple(asked.hold),
        vary=tuple(asked.vary),
        columns=tuple(column.name for column in dataset.columns) if isinstance(dataset, Table) else (),
        unit=asked.unit,
    )


def law_ref(g: Deployed) -> LawRef:
    """The config's record of the law; a router's parts have their own."""
    return LawRef.of(g.law) if isinstance(g, SmoothedClassifier) else LawRef()


def noise_ref(g: Deployed | Smoothed) -> NoiseRef:
    """The config's record of the noise."""
    if not isinstance(g, Smoothed):
        return NoiseRef(None, g.describe())
    return NoiseRef(None, g.M.describe(), dict(g.M.settings()), weights_hash(g.M))
