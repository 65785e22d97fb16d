"""Attacks on verification and on the guards: each was seen to succeed once, and must fail."""

import copy
import json
import math
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import ucan
from ucan import (
    Abstention,
    BasisWise,
    Certificate,
    Composed,
    DatasetWise,
    Fixed,
    Gaussian,
    Generator,
    InvalidInput,
    ModelError,
    Region,
    Registry,
    SmoothedClassifier,
)
from ucan.backends import prepare
from ucan.bounds import lower_bound
from ucan.certificate import load_json, save_json
from ucan.cli import app
from ucan.evidence import Noise
from ucan.replay import replay
from ucan.scales import Basis, Dense, Diagonal, Scalar
from ucan.verify import STATED, noise_of, verify

OLD = Path(__file__).parent / "fixtures" / "version-0.1"
SHAPE = (1, 2, 4)
LAW = Gaussian(scale=0.5)


def net(seed: int = 0, classes: int = 3) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(8, classes)).eval()


def dataset_wise(seed: int = 0) -> DatasetWise:
    torch.manual_seed(seed)
    return DatasetWise(SHAPE, gamma=1.0).eval()


X = torch.linspace(0.2, 1.5, 8).reshape(1, *SHAPE)


def certified(generator: Generator | None, **settings: object) -> tuple[SmoothedClassifier, Certificate]:
    g = SmoothedClassifier(net(), LAW, generator, 3)
    (c,) = g.certify(X, **{"n": 2000, **settings})
    assert isinstance(c, Certificate)
    return g, c


def failed(verdict: ucan.verify.Verdict) -> set[str]:
    assert verdict.stands == all(check.passed for check in verdict.checks)
    return {check.name for check in verdict.checks if not check.passed}


def counts_of(c: Certificate, prediction: int) -> tuple[int, ...]:
    return tuple(c.evidence.n if i == prediction else 0 for i in range(len(c.evidence.counts)))


# --- certificates against what is deployed ---


def test_noise_made_for_one_input_does_not_stand_against_a_dataset_wise_run() -> None:
    """A μ that carries the input over to another class, a large Σ, every vote, and a radius to match."""
    g, c = certified(dataset_wise())
    other = (c.prediction + 1) % 3
    away = (net()[1].weight[other] - net()[1].weight[c.prediction]).detach().reshape(SHAPE)
    p = lower_bound(c.evidence.n, c.evidence.n, c.evidence.alpha)
    region = Region(torch.full(SHAPE, 20.0), LAW.radius(p), 2)
    forged = replace(
        c,
        prediction=other,
        p_lower=p,
        region=region,
        alm=region.alm,
        mean=500 * away,
        evidence=replace(c.evidence, counts=counts_of(c, other)),
    )
    assert forged.radius > 27
    assert {"noise", "radius", "votes"} & failed(verify(forged, g, X))
    assert verify(c, g, X).confirms == "pipeline"
    # Alone, under its own noise, it may be true; that is said, and no pipeline is confirmed.
    alone = verify(forged, SmoothedClassifier(net(), LAW, noise_of(forged), 3), X)
    assert alone.about == STATED and alone.confirms is None


@pytest.mark.parametrize("scale", (0.02, 2.0))
def test_a_certificate_under_another_law_does_not_stand_against_a_run(scale: float) -> None:
    g, _ = certified(None)
    other = SmoothedClassifier(net(), Gaussian(scale=scale), None, 3)
    outcome = other.certify(X, n=2000)[0]
    if isinstance(outcome, Abstention):
        pytest.skip("nothing to verify")
    assert "law" in failed(verify(outcome, g, X))


def test_edited_scope_and_generator_do_not_pass_for_pipeline() -> None:
    torch.manual_seed(0)
    generator = ucan.CertificationWise(1, features=2, growth=2).eval()
    g, c = certified(generator)
    assert c.scope == "frozen"
    as_fixed = Noise("Fixed(Diagonal)", "Fixed", "ucan.generators.base", {"sigma": "Diagonal"}, "0" * 64, True)
    forged = replace(c, scope="pipeline", evidence=replace(c.evidence, noise=as_fixed))
    assert {"scope", "noise"} <= failed(verify(forged, g, X))
    assert "scope" in failed(verify(replace(c, scope="pipeline"), g, X))
    alone = verify(forged, SmoothedClassifier(net(), LAW, noise_of(forged), 3), X)
    assert alone.confirms is None


