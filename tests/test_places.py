"""A run is read, resumed, audited, reported and explored from another working directory than the one it was started in."""

import shutil
import struct
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from ucan.app.session import Session
from ucan.cli import app, main
from ucan.data import load
from ucan.errors import InvalidInput, StoreError, UcanError
from ucan.places import base_of, found, found_model, loadable, same_place, started_in
from ucan.report.page import build_page, galleries_of
from ucan.report.rerun import commands
from ucan.runs import bench as job_of
from ucan.runs.audit import AuditJob, audit
from ucan.runs.certify import CertifyJob, certify
from ucan.runs.config import DataRef
from ucan.runs.predict import PredictJob, predict
from ucan.runs.read import Run, read_runs
from ucan.runs.rebuild import data_of
from ucan.runs.recertify import RecertifyJob, recertify
from ucan.runs.router import refuse_calls
from ucan.sharing import push

MODEL = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 2)
        self.linear.weight.data = torch.stack([-torch.ones(16), torch.ones(16)])
        self.linear.bias.data = torch.tensor([8.0, -8.0])
    def forward(self, x):
        return self.linear(x.flatten(1))
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder with a model, data and a run that was started there; and the working directory is now another one."""
    home = tmp_path / "project"
    home.mkdir()
    name = f"net_{tmp_path.name}".replace("-", "_")
    (home / f"{name}.py").write_text(MODEL)
    x = np.concatenate([np.full((3, 1, 4, 4), 40), np.full((3, 1, 4, 4), 200)]).astype(np.uint8)
    np.savez(home / "data.npz", x=x, y=[0, 0, 0, 1, 1, 1])
    monkeypatch.chdir(home)
    monkeypatch.setattr(sys, "path", list(sys.path))
    certify(CertifyJob(model=f"{name}:Net", data="data.npz", most=4, n=200, n0=20), "runs/a")
    sys.path[:] = [each for each in sys.path if each != str(home)]
    sys.modules.pop(name)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return home


RUN = "../project/runs/a"


def test_paths_are_kept_as_given_and_no_absolute_one_is_written(project):
    text = (project / "runs" / "a" / "config.toml").read_text()
    config = tomllib.loads(text)
    assert config["data"] == "data.npz" and Path(config["started_in"]) == Path("../..") and str(project) not in text


def test_an_audit_and_a_recertification_find_model_and_data(project):
    assert audit(AuditJob(run=RUN, most=2, factors=(0.9,), trust=True)).summary.attacked == 2
    again = recertify(RecertifyJob(run=RUN, backend="eager", n=200, trust=True), "../project/runs/b")
    assert again.inputs == 4
    assert Run.open("../project/runs/b").base == project.resolve()


def test_code_beside_a_run_is_imported_only_with_trust(project, monkeypatch):
    """Whoever made the run chose the directory that it states: a module there is code of that person."""
    config = project / "runs" / "a" / "config.toml"
    text, model = config.read_text(), Run.open(RUN).config.model.spec
    (project / f"evil_{project.name}.py").write_text("open('ran', 'w').close()\nraise SystemExit\n")
    for old in (f'model = "{model}"', 'data = "data.npz"'):
        assert old in text
        config.write_text(text.replace(old, f'{old.split()[0]} = "evil_{project.name}:make"'))
        for job in (AuditJob(run=RUN, most=1), AuditJob(run=RUN, most=1, trust=True)):
            assert not Path("ran").exists()
            with pytest.raises(UcanError, match="evil_project.* SystemExit" if job.trust else "No module|no module"):
                audit(job)
        Path("ran").unlink()  # what was trusted did run, and leaving early is an error
        sys.path[:] = [each for each in sys.path if each != str(project)]
    runs = read_runs([RUN])
    page = build_page(runs, galleries_of(runs))
    assert not Path("ran").exists() and "the data cannot be read" in page


CALL = "os:system('touch ran')"


def test_a_call_that_a_run_says_to_make_is_refused_without_trust(project, tmp_path):
    """A call needs no code beside the run: any installed function, with any values, would do."""
    config = project / "runs" / "a" / "config.toml"
    config.write_text(config.read_text().replace(f'"{Run.open(RUN).config.model.spec}"', f'"{CALL}"'))
    router = tmp_path / "router.toml"
    router.write_text("threshold = 0.5\n" + f'[[expert]]\nmodel = "{CALL}"\n' * 2)
    for use in (
        lambda: audit(AuditJob(run=RUN, most=1)),
        lambda: Session.open(RUN),
        lambda: loadable(CALL, None, False),
        lambda: refuse_calls(router),
    ):
        with pytest.raises(InvalidInput, match=r"says to call os:system.* add --trust"):
            use()
    assert not Path("ran").exists() and commands(read_runs([RUN])[0])  # a report shows it, and does not make it
    assert loadable(CALL, None, True) == CALL


def test_a_run_is_used_where_it_was_made_without_trust(project, monkeypatch):
    monkeypatch.chdir(project)
    assert audit(AuditJob(run="runs/a", most=1, factors=(0.9,))).summary.attacked == 1


def test_a_folder_beside_a_run_is_not_a_known_data_set(project):
    shutil.copytree(project / "runs" / "a", project / "digits" / "0")
    assert data_of(DataRef("digits"), base=project).name == data_of(DataRef("digits")).name
    assert data_of(DataRef("digits"), base=project).fingerprint() == load("digits").fingerprint()


def test_a_known_data_set_is_taken_from_beside_a_run_with_a_warning_only(project, tmp_path, monkeypatch):
    def forged(folder, pixel):
        folder.mkdir()
        for name, array in (
            ("images-idx3", np.full((2, 28, 28), pixel, np.uint8)),
            ("labels-idx1", np.zeros(2, np.uint8)),
        ):
            header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
            (folder / f"t10k-{name}-ubyte").write_bytes(header + array.tobytes())

    monkeypatch.delenv("UCAN_DATA_DIR", raising=False)
    forged(project / "data", 51)
    with pytest.warns(UserWarning, match=r"mnist is read from .*project/data, beside the run: .* set UCAN_DATA_DIR"):
        assert data_of(DataRef("mnist"), base=project)[0][0].max() == pytest.approx(0.2)
    assert len(data_of(DataRef("digits"), base=project))  # it needs no folder: no warning
    with pytest.raises(InvalidInput, match="mnist was not found"):
        data_of(DataRef("mnist"), "mnist", project)  # as the user gives it
    forged(tmp_path / "own", 255)
    monkeypatch.setenv("UCAN_DATA_DIR", str(tmp_path / "own"))
    assert data_of(DataRef("mnist"), base=project)[0][0].max() == 1


def test_the_page_opens_with_its_data(project):
    session = Session.open(RUN, trust=True)
    assert session.dataset is not None and session.item(0)[1] == 0 and session.notes == ()


def test_the_report_shows_the_inputs_and_how_to_run_it_again(project, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["ucan", "report", RUN, "-o", "page.html", "-q"])
    with pytest.raises(SystemExit) as leaving:
        main()
    page = Path("page.html").read_text("utf-8")
    assert not leaving.value.code and "cannot be read" not in page and "a noisy copy" in page
    first, second, *_ = commands(read_runs([RUN])[0])
    assert first == "cd ../project" and "--data data.npz" in second and second.endswith("-o runs/a")


def test_a_run_is_resumed_from_elsewhere_and_other_data_are_refused(project, monkeypatch):
    monkeypatch.syspath_prepend(project)
    model = Run.open(RUN).config.model.spec
    job = dict(model=model, n=200, n0=20)
    assert certify(CertifyJob(data="../project/data.npz", **job), RUN).inputs == 6
    shutil.copy(project / "data.npz", "data.npz")
    with pytest.raises(ValueError, match=r"another config:\n  data: the run has 'data.npz', asked for './data.npz'"):
        certify(CertifyJob(data="./data.npz", **job), RUN)


def test_predictions_go_on_from_elsewhere(project, monkeypatch):
    monkeypatch.syspath_prepend(project)
    job = dict(model=Run.open(RUN).config.model.spec, n=100)
    monkeypatch.chdir(project)
    predict(PredictJob(data="data.npz", most=2, **job), "p.tsv")
    monkeypatch.chdir(project.parent / "elsewhere")
    assert len(predict(PredictJob(data="../project/data.npz", most=3, **job), "../project/p.tsv").answers) == 3


def test_a_project_that_was_moved_as_a_whole_still_works(project, tmp_path):
    moved = tmp_path / "moved"
    project.rename(moved)
    assert audit(AuditJob(run=moved / "runs" / "a", most=1, factors=(0.9,), trust=True)).summary.attacked == 1


def test_a_trained_run_finds_its_own_model_and_data(project, monkeypatch):
    pytest.importorskip("lightning_fabric")
    from ucan.training import load_run

    monkeypatch.chdir(project)
    name = next(project.glob("net_*.py")).stem
    settings = ["--set", f"model={name}:Net", "--set", "data=data.npz", "--set", "epochs=1", "--set", "batch=2"]
    monkeypatch.setattr(sys, "argv", ["ucan", "train", "digits-isotropic", *settings, "-o", "runs/t", "-q"])
    with pytest.raises(SystemExit) as leaving:
        main()
    assert not leaving.value.code
    sys.path[:] = [each for each in sys.path if each != str(project)]
    sys.modules.pop(name)
    monkeypatch.chdir(project.parent / "elsewhere")
    assert load_run("../project/runs/t", trust=True).num_classes == 2
    session = Session.open("../project/runs/t", trust=True)
    assert session.dataset is not None and len(session.dataset) == 6
    job = CertifyJob(model="../project/runs/t", data="../project/data.npz", most=2, n=100, n0=10, trust=True)
    certify(job, "r")
    config = ["data=../project/data.npz" if word.startswith("data=") else word for word in settings]
    monkeypatch.setattr(sys, "argv", ["ucan", "train", "digits-isotropic", *config, "-o", "../project/runs/t", "-q"])
    with pytest.raises(SystemExit) as leaving:
        main()
    assert not leaving.value.code  # the same data under another path: finished already


def test_report_and_bench_load_a_trained_run_whose_model_is_a_call_with_trust(project, monkeypatch):
    """Without it the page says what is missing, and nothing is measured."""
    pytest.importorskip("lightning_fabric")
    name = next(project.glob("net_*.py")).stem
    monkeypatch.chdir(project)
    (project / f"{name}.py").write_text(f"{MODEL}\ndef make(classes):\n    return Net()\n")

    def command(*words):
        result = CliRunner().invoke(app, [str(word) for word in words])
        return result.exception if result.exit_code else result.output

    settings = ["--set", f"model={name}:make(classes=2)", "--set", "data=data.npz", "--set", "epochs=1"]
    sampling = ["--n", 200, "--n0", 20, "--max", 4, "--backend", "eager"]
    for words in (
        ["train", "digits-isotropic", *settings, "--set", "batch=2", "-o", "t", "-q"],
        ["certify", "--model", "t", "--data", "data.npz", *sampling, "--trust", "-o", "c", "-q"],
        ["report", "c", "-o", "plain.html"],
        ["report", "c", "-o", "trusted.html", "--trust"],
    ):
        assert isinstance(command(*words), str), command(*words)
    said = "The trained noise of t cannot be loaded"
    assert said in Path("plain.html").read_text("utf-8") and said not in Path("trusted.html").read_text("utf-8")

    monkeypatch.setattr(job_of, "_speed", lambda *_: None)
    monkeypatch.setattr(job_of, "_decisions", lambda *_: None)
    words = ["bench", "--model", "t", "--backend", "eager", "--no-art", "--no-shapes", "--decisions", "0"]
    refused = command(*words)
    assert isinstance(refused, InvalidInput) and "add --trust" in str(refused)
    assert isinstance(command(*words, "--trust"), str)


def test_places_by_hand(tmp_path, monkeypatch):
    (tmp_path / "a" / "runs" / "x").mkdir(parents=True)
    (tmp_path / "a" / "d.csv").touch()
    (tmp_path / "b").mkdir()
    monkeypatch.chdir(tmp_path / "a")
    started = started_in(Path("runs/x"))
    base = base_of(Path("runs/x"), started)
    assert base == (tmp_path / "a").resolve() and found("d.csv", base) == "d.csv"
    monkeypatch.chdir(tmp_path / "b")
    assert base_of(Path("../a/runs/x"), started) == base
    assert found("d.csv", base) == str(base / "d.csv") and found("gone.csv", base) == "gone.csv"
    assert found("d.csv", None) == "d.csv" and found("/abs/d.csv", base) == "/abs/d.csv"
    assert found_model("runs/x,gone,mirrored", base) == f"{base / 'runs/x'},gone,mirrored"
    assert same_place("d.csv", base, "../a/d.csv") and not same_place("d.csv", base, "d.csv")
    assert not same_place(None, base, "../a/d.csv") and not same_place("d.csv", None, "../a/d.csv")


def audited(project, out, **more):
    """A run of the project's model under these settings, with an audit."""
    job = dict(model=Run.open(RUN).config.model.spec, data=str(project / "data.npz"), most=4, n=200, n0=20)
    certify(CertifyJob(**{**job, **more}), out)
    audit(AuditJob(run=out, most=3, factors=(0.9,)))
    return Path(out)


