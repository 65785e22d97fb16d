"""The store: resumes, refuses, survives SIGKILL, and says clearly what is wrong with a folder."""

import collections
import errno
import math
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch

import ucan
from ucan import sidecar
from ucan.config import frozen, read_config
from ucan.errors import InvalidInput, StoreError, UcanError
from ucan.plan import CertifyPlan
from ucan.report.tables import comparison
from ucan.results import Store
from ucan.results.imports import complete
from ucan.results.store import COLUMNS

CONFIG = {
    "law": {"name": "gaussian", "scale": 0.5},
    "n": 100,
    "alpha": 0.001,
    "norm": 2,
    "radii": [0, 0.5],
    "fast": True,
}
DIM = 5000  # Σ of this many numbers goes into a tensor file of its own
ROWS = 120


def classifier(dim: int = 8, generator: ucan.generators.Generator | None = None) -> ucan.SmoothedClassifier:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = torch.nn.Linear(dim, 3).eval()
    return ucan.SmoothedClassifier(model, ucan.Gaussian(scale=0.5), generator, num_classes=3)


def inputs(count: int, dim: int = 8) -> torch.Tensor:
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(1))


def outcomes(count: int) -> list[ucan.certificate.Certificate | ucan.certificate.Abstention]:
    return classifier().certify(inputs(count), n=100)


def filled(folder: Path, count: int = 12, config: dict = CONFIG) -> Path:
    with Store.create(folder, config) as store:
        for i, outcome in enumerate(outcomes(count)):
            store.add(i, i % 3, outcome, 0.25)
    return folder


def rows(folder: Path) -> list[tuple[object, ...]]:
    """Everything but the clock, row for row, with the evidence."""
    with Store.open(folder) as store:
        names = [name for name in COLUMNS if name != "seconds"]
        columns = store.columns(names)
        evidence = [str(store.record(int(i))) for i in columns["idx"]]
        return list(zip(*(columns[name].tolist() for name in names), evidence, strict=True))


# --- what goes in comes out ---


def test_outcomes_come_back_whole(tmp_path: Path) -> None:
    expected = outcomes(12)
    assert any(o.abstained for o in expected) and not all(o.abstained for o in expected)
    with Store.open(filled(tmp_path / "run")) as store:
        columns = store.columns()
        assert store.done() == set(range(12)) and len(store) == 12
        assert (store.scope, store.norm) == ("pipeline", 2)
        for i, outcome in enumerate(expected):
            assert store.outcome(i).to_dict() == outcome.to_dict()
            assert columns["prediction"][i] == (-1 if outcome.abstained else outcome.prediction)
            assert columns["correct"][i] == (outcome.prediction == i % 3)
            for name in ("radius", "alm", "p_lower", "log_volume", "abstained"):
                assert columns[name][i] == getattr(outcome, name)
        assert columns["n"].tolist() == [100] * 12 and columns["seconds"].sum() == 3.0
        assert {name: c.dtype for name, c in columns.items()} == {name: np.dtype(t) for name, t in COLUMNS.items()}


def test_an_empty_run_has_empty_columns(tmp_path: Path) -> None:
    with Store.create(tmp_path / "run", CONFIG) as store:
        assert store.done() == set() and store.columns()["correct"].dtype == np.bool_
        assert store.scope == "unknown"
        with pytest.raises(InvalidInput, match="no result for input 5"):
            store.outcome(5)


def test_a_large_scale_lies_in_one_file_beside_the_rows(tmp_path: Path) -> None:
    noise = ucan.Fixed(torch.linspace(0.5, 1.0, DIM))
    g = classifier(DIM, noise)
    with Store.create(tmp_path / "run", CONFIG) as store:
        given = g.certify(inputs(3, DIM) * 5, n=100)
        for i, outcome in enumerate(given):
            store.add(i, 0, outcome, 0.1)
        assert not any(o.abstained for o in given)
        assert store.outcome(2).to_dict() == given[2].to_dict()
    assert len(list((tmp_path / "run").glob("*.safetensors"))) == 1


def test_an_input_is_stored_once(tmp_path: Path) -> None:
    with Store.create(filled(tmp_path / "run"), CONFIG) as store:
        with pytest.raises(InvalidInput, match="already has a result"):
            store.add(3, 0, outcomes(1)[0], 0.1)
        assert len(store) == 12
        store.add(12, 0, outcomes(1)[0], 0.1)


def test_a_run_has_one_scope_and_one_norm(tmp_path: Path) -> None:
    other = classifier().certify(inputs(1), n=100, norm=math.inf)[0]
    with Store.create(filled(tmp_path / "run"), CONFIG) as store, pytest.raises(InvalidInput, match="one norm"):
        store.add(99, 0, other, 0.1)


