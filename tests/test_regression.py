"""Percentiles under noise: intervals contain the truth, and are not much wider than it; for every law that knows T_r."""

import json
import math
import threading

import numpy as np
import pytest
import torch
from scipy import integrate, optimize, stats

import ucan
from ucan import scales
from ucan.errors import InvalidInput, ModelError
from ucan.questions.ranks import lower_rank
from ucan.questions.records import from_dict
from ucan.questions.shift import Shift
from ucan.report.answer_charts import interval_chart, interval_curve
from ucan.verify_answer import verify_answer

W = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
RNG = np.random.default_rng(0)
Q = torch.from_numpy(np.linalg.qr(RNG.normal(size=(3, 3)))[0])
A = torch.from_numpy(RNG.normal(size=(3, 3))) + 2 * torch.eye(3, dtype=torch.float64)
SHAPES = {
    "isotropic": (None, torch.eye(3, dtype=torch.float64)),
    "diagonal": (
        torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64),
        torch.diag(torch.tensor([0.5, 1.0, 2.0])).double(),
    ),
    "dense": (scales.Dense(A), A),
    "basis": (
        scales.Basis(Q, torch.tensor([0.3, 1.0, 1.5], dtype=torch.float64)),
        Q @ torch.diag(torch.tensor([0.3, 1.0, 1.5])).double(),
    ),
}


def linear(batch):
    return batch.double() @ W


def regressor(kind, law, model=linear):
    scale = SHAPES[kind][0]
    return ucan.SmoothedRegressor(model, law, None if scale is None else ucan.Fixed(scale))


def spread(kind, lam):
    """The standard deviation of w·Σε."""
    return lam * float((SHAPES[kind][1].T @ W).norm())


def test_2000_intervals_contain_the_exact_percentiles():
    """A miss is an interval that does not contain all percentiles of w·(x + δ), ‖Σ⁻¹δ‖ ≤ r; α is for both sides."""
    lam, misses, cases = 0.7, 0, 0
    x = torch.from_numpy(np.random.default_rng(1).normal(size=(100, 3)))
    for kind in SHAPES:
        for seed, (p, r) in enumerate([(0.5, 0.2), (0.5, 1.4), (0.1, 0.5), (0.8, 0.05), (0.9, 0.7)]):
            s, z = spread(kind, lam), stats.norm.ppf(p)
            for xi, one in zip(
                x, regressor(kind, ucan.Gaussian(lam)).certify(x, radius=r, p=p, n=300, seed=seed), strict=True
            ):
                low, high = float(xi @ W) + s * (z - r / lam), float(xi @ W) + s * (z + r / lam)
                misses += not float(one.lower) <= low <= high <= float(one.upper)
                cases += 1
    assert cases == 2000
    assert misses <= stats.binom.ppf(0.999, cases, 0.001)


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("ratio", [0.3, 1.0, 2.0])
def test_intervals_are_within_five_percent_of_the_exact_width(kind, ratio):
    lam = 0.5
    (one,) = regressor(kind, ucan.Gaussian(lam)).certify(torch.zeros(1, 3).double(), radius=ratio * lam, n=100_000)
    exact = 2 * spread(kind, lam) * ratio
    assert exact <= float(one.upper - one.lower) <= 1.05 * exact


def cdf_of_sum(y, w, cdf, pdf, reach):
    """P(w₁ε₁ + w₂ε₂ ≤ y) by quadrature over ε₂."""
    return integrate.quad(lambda e: cdf((y - w[1] * e) / w[0]) * pdf(e), -reach, reach, limit=400, points=[0.0])[0]


@pytest.mark.parametrize(
    ("law", "one", "reach", "move"),
    [
        (
            ucan.Laplace(0.6),
            stats.laplace(scale=0.6),
            12.0,
            lambda p, r: stats.laplace(scale=0.6).cdf(stats.laplace(scale=0.6).ppf(p) - r),
        ),
        (ucan.Uniform(0.9), stats.uniform(-0.9, 1.8), 0.9, lambda p, r: p - r / 1.8),
    ],
    ids=["laplace", "uniform"],
)
def test_other_laws_against_a_numerical_computation(law, one, reach, move):
    """The levels by the laws' own formulas, and the percentiles of w·ε by quadrature and root finding."""
    w, r, p, n = (1.0, 0.5), 0.4, 0.5, 60_000
    g = ucan.SmoothedRegressor(lambda b: b.double() @ torch.tensor(w).double(), law)
    (found,) = g.certify(torch.zeros(1, 2).double(), radius=r, p=p, n=n, norm=1)
    for level, end in ((move(p, r), float(found.lower)), (1 - move(1 - p, r), float(found.upper))):
        exact = optimize.brentq(lambda y, level=level: cdf_of_sum(y, w, one.cdf, one.pdf, reach) - level, -8, 8)
        density = (cdf_of_sum(exact + 1e-4, w, one.cdf, one.pdf, reach) - level) / 1e-4
        assert abs(end - exact) <= 6 * math.sqrt(level * (1 - level) / n) / density
        assert (end - exact) * (1 if level > 0.5 else -1) >= 0  # outwards
    assert found.lower <= -r and r <= found.upper  # the largest move of w·x itself, r·‖w‖∞


