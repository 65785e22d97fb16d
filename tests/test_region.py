"""Region: strict membership, inscribed balls that touch the border where promised, sizes that are true."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ucan import Budget, Gaussian, InvalidInput, Pattern, Region, SingularScale
from ucan.region import Intersection
from ucan.scales import DCT, Basis, BlockDiagonal, Dense, Diagonal, LowRank, Scalar, Scale, Spiked

INF = math.inf
NORMS = (1, 2, INF)
PAIRS = tuple(itertools.product(NORMS, NORMS))  # (norm of the ball, norm of the region)
HARD = {(INF, 2), (INF, 1), (2, 1)}


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def positive(*shape, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return 0.3 + 1.5 * torch.rand(*shape, generator=rng, dtype=torch.float64)


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


def on_unit_sphere(norm, n, dim, seed=0):
    """Points on the unit ball's border: random ones, and the ball's vertices and axes, where the worst ones sit."""
    z = randn(n, dim, seed=seed)
    rng = torch.Generator().manual_seed(seed)
    corners = torch.randint(0, 2, (n, dim), generator=rng).double() * 2 - 1
    z = torch.cat([z, corners, torch.eye(dim, dtype=torch.float64), -torch.eye(dim, dtype=torch.float64)])
    return z / torch.linalg.vector_norm(z, ord=norm, dim=1, keepdim=True)


def extremal_direction(inverse, q, p):
    """The unit vector of norm q that Σ⁻¹ stretches most, for the pairs where that is easy to find."""
    if q == 1:
        return np.eye(len(inverse))[np.linalg.norm(inverse, ord=p, axis=0).argmax()]
    if p == INF:
        row = inverse[np.linalg.norm(inverse, ord=1 if q == INF else 2, axis=1).argmax()]
        return np.sign(row) if q == INF else row / np.linalg.norm(row)
    return np.linalg.svd(inverse)[2][0]


@every_scale
@pytest.mark.parametrize("norm", NORMS)
def test_membership_is_the_strict_inequality(scale, norm):
    region = Region(scale, 1.5, norm, SHAPE)
    delta = randn(200, *SHAPE, seed=8)
    inverse = np.linalg.inv(scale.dense(DIM).numpy())
    sizes = np.linalg.norm(delta.reshape(-1, DIM).numpy() @ inverse.T, ord=norm, axis=1)
    delta *= torch.as_tensor(np.random.default_rng(0).uniform(0.5, 1.5, 200) * 1.5 / sizes)[:, None, None, None]
    expected = np.linalg.norm(delta.reshape(-1, DIM).numpy() @ inverse.T, ord=norm, axis=1) < 1.5
    inside = region.contains(delta)
    assert inside.dtype == torch.bool and inside.shape == (200,)
    assert inside.tolist() == expected.tolist()
    assert 20 < int(inside.sum()) < 180


def test_the_border_itself_is_outside():
    region = Region(torch.tensor([0.5, 2.0]), 1.0, 2)
    border = torch.tensor([[0.5, 0.0], [0.0, 2.0], [0.0, -2.0]])
    assert region.contains(border).tolist() == [False, False, False]
    assert region.contains(torch.nextafter(border, torch.zeros(()))).tolist() == [True, True, True]
    assert not Region(1.0, 0.0, 2, shape=(2,)).contains(torch.zeros(1, 2)).any()


@pytest.mark.parametrize("wrapped", [False, True], ids=["Dense", "BlockDiagonal"])
@pytest.mark.parametrize("condition", [1e3, 1e7, 1e9, 1e11])
def test_nothing_outside_an_ill_conditioned_region_is_taken_for_inside(condition, wrapped):
    """Σ⁻¹δ in fractions: undoing such a Σ in float64 loses more than the last digits."""
    inside = 0
    for seed in range(40):
        u, v = (torch.linalg.qr(randn(2, 2, seed=2 * seed + k)).Q for k in (0, 1))
        a = u @ torch.diag(torch.tensor([1.0, 1 / condition], dtype=torch.float64)) @ v
        region = Region(BlockDiagonal([a]) if wrapped else Dense(a), 1.0, 2, (2,))
        (p, q), (r, s) = ([Fraction(value) for value in row] for row in a.tolist())
        for off in (-1e-2, -1e-5, -1e-9, 1e-11, 1e-9, 1e-8, 1e-6):
            z = randn(2, seed=seed + 500)
            delta = a @ (z / z.norm()) * (1 + off)
            x, y = (Fraction(value) for value in delta.tolist())
            exact = ((s * x - q * y) ** 2 + (p * y - r * x) ** 2) / (p * s - q * r) ** 2  # ‖Σ⁻¹δ‖²
            found = bool(region.contains(delta[None])[0])
            assert exact < 1 or not found, (condition, off)
            inside += found
    assert inside >= 40  # what is well inside still is


def test_perturbations_that_are_not_numbers_are_outside():
    region = Region(1.0, 1.0, INF, shape=(2,))
    assert region.contains(torch.tensor([[math.nan, 0.0], [INF, 0.0], [0.0, 0.0]])).tolist() == [False, False, True]


def test_a_batch_of_single_numbers_is_a_batch():
    assert Region(1.0, 1.0, 2, shape=(1,)).contains(torch.tensor([[0.5], [2.0]])).tolist() == [True, False]
    assert Region(1.0, 1.0, 2, shape=()).contains(torch.tensor([0.5, 2.0])).tolist() == [True, False]


@every_scale
@pytest.mark.parametrize(("q", "p"), PAIRS)
def test_the_inscribed_ball_is_inside(scale, q, p):
    region = Region(scale, 1.7, p, SHAPE)
    border = region.inscribed_radius(q) * on_unit_sphere(q, 500, DIM)
    assert region.contains(0.999 * border.reshape(-1, *SHAPE)).all()


@every_scale
@pytest.mark.parametrize(("q", "p"), [pair for pair in PAIRS if pair not in HARD])
def test_the_inscribed_ball_cannot_be_larger_where_the_norm_is_exact(scale, q, p):
    region = Region(scale, 1.7, p, SHAPE)
    v = extremal_direction(np.linalg.inv(scale.dense(DIM).numpy()), q, p)
    assert np.linalg.norm(v, ord=q) == pytest.approx(1.0)
    border = region.inscribed_radius(q) * torch.as_tensor(v).reshape(1, *SHAPE)
    assert region.contains(0.999 * border).all() and not region.contains(1.001 * border).any()


@pytest.mark.parametrize(("q", "p"), sorted(HARD))
def test_the_inscribed_ball_of_a_diagonal_touches_the_border_in_every_norm(q, p):
    sigma = SCALES["diagonal"].sigma
    region = Region(sigma, 1.7, p)
    v = torch.ones_like(sigma) if q == INF else 1 / sigma / (1 / sigma).norm()  # the worst case, by Hölder
    border = region.inscribed_radius(q) * v[None]
    assert region.contains(0.999 * border).all() and not region.contains(1.001 * border).any()


def test_diagonal_euclidean_region_has_the_exact_linf_radius_and_not_the_papers_smaller_one():
    sigma = positive(3, 8, 8)
    radius = Region(sigma, 1.2, 2).inscribed_radius(INF)
    assert radius == pytest.approx(1.2 / float((1 / sigma).square().sum().sqrt()), rel=1e-12)
    assert radius > 1.1 * 1.2 * float(sigma.min()) / math.sqrt(sigma.numel())


@pytest.mark.parametrize("kappa", (1.0, 4.0))
def test_what_the_exact_linf_radius_gains_on_a_square_pattern_is_the_closed_form(kappa):
    """σ = κ‖(a, b)‖∞² + 1: the mean of σ⁻² over the square is 1/(1 + κ)."""
    sigma = Pattern((1, 128, 128), norm=INF, kappa=kappa).scale.sigma
    paper = float(sigma.min()) / math.sqrt(sigma.numel())
    assert Region(sigma, 1.0, 2).inscribed_radius(INF) / paper == pytest.approx(math.sqrt(1 + kappa), rel=2e-3)


def test_default_norm_is_the_regions_own():
    region = Region(torch.tensor([0.5, 2.0]), 1.0, 1)
    assert region.inscribed_radius() == region.inscribed_radius(1) == 0.5
    assert region.inscribed_radius(INF) == pytest.approx(1 / 2.5)
    assert region.inscribed_radius(2) == pytest.approx(1 / math.sqrt(4.25))
    assert (region.norm, region.radius, region.shape, region.dim) == (1, 1.0, (2,), 2)


def test_isotropic_gaussian_region_gives_the_table_radius_in_every_norm():
    law, dim = Gaussian(scale=0.5), 3072
    region = Region(1.0, law.radius(0.99, 2, dim), 2, shape=(3, 32, 32))
    for norm in NORMS:
        assert region.inscribed_radius(norm) == pytest.approx(law.radius(0.99, norm, dim), rel=1e-12)


@every_scale
@pytest.mark.parametrize("norm", NORMS)
def test_alm_is_the_geometric_mean_of_the_scales_times_the_radius(scale, norm):
    det = abs(np.linalg.det(scale.dense(DIM).numpy()))
    assert Region(scale, 1.7, norm, SHAPE).alm == pytest.approx(1.7 * det ** (1 / DIM), rel=1e-10)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("dim", (2, 3))
@pytest.mark.parametrize("kind", ("scalar", "diagonal", "dense"))
def test_log_volume_is_the_monte_carlo_volume(kind, dim, norm):
    scale = {
        "scalar": Scalar(0.6),
        "diagonal": Diagonal(positive(dim)),
        "dense": Dense(randn(dim, dim) + torch.eye(dim, dtype=torch.float64)),
    }[kind]
    region = Region(scale, 0.8, norm, (dim,))
    half = 0.8 * scale.dense(dim).abs().sum(1)  # a box around the region
    n = 200_000
    points = (2 * torch.rand(n, dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 1) * half
    share = float(region.contains(points).double().mean())
    error = math.sqrt(share * (1 - share) / n)
    box = float((2 * half).prod())
    assert abs(math.exp(region.log_volume) / box - share) < 4 * error + 1e-12
    assert error < 0.02 * share


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("make", [Diagonal, DCT])
def test_sizes_are_finite_at_imagenet_dimension(make, norm):
    sigma = positive(3, 224, 224)
    region = Region(make(sigma), 1.2, norm, sigma.shape)
    assert region.dim == 150528
    assert math.isfinite(region.log_volume)
    assert region.alm == pytest.approx(1.2 * math.exp(float(sigma.log().mean())), rel=1e-12)
    assert all(0 < region.inscribed_radius(q) < INF for q in NORMS)


def test_an_empty_region_has_no_volume():
    region = Region(1.0, 0.0, 2, shape=(3,))
    assert region.log_volume == -INF and region.alm == 0.0 and region.inscribed_radius() == 0.0


def test_a_scalar_scale_needs_a_shape():
    with pytest.raises(InvalidInput, match="shape"):
        Region(0.5, 1.0, 2)
    region = Region(0.5, 1.0, 2, shape=(2, 3))
    assert region.dim == 6 and region.contains(torch.zeros(4, 2, 3)).all()


def test_tensor_array_and_scale_describe_the_same_region():
    sigma = positive(2, 3)
    regions = [
        Region(sigma, 1.0, 2),
        Region(sigma.numpy(), 1.0, 2),
        Region(Diagonal(sigma), 1.0, 2, shape=(2, 3)),
        Region(Dense(torch.diag(sigma.flatten())), 1.0, 2),
    ]
    for region in regions:
        assert region.inscribed_radius(INF if region is regions[0] else 2) > 0
        assert region.inscribed_radius(2) == pytest.approx(regions[0].inscribed_radius(2), rel=1e-12)
        assert region.log_volume == pytest.approx(regions[0].log_volume, rel=1e-12)
        assert region.contains(0.1 * sigma[None]).all()
    assert regions[0].shape == (2, 3)


INVALID = {
    "norm 3": (InvalidInput, lambda: Region(1.0, 1.0, 3, shape=(2,))),
    "norm text": (InvalidInput, lambda: Region(1.0, 1.0, "inf", shape=(2,))),
    "norm of the ball": (InvalidInput, lambda: Region(1.0, 1.0, 2, shape=(2,)).inscribed_radius(0)),
    "radius negative": (InvalidInput, lambda: Region(1.0, -0.1, 2, shape=(2,))),
    "radius nan": (InvalidInput, lambda: Region(1.0, math.nan, 2, shape=(2,))),
    "shape disagrees": (InvalidInput, lambda: Region(torch.ones(3), 1.0, 2, shape=(2, 2))),
    "shape empty": (InvalidInput, lambda: Region(1.0, 1.0, 2, shape=(0,))),
    "shape with an empty side": (InvalidInput, lambda: Region(1.0, 1.0, 2, shape=(3, 0))),
    "scale None": (InvalidInput, lambda: Region(None, 1.0, 2, shape=(2,))),
    "scale zero": (SingularScale, lambda: Region(0.0, 1.0, 2, shape=(2,))),
    "scale negative": (SingularScale, lambda: Region(torch.tensor([1.0, -1.0]), 1.0, 2)),
    "scale nan": (SingularScale, lambda: Region(torch.tensor([1.0, math.nan]), 1.0, 2)),
    "scale nan, learned": (SingularScale, lambda: Region(torch.tensor([1.0, math.nan], requires_grad=True), 1.0, 2)),
    "scale inf, learned": (SingularScale, lambda: Region(torch.tensor([1.0, INF], requires_grad=True), 1.0, 2)),
    "scale singular": (SingularScale, lambda: Region(Dense(torch.ones(2, 2)), 1.0, 2)),
    "perturbation without batch": (InvalidInput, lambda: Region(1.0, 1.0, 2, (2, 2)).contains(torch.zeros(2, 2))),
    "perturbation of another size": (InvalidInput, lambda: Region(1.0, 1.0, 2, (4,)).contains(torch.zeros(2, 5))),
    "perturbation a number": (InvalidInput, lambda: Region(1.0, 1.0, 2, (1,)).contains(torch.tensor(0.0))),
}


@pytest.mark.parametrize("case", INVALID)
def test_invalid_arguments_are_refused(case):
    error, call = INVALID[case]
    with pytest.raises(error):
        call()


@pytest.mark.parametrize(
    "made",
    [
        lambda t: t,
        lambda t: Diagonal(t),
        lambda t: Dense(torch.diag(t)),
        lambda t: BlockDiagonal([torch.diag(t[:1]), torch.diag(t[1:])]),
    ],
    ids=["tensor", "diagonal", "dense", "blocks"],
)
def test_what_becomes_of_the_callers_tensors_does_not_change_a_region(made):
    sigma = torch.tensor([1.0, 2.0], dtype=torch.float64)
    given = made(sigma)
    region = Region(given, 1.0, 2)
    inside = torch.tensor([[0.0, 1.9]])
    for tensor in [sigma, *(given.tensors().values() if isinstance(given, Scale) else ())]:
        tensor.mul_(0.1)
    assert bool(region.contains(inside)) and region.inscribed_radius() == 1.0 and region.alm == pytest.approx(2**0.5)


def test_regions_of_one_noise_share_one_matrix():
    scale = Dense(torch.eye(3))
    one, two = (Region.sharing(scale, r, 2, (3,)) for r in (1.0, 2.0))
    assert one.scale is two.scale is scale


def test_a_region_of_learned_scales_warns_of_nothing():
    region = Region(torch.tensor([0.5, 2.0], requires_grad=True), 1.0, 2)
    assert region.inscribed_radius() == 0.5 and region.inscribed_radius(INF) == pytest.approx(1 / math.sqrt(4.25))
    assert region.alm == pytest.approx(1.0) and math.isfinite(region.log_volume)


@given(
    sigma=st.lists(st.floats(0.01, 10), min_size=3, max_size=3),
    radius=st.floats(1e-3, 10),
    delta=st.lists(st.floats(-1, 1), min_size=3, max_size=3).filter(lambda v: max(map(abs, v)) > 1e-3),
    pair=st.sampled_from(PAIRS),
)
def test_whatever_is_in_the_inscribed_ball_is_in_the_region(sigma, radius, delta, pair):
    q, p = pair
    region = Region(torch.tensor(sigma, dtype=torch.float64), radius, p)
    d = torch.tensor([delta], dtype=torch.float64)
    d = d / torch.linalg.vector_norm(d, ord=q) * region.inscribed_radius(q) * (1 - 1e-9)
    assert region.contains(d).all()


def test_repr_says_what_it_is():
    assert repr(Region(torch.ones(2, 2), 1.25, INF)) == "Region(Diagonal Σ in R^4, ℓ∞, R = 1.25 in units of Σ)"
    assert repr(Region(1.0, 0.99999999, 2, (2,))).endswith("R = 0.999999 in units of Σ)")  # never more than was proved


def test_plain_numbers_are_not_rounded_to_float32():
    """0.7 in float32 is less than 0.7: a box of 0.7 was covered, and contained, where it was not."""
    region = Region(1.0, 0.699999995, 2, (1,))
    assert not region.covers(0.7) and not region.covers([0.7]) and not region.contains([[0.7]]).any()
    assert region.covers(0.69) and region.contains([[0.69]]).all()
    assert (
        Budget.of(0.7, (2,)).limits.tolist() == [0.7, 0.7] and Budget.of([16777217.0], (1,)).limits.item() == 16777217
    )
    assert Region(1.0, 1.0, 2, (1,)).budget_factor(0.7) * 0.7 <= 1
    assert not Region(1.0, 1e-60, 2, (1,)).covers(6e-46)
    assert Budget.of(1.0, (1,)).size([[0.7]]).item() == 0.7


@pytest.mark.parametrize("size", [1e-120, 1.0, 1e120])
def test_how_far_coordinates_reach_together_has_no_limits_of_a_budget(size):
    region = Region(size, 2.0, 2, (3,))
    assert region.reach_together([0, 1]).tolist() == pytest.approx([2 * size / 2**0.5] * 2)
    assert Region(1.0, math.inf, 2, (3,)).reach_together([0, 1]).tolist() == [math.inf] * 2
    nothing = Intersection.of(Region(1.0, 1.0, 2, (3,)), Region(1.0, 0.0, 2, (3,)))
    assert nothing.reach_together([0, 1]).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("kind", ["low rank", "spiked"])
def test_noise_whose_inverse_has_no_squares_has_no_endless_reach(kind):
    size, zeros = torch.tensor(1e163, dtype=torch.float64), torch.zeros(2, 1, dtype=torch.float64)
    scale = LowRank(size.expand(2).clone(), zeros) if kind == "low rank" else Spiked(size, zeros + 1, zeros[0])
    region = Region(scale, 1.0, 2, (2,))
    for ask in (region.reach, lambda: region.inscribed_radius(1), lambda: region.reach_together([0, 1])):
        with pytest.raises(InvalidInput, match="give inputs in other units"):
            ask()
