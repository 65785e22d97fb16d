"""Runs as a library: the typed config, and the one object to read a run."""

import ast
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import ucan
from ucan.config import read_config
from ucan.continuing import certify_more
from ucan.data import InMemory
from ucan.errors import InvalidInput, ModelError, StoreError
from ucan.plan import CertifyPlan
from ucan.replay import replay
from ucan.report.page import build_page, galleries_of
from ucan.report.rerun import SPELLED, commands
from ucan.results import database
from ucan.results.imports import complete
from ucan.runs import build
from ucan.runs.certify import CertifyJob, certify
from ucan.runs.config import AskConfig, AuditConfig, ModelRef, NoiseRef, RunConfig, Sampling, changes
from ucan.runs.fields import Option, leaves
from ucan.runs.jobs import Pipeline
from ucan.runs.predict import PredictJob, predict
from ucan.runs.progress import Progress
from ucan.runs.read import Run, read_runs
from ucan.stopping import AtRadii

OLD = Path(__file__).parent / "fixtures" / "version-0.1"
CONFIGS = sorted(OLD.glob("*-run/config.toml"))
LEAVES = {".".join(leaf.path): leaf for leaf in leaves(RunConfig)}


@pytest.mark.parametrize("name", LEAVES)
def test_every_field_is_an_option_or_says_from_what_it_follows(name: str) -> None:
    roles = LEAVES[name].roles
    assert roles and all(isinstance(role, Option) or len(role) > 5 for role in roles.values())


def test_every_key_and_every_option_is_there_once() -> None:
    keys = [leaf.key for leaf in LEAVES.values()]
    assert len(keys) == len(set(keys))
    options = [role.name for leaf in LEAVES.values() if isinstance(role := leaf.roles.get("certify"), Option)]
    assert len(options) == len(set(options)) + 1  # --seed is a number, or says where the number is from


SHOWING = {"--out", "--device", "--max", "--json", "--quiet", "--help"}
WHERE = {
    "--model",
    "--data",
    "--weights",
    "--trust",
    "--registry",
    "--min-radius",
    "--factors",
    "--mode",
}  # told by run and attempts
FREE = {
    "certify": {"--backend", "--certificates", "--cluster", "--workers", "--time", "--dry-run"} | SHOWING,
    "audit": WHERE | SHOWING,
}


@pytest.mark.parametrize(("command", "record"), [("certify", RunConfig), ("audit", AuditConfig)])
def test_every_option_is_a_field_or_changes_no_result(command: str, record: type) -> None:
    import typer

    from ucan.cli import app

    options = typer.main.get_command(app).commands[command].params  # type: ignore[attr-defined]
    given = {name for parameter in options for name in parameter.opts if name.startswith("--")}
    fields = {role.name for leaf in leaves(record) if isinstance(role := leaf.roles.get(command), Option)}
    assert given - FREE[command] == fields


# Options of certify that ask has no use for: a table's, those of names and registries, and the bound, which is the question's.
NOT_ASKED = {"--target", "--id", "--train", "--hold", "--vary", "--sigma", "--class-names", "--registry", "--bound"}


def test_every_option_of_ask_is_a_field_of_its_config_or_of_its_question() -> None:
    import typer

    from ucan.cli import app
    from ucan.questions.catalogue import OPTIONS, QUESTIONS

    options = typer.main.get_command(app).commands["ask"].params  # type: ignore[attr-defined]
    given = {name for parameter in options for name in parameter.opts if name.startswith("--")}
    fields = {role.name for leaf in leaves(AskConfig) if isinstance(role := leaf.roles.get("certify"), Option)}
    own = {option for takes in OPTIONS.values() for option in takes}
    assert OPTIONS.keys() == QUESTIONS.keys()
    assert given - FREE["certify"] == (fields - NOT_ASKED) | own