@pytest.mark.parametrize("key", ("scope", "sc\\u006fpe"))
def test_a_later_record_with_two_scopes_is_refused_before_a_scope_is_shown(tmp_path: Path, key: str) -> None:
    """SQLite takes the first of two equal keys, Python the last, and an escaped one is another key to SQLite only."""
    forged = f'"scope": "pipeline", "{key}": "frozen"'
    with closing(sqlite3.connect(filled(tmp_path / "run") / "results.sqlite")) as db, db:
        db.execute('UPDATE records SET record = replace(record, \'"scope": "pipeline"\', ?) WHERE idx = 7', (forged,))
        assert {scope for (scope,) in db.execute("SELECT json_extract(record, '$.scope') FROM records")} == {"pipeline"}
    with Store.open(tmp_path / "run") as store, pytest.raises(StoreError, match="the entry 'scope' occurs twice"):
        store.scope  # noqa: B018


def test_predictions_are_not_certificates(tmp_path: Path) -> None:
    answers = classifier().predict(inputs(12), n=100)
    assert {type(a).__name__ for a in answers} == {"Prediction", "Abstention"}
    with Store.create(tmp_path / "run", {}) as store:
        for answer in answers:
            with pytest.raises(InvalidInput, match="not of predict"):
                store.add(0, 0, answer, 0.1)  # type: ignore[arg-type]


def test_a_reader_cannot_write(tmp_path: Path) -> None:
    with Store.open(filled(tmp_path / "run")) as store, pytest.raises(InvalidInput, match="opened read-only"):
        store.add(99, 0, outcomes(1)[0], 0.1)


# --- the config ---


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"text": 'quote " back\\slash \n tab\t ü ∞ \x7f \x01', "": "empty key", "a b": 1, "ключ": [1, 2]},
        {"i": -3, "f": 1e-300, "g": 0.1, "inf": math.inf, "minus": -math.inf, "big": 2**70, "yes": True, "no": False},
        {"nested": {"deeper": {"x": 1}, "y": [1.5, "a", [True]]}, "list": [], "empty": {}},
    ],
)
def test_toml_round_trip(tmp_path: Path, config: dict[str, object]) -> None:
    assert frozen(config) == config
    with Store.create(tmp_path / "run", config):
        pass
    assert read_config(tmp_path / "run" / "config.toml") == config
    with Store.create(tmp_path / "run", config) as again:
        assert again.config == config


def test_toml_keeps_nan_drops_none_and_refuses_the_rest() -> None:
    assert math.isnan(frozen({"x": math.nan})["x"])
    assert frozen({"x": None, "y": (1, 2), "z": Path("a/b")}) == {"y": [1, 2], "z": "a/b"}
    with pytest.raises(InvalidInput, match=r"law\.scale is a Tensor"):
        frozen({"law": {"scale": torch.ones(2)}})


def test_a_changed_config_is_refused_key_by_key(tmp_path: Path) -> None:
    folder = filled(tmp_path / "run")
    before = rows(folder)
    changed = {**CONFIG, "law": {"name": "gaussian", "scale": 0.25}, "alpha": 0.01, "seed": 7}
    with pytest.raises(InvalidInput) as caught:
        Store.create(folder, changed)
    message = str(caught.value)
    assert "law.scale: the run has 0.5, asked for 0.25" in message
    assert "alpha: the run has 0.001, asked for 0.01" in message
    assert "seed: the run has none, asked for 7" in message
    assert "law.name" not in message and "norm" not in message
    assert rows(folder) == before


@pytest.mark.parametrize("new", [True, 1.5, "1", [1], None])
def test_values_of_another_type_differ(tmp_path: Path, new: object) -> None:
    with Store.create(tmp_path / "run", {"x": 1}) as store:
        one = np.arange(1)
        store.extend(complete(idx=one, label=one, prediction=one, abstained=one > 0, correct=one == 0))
    with pytest.raises(InvalidInput, match="x: the run has 1"):
        Store.create(tmp_path / "run", {"x": new})
    Store.create(tmp_path / "run", {"x": 1.0}).close()


# --- folders that are not a run ---


def test_a_folder_with_other_things_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(InvalidInput, match=r"thesis\.tex"):
        Store.create(tmp_path, CONFIG)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_foreign_config_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("[tool]\nx = 1\n")
    for attempt in (lambda: Store.create(tmp_path, CONFIG), lambda: Store.open(tmp_path)):
        with pytest.raises(StoreError, match="not the config of a UCAN run"):
            attempt()
    assert (tmp_path / "config.toml").read_text() == "[tool]\nx = 1\n"
    assert not (tmp_path / "results.sqlite").exists()


