"""Certificates that survive a change of the model: never above the truth, and cheap where little is lost."""

import importlib.util
import itertools
import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from jsonschema import Draft202012Validator
from scipy import stats
from torch import nn

from ucan import Abstention, Certificate, Gaussian, InvalidInput, Laplace, Routed, SmoothedClassifier, Threshold
from ucan.backends import prepare
from ucan.bounds import lower_bound, net_loss_bound, upper_bound
from ucan.certificate import from_dict, save_json
from ucan.evidence import Evidence
from ucan.named_bounds import IN_PAIRS, bound_named
from ucan.pairs import joint_lower_bound
from ucan.plan import CertifyPlan
from ucan.recertify import CONTRADICTED, _check_supported, recertify
from ucan.replay import replay
from ucan.verify import verify

LAW = Gaussian(1.0)
ROOT = Path(__file__).parents[1]
SCHEMA = Draft202012Validator(
    json.loads((ROOT / "src" / "ucan" / "certificate.schema.json").read_text(encoding="utf-8"))
)
spec = importlib.util.spec_from_file_location("check_certificate", ROOT / "checker" / "check_certificate.py")
assert spec is not None and spec.loader is not None
CHECKER = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = CHECKER
spec.loader.exec_module(CHECKER)


class Planted(nn.Module):
    """Class 1 where the first coordinate is above 0, but for a share of the second one's values, where it is class 0."""

    def __init__(self, share=0.0):
        super().__init__()
        self.edge = nn.Parameter(torch.tensor(math.inf if share == 0 else float(stats.norm.isf(share))))

    def forward(self, batch):
        return ((batch[:, 0] > 0) & (batch[:, 1] <= self.edge)).long()


def smoothed(share=0.0, law=LAW, **more):
    return SmoothedClassifier(Planted(share).eval(), law, num_classes=2, **more)


def at(p):
    return torch.tensor([[float(stats.norm.ppf(p)), 0.0, 0.0]])


@pytest.mark.parametrize("share", (0.0, 0.01, 0.1))
@pytest.mark.parametrize("stop", (None, 0.2))
def test_recertified_probabilities_are_never_above_the_truth_more_often_than_alpha(share, stop):
    alpha, wrong, runs, p = 0.05, 0, 120, 0.9
    old, new = smoothed(), smoothed(share)
    for seed in range(runs):
        (c,) = old.certify(at(p), n=500, alpha=alpha, seed=seed, stop=stop)
        if c.abstained:
            continue
        again = recertify(c, old, new, at(p), m=250, seed=1000 + seed)
        wrong += again.p_lower > p * (1 - share)
    assert wrong / runs <= alpha + 4 * math.sqrt(alpha / runs)


def test_a_tenth_of_the_votes_keeps_the_radius():
    old, new = smoothed(), smoothed(1e-5)
    for p in (0.7, 0.9, 0.98):
        (c,) = old.certify(at(p), n=100_000)
        again = recertify(c, old, new, at(p), seed=5)
        assert again.evidence.n == 10_000 and again.evidence.bound == "joint"
        assert 0.99 * c.radius <= again.radius <= c.radius


def test_votes_before_and_in_pairs_have_one_test_where_they_were_a_fixed_number_of_votes():
    old, new = smoothed(), smoothed(0.02)
    (c,) = old.certify(at(0.9), n=2000)
    again = recertify(c, old, new, at(0.9), m=1000, seed=5)
    hits, lost = c.evidence.counts[1], again.evidence.pairs.lost
    assert 0 < lost < 60 and again.evidence.pairs.before == c.evidence and again.prediction == 1
    assert again.evidence.pairs.gained == 0 and again.evidence.bound == "joint" and again.evidence.alpha == 0.001
    level = 0.9 * 0.001
    assert again.p_lower == joint_lower_bound(
        hits, 2000, lost, 0, 1000, 0.9 * level, upper_bound(lost, 1000, 0.1 * level)
    )
    # and evidence from before that test has the bound that it names
    low, half = lower_bound(hits, 2000, (1 - IN_PAIRS) * 0.001), IN_PAIRS * 0.001 / 2
    paired = bound_named("paired").probabilities(replace(again.evidence, bound="paired").ballot(1))[0]
    assert paired == low - min(upper_bound(lost, 1000, half), net_loss_bound(lost, 0, 1000, half)) < again.p_lower
    uncounted = replace(again.evidence, bound="paired", pairs=replace(again.evidence.pairs, gained=None))
    assert Evidence.from_dict(uncounted.to_dict()) == uncounted and "gained" not in uncounted.to_dict()["pairs"]
    assert bound_named("paired").probabilities(uncounted.ballot(1))[0] == low - upper_bound(lost, 1000, 2 * half)


