"""SmoothAdv (Salman et al., 2019): adversarial training of the smoothed classifier."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ucan.errors import InvalidInput
from ucan.training.recipes.ascent import slope, within
from ucan.training.recipes.base import Recipe, check_terms, cross_entropy
from ucan.training.recipes.consistency import disagreement
from ucan.training.step import Outcome, Progress, Step


@dataclass(frozen=True)
class SmoothAdv(Recipe):
    """Cross-entropy at inputs that PGD moved up the loss of the smoothed classifier, through the same noise.

    It goes with any noise. The attack is in ℓ2, also where the law certifies against another norm.

    draws: m, noisy copies of every input, drawn once for attack and loss.
    steps: T, steps of the attack, each 2·size/T long; the network is in evaluation mode there.
    size: the largest ℓ2 norm of a change of the input, in pixel units; the authors take 64/256 to 512/256.
    warm: epochs over which the size grows from 0.
    weight, entropy: with a weight above 0, consistency regularisation at the moved inputs (Jeong and Shin, 2020).
    low, high: the range that moved inputs are kept in.
    """

    draws: int = 4
    steps: int = 10
    size: float = 1.0
    warm: float = 10.0
    weight: float = 0.0
    entropy: float = 0.5
    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_terms(self, "entropy")
        if self.steps < 1 or min(self.size, self.warm, self.weight) < 0 or not self.low < self.high:
            raise InvalidInput("[recipe] steps is 1 or more; size, warm and weight 0 or more; low is below high.")

    def step(self, step: Step) -> Outcome:
        """The attack, and the loss where it ends."""
        eps = step.noise.draw(self.draws)
        moved = self.attacked(step, eps)
        logits = step.model(step.noise.place(eps, moved))
        loss = cross_entropy(logits, step.labels)
        if self.weight > 0:
            loss = loss + disagreement(logits, self.weight, self.entropy)
        return Outcome.of(loss, logits, step.labels)

    def attacked(self, step: Step, eps: torch.Tensor) -> torch.Tensor:
        """The inputs (batch, *event) after the attack."""
        x, size = step.inputs.detach(), self.size * step.progress.ramp(self.warm)
        place = x
        with step.model.aside():
            for _ in range(self.steps if size > 0 else 0):
                change = within(place - x + 2 * size / self.steps * slope(step, eps, place), size, lead=1)
                place = (x + change).clamp(self.low, self.high)
        return place

    def cost(self, progress: Progress) -> float:
        """One pass per copy for every step of the attack, and one for the loss."""
        return self.draws * (1 + self.steps)
