"""The stand-alone checker on answers to other questions: honest ones pass, and every change to a claim is found."""

import copy
import dataclasses
import json
import math

import numpy as np
import pytest
import torch
from jsonschema import Draft202012Validator

import ucan
from test_checker import LAWS, ROOT, SCALES, SCHEMA, checker, failed, record_of, run, verdicts
from ucan.laws import Law
from ucan.questions.records import from_dict
from ucan.replay_answer import replayed
from ucan.verify_answer import verify_answer

EVENT = (2, 2, 3)
VALIDATOR = Draft202012Validator(SCHEMA)
VOTES = {"maps": ("hits",), "ends": ("under", "over")}  # older files are without them


def four(batch):
    return batch.flatten(1)[:, :4]


def the_model(kind):
    """The model that an answer of a kind is of, but for questions about classes."""
    kinds = {
        "labels": ucan.SmoothedLabels,
        "pixels": ucan.SmoothedSegmenter,
    }
    made = kinds.get(kind, ucan.SmoothedRegressor)
    return made(identity if kind == "pixels" else four, ucan.Gaussian(scale=0.3), ucan.Fixed(0.7))


def identity(batch):
    return batch


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
        segmenter = ucan.SmoothedSegmenter(identity, law, noise, num_classes=2)
        return segmenter.certify(x, **shared)[0]
    g = ucan.SmoothedRegressor(four, law, noise)
    return g.certify(x, **({"within": 5.0} if kind == "within" else {"radius": [0.01, 0.02]}), **shared)[0]


KINDS = ("top", "confidence", "labels", "pixels", "interval", "within")


def check_sound(outcome, folder=None):
    record = record_of(outcome, folder)
    VALIDATOR.validate(record)
    wrong = [line for line in checker.check(record, folder or ROOT) if line[0] != "ok"]
    assert not wrong
    return record


def without_votes(record):
    """The same record as it was written before it held the votes of places and ends."""
    older = copy.deepcopy(record)
    for key, names in VOTES.items():
        older = {**older, key: {k: v for k, v in older[key].items() if k not in names}} if key in older else older
    return older


