"""One test of old votes and votes in pairs: exact errors by enumeration, and what it keeps."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from tests.test_recertify import CHECKER

from ucan.bounds import lower_bound, upper_bound
from ucan.named_bounds import AFTER_ABSTENTION, CHANGED, Ballot, bound_named
from ucan.pairs import ROUNDING, estimate_tails, joint_lower_bound, net_changes

ROWS = ((0.54, 26), (0.80, 61), (0.99, 26), (1.30, 10), (1.45, 4), (1.84, 25), (2.00, 3), (2.23, 1), (2.36, 1))


def ballot(hits, n, lost, gained, m, alpha, before="binary"):
    return Ballot(0, 0, m, alpha, before=(before, Ballot(hits, 0, n, alpha)), lost=lost, gained=gained)


def joint(*votes, **more):
    return bound_named("joint").probabilities(ballot(*votes, **more))[0]


def changes(lost, gained, m):
    """Probabilities of all numbers of votes (lost, gained) in m draws."""
    down, up = np.meshgrid(np.arange(m + 1), np.arange(m + 1), indexing="ij")
    inside = down + up <= m
    votes = np.stack([down, up, np.where(inside, m - down - up, 0)], -1)
    chances = stats.multinomial.pmf(np.where(inside[..., None], votes, [m, 0, 0]), m, [lost, gained, 1 - lost - gained])
    return down, up, np.where(inside, chances, 0.0)


@pytest.mark.parametrize(("m", "changed", "d"), ((12, 0.4, 0.1), (12, 0.4, -0.4), (40, 1.0, 0.3), (7, 0.01, 0.01)))
def test_net_changes_are_those_of_a_trinomial(m, changed, d):
    first, chances = net_changes(np.array([d]), m, changed)
    down, up, exact = changes((changed + d) / 2, (changed - d) / 2, m)
    values = first[0] + np.arange(chances.shape[1])
    for value, chance in zip(values, chances[0], strict=True):
        assert 0 <= chance - exact[down - up == value].sum() <= 2 * ROUNDING


def test_many_net_changes_have_their_mean_and_variance_and_their_rounding_is_covered():
    d = np.array([-0.007, 0.0, 0.003])
    first, chances = net_changes(d, 10_000, 0.008)
    values = first[:, None] + np.arange(chances.shape[1])
    mean = (values * chances).sum(1)
    assert np.allclose(mean, 10_000 * d, atol=1e-6)
    assert np.allclose((values**2 * chances).sum(1) - mean**2, 10_000 * (0.008 - d**2), rtol=1e-7)
    gains = stats.binom.pmf(np.arange(400), 10_000, 0.004)  # by the votes gained, and those lost among the others
    for value in (-40, -3, 0, 17):
        g = np.arange(max(0, -value), 400)
        direct = (gains[g] * stats.binom.pmf(value + g, 10_000 - g, 0.004 / 0.996)).sum()
        assert 0 <= chances[1, int(value - first[1])] - direct <= 2 * ROUNDING


def test_the_rounding_of_ten_million_draws_is_covered():
    m, changed = 10_000_000, 1e-6
    first, chances = net_changes(np.array([0.0]), m, changed)
    with_changes, exact = math.exp(m * math.log1p(-changed)), 0.0
    for g in range(1, 60):  # as many are lost as gained
        exact += with_changes
        with_changes *= (m - 2 * g + 2) * (m - 2 * g + 1) / g**2 * (changed / 2 / (1 - changed)) ** 2
    assert 0 <= chances[0, int(-first[0])] - exact <= 2 * ROUNDING
    assert np.isfinite(net_changes(np.array([0.0, 0.5]), 11, 0.5)[1]).all()  # where the transform is 0


def test_where_nothing_reaches_the_estimate_there_is_no_warning_and_a_bound():
    assert 0.3961 < joint(26, 39, 1421, 1496, 5734, 0.000926) < 0.3963


def test_no_classifiers_below_p_reach_the_estimate_more_often_than_the_bound_says():
    n, m, rng = 17, 9, np.random.default_rng(0)
    for _ in range(60):
        hits, net = int(rng.integers(1, n + 1)), int(rng.integers(-2, 4))
        p, changed = rng.uniform(0.2, 0.95), rng.uniform(0.05, 0.5)
        most = estimate_tails(hits, n, net, m, p, changed).max()
        for _ in range(20):
            total = rng.uniform(0, changed)
            lost = total * rng.choice([0.0, 1.0, rng.uniform()])
            old = min(1.0, p + lost - (total - lost)) - rng.choice([0.0, 0.05])
            if old < 0:
                continue
            down, up, chances = changes(lost, total - lost, m)
            needed = np.ceil(hits + (down - up - net) * n / m - 1e-9)
            assert (chances * stats.binom.sf(needed - 1, n, old)).sum() <= most + 1e-12


def rejected(n, m, p, alpha):
    """For each number of votes lost, gained and hit, whether the test rejects p; that more hits do is not assumed."""
    found = np.zeros((m + 1, m + 1, n + 1), dtype=bool)
    for lost in range(m + 1):
        for gained in range(m + 1 - lost):
            changed = upper_bound(lost + gained, m, CHANGED * alpha)
            tails = (estimate_tails(hits, n, lost - gained, m, p, changed).max() for hits in range(n + 1))
            found[lost, gained] = [tail <= (1 - CHANGED) * alpha for tail in tails]
    return found


def truths(p):
    """Classifiers whose new p is this one: p_old, P(lost), P(gained)."""
    for gained in (0.0, 0.01, 0.05, 0.2, 0.5):
        for lost in (0.0, 0.01, 0.05, 0.1, 0.3, 0.5):
            old = p + lost - gained
            if gained <= 1 - old <= 1 and lost <= old:
                yield old, lost, gained


def exact_errors(n, m, p, alpha):
    """The largest probability, over truths, of a claim above p; and that of all ways together, by the docs' rule."""
    wrong, worst, ways = rejected(n, m, p, alpha), 0.0, 0.0
    sure, unsure = round(0.9 * n), round(0.6 * n)  # above and below, fresh votes are drawn
    fresh = {share: stats.binom.sf(_beyond(m, p, share * alpha) - 1, m, p) for share in (1.0, 1 / 9)}
    for old, lost, gained in truths(p):
        _, _, chances = changes(lost, gained, m)
        together = chances[..., None] * stats.binom.pmf(np.arange(n + 1), n, old) * wrong
        worst = max(worst, float(together.sum()))
        apart = fresh[1.0] * stats.binom.sf(sure, n, old) + fresh[1 / 9] * stats.binom.cdf(unsure - 1, n, old)
        ways = max(ways, float(together[..., unsure : sure + 1].sum()) + apart)
    return worst, ways


