"""Runs that travel: packed, served, opened again with their hashes checked, and refused where they would run code."""

from __future__ import annotations

import functools
import hashlib
import http.server
import io
import json
import shutil
import socket
import sqlite3
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import ucan
from ucan import data
from ucan.audit import Budget
from ucan.config import CONFIG, MANIFEST, read_config
from ucan.errors import InvalidInput, MissingExtra, StoreError
from ucan.runs.audit import AuditJob, audit
from ucan.runs.certify import CertifyJob, certify
from ucan.runs.read import Run
from ucan.sharing import pull, push
from ucan.sharing.manifest import Manifest, check_name
from ucan.training import load_run

OLD = Path(__file__).parent / "fixtures" / "version-0.1"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory and a cache of one's own; no address but this machine's is asked for."""
    monkeypatch.setenv("UCAN_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path


@pytest.fixture
def run(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A certified run whose model is another folder, named relative to where it was started."""
    shutil.copytree(OLD, elsewhere / "old")
    config = elsewhere / "old" / "isotropic-run" / CONFIG
    config.write_text(config.read_text().replace("run_format = 1", 'run_format = 1\nstarted_in = ".."'))
    return config.parent


@pytest.fixture
def published(run: Path, elsewhere: Path) -> tuple[Path, str]:
    found = push(run, elsewhere / "site" / "digits")
    return elsewhere / "site" / "digits", found


def digits(count: int = 3) -> torch.Tensor:
    return data.load("digits", "test").batch(range(count))[0]


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        self.server.asked.append(self.path)  # type: ignore[attr-defined]


@pytest.fixture
def site(elsewhere: Path) -> Iterator[Any]:
    (elsewhere / "site").mkdir(exist_ok=True)
    serve = functools.partial(Quiet, directory=str(elsewhere / "site"))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), serve)
    server.asked = []  # type: ignore[attr-defined]
    server.url = f"http://127.0.0.1:{server.server_address[1]}"  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def same_votes(g: ucan.SmoothedClassifier, run: Path) -> None:
    """The classifier gives, vote for vote, the certificates that are stored in the run."""
    stored, x = Run.open(run), digits()
    for i, c in enumerate(g.certify(x, n0=40, n=400)):
        assert c.evidence.counts == stored.outcome(i).evidence.counts
        assert c.radius == stored.outcome(i).radius


def test_a_folder_is_opened_in_two_lines() -> None:
    g = ucan.load(OLD / "isotropic")
    trained = load_run(OLD / "isotropic")
    by_hand = ucan.SmoothedClassifier(trained.classifier, trained.law, trained.generator, 10, step=g.step)
    pairs = zip(g.certify(digits(), n=200), by_hand.certify(digits(), n=200), strict=True)
    assert all(a.evidence.counts == b.evidence.counts for a, b in pairs)


def test_a_certified_run_travels_with_its_model(published: tuple[Path, str], run: Path, elsewhere: Path) -> None:
    folder, found = published
    same_votes(ucan.load(folder, sha256=found), run)
    shutil.rmtree(elsewhere / "old" / "isotropic")  # the model that was published with it is its own
    moved = folder.rename(elsewhere / "moved")
    same_votes(ucan.load(str(moved)), moved)
    names = set(json.loads((moved / MANIFEST).read_text())["files"])
    assert {"README.md", "config.toml", "results.sqlite", "model/config.toml", "model/weights.safetensors"} <= names
    card = (moved / "README.md").read_text()
    assert "`pipeline`: the guarantee is about the deployed pipeline" in card and "| radius | 0 |" in card


def test_a_frozen_run_says_so_in_its_card(elsewhere: Path) -> None:
    push(OLD / "certification-wise", elsewhere / "frozen")
    card = (elsewhere / "frozen" / "README.md").read_text()
    assert "`frozen`: the guarantee is about only the classifier whose noise was frozen" in card
    assert ucan.load(elsewhere / "frozen").M.scope == "frozen"


