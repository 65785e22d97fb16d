"""The run folder of a question: the frozen config, and one SQLite row per answer with its full record."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ucan.certificate import Abstention
from ucan.config import CONFIG, differences, read_config
from ucan.errors import InvalidInput, StoreError
from ucan.json_text import parse_json
from ucan.questions.record import Answer
from ucan.questions.records import from_dict
from ucan.results.claims import Claims
from ucan.results.database import ANSWERS
from ucan.results.folder import Results, begin
from ucan.storage import storage, transaction


class AnswerStore(Results):
    """The answers of one run. Make one with ``create`` (the only writer) or ``open`` (read-only)."""

    @classmethod
    def create(
        cls,
        folder: str | Path,
        config: dict[str, Any],
        compare: Callable[[dict[str, Any], dict[str, Any]], list[str]] = differences,
    ) -> AnswerStore:
        """Start a run, or go on with the one in this folder, if its config is the same; see ``folder.begin``."""
        return cls(Path(folder), *begin(Path(folder), config, ANSWERS, compare))

    @classmethod
    def open(cls, folder: str | Path) -> AnswerStore:
        """An existing run, read-only; also while another process writes it."""
        folder = Path(folder)
        if not (folder / ANSWERS.file).is_file():
            raise StoreError(f"{folder} holds no answers: give the folder of a `ucan ask` run.")
        return cls._reading(folder, read_config(folder / CONFIG), ANSWERS)

    def add(self, idx: int, answer: Answer | Abstention, seconds: float) -> None:
        """Store one answer with its record, in one transaction."""
        self._check_writer()
        with storage(self.folder):
            record = json.dumps(answer.to_dict(self.folder), ensure_ascii=False, allow_nan=False)
            with transaction(self._db):
                self._db.execute("INSERT INTO answers VALUES (?, ?, ?)", (int(idx), float(seconds), record))

    def done(self) -> set[int]:
        """The inputs that have an answer."""
        with storage(self.folder):
            return {row[0] for row in self._db.execute("SELECT idx FROM answers")}

    def __len__(self) -> int:
        with storage(self.folder):
            return int(self._db.execute("SELECT count(*) FROM answers").fetchone()[0])

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
            answer = from_dict(parse_json(found[0]), self.folder)
        except (TypeError, ValueError) as error:
            raise StoreError(f"the answer to input {idx} of {self.folder} cannot be read ({error}).") from error
        assert isinstance(answer, Answer | Abstention), "add stores nothing else"
        stated = Claims.of_config(self.config).scope
        if stated not in ("unknown", answer.scope):
            raise StoreError(
                f"{self.folder} states scope {stated}, and its answer to input {idx} has scope {answer.scope}: one of them was "
                "changed. Ask again, into a new folder."
            )
        return answer
