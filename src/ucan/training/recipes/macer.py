"""MACER (Zhai et al., 2020): the certified radius itself as a loss, without an attack."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ucan.errors import InvalidInput
from ucan.laws import Gaussian
from ucan.training.recipes.ascent import smoothed_loss
from ucan.training.recipes.base import Recipe, Task
from ucan.training.step import Outcome, Progress, Step

# Probabilities stay so far inside (0, 1) that their quantiles have gradients.
EDGE = 1e-6


@dataclass(frozen=True)
class Macer(Recipe):
    """−log of the label's mean probability + weight·(λ/2)·Σ(margin − ξ) over inputs that are right and ξ of which is at
    most the margin, ξ = Φ⁻¹(p₁) − Φ⁻¹(p₂), p the mean softmax of sharpened logits. Gaussian noise only.

    draws: m, noisy copies of every input.
    weight: λ of the paper; 12 at σ = 0.25 and 1, 4 at 0.5.
    margin: γ, above which a radius is large enough.
    sharpness: β, by which logits are multiplied, so that softmax comes near to a vote.
    warm: epochs without the second term; Jeong and Shin take 50 of 150 at σ = 1.
    """

    draws: int = 16
    weight: float = 12.0
    margin: float = 8.0
    sharpness: float = 16.0
    warm: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.weight, self.margin, self.warm) < 0 or not self.sharpness > 0:
            raise InvalidInput("[recipe] weight, margin and warm are 0 or more, and sharpness is above 0.")

    def prepare(self, task: Task) -> None:
        """Refuse noise whose radius is not Φ⁻¹."""
        if not isinstance(task.law, Gaussian):
            raise InvalidInput(f"macer needs Gaussian noise, got {type(task.law).__name__}.")

    def step(self, step: Step) -> Outcome:
        """Both terms from the same copies."""
        logits = step.model(step.noise.copies(self.draws))
        loss = smoothed_loss(logits, step.labels).mean()
        radius = torch.zeros_like(loss)
        if step.progress.done * step.progress.epochs >= self.warm:
            radius = step.noise.law.scale / 2 * self.missing(logits, step.labels).mean()
        return Outcome.of(loss + self.weight * radius, logits, step.labels, radius=radius)

    def missing(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """How much of the margin each input lacks (batch,): 0 where it is wrong, or far beyond the margin."""
        p = (self.sharpness * logits.float()).softmax(-1).mean(0)
        top = p.topk(2, -1)
        first, second = torch.special.ndtri(top.values.clamp(EDGE, 1 - EDGE)).unbind(-1)
        gap = first - second
        found: torch.Tensor = (self.margin - gap) * ((top.indices[:, 0] == labels) & (gap <= self.margin))
        return found

    def cost(self, progress: Progress) -> float:
        """One pass per copy."""
        return self.draws
