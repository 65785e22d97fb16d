"""Runs that somebody put together: what `ucan leaderboard check` finds in records, config and kept checks that were forged."""

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ucan
from ucan import data
from ucan.config import read_config
from ucan.errors import InvalidInput, StoreError
from ucan.leaderboard.checking import check
from ucan.leaderboard.checks import Checked, CheckJob
from ucan.leaderboard.entry import Attacked, Claim, Entry, read_entries, write_entry
from ucan.leaderboard.kept import entry_hash, read_all_kept, read_kept
from ucan.leaderboard.making import entry_of
from ucan.plan import DerivedSeed
from ucan.results.formats import write
from ucan.results.store import Store
from ucan.runs.agreement import contradiction
from ucan.runs.certify import certify
from ucan.runs.prepare import CertifyJob
from ucan.runs.read import Run
from ucan.runs.rebuild import pipeline_of
from ucan.runs.recertify import RecertifyJob, recertify
from ucan.runs.train import TrainJob, trainer_of
from ucan.sharing import push
from ucan.votes import Stream

NAMED = "ucan.models.examples:digits"
ROUTER = f"""
[selector]
model = "{NAMED}"
scale = 0.3
""" + "".join(f'\n[[expert]]\nmodel = "{NAMED}"\nscale = {scale}\n' for scale in (0.1, 0.2, 0.3, 0.4) + (0.5,) * 6)
COUNTED = {"norm": 1.0, "bound": "exact", "seed": None}
HONEST: dict[str, dict[str, Any]] = {
    "fixed": {"seed": "derived"},
    "secret": {"seed": None},
    "stop": {"seed": "derived", "stop": "0.25,0.5", "n": 2000},
    "either": {"stop": "0.25", "bound": "anytime"},
    "family": {"family": 50, "bound": "randomised"},
    "own": {"precision": "bf16"},
    "exact": {"model": NAMED, "noise": "splitting(steps=16)", "law": "uniform", "scale": 1.0, **COUNTED},
    "powers": {"model": NAMED, "law": "powerlaw", "exponent": 80.0, "scale": 0.5, "norm": 1.0},
    "general": {"model": NAMED, "law": "general-normal(beta=1)", "scale": 0.2, "norm": 1.0, "arithmetic": "real"},
}  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A digits classifier trained in a second, and honest runs of several kinds."""
    folder = tmp_path_factory.mktemp("forged")
    trainer_of(TrainJob(settings="digits-isotropic", changes=["epochs=2"], device="cpu"), folder / "trained").run()
    for name, settings in HONEST.items():
        job: dict[str, Any] = {
            "model": str(folder / "trained"),
            "data": "digits",
            "skip": 30,
            "n": 400,
            "device": "cpu",
        }
        certify(CertifyJob(**{**job, **settings}), folder / name)
    return folder


def forged(
    made: Path,
    to: Path,
    name: str = "fixed",
    config: dict[str, str] | None = None,
    record: Callable[[dict[str, Any]], None] | None = None,
    certificates: int | None = None,
) -> Run:
    """A copy of an honest run with texts of its config replaced, and some or all of its certificates' records changed."""
    shutil.copytree(made / name, to)
    path = to / "config.toml"
    for old, new in (config or {}).items():
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))
    with closing(sqlite3.connect(to / "results.sqlite")) as db, db:
        rows = db.execute("SELECT idx, record FROM records ORDER BY idx DESC").fetchall() if record is not None else []
        known = [(idx, own) for idx, text in rows if (own := json.loads(text))["kind"] == "certificate"]
        for idx, own in known[:certificates]:
            assert record is not None
            record(own)
            db.execute("UPDATE records SET record = ? WHERE idx = ?", (json.dumps(own), idx))
            query = "UPDATE outcomes SET n0 = ?, n = ? WHERE idx = ?"
            db.execute(query, (own["evidence"]["n0"], own["evidence"]["n"], idx))
    return Run.open(to)


