"""The first k labels and confidence against enumeration, many labels and pixels by simulation, and what all answers share."""

import itertools
import json
import math

import numpy as np
import pytest
import torch
from scipy import stats

import ucan
from ucan.bounds import holm, lower_bound, lower_bounds, majority_p_value, majority_p_values
from ucan.certificate import from_dict as class_from_dict
from ucan.errors import DoesNotFollow, InvalidInput, ModelError
from ucan.questions.records import from_dict
from ucan.questions.shift import Shift
from ucan.questions.topk import stays_among
from ucan.sizes import Sizes

CELLS = 10  # a uniform law on one axis, cut into so many cells: a move by one cell loses one and gains one


def uniform_shift():
    """T_r for uniform noise on one axis, where a move of r loses r/2 at most."""
    law, x = ucan.Uniform(1.0), torch.zeros(1, 1)
    return Shift.at(ucan.Isotropic().at(x), x, Sizes(law, None), 1)


def worst_ranks(counts, moved, k):
    """Whether class 0 stays among the first k for every way to lose and gain cells: brute force."""
    classes = len(counts)
    for lost in itertools.combinations_with_replacement(range(classes), moved):
        left = [count - lost.count(c) for c, count in enumerate(counts)]
        if min(left) < 0:
            continue
        for gained in itertools.combinations_with_replacement(range(classes), moved):
            now = [count + gained.count(c) for c, count in enumerate(left)]
            if sum(other >= now[0] for other in now[1:]) >= k:
                return False
    return True


def least_count(counts, moved):
    """The fewest cells that class 0 can come to: brute force."""
    return min(
        counts[0] - lost.count(0)
        for lost in itertools.combinations_with_replacement(range(len(counts)), moved)
        if all(count >= lost.count(c) for c, count in enumerate(counts))
    )


@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_first_k_against_every_assignment_of_classes_to_cells(k):
    """Sound in every case; and exact but for a cell, which the average over t rivals cannot see."""
    shift, exact, claimed = uniform_shift(), [], []
    splits = [
        c for c in itertools.product(range(CELLS + 1), repeat=4) if sum(c) == CELLS and c[0] and c[1] >= c[2] >= c[3]
    ]
    for counts in splits:
        p, others = counts[0] / CELLS, np.array(counts[1:]) / CELLS
        exact.append(max((m for m in range(CELLS) if worst_ranks(counts, m, k)), default=-1))
        holds = [m for m in range(CELLS) if stays_among(p, others, k, shift, 2 * m / CELLS + 1e-9)]
        claimed.append(max(holds, default=-1))
        assert holds == list(range(len(holds)))
    gap = np.array(exact) - np.array(claimed)
    assert gap.min() == 0 and gap.max() <= 1 and (gap == 0).mean() > 0.7


def test_confidence_is_the_least_share_over_every_assignment():
    shift = uniform_shift()
    for counts in ((7, 2, 1), (10, 0, 0), (4, 3, 3)):
        for moved in range(CELLS):
            assert shift.least(counts[0] / CELLS, 2 * moved / CELLS) * CELLS == pytest.approx(
                least_count(counts, moved), abs=1e-9
            )


def test_confidence_of_a_half_space_is_exact():
    """f = 1 where the first number is above −1: P = Φ((1 + δ)/λ), which a move by r lowers to Φ((1 − r)/λ)."""
    lam = 0.8
    g = ucan.SmoothedClassifier(lambda b: (b[:, 0] > -1).long(), ucan.Gaussian(lam), num_classes=2)
    (one,) = g.certify(torch.zeros(1, 3), n=100_000, confidence=0.7)
    exact = 1 - lam * stats.norm.ppf(0.7)
    assert 0.95 * exact <= one.radius <= exact
    assert 0.7 <= one.at(one.region.radius) <= 0.7 + 1e-6 and one.at(0.0) == one.p_lower
    (plain,), (half,) = g.certify(torch.zeros(1, 3), n=2000), g.certify(torch.zeros(1, 3), n=2000, confidence=0.5)
    assert half.radius == pytest.approx(plain.radius, rel=1e-9)
    (none,) = g.certify(torch.zeros(1, 3), n=2000, confidence=0.99)
    assert none.abstained and "0.99" in none.reason


def probabilities(cuts):
    """A classifier of one number whose classes are intervals, so that all probabilities are known."""
    edges = torch.tensor(cuts)
    return lambda b: torch.bucketize(b[:, 0].contiguous(), edges)


