"""Read a tab-separated table: fields by header name, and errors that name the line."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ucan.errors import InvalidInput

_DURATION = re.compile(r"(?:(\d+) days?, )?(\d+):(\d\d):(\d\d(?:\.\d+)?)")
SHOWN = 40  # characters of a field that an error shows


@dataclass(frozen=True)
class Table:
    """A file's header and its rows as text, each with its line number."""

    path: Path
    header: tuple[str, ...]
    rows: tuple[tuple[int, list[str]], ...]

    def floats(self, name: str) -> np.ndarray:
        """A column of finite numbers."""
        return np.array(self._parsed(name, _finite, "a finite number"), dtype=np.float64)

    def integers(self, name: str) -> np.ndarray:
        """A column of whole numbers that 64 bits hold; 3.0 is one."""
        return np.array(self._parsed(name, _whole_number, "a whole number from -2^63 to 2^63 - 1"), dtype=np.int64)

    def flags(self, name: str) -> np.ndarray:
        """A column of 0 and 1, or of True and False."""
        return np.array(self._parsed(name, _flag, "0 or 1"), dtype=np.bool_)

    def seconds(self, name: str) -> np.ndarray:
        """A column of durations: plain seconds, or Python's "0:00:01.5"."""
        return np.array(self._parsed(name, _seconds, "a duration"), dtype=np.float64)

    def texts(self, name: str) -> list[str]:
        """A column as text."""
        return self._parsed(name, str, "text")

    def _parsed(self, name: str, parse: Callable[[str], Any], kind: str) -> list[Any]:
        column = self.header.index(name)
        values = []
        for line, row in self.rows:
            try:
                values.append(parse(row[column]))
            except (ValueError, OverflowError) as error:
                shown = repr(row[column] if len(row[column]) <= SHOWN else f"{row[column][:SHOWN]}…")
                raise InvalidInput(
                    f"{self.path}, line {line}: {name} is {shown}, not {kind}: correct the file."
                ) from error
        return values


def read_table(path: Path) -> Table:
    """Read a tab-separated file; spaces around a field belong to the separator."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} cannot be read as a tab-separated table: {error}.") from error
    header = tuple(name.strip() for name in lines[0].split("\t")) if lines else ()
    if len(header) < 2:
        raise InvalidInput(
            f"{path} is not a tab-separated table with a header such as idx, label, predict, radius, correct, time. "
            "To import UCAN's own results, export a TSV first: `ucan export RUN -o NAME.tsv`."
        )
    if len(set(header)) < len(header):
        raise InvalidInput(f"{path} has a repeated column name: {', '.join(header)}.")
    rows = [(n, [f.strip() for f in line.split("\t")]) for n, line in enumerate(lines[1:], 2) if line.strip()]
    for number, row in rows:
        if len(row) != len(header):
            raise InvalidInput(
                f"{path}, line {number} has {len(row)} fields, but the header has {len(header)}; the file may be cut off. "
                f"Remove that line to import the other rows."
            )
    if not rows:
        raise InvalidInput(f"{path} has a header but no rows.")
    return Table(path, header, tuple(rows))


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


def _whole_number(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        value = _finite(text)
        number = int(value)
        if value != number:
            raise
    if not -(2**63) <= number < 2**63:
        raise ValueError(text)
    return number


def _flag(text: str) -> bool:
    named = {"True": True, "False": False}
    value = named[text] if text in named else _finite(text)
    if value not in (0, 1):
        raise ValueError(text)
    return bool(value)


def _seconds(text: str) -> float:
    match = _DURATION.fullmatch(text)
    if match is None:
        return float(text)
    days, hours, minutes, seconds = match.groups()
    return 86400 * int(days or 0) + 3600 * int(hours) + 60 * int(minutes) + float(seconds)
