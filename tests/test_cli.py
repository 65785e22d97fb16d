"""The command line as its users meet it: words in, files, messages and exit codes out."""

import dataclasses
import importlib
import json
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import IO

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn
from typer.testing import CliRunner

import ucan
from ucan.bench import Bench
from ucan.catalogue import READERS
from ucan.certificate import save_json
from ucan.cli import app, main
from ucan.cli import words as options
from ucan.cli.exchange import ScopeName
from ucan.cli.interrupts import INTERRUPTS
from ucan.cli.progress import Progress, duration
from ucan.cli.train import Training
from ucan.data import load
from ucan.errors import InvalidInput, StoreError, TrainingError
from ucan.models import build_model
from ucan.report.rerun import commands
from ucan.report.runs import read_runs
from ucan.results import Store
from ucan.runs.answers import Answer, Answers
from ucan.runs.build import step_for
from ucan.runs.config import PredictConfig
from ucan.smoothed import COMPANY
from ucan.training import Trainer, is_trained_run

HEADER = "idx\tlabel\tpredict\tradius\tcorrect\ttime"


@pytest.mark.parametrize(
    ("option", "known"),
    [
        (options.BackendName, {"eager", "compile", "tuned", "onnxruntime", "openvino", "auto"}),
        (options.PrecisionName, {"fp32", "tf32", "bf16"}),
        (options.NormName, {"1", "2", "inf"}),
        (ScopeName, {"pipeline", "frozen", "registry", "unknown"}),
    ],
)
def test_names_of_an_option_are_members_with_their_own_value(option, known):
    assert {one.value for one in option} == known and all(option(name) == name for name in known)


def test_the_help_of_data_names_every_data_set():
    assert [name for name in READERS.names() if name not in options.DATA_HELP] == []


@dataclasses.dataclass
class Asked:
    n: int = 0
    data: str = ""
    norm: float | None = None


def test_a_parameter_that_nothing_takes_is_refused():
    given = {"n": 5, "source": "digits", "norm": options.NormName("inf"), "quiet": True}
    assert options.job_of(Asked, given) == Asked(5, "digits", math.inf)
    assert options.job_of(Asked, {**given, "top": 3}, ("top",), n=6) == Asked(6, "digits", math.inf)
    with pytest.raises(TypeError, match="Asked has no field for nn"):
        options.job_of(Asked, {**given, "nn": 5})


