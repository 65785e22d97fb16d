"""Sampling that stops when the answer is known: valid at every stopping time, and the same in any company."""

import functools
import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import nn

from ucan import Certificate, ExpInf, Fixed, Gaussian, InvalidInput, Laplace, Prediction, SmoothedClassifier, Uniform
from ucan.bounds import anytime_lower_bound, anytime_upper_bound, log_wealth, lower_bound
from ucan.errors import UnsupportedNorm
from ucan.generators import Isotropic
from ucan.giving_up import GIVE_UP, Hopes, misses_allowed
from ucan.named_bounds import Ballot, bound_named
from ucan.sequential import Candidate, settle
from ucan.stop_option import parse_stop
from ucan.stopping import AnytimeRadii, AtRadii, Radius, Stop, Within
from ucan.verify import verify
from ucan.votes import Classifier, Stream, VoteCounter

INF = math.inf


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("radius", (1.0, 1.25, (0.5, 1.25)))
def test_what_no_votes_could_reach_is_not_waited_for(radius):
    g = SmoothedClassifier(lambda y: torch.zeros(len(y), dtype=torch.int64), Gaussian(0.25), num_classes=2)
    (c,) = g.certify(torch.zeros(1, 4), n=100_000, stop=radius)  # all of them reach 0.94
    assert c.evidence.n < 2_000


@pytest.mark.parametrize(
    "cap, alpha, p0", [(512, 0.001, 0.9), (10_000, 0.001, 0.5), (10_000, 0.05, 0.99), (64, 0.001, 0.99)]
)
def test_the_misses_allowed_are_the_most_that_certify(cap, alpha, p0):
    allowed = misses_allowed(cap, alpha, p0)
    certifies = log_wealth(cap - np.arange(cap + 1), cap, p0) >= math.log(1 / alpha)
    assert allowed == certifies.sum() - 1 and (allowed == -1) == (cap == 64)


@pytest.mark.parametrize(
    "cap, allowed", [(1000, 500), (1000, 80), (1000, 3), (100_000, 49_000), (100_000, 900), (100_000, 0)]
)
@pytest.mark.parametrize("done", (0.001, 0.01, 0.1, 0.5, 0.9, 0.999))
def test_hope_is_lost_where_the_misses_allowed_seldom_come_so_early(cap, allowed, done):
    drawn = int(done * cap)
    lost = Hopes(cap, np.array(allowed)).lost(np.arange(drawn + 1), drawn)
    assert (np.diff(lost.astype(int)) >= 0).all()
    assert lost.all() or not lost[0]
    first = int(lost.argmax()) if lost.any() else drawn + 1
    early = stats.hypergeom(cap, allowed, drawn)  # the law itself
    assert early.sf(first - 1) < 2 * GIVE_UP
    assert first > allowed or early.sf(first - 3) > GIVE_UP / 2


def certified_and_votes(p, p0, cap, gives_up, block=64, alpha=0.001):
    """P(certified by the cap) and the mean number of votes, looking after every block: exact, by dynamic programming."""
    rule, radius = AnytimeRadii((0.0,)), Radius(of=float, probability=lambda r: p0)
    alive, certified, votes = np.ones(1), 0.0, 0.0
    for n in range(block, cap + 1, block):
        alive = np.convolve(alive, stats.binom.pmf(np.arange(block + 1), block, p))
        k = np.arange(len(alive))
        done = log_wealth(k, n, p0) >= math.log(1 / alpha)
        certified += alive[done].sum()
        if gives_up:
            likely = alive > 1e-9
            done[likely] = [rule.settled(int(hits), n, cap, alpha, radius) for hits in k[likely]]
        elif n == cap:
            done[:] = True
        votes += n * alive[done].sum()
        alive = np.where(done, 0.0, alive)
    return certified, votes


@pytest.mark.parametrize("p0", (0.5, 0.9))
def test_giving_up_costs_few_certificates_and_saves_most_votes_where_there_are_none(p0):
    cap = 1280
    edge = 1 - misses_allowed(cap, 0.001, p0) / cap
    for z, saves in ((-8, 4.0), (-4, 1.9), (-2, 1.3), (0, 1.03), (2, 1.0), (4, 1.0)):
        p = edge + z * math.sqrt(edge * (1 - edge) / cap)
        patient, all_votes = certified_and_votes(p, p0, cap, False)
        certified, votes = certified_and_votes(p, p0, cap, True)
        assert patient - 0.0013 <= certified <= patient + 1e-9
        assert votes * saves <= all_votes


