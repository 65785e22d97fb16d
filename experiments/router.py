"""One system of two or three noises: how far its certified accuracy is from the best single noise at each radius.

    for s in 0.5 0.25; do               # trained runs; about a minute each on one H200 (20 million votes)
      ucan certify --model RUNS/sigma-$s --data cifar10 --skip 5 --n 10000 --arithmetic real --precision bf16 \\
        --backend compile -o OUT/certified-$s
    done
    python experiments/router.py OUT/certified-0.5 OUT/certified-0.25 --out router.json         # seconds on a CPU

The runs are certified ones (fixed n, binary bound, isotropic Gaussian noise); what is compared are the inputs that all of them
have, so that one which was stopped early still counts. Their votes say what a router
certifies (docs/router.md): the wide noise answers with a class that has more than τ, where the narrow one gives that class more
than ν (a veto); else the narrow one answers. τ and ν are chosen on every second input, and the table is about the others. With
two runs it is what `ucan certify --model level.toml` certifies, up to chance; three are a sketch. Distances are from the best
single noise at each radius, by the binary bound or the two-class one, whichever gives more.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.special import ndtri

from ucan import Gaussian, __version__
from ucan.bounds import lower_bounds
from ucan.runs.read import Run
from ucan.storage import write_whole

ALPHA, RADII = 0.001, (0.0, 0.25, 0.5, 0.75, 1.0)
LEVELS, VETOES = (0.5, 0.52, 0.55, 0.6, 0.65, 0.7, 0.8), (0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4)


@dataclass(frozen=True)
class Counted:
    """The votes of one noise: σ, and of every input those that choose a class (inputs, classes) and the n others."""

    sigma: float
    selection: np.ndarray
    counts: np.ndarray
    n: int

    def of(self, rows: np.ndarray) -> Counted:
        """The same for some of the inputs."""
        return Counted(self.sigma, self.selection[rows], self.counts[rows], self.n)


@dataclass(frozen=True)
class Rule:
    """τ of every noise but the last, and ν, which a class must have under the next noise for the wider one to answer it."""

    levels: tuple[float, ...]
    veto: float = 0.0


def read(folder: str) -> tuple[Counted, np.ndarray, np.ndarray]:
    """A certified run: its votes, the inputs' numbers, their labels."""
    run = Run.open(folder)
    idx, labels = (run.columns[name] for name in ("idx", "label"))
    found = [run.outcome(int(i)).evidence for i in idx]
    first = found[0]
    if (
        not isinstance(first.law, Gaussian)
        or (first.bound, first.arithmetic) != ("binary", "real")
        or {e.n for e in found} != {first.n}
    ):
        raise SystemExit(f"{folder}: certify with Gaussian noise, a fixed n, the binary bound and --arithmetic real.")
    votes = (np.array([getattr(e, name) for e in found]) for name in ("selection", "counts"))
    return Counted(first.law.scale, *votes, first.n), np.asarray(idx), np.asarray(labels)


def on_the_same(found: list[tuple[Counted, np.ndarray, np.ndarray]]) -> tuple[list[Counted], np.ndarray]:
    """The votes of every run for the inputs that all of them have, and these inputs' labels."""
    both = functools.reduce(np.intersect1d, [idx for _, idx, _ in found])
    if len(both) < 2:
        raise SystemExit("the runs have no inputs in common: certify the same ones with each noise.")
    places = [np.argsort(idx)[np.searchsorted(np.sort(idx), both)] for _, idx, _ in found]
    labels = [labels[rows] for (_, _, labels), rows in zip(found, places, strict=True)]
    if any(not np.array_equal(labels[0], other) for other in labels):
        raise SystemExit("the runs give the same inputs different labels: they are about different data.")
    return [one.of(rows) for (one, *_), rows in zip(found, places, strict=True)], labels[0]


def shares(one: Counted, classes: np.ndarray, alpha: float | None) -> tuple[np.ndarray, np.ndarray]:
    """Φ⁻¹ of a lower bound on each input's class, and of an upper bound on every other; estimates by the selection if None."""
    votes, n = (one.counts, one.n) if alpha else (one.selection, int(one.selection[0].sum()))
    own = np.take_along_axis(votes, classes[:, None], 1)[:, 0]
    others = votes.copy()
    np.put_along_axis(others, classes[:, None], -1, 1)
    most = others.max(1)
    if alpha is None:
        return ndtri((own + 0.5) / (n + 1)), ndtri((most + 0.5) / (n + 1))
    return ndtri(lower_bounds(own, n, alpha)), -ndtri(lower_bounds(n - most, n, alpha))


def leads(own: np.ndarray, others: np.ndarray) -> np.ndarray:
    """How far a class stays the most probable one, in units of σ: by its own bound, or beside that on every other class."""
    return np.maximum(own, (own - others) / 2)


def radii(system: list[Counted], rule: Rule, classes: np.ndarray, alpha: float | None) -> np.ndarray:
    """The radius in which every input's class is answered; bounds at α each, estimates if None.

    Noise k answers the class within ``fires``, and no wider noise answers another one within ``quiet``. The last noise answers
    the most probable class; its bound on the others counts for that, too, except where it is alone, by the binary bound.
    """
    found, quiet = np.full(len(classes), -np.inf), np.full(len(classes), np.inf)
    bounds = [shares(one, classes, alpha) for one in system]
    for k, (one, (own, others)) in enumerate(zip(system, bounds, strict=True)):
        level = ndtri(rule.levels[k]) if k < len(rule.levels) else 0.0
        fires, silent = one.sigma * (own - level), one.sigma * (level - others)
        if k == len(rule.levels) > 0:
            fires = one.sigma * leads(own, others)
        if rule.veto and k + 1 < len(system):
            after, beside = bounds[k + 1]
            fires = np.minimum(fires, system[k + 1].sigma * (after - ndtri(rule.veto)))
            silent = np.maximum(silent, system[k + 1].sigma * (ndtri(rule.veto) - beside))
        found = np.maximum(found, np.minimum(fires, quiet))
        quiet = np.minimum(quiet, silent)
    return np.maximum(found, 0.0)


