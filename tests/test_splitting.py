"""Splitting noise against a plain loop over all its draws, and over every change inside a certified region."""

from __future__ import annotations

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
from ucan.audit import Attempt, Budget, audit, summarise
from ucan.audit import replay as replay_break
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


def test_an_audit_counts_all_draws_and_leaves_nothing_to_chance() -> None:
    """No true claim breaks; of radii that are too large the loop over all draws confirms each break, and one is a bug."""
    widths, model = (12, 4, 6), torch.nn.Linear(3, 2).eval()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.0, 0.0, 0.0], [3.0, 2.0, 1.0]]))
        model.bias.copy_(torch.tensor([0.0, -3.1]))
    plain = made(widths)
    g = ucan.SmoothedClassifier(model, plain.law, plain.M, 2, step=1 / STEPS)
    points = torch.tensor(list(itertools.product(range(0, STEPS + 1, 2), repeat=3)), dtype=torch.float32) / STEPS
    claims = [
        (x[None], c) for x, c in zip(points, g.certify(points, norm=1, bound="exact"), strict=True) if not c.abstained
    ]
    budget = Budget(steps=8, draws=4)

    def attacked(times: float) -> list[tuple[torch.Tensor, ucan.Certificate, Attempt, torch.Tensor | None]]:
        found = []
        for i, (x, true) in enumerate(claims):
            region = Region.sharing(true.region.scale, times * true.region.radius, 1, (3,))
            c = replace(true, region=region)
            ((attempt, delta),) = audit(g, x, c, idx=i, factors=[0.999], budget=budget)
            found.append((x, c, attempt, delta))
        return found

    honest = [attempt for _, _, attempt, _ in attacked(1.0)]
    assert len(honest) > 40 and not any(attempt.broken for attempt in honest)
    assert {attempt.alpha for attempt in honest} == {0.0} and summarise(honest).allowed == 0
    broken = [case for case in attacked(2.0) if case[2].broken]
    assert len(broken) > 10
    for x, c, attempt, delta in broken:
        assert delta is not None and attempt.p_value == 0.0 and attempt.again_total == attempt.total
        counts = counted(g, tuple(((x + delta) * STEPS).round().long()[0].tolist()), widths)
        assert counts[c.prediction] <= counts[1 - c.prediction]
        assert replay_break(g, x, c, delta).broken
    assert summarise([broken[0][2]]).is_bug


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
