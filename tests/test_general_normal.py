"""General normal noise: the laws that it contains, quantiles, brute force, and draws."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.integrate import quad
from scipy.optimize import brentq

import ucan
from test_laws import directions, kept_after
from ucan.errors import InvalidInput, UnsupportedNorm

P = (0.5 + 1e-12, 0.5001, 0.6, 0.75, 0.9, 0.99, 0.9999, 1 - 1e-6, 1 - 1e-12)
BETAS = (1.0, 1.3, 1.5, 2.0, 3.0, 8.0)


@pytest.mark.parametrize(
    ("beta", "other"), [(1.0, ucan.Laplace(0.7)), (2.0, ucan.Gaussian(0.7 / math.sqrt(2)))], ids=["Laplace", "Gaussian"]
)
def test_the_laws_that_it_contains(beta: float, other: ucan.Law) -> None:
    law = ucan.GeneralNormal(0.7, beta=beta)
    for p in P:
        assert law.radius(p, 1, 5) == pytest.approx(other.radius(p, 1, 5), rel=1e-9)
        assert law.radius(p, 1, 5) <= other.radius(p, 1, 5) * (1 + 1e-14)
        assert law.radius(p, 1, 5, 0.01) == pytest.approx(other.radius(p, 1, 5, 0.01), rel=1e-9)
        for r in (0.01, 0.3, 2.0):
            assert law.shifted(p, r, 1, 5) == pytest.approx(other.shifted(p, r, 1, 5), rel=1e-8, abs=1e-15)
    assert law.std(3) == pytest.approx(other.std(3)) and law.radius(1.0, 1, 3) == math.inf


@pytest.mark.parametrize("beta", BETAS)
def test_quantiles_are_those_of_another_library(beta: float) -> None:
    law = ucan.GeneralNormal(0.4, beta=beta)
    for p in P[1:-1]:
        true = stats.gennorm.isf(1 - p, beta, scale=0.4)
        assert law.radius(p, 1, 2) == pytest.approx(true, rel=1e-9) and law.radius(p, 1, 2) <= true * (1 + 1e-13)
        assert law.probability(law.radius(p, 1, 2), 1, 2) == pytest.approx(p, abs=1e-12)
        keeps = stats.gennorm.cdf(true - 0.3, beta, scale=0.4)
        assert law.shifted(p, 0.3, 1, 2) <= keeps and law.shifted(p, 0.3, 1, 2) == pytest.approx(keeps, rel=1e-7)
    assert law.radius(0.5, 1, 2) == 0.0


@pytest.mark.parametrize("p", (0.7, 0.9))
@pytest.mark.parametrize("beta", (1.0, 1.5, 3.0))
def test_no_set_loses_its_majority_within_the_radius_and_one_does_beyond(beta: float, p: float) -> None:
    """Neyman–Pearson on a grid in two dimensions, in five directions of the ℓ1 ball."""
    radius = ucan.GeneralNormal(1.0, beta=beta).radius(p, 1, 2)

    def worst(r: float) -> float:
        def density(z: np.ndarray) -> np.ndarray:
            return np.exp(-(np.abs(z) ** beta).sum(0))

        return min(kept_after(density, (r * v[0], r * v[1]), p, 12.0 if beta < 1.2 else 6.0) for v in directions(1))

    assert worst(radius) >= 0.5 - 0.006 and worst(1.1 * radius) < 0.5 - 0.006


@pytest.mark.parametrize("beta", (1.3, 3.0))
def test_draws_have_its_distribution(beta: float) -> None:
    law = ucan.GeneralNormal.from_std(0.5, dim=3, beta=beta)
    z = law.sample(20_000, (3,), torch.Generator().manual_seed(0), torch.float64).numpy()
    assert stats.kstest(z[:, 1], stats.gennorm(beta, scale=law.scale).cdf).pvalue > 0.01
    assert z.std() == pytest.approx(0.5, rel=0.02) and abs(np.corrcoef(z[:, 0], z[:, 1])[0, 1]) < 0.03


LARGE = (20.0, 150.0, 300.0, 1000.0, 1e5)


@pytest.mark.parametrize("beta", LARGE)
def test_a_large_exponent_is_nearly_uniform_noise_down_to_zero(beta: float) -> None:
    """Against the integral of its density: nothing underflows, and nothing is above the truth."""
    law, half = ucan.GeneralNormal(1.0, beta=beta), math.gamma(1 + 1 / beta)

    def density(t: float) -> float:
        return math.exp(-math.exp(min(700.0, beta * math.log(t)))) if t > 0 else 1.0

    def cdf(z: float) -> float:
        edge = min(abs(z), 0.9)  # below it exp(−t^β) is flat for quad, beyond it falls steeply
        parts = [quad(density, *ends)[0] for ends in ((0, edge), (edge, max(edge, abs(z))))]
        return 0.5 + math.copysign(sum(parts), z) / (2 * half)

    for p in (0.501, 0.6, 0.9, 0.99):
        start = brentq(lambda z, p=p: cdf(z) - p, 0, 3, xtol=1e-14)
        assert law.radius(p, 1, 1) == pytest.approx(start, rel=1e-7) and law.radius(p, 1, 1) <= start * (1 + 1e-9)
        for r in (1e-5, 0.05, 0.3, 0.85, 1.1):
            keeps = cdf(start - r)
            assert law.shifted(p, r, 1, 1) == pytest.approx(keeps, rel=1e-7, abs=1e-15)
            assert law.shifted(p, r, 1, 1) <= keeps * (1 + 1e-9) + 1e-15
    assert law.shifted(0.4, 0.1, 1, 1) == pytest.approx(cdf(brentq(lambda z: cdf(z) - 0.4, -3, 0) - 0.1), rel=1e-7)


@pytest.mark.parametrize("beta", LARGE)
def test_draws_of_a_large_exponent_leave_no_hole_around_zero(beta: float) -> None:
    law = ucan.GeneralNormal(1.0, beta=beta)
    z = law.sample(200_000, (1,), torch.Generator().manual_seed(1), torch.float64).abs().flatten().numpy()
    assert stats.kstest(z[z < 0.5], "uniform", (0, 0.5)).pvalue > 0.01
    assert z.mean() == pytest.approx(math.gamma(2 / beta) / math.gamma(1 / beta), rel=0.01)


def test_it_certifies_and_refuses(tmp_path) -> None:
    law = ucan.GeneralNormal(0.5, beta=1.5)
    g = ucan.SmoothedClassifier(lambda y: (y[:, 0] > 0).long(), law, num_classes=2)
    (c,) = g.certify(torch.tensor([[0.6, 0.0]]), n=20_000, norm=1)
    assert c.prediction == 1 and 0.5 < c.radius <= 0.6  # a half-space: the distance to its border
    from ucan.certificate import load_json, save_json

    save_json(c, tmp_path / "c.json")
    assert load_json(tmp_path / "c.json").evidence.law == law
    with pytest.raises(InvalidInput, match="at least 1"):
        ucan.GeneralNormal(0.5, beta=0.9)
    with pytest.raises(UnsupportedNorm, match="ℓ1"):
        law.radius(0.9, 2, 2)
