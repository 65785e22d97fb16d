"""The model card of a run, in Markdown: what it is, what is guaranteed and what is not, and two lines to use it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ucan.choices import SCOPES
from ucan.config import CONFIG, read_config
from ucan.results.metrics import certified_accuracy
from ucan.rounding import floor_percent
from ucan.runs.read import Run
from ucan.training import Together, is_trained_run, load_run
from ucan.training.checkpoint import START

RADII = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)

HEAD = """---
library_name: ucan
tags:
- certified-robustness
- randomized-smoothing
---

# {name}

{what}

    import ucan

    g = ucan.load("…")                  # the folder, the address or the hub name that this was read from
    c = g.certify(x, n=10_000)[0]       # x: (batch, *shape)

Its hash is the SHA-256 of `manifest.json`: `ucan.load("…", sha256="…")` refuses anything else.
"""


def card(folder: Path, name: str) -> str:
    """The card of the run in this folder."""
    parts = _trained(folder) if is_trained_run(folder) else _certified(Run.open(folder))
    return HEAD.format(name=name, what=parts[0]) + "\n" + "\n".join(parts[1:]) + "\n"


def _trained(folder: Path) -> list[str]:
    began = _began_with(folder)
    if not _rebuilds(folder):
        what = "A classifier trained for randomized smoothing with UCAN. Its network is code that is not included."
        return [what, *([_table(began)] if began else [])]
    run = load_run(folder)
    rows = [
        ("inputs", " × ".join(map(str, run.shape))),
        ("classes", str(run.num_classes)),
        ("data", f"`{run.settings.data}`"),
        *began,
        ("law", f"`{run.law!r}`"),
        ("noise", f"`{run.generator.describe()}`"),
        ("scope", f"`{run.generator.scope}`: the guarantee is about {SCOPES[run.generator.scope]}"),
    ]
    what = "A classifier trained for randomized smoothing with UCAN, with the noise it was trained for."
    return [what, _table(rows), "", "This run holds no certificates: they are made for your inputs by `g.certify`."]


def _began_with(folder: Path) -> list[tuple[str, str]]:
    """The weights that a training began with, by their hash; nothing where it began with new ones."""
    config = read_config(folder / CONFIG)
    if config.get("finetune") is None:
        return []
    found = config.get(START)
    told = "of which no hash was kept" if found is None else f"SHA-256 `{found}`"
    return [("began with", f"the weights in `{config['finetune']}`, {told}")]


def _rebuilds(folder: Path) -> bool:
    """Whether the run needs no code but ours: publishing it must not import anything."""
    return ":" not in str(read_config(folder / CONFIG).get("training", {}).get("model", ":"))


def _certified(run: Run) -> list[str]:
    config, sampling = run.config, run.config.sampling
    told = [
        ("data", config.data.source),
        ("inputs", f"{run.inputs:,}"),
        ("law", config.law.name and f"`{config.law.name}`, λ = {config.law.scale}"),
        ("noise", config.noise.described and f"`{config.noise.described}`"),
        ("scope", SCOPES.get(run.scope) and f"`{run.scope}`: the guarantee is about {SCOPES[run.scope]}"),
        ("α", sampling.alpha and f"{sampling.alpha}, of each certificate"),
        ("votes", sampling.n and f"at most {sampling.n:,}"),
        ("arithmetic", sampling.arithmetic),
    ]
    rows = [(name, str(value or "not stated")) for name, value in told]
    networks = [run.folder / part for part in Together.of(config.model.spec or "").folders]
    rows += [row for one in networks if is_trained_run(one) for row in _began_with(one)]
    parts = ["A smoothed classifier with its certificates, made with UCAN.", _table(rows)]
    if run.refuted:
        parts += ["", f"**Refuted:** {run.refuted}."]
    curve = run.curve()
    if curve is not None and run.labelled:
        about = f"{run.measure}, rounded down, {run.labelled:,} labelled inputs"
        parts += ["", f"Certified accuracy, scope `{run.scope}` ({about}):", ""]
        parts.append(_accuracies(run))
    return parts


def _accuracies(run: Run) -> str:
    found = certified_accuracy(run.columns, np.array(RADII))
    shown = [(r, a) for r, a in zip(RADII, found.tolist(), strict=True) if a > 0 or r == 0]
    head = "| radius | " + " | ".join(f"{r:g}" for r, _ in shown) + " |\n" + "|---" * (len(shown) + 1) + "|\n"
    return head + "| % | " + " | ".join(floor_percent(a) for _, a in shown) + " |"


def _table(rows: list[tuple[str, str]]) -> str:
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)])