def test_an_audit_of_another_run_is_refused(project, monkeypatch):
    monkeypatch.syspath_prepend(project)
    (project / f"other_{project.parent.name}.py").write_text(MODEL.replace("8.0", "7.0"))
    mine = audited(project, "mine")
    others = {
        "other weights": {"model": f"other_{project.parent.name}:Net"},
        "its attack on input 0 is not on this run's certificate": {"scale": 0.4},
    }
    for number, (why, settings) in enumerate(others.items()):
        other = audited(project, f"other-{number}", **settings)
        shutil.rmtree(mine / "audit")
        shutil.copytree(other / "audit", mine / "audit")
        with pytest.raises(StoreError, match=rf"mine/audit is the audit of another run: .*{why}.*`ucan audit mine`"):
            Run.open(mine)
        with pytest.raises(StoreError, match="another run"):
            read_runs([mine])
    (mine / "audit" / "attempts.jsonl").write_text(
        (mine / "audit" / "attempts.jsonl").read_text().replace('"scope": "pipeline"', '"scope": "frozen"')
    )
    with pytest.raises(StoreError, match="it attacked scope frozen, and this run has scope pipeline"):
        Run.open(mine)
    shutil.rmtree(mine / "audit")
    assert audit(AuditJob(run=mine, most=1, factors=(0.9,))).summary.attacked == 1


def test_a_run_s_own_audit_is_read_wherever_the_run_is(project, monkeypatch):
    """Copied, published without its secret seed, continued with more votes; and audits from before they had the run's hash."""
    monkeypatch.syspath_prepend(project)
    mine = audited(project, "mine", seed=None)
    read = Run.open(mine).attempts
    assert len(read) == 3
    shutil.copytree(mine, "copied")
    assert Run.open("copied").attempts == read
    push(mine, "pushed")
    assert "seed" not in Run.open("pushed").store.config and Run.open("pushed").attempts == read
    config = Path("copied", "audit", "config.toml")
    config.write_text("\n".join(line for line in config.read_text().splitlines() if not line.startswith("run =")))
    assert Run.open("copied").attempts == read
    config.unlink()
    assert Run.open("copied").attempts == read
    grown = audited(project, "grown", bound="anytime")
    before = Run.open(grown)
    job = CertifyJob(
        model=before.config.model.spec, data=str(project / "data.npz"), most=4, n=900, n0=20, bound="anytime"
    )
    certify(job, grown)
    after = Run.open(grown)
    assert after.config_hash != before.config_hash and after.columns["radius"][0] != before.columns["radius"][0]
    assert after.attempts == before.attempts and len(after.attempts) == 3
