"""Writes the entries of `leaderboard/`: ours from the records, others' from the result files that they released, and the page.

    python experiments/entries.py                          ours, and the page
    python experiments/entries.py --released CLONES        others', too, from clones (entries_released.py)

A row that is certified against ℓ2 is so against boxes, too: |δᵢ| ≤ ε in every pixel is within ‖δ‖₂ ≤ ε√d. Records have the ℓ2
radii that were asked, so the number for a box is that of the next larger one: at least so many.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from entries_released import BOXES, PIXELS, TEST_SET, leading, released_entries
from suite import DIGITS, looked_at

from ucan.leaderboard.entry import FORMAT, Attacked, Claim, Entry, Hashes, Made, level_key, read_entries, write_entry
from ucan.leaderboard.kept import read_all_kept
from ucan.leaderboard.page import page

HERE = Path(__file__).parent
RECORDED, BOARD = HERE / "recorded", HERE.parent / "leaderboard"
# Beside `ours` and `imported`, which this script writes, the entries of runs whose network is published lie in `published`.
NORMS = {"l1": 1.0, "l2": 2.0, "linf": float("inf")}
LEAST_ATTACKED = 100  # certificates of a row that is to hold for the pipeline


# --- ours ---


def day(path: Path, found: dict[str, Any], folder: Path = RECORDED) -> str | None:
    """When a record was made: as it says, or else when it came into the repository (`recorded/dates.json`)."""
    dates = folder / "dates.json"
    known = json.loads(dates.read_text()) if dates.exists() else {}
    return found.get("date") or known.get(path.relative_to(folder).as_posix())


def counted(claim: dict[str, Any]) -> dict[str, int]:
    """How many inputs reached each level."""
    seen = looked_at(claim["reached"])
    return {level_key(r): sum(DIGITS.index(c) > k for c in seen) for k, r in enumerate(claim["levels"])}


def attacked(folder: Path, row: str, norm: str) -> Attacked:
    """What the audit of a row in this norm found where its guarantee covers it."""
    path = folder / "audits" / f"{row}.json"
    found = json.loads(path.read_text()) if path.exists() else None
    if found is None or float(found["norm"]) != NORMS[norm]:
        return Attacked()
    summary = found["summary"]
    return Attacked(summary["attacked"], summary["covered_breaks"], summary["bug"])


def recorded_entries(folder: Path = RECORDED) -> dict[str, Entry]:
    """An entry for every row on the whole test set and every norm, by its file's name."""
    found = {}
    for path in (*sorted((folder / "suite").glob("*.json")), *sorted((folder / "counted").glob("*.json"))):
        record = json.loads(path.read_text())
        if record.get("inputs") != TEST_SET:
            continue
        for key in record["claims"]:
            norm, by = key.split()
            if by == "radius":
                one = _of_record(path, record, norm, folder)
                found[f"{one.name}.json"] = one
    return found


def shown_entries(folder: Path = RECORDED) -> dict[str, Entry]:
    """Those for the leaderboard, then the best of them against boxes.

    Of scope pipeline only what was attacked enough: earlier rows are in the long tables alone.
    """

    def enough(one: Entry) -> bool:
        return one.claim.scope != "pipeline" or (one.audit.certificates or 0) >= LEAST_ATTACKED

    found = {name: one for name, one in recorded_entries(folder).items() if enough(one)}
    return found | _against_boxes(found)


def our_entries() -> dict[str, Entry]:
    """What lies in `ours`: a row whose network is published has the entry of its run there, and none of its record."""
    published = {path.name for path in (BOARD / "published").glob("*.json")}
    return {name: one for name, one in shown_entries().items() if name not in published}


def _against_boxes(known: dict[str, Entry]) -> dict[str, Entry]:
    """Of the rows of CIFAR-10 against ℓ2, one network each, those that certify most against a box."""
    some = {}
    for one in known.values():
        claim = one.claim
        if (claim.data, claim.norm, claim.scope, claim.networks) == ("cifar10", 2.0, "pipeline", 1):
            counts = {eps: _beyond(one, eps * math.sqrt(PIXELS)) for eps in BOXES}
            made = replace(one, name=f"{one.name}-linf", about=f"{one.about}; by ‖δ‖₂ ≤ ε√d, so at least so many",
                           claim=replace(claim, norm=math.inf),
                           certified={level_key(eps): n for eps, n in counts.items() if n is not None})  # fmt: skip
            if made.certified:
                some[f"{made.name}.json"] = made
    return leading(some, BOXES)


def _beyond(one: Entry, radius: float) -> int | None:
    """How many inputs are certified at the smallest recorded radius that is not below this one."""
    return next((one.count(level) for level in one.levels if level >= radius), None)


def _of_record(path: Path, record: dict[str, Any], norm: str, folder: Path) -> Entry:
    row, several = record["row"], sum(key.endswith("radius") for key in record["claims"]) > 1
    votes = record.get("undecided", {}).get("votes")
    open_votes = max((n for _, n in record["open"].values()), default=None)
    asked = {key: record.get(key) for key in ("preset", "changes", "seed", "members", "mirrored")}
    minutes = [round(record[f"{what}_seconds"] / 60, 1) or None for what in ("train", "certify")]
    return Entry(
        format=FORMAT,
        name=f"{row}-{norm}" if several else row,
        origin="record",
        by="UCAN",
        about=_about(record),
        source=f"experiments/recorded/{path.relative_to(folder).as_posix()}",
        claim=Claim(
            record["preset"].split("-")[0],
            "test",
            record["inputs"],
            NORMS[norm],
            record["scope"],
            votes or open_votes or record["n"],
            0.0 if record.get("bound") == "exact" else record["alpha"],
            record.get("members", 1),
            False,
        ),
        certified=counted(record["claims"][f"{norm} radius"]),
        audit=attacked(folder, row, norm),
        made=Made(day(path, record, folder), record["hardware"], minutes[0], minutes[1], record["ucan"]),
        hashes=Hashes(
            weights=record["weights"],
            config=hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest(),
            results=hashlib.sha256(path.read_bytes()).hexdigest(),
        ),
    )


def _about(record: dict[str, Any]) -> str:
    mirrored = ", picture and mirror image averaged" if record.get("mirrored") else ""
    changes = " ".join(f"`{change}`" for change in record["changes"])
    begun = f", begun with a network trained like {record['onto']}" if "onto" in record else ""
    if begun and record.get("members", 1) > 1:
        begun = f", each network begun with one of its seed trained like {record['onto']}"
    return f"preset `{record['preset']}`{' with ' if changes else ''}{changes}{begun}{mirrored}; {record['law']}"


def board_page(folder: Path = BOARD) -> str:
    """The page of a folder of entries, with the checks that were kept beside them."""
    known = read_entries(folder)
    return page(known, "Leaderboard", read_all_kept(folder, known))


def main() -> None:
    """Write entries and page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--released", type=Path, help="a folder with clones of the others' repositories")
    args = parser.parse_args()
    parts = {"ours": our_entries()}
    if args.released:
        parts["imported"] = released_entries(args.released)
    for part, entries in parts.items():
        (BOARD / part).mkdir(parents=True, exist_ok=True)
        for old in (BOARD / part).glob("*.json"):
            old.unlink()
        for name, one in entries.items():
            write_entry(one, BOARD / part / name)
    (BOARD / "README.md").write_text(board_page(), encoding="utf-8")


if __name__ == "__main__":
    main()
