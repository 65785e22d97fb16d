"""Parts from outside: a package adds a law, a generator, a recipe, a scale and more, and each goes the whole way by name."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import ucan
from outside import install_toy

pytest.importorskip("lightning_fabric")

SETTINGS = """
data = "digits"
model = "cnn"
epochs = 2
batch = 64
lr = 0.005
[law]
kind = "halved"
scale = 0.25
share = 0.25
[generator]
kind = "stripes"
even = 0.75
[recipe]
kind = "gentle"
smoothing = 0.2
"""
# Commands one after the other; the first that does not end with 0 is the last.
PROGRAM = """
import json, sys
sys.modules["torch.utils.tensorboard"] = sys.modules["torchmetrics"] = None  # seconds to import
from ucan.cli import main
for words in json.loads(sys.argv[1]):
    sys.argv = ["ucan", *words]
    try:
        main()
    except SystemExit as leaving:
        if leaving.code:
            raise
    print("\\f", flush=True)
"""
MODEL = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(64, 2)
        with torch.no_grad():
            self.line.weight.copy_(torch.stack([-torch.ones(64), torch.ones(64)]))
            self.line.bias.copy_(torch.tensor([28.0, -28.0]))
    def forward(self, x):
        return self.line(x.flatten(1))

net = Net().eval()
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package installed beside it, and a model."""
    place = tmp_path_factory.mktemp("outside")
    install_toy(place / "packages")
    (place / "settings.toml").write_text(SETTINGS)
    (place / "own.py").write_text(MODEL)
    return place


def command(place: Path, *words: str, installed: bool = True, code: int = 0) -> str:
    """`ucan` in a process of its own."""
    return commands(place, words, installed=installed, code=code)[0]


def commands(place: Path, *each: tuple[str, ...], installed: bool = True, code: int = 0) -> list[str]:
    """What each says, in one process of their own, whose start takes longer than they do."""
    path = [str(Path(ucan.__file__).parents[1]), *([str(place / "packages")] if installed else [])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1", "COLUMNS": "300"}
    program = [sys.executable, "-c", PROGRAM, json.dumps(each)]
    done = subprocess.run(
        program, cwd=place, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300
    )
    assert done.returncode == code, (each, done.stdout[-6000:])
    return done.stdout.split("\f\n")


def rows(place: Path, run: str) -> list[dict]:
    return [json.loads(f.read_text()) for f in sorted((place / run / "certificates").glob("*.json"))]


def test_names_are_listed_without_importing_anything(place: Path) -> None:
    listed, certify, audit, _ = commands(place, ("train", "list"), ("certify", "--help"), ("audit", "--help"))
    assert "halved" in listed and "stripes" in listed and "gentle" in listed
    assert "halved" in certify and "stripes" in certify and "ramp" in certify
    assert "nudge" in audit


def test_a_law_a_generator_and_a_recipe_are_trained_certified_resumed_checked_and_shown(place: Path) -> None:
    begin = ("certify", "--model", "trained", "--data", "digits", "--n", "200", "--n0", "20", "--skip", "50")
    begin += ("--arithmetic", "real", "--certificates", "-q", "-o", "run")
    commands(place, ("train", "settings.toml", "-o", "trained", "-q"), (*begin, "--max", "3"))
    assert len(rows(place, "run")) == 3
    certified = sorted((place / "run" / "certificates").glob("*.json"))[0]
    against = ("--model", "trained", "--input", "digits", "--index", str(int(certified.stem)))
    _, verified, _, compared, *_ = commands(  # in a process that has not seen how they were made
        place,
        (*begin, "--max", "6"),
        ("verify", str(certified), *against),
        ("audit", "run", "--max", "2", "--steps", "2", "--check", "200", "-q", "--attack", "nudge"),
        ("compare", "run"),
        ("report", "run", "-o", "report.html", "-q"),
    )
    assert "stands" in verified and "run" in compared
    records = rows(place, "run")
    assert len(records) == 6
    evidence = records[0]["evidence"]
    assert evidence["law"] == {
        "name": "Halved",
        "module": "toy_parts",
        "kind": "halved",
        "package": "toy-parts",
        "scale": 0.25,
        "share": 0.25,
    }
    assert evidence["noise"]["made"] == {"name": "stripes", "package": "toy-parts", "parameters": {"even": 0.75}}
    page = (place / "report.html").read_text()
    assert "Stripes" in page and "Halved" in page
    missing = command(place, "verify", str(certified), *against, installed=False, code=2)
    assert "toy-parts" in missing and "not installed" in missing and "halved" in missing


@pytest.mark.slow
def test_a_model_of_ones_own_is_certified_under_noise_by_name_and_rebuilt_from_the_record(place: Path) -> None:
    base = ("certify", "--model", "own:net", "--data", "blocks", "--n", "300", "--n0", "20", "--certificates", "-q")
    base += ("--arithmetic", "real", "--scale", "0.2")
    command(place, *base, "--law", "halved(share=0.4)", "--noise", "stripes(even=0.6,odd=0.9)", "-o", "striped")
    command(place, *base, "--noise", "ramp(low=0.7)", "--stop", "patient(votes=150)", "-o", "ramped")
    (striped, *_), (ramped, *_) = rows(place, "striped"), rows(place, "ramped")
    assert striped["evidence"]["noise"]["made"]["parameters"] == {"even": 0.6, "odd": 0.9}
    assert striped["evidence"]["law"]["share"] == 0.4
    assert ramped["region"]["scale"]["kind"] == "ramp@toy-parts"
    assert ramped["evidence"]["stop"] == "patient(votes=150)" and ramped["evidence"]["n"] < 300
    missing = command(place, "report", "ramped", "-o", "none.html", "-q", installed=False, code=2)
    assert "'patient' of the package toy-parts, which is not installed" in missing
    for run, law, noise in (
        ("striped", "halved(share=0.4)", "stripes(even=0.6,odd=0.9)"),
        ("ramped", "gaussian", "ramp(low=0.7)"),
    ):
        certificate = str(sorted((place / run / "certificates").glob("*.json"))[0])
        against = ("--model", "own:net", "--input", "blocks", "--index", str(int(Path(certificate).stem)))
        said = command(place, "verify", certificate, *against, "--law", law, "--scale", "0.2", "--noise", noise)
        assert "stands" in said and "pipeline" in said
        command(place, "audit", run, "--max", "1", "--steps", "2", "--check", "200", "-q")
    other = command(place, "verify", certificate, *against, "--scale", "0.2", "--noise", "ramp(low=0.8)", code=1)
    assert "does not stand (noise)" in other
    command(place, "report", "striped", "ramped", "-o", "both.html", "-q")
    page = (place / "both.html").read_text()
    assert all(
        words in page for words in ("stripes(even=0.6,odd=0.9)", "ramp(low=0.7)", "halved(share=0.4)")
    )  # run again
    missing = command(place, "verify", certificate, *against, installed=False, code=2)
    assert "toy-parts" in missing and "not installed" in missing and "ramp" in missing
    assert "ucan.readers" in command(place, "audit", "ramped", "--max", "1", installed=False, code=2)
