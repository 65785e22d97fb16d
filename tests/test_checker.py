"""The schema and the stand-alone checker: every honest file passes, every change to a claim is found."""

import copy
import hashlib
import importlib.util
import json
import math
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from jsonschema import Draft202012Validator

import ucan
from ucan import (
    Certificate,
    CertificationWise,
    Composed,
    ExpInf,
    Fixed,
    Gaussian,
    Laplace,
    PowerLaw,
    Region,
    Registry,
    SmoothedClassifier,
    Uniform,
)
from ucan.bounds import anytime_lower_bound, log_wealth, lower_bound, upper_bound
from ucan.certificate import from_dict, save_json
from ucan.choices import EARLIER, SCOPES
from ucan.errors import DoesNotFollow
from ucan.laws import Law
from ucan.scales import DCT, Basis, BlockDiagonal, Dense, LowRank

INF = math.inf
ROOT = Path(__file__).parents[1]
CHECKER = ROOT / "checker" / "check_certificate.py"
SCHEMA = json.loads((ROOT / "src" / "ucan" / "certificate.schema.json").read_text(encoding="utf-8"))
OLD = ROOT / "tests" / "fixtures" / "version-0.1"
FILES = sorted([*(OLD / "outcomes").glob("*.json"), *OLD.glob("*/certificates/*.json")])

spec = importlib.util.spec_from_file_location("check_certificate", CHECKER)
assert spec is not None and spec.loader is not None
checker = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = checker
spec.loader.exec_module(checker)

EVENT = (2, 2, 3)
LAWS = [
    (Gaussian(scale=0.3), 1),
    (Gaussian(scale=0.3), 2),
    (Gaussian(scale=0.3), INF),
    (Laplace(scale=0.2), 1),
    (Uniform(scale=0.5), 1),
    (Uniform(scale=0.5), INF),
    (ExpInf(scale=0.03), 1),
    (ExpInf(scale=0.03), INF),
    (PowerLaw(scale=0.5, a=20.0), 1),
]
BOUNDS = [{}, {"bound": "two-class"}, {"bound": "anytime"}, {"bound": "randomised"}, {"stop": 0.01}, {"stop": "5%"}]


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def positive(*shape, seed=0, dtype=torch.float64):
    return (0.3 + torch.rand(*shape, generator=rng(seed), dtype=torch.float64)).to(dtype)


def dense(dim, dtype=torch.float64):
    return (torch.randn(dim, dim, generator=rng(1), dtype=torch.float64) / 4 + 2 * torch.eye(dim)).to(dtype)


def orthonormal(dim, dtype=torch.float64):
    return torch.linalg.qr(torch.randn(dim, dim, generator=rng(), dtype=torch.float64))[0].to(dtype)


SCALES = {
    "scalar": 0.7,
    "diagonal": positive(*EVENT, dtype=torch.float32),
    "dense": Dense(dense(12)),
    "dense float32": Dense(dense(12, torch.float32)),
    "basis": Basis(orthonormal(12), positive(12)),
    "basis float32": Basis(orthonormal(12, torch.float32), positive(12, dtype=torch.float32)),
    "dct": DCT(positive(*EVENT)),
    "low rank": LowRank(positive(12), torch.randn(12, 2, generator=rng(), dtype=torch.float64)),
    "blocks": BlockDiagonal([dense(k) for k in (1, 7, 4)]),
}


def top_left(batch):
    return (batch.flatten(1)[:, 0] > 0).long()


def smoothed(scale=0.7, law=None, mean=None, generator=None):
    return SmoothedClassifier(top_left, law or Gaussian(scale=0.3), generator or Fixed(scale, mean), num_classes=2)


def certified(scale=0.7, law=None, norm=2, shape=EVENT, x0=0.3, n=500, mean=None, generator=None, **settings):
    (outcome,) = smoothed(scale, law, mean, generator).certify(torch.full((1, *shape), x0), n=n, norm=norm, **settings)
    return outcome


def record_of(outcome, folder=None):
    """The outcome as its file has it."""
    return json.loads(json.dumps(outcome.to_dict(folder), allow_nan=False))


def verdicts(record, folder=ROOT):
    return {name: verdict for verdict, name, _ in checker.check(record, Path(folder))}


def failed(record, folder=ROOT):
    return {name for name, verdict in verdicts(record, folder).items() if verdict == "FAIL"}


def run(path, *before):
    return subprocess.run([sys.executable, *before, str(path)], capture_output=True, text=True, encoding="utf-8")


def check_valid(record):
    errors = [f"{e.json_path}: {e.message}" for e in Draft202012Validator(SCHEMA).iter_errors(record)]
    assert errors == []


def check_sound(outcome, folder=None):
    """The outcome's file follows the schema, and the checker finds nothing wrong and leaves nothing out."""
    record = record_of(outcome, folder)
    check_valid(record)
    lines = checker.check(record, Path(folder or ROOT))
    assert [line for line in lines if line[0] != "ok"] == []
    return record


# --- honest outcomes ---


@pytest.mark.parametrize("settings", BOUNDS, ids=str)
@pytest.mark.parametrize(("law", "norm"), LAWS, ids=str)
def test_every_law_norm_and_bound(law: Law, norm: float, settings: dict) -> None:
    outcome = certified(SCALES["diagonal"], law, norm, mean=torch.full(EVENT, 0.05), **settings)
    assert isinstance(outcome, Certificate) and outcome.radius > 0
    check_sound(outcome)


