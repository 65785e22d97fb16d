"""Runs of `ucan ask` as runs: resumed from elsewhere, after errors and by older versions, and their audits."""

import json
import shutil
import sqlite3
import sys
import tomllib
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import ucan
from ucan.app.answers import AnswersSession, attack_panel
from ucan.audit import allowed_breaks
from ucan.audit.answers import Try
from ucan.audit.judge import Budget
from ucan.certificate import Abstention
from ucan.cli import app
from ucan.data import InMemory
from ucan.errors import InvalidInput, ModelError, StoreError
from ucan.generators import Fixed
from ucan.lock import LOCK, WriterLock
from ucan.questions.regression import Percentile
from ucan.questions.topk import TopK
from ucan.report.answers import command, read_asked
from ucan.results.answers import AnswerStore
from ucan.results.database import ANSWERS
from ucan.results.folder import remove_empty
from ucan.runs.ask import AskJob, ask
from ucan.runs.ask_audit import audit_answers, counted
from ucan.runs.audit import AuditJob
from ucan.runs.progress import Progress
from ucan.service.deployed import Deployed

MODEL = """
import torch
from torch import nn
def net(seed=0):
    if seed is not None: torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 3)).eval()
"""
QUICK = Budget(steps=3, draws=4, check=200)
SIZES = dict(n=200, n0=50, scale=0.3)


