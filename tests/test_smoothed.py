"""The smoothed classifier: certificates against known truths, and every wrong argument refused before any work."""

import ast
import inspect
import json
import math
import re
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

import ucan
from ucan import (
    Abstention,
    Certificate,
    ExpInf,
    Fixed,
    Gaussian,
    InvalidInput,
    Laplace,
    ModelError,
    Pattern,
    PowerLaw,
    Prediction,
    SmoothedClassifier,
    Uniform,
    UnsupportedNorm,
)
from ucan.fingerprint import checksums, weights_hash
from ucan.plan import CertifyPlan, PredictPlan
from ucan.questions.confidence import Confidence
from ucan.scales import DCT, Basis, Dense, Diagonal, LowRank
from ucan.sidecar import input_hash
from ucan.stop_option import parse_stop

INF = math.inf
DIM = 6
LAM = 0.5


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=rng(seed), dtype=torch.float64)


def positive(*shape, seed=0):
    return 0.3 + 1.5 * torch.rand(*shape, generator=rng(seed), dtype=torch.float64)


def linear_model(dim, num_classes):
    model = nn.Sequential(nn.Flatten(), nn.Linear(dim, num_classes)).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, generator=rng(2))
    return model


# --- a linear classifier under Gaussian noise: the truth is margin/‖Σᵀw‖ ---

SCALES = {
    "diagonal": Diagonal(positive(DIM, seed=1)),
    "dense": Dense(randn(DIM, DIM, seed=2) + 2 * torch.eye(DIM, dtype=torch.float64)),
    "basis": Basis(torch.linalg.qr(randn(DIM, DIM, seed=3))[0], positive(DIM, seed=4)),
}
W, B, MEAN = randn(DIM, seed=5), 0.7, 0.2 * randn(DIM, seed=6)


def linear(batch):
    """Class 1 on the positive side of the hyperplane, of three classes."""
    return (batch @ W.to(batch) + B > 0).long()


def inputs_and_truth(scale, count, seed=0):
    """Inputs whose top class has probability .9 to .99, and the radius at which each really loses it."""
    stretch = float((scale.dense(DIM).T @ W).norm())  # the noise's size along w, over λ
    z = 1.2816 + (2.3263 - 1.2816) * torch.rand(count, generator=rng(seed), dtype=torch.float64)
    x = randn(count, DIM, seed=seed + 1)
    wanted = LAM * stretch * z  # the margin, μ included
    x += ((wanted - (x + MEAN) @ W - B) / W.square().sum())[:, None] * W
    return x, wanted / stretch


def certify_linear(scale, x, **settings):
    return SmoothedClassifier(linear, Gaussian(scale=LAM), Fixed(scale, MEAN), num_classes=3).certify(x, **settings)


@pytest.mark.parametrize(("alpha", "count"), [(0.001, 2000), (0.05, 1000)])
@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES.keys())
def test_linear_certificates_exceed_the_truth_no_more_often_than_alpha_allows(scale, alpha, count):
    x, truth = inputs_and_truth(scale, count, seed=round(1000 * alpha))
    outcomes = certify_linear(scale, x, n0=30, n=500, alpha=alpha)
    radii = torch.tensor([0.0 if c.abstained else c.region.radius for c in outcomes], dtype=torch.float64)
    exceeding = int((radii > truth).sum())
    assert exceeding <= stats.binom.ppf(0.9999, count, alpha)
    if alpha == 0.05:  # here there is room to see that the bound is not merely loose
        assert exceeding >= stats.binom.ppf(0.0001, count, 0.6 * alpha)
    assert sum(c.prediction == 1 for c in outcomes) >= 0.999 * count
    to_plane = (x + MEAN) @ W + B
    for norm, dual in ((2, 2), (INF, 1), (1, INF)):
        distance = to_plane / torch.linalg.vector_norm(W, ord=dual)
        balls = torch.tensor([0.0 if c.abstained else c.region.inscribed_radius(norm) for c in outcomes])
        assert int((balls > distance).sum()) <= exceeding


@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES.keys())
def test_a_hundred_thousand_samples_come_within_three_percent_of_the_truth(scale):
    x, truth = inputs_and_truth(scale, 15, seed=9)
    check_median(certify_linear(scale, x, n=100_000, alpha=0.001), truth)


def check_median(outcomes, truth):
    ratio = np.array([c.region.radius for c in outcomes]) / truth.numpy()
    assert 0.97 <= np.median(ratio) <= 1.0
    assert (ratio > 1).sum() <= stats.binom.ppf(0.9999, len(ratio), 0.001)


@pytest.mark.slow
@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES.keys())
def test_two_thousand_certificates_of_a_hundred_thousand_samples_hold_and_are_sharp(scale):
    x, truth = inputs_and_truth(scale, 700, seed=10)  # of each of the three kinds
    check_median(certify_linear(scale, x, n=100_000, alpha=0.001), truth)


@pytest.mark.parametrize(
    ("law", "norm", "statistic"),
    [
        (Gaussian(scale=LAM), 2, lambda y: y[:, 0]),
        (Gaussian(scale=LAM), 1, lambda y: y[:, 0]),
        (Gaussian(scale=LAM), INF, lambda y: y.sum(1) / DIM),
        (Laplace(scale=LAM), 1, lambda y: y[:, 0]),
        (Uniform(scale=LAM), 1, lambda y: y[:, 0]),
        (ExpInf(scale=LAM), INF, lambda y: (y.amax(1) + y.amin(1)) / 2),
    ],
    ids=["Gaussian-2", "Gaussian-1", "Gaussian-inf", "Laplace-1", "Uniform-1", "ExpInf-inf"],
)
def test_the_worst_classifier_of_every_tight_law_is_certified_up_to_its_true_distance(law, norm, statistic):
    """Each statistic moves by exactly the size of the shift along the worst direction, so its value is the truth."""
    worst = torch.ones(DIM) if norm == INF else torch.eye(DIM)[0]
    distance = law.radius(0.9, norm, DIM)
    g = SmoothedClassifier(lambda y: (statistic(y) > 0).long(), law, num_classes=2)
    x = (worst * distance).expand(150, DIM) + 1e-7 * randn(150, DIM).float()
    radii = np.array([c.radius for c in g.certify(x, n0=50, n=5000, alpha=0.001, norm=norm)])
    assert (radii > distance + 1e-5).sum() <= stats.binom.ppf(0.9999, 150, 0.001)
    assert np.median(radii) > 0.9 * distance


