"""How far a new region may reach: against linear programs, numerical minimisation and sampling; never too far."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog, minimize

from ucan import UnsupportedNorm
from ucan.registry.separation import allowed_radius, check_kind, may_contain, outer_radius, size_bounds
from ucan.registry.sketch import CELLS, Cells, Index
from ucan.scales import DCT, Basis, BlockDiagonal, Dense, Diagonal, LowRank, Scalar

INF = math.inf
NORMS = (1, 2, INF)
every_norm = pytest.mark.parametrize("norm", NORMS)


def orthonormal(rng, dim):
    return torch.from_numpy(np.linalg.qr(rng.normal(size=(dim, dim)))[0])


def diagonal(rng, dim, spread=1.0):
    return Diagonal(torch.from_numpy(np.exp(spread * rng.normal(size=dim))))


FULL = {
    "dense": lambda rng, d: Dense(torch.from_numpy(rng.normal(size=(d, d)) + 2 * np.eye(d))),
    "basis": lambda rng, d: Basis(orthonormal(rng, d), torch.from_numpy(rng.uniform(0.2, 2, d))),
    "dct": lambda rng, d: DCT(torch.from_numpy(rng.uniform(0.2, 2, (2, d // 2)))),
    "low rank": lambda rng, d: LowRank(
        torch.from_numpy(rng.uniform(0.2, 2, d)), torch.from_numpy(rng.normal(size=(d, 2)))
    ),
    "blocks": lambda rng, d: BlockDiagonal(
        [torch.from_numpy(rng.normal(size=(d // 2, d // 2)) + 2 * np.eye(d // 2))] * 2
    ),
}


def distance_by_optimiser(norm, offset, own, other, radius):
    """min ‖Σⱼ⁻¹(Δ + Σᵢw)‖ₚ over ‖w‖ₚ ≤ R, by a linear program or by SLSQP: shares nothing with the formulas."""
    d = len(offset)
    a_own, a_other = np.linalg.inv(own.dense(d).numpy()), other.dense(d).numpy()
    b, m = a_own @ offset, a_own @ a_other
    if norm == 2 and radius == 0:  # one point, around which SLSQP would go in circles
        return float(np.linalg.norm(b))
    if norm == 2:

        def cost(w):
            return float(np.sum((b + m @ w) ** 2))

        def slope(w):
            return 2 * m.T @ (b + m @ w)

        ball = {"type": "ineq", "fun": lambda w: radius**2 - w @ w, "jac": lambda w: -2 * w}
        best = math.inf
        for start in (np.zeros(d), -radius * b / (1e-12 + np.linalg.norm(b)) / 2):
            found = minimize(cost, start, jac=slope, constraints=[ball], options={"ftol": 1e-15, "maxiter": 1000})
            w = found.x * min(1, radius / max(1e-300, np.linalg.norm(found.x)))
            best = min(best, math.sqrt(cost(w)))
        return best
    n = d if norm == 1 else 1  # slack variables: one a coordinate, or one for all
    share = np.eye(d) if norm == 1 else np.ones((d, 1))
    eye, zero = np.eye(d), np.zeros((d, n))
    rows = [np.hstack([m, -share, zero]), np.hstack([-m, -share, zero])]  # |b + Mw| ≤ t
    rows += [np.hstack([eye, zero, -share]), np.hstack([-eye, zero, -share])]  # |w| ≤ s
    rows.append(np.hstack([np.zeros(d + n), np.ones(n)])[None])  # Σs ≤ R
    bound = np.concatenate([-b, b, np.zeros(2 * d), [radius]])
    cost = np.concatenate([np.zeros(d), np.ones(n), np.zeros(n)])
    free = [(None, None)] * d + [(0, None)] * (2 * n)
    return linprog(cost, A_ub=np.vstack(rows), b_ub=bound, bounds=free, method="highs").fun


@every_norm
@given(seed=st.integers(0, 10**6), dim=st.sampled_from([1, 2, 3, 7]), spread=st.sampled_from([0.0, 0.5, 2.0]))
def test_elementwise_scales_agree_with_the_optimiser(norm, seed, dim, spread):
    rng = np.random.default_rng(seed)
    own, other = diagonal(rng, dim, spread), diagonal(rng, dim, spread)
    if seed % 5 == 0:
        other = Scalar(0.7)
    offset = rng.normal(size=dim) * 2
    radius = float(rng.choice([0.0, 1e-6, 0.3, 1.0, 3.0]))
    allowed = allowed_radius(norm, offset, own, other, radius)
    truth = distance_by_optimiser(norm, offset, own, other, radius)
    assert allowed <= truth * (1 + 1e-7) + 1e-7
    assert allowed >= truth * (1 - 1e-6) - 1e-6


@pytest.mark.parametrize("kind", FULL)
@given(seed=st.integers(0, 10**6))
def test_full_scales_agree_with_the_optimiser(kind, seed):
    rng, dim = np.random.default_rng(seed), 6
    own = FULL[kind](rng, dim)
    other = FULL[list(FULL)[seed % len(FULL)]](rng, dim) if seed % 3 else diagonal(rng, dim)
    offset, radius = rng.normal(size=dim) * 4, float(rng.choice([0.0, 0.2, 1.0]))
    for a, b in ((own, other), (other, own), (own, own)):
        allowed = allowed_radius(2, offset, a, b, radius)
        truth = distance_by_optimiser(2, offset, a, b, radius)
        assert allowed <= truth * (1 + 1e-6) + 1e-6
        assert allowed >= truth * (1 - 1e-5) - 1e-5


@every_norm
@given(seed=st.integers(0, 10**6), dim=st.sampled_from([2, 5, 40]))
def test_no_point_is_in_both_regions(norm, seed, dim):
    """Soundness by attack: the points of one region that come nearest to the other's centre are not in the other."""
    rng = np.random.default_rng(seed)
    own, other = diagonal(rng, dim, 0.7), diagonal(rng, dim, 0.7)
    offset, radius = rng.normal(size=dim), float(rng.uniform(0, 1.5))
    allowed = allowed_radius(norm, offset, own, other, radius)
    if allowed == 0:
        return
    s_own, s_other = own.sigma.numpy(), other.sigma.numpy()
    weights = rng.dirichlet(np.ones(dim), size=300)
    steps = np.concatenate(
        [rng.uniform(-1, 1, (300, dim)), np.sign(offset) * weights, np.sign(offset) * np.ones((1, dim))]
    )
    steps = steps / np.linalg.norm(steps, ord=norm, axis=1, keepdims=True) * allowed
    points = steps * s_own
    inside = np.linalg.norm((points - offset) / s_other, ord=norm, axis=1)
    assert (inside >= radius * (1 - 1e-12)).all()
    segment = offset * np.linspace(0, 1, 2001)[:, None]
    in_own = np.linalg.norm(segment / s_own, ord=norm, axis=1) < allowed
    in_other = np.linalg.norm((segment - offset) / s_other, ord=norm, axis=1) < radius
    assert not (in_own & in_other).any()


