"""The auditor: it catches planted faults, leaves honest certificates alone, and tells a frozen guarantee from a live one."""

import json
import math
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from typer.testing import CliRunner

import ucan
from ucan import backends, data
from ucan.audit import (
    FACTORS,
    Attempt,
    Budget,
    Ledger,
    allowed_breaks,
    attack,
    audit,
    audit_all,
    decide,
    in_words,
    load_break,
    read_attempts,
    replay,
    summarise,
)
from ucan.audit.answers import attack_answer
from ucan.audit.attacks import Aim, black_box_attack, gradient_attack, has_gradient
from ucan.audit.auditor import modes_of
from ucan.audit.balls import Ball, ascent, project
from ucan.audit.images import save_panels
from ucan.audit.inputs import least_changes, reachable
from ucan.audit.judge import Judge
from ucan.cli import app, main
from ucan.cli.audit import _show as show
from ucan.errors import InvalidInput, StoreError
from ucan.generators.composed import Composed
from ucan.region import Region
from ucan.scales import Basis, Dense, Diagonal, Scalar
from ucan.training import load_run

D = 20
NORMS = (1, 2, math.inf)


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


@dataclass(frozen=True)
class Inflated(ucan.Gaussian):
    """The planted fault: every radius 1.3 times too large."""

    def _radius(self, p_a, p_b, norm, dim):
        return 1.3 * super()._radius(p_a, p_b, norm, dim)


NORMAL = torch.randn(D, generator=rng(3))
NORMAL = NORMAL / NORMAL.norm()


def linear() -> nn.Module:
    """Class 1 where ⟨w, y⟩ > 0, with a gradient."""
    model = nn.Linear(D, 2)
    with torch.no_grad():
        model.weight.copy_(torch.stack([-3 * NORMAL, 3 * NORMAL]))
        model.bias.zero_()
    return model.eval()


def answers(batch):
    """The same classifier as a plain function that only answers."""
    return (batch.double() @ NORMAL.double() > 0).long()


def orthonormal() -> torch.Tensor:
    return torch.linalg.qr(torch.randn(D, D, generator=rng(5))).Q


SCALES: dict[str, Any] = {
    "isotropic": Scalar(1.0),
    "diagonal": Diagonal(torch.linspace(0.5, 2.0, D)),
    "dense": Dense(torch.eye(D) + 0.3 * torch.randn(D, D, generator=rng(4)) / math.sqrt(D)),
    "basis": Basis(orthonormal(), torch.linspace(0.5, 2.0, D)),
}


def cases(g, count, norm=2, n=2000, seed=0, low=0.3, high=1.5, **more):
    """Inputs whose noise crosses the border often enough for radii near the truth, with their certificates."""
    spread = float((g.M(torch.zeros(1, D))[1].dense(D).T @ NORMAL.double()).norm()) * g.law.std(D)
    margin = spread * (low + (high - low) * torch.rand(count, generator=rng(seed)))
    x = torch.randn(count, D, generator=rng(seed + 1))
    x = x + (margin - x @ NORMAL)[:, None] * NORMAL
    outcomes = g.certify(x, n=n, norm=norm, seed=seed, **more)
    return [(i, x[i : i + 1], c) for i, c in enumerate(outcomes) if not c.abstained]


def attempts_on(g, some, mode="live", **more):
    return [attempt for i, x, c in some for attempt, _ in audit(g, x, c, mode, idx=i, **more)]


def g_of(law=None, scale="isotropic", model=None):
    return ucan.SmoothedClassifier(model or linear(), law or ucan.Gaussian(1.0), ucan.Fixed(SCALES[scale]), 2)


QUICK = Budget(steps=10, draws=8, check=500)


@pytest.fixture
def planted():
    g = g_of(Inflated(1.0))
    return g, cases(g, 4, n=5000, low=0.9)


# --- balls ---


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("seed", range(6))
def test_projections_against_brute_force(norm, seed):
    """No point of the ball is nearer, and the angle to every extreme point is obtuse, as only the nearest point has it."""
    u, radius = 2 * torch.randn(1, 4, generator=rng(seed), dtype=torch.float64), 0.7
    found = project(u, norm, radius)
    assert torch.linalg.vector_norm(found, ord=norm) <= radius * (1 + 1e-12)
    points = torch.randn(20_000, 4, generator=rng(seed + 50), dtype=torch.float64)
    points = radius * points / torch.linalg.vector_norm(points, ord=norm, dim=1, keepdim=True)
    assert (u - found).norm() <= (u - points).norm(dim=1).min()
    extreme = {
        1: radius * torch.cat([torch.eye(4), -torch.eye(4)]).double(),
        2: points,
        math.inf: radius * torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * 4).double(),
    }[norm]
    assert (((u - found) * (extreme - found)).sum(1) <= 1e-12).all()


@pytest.mark.parametrize("norm", NORMS)
def test_a_point_inside_stays_and_rows_do_not_mix(norm):
    u = torch.randn(50, 7, generator=rng(), dtype=torch.float64) * torch.logspace(-2, 1, 50).double()[:, None]
    out = project(u, norm, 1.0)
    inside = torch.linalg.vector_norm(u, ord=norm, dim=1) <= 1
    assert inside.any() and not inside.all()
    assert torch.allclose(out[inside], u[inside], rtol=1e-12)
    assert torch.allclose(out, torch.cat([project(row[None], norm, 1.0) for row in u]), rtol=1e-12)
    assert torch.equal(project(torch.zeros(2, 3), norm, 1.0), torch.zeros(2, 3))


@pytest.mark.parametrize("norm", NORMS)
def test_ascent_is_the_steepest_unit_step(norm):
    gradient = torch.randn(5, 6, generator=rng(), dtype=torch.float64)
    step = ascent(gradient, norm, torch.ones(5, dtype=torch.float64))
    assert torch.allclose(torch.linalg.vector_norm(step, ord=norm, dim=1), torch.ones(5, dtype=torch.float64))
    dual = {1: math.inf, 2: 2, math.inf: 1}[norm]
    assert torch.allclose((gradient * step).sum(1), torch.linalg.vector_norm(gradient, ord=dual, dim=1))
    assert torch.equal(ascent(torch.full((1, 3), math.nan), norm, torch.ones(1)), torch.zeros(1, 3))
    two = ascent(gradient, 1, torch.full((5,), 2.0, dtype=torch.float64))
    assert ((two != 0).sum(1) == 2).all() and torch.allclose(two.abs().sum(1), torch.ones(5, dtype=torch.float64))


# --- where attacks look ---


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("scale", SCALES)
def test_every_attacked_point_lies_strictly_inside_as_the_classifier_sees_it(scale, norm):
    region = Region(SCALES[scale], 0.8, norm, (D,))
    x = 100 + torch.rand(1, D, generator=rng(1))  # large, so that rounding matters
    ball = Ball(region.scale, norm, 0.999 * region.radius, (D,))
    aim = Aim(g_of(), x, 1, False, ball, rng(2), lambda delta: False)
    (delta,) = gradient_attack([aim], 8, 4, 2)
    assert len(delta) == 12  # of four chains the last point, the best one, and the edge along the mean gradient
    z, actual = reachable(x, delta, region, 0.999 * region.radius)
    assert len(z) == len(delta) and z.dtype == torch.float32 and actual.dtype == torch.float64
    assert torch.equal(z.double() - x.double(), actual)
    assert region.contains(actual).all() and (region.size(actual) < 0.999 * region.radius).all()
    assert float(region.size(actual).max()) > 0.9999 * 0.999 * region.radius


def test_a_point_that_rounding_leaves_outside_is_left_out():
    region = Region(1.0, 1e-9, 2, (2,))  # thinner than the distance between floats near 100
    x = torch.full((1, 2), 100.0)
    z, _ = reachable(x, torch.tensor([[5e-6, 0.0]]), region, region.radius)
    assert len(z) == 0