def test_a_ball_of_composed_noise_does_not_pass_for_one_of_another_norm() -> None:
    torch.manual_seed(0)
    generator = Composed(1, norm=math.inf, features=2, growth=2).eval()
    g, c = certified(generator, norm=math.inf)
    region = Region(1.0, LAW.radius(c.p_lower), 2, SHAPE)
    forged = replace(c, norm=2, region=region, alm=region.alm)
    assert forged.radius == pytest.approx(math.sqrt(8) * c.radius)
    assert "radius" in failed(verify(forged, g, X))
    assert verify(c, g, X).confirms == "pipeline"


class FixedByInput(Generator):
    """Looks at its input; its name begins with that of a kind that does not."""

    scope = "frozen"

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ucan.scales.Scale]:
        return torch.zeros(()), Diagonal(0.3 + x[0].abs())


def test_a_name_that_begins_like_a_constant_kinds_is_no_such_kind() -> None:
    g, c = certified(FixedByInput())
    forged = replace(c, scope="pipeline")
    old = replace(forged, evidence=replace(c.evidence, noise=Noise("FixedByInput")))
    for claim in (forged, old):
        assert "scope" in failed(verify(claim, g, X))
        assert "scope" in failed(verify(claim, SmoothedClassifier(net(), LAW, noise_of(claim), 3), X))


@pytest.mark.parametrize("other", (Fixed(1.5), Fixed(torch.full(SHAPE, 1.5)), Fixed(1.0, torch.full(SHAPE, 0.01))))
def test_other_fixed_noise_of_the_same_kind_is_named(other: Generator) -> None:
    _, c = certified(Fixed(1.0))
    verdict = verify(c, SmoothedClassifier(net(), LAW, other, 3), X)
    assert "noise" in failed(verdict)


def test_other_numbers_of_classes_fall() -> None:
    _, c = certified(None)
    assert "classes" in failed(verify(c, SmoothedClassifier(net(classes=4), LAW, None, 4), X))


def test_a_model_without_a_name_is_not_the_one_that_was_certified() -> None:
    _, c = certified(None)
    nameless = replace(c, evidence=replace(c.evidence, weights_hash=None, model=None))
    assert "weights" in failed(verify(nameless, SmoothedClassifier(net(), LAW, None, 3), X))

    def f(batch: torch.Tensor) -> torch.Tensor:
        return net()(batch)

    def h(batch: torch.Tensor) -> torch.Tensor:
        return net()(batch) + 0

    g = SmoothedClassifier(f, LAW, None, 3)
    (c,) = g.certify(X, n=2000)
    assert c.evidence.model is not None and c.evidence.model.startswith("code:") and verify(c, g, X).stands
    assert "weights" in failed(verify(c, SmoothedClassifier(h, LAW, None, 3), X))
    named = SmoothedClassifier(f, LAW, None, 3, model_id="forest 7")
    (c,) = named.certify(X, n=2000)
    assert verify(c, SmoothedClassifier(h, LAW, None, 3, model_id="forest 7"), X).stands
    assert "weights" in failed(verify(c, SmoothedClassifier(h, LAW, None, 3, model_id="forest 8"), X))


def test_what_a_function_holds_is_part_of_its_identity() -> None:
    weights = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))

    def made(w: torch.Tensor) -> SmoothedClassifier:
        return SmoothedClassifier(lambda batch: batch.flatten(1) @ w, LAW, None, 3)

    first, same, other = made(weights), made(weights.clone()), made(weights + 1e-6)
    assert first.engine.identity() == same.engine.identity() != other.engine.identity()


