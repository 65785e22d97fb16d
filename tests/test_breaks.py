"""Attacks on what a printed number promises. Each test states what should hold."""

import hashlib
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from ucan import (
    Certificate,
    Fixed,
    Gaussian,
    InvalidInput,
    Region,
    Registry,
    SmoothedClassifier,
    SmoothedRegressor,
    UcanError,
)
from ucan.app.session import Session
from ucan.arithmetic import Grid
from ucan.audit.trials import case_of
from ucan.bounds import lower_bound, majority_p_value
from ucan.certificate import from_dict, save_json
from ucan.cli import app
from ucan.fingerprint import identity
from ucan.generators import Composed, Generator
from ucan.models import load_model
from ucan.named_bounds import bound_named
from ucan.plan import CertifyPlan
from ucan.replay import replay
from ucan.results import Store
from ucan.runs.config import ModelRef
from ucan.runs.rebuild import pipeline_of
from ucan.scales import Basis, Dense, Scalar
from ucan.scales.base import RowBounds
from ucan.sidecar import input_hash
from ucan.training import load_run
from ucan.verify import verify
from ucan.verify_answer import verify_answer
from ucan.votes import Stream, block_size, classify_samples

OLD = Path(__file__).parent / "fixtures" / "version-0.1"
DIM = 6
LAW = Gaussian(scale=0.5)
X = torch.rand(1, DIM, generator=torch.Generator().manual_seed(5)) + 0.5


def linear():
    net = nn.Linear(DIM, 3).eval()
    for parameter in net.parameters():
        nn.init.normal_(parameter, generator=torch.Generator().manual_seed(0))
    return net


def smoothed(**options):
    return SmoothedClassifier(linear(), LAW, Fixed(1.0), 3, **options)


def claiming(c, p, **evidence):
    """The certificate with another p, the region that follows from it, and other evidence."""
    R = c.evidence.law.radius(p)
    region = Region(c.region.scale, R, 2, c.region.shape)
    made = replace(c, p_lower=p, region=region, alm=region.alm, evidence=replace(c.evidence, **evidence))
    return from_dict(made.to_dict())


# --- verification against what is deployed ---


def test_the_step_of_a_run_is_not_taken_from_the_certificate(tmp_path):
    run = load_run(str(OLD / "isotropic"))
    deployed = SmoothedClassifier(run.classifier, run.law, run.generator, run.num_classes)
    x = torch.zeros(1, *run.shape)
    for g in (deployed, deployed.on_grid(1 / 16)):  # as deployed there is nothing to certify here
        assert not isinstance(g.certify(x, n=2000)[0], Certificate)
    (c,) = deployed.on_grid(1000.0).certify(x, n=2000)  # all noise is rounded away
    assert c.radius > 1.3
    save_json(c, tmp_path / "c.json")
    np.save(tmp_path / "x.npy", x[0].numpy())
    words = ["verify", tmp_path / "c.json", "--model", OLD / "isotropic", "--input", tmp_path / "x.npy", "--quiet"]
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert "scope pipeline. This is not a proof" not in result.output, result.output


@pytest.mark.parametrize(("n", "alpha"), [(1, 0.9), (3, 0.5), (5, 0.05)])
def test_a_class_that_is_never_answered_is_not_confirmed(n, alpha):
    net = nn.Linear(2, 2).eval()
    nn.init.zeros_(net.weight)
    net.bias.data = torch.tensor([10.0, 0.0])
    g, x = SmoothedClassifier(net, LAW, Fixed(1.0), 2), torch.zeros(1, 2)
    (c,) = g.certify(x, n=100)
    other = replace(c, prediction=1, evidence=replace(c.evidence, selection=(0, 100)))
    forged = claiming(other, lower_bound(n, n, alpha), n=n, cap=n, alpha=alpha, counts=(0, n))
    assert forged.prediction == 1 and forged.radius > 0.05
    assert not verify(forged, g, x).stands


