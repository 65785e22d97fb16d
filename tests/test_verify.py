"""Checking someone else's certificate: true claims stand, false ones fall, each by the check that should notice."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from ucan import Certificate, CertificationWise, Fixed, Gaussian, InvalidInput, Region, Registry, SmoothedClassifier
from ucan.bounds import lower_bound, randomised_lower_bound, upper_bound
from ucan.certificate import from_dict
from ucan.generators import Generator
from ucan.scales import Dense, Diagonal
from ucan.verify import fresh_checks, noise_of, verify
from ucan.verify_answer import verify_answer
from ucan.votes import Votes

DIM = 6
LAW = Gaussian(scale=0.5)
SIGMA = 0.5 + torch.rand(DIM, generator=torch.Generator().manual_seed(0))


def model(seed=0, classes=3):
    net = nn.Linear(DIM, classes).eval()
    for parameter in net.parameters():
        nn.init.normal_(parameter, generator=torch.Generator().manual_seed(seed))
    return net


def smoothed(seed=0, generator=None, law=LAW):
    return SmoothedClassifier(model(seed), law, generator or Fixed(SIGMA), 3)


X = torch.rand(1, DIM, generator=torch.Generator().manual_seed(5)) + 0.5


def certificate(x=X, **changes):
    settings = {"n": 2000, "alpha": 0.01, **changes}
    (c,) = smoothed().certify(x, **settings)
    assert isinstance(c, Certificate)
    return c


def failed(verdict):
    assert verdict.stands == (not [c for c in verdict.checks if not c.passed])
    return {check.name for check in verdict.checks if not check.passed}


def test_true_claims_stand_whatever_the_fresh_samples():
    c, g = certificate(), smoothed()
    assert 0.6 < c.p_lower < 0.99
    fallen = [seed for seed in range(1, 51) if not verify(c, g, X, seed=seed).stands]
    assert fallen == []  # each falls with probability at most 0.001, in fact far less: p_lower is a bound


def test_a_check_that_no_votes_could_fail_confirms_nothing():
    """Of p ≈ 0.7, twenty votes for other classes have probability 0.3²⁰, two have 0.09, which rejects nothing."""
    c, g = certificate(), smoothed()
    for n, decides in ((1, False), (2, False), (20, True)):
        verdict = verify(c, g, X, n=n)
        (votes,) = (check for check in verdict.checks if check.name == "votes")
        assert votes.passed and votes.confirmed is decides
        assert ("give a larger n" in votes.detail) is not decides
        assert verdict.tested is decides and verdict.confirms == ("pipeline" if decides else None)
    two = certificate(bound="two-class")
    assert two.p_upper is not None
    checks = {check.name: check.confirmed for check in verify(two, g, X, n=2).checks}
    assert (
        not checks["votes"] and not checks["runner-up"] and all(check.confirmed for check in verify(two, g, X).checks)
    )


def test_a_certificate_is_about_one_input():
    with pytest.raises(InvalidInput, match="a batch of one, not of 2"):
        verify(certificate(), smoothed(), torch.cat([X, X]))
    with pytest.raises(InvalidInput, match="this one has shape"):
        verify(certificate(), smoothed(), X[:, 1:])
    (predicted,) = smoothed().predict(X, n=500)
    with pytest.raises(InvalidInput, match="takes a certificate, got Prediction"):
        verify(predicted, smoothed(), X)


def test_a_claim_at_the_very_probability_falls_no_more_often_than_alpha():
    c, g = certificate(n=100_000), smoothed()
    p = c.evidence.counts[c.prediction] / 100_000  # the truth to three digits
    exact = replace(c, p_lower=p - 0.005, region=Region(SIGMA, LAW.radius(p - 0.005), 2))
    votes = [
        {k.name: k.passed for k in verify(exact, g, X, n=500, alpha=0.05, seed=s).checks}["votes"]
        for s in range(1, 101)
    ]
    assert votes.count(False) <= 5 + 4 * 2.2


@pytest.mark.parametrize(
    "settings",
    [
        {"bound": "two-class"},
        {"bound": "randomised"},
        {"bound": "anytime"},
        {"stop": 0.1},
        {"stop": "20%"},
        {"norm": torch.inf},
    ],
    ids=str,
)
def test_every_kind_of_certificate_can_be_verified(settings):
    c = certificate(**settings)
    verdict = verify(c, smoothed(), X)
    assert verdict.stands, verdict
    assert {check.name for check in verdict.checks} >= {"input", "weights", "radius", "bound", "votes"}
    assert all(check.detail for check in verdict.checks)


def test_a_randomised_bound_says_so_and_its_number_follows_from_the_seed():
    plain, c = certificate(), certificate(bound="randomised")
    assert c.counts.tolist() == plain.counts.tolist() and c.p_lower > plain.p_lower
    assert "by a randomised bound" in str(c) and "randomised" not in str(plain)
    assert {k.name: k.passed for k in verify(c, smoothed(), X).checks}["uniform"]
    # Another key has another number: one that allows more is easily found, and is not that of the seed.
    keys = ({**c.evidence.streams, "estimate": f"{i:064x}"} for i in range(100))
    forged = min((replace(c.evidence, streams=each) for each in keys), key=lambda e: e.uniform)
    p = randomised_lower_bound(int(c.counts[c.prediction]), forged.n, forged.alpha, forged.uniform)
    assert p > c.p_lower
    seen = {k.name: k.passed for k in verify(replace(c, evidence=forged, p_lower=p), smoothed(), X).checks}
    assert seen["bound"] and not seen["uniform"]
    secret = verify(certificate(bound="randomised", seed=None), smoothed(), X)
    assert secret.stands and not {k.name: k.confirmed for k in secret.checks}["uniform"]


def test_a_certificate_survives_its_file_and_its_noise_is_rebuilt_from_it():
    c = from_dict(certificate().to_dict())
    g = SmoothedClassifier(model(), c.evidence.law, noise_of(c), 3)
    assert verify(c, g, X).stands


def test_frozen_noise_is_verified_as_it_was_frozen():
    torch.manual_seed(0)
    generator = CertificationWise(1, features=2, growth=2).eval()
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 2)).eval()
    x = torch.rand(1, 1, 4, 4, generator=torch.Generator().manual_seed(1))
    (c,) = SmoothedClassifier(net, Gaussian(scale=0.2), generator, 2).certify(x, n=2000)
    assert c.scope == "frozen" and c.mean is not None
    for source in (None, generator):
        noise = noise_of(c, source)
        assert torch.equal(noise(x)[0], c.mean) and noise.scope == ("pipeline" if source is None else "frozen")
        assert verify(c, SmoothedClassifier(net, c.evidence.law, noise, 2), x).stands
    away = (net[1].weight[1 - c.prediction] - net[1].weight[c.prediction]).detach().reshape(x.shape)
    shifted = replace(c, mean=c.mean + 20 * away)
    assert failed(verify(shifted, SmoothedClassifier(net, c.evidence.law, noise_of(shifted), 2), x)) == {"votes"}


def boasting(c, p):
    """The same certificate with a higher probability, and the radius that would follow from it."""
    return replace(c, p_lower=p, region=Region(c.region.scale, LAW.radius(p), 2))


def test_an_inflated_probability_falls_by_its_counts_and_by_fresh_votes():
    c = certificate()
    assert failed(verify(boasting(c, 0.9999), smoothed(), X)) == {"bound", "votes"}
    slightly = boasting(c, c.p_lower + 1e-6)  # too little for votes to notice
    assert failed(verify(slightly, smoothed(), X)) == {"bound"}


def test_forged_counts_fall_by_fresh_votes():
    c = certificate()
    counts = [0, 0, 0]
    counts[c.prediction] = 2000
    p = lower_bound(2000, 2000, 0.01)
    forged = replace(boasting(c, p), evidence=replace(c.evidence, counts=tuple(counts)))
    assert failed(verify(forged, smoothed(), X)) == {"votes"}


def test_another_class_falls():
    c = certificate()
    other = replace(c, prediction=(c.prediction + 1) % 3)
    assert {"bound", "votes"} <= failed(verify(other, smoothed(), X))


@pytest.mark.parametrize("factor", (1.001, 2.0))
def test_an_inflated_radius_falls(factor):
    c = certificate()
    larger = replace(c, region=Region(c.region.scale, factor * c.region.radius, 2))
    assert failed(verify(larger, smoothed(), X)) == {"radius"}


def test_a_smaller_radius_is_a_weaker_claim_and_stands():
    c = certificate()
    assert verify(replace(c, region=Region(c.region.scale, 0.5 * c.region.radius, 2)), smoothed(), X).stands


def test_a_hash_of_weights_that_is_not_this_models_is_noticed_beside_its_identity():
    c = certificate()
    named = replace(c, evidence=replace(c.evidence, model=smoothed().engine.identity()))
    assert verify(named, smoothed(), X).stands
    forged = replace(named, evidence=replace(named.evidence, weights_hash="0" * 64))
    assert failed(verify(forged, smoothed(), X)) == {"weights"}


def test_other_weights_and_another_input_are_noticed():
    c = certificate()
    assert "weights" in failed(verify(c, smoothed(seed=1), X))
    assert "input" in failed(verify(c, smoothed(), X + 1e-3))
    function = SmoothedClassifier(lambda b: model()(b), LAW, Fixed(SIGMA), 3)
    assert failed(verify(c, function, X)) == {"weights"}  # no function is the module that was certified


def test_the_certificates_own_seed_and_another_shape_are_refused():
    c = certificate()
    with pytest.raises(InvalidInput, match="own"):
        verify(c, smoothed(), X, seed=0)
    with pytest.raises(InvalidInput, match="shape"):
        verify(c, smoothed(), torch.rand(1, DIM + 1))


# --- what was tested is said ---

SEEN = set()


class Watched(nn.Linear):
    """Tells in which precision it was asked."""

    def forward(self, batch):
        SEEN.add(batch.dtype)
        return super().forward(batch)


def test_a_claim_is_tested_in_its_own_precision():
    net = Watched(DIM, 3).eval()
    net.load_state_dict(model().state_dict())
    g = SmoothedClassifier(net, LAW, Fixed(SIGMA), 3)
    for precision, dtype in (("bf16", torch.bfloat16), (None, torch.float32)):
        (c,) = g.certify(X, n=2000, alpha=0.01, precision=precision)
        fresh = SmoothedClassifier(net, LAW, Fixed(SIGMA), 3)
        SEEN.clear()
        verdict = verify(c, fresh, X)
        assert verdict.stands and dtype in SEEN and (torch.bfloat16 in SEEN) == (precision == "bf16")
        assert any(f"in {precision or 'fp32'}" in check.detail for check in verdict.checks)


SKEWED = Dense(torch.eye(DIM) + 0.3 * torch.rand(DIM, DIM, generator=torch.Generator().manual_seed(1)))


@pytest.mark.parametrize("generator", [Fixed(SIGMA, 0.1 * SIGMA), Fixed(SKEWED)], ids=repr)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_an_input_of_sixteen_bits_is_checked_as_it_was_certified(dtype, generator):
    """In float32, be the classifier a module or a function."""
    x, net = X.to(dtype), model()
    for f, name in ((net, None), (lambda batch: net(batch), "a function")):
        g = SmoothedClassifier(f, LAW, generator, 3, model_id=name)
        (c,), (answer,) = (g.certify(x, n=2000, alpha=0.01, seed=1, **asked) for asked in ({}, {"confidence": 0.3}))
        verdict = verify(c, g, x, seed=2)
        assert not failed(verdict) and verdict.confirms == "pipeline"
        assert not failed(verify_answer(answer, g, x, seed=2))


def test_a_copy_is_tested_in_its_precision_where_the_deployed_classifier_has_one_of_its_own():
    net = Watched(DIM, 3).eval()
    net.load_state_dict(model().state_dict())
    g = SmoothedClassifier(net, LAW, Fixed(SIGMA), 3, precision="bf16")
    (c,) = g.certify(X, n=2000, alpha=0.01, precision="fp32")
    assert c.evidence.copy and c.evidence.precision == "fp32"
    SEEN.clear()
    assert verify(c, g, X).stands
    assert torch.float32 in SEEN and torch.bfloat16 not in SEEN


def test_a_precision_that_cannot_be_had_gives_no_verdict():
    c = certificate()
    function = SmoothedClassifier(lambda b: model()(b), LAW, Fixed(SIGMA), 3)
    for precision, g in (("bf16", function), ("float64", smoothed())):
        other = replace(c, evidence=replace(c.evidence, precision=precision))
        with pytest.raises(InvalidInput, match=f"ran in {precision}.*in that precision"):
            verify(other, g, X)


def test_shown_bounds_promise_no_more_than_was_claimed():
    c = certificate(bound="two-class")
    high = replace(c, p_lower=0.9999999, p_upper=1e-9, region=Region(SIGMA, 0.99999999, 2))
    said = " ".join(check.detail for check in verify(high, smoothed(), X).checks)
    assert "0.999999" in said and "1.000000" not in said and "at most 0.000001" in said and "radius 0.999999 " in said


def test_a_verdict_names_its_votes_and_its_level():
    verdict = verify(certificate(bound="two-class"), smoothed(), X, n=1500, alpha=0.002)
    assert (verdict.n, verdict.alpha) == (1500, 0.002)
    votes = {check.name: check.detail for check in verdict.checks}
    assert all("of 1,500 fresh votes" in votes[name] and "0.001" in votes[name] for name in ("votes", "runner-up"))
    (single,) = (k.detail for k in verify(certificate(), smoothed(), X, alpha=0.002).checks if k.name == "votes")
    assert "0.002" in single


# --- other lies ---


def test_a_deflated_runner_up_falls():
    c = certificate(bound="two-class")
    p_b = c.p_upper / 100
    region = Region(c.region.scale, LAW.radius(c.p_lower, p_b=p_b), 2)
    assert region.radius > 1.3 * c.region.radius
    assert not verify(replace(c, p_upper=p_b, region=region), smoothed(), X).stands


def test_a_runner_up_whose_votes_were_given_to_others_falls():
    """The counts fit the claim, and so does the class's own probability: only fresh votes for the runner-up tell."""
    n, x = 10_000, torch.zeros(1, 2)
    g = SmoothedClassifier(lambda y: (y[:, 0] <= -0.25).long(), Gaussian(scale=1.0), num_classes=10)
    (c,) = g.certify(x, n=n, bound="two-class")
    assert verify(c, g, x).stands and c.radius < 0.25
    hits = c.evidence.counts[0]
    counts = (hits, *((n - hits) // 9 + (i < (n - hits) % 9) for i in range(9)))
    p_b = upper_bound(max(counts[1:]), n, 0.0005)
    radius = g.law.radius(c.p_lower, 2, 2, p_b)
    assert radius > 0.9  # the answer changes at 0.25
    forged = replace(
        c,
        p_upper=p_b,
        region=Region(1.0, radius, 2, (2,)),
        alm=radius,
        evidence=replace(c.evidence, counts=counts),
    )
    assert failed(verify(forged, g, x)) == {"runner-up"}


def fallen(c, truth, n, alpha, times=4000):
    """How often fresh votes of a classifier with these probabilities speak against the certificate."""
    counts = np.random.default_rng(0).multinomial(n, truth, times)
    return sum(not all(k.passed for k in fresh_checks(c, Votes(torch.tensor(row), 0), n, alpha)) for row in counts)


@pytest.mark.parametrize("alpha", (0.05, 0.2))
@pytest.mark.parametrize(
    ("truth", "p_upper"),
    [
        ((0.4, *[0.15] * 4), 0.15),  # everything at its limit
        ((0.4, 0.3, *[0.1] * 3), 0.3),
        ((0.501, 0.499), 0.499),
        ((0.98, *[0.001] * 20), 0.001),  # counts of a few: far from a normal law
        ((0.6, *[0.1] * 4), None),
    ],
)
def test_a_claim_at_its_limits_falls_no_more_often_than_alpha(truth, p_upper, alpha):
    c = replace(certificate(bound="two-class"), prediction=0, p_lower=truth[0], p_upper=p_upper)
    assert fallen(c, truth, 300, alpha) <= stats.binom.ppf(0.9999, 4000, alpha)


@pytest.mark.parametrize(("p_lower", "p_upper"), [(0.6, 0.22), (0.68, 0.3)])
def test_a_claim_beyond_its_limits_falls(p_lower, p_upper):
    c = replace(certificate(bound="two-class"), prediction=1, p_lower=p_lower, p_upper=p_upper)
    assert fallen(c, (0.3, 0.6, 0.05, 0.05), 2000, 0.001, 200) == 200


def test_a_runner_up_nobody_counted_falls():
    c = certificate()
    region = Region(c.region.scale, LAW.radius(c.p_lower, p_b=1e-9), 2)
    assert not verify(replace(c, p_upper=1e-9, region=region), smoothed(), X).stands


def test_another_law_than_the_verifiers_falls():
    c = certificate()
    loud = replace(c.evidence, law=Gaussian(scale=5.0))
    region = Region(c.region.scale, Gaussian(scale=5.0).radius(c.p_lower), 2)
    assert region.radius > 5 * c.region.radius
    assert not verify(replace(c, evidence=loud, region=region), smoothed(), X).stands


def test_another_sigma_than_the_verifiers_falls():
    c = certificate()
    wide = replace(c, region=Region(10 * SIGMA, c.region.radius, 2))
    assert wide.radius > 5 * c.radius
    assert not verify(wide, smoothed(), X).stands


def test_another_sigma_falls_also_where_it_differs_in_a_direction_of_little_noise_only():
    turn = torch.linalg.qr(torch.randn(DIM, DIM, generator=torch.Generator().manual_seed(0), dtype=torch.float64)).Q

    def dense(least):
        return Dense(turn @ torch.diag(torch.tensor([1.0] * (DIM - 1) + [least], dtype=torch.float64)) @ turn.T)

    x = X.double()
    g = smoothed(generator=Fixed(dense(1e-6)))
    (c,) = g.certify(x, n=2000, alpha=0.01)
    assert verify(c, g, x).stands
    forged = replace(c, region=Region(dense(4e-6), c.region.radius, 2))
    assert forged.radius > 3.9 * c.radius
    assert "noise" in failed(verify(forged, g, x))
    flat = torch.tensor([1.0] * (DIM - 1) + [1e-12])
    g, wide = smoothed(generator=Fixed(flat)), X.double()
    (c,) = g.certify(wide, n=2000, alpha=0.01)
    assert verify(c, g, wide).stands
    forged = replace(c, region=Region(flat.clamp_min(4e-12), c.region.radius, 2))
    assert "noise" in failed(verify(forged, g, wide))


def test_a_bound_that_nobody_knows_falls():
    c = certificate()
    assert failed(verify(replace(c, evidence=replace(c.evidence, bound="mine")), smoothed(), X)) == {"bound"}


def test_an_inflated_alm_falls():
    assert not verify(replace(certificate(), alm=100.0), smoothed(), X).stands


def test_a_stopped_certificate_may_not_claim_the_fixed_bound():
    c = certificate(stop=0.1)
    p = lower_bound(c.evidence.counts[c.prediction], c.evidence.n, c.evidence.alpha)
    assert p > c.p_lower
    assert not verify(boasting(c, p), smoothed(), X).stands


def test_noise_that_looks_at_its_input_does_not_pass_for_pipeline():
    generator = CertificationWise(1, features=2, growth=2).eval()
    x = torch.rand(1, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 3)).eval()
    g = SmoothedClassifier(net, Gaussian(scale=0.05), generator, 3)
    (c,) = g.certify(x, n=500)
    assert isinstance(c, Certificate) and c.scope == "frozen"
    assert verify(c, SmoothedClassifier(net, g.law, noise_of(c, generator), 3), x).stands
    forged = replace(c, scope="pipeline")
    for noise in (noise_of(forged, generator), noise_of(forged)):
        assert failed(verify(forged, SmoothedClassifier(net, g.law, noise, 3), x)) == {"scope"}


class Own(Generator):
    """Somebody's own noise, which looks at its input."""

    scope = "frozen"

    def forward(self, x):
        return torch.zeros(()), Diagonal(0.1 + x[0].abs())


def test_nor_does_the_noise_of_a_generator_that_nobody_has():
    (c,) = smoothed(generator=Own()).certify(X, n=2000)
    assert verify(c, smoothed(generator=noise_of(c)), X).stands
    forged = replace(c, scope="pipeline")
    for noise in (noise_of(forged), noise_of(forged, Own())):
        assert failed(verify(forged, smoothed(generator=noise), X)) == {"scope"}


def test_a_registrys_claim_is_checked_against_the_registry(tmp_path):
    g = smoothed()
    near = X + 0.01
    with Registry(tmp_path / "r") as registry, Registry(tmp_path / "other") as other:
        first, inside = registry.certify(g, torch.cat([X, near]), n=2000, alpha=0.01)
        assert inside.evidence.input_hash == first.evidence.input_hash
        for c, x in ((first, X), (inside, near)):
            assert verify(c, g, x, registry=registry).stands
            wide = replace(c, region=Region(SIGMA, c.region.radius * 1.001, 2))
            assert "scope" in failed(verify(wide, g, x, registry=registry))
            assert "scope" in failed(verify(c, g, x, registry=other))
            with pytest.raises(InvalidInput, match="give the registry"):
                verify(c, g, x)
