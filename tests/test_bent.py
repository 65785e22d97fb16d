"""Attacks on splitting noise, randomised bounds, votes in pairs and routers: what must not be claimed or pass."""

import importlib.util
import itertools
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from ucan import Gaussian, InvalidInput, Routed, SmoothedClassifier, Splitting, Threshold, Uniform
from ucan.bounds import majority_p_value, uniform_of
from ucan.certificate import from_dict
from ucan.named_bounds import bound_named
from ucan.plan import CertifyPlan
from ucan.recertify import recertify
from ucan.sizes import alm_of
from ucan.verify import verify
from ucan.votes import Stream

ROOT = Path(__file__).parent.parent
spec = importlib.util.spec_from_file_location("check_certificate", ROOT / "checker" / "check_certificate.py")
assert spec is not None and spec.loader is not None
CHECKER = importlib.util.module_from_spec(spec)
sys.modules["check_certificate"] = CHECKER
spec.loader.exec_module(CHECKER)

LAW, X = Gaussian(scale=1.0), torch.tensor([[0.8, 0.0]], dtype=torch.float64)


def smoothed(offset=0.0):
    """Class 0 where the first coordinate is above −offset."""
    net = nn.Linear(2, 2).double().eval()
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))
        net.bias.copy_(torch.tensor([offset, -offset]))
    return SmoothedClassifier(net, LAW, num_classes=2)


def forged(c, g, evidence):
    """The certificate with other evidence and all that follows from it."""
    p, _ = bound_named(evidence.bound).probabilities(evidence.ballot(c.prediction))
    region = g.sizes.region(g.M.at(X), X, p, None, 2)
    return replace(c, evidence=evidence, p_lower=p, region=region, alm=alm_of(region, LAW, p, None, 2))


def failed(verdict):
    return {check.name for check in verdict.checks if not check.passed}


# --- splitting noise ---


def waves(seed):
    """A classifier of three coordinates that changes its mind often."""
    rng = torch.Generator().manual_seed(seed)
    inner, outer = (torch.randn(64, 3, generator=rng, dtype=torch.float64) for _ in range(2))
    return lambda y: torch.sin(2 * y.double() @ inner.T) @ outer


def test_watched_votes_of_an_exact_bound_are_all_draws():
    """Fifty random ones would be taken for all of them, and their share for the probability."""
    g = SmoothedClassifier(
        waves(0), Uniform(1.0), Splitting((3,), steps=8), num_classes=3, step=1 / 8, model_id="waves"
    )
    x = torch.tensor([[0.5, 0.75, 0.25]])
    (c,) = g.certify(x, bound="exact", norm=1)
    *votes, watched = g.certify_watched(x, CertifyPlan(n=50, norm=1, bound="exact"))
    assert watched.evidence.counts == c.evidence.counts and watched.evidence.n == 16
    assert watched.radius == c.radius and votes[-1].counts.tolist() == list(c.evidence.counts)


@pytest.mark.parametrize("seed", range(4))
def test_no_change_within_a_region_of_splitting_noise_changes_the_answer(seed):
    """All changes by whole steps, looked at one by one, also of inputs outside [0, 1]."""
    steps, widths = 5, torch.tensor([[4, 12, 6], [8, 8, 8], [12, 4, 4], [6, 6, 12]][seed])
    noise = Splitting((3,), steps=steps, scale=widths.double() / (2 * steps), seed=seed)
    g = SmoothedClassifier(waves(seed), Uniform(1.0), noise, num_classes=3, step=1 / steps, model_id="waves")
    near = torch.tensor(list(itertools.product(range(-3, 4), repeat=3)), dtype=torch.float64) / steps
    looked = 0
    for k in ((0, 2, 5), (-2, 7, 3), (1, 1, 1), (4, 0, 2)):
        x = torch.tensor([k], dtype=torch.float64) / steps
        (c,) = g.certify(x, bound="exact", norm=1)
        if c.abstained:
            continue
        inside = near[c.region.contains(near)]
        looked += len(inside) - 1
        assert {answer.prediction for answer in g.predict(x + inside, test="exact")} == {c.prediction}
    assert looked > 5


def test_a_classifier_in_the_place_of_one_whose_draws_were_all_counted():
    """The votes before chose the class as well, and are all draws."""
    old, new = (
        SmoothedClassifier(waves(1), Uniform(1.0), Splitting((3,), steps=5, scale=0.8), 3, step=1 / 5, model_id=name)
        for name in ("old", "new")
    )
    x = torch.tensor([[0.0, 0.4, 1.0]], dtype=torch.float64)
    (c,) = old.certify(x, bound="exact", norm=1)
    found = recertify(c, old, new, x, m=2000, seed=4)
    assert found.evidence.bound == "paired" and not failed(verify(found, new, x, seed=7))
    lines = CHECKER.check(json.loads(json.dumps(found.to_dict())), Path())
    assert {verdict for verdict, _, _ in lines} == {"ok"}


