"""What holds, beside the others' best released files: the first table of docs/results.md and the runs behind it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from entries import BOARD, recorded_entries, shown_entries
from entries_released import BOXES, GRID, LENGTHS, TEST_SET
from results_records import MISSING, between, made_on, up
from suite import undecided

from ucan.leaderboard.entry import Entry, read_entries
from ucan.leaderboard.page import fair, leader
from ucan.rounding import floor_percent

TITLES = {"cifar10": "CIFAR-10", "mnist": "MNIST"}


@dataclass(frozen=True)
class Place:
    """A radius: the best of ours with one network and with several, and the best released file of others."""

    data: str
    level: float
    one: Entry | None
    several: Entry | None
    others: Entry | None

    @property
    def ahead(self) -> float | None:
        """Points by which one network of ours is ahead of the others' best; exact, since all have 10,000 pictures."""
        if self.one is None or self.others is None:
            return None
        ours, theirs = self.one.count(self.level), self.others.count(self.level)
        return 100 * ((ours or 0) - (theirs or 0)) / TEST_SET

    @property
    def best(self) -> list[Entry]:
        """Our rows to name here: one network, and several where they certify more."""
        one, several = ((e.count(self.level) or 0 if e else -1) for e in (self.one, self.several))
        return [e for e in (self.one, self.several if several > one else None) if e is not None]


@dataclass(frozen=True)
class Pair:
    """Pictures that only ours certifies at a radius, and those that only the others' file does."""

    ours: int
    theirs: int

    @property
    def error(self) -> float:
        """One standard error of the difference of the two shares, in points."""
        ours, theirs = self.ours, self.theirs
        return 100 * math.sqrt(ours + theirs - (ours - theirs) ** 2 / TEST_SET) / TEST_SET

    @property
    def within_chance(self) -> bool:
        """Whether the difference is below two standard errors."""
        return abs(self.ours - self.theirs) < 2 * TEST_SET / 100 * self.error


@dataclass(frozen=True)
class Pairs:
    """What was compared picture by picture (paired.py), by data set, radius, our weights and their file."""

    known: dict[tuple[str, float, str, str], Pair]

    @staticmethod
    def of(folder: Path) -> Pairs:
        """As recorded; nothing if nothing is."""
        path = folder / "paired.json"
        found = json.loads(path.read_text()) if path.exists() else []
        names = ("data", "level", "weights", "theirs")
        return Pairs({tuple(one[n] for n in names): Pair(one["only_ours"], one["only_theirs"]) for one in found})

    def at(self, place: Place) -> Pair | None:
        """The pair of a radius; None where the others' file does not list its pictures."""
        if place.one is None or place.others is None:
            return None
        return self.known.get((place.data, place.level, str(place.one.hashes.weights), str(place.others.source)))


def places(folder: Path, data: str, norm: float = 2.0, levels: Sequence[float] = GRID) -> list[Place]:
    """The radii of a norm, with the best rows of scope pipeline on all of the test set, no extra data.

    Of one network those that are on the leaderboard; of several all, attacked or not.
    """

    def asked(known: Iterable[Entry], several: bool = False) -> list[Entry]:
        same = (e for e in known if e.claim.data == data and e.claim.norm == norm and fair(e, TEST_SET))
        return [e for e in same if ((e.claim.networks or 0) > 1 if several else e.claim.networks == 1)]

    kinds = (
        asked(shown_entries(folder).values()),
        asked(recorded_entries(folder).values(), several=True),
        asked(read_entries(BOARD / "imported").values()),
    )
    found = []
    for level in levels:
        one, several, theirs = (leader(some, level) for some in kinds)
        if several is not None and level == 0:
            several = None  # at 0 every radius's own row has a share: the largest is that of the smallest σ asked
        found.append(Place(data, level, one, several, theirs))
    return found


def holds(folder: Path) -> list[str]:
    """The table of what holds: a line for each radius; of each data set one network of ours beside the others' best."""
    head = ["ℓ2 radius", *(cell for title in TITLES.values() for cell in (f"**{title}, ours**", "others", "ahead by"))]
    lines = ["| " + " | ".join(head) + " |", "|--:|" + "--:|--:|--:|" * len(TITLES)]
    for beside in zip(*(places(folder, data) for data in TITLES), strict=True):
        cells = [cell for place in beside for cell in _numbers(place)]
        lines.append(f"| {beside[0].level:g} | {' | '.join(cells)} |")
    return lines


def _numbers(place: Place) -> list[str]:
    """Ours, theirs and the difference."""
    ours = MISSING if place.one is None else f"**{place.one.share(place.level)}**"
    theirs = None if place.others is None else place.others.share(place.level)
    return [ours, theirs or "–", _points(place.ahead)]


