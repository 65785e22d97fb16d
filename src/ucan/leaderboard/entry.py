"""An entry: what one system certifies on one test set, with the hashes by which it can be checked; one JSON file.

An entry holds counts, not shares: how many inputs are right and certified at each radius, of how many. So nothing is
rounded before it is shown.
"""

from __future__ import annotations

import datetime
import itertools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from ucan.audit.decide import allowed_breaks
from ucan.certificate import SCOPES
from ucan.choices import NORMS, norm_to_json
from ucan.config import CONFIG
from ucan.errors import StoreError
from ucan.json_text import read_json
from ucan.rounding import floor_percent
from ucan.runs.fields import entry, from_table, leaves, to_table
from ucan.storage import storage, write_whole

FORMAT = 1
KEPT = ".check.json"  # the ending of a check that was kept beside its entry
TESTS = 1e-9  # at least what all tests of an audit on one certificate add to α
TESTED = {"digits": 445, "mnist": 10_000, "fashion-mnist": 10_000, "cifar10": 10_000, "imagenet": 50_000}  # test inputs
PLAIN = ("name", "claim.data", "claim.split")  # what a line and its table go by
ORIGINS = {
    "run": "a run of `ucan certify`, with a certificate for every input",
    "record": "a record of which radii each input reached; its certificates are not published here",
    "imported": "counted in a result file that others released",
}


@dataclass(frozen=True)
class Claim:
    """What is claimed: the test set, whose guarantee it is, and at which cost. ``n`` is the most votes that an input used.

    ``alpha`` is 0 where every draw of the noise was counted, so that nothing is left to chance. ``networks`` and ``extra_data``
    are stated by the submitter: None means that they are not stated yet.
    """

    data: str | None = entry("claim.data")
    split: str | None = entry("claim.split")
    inputs: int | None = entry("claim.inputs")
    norm: float | None = entry("claim.norm")
    scope: str | None = entry("claim.scope")
    n: int | None = entry("claim.n")
    alpha: float | None = entry("claim.alpha")
    networks: int | None = entry("claim.networks")
    extra_data: bool | None = entry("claim.extra_data")


@dataclass(frozen=True)
class Attacked:
    """What an audit made of it where the guarantee covers it; all None if it was not attacked."""

    certificates: int | None = entry("audit.certificates")
    broken: int | None = entry("audit.broken")
    bug: bool | None = entry("audit.bug")


@dataclass(frozen=True)
class Made:
    """When and on what it was made. Minutes of a GPU are those of the training and of the certification, if known."""

    date: str | None = entry("made.date")
    hardware: str | None = entry("made.hardware")
    train_minutes: float | None = entry("made.train_minutes")
    certify_minutes: float | None = entry("made.certify_minutes")
    ucan: str | None = entry("made.ucan")


@dataclass(frozen=True)
class Hashes:
    """SHA-256 of the weights, the config, the results and the data, each as far as it is known."""

    weights: str | None = entry("sha256.weights")
    config: str | None = entry("sha256.config")
    results: str | None = entry("sha256.results")
    data: str | None = entry("sha256.data")


@dataclass(frozen=True)
class Entry:
    """One line of the leaderboard. ``certified`` has the number of inputs by radius, the radius as text."""

    format: int | None = entry("ucan_leaderboard")
    name: str | None = entry("name")
    origin: Literal["run", "record", "imported"] | None = entry("origin")
    by: str | None = entry("by")
    about: str | None = entry("about")
    source: str | None = entry("source")
    run: str | None = entry("run")
    claim: Claim = field(default_factory=Claim)
    certified: Mapping[str, int] = entry("certified", {})
    audit: Attacked = field(default_factory=Attacked)
    made: Made = field(default_factory=Made)
    hashes: Hashes = field(default_factory=Hashes)

    @property
    def levels(self) -> tuple[float, ...]:
        """The radii that were asked, in order."""
        return tuple(sorted(float(level) for level in self.certified))

    def count(self, level: float) -> int | None:
        """How many inputs are right and certified at this radius; None if that was not asked."""
        return self.certified.get(level_key(level))

    def share(self, level: float) -> str | None:
        """The same in percent, rounded down."""
        found = self.count(level)
        return None if found is None or not self.claim.inputs else floor_percent(found / self.claim.inputs)


