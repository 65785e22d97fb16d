"""What the answers of a run come to: a few numbers beside the labels and targets that the data have."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ucan.certificate import SCOPES, Abstention
from ucan.choices import norm_to_json
from ucan.config import CONFIG
from ucan.data import Labelled
from ucan.questions.decisions import Decided
from ucan.questions.record import Answer
from ucan.questions.regression import Interval
from ucan.questions.topk import Among
from ucan.results.answers import AnswerStore
from ucan.results.metrics import NO_LABEL
from ucan.runs.config import AskConfig
from ucan.runs.fields import from_table
from ucan.runs.jobs import Selection


@dataclass(frozen=True)
class Summary:
    """What a run's answers come to. ``figures`` are numbers by name, shares rounded down; NaN if nothing is known."""

    run: Path
    question: str
    inputs: int
    abstained: int
    scope: str
    norm: float
    arithmetic: str
    figures: tuple[tuple[str, float], ...]
    stop: str | None
    mean_samples: float
    first: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "run": str(self.run),
            "question": self.question,
            "inputs": self.inputs,
            "abstained": self.abstained,
            "scope": self.scope,
            "guarantee": SCOPES[self.scope],
            "norm": norm_to_json(self.norm),
            "arithmetic": self.arithmetic,
            "stop": self.stop,
            "mean_samples": self.mean_samples if math.isfinite(self.mean_samples) else None,
            **{name: value if math.isfinite(value) else None for name, value in self.figures},
        }


def summarise(folder: Path, data: Labelled, selection: Selection) -> Summary:
    """What the answers in a folder come to, beside the labels and targets that the data have."""
    with AnswerStore.open(folder) as store:
        config = from_table(AskConfig, store.config, str(folder / CONFIG))
        wanted = set(selection.indices)
        answers = [(idx, answer) for idx, answer in store.answers() if idx in wanted]
    assert config.claim.scope is not None and config.claim.norm is not None, "ask writes both"
    given = [(idx, answer) for idx, answer in answers if not isinstance(answer, Abstention)]
    return Summary(
        run=folder,
        question=config.question or "",
        inputs=len(answers),
        abstained=len(answers) - len(given),
        scope=config.claim.scope,
        norm=config.claim.norm,
        arithmetic=config.sampling.arithmetic,
        figures=tuple(figures(given, [idx for idx, _ in answers], data)),
        stop=config.sampling.stop,
        mean_samples=mean_samples([answer for _, answer in answers]),
        first=tuple(f"{data.name_of(idx)}: {answer}" for idx, answer in answers[:3]),
    )


def mean_samples(answers: list[Answer | Abstention]) -> float:
    """The mean number of samples of an input, those that choose included; NaN without answers."""
    return sum(one.evidence.n0 + one.evidence.n for one in answers) / len(answers) if answers else math.nan


def figures(given: list[tuple[int, Answer]], asked: list[int], data: Labelled) -> list[tuple[str, float]]:
    """Numbers about answers, by name; shares are of the inputs ``asked``, or of those with a label, and of pixels or labels."""
    inputs, radii = len(asked), [answer.radius for _, answer in given]
    found = [("median_radius", _median(radii))]
    factors = [answer.budget_factor for _, answer in given if answer.budget_factor is not None]
    if factors:
        found.append(("median_budget_factor", _median(factors)))
    targets = data.targets
    if given and isinstance(given[0][1], Interval):
        ends = [(idx, a.lower, a.upper) for idx, a in given if isinstance(a, Interval)]
        found.append(("median_width", _median([float((high - low).mean()) for _, low, high in ends])))
        if targets is not None and targets[0].shape == ends[0][1].shape:
            inside = [bool(((low <= targets[i]) & (targets[i] <= high)).all()) for i, low, high in ends]
            found.append(("targets_inside", sum(inside) / inputs))
    if given and isinstance(given[0][1], Decided):
        maps = [(idx, a) for idx, a in given if isinstance(a, Decided)]
        found.append(("certified", sum(a.share for _, a in maps) / inputs))
        if targets is not None and targets[0].shape == maps[0][1].answers.shape:
            right = [float((a.answers == targets[i]).double().mean()) for i, a in maps]
            found.append(("certified_and_correct", sum(right) / inputs))
    labels = data.labels
    labelled = sum(int(labels[i]) != NO_LABEL for i in asked)
    if given and labelled and isinstance(given[0][1], Among):
        known = [(int(labels[i]), a) for i, a in given if isinstance(a, Among)]
        right = [a.radius_of(label) > 0 for label, a in known if label != NO_LABEL]
        found.append(("label_among_first", sum(right) / labelled))
    elif given and labelled and hasattr(given[0][1], "prediction"):
        found.append(("correct", sum(int(labels[i]) == a.prediction for i, a in given) / labelled))  # type: ignore[attr-defined]
    return found


def _median(values: list[float]) -> float:
    return float(torch.tensor(values, dtype=torch.float64).median()) if values else math.nan
