"""Whether a derived seed is confirmed where the model has its classes in another order than the data: their hash follows it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from ucan.cli import app
from ucan.errors import InvalidInput
from ucan.runs.certify import CertifyJob, certify
from ucan.runs.verify import VerifyJob, verify

MODULE = """
from types import SimpleNamespace

import torch
from torch import nn

class Net(nn.Module):
    # Class 0 is dark, class 1 is bright.
    def forward(self, x):
        level = x.double().flatten(1).mean(1)
        return torch.stack([0.5 - level, level - 0.5], 1)

class Named(Net):
    config = SimpleNamespace(id2label={0: "dark", 1: "bright"}, num_labels=2)

net, named = Net().eval(), Named().eval()
"""
DERIVED = "The seed follows from model, noise and data"
NAMES = ("dark", "bright")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model that knows dark before bright, and pictures in folders, which are in alphabetical order."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("shades_in_order.py").write_text(MODULE, encoding="utf-8")
    for name, value in (("bright", 230), ("dark", 20)):
        Path("pictures", name).mkdir(parents=True)
        for k in range(2):
            Image.fromarray(np.full((2, 2), value + k, dtype=np.uint8)).save(Path("pictures", name, f"{k}.png"))
    return tmp_path


def said(*words: object) -> str:
    done = CliRunner().invoke(app, [*map(str, words)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return str(done.output)


CERTIFY = ("--data", "pictures", "--channels", 1, "--scale", 0.2, "--n", 200, "--certificates", "-o", "run", "--quiet")
REPLAY = ("run/certificates/1.json", "--input", "pictures", "--index", 1, "--scale", 0.2, "--replay")
NAMED = ("--class-names", ",".join(NAMES))


@pytest.mark.parametrize("model", ["shades_in_order:net", "run"])
def test_a_replay_confirms_the_seed_of_a_run_with_class_names(home: Path, model: str) -> None:
    said("certify", "--model", "shades_in_order:net", *CERTIFY, *NAMED, "--seed", "derived")
    given = () if model == "run" else NAMED  # the run states them
    assert DERIVED in said("verify", *REPLAY, "--model", model, *given)
    assert DERIVED in said("verify", *REPLAY[:5], "--replay", "--model", model, *given)  # under the noise as stated
    if model != "run":
        assert DERIVED not in said("verify", *REPLAY, "--model", model)
        assert DERIVED not in said("verify", *REPLAY, "--model", model, "--class-names", "bright,dark")
        with pytest.raises(InvalidInput, match="3 class names were given, but the model has 2 classes"):
            said("verify", *REPLAY, "--model", model, "--class-names", "dark,bright,grey")


def test_a_replay_takes_the_order_that_the_model_states_itself(home: Path) -> None:
    said("certify", "--model", "shades_in_order:named", *CERTIFY, "--seed", "derived")
    assert DERIVED in said("verify", *REPLAY, "--model", "shades_in_order:named")
    assert DERIVED in said("verify", *REPLAY[:5], "--replay", "--model", "shades_in_order:named")


def test_a_run_made_in_python_states_its_class_names_too(home: Path) -> None:
    shared = {"model": "shades_in_order:net", "scale": 0.2, "device": "cpu"}
    job = CertifyJob(data="pictures", channels=1, class_names=NAMES, n=200, seed="derived", certificates=True, **shared)
    certify(job, home / "run")
    about = {"certificate": "run/certificates/1.json", "input": "pictures", "index": 1, "replay": True}
    again = verify(VerifyJob(**about, **{**shared, "model": "run"}))
    assert again.stands and again.replay is not None and again.replay.derived is True


def test_an_answer_is_about_data_in_the_models_order(home: Path) -> None:
    asked = (*CERTIFY, "--model", "shades_in_order:named", "--seed", "derived")
    said("ask", "confidence", "--confidence", 0.6, *asked)
    found = said("verify", *REPLAY, "--model", "shades_in_order:named")
    assert "ok   seed: it follows from model, noise and data\n" in found


def test_names_of_classes_are_refused_where_an_answer_has_none(home: Path) -> None:
    asked = (*CERTIFY, "--model", "shades_in_order:net")
    said("ask", "regression", "--radius", 0.01, *asked)
    assert "The claim stands" in said("verify", *REPLAY, "--model", "shades_in_order:net")
    with pytest.raises(InvalidInput, match="leave out --class-names"):
        said("verify", *REPLAY, "--model", "shades_in_order:net", *NAMED)


def test_a_table_whose_classes_are_named(home: Path) -> None:
    Path("rows.csv").write_text("a,b,kind\n0.9,0.8,bright\n0.1,0.2,dark\n0.8,0.7,bright\n", encoding="utf-8")
    table = ("--target", "kind", "--sigma", "a=0.1,b=0.1")
    said(
        "certify",
        "--model",
        "shades_in_order:net",
        "--data",
        "rows.csv",
        *table,
        *CERTIFY[6:],
        *NAMED,
        "--seed",
        "derived",
    )
    words = ("verify", "run/certificates/1.json", "--input", "rows.csv", "--index", 1, "--target", "kind", "--replay")
    for noise in ((), ("--sigma", "a=0.1,b=0.1")):
        assert DERIVED in said(*words, *noise, "--model", "shades_in_order:net", *NAMED)
        assert DERIVED in said(*words, *noise, "--model", "run")