@pytest.mark.parametrize(("law", "norm"), LAWS, ids=str)
@pytest.mark.parametrize("kind", SCALES)
def test_every_kind_of_scale(kind: str, law: Law, norm: float) -> None:
    check_sound(certified(SCALES[kind], law, norm, x0=3.0, shape=EVENT))


@pytest.mark.parametrize("q", [1, 2, INF])
@pytest.mark.parametrize("p", [1, 2, INF])
@pytest.mark.parametrize("kind", SCALES)
def test_every_inscribed_ball(kind: str, p: float, q: float) -> None:
    sigma = certified(SCALES[kind], x0=3.0).region.scale  # rounded as noise is drawn: not always the same
    entry = record_of(replace(certified(SCALES[kind], x0=3.0), region=Region(sigma, 1.3, p, EVENT)))["region"]["scale"]
    found = checker.shape_of(entry, ROOT, 12, q, p)
    own = Region(sigma, 1.3, p, EVENT)
    assert own.inscribed_radius(q) <= 1.3 / found.inverse_norm * (1 + 1e-9)
    if (
        kind != "dct" or q <= p
    ):  # of a cosine basis the checker bounds the channels one by one, which allows a little more
        assert own.inscribed_radius(q) == pytest.approx(1.3 / found.inverse_norm, rel=1e-6)


@pytest.mark.parametrize("kind", ["dense", "diagonal", "dct"])
def test_tensors_beside_the_file(kind: str, tmp_path: Path) -> None:
    scale, shape = {
        "dense": (Dense(dense(80)), (5, 4, 4)),
        "diagonal": (positive(3, 40, 40, dtype=torch.float32), (3, 40, 40)),
        "dct": (DCT(positive(5, 32, 32)), (5, 32, 32)),
    }[kind]
    record = check_sound(certified(scale, shape=shape, x0=9.0), tmp_path)
    assert record["region"]["scale"]["tensors"].keys() == {"file"}


def test_other_outcomes() -> None:
    check_sound(certified(x0=0.0))
    check_sound(certified(x0=0.0, bound="two-class"))
    check_sound(certified(x0=0.0, stop=0.1))
    x = torch.full((1, *EVENT), 0.3)
    for settings in ({}, {"test": "top-two"}, {"stop": True}, {"n": 20_000}):
        for point in (x, 0 * x):
            check_sound(smoothed().predict(point, **settings)[0])


def test_every_way_to_seed_and_a_family() -> None:
    secret = check_sound(certified(seed=None))
    assert secret["evidence"]["seed"] is None
    derived = check_sound(certified(seed="derived"))
    assert derived["evidence"]["data_hash"] is not None
    assert check_sound(certified(family=5))["evidence"]["family"] == 5


def test_many_votes_and_few() -> None:
    for n, alpha in ((1, 0.6), (2, 0.6), (10, 0.01), (100_000, 0.001)):  # at less, so few votes are refused
        for settings in BOUNDS[:4]:
            if n > 1 or settings.get("bound") != "two-class":  # of which one vote proves nothing at any α
                check_sound(certified(x0=0.1, n=n, alpha=alpha, **settings))
                check_sound(certified(x0=9.0, n=n, alpha=alpha, **settings))


def test_noise_that_follows_the_input_and_composed_noise() -> None:
    torch.manual_seed(0)
    x = torch.full((1, 1, 4, 4), 0.5)
    frozen = SmoothedClassifier(top_left, Gaussian(scale=0.2), CertificationWise(1, features=2, growth=2).eval(), 2)
    (outcome,) = frozen.certify(x, n=500)
    assert outcome.scope == "frozen"
    check_sound(outcome)
    for norm in (2, INF):
        noise = Composed(1, norm=norm, features=2, growth=2).eval()
        (outcome,) = SmoothedClassifier(top_left, Gaussian(scale=0.2), noise, 2).certify(x, n=500, norm=norm)
        assert check_sound(outcome)["region"]["norm"] == (2 if norm == 2 else "inf")


def test_a_registry_makes_regions_smaller(tmp_path: Path) -> None:
    g = smoothed(SCALES["diagonal"])
    with Registry(tmp_path / "registry.sqlite") as registry:
        for x0 in (0.3, 0.25, -0.2):
            for outcome in registry.certify(g, torch.full((1, *EVENT), x0), n=500):
                check_sound(outcome)


def test_a_registry_answers_by_the_two_class_bound_without_a_majority(tmp_path: Path) -> None:
    """45, 30 and 25 % of the votes: the first class leads, and has no majority."""

    def thirds(batch: torch.Tensor) -> torch.Tensor:
        drawn = torch.special.ndtr(batch[:, 0, 0, 0])
        return torch.nn.functional.one_hot((drawn >= 0.45).long() + (drawn >= 0.75), 3).float()

    g = SmoothedClassifier(thirds, Gaussian(scale=1.0), num_classes=3)
    with Registry(tmp_path / "registry.sqlite") as registry:
        (outcome,) = registry.predict(g, torch.zeros(1, *EVENT), n=4000, bound="two-class")
    assert outcome.prediction == 0 and max(outcome.evidence.counts) < 2000
    record = check_sound(outcome)
    record["p_value"] /= 2
    assert "FAIL" in {verdict for verdict, _, _ in checker.check(record, tmp_path)}


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.parent.name}/{path.stem}")
def test_files_of_version_0_1(path: Path) -> None:
    record = json.loads(path.read_text(encoding="utf-8"))
    check_valid(record)
    assert {verdict for verdict, _, _ in checker.check(record, path.parent)} == {"ok"}


