"""A run folder: the frozen config, and one SQLite row per certificate or abstention with its full evidence.

Each outcome is one transaction. The database is in WAL mode with ``synchronous=NORMAL``: killing the process at any
moment, also with SIGKILL, loses at most the input in progress. A power cut or a crash of the operating system can also
lose the last outcomes since SQLite's last checkpoint (about a thousand pages), and the tensor files written with them;
the database stays sound, the lost inputs are computed again on resumption, and a tensor file is checked by its hash.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ucan.certificate import ABSTAINED, Abstention, Certificate, from_dict
from ucan.config import CONFIG, differences, frozen, read_config, write_config
from ucan.errors import InvalidInput, StoreError
from ucan.lock import WriterLock
from ucan.results.claims import Claims, claims_of_records, refuse_other, refuse_other_config
from ucan.results.database import ANSWERS, NAMES, OUTCOMES, damaged, in_records, read_record
from ucan.results.folder import RESULTS, Results, begin
from ucan.storage import storage, transaction

COLUMNS: dict[str, type] = {
    "idx": np.int64,
    "label": np.int64,
    "prediction": np.int64,
    "abstained": np.bool_,
    "correct": np.bool_,
    "radius": np.float64,
    "alm": np.float64,
    "p_lower": np.float64,
    "log_volume": np.float64,
    "n0": np.int64,
    "n": np.int64,
    "seconds": np.float64,
}
UNKNOWN = -2  # an unknown label or prediction of an imported row


class Store(Results):
    """The results of one run. Make one with ``Store.create`` (the only writer) or ``Store.open`` (read-only)."""

    def __init__(self, folder: Path, config: dict[str, Any], db: sqlite3.Connection, lock: WriterLock | None) -> None:
        super().__init__(folder, config, db, lock)
        self._claims: Claims | None = None

    @classmethod
    def create(
        cls,
        folder: str | Path,
        config: dict[str, Any],
        compare: Callable[[dict[str, Any], dict[str, Any]], list[str]] = differences,
    ) -> Store:
        """Create a run, or open the run in this folder for writing if its config is the same; the only writer until closed.

        A different config is refused, with each difference that ``compare`` (the run's config, the requested one) finds; so
        is a folder that holds other files.
        """
        return cls(Path(folder), *begin(Path(folder), config, OUTCOMES, compare))

    @classmethod
    def open(cls, folder: str | Path) -> Store:
        """An existing run, read-only; also while another process writes it. It is closed when the object is deleted."""
        folder = Path(folder)
        if not (folder / CONFIG).is_file():
            found = f"is not a run folder: it has no {CONFIG}" if folder.is_dir() else "is not a folder"
            raise StoreError(f"{folder} {found}. Give the folder of a `ucan certify` run, or of an imported one.")
        config = read_config(folder / CONFIG)
        if (folder / ANSWERS.file).is_file() and not (folder / RESULTS).is_file():
            raise StoreError(
                f"{folder} is a run of `ucan ask`, whose answers are not radii of one class: `ucan report` and `ucan explore` "
                f"show them, and `ucan ask --certificates` writes each as a file."
            )
        if not (folder / RESULTS).is_file():
            if config.get("kind") == "train":
                raise StoreError(
                    f"{folder} is a run of `ucan train`, which has no certificates: let it finish, then make some with "
                    f"`ucan certify --model {folder} …`."
                )
            raise StoreError(f"{folder} has no results yet: {RESULTS} is missing. `ucan certify` writes it.")
        return cls._reading(folder, config, OUTCOMES)

    def adopt(self, config: dict[str, Any]) -> None:
        """Replace the run's config atomically, for a run that is continued with more votes."""
        wanted = frozen(config)
        with storage(self.folder), self._transaction():  # refused to a reader
            write_config(self.folder / CONFIG, wanted)
        self.config = wanted

    def add(
        self,
        idx: int,
        label: int,
        outcome: Certificate | Abstention,
        seconds: float,
        again: bool = False,
        name: str | None = None,
    ) -> None:
        """Store one outcome with its evidence and the input's name, if it has one, in one transaction.

        ``again``: replace the stored outcome, and add up the seconds of both.
        """
        if not isinstance(outcome, Certificate | Abstention) or outcome.norm is None:
            raise InvalidInput(f"a run stores results of certify, not of predict; got {type(outcome).__name__}.")
        claims, known = Claims.of(outcome), self._known_claims()
        refuse_other(known, claims, self.folder, recorded=self._claims is not None)
        prediction = ABSTAINED if outcome.prediction is None else outcome.prediction
        row: dict[str, Any] = {
            "idx": int(idx),
            "label": int(label),
            "prediction": prediction,
            "abstained": outcome.abstained,
            "correct": prediction == int(label) and not outcome.abstained,
            "radius": outcome.size,
            "alm": outcome.alm,
            "p_lower": outcome.p_lower,
            "log_volume": outcome.log_volume,
            "n0": outcome.evidence.n0,
            "n": outcome.evidence.n,
            "seconds": float(seconds),
        }
        with storage(self.folder):
            record = json.dumps(outcome.to_dict(self.folder), ensure_ascii=False)
            with self._transaction():
                if again:
                    query = "SELECT seconds FROM outcomes WHERE idx = ?"
                    row["seconds"] += self._db.execute(query, (int(idx),)).fetchone()[0]
                    for table in ("outcomes", "records"):
                        self._db.execute(f"DELETE FROM {table} WHERE idx = ?", (int(idx),))
                self._insert([tuple(row.values())])
                self._db.execute("INSERT INTO records VALUES (?, ?)", (int(idx), record))
                if name is not None:
                    self._db.execute(NAMES)
                    self._db.execute("INSERT OR REPLACE INTO names VALUES (?, ?)", (int(idx), name))
        self._claims = claims

    def extend(self, columns: dict[str, np.ndarray]) -> None:
        """Store many rows without evidence (imported ones) in one transaction; NaN means unknown."""
        missing = sorted(COLUMNS.keys() - columns.keys())
        if missing:
            raise InvalidInput(f"these columns are missing: {', '.join(missing)}.")
        with storage(self.folder), self._transaction():
            self._insert(zip(*(np.asarray(columns[name]).tolist() for name in COLUMNS), strict=True))

    def done(self) -> set[int]:
        """The inputs that have a result."""
        with storage(self.folder):  # as one text: three times as fast as a million rows
            text = self._db.execute("SELECT group_concat(idx) FROM outcomes").fetchone()[0]
        return set(np.fromstring(text, np.int64, sep=",").tolist()) if text else set()

    def __len__(self) -> int:
        with storage(self.folder):
            return int(self._db.execute("SELECT count(*) FROM outcomes").fetchone()[0])

    def columns(self, names: Sequence[str] = tuple(COLUMNS)) -> dict[str, np.ndarray]:
        """Columns as arrays, by idx: prediction −1 for an abstention; an imported file's unknowns are NaN, or −2."""
        unknown = [name for name in names if name not in COLUMNS]
        if unknown:
            raise InvalidInput(f"there is no column {', '.join(unknown)}; the columns are {', '.join(COLUMNS)}.")
        with storage(self.folder):
            cursor = self._db.execute(f"SELECT {', '.join(names)} FROM outcomes ORDER BY idx")
            try:
                table = np.fromiter(cursor, np.dtype([(name, COLUMNS[name]) for name in names]))
            except (TypeError, ValueError, OverflowError) as error:
                raise damaged(self.folder, error) from error
        return {name: np.ascontiguousarray(table[name]) for name in names}

    def gapless(self, names: Sequence[str] = tuple(COLUMNS)) -> tuple[dict[str, np.ndarray], int]:
        """The columns up to the first missing input, for computing shares; and the number of rows after it.

        Under a stopping rule, easy inputs finish early. In an interrupted run, the rows after a gap would make the classifier
        look better than it is. A finished run has no gaps; for an imported run it is unknown. A run of our own that does not
        say which inputs it took must have all of them: else it could be any choice.
        """
        columns = self.columns(tuple(dict.fromkeys(("idx", *names))))  # in one query: the run may be growing
        idx = columns["idx"]
        skip = self.config.get("skip", 1 if self.config.get("kind") in ("certify", "recertify") else None)
        try:
            apart = np.flatnonzero(idx != int(skip) * np.arange(len(idx))) if skip is not None else idx[:0]
        except (TypeError, ValueError, OverflowError) as error:
            raise StoreError(f"{self.folder / CONFIG}: {skip!r} is not a valid value of skip.") from error
        count = int(apart[0]) if len(apart) else len(idx)
        return {name: columns[name][:count] for name in names}, len(idx) - count

    def names(self) -> dict[int, str]:
        """The names of the inputs by their numbers; empty if they have none."""
        with storage(self.folder):
            if not self._db.execute("SELECT 1 FROM sqlite_master WHERE name = 'names'").fetchone():
                return {}
            return dict(self._db.execute("SELECT idx, name FROM names ORDER BY idx").fetchall())

    def region_radii(self) -> tuple[dict[int, float], float | None]:
        """R of each input's region, before Σ, by number, 0 for an abstention; and the norm in which regions are measured.

        Imported rows have none, nor have those of a router: its regions are cut by another Σ, that of the choice.
        """
        query = (
            "SELECT idx, json_extract(record, '$.region.radius'), json_extract(record, '$.region.norm') FROM records "
            "WHERE NOT EXISTS (SELECT 1 FROM records WHERE json_type(record, '$.choice') IS NOT NULL) ORDER BY idx"
        )
        rows = in_records(self._db, self.folder, query)
        try:
            norms = {float(norm) for _, _, norm in rows if norm is not None}
            radii = {int(idx): 0.0 if radius is None else float(radius) for idx, radius, _ in rows}
        except (TypeError, ValueError) as error:
            raise damaged(self.folder, error) from error
        return radii, norms.pop() if len(norms) == 1 else None

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes in their order; empty if they have numbers only."""
        return tuple(map(str, self.config.get("class_names", ())))

    def outcome(self, idx: int) -> Certificate | Abstention:
        """The full record of one input, as it was certified."""
        record = self.record(idx)
        if record is None:
            raise InvalidInput(f"input {idx} of {self.folder} has no evidence: it was imported.")
        outcome = from_dict(record, self.folder)
        if not isinstance(outcome, Certificate | Abstention):  # `add` stores nothing else
            raise damaged(self.folder, ValueError(f"input {idx} has a {record.get('kind')}"))
        return outcome

    def record(self, idx: int) -> dict[str, Any] | None:
        """The evidence of one input as plain JSON values; None for an imported row."""
        with storage(self.folder):
            query = "SELECT record FROM outcomes LEFT JOIN records USING (idx) WHERE idx = ?"
            found = self._db.execute(query, (int(idx),)).fetchone()
        if found is None:
            raise InvalidInput(f"{self.folder} has no result for input {idx}.")
        return None if found[0] is None else read_record(found[0], self.folder)

    def records(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Number and evidence of every input that has one, as plain JSON values."""
        with storage(self.folder):
            rows = self._db.execute("SELECT idx, record FROM records ORDER BY idx").fetchall()
        for idx, record in rows:
            yield int(idx), read_record(record, self.folder)

    def largest_alpha(self) -> float | None:
        """The largest α that a certificate, or a family of them, was made at; None without records."""
        one = "json_extract(record, '$.evidence.alpha') * coalesce(json_extract(record, '$.evidence.family'), 1)"
        ((found, without),) = in_records(self._db, self.folder, f"SELECT max({one}), sum({one} IS NULL) FROM records")
        if without:
            raise damaged(self.folder, ValueError("it states no α"))
        return None if found is None else float(found)

    def check_alpha(self) -> None:
        """Refuse a config whose α is none, or is smaller than that of the certificates: pages and tables show the config's."""
        stated = self.config.get("alpha")
        if stated is None:  # of an imported file that does not tell it
            return
        if type(stated) not in (int, float) or not stated > 0:
            raise StoreError(f"{self.folder / CONFIG}: {stated!r} is not a valid value of alpha.")
        found = self.largest_alpha()
        if found is not None and found > stated * (1 + 1e-9):
            raise StoreError(
                f"{self.folder / CONFIG} states α = {stated:g}, but its certificates were made at {found:g}: it was changed. "
                "Restore it from a copy, or certify into a new folder."
            )

    @property
    def name(self) -> str:
        """The run's name in tables: its config's name, else the folder's."""
        return str(self.config.get("name") or self.folder.resolve().name)

    @property
    def scope(self) -> str:
        """The scope of these results; "unknown" if not stated."""
        return self._known_claims().scope

    @property
    def norm(self) -> float | None:
        """The norm of the radii; None if unknown."""
        return self._known_claims().norm

    @property
    def budget(self) -> str | None:
        """The key of the budget, if the sizes are its factors; None for radii."""
        return self._known_claims().budget

    def _known_claims(self) -> Claims:
        """Scope, norm and budget, which all records share; without records, those of the config."""
        if self._claims is None:
            self._claims = claims_of_records(self._db, self.folder)
            if self._claims is not None:
                refuse_other_config(self.config, self._claims, self.folder)
        return Claims.of_config(self.config) if self._claims is None else self._claims

    def _insert(self, rows: Iterable[tuple[Any, ...]]) -> None:
        try:
            self._db.executemany(f"INSERT INTO outcomes VALUES ({', '.join('?' * len(COLUMNS))})", rows)
        except sqlite3.IntegrityError as error:
            raise InvalidInput(f"{self.folder} already has a result for such an input: {error}.") from error

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._check_writer()
        with transaction(self._db):
            yield
