"""The service without its network: what it takes, what it answers, and that it answers as the library does."""

import asyncio
import base64
import importlib.util
import io
import json
import math
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from served import inputs, thirds
from ucan import (
    Abstention,
    Certificate,
    CertificationWise,
    Fixed,
    Gaussian,
    InvalidInput,
    SmoothedClassifier,
    Splitting,
    Uniform,
    scales,
)
from ucan.certificate import from_dict
from ucan.data import load
from ucan.engine import Issuer
from ucan.errors import MissingExtra, ModelError
from ucan.plan import CertifyPlan, PredictPlan, SecretSeed
from ucan.runs.read import Run
from ucan.sequential import AllVotes, Candidate, Terms, settle_each
from ucan.service.application import Application
from ucan.service.asked import Offer
from ucan.service.deployed import Deployed
from ucan.service.inputs import Form
from ucan.service.limits import Ledger, Limits
from ucan.service.metrics import Metrics
from ucan.service.replicas import application
from ucan.service.server import check_address, token_of
from ucan.service.service import ServeJob, Service
from ucan.stop_option import parse_stop
from ucan.stopping import AtRadii, Radius
from ucan.votes import Classifier, Stream, VoteCounter

ROOT = Path(__file__).parents[1]
spec = importlib.util.spec_from_file_location("check_certificate", ROOT / "checker" / "check_certificate.py")
assert spec is not None and spec.loader is not None
checker = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = checker
spec.loader.exec_module(checker)
XS = inputs()
PLAN = CertifyPlan(n=400, stop=None)


def smoothed(generator: Any = None) -> SmoothedClassifier:
    return SmoothedClassifier(thirds(), Gaussian(0.25), generator, 3)


def service(g: SmoothedClassifier | None = None, **options: Any) -> Service:
    """A service of a small classifier, in this process."""
    limits = Limits(**{"seeds": True, **options.pop("limits", {})})
    plan = options.pop("plan", PLAN)
    deployed = Deployed("thirds", g or smoothed(), Form(tuple(XS.shape[1:])), plan, (1, 2, math.inf), (), None)
    made = Service(deployed, ServeJob(run="", limits=limits, **{"log": None, **options}))
    made.worker.begin()
    return made


async def call(
    made: Service, path: str, body: Any = None, method: str = "POST", headers: dict[str, str] | None = None, **more: Any
) -> tuple[int, dict[str, str], bytes]:
    """One request to the application, as an ASGI server makes it."""
    given = {"host": "localhost:1", "content-type": "application/json", **(headers or {})}
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    told, sent = more.get("messages") or [{"type": "http.request", "body": data}], []

    async def receive() -> dict[str, Any]:
        if told:
            return dict(told.pop(0))
        await asyncio.sleep(1000)
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "query_string": more.get("query", b"")}
    scope["headers"] = [(name.encode(), value.encode()) for name, value in given.items()]
    await Application(made)(scope, receive, send)
    if not sent:
        return 499, {}, b""
    return sent[0]["status"], {k.decode(): v.decode() for k, v in sent[0]["headers"]}, sent[1]["body"]


def ask(made: Service, *requests: tuple[str, dict[str, Any]]) -> list[tuple[int, dict[str, Any]]]:
    """All of these at once: (status, body) of each, in order."""

    async def all_of_them() -> list[tuple[int, dict[str, str], bytes]]:
        return list(await asyncio.gather(*(call(made, f"/v1/{kind}", body) for kind, body in requests)))

    return [(status, json.loads(body)) for status, _, body in asyncio.run(all_of_them())]


def ended(made: Service) -> None:
    made.worker.drain()
    made.worker.join(20)
    assert not made.worker.is_alive()
    made.close()


# --- forward passes that candidates share on terms of their own ---


def law_counter() -> VoteCounter:
    f = Classifier(lambda batch: (batch[:, 0] > 0).long(), 2)
    return VoteCounter(f, 2, Gaussian(1.0), 16, 64)


def one(i: int) -> Candidate:
    x, law = torch.tensor([[0.3 * i - 0.5, float(i)]]), Gaussian(1.0)
    radius = Radius(law.radius, law.probability)
    return Candidate(i, x, SmoothedClassifier(lambda b: b, law).M.at(x), Stream(0, str(i), "estimate"), 1, radius)


TERMS = [Terms(AtRadii((0.3,)), 1000, 0.01), Terms(AllVotes(), 333, 0.05), Terms(parse_stop("30%"), 150, 0.001)]


@pytest.mark.parametrize("seats", (0, 1, 3, 20))
def test_terms_of_ones_own_give_the_votes_that_one_has_alone(seats):
    alone = {i: next(settle_each(law_counter(), [(one(i), TERMS[i % 3])])) for i in range(9)}
    both = settle_each(law_counter(), ((one(i), TERMS[i % 3]) for i in range(9)), seats)
    found = {c.index: (c.drawn, c.tally.tolist(), c.settled) for c in both}
    assert found == {i: (c.drawn, c.tally.tolist(), True) for i, c in alone.items()}
    assert {c.drawn for i, c in alone.items() if i % 3 == 1} == {333}


