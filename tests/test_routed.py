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
from ucan.audit import Budget, Ledger, audit_all, summarise
from ucan.certificate import from_dict, load_json, save_json
from ucan.errors import InvalidInput
from ucan.region import Intersection
from ucan.routed import Routed
from ucan.threshold import crossing, level_bound
from ucan.verify import STATED, Stated, noise_of, verify


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


def test_choice_and_answer_are_about_one_budget() -> None:
    """A choice that is sure within a small budget only would otherwise lend its factor to a large one."""
    system = router()
    (outcome,) = system.certify(X[:1], n=500, budget=1.0)
    (answer,) = system.experts[1].certify(X[:1], n=500, budget=1.0)
    assert answer.budget_factor > 1.05 * outcome.budget_factor  # the choice limits it
    small = ucan.Budget.of(0.01, (3,))
    limited = replace(outcome.choice, budget=small, budget_factor=outcome.choice.budget_factor / 0.01)
    assert limited.most_budget_factor >= limited.budget_factor  # true by itself
    with pytest.raises(InvalidInput, match="the same budget"):
        replace(answer, choice=limited)
    record = json.loads(json.dumps(outcome.to_dict()))
    record["choice"] |= {"budget": limited.to_dict()["budget"], "budget_factor": limited.budget_factor}
    with pytest.raises(InvalidInput, match="the same budget"):
        from_dict(record)


def test_a_choice_is_the_answers_or_is_refused() -> None:
    system = router()
    first, second = system.certify(X[:2], n=500)

    def unnamed(outcome):
        """As a record says it that does not identify its input exactly."""
        return replace(outcome, evidence=replace(outcome.evidence, exact_hash=None))

    with pytest.raises(InvalidInput, match="the input"):
        replace(unnamed(second.answer), choice=unnamed(first.choice))
    with pytest.raises(InvalidInput, match="a choice of its own"):
        replace(first.answer, choice=replace(first.choice, choice=first.choice))
    with pytest.raises(InvalidInput, match="a prediction has no region"):
        replace(first.answer, norm=None, choice=system.selector.predict(X[:1], n=500)[0])
    one, other = system.predict(X[:2], n=500)
    with pytest.raises(InvalidInput, match="the input"):
        replace(one, choice=other.choice)
    with pytest.raises(InvalidInput, match="pipeline only if"):  # frozen is never shown as pipeline
        replace(one, choice=replace(one.choice, scope="frozen"))


def test_a_verdict_on_a_part_that_was_taken_from_the_certificate_says_so() -> None:
    system = router()
    (outcome,) = system.certify(X[:1], n=500)
    net = system.selector.f.model
    stated = ucan.SmoothedClassifier(net, system.selector.law, noise_of(outcome.choice), num_classes=2)
    verdict = verify(outcome, Routed(stated, system.experts), X[:1])
    assert verdict.stands and verdict.confirms is None and verdict.about == STATED


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


def cascade(sigma: float = 0.5, tau: float = TAU, veto: float = 0.0) -> Routed:
    """The wide noise looks at the first coordinate; the narrow one, at the second."""
    wide = ucan.SmoothedClassifier(halfspace([1.0, 0, 0]), ucan.Gaussian(sigma), num_classes=2)
    narrow = ucan.SmoothedClassifier(halfspace([0, 1.0, 0]), ucan.Gaussian(0.2), num_classes=2)
    return Routed(ucan.Threshold(wide, tau, veto), [wide, narrow])


def answer_at(x: torch.Tensor, sigma: float = 0.5, tau: float = TAU, veto: float = 0.0) -> torch.Tensor:
    """The router's true answers: probabilities under half-spaces are Φ(coordinate/σ)."""
    wide, narrow = normal.cdf(x[:, 0] / sigma), normal.cdf(x[:, 1] / 0.2)
    one, zero = (wide > tau) & (narrow > veto), (1 - wide > tau) & (1 - narrow > veto)
    return torch.from_numpy(np.where(one, 1, np.where(zero, 0, narrow > 0.5)).astype(int))


def true_radius(x: torch.Tensor, **rule: float) -> float:
    """The distance to the nearest point with another answer, by a grid; the third coordinate decides nothing."""
    steps = torch.linspace(-1.2, 1.2, 601, dtype=torch.float64)
    around = torch.stack(torch.meshgrid(steps, steps, indexing="ij"), -1).reshape(-1, 2)
    same = answer_at(around + x[:, :2].double(), **rule) == answer_at(x[:, :2].double(), **rule)
    return min(around[~same].norm(dim=1).tolist(), default=math.inf)