def test_one_step_per_entry_is_compared_as_a_whole():
    steps = torch.tensor([0.001, 0.002, 0.001])
    x = (at(0.9) / steps).round() * steps
    old, new = smoothed(step=steps), smoothed(1e-5, step=steps.clone())
    (c,) = old.certify(x, n=10_000)
    assert not recertify(c, old, new, x, seed=5).abstained
    with pytest.raises(InvalidInput, match="different arithmetics"):
        recertify(c, old, smoothed(1e-5, step=2 * steps), x, seed=5)


def test_after_votes_that_a_rule_ended_each_have_a_bound_of_their_own():
    old, new = smoothed(), smoothed(0.02)
    (c,) = old.certify(at(0.9), n=2000, stop=0.2)
    again = recertify(c, old, new, at(0.9), m=1000, seed=5)
    evidence, half = again.evidence, IN_PAIRS * 0.001 / 2
    low, _ = bound_named("sequential").probabilities(replace(c.evidence.ballot(1), alpha=(1 - IN_PAIRS) * 0.001))
    lost = evidence.pairs.lost
    assert evidence.bound == "paired" and bound_named("joint").probabilities(evidence.ballot(1))[0] == 0
    assert again.p_lower == low - min(upper_bound(lost, 1000, half), net_loss_bound(lost, 0, 1000, half))


def test_where_alpha_is_tiny_the_bounds_are_apart():
    old, new = smoothed(), smoothed(0.001)
    (c,) = old.certify(at(0.9), n=2000, alpha=1e-9)
    assert recertify(c, old, new, at(0.9), m=1000, seed=5).evidence.bound == "paired"


class Flipped(Planted):
    """The other class for a share of the second coordinate's values: votes are lost and gained."""

    def forward(self, batch):
        return ((batch[:, 0] > 0) ^ (batch[:, 1] > self.edge)).long()


def test_gains_make_up_for_losses_and_the_truth_is_not_passed_more_often_than_alpha():
    alpha, runs, p, share = 0.05, 60, 0.6, 0.3
    old, new = smoothed(), SmoothedClassifier(Flipped(share).eval(), LAW, num_classes=2)
    truth, found = p * (1 - share) + (1 - p) * share, []
    for seed in range(runs):
        (c,) = old.certify(at(p), n=4000, alpha=alpha, seed=seed)
        if isinstance(c, Abstention):  # the wrong class was chosen
            continue
        evidence = recertify(c, old, new, at(p), m=1000, seed=1000 + seed).evidence
        assert 120 < evidence.pairs.lost < 240 and 70 < evidence.pairs.gained < 170
        uncounted = replace(evidence, pairs=replace(evidence.pairs, gained=None))
        by = (("joint", evidence), ("paired", evidence), ("paired", uncounted))
        found.append([bound_named(name).probabilities(votes.ballot(1))[0] for name, votes in by])
    joint, paired, uncounted = torch.tensor(found, dtype=torch.float64).T
    for bound, less in ((joint, paired), (paired, uncounted)):
        assert (bound > truth).sum() / runs <= alpha + 4 * math.sqrt(alpha / runs)
        assert (bound > less).sum() > len(found) / 2


def test_of_a_nearly_sure_class_fresh_votes_are_drawn():
    old, new = smoothed(), smoothed()
    (c,) = old.certify(at(0.9999), n=20_000)
    again = recertify(c, old, new, at(0.9999), seed=5)
    assert again.evidence.bound == "binary" and again.evidence.n == 2000 and again.evidence.pairs is None


