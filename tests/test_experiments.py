"""The pure parts of the experiments: thresholds, budgets, records and tables."""

import itertools
import json
import math
import os
import shutil
import subprocess
import sys
import tomllib
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ucan
from ucan import data
from ucan.bounds import anytime_lower_bound
from ucan.config import read_config
from ucan.errors import InvalidInput
from ucan.fingerprint import weights_hash
from ucan.leaderboard.checking import check
from ucan.leaderboard.checks import CheckJob, Replayed
from ucan.leaderboard.entry import Entry, problems, read_entries, read_entry
from ucan.leaderboard.kept import Kept, entry_hash, read_kept, write_kept
from ucan.plan import CertifyPlan
from ucan.runs import levels
from ucan.runs.certify import certify
from ucan.runs.prepare import CertifyJob
from ucan.runs.read import Run
from ucan.runs.train import TrainJob, trainer_of
from ucan.stopping import Radius
from ucan.training import load_run

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "experiments"))

import audit_power  # noqa: E402
import audits  # noqa: E402
import entries  # noqa: E402
import gpu_bench  # noqa: E402
import keep  # noqa: E402
import paired  # noqa: E402
import plan  # noqa: E402
import publish  # noqa: E402
import recertify_level  # noqa: E402
import results  # noqa: E402
import results_claims  # noqa: E402
import results_front  # noqa: E402
import results_goals  # noqa: E402
import results_making  # noqa: E402
import results_records  # noqa: E402
import results_systems  # noqa: E402
import results_tables  # noqa: E402
import rows  # noqa: E402
import seeds  # noqa: E402
import shape  # noqa: E402
import shape_attacks  # noqa: E402
import shape_records  # noqa: E402
import shape_tables  # noqa: E402
import shape_tables_attacks  # noqa: E402
import sketch  # noqa: E402
import suite  # noqa: E402
import table1  # noqa: E402

INF = math.inf
SHAPE = (1, 8, 8)


def uneven(seed: int = 0) -> torch.Tensor:
    return 0.3 + torch.rand(SHAPE, generator=torch.Generator().manual_seed(seed))


def per_input() -> ucan.CertificationWise:
    torch.manual_seed(0)
    return ucan.CertificationWise(1, features=2, growth=2)


def nearest_mean(law: ucan.Law, generator: ucan.Generator) -> ucan.SmoothedClassifier:
    """The nearest of ten mean digits, as a linear layer."""
    x, labels = data.load("digits", "train").batch(range(1000))
    means = torch.stack([x[labels == digit].mean(0).flatten() for digit in range(10)])
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).eval()
    with torch.no_grad():
        model[1].weight.copy_(means)
        model[1].bias.copy_(-means.square().sum(1) / 2)
    return ucan.SmoothedClassifier(model, law, generator, 10)


# --- levels of radius and ALM as probabilities ---


@pytest.mark.parametrize(
    ("law", "norm"),
    [(ucan.Gaussian(0.5), q) for q in (1, 2, INF)]
    + [(ucan.Laplace(0.5), 1), (ucan.ExpInf(0.02), INF), (ucan.Uniform(1.0), 1), (ucan.Uniform(1.0), INF)],
    ids=lambda value: str(value),
)
@pytest.mark.parametrize("kind", ["isotropic", "map", "per input", "cosines"])
def test_sizes_are_those_of_a_certificate(law: ucan.Law, norm: float, kind: str) -> None:
    M = {
        "isotropic": ucan.Isotropic(),
        "map": ucan.Fixed(uneven()),
        "per input": per_input(),
        "cosines": ucan.BasisWise.dct(SHAPE, 10, (0.4, 1.0)),
    }[kind]
    g = nearest_mean(law, M)
    certified = 0
    for x in data.load("digits").batch(range(4))[0].split(1):
        (c,) = g.certify(x, n=300, norm=norm)
        if c.abstained:
            continue
        certified += 1
        for by in ("radius", "alm"):
            sizes = levels.sizes_at(levels.Claim(norm, by, (0.0,)), g, M.at(x), x, CertifyPlan())
            size = getattr(c, by)
            assert sizes.of(c.p_lower) == pytest.approx(size, rel=1e-12)
            below, above = (sizes.probability(share * size) for share in (0.99, 1.01))
            assert below < c.p_lower and not above <= c.p_lower  # NaN where no p reaches it
            assert levels.reached(sizes, (0.0, 0.5 * size, 0.999 * size, 1.001 * size), c.p_lower) == 3
            assert levels.reached(sizes, (0.0, 0.5 * size), 0.5) == 0
    assert certified


def test_alm_levels_of_composed_noise_with_a_budget_are_its_certificates() -> None:
    M = ucan.Composed(net=torch.nn.Identity(), budget=torch.full(SHAPE, 2.0)).eval()
    g, x = nearest_mean(ucan.Gaussian(0.3), M), data.load("digits").batch([0])[0]
    (c,) = g.certify(x, n=300, norm=math.inf)
    sizes = levels.sizes_at(levels.Claim(math.inf, "alm", (0.0,)), g, M.at(x), x, CertifyPlan())
    assert sizes.of(c.p_lower) == pytest.approx(c.alm, rel=1e-9)


def test_alm_levels_differ_from_input_to_input_under_per_input_noise() -> None:
    law, M, x = ucan.Gaussian(1.0), per_input(), data.load("digits").batch(range(2))[0]
    g, claim = nearest_mean(law, M), rows.alm(1.0)
    p0 = [levels.sizes_at(claim, g, M.at(one), one, CertifyPlan()).probability(1.0) for one in x.split(1)]
    for one, p in zip(x.split(1), p0, strict=True):
        sigma = M(one)[1].sigma.detach().double()
        assert law.radius(p) * float(sigma.log().mean().exp()) == pytest.approx(1.0, rel=1e-6)
    assert p0[0] != p0[1]


def test_levels_that_no_votes_could_certify_are_decided_from_the_start() -> None:
    law = ucan.Gaussian(1.0)
    p0 = law.probability(np.array([2.0, 0.0, 1.0, 4.0, 1.0]))
    found = levels.within(p0, 1024, 0.001)
    assert found[:3].tolist() == sorted({p0[1], p0[2], p0[0]}) and math.isnan(found[3])
    assert anytime_lower_bound(1024, 1024, 0.001) >= p0[0]


