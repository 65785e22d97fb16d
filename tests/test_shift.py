"""What is left of a set's probability after a move: against 50 digits, one-dimensional Neyman–Pearson sets, and simulation."""

import math
from dataclasses import dataclass
from typing import ClassVar

import mpmath as mp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import ucan
from ucan import ExpInf, Gaussian, InvalidInput, Laplace, Law, PowerLaw, Uniform, UnsupportedNorm

INF = math.inf
PROBABILITIES = (1e-300, 1e-12, 0.001, 0.2, 0.4999, 0.5, 0.5001, 0.8, 0.999, 1 - 1e-12)
MOVES = (1e-9, 0.01, 0.3, 1.0, 4.0)
ROWS = [
    (Gaussian(0.7), 1),
    (Gaussian(0.7), 2),
    (Gaussian(0.7), INF),
    (Laplace(0.7), 1),
    (ExpInf(0.7), 1),
    (ExpInf(0.7), INF),
    (Uniform(0.7), 1),
    (Uniform(0.7), INF),
    (PowerLaw(0.7, a=6.5), 1),
]
TIGHT = ROWS[:4] + ROWS[5:8]


def root(f):
    """Where f, increasing, crosses 0, in 50 digits."""
    low, high = mp.mpf(-1), mp.mpf(1)
    while f(high) < 0:
        high *= 2
    while f(low) > 0:
        low *= 2
    for _ in range(220):
        middle = (low + high) / 2
        low, high = (middle, high) if f(middle) < 0 else (low, middle)
    return low


def normal(t):
    return mp.erfc(-t / mp.sqrt(2)) / 2


def laplace(t):
    return mp.exp(t) / 2 if t < 0 else 1 - mp.exp(-t) / 2


