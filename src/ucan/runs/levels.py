"""Decide several claims from one set of votes: which levels of radius or ALM, in which norms, each input reaches.

One bound on p holds at every number of votes, and all claims follow from it at once: a radius in every norm that the noise
certifies, and ALM. So checking many levels needs no correction, and an undecided input can be continued later with more votes
of the same stream. Only the levels that each input reached and the votes of undecided inputs are stored. An undecided level
counts as not certified, so every state is valid. (`ucan.runs.certify` keeps whole certificates, for one norm.)
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
from ucan.choices import norm_word
from ucan.data import Labelled
from ucan.errors import InvalidInput
from ucan.generators import Generator
from ucan.generators.base import regions_as_law
from ucan.plan import CertifyPlan
from ucan.results.metrics import Measure
from ucan.sequential import Candidate
from ucan.sidecar import input_hash
from ucan.sizes import LIKELY, alm_of, inverse
from ucan.smoothed import SmoothedClassifier
from ucan.stopping import AnytimeRadii, Radius
from ucan.votes import Stream


@dataclass(frozen=True)
class Claim:
    """Whether the radius, or the ALM, is at least each level, in the given norm; the levels increase."""

    norm: float
    by: Measure
    levels: tuple[float, ...]

    @property
    def key(self) -> str:
        """Its name in a record, such as "linf radius"."""
        return f"l{norm_word(self.norm)} {self.by}"


class Decide(AnytimeRadii):
    """Checks the votes each time they have grown by a twentieth; more frequent checks would cost more time than they save."""

    growth = 1.05


@dataclass
class Levels:
    """The state of a data set of ``total`` inputs: for each claim, how many levels each input reached; None if not processed.

    ``open`` holds the (hits, votes) of inputs that more votes may still decide.
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
        """Whether an input was never processed."""
        return next(iter(self.reached.values()))[index] is None

    def unfinished(self, order: Iterable[int], n: int) -> list[int]:
        """The inputs that need votes, up to n each: the open ones with fewer than n, then the new ones in ``order``."""
        return [*(i for i, (_, votes) in self.open.items() if votes < n), *(i for i in order if self.is_new(i))]

    def put(self, index: int, counts: Sequence[int], state: tuple[int, int] | None) -> None:
        """Store how many levels of each claim one input reached, and its (hits, votes) if more votes may decide more.

        A certified level stays certified: the bounds hold at all numbers of votes together.
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

    ``plan.n0`` votes choose the class. If it is not the label, nothing can be certified, and no more votes are drawn. The
    other inputs get votes until every level is decided at ``plan.level``, or cannot be decided with ``plan.n`` votes.
    ``most`` is the largest number of votes that an input may ever get; an undecided input with fewer stays open. Yields to
    the caller every ``every`` seconds, with all votes so far stored in ``levels``, and at the end, at ``until``
    (``time.monotonic``) at the latest.
    """
    if plan.budget is not None or (g.grid is not None and any(claim.by == "alm" for claim in levels.claims)):
        raise InvalidInput("levels are levels of a radius, or of ALM in real arithmetic: leave budget and step out.")
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
                work.put_all()  # unfinished inputs are stored as open, with their votes so far
                last = now
                yield
            if now > until:
                break
    work.put_all()
    yield


@dataclass
class _Active:
    """A candidate, the sizes of all claims at its input, and the number of its votes already counted."""

    candidate: Candidate
    sizes: list[Radius]
    counted: int


class _Deciding:
    """The work of ``decide``: turns candidates with their votes into reached levels."""

    def __init__(self, g: SmoothedClassifier, dataset: Labelled, levels: Levels, plan: CertifyPlan, most: int) -> None:
        self.g = g
        self.dataset = dataset
        self.levels = levels
        self.plan = plan
        self.most = most
        self.rule = Decide(tuple(range(sum(len(claim.levels) for claim in levels.claims))))
        self.active: dict[int, _Active] = {}

    def candidates(self, wanted: Sequence[int]) -> Iterator[Candidate]:
        """The inputs whose chosen class is correct, with their votes so far."""
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
            # The same Σ at every input; but on a grid an input between its points pays for that, and noise with a theorem of
            # its own may certify another radius at each.
            shared = sizes if M.scope == "pipeline" and g.grid is None and regions_as_law(M) else []
            stream = Stream(plan.seed, input_hash(x), "estimate")
            candidate = Candidate(i, x, M, stream, label, self.radius(sizes, plan.n))
            hits, drawn = levels.open.get(i, (0, 0))
            if drawn:
                tally = torch.zeros(g.f.num_classes + 1, dtype=torch.int64)
                tally[label] = hits  # the other counts are not stored, and not needed
                candidate.goes_on(tally, drawn)
            self.active[i] = _Active(candidate, sizes, drawn)
            yield candidate

    def put(self, one: _Active) -> None:
        """Store what an input reached with its votes so far."""
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
        """Store all unfinished inputs."""
        for one in self.active.values():
            self.put(one)

    def radius(self, sizes: list[Radius], cap: int) -> Radius:
        """All levels of all claims as one increasing sequence of probabilities, indexed by number for a stopping rule."""
        claims = zip(sizes, self.levels.claims, strict=True)
        asked = np.array([size.probability(level) for size, claim in claims for level in claim.levels])
        p0 = within(asked, cap, self.plan.level)
        return Radius(of=sizes[0].of, probability=lambda k: float(p0[int(k)]) if k < len(p0) else math.nan)


def sizes_at(claim: Claim, g: SmoothedClassifier, M: Generator, x: torch.Tensor, plan: CertifyPlan) -> Radius:
    """The map from p to a claim's radius, or ALM, at one input (1, *event) under the generator frozen there, and its inverse.

    ALM is a region's mean scale times the radius before Σ in the claim's norm; it increases with p, so each level corresponds
    to a probability, for each Σ separately.
    """
    if claim.by == "radius":
        return g.decided(M, x, replace(plan, norm=claim.norm))
    law, dim, norm = g.law, x.numel(), claim.norm
    if not regions_as_law(M):

        def of(p: float) -> float:
            with g.engine.beside(x.device):
                return alm_of(M.region(law, p, norm, x), law, p, None, norm)

        return Radius(of=of, probability=functools.cache(functools.partial(inverse, of, 0.5)))
    with g.engine.beside(x.device):
        factor = alm_of(M.region(law, LIKELY, norm, x), law, LIKELY, None, norm) / law.radius(LIKELY, norm, dim)
    return Radius(
        of=lambda p: factor * law.radius(p, norm, dim),
        probability=functools.cache(lambda size: float(law.probability(size / factor, norm, dim))),
    )


def reached(sizes: Radius, levels: Sequence[float], p: float) -> int:
    """How many of the increasing levels a bound p certifies. Level 0: whether anything is certified at all."""
    size = sizes.of(p)
    return 0 if size == 0 else sum(size >= level for level in levels)


def within(p0: np.ndarray, cap: int, alpha: float) -> np.ndarray:
    """The increasing probabilities; those that ``cap`` votes could not certify even if all agreed are NaN, that is,
    decided.
    """
    rising = np.unique(p0[~np.isnan(p0)])
    return np.where(rising <= _most(cap, alpha), rising, np.nan)


@functools.cache
def _most(cap: int, alpha: float) -> float:
    return anytime_lower_bound(cap, cap, alpha)
