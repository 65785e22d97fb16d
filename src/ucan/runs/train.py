"""Train a classifier together with its noise, into a run's folder."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ucan.choices import check_list
from ucan.data import Labelled, load
from ucan.errors import InvalidInput
from ucan.runs.jobs import device_of
from ucan.training import Trainer, TrainSettings, build_classifier, for_claim, read_settings

# Called after some steps with: epoch, step, steps per epoch, mean metrics.
OnStep = Callable[[int, int, int, dict[str, float]], None]


@dataclass(frozen=True, kw_only=True)
class TrainJob:
    """The settings of `ucan train`: a preset's name, a TOML file or settings, and changes to them (``key=value``).

    ``claim`` is what will be certified: "linf", "l2", "l1", "alm" or "budget". ``data`` is the training set, if not the one
    in the settings. ``finetune`` is the weights, or the trained run, to start from.
    """

    settings: str | Path | TrainSettings
    changes: Sequence[str] = ()
    claim: str | None = None
    finetune: str | Path | None = None
    data: Labelled | None = None
    device: str | torch.device = "auto"

    def __post_init__(self) -> None:
        check_list("changes", self.changes)

    def chosen(self) -> TrainSettings:
        """The settings with the changes, adapted to the claim."""
        given = self.settings if isinstance(self.settings, TrainSettings) else read_settings(str(self.settings))
        chosen = changed(given, self.changes)
        if self.claim is None:
            return chosen
        named = any(one.partition("=")[0].strip() == "variance_term" for one in self.changes)
        return for_claim(chosen, self.claim, chosen.variance_term if named else None)

    def folder(self) -> Path:
        """The default folder of the run."""
        named = "trained" if isinstance(self.settings, TrainSettings) else Path(self.settings).stem
        return Path("runs") / named


def trainer_of(job: TrainJob, out: str | Path | None = None, on_step: OnStep | None = None) -> Trainer:
    """Make the trainer of a job: its ``run()`` trains to the end, from the last checkpoint if there is one.

    Afterwards ``load_run(out)`` returns the classifier with its noise, and ``ucan certify --model out`` certifies it.

    Args:
        job: the settings, the data and the device.
        out: the run's folder; ``job.folder()`` if None.
        on_step: called after some steps with epoch, step, steps per epoch and mean metrics.
    """
    settings = job.chosen()
    dataset = load(settings.data, "train", size=settings.size) if job.data is None else job.data
    classifier = build_classifier(settings, dataset.event_shape, dataset.num_classes)
    folder, place = job.folder() if out is None else Path(out), device_of(job.device).type
    return Trainer(settings, dataset, classifier, folder, place, on_step, job.finetune)


def changed(settings: TrainSettings, changes: Sequence[str]) -> TrainSettings:
    """The settings with ``key=value`` (or ``table.key=value``) changes, values in TOML syntax."""
    values = settings.to_dict()
    for change in changes:
        key, equals, text = change.partition("=")
        if not equals:
            raise InvalidInput(f"--set takes key=value, got {change!r}.")
        try:
            value = tomllib.loads(f"v = {text}")["v"]
        except tomllib.TOMLDecodeError:
            value = text
        table: Any = values
        *path, last = key.strip().split(".")
        for name in path:
            table = table.get(name) if isinstance(table, dict) else None
        if not isinstance(table, dict) or (not path and last not in values):
            raise InvalidInput(f"there is no setting {key!r}; the settings are {', '.join(sorted(values))}.")
        table[last] = value
    return TrainSettings.from_dict(values)