# --- the numbers, against the library's ---


@pytest.mark.parametrize("alpha", [1e-6, 0.001, 0.05, 0.5])
@pytest.mark.parametrize(("k", "n"), [(0, 7), (1, 1), (3, 7), (7, 7), (70, 100), (999, 1000), (99_990, 100_000)])
def test_the_bounds(k: int, n: int, alpha: float) -> None:
    assert checker.at_least(k, n, alpha) == pytest.approx(lower_bound(k, n, alpha), rel=1e-11)
    assert 1 - checker.at_least(n - k, n, alpha) == pytest.approx(upper_bound(k, n, alpha), rel=1e-11, abs=1e-14)
    assert checker.at_least_anytime(k, n, alpha) == pytest.approx(anytime_lower_bound(k, n, alpha), rel=1e-10)
    for p0 in (0.01, 0.3, 0.5, 0.9, 0.9999):
        assert checker.log_wealth(k, n, p0) == pytest.approx(float(log_wealth(k, n, p0)), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("dim", [1, 2, 500])
@pytest.mark.parametrize(("law", "norm"), [pair for pair in LAWS if not isinstance(pair[0], PowerLaw)], ids=str)
def test_the_radii(law: Law, norm: float, dim: int) -> None:
    entry = {"name": type(law).__name__, "scale": law.scale}
    for p_a, p_b in [(0.4, None), (0.5, None), (0.500001, None), (0.8, None), (0.99993, None), (0.4, 0.3), (0.8, 0.1)]:
        assert checker.radius_of(entry, norm, dim, p_a, p_b) == pytest.approx(
            law.radius(p_a, norm, dim, p_b), rel=1e-11
        )


# --- changed outcomes ---


def tampered(record, where, value):
    """A copy with the entry at this path changed; ``value`` may be a function of what was there."""
    changed = copy.deepcopy(record)
    inner = changed
    for key in where[:-1]:
        inner = inner[key]
    inner[where[-1]] = value(inner[where[-1]]) if callable(value) else value
    return changed


def more(value):
    return value * 1.0001 if value > 0 else value + abs(value) * 1e-4


TAMPERINGS = [
    (("evidence", "counts"), lambda counts: [0, sum(counts) + 1], {"votes"}),
    (("evidence", "counts"), lambda counts: [counts[0] + 1, counts[1] - 1], {"bound"}),
    (("evidence", "n"), lambda n: n + 1, {"votes", "settings", "bound"}),
    (("evidence", "n"), 400, {"votes", "settings"}),
    (("evidence", "invalid"), 1, {"votes"}),
    (("evidence", "alpha"), 0.0005, {"bound"}),
    (("evidence", "bound"), "two-class", {"bound"}),
    (("evidence", "bound"), "anytime", {"bound"}),
    (("evidence", "stop"), "5%", {"settings"}),
    (("evidence", "cap"), 1000, {"settings"}),
    (("evidence", "selection"), [100, 0], {"class"}),
    (("evidence", "selection"), [0, 101], {"class"}),
    (("evidence", "law", "scale"), 0.29, {"region"}),
    (("evidence", "law", "name"), "Laplace", {"region", "size"}),
    (("evidence", "noise", "constant"), False, {"scope"}),
    (("guarantee",), SCOPES["registry"], {"scope"}),
    (("guarantee",), "every input whatsoever", {"scope"}),
    (("guarantee",), None, {"scope"}),
    (("prediction",), 0, {"class", "bound"}),
    (("prediction",), 2, {"class"}),
    (("p_lower",), more, {"bound"}),
    (("p_upper",), 0.001, {"bound"}),
    (("radius",), more, {"radius"}),
    (("alm",), more, {"size"}),
    (("log_volume",), more, {"size"}),
    (("region", "radius"), more, {"region"}),
    (("region", "norm"), "inf", {"region"}),
    (("region", "norm"), 1, {"region", "radius", "size"}),
    (("region", "scale", "tensors", "sigma", "data", 0, 0, 0), lambda s: s / 2, {"radius", "size"}),
    (("region", "shape"), [2, 2, 2], {"radius", "size"}),
]


@pytest.fixture(scope="module")
def honest():
    return check_sound(certified(SCALES["diagonal"], norm=INF))


def _told(value: object) -> str:
    """The same in every process, whatever order a set has and wherever a function lies."""
    return "function" if callable(value) else str(sorted(value) if isinstance(value, set) else value)[:40]


@pytest.mark.parametrize(("where", "value", "found"), TAMPERINGS, ids=_told)
def test_a_change_is_found(honest, where, value, found) -> None:
    seen = failed(tampered(honest, where, value))
    if where == ("region", "norm"):  # which balls and sizes still fit another norm depends on the numbers
        assert seen & found
    elif where[-1] == "name":
        assert "region" in seen
    elif where == ("prediction",) and value == 2:
        assert found <= seen
    else:
        assert seen == found


def test_a_region_has_the_sigma_that_its_noise_is_stated_with() -> None:
    """Under ten times the Σ the same p would certify ten times the radius."""
    record = check_sound(certified(0.7))
    larger = record | {"region": record["region"] | {"scale": {"kind": "Scalar", "value": 7.0}}}
    d = math.prod(record["region"]["shape"])
    larger |= {"radius": 10 * record["radius"], "alm": 10 * record["alm"]}
    larger |= {"log_volume": record["log_volume"] + d * math.log(10)}
    assert failed(larger) == {"region"}


@pytest.mark.parametrize("value", [1e-320, 1e-200, 1e200, 1e308])
@pytest.mark.parametrize("settings", [{"norm": INF}, {"norm": 2, "budget": 0.05}], ids=str)
def test_sizes_whose_squares_are_no_numbers_end_in_no_traceback(settings, value: float, tmp_path: Path) -> None:
    record = tampered(record_of(certified(**settings)), ("region", "scale", "value"), value)
    record["evidence"]["noise"]["settings"]["scale"] = value
    for limits in {record.get("budget", {}).get("limits"), value}:
        if "budget" in record:
            record["budget"]["limits"] = limits
        (tmp_path / "c.json").write_text(json.dumps(record))
        code, lines = checker.looked_at(tmp_path / "c.json")
        assert code in (0, 1, 2) and lines


def test_the_guarantee_in_words_may_be_missing_or_that_of_an_older_version(honest) -> None:
    assert not failed({name: entry for name, entry in honest.items() if name != "guarantee"})
    for scope, sentence in SCOPES.items():
        if scope != "pipeline":  # the noise bears every scope
            assert not failed(honest | {"scope": scope, "guarantee": sentence})
            assert failed(honest | {"scope": scope}) == {"scope"}
        for earlier in EARLIER[scope]:
            assert not failed(honest | {"scope": scope, "guarantee": earlier})


def test_a_smaller_claim_is_no_error(honest) -> None:
    for where in [("radius",), ("alm",), ("p_lower",)]:
        expected = {"region"} if where == ("p_lower",) else set()
        assert failed(tampered(honest, where, lambda v: v * 0.99)) == expected
    grid = tampered(honest, ("evidence", "arithmetic"), "grid(1/255)")
    check_valid(grid)
    assert set(verdicts(grid).values()) == {"ok"}


def test_a_radius_of_another_norm_is_found() -> None:
    record = check_sound(certified(SCALES["diagonal"], norm=2))
    assert failed(tampered(record, ("norm",), "inf")) == {"radius", "size"}
    weaker = check_sound(
        certified(SCALES["scalar"], norm=INF)
    )  # each ball of this radius is inside the one of the next
    for norm in (2, 1):
        assert failed(tampered(weaker, ("norm",), norm)) == set()


def test_a_scale_that_is_nearly_singular_is_not_trusted() -> None:
    record = record_of(certified(SCALES["dense"], x0=3.0))
    data = record["region"]["scale"]["tensors"]["matrix"]["data"]
    data[0] = [1.0000000000000002 * value for value in data[1]]
    assert verdicts(record)["radius"] in ("not checked", "FAIL")


def test_the_number_of_a_randomised_bound_is_that_of_the_seed() -> None:
    record = check_sound(certified(bound="randomised"))
    assert check_sound(certified(bound="randomised", seed=None))["evidence"]["seed"] is None
    assert check_sound(certified(bound="randomised", seed="derived"))["evidence"]["data_hash"]
    assert failed(tampered(record, ("p_lower",), lambda p: p * 1.0001)) >= {"bound"}
    assert failed(tampered(record, ("evidence", "streams", "estimate"), "ab" * 32)) == {"bound"}
    assert failed(tampered(record, ("evidence", "seed"), 5)) == {"bound"}
    assert failed(tampered(record, ("evidence", "bound"), "binary")) == {"bound"}  # which allows less


def test_changes_to_a_two_class_claim_are_found() -> None:
    record = check_sound(certified(bound="two-class"))
    assert failed(tampered(record, ("p_upper",), lambda p: p * 0.999)) == {"bound"}
    assert failed(tampered(record, ("p_upper",), None)) >= {"bound"}
    assert failed(tampered(record, ("evidence", "bound"), "binary")) == {"bound"}


def test_the_norm_of_composed_noise_is_its_own() -> None:
    """The ℓ∞ ball of composed noise is smaller than an ℓ2 region of Gaussian noise that has its radius √d."""
    noise = Composed(1, norm=INF, features=2, growth=2).eval()
    g = SmoothedClassifier(top_left, Gaussian(scale=0.2), noise, 2)
    (outcome,) = g.certify(torch.full((1, 1, 4, 4), 0.5), n=500, norm=INF)
    record = check_sound(outcome)
    wider = replace(outcome, region=Region(1.0, 4 * outcome.region.radius, 2, (1, 4, 4)))
    assert "region" in failed(record_of(wider))
    for line in ("Composed(ℓ∞, share 0.5, spread 100)", "Composed(ℓ2, share 0.5, spread 100)"):
        old = copy.deepcopy(record_of(wider))
        del old["evidence"]["noise"]
        old["evidence"]["generator"] = line
        assert "region" in failed(old)
    scaled = tampered(record, ("region", "scale", "value"), 2.0)
    assert "region" in failed(scaled)


def test_a_changed_file_of_tensors_is_found(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    save_json(certified(Dense(dense(80)), shape=(5, 4, 4), x0=9.0), path)
    assert run(path, CHECKER).returncode == 0
    (beside,) = tmp_path.glob("*.safetensors")
    data = bytearray(beside.read_bytes())
    data[-1] ^= 1
    beside.write_bytes(data)
    done = run(path, CHECKER)
    assert done.returncode == 1 and "does not match the hash" in done.stdout
    renamed = tmp_path / f"{hashlib.sha256(data).hexdigest()}.safetensors"  # a forger who keeps the names right
    data[-1] ^= 1
    text = path.read_text(encoding="utf-8")
    values = torch.frombuffer(data, dtype=torch.uint8)
    start = len(values) - 8 * 6400
    matrix = values[start:].view(torch.float64) * 0.5
    forged = bytes(data[:start]) + matrix.numpy().tobytes()
    renamed = tmp_path / f"{hashlib.sha256(forged).hexdigest()}.safetensors"
    renamed.write_bytes(forged)
    path.write_text(text.replace(beside.name, renamed.name), encoding="utf-8")
    done = run(path, CHECKER)
    assert done.returncode == 1 and "FAIL        radius" in done.stdout
    renamed.unlink()
    assert run(path, CHECKER).returncode == 2


def test_predictions_and_abstentions_are_checked_too() -> None:
    x = torch.full((1, *EVENT), 0.3)
    for settings in ({}, {"test": "top-two"}, {"stop": True}):
        record = check_sound(smoothed().predict(x, **settings)[0])
        assert failed(tampered(record, ("p_value",), lambda p: p / 2)) == {"test"}
        assert failed(tampered(record, ("p_value",), 0.5)) == {"test"}
        assert "class" in failed(tampered(record, ("prediction",), 0))
    abstention = check_sound(certified(x0=0.0))
    assert failed(tampered(abstention, ("p_lower",), 0.6)) == {"bound"}


# --- what is unknown ---


class Flat(Gaussian):
    """A law of one's own."""


class Mine(Fixed):
    """A generator of one's own."""


def test_what_is_unknown_is_not_checked(honest) -> None:
    own = record_of(certified(law=Flat(scale=0.3)))
    check_valid(own)
    assert verdicts(own)["region"] == "not checked" and not failed(own)
    noise = record_of(certified(generator=Mine(0.7)))
    check_valid(noise)
    assert [name for name, verdict in verdicts(noise).items() if verdict != "ok"] == ["region"]
    for where, value, name in [
        (("evidence", "bound"), "bayes", "bound"),
        (("region", "scale", "kind"), "Toeplitz", "radius"),
        (("evidence", "selection"), None, "class"),
        (("evidence", "noise", "module"), "mine.generators", "region"),
    ]:
        changed = tampered(honest, where, value)
        assert verdicts(changed)[name] == "not checked" and not failed(changed)


@pytest.mark.parametrize("where", [("evidence", "streams"), ("evidence", "noise", "settings")], ids="-".join)
def test_what_is_no_object_is_not_read(where, honest, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "c.json"
    path.write_text(json.dumps(tampered(honest, where, None)))
    assert checker.main([str(path)]) == 2
    assert f"{where[-1]} must be an object" in capsys.readouterr().out


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "null",
        '{"format": 3, "kind": "certificate", "evidence": {}}',
        '{"format": 2, "format": 2}',
        "NaN",
    ],
)
def test_what_cannot_be_read_is_said(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "c.json"
    path.write_text(text)
    assert checker.main([str(path)]) == 2
    assert ("cannot be" if text else "is empty") in capsys.readouterr().out


def test_damage_never_ends_in_a_traceback(honest, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "c.json"

    def places(value, where=()):
        yield where
        if isinstance(value, dict | list):
            for key in value if isinstance(value, dict) else range(len(value)):
                yield from places(value[key], (*where, key))

    for where in places(honest):
        for junk in (None, "x", -1, [], {}, 1e308, True):
            if where:
                path.write_text(json.dumps(tampered(honest, where, junk)))
                assert checker.main([str(path)]) in (0, 1, 2)
    capsys.readouterr()


# --- as a program ---


@pytest.mark.parametrize("name", ["gaussian-dct", "stopped", "large", "abstention", "prediction"])
def test_the_program_needs_neither_torch_nor_ucan(name: str, tmp_path: Path) -> None:
    blocker = (
        "import sys, runpy\n"
        "class Blocked:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in ('torch', 'ucan', 'safetensors'): raise ImportError(name)\n"
        "sys.meta_path.insert(0, Blocked())\n"
        f"sys.argv = sys.argv[1:]\nrunpy.run_path({str(CHECKER)!r}, run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", blocker, "check_certificate.py", str(OLD / "outcomes" / f"{name}.json")],
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "checks arithmetic only" in done.stdout and "votes were ever drawn" in done.stdout


def test_the_exit_codes(honest, tmp_path: Path, capsys) -> None:
    path = tmp_path / "c.json"
    for record, code in [
        (honest, 0),
        (tampered(honest, ("radius",), 9.0), 1),
        (tampered(honest, ("evidence", "law", "module"), "mine"), 2),
        (tampered(tampered(honest, ("evidence", "law", "module"), "mine"), ("radius",), 9.0), 1),
    ]:
        path.write_text(json.dumps(record))
        assert checker.main([str(path)]) == code
    assert run(path, CHECKER).returncode == 1  # a process ends with it
    assert checker.main(["--help"]) == 2
    capsys.readouterr()
    (tmp_path / "results.tsv").write_text("idx\tlabel\n0\t1\n")
    (tmp_path / "none.csv").touch()
    others = ("results.tsv", "holds the results of many inputs"), ("none.csv", "is empty"), (".", "is a folder")
    for other, said in ((tmp_path / name, said) for name, said in others):
        code, told = checker.main([str(other)]), capsys.readouterr().out
        assert code == 2 and said in told and "such as 17.json" in told
    shutil.rmtree(tmp_path)
    assert run(path, CHECKER).returncode == 2


def test_several_files_have_a_line_each_and_the_worst_code(honest, tmp_path: Path, capsys) -> None:
    paths = {name: tmp_path / f"{name}.json" for name in ("good", "false", "unknown", "text")}
    paths["good"].write_text(json.dumps(honest))
    paths["false"].write_text(json.dumps(tampered(honest, ("radius",), 9.0)))
    paths["unknown"].write_text(json.dumps(tampered(honest, ("evidence", "law", "module"), "mine")))
    paths["text"].write_text("no JSON")
    for names, code in ((("good", "good"), 0), (("good", "unknown"), 2), (("text", "false", "good"), 1)):
        assert checker.main([str(paths[name]) for name in names]) == code
        said = capsys.readouterr().out.splitlines()
        heads = [line.split()[-1] for line in said if line.endswith(".json")]
        assert heads == [str(paths[name]) for name in names]
        assert not any(line.startswith("    ok") for line in said)
    assert (
        any(line.startswith("    FAIL ") for line in said) and "3 files: 1 ok, 1 wrong, 1 not checked in all." in said
    )


# --- the schema ---


def test_the_schema_explains_every_field() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    kinds = SCHEMA["$defs"]

    def explained(entry) -> bool:
        return "description" in entry or ("$ref" in entry and explained(kinds[entry["$ref"].rpartition("/")[2]]))

    for name, kind in kinds.items():
        for key, entry in kind.get("properties", {}).items():
            assert key in ("format", "kind") or explained(entry), f"{name}.{key}"
    assert all(explained(entry) for entry in SCHEMA["properties"].values())


def test_the_schema_knows_every_field_of_evidence() -> None:
    fields = {f.name for f in ucan.evidence.Evidence.__dataclass_fields__.values()}
    assert {*SCHEMA["$defs"]["evidence"]["properties"]} - {"generator"} == fields
    noise = {f.name for f in ucan.evidence.Noise.__dataclass_fields__.values()}
    assert {*SCHEMA["$defs"]["noise"]["properties"]} == noise


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("evidence", "mood"), "good"),
        (("evidence", "counts"), [1.5, 2]),
        (("evidence", "alpha"), 1),
        (("evidence", "noise"), "Fixed"),
        (("evidence", "generator"), "Fixed"),
        (("evidence", "law", "name"), "Cauchy"),
        (("evidence", "arithmetic"), "guessed"),
        (("region", "scale", "value"), 1.0),
        (("region", "norm"), 3),
        (("scope",), "everything"),
        (("format",), 1),
        (("reason",), "a field of another kind"),
        (("p_lower",), 1.1),
    ],
    ids=str,
)
def test_the_schema_refuses(honest, where, value) -> None:
    changed = copy.deepcopy(honest)
    inner = changed
    for key in where[:-1]:
        inner = inner[key]
    inner[where[-1]] = value
    assert not Draft202012Validator(SCHEMA).is_valid(changed)


