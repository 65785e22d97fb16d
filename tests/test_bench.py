"""`ucan bench`: one run shows every target, loses nothing that was measured, and compares like with like."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import ucan
from ucan import allocator, deciding, targets
from ucan.bench import PER_INPUT, TEXTBOOK, TEXTBOOK_KEPT, WITHOUT, Bench
from ucan.cli import app
from ucan.data import load
from ucan.deciding import Kept, OnData, Simulated
from ucan.errors import InvalidInput
from ucan.generators import Fixed, Isotropic
from ucan.laws import Gaussian, Uniform
from ucan.models import Ensemble, build_model
from ucan.runs import bench as job_of
from ucan.runs.bench import BenchJob, Network, _choices, _kind, _on_inputs, bench
from ucan.runs.earlier import Earlier, source_of
from ucan.timing import Case, Row, Subject, Timed, Work, in_turns

ROOT = Path(__file__).parents[1]
CPU, H200 = {"device": "x86_64 CPU"}, {"device": "NVIDIA H200"}
TUNED, COMPILED = Subject(Work.CERTIFY, "tuned", "bf16"), Subject(Work.CERTIFY, "compile", "bf16")
BARE = replace(TUNED, work=Work.BARE)
FAST = ["bench", "--model", "cnn", "--shape", "1,8,8", "--n", "1000", "--backend", "eager", "--no-art", "--no-shapes"]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bench without the work: one row for every backend."""

    def ours(self: Bench, backend: str, precision: str | None) -> None:
        self.rows.append(Row(Subject(Work.CERTIFY, backend, precision or "fp32"), 200.0, 3.6, TEXTBOOK))

    monkeypatch.setattr(Bench, "ours", ours)
    monkeypatch.setattr(Bench, "generator", lambda self, *_: None)
    monkeypatch.setattr(Bench, "stopping", lambda self: [])


# --- nothing is lost ---