def test_power_law_certificate_stays_below_the_true_distance():
    law = PowerLaw(scale=1.0, a=DIM + 4.0)
    g = SmoothedClassifier(lambda y: (y[:, 0] > 0).long(), law, num_classes=2)
    (c,) = g.certify(torch.eye(DIM)[:1] * 0.8, n=5000, norm=1)
    assert 0 < c.radius < 0.8


def test_two_class_bound_certifies_without_a_majority_and_up_to_the_truth():
    cuts = torch.tensor(stats.norm.ppf(np.concatenate([[0.45], 0.45 + 0.55 * np.arange(1, 9) / 9])))

    def f(y):
        return torch.bucketize(y[:, 0].contiguous(), cuts)

    g = SmoothedClassifier(f, Gaussian(scale=1.0), num_classes=9 + 1)
    x = torch.zeros(1, 2, dtype=torch.float64)
    (binary,) = g.certify(x, n=20_000)
    (two,) = g.certify(x, n=20_000, bound="two-class")
    truth = (stats.norm.ppf(0.45) - stats.norm.ppf(0.55 / 9)) / 2
    assert isinstance(binary, Abstention) and isinstance(two, Certificate)
    assert 0.9 * truth < two.radius < truth
    assert two.p_upper is not None and two.p_lower < 0.45 and two.p_upper > 0.55 / 9
    assert two.p_lower == ucan.bounds.lower_bound(int(two.counts[0]), 20_000, 0.0005)
    assert two.p_upper == ucan.bounds.upper_bound(int(two.counts[1:].max()), 20_000, 0.0005)


# --- one Σ, many descriptions ---


@pytest.mark.parametrize("sigma", (0.5, 0.3))
def test_scalar_diagonal_and_dense_sigma_identity_give_the_same_votes(sigma):
    shape = (1, 4, 4)
    generators = [
        Fixed(sigma),
        Fixed(torch.full(shape, sigma)),
        Fixed(torch.full((16,), sigma, dtype=torch.float64)),
        Fixed(Dense(sigma * torch.eye(16))),
        Fixed(Basis(torch.eye(16), torch.full((16,), sigma))),
        Fixed(LowRank(torch.full((16,), sigma), torch.zeros(16, 1))),
    ]
    x = 0.2 * randn(3, *shape).float()
    model = linear_model(16, 5)
    outcomes = [SmoothedClassifier(model, Gaussian(scale=1.0), M, 5).certify(x, n=2000, seed=3) for M in generators]
    reference = [c.counts.tolist() for c in outcomes[0]]
    for other in outcomes[1:]:
        assert [c.counts.tolist() for c in other] == reference
        assert [c.radius for c in other] == pytest.approx([c.radius for c in outcomes[0]], rel=1e-6)
    assert any(max(counts) < 2000 for counts in reference)


def test_isotropic_noise_is_cohens_result():
    g = SmoothedClassifier(linear, Gaussian(scale=LAM), num_classes=3)
    (c,) = g.certify(inputs_and_truth(Diagonal(torch.ones(DIM)), 1)[0], n=1000)
    p = stats.binomtest(int(c.counts[1]), 1000, alternative="greater").proportion_ci(0.999, "exact").low
    assert c.p_lower == pytest.approx(p, rel=1e-9)
    assert c.radius == pytest.approx(LAM * stats.norm.ppf(p), rel=1e-9)
    assert c.alm == pytest.approx(c.radius, rel=1e-12) and c.p_upper is None and c.mean is None


@pytest.mark.parametrize("norm", (1, 2, INF))
def test_certificate_says_what_the_design_says(norm):
    sigma = positive(DIM)
    law = Gaussian(scale=LAM)
    (c,) = SmoothedClassifier(linear, law, Fixed(sigma), 3).certify(torch.ones(1, DIM) * W.float(), n=1000, norm=norm)
    assert isinstance(c, Certificate) and c.prediction == 1 and not c.abstained
    assert c.norm == norm and c.region.norm == 2 and c.scope == "pipeline"
    assert c.region.radius == law.radius(c.p_lower, 2, DIM)
    assert c.radius == c.region.inscribed_radius(norm)
    assert c.alm == pytest.approx(float(sigma.log().mean().exp()) * law.radius(c.p_lower, norm, DIM), rel=1e-12)
    assert c.log_volume == c.region.log_volume
    e = c.evidence
    assert (e.n0, e.n, e.alpha, e.seed, e.law, e.bound, e.arithmetic) == (100, 1000, 0.001, 0, law, "binary", "real")
    assert e.generator == "Fixed(Diagonal)" and e.weights_hash is None and len(e.input_hash) == 64
    assert c.counts.dtype == torch.int64 and c.counts.shape == (3,) and int(c.counts.sum()) + c.invalid == 1000


def test_the_offset_is_kept_and_does_not_enter_the_radius():
    x, _ = inputs_and_truth(SCALES["dense"], 1)
    (c,) = certify_linear(SCALES["dense"], x, n=1000)
    assert torch.equal(c.mean.double().flatten(), MEAN)
    assert c.region.radius == Gaussian(scale=LAM).radius(c.p_lower)


# --- abstention and invalid votes ---


def coin(batch):
    return (batch[:, 0] > 0).long()