def test_with_seats_a_short_one_does_not_wait_for_a_long_one():
    class Live(Iterator[tuple[Candidate, Terms]]):
        """One with many votes to draw; another with few comes when the first has a thousand."""

        def __init__(self) -> None:
            self.first, self.second, self.left = one(0), one(1), 2

        def __next__(self) -> tuple[Candidate, Terms]:
            if self.left == 0 or (self.left == 1 and self.first.drawn < 1000):
                raise StopIteration
            self.left -= 1
            return (
                (self.first, Terms(AllVotes(), 5000, 0.01)) if self.left else (self.second, Terms(AllVotes(), 64, 0.01))
            )

    assert [c.index for c in settle_each(law_counter(), Live(), seats=4)] == [1, 0]
    assert [c.index for c in settle_each(law_counter(), Live())] == [0, 1]


def test_who_is_over_leaves_with_the_votes_there_are_and_the_others_go_on():
    looks = []

    def over() -> bool:
        looks.append(1)
        return len(looks) > 3

    arrivals = [(one(0), Terms(AllVotes(), 10_000, 0.01, over)), (one(1), Terms(AllVotes(), 500, 0.01))]
    first, second = settle_each(law_counter(), arrivals)
    assert (first.index, first.settled) == (0, False) and 0 < first.drawn < 10_000
    assert (second.index, second.settled, second.drawn) == (1, True, 500)


# --- inputs from strangers ---

FORM = Form((1, 2, 3))
ARRAY = np.arange(6, dtype=np.float32).reshape(1, 2, 3) / 8


def npy(array: np.ndarray, **options: Any) -> str:
    file = io.BytesIO()
    np.save(file, array, **options)
    return base64.b64encode(file.getvalue()).decode()


def picture(pixels: np.ndarray, kind: str = "PNG") -> bytes:
    image, file = pytest.importorskip("PIL.Image"), io.BytesIO()
    image.fromarray(pixels).save(file, kind)
    return file.getvalue()


@pytest.mark.parametrize(
    "value",
    [
        ARRAY.tolist(),
        [ARRAY.tolist()],
        {"npy": npy(ARRAY)},
        {"npy": npy(ARRAY[None].astype(np.float64))},
        {"npy": npy(ARRAY.astype(">f4"))},
        {"npy": npy(np.asfortranarray(ARRAY))},
    ],
)
def test_an_input_is_read_from_lists_and_arrays(value):
    assert torch.equal(FORM.read(value), torch.from_numpy(ARRAY)[None])


def test_pictures_and_bytes_are_pixels_from_0_to_1():
    pixels = np.array([[0, 51, 255], [102, 153, 204]], np.uint8)
    wanted = torch.from_numpy(pixels)[None, None].float() / 255
    assert torch.equal(FORM.read({"image": base64.b64encode(picture(pixels)).decode()}), wanted)
    assert torch.equal(FORM.read({"npy": npy(pixels[None])}), wanted)
    with pytest.raises(InvalidInput, match="2 × 2 pixels"):
        FORM.from_picture(picture(pixels[:, :2]))
    resized = Form((3, 4, 4), size=4).from_picture(picture(np.zeros((40, 30, 3), np.uint8), "JPEG"))
    assert resized.shape == (1, 3, 4, 4)
    with pytest.raises(InvalidInput, match="send an array"):
        Form((6,)).from_picture(picture(pixels))


def test_a_picture_is_refused_from_its_header(monkeypatch):
    pixels = np.zeros((2, 3), np.uint8)
    with pytest.raises(InvalidInput, match="the input has more than 8 bits per channel"):
        FORM.from_picture(picture(pixels.astype(np.uint16)))
    with pytest.raises(InvalidInput, match=r"the input is no picture \(PNG, JPEG, WebP, BMP, PPM, TIFF\)"):
        FORM.from_picture(picture(pixels, "GIF"))
    monkeypatch.setattr("ucan.data.pictures.MOST_PIXELS", 5)
    with pytest.raises(InvalidInput, match="the input has 3 × 2 pixels; at most 5 are decoded"):
        FORM.from_picture(picture(pixels))