def test_an_infinite_perturbation_is_left_out():
    z, _ = reachable(torch.zeros(1, 2), torch.tensor([[math.inf, 0.0]]), Region(1.0, math.inf, 2, (2,)), math.inf)
    assert len(z) == 0


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("step", [0.05, torch.linspace(0.01, 0.1, D)], ids=["number", "tensor"])
def test_points_of_a_grid_lie_on_it_and_inside(scale, norm, step):
    region = Region(SCALES[scale], 2.0, norm, (D,))
    home = torch.randint(-20, 20, (1, D), generator=rng(1))
    x = (home * torch.as_tensor(step).double()).float()
    delta = Ball(region.scale, norm, 0.999 * region.radius, (D,)).place(
        Ball(region.scale, norm, 0.999 * region.radius, (D,)).random(30, x, rng(2))
    )
    z, actual = reachable(x, delta, region, 0.999 * region.radius, step=step)
    assert len(z) == len(delta) and z.dtype == x.dtype
    steps = z.double() / torch.as_tensor(step).double()
    assert torch.allclose(steps, steps.round(), atol=1e-4)
    assert torch.equal(z.double() - x.double(), actual) and (region.size(actual) < 0.999 * region.radius).all()
    still = steps.round() == home
    assert (z == x)[still].all()  # to the last digit
    rounded = (delta.double() / torch.as_tensor(step).double()).round() * torch.as_tensor(step).double()
    outside = region.size(rounded) >= 0.999 * region.radius
    assert outside.any() and (region.size(actual)[outside] > 0.9 * 0.999 * region.radius).all()
    assert torch.allclose(actual[~outside], rounded[~outside], atol=1e-5)


def test_a_grid_coarser_than_the_region_leaves_the_input_itself():
    x = torch.tensor([[3.0, -1.0]])
    z, actual = reachable(x, torch.tensor([[0.6, 0.0]]), Region(1.0, 0.7, 2, (2,)), 0.7, step=1.0)
    assert torch.equal(z, x) and not actual.any()
    assert len(reachable(x, torch.tensor([[math.inf, 0.0]]), Region(1.0, 0.7, 2, (2,)), 0.7, step=1.0)[0]) == 0


def test_the_gradient_attack_finds_the_worst_direction_of_a_linear_classifier():
    x = (NORMAL * 0.5)[None]
    for norm, dual in ((1, math.inf), (2, 2), (math.inf, 1)):
        for scale in SCALES.values():
            ball = Ball(scale, norm, 0.7, (D,))
            aim = Aim(g_of(), x, 1, False, ball, rng(), lambda delta: False)
            (delta,) = gradient_attack([aim], 40, 16, 2)
            best = 0.7 * float(torch.linalg.vector_norm(scale.dense(D).T @ NORMAL.double(), ord=dual))
            reached = float(-(delta.double() @ NORMAL.double()).min())
            assert 0.97 * best <= reached <= best * (1 + 1e-5), (norm, scale)


def test_attacks_side_by_side_find_what_each_finds_alone():
    def aims():
        scales = list(SCALES.values())
        return [
            Aim(
                g_of(),
                (NORMAL * (0.3 + 0.1 * i))[None],
                1,
                i % 2 == 1,
                Ball(scale, norm, 0.2 + 0.1 * i, (D,)),
                rng(i),
                no,
            )
            for i, (scale, norm) in enumerate(zip(scales, [1, 2, math.inf] * len(scales), strict=False))
        ]

    def no(delta):
        return False

    together = gradient_attack(aims(), 10, 8, 2)
    alone = [gradient_attack([aim], 10, 8, 2)[0] for aim in aims()]
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(together, alone, strict=True))


def test_gradients_are_seen_where_there_are_some():
    x = torch.zeros(1, D)
    assert has_gradient(g_of(), x, rng())
    assert not has_gradient(g_of(model=answers), x, rng())
    assert not has_gradient(g_of(model=lambda b: linear()(b).detach()), x, rng())
    assert has_gradient(g_of(model=lambda b: torch.stack([-b.sum(1), b.sum(1)], 1)), x, rng())


def as_numpy(batch):
    """The same classifier for NumPy: class numbers, and logits."""
    return (batch.numpy().astype(np.float64) @ NORMAL.numpy().astype(np.float64) > 0).astype(np.int64)


def numpy_logits(batch):
    side = batch.numpy() @ NORMAL.numpy()
    return np.stack([-side, side], axis=1)


@pytest.mark.parametrize("model", [as_numpy, numpy_logits])
def test_models_of_numpy_are_attacked_through_their_votes(model):
    g = g_of(Inflated(1.0), model=model)
    assert not has_gradient(g, torch.zeros(1, D), rng())
    summary = summarise(out := attempts_on(g, cases(g, 3, n=5000, low=0.8), factors=(0.999,)))
    assert summary.broken == {"live": 3} and summary.is_bug and {a.attack for a in out} == {"black-box"}


def test_models_of_scikit_learn_are_attacked():
    linear_model = pytest.importorskip("sklearn.linear_model")
    points = torch.randn(200, D, generator=rng(6))
    fitted = linear_model.LogisticRegression().fit(points.numpy(), (points @ NORMAL > 0).numpy())
    for model in (lambda b: fitted.predict(b.numpy()), lambda b: fitted.predict_proba(b.numpy())):
        g = ucan.SmoothedClassifier(model, Inflated(1.0), num_classes=2)
        x = (0.9 * NORMAL)[None]
        attempts = attempts_on(g, [(0, x, *g.certify(x, n=5000))], factors=(0.999,))
        assert attempts[0].broken and attempts[0].attack == "black-box"


def test_the_black_box_attack_goes_the_right_way():
    x = (NORMAL * 1.0)[None]
    ball = Ball(SCALES["diagonal"], 2, 0.9, (D,))
    aim = Aim(g_of(scale="diagonal", model=answers), x, 1, False, ball, rng(), lambda delta: False)
    delta = black_box_attack(aim, 40, 16)
    best = 0.9 * float(torch.linalg.vector_norm(ball.scale.dense(D).T @ NORMAL.double()))
    assert -(delta.double() @ NORMAL.double()).min() > 0.85 * best
    assert (Region(ball.scale, 0.9, 2, (D,)).size(delta) < 0.9 * (1 + 1e-5)).all()


# --- decisions ---


@pytest.mark.parametrize("n", [1, 10, 256, 2000])
@pytest.mark.parametrize("level", [0.001, 0.05])
def test_a_true_claim_is_called_broken_with_at_most_the_stated_probability(n, level):
    """Exactly: the probability of all counts that lead to a break, at P(c_A) = 1/2, where it is largest."""
    called = [k for k in range(n + 1) if decide([k, n - k], 0, 0, level).broken]
    assert stats.binom.pmf(called, n, 0.5).sum() <= level
    if n >= 256:
        assert stats.binom.cdf(max(called) + 1, n, 0.5) > level  # and no weaker than need be


def test_decisions_on_small_counts():
    assert decide([400, 600], 0, 0, 0.001).broken and decide([400, 600], 0, 0, 0.001).answer == 1
    assert not decide([490, 510], 0, 0, 0.001).broken
    for c in (0, 1):
        assert not decide([0, 0], 1000, c, 0.001).broken  # nothing valid was answered: not another answer
    # without a majority the class may still lead: no change of the answer
    assert not decide([400, 300, 300], 0, 0, 0.001).broken
    # the votes against a two-class certificate are those of its rival
    assert not decide([300, 310, 390], 0, 0, 0.001, rival=1).broken
    assert decide([300, 310, 390], 0, 0, 0.001, rival=2).p_value == pytest.approx(stats.binom.cdf(300, 690, 0.5))
    with pytest.raises(InvalidInput, match="alpha"):
        decide([1, 1], 0, 0, 0.0)


class Coin:
    """Stands for a smoothed classifier: two classes, or three, with known probabilities at every point."""

    step = None

    def __init__(self, *probabilities):
        self.probabilities = probabilities

    def predict(self, z, n, seed, precision):
        seeds = [[seed, *row.view(torch.int32).tolist()] for row in z.flatten(1)]
        drawn = [np.random.default_rng(np.abs(one)).multinomial(n, self.probabilities) for one in seeds]
        return [SimpleNamespace(counts=torch.from_numpy(counts), invalid=0) for counts in drawn]


def judged(coin, budget, seed, promised=True, p_upper=None):
    """What a judge makes of ten points of a region, all of them alike."""
    certificate = SimpleNamespace(
        prediction=0,
        p_upper=p_upper,
        region=Region(1.0, 9.0, 2, (2,)),
        evidence=SimpleNamespace(precision="float32", arithmetic="real", bound="clopper-pearson"),
        budget=None,
    )
    judge = Judge(coin, torch.zeros(1, 2), certificate, 1.0, budget, seed, promised)
    judge.look(torch.randn(10, 2, generator=rng(seed)))
    return judge, judge.verdict()[0]


@pytest.mark.parametrize("p_upper", [None, 0.4], ids=["binary", "two-class"])
def test_a_judge_calls_true_claims_broken_at_most_at_the_stated_level(p_upper):
    """At P(c_A) = 1/2, or equal to its rival's, where a true claim is hardest to tell: the worst of ten points is chosen,
    the test may look eight times, and still the level holds.
    """
    coin, budget, count = Coin(0.5, 0.5) if p_upper is None else Coin(0.4, 0.4, 0.2), Budget(check=200, level=0.05), 800
    found = [judged(coin, budget, seed, p_upper=p_upper)[1] for seed in range(count)]
    broken = sum(d.broken for d in found)
    assert 0 < broken <= 0.05 * count + 3 * math.sqrt(0.05 * 0.95 * count)
    assert all(d.broken == (d.p_value <= 0.05) for d in found)
    assert max(d.total for d in found) > 10 * min(d.total for d in found)  # they end at very different numbers


