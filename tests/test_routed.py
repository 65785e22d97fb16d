"""A certified router: where choice and answer both hold, and nowhere else."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import norm as normal
from torch import nn

import ucan
import ucan.threshold as threshold
from test_checker import checker
from ucan.audit import Budget, Ledger, audit_all, summarise
from ucan.audit.claims import of_the_answer
from ucan.bounds import lower_bound, two_bounds_p_value, upper_bound
from ucan.certificate import from_dict, load_json, save_json
from ucan.errors import InvalidInput
from ucan.region import Intersection
from ucan.rounding import floor_digits
from ucan.routed import Routed
from ucan.threshold import crossing, level_bound
from ucan.verify import STATED, Stated, noise_of, verify
from ucan.verify.level import verify_level


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


def test_a_router_is_no_part_of_another(tmp_path: Path) -> None:
    """The inner choice's region would be lost: 3.34 was claimed where 0.5 is true."""
    wide = router().experts[0]
    for selector, experts in ((wide, [router(), wide]), (wide, [wide, router()]), (router(), [wide, wide])):
        with pytest.raises(InvalidInput, match="this part is a Routed"):
            Routed(selector, experts)
    with pytest.raises(InvalidInput, match="this is a Routed"):
        ucan.Registry(tmp_path / "memory").certify(router(), X)


@pytest.mark.parametrize("off", [0, 1, 2])
def test_all_parts_of_a_router_take_inputs_on_one_grid(off: int) -> None:
    """Else its certificate is said to be about real inputs while a part is about whole steps, or the reverse."""
    parts = router().on_grid(1 / 10).parts
    mixed = [part.on_grid(None if i == off else 1 / 10) for i, part in enumerate(parts)]
    with pytest.raises(InvalidInput, match="inputs on the same grid"):
        Routed(mixed[0], mixed[1:])
    (c,) = router().on_grid(1 / 10).certify(X[1:2], n=2000)
    told = replace(c.choice.evidence, arithmetic="real")
    with pytest.raises(InvalidInput, match="about the same inputs"):
        replace(c, choice=replace(c.choice, evidence=told))


def test_options_of_other_questions_are_refused_by_name(tmp_path: Path) -> None:
    memory = ucan.Registry(tmp_path / "memory")
    for ask in (router().certify, router().predict, partial(memory.certify, router().experts[0])):
        with pytest.raises(InvalidInput, match="takes no top="):
            ask(X, top=2)


def test_choice_and_answer_are_about_one_budget() -> None:
    """A choice that is sure within a small budget only would otherwise lend its factor to a large one."""
    system = router()
    (outcome,) = system.certify(X[:1], n=500, budget=1.0)
    (answer,) = system.experts[1].certify(X[:1], n=500, budget=1.0)
    assert answer.budget_factor > 1.05 * outcome.budget_factor  # the choice limits it
    small = ucan.Budget.of(2.0**-7, (3,))  # a power of two, by which the factor is divided exactly
    limited = replace(outcome.choice, budget=small, budget_factor=outcome.choice.budget_factor * 2**7)
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
    return torch.from_numpy(_answers(x[:, 0].numpy(), x[:, 1].numpy(), sigma, tau, veto))


def _answers(first: np.ndarray, second: np.ndarray, sigma: float, tau: float, veto: float) -> np.ndarray:
    wide, narrow = normal.cdf(first / sigma), normal.cdf(second / 0.2)
    one, zero = (wide > tau) & (narrow > veto), (1 - wide > tau) & (1 - narrow > veto)
    return np.where(one, 1, np.where(zero, 0, narrow > 0.5)).astype(int)


def true_radius(x: torch.Tensor, sigma: float = 0.5, tau: float = TAU, veto: float = 0.0) -> float:
    """The distance to the nearest point with another answer, by a grid; the third coordinate decides nothing."""
    (first, second), steps = x[0, :2].double().numpy(), np.linspace(-1.2, 1.2, 601)
    around = _answers(first + steps[:, None], second + steps[None], sigma, tau, veto)
    other = around != _answers(first, second, sigma, tau, veto)
    return float(np.hypot(steps[:, None], steps[None])[other].min(initial=math.inf))