# --- the bettor: an exact account of every stopping rule at once ---


def probability_of_ever_crossing(p, draws, rejects):
    """P(at some n ≤ draws the rule ``rejects(k, n)`` holds), hits having probability p: exact, by dynamic programming.

    Whatever is too improbable to follow (below 1e-20 each) counts as crossed.
    """
    alive, first, crossed = np.ones(1), 0, 0.0  # alive[i] = P(not crossed yet, first + i hits)
    for n in range(1, draws + 1):
        alive = np.concatenate([alive * (1 - p), [0.0]]) + np.concatenate([[0.0], alive * p])
        k = first + np.arange(len(alive))
        out = rejects(k, n) | (alive < 1e-20)
        crossed += alive[out].sum()
        alive[out] = 0.0
        kept = np.flatnonzero(alive)
        if len(kept) == 0:
            break
        first, alive = first + kept[0], alive[kept[0] : kept[-1] + 1]
    return crossed


P0 = (0.5, 0.69, 0.84, 0.977)


@pytest.mark.parametrize("p0", P0)
@pytest.mark.parametrize("alpha", (0.05, 0.001))
def test_looking_after_every_draw_errs_with_probability_at_most_alpha(p0, alpha):
    crossed = probability_of_ever_crossing(p0, 1500, lambda k, n: log_wealth(k, n, p0) >= math.log(1 / alpha))
    assert alpha / 20 < crossed <= alpha  # valid, and no bettor who never bets


@pytest.mark.parametrize("p0", P0)
def test_it_errs_less_the_further_the_truth_lies_below(p0):
    alpha = 0.05
    rejects = lambda k, n: log_wealth(k, n, p0) >= math.log(1 / alpha)  # noqa: E731
    errors = [probability_of_ever_crossing(p, 400, rejects) for p in (p0, p0 - 0.02, p0 - 0.1, p0 - 0.4)]
    assert alpha >= errors[0] > errors[1] > errors[2] > errors[3]


def test_peeking_at_clopper_pearson_would_break_its_promise():
    crossed = probability_of_ever_crossing(0.84, 1500, lambda k, n: stats.binom.sf(k - 1, n, 0.84) < 0.05)
    assert crossed > 0.2


@pytest.mark.parametrize("p0", P0)
def test_wealth_starts_at_one_is_a_martingale_at_p0_and_grows_with_hits(p0):
    assert float(log_wealth(0, 0, p0)) == pytest.approx(0.0, abs=1e-12)
    for n in (1, 7, 100, 3000):
        k = np.arange(n + 1)
        k = k[stats.binom.pmf(k, n, p0) > 1e-12]
        now, hit, miss = (np.exp(log_wealth(a, b, p0)) for a, b in ((k, n), (k + 1, n + 1), (k, n + 1)))
        assert p0 * hit + (1 - p0) * miss == pytest.approx(now, rel=1e-6)
        assert (np.diff(now) > 0).all()


CASES = [(1, 1), (3, 3), (3, 5), (60, 100), (99, 100), (100, 100), (700, 1000), (990, 1000), (6000, 10_000)]
ALPHAS = (0.05, 0.001)


@pytest.mark.parametrize("k, n", CASES)
@pytest.mark.parametrize("alpha", ALPHAS)
def test_rejected_probabilities_form_an_interval_that_ends_at_the_bound(k, n, alpha):
    grid = np.unique(np.concatenate([np.linspace(0, 1, 20_001)[1:-1], np.geomspace(1e-12, 1e-3, 500)]))
    rejected = log_wealth(k, n, grid) >= math.log(1 / alpha)
    edge = int(rejected.sum())
    assert rejected[:edge].all()  # none after the first that is not
    bound = anytime_lower_bound(k, n, alpha)
    assert edge == 0 or bound >= grid[edge - 1] * (1 - 1e-12)
    assert bound <= grid[edge] * (1 + 1e-12)


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("n", (1, 2, 10, 100, 1000, 100_000))
def test_the_anytime_bound_grows_with_k_and_stays_below_the_share_and_below_clopper_pearson(n, alpha):
    ks = np.unique(np.linspace(0, n, 41).astype(int)).tolist()
    bounds = [anytime_lower_bound(k, n, alpha) for k in ks]
    assert all(a <= b for a, b in itertools.pairwise(bounds))
    for k, bound in zip(ks, bounds, strict=True):
        assert 0 <= bound <= lower_bound(k, n, alpha) <= k / n
        assert bound < k / n or k == 0
        assert anytime_upper_bound(n - k, n, alpha) == 1 - bound