COMMANDS = ("demo", "train", "certify", "predict", "verify", "compare", "report", "export", "import")
MODEL = '''
import os
import time
import torch

def net(batch):
    """Two logits: is the picture bright?"""
    bright = batch.flatten(1).mean(1) - 0.5
    return torch.stack([-10 * bright, 10 * bright], dim=1)

def index(batch):
    return net(batch).argmax(1)

def slow(batch):
    time.sleep(float(os.environ.get("PAUSE", "0")))
    return net(batch)

def grey(batch):
    return net(batch.reshape(len(batch), 1, 4, 4))

def gone(batch):
    return net(batch) * float("nan")

def three(batch):
    return torch.nn.functional.pad(net(batch), (0, 1), value=-99.0)

number = 7
'''


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a classifier in tiny.py and six pictures in data.npz: dark, bright, undecided, …; we are in it."""
    (tmp_path / "tiny.py").write_text(MODEL)
    level = np.array([0.1, 0.9, 0.5, 0.2, 0.8, 0.9], dtype=np.float32)
    x = np.broadcast_to(level[:, None, None, None], (6, 1, 4, 4))
    np.savez(tmp_path / "data.npz", x=x, y=np.array([0, 1, 0, 0, 1, 0]))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "tiny", raising=False)
    return tmp_path


def ok(*words: object) -> str:
    """The standard output of a command that must succeed."""
    result = CliRunner().invoke(app, [str(w) for w in words])
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: object) -> str:
    """What the program says on standard error when it refuses, with exit code 2 and no traceback."""
    monkeypatch.setattr(sys, "argv", ["ucan", *map(str, words)])
    with pytest.raises(SystemExit) as leaving:
        main()
    said = capsys.readouterr()
    assert leaving.value.code == 2, said
    assert said.out == "" and said.err and "Traceback" not in said.err
    return said.err


def files(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if "__pycache__" not in p.parts and p.is_file()}


SMALL = ("--n0", 20, "--n", 300, "-q")


def certify(out: str, *more: object, model: str = "tiny:net", data: str = "data.npz") -> str:
    return ok("certify", "--model", model, "--data", data, "-o", out, *SMALL, *more)


def rows(tsv: Path) -> list[dict[str, str]]:
    header, *lines = tsv.read_text().splitlines()
    assert header == HEADER
    return [dict(zip(header.split("\t"), line.split("\t"), strict=True)) for line in lines]


# --- help ---


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_every_command_explains_itself_with_an_example(command: str, flag: str) -> None:
    text = ok(command, flag)
    assert "Example" in text and f"ucan {command}" in text.replace("Usage: ucan", "", 1)


def test_the_program_lists_its_commands_and_tells_its_version() -> None:
    text = ok("--help")
    assert all(command in text for command in COMMANDS)
    assert ok("--version") == f"ucan {ucan.__version__}\n"
    assert "Usage" in CliRunner().invoke(app, []).output


# --- certify ---


def test_certify_writes_the_fields_table(place: Path) -> None:
    said = certify("run")
    table = rows(place / "run" / "results.tsv")
    assert [r["idx"] for r in table] == list("012345")
    assert [r["predict"] for r in table] == ["0", "1", "-1", "0", "1", "1"]
    assert [r["correct"] for r in table] == ["1", "1", "0", "1", "1", "0"]
    assert float(table[2]["radius"]) == 0 and all(float(table[i]["radius"]) > 0 for i in (0, 1, 3, 4, 5))
    assert "6 inputs: 66.6 % certified correctly" in said and "1 abstention." in said
    assert "Scope pipeline" in said


def test_inputs_without_labels_are_neither_right_nor_wrong(place: Path) -> None:
    x = np.load("data.npz")["x"]
    np.savez("unlabelled.npz", x=x, y=np.full(6, -1))
    result = CliRunner().invoke(
        app, ["certify", "--model", "tiny:net", "--data", "unlabelled.npz", "--scale", "0.1", "--n", "500"]
    )
    assert "6 inputs: 5 with a certificate, right or wrong (the labels are unknown); 1 abstention." in result.stdout
    assert "6/6" in result.stderr and "accuracy" not in result.stderr


def test_shares_are_of_the_inputs_whose_label_is_known(place: Path) -> None:
    x, y = (np.load("data.npz")[key] for key in "xy")
    y[3:] = -1  # of the first three, two are right and one abstains
    np.savez("part.npz", x=x, y=y)
    words = ["--model", "tiny:net", "--data", "part.npz", "--scale", "0.1", "--n", "500"]
    result = CliRunner().invoke(app, ["certify", *words, "-o", "run"])
    assert "6 inputs: 66.6 % of the 3 whose label is known certified correctly" in result.stdout
    assert "6/6" in result.stderr and "accuracy 66.6 %" in result.stderr
    assert "accuracy 66.6 %" in CliRunner().invoke(app, ["predict", *words]).stderr


def test_the_first_inputs_of_sorted_data_are_no_sample(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    level = np.repeat(np.linspace(0.1, 0.9, 2, dtype=np.float32), 10)
    np.savez("sorted.npz", x=np.broadcast_to(level[:, None, None, None], (20, 1, 4, 4)), y=np.repeat([0, 1], 10))
    common = ("certify", "--model", "tiny:net", "--data", "sorted.npz", "--scale", 0.1, "--n", 200)
    for more, warned in ((("--max", 5), True), (("--skip", 4), False), ((), False)):
        result = CliRunner().invoke(app, [*map(str, common), *map(str, more), "-o", f"run{len(more)}{warned}"])
        assert result.exit_code == 0, result.output
        assert ("the 5 selected inputs cover 1 of the 2 classes" in result.stderr) == warned
        assert ("Use --skip 4 to select inputs" in result.stderr) == warned
    np.savez("partly.npz", x=np.broadcast_to(level[:, None, None, None], (20, 1, 4, 4)), y=np.repeat([-1, 0, 1, 1], 5))
    result = CliRunner().invoke(app, [*map(str, common), "--data", "partly.npz", "--max", "8", "-o", "partly"])
    assert "the 8 selected inputs cover 1 of the 2 classes" in result.stderr
    np.savez("mixed.npz", x=np.broadcast_to(level[:, None, None, None], (20, 1, 4, 4)), y=np.tile([0, 0, 0, 1], 5))
    result = CliRunner().invoke(app, [*map(str, common), "--data", "mixed.npz", "--max", "3", "-o", "mixed"])
    assert result.exit_code == 0
    assert "sorted by class" not in result.stderr  # the first three are of one class by chance


def test_votes_for_no_class_are_told(place: Path) -> None:
    words = ["certify", "--model", "tiny:gone", "--data", "data.npz", "--n", "300", "--max", "2"]
    result = CliRunner().invoke(app, [*words, "-q", "-o", "gone"])
    assert "warning: 600 of 600 votes were invalid" in result.stderr and "2 abstentions." in result.stdout
    words[2] = "tiny:net"
    assert "were invalid" not in CliRunner().invoke(app, [*words, "-o", "net"]).stderr


def test_a_built_in_model_with_weights_is_made_for_the_data(place: Path) -> None:
    save_file(build_model("cnn", (1, 4, 4), 2).network.state_dict(), "w.safetensors")
    words = ("--weights", "w.safetensors", "--classes", 2)
    assert "6 inputs" in certify("run", "--certificates", *words, model="cnn")
    certified = [path for path in (place / "run" / "certificates").iterdir() if '"certificate"' in path.read_text()]
    assert certified
    index = certified[0].stem
    verify = ("verify", certified[0], "--model", "cnn", *words[:2], "--input", "data.npz", "--index", index)
    assert "The claim stands" in ok(*verify)
    assert "attacked" in ok("audit", "run", "--max", 1, "--steps", 1, "--check", 50, "-q")  # the run names the weights


def test_a_run_names_the_file_of_its_weights(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with open("tiny.py", "a") as file:
        file.write("linear = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 2)).eval()\n")
    for name, level in (("w.pt", 1.0), ("other.pt", 2.0)):
        weight = torch.tensor([[-level], [level]]).expand(2, 16).contiguous()
        torch.save({"1.weight": weight, "1.bias": 8 * torch.tensor([level, -level])}, name)
    assert "5 inputs" in certify("run", "--weights", "w.pt", "--max", 5, model="tiny:linear")
    few = ("--max", 1, "--steps", 1, "--check", 50, "-q")
    said = refused(capsys, monkeypatch, "audit", "run", *few, "--weights", "other.pt")
    assert "run was made with other weights" in said and not (place / "run" / "audit").exists()
    assert "1 certificate attacked" in ok("audit", "run", *few)
    (place / "w.pt").rename("moved.pt")
    assert "no weights file w.pt" in refused(capsys, monkeypatch, "audit", "run", *few)
    assert "1 certificate attacked" in ok("audit", "run", *few, "--weights", "moved.pt")
    config = place / "run" / "config.toml"
    config.write_text("\n".join(line for line in config.read_text().splitlines() if not line.startswith("weights = ")))
    assert "6 inputs" in certify("run", "--weights", "moved.pt", model="tiny:linear")  # a run of an earlier version


def test_the_progress_of_early_stopping_promises_no_accuracy(place: Path) -> None:
    common = ["certify", "--model", "tiny:net", "--data", "data.npz", "--scale", "0.1", "--n", "2000"]
    fixed, stopped = (
        CliRunner().invoke(app, [*common, *more]) for more in (["-o", "a"], ["-o", "b", "--stop", "0.05"])
    )
    assert "accuracy 66.6 %" in fixed.stderr and "accuracy" not in stopped.stderr
    again = CliRunner().invoke(app, [*common, "-o", "a", "--max", "3"])  # fewer than are there
    assert "3 inputs: 66.6 % certified correctly" in again.stdout


def test_certify_with_a_registry_keeps_to_what_it_has_said(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "Scope registry" in certify("first", "--registry", "answers.sqlite", "--certificates")
    before = rows(place / "first" / "results.tsv")
    certify("again", "--registry", "answers.sqlite", "--seed", 5)
    after = rows(place / "again" / "results.tsv")
    assert [(r["predict"], r["radius"]) for r in before] == [(r["predict"], r["radius"]) for r in after]
    with Store.open("again") as store:
        assert store.scope == "registry" and store.config["registry"] == "answers.sqlite"
    with ucan.Registry("answers.sqlite") as registry:
        assert 0 < len(registry) <= 6
    words = ("certify", "--model", "tiny:net", "--data", "data.npz", "--registry", "answers.sqlite", "-o", "other")
    assert "another classifier (law" in refused(capsys, monkeypatch, *words, "--scale", 0.4)
    assert "alpha 0.001, this one 0.01" in refused(capsys, monkeypatch, *words, "--alpha", 0.01)
    assert not (place / "other").exists()


@pytest.mark.parametrize("noise", [(), ("--scale", 0.25)])
def test_verify_with_a_model_of_other_classes_names_no_option_that_it_lacks(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, noise: tuple[object, ...]
) -> None:
    certify("run", "--certificates")
    words = ("verify", "run/certificates/0.json", "--model", "tiny:three", "--input", "data.npz", "--index", 0, "-q")
    said = refused(capsys, monkeypatch, *words, *noise)
    assert "the model has 3 classes, but run/certificates/0.json is about one with 2: give the model" in said


def test_a_claim_of_a_registry_is_verified_with_it(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    certify("run", "--registry", "answers.sqlite", "--certificates")
    # the sixth picture is the second again: its certificate comes from that one's enrolment
    words = ["verify", "run/certificates/5.json", "--model", "tiny:net", "--input", "data.npz", "--index", "5"]
    assert "scope registry" in ok(*words, "--registry", "answers.sqlite")
    assert "--registry" in refused(capsys, monkeypatch, *words)
    assert "no registry" in refused(capsys, monkeypatch, *words, "--registry", "nowhere.sqlite")
    with ucan.Registry("empty.sqlite"):
        pass
    other = CliRunner().invoke(app, [*words, "--registry", "empty.sqlite"])
    assert other.exit_code == 1 and "FAIL scope" in other.stdout and "does not stand" in other.stdout


def test_a_picture_that_was_resized_is_verified_as_it_was_certified(place: Path) -> None:
    from PIL import Image

    (place / "pictures").mkdir()
    pixels = np.random.default_rng(0).integers(0, 60, (30, 20), dtype=np.uint8)
    Image.fromarray(pixels).save(place / "pictures" / "dark.png")
    more = ("--size", 4, "--channels", 1)
    options = ("--n", 500, "-q", "-o", "run", "--certificates")
    said = ok("certify", "--model", "tiny:net", "--data", "pictures", *more, *options)
    assert "Every input by its name: run/answers.csv" in said and "column" not in said
    words = ("verify", "run/certificates/0.json", "--model", "tiny:net", "--size", 4)
    assert "The claim stands" in ok(*words, "--input", "pictures/dark.png")
    assert "The claim stands" in ok(*words, "--input", "pictures", "--index", 0)


def test_the_radius_in_the_table_is_never_above_the_stored_one(place: Path) -> None:
    certify("run", "--scale", 0.37)
    with Store.open("run") as store:
        stored = store.columns()["radius"]
    shown = [float(r["radius"]) for r in rows(place / "run" / "results.tsv")]
    assert all(a <= b for a, b in zip(shown, stored, strict=True))
    assert np.allclose(shown, stored, rtol=1e-5)


def test_a_tsv_may_be_named_instead_of_a_folder(place: Path) -> None:
    certify("field.tsv", "--max", 2)
    assert len(rows(place / "field.tsv")) == 2
    assert (place / "field" / "config.toml").is_file()


def test_an_own_tsv_is_not_overwritten(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "mine.tsv").write_text("precious")
    said = refused(capsys, monkeypatch, "certify", "--model", "tiny:net", "--data", "data.npz", "-o", "mine.tsv")
    assert "mine.tsv already exists" in said
    assert (place / "mine.tsv").read_text() == "precious"


def test_certificates_that_are_missing_are_written_by_the_same_command(place: Path) -> None:
    certify("run")
    certify("run", "--certificates")
    folder = place / "run" / "certificates"
    there = {path.name: path.read_text() for path in folder.glob("*.json")}
    assert len(there) == len(rows(place / "run" / "results.tsv")) > 3
    kept = folder / "0.json"
    os.utime(kept, (1, 1))
    for damage in (None, "", "{", "[]", "3", there["0.json"], there["3.json"].replace('"seed": ', '"seed": 1')):
        (folder / "3.json").unlink()
        if damage is not None:
            (folder / "3.json").write_text(damage)
        certify("run", "--certificates")
        assert {path.name: path.read_text() for path in folder.glob("*.json")} == there
    assert kept.stat().st_mtime == 1  # what is right is not written again


def test_a_second_run_computes_nothing(place: Path) -> None:
    certify("run", "--model-id", "tiny")
    first = (place / "run" / "results.tsv").read_text()
    # What is left is a look at one picture and a few copies of it; votes come in larger batches.
    refusing = f"def net(batch):\n    assert len(batch) <= {COMPANY}, 'nothing is left to compute'"
    (place / "tiny.py").write_text(MODEL.replace("def net(batch):", refusing))
    sys.modules.pop("tiny")
    certify("run", "--model-id", "tiny")
    assert (place / "run" / "results.tsv").read_text() == first


def test_a_run_does_not_go_on_with_another_function_of_the_same_name(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    certify("run", "--max", 1)
    (place / "tiny.py").write_text(MODEL.replace("10 * bright", "11 * bright"))
    sys.modules.pop("tiny")
    said = refused(capsys, monkeypatch, "certify", "--model", "tiny:net", "--data", "data.npz", *SMALL, "-o", "run")
    assert "identity: the run has 'code:" in said


def test_a_run_grows_with_max(place: Path) -> None:
    certify("run", "--max", 2)
    before = (place / "run" / "results.tsv").read_text()
    certify("run")
    after = (place / "run" / "results.tsv").read_text()
    assert after.startswith(before) and len(rows(place / "run" / "results.tsv")) == 6


@pytest.mark.parametrize(
    "more, named",
    [
        (("--n", 301), "n: the run has 300, asked for 301"),
        (("--scale", 0.3), "law.scale: the run has 0.25, asked for 0.3"),
        (("--seed", 5), "seed: the run has 0, asked for 5"),
        (("--model", "tiny:index", "--classes", 2), "model: the run has 'tiny:net', asked for 'tiny:index'"),
    ],
)
def test_other_settings_in_the_same_folder_are_refused_by_name(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, more: tuple, named: str
) -> None:
    certify("run")
    before = (place / "run" / "results.tsv").read_bytes()
    words = ("certify", "--model", "tiny:net", "--data", "data.npz", "-o", "run", *SMALL, *more)
    assert named in refused(capsys, monkeypatch, *words)
    assert (place / "run" / "results.tsv").read_bytes() == before


def test_another_model_in_the_same_folder_is_named_first(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with open("tiny.py", "a") as file:
        file.write("linear = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 2)).eval()\n")
    certify("run")
    words = ("certify", "--data", "data.npz", "-o", "run", *SMALL)
    assert "model: the run has 'tiny:net'" in refused(capsys, monkeypatch, *words, "--model", "tiny:linear")


def test_skip_and_max_choose_the_inputs(place: Path) -> None:
    certify("run", "--skip", 2, "--max", 2)
    assert [r["idx"] for r in rows(place / "run" / "results.tsv")] == ["0", "2"]


def test_the_summary_as_json(place: Path) -> None:
    summary = json.loads(certify("run", "--json"))
    assert summary["inputs"] == 6 and summary["abstained"] == 1 and summary["scope"] == "pipeline"
    assert summary["accuracy"] <= 4 / 6 and summary["accuracy"] == pytest.approx(4 / 6, abs=1e-5)


@pytest.mark.parametrize(
    "more, kind",
    [
        (("--law", "laplace", "--norm", 1), "Laplace"),
        (("--law", "uniform", "--norm", "inf"), "Uniform"),
        (("--law", "expinf", "--norm", "inf", "--scale", 0.05), "ExpInf"),
        (("--law", "powerlaw", "--norm", 1, "--exponent", 30), "PowerLaw"),
        (("--norm", "inf", "--bound", "two-class"), "Gaussian"),
        (("--noise", "pattern-2"), "Gaussian"),
        (("--noise", "map.npy"), "Gaussian"),
        (("--noise", "matrix.npy"), "Gaussian"),
    ],
)
def test_laws_norms_and_shapes(place: Path, more: tuple, kind: str) -> None:
    np.save("map.npy", np.linspace(0.5, 1.5, 16).reshape(1, 4, 4))
    np.save("matrix.npy", np.eye(16) + 0.01)
    certify("run", "--max", 2, *more)
    config = tomllib.loads((place / "run" / "config.toml").read_text())
    assert config["law"]["name"] == kind
    assert [r["predict"] for r in rows(place / "run" / "results.tsv")] == ["0", "1"]


def test_a_run_does_not_go_on_under_other_noise(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save("map.npy", np.linspace(0.5, 1.5, 16).reshape(1, 4, 4))
    certify("run", "--noise", "map.npy", "--max", 1)
    certify("run", "--noise", "map.npy", "--max", 2)
    np.save("map.npy", np.linspace(1.5, 0.5, 16).reshape(1, 4, 4))  # of the same kind, with the same largest scale
    same = ("--model", "tiny:net", "--data", "data.npz", *SMALL, "-o", "run", "--noise", "map.npy")
    said = refused(capsys, monkeypatch, "certify", *same)
    assert "noise_hash" in said and said.count("asked for") == 1
    config = place / "run" / "config.toml"
    lines = config.read_text().splitlines()
    config.write_text("\n".join(line for line in lines if "noise_hash" not in line))  # a run of an older version
    certify("run", "--noise", "map.npy")


def test_a_function_that_answers_with_class_numbers(place: Path) -> None:
    certify("run", "--classes", 2, model="tiny:index")
    certify("logits")
    assert [r["radius"] for r in rows(place / "run" / "results.tsv")] == [
        r["radius"] for r in rows(place / "logits" / "results.tsv")
    ]


class Bright(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bright = x.flatten(1).mean(1) - 0.5
        return torch.stack([-10 * bright, 10 * bright], dim=1)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_torch_export_file(place: Path) -> None:
    program = torch.export.export(
        Bright().eval(), (torch.rand(4, 1, 4, 4),), dynamic_shapes=({0: torch.export.Dim("batch")},)
    )
    torch.export.save(program, place / "bright.pt2")
    certify("run", model="bright.pt2")
    assert [r["predict"] for r in rows(place / "run" / "results.tsv")] == ["0", "1", "-1", "0", "1", "1"]


def test_an_onnx_file(place: Path) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    make, kind = onnx.helper.make_node, onnx.TensorProto.FLOAT
    weight = onnx.numpy_helper.from_array(np.stack([np.full(16, -0.625), np.full(16, 0.625)], 1).astype("f4"), "w")
    bias = onnx.numpy_helper.from_array(np.array([5, -5], dtype="f4"), "b")
    nodes = [make("Flatten", ["x"], ["f"]), make("Gemm", ["f", "w", "b"], ["y"])]
    x = onnx.helper.make_tensor_value_info("x", kind, ["n", 1, 4, 4])
    y = onnx.helper.make_tensor_value_info("y", kind, ["n", 2])
    graph = onnx.helper.make_graph(nodes, "bright", [x], [y], [weight, bias])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(place / "bright.onnx"))
    certify("run", model="bright.onnx")
    assert [r["predict"] for r in rows(place / "run" / "results.tsv")] == ["0", "1", "-1", "0", "1", "1"]


def test_a_folder_of_pictures(place: Path) -> None:
    for name, level in (("dark", 20), ("light", 230)):
        (place / "pictures" / name).mkdir(parents=True)
        for i in range(2):
            Image.fromarray(np.full((4, 4, 3), level + i, np.uint8)).save(place / "pictures" / name / f"{i}.png")
    certify("run", data="pictures")
    assert [(r["label"], r["predict"]) for r in rows(place / "run" / "results.tsv")] == [
        ("0", "0"),
        ("0", "0"),
        ("1", "1"),
        ("1", "1"),
    ]


def pictures(folder: Path, **sizes: int) -> None:
    """Grey pictures, each a square of its own size, in one class folder."""
    (folder / "class").mkdir(parents=True)
    for name, size in sizes.items():
        Image.fromarray(np.full((size, size, 3), 230, np.uint8)).save(folder / "class" / f"{name}.png")


def test_pictures_of_several_sizes_need_a_size(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures(place / "pictures", a=4, b=4, c=6)
    words = ("--model", "tiny:net", "--data", "pictures", "-o", "run")
    for command in ("certify", "predict"):
        said = refused(capsys, monkeypatch, command, *words, "--n", 300)
        assert "c.png is 6 x 6 pixels, but pictures has 4 x 4" in said and "--size" in said
        assert not (place / "run").exists()
    certify("run", "--size", 4, "--channels", 1, data="pictures")
    config = tomllib.loads((place / "run" / "config.toml").read_text())
    assert (config["size"], config["channels"]) == (4, 1) and len(rows(place / "run" / "results.tsv")) == 3
    said = refused(capsys, monkeypatch, "certify", *words, *SMALL, "--size", 4)
    assert "channels: the run has 1, asked for none" in said
    assert len(ok("predict", *words[:4], "--n", 300, "-q", "--size", 2).splitlines()) == 4


def test_a_damaged_picture_is_found_before_work_begins(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures(place / "pictures", a=40, b=40, c=40)
    path = place / "pictures" / "class" / "c.png"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    for command in ("certify", "predict"):
        said = refused(capsys, monkeypatch, command, "--model", "tiny:net", "--data", "pictures", "-o", "run")
        assert "c.png cannot be decoded" in said and not (place / "run").exists()
    certify("run", "--max", 2, data="pictures")


def test_labels_that_the_model_does_not_know_are_found_before_work_begins(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez("odd.npz", x=np.full((4, 1, 4, 4), 0.9, dtype="f4"), y=np.array([0, -1, 5, 2]))
    for command in ("certify", "predict"):
        said = refused(capsys, monkeypatch, command, "--model", "tiny:net", "--data", "odd.npz", "-o", "run")
        assert "label 5 at index 2, but the model has 2 classes" in said and not (place / "run").exists()
    said = refused(capsys, monkeypatch, "predict", "--model", "tiny:net", "--data", "odd.npz", "--skip", 3)
    assert "label 2 at index 3" in said
    certify("run", "--max", 2, data="odd.npz")
    assert [r["label"] for r in rows(place / "run" / "results.tsv")] == ["0", "-1"]


def test_stopping_early_draws_less_and_is_frozen_with_the_run(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = certify("run", "--n", 20_000, "--stop", "0.30, 0.1", "--max", 4)
    with Store.open("run") as store:
        mean = store.gapless()[0]["n"].mean()
    assert "stopped once the radii 0.1 and 0.3 were decided" in said and f"lower bounds. {mean:,.0f} samples an" in said
    before = rows(place / "run" / "results.tsv")
    certify("run", "--n", 20_000, "--stop", "0.1,0.3")
    table = rows(place / "run" / "results.tsv")
    assert table[:4] == before and [r["predict"] for r in table] == ["0", "1", "-1", "0", "1", "1"]
    assert tomllib.loads((place / "run" / "config.toml").read_text())["stop"] == "0.1,0.3"
    with Store.open("run") as store:
        assert store.columns()["n"].max() < 20_000 and store.outcome(0).evidence.bound == "sequential"
    words = ("certify", "--model", "tiny:net", "--data", "data.npz", "-o", "run", *SMALL, "--n", 20_000)
    assert "stop: the run has '0.1,0.3', asked for '5%'" in refused(capsys, monkeypatch, *words, "--stop", "5%")
    assert "stop: the run has '0.1,0.3', asked for none" in refused(capsys, monkeypatch, *words)
    certify("run", "--n", 20_000, "--stop", "0.1,0.3")  # with nothing left to do


def test_predict_may_stop_early(place: Path) -> None:
    words = ("predict", "--model", "tiny:net", "--data", "data.npz", "--n", 100_000, "-q", "--stop")
    table = [line.split("\t") for line in ok(*words).splitlines()[1:]]
    assert [line[0] for line in table] == list("012345")
    assert [line[2] for line in table] == ["0", "1", "-1", "0", "1", "1"]


MODULE = (
    MODEL
    + """