def test_on_the_command_line_a_forged_certificate_falls_against_the_run(tmp_path: Path) -> None:
    record = json.loads((OLD / "isotropic-run" / "certificates" / "0.json").read_text())
    record["evidence"]["law"]["scale"] = 5.0
    for name in ("radius", "alm"):
        record[name] *= 10
    record["region"]["radius"] *= 10
    record["log_volume"] += 64 * math.log(10)
    (tmp_path / "forged.json").write_text(json.dumps(record))
    words = [
        "verify",
        str(tmp_path / "forged.json"),
        "--model",
        str(OLD / "isotropic"),
        "--input",
        "digits",
        "--index",
        "0",
    ]
    result = CliRunner().invoke(app, [*words, "--device", "cpu"])
    assert result.exit_code == 1 and "FAIL law" in result.stdout and "FAIL radius" in result.stdout


# --- replay ---


def test_a_certificate_is_drawn_again_from_its_own_keys(tmp_path: Path) -> None:
    g = SmoothedClassifier(net(), LAW, None, 3)
    for settings in (
        {"seed": 3},
        {"seed": None},
        {"seed": "derived"},
        {"stop": 0.1, "n": 20_000},
        {"bound": "two-class"},
    ):
        (c,) = g.certify(X, **{"n": 1000, **settings})
        save_json(c, tmp_path / "c.json")
        again = load_json(tmp_path / "c.json")
        assert isinstance(again, Certificate) and again.evidence == c.evidence
        found = replay(again, g, X)
        assert found.outcome == "same" and found.stands, found
        assert found.derived is (True if settings.get("seed") == "derived" else None)


def test_counts_of_another_stream_differ() -> None:
    law = Gaussian(scale=1.5)
    g = SmoothedClassifier(net(), law, None, 3)
    (c,) = g.certify(X, n=1000, seed=3)
    lucky = [0] * 3
    lucky[c.prediction] = 1000
    p = lower_bound(1000, 1000, 0.001)
    region = Region(1.0, law.radius(p), 2, SHAPE)
    forged = replace(c, p_lower=p, region=region, alm=region.alm, evidence=replace(c.evidence, counts=tuple(lucky)))
    assert replay(forged, g, X).outcome == "differs"
    moved = replace(c, evidence=replace(c.evidence, counts=_one_moved(c)))
    found = replay(replace(moved, p_lower=c.p_lower - 0.01), g, X)
    assert found.outcome == "bears" and "1 of 1,000 votes differ (rounding)" in found.detail
    turned = replace(c, evidence=replace(c.evidence, counts=c.evidence.counts[::-1]))
    found = replay(turned, g, X)
    assert found.outcome == "differs" and "votes differ, more than rounding explains" in found.detail
    fewer = [count - (k == c.prediction) for k, count in enumerate(c.evidence.counts)]
    invalid = replace(c, p_lower=c.p_lower - 0.01, evidence=replace(c.evidence, counts=tuple(fewer), invalid=1))
    assert "1 of 1,000 votes differ (rounding)" in replay(invalid, g, X).detail  # one that is valid here
    elsewhere = replace(c, evidence=replace(c.evidence, device="cuda: NVIDIA H200"))
    assert replay(elsewhere, g, X).outcome == "not replayable here"
    chosen = replace(c, evidence=replace(c.evidence, data_hash="0" * 64))
    assert replay(chosen, g, X).derived is False and not replay(chosen, g, X).stands


