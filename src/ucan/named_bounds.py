"""The bounds by name: from the votes of a claim to the probabilities that it may state at its α.

Evidence names its bound; certify, verify and registries ask the same one.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

from ucan.betting import Bettor
from ucan.bounds import (
    anytime_lower_bound,
    log_wealth,
    lower_bound,
    majority_p_value,
    net_loss_bound,
    randomised_lower_bound,
    top_two_p_value,
    upper_bound,
)
from ucan.choices import one_of
from ucan.errors import InvalidInput
from ucan.pairs import joint_lower_bound


@dataclass(frozen=True)
class Ballot:
    """The votes that a bound is computed from: ``hits`` of n for the class, ``others`` for the most voted of the other
    classes.

    ``fixed``: n was fixed before the first vote, and no rule could have ended them earlier. Otherwise ``cap`` votes were
    planned at most, ``chose`` are hits and number of the votes that chose the class, and ``thresholds`` the probabilities
    that a rule about radii asks for, rising. Of a classifier that took the place of another, ``before`` are bound and votes
    of that one, and ``lost`` of the n votes in pairs went to the class before and to another one now, ``gained`` the other way
    round (None where nobody counted them). ``uniform`` is the number of a randomised bound.
    """

    hits: int
    others: int
    n: int
    alpha: float
    fixed: bool = True
    cap: int = 0
    chose: tuple[int, int] = (0, 0)
    thresholds: tuple[float, ...] = ()
    before: tuple[str, Ballot] | None = None
    lost: int = 0
    uniform: float = 1.0
    gained: int | None = None


class Bound(ABC):
    """Computes bounds on probabilities from votes. Evidence names the bound, so that a check uses the same one."""

    name: ClassVar[str]

    @abstractmethod
    def probabilities(self, votes: Ballot) -> tuple[float, float | None]:
        """With probability at least 1 − α: the class has at least the first; every other class has at most the second.

        The second is None if single classes are not bounded. (0, None) if these votes allow no claim.
        """

    def p_value(self, votes: Ballot, tau: float) -> float:
        """Of the test that the class has no majority, or does not lead, on these votes; τ of them are the arithmetic's."""
        return majority_p_value(votes.hits, votes.n, 0.5 + tau)


class Binary(Bound):
    """Clopper–Pearson for the class; all other classes together have the rest."""

    name = "binary"

    def probabilities(self, votes: Ballot) -> tuple[float, float | None]:
        """CP_low(hits, n; α)."""
        return (lower_bound(votes.hits, votes.n, votes.alpha) if votes.fixed else 0.0), None


class Randomised(Bound):
    """Clopper–Pearson for the class, with a uniform number that makes its level exactly α."""

    name = "randomised"

    def probabilities(self, votes: Ballot) -> tuple[float, float | None]:
        """``randomised_lower_bound``."""
        if not votes.fixed:
            return 0.0, None
        return randomised_lower_bound(votes.hits, votes.n, votes.alpha, votes.uniform), None


class TwoClass(Bound):
    """Clopper–Pearson for the class and for the most voted other one, at α/2 each."""

    name = "two-class"

    def probabilities(self, votes: Ballot) -> tuple[float, float | None]:
        """CP_low(hits, n; α/2) and CP_up(others, n; α/2)."""
        if not votes.fixed:
            return 0.0, None
        half = votes.alpha / 2
        return lower_bound(votes.hits, votes.n, half), upper_bound(votes.others, votes.n, half)

    def p_value(self, votes: Ballot, tau: float) -> float:
        """Of the two-sided test between the two; each vote differs from the ideal one with probability τ at most."""
        return min(1.0, top_two_p_value(votes.hits, votes.others) + votes.n * tau)


class Anytime(Bound):
    """The betting bound with a Jeffreys prior, which holds at every number of votes at once."""

    name = "anytime"

    def probabilities(self, votes: Ballot) -> tuple[float, float | None]:
        """``anytime_lower_bound``, whenever the votes ended."""
        return anytime_lower_bound(votes.hits, votes.n, votes.alpha), None

    def p_value(self, votes: Ballot, tau: float) -> float:
        """One over the bettor's wealth."""
        return min(1.0, math.exp(-float(log_wealth(votes.hits, votes.n, 0.5 + tau))))


# Of α, what the test at the cap has; the bettors have the rest.
AT_THE_CAP = 0.2


class Sequential(Bound):
    """Of votes that end when given radii are decided: a bettor for each threshold, and Clopper–Pearson at the cap.

    Each p has one test: at (1 − ``AT_THE_CAP``)·α that of one bettor, at any number of votes, and at ``AT_THE_CAP``·α
    Clopper–Pearson, at the cap alone. Bettors stand at 1/2 and at every threshold, and each is responsible for the p
    around him (``ladder``). The true p is rejected with probability at most α, and the bound is the smallest p that is
    not (docs/stopping.md).
    """

    name = "sequential"

    def probabilities(self, votes: Ballot) -> tuple[float, float | None]:
        """The smallest p that these votes do not reject."""
        at_cap = lower_bound(votes.hits, votes.n, AT_THE_CAP * votes.alpha) if votes.n == votes.cap else 0.0
        return max(at_cap, self._by_betting(votes)), None

    def p_value(self, votes: Ballot, tau: float) -> float:
        """α where p = 1/2 + τ is rejected at this α, else 1: tests of other levels are other tests."""
        return votes.alpha if self.probabilities(votes)[0] > 0.5 + tau else 1.0

    @staticmethod
    def goal(alpha: float) -> float:
        """The log wealth at which a bettor rejects."""
        return -math.log((1 - AT_THE_CAP) * alpha)

    def _by_betting(self, votes: Ballot) -> float:
        if not votes.thresholds or votes.hits == 0:
            return 0.0
        hits, misses, goal, low = votes.hits, votes.n - votes.hits, self.goal(votes.alpha), 0.0
        for stand, end in ladder(votes.thresholds):
            bettor = Bettor.against(stand, votes.cap, votes.alpha, votes.chose)
            if not float(bettor.log_wealth(hits, misses, end)) >= goal:  # NaN is no win
                return self._halved(bettor, hits, misses, goal, low, max(low, min(end, hits / votes.n)))
            low = end
        return low

    @staticmethod
    def _halved(bettor: Bettor, hits: int, misses: int, goal: float, low: float, high: float) -> float:
        """The largest p from low to high that the bettor rejects, from below; his wealth falls as p rises."""
        if low == 0.0 and float(bettor.log_wealth(hits, misses, 1e-300)) < goal:
            return 0.0
        for _ in range(60):
            middle = (low + high) / 2
            enough = float(bettor.log_wealth(hits, misses, middle)) >= goal
            low, high = (middle, high) if enough else (low, middle)
        return low