@given(n=st.integers(1, 5000), share=st.floats(0, 1), alpha=st.sampled_from((0.3, 0.05, 1e-3, 1e-9)))
def test_the_anytime_bound_is_monotone_in_k_and_alpha(n, share, alpha):
    k = round(share * n)
    bound = anytime_lower_bound(k, n, alpha)
    assert 0 <= bound <= lower_bound(k, n, alpha)
    assert k == n or anytime_lower_bound(k + 1, n, alpha) >= bound
    assert anytime_lower_bound(k, n, alpha / 2) <= bound
    assert bound == 0 or log_wealth(k, n, bound) >= math.log(1 / alpha)


def test_the_price_of_looking_is_small():
    n, p = 10_000, 0.9
    radius = Gaussian(scale=1.0).radius
    fixed, anytime = (radius(bound(round(p * n), n, 0.001)) for bound in (lower_bound, anytime_lower_bound))
    assert 0.95 * fixed < anytime < fixed


@pytest.mark.parametrize("k, n, alpha", [(-1, 5, 0.1), (6, 5, 0.1), (0, 0, 0.1), (1, 2, 0.0), (1, 2, 1.0)])
def test_impossible_counts_and_levels_are_refused(k, n, alpha):
    with pytest.raises(InvalidInput):
        anytime_lower_bound(k, n, alpha)


# --- the rules ---


def gaussian_radius(scale=1.0, factor=1.0):
    law = Gaussian(scale=scale)
    return Radius(of=lambda p: factor * law.radius(p), probability=lambda r: law.probability(r / factor))


@functools.cache
def stream(p, seed, block=64, cap=3200):
    """Hits after each block of a Bernoulli stream."""
    draws = np.random.default_rng(seed).random(cap) < p
    return np.cumsum(draws)[block - 1 :: block].tolist()


def run(stop, p, seed, alpha, radius, block=64, cap=3200):
    """Hits and draws when the rule is satisfied, or at the cap."""
    for number, hits in enumerate(stream(p, seed), start=1):
        if stop.settled(hits, number * block, cap, alpha, radius):
            break
    return hits, number * block


@pytest.mark.parametrize("r", (0.0, 0.5, 1.0))
def test_a_radius_just_out_of_reach_is_certified_no_more_often_than_alpha(r):
    alpha, runs, radius = 0.05, 200, gaussian_radius()
    p = radius.probability(r) - 0.002
    wrong = 0
    for seed in range(runs):
        hits, drawn = run(AnytimeRadii((r,)), p, seed, alpha, radius)
        wrong += anytime_lower_bound(hits, drawn, alpha) >= radius.probability(r)
    assert wrong / runs <= alpha + 4 * math.sqrt(alpha * (1 - alpha) / runs)