class Stripes(nn.Module):
    """Classes 0, 1, 2 in thirds of one coordinate: below −width, between, above width."""

    def __init__(self, which: int, width: float) -> None:
        super().__init__()
        self.which, self.width = which, width

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one = x[:, self.which]
        return torch.stack([-one - self.width, torch.zeros_like(one), one - self.width], 1)


def shares_at(x: np.ndarray, sigma: float, width: float) -> np.ndarray:
    """The exact probabilities of the three stripes around numbers x: (…, 3)."""
    below, above = normal.cdf((-width - x) / sigma), normal.sf((width - x) / sigma)
    return np.stack([below, 1 - below - above, above], -1)


WIDE, NARROW, WIDTHS = 0.5, 0.25, (0.5, 0.1)


def striped(tau: float, veto: float) -> Routed:
    """The wide noise looks at the first coordinate, the narrow one at the second; three classes, often none with half."""
    wide, narrow = (
        ucan.SmoothedClassifier(Stripes(k, WIDTHS[k]).eval(), ucan.Gaussian(sigma), num_classes=3)
        for k, sigma in enumerate((WIDE, NARROW))
    )
    return Routed(ucan.Threshold(wide, tau, veto), [wide, narrow])


def striped_answers(first: np.ndarray, second: np.ndarray, tau: float, veto: float) -> np.ndarray:
    """The router's true answers at points with these first and second coordinates."""
    p, q = shares_at(first, WIDE, WIDTHS[0]), shares_at(second, NARROW, WIDTHS[1])
    fires = (p > tau) & (q > veto)
    found: np.ndarray = np.where(fires.any(-1), fires.argmax(-1), q.argmax(-1))
    return found


@pytest.mark.parametrize(("tau", "veto"), [(0.5, 0.0), (0.6, 0.0), (0.5, 0.15), (0.6, 0.15), (0.55, 0.3)])
def test_three_classes_never_above_the_truth(tau: float, veto: float) -> None:
    """The truth is the distance to the nearest point of a fine grid with another answer, which is never too small."""
    x = torch.tensor([0.7, 0.25]) * torch.randn(60, 2, generator=torch.Generator().manual_seed(5))
    steps = np.linspace(-1.5, 1.5, 601)
    distance = np.hypot(steps[:, None], steps[None])
    outcomes = striped(tau, veto).certify(x, n=20_000, batch_size=20_000)
    made = [(one, c) for one, c in zip(x, outcomes, strict=True) if not c.abstained]
    for one, c in made:
        first, second = one.double().numpy()
        assert c.prediction == int(striped_answers(first, second, tau, veto))
        other = striped_answers(first + steps[:, None], second + steps[None], tau, veto) != c.prediction
        assert c.radius <= float(distance[other].min())
    assert len(made) > 40 and {c.expert for _, c in made} == {0, 1}
    without = [c for _, c in made if c.expert == 1 and c.p_lower <= 0.5]
    assert without and all(c.p_upper < c.p_lower for c in without)  # expert 1 leads without a majority


@pytest.mark.parametrize(("tau", "veto"), [(0.5, 0.0), (0.5, 0.15), (0.6, 0.0), (0.6, 0.15), (0.55, 0.3)])
def test_predict_answers_where_the_same_votes_certify(monkeypatch, tau: float, veto: float) -> None:
    """Expert 1 needs no majority: its class is above every other by two bounds, and the record can be checked."""
    x = torch.tensor([0.7, 0.25]) * torch.randn(60, 2, generator=torch.Generator().manual_seed(5))
    system, counted = striped(tau, veto), threshold._counted
    made = system.certify(x, n0=100, n=20_000, batch_size=20_000)
    monkeypatch.setattr(
        threshold, "_counted", lambda *given: counted(*given[:3], {"select": 100, "estimate": given[2][0].n})
    )
    answers = system.predict(x, n=20_000, batch_size=20_000)
    assert [a.prediction for a in answers] == [c.prediction for c in made]
    for one, a in zip(x, answers, strict=True):
        assert a.abstained or a.prediction == int(striped_answers(*one.double().numpy(), tau, veto))
        told = json.loads(json.dumps(a.to_dict()))
        assert {verdict for verdict, *_ in checker.check(told, Path())} == {"ok"}
        assert from_dict(told).to_dict() == a.to_dict()
    narrow = [a for a in answers if a.expert == 1]
    without = [a for a in narrow if lower_bound(a.evidence.counts[a.prediction], 20_000, 0.001 / 4) <= 0.5]
    assert {a.evidence.bound for a in narrow} <= {"two-class"} and (without or tau == 0.5)
    assert all(a.p_value <= a.evidence.alpha == 0.0005 and a.alpha == 0.001 for a in narrow)