@pytest.mark.parametrize("left", ["nothing", "lock", "part", "older part", "config", "empty database", "WAL database"])
def test_a_half_created_folder_recovers(tmp_path: Path, left: str) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    if left != "nothing":
        (folder / ".lock").write_text("process 1 on elsewhere\n")
    if left == "part":
        (folder / ".config.toml.17-0a1b2c3d.part").write_text("run_form")
    if left == "older part":
        (folder / ".config.toml.part").write_text("run_form")
    if left in ("config", "empty database", "WAL database"):
        Store.create(tmp_path / "other", CONFIG).close()
        (tmp_path / "other" / "config.toml").rename(folder / "config.toml")
    if left == "empty database":
        (folder / "results.sqlite").touch()
    if left == "WAL database":
        db = sqlite3.connect(folder / "results.sqlite")
        db.execute("PRAGMA journal_mode = WAL")
        db.close()
    assert len(rows(filled(folder))) == 12


def test_a_missing_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"nowhere is not a folder. Give the folder of a `ucan certify` run"):
        Store.open(tmp_path / "nowhere")
    with pytest.raises(StoreError, match="is not a run folder"):
        Store.open(tmp_path)


def test_a_run_of_another_kind_is_refused_in_one_line(tmp_path: Path) -> None:
    Store.create(tmp_path / "trained", {**CONFIG, "kind": "train", "epochs": 3}).close()
    with pytest.raises(InvalidInput, match=r"a run of another kind \(train\)") as caught:
        Store.create(tmp_path / "trained", {**CONFIG, "kind": "certify"})
    assert "epochs" not in str(caught.value)  # their settings have nothing to do with each other


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE records SET record = substr(record, 1, 300) WHERE idx = 0",
        "UPDATE records SET record = '[1]' WHERE idx = 0",
        "UPDATE outcomes SET radius = 'abc' WHERE idx = 1",
    ],
)
def test_damage_within_the_database_is_said_to_be_so(tmp_path: Path, damage: str) -> None:
    with Store.create(tmp_path / "run", CONFIG) as store:
        for i, outcome in enumerate(outcomes(2)):
            store.add(i, 0, outcome, 0.1)
    with closing(sqlite3.connect(tmp_path / "run" / "results.sqlite")) as db, db:
        db.execute(damage)
    with Store.open(tmp_path / "run") as store, pytest.raises(StoreError, match=r"are damaged.*new folder"):
        assert store.scope and store.outcome(0) and store.columns()


@pytest.mark.parametrize("reads", ["scope", "largest_alpha", "region_radii"])
def test_a_later_record_that_is_no_json_is_said_to_be_so(tmp_path: Path, reads: str) -> None:
    with Store.create(tmp_path / "run", CONFIG) as store:
        for i, outcome in enumerate(outcomes(2)):
            store.add(i, 0, outcome, 0.1)
    with closing(sqlite3.connect(tmp_path / "run" / "results.sqlite")) as db, db:
        db.execute("UPDATE records SET record = substr(record, 1, 300) WHERE idx = 1")
    with Store.open(tmp_path / "run") as store, pytest.raises(StoreError, match=r"record of an input.*from a copy"):
        found = getattr(store, reads)
        found()


@pytest.mark.parametrize("kind", ["garbage", "truncated", "cut header", "foreign", "newer"])
def test_a_damaged_or_foreign_database_is_left_alone(tmp_path: Path, kind: str) -> None:
    folder = filled(tmp_path / "run", 12)
    path = folder / "results.sqlite"
    if kind == "garbage":
        path.write_bytes(b"not a database at all" * 500)
    elif kind == "truncated":
        path.write_bytes(path.read_bytes()[:4096])
    elif kind == "cut header":
        path.write_bytes(b"\0" * 50 + path.read_bytes()[50:])
    else:
        path.unlink()
        db = sqlite3.connect(path)
        db.execute("CREATE TABLE outcomes (mine TEXT)" if kind == "foreign" else "PRAGMA user_version = 99")
        db.execute("PRAGMA application_id = " + ("0" if kind == "foreign" else str(0x5543414E)))
        db.commit()
        db.close()
    before = path.read_bytes()
    words = {"foreign": "another program", "newer": "schema version 99"}.get(kind, "damaged")
    for attempt in (lambda: Store.open(folder), lambda: Store.create(folder, CONFIG)):
        with pytest.raises(StoreError, match=words), attempt() as store:
            store.columns()
    assert path.read_bytes() == before