def test_a_bound_for_a_fixed_number_of_votes_does_not_follow_where_a_rule_ended_sampling():
    g = smoothed()
    (c,) = g.certify(X, n=20_000, alpha=0.01, stop=0.1)
    assert c.evidence.n < c.evidence.cap and c.evidence.bound == "sequential"
    p = lower_bound(c.evidence.counts[c.prediction], c.evidence.n, 0.01)
    assert p > c.p_lower + 0.01
    assert not verify(claiming(c, p, bound="binary"), g, X).stands
    assert not verify(claiming(c, p, bound="binary", stop=None), g, X).stands  # n is still not what was planned


def test_a_certificate_of_a_copy_in_another_precision_is_not_the_deployed_classifiers():
    g = smoothed()
    (c,) = g.certify(X, n=2000, alpha=0.01, precision="bf16")
    hidden = replace(c, evidence=replace(c.evidence, copy=False))  # said to be the classifier itself
    assert verify(hidden, g, X).confirms is None
    assert verify(c, g, X).confirms is None


def test_an_input_far_away_is_not_the_input_that_was_certified():
    net = nn.Linear(2, 2).double().eval()
    nn.init.zeros_(net.weight)
    net.weight.data[0, 0] = 1
    net.bias.data = torch.tensor([-1e9, 0.0], dtype=torch.float64)
    g = SmoothedClassifier(net, Gaussian(1.0), None, 2)
    here, there = (torch.tensor([[1e9 + away, 0.0]], dtype=torch.float64) for away in (2.0, 25.0))
    (c,) = g.certify(here, n=2000)
    found = {check.name: check.passed for check in verify(c, g, there).checks}
    assert not found["input"]  # 23 standard deviations apart, and the same in float32


def test_sigma_that_is_larger_than_the_deployed_one_makes_no_larger_radius():
    g = smoothed()
    (c,) = g.certify(X, n=2000, alpha=0.01)
    larger = from_dict(replace(c, region=Region(1 + 9e-6, c.region.radius, 2, (DIM,))).to_dict())
    assert larger.radius > c.radius * (1 + 5e-6)
    assert not verify(larger, g, X).stands


def test_fresh_votes_cannot_be_known_beforehand():
    g = smoothed()
    (c,) = g.certify(X, n=2000, alpha=0.01)
    seen = {next(k.detail for k in verify(c, g, X).checks if k.name == "votes") for _ in range(4)}
    assert len(seen) > 1


@pytest.mark.parametrize("family", [-5, 0.5, math.nan, "x"])
def test_a_family_that_is_no_number_of_certificates_is_refused(family):
    g = smoothed()
    (c,) = g.certify(X, n=200, alpha=0.01)
    record = c.to_dict()
    record["evidence"]["family"] = family
    with pytest.raises(UcanError):
        str(from_dict(record))


# --- replay ---


def test_streams_belong_to_the_seed_that_is_stated():
    g = smoothed()
    (c,) = g.certify(X, n=200, n0=10, alpha=0.01, seed="derived")
    counter = g.engine.setup(X, CertifyPlan(n0=10, n=200)).counter
    keys = [hashlib.sha256(str(i).encode()).hexdigest() for i in range(100)]
    drawn = [classify_samples(counter, g.M.at(X), X, 200, Stream(None, "", "", key)).counts.tolist() for key in keys]
    best = max(range(100), key=lambda i: drawn[i][c.prediction])
    p = lower_bound(drawn[best][c.prediction], 200, 0.01)
    streams = {**c.evidence.streams, "estimate": keys[best]}
    found = replay(claiming(c, p, counts=tuple(drawn[best]), streams=streams), g, X)
    assert p > c.p_lower + 0.03 and not found.stands, found


