"""Diversity-regularised training (Yang et al., 2022): networks of an ensemble that fail in different directions."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import torch
from torch.nn import functional as F

from ucan.errors import InvalidInput
from ucan.training.recipes.base import Recipe
from ucan.training.step import Outcome, Progress, Step


@dataclass(frozen=True)
class Drt(Recipe):
    """Σ cross-entropy of each network + diversity·Σ over pairs ‖∇marginᵢ + ∇marginⱼ‖₂ − margins·Σ marginᵢ.

    A network's margin is the probability that it gives the label, less the one for the ensemble's first other class; the last
    two terms count where the ensemble is right. It needs an ensemble: a model with its networks in ``members``
    (``ucan.Ensemble``). Written from the paper's description, not compared with its authors' code.

    draws: noisy copies of every input.
    diversity: ρ₁.
    margins: ρ₂.
    """

    draws: int = 1
    diversity: float = 0.5
    margins: float = 2.0

    def step(self, step: Step) -> Outcome:
        """A pass through every network, and the gradients of its margin with respect to the noisy inputs."""
        networks = step.model.members
        if len(networks) < 2:
            raise InvalidInput(
                "drt trains several networks together: give it an ensemble of at least two (ucan.Ensemble)."
            )
        noisy = step.noise.copies(self.draws).flatten(0, 1).detach().requires_grad_(True)
        labels = step.labels.repeat(self.draws)
        answers = torch.stack([network(noisy).float() for network in networks])  # shape: (networks, n·batch, classes)
        mean = answers.mean(0)
        rival = mean.scatter(1, labels[:, None], -torch.inf).argmax(1)
        right = (mean.argmax(1) == labels).float()
        loss = sum((F.cross_entropy(each, labels) for each in answers), torch.zeros((), device=noisy.device))
        margin = [_margin(each, labels, rival) for each in answers]
        slopes = [torch.autograd.grad(m.sum(), noisy, create_graph=True)[0].flatten(1) for m in margin]
        alike = torch.stack([(a + b).norm(dim=1) for a, b in combinations(slopes, 2)]).sum(0)
        apart, wide = ((right * values).mean() for values in (alike, torch.stack(margin).sum(0)))
        loss = loss + self.diversity * apart - self.margins * wide
        return Outcome.of(
            loss, mean.reshape(self.draws, len(step.labels), -1), step.labels, diversity=apart, margin=wide
        )

    def cost(self, progress: Progress) -> float:
        """A pass of each network, and about as much again for the gradients of gradients."""
        return 3 * self.draws


def _margin(logits: torch.Tensor, labels: torch.Tensor, rival: torch.Tensor) -> torch.Tensor:
    p = logits.softmax(-1)
    return p.gather(1, labels[:, None])[:, 0] - p.gather(1, rival[:, None])[:, 0]