def test_the_schema_wants_what_is_needed(honest) -> None:
    for key in ("evidence", "region", "radius", "scope"):
        assert not Draft202012Validator(SCHEMA).is_valid({k: v for k, v in honest.items() if k != key})
    for key in ("counts", "noise", "alpha", "law"):
        less = {k: v for k, v in honest["evidence"].items() if k != key}
        assert not Draft202012Validator(SCHEMA).is_valid({**honest, "evidence": less})


# --- budgets ---

BOX = 0.1 + torch.rand(EVENT, generator=torch.Generator().manual_seed(3))
GROUPS = ucan.Budget(torch.tensor([0.5, 1.5]), torch.arange(math.prod(EVENT)).reshape(EVENT) % 2)


@pytest.mark.parametrize("budget", [0.5, BOX, GROUPS], ids=["number", "box", "groups"])
@pytest.mark.parametrize("kind", ["scalar", "diagonal"])
@pytest.mark.parametrize(("law", "norm"), LAWS)
def test_a_budget_is_checked_for_every_law(law: Law, norm: float, kind: str, budget: object) -> None:
    scale = 0.7 if kind == "scalar" else positive(*EVENT)
    for settings in ({}, {"bound": "two-class"}):
        outcome = certified(scale, law, norm, budget=budget, x0=0.4, **settings)
        assert outcome.budget_factor > 0
        check_sound(outcome)
        record = record_of(outcome)
        assert failed({**record, "budget_factor": 1.001 * record["budget_factor"]}) == {"budget"}


