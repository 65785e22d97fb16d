"""What decisions about radii cost: votes over the least that any test needs, what early stopping loses, votes in pairs.

Simulated over probabilities like those of a data set, where the truth is known, and measured on inputs of one's own.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import nn

from ucan.betting import votes_at_least
from ucan.bounds import lower_bound
from ucan.certificate import Abstention, Certificate
from ucan.generators import Generator, Isotropic
from ucan.laws import Gaussian, Law
from ucan.named_bounds import Ballot, bound_named
from ucan.plan import CertifyPlan
from ucan.recertify import recertify
from ucan.sequential import Selecting
from ucan.smoothed import SmoothedClassifier
from ucan.stopping import AtRadii, Case, Radius
from ucan.votes import Stream

ALPHA, N0, BLOCK, PIECE = 0.001, 100, 128, 1280
# The most votes of a simulated decision.
CAP = 100_000
# An input whose limit is below this should take hardly more votes than that.
FEW = 1000
# The radii that are decided in one pass, in multiples of λ.
STEPS = tuple(0.5 * i for i in range(10))
# Where votes in pairs are to pay: from and to which R/λ.
IN_PAIRS = (0.5, 2.4)
# Inputs, spread over that, which are certified again.
SPREAD = 8


class Inputs(Protocol):
    """Inputs with their labels (``ucan.data.Labelled``)."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]: ...


# --- simulated ---


@dataclass(frozen=True)
class Decided:
    """One input: its limit, the votes that chose the class and that decided, whether it is certified, and by a fixed n."""

    limit: float
    selection: int
    votes: int
    certified: bool
    fixed: bool


@dataclass(frozen=True)
class Simulated:
    """Decisions "is the radius at least r?" on inputs that reach it: means of limit and votes (those that choose the class
    included), votes above the limit where that is below 1,000 (selection apart, ± the standard error ``above_error``), and
    certified shares.
    """

    radius: float  # in multiples of λ
    inputs: int
    cap: int
    limit: float
    votes: float
    above: float
    selection: float
    certified: float
    fixed: float
    share: float  # of all inputs, those that reach the radius
    above_error: float = 0.0

    @property
    def over(self) -> float:
        """Votes over the limit, as a ratio of means."""
        return self.votes / self.limit

    @property
    def lost(self) -> float:
        """What a fixed n certifies more, in points of all inputs."""
        return 100 * (self.fixed - self.certified) * self.share


def probabilities(count: int, rng: np.random.Generator) -> np.ndarray:
    """Of the class, over a data set that is partly easy and partly not."""
    kind = rng.random(count)
    easy, middling, hard = rng.beta(40, 0.4, count), rng.beta(5, 1.5, count), rng.beta(1, 3, count)
    return np.where(kind < 0.35, easy, np.where(kind < 0.75, middling, hard))


def decide(p: float, r: float, cap: int, rng: np.random.Generator) -> Decided:
    """Is the radius at least r? From votes that hit the class, the first of two, with probability p; λ = 1."""
    law = Gaussian(1.0)
    radius, rule, p0 = Radius(law.radius, law.probability), AtRadii((r,)), float(law.probability(r))
    lead = rule.lead(Case(cap, ALPHA, radius), N0)
    selecting = Selecting(Stream(0, "", "select"), N0, lead, np.zeros(3, dtype=np.int64))
    selecting.add((rng.random(N0) >= p).astype(int))
    c_A = int(selecting.tally[:2].argmax())
    draws = (rng.random(cap) < p) == (c_A == 0)
    chose = (int(selecting.tally[c_A]), selecting.drawn)
    watch, hits, drawn = rule.watch(Case(cap, ALPHA, radius, BLOCK, chose)), 0, 0
    taken: int | None = None
    while taken is None and drawn < cap:
        votes = draws[drawn : drawn + PIECE]
        taken = watch.look(hits, drawn, votes)
        hits, drawn = hits + int(votes[:taken].sum()), drawn + (len(votes) if taken is None else taken)
    ballot = Ballot(hits, drawn - hits, drawn, ALPHA, False, cap, chose, rule.thresholds(radius))
    certified = c_A == 0 and bound_named(rule.bound).probabilities(ballot)[0] >= p0
    fixed = c_A == 0 and lower_bound(int(draws.sum()), cap, ALPHA) >= p0
    return Decided(min(cap, votes_at_least(p, p0, ALPHA)), selecting.drawn, drawn, certified, fixed)