def level_key(level: float) -> str:
    """A radius as the key of ``certified``."""
    return f"{level:.6g}"


def problems(one: Entry) -> list[str]:
    """What is missing in an entry or cannot be, one line each; empty if nothing is."""
    said = []
    claim = one.claim
    required: dict[str, Any] = {"name": one.name, "origin": one.origin, "claim.data": claim.data}
    required |= {"claim.inputs": claim.inputs, "claim.norm": claim.norm, "claim.n": claim.n, "claim.alpha": claim.alpha}
    required |= {"claim.networks": claim.networks, "claim.extra_data": claim.extra_data}
    if one.origin == "imported":
        required["source"] = one.source
    if one.format != FORMAT:
        said.append(f"ucan_leaderboard is {one.format}: this version of UCAN reads format {FORMAT}")
    said += [f"{key} is not stated" for key, value in required.items() if value is None]
    if claim.scope not in (*SCOPES, "unknown"):
        said.append(f"claim.scope is {claim.scope!r}: it must be one of {', '.join((*SCOPES, 'unknown'))}")
    above = {key: value for key, value in required.items() if key != "claim.alpha"}
    said += [f"{key} is {value!r}: it must be above 0" for key, value in above.items() if _not_positive(value)]
    if claim.alpha is not None and not 0 <= claim.alpha < 1:
        said.append(f"claim.alpha is {claim.alpha!r}: it is a probability below 1, 0 where every draw was counted")
    if claim.norm is not None and claim.norm not in NORMS and not _not_positive(claim.norm):
        said.append(f"claim.norm is {claim.norm!r}: it must be 1, 2 or inf")
    return [*said, *_wrong_texts(one), *_wrong_audit(one), *_wrong_making(one.made), *_wrong_counts(one)]


def _wrong_texts(one: Entry) -> list[str]:
    """Texts that a page cannot show, or that only look like another one: the page is grouped by data and split."""
    said = []
    for leaf in leaves(Entry):
        key, value = ".".join(leaf.key), leaf.of(one)
        if not isinstance(value, str):
            continue
        plain = " ".join(value.split())
        if not plain.isprintable():
            said.append(f"{key} has characters that cannot be shown: {value!a}")
        elif key in PLAIN and (not value or value != plain):
            said.append(f"{key} is {value!r}: write it without spaces around it, and not empty")
    return said


def _wrong_audit(one: Entry) -> list[str]:
    audit, claim = one.audit, one.claim
    stated = {name: value for name, value in vars(audit).items() if value is not None}
    if absent := [name for name in vars(audit) if name not in stated] if stated else []:
        return [
            f"audit states {next(iter(stated))} without {absent[0]}: leave all three out where nothing was attacked"
        ]
    if stated and not 0 <= (audit.broken or 0) <= (audit.certificates or 0):
        return [f"audit states {audit.broken} broken of {audit.certificates} certificates"]
    if audit.broken and audit.bug is False and claim.inputs and claim.alpha is not None and 0 <= claim.alpha < 1:
        allowed = allowed_breaks(claim.inputs, min(claim.alpha + TESTS, 1 - TESTS))
        if audit.broken > allowed:
            return [f"audit states {audit.broken} broken and no bug: chance explains at most {allowed}"]
    return []


def _wrong_making(made: Made) -> list[str]:
    minutes = {"train_minutes": made.train_minutes, "certify_minutes": made.certify_minutes}
    said = [
        f"made.{name} is {value!r}: it is a number of minutes"
        for name, value in minutes.items()
        if value is not None and not 0 <= value < math.inf
    ]
    if made.date is not None and not _is_date(made.date):
        said.append(f"made.date is {made.date!r}: write it as 2026-01-31")
    return said


