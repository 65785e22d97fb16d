"""Questions that stop early: the exact error of looks at fixed numbers of answers, what they save, and what is kept of them."""

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import stats

import ucan
from ucan.bounds import lower_bound
from ucan.errors import InvalidInput
from ucan.plan import CertifyPlan
from ucan.questions.confidence import Confidence, Confident
from ucan.questions.decisions import Decided
from ucan.questions.looks import FIRST, Look, looks_of, question_stop
from ucan.questions.question import Asked
from ucan.questions.records import from_dict
from ucan.questions.shift import Shift
from ucan.questions.topk import Among, TopK, stays_among
from ucan.sizes import Sizes
from ucan.verify_answer import verify_answer
from ucan.votes import Votes


@pytest.mark.parametrize("cap", [1, 49, 50, 99, 100, 1000, 10_000, 123_457])
def test_looks_halve_from_the_cap_and_their_levels_add_up_to_alpha(cap):
    looks = looks_of(cap)
    assert looks[-1] == cap and list(looks) == sorted(set(looks))
    assert all(n >= FIRST for n in looks[:-1]) and (looks[0] < 2 * FIRST or len(looks) == 1)
    assert all(b in (2 * a, 2 * a - 1) for a, b in itertools.pairwise(looks))
    assert sum(Look.at(n, looks, 0.01).alpha for n in looks) == pytest.approx(0.01)
    assert Look.at(cap, (), 0.01) == Look(cap, 0.01)


def test_what_is_hoped_for_lies_between_what_there_is_and_the_cap():
    hits, cap = np.array([0, 3, 50, 99, 100]), Look(1000, 0.01)
    most, least = cap.hoped(hits, 100), cap.feared(hits, 100)
    assert (most >= hits).all() and (most <= 900 + hits).all() and most[-1] == 1000
    assert (least >= hits).all() and (least <= most).all() and least[0] == 0
    again = stats.beta.ppf(0.999, 4, 97)  # Clopper and Pearson's upper bound after 3 of 100
    assert most[1] == 3 + math.ceil(900 * again)


# --- the error, exactly: a class of known probability, by dynamic programming over the looks ---


class Told(Asked):
    """Counts alone: what a conclusion is about has no part in the error."""

    def shared(self, bound, radius):
        return {"norm": 2, "scope": "pipeline", "evidence": SimpleNamespace(counts=(0, 0)), "region": None, "tau": 0.0}

    def abstention(self, bound, reason):
        return None


def told(hits, n, plan, looks):
    law, x = ucan.Gaussian(1.0), torch.zeros(1, 1)
    shift = Shift.at(ucan.Isotropic().at(x), x, Sizes(law, None), 2)
    select, estimate = Votes(torch.tensor([1, 0]), 0), Votes(torch.tensor([hits, n - hits]), 0)
    return Told(None, None, None, x, plan, shift, select, estimate, n, looks)


@pytest.fixture(scope="module")
def decisions():
    """What the rule does after each number of hits at each look: whether it stops, and the bound that is claimed."""
    plan, question, radii = CertifyPlan(n=400, alpha=0.05, stop=question_stop(0.3)), Confidence(0.6), (0.3,)
    looks, found = looks_of(400), {}
    for n in looks:
        cases = [told(h, n, plan, looks) for h in range(n + 1)]
        claims = [question.conclude(case) for case in cases]
        bounds = np.array([one.p_lower if isinstance(one, Confident) else 0.0 for one in claims])
        found[n] = np.array([n == 400 or question.settled(case, radii) for case in cases]), bounds
    return found


def errors(p, decisions):
    """The probability that what is claimed in the end is false; that a false claim could be made at any look; mean n."""
    mass, reach, before, false, mean = np.array([1.0]), np.array([1.0]), 0, 0.0, 0.0
    ever = 0.0
    for n, (stops, bounds) in decisions.items():
        step = stats.binom.pmf(np.arange(n - before + 1), n - before, p)
        mass, reach, before = np.convolve(mass, step), np.convolve(reach, step), n
        wrong = bounds > p
        false, mean = false + mass[stops & wrong].sum(), mean + n * mass[stops].sum()
        ever, reach = ever + reach[wrong].sum(), np.where(wrong, 0.0, reach)
        mass = np.where(stops, 0.0, mass)
    assert mass.sum() == pytest.approx(0, abs=1e-12)
    return false, ever, mean


