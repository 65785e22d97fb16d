"""A certified router: where choice and answer both hold, and nowhere else."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import norm as normal
from torch import nn

import ucan
from ucan.certificate import from_dict, load_json, save_json
from ucan.errors import InvalidInput
from ucan.region import Intersection
from ucan.routed import Routed
from ucan.threshold import crossing, level_bound
from ucan.verify import verify


def halfspace(direction: list[float], offset: float = 0.0) -> nn.Module:
    """Class 1 where w·x > offset, else class 0."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(len(direction), 2)).eval()
    with torch.no_grad():
        net[1].weight.copy_(torch.tensor([[0.0] * len(direction), direction]))
        net[1].bias.copy_(torch.tensor([0.0, -offset]))
    return net


def router(sigma: float = 0.4) -> Routed:
    """The first coordinate chooses: expert 1 (looks at the second) to the right, expert 0 (at the third) to the left."""
    selector = ucan.SmoothedClassifier(halfspace([1.0, 0, 0]), ucan.Gaussian(sigma), num_classes=2)
    wide = ucan.SmoothedClassifier(halfspace([0, 0, 1.0]), ucan.Gaussian(0.5), num_classes=2)
    shaped = ucan.Fixed(torch.tensor([3.0, 0.5, 3.0]))
    narrow = ucan.SmoothedClassifier(halfspace([0, 1.0, 0]), ucan.Gaussian(0.25), shaped, num_classes=2)
    return Routed(selector, [wide, narrow])


X = torch.tensor([[0.5, -0.3, 0.2], [-0.8, 0.1, 0.6], [0.001, 0.4, 0.4], [0.9, 0.0001, 0.3]])


def test_against_the_closed_form() -> None:
    """For half-spaces every radius is the distance to the border: no part claims more, and most of it is claimed."""
    outcomes = router().certify(X, n=20_000)
    first, second, open_choice, open_answer = outcomes
    assert (first.prediction, first.expert) == (0, 1) and (second.prediction, second.expert) == (1, 0)
    assert 0.28 < first.radius <= 0.3 and 0.55 < second.radius <= 0.6
    assert first.radius == min(first.choice.radius, first.answer.radius) and first.scope == "pipeline"
    assert open_choice.abstained and "the choice abstained" in open_choice.reason
    assert open_answer.abstained and "which was chosen, abstained" in open_answer.reason
    assert first.alpha == pytest.approx(0.001) and first.choice.evidence.alpha == 0.0005


def test_the_choice_may_be_what_limits_it() -> None:
    (outcome,) = router().certify(torch.tensor([[0.2, -0.9, 0.1]]), n=20_000)
    assert outcome.choice.radius < outcome.answer.radius and outcome.radius <= 0.2


def test_the_region_is_where_both_hold() -> None:
    (outcome,) = router().certify(X[:1], n=20_000)
    region = outcome.region
    rng = torch.Generator().manual_seed(0)
    delta = torch.randn(2000, 3, generator=rng) * torch.tensor([1.0, 0.3, 1.0])
    inside = region.contains(delta)
    both = outcome.choice.region.contains(delta) & outcome.answer.region.contains(delta)
    assert bool((inside == both).all()) and 0 < int(inside.sum()) < len(delta)
    moved = X[:1] + delta[inside]
    assert bool((moved[:, 0] > 0).all()) and bool((moved[:, 1] < 0).all())  # the ideal router answers 0 at all of them
    box = torch.tensor([0.1, 0.1, 0.1])
    assert region.covers(box) and not region.covers(10 * box)
    assert region.budget_factor(box) == min(p.budget_factor(box) for p in region.parts)
    for q in (1, 2, math.inf):
        assert region.inscribed_radius(q) == min(p.inscribed_radius(q) for p in region.parts)


def test_predict_answers_like_the_router_and_abstains_with_its_choice() -> None:
    answers = router().predict(X, n=2000)
    assert [a.prediction for a in answers] == [0, 1, None, None]
    assert answers[0].expert == 1 and "the choice" in answers[2].reason


def test_errors_stay_below_alpha() -> None:
    """p is exactly at the border of a claim: with so many tries, no more false ones than α allows."""
    sigma, alpha, tries = 0.4, 0.2, 200
    system = router(sigma)
    x = torch.tensor([[0.3, -0.35, 0.2]])
    truth = min(0.3, 0.35)
    false = 0
    for seed in range(tries):
        (outcome,) = system.certify(x, n0=20, n=60, alpha=alpha, seed=seed)
        if not outcome.abstained:
            wrong_part = outcome.choice.radius > 0.3 or outcome.answer.radius > 0.35
            false += wrong_part
            assert wrong_part or outcome.radius <= truth
    assert false <= tries * alpha + 3 * math.sqrt(tries * alpha * (1 - alpha))
    assert normal.cdf(0.3 / sigma) < 1


