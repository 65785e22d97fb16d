"""What a user asks for: a classifier under its noise, and inputs; everything by its name, or as an object from Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ucan.data import ImageFolder, Labelled, Shards, as_dataset, load
from ucan.data.frames import is_table
from ucan.data.tables import Table
from ucan.errors import InvalidInput
from ucan.generators import Generator
from ucan.held import Held
from ucan.laws import Law
from ucan.tabular import Amounts

Model = str | Callable[[torch.Tensor], Any] | Any


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """A classifier under its noise, as a user asks for it.

    ``model`` is what ``--model`` takes, or the classifier itself; ``law`` and ``noise`` are names, or a law and a generator.
    A trained run brings law and noise, and only λ (``scale``) may be changed. ``arithmetic`` is "grid", "real", or None: grid
    where the data have a step. ``backend`` "auto" compiles where a long job gains by it.

    ``sigma`` is the noise of a table's columns in their own units. ``class_names`` are the classes in the model's order.
    ``trust`` lets a model file run code (pickles). ``normalise`` puts a normalisation in front of a network.
    """

    model: Model
    weights: str | Path | None = None
    law: str | Law | None = None
    scale: float | None = None
    exponent: float | None = None
    noise: str | Generator | None = None
    classes: int | None = None
    model_id: str | None = None
    precision: str | None = None
    arithmetic: str | None = None
    backend: str = "auto"
    device: str | torch.device = "auto"
    sigma: Amounts | None = None
    class_names: Sequence[str] | None = None
    trust: bool = False
    normalise: str | None = None

    @property
    def spec(self) -> str | None:
        """How the model was named; None for one given as an object."""
        return self.model if isinstance(self.model, str) else None

    def place(self) -> torch.device:
        """Where the classifier runs; a module that is given as an object stays where it is unless ``device`` names a place."""
        own = next(self.model.parameters(), None) if isinstance(self.model, nn.Module) else None
        return own.device if own is not None and self.device == "auto" else device_of(self.device)


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The inputs, as a user asks for them: what ``--data`` takes, or a data set; every ``skip``-th, ``most`` at most.

    Of a table ``target`` names the labels, ``id`` the rows, ``hold`` and ``vary`` columns without and with noise, and
    ``train`` is a table from which the usual size of each column is taken.
    """

    data: Any
    split: str = "test"
    size: int | None = None
    channels: int | None = None
    skip: int = 1
    most: int | None = None
    target: str | None = None
    id: str | None = None
    train: Any = None
    hold: Sequence[str] = ()
    vary: Sequence[str] = ()
    unit: str | None = None

    @property
    def source(self) -> str | None:
        """How the data were named; None for data given as an object."""
        return str(self.data) if isinstance(self.data, str | Path) else None

    def selection(self) -> Selection:
        """The inputs chosen."""
        table = TableOptions(self.target, self.id, self.train, tuple(self.hold), tuple(self.vary), self.unit)
        return Selection.of(dataset_of(self.data, self.split, self.size, self.channels, table), self.skip, self.most)


@dataclass(frozen=True)
class Selection:
    """The inputs that a job works on, by their number in the data set."""

    dataset: Labelled
    indices: range

    @classmethod
    def of(cls, dataset: Labelled, skip: int, most: int | None) -> Selection:
        """Every ``skip``-th input, at most ``most`` of them."""
        indices = range(0, len(dataset), skip)
        return cls(dataset, indices[:most] if most is not None else indices)

    def first(self) -> torch.Tensor:
        """One input (1, *event), to learn shapes from."""
        return self.dataset[self.indices[0]][0][None]

    def held(self) -> Held | None:
        """The held columns of that input."""
        return self.dataset.held_at(self.indices[0])

    @property
    def lopsided(self) -> str:
        """A warning where the first inputs are of few classes, as in a folder sorted by class; else nothing."""
        labels = self.dataset.labels
        if bool((labels.diff() < 0).any()):
            return ""
        chosen = labels[torch.tensor(self.indices)]
        there, all_there = (len(set(some[some >= 0].tolist())) for some in (chosen, labels))  # −1 is no class
        if there == all_there or len(chosen) < 2:
            return ""
        return (
            f"the {len(chosen)} inputs chosen are of {there} of the {all_there} classes, since the data are sorted by class: "
            f"their shares say little of the rest. --skip {max(2, len(labels) // len(chosen))} takes inputs from all over."
        )

    def check(self, num_classes: int) -> None:
        """Refuse, before any work, inputs that cannot be read and labels that the model does not know."""
        labels = self.dataset.labels[torch.tensor(self.indices)]
        beyond = (labels >= num_classes).nonzero()
        if len(beyond):
            index, label = self.indices[int(beyond[0])], int(labels[beyond[0]])
            raise InvalidInput(
                f"{self.dataset.name} has label {label} at index {index}, but the model has {num_classes} classes: is it "
                "the model for these data? Labels count from 0, and −1 means unknown."
            )
        self.dataset.check(self.indices)


@dataclass(frozen=True)
class TableOptions:
    """What is said of a table's columns; of arrays, the unit of inputs that are no pixels in [0, 1]."""

    target: str | None = None
    id: str | None = None
    train: Any = None
    hold: tuple[str, ...] = ()
    vary: tuple[str, ...] = ()
    unit: str | None = None

    def check_unused(self, name: str) -> None:
        """Refuse options that are about tables where there is none."""
        options = {
            "--target": self.target,
            "--id": self.id,
            "--train": self.train,
            "--hold": self.hold,
            "--vary": self.vary,
        }
        given = next((option for option, value in options.items() if value not in (None, ())), None)
        if given is not None:
            raise InvalidInput(f"{given} is about the columns of a table (.csv, .parquet); {name} is none.")


def dataset_of(
    source: Any,
    split: str = "test",
    size: int | None = None,
    channels: int | None = None,
    table: TableOptions | None = None,
) -> Labelled:
    """The data that `--data` names, with `--size` and `--channels` for a folder of pictures; a data set as it is."""
    asked = table or TableOptions()
    found: Labelled
    if isinstance(source, Labelled):
        found = source
    elif is_table(source):
        found = Table(source, asked.target, asked.id, asked.hold, asked.vary, asked.train)
    elif isinstance(source, str | Path):
        found = load(source, split, size=size, channels=3 if channels is None else channels, unit=asked.unit)
    else:
        found = as_dataset(source, unit=asked.unit)
    if (size, channels) != (None, None) and not isinstance(found, ImageFolder | Shards):
        raise InvalidInput(f"--size and --channels are for folders of pictures; {found.name} is none.")
    if not isinstance(found, Table):
        asked.check_unused(found.name)
    return found


def device_of(name: str | torch.device) -> torch.device:
    """The device that `--device` names."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        known = str(name).partition(":")[0] in ("cpu", "cuda", "mps", "xpu")  # of others PyTorch lists twenty
        reason = str(error).splitlines()[0].rstrip(".") if known else "there is no such kind of device"
        raise InvalidInput(f"--device {name}: {reason}. Choose cpu, auto, or a GPU that PyTorch finds here.") from error
    return device