class Exact(Bound):
    """Of votes that are all draws of a noise, each once: shares are probabilities, and α is not used."""

    name = "exact"

    def probabilities(self, votes: Ballot) -> tuple[float, float | None]:
        """The shares of the class and of the most voted other one."""
        return (votes.hits / votes.n, votes.others / votes.n) if votes.fixed else (0.0, None)

    def p_value(self, votes: Ballot, tau: float) -> float:
        """0 where the class leads, else 1."""
        return 0.0 if votes.hits > votes.others else 1.0


# Of α, what the votes in pairs have; those before have the rest.
IN_PAIRS = 0.5


class Paired(Bound):
    """Of a classifier in the place of another: p ≥ (bound on p before) − (bound on what was lost), at α/2 each.

    Under the same noise p now is p before, less what was lost, and what was gained in addition. Where the gains are known,
    the smaller of two bounds is taken, at α/4 each: on the losses alone, and on the losses less the gains.
    """

    name = "paired"

    def probabilities(self, votes: Ballot) -> tuple[float, float | None]:
        """The bound of the votes before at α/2, less CP_up(lost, n; α/2), or less the better of both at α/4."""
        if votes.before is None or not votes.fixed:
            return 0.0, None
        name, ballot = votes.before
        before, _ = bound_named(name).probabilities(replace(ballot, alpha=(1 - IN_PAIRS) * votes.alpha))
        return max(0.0, before - self._loss(votes, IN_PAIRS * votes.alpha)), None

    @staticmethod
    def _loss(votes: Ballot, alpha: float) -> float:
        if votes.gained is None:
            return upper_bound(votes.lost, votes.n, alpha)
        net = net_loss_bound(votes.lost, votes.gained, votes.n, alpha / 2)
        return min(upper_bound(votes.lost, votes.n, alpha / 2), net)

    def p_value(self, votes: Ballot, tau: float) -> float:
        """α where p = 1/2 + τ is rejected at this α, else 1."""
        return votes.alpha if self.probabilities(votes)[0] > 0.5 + tau else 1.0


# Of α, what inputs have on which the old classifier abstained: they get fresh votes of the new one.
AFTER_ABSTENTION = 0.1
# Of the rest of α, what the bound on the votes that change at all has, in either direction.
CHANGED = 0.1
# Bounds on votes whose number was fixed, so that those for the class are a binomial count.
COUNTS = ("binary", "randomised", "two-class")


class Joint(Bound):
    """Of a classifier in the place of another, whose votes were a fixed number: one test of old votes and votes in pairs.

    The estimate is (share of the old votes) − (share lost) + (share gained), and its distribution that of two independent
    draws, so that less is paid than for two bounds (``ucan.pairs``).
    """

    name = "joint"

    def probabilities(self, votes: Ballot) -> tuple[float, float | None]:
        """``joint_lower_bound`` at (1 − ``AFTER_ABSTENTION``)·α, of which ``CHANGED`` is for the votes that change."""
        if votes.before is None or votes.gained is None or not votes.fixed:
            return 0.0, None
        name, old = votes.before
        if name not in COUNTS or not old.fixed:
            return 0.0, None
        level = (1 - AFTER_ABSTENTION) * votes.alpha
        changed = upper_bound(votes.lost + votes.gained, votes.n, CHANGED * level)
        level *= 1 - CHANGED
        return joint_lower_bound(old.hits, old.n, votes.lost, votes.gained, votes.n, level, changed), None

    def p_value(self, votes: Ballot, tau: float) -> float:
        """α where p = 1/2 + τ is rejected at this α, else 1."""
        return votes.alpha if self.probabilities(votes)[0] > 0.5 + tau else 1.0


def ladder(thresholds: tuple[float, ...]) -> list[tuple[float, float]]:
    """Where bettors stand, and up to which p each is responsible: half of the way to the next, in the angle asin √p.

    The first stands at 1/2, whatever is asked, so that a class with a majority has a bound above it.
    """
    stands = sorted({0.5, *thresholds})
    angles = [math.asin(math.sqrt(p)) for p in stands]
    ends = [math.sin((one + other) / 2) ** 2 for one, other in itertools.pairwise(angles)]
    return list(zip(stands, [*ends, 1.0], strict=True))


_ALL = (Binary(), Randomised(), TwoClass(), Anytime(), Sequential(), Paired(), Joint(), Exact())
BY_NAME: dict[str, Bound] = {bound.name: bound for bound in _ALL}


def bound_named(name: str) -> Bound:
    """The bound of this name."""
    if name not in BY_NAME:
        raise InvalidInput(f"bound must be {one_of(BY_NAME)}, got {name!r}.")
    return BY_NAME[name]
