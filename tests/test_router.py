"""A router on the command line: certified, predicted, verified, attacked, reported and resumed as a single classifier is."""

from __future__ import annotations

import json
import math
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from jsonschema import Draft202012Validator
from torch import nn
from typer.testing import CliRunner

from test_checker import SCHEMA, checker
from ucan.audit import Budget, Ledger, audit_all, summarise
from ucan.cli import app
from ucan.data import load
from ucan.errors import InvalidInput
from ucan.report.rerun import commands
from ucan.runs.audit import AuditJob, audit
from ucan.runs.build import routed_of
from ucan.runs.certify import CertifyJob, certify
from ucan.runs.jobs import Pipeline
from ucan.runs.predict import PredictJob, predict
from ucan.runs.read import Run
from ucan.runs.router import read_router
from ucan.runs.verify import VerifyJob, verify

QUICK = Budget(steps=10, draws=8, restarts=1, check=500)
FILE = """
[selector]
model = "routing:net(classes=2)"
weights = "selector.pt"
scale = 0.3

[[expert]]
model = "routing:net(classes=10)"
weights = "wide.pt"
scale = 0.4

[[expert]]
model = "routing:net(classes=10)"
weights = "narrow.pt"
noise = "pattern-2"
scale = 0.15
"""
NETS = """
from torch import nn
def net(classes: int = 10):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, classes))
"""


def trained(x: torch.Tensor, y: torch.Tensor, classes: int, sigma: float) -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, classes))
    optimiser = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(150):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(x + sigma * torch.randn_like(x)), y).backward()
        optimiser.step()
    return net.eval()


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """Two experts on digits; the selector learned which digits look alike (3, 8, 9): there the narrow noise answers."""
    folder, digits = tmp_path_factory.mktemp("router"), load("digits", "train")
    x, y = torch.stack([digits[i][0] for i in range(len(digits))]), digits.labels
    hard = torch.isin(y, torch.tensor([3, 8, 9])).long()
    nets = {"selector": trained(x, hard, 2, 0.3), "wide": trained(x, y, 10, 0.4), "narrow": trained(x, y, 10, 0.15)}
    for name, net in nets.items():
        torch.save(net.state_dict(), folder / f"{name}.pt")
    (folder / "routing.py").write_text(NETS)
    (folder / "router.toml").write_text(FILE)
    return folder


