"""Noise whose σ changes slowly with the input: the bound against exact Neyman–Pearson, and no break on the live pipeline."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import ucan
from ucan import data
from ucan.audit import Budget, Ledger, audit_all, summarise
from ucan.certificate import load_json, save_json
from ucan.errors import InvalidInput, UnsupportedNorm
from ucan.generators.elastic import InputDependent, elastic_radius, kept, rescaled
from ucan.plan import CertifyPlan
from ucan.runs import levels
from ucan.runs.train import TrainJob, trainer_of
from ucan.training import load_run
from ucan.verify import verify


def exact(p: float, a: float, sigma: float, other: float, dim: int) -> float:
    """The least probability under N(a·e₁, other²I) of a set that has p under N(0, σ²I): the likelihood ratio's, exactly.

    Its level sets are spheres around a·e₁σ²/(σ² − other²); probabilities of balls around there are noncentral chi-squares.
    """
    centre = a * sigma**2 / (sigma**2 - other**2)
    here, there = (centre / sigma) ** 2, ((centre - a) / other) ** 2
    if other > sigma:  # the worst set is a ball
        t = stats.ncx2.ppf(p, dim, here) * sigma**2
        return float(stats.ncx2.cdf(t / other**2, dim, there))
    t = stats.ncx2.isf(p, dim, here) * sigma**2
    return float(stats.ncx2.sf(t / other**2, dim, there))


@pytest.mark.parametrize("dim", [1, 3, 16, 64])
@pytest.mark.parametrize("p", [0.6, 0.9, 0.99])
def test_no_set_keeps_less_than_the_bound(dim: int, p: float) -> None:
    sigma, rate = 0.5, 0.4
    for a in (0.05, 0.2, 0.5):
        bound = kept(p, a, sigma, rate, dim)
        for part in (0.2, 0.6, 1.0):
            for move in (0.3, 1.0):
                for sign in (-1, 1):
                    other = sigma * math.exp(sign * part * rate * a)
                    assert exact(p, move * a, sigma, other, dim) >= bound - 1e-9
        assert bound <= stats.norm.cdf(stats.norm.ppf(p) - a / sigma)


def test_a_stretch_alone_is_the_worst_ball_or_its_outside() -> None:
    """By brute force over radial sets: thresholds on the ratio of the radial densities."""
    dim, s, q = 5, math.exp(0.2), 0.7
    r = np.linspace(1e-4, 12, 400_001)
    for factor in (s, 1 / s):
        before, after = stats.chi.pdf(r, dim), stats.chi.pdf(r / factor, dim) / factor
        order = np.argsort(after / before)
        mass = np.cumsum(before[order]) * (r[1] - r[0])
        assert after[order][mass <= q].sum() * (r[1] - r[0]) >= rescaled(q, 0.2, dim) - 1e-4
    assert rescaled(q, 0.0, dim) == pytest.approx(q) and rescaled(q, 0.3, dim) < rescaled(q, 0.2, dim)


def test_the_radius_is_where_the_bound_reaches_a_half() -> None:
    for dim, rate in ((64, 0.1), (3072, 0.01), (8, 0.0)):
        a = elastic_radius(0.95, 0.05, 0.5, rate, dim)
        assert kept(0.95, a, 0.5, rate, dim) >= 0.5 > kept(0.95, 1.001 * a, 0.5, rate, dim)
        about = stats.norm.ppf(0.95) / (1 / 0.5 + rate * math.sqrt(2 * dim))
        assert a == pytest.approx(about, rel=0.1)
        assert elastic_radius(0.95, 0.01, 0.5, rate, dim) > a  # against a rival that has less
    assert a == pytest.approx(ucan.Gaussian(0.5).radius(0.95, 2, 8), rel=1e-8) and a <= ucan.Gaussian(0.5).radius(
        0.95, 2, 8
    )
    assert elastic_radius(0.5, 0.5, 0.5, 0.1, 8) == 0.0


def smoothed(rate: float = 0.5) -> tuple[ucan.SmoothedClassifier, torch.Tensor]:
    rng = torch.Generator().manual_seed(0)
    references = torch.randn(60, 3, generator=rng)
    net = torch.nn.Linear(3, 2).eval()
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[0.0, 0, 0], [1.0, 0, 0]]))
        net.bias.zero_()
    noise = InputDependent(references, k=5, rate=rate)
    return ucan.SmoothedClassifier(net, ucan.Gaussian(0.4), noise, num_classes=2), torch.randn(12, 3, generator=rng)


def test_far_from_all_references_the_radius_is_a_number() -> None:
    """There σ is thousands, and a stretch over the radius of a fixed σ beyond float64."""
    found = elastic_radius(0.99, 0.01, 5000.0, 0.1, 3)
    assert 0 < found < 10 and kept(0.99, found, 5000.0, 0.1, 3) >= 0.5 > kept(0.99, 1.01 * found, 5000.0, 0.1, 3)
    g = ucan.SmoothedClassifier(
        lambda y: torch.ones(len(y)).long(), ucan.Gaussian(0.5), InputDependent(torch.rand(9, 3), k=3, rate=0.1), 2
    )
    (c,) = g.certify(torch.full((1, 3), 60.0), n=500)
    assert 0 < c.radius < 100


def test_log_sigma_changes_no_faster_than_the_rate() -> None:
    g, x = smoothed()
    rng = torch.Generator().manual_seed(1)
    near = x[:, None] + 0.3 * torch.randn(12, 50, 3, generator=rng)
    moved = (near - x[:, None]).norm(dim=-1)
    there = g.M.sigma(near.reshape(-1, 3)).log().reshape(12, 50)
    assert bool(((there - g.M.sigma(x).log()[:, None]).abs() <= 0.5 * moved + 1e-5).all())
    copies = g.M.perturb(x, g.law, 20_000, rng)
    torch.testing.assert_close(copies.std(0).mean(1), 0.4 * g.M.sigma(x), rtol=0.02, atol=0)


def test_noise_that_is_lost_beside_the_input_is_refused() -> None:
    """Its size is that at the input: at 0, far from all references, σ is infinite here."""
    references, x = 1e8 + torch.randn(50, 4, generator=torch.Generator().manual_seed(0)), torch.full((1, 4), 1e8)
    noise = InputDependent(references, k=3, rate=0.01, middle=0.0)
    g = ucan.SmoothedClassifier(lambda y: (y[:, 0] >= 1e8).long(), ucan.Gaussian(0.3), noise, num_classes=2)
    with pytest.raises(InvalidInput, match="lost in rounding"):
        g.certify(x, n=1000)
    assert g.certify(x.double(), n=1000)[0].abstained  # it lies on the border


def test_certified_verified_attacked_and_kept(tmp_path) -> None:
    g, x = smoothed()
    outcomes = g.certify(x, n=5000)
    made = [(i, c) for i, c in enumerate(outcomes) if not c.abstained]
    assert len(made) >= 8 and all(c.scope == "pipeline" and c.alm == c.radius for _, c in made)
    assert all(c.radius <= abs(float(x[i, 0])) for i, c in made)  # a half-space keeps its side whatever σ is
    i, c = made[0]
    save_json(c, tmp_path / "c.json")
    again = load_json(tmp_path / "c.json")
    assert verify(again, g, x[i : i + 1], n=2000).confirms == "pipeline"
    assert not verify(again, smoothed(rate=0.6)[0], x[i : i + 1], n=2000).stands
    cases = [(i, x[i : i + 1], c) for i, c in made[:6]]
    budget = Budget(steps=10, draws=8, restarts=1, check=500)
    done = audit_all(g, cases, Ledger(tmp_path / "audit", {}), factors=(0.999,), budget=budget)
    assert summarise(done).covered_breaks == 0


@pytest.mark.parametrize("by", ["radius", "alm"])
def test_levels_are_those_of_each_inputs_own_certificate(by: str) -> None:
    """σ differs between inputs, and the radius does not grow with p as the law's: neither may be taken from elsewhere."""
    references = 0.1 * torch.rand(30, 2, generator=torch.Generator().manual_seed(0))
    noise = InputDependent(references, k=5, rate=0.5)
    g = ucan.SmoothedClassifier(lambda y: torch.ones(len(y)).long(), ucan.Gaussian(0.5), noise, num_classes=2)
    x, asked = torch.tensor([[1.0, 1.0], [0.05, 0.05]]), tuple(k / 100 for k in range(300))
    certified = [getattr(c, by) for c in g.certify(x, n0=10, n=500, bound="anytime")]
    assert certified[1] < 0.8 * certified[0]
    found = levels.Levels((levels.Claim(2.0, by, asked),), 2)
    dataset, plan = data.InMemory(x, torch.tensor([1, 1])), CertifyPlan(n0=10, n=500, bound="anytime")
    assert [*levels.decide(g, dataset, found, [0, 1], plan)]
    assert found.reached[f"l2 {by}"] == [sum(size >= level for level in asked) for size in certified]