def header(text: bytes, numbers: bytes = b"") -> str:
    return base64.b64encode(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + numbers).decode()


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "nested lists"),
        ("text", "nested lists"),
        ({"npy": 3}, "base64 text"),
        ({"npy": "%%"}, "not valid base64"),
        ({"npy": npy(ARRAY), "image": ""}, "nested lists"),
        ([[["1", "2", "3"], ["4", "5", "6"]]], "nothing else"),
        ([[[True, False, True]] * 2], "nothing else"),
        ([[[1, 2, 3], [4, 5]]], "same length"),
        ([[[1, 2, None], [4, 5, 6]]], "nothing else"),
        ([[[1e39, 2, 3], [4, 5, 6]]], "NaN or infinity"),
        ([[[10**400, 2, 3], [4, 5, 6]]], "nothing else"),
        (ARRAY[:, :1].tolist(), "shape"),
        ({"npy": npy(np.full_like(ARRAY, np.nan))}, "NaN"),
        ({"npy": npy(ARRAY.astype(np.complex64))}, "complex64"),
        ({"npy": npy(np.array([[None] * 3] * 2), allow_pickle=True)}, "object"),
        ({"npy": npy(ARRAY)[:-8]}, "cut off"),
        ({"npy": header(b"{'descr': '<f4', 'fortran_order': False, 'shape': (999999999999,)}")}, "shape"),
        ({"npy": header(b"{'descr': '<f4', 'fortran_order': False, 'shape': (" + b"(" * 900)}, "not an .npy"),
        (
            {"npy": header(b"{'descr': '<f4', 'fortran_order': False, 'shape': (True, 2, 3)}\n", bytes(24))},
            "has shape (True",
        ),
        ({"npy": header(b"__import__('os').system('true')")}, "not an .npy"),
        ({"npy": base64.b64encode(b"\x80\x04.").decode()}, "not an .npy"),
        ({"image": base64.b64encode(b"%!PS-Adobe-3.0 EPSF-3.0\n").decode()}, "no picture"),
    ],
)
def test_what_is_no_input_is_refused_with_a_reason(value, said):
    with pytest.raises(InvalidInput, match=re.escape(said)):
        FORM.read(value)


OFFER = Offer(FORM, PLAN, (2, math.inf), Limits(n=1000, alpha=0.01, deadline=5))


@given(
    st.binary(max_size=200),
    st.sampled_from(["application/json", "application/x-npy", "image/png"]),
    st.binary(max_size=30),
)
def test_garbage_is_refused_and_nothing_else_happens(body, content, query):
    with pytest.raises(InvalidInput):
        OFFER.read("certify", content, query, body)


@pytest.mark.parametrize(
    ("query", "body", "said"),
    [
        (b"", b'{"input": 0, "n": 5, "n": 1000}', "the entry 'n' occurs twice"),
        (b"", b'{"input": {"npy": "", "npy": ""}}', "the entry 'npy' occurs twice"),
        (b"", b'{"input": [NaN]}', "it holds NaN, which is no JSON number"),
        (b"n=", base64.b64decode(npy(ARRAY)), "n must be a whole number"),
        (b"n=5&stop=", base64.b64decode(npy(ARRAY)), "stop takes radii"),
    ],
)
def test_an_option_is_never_read_in_two_ways_or_left_out(query, body, said):
    content = "application/x-npy" if query else "application/json"
    with pytest.raises(InvalidInput, match=said):
        OFFER.read("certify", content, query, body)


JSONS = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.sampled_from(["input", "n", "alpha", "stop", "norm", "seed", "deadline"]), JSONS))
def test_json_of_any_kind_is_read_or_refused(given_):
    for kind in ("certify", "predict"):
        try:
            asked = OFFER.read(kind, "application/json", b"", json.dumps({"input": ARRAY.tolist(), **given_}).encode())
        except InvalidInput:
            continue
        plan = asked.plan
        assert 1 <= plan.n <= 1000 and 1e-9 <= plan.alpha <= 0.01 and isinstance(plan.seed, SecretSeed)
        assert 0 < asked.deadline <= 5 and getattr(plan, "norm", 2) in (2, math.inf)


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        ("certify", {"n": 1001}, "from 1 to 1,000"),
        ("certify", {"n": 0}, "from 1 to 1,000"),
        ("certify", {"n": 10.5}, "whole number"),
        ("certify", {"n": True}, "whole number"),
        ("certify", {"alpha": 0.5}, "from 1e-09 to 0.01"),
        ("certify", {"alpha": "0.001"}, "must be a number"),
        ("certify", {"norm": 1}, 'one of 2, "inf"'),
        ("certify", {"norm": True}, "one of"),
        ("certify", {"stop": "package.rule(1)"}, "percentage"),
        ("certify", {"stop": "myrule:3"}, "percentage"),
        ("certify", {"stop": list(range(17))}, "up to 16 radii"),
        ("certify", {"stop": [-1]}, "radii of 0 or more"),
        ("certify", {"seed": 3}, "chooses its seeds itself"),
        ("certify", {"deadline": 6}, "seconds up to 5"),
        ("certify", {"bound": "two-class"}, "unknown option bound"),
        ("predict", {"norm": 2}, "unknown option norm"),
        ("predict", {"stop": 0.5}, "true or false"),
    ],
)
def test_options_beyond_the_limits_are_refused(kind, options, said):
    with pytest.raises(InvalidInput, match=re.escape(said)):
        OFFER.asked(kind, torch.zeros(1, 1, 2, 3), options)


def test_a_request_without_a_seed_has_one_of_its_own_that_is_secret():
    first, second = (OFFER.asked("certify", torch.zeros(1, 1, 2, 3), {}).plan.seed for _ in range(2))
    assert first != second and isinstance(first, SecretSeed)
    open_ = replace(OFFER, limits=Limits(seeds=True))
    assert open_.asked("certify", torch.zeros(1, 1, 2, 3), {"seed": 7}).plan.seed == 7
    with pytest.raises(InvalidInput, match="whole number"):
        open_.asked("certify", torch.zeros(1, 1, 2, 3), {"seed": -1})


# --- answers ---

