"""Scales: every structure against its dense twin, by one contract; norms against brute force."""

import itertools
import math

import mpmath as mp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import fft

from ucan import Budget, InvalidInput, Region, SingularScale, scales
from ucan.scales import DCT, Basis, BlockDiagonal, Dense, Diagonal, LowRank, Scalar, Spiked, as_scale, induced, matrix
from ucan.scales.basis import defect, measured_defect
from ucan.scales.dct import exact_cosine_matrix
from ucan.scales.matrix import inverse_error

INF = math.inf
NORMS = (1, 2, INF)
PAIRS = tuple(itertools.product(NORMS, NORMS))
HARD = {(INF, 2), (INF, 1), (2, 1)}
EVENT = (3, 2, 2)
DIM = 12


def rng(seed):
    return torch.Generator().manual_seed(seed)


def randn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=rng(seed), dtype=torch.float64).to(dtype)


def positive(*shape, seed=0, dtype=torch.float64):
    return (0.2 + 1.5 * torch.rand(*shape, generator=rng(seed), dtype=torch.float64)).to(dtype)


def orthonormal(dim, seed=0):
    return torch.linalg.qr(randn(dim, dim, seed=seed))[0]


def inverse_cosine(event):
    """Columns are the inverse DCT of unit vectors, taken from scipy."""
    units = np.eye(math.prod(event)).reshape(-1, *event)
    return fft.idctn(units, axes=(-2, -1), norm="ortho").reshape(len(units), -1).T


class Structure:
    """What a new scale supplies to inherit every test: its tensors, how to build it from them, and its dense twin."""

    def tensors(self):
        raise NotImplementedError

    def create(self, *tensors):
        raise NotImplementedError

    def dense(self, *tensors):
        raise NotImplementedError

    def singular(self):
        """A singular one, and what its refusal must name."""
        raise NotImplementedError


class ScalarCase(Structure):
    def tensors(self):
        return ()

    def create(self):
        return Scalar(0.7)

    def dense(self):
        return 0.7 * np.eye(DIM)

    def singular(self):
        return Scalar(0.0), "0"


class DiagonalCase(Structure):
    shape = EVENT

    def tensors(self):
        return (positive(*self.shape, seed=1),)

    def create(self, sigma):
        return Diagonal(sigma)

    def dense(self, sigma):
        return np.diag(sigma.numpy().ravel())

    def singular(self):
        sigma = positive(*EVENT)
        sigma[2, 0, 1] = 0.0
        return Diagonal(sigma), "sigma[2, 0, 1]"


class FlatDiagonalCase(DiagonalCase):
    shape = (DIM,)

    def singular(self):
        sigma = positive(DIM)
        sigma[7] = -0.5
        return Diagonal(sigma), "sigma[7]"


class DenseCase(Structure):
    def tensors(self):
        return (randn(DIM, DIM, seed=2) + 2 * torch.eye(DIM, dtype=torch.float64),)

    def create(self, a):
        return Dense(a)

    def dense(self, a):
        return a.numpy()

    def singular(self):
        return Dense(torch.ones(DIM, DIM)), "singular value 11"


class PermutationCase(DenseCase):
    """Neither symmetric nor with anything on its diagonal, and of negative determinant."""

    def tensors(self):
        return (torch.diag(positive(DIM, seed=3)).roll(1, 0),)


class BasisCase(Structure):
    def tensors(self):
        return orthonormal(DIM, seed=4), positive(DIM, seed=5)

    def create(self, q, s):
        return Basis(q, s)

    def dense(self, q, s):
        return q.numpy() @ np.diag(s.numpy())

    def singular(self):
        s = positive(DIM)
        s[3] = 0.0
        return Basis(orthonormal(DIM), s), "s[3]"


class DCTCase(Structure):
    event = EVENT

    def tensors(self):
        return (positive(*self.event, seed=6),)

    def create(self, s):
        return DCT(s)

    def dense(self, s):
        return inverse_cosine(self.event) @ np.diag(s.numpy().ravel())

    def singular(self):
        s = positive(*EVENT)
        s[0, 1, 0] = 0.0
        return DCT(s), "s[0, 1, 0]"


class OblongDCTCase(DCTCase):
    event = (1, 3, 4)


class LowRankCase(Structure):
    def tensors(self):
        return positive(DIM, seed=7), randn(DIM, 3, seed=8)

    def create(self, diag, factor):
        return LowRank(diag, factor)

    def dense(self, diag, factor):
        return np.diag(diag.numpy()) + factor.numpy() @ factor.numpy().T

    def singular(self):
        diag = positive(DIM)
        diag[4] = 0.0
        return LowRank(diag, torch.zeros(DIM, 1)), "diag[4]"


class SpikedCase(Structure):
    """Directions with less and with more than the others; the columns are not orthogonal."""

    def tensors(self):
        return positive(1, seed=9) + 1, randn(DIM, 3, seed=8) / 4, torch.tensor([-0.6, 1.5, 0.3], dtype=torch.float64)

    def create(self, base, factor, gains):
        return Spiked(base, factor, gains)

    def dense(self, base, factor, gains):
        return base.numpy() * np.eye(DIM) + (factor.numpy() * gains.numpy()) @ factor.numpy().T

    def singular(self):
        return Spiked(torch.ones(1), torch.eye(DIM, 1), -torch.ones(1)), "scale"


class BlockDiagonalCase(Structure):
    def tensors(self):
        return tuple(randn(k, k, seed=k) + 2 * torch.eye(k, dtype=torch.float64) for k in (5, 1, 4, 2))

    def create(self, *blocks):
        return BlockDiagonal(blocks)

    def dense(self, *blocks):
        out, at = np.zeros((DIM, DIM)), 0
        for b in blocks:
            out[at : at + len(b), at : at + len(b)] = b.numpy()
            at += len(b)
        return out

    def singular(self):
        return BlockDiagonal([torch.eye(4), torch.ones(8, 8)]), "blocks[1]"