def test_an_abstention_is_a_typed_outcome_with_its_reason():
    (c,) = SmoothedClassifier(coin, Gaussian(scale=1.0), num_classes=2).certify(torch.zeros(1, 3), n=1000)
    assert isinstance(c, Abstention) and c.abstained and c.prediction is None and c.region is None
    assert c.radius == 0.0 and c.alm == 0.0 and c.log_volume == -INF and 0 < c.p_lower <= 0.5
    assert "1/2" in c.reason
    assert int(c.counts.sum()) == 1000 and c.norm == 2


@pytest.mark.parametrize("bound", ["binary", "two-class"])
def test_the_bounds_in_a_reason_are_rounded_to_the_side_that_is_true(bound):
    g = SmoothedClassifier(coin, Gaussian(scale=1.0), num_classes=2)
    for seed in range(8):
        (c,) = g.certify(torch.zeros(1, 3), n=1000, bound=bound, seed=seed)
        lower, *upper = (float(word) for word in re.findall(r"0\.\d{6}", c.reason))
        assert 0 <= c.p_lower - lower < 1e-6
        if bound == "two-class":
            limits = [ucan.bounds.upper_bound(int(k), 1000, 0.001 / 2) for k in c.counts]
            assert min(abs(upper[0] - limit) for limit in limits if upper[0] >= limit) < 1e-6


def half_invalid(batch):
    """NaN logits on one side, class 0 on the other."""
    return torch.where(batch[:, :1] > 1.0, torch.nan, torch.tensor([1.0, 0.0]))


@pytest.mark.parametrize("model", [half_invalid, lambda b: torch.where(b[:, 0] > 1.0, 7, 0)], ids=["nan", "range"])
def test_invalid_votes_count_for_no_class_and_against_the_bound(model):
    (c,) = SmoothedClassifier(model, Gaussian(scale=1.0), num_classes=2).certify(torch.zeros(1, 3), n=4000)
    assert c.counts[1] == 0 and int(c.counts[0]) + c.invalid == 4000
    assert c.invalid == pytest.approx(4000 * stats.norm.sf(1.0), abs=4 * 24)
    assert c.p_lower == ucan.bounds.lower_bound(int(c.counts[0]), 4000, 0.001)


def test_nothing_but_invalid_votes_abstains():
    g = SmoothedClassifier(lambda b: torch.full((len(b), 2), torch.nan), Gaussian(scale=1.0), num_classes=2)
    for (c,) in (g.certify(torch.zeros(1, 3), n=50), g.predict(torch.zeros(1, 3), n=50)):
        assert c.abstained and c.invalid == 50 and c.counts.tolist() == [0, 0]
    (c,) = g.certify(torch.zeros(1, 3), n=50, bound="two-class")
    assert c.abstained
    (c,) = g.predict(torch.zeros(1, 3), n=50, test="top-two")
    assert c.abstained


def test_the_class_is_chosen_by_the_selection_votes_alone():
    """With one selection vote the rarer class is sometimes chosen: then the outcome must be an abstention."""
    g = SmoothedClassifier(linear, Gaussian(scale=LAM), Fixed(SCALES["diagonal"], MEAN), 3)
    outcomes = g.certify(inputs_and_truth(SCALES["diagonal"], 200)[0], n0=1, n=500)
    wrong = [c for c in outcomes if c.abstained]
    assert 0 < len(wrong) < 30
    assert all(c.counts.argmax() == 1 and c.p_lower < 0.2 for c in wrong)


# --- seeds ---


def noisy_model():
    return linear_model(12, 4)


SHAPE = (3, 2, 2)
XS = torch.rand(4, *SHAPE, generator=rng(3))


def smoothed(**changes):
    return SmoothedClassifier(noisy_model(), Gaussian(scale=0.5), Pattern(SHAPE), changes.get("num_classes", 4))


def counts(outcomes):
    return [c.counts.tolist() for c in outcomes]


def test_the_same_seed_gives_the_same_votes_and_another_seed_others():
    first, again, other = (counts(smoothed().certify(XS, n=1500, seed=s)) for s in (5, 5, 6))
    assert first == again
    assert all(a != b for a, b in zip(first, other, strict=True))


def test_a_batch_of_inputs_is_the_same_as_one_by_one_in_any_order():
    together = counts(smoothed().certify(XS, n=1500))
    assert together == [counts(smoothed().certify(x[None], n=1500))[0] for x in XS]
    assert together[::-1] == counts(smoothed().certify(XS.flip(0), n=1500))


def test_more_samples_extend_fewer():
    few, more = (counts(smoothed().certify(XS, n=n, batch_size=256)) for n in (1024, 2048))
    assert all((np.subtract(b, a) >= 0).all() for a, b in zip(few, more, strict=True))
    for n in (1, 20, 130, 1500):  # whatever n is, one vote more adds one vote
        fewer, one_more = (counts(smoothed().certify(XS[:1], n=n + k))[0] for k in (0, 1))
        assert sorted(np.subtract(one_more, fewer).tolist()) == [0, 0, 0, 1]


def test_the_size_of_a_forward_pass_changes_no_vote():
    default = smoothed().certify(XS, n=1500)
    block = default[0].evidence.block
    for batch_size in (block, 2 * block, 8 * block):
        other = smoothed().certify(XS, n=1500, batch_size=batch_size)
        assert counts(other) == counts(default)
        assert {c.evidence.batch_size for c in other} == {batch_size}


@pytest.mark.parametrize("n", (1, 15, 16, 17, 255, 256, 257, 1000))
def test_every_vote_is_counted_once_whatever_the_tail(n):
    for batch_size in (None, 16, 100):
        (c,) = smoothed().certify(XS[:1], n=n, batch_size=batch_size)
        assert int(c.counts.sum()) + c.invalid == n
        assert c.evidence.batch_size == (batch_size or c.evidence.batch_size)


def test_phases_do_not_share_their_noise():
    (c,), (p,) = smoothed().certify(XS[:1], n=1000), smoothed().predict(XS[:1], n=1000)
    assert c.counts.tolist() != p.counts.tolist()