def test_functions_are_short() -> None:
    """Outside their argument lists and docstrings, in the whole package and in the experiments."""
    package = Path(ucan.__file__).parent
    experiments = Path(__file__).parents[1] / "experiments"
    for path in [*package.rglob("*.py"), *experiments.glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                body = node.body[1:] if ast.get_docstring(node) else node.body
                assert not body or body[-1].end_lineno - body[0].lineno < 60, f"{path.name}: {node.name}"


def test_the_defaults_of_an_audit_are_those_of_its_budget() -> None:
    import inspect

    from ucan.audit import FACTORS, Budget
    from ucan.cli.audit import audit

    given = {name: parameter.default for name, parameter in inspect.signature(audit).parameters.items()}
    assert Budget(*(given[name] for name in ("steps", "draws", "restarts", "check", "level", "seed"))) == Budget()
    assert given["factors"] == ",".join(map(str, FACTORS))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.parent.name)
def test_an_old_config_is_read_and_loses_nothing(path: Path) -> None:
    table = read_config(path)
    config = RunConfig.of(table, str(path))
    assert {**table, "arithmetic": "real"} == config.to_table()
    assert RunConfig.of(config.to_table()) == config
    assert RunConfig.of({**table, "norm": "inf"}).claim.norm == float("inf")
    assert config.data.skip == 1 and config.sampling.n == 400 and config.law.name == "Gaussian"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"colour": "red"}, "config.toml has the key 'colour'.*remove it"),
        ({"law": {"name": "Gaussian", "scale": "wide"}}, "config.toml: 'wide' is not a valid value of law.scale"),
        ({"given": {"colour": 1}}, "'given.colour'"),
        ({"law": {"name": "Gaussian", "scale": 0.5, "n": 10}}, "config.toml has the key 'law.n'.*remove it"),
        (
            {"law": {"name": "GeneralNormal", "scale": 0.5, "beta": 1.0, "bta": 2.0}},
            "config.toml has the key 'law.bta'",
        ),
        ({"n": 10.5}, "10.5 is not a valid value of n"),
        ({"n": True}, "True is not a valid value of n"),
        ({"sigma": {"age": 1.0, "income": "x"}}, "'income': 'x'} is not a valid value of sigma"),
        ({"steps": {"age": True}}, "{'age': True} is not a valid value of steps"),
        ({"sigma": [1.0]}, r"\[1.0\] is not a valid value of sigma"),
        ({"kind": "other"}, "'other' is not a valid value of kind"),
        ({"colour": "red", "ucan": "99.0"}, "written by UCAN 99.0: update"),
    ],
)
def test_what_no_run_holds_is_refused_with_file_and_key(change: dict[str, object], said: str) -> None:
    with pytest.raises(StoreError, match=said):
        RunConfig.of({"kind": "certify", **change}, "runs/mine/config.toml")


def test_values_of_a_mapping_are_converted_as_all_others_are_and_those_of_any_type_are_left_alone() -> None:
    told = {"own": "inf", "more": {"deep": [1, "x"]}}
    config = RunConfig.of(
        {"sigma": {"age": 2, "income": "inf"}, "noise_settings": told, "law": {"name": "Mine", **told}}
    )
    assert config.noise.sigma == {"age": 2.0, "income": float("inf")}
    assert all(type(value) is float for value in config.noise.sigma.values())
    assert config.noise.settings == config.law.others == told
    assert RunConfig.of(config.to_table()) == config


def test_configs_are_compared_field_by_field() -> None:
    begun = RunConfig(model=ModelRef("m", weights_hash="a"), sampling=Sampling(n=10, seed=1))
    assert changes(begun, begun) == []
    more = replace(begun, sampling=replace(begun.sampling, n=20))
    assert changes(begun, more) == ["n: the run has 10, asked for 20"]
    # What the older run does not keep is not compared; how an option was spelled is never.
    later = replace(begun, noise=NoiseRef(given="isotropic", state="hash"))
    assert changes(begun, later) == []
    assert changes(later, begun) == ["noise_hash: the run has 'hash', asked for none"]
    secret = replace(begun, sampling=replace(begun.sampling, seed="0x5", seed_source="random"))
    assert not any("0x5" in line for line in changes(begun, secret))
    assert "0x5" not in secret.shown() and "0x5" in str(secret.to_table())