def test_a_threshold_against_the_closed_form() -> None:
    """Half-spaces: the wide noise answers where |x₁| > σΦ⁻¹(τ)."""
    border = 0.5 * normal.ppf(TAU)
    x = torch.tensor([[0.9, -0.4, 0.0], [0.1, -0.7, 0.0], [border, 0.02, 0.0]])
    above, beside, unsure = cascade().certify(x, n=50_000)
    assert (above.expert, above.prediction) == (0, 1) and (beside.expert, beside.prediction) == (1, 0)
    assert 0.9 * (0.9 - border) < above.choice.radius <= 0.9 - border and above.radius == above.choice.radius
    assert 0.9 * (border - 0.1) < beside.choice.radius <= border - 0.1 and beside.radius == beside.choice.radius
    assert unsure.abstained and "neither expert" in unsure.reason
    assert above.choice.above and not beside.choice.above and above.scope == beside.scope == "pipeline"
    assert above.alpha == pytest.approx(0.001) and above.choice.evidence.alpha == 0.0005
    answers = cascade().predict(x, n=2000)
    assert [a.prediction for a in answers[:2]] == [1, 0] and answers[2].abstained and answers[1].expert == 1


def test_where_both_agree_the_choice_need_not_be_sure() -> None:
    """At the very border of the choice both experts answer 1: the other class is far from τ, and that is enough."""
    border = 0.5 * normal.ppf(TAU)
    x = torch.tensor([[border, 0.5, 0.0]])
    (made,) = cascade().certify(x, n=50_000)
    assert made.prediction == 1 and not made.choice.above and made.choice.top == 1
    assert 0.45 < made.radius <= 0.5  # the narrow one's; V = σ(Φ⁻¹(τ) + Φ⁻¹(τ)) = 0.84 is larger
    assert cascade().predict(x, n=2000)[0].prediction == 1


def test_a_veto_keeps_a_sure_narrow_answer() -> None:
    """Expert 0 leads for class 1 and expert 1 is sure of class 0: with a veto that is the answer, without one it is not."""
    x = torch.tensor([[0.4, -0.5, 0.0]])
    (without,), (with_veto,) = cascade(tau=0.5).certify(x, n=20_000), cascade(tau=0.5, veto=0.1).certify(x, n=20_000)
    assert (without.prediction, without.expert) == (1, 0) and (with_veto.prediction, with_veto.expert) == (0, 1)
    level = with_veto.choice
    assert (level.of, level.above, level.top, level.threshold) == (1, False, 0, 0.1)
    loss = -0.2 * normal.ppf(0.1)
    assert 0.85 * (0.5 - loss) < with_veto.radius <= 0.5 - loss  # what a veto takes from the narrow one, and no more
    (wide,) = cascade(tau=0.5, veto=0.1).certify(torch.tensor([[0.6, 0.3, 0.0]]), n=20_000)
    assert wide.expert == 0 and (wide.choice.of, wide.choice.above) == (1, True) and 0.5 < wide.radius <= 0.3 + loss


@pytest.mark.parametrize("rule", [{"tau": 0.5}, {"tau": 0.7}, {"tau": 0.5, "veto": 0.2}], ids=str)
def test_no_radius_is_larger_than_the_truth(rule: dict[str, float]) -> None:
    x = 0.6 * torch.randn(40, 3, generator=torch.Generator().manual_seed(3))
    outcomes = cascade(**rule).certify(x, n=20_000)
    made = [(i, c) for i, c in enumerate(outcomes) if not c.abstained]
    truths = [true_radius(x[i : i + 1], **rule) for i, _ in made]
    assert all(c.prediction == answer_at(x[i : i + 1], **rule)[0] for i, c in made)
    assert all(c.radius <= truth for (_, c), truth in zip(made, truths, strict=True))
    assert len(made) > 25 and (
        {c.expert for _, c in made} == {0, 1} or rule == {"tau": 0.5}
    )  # of two classes one has half
    assert np.median([c.radius / truth for (_, c), truth in zip(made, truths, strict=True)]) > 0.6
    for one, c in zip(cascade(**rule).predict(x, n=5000), outcomes, strict=True):
        assert one.abstained or c.abstained or one.prediction == c.prediction


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
def test_the_most_voted_other_class_bounds_every_other(p: tuple[float, ...]) -> None:
    """By simulation: each side's bound is on the wrong side of the truth in at most α/2 of the tries."""
    alpha, n, tries = 0.2, 80, 4000
    counts = np.random.default_rng(0).multinomial(n, p, size=tries)
    most = alpha / 2 * tries + 3 * math.sqrt(tries * alpha / 2)
    assert sum(level_bound(row, 0, False, n, alpha, 0.0) < max(p[1:]) for row in counts) <= most
    assert sum(level_bound(row, 0, True, n, alpha, 0.0) > p[0] for row in counts) <= most