@pytest.fixture
def here(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(place)
    monkeypatch.syspath_prepend(str(place))
    return place


def job(**changed: object) -> CertifyJob:
    settings: dict = dict(model="router.toml", data="digits", skip=20, n=1000, most=20, certificates=True)
    return CertifyJob(**{**settings, **changed})


def test_a_run_of_a_router(here: Path, tmp_path: Path) -> None:
    done = certify(job(most=5), tmp_path / "run")
    assert done.scope == "pipeline" and done.inputs == 5
    done = certify(job(), tmp_path / "run")  # goes on
    run = Run.open(tmp_path / "run")
    fresh = certify(job(), tmp_path / "again")
    whole = Run.open(tmp_path / "again")
    assert (run.columns["radius"] == whole.columns["radius"]).all() and fresh.accuracy == done.accuracy > 0.5
    outcomes = [run.outcome(int(i)) for i in run.columns["idx"]]
    certificates = [c for c in outcomes if not c.abstained]
    assert {c.expert for c in certificates} == {0, 1}
    for c in certificates:
        assert c.radius == min(c.choice.radius, c.answer.radius) and c.alpha == pytest.approx(0.001)
        assert c.evidence.law.scale == (0.4, 0.15)[c.expert]
    assert np.isnan(run.columns["alm"][~run.columns["abstained"]]).all() and run.curve("alm") is None
    assert (
        run.curve("sigma") is None and not run.shaped
    )  # R of the expert alone says too much: the choice has another Σ
    assert commands(run)[0].startswith("ucan certify --model router.toml --data digits --skip 20 --n 1000")
    assert "--noise" not in commands(run)[0] and "--scale" not in commands(run)[0]
    with pytest.raises(InvalidInput, match="another config"):
        (here / "other.toml").write_text(FILE.replace("scale = 0.4", "scale = 0.5"))
        certify(job(model="other.toml"), tmp_path / "run")
    table = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert table["identity"].startswith("routed:") and "law" not in table


def test_the_commands_speak_of_it(here: Path, tmp_path: Path) -> None:
    def ok(*words: object) -> str:
        result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.stdout

    run = tmp_path / "run"
    common = ("--model", "router.toml", "--data", "digits", "--skip", 40, "--max", 6)
    assert "Scope pipeline" in ok("certify", *common, "--n", 500, "-o", run, "--certificates", "-q")
    assert ok("predict", *common, "--n", 300, "-q").count("\n") == 7
    assert "500 samples" in ok("certify", *common, "--n", 400, "--n0", 100, "--dry-run", "-q").replace("1,000", "500")
    first = next(i for i in (0, 40, 80, 120) if not Run.open(run).outcome(i).abstained)
    words = ("verify", run / "certificates" / f"{first}.json", "--model", "router.toml", "--input", "digits")
    assert "scope pipeline" in ok(*words, "--index", first, "--n", 500, "-q")
    told = json.loads(
        ok("audit", run, "--trust", "--max", 2, "--steps", 3, "--check", 300, "--factors", "0.9", "--json", "-q")
    )
    assert {t["part"] for t in told["by_factor"]} == {"choice", "answer"} and told["covered_breaks"] == 0
    ok("report", run, "-o", tmp_path / "page.html", "-q")
    page = (tmp_path / "page.html").read_text()
    assert "A router chose expert" in page and "NaN" not in page
    ok("export", run, "-o", tmp_path / "all.json")


def test_its_files_pass_the_schema_and_the_checker(here: Path, tmp_path: Path) -> None:
    certify(job(n=300, most=12), tmp_path / "run")
    kinds = set()
    for path in sorted((tmp_path / "run" / "certificates").glob("*.json")):
        record = json.loads(path.read_text())
        Draft202012Validator(SCHEMA).validate(record)
        assert {verdict for verdict, *_ in checker.check(record, path.parent)} == {"ok"}
        kinds.add((record["kind"], record["format"]))
        if record["kind"] == "certificate":
            larger = {**record, "radius": max(record["radius"], record["choice"]["radius"]) * 1.01}
            assert "FAIL" in {verdict for verdict, *_ in checker.check(larger, path.parent)}
            other = {**record, "choice": {**record["choice"], "norm": 1}}
            assert "FAIL" in {verdict for verdict, *_ in checker.check(other, path.parent)}
    assert ("certificate", 3) in kinds


def test_verify_finds_another_expert(here: Path, tmp_path: Path) -> None:
    certify(job(most=8), tmp_path / "run")
    idx = next(i for i in range(0, 160, 20) if not Run.open(tmp_path / "run").outcome(i).abstained)
    path = tmp_path / "run" / "certificates" / f"{idx}.json"
    asked = VerifyJob(certificate=path, model="router.toml", input="digits", index=idx, n=500)
    done = verify(asked)
    assert done.stands and done.verdict.confirms == "pipeline"
    (here / "other.toml").write_text(FILE.replace("scale = 0.4", "scale = 0.35").replace("scale = 0.15", "scale = 0.2"))
    failed = [c.name for c in verify(replace(asked, model="other.toml")).verdict.checks if not c.passed]
    assert "answer law" in failed and not any(name.startswith("choice") for name in failed)


def test_predict_follows_the_choice(here: Path) -> None:
    done = predict(PredictJob(model="router.toml", data="digits", skip=20, most=20, n=500))
    assert done.accuracy is not None and done.accuracy > 0.5 and len(done.answers) == 20


RULES = {
    "level.toml": "threshold = 0.5\n",
    "veto.toml": "threshold = 0.5\nveto = 0.2\n",
    "both.toml": "threshold = 0.55\nveto = 0.2\n",
}


def ruled(here: Path, name: str) -> str:
    """A router's file with a rule in place of its selector."""
    (here / name).write_text(RULES[name] + FILE[FILE.index("[[expert]]") :])
    return name


@pytest.mark.parametrize("name", RULES)
def test_a_threshold_in_the_file(here: Path, tmp_path: Path, name: str) -> None:
    certify(job(model=ruled(here, name), most=12), tmp_path / "run")
    run = Run.open(tmp_path / "run")
    certificates = {i: c for i in run.columns["idx"].tolist() if not (c := run.outcome(i)).abstained}
    assert {c.expert for c in certificates.values()} == {0, 1} and {c.alpha for c in certificates.values()} == {0.001}
    for path in sorted((tmp_path / "run" / "certificates").glob("*.json")):
        record = json.loads(path.read_text())
        Draft202012Validator(SCHEMA).validate(record)
        assert {verdict for verdict, *_ in checker.check(record, path.parent)} == {"ok"}
    idx = next(iter(certificates))
    path = tmp_path / "run" / "certificates" / f"{idx}.json"
    assert verify(VerifyJob(certificate=path, model=name, input="digits", index=idx, n=500)).stands
    done = audit(AuditJob(run=tmp_path / "run", most=4, factors=(0.9,), budget=QUICK, trust=True))
    assert {a.part for a in done.attempts} == {"choice", "answer"} and done.summary.covered_breaks == 0
    assert len(done.attempts) == 8
    assert predict(PredictJob(model=name, data="digits", skip=40, most=8, n=500)).abstained < 8


@pytest.mark.parametrize("name", ["veto.toml", "both.toml"])
def test_the_checker_finds_changed_claims_about_a_threshold(here: Path, tmp_path: Path, name: str) -> None:
    certify(job(model=ruled(here, name), most=16, n=400), tmp_path / "run")
    seen = set()
    for path in sorted((tmp_path / "run" / "certificates").glob("*.json")):
        record = json.loads(path.read_text())
        if record["kind"] != "certificate":
            continue
        choice, region = record["choice"], record["choice"]["region"]
        seen.add((choice["of"], choice["above"]))
        nearer = (choice["p"] + choice["threshold"]) / 2  # a weaker claim, from which the radius does not follow
        for changed in (
            {"p": (choice["p"] + choice["above"]) / 2},
            {"p": nearer},
            {"region": {**region, "radius": 1.01 * region["radius"]}},
            {"radius": 1.01 * choice["radius"]},
            {"top": (choice["top"] + 1) % 10},
            {"above": not choice["above"]},
            {"threshold": choice["threshold"] + (-0.1 if choice["above"] else 0.1)},
        ):
            other = {**record, "choice": {**choice, **changed}}
            found = {verdict for verdict, *_ in checker.check(other, path.parent)}
            expected = "threshold" in changed  # the radius follows from it; that it is not the rule's own, verify finds
            assert ("FAIL" in found) is not expected, changed
    assert {above for _, above in seen} == {True, False}


def test_what_a_router_does_not_take_is_refused(here: Path, tmp_path: Path) -> None:
    for changed, words in (
        ({"scale": 0.5}, "leave out --scale"),
        ({"registry": tmp_path / "memory.sqlite"}, "not supported with a router"),
    ):
        with pytest.raises(InvalidInput, match=words):
            certify(job(**changed), tmp_path / "run")
    for text, words in (
        ("[selector]\nmodel = 'a:b'\n", "a table is missing"),
        ("threshold = 0.6\n" + FILE, "both a selector and a threshold"),
        ("veto = 0.2\n" + FILE, "goes with a threshold, and a selector"),
        ("threshold = 0.6\n[[expert]]\nmodel = 'a:b'\n", "it has one expert"),
        ("veto = 0.2\n" + "[[expert]]\nmodel = 'a:b'\n" * 2, "a veto without a threshold"),
        (FILE.replace("noise", "nose"), "expert 1 has nose"),
        (FILE + "\n[other]\n", "it has other"),
        (FILE.replace('model = "routing:net(classes=2)"', ""), "selector must be a table with a model"),
        ("[[", "cannot be read"),
    ):
        (tmp_path / "r.toml").write_text(text)
        with pytest.raises(InvalidInput, match=words):
            read_router(tmp_path / "r.toml")


def test_too_few_votes_for_the_parts_of_alpha_are_refused(here: Path, tmp_path: Path) -> None:
    """10 votes are enough for one classifier at 0.001; a router has 0.0005 for each claim, or 0.00025 for each bound."""
    for name, few, claims in (("router.toml", 10, 2), (ruled(here, "level.toml"), 11, 4)):
        with pytest.raises(
            InvalidInput, match=f"n = {few} at α = 0.001, of which each of {claims} .* at least n = {few + 1}"
        ):
            certify(job(model=name, n=few), tmp_path / "run")
        certify(job(model=name, n=few + 1, arithmetic="real", most=20), tmp_path / f"enough-{few}")
        assert not Run.open(tmp_path / f"enough-{few}").columns["abstained"].all()


def test_several_runs_in_the_file_are_found_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "project" / "runs" / "a").mkdir(parents=True)
    (tmp_path / "project" / "runs" / "b").mkdir()
    (tmp_path / "runs" / "a").mkdir(parents=True)  # another run of that name, where the command is given
    file = tmp_path / "project" / "r.toml"
    file.write_text("threshold = 0.6\n" + "[[expert]]\nmodel = 'runs/a, runs/b,mirrored'\n" * 2)
    monkeypatch.chdir(tmp_path)
    beside = tmp_path.resolve() / "project" / "runs"
    for part in read_router(file).parts:
        assert part["model"] == f"{beside / 'a'},{beside / 'b'},mirrored"