def test_a_replay_runs_the_network_as_the_certificate_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Votes are counted until they just suffice: one that another backend rounds otherwise must not refute the claim."""
    g = SmoothedClassifier(net(), Gaussian(scale=1.5), None, 3)
    (c,) = g.certify(X, n=1000, seed=3)
    counts = list(c.evidence.counts)
    counts[c.prediction] += 5
    counts[(c.prediction + 1) % 3] -= 5
    p = lower_bound(counts[c.prediction], 1000, 0.001)
    region = Region(1.0, g.law.radius(p), 2, SHAPE)
    more = replace(c, p_lower=p, region=region, alm=region.alm, evidence=replace(c.evidence, counts=tuple(counts)))
    assert replay(more, g, X).outcome == "differs"
    for name in ("of another make", "auto", "function"):  # nothing runs so: a forger could say it of any counts
        assert replay(replace(more, evidence=replace(more.evidence, backend=name)), g, X).outcome == "differs"
    names: list[str] = []

    def prepared(f: Any, view: Any, example: torch.Tensor, name: str, precision: str | None) -> Any:
        names.append(name)
        return prepare(f, view, example, "eager", precision)

    monkeypatch.setattr("ucan.engine.prepare", prepared)
    replay(replace(c, evidence=replace(c.evidence, backend="compile")), g, X)
    assert names == ["compile"] and g.engine.backend == "eager"
    found = replay(replace(more, evidence=replace(more.evidence, backend="compile")), g, X)
    assert found.outcome == "not replayable here" and "compile then and eager here" in found.detail
    counts[c.prediction] += 40  # more than rounding moves
    counts[(c.prediction + 1) % 3] -= 40
    far = replace(more, p_lower=lower_bound(counts[c.prediction], 1000, 0.001))
    far = replace(far, evidence=replace(far.evidence, backend="compile", counts=tuple(counts)))
    assert replay(far, g, X).outcome == "differs"


def test_a_seed_that_does_not_follow_is_found_where_nothing_can_be_drawn_again() -> None:
    g = SmoothedClassifier(net(), Gaussian(scale=1.5), None, 3)
    (c,) = g.certify(X, n=500, seed="derived")
    elsewhere = replace(c, evidence=replace(c.evidence, device="cuda: NVIDIA H200"))
    assert replay(elsewhere, g, X).stands
    forged = replace(elsewhere, evidence=replace(elsewhere.evidence, data_hash="0" * 64))
    found = replay(forged, g, X)
    assert found.outcome == "not replayable here" and found.derived is False and not found.stands


def _one_moved(c: Certificate) -> tuple[int, ...]:
    counts = list(c.evidence.counts)
    counts[c.prediction] -= 1
    counts[(c.prediction + 1) % 3] += 1
    return tuple(counts)


def test_old_certificates_are_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(OLD)
    words = ["verify", "isotropic-run/certificates/0.json", "--model", "isotropic", "--input", "digits", "--index", "0"]
    result = CliRunner().invoke(app, [*words, "--replay", "--device", "cpu"])
    assert result.exit_code == 0 and ("replay: same" in result.stdout or "replay: bears" in result.stdout)


def test_a_secret_seed_is_not_handed_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["certify", "--model", str(OLD / "isotropic"), "--data", "digits", "--n", "200", "--device", "cpu"]
    words += ["--seed", "random", "-o", "run", "--certificates", "-q", "--max"]
    assert CliRunner().invoke(app, [*words, "2"]).exit_code == 0
    seed = (tmp_path / "run" / "config.toml").read_text().split('seed = "')[1].split('"')[0]
    assert len(seed) > 25
    (c,) = (load_json(tmp_path / "run" / "certificates" / "0.json"),)
    assert c.evidence.seed is None and set(c.evidence.streams) == {"select", "estimate"}
    assert CliRunner().invoke(app, ["report", "run", "-o", "page.html"]).exit_code == 0
    for path in tmp_path.rglob("*"):
        if path.is_file() and path.name != "config.toml":
            assert seed.encode() not in path.read_bytes() and str(int(seed, 16)).encode() not in path.read_bytes(), path
    assert CliRunner().invoke(app, [*words, "3"]).exit_code == 0  # goes on with the same seed
    assert len((tmp_path / "run" / "results.tsv").read_text().splitlines()) == 4


# --- guards ---


@pytest.mark.parametrize("x, sigma", [(1e9, 1.0), (1.7e9, 10.0), (-1e9, 1.0)])
def test_noise_that_is_lost_beside_the_input_is_refused(x: float, sigma: float) -> None:
    g = SmoothedClassifier(lambda b: (b[:, 0].double() > x).long(), Gaussian(scale=sigma), None, 2)
    with pytest.raises(InvalidInput, match="lost in rounding"):
        g.certify(torch.tensor([[x, 0.0]]), n=500)
    fine = torch.tensor([[0.5, 0.0]])
    with pytest.raises(InvalidInput, match="lost in rounding"):  # at every input, not only at the first
        g.certify(torch.cat([fine, torch.tensor([[x, 0.0]])]), n=500)
    with pytest.raises(InvalidInput, match="lost in rounding"):
        g.predict(torch.cat([fine, torch.tensor([[x, 0.0]])]), n=500)
    (c,) = g.certify(torch.tensor([[x + 2 * sigma, 0.0]], dtype=torch.float64), n=2000)
    assert isinstance(c, Certificate) and c.radius < 2 * sigma


@pytest.mark.parametrize(
    "scale, dtype, sigma",
    [
        (6e-46, torch.float32, 1.0),  # every draw is 0
        (5e-324, torch.float64, 1.0),
        (0.5, torch.float32, torch.tensor([1e-44, 1.0])),
        (1e-16, torch.float32, torch.tensor([1e-30, 1.0])),
    ],
    ids=str,
)
def test_noise_below_the_smallest_numbers_is_refused(scale: float, dtype: torch.dtype, sigma: Any) -> None:
    """At 0 nothing is large, and yet the noise is a few steps of the smallest numbers, or none."""
    g = SmoothedClassifier(lambda b: (b[:, 0] == 0).long(), Gaussian(scale), Fixed(sigma), 2)
    with pytest.raises(InvalidInput, match=r"lost in rounding.* apart"):
        g.certify(torch.zeros(1, 2, dtype=dtype), n=500)


class Mixing(nn.Module):
    """Shifts its answer by the mean of the batch; one saturated output hides that from a tolerance for the whole."""

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        out = 0.2 * (y.flatten(1).mean(0).mean() + 0 * y)
        out.flatten(1)[:, 0] = 1e4
        return out


def test_composed_noise_that_mixes_the_looks_of_a_pass_is_refused() -> None:
    with pytest.raises(InvalidInput, match="depends on the rest of the batch"):
        SmoothedClassifier(net(), LAW, Composed(net=Mixing().eval()), 3).certify(X, n=200, norm=math.inf)


def majority(batch: torch.Tensor) -> torch.Tensor:
    own = (batch[:, 0] > 0).long()
    return torch.full_like(own, int(own.float().mean() > 0.5))


def majority_of_logits(batch: torch.Tensor) -> torch.Tensor:
    return nn.functional.one_hot(majority(batch), 2).float()


@pytest.mark.parametrize("model", (majority, majority_of_logits))
@pytest.mark.parametrize("at", (0.3, 1.0, 4.0, -0.5))
def test_a_model_that_answers_with_the_majority_of_its_batch_is_refused(model: object, at: float) -> None:
    with pytest.raises(ModelError, match="in other company"):
        SmoothedClassifier(model, Gaussian(scale=1.0), None, 2).certify(torch.tensor([[at, 0.0]]), n=500)


class Following(Generator):
    """Declares the pipeline, and follows its input in one way or another."""

    scope = "pipeline"

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.seen: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ucan.scales.Scale]:
        if self.way == "small units":
            return 0.5 * x, Scalar(1e-7)
        if self.way == "within a cell":
            return torch.floor(x.mean() / 0.25).expand(x.shape[1:]) * 3.0, Scalar(1.0)
        if self.seen is None:
            self.seen = x.clone()
        return 5 * self.seen[0], Scalar(1.0)


@pytest.mark.parametrize("way, x", [("small units", 1e-7), ("within a cell", 0.01), ("the first call", 0.3)])
def test_noise_that_follows_its_input_does_not_pass_for_pipeline(way: str, x: float) -> None:
    g = SmoothedClassifier(lambda b: (b[:, 0] > -10).long(), Gaussian(scale=0.5), Following(way), 2)
    with pytest.raises(InvalidInput, match="depends on the input"):
        g.certify(torch.full((1, 4), x), n=500)


def test_noise_that_cannot_be_copied_does_not_pass_for_pipeline_unchecked() -> None:
    noise = Following("the first call")
    noise.lock = threading.Lock()  # no copy, so that nothing would tell that it stores its first input
    g = SmoothedClassifier(lambda b: (b[:, 0] > -10).long(), Gaussian(scale=0.5), noise, 2)
    with pytest.raises(InvalidInput, match=r"cannot be copied .*copy\.deepcopy, .*or declare"):
        g.certify(torch.full((1, 4), 0.3), n=500)


class MyOwn(Generator):
    """A matrix of the user's own, handed out as it is."""

    scope = "pipeline"

    def __init__(self, matrix: torch.Tensor) -> None:
        super().__init__()
        self.matrix = matrix

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ucan.scales.Scale]:
        return torch.full(x.shape[1:], 0.0), Dense(self.matrix)


