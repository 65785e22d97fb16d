"""The results of a run as JSON files in its folder: certificates, abstentions, and answers to questions."""

from __future__ import annotations

import json
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
    """Write results whose files are missing because an earlier call was interrupted or did not ask for them, are damaged, or
    say something else: they may be of fewer votes than the result has by now, or of another run.
    """
    for index in indices:
        now = outcome(index)
        if not _holds(_path(folder, index), now):
            write_certificate(folder, index, now)


def _holds(path: Path, outcome: Outcome) -> bool:
    """Whether a file is there that says this; one that cannot be read says nothing."""
    try:
        record = read_json(path)
    except (OSError, ValueError):
        return False
    return bool(record == json.loads(json.dumps(outcome.to_dict(path.parent))))


def _path(folder: Path, index: int) -> Path:
    return folder / CERTIFICATES / f"{index}.json"
