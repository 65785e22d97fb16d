"""Entries of a leaderboard: made from a run, checked, tampered with, and shown on a page."""

import json
import math
import re
import shutil
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import torch
from typer.testing import CliRunner

import ucan
from ucan import data
from ucan.audit import Attempt, Budget
from ucan.cli import app
from ucan.config import read_config
from ucan.errors import InvalidInput, StoreError
from ucan.leaderboard.checking import check
from ucan.leaderboard.checks import Check, Checked, CheckJob, Replayed
from ucan.leaderboard.entry import (
    Attacked,
    Claim,
    Entry,
    Hashes,
    Made,
    problems,
    read_entries,
    read_entry,
    repeated,
    text_of,
    write_entry,
)
from ucan.leaderboard.kept import kept_of, read_kept, write_kept
from ucan.leaderboard.making import config_file_hash, counts_of, entry_of, results_hash
from ucan.leaderboard.page import best_table, page
from ucan.models.ensemble import Ensemble, networks_in
from ucan.results.imports import import_run
from ucan.results.store import Store
from ucan.runs.agreement import contradiction
from ucan.runs.certify import certify
from ucan.runs.prepare import CertifyJob
from ucan.runs.progress import Progress
from ucan.runs.read import Run
from ucan.runs.rebuild import pipeline_of
from ucan.runs.recertify import RecertifyJob, recertify
from ucan.runs.train import TrainJob, trainer_of

LIGHT = Budget(steps=3, draws=4, restarts=1, check=200)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A digits classifier trained in a second, its run, and the run's entry, with what a submitter adds."""
    folder = tmp_path_factory.mktemp("leaderboard")
    trainer_of(TrainJob(settings="digits-isotropic", changes=["epochs=2"], device="cpu"), folder / "trained").run()
    job = CertifyJob(model=str(folder / "trained"), data="digits", skip=20, n=1000, seed="derived")
    certify(job, folder / "run")
    stated(folder)
    return folder


def stated(folder: Path) -> None:
    """Write the entry of the run, with what the submitter states."""
    found = entry_of(folder / "run", "run")
    assert found.claim.networks is None and found.claim.extra_data is None
    write_entry(replace(found, claim=replace(found.claim, networks=1, extra_data=False)), folder / "entry.json")


def checked(made: Path, **more: Any) -> Checked:
    return check(CheckJob(entry=made / "entry.json", inputs=5, attacks=2, seed=0, budget=LIGHT, **more))


def outcomes(done: Checked) -> dict[str, str]:
    return {one.name: one.outcome for one in done.checks}


def test_the_entry_of_a_run_is_made_and_stands(made: Path) -> None:
    done = checked(made)
    assert done.stands and set(outcomes(done).values()) == {"ok"}, done.checks
    assert list(outcomes(done)) == [
        "stated", "config", "results", "counts", "claim", "attacked", "records", "data", "weights", "seed", "replay", "audit"
    ]  # fmt: skip
    one = done.entry
    assert one.origin == "run" and one.claim.scope == "pipeline" and one.levels[0] == 0.0 and one.claim.n == 1000
    assert "wrong, one would be found with 95 % probability" in next(
        c.detail for c in done.checks if c.name == "replay"
    )


def tampered(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        table = json.loads((folder / "entry.json").read_text())
        change(table)
        (folder / "entry.json").write_text(json.dumps(table))

    return apply


def raise_a_radius(folder: Path) -> None:
    """Every row claims more than its certificate; the entry's counts and hash follow."""
    with closing(sqlite3.connect(folder / "run" / "results.sqlite")) as db, db:
        db.execute("UPDATE outcomes SET radius = 2 * radius")
    stated(folder)


def forge_the_records(folder: Path) -> None:
    """Rows and certificates claim that all votes were for the answer, each consistent in itself, and all hashes follow."""
    store = Store.open(folder / "run")
    x, law = data.load("digits").batch([0])[0], store.outcome(0).evidence.law
    with closing(sqlite3.connect(folder / "run" / "results.sqlite")) as db, db:
        for idx, text in db.execute("SELECT idx, record FROM records").fetchall():
            own = json.loads(text)
            if own["kind"] != "certificate":
                continue
            sure = lambda y, c=own["prediction"]: torch.nn.functional.one_hot(torch.full((len(y),), c), 10).float()  # noqa: E731
            (best,) = ucan.SmoothedClassifier(sure, law, num_classes=10, step=1 / 16).certify(x, n=1000)
            forged = best.to_dict()
            own |= {key: forged[key] for key in ("p_lower", "p_upper", "region", "radius", "alm", "log_volume")}
            own["evidence"]["counts"] = forged["evidence"]["counts"]
            db.execute("UPDATE records SET record = ? WHERE idx = ?", (json.dumps(own), idx))
            db.execute("UPDATE outcomes SET radius = ? WHERE idx = ?", (best.radius, idx))
    stated(folder)


def change_labels(folder: Path) -> None:
    """Every row has another label, which its answer agrees with."""
    with closing(sqlite3.connect(folder / "run" / "results.sqlite")) as db, db:
        db.execute(
            "UPDATE outcomes SET label = (label + 1) % 10, prediction = (prediction + 1) % 10 WHERE abstained = 0"
        )
    stated(folder)


def damage_the_records(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "run" / "results.sqlite")) as db, db:
        db.execute("UPDATE records SET record = replace(record, '\"radius\": ', '\"radius\": 1')")


def rewritten(query: str) -> Callable[[Path], None]:
    """Rows are changed by a query; the entry's counts and hash follow."""

    def apply(folder: Path) -> None:
        with closing(sqlite3.connect(folder / "run" / "results.sqlite")) as db, db:
            assert db.execute(query).rowcount > 0
        stated(folder)

    return apply


def in_evidence(**changes: Any) -> Callable[[Path], None]:
    """Every record's evidence states something else; all hashes follow."""

    def apply(folder: Path) -> None:
        with closing(sqlite3.connect(folder / "run" / "results.sqlite")) as db, db:
            for idx, text in db.execute("SELECT idx, record FROM records").fetchall():
                own = json.loads(text)
                own["evidence"] |= changes
                db.execute("UPDATE records SET record = ? WHERE idx = ?", (json.dumps(own), idx))
        stated(folder)

    return apply


def other_votes(folder: Path) -> None:
    """The certificates of one input were planned with other numbers of votes than the run says."""
    with closing(sqlite3.connect(folder / "run" / "results.sqlite")) as db, db:
        db.execute("UPDATE records SET record = json_set(record, '$.evidence.cap', 1100) WHERE idx = 0")
    stated(folder)


def abstentions_of_radius_0(folder: Path) -> None:
    """Every input with a wrong answer, or none, has a certificate of the right one with radius 0; all hashes follow."""
    with closing(sqlite3.connect(folder / "run" / "results.sqlite")) as db, db:
        shown = {"radius": 0.0, "alm": 0.0, "log_volume": None, "p_lower": 0.0, "p_upper": None, "kind": "certificate"}
        one = json.loads(db.execute("SELECT record FROM records JOIN outcomes USING (idx) WHERE correct").fetchone()[0])
        rows = db.execute(
            "SELECT idx, label, record FROM records JOIN outcomes USING (idx) WHERE NOT correct"
        ).fetchall()
        assert rows
        for idx, label, text in rows:
            region = {**one["region"], "radius": 0.0}
            forged = {**one, **shown, "region": region, "prediction": label, "evidence": json.loads(text)["evidence"]}
            db.execute("UPDATE records SET record = ? WHERE idx = ?", (json.dumps(forged), idx))
        db.execute(f"UPDATE outcomes SET {RIGHT}, radius = 0, alm = 0, p_lower = 0 WHERE NOT correct")
    stated(folder)