@pytest.mark.parametrize("kind", ["zip", "tar.gz", "folder"])
def test_a_run_comes_from_an_address(kind: str, published: tuple[Path, str], run: Path, site: Any) -> None:
    folder, found = published
    address = f"{site.url}/digits"
    if kind == "zip":
        assert push(run, folder.with_suffix(".zip")) == found  # the same run has the same hash
        address += ".zip"
    elif kind == "tar.gz":
        with tarfile.open(folder.with_suffix(".tar.gz"), "w:gz") as archive:
            archive.add(folder, "digits")
        address += ".tar.gz"
    same_votes(ucan.load(f"{address}#sha256={found}"), run)
    asked = len(site.asked)
    assert asked > 0
    pull(address, sha256=found)
    assert len(site.asked) == asked  # it is in the cache, and is checked there
    kept = pull(address)
    (kept / "results.tsv").write_text("changed")
    with pytest.raises(StoreError, match=r"results\.tsv is not the file that was published"):
        ucan.load(address, sha256=found)


def test_other_bytes_and_other_runs_are_refused(published: tuple[Path, str], site: Any, elsewhere: Path) -> None:
    folder, found = published
    with pytest.raises(StoreError, match="another run than expected"):
        ucan.load(f"{site.url}/digits", sha256="0" * 64)
    weights = folder / "model" / "weights.safetensors"
    tensors = load_file(weights)
    tensors["classifier.network.linear.bias"][0] += 1e-3
    save_file(tensors, weights)
    for where in (folder, f"{site.url}/digits"):
        with pytest.raises(StoreError, match=r"weights\.safetensors is not the file that was published"):
            ucan.load(where, sha256=found)
    Manifest.of(folder).write(folder)  # who may write both can make them agree: the hash still differs …
    with pytest.raises(StoreError, match="another run than expected"):
        ucan.load(folder, sha256=found)
    with pytest.raises(ucan.InvalidInput, match="not the one that"):  # … and the run certified another model
        ucan.load(folder)
    assert not [p for p in (elsewhere / "cache").rglob("*") if p.is_file()]


@pytest.mark.parametrize(
    "name", ["audit/more.jsonl", "certificates/999.json", "data/digits.npz", "model/checkpoint.pt", "more.sqlite"]
)
def test_a_file_that_was_not_published_is_no_part_of_the_run_with_the_hash(
    name: str, published: tuple[Path, str], elsewhere: Path
) -> None:
    folder, found = published
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("{}")
    assert pull(folder) == folder  # whatever lies there
    with pytest.raises(StoreError, match=f"has {name}, which was not published"):
        pull(folder, sha256=found)
    (folder / name).unlink()
    assert pull(folder, sha256=found) == folder
    (folder / "linked").symlink_to(elsewhere)
    with pytest.raises(StoreError, match="has linked, which was not published"):
        pull(folder, sha256=found)


def test_what_use_leaves_in_a_published_run_is_let_be(published: tuple[Path, str]) -> None:
    folder, found = published
    Run.open(folder).outcome(0)
    for name in (
        "report.html",
        ".lock",
        ".cache/x.json",
        "results.sqlite-shm",
        "results.sqlite-wal",
        "__pycache__/x.pyc",
    ):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
    ucan.load(folder, sha256=found)


def test_an_audit_in_the_cache_is_let_be_where_nobody_gave_the_hash(run: Path, elsewhere: Path) -> None:
    found = push(run, elsewhere / "run.zip")
    (pull(elsewhere / "run.zip") / "again").mkdir()
    (pull(elsewhere / "run.zip") / "again" / "attempts.jsonl").touch()
    ucan.load(elsewhere / "run.zip")
    with pytest.raises(StoreError, match="remove this folder to get the run again"):
        ucan.load(elsewhere / "run.zip", sha256=found)


def test_an_audit_of_a_published_run_has_a_folder_of_its_own(run: Path, elsewhere: Path) -> None:
    """In the run's folder it would meet its author's audit, or change what was published."""
    job = AuditJob(run=run, model=str(OLD / "isotropic"), most=1, factors=(0.5,), budget=Budget(steps=1), device="cpu")
    found = push(run, elsewhere / "run.zip")  # with the audit that it has
    folder = pull(elsewhere / "run.zip", sha256=found)
    assert Run.open(folder).attempts
    with pytest.raises(InvalidInput, match=r"is a published run .* with --out"):
        audit(replace(job, run=folder))
    done = audit(replace(job, run=folder), elsewhere / "mine")
    assert done.ledger.folder == elsewhere / "mine" and len(done.attempts) == 1
    assert pull(elsewhere / "run.zip", sha256=found) == folder


