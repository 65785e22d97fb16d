"""The SQLite file of a registry: identified by its header, shared by several processes, durable after each commit."""

from __future__ import annotations

import hashlib
import json
import math
import sqlite3
import struct
import time
import zlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from ucan.arithmetic import REAL
from ucan.errors import InvalidInput, StoreError
from ucan.laws import norm_name
from ucan.region import check_norm
from ucan.scales import Scale, kind_name, restored
from ucan.storage import claim, close_with, sqlite_code, storage, transaction

APPLICATION_ID = 0x55435247  # "UCRG"
SCHEMA_VERSION = 2
PATIENCE = 60  # seconds to wait for another process's transaction
# The filter's data are stored apart from the regions, so that opening a registry reads only megabytes.
SCHEMA = """
CREATE TABLE registry (norm TEXT, shape TEXT, classifier TEXT);
CREATE TABLE sketches (
    id INTEGER PRIMARY KEY AUTOINCREMENT, answer INTEGER NOT NULL, reach REAL NOT NULL, sketch BLOB NOT NULL,
    checksum INTEGER NOT NULL);
CREATE TABLE regions (
    id INTEGER PRIMARY KEY, answer INTEGER NOT NULL, radius REAL NOT NULL, scale INTEGER NOT NULL,
    tensors BLOB NOT NULL, record TEXT NOT NULL, checksum INTEGER NOT NULL);
CREATE TABLE scales (id INTEGER PRIMARY KEY, hash TEXT NOT NULL UNIQUE, kind TEXT NOT NULL, tensors BLOB NOT NULL);
INSERT INTO registry VALUES (NULL, NULL, NULL);
"""


@dataclass(frozen=True)
class Row:
    """One enrolment as it is stored: {x : ‖Σ⁻¹(x − centre)‖ₚ < radius} and the centre have this answer."""

    answer: int
    radius: float
    scale: int
    tensors: dict[str, torch.Tensor]
    record: dict[str, Any]


