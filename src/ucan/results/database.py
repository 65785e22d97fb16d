"""The SQLite file of a run: told from any other, opened for its one writer or to look, and its failures in words."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ucan.errors import StoreError

APPLICATION_ID = 0x5543414E  # "UCAN": how a file of ours is told from any other SQLite file
SCHEMA_VERSION = 1
# The numbers lie apart from the evidence, so that metrics over a million rows read a few megabytes, not gigabytes.
SCHEMA = """
CREATE TABLE outcomes (
    idx INTEGER PRIMARY KEY, label INTEGER NOT NULL, prediction INTEGER NOT NULL, abstained INTEGER NOT NULL,
    correct INTEGER NOT NULL, radius REAL, alm REAL, p_lower REAL, log_volume REAL, n0 INTEGER NOT NULL,
    n INTEGER NOT NULL, seconds REAL);
CREATE TABLE records (idx INTEGER PRIMARY KEY, record TEXT NOT NULL);
"""


def connect_writer(path: Path) -> sqlite3.Connection:
    """Recognise the file before anything is written to it; an empty one becomes ours in one transaction."""
    db = sqlite3.connect(path, timeout=30, isolation_level=None)
    try:
        if not _recognise(db, path):
            db.execute("PRAGMA journal_mode = WAL")
            db.executescript(
                f"BEGIN IMMEDIATE; {SCHEMA} PRAGMA application_id = {APPLICATION_ID}; "
                f"PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"
            )
        db.execute("PRAGMA synchronous = NORMAL")
        return db
    except BaseException:
        db.close()
        raise


def connect_reader(path: Path) -> sqlite3.Connection:
    """A connection that cannot write; it sees each finished transaction, also while the writer goes on."""
    uri = f"{path.resolve().as_uri()}?mode=ro"
    if not os.access(path.parent, os.W_OK) and not Path(f"{path}-wal").exists():
        uri += "&immutable=1"  # an archive on read-only storage: no one can write, so no lock is needed
    db = sqlite3.connect(uri, uri=True, timeout=30, isolation_level=None)
    try:
        if not _recognise(db, path):
            raise StoreError(f"{path} holds no results yet.")
        return db
    except BaseException:
        db.close()
        raise


def _recognise(db: sqlite3.Connection, path: Path) -> bool:
    """Whether this is our database (True) or an empty one (False); a foreign or a newer one is an error."""
    application = db.execute("PRAGMA application_id").fetchone()[0]
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if application == APPLICATION_ID:
        if version != SCHEMA_VERSION:
            raise StoreError(f"{path} has schema version {version}; this version of UCAN knows {SCHEMA_VERSION}.")
        return True
    if application or version or db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        raise StoreError(f"{path} is a SQLite file of another program, not a UCAN store; nothing was changed.")
    return False


@contextmanager
def storage(folder: Path) -> Iterator[None]:
    """Turn what SQLite and the system say about storage into a StoreError that says what to do."""
    try:
        yield
    except StoreError:
        raise
    except sqlite3.Error as error:
        raise StoreError(_advice(folder, str(error))) from error
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise StoreError(_advice(folder, "disk is full" if full else str(error))) from error


def _advice(folder: Path, problem: str) -> str:
    if "disk is full" in problem:
        return f"no space left for {folder}: what was stored before is safe. Free some space and run again to go on."
    if "not a database" in problem or "malformed" in problem:
        return f"the database of {folder} is damaged or is not a SQLite file ({problem}); nothing was changed."
    return f"{folder} cannot be read or written: {problem}."
