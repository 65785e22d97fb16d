"""The labels of inputs that `ucan ask` asks about: in the model's order, of classes that it has, or unknown."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from ucan.cli import app
from ucan.config import read_config
from ucan.errors import InvalidInput
from ucan.runs.read import Run

MODULE = """
from types import SimpleNamespace

import torch
from torch import nn

class Net(nn.Module):
    # The brighter a picture, the later its class.
    config = SimpleNamespace(id2label={0: "bird", 1: "cat", 2: "dog"}, num_labels=3)

    def forward(self, x):
        level = x.flatten(1).mean(1, keepdim=True)
        return -(level - torch.tensor([[0.1, 0.5, 0.9]])).abs() * 20

net = Net().eval()
"""


def said(*words: object) -> str:
    done = CliRunner().invoke(app, [*map(str, words)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return str(done.output)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model of three classes, and pictures of the last two."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("brightness_by_name.py").write_text(MODULE)
    for name, value in (("cat", 128), ("dog", 230)):
        Path("pictures", name).mkdir(parents=True)
        for k in range(2):
            Image.fromarray(np.full((4, 4), value - k, dtype=np.uint8)).save(Path("pictures", name, f"{k}.png"))
    return tmp_path


COMMON = ("--model", "brightness_by_name:net", "--classes", 3, "--scale", 0.2, "--n", 200, "--quiet")


def test_labels_are_in_the_models_order_of_the_classes(home: Path) -> None:
    asked = (*COMMON, "--data", "pictures", "--channels", 1, "--json")
    said("certify", *asked, "-o", "certified")
    assert Run.open("certified").columns["correct"].all()
    sure = json.loads(said("ask", "confidence", "--confidence", 0.4, *asked, "-o", "sure"))
    first = json.loads(said("ask", "top-k", "--top", 2, *asked, "-o", "first"))
    assert (sure["correct"], first["label_among_first"]) == (1.0, 1.0)
    assert read_config(home / "sure" / "config.toml")["class_names"] == ["bird", "cat", "dog"]


def test_labels_that_the_model_does_not_have_are_refused(home: Path) -> None:
    np.savez("other.npz", x=np.full((3, 1, 4, 4), 0.5, dtype=np.float32), y=np.array([3, 4, 5]))
    for question in (("confidence", "--confidence", 0.4), ("top-k", "--top", 2)):
        with pytest.raises(InvalidInput, match="but the model has 3 classes"):
            said("ask", *question, *COMMON, "--data", "other.npz", "-o", "q")


def test_shares_of_labels_need_labels(home: Path) -> None:
    np.save("unlabelled.npy", np.full((3, 1, 4, 4), 0.5, dtype=np.float32))
    for question in (("confidence", "--confidence", 0.4), ("top-k", "--top", 2)):
        found = json.loads(said("ask", *question, *COMMON, "--data", "unlabelled.npy", "-o", question[0], "--json"))
        assert found["inputs"] == 3 and not {"correct", "label_among_first"} & {
            k for k, v in found.items() if v is not None
        }
