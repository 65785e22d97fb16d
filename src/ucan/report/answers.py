"""The report on runs of questions: one page with what was asked, how large the claims are, and a picture of each kind."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from ucan.audit.ledger import ATTEMPTS
from ucan.certificate import SCOPES, Abstention
from ucan.data import Labelled
from ucan.questions.catalogue import QUESTIONS
from ucan.questions.decisions import Decided
from ucan.questions.record import Answer
from ucan.questions.regression import Interval
from ucan.report.axes import ticks
from ucan.report.markup import render
from ucan.report.page import COLOURS, GENERATOR
from ucan.report.pictures import NO_CLASS, as_classes, as_picture, is_picture
from ucan.results.answers import AnswerStore
from ucan.rounding import ceil_digits, floor_digits
from ucan.runs.ask import begun
from ucan.runs.ask_audit import targets_of
from ucan.runs.config import AskConfig
from ucan.runs.read import AUDIT
from ucan.storage import Journal

# How many inputs a chart of intervals and a gallery show.
SHOWN, GALLERY = 60, 6
# Size of a chart in pixels, and where its plot lies.
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 300, 60, 12, 12, 44


@dataclass(frozen=True, eq=False)
class Asked:
    """One run of a question, read for a page."""

    folder: Path
    config: AskConfig
    answers: list[tuple[int, Answer | Abstention]]
    data: Labelled | None

    @property
    def given(self) -> list[tuple[int, Answer]]:
        """The answers that are no abstentions."""
        return [(idx, one) for idx, one in self.answers if not isinstance(one, Abstention)]


def read_asked(folders: Sequence[Path]) -> list[Asked]:
    """The runs in these folders, which all are runs of questions."""
    found = []
    for folder in folders:
        config = begun(Path(folder))
        assert config is not None, "the caller looked"
        with AnswerStore.open(folder) as store:
            found.append(Asked(Path(folder), config, list(store.answers()), targets_of(config)))
    return found


def build_answers_page(runs: Sequence[Asked]) -> str:
    """The whole page."""
    folder = resources.files("ucan.report")
    style, script = (Markup((folder / name).read_text(encoding="utf-8")) for name in ("page.css", "page.js"))
    return render(
        "answers.html",
        generator=Markup(GENERATOR),
        **COLOURS,
        style=style,
        script=script,
        runs=[_section(run) for run in runs],
    )


def _section(run: Asked) -> dict[str, Any]:
    """What the template shows of one run."""
    config, given = run.config, run.given
    scope = config.claim.scope or "unknown"
    intervals = [(idx, one) for idx, one in given if isinstance(one, Interval)]
    decided = [(idx, one) for idx, one in given if isinstance(one, Decided)]
    names = [run.data.name_of(idx) if run.data is not None else str(idx) for idx, _ in given]
    return {
        "name": run.folder.resolve().name,
        "question": config.question,
        "about": QUESTIONS.get(config.question or "", ""),
        "inputs": len(run.answers),
        "abstained": len(run.answers) - len(given),
        "scope": scope,
        "guarantee": SCOPES.get(scope, "unknown"),
        "alpha": config.sampling.alpha,
        "n": config.sampling.n,
        "arithmetic": config.sampling.arithmetic,
        "radii": _radii_chart([one.radius for _, one in given], len(run.answers)),
        "intervals": _interval_chart(intervals, run.data) if intervals else None,
        "curve": _width_curve([one for _, one in intervals]),
        "masks": _masks(decided, run.data),
        "labels": _labels(decided, run.data),
        "boxes": _boxes(intervals, run.data),
        "lines": [f"{name}: {one}" for name, (_, one) in list(zip(names, given, strict=True))[:8]],
        "reasons": [f"{idx}: {one.reason}" for idx, one in run.answers if isinstance(one, Abstention)][:3],
        "audit": _audit(run.folder),
        "command": command(run),
    }


@dataclass(frozen=True)
class _Axes:
    """A chart's plane: where numbers lie in pixels, from the largest and smallest of them."""

    across: tuple[float, float]
    up: tuple[float, float]

    def x(self, value: float) -> float:
        low, high = self.across
        return LEFT + (WIDTH - LEFT - RIGHT) * (value - low) / ((high - low) or 1.0)

    def y(self, value: float) -> float:
        low, high = self.up
        inside = min(max(value, low), high)  # an end at ±∞ leaves the chart
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (inside - low) / ((high - low) or 1.0)

    def chart(self, **marks: Any) -> dict[str, Any]:
        """For the template: size, ticks and marks."""
        frame = {
            "width": WIDTH,
            "height": HEIGHT,
            "left": LEFT,
            "right": WIDTH - RIGHT,
            "top": TOP,
            "bottom": HEIGHT - BOTTOM,
        }
        low, high = self.up
        steps = np.linspace(low, high, 5)
        return {**frame, "rows": [(self.y(v), f"{v:.4g}") for v in steps], **marks}


