"""From counts and α to probabilities: pure functions, in float64.

>>> round(lower_bound(100_000, 100_000, 0.001), 8)
0.99993092
"""

from __future__ import annotations

import hashlib
import itertools
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, ClassVar

import numpy as np
from scipy import special

from ucan.betting import Bettor
from ucan.choices import one_of
from ucan.errors import InvalidInput
from ucan.pairs import joint_lower_bound


def check_alpha(alpha: float) -> None:
    """Refuse an α outside (0, 1)."""
    if not (isinstance(alpha, Real) and 0 < alpha < 1):
        raise InvalidInput(f"alpha must lie strictly between 0 and 1, got {alpha!r}; 0.001 is usual.")


def check_counts(k: int, n: int) -> None:
    """Refuse counts that no n draws can give."""
    if n < 1 or not 0 <= k <= n:
        raise InvalidInput(f"counts must satisfy 0 <= k <= n and n >= 1, got k = {k}, n = {n}.")


def lower_bound(k: int, n: int, alpha: float) -> float:
    """One-sided Clopper–Pearson: with probability at least 1 − α, p is not below this, k of n draws having hit.

    n must be fixed in advance; the bound is not valid if sampling stops when it looks good.
    """
    check_counts(k, n)
    check_alpha(alpha)
    if k == 0:
        return 0.0
    if k == n:
        return math.exp(math.log(alpha) / n)
    return float(special.betaincinv(k, n - k + 1, alpha))


def randomised_lower_bound(k: int, n: int, alpha: float, uniform: float) -> float:
    """Clopper–Pearson made exact: below the truth with probability 1 − α, not more; never below ``lower_bound``.

    ``uniform`` is one number from (0, 1), drawn independently of the votes; 1 gives ``lower_bound``. A p is rejected if
    P(X > k) + uniform·P(X = k) ≤ α for X ~ Bin(n, p): at the true p that sum is uniform itself. It rises with p. Where all
    n votes agree, a number of at most α would reject every p below 1, whatever n is, and so claim radii without an end; there
    it counts as 2α at least, the bound is 2^(−1/n) at most, and a p above that is passed with less than α. n must be fixed in
    advance.
    """
    if not 0 < uniform <= 1:
        raise InvalidInput(f"the uniform number of a randomised bound lies in (0, 1], got {uniform!r}.")
    if k == n:
        return math.exp(math.log(alpha / max(uniform, min(1.0, 2 * alpha))) / n)
    low, high = lower_bound(k, n, alpha), lower_bound(k + 1, n, alpha)

    def rejected(p: float) -> bool:
        return uniform * majority_p_value(k, n, p) + (1 - uniform) * majority_p_value(k + 1, n, p) <= alpha

    if rejected(high):
        return high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if rejected(middle) else (low, middle)
    return low


def uniform_of(key: str) -> float:
    """The uniform number of a randomised bound: it follows from the key of the votes' stream, and no vote does from it."""
    return (int(hashlib.sha256(f"{key}/bound".encode()).hexdigest()[:13], 16) + 0.5) / 2**52


def upper_bound(k: int, n: int, alpha: float) -> float:
    """One-sided Clopper–Pearson: with probability at least 1 − α, p is not above this."""
    return 1.0 - lower_bound(n - k, n, alpha)


# What someone bets who tests how much more is lost than gained: near 1 where hardly anything changes, less where much does.
NET_BETS = (0.7, 0.45, 0.25, 0.12)


def net_loss_bound(lost: int, gained: int, n: int, alpha: float) -> float:
    """With probability at least 1 − α, P(lost) − P(gained) is not above this; never below 0. n must be fixed in advance.

    Draws are 1 where a vote was lost, −1 where one was gained, else 0; their mean is the difference μ. Against "μ ≥ m" a bettor
    puts λ on every draw x, which multiplies his money by 1 − λ(x − m), in the mean by 1 at most. Money in equal shares on
    several λ is expected not to grow either, and is 1/α or more with probability at most α (Markov). It rises with m.
    """
    check_counts(lost + gained, n)
    check_alpha(alpha)
    bets, goal = np.array(NET_BETS), math.log(len(NET_BETS) / alpha)

    def rejected(m: float) -> bool:
        log_money = lost * np.log1p(-bets * (1 - m)) + gained * np.log1p(bets * (1 + m))
        return float(special.logsumexp(log_money + (n - lost - gained) * np.log1p(bets * m))) >= goal

    low, high = 0.0, 1.0
    if rejected(low) or not rejected(high):
        return low if rejected(low) else high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if rejected(middle) else (middle, high)
    return high


def majority_p_value(n_a: int, n: int, p: float = 0.5) -> float:
    """P(Bin(n, p) ≥ n_a), at p = 1/2 the one-sided test that the counted class has no majority.

    Answering when this is ≤ α errs with probability at most α for any number of classes. (The two-sided test of n_a
    against n/2 does not: it is also small when n_a is far below n/2.) Where votes are drawn from noise that differs
    from the ideal by τ in total variation, the test at p = 1/2 + τ is one about ideal votes.
    """
    check_counts(n_a, n)
    return float(special.betainc(n_a, n - n_a + 1, min(p, 1.0))) if n_a else 1.0


