"""What is kept on disk: files whole or absent, journals that survive a crash, and the same config or a refusal."""

import sqlite3
from threading import Thread
from types import SimpleNamespace

import pytest

from ucan.config import differences, frozen, read_config, settle
from ucan.errors import InvalidInput, StoreError
from ucan.registry import Registry
from ucan.results import Store
from ucan.storage import Journal, claim, close_with, recognise, storage, whole, write_whole


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


def test_what_the_system_says_is_put_into_words(tmp_path):
    with pytest.raises(StoreError, match="no space left"), storage(tmp_path):
        raise OSError(28, "No space left on device")
    with pytest.raises(StoreError, match="cannot be read or written"), storage(tmp_path):
        raise PermissionError(13, "not permitted")