def test_a_large_budget_beside_the_file_is_checked(tmp_path: Path) -> None:
    shape = (3, 40, 40)
    limits = 0.1 + torch.rand(shape, generator=torch.Generator().manual_seed(0))
    groups = torch.arange(math.prod(shape)).reshape(shape) // 3
    for budget in (ucan.Budget(limits), ucan.Budget(limits.flatten()[:1600], groups)):
        check_sound(certified(0.7, shape=shape, norm=None, budget=budget), tmp_path)


def test_a_budget_that_does_not_fit() -> None:
    record = record_of(certified(norm=None, budget=BOX))
    assert failed({**record, "budget": {**record["budget"], "shape": [2, 2]}}) == {"budget"}
    assert failed({**record, "budget": {**record["budget"], "limits": [0.0] * math.prod(EVENT)}}) == {"budget"}
    assert failed({**record, "budget": {**record["budget"], "limits": [1.0]}}) == {"budget"}
    assert "budget" not in verdicts(record_of(certified()))


@pytest.mark.parametrize("kind", ["diagonal", "dense"])
def test_limits_whose_squares_are_no_numbers_are_read_as_ucan_reads_them(kind: str) -> None:
    record = record_of(certified(SCALES[kind], norm=None, budget=BOX))
    size = math.prod(EVENT)
    for limits in ([3e-162, *[1.5e-162] * (size - 1)], [1e-200] * size):
        tiny = {**record["budget"], "limits": limits}
        for factor in (record["budget_factor"] * 1e161, 1e250):
            assert failed({**record, "budget": tiny, "budget_factor": factor}) == {"budget"}
    tiny = {**record["budget"], "limits": [1e-200] * size}
    small = record["budget_factor"] * float(torch.as_tensor(BOX).min()) * 1e98
    assert verdicts({**record, "budget": tiny, "budget_factor": small})["budget"] == "ok"