def simulated(r: float, count: int, cap: int) -> Simulated:
    """Decisions about one radius over the first ``count`` inputs that reach it."""
    p = probabilities(6 * count, np.random.default_rng(1))
    reaching, rng = p > Gaussian(1.0).probability(r), np.random.default_rng(2)
    found = [decide(float(one), r, cap, rng) for one in p[reaching][:count]]

    def mean(values: Iterable[float]) -> float:
        return float(np.mean([*values] or [0.0]))

    selection, above = mean(d.selection for d in found), [d.votes - d.limit for d in found if d.limit < FEW]
    return Simulated(
        r,
        len(found),
        cap,
        mean(d.limit for d in found),
        mean(d.votes for d in found) + selection,
        mean(above),
        selection,
        mean(d.certified for d in found),
        mean(d.fixed for d in found),
        float(reaching.mean()),
        float(np.std(above) / max(1, len(above)) ** 0.5) if above else 0.0,
    )


# --- on inputs of one's own ---


@dataclass(frozen=True)
class Outcome:
    """One input after its radii were decided: its class, radius, votes, those that chose the class, and hits.

    ``radius`` is that of the ball within the region, ``own`` the region's R before Σ (None: the same), which p tells.
    """

    index: int
    prediction: int | None
    radius: float
    n: int
    n0: int
    hits: int
    own: float | None = None

    @classmethod
    def of(cls, index: int, outcome: Certificate | Abstention) -> Outcome:
        """What is kept of a certificate or an abstention."""
        evidence, c_A = outcome.evidence, outcome.prediction
        hits = 0 if c_A is None else evidence.counts[c_A]
        return cls(index, c_A, outcome.radius, evidence.n, evidence.n0, hits, _own(outcome))

    def limit(self, radii: Sequence[float], law: Law, alpha: float) -> float | None:
        """The least votes for the largest of these radii that it reached, if p is the share of hits; None if none was."""
        reached = [r for r in radii if 0 < self.radius >= r]
        if not reached or not self.n:
            return None
        before = 1.0 if self.own is None else self.own / self.radius  # Σ
        return votes_at_least(self.hits / self.n, float(law.probability(reached[-1] * before)), alpha)


@dataclass(frozen=True)
class OnData:
    """Several radii decided in one pass for each of some inputs: seconds, votes, and votes over the limit where there is
    one; which ℓ2 radii, and under which noise (None: isotropic).
    """

    inputs: int
    seconds: float
    votes: int
    over: float | None
    radii: tuple[float, ...] = ()
    law: str = ""
    noise: str | None = None

    @classmethod
    def of(
        cls, found: Sequence[Outcome], seconds: float, radii: Sequence[float], law: Law, plan: CertifyPlan
    ) -> OnData:
        """The sum of outcomes."""
        limits = [(one.n + one.n0, one.limit(radii, law, plan.level)) for one in found]
        over = [(votes, min(plan.n, limit)) for votes, limit in limits if limit is not None]
        ratio = sum(votes for votes, _ in over) / sum(limit for _, limit in over) if over else None
        return cls(len(found), seconds, sum(votes for votes, _ in limits), ratio, tuple(radii), repr(law))


def decided(
    g: SmoothedClassifier, inputs: Iterable[torch.Tensor], radii: Sequence[float], plan: CertifyPlan
) -> Iterator[Outcome]:
    """Each input (1, *event) when all radii are decided there, in the order in which they finish."""
    for index, outcome in g.certify_each(inputs, replace(plan, stop=AtRadii(tuple(radii)))):
        yield Outcome.of(index, outcome)


