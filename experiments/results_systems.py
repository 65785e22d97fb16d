"""One deployed system for all radii, beside the rows of which each was made for a radius of its own."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

from entries import shown_entries
from entries_released import TEST_SET
from results_front import TITLES, places
from results_records import MISSING

from ucan.leaderboard.entry import Entry
from ucan.leaderboard.page import fair
from ucan.rounding import floor_percent

LEVELS = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class System:
    """What was asked for all radii: its name, networks, shares by radius, on how many pictures and with how many votes."""

    name: str
    networks: int
    shares: list[float]
    pictures: int
    n: int

    @property
    def on(self) -> str:
        """On how many pictures, and with how many votes."""
        return f"{self.pictures:,}, {self.n:,}"

    def behind(self, best: list[float]) -> float:
        """Its largest distance from the best rows, in points."""
        return max(100 * (most - share) for share, most in zip(self.shares, best, strict=True))


def systems(folder: Path, data: str) -> tuple[list[Entry], list[float], list[System]]:
    """The best row at each radius, their shares, and the systems that were asked for all radii, the nearest first."""
    rows = [place.one for place in places(folder, data, levels=LEVELS) if place.one is not None]
    if len(rows) < len(LEVELS):
        return [], [], []
    best = [(one.count(level) or 0) / TEST_SET for one, level in zip(rows, LEVELS, strict=True)]
    found = [*_single(folder, data), *_router(folder, data)]
    return rows, best, sorted(found, key=lambda one: one.behind(best))


def one_system(folder: Path) -> list[str]:
    """Of each data set the best rows and the systems beside them."""
    head = ["data", "system", "networks", *(f"{level:g}" for level in LEVELS), "farthest behind", "pictures, n ≤"]
    lines = ["| " + " | ".join(head) + " |", "|---|---|--:|" + "--:|" * (len(LEVELS) + 2)]
    for data, title in TITLES.items():
        rows, best, found = systems(folder, data)
        if rows:
            networks = str(len({one.hashes.weights for one in rows}))
            cells = [title, "the best row at each radius", networks, *map(floor_percent, best), "", ""]
            lines.append("| " + " | ".join(cells) + " |")
        for one in found:
            shares = map(floor_percent, one.shares)
            cells = [title, one.name, str(one.networks), *shares, _points(one.behind(best)), one.on]
            lines.append("| " + " | ".join(cells) + " |")
    return lines if len(lines) > 2 else [MISSING]


def nearest(folder: Path) -> list[str]:
    """The same in a sentence: the network of each data set that is nearest to the best rows, and a nearer router, if any."""
    said = []
    for data, title in TITLES.items():
        _, best, found = systems(folder, data)
        single = next((one for one in found if one.networks == 1), None)
        if single is None:
            continue
        words = f"by up to {_points(single.behind(best))} points on {title} ({single.name}"
        if found[0].networks > 1:
            behind, pictures = _points(found[0].behind(best)), f"{found[0].pictures:,}"
            words += f"; {behind} for a router, computed on {pictures} pictures, never run"
        said.append(f"{words})")
    return (
        [f"One network for all radii from 0 to {LEVELS[-1]:g} is behind these rows, {' and '.join(said)}."]
        if said
        else [MISSING]
    )


def _points(behind: float) -> str:
    """Points, rounded up: nothing is nearer than it says."""
    return f"{math.ceil(round(10 * behind, 6)) / 10:.1f}"


def _single(folder: Path, data: str) -> list[System]:
    """Single networks that were asked for all these radii."""

    def asked(one: Entry) -> bool:
        same = one.claim.data == data and one.claim.norm == 2.0 and one.claim.networks == 1
        return same and fair(one, TEST_SET) and all(one.count(level) is not None for level in LEVELS)

    return [
        System(f"`{one.name}`", 1, [(one.count(level) or 0) / TEST_SET for level in LEVELS], one.claim.inputs or 0,
               one.claim.n or 0)
        for one in shown_entries(folder).values() if asked(one)
    ]  # fmt: skip


def _router(folder: Path, data: str) -> list[System]:
    """The router of two noises whose rule was chosen on other pictures, computed from votes (router.py)."""
    path = folder / f"router-{data}-distance.json"
    if not path.exists():
        return []
    told = json.loads(path.read_text())
    row = told["rows"]["level and veto chosen"]
    rule = f"τ = {row['levels'][0]:g}, ν = {row['veto']:g}; computed from votes"
    name = f"a router of σ = {' and '.join(f'{sigma:g}' for sigma in told['sigmas'])} ({rule})"
    shares = [share / 100 for share in row["accuracy"]]
    return [System(name, 2, shares, told["measured_on"], max(told["n"]))]
