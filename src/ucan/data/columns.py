"""The columns of a table: which vary and which are held, their steps, and amounts per column as people write them."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ucan.data.frames import Frame, RawColumn
from ucan.errors import InvalidInput

Why = Literal["", "asked for", "text", "true or false", "one-hot group", "0 or 1"]


@dataclass(frozen=True)
class Column:
    """One column that a model is given. ``held``: why it gets no noise; "" where it varies.

    ``step``: its values are whole multiples of it (1 for whole numbers, 0.01 for two decimals); None if of nothing known.
    """

    name: str
    held: Why = ""
    step: float | None = None
    text: bool = False
    whole: bool = False
    truth: bool = False


def columns_of(
    frame: Frame, hold: Sequence[str] = (), vary: Sequence[str] = (), like: Frame | None = None
) -> tuple[Column, ...]:
    """The columns of a frame; ``hold`` and ``vary`` are what the user says of them.

    Texts, truth values, one-hot groups and columns of 0 and 1 are held, unless named in ``vary``. What a column holds is
    told from ``like``, a training table, too, where there is one: few rows may look like less than they are.
    """
    for option, chosen in (("hold", hold), ("vary", vary)):
        for name in chosen:
            frame.column(name, option)
    both = sorted(set(hold) & set(vary))
    if both:
        raise InvalidInput(f"{both[0]!r} is to be held and to vary: choose one.")
    seen = [frame] if like is None else [frame, like]
    groups = _one_hot(seen)
    made = []
    for column in frame.columns:
        others = [other.column(column.name, "train") for other in seen]
        if column.texts is not None and column.name in vary:
            raise InvalidInput(f"column {column.name!r} holds texts, to which no noise can be added: leave it held.")
        why = "asked for" if column.name in hold else "" if column.name in vary else _why(others, groups)
        made.append(
            Column(
                column.name, why, _step(others), column.texts is not None, all(o.whole for o in others), column.truth
            )
        )
    if all(column.held for column in made):
        raise InvalidInput(f"every column of {frame.name} is held, so that nothing is left to certify: let one vary.")
    return tuple(made)


def _why(seen: Sequence[RawColumn], groups: frozenset[str]) -> Why:
    if any(column.texts is not None for column in seen):
        return "text"
    if any(column.truth for column in seen):
        return "true or false"
    if seen[0].name in groups:
        return "one-hot group"
    return "0 or 1" if all(_binary(column) for column in seen) else ""


def _binary(column: RawColumn) -> bool:
    """Whether a column holds both 0 and 1 and nothing else: all 0 may be a count that is rarely more."""
    return column.numbers is not None and set(np.unique(column.numbers).tolist()) == {0.0, 1.0}


def _step(seen: Sequence[RawColumn]) -> float | None:
    decimals = [column.decimals for column in seen]
    known = [d for d in decimals if d is not None]
    return None if len(known) < len(decimals) else 10.0 ** -max(known)


def _one_hot(seen: Sequence[Frame]) -> frozenset[str]:
    """The columns of 0 and 1 with a common beginning (color_red, color_blue) of which exactly one is 1 in every row."""
    groups: dict[str, list[str]] = {}
    first = seen[0]
    for column in first.columns:
        values = column.numbers
        beginning = re.match(r"(.+)[_=.:]", column.name)
        if values is not None and beginning and set(np.unique(values).tolist()) <= {0.0, 1.0}:
            groups.setdefault(beginning[1], []).append(column.name)
    found = []
    for names in groups.values():
        parts = [[frame.column(name, "train").numbers for name in names] for frame in seen]
        sums = [sum(part) for part in parts if all(p is not None for p in part)]  # type: ignore[arg-type]
        if len(names) > 1 and len(sums) == len(seen) and all(np.all(s == 1) for s in sums):
            found += names
    return frozenset(found)


# --- amounts per column ---


@dataclass(frozen=True)
class Amount:
    """A number in a column's own unit, or a percentage of what the column usually holds."""

    value: float
    percent: bool = False


def parse_amounts(text: str, option: str) -> dict[str, Amount]:
    """Amounts by column from ``income=5%,age=1``, or from a TOML file of such lines."""
    if Path(text).suffix.lower() == ".toml":
        return {name: parse_amount(value, name, option) for name, value in _read_toml(Path(text), option).items()}
    found: dict[str, Amount] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = part.rpartition("=")
        if not equals or not name.strip():
            raise InvalidInput(f"{option} takes column=number, separated by commas, or a .toml file; got {part!r}.")
        if name.strip() in found:
            raise InvalidInput(f"{option} names {name.strip()!r} twice.")
        found[name.strip()] = parse_amount(value, name.strip(), option)
    if not found:
        raise InvalidInput(f"{option} is empty: write column=number, separated by commas.")
    return found


def parse_amount(value: Any, name: str, option: str) -> Amount:
    """The amount of one column: a number, or a text such as 5%."""
    text = str(value).strip()
    percent = text.endswith("%")
    try:
        number = float(text.removesuffix("%"))
    except ValueError:
        number = math.nan
    if isinstance(value, bool) or not (math.isfinite(number) and number >= 0):
        raise InvalidInput(f"{option}: {name} needs a number of at least 0, such as 2000 or 5%, got {text!r}.")
    return Amount(number, percent)


def _read_toml(path: Path, option: str) -> Mapping[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidInput(f"{option}: {path} cannot be read as TOML: {error}.") from error
