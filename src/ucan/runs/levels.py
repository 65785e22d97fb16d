"""Several claims decided from one set of votes: which levels of radius or ALM, in which norms, does each input reach?

One bound on p, which holds at every number of votes, carries all claims at once: a radius in every norm that the noise
certifies, and ALM. So looking at many levels costs no validity, and an input that is still open goes on later with more
votes of the same stream. Nothing is kept but what each input reached and the votes of those that are open: what is undecided
counts as not certified, so every state is true. (`ucan.runs.certify` keeps whole certificates, for one norm.)
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from ucan.bounds import anytime_lower_bound
from ucan.data import Labelled
from ucan.errors import InvalidInput
from ucan.generators import Generator
from ucan.plan import CertifyPlan
from ucan.region import Region
from ucan.results.metrics import Measure
from ucan.sequential import Candidate
from ucan.sidecar import input_hash
from ucan.sizes import LIKELY
from ucan.smoothed import SmoothedClassifier
from ucan.stopping import AnytimeRadii, Radius
from ucan.votes import Stream


@dataclass(frozen=True)
class Claim:
    """Is the radius, or the ALM, at least each level? In the norm given; levels rise."""

    norm: float
    by: Measure
    levels: tuple[float, ...]

    @property
    def key(self) -> str:
        """Its name in a record, such as "linf radius"."""
        return f"l{self.norm:g} {self.by}"


class Decide(AnytimeRadii):
    """Looks at every twentieth more votes: a look costs the host more than the few votes it might save."""

    growth = 1.05


@dataclass
class Levels:
    """What is known of a data set of ``total`` inputs: of each claim how many levels an input reached, None if not looked at.

    ``open`` has the (hits, votes) of the inputs for which more votes may yet decide more.
    """

    claims: tuple[Claim, ...]
    total: int
    reached: dict[str, list[int | None]] = field(default_factory=dict)
    open: dict[int, tuple[int, int]] = field(default_factory=dict)
    samples: int = 0

    def __post_init__(self) -> None:
        for claim in self.claims:
            self.reached.setdefault(claim.key, [None] * self.total)

    def is_new(self, index: int) -> bool:
        """Whether an input was never looked at."""
        return next(iter(self.reached.values()))[index] is None

    def unfinished(self, order: Iterable[int], n: int) -> list[int]:
        """The inputs that n votes each may tell more of: those open with fewer, then those of ``order`` that are new."""
        return [*(i for i, (_, votes) in self.open.items() if votes < n), *(i for i in order if self.is_new(i))]

    def put(self, index: int, counts: Sequence[int], state: tuple[int, int] | None) -> None:
        """How many levels of each claim one input reached; with (hits, votes) if more votes may yet decide more.

        What was once certified stays so: the bounds hold all together, whenever one looks.
        """
        for known, count in zip(self.reached.values(), counts, strict=True):
            known[index] = max(known[index] or 0, count)
        self.open.pop(index, None)
        if state is not None:
            self.open[index] = state


def decide(
    g: SmoothedClassifier,
    dataset: Labelled,
    levels: Levels,
    wanted: Sequence[int],
    plan: CertifyPlan,
    most: int | None = None,
    until: float = math.inf,
    every: float = math.inf,
) -> Iterator[None]:
    """Decide the levels of these inputs with up to ``plan.n`` votes each, into ``levels``.

    ``plan.n0`` votes choose the class; where that is not the label, nothing can be certified and no more votes are cast. The
    others vote until every level is decided at ``plan.level``, or given up since ``plan.n`` votes will not do. ``most`` is the
    number of votes that an input may have in the end: one that is undecided with fewer stays open. Comes back to the caller
    after so many seconds (``every``) with all votes so far put into ``levels``, and at the end, which is at ``until``
    (``time.monotonic``) at the latest.
    """
    if plan.budget is not None or (g.grid is not None and any(claim.by == "alm" for claim in levels.claims)):
        raise InvalidInput("levels are those of a radius, or in real arithmetic of ALM: leave budget and step out.")
    device = g.f.device or torch.device("cpu")
    for claim in levels.claims:
        g.check_inputs(dataset[0][0][None].to(device), claim.norm)
    work = _Deciding(g, dataset, levels, plan, most or plan.n)
    last, running = time.monotonic(), work.candidates(wanted)
    first = next(running, None)
    if first is not None:
        setup = g.engine.setup(first.x, plan)
        every_one = (c for part in ([first], running) for c in part)
        for candidate in g.engine.settled(setup, every_one, work.rule, plan):
            work.put(work.active.pop(candidate.index))
            now = time.monotonic()
            if now - last > every:
                work.put_all()  # those under way are open, with the votes that they have
                last = now
                yield
            if now > until:
                break
    work.put_all()
    yield


@dataclass
class _Active:
    """A candidate, the sizes of all claims at its input, and how many of its votes are counted already."""

    candidate: Candidate
    sizes: list[Radius]
    counted: int


class _Deciding:
    """The work of ``decide``: candidates with their votes in, what they reached out."""

    def __init__(self, g: SmoothedClassifier, dataset: Labelled, levels: Levels, plan: CertifyPlan, most: int) -> None:
        self.g = g
        self.dataset = dataset
        self.levels = levels
        self.plan = plan
        self.most = most
        self.rule = Decide(tuple(range(sum(len(claim.levels) for claim in levels.claims))))
        self.active: dict[int, _Active] = {}

    def candidates(self, wanted: Sequence[int]) -> Iterator[Candidate]:
        """The inputs whose class was chosen right, with the votes that they have."""
        g, plan, levels = self.g, self.plan, self.levels
        device, shared = g.f.device or torch.device("cpu"), list[Radius]()
        inputs = (self.dataset[i][0][None].to(device) for i in wanted)
        for _, j, x, M, counts in g.engine.selected(inputs, plan, plan.n0):
            i, label = wanted[j], self.dataset[wanted[j]][1]
            if i not in levels.open:
                levels.samples += plan.n0
                if int(counts.argmax()) != label:
                    levels.put(i, [0] * len(levels.claims), None)
                    continue
            sizes = shared or [sizes_at(claim, g, M, x, plan) for claim in levels.claims]
            shared = sizes if M.scope == "pipeline" else []  # the same Σ at every input
            stream = Stream(plan.seed, input_hash(x), "estimate")
            candidate = Candidate(i, x, M, stream, label, self.radius(sizes, plan.n))
            hits, drawn = levels.open.get(i, (0, 0))
            if drawn:
                tally = torch.zeros(g.f.num_classes + 1, dtype=torch.int64)
                tally[label] = hits  # the others are not kept, and not asked for
                candidate.goes_on(tally, drawn)
            self.active[i] = _Active(candidate, sizes, drawn)
            yield candidate

    def put(self, one: _Active) -> None:
        """What an input reached with the votes that it has."""
        candidate, levels, alpha = one.candidate, self.levels, self.plan.level
        hits, drawn = candidate.hits, candidate.drawn
        p = anytime_lower_bound(hits, drawn, alpha) if drawn else 0.0
        counts = [reached(size, claim.levels, p) for size, claim in zip(one.sizes, levels.claims, strict=True)]
        final = self.radius(one.sizes, self.most)
        settled = drawn >= self.most or (drawn > 0 and self.rule.settled(hits, drawn, self.most, alpha, final))
        levels.put(candidate.index, counts, None if settled else (hits, drawn))
        levels.samples += drawn - one.counted
        one.counted = drawn

    def put_all(self) -> None:
        """All that are under way."""
        for one in self.active.values():
            self.put(one)

    def radius(self, sizes: list[Radius], cap: int) -> Radius:
        """All levels of all claims as one rising row of probabilities, for a rule that asks for them by number."""
        claims = zip(sizes, self.levels.claims, strict=True)
        asked = np.array([size.probability(level) for size, claim in claims for level in claim.levels])
        p0 = within(asked, cap, self.plan.level)
        return Radius(of=sizes[0].of, probability=lambda k: float(p0[int(k)]) if k < len(p0) else math.nan)


def sizes_at(claim: Claim, g: SmoothedClassifier, M: Generator, x: torch.Tensor, plan: CertifyPlan) -> Radius:
    """How a claim's radius, or ALM, follows from p at one input (1, *event) under the generator held there, and back.

    ALM is a region's mean scale times the law's radius in the claim's norm; it grows with the law's radius, so that a level
    of it is a probability, for every Σ on its own.
    """
    if claim.by == "radius":
        return g.decided(M, x, replace(plan, norm=claim.norm))
    with g.engine.beside(x.device):
        region, law, dim = M.region(g.law, LIKELY, claim.norm, x), g.law, x.numel()
        factor = Region.sharing(region.scale, 1.0, region.norm, region.shape).mean_scale
    return Radius(
        of=lambda p: factor * law.radius(p, claim.norm, dim),
        probability=functools.cache(lambda size: float(law.probability(size / factor, claim.norm, dim))),
    )


def reached(sizes: Radius, levels: Sequence[float], p: float) -> int:
    """How many of the rising levels a bound p certifies. At level 0: whether anything is certified at all."""
    size = sizes.of(p)
    return 0 if size == 0 else sum(size >= level for level in levels)


def within(p0: np.ndarray, cap: int, alpha: float) -> np.ndarray:
    """The probabilities, rising; those that ``cap`` votes could not certify even if all agreed are NaN, hence decided."""
    rising = np.unique(p0[~np.isnan(p0)])
    return np.where(rising <= _most(cap, alpha), rising, np.nan)


@functools.cache
def _most(cap: int, alpha: float) -> float:
    return anytime_lower_bound(cap, cap, alpha)