def predictions_with_radii(folder: Path) -> None:
    """Every input with a wrong answer, or none, has a prediction of the right one, which states a radius; all hashes follow."""
    with closing(sqlite3.connect(folder / "run" / "results.sqlite")) as db, db:
        shown = {"kind": "prediction", "p_value": 0.0, "radius": 3.0, "alm": 3.0, "p_lower": 0.9}
        rows = db.execute(
            "SELECT idx, label, record FROM records JOIN outcomes USING (idx) WHERE NOT correct"
        ).fetchall()
        for idx, label, text in rows:
            forged = {**json.loads(text), **shown, "prediction": label}
            db.execute("UPDATE records SET record = ? WHERE idx = ?", (json.dumps(forged), idx))
        db.execute(f"UPDATE outcomes SET {RIGHT}, radius = 3, alm = 3, p_lower = 0.9 WHERE NOT correct")
    stated(folder)


RIGHT = "prediction = label, abstained = 0, correct = 1"
TAMPERED = {
    "records of predictions": (predictions_with_radii, "prediction"),
    "records that abstain": (
        rewritten(f"UPDATE outcomes SET {RIGHT}, radius = 3 WHERE abstained"),
        "its record the contrary",
    ),
    "records of radius 0": (rewritten(f"UPDATE outcomes SET {RIGHT}, radius = 0 WHERE NOT correct"), "its record"),
    "records of smaller radii": (raise_a_radius, "the row states radius"),
    "records without a lead": (abstentions_of_radius_0, "is not above 1/2"),
    "records with fewer votes": (
        rewritten("UPDATE outcomes SET n = 100, n0 = 10"),
        "the row states n 100, its record 1000",
    ),
    "records with other votes": (other_votes, "the config states n 1000, its record 1100"),
    "attacked": (
        tampered(lambda t: t.update(audit={"certificates": 10_000, "broken": 0, "bug": False})),
        "states an audit of 10000 certificates, 0 broken, the run's folder has no audit",
    ),
    "counts": (tampered(lambda t: t["certified"].update({"0.25": t["certified"]["0"]})), "0.25: "),
    "stated": (tampered(lambda t: t["certified"].update({"0.25": 10**6})), "more than the 23 inputs"),
    "weights": (tampered(lambda t: t["sha256"].update(weights="0" * 64)), "states sha256 000000000000"),
    "config": (tampered(lambda t: t["sha256"].update(config="0" * 64)), "the run's config"),
    "results": (tampered(lambda t: t["sha256"].update(results="0" * 64)), "the run's rows"),
    "claim": (tampered(lambda t: t["claim"].update(n=100_000)), "n: 100000 stated, 1000 found"),
    "records of other answers": (change_labels, "the row states the answer"),
    "data": (change_labels, "the row's label is not that of the data"),
    "replay of forged records": (forge_the_records, "input "),
    "replay of other blocks": (in_evidence(block=2), "blocks of 2 copies"),
    "replay of no derived seed": (in_evidence(data_hash=None), "noise does not follow from it"),
    "records": (damage_the_records, "does not follow from its region"),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_what_was_tampered_with_fails_and_says_why(made: Path, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(made, folder)
    change, said = TAMPERED[name]
    change(folder)
    drawn = 25 if name.startswith(("replay", "data")) else 1  # the other checks look at every row
    done = check(
        CheckJob(
            entry=folder / "entry.json", model=str(made / "trained"), inputs=drawn, attacks=1, seed=0, budget=LIGHT
        )
    )
    failed = {one.name: one.detail for one in done.checks if one.outcome == "failed"}
    assert not done.stands and said in failed[name.split()[0]], done.checks


def test_a_run_that_was_put_together_or_changed_is_refused(made: Path, tmp_path: Path) -> None:
    def changed(name: str, query: str = "", config: tuple[str, str] = ("", "")) -> Path:
        folder = tmp_path / name
        shutil.copytree(made / "run", folder)
        with closing(sqlite3.connect(folder / "results.sqlite")) as db, db:
            db.execute(query or "SELECT 1")
        text = (folder / "config.toml").read_text()
        assert config[0] in text
        (folder / "config.toml").write_text(text.replace(*config))
        return folder

    first = "UPDATE records SET record = json_set(record, '$.scope', 'frozen') WHERE idx > 0"
    views = changed("views", "ALTER TABLE records RENAME TO kept")
    with closing(sqlite3.connect(views / "results.sqlite")) as db, db:
        db.execute("CREATE VIEW records AS SELECT idx, record FROM kept WHERE random() > 0")
    for folder, said in [
        (views, "computes its results when they are read"),
        (changed("scopes", first), "are not of one scope, norm and budget .pipeline in norm 2.0, frozen in norm 2.0"),
        (
            changed("norms", first.replace("$.scope', 'frozen'", "$.norm', 1")),
            "pipeline in norm 2.0, pipeline in norm 1",
        ),
        (
            changed("alpha", config=("alpha = 0.001", "alpha = 1e-9")),
            "states α = 1e-09, but its certificates were made at 0.001",
        ),
    ]:
        with pytest.raises(StoreError, match=said):
            Run.open(folder)
    chosen = changed("inputs", "DELETE FROM outcomes WHERE NOT correct", ("skip = 20", ""))
    assert Run.open(chosen).inputs <= 1  # all that is behind a gap is left out
    with pytest.raises(InvalidInput, match="not finished"):
        entry_of(chosen)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("skip", "99999999999999999999", "99999999999999999999 is not a valid value of skip"),
        ("seed", '"mine"', "the seed 'mine', which is no number"),
        ("started_in", r'"a\u0000b"', "which is no path"),
    ],
)
def test_a_config_that_cannot_be_is_refused_in_words(
    made: Path, tmp_path: Path, key: str, value: str, said: str
) -> None:
    shutil.copytree(made / "run", tmp_path / "run")
    config = tmp_path / "run" / "config.toml"
    config.write_text(re.sub(f"(?m)^{key} = .*$", lambda _: f"{key} = {value}", config.read_text()))
    with pytest.raises(StoreError, match=said):
        run = Run.open(tmp_path / "run")
        assert contradiction(run) == "" and run.base is not None


def test_factors_of_a_budget_do_not_pass_as_radii(made: Path, tmp_path: Path) -> None:
    job = CertifyJob(model=str(made / "trained"), data="digits", skip=20, n=1000, seed="derived", budget="0.1")
    certify(job, tmp_path / "run")
    done = check(CheckJob(entry=made / "entry.json", results=tmp_path / "run", inputs=1, attacks=0))
    claim = next(one for one in done.checks if one.name == "claim")
    assert claim.outcome == "failed" and "certifies a budget" in claim.detail


def forged(made: Path, folder: Path, config: dict[str, str], *queries: str) -> dict[str, str]:
    """What fails of a copy of the run whose config and database were rewritten, under an entry written by hand to fit."""
    shutil.copytree(made / "run", folder / "run")
    path = folder / "run" / "config.toml"
    for old, new in config.items():
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))
    with closing(sqlite3.connect(folder / "run" / "results.sqlite")) as db, db:
        for query in queries:
            assert db.execute(query).rowcount
    return by_hand(folder, str(made / "trained"))