def top_two_p_value(n_a: int, n_b: int) -> float:
    """Two-sided test that the two most counted classes are equally likely; valid without a majority, too."""
    if n_a + n_b == 0:
        return 1.0
    check_counts(n_a, n_a + n_b)
    return min(1.0, 2 * majority_p_value(max(n_a, n_b), n_a + n_b))  # at 1/2 the two tails are alike


def at_most_p_value(k: int, n: int, p: float) -> float:
    """P(Bin(n, p) ≤ k): how surprising k hits in n draws are if the hit probability is at least p."""
    check_counts(k, n)
    return float(special.betaincc(k + 1, n - k, p)) if k < n else 1.0


def two_bounds_p_value(n_a: int, n_b: int, n: int, tau: float = 0.0) -> float:
    """The smallest α at which a lower bound on a class at α/2 is above an upper bound on another at α/2, τ taken from each.

    That is twice the least, over all p, of the larger of P(Bin(n, p + τ) ≥ n_a), which rises with p, and of
    P(Bin(n, p − τ) ≤ n_b), which falls; what halving finds is not below it. If the class is not the more probable of the two,
    this is ≤ α with probability at most α. n_b may be the count of the most voted of all other classes, whose bound is one on
    each of them.
    """

    def tails(p: float) -> tuple[float, float]:
        return majority_p_value(n_a, n, min(1.0, p + tau)), at_most_p_value(n_b, n, max(0.0, p - tau))

    low, high = 0.0, 1.0
    while low < (middle := (low + high) / 2) < high:
        rare, few = tails(middle)
        low, high = (middle, high) if rare <= few else (low, middle)
    return min(1.0, 2 * min(max(tails(low)), max(tails(high))))


# --- many counts at once ---


def lower_bounds(k: Any, n: int, alpha: float) -> np.ndarray:
    """``lower_bound`` for an array of counts of the same n."""
    values, where = np.unique(np.asarray(k), return_inverse=True)
    found = np.array([lower_bound(int(value), n, alpha) for value in values])
    return found[where].reshape(np.shape(k))


def majority_p_values(k: Any, n: int, p: float = 0.5) -> np.ndarray:
    """``majority_p_value`` for an array of counts of the same n."""
    hits = np.asarray(k, dtype=np.float64)
    tail = special.betainc(np.maximum(hits, 1), n - np.maximum(hits, 1) + 1, min(p, 1.0))
    return np.where(hits > 0, tail, 1.0)


def holm(p_values: Any, alpha: float) -> np.ndarray:
    """Which of many hypotheses are rejected; with probability at least 1 − α no true one is, whatever their dependence.

    Holm's rule: the smallest p-value is compared with α/m, the next with α/(m − 1), and so on to the first that fails. So
    it rejects all that Bonferroni's α/m does, and more.
    """
    check_alpha(alpha)
    flat = np.asarray(p_values, dtype=np.float64).ravel()
    order = np.argsort(flat, kind="stable")
    passed = flat[order] <= alpha / (len(flat) - np.arange(len(flat)))
    rejected = np.zeros(len(flat), dtype=bool)
    rejected[order[: len(flat) if passed.all() else int(passed.argmin())]] = True
    return rejected.reshape(np.shape(p_values))


# --- bounds that hold at every stopping time ---


def log_wealth(k: Any, n: Any, p0: Any) -> Any:
    """Log wealth of a bettor against "p ≤ p0" after k hits in n draws; reject as soon as it reaches log(1/α).

    The bettor mixes, by the Beta(1/2, 1/2) density restricted to q > p0, the likelihood ratios of q against p0. For every
    p ≤ p0 that is a nonnegative supermartingale starting at 1, so it ever reaches 1/α with probability at most α: sampling
    may stop after any draw. Takes arrays.
    """
    k, n, p0 = (np.asarray(v, dtype=np.float64) for v in (k, n, p0))
    misses = n - k
    with np.errstate(divide="ignore"):
        above = np.log(special.betaincc(k + 0.5, misses + 0.5, p0)) - np.log(special.betaincc(0.5, 0.5, p0))
    mixture = special.betaln(k + 0.5, misses + 0.5) - special.betaln(0.5, 0.5)
    return mixture + above - special.xlogy(k, p0) - special.xlog1py(misses, -p0)


def anytime_lower_bound(k: int, n: int, alpha: float) -> float:
    """With probability at least 1 − α, p exceeds this bound at every n at once, so stopping may depend on the draws.

    It is the largest m such that every m' ≤ m is rejected. Rejected m' form an interval from 0: where m·n ≤ k − 1/2 the
    wealth falls with m (its slope is at most the hazard of the prior minus that of the likelihood, and the second is the
    larger there), and nearer to k/n the wealth is below √e.
    """
    check_counts(k, n)
    check_alpha(alpha)
    low, high = 0.0, max(0.0, (k - 0.5) / n)
    goal = math.log(1 / alpha)
    if k == 0 or log_wealth(k, n, 1e-300) < goal:
        return 0.0
    for _ in range(60):
        middle = (low + high) / 2
        if log_wealth(k, n, middle) >= goal:
            low = middle
        else:
            high = middle
    return low


def anytime_upper_bound(k: int, n: int, alpha: float) -> float:
    """With probability at least 1 − α, p is below this bound at every n at once."""
    return 1.0 - anytime_lower_bound(n - k, n, alpha)


# --- the bounds by name ---


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
        """Of the two-sided test between the two; each vote is another than the ideal one with probability τ at most."""
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
