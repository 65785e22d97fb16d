"""When enough samples are enough: stopping rules, each valid however often it looks."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from ucan.betting import Bettor
from ucan.bounds import anytime_lower_bound, anytime_upper_bound, log_wealth
from ucan.choices import norm_word
from ucan.errors import InvalidInput
from ucan.giving_up import Hopes, misses_allowed, misses_left
from ucan.named_bounds import Sequential, ladder

# A class that leads by so many votes is chosen: of two with probabilities p and 1 − p the wrong one with ((1 − p)/p)^8 at most.
LEAD = 8
# Radii that take a larger p than this are out of reach: no number of votes shows so much, and of the alternatives above it that
# a bettor would bet on some would round to 1.
HIGHEST = 1 - 2.0**-44


@dataclass(frozen=True)
class Radius:
    """How the certified radius follows from p, and back: what the rules need to know of law, Σ and norm.

    ``in_norm`` gives the same in another norm, where p certifies something in several.
    """

    of: Callable[[float], float]
    probability: Callable[[float], float]
    in_norm: Callable[[float], Radius] | None = None


@dataclass(frozen=True)
class Case:
    """One input whose votes a rule is to end: at most ``cap`` of them, at level α, in blocks of so many.

    ``chose``: hits and number of the votes that chose the class.
    """

    cap: int
    alpha: float
    radius: Radius
    block: int = 1
    chose: tuple[int, int] = (0, 0)


class Watch(ABC):
    """A rule at work on one input: it sees every vote once, in order, in pieces of any length."""

    @abstractmethod
    def look(self, hits: int, drawn: int, votes: np.ndarray) -> int | None:
        """After ``hits`` of ``drawn`` votes come further ones (True for a hit): how many of them it takes to the end.

        None: they do not suffice. The answer does not depend on how the votes are cut into pieces.
        """

    def needed(self, hits: int, drawn: int) -> int:
        """How many further votes it takes at least; fewer than these are not worth a look."""
        return 1


@dataclass(frozen=True)
class Stop(ABC):
    """A stopping rule for certificates. ``bound`` names the bound by which what it ended is certified (``ucan.named_bounds``).

    A rule of one's own writes ``settled`` and ``__str__``. It is asked after every block of votes, or after each ``growth`` of
    their number, and its votes are certified by the bound that holds at every number of votes.
    """

    growth: ClassVar[float] = 1.0
    bound: ClassVar[str] = "anytime"

    @abstractmethod
    def settled(self, hits: int, drawn: int, cap: int, alpha: float, radius: Radius) -> bool:
        """Whether further samples (up to ``cap``) can no longer change what this rule asks."""

    @abstractmethod
    def __str__(self) -> str:
        """The text that ``ucan.stop_option.parse_stop`` reads back as this rule."""

    def watch(self, case: Case) -> Watch:
        """The rule at work on one input."""
        return BlockWatch(self, case)

    def anytime(self) -> Stop:
        """The same rule by the bound that holds at every number of votes: they may go on later, past their cap."""
        return self

    def thresholds(self, radius: Radius) -> tuple[float, ...]:
        """The probabilities that the rule asks for, rising, where its bound needs to know them."""
        return ()

    def lead(self, case: Case, n0: int) -> int:
        """By how many votes a class must lead to be chosen before ``n0`` votes have chosen it."""
        return n0


class BlockWatch(Watch):
    """Asks a rule after every block, or after each growth of the number of votes."""

    def __init__(self, stop: Stop, case: Case) -> None:
        self.stop, self.case, self.next_look = stop, case, 0.0

    def needed(self, hits: int, drawn: int) -> int:
        """The rest of the block."""
        return self.case.block - drawn % self.case.block

    def look(self, hits: int, drawn: int, votes: np.ndarray) -> int | None:
        """At block boundaries alone."""
        case, block = self.case, self.case.block
        so_far = hits + np.cumsum(votes)
        for taken in range(block - drawn % block, len(votes) + 1, block):
            now = drawn + taken
            if now >= self.next_look and now < case.cap:
                self.next_look = now * self.stop.growth
                if self.stop.settled(int(so_far[taken - 1]), now, case.cap, case.alpha, case.radius):
                    return taken
        return None


@dataclass(frozen=True)
class Radii(Stop):
    """Rules about "is the radius at least r?" for each of some radii; ``others`` are radii in norms of their own."""

    radii: tuple[float, ...]
    others: tuple[tuple[float, float], ...] = ()

    def in_one_norm(self, norm: float) -> Self:
        """The same rule for certificates of this norm: radii of it are among ``radii``."""
        own = tuple(sorted({*self.radii, *(r for q, r in self.others if q == norm)}))
        return replace(self, radii=own, others=tuple((q, r) for q, r in self.others if q != norm))

    def asked(self, radius: Radius) -> list[tuple[Radius, float]]:
        """Each radius with the map that it belongs to."""
        if self.others and radius.in_norm is None:
            raise InvalidInput(f"radii in several norms ({self}) cannot be decided here: give radii in one norm.")
        in_norms = [(radius.in_norm(norm), r) for norm, r in self.others] if radius.in_norm is not None else []
        return [*((radius, r) for r in self.radii), *in_norms]

    def __str__(self) -> str:
        return ",".join([*map(repr, self.radii), *(f"l{norm_word(norm)}:{r!r}" for norm, r in self.others)])


@dataclass(frozen=True)
class AnytimeRadii(Radii):
    """Decide "is the radius at least r?" for each of some radii by the anytime bound, whose votes may go on past their cap."""

    def settled(self, hits: int, drawn: int, cap: int, alpha: float, radius: Radius) -> bool:
        """Every radius is either certified at level α or given up, because the cap will come first."""
        p0 = np.sort([sizes.probability(r) for sizes, r in self.asked(radius)])
        # A radius that no p below 1 reaches (NaN where none does at all) is decided before the first draw.
        p0 = p0[p0 < 1]
        certified = log_wealth(hits, drawn, p0) >= math.log(1 / alpha)
        most = max(cap, drawn)
        given_up = Hopes(most, np.array([misses_allowed(most, alpha, p) for p in p0.tolist()])).lost(
            drawn - hits, drawn
        )
        # A larger radius counts as certified only if every smaller one is: only then do their errors not add up.
        certified = np.logical_and.accumulate(certified)
        return bool((certified | given_up).all())


@dataclass(frozen=True)
class AtRadii(Radii):
    """Decide "is the radius at least r?" for each of some radii, after every vote, and stop as soon as all are decided."""

    bound: ClassVar[str] = Sequential.name

    def settled(self, hits: int, drawn: int, cap: int, alpha: float, radius: Radius) -> bool:
        """Every radius is either certified or given up; of votes whose class was given."""
        return RadiiWatch(self, Case(cap, alpha, radius)).decided(hits, drawn)

    def anytime(self) -> Stop:
        """The same radii by the anytime bound."""
        return AnytimeRadii(self.radii, self.others)

    def watch(self, case: Case) -> Watch:
        """Looks after every vote; gives up at block boundaries."""
        return RadiiWatch(self, case)

    def thresholds(self, radius: Radius) -> tuple[float, ...]:
        """The p of each radius that is within reach (``HIGHEST``); 1/2 where none is."""
        return self.reachable(radius) or (0.5,)

    def reachable(self, radius: Radius) -> tuple[float, ...]:
        """The same; nothing where none is."""
        return tuple(sorted({p for sizes, r in self.asked(radius) if 0 < (p := _reaching(sizes, r)) <= HIGHEST}))

    def lead(self, case: Case, n0: int) -> int:
        """That for the largest radius."""
        return leading(self.thresholds(case.radius)[-1], case.alpha, n0)


def leading(threshold: float, alpha: float, n0: int) -> int:
    """A quarter of the votes that a sure class needs to show p ≥ threshold: more would cost more than they tell."""
    least = math.log(1 / alpha) / -math.log(threshold)
    return min(n0, max(LEAD, math.ceil(least / 4)))


def _reaching(radius: Radius, r: float) -> float:
    """The p at which a radius is reached, rounding included."""
    p = float(radius.probability(r))
    for _ in range(100):
        if not p < 1 or radius.of(p) >= r:
            break
        p = math.nextafter(p, 1.0)
    return p


class RadiiWatch(Watch):
    """``AtRadii`` at work: certified after any vote at which every bettor that is not given up has won."""

    def __init__(self, stop: AtRadii, case: Case) -> None:
        self.case, self.goal = case, Sequential.goal(case.alpha)
        self.reachable = bool(stop.reachable(case.radius))
        self.thresholds = stop.thresholds(case.radius)
        rungs = ladder(self.thresholds)
        self.bettors = [(Bettor.against(p, case.cap, case.alpha, case.chose), end) for p, end in rungs]
        self.unasked = len(rungs) - len(self.thresholds)
        allowed = np.array([misses_left(p, case.cap, case.alpha, case.chose) for p in self.thresholds])
        self.hopes = Hopes(case.cap, allowed)
        self.open = len(self.thresholds)  # those after these are given up
        self.earliest = [0] * (self.open + 1)  # votes that it takes at least while so many are open

    def needed(self, hits: int, drawn: int) -> int:
        """What the last bettor that is not given up needs, if all further votes are hits."""
        if not (self.open and self.reachable):
            return self.case.block - drawn % self.case.block
        if (wait := self.earliest[self.open] - drawn) > 0:
            return wait
        last, _ = self.bettors[self.unasked + self.open - 1]
        return max(1, last.needed(hits, drawn - hits, self.goal))

    def look(self, hits: int, drawn: int, votes: np.ndarray) -> int | None:
        """At every vote whether all have won; at block boundaries which are hopeless."""
        start, block = 0, self.case.block
        while start < len(votes):
            end = min(len(votes), start + block - (drawn + start) % block)
            so_far = hits + np.cumsum(votes[start:end])
            found = self._first(hits, drawn + start, so_far)
            if found is not None:
                return start + found
            hits, now = int(so_far[-1]), drawn + end
            if now % block == 0 and now < self.case.cap:
                before = self.open
                self._give_up(hits, now)
                if (self.open != before or not self.reachable) and self.decided_now(hits, now):
                    return end
            start = end
        return None

    def _first(self, hits: int, drawn: int, so_far: np.ndarray) -> int | None:
        """After how many of these votes every bettor that is not given up has won; None if after none of them."""
        end = drawn + len(so_far)
        if not self.open or not self.reachable or end < self.earliest[self.open]:
            return None
        last, _ = self.bettors[self.unasked + self.open - 1]
        most = float(last.log_wealth(int(so_far[-1]), drawn - hits))  # if the misses came last
        if most < self.goal:
            self.earliest[self.open] = end + last.hits_until(self.goal, most)
            return None
        won = self._won(so_far, drawn + np.arange(1, len(so_far) + 1))
        return int(won.argmax()) + 1 if won.any() else None

    def _won(self, hits: np.ndarray, drawn: np.ndarray) -> np.ndarray:
        """Whether the bound is at or above the last threshold that is not given up."""
        *before, (last, _) = self.bettors[: self.unasked + self.open]
        wealth = [last.log_wealth(hits, drawn - hits), *(b.log_wealth(hits, drawn - hits, end) for b, end in before)]
        found: np.ndarray = np.min(wealth, axis=0) >= self.goal
        return found

    def _give_up(self, hits: int, drawn: int) -> None:
        """A radius is given up with all larger ones: what is certified is certified from the smallest up."""
        lost = self.hopes.lost(drawn - hits, drawn)
        self.open = int(lost.argmax()) if lost.any() else len(self.thresholds)

    def decided_now(self, hits: int, drawn: int) -> bool:
        """Whether every radius is certified by these votes, or given up."""
        return not (self.open and self.reachable) or bool(self._won(np.array(hits), np.array(drawn)))

    def decided(self, hits: int, drawn: int) -> bool:
        """The same after looking at what is hopeless."""
        self._give_up(hits, drawn)
        return self.decided_now(hits, drawn)


@dataclass(frozen=True)
class Within(Stop):
    """Stop when the radius is within a fraction of what more samples, up to the cap, could still give."""

    fraction: float
    growth: ClassVar[float] = 1.05

    def settled(self, hits: int, drawn: int, cap: int, alpha: float, radius: Radius) -> bool:
        """R(now) ≥ (1 − fraction) · R(at the cap, if the rest hits as often as p can still be believed to)."""
        upper = anytime_upper_bound(hits, drawn, alpha)
        most = hits + math.ceil(upper * (cap - drawn))
        reachable = radius.of(anytime_lower_bound(most, cap, alpha))
        return radius.of(anytime_lower_bound(hits, drawn, alpha)) >= (1 - self.fraction) * reachable

    def __str__(self) -> str:
        return f"{100 * self.fraction:.12g}%"