@pytest.mark.parametrize(("law", "norm"), LAWS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_every_question_and_law(kind: str, law: Law, norm: float) -> None:
    one = answered(kind, law, norm)
    assert not one.abstained
    check_sound(one)
    if kind != "interval":
        early = answered(kind, law, norm, n=2000, stop=0.01)
        assert not early.abstained and early.evidence.looks
        check_sound(early)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("kind", ["confidence", "pixels", "within"])
def test_every_kind_of_scale(kind: str, scale: str) -> None:
    check_sound(answered(kind, scale=SCALES[scale]))


@pytest.mark.parametrize("kind", KINDS)
def test_maps_beside_the_file_a_family_and_a_grid(kind: str, tmp_path) -> None:
    check_sound(answered(kind, family=5))
    x = torch.linspace(2.0, -2.0, 12).reshape(1, *EVENT)
    if kind in ("top", "confidence"):
        g = ucan.SmoothedClassifier(four, ucan.Gaussian(0.3), num_classes=4, step=1 / 255)
        (one,) = g.certify(x, n=400, **({"top": 2} if kind == "top" else {"confidence": 0.6}))
        assert one.tau > 0 and "rounded" in one.evidence.arithmetic
        check_sound(one)
    if kind == "pixels":
        g = ucan.SmoothedSegmenter(lambda b: torch.cat([b, -b], 1), ucan.Gaussian(0.3), num_classes=2)
        (one,) = g.certify(torch.full((1, 1, 40, 40), 1.0), n=400)
        assert "file" in check_sound(one, tmp_path)["maps"]


@pytest.mark.parametrize("asked", [{"top": 2}, {"confidence": 0.3}, {"radius": 0.01}, {}], ids=str)
def test_composed_noise_and_noise_that_is_unknown(asked: dict) -> None:
    box = 0.1 + torch.arange(12.0).reshape(EVENT) / 10
    for own in ({"norm": math.inf}, {"norm": 2}, {"norm": math.inf, "budget": box}):
        noise, x = (
            ucan.Composed(net=torch.nn.Identity().eval(), **own),
            torch.linspace(3.0, -3.0, 12).reshape(1, *EVENT),
        )
        if "top" in asked or "confidence" in asked:
            g = ucan.SmoothedClassifier(four, ucan.Gaussian(0.3), noise, num_classes=4)
        else:
            g = ucan.SmoothedLabels(four, ucan.Gaussian(0.3), noise)
        (one,) = g.certify(x, n=400, norm=own["norm"], **asked)
        record = check_sound(one)
        record["region"]["radius"] *= 1.0001
        assert failed(record) == {"region"}
        record["evidence"]["noise"]["kind"] = "Elsewhere"
        found = verdicts(record)
        assert found["noise"] == found["region"] == "not checked" and "FAIL" not in found.values()


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
        record = check_sound(one)
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
    (put("guarantee", value="every input whatsoever"), "scope"),
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
        (put("maps", "hits", "data", 0, value=lambda old: old - 60), "answers"),
        (put("maps", "hits", "data", 0, value=-1), "answers"),
        (put("maps", "hits", "data", 0, value=10**6), "answers"),
    ],
    "within": [
        (put("within", value=4.0), "ends"),
        (put("upper", value=[9.0, 9.0, 9.0, 9.0]), "ends"),
        (put("ends", "below", "data", value=lambda rows: [[0.0 for _ in row] for row in rows]), "region"),
        (put("ends", "below", "data", value=lambda rows: [[0.45 for _ in row] for row in rows]), "region"),
        (put("radii", value=grown), "region"),
        (put("p", value=0.9), "region"),
        (put("evidence", "alpha", value=1e-30), "region"),
        (put("ends", "under", "data", 0, 0, value=lambda old: old + 1), "answers"),
        (put("ends", "over", "data", 0, 3, value=lambda old: old + 1), "answers"),
        (put("tau", value=0.01), "answers"),
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


@pytest.mark.parametrize("cap", [400.0, True, "400"])
def test_a_planned_number_that_is_not_whole_is_not_called_checked(honest, cap) -> None:
    record = copy.deepcopy(honest["interval"])
    assert record["evidence"]["cap"] == record["evidence"]["n"] == 400 and not failed(record)
    record["evidence"]["cap"] = cap
    assert verdicts(record)["settings"] != "ok"


@pytest.mark.parametrize("kind", KINDS)
def test_a_bound_that_cannot_give_the_answer_is_refused(honest, kind) -> None:
    """Of another claim it is wrong; of a name that is unknown nothing can be said, as of a certificate's."""

    def renamed(name):
        record = copy.deepcopy(honest[kind])
        own, comma, look = record["evidence"]["bound"].partition(",")
        record["evidence"]["bound"] = f"{name}{comma}{look}"
        return own, verdicts(record)

    own, found = renamed(honest[kind]["evidence"]["bound"].partition(",")[0])
    assert {*found.values()} == {"ok"}
    for other in {"binary", "two-class", "anytime", "simultaneous", "order statistics", "holm over 12"} - {own}:
        assert "FAIL" in renamed(other)[1].values(), other
    for unknown in ("median of means", "", "Binary", "binary "):
        found = renamed(unknown)[1]
        if kind in ("labels", "pixels"):  # their bound names the rule and the number of places
            assert found["places"] == "FAIL"
        else:
            assert found["settings"] == "not checked" and {*found.values()} == {"ok", "not checked"}


@pytest.mark.parametrize("kind", KINDS)
def test_verify_refuses_a_bound_that_cannot_give_the_answer(honest, kind) -> None:
    x = torch.linspace(2.0, -2.0, 12).reshape(1, *EVENT)
    classes = ucan.SmoothedClassifier(four, ucan.Gaussian(0.3), ucan.Fixed(0.7), num_classes=4)
    g = classes if kind in ("top", "confidence") else the_model(kind)
    assert verify_answer(from_dict(honest[kind]), g, x, seed=7, replay=False).stands
    own = honest[kind]["evidence"]["bound"].partition(",")[0]
    for other in {"two-class", "binary", "simultaneous", "order statistics", "holm over 3", "median of means"} - {own}:
        record = copy.deepcopy(honest[kind])
        record["evidence"]["bound"] = record["evidence"]["bound"].replace(own, other)
        verdict = verify_answer(from_dict(record), g, x, seed=7, replay=False)
        assert [check.name for check in verdict.checks if not check.passed] == ["bound"]


@pytest.mark.parametrize("family", [0, 1.5, "2"])
def test_a_number_of_claims_that_cannot_be_is_not_called_checked(honest, family) -> None:
    for kind in KINDS:
        record = copy.deepcopy(honest[kind])
        record["evidence"]["family"] = family
        assert verdicts(record)["settings"] != "ok"


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
        assert found in failed(changed) <= {found, "answers"}
    for side in ("under", "over"):  # one more number beyond an end, and it is no order statistic of its level
        changed = copy.deepcopy(record)
        changed["ends"][side]["data"][1][2] += 1
        assert failed(changed) == {"answers"}
    (wide,) = ucan.SmoothedRegressor(four, ucan.Gaussian(0.3)).certify(torch.zeros(1, *EVENT), radius=2.0, n=60)
    assert not torch.isfinite(wide.lower).any()
    changed = check_sound(wide)
    changed["ends"]["lowers"]["data"], changed["lower"] = [[-5.0] * 4], [-5.0] * 4
    assert failed(changed) == {"region", "answers"}


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
    assert done.returncode == 0 and "ok          answers: " in done.stdout
    path.write_text(json.dumps(without_votes(honest["pixels"])), encoding="utf-8")
    done = run(path, str(ROOT / "checker" / "check_certificate.py"))
    assert done.returncode == 2 and "not checked answers: the file does not say the votes of each place" in done.stdout


@pytest.mark.parametrize("kind", ["labels", "pixels", "interval", "within"])
def test_a_file_without_its_votes_is_read_and_never_called_checked(honest, kind) -> None:
    older = without_votes(honest[kind])
    VALIDATOR.validate(older)
    found = verdicts(older)
    assert found.pop("answers") == "not checked" and {*found.values()} == {"ok"}
    one = from_dict(older)
    assert not one.complete and record_of(one) == older
    g, x = the_model(kind), torch.linspace(2.0, -2.0, 12).reshape(1, *EVENT)
    verdict = verify_answer(one, g, x)
    assert verdict.stands and any("written without its votes" in check.detail for check in verdict.checks)
    assert "replay" in {check.name for check in verdict.checks}


@pytest.mark.parametrize("kind", ["labels", "pixels", "interval", "within"])
def test_verify_recomputes_bounds_from_the_votes_in_the_file(honest, kind) -> None:
    g, x = the_model(kind), torch.linspace(2.0, -2.0, 12).reshape(1, *EVENT)
    assert verify_answer(from_dict(honest[kind]), g, x).stands
    changed = copy.deepcopy(honest[kind])
    if kind in ("labels", "pixels"):
        place = changed["maps"]["hits"]["data"]
        while isinstance(place[0], list):
            place = place[0]
        place[0] -= 60
    else:
        changed["ends"]["under"]["data"][0][0] += 60
    (wrong,) = [check for check in verify_answer(from_dict(changed), g, x).checks if not check.passed]
    assert wrong.name == "claim" and "do not follow from its votes" in wrong.detail


@pytest.mark.parametrize("value", [1e6, -1e6])
def test_a_value_outside_of_its_own_interval_is_found(honest, value) -> None:
    """It is shown as the answer, and no replay can tell where the seed is secret."""
    g, x = the_model("interval"), torch.linspace(2.0, -2.0, 12).reshape(1, *EVENT)
    changed = copy.deepcopy(honest["interval"])
    changed["ends"]["value"]["data"][2], changed["evidence"]["seed"] = value, None
    assert failed(changed) == {"ends"}
    (wrong,) = [check for check in verify_answer(from_dict(changed), g, x).checks if not check.passed]
    assert wrong.name == "claim" and "a value lies outside of its own interval" in wrong.detail


@pytest.mark.parametrize("rule", ["holm", "bonferroni"])
def test_random_votes_of_places_have_the_same_decisions(rule: str) -> None:
    """Places of many probabilities, near the threshold and with equal counts: the same ones stand, by other code."""
    cut = torch.linspace(-2.5, 2.5, 60)
    g = ucan.SmoothedLabels(lambda batch: batch.double() - cut, ucan.Gaussian(1.0))
    (one,) = g.certify(torch.zeros(1, 1), radius=0.2, n=300, rule=rule, alpha=0.05)
    assert 10 < int(one.certified.sum()) < 60
    record = check_sound(one)
    weakest = min((i for i in range(60) if one.certified[i]), key=lambda i: int(one.hits[i]))
    record["maps"]["hits"]["data"][weakest] -= 1 if rule == "bonferroni" else 5
    assert failed(record) == {"answers"}
    record = record_of(one)  # claimed where the votes do not bear it
    place = max((i for i in range(60) if not one.certified[i]), key=lambda i: int(one.hits[i]))
    for name in ("answers", "radii", "p_lowers"):
        values = record["maps"][name]["data"]
        values[place] = record["maps"]["selected"]["data"][place] if name == "answers" else values[weakest]
    record["share"] += 1 / 60
    assert failed(record) == {"answers"}


# --- the schema ---


@pytest.mark.parametrize("kind", KINDS)
def test_the_schema_knows_every_entry_of_an_answer(honest, kind) -> None:
    record = honest[kind]
    VALIDATOR.validate(record)
    named = {
        entry["properties"]["kind"]["const"]: entry
        for entry in SCHEMA["$defs"].values()
        if "kind" in entry.get("properties", {}) and "const" in entry["properties"]["kind"]
    }
    entry = named[record["kind"]]
    optional = {"budget", "budget_factor", "lower", "upper", "within"}
    assert {*entry["required"]} | optional >= {*record} >= {*entry["required"]}
    for key in entry["required"]:
        assert not VALIDATOR.is_valid({k: v for k, v in record.items() if k != key}), key
    for key in {*record} - {"guarantee"}:
        assert not VALIDATOR.is_valid({**record, key: {"another": "thing"}}), key
    for wrong in (
        {"mood": "good"},
        {"format": 2},
        {"kind": "certificate"},
        {"kind": "interval" if kind == "top" else "top-k"},
        {"tau": 2},
        {"radius": 1.0},
    ):
        assert not VALIDATOR.is_valid({**record, **wrong}), wrong


@pytest.mark.parametrize("kind", KINDS)
def test_answers_within_a_budget_follow_the_schema(kind) -> None:
    record = check_sound(answered(kind, budget=0.5))
    assert record["budget_factor"] > 0
    assert not VALIDATOR.is_valid({k: v for k, v in record.items() if k != "budget"})


@pytest.mark.parametrize(
    ("kind", "name", "change"),
    [
        ("labels", "hits", lambda t: t + 401),
        ("labels", "hits", lambda t: t[..., None][..., :0]),
        ("labels", "hits", lambda t: t - 0.5),
        ("pixels", "hits", lambda t: t[..., :0]),
        ("interval", "under", lambda t: t * 0 - 1),
        ("within", "under", lambda t: t[:, :1]),
        ("within", "under", lambda t: t[:, :0]),
    ],
)
def test_votes_that_no_places_have_are_refused(kind, name, change) -> None:
    one = answered(kind)
    x = torch.linspace(2.0, -2.0, 12).reshape(1, *EVENT)
    assert verify_answer(one, the_model(kind), x, seed=7, replay=False).stands
    both = {other: change(getattr(one, other)) for other in one.votes if kind == "within" or other == name}
    assert not verify_answer(dataclasses.replace(one, **both), the_model(kind), x, seed=7, replay=False).stands


@pytest.mark.parametrize("options", [{}, {"radius": 0.0}], ids=["bonferroni", "holm"])
def test_an_answer_without_a_majority_is_none_whatever_its_radius(options) -> None:
    """Of places that no votes decide, a forger claims nothing but the answer itself: a radius of 0."""
    x = torch.tensor([2.0, 0.01, -0.01, 1.5]).reshape(1, 1, 2, 2)
    g = ucan.SmoothedSegmenter(lambda b: torch.cat([b, -b], 1), ucan.Gaussian(0.3), num_classes=2)
    (one,) = g.certify(x, n=400, **options)
    assert not one.certified.all() and verify_answer(one, g, x, seed=7, replay=False).stands
    check_sound(one)
    lows = torch.where(one.certified, one.p_lowers, 0.3)
    forged = dataclasses.replace(
        one,
        answers=one.selected,
        p_lowers=torch.full_like(lows, 0.3) if options else lows,
        region=ucan.Region(one.region.scale, 0.0, one.region.norm, one.region.shape),
        hits=torch.maximum(one.hits, torch.tensor(150)),
    )
    assert "region" in failed(record_of(forged))
    verdict = verify_answer(forged, g, x, seed=7, replay=False)
    assert [c.name for c in verdict.checks if not c.passed] == ["claim"]


@pytest.mark.parametrize(
    ("kind", "claim"),
    [("confidence", {"p_lower": 0.5}), ("top", {"p_lowers": [0.0, 0.0], "radii": [0.0, 0.0]}), ("within", {})],
)
def test_an_answer_that_is_not_true_at_its_own_input_is_none_whatever_its_radius(kind, claim) -> None:
    record = record_of(answered(kind))
    record["region"]["radius"] = 0.0
    if kind == "within":
        record["radii"] = [0.0]
        ends = record["ends"]
        ends["below"]["data"], ends["above"]["data"] = ([[0.6] * 4] for _ in range(2))
    assert "region" in failed({**record, **claim})
    assert not verify_answer(
        from_dict({**record, **claim}),
        ucan.SmoothedClassifier(four, ucan.Gaussian(0.3), ucan.Fixed(0.7), num_classes=4)
        if kind != "within"
        else the_model(kind),
        torch.linspace(2.0, -2.0, 12).reshape(1, *EVENT),
        replay=False,
    ).stands


def test_an_interval_that_rests_on_a_stated_range_is_not_confirmed() -> None:
    """Ends of the range need no votes: a false range would give any radius. Who knows the range says so himself."""
    g, x = the_model("interval"), torch.linspace(2.0, -2.0, 12).reshape(1, *EVENT)
    (one,) = g.certify(x, radius=50.0, n=400, range=(-4.0, 4.0))
    assert one.assumed == (-4.0, 4.0) and "given that the outputs are from -4 to 4" in str(one)
    verdict = verify_answer(one, g, x, seed=7)
    (told,) = (c for c in verdict.checks if c.name == "range")
    assert verdict.stands and verdict.confirms is None and not told.confirmed
    assert "rests on the stated range of the outputs, from -4 to 4, which was not checked" in told.detail
    assert verdicts(record_of(one))["range"] == "not checked" and not failed(record_of(one))
    known = verify_answer(one, g, x, seed=7, range=(-4.0, 3.5))
    assert known.stands and known.confirms == "pipeline"
    for wider in ((-5.0, 4.0), (-4.0, math.inf)):
        verdict = verify_answer(one, g, x, seed=7, range=wider)
        assert [c.name for c in verdict.checks if not c.passed] == ["range"]
    (open_above,) = g.certify(x, radius=50.0, n=400, range=(-4.0, None))
    assert open_above.assumed == (-4.0, None) and "at least -4" in str(open_above)
    assert verify_answer(open_above, g, x, seed=7, range=(-4.0, math.inf)).confirms == "pipeline"
    (near,) = g.certify(x, radius=[0.01, 0.02], n=400, range=(-9.0, 9.0))
    assert near.assumed is None and verify_answer(near, g, x, seed=7).confirms == "pipeline"
    check_sound(near)


def test_fresh_numbers_outside_the_range_that_an_interval_rests_on_refute_it() -> None:
    g, x = the_model("interval"), torch.linspace(2.0, -2.0, 12).reshape(1, *EVENT)
    (one,) = g.certify(x, radius=50.0, n=400, range=(-4.0, 4.0))
    ends = {"lowers": torch.full_like(one.lowers, -1.0), "uppers": torch.full_like(one.uppers, 1.0)}
    narrow = dataclasses.replace(one, limits=(-1.0, 1.0), value=one.value.clamp(-1.0, 1.0), **ends)
    verdict = verify_answer(narrow, g, x, seed=7)
    assert [c.name for c in verdict.checks if not c.passed] == ["votes", "replay"] and verdict.confirms is None


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_in_another_precision_is_about_a_copy(kind) -> None:
    """In bf16 it is none of the deployed model; if it says that it is a copy's, nothing is confirmed of the model."""
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 4)).eval()
    law, x = ucan.Gaussian(0.1), torch.linspace(2.0, -2.0, 12).reshape(1, *EVENT)
    made = {
        "labels": (ucan.SmoothedLabels, {}, {"radius": 0.01}),
        "pixels": (ucan.SmoothedSegmenter, {"num_classes": 2}, {}),
        "interval": (ucan.SmoothedRegressor, {}, {"radius": 0.01}),
        "within": (ucan.SmoothedRegressor, {}, {"within": 5.0}),
        "top": (ucan.SmoothedClassifier, {"num_classes": 4}, {"top": 2}),
        "confidence": (ucan.SmoothedClassifier, {"num_classes": 4}, {"confidence": 0.3}),
    }
    cls, own, asked = made[kind]
    model = torch.nn.Conv2d(2, 2, 1).eval() if kind == "pixels" else net
    deployed, low = (cls(model, law, precision=precision, **own) for precision in (None, "bf16"))
    (true,), (other,) = deployed.certify(x, n=400, **asked), low.certify(x, n=400, **asked)
    (copied,) = deployed.certify(x, n=400, precision="bf16", **asked)
    assert not (true.abstained or other.abstained or copied.abstained)
    assert verify_answer(true, deployed, x, seed=7).confirms == "pipeline"
    assert verify_answer(other, low, x, seed=7).confirms == "pipeline"
    verdict = verify_answer(other, deployed, x, seed=7)
    assert [c.name for c in verdict.checks if not c.passed] == ["precision"]
    verdict = verify_answer(copied, deployed, x, seed=7)
    assert verdict.stands and verdict.confirms is None