def test_a_size_too_small_to_be_measured_is_not_checked() -> None:
    record = record_of(certified(0.7, norm=None, budget=BOX))
    for scale in (1e62, 1e160):
        assert verdicts(
            {**record, "budget": {**record["budget"], "limits": 1e-100}, "budget_factor": 1e300}
            | {"region": {**record["region"], "scale": {"kind": "Scalar", "value": scale}}}
        )["budget"] == ("not checked")


WIDE = (2, 3, 4)
FULL = {
    "dense": Dense(dense(24)),
    "basis": Basis(orthonormal(24), positive(24)),
    "basis float32": Basis(orthonormal(24, torch.float32), positive(24, dtype=torch.float32)),
    "dct": DCT(positive(*WIDE)),
    "low rank": LowRank(positive(24), torch.randn(24, 2, generator=rng(), dtype=torch.float64)),
    "blocks": BlockDiagonal([dense(k) for k in (1, 16, 7)]),
}
ONE_SIDED = 0.1 + torch.rand(WIDE, generator=torch.Generator().manual_seed(3))
ONE_SIDED[0] *= torch.arange(12).reshape(3, 4) < 5  # 17 of 24 coordinates change
SENSORS = ucan.Budget(torch.tensor([0.5, 0.0, 1.5]), torch.arange(24).reshape(WIDE) % 3)