def test_changed_noise_is_refused(run: Path, elsewhere: Path) -> None:
    job = CertifyJob(model=str(elsewhere / "old" / "certification-wise"), data="digits", n=50, skip=500)
    certify(job, elsewhere / "again")
    push(elsewhere / "again", elsewhere / "noisy")
    assert ucan.load(elsewhere / "noisy").M.scope == "frozen"
    weights = elsewhere / "noisy" / "model" / "weights.safetensors"
    tensors = load_file(weights)
    name = next(n for n, t in tensors.items() if n.startswith("generator.") and t.is_floating_point() and t.numel() > 1)
    tensors[name] *= 1.5
    save_file(tensors, weights)
    Manifest.of(elsewhere / "noisy").write(elsewhere / "noisy")
    with pytest.raises(ucan.InvalidInput, match="the noise is not that which"):
        ucan.load(elsewhere / "noisy")


def test_what_is_not_there_is_said(site: Any, elsewhere: Path) -> None:
    with pytest.raises(StoreError, match=r"nothing/manifest\.json cannot be read: HTTP Error 404"):
        ucan.load(f"{site.url}/nothing")
    with pytest.raises(ucan.InvalidInput, match="there is no run at"):
        ucan.load("../nothing")
    with pytest.raises(StoreError, match="has no manifest"):
        ucan.load(OLD / "isotropic", sha256="0" * 64)
    (elsewhere / "bad.zip").write_bytes(b"PK no zip")
    with pytest.raises(StoreError, match="no zip or tar"):
        ucan.load(elsewhere / "bad.zip")
    with pytest.raises(ucan.InvalidInput, match="is no name on the hub"):
        ucan.load("hf:one/two/three")
    with pytest.raises(ucan.InvalidInput, match="is no address"):
        ucan.load("https://[::1")


