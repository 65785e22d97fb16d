"""Classifier and generator under one loss: −variance term + cross-entropy under noise."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ucan.errors import InvalidInput
from ucan.generators import Composed, Generator
from ucan.laws import Law
from ucan.scales import DCT, Basis, Diagonal, Scalar, Scale, as_scale
from ucan.training.recipes import Recipe

VARIANCE_TERMS = ("none", "mean", "logmean", "min", "budget")


def scale_entries(scale: Scale, x: torch.Tensor) -> torch.Tensor:
    """The scales of all directions for inputs x: one row per input, or one row for all where Σ is shared."""
    if isinstance(scale, Diagonal):
        return scale.sigma.flatten(1) if scale.sigma.ndim == x.ndim else scale.sigma.reshape(1, -1)
    if isinstance(scale, Basis | DCT):
        return scale.s.reshape(1, -1)
    if isinstance(scale, Scalar):
        return torch.tensor([[scale.value]])
    raise InvalidInput(f"a variance term needs a Σ with one scale per direction, not {type(scale).__name__}.")


def variance_term(entries: torch.Tensor, term: str, budget: torch.Tensor | None = None) -> torch.Tensor:
    """What training pushes up, each term for its claim.

    The mean of σ (as printed); of log σ (what ALM is); each sample's smallest σ (the ℓ2 radius); or for a budget b, 1
    everywhere if none is given, −½ log mean (b/σ)²: for b = 1 the logarithm of the scale of isotropic noise with the same
    guarantee against ℓ∞.
    """
    if term == "budget":
        b = torch.ones((), device=entries.device) if budget is None else budget.to(entries).reshape(1, -1)
        return -0.5 * (b / entries).square().mean(1).log().mean()
    if term == "mean":
        return entries.mean()
    if term == "logmean":
        return entries.log().mean()
    if term == "min":
        return entries.amin(1).mean()
    raise InvalidInput(f"the variance term is one of {', '.join(VARIANCE_TERMS)}, not {term!r}.")


class Joint(nn.Module):
    """The training step as one module: (x, labels) → loss and what to show of it."""

    budget: torch.Tensor | None

    def __init__(
        self,
        classifier: nn.Module,
        generator: Generator,
        law: Law,
        recipe: Recipe,
        term: str,
        weight: float,
        budget: torch.Tensor | None = None,
    ) -> None:
        super().__init__()
        self.answer: Any
        if term not in VARIANCE_TERMS:
            raise InvalidInput(f"the variance term is one of {', '.join(VARIANCE_TERMS)}, not {term!r}.")
        self.classifier = classifier
        self.generator = generator
        self.law = law
        self.recipe = recipe
        self.term = term
        self.weight = weight
        # Kept with the weights, so that the run can say what it was trained for.
        self.register_buffer("budget", None if budget is None else budget.detach().float().clone())
        self.use_for_answers(classifier)

    def use_for_answers(self, twin: Any) -> None:
        """Answer with a (compiled) twin that shares the classifier's weights; it adds no weights of its own."""
        object.__setattr__(self, "answer", twin)

    def forward(self, x: torch.Tensor, labels: torch.Tensor, rng: torch.Generator) -> dict[str, torch.Tensor]:
        """loss, the number of correct noisy copies, and the smallest and mean σ where the noise has one Σ to speak of."""
        noise = self.generator(x)
        noisy = self.generator.perturb(x, self.law, self.recipe.draws, rng, noise)
        shown = self.generator.view(noisy.flatten(0, 1))
        if shown.ndim == 4 and shown.is_cuda:  # the layout in which a GPU's convolutions are fastest
            shown = shown.contiguous(memory_format=torch.channels_last)
        logits = self.answer(shown)
        logits = logits.reshape(self.recipe.draws, len(x), -1)
        loss = self.recipe.loss(logits, labels)
        entries = scale_entries(as_scale(noise[1]), x).float()
        if self.term != "none":
            loss = loss - self.weight * variance_term(entries, self.term, self.budget)
        metrics = {"loss": loss, "correct": (logits.argmax(-1) == labels).float().mean().detach()}
        if not isinstance(self.generator, Composed):  # every copy of which draws its own
            metrics |= {"min_sigma": entries.amin(1).mean().detach(), "mean_sigma": entries.mean().detach()}
        return metrics
