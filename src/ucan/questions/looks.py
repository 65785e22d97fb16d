"""Stopping rules for questions: answers are looked at a few times, and each look has its share of α (docs/stopping.md)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ucan.bounds import lower_bounds
from ucan.errors import InvalidInput
from ucan.giving_up import GIVE_UP
from ucan.stop_option import parse_stop
from ucan.stopping import Radii

# No look is earlier: fewer answers decide hardly anything.
FIRST = 50
# The share of α for the last look, at the cap; the others have equal shares of the rest.
AT_THE_CAP = 0.5


def looks_of(cap: int) -> tuple[int, ...]:
    """The numbers of answers at which they are looked at: the cap, half of it, a quarter, …, in rising order."""
    found = [cap]
    while (half := math.ceil(found[-1] / 2)) >= FIRST:
        found.append(half)
    return tuple(reversed(found))


@dataclass(frozen=True)
class Look:
    """n answers, and the level of what is concluded from them."""

    n: int
    alpha: float

    @classmethod
    def at(cls, n: int, looks: tuple[int, ...], alpha: float) -> Look:
        """The look after n answers. All levels of ``looks`` add up to α; without looks there is one, at α."""
        others = len(looks) - 1
        if others < 1:
            return cls(n, alpha)
        return cls(n, alpha * (AT_THE_CAP if n == looks[-1] else (1 - AT_THE_CAP) / others))

    @staticmethod
    def suffix(n: int, looks: tuple[int, ...]) -> str:
        """What the name of a bound says about the look: not at the whole α; nothing without looks."""
        return f", look {looks.index(n) + 1} of {len(looks)}" if looks else ""

    def hoped(self, hits: Any, drawn: int) -> np.ndarray:
        """How many hits n answers have at most, after so many of those drawn; more are improbable (``GIVE_UP``)."""
        hits = np.asarray(hits)
        most = 1 - lower_bounds(drawn - hits, drawn, GIVE_UP)
        found: np.ndarray = np.minimum(self.n, hits + np.ceil(most * (self.n - drawn)).astype(np.int64))
        return found

    def feared(self, hits: Any, drawn: int) -> np.ndarray:
        """How many hits they have at least."""
        found: np.ndarray = self.n - self.hoped(drawn - np.asarray(hits), drawn)
        return found


def all_decided(radii: Iterable[float], now: Callable[[float], Any], hoped: Callable[[float], Any]) -> bool:
    """Whether every statement at each radius is true by the answers so far, or is given up: not even hoped for at the cap."""
    return all(bool(np.all(np.asarray(now(r)) | ~np.asarray(hoped(r)))) for r in radii)


def question_stop(value: Any) -> Radii | None:
    """The radii at which a question is to be decided, of the size of its ``radius``; None for no stopping."""
    stop = parse_stop(value)
    if stop is None:
        return None
    if not isinstance(stop, Radii) or stop.others:
        raise InvalidInput(
            f"a question is stopped at radii in the region's own norm, such as stop=0.5 (--stop 0.5); got {value!r}."
        )
    return stop