def states(**changes: Any) -> Callable[[dict[str, Any]], None]:
    """A record whose evidence states something else."""
    return lambda record: record["evidence"].update(changes)


def said(run: Run) -> str:
    """The contradiction, without the input's number."""
    found = contradiction(run)
    return found.partition(": ")[2] if found.startswith("input ") else found


def checked(run: Run, to: Path, **more: Any) -> Checked:
    """The check of the run under an entry that was made of it as it is now."""
    found = entry_of(run.folder, str(run.folder))
    write_entry(replace(found, claim=replace(found.claim, networks=1, extra_data=False)), to / "entry.json")
    return check(CheckJob(entry=to / "entry.json", inputs=2, attacks=0, seed=0, device="cpu", **more))


def outcomes(done: Checked) -> dict[str, str]:
    return {one.name: one.outcome for one in done.checks}


@pytest.mark.parametrize("name", HONEST)
def test_honest_runs_say_the_same_throughout(made: Path, tmp_path: Path, name: str) -> None:
    """A rule with the bound that holds at every number of votes, too: there the bound is not the rule's own."""
    run = Run.open(made / name)
    assert contradiction(run) == ""
    done = checked(run, tmp_path)
    assert done.stands, done.checks


@pytest.mark.parametrize("key", ["n", "n0", "alpha", "bound", "seed"])
def test_a_config_says_what_fixes_the_votes(made: Path, tmp_path: Path, key: str) -> None:
    shutil.copytree(made / "fixed", tmp_path / "run")
    path = tmp_path / "run" / "config.toml"
    lines = [line for line in path.read_text().splitlines() if not line.startswith(f"{key} = ")]
    path.write_text("\n".join(lines))
    assert (
        contradiction(Run.open(tmp_path / "run"))
        == f"the config states no {key}: it could be another one for each input"
    )


def test_a_published_run_states_no_secret_seed(made: Path, tmp_path: Path) -> None:
    push(made / "secret", tmp_path / "published")
    run = Run.open(tmp_path / "published")
    assert run.config.sampling.seed is None and contradiction(run) == ""


def test_only_a_router_has_no_law_of_its_own(made: Path, tmp_path: Path) -> None:
    no_law = {'[law]\nname = "Gaussian"\nscale = 0.5\n': ""}
    assert said(forged(made, tmp_path / "a", config=no_law)).startswith("the config states no law")
    with_choice = forged(made, tmp_path / "b", record=lambda own: own.update(choice=json.loads(json.dumps(own))))
    with_choice = replace(
        with_choice, config=replace(with_choice.config, sampling=replace(with_choice.config.sampling, alpha=0.01))
    )
    assert said(with_choice) == "its record is a router's, and the config states one law"


def test_a_router_keeps_to_its_config_in_choice_and_answer(tmp_path: Path) -> None:
    (tmp_path / "router.toml").write_text(ROUTER)
    certify(
        CertifyJob(model=str(tmp_path / "router.toml"), data="digits", skip=60, n=300, seed="derived"), tmp_path / "run"
    )
    assert contradiction(Run.open(tmp_path / "run")) == ""
    n0 = forged(tmp_path, tmp_path / "n0", "run", record=lambda own: own["choice"]["evidence"].update(n0=10))
    assert said(n0) == "the config states n0 100, its record 10"
    level = forged(tmp_path, tmp_path / "level", "run", record=lambda own: own["choice"]["evidence"].update(alpha=0.1))
    assert said(level) == "the config states α = 0.001, its record 0.1005"


