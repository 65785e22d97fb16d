"""The answers of a prediction: the rows of its table, and those that are finished while it is not."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, NamedTuple, Self

from ucan.config import frozen, write_whole
from ucan.errors import InvalidInput, StoreError
from ucan.runs.config import PredictConfig, changes
from ucan.runs.fields import from_table, to_table
from ucan.storage import storage

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
        """The row as the table has it."""
        return "\t".join([*map(str, self[:4]), f"{self.time:.3f}"])

    @classmethod
    def of(cls, line: str) -> Answer:
        """The row that a line of the table holds."""
        idx, label, predict, correct, seconds = line.split("\t")
        return cls(int(idx), int(label), int(predict), int(correct), float(seconds))


def table_of(answers: Iterable[Answer]) -> str:
    """The table of these answers."""
    return "\n".join(["\t".join(Answer._fields), *(answer.line() for answer in answers)]) + "\n"


class Answers:
    """Finished answers by index, kept in ``p.tsv.part`` until ``p.tsv`` is whole; in memory alone without a table.

    The part's first line is JSON and says what its answers are about. Each answer is one write to the system: killing the
    process loses at most the one in progress, whose line, if it was cut short, is dropped. A power cut can lose more.
    """

    def __init__(self, table: Path | None) -> None:
        self.table = table
        self.part = None if table is None else table.with_name(f"{table.name}.part")
        self.about: PredictConfig | None = None
        self.done: dict[int, Answer] = {}
        self._file: IO[bytes] | None = None
        self._torn = 0  # where a line begins that was cut short
        if self.part is not None and self.part.exists():
            self._read(self.part)

    def begin(self, config: PredictConfig) -> None:
        """Say what the answers are about; those of an earlier call must be about the same, to the last setting."""
        wanted, resumed = from_table(PredictConfig, frozen(to_table(config)), "the config"), self.about is not None
        changed = changes(self.about, wanted) if resumed else []
        if changed:
            raise InvalidInput(
                f"{self.part} holds a run with another config:\n  "
                + "\n  ".join(changed)
                + "\nGive the same settings to resume it, or a new file to start another (or remove this one)."
            )
        self.about = wanted
        if self.part is not None and resumed:
            with storage(self.part):
                self._file = open(self.part, "ab", buffering=0)  # noqa: SIM115 — as long as the work goes on
                if self._torn:
                    self._file.truncate(self._torn)

    def add(self, answer: Answer) -> None:
        """Keep one more answer."""
        if self.part is not None:
            with storage(self.part):
                if self._file is None:  # with the first answer: before it there is nothing to go on from
                    self._open_new(self.part)
                self._append(answer.line())
        self.done[answer.idx] = answer

    def finish(self, indices: Sequence[int]) -> None:
        """Write the table whole; what was kept beside it is needed no more."""
        assert self.table is not None and self.part is not None
        with storage(self.table):
            write_whole(self.table, table_of(self.done[i] for i in indices).encode())
            self.part.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def _open_new(self, part: Path) -> None:
        try:
            self._file = open(part, "xb", buffering=0)  # noqa: SIM115 — as long as the work goes on
        except FileExistsError as error:  # answers under two settings must never share a file
            raise StoreError(
                f"{part} is being written by another process: wait for it, or name another file."
            ) from error
        self._append(json.dumps(to_table(self.about)))

    def _append(self, line: str) -> None:
        data = f"{line}\n".encode()
        if self._file is not None and self._file.write(data) != len(data):
            raise OSError(errno.ENOSPC, "disk is full")

    def _read(self, part: Path) -> None:
        with storage(part):
            data = part.read_bytes()
            whole = data.rfind(b"\n") + 1
            if not whole and (data.startswith(START) or START.startswith(data)):
                part.unlink()  # killed before its first line was whole
                return
        self._torn = whole if whole < len(data) else 0
        try:
            first, *lines = data[:whole].decode().removesuffix("\n").split("\n")
            about = json.loads(first)
            if about["kind"] != KIND:
                raise ValueError("another kind")
            self.done = {answer.idx: answer for answer in map(Answer.of, lines)}
        except (ValueError, TypeError, KeyError) as error:
            raise StoreError(
                f"{part} is damaged, or is not what `ucan predict` keeps while it works; nothing was changed. Remove it to "
                "begin anew, or name another file."
            ) from error
        self.about = from_table(PredictConfig, about, str(part))
