"""What is left of a radius when a classifier takes another's place: simulated votes, n before and a tenth of them in pairs.

    python experiments/recertify_kept.py [DRAWS]

For each R/λ and each share of votes that is lost, and gained alike: the mean of what is kept in per cent, and in brackets the
twentieth part below which it seldom is; by the joint test, by two bounds apart, and by as many fresh votes.
"""

from __future__ import annotations

import sys

import numpy as np
from scipy import stats

from ucan.bounds import lower_bound
from ucan.named_bounds import Ballot, bound_named

N, M, ALPHA = 100_000, 10_000, 0.001
RADII = (0.5, 1.0, 1.5, 2.0, 2.4)
SHARES = (0.0, 0.0001, 0.0003, 0.001, 0.003, 0.006)


def radius(p: float) -> float:
    """R/λ of Gaussian noise."""
    return max(0.0, float(stats.norm.ppf(p)))


def hits_for(wanted: float) -> int:
    """The fewest of N votes that certify this R/λ."""
    low, high = 0, N
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if radius(lower_bound(middle, N, ALPHA)) >= wanted else (middle, high)
    return high


def kept(wanted: float, share: float, draws: int) -> np.ndarray:
    """What each of three ways keeps, in per cent; a row for each draw."""
    rng, p = np.random.default_rng(0), hits_for(wanted) / N
    rows = []
    for _ in range(draws):
        hits = int(rng.binomial(N, p))
        lost, gained, _ = (int(v) for v in rng.multinomial(M, [share, share, 1 - 2 * share]))
        votes = Ballot(0, 0, M, ALPHA, before=("binary", Ballot(hits, 0, N, ALPHA)), lost=lost, gained=gained)
        before = radius(lower_bound(hits, N, ALPHA))
        now = [radius(bound_named(name).probabilities(votes)[0]) for name in ("joint", "paired")]
        fresh = radius(lower_bound(int(rng.binomial(M, p)), M, 0.9 * ALPHA))
        rows.append([100 * each / before for each in (*now, fresh)])
    return np.array(rows)


def main() -> None:
    """Print the table."""
    draws = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    print("| lost, and gained |", " | ".join(f"{r}" for r in RADII), "|")
    for share in SHARES:
        found = [kept(r, share, draws) for r in RADII]
        for at, name in enumerate(("joint", "paired", "fresh")):
            cells = (f"{f[:, at].mean():.1f} ({np.quantile(f[:, at], 0.05):.1f})" for f in found)
            print(f"| {100 * share:g} %, {name} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
