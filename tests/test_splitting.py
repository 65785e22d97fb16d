"""Splitting noise against a plain loop over all its draws, and over every change inside a certified region."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import ucan
from ucan.app.session import Session
from ucan.audit import Attempt, Budget, Ledger, audit, audit_all, frozen_at, read_attempts, summarise
from ucan.audit import replay as replay_break
from ucan.audit.stakes import Stake, Tally
from ucan.plan import CertifyPlan
from ucan.region import Region
from ucan.replay import replay
from ucan.runs.train import TrainJob, trainer_of
from ucan.verify import verify

STEPS = 6
CHECKER = Path(__file__).parents[1] / "checker" / "check_certificate.py"


class Table(torch.nn.Module):
    """A classifier without structure: the class of a point follows from a hash of its coordinates."""

    def __init__(self, classes: int, bias: float, seed: int) -> None:
        super().__init__()
        self.classes, self.bias = classes, bias
        self.weights = torch.nn.Parameter(torch.rand(8, generator=torch.Generator().manual_seed(seed)))

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        """Class 0 with the bias's probability over points, else one of the classes."""
        cells = (y.double().flatten(1) * 4 * STEPS).round()
        u = torch.frac(((cells + 1) * self.weights[: cells.shape[1]].double() * 91.7).sum(1).sin().abs() * 1e4)
        other = (torch.frac(u * 1e3) * self.classes).long()
        return torch.nn.functional.one_hot(torch.where(u < self.bias, 0, other), self.classes).float()


def middle(k: int, offset: int, width: int) -> float:
    """The middle of the cell of k in steps, written as a search over cuts."""
    cuts = [offset + 0.5 + j * width for j in range(-40, 40)]
    low = max(cut for cut in cuts if cut < k)
    return (max(low, 0.0) + min(low + width, STEPS)) / 2 / STEPS


def counted(g: ucan.SmoothedClassifier, k: tuple[int, ...], widths: tuple[int, ...]) -> list[int]:
    """How often each class is answered over all draws, one after the other."""
    shifts, turns = g.M.shifts.tolist(), math.lcm(*widths)
    points = [[middle(ki, (t + v) % w, w) for ki, v, w in zip(k, shifts, widths, strict=True)] for t in range(turns)]
    answers = g.f.model(torch.tensor(points, dtype=torch.float32)).argmax(1)
    return torch.bincount(answers, minlength=g.f.num_classes).tolist()


def made(widths: tuple[int, ...], bias: float = 0.7, seed: int = 0, classes: int = 3) -> ucan.SmoothedClassifier:
    lam = widths[0] / 2 / STEPS
    sigma = torch.tensor([w / widths[0] for w in widths], dtype=torch.float64)
    noise = ucan.Splitting((len(widths),), steps=STEPS, scale=sigma, seed=seed)
    return ucan.SmoothedClassifier(Table(classes, bias, seed).eval(), ucan.Uniform(lam), noise, classes, step=1 / STEPS)


@pytest.mark.parametrize(("widths", "seed"), [((4, 4, 4), 0), ((6, 3, 2), 1), ((12, 4, 6), 2), ((8, 16, 4), 3)])
def test_counts_and_every_change_inside(widths: tuple[int, ...], seed: int) -> None:
    g = made(widths, seed=seed)
    grid = list(itertools.product(range(STEPS + 1), repeat=len(widths)))
    points = torch.tensor(grid, dtype=torch.float32) / STEPS
    answers = {k: counted(g, k, widths) for k in grid}
    outcomes = g.certify(points, norm=1, bound="exact")
    tight = 0
    for k, outcome in zip(grid, outcomes, strict=True):
        assert list(outcome.evidence.counts) == answers[k]
        if outcome.abstained:
            continue
        assert outcome.scope == "pipeline" and outcome.evidence.alpha == 0.001
        ranked = sorted(answers[k], reverse=True)
        exact = g.law.scale * (ranked[0] - ranked[1]) / g.M.turns(g.law)
        assert exact * (1 - 1e-8) <= outcome.region.radius <= exact
        changes = (torch.tensor(grid) - torch.tensor(k)).double() / STEPS
        for j in itertools.compress(grid, outcome.region.contains(changes).tolist()):
            there = answers[j]
            assert there.index(max(there)) == outcome.prediction and there.count(max(there)) == 1
            tight += j != k
    assert tight > 50, "no region held another point: nothing was tested"


