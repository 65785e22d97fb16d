"""Noise optimised for each input: larger `frozen` radii, and no other claim."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats
from torch import nn

import ucan
from ucan.audit import Budget, attack
from ucan.errors import InvalidInput, ModelError, UnsupportedNorm
from ucan.generators.found import SampleWise
from ucan.generators.optimised import Ancer, DataDependent
from ucan.generators.rotated import Rancer
from ucan.report.rerun import commands
from ucan.runs.audit import AuditJob, audit
from ucan.runs.certify import CertifyJob, certify
from ucan.runs.read import Run
from ucan.runs.train import TrainJob, trainer_of
from ucan.runs.verify import VerifyJob, verify
from ucan.training import read_settings

sys.path.insert(0, str(Path(__file__).parents[1] / "experiments"))

import optimised

LAW = ucan.Gaussian(0.3)


def linear(weights: list[list[float]]) -> nn.Module:
    net = nn.Sequential(nn.Flatten(), nn.Linear(len(weights[0]), len(weights), bias=False))
    with torch.no_grad():
        net[1].weight.copy_(torch.tensor(weights))
    return net.eval()


def curved() -> nn.Module:
    """Two classes: inside a sphere of radius 2 around 0, and outside."""

    class Sphere(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.steepness = nn.Parameter(torch.tensor(8.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            inside = self.steepness * (4 - x.flatten(1).square().sum(1))
            return torch.stack((inside, -inside), 1)

    return Sphere().eval()


def test_sigma_climbs_its_own_radius() -> None:
    """At the centre of a ball the best σ is neither tiny nor huge; at an input near its border it is smaller."""
    noise = DataDependent(curved(), ucan.Gaussian(0.3), draws=200, steps=150)
    x = torch.zeros(2, 1, 2, 2)
    x[1, 0, 0, 0] = 1.7
    _, scale = noise(x)
    middle, border = scale.sigma[0, 0, 0, 0], scale.sigma[1, 0, 0, 0]
    assert 1.5 < middle < 8 and border < middle
    g, iso = (ucan.SmoothedClassifier(noise.model, ucan.Gaussian(0.3), m, num_classes=2) for m in (noise, None))
    mine, plain = (s.certify(x[:1], n=2000)[0] for s in (g, iso))
    assert mine.scope == "frozen" and mine.radius > 1.3 * plain.radius


def test_the_best_sigma_of_a_list_is_chosen_by_its_exact_radius() -> None:
    """At the centre of a ball in four dimensions p is a χ² probability: σ·Φ⁻¹(p) is known for every σ."""
    tried = (0.5, 1.0, 2.0, 4.0, 8.0)
    exact = [s * stats.norm.ppf(stats.chi2.cdf(4 / (0.3 * s) ** 2, 4).clip(1e-9, 1 - 1e-3)) for s in tried]
    noise = SampleWise(curved(), LAW, tried, votes=2000)
    x = torch.zeros(2, 1, 2, 2)
    x[1, 0, 0, 0] = 1.9  # near the border: less noise
    sigmas = noise(x)[1].sigma[:, 0, 0, 0]
    assert float(sigmas[0]) == tried[max(range(len(tried)), key=exact.__getitem__)] and sigmas[1] < sigmas[0]
    (claim,) = ucan.SmoothedClassifier(noise.model, LAW, noise, num_classes=2).certify(x[:1], n=2000)
    assert claim.scope == "frozen"
    wrong: list[tuple[Any, int]] = [((), 10), ((0.5, -1.0), 10), ((1.0,), 0), (0.5, 10), (["a"], 10), ([True], 10)]
    for sigmas, votes in wrong:
        with pytest.raises(InvalidInput, match="must be"):
            SampleWise(curved(), LAW, sigmas, votes)
    with pytest.raises(ModelError, match="logits"):
        SampleWise(nn.Sequential(nn.Flatten(0)), LAW)(x)


def test_ancer_never_below_its_start_and_larger_where_nothing_is_looked_at() -> None:
    net = linear([[4.0, 0, 0, 0], [-4.0, 0, 0, 0]])
    x = torch.tensor([[[[1.0, 0.2, 0.3, 0.1]]]])
    start = DataDependent(net, LAW, draws=100, steps=10)
    ancer = Ancer(net, LAW, draws=100, steps=10, shape_steps=60)
    before, after = start(x)[1].sigma, ancer(x)[1].sigma
    assert (after >= before - 1e-6).all()
    assert (after[..., 1:] > 1.5 * before[..., 1:]).all()  # coordinates that the classifier ignores
    g, iso = (ucan.SmoothedClassifier(net, LAW, m, num_classes=2) for m in (ancer, start))
    assert g.certify(x, n=1000)[0].alm > iso.certify(x, n=1000)[0].alm


def test_the_same_input_gets_the_same_noise() -> None:
    noise = Ancer(curved(), LAW, draws=20, steps=5, shape_steps=3)
    x = torch.rand(3, 1, 2, 2)
    whole, alone = noise(x)[1].sigma, noise(x[1:2])[1].sigma
    torch.testing.assert_close(whole[1:2], alone, rtol=0, atol=0)
    assert noise.record().state != Ancer(linear([[1.0] * 4, [2.0] * 4]), LAW, 20, 5, shape_steps=3).record().state


def test_what_it_has_no_radius_for_is_refused() -> None:
    with pytest.raises(ModelError, match="gradient"):
        DataDependent(lambda x: x, LAW)
    with pytest.raises(UnsupportedNorm, match="Gaussian"):
        DataDependent(curved(), ucan.Laplace(0.3))
    with pytest.raises(InvalidInput, match="optimised for the scale"):
        g = ucan.SmoothedClassifier(curved(), ucan.Gaussian(1.0), DataDependent(curved(), LAW), num_classes=2)
        g.certify(torch.zeros(1, 1, 2, 2), n=100)
    with pytest.raises(InvalidInput, match="shape_steps"):
        Ancer(curved(), LAW, shape_steps=0)
    for name in ("rate", "smallest", "shape_rate", "weight"):
        with pytest.raises(InvalidInput, match=f"^{name} must be a finite number, got 'x'"):
            Ancer(curved(), LAW, **{name: "x"})


def test_directions_are_the_hessians_leading_ones() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(9, 12), nn.Tanh(), nn.Linear(12, 3)).eval()
    x, rng = torch.rand(1, 1, 3, 3), torch.Generator().manual_seed(3)
    noise = Rancer(net, LAW, draws=40, steps=1, rank=2, rounds=300)
    v = noise.directions(x, 1.0, rng).double()
    torch.testing.assert_close(v.T @ v, torch.eye(2, dtype=torch.float64), atol=1e-5, rtol=0)
    eps = 0.3 * torch.randn(40, 1, 3, 3, generator=torch.Generator().manual_seed(3))
    top = net(x + eps).softmax(-1).mean(0).argmax().expand(40)
    dense = torch.autograd.functional.hessian(
        lambda z: nn.functional.cross_entropy(net(z.reshape(1, 1, 3, 3) + eps), top), x
    )
    values, vectors = torch.linalg.eigh(dense.reshape(9, 9).double())
    leading = vectors[:, values.abs().argsort(descending=True)[:2]]
    assert float(torch.linalg.svdvals(leading.T @ v).min()) > 0.999


def test_rancer_grows_beside_a_direction_that_no_axis_has() -> None:
    """A linear classifier that looks along the diagonal: no coordinate is free, and all directions but one are."""
    net = linear([[1.0] * 16, [-1.0] * 16])
    x = torch.full((1, 1, 4, 4), 0.05)
    given = dict(draws=60, steps=5, shape_steps=60)
    axes, turned = Ancer(net, LAW, **given), Rancer(net, LAW, rank=2, **given)
    scale = turned(x)[1]
    assert type(scale).__name__ == "Spiked" and scale.largest() > 1.3
    outcomes = [ucan.SmoothedClassifier(net, LAW, m, num_classes=2).certify(x, n=4000)[0] for m in (axes, turned)]
    assert outcomes[1].alm > 1.1 * outcomes[0].alm and outcomes[1].scope == "frozen"
    true = 16 * 0.05 / 4  # the distance to the border
    assert all(0.8 * true < c.radius <= true for c in outcomes)
    whole = turned.perturb(x.repeat(3, 1, 1, 1), LAW, 5, torch.Generator().manual_seed(0))
    assert whole.shape == (5, 3, 1, 4, 4)
    with pytest.raises(InvalidInput, match="one input at a time"):
        turned(x.repeat(2, 1, 1, 1))
    with pytest.raises(InvalidInput, match="rank"):
        Rancer(net, LAW, rank=0)


# --- on the digits, by the commands ---

QUICK = "data-dependent(steps=30,draws=16)"
SHAPED = "ancer(steps=30,draws=16,shape_steps=25)"


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("optimised") / "model"
    trainer_of(TrainJob(settings="digits-isotropic", changes=["epochs=10"], device="cpu"), folder).run()
    return folder


def certified(trained: Path, out: Path, **changed: Any) -> Run:
    settings: dict[str, Any] = dict(model=str(trained), data="digits", scale=0.15, skip=40, n=500, most=10)
    certify(CertifyJob(**{**settings, **changed}), out)
    return Run.open(out)


def means(run: Run) -> tuple[float, float]:
    return float(run.columns["radius"].mean()), float(run.columns["alm"].mean())


def test_larger_frozen_radii_than_the_isotropic_start(trained: Path, tmp_path: Path) -> None:
    plain, own, shaped = (
        certified(trained, tmp_path / str(i), noise=noise) for i, noise in enumerate((None, QUICK, SHAPED))
    )
    assert (plain.scope, own.scope, shaped.scope) == ("pipeline", "frozen", "frozen")
    assert means(own)[0] > 1.1 * means(plain)[0]  # the radius
    assert means(shaped)[1] > 1.03 * means(own)[1] and means(shaped)[0] > 1.05 * means(plain)[0]  # ALM, and the radius
    assert any(f"--noise '{QUICK}'" in line for line in commands(own))


def test_a_list_of_sigmas_by_its_name(trained: Path, tmp_path: Path) -> None:
    """Larger radii than at the start, verified with the same list and refused with another one."""
    noise = "sample-wise(sigmas=[0.5,1.0,1.5,2.0],votes=200)"
    plain, own = (
        certified(trained, tmp_path / str(i), noise=n, certificates=True) for i, n in enumerate((None, noise))
    )
    assert own.scope == "frozen" and means(own)[0] > 1.05 * means(plain)[0]
    idx = int(own.columns["idx"][~own.columns["abstained"]][0])
    path = own.folder / "certificates" / f"{idx}.json"
    job = VerifyJob(certificate=path, model=str(trained), scale=0.15, input="digits", index=idx, noise=noise, n=500)
    assert (
        verify(job).verdict.confirms == "frozen"
        and not verify(replace(job, noise="sample-wise(sigmas=[0.5],votes=200)")).stands
    )


def test_its_audit_breaks_nothing_where_it_is_frozen_and_says_that_live_is_not_covered(
    trained: Path, tmp_path: Path
) -> None:
    run = certified(trained, tmp_path / "run", noise="data-dependent(steps=4,draws=4)", most=2, certificates=True)
    budget = Budget(steps=4, draws=8, restarts=1, check=300)
    done = audit(AuditJob(run=run.folder, factors=(0.9,), budget=budget))
    assert done.summary.broken["frozen"] == 0 and not done.summary.is_bug and "live" in done.summary.broken
    assert {a.covered for a in done.attempts if a.mode == "live"} == {False}
    idx = int(run.columns["idx"][~run.columns["abstained"]][0])
    job = VerifyJob(
        certificate=run.folder / "certificates" / f"{idx}.json", model=str(trained), scale=0.15, input="digits", index=idx,
        noise="data-dependent(steps=4,draws=4)",
    )  # fmt: skip
    verified = verify(job)
    assert verified.stands and verified.verdict.confirms == "frozen"
    assert not verify(replace(job, noise="data-dependent(steps=4,draws=5)")).stands  # other noise


def test_rancer_by_its_name(trained: Path, tmp_path: Path) -> None:
    noise = "rancer(steps=4,draws=4,shape_steps=4,rank=3,rounds=2)"
    run = certified(trained, tmp_path / "run", noise=noise, most=2, certificates=True)
    assert run.scope == "frozen" and run.certificates > 0
    done = audit(AuditJob(run=run.folder, factors=(0.9,), budget=Budget(steps=2, draws=8, restarts=1, check=300)))
    assert done.summary.broken["frozen"] == 0
    idx = int(run.columns["idx"][~run.columns["abstained"]][0])
    path = run.folder / "certificates" / f"{idx}.json"
    job = VerifyJob(certificate=path, model=str(trained), scale=0.15, input="digits", index=idx, noise=noise, n=300)
    assert verify(job).verdict.confirms == "frozen"


def test_with_a_registry_nothing_breaks(trained: Path, tmp_path: Path) -> None:
    run = certified(
        trained, tmp_path / "run", noise="data-dependent(steps=4,draws=4)", most=2, registry=tmp_path / "memory.sqlite"
    )
    assert run.scope == "registry" and run.certificates > 0
    budget = Budget(steps=3, draws=8, restarts=1, check=300)
    done = audit(AuditJob(run=run.folder, factors=(0.9,), budget=budget))
    assert done.summary.covered_breaks == 0 and not done.summary.is_bug


def test_the_noise_of_a_trained_run_is_replaced_by_optimised_noise_alone(trained: Path) -> None:
    with pytest.raises(InvalidInput, match="leave out --noise"):
        certified(trained, trained, noise="pattern-2")
    with pytest.raises(InvalidInput, match="not trained"):
        replace(read_settings("digits-isotropic"), generator={"kind": "ancer"}).build_generator((1, 8, 8), None)


@pytest.mark.parametrize(
    "kind", [partial(DataDependent, draws=10, steps=4), partial(SampleWise, sigmas=(1.0, 1.5, 2.0), votes=40)]
)
def test_votes_are_independent_of_the_draws_that_chose_sigma(kind: Any) -> None:
    """For a linear classifier the true radius is the margin, whatever σ is: false claims stay below α."""
    net, alpha, tries = linear([[1.0, 0, 0, 0], [-1.0, 0, 0, 0]]), 0.2, 150
    noise = kind(net, LAW)
    g = ucan.SmoothedClassifier(net, LAW, noise, num_classes=2)
    x = torch.rand(tries, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    x[:, 0, 0, 0] = 0.3
    outcomes = g.certify(x, n0=20, n=60, alpha=alpha, seed=1)
    false = sum(not c.abstained and c.radius > 0.3 for c in outcomes)
    assert (
        0.05 * tries < false <= tries * alpha + 3 * (tries * alpha * (1 - alpha)) ** 0.5
    )  # a bound that is nearly tight


def slab() -> nn.Module:
    """Class 1 where 0.4 < x₁ < 0.9, else class 0: large noise hardly sees it, small noise inside of it sees nothing else."""

    class Slab(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.steepness = nn.Parameter(torch.tensor(80.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            inside = self.steepness * (0.0625 - (x.flatten(1)[:, 0] - 0.65).square())
            return torch.stack((-inside, inside), 1)

    return Slab().eval()


def test_the_auditor_breaks_a_live_pipeline_that_searches_for_its_noise(tmp_path: Path) -> None:
    """σ grows at the input until the slab is a small part of the noise; inside the slab the search stays at small σ."""
    law = ucan.Gaussian(0.3)
    noise = DataDependent(slab(), law, draws=50, steps=60, rate=0.1)
    g = ucan.SmoothedClassifier(noise.model, law, noise, num_classes=2)
    x = torch.tensor([[[[-0.3, 0.0]]]])
    (claim,) = g.certify(x, n=2000)
    assert claim.prediction == 0 and claim.radius > 0.8  # more than the distance to the slab
    hard = Budget(steps=10, draws=8, restarts=1, check=500)
    live, _ = attack(g, x, claim, "live", 0.999, hard)
    frozen, _ = attack(g, x, claim, "frozen", 0.999, hard)
    assert live.broken and live.attack == "rescaled" and not live.covered
    assert not frozen.broken and frozen.covered and frozen.attack == "gradient"
    with ucan.Registry(tmp_path / "answers.sqlite") as registry:
        (kept,) = registry.certify(g, x, n=2000)
        held, _ = attack(g, x, kept, "live", 0.999, hard, registry=registry)
        assert kept.scope == "registry" and held.covered and not held.broken


def test_the_table_on_the_page_is_what_is_recorded() -> None:
    page = optimised.PAGE.read_text(encoding="utf-8")
    assert page == optimised.written(page), "run experiments/optimised.py page"
    for record in optimised.recorded().values():
        assert record["complete"] == (record["attacked"]["certificates"] == record["inputs"])
        assert record["frozen"]["radius"] > record["start"]["radius"]  # larger than the isotropic start's
        assert record["attacked"]["frozen"] == record["registry"]["broken"] == 0
    some = optimised.table({"ancer": optimised.recorded()["ancer"]})
    assert any(line.startswith("| RANCER, `frozen` | not measured") for line in some)