def test_a_seed_that_was_derived_from_data_that_nobody_has_is_not_called_derived():
    net = nn.Linear(2, 2).eval()
    nn.init.zeros_(net.weight), nn.init.zeros_(net.bias)
    net.weight.data[0, 0] = 1
    g, x = SmoothedClassifier(net, LAW, Fixed(1.0), 2), torch.tensor([[-1e-3, 0.0]])  # class 0 has p = 0.499
    for i in range(600):
        plan = g.seeded(CertifyPlan(n0=10, n=100, alpha=0.01), "derived", hashlib.sha256(str(i).encode()).hexdigest())
        ((_, c),) = g.certify_each([x], plan)
        if isinstance(c, Certificate) and c.prediction == 0:  # false
            break
    else:
        pytest.skip("none of the hashes was lucky")
    assert replay(from_dict(c.to_dict()), g, x).derived is not True


def test_a_derived_seed_leaves_no_choice_of_blocks():
    """Copies that are drawn together in other numbers are other noise, so that one could try many and keep the luckiest."""
    g = smoothed()
    (c,) = g.certify(X, n=200, n0=10, alpha=0.01, seed="derived")
    assert replay(c, g, X).derived is True and c.evidence.block == block_size(X.numel())
    drawn = {}
    for block in range(1, 40):
        counter = g.engine.setup(X, CertifyPlan(n0=10, n=200, block=block)).counter
        stream = Stream(c.evidence.seed, c.evidence.input_hash, "estimate")
        drawn[block] = tuple(classify_samples(counter, g.M.at(X), X, 200, stream).counts.tolist())
    best = max(drawn, key=lambda block: drawn[block][c.prediction])
    p = lower_bound(drawn[best][c.prediction], 200, 0.01)
    forged = claiming(c, p, counts=drawn[best], block=best)
    found = replay(forged, g, X)
    assert p > c.p_lower + 0.02 and not found.stands and found.derived is not True
    assert f"blocks of {best} copies" in found.detail
    elsewhere = replace(forged, evidence=replace(forged.evidence, device="another"))
    assert not replay(elsewhere, g, X).stands  # nothing needs to be drawn to see it
    own = replay(replace(forged, evidence=replace(forged.evidence, data_hash=None)), g, X)
    assert own.derived is None  # nobody says that this noise was not chosen


def test_an_answer_by_a_derived_seed_has_the_usual_blocks():
    g = SmoothedRegressor(lambda batch: batch[:, :2], LAW, Fixed(1.0), model_id="two")
    (a,) = g.certify(X, radius=0.1, n=200, seed="derived")
    told = {check.name: check for check in verify_answer(a, g, X).checks}
    assert told["seed"].passed and told["seed"].confirmed and told["replay"].passed
    for changes in ({"block": 7}, {"seed": a.evidence.seed + 1}):
        verdict = verify_answer(replace(a, evidence=replace(a.evidence, **changes)), g, X)
        assert [check.name for check in verdict.checks if not check.passed] == ["seed"]
    other = replace(a.evidence, data_hash="0" * 64, seed=g.engine.derived_seed("0" * 64))
    told = {check.name: check for check in verify_answer(replace(a, evidence=other), g, X, replay=False).checks}
    assert not told["seed"].confirmed


def test_an_input_between_the_points_of_a_grid_pays_in_its_alm_as_well():
    g, x = smoothed(step=0.1), (10 * X).floor() / 10 + 0.03
    (c,) = g.certify(x, n=500)
    paid = g.M.at(x).region(LAW, c.p_lower, 2, x).radius / c.region.radius
    assert paid > 1.2 and verify(c, g, x).stands
    verdict = verify(replace(c, alm=c.alm * paid * (1 - 1e-6)), g, x)
    assert [check.name for check in verdict.checks if not check.passed] == ["radius"]


@pytest.mark.parametrize("budget", [None, 0.1])
def test_the_tolerance_for_sigma_makes_no_radius_of_an_answer_larger(budget):
    g = SmoothedClassifier(lambda batch: (batch[:, 0] > -1).long(), LAW, Fixed(0.7), 2, model_id="first")
    for asked in (g.certify(X, n=500, confidence=0.6, budget=budget), g.certify(X, n=500, top=1, budget=budget)):
        (a,) = asked
        assert verify_answer(a, g, X).stands
        wider = replace(a, region=Region(0.7 * (1 + 5e-6), a.region.radius, a.region.norm, a.region.shape))
        verdict = verify_answer(wider, g, X, replay=False)
        assert [check.name for check in verdict.checks if not check.passed] == ["claim"]