def test_shares_change_by_no_more_than_the_theorem_says_and_some_by_as_much() -> None:
    widths = (6, 3, 2)
    g = made(widths)
    turns, closest = g.M.turns(g.law), 0.0
    grid = list(itertools.product(range(STEPS + 1), repeat=3))
    answers = {k: counted(g, k, widths) for k in grid}
    for k, j in itertools.product(grid[::7], grid):
        moved = sum(abs(a - b) / w for a, b, w in zip(k, j, widths, strict=True))  # ‖Σ⁻¹δ‖₁/(2λ)
        change = max(abs(a - b) / turns for a, b in zip(answers[k], answers[j], strict=True))
        assert change <= moved + 1e-12
        closest = max(closest, change / moved if 0 < moved < 1 else 0.0)
    assert closest > 0.9


def test_random_draws_are_those_that_are_counted() -> None:
    g = made((12, 4, 6))
    x = torch.tensor([[2.0, 3.0, 1.0]]) / STEPS
    exact = torch.tensor(counted(g, (2, 3, 1), (12, 4, 6))) / g.M.turns(g.law)
    votes = g.votes(x, 40_000, 5, "estimate").counts / 40_000
    assert torch.allclose(votes, exact, atol=4 * math.sqrt(0.25 / 40_000))
    placed = g.M.place(x, torch.arange(12).reshape(12, 1, 1), g.law)
    assert torch.equal(placed[:, 0], torch.tensor([
        [middle(k, (t + v) % w, w) for k, v, w in zip((2, 3, 1), g.M.shifts.tolist(), (12, 4, 6), strict=True)]
        for t in range(12)
    ]))  # fmt: skip


def test_predict_is_exact_and_a_tie_abstains() -> None:
    g = made((4, 4, 4))
    x = torch.tensor([[1.0, 2.0, 3.0]]) / STEPS
    (answer,) = g.predict(x, test="exact")
    counts = counted(g, (1, 2, 3), (4, 4, 4))
    assert answer.prediction == counts.index(max(counts)) and answer.p_value == 0

    noise, law = ucan.Splitting((3,), STEPS), ucan.Uniform(4 / 2 / STEPS)
    cut = noise.place(x, torch.arange(4).reshape(4, 1, 1), law)[:, 0, 0].sort().values[1:3].mean()
    h = ucan.SmoothedClassifier(lambda y: (y[:, 0] > cut).long(), law, noise, 2, step=1 / STEPS)
    (outcome,) = h.predict(x, test="exact")
    assert list(outcome.evidence.counts) == [2, 2]
    assert outcome.abstained