def test_the_common_formula_is_unsound_for_uniform_noise_and_ours_is_not():
    """d = 2, λ = 1, r = 0.2: a set of probability 0.9 may keep 0.710, where ρ⁻¹(ρ(0.9) − r) is 0.735."""
    law, r = ucan.Uniform(1.0), 0.2
    naive = law.probability(law.radius(0.9, math.inf, 2) - r, math.inf, 2)
    assert naive == pytest.approx(0.735, abs=5e-4) and law.shifted(0.9, r, math.inf, 2) == pytest.approx(
        0.710, abs=1e-9
    )

    def outside(batch):  # 0 with probability 0.9 at 0, and 0.71 at (0.2, 0.2): 1 on a tenth of what the cubes share
        strip = (batch > -0.8).all(1) & (batch <= 1).all(1) & (batch[:, 0] > 1 - 0.4 / 1.8)
        return ((batch > 1).any(1) | strip).double()

    g, p = ucan.SmoothedRegressor(outside, law), 0.725
    (here,) = g.certify(torch.zeros(1, 2), radius=0.0, p=p, n=60_000)
    (moved,) = g.certify(torch.full((1, 2), 0.2), radius=0.0, p=p, n=60_000)
    assert float(here.upper) == 0 and float(moved.lower) == 1  # the percentile at 0.725 did move, from 0 to 1
    (claim,) = g.certify(torch.zeros(1, 2), radius=r, p=p, n=60_000, norm=math.inf)
    assert float(claim.upper) == 1


def test_curves_hold_at_once_and_share_alpha():
    g, x = regressor("diagonal", ucan.Gaussian(0.5)), torch.zeros(1, 3).double()
    radii = [0.0, 0.1, 0.3, 0.6]
    (curve,), (single,) = g.certify(x, radius=radii, n=5000), g.certify(x, radius=0.3, n=5000)
    assert curve.lowers.shape == (4, 1) and bool(
        (curve.lowers.diff(dim=0) <= 0).all() and (curve.uppers.diff(dim=0) >= 0).all()
    )
    low, high = curve.at(0.3)
    assert low < single.lower and high > single.upper  # α/4 for each radius
    assert torch.equal(curve.at(0.2)[0], low) and curve.radius == pytest.approx(0.6 * 0.5)  # Σ's smallest scale is 0.5
    with pytest.raises(InvalidInput, match=r"up to 0\.6"):
        curve.at(0.7)


def test_backwards_the_largest_radius_is_close_to_the_exact_one_and_never_above():
    for kind in SHAPES:
        s, t = spread(kind, 1.0), 0.8
        (one,) = regressor(kind, ucan.Gaussian(0.5)).certify(torch.zeros(1, 3).double(), within=t, n=100_000, n0=20_000)
        exact = (t - abs(float(one.value))) / s
        assert 0.9 * exact <= one.region.radius <= exact
        assert float(one.lower) == pytest.approx(float(one.value) - t) and one.within == t


def test_backwards_abstains_where_noise_alone_moves_the_value_further():
    def steps(batch):
        return 100.0 * (batch[:, 0] > 0)

    g = ucan.SmoothedRegressor(steps, ucan.Gaussian(0.5))
    (one,) = g.certify(torch.zeros(1, 3), within=1.0, n=2000)
    assert one.abstained and "spread" in one.reason


def test_a_level_beyond_the_end_is_infinite_or_the_stated_range():
    g = ucan.SmoothedRegressor(lambda b: b[:, :2].sigmoid(), ucan.Gaussian(0.5))
    x = torch.zeros(1, 3)
    (open_,) = g.certify(x, radius=5.0, n=100)
    assert open_.lower.tolist() == [-math.inf] * 2 and open_.upper.tolist() == [math.inf] * 2
    (closed,) = g.certify(x, radius=5.0, n=100, range=(0.0, 1.0))
    assert closed.lower.tolist() == [0, 0] and closed.upper.tolist() == [1, 1]
    assert "−∞" in str(open_) and from_dict(open_.to_dict()).upper.tolist() == [math.inf] * 2
    with pytest.raises(ModelError, match="outside the stated range"):
        g.certify(x, radius=0.1, n=100, range=(0.4, 0.6))