def test_a_path_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    with pytest.raises(StoreError, match="cannot be read or written"):
        Store.create(tmp_path / "file" / "run", CONFIG)
    with pytest.raises(InvalidInput, match="file is a file, but a run needs a folder"):
        Store.create(tmp_path / "file", CONFIG)
    with pytest.raises(StoreError, match="cannot be read or written"):
        Store.create("/proc/ucan-run", CONFIG)
    assert (tmp_path / "file").read_text() == "precious"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_run_can_be_read(tmp_path: Path) -> None:
    folder = filled(tmp_path / "run")
    folder.chmod(0o555)
    try:
        assert len(rows(folder)) == 12
        with pytest.raises(StoreError):
            Store.create(folder, CONFIG)
    finally:
        folder.chmod(0o755)


# --- a full disk ---


def fill_up(store: Store, first: int) -> int:
    """Add rows until the store says that there is no space; how many went in."""
    outcome = outcomes(1)[0]
    for i in range(first, first + 100_000):
        try:
            store.add(i, 0, outcome, 0.1)
        except StoreError as error:
            assert "no space left" in str(error) and "run the same command again" in str(error)
            return i
    raise AssertionError("the disk never filled up")


def test_a_full_database_stops_cleanly_and_goes_on(tmp_path: Path) -> None:
    folder = filled(tmp_path / "run")
    with Store.create(folder, CONFIG) as store:
        pages = store._db.execute("PRAGMA page_count").fetchone()[0]
        store._db.execute(f"PRAGMA max_page_count = {pages + 5}")
        reached = fill_up(store, 12)
        assert store.done() == set(range(reached))
        store._db.execute("PRAGMA max_page_count = 1000000")
        store.add(reached, 0, outcomes(1)[0], 0.1)
    assert [row[0] for row in rows(folder)] == list(range(reached + 1))