MIXED: list[tuple[str, dict[str, Any]]] = [
    ("certify", {"n": 1000, "stop": [0.1, 0.25], "seed": 1}),
    ("certify", {"n": 700, "alpha": 0.01, "seed": 2, "norm": "inf"}),
    ("predict", {"n": 300, "seed": 3}),
    ("certify", {"n": 2000, "stop": "10%", "alpha": 0.002, "seed": 4}),
    ("predict", {"n": 900, "stop": True, "seed": 5}),
    ("certify", {"n": 64, "stop": None, "seed": 2**100, "norm": 1}),
    ("certify", {"n": 800, "stop": "linf:0.05", "seed": 8}),
]


def by_the_library(g: SmoothedClassifier, kind: str, x: torch.Tensor, options: dict[str, Any]) -> dict[str, Any]:
    norm = {"norm": math.inf} if options.get("norm") == "inf" else {}
    (outcome,) = (g.certify if kind == "certify" else g.predict)(x, **{**options, **norm})
    return json.loads(json.dumps(outcome.to_dict()))


@pytest.mark.parametrize("generator", [None, Fixed(torch.linspace(0.5, 2, 16).reshape(1, 4, 4))])
def test_concurrent_answers_are_those_of_the_library_field_for_field(generator):
    made, g = service(smoothed(generator)), smoothed(generator)
    asked = [(kind, i, options) for i in range(len(XS)) for kind, options in MIXED[i % 3 :: 2]]
    answers = ask(made, *((kind, {"input": XS[i].tolist(), **options}) for kind, i, options in asked))
    ended(made)
    assert {status for status, _ in answers} == {200}
    for (kind, i, options), (_, record) in zip(asked, answers, strict=True):
        assert record == by_the_library(g, kind, XS[i : i + 1], options)
    assert {record["kind"] for _, record in answers} == {"certificate", "abstention", "prediction"}


def test_all_draws_of_splitting_noise_are_counted_where_the_run_does_that():
    g = SmoothedClassifier(thirds(), Uniform(0.5), Splitting((1, 4, 4), steps=64), 3, step=1 / 64)
    plan = g.counting(CertifyPlan(norm=1, bound="exact"))
    made = Service(Deployed("split", g, Form((1, 4, 4)), plan, (1,), (), None), ServeJob(run="", log=None))
    made.worker.begin()
    xs = (XS * 64).round() / 64
    answers = ask(made, *((kind, {"input": x.tolist()}) for x in xs for kind in ("certify", "predict")))
    for i in range(len(xs)):
        (wanted,) = g.certify(xs[i : i + 1], norm=1, bound="exact", seed=None)
        (likely,) = g.predict(xs[i : i + 1], test="exact", seed=None)
        for (status, record), outcome in zip(answers[2 * i : 2 * i + 2], (wanted, likely), strict=True):
            assert status == 200 and record == json.loads(json.dumps(outcome.to_dict()))
    ((status, said),) = ask(made, ("certify", {"input": xs[0].tolist(), "n": 10}))
    assert status == 400 and "leave out n" in said["message"]
    ended(made)


@pytest.mark.parametrize("bound", ["two-class", "randomised", "anytime"])
def test_the_bound_is_that_of_the_run(bound):
    made = service(plan=CertifyPlan(n=300, bound=bound))
    answers = ask(made, *(("certify", {"input": x.tolist(), "seed": 5}) for x in XS[:4]))
    ended(made)
    for x, (status, record) in zip(XS[:4].split(1), answers, strict=True):
        assert status == 200 and record == by_the_library(
            smoothed(), "certify", x, {"n": 300, "bound": bound, "seed": 5}
        )


def test_a_secret_seed_is_not_in_the_answer_and_the_log_has_what_draws_it_again(tmp_path):
    made = service(log=str(tmp_path / "log"))
    ((status, record),) = ask(made, ("certify", {"input": XS[1].tolist(), "n": 300}))
    ended(made)
    assert status == 200 and record["evidence"]["seed"] is None
    (line,) = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert line["input"] == record["evidence"]["input_hash"] and line["prediction"] == record["prediction"]
    assert line["norm"] == record["norm"] == 2
    ((_, again),) = smoothed().certify_each(
        smoothed().check_inputs(XS[1:2]), CertifyPlan(n=300, seed=SecretSeed(line["seed"]))
    )
    assert json.loads(json.dumps(again.to_dict())) == record
    assert not any(str(value) in (tmp_path / "log").read_text() for value in XS[1].flatten().tolist())


