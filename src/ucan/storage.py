"""SQLite files of ours: told from any other, and their failures in words."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ucan.errors import StoreError


def recognise(db: sqlite3.Connection, path: Path, application_id: int, version: int) -> bool:
    """Whether this is a database of that kind (True) or an empty one (False); a foreign or a newer one is an error."""
    application = db.execute("PRAGMA application_id").fetchone()[0]
    schema = db.execute("PRAGMA user_version").fetchone()[0]
    if application == application_id:
        if schema != version:
            raise StoreError(f"{path} has schema version {schema}; this version of UCAN knows {version}.")
        return True
    if application or schema or db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        raise StoreError(f"{path} is a SQLite file of another program, or of another kind; nothing was changed.")
    return False


@contextmanager
def transaction(db: sqlite3.Connection, kind: str = "IMMEDIATE") -> Iterator[None]:
    """Alone among all writers; afterwards everything is stored, or nothing is."""
    db.execute(f"BEGIN {kind}")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


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