def test_an_issued_certificate_is_a_value() -> None:
    images = torch.rand(40, *SHAPE, generator=torch.Generator().manual_seed(0))
    basis = BasisWise.pca(images, leading=4, scale=(0.5, 1.0))
    matrix = torch.eye(8) + 0.1
    fixed = Fixed(torch.full(SHAPE, 0.7), torch.full(SHAPE, 0.1))
    changes = {
        basis: lambda: basis.directions.components.mul_(-3),
        MyOwn(matrix): lambda: matrix.mul_(10),
        fixed: lambda: (fixed.mean.add_(5), fixed.scale.sigma.mul_(10)),
    }
    for generator, change in changes.items():
        g = SmoothedClassifier(net(), LAW, generator, 3)
        first, second = g.certify(torch.cat([X, X + 0.01]), n=500)
        assert isinstance(first, Certificate) and isinstance(second, Certificate)
        before = json.dumps(first.to_dict())
        assert first.region.scale is second.region.scale  # one copy for all, as long as the noise is the same
        change()
        assert json.dumps(first.to_dict()) == before
        assert first.region.inscribed_radius(2) == pytest.approx(first.radius, rel=1e-12)


@pytest.mark.parametrize(
    "first, other",
    [
        (Fixed(0.25), Fixed(4.0)),
        (Fixed(0.25), Fixed(0.25, torch.ones(SHAPE))),
        (dataset_wise(), DatasetWise(SHAPE, gamma=25.0)),
        (dataset_wise(0), dataset_wise(1)),
    ],
)
def test_a_registry_takes_no_other_noise_than_the_one_it_began_with(
    tmp_path: Path, first: Generator, other: Generator
) -> None:
    if isinstance(other, DatasetWise) and other.gamma == 25.0:
        other.load_state_dict(first.state_dict())
    with Registry(tmp_path / "r") as registry:
        registry.certify(SmoothedClassifier(net(), LAW, first, 3), X, n=500)
        with pytest.raises(InvalidInput, match="another classifier"):
            registry.certify(SmoothedClassifier(net(), LAW, other, 3), X + 5, n=500)