def test_a_replay_without_a_key_of_its_noise_says_so():
    g = smoothed()
    for seed in (3, None):
        (c,) = g.certify(X, n=200, n0=10, alpha=0.01, seed=seed)
        kept = {phase: key for phase, key in c.evidence.streams.items() if phase != "select"}
        found = replay(replace(c, evidence=replace(c.evidence, streams=kept)), g, X)
        assert found.outcome == ("same" if seed == 3 else "not replayable here"), found
        assert seed == 3 or "select" in found.detail


def test_no_file_fills_the_memory_by_its_batch_size_or_its_blocks():
    g = smoothed()
    (c,) = g.certify(X, n=200, n0=10, alpha=0.01)
    assert replay(replace(c, evidence=replace(c.evidence, batch_size=10**12)), g, X).outcome == "same"
    found = replay(replace(c, evidence=replace(c.evidence, block=10**12)), g, X)
    assert found.outcome == "differs" and "1,000,000,000,000" in found.detail
    regressor = SmoothedRegressor(lambda batch: batch[:, :2], LAW, Fixed(1.0), model_id="two")
    (a,) = regressor.certify(X, radius=0.1, n=200)
    assert verify_answer(replace(a, evidence=replace(a.evidence, batch_size=10**12)), regressor, X).stands
    assert not verify_answer(replace(a, evidence=replace(a.evidence, block=10**12)), regressor, X).stands
    for changes in ({"batch_size": 0}, {"batch_size": True}, {"block": 2.0}, {"block": None}):
        with pytest.raises(UcanError, match="whole number of at least 1"):
            replace(c.evidence, **changes)


def test_the_votes_that_chose_the_class_do_not_count_again():
    g = smoothed()
    (c,) = g.certify(X, n=500, n0=500, alpha=0.01)
    p = lower_bound(c.evidence.selection[c.prediction], 500, 0.01)
    found = replay(claiming(c, p, phase="select", counts=c.evidence.selection), g, X)
    assert found.outcome != "same"
    twice = {name: c.evidence.streams["select"] for name in c.evidence.streams}
    found = replay(claiming(c, p, streams=twice, counts=c.evidence.selection), g, X)
    assert found.outcome != "same"


def test_a_replay_compares_the_votes_that_chose_the_class():
    g = smoothed()
    (c,) = g.certify(X, n=500, n0=50, alpha=0.01)
    first, *_, last = c.evidence.selection
    rounded = (first + 1, *c.evidence.selection[1:-1], last - 1)
    for stated, outcome in ((rounded, "bears"), ((50, 0, 0), "differs")):
        found = replay(replace(c, evidence=replace(c.evidence, selection=stated)), g, X)
        assert found.outcome == outcome and "some of the votes that chose the class differ" in found.detail
    assert replay(replace(c, evidence=replace(c.evidence, selection=None)), g, X).outcome == "same"  # version 0.1