def sample(leaf):  # type: ignore[no-untyped-def]
    """A value that is not the usual one, and how the command line writes it."""
    special = {
        "sampling.arithmetic": ("grid(1/255)", "grid"),
        "sampling.seed_source": ("random", "random"),
        "claim.norm": (1.0, "1"),
        "sampling.alpha": (0.02, "0.02"),
    }
    if ".".join(leaf.path) in special:
        return special[".".join(leaf.path)]
    kinds = str(leaf.hint)
    return (17, "17") if "int" in kinds else (0.75, "0.75") if "float" in kinds else ("word", "word")


@pytest.mark.parametrize(
    "name", [name for name, leaf in LEAVES.items() if isinstance(leaf.roles.get("certify"), Option)]
)
def test_run_it_again_forgets_no_option(name: str) -> None:
    leaf = LEAVES[name]
    value, written = sample(leaf)
    config = RunConfig()
    if len(leaf.path) == 2:
        part, field = leaf.path
        config = replace(config, **{part: replace(getattr(config, part), **{field: value})})
    else:
        config = replace(config, **{leaf.path[0]: value})
    rows = complete(idx=np.arange(0))
    run = Run("r", Path("r"), "pipeline", 2.0, None, config, rows)
    (line,) = [one for one in commands(run) if one.startswith("ucan certify")]
    option = leaf.roles["certify"]
    assert isinstance(option, Option) and f"{option.name} {written}" in line
    assert leaf.path in SPELLED or f"{option.name} " not in commands(replace(run, config=RunConfig()))[0]


def test_a_report_opens_each_database_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(OLD)
    opened = []
    connect = database.connect_reader
    monkeypatch.setattr(
        "ucan.results.folder.connect_reader", lambda path, *kind: opened.append(path) or connect(path, *kind)
    )
    runs = read_runs([OLD / "isotropic-run", OLD / "basis-wise-run"])
    build_page(runs, galleries_of(runs))
    assert len(opened) == 2
    assert runs[0].curve() is runs[0].curve()


# --- going on with more votes ---


def bright(batch: torch.Tensor) -> torch.Tensor:
    value = 6 * (batch.flatten(1).mean(1) - 0.5)
    return torch.stack([-value, value], dim=1)


@pytest.fixture
def pictures() -> InMemory:
    x = torch.rand(7, 1, 4, 4, generator=torch.Generator().manual_seed(1))
    return InMemory(x, (x.flatten(1).mean(1) > 0.5).long(), classes=("dark", "light"), name="pictures")


def job(pictures: InMemory, **changes: Any) -> CertifyJob:
    settings = {"scale": 0.5, "n0": 40, "n": 300, "model_id": "bright", "bound": "anytime", "device": "cpu"}
    return CertifyJob(model=bright, data=pictures, **{**settings, **changes})


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_run_over_numbers_of_sixteen_bits_is_that_of_the_library(dtype: torch.dtype, tmp_path: Path) -> None:
    """Noise in 16 bits is another law's: a classifier that reads the last digit was certified at 1 for what it is not at 0."""

    def even(batch: torch.Tensor) -> torch.Tensor:
        value = (batch[:, 0].double() * 2048 % 1 == 0).double() - 0.5
        return torch.stack([-value, value], dim=1)

    x = torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=dtype)
    data = InMemory(x, classes=("other", "even"), unit="mm")
    settings = {"scale": 0.4, "n": 500, "model_id": "even", "arithmetic": "real", "device": "cpu"}
    certify(CertifyJob(model=even, data=data, **settings), tmp_path / "run")
    g = ucan.SmoothedClassifier(even, ucan.Gaussian(0.4), num_classes=2, model_id="even")
    of_the_library = [c.to_dict() for c in g.certify(x, n=500)]
    assert [c.to_dict() for c in outcomes(tmp_path / "run")] == of_the_library