def planted(run: Run) -> list[tuple[int, object]]:
    """The run's certificates with a choice that claims three times its radius."""
    made = []
    for idx in run.columns["idx"][~run.columns["abstained"]].tolist():
        c = run.outcome(idx)
        region = c.choice.region
        larger = type(region).sharing(region.scale, 3 * region.radius, region.norm, region.shape)
        made.append((idx, replace(c.choice, region=larger)))
    return made


def test_a_planted_fault_in_the_choice_is_found(here: Path, tmp_path: Path) -> None:
    certify(job(most=10, certificates=False), tmp_path / "run")
    run, digits = Run.open(tmp_path / "run"), load("digits", "test")
    g = routed_of(Pipeline(model="router.toml", classes=10), digits[0][0][None], digits.step)
    cases = [(idx, digits[idx][0][None], c) for idx, c in planted(run)]
    out = audit_all(g.selector, cases, Ledger(tmp_path / "audit", {}), factors=(0.999,), budget=QUICK, part="choice")
    summary = summarise(out)
    assert summary.is_bug and summary.broken["live"] > len(cases) / 4
    assert all("choice" in Ledger(tmp_path / "audit", {}).path_of(a.to_dict()).name for a in out)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["router.toml", *RULES])
def test_none_of_500_is_broken(here: Path, tmp_path: Path, name: str) -> None:
    spec = ruled(here, name) if name in RULES else name
    certify(job(model=spec, split="train", skip=2, most=560, certificates=False), tmp_path / "run")
    done = audit(AuditJob(run=tmp_path / "run", most=500, factors=(0.999,), budget=QUICK, trust=True))
    summary = done.summary  # of some no other input lies inside: these are not attacked
    assert summary.attacked + summary.alone == 500 and summary.attacked > 490
    assert summary.covered_breaks == 0 and not math.isnan(summary.allowed)
    assert {a.part for a in done.attempts} == {"choice", "answer"} and len(done.attempts) == 1000
