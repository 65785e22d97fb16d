"""Keep a run of `ucan certify` on a whole test set as a record of the suite, with what its audit found.

    python experiments/keep.py RUN-certified cifar10-sphere-0.5 --trained RUN --train-seconds 242 --check RUN.check.json

The row names the preset, the changes and the claims (rows.py). A record says of every input how many of the claimed radii it
reached; the certificates themselves stay in the run's folder. `--trained` is the folder of the training, or a copy of its
config.toml, against which the row's settings are checked; `--check` the record of its replay (`record.sh check`).
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from rows import COUNTED, ROWS, Row
from suite import packed, shares

from ucan.audit import Attempt, summarise
from ucan.config import read_config
from ucan.errors import InvalidInput
from ucan.leaderboard.kept import read_kept
from ucan.leaderboard.making import config_file_hash, entry_of, results_hash
from ucan.runs.levels import Claim
from ucan.runs.read import Run
from ucan.runs.train import changed
from ucan.seating import EXACT
from ucan.storage import write_whole
from ucan.training import TrainSettings, read_settings
from ucan.training.together import Together

RECORDED = Path(__file__).parent / "recorded"


def reached(run: Run, claim: Claim) -> list[int | None]:
    """Of every input, how many levels of the claim its certificate reached for the right class."""
    rows = run.columns
    right = rows["correct"] & ~rows["abstained"] & (rows["radius"] > 0)
    counts = sum((right & (rows["radius"] >= level)).astype(int) for level in claim.levels)
    return [int(count) for count in np.asarray(counts)]


def hardware(device: str | None) -> str:
    """The device of the evidence, as records name it: a GPU by its name, a processor as "CPU"."""
    return "CPU" if device == "cpu" else (device or "").removeprefix("cuda: ")


def record_of(run: Run, row: Row, trained: Path, train_seconds: float) -> dict[str, Any]:
    """The record of a row that this run certified; refused where the run is about something else."""
    (claim,) = row.claims
    config, entry = run.config, entry_of(run.folder)
    settings = changed(read_settings(row.preset), list(row.changes))
    begun = read_config(trained / "config.toml" if trained.is_dir() else trained)
    if TrainSettings.from_dict(begun["training"]) != settings:
        raise InvalidInput(f"{trained} was not trained as the row {row.name} says.")
    if (begun.get("finetune") is None) != (row.onto is None):
        raise InvalidInput(
            f"{trained} began with the weights {begun.get('finetune')}, the row with those of {row.onto}."
        )
    if run.norm != claim.norm or claim.by != "radius" or not np.array_equal(run.columns["idx"], np.arange(run.inputs)):
        raise InvalidInput(f"{run.folder} does not certify every input in the row's norm.")
    if (config.sampling.bound == EXACT) != (row in COUNTED):
        raise InvalidInput(
            f"{run.folder} has the bound {config.sampling.bound}: all draws are counted in the rows of COUNTED."
        )
    together, data = Together.of(config.model.spec or ""), config.data
    if (len(together.folders), together.mirrored) != (row.members, row.mirrored):
        wanted = f"networks: {row.members}, mirrored: {row.mirrored}"
        raise InvalidInput(f"{run.folder} certifies {config.model.spec}; the row's {wanted}.")
    if (data.source, data.split, run.inputs) != (row.data, "test", row.inputs):
        raise InvalidInput(
            f"{run.folder} certifies {run.inputs:,} inputs of {data.source} ({data.split}), not the row's data."
        )
    text = packed(reached(run, claim))
    first = run.outcome(0).evidence
    return {
        "row": row.name, "feeds": row.feeds, "preset": row.preset, "seed": settings.seed, "changes": list(row.changes),
        **row.begins_with,
        "law": repr(first.law), "generator": first.noise.line, "scope": run.scope, "cap": first.law.scale, "mean_scale": 1.0,
        "members": row.members, "mirrored": row.mirrored, "n0": config.sampling.n0, "n": config.sampling.n, "alpha": run.alpha,
        "weights": entry.hashes.weights, "noise": config.noise.state, "precision": first.precision, "backend": first.backend,
        "arithmetic": first.arithmetic, "noise_seed": config.sampling.seed_source, "train_seconds": train_seconds,
        "ucan": first.versions.get("ucan"), "torch": first.versions.get("torch"), "python": first.versions.get("python"),
        "hardware": hardware(first.device), "date": entry.made.date,
        "run_sha256": {"config": config_file_hash(run.folder), "results": results_hash(run.columns)},
        "inputs": run.inputs, "of": run.inputs, "complete": True, **({"bound": EXACT} if row in COUNTED else {}),
        "samples": int((run.columns["n"] + run.columns["n0"]).sum()),
        "certify_seconds": round(60 * (entry.made.certify_minutes or math.nan), 1),
        "accuracy": {claim.key: shares(text, claim.levels)},
        "claims": {claim.key: {"levels": list(claim.levels), "reached": text}}, "open": {},
    }  # fmt: skip


def audit_of(run: Run, record: dict[str, Any]) -> dict[str, Any] | None:
    """What the run's own audit found; None if there is none."""
    folder = run.folder / "audit"
    if not (folder / "attempts.jsonl").exists():
        return None
    config = read_config(folder / "config.toml")
    attempts = [Attempt(**json.loads(line)) for line in (folder / "attempts.jsonl").read_text().splitlines()]
    same = ("preset", "changes", "seed", "members", "mirrored", "weights", "n", "alpha", "precision")
    told = {key: record[key] for key in same}
    return {
        "complete": True, **told, "norm": f"{run.norm:g}", "min_radius": 0.0,
        "budget": {key: config[key] for key in ("steps", "draws", "restarts", "check", "level", "seed")},
        "summary": summarise(attempts).to_dict(), "audit_seconds": None,
        "ucan": record["ucan"], "torch": record["torch"], "hardware": record["hardware"],
    }  # fmt: skip


def replay_of(check: Path) -> dict[str, int]:
    """How many certificates were drawn again from their own noise in a check that was kept, and how many failed."""
    replayed = read_kept(check).replayed
    return {"certificates": replayed.redrawn or 0, "failed": replayed.failed or 0}


def main() -> None:
    """Write the records."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    known = {row.name: row for row in (*ROWS, *COUNTED)}
    parser.add_argument("row", choices=known)
    parser.add_argument("--trained", type=Path, required=True)
    parser.add_argument("--train-seconds", type=float, required=True)
    parser.add_argument("--check", type=Path)
    parser.add_argument("--recorded", type=Path, default=RECORDED)
    asked = parser.parse_args()
    run = Run.open(asked.run)
    row = known[asked.row]
    record = record_of(run, row, asked.trained, asked.train_seconds)
    for kind, found in (("counted" if row in COUNTED else "suite", record), ("audits", audit_of(run, record))):
        if found is not None:
            path = asked.recorded / kind / f"{row.name}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, (json.dumps(found, ensure_ascii=False) + "\n").encode())
            print(f"{path}: {found.get('accuracy') or found['summary']['attacked']}")
    path = asked.recorded / "replays.json"
    replays = json.loads(path.read_text()) if path.exists() else {}
    # A row that is made again is not yet replayed.
    replays[row.name] = {"certificates": 0, "failed": 0} if asked.check is None else replay_of(asked.check)
    write_whole(path, (json.dumps(replays, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