def test_a_rule_of_the_config_has_ended_the_votes_of_every_record(made: Path, tmp_path: Path) -> None:
    """Else n could be chosen for each input by leaving out the rule, or how many votes were planned."""
    no_rule = forged(made, tmp_path / "a", "stop", record=states(stop=None, cap=None, bound="binary"))
    assert said(no_rule) == "the config states stop 0.25,0.5, its record None"
    other = forged(made, tmp_path / "b", config={'bound = "binary"': 'bound = "binary"\nstop = "0.25"'})
    assert said(other) == "the config states stop 0.25, its record None"
    own = forged(made, tmp_path / "c", record=states(stop="0.25"))
    assert said(own) == "the config states stop None, its record 0.25"
    no_cap = forged(made, tmp_path / "d", "stop", record=states(cap=None), certificates=1)
    assert said(no_cap).startswith("the config states n 2000, its record ")


def test_all_records_have_one_precision_and_that_of_the_config(made: Path, tmp_path: Path) -> None:
    """The better of two precisions for each input is no classifier."""
    copy = states(precision="bf16", copy=True)
    assert (
        said(forged(made, tmp_path / "a", record=copy, certificates=1))
        == "its precision is not that of the inputs before"
    )
    all_of_them = forged(made, tmp_path / "b", record=copy)
    assert said(all_of_them).startswith("its precision is not") or "the config asks for no precision" in said(
        all_of_them
    )
    stated = forged(made, tmp_path / "c", config={'arithmetic = "grid': 'precision = "bf16"\narithmetic = "grid'})
    assert said(stated) == "the config states the precision bf16, its record fp32"
    assert said(forged(made, tmp_path / "d", record=states(copy=True), certificates=1)).startswith(
        "its precision as asked"
    )
    assert said(forged(made, tmp_path / "e", record=states(block=64), certificates=1)).startswith("its block of noise")
    assert said(forged(made, tmp_path / "f", record=states(weights_hash="0" * 64), certificates=1)).startswith(
        "its network"
    )


def test_a_copy_in_another_precision_fails_the_replay(made: Path, tmp_path: Path) -> None:
    """It stands as a copy, tested and drawn again, and nothing of it is about the run's classifier."""
    run = Run.open(made / "fixed")
    g, digits = pipeline_of(run.config.model, run.telling(), torch.device("cpu")), data.load("digits")
    seed = DerivedSeed(run.config.sampling.number, digits.fingerprint())
    x, _ = digits.batch(run.columns["idx"].tolist())
    copies = {own.evidence.input_hash: own for own in g.certify(x, n=400, precision="bf16", seed=seed)}
    shutil.copytree(made / "fixed", tmp_path / "run")
    with Store.create(tmp_path / "run", read_config(tmp_path / "run" / "config.toml")) as store:
        for idx, label in zip(run.columns["idx"].tolist(), run.columns["label"].tolist(), strict=True):
            store.add(idx, label, copies[run.outcome(idx).evidence.input_hash], 0.0, again=True)
    done = checked(Run.open(tmp_path / "run"), tmp_path, model=str(made / "trained"))
    found = {one.name: one for one in done.checks}
    assert found["weights"].outcome == "ok"
    assert (
        found["replay"].outcome == "failed"
        and "a copy in bf16, not about the run's classifier" in found["replay"].detail
    )
    assert "it is of a copy in bf16" in found["records"].detail


def test_noise_that_only_its_certificates_tell_is_not_confirmed(tmp_path: Path) -> None:
    """Whether a pipeline has it nobody knows here, though all was drawn again and nothing fails."""
    np.save(tmp_path / "sigma.npy", np.linspace(0.5, 1.5, 64, dtype=np.float32).reshape(1, 8, 8))
    job = CertifyJob(model=NAMED, data="digits", skip=100, n=200, noise=str(tmp_path / "sigma.npy"), scale=0.2)
    certify(job, tmp_path / "run")
    done = checked(Run.open(tmp_path / "run"), tmp_path)
    (replayed,) = (one for one in done.checks if one.name == "replay")
    assert (
        done.stands
        and replayed.outcome == "not checked"
        and "the noise as the certificate states it" in replayed.detail
    )


