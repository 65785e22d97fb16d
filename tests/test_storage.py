"""What is kept on disk: files whole or absent, journals that survive a crash, and the same config or a refusal."""

import errno
import os
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import pytest

from ucan import lock
from ucan.config import differences, frozen, read_config, settle
from ucan.errors import InvalidInput, StoreError
from ucan.lock import LOCK, WriterLock
from ucan.registry import Registry
from ucan.registry.database import Database
from ucan.results import Store
from ucan.results.database import OUTCOMES, in_records
from ucan.results.folder import remove_empty
from ucan.storage import Journal, claim, close_with, recognise, storage, unfinished, whole, write_whole
from ucan.training.checkpoint import begin


def test_files_are_replaced_together_or_stay_as_they_were(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("old")
    with pytest.raises(RuntimeError), whole(one, two) as (first, second):
        first.write_text("new")
        second.write_text("new")
        raise RuntimeError
    assert one.read_text() == "old" and sorted(p.name for p in tmp_path.iterdir()) == ["one"]
    with whole(one, two) as (first, second):
        first.write_text("new")
        second.write_text("new, too")
        assert one.read_text() == "old" and not two.exists()
    assert (one.read_text(), two.read_text()) == ("new", "new, too")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["one", "two"]


def test_a_file_that_was_never_written_is_an_error_and_changes_nothing(tmp_path):
    (tmp_path / "kept").write_bytes(b"old")
    with pytest.raises(FileNotFoundError), whole(tmp_path / "kept"):
        pass
    assert (tmp_path / "kept").read_bytes() == b"old"
    write_whole(tmp_path / "kept", b"new")
    assert (tmp_path / "kept").read_bytes() == b"new"


def test_two_writers_of_one_file_do_not_publish_each_others_halves(tmp_path):
    path = tmp_path / "shared"
    with whole(path) as (late,):
        late.write_text("the first writer's, ")
        with whole(path) as (early,):
            assert sorted(unfinished(path)) == [late] and early != late
            early.write_text("the second writer's, whole")
        assert path.read_text() == "the second writer's, whole"
        with open(late, "a") as file:
            file.write("whole")
    assert path.read_text() == "the first writer's, whole" and list(tmp_path.iterdir()) == [path]


def test_what_a_killed_writer_left_is_known_by_the_name_of_its_file(tmp_path):
    names = (".config.toml.part", ".config.toml.31-0a1b2c3d.part")
    for name in (*names, ".config.part", ".my-config.toml.part", ".config.toml.mine.part", "config.toml.part"):
        (tmp_path / name).touch()
    assert sorted(path.name for path in unfinished(tmp_path / "config.toml")) == sorted(names)


def test_a_journal_goes_on_behind_a_line_that_was_cut_short(tmp_path):
    path = tmp_path / "journal"
    assert Journal(path).lines() == []
    Journal(path).begin("first")
    with pytest.raises(FileExistsError):
        Journal(path).begin("another")
    written = Journal(path)
    written.append("second, with λ")
    with open(path, "ab") as file:
        file.write("third, cut in a lette\u03bb".encode()[:-1])
    assert Journal(path).lines() == ["first", "second, with λ"], "a reader leaves the file as it is"
    again = Journal(path)
    again.append("third")
    again.append("fourth")
    assert Journal(path).lines() == ["first", "second, with λ", "third", "fourth"]
    assert path.read_bytes().count(b"\n") == 4 and b"lette" not in path.read_bytes()


def test_a_journal_keeps_only_the_lines_that_count(tmp_path):
    journal = Journal(tmp_path / "journal")
    journal.keep(3)
    assert not journal.path.exists()
    for line in "abcd":
        journal.append(line)
    journal.keep(9)
    assert journal.lines() == list("abcd")
    journal.keep(2)
    assert journal.lines() == list("ab")


def test_a_run_goes_on_under_its_own_config_alone(tmp_path):
    config = frozen({"kind": "certify", "n": 100, "law": {"scale": 0.5}})
    assert settle(tmp_path, config, differences) == config == read_config(tmp_path / "config.toml")
    assert settle(tmp_path, config, differences) == config
    before = (tmp_path / "config.toml").read_bytes()
    with pytest.raises(
        InvalidInput, match=r"(?s)another config.*law.scale: the run has 0.5, asked for 2.*n: the run has"
    ):
        settle(tmp_path, frozen({**config, "n": 7, "law": {"scale": 2.0}}), differences)
    with pytest.raises(InvalidInput, match="another kind"):
        settle(tmp_path, frozen({**config, "kind": "audit"}), differences)
    assert (tmp_path / "config.toml").read_bytes() == before


def test_an_empty_database_becomes_ours_once_and_a_foreign_one_never(tmp_path):
    path = tmp_path / "ours.sqlite"
    for _ in range(2):
        db = sqlite3.connect(path, isolation_level=None)
        claim(db, path, 7, 1, "CREATE TABLE a (x); INSERT INTO a VALUES (1);")
        assert db.execute("SELECT count(*) FROM a").fetchone() == (1,)
        db.close()
    db = sqlite3.connect(path, isolation_level=None)
    with pytest.raises(StoreError, match="another program"):
        claim(db, path, 8, 1, "CREATE TABLE b (x);")
    with pytest.raises(StoreError, match="schema version 1"):
        claim(db, path, 7, 2, "CREATE TABLE b (x);")
    assert [name for (name,) in db.execute("SELECT name FROM sqlite_master")] == ["a"]
    db.close()


class Owner:
    pass


def closed(db):
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        db.execute("SELECT 1")
    return True


def test_a_connection_ends_with_the_object_that_holds_it(tmp_path):
    Store.create(tmp_path / "run", {"kind": "certify"}).close()
    registry, store = Registry(tmp_path / "r"), Store.open(tmp_path / "run")
    connections = registry._store._db, store._db
    del registry, store
    assert all(map(closed, connections))


def test_an_owner_that_is_deleted_in_another_thread_is_no_error(tmp_path, capfd):
    owners = [Owner()]
    db = sqlite3.connect(tmp_path / "d")
    close_with(owners[0], db)
    other = Thread(target=owners.clear)
    other.start()
    other.join()
    assert db.execute("SELECT 1").fetchone() == (1,) and capfd.readouterr().err == ""
    db.close()


def test_a_file_that_another_process_is_creating_is_not_taken_for_a_foreign_one(tmp_path):
    path = tmp_path / "d"
    db = sqlite3.connect(path, isolation_level=None)

    class Meanwhile:
        """A connection; after each statement another one claims the file."""

        def execute(self, statement):
            found = db.execute(statement).fetchall()
            other = sqlite3.connect(path, isolation_level=None)
            claim(other, path, 7, 1, "CREATE TABLE a (b);")
            other.close()
            return SimpleNamespace(fetchone=lambda: found[0])

    assert not recognise(Meanwhile(), path, 7, 1)  # as it was when it was looked at
    assert recognise(db, path, 7, 1)
    with pytest.raises(StoreError, match="another program"):
        recognise(db, path, 8, 1)
    db.close()


def said_by_sqlite(code, message="what it says differs from one version to another"):
    error = sqlite3.OperationalError(message)
    error.sqlite_errorcode = code
    return error


def test_what_the_system_says_is_put_into_words(tmp_path):
    with pytest.raises(StoreError, match="no space left"), storage(tmp_path):
        raise OSError(28, "No space left on device")
    for extended in (0, 256):
        with pytest.raises(StoreError, match="no space left"), storage(tmp_path):
            raise said_by_sqlite(sqlite3.SQLITE_FULL + extended)
    for code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
        with pytest.raises(StoreError, match="is damaged or is not a SQLite file"), storage(tmp_path):
            raise said_by_sqlite(code)
    for named in ("no such table: disk is full", "no such table: not a database", "no such column: malformed"):
        with pytest.raises(StoreError, match=f"cannot be read or written: {named}"), storage(tmp_path):
            raise said_by_sqlite(sqlite3.SQLITE_ERROR, named)
    with pytest.raises(StoreError, match="cannot be read or written"), storage(tmp_path):
        raise FileNotFoundError(errno.ENOENT, "No such file", "/tmp/disk is full")
    with pytest.raises(StoreError, match="cannot be read or written"), storage(tmp_path):
        raise sqlite3.ProgrammingError("Cannot operate on a closed database, malformed or not")
    with pytest.raises(StoreError, match="cannot be read or written"), storage(tmp_path):
        raise PermissionError(13, "not permitted")


def test_a_disk_that_is_full_is_recognised_as_sqlite_tells_it(tmp_path):
    db = sqlite3.connect(tmp_path / "d", isolation_level=None)
    db.execute("CREATE TABLE a (b)")
    db.execute("PRAGMA max_page_count = 2")
    with pytest.raises(StoreError, match="no space left"), storage(tmp_path):
        db.execute("INSERT INTO a VALUES (zeroblob(100000))")
    db.close()


def test_a_query_that_fails_is_no_damaged_record(tmp_path):
    db = sqlite3.connect(tmp_path / "d", isolation_level=None)
    db.execute("CREATE TABLE records (idx, record)")
    db.execute("INSERT INTO records VALUES (0, '{}')")
    with pytest.raises(StoreError, match="cannot be read or written: no such column: JSON"):
        in_records(db, tmp_path, "SELECT JSON FROM records")
    db.execute("INSERT INTO records VALUES (1, '{')")
    with pytest.raises(StoreError, match="the record of an input cannot be read"):
        in_records(db, tmp_path, "SELECT json_extract(record, '$.a') FROM records")
    db.close()


@pytest.mark.parametrize(
    ("code", "message", "tries"),
    [
        (sqlite3.SQLITE_BUSY, "another is at work", 2),
        (sqlite3.SQLITE_LOCKED, "another is at work", 2),
        (sqlite3.SQLITE_IOERR, "this disk is locked", 1),
    ],
)
def test_a_registry_waits_for_another_process_and_for_nothing_else(code, message, tries):
    made = []

    def execute(statement):
        made.append(statement)
        if len(made) == 1:
            raise said_by_sqlite(code, message)
        return SimpleNamespace(fetchone=lambda: ("wal",))

    database = Database.__new__(Database)
    database._db = SimpleNamespace(execute=execute)
    if tries == 1:
        with pytest.raises(sqlite3.OperationalError):
            database._use_wal()
    else:
        database._use_wal()
    assert len(made) == tries


# --- one writer at a time ---


def test_two_threads_do_not_both_get_the_lock(tmp_path, monkeypatch):
    acquire, held, refused = lock._acquire, [], []

    def slowly(file):
        time.sleep(0.1)
        return acquire(file)

    def lock_it():
        try:
            held.append(WriterLock(tmp_path / LOCK))
        except StoreError:
            refused.append(1)

    monkeypatch.setattr(lock, "_acquire", slowly)
    threads = [Thread(target=lock_it) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(held) == 1 and len(refused) == 3
    assert taken_elsewhere(tmp_path / LOCK)  # none of those who were refused has let go of it
    held[0].release()
    assert not taken_elsewhere(tmp_path / LOCK)


def taken_elsewhere(path):
    """Whether another process finds the lock taken."""
    code = "import sys, pathlib; from ucan.lock import WriterLock; WriterLock(pathlib.Path(sys.argv[1]))"
    found = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True)
    assert not found.returncode or "is being written by process" in found.stderr, found.stderr
    return bool(found.returncode)


def test_a_lock_that_cannot_be_taken_leaves_nothing_open_and_may_be_tried_again(tmp_path, monkeypatch):
    opened = []

    def broken(file):
        opened.append(file)
        raise OSError(errno.ENOLCK, "no locks available")

    with monkeypatch.context() as patched:
        patched.setattr(lock, "_acquire", broken)
        with pytest.raises(OSError, match="no locks available"):
            WriterLock(tmp_path / LOCK)
    assert opened[0].closed
    WriterLock(tmp_path / LOCK).release()


@pytest.mark.parametrize("again", [False, True], ids=["gone", "another"])
def test_a_lock_is_on_the_file_that_others_find(tmp_path, monkeypatch, again):
    """Its last holder removes the file between the opening and the locking of it; somebody else may have made the next."""
    acquire, opened, path = lock._acquire, [], tmp_path / LOCK

    def late(file):
        opened.append(file)
        if len(opened) == 1:
            path.unlink()
            if again:
                path.touch()
        return acquire(file)

    monkeypatch.setattr(lock, "_acquire", late)
    held = WriterLock(path)
    assert len(opened) == 2 and opened[0].closed and taken_elsewhere(path)
    held.release()


def test_a_file_that_is_removed_each_time_is_no_endless_wait(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "_acquire", lambda file: (tmp_path / LOCK).unlink() is None)
    with pytest.raises(StoreError, match="removed each time"):
        WriterLock(tmp_path / LOCK)


@pytest.mark.skipif(os.name != "posix", reason="Windows removes no file that is open")
@pytest.mark.parametrize("writer", ["run", "training"])
def test_a_lock_is_removed_while_it_is_held(tmp_path, monkeypatch, writer):
    """Removed later, it could be another writer's already, and a third would lock a new one."""
    folder, held = tmp_path / "run", []
    unlink = os.unlink

    def told(path, **more):
        if Path(path).name == LOCK:
            held.append(taken_elsewhere(path))
        unlink(path, **more)

    if writer == "run":
        Store.create(folder, {"kind": "certify"}).close()
    else:
        folder.mkdir()
        (folder / "notes.txt").write_text("mine")
    monkeypatch.setattr("os.unlink", told)
    if writer == "run":
        remove_empty(folder, OUTCOMES)
        assert not folder.exists()
    else:
        with pytest.raises(Exception, match="not a run"):
            begin(folder, {"kind": "train"})
        assert [path.name for path in folder.iterdir()] == ["notes.txt"]
    assert held == [True]


def test_only_a_run_of_results_is_said_to_be_read_meanwhile(tmp_path):
    with (
        Store.create(tmp_path, {"kind": "certify"}),
        pytest.raises(StoreError, match="To read the run, use `ucan compare`"),
    ):
        Store.create(tmp_path, {"kind": "certify"})
    other = WriterLock(tmp_path / LOCK)
    with pytest.raises(StoreError) as refused:
        WriterLock(tmp_path / LOCK)
    assert "one writer at a time" in str(refused.value) and "To read" not in str(refused.value)
    other.release()