def test_the_first_k_of_known_probabilities():
    """Classes cut from one Gaussian number: at every δ of that size the first label is truly among the first k."""
    lam, cuts = 1.0, [-0.9, -0.1, 0.3]
    g = ucan.SmoothedClassifier(probabilities(cuts), ucan.Gaussian(lam), num_classes=4)
    radii = []
    for k in (1, 2, 3):
        (one,) = g.certify(torch.zeros(1, 2), n=50_000, top=k)
        if one.abstained:
            radii.append(0.0)
            continue
        radii.append(one.radius)
        for label, radius in zip(one.labels, one.radii, strict=True):
            for delta in (-radius, radius):
                at = np.diff([0, *stats.norm.cdf(np.array(cuts) - delta), 1])
                assert radius == 0 or (at > at[label]).sum() < k
        assert one.radius_of(one.prediction) == one.radius and one.radius_of(99) == 0
    assert 0 < radii[0] < radii[1] < radii[2]  # although no class has a majority


def test_top_one_is_the_certificate_but_for_shared_alpha():
    g, x = (
        ucan.SmoothedClassifier(lambda b: (b[:, 0] > -1).long(), ucan.Gaussian(0.5), num_classes=2),
        torch.zeros(1, 2),
    )
    (one,), (plain,) = g.certify(x, n=50_000, top=1), g.certify(x, n=50_000)
    assert 0.98 * plain.radius <= one.radius <= plain.radius
    assert type(plain) is ucan.Certificate and one.kind == "top-k"


# --- many decisions ---


def signs(batch):
    """Two classes at each pixel: is the noisy number above 0? Pixels are independent."""
    return torch.stack([-batch[:, 0], batch[:, 0]], 1)