def terms(folder: Path) -> list[str]:
    """What every number of the table has in common: one network and scope pipeline, which ``places`` asks for, and the rest."""
    shown = [place for data in TITLES for place in places(folder, data)]
    rows = [place.one for place in shown if place.one is not None]
    if not rows:
        return [MISSING]
    records = [_record(one, folder) for one in rows]
    whole = {_steps(record) for record in records} == {"1/255"}
    plain = {(str(r.get("law")).partition("(")[0], r.get("generator")) for r in records} == {("Gaussian", "Isotropic")}
    pictures, n, dates = (
        between(each) for each in zip(*((e.claim.inputs, e.claim.n, e.made.date) for e in rows), strict=True)
    )
    attacked, broken = (
        between(each) for each in zip(*((e.audit.certificates, e.audit.broken) for e in rows), strict=True)
    )
    return [
        f"Every number of ours: one network, {'isotropic Gaussian noise, ' if plain else ''}{pictures} test pictures, n ≤ {n} "
        f"noisy copies of each, scope `pipeline`, no extra data{', changes in whole grey levels' if whole else ''}; {attacked} "
        f"certificates of each run, of any radius, attacked, {broken} broken; made {dates} on "
        f"{' or '.join(sorted({made_on(None, one.made.hardware) for one in rows}))}."
    ]


def _record(one: Entry, folder: Path) -> dict[str, Any]:
    """The record that an entry of ours was made from."""
    found: dict[str, Any] = json.loads((folder / str(one.source).removeprefix("experiments/recorded/")).read_text())
    return found


def _steps(record: dict[str, Any]) -> str:
    """The steps of the changes that are covered: 1/255, or real."""
    return str(record.get("arithmetic") or "real").removeprefix("grid(").removesuffix(")")


def _run(one: Entry) -> str:
    """A run's name without its data set."""
    return (one.name or "").removeprefix(f"{one.claim.data}-").removesuffix("-linf")


def _points(ahead: float | None) -> str:
    return "–" if ahead is None else f"{ahead:+.2f}".replace("-", "−")