class Database:
    """One connection to a registry's file.

    Rows are only ever added, in transactions that exclude each other, so ids rise in the order of enrolment. The journal
    is a write-ahead log synchronised at every commit: what was committed survives a crash of the process, of the
    operating system and of the machine.
    """

    def __init__(self, path: Path, norm: float | None) -> None:
        self.path = path
        if norm is not None:
            check_norm(norm)
        with self.storage():
            self._db = sqlite3.connect(path, timeout=PATIENCE, isolation_level=None)
            close_with(self, self._db)
            try:
                self._settle()
                if norm is not None and norm != self.norm():
                    with self.transaction():
                        self.settle_norm(norm)
            except BaseException:
                self._db.close()
                raise

    def storage(self) -> AbstractContextManager[None]:
        """Turn errors of SQLite and the system about this file into messages."""
        return storage(self.path)

    def copy(self, path: Path) -> None:
        """Write all that is committed to another file; this one is only read."""
        target = sqlite3.connect(path)
        try:
            self._db.backup(target)
        finally:
            target.close()

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def transaction(self) -> AbstractContextManager[None]:
        """An exclusive transaction among all processes; afterwards either everything is on disk, or nothing."""
        return transaction(self._db)

    def norm(self) -> float | None:
        """The norm of the regions; None until it is set."""
        text = self._db.execute("SELECT norm FROM registry").fetchone()[0]
        return None if text is None else math.inf if text == "inf" else int(text)

    def settle_norm(self, norm: float) -> None:
        """Set the norm of a new registry, when it is opened or with its first region; another norm is refused."""
        known = self.norm()
        if known is None:
            self._db.execute("UPDATE registry SET norm = ?", ("inf" if norm == math.inf else str(int(norm)),))
        elif known != norm:
            raise InvalidInput(
                f"{self.path} is a registry of {norm_name(known)} regions; a registry has one norm, so use another file for "
                f"{norm_name(norm)}."
            )

    def settle_classifier(self, classifier: dict[str, Any]) -> None:
        """The first enrolment fixes the classifier; another classifier is refused."""
        self.check_classifier(classifier)
        known = self._classifier()
        if any(known.get(key) is None for key in classifier):
            self._db.execute("UPDATE registry SET classifier = ?", (json.dumps({**known, **classifier}),))

    def check_classifier(self, classifier: dict[str, Any]) -> None:
        """Refuse a classifier that differs in anything from the registry's."""
        known = self._classifier()
        # What an older file does not state is not compared; the next enrolment fixes it.
        differing = [key for key in classifier if known.get(key) is not None and known[key] != classifier[key]]
        if differing:
            lines = (f"{key} {known[key]!r}, this one {classifier[key]!r}" for key in sorted(differing))
            raise InvalidInput(
                f"{self.path} holds the answers of another classifier ({'; '.join(lines)}). A registry belongs to one "
                f"classifier: use another file for this one{_or_real(differing, known)}."
            )

    def knows_noise(self) -> bool:
        """Whether the file states the noise of its enrolments completely; a file of version 0.1 does not."""
        known = self._classifier()
        return not known or "noise state" in known

    def _classifier(self) -> dict[str, Any]:
        text = self._db.execute("SELECT classifier FROM registry").fetchone()[0]
        # An older registry does not state the arithmetic and the family.
        return {} if text is None else {"arithmetic": REAL, "family": 1, **json.loads(text)}

    def shape(self) -> tuple[int, ...] | None:
        """The shape of the inputs; None until it is set."""
        text = self._db.execute("SELECT shape FROM registry").fetchone()[0]
        return None if text is None else tuple(json.loads(text))

    def settle_shape(self, shape: Sequence[int]) -> None:
        """The first enrolment fixes the shape of the inputs; another is refused."""
        known = self.shape()
        if known is None:
            self._db.execute("UPDATE registry SET shape = ?", (json.dumps(list(shape)),))
        self.check_shape(shape)

    def check_shape(self, shape: Sequence[int]) -> None:
        """Refuse inputs of another shape than those enrolled."""
        known = self.shape()
        if known is not None and known != tuple(shape):
            raise InvalidInput(f"{self.path} holds inputs of shape {known}, but this one has shape {tuple(shape)}.")

    def scale_id(self, scale: Scale) -> int:
        """The number of this Σ; the same Σ is stored once. Within a transaction."""
        scale = scale.to("cpu")
        data = save({name: t.detach().contiguous().clone() for name, t in scale.content().items()})
        kind = kind_name(scale)
        digest = hashlib.sha256(kind.encode() + data).hexdigest()
        found = self._db.execute("SELECT id FROM scales WHERE hash = ?", (digest,)).fetchone()
        if found is None:
            insert = "INSERT INTO scales (hash, kind, tensors) VALUES (?, ?, ?)"
            return int(self._db.execute(insert, (digest, kind, data)).lastrowid or 0)
        return int(found[0])

    def read_scale(self, number: int) -> Scale:
        """Σ by its number; a full one in double precision, so that its use need not convert it each time."""
        row = self._db.execute("SELECT hash, kind, tensors FROM scales WHERE id = ?", (number,)).fetchone()
        if row is None or hashlib.sha256(row[1].encode() + row[2]).hexdigest() != row[0]:
            raise self._damaged(f"Σ number {number}")
        kind, tensors = row[1], load(row[2])
        found = restored(kind, tensors)
        if found.elementwise:
            return found
        return found.with_tensors({name: tensor.double() for name, tensor in found.tensors().items()})

    def add(self, row: Row, reach: float, sketch: bytes) -> int:
        """Store one enrolment; within a transaction."""
        tensors = save({name: t.detach().cpu().contiguous().clone() for name, t in row.tensors.items()})
        record = json.dumps(row.record, ensure_ascii=False)
        insert = "INSERT INTO sketches (answer, reach, sketch, checksum) VALUES (?, ?, ?, ?)"
        values: tuple[Any, ...] = (row.answer, reach, sketch, _sketch_checksum(row.answer, reach, sketch))
        number = int(self._db.execute(insert, values).lastrowid or 0)
        checksum = _checksum(row.answer, row.radius, row.scale, tensors, record)
        values = (number, row.answer, row.radius, row.scale, tensors, record, checksum)
        self._db.execute("INSERT INTO regions VALUES (?, ?, ?, ?, ?, ?, ?)", values)
        return number

    def read(self, number: int) -> Row:
        """One enrolment."""
        query = "SELECT answer, radius, scale, tensors, record, checksum FROM regions WHERE id = ?"
        row = self._db.execute(query, (number,)).fetchone()
        if row is None or _checksum(*row[:5]) != row[5]:
            raise self._damaged(f"enrolment {number}")
        try:
            return Row(row[0], row[1], row[2], load(row[3]), json.loads(row[4]))
        except (SafetensorError, ValueError) as error:
            raise self._damaged(f"enrolment {number}") from error

    def sketches(self, after: int) -> list[tuple[int, int, float, bytes]]:
        """(id, answer, reach, sketch) of the enrolments after this one, in order; none is ever removed."""
        last = self._db.execute("SELECT max(id) FROM regions").fetchone()[0] or 0  # first: others may enrol
        query = "SELECT id, answer, reach, sketch, checksum FROM sketches WHERE id > ? ORDER BY id"
        rows = self._db.execute(query, (after,)).fetchall()
        for expected, (number, *values, checksum) in enumerate(rows, after + 1):
            if number != expected or _sketch_checksum(*values) != checksum:
                raise self._damaged(f"the sketch of enrolment {expected}")
        if last > after + len(rows):
            raise self._damaged(f"the sketch of enrolment {last}")
        return [row[:4] for row in rows]

    def _damaged(self, what: str) -> StoreError:
        return StoreError(f"{self.path} is damaged: {what} is missing or was changed. Restore it from a copy.")

    def _settle(self) -> None:
        """Check the file before anything is written to it; an empty file becomes a registry in one transaction."""
        claim(self._db, self.path, APPLICATION_ID, SCHEMA_VERSION, SCHEMA)
        self._use_wal()
        self._db.execute("PRAGMA synchronous = FULL")

    def _use_wal(self) -> None:
        """Changing the journal mode does not wait for other processes, so it is retried."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                if self._db.execute("PRAGMA journal_mode = WAL").fetchone()[0] == "wal":
                    return
            except sqlite3.OperationalError as error:
                if sqlite_code(error) not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                    raise
            if time.monotonic() > deadline:
                raise StoreError(f"{self.path} cannot be shared: its file system allows no write-ahead log.")
            time.sleep(0.01)


def _checksum(answer: int, radius: float, scale: int, tensors: bytes, record: str) -> int:
    head = f"{answer} {radius!r} {scale} ".encode()
    return zlib.crc32(record.encode(), zlib.crc32(tensors, zlib.crc32(head)))


def _sketch_checksum(answer: int, reach: float, sketch: bytes) -> int:
    return zlib.crc32(sketch, zlib.crc32(struct.pack("<qd", answer, reach)))


def _or_real(differing: list[str], known: dict[str, Any]) -> str:
    """Advice if the only difference is that the file was started in real arithmetic."""
    begun = differing == ["arithmetic"] and known["arithmetic"] == "real"
    return ", or go on in real arithmetic (--arithmetic real, or no step=)" if begun else ""
