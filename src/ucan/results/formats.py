"""Results as files for others: the field's TSV, CSV, Parquet and JSON, with the scope never left behind.

A table of numbers cannot say whose guarantee they are. So beside a TSV or a CSV stands ``NAME.json`` with the scope in
words, the norm, the ALM cap and the config; Parquet and JSON carry the same inside. Of an interrupted run the rows end before
the first unfinished input (``Store.gapless``), and ``left_out`` says how many more the run has.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from ucan.certificate import SCOPES
from ucan.config import handed_out
from ucan.errors import InvalidInput, MissingExtra
from ucan.results.store import COLUMNS, Store
from ucan.rounding import floor_significant
from ucan.storage import storage, whole

Format = Literal["tsv", "csv", "parquet", "json"]
COHEN = ("idx", "label", "predict", "radius", "correct", "time")
EXPORT_FORMAT = 1
# What the column radius holds where a run was about a budget.
BUDGET_MEASURE = "the factor ε: no change within less than ε times the budget changes the answer"
UNKNOWN_SCOPE = "whose guarantee this is was not stated: do not read it as one for a deployed pipeline"


def guarantee(scope: str) -> str:
    """A scope in words; anything but a known scope is unknown."""
    return SCOPES.get(scope, UNKNOWN_SCOPE)


def description(store: Store) -> dict[str, Any]:
    """What a reader must know beside the numbers, as plain JSON values."""
    about: dict[str, Any] = _strict(
        {
            "ucan_export": EXPORT_FORMAT,
            "run": store.name,
            "scope": store.scope,
            "guarantee": guarantee(store.scope),
            "norm": "inf" if store.norm == math.inf else store.norm,
            **({} if store.budget is None else {"budget_hash": store.budget, "radius_is": BUDGET_MEASURE}),
            "alm_cap": store.config.get("alm_cap"),
            "left_out": store.gapless(("idx",))[1],
            "config": handed_out(store.config),
        }
    )
    return about


def write(store: Store, path: str | Path, kind: Format = "tsv", overwrite: bool = False) -> list[Path]:
    """Write a run's results in one of the formats; what is written, the file and perhaps its sidecar.

    Each file is complete or not there. Existing files are refused unless ``overwrite``.
    """
    writers: dict[str, Callable[[Store, IO[bytes]], None]] = {
        "tsv": _tsv,
        "csv": _csv,
        "parquet": _parquet,
        "json": _json,
    }
    if kind not in writers:
        raise InvalidInput(f"the formats are {', '.join(writers)}, got {kind!r}.")
    path = Path(path)
    sidecar = path.with_name(f"{path.name}.json")
    targets = [path, sidecar] if kind in ("tsv", "csv") else [path]
    existing = [str(p) for p in targets if p.exists()]
    if existing and not overwrite:
        verb = "exists" if len(existing) == 1 else "exist"
        raise InvalidInput(f"{' and '.join(existing)} {verb} already; nothing was written. --force overwrites.")
    if not path.parent.is_dir():
        raise InvalidInput(f"there is no folder {path.parent} to write {path.name} to: make it first.")
    # The sidecar takes its place first: at no moment does a new table lie there without its scope.
    with storage(path), whole(*reversed(targets)) as parts:
        for part, fill in zip(reversed(parts), (writers[kind], _describe), strict=False):
            with open(part, "wb") as out:
                fill(store, out)
    return targets


def _describe(store: Store, out: IO[bytes]) -> None:
    out.write(json.dumps(description(store), indent=1, ensure_ascii=False, allow_nan=False).encode())


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


def _csv(store: Store, out: IO[bytes]) -> None:
    """Every column at full precision, and the scope in every row."""
    columns, _ = store.gapless()
    scope = store.scope
    out.write((",".join([*COLUMNS, "scope"]) + "\r\n").encode())
    for row in zip(*(columns[name].tolist() for name in COLUMNS), strict=True):
        values = (str(int(v)) if isinstance(v, bool) else repr(v) for v in row)
        out.write((",".join([*values, scope]) + "\r\n").encode())


def _parquet(store: Store, out: IO[bytes]) -> None:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtra("Parquet needs pyarrow: pip install 'ucan[results]'.") from error
    columns, _ = store.gapless()
    table = pyarrow.table({**columns, "scope": [store.scope] * len(columns["idx"])})
    about = json.dumps(description(store), ensure_ascii=False, allow_nan=False)
    schema = table.schema.with_metadata({**(table.schema.metadata or {}), "ucan": about})
    pyarrow.parquet.write_table(table.cast(schema), out)


def _json(store: Store, out: IO[bytes]) -> None:
    """The description, then every row with its evidence. Row by row: a million of them need not fit in memory."""
    head = json.dumps(description(store), indent=1, ensure_ascii=False, allow_nan=False)
    out.write(head[: head.rindex("}")].rstrip().encode() + b',\n "rows": [')
    separator = "\n  "
    for row in _rows(store):
        out.write((separator + json.dumps(row, ensure_ascii=False, allow_nan=False)).encode())
        separator = ",\n  "
    out.write(b"\n ]\n}\n")


def _rows(store: Store) -> Iterator[dict[str, Any]]:
    columns, _ = store.gapless()
    for row in zip(*(columns[name].tolist() for name in COLUMNS), strict=True):
        plain = dict(zip(COLUMNS, row, strict=True))
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
