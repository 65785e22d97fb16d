"""The answers of a prediction job: the rows of its table, and the journal of finished answers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from ucan.config import frozen, refuse_changes
from ucan.errors import StoreError
from ucan.runs.config import PredictConfig, changes
from ucan.runs.fields import from_table, to_table
from ucan.storage import Journal, storage, write_whole

KIND = "predict"
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
        """Parse a line of the table."""
        idx, label, predict, correct, seconds = line.split("\t")
        return cls(int(idx), int(label), int(predict), int(correct), float(seconds))


def table_of(answers: Iterable[Answer]) -> str:
    """Format the answers as a table."""
    return "\n".join(["\t".join(Answer._fields), *(answer.line() for answer in answers)]) + "\n"


class Answers:
    """Finished answers by index, stored in ``p.tsv.part`` until ``p.tsv`` is complete; without a table, in memory only.

    The ``.part`` file is a journal. Its first line is the config as JSON.
    """

    def __init__(self, table: Path | None) -> None:
        self.table = table
        self.about: PredictConfig | None = None
        self.done: dict[int, Answer] = {}
        self._started = False  # whether this process has written or read the first line
        self._journal = None if table is None else Journal(table.with_name(f"{table.name}.part"))
        if self._journal is not None and self._journal.path.exists():
            self._read(self._journal)

    def begin(self, config: PredictConfig) -> None:
        """Set the config. Answers of an earlier call must have the same config in every setting."""
        wanted = from_table(PredictConfig, frozen(to_table(config)), "the config")
        if self.about is not None and self._journal is not None:
            refuse_changes(self._journal.path, changes(self.about, wanted))
        self.about = wanted

    def add(self, answer: Answer) -> None:
        """Store one more answer."""
        if self._journal is not None:
            with storage(self._journal.path):
                if not self._started:  # written with the first answer, since without answers there is nothing to resume
                    self._start(self._journal)
                self._journal.append(answer.line())
        self.done[answer.idx] = answer

    def finish(self, indices: Sequence[int]) -> None:
        """Write the complete table and delete the journal."""
        assert self.table is not None and self._journal is not None
        with storage(self.table):
            write_whole(self.table, table_of(self.done[i] for i in indices).encode())
            self._journal.path.unlink(missing_ok=True)

    def _start(self, journal: Journal) -> None:
        try:
            journal.begin(json.dumps(to_table(self.about)))
            self._started = True
        except FileExistsError as error:  # answers under two configs must never share a file
            raise StoreError(
                f"{journal.path} is being written by another process: wait for it, or give another file."
            ) from error

    def _read(self, journal: Journal) -> None:
        with storage(journal.path):
            try:
                lines = journal.lines()
                if not lines:  # killed before its first line was complete
                    if not START.startswith(journal.path.read_bytes()[: len(START)]):
                        raise ValueError("no line")
                    journal.path.unlink()
                    return
                about = json.loads(lines[0])
                if about["kind"] != KIND:
                    raise ValueError("another kind")
                self.done = {answer.idx: answer for answer in map(Answer.of, lines[1:])}
            except (ValueError, TypeError, KeyError) as error:
                raise StoreError(
                    f"{journal.path} is damaged, or is not a journal of `ucan predict`; nothing was changed. Remove it "
                    f"to start again, or give another file."
                ) from error
        self.about, self._started = from_table(PredictConfig, about, str(journal.path)), True
