"""Which of an attack's points is put to the test, and the test: votes that the attack never saw."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import torch

from ucan.audit.attacks import reachable
from ucan.audit.decide import SURE, Decision, decide, rival_of
from ucan.backends import PRECISIONS
from ucan.certificate import Certificate
from ucan.errors import InvalidInput
from ucan.smoothed import SmoothedClassifier

# Votes that choose among candidates, and the share of the class above which a point is not worth testing.
SCREEN, HOPELESS = 256, 0.6
AGAIN = 10  # a break is tested again on so many times the votes


@dataclass(frozen=True)
class Budget:
    """How hard to attack: steps, noise draws a step and restarts; ``check`` fresh votes decide at ``level``."""

    steps: int = 40
    draws: int = 16
    restarts: int = 2
    check: int = 2000
    level: float = 0.001
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "draws", "restarts", "check"):
            if getattr(self, name) < 1:
                raise InvalidInput(f"audit: {name} must be at least 1, got {getattr(self, name)}.")
        if not 0 < self.level < 1:
            raise InvalidInput(f"audit: level must lie strictly between 0 and 1, got {self.level}.")


def derived_seed(seed: int, *purpose: Any) -> int:
    """A seed for one purpose, in 32 bits."""
    text = "/".join(map(str, ("audit", seed, *purpose)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


def precision_of(certificate: Certificate) -> str | None:
    """The precision to ask for, so that the classifier is run as it was certified; None where that is its own."""
    own = certificate.evidence.precision
    return own if own in PRECISIONS else None


class Judge:
    """Keeps the best point seen so far, by votes of its own, and in the end puts that one to the test."""

    def __init__(
        self, g: SmoothedClassifier, x: torch.Tensor, c: Certificate, factor: float, budget: Budget, seed: int
    ) -> None:
        self.g, self.x, self.c, self.budget, self.seed = g, x, c, budget, seed
        self.limit = factor * c.region.radius
        self.precision = precision_of(c)
        self.best: tuple[float, torch.Tensor, torch.Tensor, list[int], int] | None = None

    def look(self, delta: torch.Tensor) -> None:
        """Screen perturbations (batch, *event); those that are not strictly inside do not count."""
        inputs, deltas = reachable(self.x, delta, self.c.region, self.limit)
        if not len(inputs):
            return
        votes = self._votes(inputs, SCREEN, "screen")  # all at once: they share forward passes
        for z, actual, (counts, invalid) in zip(inputs.split(1), deltas.split(1), votes, strict=True):
            hits = counts[self.c.prediction]
            against = sum(counts) + invalid if self.c.p_upper is None else hits + max(self._others(counts))
            share = hits / against if against else 1.0
            if self.best is None or share < self.best[0]:
                self.best = share, z, actual, counts, invalid

    def enough(self, delta: torch.Tensor) -> bool:
        """Whether the search may end: one of these points is clearly lost."""
        self.look(delta)
        return self.best is not None and self.best[0] < 0.4

    def verdict(self) -> tuple[Decision, torch.Tensor | None]:
        """The decision on the best point, by fresh votes; hopeless points are decided by the screening alone."""
        c_A = self.c.prediction
        if self.best is None:  # a region too thin for the input's precision: nothing but x itself is inside
            return Decision(False, c_A, 0, 0, 1.0), None
        share, z, delta, counts, invalid = self.best
        if share > HOPELESS:
            seen = decide(counts, invalid, c_A, self.budget.level)
            return Decision(False, seen.answer, seen.hits, seen.total, seen.p_value), delta
        return self._test(z, counts, self.budget.check, self.budget.level, "check"), delta

    def again(self) -> Decision:
        """The decision on the same point by ten times as many votes of another stream, beyond all doubt."""
        assert self.best is not None, "there was a verdict to test again"
        _, z, _, counts, _ = self.best
        return self._test(z, counts, AGAIN * self.budget.check, min(self.budget.level, SURE), "again")

    def _test(self, z: torch.Tensor, screened: list[int], n: int, level: float, purpose: str) -> Decision:
        rival = None if self.c.p_upper is None else rival_of(screened, self.c.prediction)
        ((fresh, unfit),) = self._votes(z, n, purpose)
        return decide(fresh, unfit, self.c.prediction, level, rival)

    def _votes(self, z: torch.Tensor, n: int, purpose: str) -> list[tuple[list[int], int]]:
        outcomes = self.g.predict(z, n=n, seed=derived_seed(self.seed, purpose), precision=self.precision)
        return [(outcome.counts.tolist(), outcome.invalid) for outcome in outcomes]

    def _others(self, counts: list[int]) -> list[int]:
        return [count for c, count in enumerate(counts) if c != self.c.prediction]