def test_a_close_break_gets_the_votes_that_it_needs_and_a_hopeless_point_few():
    for share, broken in ((0.487, True), (0.48, True), (0.45, True), (0.506, False), (0.55, False)):
        found = [judged(Coin(share, 1 - share), Budget(), seed) for seed in range(40)]
        right = [(judge, first) for judge, first in found if first.broken is broken]
        assert len(right) >= 38, share
        if broken:
            assert sum(judge.again().broken for judge, _ in right) >= 38, share
        most = sum(first.total for _, first in found) / len(found)
        assert most < {0.487: 60_000, 0.48: 25_000, 0.45: 6000, 0.506: 20_000, 0.55: 6000}[share]


def test_an_attack_runs_the_network_as_its_certificate_says(monkeypatch, tmp_path):
    """Rounding by another backend is another classifier, of which nothing is claimed: here one that answers the opposite."""
    honest = backends.prepare

    def prepared(f, view, example, kind, precision):
        found = honest(f, view, example, "eager", precision)
        if kind == "eager":
            return replace(found, vote=lambda noisy: 1 - found.vote(noisy))
        return replace(found, name=kind)

    monkeypatch.setattr("ucan.engine.prepare", prepared)
    g = g_of()
    with g.engine.running("compile"):
        some = cases(g, 6)
    assert {c.evidence.backend for _, _, c in some} == {"compile"}
    unlike = [(i + 100, x, replace(c, evidence=replace(c.evidence, backend="eager"))) for i, x, c in some]
    mixed = [case for pair in zip(some, unlike, strict=True) for case in pair]
    found = audit_all(g, mixed, Ledger(tmp_path, {}), factors=[0.9], budget=QUICK)
    assert [attempt.idx for attempt in found] == [i for i, *_ in mixed]
    assert all(attempt.broken == (attempt.idx >= 100) for attempt in found)
    (_, x, own), (_, _, other) = some[0], unlike[0]
    still = torch.zeros_like(x).double()
    assert replay(g, x, other, still).broken and not replay(g, x, own, still).broken


def test_a_class_that_lost_its_majority_breaks_a_promise_though_it_leads():
    three = Coin(0.42, 0.3, 0.28)
    _, promised = judged(three, Budget(), 0)
    assert promised.broken and promised.answer == 0
    _, other = judged(three, Budget(), 0, promised=False)
    assert not other.broken  # nobody promised a majority: the answer has not changed
    assert (
        not decide([400, 300, 300], 0, 0, 0.001).broken and decide([400, 300, 300], 0, 0, 0.001, changed=False).broken
    )


@pytest.mark.parametrize("chance", [0.001, 0.02])
def test_chance_ever_breaks_more_than_is_allowed_with_the_stated_probability(chance):
    """Exactly, over every number of inputs at which one might look: whoever crosses the line once, stays counted."""
    counts, crossed = np.zeros(200), 0.0
    counts[0] = 1.0
    for inputs in range(1, 2001):
        counts = counts * (1 - chance) + np.roll(counts, 1) * chance
        line = allowed_breaks(inputs, chance)
        crossed += counts[line + 1 :].sum()
        counts[line + 1 :] = 0
    assert 0 < crossed <= 0.0005
    assert allowed_breaks(0, chance) == 0 and allowed_breaks(1, 1e-6) == 0
    assert 2000 * chance < line < 2000 * chance + 7 * math.sqrt(2000 * chance)


# --- planted faults and honest certificates ---


class Rounding(nn.Module):
    """The same classifier on coarse pixels: autograd has a gradient for it, which is 0."""

    def __init__(self):
        super().__init__()
        self.net = linear()

    def forward(self, y):
        return self.net((20 * y).round() / 20)


@pytest.mark.parametrize("model", [linear(), answers, Rounding().eval()], ids=["gradient", "black-box", "rounding"])
def test_a_planted_fault_is_caught_within_the_default_budget(model):
    g = g_of(Inflated(1.0), model=model)
    some = cases(g, 12, n=5000, low=0.8)
    summary = summarise(attempts_on(g, some))
    assert summary.is_bug and summary.covered_breaks > len(some) // 2 > summary.allowed
    assert summary.bugs and all(a.bug and a.recertified and a.covered for a in summary.bugs)
    assert "BUG" in " ".join(in_words(summary))
    assert {a.attack for a in summary.bugs} == {"gradient" if isinstance(model, nn.Linear) else "black-box"}


def test_each_certificate_is_attacked_by_what_its_own_input_tells():
    """A classifier with a gradient at the first input and none at the others, which stand to be broken."""

    def model(y):
        soft = torch.stack([-y[:, 0], y[:, 0]], 1)
        return torch.where((y[:, 1] > 50)[:, None], soft, (soft > 0).float() + 0 * soft)

    x = torch.zeros(3, 20)
    x[:, 0] = 1.0
    x[0, :2] = torch.tensor([6.0, 100.0])
    g = ucan.SmoothedClassifier(model, Inflated(1.0), num_classes=2)
    some = [(i, x[i : i + 1], c) for i, c in enumerate(g.certify(x, n=5000))]
    found = attempts_on(g, some, factors=(0.999,))
    assert {a.idx: a.attack for a in found} == {0: "gradient", 1: "black-box", 2: "black-box"}
    assert {a.idx for a in found if a.broken} == {1, 2}


@pytest.mark.parametrize("scale", ["diagonal", "dense", "basis"])
def test_a_planted_fault_is_caught_under_every_kind_of_scale(scale):
    g = g_of(Inflated(0.5), scale)
    summary = summarise(attempts_on(g, cases(g, 6, n=5000, low=0.8), factors=(0.999,)))
    assert summary.is_bug and summary.bugs


@dataclass(frozen=True)
class Times(ucan.Gaussian):
    """Radii a given number of times too large."""

    times: float = 1.0

    def _radius(self, p_a, p_b, norm, dim):
        return self.times * super()._radius(p_a, p_b, norm, dim)


def between(g, x, times, n):
    """The inflated pipeline, and its certificates at inputs whose honest radius lies between 0.5λ and 2.5λ."""
    scale = g.law.scale
    radii = [c.radius for c in g.certify(x, n=n)]
    x = x[[i for i, r in enumerate(radii) if 0.5 * scale <= r <= 2.5 * scale]]
    inflated = ucan.SmoothedClassifier(g.f.model, Times(scale, times=times), g.M, g.f.num_classes)
    return inflated, [(i, x[i : i + 1], c) for i, c in enumerate(inflated.certify(x, n=n))]


def lines(count):
    """Inputs at 0.5 to 2.5 standard deviations from the border of the linear classifier."""
    x = torch.randn(count, D, generator=rng(1))
    return x + (torch.linspace(0.55, 2.4, count) - x @ NORMAL)[:, None] * NORMAL


@pytest.fixture(scope="module")
def mlp():
    """A small network for digits under noise of 0.5, and test inputs."""
    datasets = pytest.importorskip("sklearn.datasets")
    found = datasets.load_digits()
    x, y = torch.tensor(found.images / 16).float().flatten(1), torch.tensor(found.target)
    noise = rng()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    optimiser = torch.optim.Adam(net.parameters(), 1e-3)
    for _ in range(40):
        for some in torch.randperm(1400, generator=noise).split(64):
            loss = nn.functional.cross_entropy(
                net(x[some] + 0.5 * torch.randn(len(some), 64, generator=noise)), y[some]
            )
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return ucan.SmoothedClassifier(net.eval(), ucan.Gaussian(0.5), num_classes=10), x[1400:]


def test_a_radius_ten_percent_too_large_is_found_on_a_linear_classifier():
    g, some = between(g_of(), lines(4), 1.1, 100_000)
    summary = summarise(attempts_on(g, some, factors=(0.999,)))
    assert summary.attacked == 4 and summary.broken == {"live": 4} and summary.is_bug and len(summary.bugs) == 4


def test_a_radius_thirty_percent_too_large_is_found_on_a_network(mlp):
    """Most of its claims are refuted by a lost majority: with ten classes the first may lead with less than half."""
    smoothed, x = mlp
    g, some = between(smoothed, x[:10], 1.3, 10_000)
    summary = summarise(attempts_on(g, some, factors=(0.999,)))
    assert summary.is_bug and summary.bugs and summary.broken["live"] > len(some) // 2 > summary.allowed
    assert summary.changed["live"] < summary.broken["live"] and "majority alone" in in_words(summary)[0]
    honest, same = between(smoothed, x[:10], 1.0, 10_000)
    assert summarise(attempts_on(honest, same, factors=(0.999,))).broken == {"live": 0}