def test_a_claim_is_false_with_probability_at_most_alpha_whenever_it_stops(decisions):
    found = [errors(p, decisions) for p in np.linspace(0.55, 0.999, 60)]
    false, ever, _ = np.array(found).T
    assert ever.max() <= 0.05  # even someone who stops as soon as a claim is false
    assert (false <= ever + 1e-12).all() and false.max() > 0.01


def test_clear_cases_stop_early_either_way_and_close_ones_at_the_cap(decisions):
    """0.6 at a radius of 0.3 takes p = Φ(Φ⁻¹(0.6) + 0.3) = 0.71."""
    edge = stats.norm.cdf(stats.norm.ppf(0.6) + 0.3)
    mean = {p: errors(p, decisions)[2] for p in (0.2, 0.45, edge, 0.99)}
    assert max(mean[0.99], mean[0.2]) < 50.01 and mean[0.45] < 90 and mean[edge] > 150


def test_giving_up_hardly_ever_loses_a_claim(decisions):
    """Against a rule that goes on to the cap unless it claims: the loss in probability to claim at the radius."""
    edge = stats.norm.cdf(stats.norm.ppf(0.6) + 0.3)
    never = {n: (stops & (bounds >= edge) | (n == 400), bounds) for n, (stops, bounds) in decisions.items()}

    def claims(p, rule):
        mass, before, good = np.array([1.0]), 0, 0.0
        for n, (stops, bounds) in rule.items():
            mass = np.convolve(mass, stats.binom.pmf(np.arange(n - before + 1), n - before, p))
            good, before = good + mass[stops & (bounds >= edge)].sum(), n
            mass = np.where(stops, 0.0, mass)
        return good

    lost = [claims(p, never) - claims(p, decisions) for p in np.linspace(0.6, 0.9, 31)]
    assert 0 <= max(lost) < 3 * 0.001  # of three looks before the cap


# --- the other questions, by simulation ---


@pytest.mark.parametrize(("p", "k"), [((0.75, 0.25), 1), ((0.45, 0.35, 0.2), 2)])
def test_the_error_of_the_first_k_that_stop_at_the_very_radius_that_is_true(p, k):
    """The adversary's radius is the one that these probabilities bear, to the last digit: no claim beyond it is true. Another
    adversary ends as soon as any look claims too much.
    """
    alpha, cases, looks, rng = 0.5, 150, looks_of(200), np.random.default_rng(0)
    question = TopK(k)
    shift = told(0, 1, CertifyPlan(), ()).shift
    truth = shift.largest(lambda r: stays_among(p[0], np.array(p[1:]), k, shift, r))
    plan = CertifyPlan(n=200, alpha=alpha, stop=question_stop(truth))
    select = Votes(torch.tensor([3, 2, 1][: len(p)]), 0)
    answers, known, false, ever = rng.choice(len(p), (cases, 200), p=p), {}, 0, 0
    for votes in answers:
        stopped = wrong = False
        for n in looks:
            counts = np.bincount(votes[:n], minlength=len(p))
            if (state := tuple(counts)) not in known:
                asked = Told(None, None, None, None, plan, shift, select, Votes(torch.tensor(counts), 0), n, looks)
                claim = question.conclude(asked)
                known[state] = question.settled(asked, (truth,)), claim is not None and claim.radii[0] > truth
            decided, beyond = known[state]
            wrong |= beyond
            if not stopped and (decided or n == 200):
                stopped, false = True, false + beyond
        ever += wrong
    assert 0 < false <= ever <= stats.binom.ppf(0.999, cases, alpha)


@pytest.mark.parametrize("options", [{"radius": 0.4}, {}], ids=["holm", "bonferroni"])
def test_the_familywise_error_of_labels_that_stop(options):
    """Of six labels three are just short of the radius; two of these lean to "there", one to "absent"."""
    lam, r, alpha = 0.5, 0.4, 0.3
    x = distinct(300, 6)
    short = r * (1 - 1e-4)
    x += torch.tensor([3 * lam, -3 * lam, 3 * lam, short, short, -short])
    g = ucan.SmoothedLabels(lambda b: b, ucan.Gaussian(lam))
    found = g.certify(x, n=200, n0=20, alpha=alpha, stop=r, **options)
    wrong = sum(not one.abstained and bool((one.radii[3:] >= r).any()) for one in found)
    right = np.mean([not one.abstained and bool((one.radii[:3] >= r).all()) for one in found])
    assert 0 < wrong <= stats.binom.ppf(0.999, 300, alpha) and right > 0.95


