"""Consistency under noise that is moved, on its own sphere, to where the network is weakest. UCAN's own."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ucan.errors import InvalidInput
from ucan.training.recipes.ascent import cross_entropies, lengths
from ucan.training.recipes.base import Recipe, cross_entropy
from ucan.training.recipes.consistency import disagreement
from ucan.training.step import Outcome, Progress, Step


def climbed(step: Step, eps: torch.Tensor, steps: int, length: float, first_flip: bool = False) -> torch.Tensor:
    """Draws moved up their own cross-entropy, each step put back to the draw's own ℓ2 norm; before Σ.

    For Gaussian noise the moved draw is as likely as the one it began as. With ``first_flip`` a draw stays where the network
    first answered wrongly.
    """
    own, moved = lengths(eps, 2), eps.detach()
    kept = torch.zeros(eps.shape[:2], dtype=torch.bool, device=eps.device)
    with step.model.aside():
        for _ in range(steps):
            place = moved.requires_grad_(True)
            logits = step.model(step.noise.place(place))
            (gradient,) = torch.autograd.grad(cross_entropies(logits, step.labels).sum(), place)
            if first_flip:
                kept |= logits.argmax(-1) != step.labels
            further = place.detach() + length * gradient / lengths(gradient, 2)
            further = further * (own / lengths(further, 2))
            moved = torch.where(kept.reshape(*kept.shape, *[1] * (eps.ndim - 2)), place.detach(), further)
    return moved.detach()


@dataclass(frozen=True)
class Sphere(Recipe):
    """Consistency regularisation; after a start its noise is first moved up the loss, on the sphere of its own norm.

    draws: noisy copies of every input.
    weight, entropy: λ and η of the consistency terms.
    start: the share of the training before the first attack.
    steps: steps of the attack; the network is in evaluation mode there.
    length: of a step, in ℓ2, in the noise's units before Σ; about the scale of the noise.
    """

    draws: int = 2
    weight: float = 5.0
    entropy: float = 0.5
    start: float = 0.4
    steps: int = 2
    length: float = 0.3

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.start <= 1 or self.length < 0 or self.steps < 1:
            raise InvalidInput("[recipe] start is a share from 0 to 1, length 0 or more, steps 1 or more.")

    def step(self, step: Step) -> Outcome:
        """The attack, when it is time for it, and the loss under the noise that it leaves."""
        eps = step.noise.draw(self.draws)
        if step.progress.done >= self.start:
            eps = climbed(step, eps, self.steps, self.length)
        logits = step.model(step.noise.place(eps))
        loss = cross_entropy(logits, step.labels) + disagreement(logits, self.weight, self.entropy)
        return Outcome.of(loss, logits, step.labels)

    def cost(self, progress: Progress) -> float:
        """A pass a copy, and one more for every step of the attack."""
        return self.draws * (1 + self.steps * (progress.done >= self.start))