def test_seeds_cannot_be_chosen_for_each_input_by_leaving_them_out(made: Path, tmp_path: Path) -> None:
    def of_seed(number: int) -> Callable[[dict[str, Any]], None]:
        def apply(own: dict[str, Any]) -> None:
            about = own["evidence"]["input_hash"]
            keys = {phase: Stream(number, about, phase).key for phase in ("select", "estimate")}
            own["evidence"] |= {"seed": None, "streams": keys}

        return apply

    for name in ("fixed", "secret"):
        assert (
            said(forged(made, tmp_path / name, name, record=of_seed(3)))
            == "its votes have another seed than the config states"
        )
    none = forged(made, tmp_path / "none", record=states(seed=None, streams={}), certificates=1)
    assert said(none).startswith("the config states a seed, and its record states neither")
    some = states(seed=None, streams={"select": "0" * 64})
    assert "another seed" in said(forged(made, tmp_path / "some", record=some, certificates=1))
    phase = forged(made, tmp_path / "phase", record=states(phase="luck"), certificates=1)
    assert said(phase) == "its votes are of the phase luck, which no run has"


def test_a_run_that_is_called_recertified_has_the_n0_of_its_config(made: Path, tmp_path: Path) -> None:
    """Only votes in pairs choose no class; in pairs are those of a run that was recertified."""
    called = {'kind = "certify"': 'kind = "recertify"\nbefore = "fixed"'}
    few = forged(made, tmp_path / "a", config=called, record=states(n0=5), certificates=1)
    assert said(few) == "the config states n0 100, its record 5"
    pairs = forged(made, tmp_path / "b", record=states(n0=5, pairs={"lost": 0}), certificates=1)
    assert "the run was not recertified" in said(pairs)


@pytest.mark.parametrize("name", ["fixed", "stop", "exact", "family"])
def test_a_recertified_run_says_the_same_throughout(made: Path, tmp_path: Path, name: str) -> None:
    """Its fresh votes choose the class with as many as the first run's did, which a rule may have ended."""
    recertify(RecertifyJob(run=made / name, precision="bf16", n=200, device="cpu"), tmp_path / "again")
    assert contradiction(Run.open(tmp_path / "again")) == ""


def test_votes_that_choose_a_class_end_where_the_rule_ends_them(made: Path, tmp_path: Path) -> None:
    """At n0, or as soon as a class leads by as much as the rule asks for: any other n0 may have been chosen afterwards."""
    run = Run.open(made / "stop")
    ends = {record["evidence"]["n0"] for _, record in run.records()}
    assert contradiction(run) == "" and min(ends) < 100
    early = forged(made, tmp_path / "a", "stop", record=states(n0=5, selection=[5] + [0] * 9), certificates=1)
    assert said(early).startswith(
        "the config states n0 100, its record 5, with a lead of 5 votes where the rule asks for "
    )
    late = forged(made, tmp_path / "b", "stop", record=states(n0=100, selection=[100] + [0] * 9), certificates=1)
    assert said(late).startswith("the config states n0 100, its record 100, with a lead of 100 votes")


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"n0 = 100": "n0 = 100\nfamily = 1000"}, "the config states a family of 1000, its record one of 1"),
        ({'noise = "Isotropic"': 'noise = "Composed"'}, "the config states the noise Composed, its record Isotropic"),
        (
            {'sigma = "Scalar"\nscale = 1.0': 'sigma = "Scalar"\nscale = 9.0'},
            "the config states noise_settings.scale 9.0, its record 1.0",
        ),
    ],
)  # fmt: skip
def test_what_pages_show_of_the_config_is_that_of_the_records(
    made: Path, tmp_path: Path, config: dict[str, str], expected: str
) -> None:
    assert said(forged(made, tmp_path / "run", config=config)) == expected


def test_a_line_at_the_end_of_a_config_is_refused_with_its_key(made: Path, tmp_path: Path) -> None:
    """It lands in the last table, the settings of the noise."""
    with pytest.raises(StoreError, match=r"config.toml has the key 'noise_settings.alpha', .* remove it"):
        forged(made, tmp_path / "run", config={'sigma = "Scalar"': 'sigma = "Scalar"\nalpha = 0.5'})