def test_a_prediction_by_two_bounds_claims_no_more_than_they_show() -> None:
    system, x = striped(0.6, 0.15), torch.tensor([[0.0, 0.0], [0.45, 0.08]])
    first, second = system.predict(x, n=20_000)
    assert (first.expert, second.expert) == (0, 1) and first.evidence.bound == "majority"
    told = json.loads(json.dumps(second.to_dict()))
    assert second.prediction == 2 and second.evidence.counts[2] < 10_000  # no majority

    def verdicts(record) -> set[str]:
        return {verdict for verdict, *_ in checker.check(record, Path())}

    assert verdicts(told) == {"ok"}
    assert "FAIL" in verdicts({**told, "p_value": told["p_value"] / 2})
    assert "FAIL" in verdicts({**told, "p_value": 2 * second.evidence.alpha})
    assert "FAIL" in verdicts({**told, "evidence": {**told["evidence"], "bound": "majority"}})
    other = json.loads(json.dumps(first.to_dict()))  # expert 0 must have more than τ: a lead is too little
    assert verdicts(other) == {"ok"}
    assert "FAIL" in verdicts({**other, "evidence": {**other["evidence"], "bound": "two-class"}, "p_value": 1e-4})


@pytest.mark.parametrize("p", [(0.4, 0.4, 0.2), (1 / 3,) * 3, (0.5, 0.5), (0.05, 0.05, 0.9), (0.3, 0.35, 0.35)])
def test_a_class_that_does_not_lead_is_rarely_above_the_others_by_two_bounds(p: tuple[float, ...]) -> None:
    n, tries = 80, 4000
    counts = np.random.default_rng(0).multinomial(n, p, size=tries)
    pairs, where = np.unique(np.stack([counts[:, 0], counts[:, 1:].max(1)], 1), axis=0, return_inverse=True)
    values = np.array([two_bounds_p_value(int(own), int(most), n) for own, most in pairs])[where.reshape(-1)]
    for alpha in (0.01, 0.05, 0.2):
        assert (values <= alpha).sum() <= tries * alpha + 3 * math.sqrt(tries * alpha)


def test_false_answers_of_a_threshold_stay_below_alpha() -> None:
    """Classes 0 and 2 are almost equally likely for expert 1, and expert 0 is not sure: about half of all guesses are wrong."""
    alpha, tries, system, x = 0.2, 200, striped(0.8, 0.0), torch.tensor([[0.0, 0.004]])
    right = int(striped_answers(*x[0].double().numpy(), 0.8, 0.0))
    answers = [system.predict(x, n=100, alpha=alpha, seed=seed)[0].prediction for seed in range(tries)]
    assert right == 2 and sum(a not in (None, right) for a in answers) <= tries * alpha


@pytest.mark.parametrize("tau", [0.0, 0.01])
def test_the_p_value_of_two_bounds_is_the_level_at_which_they_part(tau: float) -> None:
    for n, hits, others in ((100, 60, 20), (1000, 420, 300), (50, 50, 0), (20_000, 8000, 6000), (30, 12, 1)):
        p = two_bounds_p_value(hits, others, n, tau)
        part = [
            lower_bound(hits, n, level / 2) - tau > upper_bound(others, n, level / 2) + tau
            for level in (p * (1 - 1e-6), p * (1 + 1e-6))
        ]
        assert part == [False, True]
    assert two_bounds_p_value(10, 30, 100) == two_bounds_p_value(30, 30, 100) == two_bounds_p_value(0, 0, 5) == 1.0
    assert two_bounds_p_value(10_000_000, 0, 10_000_000) < 1e-300