def test_answers_that_are_no_numbers_count_against_both_ends():
    def broken(batch):
        return torch.where(batch[:, 0] > 1.0, torch.nan, batch[:, 0])  # a sixth of the answers

    (one,) = ucan.SmoothedRegressor(broken, ucan.Gaussian(1.0)).certify(torch.zeros(1, 2), radius=0.1, p=0.5, n=20_000)
    assert 0.14 < one.invalid / 20_000 < 0.18
    # As if they were −∞ for the one end, and ∞ for the other.
    assert float(one.lower) <= stats.norm.ppf(stats.norm.cdf(-0.1) - 0.1587) and 0.1 <= float(one.upper) < 0.2
    (high,) = ucan.SmoothedRegressor(broken, ucan.Gaussian(1.0)).certify(torch.zeros(1, 2), radius=0.1, p=0.9, n=20_000)
    assert float(high.upper) == math.inf


@pytest.mark.parametrize(
    ("law", "norm"),
    [
        (ucan.Gaussian(0.5), 2),
        (ucan.Laplace(0.5), 1),
        (ucan.Uniform(0.5), 1),
        (ucan.Uniform(0.5), math.inf),
        (ucan.ExpInf(0.5), 1),
        (ucan.ExpInf(0.5), math.inf),
        (ucan.PowerLaw(0.5, a=8.0), 1),
        (ucan.GeneralNormal(0.5, beta=1.5), 1),
    ],
    ids=str,
)
@pytest.mark.parametrize("asked", [{"radius": 0.2}, {"within": 0.5, "n0": 100, "stop": 0.3}], ids=str)
def test_no_more_misses_than_alpha_allows_under_every_law(law, norm, asked):
    """100 inputs each at α = 0.1, moved as far as the claim goes, along the direction that the number follows."""
    x = torch.linspace(-1, 1, 100, dtype=torch.float64)[:, None].repeat(1, 3)
    g = ucan.SmoothedRegressor(lambda b: b[:, 0], law, model_id="first")
    claims = [
        (float(one.lower), float(one.upper), float(at[0]), one.region.radius)
        for one, at in zip(g.certify(x, n=200, alpha=0.1, norm=norm, **asked), x, strict=True)
        if not one.abstained
    ]
    assert claims
    missed = sum(low > at - r + 1e-9 or high < at + r - 1e-9 for low, high, at, r in claims)
    assert missed <= stats.binom.ppf(1 - 1e-5, len(claims), 0.1)


@pytest.mark.parametrize("p", [1e-320, 1e-17, 1e-16, 1e-13, 1e-9, 1e-5, 1 - 1e-5, 1 - 1e-9, 1 - 2.0**-53])
def test_percentiles_at_the_very_ends_hold_after_far_moves(p):
    """1 − 1e-17 is 1 in float64, and a set of probability 1 stays one; the one that is meant comes down to nothing."""
    g = ucan.SmoothedRegressor(lambda b: b[:, 0], ucan.Gaussian(1.0), model_id="first")
    exact = stats.norm.ppf(p)
    for r in (0.5, abs(exact) - 2, abs(exact) + 2):
        (one,) = g.certify(torch.zeros(1, 1, dtype=torch.float64), radius=r, p=p, n=2000, alpha=1e-6)
        assert float(one.lower) <= exact - r and float(one.upper) >= exact + r
        assert one.follows(Shift.at(g.M.at(torch.zeros(1, 1)), torch.zeros(1, 1), g.sizes, 2))


def test_an_output_without_any_number_has_no_value_in_files_and_pictures_either():
    def one_missing(batch):
        return torch.stack([torch.full_like(batch[:, 0], torch.nan), batch[:, 0]], 1)

    g = ucan.SmoothedRegressor(one_missing, ucan.Gaussian(0.5))
    (answer,) = g.certify(torch.zeros(1, 3), radius=[0.1, 0.2], n=1000)
    for one in (answer, from_dict(json.loads(json.dumps(answer.to_dict())))):
        assert math.isnan(one.value[0]) and abs(float(one.value[1])) < 0.1
        assert one.lower[0] == -math.inf and one.upper[0] == math.inf and one.lower[1] > -1
        assert one.under[:, 0].tolist() == one.over[:, 0].tolist() == [1000, 1000]
        chart, curve = interval_chart([(0, one), (1, one)], None), interval_curve(one, None)
        assert [bar["value"] for bar in chart["bars"]] == [None, None] and curve["value"] is None
        assert verify_answer(one, g, torch.zeros(1, 3)).stands
    (stated,) = g.certify(torch.zeros(1, 3), radius=0.1, n=1000, range=(-9.0, 9.0))
    assert (stated.lower[0], stated.upper[0]) == (-9, 9) and verify_answer(stated, g, torch.zeros(1, 3)).stands
    assert g.certify(torch.zeros(1, 3), within=1.0, n=1000)[0].abstained


