"""The SQLite file of a run, opened by its only writer, or read-only; and its records as JSON values."""

from __future__ import annotations

import json
import os
import sqlite3
from pathlib import Path
from typing import Any

from ucan.errors import StoreError
from ucan.storage import claim, recognise, storage

APPLICATION_ID = 0x5543414E  # "UCAN": identifies our SQLite files
SCHEMA_VERSION = 1
# Numbers and evidence are in separate tables, so that metrics over a million rows read megabytes, not gigabytes.
SCHEMA = """
CREATE TABLE outcomes (
    idx INTEGER PRIMARY KEY, label INTEGER NOT NULL, prediction INTEGER NOT NULL, abstained INTEGER NOT NULL,
    correct INTEGER NOT NULL, radius REAL, alm REAL, p_lower REAL, log_volume REAL, n0 INTEGER NOT NULL,
    n INTEGER NOT NULL, seconds REAL);
CREATE TABLE records (idx INTEGER PRIMARY KEY, record TEXT NOT NULL);
"""
# Names of inputs came later: the table is added to a run whose inputs have names, and is absent from the others.
NAMES = "CREATE TABLE IF NOT EXISTS names (idx INTEGER PRIMARY KEY, name TEXT NOT NULL)"


def connect_writer(path: Path) -> sqlite3.Connection:
    """Check the file before anything is written to it; an empty file is initialised in one transaction."""
    db = sqlite3.connect(path, timeout=30, isolation_level=None)
    try:
        if not recognise(db, path, APPLICATION_ID, SCHEMA_VERSION):
            db.execute("PRAGMA journal_mode = WAL")
        claim(db, path, APPLICATION_ID, SCHEMA_VERSION, SCHEMA)
        db.execute("PRAGMA synchronous = NORMAL")
        return db
    except BaseException:
        db.close()
        raise


def connect_reader(path: Path) -> sqlite3.Connection:
    """A connection that cannot write; it sees each finished transaction, also while the writer is active."""
    uri = f"{path.resolve().as_uri()}?mode=ro"
    if not os.access(path.parent, os.W_OK) and not Path(f"{path}-wal").exists():
        uri += "&immutable=1"  # an archive on read-only storage: no one can write, so no lock is needed
    db = sqlite3.connect(uri, uri=True, timeout=30, isolation_level=None)
    try:
        if not recognise(db, path, APPLICATION_ID, SCHEMA_VERSION):
            raise StoreError(f"{path} holds no results yet.")
        return db
    except BaseException:
        db.close()
        raise


def count_results(path: Path) -> int:
    """How many results a file holds; none if it was only begun."""
    db = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=30, isolation_level=None)
    try:
        begun = recognise(db, path, APPLICATION_ID, SCHEMA_VERSION)
        return int(db.execute("SELECT count(*) FROM outcomes").fetchone()[0]) if begun else 0
    finally:
        db.close()


def in_records(db: sqlite3.Connection, folder: Path, query: str) -> list[Any]:
    """The rows of a query that looks into records; raises an error if one of them is no JSON."""
    with storage(folder):
        try:
            return db.execute(query).fetchall()
        except sqlite3.OperationalError as error:
            if "JSON" not in str(error):
                raise
            raise damaged(folder, error) from error


def read_record(record: str, folder: Path) -> dict[str, Any]:
    """Parse a stored record; raises an error if it is damaged."""
    try:
        found = json.loads(record)
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
