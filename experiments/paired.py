"""Ours beside the others' best released file, picture by picture: how many pictures only one of the two certifies.

    python experiments/paired.py CLONES        clones as for entries.py --released; writes recorded/paired.json

Two shares on the same pictures differ by less chance than two of different pictures: only the pictures count that one of them
has and the other has not. A file that gives only the best share at each radius cannot be compared in this way.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
from pathlib import Path
from typing import Any

from entries_released import GRID, TEST_SET, clone_of, git
from results_front import TITLES, Place, places
from results_records import RECORDED, reaches
from suite import in_order


def released(clones: Path, source: str, level: float) -> list[bool] | None:
    """Whether each picture is right and certified at a radius in a released file; None if it has no line for each picture."""
    repository, path, _ = source.removeprefix("github.com/").split(", ")
    text = git(clone_of(clones, repository), "show", f"HEAD:{path}").decode()
    lines = list(csv.DictReader(io.StringIO(text), delimiter="\t"))
    if not lines or "idx" not in lines[0]:
        return None
    found = {int(line["idx"]): int(line["correct"]) == 1 and float(line["radius"]) >= level for line in lines}
    return [found[i] for i in range(TEST_SET)]


def compared(clones: Path, place: Place, folder: Path = RECORDED) -> dict[str, Any] | None:
    """At one radius, the pictures that only ours certifies and those that only theirs does."""
    if place.one is None or place.others is None:
        return None
    theirs = released(clones, str(place.others.source), place.level)
    if theirs is None:
        return None
    record = json.loads((folder / str(place.one.source).removeprefix("experiments/recorded/")).read_text())
    ours = dict(zip(in_order(TEST_SET), reaches(record, "l2 radius", place.level), strict=True))
    return {
        "data": place.data, "level": place.level, "ours": place.one.name, "weights": place.one.hashes.weights,
        "theirs": place.others.source,
        "only_ours": sum(ours[i] and not theirs[i] for i in range(TEST_SET)),
        "only_theirs": sum(theirs[i] and not ours[i] for i in range(TEST_SET)),
    }  # fmt: skip


def main() -> None:
    """Compare all radii, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clones", type=Path, help="a folder with clones of the others' repositories")
    clones = parser.parse_args().clones
    found = [
        one for data in TITLES for place in places(RECORDED, data, levels=GRID) if (one := compared(clones, place))
    ]
    (RECORDED / "paired.json").write_text(json.dumps(found, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