def test_votes_in_pairs_choose_no_class_so_fresh_ones_after_them_have_the_first_ones_number():
    """One vote would choose the wrong class in one case of 250."""
    old, new = smoothed(), smoothed()
    (c,) = old.certify(at(0.996), n0=60, n=100_000)
    paired = recertify(c, old, new, at(0.996), seed=5)
    assert paired.evidence.pairs is not None and paired.evidence.n0 == 0 and paired.p_lower > 0.992
    fresh = recertify(paired, new, old, at(0.996), seed=6)
    assert fresh.evidence.pairs is None and fresh.evidence.n0 == 60


def test_a_class_that_is_lost_is_not_certified():
    old, new = smoothed(), smoothed(0.6)
    (c,) = old.certify(at(0.9), n=2000)
    assert isinstance(recertify(c, old, new, at(0.9), seed=5), Abstention)


def test_the_record_goes_to_json_and_back_through_verify_schema_and_checker(tmp_path):
    old, new = smoothed(), smoothed(0.01)
    (c,) = old.certify(at(0.9), n=2000)
    again = recertify(c, old, new, at(0.9), seed=5)
    read = from_dict(again.to_dict())
    assert read.evidence == again.evidence and isinstance(read, Certificate)
    assert verify(read, new, at(0.9), n=2000).stands
    assert not verify(read, old, at(0.9), n=2000).stands  # it is about the new one
    assert replay(read, new, at(0.9)).outcome == "not replayable here"
    save_json(read, tmp_path / "c.json")
    assert CHECKER.main([str(tmp_path / "c.json")]) == 0
    SCHEMA.validate(read.to_dict())
    record = read.to_dict()
    record["evidence"]["pairs"]["lost"] += 5
    (tmp_path / "c.json").write_text(json.dumps(record))
    assert CHECKER.main([str(tmp_path / "c.json")]) == 1  # the claimed p does not follow any more
    better = replace(read, evidence=replace(read.evidence, pairs=replace(read.evidence.pairs, lost=150)))
    assert not verify(better, new, at(0.9), n=200).stands  # with more votes lost the claim does not follow
    with pytest.raises(InvalidInput, match="cannot be gained"):
        replace(read.evidence, pairs=replace(read.evidence.pairs, gained=201))
    record["evidence"]["pairs"] |= {"lost": read.evidence.pairs.lost, "gained": 150}
    (tmp_path / "c.json").write_text(json.dumps(record | {"p_lower": 0.999}))
    assert CHECKER.main([str(tmp_path / "c.json")]) == 1  # no gains allow more than if all votes agreed
    with pytest.raises(InvalidInput, match="cannot be lost"):
        replace(read.evidence, pairs=replace(read.evidence.pairs, lost=-1))


def test_changed_evidence_of_earlier_votes_is_refused_by_the_checker_and_by_the_record(tmp_path, capsys):
    old, new = smoothed(), smoothed(0.01)
    (c,) = old.certify(at(0.9), n=2000)
    record = recertify(c, old, new, at(0.9), seed=5).to_dict()
    hits, votes = c.evidence.counts[1], record["evidence"]["pairs"]["before"]

    def said(changed, before=None, **pairs):
        """What the checker says of evidence that was changed; the claim is as it was."""
        own = {**record["evidence"], **changed}
        own["pairs"] = {**record["evidence"]["pairs"], **pairs, "before": {**votes, **(before or {})}}
        (tmp_path / "c.json").write_text(json.dumps({**record, "evidence": own}))
        code = CHECKER.main([str(tmp_path / "c.json")])
        return code, capsys.readouterr().out

    assert said({})[0] == 0
    for worse in (
        {"before": {"counts": [2000 - hits + 30, hits - 30]}},
        {"gained": 0, "lost": record["evidence"]["pairs"]["lost"] + 3},
        {"before": {"n": 4000, "cap": 4000, "invalid": 2000}},
    ):
        assert "FAIL        bound" in said({}, **worse)[1]
    assert "FAIL        bound" in said({"alpha": 0.0001})[1]
    key = {"pairs": votes["streams"]["estimate"]}
    for changed, before, words in (
        ({}, {"n": hits, "cap": hits}, "do not add up"),  # all of fewer votes
        ({}, {"noise": {**votes["noise"], "state": "0" * 64}}, "another noise"),
        ({}, {"arithmetic": "grid(1/255)"}, "another arithmetic"),
        ({}, {"stop": "0.2"}, "fixed number of votes before"),
        ({}, {"cap": 5000}, "fixed number of votes before"),
        ({}, {"bound": "sequential"}, "fixed number of votes before"),
        ({"streams": key}, {}, "must not depend on them"),
    ):
        code, told = said(changed, before)
        assert code == 1 and words in told
    with pytest.raises(InvalidInput, match="must not depend on them"):
        from_dict({**record, "evidence": {**record["evidence"], "streams": key}})
    assert said({"bound": "binary"})[0] == 1  # other votes, read as fresh ones of this class
    assert said({"bound": "paired"})[0] == 1  # a joint claim is more than two bounds apart allow