def by_hand(folder: Path, model: str) -> dict[str, str]:
    """The checks that fail under an entry that states what the run does, also where ``entry_of`` refuses to make one."""
    run = Run.open(folder / "run")
    known, most = run.config, int(run.columns["n"].max())
    claim = Claim(known.data.source, known.data.split, run.inputs, run.norm, run.scope, most, run.alpha, 1, False)
    hashes = Hashes(
        known.model.weights_hash, config_file_hash(run.folder), results_hash(run.columns), known.data.fingerprint
    )
    one = Entry(1, "forged", "run", run="run", claim=claim, certified=counts_of(run.columns, [0.0]), hashes=hashes)
    write_entry(one, folder / "entry.json")
    done = check(CheckJob(entry=folder / "entry.json", model=model, inputs=1, attacks=0, seed=0, budget=LIGHT))
    return {each.name: each.detail for each in done.checks if each.outcome == "failed"}


def test_an_entry_written_by_hand_for_a_run_as_it_is_stands(made: Path, tmp_path: Path) -> None:
    assert not forged(made, tmp_path, {})


NO_SCOPE = {'scope = "pipeline"\n': ""}
FROZEN = 'replace(record, \'"scope": "pipeline"\', \'"scope": "pipeline", "scope": "frozen"\')'


def test_a_record_that_is_read_in_two_ways_is_refused(made: Path, tmp_path: Path) -> None:
    """SQLite takes the first of two equal keys, Python the last: neither the scope nor α can be shown by one of them."""
    with pytest.raises(StoreError, match="the entry 'scope' occurs twice"):
        forged(made, tmp_path / "a", NO_SCOPE, f"UPDATE records SET record = {FROZEN} WHERE idx > 0")
    escaped = "UPDATE records SET record = replace(record, '\"alpha\"', '\"\\u0061lpha\"')"
    with pytest.raises(StoreError, match="it states no α"):
        forged(made, tmp_path / "b", {"alpha = 0.001": "alpha = 1e-6"}, escaped)
    twice = 'UPDATE records SET record = replace(record, \'"alpha"\', \'"alpha": 0, "alpha"\') WHERE idx > 0'
    assert "the entry 'alpha' occurs twice" in forged(made, tmp_path / "c", {}, twice)["records"]


def test_a_record_of_no_input_says_nothing_about_the_run(made: Path, tmp_path: Path) -> None:
    frozen = "UPDATE records SET record = json_set(record, '$.scope', 'frozen')"
    added = "INSERT INTO records SELECT -1, json_set(record, '$.scope', 'pipeline') FROM records WHERE idx = 0"
    with pytest.raises(StoreError, match="not of one scope"):
        forged(made, tmp_path / "a", NO_SCOPE, frozen, added)
    assert forged(made, tmp_path / "b", {}, added)["records"] == "input -1 has a record and no row"


def test_the_run_is_shown_as_each_of_its_records_states(made: Path) -> None:
    run = Run.open(made / "run")
    assert contradiction(run) == ""
    for shown, said in (
        (replace(run, scope="frozen"), "with scope frozen, its record states pipeline"),
        (replace(run, norm=1.0), "with norm 1.0, its record states 2.0"),
        (replace(run, budget="0" * 64), f"with budget {'0' * 64}, its record states None"),
    ):
        assert contradiction(shown) == f"input 0: the run is shown {said}"
    stricter = replace(run, config=replace(run.config, sampling=replace(run.config.sampling, alpha=1e-6)))
    assert contradiction(stricter) == "input 0: the config states α = 1e-06, its record 0.001"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"bound": "randomised"}, "the config states the bound randomised, its record binary"),
        ({"n0": 50}, "the config states n0 50, its record 100"),
        ({"n0": 200}, "the config states n0 200, its record 100"),
        ({"seed": 7}, "its votes have another seed than the config states"),
    ],
)
def test_nothing_is_chosen_for_an_input_after_its_votes_are_seen(
    made: Path, changes: dict[str, Any], said: str
) -> None:
    run = Run.open(made / "run")
    other = replace(run, config=replace(run.config, sampling=replace(run.config.sampling, **changes)))
    assert contradiction(other).endswith(said)


def test_a_run_that_is_called_recertified_has_one_number_of_votes(made: Path, tmp_path: Path) -> None:
    """A derived seed has one stream, and n may not be chosen for each input; a run that is recertified stands."""
    recertify(RecertifyJob(run=made / "run", precision="bf16", n=200), tmp_path / "again")
    assert contradiction(Run.open(tmp_path / "again")) == ""
    run = Run.open(made / "run")
    called = replace(run, config=replace(run.config, kind="recertify"))
    assert contradiction(called) == ""
    wrong: dict[str, dict[str, Any]] = {"the config states n 2000": {"n": 2000}, "another seed than": {"seed": 7}}
    for said, changes in wrong.items():
        other = replace(called, config=replace(called.config, sampling=replace(called.config.sampling, **changes)))
        assert said in contradiction(other)


def test_a_derived_seed_is_the_run_s_and_not_an_input_s_own(made: Path, tmp_path: Path) -> None:
    """Else each input could have the better of two streams of noise."""
    shutil.copytree(made, tmp_path / "copy")
    folder = tmp_path / "copy" / "run"
    run = Run.open(folder)
    g = pipeline_of(run.config.model, run.telling(), torch.device("cpu"))
    idx = next(int(i) for i in run.columns["idx"] if not run.outcome(int(i)).abstained)
    (own,) = g.certify(data.load("digits").batch([idx])[0], n=1000, seed="derived")
    with Store.create(folder, read_config(folder / "config.toml")) as store:
        store.add(idx, int(data.load("digits").labels[idx]), own, 0.0, again=True)
    assert contradiction(Run.open(folder)) == f"input {idx}: its votes have another seed than the config states"
    config = (folder / "config.toml").read_text()
    stated(tmp_path / "copy")
    assert (folder / "config.toml").read_text() == config and not checked(tmp_path / "copy").stands


def test_all_records_of_a_run_have_one_noise(made: Path, tmp_path: Path) -> None:
    """Also where none of them is drawn: the better of two Σ for each input is no pipeline."""
    shutil.copytree(made / "run", tmp_path / "run")
    with closing(sqlite3.connect(tmp_path / "run" / "results.sqlite")) as db, db:
        db.execute(
            "UPDATE records SET record = json_set(record, '$.evidence.noise.settings.scale', 0.5) WHERE idx = 40"
        )
    assert contradiction(Run.open(tmp_path / "run")) == "input 40: its noise is not that of the inputs before"


@pytest.mark.parametrize("key", ["cap", "seed", "law"])
def test_a_record_with_a_text_for_a_number_is_a_contradiction(made: Path, tmp_path: Path, key: str) -> None:
    shutil.copytree(made / "run", tmp_path / "run")
    rows = Run.open(made / "run").columns
    idx = int(rows["idx"][~rows["abstained"]][0])
    with closing(sqlite3.connect(tmp_path / "run" / "results.sqlite")) as db, db:
        db.execute(f"UPDATE records SET record = json_set(record, '$.evidence.{key}', 'many') WHERE idx = {idx}")
    assert f"input {idx}: its record cannot be read" in contradiction(Run.open(tmp_path / "run"))


