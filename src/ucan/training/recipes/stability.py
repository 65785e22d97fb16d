"""Stability training (Li et al., 2019): the noisy copy should answer as the clean input does."""

from __future__ import annotations

from dataclasses import dataclass

from torch.nn import functional as F

from ucan.training.recipes.base import Recipe, check_terms
from ucan.training.step import Outcome, Progress, Step


@dataclass(frozen=True)
class Stability(Recipe):
    """Cross-entropy at the clean input + weight·(cross-entropy of the noisy answers towards the clean one).

    weight: λ; 2 at σ = 0.25 and 0.5, 1 at σ = 1 (CIFAR-10).
    draws: noisy copies of every input; the authors take 1.
    """

    draws: int = 1
    weight: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_terms(self, "weight")

    def step(self, step: Step) -> Outcome:
        """A clean and a noisy pass; gradients flow through both sides."""
        clean, noisy = step.model(step.inputs).float(), step.model(step.noise.copies(self.draws))
        far = -(clean.softmax(-1) * noisy.float().log_softmax(-1)).sum(-1).mean()
        loss = F.cross_entropy(clean, step.labels) + self.weight * far
        return Outcome.of(loss, noisy, step.labels, stability=far)

    def cost(self, progress: Progress) -> float:
        """One pass for the clean input and one for each copy."""
        return 1 + self.draws