def test_choice_and_answer_come_from_independent_noise() -> None:
    """One and the same classifier as selector and experts: the votes would be the same if the noise were."""
    g = ucan.SmoothedClassifier(halfspace([1.0, 0, 0]), ucan.Gaussian(0.5), num_classes=2)
    (outcome,) = Routed(g, [g, g]).certify(torch.tensor([[0.4, 0.0, 0.0]]), n=5000)
    assert outcome.choice.evidence.counts != outcome.answer.evidence.counts
    assert outcome.choice.evidence.seed != outcome.answer.evidence.seed


def test_to_json_and_back(tmp_path) -> None:
    outcome, _, unsure, open_answer = router().certify(X, n=500)
    record = json.loads(json.dumps(outcome.to_dict(tmp_path), allow_nan=False))
    again = from_dict(record, tmp_path)
    assert (again.radius, again.prediction, again.expert, again.scope) == (outcome.radius, 0, 1, "pipeline")
    assert (record["format"], record["alm"]) == (3, None) and math.isnan(again.alm)
    with pytest.raises(InvalidInput, match="does not follow"):
        from_dict({**record, "radius": 2 * outcome.radius}, tmp_path)
    with pytest.raises(InvalidInput, match="format 7"):
        from_dict({**record, "format": 7}, tmp_path)
    for each in (unsure, open_answer):
        save_json(each, tmp_path / "one.json")
        assert load_json(tmp_path / "one.json").reason == each.reason
    assert "by expert 1" in str(outcome) and "α = 0.001" in str(outcome)


def test_parts_about_other_inputs_do_not_go_together() -> None:
    first, second = router().certify(X[:2], n=500)
    with pytest.raises(InvalidInput, match="the input"):
        replace(second.answer, choice=first.choice)


def test_verify_checks_both_parts() -> None:
    system = router()
    (outcome,) = system.certify(X[:1], n=2000)
    verdict = verify(outcome, system, X[:1], n=2000)
    assert verdict.stands and verdict.confirms == "pipeline"
    assert {check.name.split()[0] for check in verdict.checks} == {"choice", "answer", "radius"}
    other = Routed(router(0.6).selector, system.experts)  # another noise for the choice
    failed = [check.name for check in verify(outcome, other, X[:1], n=2000).checks if not check.passed]
    assert failed and all(name.startswith("choice") for name in failed)
    swapped = Routed(system.selector, system.experts[::-1])
    assert not verify(outcome, swapped, X[:1], n=2000).stands
    with pytest.raises(InvalidInput, match="a router's"):
        verify(outcome, system.experts[1], X[:1])


def test_a_frozen_expert_makes_it_frozen() -> None:
    selector = router().selector
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 2)).eval()
    wise = ucan.CertificationWise(channels=1, features=2, growth=2)
    flat = ucan.SmoothedClassifier(
        nn.Sequential(nn.Flatten(), nn.Linear(16, 2)).eval(), ucan.Gaussian(0.1), num_classes=2
    )
    experts = [ucan.SmoothedClassifier(net, ucan.Gaussian(0.1), wise, num_classes=2)] * 2
    outcomes = Routed(flat, experts).certify(torch.rand(1, 1, 4, 4), n=300)
    assert all(o.scope == "frozen" for o in outcomes if not o.abstained)
    with pytest.raises(InvalidInput, match="at least two experts"):
        Routed(selector, experts[:1])
    with pytest.raises(InvalidInput, match="same classes"):
        three = ucan.SmoothedClassifier(net, ucan.Gaussian(0.1), num_classes=3)
        Routed(selector, [experts[0], three])
    with pytest.raises(InvalidInput, match="one shape"):
        Intersection.of(ucan.Region(1.0, 1.0, 2, (3,)), ucan.Region(1.0, 1.0, 2, (4,)))


# --- a threshold in place of a selector ---

TAU = 0.8


def cascade(sigma: float = 0.5, tau: float = TAU) -> Routed:
    """The wide noise looks at the first coordinate; the narrow one, at the second."""
    wide = ucan.SmoothedClassifier(halfspace([1.0, 0, 0]), ucan.Gaussian(sigma), num_classes=2)
    narrow = ucan.SmoothedClassifier(halfspace([0, 1.0, 0]), ucan.Gaussian(0.2), num_classes=2)
    return Routed(ucan.Threshold(wide, tau), [wide, narrow])


