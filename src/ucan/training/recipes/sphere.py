"""Consistency under noise that is moved, on its own sphere, to where the network is weakest. UCAN's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from ucan.errors import InvalidInput
from ucan.training.recipes.ascent import cross_entropies, lengths
from ucan.training.recipes.base import Remembering, Task, check_spherical, check_terms, cross_entropy
from ucan.training.recipes.consistency import disagreement
from ucan.training.step import Outcome, Progress, Step
from ucan.training.survey import Survey, right_share

# Votes that decide which inputs are dropped.
VOTES = 100


def climbed(step: Step, eps: torch.Tensor, steps: int, length: float, first_flip: bool = False) -> torch.Tensor:
    """Draws moved up their own cross-entropy, each step put back to the draw's own ℓ2 norm; before Σ.

    Under a spherical law the moved draw is as likely as the one it began as. With ``first_flip`` a draw stays where the network
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
class Sphere(Remembering):
    """Consistency regularisation; after a start its noise is first moved up the loss, on the sphere of its own norm.

    For noise whose density depends on its ℓ2 norm alone (``Law.spherical``: Gaussian), under any Σ; other laws are refused.
    With ``drop``, inputs that fewer than this share of 100 votes get right at the start are left out from then on. A network
    that is trained already (``finetune``) may start at once.

    draws: noisy copies of every input.
    weight, entropy: λ and η of the consistency terms.
    start: the share of the training before the first attack.
    steps: steps of the attack; the network is in evaluation mode there.
    length: of a step, in ℓ2, in the noise's units before Σ; about the scale of the noise.
    drop: the least share of right votes of an input that is kept; for radii of twice the noise's scale and more.
    """

    draws: int = 2
    weight: float = 5.0
    entropy: float = 0.5
    start: float = 0.4
    steps: int = 2
    length: float = 0.3
    drop: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_terms(self, "weight", "entropy")
        if not 0 <= self.start <= 1 or not 0 <= self.drop < 1 or self.length < 0 or self.steps < 1:
            raise InvalidInput("[recipe] start and drop are shares from 0 to 1, length 0 or more, steps 1 or more.")

    def prepare(self, task: Task) -> None:
        """Noise that has a sphere; every input, to begin with."""
        check_spherical(task, "sphere")
        if self.drop:
            self.memory["kept"] = torch.ones(task.inputs, dtype=torch.bool, device=task.device)

    @property
    def asks_first(self) -> bool:
        """With a start of 0 the inputs to drop are found before the first step."""
        return self.drop > 0 and self.start == 0

    def before_epoch(self, survey: Survey) -> None:
        """Drop once, before the first epoch of attacks; where none is left, keep all."""
        if self.drop and survey.progress.epoch == survey.progress.epoch_at(self.start):
            kept = survey.each(lambda step: right_share(step, VOTES)) >= self.drop
            self.memory["kept"].copy_(kept if bool(kept.any()) else torch.ones_like(kept))

    def sampling(self) -> torch.Tensor | None:
        """The inputs that are left, with equal weights; None if all are."""
        if not self.drop or bool(self.memory["kept"].all()):
            return None
        return self.memory["kept"].float()

    def step(self, step: Step) -> Outcome:
        """The attack, when it is time for it, and the loss under the noise that it leaves."""
        eps = step.noise.draw(self.draws)
        if step.progress.done >= self.start:
            eps = climbed(step, eps, self.steps, self.length)
        logits = step.model(step.noise.place(eps))
        loss = cross_entropy(logits, step.labels) + disagreement(logits, self.weight, self.entropy)
        return Outcome.of(loss, logits, step.labels)

    def cost(self, progress: Progress) -> float:
        """One pass per copy, one more for every step of the attack, and the votes that decide what is dropped."""
        surveyed = VOTES / 3 if self.drop and progress.epoch == progress.epoch_at(self.start) else 0.0
        return self.draws * (1 + self.steps * (progress.done >= self.start)) + surveyed

    def load_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take up again which inputs are left."""
        if state.keys() != self.memory.keys():
            raise InvalidInput(f"the checkpoint of this recipe holds {', '.join(sorted(state)) or 'nothing'}, which does not "
                               "go with [recipe] drop: begin a new training.")  # fmt: skip
        super().load_state(state)