def certified(system: list[Counted], rule: Rule, labels: np.ndarray) -> np.ndarray:
    """The radius of every input, 0 if the answer is wrong. The votes of the selection choose the class.

    A lower and an upper bound for every noise share α.
    """
    classes = system[0].counts.shape[1]
    guesses = [radii(system, rule, np.full(len(labels), c), None) for c in range(classes)]
    chosen = np.argmax(guesses, 0)
    bounds = 1 if len(system) == 1 else 2 * len(system)
    return np.where(chosen == labels, radii(system, rule, chosen, ALPHA / bounds), 0.0)


def by_two_classes(one: Counted, labels: np.ndarray) -> np.ndarray:
    """The radius of every input under one noise by the two-class bound, 0 if the answer is wrong."""
    chosen = one.selection.argmax(1)
    found = one.sigma * leads(*shares(one, chosen, ALPHA / 2))
    return np.where(chosen == labels, np.maximum(found, 0.0), 0.0)


def singles(system: list[Counted], labels: np.ndarray) -> dict[str, np.ndarray]:
    """Certified accuracy of every noise alone, by either bound."""
    rows = {f"sigma {one.sigma:g} alone": accuracy(certified([one], Rule(()), labels)) for one in system}
    two = {f"sigma {one.sigma:g} alone, two-class bound": accuracy(by_two_classes(one, labels)) for one in system}
    return {**rows, **two}


def accuracy(found: np.ndarray) -> np.ndarray:
    """Certified accuracy in % at the radii."""
    return np.array([100 * np.mean((found >= r) & (found > 0)) for r in RADII])


def chosen_rule(system: list[Counted], labels: np.ndarray, best: np.ndarray, rules: list[Rule]) -> Rule:
    """The rule whose largest distance from the best single noise is the smallest; of equals the one with the larger sum."""

    def worth(rule: Rule) -> tuple[float, float]:
        gap = accuracy(certified(system, rule, labels)) - best
        return round(float(gap.min()), 6), float(gap.sum())

    return max(rules, key=worth)


def compared(system: list[Counted], labels: np.ndarray) -> dict[str, object]:
    """Single noises and routers on the second half of the inputs (every second one), chosen on the first."""
    held, shown = np.arange(len(labels)) % 2 == 1, np.arange(len(labels)) % 2 == 0
    first, second = ([one.of(rows) for one in system] for rows in (held, shown))
    rows = singles(second, labels[shown])
    best, most = (np.max(list(found.values()), 0) for found in (rows, singles(first, labels[held])))
    free = len(system) - 1
    made = {"a half for every level": Rule((0.5,) * free)}
    levels = [Rule(each) for each in itertools.product(LEVELS, repeat=free)]
    made["levels chosen"] = chosen_rule(first, labels[held], most, levels)
    if free == 1:
        made["veto chosen"] = chosen_rule(first, labels[held], most, [Rule((0.5,), veto) for veto in VETOES])
        both = [Rule((level,), veto) for level in LEVELS for veto in VETOES]
        made["level and veto chosen"] = chosen_rule(first, labels[held], most, both)
    table = {name: {"accuracy": list(map(float, row))} for name, row in rows.items()}
    for name, rule in made.items():
        row = accuracy(certified(second, rule, labels[shown]))
        told = {"levels": list(rule.levels), "veto": rule.veto, "distance": list(map(float, row - best))}
        table[name] = {"accuracy": list(map(float, row)), **told}
    return {"chosen_on": int(held.sum()), "measured_on": int(shown.sum()), "rows": table}


def main() -> None:
    """Read the runs, print the table, and keep it."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("runs", nargs="+", help="certified runs of the same inputs, the widest noise first")
    asked.add_argument("--out", type=Path, help="keep the table as JSON")
    given = asked.parse_args()
    found = [read(folder) for folder in given.runs]
    if len(found) < 2:
        raise SystemExit("give two or more certified runs of the same inputs.")
    system, labels = on_the_same(found)
    sigmas = [one.sigma for one in system]
    if sigmas != sorted(sigmas, reverse=True):
        raise SystemExit(f"the widest noise comes first, and these are {sigmas}.")
    told = compared(system, labels)
    record = {"ucan": __version__, "data": Run.open(given.runs[0]).config.data.source, "sigmas": sigmas, "alpha": ALPHA}
    record |= {"n": [one.n for one in system], "radii": list(RADII), **told}
    error = 100 * math.sqrt(0.25 / int(record["measured_on"]))
    print(
        f"{record['measured_on']} inputs; standard error at most {error:.1f} points. Certified accuracy in % at {RADII}"
    )
    for name, row in record["rows"].items():
        cells = " ".join(f"{value:6.1f}" for value in row["accuracy"])
        beside = " ".join(f"{value:+5.1f}" for value in row.get("distance", ()))
        print(f"{name:36} {cells}   {beside}   {row.get('levels', '')} {row.get('veto', '')}")
    if given.out:
        write_whole(given.out, json.dumps(record, indent=1).encode())


if __name__ == "__main__":
    main()