def _beyond(m, p, alpha):
    """The fewest of m fresh hits that claim more than p."""
    return next((k for k in range(m + 1) if lower_bound(k, m, alpha) > p), m + 1)


@pytest.mark.parametrize(
    ("n", "m", "ps", "alpha"),
    (
        (12, 5, (0.5, 0.8), 0.1),
        (12, 5, (0.3, 0.8), 0.3),
        pytest.param(25, 12, (0.1, 0.12, 0.5, 0.8), 0.3, marks=pytest.mark.slow),
        pytest.param(30, 20, (0.5, 0.8, 0.93), 0.1, marks=pytest.mark.slow),
    ),
)
def test_the_exact_error_is_at_most_alpha_and_so_is_that_of_all_ways_together(n, m, ps, alpha):
    alpha *= 1 - AFTER_ABSTENTION  # the rest is for inputs on which the old classifier abstained
    found = [exact_errors(n, m, p, alpha) for p in ps]
    assert max(worst for worst, _ in found) <= alpha
    assert max(ways for _, ways in found) <= alpha / (1 - AFTER_ABSTENTION)
    assert max(worst for worst, _ in found) > alpha / 5  # or else it would be of no use


def most_often(n, m, hits, net, p, changed):
    """The largest probability with which classifiers on a grid, whose new p is this one, reach an estimate."""
    found = 0.0
    for down, up in np.ndindex(21, 21):
        lost, gained = changed * down / 20, changed * up / 20
        old = p + lost - gained
        if lost + gained > changed or not lost <= old <= 1 - gained:
            continue
        down, up, chances = changes(lost, gained, m)
        needed = np.ceil(hits + (down - up - net) * n / m - 1e-9)
        found = max(found, float((chances * stats.binom.sf(needed - 1, n, old)).sum()))
    return found


