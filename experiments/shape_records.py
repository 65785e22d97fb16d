"""The records of shape.py, shape_tables.py and their attacks put together, and the tables of docs/shape.md made from them.

    python experiments/shape_records.py                                    (prints the tables)
    python experiments/shape_records.py --merge OUT.json ROW.json …        (several processes' records, one file)

Every number rounds down.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from shape import best_scale

RECORDED = Path(__file__).parent / "recorded"
NAMES = {
    "isotropic": "isotropic",
    "mask": "isotropic on the pixels that ever change",
    "mask-often": "isotropic on the pixels with a tenth of the largest spread",
    "pattern-2": "the paper's pattern, ℓ2",
    "pattern-inf": "the paper's pattern, ℓ∞, κ = 4",
    "two-round": "closed form, harm from a first model's gradients",
    "shaped-0.5": "closed form, power 1/2",
    "shaped-0.75": "closed form, power 3/4",
    "shaped-1": "closed form, power 1",
    "learned": "learned (`BudgetWise`)",
    "composed": "composed, from the closed form on",
}
LEVELS = (0.04, 0.06, 0.08)
DIGITS_LEVELS = (0.0, 0.02, 0.04, 0.05, 0.06, 0.07, 0.08)
TABLES_LEVELS = (0.0, 0.2, 0.3, 0.4)


def merged(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Records with the same settings on the same kind of machine as one, in the order of method, λ and seed."""
    first = records[0]
    for record in records[1:]:
        if any(record[key] != first[key] for key in ("about", "machine")):
            raise SystemExit(f"these were not made alike: {first['about']} and {record['about']}.")
    order = list(NAMES)
    jobs = [job for record in records for job in record["jobs"]]
    jobs.sort(key=lambda job: (order.index(job["method"]), job["scale"], job["seed"]))
    return {"about": first["about"], "machine": first["machine"], "jobs": jobs}


def certified(jobs: list[dict[str, Any]], level: float) -> int | None:
    """The certified accuracy at a level in tenths of a percent, over all of some jobs; None where it was not asked."""
    asked = [job for job in jobs if level in job["levels"]]
    if not asked:
        return None
    hits = sum(round(job["certified"][job["levels"].index(level)] * job["inputs"]) for job in asked)
    return 1000 * hits // sum(job["inputs"] for job in asked)


def shown(tenths: int | None) -> str:
    return "" if tenths is None else f"{tenths / 10:.1f}"


def mnist_rows(final: dict[str, Any], held_out: dict[str, Any]) -> dict[str, list[int | None]]:
    """For every method the certified accuracy at each level, with the λ that was best for it on held-out data."""
    rows: dict[str, list[int | None]] = {}
    for method in dict.fromkeys(job["method"] for job in final["jobs"]):
        tried = [job for job in held_out["jobs"] if job["method"] == method]
        mine = [job for job in final["jobs"] if job["method"] == method]
        best = {level: best_scale(tried, level) for level in LEVELS}
        rows[method] = [certified([job for job in mine if job["scale"] == best[level]], level) for level in LEVELS]
    return rows


def attacked(attacks: list[dict[str, Any]], method: str) -> str:
    """How many certificates of a method were attacked, and how many of them broke."""
    mine = [record["summary"] for record in attacks if record["method"] == method]
    return f"{sum(s['attacked'] for s in mine)} | {sum(s['covered_breaks'] for s in mine)}"


def mnist_table(final: dict[str, Any], held_out: dict[str, Any], attacks: list[dict[str, Any]]) -> list[str]:
    lines = ["| noise | 0.04 | 0.06 | 0.08 | attacked | broken |", "|---|--:|--:|--:|--:|--:|"]
    for method, row in mnist_rows(final, held_out).items():
        lines.append(f"| {NAMES[method]} | {' | '.join(map(shown, row))} | {attacked(attacks, method)} |")
    return lines


def cifar_table(record: dict[str, Any], attacks: list[dict[str, Any]]) -> list[str]:
    levels = record["jobs"][-1]["levels"]
    lines = [
        "| noise | λ | 0 | 2/255 | 4/255 | 6/255 | 8/255 | attacked | broken |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for scale in sorted({job["scale"] for job in record["jobs"]}):
        for job in (job for job in record["jobs"] if job["scale"] == scale):
            row = " | ".join(shown(certified([job], level)) for level in levels)
            told = attacked([attack for attack in attacks if attack["scale"] == scale], job["method"])
            lines.append(f"| {NAMES[job['method']]} | {scale:g} | {row} | {told} |")
    return lines


def digits_table(record: dict[str, Any], attacks: list[dict[str, Any]]) -> list[str]:
    """All rows that have a name, over all seeds."""
    lines = [heading("noise", "σ", levels=DIGITS_LEVELS), "|---|---|" + "--:|" * (len(DIGITS_LEVELS) + 2)]
    for method in NAMES:
        jobs = [job for job in record["jobs"] if job["method"] == method]
        row = " | ".join(shown(certified(jobs, level)) for level in DIGITS_LEVELS)
        lines.append(f"| {NAMES[method]} | {reach(jobs[0])} | {row} | {attacked(attacks, method)} |")
    return lines


def heading(*names: str, levels: tuple[float, ...]) -> str:
    return "| " + " | ".join([*names, *(f"{level:g}" for level in levels), "attacked", "broken"]) + " |"


def reach(job: dict[str, Any]) -> str:
    """The least and the largest σ of a job."""
    if job["sigma"] is None:
        return "per copy"
    least, largest = (f"{job['scale'] * sigma:.2g}" for sigma in job["sigma"])
    return least if least == largest else f"{least} … {largest}"


def tables_table(records: list[dict[str, Any]], attacks: list[dict[str, Any]]) -> list[str]:
    """The two tables: each with two models and two noises."""
    lines = [heading("table", "model", "noise", levels=TABLES_LEVELS), "|---|---|---|" + "--:|" * 6]
    for record in records:
        mine = [a for a in attacks if (a["data"], a["model"]) == (record["table"], record["model"])]
        for method, shares in record["certified"].items():
            job = {"levels": record["levels"], "certified": shares, "inputs": record["rows"]}
            row = " | ".join(shown(certified([job], level)) for level in TABLES_LEVELS)
            name = f"{record['table']} ({record['rows']} rows) | {record['model']} | {method}"
            lines.append(f"| {name} | {row} | {attacked(mine, method)} |")
    return lines


def tables() -> list[str]:
    """All lines that docs/shape.md shows of the records."""
    read = lambda name: json.loads((RECORDED / f"shape-{name}.json").read_text())  # noqa: E731
    digits = digits_table(read("digits"), read("digits-attacks"))
    mnist = mnist_table(read("mnist"), read("mnist-held-out"), read("mnist-attacks"))
    two = tables_table(read("tables"), read("tables-attacks"))
    return [*digits, "", *mnist, "", *cifar_table(read("cifar10"), read("cifar10-attacks")), "", *two]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--merge", nargs="+", type=Path, metavar=("OUT", "ROW"))
    args = parser.parse_args()
    if args.merge:
        out, *rows = args.merge
        out.write_text(json.dumps(merged([json.loads(row.read_text()) for row in rows]), indent=1) + "\n")
    else:
        print("\n".join(tables()))


if __name__ == "__main__":
    main()