def test_votes_stop_when_the_radius_that_was_asked_for_is_reached() -> None:
    g, _ = smoothed()
    x = torch.zeros(6, 3) + torch.tensor([1.0, 0, 0])
    x[:, 1] = torch.arange(6) / 10
    outcomes = g.certify(x, n=20_000, stop=0.3)
    assert all(c.radius >= 0.3 and c.evidence.n < 20_000 for c in outcomes)
    assert all(verify(c, g, x[i : i + 1], n=500).stands for i, c in enumerate(outcomes))


def test_trained_by_name_and_found_again(tmp_path) -> None:
    """A run keeps references and middle; what is loaded has the same σ."""
    changes = ["epochs=1", 'generator={kind="input-dependent", k=5, rate=0.02, most=300}', "law.scale=0.25"]
    trainer_of(TrainJob(settings="digits-isotropic", changes=changes, device="cpu"), tmp_path / "run").run()
    run, digits = load_run(tmp_path / "run"), data.load("digits", "train")
    g = ucan.SmoothedClassifier(run.classifier, run.law, run.generator, num_classes=10)
    x = torch.stack([digits[i][0] for i in range(400)])
    made = InputDependent(x[:300], k=5, rate=0.02)
    assert isinstance(g.M, InputDependent) and g.M.references.shape == (300, 1, 8, 8)
    torch.testing.assert_close(g.M.sigma(x[300:]), made.sigma(x[300:]))
    assert made.sigma(x[300:]).std() > 1e-3 and g.certify(x[300:302], n=200)[0].scope == "pipeline"


