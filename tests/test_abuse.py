"""A hundred ways to use it wrongly: each ends in one line that says what to do, without a traceback, and nothing is lost.

Wrong words on the command line first, then wrong objects in Python, then what goes wrong in the midst of work.
"""

import json
import math
import os
import shutil
import signal
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import ucan
from ucan.cli import main
from ucan.data import InMemory, as_dataset, held_out, load
from ucan.errors import UcanError
from ucan.results.store import Store
from ucan.runs.audit import AuditJob, audit
from ucan.runs.certify import CertifyJob, certify
from ucan.runs.predict import PredictJob, predict
from ucan.runs.read import Run

MODEL = """
import numpy as np
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width=2):
        super().__init__()
        self.linear = nn.Linear(16, width)
        self.linear.weight.data = torch.stack([-torch.ones(16), torch.ones(16)] + [torch.zeros(16)] * (width - 2))
        self.linear.bias.data = torch.tensor([8.0, -8.0] + [-99.0] * (width - 2))
    def forward(self, x):
        return self.linear(x.flatten(1))

net = Net().eval()
plain = lambda x: (x.flatten(1).mean(1) > 0.5).long()
def none(x): return None
def words(x): return ["a"] * len(x)
def short(x): return net(x)[:1]
def nan(x): return net(x) * float("nan")
def complex_(x): return net(x).to(torch.complex64)
def wide(x): return net(x)[:, :, None]
def fails(x): raise RuntimeError("no licence\\nfor this machine")
def exits(x): raise SystemExit(3)
def numpy64(x): return np.asarray(x)[:, 0, 0, :2].astype("O")
def make(): raise OSError("weights are not downloaded")
five = 5
class NotANet: pass
data_empty = []
data_words = ["a", "b"]
def data_fails(): raise ValueError("no connection")
"""


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A folder with models, data of many kinds, a finished run and predictions."""
    place = tmp_path_factory.mktemp("abuse")
    here = os.getcwd()
    os.chdir(place)
    sys.path.insert(0, str(place))
    (place / "abused.py").write_text(MODEL)
    x = np.concatenate([np.full((3, 1, 4, 4), 40), np.full((3, 1, 4, 4), 200)]).astype(np.uint8)
    y = np.array([0, 0, 0, 1, 1, 1])
    np.savez("data.npz", x=x, y=y)
    np.savez("labels7.npz", x=x, y=np.array([0, 0, 0, 1, 1, 7]))
    np.savez("short.npz", x=x, y=y[:4])
    np.savez("nox.npz", left=x, right=x)
    np.savez("wild.npz", x=x.astype(np.float32))
    np.savez("empty.npz", x=x[:0])
    np.savez("text.npz", x=np.array(["a", "b"]))
    np.savez("halves.npz", x=x, y=y + 0.5)
    nan = x.astype(np.float32) / 255
    nan[1, 0, 2, 3] = np.nan
    np.savez("nan.npz", x=nan, y=y)
    np.savez("objects.npz", x=np.array([{}, []], dtype=object))
    np.save("sigma.npy", np.ones((1, 4, 4)))
    np.save("sigma3.npy", np.ones(3))
    np.save("negative.npy", -np.ones((1, 4, 4)))
    np.save("nansigma.npy", np.full((1, 4, 4), np.nan))
    (place / "broken.npz").write_bytes(b"PK\x03\x04 no zip")
    (place / "broken.npy").write_bytes(b"\x93NUMPY nothing")
    (place / "nothing.npy").write_bytes(b"")
    (place / "nothing.npz").write_bytes(b"")
    np.save("text.npy", np.array(["a", "b"]))
    np.save("bytes.npy", np.full((2, 1, 4, 4), 200.0))
    for name in (
        "net.onnx",
        "net.pt2",
        "net.ts",
        "net.safetensors",
        "net.skops",
        "net.json",
        "empty.csv",
        "empty.toml",
    ):
        (place / name).write_bytes(b"")
    (place / "word.toml").write_text("epochs = many")
    (place / "latin.csv").write_bytes("höhe,y\n1,0\n".encode("latin-1"))
    (place / "header.csv").write_text("a,y\n")
    (place / "twice.csv").write_text("a,a,y\n1,2,0\n")
    (place / "ragged.csv").write_text("a,b,y\n1,2,0\n1,2\n")
    (place / "holes.csv").write_text("a,b,y\n1,,0\n")
    (place / "one.csv").write_text("y\n0\n1\n")
    (place / "ids.csv").write_text("id,a,b,y\nx,1.5,2,0\nx,2,3.5,1\n")
    (place / "inf.csv").write_text("a,b,y\n1,inf,0\n")
    (place / "constant.csv").write_text("a,b,y\n1,2.5,0\n1,3.5,1\n1,4,0\n")
    (place / "folder").mkdir()
    (place / "flat").mkdir()
    (place / "flat" / "a.png").write_bytes(b"no picture")
    (place / "notes").mkdir()
    (place / "notes" / "a.txt").write_text("notes")
    certify(CertifyJob(model="abused:net", data="data.npz", n=100, n0=20, certificates=True), "run")
    predict(PredictJob(model="abused:net", data="data.npz", n=50, most=2), "p.tsv")
    shutil.copytree("run", "damaged")
    (place / "damaged" / "results.sqlite").write_bytes(b"no database" * 100)
    shutil.copytree("run", "cut")
    (place / "cut" / "config.toml").write_text("kind = ")
    shutil.copytree("run", "newer")
    (place / "newer" / "config.toml").write_text("run_format = 99\n")
    shutil.copytree("run", "foreign")
    with closing(sqlite3.connect(place / "foreign" / "results.sqlite")) as db, db:
        db.execute("PRAGMA application_id = 7")
    db.close()
    shutil.copytree("run", "holey")
    with closing(sqlite3.connect(place / "holey" / "results.sqlite")) as db, db:
        db.execute("UPDATE records SET record = '{' WHERE idx = 0")
    db.close()
    (place / "no.json").write_text("{}")
    (place / "list.json").write_text("[1]")
    (place / "half.json").write_text((place / "run" / "certificates" / "0.json").read_text()[:200])
    yield place
    os.chdir(here)
    sys.path.remove(str(place))


@pytest.fixture
def place(kept, monkeypatch):
    """The folder as the working directory; what would run for long is ended."""
    monkeypatch.chdir(kept)

    def late(*_):
        raise TimeoutError("this was not refused at once")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(20)
    yield kept
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
    for path in ("new", "r.html", "q.tsv"):
        shutil.rmtree(path, ignore_errors=True)


def listing(folder):
    return {
        str(path.relative_to(folder)): path.stat().st_size
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and not path.name.endswith(("-wal", "-shm"))
    }


def said_by(capsys, monkeypatch, words):
    monkeypatch.setattr(sys, "argv", ["ucan", *words])
    with pytest.raises(SystemExit) as leaving:
        main()
    told = capsys.readouterr()
    return leaving.value.code, told.out, told.err


GOOD = "certify --model abused:net --data data.npz --n 100 -o new "
TABLE = "certify --model abused:net --n 100 -o new --data "
WORDS = {
    # the command line itself
    "frobnicate": "No such command",
    "certify": "Missing option",
    GOOD + "--sigam 2": "No such option",
    GOOD + "--scale red": "Invalid value for '--scale'",
    GOOD + "--n -5": "n must be",
    GOOD + "--n 0": "n must be",
    GOOD + "--n 1e6": "Invalid value for '--n'",
    GOOD + "--n 99999999999999999999": "at most",
    GOOD + "--n0 0": "n0 must be",
    GOOD + "--alpha 0": "alpha must",
    GOOD + "--alpha 1": "alpha must",
    GOOD + "--alpha -0.1": "alpha must",
    GOOD + "--alpha nan": "alpha must",
    GOOD + "--scale 0": "scale",
    GOOD + "--scale -1": "scale",
    GOOD + "--scale inf": "scale",
    GOOD + "--scale nan": "scale",
    GOOD + "--norm 3": "Invalid value for '--norm'",
    GOOD + "--norm 1 --law gaussian --exponent 5": "--exponent",
    GOOD + "--law cauchy": "cauchy",
    GOOD + "--law gaussian(width=2)": "width",
    GOOD + "--law uniform --norm 2": "ℓ2",
    GOOD + "--noise gone.npy": "gone.npy",
    GOOD + "--noise sigma3.npy": "sigma3.npy has shape (3,)",
    GOOD + "--noise negative.npy": "above 0",
    GOOD + "--noise nansigma.npy": "finite",
    GOOD + "--noise broken.npy": "cannot be read",
    GOOD + "--noise nothing.npy": "nothing.npy cannot be read as a numeric .npy file",
    GOOD + "--budget nothing.npy": "nothing.npy cannot be read as a numeric .npy file",
    GOOD + "--budget nothing.npz": "nothing.npz cannot be read as a numeric .npz file",
    "certify --model abused:net --data bytes.npy -o new": "ucan: bytes: images[0, 0, 0, 0] is 200",
    GOOD + "--noise dataset-wise": "train",
    GOOD + "--noise pattern-7": "pattern-7",
    GOOD + "--seed soon": "--seed takes",
    GOOD + "--stop never": "stop",
    GOOD + "--stop -1": "stop",
    GOOD + "--time soon": "--time takes",
    GOOD + "--time 0": "--time takes",
    GOOD + "--device tpu": "--device tpu",
    GOOD + "--max 0": "Invalid value for '--max'",
    GOOD + "--skip -1": "Invalid value for '--skip'",
    GOOD + "--batch-size 0": "batch_size",
    GOOD + "--family 2": "--family 2 is smaller",
    GOOD + "--family 0": "family",
    GOOD + "--workers 2": "--workers needs a cluster",
    GOOD + "--split valid": "split",
    GOOD + "--classes 1": "2",
    GOOD + "--classes 3": "class",
    GOOD + "--class-names a,b,c": "3 class names",
    GOOD + "--weights gone.safetensors": "gone.safetensors",
    GOOD + "--weights net.safetensors": "net.safetensors",
    GOOD + "--budget 0": "budget",
    GOOD + "--budget income=5%": "--budget by column is for tables",
    GOOD + "--budget trained": "--budget trained",
    GOOD + "--budget sigma3.npy": "--budget",
    GOOD + "--normalise mars": "mars",
    GOOD + "--size 8": "--size",
    GOOD.replace("data.npz", "digits") + "--unit mm": "takes none: leave it out",
    GOOD + "--sigma a=1": "--sigma",
    GOOD + "--registry data.npz": "data.npz",
    GOOD.replace("new", "new.csv"): "ucan export",
    GOOD.replace("new", "data.npz"): "is a file",
    GOOD.replace("new", "notes"): "not empty and is not a run folder",
    GOOD.replace("new", "run") + "--n0 30": "n0: the run has 20, asked for 30",
    GOOD.replace("new", "damaged"): "damaged",
    GOOD.replace("new", "cut"): "cannot be read",
    GOOD.replace("new", "newer"): "run format",
    # models
    GOOD.replace("abused:net", "nothing"): "'nothing' is not a model",
    GOOD.replace("abused:net", "abused:nte"): "has no 'nte'",
    GOOD.replace("abused:net", "abused.py:net"): "is a path",
    GOOD.replace("abused:net", "gone_module:net"): "no module 'gone_module'",
    GOOD.replace("abused:net", "abused:"): "incomplete",
    GOOD.replace("abused:net", "abused:five"): "int",
    GOOD.replace("abused:net", "abused:NotANet"): "not a torch.nn.Module",
    GOOD.replace("abused:net", "abused:make"): "weights are not downloaded",
    GOOD.replace("abused:net", "abused:Net(depth=3)"): "depth",
    GOOD.replace("abused:net", "abused:Net(width=os)"): "literal values",
    GOOD.replace("abused:net", "abused:none"): "NoneType",
    GOOD.replace("abused:net", "abused:words"): "answered with a list",
    GOOD.replace("abused:net", "abused:short"): "the model answered a batch of",
    GOOD.replace("abused:net", "abused:wide"): "(1, 2, 1)",
    GOOD.replace("abused:net", "abused:fails"): "no licence",
    GOOD.replace("abused:net", "abused:plain"): "--classes",
    GOOD.replace("abused:net", "abused:numpy64"): "answered with a ndarray",
    GOOD.replace("abused:net", "net.onnx"): "net.onnx",
    GOOD.replace("abused:net", "net.pt2"): "net.pt2 cannot be read",
    GOOD.replace("abused:net", "net.ts"): "net.ts",
    GOOD.replace("abused:net", "net.skops"): "net.skops",
    GOOD.replace("abused:net", "net.json"): "net.json",
    GOOD.replace("abused:net", "gone.pt2"): "gone.pt2",
    GOOD.replace("abused:net", "net.safetensors"): "--weights",
    GOOD.replace("abused:net", "folder"): "not of a finished `ucan train` run",
    GOOD.replace("abused:net", "folder,run"): "folder,run",
    GOOD.replace("abused:net", "resnet20"): "--weights",
    # data
    GOOD.replace("data.npz", "gone.npz"): "gone.npz",
    GOOD.replace("data.npz", "broken.npz"): "broken.npz",
    GOOD.replace("data.npz", "nox.npz"): "nox.npz",
    GOOD.replace("data.npz", "short.npz"): "labels",
    GOOD.replace("data.npz", "labels7.npz"): "label 7",
    GOOD.replace("data.npz", "wild.npz"): "--unit",
    GOOD.replace("data.npz", "empty.npz"): "empty",
    GOOD.replace("data.npz", "text.npz"): "text: images must be numbers",
    GOOD.replace("data.npz", "halves.npz"): "label",
    GOOD.replace("data.npz", "nan.npz"): "images[1, 0, 2, 3] is nan",
    GOOD.replace("data.npz", "objects.npz"): "objects.npz",
    GOOD.replace("data.npz", "folder"): "folder",
    GOOD.replace("data.npz", "flat"): "a.png",
    GOOD.replace("data.npz", "notes"): "notes",
    GOOD.replace("data.npz", "abused:data_empty"): "empty",
    GOOD.replace("data.npz", "abused:data_words"): "an input is a str",
    GOOD.replace("data.npz", "abused:data_fails"): "no connection",
    GOOD.replace("data.npz", "abused:gone"): "gone",
    TABLE + "empty.csv --target y": "empty.csv",
    TABLE + "header.csv --target y": "header.csv",
    TABLE + "twice.csv --target y": "twice",
    TABLE + "ragged.csv --target y": "row 1 (from 0) has 2 cells",
    TABLE + "holes.csv --target y": "b",
    TABLE + "inf.csv --target y": "b",
    TABLE + "one.csv --target y": "y",
    TABLE + "latin.csv --target y": "UTF-8",
    TABLE + "ids.csv --target y --sigma a=1,b=1": "column 'id' holds texts",
    TABLE + "constant.csv --target y --train constant.csv": "a",
    TABLE + "ids.csv --target y --id id --sigma a=one": "a needs a number",
    TABLE + "ids.csv --target y --id id --sigma gone.toml": "gone.toml",
    TABLE + "ids.csv --target y --hold c": "c",
    TABLE + "ids.csv --target y --id id --hold ages": "has no column 'ages'",
    TABLE + "ids.csv --target y --id id --vary y": "'y' is the target or the id",
    TABLE + "ids.csv --target y --hold a --vary a": "a",
    # other commands
    "predict --model abused:net --data data.npz --json": "-o",
    "predict --model abused:net --data data.npz -o run": "is a folder",
    "predict --model abused:net --data data.npz -o gone/p.tsv": "there is no folder gone",
    "predict --model abused:net --data data.npz --n 60 -o p.tsv": "n: the run has 50, asked for 60",
    "predict --model abused:net --data data.npz -o data.npz": "already exists",
    "predict --model abused:net --data data.npz --test coin -o q.tsv": "majority",
    "verify gone.json --model abused:net --input data.npz --index 0": "gone.json",
    "verify no.json --model abused:net --input data.npz --index 0": "no.json",
    "verify list.json --model abused:net --input data.npz --index 0": "list.json",
    "verify half.json --model abused:net --input data.npz --index 0": "half.json",
    "verify run/certificates/0.json --model abused:net --input data.npz": "--index",
    "verify run/certificates/0.json --model abused:net --input data.npz --index 99": "--index 99",
    "verify run/certificates/0.json --model abused:net --input gone.png": "gone.png",
    "verify run/certificates/0.json --model abused:net --input nothing.npy": "nothing.npy cannot be read",
    "verify run/certificates/0.json --model abused:net --input text.npy": "text.npy cannot be read",
    "verify run/certificates/0.json --model abused:net --input data.npz --index 0 --step 0 --scale 0.25": "step",
    "audit gone": "gone",
    "audit notes": "not a run folder",
    "audit damaged": "damaged",
    "audit holey": "damaged",
    "audit run --factors big": "--factors",
    "audit run --min-radius 99": "nothing to audit",
    "audit run --attack magic": "magic",
    "audit run --steps 0": "steps",
    "audit run --level 2": "level",
    "audit run --data labels7.npz --model abused:plain": "weights",
    "compare": "name at least one run",
    "compare gone": "gone",
    "compare run --radii a,b": "--radii takes",
    "compare run --radii -1": "at least 0",
    "compare run --at volume": "Invalid value for '--at'",
    "compare run -o p.tsv": "already exists",
    "compare run -o gone/t.md": "gone",
    "compare run --envelope a": "--envelope takes",
    "report": "Missing argument",
    "report gone -o r.html": "gone",
    "report foreign -o r.html": "another program",
    "report run -o folder": "folder",
    "report run -o r.pdf": "give r.html instead of r.pdf",
    "leaderboard page notes -o p.html": "give p.md instead of p.html",
    "report run -o gone/r.html": "gone",
    "explore gone": "there is no folder gone",
    "explore damaged": "damaged",
    "export run -o x.xls": "extensions",
    "export run -o p.tsv": "--force",
    "export run -o gone/x.csv": "there is no folder gone",
    "export holey -o x.json": "damaged",
    "import gone.tsv -o new": "gone.tsv",
    "import empty.csv -o new": "empty.csv",
    "import data.npz -o new": "data.npz",
    "import p.tsv -o new": "p.tsv",
    "import run -o new": "run",
    "bench --model abused:plain --n 1000": "no PyTorch weights",
    "bench --model abused:net --shape 1,4,x --n 1000": "--shape takes",
    "bench --model abused:net --shape 1,9,9 --n 1000": "1, 9, 9",
    "bench --model abused:net --shape 1,4,4 --n 1000 --backend fast": "--backend takes",
    "train": "give a preset",
    "train nosuch": "neither a file nor a preset",
    "train digits-isotropc": "did you mean digits-isotropic",
    "train show": "ucan train show NAME",
    "train word.toml": "word.toml",
    "train digits-isotropic --set epochs=0 -o new": "epochs must be",
    "train digits-isotropic --set epochs=many -o new": "epochs must be",
    "train digits-isotropic --set colour=red -o new": "no setting 'colour'",
    "train digits-isotropic --set epochs -o new": "--set takes key=value",
    "train digits-isotropic --set lr=-1 -o new": "lr must be",
    "train digits-isotropic --set certify_every=-1 -o new": "certify_every must be",
    "train digits-isotropic --set shift=-1 -o new": "shift must be",
    "train digits-isotropic --set held_out=1 -o new": "held_out must",
    "train digits-isotropic --set data=gone.npz -o new": "gone.npz",
    "train digits-isotropic --set model=vgg99 -o new": "vgg99",
    "train digits-isotropic -o notes": "not a run",
    "train digits-isotropic --finetune notes -o new": "no finished training run",
    "recertify gone": "gone",
    "recertify run": "--model, --precision or --backend",
    "tune --model abused:net --data data.npz": "--",
    "demo -o p.tsv": "p.tsv",
}


@pytest.mark.parametrize("words", WORDS)
def test_wrong_words_end_in_one_line_and_nothing_is_lost(words, place, capsys, monkeypatch):
    before = listing(place)
    code, out, err = said_by(capsys, monkeypatch, words.split())
    assert code == 2 and "Traceback" not in err + out, err
    last = err.strip().splitlines()
    assert last and last[-1].startswith(("ucan: ", "Give the same settings")) and WORDS[words] in err, err
    assert len(last) == 1 or "another config" in err, err
    assert listing(place) == before and not (place / "new").exists()


# --- wrong objects in Python ---

X = torch.full((1, 1, 4, 4), 0.8)


def net(width=2):
    made = nn.Sequential(nn.Flatten(), nn.Linear(16, width))
    with torch.no_grad():
        made[1].weight.copy_(torch.linspace(-1, 1, 16 * width).reshape(width, 16))
    return made.eval()


def g(model=None, law=None, generator=None, num_classes=2, **more):
    return ucan.SmoothedClassifier(model or net(), law or ucan.Gaussian(0.5), generator, num_classes, **more)


OBJECTS = {
    "a law of no size": (lambda: ucan.Gaussian(0.0), "scale"),
    "a law of text": (lambda: ucan.Gaussian("wide"), "scale"),
    "a law of NaN": (lambda: ucan.Laplace(math.nan), "scale"),
    "an exponent below d": (lambda: g(law=ucan.PowerLaw(scale=1.0, a=3.0)).certify(X, norm=1, n=10), "a"),
    "a norm that is none": (lambda: ucan.Gaussian(1.0).radius(0.9, norm=3, dim=4), "ℓ3"),
    "a norm without a radius": (lambda: g(law=ucan.Laplace(0.5)).certify(X, n=10), "ℓ2"),
    "a probability above 1": (lambda: ucan.Gaussian(1.0).radius(1.5, norm=2, dim=4), "1.5"),
    "a text for p": (lambda: ucan.Gaussian(1.0).radius("high", norm=2, dim=4), "p"),
    "a singular Σ": (lambda: ucan.Region(torch.zeros(4), 1.0, 2), "above 0"),
    "a negative σ": (lambda: ucan.Fixed(-torch.ones(4)), "above 0"),
    "an Σ of NaN": (lambda: ucan.Fixed(torch.full((4,), math.nan)), "finite"),
    "an Σ of integers": (lambda: ucan.scales.Dense(torch.ones(3, 4)), "square"),
    "a basis that is none": (lambda: ucan.scales.Basis(torch.ones(3, 3), torch.ones(3)), "orthonormal"),
    "a negative radius": (lambda: ucan.Region(1.0, -1.0, 2, (4,)), "radius"),
    "a region without a shape": (lambda: ucan.Region(1.0, 1.0, 2), "shape"),
    "a change of another shape": (lambda: ucan.Region(torch.ones(4), 1.0, 2).contains(torch.ones(2, 5)), "shape"),
    "a box of another shape": (lambda: ucan.Region(torch.ones(4), 1.0, 2).covers(torch.ones(5)), "shape"),
    "one class": (lambda: g(num_classes=1), "at least 2"),
    "classes in text": (lambda: g(num_classes="two"), "num_classes"),
    "no model": (lambda: ucan.SmoothedClassifier(None, ucan.Gaussian(1.0), num_classes=2), "NoneType"),
    "a file name for a model": (lambda: ucan.SmoothedClassifier("net.pt", ucan.Gaussian(1.0), num_classes=2), "str"),
    "no law": (lambda: ucan.SmoothedClassifier(net(), 0.5, num_classes=2), "law"),
    "a generator that is none": (lambda: g(generator=torch.ones(4)), "generator"),
    "training mode": (lambda: g(net().train()).certify(X, n=10), "eval()"),
    "another width": (lambda: g(net(3)).certify(X, n=10), "3"),
    "one picture without a batch": (lambda: g().certify(X[0, 0], n=10), "shape (4,)"),
    "a list for a batch": (lambda: g().certify([[1.0]], n=10), "tensor"),
    "whole numbers": (lambda: g().certify((255 * X).to(torch.uint8), n=10), "float"),
    "NaN in the input": (lambda: g().certify(X * math.nan, n=10), "finite"),
    "an empty batch of nothing": (lambda: g().certify(torch.zeros(2, 0), n=10), "empty"),
    "n of text": (lambda: g().certify(X, n="many"), "n must"),
    "n of a half": (lambda: g().certify(X, n=10.5), "n must"),
    "α of 5 %": (lambda: g().certify(X, n=10, alpha="5%"), "alpha"),
    "a seed of half": (lambda: g().certify(X, n=10, seed=0.5), "seed"),
    "a bound that is none": (lambda: g().certify(X, n=10, bound="tight"), "bound"),
    "a precision that is none": (lambda: g().certify(X, n=10, precision="fp8"), "fp8"),
    "a stop that is none": (lambda: g().certify(X, n=10, stop="soon"), "stop"),
    "a budget of zeros": (lambda: g().certify(X, n=10, budget=torch.zeros(1, 4, 4)), "budget"),
    "a budget of another shape": (lambda: g().certify(X, n=10, budget=torch.ones(7)), "shape"),
    "a step of nothing": (lambda: g(step=0.0), "step"),
    "a backend that is none": (lambda: g(backend="warp").certify(X, n=10), "warp"),
    "predict by a coin": (lambda: g().predict(X, n=10, test="coin"), "majority"),
    "an ensemble of nothing": (lambda: ucan.Ensemble([]), "at least"),
    "names for other inputs": (lambda: InMemory(X, names=["a", "b"]), "names"),
    "labels in text": (lambda: InMemory(X, labels=["a"]), "label"),
    "one-hot labels": (lambda: InMemory(X, labels=np.eye(2)[:1]), "one"),
    "labels below −1": (lambda: InMemory(X, labels=[-5]), "label"),
    "pixels of 255": (lambda: InMemory(255 * X), "unit"),
    "token numbers": (lambda: InMemory(torch.randint(0, 9999, (2, 7))), "float"),
    "a data set of nothing": (lambda: as_dataset([]), "empty"),
    "a data set of None": (lambda: as_dataset(None), "NoneType"),
    "a part of everything": (lambda: held_out(InMemory(X), 1.0), "fraction"),
    "a data set by a wrong name": (lambda: load("imagnet"), "imagnet"),
    "a table of nothing": (lambda: ucan.Table({}), "no rows"),
    "a table of uneven columns": (lambda: ucan.Table({"a": [1.0, 2.0], "b": [1.0]}), "rows"),
    "a table of objects": (lambda: ucan.Table({"a": [object(), object()]}), "a"),
    "a table of NaN": (lambda: ucan.Table({"a": [1.0, math.nan]}), "a"),
    "a certificate that is none": (lambda: ucan.certificate.from_dict({"kind": "certificate"}), "format"),
    "a job without data": (lambda: certify(CertifyJob(model=net(), data=None, n=10), "new"), "NoneType"),
    "a job of a number": (lambda: certify(CertifyJob(model=7, data=InMemory(X), n=10), "new"), "int"),
    "an audit of nothing": (lambda: audit(AuditJob(run="gone")), "gone"),
    "a run of nothing": (lambda: Run.open("gone"), "gone"),
    "a column that is none": (lambda: Store.open("run").columns(("size",)), "size"),
    "an input that is none": (lambda: Run.open("run").outcome(99), "99"),
}


@pytest.mark.parametrize("what", OBJECTS)
def test_wrong_objects_are_refused_with_what_to_do(what, place):
    call, message = OBJECTS[what]
    before = listing(place)
    with pytest.raises(UcanError) as caught:
        call()
    said = str(caught.value)
    assert message in said and len(said.splitlines()) == 1 and len(said) < 600, said
    assert listing(place) == before


# --- what goes wrong in the midst of work ---


MOODS: list[BaseException] = []  # not part of the model, whose identity stays the same


class Moody(nn.Module):
    """Fails on bright inputs as long as there are moods."""

    def __init__(self):
        super().__init__()
        self.linear = net()
        self.eval()

    def forward(self, x):
        if MOODS and x.mean() > 0.6:
            raise MOODS[0]
        return self.linear(x)


@pytest.fixture
def mood():
    yield MOODS.append
    MOODS.clear()


def shades(count=5):
    x = torch.linspace(0.1, 0.9, count)[:, None, None, None].expand(count, 1, 4, 4).clone()
    return InMemory(x, [0] * count, name="shades")


@pytest.mark.parametrize("what", ["certify", "predict"])
def test_a_model_that_raises_in_the_midst_loses_nothing(what, tmp_path, monkeypatch, mood):
    monkeypatch.chdir(tmp_path)
    mood(RuntimeError("CUDA error: device-side assert\nstack of the driver"))
    work, job, out = (certify, CertifyJob, "run") if what == "certify" else (predict, PredictJob, "p.tsv")
    asked = job(model=Moody(), data=shades(), n=60, scale=0.05, batch_size=60)
    with pytest.raises(UcanError, match=r"the model failed during the run: RuntimeError: CUDA error.*resume") as caught:
        work(asked, out)
    assert len(str(caught.value).splitlines()) == 1
    kept = len(Store.open("run")) if what == "certify" else len(Path("p.tsv.part").read_text().splitlines()) - 1
    assert kept >= 2
    MOODS.clear()
    done = work(asked, out)
    assert (done.inputs if what == "certify" else len(done.answers)) == 5


def test_a_start_that_fails_leaves_no_folder(tmp_path, monkeypatch, mood):
    monkeypatch.chdir(tmp_path)
    mood(RuntimeError("out of luck"))
    monkeypatch.setattr(ucan.SmoothedClassifier, "certify_each", lambda *_: iter(Moody()(X) for _ in range(1)))
    with pytest.raises(UcanError, match="No result was finished, and nothing was written"):
        certify(CertifyJob(model=net(), data=shades(), n=60), "run")
    assert not Path("run").exists()


def test_a_run_without_results_is_begun_anew_under_other_settings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    job = dict(model=net(), data=shades())
    certify(CertifyJob(**job, n=50), "run")
    with closing(sqlite3.connect("run/results.sqlite")) as db, db:  # as if it had been killed before its first result
        db.execute("DELETE FROM outcomes")
        db.execute("DELETE FROM records")
    db.close()
    assert certify(CertifyJob(**job, n=60), "run").inputs == 5
    with pytest.raises(UcanError, match="another config"):
        certify(CertifyJob(**job, n=70), "run")


def test_a_full_disk_says_what_is_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    add, count = Store.add, []

    def full(self, *words, **more):
        count.append(1)
        if len(count) == 3:
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error
        add(self, *words, **more)

    from ucan.storage import storage

    def guarded(self, *words, **more):
        with storage(self.folder):
            full(self, *words, **more)

    job = CertifyJob(model=net(), data=shades(), n=60)
    with monkeypatch.context() as patched:
        patched.setattr(Store, "add", guarded)
        with pytest.raises(UcanError, match=r"no space left for run: stored results are safe\. Free some space"):
            certify(job, "run")
    assert len(Store.open("run")) == 2 and certify(job, "run").inputs == 5


def test_a_damaged_database_is_left_as_it_is(place):
    before = (place / "damaged" / "results.sqlite").read_bytes()
    with pytest.raises(UcanError, match="damaged or is not a SQLite file"):
        Run.open("damaged")
    assert (place / "damaged" / "results.sqlite").read_bytes() == before


def test_ctrl_c_keeps_what_is_done(tmp_path, monkeypatch, mood):
    monkeypatch.chdir(tmp_path)
    mood(KeyboardInterrupt())
    job = CertifyJob(model=Moody(), data=shades(), n=60, scale=0.05, batch_size=60)
    with pytest.raises(KeyboardInterrupt):
        certify(job, "run")
    kept = len(Store.open("run"))
    MOODS.clear()
    assert kept >= 2 and certify(job, "run").inputs == 5


def test_rows_with_the_same_name_are_said(place, capsys, monkeypatch):
    words = "certify --model abused:pair --classes 2 --data ids.csv --target y --id id --sigma a=1,b=1 --n 50 -o new"
    (place / "abused.py").write_text(MODEL + "pair = lambda x: (x[:, 0] > 1.7).long()\n")
    monkeypatch.delitem(sys.modules, "abused")
    code, _, err = said_by(capsys, monkeypatch, words.split())
    assert not code and "several rows have the same name (rows 0 and 1: x)" in err


def test_names_in_any_script_come_back(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = ["ünï ☃.png", "日本.png", "a\u202eb", "ы" * 200, ""]
    data = InMemory(shades().images, [0] * 5, classes=["да", "いいえ"], names=names, name="дані")
    certify(CertifyJob(model=net(), data=data, n=50), "папка")
    assert list(Store.open("папка").names().values()) == names
    assert json.loads(Path("папка/results.tsv.json").read_text("utf-8"))["names"]["1"] == "日本.png"


def test_there_are_more_than_a_hundred_of_them():
    assert len(WORDS) + len(OBJECTS) > 100