def test_a_full_disk_stops_cleanly(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("no small disk can be mounted here")
    try:
        with Store.create(disk / "run", CONFIG) as store:
            reached = fill_up(store, 0)
            assert store.done() == set(range(reached))
        assert [row[0] for row in rows(disk / "run")] == list(range(reached))
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_no_space_for_a_tensor_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    outcome = next(o for o in outcomes(12) if not o.abstained)
    monkeypatch.setattr(type(outcome), "to_dict", full)
    with Store.create(tmp_path / "run", CONFIG) as store:
        with pytest.raises(StoreError, match="no space left"):
            store.add(0, 0, outcome, 0.1)
        assert len(store) == 0


# --- several processes ---

WRITER = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_store import *
work(Path(sys.argv[1]), float(sys.argv[2]))
"""


def work(folder: Path, pause: float = 0.0) -> None:
    """What `ucan certify` does: certify each input that is not done, in order."""
    g, x = classifier(DIM, ucan.Fixed(torch.linspace(0.5, 1.0, DIM))), inputs(ROWS, DIM) * 3
    with Store.create(folder, CONFIG) as store:
        done = store.done()
        print("ready", flush=True)
        for i in range(ROWS):
            if i not in done:
                store.add(i, i % 3, g.certify(x[i : i + 1], n=100, seed=3)[0], 0.1)
                time.sleep(pause)
    print("finished", flush=True)


def start(folder: Path, pause: float = 0.0) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", WRITER, str(folder), str(pause)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(ucan.__file__).parents[1])}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def kill_rounds(tmp_path: Path, rounds: int, seed: int) -> None:
    """Kill the writer at random moments, also before it has begun; then let it finish and compare row for row."""
    draw = random.Random(seed)
    work(tmp_path / "whole")
    expected = rows(tmp_path / "whole")
    folder, killed = tmp_path / "run", 0
    for _ in range(rounds):
        with start(folder, pause=0.002) as process:
            assert process.stdout is not None
            early = draw.random() < 0.2
            if not early:
                process.stdout.readline()
            time.sleep(draw.uniform(0, 3.0) if early else draw.uniform(0, 0.08))
            process.send_signal(signal.SIGKILL)
            process.stdout.read()
        killed += process.returncode == -signal.SIGKILL
        if (folder / "results.sqlite").exists():
            try:
                found = rows(folder)
            except StoreError as error:
                assert "holds no results yet" in str(error)
                continue
            assert found == expected[: len(found)]
            if len(found) == ROWS:
                folder = tmp_path / f"run{killed}"
    with start(folder) as process:
        assert process.stdout is not None and "finished" in process.stdout.read()
    assert killed > 0 and rows(folder) == expected


def test_sigkill_at_random_moments(tmp_path: Path) -> None:
    kill_rounds(tmp_path, rounds=2, seed=0)


@pytest.mark.slow
def test_sigkill_at_random_moments_50_rounds(tmp_path: Path) -> None:
    kill_rounds(tmp_path, rounds=50, seed=1)


def test_one_writer_many_readers(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with start(folder, pause=0.01) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        with pytest.raises(StoreError, match=f"being written by process {process.pid} on "):
            Store.create(folder, CONFIG)
        seen = []
        with Store.open(folder) as store:
            while process.poll() is None:
                seen.append(len(store))
                time.sleep(0.02)
        assert "finished" in process.stdout.read()
    assert seen == sorted(seen) and len(set(seen)) > 3
    Store.create(folder, CONFIG).close()


def test_two_writers_in_one_process(tmp_path: Path) -> None:
    with Store.create(tmp_path / "run", CONFIG):
        with pytest.raises(StoreError, match="this process"):
            Store.create(tmp_path / "run", CONFIG)
        with pytest.raises(UcanError):  # the refusal above must not have let go of the lock
            Store.create(tmp_path / "run", CONFIG)
    with Store.create(tmp_path / "run", CONFIG):
        pass


# --- a million rows ---


@pytest.mark.slow
def test_a_million_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    count, config = 1_000_000, {"kind": "certify", "n": 100}
    folder = filled(tmp_path / "run", 1, config)
    with Store.open(folder) as store:
        record = str(store._db.execute("SELECT record FROM records").fetchone()[0])
    rng = np.random.default_rng(0)
    radius, correct = rng.exponential(0.7, count), rng.random(count) < 0.8
    with Store.create(folder, config) as store, store._transaction():
        store._db.executemany(
            "INSERT INTO outcomes VALUES (?, ?, 0, 0, ?, ?, ?, 0.9, -3.0, 100, 100, 0.1)",
            (
                (i, 1 - int(c), int(c), r, r)
                for i, c, r in zip(range(1, count), correct[1:].tolist(), radius[1:].tolist(), strict=True)
            ),
        )
        store._db.executemany("INSERT INTO records VALUES (?, ?)", ((i, record) for i in range(1, count)))
    times = {}
    clock = time.perf_counter()
    with Store.create(folder, config) as store:
        done = store.done()
    times["resume (create + done)"] = time.perf_counter() - clock
    clock = time.perf_counter()
    with Store.open(folder) as store:
        columns = store.columns()
    times["all columns"] = time.perf_counter() - clock
    clock = time.perf_counter()
    table = comparison([folder])
    times["comparison"] = time.perf_counter() - clock
    assert len(done) == count and columns["radius"][1:].tolist() == radius[1:].tolist()
    at_one = int((correct & (radius >= 1.0))[1:].sum() + (columns["correct"] & (columns["radius"] >= 1.0))[0])
    assert table.rows[0].values[4] == at_one / count
    with capsys.disabled():
        print("\n" + ", ".join(f"{name} {seconds:.2f} s" for name, seconds in times.items()))


def test_one_matrix_for_all_inputs_is_measured_and_hashed_once(tmp_path, monkeypatch):
    """Of a large Σ anything that is done to it for every input costs more than the votes."""
    done = collections.Counter()

    def counted(owner, name):
        original = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *a, **k: done.update([name]) or original(*a, **k))

    for name in ("svdvals", "slogdet", "matrix_norm", "inv"):
        counted(torch.linalg, name)
    counted(sidecar, "save")
    counted(torch, "equal")
    matrix = torch.eye(80) + 0.05 * torch.randn(80, 80, generator=torch.Generator().manual_seed(0))
    g = ucan.SmoothedClassifier(
        lambda y: (y[:, 0] > -5).long(), ucan.Gaussian(0.5), ucan.Fixed(ucan.scales.Dense(matrix)), num_classes=2
    )
    inputs, plan = g.check_inputs(torch.zeros(12, 80), 2), CertifyPlan(n0=10, n=64)
    with Store.create(tmp_path / "run", {"kind": "certify"}) as store:
        for i, outcome in g.certify_each(inputs, plan):
            store.add(i, 1, outcome, 0.0)
            if i == 1:
                done.clear()
        assert done["svdvals"] == done["slogdet"] == done["matrix_norm"] == done["inv"] == done["save"] == 0
        assert not done["equal"]
        (file,) = (tmp_path / "run").glob("*.safetensors")
        file.unlink()  # a folder that has lost its file gets it again
        store.add(12, 1, outcome, 0.0)
        assert file.exists() and store.outcome(12).region.scale.same_as(outcome.region.scale)
