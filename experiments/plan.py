"""What makes a row again, as a plan for jobs.sh: each training that it needs, its certification, and its check.

    python experiments/plan.py cifar10-ensemble-on-0.42 cifar10-sphere-far-0.57 > PLAN
    experiments/jobs.sh 1800 RUNS PLAN

Rows that share a network train it once. The plan ends with the commands of keep.py, as comments: they take the seconds of the
last training from RUNS/log/times.txt.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from rows import COUNTED, REACH, Row
from suite import run_of

CERTIFY = "--backend compile --precision bf16 --seed derived"
# `ucan certify` decides radii in one norm; the suite alone makes rows of several claims, and those that a choice completes.
KNOWN = {
    row.name: row
    for row in (*REACH, *COUNTED)
    if len(row.claims) == 1 and row.claims[0].by == "radius" and row.choice is None
}


class Plan:
    """Lines of jobs, each after those that it waits for."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.after: list[str] = []
        self.networks: dict[str, str] = {}  # of a training, by the folder that the suite would give it, its job

    def add(self, row: Row) -> None:
        """Everything that the row needs and is not planned yet."""
        networks = [self.network(row, seed) for seed in range(row.members)]
        model = ",".join([*(f"RUNS/{name}" for name in networks), *(["mirrored"] if row.mirrored else [])])
        (claim,) = row.claims
        votes = f"--stop {','.join(f'{r:g}' for r in claim.levels)} --n {row.n}"
        asked = f"--norm {claim.norm:g} {'--bound exact' if row in COUNTED else votes} {CERTIFY}"
        certify = f"python3 -m ucan certify --model {model} --data {row.data} {asked} -o RUNS/{row.name}-certified"
        self.lines.append(f"{row.name} {','.join(networks)} {certify}")
        self.lines.append(f"{row.name}-check {row.name} check RUNS/{row.name}")
        self.after.append(
            f"python experiments/keep.py RUNS/{row.name}-certified {row.name} --trained RUNS/{networks[0]} "
            f"--train-seconds SECONDS --check RUNS/{row.name}.check.json"
        )

    def network(self, row: Row, seed: int) -> str:
        """The job that trains the row's network of this seed, after the one of the same seed that it begins with."""
        folder, settings = run_of(row, seed, Path(), Path(), [])
        if folder.name in self.networks:
            return self.networks[folder.name]
        name = self.networks[folder.name] = f"{row.name}-seed{settings.seed}"
        first = None if row.onto is None else self.network(KNOWN[row.onto], settings.seed)
        # A job's words are parted at spaces; TOML can do without.
        changes = [*(change.replace(" ", "") for change in row.changes), f"seed={settings.seed}"]
        words = [f"python3 -m ucan train {row.preset}", *(f"--set {change}" for change in dict.fromkeys(changes))]
        words += [] if first is None else [f"--finetune RUNS/{first}"]
        self.lines.append(f"{name} {first or '-'} {' '.join(words)} -o RUNS/{name}")
        return name

    def __iter__(self) -> Iterator[str]:
        yield from self.lines
        yield from (f"# {command}" for command in self.after)


def main() -> None:
    """Print the plan."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="+", choices=KNOWN, metavar="ROW", help=f"of these: {', '.join(KNOWN)}")
    plan = Plan()
    for name in dict.fromkeys(parser.parse_args().rows):
        plan.add(KNOWN[name])
    print(*plan, sep="\n")


if __name__ == "__main__":
    main()