def test_what_it_refuses() -> None:
    references = torch.randn(10, 4)
    for make, words in (
        (lambda: InputDependent(references, k=10), "k must be"),
        (lambda: InputDependent(references, k=3, rate=-1.0), "rate"),
        (lambda: InputDependent(references[0], k=1), "references must be"),
    ):
        with pytest.raises(InvalidInput, match=words):
            make()
    noise = InputDependent(references, k=3)
    with pytest.raises(UnsupportedNorm, match="ℓ2"):
        noise.check_claim(ucan.Gaussian(0.5), 1)
    with pytest.raises(InvalidInput, match="Gaussian law"):
        noise.check_claim(ucan.Laplace(0.5))


class Faster(InputDependent):
    """Its σ may change at any rate."""

    def sigma(self, x: torch.Tensor) -> torch.Tensor:
        return super().sigma(x) ** 10


class Quiet(InputDependent):
    """It draws a tenth of the noise."""

    def draw(self, x: torch.Tensor, law: ucan.Law, n: int, rng: torch.Generator) -> torch.Tensor:
        return 0.1 * super().draw(x, law, n, rng)


class Sharp(ucan.Composed):
    """Its second look has a hundredth of the noise."""

    def second_scale(self, y1: torch.Tensor, law: ucan.Law) -> torch.Tensor:
        return 0.01 * super().second_scale(y1, law)


class Uncut(ucan.Splitting):
    """It has no cells."""

    def _middle(self, k: torch.Tensor, t: torch.Tensor, widths: torch.Tensor) -> torch.Tensor:
        return k.double() / self.steps + 0 * t


class Boastful(Faster):
    """It says that its parent's proof is about less, and about something else."""

    proven = ("boast",)

    def boast(self) -> None:
        """Of no use."""


@pytest.mark.parametrize("kind", [Faster, Quiet, Boastful, Sharp, Uncut])
def test_a_subclass_with_copies_of_its_own_does_not_keep_the_theorem_of_its_parent(kind: type[ucan.Generator]) -> None:
    references = torch.rand(30, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    made: dict[type, Any] = {Sharp: lambda: Sharp(1, norm=2), Uncut: lambda: Uncut((1, 2, 2), 10)}
    noise = made.get(kind, lambda: kind(references, k=3, rate=0.1))()
    law = ucan.Uniform(1.0) if kind is Uncut else ucan.Gaussian(0.5)
    step = 0.1 if kind is Uncut else None
    g = ucan.SmoothedClassifier(lambda b: (b.sum((1, 2, 3)) > 0).long(), law, noise.eval(), 2, model_id="m", step=step)
    for ask in (lambda x: g.certify(x, n=100, norm=1 if kind is Uncut else 2), lambda x: g.predict(x, n=100)):
        with pytest.raises(
            ucan.InvalidInput, match=r"overrides .*, but inherits the regions of .* override region, too"
        ):
            ask(torch.ones(1, 1, 2, 2))