@pytest.mark.parametrize(
    ("stated", "said"),
    [
        ('scope = "frozen"', "states scope frozen, but its records have pipeline"),
        ('scope = "pipeline"\nbudget_hash = "0"', "states budget 0, but its records have None"),
        ("scope = 1979-05-27", "scope.* 1979|1979.*scope"),  # no text at all
    ],
)
def test_a_config_of_another_claim_than_the_records_is_refused(
    made: Path, tmp_path: Path, stated: str, said: str
) -> None:
    """A page and the file beside a table show the config as well: with it a frozen run could be shown as pipeline."""
    with pytest.raises(StoreError, match=said):
        forged(made, tmp_path / "run", config={'scope = "pipeline"': stated})
    with pytest.raises(StoreError, match=said), Store.open(tmp_path / "run") as store:
        write(store, tmp_path / "table.tsv")
    assert not (tmp_path / "table.tsv.json").exists()


def test_the_weights_of_the_noise_are_those_that_the_config_states(made: Path, tmp_path: Path) -> None:
    run = forged(made, tmp_path / "run", config={'noise_hash = "0': 'noise_hash = "1'})
    found = {one.name: one for one in checked(run, tmp_path, model=str(made / "trained")).checks}
    assert found["weights"].outcome == "failed" and "noise_hash" in found["weights"].detail


@pytest.mark.parametrize(
    ("name", "parameter", "expected"),
    [
        ("powers", "a", "the config states law.a 80.0, its record 60.0"),
        ("general", "beta", "the config states law.beta 1, its record 60.0"),
    ],
)
def test_every_parameter_of_a_law_is_compared(
    made: Path, tmp_path: Path, name: str, parameter: str, expected: str
) -> None:
    shutil.copytree(made / name, tmp_path / "run")
    with closing(sqlite3.connect(tmp_path / "run" / "results.sqlite")) as db, db:
        query = f"UPDATE records SET record = json_set(record, '$.evidence.law.{parameter}', 60.0) WHERE idx = 30"
        db.execute(query)
    assert contradiction(Run.open(tmp_path / "run")) == f"input 30: {expected}"


def test_a_run_about_a_table_is_of_no_leaderboard(made: Path, tmp_path: Path) -> None:
    """With columns in its config an ordinary run would have other weights for each input, as a table's held columns make."""
    run = forged(made, tmp_path / "run", config={'data = "digits"': 'data = "digits"\ncolumns = ["a"]'})
    done = checked(run, tmp_path, model=str(made / "trained"))
    assert outcomes(done)["claim"] == "failed"


WHOLE = Claim("cifar10", "test", 10_000, 2.0, "pipeline", 100_000, 0.001, 1, False)
ENTRY = Entry(1, "mine", "run", claim=WHOLE, certified={"0": 8000})


@pytest.mark.parametrize(
    ("replay", "attack", "expected"),
    [
        ({"certificates": 20_000, "redrawn": 20}, {}, "cannot be"),
        ({"redrawn": 30}, {}, "cannot be"),
        ({"moved": 9, "redrawn": 8}, {}, "cannot be"),
        ({"moved": 15, "failed": 6}, {}, "cannot be"),
        ({"failed": 5}, {}, "the check replay failed"),
        ({}, {"certificates": 3, "broken": 4}, "cannot be"),
        ({}, {"certificates": 20, "broken": 9}, "the check audit failed"),
        ({}, {"certificates": 20, "broken": 1}, ""),
    ],
)
def test_a_kept_check_has_possible_numbers_and_says_what_failed(
    tmp_path: Path, replay: dict[str, int], attack: dict[str, int], expected: str
) -> None:
    write_entry(ENTRY, tmp_path / "a.json")
    numbers = {"of": 8000, "certificates": 20, "redrawn": 20, "moved": 0, "failed": 0, **replay}
    kept = {
        "ucan_leaderboard_check": 1,
        "entry": entry_hash(ENTRY),
        "stands": True,
        "replay": numbers,
        "attack": attack,
    }
    (tmp_path / "a.check.json").write_text(json.dumps({**kept, "made": {"date": "2026-11-19"}}))
    if not expected:
        assert read_all_kept(tmp_path, read_entries(tmp_path))[Path("a.json")].attacked.broken == 1
        return
    with pytest.raises(StoreError, match=expected):
        read_all_kept(tmp_path, read_entries(tmp_path))
    failed = {**kept, "stands": False, "failed": ["replay", "audit"], "made": {"date": "2026-11-19"}}
    (tmp_path / "a.check.json").write_text(json.dumps(failed))
    if expected != "cannot be":
        assert not read_kept(tmp_path / "a.check.json").stands