@pytest.mark.parametrize("p", (0.4, 0.6, 0.8, 0.95, 1.0))
def test_several_radii_are_settled_when_each_is_and_every_decision_holds_in_the_certificate(p):
    alpha, radius, radii = 0.01, gaussian_radius(), (0.25, 0.5, 1.0, 1.5)
    for seed in range(12):
        hits, drawn = run(AnytimeRadii(radii), p, seed, alpha, radius)
        alone = [run(AnytimeRadii((r,)), p, seed, alpha, radius)[1] for r in radii]
        assert drawn == max(alone)
        certified = radius.of(anytime_lower_bound(hits, drawn, alpha))
        for r, n in zip(radii, alone, strict=True):
            at_its_end = radius.of(anytime_lower_bound(stream(p, seed)[n // 64 - 1], n, alpha))
            if at_its_end >= r and drawn == n:
                assert certified >= r


def test_a_larger_radius_is_never_certified_before_a_smaller_one():
    goal = math.log(1000)
    law = Gaussian(scale=1.0)
    p0 = law.probability(np.array([0.0, 0.1, 0.5, 1.0, 2.0]))
    for n in (10, 100, 1000):
        certified = log_wealth(np.arange(n + 1)[:, None], n, p0) >= goal
        assert (certified[:, 1:] <= certified[:, :-1]).all()


def test_certain_and_hopeless_radii_stop_after_one_look_and_close_ones_go_on():
    radius, rule = gaussian_radius(), AnytimeRadii((0.5,))
    assert rule.settled(128, 128, 100_000, 0.001, radius)
    assert rule.settled(20, 128, 100_000, 0.001, radius)
    assert not rule.settled(90, 128, 100_000, 0.001, radius)


def test_a_radius_that_no_probability_reaches_is_decided_at_once():
    law = Uniform(scale=1.0)
    radius = Radius(of=lambda p: law.radius(p, 1, 4), probability=lambda r: law.probability(r, 1, 4))
    assert math.isnan(radius.probability(50.0))
    assert AnytimeRadii((50.0,)).settled(64, 128, 1000, 0.001, radius)
    assert not AnytimeRadii((0.05, 50.0)).settled(64, 128, 1000, 0.001, radius)


@pytest.mark.parametrize("hits", (64, 128))
def test_a_radius_whose_probability_rounds_to_one_is_decided_too(hits):
    assert gaussian_radius().probability(9.0) == 1.0
    assert AnytimeRadii((9.0,)).settled(hits, 128, 100_000, 0.001, gaussian_radius())


@pytest.mark.parametrize("radii", [(7.8,), (8.0,), (8.25,), (7.9, 8.0), (1.0, 7.9, 8.0)], ids=str)
def test_radii_whose_probabilities_nearly_round_to_one_are_out_of_reach_and_prove_nothing(radii):
    law, asked = Gaussian(1.0), AtRadii(radii)
    near = tuple(float(law.probability(r)) for r in radii)
    for thresholds in (near, asked.thresholds(gaussian_radius())):
        ballot = Ballot(128, 0, 128, 0.001, False, 1000, (100, 100), thresholds)
        assert bound_named("sequential").probabilities(ballot)[0] <= 0.001 ** (1 / 128)
    (one,) = SmoothedClassifier(lambda b: (b[:, 0] > 0).long(), law, num_classes=2).certify(
        torch.full((1, 2), 4.0), n=1000, stop=list(radii), seed=1
    )
    assert 0 < one.radius < 4.0 and one.evidence.n <= 128


@pytest.mark.parametrize("p", (0.3, 0.5, 0.7, 0.9, 0.999))
@pytest.mark.parametrize("fraction", (0.05, 0.3))
def test_within_stops_close_to_what_the_cap_could_have_given(p, fraction):
    alpha, radius, shortfalls = 0.05, gaussian_radius(), 0
    for seed in range(6):
        hits, drawn = run(Within(fraction), p, seed, alpha, radius)
        at_stop = radius.of(anytime_lower_bound(hits, drawn, alpha))
        at_cap = radius.of(anytime_lower_bound(stream(p, seed)[-1], 3200, alpha))
        shortfalls += at_stop < (1 - fraction) * at_cap
    assert shortfalls <= 2  # the upper bound fails with probability alpha


def test_within_saves_samples_and_a_smaller_fraction_costs_more():
    radius = gaussian_radius()
    used = [run(Within(fraction), 0.95, 0, 0.05, radius)[1] for fraction in (0.5, 0.3, 0.1, 0.01)]
    assert used == sorted(used) and used[0] < used[-1]
    assert run(Within(0.05), 0.1, 0, 0.05, radius)[1] == 64  # nothing to gain: no radius at all


PARSED = {
    "nothing": (None, None),
    "a number": (0.5, AtRadii((0.5,))),
    "a whole number": (1, AtRadii((1.0,))),
    "a list": ([1.0, 0.5], AtRadii((0.5, 1.0))),
    "a tuple": ((0.0, 2), AtRadii((0.0, 2.0))),
    "text": ("0.5", AtRadii((0.5,))),
    "texts": ("1.0, 0.25", AtRadii((0.25, 1.0))),
    "a fraction": ("5%", Within(0.05)),
    "a fraction with spaces": (" 12.5 % ", Within(0.125)),
    "a rule": (Within(0.2), Within(0.2)),
}


@pytest.mark.parametrize("case", PARSED)
def test_what_stop_may_be(case):
    value, rule = PARSED[case]
    assert parse_stop(value) == rule


REFUSED = ["", "x", "5%%", "0%", "100%", "-5%", "nan", "inf", "-1", "0.5,,1", -0.1, INF, math.nan, [], [0.5, -1.0]]
UNKINDLY = [pytest.param(v, id=str(i)) for i, v in enumerate([True, {}, {"r": 1.0}, object(), ["a"]])]


@pytest.mark.parametrize("value", [*map(pytest.param, REFUSED), *UNKINDLY])
def test_what_stop_may_not_be(value):
    g = SmoothedClassifier(lambda b: (b[:, 0] > 0).long(), Gaussian(scale=1.0), None, 2)
    with pytest.raises(InvalidInput, match="stop"):
        g.certify(torch.ones(1, 2), stop=value)


# --- many inputs side by side ---


class Always(Stop):
    """Stops after the given number of hits, and remembers when it was asked."""

    def __init__(self, hits=INF, growth=1.0):
        object.__setattr__(self, "hits", hits)
        object.__setattr__(self, "asked", [])
        object.__setattr__(self, "growth", growth)

    def __str__(self):
        return f"{self.hits} hits"

    def settled(self, hits, drawn, cap, alpha, radius):
        self.asked.append(drawn)
        return hits >= self.hits


LEVELS = (-0.3, 0.0, 0.05, 0.2, 0.5, 0.9, 1.4, 2.5, 0.1, 0.3)


def candidates(indices):
    for i in indices:
        x = torch.tensor([[LEVELS[i], float(i)]])
        law = Gaussian(scale=1.0)
        radius = Radius(of=law.radius, probability=law.probability)
        yield Candidate(i, x, Isotropic().at(x), Stream(0, str(i), "estimate"), 1, radius)


def counter(slots, block=16):
    f = Classifier(lambda batch: (batch[:, 0] > 0).long(), 2)
    return VoteCounter(f, 2, Gaussian(scale=1.0), block, slots * block)


def settled(slots, order, stop, cap=1000, alpha=0.01):
    done = list(settle(counter(slots), candidates(order), stop, cap, alpha))
    assert len(done) == len({c.index for c in done}) == len(order)
    return {c.index: (c.drawn, c.tally.tolist()) for c in done}


RULES = {
    "radii": AtRadii((0.3, 0.6)),
    "anytime": AnytimeRadii((0.3, 0.6)),
    "within": Within(0.2),
    "hits": Always(hits=200),
}


@pytest.mark.parametrize("rule", RULES)
def test_samples_and_votes_do_not_depend_on_slots_order_or_company(rule):
    everyone = range(3 if rule == "within" else len(LEVELS))  # Within takes milliseconds a look
    truth = {i: settled(1, [i], RULES[rule])[i] for i in everyone}
    assert len({drawn for drawn, _ in truth.values()}) > 1  # they do stop at different times
    for slots in (1, 2, 8):
        assert settled(slots, everyone, RULES[rule]) == truth
    assert settled(4, list(everyone)[::-1], RULES[rule]) == truth
    assert settled(4, [2, 1], RULES[rule]) == {i: truth[i] for i in (2, 1)}


@pytest.mark.parametrize("cap", (1, 15, 16, 17, 100))
@pytest.mark.parametrize("slots", (1, 8))
def test_no_sample_is_drawn_past_the_cap_and_every_vote_counts_once(cap, slots):
    for drawn, tally in settled(slots, range(5), Always(), cap=cap).values():
        assert drawn == sum(tally) == cap


@pytest.mark.parametrize("slots", (1, 8))
def test_a_rule_looks_at_every_block_or_after_each_growth(slots):
    every, seldom = Always(), Always(growth=1.5)
    settled(slots, [3], every, cap=400)
    settled(slots, [3], seldom, cap=400)
    assert every.asked == list(range(16, 400, 16))
    assert seldom.asked == [16, 32, 48, 80, 128, 192, 288]


def test_inputs_are_taken_as_places_become_free():
    taken = []

    def tell():
        for candidate in candidates(range(len(LEVELS))):
            taken.append(candidate.index)
            yield candidate

    results = settle(counter(4), tell(), Always(hits=10_000), 64, 0.01)
    next(results)
    assert taken == [0, 1, 2, 3]
    assert len(list(results)) == len(LEVELS) - 1 and taken == list(range(len(LEVELS)))


def test_nobody_waiting_is_no_trouble():
    assert list(settle(counter(2), [], AtRadii((1.0,)), 100, 0.01)) == []


# --- certify ---

WEIGHT = torch.tensor([1.0, -2.0, 0.5, 1.0])
SIGMA = torch.tensor([0.5, 1.0, 1.5, 2.0])


def linear(generator=None, law=None):
    model = nn.Linear(4, 2).eval()
    with torch.no_grad():
        model.weight.copy_(torch.stack([-WEIGHT, WEIGHT]))
        model.bias.zero_()
    return SmoothedClassifier(model, law or Gaussian(scale=0.8), generator, 2)


def inputs(count, low, high, seed=0):
    """Inputs of class 1 at margins (distances along w) between low and high."""
    x = torch.randn(count, 4, generator=rng(seed))
    unit = WEIGHT / WEIGHT.norm()
    margins = torch.linspace(low, high, count)
    return x - (x @ unit)[:, None] * unit + margins[:, None] * unit


@pytest.mark.parametrize("stop, count", [(0.5, 200), ([0.2, 0.5, 0.8], 200), ("10%", 12)], ids=str)
@pytest.mark.parametrize("generator", [None, Fixed(SIGMA)], ids=["isotropic", "diagonal"])
def test_certificates_of_a_linear_classifier_exceed_the_truth_no_more_often_than_alpha(stop, count, generator):
    alpha, n, xs = 0.05, 3000, inputs(count, 0.0, 2.0)
    outcomes = linear(generator).certify(xs, n0=50, n=n, alpha=alpha, stop=stop)
    sigma = torch.ones(4) if generator is None else SIGMA
    wrong = used = 0
    for x, c in zip(xs, outcomes, strict=True):
        evidence = c.evidence
        assert evidence.bound == ("anytime" if stop == "10%" else "sequential")
        assert sum(evidence.counts) == evidence.n <= n and 8 <= evidence.n0 <= 50
        used += evidence.n
        if isinstance(c, Certificate):
            truth = float(x @ WEIGHT / (sigma * WEIGHT).norm())  # in the space of ε, where the region is a ball
            assert c.p_lower == bound_named(evidence.bound).probabilities(evidence.ballot(c.prediction))[0]
            wrong += c.region.radius > (truth if c.prediction == 1 else -truth)
            assert c.radius == pytest.approx(float(sigma.min()) * c.region.radius)
    assert wrong / count <= alpha + 4 * math.sqrt(alpha * (1 - alpha) / count)
    assert used < 0.8 * n * count


def test_a_decided_radius_is_reached_by_the_certificate_or_out_of_reach():
    xs, radii = inputs(60, 0.0, 2.0), (0.3, 0.9)
    outcomes = linear().certify(xs, n=20_000, alpha=0.001, stop=radii)
    truths = (xs @ WEIGHT / WEIGHT.norm()).tolist()
    for c, truth in zip(outcomes, truths, strict=True):
        assert c.evidence.n < 20_000 or min(abs(truth - r) for r in radii) < 0.1
        for r in radii:
            if truth > 1.15 * r + 0.05:
                assert c.radius >= r
            if truth < r:
                assert c.radius < r


def test_stopping_changes_no_vote_only_their_number():
    xs = inputs(3, 0.2, 1.5)
    stopped = linear().certify(xs, n=4000, stop=[0.4])
    for i, c in enumerate(stopped):
        (full,) = linear().certify(xs[i : i + 1], n=c.evidence.n)
        assert full.evidence.counts == c.evidence.counts and full.p_lower >= c.p_lower
    assert any(c.evidence.n % c.evidence.block for c in stopped)  # it looks inside a block


@pytest.mark.parametrize("batch_size", (128, 256, 1024))
def test_certificates_are_the_same_in_any_packing_order_and_company(batch_size):
    xs = inputs(7, 0.0, 1.5)
    g = linear()
    truth = [(c.evidence.n, c.evidence.counts) for c in g.certify(xs, n=2000, stop=[0.4])]
    packed = g.certify(xs, n=2000, stop=[0.4], batch_size=batch_size)
    assert [(c.evidence.n, c.evidence.counts) for c in packed] == truth
    turned = g.certify(xs.flip(0), n=2000, stop=[0.4], batch_size=batch_size)
    assert [(c.evidence.n, c.evidence.counts) for c in turned][::-1] == truth
    alone = [g.certify(xs[i : i + 1], n=2000, stop=[0.4])[0] for i in range(7)]
    assert [(c.evidence.n, c.evidence.counts) for c in alone] == truth


@pytest.mark.parametrize(
    "law, norm, r", [(Gaussian(0.8), INF, 0.2), (ExpInf(0.4), INF, 0.1), (Uniform(2.0), 1, 0.3)], ids=repr
)
def test_a_radius_is_asked_in_the_norm_that_was_asked_for(law, norm, r):
    g, x = linear(Fixed(SIGMA), law), inputs(1, 3.0, 3.0)
    (c,) = g.certify(x, n=20_000, norm=norm, stop=r)
    assert c.norm == norm and c.radius >= r and c.evidence.n < 20_000
    # One vote fewer would not have done.
    ballot = c.evidence.ballot(c.prediction)
    p, _ = bound_named(c.evidence.bound).probabilities(replace(ballot, hits=ballot.hits - 1, n=ballot.n - 1))
    assert p < c.evidence.thresholds[0] <= c.p_lower


@pytest.mark.parametrize("law, norm", [(Uniform(1.0), 1), (Gaussian(1.0), 2)])
def test_an_unreachable_radius_costs_one_block(law, norm):
    (c,) = linear(law=law).certify(inputs(1, 1.0, 1.0), n=50_000, norm=norm, stop=50.0)
    assert c.evidence.n == c.evidence.block < 50_000


def test_selection_votes_larger_than_a_block_give_the_same_class():
    xs = inputs(3, 0.5, 1.0)
    few, many = (linear().certify(xs, n0=n0, n=500, stop=[0.2]) for n0 in (100, 300))
    assert [c.prediction for c in few] == [c.prediction for c in many] == [1, 1, 1]
    assert [c.evidence.counts for c in few] == [c.evidence.counts for c in many]


def test_stopping_has_a_bound_of_its_own_and_goes_with_the_majority_test_only():
    with pytest.raises(InvalidInput, match="a bound of its own"):
        linear().certify(inputs(1, 1.0, 1.0), bound="two-class", stop=0.5)
    with pytest.raises(InvalidInput, match="majority"):
        linear().predict(inputs(1, 1.0, 1.0), test="top-two", stop=True)


# --- predict ---


def three_classes(first, second):
    """Classes 0, 1, 2 with these probabilities (the rest for 2) under unit Gaussian noise at 0."""
    edges = torch.tensor(stats.norm.ppf([first, first + second]), dtype=torch.float32)
    return SmoothedClassifier(lambda b: (b[:, 0, None] > edges).sum(1), Gaussian(scale=1.0), None, 3)


def numbered(count):
    """Inputs that the classifier cannot tell apart, each with noise of its own."""
    return torch.stack([torch.zeros(count), torch.arange(count) / 64], dim=1)


@pytest.mark.parametrize(
    "first, second", [(0.51, 0.48), (0.505, 0.3), (0.45, 0.44), (0.4, 0.35)], ids=lambda p: f"{p:g}"
)
def test_predictions_that_stop_err_no_more_often_than_alpha(first, second):
    alpha, count = 0.05, 250
    outcomes = three_classes(first, second).predict(numbered(count), n=1280, alpha=alpha, stop=True)
    wrong = sum(isinstance(c, Prediction) and c.prediction != 0 for c in outcomes)
    assert wrong / count <= alpha + 4 * math.sqrt(alpha * (1 - alpha) / count)
    for c in outcomes:
        assert sum(c.evidence.counts) == c.evidence.n <= 1280 and c.evidence.bound == "anytime"
        assert c.abstained or c.p_value <= alpha


def test_clear_predictions_take_one_block_and_hopeless_ones_give_up():
    clear = three_classes(0.95, 0.04).predict(numbered(5), n=100_000, stop=True)
    assert [c.prediction for c in clear] == [0] * 5 and all(c.evidence.n == 128 for c in clear)
    hopeless = three_classes(0.34, 0.33).predict(numbered(5), n=100_000, stop=True)
    assert all(c.abstained and c.evidence.n < 2000 for c in hopeless)


def test_predictions_that_stop_are_the_same_in_any_company():
    g = three_classes(0.6, 0.3)
    together = [c.evidence for c in g.predict(numbered(6), n=3000, stop=True)]
    assert together == [g.predict(numbered(6)[i : i + 1], n=3000, stop=True)[0].evidence for i in range(6)]
    assert len({e.n for e in together}) > 1


def test_predictions_that_stop_have_votes_of_their_own():
    """With certify's votes they would confirm nothing."""
    g = SmoothedClassifier(lambda y: (y[:, 0] > 0.02).long(), Gaussian(1.0), num_classes=2)
    x = torch.zeros(1, 4)
    (p,) = g.predict(x, n=1024, stop=True)
    (fixed,) = g.predict(x, n=p.evidence.n)
    assert p.evidence.counts == fixed.evidence.counts  # the stream of every prediction
    (c,) = g.certify(x, n=p.evidence.n)
    assert c.evidence.counts != p.evidence.counts


def test_a_rule_of_a_missing_package_names_it():
    with pytest.raises(InvalidInput, match=r"patient.*of the package toy-parts, which is not installed"):
        parse_stop("patient(votes=150)", "toy-parts")
    with pytest.raises(InvalidInput, match="packages add others"):
        parse_stop("patient(votes=150)")


# --- several norms in one pass ---


@pytest.mark.parametrize("bound", ("binary", "anytime"))
def test_radii_in_several_norms_are_decided_by_the_same_votes(bound):
    """A linear classifier at a known distance under Σ = diag(1, 1/2): the ℓ2 and ℓ∞ radii that one pass decides."""
    g = SmoothedClassifier(
        lambda y: (y[:, 0] > 0).long(), Gaussian(1.0), Fixed(torch.tensor([1.0, 0.5])), num_classes=2
    )
    x = torch.tensor([[1.2, 0.0]])
    (alone,) = g.certify(x, n=20_000, stop=0.3, bound=bound)
    (both,) = g.certify(x, n=20_000, stop="0.3,linf:0.35", bound=bound)
    assert both.evidence.stop == "0.3,linf:0.35" and both.radius >= 0.3
    assert both.region.inscribed_radius(math.inf) >= 0.35 > alone.region.inscribed_radius(math.inf)
    assert both.evidence.n > alone.evidence.n
    (out_of_reach,) = g.certify(x, n=20_000, stop="l2:0.3,linf:0.9", bound=bound)  # given up; the other is not lost
    assert out_of_reach.evidence.stop == "0.3,linf:0.9" and out_of_reach.radius >= 0.3
    assert verify(both, g, x, n=5000).stands


def test_radii_in_several_norms_are_read_back_and_refused_where_they_mean_nothing():
    rule = parse_stop(" 1.0, linf:0.03 ,0.5,l1:2")
    assert rule == AtRadii((0.5, 1.0), ((1, 2.0), (math.inf, 0.03))) and parse_stop(str(rule)) == rule
    assert parse_stop(["linf:0.1", 0.5]) == AtRadii((0.5,), ((math.inf, 0.1),))
    for wrong in ("l3:0.5", "linf:-1", "linf:", "0.5,x:1"):
        with pytest.raises(InvalidInput, match="stop takes"):
            parse_stop(wrong)
    g = SmoothedClassifier(lambda y: (y[:, 0] > 0).long(), Laplace(1.0), num_classes=2)
    with pytest.raises(UnsupportedNorm, match="ℓ∞"):
        g.certify(torch.ones(1, 2), n=200, norm=1, stop="0.1,linf:0.1")
    with pytest.raises(InvalidInput, match="leave the norms out"):
        g.certify(torch.ones(1, 2), n=200, norm=1, stop="0.1,linf:0.1", budget=1.0)