@pytest.mark.parametrize("law", [ucan.Laplace, ucan.Uniform], ids=lambda law: law.__name__)
@pytest.mark.parametrize(("tau", "veto"), [(0.7, 0.0), (0.7, 0.2)])
def test_a_threshold_under_a_law_without_an_l2_radius(law: type[ucan.Law], tau: float, veto: float) -> None:
    """Where no norm is asked for, a level is in the noise's own."""
    wide, narrow = (
        ucan.SmoothedClassifier(halfspace(way), law(scale), num_classes=2)
        for way, scale in (([1.0, 0, 0], 0.5), ([0, 1.0, 0], 0.2))
    )
    system = Routed(ucan.Threshold(wide, tau, veto), [wide, narrow])
    x = torch.tensor([[0.45, 0.15, 0.0], [0.05, 0.15, 0.0], [0.05, -0.15, 0.0]])
    made, answers = system.certify(x, n=2000, norm=1), system.predict(x, n=2000)
    assert [c.prediction for c in made] == [a.prediction for a in answers] == [1, 1, 0]
    assert [c.expert for c in made] == [0, 1, 1]
    for i, (c, a) in enumerate(zip(made, answers, strict=True)):
        verdict = verify(c, system, x[i : i + 1], n=2000)
        assert verdict.stands and verdict.confirms == "pipeline" and c.norm == 1 and a.norm is None
        assert a.choice.norm is None and a.choice.region.norm == 1
        for each in (c, a):
            told = json.loads(json.dumps(each.to_dict()))
            assert {verdict for verdict, *_ in checker.check(told, Path())} == {"ok"}
            assert from_dict(told).to_dict() == each.to_dict()
        stands = verify_level(a.choice, system.selector, system.experts[a.choice.of], x[i : i + 1], 2000, 0.001, None)
        assert stands.stands


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


def test_what_an_unsure_threshold_says_has_paid_for_the_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ucan.SmoothedClassifier, "arithmetic_error", lambda g, M, x: 0.05)
    (unsure,) = cascade().on_grid(1 / 64).certify(torch.tensor([[0.5, 0.0, 0.0]]), n=5000)
    first = unsure.evidence
    paid = floor_digits(lower_bound(max(first.counts), first.n, 0.00025) - 0.05, 4)
    assert unsure.abstained and f"has at least {paid} for expert 0" in unsure.reason


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


def test_a_level_with_a_veto_against_the_closed_form() -> None:
    """Expert 0 answers within the smaller of what τ and what ν leave; both limits are met, each at its own input."""
    system, border, loss = cascade(tau=0.7, veto=0.1), 0.5 * normal.ppf(0.7), -0.2 * normal.ppf(0.1)
    x = torch.tensor([[0.6, 0.3, 0.0], [1.0, 0.1, 0.0], [0.2, 0.5, 0.0], [0.6, -0.5, 0.0]])
    by_level, by_veto, beside, vetoed = system.certify(x, n=50_000)
    for made, truth in ((by_level, 0.6 - border), (by_veto, 0.1 + loss), (beside, 0.2 + border), (vetoed, 0.5 - loss)):
        assert 0.9 * truth < made.radius <= truth
    assert [c.expert for c in (by_level, by_veto, beside, vetoed)] == [0, 0, 1, 1]
    assert [c.prediction for c in (by_level, by_veto, beside, vetoed)] == [1, 1, 1, 0]
    assert [c.choice.floor for c in (by_level, by_veto, beside, vetoed)] == [0.7, 0.7, 0.5, 0.5]
    assert by_level.radius == by_level.answer.radius < by_level.choice.radius
    assert "above 0.1 for expert 1 and above 0.7 for expert 0" in str(by_level.choice)
    assert [a.prediction for a in system.predict(x, n=2000)] == [1, 1, 1, 0]
    open_level = torch.tensor([[border + 0.01, 0.01, 0.0]])  # sure of a majority, not of τ; and expert 1 is not sure
    assert system.predict(open_level, n=2000)[0].abstained and system.certify(open_level, n=2000)[0].abstained


