"""Work that is timed in turns, so that a machine that grows hot or busy does so for all of it; rows of samples per second."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ucan.memory import watched


@dataclass(frozen=True)
class Row:
    """One measurement: what, samples per second, the ratio to a yardstick, and peak memory in MiB above what was there.

    ``ratio`` is of the two rates, which are medians; ``turns`` has the ratio in every turn, where both were timed in turns.
    """

    what: str
    rate: float
    ratio: float | None = None
    against: str = ""
    memory: float | None = None
    turns: tuple[float, ...] = ()


@dataclass(frozen=True)
class Case:
    """Something to be timed: what it is called, the work, its samples, and the row that it is set beside."""

    what: str
    work: Callable[[], Any]
    samples: int
    against: str = ""


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


def in_turns(cases: Sequence[Case], repeats: int, device: torch.device) -> dict[str, Timed]:
    """All cases once to warm up, then in turns; each by its name."""

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