def _radii_chart(radii: list[float], inputs: int) -> dict[str, Any] | None:
    """The share of inputs with a claim of at least each radius, as steps; None where all have one radius."""
    if len(set(radii)) < 2:
        return None
    falling, most = sorted(radii, reverse=True), max(radii)
    axes = _Axes((0.0, most), (0.0, 100.0))
    share = [100 * (i + 1) / inputs for i in range(len(falling))]
    path = "".join(
        f"{'L' if i else 'M'}{axes.x(r):.1f} {axes.y(share[i - 1] if i else 0.0):.1f}V{axes.y(share[i]):.1f}"
        for i, r in enumerate(falling)
    )
    columns = [(axes.x(tick), f"{tick:g}") for tick in ticks(most, 6) if tick <= most]
    return axes.chart(path=f"{path}H{LEFT}", columns=columns)


def _interval_chart(intervals: list[tuple[int, Interval]], data: Labelled | None) -> dict[str, Any]:
    """The intervals of the first output at the smallest and the largest radius, in rising order of their values."""
    some = sorted(intervals[:SHOWN], key=lambda case: float(case[1].value.flatten()[0]))
    ends = [(float(one.lower.flatten()[0]), float(one.upper.flatten()[0])) for _, one in some]
    inner = [(float(one.lowers[0].flatten()[0]), float(one.uppers[0].flatten()[0])) for _, one in some]
    targets = [_target(idx, one, data) for idx, one in some]
    finite = [v for pair in ends for v in pair if math.isfinite(v)] + [t for t in targets if t is not None]
    values = [float(one.value.flatten()[0]) for _, one in some]
    axes = _Axes((-0.5, len(some) - 0.5), (min([*finite, *values]), max([*finite, *values])))
    bars = [
        {
            "x": axes.x(i),
            "outer": (axes.y(ends[i][1]), axes.y(ends[i][0])),
            "inner": (axes.y(inner[i][1]), axes.y(inner[i][0])),
            "value": axes.y(values[i]),
            "target": None if (target := targets[i]) is None else axes.y(target),
            "title": f"input {idx}: [{floor_digits(ends[i][0], 3)}, {ceil_digits(ends[i][1], 3)}]"
            if all(map(math.isfinite, ends[i]))
            else f"input {idx}",
        }
        for i, (idx, _) in enumerate(some)
    ]
    return axes.chart(bars=bars, radii=some[0][1].radii, targets=any(t is not None for t in targets), columns=[])


def _target(idx: int, one: Interval, data: Labelled | None) -> float | None:
    if data is None or data.targets is None or data.targets[idx].shape != one.lower.shape:
        return None
    return float(data.targets[idx].flatten()[0])


def _width_curve(intervals: list[Interval]) -> list[tuple[str, str]]:
    """The median width of intervals by radius, rounded up."""
    if not intervals or intervals[0].within is not None:
        return []
    widths = np.median([(one.uppers - one.lowers).flatten(1).mean(1).numpy() for one in intervals], axis=0)
    return [
        (f"{r:g}", ceil_digits(float(width), 4) if math.isfinite(width) else "∞")
        for r, width in zip(intervals[0].radii, widths, strict=True)
    ]