def test_inputs_are_neither_chosen_nor_repeated(made: Path, tmp_path: Path) -> None:
    imported = {'kind = "certify"': 'kind = "imported"', "skip = 20\n": ""}
    good = "WHERE idx NOT IN (SELECT idx FROM outcomes WHERE correct AND NOT abstained)"
    chosen = forged(made, tmp_path / "a", imported, f"DELETE FROM records {good}", f"DELETE FROM outcomes {good}")
    assert "the run was imported" in chosen["claim"] and "some are missing or repeated" in chosen["claim"]
    again = ["CREATE TABLE o AS SELECT * FROM outcomes", "DROP TABLE outcomes", "ALTER TABLE o RENAME TO outcomes"]
    again.append("INSERT INTO outcomes SELECT * FROM outcomes WHERE correct")
    assert "some are missing or repeated" in forged(made, tmp_path / "b", imported, *again)["claim"]
    first = ["UPDATE outcomes SET idx = 0", "DELETE FROM records WHERE idx > 0"]
    none = forged(made, tmp_path / "c", {"skip = 20": "skip = 0"}, *again[:3], *first)
    assert "not one of every 0 inputs" in none["claim"]
    behind = forged(made, tmp_path / "d", {}, "DELETE FROM outcomes WHERE idx = 20")
    assert "the run is not finished: 21 results" in behind["claim"]


def test_a_known_data_set_is_the_checkers_own(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a folder of its name beside the run is taken for it, nor a folder ``data`` there searched."""

    def not_asked(base: Path | None) -> None:
        raise AssertionError(base)

    shutil.copytree(made, tmp_path / "copy")
    config = tmp_path / "copy" / "run" / "config.toml"
    lines = [line for line in config.read_text().splitlines() if not line.startswith("started_in")]
    config.write_text("\n".join(['started_in = "."', *lines]))
    shutil.copytree(made / "run", tmp_path / "copy" / "run" / "digits")
    monkeypatch.setattr("ucan.runs.rebuild.data_root", not_asked)
    done = checked(tmp_path / "copy", model=str(made / "trained"))
    assert outcomes(done)["data"] == "ok" and outcomes(done)["seed"] == "ok"
    tampered(lambda table: table["sha256"].update(data="0" * 64))(tmp_path / "copy")
    other = checked(tmp_path / "copy", model=str(made / "trained"))
    assert outcomes(other)["data"] == "failed" and outcomes(other)["replay"] == "not checked"


def test_what_needs_a_registry_is_not_checked(made: Path, tmp_path: Path) -> None:
    registry = str(tmp_path / "registry.sqlite")
    certify(
        CertifyJob(model=str(made / "trained"), data="digits", skip=100, n=200, registry=registry), tmp_path / "run"
    )
    stated(tmp_path)
    done = checked(tmp_path)
    assert done.stands and done.entry.claim.scope == "registry", done.checks
    assert {name: outcome for name, outcome in outcomes(done).items() if outcome != "ok"} == dict.fromkeys(
        ("seed", "replay", "audit"), "not checked"
    )


def test_several_networks_are_not_stated_as_one(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "trained", tmp_path / "other")
    job = CertifyJob(model=f"{made / 'trained'},{tmp_path / 'other'},mirrored", data="digits", skip=100, n=100)
    certify(job, tmp_path / "run")
    for networks, outcome in ((1, "failed"), (2, "ok")):
        found = entry_of(tmp_path / "run", "run")
        write_entry(
            replace(found, claim=replace(found.claim, networks=networks, extra_data=False)), tmp_path / "entry.json"
        )
        assert outcomes(check(CheckJob(entry=tmp_path / "entry.json", inputs=1, attacks=0)))["claim"] == outcome


def test_an_ensemble_of_one_training_is_not_stated_as_one_network(tmp_path: Path) -> None:
    changes = ["epochs=1", "networks=2"]
    trainer_of(TrainJob(settings="digits-isotropic", changes=changes, device="cpu"), tmp_path / "trained").run()
    certify(CertifyJob(model=str(tmp_path / "trained"), data="digits", skip=100, n=100), tmp_path / "run")
    stated(tmp_path)
    (said,) = [one for one in checked(tmp_path).checks if one.outcome == "failed"]
    assert said.name == "weights" and said.detail == "networks: 1 stated, the weights are those of 2"
    tampered(lambda t: t["claim"].update(networks=2))(tmp_path)
    assert outcomes(checked(tmp_path))["weights"] == "ok"
    one = Ensemble([torch.nn.Linear(2, 2), torch.nn.Sequential(Ensemble([torch.nn.Linear(2, 2)] * 2))])
    assert networks_in(one) == 3 and networks_in(torch.nn.Linear(2, 2)) == networks_in(len) == 1


def test_what_cannot_be_checked_is_said(made: Path, tmp_path: Path) -> None:
    alone = tmp_path / "entry.json"
    shutil.copy(made / "entry.json", alone)
    done = check(CheckJob(entry=alone))
    assert done.stands and outcomes(done)["stated"] == "ok"
    assert {outcomes(done)[name] for name in ("results", "weights", "seed", "replay", "audit")} == {"not checked"}
    assert any("--results" in one.detail for one in done.checks)
    lost = check(CheckJob(entry=alone, results=made / "run", model=str(tmp_path / "nowhere")))
    assert lost.stands and outcomes(lost)["counts"] == "ok" and outcomes(lost)["replay"] == "not checked"


def test_certificates_that_cannot_be_drawn_again_are_counted_and_no_success(made: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(made, folder)
    with closing(sqlite3.connect(folder / "run" / "results.sqlite")) as db, db:
        for idx, record in db.execute("SELECT idx, record FROM records WHERE idx < 40").fetchall():
            own = json.loads(record)
            own["evidence"]["device"] = "cuda: of another make"
            db.execute("UPDATE records SET record = ? WHERE idx = ?", (json.dumps(own), idx))
    done = check(
        CheckJob(entry=folder / "entry.json", model=str(made / "trained"), inputs=25, attacks=0, seed=0, budget=LIGHT)
    )
    (replayed,) = (one for one in done.checks if one.name == "replay")
    assert replayed.outcome == "not checked" and "were not drawn again" in replayed.detail
    few, of = map(int, replayed.detail.split(" were ")[0].split(" of "))
    assert 0 < few < of


def test_breaks_among_certificates_drawn_at_random_are_not_those_that_a_choice_could_find(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of 23 inputs may have two false certificates by chance, and the two that were drawn are hardly both of them."""

    def broken(*given: Any) -> list[tuple[Attempt, None]]:
        told: dict[str, Any] = {"scope": "pipeline", "covered": True, "prediction": 0, "radius": 0.5, "alpha": 0.001}
        told |= {"answer": 1, "hits": 0, "total": 1000, "p_value": 0.0, "size": 0.9, "again_total": 1000}
        made_by: dict[str, Any] = {"attack": "planted", "seed": 0, "votes_seed": 0}
        return [(Attempt(idx=given[-1], factor=0.9, mode="live", broken=True, **told, **made_by), None)]

    monkeypatch.setattr("ucan.leaderboard.sampled.attack", broken)
    (said,) = (one for one in checked(made).checks if one.name == "audit")
    assert said.outcome == "failed" and said.detail.startswith("2 of 2 attacked certificates broken")
    few = check(CheckJob(entry=made / "entry.json", inputs=1, attacks=1, seed=0))
    assert outcomes(few)["audit"] == "ok"  # one may be


def test_another_model_fails_and_ends_no_check(made: Path, tmp_path: Path) -> None:
    """Neither a model of other weights that the run, or the caller, names, nor records of other weights."""
    job = TrainJob(settings="digits-isotropic", changes=["epochs=1", "seed=1"], device="cpu")
    trainer_of(job, tmp_path / "trained").run()
    done = checked(made, model=str(tmp_path / "trained"))
    assert outcomes(done)["weights"] == "failed" and outcomes(done)["counts"] == "ok"
    assert {outcomes(done)[name] for name in ("seed", "replay", "audit")} == {"not checked"}
    shutil.copytree(made, tmp_path / "copy")
    in_evidence(model="module:" + "0" * 64)(tmp_path / "copy")
    found = outcomes(checked(tmp_path / "copy", model=str(made / "trained")))
    assert (found["weights"], found["replay"], found["audit"]) == ("ok", "failed", "not checked")


def test_weights_beside_a_trained_run_are_not_left_unread(made: Path, tmp_path: Path) -> None:
    """Whoever gives them would believe that these were checked, or attacked."""
    found = {one.name: one for one in checked(made, weights=tmp_path / "other.safetensors").checks}
    assert found["replay"].outcome == "not checked" and "leave out --weights" in found["weights"].detail
    run = Run.open(made / "run")
    with pytest.raises(InvalidInput, match="leave out --weights"):
        pipeline_of(run.config.model, run.telling(), torch.device("cpu"), weights=tmp_path / "other.safetensors")


def test_a_part_of_the_inputs_is_named_as_one(made: Path, tmp_path: Path) -> None:
    certify(CertifyJob(model=str(made / "trained"), data="digits", skip=20, most=10, n=100), tmp_path / "run")
    stated(tmp_path)
    (said,) = (one.detail for one in checked(tmp_path).checks if one.name == "data")
    assert said.endswith("one of every 20, only the first 10 of 23")
    assert "only" not in next(one.detail for one in checked(made).checks if one.name == "data")


@pytest.mark.parametrize("wrong", [{"alpha": 2.0}, {"seed": -1}, {"device": "tpu"}, {"inputs": 0}, {"attacks": -1}])
def test_a_check_that_was_asked_wrongly_is_refused(made: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(wrong))):
        check(CheckJob(**{"entry": made / "entry.json", "results": made / "run", **wrong}))


