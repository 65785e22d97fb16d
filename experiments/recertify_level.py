"""The exact probability that the joint test of old votes and pairs claims too much, by enumeration (docs/recertify.md).

    python experiments/recertify_level.py [N,M …]

For each n and m, each α and 20 values of p_new it goes through a grid of 32 × 32 values of P(lost) and P(gained), adds up the
probability of every outcome that claims more than p_new, and prints the largest over α. Without arguments: the numbers of
the page. On a busy core 3,2 and 50,7 took about three minutes together; 9,40 had not finished its first α after two more.
"""

from __future__ import annotations

import sys

import numpy as np
from scipy import stats

from ucan.bounds import upper_bound
from ucan.named_bounds import AFTER_ABSTENTION, CHANGED
from ucan.pairs import estimate_tails

SIZES = ((3, 2), (50, 7), (9, 40), (30, 20), (41, 37), (60, 40))
ALPHAS = (0.05, 0.01, 0.001)
P_NEW = np.linspace(0.025, 0.975, 20)
# Of votes that are lost, and gained: from 0 to 0.95, most of them small.
GRID = 0.95 * np.linspace(0, 1, 32) ** 2


def fewest(n: int, m: int, p: float, alpha: float) -> np.ndarray:
    """For each number of votes lost and gained, how many hits it takes at least to claim more than p; n + 1: none do."""
    found = np.full((m + 1, m + 1), n + 1)
    for changes in range(m + 1):
        most = upper_bound(changes, m, CHANGED * alpha)
        for lost in range(changes + 1):
            low, high = -1, n + 1  # not claimed, claimed
            while high - low > 1:
                middle = (low + high) // 2
                tail = estimate_tails(middle, n, 2 * lost - changes, m, p, most).max()
                low, high = (low, middle) if tail <= (1 - CHANGED) * alpha else (middle, high)
            found[lost, changes - lost] = high
    return found


def outcomes(lost: float, gained: float, m: int) -> np.ndarray:
    """Probabilities of all numbers of votes (lost, gained) in m draws."""
    down, up = np.meshgrid(np.arange(m + 1), np.arange(m + 1), indexing="ij")
    inside = down + up <= m
    votes = np.where(inside[..., None], np.stack([down, up, m - down - up], -1), [m, 0, 0])
    return np.where(inside, stats.multinomial.pmf(votes, m, [lost, gained, 1 - lost - gained]), 0.0)


def worst(n: int, m: int, alpha: float) -> float:
    """The largest probability of a claim above p_new, over p_new and the grid."""
    pairs = [(a, b) for a in GRID for b in GRID if a + b <= 1]
    chances = {pair: outcomes(*pair, m) for pair in pairs}
    largest = 0.0
    for p in map(float, P_NEW):
        needed = fewest(n, m, p, (1 - AFTER_ABSTENTION) * alpha)
        for (lost, gained), chance in chances.items():
            old = p + lost - gained
            if lost <= old <= 1 - gained:
                largest = max(largest, float((chance * stats.binom.sf(needed - 1, n, old)).sum()))
    return largest


def main(*sizes: str) -> None:
    """One line for each n, m and α."""
    for n, m in [tuple(map(int, one.split(","))) for one in sizes] or SIZES:
        for alpha in ALPHAS:
            print(f"n = {n}, m = {m}, α = {alpha:g}: at most {worst(n, m, alpha) / alpha:.3f} α", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
