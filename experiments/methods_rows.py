"""What docs/methods.md is made of: our recorded rows, and counts of the authors' released files."""

from __future__ import annotations

import functools
import json
import math
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from methods import ALL, FIFTH, METHODS, SIGMA, Method
from methods_stages import Stage, stages_of, unfinished
from scipy import stats
from suite import ALPHA, DIGITS, looked_at, undecided

from ucan.bounds import anytime_lower_bound
from ucan.rounding import floor_percent

HERE = Path(__file__).parent
RECORDED, RELEASED = HERE / "recorded" / "methods.json", HERE / "released.toml"
LEVELS = tuple(k / 4 for k in range(8))  # beyond 1.75, 100,000 votes certify nothing at σ = 0.5
NAMES = {
    "gaussian": "Gaussian",
    "stability": "Stability",
    "consistency": "Consistency",
    "smoothadv": "SmoothAdv",
    "macer": "MACER",
    "smoothmix": "SmoothMix",
    "catrs": "CAT-RS",
    "acr": "ACR",
    "sphere": "sphere (ours)",
    "drt": "DRT",
}


@dataclass(frozen=True)
class Ours:
    """One recorded row after one of its passes; after that with the most votes for the 2,000 inputs, if no other is named."""

    method: Method
    record: dict[str, Any]
    pass_: Stage | None = None

    @functools.cached_property
    def stage(self) -> Stage:
        """The pass; what is there, where even the first was not ended."""
        return self.pass_ or max(self._passes, key=lambda one: one.votes, default=unfinished(self.record))

    @property
    def _passes(self) -> list[Stage]:
        """Those over the 2,000 inputs that all rows have; where there are none, the first."""
        found = stages_of(self.record)
        return [one for one in found if one.inputs <= FIFTH and one.most == one.votes] or found[:1]

    def with_votes(self, votes: int) -> Ours | None:
        """The row after the pass over the 2,000 inputs with so many votes at most, if there is one."""
        return next((Ours(self.method, self.record, one) for one in self._passes if one.votes == votes), None)

    @property
    def beyond_fifth(self) -> list[Ours]:
        """The row on all inputs, after each pass that gave all of them the same number of votes at most, and as it is now."""
        now = unfinished(self.record)
        ended = [one for one in stages_of(self.record) if one.inputs > FIFTH and one.most == one.votes]
        going = now.inputs == ALL and not any(one.votes >= self.record["n"] for one in ended)
        last = [replace(now, votes=self.record["n"], most=self.record["n"])] if going else []
        return [Ours(self.method, self.record, one) for one in (*ended, *last)]

    @property
    def open(self) -> str:
        """How many inputs the votes left undecided; it is known of the last state, and none are with all votes."""
        (claim,) = self.record["claims"].values()
        if self.stage.reached == looked_at(claim["reached"]):
            return f"{undecided(self.record)['inputs']:,}"
        return "0" if self.votes >= self.record["n"] else "–"

    @property
    def digits(self) -> list[int]:
        """How many levels each input reached."""
        return [DIGITS.index(digit) for digit in looked_at(self.stage.reached)]

    def share(self, level: float) -> float:
        """Certified accuracy at a level, of the inputs that were looked at."""
        place = self.levels.index(level)
        return sum(reached > place for reached in self.digits) / len(self.digits)

    @property
    def levels(self) -> list[float]:
        """The radii that were decided."""
        (claim,) = self.record["claims"].values()
        found: list[float] = claim["levels"]
        return found

    @property
    def audit(self) -> str:
        """How many certificates were attacked, and how many of them broke."""
        audit = self.record["audit"]
        return "–" if audit is None else f"{audit['summary']['attacked']} / {audit['summary']['covered_breaks']}"

    @property
    def name(self) -> str:
        """With the number of inputs, where it is less than 2,000."""
        partly = f" ({len(self.digits):,} pictures)" if len(self.digits) < FIFTH else ""
        return NAMES[self.method.name.partition("-")[0]] + partly

    @property
    def sigma(self) -> float:
        """The scale of the noise."""
        return float(self.method.name.partition("-")[2] or SIGMA)

    @property
    def votes(self) -> int:
        """The most that an input had; what they left undecided counts as not certified."""
        return self.stage.most

    def shown(self, level: float) -> str:
        """The share in percent; "–" where it was not asked for, or so many votes cannot certify it, even if all agree."""
        asked = level in self.levels and most_certified(self.votes) >= stats.norm.cdf(level / self.sigma)
        return floor_percent(self.share(level)) if asked else "–"

    def beyond(self, other: Ours, level: float) -> tuple[float, float]:
        """The difference to another row at a level in points, and its standard error, paired by input."""
        both = min(len(self.digits), len(other.digits))  # all rows go through the inputs in the same order
        ours, theirs = (np.array(row.digits[:both]) > row.levels.index(level) for row in (self, other))
        each = 100.0 * (ours.astype(float) - theirs)
        return float(each.mean()), float(each.std(ddof=1) / math.sqrt(len(each)))