def test_a_family_shares_alpha_at_every_look():
    x, g = distinct(20, 3) + torch.tensor([2.0, 0.0, 0.0]), CLAIMS["top"][0]()
    together = g.certify(x, n=400, alpha=0.04, top=2, stop=0.2, family=20)
    alone = g.certify(x, n=400, alpha=0.002, top=2, stop=0.2)
    for one, other in zip(together, alone, strict=True):
        assert one.evidence.alpha == pytest.approx(0.002) and one.evidence.family == 20
        assert one.content(None) == other.content(None) and one.evidence.n == other.evidence.n


def distinct(count, *event):
    """Inputs that are hardly apart, so that each has noise of its own."""
    return 1e-7 * torch.arange(float(count)).reshape(-1, *[1] * len(event)) * torch.ones(count, *event)


def signs(batch):
    return torch.stack([-batch[:, 0], batch[:, 0]], 1)


@pytest.mark.parametrize("rule", ["holm", "bonferroni"])
def test_the_familywise_error_of_pixels_that_stop(rule):
    """Half of the pixels are just short of the radius, so that each of their answers would be false; half are far."""
    lam, r, alpha = 0.5, 0.4, 0.2
    x = distinct(300, 1, 4, 4) + r * (1 - 1e-4)
    x[:, :, :, :2] = 3 * lam
    g = ucan.SmoothedSegmenter(signs, ucan.Gaussian(lam))
    found = g.certify(x, radius=r, n=200, n0=20, alpha=alpha, rule=rule, stop=r)
    wrong = sum(not one.abstained and bool(one.certified[:, 2:].any()) for one in found)
    right = np.mean([float(one.certified[:, :2].double().mean()) for one in found])
    assert wrong <= stats.binom.ppf(0.999, 300, alpha) and right > 0.95
    assert {one.evidence.n for one in found} <= set(looks_of(200))


def test_the_error_of_a_value_that_stays_within_t_or_does_not():
    """f = x: the median moves by δ, so that t − |value| is the largest true radius. Of two sides, which share α, one errs."""
    t, alpha = 0.5, 0.3
    g = ucan.SmoothedRegressor(lambda b: b[:, 0], ucan.Gaussian(0.5))
    found = g.certify(distinct(200, 1), within=t, n=200, n0=500, alpha=alpha, stop=0.9 * t)
    wrong = sum(not one.abstained and one.region.radius > t - abs(float(one.value)) for one in found)
    assert 0 < wrong <= stats.binom.ppf(0.999, 200, alpha)
    assert all(one.evidence.looks == looks_of(200) for one in found)


@pytest.mark.parametrize(("law", "norm"), [(ucan.Gaussian(0.5), 2), (ucan.Uniform(0.5), 1)])
@pytest.mark.parametrize("stop", [None, 0.1])
def test_a_level_that_is_the_bound_to_the_last_digit_ends_in_an_abstention(law, norm, stop):
    """It holds at the input itself, and at no radius."""
    level = lower_bound(100, 100, 0.0005 if stop else 0.001)
    g = ucan.SmoothedClassifier(lambda b: torch.zeros(len(b), dtype=torch.long), law, num_classes=2)
    (one,) = g.certify(torch.zeros(1, 2), n=100, confidence=level, norm=norm, stop=stop)
    assert one.abstained


# --- what is saved, and that nothing else changes ---


CLAIMS = {
    "top": (lambda: ucan.SmoothedClassifier(three, ucan.Gaussian(0.5), num_classes=3), {"top": 2, "stop": 0.3}),
    "confidence": (
        lambda: ucan.SmoothedClassifier(three, ucan.Gaussian(0.5), num_classes=3),
        {"confidence": 0.6, "stop": 0.3},
    ),
    "labels": (lambda: ucan.SmoothedLabels(lambda b: b, ucan.Gaussian(0.3)), {"radius": 0.3, "stop": 0.3}),
    "pixels": (
        lambda: ucan.SmoothedSegmenter(lambda b: signs(b.reshape(-1, 1, 2, 2)), ucan.Gaussian(0.3)),
        {"stop": "0.1,0.3"},
    ),
    "regression": (
        lambda: ucan.SmoothedRegressor(lambda b: b[:, :2], ucan.Gaussian(0.5)),
        {"within": 1.0, "stop": 0.4, "n0": 500},
    ),
}


def three(batch):
    return torch.stack([batch[:, 0] + 1.5, batch[:, 1], batch[:, 2]], 1)