def test_a_seed_that_does_not_follow_is_found(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "run", tmp_path / "run")
    config = tmp_path / "run" / "config.toml"
    text = config.read_text()
    at = text.index('seed = "0x') + 10
    config.write_text(text[:at] + ("1" if text[at] != "1" else "2") + text[at + 1 :])
    shutil.copy(made / "entry.json", tmp_path / "entry.json")
    done = checked(tmp_path, model=str(made / "trained"))
    assert outcomes(done)["seed"] == "failed" and outcomes(done)["config"] == "failed"


def test_an_imported_file_is_counted_and_says_that_it_is_unchecked(tmp_path: Path) -> None:
    rows = [
        "0\t1\t1\t0.6\t1\t0:00:01",
        "1\t2\t2\t0.3\t1\t0:00:01",
        "2\t3\t1\t0.9\t0\t0:00:01",
        "3\t0\t-1\t0.0\t0\t0:00:01",
    ]
    file = tmp_path / "released.tsv"
    file.write_text("\n".join(["idx\tlabel\tpredict\tradius\tcorrect\ttime", *rows]) + "\n")
    import_run(file, tmp_path / "run", "pipeline", 2.0)
    found = entry_of(tmp_path / "run")
    assert found.origin == "imported" and found.certified == {"0": 2, "0.25": 2, "0.5": 1}
    assert "source is not stated" in problems(found)
    about = replace(found.claim, data="toy", n=1000, alpha=0.001, networks=1, extra_data=False)
    write_entry(replace(found, claim=about, source="a repository"), tmp_path / "entry.json")
    for place, counted in ((tmp_path / "run", "ok"), (file, None), (None, None)):
        done = check(CheckJob(entry=tmp_path / "entry.json", results=place))
        assert done.stands and outcomes(done).get("counts") == counted
        assert outcomes(done)["replay"] == "not checked"
        assert outcomes(done)["results"] == ("not checked" if place is None else "ok")
    fewer = replace(about, inputs=2, scope="pipeline")
    write_entry(replace(found, claim=fewer, source="a repository"), tmp_path / "entry.json")
    done = check(CheckJob(entry=tmp_path / "entry.json", results=tmp_path / "run"))
    assert "inputs: 2 stated, 4 imported" in {c.name: c.detail for c in done.checks}["claim"] and not done.stands
    file.write_text(file.read_text() + "4\t1\t1\t0.6\t1\t0:00:01\n")
    assert not check(CheckJob(entry=tmp_path / "entry.json", results=file)).stands


WHOLE = Claim("cifar10", "test", 10_000, 2.0, "pipeline", 100_000, 0.001, 1, False)
GOOD = Entry(1, "mine", "run", claim=WHOLE, certified={"0": 8000, "0.25": 7000})


def test_an_entry_is_the_same_after_writing_and_reading(tmp_path: Path) -> None:
    for one in (GOOD, replace(GOOD, claim=replace(WHOLE, norm=math.inf), audit=Attacked(10, 0, False))):
        write_entry(one, tmp_path / "e.json")
        assert read_entry(tmp_path / "e.json") == one and not problems(one)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON"),
        ("[]", "no key ucan_leaderboard"),
        ('{"ucan_leaderboard": 1, "nme": "x"}', "'nme'"),
        ('{"ucan_leaderboard": 1, "claim": {"inputs": "many"}}', "claim.inputs"),
        ('{"ucan_leaderboard": 1, "certified": [1]}', "certified must be a table"),
        ('{"ucan_leaderboard": 1, "certified": {"0": 9, "0": 1}}', "'0' occurs twice"),
        ('{"ucan_leaderboard": ' + "[" * 100_000, "nested too deeply"),
        ('{"ucan_leaderboard": 1, "made": {"train_minutes": 1' + "0" * 400 + "}}", "made.train_minutes"),
        (b'{"ucan_leaderboard": 1, "name": "\xff"}', "not JSON"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_files_that_are_no_entries_are_refused(tmp_path: Path, text: str | bytes, said: str) -> None:
    (tmp_path / "e.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(StoreError, match=said):
        read_entry(tmp_path / "e.json")


def test_an_entry_of_a_later_version_is_told_apart_from_one_with_a_wrong_key(tmp_path: Path) -> None:
    table = {**json.loads(text_of(GOOD)), "made": {"ucan": "9.0.0"}, "later": 1}
    (tmp_path / "e.json").write_text(json.dumps(table))
    with pytest.raises(StoreError, match=r"'later'.*it was written by UCAN 9\.0\.0: update this one"):
        read_entry(tmp_path / "e.json")


def test_what_cannot_be_true_is_named() -> None:
    assert problems(replace(GOOD, certified={"0": 10, "0.25": 11})) == [
        "certified rises at 0.25: what is certified at a radius is so at every smaller one"
    ]
    assert "it must be a number of inputs" in problems(replace(GOOD, certified={"0": -1}))[0]
    assert "not a radius" in problems(replace(GOOD, certified={"far": 1}))[0]
    assert "claim.scope is 'mine'" in problems(replace(GOOD, claim=replace(WHOLE, scope="mine")))[0]
    assert problems(replace(GOOD, format=2, certified={}))[0].startswith("ucan_leaderboard is 2")
    assert "claim.networks is 0: it must be above 0" in problems(replace(GOOD, claim=replace(WHOLE, networks=0)))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (replace(GOOD, name="half \ud800 of a pair"), "name has characters that cannot be shown: 'half \\ud800"),
        (replace(GOOD, by="\x1b[31mus"), "by has characters"),
        (replace(GOOD, about="turned \u202e around"), "about has characters"),
        (replace(GOOD, name=""), "name is '': write it"),
        (replace(GOOD, name=" "), "name is ' ': write it"),
        (replace(GOOD, claim=replace(WHOLE, data="cifar10 ")), "claim.data is 'cifar10 ': write it without spaces"),
        (replace(GOOD, claim=replace(WHOLE, data="cifar10\u200b")), "claim.data has characters"),
        (replace(GOOD, claim=replace(WHOLE, split="")), "claim.split is '': write it"),
    ],
    ids=lambda value: ascii(value)[:20],
)
def test_a_text_can_be_shown_and_looks_like_no_other(changed: Entry, said: str) -> None:
    (found,) = problems(changed)
    assert said in found
    assert not problems(replace(GOOD, name="Größe σ = 1", about="two\nlines  of 文字"))


