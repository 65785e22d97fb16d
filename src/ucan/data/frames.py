"""Read tables: CSV, Parquet, pandas and Polars frames, arrays; each column holds numbers or texts, without missing values."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ucan.data.shards import shards_in
from ucan.errors import InvalidInput, MissingExtra

SUFFIXES = (".csv", ".tsv", ".parquet", ".pq")
MISSING = frozenset({"", "na", "n/a", "nan", "null", "?"})  # in any case; and None, as Python writes it
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
CODE = re.compile(r"0\d+")  # 00123 is a code: as a number it would lose its zeros
# A column with at least this share of numbers should hold numbers.
MEANT = 0.8
# Numbers with more decimals than this are computed, and have no step.
MOST_DECIMALS = 9


@dataclass(frozen=True, eq=False)
class RawColumn:
    """One column: ``numbers`` in float64, or ``texts``. ``decimals``: all numbers have at most so many; None if more than 9.

    ``whole``: its type is that of whole numbers. ``truth``: its type is that of true and false, kept as 1 and 0. ``cells``:
    what a file says where it was read as numbers.
    """

    name: str
    numbers: np.ndarray | None = None
    texts: tuple[str, ...] | None = None
    decimals: int | None = None
    whole: bool = False
    truth: bool = False
    cells: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.numbers if self.numbers is not None else self.texts or ())

    def taken(self, indices: Sequence[int]) -> RawColumn:
        """The same column at these rows."""
        numbers = None if self.numbers is None else self.numbers[np.asarray(indices, dtype=np.int64)]
        texts, cells = (None if some is None else tuple(some[i] for i in indices) for some in (self.texts, self.cells))
        return RawColumn(self.name, numbers, texts, self.decimals, self.whole, self.truth, cells)


@dataclass(frozen=True, eq=False)
class Frame:
    """A table's columns, all of one length, in order."""

    name: str
    columns: tuple[RawColumn, ...]

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise InvalidInput(f"{self.name} has two columns named {twice!r}: rename one.")
        if not self.columns or not len(self.columns[0]):
            raise InvalidInput(f"{self.name} has no rows.")
        other = next((column for column in self.columns if len(column) != len(self.columns[0])), None)
        if other is not None:
            raise InvalidInput(
                f"{self.name}: column {other.name!r} has {len(other)} rows, and {self.columns[0].name!r} has "
                f"{len(self.columns[0])}: give every column a value in every row."
            )

    def __len__(self) -> int:
        return len(self.columns[0])

    @property
    def names(self) -> tuple[str, ...]:
        """The columns' names."""
        return tuple(column.name for column in self.columns)

    def column(self, name: str, option: str) -> RawColumn:
        """The column of that name; ``option`` is named in the error."""
        found = next((column for column in self.columns if column.name == name), None)
        if found is None:
            raise InvalidInput(f"{option}: {self.name} has no column {name!r}; it has {', '.join(self.names)}.")
        return found


def is_table(source: Any) -> bool:
    """Whether an object is a table: a file with a table's suffix (without pictures), a frame, or a mapping of columns."""
    if isinstance(source, str | Path):
        return Path(source).suffix.lower() in SUFFIXES and not shards_in(Path(source))
    kind = type(source).__module__.partition(".")[0]
    frame = kind in ("pandas", "polars") and hasattr(source, "columns")
    return frame or isinstance(source, Frame | Mapping) or (kind == "pyarrow" and hasattr(source, "column_names"))


def read_frame(source: Any, name: str | None = None) -> Frame:
    """A table from a path (.csv, .tsv, .parquet), a pandas or Polars frame, a mapping of columns, or an array (N, d)."""
    if isinstance(source, Frame):
        return source
    if isinstance(source, str | Path):
        return _read_file(Path(source))
    kind = type(source).__module__.partition(".")[0]
    title = name or "the table"
    if kind == "pandas" and hasattr(source, "columns"):
        return _of_pandas(source, title)
    if kind == "polars":
        source = source.collect() if hasattr(source, "collect") else source
        return Frame(title, tuple(_of_values(c, source[c].to_list(), title) for c in source.columns))
    if kind == "pyarrow":
        return Frame(title, tuple(_of_values(c, source.column(c).to_pylist(), title) for c in source.column_names))
    if isinstance(source, Mapping):
        return Frame(title, tuple(_of_values(str(c), list(v), title) for c, v in source.items()))
    array = np.asarray(source)
    if array.ndim != 2 or array.dtype.kind not in "biuf":
        raise InvalidInput(f"a table is a file, a frame, or an array of numbers (N, d); got {type(source).__name__}.")
    return Frame(title, tuple(_of_array(f"column {i}", array[:, i], title) for i in range(array.shape[1])))


