"""Votes over all inputs, whether they reach the radius or not, by the rule before (`anytime`) and by the rule now, simulated.

    python experiments/limits_all.py [INPUTS]

Inputs, law, cap and α as in `experiments/limits.py`; the votes that choose the class are included (always 100 before).
"""

from __future__ import annotations

import sys

import numpy as np

from ucan.bounds import anytime_lower_bound
from ucan.deciding import ALPHA, BLOCK, CAP, N0, decide, probabilities
from ucan.laws import Gaussian
from ucan.stopping import AnytimeRadii, Case, Radius

SEEDS = (5, 6)  # of the probabilities, and of the votes


def before(p: float, r: float, rng: np.random.Generator) -> tuple[int, bool]:
    """Votes, and whether r is certified, by the rule before; p is the probability of the first of two classes."""
    law = Gaussian(1.0)
    right = bool((rng.random(N0) < p).sum() >= N0 / 2)
    draws = rng.random(CAP) < (p if right else 1 - p)
    watch = AnytimeRadii((r,)).watch(Case(CAP, ALPHA, Radius(law.radius, law.probability), BLOCK, (0, 0)))
    taken = watch.look(0, 0, draws)
    n = CAP if taken is None else taken
    return n + N0, right and anytime_lower_bound(int(draws[:n].sum()), n, ALPHA) >= law.probability(r)


def main(count: int = 1500) -> None:
    """One line for each radius."""
    print("r/λ  votes before  votes now  certified before  certified now")
    p = probabilities(count, np.random.default_rng(SEEDS[0]))
    for r in (0.0, 0.5, 1.0, 2.0):
        rng = np.random.default_rng(SEEDS[1])
        old, new = [], []
        for one in map(float, p):
            found = decide(one, r, CAP, rng)
            new.append((found.votes + found.selection, found.certified))
            old.append(before(one, r, rng))
        (votes_old, share_old), (votes_new, share_new) = (np.mean(each, axis=0) for each in (old, new))
        shares = f"{100 * share_old:14.2f} %  {100 * share_new:11.2f} %"
        print(f"{r:3g}  {votes_old:12.0f}  {votes_new:9.0f}  {shares}", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
