"""Rules about radii: the exact error of their bound, how near they come to the limit, and that nothing else matters to them."""

import importlib.util
import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from ucan import Certificate, Gaussian, InvalidInput, SmoothedClassifier
from ucan.betting import Bettor, votes_at_least
from ucan.bounds import lower_bound
from ucan.certificate import from_dict, save_json
from ucan.choices import BOUNDS
from ucan.giving_up import misses_left
from ucan.named_bounds import AT_THE_CAP, BY_NAME, Ballot, Sequential, bound_named, ladder
from ucan.replay import replay
from ucan.sequential import Selecting
from ucan.stopping import AtRadii, Case, Radius
from ucan.verify import verify

LAW = Gaussian(1.0)
RADIUS = Radius(LAW.radius, LAW.probability)
CHOSE = ((0, 0), (8, 8), (30, 40), (100, 100), (60, 100))


def checker():
    path = Path(__file__).parents[1] / "checker" / "check_certificate.py"
    spec = importlib.util.spec_from_file_location("check_certificate", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


CHECKER = checker()


def ballot(hits, n, alpha=0.001, cap=1000, chose=(8, 8), thresholds=(0.69,)):
    return Ballot(hits, n - hits, n, alpha, False, cap, chose, thresholds)


def responsible(p, thresholds):
    """Where the bettor stands who tests this p."""
    return next(stand for stand, end in ladder(thresholds) if p <= end)


def outcome_of(p, cap, rejects):
    """P(rejected) and the mean number of votes until then, or the cap: exact, by dynamic programming."""
    alive, first, found, votes = np.ones(1), 0, 0.0, 0.0
    for n in range(1, cap + 1):
        alive = np.concatenate([alive * (1 - p), [0.0]]) + np.concatenate([[0.0], alive * p])
        k = first + np.arange(len(alive))
        out = rejects(k, n) | (alive < 1e-20)  # what is too improbable to follow counts as rejected
        found, votes = found + alive[out].sum(), votes + n * alive[out].sum()
        alive[out] = 0.0
        kept = np.flatnonzero(alive)
        if len(kept) == 0:
            return found, votes
        first, alive = first + kept[0], alive[kept[0] : kept[-1] + 1]
    return found, votes + cap * alive.sum()


def rejects(p, alpha, cap, chose, thresholds):
    """The test of p: its bettor after every vote, Clopper–Pearson at the cap."""
    bettor, goal = Bettor.against(responsible(p, thresholds), cap, alpha, chose), Sequential.goal(alpha)

    def test(k, n):
        out = bettor.log_wealth(k, n - k, p) >= goal
        return out | (stats.binom.sf(k - 1, n, p) <= AT_THE_CAP * alpha) if n == cap else out

    return test


@pytest.mark.parametrize("thresholds", [(0.69,), (0.5, 0.69, 0.84), (0.977,)], ids=str)
@pytest.mark.parametrize("chose", CHOSE)
@pytest.mark.parametrize("alpha", (0.05, 0.001))
def test_no_true_probability_is_rejected_more_often_than_alpha(thresholds, chose, alpha):
    """Looking after every one of the votes, and once more at the cap: whatever the truth, and whoever is responsible for it."""
    cap = 600
    for p in (0.3, 0.5, 0.6, 0.69, 0.75, 0.84, 0.977, 0.99):
        error, _ = outcome_of(p, cap, rejects(p, alpha, cap, chose, thresholds))
        assert error <= alpha
        if p in (0.5, *thresholds):  # and no bettor who never bets
            assert error > alpha / 30


@pytest.mark.parametrize("p0, p", [(0.6915, 0.9), (0.6915, 0.999), (0.8413, 0.95), (0.8413, 0.999), (0.9772, 0.9999)])
def test_it_takes_few_votes_more_than_the_limit(p0, p):
    limit, cap = votes_at_least(p, p0, 0.001), 3000
    chose = (round(30 * p), 30)
    found, votes = outcome_of(p, cap, rejects(p0, 0.001, cap, chose, (p0,)))
    assert found > 0.999 and limit <= votes * 1.05
    assert votes <= max(1.45 * limit, limit + 50)


def test_nothing_is_lost_at_the_cap_beside_a_fixed_number_of_votes():
    """Near what the cap can just certify: Clopper–Pearson with all of α certifies a few more, by a share of its spread."""
    cap, p0, alpha = 2000, 0.84, 0.001
    spread = math.sqrt(p0 * (1 - p0) / cap)
    for z in (2.0, 3.0, 4.0, 5.0):
        p = p0 + z * spread
        found, _ = outcome_of(p, cap, rejects(p0, alpha, cap, (8, 8), (p0,)))
        fixed = stats.binom.sf(stats.binom.isf(alpha, cap, p0), cap, p - 0.6 * spread)
        assert found >= fixed


@given(
    n=st.integers(1, 3000),
    share=st.floats(0, 1),
    alpha=st.sampled_from((0.05, 1e-3, 1e-6)),
    chose=st.sampled_from(CHOSE),
    thresholds=st.sampled_from([(0.5,), (0.69,), (0.55, 0.6), (0.69, 0.84, 0.977), (0.999,)]),
    at_cap=st.booleans(),
)
def test_the_bound_is_the_end_of_what_is_rejected_and_the_checker_finds_the_same(
    n, share, alpha, chose, thresholds, at_cap
):
    k, cap = round(share * n), n if at_cap else 3 * n
    votes = Ballot(k, n - k, n, alpha, False, cap, chose, thresholds)
    found, other = bound_named("sequential").probabilities(votes)
    assert other is None and 0 <= found <= k / n
    assert found == pytest.approx(CHECKER.at_least_sequential(k, n, cap, alpha, chose, list(thresholds)), abs=1e-9)
    for p in np.linspace(0.001, 0.999, 83):
        by_betting = Bettor.against(responsible(p, thresholds), cap, alpha, chose).log_wealth(k, n - k, p)
        out = by_betting >= Sequential.goal(alpha) or (at_cap and lower_bound(k, n, AT_THE_CAP * alpha) > p)
        assert out or p >= found - 1e-12  # nothing below the bound is left
    more, _ = bound_named("sequential").probabilities(replace(votes, hits=min(n, k + 1)))
    assert more >= found


def test_wealth_starts_at_one_is_a_martingale_and_falls_as_p_rises():
    for chose in CHOSE:
        bettor = Bettor.against(0.7, 10_000, 0.001, chose)
        assert np.exp(bettor.log_shares).sum() == pytest.approx(1.0) and (bettor.q > 0.7).all()
        k, n = np.arange(60, 101), 100
        now, hit, miss = (np.exp(bettor.log_wealth(a, b)) for a, b in ((k, n - k), (k + 1, n - k), (k, n - k + 1)))
        assert 0.7 * hit + 0.3 * miss == pytest.approx(now, rel=1e-9)
        assert 0.65 * hit + 0.35 * miss == pytest.approx(now * (0.65 * hit + 0.35 * miss) / now)
        assert (0.65 * hit + 0.35 * miss <= now * (1 + 1e-12)).all()  # below p0 it can only lose
        falling = [float(bettor.log_wealth(90, 10, p)) for p in (0.1, 0.5, 0.7, 0.75, 0.8, 0.85, 0.89)]
        assert falling == sorted(falling, reverse=True)


def test_the_limit_is_walds():
    assert votes_at_least(1.0, 0.5, 0.001) == pytest.approx(math.log(1000) / math.log(2))
    assert votes_at_least(0.5, 0.5, 0.001) == votes_at_least(0.4, 0.5, 0.001) == math.inf


@pytest.mark.parametrize("radii", [(0.5,), (0.0, 0.5, 1.0), (0.25, 2.0), (5.0,)], ids=str)
@pytest.mark.parametrize("p", (0.4, 0.6, 0.75, 0.95, 1.0))
def test_how_votes_are_cut_into_pieces_does_not_matter(radii, p):
    draws, rule = np.random.default_rng(0).random(2000) < p, AtRadii(radii)

    def end(pieces):
        watch, hits, drawn = rule.watch(Case(2000, 0.001, RADIUS, 128, (8, 8))), 0, 0
        for length in pieces:
            votes = draws[drawn : drawn + length]
            taken = watch.look(hits, drawn, votes)
            hits, drawn = hits + int(votes[:taken].sum()), drawn + (len(votes) if taken is None else taken)
            if taken is not None or drawn >= 2000:
                return hits, drawn
        raise AssertionError

    whole = end([2000])
    assert end([1] * 2000) == end([7] * 300) == end([128] * 16) == end([5, 300, 1, 2000]) == whole
    hits, drawn = whole
    if (
        drawn < 2000 and drawn % 128
    ):  # inside a block: what was not given up is certified, and one vote fewer would not do
        votes = Ballot(hits, drawn - hits, drawn, 0.001, False, 2000, (8, 8), rule.thresholds(RADIUS))
        found, _ = bound_named("sequential").probabilities(votes)
        before, _ = bound_named("sequential").probabilities(replace(votes, hits=hits - 1, n=drawn - 1))
        assert any(before < threshold <= found for threshold in votes.thresholds)


def test_the_misses_left_are_the_most_that_certify_at_the_cap():
    for p0, cap in ((0.5, 300), (0.84, 300), (0.99, 300), (0.99, 1000)):
        left = misses_left(p0, cap, 0.001, (8, 8))
        enough = [
            bound_named("sequential").probabilities(ballot(cap - m, cap, cap=cap, thresholds=(p0,)))[0] >= p0
            for m in range(60)
        ]
        assert left == sum(enough) - 1 or left >= 59


# --- the votes that choose the class ---


def test_a_class_that_leads_clearly_is_chosen_early():
    sure = Selecting(None, 100, 8, np.zeros(4, dtype=np.int64))
    assert sure.needed() == 8 and sure.add(np.ones(50, dtype=np.int64)) and sure.drawn == 8
    torn = Selecting(None, 20, 8, np.zeros(4, dtype=np.int64))
    assert not torn.add(np.array([0, 1] * 9)) and torn.needed() == 2
    assert torn.add(np.array([0, 1])) and torn.drawn == 20
    invalid = Selecting(None, 30, 8, np.zeros(3, dtype=np.int64))
    assert invalid.add(np.full(30, 2)) and invalid.tally.tolist() == [0, 0, 30]  # votes for no class lead nowhere


@pytest.mark.parametrize("r, lead", [(0.0, 8), (1.0, 10), (2.0, 76), (3.0, 100)])
def test_the_lead_grows_with_what_a_sure_class_needs(r, lead):
    assert AtRadii((r,)).lead(Case(100_000, 0.001, RADIUS), 100) == lead


# --- the whole way ---


def threshold_classifier(level=-1.3):
    return SmoothedClassifier(lambda y: (y[:, 0] > level).long(), LAW, num_classes=2)


@pytest.mark.parametrize("stop", ("0.5", "0.5,1.0", "3.0"))
def test_evidence_goes_to_json_and_back_through_verify_replay_and_checker(stop, tmp_path):
    g, x = threshold_classifier(), torch.zeros(1, 3)
    (c,) = g.certify(x, n=20_000, stop=stop)
    record = c.to_dict()
    assert c.evidence.bound == "sequential" and record["evidence"]["thresholds"] == list(c.evidence.thresholds)
    again = from_dict(record)
    assert again.evidence == c.evidence
    verdict = verify(again, g, x, n=2000)
    assert verdict.stands and any(check.name == "thresholds" for check in verdict.checks)
    assert replay(again, g, x).outcome == "same"
    save_json(c, tmp_path / "c.json")
    assert CHECKER.main([str(tmp_path / "c.json")]) == 0


def test_thresholds_that_are_not_those_of_the_rule_are_found():
    g, x = threshold_classifier(), torch.zeros(1, 3)
    (c,) = g.certify(x, n=20_000, stop="0.5")
    moved = replace(c, evidence=replace(c.evidence, thresholds=(0.8,)))
    assert next(check.name for check in verify(moved, g, x, n=500).checks if not check.passed) == "thresholds"
    for wrong in ((0.8, 0.7), (1.0,), (0.7, 0.7)):
        with pytest.raises(InvalidInput, match="thresholds"):
            replace(c.evidence, thresholds=wrong)


def test_a_claim_above_the_bound_is_found():
    g, x = threshold_classifier(), torch.zeros(1, 3)
    (c,) = g.certify(x, n=20_000, stop="0.5")
    assert isinstance(c, Certificate)
    better = replace(c, p_lower=c.p_lower + 1e-3)
    assert not verify(better, g, x, n=500).stands


def test_a_majority_is_certified_also_where_no_radius_is_reached():
    g, x = threshold_classifier(-0.3), torch.zeros(1, 3)  # p = 0.618: r = 0.3
    (c,) = g.certify(x, n=100_000, stop="1.0,2.0")
    assert c.evidence.n < 20_000  # given up, but
    (again,) = g.certify(x, n=100_000, stop="0.2,1.0,2.0")
    assert again.radius >= 0.2


def test_names_of_bounds_have_objects_and_texts():
    assert set(BY_NAME) == {*BOUNDS, "sequential", "paired", "joint"}
    for name, bound in BY_NAME.items():
        assert bound.name == name and bound_named(name) is bound
    with pytest.raises(InvalidInput, match="bound must be"):
        bound_named("ternary")
    with pytest.raises(InvalidInput, match="bound must be"):
        threshold_classifier().certify(torch.zeros(1, 3), bound="sequential")