def test_an_old_registry_takes_no_other_noise_either(tmp_path: Path) -> None:
    import shutil

    from ucan import data
    from ucan.training import load_run

    shutil.copy(OLD / "registry.sqlite", tmp_path / "r")
    trained = load_run(OLD / "certification-wise")
    digits = data.load("digits")
    wide = copy.deepcopy(trained.generator)
    wide.gamma = 25.0
    with Registry(tmp_path / "r") as registry:
        x = digits[60][0][None]
        with pytest.raises(InvalidInput, match="another classifier"):
            registry.certify(SmoothedClassifier(trained.classifier, trained.law, wide, 10), x, n=400)
        g = SmoothedClassifier(trained.classifier, trained.law, trained.generator, 10)
        assert registry.certify(g, x, n=400)[0].scope == "registry"


def test_a_basis_must_be_orthonormal_enough_for_the_spread_of_its_scales() -> None:
    torch.manual_seed(0)
    q = torch.linalg.qr(torch.randn(8, 8, dtype=torch.float64)).Q
    off = q @ (torch.eye(8, dtype=torch.float64) + 5e-6 * torch.randn(8, 8, dtype=torch.float64))
    for spread, refused in ((2.0, False), (1e6, True)):
        s = torch.linspace(1, spread, 8, dtype=torch.float64)
        assert Basis(q, s).check() is None
        if refused:
            with pytest.raises(ucan.SingularScale, match="not enough for scales"):
                Basis(off, s).check()
        else:
            Basis(off, s).check()


