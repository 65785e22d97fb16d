"""The folder of a run: made for a new one, and removed or begun anew while it has no result."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from ucan.config import CONFIG, read_config
from ucan.errors import InvalidInput
from ucan.results.database import count_results
from ucan.results.lock import LOCK

RESULTS = "results.sqlite"


def make_folder(folder: Path) -> None:
    """Create the folder; an existing folder must be empty or a run, even one that has just been started."""
    if folder.is_file():
        raise InvalidInput(f"{folder} is a file, but a run needs a folder; nothing was changed. Give a new folder.")
    folder.mkdir(parents=True, exist_ok=True)
    others = sorted({p.name for p in folder.iterdir()} - {LOCK, f".{CONFIG}.part"})
    if others and not (folder / CONFIG).is_file():
        raise InvalidInput(
            f"{folder} is not empty and is not a run folder (it holds {', '.join(others[:3])}); nothing was changed. "
            "Give a new folder."
        )


def is_begun(folder: Path, wanted: dict[str, Any]) -> bool:
    """Whether a folder holds a run of the wanted kind without any result."""
    if not (folder / CONFIG).is_file() or read_config(folder / CONFIG).get("kind") != wanted.get("kind"):
        return False
    return not _results(folder)


def remove_empty(folder: Path) -> None:
    """Remove a run that has no result, so that its folder does not block another attempt; other files are left alone."""
    names = {CONFIG, RESULTS, f"{RESULTS}-wal", f"{RESULTS}-shm", LOCK}
    if not folder.is_dir() or {path.name for path in folder.iterdir()} - names or _results(folder):
        return
    with suppress(OSError):
        for name in names:
            (folder / name).unlink(missing_ok=True)
        folder.rmdir()


def _results(folder: Path) -> int:
    """How many results the run in a folder has."""
    path = folder / RESULTS
    return count_results(path) if path.is_file() else 0
