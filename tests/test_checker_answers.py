"""The stand-alone checker on answers to other questions: honest ones pass, and every change to a claim is found."""

import copy
import json
import math

import numpy as np
import pytest
import torch

import ucan
from test_checker import LAWS, ROOT, SCALES, checker, failed, record_of, run, verdicts
from ucan.laws import Law

EVENT = (2, 2, 3)
UNSEEN = {"labels", "pixels", "interval", "within"}  # what they rest on is not in the file


def four(batch):
    return batch.flatten(1)[:, :4]


def answered(kind, law=None, norm=2, scale=0.7, x=None, n=400, **options):
    """One answer of a kind, about an input that most of its claims hold at."""
    law, noise = law or ucan.Gaussian(scale=0.3), ucan.Fixed(scale)
    x = torch.linspace(2.0, -2.0, 12).reshape(1, *EVENT) if x is None else x
    shared = {"n": n, "norm": norm, **options}
    if kind in ("top", "confidence"):
        g = ucan.SmoothedClassifier(four, law, noise, num_classes=4)
        return g.certify(x, **{"top": {"top": 2}, "confidence": {"confidence": 0.6}}[kind], **shared)[0]
    if kind == "labels":
        return ucan.SmoothedLabels(four, law, noise).certify(x, **{"radius": 0.01, **shared})[0]
    if kind == "pixels":
        segmenter = ucan.SmoothedSegmenter(lambda b: b, law, noise, num_classes=2)
        return segmenter.certify(x, **shared)[0]
    g = ucan.SmoothedRegressor(four, law, noise)
    return g.certify(x, **({"within": 5.0} if kind == "within" else {"radius": [0.01, 0.02]}), **shared)[0]


KINDS = ("top", "confidence", "labels", "pixels", "interval", "within")


def check_sound(outcome, kind, folder=None):
    record = record_of(outcome, folder)
    wrong = [line for line in checker.check(record, folder or ROOT) if line[0] != "ok"]
    assert [name for _, name, _ in wrong] == (["answers"] if kind in UNSEEN else []), wrong
    return record