def test_what_was_measured_is_kept_when_a_later_part_fails(
    quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise InvalidInput("computes in fp32, not in bf16")

    monkeypatch.setattr(deciding, "simulated", fails)
    result = CliRunner().invoke(app, [*FAST, "-o", str(tmp_path / "b.json")])
    assert result.exception is not None and "not in bf16" in str(result.exception)
    assert [one.name for one in tmp_path.iterdir()] == ["b.json.part"] and "b.json.part" in "".join(
        result.stderr.split()
    )
    told = json.loads((tmp_path / "b.json.part").read_text())
    assert told["rows"][0]["what"] == "certify, eager, fp32" and "not in bf16" in told["failed"]
    assert told["complete"] is False
    assert "certify, eager, fp32" in result.stdout and "failed" in result.stdout
    result = CliRunner().invoke(app, [*FAST, "--json"])
    assert json.loads(result.stdout)["failed"] == told["failed"] and result.exit_code != 0


def test_a_complete_file_is_replaced_by_a_complete_one_only(
    quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, out, part = [*FAST, "--decisions", "0", "-o", str(tmp_path / "b.json")], tmp_path / "b.json", []
    assert CliRunner().invoke(app, words).exit_code == 0
    whole = out.read_text()
    told = json.loads(whole)
    assert told["complete"] is True and re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:]{8}\+00:00", told["date"])
    asked = {
        "models": ["cnn"],
        "shape": [1, 8, 8],
        "n": 1000,
        "precisions": ["fp32"],
        "backends": ["eager"],
        "data": None,
    }
    assert asked.items() <= told["job"].items()

    def interrupted(self: Bench) -> None:
        part.append(json.loads((tmp_path / "b.json.part").read_text())["complete"])
        raise KeyboardInterrupt

    monkeypatch.setattr(Bench, "stopping", interrupted)
    assert CliRunner().invoke(app, words).exit_code == 130
    left = json.loads((tmp_path / "b.json.part").read_text())
    assert part == [False] and left["interrupted"] and not left["complete"] and out.read_text() == whole
    monkeypatch.setattr(Bench, "stopping", lambda self: [])
    assert CliRunner().invoke(app, words).exit_code == 0
    assert [one.name for one in tmp_path.iterdir()] == ["b.json"] and json.loads(out.read_text())["complete"]


def test_an_error_before_the_first_measurement_is_raised(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise InvalidInput("no")

    monkeypatch.setattr(Bench, "ours", fails)
    with pytest.raises(InvalidInput, match="no"):
        bench(BenchJob(models=("cnn",), backends=("eager",)))


def test_the_file_holds_what_there_is_after_every_part(quick: None) -> None:
    seen: list[int] = []
    job = BenchJob(
        models=("cnn",), shape=(1, 8, 8), backends=("eager", "compile"), art=False, shapes=False, decisions=0
    )
    bench(job, keep=lambda found: seen.append(len(found.to_dict()["rows"])))
    assert seen[:2] == [1, 2] and len(seen) == 4


@pytest.mark.parametrize(("backend", "by"), [("onnxruntime", None), ("eager", "eager")])
def test_bf16_is_left_out_where_the_backend_has_none(
    quick: None, monkeypatch: pytest.MonkeyPatch, backend: str, by: str | None
) -> None:
    asked: list[object] = []
    monkeypatch.setattr(deciding, "on_data", lambda *_: ([], OnData(10, 1.0, 10, None)))
    monkeypatch.setattr(deciding, "in_bf16", lambda *given: asked.append(given[-1]) or [])
    job = BenchJob(models=("cnn",), shape=(1, 8, 8), art=False, shapes=False, decisions=0, backends=("eager",))
    found = bench(job)
    _on_inputs(found, load("digits"), [(backend, None)], job_of.nullcontext)
    assert asked == ([] if by is None else [by]) and bool(found.left_out) == (by is None)


# --- which backends ---


def test_the_usual_backends_of_a_cpu_include_other_runtimes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_of, "installed", lambda precision: ("onnxruntime",))
    monkeypatch.setattr(job_of, "check_usable", lambda *_: None)
    cpu = torch.device("cpu")
    assert _choices(BenchJob(), cpu) == [("eager", None), ("onnxruntime", None), ("compile", None)]
    assert _choices(BenchJob(), torch.device("cuda")) == [("eager", None), ("compile", None)]
    both = _choices(BenchJob(precisions=("fp32", "bf16")), cpu)
    assert ("compile", "bf16") in both and ("onnxruntime", "bf16") not in both


def test_a_runtime_that_cannot_do_what_is_asked_for_is_refused_before_any_work() -> None:
    pytest.importorskip("onnxruntime")
    job = BenchJob(precisions=("bf16",), backends=("onnxruntime",))
    with pytest.raises(InvalidInput, match="not in bf16"):
        _choices(job, torch.device("cpu"))
    with pytest.raises(InvalidInput, match="for CPUs"):
        _choices(BenchJob(backends=("onnxruntime",)), torch.device("cuda"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--precision", ","], "one or more of fp32, tf32, bf16, got none"),
        (["--precision", "fp32,int8"], "takes fp32, tf32, bf16, got int8"),
        (["--backend", ","], "names no backend"),
        (["--backend", "eager,fast"], "got fast"),
    ],
)
def test_names_are_checked_before_any_work(
    words: list[str], said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Bench, "ours", lambda *_: pytest.fail("measured"))
    result = CliRunner().invoke(app, ["bench", "--model", "cnn", *words, "-o", str(tmp_path / "b.json")])
    assert isinstance(result.exception, InvalidInput) and said in str(result.exception)
    assert not [*tmp_path.iterdir()]


# --- inputs of one's own, under a run's own noise ---


def test_a_run_decides_radii_under_its_own_noise() -> None:
    torch.manual_seed(0)
    model, law, noise = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).eval(), Gaussian(0.1), Fixed(0.25)
    digits = load("digits")
    found, row = deciding.on_data(model, 10, law, noise, digits, 8, 1000, ("eager", None))
    narrow, same = deciding.on_data(model, 10, Gaussian(0.025), None, digits, 8, 1000, ("eager", None))
    assert row.noise == noise.describe() and same.noise is None and row.radii[-1] == pytest.approx(0.45)
    inside = [one for one in found if one.radius > 0]
    assert inside and all(one.own == pytest.approx(4 * one.radius) for one in inside)  # Σ = 1/4
    # The same noise as Gaussian(0.025): the limit of the same radius is the same.
    for one in inside:
        alone = deciding.Outcome(one.index, one.prediction, one.radius, one.n, one.n0, one.hits)
        limits = (one.limit([0.0, 0.01], law, 0.001), alone.limit([0.0, 0.01], Gaussian(0.025), 0.001))
        assert limits[0] == pytest.approx(limits[1])
    assert narrow