def test_global_randomness_and_the_input_are_left_alone():
    g, before = smoothed(), XS.clone()
    torch.manual_seed(1)
    first = counts(g.certify(XS, n=100))
    torch.manual_seed(2)
    state = torch.get_rng_state()
    assert counts(g.certify(XS, n=100)) == first
    assert torch.equal(torch.get_rng_state(), state) and torch.equal(XS, before)


def test_progress_hears_of_selection_and_estimation():
    told = []
    g = smoothed()
    g.engine.on_votes = told.append
    g.certify(XS[:2], n0=30, n=70)
    assert sum(told) == 200


def test_watched_votes_grow_into_the_outcome_of_certify():
    g, options = smoothed(), {"n0": 20, "n": 400, "alpha": 0.01, "seed": 3, "batch_size": 32}
    for bound in ("binary", "two-class"):
        *votes, outcome = g.certify_watched(XS[:1], CertifyPlan(**options, bound=bound))
        (wanted,) = g.certify(XS[:1], **options, bound=bound)
        assert outcome.to_dict() == wanted.to_dict()
        assert [int(v.counts.sum()) + v.invalid for v in votes] == [128, 256, 384, 400]
        assert all((b.counts >= a.counts).all() for a, b in pairwise(votes))
        assert votes[-1].counts.tolist() == wanted.counts.tolist()


def test_only_a_fixed_number_of_votes_can_be_watched():
    with pytest.raises(InvalidInput, match="stops early cannot be watched"):
        next(smoothed().certify_watched(XS[:1], CertifyPlan(stop=parse_stop("5%"))))


# --- any callable, any precision ---


def test_module_function_and_numpy_callables_agree():
    model = noisy_model()

    class Sklearn:
        """A stand-in with scikit-learn's interface."""

        def predict(self, rows):
            weight, bias = (t.detach().numpy() for t in (model[1].weight, model[1].bias))
            return (rows @ weight.T + bias).argmax(1)

    sklearn = Sklearn()
    models = [
        model,
        lambda b: model(b),
        lambda b: model(b).argmax(1),
        lambda b: model(b).numpy(),
        lambda b: sklearn.predict(b.flatten(1).numpy()),
    ]
    results = [counts(SmoothedClassifier(m, Gaussian(scale=0.5), None, 4).certify(XS, n=500)) for m in models]
    assert all(result == results[0] for result in results)


def test_noise_is_added_in_the_inputs_precision_and_cast_for_the_model():
    (single,), (double,) = smoothed().certify(XS[:1], n=500), smoothed().certify(XS[:1].double(), n=500)
    assert single.evidence.precision == double.evidence.precision == "fp32"
    assert single.evidence.input_hash == double.evidence.input_hash
    (plain,) = SmoothedClassifier(linear, Gaussian(scale=1.0), num_classes=3).certify(
        torch.ones(1, DIM).double(), n=500
    )
    assert plain.evidence.precision == "float64"
    wide = SmoothedClassifier(noisy_model().double(), Gaussian(scale=0.5), Pattern(SHAPE), 4)
    (c,) = wide.certify(XS[:1], n=500)
    assert c.evidence.precision == "float64" and int(c.counts.sum()) == 500


def test_a_model_converted_after_construction_is_served_as_it_is_now():
    model = noisy_model()
    g = SmoothedClassifier(model, Gaussian(scale=0.5), None, 4)
    model.double()
    (c,) = g.certify(XS[:1], n=50)
    assert c.evidence.precision == "float64"


def test_a_buffer_free_module_works():
    class Sign(nn.Module):
        def forward(self, batch):
            return (batch.flatten(1)[:, 0] > 0).long()

    (c,) = SmoothedClassifier(Sign().eval(), Gaussian(scale=0.5), None, 2).certify(XS[:1], n=50)
    assert int(c.counts.sum()) == 50 and c.evidence.weights_hash is not None


def step(model):
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    model(XS).sum().backward()
    optimiser.step()


CHANGES = {
    "an optimiser's step": step,
    "another state": lambda m: m.load_state_dict({k: v + 1 for k, v in m.state_dict().items()}),
    "in place without gradient": lambda m: nn.init.zeros_(m[1].weight),
    "through .data": lambda m: m[1].weight.data.add_(1.0),
    "a new parameter": lambda m: setattr(m[1], "weight", nn.Parameter(torch.ones(4, 12))),
    "another precision": lambda m: m.double(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_hash_of_the_weights_follows_the_weights(change):
    model = noisy_model()
    before = weights_hash(model)
    assert before == weights_hash(model) and len(before) == 64
    CHANGES[change](model)
    assert weights_hash(model) != before


@pytest.mark.parametrize("precision", (None, "bf16"))
def test_votes_come_from_the_weights_as_they_are_now(precision):
    model = linear_model(4, 2)
    with torch.no_grad():
        model[1].weight.zero_()
        model[1].bias.copy_(torch.tensor([1.0, 0.0]))
    g = SmoothedClassifier(model, Gaussian(scale=1.0), None, 2)
    assert counts(g.certify(torch.zeros(1, 4), n=50, precision=precision)) == [[50, 0]]
    model[1].bias.data.neg_()
    assert counts(g.certify(torch.zeros(1, 4), n=50, precision=precision)) == [[0, 50]]


def swap_through_data(model):
    model[1].weight.data[:2] = model[1].weight.data[:2].flip(0)


SLIGHT = {
    "one bit": lambda m: m[1].weight.data.view(torch.int32)[3, 5].bitwise_xor_(1),
    "all signs": lambda m: m[1].weight.data.neg_(),
    "two rows swapped": swap_through_data,
    "a buffer outside the state": lambda m: m[1].hidden.data.add_(1),
}


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.bfloat16))
@pytest.mark.parametrize("change", SLIGHT)
def test_the_checksum_on_a_device_sees_what_version_counters_do_not(change, dtype):
    model = noisy_model()
    model[1].register_buffer("hidden", torch.zeros(3), persistent=False)
    if change != "one bit":
        model = model.to(dtype)

    def now():
        return checksums([*(t.detach() for t in model.parameters()), *model.buffers()]), weights_hash(model)

    before = now()
    assert now() == before
    SLIGHT[change](model)
    assert all(a != b for a, b in zip(now(), before, strict=True))