def test_a_basis_that_was_made_to_pass_known_vectors_is_refused() -> None:
    """E acts on a direction that all the vectors of a fixed seed miss."""
    d = 64
    known = torch.randn(8, d, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    missed = torch.linalg.svd(known).Vh[-1]
    q = torch.eye(d, dtype=torch.float64) + 0.5 * torch.outer(missed, missed)
    with pytest.raises(InvalidInput, match="not orthonormal"):
        Basis(q, torch.ones(d))


# --- one classifier, many certificates ---


def test_precision_belongs_to_the_classifier() -> None:
    g = SmoothedClassifier(net(), LAW, None, 3, precision="bf16")
    (c,), (p,) = g.certify(X, n=500), g.predict(X, n=500)
    assert c.evidence.precision == p.evidence.precision == "bf16" and not c.evidence.copy
    plain = SmoothedClassifier(net(), LAW, None, 3)
    (c,) = plain.certify(X, n=500, precision="bf16")
    assert c.evidence.copy and "of a copy in bf16" in str(c) and plain.predict(X, n=500)[0].evidence.precision == "fp32"


def test_alpha_for_many_certificates_at_once(tmp_path: Path) -> None:
    g = SmoothedClassifier(net(), LAW, None, 3)
    (single,), (one,) = g.certify(X, n=1000, alpha=0.00001), g.certify(X, n=1000, alpha=0.001, family=100)
    assert one.evidence.alpha == pytest.approx(0.00001) and one.evidence.family == 100
    assert one.p_lower == pytest.approx(single.p_lower, rel=1e-9) and "one of 100" in str(one)
    with pytest.raises(InvalidInput, match="family is 2, but"):
        g.certify(torch.cat([X, X, X]), n=100, family=2)
    with Registry(tmp_path / "r") as registry:
        registry.certify(g, torch.cat([X, X + 10]), n=500, family=2)
        with pytest.raises(InvalidInput, match="shared by 2 enrolments"):
            registry.certify(g, X - 10, n=500, family=2)


def test_a_registry_answers_predictions(tmp_path: Path) -> None:
    g = SmoothedClassifier(net(), LAW, None, 3)
    with Registry(tmp_path / "r") as registry:
        (c,) = registry.certify(g, X, n=2000)
        (p,) = registry.predict(g, X + 0.001)
        assert (p.prediction, p.scope) == (c.prediction, "registry") and 0 <= p.p_value <= 0.001
        (far,) = registry.predict(g, X + 10)
        assert len(registry) == 2 and registry.certify(g, X + 10)[0].prediction == far.prediction


def test_seeds_from_entropy_and_from_what_is_certified() -> None:
    g = SmoothedClassifier(net(), LAW, None, 3)
    random = [g.certify(X, n=300, seed=None)[0].evidence for _ in range(2)]
    assert random[0].streams != random[1].streams and random[0].seed is None
    derived = [g.certify(X, n=n, seed="derived")[0].evidence for n in (300, 300, 301)]
    assert derived[0].seed == derived[1].seed == derived[2].seed  # nor can anyone choose among numbers of votes
    other = SmoothedClassifier(net(1), LAW, None, 3).certify(X, n=300, seed="derived")[0].evidence
    assert other.seed != derived[0].seed


def test_noise_that_keeps_a_tensor_of_its_training_can_be_copied_for_the_check() -> None:
    class Keeping(ucan.DatasetWise):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ucan.scales.Scale]:
            mean, scale = super().forward(x)
            self.last = mean.sum() * 2 if torch.is_grad_enabled() else getattr(self, "last", None)
            return mean, scale

    noise = Keeping((4,))
    noise(torch.zeros(1, 4))[0].sum().backward()
    assert not noise.last.is_leaf
    g = SmoothedClassifier(lambda b: (b[:, 0] > -10).long(), Gaussian(scale=0.5), noise.eval(), 2, model_id="m")
    assert g.certify(torch.full((1, 4), 0.3), n=500)[0].scope == "pipeline"