class Counting(Progress):
    votes = items = 0

    def sampled(self, count: int) -> None:
        self.votes += count

    def finished(self, note: str) -> None:
        self.items += 1


def outcomes(folder: Path) -> list[Any]:
    run = Run.open(folder)
    return [run.outcome(i) for i in run.columns["idx"].tolist()]


def test_a_run_that_goes_on_is_the_run_that_had_all_votes_at_once(pictures: InMemory, tmp_path: Path) -> None:
    certify(job(pictures), tmp_path / "grown")
    counted = Counting()
    done = certify(job(pictures, n=1000), tmp_path / "grown", counted)
    assert done.mean_samples == 1000 and counted.votes == 7 * 700 and counted.items == 7
    certify(job(pictures, n=1000), tmp_path / "whole")
    grown, whole = outcomes(tmp_path / "grown"), outcomes(tmp_path / "whole")
    assert [one.evidence for one in grown] == [one.evidence for one in whole]
    assert [one.radius for one in grown] == [one.radius for one in whole]
    # What is there is not done again.
    again = Counting()
    certify(job(pictures, n=1000), tmp_path / "grown", again)
    assert (again.votes, again.items) == (0, 0)
    with pytest.raises(InvalidInput, match="n: the run has 1000, asked for 300"):
        certify(job(pictures), tmp_path / "grown")


def test_a_run_goes_on_with_blocks_of_the_size_that_it_was_begun_with(pictures: InMemory, tmp_path: Path) -> None:
    """As of a run of an older version, whose small forward passes drew smaller blocks."""
    certify(job(pictures, most=2), tmp_path / "run")
    with closing(sqlite3.connect(tmp_path / "run" / "results.sqlite")) as db, db:
        db.execute("UPDATE records SET record = json_set(record, '$.evidence.block', 16)")
    certify(job(pictures, most=4), tmp_path / "run")
    assert [one.evidence.block for one in outcomes(tmp_path / "run")] == [16] * 4


def test_a_stopping_rule_leaves_what_it_has_decided(pictures: InMemory, tmp_path: Path) -> None:
    rule = {"stop": "0.2,0.4", "bound": "anytime"}
    certify(job(pictures, n=150, **rule), tmp_path / "run")
    before = outcomes(tmp_path / "run")
    certify(job(pictures, n=20_000, **rule), tmp_path / "run")
    after = outcomes(tmp_path / "run")
    more = [new.evidence.n > old.evidence.n for old, new in zip(before, after, strict=True)]
    assert any(more) and all(new.radius >= old.radius for old, new in zip(before, after, strict=True))
    g = ucan.SmoothedClassifier(bright, ucan.Gaussian(scale=0.5), num_classes=2, model_id="bright")
    for i, outcome in enumerate(after):
        assert outcome.evidence.selection == before[i].evidence.selection
        if isinstance(outcome, ucan.Certificate):  # its counts are those of its stream, from the first vote on
            assert replay(outcome, g, pictures[i][0][None]).stands


