"""Bounds: Clopper–Pearson against other people's and in exact coverage; tests in exact error."""

import itertools
import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from ucan import InvalidInput
from ucan.bounds import (
    INVERTED,
    at_most_p_value,
    check_alpha,
    lower_bound,
    majority_p_value,
    net_loss_bound,
    randomised_lower_bound,
    top_two_p_value,
    uniform_of,
    upper_bound,
)
from ucan.plan import PredictPlan

COUNTS = [(0, 1), (1, 1), (1, 2), (7, 10), (10, 10), (51, 100), (99, 100), (999, 1000), (90_000, 100_000)]
COUNTS += [(99_999, 100_000), (100_000, 100_000), (1, 100_000), (50_001, 100_000), (999_990, 1_000_000)]


@pytest.mark.parametrize("alpha", (0.5, 0.05, 0.001, 1e-6))
@pytest.mark.parametrize(("k", "n"), COUNTS)
def test_bounds_are_scipys_one_sided_exact_interval(k, n, alpha):
    below = stats.binomtest(k, n, alternative="greater").proportion_ci(1 - alpha, "exact").low
    above = stats.binomtest(k, n, alternative="less").proportion_ci(1 - alpha, "exact").high
    assert lower_bound(k, n, alpha) == pytest.approx(below, rel=1e-9, abs=1e-12)
    assert upper_bound(k, n, alpha) == pytest.approx(above, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("k", "n"), COUNTS)
def test_tests_are_scipys(k, n):
    assert majority_p_value(k, n) == pytest.approx(stats.binom.sf(k - 1, n, 0.5), rel=1e-9)
    assert top_two_p_value(k, n - k) == pytest.approx(stats.binomtest(k, n, 0.5).pvalue, rel=1e-9)
    for p in (0.0, 1e-3, 0.5, 0.9, 0.99993, 1.0):
        assert at_most_p_value(k, n, p) == pytest.approx(stats.binom.cdf(k, n, p), rel=1e-9, abs=1e-300)


@pytest.mark.parametrize("alpha", (0.05, 0.001, 1e-6))
@pytest.mark.parametrize(("k", "n"), [(1, 1), (1, 2), (7, 10), (10, 10), (99, 100), (999, 1000), (600, 1000)])
def test_at_the_lower_bound_so_many_hits_have_probability_alpha(k, n, alpha):
    with mp.workdps(50):
        p, q = mp.mpf(lower_bound(k, n, alpha)), 1 - mp.mpf(lower_bound(k, n, alpha))
        tail = sum(mp.binomial(n, j) * p**j * q ** (n - j) for j in range(k, n + 1))
        assert abs(tail / mp.mpf(alpha) - 1) < 1e-9


@pytest.mark.parametrize(
    ("n", "p", "gaussian"),
    [(10**3, None, 2.463), (10**4, None, 3.199), (10**5, 0.99993092, 3.8115), (10**6, None, 4.347)],
)
def test_caps_are_the_published_ones(n, p, gaussian):
    bound = lower_bound(n, n, 0.001)
    assert stats.norm.ppf(bound) == pytest.approx(gaussian, abs=6e-4)
    if p is not None:
        assert bound == pytest.approx(p, abs=5e-9)


@pytest.mark.parametrize("alpha", (0.05, 0.001))
@pytest.mark.parametrize("n", (10, 100, 1000))
def test_lower_bound_covers_exactly_as_promised(n, alpha):
    """Not simulated but summed: P(bound > p), over a grid of p and at its worst, which lies just below each bound."""
    bounds = np.array([lower_bound(k, n, alpha) for k in range(n + 1)])
    assert (np.diff(bounds) > 0).all()
    worst = np.nextafter(bounds[1:], 0)
    for p in np.concatenate([np.linspace(0.001, 0.999, 499), worst]):
        errs = stats.binom.pmf(np.arange(n + 1)[bounds > p], n, p).sum()
        assert errs <= alpha * (1 + 1e-7), f"p = {p}"
    sharp = stats.binom.sf(np.arange(n), n, worst)
    assert sharp == pytest.approx(alpha, rel=1e-6)  # and no looser than promised


@pytest.mark.parametrize("n", (10, 100, 1000))
def test_simulated_coverage_agrees(n):
    alpha, runs = 0.05, 20_000
    rng = np.random.default_rng(n)
    bounds = np.array([lower_bound(k, n, alpha) for k in range(n + 1)])
    for p in (0.3, 0.6, 0.9, 0.99):
        misses = (bounds[rng.binomial(n, p, runs)] > p).mean()
        assert misses <= alpha + 4 * math.sqrt(alpha * (1 - alpha) / runs)