ODD = [
    ("top", "norm", "x"),
    ("top", "norm", True),
    ("top", "tau", None),
    ("top", "tau", "0"),
    ("top", "tau", math.nan),
    ("top", "radii", [None, 0.1]),
    ("top", "radii", ["x", 0.1]),
    ("top", "p_lowers", [None, 0.1]),
    ("top", "p_uppers", None),
    ("top", "labels", []),
    ("top", "labels", [0, 99]),
    ("top", "k", None),
    ("confidence", "confidence", None),
    ("confidence", "confidence", "x"),
    ("confidence", "line", [None, 0.0]),
    ("confidence", "line", ["1", 0.0]),
    ("confidence", "line", [1.0]),
    ("confidence", "p_lower", None),
    ("confidence", "prediction", None),
    ("interval", "p", None),
    ("interval", "p", "x"),
    ("interval", "radii", [None]),
    ("interval", "limits", []),
    ("within", "within", "x"),
    ("labels", "what", "x"),
    ("labels", "asked", "x"),
]


@pytest.mark.parametrize(("kind", "key", "value"), ODD)
def test_a_record_with_an_odd_value_is_refused_in_words(kind, key, value) -> None:
    record = record_of(answered(kind))
    assert key in record and from_dict(record) is not None
    with pytest.raises(ucan.InvalidInput):
        from_dict({**record, key: value})


