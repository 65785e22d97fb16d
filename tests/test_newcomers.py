"""Tried from nothing, each in at most five lines: what a newcomer brings works at the first attempt."""

import csv
import sys

import numpy as np
import pytest
from PIL import Image

from ucan.cli import main

FOREST = """
import ucan
from sklearn import datasets, ensemble
cancer = datasets.load_breast_cancer(as_frame=True)
model = ensemble.RandomForestClassifier(n_estimators=10, random_state=0).fit(cancer.data[::2], cancer.target[::2])
answers = ucan.SmoothedTable(model, ucan.Table(cancer.data[1::2], train=cancer.data[::2])).certify(range(2), n=100)
"""
BOOSTED = """
import ucan, xgboost
from sklearn.datasets import load_breast_cancer
cancer = load_breast_cancer(as_frame=True)
model = xgboost.XGBClassifier(n_estimators=10).fit(cancer.data[::2], cancer.target[::2])
answers = ucan.SmoothedTable(model, ucan.Table(cancer.data[1::2], train=cancer.data[::2])).certify(range(2), n=100)
"""
HUGGING_FACE = """
import torch, transformers, ucan
small = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=16, patch_size=8)
model = transformers.ViTForImageClassification(transformers.ViTConfig(**small, num_labels=3)).eval()
g = ucan.SmoothedClassifier(model, ucan.Gaussian(0.25))
answers = g.certify(torch.rand(1, 3, 16, 16), n=60)
"""
TIMM = """
import timm, torch, ucan
model = timm.create_model("resnet18", num_classes=3).eval()
g = ucan.SmoothedClassifier(model, ucan.Gaussian(0.25))
answers = g.certify(torch.rand(1, 3, 32, 32), n=60)
"""
PIPELINE = """
import pathlib, pickle
import pandas as pd
from sklearn import compose, linear_model, pipeline, preprocessing
train = pd.read_csv("train.csv")
encode = compose.make_column_transformer((preprocessing.OneHotEncoder(), ["job"]), remainder="passthrough")
model = pipeline.make_pipeline(encode, preprocessing.StandardScaler(), linear_model.LogisticRegression())
pathlib.Path("credit.pkl").write_bytes(pickle.dumps(model.fit(train[["income", "job"]], train["decision"])))
"""


def run(text):
    names = {}
    assert len(text.strip().splitlines()) <= 5
    exec(compile(text, "newcomer", "exec"), names)
    return names["answers"]


def command(line, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", line.split())
    with pytest.raises(SystemExit) as leaving:
        main()
    said = capsys.readouterr()
    assert not leaving.value.code, said.err
    return said.out


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("package, text", [("sklearn", FOREST), ("xgboost", BOOSTED)], ids=["forest", "xgboost"])
def test_trees_on_breast_cancer_with_an_answer_for_every_feature(package, text):
    pytest.importorskip("pandas")
    pytest.importorskip(package)
    first = run(text)[0]
    assert "mean radius alone moves by less than" in first.words() and len(first.reach.moves) == 30


@pytest.mark.parametrize(
    "package, text", [("transformers", HUGGING_FACE), ("timm", TIMM)], ids=["hugging face", "timm"]
)
def test_a_network_of_a_library_from_its_configuration(package, text):
    pytest.importorskip(package)
    (outcome,) = run(text)
    assert len(outcome.evidence.counts) == 3


def test_a_pipeline_with_categories_from_a_csv_in_one_line(fresh, capsys, monkeypatch):
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame({"id": [f"C{i}" for i in range(80)], "income": rng.normal(50_000, 9_000, 80).round()})
    frame["job"] = rng.choice(["clerk", "nurse"], 80)
    frame["decision"] = np.where(frame["income"] + 9_000 * (frame["job"] == "nurse") > 54_000, "approved", "refused")
    frame[:60].to_csv("train.csv", index=False)
    frame[60:].to_csv("test.csv", index=False)
    exec(PIPELINE, {})  # the newcomer's own model
    line = "ucan certify --model credit.pkl --trust --data test.csv --target decision --id id --train train.csv"
    out = command(f"{line} --n 200 --max 3 -o run -q", capsys, monkeypatch)
    assert (
        "C60: " in out
        and "The answer stays" in out
        and "income alone moves by less than" in out
        and "job: it was held" in out
    )


def test_the_names_of_pictures_come_back(fresh, capsys, monkeypatch):
    for folder, grey in (("dark", 20), ("light", 220)):
        (fresh / "pictures" / folder).mkdir(parents=True)
        Image.fromarray(np.full((8, 8, 3), grey, dtype=np.uint8)).save(f"pictures/{folder}/holiday.png")
    name = f"mine_{fresh.name}".replace("-", "_")
    (fresh / f"{name}.py").write_text("def net(x): return (x.mean((1, 2, 3)) > 0.5).long()\n")
    table = command(f"ucan predict --model {name}:net --classes 2 --data pictures --n 50 -q", capsys, monkeypatch)
    rows = list(csv.DictReader(table.splitlines(), delimiter="\t"))
    assert [(row["name"], row["predict_name"]) for row in rows] == [
        ("dark/holiday.png", "dark"),
        ("light/holiday.png", "light"),
    ]