def test_the_checksum_does_not_need_the_weights_in_one_piece(monkeypatch):
    tensors = [torch.arange(n, dtype=torch.float32) for n in (0, 1, 7, 100)] + [torch.tensor(3)]
    whole = checksums(tensors)
    assert len(whole) == 2  # one for each dtype
    monkeypatch.setattr("ucan.fingerprint.CHUNK", 64)
    pieces = checksums(tensors)
    assert len(pieces) > 3
    tensors[3][99] += 1
    assert checksums(tensors) != pieces and checksums([]) == ()


def test_a_callable_may_know_its_own_weights():
    class File:
        weights_hash = "ab" * 32

        def __call__(self, batch):
            return torch.zeros(len(batch), 2)

    (c,) = SmoothedClassifier(File(), Gaussian(scale=0.5), None, 2).certify(XS[:1], n=50)
    assert c.evidence.weights_hash == "ab" * 32


def test_equal_weights_have_equal_hashes():
    one, other = noisy_model(), noisy_model()
    other.load_state_dict(one.state_dict())
    assert weights_hash(one) == weights_hash(other)
    assert weights_hash(lambda b: b) is None


# --- refusals: before any work ---


class Counted:
    """Answers with three classes and counts the noisy copies that it was asked about."""

    def __init__(self):
        self.asked = 0

    def __call__(self, batch):
        self.asked += len(batch)
        return torch.zeros(len(batch), 3)


GOOD = torch.zeros(2, 3, 4, 4)
NAN_PIXEL, INF_PIXEL = GOOD.clone(), GOOD.clone()
NAN_PIXEL[1, 2, 3, 0] = math.nan
INF_PIXEL[0, 0, 0, 0] = -INF
LAW = Gaussian(scale=0.5)

REFUSED_BY_BOTH = {
    "not a tensor": (InvalidInput, {"x": [[0.0, 1.0]]}),
    "numpy array": (InvalidInput, {"x": GOOD.numpy()}),
    "integers": (InvalidInput, {"x": GOOD.to(torch.uint8)}),
    "booleans": (InvalidInput, {"x": GOOD.bool()}),
    "complex": (InvalidInput, {"x": GOOD.to(torch.complex64)}),
    "nan pixel": (InvalidInput, {"x": NAN_PIXEL}),
    "infinite pixel": (InvalidInput, {"x": INF_PIXEL}),
    "empty batch": (InvalidInput, {"x": GOOD[:0]}),
    "empty event": (InvalidInput, {"x": GOOD[..., :0]}),
    "no batch": (InvalidInput, {"x": torch.zeros(5)}),
    "a number": (InvalidInput, {"x": torch.tensor(0.5)}),
    **{f"alpha {a!r}": (InvalidInput, {"alpha": a}) for a in (0, 1, -0.1, 1.1, math.nan, "0.001", None)},
    **{f"n {n!r}": (InvalidInput, {"n": n}) for n in (0, -5, 1.5, "100", None, True)},
    **{f"batch size {n!r}": (InvalidInput, {"batch_size": n}) for n in (0, -1, 2.5)},
    **{f"seed {s!r}": (InvalidInput, {"seed": s}) for s in (0.5, "0", True)},
    "diagonal of another size": (InvalidInput, {"generator": Fixed(torch.ones(3, 4, 5))}),
    "dense of another size": (InvalidInput, {"generator": Fixed(Dense(torch.eye(5)))}),
    "dct of another size": (InvalidInput, {"generator": Fixed(DCT(torch.ones(3, 4, 5)))}),
    "mean of another size": (InvalidInput, {"generator": Fixed(1.0, mean=torch.zeros(5))}),
    "mean larger than the input": (InvalidInput, {"generator": Fixed(1.0, mean=torch.zeros(5, 3, 4, 4))}),
    "power law with a below d": (InvalidInput, {"law": PowerLaw(scale=1.0, a=40.0), "norm": 1}),
    "power law with a equal to d": (InvalidInput, {"law": PowerLaw(scale=1.0, a=48.0), "norm": 1}),
    "too few classes promised": (ModelError, {"num_classes": 2}),
    "too many classes promised": (ModelError, {"num_classes": 10}),
}
REFUSED_BY_CERTIFY = {
    **{f"n0 {n!r}": (InvalidInput, {"n0": n}) for n in (0, -5, 1.5)},
    **{f"norm {p!r}": (InvalidInput, {"norm": p}) for p in (0, 3, "2", None, math.nan)},
    "bound": (InvalidInput, {"bound": "three-class"}),
    "laplace against l2": (UnsupportedNorm, {"law": Laplace(scale=1.0)}),
    "uniform against l2": (UnsupportedNorm, {"law": Uniform(scale=1.0)}),
    "power law against linf": (UnsupportedNorm, {"law": PowerLaw(scale=1.0, a=60.0), "norm": INF}),
}
REFUSED_BY_PREDICT = {
    "two-sided test": (InvalidInput, {"test": "two-sided"}),
    "no test": (InvalidInput, {"test": None}),
    "as many wrong answers as right ones": (InvalidInput, {"alpha": 0.5, "n": 1}),
}


def refused(method, error, changes):
    settings = dict(changes)
    if method == "predict":
        settings.pop("norm", None)
    model = Counted()
    x = settings.pop("x", GOOD)
    law, generator = settings.pop("law", LAW), settings.pop("generator", None)
    num_classes = settings.pop("num_classes", 3)
    with pytest.raises(error) as caught:
        getattr(SmoothedClassifier(model, law, generator, num_classes), method)(x, **settings)
    assert model.asked <= 1  # at most one look at the clean input
    return str(caught.value)