@dataclass(frozen=True)
class Kept:
    """A certificate of another precision from votes in pairs: R/λ before, R being the region's before Σ, and the share of it
    that is kept; R/λ by as many fresh votes as before, and how much of that the pairs give (None where these choose another
    class or none); votes and hits before, votes now, whether they were in pairs, and how many were lost and gained in these.

    What is kept can be above 1: in another precision the network is another one, which may be surer or less sure.
    """

    radius: float
    kept: float
    fresh: float
    of_fresh: float | None
    n: int
    hits: int
    m: int
    in_pairs: bool
    lost: int | None
    gained: int | None
    seconds: tuple[float, float]


def kept(old: SmoothedClassifier, new: SmoothedClassifier, x: torch.Tensor, n: int) -> Kept | None:
    """Certify the old classifier at x (1, *event) with n votes, then the new one with a tenth of them; None if it abstains."""
    start = time.perf_counter()
    (before,) = old.certify(x, n=n, alpha=ALPHA)
    if not isinstance(before, Certificate):
        return None
    middle = time.perf_counter()
    now = recertify(before, old, new, x)
    pairs, scale = now.evidence.pairs, old.law.scale
    seconds = (middle - start, time.perf_counter() - middle)
    (fresh,) = new.certify(x, n=n, alpha=ALPHA, seed=1)
    same = fresh.radius > 0 and fresh.prediction == before.prediction
    return Kept(
        _own(before) / scale,
        now.radius / before.radius,
        _own(fresh) / scale,
        now.radius / fresh.radius if same else None,
        n,
        before.evidence.counts[before.prediction],
        now.evidence.n,
        pairs is not None,
        None if pairs is None else pairs.lost,
        None if pairs is None else pairs.gained,
        seconds,
    )


def _own(outcome: Certificate | Abstention) -> float:
    """The region's R before Σ; 0 without one."""
    return float(outcome.region.radius) if isinstance(outcome, Certificate) else 0.0


def in_bf16(
    model: nn.Module,
    classes: int,
    law: Law,
    generator: Generator | None,
    inputs: Inputs,
    outcomes: Sequence[Outcome],
    n: int,
    backend: str,
) -> list[Kept]:
    """What is left of certificates in fp32 when the network goes on in bf16, at inputs spread over ``IN_PAIRS``."""
    old, new = (
        SmoothedClassifier(model, law, generator, classes, backend, precision) for precision in ("fp32", "bf16")
    )
    left = {one.index: (one.radius if one.own is None else one.own) / law.scale for one in outcomes if one.radius > 0}
    found: list[Kept] = []
    for wanted in np.linspace(*IN_PAIRS, SPREAD).tolist():
        inside = [index for index, size in left.items() if IN_PAIRS[0] <= size <= IN_PAIRS[1]]
        if not inside:
            break
        index = min(inside, key=lambda i: abs(left[i] - wanted))
        del left[index]
        one = kept(old, new, inputs[index][0][None], n)
        found += [] if one is None else [one]
    return found


def on_data(
    model: nn.Module,
    classes: int,
    law: Law,
    generator: Generator | None,
    inputs: Inputs,
    count: int,
    cap: int,
    choice: tuple[str, str | None],
) -> tuple[list[Outcome], OnData]:
    """Ten ℓ2 radii from 0 to 4.5 λ, decided in one pass for so many inputs, evenly spread; backend and precision as chosen."""
    backend, precision = choice
    g = SmoothedClassifier(model, law, generator, classes, backend, precision)
    radii, plan = [step * law.scale for step in STEPS], CertifyPlan(n=cap, alpha=ALPHA)
    places = [i * len(inputs) // count for i in range(count)]
    (first,) = g.check_inputs(inputs[0][0][None], plan.norm)
    g.backend_for(first, plan)  # the compiler's time is another row's
    start = time.perf_counter()
    found = list(decided(g, (inputs[i][0][None].to(first) for i in places), radii, plan))
    seconds = time.perf_counter() - start
    outcomes = [replace(one, index=places[one.index]) for one in found]
    noise = None if generator is None or type(generator) is Isotropic else generator.describe()
    return outcomes, replace(OnData.of(outcomes, seconds, radii, law, plan), noise=noise)