def shifted(kind, by):
    """The model that an answer of a kind is of, which answers a little more on the second place."""
    step = torch.tensor([0.0, by, 0.0, 0.0])
    law, noise = ucan.Gaussian(scale=0.3), ucan.Fixed(0.7)
    if kind in ("top", "confidence"):
        return ucan.SmoothedClassifier(lambda batch: four(batch) + step, law, noise, num_classes=4)
    if kind == "labels":
        return ucan.SmoothedLabels(lambda batch: four(batch) - 1.6 + step, law, noise)
    return ucan.SmoothedRegressor(lambda batch: four(batch) + step, law, noise)


ASKED = {
    "top": {"top": 2},
    "confidence": {"confidence": 0.6},
    "labels": {"radius": 0.01},
    "interval": {"radius": [0.01, 0.02]},
    "within": {"within": 5.0},
}


@pytest.mark.parametrize("kind", ASKED)
def test_a_replay_of_an_answer_allows_for_rounding(kind) -> None:
    """Votes that fall elsewhere may be few, and those drawn here must support the claim; else nothing or a fault is said."""
    x = torch.linspace(2.0, -2.0, 12).reshape(1, *EVENT)
    (one,) = shifted(kind, 0.0).certify(x, n=2000, norm=2, **ASKED[kind])
    told = {by: replayed(one, shifted(kind, by), x)[0] for by in (0.0, 1e-6, -0.01, 1.0)}
    assert told[0.0].passed and told[0.0].confirmed and told[0.0].detail.endswith("leads to this answer")
    assert told[1e-6].passed and told[1e-6].confirmed == (kind != "interval"), told
    assert not told[1.0].passed
    few = told[-0.01]  # a few votes less for the second class
    if kind == "confidence":  # which its claim does not rest on
        assert few.passed and few.detail.endswith("the votes drawn here support the claim as well")
    elif kind == "labels":
        assert few.passed
    elif kind == "top":  # it bounds every class, and another one has them
        assert not few.passed and few.detail.endswith("the votes drawn here do not support the claim")
    else:  # numbers that are off by so much are others
        assert not few.passed and few.detail.endswith("does not lead to this answer")