# --- files ---


def _read_file(path: Path) -> Frame:
    if not path.is_file():
        raise InvalidInput(f"there is no table {path}: check the path.")
    readers: dict[str, Callable[[Path], Frame]] = {".parquet": _read_parquet, ".pq": _read_parquet}
    if path.suffix.lower() not in SUFFIXES:
        raise InvalidInput(f"{path} is not a table: give one of {', '.join(SUFFIXES)}.")
    return readers.get(path.suffix.lower(), _read_csv)(path)


def _read_csv(path: Path) -> Frame:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            file.seek(0)
            rows = [row for row in csv.reader(file, delimiter=_delimiter(first)) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidInput(f"{path} cannot be read as a CSV in UTF-8: {error}.") from error
    if len(rows) < 2:
        raise InvalidInput(f"{path} needs a line of column names and at least one row.")
    header = [cell.strip() for cell in rows[0]]
    if "" in header:
        raise InvalidInput(f"{path}: column {header.index('') + 1} has no name in the first line.")
    if all(NUMBER.fullmatch(cell) for cell in header):
        raise InvalidInput(f"{path}: the first line holds numbers instead of column names: add a line of names.")
    wrong = next((i for i, row in enumerate(rows) if len(row) != len(header)), None)
    if wrong is not None:
        raise InvalidInput(
            f"{path}: row {wrong - 1} (from 0) has {len(rows[wrong])} cells, but there are {len(header)} columns."
        )
    cells = [[cell.strip() for cell in column] for column in zip(*rows[1:], strict=True)]
    return Frame(path.name, tuple(_of_texts(n, c, path.name) for n, c in zip(header, cells, strict=True)))


def _delimiter(line: str) -> str:
    return max((",", ";", "\t"), key=line.count)


def _read_parquet(path: Path) -> Frame:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtra(f"{path} needs pyarrow: pip install 'ucan[results]'.") from error
    try:
        table = pyarrow.parquet.read_table(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise InvalidInput(f"{path} cannot be read as Parquet: {error}.") from error
    return Frame(path.name, tuple(_of_values(c, table.column(c).to_pylist(), path.name) for c in table.column_names))


# --- columns ---


def _of_pandas(frame: Any, title: str) -> Frame:
    made = []
    for name in frame.columns:
        values = frame[name]
        if getattr(values, "ndim", 1) != 1:
            raise InvalidInput(f"{title} has two columns named {name!r}: rename one.")
        plain = values.dtype.kind in "biuf" and type(values.dtype).__module__.startswith("numpy")
        made.append(
            _of_array(str(name), values.to_numpy(), title) if plain else _of_values(str(name), values.tolist(), title)
        )
    return Frame(title, tuple(made))


def typed_like(frame: Frame, train: Frame | None) -> Frame:
    """The columns of a frame as the training table has them: a few codes may look like numbers, and are texts there."""
    return (
        frame if train is None else Frame(frame.name, tuple(_typed(frame, column, train) for column in frame.columns))
    )


def _typed(frame: Frame, column: RawColumn, train: Frame) -> RawColumn:
    there = train.column(column.name, "train")
    if (column.texts is None) == (there.texts is None):
        return column
    if there.texts is not None and column.cells is not None:
        return RawColumn(column.name, texts=column.cells)
    here, other = ("numbers", "texts") if column.texts is None else ("texts", "numbers")
    raise InvalidInput(
        f"column {column.name!r} holds {here} in {frame.name} and {other} in {train.name}: give both in the same way."
    )


def _of_array(name: str, values: np.ndarray, title: str) -> RawColumn:
    """A column from numbers; a NaN is a missing value."""
    numbers = values.astype(np.float64)
    bad = np.flatnonzero(~np.isfinite(numbers))
    if len(bad):
        raise _missing(title, name, int(bad[0]), len(bad), numbers[bad[0]])
    kind = values.dtype.kind
    if kind in "iu" and len(numbers) and np.abs(numbers).max() > 2**53:
        raise _too_large(title, name)
    decimals = 0 if kind in "biu" else _most_decimals(repr(v) for v in numbers.tolist())
    return RawColumn(name, numbers, None, decimals, kind in "iu", kind == "b")


def _of_values(name: str, values: list[Any], title: str) -> RawColumn:
    """A column from Python values: numbers, truth values or texts, and nothing missing."""
    bad = [i for i, value in enumerate(values) if _is_missing(value)]
    if bad:
        raise _missing(title, name, bad[0], len(bad), values[bad[0]])
    kinds = {type(value) for value in values}
    if kinds <= {bool, np.bool_}:
        return _of_array(name, np.array(values, dtype=bool), title)
    if all(issubclass(kind, int | np.integer) and kind is not bool for kind in kinds):
        if any(abs(int(value)) > 2**53 for value in values):
            raise _too_large(title, name)
        return _of_array(name, np.array(values, dtype=np.int64), title)
    if all(issubclass(kind, int | float | np.number) and kind is not bool for kind in kinds):
        return _of_array(name, np.array(values, dtype=np.float64), title)
    if all(kind.__name__ == "Decimal" for kind in kinds):
        column = _of_array(name, np.array([float(value) for value in values]), title)
        return RawColumn(name, column.numbers, None, _most_decimals(str(value) for value in values))
    if all(issubclass(kind, str) for kind in kinds):
        return RawColumn(name, texts=tuple(values))
    if any(hasattr(value, "isoformat") for value in values[:1]):
        raise InvalidInput(
            f"{title}: column {name!r} holds dates: give it as a number (days since …), or leave it out."
        )
    shown = ", ".join(sorted(kind.__name__ for kind in kinds))
    raise InvalidInput(f"{title}: column {name!r} holds {shown}: give it numbers, or texts.")


def _of_texts(name: str, cells: list[str], title: str) -> RawColumn:
    """A column of a CSV: numbers if every cell is one, texts if few are."""
    bad = [i for i, cell in enumerate(cells) if cell.lower() in MISSING or cell == "None"]
    if bad:
        raise _missing(title, name, bad[0], len(bad), cells[bad[0]])
    endless = [i for i, cell in enumerate(cells) if cell.lower().lstrip("+-") in ("inf", "infinity")]
    if endless:
        raise _missing(title, name, endless[0], len(endless), np.inf)
    numeric = [NUMBER.fullmatch(cell) is not None and not _is_code(cell) for cell in cells]
    if all(numeric):
        decimals = _most_decimals(cells)
        whole = decimals == 0 and all("." not in cell and "e" not in cell.lower() for cell in cells)
        column = _of_array(name, np.array([float(cell) for cell in cells]), title)
        return RawColumn(name, column.numbers, None, decimals, whole, cells=tuple(cells))
    if all(cell.lower() in ("true", "false") for cell in cells):
        numbers = np.array([float(cell.lower() == "true") for cell in cells])
        return RawColumn(name, numbers, None, 0, truth=True, cells=tuple(cells))
    other = numeric.index(False)
    if sum(numeric) >= MEANT * len(cells) and not any(map(_is_code, cells)):
        raise InvalidInput(
            f"{title}: column {name!r} holds numbers, except {cells[other]!r} in row {other} (from 0): correct it, or make the "
            f"whole column texts."
        )
    return RawColumn(name, texts=tuple(cells))


def _is_code(cell: str) -> bool:
    """Whether a cell would not be the same as a number: it has leading zeros, or is whole and beyond 2^53."""
    digits = cell.lstrip("+-")
    return CODE.fullmatch(cell) is not None or (digits.isdecimal() and int(digits) > 2**53)


def _most_decimals(texts: Any) -> int | None:
    """The most decimals that any of these numbers is written with; None for more than 9, and for exponents below."""
    most = 0
    for text in texts:
        mantissa, _, exponent = text.lower().partition("e")
        digits = len(mantissa.partition(".")[2].rstrip("0"))
        digits -= int(exponent) if exponent else 0
        most = max(most, digits)
        if most > MOST_DECIMALS:
            return None
    return most


def _too_large(title: str, column: str) -> InvalidInput:
    return InvalidInput(f"{title}: column {column!r} has whole numbers beyond 2^53: give them as texts.")


def _is_missing(value: Any) -> bool:
    return value is None or type(value).__name__ in ("NAType", "NaTType") or bool(value != value)


def _missing(title: str, column: str, row: int, count: int, value: Any) -> InvalidInput:
    others = f", like {count - 1:,} other row{'s' if count > 2 else ''}" if count > 1 else ""
    what = "is infinite" if isinstance(value, float) and value in (np.inf, -np.inf) else "has no value"
    if isinstance(value, str) and value:  # a cell of a CSV
        what = f"has {value!r}, which means no value,"
    return InvalidInput(
        f"{title}: row {row} (from 0) {what} in column {column!r}{others}: fill it in, or leave the row or the column out."
    )