@pytest.mark.parametrize("budget", [0.5, ONE_SIDED, SENSORS], ids=["number", "box", "groups"])
@pytest.mark.parametrize("kind", FULL)
@pytest.mark.parametrize(
    ("law", "norm"), [(Gaussian(scale=0.3), 2), (Laplace(scale=0.2), 1), (ExpInf(scale=0.03), INF)]
)
def test_a_budget_under_a_full_scale_is_shown_or_refuted(law: Law, norm: float, kind: str, budget: object) -> None:
    outcome = certified(FULL[kind], law, norm, shape=WIDE, budget=budget, x0=2.0)
    assert outcome.budget_factor > 0
    record = check_sound(outcome)
    slightly, much = (verdicts({**record, "budget_factor": k * record["budget_factor"]})["budget"] for k in (1.01, 5))
    assert much == "FAIL"
    if kind != "dct":  # where UCAN forms no matrix, and the checker knows a better bound
        assert slightly in ("FAIL", "not checked")


@pytest.mark.parametrize("kind", ["dense", "basis", "dct", "low rank", "blocks"])
def test_where_few_coordinates_change_the_corners_decide(kind: str) -> None:
    outcome = certified(SCALES[kind], norm=2, budget=BOX, x0=2.0)
    record = check_sound(outcome)
    assert failed({**record, "budget_factor": 1.001 * record["budget_factor"]}) == {"budget"}


def test_what_is_claimed_between_the_bounds_is_not_checked() -> None:
    """No change at 1.01 times what is shown is found to leave the region, and none can be: nothing is refuted."""
    record = record_of(certified(FULL["dense"], norm=2, shape=WIDE, budget=ONE_SIDED))
    between = {**record, "budget_factor": 1.01 * record["budget_factor"]}
    (line,) = [line for line in checker.check(between, ROOT) if line[1] == "budget"]
    assert line[0] == "not checked" and "not refuted" in line[2]