def test_on_a_grid_each_input_pays_for_its_own_distance_from_it() -> None:
    class Sure(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tensor([1.0, 0.0]).expand(len(x), 2)

    g = ucan.SmoothedClassifier(Sure().eval(), ucan.Gaussian(0.5), num_classes=2, step=1 / 16)
    on = torch.full((1, 8, 8), 0.5)
    x = torch.stack([on, on + 0.4 / 16])
    dataset = data.InMemory(x, torch.tensor([0, 0]))
    asked, plan = tuple(k / 100 for k in range(130)), CertifyPlan(n0=10, n=500, bound="anytime")
    certified = [one.radius for one in g.certify(x, n0=10, n=500, bound="anytime")]
    assert certified[1] < certified[0] - 0.3
    for order in ([0, 1], [1, 0]):
        found = levels.Levels((levels.Claim(2.0, "radius", asked),), 2)
        assert [*levels.decide(g, dataset, found, order, plan)]
        assert found.reached["l2 radius"] == [sum(radius >= level for level in asked) for radius in certified]


def test_decisions_are_those_of_certify(tmp_path: Path) -> None:
    """Same looks, same noise: the same bounds and the same number of votes as ``certify_each`` gives."""
    g = nearest_mean(ucan.Gaussian(0.4), ucan.Fixed(uneven()))
    dataset, asked = data.load("digits"), (0.0, 0.1, 0.2, 0.3)
    row = rows.Row("toy", "", "digits-isotropic", (), (rows.radius(*asked),), 60, 2048)
    record = suite.Record(tmp_path / "r.json", {}, levels.Levels(row.claims, len(dataset)))
    suite.certify(g, dataset, record, row, 60, 2048, INF)
    chosen = suite.in_order(len(dataset))[:60]
    plan = CertifyPlan(n=2048, stop=levels.Decide(asked))
    outcomes = dict(g.certify_each(g.check_inputs(dataset.batch(chosen)[0]), plan))
    votes = 0
    for j, i in enumerate(chosen):
        right = int(g.engine.setup(dataset[i][0][None], plan).classify_samples(
            g.M, dataset[i][0][None], 100, 0, "select").counts.argmax()) == dataset[i][1]  # fmt: skip
        c = outcomes[j]
        wanted = 0 if not right or c.abstained else sum(c.radius >= level for level in asked)
        assert record.levels.reached["l2 radius"][i] == wanted
        votes += 100 + (c.evidence.n if right else 0)
    assert record.levels.samples == votes
    assert record.seen == 60


@pytest.mark.parametrize("generator", [ucan.Fixed(uneven()), per_input()], ids=["fixed", "per input"])
def test_a_later_pass_goes_on(tmp_path: Path, generator: ucan.Generator) -> None:
    g, dataset = nearest_mean(ucan.Gaussian(0.4), generator), data.load("digits")
    row = rows.Row("toy", "", "digits-isotropic", (), (rows.radius(0.1, 0.2), rows.alm(0.2, 0.4, 0.6)), 40, 4096)
    about = dict.fromkeys(("weights", "preset", "changes", "precision", "backend", "seed", "train_seconds"), 0)
    path, total = tmp_path / "toy.json", len(dataset)

    def passed(inputs: int, cap: int, where: Path = path) -> suite.Record:
        record = suite.Record.of(where, about, row.claims, total)
        suite.certify(g, dataset, record, row, inputs, cap, INF)
        return suite.Record.of(where, about, row.claims, total)

    first = passed(20, 200)
    assert first.seen == 20 and first.levels.open and all(n <= 200 for _, n in first.levels.open.values())
    second = passed(40, 200)
    assert second.seen == 40 and set(first.levels.open) <= set(second.levels.open)
    last, alone = passed(40, 4096), passed(40, 4096, tmp_path / "alone.json")
    assert not last.levels.open or all(n < 4096 for _, n in last.levels.open.values())
    for key in last.levels.reached:
        ours, once = (r.levels.reached[key] for r in (last, alone))
        assert [c is None for c in ours] == [c is None for c in once]
        # The same votes; only the moments of looking differ, which may leave one more or one fewer to be given up.
        assert sum(a != b for a, b in zip(ours, once, strict=True)) <= 2
    saved = json.loads(path.read_text())
    assert saved["complete"] == (not last.levels.open) and saved["inputs"] == 40
    with pytest.raises(InvalidInput, match="another classifier"):
        suite.Record.of(path, {**about, "weights": 1}, row.claims, total)
    with pytest.raises(InvalidInput, match="other levels"):
        suite.Record.of(path, about, (rows.radius(0.1),), total)


def test_a_pass_that_is_out_of_time_keeps_every_vote_and_hides_no_open_input(tmp_path: Path) -> None:
    g, dataset = nearest_mean(ucan.Gaussian(0.4), ucan.Isotropic()), data.load("digits")
    row = rows.Row("toy", "", "digits-isotropic", (), (rows.radius(0.1, 0.2, 0.4),), 100, 8192)
    record = suite.Record(tmp_path / "r.json", {}, levels.Levels(row.claims, len(dataset)))
    suite.certify(g, dataset, record, row, 100, 8192, deadline=-1.0)
    assert 1 <= record.seen < 100
    assert record.levels.open  # those on their way were not dropped: that would leave only the easy ones
    saved = json.loads(record.path.read_text())
    assert "." not in saved["claims"]["l2 radius"]["reached"]


def test_a_record_has_no_gaps_at_any_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever ends the process, what was last saved leaves out no input that took long."""
    monkeypatch.setattr(suite, "SAVE_EVERY", -1.0)
    g, dataset = nearest_mean(ucan.Gaussian(0.4), ucan.Isotropic()), data.load("digits")
    row = rows.Row("toy", "", "digits-isotropic", (), (rows.radius(0.1, 0.2, 0.4),), 60, 4096)
    record = suite.Record(tmp_path / "r.json", {"n": 4096}, levels.Levels(row.claims, len(dataset)))
    states = []
    save = suite.Record.save

    def saving(self: suite.Record, row: rows.Row) -> None:
        save(self, row)
        states.append(json.loads(self.path.read_text()))

    monkeypatch.setattr(suite.Record, "save", saving)
    suite.certify(g, dataset, record, row, 60, 4096, INF)
    assert len(states) > 10 and states[-1]["inputs"] == 60
    assert any(state["open"] for state in states)
    for state in states:
        assert "." not in state["claims"]["l2 radius"]["reached"]
        assert suite.undecided(state)["inputs"] == len(state["open"])


def test_what_was_certified_stays_so() -> None:
    known = levels.Levels((rows.radius(0.1, 0.2),), 3)
    known.put(1, [2], (90, 100))
    known.put(1, [1], None)
    assert known.reached["l2 radius"] == [None, 2, None] and not known.open


def test_every_beginning_is_an_even_part() -> None:
    order = suite.in_order(1000)
    assert sorted(order) == list(range(1000))
    assert order[:50] == list(range(0, 1000, 20)) and sorted(order[:100]) == list(range(0, 1000, 10))


def test_a_closed_record_keeps_how_many_are_undecided(tmp_path: Path) -> None:
    path = tmp_path / "suite" / "cifar10-isotropic-0.5.json"
    path.parent.mkdir()
    made = record_of("cifar10-isotropic-0.5", open={str(20 * i): [10, 1920 - 128 * (i % 2)] for i in range(300)})
    made["accuracy"]["l2 radius"]["1"] = "0.0"  # type: ignore[index]
    path.write_text(json.dumps(made))
    before = results_records.Recorded(tmp_path).rows["cifar10-isotropic-0.5"]
    suite.close(path)
    suite.close(path)
    assert (
        results_records.Recorded(tmp_path).rows["cifar10-isotropic-0.5"] == before
        and json.loads(path.read_text())["open"] == {}
    )
    assert (before.open, before.n) == (300, 1920)
    assert before.at("l2 radius", 1.0) is None and before.at("l2 radius", 0.5) == "90.5"  # undecided is not refuted
    made |= {"open": {}, "undecided": {"inputs": 125, "votes": 1920}}
    path.write_text(json.dumps(made))
    assert (
        results_records.Recorded(tmp_path).rows["cifar10-isotropic-0.5"].at("l2 radius", 1.0) == "0.0"
    )  # nearly all is decided


def test_shares_round_down_and_count_what_was_seen() -> None:
    assert suite.shares("01233..0", [0.0, 0.5, 1.0]) == {"0": "80.0", "0.5": "60.0", "1": "40.0"}  # up to the gap
    assert suite.shares("110", [0.0]) == {"0": "66.6"}
    assert suite.shares("..", [0.0]) == {"0": "–"}
    known = [0, 1, 2, 3, 14, None, None, None, None, None]
    assert suite.unpacked(suite.packed(known), 10) == known


def test_the_best_option_has_the_largest_mean() -> None:
    options = [{"changes": ["a"], "accuracy": {"0": "90.0", "0.5": "50.0", "1": "10.0"}},
               {"changes": ["b"], "accuracy": {"0": "70.0", "0.5": "40.0", "1": "30.0"}},
               {"changes": ["c"], "accuracy": {"0": "70.0", "0.5": "30.0", "1": "40.0"}}]  # fmt: skip
    assert suite.best_option(options) == ["b"]


# --- the list, and what it costs ---


def test_rows_are_sound_settings() -> None:
    names = [row.name for row in rows.ROWS]
    assert len(set(names)) == len(names)
    for row in rows.ROWS:
        settings = suite.settings_of(row.preset, suite.changes_of(row, Path("nowhere")))
        shape = (1, 28, 28) if settings.data == "mnist" else (3, 32, 32)
        law = settings.build_law(math.prod(shape))
        generator = settings.build_generator(shape, None) if settings.generator["kind"] != "basis-wise" else None
        for claim in row.claims:
            assert claim.levels[0] >= 0 and list(claim.levels) == sorted(set(claim.levels))
            assert len(claim.levels) < len(suite.DIGITS)
            law.radius(0.9, claim.norm, math.prod(shape))
        assert len({claim.key for claim in row.claims}) == len(row.claims)
        assert generator is None or generator.scope == ("frozen" if "certification" in row.preset else "pipeline")
    for choice in rows.CHOICES:
        for option in choice.options:
            suite.settings_of(choice.preset, [*choice.changes, *option, f"held_out={choice.held_out}"])
    assert {row.choice for row in rows.ROWS} - {None} <= {choice.name for choice in rows.CHOICES}


def test_every_shard_has_its_part_and_shared_runs_stay_together(tmp_path: Path) -> None:
    parts = [suite.chosen_rows(rows.ROWS, [], f"{i}/3", tmp_path) for i in (1, 2, 3)]
    assert sorted(row.name for part in parts for row in part) == sorted(row.name for row in rows.ROWS)
    runs = [{rows.run_name(row.preset, row.changes) for row in part if row.choice is None} for part in parts]
    assert not runs[0] & runs[1] and not runs[1] & runs[2] and not runs[0] & runs[2]
    assert [row.name for row in suite.chosen_rows(rows.ROWS, ["*-bands"], "1/1", tmp_path)] == ["cifar10-bands"]


def lanes_jobs(tmp_path: Path) -> list[list[tuple[str, list[rows.Row]]]]:
    """The two lists of lanes.sh: what each job does, and the rows it does it to."""
    lists = (ROOT / "experiments" / "lanes.sh").read_text().split("<<'JOBS'\n")[1:]
    found: list[list[tuple[str, list[rows.Row]]]] = []
    for text in lists:
        found.append([])
        for line in text.partition("\nJOBS")[0].splitlines():
            kind, *names = line.split()
            if kind == "network":  # trains for a row of the second list
                continue
            found[-1].append((kind, suite.chosen_rows(rows.ROWS, names, "1/1", tmp_path)))
    return found


def test_the_lanes_have_every_row_once_and_no_training_run_twice(tmp_path: Path) -> None:
    for jobs in lanes_jobs(tmp_path):
        writing = [each for _, each in jobs]
        names = [row.name for each in writing for row in each]
        assert len(names) == len(set(names))
        runs = [{folder for row in each for folder in suite.runs_of(row, tmp_path, tmp_path, [])} for each in writing]
        assert sum(map(len, runs)) == len(set().union(*runs))  # two processes would write one folder
    first, second = lanes_jobs(tmp_path)
    ensembles = {row.name for row in rows.ROWS if row.members > 1}
    assert {row.name for _, each in first for row in each} == {row.name for row in rows.ROWS} - ensembles
    further = {row.name for _, each in second for row in each}
    assert further == {row.name for row in rows.ROWS if row.inputs > 500}
    tables = [
        {row.name for kind, each in jobs for row in each if kind in ("rows", "deeper")} for jobs in (first, second)
    ]
    assert tables[0] | ensembles == tables[1]


def test_the_lanes_run_their_jobs_in_order_and_go_on_after_one_that_fails(tmp_path: Path) -> None:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/bash\necho "$@" >> {tmp_path}/calls\n[[ "$*" != *cifar10-alm ]]\n')
    python.chmod(0o755)
    words = ["bash", str(ROOT / "experiments" / "lanes.sh"), "100", str(tmp_path / "out"), str(tmp_path / "runs"), "1"]
    env = {**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}"}
    subprocess.run(words, env=env, check=True, timeout=60, cwd=tmp_path)
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls[0].endswith("--choose")
    assert calls[1].endswith("--only cifar10-certification") and "suite.py" in calls[1]
    assert calls[2].endswith("--only cifar10-certification") and "audits.py" in calls[2]
    assert not any("audits.py" in call and "cifar10-alm" in call for call in calls)  # nothing to attack
    assert any(call.endswith("--network 3 --only cifar10-ensemble-*") for call in calls)
    assert any(call.endswith("10000:100000 --only mnist-certification mnist-basis") for call in calls)
    assert calls[-1].endswith("--passes 1000:10000 --only mnist-versus-*")
    assert (tmp_path / "out" / "logs" / "wider_mnist-versus-_.log").exists()


def test_more_levels_inputs_and_votes_cost_more() -> None:
    few, many = np.array([0.5, 0.9]), np.array([0.5, 0.7, 0.9, 0.95])
    assert 0 == rows.expected_samples(np.array([]), 1000) < rows.expected_samples(few, 1000)
    assert rows.expected_samples(few, 10_000) < rows.expected_samples(many, 10_000) < 10_000
    assert rows.expected_samples(many, 10_000) < rows.expected_samples(many, 100_000)
    assert rows.train_seconds("resnet18", "isotropic", 40, 2) > rows.train_seconds("resnet18", "isotropic", 40, 1)
    row = replace(rows.ROWS[0], preset="digits-isotropic", claims=(rows.radius(0.5),))
    settings = suite.settings_of("digits-isotropic", [])
    fresh, again, open_ones = (
        suite.estimate(row, settings, 1, 100, 1000),
        suite.estimate(row, settings, 0, 100, 1000),
        suite.estimate(row, settings, 0, 100, 1000, missing=1e6),
    )
    assert again < open_ones and again < fresh


def test_the_estimate_is_about_what_sequential_decisions_take(tmp_path: Path) -> None:
    """Votes drawn with known p, from the mixture itself, against the formula."""
    rng = np.random.default_rng(0)
    p0, cap, used = np.array([0.5, 0.84, 0.977]), 4096, []
    shares, a, b = np.array(rows.MIXTURE).T
    for kind in rng.choice(3, size=150, p=shares):
        hits = np.cumsum(rng.random(cap) < rng.beta(a[kind], b[kind]))
        rule, radius = levels.Decide((0, 1, 2)), Radius(of=float, probability=lambda k: p0[k])
        used.append(
            next((n for n in range(128, cap, 128) if rule.settled(int(hits[n - 1]), n, cap, 0.001, radius)), cap)
        )
    assert 0.6 < np.mean(used) / rows.expected_samples(p0, cap) < 1.6


# --- the page ---


def record_of(name: str, **more: object) -> dict[str, object]:
    claims = [claim for row in rows.ROWS if row.name == name for claim in row.claims]
    shares = {claim.key: {f"{r:.6g}": "90.5" for r in claim.levels} for claim in claims}
    return {
        "scope": "frozen",
        "cap": 1.0,
        "inputs": 1000,
        "of": 10_000,
        "n": 100_000,
        "accuracy": shares,
        "open": {},
        **more,
    }


def kept_row(folder: Path, name: str, levels: list[float], counts: list[int], **more: Any) -> None:
    """Keep a made-up row of CIFAR-10: how many of its inputs reach each ℓ2 radius."""
    inputs = more.get("inputs", 10_000)
    reached = "".join(str(sum(i < count for count in counts)) for i in range(inputs))
    about = {"row": name, "preset": "cifar10-x", "changes": [], "law": "Gaussian", "alpha": 0.001, "scope": "pipeline"}
    made = {
        "ucan": "0",
        "hardware": "H",
        "weights": name,
        "train_seconds": 60.0,
        "certify_seconds": 60.0,
        "date": "2026-01-31",
    }
    claims = {"l2 radius": {"levels": levels, "reached": reached}}
    found = {"inputs": inputs, "members": 1, "claims": claims, **about, **made, **more}
    (folder / "suite").mkdir(exist_ok=True)
    (folder / "suite" / f"{name}.json").write_text(json.dumps(record_of(name, **found)))


def attacked(folder: Path, name: str, certificates: int, n: int = 100_000) -> None:
    """Keep an audit of a row in which nothing broke."""
    (folder / "audits").mkdir(exist_ok=True)
    summary = {"attacked": certificates, "covered_breaks": 0, "bug": False}
    (folder / "audits" / f"{name}.json").write_text(json.dumps({"n": n, "norm": "2", "summary": summary}))


def test_the_pages_are_what_the_records_say() -> None:
    made = results.pages()
    behind = ("results-runs", "results-tables", "results-audits", "universality", "goals", "errata", "leaderboard")
    assert set(made) == {f"{name}.md" for name in ("results", *behind)}
    assert len(made["results.md"].split()) < 1_400  # read in five minutes
    for name, text in made.items():
        assert (ROOT / "docs" / name).read_text(encoding="utf-8") == text, "run experiments/results.py"
    for name, svg in results.figures().items():
        shown = (ROOT / "docs" / "images" / name).read_text(encoding="utf-8")
        assert shown == svg, "run experiments/results.py"
        assert f"images/{name}" in made["results.md"]


def test_the_leaderboard_is_what_the_records_say() -> None:
    board = read_entries(ROOT / "leaderboard")
    ours = {path.name: one for path, one in board.items() if path.parts[0] == "ours"}
    assert ours == entries.our_entries(), "run experiments/entries.py"
    assert (ROOT / "leaderboard" / "README.md").read_text(encoding="utf-8") == entries.board_page(), "run entries.py"
    for path, one in board.items():
        assert not problems(one), path
        assert (one.origin == "imported") == (path.parts[0] == "imported") and (one.origin != "imported" or one.source)
    for one in ours.values():
        done = check(CheckJob(entry=ROOT / "leaderboard" / "ours" / f"{one.name}.json", results=ROOT / str(one.source)))
        assert done.stands and {c.name: c.outcome for c in done.checks}["results"] == "ok"


def test_a_kept_row_says_how_many_of_its_certificates_were_drawn_again(tmp_path: Path) -> None:
    """Not those that could only be tested by fresh votes."""
    about = {"format": 1, "of": "0" * 64, "stands": True, "date": "2026-01-31"}
    replayed = Replayed(of=9_000, certificates=200, redrawn=60, moved=2, failed=0)
    write_kept(Kept(**about, replayed=replayed), tmp_path / "run.check.json")
    assert keep.replay_of(tmp_path / "run.check.json") == {"certificates": 60, "failed": 0}


def test_a_record_names_its_hardware_on_a_gpu_and_on_a_cpu() -> None:
    assert [keep.hardware(device) for device in ("cuda: NVIDIA H200", "cpu", None)] == ["NVIDIA H200", "CPU", ""]


def test_a_run_is_kept_as_the_row_that_it_certified(tmp_path: Path) -> None:
    """Not as one network what two made, nor a part of the data or other data as all of them."""
    for seed in (0, 1):
        job = TrainJob(settings="digits-isotropic", changes=["epochs=1", f"seed={seed}"], device="cpu")
        trainer_of(job, tmp_path / f"net{seed}").run()
    one, two = str(tmp_path / "net0"), f"{tmp_path / 'net0'},{tmp_path / 'net1'}"
    certify(CertifyJob(model=one, data="digits", most=20, n=100), tmp_path / "one")
    certify(CertifyJob(model=two, data="digits", most=20, n=100), tmp_path / "two")
    certify(CertifyJob(model=one, data="digits", split="train", most=20, n=100), tmp_path / "train")
    row = rows.Row("x", "", "digits-isotropic", ("epochs=1",), (rows.radius(0.25),), inputs=20)
    kept = keep.record_of(Run.open(tmp_path / "one"), row, tmp_path / "net0", 1.0)
    assert kept["members"] == 1 and kept["inputs"] == 20
    for name, wrong, said in (("two", row, "net1; the row's networks: 1, "), ("train", row, "of digits .train"),
                              ("one", replace(row, inputs=30), "20 inputs of"), ("one", replace(row, members=4), "networks: 4"),
                              ("one", replace(row, mirrored=True), "mirrored: True")):  # fmt: skip
        with pytest.raises(InvalidInput, match=said):
            keep.record_of(Run.open(tmp_path / name), wrong, tmp_path / "net0", 1.0)


@pytest.mark.parametrize(("name", "preset"), results_making.PRESETS.items())
def test_the_presets_of_the_leading_rows_have_their_settings(name: str, preset: str) -> None:
    """But for the seed."""
    (row,) = (row for row in rows.ROWS if row.name == name)
    made = suite.settings_of(row.preset, list(row.changes))
    assert suite.settings_of(preset, [f"seed={made.seed}"]) == made


@pytest.mark.parametrize(
    ("name", "scale"),
    [
        ("cifar10-splitting-mirrored-1.3", "1.3, plain, mirrored"),
        ("cifar10-splitting-2", "2"),
        ("cifar10-splitting-plain-2", "2, plain"),
        ("cifar10-splitting-mirrored-2.2", "2.2, plain, mirrored"),
        ("cifar10-splitting-6", "6"),
    ],
)
def test_the_page_on_splitting_noise_has_the_recorded_shares(name: str, scale: str) -> None:
    record = json.loads((ROOT / "experiments" / "recorded" / "counted" / f"{name}.json").read_text())
    (claim,) = record["claims"].values()
    assert suite.shares(claim["reached"], claim["levels"]) == record["accuracy"]["l1 radius"]
    told = " | ".join(record["accuracy"]["l1 radius"].values())
    assert f"| ours, λ = {scale} | {told} |" in (ROOT / "docs" / "generators.md").read_text(encoding="utf-8")


def test_counts_of_a_record_are_those_of_its_shares() -> None:
    for one in entries.recorded_entries().values():
        record = json.loads((ROOT / str(one.source)).read_text())
        key = {1.0: "l1", 2.0: "l2", INF: "linf"}[one.claim.norm or 0]
        if f"{key} radius" not in record["accuracy"]:
            assert key == "linf"  # counted in the claim against ℓ2: below
            continue
        assert {k: one.share(float(k)) for k in one.certified} == record["accuracy"][f"{key} radius"]


def test_the_front_page_says_where_we_lead_and_where_we_do_not(tmp_path: Path) -> None:
    """Two made-up rows: one ahead of every released file at 0.25, one behind at 1.0; several networks are not one.

    One that leads at 0.5, of which too few certificates were attacked, does not count.
    """
    kept_row(tmp_path, "ahead", [0.0, 0.25], [10_000, 9_000])
    kept_row(tmp_path, "behind", [0.0, 1.0], [10_000, 100])
    kept_row(tmp_path, "several", [0.0, 1.0], [10_000, 9_999], members=4)
    kept_row(tmp_path, "part", [0.0, 1.0], [500, 500], inputs=500)
    kept_row(tmp_path, "same", [0.0, 2.25], [10_000, 1], weights="behind")  # the same network, asked for another radius
    kept_row(tmp_path, "trusted", [0.0, 0.5], [10_000, 9_999])
    for name, certificates in (("ahead", 100), ("behind", 100), ("same", 120), ("trusted", 99), ("several", 12)):
        attacked(tmp_path, name, certificates, n=10_000 if name == "behind" else 100_000)
    replays = {"ahead": {"certificates": 60, "failed": 0}, "behind": {"certificates": 0, "failed": 0}}
    (tmp_path / "replays.json").write_text(json.dumps(replays))
    first, _ = results_front.standing(tmp_path)
    assert "2 networks for 10 radii: we lead at 0, 0.25; we are behind at 1, 2.25; we have no row" in first
    assert "we have no row on all 10,000 pictures for 0.5, 0.75, 1.25" in first
    lines = {line.split(" | ")[0]: line for line in results_front.holds(tmp_path)}
    assert lines["| 0.25"] == "| 0.25 | **90.0** | 73.0 | +16.97 | not measured yet | 99.0 | – |"
    assert lines["| 1"].startswith("| 1 | **1.0** | 38.8 | −37.87 |")  # of one network: four are not shown here
    assert lines["| 0.5"].startswith("| 0.5 | not measured yet | 59.2 | – |")
    runs = {line.split(" | ")[0]: line for line in results_front.behind_them(tmp_path)}
    assert (
        runs["| ahead"]
        == "| ahead | 1 | 0: 100.0, 0.25: 90.0 | `pipeline` | real | 10,000, 100,000 | 0 | 100 / 0 | 60 / 0 | 2026-01-31, H |"
    )
    assert runs["| several"].startswith("| several | 4 | 1: 99.9 |")
    assert len(runs) == 2 + 4  # that of a part of the test set is not there
    assert " | 100 / 0, n = 10,000 | – | " in runs["| behind"]
    (said,) = results_front.terms(tmp_path)
    assert (
        "one network, 10,000 test pictures, n ≤ 100,000 noisy copies of each, scope `pipeline`" in said
        and "grey" not in said
    )
    assert "; 100 to 120 certificates of each run, of any radius, attacked, 0 broken;" in said and said.endswith(
        "; made 2026-01-31 on H."
    )
    assert results_front.chance(tmp_path) == [results_records.MISSING]
    at = {place.level: place for place in results_front.places(tmp_path, "cifar10")}

    def pairs(level: float, ours: int, theirs: int, weights: str) -> dict[str, Any]:
        about = {"data": "cifar10", "level": level, "weights": weights, "theirs": at[level].others.source}  # type: ignore[union-attr]
        return {**about, "only_ours": ours, "only_theirs": theirs}

    found = [pairs(0.25, 1_697, 0, "ahead"), pairs(1.0, 486, 486, "behind"), pairs(0.0, 1, 1, "of an earlier row")]
    (tmp_path / "paired.json").write_text(json.dumps(found))
    (said,) = results_front.chance(tmp_path)
    assert "is 0.32 to 0.38 points" in said and said.count("how many): CIFAR-10 at 1 (0.00).") == 1
    assert said.endswith("CIFAR-10 at 1 (486 each).")
    first, _ = results_front.standing(tmp_path)
    assert "we lead at 0, 0.25; we are level within chance at 1; we are behind at 2.25; we have no row" in first


def test_one_system_is_measured_by_its_largest_distance_from_the_best_rows(tmp_path: Path) -> None:
    """Of two networks asked for all radii the one with the smaller largest distance comes first; others are left out."""
    asked = [0.0, 0.25, 0.5, 0.75, 1.0]
    kept_row(tmp_path, "even", asked, [6_100, 5_500, 5_000, 4_500, 4_000])
    kept_row(tmp_path, "steep", asked, [8_000, 6_000, 4_000, 2_000, 1_000])
    kept_row(tmp_path, "small", [0.0, 0.25], [9_000, 7_000])
    for name in ("even", "steep", "small"):
        attacked(tmp_path, name, 100)
    _, _, best, *systems = results_systems.one_system(tmp_path)
    assert best == "| CIFAR-10 | the best row at each radius | 2 | 90.0 | 70.0 | 50.0 | 45.0 | 40.0 |  |  |"
    assert systems == [
        "| CIFAR-10 | `even` | 1 | 61.0 | 55.0 | 50.0 | 45.0 | 40.0 | 29.0 | 10,000, 100,000 |",
        "| CIFAR-10 | `steep` | 1 | 80.0 | 60.0 | 40.0 | 20.0 | 10.0 | 30.0 | 10,000, 100,000 |",
    ]
    (said,) = results_systems.nearest(tmp_path)
    assert said == (
        "One network for all radii from 0 to 1 is behind these rows, by up to 29.0 points on CIFAR-10 (`even`)."
    )


def test_released_files_are_compared_picture_by_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The suite's order is not that of the pictures."""
    lines = ["idx\tlabel\tpredict\tradius\tcorrect\ttime"]
    lines += [f"{i}\t0\t0\t{1.0 if i < 6_000 else 0.9}\t{int(i != 7)}\t0:00" for i in range(10_000)]
    monkeypatch.setattr(paired, "git", lambda *_: "\n".join(lines).encode())
    ours = "".join("1" if 5_000 <= i < 7_000 else "0" for i in suite.in_order(10_000))
    (tmp_path / "suite").mkdir()
    record = {"claims": {"l2 radius": {"levels": [1.0], "reached": ours}}}
    (tmp_path / "suite" / "x.json").write_text(json.dumps(record))
    about = {"format": 1, "name": "x", "certified": {"1": 2_000}}
    place = results_front.Place(
        "cifar10",
        1.0,
        Entry(**about, source="experiments/recorded/suite/x.json"),
        None,
        Entry(source="github.com/a/b, c, d"),
    )
    found = paired.compared(tmp_path, place, tmp_path)
    assert found is not None and (found["only_ours"], found["only_theirs"]) == (1_000, 4_999)
    monkeypatch.setattr(paired, "git", lambda *_: b"radius\tbest_cert_accuracy\n0.0\t0.87\n")
    assert paired.compared(tmp_path, place, tmp_path) is None


def test_boxes_are_certified_by_the_next_larger_ball(tmp_path: Path) -> None:
    """2/255 in every pixel is an ℓ2 norm of 0.435: as many inputs as at 0.5, and none of those that only reach 0.25."""
    kept_row(tmp_path, "cifar10-x", [0.0, 0.25, 0.5], [10_000, 6_000, 4_000])
    attacked(tmp_path, "cifar10-x", entries.LEAST_ATTACKED)
    found = entries.shown_entries(tmp_path)
    assert found["cifar10-x-linf.json"].certified == {"0.00784314": 4_000}
    assert found["cifar10-x-linf.json"].claim.norm == INF and found["cifar10-x.json"].count(0.25) == 6_000


def test_without_records_nothing_is_invented(tmp_path: Path) -> None:
    recorded = results_records.Recorded(tmp_path)
    for line in results_goals.targets(recorded, None)[2:]:
        assert results_records.MISSING in line and "reached" not in line
    text = "".join(results.pages(tmp_path).values())
    assert "<!--" not in text and text.count(results_records.MISSING) > 20 and results.figures(tmp_path)


def test_a_recorded_row_is_shown_with_its_scope_part_and_verdict(tmp_path: Path) -> None:
    (tmp_path / "suite").mkdir()
    (tmp_path / "audits").mkdir()
    path = tmp_path / "suite" / "cifar10-certification.json"
    path.write_text(json.dumps(record_of("cifar10-certification", open={"20": [10, 9984], "3": [5, 128]})))
    summary = {"scope": "frozen", "attacked": 25, "broken": {"live": 25, "frozen": 0}, "bug": False}
    summary["covered_breaks"] = 0
    audit = {"complete": True, "changes": [], "norm": "2", "summary": summary}
    (tmp_path / "audits" / "cifar10-certification-wise.json").write_text(json.dumps(audit))
    line = results_goals.targets(results_records.Recorded(tmp_path), None)[2]
    assert "90.5 / 90.5 / 90.5 / 90.5 / 90.5" in line and "`frozen`" in line
    assert "1,000 inputs, n ≤ 9,984, 1 undecided" in line and "reached, on a part of the test set" in line
    assert "25 of 25 broken live, 0 with frozen noise |" in line
    assert "of another training (cifar10-certification-wise): 25" in line
    (tmp_path / "audits" / "digits-certification-uniform-l1.json").write_text(json.dumps(audit))
    said = results_records.Recorded(tmp_path).audit(["cifar10-certification-uniform"])
    assert said.startswith("of a small network on digits, not of this one (digits-certification-uniform-l1): 25 of 25")
    assert "`pipeline`" not in line  # a frozen number is never shown as more
    claims = {line.split(" | ")[0]: line for line in results_claims.claims(results_records.Recorded(tmp_path))}
    assert (
        " | certification-wise, `frozen` | 25 of 25¹ | "
        in claims["| CIFAR-10, ℓ2 radius 0 / 0.5 / 1.0 / 1.5 / 2.25, γ = λ = 1"]
    )
    assert " | 25 of 25¹³ | " in claims["| CIFAR-10, ℓ∞ 2/255 / 8/255, Gaussian"]  # attacked in ℓ2
    other = {**audit, "norm": "1", "summary": {**summary, "attacked": 12, "broken": {"live": 11, "frozen": 0}}}
    (tmp_path / "audits" / "cifar10-universal-certification-gaussian.json").write_text(json.dumps(other))
    recorded = results_records.Recorded(tmp_path)
    claims = {line.split(" | ")[0]: line for line in results_claims.claims(recorded)}
    assert " | 11 of 12¹ | " in claims["| CIFAR-10, ℓ1 2.0, Gaussian"]
    assert recorded.audit(["cifar10-certification"], "linf radius").endswith("attacked in another norm")
    table = next(t for t in tomllib.loads((ROOT / "experiments" / "paper.toml").read_text())["table"]
                 if t["id"] == "cifar10-linf")  # fmt: skip
    ours = results_tables.beside(table, results_records.Recorded(tmp_path))[-1]
    assert ours.split("|")[3:11] == [" 90.5 ", " – ", " – ", " 90.5 ", " – ", " – ", " – ", " – "]


def test_verdicts() -> None:
    target = results_goals.Target("", "", (80, 70), "l2 radius", (0.5, 1.0), ())
    whole = results_records.Measured("r", "pipeline", 1.0, 10_000, 100_000, {"l2 radius": {0.5: "80.0", 1.0: "69.9"}})

    def said(ours: list[str | None], row: results_records.Measured, **more: bool) -> str:
        return results_goals.verdict(replace(target, **more), ours, [row])

    assert said(["80.0", "70.1"], whole) == "reached"
    assert said(["80.0", "70.1"], whole, above=True) == "below at 0.5"
    part = replace(whole, inputs=2_000, shares={"l2 radius": {0.5: "90.0", 1.0: "50.0"}})
    assert said(["90.0", "50.0"], part) == "below at 1, on a part of the test set"
    assert said(["80.0", None], whole) == "not measured yet at 1"
    near = results_records.Measured("r", "pipeline", 1.0, 1_000, 10_000, {"l2 radius": {0.5: "81.0", 1.0: "76.0"}})
    assert said(["81.0", "76.0"], near) == "reached, on a part of the test set; too few inputs to be sure at 0.5"
    assert (
        results_goals.best_of([whole, replace(whole, shares={"l2 radius": {1.0: "9.0"}})], "l2 radius", 1.0) == "69.9"
    )


def test_what_was_tried_has_the_runs_that_were_left_and_what_more_networks_add(tmp_path: Path) -> None:
    (tmp_path / "suite" / "earlier").mkdir(parents=True)
    assert results_goals.tried(results_records.Recorded(tmp_path)) == ["not measured yet"]

    def record(name: str, reached: str, shares: list[str]) -> str:
        claims = {"l2 radius": {"levels": [0.0, 0.75], "reached": reached}}
        accuracy = {"l2 radius": dict(zip(("0", "0.75"), shares, strict=True))}
        about = {"row": name, "weights": "w", "inputs": len(reached), "undecided": {"inputs": 0, "votes": 9984}}
        return json.dumps(record_of(name, accuracy=accuracy, claims=claims, **about))

    for file, name, reached, shares in (
        ("cifar10-consistency-0.32", "cifar10-consistency-0.32", "21120000", ["50.0", "25.0"]),
        ("cifar10-ensemble-0.32", "cifar10-ensemble-0.32", "22210", ["80.0", "60.0"]),
        ("earlier/cifar10-gone-12345678", "cifar10-gone", "2200", ["50.0", "50.0"]),
    ):
        (tmp_path / "suite" / f"{file}.json").write_text(record(name, reached, shares))
    recorded = results_records.Recorded(tmp_path)
    *table, empty, added = results_goals.tried(recorded)
    assert [line.split(" | ")[0] for line in table[2:]] == [
        "| cifar10-consistency-0.32", "| cifar10-ensemble-0.32", "| cifar10-gone (left: neither attacked nor gone on with)"
    ]  # fmt: skip
    assert table[3].split(" | ")[3:8] == ["80.0", "–", "–", "60.0", "–"] and not empty
    assert "5 inputs" in added and "at 0.75 goes from 40.0 to 60.0: 2 inputs are gained and 1 are lost" in added
    (closed,) = [said for said in results_goals.missing(recorded) if "were not kept" in said]
    assert closed.endswith(": `cifar10-consistency-0.32`, `cifar10-ensemble-0.32`.")


def test_the_printed_numbers_are_whole_tables() -> None:
    paper = tomllib.loads((ROOT / "experiments" / "paper.toml").read_text(encoding="utf-8"))
    for table in paper["table"]:
        for row in [*table["rows"], *table["ours"]]:
            assert len(row["values"]) == len(table["levels"])
    assert [results_tables._tiny(v) for v in (3.2e-16, 9.2e-17, 2e-16, 0.0)] == ["4e-16", "1e-16", "2e-16", "0e+00"]
    assert results_records.up(1.7166922) == "1.72" and results_records.up(4.3) == "4.30"  # a cap and a time round up


def test_the_formulas_agree_with_the_printed_page() -> None:
    line = table1.LINES[2]
    law, a = table1.made(line, 0.5, 12)
    assert table1.difference(law.radius(0.9, line.norm, 12), line.printed(table1.mpmath.mpf(0.9), 0.5, 12, a)) < 1e-14
    recorded = json.loads((ROOT / "experiments" / "recorded" / "table1.json").read_text())
    assert len(recorded["lines"]) == len(table1.LINES) == 9
    for entry in recorded["lines"]:
        assert max(entry["isotropic"]["difference"], entry["alm_difference"]) < 1e-12
        assert entry["radius_over_printed"][0] > 1 - 1e-12


# --- the runner, end to end on digits ---


def arguments(tmp_path: Path, seconds: float = INF) -> Namespace:
    return Namespace(out=tmp_path / "out", runs=tmp_path / "runs", seconds=seconds, set=["epochs=1"], backend="eager")


def test_a_row_is_trained_once_recorded_and_gone_on_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = rows.Row("toy", "", "digits-certification", (), (rows.radius(0.1, 0.3), rows.alm(0.2)), 30, 512)
    suite.Suite(arguments(tmp_path, seconds=1.0)).row(row, 10, 256)
    assert "left for later" in capsys.readouterr().out and not (tmp_path / "out").exists()
    runner = suite.Suite(arguments(tmp_path))
    runner.row(row, 10, 256)
    (weights,) = (tmp_path / "runs").glob("*/weights.safetensors")
    made, path = weights.stat().st_mtime_ns, tmp_path / "out" / "toy.json"
    first = json.loads(path.read_text())
    assert first["inputs"] == 10 and first["scope"] == "frozen" and first["changes"] == ["epochs=1"]
    runner.row(row, 30, 512)
    last = json.loads(path.read_text())
    assert weights.stat().st_mtime_ns == made and last["inputs"] == 30 and last["complete"]
    assert last["train_seconds"] == first["train_seconds"] and last["samples"] > first["samples"]
    assert last["accuracy"]["l2 radius"].keys() == {"0", "0.1", "0.3"}
    before = path.read_text()
    runner.row(row, 30, 512)
    assert path.read_text() == before


def test_lost_weights_are_trained_again_and_only_the_same_are_gone_on_with(tmp_path: Path) -> None:
    row = rows.Row("toy", "", "digits-isotropic", (), (rows.radius(0.1),), 30, 512)
    path, runs = tmp_path / "out" / "toy.json", tmp_path / "runs"
    suite.Suite(arguments(tmp_path)).row(row, 10, 256)
    first = json.loads(path.read_text())
    shutil.rmtree(runs)
    suite.Suite(arguments(tmp_path)).row(row, 20, 256)
    same = json.loads(path.read_text())
    assert same["weights"] == first["weights"] and same["inputs"] == 20  # a CPU repeats it bit for bit
    assert same["claims"]["l2 radius"]["reached"].startswith(first["claims"]["l2 radius"]["reached"])
    other = json.dumps({**same, "weights": "of another training"})
    path.write_text(other)
    suite.Suite(arguments(tmp_path)).row(row, 30, 256)
    anew = json.loads(path.read_text())
    assert anew["weights"] == first["weights"] and anew["inputs"] == 30
    assert (path.parent / "earlier" / "toy-of anoth.json").read_text() == other


def test_a_choice_is_made_on_held_out_inputs_and_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = (("law.scale=3.0",), ("law.scale=0.25",))
    choice = rows.Choice("toy", "digits-isotropic", (), options, rows.radius(0.1), inputs=20, n=256)
    monkeypatch.setattr(suite, "CHOICES", [choice])
    row = rows.Row("row", "", "digits-isotropic", ("epochs=3",), (rows.radius(0.1),), choice="toy")
    assert suite.changes_of(row, tmp_path / "out") == ["epochs=3", "law.scale=3.0"]
    suite.Suite(arguments(tmp_path)).choose(choice)
    found = json.loads((tmp_path / "out" / "choice-toy.json").read_text())
    assert found["complete"] and [o["inputs"] for o in found["options"]] == [20, 20]
    assert found["chosen"] == ["law.scale=0.25"]  # under noise of 3 a digit cannot be told
    assert suite.changes_of(row, tmp_path / "out") == ["epochs=3", "law.scale=0.25"]


def test_an_ensemble_averages_logits_and_shares_its_first_member(tmp_path: Path) -> None:
    row = rows.Row("single", "", "digits-basis", (), (rows.radius(0.1),), 10, 256)
    both, args = replace(row, name="both", members=2), arguments(tmp_path)
    runner = suite.Suite(args)
    runner.row(row, 10, 256)
    runner.row(both, 10, 256)
    members = list(suite.runs_of(both, args.out, args.runs, args.set))
    assert len(members) == 2 and len(list((tmp_path / "runs").iterdir())) == 2  # seed 0 was there
    first, second, together = (
        suite.smoothed(folders, False, "eager") for folders in ((members[0],), (members[1],), (*members,))
    )
    x = data.load("digits").batch(range(5))[0]
    with torch.no_grad():
        mean = (first.f.model(x) + second.f.model(x)) / 2
        assert torch.allclose(together.f.model(x), mean) and not torch.equal(first.f.model(x), second.f.model(x))
    found = [json.loads((tmp_path / "out" / f"{name}.json").read_text()) for name in ("single", "both")]
    assert found[0]["weights"] != found[1]["weights"] and [f["members"] for f in found] == [1, 2]


def test_each_network_of_an_ensemble_can_have_a_process_of_its_own(tmp_path: Path) -> None:
    row = replace(rows.ROWS[0], name="trio", preset="digits-isotropic", changes=("epochs=1",), members=3)
    args = arguments(tmp_path)
    runner = suite.Suite(args)
    folders = [*suite.runs_of(row, args.out, args.runs, args.set)]
    runner.network(row, 3)
    assert [suite.is_trained_run(folder) for folder in folders] == [False, False, True]
    runner.network(row, 4)  # there is none
    assert sorted(path.name for path in args.runs.iterdir()) == [folders[2].name]
    before = (folders[2] / "metrics.jsonl").stat().st_mtime_ns
    runner.network(row, 3)
    assert (folders[2] / "metrics.jsonl").stat().st_mtime_ns == before


def test_each_network_of_an_ensemble_begins_with_the_one_of_its_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow = rows.Row("narrow", "", "digits-isotropic", ("epochs=1",), (rows.radius(0.1),), 10, 256)
    wide = replace(narrow, name="wide", changes=("epochs=1", "law.scale=0.4"), members=2, onto="narrow")
    monkeypatch.setattr(suite, "ROWS", [narrow, wide])
    args = arguments(tmp_path)
    runner = suite.Suite(args)
    runner.network(wide, 2)
    (first, _), (second, _) = (suite.run_of(one, 1, args.out, args.runs, args.set) for one in (narrow, wide))
    assert {path.name for path in args.runs.iterdir()} == {first.name, second.name}  # nothing of seed 0
    assert Path(read_config(second / "config.toml")["finetune"]) == first
    runner.row(wide, 10, 256)
    begun = [
        read_config(folder / "config.toml")["finetune"] for folder in suite.runs_of(wide, args.out, args.runs, args.set)
    ]
    assert [Path(one) for one in begun] == [suite.run_of(narrow, k, args.out, args.runs, args.set)[0] for k in (0, 1)]


def test_a_row_of_another_seed_begins_with_the_network_of_that_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow = rows.Row("narrow", "", "digits-isotropic", ("epochs=1",), (rows.radius(0.1),), 10, 256)
    wide = replace(narrow, name="wide", changes=("epochs=1", "law.scale=0.4", "seed=2"), onto="narrow")
    monkeypatch.setattr(suite, "ROWS", [narrow, wide])
    suite.train_row(wide, 0, tmp_path, tmp_path / "runs", [])
    begun = Path(read_config(suite.run_of(wide, 0, tmp_path, tmp_path / "runs", [])[0] / "config.toml")["finetune"])
    assert read_config(begun / "config.toml")["training"]["seed"] == 2


def test_a_mirrored_row_averages_the_picture_and_its_mirror_image(tmp_path: Path) -> None:
    row = rows.Row("plain", "", "digits-isotropic", (), (rows.radius(0.1),), 10, 256)
    args = arguments(tmp_path)
    for each in (row, replace(row, name="both", mirrored=True)):
        suite.Suite(args).row(each, 10, 256)
    (folder,) = suite.runs_of(row, args.out, args.runs, args.set)
    plain, mirrored = (suite.smoothed((folder,), both, "eager") for both in (False, True))
    x = data.load("digits").batch(range(5))[0]
    with torch.no_grad():
        mean = (plain.f.model(x) + plain.f.model(x.flip(3))) / 2
        assert torch.allclose(mirrored.f.model(x), mean) and not torch.allclose(plain.f.model(x), mean)
        assert torch.allclose(mirrored.f.model(x.flip(3)), mean)  # it no longer matters which of the two is given
    found = [json.loads((tmp_path / "out" / f"{name}.json").read_text())["mirrored"] for name in ("plain", "both")]
    assert found == [False, True]


def test_a_row_of_the_suite_is_attacked_with_its_own_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = rows.Row("toy", "", "digits-isotropic", (), (rows.radius(0.1),), 10, 256)
    monkeypatch.setattr(audits, "ROWS", [row])
    args = arguments(tmp_path)
    suite.Suite(args).row(row, 10, 256)
    given = ["audits.py", "rows", "--suite", args.out, "--runs", args.runs, "--out", tmp_path, "--set", "epochs=1"]
    monkeypatch.setattr(sys, "argv", [*map(str, given), "--certificates", "3", "--n", "256"])
    audits.main()
    found = json.loads((tmp_path / "toy.json").read_text())
    assert found["complete"] and found["summary"]["attacked"] == 3 and not found["summary"]["bug"]
    assert found["weights"] == json.loads((args.out / "toy.json").read_text())["weights"]


def test_a_row_without_weights_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [
        "audits.py",
        "rows",
        "--runs",
        tmp_path / "none",
        "--out",
        tmp_path / "audits",
        "--only",
        "cifar10-isotropic-*",
    ]
    monkeypatch.setattr(sys, "argv", [*map(str, given)])
    audits.main()
    assert capsys.readouterr().out.splitlines() == [
        f"cifar10-isotropic-{sigma}: no weights under {tmp_path / 'none'}" for sigma in ("0.25", "0.5", "1")
    ]


def test_the_power_of_the_audit_is_recorded_row_by_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = ["audit_power.py", "--out", tmp_path / "out", "--runs", tmp_path / "runs", "--classifiers", "linear"]
    given += ["--certificates", 2, "--sound", 3, "--inflations"]
    for inflations in ((1.3,), (1.0, 1.3)):
        monkeypatch.setattr(sys, "argv", [*map(str, given), *map(str, inflations)])
        audit_power.main()
    found = json.loads((tmp_path / "out" / "linear.json").read_text())
    assert [(row["times"], row["attacked"], row["broken"], row["bug"]) for row in found["rows"]] == [
        (1.0, 3, 0, False),
        (1.3, 2, 2, True),
    ]
    assert found["seed"] == 0 and found["command"].startswith("python") and found["hardware"]
    before = (tmp_path / "out" / "linear.json").read_bytes()
    audit_power.main()
    assert (tmp_path / "out" / "linear.json").read_bytes() == before


# --- shape.py: isotropic against shaped noise at equal budget ---


def known_digits(scale: float = 0.3) -> shape.Known:
    train = data.load("digits", "train")
    x, _ = train.batch(torch.arange(len(train)))
    first = (nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), ucan.Isotropic())
    return shape.Known(x, *shape.moments_of(x), ucan.Gaussian(scale), first)


