"""How our best rows are made: their presets and cost, and how each was trained."""

from __future__ import annotations

from pathlib import Path

from results_front import TITLES, places
from results_records import MISSING
from rows import ROWS, Row
from suite import settings_of

from ucan.training.recipes import Recipe, mean_cost

PRESETS = {  # of a row, the preset that trains it
    "cifar10-gaussian-0.08": "cifar10-best-0",
    "cifar10-consistency-0.12": "cifar10-best-0.25",
    "cifar10-sphere-0.19": "cifar10-best-0.5",
    "cifar10-sphere-0.3": "cifar10-best-0.75",
    "cifar10-sphere-on-0.42": "cifar10-best-1.0",
    "cifar10-sphere-0.54": "cifar10-best-1.25",
    "cifar10-sphere-far-0.54": "cifar10-best-1.25",
    "cifar10-sphere-far-0.57": "cifar10-best-1.75",
    "cifar10-sphere-0.75": "cifar10-best-2.0",
    "mnist-consistency-0.25": "mnist-best-0.25",
    "mnist-smoothmix-0.25": "mnist-best-0.75",
    "mnist-lenet-0.4": "mnist-best-1.0",
    "mnist-lenet-0.52": "mnist-best-1.5",
    "mnist-catrs-0.57": "mnist-best-1.75",
    "mnist-lenet-0.68": "mnist-best-2.0",
    "cifar10-ensemble-on-0.3": "cifar10-ensemble-0.75",
    "cifar10-ensemble-on-0.42": "cifar10-ensemble-1.0",
}
INPUTS = {"cifar10": 50_000, "mnist": 60_000}  # of the training sets


def leading(folder: Path) -> list[str]:
    """Our best row at each radius with its preset and its cost."""
    lines = ["| data, ℓ2 radius | certified | networks | row | preset | minutes: training | … certification | hardware |",
             "|---|--:|--:|---|---|--:|--:|---|"]  # fmt: skip
    for place in (place for data in TITLES for place in places(folder, data)):
        for one in place.best:
            preset = f"`{PRESETS[one.name or '']}`" if one.name in PRESETS else "–"
            minutes = " | ".join(
                "–" if m is None else f"{m:g}" for m in (one.made.train_minutes, one.made.certify_minutes)
            )
            where = f"{TITLES[place.data]}, {place.level:g} | {one.share(place.level)} | {one.claim.networks}"
            lines.append(f"| {where} | {one.name} | {preset} | {minutes} | {one.made.hardware} |")
    return lines if len(lines) > 2 else [MISSING]


def how_trained(folder: Path) -> list[str]:
    """Our best row of one network at each radius: its noise, its training by its preset, and what that took."""
    head = ["data, ℓ2 radii", "row", "recipe", "epochs", "begun with", "passes, million", "left out for choices"]
    lines = ["| " + " | ".join(head) + " |", "|---|---|---|--:|---|--:|--:|"]
    known, best = {row.name: row for row in ROWS}, dict[str, list[float]]()
    for place in (place for data in TITLES for place in places(folder, data)):
        if place.one is not None:
            best.setdefault(str(place.one.name), []).append(place.level)
    lines += [_training(known[name], levels) for name, levels in best.items() if name in known]
    return lines if len(lines) > 2 else [MISSING]


def _training(row: Row, levels: list[float]) -> str:
    """A line of the table."""
    settings = settings_of(row.preset, list(row.changes))
    recipe, held_out = settings.build_recipe(), settings.held_out
    passes = mean_cost(recipe, settings.epochs) * settings.epochs * round(INPUTS[row.data] * (1 - held_out))
    at = ", ".join(f"{level:g}" for level in levels)
    cells = [f"{TITLES[row.data]}, {at}", row.name, _recipe(settings.recipe["kind"], recipe), str(settings.epochs),
             row.onto or "–", f"{passes / 1e6:.1f}", f"{100 * held_out:g} %" if held_out else "–"]  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def _recipe(kind: str, recipe: Recipe) -> str:
    """A recipe with those of its parameters that rows differ in."""
    told = {
        name: getattr(recipe, name) for name in ("steps", "length", "size", "weight", "drop") if hasattr(recipe, name)
    }
    words = ", ".join(f"{name} {value:g}" for name, value in told.items() if value)
    return f"`{kind}`{': ' if words else ''}{words}"
