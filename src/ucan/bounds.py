"""From counts and α to probabilities: pure functions, in float64.

>>> round(lower_bound(100_000, 100_000, 0.001), 8)
0.99993092
"""

from __future__ import annotations

import math

from scipy import special, stats

from ucan.errors import InvalidInput


def check_alpha(alpha: float) -> None:
    """Refuse an α outside (0, 1)."""
    if not (isinstance(alpha, int | float) and 0 < alpha < 1):
        raise InvalidInput(f"alpha must lie strictly between 0 and 1, got {alpha!r}; 0.001 is usual.")


def check_counts(k: int, n: int) -> None:
    """Refuse counts that no n draws can give."""
    if n < 1 or not 0 <= k <= n:
        raise InvalidInput(f"counts must satisfy 0 <= k <= n and n >= 1, got k = {k}, n = {n}.")


def lower_bound(k: int, n: int, alpha: float) -> float:
    """One-sided Clopper–Pearson: with probability at least 1 − α, p is not below this, k of n draws having hit.

    n must be fixed before looking; stopping when the bound looks good voids it.
    """
    check_counts(k, n)
    check_alpha(alpha)
    if k == 0:
        return 0.0
    if k == n:
        return math.exp(math.log(alpha) / n)
    return float(special.betaincinv(k, n - k + 1, alpha))


def upper_bound(k: int, n: int, alpha: float) -> float:
    """One-sided Clopper–Pearson: with probability at least 1 − α, p is not above this."""
    return 1.0 - lower_bound(n - k, n, alpha)


def majority_p_value(n_a: int, n: int) -> float:
    """P(Bin(n, 1/2) ≥ n_a): the one-sided test that the counted class has no majority.

    Answering when this is ≤ α errs with probability at most α for any number of classes. (The two-sided test of n_a
    against n/2 does not: it is also small when n_a is far below n/2.)
    """
    check_counts(n_a, n)
    return float(stats.binom.sf(n_a - 1, n, 0.5))


def top_two_p_value(n_a: int, n_b: int) -> float:
    """Two-sided test that the two most counted classes are equally likely; valid without a majority, too."""
    if n_a + n_b == 0:
        return 1.0
    check_counts(n_a, n_a + n_b)
    return float(stats.binomtest(n_a, n_a + n_b, 0.5).pvalue)


def at_most_p_value(k: int, n: int, p: float) -> float:
    """P(Bin(n, p) ≤ k): how surprising k hits in n draws are if the hit probability is at least p."""
    check_counts(k, n)
    return float(stats.binom.cdf(k, n, p))
