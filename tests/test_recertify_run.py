"""`ucan recertify`: a run's certificates for the classifier that replaces its own."""

from __future__ import annotations

import json
import math
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import ucan
from ucan.app.session import Session
from ucan.bounds import lower_bound
from ucan.cli import app
from ucan.data import InMemory
from ucan.errors import InvalidInput, StoreError
from ucan.leaderboard.checking import check
from ucan.leaderboard.checks import CheckJob
from ucan.leaderboard.entry import write_entry
from ucan.leaderboard.making import entry_of
from ucan.plan import CertifyPlan
from ucan.report.rerun import commands
from ucan.results.store import Store
from ucan.runs.certify import CertifyJob, certify
from ucan.runs.read import Run
from ucan.runs.rebuild import pipeline_of
from ucan.runs.recertify import RecertifyJob, recertify

MODULE = """
import torch
from torch import nn

def made(shift):
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 2)).eval()
    with torch.no_grad():
        net[1].weight.copy_(torch.tensor([[0.0, 0, 0, 0], [1.0, 0, 0, 0]]))
        net[1].bias.copy_(torch.tensor([0.0, -0.5 - shift]))
    return net

def old():
    return made(0.0)

def near():
    return made(0.001)

def far():
    return made(0.2)

def above_half(batch):
    return (batch.flatten(1)[:, 0] > 0.5).long()

def above_more(batch):
    return (batch.flatten(1)[:, 0] > 0.51).long()

class Unidentified:
    def __reduce_ex__(self, protocol):
        raise TypeError("it cannot be taken apart")

    def __call__(self, batch):
        return above_half(batch)

unidentified = Unidentified()
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Inputs at known distances from the border at 0.5, certified under the old classifier."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("halves.py").write_text(MODULE)
    import numpy as np

    x = np.full((6, 1, 2, 2), 0.5, dtype=np.float32)
    x[:, 0, 0, 0] += np.array([0.2, 0.35, 0.45, -0.3, 0.001, 0.5], dtype=np.float32)
    np.savez("x.npz", x=x, y=np.array([1, 1, 1, 0, 1, 1]))
    job = CertifyJob(model="halves:old", data="x.npz", scale=0.25, n=20_000, device="cpu")
    certify(job, tmp_path / "old")
    yield tmp_path
    import sys

    sys.modules.pop("halves", None)


TRUE = {"near": 0.001, "far": 0.2}


@pytest.mark.parametrize("name", TRUE)
def test_no_radius_is_above_the_new_classifiers_own(place, name):
    done = recertify(RecertifyJob(run=place / "old", model=f"halves:{name}", device="cpu"), place / "new")
    distances = [d - TRUE[name] for d in (0.2, 0.35, 0.45, -0.3, 0.001, 0.5)]
    run = Run.open(place / "new")
    for i, distance in enumerate(distances):
        outcome = run.outcome(i)
        if isinstance(outcome, ucan.Certificate):
            assert outcome.radius <= abs(distance) + 1e-6 and outcome.prediction == int(distance > 0)
    assert done.before == 5 and done.votes_now < done.votes_before / 5
    if name == "near":
        assert done.now == 5 and done.radii_kept > 0.9
    bounds = {run.outcome(i).evidence.bound for i in range(6)}
    assert bounds == {"joint", "binary"}  # abstentions get fresh votes
    for i in range(6):  # and a tenth of α, which the others leave to them
        evidence = run.outcome(i).evidence
        assert evidence.alpha == (0.001 if evidence.bound == "joint" else 0.0001)


def told(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def test_on_the_command_line_it_resumes_and_is_told_again(place):
    words = ("recertify", place / "old", "--model", "halves:near", "-o", "new", "--device", "cpu", "--json", "--quiet")
    first = told(*words)
    assert first.exit_code == 0, first.output
    before = [Run.open("new").outcome(i).to_dict() for i in range(6)]
    again = told(*words)
    assert json.loads(again.stdout) == json.loads(first.stdout) and json.loads(first.stdout)["inputs"] == 6
    assert [Run.open("new").outcome(i).to_dict() for i in range(6)] == before
    line = commands(Run.open("new"))[0]
    assert line.startswith(f"ucan recertify {place / 'old'} --model halves:near") and "--n 2000" in line
    assert not Path("new", "certificates").exists()
    assert told(*words, "--certificates").exit_code == 0  # of what is there already
    files = sorted(Path("new", "certificates").glob("*.json"))
    assert len(files) == 6 and json.loads(files[0].read_text())["evidence"]["pairs"]["lost"] >= 0
    checked = told("verify", files[0], "--model", "halves:near", "--input", "x.npz", "--index", "0")
    assert checked.exit_code == 0 and "stands" in checked.stdout, checked.output
    words_only = told("recertify", place / "old", "--model", "halves:near", "-o", "other", "--device", "cpu", "-q")
    assert "certificates where there were 5" in words_only.stdout
    assert told("verify", "--help").exit_code == 0
    report = told("report", "new", "-o", "page.html")
    page = Path("page.html").read_text()
    assert report.exit_code == 0 and "ucan recertify" in page and "votes on the same noise" in page


def test_another_precision(place):
    done = recertify(RecertifyJob(run=place / "old", precision="bf16", device="cpu"), place / "bf16")
    outcome = Run.open(place / "bf16").outcome(1)
    assert done.inputs == 6 and outcome.evidence.precision == "bf16" and not outcome.evidence.copy
    assert outcome.radius <= 0.36


def test_the_config_names_the_backend_that_ran(place, monkeypatch):
    """What "auto" came to, and without a word what the run had; the same when it goes on."""

    def at(folder):
        run = Run.open(place / folder)
        return run.config.sampling.backend, run.outcome(1).evidence.backend

    auto = RecertifyJob(run=place / "old", backend="auto", precision="bf16", device="cpu")
    recertify(auto, place / "auto")
    assert at("auto") == ("eager", "eager")  # too few votes for a compiler
    recertify(auto, place / "auto")
    assert "--backend eager" in commands(Run.open(place / "auto"))[0]
    monkeypatch.setattr("ucan.backends._compiled", lambda vote, options: vote)  # without the compiler's minute
    certify(
        CertifyJob(model="halves:old", data="x.npz", scale=0.25, n=20_000, device="cpu", backend="compile"),
        place / "compiled",
    )
    again = RecertifyJob(run=place / "compiled", model="halves:near", device="cpu")
    recertify(again, place / "kept")
    assert at("compiled") == at("kept") == ("compile", "compile")
    recertify(again, place / "kept")
    with pytest.raises(InvalidInput, match="backend"):  # it was begun in another way
        recertify(
            RecertifyJob(run=place / "compiled", model="halves:near", backend="eager", device="cpu"), place / "kept"
        )


def test_the_name_that_was_given_to_the_old_model_is_not_the_new_ones(place):
    job = CertifyJob(
        model="halves:above_half", classes=2, model_id="v1", data="x.npz", scale=0.25, n=2000, device="cpu"
    )
    certify(job, place / "named")
    recertify(RecertifyJob(run=place / "named", model="halves:above_more", device="cpu"), place / "new")
    run = Run.open(place / "new")
    evidence = run.outcome(0).evidence
    assert evidence.pairs.before.model == "id:v1" and evidence.model.startswith("code:")
    assert run.config.model.identity == evidence.model and run.config.model.model_id is None
    recertify(RecertifyJob(run=place / "new", model="halves:above_half", device="cpu"), place / "chain")
    recertify(RecertifyJob(run=place / "named", backend="eager", device="cpu"), place / "same")
    assert Run.open(place / "same").outcome(0).evidence.model == "id:v1"


def test_what_cannot_be_recertified_is_refused(place):
    with pytest.raises(InvalidInput, match="say what replaces"):
        recertify(RecertifyJob(run=place / "old", device="cpu"), place / "new")
    with pytest.raises(InvalidInput, match="another kind"):
        recertify(RecertifyJob(run=place / "old", precision="bf16", device="cpu"), place / "old")
    with pytest.raises(InvalidInput, match="use at least n = 11"):  # 0.0009 ** (1 / 11) > 1 / 2
        recertify(RecertifyJob(run=place / "old", model="halves:near", n=10, device="cpu"), place / "new")
    x = torch.zeros(3, 1, 2, 2)
    other = InMemory(x, torch.zeros(3).long(), classes=("a", "b"), name="zeros")
    flat = nn.Sequential(nn.Flatten(), nn.Linear(4, 2)).eval()
    certify(CertifyJob(model=flat, data=other, scale=9.0, n=50, device="cpu", arithmetic="real"), place / "objects")
    with pytest.raises(InvalidInput):  # its data and its model were objects
        recertify(RecertifyJob(run=place / "objects", precision="bf16", device="cpu"), place / "new")
    assert math.isfinite(Run.open(place / "old").columns["radius"].max())


def test_a_new_model_without_an_identity_is_not_gone_on_with(place):
    job = RecertifyJob(run=place / "old", model="halves:unidentified", device="cpu")
    recertify(job, place / "new")
    assert Run.open(place / "new").config.model.identity is None
    with pytest.raises(InvalidInput, match=r"cannot be identified.*new folder"):
        recertify(job, place / "new")


def test_an_old_model_without_an_identity_is_refused_before_a_folder_is_made(place):
    certify(
        CertifyJob(model="halves:unidentified", classes=2, data="x.npz", scale=0.25, n=2000, device="cpu"),
        place / "nobody",
    )
    with pytest.raises(InvalidInput, match="give the old classifier a model_id"):
        recertify(RecertifyJob(run=place / "nobody", model="halves:near", device="cpu"), place / "new")
    assert not (place / "new").exists()


def test_a_routers_run_is_refused_as_such(place):
    parts = "".join(f'[[expert]]\nmodel = "halves:{name}"\nscale = 0.25\n' for name in ("old", "near"))
    Path("router.toml").write_text(f'[selector]\nmodel = "halves:old"\nscale = 0.25\n{parts}')
    certify(CertifyJob(model="router.toml", data="x.npz", n=2000, device="cpu"), place / "routed")
    with pytest.raises(InvalidInput, match="a router's"):
        recertify(RecertifyJob(run=place / "routed", model="halves:near", device="cpu"), place / "new")
    assert not (place / "new").exists()


def changed(folder, query, *values):
    with closing(sqlite3.connect(folder / "results.sqlite")) as db, db:
        db.execute(query, values)


def test_a_run_whose_votes_the_old_classifier_does_not_cast_is_refused_with_the_input_s_name(place):
    run, x = Run.open(place / "old"), torch.full((1, 1, 2, 2), 0.5)
    x[0, 0, 0, 0] += 0.2
    before = run.outcome(0)
    g = pipeline_of(run.config.model, before, torch.device("cpu"), base=run.base)
    votes = replace(before.evidence, counts=(400, 19_600))
    low = lower_bound(19_600, 20_000, 0.001) - g.arithmetic_error(g.held_at(x), x)
    invented = g.conclude(g.held_at(x), x, 1, low, None, votes, CertifyPlan(n=20_000))
    assert invented.radius > 0.45  # the border is 0.2 away
    changed(place / "old", "UPDATE records SET record = ? WHERE idx = 0", json.dumps(invented.to_dict()))
    with pytest.raises(InvalidInput, match=r"input 0 of .*new votes of the old classifier.*Certify the new classifier"):
        recertify(RecertifyJob(run=place / "old", model="halves:near", device="cpu"), place / "other")
    assert not len(Store.open(place / "other"))


def test_an_alpha_that_is_not_the_evidences_is_refused(place):
    path = place / "old" / "config.toml"
    stated = path.read_text()
    smaller = (StoreError, r"config.toml states α = 1e-09, but its certificates were made at 0.001: it was changed")
    larger = (InvalidInput, r"config.toml states α = 0.01 .* the evidence has α = 0.001.*the run was changed")
    for alpha, (error, said) in {"1e-09": smaller, "0.01": larger}.items():
        path.write_text(stated.replace("alpha = 0.001", f"alpha = {alpha}"))
        with pytest.raises(error, match=said):
            recertify(RecertifyJob(run=place / "old", model="halves:near", device="cpu"), place / "new")
        assert not (place / "new").exists()
    path.write_text(stated)
    recertify(RecertifyJob(run=place / "old", model="halves:near", device="cpu"), place / "new")
    # after an abstention α is a tenth: a recertified run is gone on from all the same
    recertify(RecertifyJob(run=place / "new", model="halves:old", device="cpu"), place / "chain")
    path = place / "new" / "config.toml"
    path.write_text(path.read_text().replace("alpha = 0.001", "alpha = 0.0005"))
    with pytest.raises(StoreError, match=r"states α = 0.0005, but its certificates were made at 0.001: it was changed"):
        recertify(RecertifyJob(run=place / "new", model="halves:old", device="cpu"), place / "again")


def test_labels_are_those_of_the_data(place):
    changed(place / "old", "UPDATE outcomes SET label = 0 WHERE idx = 2")
    with pytest.raises(InvalidInput, match=r"has the label 0 for input 2, but x has 1: the run was changed"):
        recertify(RecertifyJob(run=place / "old", model="halves:near", device="cpu"), place / "new")
    changed(place / "old", "UPDATE outcomes SET label = 1 WHERE idx = 2")
    changed(place / "old", "UPDATE outcomes SET idx = 77 WHERE idx = 5")
    with pytest.raises(InvalidInput, match=r"a result for input 77, but x has 6 inputs"):
        recertify(RecertifyJob(run=place / "old", model="halves:near", device="cpu"), place / "new")
    assert not (place / "new").exists()


def test_labels_in_the_models_order_of_the_classes_are_the_datas(place):
    """A folder of pictures, whose classes are in alphabetical order unless they are named."""
    import numpy as np
    from PIL import Image

    for name, value in (("bright", 230), ("dark", 20)):
        Path("pictures", name).mkdir(parents=True)
        Image.fromarray(np.full((2, 2), value, dtype=np.uint8)).save(Path("pictures", name, "0.png"))
    job = CertifyJob(
        model="halves:old",
        data="pictures",
        channels=1,
        class_names=("dark", "bright"),
        scale=0.25,
        n=2000,
        device="cpu",
    )
    certify(job, place / "named")
    assert Run.open(place / "named").columns["label"].tolist() == [1, 0]
    recertify(RecertifyJob(run=place / "named", model="halves:near", device="cpu"), place / "new")
    assert Run.open(place / "new").columns["correct"].all()


def test_the_app_and_the_board_name_classes_in_the_models_order(place):
    import numpy as np
    from PIL import Image

    for name, value in (("bright", 230), ("dark", 20)):
        Path("pictures", name).mkdir(parents=True)
        Image.fromarray(np.full((2, 2), value, dtype=np.uint8)).save(Path("pictures", name, "0.png"))
    named = {"channels": 1, "class_names": ("dark", "bright"), "scale": 0.25, "n": 500, "device": "cpu"}
    certify(CertifyJob(model="halves:old", data="pictures", seed="derived", **named), place / "named")
    session = Session.open(place / "named")
    answer, right = Run.open(place / "named").columns["prediction"][0], session.item(0)[1]
    assert [session.class_name(number) for number in (answer, right)] == ["bright", "bright"]
    entry = entry_of(place / "named", "named")
    write_entry(replace(entry, claim=replace(entry.claim, networks=1, extra_data=False)), place / "entry.json")
    job = CheckJob(entry=place / "entry.json", results=place / "named", inputs=2, attacks=0, device="cpu")
    assert {one.name for one in check(job).checks if one.outcome == "failed"} == set()