@pytest.mark.parametrize("case", REFUSED_BY_BOTH)
@pytest.mark.parametrize("method", ("certify", "predict"))
def test_wrong_arguments_are_refused_before_any_work(method, case):
    assert len(refused(method, *REFUSED_BY_BOTH[case])) > 10


@pytest.mark.parametrize("case", REFUSED_BY_CERTIFY)
def test_certify_refuses_before_any_work(case):
    refused("certify", *REFUSED_BY_CERTIFY[case])


@pytest.mark.parametrize("case", REFUSED_BY_PREDICT)
def test_predict_refuses_before_any_work(case):
    refused("predict", *REFUSED_BY_PREDICT[case])


def test_refusals_name_the_culprit():
    assert "[1, 2, 3, 0]" in refused("certify", InvalidInput, {"x": NAN_PIXEL})
    assert "uint8" in refused("certify", InvalidInput, {"x": GOOD.to(torch.uint8)})
    assert "ℓ1" in refused("certify", UnsupportedNorm, {"law": Laplace(scale=1.0)})
    assert "num_classes=3" in refused("certify", ModelError, {"num_classes": 10})


def by_majority(batch):
    """All of a batch get the class of most of it."""
    votes = (batch.sum((1, 2, 3)) > 0).long()
    return votes.mode().values.expand(len(batch)).clone()


COMPANY_KEEPERS = {
    "batch norm on the batch's own statistics": nn.Sequential(
        nn.Conv2d(2, 8, 1), nn.BatchNorm2d(8, track_running_stats=False), nn.ReLU(), nn.Flatten(), nn.Linear(72, 2)
    ).eval(),
    "logits less their mean over the batch": lambda b: (b - b.mean(0)).flatten(1)[:, :2],
    "class numbers": by_majority,
}


@pytest.mark.parametrize("name", COMPANY_KEEPERS)
def test_a_model_that_mixes_the_inputs_of_a_batch_is_refused(name):
    g = SmoothedClassifier(COMPANY_KEEPERS[name], Gaussian(scale=0.5), None, 2)
    with pytest.raises(ModelError, match="in other company"):
        g.certify(torch.zeros(1, 2, 3, 3), n=100)