@every_norm
def test_inside_there_is_no_room(norm):
    rng = np.random.default_rng(0)
    own, other = diagonal(rng, 5), diagonal(rng, 5)
    offset = 0.1 * rng.normal(size=5)
    assert allowed_radius(norm, offset, own, other, 50.0) == 0.0
    size = float(torch.linalg.vector_norm(other.solve(torch.from_numpy(offset)), ord=norm))
    assert allowed_radius(norm, offset, own, other, size) == 0.0  # touching
    assert 0 < allowed_radius(norm, offset, own, other, size * 0.999) < 0.1
    assert allowed_radius(norm, np.zeros(5), own, other, 0.0) == 0.0


def test_the_rule_is_symmetric_and_scales():
    rng = np.random.default_rng(1)
    a, b, offset = diagonal(rng, 6), diagonal(rng, 6), 5 * rng.normal(size=6)
    for norm in NORMS:
        r = allowed_radius(norm, offset, a, b, 0.4)
        assert allowed_radius(norm, -offset, b, a, r) == pytest.approx(0.4, rel=1e-6)
        assert allowed_radius(norm, 7 * offset, a, b, 2.8) == pytest.approx(7 * r, rel=1e-7)


def test_two_balls_of_one_scale():
    offset = np.array([3.0, 4.0])
    assert allowed_radius(2, offset, Scalar(0.5), Scalar(0.5), 4.0) == pytest.approx(6.0, rel=1e-8)
    assert allowed_radius(1, offset, Scalar(0.5), Scalar(0.5), 4.0) == pytest.approx(10.0, rel=1e-8)
    assert allowed_radius(INF, offset, Scalar(0.5), Scalar(0.5), 4.0) == pytest.approx(4.0, rel=1e-8)


def test_a_large_full_scale_gets_a_sound_bound_without_a_decomposition():
    shape = (3, 40, 40)
    rng = np.random.default_rng(2)
    a, b = (DCT(torch.from_numpy(rng.uniform(0.5, 1, shape))) for _ in range(2))
    offset = rng.normal(size=4800)
    allowed = allowed_radius(2, offset, a, b, 1.0)
    size = float(torch.linalg.vector_norm(a.solve(torch.from_numpy(offset)[None])))
    assert size - 2.01 < allowed < size - 0.5
    assert allowed_radius(2, offset, a, a, 1.0) == pytest.approx(size - 1, rel=1e-8)


@pytest.mark.parametrize("kind", FULL)
def test_a_full_scale_is_for_l2(kind):
    scale = FULL[kind](np.random.default_rng(0), 6)
    check_kind(scale, 2)
    for norm in (1, INF):
        with pytest.raises(UnsupportedNorm, match="ℓ2"):
            check_kind(scale, norm)