def test_the_noise_of_a_run_is_handed_on(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    row = OnData(10, 1.0, 10, None)
    monkeypatch.setattr(deciding, "on_data", lambda *given: asked.append(given[3]) or ([], row))
    monkeypatch.setattr(deciding, "in_bf16", lambda *given: asked.append(given[3]) or [])
    noise, model = Fixed(0.5), build_model("cnn", (1, 8, 8), 10)
    network = Network("run", "cnn", model, (1, 8, 8), 10, Gaussian(0.25), noise)
    monkeypatch.setattr(job_of, "_networks", lambda *_: [network])
    bench(BenchJob(models=("run",), art=False, shapes=False, decisions=0, backends=("eager",), data="digits", most=3))
    assert asked == [noise, noise]


def test_noise_without_l2_radii_is_refused_before_any_work(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bench, "ours", lambda *_: pytest.fail("measured"))
    model = build_model("cnn", (1, 8, 8), 10)
    network = Network("run", "cnn", model, (1, 8, 8), 10, Uniform(0.25), Isotropic())
    monkeypatch.setattr(job_of, "_networks", lambda *_: [network])
    with pytest.raises(InvalidInput, match="ℓ2 radii, which the noise of run, Uniform"):
        bench(BenchJob(models=("run",), backends=("eager",), data="digits"))


# --- several models, and an earlier version ---


def test_several_models_in_one_run_each_with_its_own_shape(quick: None, tmp_path: Path) -> None:
    words = ["--backend", "eager", "--no-art", "--decisions", "0", "-o", str(tmp_path / "b.json"), "--no-shapes"]
    result = CliRunner().invoke(app, ["bench", "--model", "cnn", "--model", "resnet20", *words])
    assert result.exit_code == 0, result.output
    told = json.loads((tmp_path / "b.json").read_text())
    assert [(one["model"], one["shape"]) for one in told["networks"]] == [
        ("cnn", [1, 28, 28]),
        ("resnet20", [3, 32, 32]),
    ]
    assert [row["model"] for row in told["rows"]] == ["cnn", "resnet20"]
    assert [row["reached"] for row in told["targets"]] == [True] and "what docs/speed.md wants" in result.stdout
    result = CliRunner().invoke(app, ["bench", "--model", "cnn", "--model", "resnet20", "--shape", "3,32,32"])
    assert isinstance(result.exception, InvalidInput) and "for one model" in str(result.exception)


EARLIER = """
import json, sys
if "--help" in sys.argv:
    print("--n --json --decisions")
else:
    assert sys.argv[1] == "bench" and sys.argv[sys.argv.index("--shape") + 1] == "1,8,8" and "--decisions" in sys.argv
    print(json.dumps({"rows": [{"what": "certify, eager, fp32", "rate": 100.0}]}))
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Iterator[Path]:
    """An earlier version that measures 100 samples a second, whatever it is asked."""
    package = tmp_path / "before" / "src" / "ucan"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text(EARLIER)
    yield tmp_path / "before"


def test_an_earlier_version_is_measured_before_and_after(quick: None, checkout: Path) -> None:
    parts: list[str] = []

    def doing(what: str) -> object:
        parts.append(what)
        return job_of.nullcontext()

    job = BenchJob(
        models=("cnn",), shape=(1, 8, 8), backends=("eager",), art=False, decisions=0, shapes=False, before=checkout
    )
    found = bench(job, doing)
    rows = found.measured[0][1].rows
    told = found.to_dict()
    assert told["job"]["before"] == "before" and str(checkout) not in json.dumps(told)
    assert told["sources"] == {
        "this": source_of(Path(ucan.__file__).parent),
        "before": source_of(checkout / "src" / "ucan"),
    }
    assert len(found.measured[0][1].inputs) == 2  # a version that does not say how many
    assert rows[-1].ratio == 2.0 and str(rows[-1].against) == "certify, eager, fp32, the version before"
    assert [row["what"] for row in told["rows"][1:3]] == [f"{rows[-1].against}, {when}" for when in ("first", "again")]
    assert [row.rate for row in rows] == [200.0, 100.0, 100.0, 200.0]
    assert [part.endswith(("first", "again")) for part in parts[:3]] == [True, False, True]


def test_a_source_is_another_one_if_a_name_or_a_line_is(tmp_path: Path) -> None:
    def source(**files: str) -> str:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        for name, text in files.items():
            (folder / name).mkdir(parents=True)
            (folder / name / "m.py").write_text(text)
            (folder / name / "m.pyc").write_text(str(folder))
        return source_of(folder)

    first = source(a="x = 1", b="y")
    assert first == source(b="y", a="x = 1")
    assert len({first, source(a="x = 2", b="y"), source(a="x = 1", c="y"), source(a="x = 1y", b="")}) == 4


def test_both_versions_take_as_many_inputs_as_the_earlier_one_says(quick: None, checkout: Path) -> None:
    main = checkout / "src" / "ucan" / "__main__.py"
    main.write_text(EARLIER.replace('{"rows":', '{"networks": [{"inputs": 8}], "rows":'))
    job = BenchJob(
        models=("cnn",), shape=(1, 8, 8), backends=("eager",), art=False, decisions=0, shapes=False, before=checkout
    )
    found = bench(job)
    assert len(found.measured[0][1].inputs) == 8 and found.to_dict()["networks"][0]["inputs"] == 8


@pytest.mark.parametrize("takes", (True, False))
def test_an_earlier_version_is_trusted_as_this_one_is_if_it_has_the_option(checkout: Path, takes: bool) -> None:
    text = EARLIER.replace("else:", f'elif ("--trust" in sys.argv) == {takes}:')
    (checkout / "src" / "ucan" / "__main__.py").write_text(
        text.replace("--json", "--json --trust" if takes else "--json")
    )
    assert Earlier(checkout, trust=True).measured("cnn", (1, 8, 8), None, 1000, ("eager", None)).rate == 100.0


def test_a_folder_that_is_no_earlier_version_is_refused(tmp_path: Path, checkout: Path) -> None:
    with pytest.raises(InvalidInput, match="git worktree add"):
        Earlier(tmp_path)
    (checkout / "src" / "ucan" / "__main__.py").write_text("import sys; sys.exit('it broke')")
    with pytest.raises(InvalidInput, match="it broke"):
        Earlier(checkout).measured("cnn", (1, 8, 8), None, 1000, ("eager", None))


# --- what is set beside each other is timed in turns ---


def test_the_textbook_loop_is_timed_in_turns_with_ours() -> None:
    order: list[str] = []
    a, b = (Subject(Work.NOISE, name=name) for name in ("a", "b"))
    cases = [Case(each, lambda each=each: order.append(str(each)), 10, a) for each in (a, b)]
    timed = in_turns(cases, 2, torch.device("cpu"))
    assert order == ["a", "b"] * 3 and len(timed[a].seconds) == 2
    made = Bench(build_model("cnn", (1, 8, 8), 10), (1, 8, 8), 10, n=1000, repeats=2)
    made.ours("eager", None)
    names = [row.what for row in made.rows]
    assert names[0] == TEXTBOOK and made.rows[1].against == TEXTBOOK and len(made.rows[1].turns) == 2
    assert str(names[-1]) == "certify, eager, fp32" and made.rows[-1].against == TEXTBOOK
    assert [str(name) for name in names[:4]] == [
        "textbook loop, fp32",
        "bare forward, eager, fp32",
        "certify, eager, fp32",
        "certify on the grid, eager, fp32",
    ]


def test_ratios_are_of_medians_and_of_every_turn() -> None:
    ours, loop = (Case(Subject(work), print, 10) for work in (Work.CERTIFY, Work.TEXTBOOK))
    row = Timed(ours, [1.0, 2.0, 4.0], [None]).beside(Timed(loop, [2.0, 2.0, 2.0], [None]))
    assert row.ratio == 1.0 and row.turns == (2.0, 1.0, 0.5)


def test_where_memory_is_kept_the_textbook_loop_is_timed_without_it_and_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(allocator, "_set_thresholds", lambda trim, block: told.append((trim, block)))
    made = Bench(build_model("cnn", (1, 8, 8), 10), (1, 8, 8), 10, n=1000, repeats=1)
    made.keep_memory()
    without, kept = made.textbook()
    assert (without.what, kept.what) == (TEXTBOOK, TEXTBOOK_KEPT)
    kept.work()
    assert told == [(2**30, 2**25)]
    without.work()
    block = 4 * 16 * 8 * 8 * made.size  # the largest tensor: 16 channels of a pass
    assert told[1:] == [(2 * block, block), (2**30, 2**25)]


def test_rows_are_written_as_in_the_files_so_far() -> None:
    told = json.loads((ROOT / "benchmarks" / "2026-11-17-h200-resnet110.json").read_text(encoding="utf-8"))["rows"]
    made = [
        TEXTBOOK,
        BARE,
        replace(TUNED, work=Work.BARE_FROM_FP32),
        TUNED,
        replace(TUNED, work=Work.GRID),
        TUNED,
        WITHOUT,
        PER_INPUT,
    ]
    assert [str(what) for what in made] == [row["what"] for row in told]
    for what, row in zip(made, told, strict=True):
        beside = next((one for one in made if str(one) == row["against"]), None)
        given = (row["rate"], row["ratio"], beside, row["memory"], tuple(row["turns"]))
        assert {"model": row["model"], **json.loads(json.dumps(Row(what, *given).to_dict()))} == row


# --- targets ---


def simulated(
    radius: float, over: float = 1.0, above: float = 20.0, fixed: float = 0.9, cap: int = 100_000
) -> Simulated:
    return Simulated(radius, 1000, cap, 1000.0, 1000.0 * over, above, 10.0, 0.9, fixed, 0.5)


def test_votes_are_judged_at_their_worst_radius_and_on_their_own_terms() -> None:
    good = [simulated(r) for r in (0.5, 1, 2)]
    assert [one.reached for one in targets.of_votes(good)] == [True] * 3
    bad = [*good[:2], simulated(2, over=1.2, above=65, fixed=0.905)]
    assert [one.reached for one in targets.of_votes(bad)] == [False] * 3
    assert [one.reached for one in targets.of_votes([simulated(r, cap=1000) for r in (0.5, 1, 2)])] == [None] * 3
    few = [replace(one, inputs=999) for one in good]
    assert {(one.reached, one.found.endswith("with 999 inputs")) for one in targets.of_votes(few)} == {(None, True)}
    many = [replace(one, inputs=30_000) for one in good]
    assert {(one.reached, one.found.endswith("with 30,000 inputs")) for one in targets.of_votes(many)} == {(True, True)}
    assert [*targets.of_votes([])] == []


ON_GPU = [
    Row(BARE, 100.0),
    Row(TUNED, 96.0, 0.96, BARE),
    Row(replace(TUNED, work=Work.GRID), 91.0, 0.91, BARE),
    Row(COMPILED, 50.0, 0.99, replace(COMPILED, work=Work.BARE)),
    Row(COMPILED, 96.0, 1.2, replace(COMPILED, work=Work.BEFORE)),
    Row(PER_INPUT, 96.0, 0.9, WITHOUT, turns=(0.99, 0.98, 0.5)),
]


def test_a_gpu_is_judged_by_its_fastest_certificates() -> None:
    fifty = [(one.wanted, one.reached) for one in targets.of_speed("resnet50", ON_GPU, H200, 100_000)]
    assert fifty == [("at least 0.95", True), ("at least 0.92", False), ("at least 1.15 ×", True)]
    ten = [*targets.of_speed("resnet110", ON_GPU, H200, 100_000)]
    assert [(one.wanted, one.reached) for one in ten] == [
        ("at least 0.95", True),
        ("at least 0.9", True),
        ("at most 3 %", True),
    ]
    assert [one.found for one in ten] == [
        "0.960 (tuned, bf16)",
        "0.910 (certify on the grid, tuned, bf16)",
        "2.0 (1.0 to 100.0 in 3 turns; of the medians 11.1)",
    ]
    assert {one.reached for one in targets.of_speed("resnet50", ON_GPU, H200, 1000)} == {None}
    assert {one.reached for one in targets.of_speed("resnet50", ON_GPU, {"device": "A100"}, 100_000)} == {None}
    assert [*targets.of_speed("resnet50", ON_GPU, CPU, 100_000)] == []
    assert [*targets.of_speed("own:net", ON_GPU, H200, 100_000)] == []


def test_an_ensemble_is_not_judged_as_its_network() -> None:
    network = build_model("cnn", (1, 8, 8), 10)
    assert _kind("resnet50", network) == "resnet50"
    kind = _kind("resnet50", Ensemble([network, network]))
    assert kind == "Ensemble of resnet50" and [*targets.of_speed(kind, ON_GPU, H200, 100_000)] == []


def test_a_cpu_is_judged_over_the_textbook_loop_as_it_is() -> None:
    onnx = Subject(Work.CERTIFY, "onnxruntime", "fp32")
    rows = [Row(onnx, 40.0, 4.0, TEXTBOOK), Row(onnx, 40.0, 2.5, TEXTBOOK_KEPT), Row(COMPILED, 90.0, 9.0, TEXTBOOK)]
    (found,) = targets.of_speed("resnet20", rows, CPU, 10_000)
    assert found.reached and found.found == "4.00 × (onnxruntime, fp32); 2.50 × if that loop keeps its memory, too"


def test_minutes_for_all_pictures_and_radii_by_pairs() -> None:
    whole, slow, part = (OnData(n, s, 1, None) for n, s in ((10_000, 500.0), (10_000, 700.0), (3, 0.1)))
    assert targets.of_inputs("resnet18", "cifar10", whole, H200, 100_000).reached is True
    assert targets.of_inputs("resnet18", "cifar10", slow, H200, 100_000).reached is False
    judged = targets.of_inputs("resnet18", "cifar10", part, H200, 100_000)  # not all pictures were measured
    assert judged.reached is None and judged.found == "5.6, from 3"
    other = targets.of_inputs("resnet18", "cifar10", replace(whole, noise="BasisWise"), H200, 100_000)
    assert other.reached is None and "BasisWise" in other.found
    assert targets.of_inputs("resnet18", "digits", whole, H200, 100_000).reached is None

    def pair(radius: float, kept: float) -> Kept:
        return Kept(radius, kept, radius, None, 100_000, 1, 10_000, True, 0, 0, (1.0, 0.1))

    (one,) = targets.of_pairs([pair(1, 1.01), pair(2, 0.97), pair(2.6, 0.5)])
    assert one.reached is False and one.found == "97.0 at least, 99.0 on average, less than 98 at 1 of 2"
    assert [*targets.of_pairs([pair(2.6, 0.5)])] == []


def test_the_page_states_the_targets_that_bench_shows() -> None:
    page = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| (at (?:least|most) [^|]+) \|", page, re.MULTILINE)
    assert rows == [(one.what, one.terms, one.wanted) for one in targets.TARGETS]
