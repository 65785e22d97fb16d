"""A model on a table under noise in the table's own units: certificates row by row, in words of its columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
import torch

from ucan.certificate import Abstention, Certificate
from ucan.choices import check_list
from ucan.data.columns import Amount, parse_amount, parse_amounts
from ucan.data.frames import is_table
from ucan.data.tables import Table, by_held
from ucan.errors import InvalidInput
from ucan.estimators import as_estimator, check_classes
from ucan.generators import Fixed
from ucan.laws import Gaussian, Law
from ucan.models.rows import TableModel
from ucan.plan import CertifyPlan
from ucan.reach import Reach
from ucan.smoothed import SmoothedClassifier

Amounts = str | Mapping[str, float | str | Amount]


@dataclass(frozen=True, eq=False)
class RowAnswer:
    """What is certified of one row: the outcome, and how far each column may move; None for an abstention."""

    index: int
    name: str
    label: str | None
    outcome: Certificate | Abstention
    reach: Reach | None
    names: tuple[str, ...] = ()

    @property
    def answer(self) -> str | None:
        """The name of the class; None for an abstention."""
        return None if self.reach is None else self.reach.answer

    def words(self) -> str:
        """The answer in a sentence or two."""
        if isinstance(self.outcome, Abstention):
            return f"{self.name}: No answer is certified: {self.outcome.reason_with(self.names)}."
        return f"{self.name}: {'' if self.reach is None else self.reach.words()}"


class SmoothedTable:
    """A classifier of a table's rows under noise in every column that varies.

    ``model`` is a fitted estimator, a whole pipeline, or a network on a batch of numbers. ``sigma`` gives columns their noise
    in their own units ("income=2000,age=1.5", a mapping, or a .toml file); the others get a quarter of their spread in the
    table's training table. ``scale`` is λ, a factor on all of them, ``law`` another law than Gaussian. ``step`` False computes
    in real arithmetic also where every column lies on a grid. ``num_classes``, ``class_names`` and ``model_id`` are needed
    where the model does not state them.
    """

    def __init__(
        self,
        model: Any,
        table: Table,
        sigma: Amounts | None = None,
        law: Law | None = None,
        scale: float = 1.0,
        num_classes: int | None = None,
        class_names: Sequence[str] | None = None,
        model_id: str | None = None,
        step: bool = True,
    ) -> None:
        check_classes(as_estimator(model), num_classes)
        check_list("class_names", class_names)
        self.rows, self.table = TableModel.of(model, table, num_classes, model_id, class_names)
        self.sigma = self.table.scales(as_amounts(sigma, "--sigma"))
        noise = Fixed(torch.tensor(list(self.sigma.values()), dtype=torch.float64))
        grid = self.table.step if step else None
        self.smoothed = SmoothedClassifier(
            self.rows, Gaussian(scale=scale) if law is None else law, noise, self.rows.num_classes, step=grid
        )

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that vary, in the order of regions and budgets."""
        return tuple(column.name for column in self.table.varying)

    def at(self, index: int) -> SmoothedClassifier:
        """The smoothed classifier at one row: with its held columns as they are."""
        return self.smoothed.holding(self.table.held_at(index))

    def certify(
        self, indices: Sequence[int] | None = None, budget: Amounts | None = None, **options: Any
    ) -> list[RowAnswer]:
        """Certificates for these rows, all of them if not given; ``options`` are those of ``SmoothedClassifier.certify``.

        Other questions (top=, confidence=) are asked row by row, of ``at(index)``. ``budget`` says how much each column may
        change at ε = 1 ("income=5%,age=1"; a percentage is of its median size in the training table).
        """
        chosen = self._rows(indices)
        for question in ("top", "confidence"):
            if options.get(question) is not None:
                raise InvalidInput(
                    f"a table's certify answers with one class and how far each column may change: ask {question}= of "
                    "table.at(index).certify(…), row by row."
                )
        CertifyPlan(family=options.get("family", 1)).check_family(len(chosen))  # of all rows, whatever they hold
        self.rows.refused(self.table, chosen)  # then a row that it refuses is an abstention, also if it is the first
        if budget is not None:
            options["budget"] = self.table.budget(as_amounts(budget, "--budget"))
        found: dict[int, Certificate | Abstention] = {}
        for held, group in by_held(self.table, chosen):
            outcomes = self.smoothed.holding(held).certify(self.table.batch(group)[0], **options)
            found |= dict(zip(group, outcomes, strict=True))
        return [self.answer_of(index, found[index]) for index in chosen]

    def _rows(self, indices: Sequence[int] | None) -> list[int]:
        """The numbers of the rows asked for; refuses anything else."""
        count = len(self.table)
        if indices is None:
            return list(range(count))
        asked = [] if is_table(indices) else _listed(indices)
        if any(isinstance(i, bool | np.bool_) for i in asked):  # True is a whole number, too: it would be row 1
            raise InvalidInput(
                "certify takes numbers of rows, and got true and false: for the rows where a mask is true, give "
                "numpy.flatnonzero(mask)."
            )
        if is_table(indices) or not all(isinstance(i, Integral) for i in asked):
            raise InvalidInput(
                f"certify takes numbers of rows of {self.table.name}, from 0, not the rows: for other rows, make another "
                "SmoothedTable with ucan.Table(rows, …)."
            )
        beyond = next((i for i in asked if not -count <= i < count), None)
        if beyond is not None:
            raise InvalidInput(f"row {beyond}: {self.table.name} has rows 0 to {count - 1}.")
        return [int(i) for i in asked]

    def answer_of(self, index: int, outcome: Certificate | Abstention) -> RowAnswer:
        """An outcome with the names of its row, its columns and its classes."""
        return row_answer(self.table, index, outcome)


def _listed(indices: Any) -> list[Any]:
    """The numbers in a list, an array, a series or a tensor; a single number is refused."""
    found = indices.tolist() if hasattr(indices, "tolist") else indices
    if not isinstance(found, Iterable):
        raise InvalidInput(
            f"certify takes a list of numbers of rows, got {found!r}: for one row give it in a list, [3]."
        )
    return list(found)


def row_answer(table: Table, index: int, outcome: Certificate | Abstention) -> RowAnswer:
    """An outcome about a row of this table, with its names."""
    label = int(table.labels[index])
    names = table.classes
    reach = None
    if isinstance(outcome, Certificate):
        called = None if names is None else names[outcome.prediction]
        answer = f"class {called}" if called is not None and called.isdigit() else called
        columns = table.varying
        reach = Reach.of(outcome, [c.name for c in columns], answer, steps=[c.step for c in columns])
    known = label >= 0 and names is not None
    called = names[label] if known and names else None
    return RowAnswer(index, table.name_of(index), called, outcome, reach, tuple(names or ()))


def as_amounts(given: Amounts | None, option: str) -> dict[str, Amount]:
    """Amounts by column from what a user gives: a text, a file, or a mapping."""
    if given is None:
        return {}
    if isinstance(given, str):
        return parse_amounts(given, option)
    if not isinstance(given, Mapping):
        raise InvalidInput(f'{option} takes "column=number,…" or a mapping of columns to numbers, got {given!r}.')
    found: dict[str, Amount] = {}
    for name, value in given.items():
        found[name] = value if isinstance(value, Amount) else parse_amount(value, name, option)
    return found
