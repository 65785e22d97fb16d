"""A run's frozen config: TOML that is written once, and the rule that a run is resumed only under the same config."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ucan.errors import InvalidInput, StoreError, UcanError
from ucan.storage import sync_folder, write_whole

CONFIG = "config.toml"  # the file in a run's folder
MANIFEST = "manifest.json"  # the list of its files, in the folder of a run that was published
RUN_FORMAT = 1
HEADER = "# A UCAN run, frozen when it began: a changed setting belongs in a new folder.\n"


def frozen(config: dict[str, Any]) -> dict[str, Any]:
    """The config as it will be read back: tuples are lists, a path is text, and a None is left out."""
    return tomllib.loads(to_toml(config))


def handed_out(config: dict[str, Any]) -> dict[str, Any]:
    """A run's config to publish: without a random secret seed."""
    return {k: v for k, v in config.items() if k != "seed"} if config.get("seed_source") == "random" else config


def to_toml(config: dict[str, Any]) -> str:
    """TOML for str, int, float, bool, lists of them, and nested tables."""
    lines: list[str] = []
    _table(config, (), lines)
    return "\n".join(lines) + "\n"


def write_config(path: Path, config: dict[str, Any]) -> None:
    """Write the config atomically."""
    write_whole(path, f"{HEADER}run_format = {RUN_FORMAT}\n{to_toml(config)}".encode())


def read_config(path: Path) -> dict[str, Any]:
    """Read a config that ``write_config`` wrote."""
    try:
        config = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise StoreError(f"{path} cannot be read as a run's config: {error}.") from error
    version = config.pop("run_format", None)
    if version is None:
        raise StoreError(f"{path} is not the config of a UCAN run (it has no run_format); nothing was changed.")
    if version != RUN_FORMAT:
        raise StoreError(f"{path} has run format {version!r}; this version of UCAN reads format {RUN_FORMAT}.")
    return config


def settle(
    folder: Path,
    wanted: dict[str, Any],
    compare: Callable[[dict[str, Any], dict[str, Any]], list[str]],
) -> dict[str, Any]:
    """Start a run in a folder under a frozen config, or resume the run there, if it has the same config.

    Args:
        folder: the run's folder; it exists.
        wanted: the config, as ``frozen`` gives it.
        compare: returns the differences of two configs, one line each, such as ``differences``.

    Returns:
        The config of the run in this folder.
    """
    path = folder / CONFIG
    if not path.is_file():
        write_config(path, wanted)
        sync_folder(folder.resolve().parent)
    begun = read_config(path)
    if begun.get("kind") != wanted.get("kind"):
        raise InvalidInput(
            f"{folder} holds a run of another kind ({begun.get('kind')}); nothing was changed. Give a new folder."
        )
    refuse_changes(folder, compare(begun, wanted))
    return begun


def refuse_changes(place: Path, changed: list[str], error: type[UcanError] = InvalidInput) -> None:
    """Raise ``error`` if there are differences between the run in ``place`` and the requested config."""
    if changed:
        raise error(
            f"{place} holds a run with another config:\n  "
            + "\n  ".join(changed)
            + f"\nGive the same settings to resume it, or another --out to start a new one (or remove {place})."
        )


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """One line per key in which two frozen configs differ, with both values."""
    before, after = _flat(old), _flat(new)
    return [
        f"{key}: the run has {_shown(_told(before), key)}, asked for {_shown(_told(after), key)}"
        for key in sorted(before.keys() | after.keys())
        if _shown(before, key) != _shown(after, key)
    ]


def _told(config: dict[str, Any]) -> dict[str, Any]:
    """A config as messages may tell it."""
    return {**config, "seed": "a secret one"} if config.get("seed_source") == "random" else config


def _table(table: dict[str, Any], path: tuple[str, ...], lines: list[str]) -> None:
    plain = {k: v for k, v in table.items() if not isinstance(v, dict) and v is not None}
    nested = {k: v for k, v in table.items() if isinstance(v, dict)}
    if path:
        lines += ["", f"[{'.'.join(map(_key, path))}]"]
    lines += [f"{_key(key)} = {_value(value, '.'.join((*path, str(key))))}" for key, value in plain.items()]
    for key, value in nested.items():
        _table(value, (*path, key), lines)


def _key(key: Any) -> str:
    if not isinstance(key, str):
        raise InvalidInput(f"a config's keys must be text, got {key!r}.")
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _text(key)


def _value(value: Any, where: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return _float(float(value))
    if isinstance(value, str | Path):
        return _text(str(value))
    if isinstance(value, list | tuple):
        return f"[{', '.join(_value(item, where) for item in value)}]"
    raise InvalidInput(
        f"the config's {where} is a {type(value).__name__}; TOML supports text, numbers, booleans and lists."
    )


def _float(value: float) -> str:
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return repr(value)


def _text(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(f"the config holds text that is not Unicode: {value!r}.") from error
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _flat(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _shown(flat: dict[str, Any], key: str) -> str:
    """A value as the message shows it; a whole float is the int that it equals."""
    if key not in flat:
        return "none"
    value = flat[key]
    whole = isinstance(value, float) and math.isfinite(value) and value == int(value)
    return repr(int(value)) if whole else repr(value)
