"""The tables and the figure of docs/methods.md, made from the records of methods.py and from authors' released files.

    python experiments/methods_records.py                      writes the page's tables and docs/images/methods.svg
    python experiments/methods_records.py --keep methods.json  takes over what methods.py --merge wrote, then writes them
    python experiments/methods_records.py --count FILE.tsv     counts for released.toml, from a file in Cohen's format

Every share rounds down. A row that is not recorded is named as missing.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from methods import METHODS, PASSES, SIGMA, Method
from methods_picture import Point, drawn
from scipy import stats
from suite import ALPHA, DIGITS, looked_at, undecided

from ucan.bounds import anytime_lower_bound
from ucan.choices import METHODS as TEXTS
from ucan.rounding import floor_percent
from ucan.storage import write_whole

HERE = Path(__file__).parent
RECORDED, RELEASED = HERE / "recorded" / "methods.json", HERE / "released.toml"
PLAIN = HERE / "recorded" / "suite" / "cifar10-isotropic-0.5.json"
PAGE, IMAGE = HERE.parent / "docs" / "methods.md", HERE.parent / "docs" / "images" / "methods.svg"
LEVELS = tuple(k / 4 for k in range(8))  # beyond 1.75, 100,000 votes certify nothing at σ = 0.5
TRAINING_SET, INPUTS = 50_000, 2_000
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


# --- what is known ---


@dataclass(frozen=True)
class Ours:
    """One recorded row."""

    method: Method
    record: dict[str, Any]

    @property
    def digits(self) -> list[int]:
        """How many levels each input reached."""
        (claim,) = self.record["claims"].values()
        return [DIGITS.index(digit) for digit in looked_at(claim["reached"])]

    def share(self, level: float) -> float:
        """Certified accuracy at a level, of the inputs that were looked at."""
        (claim,) = self.record["claims"].values()
        place = claim["levels"].index(level)
        return sum(reached > place for reached in self.digits) / len(self.digits)

    @property
    def audit(self) -> str:
        """Attacked, and broken in a way that the guarantee covers."""
        audit = self.record["audit"]
        return "–" if audit is None else f"{audit['summary']['attacked']} / {audit['summary']['covered_breaks']}"

    @property
    def name(self) -> str:
        """With the number of inputs, where it is not all 2,000."""
        partly = f" ({len(self.digits):,} pictures)" if len(self.digits) < INPUTS else ""
        return NAMES[self.method.name] + partly

    @property
    def votes(self) -> int:
        """The most that an input had; what they left undecided counts as not certified."""
        cap: int = self.record["passed"] or undecided(self.record)["votes"]
        return cap

    def shown(self, level: float) -> str:
        """The share in percent; "–" where so many votes cannot certify the level, even if all agree."""
        least = stats.norm.cdf(level / SIGMA)
        return floor_percent(self.share(level)) if _most(self.votes) >= least else "–"

    def beyond(self, other: Ours, level: float) -> tuple[float, float]:
        """The difference to another row at a level in points, and its standard error, paired by input."""
        place = next(iter(self.record["claims"].values()))["levels"].index(level)
        both = min(len(self.digits), len(other.digits))  # all rows go through the inputs in the same order
        ours, theirs = (np.array(row.digits[:both]) > place for row in (self, other))
        each = 100.0 * (ours.astype(float) - theirs)
        return float(each.mean()), float(each.std(ddof=1) / math.sqrt(len(each)))


@functools.cache
def _most(votes: int) -> float:
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
    for row in merged["rows"].values():
        row |= {"undecided": undecided(row), "open": {}}
    return merged


# --- the tables ---


def texts_table() -> list[str]:
    """What each recipe is, what it costs, when to take it."""
    lines = ["| recipe | what it is | passes for each input of an epoch | when to take it |", "|---|---|---|---|"]
    return lines + [f"| `{name}` | {one.what} | {one.cost} | {one.when} |" for name, one in TEXTS.items()]


def ours_table(rows: dict[str, Ours]) -> list[str]:
    """Certified accuracy by radius, at equal cost."""
    head = "| method | epochs | passes, million | scope | attacked / broken | votes, at most |"
    lines = [
        head + "|".join(f" {level:g} " for level in LEVELS) + "|",
        "|---|--:|--:|---|--:|--:|" + "--:|" * len(LEVELS),
    ]
    best = {level: max((row.share(level) for row in rows.values()), default=0.0) for level in LEVELS}
    for row in rows.values():
        about = f"| {row.name} | {row.record['epochs']} | {row.record['passes'] / 1e6:.2f} | `{row.record['scope']}` "
        cells = [(row.shown(level), row.share(level) == best[level] > 0) for level in LEVELS]
        shown = " | ".join(f"**{text}**" if bold else text for text, bold in cells)
        lines.append(about + f"| {row.audit} | {row.votes:,} | {shown} |")
    missing = [NAMES[name] for name in NAMES if name not in rows]
    lines += ["", f"Not measured: {', '.join(missing)}."] if missing else []
    return lines if "gaussian" in rows else [*lines, "", plain_row()]


def plain_row() -> str:
    """The nearest to Gaussian training at equal cost that is recorded: a row of the suite."""
    found = json.loads(PLAIN.read_text())
    shown = ", ".join(f"{share} at {level}" for level, share in found["accuracy"]["l2 radius"].items())
    return (
        f"The nearest to Gaussian that was measured is a row of [the suite](results.md): the same network after 40 passes a "
        f"picture, on all {found['inputs']:,} pictures, at most 100,000 votes: {shown}."
    )


def differences_table(rows: dict[str, Ours], base: str = "consistency") -> list[str]:
    """Every row against one, in points, with the standard error of the difference."""
    if base not in rows:
        return [f"{NAMES[base]} is not measured yet."]
    levels = (0.0, 0.5, 1.0, 1.5)
    lines = ["| method |" + "|".join(f" {level:g} " for level in levels) + "|", "|---|" + "--:|" * len(levels)]
    for name, row in rows.items():
        if name != base:
            found = (row.beyond(rows[base], level) for level in levels)
            lines.append(
                f"| {row.name} | " + " | ".join(f"{d:+.1f} ± {e:.1f}".replace("-", "−") for d, e in found) + " |"
            )
    return lines


def settings_table(rows: dict[str, Ours]) -> list[str]:
    """What was trained, and where it differs from the authors' settings."""
    lines = ["| method | recipe | inputs a step | lr | differs from the authors' |", "|---|---|--:|--:|---|"]
    for name, method in METHODS.items():
        shown = rows[name].record["recipe"] if name in rows else {"kind": method.recipe, **method.parameters}
        values = ", ".join(f"{key} {value:g}" for key, value in shown.items() if key != "kind")
        batch = rows[name].record["batch"] if name in rows else method.batch or 256 // int(method.parameters["draws"])
        lines.append(
            f"| {NAMES[name]} | `{shown['kind']}`: {values} | {batch} | {method.lr:g} | {method.differs or '–'} |"
        )
    return lines