def test_a_chain_of_classifiers_goes_through_verify_schema_and_checker(tmp_path):
    chain = [smoothed(), smoothed(0.001), smoothed(0.002), smoothed(0.003)]
    (c,) = chain[0].certify(at(0.9), n=20_000, bound="randomised")
    for (old, new), bound in zip(itertools.pairwise(chain), ("joint", "paired", "paired"), strict=True):
        c = recertify(c, old, new, at(0.9), m=5000)
        assert isinstance(c, Certificate) and c.evidence.bound == bound
        assert verify(c, new, at(0.9), n=2000).stands
        save_json(c, tmp_path / "c.json")
        assert CHECKER.main([str(tmp_path / "c.json")]) == 0
        SCHEMA.validate(c.to_dict())
    assert 0.8 < c.p_lower < 0.9 * 0.997
    record = c.to_dict()
    record["evidence"]["pairs"]["before"]["pairs"]["before"]["pairs"]["before"]["selection"] = [100, 0]
    (tmp_path / "c.json").write_text(json.dumps(record))
    assert CHECKER.main([str(tmp_path / "c.json")]) == 1  # the first of them chose another class


def test_the_old_classifier_votes_as_it_did_for_its_certificate(monkeypatch):
    """Run otherwise it rounds otherwise: pairs would tell the change from a classifier that the old votes are not of."""
    model, names = torch.nn.Linear(2, 2).eval(), []
    law = Gaussian(scale=0.5)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[-1.0, 0.0], [1.0, 0.0]]))
        model.bias.zero_()
    old, new = (SmoothedClassifier(model, law, num_classes=2) for _ in range(2))
    half = SmoothedClassifier(model, law, num_classes=2, precision="bf16")
    x = torch.tensor([[0.4, 0.0]])
    (c,) = half.certify(x, n=2000)
    with pytest.raises(InvalidInput, match=r"ran eager in bf16 for its certificate, and runs eager in fp32 here"):
        recertify(c, old, new, x, seed=5)
    assert isinstance(recertify(c, half, new, x, seed=5), Certificate)

    def prepared(f, view, example, name, precision):
        names.append(name)
        return replace(prepare(f, view, example, "eager", precision), name=name)

    monkeypatch.setattr("ucan.engine.prepare", prepared)
    (c,) = old.certify(x, n=2000, seed=1)
    compiled = replace(c, evidence=replace(c.evidence, backend="compile"))
    names.clear()
    assert isinstance(recertify(compiled, old, new, x, seed=5), Certificate)
    assert names == ["compile"] and old.engine.backend == "eager"
    monkeypatch.setattr("ucan.engine.prepare", lambda *given: prepare(*given[:3], "eager", given[4]))
    old, new = (SmoothedClassifier(model, law, num_classes=2) for _ in range(2))
    with pytest.raises(InvalidInput, match="ran compile in fp32"):  # which is not possible here
        recertify(compiled, old, new, x, seed=5)


def test_what_is_not_the_same_is_refused():
    old, new = smoothed(), smoothed(0.01)
    (c,) = old.certify(at(0.9), n=500)
    for wrong, what in (
        ((c, new, old, at(0.9)), "not of the old classifier"),
        ((c, old, new, at(0.8)), "another input"),
        ((c, old, smoothed(0.01, Gaussian(2.0)), at(0.9)), "different laws"),
        ((c, old, smoothed(0.01, step=1 / 255), at(0.9)), "different arithmetics"),
    ):
        with pytest.raises(InvalidInput, match=what):
            recertify(*wrong, seed=5)
    more = replace(c.evidence, counts=(0, 500))  # as a damaged record has it: the rest is as it was
    with pytest.raises(InvalidInput, match="changed or is damaged"):
        recertify(replace(c, evidence=more), old, new, at(0.9), seed=5)
    with pytest.raises(InvalidInput, match="seed 0 is that of the certificate"):
        recertify(c, old, new, at(0.9), seed=0)
    (laplace,) = smoothed(law=Laplace(1.0)).certify(at(0.9), n=500, norm=1)
    with pytest.raises(InvalidInput, match="another law"):
        recertify(laplace, old, new, at(0.9), seed=5)


