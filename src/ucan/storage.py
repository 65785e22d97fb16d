"""Writing to disk: atomic files, append-only journals, and SQLite databases.

Three rules hold for everything that UCAN writes. A file is written atomically (``whole``, ``write_whole``). Work that may be
interrupted stores each finished result and resumes from there (``Journal``, and transactions of a database). Work is resumed
only under the config it was started with (`config.settle`).
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import sqlite3
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ucan.errors import StoreError

# --- whole or not at all ---


@contextmanager
def whole(*paths: Path) -> Iterator[list[Path]]:
    """Temporary files to write in place of these, which then replace them, in this order.

    Afterwards all are complete and on the disk. If the block raises, all are as they were before. Several writers at the same
    time have files of their own each, and the last one's stay.
    """
    parts = [_part(path) for path in paths]
    try:
        yield parts
        for part in parts:
            _sync(part, os.O_RDWR)
        for part, path in zip(parts, paths, strict=True):
            part.replace(path)
        for folder in {path.parent for path in paths}:
            sync_folder(folder)
    finally:
        for part in parts:
            with suppress(OSError):
                part.unlink(missing_ok=True)


def _part(path: Path) -> Path:
    """A new name beside a file: no other process, thread or machine takes it."""
    return path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.part")


def unfinished(path: Path) -> list[Path]:
    """The temporary files in place of this one: of writers at work, or left behind by some that were killed."""
    name = re.compile(rf"\.{re.escape(path.name)}(\.\d+-[0-9a-f]+)?\.part")  # without a number: of an older version
    return [other for other in path.parent.iterdir() if name.fullmatch(other.name)]


def write_whole(path: Path, data: bytes) -> None:
    """Write a file that is afterwards either complete and on the disk, or as it was before."""
    with whole(path) as (part,):
        part.write_bytes(data)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable, where the system can."""
    if os.name == "posix":
        _sync(folder, os.O_RDONLY)


def _sync(path: Path, mode: int) -> None:
    descriptor = os.open(path, mode)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- append and resume ---


class Journal:
    """An append-only file of lines; one process writes it, others may read it at the same time.

    Each line is added in one write and is then on the disk. An incomplete last line, after a crash, is ignored: it is not in
    ``lines``, and the next line replaces it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._mended = False  # whether the end of the file is that of a line

    def lines(self) -> list[str]:
        """The finished lines; none where there is no file."""
        return [line.decode() for line in self._whole().splitlines()]

    def begin(self, line: str) -> None:
        """Make the file with its first line. FileExistsError if there is one: two processes must not share it."""
        self._write(line, "xb")

    def append(self, line: str) -> None:
        """Add a line."""
        if not self._mended and self.path.exists():
            os.truncate(self.path, len(self._whole()))
        self._write(line, "ab")

    def keep(self, count: int) -> None:
        """Drop all but the first ``count`` lines."""
        lines = self._whole().splitlines(keepends=True)
        if self.path.exists() and len(lines) > count:
            write_whole(self.path, b"".join(lines[:count]))

    def _whole(self) -> bytes:
        data = self.path.read_bytes() if self.path.exists() else b""
        return data[: data.rfind(b"\n") + 1]

    def _write(self, line: str, mode: str) -> None:
        data = f"{line}\n".encode()
        with open(self.path, mode, buffering=0) as file:
            if file.write(data) != len(data):
                raise OSError(errno.ENOSPC, "disk is full")
            os.fsync(file.fileno())
        self._mended = True


# --- databases ---


def claim(db: sqlite3.Connection, path: Path, application_id: int, version: int, schema: str) -> None:
    """Recognise a database before anything is written to it; an empty one becomes ours in one transaction.

    ``schema`` is a sequence of statements, each ended by a semicolon.
    """
    if recognise(db, path, application_id, version):
        return
    with transaction(db, "EXCLUSIVE"):
        if not recognise(db, path, application_id, version):  # another process may have been first
            for statement in schema.strip().split(";")[:-1]:
                db.execute(statement)
            db.execute(f"PRAGMA application_id = {application_id}")
            db.execute(f"PRAGMA user_version = {version}")


# In one statement, which reads one state of the file: another process may be creating it.
WHAT_IT_IS = """SELECT (SELECT application_id FROM pragma_application_id), (SELECT user_version FROM pragma_user_version),
    (SELECT count(*) FROM sqlite_master)"""


def recognise(db: sqlite3.Connection, path: Path, application_id: int, version: int) -> bool:
    """Whether this is a database of that kind (True) or an empty one (False); a foreign or a newer one is an error."""
    application, schema, tables = db.execute(WHAT_IT_IS).fetchone()
    if application == application_id:
        if schema != version:
            raise StoreError(f"{path} has schema version {schema}, but this version of UCAN supports {version}.")
        return True
    if application or schema or tables:
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


def close_with(owner: object, db: sqlite3.Connection) -> None:
    """Close a connection when the object that holds it is deleted, if nobody has closed it before."""
    weakref.finalize(owner, _close, db)


def _close(db: sqlite3.Connection) -> None:
    with suppress(sqlite3.ProgrammingError):  # deleted in another thread than its own: the system closes it
        db.close()


# --- what goes wrong, in words ---


@contextmanager
def storage(folder: Path) -> Iterator[None]:
    """Turn what SQLite and the system say about storage into a StoreError that says what to do."""
    try:
        yield
    except StoreError:
        raise
    except (sqlite3.Error, OSError) as error:
        raise StoreError(_advice(folder, error)) from error


def sqlite_code(error: sqlite3.Error) -> int | None:
    """SQLite's primary result code, such as ``sqlite3.SQLITE_BUSY``; None for an error that is Python's own."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF  # the other bits say more about it


def _is_full(error: sqlite3.Error | OSError) -> bool:
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return sqlite_code(error) == sqlite3.SQLITE_FULL


def _advice(folder: Path, error: sqlite3.Error | OSError) -> str:
    if _is_full(error):
        return (
            f"no space left for {folder}: stored results are safe. Free some space and run the same command again to "
            "resume."
        )
    if isinstance(error, sqlite3.Error) and sqlite_code(error) in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
        return f"the database of {folder} is damaged or is not a SQLite file ({error}); nothing was changed."
    return f"{folder} cannot be read or written: {error}."