@pytest.mark.slow
def test_the_power_of_the_default_budget(mlp):
    g, some = between(g_of(), lines(20), 1.1, 100_000)
    summary = summarise(attempts_on(g, some))
    assert summary.attacked == 20 and summary.broken["live"] >= 19 and summary.is_bug and len(summary.bugs) >= 15
    smoothed, x = mlp
    g, some = between(smoothed, x[:80], 1.3, 10_000)
    summary = summarise(attempts_on(g, some[:39]))
    assert summary.attacked == 39 and summary.broken["live"] >= 10 and summary.is_bug


@pytest.mark.slow
def test_no_false_alarm_in_five_hundred_certificates(mlp):
    smoothed, x = mlp
    for g, some in (between(g_of(), lines(250), 1.0, 100_000), between(smoothed, x, 1.0, 10_000)):
        summary = summarise(attempts_on(g, some[:250]))
        assert summary.attacked == 250 and summary.broken == {"live": 0} and not summary.is_bug


HONEST = [
    *((ucan.Gaussian(1.0), scale, 2) for scale in SCALES),
    (ucan.Gaussian(1.0), "diagonal", 1),
    (ucan.Gaussian(1.0), "basis", math.inf),
    (ucan.Laplace(0.7), "isotropic", 1),
    (ucan.Laplace(0.7), "diagonal", 1),
    (ucan.Uniform(1.5), "dense", 1),
    (ucan.Uniform(1.5), "isotropic", math.inf),
    (ucan.ExpInf(0.1), "isotropic", math.inf),
    (ucan.ExpInf(0.1), "diagonal", 1),
]


