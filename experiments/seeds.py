"""How far the seed of a training moves a row: runs that differ in it alone, on the test inputs that all of them certified.

    python experiments/seeds.py cifar10-sphere-0.42 RUN …

Each RUN is the folder of a training, with RUN-certified beside it; every one must be trained as the row says but for its seed.
Beside them stands what the row's own record says, where none of them has its seed, and what an earlier call kept of other seeds
on the same inputs. How many of the shared inputs each certified at the row's largest radius goes to recorded/seeds/ROW.json.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from keep import RECORDED, hardware
from rows import ROWS, Row
from suite import unpacked

from ucan.config import read_config
from ucan.errors import InvalidInput
from ucan.leaderboard.making import entry_of
from ucan.runs.read import Run
from ucan.runs.train import changed
from ucan.storage import write_whole
from ucan.training import TrainSettings, read_settings


def trained_as(row: Row, folder: Path) -> int:
    """The seed of a training that is the row's in all else; any other is refused."""
    told = TrainSettings.from_dict(read_config(folder / "config.toml")["training"])
    if replace(told, seed=0) != replace(changed(read_settings(row.preset), list(row.changes)), seed=0):
        raise InvalidInput(f"{folder} was not trained as the row {row.name} says.")
    return told.seed


def record_of(row: Row, folders: list[Path], kept: dict[str, Any] | None = None) -> dict[str, Any]:
    """Certified inputs by seed, among those that every run and the row's own record, if there is one, have."""
    (claim,) = row.claims
    level = max(claim.levels)
    certified: dict[int, dict[int, bool]] = {}
    runs = [Run.open(folder.with_name(f"{folder.name}-certified")) for folder in folders]
    weights: dict[int, str | None] = {}
    for folder, run in zip(folders, runs, strict=True):
        rows = run.columns
        right = rows["correct"] & ~rows["abstained"] & (rows["radius"] >= level)
        seed = trained_as(row, folder)
        certified[seed] = dict(zip(rows["idx"].tolist(), right.tolist(), strict=True))
        weights[seed] = entry_of(run.folder).hashes.weights
    if len(certified) < len(folders):
        raise InvalidInput("two of these trainings have the same seed.")
    if kept is not None and kept["seed"] not in certified:
        counts = unpacked(kept["claims"][claim.key]["reached"], kept["of"])
        certified[kept["seed"]] = {i: count == len(claim.levels) for i, count in enumerate(counts) if count is not None}
        weights[kept["seed"]] = kept["weights"]
    shared = sorted(set.intersection(*(set(one) for one in certified.values())))
    apart = np.unique(np.diff(shared))
    return {
        "row": row.name, "norm": claim.norm, "level": level, "inputs": len(shared),
        "every": int(apart[0]) if len(apart) == 1 else None,  # every such test input, from the first on
        "n": runs[0].config.sampling.n, "alpha": runs[0].alpha, "mirrored": row.mirrored,
        "certified": {str(seed): sum(one[i] for i in shared) for seed, one in sorted(certified.items())},
        "weights": [weights[seed] for seed in sorted(weights)],
        "hardware": hardware(runs[0].outcome(0).evidence.device), "date": entry_of(runs[0].folder).made.date,
    }  # fmt: skip


def joined(earlier: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """The new record with the seeds that only an earlier one has; refused if that is about other inputs or votes."""
    same = ("row", "norm", "level", "inputs", "every", "n", "alpha", "mirrored")
    if other := [name for name in same if earlier[name] != found[name]]:
        raise InvalidInput(
            f"the kept record differs in {', '.join(other)}: name the runs of all its seeds, or remove it."
        )
    of = {**_by_seed(earlier), **_by_seed(found)}
    seeds = sorted(of, key=int)
    return {**found, "certified": {seed: of[seed][0] for seed in seeds}, "weights": [of[seed][1] for seed in seeds]}


def _by_seed(record: dict[str, Any]) -> dict[str, tuple[int, str | None]]:
    """Of each seed, how many inputs it certified, and the hash of its weights."""
    pairs = zip(record["certified"].items(), record["weights"], strict=True)
    return {seed: (count, weights) for (seed, count), weights in pairs}


def main() -> None:
    """Write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("row", choices=[row.name for row in ROWS])
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--recorded", type=Path, default=RECORDED)
    asked = parser.parse_args()
    own = asked.recorded / "suite" / f"{asked.row}.json"
    kept = json.loads(own.read_text()) if own.exists() else None
    found = record_of(next(row for row in ROWS if row.name == asked.row), asked.runs, kept)
    path = asked.recorded / "seeds" / f"{asked.row}.json"
    if path.exists():
        found = joined(json.loads(path.read_text()), found)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, (json.dumps(found, ensure_ascii=False) + "\n").encode())
    print(f"{path}: {found['certified']} of {found['inputs']:,}")


if __name__ == "__main__":
    main()
