"""Write results as TSV, CSV, Parquet and JSON, always with their scope.

A table of numbers does not state the scope of its guarantee. So ``NAME.json`` is written next to a TSV or a CSV, with the
scope as text, the norm, the ALM cap, the config, and the names of inputs; Parquet and JSON contain the same. Where inputs
or classes have names, CSV, Parquet and the rows of JSON have them in columns of their own, after the numbers. For an
interrupted run, the rows end before the first unfinished input (``Store.gapless``), and ``left_out`` is the number of
further rows.
"""

from __future__ import annotations

import csv
import hashlib
import io
import itertools
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from ucan.certificate import SCOPES
from ucan.choices import norm_to_json
from ucan.config import handed_out
from ucan.errors import InvalidInput, MissingExtra
from ucan.results.store import COLUMNS, Store
from ucan.rounding import floor_significant
from ucan.storage import storage, whole

Format = Literal["tsv", "csv", "parquet", "json"]
COHEN = ("idx", "label", "predict", "radius", "correct", "time")
EXPORT_FORMAT = 1
# The meaning of the column radius for a run with a budget.
BUDGET_MEASURE = "the factor ε: no change within less than ε times the budget changes the answer"
UNKNOWN_SCOPE = "whose guarantee this is was not stated: do not read it as one for a deployed pipeline"


def guarantee(scope: str) -> str:
    """The text of a scope; anything but a known scope is unknown."""
    return SCOPES.get(scope, UNKNOWN_SCOPE)


def description(store: Store) -> dict[str, Any]:
    """What a reader must know besides the numbers, as plain JSON values."""
    about: dict[str, Any] = _strict(
        {
            "ucan_export": EXPORT_FORMAT,
            "run": store.name,
            "scope": store.scope,
            "guarantee": guarantee(store.scope),
            "norm": norm_to_json(store.norm),
            **({} if store.budget is None else {"budget_hash": store.budget, "radius_is": BUDGET_MEASURE}),
            "alm_cap": store.config.get("alm_cap"),
            "left_out": store.gapless(("idx",))[1],
            "config": handed_out(store.config),
        }
    )
    return about


def class_name(number: int, names: Sequence[str]) -> str:
    """The name of a class: its number if it has no name, empty for an unknown one and for an abstention."""
    if number < 0:
        return ""
    return names[number] if number < len(names) else str(number)


def named_columns(store: Store, columns: dict[str, np.ndarray]) -> dict[str, list[str]]:
    """Columns with the names of the rows' inputs, of their labels and of their answers; those that are known."""
    inputs, classes, found = store.names(), store.class_names, dict[str, list[str]]()
    if inputs:
        found["name"] = [inputs.get(idx, "") for idx in columns["idx"].tolist()]
    if classes:
        found["label_name"] = [class_name(label, classes) for label in columns["label"].tolist()]
        found["prediction_name"] = [class_name(answer, classes) for answer in columns["prediction"].tolist()]
    return found


def write(store: Store, path: str | Path, kind: Format = "tsv", overwrite: bool = False) -> list[Path]:
    """Write a run's results in one of the formats; returns the paths of the file and of its sidecar, if any.

    Files are written atomically. Existing files are refused unless ``overwrite`` is true, and so is a run whose config states
    a smaller α than its certificates have: the file would have it, too.
    """
    writers: dict[str, Callable[[Store, IO[bytes]], None]] = {
        "tsv": _tsv,
        "csv": _csv,
        "parquet": _parquet,
        "json": _json,
    }
    if kind not in writers:
        raise InvalidInput(f"the format must be one of {', '.join(writers)}, got {kind!r}.")
    path = Path(path)
    sidecar = path.with_name(f"{path.name}.json")
    targets = [path, sidecar] if kind in ("tsv", "csv") else [path]
    existing = [str(p) for p in targets if p.exists()]
    if existing and not overwrite:
        verb = "exists" if len(existing) == 1 else "exist"
        raise InvalidInput(f"{' and '.join(existing)} {verb} already; nothing was written. Use --force to overwrite.")
    if not path.parent.is_dir():
        raise InvalidInput(f"there is no folder {path.parent} to write {path.name} to: create it first.")
    store.check_alpha()
    # The sidecar is written first, so that a table never exists without its scope.
    with storage(path), whole(*reversed(targets)) as parts:
        *described, table = parts
        with open(table, "wb") as out:
            writers[kind](store, out)
        for part in described:
            Path(part).write_bytes(_describe(store, Path(table)))
    return targets