@pytest.mark.parametrize(("law", "scale", "norm"), HONEST, ids=str)
def test_honest_certificates_survive(law, scale, norm):
    """72 certificates over all of these, at three factors each: none may be a bug."""
    g = g_of(law, scale)
    some = cases(g, 8, norm, n=1000, seed=7)
    assert len(some) >= 5
    out = attempts_on(g, some, budget=Budget(steps=25, draws=8))
    summary = summarise(out)
    assert not summary.is_bug and not summary.bugs
    assert summary.attacked == len(some) and len(out) == 3 * len(some)
    edge = sorted(a.size for a in out if a.factor == 0.999)  # the attack was a real one: it went to the region's edge
    assert edge[len(edge) // 2] > 0.95 and edge[-1] < 0.999


@pytest.mark.parametrize("law", [ucan.Gaussian(0.6), Inflated(0.6)], ids=["honest", "planted"])
@pytest.mark.parametrize("norm", [2, math.inf])
def test_composed_noise_is_attacked_through_both_looks(law, norm):
    """Its noise is no fixed x + μ + Σε: the attack differentiates through the network that chooses the second look."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(D, 16), nn.Tanh(), nn.Linear(16, D))
    direction = NORMAL.sign() / D if norm == math.inf else NORMAL  # what an attack of this norm can move most
    model = nn.Linear(D, 2, bias=False).eval()
    with torch.no_grad():
        model.weight.copy_(torch.stack([-9 * direction, 9 * direction]))
    g = ucan.SmoothedClassifier(model, law, Composed(norm=norm, net=net, spread=1.5), num_classes=2)
    x = direction * direction.norm() ** -1 * torch.linspace(0.5, 0.8, 6)[:, None]
    some = [(i, x[i : i + 1], c) for i, c in enumerate(g.certify(x, n=5000, norm=norm)) if not c.abstained]
    assert len(some) == 6 and {c.scope for _, _, c in some} == {"pipeline"}
    summary = summarise(attempts_on(g, some, factors=(0.999,)))
    assert summary.is_bug is isinstance(law, Inflated)


def test_a_two_class_certificate_is_tested_against_its_rival():
    three = nn.Linear(D, 3).eval()
    g = ucan.SmoothedClassifier(three, Inflated(1.0), num_classes=3)
    x = torch.randn(6, D, generator=rng(2))
    some = [(i, x[i : i + 1], c) for i, c in enumerate(g.certify(x, n=4000, bound="two-class")) if not c.abstained]
    out = attempts_on(g, some, factors=(0.999,))
    assert some and any(a.bug for a in out)
    broken = next(a for a in out if a.broken)
    assert broken.total < 2000 and broken.answer != broken.prediction


def test_a_certificate_of_bad_luck_is_no_bug():
    """A claim that is false by chance breaks, but does not certify again; more of them than α allows are a bug."""
    g = g_of()
    x = (0.2 * NORMAL)[None]  # truly: P = Φ(0.2), radius 0.2
    (c,) = g.certify(x, n=2000)
    lucky = ucan.Certificate(
        c.norm, c.scope, c.evidence, c.prediction, c.p_lower, None, Region(1.0, 0.6, 2, (D,)), c.alm
    )
    out = attempts_on(g, [(0, x, lucky)], factors=(0.999,))
    assert out[0].broken and not out[0].bug and out[0].recertified is not None and out[0].recertified < 0.3
    first = out[0].to_dict()
    summary = summarise(
        [*out, *(Attempt(**{**first, "idx": i, "claim": str(i), "broken": False}) for i in range(1, 60))]
    )
    assert not summary.is_bug and summary.covered_breaks == 1 <= summary.allowed
    assert "no bug" in in_words(summary)[-1]
    many = summarise([Attempt(**{**first, "idx": i, "claim": str(i)}) for i in range(10)])
    assert many.is_bug and not many.bugs and many.covered_breaks == 10
    shared = summarise(  # thirty inputs answered by one enrolment are one piece of bad luck
        [Attempt(**{**first, "idx": i, "claim": str(max(30, i)), "broken": i <= 30}) for i in range(90)]
    )
    assert not shared.is_bug and shared.broken == {"live": 31} and shared.covered_breaks == 1 and shared.attacked == 90


def test_a_chance_break_of_a_true_claim_is_no_bug():
    """At a level of 0.9 true claims fail the first test often, and they would certify again: the second test tells."""
    g = g_of()
    some = cases(g, 16, n=100_000, low=0.5, high=0.8)
    assert all(c.radius <= float((x @ NORMAL)[0]) for _, x, c in some)  # none is false
    out = attempts_on(g, some, factors=(0.999,), budget=Budget(level=0.9))
    again = [a for a in out if a.again_total]
    assert again and all(a.p_value <= 0.9 and a.again_total >= 20_000 for a in again)
    assert all(a.recertified is None for a in again)
    summary = summarise(out)
    assert not summary.is_bug and summary.broken == {"live": 0} and "None broke" in in_words(summary)[-1]


def test_a_real_break_is_refuted_twice_and_certifies_again(planted, tmp_path):
    g, some = planted
    out = audit_all(g, some, Ledger(tmp_path, {}), factors=(0.999,), budget=QUICK)
    assert all(a.refuted and a.bug and a.changed for a in out)
    assert all(a.again_total >= 10 * QUICK.check and a.again_hits < 0.46 * a.again_total for a in out)


def test_what_chance_allows_is_reckoned_over_all_inputs_that_were_certified():
    """Of 5,000 inputs some five have a false certificate, and `--min-radius` may choose just these."""
    g = g_of(Inflated(1.0))
    (first,) = attempts_on(g, cases(g, 1, n=5000, low=0.9), factors=(0.999,))
    few = [Attempt(**{**first.to_dict(), "idx": 1000 * i, "claim": str(i), "bug": False}) for i in range(6)]
    assert all(a.refuted for a in few)
    assert not summarise(few).is_bug and summarise(few).covered_breaks == 6
    assert summarise(few, skip=1000).is_bug  # six of six


def test_the_share_that_broke_is_not_rounded_down(planted, tmp_path, capsys):
    g, some = planted
    ledger = Ledger(tmp_path, {})
    first, *_ = audit_all(g, some[:1], ledger, factors=(0.999,), budget=QUICK)
    out = [first, *(Attempt(**{**first.to_dict(), "idx": i, "broken": False}) for i in (1, 2))]
    show(summarise(out), out, QUICK, ledger, 0)
    assert "33.4" in capsys.readouterr().out


def test_an_older_ledger_is_read_and_its_breaks_are_tested_again(planted, tmp_path):
    g, some = planted
    audit_all(g, some, Ledger(tmp_path, {}), budget=QUICK)
    path = tmp_path / "attempts.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    new = read_attempts(tmp_path)
    path.write_text("".join(json.dumps({k: v for k, v in line.items() if "again" not in k}) + "\n" for line in lines))
    old = read_attempts(tmp_path)
    assert old != new and all(a.tested_once == a.broken for a in old) and any(a.broken for a in old)
    weak = [Attempt(**{**a.to_dict(), "p_value": 0.0005}) for a in old]  # might be chance: alone it proves nothing
    assert not summarise(weak).is_bug and summarise(weak).broken == summarise(new).broken
    made: list[Attempt] = []
    audit_all(g, some, Ledger(tmp_path, {}), budget=QUICK, on_attempt=made.append)
    assert len(made) == sum(a.broken for a in old) and sorted(map(str, read_attempts(tmp_path))) == sorted(
        map(str, new)
    )


@pytest.mark.parametrize("step", [None, 1 / 255], ids=["real", "grid"])
def test_an_older_attempt_on_the_input_itself_is_made_again(tmp_path, step):
    """Older auditors tested it where the search led nowhere, though other inputs lie inside."""
    g = ucan.SmoothedClassifier(Sure().eval(), ucan.Gaussian(0.25), num_classes=3, step=step)
    x = torch.full((1, 1, 4, 4), 128 / 255)
    cases = [(0, x, g.certify(x, n0=10, n=200)[0])]
    ledger = Ledger(tmp_path, {})
    for one in audit_all(g, cases, ledger, factors=(0.5, 0.999), budget=FEW):
        ledger.add(replace(one, size=0.0).to_dict())
    assert summarise(read_attempts(tmp_path)).alone == 1
    made: list[Attempt] = []
    for _ in range(2):  # once
        again = audit_all(g, cases, Ledger(tmp_path, {}), factors=(0.5, 0.999), budget=FEW, on_attempt=made.append)
        assert summarise(again).attacked == 1 and summarise(read_attempts(tmp_path)).alone == 0
    assert len(made) == 2


def test_an_attempt_is_not_repeated_where_the_input_is_alone_in_its_region(tmp_path):
    g = ucan.SmoothedClassifier(Sure().eval(), ucan.Gaussian(0.25), num_classes=3, step=1.0)
    x = torch.zeros(1, 1, 4, 4)
    cases = [(0, x, g.certify(x, n0=10, n=200)[0])]
    made: list[Attempt] = []
    for _ in range(2):
        audit_all(g, cases, Ledger(tmp_path, {}), factors=(0.999,), budget=FEW, on_attempt=made.append)
    assert len(made) == 1 and not made[0].elsewhere


# --- scopes ---


class Leaning(ucan.Generator):
    """μ(x) = 5x, σ = 1: the counterexample of docs/scopes.md, with a gradient."""

    scope = "frozen"

    def forward(self, x):
        return 5 * x, Scalar(1.0)


class Writing(ucan.Generator):
    """μ(x) writes the class onto the input: 3·tanh(40⟨w, x⟩)·w, as a learned generator comes to do."""

    scope = "frozen"

    def forward(self, x):
        return 3 * torch.tanh(40 * (x @ NORMAL.to(x)))[:, None] * NORMAL.to(x), Diagonal(torch.ones_like(x))


def below_one(y):
    return torch.stack([1 - y[:, 0], y[:, 0] - 1], dim=1)


@pytest.mark.parametrize("model", [below_one, lambda y: (y[:, 0] >= 1).long()], ids=["gradient", "black-box"])
def test_the_counterexample_of_one_dimension_breaks_live_and_not_frozen(model):
    g = ucan.SmoothedClassifier(model, ucan.Gaussian(1.0), Leaning(), num_classes=2)
    x = torch.zeros(1, 1)
    (c,) = g.certify(x, n=20_000)
    live, frozen = (attempts_on(g, [(0, x, c)], mode) for mode in ("live", "frozen"))
    assert [a.broken for a in live] == [True] * 3 and [a.same_as for a in live] == [None, 0.5, 0.5]
    assert not any(a.covered or a.bug for a in live) and live[0].recertified is None
    assert not any(a.broken for a in frozen) and all(a.covered for a in frozen)


def test_noise_that_writes_the_class_breaks_live_and_not_frozen():
    g = ucan.SmoothedClassifier(linear(), ucan.Gaussian(1.0), Writing(), num_classes=2)
    x = torch.randn(6, D, generator=rng(8))
    x = x + (0.1 - x @ NORMAL)[:, None] * NORMAL
    some = [(i, x[i : i + 1], c) for i, c in enumerate(g.certify(x, n=2000))]
    assert all(c.radius > 1.5 for _, _, c in some)  # 15 times the distance to the border
    live, frozen = (summarise(attempts_on(g, some, mode)) for mode in ("live", "frozen"))
    assert live.broken == {"live": 6} and not live.is_bug
    assert frozen.broken == {"frozen": 0} and not frozen.is_bug
    both = " ".join(in_words(summarise(attempts_on(g, some) + attempts_on(g, some, "frozen"))))
    assert "6 broken on the live pipeline, 0 broken with the noise held frozen" in both
    assert (
        "“Whose guarantee it is”" in both
        and "not a bug" in both
        and "None broke where the guarantee covers them" in both
    )


def test_beyond_the_region_nothing_is_promised():
    """A linear classifier flips outside its region; that refutes nothing. Inside it does not."""
    g = g_of()
    (_, x, c), *_ = cases(g, 1)
    inside, _ = attack(g, x, c, factor=0.9)
    beyond, delta = attack(g, x, c, factor=3.0)
    assert inside.covered and not inside.broken and inside.size < 0.9
    assert beyond.broken and 1 <= beyond.size < 3 and not beyond.covered and beyond.recertified is None
    assert not bool(c.region.contains(delta)[0]) and beyond.answer != c.prediction
    for factor in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(InvalidInput, match="finite number above 0"):
            attack(g, x, c, factor=factor)


def test_modes_by_scope():
    assert modes_of("pipeline", "both") == ("live",) and modes_of("frozen", "both") == ("live", "frozen")
    assert modes_of("pipeline", "frozen") == ("frozen",) and modes_of("frozen", "live") == ("live",)
    with pytest.raises(InvalidInput, match="mode"):
        modes_of("frozen", "dead")


# --- what is refused ---


def test_certificates_about_something_else_are_refused():
    g = g_of()
    ((_, x, c),) = cases(g, 1)
    for other, y, what in (
        (g, x + 1, "another input"),
        (g, x.double() + 1e-12, "another input"),  # the same numbers in float32
        (g_of(model=nn.Linear(D, 2).eval()), x, "other weights"),
        (g_of(ucan.Gaussian(2.0), model=g.f.model), x, "noise"),
    ):
        with pytest.raises(InvalidInput, match=what):
            list(audit(other, y, c))
    with pytest.raises(InvalidInput, match="factor"):
        list(audit(g, x, c, factors=(1.5,)))
    with pytest.raises(InvalidInput, match="steps"):
        Budget(steps=0)
    with pytest.raises(InvalidInput, match="level"):
        Budget(level=1.0)


# --- the ledger ---


def test_attempts_are_not_made_again(planted, tmp_path):
    g, some = planted
    plain = audit_all(g, some, Ledger(tmp_path / "plain", {"seed": 0}), budget=QUICK)
    made: list[Attempt] = []
    audit_all(
        g, some[:2], Ledger(tmp_path / "a", {"seed": 0}), factors=(0.5, 0.999), budget=QUICK, on_attempt=made.append
    )
    assert len(made) == 4
    made.clear()
    resumed = audit_all(g, some, Ledger(tmp_path / "a", {"seed": 0}), budget=QUICK, on_attempt=made.append)
    assert len(made) == 12 - 4 and resumed == plain and {a.idx for a in plain} == {0, 1, 2, 3}
    made.clear()
    assert audit_all(g, some, Ledger(tmp_path / "a", {"seed": 0}), budget=QUICK, on_attempt=made.append) == plain
    assert made == []


def test_a_break_at_a_small_factor_holds_at_a_larger_one_after_resumption(tmp_path):
    g = ucan.SmoothedClassifier(below_one, ucan.Gaussian(1.0), Leaning(), num_classes=2)
    x = torch.zeros(1, 1)
    some = [(3, x, *g.certify(x, n=2000))]
    audit_all(g, some, Ledger(tmp_path, {}), "live", (0.5,), QUICK)
    made: list[Attempt] = []
    out = audit_all(g, some, Ledger(tmp_path, {}), "live", (0.5, 0.9), QUICK, made.append)
    assert made == out[1:] and [a.same_as for a in out] == [None, 0.5] and all(a.broken for a in out)


def test_a_line_cut_short_is_dropped(planted, tmp_path):
    g, some = planted
    audit_all(g, some[:1], Ledger(tmp_path, {}), budget=QUICK)
    path = tmp_path / "attempts.jsonl"
    text = path.read_text()
    path.write_text(text[:-20])
    assert len(Ledger(tmp_path, {})) == 2
    audit_all(g, some[:1], Ledger(tmp_path, {}), budget=QUICK)
    assert path.read_text() == text
    path.write_text("{}\n" + text[5:])
    with pytest.raises((StoreError, InvalidInput)):
        Ledger(tmp_path, {})


@pytest.mark.parametrize(
    "line",
    ['{"idx": 1}', "[1]", "3", "null", "{", '{"task": "labels"}', "nobody", '{"idx": 1, "idx": 2}', "attack", "idx"],
)
def test_a_damaged_line_is_named_with_what_to_do(planted, tmp_path, line):
    g, some = planted
    audit_all(g, some[:1], Ledger(tmp_path, {}), factors=(0.9,), budget=QUICK)
    path = tmp_path / "attempts.jsonl"
    (whole,) = path.read_text().splitlines()
    wrong = {"nobody": {"colour": "red"}, "attack": {"attack": 3}, "idx": {"idx": [1]}}
    path.write_text(f"{whole}\n{json.dumps({**json.loads(whole), **wrong[line]}) if line in wrong else line}\n")
    with pytest.raises(StoreError, match=r"attempts.jsonl is damaged: line 2 is not the record of .* Remove this line"):
        Ledger(tmp_path, {})
    path.write_text(f"{whole}\n")
    assert len(Ledger(tmp_path, {})) == 1


def test_lines_that_are_no_text_are_damage(tmp_path):
    (tmp_path / "attempts.jsonl").write_bytes(b"\xff\xfe\n")
    with pytest.raises(StoreError, match=r"attempts.jsonl is damaged: .* Remove it to start the audit again"):
        Ledger(tmp_path, {})


def test_other_settings_are_refused(tmp_path):
    Ledger(tmp_path, {"steps": 10})
    with pytest.raises(InvalidInput, match="steps: the run has 10, asked for 20"):
        Ledger(tmp_path, {"steps": 20})


def test_a_break_is_kept_with_all_that_replays_it(planted, tmp_path):
    g, some = planted
    ledger = Ledger(tmp_path, {})
    out = audit_all(g, some, ledger, budget=QUICK)
    bug = next(a for a in out if a.bug and a.same_as is None)
    record, x, delta = load_break(ledger.path_of(bug.to_dict()))
    assert Attempt.of(record) == bug
    _, same, certificate = some[bug.idx]
    assert torch.equal(x, same) and bool(certificate.region.contains(delta)[0])
    again = replay(g, x, certificate, delta, bug.mode, Budget(check=QUICK.check, seed=bug.votes_seed))
    assert (again.broken, again.hits, again.total) == (True, bug.hits, bug.total)
    assert replay(g, x, certificate, delta, budget=Budget(seed=5, check=50_000)).broken
    with pytest.raises(InvalidInput, match="refutes nothing"):
        replay(g, x, certificate, 10 * delta)
    with pytest.raises(InvalidInput, match="not a break"):
        load_break(tmp_path / "attempts.jsonl")


# --- the command ---


def ucan_says(code: int, *words: object) -> str:
    result = CliRunner().invoke(app, [str(w) for w in words])
    assert result.exit_code == code, (result.output, result.exception)
    return result.stdout


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certification-wise network after one epoch, and certificates of eight digits."""
    pytest.importorskip("sklearn")
    folder = tmp_path_factory.mktemp("digits")
    ucan_says(0, "train", "digits-certification", "--set", "epochs=1", "-o", folder / "net", "-q")
    words = ("--model", folder / "net", "--data", "digits", "--n", 300, "--max", 8, "-q", "-o", folder / "run")
    ucan_says(0, "certify", *words)
    return folder


FAST = ("--steps", 5, "--draws", 4, "--restarts", 1, "-q")


def test_the_command_explains_itself_with_an_example() -> None:
    text = ucan_says(0, "audit", "--help")
    assert "Example" in text and "ucan audit runs/mine" in text


def test_the_command_audits_a_run_and_resumes(digits: Path) -> None:
    run = digits / "run"
    text = ucan_says(0, "audit", run, "--max", 2, *FAST)
    assert (
        "2 of them attacked" in text
        and "2 certificates attacked" in text
        and "“Whose guarantee it is”" in text
        and "frozen" in text
    )
    lines = (run / "audit" / "attempts.jsonl").read_text().splitlines()
    assert len(lines) == 2 * 2 * 3
    found = json.loads(ucan_says(0, "audit", run, "--max", 2, "--json", *FAST))
    assert found["attacked"] == 2 and found["scope"] == "frozen" and not found["bug"]
    assert (run / "audit" / "attempts.jsonl").read_text().splitlines() == lines
    found = json.loads(ucan_says(0, "audit", run, "--max", 1, "--json", "--mode", "live", "--factors", "0.3", *FAST))
    assert [t["factor"] for t in found["by_factor"]] == [0.3] and set(found["broken"]) == {"live"}


def test_the_command_refuses_what_cannot_be_audited(
    digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "one.npz", x=np.zeros((1, 1, 8, 8), dtype=np.float32), y=np.zeros(1, dtype=np.int64))
    for words, said in (
        ((tmp_path / "nothing",), "nothing is not a folder"),
        ((digits / "run", "--min-radius", "99"), "no certificate with radius 99"),
        ((digits / "run", "--factors", "0.5,2"), "--factors"),
        ((digits / "run", "--factors", "many"), "--factors"),
        ((digits / "run", "--model", "collections:Counter", "-o", tmp_path / "a"), "needs its generator"),
        ((digits / "run", "--steps", "0"), "steps must be at least 1"),
        ((digits / "run", "--data", tmp_path / "one.npz"), "are these the same data"),
        ((digits / "run", "-o", tmp_path / "one.npz"), "cannot be read or written"),
    ):
        monkeypatch.setattr(sys, "argv", ["ucan", "audit", *map(str, words)])
        with pytest.raises(SystemExit) as leaving:
            main()
        assert leaving.value.code == 2 and said in capsys.readouterr().err


BRIGHT = """
import torch

def net(batch):
    bright = batch.flatten(1).mean(1) - 0.5
    return torch.stack([-10 * bright, 10 * bright], dim=1)
"""


def test_a_bug_is_exit_code_1_with_pictures_and_all_that_replays_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bright.py").write_text(BRIGHT)
    level = np.linspace(0.505, 0.525, 4, dtype=np.float32)
    x = np.broadcast_to(level[:, None, None, None], (4, 1, 8, 8))
    np.savez(tmp_path / "data.npz", x=x, y=np.ones(4, dtype=np.int64))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    words = ("--model", "bright:net", "--data", "data.npz", "--n", 3000, "--scale", 0.15, "-q")
    ucan_says(0, "certify", *words, "-o", "honest")
    assert "None broke" in ucan_says(0, "audit", "honest", "-q")
    radius = ucan.Gaussian._radius
    monkeypatch.setattr(ucan.Gaussian, "_radius", lambda *a: 1.3 * radius(*a))
    ucan_says(0, "certify", *words, "-o", "faulty")
    text = ucan_says(1, "audit", "faulty", "-q")
    assert "BUG" in text and "replay: faulty/audit/breaks/" in text
    breaks = sorted(path.suffix for path in Path("faulty/audit/breaks").iterdir())
    assert breaks.count(".png") == breaks.count(".safetensors") >= 2
    assert json.loads(ucan_says(1, "audit", "faulty", "-q", "--json"))["bug"] is True


@pytest.mark.parametrize("noise", ["isotropic", "pattern-2", "sigma.npy"])
def test_the_command_audits_a_registry_run_of_ones_own_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, noise: str
) -> None:
    (tmp_path / "bright.py").write_text(BRIGHT)
    x = np.broadcast_to(np.linspace(0.51, 0.52, 2, dtype=np.float32)[:, None, None, None], (2, 1, 8, 8))
    np.savez(tmp_path / "data.npz", x=x, y=np.ones(2, dtype=np.int64))
    np.save(tmp_path / "sigma.npy", np.linspace(0.5, 1.5, 64, dtype=np.float32).reshape(1, 8, 8))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    words = ("--model", "bright:net", "--data", "data.npz", "--n", 500, "--scale", 0.15, "--noise", noise, "-q")
    ucan_says(0, "certify", *words, "--registry", "memory.sqlite", "-o", "run")
    found = json.loads(ucan_says(0, "audit", "run", "--json", *FAST))
    assert found["scope"] == "registry" and found["attacked"] == 2 and not found["bug"]
    assert found["broken"] == {"live": 0, "frozen": 0}


