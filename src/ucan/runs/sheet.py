"""A run's answers in readable form: RUN/answers.csv, with the names of inputs and classes, and each column's range."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path

from ucan.data import Labelled
from ucan.data.tables import Table
from ucan.results.formats import as_text, class_name
from ucan.results.store import Store
from ucan.rounding import floor_significant
from ucan.storage import write_whole
from ucan.tabular import RowAnswer, row_answer

SHEET = "answers.csv"


def has_sheet(data: Labelled) -> bool:
    """Whether the sheet adds something to the TSV: names of inputs, or columns."""
    return data.names is not None or isinstance(data, Table)


def write_sheet(store: Store, data: Labelled, class_names: Sequence[str], folder: Path) -> Path:
    """Write the sheet atomically."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    columns = [column.name for column in data.varying] if isinstance(data, Table) else []
    of_table = (
        "radius in units of σ" if columns else "radius"
    )  # a ball over columns with different units is meaningless
    measure = of_table if store.budget is None else "budget factor"
    writer.writerow(["idx", "name", "label", "answer", "correct", measure, *(f"± {column}" for column in columns)])
    rows = store.columns(("idx", "label", "prediction", "abstained", "correct", "radius"))
    for i, idx in enumerate(rows["idx"].tolist()):
        label, answer = int(rows["label"][i]), int(rows["prediction"][i])
        abstained = bool(rows["abstained"][i])
        reach, size = [""] * len(columns), float(rows["radius"][i])
        if isinstance(data, Table) and not abstained:
            found = row_answer(data, idx, store.outcome(idx))
            reach = [] if found.reach is None else [floor_significant(move.alone) for move in found.reach.moves]
            if store.budget is None and found.outcome.region is not None:
                size = found.outcome.region.radius
        known = "" if label < 0 else str(int(rows["correct"][i]))
        shown = "" if abstained else class_name(answer, class_names)
        writer.writerow(
            [
                idx,
                as_text(data.name_of(idx)),
                as_text(class_name(label, class_names)),
                as_text(shown),
                known,
                floor_significant(size),
                *reach,
            ]
        )
    write_whole(folder / SHEET, text.getvalue().encode())
    return folder / SHEET


def row_answers(store: Store, table: Table, most: int) -> Iterator[RowAnswer]:
    """The first answers of a run on a table."""
    for idx in store.columns(("idx",))["idx"].tolist()[:most]:
        yield row_answer(table, idx, store.outcome(idx))