class Unidentified:
    """A classifier whose code and data cannot be read, so that it has no identity."""

    def __init__(self, edge):
        self.edge = edge

    def __reduce_ex__(self, protocol):
        raise TypeError("it cannot be taken apart")

    def __call__(self, batch):
        return (batch[:, 0] > self.edge).long()


def test_in_a_chain_no_earlier_seed_is_taken_again():
    """The votes in pairs of the third step would be those of the first once more."""
    one, two = smoothed(), smoothed(0.001)
    (c,) = one.certify(at(0.9), n=2000, seed=1)
    again = recertify(recertify(c, one, two, at(0.9), seed=5), two, one, at(0.9), seed=6)
    for seed in (1, 5, 6):
        with pytest.raises(
            InvalidInput, match=f"seed {seed} is that of the certificate, or of one that it goes on from"
        ):
            recertify(again, one, two, at(0.9), seed=seed)
    assert isinstance(recertify(again, one, two, at(0.9), seed=7), Certificate)


def test_a_classifier_without_an_identity_is_not_the_old_one():
    sure, weak = (SmoothedClassifier(Unidentified(edge), LAW, num_classes=2) for edge in (-1.0, 0.0))
    (c,) = sure.certify(at(0.9), n=500)
    assert c.evidence.identity is None and sure.engine.identity() is None
    for old in (sure, weak):
        with pytest.raises(InvalidInput, match="give the old classifier a model_id"):
            recertify(c, old, weak, at(0.9), seed=5)


@pytest.mark.parametrize("kind", ("selector", "threshold"))
def test_the_answer_of_a_router_is_refused_as_such(kind):
    wide, narrow = smoothed(), smoothed(0.01)
    router = Routed(wide if kind == "selector" else Threshold(wide, 0.5), [wide, narrow])
    (c,) = router.certify(at(0.99), n=2000)
    assert isinstance(c, Certificate)
    old = router.experts[c.expert]
    with pytest.raises(InvalidInput, match="a router's"):
        recertify(c, old, old, at(0.99), m=500, seed=5)


def with_votes(certificate, g, x, hits):
    """The same certificate with so many votes for its class, and what follows from them."""
    evidence, c_A = certificate.evidence, certificate.prediction
    counts = tuple(hits if c == c_A else evidence.n - hits for c in range(2))
    changed = replace(evidence, counts=counts)
    low = lower_bound(hits, evidence.n, evidence.alpha) - g.arithmetic_error(g.held_at(x), x)
    return g.conclude(g.held_at(x), x, c_A, low, None, changed, CertifyPlan(n=evidence.n))


def test_votes_that_the_old_classifier_does_not_cast_are_refused():
    old, new, x = smoothed(), smoothed(0.01), at(0.6)
    (c,) = old.certify(x, n=2000)
    invented = with_votes(c, old, x, 1900)
    assert (
        invented.p_lower > 0.9
        and not recertify(with_votes(c, old, x, c.evidence.counts[1]), old, new, x, 400).abstained
    )
    with pytest.raises(
        InvalidInput, match=r"of 400 new votes of the old classifier are for class 1.*the record was changed"
    ):
        recertify(invented, old, new, x, 400)


def test_the_refusal_is_an_exact_test():
    """At the claimed probability itself, votes are refused with a probability of at most the level, and not much below it."""
    (c,) = smoothed().certify(at(0.9), n=2000)
    for m in (100, 400, 5000):
        refused = [k for k in range(m + 1) if contradicts(c, k, m)]
        assert refused == list(range(len(refused))) and refused
        level = stats.binom.cdf(refused[-1], m, c.p_lower)
        assert level <= CONTRADICTED < stats.binom.cdf(refused[-1] + 1, m, c.p_lower)


def contradicts(certificate, hits, m):
    try:
        _check_supported(certificate, hits, m)
    except InvalidInput:
        return True
    return False
