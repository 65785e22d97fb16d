"""Where the files of a run are, from any working directory, and modules of the current one.

A config keeps paths as they were given, and the working directory relative to the run's folder (``started_in``). So its
data and models are found from elsewhere, also after the whole project was moved, and a config that is published tells no
absolute path.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType

from ucan.errors import InvalidInput, StoreError


def started_in(folder: Path, base: Path | None = None) -> str:
    """The working directory, or ``base``, as seen from a run's folder; absolute where there is no way between the two."""
    return _seen_from(folder.resolve(), base or Path.cwd())


def respelled(text: str, base: Path | None) -> str:
    """A path that is given here, as it is spelled from ``base``; what is no file or folder stays as it is."""
    if base is None or base == Path.cwd() or Path(text).is_absolute() or not Path(text).exists():
        return text
    return _seen_from(base, Path(text).resolve())


def respelled_model(spec: str, base: Path | None) -> str:
    """The same for a model: each of several trained runs with commas between them by itself."""
    return ",".join(respelled(part, base) for part in parts_of(spec))


def _seen_from(folder: Path, path: Path) -> str:
    try:
        return os.path.relpath(path, folder)
    except ValueError:  # on another drive
        return str(path)


def base_of(folder: Path, started: str | None) -> Path | None:
    """The directory that a run's paths are relative to; None if the run does not state it."""
    try:
        return None if started is None else (folder.resolve() / started).resolve()
    except ValueError as error:
        raise StoreError(f"{folder} states that it was started in {started!r}, which is no path: {error}.") from error


def found(text: str, base: Path | None) -> str:
    """A path of a run, as it can be opened from here: beside the run if it is there, else as it was given."""
    path = Path(text)
    if base is None or path.is_absolute() or base == Path.cwd() or not (base / path).exists():
        return text
    return str(base / path)


def found_model(spec: str, base: Path | None) -> str:
    """A model of a run, seen from here: a file, trained runs with commas between them, or a module's name."""
    return spec if is_code(spec) else ",".join(found(part, base) for part in parts_of(spec))


def parts_of(spec: str) -> list[str]:
    """What stands between the commas of a model's name; all of it, if it is a file's, a folder's or a module's."""
    return [spec] if is_code(spec) or _exists(spec) else [part.strip() for part in spec.split(",")]


def loadable(spec: str, base: Path | None, trust: bool) -> str:
    """The same for a model, or data, that is then loaded. ``trust``: code is run that whoever made the run has chosen.

    Importing a module runs its code. So a module's name is searched for where Python searches anyway, the current directory
    included, and only with ``trust`` in the directory that the run states. A call, ``package.module:make(depth=20)``, could be
    one of any function that is installed, with any values, and needs ``trust`` as well.
    """
    if not trust:
        refuse_call(spec)
    elif is_code(spec) and base is not None and str(base) not in sys.path:
        sys.path.append(str(base))  # it stays, since a model may import more when it runs
    return found_model(spec, base)


def import_from_here(name: str) -> ModuleType:
    """Import a module, also from the current directory, which stays on the path since a model may import more when it
    runs.
    """
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()
    return importlib.import_module(name)


def refuse_call(spec: str) -> None:
    """Refuse a call that a file of a run, not the user, says to make."""
    if is_call(spec):
        raise InvalidInput(
            f"a run says to call {spec}, which can run any code: if it is yours, or you trust who made it, add --trust "
            "(trust=True in Python)."
        )


def is_call(spec: str) -> bool:
    """Whether a text says to call something in a module with values of its own."""
    return is_code(spec) and "(" in spec


def is_code(spec: str) -> bool:
    """Whether a text is the name of something in a module."""
    return ":" in spec and not _exists(spec)


def _exists(text: str) -> bool:
    """Whether there is such a file or folder; a text that is too long for a name is none."""
    try:
        return Path(text).exists()
    except OSError:
        return False


def data_root(base: Path | None) -> Path | None:
    """The folder of the data sets that go by name, if it is beside the run; None: the usual one."""
    if base is None or os.environ.get("UCAN_DATA_DIR") or Path("data").is_dir() or not (base / "data").is_dir():
        return None
    return base / "data"


def same_place(old: str | None, base: Path | None, new: str | None) -> bool:
    """Whether a path of a run and one that is given here, spelled otherwise, lead to the same file or folder."""
    if old is None or new is None or base is None:
        return False
    there, here = (base / old).resolve(), Path(new).resolve()
    return there == here and _exists(str(here))


def same_model(old: str | None, base: Path | None, new: str | None) -> bool:
    """The same for a model: each of several trained runs with commas between them, and how they are combined."""
    if old is None or new is None or base is None:
        return False
    before, after = parts_of(old), parts_of(new)
    return len(before) == len(after) and all(
        same_place(a, base, b) or (a == b and not _exists(b) and not _exists(str(base / a)))
        for a, b in zip(before, after, strict=True)
    )