def test_a_deadline_gives_an_abstention_with_its_reason_and_its_votes(tmp_path):
    jsonschema = pytest.importorskip("jsonschema")
    made = service(limits={"n": 10**7})
    requests = [("certify", {"input": XS[0].tolist(), "n": 10**7, "deadline": 0.3})]
    requests += [("predict", {"input": XS[0].tolist(), "n": 10**7, "deadline": 1e-9})]
    requests += [("certify", {"input": XS[0].tolist(), "n": 200, "seed": 1})]
    started = time.monotonic()
    (_, late), (_, at_once), (_, fine) = ask(made, *requests)
    assert time.monotonic() - started < 5
    ended(made)
    assert late["kind"] == "abstention" and "the deadline of 0.3 s came after" in late["reason"]
    assert 0 < late["evidence"]["n"] < 10**7 and "prediction" not in late
    assert at_once["kind"] == "abstention" and at_once["evidence"]["n"] == 0
    assert fine == by_the_library(smoothed(), "certify", XS[:1], {"n": 200, "seed": 1})
    schema = json.loads((ROOT / "src/ucan/certificate.schema.json").read_text())
    for record in (late, at_once):
        jsonschema.validate(record, schema)
        assert isinstance(from_dict(record), Abstention)
        (tmp_path / "outcome.json").write_text(json.dumps(record))
        assert checker.main([str(tmp_path / "outcome.json")]) == 0
    assert made.ledger.spent == pytest.approx(0.002)  # that of the one without a vote was given back


def test_a_full_queue_says_when_to_try_again_and_answers_the_others():
    made = service(limits={"queue": 2, "n": 10**6})
    body = {"input": XS[0].tolist(), "n": 30_000, "stop": None}

    async def many() -> list[tuple[int, dict[str, str], bytes]]:
        return list(await asyncio.gather(*(call(made, "/v1/certify", body) for _ in range(60))))

    answers = asyncio.run(many())
    ended(made)
    statuses = [status for status, _, _ in answers]
    assert set(statuses) == {200, 429} and statuses.count(200) >= 2  # more if the worker took some while others came
    for status, headers, body_ in answers:
        if status == 429:
            assert 1 <= int(headers["retry-after"]) <= 60 and json.loads(body_)["error"] == "busy"
    assert made.ledger.spent == pytest.approx(0.001 * statuses.count(200))


def test_alpha_is_spent_once_per_claim_and_never_more_than_the_budget():
    made = service(limits={"alpha_budget": 0.0055})
    answers = [ask(made, ("predict", {"input": XS[i].tolist(), "n": 50}))[0] for i in range(5)]
    assert [status for status, _ in answers] == [200] * 5
    ((status, said),) = ask(made, ("predict", {"input": XS[0].tolist(), "n": 50}))
    assert (status, said["error"]) == (403, "alpha-spent")
    ((status, _),) = ask(made, ("predict", {"input": XS[0].tolist(), "n": 50, "alpha": 0.0004}))
    assert status == 200
    assert "ucan_alpha_spent 0.0054" in made.metrics.text() and "ucan_alpha_budget 0.0055" in made.metrics.text()
    ended(made)


def test_a_budget_of_alpha_is_for_one_process():
    with pytest.raises(InvalidInput, match="one process"):
        application(ServeJob(run="", limits=Limits(alpha_budget=0.05)), replicas=2)


def test_a_ledger_neither_loses_nor_invents_alpha():
    ledger = Ledger(None)
    for _ in range(100_000):
        assert ledger.take(1e-6)
    assert ledger.spent == pytest.approx(0.1, rel=1e-12)
    for _ in range(100_000):
        ledger.give_back(1e-6)
    assert ledger.spent == pytest.approx(0, abs=1e-15)
    assert not Ledger(0.01).take(0.011)


def test_an_input_that_the_model_fails_on_spoils_no_other_answer():
    made = service()
    dark = torch.full((1, 4, 4), -100.0)
    requests = [("certify", {"input": XS[i].tolist(), "n": 500, "seed": i}) for i in range(6)]
    answers = ask(made, *requests[:3], ("certify", {"input": dark.tolist(), "n": 500}), *requests[3:])
    assert (answers[3][0], answers[3][1]["error"]) == (500, "model-failed") and "too dark" in answers[3][1]["message"]
    for i, (status, record) in enumerate(answers[:3] + answers[4:]):
        assert status == 200 and record == by_the_library(smoothed(), "certify", XS[i : i + 1], {"n": 500, "seed": i})
    assert made.worker.well
    ended(made)


