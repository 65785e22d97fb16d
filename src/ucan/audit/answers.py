"""Attack the answers to other questions than one class: search their regions for a point where the claim fails, and test it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import torch

from ucan.arithmetic import ROUNDED, arithmetic_of
from ucan.audit.balls import Ball
from ucan.audit.decide import SURE
from ucan.audit.inputs import another_inside, least_changes, reachable
from ucan.audit.judge import AGAIN, Budget, check_factor, derived_seed
from ucan.audit.trials import Mode, frozen_at
from ucan.backends import PRECISIONS
from ucan.errors import InvalidInput
from ucan.questions.record import Answer
from ucan.questions.smoothed import Smoothed
from ucan.votes import as_answer

Given = TypeVar("Given")
# Of the goals of a claim with many (outputs, sides, places), how many are followed: those that noise comes closest to, and
# some others.
CLOSE, OTHERS = 6, 2
# Draws by which that is told.
TOLD = 64
# Random points of the surface that are tested beside those that a search found.
RANDOM = 4
# Votes that choose the point to test.
SCREEN = 512
# Points by which a direction is estimated where a model has no gradients.
PROBES = 64
# A test may look twice: at ``check`` votes, and at this many times as many.
MORE = 4


@dataclass(frozen=True)
class Try:
    """One answer attacked inside ``factor`` of its region.

    ``size`` is ‖Σ⁻¹δ‖/R of the point tested, 0 if there was none. ``broken``: fresh votes there reject the claim at the
    budget's level, and ten times as many do so again, at 10⁻¹⁰; ``p_value`` and ``again`` are those of the two tests.
    ``outside``: how many of the ``votes`` are outside the range of the outputs that the answer rests on. One shows that the
    range is false, and the answer void, whether or not it is ``broken``.
    """

    idx: int
    factor: float
    mode: str
    task: str
    scope: str
    radius: float
    broken: bool
    p_value: float
    again: float
    size: float
    votes: int
    attack: str
    seed: int
    claim: str
    outside: int = 0

    @property
    def elsewhere(self) -> bool:
        """Whether another point than the input itself was tested."""
        return self.size > 0 or self.broken

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def outside_range(tries: Iterable[Try]) -> set[int]:
    """The inputs whose answers rest on a range that an output was outside of."""
    return {one.idx for one in tries if one.outside}


def attack_answer(
    g: Smoothed, x: torch.Tensor, answer: Answer, factor: float = 0.999, budget: Budget | None = None, idx: int = 0
) -> tuple[Try, torch.Tensor | None]:
    """Attack one answer of g about x (1, *event), strictly inside ``factor`` of its region; with the δ tested.

    A ``frozen`` answer is attacked with μ and Σ as computed at x, which is what it is about. A true claim is called broken
    with probability at most 10⁻¹⁰.
    """
    check_factor(factor)
    budget = budget or Budget()
    x = x.to(g.f.device or x.device)
    check_about(g, x, answer)
    attacked = g if answer.scope == "pipeline" else frozen_at(g, x)
    with g.engine.running(answer.evidence.backend):  # another one rounds otherwise, and is another model
        return _attacked(attacked, x, answer, factor, budget, idx)


def _attacked(
    attacked: Smoothed, x: torch.Tensor, answer: Answer, factor: float, budget: Budget, idx: int
) -> tuple[Try, torch.Tensor | None]:
    """The attack on the model that the answer is about."""
    seed = derived_seed(budget.seed, idx, factor, answer.kind)
    search = _Search(attacked, x, answer, factor, budget, seed)
    z, deltas = search.points()
    found, delta = search.verdict(z, deltas)
    size = 0.0 if delta is None else float(answer.region.size(delta)[0]) / answer.region.radius
    claim = answer.evidence.input_hash
    about = (idx, factor, mode_of(answer), answer.task, answer.scope, answer.radius)
    return Try(
        *about,
        *found,
        size=size,
        votes=search.votes,
        attack=search.kind,
        seed=seed,
        claim=claim,
        outside=search.outside,
    ), delta


def mode_of(answer: Answer) -> Mode:
    """What is attacked: the pipeline, or, where the answer is about that, the model with its noise frozen at the input."""
    return "frozen" if answer.scope == "frozen" else "live"


def check_about(g: Smoothed, x: torch.Tensor, answer: Answer) -> None:
    """Refuse an answer about another model, law, noise, arithmetic or input."""
    evidence = answer.evidence
    for wrong, what in (
        (evidence.identity is not None and g.engine.identity() != evidence.identity, "model"),
        (g.law != evidence.law, "law"),
        (evidence.noise.differences(g.M.record()), "noise"),
        (evidence.arithmetic.removesuffix(ROUNDED) != arithmetic_of(g.grid), "arithmetic"),
        (not evidence.is_about(x), "input"),
    ):
        if wrong:
            raise InvalidInput(f"this answer is about another {what}: give the one that was certified.")


class _Search:
    """The search for one answer: by gradients where the model has them, else by random probes."""

    def __init__(self, g: Smoothed, x: torch.Tensor, answer: Answer, factor: float, budget: Budget, seed: int) -> None:
        self.g, self.x, self.answer, self.budget, self.seed = g, x, answer, budget, seed
        region = answer.region
        self.limit = factor * region.radius
        self.ball = Ball(region.scale.to(x.device), region.norm, self.limit, region.shape)
        self.rng = torch.Generator(x.device).manual_seed(seed)
        self.votes = self.outside = 0
        self.kind = "gradient" if self._has_gradient() else "black-box"

    def points(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Points of the region as the model sees them, and the changes that they are; x itself only if there is no other."""
        u = self._climbed() if self.kind == "gradient" else self._probed()
        beside = self.ball.random(RANDOM, self.x, self.rng)
        step = None if self.answer.evidence.arithmetic.endswith(ROUNDED) else self.g.step
        with torch.no_grad():
            changes = self.ball.place(torch.cat([u, beside])).double()
        found = self._reachable(changes, step)
        if not found[1].any():
            found = self._reachable(least_changes(self.x, self.answer.region, step), step)
        moved = found[1].flatten(1).any(1)
        if not moved.any():
            return self._reachable(torch.zeros_like(self.x), step)
        return found[0][moved], found[1][moved]

    def _reachable(self, changes: torch.Tensor, step: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return reachable(self.x, changes, self.answer.region, self.limit, step)

    def verdict(self, z: torch.Tensor, deltas: torch.Tensor) -> tuple[tuple[bool, float, float], torch.Tensor | None]:
        """Whether the most promising point breaks the claim, with the p-values of both tests."""
        if not len(z):
            return (False, 1.0, 1.0), None
        screened = [self.answer.p_value(kept, "inside") for kept in self._kept(z, SCREEN, "screen")]
        best = min(range(len(screened)), key=screened.__getitem__)
        point, delta = z[best : best + 1], deltas[best : best + 1]
        first = 1.0
        for votes in (self.budget.check, MORE * self.budget.check):
            first = min(1.0, 2 * self._tested(point, votes, f"check-{votes}"))
            if first <= self.budget.level or screened[best] > 0.5:
                break
        if first > self.budget.level:
            return (False, first, 1.0), delta
        again = self._tested(point, AGAIN * self.budget.check, "again")
        return (again <= SURE, first, again), delta

    def _tested(self, point: torch.Tensor, votes: int, phase: str) -> float:
        (kept,) = self._kept(point, votes, phase)
        return self.answer.p_value(kept, "inside")

    def _kept(self, z: torch.Tensor, votes: int, phase: str) -> list[Any]:
        self.votes += votes * len(z)
        claimed = self.answer.evidence.precision
        precision = claimed if claimed in PRECISIONS and self.answer.evidence.copy else None
        found = self.g.kept(z, votes, derived_seed(self.seed, phase), f"audit-{phase}", precision)
        self.outside += sum(map(self.answer.outside, found))
        return found

    # --- the two searches; both follow several goals side by side ---

    def _shown(self, u: torch.Tensor, draws: int) -> torch.Tensor:
        """What the model is given: copies under noise at points u (points, d)."""
        g, f = self.g, self.g.f
        noisy = g.M.perturb(self.x + self.ball.place(u), g.law, draws, self.rng)
        shown = g.M.view(noisy.flatten(0, 1))
        return shown if f.dtype is None else shown.to(f.dtype)

    def _pushed(self, output: torch.Tensor, u: torch.Tensor, draws: int) -> torch.Tensor:
        """The pushes (draws, points, goals) of the model's output."""
        found = self.answer.pushes(self.g.f, output).to(u.dtype)
        each: torch.Tensor = found.unflatten(0, (draws, len(u)))
        return each

    def _pushes(self, u: torch.Tensor, draws: int) -> torch.Tensor:
        """The pushes (draws, points, goals) under noise at points u (points, d)."""
        return self._pushed(as_answer(self.g.f.model(self._shown(u, draws))), u, draws)

    def _has_gradient(self) -> bool:
        u = torch.zeros(1, self.x.numel(), device=self.x.device, dtype=self.x.dtype, requires_grad=True)
        with torch.enable_grad():
            shown = self._shown(u, 4)
            output = _of_the_model(lambda: as_answer(self.g.f.model(shown)))
            if output is None:
                return False
            pushed = self._pushed(output, u, 4)[..., 0].sum()  # one goal: those of two sides add up to nothing
            if not pushed.requires_grad:
                return False
            slope = _of_the_model(lambda: torch.autograd.grad(pushed, u)[0])
        return slope is not None and bool(slope.isfinite().all() and slope.any())

    @torch.no_grad()
    def _goals(self) -> torch.Tensor:
        """Which goals are followed: those closest to 0 beside their spread under noise at x, and some others."""
        found = self._pushes(torch.zeros(1, self.x.numel()).to(self.x), TOLD)[:, 0]
        close = (found.mean(0) / (found.std(0) + 1e-12)).argsort(descending=True).cpu()
        some = torch.randperm(max(0, len(close) - CLOSE), generator=torch.Generator().manual_seed(self.seed))
        return torch.cat([close[:CLOSE], close[CLOSE:][some[:OTHERS]]]).to(self.x.device)

    def _climbed(self) -> torch.Tensor:
        """Where ascent along each goal's gradient leads, and the edge along the mean of the gradients."""
        goals = self._goals()
        u = torch.zeros(len(goals), self.x.numel()).to(self.x)
        spread, mean, place = torch.ones(len(goals)).to(self.x), torch.zeros_like(u), torch.arange(len(goals))
        for step in range(self.budget.steps):
            v = u.detach().requires_grad_()
            with torch.enable_grad():
                raised = self._pushes(v, self.budget.draws).mean(0)[place, goals].sum()
                (slope,) = torch.autograd.grad(raised, v)
            slope = slope.nan_to_num(0.0, 0.0, 0.0)
            mean = mean + torch.nn.functional.normalize(slope)
            size = 0.5 * self.limit * (1 - step / self.budget.steps)
            u = self.ball.project(u + size * self.ball.ascent(slope, spread))
        return torch.cat([u, self.limit * self.ball.ascent(mean, spread)])

    @torch.no_grad()
    def _probed(self) -> torch.Tensor:
        """The edge along the direction in which random points raise each goal, and the best of these points."""
        u = self.ball.random(PROBES, self.x, self.rng)
        u = torch.cat([u, -u])
        goals = self._goals()
        raised = self._pushes(u, self.budget.draws).mean(0)[:, goals]
        towards = (raised - raised.mean(0)).T @ u
        edge = self.limit * self.ball.ascent(towards, torch.ones(len(goals)).to(u))
        return torch.cat([edge, u[raised.argmax(0)]])


def leaves_others(g: Smoothed, x: torch.Tensor, answer: Answer, factor: float) -> bool:
    """Whether another input than x lies inside, so that an older attempt that tested x itself is made again."""
    step = None if answer.evidence.arithmetic.endswith(ROUNDED) else g.step
    return another_inside(x, answer.region, factor * answer.region.radius, step)


def _of_the_model(call: Callable[[], Given]) -> Given | None:
    """What a user's model gives; None where it raises an error when it is asked for gradients.

    Too little memory is no such answer: the audit would go on with the weaker search, and nobody would know.
    """
    try:
        return call()
    except torch.OutOfMemoryError:
        raise
    except Exception:
        return None


def attack_answers(
    g: Smoothed,
    cases: Iterator[tuple[int, torch.Tensor, Answer]],
    factors: list[float],
    budget: Budget,
    known: dict[tuple[int, float], Try],
) -> Iterator[tuple[Try, torch.Tensor, torch.Tensor | None]]:
    """Attack many answers (number, input, answer) at each factor that is not known yet; with the input and the δ tested."""
    for idx, x, answer in cases:
        for factor in factors:
            if (idx, factor) not in known:
                found, delta = attack_answer(g, x, answer, factor, budget, idx)
                yield found, x, delta
