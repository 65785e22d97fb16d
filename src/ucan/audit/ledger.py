"""What an audit leaves on disk: one line per finished attempt, and every break with all that replays it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save

from ucan.config import differences, frozen, read_config, write_config, write_whole
from ucan.errors import InvalidInput, StoreError

CONFIG, ATTEMPTS, BREAKS = "config.toml", "attempts.jsonl", "breaks"


class Ledger:
    """The folder of one audit: ``config.toml`` (how it attacks), ``attempts.jsonl``, ``breaks/``.

    An attempt is one line, appended in one write and flushed to the disk. A line that a crash cut short is dropped on
    opening, and its attempt is made again.
    """

    def __init__(self, folder: str | Path, config: dict[str, Any]) -> None:
        self.folder = Path(folder)
        wanted = frozen(config)
        with _writing(self.folder):
            (self.folder / BREAKS).mkdir(parents=True, exist_ok=True)
        if (self.folder / CONFIG).exists():
            changed = differences(read_config(self.folder / CONFIG), wanted)
            if changed:
                raise InvalidInput(
                    f"{self.folder} holds an audit with other settings ({'; '.join(changed)}): name another folder "
                    "with --out, or remove this one."
                )
        else:
            with _writing(self.folder):
                write_config(self.folder / CONFIG, wanted)
        self._records = {(r["idx"], r["factor"], r["mode"]): r for r in self._read()}

    def __len__(self) -> int:
        return len(self._records)

    def get(self, idx: int, factor: float, mode: str) -> dict[str, Any] | None:
        """The attempt, if it is finished."""
        return self._records.get((idx, factor, mode))

    def add(self, record: dict[str, Any]) -> None:
        """Append one attempt: afterwards it is on the disk."""
        line = (json.dumps(record, allow_nan=False) + "\n").encode()
        with _writing(self.folder), open(self.folder / ATTEMPTS, "ab", buffering=0) as file:
            if file.write(line) != len(line):
                raise OSError("the disk is full")
            os.fsync(file.fileno())
        self._records[record["idx"], record["factor"], record["mode"]] = record

    def keep(self, record: dict[str, Any], x: torch.Tensor, delta: torch.Tensor) -> Path:
        """Write a break, whole or not at all: the input, δ in float64, and the attempt's record."""
        path = self.path_of(record)
        tensors = {"x": x.detach().cpu().contiguous().clone(), "delta": delta.detach().cpu().contiguous().clone()}
        with _writing(self.folder):
            write_whole(path, save(tensors, metadata={"attempt": json.dumps(record, allow_nan=False)}))
        return path

    def path_of(self, record: dict[str, Any]) -> Path:
        """Where a break lies."""
        return break_path(self.folder, record)

    def _read(self) -> list[dict[str, Any]]:
        path = self.folder / ATTEMPTS
        if not path.exists():
            return []
        data = path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            os.truncate(path, len(whole))
        try:
            return [json.loads(line) for line in whole.splitlines()]
        except ValueError as error:
            raise StoreError(f"{path} is damaged: {error}. Remove it to begin the audit anew.") from error


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """What the system says when it refuses to write, in words."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"{folder} cannot be written: {error}. Name another folder with --out.") from error


def break_path(folder: Path, record: dict[str, Any]) -> Path:
    """Where the audit in a folder keeps a break; one inherited from a smaller factor lies under that."""
    factor = record["factor"] if record.get("same_as") is None else record["same_as"]
    return folder / BREAKS / f"{record['idx']}-{record['mode']}-{factor:g}.safetensors"


def load_break(path: str | Path) -> tuple[dict[str, Any], torch.Tensor, torch.Tensor]:
    """(attempt, x, δ) of a break that a ledger kept."""
    try:
        with safe_open(str(path), framework="pt") as file:
            return json.loads(file.metadata()["attempt"]), file.get_tensor("x"), file.get_tensor("delta")
    except Exception as error:  # safetensors raises its own, OSError and KeyError
        raise InvalidInput(f"{path} is no break that `ucan audit` kept: {error}.") from error
