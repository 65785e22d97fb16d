"""The run folder of a question: the frozen config, and one SQLite row per answer with its full record."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ucan.certificate import Abstention
from ucan.config import CONFIG, differences, frozen, read_config, settle
from ucan.errors import InvalidInput, StoreError
from ucan.questions.record import Answer
from ucan.questions.records import from_dict
from ucan.results.folder import make_folder
from ucan.results.lock import LOCK, WriterLock
from ucan.storage import claim, close_with, recognise, storage, transaction

ANSWERS = "answers.sqlite"
APPLICATION_ID = 0x55434151  # "UCAQ"
SCHEMA_VERSION = 1
SCHEMA = "CREATE TABLE answers (idx INTEGER PRIMARY KEY, seconds REAL NOT NULL, record TEXT NOT NULL);"


class AnswerStore:
    """The answers of one run. Make one with ``create`` (the only writer) or ``open`` (read-only)."""

    def __init__(self, folder: Path, config: dict[str, Any], db: sqlite3.Connection, lock: WriterLock | None) -> None:
        self.folder, self.config, self._db, self._lock = folder, config, db, lock

    @classmethod
    def create(cls, folder: str | Path, config: dict[str, Any]) -> AnswerStore:
        """Start a run, or go on with the one in this folder, if its config is the same."""
        folder = Path(folder)
        with storage(folder):
            make_folder(folder)
            lock = WriterLock(folder / LOCK)
        try:
            with storage(folder):
                settled = settle(folder, frozen(config), differences)
                return cls(folder, settled, _connect_writer(folder / ANSWERS), lock)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def open(cls, folder: str | Path) -> AnswerStore:
        """An existing run, read-only; also while another process writes it."""
        folder = Path(folder)
        if not (folder / ANSWERS).is_file():
            raise StoreError(f"{folder} holds no answers: give the folder of a `ucan ask` run.")
        config = read_config(folder / CONFIG)
        with storage(folder):
            db = _connect_reader(folder / ANSWERS)
        store = cls(folder, config, db, None)
        close_with(store, db)
        return store

    def add(self, idx: int, answer: Answer | Abstention, seconds: float) -> None:
        """Store one answer with its record, in one transaction."""
        with storage(self.folder):
            record = json.dumps(answer.to_dict(self.folder), ensure_ascii=False, allow_nan=False)
            with transaction(self._db):
                self._db.execute("INSERT INTO answers VALUES (?, ?, ?)", (int(idx), float(seconds), record))

    def done(self) -> set[int]:
        """The inputs that have an answer."""
        with storage(self.folder):
            return {row[0] for row in self._db.execute("SELECT idx FROM answers")}

    def __len__(self) -> int:
        return len(self.done())

    def answers(self) -> Iterator[tuple[int, Answer | Abstention]]:
        """The answers in the order of the data."""
        for idx in sorted(self.done()):
            yield idx, self.answer(idx)

    def answer(self, idx: int) -> Answer | Abstention:
        """The answer to one input."""
        with storage(self.folder):
            found = self._db.execute("SELECT record FROM answers WHERE idx = ?", (int(idx),)).fetchone()
        if found is None:
            raise InvalidInput(f"{self.folder} has no answer for input {idx}.")
        try:
            answer = from_dict(json.loads(found[0]), self.folder)
        except (TypeError, ValueError) as error:
            raise StoreError(f"the answer to input {idx} of {self.folder} cannot be read ({error}).") from error
        assert isinstance(answer, Answer | Abstention), "add stores nothing else"
        return answer

    def close(self) -> None:
        """Close the files and release the lock."""
        self._db.close()
        if self._lock is not None:
            self._lock.release()

    def __enter__(self) -> AnswerStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _connect_writer(path: Path) -> sqlite3.Connection:
    """Check the file before anything is written to it; an empty file is initialised."""
    db = sqlite3.connect(path, timeout=30, isolation_level=None)
    try:
        if not recognise(db, path, APPLICATION_ID, SCHEMA_VERSION):
            db.execute("PRAGMA journal_mode = WAL")
        claim(db, path, APPLICATION_ID, SCHEMA_VERSION, SCHEMA)
        return db
    except BaseException:
        db.close()
        raise


def _connect_reader(path: Path) -> sqlite3.Connection:
    """A connection that cannot write."""
    db = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=30)
    try:
        if not recognise(db, path, APPLICATION_ID, SCHEMA_VERSION):
            raise StoreError(f"{path.parent} holds no answers yet.")
        return db
    except BaseException:
        db.close()
        raise
