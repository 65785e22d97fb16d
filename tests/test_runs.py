"""Runs as a library: the typed config, and the one object to read a run."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ucan.config import read_config
from ucan.errors import StoreError
from ucan.report.page import build_page, galleries_of
from ucan.report.rerun import SPELLED, commands
from ucan.results import database
from ucan.results.imports import complete
from ucan.runs.config import AuditConfig, ModelRef, NoiseRef, RunConfig, Sampling, changes
from ucan.runs.fields import Option, leaves
from ucan.runs.read import Run, read_runs

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


def test_every_option_of_certify_is_a_field_or_changes_no_result() -> None:
    import typer

    from ucan.cli import app

    command = typer.main.get_command(app).commands["certify"]  # type: ignore[attr-defined]
    given = {name for parameter in command.params for name in parameter.opts if name.startswith("--")}
    free = {"--out", "--device", "--backend", "--max", "--certificates", "--cluster", "--workers", "--json", "--quiet"}
    fields = {role.name for leaf in LEAVES.values() if isinstance(role := leaf.roles.get("certify"), Option)}
    assert given - free - {"--help"} == fields


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.parent.name)
def test_an_old_config_is_read_and_loses_nothing(path: Path) -> None:
    table = read_config(path)
    config = RunConfig.of(table, str(path))
    assert {**table, "arithmetic": "real"} == config.to_table()
    assert RunConfig.of(config.to_table()) == config
    assert config.data.skip == 1 and config.sampling.n == 400 and config.law.name == "Gaussian"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"colour": "red"}, "config.toml has the key 'colour'.*remove it"),
        ({"law": {"name": "Gaussian", "scale": "wide"}}, "config.toml: law.scale cannot be 'wide'"),
        ({"given": {"colour": 1}}, "'given.colour'"),
        ({"n": 10.5}, "n cannot be 10.5"),
        ({"n": True}, "n cannot be True"),
        ({"kind": "other"}, "kind cannot be 'other'"),
        ({"colour": "red", "ucan": "99.0"}, "written by UCAN 99.0: update"),
    ],
)
def test_what_no_run_holds_is_refused_with_file_and_key(change: dict[str, object], said: str) -> None:
    with pytest.raises(StoreError, match=said):
        RunConfig.of({"kind": "certify", **change}, "runs/mine/config.toml")


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
        "law.name": ("Laplace", "laplace"),
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


def test_the_options_of_an_audit_are_fields() -> None:
    named = {role.name for leaf in leaves(AuditConfig) if isinstance(role := leaf.roles.get("audit"), Option)}
    assert named == {"--steps", "--draws", "--restarts", "--check", "--level", "--seed"}


def test_a_report_opens_each_database_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(OLD)
    opened = []
    connect = database.connect_reader
    monkeypatch.setattr("ucan.results.store.connect_reader", lambda path: opened.append(path) or connect(path))
    runs = read_runs([OLD / "isotropic-run", OLD / "basis-wise-run"])
    build_page(runs, galleries_of(runs))
    assert len(opened) == 2
    assert runs[0].curve() is runs[0].curve()