def test_a_folder_that_is_not_here_is_said_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A path of two parts may be a name on the hub, which is asked only then."""
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingExtra, match=r"^there is no folder runs/mine here: check the path"):
        ucan.load("runs/mine")
    with pytest.raises(ucan.InvalidInput, match="there is no run at 'runs/mine'"):
        ucan.load(Path("runs/mine"))


@pytest.mark.parametrize(
    "name",
    [
        "../x.json",
        "/etc/x.json",
        "a/../x.json",
        "a\\b.json",
        "C:x.json",
        ".hidden.json",
        "a//b.json",
        "net.pkl",
        "m.py",
        "c.pt",
        "m.pt2",
        "manifest.json",
    ],
)
def test_names_that_leave_the_folder_and_files_that_run_code_are_refused(name: str) -> None:
    with pytest.raises(StoreError):
        check_name(name, "x")


def test_an_archive_gives_only_what_its_manifest_lists(published: tuple[Path, str], elsewhere: Path) -> None:
    folder, _ = published
    place = elsewhere / "more.zip"
    with zipfile.ZipFile(place, "w") as archive:
        for path in folder.rglob("*"):
            if path.is_file():
                archive.write(path, path.relative_to(folder))
        archive.writestr("evil.py", "raise SystemExit")
        archive.writestr("../../outside.json", "{}")
    kept = pull(place)
    assert {p.relative_to(kept).as_posix() for p in kept.rglob("*") if p.is_file()} == {
        *json.loads((folder / MANIFEST).read_text())["files"],
        MANIFEST,
    }
    with tarfile.open(elsewhere / "link.tar", "w") as archive:
        data = (folder / MANIFEST).read_bytes()
        member = tarfile.TarInfo(MANIFEST)
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
        link = tarfile.TarInfo("config.toml")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    shutil.rmtree(elsewhere / "cache")
    with pytest.raises(StoreError):
        pull(elsewhere / "link.tar")


@pytest.mark.parametrize("journal", ["results.sqlite-wal", "results.sqlite-journal"])
def test_a_journal_beside_a_published_database_is_refused(
    published: tuple[Path, str], elsewhere: Path, journal: str
) -> None:
    folder, found = published
    shutil.copytree(folder, elsewhere / "forged")
    with closing(sqlite3.connect(elsewhere / "forged" / "results.sqlite", isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("UPDATE outcomes SET radius = 9.9")
        shutil.copyfile(elsewhere / "forged" / "results.sqlite-wal", folder / journal)
    with pytest.raises(StoreError, match=f"has {journal}, which was not published"):  # SQLite would read it first
        pull(folder, sha256=found)
    (folder / journal).write_bytes(b"")
    assert 9.9 not in Run.open(pull(folder, sha256=found)).columns["radius"]


def damaged(folder: Path, place: Path, how: str) -> None:
    """An archive of a published run, damaged in this way."""
    with zipfile.ZipFile(place, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(folder / MANIFEST, MANIFEST)
        for path in folder.rglob("*.*"):
            if path.name != MANIFEST:
                archive.write(path, path.relative_to(folder))
    data, method = bytearray(place.read_bytes()), 99 if how == "method" else 8
    with zipfile.ZipFile(place) as archive:
        heads = [one.header_offset for one in archive.infolist()]
        start = archive.start_dir
    for at in heads:
        data[at + 6] |= how == "locked"
        data[at + 8] = method
    while (start := data.find(b"PK\x01\x02", start)) >= 0:
        data[start + 8] |= how == "locked"
        data[start + 10] = method
        start += 4
    if how == "bits":
        data[60:64] = b"\xff" * 4
    place.write_bytes(data)


@pytest.mark.parametrize("how", ["locked", "method", "bits", "gz"])
def test_a_damaged_archive_is_an_error_in_words(published: tuple[Path, str], elsewhere: Path, how: str) -> None:
    place = elsewhere / "damaged.zip"
    damaged(published[0], place, how)
    if how == "gz":
        with tarfile.open(place, "w:gz") as archive:
            archive.add(published[0], "digits")
        place.write_bytes(place.read_bytes()[:-2000])
    with pytest.raises(StoreError, match="can be read"):
        pull(place)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ('{"a.json": {"sha256": "%s", "size": 1e400}}', "cannot be read"),
        ('{"a.json": {"sha256": "%s", "size": 1}, "a.json": {"sha256": "%s", "size": 2}}', "occurs twice"),
        ('{"\\ud800.json": {"sha256": "%s", "size": 1}}', "is not a file's name"),
    ],
)
def test_a_manifest_that_says_nothing_clear_is_refused(files: str, said: str) -> None:
    text = f'{{"ucan_manifest": 1, "files": {files.replace("%s", "0" * 64)}}}'
    with pytest.raises(StoreError, match=said):
        Manifest.read(text.encode(), "x")


def test_a_file_that_is_also_a_folder_is_refused(elsewhere: Path) -> None:
    entry = {"sha256": hashlib.sha256(b"x").hexdigest(), "size": 1}
    with zipfile.ZipFile(elsewhere / "both.zip", "w") as archive:
        names = ("a.json", "a.json/b.json")
        archive.writestr(MANIFEST, json.dumps({"ucan_manifest": 1, "files": dict.fromkeys(names, entry)}))
        for name in names:
            archive.writestr(name, "x")
    with pytest.raises(StoreError, match=r"a\.json/b\.json cannot be read"):
        pull(elsewhere / "both.zip")


@pytest.mark.parametrize("path", ["digits", "digits.zip"])
def test_an_answer_that_is_no_http_is_an_error_in_words(path: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            asked, _ = listener.accept()
            with asked:
                asked.recv(1000)
                asked.sendall(b"hello\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(StoreError, match="cannot be read"):
            pull(f"http://127.0.0.1:{listener.getsockname()[1]}/{path}")


@pytest.mark.parametrize(
    ("key", "value"),
    [("model", "os:getcwd"), ("model", "/etc"), ("model", "../x"), ("data", "evil:data"), ("started_in", "..")],
)
def test_a_published_run_imports_nothing(published: tuple[Path, str], key: str, value: str) -> None:
    folder, _ = published
    lines = (folder / CONFIG).read_text().splitlines()
    lines = [f'{key} = "{value}"' if line.startswith(f"{key} = ") else line for line in lines]
    (folder / CONFIG).write_text("\n".join(lines) + "\n")
    Manifest.of(folder).write(folder)
    with pytest.raises(ucan.InvalidInput, match=r"trust=True|leads out of the run"):
        ucan.load(folder)


@pytest.mark.parametrize(
    "line", ['training = "x"', "training = [1]", 'weights = "a\\u0000b"', f'weights = "{5000 * "w"}"']
)
def test_a_published_config_of_another_shape_is_refused_in_words(published: tuple[Path, str], line: str) -> None:
    folder, _ = published
    (folder / CONFIG).write_text(f"{line}\n{(folder / CONFIG).read_text()}")
    Manifest.of(folder).write(folder)
    with pytest.raises(ucan.InvalidInput, match=r"training must be a table|trust=True"):
        ucan.load(folder)


def test_an_unfinished_training_is_not_published(elsewhere: Path) -> None:
    folder = elsewhere / "training"
    shutil.copytree(OLD / "isotropic", folder)
    (folder / "weights.safetensors").unlink()
    with pytest.raises(
        InvalidInput, match=r"training is a `ucan train` run that is not finished: run its command again"
    ):
        push(folder, elsewhere / "site")


def test_secrets_and_pickles_stay_at_home(run: Path, elsewhere: Path) -> None:
    config = run / CONFIG
    text = config.read_text().replace("seed = 0", 'seed = "0xabcdef12345"\nseed_source = "random"')
    config.write_text(text)
    (run / "checkpoint.pt").write_bytes(b"x")
    (run / "registry.sqlite").write_bytes(b"x")
    push(run, elsewhere / "out")
    for path in (elsewhere / "out").rglob("*"):
        assert path.is_dir() or b"0xabcdef12345" not in path.read_bytes()
    assert not {"checkpoint.pt", "registry.sqlite"} & {p.name for p in (elsewhere / "out").iterdir()}
    assert read_config(elsewhere / "out" / CONFIG)["seed_source"] == "random"
    (elsewhere / "old" / "net.pkl").write_bytes(b"x")
    config.write_text(text.replace('model = "isotropic"', 'model = "net.pkl"'))
    with pytest.raises(ucan.InvalidInput, match="reading it can run code"):
        push(run, elsewhere / "pickle")
    with pytest.raises(ucan.InvalidInput, match="exists: give a new folder"):
        push(run, elsewhere / "out")
    config.write_text(text.replace('kind = "certify"', 'kind = "imported"'))
    with pytest.raises(ucan.InvalidInput, match="a run of the kind 'imported'"):  # nobody here made its numbers
        push(run, elsewhere / "new")
    with pytest.raises(ucan.InvalidInput, match="is not the folder of a run"):
        push(elsewhere, elsewhere / "new")
    assert not (elsewhere / "pickle").exists()


def test_the_hub_by_a_local_folder(
    published: tuple[Path, str], run: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    shelf = elsewhere / "hub"

    class Api:
        def create_repo(self, name: str, *, private: bool, exist_ok: bool) -> None:
            (shelf / name).mkdir(parents=True)

        def upload_folder(self, *, repo_id: str, folder_path: str, commit_message: str, delete_patterns: str) -> None:
            shutil.copytree(folder_path, shelf / repo_id, dirs_exist_ok=True)

    def download(name: str, file: str, revision: str | None = None) -> str:
        if not (shelf / name / file).is_file():
            raise FileNotFoundError(f"404: {name}/{file} at {revision}")
        return str(shelf / name / file)

    monkeypatch.setattr(hub, "HfApi", Api)
    monkeypatch.setattr(hub, "hf_hub_download", download)
    found = push(run, "hf:someone/digits")
    assert found == published[1]
    same_votes(ucan.load("someone/digits", sha256=found), run)
    same_votes(ucan.load("hf:someone/digits@main"), run)
    with pytest.raises(
        ucan.InvalidInput, match=r"^there is no folder someone/other here: check .* hub says: 404: someone/other"
    ):
        ucan.load("someone/other")
    with pytest.raises(
        ucan.InvalidInput, match=r"^Of someone/other and its manifest.json the Hugging Face hub says: 404"
    ):
        ucan.load("hf:someone/other")
    with pytest.raises(ucan.InvalidInput, match="there is no run at 'someone/other'"):
        ucan.load(Path("someone/other"))
    card = hub.ModelCard.load(shelf / "someone" / "digits" / "README.md")  # the real package reads it
    assert card.data.library_name == "ucan" and "randomized-smoothing" in card.data.tags