def test_numbers_at_the_end_of_their_precision():
    """Whole numbers stay what they are; numbers that files cannot tell from ∞ are as good as none."""
    x = torch.zeros(1, 2, dtype=torch.float64)
    price = 123_456_789
    g = ucan.SmoothedRegressor(lambda b: torch.full((len(b),), price), ucan.Gaussian(1.0), model_id="a price")
    (one,) = g.certify(x, radius=0.1, n=500)
    assert float(one.lower) == float(one.value) == float(one.upper) == price

    def vast(b):
        return 1.5e308 * (b[:, 0] > -9).double()

    (one,) = ucan.SmoothedRegressor(vast, ucan.Gaussian(1.0), model_id="vast").certify(x, radius=0.1, n=500)
    again = from_dict(json.loads(json.dumps(one.to_dict())))
    assert float(one.lower) == float(again.lower) == -math.inf and float(again.upper) == math.inf


def test_a_range_that_is_open_to_one_side():
    x, g = torch.zeros(1, 2), ucan.SmoothedRegressor(lambda b: b[:, 0].abs(), ucan.Gaussian(1.0), model_id="size")
    for stated in ((0.0, math.inf), (0.0, None)):
        (one,) = g.certify(x, radius=5.0, n=100, range=stated)
        assert (float(one.lower), float(one.upper), one.limits) == (0.0, math.inf, (0.0, None))
        json.dumps(one.to_dict(), allow_nan=False)
    for wrong in ((math.inf, None), (None, math.nan), (1e308, None)):
        with pytest.raises(InvalidInput, match="finite numbers"):
            g.certify(x, radius=0.1, n=100, range=wrong)


def test_boxes_have_one_interval_for_each_coordinate():
    def boxes(batch):  # (n, 2 boxes, 4 coordinates)
        return batch[:, :1, None] + torch.arange(8.0).reshape(2, 4)

    (one,) = ucan.SmoothedRegressor(boxes, ucan.Gaussian(0.1)).certify(torch.zeros(1, 2), radius=0.05, n=4000)
    assert one.lower.shape == (2, 4) and bool((one.lower < torch.arange(8.0).reshape(2, 4)).all())
    assert "and 4 more" in str(one) and torch.equal(from_dict(one.to_dict()).uppers, one.uppers)


@pytest.mark.parametrize("n", [1, 5, 50, 400])
@pytest.mark.parametrize("level", [0.01, 0.5, 0.97])
def test_ranks_are_the_largest_that_the_binomial_distribution_allows(n, level):
    k = lower_rank(n, level, 0.01)
    assert k == 0 or stats.binom.cdf(k - 1, n, level) <= 0.01
    assert k == n or stats.binom.cdf(k, n, level) > 0.01
    assert lower_rank(n, 0.0, 0.01) == 0 and lower_rank(n, 1.0, 0.01) == n


def test_a_record_keeps_all_of_an_interval():
    (one,) = regressor("basis", ucan.Gaussian(0.5)).certify(torch.zeros(1, 3).double(), radius=[0.1, 0.2], p=0.4, n=500)
    again = from_dict(one.to_dict())
    assert again.to_dict() == one.to_dict() and str(again) == str(one) and one.scope == "pipeline"
    assert one.evidence.counts == (500,) and one.evidence.bound == "order statistics"


def test_a_scikit_learn_regressor_is_taken_as_it_is_and_a_classifier_is_refused():
    from sklearn.linear_model import LogisticRegression, Ridge

    data, y = RNG.normal(size=(50, 3)), RNG.normal(size=50)
    model = Ridge().fit(data, y)
    (one,) = ucan.SmoothedRegressor(model, ucan.Gaussian(0.1)).certify(torch.zeros(1, 3).double(), radius=0.1, n=500)
    assert float(one.lower) < float(model.predict(np.zeros((1, 3)))[0]) < float(one.upper)
    with pytest.raises(ModelError, match="is a classifier"):
        ucan.SmoothedRegressor(LogisticRegression().fit(data, y > 0), ucan.Gaussian(0.1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "either radius"),
        ({"radius": 0.1, "within": 1.0}, "either radius"),
        ({"radius": [0.2, 0.1]}, "rise"),
        ({"radius": -0.1}, "at least 0"),
        ({"radius": 0.1, "p": 1.0}, "strictly between"),
        ({"within": 0.0}, "above 0"),
        ({"radius": 0.1, "range": (1.0, 0.0)}, "must rise"),
    ],
)
def test_what_makes_no_sense_is_refused(options, message):
    with pytest.raises(InvalidInput, match=message):
        regressor("isotropic", ucan.Gaussian(0.5)).certify(torch.zeros(1, 3), n=100, **options)