def test_names_of_files_that_cannot_be_text_end_no_command(tmp_path: Path) -> None:
    write_entry(replace(GOOD, run="a" * 5000), tmp_path / "e.json")
    assert outcomes(check(CheckJob(entry=tmp_path / "e.json")))["results"] == "not checked"
    assert "(%FF.json)" in page({Path("\udcff.json"): GOOD})


@pytest.mark.parametrize("key", ["nan", "inf", "-1", " 0.25", "0.250", "1e-1", "0.2500001"])
def test_a_radius_is_a_number_that_is_written_in_one_way(key: str) -> None:
    (said,) = problems(replace(GOOD, certified={**GOOD.certified, key: 1}))
    assert "is not a radius" in said


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (replace(GOOD, claim=replace(WHOLE, norm=math.nan)), "claim.norm is nan: it must be 1, 2 or inf"),
        (replace(GOOD, claim=replace(WHOLE, norm=3.0)), "claim.norm is 3.0: it must be 1, 2 or inf"),
        (replace(GOOD, made=Made(train_minutes=math.nan)), "made.train_minutes is nan"),
        (replace(GOOD, made=Made(certify_minutes=-5.0)), "made.certify_minutes is -5.0"),
        (replace(GOOD, audit=Attacked(10, 11, False)), "audit states 11 broken of 10 certificates"),
        (replace(GOOD, audit=Attacked(-3, 0, False)), "audit states 0 broken of -3 certificates"),
        (replace(GOOD, audit=Attacked(100)), "audit states certificates without broken"),
        (replace(GOOD, audit=Attacked(None, 0, False)), "audit states broken without certificates"),
    ],
)
def test_what_a_page_would_show_is_possible(changed: Entry, said: str) -> None:
    (found,) = problems(changed)
    assert said in found


def test_the_page_compares_only_what_is_comparable() -> None:
    others = replace(GOOD, name="theirs", origin="imported", source="x", certified={"0": 8500, "0.25": 6900})
    frozen = replace(GOOD, name="frozen", claim=replace(WHOLE, scope="frozen"), certified={"0": 9000, "0.25": 8999})
    part = replace(GOOD, name="part", claim=replace(WHOLE, inputs=500), certified={"0": 500})
    more = replace(GOOD, name="more data", claim=replace(WHOLE, extra_data=True), certified={"0": 9900})
    many = replace(GOOD, name="many", claim=replace(WHOLE, networks=4), certified={"0.25": 7100})
    loose = replace(GOOD, name="loose", claim=replace(WHOLE, alpha=0.5), certified={"0": 9900, "0.25": 9900})
    broken = replace(GOOD, name="broken", audit=replace(GOOD.audit, certificates=100, broken=60, bug=True))
    broken = replace(broken, certified={"0": 9900, "0.25": 9900})
    every = [GOOD, others, frozen, part, more, many, loose, broken]
    table = best_table(every, [0.0, 0.25])
    assert table[2] == "| radius | one network, `run` | one network, `imported` | several networks, `run` |"
    assert table[4] == "| 0 | **80.0** (mine) | **85.0** (theirs) | – |"
    assert table[5] == "| 0.25 | **70.0** (mine) | **69.0** (theirs) | **71.0** (many) |"
    stranger = replace(GOOD, name="best", by="a stranger", origin="record", certified={"0": 10_000})
    beside = best_table([*every, stranger], [0.0])
    assert beside[2].startswith("| radius | one network, `run` | one network, `record` | one network, `imported` |")
    assert beside[4].startswith(
        "| 0 | **80.0** (mine) | **100.0** (best; a stranger) |"
    )  # not among those with certificates
    text = page({Path(f"{one.name}.json"): one for one in every})
    assert "**unchecked**" in text and text.count("`frozen` |") == 1 and "| 0.5 | no | – |" in text
    assert "α ≤ 0.001, not refuted by an audit." in table[0] and "**100 / 60: BUG**" in text
    assert all(f"[{one.name}]({quote(one.name or '')}.json)" in text for one in every)


def test_only_what_is_compared_says_how_large_the_test_set_is() -> None:
    """An entry that cannot lead leaves the others in the table."""
    part = replace(GOOD, name="part", claim=replace(WHOLE, data="own", inputs=500), certified={"0": 400})
    frozen = replace(part, name="frozen", claim=replace(part.claim, inputs=10_000, scope="frozen"))
    assert best_table([part, frozen], [0.0])[4] == "| 0 | **80.0** (part) |"
    assert best_table([frozen], [0.0]) == []
    (said,) = problems(replace(GOOD, origin="record", claim=replace(WHOLE, inputs=10_001)))
    assert said == "claim.inputs is 10001: the test split of cifar10 has 10,000 inputs"
    assert not problems(replace(GOOD, claim=replace(WHOLE, inputs=50_000, split="train")))


def test_data_sets_are_compared_by_what_they_are() -> None:
    """A known one under any spelling of its name, any other one by its content."""
    spelled = replace(GOOD, name="spelled", claim=replace(WHOLE, data="CIFAR10"), certified={"0": 9000})
    text = page({Path("a.json"): GOOD, Path("b.json"): spelled})
    assert text.count("\n## ") == 1 and "| 0 | **90.0** (spelled) |" in text and "**80.0** (mine)" not in text
    mine = replace(GOOD, claim=replace(WHOLE, data="test.npz"), hashes=Hashes(data="a" * 64))
    easy = replace(mine, name="easy", certified={"0": 9999}, hashes=Hashes(data="b" * 64))
    text = page({Path("a.json"): mine, Path("b.json"): easy})
    assert "## test.npz (sha256 aaaaaaaaaaaa…), ℓ2" in text and "## test.npz (sha256 bbbbbbbbbbbb…), ℓ2" in text
    assert "| 0 | **80.0** (mine) |" in text and "| 0 | **99.9** (easy) |" in text