@pytest.mark.parametrize("x1", [0.7, 0.25])
def test_false_claims_of_a_threshold_stay_below_alpha(x1: float) -> None:
    alpha, tries = 0.2, 100
    x = torch.tensor([[x1, 0.35, 0.0]])
    truth, right = true_radius(x), int(answer_at(x)[0])
    made = [cascade().certify(x, n0=20, n=60, alpha=alpha, seed=seed)[0] for seed in range(tries)]
    false = sum(not c.abstained and (c.radius > truth or c.prediction != right) for c in made)
    assert false <= tries * alpha + 3 * math.sqrt(tries * alpha * (1 - alpha))
    assert sum(not c.abstained for c in made) > tries / 4


@pytest.mark.parametrize("veto", [0.0, 0.2])
def test_a_level_to_json_and_back_and_verified(tmp_path, veto: float) -> None:
    tau = 0.5 if veto else TAU
    system, x = cascade(tau=tau, veto=veto), torch.tensor([[0.9, 0.4, 0.0], [0.1, -0.7, 0.0]])
    for i, c in enumerate(system.certify(x, n=2000)):
        record = json.loads(json.dumps(c.to_dict(tmp_path)))
        again = from_dict(record, tmp_path)
        assert again.radius == c.radius and again.choice.p == c.choice.p and str(again) == str(c)
        one = x[i : i + 1]
        verdict = verify(again, system, one, n=2000)
        assert verdict.stands and verdict.confirms == "pipeline"
        other = cascade(tau=0.5, veto=0.3) if veto else cascade(tau=0.7)
        failed = [check.name for check in verify(again, other, one, n=2000).checks if not check.passed]
        assert "choice threshold" in failed or (veto and c.choice.of == 0)
        larger = replace(again, choice=replace(c.choice, p=(c.choice.p + c.choice.above) / 2))
        failed = [check.name for check in verify(larger, system, one, n=2000).checks if not check.passed]
        assert "choice bound" in failed
        with pytest.raises(InvalidInput, match="the choice is about class"):
            replace(again, choice=replace(c.choice, top=1 - c.choice.top))
    assert "no class but 0 above 0." in str(c.choice)
    with pytest.raises(InvalidInput, match="side of the threshold"):
        from_dict({**record, "choice": {**record["choice"], "above": True}}, tmp_path)


def test_too_few_fresh_votes_confirm_no_router() -> None:
    system, x = cascade(), torch.tensor([[0.9, 0.4, 0.0]])
    (made,) = system.certify(x, n=2000)
    verdict = verify(made, system, x, n=1)
    assert verdict.stands and not verdict.tested and verdict.confirms is None


def test_a_claim_about_a_threshold_alone_does_not_stand_where_there_is_a_veto() -> None:
    """That expert 0 is sure says nothing of what expert 1 forbids: an honest certificate of another rule is refused."""
    x = torch.tensor([[0.9, 0.4, 0.0]])
    (made,) = cascade(tau=0.5).certify(x, n=2000)
    assert made.choice.above and made.choice.of == 0
    failed = [c.name for c in verify(made, cascade(tau=0.5, veto=0.2), x, n=2000).checks if not c.passed]
    assert failed == ["choice threshold"]


def test_verify_refuses_what_a_level_cannot_be_compared_with() -> None:
    system, x = cascade(), torch.tensor([[0.3, -0.6, 0.0]])
    (made,) = system.certify(x, n=2000)
    level = made.choice
    assert (level.of, made.expert) == (0, 1) and level.evidence.seed != made.evidence.seed
    with pytest.raises(InvalidInput, match="the certificate's own"):
        verify(made, system, x, seed=level.evidence.seed)
    with pytest.raises(InvalidInput, match=r"inputs of shape \(3,\), but this one has shape \(2,\)"):
        verify(made, system, x[:, :2])
    with pytest.raises(InvalidInput, match="give the router"):
        verify(made, router(), x)
    with pytest.raises(InvalidInput, match="give the classifier"):
        verify(made.answer, system, x)

    def of_three(evidence):
        votes = (0, 0, evidence.n)
        return replace(evidence, counts=votes, selection=(0, 0, evidence.n0))

    forged = replace(made.answer, evidence=of_three(made.evidence), prediction=2)
    forged = replace(forged, choice=replace(level, evidence=of_three(level.evidence), top=2))
    failed = {check.name for check in verify(forged, system, x, n=500).checks if not check.passed}
    assert {"choice classes", "answer classes"} <= failed


