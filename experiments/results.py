"""Writes docs/results.md and the pages behind it from what is recorded, and the figures of docs/results.md.

    python experiments/results.py
    python experiments/results.py --recorded OUT --pages FOLDER      one's own records; the sentences are still about ours

Nothing is typed in here that was measured. What is not recorded yet is shown as such.
"""

from __future__ import annotations

import argparse
import json
import tomllib
from pathlib import Path

import results_claims as paper_claims
import results_front as front
import results_making as making
import results_picture as picture
from results_goals import choices, missing, targets, tried
from results_records import RECORDED, Recorded
from results_systems import nearest, one_system
from results_tables import audits, beside, beside_alm, canvas, control, formulas, imagenet, universality

HERE = Path(__file__).parent
TEMPLATES, DOCS = HERE / "pages", HERE.parent / "docs"
BENCH = HERE.parent / "benchmarks" / "2026-11-15-h200-packed.json"


def filled(folder: Path = RECORDED) -> dict[str, list[str]]:
    """The lines of every place in a template, by its name."""
    recorded = Recorded(folder)
    paper = tomllib.loads((HERE / "paper.toml").read_text(encoding="utf-8"))
    bench = json.loads(BENCH.read_text()) if BENCH.exists() else None
    return {
        "next goals": front.next_goals(folder), "standing": front.standing(folder), "spread": front.spread(folder),
        "chance": front.chance(folder),
        "holds": front.holds(folder), "behind them": front.behind_them(folder),
        "terms": front.terms(folder), "other norms": front.other_norms(folder),
        "claims": paper_claims.claims(recorded), "budgets": paper_claims.budgets(recorded),
        "boxes": paper_claims.boxes(recorded), "lengths": paper_claims.lengths(recorded), "leading": making.leading(folder),
        "how trained": making.how_trained(folder), "one system": one_system(folder), "nearest": nearest(folder),
        "targets": targets(recorded, bench),
        "tried": tried(recorded), "missing": missing(recorded), "formulas": formulas(recorded),
        "universality": universality(recorded), "beside alm": beside_alm(recorded),
        "imagenet": imagenet(recorded, paper, bench), "canvas": canvas(recorded),
        "control": control(recorded), "audits": audits(recorded), "choices": choices(recorded),
        "errata": [f"- *{e['where']}.* {e['text']}" for e in paper["erratum"]],
        **{f"table {table['id']}": beside(table, recorded) for table in paper["table"]},
    }  # fmt: skip


def pages(folder: Path = RECORDED) -> dict[str, str]:
    """Every page by its file's name."""
    places, found = filled(folder), {}
    for template in sorted(TEMPLATES.glob("*.md")):
        text = template.read_text(encoding="utf-8")
        for name, lines in places.items():
            text = text.replace(f"<!-- {name} -->", "\n".join(lines))
        found[template.name] = text
    return found


def figures(folder: Path = RECORDED) -> dict[str, str]:
    """The figures of docs/results.md by their file's name."""
    return {"results-holds.svg": picture.holds(folder), "results-broken.svg": picture.broken(folder)}


def main() -> None:
    """Write pages and figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recorded", type=Path, default=RECORDED, help="the folder with suite/ and audits/")
    parser.add_argument("--pages", type=Path, default=DOCS, help="where the pages go, with their figures in images/")
    args = parser.parse_args()
    (args.pages / "images").mkdir(parents=True, exist_ok=True)
    for name, text in pages(args.recorded).items():
        (args.pages / name).write_text(text, encoding="utf-8")
    for name, svg in figures(args.recorded).items():
        (args.pages / "images" / name).write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
