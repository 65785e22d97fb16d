"""The answers of a prediction job: the rows of its table, its config beside it, and the journal of finished answers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from ucan.config import frozen, handed_out, refuse_changes
from ucan.errors import InvalidInput, StoreError
from ucan.results.formats import class_name
from ucan.runs.config import PredictConfig, changes, respelled
from ucan.runs.fields import from_table, to_table
from ucan.storage import Journal, storage, whole

KIND = "predict"
# A name must not end a field or a line of the table.
ESCAPED = str.maketrans({"\t": "\\t", "\n": "\\n", "\r": "\\r"})
START = f'{{"kind": "{KIND}", '.encode()


class Answer(NamedTuple):
    """One row of the table; the answer −1 is an abstention, the label −1 unknown."""

    idx: int
    label: int
    predict: int
    correct: int
    time: float

    def line(self) -> str:
        """The row as a line of the table."""
        return "\t".join([*map(str, self[:4]), f"{self.time:.3f}"])

    @classmethod
    def of(cls, line: str) -> Answer:
        """Parse a line of the table; names after the numbers are left out."""
        idx, label, predict, correct, seconds = line.split("\t")[: len(cls._fields)]
        return cls(int(idx), int(label), int(predict), int(correct), float(seconds))


@dataclass(frozen=True)
class Named:
    """The names of the inputs, by number, and of the classes, in order; empty if they have numbers only."""

    inputs: Sequence[str] = ()
    classes: Sequence[str] = ()

    def header(self) -> list[str]:
        """The names of the columns."""
        inputs, classes = ["name"] if self.inputs else [], ["label_name", "predict_name"] if self.classes else []
        return [*Answer._fields, *inputs, *classes]

    def line(self, answer: Answer) -> str:
        """The row with its names; its own tabs and line ends are escaped."""
        inputs = [self.inputs[answer.idx]] if self.inputs else []
        classes = (
            [class_name(number, self.classes) for number in (answer.label, answer.predict)] if self.classes else []
        )
        return "\t".join([answer.line(), *(text.translate(ESCAPED) for text in (*inputs, *classes))])

    def table(self, answers: Sequence[Answer]) -> str:
        """The answers as a table."""
        return "\n".join(["\t".join(self.header()), *map(self.line, answers)]) + "\n"


class Answers:
    """Finished answers by index, stored in ``p.tsv.part`` until ``p.tsv`` is complete; without a table, in memory only.

    The ``.part`` file is a journal. Its first line is the config as JSON. Next to the complete table, ``p.tsv.json`` is the
    config, so that a later call can add more inputs.
    """

    def __init__(self, table: Path | None) -> None:
        self.table = table
        self.done: dict[int, Answer] = {}
        self._known: dict[Path, PredictConfig] = {}  # the config that each existing file states
        self._config: PredictConfig | None = None
        self._started = False  # whether this process has written or read the first line
        self._journal = None if table is None else Journal(table.with_name(f"{table.name}.part"))
        if table is not None and table.exists():
            self._read_table(table)
        if self._journal is not None and self._journal.path.exists():
            self._read(self._journal)

    @property
    def about(self) -> PredictConfig | None:
        """The config of the answers that are there; None if there are none."""
        return next(reversed(self._known.values()), None)

    def begin(self, config: PredictConfig) -> None:
        """Set the config. Answers of an earlier call must have the same config in every setting but the number of inputs."""
        wanted = from_table(PredictConfig, frozen(to_table(config)), "the config")
        for path, about in self._known.items():
            if (
                about.seed_source == "random" and about.seed is None
            ):  # it was kept secret, and each input has its own noise
                about = replace(about, seed=wanted.seed)
            refuse_changes(path, changes(about, respelled(about, wanted, path.parent)))
        self._config = wanted

    def add(self, answer: Answer) -> None:
        """Store one more answer."""
        if self._journal is not None:
            with storage(self._journal.path):
                if not self._started:  # written with the first answer, since without answers there is nothing to resume
                    self._start(self._journal)
                self._journal.append(answer.line())
        self.done[answer.idx] = answer

    def finish(self, named: Named) -> None:
        """Write the table of all answers with its config, and delete the journal; unless the table is complete already."""
        assert self.table is not None and self._journal is not None
        sidecar = _sidecar(self.table)
        if self.table in self._known and not self._started:
            return
        with storage(self.table):
            # The config first, so that a table never exists without it.
            with whole(sidecar, self.table) as (about, table):
                about.write_text(json.dumps(handed_out(to_table(self._config)), indent=1, ensure_ascii=False), "utf-8")
                table.write_text(named.table([self.done[i] for i in sorted(self.done)]), "utf-8")
            self._journal.path.unlink(missing_ok=True)

    def _start(self, journal: Journal) -> None:
        try:
            journal.begin(json.dumps(to_table(self._config)))
            self._started = True
        except FileExistsError as error:  # answers under two configs must never share a file
            raise StoreError(
                f"{journal.path} is being written by another process: wait for it, or give another file."
            ) from error

    def _read_table(self, table: Path) -> None:
        """The answers of a finished table, if its config is there."""
        sidecar = _sidecar(table)
        if not sidecar.is_file():
            raise InvalidInput(f"{table} already exists: give another file, or remove it first.")
        with storage(table), _undamaged(table):
            about = _config(json.loads(sidecar.read_text("utf-8")), sidecar)
            header, *lines = table.read_text("utf-8").removesuffix("\n").split("\n")  # a name may hold other line ends
            if header.split("\t")[: len(Answer._fields)] != list(Answer._fields):
                raise ValueError("another table")
            self.done |= {answer.idx: answer for answer in map(Answer.of, lines)}
        self._known[table] = about

    def _read(self, journal: Journal) -> None:
        with storage(journal.path), _undamaged(journal.path):
            lines = journal.lines()
            if not lines:  # killed before its first line was complete
                if not START.startswith(journal.path.read_bytes()[: len(START)]):
                    raise ValueError("no line")
                journal.path.unlink()
                return
            about = _config(json.loads(lines[0]), journal.path)
            self.done |= {answer.idx: answer for answer in map(Answer.of, lines[1:])}
        self._known[journal.path], self._started = about, True


def _sidecar(table: Path) -> Path:
    return table.with_name(f"{table.name}.json")


def _config(about: dict[str, Any], path: Path) -> PredictConfig:
    if about["kind"] != KIND:
        raise ValueError("another kind")
    return from_table(PredictConfig, about, str(path))


@contextmanager
def _undamaged(path: Path) -> Iterator[None]:
    """Turn what cannot be read as answers into an error that says what to do."""
    try:
        yield
    except (ValueError, TypeError, KeyError) as error:
        raise StoreError(
            f"{path} is damaged, or is not a file of `ucan predict`; nothing was changed. Remove it to start again, or "
            f"give another file."
        ) from error