def test_the_radius_of_a_level_is_that_of_the_deployed_noise() -> None:
    system, x = cascade(), torch.tensor([[0.9, 0.4, 0.0]])
    (made,) = system.certify(x, n=2000)
    level, scale = made.choice, ucan.scales.Scalar(1 + 5e-6)  # as close as rounding in a file may be
    wider = replace(level, region=ucan.Region(scale, level.region.radius, 2, (3,)))
    failed = [
        check.name for check in verify(replace(made.answer, choice=wider), system, x, n=500).checks if not check.passed
    ]
    assert failed == ["choice radius"]
    record = json.loads(json.dumps(made.to_dict()))
    record["choice"]["radius"] *= 1.01
    with pytest.raises(InvalidInput, match="radius does not follow from its region"):
        from_dict(record)


def test_a_level_of_stated_noise_confirms_no_pipeline() -> None:
    system, x = cascade(), torch.tensor([[0.3, -0.6, 0.0]])
    (made,) = system.certify(x, n=2000)
    wide, narrow = system.experts
    assert (made.choice.of, made.expert) == (0, 1)
    stated = Stated(replace(made.answer, evidence=replace(made.evidence, noise=made.choice.evidence.noise)))
    unknown = ucan.SmoothedClassifier(wide.f.model, wide.law, stated, num_classes=2)
    verdict = verify(made, Routed(ucan.Threshold(unknown, TAU), [unknown, narrow]), x, n=500)
    assert verdict.stands and verdict.confirms is None and verdict.about == STATED


@pytest.mark.parametrize("attack", ["gradient", "black-box"])
@pytest.mark.parametrize("veto", [0.0, 0.2])
def test_the_auditor_finds_false_claims_about_a_threshold(tmp_path, attack: str, veto: float) -> None:
    """Half-spaces are the worst case, so a radius that is 1.6 times too large breaks, and an honest one does not."""
    system = cascade(tau=0.5 if veto else TAU, veto=veto)
    x = torch.tensor([[0.9, 0.4, 0.0], [0.1, -0.4, 0.0], [0.3, -0.6, 0.0]])
    hard, seen = Budget(steps=15, draws=8, restarts=1, check=1000, attack=attack), set()
    for i, c in enumerate(system.certify(x, n=20_000)):
        level, one = c.choice, x[i : i + 1]
        region = level.region
        wrong = replace(level, region=ucan.Region.sharing(region.scale, 1.6 * region.radius, region.norm, region.shape))
        seen.add((level.of, level.above))
        for number, (claim, broken) in enumerate(((level, 0), (wrong, 1))):
            ledger = Ledger(tmp_path / f"{i}-{number}", {})
            made = audit_all(system.experts[level.of], [(i, one, claim)], ledger, factors=(0.999,), budget=hard)
            assert (
                summarise(made).covered_breaks == broken and not summarise(made).is_bug
            )  # certified again, it is honest
            assert made[0].prediction == level.top and made[0].hits <= made[0].total
    assert seen == ({(1, True), (1, False)} if veto else {(0, True), (0, False)})


def test_what_a_threshold_refuses() -> None:
    system, x = cascade(), torch.tensor([[0.9, 0.4, 0.0]])
    wide, narrow = system.experts
    for make, words in (
        (lambda: ucan.Threshold(wide, 0.4), "at least 0.5"),
        (lambda: ucan.Threshold(wide, 0.5, 0.5), "veto must be"),
        (lambda: ucan.Threshold(wide, 0.6, 0.1), "with a veto the threshold is 1/2"),
        (lambda: Routed(ucan.Threshold(narrow, 0.6), [wide, narrow]), "the first one is"),
        (lambda: Routed(ucan.Threshold(wide, 0.6), [wide, narrow, narrow]), "two experts"),
        (lambda: system.certify(x, n=200, bound="two-class"), "leave them out"),
        (lambda: system.predict(x, n=200, test="top-two"), "leave stop="),
    ):
        with pytest.raises(InvalidInput, match=words):
            make()