def test_a_threshold_against_the_closed_form() -> None:
    """Half-spaces: the top probability is Φ(|x₁|/σ), so the choice changes where |x₁| = σΦ⁻¹(τ)."""
    border = 0.5 * normal.ppf(TAU)
    x = torch.tensor([[0.9, 0.4, 0.0], [0.1, -0.7, 0.0], [border, 0.3, 0.0]])
    above, below, unsure = cascade().certify(x, n=50_000)
    assert (above.expert, above.prediction) == (0, 1) and (below.expert, below.prediction) == (1, 0)
    assert 0.9 * (0.9 - border) < above.choice.radius <= 0.9 - border and above.radius == above.choice.radius
    assert 0.9 * (border - 0.1) < below.choice.radius <= border - 0.1 and below.radius == below.choice.radius
    assert unsure.abstained and "the choice abstained" in unsure.reason
    assert above.choice.above and not below.choice.above and above.scope == below.scope == "pipeline"
    answers = cascade().predict(x, n=2000)
    assert [a.prediction for a in answers[:2]] == [1, 0] and answers[2].abstained and answers[1].expert == 1


@pytest.mark.parametrize("law", [ucan.Gaussian(0.5), ucan.Laplace(0.3), ucan.Uniform(0.8)], ids=repr)
def test_a_crossing_is_where_the_worst_set_crosses(law: ucan.Law) -> None:
    norm = 2 if isinstance(law, ucan.Gaussian) else 1
    for p, floor in ((0.9, 0.6), (0.45, 0.3), (0.999, 0.9), (0.3, 0.05)):
        r = crossing(law, p, floor, norm, 3)
        assert float(law.shifted(p, 0.999 * r, norm, 3)) > floor and float(law.shifted(p, 1.001 * r, norm, 3)) < floor
        if norm == 2:
            assert r == pytest.approx(0.5 * (normal.ppf(p) - normal.ppf(floor)), rel=1e-9)
            assert r <= 0.5 * (normal.ppf(p) - normal.ppf(floor))
    assert crossing(law, 0.5, 0.6, norm, 3) == 0.0


@pytest.mark.parametrize("p", [(0.5, 0.3, 0.2), (0.34, 0.33, 0.33), (0.25,) * 4, (0.6, 0.4)])
def test_the_most_voted_class_bounds_every_class(p: tuple[float, ...]) -> None:
    """By simulation: the bound from the largest count is below the largest probability in at most α of the tries."""
    alpha, n, tries = 0.1, 80, 4000
    counts = np.random.default_rng(0).multinomial(n, p, size=tries)
    false = sum(level_bound(row, 0, False, n, alpha, 0.0) < max(p) for row in counts)
    assert false <= alpha * tries + 3 * math.sqrt(tries * alpha * (1 - alpha))


def test_false_levels_stay_below_alpha() -> None:
    border, alpha, tries = 0.5 * normal.ppf(TAU), 0.2, 100
    for x1 in (0.7, 0.25):
        false = 0
        for seed in range(tries):
            (c,) = cascade().certify(torch.tensor([[x1, 0.5, 0.0]]), n0=20, n=60, alpha=alpha, seed=seed)
            false += not c.abstained and c.choice.radius > abs(x1 - border) and (c.expert == 0) == (x1 > border)
            false += not c.abstained and (c.expert == 0) != (x1 > border)
        assert false <= tries * alpha / 2 + 3 * math.sqrt(tries * alpha / 2)


def test_a_level_to_json_and_back_and_verified(tmp_path) -> None:
    system, x = cascade(), torch.tensor([[0.9, 0.4, 0.0], [0.1, -0.7, 0.0]])
    for i, c in enumerate(system.certify(x, n=2000)):
        record = json.loads(json.dumps(c.to_dict(tmp_path)))
        again = from_dict(record, tmp_path)
        assert again.radius == c.radius and again.choice.p == c.choice.p and str(again) == str(c)
        one = x[i : i + 1]
        verdict = verify(again, system, one, n=2000)
        assert verdict.stands and verdict.confirms == "pipeline"
        other = [check.name for check in verify(again, cascade(tau=0.7), one, n=2000).checks if not check.passed]
        assert "choice threshold" in other
        step = 0.02 if c.choice.above else -0.02
        larger = replace(again, choice=replace(c.choice, p=c.choice.p + step))
        assert "choice bound" in [
            check.name for check in verify(larger, system, one, n=2000).checks if not check.passed
        ]
    assert "below 0.8" in str(c.choice)
    with pytest.raises(InvalidInput, match="side of the threshold"):
        from_dict({**record, "choice": {**record["choice"], "above": True}}, tmp_path)
    with pytest.raises(InvalidInput, match="at least 1/2"):
        ucan.Threshold(system.experts[0], 0.4)
    with pytest.raises(InvalidInput, match="leave them out"):
        system.certify(x, n=200, bound="two-class")
