"""The service on runs of questions: its answers are those of the run and of the library, field for field."""

import asyncio
import json

import pytest
import torch

from test_ask import EXAMPLES, TASKS, asked, records, run
from test_service import ask, call, ended, service
from ucan import InvalidInput
from ucan.questions.looks import looks_of
from ucan.questions.records import from_dict
from ucan.runs.ask import begun
from ucan.runs.asked import targets_of
from ucan.service.deployed import Deployed
from ucan.service.limits import Limits
from ucan.service.service import ServeJob, Service

ALONE = ("regression", "backwards", "top-k", "confidence", "labels", "segmentation")


def opened(folder, **limits):
    made = Service.open(ServeJob(run=str(folder), log=None, device="cpu", limits=Limits(seeds=True, **limits)))
    data = targets_of(begun(folder))
    return made, data


def body(x, **options):
    return {"input": x.tolist(), "seed": 0, **options}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = {}

    def of(task):
        if task not in made:
            folder = tmp_path_factory.mktemp(task) / "run"
            assert asked(task, folder, "--max", 2).exit_code == 0
            made[task] = folder
        return made[task]

    return of


@pytest.mark.parametrize("task", ALONE)
def test_answers_are_those_of_the_run_and_of_the_library(task, folders):
    folder = folders(task)
    made, data = opened(folder)
    try:
        answers = ask(made, *(("ask", body(data[i][0])) for i in (1, 0, 1)))
        wanted = records(folder)
        for i, (status, record) in zip((1, 0, 1), answers, strict=True):
            assert status == 200
            told, stored = (json.loads(json.dumps(one, sort_keys=True)) for one in (record, wanted[i]))
            assert told == stored
        ((status, short),) = ask(made, ("ask", body(data[0][0], n=200, alpha=0.01)))
        g, plan = made.deployed.g, made.deployed.plan
        ((_, mine),) = g.ask_each(
            g.check_inputs(data[0][0][None], plan.norm),
            g.plan(plan.n0, 200, 0.01, plan.norm, plan.batch_size, None, 1, None),
            made.deployed.question,
        )
        assert status == 200 and short == json.loads(json.dumps(mine.to_dict(made._folder())))
    finally:
        ended(made)


def test_a_request_may_stop_early(folders):
    made, data = opened(folders("top-k"))
    try:
        (status, found), (bad, said) = ask(
            made, ("ask", body(data[0][0], n=2000, stop=0.1)), ("ask", body(data[0][0], stop="5%"))
        )
        answer = from_dict(found)
        assert status == 200 and answer.evidence.n < 2000 and answer.evidence.looks == looks_of(2000)
        ((_, mine),) = made.deployed.g.ask_each(
            [data[0][0][None]],
            made.deployed.g.plan(100, 2000, 0.001, 2, None, None, 1, 0.1),
            made.deployed.question,
        )
        assert found == json.loads(json.dumps(mine.to_dict()))
        assert bad == 400 and "radii" in said["message"]
    finally:
        ended(made)


def test_a_rule_that_the_question_cannot_have_is_refused(folders):
    made, data = opened(folders("labels"))
    try:
        ((status, said),) = ask(made, ("ask", body(data[0][0], stop=0.1)))
        assert status == 400 and "give stop=0.2" in said["message"]
    finally:
        ended(made)


def test_a_deadline_is_an_abstention_that_claims_nothing(folders):
    made, data = opened(folders("regression"))
    try:
        ((status, found),) = ask(made, ("ask", body(data[0][0], n=100_000, deadline=1e-6)))
        assert status == 200 and "nothing is claimed" in found["reason"]
        outcome = from_dict(found)
        assert outcome.abstained and outcome.evidence.looks == ()
    finally:
        ended(made)


def test_each_path_says_where_to_ask_instead(folders):
    made, data = opened(folders("regression"))
    try:
        ((status, said), (other, again)) = ask(made, *((kind, body(data[0][0])) for kind in ("certify", "predict")))
        assert status == other == 400 and said["message"] == again["message"]
        assert said["message"] == "this service answers the question regression: use /v1/ask."
        _, _, about = asyncio.run(call(made, "/v1/about", None, "GET"))
        told = json.loads(about)
        assert told["question"] == {"name": "regression", "p": 0.5, "radii": [0.1, 0.2]} and told["classes"] is None
    finally:
        ended(made)
    plain = service()
    try:
        ((status, said),) = ask(plain, ("ask", {"input": torch.zeros(1, 4, 4).tolist()}))
        assert status == 400 and "serve a run of `ucan ask`" in said["message"]
    finally:
        ended(plain)


def test_what_cannot_be_served_says_why(folders, tmp_path):
    folder = folders("labels")
    with pytest.raises(InvalidInput, match="a registry stores answers of one class"):
        Service.open(ServeJob(run=str(folder), log=None, device="cpu", registry=str(tmp_path / "memory.sqlite")))
    with pytest.raises(InvalidInput, match="not the one"):
        Deployed.open(folder, model=EXAMPLES + "diabetes")
    with pytest.raises(InvalidInput, match="another question than one class"):
        _ = Deployed.open(folder).classifier
    words, model, data, _ = TASKS["confidence"]
    hopeless = [0.999 if word == "0.6" else word for word in words]
    run(
        "ask",
        *hopeless,
        "--model",
        EXAMPLES + model,
        "--data",
        data,
        "-o",
        tmp_path / "run",
        "--n",
        100,
        "--max",
        1,
        "-q",
    )
    with pytest.raises(InvalidInput, match="no abstention first"):
        Deployed.open(tmp_path / "run")