def _describe(store: Store, table: Path) -> bytes:
    """What is said of a table beside it, and of which: its hash tells it from any other that may get its name."""
    names = {str(idx): name for idx, name in store.names().items()}
    with open(table, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    about = {**description(store), "sha256": digest, **({"names": names} if names else {})}
    return json.dumps(about, indent=1, ensure_ascii=False, allow_nan=False).encode()


def _tsv(store: Store, out: IO[bytes]) -> None:
    """Cohen's table. Radii keep six significant digits, rounded down, so that radius >= r is never overstated."""
    c, _ = store.gapless()
    if np.isnan(c["radius"]).any():
        raise InvalidInput(
            f"{store.folder} has no radius for some inputs (its file gave ALM only): export CSV or JSON."
        )
    out.write(("\t".join(COHEN) + "\n").encode())
    rows = zip(*(c[k].tolist() for k in ("idx", "label", "prediction", "radius", "correct", "seconds")), strict=True)
    for idx, label, predict, radius, correct, seconds in rows:
        line = f"{idx}\t{label}\t{predict}\t{floor_significant(radius)}\t{int(correct)}\t{seconds:.6f}\n"
        out.write(line.encode())


def as_text(name: str) -> str:
    """A name for a cell of a CSV file: one that a spreadsheet would take for a formula gets an apostrophe before it."""
    return f"'{name}" if re.match(r"[=@\t\r]|[+-](?!\d+(\.\d+)?$)", name) else name


def _csv(store: Store, out: IO[bytes]) -> None:
    """Every column at full precision, the scope in every row, and the names."""
    columns, _ = store.gapless()
    scope, named = store.scope, named_columns(store, columns)
    text = io.TextIOWrapper(out, encoding="utf-8", newline="", write_through=True)
    writer = csv.writer(text)
    writer.writerow([*COLUMNS, "scope", *named])
    rows = zip(*(columns[name].tolist() for name in COLUMNS), strict=True)
    names = zip(*named.values(), strict=True) if named else itertools.repeat(())
    for row, words in zip(rows, names, strict=False):
        numbers = (str(int(v)) if isinstance(v, bool) else repr(v) for v in row)
        writer.writerow([*numbers, scope, *map(as_text, words)])
    text.detach()


def _parquet(store: Store, out: IO[bytes]) -> None:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtra("Parquet needs pyarrow: pip install 'ucan[results]'.") from error
    columns, _ = store.gapless()
    scope = [store.scope] * len(columns["idx"])
    table = pyarrow.table({**columns, "scope": scope, **named_columns(store, columns)})
    about = json.dumps(description(store), ensure_ascii=False, allow_nan=False)
    schema = table.schema.with_metadata({**(table.schema.metadata or {}), "ucan": about})
    pyarrow.parquet.write_table(table.cast(schema), out)


def _json(store: Store, out: IO[bytes]) -> None:
    """The description, then every row with its evidence. Rows are written one by one, so that they need not fit in memory."""
    head = json.dumps(description(store), indent=1, ensure_ascii=False, allow_nan=False)
    out.write(head[: head.rindex("}")].rstrip().encode() + b',\n "rows": [')
    separator = "\n  "
    for row in _rows(store):
        out.write((separator + json.dumps(row, ensure_ascii=False, allow_nan=False)).encode())
        separator = ",\n  "
    out.write(b"\n ]\n}\n")


def _rows(store: Store) -> Iterator[dict[str, Any]]:
    columns, _ = store.gapless()
    shown = {**{name: columns[name].tolist() for name in COLUMNS}, **named_columns(store, columns)}
    for row in zip(*shown.values(), strict=True):
        plain = dict(zip(shown, row, strict=True))
        yield _strict({**plain, "record": store.record(plain["idx"])})


def _strict(value: Any) -> Any:
    """The value in strict JSON: NaN is null, and ±∞ is the word "inf" or "-inf", as in certificates."""
    if isinstance(value, dict):
        return {k: _strict(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else repr(value)
    return value
