"""Votes of the rule about radii beside the least that any test needs, simulated: the table of docs/stopping.md.

    python experiments/limits.py

The probabilities of the class are those of a data set that is partly easy and partly not; the law is Gaussian, the cap
100,000 and α 0.001. An input's limit counts as the cap where it is above.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np

from ucan.betting import votes_at_least
from ucan.bounds import Ballot, bound_named, lower_bound
from ucan.laws import Gaussian
from ucan.sequential import Selecting
from ucan.stopping import AtRadii, Case, Radius
from ucan.votes import Stream

ALPHA, CAP, N0, BLOCK, PIECE = 0.001, 100_000, 100, 128, 1280
LAW = Gaussian(1.0)
RADIUS = Radius(LAW.radius, LAW.probability)


@dataclass(frozen=True)
class Decided:
    """One input: its limit, the votes that chose the class and that decided, whether it is certified, and by a fixed n."""

    limit: float
    selection: int
    votes: int
    certified: bool
    fixed: bool


def probabilities(count: int, rng: np.random.Generator) -> np.ndarray:
    """Of the class, over a data set."""
    kind = rng.random(count)
    easy, middling, hard = rng.beta(40, 0.4, count), rng.beta(5, 1.5, count), rng.beta(1, 3, count)
    return np.where(kind < 0.35, easy, np.where(kind < 0.75, middling, hard))


def decide(p: float, r: float, rng: np.random.Generator) -> Decided:
    """Is the radius at least r? From votes that hit the class, the first of two, with probability p."""
    rule, p0 = AtRadii((r,)), float(LAW.probability(r))
    lead = rule.lead(Case(CAP, ALPHA, RADIUS), N0)
    selecting = Selecting(Stream(0, "", "select"), N0, lead, np.zeros(3, dtype=np.int64))
    selecting.add((rng.random(N0) >= p).astype(int))
    c_A = int(selecting.tally[:2].argmax())
    draws = (rng.random(CAP) < p) == (c_A == 0)
    chose = (int(selecting.tally[c_A]), selecting.drawn)
    watch, hits, drawn = rule.watch(Case(CAP, ALPHA, RADIUS, BLOCK, chose)), 0, 0
    taken: int | None = None
    while taken is None and drawn < CAP:
        votes = draws[drawn : drawn + PIECE]
        taken = watch.look(hits, drawn, votes)
        hits, drawn = hits + int(votes[:taken].sum()), drawn + (len(votes) if taken is None else taken)
    ballot = Ballot(hits, drawn - hits, drawn, ALPHA, False, CAP, chose, rule.thresholds(RADIUS))
    certified = c_A == 0 and bound_named(rule.bound).probabilities(ballot)[0] >= p0
    fixed = c_A == 0 and lower_bound(int(draws.sum()), CAP, ALPHA) >= p0
    return Decided(min(CAP, votes_at_least(p, p0, ALPHA)), selecting.drawn, drawn, certified, fixed)


def main(count: int = 1000) -> None:
    """One line for each radius, over the first ``count`` inputs that reach it."""
    print("r/λ  limit  votes  over it  above it where below 1,000  chose  certified  fixed n")
    for r in (0.5, 1.0, 2.0):
        p = probabilities(6 * count, np.random.default_rng(1))
        rng = np.random.default_rng(2)
        found = [decide(float(one), r, rng) for one in p[p > LAW.probability(r)][:count]]
        limit, votes = (np.mean([getattr(d, name) for d in found]) for name in ("limit", "votes"))
        chose = np.mean([d.selection for d in found])
        above = np.mean([d.votes - d.limit for d in found if d.limit < 1000])
        shares = (100 * np.mean([getattr(d, name) for d in found]) for name in ("certified", "fixed"))
        print(
            f"{r:3g}  {limit:5.0f}  {votes + chose:5.0f}  {(votes + chose) / limit:7.3f}  {above:26.1f}  {chose:5.1f}  "
            + "  ".join(f"{share:6.2f} %" for share in shares),
            flush=True,
        )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