def test_the_familywise_error_of_pixels_is_at_most_alpha():
    """Half of the pixels are just short of the radius, so that each of their answers would be a false claim; half are far."""
    lam, r, alpha, side = 0.5, 0.4, 0.1, 6
    x = torch.full((300, 1, side, side), r * (1 - 1e-6))
    x[:, :, :, : side // 2] = 3 * lam
    x += 1e-7 * torch.arange(300.0).reshape(-1, 1, 1, 1)  # inputs of their own have noise of their own
    for rule in ("holm", "bonferroni"):
        g = ucan.SmoothedSegmenter(signs, ucan.Gaussian(lam))
        found = g.certify(x.clamp_max(3 * lam), radius=r, n=200, n0=20, alpha=alpha, rule=rule)
        wrong = sum(bool(one.certified[:, side // 2 :].any()) for one in found)
        right = np.mean([float(one.certified[:, : side // 2].double().mean()) for one in found])
        assert wrong <= stats.binom.ppf(0.999, 300, alpha) and right > 0.95
        if (
            rule == "holm"
        ):  # half of the hypotheses are gone at once: the other half is tested at twice Bonferroni's level
            assert wrong >= 0.02 * 300


def test_holm_rejects_all_that_bonferroni_does_and_no_more_than_it_may():
    rng = np.random.default_rng(0)
    for _ in range(50):
        p = rng.random(20) ** 3
        mine = holm(p, 0.05)
        assert (mine >= (p <= 0.05 / 20)).all()
        order = np.sort(p)
        count = next((i for i in range(20) if order[i] > 0.05 / (20 - i)), 20)
        assert mine.sum() == count
    assert holm(np.zeros((2, 3)), 0.01).all() and not holm(np.ones(4), 0.01).any()


def test_many_counts_at_once_are_the_single_ones():
    k = np.array([[0, 1, 7], [20, 19, 7]])
    assert lower_bounds(k, 20, 0.01) == pytest.approx(np.vectorize(lambda c: lower_bound(int(c), 20, 0.01))(k))
    assert majority_p_values(k, 20, 0.6) == pytest.approx(np.vectorize(lambda c: majority_p_value(int(c), 20, 0.6))(k))


def test_pixels_have_radii_of_their_own_or_one_for_all():
    lam = 0.5
    x = torch.linspace(-2, 2, 16).reshape(1, 1, 4, 4)
    g = ucan.SmoothedSegmenter(signs, ucan.Gaussian(lam))
    (own,) = g.certify(x, n=5000)
    assert bool((own.radii <= x[0, 0].abs() + 1e-9).all()) and own.rule == "bonferroni"  # the exact radius is |x|
    assert torch.equal(own.answers[own.certified], (x[0, 0] > 0).long()[own.certified])
    assert own.region.radius == float(own.radii[own.certified].min())
    (one,) = g.certify(x, radius=0.6, n=5000)
    assert one.rule == "holm" and set(one.radii.unique().tolist()) == {0.0, 0.6}
    assert not bool((one.certified & (x[0, 0].abs() < 0.6)).any()) and 0.4 < one.share < 0.9
    (none,) = g.certify(x, radius=5.0, n=100)
    assert none.abstained and "no place" in none.reason
    again = from_dict(one.to_dict())
    assert torch.equal(again.answers, one.answers) and again.task == "segmentation" and "pixels" in str(again)


def test_counts_are_kept_in_memory_that_does_not_grow_with_n():
    from ucan.questions.readers import KeepCounts

    keep, kept = KeepCounts(3), None
    rng = torch.Generator().manual_seed(0)
    parts = [torch.randint(0, 4, (7, 5, 6), generator=rng).to(torch.uint8) for _ in range(4)]
    for i, part in enumerate(parts):
        kept = keep.add(kept, part, 7 * i, 28)
    assert kept.shape == (4, 5, 6) and kept.element_size() == 4
    votes = torch.cat(parts)
    found = keep.received(kept)
    assert found.n == 28 and torch.equal(found.tally, torch.stack([(votes == c).sum(0) for c in range(4)]))


@pytest.mark.parametrize("classes", [3, 300])
def test_pixels_have_the_class_of_the_largest_logit(classes):
    from ucan.questions.readers import Places

    f, logits = Places(lambda b: b, classes), torch.randn(5, classes, 4, 6, generator=torch.Generator().manual_seed(0))
    assert torch.equal(f.to_votes(logits, 5).long(), logits.argmax(1))
    logits[2, 1, 3, 5] = torch.nan
    found = f.to_votes(logits, 5).long()
    assert int(found[2, 3, 5]) == classes and int((found == classes).sum()) == 1
    assert torch.equal(f.to_votes(logits.argmax(1), 5).long(), logits.argmax(1))


@pytest.mark.parametrize("kind", [ucan.SmoothedRegressor, ucan.SmoothedLabels, ucan.SmoothedSegmenter])
def test_a_model_whose_answers_change_their_shape_is_refused(kind):
    """One place in some forward passes and four in others would be spread over all of them, or counted at the first alone."""
    calls = []

    def moody(batch):
        calls.append(len(batch))
        places = 1 if calls.count(128) > 2 else 4
        found = batch.flatten(1)[:, :places]
        return torch.stack([found, -found], 1)[..., None] if kind is ucan.SmoothedSegmenter else found

    g = kind(moody, ucan.Gaussian(0.5), model_id="moody")
    for stop in ({}, {"stop": 0.1}):
        calls.clear()
        asked = {"within": 1.0} if kind is ucan.SmoothedRegressor else {"radius": 0.1}
        with pytest.raises(ModelError, match="for every copy"):
            g.certify(torch.zeros(1, 4), n=2000, batch_size=128, **asked, **stop)


def test_labels_are_there_or_not():
    w = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    g = ucan.SmoothedLabels(lambda b: b @ w.T, ucan.Gaussian(0.3))
    (own,) = g.certify(torch.tensor([[1.0, 0.02]]), n=20_000)
    assert own.answers.tolist() == [1, -1, 0]  # too close to call: the second
    assert 0.8 < float(own.radii[0]) <= 1.0
    (one,) = g.certify(torch.tensor([[1.0, 0.4]]), radius=0.3, n=20_000)
    assert one.answers.tolist() == [1, 1, 0] and "labels [0, 1] stay present and [2] absent" in str(one)
    whole = ucan.SmoothedLabels(lambda b: (b @ w.T > 0).long(), ucan.Gaussian(0.3))
    assert whole.certify(torch.tensor([[1.0, 0.4]]), radius=0.3, n=20_000)[0].answers.tolist() == [1, 1, 0]


# --- what all answers share ---


def test_invalid_answers_count_for_no_class():
    def half(batch):
        return torch.where(batch[:, 0] > 0, torch.nan, signs(batch)[:, 0])[:, None].expand(-1, 2, -1, -1)

    (one,) = ucan.SmoothedSegmenter(half, ucan.Gaussian(0.5)).certify(torch.zeros(1, 1, 2, 2), n=500)
    assert one.abstained and one.invalid > 200


def test_records_of_other_questions_are_no_certificates():
    """A program that knows certificates of one class only must not take "among the first two" for "the class"."""
    g = ucan.SmoothedClassifier(probabilities([-0.6, 0.1, 0.9]), ucan.Gaussian(0.5), num_classes=4)
    for options in ({"top": 2}, {"confidence": 0.2}):
        (one,) = g.certify(torch.zeros(1, 2), n=5000, **options)
        record = one.to_dict()
        again = from_dict(record)
        assert again.to_dict() == record and str(again) == str(one) and not isinstance(one, ucan.Certificate)
        with pytest.raises(InvalidInput, match="format 4"):
            class_from_dict(record)
    with pytest.raises(InvalidInput, match="does not know"):
        from_dict({**record, "kind": "fortune"})
    with pytest.raises(InvalidInput, match="not a complete record"):
        from_dict({name: value for name, value in record.items() if name != "p_lower"})


def test_what_a_file_shows_its_readers_must_follow_from_the_rest():
    x, g = torch.tensor([[0.6, 0.2, -0.4]]), ucan.Gaussian(0.25)
    (interval,) = ucan.SmoothedRegressor(lambda batch: batch, g).certify(x, radius=(0.1, 0.2), n=500)
    (first,) = ucan.SmoothedClassifier(lambda batch: batch, g, None, 3).certify(x, top=2, n=500)
    (labels,) = ucan.SmoothedLabels(lambda batch: batch, g).certify(x, n=500)
    for answer, name, changed in (
        (interval, "lower", [0.59, 0.19, -0.41]),
        (interval, "upper", [0.61, 0.21, None]),
        (interval, "lower", []),
        (first, "prediction", 1),
        (first, "prediction", False),
        (labels, "share", 0.5),
        (labels, "guarantee", "every input"),
    ):
        record = json.loads(json.dumps(answer.to_dict()))
        assert from_dict(record).content(None) == answer.content(None)
        with pytest.raises(DoesNotFollow, match=f"this record's {name}") as error:
            from_dict(record | {name: changed})
        assert error.value.field == name
        del record[name]
        from_dict(record)  # not shown, and not missed
    with pytest.raises(InvalidInput, match="labels must be some of the"):
        from_dict(first.to_dict() | {"labels": []})


def test_on_a_grid_answers_pay_for_the_arithmetic():
    g = ucan.SmoothedSegmenter(signs, ucan.Gaussian(0.5), step=1 / 255)
    real = ucan.SmoothedSegmenter(signs, ucan.Gaussian(0.5))
    x = torch.full((1, 1, 2, 2), 200 / 255)
    (one,), (other,) = (h.certify(x, n=4000) for h in (g, real))
    assert one.evidence.arithmetic == "grid(1/255)" and 0 < one.tau < 1e-6 and other.tau == 0
    assert float(one.radii.max()) == pytest.approx(float(other.radii.max()), rel=0.1)
    (off,) = g.certify(x + 0.3 / 255, n=4000)
    assert "rounded" in off.evidence.arithmetic
    taken = [0.5 * stats.norm.ppf(a.p_lowers.numpy()) - a.radii.numpy() for a in (one, off)]
    assert taken[0].max() < 1e-8 and taken[1].min() > 0.5 / 255  # its own rounding, and that of what comes in its place


def test_questions_that_make_no_sense_are_refused():
    g, x = ucan.SmoothedClassifier(lambda b: (b[:, 0] > 0).long(), ucan.Gaussian(0.5), num_classes=3), torch.zeros(1, 2)
    for options, message in (
        ({"top": 3}, "only 3 classes"),
        ({"top": 0}, "at least 1"),
        ({"top": 1, "confidence": 0.5}, "one at a time"),
        ({"top": 1, "stop": "5%"}, "stopped at radii"),
        ({"top": 1, "stop": "linf:0.5"}, "own norm"),
        ({"top": 1, "bound": "anytime"}, "bound of their own"),
        ({"confidence": 1.0}, "strictly between"),
    ):
        with pytest.raises(InvalidInput, match=message):
            g.certify(x, n=100, **options)
    s = ucan.SmoothedSegmenter(signs, ucan.Gaussian(0.5))
    with pytest.raises(InvalidInput, match="one radius"):
        s.certify(torch.zeros(1, 1, 2, 2), rule="holm")
    with pytest.raises(ModelError, match="logits of shape"):
        ucan.SmoothedSegmenter(lambda b: b.flatten(1), ucan.Gaussian(0.5)).certify(torch.zeros(1, 1, 2, 2), radius=0.1)


def test_composed_noise_shifts_as_isotropic_noise_does():
    """It is as private as one Gaussian look of scale σ, and that says T_r at every level, not only at one half."""
    noise = ucan.Composed(norm=math.inf, net=torch.nn.Identity().eval())
    g = ucan.SmoothedClassifier(lambda b: (b.flatten(1).sum(1) > -2).long(), ucan.Gaussian(0.5), noise, num_classes=2)
    (one,), (plain,) = (
        g.certify(torch.zeros(1, 1, 2, 2), n=5000, norm=math.inf, **options) for options in ({"confidence": 0.5}, {})
    )
    assert one.radius == pytest.approx(plain.radius, rel=1e-9) and one.norm == math.inf
    assert one.at(one.region.radius) == pytest.approx(0.5, abs=1e-9) and from_dict(one.to_dict()).line == one.line