@pytest.mark.parametrize("dim", (1, 3, 3072))
@pytest.mark.parametrize(
    "law, norm, cdf",
    [(Gaussian(0.7), 2, normal), (Gaussian(0.7), INF, normal), (Laplace(0.7), 1, laplace), (ExpInf(0.7), INF, laplace)],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_half_spaces_in_fifty_digits(law, norm, cdf, dim):
    with mp.workdps(50):
        factor = mp.sqrt(dim) if isinstance(law, Gaussian) and norm == INF else 1
        for p in PROBABILITIES:
            start = root(lambda t, p=p: cdf(t) - mp.mpf(p))
            for r in MOVES:
                truth = cdf(start - mp.mpf(r) / mp.mpf(law.scale) * factor)
                found = law.shifted(p, r, norm, dim)
                assert mp.mpf(found) <= truth
                assert mp.mpf(found) >= truth * (1 - mp.mpf("1e-10")) or truth < 1e-290


@pytest.mark.parametrize("dim", (1, 3, 3072))
@pytest.mark.parametrize("norm", (1, INF))
def test_the_volume_that_two_cubes_do_not_share_in_fifty_digits(norm, dim):
    with mp.workdps(50):
        for p in PROBABILITIES:
            for r in MOVES:
                half = min(mp.mpf(1), mp.mpf(r) / (2 * mp.mpf(0.7)))
                truth = max(mp.mpf(0), mp.mpf(p) - (half if norm == 1 else 1 - (1 - half) ** dim))
                found = Uniform(0.7).shifted(p, r, norm, dim)
                assert mp.mpf(found) <= truth <= mp.mpf(found) + mp.mpf("3e-12")


def density(law, z):
    """Of one coordinate in one dimension, at λ = 1."""
    if isinstance(law, Gaussian):
        return np.exp(-z * z / 2)
    if isinstance(law, Uniform):
        return (np.abs(z) <= 1).astype(float)
    return (1 + np.abs(z)) ** -law.a if isinstance(law, PowerLaw) else np.exp(-np.abs(z))


@pytest.mark.parametrize("law, norm", ROWS, ids=str)
def test_never_above_the_neyman_pearson_set_in_one_dimension(law, norm):
    """The set of mass p with the least mass after the move takes the points where the moved density is relatively least."""
    step = 1e-3
    z = np.arange(-60, 60, step) + step / 2
    for r in (0.2, 0.5, 1.3):
        before, after = density(law, z), density(law, z - round(r / step) * step)
        before, after = before / before.sum(), after / after.sum()
        order = np.argsort(after / np.maximum(before, 1e-300), kind="stable")
        order = order[before[order] > 0]
        mass, moved = np.cumsum(before[order]), np.cumsum(after[order])
        for p in (0.05, 0.3, 0.5, 0.7, 0.95):
            truth = np.interp(p, mass, moved)
            found = law.shifted(p, r * law.scale, norm, 1)
            assert found <= truth + 2e-3
            if (law, norm) in TIGHT:
                assert found == pytest.approx(truth, abs=2e-3)


@pytest.mark.parametrize("law, norm", ROWS, ids=str)
def test_never_above_the_neyman_pearson_set_in_three_dimensions(law, norm):
    n, rng = 200_000, torch.Generator().manual_seed(3)
    draws = law.sample(n, (3,), rng, torch.float64).numpy() / law.scale
    again = law.sample(n, (3,), rng, torch.float64).numpy() / law.scale

    def log_density(z):
        size = np.abs(z).max(1)
        if isinstance(law, Gaussian):
            return -(z * z).sum(1) / 2
        if isinstance(law, Uniform):
            return np.where(size <= 1, 0.0, -1e9)
        if isinstance(law, PowerLaw):
            return -law.a * np.log1p(size)
        return -size if isinstance(law, ExpInf) else -np.abs(z).sum(1)

    for direction in ([1.0, 0, 0], [1.0, 1, 1], [1.0, -1, 0.3]):
        unit = np.array(direction) / np.linalg.norm(direction, ord=norm)
        for r in (0.3, 1.0):
            # The log-ratio of moved to unmoved density, under the noise and under the moved noise.
            here = log_density(draws - r * unit) - log_density(draws) + 1e-9 * np.arange(n)
            there = log_density(again) - log_density(again + r * unit) + 1e-9 * np.arange(n)
            for p in (0.2, 0.5, 0.8, 0.97):
                threshold = np.quantile(here, p)
                truth = (there <= threshold).mean()
                assert law.shifted(p, r * law.scale, norm, 3) <= truth + 0.01


@pytest.mark.parametrize("law, norm", ROWS, ids=str)
@pytest.mark.parametrize("dim", (1, 3))
def test_a_move_by_the_radius_leaves_a_half(law, norm, dim):
    for p in (0.6, 0.9, 0.999):
        r = law.radius(p, norm, dim)
        assert law.shifted(p, r, norm, dim) == pytest.approx(0.5, abs=1e-9)
        assert law.shifted(p, 0.99 * r, norm, dim) > 0.5


@pytest.mark.parametrize("law, norm", ROWS, ids=str)
@given(
    p=st.floats(0, 1),
    q=st.floats(0, 1),
    r=st.floats(0, 20),
    s=st.floats(0, 20),
)
def test_more_mass_keeps_more_and_a_longer_move_keeps_less(law, norm, p, q, r, s):
    (p, q), (r, s) = sorted((p, q)), sorted((r, s))
    assert 0 <= law.shifted(p, s, norm, 3) <= law.shifted(p, r, norm, 3) + 1e-13 <= p + 1e-13
    assert law.shifted(p, r, norm, 3) <= law.shifted(q, r, norm, 3) + 1e-13


@pytest.mark.parametrize("law, norm", ROWS, ids=str)
def test_the_ends(law, norm):
    assert law.shifted(0.3, 0.0, norm, 3) == 0.3 and law.shifted(1.0, 0.0, norm, 3) == 1.0
    assert law.shifted(0.0, 0.5, norm, 3) == 0.0
    finite = isinstance(law, Uniform | PowerLaw) or (isinstance(law, ExpInf) and norm == 1)
    assert (law.shifted(1.0, 100.0, norm, 3) == 0.0) is finite  # noise that is everywhere leaves nothing of a null set
    grid = law.shifted(np.array([[0.2], [0.9]]), np.array([0.0, 0.1, 5.0]), norm, 3)
    assert grid.shape == (2, 3) and grid[1, 0] == 0.9
    assert grid[1, 1] == law.shifted(0.9, 0.1, norm, 3)


def test_what_cannot_be_answered_is_refused():
    for r in (-0.1, math.nan, math.inf):
        with pytest.raises(InvalidInput, match="r must be finite"):
            Gaussian(1.0).shifted(0.9, r)
    with pytest.raises(InvalidInput, match="p must lie"):
        Gaussian(1.0).shifted(1.1, 0.1)
    with pytest.raises(UnsupportedNorm):
        Laplace(1.0).shifted(0.9, 0.1, norm=2)
    with pytest.raises(InvalidInput, match="give dim="):
        Uniform(1.0).shifted(0.9, 0.1, norm=INF)

    @dataclass(frozen=True)
    class Silent(Law):
        norms: ClassVar[tuple[float, ...]] = (2,)

        def _draw(self, n, dim, rng, dtype):
            raise NotImplementedError

        def _unit_std(self, dim):
            return 1.0

        def _radius(self, p_a, p_b, norm, dim):
            return p_a - p_b

    assert Silent(1.0).radius(0.9) == pytest.approx(0.8)
    with pytest.raises(InvalidInput, match=r"Silent noise has no known bound .* implement _shifted"):
        Silent(1.0).shifted(0.9, 0.1)


def test_noise_with_regions_of_its_own_must_say_that_probabilities_shift_so():
    """A region that agrees with the law's at one probability says nothing about other sets: here it ends at 0.3."""

    class Capped(ucan.Fixed):
        def at(self, x):
            return self

        def region(self, law, p, norm, x, p_b=None):
            found = super().region(law, p, norm, x, p_b)
            return ucan.Region(1.0, min(found.radius, 0.3), found.norm, found.shape)

    x = torch.full((1, 2), 3.0)
    for noise, claims in ((ucan.Fixed(1.0), True), (Capped(1.0), False)):
        g = ucan.SmoothedRegressor(lambda b: b, ucan.Gaussian(0.5), noise)
        if claims:
            assert g.certify(x, radius=0.5, n=500)[0].region.radius == 0.5
            continue
        with pytest.raises(InvalidInput, match="one class"):
            g.certify(x, radius=0.5, n=500)


def test_that_probabilities_shift_so_is_not_inherited_by_other_regions():
    class Larger(ucan.Composed):
        def region(self, law, p, norm, x, p_b=None):
            found = super().region(law, p, norm, x, p_b)
            return ucan.Region(1.0, 10 * found.radius, found.norm, found.shape)

    class Renamed(ucan.Composed):
        """Regions as they were."""

    x, net = torch.full((1, 2), 3.0), torch.nn.Identity().eval()
    law = ucan.Gaussian(0.5)
    ucan.SmoothedRegressor(lambda b: b, law, Renamed(net=net, norm=2)).certify(x, radius=0.1, n=200)
    with pytest.raises(InvalidInput, match="one class"):
        ucan.SmoothedRegressor(lambda b: b, law, Larger(net=net, norm=2)).certify(x, radius=0.1, n=200)


@pytest.mark.parametrize("rate", [0.5, 0.01, 1e-4])
def test_noise_whose_regions_are_not_the_laws_times_a_factor_is_refused(rate):
    """σ that changes with the input has a theorem about one class; T_r of its law would claim too much."""
    references = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    noise = ucan.InputDependent(references, k=5, rate=rate)
    g = ucan.SmoothedClassifier(lambda b: b[:, :2], ucan.Gaussian(0.5), noise, num_classes=2)
    x = torch.tensor([[1.5, 0.0, 0.0]])
    assert not g.certify(x, n=500)[0].abstained
    for asked in ({"top": 1}, {"confidence": 0.5}):
        with pytest.raises(InvalidInput, match="one class"):
            g.certify(x, n=500, **asked)
    with pytest.raises(InvalidInput, match="one class"):
        ucan.SmoothedRegressor(lambda b: b, ucan.Gaussian(0.5), noise).certify(x, radius=0.1, n=500)