@pytest.mark.parametrize("method", shape.METHODS)
def test_every_row_has_the_same_budget(method: str) -> None:
    torch.manual_seed(0)
    known = known_digits()
    noise = shape.METHODS[method](known).eval()
    plain = ucan.Isotropic().budget_factor(known.law, 0.9, 1.0, known.x[:1])
    assert noise.budget_factor(known.law, 0.9, 1.0, known.x[:1]) == pytest.approx(plain, rel=1e-4)
    assert noise.scope == "pipeline"


def test_levels_are_the_probabilities_that_certify_them() -> None:
    known = known_digits()
    noise = shape.METHODS["shaped-0.75"](known)
    levels = (0.0, 0.02, 0.05)
    for level, p in zip(levels, shape.level_probabilities(noise, known.law, known.x[:1], levels), strict=True):
        assert noise.budget_factor(known.law, float(p), 1.0, known.x[:1]) == pytest.approx(level, rel=1e-6, abs=1e-9)


def test_what_is_certified_follows_from_the_votes() -> None:
    """A model that answers by a coin with p = 0.9: levels below p are reached, none above, a wrong class none at all."""
    rng = torch.Generator().manual_seed(0)
    model = lambda y: nn.functional.one_hot((torch.rand(len(y), generator=rng) > 0.9).long(), 10).float()  # noqa: E731
    x, law = torch.zeros(20, 1, 8, 8), ucan.Gaussian(1.0)
    labels = torch.tensor([0] * 10 + [1] * 10)
    levels = tuple(float(law.radius(p)) / 8 for p in (0.5, 0.8, 0.85, 0.95, 0.99))
    reached, used = shape.certified(model, ucan.Isotropic(), law, x, labels, levels, 5_000, 0, 4096)
    assert reached[:10].tolist() == [3] * 10 and reached[10:].tolist() == [0] * 10
    assert 0 < used < 5_000


