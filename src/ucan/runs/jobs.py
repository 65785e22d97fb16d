"""The settings of jobs: a classifier under its noise, and inputs; each by name, or as a Python object."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ucan.choices import check_list
from ucan.data import ImageFolder, Labelled, Shards, as_dataset, load
from ucan.data.frames import is_table
from ucan.data.tables import Table
from ucan.errors import InvalidInput, first_line
from ucan.generators import Generator
from ucan.held import Held
from ucan.laws import Law
from ucan.plan import check_count
from ucan.questions.smoothed import check_generator, check_law
from ucan.tabular import Amounts

Model = str | Callable[[torch.Tensor], Any] | Any


class Settings:
    """Settings that are checked when they are made; each part checks its own, and calls the next."""

    def __post_init__(self) -> None:
        """Refuse what no job can have."""


@dataclass(frozen=True, kw_only=True)
class Pipeline(Settings):
    """The settings of a classifier under its noise.

    ``model`` is what ``--model`` takes, or the classifier itself; ``law`` and ``noise`` are names, or a law and a generator.
    A trained run has its own law and noise, and only λ (``scale``) can be changed. ``arithmetic`` is "grid", "real", or None:
    grid if the data have a step, else real. ``backend`` "auto" compiles if the job is long enough.

    ``sigma`` is the noise of a table's columns in their own units. ``class_names`` are the classes in the model's order.
    ``trust`` allows a model file to run code (pickles), and a trained run to import a module beside it.
    ``normalise`` adds a normalisation in front of a network.
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

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.law, str | None):
            check_law(self.law)
        if not isinstance(self.noise, str | Path | None):
            check_generator(self.noise)
        check_list("class_names", self.class_names)

    @property
    def spec(self) -> str | None:
        """How the model was named; None for a Python object."""
        return text_of(self.model)

    def place(self) -> torch.device:
        """The device of the classifier; a module given as an object stays on its device unless ``device`` names another."""
        own = next(self.model.parameters(), None) if isinstance(self.model, nn.Module) else None
        return own.device if own is not None and self.device == "auto" else device_of(self.device)


@dataclass(frozen=True, kw_only=True)
class Inputs(Settings):
    """The settings of the inputs: what ``--data`` takes, or a data set; every ``skip``-th, at most ``most``.

    For a table, ``target`` is the column of labels, ``id`` the column of row names, ``hold`` and ``vary`` are columns without
    and with noise, and ``train`` is the table that each column's spread is computed from.
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

    def __post_init__(self) -> None:
        super().__post_init__()
        check_taken(self.skip, self.most)
        check_list("hold", self.hold)
        check_list("vary", self.vary)

    @property
    def source(self) -> str | None:
        """How the data were named; None for a Python object."""
        return str(self.data) if isinstance(self.data, str | Path) else None

    def selection(self) -> Selection:
        """The inputs chosen."""
        _check_other_rows(self.data, self.train)
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
        check_taken(skip, most)
        indices = range(0, len(dataset), skip)
        return cls(dataset, indices[:most] if most is not None else indices)

    def first(self) -> torch.Tensor:
        """The first selected input (1, *event)."""
        return self.dataset[self.indices[0]][0][None]

    def held(self) -> Held | None:
        """The held columns of that input."""
        return self.dataset.held_at(self.indices[0])

    @property
    def lopsided(self) -> str:
        """A warning if the selected inputs cover few classes, as in a folder sorted by class; else an empty text."""
        labels = self.dataset.labels
        if bool((labels.diff() < 0).any()):
            return ""
        chosen = labels[torch.tensor(self.indices)]
        there, all_there = (len(set(some[some >= 0].tolist())) for some in (chosen, labels))  # −1 is no class
        if there == all_there or len(chosen) < 2:
            return ""
        return (
            f"the {len(chosen)} selected inputs cover {there} of the {all_there} classes, since the data are sorted by "
            f"class: their results do not represent the data set. Use --skip {max(2, len(labels) // len(chosen))} to select "
            f"inputs from all of it."
        )

    def in_order(self, classes: Sequence[str] | None) -> Selection:
        """The same inputs, their labels numbered in the model's order of the classes, where it has the names of all of them."""
        known = self.dataset.classes
        if classes is None or known is None or not set(known) <= set(classes):
            return self
        return replace(self, dataset=self.dataset.in_order(classes))

    def check(self, num_classes: int) -> None:
        """Refuse, before any work, inputs that cannot be read and labels that the model does not have."""
        labels = self.dataset.labels[torch.tensor(self.indices)]
        beyond = (labels >= num_classes).nonzero()
        if len(beyond):
            index, label = self.indices[int(beyond[0])], int(labels[beyond[0]])
            raise InvalidInput(
                f"{self.dataset.name} has label {label} at index {index}, but the model has {num_classes} classes: check "
                f"that the model belongs to these data. Labels count from 0, and −1 means unknown."
            )
        self.dataset.check(self.indices)


def check_taken(skip: Any, most: Any) -> None:
    """Refuse anything but whole numbers of at least 1; ``most`` may be None. Others would choose other inputs, or none."""
    check_count("skip", skip)
    if most is not None:
        check_count("most", most)


@dataclass(frozen=True)
class TableOptions:
    """The options for a table's columns; for arrays, the unit of inputs that are not pixels in [0, 1]."""

    target: str | None = None
    id: str | None = None
    train: Any = None
    hold: tuple[str, ...] = ()
    vary: tuple[str, ...] = ()
    unit: str | None = None

    def check_unused(self, name: str) -> None:
        """Refuse table options if the data are not a table."""
        options = {
            "--target": self.target,
            "--id": self.id,
            "--train": self.train,
            "--hold": self.hold,
            "--vary": self.vary,
        }
        given = next((option for option, value in options.items() if value not in (None, ())), None)
        if given is not None:
            raise InvalidInput(f"{given} is for the columns of a table (.csv, .parquet), and {name} is not a table.")


def dataset_of(
    source: Any,
    split: str = "test",
    size: int | None = None,
    channels: int | None = None,
    table: TableOptions | None = None,
) -> Labelled:
    """Load the data that `--data` names, with `--size` and `--channels` for pictures in files; a data set is returned
    unchanged.
    """
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
        raise InvalidInput(f"--size and --channels are for pictures in files, and {found.name} has none.")
    if not isinstance(found, Table):
        asked.check_unused(found.name)
    if asked.unit is not None and getattr(found, "unit", None) != asked.unit:
        raise InvalidInput(f"--unit is for arrays that are no pictures; {found.name} takes none: leave it out.")
    return found


def _check_other_rows(data: Any, train: Any) -> None:
    """Refuse the rows to certify as those that the size of the noise is taken from."""
    same = train is data
    if isinstance(data, str | Path) and isinstance(train, str | Path):
        one, other = Path(data), Path(train)
        same = one.is_file() and other.is_file() and one.samefile(other)
    if train is not None and same:
        raise InvalidInput(
            "--train is the table of --data itself: give other rows, best those that the model was trained on, or the noise "
            "of every column by --sigma. The size of the noise is never taken from the rows to certify."
        )


def text_of(given: Any) -> str | None:
    """What was given as text; None for a Python object."""
    return given if isinstance(given, str) else None


def device_of(name: str | torch.device) -> torch.device:
    """The device that `--device` names."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        known = str(name).partition(":")[0] in ("cpu", "cuda", "mps", "xpu")  # of others PyTorch lists twenty
        reason = first_line(error).rstrip(".") if known else "there is no such kind of device"
        raise InvalidInput(f"--device {name}: {reason}. Choose cpu, auto, or a GPU that PyTorch finds here.") from error
    return device