@pytest.mark.parametrize("kind", ASKED)
def test_a_replay_of_an_answer_of_another_device_or_release_is_none(kind) -> None:
    x, g = torch.linspace(2.0, -2.0, 12).reshape(1, *EVENT), shifted(kind, 0.0)
    (one,) = g.certify(x, n=400, norm=2, **ASKED[kind])
    for changed, said in (
        ({"device": "cuda: another"}, "was drawn on cuda: another"),
        ({"versions": {"torch": "1.0"}}, "by torch 1.0"),
    ):
        # Its seed gives other noise there: the votes of another one stand for those.
        other = dataclasses.replace(one, evidence=dataclasses.replace(one.evidence, seed=1, **changed))
        verdict = verify_answer(other, g, x)
        last = verdict.checks[-1]
        assert verdict.stands and verdict.confirms == "pipeline"
        assert (last.name, last.confirmed) == ("replay", False) and said in last.detail
    other = dataclasses.replace(one, evidence=dataclasses.replace(one.evidence, seed=1))
    assert [check.name for check in verify_answer(other, g, x).checks if not check.passed] == ["replay"]


@pytest.mark.parametrize(
    ("kind", "part", "name"),
    [("labels", "maps", "p_lowers"), ("interval", "ends", "below"), ("pixels", "maps", "p_lowers")],
)
def test_a_number_in_place_of_a_list_does_not_stand(kind: str, part: str, name: str) -> None:
    """Its numbers do not fit together, which ended in a traceback."""
    record = record_of(answered(kind))
    record[part][name]["data"] = 0.5
    x = torch.linspace(2.0, -2.0, 12).reshape(1, *EVENT)
    verdict = verify_answer(from_dict(record), the_model(kind), x, n=400, replay=False)
    assert not verdict.stands and not verdict.tested
    assert "do not fit together" in [check for check in verdict.checks if not check.passed][-1].detail