def test_pictures_show_input_perturbation_and_both(tmp_path: Path) -> None:
    from PIL import Image

    x, delta = torch.full((1, 4, 4), 0.25, dtype=torch.float64), torch.zeros(1, 4, 4, dtype=torch.float64)
    delta[0, 1, 2] = 0.5
    with Image.open(save_panels(tmp_path / "a.png", x, delta)) as opened:
        picture = np.asarray(opened)
    times = picture.shape[0] // 4
    small = picture[::times, ::times]
    assert small.shape == (4, 14) and (small[:, [4, 9]] == 255).all()
    assert small[1, 2] == 64 and small[1, 7] == 255 and small[0, 5] == 128 and small[1, 12] == 191
    save_panels(tmp_path / "b.png", x.expand(3, 4, 4), delta.expand(3, 4, 4))
    with Image.open(tmp_path / "b.png") as coloured:
        assert coloured.mode == "RGB"


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("UCAN_DATA_DIR"), reason="UCAN_DATA_DIR does not name the real data")
def test_a_planted_fault_is_caught_on_a_network_for_mnist(tmp_path: Path) -> None:
    """On 40 test images and within the default budget; the same network's honest certificates survive."""
    ucan_says(0, "train", "mnist-isotropic-fast", "--set", "epochs=1", "-o", tmp_path / "net", "-q")
    trained = load_run(tmp_path / "net")
    x, _ = data.load("mnist").batch(range(0, 10_000, 250))
    for law, factors in ((Inflated(1.0), FACTORS), (ucan.Gaussian(1.0), (0.999,))):
        g = ucan.SmoothedClassifier(trained.classifier, law, trained.generator, num_classes=10)
        some = [(i, x[i : i + 1], c) for i, c in enumerate(g.certify(x, n=2000)) if not c.abstained]
        summary = summarise(attempts_on(g, some, factors=factors))
        assert summary.attacked >= 30 and summary.is_bug is isinstance(law, Inflated)
        assert bool(summary.bugs) is summary.is_bug


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("UCAN_DATA_DIR"), reason="UCAN_DATA_DIR does not name the real data")
def test_certification_wise_on_mnist_breaks_live_and_not_frozen(tmp_path: Path) -> None:
    """What docs/scopes.md says of learned per-input noise, measured: its certificates do not hold for its pipeline."""
    ucan_says(0, "train", "mnist-certification-fast", "-o", tmp_path / "net", "-q")
    words = ("--model", tmp_path / "net", "--data", "mnist", "--n", 2000, "--max", 40, "-q", "-o", tmp_path / "run")
    ucan_says(0, "certify", *words)
    found = json.loads(ucan_says(0, "audit", tmp_path / "run", "--min-radius", 0.5, "--json", "-q"))
    assert found["attacked"] >= 20 and found["broken"]["frozen"] == 0
    assert found["broken"]["live"] >= 0.9 * found["attacked"]