def test_an_audit_that_broke_more_than_chance_explains_is_a_bug_whatever_is_stated() -> None:
    (said,) = problems(replace(GOOD, audit=Attacked(100, 60, False)))
    assert said == "audit states 60 broken and no bug: chance explains at most 29"
    assert not problems(replace(GOOD, audit=Attacked(100, 60, True)))
    assert not problems(replace(GOOD, audit=Attacked(100, 3, False)))
    exact = replace(GOOD, claim=replace(WHOLE, alpha=0.0))
    assert problems(replace(exact, audit=Attacked(100, 2, False))) and not problems(
        replace(exact, audit=Attacked(100, 0, False))
    )


def test_the_results_of_another_entry_are_not_shown_again(tmp_path: Path) -> None:
    one = replace(GOOD, hashes=Hashes(results="a" * 64))
    write_entry(one, tmp_path / "b.json")
    write_entry(replace(one, name="aaa", by="somebody else"), tmp_path / "a.json")
    write_entry(replace(one, claim=replace(WHOLE, norm=math.inf)), tmp_path / "c.json")
    write_entry(GOOD, tmp_path / "d.json")
    assert repeated(read_entries(tmp_path)) == ["a.json and b.json state the same results: keep one of them"]
    done = CliRunner().invoke(app, ["leaderboard", "page", str(tmp_path), "-o", str(tmp_path / "README.md")])
    assert "state the same results" in str(done.exception) and not (tmp_path / "README.md").exists()


def test_radii_against_boxes_are_shown_in_grey_levels() -> None:
    """As everybody else writes them; a radius between two grey levels stays a number."""
    boxes = replace(GOOD, claim=replace(WHOLE, norm=math.inf), certified={"0": 9, "0.00784314": 8, "0.01": 7})
    shown = page({Path("b.json"): boxes})
    assert "| 0 | 2/255 | 0.01 |" in shown and "\n| 2/255 | **0.0** (" in shown and "0.00784" not in shown
    assert "| 0 | 0.25 |" in page({Path("a.json"): GOOD})


def test_the_training_split_is_not_compared_with_the_test_set() -> None:
    own = replace(GOOD, name="seen", claim=replace(WHOLE, split="train", inputs=50_000), certified={"0": 49_999})
    text = page({Path("mine.json"): GOOD, Path("seen.json"): own})
    assert "## cifar10, ℓ2\n" in text and "## cifar10 (train split, not the test set), ℓ2" in text
    assert "| 0 | **80.0** (mine) |" in text and "| 0 | **99.9** (seen) |" in text


def test_a_submitters_text_stays_in_its_cell() -> None:
    about = "good\n| [State of the art](x.json) | us | 100.0 |\n<img src=x>"
    text = page({Path("mine.json"): replace(GOOD, about=about, by="a|b")})
    (line,) = [line for line in text.splitlines() if "State of the art" in line]
    assert line.startswith("| [mine](mine.json) | a\\|b |") and "\\| us \\|" in line and "<img" not in text


def test_a_submitters_text_is_no_markup() -> None:
    """Neither by a backslash before the page's own, nor by brackets, backticks or the name of a file."""
    by, about = "us \\| `run` \\| 99.9", "[see](javascript:alert(1)) `code_[1]` and an open `"
    one = replace(GOOD, name="x](javascript:alert(2)) [y", by=by, about=about)
    text = page({Path("a](javascript:alert(3)).json"): one})
    (line,) = [line for line in text.splitlines() if line.startswith("| [x")]
    assert len(re.findall(r"(?<!\\)\|", line)) == len(re.findall(r"\|", text.split("All entries")[1].splitlines()[2]))
    assert re.findall(r"\]\(([^)]*)\)", line) == ["a%5D%28javascript%3Aalert%283%29%29.json"]
    assert "us &#92;\\| `run` &#92;\\| 99.9" in line
    assert "&#91;see&#93;(javascript:alert(1)) `code_[1]` and an open &#96; |" in line


