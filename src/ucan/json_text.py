"""JSON that somebody else wrote: read with one meaning, or refused in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ucan.errors import InvalidInput


def parse_json(text: str) -> Any:
    """The values of a JSON text; raises a ValueError that says in words what is wrong with it.

    An object that has a key twice is refused: readers differ in which of the two they take, so that a file could mean one thing
    here and another elsewhere.
    """
    try:
        return json.loads(text, object_pairs_hook=once)
    except (json.JSONDecodeError, InvalidInput):
        raise
    except RecursionError as error:
        raise InvalidInput("it is nested too deeply") from error
    except ValueError as error:  # Python reads no whole number of thousands of digits
        raise InvalidInput("a number in it has too many digits") from error


def read_json(path: str | Path) -> Any:
    """The values in a JSON file; raises an OSError, or a ValueError that says what is wrong with it."""
    return parse_json(Path(path).read_text(encoding="utf-8"))


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON from its pairs; a key that occurs twice is refused."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise InvalidInput(f"the entry {key!r} occurs twice")
        found[key] = value
    return found


def check_text(what: str, value: Any, needed: bool = True) -> None:
    """Refuse what is no text, and half of a surrogate pair: JSON can have it, and no file, hash or terminal takes it."""
    if value is None and not needed:
        return
    if not isinstance(value, str):
        raise InvalidInput(f"{what} is a text{'' if needed else ', or none'}, got {shown(value)}.")
    if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
        raise InvalidInput(f"{what} is not valid Unicode text: {shown(value)}.")


def shown(value: Any) -> str:
    """A value of a file in a message, cut short; Python writes no whole number of thousands of digits."""
    if isinstance(value, int) and abs(value) >= 2**128:
        return f"a whole number of {value.bit_length():,} bits"
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:99]}…"