class Failing(torch.nn.Module):
    """A model whose failure on dark inputs is one of the package's own errors."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.inner, self.error = thirds(), error

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        if (batch.flatten(1).mean(1) < -50).any():
            raise self.error
        return self.inner(batch)


@pytest.mark.parametrize("error", [ModelError("it answers nothing"), MissingExtra("no booster here")])
def test_a_model_that_fails_is_the_services_failure_whatever_it_raises(error):
    made = service(SmoothedClassifier(Failing(error).eval(), Gaussian(0.25), None, 3))
    dark = {"input": torch.full((1, 4, 4), -100.0).tolist()}
    for failed in range(1, 4):
        ((status, said),) = ask(made, ("certify", dark))
        assert (status, said["error"], made.worker.failures) == (500, "model-failed", failed)
        assert said["message"] == f"{type(error).__name__}: {error}"
    assert get(made, "/healthz")[0] == 503
    assert ask(made, ("certify", {"input": XS[0].tolist()}))[0][0] == 200
    assert get(made, "/healthz")[0] == 200  # it can still answer
    ended(made)


def test_noise_that_does_not_exist_at_an_input_is_that_requests_fault():
    made = service(frozen())
    for _ in range(3):
        ((status, said),) = ask(made, ("certify", {"input": torch.full((1, 4, 4), -3e38).tolist()}))
        assert (status, said["error"]) == (400, "refused") and "must be finite" in said["message"]
    assert made.worker.well
    ended(made)


def test_noise_lost_in_rounding_is_refused_for_that_input_alone():
    made = service()
    huge = torch.full((1, 4, 4), 1e30)
    (bad, fine) = ask(made, ("certify", {"input": huge.tolist()}), ("certify", {"input": XS[0].tolist()}))
    assert bad[0] == 400 and fine[0] == 200
    ended(made)


def test_work_for_a_client_who_hangs_up_is_dropped():
    made = service(limits={"n": 10**8})
    body = json.dumps({"input": XS[0].tolist(), "n": 10**8}).encode()

    async def leave() -> int:
        messages = [{"type": "http.request", "body": body}, {"type": "http.disconnect"}]
        return (await call(made, "/v1/certify", messages=messages))[0]

    assert asyncio.run(leave()) == 499
    last = time.monotonic() + 10
    while (made.worker.under_way or made.worker.waiting) and time.monotonic() < last:
        time.sleep(0.01)
    assert not made.worker.under_way
    assert ask(made, ("predict", {"input": XS[0].tolist()}))[0][0] == 200
    ended(made)


def test_who_drains_refuses_new_requests_and_finishes_the_others():
    made = service()

    async def both() -> tuple[Any, Any]:
        running = asyncio.ensure_future(call(made, "/v1/certify", {"input": XS[0].tolist(), "n": 50_000}))
        await asyncio.sleep(0.1)
        made.worker.drain()
        late = await call(made, "/v1/certify", {"input": XS[0].tolist()})
        return await running, late

    running, late = asyncio.run(both())
    assert running[0] == 200 and late[0] == 503 and int(late[1]["retry-after"]) >= 1
    made.worker.join(10)
    assert not made.worker.is_alive()


def test_what_is_refused_at_the_end_is_told_so():
    made = service(limits={"n": 10**8})

    async def cut() -> Any:
        running = asyncio.ensure_future(call(made, "/v1/certify", {"input": XS[0].tolist(), "n": 10**8}))
        await asyncio.sleep(0.2)
        made.worker.refuse_rest()
        return await running

    status, headers, _ = asyncio.run(cut())
    assert status == 503 and "retry-after" in headers


# --- with a memory ---


def frozen() -> SmoothedClassifier:
    torch.manual_seed(0)
    return smoothed(CertificationWise(1, features=2, growth=2))


def test_a_registry_makes_answers_hold_across_requests_and_restarts(tmp_path):
    job = {"registry": str(tmp_path / "answers.sqlite"), "plan": replace(PLAN, n=300)}
    made = service(frozen(), **job)
    first = [record for _, record in ask(made, *(("certify", {"input": x.tolist()}) for x in XS))]
    ended(made)
    assert {record["scope"] for record in first} == {"registry"}
    again = service(frozen(), **job)
    assert [
        r["prediction"] for _, r in ask(again, *(("certify", {"input": x.tolist()}) for x in XS)) if "prediction" in r
    ] == [r["prediction"] for r in first if "prediction" in r]
    assert again.ledger.spent == 0  # nothing new is claimed
    rng, held = torch.Generator().manual_seed(0), 0
    for x, record in zip(XS, first, strict=True):
        certificate = from_dict(record)
        if not isinstance(certificate, Certificate) or certificate.radius == 0:
            continue
        delta = torch.randn(1, 4, 4, generator=rng)
        inside = x + 0.9 * certificate.radius * delta / delta.norm()
        for kind in ("certify", "predict"):
            ((status, near),) = ask(again, (kind, {"input": inside.tolist()}))
            assert status == 200 and near["prediction"] == certificate.prediction
        held += 1
    assert held >= 3
    ((status, said),) = ask(again, ("certify", {"input": XS[0].tolist(), "alpha": 0.01}))
    assert status == 400 and "alpha" in said["message"].lower()
    ended(again)


def test_two_services_that_share_a_registry_keep_each_others_promises(tmp_path):
    job = {"registry": str(tmp_path / "answers.sqlite"), "plan": replace(PLAN, n=200)}
    both = [service(frozen(), **job) for _ in range(2)]
    rng = torch.Generator().manual_seed(3)
    points = torch.rand(16, 1, 4, 4, generator=rng)

    async def at_once() -> list[Any]:
        asked = [call(both[i % 2], "/v1/certify", {"input": x.tolist()}) for i, x in enumerate(points)]
        return list(await asyncio.gather(*asked))

    promised = [from_dict(json.loads(body)) for _, _, body in asyncio.run(at_once())]
    held = 0
    for x, certificate in zip(points, promised, strict=True):
        if isinstance(certificate, Certificate) and certificate.radius > 0:
            delta = torch.randn(1, 4, 4, generator=rng)
            inside = (x + 0.95 * certificate.radius * delta / delta.norm()).tolist()
            assert {ask(one, ("predict", {"input": inside}))[0][1]["prediction"] for one in both} == {
                certificate.prediction
            }
            held += 1
    assert held >= 3
    for one in both:
        ended(one)


# --- the network's manners ---


def get(made: Service, path: str, **more: Any) -> tuple[int, dict[str, str], bytes]:
    return asyncio.run(call(made, path, method="GET", **more))


@pytest.fixture(scope="module")
def guarded():
    made = service(token="0123456789abcdef0123", limits={"body": 5000, "slow": 0.2})
    yield made
    ended(made)


BEARER = {"authorization": "Bearer 0123456789abcdef0123"}


@pytest.mark.parametrize(
    "headers", [{}, {"authorization": "Bearer 0123456789abcdef0124"}, {"authorization": "Basic 0123456789abcdef0123"}]
)
def test_without_the_token_nothing_is_answered(guarded, headers):
    for path in ("/v1/certify", "/v1/predict"):
        status, said, _ = asyncio.run(call(guarded, path, {"input": XS[0].tolist()}, headers=headers))
        assert status == 401 and said["www-authenticate"] == "Bearer"
    assert get(guarded, "/metrics", headers=headers)[0] == 401 and get(guarded, "/v1/about", headers=headers)[0] == 401
    assert get(guarded, "/healthz", headers=headers)[0] == 200


def test_with_the_token_everything_is(guarded):
    assert asyncio.run(call(guarded, "/v1/predict", {"input": XS[0].tolist()}, headers=BEARER))[0] == 200
    status, _, about = get(guarded, "/v1/about", headers=BEARER)
    assert status == 200 and json.loads(about)["shape"] == [1, 4, 4]
    assert b"ucan_votes_total" in get(guarded, "/metrics", headers=BEARER)[2]


def test_a_large_body_is_refused_before_it_is_read(guarded):
    headers = {**BEARER, "content-length": "5001"}
    status, said, _ = asyncio.run(call(guarded, "/v1/certify", b"", headers=headers, messages=[]))
    assert status == 413 and said["connection"] == "close"
    parts = [{"type": "http.request", "body": b"[" * 3000, "more_body": True}] * 2
    assert asyncio.run(call(guarded, "/v1/certify", headers=BEARER, messages=list(parts)))[0] == 413


def test_a_slow_body_is_not_waited_for(guarded):
    parts = [{"type": "http.request", "body": b"{", "more_body": True}]
    assert asyncio.run(call(guarded, "/v1/certify", headers=BEARER, messages=parts))[0] == 408


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/v1/certify", 405), ("POST", "/healthz", 405), ("GET", "/etc/passwd", 404), ("PUT", "/x", 404)],
)
def test_other_paths_and_methods_are_refused(guarded, method, path, status):
    assert asyncio.run(call(guarded, path, {}, method=method, headers=BEARER))[0] == status
    assert get(guarded, "/v1/tensors/../../secret", headers=BEARER)[0] == 404


def test_a_page_of_another_site_gets_no_answer():
    made = service()
    for host, status in [
        ("evil.example", 403),
        ("localhost:8000", 200),
        ("127.0.0.1", 200),
        ("[::1]:80", 200),
        ("", 403),
    ]:
        assert get(made, "/healthz", headers={"host": host})[0] == status
    form = {"content-type": "text/plain"}
    assert asyncio.run(call(made, "/v1/certify", {"input": XS[0].tolist()}, headers=form))[0] == 415
    ended(made)


def test_a_picture_or_an_array_may_be_the_body_itself():
    made = service()
    pixels = np.full((4, 4), 200, np.uint8)
    x = torch.from_numpy(pixels)[None, None].float() / 255
    wanted = by_the_library(smoothed(), "certify", x, {"n": 200, "seed": 3})
    bodies = {"image/png": picture(pixels), "application/x-npy": base64.b64decode(npy(x[0].numpy()))}
    for content, body in bodies.items():
        found = asyncio.run(call(made, "/v1/certify", body, headers={"content-type": content}, query=b"n=200&seed=3"))
        assert found[0] == 200 and json.loads(found[2]) == wanted
    assert asyncio.run(call(made, "/v1/certify", b"", headers={"content-type": "image/png"}))[0] == 400
    ended(made)


def test_the_pages_describe_the_service_and_load_nothing_from_elsewhere():
    made = service()
    status, _, page = get(made, "/docs")
    assert status == 200 and b"/v1/certify" in page and not re.search(rb"(src|href)=[\"']?(https?:)?//", page)
    api = json.loads(get(made, "/openapi.json")[2])
    assert set(api["paths"]["/v1/certify"]["post"]["responses"]) >= {"200", "400", "401", "413", "429", "503"}
    schema = api["paths"]["/v1/certify"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert set(schema["properties"]) == {"input", "n", "alpha", "stop", "norm", "seed", "deadline"}
    assert get(made, "/v1/certificate.schema.json")[0] == 200
    ended(made)


def test_metrics_are_text_that_prometheus_reads():
    metrics = Metrics()
    metrics.counter("a_total", "Things.")
    metrics.gauge("b", "A number.", lambda: 0.25)
    metrics.add("a_total", 2, path="/x", status="200")
    metrics.observe(0.02)
    lines = metrics.text().splitlines()
    assert 'a_total{path="/x",status="200"} 2' in lines and "b 0.25" in lines
    assert 'ucan_answer_seconds_bucket{le="0.025"} 1' in lines and 'ucan_answer_seconds_bucket{le="0.01"} 0' in lines
    assert all(re.match(r"^(# (HELP|TYPE) .+|[a-z_]+(\{[^}]*\})? \S+)$", line) for line in lines)


def test_a_large_sigma_is_fetched_by_its_hash(monkeypatch):
    torch.manual_seed(0)
    x = torch.rand(1, 1, 9, 9)
    g = SmoothedClassifier(thirds(), Gaussian(0.25), Fixed(scales.Dense(torch.eye(81) + 0.001)), 3)
    deployed = Deployed("dense", g, Form((1, 9, 9)), PLAN, (2,), (), None)
    made = Service(deployed, ServeJob(run="", log=None))
    made.worker.begin()
    ((status, record),) = ask(made, ("certify", {"input": x[0].tolist(), "n": 300}))
    name = record["region"]["scale"]["tensors"]["file"]
    found, _, data = get(made, f"/v1/tensors/{name}")
    assert status == found == 200 and len(data) > 81 * 81 * 4
    assert get(made, f"/v1/tensors/{'0' * 64}.safetensors")[0] == 404
    read = Path.read_bytes

    def removed_meanwhile(self: Path) -> bytes:
        self.unlink()
        return read(self)

    monkeypatch.setattr(Path, "read_bytes", removed_meanwhile)
    assert get(made, f"/v1/tensors/{name}")[0] == 404
    ended(made)


# --- the operator's doors ---


def test_a_job_that_is_shown_keeps_its_token():
    assert "0123456789abcdef" not in repr(ServeJob(run="mine", token="0123456789abcdef"))


def test_others_are_not_served_without_a_token(monkeypatch, tmp_path):
    monkeypatch.delenv("UCAN_TOKEN", raising=False)
    assert token_of(None) is None
    for host in ("0.0.0.0", "::", "192.168.1.5", "example.org"):
        with pytest.raises(InvalidInput, match="token"):
            check_address(host, None)
        check_address(host, "0123456789abcdef")
    for host in ("127.0.0.1", "::1", "localhost"):
        check_address(host, None)
    monkeypatch.setenv("UCAN_TOKEN", "short")
    with pytest.raises(InvalidInput, match="at least 16"):
        token_of(None)
    (tmp_path / "token").write_text("0123456789abcdef\n")
    assert token_of(tmp_path / "token") == "0123456789abcdef"
    with pytest.raises(InvalidInput, match="cannot be read"):
        token_of(tmp_path / "none")


@pytest.mark.parametrize(
    "wrong", [{"n": 0}, {"alpha": 1.0}, {"deadline": 0}, {"least_alpha": 0.1}, {"alpha_budget": 2}]
)
def test_limits_that_make_no_sense_are_refused(wrong):
    with pytest.raises(InvalidInput):
        Limits(**wrong)


def test_plans_of_either_algorithm_begin_and_end_as_in_the_library():
    g = smoothed()
    (x,) = g.check_inputs(XS[5:6])
    for plan in (CertifyPlan(n=100, seed=1), PredictPlan(n=100, seed=1), PredictPlan(n=500, stop=True)):
        setup = g.engine.setup(x, plan)
        held = Issuer(g.engine, x.device)(x)
        terms = Terms(g.rule(plan), plan.n, plan.level)
        (candidate,) = settle_each(setup.counter, [(g.begun(setup, 0, *held, plan), terms)])
        each = g.certify_each if isinstance(plan, CertifyPlan) else g.predict_each
        ((_, wanted),) = each([x], plan)
        assert g.ended(setup, candidate, plan).to_dict() == wanted.to_dict()


OLD = ROOT / "tests" / "fixtures" / "version-0.1"


@pytest.mark.parametrize(("name", "model"), [("two-class-run", "isotropic"), ("composed-run", "composed")])
def test_a_run_of_an_older_version_is_served_as_it_was(name, model):
    pytest.importorskip("sklearn")
    run, dataset = Run.open(OLD / name), load("digits")
    limits = Limits(seeds=True)
    made = Service(Deployed.open(OLD / name, str(OLD / model)), ServeJob(run="", limits=limits, log=None))
    made.worker.begin()
    seed = run.config.sampling.number
    numbers = run.columns["idx"].tolist()[:3]
    answers = ask(made, *(("certify", {"input": dataset[i][0].tolist(), "seed": seed}) for i in numbers))
    ended(made)
    for i, (status, record) in zip(numbers, answers, strict=True):
        stored = run.outcome(i)
        assert status == 200 and stored.counts.tolist() == record["evidence"]["counts"]
        assert stored.prediction == record.get("prediction") and stored.radius == record.get("radius", 0.0)


def test_another_model_than_that_of_the_run_is_refused():
    with pytest.raises(InvalidInput, match="not the one that"):
        Deployed.open(OLD / "isotropic-run", str(OLD / "composed"))
    with pytest.raises(InvalidInput, match="brings its own model"):
        Deployed.open(OLD / "isotropic", "served:thirds")