def test_the_table_marks_what_was_chosen() -> None:
    def job(stage: str, scale: float, *shares: float) -> dict[str, object]:
        about = {"stage": stage, "method": "isotropic", "scale": scale, "seed": 0, "sigma": [1.0, 2.0]}
        return about | {"levels": [0.0, 0.04], "certified": list(shares)}

    tried = [job("choose", 0.5, 0.9, 0.3), job("choose", 1.0, 0.8, 0.4)]
    assert shape.best_scale(tried, 0.04) == 1.0 and shape.best_scale(tried, 0.0) == 0.5
    text = shape.table({"jobs": [*tried, job("final", 0.5, 0.9, 0.35), job("final", 1.0, 0.8, 0.45)]}, (0.04,))
    assert text.splitlines()[2:] == [
        "| isotropic | 0.5 | 0.5 … 1 | 1 | 90.0 | 35.0 |",
        "| isotropic | 1 | 1 … 2 | 1 | 80.0 | 45.0* |",
    ]


def test_what_was_kept_is_attacked_inside_its_boxes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights, out = tmp_path / "weights", tmp_path / "attack.json"
    small = "--n 500 --inputs 9 --every 2 --levels 0 0.04 --seeds 1 --epochs 5 --scales 0.3"
    run = f"shape.py --data digits --methods shaped-0.75 {small} --weights {weights} --out {tmp_path / 's.json'}"
    monkeypatch.setattr(sys, "argv", run.split())
    shape.main()
    (job,) = json.loads((tmp_path / "s.json").read_text())["jobs"]
    assert job["levels"] == [0.0, 0.04] and job["inputs"] == 9
    small = "--certificates 3 --n 500 --steps 3 --draws 2 --restarts 1 --check 200"
    attack = f"shape_attacks.py --data digits --method shaped-0.75 --scale 0.3 {small} --weights {weights} --out {out}"
    monkeypatch.setattr(sys, "argv", attack.split())
    shape_attacks.main()
    record = json.loads(out.read_text())
    assert record["summary"]["attacked"] == 3 and not record["summary"]["bug"]
    tested = [json.loads(line) for line in (out.with_suffix("") / "attempts.jsonl").read_text().splitlines()]
    assert all(attempt["factor"] == 0.999 and attempt["covered"] for attempt in tested)


