"""Confidence: up to which change does the smoothed probability of the answer itself stay above a level?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from ucan.bounds import at_most_p_value, lower_bound
from ucan.certificate import Abstention, check_number, check_numbers
from ucan.errors import InvalidInput
from ucan.questions.looks import Look, all_decided
from ucan.questions.question import Asked, Question
from ucan.questions.record import SLACK, Answer, Where
from ucan.questions.shift import Shift
from ucan.questions.topk import ahead
from ucan.rounding import floor_digits
from ucan.votes import Votes

BOUND = "binary"


@dataclass(frozen=True, eq=False)
class Confident(Answer):
    """The class ``prediction`` has a smoothed probability of at least ``confidence`` at every input in the region.

    ``p_lower`` bounds it at the input itself. A level below 1/2 leaves open whether it is the most probable class. ``line`` is
    how a radius becomes a move in the law's own units: multiplied by the first, and the second added.
    """

    prediction: int
    confidence: float
    p_lower: float
    line: tuple[float, float] = (1.0, 0.0)
    kind: ClassVar[str] = "confidence"
    task: ClassVar[str] = "confidence"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("an answer's p_lower", self.p_lower, 1.0)
        check_numbers("an answer's line", self.line, math.inf)
        if len(self.line) != 2:
            raise InvalidInput(f"an answer's line must be two numbers, got {self.line!r}.")

    def at(self, radius: float) -> float:
        """A lower bound on the probability for every change of at most this size, before Σ: T_r(p_lower)."""
        per, paid = self.line
        moved = per * radius + (paid if radius else 0.0)
        return float(self.evidence.law.shifted(self.p_lower, moved, self.region.norm, self.region.dim))

    def follows(self, shift: Shift) -> bool:
        """T_r(p_lower) ≥ the level, up to the radius."""
        reached = shift.largest(lambda r: float(shift.least(self.p_lower, r)) >= self.confidence)
        same = all(abs(a - b) <= SLACK * abs(b) for a, b in zip(self.line, shift.line, strict=True))
        return same and 0 < self.region.radius <= reached * (1 + SLACK)

    @property
    def bound(self) -> str:
        """That of certificates, on one class."""
        return BOUND

    def bounded(self, look: Look) -> bool:
        """The class has most of the votes that chose, and its bound is that of its votes."""
        evidence, c = self.evidence, self.prediction
        chose = evidence.selection is not None and evidence.selection[c] == max(evidence.selection)
        allowed = max(0.0, lower_bound(evidence.counts[c], look.n, look.alpha) - self.tau)
        return chose and self.p_lower <= allowed * (1 + SLACK)

    def p_value(self, kept: Votes, where: Where) -> float:
        """By how few votes the class has."""
        n = int(kept.counts.sum()) + kept.invalid
        claimed = self.p_lower if where == "here" else self.confidence
        return at_most_p_value(int(kept.counts[self.prediction]), n, max(0.0, claimed - self.tau))

    def least_p_value(self, n: int) -> float:
        """If no vote were for the class."""
        return at_most_p_value(0, n, max(0.0, self.p_lower - self.tau))

    def pushes(self, f: Any, output: torch.Tensor) -> torch.Tensor:
        """How far the best other class is ahead."""
        return ahead(output, self.prediction, 1)

    def content(self, folder: Path | None) -> dict[str, Any]:
        """The class, the level and the bound."""
        about = {"prediction": self.prediction, "confidence": self.confidence, "p_lower": self.p_lower}
        return {**about, "line": list(self.line)}

    @classmethod
    def restored(cls, shared: Mapping[str, Any], content: Mapping[str, Any], folder: Path | None) -> Confident:
        """From JSON's values."""
        about: dict[str, Any] = {name: content[name] for name in ("prediction", "confidence", "p_lower")}
        return cls(**shared, **about, line=tuple(content["line"]))

    def question(self) -> Confidence:
        """The same level."""
        return Confidence(self.confidence)

    def summary(self) -> str:
        """The class and the level."""
        return f"class {self.prediction} keeps a smoothed probability of at least {floor_digits(self.confidence, 4)}"


@dataclass(frozen=True)
class Confidence(Question):
    """Up to which change does the class keep a smoothed probability of at least ``level``?"""

    level: float = 0.5
    name: ClassVar[str] = "confidence"

    def __post_init__(self) -> None:
        if not 0 < self.level < 1:
            raise InvalidInput(f"confidence must lie strictly between 0 and 1, got {self.level!r}.")

    def settled(self, asked: Asked, radii: tuple[float, ...]) -> bool:
        """Whether the class keeps this probability up to each radius, or cannot be shown to."""
        shift, hits = asked.shift, int(asked.estimate.counts[int(asked.select.counts.argmax())])
        p, hoped = self._bound(asked, hits, asked.now), int(asked.last.hoped(hits, asked.n))
        best = self._bound(asked, hoped, asked.last)
        return all_decided(
            radii, lambda r: shift.least(p, r) >= self.level, lambda r: shift.least(best, r) >= self.level
        )

    @staticmethod
    def _bound(asked: Asked, hits: int, look: Look) -> float:
        """A lower bound on the probability of a class with so many votes."""
        return max(0.0, lower_bound(hits, look.n, look.alpha) - asked.shift.tau)

    def conclude(self, asked: Asked) -> Confident | Abstention:
        """T_r(p) ≥ level, where p bounds the probability of the class that n0 votes chose."""
        shift, c_A = asked.shift, int(asked.select.counts.argmax())
        p = self._bound(asked, int(asked.estimate.counts[c_A]), asked.now)
        radius = shift.largest(lambda r: float(shift.least(p, r)) >= self.level)
        if not radius > 0:
            shown = (
                f"the lower bound {floor_digits(p, 6)} on the probability of class {c_A} is not above {self.level:g}"
            )
            return asked.abstention(BOUND, shown)
        about: dict[str, Any] = {"prediction": c_A, "confidence": self.level, "p_lower": p, "line": shift.line}
        return Confident(**asked.shared(BOUND, radius), **about)
