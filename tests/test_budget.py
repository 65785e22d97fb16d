"""Budgets: the record, boxes and groups in every region against brute force, and linear classifiers as an oracle."""

import itertools
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, stats

from ucan import (
    BasisWise,
    Budget,
    ExpInf,
    Fixed,
    Gaussian,
    InvalidInput,
    Isotropic,
    Laplace,
    Pattern,
    PowerLaw,
    Region,
    SmoothedClassifier,
    Uniform,
)
from ucan.bounds import lower_bound
from ucan.scales import DCT, Basis, BlockDiagonal, Dense, Diagonal, LowRank, Scalar, Spiked, induced

INF = math.inf
NORMS = (1, 2, INF)


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=rng(seed), dtype=torch.float64)


def positive(*shape, seed=0):
    return 0.3 + 1.5 * torch.rand(*shape, generator=rng(seed), dtype=torch.float64)


DIM, SHAPE = 6, (1, 2, 3)
SCALES = {
    "scalar": Scalar(0.6),
    "diagonal": Diagonal(positive(*SHAPE, seed=1)),
    "dense": Dense(randn(DIM, DIM, seed=2) + 2 * torch.eye(DIM, dtype=torch.float64)),
    "basis": Basis(torch.linalg.qr(randn(DIM, DIM, seed=3))[0], positive(DIM, seed=4)),
    "dct": DCT(positive(*SHAPE, seed=5)),
    "low rank": LowRank(positive(DIM, seed=6), randn(DIM, 2, seed=7)),
    "spiked": Spiked(torch.tensor(0.7), torch.linalg.qr(randn(DIM, 2, seed=10))[0], torch.tensor([0.9, -0.4])),
    "blocks": BlockDiagonal([randn(k, k, seed=k) + 2 * torch.eye(k, dtype=torch.float64) for k in (2, 4)]),
}
every_scale = pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES.keys())
every_norm = pytest.mark.parametrize("norm", NORMS)
BUDGETS = {
    "equal": torch.full(SHAPE, 0.7, dtype=torch.float64),
    "uneven": positive(*SHAPE, seed=8),
    "with zeros": positive(*SHAPE, seed=9) * torch.tensor([[[1, 0, 1], [0, 1, 1]]]),
    "one coordinate": torch.tensor([[[0, 0, 0], [0, 0, 2.0]]], dtype=torch.float64),
}
every_budget = pytest.mark.parametrize("limits", BUDGETS.values(), ids=BUDGETS.keys())
GROUPS = torch.tensor([[[0, 0, 1], [2, 1, 2]]])


def corners(limits):
    signs = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=limits.numel())), dtype=torch.float64)
    return signs * limits.flatten()