def test_the_page_shows_what_the_records_say() -> None:
    page = (ROOT / "docs" / "shape.md").read_text(encoding="utf-8").splitlines()
    for line in shape_records.tables():
        assert line in page, "run experiments/shape_records.py and put its tables into docs/shape.md"


def test_the_records_reach_what_was_asked_of_them() -> None:
    recorded = {
        name: json.loads((ROOT / "experiments" / "recorded" / f"shape-{name}.json").read_text())
        for name in ("mnist", "mnist-held-out", "mnist-attacks")
    }
    for job in recorded["mnist"]["jobs"]:
        assert job["inputs"] == 10_000 and job["n"] <= 100_000
    rows = shape_records.mnist_rows(recorded["mnist"], recorded["mnist-held-out"])
    for gain, here, plain in zip((80, 200, 350), rows["shaped-0.75"], rows["isotropic"], strict=True):
        assert here is not None and plain is not None and here >= plain + gain
    assert all(b >= a for a, b in zip(rows["shaped-0.75"], rows["learned"], strict=True) if a is not None and b)
    assert not any(record["summary"]["covered_breaks"] for record in recorded["mnist-attacks"])
    front = (ROOT / "docs" / "choose.md").read_text(encoding="utf-8").replace("\n", " ")
    for method in ("shaped-0.75", "learned", "isotropic"):
        first, second, third = map(shape_records.shown, rows[method])
        assert f"{first}, {second} and {third} %" in front


