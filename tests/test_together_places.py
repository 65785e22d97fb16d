"""Several trained runs as one model, in everything that takes a model by name; and what a run's folder keeps in step."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import chdir, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import ucan
from ucan import data
from ucan.config import read_config
from ucan.errors import InvalidInput, ModelError
from ucan.leaderboard.checking import check
from ucan.leaderboard.checks import Checked, CheckJob
from ucan.leaderboard.entry import write_entry
from ucan.leaderboard.making import config_file_hash, entry_of
from ucan.models import Ensemble
from ucan.places import respelled_model, same_model
from ucan.report.rerun import commands
from ucan.runs.certify import certify
from ucan.runs.prepare import CertifyJob
from ucan.runs.read import Run
from ucan.runs.train import TrainJob, trainer_of
from ucan.sharing import push
from ucan.training import Together, checkpoint, load_run

ALIKE: dict[str, Any] = {"data": "digits", "skip": 90, "n": 300, "seed": "derived", "device": "cpu"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three networks, two of them mirrored and certified, and the entry of that run."""
    folder = tmp_path_factory.mktemp("together")
    for seed in range(3):
        job = TrainJob(settings="digits-isotropic", changes=["epochs=1", f"seed={seed}"], device="cpu")
        trainer_of(job, folder / "runs" / f"t{seed}").run()
    with chdir(folder):
        certify(CertifyJob(model="runs/t0,runs/t1,mirrored", **ALIKE), Path("runs/both"))
        found = entry_of("runs/both", "runs/both")
        write_entry(replace(found, claim=replace(found.claim, networks=2, extra_data=False)), Path("entry.json"))
    return folder


@pytest.fixture
def home(made: Path, tmp_path: Path) -> Path:
    """A copy of it, to change."""
    return Path(shutil.copytree(made, tmp_path / "home"))


def checked(entry: Path, results: Path | None = None, **changes: Any) -> Checked:
    if changes:
        table = json.loads(entry.read_text()) | changes
        entry.write_text(json.dumps(table))
    return check(CheckJob(entry=entry, results=results, inputs=3, attacks=0, seed=0, device="cpu"))


def failed(done: Checked) -> list[str]:
    return [one.name for one in done.checks if one.outcome == "failed"]


def test_a_comma_in_a_call_or_a_file_s_name_makes_no_ensemble(tmp_path: Path) -> None:
    for text in ("mymodels:make(depth=1,width=2)", "mymodels:make(depth=1,consensus=2)"):
        assert Together.of(text).folders == (text,) and Together.of(text).alone
    (tmp_path / "a,b").mkdir()
    assert Together.of(tmp_path / "a,b").folders == (str(tmp_path / "a,b"),)
    many = Together.of(",".join(f"a-rather-long-name-of-a-folder-of-a-run-{k}" for k in range(8)))
    assert len(many.folders) == 8 and many.options == ()  # together too long for the name of a file
    assert Together.of("a, b,consensus=2 ,mirrored").options == ("mirrored", "consensus=2")