def behind_them(folder: Path) -> list[str]:
    """The runs that the table names, and those of several networks that certify more: what each row must say about itself."""
    head = [
        "run",
        "networks",
        "certified at",
        "scope",
        "changes",
        "pictures, n ≤",
        "undecided",
        "attacked / broken",
        "replayed / failed",
        "made",
    ]
    lines = ["| " + " | ".join(head) + " |", "|---|--:|---|---|---|--:|--:|--:|--:|---|"]
    shown: dict[str, tuple[Entry, list[str]]] = {}
    for place in (place for data in TITLES for place in places(folder, data)):
        for one in place.best:
            shown.setdefault(one.name or "", (one, []))[1].append(f"{place.level:g}: {one.share(place.level)}")
    for name, (one, at) in shown.items():
        record = _record(one, folder)
        cells = [
            f"{name}{', mirrored' if record.get('mirrored') else ''}", str(one.claim.networks), ", ".join(at),
            f"`{one.claim.scope}`", _steps(record), f"{one.claim.inputs:,}, {one.claim.n:,}", str(undecided(record)["inputs"]),
            _attacked(one, record, folder), _replayed(name, folder), made_on(one.made.date, one.made.hardware),
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return lines if len(lines) > 2 else [MISSING]


def _attacked(one: Entry, record: dict[str, Any], folder: Path) -> str:
    """How many certificates were attacked and broken, and their n where it is not the row's."""
    if one.audit.certificates is None:
        return "–"
    votes = json.loads((folder / "audits" / f"{record['row']}.json").read_text())["n"]
    other = "" if votes == record["n"] else f", n = {votes:,}"
    return f"{one.audit.certificates} / {one.audit.broken}{other}"


def _replayed(row: str, folder: Path) -> str:
    """How many certificates were drawn again from their own noise, and failed; a dash where none was."""
    path = folder / "replays.json"
    found = json.loads(path.read_text()).get(row) if path.exists() else None
    return f"{found['certificates']} / {found['failed']}" if found and found["certificates"] else "–"


# Which norm, how its levels are called, and those that are shown.
NORMS = ((math.inf, "ℓ∞", BOXES), (1.0, "ℓ1", LENGTHS[1:]))


def other_norms(folder: Path) -> list[str]:
    """CIFAR-10 against ℓ∞ and ℓ1: ours beside the others' best released file."""
    lines = ["| CIFAR-10 | **ours** | run | others' best | ahead by | their file |", "|---|--:|---|--:|--:|---|"]
    for norm, name, levels in NORMS:
        for place in places(folder, "cifar10", norm, levels):
            level = f"{place.level * 255:g}/255" if norm == math.inf else f"{place.level:g}"
            theirs = "–" if place.others is None else place.others.name
            ours, *beside = _numbers(place)
            ours, run = ("–", "–") if place.one is None else (ours, _run(place.one))
            lines.append(f"| {name}, {level} | {ours} | {run} | {' | '.join(beside)} | {theirs} |")
    return lines


def standing(folder: Path) -> list[str]:
    """Where one network of ours is ahead of the others' best file, level with it within chance, and behind."""
    lines, pairs = [], Pairs.of(folder)
    for data, title in TITLES.items():
        known = places(folder, data)
        level = [p for p in known if p.ahead == 0 or ((pair := pairs.at(p)) is not None and pair.within_chance)]
        sure = [p for p in known if p.ahead is not None and p not in level]
        lead, behind = ([p for p in sure if ((p.ahead or 0) > 0) == wanted] for wanted in (True, False))
        unknown = [p for p in known if p.one is None]
        said = [
            f"we {what} at {'every radius of the table' if len(some) == len(known) else _levels(some)}"
            for what, some in (("lead", lead), ("are level within chance", level), ("are behind", behind))
            if some
        ]
        if unknown:
            said.append(f"we have no row on all {TEST_SET:,} pictures for {_levels(unknown)}")
        networks = len({p.one.hashes.weights for p in known if p.one is not None})
        lines.append(f"- **{title}**, by ℓ2 radius, {networks} networks for {len(known)} radii: {'; '.join(said)}.")
    return lines


def _levels(some: Sequence[Place]) -> str:
    return ", ".join(f"{place.level:g}" for place in some)


# The goals for CIFAR-10, ℓ2, in % by radius: one network, and four to eight.
REACH_ONE = dict(zip(GRID, (88, 75.5, 62.5, 50, 40.5, 35, 31, 26.5, 21.5, 19), strict=True))
REACH_SEVERAL = {0.75: 51.5, 1.0: 42.0}


def next_goals(folder: Path) -> list[str]:
    """What is to be reached on equal terms: one network or several, all 10,000 pictures, no extra data."""
    lines = ["| ℓ2 radius | others' best file, one network | ours, one network | goal | ours, several networks | goal |",
             "|--:|--:|--:|--:|--:|--:|"]  # fmt: skip
    for place in places(folder, "cifar10"):
        theirs = place.others.share(place.level) if place.others else None
        goals = ((place.one, REACH_ONE[place.level]), (place.several, REACH_SEVERAL.get(place.level)))
        cells = [cell for ours, goal in goals for cell in _beside(ours, place.level, goal)]
        lines.append(f"| {place.level:g} | {theirs or '–'} | {' | '.join(cells)} |")
    return lines


def _beside(ours: Entry | None, level: float, goal: float | None) -> tuple[str, str]:
    """A share with whether it reaches its goal, and the goal."""
    if goal is None:
        return "–", "–"
    share = ours.share(level) if ours else None
    if ours is None or share is None:
        return MISSING, f"{goal:g}"
    attacked = "" if ours.audit.certificates else " (not attacked)"
    return f"{share}, {'reached' if float(share) >= goal else 'missed'}{attacked}", f"{goal:g}"


def spread(folder: Path) -> list[str]:
    """How far the seed of a training moves a row, in one line: a sentence for each row that was trained several times."""
    lines = []
    for path in sorted((folder / "seeds").glob("*.json")):
        found = json.loads(path.read_text())
        shares = [floor_percent(count / found["inputs"]) for count in found["certified"].values()]
        every = f" (every {found['every']}th)" if (found["every"] or 1) > 1 else ""
        trained = f"`{found['row']}` at {found['level']:g}, trained with the seeds {', '.join(found['certified'])}"
        lines.append(f"{trained}, has {' / '.join(shares)} on {found['inputs']:,} of the test pictures{every}.")
    return [" ".join(lines) or MISSING]


def chance(folder: Path) -> list[str]:
    """Which differences to the others' files may be chance, of those that were compared picture by picture (paired.py)."""
    pairs = Pairs.of(folder)
    errors, unsure, equal = [], [], []
    for data, title in TITLES.items():
        within = []
        for place in places(folder, data):
            pair = pairs.at(place)
            if pair is None:
                continue
            errors.append(pair.error)
            if pair.within_chance:
                ratio = abs(pair.ours - pair.theirs) / (TEST_SET / 100 * pair.error)
                within.append(f"{place.level:g} ({ratio:.2f})")
            if pair.ours == pair.theirs:
                equal.append(f"{title} at {place.level:g} ({pair.ours} each)")
        unsure += [f"{title} at {', '.join(within)}"] if within else []
    if not errors:
        return [MISSING]
    said = (
        "Compared picture by picture, where the others' file lists its pictures (`experiments/paired.py`), one standard error "
        f"of *ahead by* is {up(min(errors))} to {up(max(errors))} points. Within two of them, so perhaps chance "
        f"(in brackets: how many): {'; '.join(unsure) or 'none'}."
    )
    if equal:
        said += f" Equal numbers are a coincidence: each side certifies pictures that the other does not, {', '.join(equal)}."
    return [said]