def test_every_row_of_the_digits_and_of_the_two_tables_was_attacked() -> None:
    read = lambda name: json.loads((ROOT / "experiments" / "recorded" / f"shape-{name}.json").read_text())  # noqa: E731
    attacks = read("digits-attacks")
    assert {a["method"] for a in attacks} == set(shape_records.NAMES)
    for method in shape_records.NAMES:
        found = [a["summary"] for a in attacks if a["method"] == method]
        assert sum(s["attacked"] for s in found) >= 500 and not any(s["covered_breaks"] or s["bug"] for s in found)
    attacks = read("tables-attacks")
    for record in read("tables"):
        for method, shares in record["certified"].items():
            row = record["table"], record["model"], method
            mine = [a for a in attacks if (a["data"], a["model"], a["method"]) == row]
            assert sum(a["summary"]["attacked"] for a in mine) >= 500
            assert not any(a["summary"]["covered_breaks"] or a["summary"]["bug"] for a in mine)
            # what was attacked are the classifiers of the table: they certify the same shares
            assert [a["certified"] for a in mine if a["seed"] == 0] == [shares] and mine[0]["n"] == record["n"]


def test_the_models_that_are_attacked_answer_as_those_of_the_table() -> None:
    rows = torch.randn(400, 13, generator=torch.Generator().manual_seed(1))
    for kind in ("logistic", "forest"):
        fold = next(shape_tables.folds("wine", kind, ucan.Gaussian(1.0)))
        attacked = shape_tables_attacks.answering(fold.model)
        answers = attacked(rows.double() if kind == "logistic" else rows)
        answers = answers.argmax(1) if kind == "logistic" else answers
        assert answers.tolist() == fold.model.predict(rows.numpy()).tolist()