@pytest.mark.parametrize("norm", [1, 2, INF])
@pytest.mark.parametrize("budget", [ONE_SIDED, SENSORS], ids=["box", "groups"])
def test_the_two_bounds_hold_the_truth_between_them(budget: object, norm: float) -> None:
    """Random changes within the budget never reach further than the upper bound, and the climb gets at least as far."""
    asked = ucan.Budget.of(budget, WIDE)
    plain = checker.Budget(
        asked.limits.flatten().numpy(), None if asked.groups is None else asked.groups.flatten().numpy()
    )
    inverse = checker.Inverse([torch.linalg.inv(dense(24)).numpy()], 0.0, 0.0)
    draws = [checker.most_along(plain, d) for d in torch.randn(2000, 24, generator=rng(), dtype=torch.float64).numpy()]
    assert all(float(asked.size(torch.from_numpy(d)[None])[0]) <= 1 + 1e-12 for d in draws[:50])
    tried = max(float(np.linalg.norm(inverse.blocks[0] @ d, ord=norm)) for d in draws)
    low, high = checker.full_reach(plain, inverse, norm), checker.full_size(plain, inverse, norm)
    assert tried <= low * (1 + 1e-12) and low <= high * (1 + 1e-12)
    if norm == INF:
        assert low == pytest.approx(high)


def test_a_choice_within_another_budget_is_refused() -> None:
    """Each part is true by itself; together they would claim the answer's factor for a choice within a smaller budget."""
    (outcome,) = ucan.Routed(smoothed(0.5), [smoothed(2.0)] * 2).certify(
        torch.full((1, *EVENT), 0.3), n=500, budget=1.0
    )
    record = record_of(outcome)
    assert set(verdicts(record).values()) == {"ok"}
    small = ucan.Budget.of(0.01, EVENT)
    limited = replace(outcome.choice, budget=small, budget_factor=100 * outcome.choice.budget_factor)
    record["choice"] = record_of(limited)
    found = verdicts(record)
    assert found.pop("choice") == "FAIL" and set(found.values()) == {"ok"}


def test_composed_noise_with_a_budget() -> None:
    class Zero(torch.nn.Module):
        def forward(self, y: torch.Tensor) -> torch.Tensor:
            return torch.zeros_like(y)

    noise = ucan.Composed(net=Zero(), norm=math.inf, budget=BOX)
    outcome = certified(generator=noise, norm=None, budget=BOX, x0=1.0)
    check_sound(outcome)
    record = record_of(outcome)
    wider = {**record, "region": {**record["region"], "radius": 1.01 * record["region"]["radius"]}}
    assert "region" in failed(wider)


@pytest.mark.parametrize(
    ("settings", "p_lower", "p_upper"),
    [
        ({}, 0.0, None),
        ({}, 0.299, None),
        ({}, 0.5, None),
        ({"bound": "two-class"}, 0.4, 0.4),
        ({"bound": "two-class"}, 0.0, 0.9),
    ],
)
def test_a_certificate_without_a_lead_is_none_whatever_its_radius(settings, p_lower, p_upper, tmp_path) -> None:
    """An abstention that says "class 1" with the radius 0 claims what certify did not: that class 1 is answered."""
    record = record_of(certified(**settings))
    record["region"]["radius"] = 0.0
    record |= {"p_lower": p_lower, "p_upper": p_upper, "radius": 0.0, "alm": 0.0, "log_volume": None}
    assert failed(record) == {"bound"}
    with pytest.raises(DoesNotFollow, match="is not above 1/2") as refused:
        from_dict(record)
    assert refused.value.field == "p_lower"


def test_a_lead_is_a_majority_or_the_bounds_of_two_classes() -> None:
    """Above 1/2 the bound on the others may be anything; below it they must part. A shrunken region keeps its p."""
    for p_lower, p_upper in ((0.51, None), (0.51, 0.52), (0.4, 0.39)):
        record = record_of(certified(bound="binary" if p_upper is None else "two-class"))
        record["region"]["radius"] = 0.0
        record |= {"p_lower": p_lower, "p_upper": p_upper, "radius": 0.0, "alm": 0.0, "log_volume": None}
        assert failed(record) == set()
        assert from_dict(record).radius == 0


def test_a_region_that_no_memory_holds_cannot_be_checked(tmp_path) -> None:
    record = record_of(certified())
    record["region"]["shape"] = [10**14]
    (tmp_path / "huge.json").write_text(json.dumps(record))
    done = run(tmp_path / "huge.json", CHECKER)
    assert done.returncode in (1, 2) and "Traceback" not in done.stderr


def test_control_characters_of_a_file_are_printed_as_escapes(tmp_path) -> None:
    record = record_of(certified())
    record["evidence"]["bound"] = "binary\x1b[2J\nok   everything\u202e"
    (tmp_path / "odd.json").write_text(json.dumps(record))
    done = run(tmp_path / "odd.json", CHECKER)
    assert done.returncode == 2 and "\\x1b[2J\\nok" in done.stdout and not {"\x1b", "\u202e"} & {*done.stdout}