def test_an_interrupted_continuation_goes_on(pictures: InMemory, tmp_path: Path) -> None:
    class Stopping(Counting):
        def finished(self, note: str) -> None:
            super().finished(note)
            if self.items == 3:
                raise KeyboardInterrupt

    certify(job(pictures), tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        certify(job(pictures, n=900), tmp_path / "run", Stopping())
    assert sorted(one.evidence.n for one in outcomes(tmp_path / "run")) == [300] * 4 + [900] * 3
    certify(job(pictures, n=900), tmp_path / "run")
    certify(job(pictures, n=900), tmp_path / "whole")
    assert [o.evidence for o in outcomes(tmp_path / "run")] == [o.evidence for o in outcomes(tmp_path / "whole")]


@pytest.mark.parametrize(
    "rule", [{"bound": "binary"}, {"bound": "two-class"}, {"bound": "binary", "stop": "0.2,0.4"}], ids=str
)
def test_a_bound_about_one_n_does_not_go_on(pictures: InMemory, tmp_path: Path, rule: dict[str, str]) -> None:
    certify(job(pictures, **rule), tmp_path / "run")
    with pytest.raises(InvalidInput, match="n: the run has 300, asked for 900"):
        certify(job(pictures, **rule, n=900), tmp_path / "run")


def test_votes_of_another_stream_are_refused(pictures: InMemory) -> None:
    g = ucan.SmoothedClassifier(bright, ucan.Gaussian(scale=0.5), num_classes=2, model_id="bright")
    x = pictures[0][0][None]
    (outcome,) = g.certify(x, n0=40, n=300, bound="anytime")
    more = CertifyPlan(n0=40, n=600, bound="anytime")
    (((_, grown),)) = certify_more(g, [(x, outcome.evidence)], more)
    assert grown.evidence.n == 600 and sum(grown.evidence.counts) == 600
    for changed, said in (
        (replace(more, seed=5), "another seed"),
        (replace(more, alpha=0.01), "another α"),
        (replace(more, bound="binary", stop=AtRadii((0.2,))), "by the anytime bound alone"),
    ):
        with pytest.raises(InvalidInput, match=said):
            list(certify_more(g, [(x, outcome.evidence)], changed))
    wider = ucan.SmoothedClassifier(bright, ucan.Gaussian(scale=0.6), num_classes=2, model_id="bright")
    with pytest.raises(InvalidInput, match="another law"):
        list(certify_more(wider, [(x, outcome.evidence)], more))
    (fixed,) = g.certify(x, n0=40, n=300)
    with pytest.raises(InvalidInput, match="only what was certified by the anytime bound"):
        list(certify_more(g, [(x, fixed.evidence)], more))


class Unidentified:
    """A classifier whose code and data cannot be read, so that it has no identity."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("it cannot be taken apart")

    def __call__(self, batch: torch.Tensor) -> torch.Tensor:
        return (batch.flatten(1).mean(1) > 0.5).long()


def test_votes_of_a_model_without_an_identity_are_not_continued(pictures: InMemory) -> None:
    g = ucan.SmoothedClassifier(Unidentified(), ucan.Gaussian(scale=0.5), num_classes=2)
    x = pictures[0][0][None]
    (outcome,) = g.certify(x, n0=40, n=300, bound="anytime")
    assert outcome.evidence.model is None
    with pytest.raises(InvalidInput, match="model without an identity"):
        list(certify_more(g, [(x, outcome.evidence)], CertifyPlan(n0=40, n=600, bound="anytime")))


def test_votes_at_an_input_that_only_float32_takes_for_this_one_are_not_continued() -> None:
    x = torch.tensor([[2.0**30, 0.0]], dtype=torch.float64)
    near = x - torch.tensor([[20.0, 0.0]])
    assert torch.equal(x.float(), near.float())

    def above(batch: torch.Tensor) -> torch.Tensor:
        return (batch[:, 0] > 2.0**30 - 5).long()

    g = ucan.SmoothedClassifier(above, ucan.Gaussian(scale=10.0), num_classes=2, model_id="above")
    (outcome,) = g.certify(x, n0=40, n=300, bound="anytime")
    more = CertifyPlan(n0=40, n=600, bound="anytime")
    with pytest.raises(InvalidInput, match="another input"):
        list(certify_more(g, [(near, outcome.evidence)], more))
    from_before = replace(outcome.evidence, exact_hash=None)  # as version 0.1 stored it
    ((_, grown),) = certify_more(g, [(x, from_before)], more)
    assert grown.evidence.n == 600


def test_votes_in_another_arithmetic_are_not_continued() -> None:
    g = ucan.SmoothedClassifier(bright, ucan.Gaussian(scale=0.5), num_classes=2, model_id="bright")
    x, more = torch.full((1, 1, 2, 2), 204 / 255), CertifyPlan(n0=40, n=600, bound="anytime")
    for one, other in ((g, g.on_grid(1 / 255)), (g.on_grid(1 / 255), g)):
        (outcome,) = one.certify(x, n0=40, n=300, bound="anytime")
        with pytest.raises(InvalidInput, match="another arithmetic"):
            list(certify_more(other, [(x, outcome.evidence)], more))
        ((_, grown),) = certify_more(one, [(x, outcome.evidence)], more)
        assert grown.evidence.n == 600 and grown.evidence.arithmetic == outcome.evidence.arithmetic


# --- the library from Python ---


def test_objects_are_as_good_as_names(pictures: InMemory, tmp_path: Path) -> None:
    asked = job(pictures, law=ucan.Laplace(scale=0.3), scale=None, noise=ucan.Fixed(torch.full((1, 4, 4), 0.5)), norm=1)
    done = certify(asked, tmp_path / "run")
    config = Run.open(tmp_path / "run").config
    assert (config.model.spec, config.data.source, config.law.name) == (None, None, "Laplace")
    assert config.data.fingerprint == pictures.fingerprint() and config.model.identity == "id:bright"
    assert done.inputs == 7 and done.norm == 1 and done.to_dict()["guarantee"]
    assert certify(asked, tmp_path / "run") == done
    with pytest.raises(InvalidInput, match=r"law\.scale"):
        certify(replace(asked, law=ucan.Laplace(scale=0.4)), tmp_path / "run")
    answers = predict(PredictJob(model=bright, data=pictures, scale=0.5, model_id="bright", n=200), tmp_path / "p.tsv")
    assert len(answers.answers) == 7 and (tmp_path / "p.tsv").is_file() and not (tmp_path / "p.tsv.part").exists()


def test_a_module_is_left_as_it_is(pictures: InMemory, tmp_path: Path) -> None:
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 2))
    with pytest.raises(ModelError, match="training mode"):
        certify(CertifyJob(model=net, data=pictures, n=100), tmp_path / "run")
    assert net.training
    assert certify(CertifyJob(model=net.eval(), data=pictures, n=100), tmp_path / "run").inputs == 7


def test_a_mean_and_std_in_a_job_are_refused_with_the_place_for_them(pictures: InMemory, tmp_path: Path) -> None:
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 2)).eval()
    statistics: Any = ((0.5,), (0.2,))
    with pytest.raises(InvalidInput, match=r"name here.*load_model"):
        certify(CertifyJob(model=net, data=pictures, n=100, normalise=statistics), tmp_path / "run")


def test_options_that_a_trained_run_does_not_take_are_refused(monkeypatch):
    first = torch.zeros(1, 1, 8, 8)
    with pytest.raises(InvalidInput, match=r"its own network and noise: leave out --weights, --normalise\."):
        build._trained(Pipeline(model="runs/x", weights="w.pt", normalise="imagenet"), "runs/x", first, None)
    monkeypatch.setattr(build, "load_run", lambda folder, trust: SimpleNamespace(num_classes=10))
    with pytest.raises(InvalidInput, match="trained with 10 classes: leave out --classes"):
        build._trained(Pipeline(model="runs/x", classes=4), "runs/x", first, None)


@pytest.mark.parametrize("size", [0, 4096])
def test_a_run_that_was_ended_before_its_file_was_complete_is_resumed(tmp_path, size):
    job = CertifyJob(model="ucan.models.examples:digits", data="digits", law=ucan.Gaussian(0.25), n=100, most=2)
    certify(job, tmp_path / "run")
    for path in (tmp_path / "run").glob("results.*"):
        path.unlink()
    with closing(sqlite3.connect(tmp_path / "run" / "results.sqlite")) as db:
        if size:  # as SQLite leaves it between the first two statements of a writer
            db.execute("PRAGMA journal_mode = WAL")
    assert (tmp_path / "run" / "results.sqlite").stat().st_size == size
    assert certify(job, tmp_path / "run").inputs == 2