@pytest.mark.parametrize("kind", CLAIMS)
def test_a_stopped_answer_is_its_own_whatever_company_it_had(kind):
    made, options = CLAIMS[kind]
    x, g = torch.tensor([[2.0, 1.5, -1.0, 3.0], [0.31, 0.0, 0.1, -0.3], [1.0, 0.5, -2.0, 0.8]]), made()
    together = g.certify(x, n=4000, **options)
    alone = [g.certify(one[None], n=4000, batch_size=48, **options)[0] for one in x]
    for one, other in zip(together, alone, strict=True):
        mine, theirs = one.to_dict(), other.to_dict()
        assert mine["evidence"].pop("batch_size") != theirs["evidence"].pop("batch_size") and mine == theirs
        assert one.evidence.n in one.evidence.looks == looks_of(4000) and one.evidence.cap == 4000
        assert one.evidence.bound.endswith(f", look {looks_of(4000).index(one.evidence.n) + 1} of 7")
    assert together[0].evidence.n <= 500 and not together[0].abstained
    fixed = g.certify(x[:1], n=4000, **{**options, "stop": None})[0]
    assert fixed.evidence.looks == () and fixed.evidence.n == 4000
    assert fixed.region.radius >= together[0].region.radius  # fewer answers, at a share of α


@pytest.mark.parametrize("kind", CLAIMS)
def test_a_stopped_answer_is_verified_and_its_looks_are(kind):
    made, options = CLAIMS[kind]
    g, x = made(), torch.tensor([[2.0, 1.5, -1.0, 3.0]])
    (one,) = g.certify(x, n=2000, **options)
    again = from_dict(one.to_dict())
    assert again.evidence == one.evidence
    good = verify_answer(again, g, x, seed=5)
    assert good.stands and {"looks", "replay"} <= {check.name for check in good.checks}
    for changed in (
        replace(one.evidence, looks=(one.evidence.n, 2000)),  # someone looked when it suited
        replace(one.evidence, looks=(), cap=2000),  # and did not say so
        replace(one.evidence, looks=(), stop=None),
    ):
        verdict = verify_answer(replace(one, evidence=changed), g, x, n=200)
        assert [check.name for check in verdict.checks if not check.passed] == ["looks"]
    with pytest.raises(InvalidInput, match="nobody looked"):
        replace(
            one.evidence, looks=looks_of(2000)[-2:], counts=(60, *one.evidence.counts[1:-1], 0)[:2], invalid=0, n=60
        )


def widened(answer, factor):
    region = answer.region
    return replace(answer, region=type(region)(region.scale, region.radius * factor, region.norm, region.shape))


def stronger(answer):
    """The same record with larger claims of its own, one at a time."""
    if isinstance(answer, Among):
        lows, highs = (answer.p_lowers[0] + 0.01, *answer.p_lowers[1:]), [high - 0.01 for high in answer.p_uppers]
        yield from (replace(answer, p_lowers=lows), replace(answer, p_uppers=tuple(highs)))
        yield replace(answer, radii=tuple(1.01 * r for r in answer.radii))
        yield replace(answer, k=1, **{name: getattr(answer, name)[:1] for name in ("labels", "radii", "p_lowers")})
    elif isinstance(answer, Confident):
        yield from (
            replace(answer, p_lower=1.01 * answer.p_lower),
            replace(answer, confidence=answer.confidence + 0.05),
        )
        yield from (replace(answer, line=(0.9, 0.0)), replace(answer, prediction=1))
    elif isinstance(answer, Decided):
        yield replace(answer, radii=1.01 * answer.radii)
        yield replace(answer, p_lowers=answer.p_lowers - 0.05)
    else:
        yield from (replace(answer, radii=(1.01 * answer.radii[0],)), replace(answer, below=1.2 * answer.below))
        yield replace(answer, lowers=answer.lowers + 0.1)


@pytest.mark.parametrize("kind", CLAIMS)
def test_a_claim_that_does_not_follow_from_its_evidence_is_refused_without_a_replay(kind):
    made, options = CLAIMS[kind]
    g, x = made(), torch.tensor([[2.0, 1.5, -1.0, 3.0]])
    (one,) = g.certify(x, n=2000, **options)
    secret = replace(one, evidence=replace(one.evidence, seed=None))
    assert verify_answer(secret, g, x, seed=5).stands and verify_answer(widened(one, 0.99), g, x, replay=False).stands
    others = [widened(one, 1.01), replace(one, tau=0.01), *stronger(one)]
    if isinstance(one, Among | Confident):
        spent = replace(one.evidence, alpha=one.evidence.alpha / 2)  # a higher level than it has
        fewer = replace(one.evidence, counts=(one.evidence.counts[0] - 3, 3, 0), invalid=0)
        others += [replace(one, evidence=spent), replace(one, evidence=fewer)]
    for changed in others:
        verdict = verify_answer(changed, g, x, replay=False)
        assert [check.name for check in verdict.checks if not check.passed] == ["claim"], changed.to_dict()