def test_verify_and_replay_count_again(tmp_path: Path) -> None:
    g, x = made((6, 3, 2)), torch.tensor([[2.0, 3.0, 1.0]]) / STEPS
    (c,) = g.certify(x, norm=1, bound="exact")
    assert isinstance(c, ucan.Certificate)
    assert verify(c, g, x).confirms == "pipeline"
    assert replay(c, g, x).outcome == "same"
    (tmp_path / "c.json").write_text(json.dumps(c.to_dict()))
    done = subprocess.run([sys.executable, str(CHECKER), str(tmp_path / "c.json")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    other = made((6, 3, 2), seed=3)
    verdict = verify(c, other, x)
    assert not verdict.stands


WIDTHS = (12, 4, 6)
QUICK = Budget(steps=8, draws=4)


class Slope(torch.nn.Module):
    """Class 1 above a plane."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([3.0, 2.0, 1.0]))

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        """Two logits."""
        level = y @ self.weight - 3.1
        return torch.stack((torch.zeros_like(level), level), 1)


def sloped() -> tuple[ucan.SmoothedClassifier, list[tuple[torch.Tensor, ucan.Certificate]]]:
    """A classifier whose attack has gradients, and its certificates on a part of the grid."""
    plain = made(WIDTHS)
    g = ucan.SmoothedClassifier(Slope().eval(), plain.law, plain.M, 2, step=1 / STEPS)
    points = torch.tensor(list(itertools.product(range(0, STEPS + 1, 2), repeat=3)), dtype=torch.float32) / STEPS
    outcomes = zip(points, g.certify(points, norm=1, bound="exact"), strict=True)
    return g, [(x[None], c) for x, c in outcomes if isinstance(c, ucan.Certificate)]


def larger(c: ucan.Certificate, times: float) -> ucan.Certificate:
    """The same with a radius that is wrong."""
    return replace(c, region=Region.sharing(c.region.scale, times * c.region.radius, 1, (3,)))


@pytest.mark.parametrize("few", [True, False], ids=["counted", "screened by random votes"])
def test_an_audit_counts_all_draws_and_leaves_nothing_to_chance(few: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """No true claim breaks; of radii that are too large the loop over all draws confirms each break, and one is a bug."""
    monkeypatch.setattr("ucan.audit.judge.FEW_DRAWS", 4096 if few else 2)
    g, claims = sloped()
    honest = [
        next(audit(g, x, c, idx=i, factors=[factor], budget=QUICK))[0]
        for factor in (0.999, 1.0)  # a point on the edge is not inside, however its distance is rounded
        for i, (x, c) in enumerate(claims)
    ]
    assert len(honest) > 80 and not any(attempt.broken for attempt in honest)
    assert {attempt.alpha for attempt in honest} == {0.0} and summarise(honest).allowed == 0
    broken = 0
    for i, (x, true) in enumerate(claims):
        c = larger(true, 2.0)
        attempt, delta = next(audit(g, x, c, idx=i, factors=[0.999], budget=QUICK))
        if attempt.broken:
            assert delta is not None and attempt.p_value == 0.0
            assert attempt.again_total == attempt.total == g.M.turns(g.law)
            counts = counted(g, tuple(((x + delta) * STEPS).round().long()[0].tolist()), WIDTHS)
            assert counts[c.prediction] <= counts[1 - c.prediction]
            assert replay_break(g, x, c, delta).broken and summarise([attempt]).is_bug
            broken += 1
    assert broken > 10


def test_a_point_without_valid_votes_breaks_a_claim_that_was_counted() -> None:
    _, claims = sloped()
    stake = Stake(next(c for _, c in claims if c.prediction == 0), True)
    none, tie, led = Tally((0, 0), 12), Tally((6, 6), 0), Tally((7, 4), 1)
    assert stake.share(none).value == stake.share(tie).value == 0.5 < stake.share(led).value
    for tally, broken in ((none, True), (tie, True), (led, False), (Tally((3, 9), 0), True)):
        found = stake.decide(tally, 0.001, None)
        assert (found.broken, found.p_value, found.total) == (broken, float(not broken), 12)
    beyond = replace(stake, promised=False)  # where nothing is promised another class must lead
    assert not beyond.decide(tie, 0.001, None).broken and beyond.decide(Tally((5, 6), 1), 0.001, None).broken


def test_counted_votes_are_those_of_the_network_as_it_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise that is the same everywhere is frozen as it is, by the same backend; another one is refused."""
    g, claims = sloped()
    x, c = claims[0]
    assert frozen_at(g, x) is g
    elsewhere = replace(c, evidence=replace(c.evidence, backend="onnxruntime"))
    monkeypatch.setattr("ucan.engine.Engine.running", lambda self, backend: contextlib.nullcontext())
    with pytest.raises(ucan.InvalidInput, match="ran onnxruntime when its votes were counted, and runs eager here"):
        list(audit(g, x, elsewhere, budget=QUICK))


def test_the_app_shows_the_draws_that_decided() -> None:
    g, claims = sloped()
    opened = Session("slope", g, CertifyPlan(norm=1, bound="exact"), (3,), None, (), ())
    for x, true in claims[:8]:
        (found,) = opened.attack(x, larger(true, 2.0), [0.999], QUICK)
        assert found.attempt.total == g.M.turns(g.law) == int(found.votes.counts.sum())
        assert found.attempt.hits == int(found.votes.counts[true.prediction])


def test_a_router_of_counted_parts_has_no_chance_to_spare(tmp_path: Path) -> None:
    g, claims = sloped()
    wrong = [(i, x, larger(c, 2.0)) for i, (x, c) in enumerate(claims)]
    found = audit_all(g, wrong, Ledger(tmp_path, {}), factors=[0.999], budget=QUICK, part="choice", alpha=0.001)
    assert any(attempt.broken for attempt in found) and {attempt.alpha for attempt in found} == {0.0}


def test_a_registry_of_counted_answers_is_attacked(tmp_path: Path) -> None:
    g, claims = sloped()
    x, _ = claims[0]
    with ucan.Registry(tmp_path / "r", 1) as registry:
        (c,) = registry.certify(g, x, norm=1, bound="exact")
        assert c.scope == "registry" and c.evidence.bound == "exact"
        found = [attempt for attempt, _ in audit(g, x, c, factors=[0.9], budget=QUICK, registry=registry)]
    assert found and not any(attempt.broken for attempt in found)


def test_older_attempts_on_counted_claims_are_made_again(tmp_path: Path) -> None:
    g, claims = sloped()
    cases = [(i, *case) for i, case in enumerate(claims[:3])]
    audit_all(g, cases, Ledger(tmp_path, {}), factors=[0.999], budget=QUICK)
    path = tmp_path / "attempts.jsonl"
    path.write_text(path.read_text().replace('"alpha": 0.0,', '"alpha": 0.001,', 1))
    told: list[Attempt] = []
    found = audit_all(g, cases, Ledger(tmp_path, {}), factors=[0.999], budget=QUICK, on_attempt=told.append)
    assert len(told) == 1 and {attempt.alpha for attempt in found} == {0.0}
    assert {attempt.alpha for attempt in read_attempts(tmp_path)} == {0.0}


def test_random_votes_cannot_pass_for_all_draws(tmp_path: Path) -> None:
    law, x = ucan.Uniform(0.5), torch.rand(1, 4)
    model = torch.nn.Linear(4, 3).eval()
    g = ucan.SmoothedClassifier(model, law, num_classes=3, step=1 / STEPS)
    with pytest.raises(ucan.InvalidInput, match="splitting noise"):
        g.certify(x, norm=1, bound="exact")
    (c,) = g.certify((x * STEPS).round() / STEPS, norm=1, n=600)
    record = c.to_dict()
    record["evidence"]["bound"], record["p_upper"] = "exact", 1 - record["p_lower"]
    (tmp_path / "c.json").write_text(json.dumps(record))
    done = subprocess.run([sys.executable, str(CHECKER), str(tmp_path / "c.json")], capture_output=True, text=True)
    assert done.returncode == 1 and "cannot all be counted" in done.stdout


def test_refusals_say_what_to_do() -> None:
    model, x = torch.nn.Linear(3, 3).eval(), torch.zeros(1, 3)
    noise = ucan.Splitting((3,), STEPS)

    def smoothed(law: ucan.Law | None = None, **settings: object) -> ucan.SmoothedClassifier:
        return ucan.SmoothedClassifier(model, law or ucan.Uniform(0.5), noise, 3, **settings)  # type: ignore[arg-type]

    with pytest.raises(ucan.InvalidInput, match="whole number"):
        smoothed(ucan.Uniform(0.51), step=1 / STEPS).certify(x, norm=1)
    with pytest.raises(ucan.InvalidInput, match="uniform law"):
        smoothed(ucan.Gaussian(0.5), step=1 / STEPS).certify(x, norm=1)
    with pytest.raises(ucan.UnsupportedNorm, match="norm=1"):
        smoothed(step=1 / STEPS).certify(x, norm=math.inf)
    with pytest.raises(ucan.InvalidInput, match="step=1/6"):
        smoothed().certify(x, norm=1)
    with pytest.raises(ucan.InvalidInput, match="must agree"):
        smoothed(step=1 / 255).certify(x, norm=1)
    with pytest.raises(ucan.InvalidInput, match="divide a number"):
        wide = ucan.Splitting((3,), 10_007, torch.tensor([1.0, 10_006 / 10_007, 9_998 / 10_007], dtype=torch.float64))
        wide.turns(ucan.Uniform(0.5))


def test_a_training_under_splitting_noise_is_watched_on_its_grid(tmp_path) -> None:
    """The check of the held-out part came epochs later, and ended the training with an error."""
    job = TrainJob(settings="digits-splitting", changes=["epochs=1", "held_out=0.1", "certify_every=1"], device="cpu")
    trainer_of(job, tmp_path / "run").run()
    (line,) = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    assert line["held_out_norm"] == 1 and line["held_out_scope"] == "pipeline" and line["held_out_certified"] >= 0
    session = Session.open(tmp_path / "run")
    *_, outcome = session.certify(session.item(0)[0], session.g.law.scale, 200, 0.001)
    assert outcome.evidence.arithmetic == "grid(1/16)"
