"""Metrics against cases worked by hand."""

import math

import numpy as np
import pytest
from scipy import stats

from ucan.errors import InvalidInput
from ucan.results import metrics


def columns() -> dict[str, np.ndarray]:
    """Eight inputs: right at 0.25, 0.5, 0.5, 1.0 and 2.0, wrong at 3.0, and two abstentions."""
    return {
        "label": np.zeros(8, np.int64),
        "prediction": np.array([0, 0, 0, 0, 0, 1, -1, -1]),
        "correct": np.array([1, 1, 1, 1, 1, 0, 0, 0], bool),
        "abstained": np.array([0, 0, 0, 0, 0, 0, 1, 1], bool),
        "radius": np.array([0.25, 0.5, 0.5, 1.0, 2.0, 3.0, 0.0, 0.0]),
        "alm": np.array([0.5, 1.0, 1.0, 2.0, 4.0, 6.0, 0.0, 0.0]),
        "log_volume": np.array([-4.0, -2.0, -2.0, 0.0, 3.0, 9.0, -math.inf, -math.inf]),
        "n0": np.full(8, 100),
        "n": np.full(8, 1000),
        "seconds": np.full(8, 0.5),
    }


def test_certified_accuracy_by_hand() -> None:
    at = [0, 0.25, 0.250001, 0.5, 1.0, 2.0, 2.5, 3.0]
    assert metrics.certified_accuracy(columns(), at).tolist() == [5 / 8, 5 / 8, 4 / 8, 4 / 8, 2 / 8, 1 / 8, 0, 0]
    assert metrics.certified_accuracy(columns(), [0, 1, 4, 6], by="alm").tolist() == [5 / 8, 4 / 8, 1 / 8, 0]
    assert float(metrics.certified_accuracy(columns(), 0.5)) == 0.5


def test_an_abstention_is_never_certified_even_if_marked_correct() -> None:
    c = columns()
    c["correct"][6] = True
    assert metrics.clean_accuracy(c) == 5 / 8


def test_the_other_figures_by_hand() -> None:
    found = metrics.summary(columns())
    assert found == metrics.Summary(
        inputs=8,
        clean_accuracy=5 / 8,
        abstention_rate=2 / 8,
        average_radius=4.25 / 8,
        median_radius=(0.25 + 0.5) / 2,  # of 0, 0, 0, 0.25, 0.5, 0.5, 1, 2
        mean_log_volume=-1.0,
        samples=8800,
        seconds=4.0,
    )
    assert metrics.average_radius(columns(), by="alm") == 8.5 / 8


def test_clopper_pearson_against_scipy_and_its_ends() -> None:
    for k, n in [(0, 10), (1, 10), (5, 8), (10, 10), (499, 500)]:
        low, high = metrics.clopper_pearson(k, n)
        expected = stats.binomtest(k, n).proportion_ci(0.95, method="exact")
        assert (float(low), float(high)) == pytest.approx((expected.low, expected.high), abs=1e-12)
    low, high = metrics.certified_band(columns(), [0, 2.5])
    assert low[1] == 0 and low[0] < 5 / 8 < high[0]
    assert (float(low[0]), float(high[0])) == pytest.approx((0.2448632, 0.9147666), abs=1e-6)


def test_unknown_sizes_stay_unknown() -> None:
    c = columns()
    c["radius"][3] = math.nan
    assert metrics.certified_accuracy(c, [0.0])[0] == 5 / 8
    assert np.isnan(metrics.certified_accuracy(c, [0.25, 9.0])).all()
    assert all(np.isnan(end).all() for end in metrics.certified_band(c, [0.25]))
    assert math.isnan(metrics.average_radius(c)) and math.isnan(metrics.median_radius(c))
    c = columns()
    c["radius"][5] = math.nan  # of a wrong answer: nobody needs it
    assert metrics.certified_accuracy(c, [0.25])[0] == 5 / 8


def test_shares_are_over_the_rows_with_a_label() -> None:
    c = columns()
    c["label"][5:] = -1  # the wrong answer and both abstentions
    found = metrics.summary(c)
    assert (found.inputs, found.clean_accuracy, found.abstention_rate) == (8, 1.0, 2 / 8)
    assert (found.average_radius, found.median_radius) == (4.25 / 5, 0.5)
    assert metrics.certified_accuracy(c, [1.0])[0] == 2 / 5
    assert float(metrics.certified_band(c, 1.0)[0]) == float(metrics.clopper_pearson(2, 5)[0])
    c["label"][:], c["correct"][:] = -1, False
    found = metrics.summary(c)
    assert math.isnan(found.clean_accuracy) and math.isnan(found.average_radius) and math.isnan(found.median_radius)
    assert np.isnan(metrics.certified_band(c, [0.0])).all() and found.abstention_rate == 2 / 8
    c["label"][:], c["correct"][:2] = -2, True  # an import without labels that tells which rows are right
    assert metrics.clean_accuracy(c) == 2 / 8


def test_no_rows() -> None:
    empty = {name: values[:0] for name, values in columns().items()}
    found = metrics.summary(empty)
    assert found.inputs == found.samples == 0 and math.isnan(found.clean_accuracy) and math.isnan(found.median_radius)
    assert all(np.isnan(end).all() for end in metrics.certified_band(empty, [0.0]))


@pytest.mark.parametrize("at", [-0.1, math.nan, math.inf])
def test_radii_that_make_no_sense(at: float) -> None:
    with pytest.raises(InvalidInput, match="at least 0"):
        metrics.certified_accuracy(columns(), [at])


def test_a_measure_that_does_not_exist() -> None:
    with pytest.raises(InvalidInput, match='"radius", "alm" or "sigma"'):
        metrics.certified_accuracy(columns(), [0], by="volume")  # type: ignore[arg-type]