@pytest.mark.parametrize(
    "rule", [{"tau": 0.5, "veto": 0.2}, {"tau": 0.7, "veto": 0.2}, {"tau": 0.6, "veto": 0.4}], ids=str
)
def test_with_two_classes_the_largest_way_is_all_that_can_be_shown(rule: dict[str, float]) -> None:
    """Both experts look in one direction: along it the answer changes where the table's largest radius ends."""
    t0, t1 = 0.5 * normal.ppf(rule["tau"]), -0.2 * normal.ppf(rule["veto"])
    for u, v in np.random.default_rng(1).uniform(-0.2, 1.0, (50, 2)):
        ways = (min(u - t0, v + t1), min(v, u + t0), v - t1)
        if max(ways) <= 0:
            continue
        moves = torch.linspace(0.0, 2.0, 4001, dtype=torch.float64)
        line = torch.stack([u - moves, v - moves], 1)
        first = float(moves[answer_at(line, **rule) != 1].min())
        assert int(answer_at(line[:1], **rule)[0]) == 1 and max(ways) - 1e-9 <= first <= max(ways) + 6e-4


def test_four_bounds_share_alpha() -> None:
    """Each at α/4, whichever way is taken; of the answer of expert 1 both of its bounds are used."""
    system, n, alpha = cascade(tau=0.7, veto=0.1), 2000, 0.01
    x = torch.tensor([[0.6, 0.3, 0.0], [0.2, 0.5, 0.0], [0.6, -0.5, 0.0]])
    above, beside, vetoed = system.certify(x, n=n, alpha=alpha)

    def low(outcome, c):
        return lower_bound(outcome.evidence.counts[c], n, alpha / 4)

    def high(outcome, c):
        return upper_bound(outcome.evidence.counts[1 - c], n, alpha / 4)

    assert (above.p_lower, above.p_upper, above.choice.p) == (low(above, 1), None, low(above.choice, 1))
    assert (beside.p_lower, beside.p_upper, beside.choice.p) == (
        low(beside, 1),
        high(beside, 1),
        high(beside.choice, 1),
    )
    assert (vetoed.p_lower, vetoed.p_upper, vetoed.choice.p) == (low(vetoed, 0), high(vetoed, 0), high(vetoed, 0))
    assert {c.alpha for c in (above, beside, vetoed)} == {alpha}
    assert [c.evidence.bound for c in (above, beside)] == ["binary", "two-class"]
    for i, c in enumerate((above, beside)):  # a bound at twice its share of α is refused
        assert verify(c, system, x[i : i + 1], n=500).stands
        bolder = replace(c, p_lower=lower_bound(c.evidence.counts[1], n, alpha / 2))
        failed = [check.name for check in verify(bolder, system, x[i : i + 1], n=500).checks if not check.passed]
        told = json.loads(json.dumps(bolder.to_dict()))
        assert failed == ["answer bound"] and "FAIL" in {verdict for verdict, *_ in checker.check(told, Path())}


RULES = [{"tau": 0.5}, {"tau": 0.7}, {"tau": 0.5, "veto": 0.2}, {"tau": 0.7, "veto": 0.2}, {"tau": 0.6, "veto": 0.4}]


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_no_radius_is_larger_than_the_truth(rule: dict[str, float]) -> None:
    x = 0.6 * torch.randn(40, 3, generator=torch.Generator().manual_seed(3))
    outcomes = cascade(**rule).certify(x, n=20_000, batch_size=20_000)
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


@pytest.mark.parametrize(("tau", "veto"), [(TAU, 0.0), (0.5, 0.2), (0.7, 0.2)])
def test_a_level_to_json_and_back_and_verified(tmp_path, tau: float, veto: float) -> None:
    system, x = cascade(tau=tau, veto=veto), torch.tensor([[0.9, 0.4, 0.0], [0.1, -0.7, 0.0]])
    for i, c in enumerate(system.certify(x, n=2000)):
        record = json.loads(json.dumps(c.to_dict(tmp_path)))
        again = from_dict(record, tmp_path)
        assert again.radius == c.radius and again.choice.p == c.choice.p and str(again) == str(c)
        one = x[i : i + 1]
        verdict = verify(again, system, one, n=2000)
        assert verdict.stands and verdict.confirms == "pipeline"
        other = cascade(tau=tau, veto=0.3) if veto else cascade(tau=0.7)
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