CASES = {
    case.__name__.removesuffix("Case"): case()
    for case in (
        ScalarCase,
        DiagonalCase,
        FlatDiagonalCase,
        DenseCase,
        PermutationCase,
        BasisCase,
        DCTCase,
        OblongDCTCase,
        LowRankCase,
        SpikedCase,
        BlockDiagonalCase,
    )
}
every = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


def event_of(case):
    return case.event if isinstance(case, DCTCase) else EVENT


def scale_and_twin(case):
    tensors = case.tensors()
    return case.create(*tensors), case.dense(*tensors)


# --- brute force ---


def signs(dim):
    return np.array(list(itertools.product((-1.0, 1.0), repeat=dim)))


def true_norm(a, q, p):
    """max ‖Aδ‖_p over the ball ‖δ‖_q ≤ 1, by its vertices, or by those of the dual ball; p = q = 2 by eigenvalues."""
    if q == 1:
        return np.linalg.norm(np.vstack([np.eye(len(a)), -np.eye(len(a))]) @ a.T, ord=p, axis=1).max()
    if q == INF:
        return np.linalg.norm(signs(len(a)) @ a.T, ord=p, axis=1).max()
    if p == 2:
        return math.sqrt(np.linalg.eigvalsh(a.T @ a)[-1])
    duals = signs(len(a)) if p == 1 else np.eye(len(a))  # ‖A‖_(2→p) = ‖Aᵀ‖_(p*→2)
    return np.linalg.norm(duals @ a, axis=1).max()


def theory_bound(a, q, p):
    d, spectral, size = len(a), np.linalg.norm(a, 2), np.abs(a)
    return {
        (INF, 2): min(np.linalg.norm(size.sum(1)), math.sqrt(d) * spectral),
        (INF, 1): min(size.sum(), d * spectral),
        (2, 1): min(math.sqrt(d) * spectral, np.linalg.norm(size.sum(0))),
    }[q, p]


# --- the contract ---


@every
def test_dense_is_the_twin(case):
    scale, twin = scale_and_twin(case)
    assert scale.dense(DIM).numpy() == pytest.approx(twin, abs=1e-13)
    assert scale.dense(DIM).dtype == torch.float64
    assert scale.dim == (None if isinstance(scale, Scalar) else DIM)
    scale.check()
    scale.check_dim(DIM)


@every
@pytest.mark.parametrize("lead", [(), (4,), (4, 2)], ids=["event", "n", "n×batch"])
@pytest.mark.parametrize("flat", [False, True], ids=["image", "flat"])
def test_apply_and_solve_are_the_twins(case, lead, flat):
    scale, twin = scale_and_twin(case)
    z = randn(*lead, *((DIM,) if flat else event_of(case)), seed=9)
    rows = z.reshape(-1, DIM).numpy()
    applied, solved = scale.apply(z), scale.solve(z)
    assert applied.shape == solved.shape == z.shape
    assert applied.reshape(-1, DIM).numpy() == pytest.approx(rows @ twin.T, rel=1e-12, abs=1e-12)
    assert solved.reshape(-1, DIM).numpy() == pytest.approx(rows @ np.linalg.inv(twin).T, rel=1e-10, abs=1e-10)
    assert scale.solve(applied).numpy() == pytest.approx(z.numpy(), rel=1e-10, abs=1e-10)


@every
def test_applying_with_a_bounded_error_is_applying_and_the_bounds_hold(case):
    scale, twin = scale_and_twin(case)
    z = randn(50, DIM, seed=9)
    rows = scale.row_bounds(DIM)
    off = np.abs(scale.apply_bounded(z).numpy() - z.numpy() @ twin.T)
    # numpy's own sums are off by as much as DIM units.
    allowed = 2.0**-53 * (rows.lost.expand(DIM).numpy() + (DIM + 2) * np.linalg.norm(twin, axis=1))
    assert (off <= allowed * np.linalg.norm(z.numpy(), axis=1)[:, None]).all()
    assert rows.lengths.expand(DIM).numpy() == pytest.approx(np.linalg.norm(twin, axis=1), rel=1e-9)
    assert rows.width >= int((np.abs(twin) > 1e-15).sum(1).max())


@every
def test_applying_in_place_is_applying(case):
    scale = case.create(*case.tensors())
    z = randn(4, *event_of(case), seed=9, dtype=torch.float32)
    expected = scale.apply(z.clone())
    scale.apply_(z)
    assert torch.equal(z, expected)


@every
def test_precision_is_that_of_the_input_for_apply_and_double_for_solve(case):
    scale, twin = scale_and_twin(case)
    z = randn(5, *event_of(case), dtype=torch.float32)
    for one in (scale, scale.to(torch.float32)):
        assert one.apply(z).dtype == torch.float32
        assert one.solve(z).dtype == torch.float64
        assert one.apply(z).reshape(-1, DIM).numpy() == pytest.approx(z.reshape(-1, DIM).numpy() @ twin.T, abs=1e-4)


@every
def test_to_changes_the_tensors_and_nothing_else(case):
    scale, twin = scale_and_twin(case)
    single = scale.to(torch.float32)
    assert type(single) is type(scale)
    assert all(t.dtype == torch.float32 for t in single.tensors().values())
    assert len(single.tensors()) == len(scale.tensors()) == len(case.tensors())
    assert single.dense(DIM).numpy() == pytest.approx(twin, abs=1e-6)
    assert scale.to("cpu").dense(DIM).numpy() == pytest.approx(twin, abs=1e-13)


