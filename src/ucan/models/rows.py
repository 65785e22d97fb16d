"""Models on tables: rows are assembled from varying and held columns, and passed to the model in the form it expects."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ucan.data.columns import Column
from ucan.data.tables import Table
from ucan.errors import ModelError, in_one_line
from ucan.estimators import REFUSALS, as_estimator, framed, known_classes
from ucan.fingerprint import identity
from ucan.held import Held, Rows, check_evaluating


class TableModel(Rows):
    """A classifier of the rows of a table. Noise is added before any preprocessing of the model, in the data's own units.

    ``model`` is a fitted estimator or a pipeline of such, which is given a frame (or an array, if it was fitted on one), or
    a module or function on a batch of numbers (n, d), all columns in order.
    """

    def __init__(
        self, model: Any, columns: Sequence[Column], num_classes: int | None = None, model_id: str | None = None
    ) -> None:
        self.estimator = as_estimator(model)
        self.model: Callable[..., Any] = model if self.estimator is None else self.estimator
        self.columns, self.model_id = tuple(columns), model_id
        self.held_columns = tuple(column.name for column in self.columns if column.held)
        texts = [column.name for column in self.columns if column.text]
        if self.estimator is None and texts:
            raise ModelError(
                f"{type(model).__name__} takes numbers, but column {texts[0]!r} holds texts: leave it out of the table, or "
                f"encode it."
            )
        known = num_classes if self.estimator is None else self.estimator.num_classes
        if known is None:
            raise ModelError("give the number of classes of the model (num_classes=, on the command line --classes).")
        self.num_classes = known
        check_evaluating(model)

    @classmethod
    def of(
        cls,
        model: Any,
        table: Table,
        num_classes: int | None = None,
        model_id: str | None = None,
        class_names: Sequence[str] | None = None,
    ) -> tuple[TableModel, Table]:
        """The model of this table's rows, and the table with the columns and the classes that the model knows.

        ``class_names`` are the names of the model's classes, in its order, if they differ from its own.
        """
        estimator = as_estimator(model)
        if estimator is None:
            count = num_classes or (len(class_names) if class_names else None) or known_classes(model)
            count = count or (len(table.classes) if table.classes is not None else None)
            named = _named(table, count, class_names)
            return cls(model, table.columns, count, model_id), table.for_model(None, named)
        if class_names is not None and len(class_names) != estimator.num_classes:
            raise ModelError(
                f"{len(class_names)} class names were given, but the model has {estimator.num_classes} classes."
            )
        estimator = estimator.among(table.frame.names)
        own = class_names or estimator.classes or _named(table, estimator.num_classes, None)
        fitted = table.for_model(estimator.features, own)
        width = estimator.width
        if estimator.features is None and width is not None and width != len(fitted.columns):
            more = ", …" if len(fitted.columns) > 6 else ""
            raise ModelError(
                f"{type(estimator.model).__name__} was fitted on {width} columns, but {table.name} has {len(fitted.columns)} "
                f"besides target and identifier ({', '.join(c.name for c in fitted.columns[:6])}{more}): name a column of "
                f"identifiers with --id (id=), and remove others that it does not take."
            )
        return cls(estimator, fitted.columns, None, model_id), fitted

    @property
    def layout(self) -> str:
        """The columns in order, and which of them vary."""
        return json.dumps([[column.name, bool(column.held), column.whole, column.truth] for column in self.columns])

    @property
    def base(self) -> str | None:
        """The hash of the model's weights or file, if there is one."""
        return identity(self.model) if self.model_id is None else f"id:{self.model_id}"

    def answer(self, varying: torch.Tensor, held: Held | None) -> Any:
        """The model's answers to whole rows."""
        if self.estimator is not None:
            return self.estimator.answers(self._data(varying, held)).to(varying.device)
        values = {} if held is None else held.to_dict()
        parts, place = [], 0
        for column in self.columns:
            if column.held:
                parts.append(varying.new_full((len(varying),), float(values[column.name])))
            else:
                parts.append(varying[:, place])
                place += 1
        return self._asked(torch.stack(parts, dim=1))

    def refused(self, table: Table, indices: Sequence[int]) -> dict[int, str]:
        """Why an estimator refuses some of these rows as they are, without noise. One that answers none of them is no model of
        these rows, and one that breaks on a row would end the work there: both raise an error.
        """
        if self.estimator is None or not indices:
            return {}
        held = [{} if (one := table.held_at(index)) is None else one.to_dict() for index in indices]
        columns = {c.name: _column([values[c.name] for values in held], c) for c in self.columns if c.held}
        errors = self.estimator.unanswered(self._rows(table.batch(indices)[0], columns))
        found = {indices[place]: error for place, error in errors.items()}
        name, order = type(self.estimator.model).__name__, sorted(found)
        broken = next((index for index in order if not isinstance(found[index], REFUSALS)), None)
        if broken is not None:
            raise ModelError(
                f"{name} fails on row {broken} (from 0) of {table.name}: {in_one_line(found[broken])}. Leave the row out, or "
                "mend the model."
            ) from found[broken]
        if found and len(found) == len(set(indices)):
            raise ModelError(f"{name} cannot answer these rows: {in_one_line(found[order[0]])}") from found[order[0]]
        return {index: in_one_line(found[index]) for index in order}

    def _data(self, varying: torch.Tensor, held: Held | None) -> Any:
        """Rows whose held columns are the same."""
        values = {} if held is None else held.to_dict()
        same = {c.name: _column([values[c.name]], c).repeat(len(varying)) for c in self.columns if c.held}
        return self._rows(varying, same)

    def _rows(self, varying: torch.Tensor, held: Mapping[str, np.ndarray]) -> Any:
        """Rows in the form that the estimator was fitted on: a frame if it knows column names, else an array."""
        numbers = varying.detach().cpu().double().numpy()
        columns: list[Any] = []
        place = 0
        for column in self.columns:
            if column.held:
                columns.append(held[column.name])
            else:
                columns.append(numbers[:, place])
                place += 1
        assert self.estimator is not None
        if self.estimator.features is not None:
            return framed(self.estimator.features, columns)
        texts = any(column.text for column in self.columns)
        return np.stack([c.astype(object) if texts else c for c in columns], axis=1)


def _column(values: Sequence[float | str], column: Column) -> np.ndarray:
    """A held column in the type that a table has it in."""
    if isinstance(values[0], str):
        return np.array(values, dtype=object)
    if column.truth:
        return np.array([bool(value) for value in values])
    return np.array([int(value) if column.whole else float(value) for value in values])


def _named(table: Table, count: int | None, class_names: Sequence[str] | None) -> Sequence[str] | None:
    """The names of a model's classes; None: those that the labels show, which must then be all of them.

    Labels that are numbers of classes need not show all: 0 and 2 are two of the three classes 0, 1 and 2.
    """
    shown = table.classes
    if class_names is not None or shown is None or count is None or len(shown) == count:
        return class_names
    if all(name.isdecimal() and name == str(int(name)) and int(name) < count for name in shown):
        return [str(number) for number in range(count)]
    raise ModelError(
        f"the model has {count} classes, and the labels of {table.name} show {len(shown)} ({', '.join(shown[:6])}): name all "
        "classes in the model's order with --class-names (class_names=)."
    )