@pytest.fixture
def home(tmp_path, monkeypatch):
    """The working directory: a folder with a model and data."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "answering.py").write_text(MODEL)
    x = torch.rand(6, 1, 4, 4, generator=torch.Generator().manual_seed(1))
    np.savez(folder / "data.npz", x=x.numpy(), y=np.zeros(6, dtype=int))
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder)])
    monkeypatch.delitem(sys.modules, "answering", raising=False)
    return folder


def job(**changes):
    settings = {"model": "answering:net", "data": "data.npz", "question": TopK(1), "most": 3, **SIZES}
    return AskJob(**{**settings, **changes})


def records(folder):
    with AnswerStore.open(folder) as store:
        return {idx: answer.to_dict() for idx, answer in store.answers()}


class Told(Progress):
    def __init__(self):
        self.warnings, self.samples = [], 0

    def sampled(self, count):
        self.samples += count

    def warn(self, line):
        self.warnings.append(line)


# --- the same run ---


def test_a_run_is_found_and_resumed_from_another_directory(home, tmp_path, monkeypatch):
    ask(job(), "runs/a")
    text = Path("runs/a/config.toml").read_text()
    assert tomllib.loads(text)["started_in"] == "../.." and str(tmp_path) not in text
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    run = Path("../project/runs/a")
    told = Told()
    tried = audit_answers(AuditJob(run=run, factors=(0.9,), budget=QUICK), progress=told)
    assert tried.attacked == 3 and not tried.bug and told.samples == sum(one.votes for one in tried.tries) > 0
    (found,) = read_asked([run])
    assert found.data is not None
    first, second = command(found).splitlines()
    assert first == "cd ../project" and "--data data.npz" in second and second.endswith("-o runs/a")
    session = AnswersSession.open(run)
    assert session.notes == () and session.g is not None
    assert Deployed.open(run, device=torch.device("cpu")).question == TopK(1)
    assert ask(job(data="../project/data.npz", most=5), run).inputs == 5
    shutil.copy(home / "data.npz", "data.npz")
    with pytest.raises(InvalidInput, match=r"another config:\n  data: the run has 'data.npz', asked for './data.npz'"):
        ask(job(data="./data.npz"), run)


def test_a_run_goes_on_with_blocks_of_the_size_that_it_was_begun_with(home):
    """As of a run of an older version, whose small forward passes drew smaller blocks."""
    ask(job(most=2), "run")
    with closing(sqlite3.connect("run/answers.sqlite")) as db, db:
        db.execute("UPDATE answers SET record = json_set(record, '$.evidence.block', 16)")
    ask(job(most=4), "run")
    assert [record["evidence"]["block"] for record in records("run").values()] == [16] * 4


def test_a_page_shows_no_scope_that_its_answers_do_not_have(home):
    ask(job(most=2), "run")
    config = Path("run/config.toml")
    config.write_text(config.read_text().replace('scope = "pipeline"', 'scope = "frozen"'))
    report = ["report", "run", "-o", "page.html"]
    found = CliRunner().invoke(app, report).exception
    assert isinstance(found, StoreError) and "states scope frozen, and its answer to input 0 has scope pipeline" in str(
        found
    )
    config.write_text(config.read_text().replace('scope = "frozen"', 'scope = "pipeline"'))
    twice = 'replace(record, \'"scope"\', \'"scope": "frozen", "scope"\')'
    with closing(sqlite3.connect("run/answers.sqlite")) as db, db:
        db.execute(f"UPDATE answers SET record = {twice} WHERE idx = 1")
    found = CliRunner().invoke(app, report).exception
    assert isinstance(found, StoreError) and "the entry 'scope' occurs twice" in str(found)
    assert not Path("page.html").exists()


def test_a_budget_is_found_from_another_directory(home, tmp_path, monkeypatch):
    np.save("budget.npy", np.full((1, 4, 4), 0.5))
    ask(job(budget="budget.npy", most=1), "run")
    monkeypatch.chdir(tmp_path)
    assert ask(job(budget="project/budget.npy", data="project/data.npz"), "project/run").inputs == 3


def test_a_default_that_is_written_out_is_no_other_config(home):
    ask(job(most=1), "run")
    assert ask(job(law="gaussian", noise="isotropic", classes=3, data="./data.npz"), "run").inputs == 3
    with pytest.raises(InvalidInput, match=r"another config:\n  law.scale: the run has 0.3, asked for 0.4"):
        ask(job(scale=0.4), "run")


def test_a_run_from_before_they_told_where_they_started_is_resumed_and_audited(home):
    ask(job(most=2), "run")
    audit_answers(AuditJob(run="run", most=1, factors=(0.9,), budget=QUICK))
    for name, key in (("run/config.toml", "started_in"), ("run/audit/config.toml", "run")):
        lines = Path(name).read_text().splitlines()
        Path(name).write_text("\n".join(line for line in lines if not line.startswith(f"{key} =")))
    before = records("run")
    assert ask(job(), "run").inputs == 3
    assert before.items() <= records("run").items()
    assert "started_in" not in Path("run/config.toml").read_text()
    assert audit_answers(AuditJob(run="run", factors=(0.9,), budget=QUICK)).attacked == 3
    lines = Path("run/audit/attempts.jsonl").read_text().splitlines()
    assert len(lines) == 3  # none made twice
    older = {**json.loads(lines[0]), "size": 0.0}  # which tested the input itself: that one is made again
    Path("run/audit/attempts.jsonl").write_text("\n".join([json.dumps(older), *lines[1:]]) + "\n")
    again = audit_answers(AuditJob(run="run", factors=(0.9,), budget=QUICK))
    assert again.attacked == len(again.tries) == 3
    assert len(Path("run/audit/attempts.jsonl").read_text().splitlines()) == 4


# --- what goes wrong ---


class Moody(nn.Module):
    """Fails on bright inputs while it is in a mood, which is no part of its identity."""

    mood = None

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 3)
        self.eval()

    def forward(self, x):
        if Moody.mood is not None and x.mean() > 0.6:
            raise RuntimeError(Moody.mood)
        return self.linear(x.flatten(1))


@pytest.fixture
def shades():
    x = torch.linspace(0.1, 0.9, 5)[:, None, None, None].expand(5, 1, 4, 4).clone()
    yield InMemory(x, [0] * 5, name="shades")
    Moody.mood = None


def test_a_model_that_raises_in_the_midst_loses_nothing(home, shades):
    asked = job(model=Moody(), data=shades, most=None, scale=0.05, batch_size=60)
    Moody.mood = "CUDA error: device-side assert\nstack of the driver"
    with pytest.raises(
        ModelError, match=r"the model failed during the run: RuntimeError: CUDA error.*resume\.$"
    ) as told:
        ask(asked, "run")
    assert len(str(told.value).splitlines()) == 1 and len(records("run")) >= 2
    Moody.mood = None
    assert ask(asked, "run").inputs == 5


def test_a_start_that_fails_leaves_no_folder(home, monkeypatch):
    def fails(*_):
        raise RuntimeError("out of luck")
        yield

    with monkeypatch.context() as patched:
        patched.setattr(ucan.SmoothedClassifier, "ask_each", fails)
        with pytest.raises(ModelError, match="No result was finished, and nothing was written"):
            ask(job(certificates=True), "run")
    assert not Path("run").exists()


def test_a_run_without_answers_is_begun_anew_under_other_settings(home):
    ask(job(most=1), "run")
    with AnswerStore.open("run") as store:
        config = store.config
    AnswerStore.create("killed", config).close()  # before its first answer
    assert ask(job(n=300), "killed").inputs == 3
    with pytest.raises(InvalidInput, match="another config"):
        ask(job(n=400), "killed")


def test_a_run_that_another_process_has_just_begun_is_not_removed(home):
    with AnswerStore.create("run", {"kind": "ask"}):
        remove_empty(Path("run"), ANSWERS)
        assert Path("run/config.toml").is_file()
    remove_empty(Path("run"), ANSWERS)
    assert not Path("run").exists()


def test_certificates_of_earlier_answers_are_written_too(home):
    ask(job(most=2), "run")
    ask(job(most=3, certificates=True), "run")
    files = {path.name: json.loads(path.read_text()) for path in Path("run/certificates").glob("*.json")}
    assert sorted(files) == ["0.json", "1.json", "2.json"]
    Path("run/certificates/1.json").unlink()
    ask(job(most=3, certificates=True), "run")
    assert json.loads(Path("run/certificates/1.json").read_text()) == files["1.json"]


def test_random_weights_are_said(home):
    told = Told()
    ask(job(model="answering:net(seed=None)", most=1), "random", told)
    assert len(told.warnings) == 1 and "different weights each time" in told.warnings[0]
    ask(job(most=1), "fixed", told)
    assert len(told.warnings) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"workers": 2}, "--workers needs a cluster"),
        ({"family": 2}, "--family 2 is smaller than the number of selected inputs, 3"),
    ],
)
def test_settings_that_cannot_work_are_refused(changes, message, home):
    with pytest.raises(InvalidInput, match=message):
        ask(job(**changes), "run")
    assert not Path("run").exists()


# --- noise made again ---


class Own(ucan.Generator):
    """Noise that looks at the input, and that no name makes."""

    scope = "frozen"

    def forward(self, x):
        return torch.zeros_like(x[0]), 0.5 + x[0].abs()


@pytest.mark.parametrize(
    "noise", ["isotropic", "pattern-2", "sigma.npy", Fixed(torch.linspace(0.5, 1.5, 16).reshape(1, 4, 4))]
)
def test_the_noise_of_answers_is_made_again(noise, home, tmp_path, monkeypatch):
    np.save("sigma.npy", np.linspace(0.5, 2, 16).reshape(1, 4, 4))
    ask(job(noise=noise), "run")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    run = home / "run"
    assert audit_answers(AuditJob(run=run, most=1, factors=(0.9,), budget=QUICK)).attacked == 1
    assert AnswersSession.open(run).notes == ()
    (home / "sigma.npy").unlink()  # the answers state it, too
    assert audit_answers(AuditJob(run=run, most=2, factors=(0.9,), budget=QUICK)).attacked == 2


def test_noise_that_nothing_makes_again_is_said(home):
    ask(job(noise=Own()), "run")
    with pytest.raises(InvalidInput, match=r"Own noise was made in Python.*cannot be made again"):
        audit_answers(AuditJob(run="run", factors=(0.9,), budget=QUICK))
    assert not Path("run/audit").exists()
    (note,) = AnswersSession.open("run").notes
    assert "Own noise was made in Python" in note


# --- audits ---


def attempt(idx, broken=False, factor=0.9, claim=None):
    return Try(
        idx,
        factor,
        "live",
        "top-k",
        "pipeline",
        0.5,
        broken,
        0.0,
        0.0,
        0.9,
        100,
        "gradient",
        0,
        claim or f"input {idx}",
    )


def test_what_chance_allows_counts_all_inputs_up_to_the_last_one_attacked():
    largest = [attempt(idx, broken=idx > 9000) for idx in (3, 4000, 9100, 9500, 9999)]  # chosen by their radius
    found = counted(largest, Path("audit"), 0.001)
    assert (found.attacked, found.broken, found.bug) == (5, 3, False)
    assert found.allowed >= allowed_breaks(10_000, 0.001) > 3 > allowed_breaks(5, 0.001)
    assert counted(largest, Path("audit"), 0.001, skip=100).allowed == allowed_breaks(100, 0.001)
    twins = [attempt(idx, True, factor, "the same input") for idx in (0, 1) for factor in (0.5, 0.9)]
    assert (counted(twins, Path("audit"), 0.001).attacked, counted(twins, Path("audit"), 0.001).broken) == (2, 1)


def test_numbers_outside_the_range_that_an_interval_rests_on_are_told(home):
    """Inside the region a sixth of them: no test of the median finds that, but the interval has no proof."""
    (home / "heights.py").write_text("def first(batch):\n    return batch.flatten(1)[:, 0]\n")
    settings = dict(model="heights:first", model_id="first", scale=1.0, n=200)
    for name, most in (("run", 6.0), ("true", 60.0)):
        ask(job(question=Percentile(radii=(5.0,), least=-most, most=most), **settings), name)
    words = ["--factors", "0.999", "--steps", "3", "--draws", "4", "--check", "200", "--model", "heights:first"]
    found = CliRunner().invoke(app, ["audit", "run", *words, "-q"])
    assert found.exit_code == 1 and "3 answers attacked, 0 broken" in found.stdout
    assert "The stated range of the outputs is false for 3 answers" in found.stdout
    told = json.loads(CliRunner().invoke(app, ["audit", "run", *words, "-q", "--json"]).stdout)
    assert told["outside_range"] == 3 and told["bug"] and told["attempts"][0]["outside"] > 20
    assert CliRunner().invoke(app, ["report", "run", "-o", "page.html"]).exit_code == 0
    assert "range stated for the outputs is false for 3 of them" in Path("page.html").read_text()
    held = CliRunner().invoke(app, ["audit", "true", *words, "-q"])
    assert held.exit_code == 0 and "stated range" not in held.stdout
    for name, heading in (("run", "The claim is void"), ("true", "The claim held")):
        assert heading in attack_panel(AnswersSession.open(name).attack(0, 0.999, QUICK))


def test_attempts_on_another_run_do_not_count(home):
    for name, settings in {"a": {}, "b": {"n": 300}}.items():  # the same weights
        ask(job(**settings), name)
    audited = AuditJob(run="a", factors=(0.9,), budget=QUICK)
    audit_answers(audited, "found")
    before = Path("found/attempts.jsonl").read_text()
    with pytest.raises(InvalidInput, match=r"found holds a run with another config:\n  run: "):
        audit_answers(AuditJob(run="b", factors=(0.9,), budget=QUICK), "found")
    config = Path("found/config.toml")  # an audit of an earlier version does not name its run
    config.write_text("\n".join(line for line in config.read_text().splitlines() if not line.startswith("run =")))
    with pytest.raises(InvalidInput, match="found holds attacks on another answer about input 0: give another folder"):
        audit_answers(AuditJob(run="b", factors=(0.9,), budget=QUICK), "found")
    assert audit_answers(audited, "found").attacked == 3 and Path("found/attempts.jsonl").read_text() == before


def test_an_audit_has_one_writer_and_takes_no_options_of_certificates(home):
    ask(job(), "run")
    for option, value in (("mode", "live"), ("registry", "r.sqlite")):
        with pytest.raises(InvalidInput, match=f"--{option} is for runs of `ucan certify`"):
            audit_answers(AuditJob(run="run", budget=QUICK, **{option: value}))
    Path("run/audit").mkdir()
    lock = WriterLock(Path("run/audit") / LOCK)
    try:
        with pytest.raises(StoreError, match="is being written by this process"):
            audit_answers(AuditJob(run="run", budget=QUICK))
    finally:
        lock.release()


def test_other_weights_and_abstentions_are_refused_before_the_audit_begins(home):
    ask(job(), "run")
    with pytest.raises(InvalidInput, match="made with other weights"):
        audit_answers(AuditJob(run="run", model="answering:net(seed=1)", budget=QUICK))
    np.savez("few.npz", x=np.zeros((1, 1, 4, 4), dtype=np.float32))
    with pytest.raises(InvalidInput, match="are these the same data"):
        audit_answers(AuditJob(run="run", data="few.npz", budget=QUICK))
    ask(job(n=8, n0=10), "none")
    with AnswerStore.open("none") as store:
        assert all(isinstance(one, Abstention) for _, one in store.answers())
    with pytest.raises(InvalidInput, match="all 3 inputs of none abstained"):
        audit_answers(AuditJob(run="none", budget=QUICK))
    assert not Path("run/audit").exists() and not Path("none/audit").exists()
