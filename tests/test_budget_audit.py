"""Attacks inside boxes and groups: a factor that is too large is found, and none that is sound is broken."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

import ucan
from ucan.audit import attack, audit
from ucan.audit.auditor import replay
from ucan.audit.balls import budget_ball
from ucan.audit.claims import claimed, share
from ucan.audit.judge import Budget as Effort

DIM = 12
EFFORT = Effort(steps=12, draws=8, restarts=1, check=1000)


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


WEIGHTS = torch.randn(DIM, generator=rng(1))
LIMITS = 0.1 + torch.rand(DIM, generator=rng(2))
BOX = ucan.Budget(LIMITS)
GROUPS = ucan.Budget(0.3 + torch.rand(4, generator=rng(3)), torch.arange(DIM) % 4)


def logits(y: torch.Tensor) -> torch.Tensor:
    lead = y @ WEIGHTS.to(y)
    return torch.stack([-lead, lead], 1)


def answers(y: torch.Tensor) -> torch.Tensor:
    return logits(y).argmax(1)


def best(budget: ucan.Budget) -> ucan.Fixed:
    """The shape under which smoothing loses nothing on this linear classifier."""
    return ucan.Fixed.for_budget(budget, harm=WEIGHTS.square(), floor=0.0)


def case(budget: ucan.Budget, model=logits, law: ucan.Law | None = None, step: float | None = None):  # type: ignore[no-untyped-def]
    law = law or ucan.Gaussian(scale=0.5)
    g = ucan.SmoothedClassifier(model, law, best(budget), num_classes=2, step=step)
    spread = law.scale * float((WEIGHTS * g.M.scale.sigma).norm())  # type: ignore[attr-defined]
    x = (1.2 * spread * WEIGHTS / WEIGHTS.square().sum())[None]
    x = x if step is None else (x / step).round() * step
    (c,) = g.certify(x, n=10_000, budget=budget)
    assert isinstance(c, ucan.Certificate)
    return g, x, c


@pytest.mark.parametrize("model", [logits, answers], ids=["gradient", "black-box"])
@pytest.mark.parametrize("budget", [BOX, GROUPS], ids=["box", "groups"])
def test_a_factor_that_is_too_large_is_found_and_a_sound_one_is_not_broken(budget: ucan.Budget, model) -> None:  # type: ignore[no-untyped-def]
    g, x, c = case(budget, model)
    sound, _ = attack(g, x, c, factor=0.999, budget=EFFORT)
    assert not sound.broken and sound.covered and sound.radius == c.budget_factor
    wrong = replace(c, budget_factor=1.3 * c.budget_factor)
    found, delta = attack(g, x, wrong, factor=0.999, budget=EFFORT)
    assert found.broken and found.covered and found.changed and found.refuted and delta is not None
    assert float(budget.size(delta)[0]) < 0.999 * wrong.budget_factor and found.size < 1
    assert not c.region.contains(delta)[0]  # only the budget's claim is wrong
    assert replay(g, x, wrong, delta, budget=replace(EFFORT, seed=found.votes_seed)).broken
    with pytest.raises(ucan.InvalidInput, match="refutes nothing"):
        replay(g, x, c, delta)
    assert [a.broken for a, _ in audit(g, x, wrong, factors=(0.5, 0.999), budget=EFFORT)] == [False, True]


@pytest.mark.parametrize("law", [ucan.Uniform(scale=1.5), ucan.Laplace(scale=0.4)], ids=lambda law: type(law).__name__)
def test_other_laws_keep_what_they_claim(law: ucan.Law) -> None:
    g, x, c = case(BOX, law=law)
    found, _ = attack(g, x, c, factor=0.999, budget=EFFORT)
    assert found.covered and not found.broken


def test_on_a_grid_attacks_stay_on_it() -> None:
    g, x, c = case(BOX, step=1 / 256)
    wrong = replace(c, budget_factor=1.3 * c.budget_factor)
    found, delta = attack(g, x, wrong, factor=0.999, budget=EFFORT)
    assert found.broken and delta is not None
    assert torch.equal((delta * 256).round(), delta * 256)
    assert not attack(g, x, c, factor=0.999, budget=EFFORT)[0].broken


def test_the_claimed_set_is_the_region_and_the_budget() -> None:
    g, x, c = case(BOX)
    inside, limit = claimed(c)
    corner = (0.999 * c.budget_factor * LIMITS)[None].double()
    assert limit == 1 and share(c, corner) < 1 < share(c, 100 * corner)
    axis = torch.zeros(1, DIM, dtype=torch.float64)
    axis[0, 0] = 0.999 * c.region.radius * float(g.M.scale.sigma[0])
    assert float(BOX.size(axis)[0]) > c.budget_factor and float(inside.size(axis)[0]) < 1  # the region reaches further
    (plain,) = g.certify(x, n=1000)
    assert claimed(plain) == (plain.region, plain.region.radius)


@pytest.mark.parametrize("budget", [BOX, GROUPS], ids=["box", "groups"])
def test_the_ball_of_a_budget(budget: ucan.Budget) -> None:
    ball = budget_ball(budget, 0.7, torch.zeros(1, DIM, dtype=torch.float64))
    u = ball.random(20, torch.zeros(1, DIM, dtype=torch.float64), rng())
    assert torch.allclose(budget.size(ball.place(u)), torch.full((20,), 0.7, dtype=torch.float64))
    far = 5 * torch.randn(20, DIM, generator=rng(), dtype=torch.float64)
    assert (budget.size(ball.place(ball.project(far))) <= 0.7 * (1 + 1e-12)).all()
    assert torch.allclose(ball.project(0.1 * u), 0.1 * u)
    gradient = torch.randn(5, DIM, generator=rng(1), dtype=torch.float64)
    step = ball.ascent(gradient, torch.ones(5))
    if budget.groups is None:
        dual = gradient.abs().sum(1)
    else:
        squares = torch.zeros(5, 4, dtype=torch.float64).index_add_(1, budget.groups.flatten(), gradient.square())
        dual = squares.sqrt().sum(1)
    assert torch.allclose((gradient * step).sum(1), dual)
    assert torch.equal(ball.ascent(torch.full((1, DIM), math.nan), torch.ones(1)), torch.zeros(1, DIM))


def test_a_coordinate_that_may_not_change_is_left_alone() -> None:
    limits = LIMITS.clone()
    limits[3] = 0.0
    g = ucan.SmoothedClassifier(answers, ucan.Gaussian(scale=0.5), num_classes=2)
    x = (1.5 * WEIGHTS / WEIGHTS.square().sum())[None]
    (c,) = g.certify(x, n=2000, budget=limits)
    assert isinstance(c, ucan.Certificate)
    ball = budget_ball(ucan.Budget(limits), 1.0, x)
    assert (ball.place(ball.random(5, x, rng()))[:, 3] == 0).all()
    assert not attack(g, x, c, factor=0.999, budget=EFFORT)[0].broken
