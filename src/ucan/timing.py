"""Work that is timed in turns, so that a machine that grows hot or busy does so for all of it; rows of samples per second."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import Any

import torch

from ucan.memory import watched


class Work(Enum):
    """What is timed, and the text that a row shows it by: {by} is the backend and the precision, {name} the noise."""

    CERTIFY = "certify, {by}"
    GRID = "certify on the grid, {by}"
    BARE = "bare forward, {by}"
    BARE_FROM_FP32 = "bare forward, {by}, from float32 pictures"
    TEXTBOOK = "textbook loop, {by}"
    TEXTBOOK_KEPT = "textbook loop, {by}, memory kept"
    BEFORE = "certify, {by}, the version before"
    BEFORE_FIRST = "certify, {by}, the version before, first"
    BEFORE_AGAIN = "certify, {by}, the version before, again"
    NOISE = "{name}"
    GENERATOR = "n = 1,000, {name}"
    TOOLBOX = "ART certify, {by}"


@dataclass(frozen=True)
class Subject:
    """What a row is about: the work, and what its text names: backend and precision, or the noise."""

    work: Work
    backend: str = ""
    precision: str = ""
    name: str = ""

    @property
    def by(self) -> str:
        """Backend and precision."""
        return ", ".join(filter(None, (self.backend, self.precision)))

    def __str__(self) -> str:
        """As tables and files show it."""
        return self.work.value.format(by=self.by, name=self.name)


@dataclass(frozen=True)
class Row:
    """One measurement: what, samples per second, the ratio to a yardstick, and peak memory in MiB above what was there.

    ``ratio`` is of the two rates, which are medians; ``turns`` has the ratio in every turn, where both were timed in turns.
    """

    what: Subject
    rate: float
    ratio: float | None = None
    against: Subject | None = None
    memory: float | None = None
    turns: tuple[float, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; both subjects as text, a missing yardstick as an empty one."""
        told = {one.name: getattr(self, one.name) for one in fields(self)}
        return {**told, "what": str(self.what), "against": "" if self.against is None else str(self.against)}


@dataclass(frozen=True)
class Case:
    """Something to be timed: what it is, the work, its samples, and the row that it is set beside."""

    what: Subject
    work: Callable[[], Any]
    samples: int
    against: Subject | None = None


@dataclass(frozen=True)
class Timed:
    """How long a case took in every turn, and its peak memory in the first."""

    case: Case
    seconds: list[float] = field(default_factory=list)
    memory: list[float | None] = field(default_factory=list)

    @property
    def rates(self) -> list[float]:
        """Samples per second in every turn."""
        return [self.case.samples / seconds for seconds in self.seconds]

    @property
    def row(self) -> Row:
        """The median, by itself."""
        return Row(self.case.what, statistics.median(self.rates), memory=self.memory[0])

    def beside(self, other: Timed) -> Row:
        """The median beside that of a case that was timed in the same turns."""
        turns = tuple(mine / its for mine, its in zip(self.rates, other.rates, strict=True))
        return replace(set_beside(self.row, other.row), turns=turns)


def set_beside(row: Row, other: Row) -> Row:
    """A row with its ratio to another."""
    return Row(row.what, row.rate, row.rate / other.rate, other.what, row.memory)


def in_turns(cases: Sequence[Case], repeats: int, device: torch.device) -> dict[Subject, Timed]:
    """All cases once to warm up, then in turns; each by its subject."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    for case in cases:
        case.work()
    timed = {case.what: Timed(case) for case in cases}
    for turn in range(repeats):
        for case in cases:
            # Once: what a process freed is given back to the system first, and taking it again costs time.
            memory = None if turn else watched(device)
            wait()
            start = time.perf_counter()
            case.work()
            wait()
            timed[case.what].seconds.append(time.perf_counter() - start)
            if memory is not None:
                timed[case.what].memory.append(memory.peak())
    return timed
