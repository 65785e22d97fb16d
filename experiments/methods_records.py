"""The tables and the figure of docs/methods.md, made from the records of methods.py and from authors' released files.

    python experiments/methods_records.py                      writes the page's tables and docs/images/methods.svg
    python experiments/methods_records.py --keep methods.json  takes over rows that methods.py --merge wrote, then writes them
    python experiments/methods_records.py --count FILE.tsv     counts for released.toml, from a file in Cohen's format

Every share rounds down. A row that is not recorded is named as missing.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Callable
from pathlib import Path

from methods import METHODS, PASSES, VOTES
from methods_picture import Point, drawn
from methods_rows import (
    LEVELS,
    NAMES,
    RECORDED,
    Ours,
    closed,
    counted,
    kept,
    most_certified,
    recorded,
    recorded_elsewhere,
    released,
)
from rows import GRID
from scipy import stats

from ucan.choices import METHODS as TEXTS
from ucan.rounding import floor_percent
from ucan.storage import write_whole

HERE = Path(__file__).parent
PLAIN = HERE / "recorded" / "suite" / "cifar10-isotropic-0.5.json"
PAGE, IMAGE = HERE.parent / "docs" / "methods.md", HERE.parent / "docs" / "images" / "methods.svg"
ROUTER = HERE / "recorded" / "router-cifar10-distance.json"
TRAINING_SET = 50_000


# --- the tables ---


def texts_table() -> list[str]:
    """What each recipe is, what it costs, when to take it."""
    lines = ["| recipe | what it is | passes for each input of an epoch | when to take it |", "|---|---|---|---|"]
    return lines + [f"| `{name}` | {one.what} | {one.cost} | {one.when} |" for name, one in TEXTS.items()]


Says = dict[str, Callable[[Ours], str]]


def _table(rows: list[Ours], levels: tuple[float, ...], about: Says, alike: bool = False) -> list[str]:
    """A line for each row: its name, its shares by radius, then what else is said of it; of rows alike the largest in bold."""
    name, *others = about
    sides = "".join("---|" if other == "scope" else "--:|" for other in others)
    lines = [
        "| " + " | ".join([name, *(f"{level:g}" for level in levels), *others]) + " |",
        "|---|" + "--:|" * len(levels) + sides,
    ]
    best = {level: max((row.share(level) for row in rows if row.shown(level) != "–"), default=0.0) for level in levels}
    for row in rows:
        cells = [
            (text := row.shown(level), alike and text != "–" and row.share(level) == best[level] > 0)
            for level in levels
        ]
        shares = [f"**{text}**" if bold else text for text, bold in cells]
        lines.append("| " + " | ".join([about[name](row), *shares, *(about[other](row) for other in others)]) + " |")
    return lines


ABOUT: Says = {
    "method": lambda row: row.name,
    "epochs": lambda row: f"{row.record['epochs']}",
    "passes, million": lambda row: f"{row.record['passes'] / 1e6:.2f}",
    "scope": lambda row: f"`{row.record['scope']}`",
    "attacked / broken": lambda row: row.audit,
    "votes, at most": lambda row: f"{row.votes:,}",
    "open": lambda row: row.open,
}
PICTURES: Says = {
    "method": lambda row: NAMES[row.method.name.partition("-")[0]],
    "pictures": lambda row: f"{len(row.digits):,}",
    "votes, at most": lambda row: f"{row.votes:,}",
}


def ours_table(rows: dict[str, Ours]) -> list[str]:
    """Certified accuracy by radius, at equal cost."""
    lines = _table([*rows.values()], shown_by([*rows.values()]), ABOUT, alike=True)
    missing = [NAMES[name] for name in NAMES if name not in rows]
    lines += ["", f"Not measured: {', '.join(missing)}."] if missing else []
    return lines if "gaussian" in rows else [*lines, "", plain_row()]


def shown_by(rows: list[Ours]) -> tuple[float, ...]:
    """The radii at which any of them shows a share."""
    return tuple(level for level in LEVELS if any(row.shown(level) != "–" for row in rows))


def further_table(rows: dict[str, Ours]) -> list[str]:
    """The same rows on all 10,000 pictures."""
    found = [other for row in rows.values() for other in row.beyond_fifth]
    return _table(found, shown_by(found), {**PICTURES, "open": ABOUT["open"]}) if found else ["Not measured."]


def elsewhere_table(rows: dict[str, Ours | None]) -> list[str]:
    """A table for each other noise, with all passes of every row."""
    lines = list[str]()
    for sigma in sorted({float(name.partition("-")[2]) for name in rows}):
        chosen = {name: row for name, row in rows.items() if float(name.partition("-")[2]) == sigma}
        found = [one for row in chosen.values() if row is not None for one in (row, *row.beyond_fifth)]
        levels = tuple(level for level in GRID if level / sigma < stats.norm.ppf(most_certified(VOTES)))
        missing = [NAMES[name.partition("-")[0]] for name, row in chosen.items() if row is None]
        about = {**PICTURES, "attacked / broken": ABOUT["attacked / broken"]}
        lines += [f"σ = {sigma:g}:", "", *([*_table(found, levels, about), ""] if found else [])]
        lines += [f"Not measured: {', '.join(missing)}.", ""] if missing else []
    return lines[:-1]


def router_table(path: Path = ROUTER) -> list[str]:
    """One system of two noises beside each of them, from what router.py wrote."""
    if not path.exists():
        return ["Not measured on CIFAR-10; on digits it is ([router](router.md#measured))."]
    found = json.loads(path.read_text())
    names = {"a half for every level": "router, τ = 1/2", "levels chosen": "router, τ = {levels} (chosen)",
             "veto chosen": "router, veto ν = {veto} (chosen)",
             "level and veto chosen": "router, τ = {levels}, veto ν = {veto} (chosen)"}  # fmt: skip
    lines = ["| |" + "|".join(f" {r:g} " for r in found["radii"]) + "| largest distance from the better noise |"]
    lines.append("|---|" + "--:|" * (len(found["radii"]) + 1))
    for name, row in found["rows"].items():
        told = {"levels": ", ".join(f"{t:g}" for t in row.get("levels", [])), "veto": f"{row.get('veto', 0):g}"}
        shown = names.get(name, name.replace("sigma ", "σ = ")).format(**told)
        cells = " | ".join(floor_percent(value / 100) for value in row["accuracy"])
        gap = f"{floor_one(min(row['distance']))}" if "distance" in row else "–"
        lines.append(f"| {shown} | {cells} | {gap} |")
    error = 100 * math.sqrt(0.25 / found["measured_on"])
    about = (
        f"τ and ν are chosen on {found['chosen_on']:,} test pictures and measured on the {found['measured_on']:,} others, with "
        f"at most {error:.1f} points of standard error; n = {max(found['n']):,}, α = {found['alpha']:g}."
    )
    return [*lines, "", about]


def floor_one(value: float) -> str:
    """Points with their sign, rounded down to a tenth, so that a distance is never shown too small."""
    return f"{math.floor(10 * value + 1e-9) / 10:+.1f}".replace("-", "−")


def plain_row() -> str:
    """The nearest to Gaussian training at equal cost that is recorded: a row of the suite."""
    found = json.loads(PLAIN.read_text())
    shown = ", ".join(f"{share} at {level}" for level, share in found["accuracy"]["l2 radius"].items())
    return (
        f"The nearest to Gaussian that was measured is a row of [the suite](results.md): the same network after 40 passes a "
        f"picture, on all {found['inputs']:,} pictures, at most 100,000 votes: {shown}."
    )


def differences_table(rows: dict[str, Ours], base: str = "consistency") -> list[str]:
    """Every row against one after the same votes, in points, with the standard error of the difference."""
    if base not in rows:
        return [f"{NAMES[base]} is not measured yet."]
    levels = (0.0, 0.5, 1.0, 1.5)
    lines = ["| method |" + "|".join(f" {level:g} " for level in levels) + "|", "|---|" + "--:|" * len(levels)]
    for name, row in rows.items():
        if name != base:
            beside = rows[base].with_votes(row.votes) or rows[base]
            found = (row.beyond(beside, level) for level in levels)
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
        "further": further_table(rows),
        "elsewhere": elsewhere_table(recorded_elsewhere()),
        "router": router_table(),
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
    parser.add_argument("--keep", type=Path, help="a file of methods.py --merge, whose rows come into the record")
    parser.add_argument("--count", type=Path, help="a released file, to be counted")
    args = parser.parse_args()
    if args.count:
        print("whole = {}\nfifth = {}".format(*counted(args.count.read_text())))
        return
    if args.keep:
        old = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
        together = kept(old, closed(json.loads(args.keep.read_text())))
        write_whole(RECORDED, (json.dumps(together, ensure_ascii=False, indent=1) + "\n").encode())
    rows = recorded()
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), rows), encoding="utf-8")
    IMAGE.write_text(figure(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