# --- a classifier with a memory ---


def remembered(path, kind=ucan.Registry):
    """A registry over noise that writes the class, and inputs on both sides with the certificates that it gave them."""
    g = ucan.SmoothedClassifier(linear(), ucan.Gaussian(1.0), Writing(), num_classes=2)
    x = 0.01 * torch.randn(4, D, generator=rng(8)) + torch.tensor([-1.5, 1.5, -5.0, 5.0])[:, None] * NORMAL
    x = torch.cat([x, x[:1] + 0.01])  # the last one lies in the region of the first
    registry = kind(path)
    outcomes = registry.certify(g, x, n=1000)
    return g, registry, [(i, x[i : i + 1], c) for i, c in enumerate(outcomes)]


def test_a_memory_keeps_to_its_answers_and_the_audit_leaves_it_alone(tmp_path):
    g, registry, some = remembered(tmp_path / "r")
    assert {c.scope for _, _, c in some} == {"registry"} and not any(c.abstained for _, _, c in some)
    assert some[-1][2].evidence.input_hash == some[0][2].evidence.input_hash and len(registry) == len(some) - 1
    before = (tmp_path / "r").read_bytes()
    out = audit_all(g, some, Ledger(tmp_path / "audit", {}), budget=QUICK, registry=registry)
    assert len(registry) == len(some) - 1 and (tmp_path / "r").read_bytes() == before
    assert {(a.mode, a.attack, a.stateful) for a in out} == {("live", "gradient", True), ("frozen", "gradient", False)}
    # Lines of the journal name it as they did before there was a field, and come back with it.
    lines = [json.loads(line) for line in (tmp_path / "audit" / "attempts.jsonl").read_text().splitlines()]
    assert {line["attack"] for line in lines} == {"stateful gradient", "gradient"} and "stateful" not in lines[0]
    assert sorted(map(str, read_attempts(tmp_path / "audit"))) == sorted(map(str, out))
    assert not any(a.broken or a.bug for a in out) and all(a.covered for a in out)
    assert min(a.size for a in out if a.mode == "live" and a.factor == 0.999) > 0.99
    words = " ".join(in_words(summarise(out)))
    assert "0 broken on the classifier with its memory" in words and "nothing was enrolled" in words
    assert "Scope frozen" not in words and "None broke where the guarantee covers them" in words
    # without its memory the same pipeline falls at once
    plain = [(i, x, g.certify(x, n=1000)[0]) for i, x, _ in some[:2]]
    assert summarise(attempts_on(g, plain, budget=QUICK)).broken == {"live": 2}


class Forgetful(ucan.Registry):
    """A planted fault: regions of another answer are not kept away from."""

    def __init__(self, *given):
        super().__init__(*given)
        self._regions.room = lambda point, number, radius, answer: radius


def test_a_memory_that_lets_regions_overlap_is_caught(tmp_path):
    g, registry, some = remembered(tmp_path / "r", Forgetful)
    ledger = Ledger(tmp_path / "audit", {})
    summary = summarise(audit_all(g, some, ledger, mode="live", budget=QUICK, registry=registry))
    assert summary.is_bug and summary.bugs and "answers changed inside a stored region" in in_words(summary)[-1]
    bug = summary.bugs[0]
    assert (bug.hits, bug.total, bug.recertified) == (0, 1, None) and bug.answer != bug.prediction
    record, x, delta = load_break(ledger.path_of(bug.to_dict()))
    certificate = some[bug.idx][2]
    with ucan.Registry(
        ledger.path_of(record).with_suffix(".sqlite")
    ) as kept:  # as it was, the attacker's inputs included
        assert kept.lookup((x.double() + delta).to(x)).answer != certificate.prediction
        assert replay(g, x, certificate, delta, registry=kept).broken


def test_an_enrolment_that_is_false_breaks_frozen_and_counts_once(tmp_path):
    g = g_of(Inflated(1.0))
    x = torch.cat([NORMAL[None], NORMAL[None] + 0.001])
    with ucan.Registry(tmp_path / "r") as registry:
        outcomes = registry.certify(g, x, n=5000)
        some = [(i, x[i : i + 1], c) for i, c in enumerate(outcomes)]
        out = audit_all(g, some, Ledger(tmp_path / "audit", {}), factors=(0.999,), registry=registry)
    summary = summarise(out)
    assert summary.is_bug and summary.broken == {"live": 0, "frozen": 2} and summary.covered_breaks == 1


def test_a_registry_is_asked_for_and_must_be_the_right_one(tmp_path):
    g, registry, some = remembered(tmp_path / "r")
    _, x, c = some[0]
    with pytest.raises(InvalidInput, match="give the registry"):
        list(audit(g, x, c))
    with ucan.Registry(tmp_path / "other") as other, pytest.raises(InvalidInput, match="did not issue"):
        list(audit(g, x, c, registry=other))
    with pytest.raises(InvalidInput, match="did not issue"):
        list(audit(g, x + 9, c, registry=registry))
    out = [a for a, _ in audit(g, x, c, registry=registry, budget=QUICK, factors=(0.9,))]
    assert len(out) == 1 and not out[0].broken
    registry.close()


def test_attempts_on_other_certificates_are_not_mistaken_for_these(tmp_path):
    g = g_of()
    some = cases(g, 2)
    audit_all(g, some, Ledger(tmp_path, {}), budget=QUICK)
    with pytest.raises(InvalidInput, match="another certificate of input 0"):
        audit_all(g, cases(g, 2, n=4000), Ledger(tmp_path, {}), budget=QUICK)


def test_other_noise_than_the_certificates_is_refused():
    g, other = g_of(scale="diagonal"), g_of(scale="dense")
    ((_, x, c),) = cases(g, 1)
    with pytest.raises(InvalidInput, match="other noise"):
        list(audit(other, x, c))