def test_a_replay_recomputes_a_bound_that_depends_on_the_votes_that_chose_the_class():
    """Bettors of a rule about radii bet by the selection: another one makes the radius larger, with the same counts."""
    net = nn.Linear(DIM, 2).eval()
    nn.init.zeros_(net.weight), nn.init.zeros_(net.bias)
    net.weight.data[1, 0] = 1.0
    g, x = SmoothedClassifier(net, LAW, Fixed(1.0), 2), torch.zeros(1, DIM)
    x[0, 0] = 0.5
    (c,) = g.certify(x, n=20_000, seed=5, stop="0.25,0.45")
    evidence, bound = c.evidence, bound_named("sequential")
    n0 = evidence.n0
    tries = {
        k: bound.probabilities(replace(evidence, selection=(n0 - k, k)).ballot(1))[0] for k in range(n0 // 2 + 1, n0)
    }
    k = max(tries, key=tries.__getitem__)
    better = claiming(c, tries[k], selection=(n0 - k, k))
    assert replay(c, g, x).outcome == "same" and better.radius > c.radius and verify(better, g, x).stands
    assert replay(better, g, x).outcome == "differs"


# --- which model ---


class Wrapped(nn.Module):
    """A model without weights of PyTorch's, in a module."""

    def __init__(self, predict, sign=1):
        super().__init__()
        self.predict, self.sign = predict, sign

    def forward(self, x):
        return self.sign * self.predict(x)


class Flipping(nn.Module):
    def __init__(self, flip):
        super().__init__()
        self.layer, self.flip = nn.Linear(2, 2), flip
        nn.init.eye_(self.layer.weight), nn.init.zeros_(self.layer.bias)

    def forward(self, x):
        return -self.layer(x) if self.flip else self.layer(x)


def logits(x):
    return torch.stack([x[:, 0], -x[:, 0]], 1)


def negated(x):
    return -logits(x)


def callable_of(sign):
    class Model:
        def __call__(self, x):
            return sign * logits(x)

    return Model()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Wrapped(logits), Wrapped(negated)),
        (Wrapped(logits, 1), Wrapped(logits, -1)),
        (Flipping(False), Flipping(True)),
        (nn.Sequential(nn.Flatten()), nn.Sequential(nn.Softmin(1))),
        (callable_of(1), callable_of(-1)),
    ],
    ids=["no weights", "a number", "a switch", "other layers", "the code of a class"],
)
def test_two_models_that_answer_differently_are_not_one(one, other):
    assert identity(one) is None or identity(one) != identity(other)


def test_a_registry_does_not_give_the_answers_of_another_model(tmp_path):
    one, other = (SmoothedClassifier(Wrapped(f).eval(), LAW, None, 2) for f in (logits, negated))
    x = torch.tensor([[1.0, 0.0]])
    with Registry(tmp_path / "r.sqlite") as registry:
        assert registry.certify(one, x, n=1000)[0].prediction == 0
        try:
            answer = registry.certify(other, x + 0.01, n=1000)[0].prediction
        except UcanError:
            return
    assert answer == other.certify(x + 0.01, n=1000)[0].prediction


def test_a_registrys_family_holds_for_all_that_it_enrols(tmp_path):
    g = SmoothedClassifier(Flipping(False).eval(), LAW, None, 2)
    with Registry(tmp_path / "r.sqlite") as registry:
        for i in range(2):
            registry.certify(g, torch.tensor([[1.0 + 10 * i, 0.0]]), n=1000, alpha=0.01, family=2)
        for options in ({"alpha": 0.005}, {"alpha": 0.05, "family": 10}):  # the same level for each
            with pytest.raises(UcanError):
                registry.certify(g, torch.tensor([[100.0, 0.0]]), n=1000, **options)
        assert len(registry) == 2


# --- guards ---


@pytest.mark.parametrize("kind", ["basis", "dense"])
def test_noise_that_is_lost_beside_noise_of_another_direction_certifies_nothing(kind):
    q = torch.tensor([[1.0, -1.0], [1.0, 1.0]], dtype=torch.float64) / math.sqrt(2)
    s = torch.tensor([1e6, 0.1], dtype=torch.float64)
    scale = Basis(q, s) if kind == "basis" else Dense(q * s)

    def f(y):
        return (y[:, 1].double() - y[:, 0].double() >= 0.03125).long()

    g = SmoothedClassifier(f, Gaussian(1.0), Fixed(scale), 2, model_id="difference")
    for x in ([[0.0, 0.0312]], [[0.0, 0.0314]]):  # each would get another class inside the other's region
        with pytest.raises(InvalidInput, match="lost in rounding"):
            g.certify(torch.tensor(x), n=100_000)