def test_where_a_veto_allows_it_expert_0_must_keep_more_than_the_level() -> None:
    """An answer that only leads, or has half, within its radius is no claim about τ; nor is one for another τ."""
    x = torch.tensor([[0.6, 0.3, 0.0]])
    system = cascade(tau=0.7, veto=0.1)
    (made,), (half,) = (cascade(tau=tau, veto=0.1).certify(x, n=2000) for tau in (0.7, 0.5))
    assert half.answer.radius > 1.5 * made.answer.radius and half.choice.floor == 0.5 and made.choice.floor == 0.7

    def failed(certificate, router) -> list[str]:
        return [check.name for check in verify(certificate, router, x, n=2000).checks if not check.passed]

    assert failed(made, system) == failed(half, cascade(tau=0.5, veto=0.1)) == []
    assert failed(half, system) == ["choice threshold"]  # an honest certificate of another rule
    assert "choice threshold" in failed(made, cascade(tau=0.6, veto=0.1))
    assert "choice threshold" in failed(made, cascade(tau=0.5, veto=0.1))
    forged = replace(half, choice=replace(half.choice, floor=0.7))
    assert failed(forged, system) == ["answer floor"] and verify(forged, system, x, n=2000).confirms is None
    record = json.loads(json.dumps(forged.to_dict()))
    assert "FAIL" in {verdict for verdict, *_ in checker.check(record, Path())}
    assert {verdict for verdict, *_ in checker.check(json.loads(json.dumps(made.to_dict())), Path())} == {"ok"}
    with pytest.raises(InvalidInput, match=r"has more than 0\.95"):
        replace(made, choice=replace(made.choice, floor=0.95))
    for changed in ({"floor": 0.4}, {"floor": 1.0}, {"floor": 0.7, "of": 0}):
        with pytest.raises(InvalidInput, match="floor"):
            replace(made.choice, **changed)
        other = {**record, "choice": {**record["choice"], **changed}}
        assert {verdict for verdict, *_ in checker.check(other, Path())} - {"ok"}
    (answer,) = system.predict(x, n=2000)
    told = json.loads(json.dumps(answer.to_dict()))
    assert {verdict for verdict, *_ in checker.check(told, Path())} == {"ok"}
    assert "FAIL" in {verdict for verdict, *_ in checker.check({**told, "p_value": told["p_value"] / 2}, Path())}


def test_a_lead_is_no_majority_of_expert_0() -> None:
    """Three classes: with the bound on the runner-up the region of expert 0 would be larger than where its class has half."""
    system, x = striped(0.5, 0.1), torch.tensor([[0.0, 0.0]])
    (made,) = system.certify(x, n=5000)
    assert made.expert == 0 and made.choice.allows and made.p_upper is None
    p, rival = made.p_lower, upper_bound(sorted(made.evidence.counts)[-2], 5000, made.evidence.alpha / 2)
    wide = ucan.Region.sharing(made.answer.region.scale, float(system.experts[0].law.radius(p, 2, 2, rival)), 2, (2,))
    assert wide.radius > 1.05 * made.answer.region.radius
    leads = replace(made.answer, p_upper=rival, region=wide, evidence=replace(made.evidence, bound="two-class"))
    forged = replace(leads, choice=made.choice)
    failed = [check.name for check in verify(forged, system, x, n=2000).checks if not check.passed]
    assert failed == ["answer floor"]
    assert "FAIL" in {verdict for verdict, *_ in checker.check(json.loads(json.dumps(forged.to_dict())), Path())}


def test_a_record_without_a_floor_is_read_as_before() -> None:
    """As it was written before there was τ above 1/2 with a veto; such records are written without one now, too."""
    x = torch.tensor([[0.6, 0.3, 0.0]])
    (made,), (new,) = (cascade(tau=tau, veto=0.1).certify(x, n=2000) for tau in (0.5, 0.6))
    record = json.loads(json.dumps(made.to_dict()))
    assert "floor" not in record["choice"] and from_dict(record).choice.floor == 0.5
    told = json.loads(json.dumps(new.to_dict()))
    assert told["choice"]["floor"] == 0.6 and from_dict(told).choice.floor == 0.6
    assert from_dict(told).radius == new.radius == told["radius"]


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


