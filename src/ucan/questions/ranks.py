"""Order statistics: which of n sorted numbers bounds a percentile, by exact binomial probabilities."""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy import stats

from ucan.bounds import at_most_p_value

# From here on down 1 − p is rounded down; above, rounding is lost in that of everything else.
ROUNDED_AWAY = 1e-6


def lower_rank(n: int, level: float, alpha: float) -> int:
    """The largest k such that the k-th smallest of n draws exceeds the percentile at ``level`` with probability at most α.

    The percentile is q = inf{y : F(y) ≥ level}. The k-th smallest exceeds q only if fewer than k draws are at most q, and
    each is with probability at least ``level``: P(Bin(n, level) ≤ k − 1) ≤ α. 0 if no draw will do. Ties change nothing.
    """
    if not level > 0:
        return 0
    if level >= 1:
        return n
    k = min(n, int(stats.binom.ppf(alpha, n, level)) + 1)
    while k > 0 and at_most_p_value(k - 1, n, level) > alpha:
        k -= 1
    return k


def rest(p: float) -> float:
    """1 − p, never above it where that matters: a far move brings back what rounding a small p away would hide."""
    return 1 - p if p >= ROUNDED_AWAY else math.nextafter(1 - p, 0)


def lower_percentile(rising: torch.Tensor, level: float, alpha: float, least: float) -> torch.Tensor:
    """From numbers sorted along the first axis (n, *outputs): at most the percentile, but for a probability α."""
    k = lower_rank(len(rising), level, alpha)
    return torch.full_like(rising[0], least) if k == 0 else rising[k - 1].clamp_min(least)


def upper_percentile(rising: torch.Tensor, above: float, alpha: float, most: float) -> torch.Tensor:
    """At least the percentile at 1 − ``above``, inf{y : P(value > y) < above}, but for a probability α."""
    k = lower_rank(len(rising), above, alpha)
    return torch.full_like(rising[0], most) if k == 0 else rising[len(rising) - k].clamp_max(most)


def beyond(values: torch.Tensor, lower: torch.Tensor, upper: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """How many answers are below their lower end, and above their upper one (*outputs); a missing number is both."""
    return (~(values >= lower)).sum(0), (~(values <= upper)).sum(0)


def middle(values: torch.Tensor, p: float) -> torch.Tensor:
    """The percentile of the numbers that there are (*outputs); NaN where there is none."""
    missing = values.isnan().all(0)
    found = np.nanquantile(values.masked_fill(missing, 0.0).numpy(), p, axis=0, method="inverted_cdf")
    return torch.as_tensor(found, dtype=torch.float64).masked_fill(missing, math.nan)