def test_a_normal_approximation_would_not_cover():
    n, alpha, p = 100, 0.001, 0.99
    k = np.arange(n + 1)
    share = k / n
    naive = share - stats.norm.isf(alpha) * np.sqrt(share * (1 - share) / n)
    assert stats.binom.pmf(k[naive > p], n, p).sum() > 10 * alpha


@pytest.mark.parametrize(
    "k, n", [(9_999_995, 10**7), (99_995, 10**5), (69, 100), (64, 100), (9, 10), (2, 10), (5, 100)]
)
@pytest.mark.parametrize("alpha", [1e-200, 1e-250])
def test_at_the_smallest_levels_the_tail_is_still_alpha(k, n, alpha):
    """Against a sum of 50 digits; scipy's inverse is NaN for some. Below, tails underflow, and α is refused."""
    p = mp.mpf(lower_bound(k, n, alpha))
    with mp.workdps(50):
        tail = mp.fsum(mp.binomial(n, j) * p**j * (1 - p) ** (n - j) for j in range(k, n + 1))
        assert 0.99 * alpha <= tail <= (1 + 1e-5) * alpha
    with pytest.raises(InvalidInput, match="at least 1e-250"):
        lower_bound(k, n, 1e-300)


def test_bounds_at_the_ends():
    assert lower_bound(0, 100, 0.001) == 0.0
    assert upper_bound(100, 100, 0.001) == 1.0
    assert lower_bound(100, 100, 0.001) == pytest.approx(0.001**0.01, rel=1e-14)
    assert upper_bound(0, 100, 0.001) == pytest.approx(1 - 0.001**0.01, rel=1e-12)
    assert lower_bound(1, 1, 0.001) == pytest.approx(0.001, rel=1e-14)


@given(n=st.integers(1, 5000), share=st.floats(0, 1), alpha=st.floats(1e-9, 0.5))
def test_bounds_enclose_the_share_and_mirror_each_other(n, share, alpha):
    k = round(share * n)
    low, high = lower_bound(k, n, alpha), upper_bound(k, n, alpha)
    assert 0 <= low <= k / n <= high <= 1
    assert low == pytest.approx(1 - upper_bound(n - k, n, alpha), abs=1e-15)
    assert lower_bound(k, n, alpha / 2) <= low


INVALID = {
    "n zero": lambda: lower_bound(0, 0, 0.001),
    "k above n": lambda: lower_bound(11, 10, 0.001),
    "k negative": lambda: lower_bound(-1, 10, 0.001),
    "upper k above n": lambda: upper_bound(11, 10, 0.001),
    "majority above n": lambda: majority_p_value(11, 10),
    "majority of nothing": lambda: majority_p_value(0, 0),
    "top two negative": lambda: top_two_p_value(5, -1),
    "at most above n": lambda: at_most_p_value(11, 10, 0.5),
    **{
        f"alpha {a!r}": (lambda a=a: check_alpha(a))
        for a in (0, 1, 0.0, 1.0, -0.1, 1.5, math.nan, math.inf, "0.1", None)
    },
    "lower alpha": lambda: lower_bound(5, 10, 1.0),
    "upper alpha": lambda: upper_bound(5, 10, 0.0),
}


@pytest.mark.parametrize("case", INVALID)
def test_invalid_arguments_are_refused(case):
    with pytest.raises(InvalidInput):
        INVALID[case]()


# --- the prediction tests ---


@pytest.mark.parametrize(("n_a", "n"), [(0, 1), (1, 1), (5, 10), (10, 10), (60, 100), (549, 1000), (550, 1000)])
def test_majority_p_value_is_the_upper_tail(n_a, n):
    exact = sum(math.comb(n, j) for j in range(n_a, n + 1)) / 2**n
    assert majority_p_value(n_a, n) == pytest.approx(exact, rel=1e-10)


@pytest.mark.parametrize("alpha", (0.499, 0.05, 0.001))
@pytest.mark.parametrize("n", (1, 3, 10, 100, 1000))
@pytest.mark.parametrize(
    "p", [(0.5, 0.5), (0.34, 0.33, 0.33), (0.12, 0.11, *[0.77 / 8] * 8), (0.501, 0.499), (0.41, 0.4, 0.19)], ids=str
)
def test_majority_test_errs_at_most_alpha_for_any_number_of_classes(p, n, alpha):
    """Exact: two classes cannot both have a majority, so the wrong ones' tails add up."""
    accepted = next((k for k in range(n + 1) if majority_p_value(k, n) <= alpha), n + 1)
    assert accepted > n / 2
    wrong = sum(stats.binom.sf(accepted - 1, n, q) for q in p[1:])
    assert wrong <= alpha