@functools.cache
def most_certified(votes: int) -> float:
    """The largest lower bound on p that so many votes can give."""
    return float(anytime_lower_bound(votes, votes, ALPHA))


@dataclass(frozen=True)
class Released:
    """One file of the authors: counts at ``LEVELS``, of all 10,000 test pictures and of every fifth."""

    method: str
    source: str
    file: str
    about: str
    whole: list[int]
    fifth: list[int]
    passes: int | None = None


def recorded(path: Path = RECORDED) -> dict[str, Ours]:
    """Our rows in the order of ``NAMES``; those that are there."""
    rows = json.loads(path.read_text())["rows"] if path.exists() else {}
    return {name: Ours(METHODS[name], rows[name]) for name in NAMES if name in rows}


def recorded_elsewhere(path: Path = RECORDED) -> dict[str, Ours | None]:
    """The rows at other noise, the smallest first; None for what is not there."""
    rows = json.loads(path.read_text()).get("elsewhere", {}) if path.exists() else {}
    asked = [METHODS[name].at(s) for s in (0.25, 1.0) for name in NAMES if s in METHODS[name].elsewhere]
    return {one.name: Ours(one, rows[one.name]) if one.name in rows else None for one in asked}


def released() -> tuple[dict[str, str], list[Released]]:
    """The sources by name, and the files."""
    found = tomllib.loads(RELEASED.read_text(encoding="utf-8"))
    return found["sources"], [Released(**one) for one in found["files"]]


def counted(text: str) -> tuple[list[int], list[int]]:
    """Of a released file (idx, label, predict, radius, correct, …), how many of all inputs and of every fifth are certified."""
    cells = [line.split("\t") for line in text.splitlines()]
    rows = [(int(c[0]), int(c[4]) == 1, float(c[3])) for c in cells if len(c) >= 5 and c[0].isdigit()]
    whole, fifth = (
        [sum(right and radius >= level for i, right, radius in rows if i % every == 0) for level in LEVELS]
        for every in (1, 5)
    )
    return whole, fifth


def closed(merged: dict[str, Any]) -> dict[str, Any]:
    """The records without their open inputs, which only the weights could go on with; their number stays."""
    for row in (*merged["rows"].values(), *merged.get("elsewhere", {}).values()):
        row |= {"undecided": undecided(row), "open": {}}
    return merged


def kept(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """What was on record with the new rows in it. One that saw fewer inputs, or fewer votes, takes no other's place."""
    found = {**old, **new}
    for part in ("rows", "elsewhere"):
        found[part] = dict(old.get(part, {}))
        for name, row in new.get(part, {}).items():
            if name in found[part] and _extent(row) < _extent(found[part][name]):
                print(f"{name}: the record that is there saw more inputs or votes, and stays")
                continue
            found[part][name] = row
    return found


def _extent(row: dict[str, Any]) -> tuple[int, int]:
    return min(row["inputs"], FIFTH), max((one.votes for one in stages_of(row)), default=0)