@every
def test_log_determinant_is_the_twins(case):
    scale, twin = scale_and_twin(case)
    assert scale.log_abs_det(DIM) == pytest.approx(np.linalg.slogdet(twin).logabsdet, rel=1e-11)


@every
@pytest.mark.parametrize(("q", "p"), PAIRS)
def test_inverse_norm_is_exact_where_promised_and_otherwise_between_truth_and_theory(case, q, p):
    scale, twin = scale_and_twin(case)
    inverse = np.linalg.inv(twin)
    value, truth = scale.inverse_norm(q, p, DIM), true_norm(inverse, q, p)
    assert value >= truth * (1 - 1e-10)
    if (q, p) not in HARD or isinstance(scale, Scalar | Diagonal):
        assert value == pytest.approx(truth, rel=1e-10)
    else:
        assert value <= theory_bound(inverse, q, p) * (1 + 1e-10)


@every
def test_largest_is_the_spectral_norm_or_above_it(case):
    scale, twin = scale_and_twin(case)
    spectral = np.linalg.norm(twin, 2)
    assert scale.largest() >= spectral * (1 - 1e-12)
    if not isinstance(scale, LowRank):
        assert scale.largest() == pytest.approx(spectral, rel=1e-12)


@every
def test_gradients_through_apply_are_right(case):
    z = randn(2, *event_of(case), seed=10).requires_grad_()
    tensors = [t.clone().requires_grad_() for t in case.tensors()]

    if isinstance(case, BasisCase):  # the basis itself may only move along orthonormal matrices
        basis, s = tensors

        def applied(z, s):
            return case.create(basis.detach(), s).apply(z)

        assert torch.autograd.gradcheck(applied, (z, s))
        case.create(basis, s.detach()).apply(z).square().sum().backward()
        assert basis.grad is not None and basis.grad.abs().sum() > 0
    else:
        assert torch.autograd.gradcheck(lambda z, *t: case.create(*t).apply(z), (z, *tensors))


@every
def test_a_singular_one_is_refused_by_name_and_its_regularised_neighbour_passes(case):
    scale, named = case.singular()
    with pytest.raises(SingularScale) as error:
        scale.check()
    assert named in str(error.value) and "regularised" in str(error.value)
    neighbour = scale.regularised(1e-3)
    neighbour.check()
    assert type(neighbour) is type(scale)
    singular_values = np.linalg.svd(neighbour.dense(DIM).numpy(), compute_uv=False)
    assert singular_values[-1] >= 1e-3 * (1 - 1e-3)
    assert math.isfinite(neighbour.inverse_norm(2, 2, DIM)) and math.isfinite(neighbour.log_abs_det(DIM))


@every
def test_regularising_an_invertible_one_moves_it_no_further_than_eps_asks(case):
    scale, twin = scale_and_twin(case)
    assert scale.regularised(1e-9).dense(DIM).numpy() == pytest.approx(twin, abs=1e-12)
    raised = np.linalg.svd(scale.regularised(50.0).dense(DIM).numpy(), compute_uv=False)
    assert raised[-1] >= 50 * (1 - 1e-12)


@every
@pytest.mark.parametrize("eps", (0.0, -1.0, math.nan))
def test_regularised_refuses_an_eps_that_is_not_positive(case, eps):
    with pytest.raises(InvalidInput):
        case.create(*case.tensors()).regularised(eps)


@every
@pytest.mark.parametrize("bad", (math.nan, INF, -INF))
def test_an_entry_that_is_not_finite_is_refused_by_name(case, bad):
    if isinstance(case, ScalarCase):
        with pytest.raises(SingularScale, match="finite"):
            Scalar(bad)
        return
    for k, original in enumerate(case.tensors()):
        tensors = [t.clone() for t in case.tensors()]
        where = tuple(n - 1 for n in original.shape)
        tensors[k][where] = bad
        with pytest.raises(SingularScale) as error:
            case.create(*tensors)
        assert str(list(where)) in str(error.value) and "finite" in str(error.value)


@every
@pytest.mark.parametrize("bad", (math.nan, INF))
def test_a_learned_entry_that_is_not_finite_is_refused_by_check(case, bad):
    for k, original in enumerate(case.tensors()):
        tensors = [t.clone() for t in case.tensors()]
        where = tuple(n - 1 for n in original.shape)
        tensors[k][where] = bad
        scale = case.create(*(t.requires_grad_() for t in tensors))
        with pytest.raises(SingularScale) as error:
            scale.check()
        assert str(list(where)) in str(error.value) and "finite" in str(error.value)


@every
def test_a_learned_one_is_a_constant_where_guarantees_are_made(case):
    """Warnings are errors here: a number taken from a tensor with a gradient would be one."""
    scale, twin = case.create(*(t.requires_grad_() for t in case.tensors())), scale_and_twin(case)[1]
    scale.check()
    y = randn(2, *event_of(case), seed=9)
    assert not scale.solve(y).requires_grad
    assert scale.log_abs_det(DIM) == pytest.approx(np.linalg.slogdet(twin).logabsdet, rel=1e-11)
    assert scale.largest() > 0 and all(scale.inverse_norm(q, p, DIM) > 0 for q, p in PAIRS)
    scale.regularised(1e-3)
    assert not any(t.requires_grad for t in scale.detached().tensors().values())


@every
def test_an_input_of_another_size_is_refused(case):
    scale = case.create(*case.tensors())
    if isinstance(scale, Scalar):
        assert scale.apply(torch.ones(2, 5)).shape == (2, 5)
        return
    for call in (
        lambda: scale.apply(torch.ones(2, 5)),
        lambda: scale.solve(torch.ones(2, 5)),
        lambda: scale.apply(torch.ones(3, 5, 4)),  # 60 numbers are five events, but not of this shape
        lambda: scale.check_dim(13),
        lambda: scale.log_abs_det(13),
        lambda: scale.inverse_norm(2, 2, 13),
    ):
        with pytest.raises(InvalidInput):
            call()