def test_the_page_of_a_folder_needs_entries(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(StoreError, match="entries"):
            read_entries(folder)


def test_run_folders_may_lie_beside_their_entries(made: Path) -> None:
    """As the entry's own `run` says; their tables and certificates are JSON files as well."""
    assert (made / "run" / "results.tsv.json").is_file()
    assert list(read_entries(made)) == [Path("entry.json")]


def test_a_run_without_labels_or_about_a_budget_has_no_entry(made: Path, tmp_path: Path) -> None:
    job = CertifyJob(model=str(made / "trained"), data="digits", skip=100, n=200, budget=1)
    certify(job, tmp_path / "run")
    with pytest.raises(InvalidInput, match="a leaderboard compares radii"):
        entry_of(tmp_path / "run")
    assert "the run certifies a budget" in by_hand(tmp_path, str(made / "trained"))["claim"]


def test_the_schema_describes_what_is_written() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((Path(ucan.__file__).parent / "leaderboard.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(json.loads(text_of(GOOD)), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**json.loads(text_of(GOOD)), "nme": 1}, schema)


def test_the_commands_make_check_and_show_an_entry(made: Path, tmp_path: Path) -> None:
    def said(*words: object, code: int = 0) -> str:
        done = CliRunner().invoke(app, [*map(str, words)])
        assert done.exit_code == code, (done.output, done.exception)
        return str(done.output)

    entry = tmp_path / "entry.json"
    export = ("export", made / "run", "--format", "leaderboard", "-o", entry)
    assert "For you to write into it: claim.networks is not stated" in said(*export)
    assert isinstance(CliRunner().invoke(app, [*map(str, export)]).exception, InvalidInput)  # it is there already
    few = ("--inputs", 2, "--attacks", 0, "--quiet")
    assert "FAIL stated: claim.networks is not stated" in said("leaderboard", "check", entry, *few, code=1)
    shutil.copy(made / "entry.json", entry)
    text = said("leaderboard", "check", entry, "--results", made / "run", *few)
    assert "No check failed; this is not a proof. Not checked: audit." in text
    assert json.loads(said("leaderboard", "check", entry, "--results", made / "run", *few, "--json"))["stands"]
    said("leaderboard", "page", tmp_path, "-o", tmp_path / "README.md")
    assert "[run](entry.json)" in (tmp_path / "README.md").read_text()


def test_a_check_is_kept_beside_its_entry_and_shown(made: Path, tmp_path: Path) -> None:
    def said(*words: object, code: int = 0) -> str:
        done = CliRunner().invoke(app, ["leaderboard", *map(str, words)])
        assert done.exit_code == code, (done.output, done.exception)
        return str(done.output)

    entry, board = tmp_path / "mine-0.5.json", tmp_path / "README.md"
    shutil.copy(made / "entry.json", entry)
    there = ("--results", made / "run", "--quiet")
    said("check", entry, *there, "--inputs", 2, "--attacks", 0)
    assert list(tmp_path.iterdir()) == [entry]  # nothing is kept unless that is asked for
    assert "mine-0.5.check.json" in said("check", entry, *there, "--inputs", 3, "--attacks", 3, "--seed", 3, "--keep")
    kept = read_kept(tmp_path / "mine-0.5.check.json")
    of = Run.open(made / "run").columns["correct"].sum()
    assert kept.stands and kept.replayed == Replayed(of, 3, 3, 0, 0)
    attacked = kept.attacked.certificates  # of some no other input lies inside
    assert attacked in (1, 2, 3) and kept.attacked.broken == 0
    assert (kept.torch, kept.device, kept.seed) == (torch.__version__, "cpu", 3)
    said("page", tmp_path, "-o", board)
    words = f"| 3 of {of} replayed, {attacked} attacked / 0 broken, {kept.date}, cpu, sample of seed 3 |"
    assert words in board.read_text()
    assert "The best at each radius" in board.read_text() and "leads no table" in board.read_text()
    tampered(lambda t: t.update(about="other words"))(entry.rename(tmp_path / "entry.json").parent)
    (tmp_path / "entry.json").rename(entry)
    said("page", tmp_path, "-o", board)
    assert "3 of" in board.read_text()  # words may change
    table = json.loads(entry.read_text())
    entry.write_text(json.dumps({**table, "sha256": {**table["sha256"], "weights": "0" * 64}}))
    said("page", tmp_path, "-o", board)
    assert "| before the entry was changed |" in board.read_text() and "The best at each radius" in board.read_text()
    assert "FAIL weights" in said("check", entry, *there, "--keep", code=1)
    said("page", tmp_path, "-o", board)
    unseen = f"none replayed, none attacked, {kept.date}, cpu, not checked: seed, replay, audit |"
    assert (
        f"| **FAILED: weights**; {unseen}" in board.read_text() and "The best at each radius" not in board.read_text()
    )


def test_how_many_certificates_fail_is_counted(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made, tmp_path / "copy")
    forge_the_records(tmp_path / "copy")
    job = CheckJob(entry=tmp_path / "copy" / "entry.json", model=str(made / "trained"), inputs=4, attacks=0, seed=0)
    done = check(job)
    found = done.replayed
    assert found is not None and found.certificates == 4 and 0 < (found.failed or 0) <= 4
    assert f"{found.failed} of 4 certificates fail; input " in str(done.to_dict())
    kept = kept_of(job, done)
    assert "replay" in kept.failed and not kept.stands and kept.seed == 0
    write_kept(kept, tmp_path / "e.check.json")
    assert read_kept(tmp_path / "e.check.json") == kept


class StoppedAt(Progress):
    """Interrupts a job after so many items, as Ctrl-C does."""

    def __init__(self, items: int) -> None:
        self.left = items

    def finished(self, note: str) -> None:
        if not self.left:
            raise KeyboardInterrupt
        self.left -= 1


def test_an_interrupted_check_counts_what_was_done_until_then(made: Path, tmp_path: Path) -> None:
    """And says that it was not made; a certificate that failed before is said all the same."""
    job = CheckJob(entry=made / "entry.json", results=made / "run", inputs=4, attacks=3, seed=0, budget=LIGHT)
    of = int(Run.open(made / "run").columns["correct"].sum())
    whole = check(job)
    done = check(job, StoppedAt(2))
    assert done.interrupted and done.stands and done.named("not checked") == ("replay", "audit")
    assert done.replayed == Replayed(of, 2, 2, 0, 0) and done.attacked is None
    told = {one.name: one.detail for one in done.checks}
    assert told["audit"] == "interrupted"
    assert told["replay"].startswith(
        "interrupted after 2 of 4 certificates: recomputed, tested with fresh votes and drawn"
    )
    kept = kept_of(job, done)
    assert kept.stands and kept.unchecked == ("replay", "audit") and kept.replayed.redrawn == 2
    none = check(job, StoppedAt(0))
    assert none.replayed == Replayed(of, 0, 0, 0, 0)
    assert none.checks[-2].detail == "interrupted after 0 of 4 certificates"
    late = check(job, StoppedAt(4 + 1))
    assert late.replayed == whole.replayed and late.named("not checked") == ("audit",)
    assert late.checks[-1].detail.startswith("interrupted after 1 of 3 certificates: ")
    assert not whole.interrupted and "interrupted" not in str(whole.to_dict())
    shutil.copytree(made, tmp_path / "copy")
    forge_the_records(tmp_path / "copy")
    forged = CheckJob(entry=tmp_path / "copy" / "entry.json", model=str(made / "trained"), inputs=9, attacks=0, seed=0)
    found = check(forged, StoppedAt(5))
    assert not found.stands and found.named("failed")[-1] == "replay" and found.replayed.failed > 0
    assert found.checks[-2].detail.startswith("interrupted after 5 of 9 certificates: 5 of 5 certificates fail; input ")


def test_an_interrupted_check_replaces_no_record_but_for_a_failure(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def said(code: int) -> str:
        words = [
            "leaderboard",
            "check",
            str(entry),
            "--results",
            str(made / "run"),
            "--inputs",
            "4",
            "--keep",
            "--quiet",
        ]
        ended = CliRunner().invoke(app, words)
        assert ended.exit_code == code, (ended.output, ended.exception)
        return str(ended.output)

    entry, place = tmp_path / "mine.json", tmp_path / "mine.check.json"
    shutil.copy(made / "entry.json", entry)
    shown = sys.modules["ucan.cli.leaderboard"]  # its package has the group of commands under this name
    monkeypatch.setattr(shown, "Shown", lambda *_, **__: StoppedAt(2))
    assert f"Wrote {place}" in said(130) and read_kept(place).replayed.certificates == 2
    before = place.read_bytes()
    assert "as it was: an interrupted check replaces none" in said(130) and place.read_bytes() == before
    wrong = Check("replay", "failed", "1 of 2", Replayed(9, 2, 2, 0, 1), interrupted=True)
    monkeypatch.setattr("ucan.leaderboard.checking.replay_sample", lambda *_: wrong)
    assert "The entry does not stand (replay)." in said(1) and not read_kept(place).stands


def test_a_certificate_that_states_another_precision_fails_and_ends_no_check(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made, tmp_path / "copy")
    in_evidence(precision="of mine")(tmp_path / "copy")
    assert outcomes(checked(tmp_path / "copy", model=str(made / "trained")))["replay"] == "failed"


def test_a_check_that_cannot_have_been_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.check.json"
    good: dict[str, Any] = {"ucan_leaderboard_check": 1, "entry": "0" * 64, "stands": True}
    good |= {
        "made": {"date": "2026-11-18"},
        "replay": {"of": 9, "certificates": 3, "redrawn": 3, "moved": 0, "failed": 0},
    }
    path.write_text(json.dumps(good))
    assert read_kept(path).replayed.redrawn == 3
    for changes, said in (
        ({"ucan_leaderboard_check": 2}, "not the record of a check"),
        ({"stands": "yes"}, "stands"),
        ({"stands": None}, "must be stated"),
        ({"stands": False}, "nothing failed"),
        ({"attack": {"certificates": 1, "broken": 2}}, "cannot be"),
        ({"replay": {"certificates": -1}}, "cannot be"),
        ({"made": {"date": "2026-11-18", "device": "\x1b[0m"}}, "cannot be shown"),
        ({"mine": 1}, "'mine'"),
    ):
        path.write_text(json.dumps({**good, **changes}))
        with pytest.raises(StoreError, match=said):
            read_kept(path)
    write_entry(GOOD, tmp_path / "other.json")
    with pytest.raises(StoreError, match=r"mine\.check\.json"):  # the entry that it is about is not there
        read_entries(tmp_path)


def test_a_certificate_without_a_lead_is_found_among_all_inputs(made: Path, tmp_path: Path) -> None:
    """Also where none of them is drawn."""
    folder = tmp_path / "copy"
    shutil.copytree(made, folder)
    assert contradiction(Run.open(folder / "run")) == ""
    abstentions_of_radius_0(folder)
    assert "is not above 1/2" in contradiction(Run.open(folder / "run"))