def test_breaks_in_the_check_of_another_entry_are_no_contradiction(tmp_path: Path) -> None:
    """The entry was changed since, and the page says so."""
    write_entry(replace(ENTRY, audit=Attacked(20, 0, False)), tmp_path / "a.json")
    kept = {"ucan_leaderboard_check": 1, "entry": entry_hash(ENTRY), "stands": True, "made": {"date": "2026-11-19"}}
    (tmp_path / "a.check.json").write_text(json.dumps({**kept, "attack": {"certificates": 20, "broken": 9}}))
    assert len(read_all_kept(tmp_path, read_entries(tmp_path))) == 1


def test_a_run_whose_inputs_all_abstain_is_checked_and_loaded(tmp_path: Path) -> None:
    """An abstention does not tell the shape of its input, and its data do."""
    job = CertifyJob(model=NAMED, data="digits", scale=20.0, n=100, skip=100, seed="derived")
    assert certify(job, tmp_path / "run").abstained == 5
    run = Run.open(tmp_path / "run")
    done = checked(run, tmp_path)
    assert done.stands and (outcomes(done)["weights"], outcomes(done)["replay"]) == ("ok", "not checked")
    g = ucan.load(tmp_path / "run", trust=True)
    assert g.M.describe() == "Isotropic" and g.law == ucan.Gaussian(20.0)
    with pytest.raises(InvalidInput, match="every input of this run abstained, so that only its data tell the shape"):
        pipeline_of(run.config.model, run.telling(), torch.device("cpu"))


def test_a_run_is_rebuilt_from_a_certificate_where_there_is_one(tmp_path: Path) -> None:
    """Also if its first input abstained, and none of its certificates is right."""
    x, y = data.load("digits").batch([120, 0])
    np.savez(tmp_path / "two.npz", x=x.numpy(), y=[int(y[0]), (int(y[1]) + 1) % 10])
    job = CertifyJob(model=NAMED, data=str(tmp_path / "two.npz"), scale=0.5, n=400, arithmetic="real", seed="derived")
    certify(job, tmp_path / "run")
    run = Run.open(tmp_path / "run")
    assert run.columns["abstained"].tolist() == [True, False] and not run.columns["correct"].any()
    assert outcomes(checked(run, tmp_path))["seed"] == "ok"


@pytest.mark.parametrize("value", ["NULL", "9e999"])
def test_minutes_that_no_row_states_are_left_open(made: Path, tmp_path: Path, value: str) -> None:
    shutil.copytree(made / "fixed", tmp_path / "run")
    with closing(sqlite3.connect(tmp_path / "run" / "results.sqlite")) as db, db:
        db.execute("ALTER TABLE outcomes RENAME TO o")
        db.execute("CREATE TABLE outcomes AS SELECT * FROM o")
        db.execute(f"UPDATE outcomes SET seconds = {value} WHERE idx = 30")
        db.execute("DROP TABLE o")
    assert entry_of(tmp_path / "run").made.certify_minutes is None
    assert entry_of(made / "fixed").made.certify_minutes is not None