@pytest.mark.parametrize("kind", FULL)
def test_the_size_of_an_offset_is_bounded_from_both_sides_at_any_condition(kind):
    rng = np.random.default_rng(3)
    scale, offset = FULL[kind](rng, 6), rng.normal(size=6)
    truth = float(np.linalg.norm(np.linalg.solve(scale.dense(6).numpy(), offset)))
    low, high = size_bounds(scale, 2, offset)
    assert low <= truth <= high and high - low < 1e-9 * truth
    bad = Dense(torch.diag(torch.tensor([1e-9, 1.0], dtype=torch.float64)) @ orthonormal(rng, 2))
    low, high = size_bounds(bad, 2, np.array([1.0, 1.0]))
    assert low <= math.hypot(1e9, 1) <= high


@every_norm
@given(seed=st.integers(0, 10**6))
def test_the_outer_ball_holds_the_region(norm, seed):
    rng = np.random.default_rng(seed)
    scale = diagonal(rng, 4)
    directions = np.concatenate([rng.normal(size=(200, 4)), np.eye(4), np.ones((1, 4))])
    edge = 1.3 * directions / np.linalg.norm(directions, ord=norm, axis=1, keepdims=True) * scale.sigma.numpy()
    outer = outer_radius(scale, norm, 1.3, 4)
    longest = float(np.linalg.norm(edge, axis=1).max())
    assert longest <= outer and (norm == 2 or outer <= longest * 1.000001)
    full = FULL["dense"](rng, 4)
    assert np.linalg.svd(full.dense(4).numpy())[1].max() <= outer_radius(full, 2, 1.0, 4) * (1 + 1e-12)


# --- the filter ---

SHAPES = [(5,), (108,), (500,), (1, 28, 28), (3, 32, 32), (3, 7, 200), (200, 2, 3), (4, 5, 6, 7)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sketches_never_lie_further_apart_than_what_they_stand_for(shape):
    rng, cells = np.random.default_rng(0), Cells(shape)
    dim = math.prod(shape)
    for scale in (1e-3, 1.0, 1e4):
        x, z = scale * rng.normal(size=(2, dim))
        near = x + 1e-3 * scale * rng.normal(size=dim)
        for other in (z, near, x + scale, 2 * x):
            apart = np.linalg.norm(cells.sketch(x).astype(float) - cells.sketch(other).astype(float))
            assert apart <= np.linalg.norm(x - other) + 1e-6 * (np.linalg.norm(x) + np.linalg.norm(other))
    assert cells.length <= 2 * CELLS + 1
    if dim <= CELLS:
        assert apart == pytest.approx(np.linalg.norm(x - 2 * x), rel=1e-5)  # nothing is lost


@pytest.mark.parametrize("level", (0.0, 30.0, 1e4))
def test_the_filter_leaves_out_no_region_that_matters(level):
    rng, cells = np.random.default_rng(0), Cells((3, 32, 32))
    centres = level + rng.normal(size=(400, 3072)) * rng.choice([0.01, 0.1, 1.0], size=(400, 1))
    reach = rng.uniform(0, 30, 400)
    index = Index(cells.length)
    rows = [(i + 1, i % 3, reach[i], cells.sketch(c).tobytes()) for i, c in enumerate(centres)]
    index.extend(rows[:150])
    index.extend(rows[150:])
    assert index.count == index.last == 400
    for within in (0.0, 2.0):
        for q in (centres[7], centres[9] + 0.01 * rng.normal(size=3072), level + rng.normal(size=3072)):
            distance = np.linalg.norm(centres - q, axis=1) - reach
            ids, gaps, _ = index.near(cells.sketch(q), within)
            assert set(np.flatnonzero(distance <= within) + 1) <= set(ids)
            assert (gaps <= distance[ids - 1] + 1e-9).all() and (np.diff(gaps) >= 0).all()
            others, _, _ = index.near(cells.sketch(q), within, answer=1)
            assert set(others) == {i for i in ids if (i - 1) % 3 != 1}


@pytest.mark.parametrize("noise", (0.0, 3e-7, 1e-6))
def test_one_product_decides_as_all_of_them_do(noise):
    """A basis that is orthonormal only about: whatever the short way says, the long way says as well."""
    rng, d = np.random.default_rng(0), 40
    q = np.linalg.qr(rng.normal(size=(d, d)))[0] + noise * rng.normal(size=(d, d))
    scale = Basis(torch.from_numpy(q), torch.from_numpy(np.geomspace(0.01, 10, d)))
    inverse = np.linalg.inv(q @ np.diag(np.geomspace(0.01, 10, d)))
    for _ in range(300):
        offset = rng.normal(size=d) * 10.0 ** rng.uniform(-3, 3)
        size = float(np.linalg.norm(inverse @ offset))
        for share in (0.5, 0.999, 1 - 1e-8, 1 + 1e-8, 1.001, 2.0):
            assert may_contain(scale, 2, share * size, offset) is (share > 1)