def test_a_bound_whose_name_hides_the_look_is_refused():
    made, options = CLAIMS["confidence"]
    g, x = made(), torch.tensor([[2.0, 1.5, -1.0, 3.0]])
    (one,) = g.certify(x, n=2000, **options)
    for changed in (
        replace(one.evidence, bound="binary"),
        replace(one.evidence, bound="binary, look 6 of 6"),
        replace(one.evidence, looks=(), stop=None, cap=one.evidence.n),  # its name tells
    ):
        verdict = verify_answer(replace(one, evidence=changed), g, x)
        assert [check.name for check in verdict.checks if not check.passed] == ["looks"]


def test_a_replay_compares_the_votes_too():
    made, options = CLAIMS["labels"]
    g, x = made(), torch.tensor([[2.0, 1.5, -1.0, 3.0]])
    (one,) = g.certify(x, n=2000, **options)
    n = one.evidence.n
    for invalid, failed in ((1, []), (n // 4, ["replay"])):  # one vote may be rounding, a quarter is not
        changed = replace(one.evidence, counts=(n - invalid,), invalid=invalid)
        verdict = verify_answer(replace(one, evidence=changed), g, x)
        assert [check.name for check in verdict.checks if not check.passed] == failed


def test_a_question_that_cannot_be_stopped_says_so():
    x = torch.zeros(1, 2)
    regressor, labels = ucan.SmoothedRegressor(lambda b: b, ucan.Gaussian(1.0)), CLAIMS["labels"][0]()
    with pytest.raises(InvalidInput, match="within=t with stop=r"):
        regressor.certify(x, radius=0.1, stop=0.1)
    with pytest.raises(InvalidInput, match=r"give stop=0\.3"):
        labels.certify(x, radius=0.3, stop=0.2)
    with pytest.raises(InvalidInput, match="radii"):
        labels.certify(x, radius=0.3, stop="10%")


def test_a_stopped_run_says_where_it_looks_and_resumes(tmp_path):
    from test_ask import records, run

    words = ["ask", "top-k", "--top", 2, "--model", "ucan.models.examples:digits", "--data", "digits", "--scale", 0.5]
    words += ["--n", 2000, "--stop", 0.2, "-q"]
    assert run(*words, "-o", tmp_path / "run", "--max", 2).exit_code == 0
    done = run(*words, "-o", tmp_path / "run", "--max", 6)
    assert "Sampling stopped when decided at the radius 0.2" in done.stdout
    assert run(*words, "-o", tmp_path / "whole", "--max", 6, "--json").exit_code == 0
    assert records(tmp_path / "run") == records(tmp_path / "whole")
    config = (tmp_path / "run" / "config.toml").read_text()
    assert f"looks = {json.dumps(list(looks_of(2000)))}" in config and 'stop = "0.2"' in config
    assert min(one["evidence"]["n"] for one in records(tmp_path / "run").values()) < 200
    with pytest.raises(InvalidInput, match="n: the run has 2000"):  # another cap has other looks
        run(*[4000 if word == 2000 else word for word in words], "-o", tmp_path / "run", "--max", 6)
    with pytest.raises(InvalidInput, match=r"stop: the run has '?0\.2"):
        run(*[0.3 if word == 0.2 else word for word in words], "-o", tmp_path / "run")


def test_abstentions_from_questions_follow_the_schema(tmp_path):
    """They are the records of abstentions that readers of certificates know."""
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((Path(ucan.__file__).parent / "certificate.schema.json").read_text(encoding="utf-8"))
    for kind, (made, options) in CLAIMS.items():
        narrow = {"confidence": {"confidence": 0.999}, "regression": {"within": 1e-3}}.get(kind, {})
        for stop in (None, options["stop"]):
            asked = {**options, **narrow, "stop": stop}
            (one,) = made().certify(torch.tensor([[-1.5, 0.0, 0.0, 0.0]]) * (kind == "top"), n=60, **asked)
            assert one.abstained
            jsonschema.Draft202012Validator(schema).validate(one.to_dict())