@pytest.mark.parametrize("dtype", (torch.float64, torch.float32, torch.bfloat16, torch.float16))
def test_a_model_that_answers_each_input_by_itself_is_taken_in_every_precision(dtype):
    net = nn.Sequential(nn.Conv2d(2, 8, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(72, 2)).eval()
    for model in (net.to(dtype), lambda b: nn.functional.dropout(b).flatten(1)[:, :2]):
        assert SmoothedClassifier(model, Gaussian(scale=0.5), None, 2).certify(torch.zeros(1, 2, 3, 3), n=100)


def test_rounding_that_depends_on_the_company_is_no_reason_to_refuse():
    rounded = lambda b: b.flatten(1)[:, :2] + (1e-2 if len(b) == 1 else 0.0)  # noqa: E731
    SmoothedClassifier(rounded, Gaussian(scale=0.5), None, 2).check_inputs(torch.zeros(1, 2, 3, 3), 2)
    asked = []

    def tie(b):  # a near tie among the first copies that it sees falls otherwise alone
        asked.append(len(b))
        return torch.tensor([int(len(b) == 1 and len(asked) < 6), *[0] * (len(b) - 1)])

    SmoothedClassifier(tie, Gaussian(scale=0.5), None, 2).check_inputs(torch.zeros(1, 2, 3, 3), 2)
    assert len(asked) > 20


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
def test_noise_is_not_drawn_in_sixteen_bits(dtype):
    """There σ = 1.0038 rounds to 1, and uniform noise has a mean of −1/256: radii came out larger than they are."""
    drawn = []
    model = lambda b: drawn.append(b) or torch.zeros(len(b), 2)  # noqa: E731
    x = torch.zeros(1, 1, dtype=dtype)
    g = SmoothedClassifier(model, Gaussian(scale=1.0), Fixed(torch.tensor([1.0038])), 2)
    for outcome in (*g.certify(x, n=1000), *g.certify(x, n=1000, stop=0.5), *g.predict(x)):
        assert outcome.evidence.input_hash == input_hash(x)
    assert {b.dtype for b in drawn} == {torch.float32}


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
def test_nor_for_inputs_as_runs_hand_them_over(dtype):
    """Of these only the first is checked, by itself."""
    drawn = []
    model = lambda b: drawn.append(b) or torch.zeros(len(b), 2)  # noqa: E731
    x = torch.zeros(1, 1, dtype=dtype)
    g = SmoothedClassifier(model, Gaussian(scale=1.0), Fixed(torch.tensor([1.0038])), 2)
    plan = CertifyPlan(n=1000)
    stopping = replace(plan, stop=parse_stop(0.5))
    found = [dict(g.certify_each([x], one))[0] for one in (plan, stopping)]
    found += [dict(g.ask_each([x], one, Confidence(0.5)))[0] for one in (plan, stopping)]
    found += dict(g.predict_each([x], PredictPlan())).values()
    assert all(outcome.evidence.input_hash == input_hash(x) for outcome in found)
    assert {b.dtype for b in drawn} == {torch.float32}
    (c,) = g.certify(x, n=1000)
    assert (found[0].radius, found[0].evidence.counts) == (c.radius, c.evidence.counts)


def test_the_matrix_that_is_sampled_is_the_one_that_is_certified():
    """In float32 the smallest scale of this matrix is another one altogether."""
    turn = torch.linalg.qr(torch.randn(8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)).Q
    matrix = turn @ torch.diag(torch.tensor([1.0] * 7 + [3e-4], dtype=torch.float64)) @ turn.T
    g = SmoothedClassifier(lambda b: torch.zeros(len(b), 2), Gaussian(scale=1.0), Fixed(Dense(matrix)), 2)
    for dtype in (torch.float32, torch.float64):
        (c,) = g.certify(torch.zeros(1, 8, dtype=dtype), n=1000)
        smallest = float(torch.linalg.svdvals(matrix.to(dtype).double())[-1])
        assert c.radius == pytest.approx(smallest * c.region.radius, rel=1e-6)


def test_an_offset_in_which_the_noise_is_lost_is_refused():
    """x + μ is the same float for all inputs from −4 to 4: at 0.3 all votes agree, and at 4.1 all agree otherwise."""
    mean = torch.tensor([1e8])
    g = SmoothedClassifier(lambda b: (b[:, 0].double() > 1e8).long(), Gaussian(scale=1.0), Fixed(1.0, mean), 2)
    with pytest.raises(InvalidInput, match="μ is so large"):
        g.certify(torch.tensor([[0.3]]), n=1000)
    (c,) = g.certify(torch.tensor([[0.3]], dtype=torch.float64), n=1000)
    assert c.prediction == 1 and c.radius < 0.5


@pytest.mark.parametrize("method", ("certify", "predict"))
def test_a_model_in_training_mode_is_refused(method):
    model = noisy_model().train()
    g = SmoothedClassifier(model, LAW, None, 4)
    with pytest.raises(ModelError, match="training mode"):
        getattr(g, method)(XS)
    model.eval()
    assert getattr(g, method)(XS[:1], n=20)


CONSTRUCTION = {
    "law by name": (InvalidInput, lambda: SmoothedClassifier(linear, "gaussian", num_classes=3)),
    "law a class": (InvalidInput, lambda: SmoothedClassifier(linear, Gaussian, num_classes=3)),
    "generator a number": (InvalidInput, lambda: SmoothedClassifier(linear, LAW, 0.5, num_classes=3)),
    "generator a tensor": (InvalidInput, lambda: SmoothedClassifier(linear, LAW, torch.ones(3), num_classes=3)),
    "generator a torch generator": (InvalidInput, lambda: SmoothedClassifier(linear, LAW, rng(), num_classes=3)),
    "model not callable": (ModelError, lambda: SmoothedClassifier("resnet", LAW, num_classes=3)),
    "one class": (InvalidInput, lambda: SmoothedClassifier(linear, LAW, num_classes=1)),
}


@pytest.mark.parametrize("case", CONSTRUCTION)
def test_construction_refuses_what_cannot_work(case):
    error, call = CONSTRUCTION[case]
    with pytest.raises(error):
        call()


# --- predict ---


def test_predict_answers_with_a_clear_majority():
    (p,) = SmoothedClassifier(linear, Gaussian(scale=LAM), Fixed(SCALES["dense"], MEAN), 3).predict(
        inputs_and_truth(SCALES["dense"], 1)[0], n=500
    )
    assert isinstance(p, Prediction) and p.prediction == 1 and not p.abstained and p.scope == "pipeline"
    assert p.p_value == stats.binom.sf(int(p.counts[1]) - 1, 500, 0.5) <= 0.001
    assert p.evidence.n == 500 and p.evidence.n0 == 0 and p.evidence.bound == "majority" and p.norm is None
    assert int(p.counts.sum()) + p.invalid == 500


def thirds(batch):
    """.45 / .3 / .25 under unit noise at the origin."""
    return torch.bucketize(batch[:, 0].contiguous(), torch.tensor(stats.norm.ppf([0.45, 0.75])).float())


def test_majority_abstains_where_top_two_answers():
    g = SmoothedClassifier(thirds, Gaussian(scale=1.0), num_classes=3)
    (majority,), (top_two,) = (g.predict(torch.zeros(1, 2), n=2000, test=t) for t in ("majority", "top-two"))
    assert isinstance(majority, Abstention) and "majority" in majority.reason and majority.radius == 0.0
    assert isinstance(top_two, Prediction) and top_two.prediction == 0 and top_two.evidence.bound == "top-two"
    assert majority.counts.tolist() == top_two.counts.tolist()


@pytest.mark.parametrize("test", ("majority", "top-two"))
def test_predict_errs_no_more_often_than_alpha(test):
    """A class just below one half, and two classes nearly even: the hardest inputs for either test."""
    alpha, runs = 0.05, 800
    shift = stats.norm.ppf(0.499)
    g = SmoothedClassifier(coin, Gaussian(scale=1.0), num_classes=2)
    x = torch.cat([torch.full((runs, 1), shift), torch.rand(runs, 1, generator=rng(1))], dim=1).float()
    wrong = sum(p.prediction == 1 for p in g.predict(x, n=100, alpha=alpha, test=test))
    assert wrong <= stats.binom.ppf(0.9999, runs, alpha)
    assert wrong > 0


def test_predict_repeats_with_its_seed():
    first, again, other = (counts(smoothed().predict(XS, n=500, seed=s)) for s in (1, 1, 2))
    assert first == again != other


def in_place(z):
    z.sub_(0.5).div_(0.25)
    score = z.flatten(1).mean(1)
    return torch.stack([score, -score], 1)


def test_a_model_that_works_in_place_reaches_neither_the_callers_tensor_nor_the_certificate():
    x = torch.full((2, 1, 2, 2), 0.62)
    outcomes = [
        ucan.SmoothedClassifier(f, ucan.Gaussian(0.05), num_classes=2).certify(x, n=500)
        for f in (in_place, lambda z: in_place(z.clone()))
    ]
    assert torch.equal(x, torch.full((2, 1, 2, 2), 0.62))
    first, second = ([replace(c.evidence, model=None) for c in some] for some in outcomes)
    assert first == second and [c.radius for c in outcomes[0]] == [c.radius for c in outcomes[1]]
    assert outcomes[0][0].prediction == 0


def test_a_certificate_does_not_change_with_the_callers_sigma():
    sigma = torch.ones(1, 2, 2)
    g = ucan.SmoothedClassifier(lambda z: in_place(z.clone()), ucan.Gaussian(0.05), ucan.Fixed(sigma), num_classes=2)
    (c,) = g.certify(torch.full((1, 1, 2, 2), 0.62), n=500)
    region = ucan.Region(sigma, 1.0, 2)
    sigma.fill_(100.0)
    assert c.region.inscribed_radius() == c.radius < 1 and region.inscribed_radius() == 1


def test_a_map_with_its_axes_in_another_order_is_refused():
    g = ucan.SmoothedClassifier(
        lambda z: z.flatten(1)[:, :2], ucan.Gaussian(0.5), ucan.Fixed(torch.rand(8, 8, 3) + 0.1), 2
    )
    with pytest.raises(ucan.InvalidInput, match="does not fit"):
        g.certify(torch.rand(1, 3, 8, 8), n=100)


def test_what_a_model_raises_is_told_as_its_own():
    def boom(z):
        return 1 / 0

    with pytest.raises(ucan.ModelError, match="ZeroDivisionError"):
        ucan.SmoothedClassifier(boom, ucan.Gaussian(0.5)).certify(torch.rand(1, 4), n=100)


def test_numbers_of_numpy_are_numbers() -> None:
    g = SmoothedClassifier(lambda y: (y[:, 0] > 0).long(), Gaussian(scale=1.0), num_classes=np.int64(2))
    x = torch.ones(1, 2)
    (c,) = g.certify(x, n0=np.int32(20), n=np.int64(200), alpha=np.float32(0.0625), seed=np.int64(3))
    (same,) = g.certify(x, n0=20, n=200, alpha=0.0625, seed=3)
    assert c.radius == same.radius and json.dumps(c.to_dict()) == json.dumps(same.to_dict())
    with pytest.raises(InvalidInput, match="n must be a whole number"):
        g.certify(x, n=np.float64(200.5))


def test_repr_shows_the_call_that_makes_a_classifier() -> None:
    model = nn.Linear(2, 3).eval()
    plain = SmoothedClassifier(model, Gaussian(scale=0.5), num_classes=3)
    assert repr(plain) == "SmoothedClassifier(Linear(...), Gaussian(scale=0.5), Isotropic(), num_classes=3)"
    given = SmoothedClassifier(model, Gaussian(scale=0.5), Fixed(2.0), 3, backend="compile", precision="bf16", step=0.5)
    shown = "Fixed(scale=2.0), num_classes=3, backend='compile', precision='bf16', step=0.5)"
    assert repr(given) == f"SmoothedClassifier(Linear(...), Gaussian(scale=0.5), {shown}"


@pytest.mark.parametrize(
    ("changed", "shown"),
    [
        ({}, {}),
        ({"law": Gaussian(scale=2.0)}, {"Gaussian(scale=0.5)": "Gaussian(scale=2.0)"}),
        ({"generator": Fixed(3.0)}, {"Fixed(scale=2.0)": "Fixed(scale=3.0)"}),
        ({"backend": "eager"}, {", backend='compile'": ""}),
        ({"precision": None}, {", precision='bf16'": ""}),
        ({"model_id": "other"}, {"model_id='mine'": "model_id='other'"}),
        ({"step": None}, {", step=0.5": ""}),
    ],
    ids=lambda found: "_".join(found) if isinstance(found, dict) else None,
)
def test_the_same_classifier_with_one_part_changed_keeps_the_others(changed, shown) -> None:
    g = SmoothedClassifier(
        len, Gaussian(scale=0.5), Fixed(2.0), backend="compile", precision="bf16", model_id="mine", step=0.5
    )
    counted: list[int] = []
    g.on_votes(counted.append)
    wanted = repr(g)
    for before, after in shown.items():
        assert before in wanted
        wanted = wanted.replace(before, after)
    made = g.again(**changed)
    assert repr(made) == wanted and made.engine.on_votes == counted.append
    assert made.f is g.f, "also that nobody gave its number of classes"


def test_on_a_grid_an_error_still_says_that_ten_classes_are_the_default() -> None:
    g = SmoothedClassifier(nn.Linear(2, 3).eval(), Gaussian(scale=0.5))
    for one in (g, g.on_grid(1 / 255)):
        with pytest.raises(ModelError, match="num_classes is 10, the default: use num_classes=3"):
            one.certify(torch.zeros(1, 2), n=10)


@pytest.mark.parametrize(
    ("page", "lines"),
    [(("certify_each", "_certify_fixed", "_bound", "conclude"), 80), (("predict_each", "_test"), 40)],
    ids=["Algorithm 1", "Algorithm 2"],
)
def test_each_algorithm_is_one_page(page, lines):
    """From votes to the outcome without a detour, in the paper's symbols: who knows the paper can check it."""
    source = inspect.getsource(SmoothedClassifier)
    (kind,) = ast.parse(source).body
    methods = [node for node in kind.body if isinstance(node, ast.FunctionDef)]
    first = [method.name for method in methods].index(page[0])
    found = methods[first : first + len(page)]
    assert tuple(method.name for method in found) == page
    assert found[-1].end_lineno - found[0].lineno < lines
    text = "\n".join(source.splitlines()[found[0].lineno - 1 : found[-1].end_lineno])
    symbols = {"c_A", "n_A", "n_B", "alpha", "μ, Σ ← M"} | ({"p_A", "p_B", "R"} if "conclude" in page else set())
    assert all(symbol in text for symbol in symbols)


def test_inputs_of_one_number_from_a_column_of_numpy():
    """Such a column has a stride of 0, which a tensor of one number keeps."""
    x = torch.from_numpy(np.linspace(-1, 1, 3, dtype=np.float32)[:, None])
    g = SmoothedClassifier(lambda y: (y[:, 0] > 0).long(), Gaussian(0.3), num_classes=2)
    found = g.certify(x, n=200)
    assert [c.radius for c in found] == [c.radius for c in g.certify(torch.linspace(-1, 1, 3)[:, None], n=200)]
    assert input_hash(x[:1]) == input_hash(x[:1].clone().reshape(1)[:, None])