def test_majority_test_at_a_half_would_answer_by_one_vote():
    """Of ten classes the first vote is hardly ever for the best one, and its p-value is 1/2: such an α is refused."""
    assert majority_p_value(1, 1) == 0.5
    with pytest.raises(InvalidInput, match="below 1/2"):
        PredictPlan(n=1, alpha=0.5)
    assert PredictPlan(n=1, alpha=0.5, test="top-two").alpha == PredictPlan(n=1, alpha=0.5, stop=True).alpha == 0.5


def test_a_two_sided_test_against_half_would_be_wrong_a_third_of_the_time():
    """The published test, planted: with ten classes it always answers, and errs as theory.md says."""
    p = np.array([0.12, 0.11, *[0.77 / 8] * 8])
    votes = np.random.default_rng(0).multinomial(1000, p, size=4000)
    top, leaders = votes.max(1), votes.argmax(1)
    two_sided = {int(k): stats.binomtest(int(k), 1000, 0.5).pvalue for k in np.unique(top)}
    answers = np.array([two_sided[int(k)] <= 0.001 for k in top])
    assert answers.all()
    assert (leaders != 0).mean() == pytest.approx(0.34, abs=0.03)
    assert all(majority_p_value(int(k), 1000) > 0.001 for k in np.unique(top))


@pytest.mark.parametrize("alpha", (0.1, 0.01))
@pytest.mark.parametrize("p", [(0.34, 0.33, 0.33), (0.4, 0.39, 0.21), (0.501, 0.499, 0.0), (0.5, 0.3, 0.2)], ids=str)
def test_top_two_test_errs_at_most_alpha_without_a_majority(p, alpha):
    """Exact: every outcome of 40 votes over three classes, with its probability."""
    n, wrong, answered = 40, 0.0, 0.0
    for a, b in itertools.product(range(n + 1), repeat=2):
        if a + b > n:
            continue
        votes = (a, b, n - a - b)
        first, second = sorted(votes, reverse=True)[:2]
        if top_two_p_value(first, second) <= alpha:
            mass = stats.multinomial.pmf(votes, n, p)
            answered += mass
            wrong += mass * (votes.index(first) != 0)
    assert wrong <= alpha
    assert answered > wrong


@pytest.mark.parametrize(("n_a", "n_b"), [(10, 0), (10, 10), (30, 12), (1, 0), (0, 0), (600, 400)])
def test_top_two_p_value_is_the_two_sided_sign_test(n_a, n_b):
    n = n_a + n_b
    exact = min(1.0, 2 * sum(math.comb(n, j) for j in range(n_a, n + 1)) / 2**n)
    assert top_two_p_value(n_a, n_b) == pytest.approx(exact, rel=1e-10)


def test_top_two_answers_where_the_majority_test_cannot():
    assert majority_p_value(450, 1000) > 0.999
    assert top_two_p_value(450, 300) < 0.001


@pytest.mark.parametrize(("k", "n", "p"), [(0, 10, 0.5), (5, 10, 0.5), (10, 10, 0.9), (850, 1000, 0.9)])
def test_at_most_p_value_is_the_lower_tail(k, n, p):
    with mp.workdps(30):
        exact = sum(mp.binomial(n, j) * mp.mpf(p) ** j * (1 - mp.mpf(p)) ** (n - j) for j in range(k + 1))
    assert at_most_p_value(k, n, p) == pytest.approx(float(exact), rel=1e-9)


# --- the randomised bound ---


def share_rejecting(k, n, alpha, p):
    """The share of uniform numbers for which the bound is above p: it falls as they rise."""
    if randomised_lower_bound(k, n, alpha, 1.0) > p:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if randomised_lower_bound(k, n, alpha, middle) > p else (low, middle)
    return low


@pytest.mark.parametrize("alpha", (0.3, 0.05, 0.001))
@pytest.mark.parametrize(("n", "p"), [(1, 0.2), (1, 0.99), (7, 0.5), (12, 0.9), (30, 0.02), (30, 0.999)])
def test_the_randomised_bound_errs_with_probability_alpha_exactly(n, p, alpha):
    """Summed over all counts and integrated over the uniform number; Clopper–Pearson errs less often.

    Above 2^(−1/n), where only n votes of n could pass p, nothing is claimed that they do not show.
    """
    error = sum(stats.binom.pmf(k, n, p) * share_rejecting(k, n, alpha, p) for k in range(n + 1))
    usual = sum(stats.binom.pmf(k, n, p) for k in range(n + 1) if lower_bound(k, n, alpha) > p)
    if p < 2 ** (-1 / n):
        assert error == pytest.approx(alpha, rel=1e-8)
        assert usual < error
    else:
        assert usual <= error < alpha


