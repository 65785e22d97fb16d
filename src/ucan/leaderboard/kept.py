"""The outcome of a check, kept beside its entry: how many certificates were replayed and attacked, when and on what.

It is a JSON file, NAME.check.json beside NAME.json. Whoever wrote it states it: it is no signature.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ucan.engine import device_name
from ucan.errors import StoreError
from ucan.json_text import read_json
from ucan.leaderboard.checks import Attacks, Checked, CheckJob, Replayed
from ucan.leaderboard.entry import KEPT, Entry
from ucan.runs.fields import entry, from_table, to_table
from ucan.runs.jobs import device_of
from ucan.storage import storage, write_whole
from ucan.version import __version__

FORMAT = 1
ABOUT = ("origin", "claim", "certified", "audit", "sha256")  # what of an entry is checked


@dataclass(frozen=True)
class Kept:
    """A check that was kept. ``of`` is the hash of what was checked, so that a record of another entry is told apart.

    ``replayed`` and ``attacked`` have no numbers where nothing was. ``seed`` is that of the sample, None if it was random.
    """

    format: int | None = entry("ucan_leaderboard_check")
    of: str | None = entry("entry")
    stands: bool | None = entry("stands")
    failed: tuple[str, ...] = entry("failed", ())
    unchecked: tuple[str, ...] = entry("not_checked", ())
    replayed: Replayed = field(default_factory=Replayed)
    attacked: Attacks = field(default_factory=Attacks)
    seed: int | None = entry("seed")
    date: str | None = entry("made.date")
    ucan: str | None = entry("made.ucan")
    torch: str | None = entry("made.torch")
    device: str | None = entry("made.device")


def entry_hash(one: Entry) -> str:
    """A hash of what a check is about; texts such as the authors' names may change."""
    said = {**to_table(one), "certified": dict(one.certified)}
    about = {key: said[key] for key in ABOUT if key in said}
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def kept_of(job: CheckJob, done: Checked) -> Kept:
    """The record of a check that was made now, here."""
    return Kept(
        format=FORMAT,
        of=entry_hash(done.entry),
        stands=done.stands,
        failed=done.named("failed"),
        unchecked=done.named("not checked"),
        replayed=done.replayed or Replayed(),
        attacked=done.attacked or Attacks(),
        seed=job.seed,
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        ucan=__version__,
        torch=str(torch.__version__),
        device=device_name(device_of(job.device)),
    )


def kept_path(of: str | Path) -> Path:
    """Where the record of an entry's check is: NAME.check.json beside NAME.json."""
    return Path(of).with_name(Path(of).name.removesuffix(".json") + KEPT)


def write_kept(kept: Kept, path: str | Path) -> None:
    """Write the record, whole or not at all; an earlier one is replaced."""
    with storage(Path(path)):
        write_whole(Path(path), (json.dumps(to_table(kept), indent=1, ensure_ascii=False) + "\n").encode())


def read_kept(path: str | Path) -> Kept:
    """Read a record. What is none, or cannot be, is an error that names it."""
    path = Path(path)
    try:
        with storage(path):
            table: Any = read_json(path)
    except ValueError as error:
        raise StoreError(f"{path} is not JSON that can be read: {error}.") from error
    if not isinstance(table, dict) or table.get("ucan_leaderboard_check") != FORMAT:
        raise StoreError(f"{path} is not the record of a check: `ucan leaderboard check ENTRY --keep` writes one.")
    found = from_table(Kept, table, str(path))
    if wrong := _wrong(found):
        raise StoreError(f"{path}: {wrong}. Check the entry again with --keep.")
    return found


def read_all_kept(folder: str | Path, entries: Mapping[Path, Entry]) -> dict[Path, Kept]:
    """The records beside these entries of a folder, by the entry's path."""
    places = {path: kept_path(Path(folder) / path) for path in entries}
    return {path: read_kept(place) for path, place in places.items() if place.is_file()}


def _wrong(kept: Kept) -> str:
    """What in a record cannot be; empty if nothing."""
    replayed, attacked = kept.replayed, kept.attacked
    counts = [*vars(replayed).values(), *vars(attacked).values()]
    parts = (replayed.failed or 0, replayed.moved or 0, attacked.broken or 0)
    wholes = (replayed.certificates or 0, replayed.redrawn or 0, attacked.certificates or 0)
    texts = (kept.date, kept.ucan, kept.torch, kept.device, *kept.failed, *kept.unchecked)
    if None in (kept.of, kept.stands, kept.date):
        return "entry, stands and made.date must be stated"
    if any(count is not None and count < 0 for count in counts) or any(
        a > b for a, b in zip(parts, wholes, strict=True)
    ):
        return "its numbers of certificates cannot be"
    if not all(text is None or text.isprintable() for text in texts):
        return "it has characters that cannot be shown"
    if kept.stands is not (not kept.failed):
        return "it states that nothing failed, and what did, or the contrary"
    return ""
