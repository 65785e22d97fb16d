"""An entry made from a run: what the run itself states; the rest is for the submitter to write."""

from __future__ import annotations

import datetime
import hashlib
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ucan.config import CONFIG, handed_out, read_config, to_toml
from ucan.errors import InvalidInput
from ucan.leaderboard.entry import FORMAT, Attacked, Claim, Entry, Hashes, Made, level_key
from ucan.results.folder import RESULTS
from ucan.results.metrics import Columns, certified_count
from ucan.rounding import ceil_digits
from ucan.runs.read import Run

# The step between the radii of an entry, and how many there are at most, by norm: those of the usual tables.
STEPS = {1.0: (0.5, 9), 2.0: (0.25, 17), math.inf: (2 / 255, 9)}
HASHED = ("idx", "label", "prediction", "abstained", "correct", "radius", "n")


def results_hash(columns: Columns) -> str:
    """A hash of what the rows claim, the same for the same rows wherever they are stored."""
    rows = zip(*(columns[name].tolist() for name in HASHED), strict=True)
    digest = hashlib.sha256()
    for row in rows:
        digest.update("\t".join(map(repr, row)).encode() + b"\n")
    return digest.hexdigest()


def config_file_hash(folder: Path) -> str:
    """A hash of a run's config file, which older entries state instead of ``config_hash``."""
    return hashlib.sha256((folder / CONFIG).read_bytes()).hexdigest()


def config_hash(folder: Path) -> str:
    """A hash of what a run's config says, but for where its files are and a secret seed: the same for a published copy."""
    said = handed_out(read_config(folder / CONFIG))
    table = {key: value for key, value in said.items() if key not in ("model", "weights", "started_in")}
    return hashlib.sha256(to_toml(dict(sorted(table.items()))).encode()).hexdigest()


def counts_of(columns: Columns, levels: Sequence[float]) -> dict[str, int]:
    """How many rows are right and certified at each radius."""
    keys = [level_key(level) for level in levels]
    found = certified_count(columns, [float(key) for key in keys])
    return {key: int(count) for key, count in zip(keys, found, strict=True) if not math.isnan(count)}


def entry_of(folder: str | Path, place: str | None = None, levels: Sequence[float] | None = None) -> Entry:
    """The entry of a run. What a run does not know (networks, extra data, authors) is left open, and the check says so.

    Args:
        folder: the run folder of ``ucan certify`` or ``ucan import``.
        place: the run folder as the entry names it, seen from the entry's own folder.
        levels: the radii to count at; those of the usual tables for its norm if None, up to the first without a certificate.
    """
    run = Run.open(folder)
    if run.budget is not None or run.in_units:
        raise InvalidInput(
            f"{run.folder} certifies a budget or a table's columns: a leaderboard compares radii in a norm."
        )
    if run.norm is None:
        raise InvalidInput(f"{run.folder} does not state its norm: import it again with --norm.")
    if run.left_out or not run.inputs:
        raise InvalidInput(f"{run.folder} is not finished: let `ucan certify` finish it first.")
    config, imported = run.config, run.config.is_imported
    counts = counts_of(run.columns, _usual(run) if levels is None else sorted({0.0, *levels}))
    if run.labelled < run.inputs or not counts:
        raise InvalidInput(f"{run.folder} has inputs without labels or without radii: certified accuracy needs both.")
    covered = run.covered if run.attempts else (None, None)
    claim = Claim(
        data=config.data.source,
        split=config.data.split,
        inputs=run.inputs,
        norm=run.norm,
        scope=run.scope,
        n=None if imported else int(run.columns["n"].max()),
        alpha=run.alpha,
    )
    hashes = Hashes(
        weights=config.model.weights_hash,
        config=config_hash(run.folder),
        results=config.imported.sha256[0] if imported and config.imported.sha256 else results_hash(run.columns),
        data=config.data.fingerprint,
    )
    return Entry(
        format=FORMAT,
        name=run.label,
        origin="imported" if imported else "run",
        run=None if imported else place,
        claim=claim,
        certified=counts,
        audit=Attacked(covered[1], covered[0], run.audit.is_bug if run.audit else None),
        made=Made() if imported else _made(run),
        hashes=hashes,
    )


def _usual(run: Run) -> list[float]:
    """The usual radii for the norm, up to the first at which nothing is certified."""
    step, most = STEPS[float(run.norm or 2)]
    levels = [step * k for k in range(most)]
    counts = certified_count(run.columns, levels)
    return [level for level, count in zip(levels, counts, strict=True) if count > 0 or level == 0 or np.isnan(count)]


def _made(run: Run) -> Made:
    """When, on what and how long, if every row says that; the device is that of the first record."""
    written = datetime.datetime.fromtimestamp((run.folder / RESULTS).stat().st_mtime, datetime.UTC)
    device = run.outcome(int(run.columns["idx"][0])).evidence.device
    minutes = float(run.columns["seconds"].sum()) / 60
    took = float(ceil_digits(minutes, 2)) if math.isfinite(minutes) else None
    return Made(written.date().isoformat(), device, None, took, run.config.ucan)