def test_records_that_were_not_made_alike_are_not_put_together() -> None:
    job = {"method": "learned", "scale": 1.0, "seed": 0}
    records = [{"about": {"n": n}, "machine": {}, "jobs": [job | {"seed": s}]} for n, s in ((1, 1), (1, 0), (2, 0))]
    assert [each["seed"] for each in shape_records.merged(records[:2])["jobs"]] == [0, 1]
    with pytest.raises(SystemExit, match="not made alike"):
        shape_records.merged(records)


@pytest.mark.slow
def test_shaped_noise_beats_isotropic_noise_on_digits(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "experiments" / "shape.py"), "--quick", "--out", str(tmp_path / "s.json")]
    for _ in range(2):  # the second time everything is there
        subprocess.run([*command, "--methods", "isotropic,shaped-0.75,learned"], check=True)
    jobs = json.loads((tmp_path / "s.json").read_text())["jobs"]
    assert len(jobs) == 6
    found = {method: [j["certified"][5] for j in jobs if j["method"] == method] for method in shape.METHODS}
    at = {method: np.mean(shares) for method, shares in found.items() if shares}
    assert at["shaped-0.75"] > at["isotropic"] + 0.12 and at["learned"] > at["shaped-0.75"] - 0.01


# --- speed ---


def test_the_gpu_bench_makes_its_folder_and_keeps_what_was_measured_before_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def speed(name: str, *_: object) -> object:
        yield {"rows": [f"first of {name}"]}
        if name == "resnet110":
            raise RuntimeError("out of memory")
        yield {"rows": [f"first of {name}", "second"]}

    out = tmp_path / "not" / "there"
    monkeypatch.setattr(gpu_bench, "speed", speed)
    monkeypatch.setattr(sys, "argv", ["gpu_bench.py", str(out), "resnet50", "resnet110"])
    with pytest.raises(RuntimeError, match="out of memory"):
        gpu_bench.main()
    record = json.loads((out / "gpu.json").read_text())
    assert record["resnet50 at 224 px"]["rows"] == ["first of resnet50", "second"]
    assert record["resnet110 at 32 px"]["rows"] == ["first of resnet110"]


def test_the_exact_level_of_the_joint_test_is_below_alpha() -> None:
    assert 0.1 * 0.05 < recertify_level.worst(3, 2, 0.05) <= 0.05


# --- how far a seed moves a row ---


