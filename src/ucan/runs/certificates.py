"""The results of a run as JSON files in its folder: certificates, abstentions, and answers to questions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from ucan.certificate import Outcome, save_json
from ucan.json_text import read_json

CERTIFICATES = "certificates"  # the folder of these files, inside the run's


def write_certificate(folder: Path, index: int, outcome: Outcome) -> None:
    """Write the result of one input of the run in ``folder``."""
    path = _path(folder, index)
    path.parent.mkdir(exist_ok=True)
    save_json(outcome, path)


def write_missing(folder: Path, indices: Iterable[int], outcome: Callable[[int], Outcome]) -> None:
    """Write results whose files are missing because an earlier call was interrupted or did not ask for them, or are of fewer
    votes than the result has by now.
    """
    for index in indices:
        path, now = _path(folder, index), outcome(index)
        if not path.exists() or read_json(path).get("evidence", {}).get("n") != now.evidence.n:
            write_certificate(folder, index, now)


def _path(folder: Path, index: int) -> Path:
    return folder / CERTIFICATES / f"{index}.json"
