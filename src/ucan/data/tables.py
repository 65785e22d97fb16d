"""A table as a data set: the columns that vary are the input, the held ones belong to the classifier at that row."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ucan.budget import Budget
from ucan.choices import check_list
from ucan.data.columns import Amount, Column, columns_of
from ucan.data.frames import Frame, RawColumn, read_frame, typed_like
from ucan.data.labelled import UNKNOWN, Labelled, sort_key
from ucan.errors import InvalidInput
from ucan.estimators import label_name
from ucan.held import Held
from ucan.rounding import floor_grouped

# Between these quantiles a normal distribution has 2.5631 standard deviations.
LOW, HIGH, BETWEEN = 0.1, 0.9, 2.5631
# The scale of a column's noise where nothing else is said, as a share of its spread.
SHARE = 0.25


def spread_of(values: np.ndarray) -> float:
    """A standard deviation's worth of these numbers, between two quantiles; 0 if all are the same."""
    low, high = np.quantile(values, [LOW, HIGH])
    return float(high - low) / BETWEEN or float(values.std())


class Table(Labelled):
    """Rows of a table: item i is (float64 tensor of the columns that vary, class number).

    ``source`` is a .csv or .parquet file, a pandas or Polars frame, a mapping of columns, or an array (N, d). ``target``
    names the column with the labels, ``id`` the one that names the rows; neither is given to the model. ``hold`` and
    ``vary`` say of columns that they get no noise, or that they do; if nothing is said, texts, truth values, one-hot groups
    and columns of 0 and 1 are held, and the rest vary. ``train`` is a table with the same columns, from which the usual size
    of each is taken: never from the rows that are certified. A column that it lacks is left out, unless the model takes it.

    ``step`` has one entry for every column that varies, where every one of them lies on a grid (whole numbers, decimals).
    ``features`` and ``classes`` are what the model takes and knows (``for_model``).
    """

    def __init__(
        self,
        source: Any,
        target: str | None = None,
        id: str | None = None,
        hold: Sequence[str] = (),
        vary: Sequence[str] = (),
        train: Any = None,
        features: Sequence[str] | None = None,
        classes: Sequence[str] | None = None,
        name: str | None = None,
    ) -> None:
        for option, listed in (("hold", hold), ("vary", vary), ("features", features), ("classes", classes)):
            check_list(option, listed)
        self.frame = read_frame(source, name)
        self.name = name or self.frame.name
        self.target, self.id, self.hold, self.vary = target, id, tuple(hold), tuple(vary)
        apart = [column for column in (target, id) if column is not None]
        for option, names in (("--hold", self.hold), ("--vary", self.vary)):
            for column in names:
                self.frame.column(column, option)
                if column in apart:
                    raise InvalidInput(f"{option}: {column!r} is the target or the id, which the model is not given.")
        like = None if train is None else read_frame(train, "the training table")
        if features is None and like is not None:
            # Until the model says what it takes: what it can have been trained on.
            features = [name for name in self.frame.names if name in like.names and name not in apart] or None
        given = _features(self.frame, apart, features)
        self.train = None if like is None else _features(like, (), given.names)
        self.given = typed_like(given, self.train)
        self.columns = columns_of(self.given, _only(hold, self.given), _only(vary, self.given), self.train)
        self._raw = {column.name: column for column in self.given.columns}
        numbers = [self._raw[column.name].numbers for column in self.varying]
        self.rows = torch.from_numpy(np.stack(numbers, axis=1))  # type: ignore[arg-type]
        self.step = _steps(self.varying)
        labels = None if target is None else _texts_of(self.frame.column(target, "--target"))
        self.classes = tuple(classes) if classes is not None else None if labels is None else _in_order(labels)
        self.labels = _numbered(labels, self.classes, len(self.frame), self.name)
        self.names = None if id is None else _names_of(self.frame.column(id, "--id"))

    def for_model(self, features: Sequence[str] | None, classes: Sequence[str] | None) -> Table:
        """The same rows with the columns that the model takes, in its order, and with the labels in the order it knows."""
        kept = tuple(self.given.names) if features is None else tuple(features)
        return Table(
            self.frame, self.target, self.id, self.hold, self.vary, self.train, kept, classes or self.classes, self.name
        )

    @property
    def varying(self) -> tuple[Column, ...]:
        """The columns that get noise: what an input is made of."""
        return tuple(column for column in self.columns if not column.held)

    @property
    def held(self) -> tuple[Column, ...]:
        """The columns that get none."""
        return tuple(column for column in self.columns if column.held)

    @property
    def steps(self) -> dict[str, float]:
        """The step of every column that varies and lies on a grid."""
        return {column.name: column.step for column in self.varying if column.step is not None}

    @property
    def event_shape(self) -> tuple[int, ...]:
        """(m,), m columns that vary."""
        return (len(self.varying),)

    def batch(self, indices: Sequence[int] | torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The rows at these indices: float64 (b, m) in the columns' own units, and int64 (b,)."""
        index = torch.as_tensor(indices, dtype=torch.int64)
        return self.rows[index], self.labels[index]

    def held_at(self, index: int) -> Held | None:
        """The held columns of one row with their values; None where none are held."""
        if not self.held:
            return None
        return Held(tuple(column.name for column in self.held), tuple(self._value(c, index) for c in self.held))

    def _value(self, column: Column, index: int) -> float | str:
        raw = self._raw[column.name]
        return raw.texts[index] if raw.texts is not None else float(raw.numbers[index])  # type: ignore[index]

    def fingerprint(self) -> str:
        """SHA-256 of the columns that the model is given, of labels and of names."""
        digest = hashlib.sha256()
        for column in self.given.columns:
            digest.update(f"{column.name} {column.texts}".encode())
            digest.update(b"" if column.numbers is None else np.ascontiguousarray(column.numbers).tobytes())
        digest.update(self.labels.numpy().tobytes())
        digest.update(repr(self.names).encode())
        return digest.hexdigest()

    def subset(self, indices: Sequence[int] | torch.Tensor) -> Table:
        """The rows at these indices, in this order; columns, steps and classes stay what they are for the whole."""
        index = torch.as_tensor(indices, dtype=torch.int64)
        part = object.__new__(Table)
        part.__dict__.update(self.__dict__)
        chosen = index.tolist()
        part.frame, part.given = (
            Frame(frame.name, tuple(column.taken(chosen) for column in frame.columns))
            for frame in (self.frame, self.given)
        )
        part._raw = {column.name: column for column in part.given.columns}
        part.rows, part.labels = self.rows[index], self.labels[index]
        part.names = None if self.names is None else tuple(self.names[i] for i in chosen)
        return part

    # --- amounts in the columns' own units ---

    def scales(self, given: Mapping[str, Amount] | None = None) -> dict[str, float]:
        """σ of every column that varies, in its own unit: as given, or a quarter of its spread in the training table."""
        amounts = self._checked(given or {}, "sigma")
        rest = [column.name for column in self.varying if column.name not in amounts]
        if rest and self.train is None:
            raise InvalidInput(
                f"nothing says how large the noise of {_listed(rest)} should be: give a training table (ucan.Table's "
                f'train=, on the command line --train), whose spread is taken, or "{rest[0]}=…" in the column\'s own unit '
                f"(sigma=, on the command line --sigma). It is never taken from the rows that are certified."
            )
        found = {name: SHARE * self.spread(name) for name in rest}
        for name, amount in amounts.items():
            found[name] = amount.value / 100 * self.spread(name) if amount.percent else amount.value
            if not found[name] > 0:
                raise InvalidInput(
                    f"sigma of {name} is {amount.value:g}: to give it no noise, hold the column instead."
                )
        return {column.name: float(f"{found[column.name]:.6g}") for column in self.varying}

    def budget(self, given: Mapping[str, Amount], name: str = "") -> Budget:
        """How much each column may change at ε = 1; a percentage is of the column's median size in the training table."""
        amounts = self._checked(given, "budget")
        limits = {n: a.value / 100 * self.median(n) if a.percent else a.value for n, a in amounts.items()}
        told = ", ".join(f"{column} ± {floor_grouped(limit, 6)}" for column, limit in limits.items())
        values = [limits.get(column.name, 0.0) for column in self.varying]
        return Budget.of(values, self.event_shape, name=name or told)

    def spread(self, name: str) -> float:
        """The spread of a column in the training table: a standard deviation's worth between two quantiles."""
        spread = spread_of(self._training(name))
        if not spread > 0:
            raise InvalidInput(f"{name} is the same in every row of the training table: give its sigma, or hold it.")
        return spread

    def median(self, name: str) -> float:
        """The median of |value| of a column in the training table."""
        return float(np.median(np.abs(self._training(name))))

    def _training(self, name: str) -> np.ndarray:
        if self.train is None:
            raise InvalidInput(
                f"a percentage of {name} is of what it holds in a training table: give one (train=, on the "
                "command line --train)."
            )
        values = self.train.column(name, "train").numbers
        assert values is not None, "texts do not vary"
        return values

    def _checked(self, given: Mapping[str, Amount], option: str) -> Mapping[str, Amount]:
        known = {column.name: column for column in self.columns}
        for name in given:
            if name not in known:
                raise InvalidInput(
                    f"{option}: the model is given no column {name!r}; it is given {_listed(list(known))}."
                )
            if known[name].held:
                raise InvalidInput(
                    f"{option}: {name} is held ({known[name].held}), so that no certificate covers a change of it; let it vary "
                    f"first (vary={[name]!r}, on the command line --vary {name})."
                )
        return given

    def __repr__(self) -> str:
        return f"Table({self.name!r}, {len(self)} rows, {len(self.varying)} columns that vary, {len(self.held)} held)"


def by_held(dataset: Labelled, indices: Iterable[int]) -> list[tuple[Held | None, list[int]]]:
    """The indices in groups with the same held values, by their first member: one classifier serves a group."""
    groups: dict[Held | None, list[int]] = {}
    for index in indices:
        groups.setdefault(dataset.held_at(index), []).append(index)
    return list(groups.items())


def _features(frame: Frame, apart: Sequence[str], features: Sequence[str] | None) -> Frame:
    """The columns that the model is given, in its order."""
    for name in apart:
        frame.column(name, "--target" if name == apart[0] else "--id")
    wanted = [name for name in frame.names if name not in apart] if features is None else list(features)
    # LightGBM knows "mean radius" as mean_radius.
    joined = {name.replace(" ", "_"): name for name in frame.names}
    wanted = [name if name in frame.names else joined.get(name, name) for name in wanted]
    taken = [name for name in wanted if name in apart]
    if taken:
        raise InvalidInput(
            f"the model takes {_listed(taken)}, which is the target or the id: name another column (--target, --id)."
        )
    missing = [name for name in wanted if name not in frame.names]
    if missing:
        raise InvalidInput(f"the model takes {_listed(missing)}, and {frame.name} has {_listed(list(frame.names))}.")
    if not wanted:
        raise InvalidInput(f"{frame.name} has no columns beside {_listed(list(apart))}.")
    return Frame(frame.name, tuple(frame.column(name, "features") for name in wanted))


def _only(names: Sequence[str], frame: Frame) -> list[str]:
    """Of what the user says, that which concerns a column the model is given."""
    return [name for name in names if name in frame.names]


def _steps(columns: Sequence[Column]) -> torch.Tensor | None:
    steps = [column.step for column in columns]
    known = [step for step in steps if step is not None]
    return torch.tensor(known, dtype=torch.float64) if len(known) == len(steps) else None


def _texts_of(column: RawColumn) -> list[str]:
    """The values of a column as text, a number as people write it."""
    if column.texts is not None:
        return list(column.texts)
    assert column.numbers is not None
    return [label_name(bool(v) if column.truth else v) for v in column.numbers.tolist()]


def _names_of(column: RawColumn) -> tuple[str, ...]:
    """The names of rows, as a file has them: 1.10 is not 1.1."""
    return tuple(_texts_of(column)) if column.cells is None else column.cells


def _in_order(labels: Sequence[str]) -> tuple[str, ...]:
    """The classes in order: numbers by size, texts by the alphabet."""
    return tuple(sorted(set(labels), key=sort_key))


def _numbered(labels: Sequence[str] | None, classes: Sequence[str] | None, count: int, title: str) -> torch.Tensor:
    if labels is None or classes is None:
        return torch.full((count,), UNKNOWN, dtype=torch.int64)
    number = {name: i for i, name in enumerate(classes)}
    strange = next((i for i, label in enumerate(labels) if label not in number), None)
    if strange is not None:
        raise InvalidInput(
            f"{title}: row {strange} (from 0) has the label {labels[strange]!r}, and the model knows {_listed(list(classes))}: "
            "is it the model for this target?"
        )
    return torch.tensor([number[label] for label in labels], dtype=torch.int64)


def _listed(names: Sequence[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