def test_seeds_are_compared_on_the_inputs_that_all_runs_have(tmp_path: Path) -> None:

    settings = ucan.training.TrainSettings(epochs=1, law={"kind": "gaussian", "scale": 0.3})
    row = rows.Row("digits-x", "", "digits-isotropic", (), (rows.radius(0.3),))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(seeds, "changed", lambda *_: settings)
        for seed, skip in ((0, 2), (3, 4)):
            folder = tmp_path / f"run{seed}"
            trainer_of(TrainJob(settings=replace(settings, seed=seed), device="cpu"), folder).run()
            job = CertifyJob(model=str(folder), data="digits", skip=skip, most=40 // skip, stop=0.3, n=500)
            certify(job, tmp_path / f"run{seed}-certified")
        found = seeds.record_of(row, [tmp_path / "run0", tmp_path / "run3"])
        reached = [2 if i % 3 == 0 else 1 for i in range(40)]  # of the levels 0 and 0.3
        kept = {"seed": 0, "of": 40, "weights": "0f", "claims": {row.claims[0].key: {"reached": suite.packed(reached)}}}
        beside = seeds.record_of(row, [tmp_path / "run3"], kept)
        assert beside["certified"] == {"0": 4, "3": found["certified"]["3"]} and beside["weights"][0] == "0f"
        assert seeds.record_of(row, [tmp_path / "run0", tmp_path / "run3"], kept) == found
        patch.setattr(seeds, "changed", lambda *_: replace(settings, epochs=2))
        with pytest.raises(InvalidInput, match="run0 was not trained as the row digits-x says"):
            seeds.record_of(row, [tmp_path / "run0"])
    (tmp_path / "seeds").mkdir()
    (tmp_path / "seeds" / "digits-x.json").write_text(json.dumps(found))
    assert found["every"] == 4 and found["inputs"] == 10 and found["level"] == 0.3
    for seed in (0, 3):
        columns = Run.open(tmp_path / f"run{seed}-certified").columns
        shared = np.isin(columns["idx"], np.arange(0, 40, 4))
        right = columns["correct"] & ~columns["abstained"] & (columns["radius"] >= 0.3)
        assert found["certified"][str(seed)] == int((right & shared).sum())
    (said,) = results_front.spread(tmp_path)
    assert "with the seeds 0, 3" in said and said.endswith("on 10 of the test pictures (every 4th).")


def test_a_later_seed_joins_those_that_are_on_record() -> None:
    """A seed that both have is the later one's; a record about other inputs or votes is refused."""
    one = {"row": "x", "norm": 2, "level": 0.3, "inputs": 10, "every": 4, "n": 500, "alpha": 0.001, "mirrored": False,
           "date": "2026-01-30", "certified": {"0": 4, "10": 5}, "weights": ["00", "aa"]}  # fmt: skip
    two = {**one, "certified": {"2": 6, "10": 7}, "weights": ["22", "bb"], "date": "2026-01-31"}
    both = seeds.joined(one, two)
    assert list(both["certified"].items()) == [("0", 4), ("2", 6), ("10", 7)] and both["weights"] == ["00", "22", "bb"]
    assert both["date"] == "2026-01-31"
    with pytest.raises(InvalidInput, match="differs in inputs, n"):
        seeds.joined({**one, "inputs": 9, "n": 400}, two)


# --- jobs side by side ---


def test_jobs_wait_for_what_they_need_and_go_on_where_they_were(tmp_path: Path) -> None:
    plan, runs = tmp_path / "plan", tmp_path / "runs"
    plan.write_text(
        "# a plan\n\nlast  first,other bash -c cat<RUNS/a>RUNS/b\n"
        "first -     python3 -c open('RUNS/a','a').write('x')\nother - false\nlate other touch RUNS/late\n"
    )
    words = ["bash", str(ROOT / "experiments" / "jobs.sh"), "60", str(runs), str(plan)]
    once = subprocess.run(words, capture_output=True, text=True, check=True, timeout=50)
    assert (runs / "a").read_text() == "x" and not (runs / "b").exists() and not (runs / "late").exists()
    assert [line.split()[0::4] for line in sorted(once.stdout.splitlines())] == [["first:", "0"], ["other:", "1"]]
    plan.write_text(plan.read_text().replace("other - false", "other - true"))
    subprocess.run(words, capture_output=True, text=True, check=True, timeout=50)
    assert (runs / "a").read_text() == "x"  # not made again
    assert (runs / "b").read_text() == "x" and (runs / "late").exists()
    short = ["bash", str(ROOT / "experiments" / "jobs.sh"), "1", str(runs), str(plan)]
    plan.write_text("slow - sleep 30\n")
    subprocess.run(short, capture_output=True, text=True, check=True, timeout=20)
    assert not (runs / "done" / "slow").exists() and (runs / "done" / "slow.failed").exists()


def planned(*names: str) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """What each job waits for, and its command's words."""
    made = plan.Plan()
    for name in names:
        made.add(plan.KNOWN[name])
    jobs = [line.split() for line in made.lines]
    assert len({name for name, *_ in jobs}) == len(jobs)
    return {job[0]: job[1].split(",") for job in jobs}, {job[0]: job[2:] for job in jobs}


def options(words: list[str], name: str) -> list[str]:
    return [after for word, after in itertools.pairwise(words) if word == name]


@pytest.mark.parametrize("name", plan.KNOWN)
def test_the_plan_of_a_row_has_its_trainings_and_its_claim(name: str) -> None:
    row, (needs, words) = plan.KNOWN[name], planned(name)
    for job, waits in needs.items():
        earlier = list(needs)[: list(needs).index(job)]
        assert waits == ["-"] or set(waits) <= set(earlier)
    networks = [model.removeprefix("RUNS/") for model in options(words[name], "--model")[0].split(",")]
    assert ("mirrored" in networks) == row.mirrored and networks[: row.members] == needs[name]
    for seed, network in enumerate(needs[name]):
        of: rows.Row | None = row
        while of is not None:  # down to the network that begins with random weights
            wanted = suite.settings_of(of.preset, [*of.changes, *([f"seed={seed}"] if seed else [])])
            seed, training = wanted.seed, words[network]
            assert suite.settings_of(training[4], options(training, "--set")) == wanted
            of = next((one for one in rows.ROWS if one.name == of.onto), None)
            assert options(training, "--finetune") == ([] if of is None else [f"RUNS/{needs[network][0]}"])
            network = needs[network][0]
    (claim,) = row.claims
    levels = [float(level) for text in options(words[name], "--stop") for level in text.split(",")]
    assert levels == ([] if row in rows.COUNTED else list(claim.levels))
    assert float(options(words[name], "--norm")[0]) == claim.norm


def test_rows_that_share_a_network_train_it_once() -> None:
    _, words = planned("cifar10-sphere-0.54", "cifar10-sphere-far-0.54", "cifar10-sphere-drop-0.42")
    assert sum("train" in command for command in words.values()) == 2


@pytest.mark.slow
def test_a_plan_makes_a_row_that_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From random weights to a checked entry: two networks, each trained on from another."""
    narrow = rows.Row("narrow", "", "digits-isotropic", ("epochs=1",), (rows.radius(0.1),), 445, 300)
    wide = replace(narrow, name="wide", changes=("epochs=1", "law.scale=0.4"), members=2, onto="narrow")
    monkeypatch.setattr(plan, "KNOWN", {"narrow": narrow, "wide": wide})
    made = plan.Plan()
    made.add(wide)
    (tmp_path / "plan").write_text("\n".join(made))
    runs = tmp_path / "runs"
    words = ["bash", str(ROOT / "experiments" / "jobs.sh"), "500", str(runs), str(tmp_path / "plan")]
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    said = subprocess.run(words, env=env, capture_output=True, text=True, check=True, timeout=550).stdout
    assert said.count("exit 0") == len(made.lines) == 6, said
    kept = keep.record_of(Run.open(runs / "wide-certified"), wide, runs / "wide-seed0", 1.0)
    assert kept["members"] == 2 and kept["onto"] == "narrow"
    assert keep.replay_of(runs / "wide.check.json")["failed"] == 0


# --- networks that are published ---


def test_a_published_network_is_the_trained_one_in_half_the_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, place = tmp_path / "net", tmp_path / "networks" / "row"
    trainer_of(TrainJob(settings="digits-isotropic", changes=["epochs=1"], device="cpu"), run).run()
    sha256 = publish.publish(run, place)
    g = ucan.load(place, sha256)
    for name, tensor in load_run(run).classifier.state_dict().items():
        assert torch.equal(
            g.f.model.state_dict()[name], tensor.bfloat16().float() if tensor.is_floating_point() else tensor
        )
    assert 2 * (place / "weights.safetensors").stat().st_size < 1.1 * (run / "weights.safetensors").stat().st_size
    assert str(tmp_path) not in (place / "config.toml").read_text()  # no path of this machine
    monkeypatch.setattr(publish, "MOST", 1000)
    with pytest.raises(InvalidInput, match="more than the 1,000 that are published"):
        publish.publish(run, tmp_path / "other")


PUBLISHED = sorted(path.parent for path in (ROOT / "leaderboard" / "published").glob("*/config.toml"))


@pytest.mark.parametrize("folder", PUBLISHED, ids=lambda folder: folder.name)
def test_a_published_network_is_that_of_its_entry_and_of_its_row(folder: Path) -> None:
    entry = read_entry(folder.with_name(f"{folder.name}.json"))
    record = json.loads((ROOT / "experiments" / "recorded" / "suite" / f"{folder.name}.json").read_text())
    assert weights_hash(load_run(folder).classifier) == entry.hashes.weights == record["weights"]
    assert record["run_sha256"]["results"] == entry.hashes.results
    assert {float(r): count for r, count in entry.certified.items()}.items() >= {
        float(r): count for r, count in entries.counted(record["claims"]["l2 radius"]).items()
    }.items()
    assert sum(path.stat().st_size for path in folder.iterdir()) < publish.MOST
    kept = read_kept(folder.with_name(f"{folder.name}.check.json"))
    assert kept.stands and kept.of == entry_hash(entry)


@pytest.mark.parametrize("folder", PUBLISHED, ids=lambda folder: folder.name)
def test_a_published_network_certifies_digits(folder: Path) -> None:
    if not os.environ.get("UCAN_DATA_DIR"):
        pytest.skip("MNIST is not here: set UCAN_DATA_DIR")
    x, labels = data.load("mnist", "test").batch(range(8))
    g = ucan.load(folder)
    right = [
        c.prediction == label and c.radius > 0.5 for c, label in zip(g.certify(x, n=500), labels.tolist(), strict=True)
    ]
    assert sum(right) >= 7


# --- choices by the share of votes on held-out inputs ---


def test_a_sketch_counts_votes_on_the_held_out_part_alone(tmp_path, capsys, monkeypatch):

    settings = {"epochs": 2, "held_out": 0.2, "certify_every": 0, "law": {"kind": "gaussian", "scale": 0.5}}
    for seed in (0, 1):
        job = TrainJob(settings=ucan.training.TrainSettings(seed=seed, **settings), device="cpu")
        trainer_of(job, tmp_path / str(seed)).run()
    share, scale = sketch.right_votes(str(tmp_path / "0"), 30, 400, False)
    assert scale == 0.5 and len(share) == 30
    run = ucan.training.load_run(tmp_path / "0")
    _, apart = data.held_out(data.load("digits", split="train"), 0.2, 0)
    rng = torch.Generator().manual_seed(7)
    for i in range(30):
        x, label = apart[i]
        noisy = x + 0.5 * torch.randn(400, *x.shape, generator=rng)
        with torch.no_grad():
            theirs = (run.classifier(noisy).argmax(1) == label).float().mean()
        assert float(share[i]) == pytest.approx(float(theirs), abs=0.15)
    monkeypatch.setattr(sys, "argv", ["sketch.py", str(tmp_path / "0"), str(tmp_path / "1"), "--radii", "0.25,0",
                                      "--inputs", "30", "--votes", "100"])  # fmt: skip
    sketch.main()
    *lines, best = capsys.readouterr().out.splitlines()
    found = [json.loads(line) for line in lines]
    assert [each["run"] for each in found] == ["0", "1"] and all(e["share"]["0.25"] <= e["share"]["0"] for e in found)
    assert best == str(tmp_path / str(max((0, 1), key=lambda i: (found[i]["share"]["0"], i))))