@pytest.mark.parametrize("n", (1, 100, 100_000))
def test_votes_that_all_agree_never_claim_a_p_of_nearly_one(n):
    """A uniform number of at most α would otherwise: a radius of 8σ from a single vote, for who looks at a thousand seeds."""
    best = min(uniform_of(f"{key:064x}") for key in range(20_000))
    assert best < 0.001
    assert randomised_lower_bound(n, n, 0.001, best) == pytest.approx(0.5 ** (1 / n), rel=1e-12)
    assert randomised_lower_bound(n, n, 0.7, best) == lower_bound(n, n, 0.7)


@pytest.mark.parametrize("uniform", (1e-4, 0.03, 0.5, 0.999, 1.0))
@pytest.mark.parametrize(("k", "n"), COUNTS)
def test_the_randomised_bound_lies_between_the_bounds_of_k_and_of_one_more(k, n, uniform):
    found = randomised_lower_bound(k, n, 0.001, uniform)
    assert lower_bound(k, n, 0.001) <= found < 1
    if k < n:
        assert found <= lower_bound(k + 1, n, 0.001)
        level = stats.binom.sf(k, n, found) + uniform * stats.binom.pmf(k, n, found)
        assert level == pytest.approx(0.001, rel=1e-6) or (found in (0.0, lower_bound(k + 1, n, 0.001)))
    elif uniform > 0.002:
        assert found == pytest.approx((0.001 / uniform) ** (1 / n), rel=1e-12)


def test_a_randomised_bound_needs_a_number_between_0_and_1():
    for uniform in (0.0, 1.5, math.nan):
        with pytest.raises(InvalidInput, match="uniform number"):
            randomised_lower_bound(5, 10, 0.05, uniform)


def test_uniform_numbers_are_uniform_and_follow_from_the_key():
    found = [uniform_of(f"{key:064x}") for key in range(2000)]
    assert stats.kstest(found, "uniform").pvalue > 0.01
    assert uniform_of("a") == uniform_of("a") != uniform_of("b")


# --- losses less gains ---


@pytest.mark.parametrize("alpha", (0.2, 0.01))
def test_the_net_loss_exceeds_its_bound_with_probability_alpha_at_most(alpha):
    """Summed over all counts of lost, gained and other votes."""
    n = 30
    counts = [(lost, gained) for lost in range(n + 1) for gained in range(n + 1 - lost)]
    bounds = np.array([net_loss_bound(lost, gained, n, alpha) for lost, gained in counts])
    outcomes = np.array([(lost, gained, n - lost - gained) for lost, gained in counts])
    for loses, gains in ((0.3, 0.3), (0.1, 0.0), (0.05, 0.02), (0.6, 0.1), (0.02, 0.2), (1.0, 0.0)):
        chances = stats.multinomial.pmf(outcomes, n, (loses, gains, 1 - loses - gains))
        assert chances.sum() == pytest.approx(1)
        assert chances[bounds < loses - gains].sum() <= alpha, (loses, gains)


def test_the_net_loss_is_small_where_gains_make_up_for_it():
    assert net_loss_bound(26, 26, 10_000, 0.00025) < 0.75 * upper_bound(26, 10_000, 0.0005)
    assert net_loss_bound(0, 26, 10_000, 0.00025) == 0.0
    assert net_loss_bound(10, 10, 10_000, 0.001) < net_loss_bound(11, 10, 10_000, 0.001)
    assert net_loss_bound(10, 11, 10_000, 0.001) < net_loss_bound(10, 10, 10_000, 0.001)
    assert net_loss_bound(1, 0, 1, 0.01) == 1.0
    with pytest.raises(InvalidInput):
        net_loss_bound(6, 5, 10, 0.01)


@pytest.mark.parametrize("alpha", [1e-3, 0.5, 1 - 2**-53])
@pytest.mark.parametrize("n", [1, 1000, 10**9, 10**12, 10**15])
def test_where_all_votes_agree_no_rounding_raises_the_bound(n, alpha):
    for p in (lower_bound(n, n, alpha), randomised_lower_bound(n, n, alpha, 1.0)):
        with mp.workdps(50):
            assert 0 < p < 1 and mp.mpf(p) ** n <= mp.mpf(alpha) * mp.mpf(INVERTED)