@pytest.mark.parametrize(("text", "said"), [("runs/t0,consensus=²", "one whole number"), ("mirrored,", "names no run")])
def test_a_text_that_names_no_ensemble_is_refused(text: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        load_run(text)


def test_an_ensemble_s_results_have_a_place_of_their_own(home: Path) -> None:
    with chdir(home):
        for model in ("runs/t1", "runs/t0,runs/t1", "runs/t0,runs/t1,mirrored"):
            certify(CertifyJob(model=model, data="digits", skip=900, n=100, device="cpu"))
        assert {"t1-l2", "t0-t1-l2", "t0-t1-mirrored-l2"} <= {path.name for path in Path("runs").iterdir()}


def test_networks_for_other_budgets_do_not_go_together(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = checkpoint.load_run

    def budgeted(folder: str | Path, *rest: Any, **more: Any) -> Any:
        limit = 0.1 if str(folder).endswith("t0") else 0.2
        return replace(read(folder, *rest, **more), budget=ucan.Budget(torch.full((1, 8, 8), limit)))

    monkeypatch.setattr(checkpoint, "load_run", budgeted)
    with pytest.raises(InvalidInput, match="in its budget"):
        load_run(f"{made / 'runs' / 't0'},{made / 'runs' / 't1'}")


def test_a_mirrored_ensemble_travels_and_its_entry_stands_there(made: Path, home: Path, tmp_path: Path) -> None:
    with chdir(made):
        push("runs/both", str(tmp_path / "published"))
    copy = tmp_path / "published"
    assert read_config(copy / "config.toml")["model"] == "model/0,model/1,mirrored"
    assert failed(checked(home / "entry.json", copy)) == []
    older = config_file_hash(made / "runs" / "both")
    hashes = json.loads((home / "entry.json").read_text())["sha256"]
    assert hashes["config"] != older
    assert failed(checked(home / "entry.json", home / "runs" / "both", sha256={**hashes, "config": older})) == []
    assert failed(checked(home / "entry.json", copy)) == ["config"]  # the file's own hash says where its model is


def test_an_ensemble_is_resumed_from_another_folder(home: Path) -> None:
    (home / "other").mkdir()
    before = Run.open(home / "runs" / "both").inputs
    with chdir(home / "other"):
        again = certify(CertifyJob(model="../runs/t0,../runs/t1,mirrored", **ALIKE), Path("../runs/both"))
        assert again.inputs == before
        with pytest.raises(InvalidInput, match="model"):
            certify(CertifyJob(model="../runs/t0,../runs/t1", **ALIKE), Path("../runs/both"))
        assert respelled_model("../runs/t0,../runs/t1,mirrored", home) == "runs/t0,runs/t1,mirrored"
        assert not same_model("runs/t0,runs/t1", home, "runs/t0,runs/t1")  # from here these are other folders
        assert not same_model("runs/t0,runs/t1", home, "../runs/t0")


def test_the_commands_of_a_run_are_told_where_one_of_its_networks_is_gone(home: Path) -> None:
    with chdir(home):
        shutil.move("runs/t0", "gone")
        *trained, certified, _ = commands(Run.open("runs/both"))
        assert len(trained) == 1 and "runs/t1" in trained[0] and "runs/t0,runs/t1,mirrored" in certified


def test_consensus_in_half_precision_is_refused_at_no_input(made: Path) -> None:
    """Its logits jump where rounding changes who agrees: that is no fault of the backend."""
    trio = load_run(",".join([*(str(made / "runs" / f"t{k}") for k in range(3)), "consensus=2"]))
    digits = data.load("digits")
    for i in range(25):
        g = ucan.SmoothedClassifier(trio.classifier, trio.law, trio.generator, 10, precision="bf16")
        assert len(g.certify(digits[i][0][None], n0=10, n=50)) == 1


def test_a_wrong_way_to_run_a_model_that_jumps_is_still_refused(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nets = [load_run(made / "runs" / f"t{k}").classifier for k in range(3)]
    trio, calls = Ensemble(nets, consensus=2), list[int]()

    def moving(self: Ensemble, x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return (
            answer(self, x).flip(-1)
            if x.dtype == torch.bfloat16 or torch.is_autocast_enabled("cpu")
            else answer(self, x)
        )

    answer = Ensemble.forward
    monkeypatch.setattr(Ensemble, "forward", moving)
    g = ucan.SmoothedClassifier(trio, ucan.Gaussian(0.25), num_classes=10, precision="bf16")
    with pytest.raises(ModelError, match="disagrees with the model"):
        g.certify(data.load("digits").batch([0])[0], n0=10, n=50)
    assert calls


def test_certificate_files_follow_the_votes_of_a_run_that_grows(home: Path) -> None:
    job = CertifyJob(model="runs/t0", data="digits", skip=300, n=100, bound="anytime", device="cpu", certificates=True)
    with chdir(home):
        certify(job, Path("runs/grown"))
        certify(replace(job, n=600, certificates=False), Path("runs/grown"))
        certify(replace(job, n=600), Path("runs/grown"))
        rows = Run.open("runs/grown").columns
        files = [json.loads(Path(f"runs/grown/certificates/{i}.json").read_text()) for i in rows["idx"]]
    assert [one["evidence"]["n"] for one in files] == rows["n"].tolist() == [600] * len(files)


def test_an_entry_of_a_run_without_rows_fails(home: Path) -> None:
    with closing(sqlite3.connect(home / "runs" / "both" / "results.sqlite")) as db, db:
        db.execute("DELETE FROM outcomes")
        db.execute("DELETE FROM records")
    done = checked(home / "entry.json", home / "runs" / "both")
    assert {"results", "counts", "claim"} <= set(failed(done)) and not done.stands


@pytest.mark.parametrize("key", ["r=0.25", "nan", "-1", "0.250"])
def test_an_entry_whose_radii_are_none_fails(home: Path, key: str) -> None:
    done = checked(home / "entry.json", certified={"0": 1, key: 1})
    assert failed(done) == ["stated"] and not done.stands