def test_the_size_of_forward_passes_changes_nothing():
    g, x = (
        regressor("isotropic", ucan.Gaussian(0.5)),
        torch.randn(3, 3, generator=torch.Generator().manual_seed(0)).double(),
    )
    all_ = [g.certify(x, radius=0.2, n=700, batch_size=size) for size in (None, 7, 130)]
    apart = [g.certify(x[i : i + 1], radius=0.2, n=700)[0] for i in range(3)]
    for answers in (*all_[1:], apart):
        assert all(
            torch.equal(a.lowers, b.lowers) and torch.equal(a.uppers, b.uppers)
            for a, b in zip(all_[0], answers, strict=True)
        )


def test_a_model_that_mixes_its_batch_is_refused():
    with pytest.raises(ModelError, match="other company"):
        ucan.SmoothedRegressor(lambda b: b[:, 0] - b[:, 0].mean(), ucan.Gaussian(0.5)).certify(
            torch.ones(1, 3), radius=0.1, n=100
        )


def test_noise_of_one_input_is_said_to_be_frozen():
    class Own(ucan.Generator):
        scope = "frozen"

        def forward(self, x):
            return x.new_zeros(()), scales.Diagonal(0.5 + x[0].abs())

    (one,) = ucan.SmoothedRegressor(linear, ucan.Gaussian(0.5), Own()).certify(torch.ones(1, 3), radius=0.1, n=200)
    assert one.scope == "frozen" and "frozen" in str(one)


def test_another_way_to_run_a_model_must_give_the_same_numbers():
    from ucan.questions.readers import Numbers

    f, numbers = Numbers(linear), torch.randn(100, 2, generator=torch.Generator().manual_seed(0)) + 3
    assert f.differing(numbers, numbers + 1e-4, 2e-3) == 0
    assert f.differing(numbers, numbers * 1.1, 2e-3) > 0.9
    missing = numbers.clone()
    missing[:10] = torch.nan
    assert f.differing(missing, missing, 2e-3) == 0 and f.differing(missing, numbers, 2e-3) == 0.1
    assert (
        repr(regressor("isotropic", ucan.Gaussian(0.5)))
        == "SmoothedRegressor(linear, Gaussian(scale=0.5), Isotropic())"
    )


class Unidentified:
    """A model whose values cannot be read, so that it has no identity."""

    def __init__(self, factor: float) -> None:
        self.factor, self.lock = factor, threading.Lock()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum(1) * self.factor


def test_an_answer_about_a_model_without_identity_is_not_confirmed() -> None:
    x = torch.ones(1, 3, dtype=torch.float64)
    here, other = (ucan.SmoothedRegressor(Unidentified(k), ucan.Gaussian(1.0)) for k in (1.0, 1.02))
    (answer,) = here.certify(x, radius=0.5, n=1000)
    for g in (here, other):
        verdict = verify_answer(answer, g, x, replay=False)
        (model,) = [check for check in verdict.checks if check.name == "model"]
        assert "identifies its model" in model.detail and not model.confirmed and verdict.confirms is None


def test_fresh_samples_that_could_reject_nothing_confirm_nothing() -> None:
    torch.manual_seed(0)
    x, net = torch.rand(1, 3), torch.nn.Linear(3, 3).eval()
    g = ucan.SmoothedClassifier(net, ucan.Gaussian(0.1), num_classes=3)
    number = ucan.SmoothedRegressor(lambda batch: batch.sum(1), ucan.Gaussian(0.1))
    answers = [
        (number, *number.certify(x, radius=0.05, n=500)),
        (g, *g.certify(x, n=500, top=2)),
        (g, *g.certify(x, n=500, confidence=0.2)),
    ]
    for asked, answer in answers:
        few = verify_answer(answer, asked, x, n=1, replay=False)
        assert few.stands and not few.tested and few.confirms is None
        assert "too few to reject anything" in few.checks[-1].detail
        many = verify_answer(answer, asked, x, n=1000, replay=False)
        assert many.stands and many.tested and answer.least_p_value(1000) <= 0.001 < answer.least_p_value(1)