# --- one structure at a time ---


MALFORMED = {
    "dense not square": lambda: Dense(torch.ones(3, 4)),
    "dense a vector": lambda: Dense(torch.ones(4)),
    "dense empty": lambda: Dense(torch.ones(0, 0)),
    "dense complex": lambda: Dense(torch.eye(2, dtype=torch.complex64)),
    "diagonal boolean": lambda: Diagonal(torch.ones(3, dtype=torch.bool)),
    "diagonal empty": lambda: Diagonal(torch.ones(0)),
    "basis not square": lambda: Basis(torch.eye(4)[:, :3], torch.ones(3)),
    "basis not orthonormal": lambda: Basis(torch.eye(3) * 1.01, torch.ones(3)),
    "basis and scales differ": lambda: Basis(torch.eye(3), torch.ones(4)),
    "dct of a vector": lambda: DCT(torch.ones(4)),
    "low rank factor transposed": lambda: LowRank(torch.ones(4), torch.ones(2, 4)),
    "low rank factor a vector": lambda: LowRank(torch.ones(4), torch.ones(4)),
    "no blocks": lambda: BlockDiagonal([]),
    "block not square": lambda: BlockDiagonal([torch.eye(2), torch.ones(2, 3)]),
    "scale None": lambda: as_scale(None),
    "scale text": lambda: as_scale("1.0"),
    "scale True": lambda: as_scale(True),
    "scale a mapping": lambda: as_scale({}),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_scales_are_refused(name):
    with pytest.raises(InvalidInput):
        MALFORMED[name]()


def test_as_scale_reads_numbers_tensors_arrays_and_scales():
    assert isinstance(as_scale(2), Scalar) and as_scale(0.5).value == 0.5
    assert isinstance(as_scale(torch.tensor(0.5)), Scalar)
    diagonal = as_scale(torch.full((2, 3), 0.5))
    assert isinstance(diagonal, Diagonal) and diagonal.sigma.shape == (2, 3)
    assert isinstance(as_scale(np.ones((2, 3))), Diagonal)
    assert torch.equal(as_scale([1, 2]).dense(2), torch.diag(torch.tensor([1.0, 2.0], dtype=torch.float64)))
    scale = Dense(torch.eye(2))
    assert as_scale(scale) is scale


def test_negative_scalar_is_refused():
    with pytest.raises(SingularScale, match="above 0"):
        Scalar(-1.0).check()
    assert Scalar(-1.0).regularised(0.1).value == 1.0


def test_nearly_singular_dense_is_refused():
    a = torch.diag(torch.tensor([1.0, 1e-13], dtype=torch.float64))
    with pytest.raises(SingularScale, match="singular value 1"):
        Dense(a).check()
    Dense(a).regularised(1e-6).check()


def test_regularised_float32_matrix_stays_invertible_for_a_small_eps():
    Dense(torch.ones(2, 2)).regularised(1e-9).check()


def test_diagonal_of_a_batch_applies_to_each_input_its_own():
    sigma = positive(4, *EVENT)
    z = randn(5, 4, *EVENT)
    assert torch.equal(Diagonal(sigma).apply(z), z * sigma)


def test_scalar_of_one_costs_no_copy():
    z = torch.ones(2, 3)
    assert Scalar(1.0).apply(z) is z


def test_apply_is_not_the_transpose():
    a = torch.tensor([[1.0, 2.0], [0.0, 1.0]])
    z = torch.tensor([[0.0, 1.0]])
    assert Dense(a).apply(z).tolist() == [[2.0, 1.0]]
    assert Dense(a).solve(z).tolist() == [[-2.0, 1.0]]


def test_basis_columns_are_the_directions():
    q = torch.tensor([[0.0, 1.0], [-1.0, 0.0]])
    assert Basis(q, torch.tensor([3.0, 5.0])).apply(torch.tensor([1.0, 0.0])).tolist() == [0.0, -3.0]


@pytest.mark.parametrize("defect", (0.002, 0.01, 0.05, 0.18))
@pytest.mark.parametrize("spread", (True, False), ids=["along (1, …, 1)", "along e1"])
def test_a_basis_that_is_not_quite_orthonormal_is_refused_or_certified_soundly(defect, spread):
    """Q is the identity but for one direction, which it shortens: 1/s and Qᵀ then understate Σ⁻¹ along it."""
    dim = 2048
    u = torch.full((dim,), dim**-0.5, dtype=torch.float64) if spread else torch.eye(dim, dtype=torch.float64)[0]
    shrink = math.sqrt(1 - defect)
    q = torch.eye(dim, dtype=torch.float64) + (shrink - 1) * torch.outer(u, u)
    try:
        scale = Basis(q, torch.ones(dim))
    except InvalidInput:
        return
    assert scale.inverse_norm(2, 2, dim) >= 0.9995 / shrink
    assert float(scale.solve(u[None]).norm()) >= 0.9995 / shrink


def test_a_float32_basis_of_a_cifar_image_is_orthonormal_enough():
    basis = torch.linalg.qr(randn(3072, 3072, dtype=torch.float32))[0]
    assert defect(basis) < 1e-5
    assert Basis(basis, torch.full((3072,), 0.5)).inverse_norm(2, 2, 3072) == pytest.approx(2.0, rel=1e-5)


def test_the_defect_is_measured_again_after_the_basis_changed():
    basis = torch.eye(4)
    Basis(basis, torch.ones(4))
    basis.mul_(1.01)
    with pytest.raises(InvalidInput, match="not orthonormal"):
        Basis(basis, torch.ones(4))
    learned = torch.eye(4, requires_grad=True)
    scale = Basis(learned, torch.ones(4))
    with torch.no_grad():
        learned.mul_(1.01)
    with pytest.raises(InvalidInput, match="not orthonormal"):
        scale.check()


@given(st.integers(2, 40), st.floats(1e-9, 0.5), st.integers(0, 2**31))
def test_the_defect_is_never_understated(dim, size, seed):
    q = orthonormal(dim, seed) + size / dim * randn(dim, dim, seed=seed + 1)
    truth = float(torch.linalg.matrix_norm(q.T @ q - torch.eye(dim, dtype=torch.float64), ord=2))
    assert truth <= measured_defect(q) <= 4 * truth


@pytest.mark.parametrize("p", [1, 2, math.inf])
def test_dct_norms_are_of_exact_cosines(p):
    """At this size cosines of large angles are off by up to 2e-14, and the smallest one is 7e-5."""
    size, frequency, place = 1024, 947, 957
    exact = exact_cosine_matrix(size)
    s = torch.full((1, size), 1e6, dtype=torch.float64)
    s[0, frequency] = 1.0
    true = float(torch.linalg.vector_norm(exact[:, place] / s[0], ord=p))
    region, box = Region(DCT(s), 1.0, p, (1, size)), torch.zeros(1, size, dtype=torch.float64)
    box[0, place] = 1.0
    assert (
        float(region.reach()[0, place]) * true == pytest.approx(1, rel=4e-12) and region.budget_factor(box) * true <= 1
    )


def test_dct_keeps_the_mean_of_a_channel_at_frequency_zero():
    s = torch.zeros(2, 3, 4)
    s[:, 0, 0] = 1.0
    image = DCT(s).apply(torch.ones(2, 3, 4))
    assert image == pytest.approx(torch.full((2, 3, 4), 1 / math.sqrt(12)), abs=1e-6)


@pytest.mark.parametrize("make", [Diagonal, DCT])
def test_imagenet_sized_scales_work_without_a_matrix(make):
    """A 150,528-square matrix would take 180 GB: that this runs at all is the point."""
    shape = (3, 224, 224)
    dim = math.prod(shape)
    sigma = positive(*shape, seed=11)
    scale = make(sigma)
    scale.check()
    z = randn(2, *shape, seed=12)
    assert scale.solve(scale.apply(z)).numpy() == pytest.approx(z.numpy(), abs=1e-9)
    assert scale.log_abs_det(dim) == pytest.approx(float(sigma.log().sum()), rel=1e-12)
    smallest = float(sigma.min())
    for q, p in PAIRS:
        value = scale.inverse_norm(q, p, dim)
        assert math.isfinite(value) and value > 0
        if make is Diagonal and q <= p:
            assert value == pytest.approx(1 / smallest)
    assert scale.inverse_norm(2, 2, dim) == pytest.approx(1 / smallest)
    assert math.isfinite(scale.regularised(0.5).log_abs_det(dim))


def test_sums_bound_beats_the_spectral_one_for_a_basis_with_few_small_scales():
    dim = 64
    s = torch.ones(dim, dtype=torch.float64)
    s[0] = 0.01
    value = Basis(orthonormal(dim), s).inverse_norm(INF, 2, dim)
    assert value < 0.9 * math.sqrt(dim) / 0.01


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("q", "p"), PAIRS)
def test_low_rank_norms_at_large_d_are_sound_and_three_pairs_stay_exact(monkeypatch, q, p, seed):
    monkeypatch.setattr(matrix, "MAX_FORMED", 4)
    diag = positive(DIM, seed=seed) ** 3
    factor = randn(DIM, 1 + seed, seed=100 + seed) * 10.0 ** (seed % 3 - 1)
    inverse = np.linalg.inv(LowRankCase().dense(diag, factor))
    value, truth = LowRank(diag, factor).inverse_norm(q, p, DIM), true_norm(inverse, q, p)
    assert value >= truth * (1 - 1e-9)
    if (q, p) in {(1, 2), (2, INF), (1, INF)}:
        assert value == pytest.approx(truth, rel=1e-9)
    identity = DIM ** (max(0, 1 / 2 - 1 / q) + max(0, 1 / p - 1 / 2))
    assert value <= identity / float(diag.min()) * (1 + 1e-9)