# --- randomised bounds and votes in pairs ---


def test_the_uniform_number_of_a_bound_cannot_be_chosen_by_the_name_of_a_phase():
    g = smoothed()
    (c,) = g.certify(X, n=2000, seed=3, bound="randomised")
    name = c.evidence.input_hash
    phase = min((f"estimate{i}" for i in range(5000)), key=lambda phase: uniform_of(Stream(3, name, phase).key))
    streams = {**c.evidence.streams, phase: Stream(3, name, phase).key}
    better = forged(c, g, replace(c.evidence, phase=phase, streams=streams))
    assert better.p_lower > c.p_lower
    assert failed(verify(better, g, X, seed=77)) == {"uniform"}
    lines = CHECKER.check(json.loads(json.dumps(better.to_dict())), Path())
    assert [name for verdict, name, _ in lines if verdict == "FAIL"] == ["bound"]


def test_the_votes_before_those_in_pairs_are_checked_as_well():
    old, new = smoothed(), smoothed(0.01)
    (c,) = old.certify(X, n=2000, seed=3, bound="randomised")
    found = recertify(c, old, new, X, m=300, seed=9)
    assert not failed(verify(found, new, X, seed=77))
    pairs = found.evidence.pairs
    counted = replace(found.evidence, pairs=replace(pairs, before=replace(pairs.before, bound="exact")))
    assert failed(verify(replace(found, evidence=counted), new, X, seed=77)) == {"votes before", "bound"}
    streams = {**pairs.before.streams, "estimate": min((f"{i:064x}" for i in range(5000)), key=uniform_of)}
    chosen = replace(found.evidence, pairs=replace(pairs, before=replace(pairs.before, streams=streams)))
    assert failed(verify(forged(found, new, chosen), new, X, seed=77)) == {"uniform"}


@pytest.mark.parametrize(("counts", "lost", "gained"), [((20, 780), 0, 60), ((800, 0), 5, 30)])
def test_votes_in_pairs_that_cannot_be_are_found(counts, lost, gained):
    """More votes gained than the class has, or more lost than the other classes have."""
    old, new = smoothed(), smoothed(0.001)
    (c,) = old.certify(X, n=5000)
    found = recertify(c, old, new, X, m=800, seed=5)
    assert "pairs" in {check.name for check in verify(found, new, X, seed=77).checks}
    pairs = replace(found.evidence.pairs, lost=lost, gained=gained)
    better = forged(found, new, replace(found.evidence, counts=counts, pairs=pairs))
    assert better.radius > found.radius
    assert "pairs" in failed(verify(better, new, X, n=300, seed=77))
    lines = CHECKER.check(json.loads(json.dumps(better.to_dict())), Path())
    assert [name for verdict, name, _ in lines if verdict == "FAIL"] == ["bound"]


def test_the_votes_before_are_about_the_same_exact_input_and_held_columns():
    old, new = smoothed(), smoothed(0.01)
    (c,) = old.certify(X, n=2000, seed=3)
    found = recertify(c, old, new, X, m=300, seed=9)
    pairs = found.evidence.pairs
    for other in ({"exact_hash": "0" * 64}, {"held": {"age": 40}}):
        record = json.loads(json.dumps(found.to_dict()))
        record["evidence"]["pairs"]["before"] |= other
        with pytest.raises(InvalidInput, match="another input"):
            from_dict(record)
        assert [name for verdict, name, _ in CHECKER.check(record, Path()) if verdict == "FAIL"] == ["bound"]
    # What version 0.1 wrote does not have the first of them.
    before = replace(pairs.before, exact_hash=None)
    old_file = replace(found, evidence=replace(found.evidence, pairs=replace(pairs, before=before)))
    assert not failed(verify(old_file, new, X, seed=77))
    lines = CHECKER.check(json.loads(json.dumps(old_file.to_dict())), Path())
    assert {verdict for verdict, _, _ in lines} == {"ok"}


def test_the_thresholds_of_the_votes_before_follow_from_their_rule():
    old, new = smoothed(), smoothed(0.01)
    (c,) = old.certify(X, n=2000, seed=3, stop="0.3")
    found = recertify(c, old, new, X, m=300, seed=9)
    assert not failed(verify(found, new, X, seed=77))
    pairs = found.evidence.pairs
    moved = replace(pairs, before=replace(pairs.before, thresholds=(0.7,)))
    other = forged(found, new, replace(found.evidence, pairs=moved))
    assert failed(verify(other, new, X, n=300, seed=77)) == {"thresholds"}


