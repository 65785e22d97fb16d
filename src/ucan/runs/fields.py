"""Frozen records from tables of plain values and back: every field has one key, one type, and a role in a command."""

from __future__ import annotations

import copy
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from ucan.errors import StoreError
from ucan.version import __version__

Record = TypeVar("Record")


@dataclass(frozen=True)
class Option:
    """A field that the user sets with this option. ``default`` is its value without the option.

    ``own``: a trained run has its own value, so the option is not given together with one.
    """

    name: str
    default: Any = None
    own: bool = False


@dataclass(frozen=True)
class Leaf:
    """One field of a record: its path in the record, its key in the table, its type, and its origin.

    ``roles`` gives, for each kind of run, the option of a field, or the reason why it has none. A field with ``later``
    was added by a later version and is not compared with a run that does not have it. A field with ``compared`` false
    only records how other fields were given.
    """

    path: tuple[str, ...]
    key: tuple[str, ...]
    hint: Any
    default: Any
    roles: Mapping[str, Option | str]
    later: bool
    compared: bool

    def of(self, record: Any) -> Any:
        """The field's value."""
        for name in self.path:
            record = getattr(record, name)
        return record


def entry(key: str, default: Any = None, later: bool = False, compared: bool = True, **roles: Option | str) -> Any:
    """A dataclass field stored under this key; a key that ends in ``.*`` takes all other keys of its table."""
    about = {"key": tuple(key.split(".")), "roles": roles, "later": later, "compared": compared}
    if default == {}:
        return field(default_factory=dict, metadata=about)
    return field(default=default, metadata=about)


def leaves(kind: type, path: tuple[str, ...] = ()) -> Iterator[Leaf]:
    """Every field of a record and of its parts."""
    hints = get_type_hints(kind)
    for one in fields(kind):
        here = (*path, one.name)
        if is_dataclass(hints[one.name]):
            yield from leaves(hints[one.name], here)
        else:
            yield Leaf(path=here, hint=hints[one.name], default=_default(one), **one.metadata)


def to_table(record: Any) -> dict[str, Any]:
    """Convert a record to plain values by key; None and empty values are left out."""
    table: dict[str, Any] = {}
    for leaf in leaves(type(record)):
        value = leaf.of(record)
        if value is None or value == {} or value == ():
            continue
        place = table
        for name in leaf.key[:-1]:
            place = place.setdefault(name, {})
        if leaf.key[-1] == "*":
            place.update(value)
        else:
            place[leaf.key[-1]] = list(value) if isinstance(value, tuple) else value
    return table


def from_table(kind: type[Record], table: Mapping[str, Any], where: str) -> Record:
    """Read a record from a table. An unknown key or a value of the wrong type is an error that names ``where``."""
    left = copy.deepcopy(dict(table))
    found = {leaf.path: _value(leaf, left, where) for leaf in leaves(kind)}
    record = _built(kind, found, ())
    unknown = sorted([*_names(left), *_surplus(record)])
    if unknown:
        made = table.get("made")  # where the entry of a leaderboard states its version
        newer = _newer(made.get("ucan") if isinstance(made, dict) else table.get("ucan"))
        advice = (
            f"it was written by UCAN {newer}: update this one ({__version__})"
            if newer
            else "remove it, if you added it"
        )
        raise StoreError(f"{where} has the key {unknown[0]!r}, which this version of UCAN does not know: {advice}.")
    return record


def _built(kind: type[Record], found: Mapping[tuple[str, ...], Any], path: tuple[str, ...]) -> Record:
    hints = get_type_hints(kind)
    values = {}
    for one in fields(kind):  # type: ignore[arg-type]
        here = (*path, one.name)
        values[one.name] = found[here] if here in found else _built(hints[one.name], found, here)
    return kind(**values)


def _surplus(record: Any) -> Iterator[str]:
    """The keys that a part of a record took with all others of its table and does not know, as its ``surplus`` says."""
    for one in fields(record):
        part = getattr(record, one.name)
        if is_dataclass(part):
            yield from getattr(part, "surplus", tuple)()


def _value(leaf: Leaf, left: dict[str, Any], where: str) -> Any:
    """Remove a field's value from the table and return it."""
    place: Any = left
    for name in leaf.key[:-1]:
        place = place.get(name) if isinstance(place, dict) else None
    if not isinstance(place, dict):
        return leaf.default
    if leaf.key[-1] == "*":
        value: Any = dict(place)
        place.clear()
    else:
        value = place.pop(leaf.key[-1], None)
    if value is None:
        return leaf.default
    fits, converted = _converted(value, leaf.hint)
    if not fits:
        raise StoreError(f"{where}: {value!r} is not a valid value of {'.'.join(leaf.key)}.")
    return converted


def _converted(value: Any, hint: Any) -> tuple[bool, Any]:
    """Whether a value has the type, and the converted value."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return next((found for one in get_args(hint) if (found := _converted(value, one))[0]), (False, value))
    if origin is Literal:
        return value in get_args(hint), value
    if origin is tuple:
        item, *_ = get_args(hint)
        parts = [_converted(one, item) for one in value] if isinstance(value, list | tuple) else [(False, None)]
        return all(fits for fits, _ in parts), tuple(one for _, one in parts)
    if origin is not None:  # a mapping; its keys are text, as in every table
        if not isinstance(value, dict):
            return False, value
        _, item = get_args(hint)
        values = {key: _converted(one, item) for key, one in value.items()}
        return all(fits for fits, _ in values.values()), {key: one for key, (_, one) in values.items()}
    if hint is Any:
        return True, value
    if hint is float:
        number = (isinstance(value, int | float) and not isinstance(value, bool)) or value in ("inf", "-inf")
        try:
            return number, float(value) if number else value
        except OverflowError:  # a whole number above the largest float
            return False, value
    return isinstance(value, hint) and not (hint is int and isinstance(value, bool)), value


def _default(one: Any) -> Any:
    return one.default_factory() if callable(one.default_factory) else one.default


def _names(table: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """The keys of a table that have a value; nested keys are joined with a dot."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _names(value, f"{prefix}{key}.")
        elif value is not None:
            yield f"{prefix}{key}"


def _newer(version: Any) -> str | None:
    """The version, if it is later than this one."""

    def parts(text: str) -> list[int]:
        return [int(part) for part in text.split(".")[:3] if part.isdigit()]

    return version if isinstance(version, str) and parts(version) > parts(__version__) else None