class OwnStatistics(nn.Module):
    """Batch norm on the batch's own statistics, and a class that is masked out, as is usual, by a large number."""

    def __init__(self):
        super().__init__()
        self.norm, self.last = nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 2)
        nn.init.normal_(self.last.weight, generator=torch.Generator().manual_seed(1))

    def forward(self, x):
        answers = self.last(self.norm(x) if len(x) > 1 else 0 * x)
        return torch.cat([answers, torch.full_like(answers[:, :1], -1e9)], 1)


def test_a_masked_class_hides_no_batch_statistics():
    g = SmoothedClassifier(OwnStatistics().eval(), LAW, None, 3)
    with pytest.raises(UcanError):
        g.certify(torch.zeros(1, 4), n=200)


# --- arithmetic on a grid ---


class Flat(nn.Module):
    def forward(self, y):
        return 0 * y


def test_the_error_of_composed_noise_on_a_grid_covers_the_scales_of_its_prior():
    prior = torch.full((16,), 1e3)
    prior[0] = 1e-3
    M = Composed(net=Flat(), spread=2.0, prior=prior).eval()
    grid, x = Grid.of(1 / 255), torch.zeros(1, 16)
    largest = (M.second_scale(x, LAW).max() / LAW.scale).double()
    needed = grid.error_of(LAW, RowBounds(largest, largest, 1), torch.zeros((), dtype=torch.float64), 16)
    assert M.grid_error(x, LAW, grid) >= needed  # 3.6e-10 beside 3.0e-5


@pytest.mark.parametrize("kind", ["signal", "prior"])
def test_composed_noise_shows_on_a_grid_what_it_shows_beside_it(kind):
    fitted = torch.cat([torch.full((8,), 0.5), torch.full((8,), 4.0)])
    options = {"signal": (torch.full((16,), 0.5), torch.full((16,), 0.1))} if kind == "signal" else {"prior": fitted}
    M, x, grid = Composed(net=Flat(), spread=2.0, **options).eval(), torch.full((1, 16), 0.5), Grid.of(1 / 256)
    real = M.perturb(x, LAW, 20_000, torch.Generator().manual_seed(0))[:, 0]
    out = torch.empty(1, 20_000, 16)
    M.perturb_on_grid(out, x, LAW, [torch.Generator().manual_seed(0)], grid)
    assert torch.allclose(out[0].std(0), real.std(0), rtol=0.1)


def test_an_offset_that_broadcasts_is_as_good_on_a_grid():
    for step in (None, 1 / 255):
        g = SmoothedClassifier(
            lambda b: logits(b.flatten(1)), LAW, Fixed(1.0, torch.full((3, 1, 1), 0.5)), 2, step=step
        )
        assert g.certify(torch.zeros(1, 3, 2, 2), n=200)


# --- further ones ---


def test_noise_that_is_lost_beside_the_input_is_refused_by_verification_at_every_input():
    class Threshold(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, x):
            return logits((x - 999_999_968.5) * self.weight)

    g, x = SmoothedClassifier(Threshold().eval(), Gaussian(1.0), None, 2), torch.tensor([[1e9, 0.0]])
    (c,) = g.certify(torch.zeros(1, 2), n=1000)  # another input, at which nothing is lost
    about = replace(c, prediction=0, evidence=replace(c.evidence, input_hash=input_hash(x)))
    forged = claiming(about, lower_bound(1000, 1000, 0.001), counts=(1000, 0), selection=(100, 0))
    with pytest.raises(UcanError):  # as a classifier does that has answered nothing yet
        verify(forged, g, x)


def test_settings_that_anyone_may_vary_find_no_luckier_derived_seed():
    net = nn.Linear(2, 2).eval()
    nn.init.zeros_(net.weight), nn.init.zeros_(net.bias)
    net.weight.data[0, 0] = 1
    g, x = SmoothedClassifier(net, LAW, Fixed(1.0), 2), torch.tensor([[-1e-3, 0.0]])
    votes = {g.certify(x, n0=n0, n=100, alpha=0.01, seed="derived")[0].evidence.counts for n0 in range(50, 60)}
    votes |= {g.certify(x, n=100, alpha=0.01 + i * 1e-9, seed="derived")[0].evidence.counts for i in range(10)}
    votes |= {g.certify(x, n=100, alpha=0.01, seed="derived", batch_size=b)[0].evidence.counts for b in (7, 9, 100)}
    assert len(votes) == 1


