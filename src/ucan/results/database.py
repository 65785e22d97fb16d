"""The SQLite files of runs, opened by their only writer, or read-only; and their records as JSON values."""

from __future__ import annotations

import os
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ucan.errors import StoreError
from ucan.json_text import parse_json
from ucan.storage import claim, recognise, sqlite_code, storage


@dataclass(frozen=True)
class Kind:
    """A kind of SQLite file in a run's folder: its name there, and how it is recognised.

    ``schema`` makes an empty file one of this kind. ``table`` has one row per result, which the runs call ``what``. ``readers``
    are named to those who would read a run while it is written.
    """

    file: str
    application_id: int
    version: int
    schema: str
    table: str
    what: str
    readers: str

    def recognises(self, db: sqlite3.Connection, path: Path) -> bool:
        """Whether this is such a file (True) or an empty one (False); any other is an error."""
        return recognise(db, path, self.application_id, self.version)


# Numbers and evidence are in separate tables, so that metrics over a million rows read megabytes, not gigabytes.
OUTCOMES = Kind(
    "results.sqlite",
    0x5543414E,  # "UCAN"
    1,
    """
CREATE TABLE outcomes (
    idx INTEGER PRIMARY KEY, label INTEGER NOT NULL, prediction INTEGER NOT NULL, abstained INTEGER NOT NULL,
    correct INTEGER NOT NULL, radius REAL, alm REAL, p_lower REAL, log_volume REAL, n0 INTEGER NOT NULL,
    n INTEGER NOT NULL, seconds REAL);
CREATE TABLE records (idx INTEGER PRIMARY KEY, record TEXT NOT NULL);
""",
    "outcomes",
    "results",
    "`ucan compare` or ucan.results.Store.open",
)
ANSWERS = Kind(
    "answers.sqlite",
    0x55434151,  # "UCAQ"
    1,
    "CREATE TABLE answers (idx INTEGER PRIMARY KEY, seconds REAL NOT NULL, record TEXT NOT NULL);",
    "answers",
    "answers",
    "`ucan report` or ucan.results.answers.AnswerStore.open",
)
# Names of inputs came later: the table is added to a run whose inputs have names, and is absent from the others.
NAMES = "CREATE TABLE IF NOT EXISTS names (idx INTEGER PRIMARY KEY, name TEXT NOT NULL)"


def connect_writer(path: Path, kind: Kind) -> sqlite3.Connection:
    """Check the file before anything is written to it; an empty file is initialised in one transaction."""
    db = sqlite3.connect(path, timeout=30, isolation_level=None)
    try:
        if not kind.recognises(db, path):
            db.execute("PRAGMA journal_mode = WAL")
        claim(db, path, kind.application_id, kind.version, kind.schema)
        db.execute("PRAGMA synchronous = NORMAL")
        return db
    except BaseException:
        db.close()
        raise


def connect_reader(path: Path, kind: Kind) -> sqlite3.Connection:
    """A connection that cannot write; it sees each finished transaction, also while the writer is active."""
    db = _connect(path)
    try:
        if not kind.recognises(db, path):
            raise StoreError(f"{path} holds no {kind.what} yet.")
        if db.execute("SELECT 1 FROM sqlite_master WHERE type = 'view' OR sql LIKE 'CREATE VIRTUAL%'").fetchone():
            raise StoreError(
                f"{path} computes its results when they are read, so each reading could give others: it was changed. "
                "Restore it from a copy, or certify into a new folder."
            )
        return db
    except BaseException:
        db.close()
        raise


def count_results(path: Path, kind: Kind) -> int:
    """How many results a file holds; none if it was only begun."""
    db = _connect(path)
    try:
        begun = kind.recognises(db, path)
        return int(db.execute(f"SELECT count(*) FROM {kind.table}").fetchone()[0]) if begun else 0
    finally:
        db.close()


def _connect(path: Path) -> sqlite3.Connection:
    uri = f"{path.resolve().as_uri()}?mode=ro"
    if not os.access(path.parent, os.W_OK) and not Path(f"{path}-wal").exists():
        uri += "&immutable=1"  # an archive on read-only storage: no one can write, so no lock is needed
    return sqlite3.connect(uri, uri=True, timeout=30, isolation_level=None)


def in_records(db: sqlite3.Connection, folder: Path, query: str) -> list[Any]:
    """The rows of a query that looks into records; raises an error if one of them is no JSON."""
    with storage(folder):
        try:
            return db.execute(query).fetchall()
        except sqlite3.OperationalError as error:
            if sqlite_code(error) != sqlite3.SQLITE_ERROR or not _any_without_json(db):
                raise
            raise damaged(folder, error) from error


def _any_without_json(db: sqlite3.Connection) -> bool:
    """Whether a record is no JSON: to SQLite that is an error like any other of a query."""
    return db.execute("SELECT 1 FROM records WHERE NOT json_valid(record) LIMIT 1").fetchone() is not None


def read_record(record: str, folder: Path) -> dict[str, Any]:
    """Parse a stored record; raises an error if it is damaged. A key twice is damage: SQLite would read another one."""
    try:
        found = parse_json(record)
        if not isinstance(found, dict):
            raise ValueError("no JSON object")
    except (TypeError, ValueError) as error:
        raise damaged(folder, error) from error
    return found


def damaged(folder: Path, error: Exception) -> StoreError:
    """The error for results that cannot be read."""
    return StoreError(
        f"the results of {folder} are damaged: the record of an input cannot be read ({error}); nothing was changed. Restore "
        f"results.sqlite from a copy, or certify into a new folder."
    )
