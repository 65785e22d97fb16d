"""From counts and α to probabilities: pure functions, in float64.

>>> round(lower_bound(100_000, 100_000, 0.001), 8)
0.99993092
"""

from __future__ import annotations

import hashlib
import math
from numbers import Real
from typing import Any

import numpy as np
from scipy import special

from ucan.errors import InvalidInput

LEAST_ALPHA = 1e-250  # from 1e-290 down scipy's tails of a distribution lose their digits, and then are 0
LAST_DIGIT = 2**30  # up to so many votes the last digit of p is worth less of pⁿ than the next line allows
INVERTED = 1 + 1e-6  # what a tail may exceed α by, relative to it, because p has so many digits and no more


def check_alpha(alpha: float) -> None:
    """Refuse an α outside (0, 1), or so small that float64 cannot compute with it."""
    if not (isinstance(alpha, Real) and 0 < alpha < 1):
        raise InvalidInput(f"alpha must lie strictly between 0 and 1, got {alpha!r}; 0.001 is usual.")
    if alpha < LEAST_ALPHA:
        raise InvalidInput(f"alpha must be at least {LEAST_ALPHA:g}, where bounds can be computed, got {alpha!r}.")


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
        return _root(alpha, n)
    found = float(special.betaincinv(k, n - k + 1, alpha))
    # Of a very small α the inverse may be NaN.
    return found if majority_p_value(k, n, found) <= alpha * INVERTED else _lower_by_halving(k, n, alpha)


def _root(alpha: float, n: int) -> float:
    """The p below 1 with pⁿ = α; from below where n is so large that its last digit counts."""
    p = math.exp(math.log(alpha) / n)
    return math.nextafter(p, 0.0) if n > LAST_DIGIT or p == 1.0 else p


def _lower_by_halving(k: int, n: int, alpha: float) -> float:
    """The same from the tail itself, from below."""
    low, high = 0.0, 1.0
    while low < (middle := (low + high) / 2) < high and high - low > 1e-17 * high:
        low, high = (middle, high) if majority_p_value(k, n, middle) <= alpha else (low, middle)
    return low


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
        return _root(alpha / max(uniform, min(1.0, 2 * alpha)), n)
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

    Answering when this is ≤ α errs with probability at most α for any number of classes, if α is below 1/2. (The two-sided
    test of n_a against n/2 does not: it is also small when n_a is far below n/2.) Where votes are drawn from noise that differs
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