def grouped_points(limits, groups, n, seed=0):
    """Points on the border of {‖δ_g‖₂ ≤ b_g}: random directions in each group, and single coordinates."""
    z = randn(n, groups.numel(), seed=seed)
    z[: n // 4] *= (torch.rand(n // 4, groups.numel(), generator=rng(seed)) < 0.4).double() + 1e-9
    out = torch.zeros_like(z)
    for g, limit in enumerate(limits.tolist()):
        mine = (groups.flatten() == g).nonzero()[:, 0]
        out[:, mine] = limit * z[:, mine] / z[:, mine].norm(dim=1, keepdim=True)
    return out


# --- the record ---


def test_a_number_a_map_and_a_list_are_budgets():
    assert Budget.of(2.0, (2, 3)).limits.tolist() == [[2.0] * 3] * 2
    assert Budget.of([1, 2], (2,)).limits.dtype == torch.float64
    made = Budget.of(torch.tensor([1.0, 0.0]), (2,))
    assert Budget.of(made, (2,)) is made and made.shape == (2,) and made.dim == 2
    assert Budget.of(1.5, (2, 3), groups=[[0, 0, 1], [1, 1, 0]]).limits.tolist() == [1.5, 1.5]
    assert Budget.of(1.0, (2,)).uniform and not made.uniform


@pytest.mark.parametrize(
    "budget",
    [
        Budget.of(0.1, (2, 3)),
        Budget.of(BUDGETS["uneven"], SHAPE, name="sensors"),
        Budget(torch.tensor([1.0, 2.0, 0.0]), GROUPS, "channels"),
        Budget(torch.full((3,), 0.1), GROUPS),
    ],
    ids=["number", "map", "groups", "equal groups"],
)
def test_json_and_back_is_the_same_budget(budget):
    back = Budget.from_dict(json.loads(json.dumps(budget.to_dict())))
    assert back.limits.equal(budget.limits) and back.shape == budget.shape and back.name == budget.name
    assert (back.groups is None) == (budget.groups is None)
    assert back.groups is None or back.groups.equal(budget.groups)


def test_words_and_repr_say_what_it_is():
    assert Budget.of(1, (2,)).words() == "every change of at most ε in each coordinate"
    assert Budget.of(0.5, (2,)).words() == "every change of at most 0.5·ε in each coordinate"
    assert Budget.of(2 / 255, (2,)).words() == "every change of at most 0.00784313·ε in each coordinate"  # rounded down
    assert Budget.of(10, (2,)).words() == "every change of at most 10·ε in each coordinate"
    assert Budget.of([1, 2], (2,)).words() == "every change of at most ε·bᵢ in coordinate i"
    assert "3 groups" in Budget(torch.ones(3), GROUPS).words()
    assert repr(Budget.of([1, 2], (2,), name="table")) == "Budget(table: box of 1 … 2 in R^2)"


def test_the_size_of_a_change_is_the_smallest_budget_that_holds_it():
    box = Budget.of([1.0, 2.0, 0.0], (3,))
    assert box.size(torch.tensor([[0.5, -3.0, 0.0], [0.0, 0.0, 0.1], [0.0, 0.0, 0.0]])).tolist() == [1.5, INF, 0.0]
    grouped = Budget(torch.tensor([1.0, 2.0]), torch.tensor([0, 0, 1]))
    assert grouped.size(torch.tensor([[3.0, 4.0, 1.0]])).tolist() == [5.0]
    assert float(grouped.times(2.0).size(torch.tensor([[3.0, 4.0, 1.0]]))) == 2.5


@every_norm
def test_the_length_of_a_budget_is_that_of_its_longest_change(norm):
    box = Budget.of(BUDGETS["uneven"], SHAPE)
    assert box.length(norm) == pytest.approx(float(torch.linalg.vector_norm(corners(box.limits), norm, 1).max()))
    grouped = Budget(torch.tensor([1.0, 2.0, 0.5]), GROUPS)
    found = torch.linalg.vector_norm(grouped_points(grouped.limits, GROUPS, 20_000), norm, 1).max()
    assert float(found) <= grouped.length(norm) * (1 + 1e-9) and float(found) > 0.97 * grouped.length(norm)


INVALID = {
    "negative": lambda: Budget.of([-1.0, 1.0], (2,)),
    "nan": lambda: Budget.of([math.nan, 1.0], (2,)),
    "infinite": lambda: Budget.of(INF, (2,)),
    "nothing may change": lambda: Budget.of(0.0, (2,)),
    "text": lambda: Budget.of("1", (2,)),
    "none": lambda: Budget.of(None, (2,)),
    "a truth value": lambda: Budget.of(True, (2,)),
    "another shape": lambda: Budget.of([1.0, 2.0], (3,)),
    "another budget's shape": lambda: Budget.of(Budget.of(1.0, (2,)), (3,)),
    "groups of another shape": lambda: Budget.of(1.0, (2,), groups=[0, 0, 1]),
    "groups without limits": lambda: Budget(torch.ones(2), torch.tensor([0, 1, 2])),
    "groups below 0": lambda: Budget(torch.ones(2), torch.tensor([0, -1])),
    "groups that are no numbers": lambda: Budget(torch.ones(2), torch.tensor([0.0, 1.0])),
    "no record": lambda: Budget.from_dict({"limits": [1.0]}),
    "a box of another shape": lambda: Region(1.0, 1.0, 2, (2,)).covers(torch.ones(3)),
    "a negative box": lambda: Region(1.0, 1.0, 2, (2,)).covers(torch.tensor([1.0, -1.0])),
    "a nan in a box": lambda: Region(1.0, 1.0, 2, (2,)).covers(torch.tensor([1.0, math.nan])),
    "a scale of another dimension": lambda: Scalar(1.0).budget_norm(Budget.of(1.0, (2,)), 2, 3),
    "a scaled budget of zeros": lambda: Gaussian(1.0).box_factor(0.9, [0.0, 0.0]),
    "a scaled budget with nan": lambda: Gaussian(1.0).box_factor(0.9, [math.nan, 1.0]),
}


@pytest.mark.parametrize("case", INVALID)
def test_what_is_no_budget_is_refused(case):
    with pytest.raises(InvalidInput):
        INVALID[case]()


# --- boxes in regions, against a search over corners and random points ---


@every_scale
@every_norm
@every_budget
def test_covers_is_what_a_search_over_corners_finds(scale, norm, limits):
    region = Region(scale, 1.3, norm, SHAPE)
    inverse = torch.linalg.inv(scale.dense(DIM))
    worst = float(torch.linalg.vector_norm(corners(limits) @ inverse.T, ord=norm, dim=1).max())
    assert region.budget_size(Budget.of(limits, SHAPE)) == pytest.approx(worst, rel=1e-10)  # few corners: exact
    edge = region.budget_factor(limits)
    assert edge == pytest.approx(1.3 / worst, rel=1e-10)
    assert region.covers(limits * edge * (1 - 1e-9)) and not region.covers(limits * edge * (1 + 1e-9))
    inside = limits.flatten() * (2 * torch.rand(500, DIM, generator=rng(1), dtype=torch.float64) - 1)
    assert region.contains((edge * (1 - 1e-9) * inside).reshape(-1, *SHAPE)).all()


@every_scale
@every_norm
@every_budget
def test_without_corners_a_box_is_never_too_large(scale, norm, limits, monkeypatch):
    exact = Region(scale, 1.3, norm, SHAPE).budget_factor(limits)
    monkeypatch.setattr(induced, "MAX_CORNERS", 0)
    found = Region(scale, 1.3, norm, SHAPE).budget_factor(limits.clone())
    assert found <= exact * (1 + 1e-11)
    if norm == INF or scale.elementwise:
        assert found == pytest.approx(exact, rel=1e-10)
    assert found > 0.25 * exact


@every_scale
@every_norm
def test_every_change_within_groups_is_inside(scale, norm):
    budget = Budget(torch.tensor([0.5, 1.0, 0.7]), GROUPS)
    region = Region(scale, 1.3, norm, SHAPE)
    edge = region.budget_factor(budget)
    points = grouped_points(budget.limits, GROUPS, 20_000)
    reach = float((region.size(points.reshape(-1, *SHAPE)) / 1.3).max())
    assert edge * reach <= 1 + 1e-9
    if scale.elementwise:
        assert edge * reach > 0.97  # exact: a search comes close
    assert region.covers(budget.times(edge * (1 - 1e-9))) and not region.covers(budget.times(edge * 1.001))


def test_groups_of_one_are_a_box_and_one_group_is_a_ball():
    region = Region(positive(DIM, seed=3), 1.1, 2)
    limits = positive(DIM, seed=4)
    alone = Budget(limits, torch.arange(DIM))
    assert region.budget_factor(alone) == pytest.approx(region.budget_factor(limits), rel=1e-12)
    ball = Budget(torch.ones(1), torch.zeros(DIM, dtype=torch.long))
    for scale in SCALES.values():
        region = Region(scale, 1.1, 2, (DIM,))
        assert region.budget_factor(ball) == pytest.approx(region.inscribed_radius(2), rel=1e-6)


@every_scale
def test_the_budget_one_is_the_linf_ball(scale):
    for norm in NORMS:
        region = Region(scale, 1.3, norm, SHAPE)
        assert region.budget_factor(1.0) >= region.inscribed_radius(INF) * (1 - 1e-11)


def test_a_diagonal_has_the_closed_forms():
    sigma, b = positive(3, 4, seed=1), positive(3, 4, seed=2)
    u = b / sigma
    for norm, size in ((2, u.square().sum().sqrt()), (1, u.sum()), (INF, u.max())):
        assert Region(sigma, 1.7, norm).budget_factor(b) == pytest.approx(1.7 / float(size), rel=1e-11)
    channels = torch.arange(3)[:, None].expand(3, 4)
    constant = positive(3, seed=3)
    grouped = Budget(positive(3, seed=4), channels)
    expected = 1.7 / float((grouped.limits / constant).square().sum().sqrt())
    region = Region(constant[:, None].expand(3, 4).contiguous(), 1.7, 2)
    assert region.budget_factor(grouped) == pytest.approx(expected, rel=1e-11)


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("norm", NORMS)
def test_a_budget_far_smaller_than_the_noise_is_not_taken_for_none(norm, grouped):
    groups = torch.tensor([0, 1, 1]) if grouped else None
    sizes = {1: 3.0, 2: 3**0.5, INF: 1.0} if not grouped else {1: 1 + 2**0.5, 2: 2**0.5, INF: 1.0}
    for scale in (Diagonal(torch.full((3,), 1e40, dtype=torch.float64)), Scalar(1e40)):
        assert scale.budget_norm(Budget.of(1e-100, (3,), groups), norm, 3) == pytest.approx(
            1e-140 * sizes[norm], rel=1e-12
        )
    wide = Diagonal(torch.full((3,), 1e170, dtype=torch.float64))  # the square of 1e-170 is 0
    assert wide.budget_norm(Budget.of(1e100, (3,), groups), norm, 3) == pytest.approx(1e-70 * sizes[norm], rel=1e-12)
    with pytest.raises(InvalidInput, match="1e150 times smaller"):
        wide.budget_norm(Budget.of(1e-20, (3,), groups), norm, 3)


@pytest.mark.parametrize("norm", NORMS)
def test_groups_see_entries_of_a_matrix_whose_squares_are_no_numbers(norm):
    sizes = torch.tensor([1.0, 1e170, 1e170], dtype=torch.float64)
    budget = Budget(torch.tensor([1e-100, 1e100], dtype=torch.float64), torch.tensor([0, 1, 1]))
    found = Region(BlockDiagonal([size.reshape(1, 1) for size in sizes]), 1.0, norm).budget_factor(budget)
    assert found == pytest.approx(1e70 / (2**0.5 if norm == 1 else 1.0), rel=0.5)
    assert found <= Region(Diagonal(sizes), 1.0, norm).budget_factor(budget)


def test_a_scaled_budget_whose_square_is_no_number_is_refused():
    assert Gaussian(1.0).box_factor(0.9, [1e-140, 0.0]) == pytest.approx(1e140 * Gaussian(1.0).radius(0.9), rel=1e-9)
    for law in (Gaussian(1.0), Laplace(1.0), Uniform(1.0)):
        with pytest.raises(InvalidInput, match="1e150 times smaller"):
            law.box_factor(0.9, [1e-170, 1e-180])


def test_the_ends_of_covers():
    region = Region(torch.tensor([0.5, 2.0]), 1.0, INF)
    assert region.covers(torch.zeros(2)) and not Region(1.0, 0.0, 2, (2,)).covers(torch.zeros(2))
    assert not region.covers(torch.tensor([0.5, 0.0])) and region.covers(torch.tensor([0.499, 1.99]))
    assert not region.covers(torch.tensor([INF, 0.0])) and not region.covers(torch.tensor([0.0, 1e300]))
    assert region.covers(0.4) and not region.covers(0.6)
    assert region.covers(torch.tensor([1e-320, 0.0], dtype=torch.float64))
    assert Region(1.0, INF, 2, (2,)).covers(torch.ones(2)) and Region(1.0, INF, 2, (2,)).budget_factor(1.0) == INF
    assert Region(1.0, 0.0, 2, (2,)).budget_factor(1.0) == 0.0


def test_large_cosines_and_matrices_need_no_enumeration():
    s = positive(3, 64, 64, seed=1)  # d = 12,288: no matrix may be formed
    b = positive(3, 64, 64, seed=2)
    for norm in NORMS:
        region = Region(DCT(s), 1.0, norm, s.shape)
        edge = region.budget_factor(b)
        signs = torch.randint(0, 2, (50, *s.shape), generator=rng(3)) * 2.0 - 1
        assert edge > 0 and region.contains(0.999999 * edge * signs * b).all()
        assert 0 < region.budget_factor(Budget(torch.ones(3), torch.arange(3)[:, None, None].expand(s.shape))) < INF
    wide = LowRank(positive(5000, seed=3), randn(5000, 2, seed=4) / 50)
    assert 0 < Region(wide, 1.0, 2, (5000,)).budget_factor(positive(5000, seed=5)) < INF


def test_a_matrix_is_asked_once_for_all_regions_of_one_noise(monkeypatch):
    calls = []
    scale, budget = Dense(randn(20, 20) + 5 * torch.eye(20)), Budget.of(1.0, (20,))
    plain = Dense.budget_norm
    monkeypatch.setattr(Dense, "budget_norm", lambda self, *a: calls.append(1) or plain(self, *a))
    for radius in (1.0, 2.0, 3.0):
        Region.sharing(scale, radius, 2, (20,)).budget_factor(budget)
    assert len(calls) == 1


# --- what laws know of boxes ---


def test_the_default_is_the_regions_factor():
    u = positive(5).numpy()
    for law, norm in ((Gaussian(0.7), 2), (Laplace(0.7), 1), (ExpInf(0.7), INF), (PowerLaw(0.7, a=9.0), 1)):
        expected = law.radius(0.9, norm, 5) / np.linalg.norm(u, norm)
        assert law.box_factor(0.9, u) >= expected * (1 - 1e-11)
        assert law.box_factor(0.5, u) == law.box_factor(0.3, u) == 0.0
        assert law.box_factor(0.6, u, 0.1) > law.box_factor(0.6, u)
        assert law.box_factor(0.9, u, 0.5) == law.box_factor(0.9, u)


@given(
    u=st.lists(st.one_of(st.just(0.0), st.floats(1e-3, 10)), min_size=1, max_size=6).filter(any),
    p=st.floats(0.501, 1.0),
    gap=st.floats(0.0, 1.0),
)
def test_the_product_form_of_uniform_noise_is_the_root(u, p, gap):
    law, u = Uniform(0.8), np.array(u)
    p_b = (1 - p) * gap
    target = 1 - (p - p_b) / 2
    found = law.box_factor(p, u, p_b)
    product = lambda e: float(np.prod(1 - e * u / 1.6)) - target  # noqa: E731
    truth = optimize.brentq(product, 0.0, 1.6 / u.max(), xtol=1e-15, rtol=1e-14)
    assert truth * (1 - 1e-9) <= found <= truth
    for norm in (1, INF):  # larger than the regions it replaces
        assert found >= law.radius(p, norm, len(u), p_b) / np.linalg.norm(u, norm) * (1 - 1e-9)


def test_the_product_form_is_tight_for_the_worst_classifier():
    """Class A exactly on the part of the cube that a corner leaves, but for what p allows: it ties at the edge."""
    law, sigma, b, p = Uniform(1.0), np.array([0.5, 1.0, 2.0]), np.array([0.3, 0.1, 0.4]), 0.8
    edge = law.box_factor(p, b / sigma)
    overlap = np.prod(1 - edge * b / (2 * sigma))
    # The classifier loses 1 − overlap of A's mass; A had p, so p − (1 − overlap) is left, which is 1/2 at the edge.
    assert p - (1 - overlap) == pytest.approx(0.5, abs=1e-9)


def test_many_coordinates_of_uniform_noise():
    u = np.full(150_528, 1.0)
    law = Uniform(1.0)
    assert law.box_factor(0.99, u) == pytest.approx(law.radius(0.99, INF, len(u)), rel=1e-10)
    assert law.box_factor(0.99, u) <= law.radius(0.99, INF, len(u))


def test_the_generator_takes_the_best_that_is_known():
    x, b = torch.zeros(1, *SHAPE), BUDGETS["uneven"]
    sigma = positive(*SHAPE, seed=2)
    noise = Fixed(sigma)
    assert noise.budget_factor(Uniform(1.0), 0.9, b, x) == Uniform(1.0).box_factor(0.9, b / sigma)
    assert noise.budget_factor(Gaussian(0.5), 0.9, b, x) == pytest.approx(
        Gaussian(0.5).radius(0.9) / float((b / sigma).norm()), rel=1e-11
    )
    assert noise.at(x).budget_factor(Gaussian(0.5), 0.9, b, x) == noise.budget_factor(Gaussian(0.5), 0.9, b, x)
    grouped = Budget(torch.ones(3), GROUPS)
    for law in (Gaussian(0.5), Laplace(0.5), Uniform(0.5), ExpInf(0.5), PowerLaw(0.5, a=12.0)):
        assert noise.budget_factor(law, 0.9, grouped, x) > 0
    assert Pattern((1, 8, 8)).budget_factor(Gaussian(0.5), 0.9, 1.0, torch.zeros(1, 1, 8, 8)) == pytest.approx(
        Region(Pattern((1, 8, 8)).scale.sigma, Gaussian(0.5).radius(0.9), 2).inscribed_radius(INF), rel=1e-11
    )


def test_a_basis_gains_little_against_boxes():
    """The corner with the signs of a direction meets it with ‖q‖₁, so no direction may have much less than isotropic noise."""
    noise = BasisWise.dct((1, 8, 8), leading=16, scale=(0.25, 100.0))
    x, law = torch.zeros(1, 1, 8, 8), Gaussian(1.0)
    found = noise.budget_factor(law, 0.9, 1.0, x)
    scale = noise(x)[1]
    columns = scale.dense(64) / torch.linalg.vector_norm(scale.dense(64), dim=0)
    s = torch.linalg.vector_norm(scale.dense(64), dim=0)
    assert found <= law.radius(0.9) * float((s / columns.abs().sum(0)).min()) * (1 + 1e-9)
    assert float(columns.abs().sum(0).min()) > 0.7 * 8
    assert found < 1.4 * Fixed(0.25).budget_factor(law, 0.9, 1.0, x)  # however large the other scales are


# --- linear classifiers: the exact box is known ---


LAWS = {
    "gaussian": lambda d: Gaussian(1.0),
    "laplace": lambda d: Laplace(0.7),
    "uniform": lambda d: Uniform(1.7),
    "expinf": lambda d: ExpInf(0.6),
    "powerlaw": lambda d: PowerLaw(2.0, a=d + 3.0),
}


@pytest.mark.parametrize("name", LAWS)
def test_no_box_of_a_linear_classifier_is_too_large(name):
    """400 classifiers a law, 2,000 in all: class 1 where w·x + m > 0, under σ∘ε; it holds exactly where |w·δ| < m."""
    generator = np.random.default_rng(list(LAWS).index(name))
    n, ratios = 20_000, []
    for case in range(400):
        d = int(generator.integers(1, 7))
        w = generator.normal(size=d) * (generator.random(d) < 0.8)
        w[int(generator.integers(d))] += 1.0
        b = generator.uniform(0.05, 2, d) * ((generator.random(d) < 0.85) | (np.arange(d) == 0))
        sigma = generator.lognormal(0, 0.7, d)
        law = LAWS[name](d)
        noise = law.sample(n, (d,), rng(case), torch.float64).numpy() * sigma
        margin = float(np.quantile(np.abs(noise @ w), generator.uniform(0.2, 0.99)))
        hits = int((noise @ w + margin > 0).sum())
        p = lower_bound(hits, n, 1e-6)
        exact = margin / float(np.abs(w) @ b) if (np.abs(w) @ b) > 0 else INF
        x = torch.zeros(1, d, dtype=torch.float64)
        found = Fixed(torch.from_numpy(sigma)).budget_factor(law, p, torch.from_numpy(b), x)
        two_class = Fixed(torch.from_numpy(sigma)).budget_factor(law, p, torch.from_numpy(b), x, 1 - p)
        assert found <= exact and two_class == pytest.approx(found, rel=1e-9)
        ratios.append(found / exact)
    assert max(ratios) > 0.5  # the oracle could have failed: some come close


def test_the_best_shape_certifies_the_exact_box_of_a_linear_classifier():
    """σᵢ ∝ √(bᵢ/|wᵢ|): within 3 % of m/Σ|wᵢ|bᵢ at n = 100,000; isotropic noise is far from it for a sparse w."""
    ratios, plain = [], []
    for seed in range(9):
        generator = np.random.default_rng(seed)
        d = 30
        w = torch.tensor(generator.lognormal(0, 1.5, d) * generator.choice([-1, 1], d), dtype=torch.float32)
        b = torch.tensor(generator.uniform(0.2, 2, d), dtype=torch.float32)
        exact = float(1 / (w.abs() * b).sum())
        model = lambda y, w=w: (y @ w + 1 > 0).long()  # noqa: E731
        x = torch.zeros(1, d)
        shaped = Fixed.for_budget(b, harm=w.square(), floor=0.0)
        for noise, out in ((shaped, ratios), (Isotropic(), plain)):
            reach = float(noise(x)[1].apply(w[None]).norm())  # the standard deviation of w·noise at λ = 1
            law = Gaussian(1 / (1.5 * reach))
            (c,) = SmoothedClassifier(model, law, noise, 2).certify(x, n=100_000, seed=seed)
            out.append(c.region.budget_factor(b) / exact)
    assert max(ratios) < 1 and np.median(ratios) > 0.97
    assert np.median(plain) < 0.8


def test_gaussian_margins_are_those_of_the_normal_distribution():
    """With the exact p the factor of the best shape is the exact box."""
    w, b = np.array([0.1, 2.0, 0.7]), np.array([1.0, 0.5, 2.0])
    sigma = np.sqrt(b / w)
    p = stats.norm.cdf(1.3 / np.linalg.norm(w * sigma))
    assert Gaussian(1.0).box_factor(p, b / sigma) == pytest.approx(1.3 / (w @ b), rel=1e-9)