def _masks(decided: list[tuple[int, Decided]], data: Labelled | None) -> list[dict[str, Any]]:
    """Picture, mask, certified mask with abstentions in grey, and the target, of the first inputs."""
    found = []
    for idx, one in decided[:GALLERY]:
        if one.what != "segmentation" or one.answers.ndim != 2:
            continue
        panels = []
        if data is not None and is_picture(tuple(data.event_shape)):
            panels.append(("input", as_picture(data[idx][0])))
        panels.append(("mask", as_classes(one.selected.numpy())))
        panels.append(("certified; grey: left open", as_classes(one.answers.numpy())))
        if data is not None and data.targets is not None and data.targets[idx].shape == one.answers.shape:
            panels.append(("target", as_classes(data.targets[idx].numpy())))
        found.append({"idx": idx, "share": floor_digits(100 * one.share, 1), "panels": panels})
    return found


def _labels(decided: list[tuple[int, Decided]], data: Labelled | None) -> list[tuple[str, list[str]]]:
    """For the first inputs whether each label stays present or absent, or is left open."""
    words = {1: "present", 0: "absent", NO_CLASS: "open"}
    return [
        (
            str(idx) if data is None else data.name_of(idx),
            [words.get(int(v), str(int(v))) for v in one.answers.flatten()[:12]],
        )
        for idx, one in decided[:12]
        if one.what == "labels"
    ]


def _boxes(intervals: list[tuple[int, Interval]], data: Labelled | None) -> list[dict[str, Any]]:
    """Pictures with the innermost and the outermost box, where each input has four numbers: top, left, bottom, right."""
    if data is None or not is_picture(tuple(data.event_shape)):
        return []
    side, found = 96 / max(data.event_shape[1:]), []
    for idx, one in intervals[:GALLERY]:
        low, high = one.lower.flatten().tolist(), one.upper.flatten().tolist()
        if len(low) != 4 or not all(map(math.isfinite, low + high)):
            return []
        outer, inner = (low[0], low[1], high[2], high[3]), (high[0], high[1], low[2], low[3])
        frames = [
            [side * left, side * top, max(0.0, side * (right - left)), max(0.0, side * (bottom - top))]
            for top, left, bottom, right in (outer, inner)
        ]
        found.append({"idx": idx, "picture": as_picture(data[idx][0]), "outer": frames[0], "inner": frames[1]})
    return found


def _audit(folder: Path) -> str:
    """What an audit in the run's folder found; empty if there was none."""
    import json

    records = [json.loads(line) for line in Journal(folder / AUDIT / ATTEMPTS).lines()]
    if not records:
        return ""
    broken = {record["idx"] for record in records if record["broken"]}
    return (
        f"{len({record['idx'] for record in records})} answers were attacked inside their regions, {len(broken)} broke."
    )


def command(run: Asked) -> str:
    """The command that repeats the run; what was given in Python is left out."""
    config, words = run.config, ["ucan", "ask", run.config.question or ""]
    options = {"radii": "--radius", "radius": "--radius", "within": "--within", "p": "--percentile", "k": "--top"}
    options |= {"level": "--confidence", "rule": "--rule"}
    for key, option in options.items():
        value = config.settings.get(key)
        if value not in (None, [], ()):
            words += [option, ",".join(f"{v:g}" for v in value) if isinstance(value, list | tuple) else f"{value}"]
    if "least" in config.settings and "most" in config.settings:
        words += ["--range", f"{config.settings['least']:g},{config.settings['most']:g}"]
    sampling = config.sampling
    norm = None if config.claim.norm is None else "inf" if math.isinf(config.claim.norm) else f"{config.claim.norm:g}"
    given = {
        "--model": config.model.spec,
        "--data": config.data.source,
        "--split": None if config.data.split == "test" else config.data.split,
        "--law": config.law.given,
        "--scale": config.law.scale,
        "--noise": config.noise.given,
        "--norm": None if norm == "2" else norm,
        "--n0": sampling.n0,
        "--n": sampling.n,
        "--alpha": sampling.alpha,
        "--stop": sampling.stop,
        "--seed": sampling.seed if sampling.seed_source is None else sampling.seed_source,
        "--skip": None if config.data.skip == 1 else config.data.skip,
    }
    words += [str(word) for option, value in given.items() if value is not None for word in (option, value)]
    return shlex.join([*words, "-o", str(run.folder)])
