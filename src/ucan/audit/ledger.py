"""The files of an audit: one line per finished attempt, and every break with everything needed to replay it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save

from ucan.audit.answers import Try
from ucan.audit.trials import Attempt
from ucan.config import differences, frozen, settle
from ucan.errors import InvalidInput, StoreError
from ucan.json_text import parse_json
from ucan.storage import Journal, storage, write_whole

ATTEMPTS, BREAKS = "attempts.jsonl", "breaks"
Key = tuple[int, float, str, str]  # what an attempt is about: the input, the factor, the mode, the part


class Ledger:
    """The folder of one audit: ``config.toml`` (how it attacks), ``attempts.jsonl``, ``breaks/``.

    An attempt is one line of a journal. An attempt with an incomplete line, after a crash, is repeated. An audit in this folder
    is resumed if ``compare`` (its config, the requested one) finds no difference.
    """

    def __init__(
        self,
        folder: str | Path,
        config: dict[str, Any],
        compare: Callable[[dict[str, Any], dict[str, Any]], list[str]] = differences,
    ) -> None:
        self.folder = Path(folder)
        with storage(self.folder):
            (self.folder / BREAKS).mkdir(parents=True, exist_ok=True)
            settle(self.folder, frozen(config), compare)
        self._journal = Journal(self.folder / ATTEMPTS)
        self._records = read_records(self._journal)

    def __len__(self) -> int:
        return len(self._records)

    def get(self, idx: int, factor: float, mode: str, part: str = "") -> dict[str, Any] | None:
        """The attempt, if it is finished; ``part`` is what was attacked of a router's certificate."""
        return self._records.get((idx, factor, mode, part))

    def add(self, record: dict[str, Any]) -> None:
        """Append one attempt; it is on disk when this returns."""
        with storage(self.folder):
            self._journal.append(json.dumps(record, allow_nan=False))
        self._records[_key(record)] = record

    def keep(self, record: dict[str, Any], x: torch.Tensor, delta: torch.Tensor) -> Path:
        """Write a break atomically: the input, δ in float64, and the attempt's record."""
        path = self.path_of(record)
        tensors = {"x": x.detach().cpu().contiguous().clone(), "delta": delta.detach().cpu().contiguous().clone()}
        with storage(self.folder):
            write_whole(path, save(tensors, metadata={"attempt": json.dumps(record, allow_nan=False)}))
        return path

    def path_of(self, record: dict[str, Any]) -> Path:
        """Where a break lies."""
        return break_path(self.folder, record)


def _key(record: dict[str, Any]) -> Key:
    return record["idx"], record["factor"], record["mode"], record.get("part", "")


def read_records(journal: Journal) -> dict[Key, dict[str, Any]]:
    """The records of a journal; the last one of an attempt counts. A line that holds none is an error."""
    records = {}
    try:
        lines = journal.lines()
    except UnicodeDecodeError as error:
        raise StoreError(f"{journal.path} is damaged: {error}. Remove it to start the audit again.") from error
    for number, line in enumerate(lines, 1):
        try:
            record = _parsed(line)
            records[_key(record)] = record
        except (ValueError, TypeError) as error:
            raise StoreError(
                f"{journal.path} is damaged: line {number} is not the record of an attempt ({error}). Remove this line to "
                "make its attempt again, or the file to start the audit again."
            ) from error
    return records


def _parsed(line: str) -> dict[str, Any]:
    """The record of an attempt on a certificate, or on the answer to a question; ValueError for anything else."""
    record = parse_json(line)
    if not isinstance(record, dict):
        raise ValueError("it holds no record")
    try:
        return (Try(**record) if "task" in record else Attempt.of(record)).to_dict()
    except (TypeError, AttributeError) as error:  # other names, or a number where there should be text
        raise ValueError("its entries are not those of one") from error


def break_path(folder: Path, record: dict[str, Any]) -> Path:
    """The path of a break in an audit's folder; an inherited break is stored under the smaller factor."""
    factor = record["factor"] if record.get("same_as") is None else record["same_as"]
    part = f"-{record['part']}" if record.get("part") else ""
    return folder / BREAKS / f"{record['idx']}-{record['mode']}-{factor:g}{part}.safetensors"


def load_break(path: str | Path) -> tuple[dict[str, Any], torch.Tensor, torch.Tensor]:
    """Read (attempt, x, δ) of a stored break."""
    try:
        with safe_open(str(path), framework="pt") as file:
            return json.loads(file.metadata()["attempt"]), file.get_tensor("x"), file.get_tensor("delta")
    except Exception as error:  # safetensors raises its own, OSError and KeyError
        raise InvalidInput(f"{path} is not a break stored by `ucan audit`: {error}.") from error