@pytest.mark.parametrize("alpha", (0.2, 0.3))
def test_where_one_more_hit_lowers_the_computed_bound_the_test_itself_still_rejects_what_was_rejected(alpha):
    n, m, lost, gained = 25, 12, 9, 3
    fewer, more = (joint(hits, n, lost, gained, m, alpha) for hits in (24, 25))
    assert 0 < more < fewer < 0.5  # so no majority is claimed by either
    level = (1 - AFTER_ABSTENTION) * alpha
    changed = upper_bound(lost + gained, m, CHANGED * level)
    reached = [most_often(n, m, hits, lost - gained, fewer, changed) for hits in (24, 25)]
    assert reached[1] < reached[0] <= (1 - CHANGED) * level


def test_more_hits_and_gains_raise_the_bound_and_losses_lower_it():
    start = joint(850, 1000, 4, 3, 200, 0.01)
    assert joint(851, 1000, 4, 3, 200, 0.01) > start > joint(850, 1000, 5, 3, 200, 0.01)
    assert joint(850, 1000, 4, 3, 200, 0.02) > start > joint(850, 1000, 4, 4, 200, 0.001)
    assert joint(850, 1000, 4, 3, 200, 0.01, before="two-class") == start


def test_at_the_ends_it_is_a_probability_and_other_votes_allow_no_claim():
    for votes in ((0, 30, 0, 0, 20), (30, 30, 0, 0, 20), (30, 30, 20, 0, 20), (30, 30, 0, 20, 20), (1, 1, 0, 0, 1)):
        for alpha in (1e-7, 0.05, 0.9):
            assert 0 <= joint(*votes, alpha) < 1
    assert joint(950, 1000, 0, 0, 200, 0.01, before="sequential") == 0
    assert joint_lower_bound(0, 30, 0, 0, 20, 0.05, 0.2) == 0
    assert bound_named("joint").probabilities(ballot(950, 1000, 2, None, 200, 0.01))[0] == 0


@pytest.mark.parametrize(
    "votes", ((700, 1000, 3, 8, 370, 0.001), (28, 30, 1, 0, 20, 0.05), (90_000, 100_000, 9, 12, 10_000, 0.001))
)
def test_the_checker_computes_the_same(votes):
    hits, n, lost, gained, m, alpha = votes
    assert math.isclose(
        joint(*votes), CHECKER.at_least_joint(hits, n, lost, gained, m, (1 - AFTER_ABSTENTION) * alpha), rel_tol=1e-8
    )


@pytest.mark.parametrize(("radius", "lost"), ROWS)
def test_98_percent_of_the_radius_are_kept_at_what_bf16_was_seen_to_lose_if_as_much_is_gained(radius, lost):
    n, m, alpha, ppf = 100_000, 10_000, 0.001, stats.norm.ppf
    hits = next(k for k in range(int(n * stats.norm.cdf(radius)), n) if ppf(lower_bound(k, n, alpha)) >= radius)
    kept = ppf(joint(hits, n, lost, lost, m, alpha)) / ppf(lower_bound(hits, n, alpha))
    assert 0.984 < kept < 1