def test_the_command_audits_a_run_made_with_a_registry(
    digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    memory, run = tmp_path / "memory.sqlite", tmp_path / "run"
    words = ("--model", digits / "net", "--data", "digits", "--n", 300, "--max", 5, "-q", "--registry", memory)
    ucan_says(0, "certify", *words, "-o", run)
    before = memory.read_bytes()
    text = ucan_says(0, "audit", run, "--max", 2, *FAST)
    assert "Scope registry" in text and "classifier with its memory" in text and "stateful" in text
    found = json.loads(ucan_says(0, "audit", run, "--max", 2, "--json", *FAST))
    assert found["scope"] == "registry" and set(found["broken"]) == {"live", "frozen"} and not found["bug"]
    assert memory.read_bytes() == before
    memory.rename(tmp_path / "moved.sqlite")
    for extra, said in (
        ((), "give its path with --registry"),
        (("--registry", tmp_path / "nothing"), "give its path with --registry"),
        (("-o", digits / "run" / "audit", "--registry", tmp_path / "moved.sqlite"), "another config:\n  run:"),
    ):
        ucan_says(0, "audit", digits / "run", "--max", 1, *FAST)
        monkeypatch.setattr(sys, "argv", ["ucan", "audit", *map(str, (run, *FAST, *extra))])
        with pytest.raises(SystemExit) as leaving:
            main()
        assert leaving.value.code == 2 and said in capsys.readouterr().err
    ucan_says(0, "audit", run, "--max", 2, "--registry", tmp_path / "moved.sqlite", *FAST)


def test_a_region_without_another_input_is_not_counted_as_attacked() -> None:
    """On a grid a small region holds the input alone: that nothing broke there says nothing."""
    g = ucan.SmoothedClassifier(linear().eval(), ucan.Gaussian(0.25), num_classes=2, step=1 / 4)
    x = (4 * NORMAL[None]).round() / 4
    (small,) = g.certify(x, n0=10, n=11)
    assert 0 < small.radius < 1 / 4
    made = [one for one, _ in audit(g, x, small, "live", (0.5, 0.999), Budget(steps=2, draws=2, restarts=1, check=50))]
    assert {one.size for one in made} == {0.0} and not any(one.elsewhere for one in made)
    summary = summarise(made)
    assert (summary.attacked, summary.alone, summary.tallies) == (0, 1, ())
    assert in_words(summary) == ["Nothing was attacked: no other input was found inside the region of any certificate."]
    moved = replace(made[0], idx=1, size=0.5)
    assert (summarise([*made, moved]).attacked, summarise([*made, moved]).alone) == (1, 1)
    assert "1 more could not be attacked" in in_words(summarise([*made, moved]))[1]


class Sure(nn.Module):
    """Class 0 everywhere, in logits whose gradient is 0."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return torch.tensor([9.0, 0.0, 0.0]).expand(len(batch), 3) + 0 * self.layer(batch.flatten(1)[:, :1])


def sure_numbers(batch: torch.Tensor) -> torch.Tensor:
    return torch.zeros(len(batch), dtype=torch.long)


FEW = Budget(steps=3, draws=4, restarts=1, check=50)


@pytest.mark.parametrize("step", [None, 1 / 255], ids=["real", "grid"])
@pytest.mark.parametrize(
    ("model", "method"), [(sure_numbers, None), (Sure().eval(), None), (Sure().eval(), "gradient")]
)
def test_a_classifier_that_is_sure_of_its_answer_is_attacked_all_the_same(model: Any, method: Any, step: Any) -> None:
    """No vote is lost anywhere: the search has nothing to follow, and must not end at the input itself."""
    g = ucan.SmoothedClassifier(model, ucan.Gaussian(0.25), num_classes=3, step=step)
    x = torch.full((1, 1, 4, 4), 128 / 255)
    (c,) = g.certify(x, n0=10, n=200)
    budget = replace(FEW, attack=method)
    made = [one for one, _ in audit(g, x, c, "live", (0.5, 0.999), budget)]
    assert all(one.elsewhere and one.size > 0.9 * one.factor and not one.broken for one in made)
    summary = summarise(made)
    assert (summary.attacked, summary.alone) == (1, 0) and "no other input" not in " ".join(in_words(summary))


@pytest.mark.parametrize("step", [None, 1 / 255], ids=["real", "grid"])
def test_an_answer_that_every_vote_is_for_is_attacked_elsewhere(step: Any) -> None:
    g = ucan.SmoothedClassifier(Sure().eval(), ucan.Gaussian(0.25), num_classes=3, step=step)
    x = torch.full((1, 1, 4, 4), 128 / 255)
    (answer,) = g.certify(x, n0=10, n=200, top=2)
    found, _ = attack_answer(g, x, answer, budget=FEW)
    assert found.elsewhere and found.size > 0.9


def test_an_answer_on_a_grid_coarser_than_its_region_is_told_apart() -> None:
    g = ucan.SmoothedClassifier(Sure().eval(), ucan.Gaussian(0.25), num_classes=3, step=1.0)
    x = torch.zeros(1, 1, 4, 4)
    (answer,) = g.certify(x, n0=10, n=200, top=2)
    assert 0 < answer.radius < 1
    assert not attack_answer(g, x, answer, budget=FEW)[0].elsewhere


def test_an_input_that_is_its_own_worst_point_is_not_taken_for_the_only_one() -> None:
    """Class 0 has fewest votes at 0 itself, so that every other point of the region is better for the claim."""
    g = ucan.SmoothedClassifier(lambda batch: (batch[:, 0].abs() < 0.1).long(), ucan.Gaussian(1.0), num_classes=2)
    x = torch.zeros(1, 1)
    (c,) = g.certify(x, n0=10, n=2000)
    found, delta = attack(g, x, c, budget=FEW)
    assert c.prediction == 0 and found.elsewhere and delta is not None and bool(delta.any())


def test_a_claim_that_is_false_at_the_only_input_of_its_region_is_broken() -> None:
    g = ucan.SmoothedClassifier(sure_numbers, ucan.Gaussian(0.25), num_classes=2, step=1.0)
    x = torch.zeros(1, 1, 4, 4)
    (c,) = g.certify(x, n0=10, n=200)
    other = ucan.SmoothedClassifier(lambda batch: 1 - sure_numbers(batch), g.law, num_classes=2, step=1.0)
    evidence = replace(c.evidence, model=None, weights_hash=None)
    found, delta = attack(other, x, replace(c, evidence=evidence), budget=FEW)
    assert found.broken and found.size == 0 and delta is not None and found.elsewhere


def test_a_change_too_even_for_whole_steps_takes_a_few_coordinates() -> None:
    """Of 400 coordinates each moves by a seventh of a step: rounded one by one, none of them does."""
    region, x = Region(1.0, 3.0, 2, (400,)), torch.zeros(1, 400)
    delta = torch.linspace(0.1, 0.15, 400)[None] * torch.tensor([1.0, -1.0]).repeat(200)
    z, actual = reachable(x, delta, region, 3.0, step=1.0)
    assert torch.equal(z.double(), actual) and float(region.size(actual)) == pytest.approx(math.sqrt(8))
    assert actual[0, -8:].tolist() == [1, -1] * 4 and not actual[0, :-8].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_least_changes_find_what_else_lies_inside(dtype: torch.dtype) -> None:
    """The third coordinate alone may take a step, and at 1 a number of this precision has its nearest one below."""
    region = Region(torch.tensor([1.0, 0.5, 2.0]), 0.3, 2, (3,))
    x = torch.ones(1, 3, dtype=dtype)
    steps = least_changes(x, region, 0.5)
    assert (steps != 0).sum(1).tolist() == [1, 1] and steps[0].tolist() == [0, 0, 0.5]
    assert len(reachable(x, steps, region, 0.3, step=0.5)[0]) == 2  # the second is pulled back to x itself
    assert reachable(x, steps, region, 0.3, step=0.5)[1].flatten(1).any(1).tolist() == [True, False]
    fine = least_changes(x, region, None)
    thin = Region(torch.tensor([1.0, 0.5, 2.0]), 0.6 * torch.finfo(dtype).eps, 2, (3,))
    assert reachable(x, fine, thin, thin.radius)[1].any() and not reachable(x, 4 * fine, thin, thin.radius)[1].any()


def test_a_gradient_attack_on_class_numbers_is_refused() -> None:
    g = ucan.SmoothedClassifier(sure_numbers, ucan.Gaussian(0.25), num_classes=2)
    x = torch.zeros(1, 4)
    with pytest.raises(InvalidInput, match="no gradient to attack by: use the attack black-box"):
        attack(g, x, g.certify(x, n0=10, n=200)[0], budget=replace(FEW, attack="gradient"))
