"""How far a coordinate may move: against a search along each axis, against the dense twin, alone and together."""

import numpy as np
import pytest
import torch

from test_region import DIM, NORMS, SCALES, SHAPE, positive, randn
from ucan import Gaussian, InvalidInput, Region, SmoothedClassifier, catalogue
from ucan.scales import DCT, Dense, LowRank

every_scale = pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES.keys())


def searched(region, direction, steps=60):
    """The largest t with t·direction inside, by bisection on ``contains``."""
    low, high = 0.0, 1e6
    for _ in range(steps):
        middle = (low + high) / 2
        inside = bool(region.contains(middle * direction[None])[0])
        low, high = (middle, high) if inside else (low, middle)
    return low


@every_scale
@pytest.mark.parametrize("norm", NORMS)
def test_reach_is_what_a_search_finds_and_what_the_dense_inverse_says(scale, norm):
    region = Region(scale, 1.7, norm, SHAPE)
    reach = region.reach()
    assert reach.shape == SHAPE and reach.dtype == torch.float64
    columns = np.linalg.norm(np.linalg.inv(scale.dense(DIM).numpy()), ord=norm, axis=0)
    assert reach.flatten().tolist() == pytest.approx(1.7 / columns, rel=1e-9)
    for i in range(DIM):
        unit = torch.eye(DIM, dtype=torch.float64)[i].reshape(SHAPE)
        assert float(reach.flatten()[i]) == pytest.approx(searched(region, unit), rel=1e-9)
        assert region.contains((1 - 1e-9) * reach.flatten()[i] * unit[None]).all()
        assert not region.contains(1.000001 * reach.flatten()[i] * unit[None]).any()


def test_the_reach_of_a_diagonal_is_its_radius_times_sigma_and_never_more():
    sigma = positive(5, seed=3)
    region = Region(sigma, 1.3, 2)
    exact = 1.3 * sigma
    assert (region.reach() <= exact).all() and torch.allclose(region.reach(), exact, rtol=1e-11)


def test_an_empty_region_reaches_nowhere():
    assert Region(1.0, 0.0, 2, shape=(3,)).reach().tolist() == [0.0, 0.0, 0.0]
    assert Region(1.0, 0.0, 2, shape=(3,)).reach_together([0, 2]).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("norm", NORMS)
def test_reach_is_sound_where_the_inverse_was_hard_to_compute(norm):
    hilbert = Dense(1 / (torch.arange(8.0)[:, None] + torch.arange(8.0) + 1).double())  # condition 1.5e10
    assert (Region(hilbert, 1.0, norm).reach() <= _exact_reach(hilbert.matrix, norm) * (1 + 1e-15)).all()


def _exact_reach(matrix, norm):
    from fractions import Fraction

    n = len(matrix)
    rows = [
        [Fraction(float(v)) for v in row] + [Fraction(int(i == j)) for j in range(n)] for i, row in enumerate(matrix)
    ]
    for i in range(n):
        pivot = rows[i][i]
        rows[i] = [v / pivot for v in rows[i]]
        for j in range(n):
            if j != i:
                rows[j] = [a - rows[j][i] * b for a, b in zip(rows[j], rows[i], strict=True)]
    inverse = torch.tensor([[float(v) for v in row[n:]] for row in rows], dtype=torch.float64)
    return 1 / torch.linalg.vector_norm(inverse, ord=norm, dim=0)


@pytest.mark.parametrize("norm", NORMS)
def test_reach_needs_no_matrix_of_the_whole_dimension(norm, monkeypatch):
    from ucan.scales import base

    low = LowRank(positive(50, seed=1), randn(50, 3, seed=2))
    whole = Region(low, 1.0, norm).reach()
    monkeypatch.setattr(base, "MAX_FORMED", 16)
    assert torch.allclose(Region(low, 1.0, norm).reach(), whole, rtol=1e-12)


@pytest.mark.parametrize("norm", NORMS)
def test_the_reach_under_cosines_of_a_large_picture_agrees_with_single_directions(norm):
    scale = DCT(positive(3, 40, 56, seed=9))
    region = Region(scale, 2.0, norm, (3, 40, 56))
    for place in ((0, 0, 0), (1, 17, 5), (2, 39, 55)):
        unit = torch.zeros(1, 3, 40, 56, dtype=torch.float64)
        unit[(0, *place)] = 1
        assert float(region.reach()[place]) == pytest.approx(2.0 / float(region.size(unit)[0]), rel=1e-9)


@every_scale
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("chosen", [[0], [1, 4], [0, 2, 3, 5]], ids=str)
def test_coordinates_that_move_together_stay_inside(scale, norm, chosen):
    region = Region(scale, 1.7, norm, SHAPE)
    each = region.reach_together(chosen)
    rng = np.random.default_rng(0)
    delta = torch.zeros(400, DIM, dtype=torch.float64)
    signs = rng.choice([-1.0, 1.0], (400, len(chosen)))
    signs[200:] *= rng.uniform(0, 1, (200, len(chosen)))
    delta[:, chosen] = torch.as_tensor(signs) * each * (1 - 1e-9)
    assert region.contains(delta.reshape(-1, *SHAPE)).all()
    if scale.elementwise:
        assert torch.allclose(each, region.reach().flatten()[chosen] / len(chosen) ** (1 / norm), rtol=1e-9)


def test_a_box_of_what_is_reached_together_is_covered_and_a_larger_one_is_not():
    region = Region(positive(4, seed=2), 1.1, 2)
    box = torch.zeros(4, dtype=torch.float64)
    box[[0, 3]] = region.reach_together([0, 3])
    assert region.covers(box * (1 - 1e-9)) and not region.covers(box * 1.0001)


@pytest.mark.parametrize("chosen", [[], [0, 0], [7], [-1]], ids=str)
def test_coordinates_that_do_not_exist_are_refused(chosen):
    with pytest.raises(InvalidInput):
        Region(1.0, 1.0, 2, shape=(4,)).reach_together(chosen)


def test_no_answer_of_a_linear_classifier_changes_within_its_reach():
    w, b = torch.tensor([1.0, -2.0, 0.5]).double(), 0.3
    g = SmoothedClassifier(lambda x: (x @ w + b > 0).long(), Gaussian(scale=0.5), num_classes=2)
    x = torch.tensor([[1.0, -0.4, 0.2]]).double()
    (c,) = g.certify(x, n0=50, n=2000, norm=2)
    for i, far in enumerate(c.region.reach().tolist()):
        for sign in (-1, 1):
            moved = x.clone()
            moved[0, i] += sign * far
            assert int((moved @ w + b > 0)[0]) == c.prediction
    assert c.radius > 0


def test_every_kind_of_scale_is_among_those_that_are_searched():
    """Here, and for `covers` in test_budget.py: corners, random changes and the dense twin."""
    assert {catalogue.SCALES.load(name) for name in catalogue.SCALES.own} == {type(scale) for scale in SCALES.values()}