def test_the_class_is_the_one_that_other_votes_chose():
    """Of votes in pairs those of the first classifier chose it."""
    old, new = smoothed(), smoothed(0.01)
    (c,) = old.certify(X, n=2000, seed=3)
    found = recertify(c, old, new, X, m=300, seed=9)
    pairs = found.evidence.pairs
    for claim, g, within in (
        (c, old, lambda evidence: evidence),
        (found, new, lambda before: replace(found.evidence, pairs=replace(pairs, before=before))),
    ):
        assert "class" in {check.name for check in verify(claim, g, X, seed=77).checks}
        for selection, mark in (((40, 60), "FAIL"), (None, "not checked"), ((0, 0), "not checked")):
            told = replace(claim, evidence=within(replace(c.evidence, selection=selection)))
            seen = verify(told, g, X, seed=77)
            (chosen,) = (check for check in seen.checks if check.name == "class")
            assert failed(seen) == ({"class"} if mark == "FAIL" else set())
            assert chosen.confirmed == (mark == "FAIL")
            lines = CHECKER.check(json.loads(json.dumps(told.to_dict())), Path())
            assert [verdict for verdict, name, _ in lines if name == "class"] == [mark]


def test_recertify_knows_inputs_apart_that_are_one_in_float32():
    old, new = smoothed(), smoothed(0.01)
    (c,) = old.certify(X, n=2000, seed=3)
    with pytest.raises(InvalidInput, match="another input"):
        recertify(c, old, new, X + 1e-12, m=300, seed=9)


def test_recertify_takes_no_derived_seed():
    """It had been taken for seed 0, without a word."""
    old, new = smoothed(), smoothed(0.01)
    (c,) = old.certify(X, n=2000, seed=3)
    with pytest.raises(InvalidInput, match="no derived seed"):
        recertify(c, old, new, X, m=300, seed="derived")


# --- routers ---


def test_a_family_of_a_router_has_room_for_all_inputs():
    g = smoothed()
    with pytest.raises(InvalidInput, match="family is 2"):
        Routed(g, [g, smoothed(0.01)]).certify(X.repeat(3, 1), n=100, family=2)


@pytest.mark.parametrize(("threshold", "veto"), [(0.5, 0.0), (0.5, 0.3), (0.7, 0.0)])
def test_a_threshold_leaves_half_of_its_level_to_the_answer(threshold, veto):
    """The evidence names the level of two bounds on an expert; the answer is one of them."""
    g = smoothed()
    router = Routed(Threshold(g, threshold, veto), [g, smoothed(0.01)])
    (c,) = router.certify(X, n=5000)
    assert not failed(verify(c, router, X, seed=77))
    record = json.loads(json.dumps(c.to_dict()))
    assert {verdict for verdict, _, _ in CHECKER.check(record, Path())} == {"ok"}
    twice = replace(forged(c.answer, router.experts[c.expert], c.evidence), choice=c.choice)
    if c.expert == 1:  # by the two-class bound, which is both bounds and halves the level itself
        assert c.evidence.bound == "two-class" and twice.p_lower == c.p_lower
        return
    assert twice.p_lower > c.p_lower
    assert failed(verify(twice, router, X, seed=77)) == {"answer bound"}
    lines = CHECKER.check(json.loads(json.dumps(twice.to_dict())), Path())
    assert [name for verdict, name, _ in lines if verdict == "FAIL"] == ["bound"]


def test_a_prediction_by_a_threshold_has_half_of_its_level():
    g = smoothed()
    (answer,) = Routed(Threshold(g, 0.7), [g, smoothed(0.01)]).predict(X, n=100, alpha=0.2)
    record = json.loads(json.dumps(answer.to_dict()))
    assert {verdict for verdict, _, _ in CHECKER.check(record, Path())} == {"ok"}
    p_value = majority_p_value(57, 100)
    assert answer.prediction == 0 and answer.evidence.alpha / 2 < p_value < answer.evidence.alpha
    record["evidence"]["counts"], record["p_value"] = [57, 43], p_value
    lines = CHECKER.check(record, Path())
    assert [name for verdict, name, _ in lines if verdict == "FAIL"] == ["test"]


@pytest.mark.parametrize("changed", [{"cap": 100_000}, {"stop": "0.5"}, {"bound": "exact"}])
def test_a_level_of_votes_that_were_not_fixed_in_advance_does_not_stand(changed):
    g = smoothed()
    router = Routed(Threshold(g, 0.7), [g, smoothed(0.01)])
    (c,) = router.certify(X, n=5000)
    assert not failed(verify(c, router, X, seed=77))
    choice = replace(c.choice, evidence=replace(c.choice.evidence, **changed))
    assert failed(verify(replace(c, choice=choice), router, X, seed=77)) == {"choice bound"}
