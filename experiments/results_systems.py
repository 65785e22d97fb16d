"""One deployed system for all radii, beside the rows of which each was made for a radius of its own."""

from __future__ import annotations

import json
from pathlib import Path

from entries import shown_entries
from entries_released import TEST_SET
from results_front import TITLES, places
from results_records import MISSING

from ucan.leaderboard.entry import Entry
from ucan.leaderboard.page import fair
from ucan.rounding import floor_percent

LEVELS = (0.0, 0.25, 0.5, 0.75, 1.0)


def one_system(folder: Path) -> list[str]:
    """Of each data set the best row at each radius, and the systems that were asked for all radii, the nearest first."""
    head = ["data", "system", "networks", *(f"{level:g}" for level in LEVELS), "farthest behind", "pictures, n ≤"]
    lines = ["| " + " | ".join(head) + " |", "|---|---|--:|" + "--:|" * (len(LEVELS) + 2)]
    for data, title in TITLES.items():
        best = [place.one for place in places(folder, data, levels=LEVELS)]
        if None in best:
            continue
        at_most = [(one.count(level) or 0) / TEST_SET for one, level in zip(best, LEVELS, strict=True) if one]
        several = len({one.hashes.weights for one in best if one})
        cells = [title, "the best row at each radius", str(several), *map(floor_percent, at_most), "", ""]
        lines.append("| " + " | ".join(cells) + " |")
        found = [*_single(folder, data, at_most), *_router(folder, data, at_most)]
        lines += [line for _, line in sorted(found, key=lambda one: -one[0])]
    return lines if len(lines) > 2 else [MISSING]


def _line(title: str, name: str, networks: int, shares: list[float], best: list[float], on: str) -> tuple[float, str]:
    """A system's largest distance from the best rows in points, and its line of the table."""
    behind = min(100 * (share - most) for share, most in zip(shares, best, strict=True))
    cells = [title, name, str(networks), *map(floor_percent, shares), f"{behind:+.1f}".replace("-", "−"), on]
    return behind, "| " + " | ".join(cells) + " |"


def _single(folder: Path, data: str, best: list[float]) -> list[tuple[float, str]]:
    """Single networks that were asked for all these radii."""

    def asked(one: Entry) -> bool:
        same = one.claim.data == data and one.claim.norm == 2.0 and one.claim.networks == 1
        return same and fair(one, TEST_SET) and all(one.count(level) is not None for level in LEVELS)

    some = [one for one in shown_entries(folder).values() if asked(one)]
    return [
        _line(TITLES[data], f"`{one.name}`", 1, [(one.count(level) or 0) / TEST_SET for level in LEVELS], best,
              f"{one.claim.inputs:,}, {one.claim.n:,}")
        for one in some
    ]  # fmt: skip


def _router(folder: Path, data: str, best: list[float]) -> list[tuple[float, str]]:
    """The router of two noises whose rule was chosen on other pictures, computed from votes (router.py)."""
    path = folder / f"router-{data}-distance.json"
    if not path.exists():
        return []
    told = json.loads(path.read_text())
    row = told["rows"]["level and veto chosen"]
    rule = f"τ = {row['levels'][0]:g}, ν = {row['veto']:g}"
    name = f"router of σ = {' and '.join(f'{sigma:g}' for sigma in told['sigmas'])}, {rule}, computed"
    shares = [share / 100 for share in row["accuracy"]]
    return [_line(TITLES[data], name, 2, shares, best, f"{told['measured_on']:,}, {max(told['n']):,}")]