@pytest.mark.parametrize(("law", "norm"), LAWS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_every_question_and_law(kind: str, law: Law, norm: float) -> None:
    one = answered(kind, law, norm)
    assert not one.abstained
    check_sound(one, kind)
    if kind != "interval":
        early = answered(kind, law, norm, n=2000, stop=0.01)
        assert not early.abstained and early.evidence.looks
        check_sound(early, kind)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("kind", ["confidence", "pixels", "within"])
def test_every_kind_of_scale(kind: str, scale: str) -> None:
    check_sound(answered(kind, scale=SCALES[scale]), kind)


@pytest.mark.parametrize("kind", KINDS)
def test_maps_beside_the_file_a_family_and_a_grid(kind: str, tmp_path) -> None:
    check_sound(answered(kind, family=5), kind)
    x = torch.linspace(2.0, -2.0, 12).reshape(1, *EVENT)
    if kind in ("top", "confidence"):
        g = ucan.SmoothedClassifier(four, ucan.Gaussian(0.3), num_classes=4, step=1 / 255)
        (one,) = g.certify(x, n=400, **({"top": 2} if kind == "top" else {"confidence": 0.6}))
        assert one.tau > 0 and "rounded" in one.evidence.arithmetic
        check_sound(one, kind)
    if kind == "pixels":
        g = ucan.SmoothedSegmenter(lambda b: torch.cat([b, -b], 1), ucan.Gaussian(0.3), num_classes=2)
        (one,) = g.certify(torch.full((1, 1, 40, 40), 1.0), n=400)
        assert "file" in check_sound(one, kind, tmp_path)["maps"]


@pytest.mark.parametrize("norm", [1, 2, math.inf])
def test_how_probabilities_shift(norm: float) -> None:
    """T_r by other code, on random numbers; the library's is shaved by a little."""
    rng = np.random.default_rng(0)
    for law, against in [*LAWS, (ucan.GeneralNormal(0.3, beta=1.5), 1)]:
        for p, r, dim in zip(rng.random(60), rng.exponential(0.2, 60), rng.integers(1, 19, 60), strict=True):
            if against == norm:
                mine = checker.shifted(record_law(law), norm, int(dim), float(p), float(r))
                assert law.shifted(p, r, norm, int(dim)) == pytest.approx(mine, abs=1e-9)


def record_law(law):
    from ucan.evidence import law_to_json

    return law_to_json(law)


@pytest.mark.parametrize("seed", range(4))
def test_random_votes_have_the_same_bounds_and_radii(seed: int) -> None:
    """Votes by chance, at any look: the numbers agree to nine digits, since 1e-7 more is found."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet([3.0, 1.0, 0.5, 0.2])
    cut = torch.from_numpy(np.quantile(rng.normal(size=100_000), np.cumsum(p)[:-1]))

    def split(batch):
        return torch.bucketize(batch.double().flatten(1)[:, 0], cut)

    g = ucan.SmoothedClassifier(split, ucan.Gaussian(1.0), num_classes=4)
    x = torch.zeros(1, 1)
    for options in (
        {"top": 1},
        {"top": 3},
        {"confidence": 0.1},
        {"top": 2, "stop": 0.1},
        {"confidence": 0.1, "stop": 0.1},
    ):
        (one,) = g.certify(x, n=700, **options)
        if one.abstained:
            continue
        record = check_sound(one, "top")
        record["region"]["radius"] *= 1 + 1e-7
        assert failed(record) == {"region"}
        for name in ("p_lower", "p_lowers"):
            changed = record_of(one)
            if name in changed:
                more = changed[name]
                changed[name] = [v * (1 + 1e-7) for v in more] if isinstance(more, list) else more * (1 + 1e-7)
                assert "bound" in failed(changed)


# --- changes ---


def put(*where, value):
    """Set an entry to a value, or to what a function makes of it."""

    def change(record):
        for key in where[:-1]:
            record = record[key]
        record[where[-1]] = value(record[where[-1]]) if callable(value) else value

    return change


def grown(values):
    return [v * 1.01 for v in values] if isinstance(values, list) else values * 1.01


def looked(at):
    return put("evidence", "looks", value=at)


EVERY = [
    (put("region", "radius", value=grown), "region"),
    (put("evidence", "n", value=lambda n: n + 1), "votes"),
    (looked([1000, 2000]), "settings"),
    (put("evidence", "cap", value=1000), "settings"),
    (put("evidence", "stop", value=None), "settings"),
    (put("evidence", "bound", value=lambda name: name.partition(",")[0]), "settings"),
    (lambda record: record["evidence"].pop("looks"), "settings"),
    (put("evidence", "noise", "constant", value=False), "scope"),
    (put("region", "norm", value=1), "noise"),
    (put("region", "scale", value={"kind": "Scalar", "value": -1.0}), "noise"),
]
OWN = {
    "top": [
        (put("labels", value=[1, 0]), "labels"),
        (put("k", value=1), "labels"),
        (put("evidence", "selection", value=[0, 0, 0, 100]), "labels"),
        (put("p_lowers", value=grown), "bound"),
        (put("p_uppers", value=lambda highs: [0.99 * high for high in highs]), "bound"),
        (put("evidence", "alpha", value=1e-5), "bound"),
        (put("radii", value=grown), "region"),
    ],
    "confidence": [
        (put("prediction", value=1), "class"),
        (put("p_lower", value=grown), "bound"),
        (put("evidence", "counts", value=lambda votes: [votes[0] - 1, votes[1] + 1, *votes[2:]]), "bound"),
        (put("evidence", "alpha", value=1e-5), "bound"),
        (put("tau", value=0.01), "bound"),
        (put("confidence", value=grown), "region"),
        (put("line", value=[0.5, 0.0]), "region"),
        (put("evidence", "law", "scale", value=0.29), "region"),
    ],
    "labels": [
        (put("asked", value=grown), "region"),
        (put("maps", "answers", "data", 0, value=lambda old: 1 - old), "places"),
        (put("maps", "radii", "data", value=grown), "region"),
        (put("maps", "p_lowers", "data", value=lambda lows: [0.999 for _ in lows]), "bound"),
        (put("maps", "p_lowers", "data", value=lambda lows: [0.51 for _ in lows]), "region"),
        (put("share", value=0.5), "places"),
        (put("rule", value="bonferroni"), "places"),
        (put("evidence", "alpha", value=1e-30), "bound"),
    ],
    "within": [
        (put("within", value=4.0), "ends"),
        (put("upper", value=[9.0, 9.0, 9.0, 9.0]), "ends"),
        (put("ends", "below", "data", value=lambda rows: [[0.0 for _ in row] for row in rows]), "region"),
        (put("ends", "below", "data", value=lambda rows: [[0.45 for _ in row] for row in rows]), "region"),
        (put("radii", value=grown), "region"),
        (put("p", value=0.9), "region"),
        (put("evidence", "alpha", value=1e-30), "region"),
    ],
}
CHANGES = [(kind, *one) for kind, changes in OWN.items() for one in [*EVERY, *changes]]


@pytest.fixture(scope="module")
def honest():
    return {kind: record_of(answered(kind, n=2000, stop=0.01)) for kind in OWN} | {
        "interval": record_of(answered("interval")),
        "pixels": record_of(answered("pixels")),
    }


@pytest.mark.parametrize(("kind", "change", "found"), CHANGES)
def test_a_change_is_found(honest, kind, change, found) -> None:
    record = copy.deepcopy(honest[kind])
    change(record)
    assert found in failed(record), verdicts(record)


def test_an_interval_whose_numbers_cannot_be(honest) -> None:
    record = honest["interval"]
    for change, found in (
        (put("radii", value=grown), "region"),
        (put("ends", "above", "data", value=lambda rows: [grown(row) for row in rows]), "region"),
        (put("p", value=0.4), "region"),
        (put("ends", "lowers", "data", value=lambda rows: [[9.0 for _ in row] for row in rows]), "ends"),
        (put("evidence", "alpha", value=1e-300), "region"),  # no order statistic has such a level
    ):
        changed = copy.deepcopy(record)
        change(changed)
        assert failed(changed) == {found}
    (wide,) = ucan.SmoothedRegressor(four, ucan.Gaussian(0.3)).certify(torch.zeros(1, *EVENT), radius=2.0, n=60)
    assert not torch.isfinite(wide.lower).any()
    changed = check_sound(wide, "interval")
    changed["ends"]["lowers"]["data"], changed["lower"] = [[-5.0] * 4], [-5.0] * 4
    assert failed(changed) == {"region"}


def test_abstentions_and_damage(honest, tmp_path) -> None:
    none = answered("confidence", x=torch.zeros(1, *EVENT), n=2000, stop=0.01)
    assert none.abstained and {*verdicts(record_of(none)).values()} == {"ok"}
    for kind, record in honest.items():
        for key in {*record} - {"guarantee"}:
            changed = copy.deepcopy(record)
            changed[key] = ["?"]
            try:
                assert verdicts(changed) != verdicts(record), (kind, key)
            except checker.Unreadable:
                continue
    path = tmp_path / "one.json"
    path.write_text(json.dumps(honest["confidence"]), encoding="utf-8")
    done = run(path, str(ROOT / "checker" / "check_certificate.py"))
    assert done.returncode == 0 and "Nothing is wrong" in done.stdout
    path.write_text(json.dumps(honest["pixels"]), encoding="utf-8")
    done = run(path, str(ROOT / "checker" / "check_certificate.py"))
    assert done.returncode == 2 and "not checked answers: the votes of each place" in done.stdout