def _wrong_counts(one: Entry) -> list[str]:
    if not one.certified:
        return ["certified is empty: it needs the number of certified inputs by radius"]
    for key in one.certified:
        if not is_radius(key):
            return [
                f"the key {key!r} of certified is not a radius: write it as a number of at most six digits, such as 0.25"
            ]
    most = TESTED.get((one.claim.data or "").lower(), math.inf) if one.claim.split in (None, "test") else math.inf
    if one.claim.inputs is not None and one.claim.inputs > most:
        return [f"claim.inputs is {one.claim.inputs}: the test split of {one.claim.data} has {most:,} inputs"]
    levels = one.levels
    counts: list[Any] = [one.count(level) for level in levels]
    for level, found in zip(levels, counts, strict=True):
        if not isinstance(found, int) or isinstance(found, bool) or found < 0:
            return [f"certified at {level:g} is {found!r}: it must be a number of inputs"]
        if one.claim.inputs is not None and found > one.claim.inputs:
            return [f"certified at {level:g} is {found}, more than the {one.claim.inputs} inputs"]
    rising = [at for at, (a, b) in zip(levels[1:], itertools.pairwise(counts), strict=True) if b > a]
    return [f"certified rises at {at:g}: what is certified at a radius is so at every smaller one" for at in rising]


def is_radius(key: str) -> bool:
    """Whether a key is a radius as ``level_key`` writes it: each radius has one key."""
    try:
        return 0 <= float(key) < math.inf and level_key(float(key)) == key
    except ValueError:
        return False


def _not_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value <= 0


def _is_date(text: str) -> bool:
    try:
        return datetime.date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def read_entry(path: str | Path) -> Entry:
    """Read an entry. A file that is none, an unknown key or a value of the wrong type is an error that names it."""
    path = Path(path)
    if not path.is_file():
        raise StoreError(f"there is no entry {path}: `ucan export RUN --format leaderboard -o {path}` writes one.")
    try:
        with storage(path):
            table = read_json(path)
    except ValueError as error:
        raise StoreError(f"{path} is not JSON that can be read: {error}.") from error
    if not isinstance(table, dict) or "ucan_leaderboard" not in table:
        raise StoreError(f"{path} is not an entry of a leaderboard: it has no key ucan_leaderboard.")
    counts = table.get("certified")
    found = from_table(Entry, {**table, "certified": None}, str(path))
    if counts is not None and not isinstance(counts, dict):
        raise StoreError(f"{path}: certified must be a table of radii and numbers of inputs.")
    return replace(found, certified=dict(counts or {}))


def read_entries(folder: str | Path) -> dict[Path, Entry]:
    """All entries below a folder, by their path in it. Run folders may lie there too: their files are no entries."""
    folder = Path(folder)
    if not folder.is_dir():
        raise StoreError(f"{folder} is not a folder of entries.")
    runs = {path.parent for path in folder.rglob(CONFIG)} - {folder}
    files = [path for path in sorted(folder.rglob("*.json")) if not path.is_dir() and runs.isdisjoint(path.parents)]
    found = {path.relative_to(folder): read_entry(path) for path in files if not _is_kept(path)}
    if not found:
        raise StoreError(f"{folder} has no entries: they are `.json` files.")
    return found


def _is_kept(path: Path) -> bool:
    """Whether a file is the record of a check, beside the entry that it is about."""
    return path.name.endswith(KEPT) and path.with_name(path.name.removesuffix(KEPT) + ".json").is_file()


def repeated(entries: Mapping[Path, Entry]) -> list[str]:
    """Entries that state the results of another one, one line each: whoever comes second has them from the first."""
    said: list[str] = []
    known: dict[tuple[Any, ...], Path] = {}
    for path, one in entries.items():
        if one.hashes.results is not None:
            first = known.setdefault((one.claim.data, one.claim.split, one.claim.norm, one.hashes.results), path)
            said += [f"{first} and {path} state the same results: keep one of them"] if first != path else []
    return said


def text_of(one: Entry) -> str:
    """The entry's file."""
    table = {**to_table(one), "certified": dict(one.certified)}
    if one.claim.norm is not None:
        table["claim"]["norm"] = norm_to_json(one.claim.norm)
    return json.dumps(table, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def write_entry(one: Entry, path: str | Path) -> None:
    """Write an entry, whole or not at all."""
    with storage(Path(path)):
        write_whole(Path(path), text_of(one).encode())
