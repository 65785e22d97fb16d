"""Files that earlier versions wrote are read, resumed, verified, audited and reported."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import ucan
from ucan import data
from ucan.certificate import load_json
from ucan.cli import app
from ucan.results import Store
from ucan.training import load_run

OLD = Path(__file__).parent / "fixtures" / "version-0.1"
RUNS = ("isotropic", "stopping", "two-class", "certification-wise", "composed", "basis-wise", "registry")


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the fixtures, as the folder to work in: the runs name their models relative to it."""
    folder = tmp_path / "old"
    shutil.copytree(OLD, folder)
    monkeypatch.chdir(folder)
    return folder


def call(*words: str) -> str:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("path", sorted((OLD / "outcomes").glob("*.json")), ids=lambda path: path.stem)
def test_an_old_outcome_is_read_without_loss(path: Path) -> None:
    stored, outcome = json.loads(path.read_text()), load_json(path)
    for name in ("prediction", "p_lower", "p_upper", "radius", "alm", "scope", "reason", "p_value"):
        if name in stored:
            assert getattr(outcome, name) == stored[name]
    evidence = outcome.evidence
    assert list(evidence.counts) == stored["evidence"]["counts"]
    assert (evidence.seed, evidence.n, evidence.bound) == tuple(stored["evidence"][k] for k in ("seed", "n", "bound"))
    assert evidence.arithmetic == "real"
    if stored["kind"] == "certificate":
        assert isinstance(outcome, ucan.Certificate)
        assert outcome.region.radius == stored["region"]["radius"]


@pytest.mark.parametrize("name", RUNS)
def test_an_old_run_is_resumed_with_its_own_settings(old: Path, name: str) -> None:
    run, settings = old / f"{name}-run", ["--data", "digits", "--n", "400", "--n0", "40", "--device", "cpu", "-q"]
    extra = {"stopping": ["--stop", "0.1,0.3"], "two-class": ["--bound", "two-class", "--norm", "inf"]}
    extra["registry"] = ["--registry", "registry.sqlite"]
    model = {"stopping": "isotropic", "two-class": "isotropic", "registry": "certification-wise"}.get(name, name)
    with Store.open(run) as store:
        before = [store.outcome(i).to_dict() for i in range(5)]
    call("certify", "--model", model, *settings, "--max", "7", "-o", str(run), *extra.get(name, []))
    with Store.open(run) as store:
        assert len(store) == 7
        assert [store.outcome(i).to_dict() for i in range(5)] == before
        assert {store.outcome(i).evidence.block for i in range(7)} == {128}
        assert {store.outcome(i).evidence.arithmetic for i in range(7)} == {"real"}


@pytest.mark.parametrize("name", ("isotropic", "certification-wise", "composed", "basis-wise"))
def test_the_noise_of_old_runs_is_drawn_again(old: Path, name: str) -> None:
    """Other noise would change dozens of these 2,000 votes; another processor changes at most one on the edge."""
    trained, digits = load_run(old / name), data.load("digits")
    g = ucan.SmoothedClassifier(trained.classifier, trained.law, trained.generator, 10)
    with Store.open(old / f"{name}-run") as store:
        before = [store.outcome(i) for i in range(5)]
    x = torch.stack([digits[i][0] for i in range(5)])
    new = g.certify(x, n0=40, n=400, norm=before[0].norm)
    assert sum(int((a.counts - b.counts).abs().sum()) for a, b in zip(before, new, strict=True)) <= 4


@pytest.mark.parametrize("name", ("isotropic", "certification-wise", "composed", "basis-wise"))
def test_an_old_certificate_is_verified(old: Path, name: str) -> None:
    found = sorted((old / f"{name}-run" / "certificates").glob("*.json"))
    path = next(p for p in found if json.loads(p.read_text())["kind"] == "certificate")
    said = call("verify", str(path), "--model", name, "--input", "digits", "--index", path.stem, "--device", "cpu")
    assert "The claim stands" in said


def test_an_old_registry_keeps_to_its_answers(old: Path) -> None:
    with ucan.Registry("registry.sqlite") as registry, Store.open(old / "registry-run") as store:
        for entry in registry:
            outcome = store.outcome(entry.number - 1)
            assert outcome.prediction == entry.answer
            found = registry.lookup(entry.centre[None])
            assert found is not None and found.answer == entry.answer


def test_old_runs_are_compared_reported_and_audited(old: Path) -> None:
    against_linf = ["two-class-run", "composed-run"]
    for runs in ([f"{name}-run" for name in RUNS if f"{name}-run" not in against_linf], against_linf):
        call("compare", *runs)
        call("report", *runs, "-o", f"{runs[0]}.html")
        assert (old / f"{runs[0]}.html").is_file()
    # The attempts of the old audit are kept: the same command has nothing left to do.
    call("audit", "isotropic-run", "--max", "2", "--steps", "3", "--check", "200", "--device", "cpu", "-q")
    call("export", "isotropic-run", "-o", "rows.csv")