class Bright(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(16, 2)
        torch.nn.init.constant_(self.linear.bias, 0.0)
        with torch.no_grad():
            self.linear.weight.copy_(torch.tensor([[-1.0], [1.0]]).expand(2, 16))

    def forward(self, x):
        return self.linear(x.flatten(1) - 0.5)
"""
)


@pytest.mark.parametrize("worth", (120.0, 0.0))
def test_the_backend_is_chosen_once_and_frozen(place: Path, monkeypatch: pytest.MonkeyPatch, worth: float) -> None:
    """A short job runs eagerly without a try; for a long one `auto` measures, which is replaced here."""
    (place / "tiny.py").write_text(MODULE)
    asked: list[str] = []
    real = sys.modules["ucan.engine"].prepare

    def prepare(f, view, example, name, precision):  # type: ignore[no-untyped-def]
        asked.append(name)
        return dataclasses.replace(
            real(f, view, example, "eager", precision), name="compile" if name != "eager" else name
        )

    monkeypatch.setattr("ucan.engine.prepare", prepare)
    monkeypatch.setattr("ucan.runs.backend.WORTH_COMPILING", worth)
    certify("run", "--max", 2, model="tiny:Bright")
    chosen = "eager" if worth else "compile"
    config = tomllib.loads((place / "run" / "config.toml").read_text())
    assert config["backend"] == chosen and set(asked) == {"eager" if worth else "auto"}
    monkeypatch.setattr("ucan.runs.backend.WORTH_COMPILING", 120.0 - worth)
    certify("run", model="tiny:Bright")
    assert asked[-1] == chosen
    with Store.open("run") as store:
        assert {store.outcome(i).evidence.backend for i in range(6)} == {chosen}


def test_the_precision_is_the_classifiers_own_unless_asked_for(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "tiny.py").write_text(MODULE)
    certify("half", "--precision", "bf16", "--backend", "eager", model="tiny:Bright")
    certify("own", model="tiny:Bright")
    with Store.open("half") as half, Store.open("own") as own:
        assert half.outcome(0).evidence.precision == "bf16" and half.config["precision"] == "bf16"
        assert own.outcome(0).evidence.precision == "fp32" and "precision" not in own.config
    words = ("certify", "--data", "data.npz", "-o", "other", *SMALL)
    said = refused(capsys, monkeypatch, *words, "--model", "tiny:net", "--precision", "bf16")
    assert "for PyTorch modules" in said and not (place / "other").exists()


# --- wrong use: exit code 2, a clear message, nothing left behind ---

WRONG = {
    "one dash": (("-n", "300"), "No such option: -n, but there is --n. See"),
    "too few votes": (("--n", "5"), "no certificate is possible with n = 5 at α = 0.001"),
    "law": (("--law", "cauchy"), "cauchy"),
    "norm": (("--norm", "3"), "'3'"),
    "norm of the law": (("--law", "laplace"), "Laplace noise has no known radius against ℓ2; it has one against ℓ1"),
    "device": (("--device", "quantum"), "--device quantum: there is no such kind of device. Choose cpu, auto,"),
    "file": (("--data", "nowhere.npz"), "nowhere.npz"),
    "model file": (("--model", "nowhere.onnx"), "no model file nowhere.onnx"),
    "module": (("--model", "nowhere:net"), "no module 'nowhere'"),
    "attribute": (("--model", "tiny:other"), "tiny has no 'other'; it has net, index"),
    "not callable": (("--model", "tiny:number"), "cannot be called on a batch"),
    "no model": (("--model", "tiny"), "is not a model"),
    "alpha": (("--alpha", "1.5"), "alpha must lie strictly between 0 and 1"),
    "alpha nan": (("--alpha", "nan"), "alpha must lie strictly between 0 and 1"),
    "n": (("--n", "0"), "n must be a whole number of at least 1"),
    "n0": (("--n0", "0"), "n0 must be a whole number of at least 1"),
    "scale 0": (("--scale", "0"), "scale must be a finite number above 0"),
    "scale < 0": (("--scale", "-1"), "scale must be a finite number above 0"),
    "scale inf": (("--scale", "inf"), "scale must be a finite number above 0"),
    "exponent missing": (("--law", "powerlaw", "--norm", "1"), "needs --exponent"),
    "exponent too small": (("--law", "powerlaw", "--norm", "1", "--exponent", "16"), "Use a > 16"),
    "exponent of another law": (("--exponent", "20"), "--exponent is for the power law"),
    "classes": (("--classes", "3"), "use num_classes=2 (on the command line --classes)"),
    "classes unknown": (("--model", "tiny:index"), "--classes"),
    "noise": (("--noise", "zigzag"), "neither a .npy file nor the name"),
    "noise file": (("--noise", "nowhere.npy"), "nowhere.npy cannot be read"),
    "noise shape": (("--noise", "short.npy"), "short.npy has shape (5,)"),
    "noise singular": (("--noise", "zero.npy"), "regularised"),
    "bound": (("--bound", "ternary"), 'bound must be "binary", "randomised", "two-class", "anytime" or "exact"'),
    "stop": (("--stop", "soon"), "stop takes radii such as 0.5,1.0 or a percentage"),
    "stop and bound": (("--stop", "0.5", "--bound", "two-class"), "--bound two-class would not be used"),
    "stop and the default": (("--stop", "5%", "--bound", "binary"), "--bound binary would not be used"),
    "backend": (("--backend", "quick"), "quick"),
    "backend of a function": (("--backend", "compile"), "for PyTorch modules"),
    "precision": (("--precision", "fp8"), "fp8"),
    "size of an array": (("--size", "8"), "size (--size) is for pictures in files: the inputs of data.npz keep"),
    "channels of an array": (("--channels", "1"), "--size and --channels are for pictures in files, and data has none"),
    "size by name": (
        ("--data", "digits", "--size", "16"),
        "is for pictures in files: the inputs of digits keep their shape",
    ),
    "channels": (("--data", "empty", "--channels", "2"), "channels must be 3 (RGB) or 1 (grey)"),
    "labels": (("--data", "labels.npz"), "label 7 at index 1, but the model has 2 classes"),
    "shape": (
        ("--data", "colour.npz", "--model", "tiny:grey"),
        "the model fails on an input of shape (3, 4, 4): RuntimeError: shape '[1, 1, 4, 4]' is invalid for input of size "
        "48. Check that the model takes this shape. (On the command line, --size and --channels",
    ),
    "untrained": (("--model", "cnn"), "cnn has no trained weights: give them with --weights, or train it"),
    "ending": (("-o", "run.csv"), "then `ucan export FOLDER -o run.csv`"),
    "file in the way": (("-o", "tiny.py"), "tiny.py is a file, but a run needs a folder"),
    "skip": (("--skip", "0"), "'--skip'"),
    "max": (("--max", "0"), "'--max'"),
    "split": (("--data", "digits", "--split", "middle"), "split must be train or test"),
    "batch": (("--batch-size", "0"), "batch_size must be a whole number"),
    "nan": (("--data", "nan.npz"), "nan"),
    "empty folder": (("--data", "empty"), "holds no pictures"),
    "unreadable picture": (("--data", "broken"), "0.png cannot be decoded"),
    "no npz": (("--data", "tiny.py"), "tiny.py is not an .npz or .npy file, a table or a folder"),
    "damaged npz": (("--data", "damaged.npz"), "damaged.npz cannot be read"),
    "weights": (("--weights", "w.pt"), "cannot be loaded into it"),
    "folder in use": (("-o", "empty-not"), "empty-not is not empty and is not a run folder"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_use_is_refused_before_any_work(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    np.save("short.npy", np.ones(5))
    np.save("zero.npy", np.zeros((1, 4, 4)))
    np.savez("nan.npz", x=np.full((2, 1, 4, 4), np.nan, dtype="f4"), y=np.zeros(2, dtype=int))
    np.savez("colour.npz", x=np.zeros((2, 3, 4, 4), dtype="f4"), y=np.zeros(2, dtype=int))
    np.savez("labels.npz", x=np.zeros((2, 1, 4, 4), dtype="f4"), y=np.array([-1, 7]))
    (place / "damaged.npz").write_bytes((place / "data.npz").read_bytes()[:100])
    for name in ("empty", "broken", "empty-not"):
        (place / name).mkdir()
    (place / "broken" / "0.png").write_bytes(b"no picture")
    (place / "empty-not" / "letter.txt").write_text("dear")
    words, message = WRONG[what]
    before = files(place)
    base = ("certify", "--model", "tiny:net", "--data", "data.npz", "-o", "run", "--n", "300", "--n0", "20")
    said = " ".join(refused(capsys, monkeypatch, *base, *words).replace("│", " ").split())
    assert message in said
    assert files(place) - before <= {"empty-not/.lock"}
    assert not (place / "run").exists()


def test_a_missing_option_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert "--model" in refused(capsys, monkeypatch, "certify", "--data", "digits")
    assert "No such command" in refused(capsys, monkeypatch, "certiffy")


# --- verify ---


def test_a_claim_about_a_copy_says_what_to_do(place: Path) -> None:
    (place / "tiny.py").write_text(MODULE)
    g = ucan.SmoothedClassifier(importlib.import_module("tiny").Bright().eval(), ucan.Gaussian(0.25), num_classes=2)
    (c,) = g.certify(torch.full((1, 1, 4, 4), 0.1), n=300, precision="bf16")
    save_json(c, place / "copy.json")
    words = ("verify", "copy.json", "--model", "tiny:Bright", "--input", "data.npz", "--index", 0)
    said = ok(*words, "--scale", 0.25)
    assert "Scope pipeline is not confirmed, since it is about a copy in bf16: give --precision bf16" in said
    assert "was not given" not in said
    assert "scope pipeline. This is not a proof" in ok(*words, "--scale", 0.25, "--precision", "bf16")
    stated = ok(*words, "--precision", "bf16")  # the noise as the certificate states it
    assert "precision:" not in stated and "since the noise of the pipeline was not given" in stated


def test_text_from_a_file_does_not_reach_the_terminal_as_control_characters(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    certify("run", "--certificates")
    record = json.loads((place / "run" / "certificates" / "0.json").read_text())
    words = ["verify", "odd.json", "--model", "tiny:net", "--input", "data.npz", "--index", "0", "-q"]
    record["evidence"]["bound"] = "binary\x1b[2J\x1b[H\rok   everything\nThe claim stands.\x9b8m\u202e"
    (place / "odd.json").write_text(json.dumps(record))
    said = CliRunner().invoke(app, words)
    assert said.exit_code == 1 and not {*said.stdout} & {"\x1b", "\r", "\x9b", "\u202e"}
    assert "\\x1b[2J" in said.stdout and "\nThe claim stands" not in said.stdout
    (place / "odd.json").write_text(json.dumps({**record, "format": "\x1b[2J", "kind": "\x1b[2J"}))
    assert "\x1b" not in refused(capsys, monkeypatch, *words)
    record["evidence"] |= {"bound": "binary", "law": {"name": "Odd", "module": "odd\x1b[2J"}}
    (place / "odd.json").write_text(json.dumps(record))
    assert "odd\\x1b[2J" in refused(capsys, monkeypatch, *words)


ODD = {
    "a key twice": lambda text: text.replace('"radius":', '"radius": 9.0, "radius":', 1),
    "deeply nested": lambda text: '{"format": 2, "x": ' + "[" * 100_000 + "]" * 100_000 + "}",
    "too many digits": lambda text: text.replace('"n0": 20', '"n0": ' + "9" * 5000),
    "no class": lambda text: text.replace('"prediction": 0', '"prediction": null'),
    "n0 is nan": lambda text: text.replace('"n0": 20', '"n0": NaN'),
    "n0 is huge": lambda text: text.replace('"n0": 20', '"n0": 1e308'),
    "n0 is text": lambda text: text.replace('"n0": 20', '"n0": "20"'),
    "n is a float": lambda text: text.replace('"n": 300', '"n": 300.0'),
    "the norm is text": lambda text: text.replace('"norm": 2', '"norm": "x"'),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_files_are_refused_in_words(
    place: Path, name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    certify("run", "--certificates")
    text = (place / "run" / "certificates" / "0.json").read_text()
    assert ODD[name](text) != text
    (place / "odd.json").write_text(ODD[name](text))
    words = ("verify", "odd.json", "--model", "tiny:net", "--input", "data.npz", "--index", 0, "--replay")
    said = refused(capsys, monkeypatch, *words)
    if name == "a key twice":
        assert "the entry 'radius' occurs twice" in said


def test_a_claim_of_very_many_votes_does_not_decide_how_many_are_drawn(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certify("run", "--certificates")
    record = json.loads((place / "run" / "certificates" / "0.json").read_text())
    record["evidence"] |= {"counts": [10**13, 0], "n": 10**13, "cap": 10**13}
    (place / "many.json").write_text(json.dumps(record))
    monkeypatch.setattr("ucan.verify.fresh.MOST", 500)
    monkeypatch.setattr("ucan.verify.MOST", 500)
    said = ok("verify", "many.json", "--model", "tiny:net", "--input", "data.npz", "--index", 0, "-q")
    assert (
        "500 fresh votes at level 0.001 (the certificate has 10,000,000,000,000; --n draws as many as you like)" in said
    )


def test_too_few_fresh_votes_confirm_no_scope(place: Path) -> None:
    certify("run", "--certificates")
    words = (
        "verify",
        place / "run" / "certificates" / "0.json",
        "--model",
        "tiny:net",
        "--input",
        "data.npz",
        "--index",
        0,
    )
    said = ok(*words, "--scale", 0.25, "--n", 1)
    assert (
        "Scope pipeline is not confirmed, since so few fresh votes could not have rejected it: give a larger --n."
        in said
    )
    assert "not confirmed votes:" in said


def test_a_folder_with_the_name_of_a_data_set_does_not_hide_it_from_verify(place: Path) -> None:
    words = ("--model", "tiny:net", "--scale", 0.25)
    ok("certify", *words, "--data", "digits", "--max", 1, "--n", 300, "--certificates", "-o", "run", "-q")
    (place / "digits").mkdir()  # such as a run of `ucan train digits-isotropic -o digits`
    said = ok("verify", "run/certificates/0.json", *words, "--input", "digits", "--index", 0, "-q")
    assert "ok   input: this is the input that was certified" in said


def test_a_true_claim_stands_and_a_false_one_does_not(place: Path) -> None:
    assert "Certificates" not in certify("run")
    assert "Certificates, one file an input: run/certificates" in certify("run", "--certificates")  # from its votes
    path = place / "run" / "certificates" / "0.json"
    words = ["verify", str(path), "--model", "tiny:net", "--input", "data.npz"]
    said = ok(*words, "--index", 0)
    assert "The claim stands against 300 fresh votes at level 0.001: class 0 on the whole region" in said
    assert "the noise as the certificate states it" in said and "not a proof" in said
    assert "not confirmed scope: " in said and "ok   scope" not in said
    # A run of `ucan certify` stands for the model that it names; its noise is not taken for that of the pipeline.
    by_run = ok("verify", path, "--model", "run", "--input", "data.npz", "--index", 0)
    assert "class 0 on the whole region" in by_run and "not confirmed scope: " in by_run
    deployed = ok(*words, "--index", 0, "--scale", 0.25, "--replay")
    assert "scope pipeline. This is not a proof" in deployed and "replay: same: all 300 votes" in deployed
    elsewhere = json.loads(path.read_text())
    elsewhere["evidence"]["device"] = "cuda: of another make"  # which a forger can state as well
    (path.parent / "elsewhere.json").write_text(json.dumps(elsewhere))
    again = [*words[:1], str(path.parent / "elsewhere.json"), *words[2:], "--index", "0", "--scale", "0.25"]
    ok(*again)
    unsure = CliRunner().invoke(app, [*again, "--replay"])
    assert unsure.exit_code == 2 and "not checked replay: not replayable here" in unsure.stdout
    assert "Its votes were not drawn again" in unsure.stdout
    other = CliRunner().invoke(app, [*words, "--index", "0", "--scale", "0.5"])
    assert other.exit_code == 1 and "FAIL law" in other.stdout
    np.save("zero.npy", np.full((1, 4, 4), 0.1, dtype=np.float32))
    assert "The claim stands" in ok("verify", path, "--model", "tiny:net", "--input", "zero.npy")

    other = CliRunner().invoke(app, [*words, "--index", "1"])
    assert other.exit_code == 1 and "FAIL input: this is not the input" in other.stdout and "FAIL votes" in other.stdout

    record = json.loads(path.read_text())
    for key, value in {"p_lower": 0.999999}.items():
        (place / "tampered.json").write_text(json.dumps({**record, key: value}))
        tampered = CliRunner().invoke(app, ["verify", "tampered.json", *words[2:], "--index", "0"])
        assert tampered.exit_code == 1 and re.search("FAIL bound: .* does not follow from the counts", tampered.stdout)
    record["region"]["radius"] *= 2
    (place / "tampered.json").write_text(json.dumps(record))
    tampered = CliRunner().invoke(app, ["verify", "tampered.json", *words[2:], "--index", "0"])
    assert tampered.exit_code == 1 and "FAIL radius: this record's radius does not follow" in tampered.stdout
    assert "The claim does not stand (radius): the record contradicts itself" in tampered.stdout
    as_json = CliRunner().invoke(app, ["verify", "tampered.json", *words[2:], "--index", "0", "--json"])
    said = json.loads(as_json.stdout)
    assert as_json.exit_code == 1 and said["stands"] is False and said["checks"][0]["name"] == "radius"
    record["radius"] *= 2  # a liar who knows what follows from what
    record["log_volume"] += 16 * math.log(2)
    (place / "tampered.json").write_text(json.dumps(record))
    tampered = CliRunner().invoke(app, ["verify", "tampered.json", *words[2:], "--index", "0"])
    assert tampered.exit_code == 1 and "FAIL radius" in tampered.stdout


def test_a_verdict_names_the_level_of_the_claim_and_what_a_derived_seed_leaves_open(place: Path) -> None:
    certify("run", "--certificates", "--alpha", 0.9999, "--seed", "derived")
    path = place / "run" / "certificates" / "0.json"
    words = ["verify", str(path), "--model", "tiny:net", "--input", "data.npz", "--index", 0, "--scale", 0.25]
    said = ok(*words, "--replay")
    other = CliRunner().invoke(app, [*map(str, words[:7]), "1", "--scale", "0.25", "--replay"])
    assert other.exit_code == 1 and "The claim does not stand (input, votes, replay), tested with" in other.stdout
    assert (
        "at level 0.001: class 0 on the whole region, false with probability at most α = 0.9999, scope pipeline" in said
    )
    assert "The seed follows from model, noise and data. This does not prove that n was chosen in advance" in said
    record = json.loads(path.read_text())
    record["evidence"]["block"] = 2
    path.write_text(json.dumps(record))
    forged = CliRunner().invoke(app, [*map(str, words), "--replay"])
    assert forged.exit_code == 1 and "FAIL replay: differs: the seed is stated to be derived" in forged.stdout
    assert "The claim does not stand (replay): its noise is not as it is stated." in forged.stdout


def test_a_verdict_as_json_keeps_its_exit_code(place: Path) -> None:
    certify("run", "--certificates")
    words = ["verify", "run/certificates/0.json", "--model", "tiny:net", "--input", "data.npz", "--json", "--index"]
    said = json.loads(ok(*words, 0))
    assert said["stands"] is True and (said["prediction"], said["scope"]) == (0, "pipeline")
    assert (said["n"], said["alpha"]) == (300, 0.001) and all(check["passed"] for check in said["checks"])
    other = CliRunner().invoke(app, [*words, "1"])
    said = json.loads(other.stdout)
    assert other.exit_code == 1 and said["stands"] is False
    assert {"input", "votes"} <= {check["name"] for check in said["checks"] if not check["passed"]}


def test_verify_shows_its_progress_unless_quiet(place: Path) -> None:
    certify("run", "--certificates")
    words = ["verify", "run/certificates/0.json", "--model", "tiny:net", "--input", "data.npz", "--index", "0"]
    shown, quiet = CliRunner().invoke(app, words), CliRunner().invoke(app, [*words, "-q"])
    assert "verifying 1/1" in shown.stderr and quiet.stderr == "" and quiet.stdout == shown.stdout


def test_what_cannot_be_verified_is_said(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    certify("run", "--certificates")
    folder = place / "run" / "certificates"
    tail = ("--model", "tiny:net", "--input", "data.npz")
    cases = {
        (folder / "2.json", "--index", 2): "has no region to verify",
        (folder / "0.json",): "--index",
        (folder / "0.json", "--index", 6): "has inputs 0 to 5",
        (folder / "0.json", "--index", 0, "--seed", 0): "fresh samples need another one",
        ("nowhere.json", "--index", 0): "cannot be read as a certificate",
        ("empty.json", "--index", 0): "empty.json is empty. Give one of the files",
        ("data.npz", "--index", 0): "cannot be read as a certificate",
        ("run", "--index", 0): "run is a folder, and a certificate is a file. Give one of the files RUN/certificates",
        (
            "run/results.tsv",
            "--index",
            0,
        ): "run/results.tsv holds the results of many inputs, not a certificate. Give one",
        (
            "run/results.tsv.json",
            "--index",
            0,
        ): "run/results.tsv.json is not a certificate. Give one of the files RUN/certificates",
    }
    (place / "empty.json").touch()
    for words, message in cases.items():
        assert message in refused(capsys, monkeypatch, "verify", *words, *tail)
    absent = refused(capsys, monkeypatch, "verify", folder / "0.json", "--model", "tiny:net", "--input", "none.png")
    assert "there is no none.png: give a picture" in absent
    (place / "mine.py").write_text("from ucan import data\nds = data.load('data.npz')\n")
    assert "The claim stands" in ok(
        "verify", folder / "0.json", *tail[:2], "--input", "mine:ds", "--index", 0, "--n", 300
    )


# --- predict ---


def test_predict_writes_a_table(place: Path) -> None:
    words = ("predict", "--model", "tiny:net", "--data", "data.npz", "--n", 300, "-q")
    header, *lines = ok(*words).splitlines()
    assert header == "idx\tlabel\tpredict\tcorrect\ttime"
    assert [line.split("\t")[2] for line in lines] == ["0", "1", "-1", "0", "1", "1"]
    ok(*words, "--skip", 3, "-o", "answers.tsv", "--test", "top-two")
    assert [line.split("\t")[0] for line in (place / "answers.tsv").read_text().splitlines()] == ["idx", "0", "3"]


@pytest.mark.parametrize(
    "words, message",
    [
        (("--test", "coin"), 'test must be "majority", "top-two" or "exact"'),
        (("--n", 0), "n must be a whole number of at least 1"),
        (("--stop", "--test", "top-two"), 'stopping early needs test="majority"'),
        (("--precision", "bf16"), "for PyTorch modules"),
        (("--alpha", 0), "alpha must lie strictly between 0 and 1"),
        (("-o", "taken.tsv"), "taken.tsv already exists"),
        (("-o", "nowhere/answers.tsv"), "there is no folder nowhere"),
    ],
)
def test_predict_refuses(
    place: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: tuple,
    message: str,
) -> None:
    (place / "taken.tsv").write_text("precious")
    before = files(place)
    said = refused(capsys, monkeypatch, "predict", "--model", "tiny:net", "--data", "data.npz", *words)
    assert message in said
    assert files(place) == before and (place / "taken.tsv").read_text() == "precious"


HELD = """
import os, signal

def held(batch):
    if os.path.exists("hold") and abs(float(batch.mean()) - 0.8) < 0.05:  # the fifth input
        {stop}
    return net(batch)
"""
HELD_WORDS = ("predict", "--model", "tiny:held", "--data", "data.npz", "--n", 300, "--batch-size", 300)


def answers_of(tsv: Path) -> list[list[str]]:
    """The rows of a table of predictions, without the time that each took."""
    return [line.split("\t")[:4] for line in tsv.read_text().splitlines()]


@pytest.fixture
def held(place: Path) -> Path:
    """A classifier that is interrupted at the fifth input as long as the file `hold` is there; it is."""
    (place / "tiny.py").write_text(MODEL + HELD.format(stop="raise KeyboardInterrupt"))
    (place / "hold").touch()
    return place


@pytest.mark.parametrize("more", [(), ("--stop", "--n", 2000)], ids=["fixed", "stopping"])
def test_predict_goes_on_to_the_answers_of_an_uninterrupted_run(
    place: Path, monkeypatch: pytest.MonkeyPatch, more: tuple
) -> None:
    """With a stopping rule inputs finish in an order of their own."""
    words = ["predict", "--model", "tiny:net", "--data", "data.npz", "--n", "300", *map(str, more)]
    ok(*words, "-o", "whole.tsv", "-q")
    add = Answers.add

    def thrice(self: Answers, answer: Answer) -> None:
        if len(self.done) == 3:
            raise KeyboardInterrupt
        add(self, answer)

    with monkeypatch.context() as patched:
        patched.setattr(Answers, "add", thrice)
        stopped = CliRunner().invoke(app, [*words, "-o", "answers.tsv"])
    assert stopped.exit_code == 130 and "Stopped; 3 answers are kept. Run the same command again" in stopped.stderr
    part = place / "answers.tsv.part"
    assert len(part.read_text().splitlines()) == 4
    with open(part, "a") as file:
        file.write("4\t1\t0\t")  # cut short by a crash
    resumed = CliRunner().invoke(app, [*words, "-o", "answers.tsv"])
    assert resumed.exit_code == 0 and "3 inputs are already done, 3 left." in resumed.stderr
    assert answers_of(place / "answers.tsv") == answers_of(place / "whole.tsv") and not part.exists()
    assert [row[2] for row in answers_of(place / "whole.tsv")] == ["predict", "0", "1", "-1", "0", "1", "1"]


def test_predict_keeps_an_answer_once_it_is_given(held: Path) -> None:
    CliRunner().invoke(app, [str(w) for w in (*HELD_WORDS, "-o", "answers.tsv")])
    first, *kept = (held / "answers.tsv.part").read_text().splitlines()
    kept[0] = kept[0].replace("0\t0\t0\t1\t", "0\t0\t1\t0\t")  # seen again only if it is not computed again
    (held / "answers.tsv.part").write_text("\n".join([first, *kept]) + "\n")
    (held / "hold").unlink()
    ok(*HELD_WORDS, "-o", "answers.tsv", "-q")
    assert (held / "answers.tsv").read_text().splitlines()[1] == kept[0]


def test_predict_does_not_go_on_under_another_setting(
    held: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    CliRunner().invoke(app, [str(w) for w in (*HELD_WORDS, "-o", "answers.tsv")])
    before = (held / "answers.tsv.part").read_bytes()
    (held / "hold").unlink()
    for words, message in {
        ("--seed", 1): "seed: the run has 0, asked for 1",
        ("--scale", 0.5): "law.scale: the run has 0.25, asked for 0.5",
        ("--stop",): "stop: the run has False, asked for True",
        ("--model", "tiny:net"): "model: the run has 'tiny:held', asked for 'tiny:net'",
    }.items():
        said = refused(capsys, monkeypatch, *HELD_WORDS, "-o", "answers.tsv", *words)
        assert "answers.tsv.part holds a run with another config:" in said and message in said
        assert "Give the same settings to resume it" in said
    with np.load("data.npz") as arrays:
        np.savez("data.npz", x=1 - arrays["x"], y=arrays["y"])
    assert "data_hash" in refused(capsys, monkeypatch, *HELD_WORDS, "-o", "answers.tsv")
    assert (held / "answers.tsv.part").read_bytes() == before and not (held / "answers.tsv").exists()


def test_predict_does_not_go_on_with_other_weights(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "tiny.py").write_text(MODULE + HELD.format(stop="raise KeyboardInterrupt").replace("net(", "Bright()("))
    with open(place / "tiny.py", "a") as file:
        file.write(
            "class Held(Bright):\n    def forward(self, x):\n        held(x)\n        return super().forward(x)\n"
        )
    words = (*HELD_WORDS, "-o", "answers.tsv", "--model", "tiny:Held", "--weights", "w.safetensors")
    for scale in (1.0, 2.0):
        save_file({"linear.weight": torch.full((2, 16), scale), "linear.bias": torch.zeros(2)}, "w.safetensors")
        if scale == 1.0:
            (place / "hold").touch()
            assert CliRunner().invoke(app, [str(w) for w in words]).exit_code == 130
            (place / "hold").unlink()
        else:
            assert "weights_hash: the run has" in refused(capsys, monkeypatch, *words)


@pytest.mark.parametrize(
    "content", ["precious", "precious\n", '{"kind": "certify"}\n', '{"kind": "predict"}\n0\t1\tx\t1\t0.1\n', "[1]\n"]
)
def test_predict_leaves_a_part_alone_that_is_not_its_own(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    (place / "answers.tsv.part").write_text(content)
    words = ("predict", "--model", "tiny:net", "--data", "data.npz", "--n", 300, "-o", "answers.tsv")
    assert "nothing was changed. Remove it to start again" in refused(capsys, monkeypatch, *words)
    assert (place / "answers.tsv.part").read_text() == content


@pytest.mark.parametrize("content", ["", '{"ki', '{"kind": "predict", "ucan": "0'])
def test_predict_begins_anew_where_not_even_the_first_line_was_written(place: Path, content: str) -> None:
    (place / "answers.tsv.part").write_text(content)
    ok("predict", "--model", "tiny:net", "--data", "data.npz", "--n", 300, "-o", "answers.tsv", "-q")
    assert len(answers_of(place / "answers.tsv")) == 7 and not (place / "answers.tsv.part").exists()


def test_two_settings_never_share_a_part(place: Path) -> None:
    """Both begin before either has an answer."""
    one, other = Answers(Path("answers.tsv")), Answers(Path("answers.tsv"))
    one.begin(PredictConfig(seed=0))
    other.begin(PredictConfig(seed=1))
    one.add(Answer(0, 1, 1, 1, 0.1))
    with pytest.raises(StoreError, match="being written by another process"):
        other.add(Answer(0, 1, 0, 0, 0.1))


def test_predict_stopped_before_its_first_answer_promises_nothing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Answers, "add", stop)
    before = files(place)
    stopped = CliRunner().invoke(
        app, [*["predict", "--model", "tiny:net", "--data", "data.npz", "--n", "300", "-o", "answers.tsv"]]
    )
    assert stopped.exit_code == 130 and "no answer was finished, and nothing was written" in stopped.stderr
    assert files(place) == before


def test_predict_without_a_file_says_how_to_keep_answers(held: Path) -> None:
    before = files(held)
    stopped = CliRunner().invoke(app, [str(w) for w in HELD_WORDS])
    assert stopped.exit_code == 130 and stopped.stdout == "" and "with -o FILE, answers are kept" in stopped.stderr
    assert files(held) == before


def test_predict_sums_up_as_json(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("predict", "--model", "tiny:net", "--data", "data.npz", "--n", 300, "--json")
    assert json.loads(ok(*words, "-o", "answers.tsv")) == {
        "tsv": "answers.tsv",
        "inputs": 6,
        "labelled": 6,
        "accuracy": 0.666666,
        "abstained": 1,
        "alpha": 0.001,
    }
    assert "give a file for the answers with -o" in refused(capsys, monkeypatch, *words)


# --- train ---


def test_train_by_preset_then_certify_the_run(place: Path) -> None:
    pytest.importorskip("lightning_fabric")
    words = ("train", "digits-isotropic", "--set", "epochs=1", "--set", "law.scale=0.2", "-o", "model", "-q")
    words += ("--device", "cpu")
    ok(*words)
    assert is_trained_run("model")
    config = tomllib.loads((place / "model" / "config.toml").read_text())
    assert config["training"]["epochs"] == 1 and config["training"]["law"]["scale"] == 0.2
    certify("run", "--skip", 150, model="model", data="digits")
    table = rows(place / "run" / "results.tsv")
    assert len(table) == 3 and tomllib.loads((place / "run" / "config.toml").read_text())["law"]["scale"] == 0.2
    assert "digits-isotropic" in ok("train", "list").split()
    result = CliRunner().invoke(app, [*words, "--set", "lr=0.5"])
    assert isinstance(result.exception, TrainingError) and "lr" in str(result.exception)
    result = CliRunner().invoke(app, ["certify", "--model", "model", "--data", "digits", "--noise", "pattern-2"])
    assert isinstance(result.exception, InvalidInput) and "leave out --noise" in str(result.exception)


@pytest.mark.parametrize(
    "words, message",
    [
        (("no-such-preset",), "neither a file nor a preset"),
        (("digits-isotropic", "--set", "epochs"), "--set takes key=value"),
        (("digits-isotropic", "--set", "epoch=1"), "there is no setting 'epoch'"),
        (("digits-isotropic", "--set", "epochs=0"), "epochs must be at least 1"),
        (("digits-isotropic", "--set", "epochs=many"), "epochs must be a whole number, got 'many'"),
        (("digits-isotropic", "--set", "law.kind=cauchy"), "law.kind must be one of"),
    ],
)
def test_train_refuses(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: tuple, message: str
) -> None:
    before = files(place)
    assert message in refused(capsys, monkeypatch, "train", *words)
    assert files(place) == before


@pytest.mark.parametrize(("after", "said"), [(0, "nothing was saved yet"), (1, "the checkpoint in run is kept")])
def test_a_stopped_training_says_what_is_kept(
    place: Path, monkeypatch: pytest.MonkeyPatch, after: int, said: str
) -> None:
    pytest.importorskip("lightning_fabric")
    epoch = Trainer._run_epoch

    def stop(self: Trainer) -> None:
        if self.epoch == after:
            raise KeyboardInterrupt
        epoch(self)

    monkeypatch.setattr(Trainer, "_run_epoch", stop)
    words = ["train", "digits-isotropic", "--set", "epochs=2", "-o", "run"]
    stopped = CliRunner().invoke(app, words)
    assert stopped.exit_code == 130 and f"Stopped; {said}" in stopped.stderr
    assert Path("run").exists() == bool(after)


def test_train_does_not_list_the_settings_of_another_kind_of_run(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("lightning_fabric")
    certify("run", "--max", 2)
    said = refused(capsys, monkeypatch, "train", "digits-isotropic", "--set", "epochs=1", "-o", "run")
    assert "run holds a run of another kind (certify)" in said and "alpha" not in said


def test_the_live_line_of_training_fits_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    means = {"loss": 1.5, "correct": 0.5, "min_sigma": 1.0, "mean_sigma": 1.0}
    Training(10)(2, 21, 21, means)
    line = capsys.readouterr().err.removeprefix("\r\x1b[K")
    assert len(line) == 59 and re.match(r"epoch 3/10, step 21/21, \d+ s left: loss 1.5000, ", line)


def test_the_accuracy_of_training_rounds_down(capsys: pytest.CaptureFixture[str]) -> None:
    Training(10)(2, 21, 21, {"loss": 1.5, "correct": 0.9996, "min_sigma": 1.0, "mean_sigma": 1.0})
    assert "accuracy 99.9 %" in capsys.readouterr().err


# --- compare and export ---


def test_runs_can_be_compared_and_exported(place: Path) -> None:
    certify("wide", "--scale", 0.5)
    certify("narrow", "--scale", 0.1)
    said = ok("compare", "wide", "narrow", "--radii", "0,0.1", "--format", "markdown")
    assert "| wide | pipeline | 0.5 |" in said and "| narrow | pipeline | 0.1 |" in said
    ok("export", "wide", "-o", "wide.csv")
    assert "pipeline" in (place / "wide.csv").read_text()
    ok("export", "wide", "-o", "wide.tsv")
    assert (place / "wide.tsv").read_text() == (place / "wide" / "results.tsv").read_text()
    ok("import", "wide.tsv", "-o", "again", "--scope", "pipeline")
    with Store.open("again") as store:
        assert len(store) == 6


@pytest.mark.parametrize("name", ["wide.xyz", "wide", "wide.txt"])
def test_an_export_of_no_known_kind_is_refused(
    name: str, place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    certify("run")
    assert "none of the extensions .tsv, .csv, .parquet, .json" in refused(
        capsys, monkeypatch, "export", "run", "-o", name
    )
    assert not (place / name).exists()
    ok("export", "run", "-o", name, "--format", "csv")
    assert (place / name).read_text().startswith("idx,")


# --- the program as a process ---


def start(*words: object, stdout: int | IO[str] = subprocess.PIPE, **more: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(ucan.__file__).parents[1])]), **more}
    return subprocess.Popen(
        [sys.executable, "-m", "ucan", *map(str, words)],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def test_the_program_reports_wrong_use_by_its_exit_code(place: Path) -> None:
    process = start("certify", "--model", "tiny:net", "--data", "nowhere.npz")
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (2, "") and err.startswith("ucan: ") and "Traceback" not in err


def test_a_terminal_without_our_letters_shows_question_marks(place: Path) -> None:
    process = start("certify", "--model", "tiny:net", "--data", "data.npz", "--n", 300, "-q", PYTHONIOENCODING="ascii")
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "") and "an ?2 radius" in out


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_behind_the_output_is_said_in_one_line(place: Path) -> None:
    with open("/dev/full", "w") as full:
        process = start("compare", "--help", stdout=full)
        err = process.communicate(timeout=120)[1]
    assert process.returncode == 2 and err.startswith("ucan: ") and "No space left" in err and "Traceback" not in err


@pytest.mark.skipif(os.name != "posix", reason="sends signals")
@pytest.mark.parametrize("name", ("SIGINT", "SIGKILL"))
def test_predict_goes_on_after_a_signal(place: Path, name: str) -> None:
    (place / "tiny.py").write_text(MODEL + HELD.format(stop=f"os.kill(os.getpid(), signal.{name}); time.sleep(1)"))
    words = (*HELD_WORDS, "-o", "answers.tsv")
    (place / "hold").touch()
    process = start(*words)
    out, err = process.communicate(timeout=120)
    assert process.returncode == (130 if name == "SIGINT" else -signal.SIGKILL) and out == "" and "Traceback" not in err
    assert name == "SIGKILL" or re.search(
        r"Stopped; [1-4] answers are kept. Run the same command again to resume.", err
    )
    assert not (place / "answers.tsv").exists() and 2 <= len((place / "answers.tsv.part").read_text().splitlines()) <= 5
    (place / "hold").unlink()
    assert "6 inputs: 66.6 % answered correctly, 1 abstained." in ok(*words)
    assert {name for name in files(place) if name.startswith("answers")} == {"answers.tsv", "answers.tsv.json"}


@pytest.mark.skipif(os.name != "posix", reason="sends signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_keeps_what_is_done_and_the_same_command_goes_on(place: Path, number: signal.Signals) -> None:
    words = ("certify", "--model", "tiny:slow", "--data", "data.npz", "-o", "run", "--n", 2000, "--n0", 20)
    words += ("--batch-size", 100)
    process = start(*words, PAUSE="0.02")
    deadline = time.monotonic() + 120
    while _count(place / "run") < 1 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert re.search("results are kept|1 result is kept", err) and "Traceback" not in err
    done = rows(place / "run" / "results.tsv")
    assert 1 <= len(done) < 6
    assert "6 inputs" in ok(*words, "-q")
    table = rows(place / "run" / "results.tsv")
    assert len(table) == 6 and table[: len(done)] == done
    assert not [name for name in files(place) if name.endswith(".part")]


@pytest.mark.skipif(os.name != "posix", reason="sends signals")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_an_interrupt_that_python_loses_still_ends_the_command(place: Path, name: str) -> None:
    """What is raised while an object goes is printed and forgotten; compilers of networks have such objects."""
    (place / "lost.py").write_text(
        "import os, signal, torch\n"
        "class Goes:\n"
        "    def __del__(self):\n"
        f"        os.kill(os.getpid(), signal.{name})\n"
        "        sum(range(100_000))\n"
        "calls = [0]\n"
        "def net(x):\n"
        "    calls[0] += 1\n"
        "    if calls[0] == 40:\n"
        "        Goes()\n"
        "    return torch.zeros(len(x), dtype=torch.long)\n"
    )
    process = start("certify", "--model", "lost:net", "--classes", "2", "--data", "data.npz", "-o", "run", "--n", 20_000,
                    "--n0", 20, "--batch-size", 128)  # fmt: skip
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130 and "6 inputs" not in out, err


@pytest.mark.skipif(os.name != "posix", reason="sends signals")
def test_a_second_ctrl_c_while_python_leaves_shows_no_traceback(place: Path) -> None:
    (place / "again.py").write_text(
        "import atexit, os, signal, time\n"
        "def interrupt():\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    time.sleep(0.1)\n"
        "atexit.register(interrupt)\n"
        "def net(x):\n"
        "    interrupt()\n"
    )
    process = start("certify", "--model", "again:net", "--classes", "2", "--data", "data.npz", "-o", "run", "--n", 100)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130 and err.endswith("ucan: interrupted.\n")


@pytest.mark.skipif(os.name != "posix", reason="sends signals")
def test_what_ignores_ctrl_c_goes_on_ignoring_it() -> None:
    """As a job in the background of a shell's script does."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with INTERRUPTS.heard():
            os.kill(os.getpid(), signal.SIGINT)
            INTERRUPTS.check()
            assert signal.getsignal(signal.SIGTERM) == INTERRUPTS.raised
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_error_after_an_interrupt_is_the_interrupt() -> None:
    """Ctrl-C reaches a compiler, too, that the command waits for."""
    with pytest.raises(KeyboardInterrupt), INTERRUPTS.heard():
        with pytest.raises(KeyboardInterrupt):
            INTERRUPTS.raised()
        raise RuntimeError("the compiler was stopped by signal 2")
    with pytest.raises(RuntimeError), INTERRUPTS.heard():
        raise RuntimeError("another error is shown as it is")


def _count(run: Path) -> int:
    try:
        with Store.open(run) as store:
            return len(store)
    except ucan.UcanError:
        return 0


# --- progress ---


def test_the_time_to_go_counts_samples_within_an_item(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    progress = Progress("certifying", 10, 1000, quiet=True)
    assert "? left" in progress.line()
    now[0] += 10
    assert "samples/s" not in progress.line()
    progress.sampled(500)
    assert "50 samples/s" in progress.line()
    assert progress.fraction == 0.05 and progress.line().startswith("certifying 0/10, 3 min 10 s left, ")
    progress.sampled(5000)  # never beyond its item
    assert progress.fraction == 0.1
    progress.finished("fine")
    assert math.isclose(progress.fraction, 0.1) and "1/10" in progress.line() and "fine" in progress.line()
    assert [duration(s) for s in (0.4, 59.6, 61, 7500)] == ["0 s", "1 min 00 s", "1 min 01 s", "2 h 05 min"]


def test_other_data_under_the_same_name_are_refused(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    certify("run", "--max", 2)
    with np.load(place / "data.npz") as arrays:
        changed = {**arrays, "x": 1 - arrays["x"]}
    np.savez(place / "data.npz", **changed)
    words = ("certify", "--model", "tiny:net", "--data", "data.npz", "-o", "run", *SMALL)
    assert "data_hash" in refused(capsys, monkeypatch, *words)


# --- bench ---


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--out", "nowhere/there.json"], "a file in an existing folder"),
        (["--out", "."], "takes a file"),
        (["--backend", "eager,auto"], "got auto"),
        (["--shape", "3,x"], "--shape takes numbers"),
        (["--model", "torch:argmax", "--shape", "3"], "Give a PyTorch module"),
    ],
)
def test_bench_refuses_before_it_measures(words: list[str], said: str) -> None:
    result = CliRunner().invoke(app, ["bench", *words])
    assert isinstance(result.exception, InvalidInput) and said in str(result.exception)


def test_bench_measures_ones_own_model(place: Path) -> None:
    (place / "own.py").write_text("from torch import nn\ndef make():\n    return nn.Linear(16, 3)\n")
    words = [
        "bench",
        "--model",
        "own:make",
        "--shape",
        "16",
        "--n",
        "1000",
        "--backend",
        "eager",
        "--no-art",
        "--decisions",
        "5",
    ]
    assert "own:make at 16" in ok(*words, "-o", "bench.json")
    made = json.loads((place / "bench.json").read_text())
    assert made["networks"][0]["shape"] == [16] and made["rows"] and all(row["rate"] > 0 for row in made["rows"])


@pytest.mark.parametrize("quiet", (False, True))
def test_bench_prints_json_alone_and_is_quiet_on_request(
    place: Path, monkeypatch: pytest.MonkeyPatch, quiet: bool
) -> None:
    monkeypatch.setattr(Bench, "art", lambda self, size: None)  # not installed
    words = [
        "bench",
        "--model",
        "cnn",
        "--shape",
        "1,8,8",
        "--n",
        "1000",
        "--backend",
        "eager",
        "--no-shapes",
        "--decisions",
        "5",
    ]
    result = CliRunner().invoke(app, [*words, "--json", "-o", "bench.json", *(["-q"] if quiet else [])])
    assert result.exit_code == 0 and json.loads(result.stdout) == json.loads((place / "bench.json").read_text())
    assert ("Left out" in result.stderr) != quiet and (not quiet or result.stderr == "")


def test_bench_shows_what_it_has_when_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Bench, *_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Bench, "generator", interrupted)
    words = ["bench", "--model", "cnn", "--shape", "1,8,8", "--n", "1000", "--backend", "eager", "--no-art"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 130 and "interrupted" in result.stdout and "textbook loop" in result.stdout
    assert "samples for a decision" not in result.stdout  # not measured
    result = CliRunner().invoke(app, [*words, "--json"])
    told = json.loads(result.stdout)
    assert result.exit_code == 130 and told["interrupted"] and told["rows"] and told["stopping"] == []
    monkeypatch.setattr(Bench, "ours", interrupted)  # before anything was measured: nothing to tell, or to write over
    result = CliRunner().invoke(app, [*words, "-o", str(tmp_path / "bench.json")])
    assert result.exit_code == 130 and not result.stdout and not (tmp_path / "bench.json").exists()


def test_bench_measures_a_trained_run(place: Path) -> None:
    ok("train", "digits-isotropic", "-o", "run", "--set", "epochs=1", "--set", "model=cnn")
    words = [
        "bench",
        "--model",
        "run",
        "--n",
        "1000",
        "--backend",
        "eager",
        "--no-art",
        "--no-shapes",
        "--decisions",
        "5",
    ]
    said = ok(*words, "--data", "digits", "--max", "12", "-o", "bench.json")
    assert "run at 1,8,8" in said and "Ten radii in one pass: 12 inputs" in said and "votes over the limit, 5" in said
    made = json.loads((place / "bench.json").read_text())
    assert len(made["simulated"]) == 3 and made["data"][0]["votes"] > 0
    assert all(row["m"] == 100 and row["kept"] < 1 for row in made["recertified"] if row["in_pairs"])
    result = CliRunner().invoke(app, [*words, "--shape", "1,8,8"])
    assert isinstance(result.exception, InvalidInput) and "leave out --shape" in str(result.exception)


def test_bench_leaves_out_what_cannot_be_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("no compiler")

    monkeypatch.setattr("ucan.backends._compiled", lambda vote, options: refuse)
    bench = Bench(build_model("cnn", (1, 28, 28), 10), (1, 28, 28), 10, n=1000, repeats=1)
    with pytest.warns(RuntimeWarning, match="cannot be compiled"):
        bench.ours("compile", None)
    assert bench.rows == []


# --- arithmetic ---


@pytest.fixture
def byte_pictures(place: Path) -> Path:
    """The six pictures again, as bytes, in bytes.npz."""
    level = np.array([26, 230, 128, 51, 204, 230], dtype=np.uint8)
    x = np.broadcast_to(level[:, None, None, None], (6, 1, 4, 4))
    np.savez(place / "bytes.npz", x=x, y=np.array([0, 1, 0, 0, 1, 0]))
    return place


def arithmetic_of_run(folder: Path) -> tuple[str | None, set[str]]:
    """What the config says, and what the evidence of the outcomes does."""
    config = tomllib.loads((folder / "config.toml").read_text())
    with Store.open(folder) as store:
        said = {store.outcome(i).evidence.arithmetic for i in store.done()}
    return config.get("arithmetic"), said


def test_bytes_are_certified_on_the_grid_and_floats_in_real_arithmetic(byte_pictures: Path) -> None:
    said = certify("grid", data="bytes.npz")
    assert "whole multiples of 1/255" in said
    assert arithmetic_of_run(byte_pictures / "grid") == ("grid(1/255)", {"grid(1/255)"})
    assert "whole multiples" not in certify("real", "--arithmetic", "real", data="bytes.npz")
    assert arithmetic_of_run(byte_pictures / "real") == ("real", {"real"})
    certify("floats")
    assert arithmetic_of_run(byte_pictures / "floats") == ("real", {"real"})


def test_a_grid_without_a_step_is_refused(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for command in ("certify", "predict"):
        words = (command, "--model", "tiny:net", "--data", "data.npz", "--arithmetic", "grid")
        assert "uint8" in refused(capsys, monkeypatch, *words)


def test_a_run_goes_on_in_the_arithmetic_it_was_begun_in(
    byte_pictures: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    certify("run", "--max", 2, "--arithmetic", "real", data="bytes.npz")
    certify("run", "--max", 4, data="bytes.npz")
    assert arithmetic_of_run(byte_pictures / "run") == ("real", {"real"})
    config = byte_pictures / "run" / "config.toml"  # as a run from before this was kept
    config.write_text("".join(line for line in config.read_text().splitlines(True) if "arithmetic" not in line))
    certify("run", data="bytes.npz")
    assert arithmetic_of_run(byte_pictures / "run") == (None, {"real"})
    words = ("certify", "--model", "tiny:net", "--data", "bytes.npz", "-o", "run", *SMALL, "--arithmetic", "grid")
    assert "arithmetic" in refused(capsys, monkeypatch, *words)
    certify("grid", "--max", 2, data="bytes.npz")
    certify("grid", data="bytes.npz")
    assert arithmetic_of_run(byte_pictures / "grid") == ("grid(1/255)", {"grid(1/255)"})


def test_predictions_take_the_arithmetic_too(byte_pictures: Path) -> None:
    words = ("predict", "--model", "tiny:net", "--data", "bytes.npz", "--n", 200, "-q")
    on_grid, real = ok(*words), ok(*words, "--arithmetic", "real")
    assert [line.split("\t")[:3] for line in on_grid.splitlines()] == [
        line.split("\t")[:3] for line in real.splitlines()
    ]
    part = byte_pictures / "p.tsv.part"
    ok(*words, "--arithmetic", "real", "--max", 6, "-o", "q.tsv")
    assert (byte_pictures / "q.tsv").exists() and not part.exists()


def test_a_run_on_the_grid_is_verified_audited_and_reported_as_such(byte_pictures: Path) -> None:
    certify("run", "--certificates", data="bytes.npz")
    verified = ("--model", "tiny:net", "--input", "bytes.npz", "--index", 0, "-q")
    assert "arithmetic: the arithmetic grid(1/255) is" in ok("verify", "run/certificates/0.json", *verified)
    ok("audit", "run", "--max", 2, "--steps", 3, "--draws", 4, "-q")
    ok("report", "run", "-o", "page.html", "-q")
    page = (byte_pictures / "page.html").read_text()
    assert "whole multiples of 1/255" in page and "--arithmetic grid" in page


def test_which_step_a_command_takes(byte_pictures: Path) -> None:
    whole, floats = load("bytes.npz"), load("data.npz")
    grid, real = "grid", "real"
    assert step_for(None, whole, None) == step_for(grid, whole, None) == 1 / 255
    assert step_for(None, floats, None) is step_for(real, whole, None) is None
    assert step_for(None, whole, "real") is None and step_for(None, whole, "grid(1/16)") == 1 / 16
    assert step_for(grid, whole, "real") == 1 / 255  # another config, which is then refused


def test_the_report_s_command_makes_the_same_run_again(place: Path) -> None:
    """With weights of its own, a map of noise and a name; pasted, nothing is forgotten."""
    (place / "tiny.py").write_text(MODULE)
    save_file({"linear.weight": torch.full((2, 16), 0.3), "linear.bias": torch.tensor([2.4, -2.4])}, "w.safetensors")
    np.save("map.npy", np.linspace(0.5, 1.5, 16).reshape(1, 4, 4))
    certify("run", "--weights", "w.safetensors", "--noise", "map.npy", model="tiny:Bright")
    (run,) = read_runs([Path("run")])
    pasted = next(line for line in commands(run) if line.startswith("ucan certify"))
    assert "--weights w.safetensors" in pasted and "--noise map.npy" in pasted
    words = shlex.split(pasted)[1:]
    words[words.index("-o") + 1] = "again"
    ok(*words)
    first, second = (rows(place / name / "results.tsv") for name in ("run", "again"))
    assert [r["radius"] for r in first] == [r["radius"] for r in second]
    certify("numbers", "--classes", 2, "--model-id", "thresholds", model="tiny:index")
    (run,) = read_runs([Path("numbers")])
    assert any("--classes 2 --model-id thresholds" in line for line in commands(run))


def test_idle_threads_of_pytorch_sleep_unless_told_otherwise(tmp_path):
    (tmp_path / "told.py").write_text(
        "import os\nprint(os.environ['OMP_WAIT_POLICY'])\ndef model(x):\n    return (x[:, 0, 0, 0] > 0.5).long()\n"
    )
    words = [sys.executable, "-c", "import sys; from ucan.cli import main; assert 'torch' not in sys.modules; main()",
             "certify", "--model", "told:model", "--data", "digits", "--max", "1", "--n", "100", "--scale", "0.1",
             "--classes", "10"]  # fmt: skip
    own = {key: value for key, value in os.environ.items() if key != "OMP_WAIT_POLICY"}
    for given, seen in (({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE")):
        done = subprocess.run(words, cwd=tmp_path, env={**own, **given, "PYTHONPATH": str(tmp_path)}, text=True,
                              capture_output=True, check=False)  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert seen in done.stdout.split()
