"""The outcome of a check, kept beside its entry: how many certificates were replayed and attacked, when and on what.

It is a JSON file, NAME.check.json beside NAME.json. Whoever wrote it states it: it is no signature.
"""

from __future__ import annotations

import datetime
import hashlib
import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ucan.audit.decide import allowed_breaks
from ucan.engine import device_name
from ucan.errors import StoreError
from ucan.json_text import read_json
from ucan.leaderboard.checks import Attacks, Checked, CheckJob, Replayed
from ucan.leaderboard.entry import KEPT, TESTS, Entry
from ucan.runs.fields import entry, from_table, to_table
from ucan.runs.jobs import device_of
from ucan.storage import storage, write_whole
from ucan.version import __version__

FORMAT = 1
REPLAY, ATTACK = "replay", "audit"  # the checks whose certificates are counted
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
    found = {}
    for path, one in entries.items():
        place = kept_path(Path(folder) / path)
        if not place.is_file():
            continue
        found[path] = kept = read_kept(place)
        if kept.of == entry_hash(one) and (wrong := _unsaid_breaks(kept, one)):
            raise StoreError(f"{place}: {wrong}. Check the entry again with --keep.")
    return found


def _wrong(kept: Kept) -> str:
    """What in a record cannot be; empty if nothing."""
    texts = (kept.date, kept.ucan, kept.torch, kept.device, *kept.failed, *kept.unchecked)
    if None in (kept.of, kept.stands, kept.date):
        return "entry, stands and made.date must be stated"
    if not _possible(kept.replayed, kept.attacked):
        return "its numbers of certificates cannot be"
    if not all(text is None or text.isprintable() for text in texts):
        return "it has characters that cannot be shown"
    if kept.stands is not (not kept.failed):
        return "it states that nothing failed, and what did, or the contrary"
    if kept.replayed.failed and REPLAY not in kept.failed:
        return f"{kept.replayed.failed} of its certificates do not stand, and it does not say that the check {REPLAY} failed"
    return ""


def _possible(replayed: Replayed, attacked: Attacks) -> bool:
    """Whether there can be such numbers: each at least 0, and no part more than its whole; what is not stated is 0."""
    of, drawn, redrawn, moved, failed = (value or 0 for value in vars(replayed).values())
    tried, broken = attacked.certificates or 0, attacked.broken or 0
    wholes = [*itertools.pairwise((of, drawn, redrawn, moved, 0)), (drawn, failed + moved), (failed, 0)]
    return all(whole >= part for whole, part in [*wholes, (tried, broken), (broken, 0)])


def _unsaid_breaks(kept: Kept, one: Entry) -> str:
    """Breaks that chance does not explain, in a record that does not say that the attack failed; empty if there are none.

    ``attack_sample`` allows as many, or fewer where it knows of how many certificates the attacked ones were drawn.
    """
    inputs, alpha, broken = one.claim.inputs or 0, one.claim.alpha, kept.attacked.broken or 0
    if alpha is None or not 0 <= alpha < 1 or inputs < 1 or not broken or ATTACK in kept.failed:
        return ""
    of, certificates = kept.replayed.of, kept.replayed.certificates
    drawn = certificates / of if certificates and of else 1.0
    allowed = allowed_breaks(inputs, min(alpha + TESTS, 1 - TESTS) * drawn)
    if broken <= allowed:
        return ""
    unsaid = f"and it does not say that the check {ATTACK} failed"
    return f"{broken} of its certificates broke, where chance explains {allowed}, {unsaid}"