def released_table(rows: dict[str, Ours]) -> list[str]:
    """The authors' numbers on the whole test set; on every fifth picture; and ours beside them at three radii."""
    sources, files = released()
    head = "| method | training | passes a picture | file of |"
    lines = [head + "|".join(f" {level:g} " for level in LEVELS) + "| 0.5, same 2,000 | ours | 1, same 2,000 | ours |"]
    lines.append("|---|---|--:|---|" + "--:|" * (len(LEVELS) + 4))
    for one in files:
        whole = " | ".join(floor_percent(count / 10_000) for count in one.whole)
        ours = rows.get(one.method)
        beside = [
            f"{floor_percent(one.fifth[LEVELS.index(level)] / 2_000)} | {ours.shown(level) if ours else '–'}"
            for level in (0.5, 1.0)
        ]
        passes = "–" if one.passes is None else f"{one.passes:,}"
        lines.append(
            f"| {NAMES[one.method]} | {one.about} | {passes} | {one.source} | {whole} | {' | '.join(beside)} |"
        )
    lines += ["", "Files: " + "; ".join(f"*{name}* is {source}" for name, source in sources.items()) + "."]
    return lines


def written(page: str, rows: dict[str, Ours]) -> str:
    """The page with its tables made anew, each between <!-- NAME --> and <!-- end -->."""
    tables = {
        "recipes": texts_table(),
        "equal terms": ours_table(rows),
        "differences": differences_table(rows),
        "settings": settings_table(rows),
        "released": released_table(rows),
    }
    for name, lines in tables.items():
        block = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        if not block.search(page):
            raise SystemExit(f"{PAGE} has no place for the table {name!r}: <!-- {name} --> … <!-- end -->.")
        page = block.sub(lambda found, lines=lines: found[1] + "\n".join([*lines, found[2]]), page)
    return page


# --- the figure ---


def points(rows: dict[str, Ours], level: float) -> list[Point]:
    """Ours, and the authors' files whose cost is known, on the same test pictures."""
    numbers = {name: i for i, name in enumerate(NAMES)}
    found = [
        Point(NAMES[name], row.record["passes"] / TRAINING_SET, 100 * row.share(level), True, numbers[name])
        for name, row in rows.items()
    ]
    theirs = [one for one in released()[1] if one.passes is not None]
    return found + [
        Point(
            NAMES[one.method], float(one.passes or 0), one.fifth[LEVELS.index(level)] / 20, False, numbers[one.method]
        )
        for one in theirs
    ]


def figure(rows: dict[str, Ours]) -> str:
    """Accuracy against training cost at two radii."""
    return drawn({level: points(rows, level) for level in (0.5, 1.0)}, PASSES / TRAINING_SET)


def main() -> None:
    """Take over records, then write page and figure; or count a released file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, help="a file of methods.py --merge, to become the record")
    parser.add_argument("--count", type=Path, help="a released file, to be counted")
    args = parser.parse_args()
    if args.count:
        print("whole = {}\nfifth = {}".format(*counted(args.count.read_text())))
        return
    if args.keep:
        kept = closed(json.loads(args.keep.read_text()))
        write_whole(RECORDED, (json.dumps(kept, ensure_ascii=False, indent=1) + "\n").encode())
    rows = recorded()
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), rows), encoding="utf-8")
    IMAGE.write_text(figure(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
