"""Votes of the rule about radii beside the least that any test needs, simulated: the table of docs/stopping.md.

    python experiments/limits.py [INPUTS]

The probabilities of the class are those of a data set that is partly easy and partly not; the law is Gaussian, the cap
100,000 and α 0.001. An input's limit counts as the cap where it is above.
"""

from __future__ import annotations

import sys

from ucan.deciding import CAP, simulated


def main(count: int = 1000) -> None:
    """One line for each radius, over the first ``count`` inputs that reach it."""
    print("r/λ  limit  votes  over it  above it where below 1,000  chose  certified  fixed n  lost (points of all)")
    for r in (0.5, 1.0, 2.0):
        row = simulated(r, count, CAP)
        above = f"{row.above:19.1f} ± {row.above_error:4.1f}"
        shares = f"{100 * row.certified:7.2f} %  {100 * row.fixed:5.2f} %  {row.lost:5.2f}"
        counts = f"{row.limit:5.0f}  {row.votes:5.0f}  {row.over:7.3f}"
        print(f"{r:3g}  {counts}  {above}  {row.selection:5.1f}  {shares}", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
