"""Budgets on the command line and in runs: certify, the store, exchange, compare, report, verify."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import ucan
from ucan.certificate import load_json
from ucan.cli import app
from ucan.report.page import build_page, galleries_of
from ucan.report.rerun import commands
from ucan.report.runs import read_runs
from ucan.report.sentences import sentences
from ucan.results import Store
from ucan.results.store import COLUMNS
from ucan.training import TrainSettings, for_claim

MODEL = """
import torch

def net(batch):
    bright = batch.flatten(1).mean(1) - 0.5
    return torch.stack([-10 * bright, 10 * bright], dim=1)
"""
SHAPE = (1, 4, 4)


def ucan_says(*words: object, code: int = 0) -> str:
    found = CliRunner().invoke(app, list(map(str, words)))
    said = found.output if found.exception is None or isinstance(found.exception, SystemExit) else str(found.exception)
    assert (found.exit_code == 0) == (code == 0), said
    return said


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "bright.py").write_text(MODEL)
    rng = np.random.default_rng(0)
    x = np.clip(np.repeat([0.2, 0.8, 0.35, 0.65], 3)[:, None, None, None] + 0.05 * rng.normal(size=(12, *SHAPE)), 0, 1)
    np.savez("data.npz", x=x.astype(np.float32), y=np.repeat([0, 1, 0, 1], 3))
    np.save("budget.npy", np.linspace(0.5, 2, 16).reshape(SHAPE))
    np.save("other.npy", np.linspace(0.5, 3, 16).reshape(SHAPE))
    np.save("bad.npy", np.ones((2, 2)))
    return tmp_path


def certify(out: str, *more: object, code: int = 0) -> str:
    words = (
        "certify",
        "--model",
        "bright:net",
        "--model-id",
        "bright",
        "--data",
        "data.npz",
        "-o",
        out,
        "--n",
        500,
        "-q",
    )
    return ucan_says(*words, *more, code=code)


def test_a_run_for_a_budget_is_about_its_factor(place: Path) -> None:
    said = certify("run", "--budget", "budget.npy", "--certificates")
    assert "under every change of at most ε·bᵢ in coordinate i, ε = " in said
    with Store.open("run") as store:
        columns, config, key = store.columns(), store.config, store.budget
        outcomes = [store.outcome(int(i)) for i in columns["idx"]]
    assert config["budget"] == "budget.npy" and config["budget_hash"] == key
    limits = torch.from_numpy(np.load("budget.npy"))
    assert key == ucan.Budget(limits).key
    assert [o.budget_factor for o in outcomes] == columns["radius"].tolist()
    assert (columns["radius"] > 0).any() and outcomes[0].radius != outcomes[0].budget_factor
    certify("run", "--budget", "budget.npy")  # resumed
    assert "config" in certify("run", "--budget", "other.npy", code=2)
    assert "config" in certify("run", code=2)
    ucan_says("export", "run", "-o", "run.tsv")
    said = ucan_says("import", "run.tsv", "-o", "back")
    assert "factors ε of a budget" in said and "radii, scope" not in said


def test_what_is_no_budget_is_refused(place: Path) -> None:
    assert "does not fit" in certify("run", "--budget", "bad.npy", code=2)
    assert "--budget" in certify("run", "--budget", "much", code=2)
    assert "--budget" in certify("run", "--budget", "none.npy", code=2)
    assert certify("run", "--budget", "0", code=2)
    assert "budget" in certify("run", "--budget", "1", "--registry", "r.sqlite", code=2)


def test_a_budget_over_groups_from_a_file(place: Path) -> None:
    groups, limits = np.arange(16).reshape(SHAPE) % 3, np.array([0.5, 1.0, 2.0])
    np.savez("rows.npz", limits=limits, groups=groups.astype(np.uint8))
    said = certify("run", "--budget", "rows.npz", "--certificates")
    assert "each of 3 groups of coordinates, ε = " in said
    with Store.open("run") as store:
        columns, config, key = store.columns(), store.config, store.budget
        budgets = {outcome.budget for i in columns["idx"] if (outcome := store.outcome(int(i))).radius}
    assert config["budget"] == "rows.npz" and (columns["radius"] > 0).any()
    assert key == ucan.Budget(torch.from_numpy(limits), torch.from_numpy(groups)).key == next(iter(budgets)).key
    certify("run", "--budget", "rows.npz")  # resumed
    ucan_says("audit", "run", "--max", 1, "--steps", 3, "--draws", 4, "--check", 200, "-q")
    first = int(columns["idx"][columns["radius"].argmax()])
    words = ("--model", "bright:net", "--model-id", "bright", "--input", "data.npz", "--index", first, "--n", 300, "-q")
    assert "ok   budget:" in ucan_says("verify", f"run/certificates/{first}.json", *words)
    np.savez("map.npz", limits=np.load("budget.npy"))
    certify("map", "--budget", "map.npz")
    with Store.open("map") as store:
        assert store.budget == ucan.Budget(torch.from_numpy(np.load("budget.npy"))).key


def test_a_file_with_no_groups_that_fit_is_refused(place: Path) -> None:
    groups = np.zeros(SHAPE, dtype=np.int64)
    cases: dict[str, dict[str, np.ndarray]] = {
        "must hold `limits`, and may hold `groups`; it holds groups, width": {"groups": groups, "width": np.ones(1)},
        "do not fit inputs of": {"limits": np.ones(1), "groups": groups[0]},
        "must be whole numbers from 0": {"limits": np.ones(1), "groups": groups.astype(np.float64)},
        "one limit each": {"limits": np.ones(2), "groups": groups - 1},
        "numbers from 2 to 2": {"limits": np.ones(2), "groups": groups + 2},
        "finite numbers from 0": {"limits": np.array([-1.0]), "groups": groups},
        "limits must be numbers": {"limits": np.array(["much"]), "groups": groups},
    }
    for said, arrays in cases.items():
        np.savez("wrong.npz", **arrays)  # type: ignore[arg-type]
        message = certify("run", "--budget", "wrong.npz", code=2)
        assert said in message and "--budget: wrong.npz" in message
    (place / "damaged.npz").write_bytes(b"PK but no more")
    assert "cannot be read" in certify("run", "--budget", "damaged.npz", code=2)


def test_laws_without_an_l2_radius_and_stopping(place: Path) -> None:
    certify("laplace", "--budget", "1", "--law", "laplace")
    certify("stopped", "--budget", "1", "--stop", "0.01")
    with Store.open("laplace") as store:
        assert store.config["budget"] == 1.0 and store.norm == 1 and (store.columns()["radius"] > 0).any()
    assert "ε = 0.01 was decided" in ucan_says("compare", "stopped", "--radii", "0,0.01")


def test_compare_takes_one_budget_and_no_radii_beside_it(place: Path) -> None:
    certify("one", "--budget", "1")
    certify("too", "--budget", "1", "--scale", 0.3)
    certify("two", "--budget", "2")
    certify("radii")
    said = ucan_says("compare", "one", "too", "--radii", "0,0.01,0.05")
    assert "by ε of the budget" in said and "norm not stated" not in said
    assert "same budget" in ucan_says("compare", "one", "two", code=2)
    assert "not with radii" in ucan_says("compare", "one", "radii", code=2)
    assert "not with radii" in ucan_says("compare", "--envelope", "best=one,radii", code=2)


def test_a_table_taken_elsewhere_and_back_keeps_its_budget(place: Path) -> None:
    certify("run.tsv", "--budget", "budget.npy")
    about = json.loads(Path("run.tsv.json").read_text())
    assert about["radius_is"].startswith("the factor ε") and about["config"]["budget"] == "budget.npy"
    ucan_says("import", "run.tsv", "-o", "again")
    certify("radii")
    assert "by ε of the budget" in ucan_says("compare", "run", "again", "--radii", "0,0.01")
    assert "not with radii" in ucan_says("compare", "radii", "again", code=2)
    ucan_says("export", "run", "-o", "run.csv", "--format", "csv")
    assert json.loads(Path("run.csv.json").read_text())["budget_hash"] == about["budget_hash"]


def test_the_report_names_its_axis_and_says_what_is_proved(place: Path) -> None:
    certify("box", "--budget", "budget.npy")
    certify("linf", "--budget", "1")
    certify("radii")
    runs = read_runs(["box", "linf", "radii"])
    page = build_page(runs, galleries_of(runs))
    assert page.count("ε of the budget") >= 2 and "ℓ2 radius" in page
    assert "times the budget" in sentences(runs)[0].text
    assert "in each coordinate" in sentences(runs[1:])[0].text
    (again,) = [line for line in commands(runs[0]) if line.startswith("ucan certify")]
    assert "--budget budget.npy" in again


def test_verify_finds_an_inflated_factor(place: Path) -> None:
    certify("run", "--budget", "1", "--certificates", "--law", "uniform", "--scale", 0.5)
    names = sorted(Path("run/certificates").glob("*.json"))
    name = next(n for n in names if isinstance(load_json(n), ucan.Certificate))
    words = (
        "--model",
        "bright:net",
        "--model-id",
        "bright",
        "--input",
        "data.npz",
        "--index",
        name.stem,
        "--n",
        300,
        "-q",
    )
    said = ucan_says("verify", name, *words, "--law", "uniform", "--scale", 0.5)
    assert "ok   budget:" in said and "under every change of at most ε in each coordinate" in said
    record = json.loads(name.read_text())
    name.write_text(json.dumps({**record, "budget_factor": 1.05 * record["budget_factor"]}))
    assert "does not follow" in ucan_says("verify", name, *words, code=2)


def test_a_store_holds_one_budget(tmp_path: Path) -> None:
    f = lambda y: (y[:, 0] > 0).long()  # noqa: E731
    g = ucan.SmoothedClassifier(f, ucan.Gaussian(scale=0.5), num_classes=2)
    x = torch.ones(1, 3)
    (one,), (two,), (none,) = (g.certify(x, n=200, **b) for b in ({"budget": 1}, {"budget": 2}, {}))
    with Store.create(tmp_path / "run", {"kind": "certify"}) as store:
        store.add(0, 1, one, 0.0)
        for other in (two, none):
            with pytest.raises(ucan.InvalidInput, match="another folder"):
                store.add(1, 1, other, 0.0)
    with Store.create(tmp_path / "plain", {"kind": "certify"}) as store:
        store.add(0, 1, none, 0.0)
        with pytest.raises(ucan.InvalidInput, match="another folder"):
            store.add(1, 1, one, 0.0)


# --- training for a claim ---


def settings(kind: str, **more: object) -> TrainSettings:
    return TrainSettings.from_dict({"generator": {"kind": kind}, **more})


@pytest.mark.parametrize(
    ("claim", "term"), [("linf", "budget"), ("l2", "min"), ("l1", "min"), ("alm", "logmean"), ("budget", "budget")]
)
def test_a_training_is_for_a_claim(claim: str, term: str) -> None:
    own = {"budget": {"limit": 0.5}} if claim == "budget" else {}
    for kind in ("dataset-wise", "certification-wise"):
        made = for_claim(settings(kind, variance_term="mean", variance_weight=0.2, **own), claim)
        assert (made.variance_term, made.variance_weight) == (term, 0.2)
        assert made.budget == ({"limit": 1.0} if claim == "linf" else own.get("budget"))
    plain = settings("isotropic", **own)
    assert for_claim(plain, claim) == plain


@pytest.mark.parametrize(
    ("kind", "claim", "more"),
    [
        ("budget", "l2", {}),
        ("budget-wise", "alm", {}),
        ("dataset-wise", "l2", {"budget": {"limit": 1.0}}),
        ("dataset-wise", "budget", {}),
        ("dataset-wise", "linf", {"budget": {"spread": 0.1}}),
        ("composed", "l2", {}),
        ("composed", "alm", {}),
        ("composed", "linf", {"generator": {"kind": "composed", "norm": 2}}),
    ],
)
def test_what_contradicts_the_claim_is_refused(kind: str, claim: str, more: dict[str, object]) -> None:
    with pytest.raises(ucan.InvalidInput):
        for_claim(settings(kind, **more) if "generator" not in more else TrainSettings.from_dict(more), claim)


def test_train_for_a_budget_and_certify_it(place: Path) -> None:
    small = ("--set", "epochs=1", "-q")
    said = ucan_says("train", "digits-dataset", "--for", "linf", "--set", "variance_term=min", *small, code=2)
    assert "not the one for linf" in said
    ucan_says("train", "digits-budget", "--for", "linf", "-o", "model", *small)
    words = ("--data", "digits", "--max", 4, "--n", 200, "-q")
    ucan_says("certify", "--model", "model", "--budget", "trained", "-o", "own", *words)
    ucan_says("certify", "--model", "model", "--budget", "1", "-o", "one", *words)
    assert "by ε of the budget" in ucan_says("compare", "own", "one")  # the same budget, however it was named
    assert "not a run that was trained for a budget" in certify("x", "--budget", "trained", code=2)
    config = tomllib.loads(Path("model/config.toml").read_text())["training"]
    assert config["budget"] == {"limit": 1.0}


# --- the sentence about the shape ---


def stored(folder: Path, noise: str, right: int, radius: float, **more: object) -> Path:
    """A run on 100 inputs, so many of them right with this radius."""
    config = {
        "kind": "certify",
        "noise": noise,
        "scope": "pipeline",
        "norm": "inf",
        "alpha": 0.001,
        "data_hash": "d",
        **more,
    }
    rows = {name: np.zeros(100) for name in COLUMNS} | {"idx": np.arange(100), "label": np.arange(100) % 10}
    correct = np.arange(100) < right
    rows |= {"correct": correct, "prediction": np.where(correct, rows["label"], -1), "abstained": ~correct}
    with Store.create(folder, config) as store:
        store.extend({**rows, "radius": np.where(correct, radius, 0.0)})
    return folder


def test_that_the_shape_pays_is_said_only_where_the_records_bear_it(tmp_path: Path) -> None:
    plain = stored(tmp_path / "plain", "Isotropic", 40, 0.1)
    shaped = stored(tmp_path / "shaped", "Fixed(Diagonal)", 80, 0.1)
    near = stored(tmp_path / "near", "Fixed(Diagonal)", 45, 0.1)
    other = stored(tmp_path / "other", "Fixed(Diagonal)", 80, 0.1, data_hash="e")
    grid = stored(tmp_path / "grid", "Fixed(Diagonal)", 80, 0.1, arithmetic="grid(1/8)")
    l2 = [stored(tmp_path / f"{n}-l2", n, r, 0.1, norm=2) for n, r in (("Isotropic", 40), ("Fixed(Diagonal)", 80))]
    pays = "the shape of the noise pays"
    assert pays in sentences(read_runs([plain, shaped]))[0].text
    assert "proved right for 80.0 %" in sentences(read_runs([plain, shaped]))[0].text
    for runs in ([plain, near], [plain, other], [plain, grid], l2, [plain], [shaped]):
        assert pays not in sentences(read_runs(runs))[0].text


def test_a_table_says_where_whole_steps_allow_no_change(tmp_path: Path) -> None:
    grid = stored(tmp_path / "grid", "Isotropic", 40, 0.2, arithmetic="grid(1/16)")
    said = ucan_says("compare", grid, "--radii", "0,0.02,0.0625,0.07")
    assert "whole steps of 1/16, and no such change is below 0.02, 0.0625" in " ".join(said.split())
    real = stored(tmp_path / "real", "Isotropic", 40, 0.2, arithmetic="real")
    assert "whole steps" not in ucan_says("compare", real, "--radii", "0,0.02")
    assert "whole steps" not in ucan_says("compare", grid, "--radii", "0,0.1")