def test_a_registry_enrols_an_outcome_for_its_own_input_alone(tmp_path):
    g = SmoothedClassifier(Flipping(False).eval(), LAW, None, 2)
    (c,) = g.certify(torch.tensor([[3.0, 0.0]]), n=1000)
    with Registry(tmp_path / "r.sqlite") as registry, pytest.raises(UcanError):
        registry.enrol(torch.tensor([[-3.0, 0.0]]), c)


def test_a_registrys_p_value_on_a_grid_pays_for_the_arithmetic(tmp_path):
    net = nn.Linear(2, 2).double().eval()
    nn.init.zeros_(net.weight)
    net.weight.data[0, 0] = 1
    net.bias.data = torch.tensor([-1e9, 0.0], dtype=torch.float64)
    noise = Fixed(1.0, torch.tensor([1e9, 0.0], dtype=torch.float64))
    g, x = SmoothedClassifier(net, LAW, noise, 2, step=1 / 255), torch.tensor([[5 / 255, 0.0]], dtype=torch.float64)
    tau = g.arithmetic_error(g.M.at(x), x)
    with Registry(tmp_path / "r.sqlite") as registry:
        (answer,) = registry.predict(g, x, n=20_000, alpha=0.1)
    hits = answer.evidence.counts[answer.prediction]
    assert tau > 1e-4 and answer.p_value >= majority_p_value(hits, 20_000, 0.5 + tau)


def test_the_checker_asks_a_rounded_input_for_its_payment(tmp_path):
    g = smoothed(step=0.05)
    (c,) = g.certify(X, n=2000, alpha=0.01)
    assert c.evidence.arithmetic == "grid(1/20), rounded"
    R = LAW.radius(c.p_lower)
    assert c.radius + 0.05 < R
    save_json(replace(c, region=Region(1.0, R, 2, (DIM,)), alm=R), tmp_path / "unpaid.json")
    checker = Path(__file__).parent.parent / "checker" / "check_certificate.py"
    done = subprocess.run([sys.executable, checker, tmp_path / "unpaid.json"], capture_output=True, text=True)
    assert done.returncode != 0, done.stdout


def test_an_audit_takes_no_certificate_of_another_model():
    one, other = (SmoothedClassifier(f, LAW, None, 2) for f in (logits, negated))
    x = torch.tensor([[1.0, 0.0]])
    (c,) = one.certify(x, n=1000)
    with pytest.raises(UcanError):
        case_of(other, 0, x, c, None)


def test_the_explorer_keeps_the_precision_at_another_scale():
    g = smoothed(precision="bf16")
    shown = Session.smoothed(SimpleNamespace(g=g, scale=g.law.scale), 0.7)  # type: ignore[arg-type]
    assert shown.engine.precision == "bf16"


class OfABuffer(Generator):
    """Constant noise whose Σ is a buffer."""

    scope = "pipeline"

    def __init__(self, scale):
        super().__init__()
        self.register_buffer("matrix", scale * torch.eye(2))

    def forward(self, x):
        return x.new_zeros(()), Dense(self.matrix)


def test_noise_is_drawn_and_certified_in_the_state_that_the_evidence_names():
    x, M = torch.tensor([[0.5, 0.0]]), OfABuffer(1.0)
    g = SmoothedClassifier(logits, LAW, M, 2)
    g.certify(x, n=1000)
    M.matrix.data.mul_(4)  # PyTorch does not count this
    (now,), (new,) = g.certify(x, n=1000), SmoothedClassifier(logits, LAW, OfABuffer(4.0), 2).certify(x, n=1000)
    assert now.evidence.noise.state == new.evidence.noise.state
    assert now.radius == new.radius  # 0.451 beside 0.246


