"""The folder of a run: made for a new one, removed or begun anew while it has no result; what the stores in it share."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

from ucan.config import CONFIG, differences, frozen, read_config, settle
from ucan.errors import InvalidInput, StoreError
from ucan.lock import LOCK, WriterLock
from ucan.results.database import OUTCOMES, Kind, connect_reader, connect_writer, count_results
from ucan.storage import close_with, storage, unfinished

RESULTS = OUTCOMES.file


class Begun(NamedTuple):
    """A run whose folder is held for writing: its config as it is stored, its database and its lock."""

    config: dict[str, Any]
    db: sqlite3.Connection
    lock: WriterLock


class Results:
    """The results in a run's folder, with the lock of the only writer, or read-only."""

    def __init__(self, folder: Path, config: dict[str, Any], db: sqlite3.Connection, lock: WriterLock | None) -> None:
        self.folder, self.config, self._db, self._lock = folder, config, db, lock

    @classmethod
    def _reading(cls, folder: Path, config: dict[str, Any], kind: Kind) -> Self:
        """Read-only; closed when the object is deleted."""
        with storage(folder):
            db = connect_reader(folder / kind.file, kind)
        results = cls(folder, config, db, None)
        close_with(results, db)
        return results

    def _check_writer(self) -> None:
        if self._lock is None:
            raise InvalidInput(f"{self.folder} was opened read-only: use {type(self).__name__}.create to write.")

    def close(self) -> None:
        """Close the files and release the lock."""
        self._db.close()
        if self._lock is not None:
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def make_folder(folder: Path) -> None:
    """Create the folder; an existing folder must be empty or a run, even one that has just been started."""
    if folder.is_file():
        raise InvalidInput(f"{folder} is a file, but a run needs a folder; nothing was changed. Give a new folder.")
    folder.mkdir(parents=True, exist_ok=True)
    own = {folder / LOCK, *unfinished(folder / CONFIG)}
    others = sorted(path.name for path in set(folder.iterdir()) - own)
    if others and not (folder / CONFIG).is_file():
        raise InvalidInput(
            f"{folder} is not empty and is not a run folder (it holds {', '.join(others[:3])}); nothing was changed. "
            "Give a new folder."
        )


def begin(
    folder: Path,
    config: dict[str, Any],
    kind: Kind,
    compare: Callable[[dict[str, Any], dict[str, Any]], list[str]] = differences,
) -> Begun:
    """Start a run in a folder, or resume the run there if its config is the same; the only writer until the lock is released.

    A different config is refused, with each difference that ``compare`` (the run's config, the requested one) finds; so is
    a folder that holds other files. A run without any result is begun anew.
    """
    wanted = frozen(config)
    with storage(folder):
        make_folder(folder)
        lock = WriterLock(folder / LOCK, f"To read the run, use {kind.readers}.")
    try:
        with storage(folder):
            if _is_begun(folder, wanted, kind) and compare(read_config(folder / CONFIG), wanted):
                (folder / CONFIG).unlink()  # it has no result: nothing to resume, and nothing to lose
            return Begun(settle(folder, wanted, compare), connect_writer(folder / kind.file, kind), lock)
    except BaseException:
        lock.release()
        raise


def _is_begun(folder: Path, wanted: dict[str, Any], kind: Kind) -> bool:
    """Whether a folder holds a run of the wanted kind without any result."""
    if not (folder / CONFIG).is_file() or read_config(folder / CONFIG).get("kind") != wanted.get("kind"):
        return False
    return not results_in(folder, kind)


def remove_empty(folder: Path, kind: Kind) -> None:
    """Remove a run that has no result, so that its folder does not block another attempt.

    Other files are left alone, and so is a run that another process has just begun in the same folder.
    """
    names = {CONFIG, kind.file, f"{kind.file}-wal", f"{kind.file}-shm"}
    if not folder.is_dir() or {path.name for path in folder.iterdir()} - {*names, LOCK}:
        return
    with suppress(OSError, sqlite3.Error, StoreError):
        lock = WriterLock(folder / LOCK)
        try:
            if results_in(folder, kind):
                return
            for name in names:
                (folder / name).unlink(missing_ok=True)
            lock.remove()
            folder.rmdir()
        finally:
            lock.release()


def results_in(folder: Path, kind: Kind) -> int:
    """How many results the run in a folder has; none where it was ended before its file was complete."""
    path = folder / kind.file
    with storage(folder):
        return count_results(path, kind) if path.is_file() else 0