def test_low_rank_with_a_factor_of_full_rank_leaves_nothing_beside_its_span():
    factor = torch.linalg.qr(randn(4, 4).double())[0] * 1e12
    y = randn(5, 4)
    found = LowRank(torch.full((4,), 1e-20, dtype=torch.float64), factor).solve(y)
    assert found.numpy() == pytest.approx((y.double() / 1e24).numpy(), rel=1e-9, abs=0)


@pytest.mark.parametrize("size", [1e-300, 1e-180, 1.0, 1e180, 1e300])
@pytest.mark.parametrize("p", [1, 2, INF])
def test_the_length_of_a_change_whose_squares_are_no_numbers(p, size):
    y = torch.tensor([[3.0, -4.0, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64) * size
    expected = {1: 7.0, 2: 5.0, INF: 4.0}[p] * size
    assert induced.lengths(y, p).tolist() == pytest.approx([expected, 0.0], rel=1e-14)
    ones = Diagonal(torch.ones(3, dtype=torch.float64))
    assert ones.solved_norm(y, p, 3).tolist() == pytest.approx([expected, 0.0], rel=1e-14)
    assert induced.lengths(torch.tensor([[math.inf, 1.0]]), p).tolist() == [math.inf]


def test_low_rank_large_d_path_runs_where_the_matrix_would_not_fit():
    dim = 150528
    scale = LowRank(positive(dim), randn(dim, 4) / 100)
    z = randn(2, 3, 224, 224)
    assert scale.solve(scale.apply(z)).numpy() == pytest.approx(z.numpy(), abs=1e-8)
    assert all(0 < scale.inverse_norm(q, p, dim) < INF for q, p in PAIRS)


def test_low_rank_stays_sound_when_the_factor_dwarfs_the_diagonal():
    """Σ = (1e-9 + 1e8) I: Woodbury's two terms cancel to nothing, the norm of the inverse must not."""
    scale = LowRank(torch.full((2,), 1e-9, dtype=torch.float64), 1e4 * torch.eye(2, dtype=torch.float64))
    try:
        scale.check()
    except SingularScale:
        return
    assert scale.inverse_norm(2, 2, 2) >= 1e-8 * (1 - 1e-6)
    assert float(scale.solve(torch.tensor([[1e8, 0.0]])).abs().max()) == pytest.approx(1.0, rel=1e-6)


@pytest.mark.parametrize("size", (1e-3, 1.0, 1e5))
@pytest.mark.parametrize("rank", (2, DIM, DIM + 3))
def test_low_rank_loses_no_digits_to_a_large_factor(size, rank):
    """FFᵀ is up to 1e13 times the diagonal; the dense twin is inverted in 60 digits."""
    diag, factor = positive(DIM) * 1e-2, size * randn(DIM, rank, seed=21)
    with mp.workdps(60):
        f = mp.matrix(factor.tolist())
        inverse = np.array(((mp.diag(diag.tolist()) + f * f.T) ** -1).tolist(), dtype=float)
    scale = LowRank(diag, factor)
    if size < 1e5 or rank >= DIM:
        scale.check()
    else:
        with pytest.raises(SingularScale, match="regularised"):
            scale.check()
        scale.regularised(10.0).check()
    solved = scale.solve(torch.eye(DIM, dtype=torch.float64)).numpy()
    assert solved == pytest.approx(inverse, rel=1e-7, abs=1e-9 * np.abs(inverse).max())
    assert scale.inverse_norm(2, 2, DIM) >= np.linalg.norm(inverse, 2) * (1 - 1e-9)


@pytest.mark.parametrize("rank", (1, 3, DIM))
@pytest.mark.parametrize(("q", "p"), PAIRS)
def test_low_rank_norms_at_large_d_stay_sound_where_the_factor_dwarfs_the_diagonal(monkeypatch, q, p, rank):
    diag, factor = positive(DIM) ** 4 * 1e-4, 30 * randn(DIM, rank, seed=22)
    with mp.workdps(60):
        f = mp.matrix(factor.tolist())
        inverse = np.array(((mp.diag(diag.tolist()) + f * f.T) ** -1).tolist(), dtype=float)
    monkeypatch.setattr(matrix, "MAX_FORMED", 4)
    assert LowRank(diag, factor).inverse_norm(q, p, DIM) >= true_norm(inverse, q, p) * (1 - 1e-9)


@given(
    entries=st.lists(st.floats(-4, 4).filter(lambda v: abs(v) > 1e-3), min_size=9, max_size=9),
    pair=st.sampled_from(PAIRS),
    delta=st.lists(st.floats(-1, 1), min_size=3, max_size=3),
)
def test_no_perturbation_is_stretched_by_more_than_the_norm(entries, pair, delta):
    a = torch.tensor(entries, dtype=torch.float64).reshape(3, 3) + 10 * torch.eye(3, dtype=torch.float64)
    scale, (q, p) = Dense(a), pair
    d = torch.tensor([delta], dtype=torch.float64)
    size = float(torch.linalg.vector_norm(d, ord=q))
    assert float(torch.linalg.vector_norm(scale.solve(d), ord=p)) <= scale.inverse_norm(q, p, 3) * size * (1 + 1e-9)


def test_the_smallest_singular_value_alone_would_be_unsound():
    """What the published R' = min σ · R claims for a general Σ: a planted fault that the contract above would catch."""
    inverse = np.linalg.inv(DenseCase().tensors()[0].numpy())
    assert true_norm(inverse, INF, 2) > 1.01 * np.linalg.norm(inverse, 2)


@every
def test_a_copy_is_the_same_in_memory_of_its_own(case):
    made = case.create(*case.tensors())
    asked = []
    assert made.known("x", lambda: asked.append(1) or 7) == made.known("x", lambda: 8) == 7 and asked == [1]
    copy = made.copied()
    assert copy.same_as(made) and copy is not made
    known = copy.known("x", lambda: 9)
    assert known == (9 if made.elementwise else 7)  # what a matrix was measured for, with effort, is known of its copy
    for name, tensor in made.tensors().items():
        assert copy.tensors()[name].data_ptr() != tensor.data_ptr()
        tensor.mul_(2.0)  # another state: nothing is known of it, and the copy is as it was
        assert made.known("x", lambda: 8) == 8 and not copy.same_as(made)
        break
    assert copy.known("x", lambda: 8) == known


@every
def test_a_change_that_pytorch_does_not_count_is_seen_by_a_copy(case):
    made = case.create(*case.tensors())
    assert made.known("x", lambda: 7) == 7
    for tensor in list(made.tensors().values())[-1:]:  # a scalar has none
        tensor.data.mul_(0.5)
        assert made.copied().known("x", lambda: 9) == 9


def test_content_tells_one_kind_and_one_number_from_another():
    assert Scalar(2.0).same_as(Scalar(2.0)) and not Scalar(2.0).same_as(Scalar(2.5))
    ones = torch.ones(3)
    assert not Diagonal(ones).same_as(Scalar(1.0)) and not Diagonal(ones).same_as(Diagonal(ones[:2]))
    assert Diagonal(ones).same_as(Diagonal(ones + 1e-9), torch.allclose)
    assert BlockDiagonal([torch.eye(2)]).content().keys() == {"blocks.0"}


def test_what_is_measured_follows_a_change_in_place():
    sigma = Dense(torch.eye(3))
    first = sigma.known("norm", lambda: sigma.inverse_norm(2, 2, 3))
    sigma.matrix[0, 0] = 0.5
    assert (first, sigma.known("norm", lambda: sigma.inverse_norm(2, 2, 3))) == (1.0, 2.0)


def test_every_public_scale_is_under_contract():
    public = {getattr(scales, name) for name in scales.__all__ if name not in ("Scale", "as_scale")}
    assert public == {type(case.create(*case.tensors())) for case in CASES.values()}


@pytest.mark.parametrize("condition", (1e5, 1e8, 1e11))
def test_rounding_does_not_make_a_badly_conditioned_inverse_smaller_than_it_is(condition):
    for seed in range(6):
        rng = torch.Generator().manual_seed(seed)
        left, right = (torch.linalg.qr(torch.randn(5, 5, generator=rng, dtype=torch.float64)).Q for _ in range(2))
        sizes = torch.logspace(0, -math.log10(condition), 5, dtype=torch.float64)
        scale = Dense(left @ torch.diag(sizes) @ right)
        with mp.workdps(60):
            inverse = mp.matrix(scale.matrix.tolist()) ** -1
            truths = {(1, INF): max(map(abs, inverse)), (2, 2): mp.svd_r(inverse, compute_uv=False)[0]}
        for (q, p), truth in truths.items():
            assert truth <= scale.inverse_norm(q, p, 5) <= truth * (1 + 1e-14 * condition)


# --- what inverting in float64 loses ---


def growing(n: int, c: float, seed: int) -> torch.Tensor:
    """A matrix of small condition on which the pivots of an LU decomposition grow as 2ⁿ (Wilkinson)."""
    rng = torch.Generator().manual_seed(seed)
    a = torch.eye(n, dtype=torch.float64) - c * torch.tril(torch.ones(n, n, dtype=torch.float64), -1)
    a[:, -1] = 1
    return a * (1 + 0.01 * torch.rand(n, n, generator=rng, dtype=torch.float64))


@pytest.mark.parametrize(("n", "c"), [(48, 0.97), (60, 0.97), (62, 0.9), (68, 0.97), (70, 1.0)])
def test_growing_pivots_make_no_region_too_large(n, c):
    """Contained were points 74 % outside: the condition, which is below 60, does not tell how far an inverse is off."""
    for seed in range(3):
        a = growing(n, c, seed)
        scale = Dense(a)
        scale.check()
        u, s, vh = torch.linalg.svd(a)
        inverse = (vh.T / s) @ u.T
        deltas = torch.cat([randn(50, n, seed=seed), a.T])
        for p in (1, 2, INF):
            region = Region(scale, 1.0, p, (n,))
            true = torch.linalg.vector_norm(deltas @ inverse.T, ord=p, dim=1)
            assert bool((region.size(deltas) >= true * (1 - 1e-11)).all())
            columns = torch.linalg.vector_norm(inverse, ord=p, dim=0)
            assert bool((region.reach() * columns <= 1 + 1e-11).all())
            assert region.inscribed_radius(1) <= (1 + 1e-11) / float(columns.max())


@pytest.mark.parametrize("condition", (1e6, 1e8, 1e10))
def test_spiked_scales_that_nearly_cancel_make_no_radius_too_large(condition):
    dim = 80
    for seed in range(4):
        rng = torch.Generator().manual_seed(seed)
        factor = torch.linalg.qr(torch.randn(dim, 3, generator=rng, dtype=torch.float64)).Q
        scale = Spiked(
            torch.tensor([1.0], dtype=torch.float64),
            factor,
            torch.tensor([1 / condition - 1, -0.5, 0.9], dtype=torch.float64),
        )
        with mp.workdps(40):
            f = mp.matrix(factor.tolist())
            found = mp.eig(mp.diag(scale.gains.tolist()) * (f.T * f), left=False, right=False)
            least = float(min(mp.re(each) for each in found) + 1)
        assert Region(scale, 1.0, 2, (dim,)).inscribed_radius() <= least
        assert scale.lost < 1e-3


def test_budgets_over_blocks_have_what_inverting_a_block_lost():
    """Of a badly conditioned block in a box of few corners, and in groups, nothing was added."""
    for seed in range(20):
        rng = torch.Generator().manual_seed(seed)
        left, right = (torch.linalg.qr(torch.randn(3, 3, generator=rng, dtype=torch.float64)).Q for _ in range(2))
        block = left @ torch.diag(torch.tensor([1, 1e-5, 2e-11], dtype=torch.float64)) @ right
        region = Region(BlockDiagonal([block, torch.eye(1, dtype=torch.float64)]), 1.0, 2, (4,))
        with mp.workdps(60):
            inverse = mp.matrix(block.tolist()) ** -1
            true = float(1 / mp.sqrt(sum(inverse[i, 0] ** 2 for i in range(3))))
        box = torch.tensor([1.0, 0, 0, 0], dtype=torch.float64)
        groups = Budget(torch.tensor([1.0, 0.0], dtype=torch.float64), torch.tensor([0, 1, 1, 1]))
        assert region.budget_factor(box) <= true and region.budget_factor(groups) <= true


def test_what_mixes_coordinates_contains_nothing_that_rounding_hides():
    """Along the wide direction Σ⁻¹δ is small, and last digits of the narrow one's are much beside it."""
    factor = torch.full((6, 1), 6**-0.5, dtype=torch.float64)
    narrow = LowRank(torch.full((6,), 1e-9, dtype=torch.float64), factor)
    cosines = DCT(torch.logspace(-9, 0, 30, dtype=torch.float64).reshape(5, 6).flip(0, 1))
    for scale, dim in ((narrow, 6), (cosines, 30)):
        with mp.workdps(60):
            matrix = mp.matrix(scale.dense(dim).tolist())
            deltas = scale.dense(dim).T[:4]
            true = [mp.norm(mp.lu_solve(matrix, mp.matrix(delta.tolist())), p=2) for delta in deltas]
        sizes = Region(scale, 1.0, 2, (dim,)).size(deltas)
        assert all(float(size) >= float(each) * (1 - 1e-9) for size, each in zip(sizes, true, strict=True))


def test_scales_too_far_apart_are_refused():
    with pytest.raises(SingularScale, match="regularised"):
        DCT(torch.tensor([[1.0, 1e-13]], dtype=torch.float64)).check()
    with pytest.raises(SingularScale, match="accurately"):
        LowRank(torch.tensor([1.0, 1e-30], dtype=torch.float64), torch.ones(2, 1, dtype=torch.float64) * 1e-16).check()


def test_a_basis_that_is_not_quite_orthonormal_makes_no_radius_too_large_in_any_norm():
    dim = 300
    w = randn(dim, 1, seed=5)
    w = w / w.norm()
    basis = torch.eye(dim, dtype=torch.float64) + ((1 - 6e-5) ** 0.5 - 1) * w @ w.T
    inverse = torch.linalg.inv(basis)
    for p in (1, INF):
        region = Region(Basis(basis, torch.ones(dim, dtype=torch.float64)), 1.0, p, (dim,))
        assert region.inscribed_radius(p) <= 1 / float(torch.linalg.matrix_norm(inverse, ord=p))


def test_extreme_scales_have_a_radius():
    for size in (1e300, 1e-300):
        region = Region(torch.full((3,), size, dtype=torch.float64), 1.0, 2)
        assert region.inscribed_radius(INF) == pytest.approx(size / 3**0.5, rel=1e-12)


def conditioned(dim: int, condition: float, seed: int = 0) -> torch.Tensor:
    """Two random rotations around scales that fall evenly from 1."""
    scales = torch.logspace(0, -math.log10(condition), dim, dtype=torch.float64)
    return (orthonormal(dim, seed) * scales) @ orthonormal(dim, seed + 1)


@pytest.mark.parametrize(("dim", "condition"), [(10, 1e11), (300, 1e6), (300, 1e11), (784, 1e4), (784, 1e11)])
def test_a_large_matrix_loses_little(dim, condition, monkeypatch):
    """A bound of the residual's rounding with d in it refused a condition of 1e11 at d = 784, and took SVDs from 1e6 on."""
    monkeypatch.delattr(torch.linalg, "svd")
    a = conditioned(dim, condition)
    scale = Dense(a)
    scale.check()
    assert scale.lost < 1e-13 * condition + 1e-11
    least = float(torch.linalg.svdvals(a)[-1])
    assert Region(scale, 1.0, 2, (dim,)).inscribed_radius() <= least * (1 + 1e-15 * condition)


@pytest.mark.parametrize("condition", [1e2, 1e6, 1e10])
def test_what_is_solved_for_leaves_nothing(condition):
    """A registry bounds sizes by ΣΣ⁻¹Δ − Δ: a product with the inverse alone leaves so much that it could tell nothing."""
    a = conditioned(60, condition)
    for scale in (Dense(a), BlockDiagonal([a[:20, :20], a])):
        matrix = scale.dense(scale.dim)
        wide = randn(5, scale.dim, seed=4) @ matrix.T
        solved = scale.solve(wide)
        left = torch.linalg.vector_norm(wide - solved @ matrix.T, dim=1)
        assert bool((left <= 1e-13 * torch.linalg.vector_norm(solved, dim=1)).all())


def test_an_inverse_with_an_entry_that_is_no_number_is_not_taken_for_exact():
    a = torch.eye(600, dtype=torch.float64)
    for wrong in (math.nan, INF):
        x = a.clone()
        x[3, 590] = wrong
        assert inverse_error(a, x) == INF


@pytest.mark.parametrize("p", [1, 2, INF])
def test_membership_forms_no_matrix(p, monkeypatch):
    """Of each of many regions, under a Σ of its own, it may be asked once."""
    factor = randn(40, 3, seed=1)
    for scale in (LowRank(positive(40), factor), Spiked(torch.ones(1, dtype=torch.float64), factor, torch.ones(3))):
        monkeypatch.setattr(type(scale), "inverse_norm", None)
        assert Region(scale, 1.0, p, (40,)).contains(torch.zeros(2, 40)).all()


def test_rounding_hides_no_narrow_direction_of_a_basis():
    """A coordinate that hardly shares in the narrowest direction: what it has of it is lost among the products for Q⁻¹."""
    dim = 12
    for seed in range(20):
        w = randn(dim, 1, seed=seed)
        w[0] = 1e-8
        rest = randn(dim, dim - 1, seed=seed + 100)
        q = torch.linalg.qr(torch.cat([w, rest], 1)).Q
        s = torch.ones(dim, dtype=torch.float64)
        s[0] = 1e-11
        with mp.workdps(60):
            inverse = (mp.matrix(q.tolist()) * mp.diag(s.tolist())) ** -1
            true = [1 / mp.norm(inverse[:, i], 2) for i in range(dim)]
        reach = Region(Basis(q, s), 1.0, 2, (dim,)).reach()
        assert all(float(found) <= float(each) for found, each in zip(reach, true, strict=True))