class FixedByInput(Generator):
    scope = "frozen"

    def forward(self, x):
        return -2 * x, Scalar(1.0)


def test_frozen_noise_is_not_rebuilt_as_fixed_because_of_its_first_letters(tmp_path, monkeypatch):
    (tmp_path / "of_the_user.py").write_text("import torch\ndef model(b): return torch.stack([b[:, 0], -b[:, 0]], 1)\n")
    monkeypatch.syspath_prepend(tmp_path)
    (c,) = SmoothedClassifier(logits, LAW, FixedByInput(), 2).certify(torch.tensor([[0.8, 0.0]]), n=1000)
    try:
        rebuilt = pipeline_of(ModelRef("of_the_user:model"), c, torch.device("cpu"))
    except UcanError:
        return
    assert rebuilt.M.scope == c.scope == "frozen"


def test_a_secret_seed_is_in_no_message(tmp_path):
    config = {"model": "m", "seed": "0x8810d4a8d6b3747eb773ce1e254cdeed", "seed_source": "random"}
    (outcome,) = smoothed().certify(X, n=200)
    with Store.create(tmp_path / "run", config) as store:
        store.add(0, 0, outcome, 0.0)  # a run without results blocks nothing
    with pytest.raises(UcanError) as refusal:
        Store.create(tmp_path / "run", {"model": "m", "seed": 5, "seed_source": None})
    assert "8810d4a8" not in str(refusal.value)


def test_a_certificate_in_full_precision_is_not_that_of_a_classifier_in_another():
    (c,) = smoothed().certify(X, n=2000, alpha=0.01)
    verdict = verify(c, smoothed(precision="bf16"), X)  # whose fresh votes are drawn in bf16, and said to be in fp32
    assert verdict.confirms is None


def test_frozen_noise_of_the_certificates_own_making_is_said_to_be_that(tmp_path, monkeypatch):
    (tmp_path / "users_own.py").write_text("import torch\ndef model(b): return torch.stack([b[:, 0], -b[:, 0]], 1)\n")
    monkeypatch.syspath_prepend(tmp_path)
    f = load_model("users_own:model", None, 2, torch.device("cpu"), (2,))
    x = torch.tensor([[5.0, 0.0]])  # clearly class 0; a μ made for it gives class 1 and a radius of 24
    (c,) = SmoothedClassifier(f, LAW, Fixed(20.0, torch.tensor([-200.0, 0.0])), 2).certify(x, n=1000)
    save_json(replace(c, scope="frozen"), tmp_path / "c.json")
    np.save(tmp_path / "x.npy", x[0].numpy())
    words = ["verify", tmp_path / "c.json", "--model", "users_own:model", "--input", tmp_path / "x.npy", "--quiet"]
    output = CliRunner().invoke(app, [str(word) for word in words]).output
    assert c.prediction == 1 and c.radius > 20
    assert "the noise as the certificate states it" in output, output


class Shifted(OwnStatistics):
    """The same with all logits larger by a constant, which no softmax sees."""

    def forward(self, x):
        return super().forward(x)[:, :2] + 1e3


def test_a_constant_added_to_all_logits_hides_no_batch_statistics():
    with pytest.raises(UcanError):
        SmoothedClassifier(Shifted().eval(), LAW, None, 2).certify(torch.zeros(1, 4), n=200)


def test_what_no_evidence_can_hold_is_refused_before_any_votes():
    asked = []
    g = SmoothedClassifier(lambda b: asked.append(len(b)) or torch.zeros(len(b)).long(), Gaussian(0.5), num_classes=2)
    with pytest.raises(InvalidInput, match="seed must have at most 256 bits, and this one has 301"):
        g.certify(torch.zeros(1, 4), n=100, seed=2**300)
    assert not asked
    with pytest.raises(InvalidInput, match="model_id is not valid Unicode text"):
        SmoothedClassifier(lambda b: b, Gaussian(0.5), num_classes=2, model_id="\ud800")