def test_the_auditor_attacks_a_floor_and_not_only_a_majority(tmp_path) -> None:
    """Half-spaces: the answer's class falls to τ at the border of an honest region, and to 1/2 only far outside."""
    system, x = cascade(tau=0.7, veto=0.2), torch.tensor([[0.6, 0.1, 0.0]])
    (made,) = system.certify(x, n=20_000)
    claim, region = of_the_answer(made), made.answer.region
    assert made.expert == 0 and (claim.of, claim.above, claim.threshold, claim.p) == (0, True, 0.7, made.p_lower)
    wrong = replace(claim, region=ucan.Region.sharing(region.scale, 1.4 * region.radius, region.norm, region.shape))
    assert wrong.radius < 0.6  # the class keeps its majority there
    hard = Budget(steps=15, draws=8, restarts=1, check=1000)
    for number, (each, broken) in enumerate(((claim, 0), (wrong, 1))):
        ledger = Ledger(tmp_path / str(number), {})
        found = audit_all(system.experts[0], [(0, x, each)], ledger, factors=(0.999,), budget=hard)
        assert summarise(found).covered_breaks == broken
    (plain,) = cascade(tau=0.5, veto=0.2).certify(x, n=500)
    assert of_the_answer(plain).prediction == plain.prediction  # a certificate


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


class Halved(ucan.Generator):
    """Noise of half the law's scale, drawn and certified in its own way; Σ does not say that."""

    scope = "pipeline"

    def forward(self, x):
        return x.new_zeros(()), ucan.scales.Scalar(1.0)

    def at(self, x):
        return self

    def place(self, x, eps, law, noise=None):
        return x + eps / 2

    def region(self, law, p, norm, x, p_b=None):
        half = law.radius(p, 2, x.numel(), p_b) / 2
        return ucan.Region(ucan.scales.Scalar(1.0), half, 2, tuple(x.shape[1:]))

    def looks(self):
        return False


@pytest.mark.parametrize(("number", "veto"), [(0, 0.0), (0, 0.2), (1, 0.2)])
def test_a_threshold_refuses_noise_that_is_moved_in_its_own_way(number: int, veto: float) -> None:
    """Where probabilities go under a move is known of x + μ + Σε alone; of this noise the radii would be twice too large."""
    experts = list(cascade().experts)
    experts[number] = ucan.SmoothedClassifier(experts[number].f.model, ucan.Gaussian(0.5), Halved(), 2)
    with pytest.raises(InvalidInput, match=r"needs noise x \+ μ \+ Σε, not Halved"):
        Routed(ucan.Threshold(experts[0], 0.7, veto), experts)


def test_expert_1_without_a_veto_may_have_regions_of_its_own() -> None:
    wide, narrow = cascade().experts
    own = ucan.SmoothedClassifier(narrow.f.model, ucan.Gaussian(0.5), Halved(), 2)
    assert Routed(ucan.Threshold(wide, 0.7), [wide, own]).scope == "pipeline"


def test_what_a_threshold_refuses() -> None:
    system, x = cascade(), torch.tensor([[0.9, 0.4, 0.0]])
    wide, narrow = system.experts
    for make, words in (
        (lambda: ucan.Threshold(wide, 0.4), "at least 0.5"),
        (lambda: ucan.Threshold(wide, 0.5, 0.5), "veto must be"),
        (lambda: Routed(ucan.Threshold(narrow, 0.6), [wide, narrow]), "the first one is"),
        (lambda: Routed(ucan.Threshold(wide, 0.6), [wide, narrow, narrow]), "two experts"),
        (lambda: system.certify(x, n=200, bound="two-class"), "bounds of its own"),
        (lambda: system.predict(x, n=200, test="top-two"), "leave stop="),
    ):
        with pytest.raises(InvalidInput, match=words):
            make()
