"""Classifier and generator under one loss: −variance term + cross-entropy under noise."""

from __future__ import annotations

import torch
from torch import nn

from ucan.errors import InvalidInput
from ucan.generators import Generator
from ucan.laws import Law
from ucan.scales import DCT, Basis, Diagonal, Scalar, Scale, as_scale
from ucan.training.recipes import Recipe
from ucan.training.share import Share
from ucan.training.step import Network, NoiseSource, Progress, Step, Twins

VARIANCE_TERMS = ("none", "mean", "logmean", "min", "budget")


def scale_entries(scale: Scale, x: torch.Tensor) -> torch.Tensor | None:
    """The scales of all directions for inputs x, one row per input, or one row for all where Σ is shared.

    None if Σ has no separate scale for every direction.
    """
    if isinstance(scale, Diagonal):
        return scale.sigma.flatten(1) if scale.sigma.ndim == x.ndim else scale.sigma.reshape(1, -1)
    if isinstance(scale, Basis | DCT):
        return scale.s.reshape(1, -1)
    if isinstance(scale, Scalar):
        return torch.tensor([[scale.value]])
    return None


def variance_term(entries: torch.Tensor, term: str, budget: torch.Tensor | None = None) -> torch.Tensor:
    """The term that training maximises, one for each claim.

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
    raise InvalidInput(f"the variance term must be one of {', '.join(VARIANCE_TERMS)}, got {term!r}.")


class Exact:
    """Inputs that mixed precision leaves as they are, since Fabric casts only bare tensors.

    In bf16 pixels and noise would be rounded to 8 bits: in a short step of an attack a fifth of the coordinates would not move,
    and a recipe that mixes inputs with random numbers would meet two types.
    """

    def __init__(self, inputs: torch.Tensor) -> None:
        self.inputs = inputs


class Joint(nn.Module):
    """The training step as one module: (x, labels) → loss and metrics."""

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
        share: Share | None = None,
        layout: torch.memory_format = torch.contiguous_format,
    ) -> None:
        super().__init__()
        self.twins: Twins
        if term not in VARIANCE_TERMS:
            raise InvalidInput(f"the variance term must be one of {', '.join(VARIANCE_TERMS)}, got {term!r}.")
        self.classifier = classifier
        self.generator = generator
        self.share = share
        self.law = law if share is None else share.law(law)
        self.recipe = recipe
        self.term = term
        self.weight = weight
        self.layout = layout
        # Stored with the weights, so that the run states what it was trained for.
        self.register_buffer("budget", None if budget is None else budget.detach().float().clone())
        self.use_for_answers(Twins(classifier, classifier))

    def use_for_answers(self, twins: Twins) -> None:
        """Use (compiled) twins that share the classifier's weights; they have no weights of their own."""
        self.twins = twins

    def forward(
        self,
        given: torch.Tensor | Exact,
        labels: torch.Tensor,
        rng: torch.Generator,
        places: torch.Tensor | None = None,
        epoch: int = 0,
        epochs: int = 1,
        done: float = 0.0,
    ) -> dict[str, torch.Tensor]:
        """loss, the share of correct noisy copies, what else the recipe shows, and σ where the noise has one to speak of.

        That is its smallest and its mean. ``places`` are the inputs' numbers in the training set.
        """
        x = given.inputs if isinstance(given, Exact) else given
        step = self.step_at(x, labels, rng, places, Progress(epoch, epochs, done))
        metrics = self.recipe.step(step).metrics()
        entries = scale_entries(as_scale(step.noise.scale), x)
        if self.term != "none":
            if entries is None:
                kind = type(step.noise.scale).__name__
                raise InvalidInput(f"a variance term needs a Σ with one scale per direction, not {kind}.")
            metrics["loss"] = metrics["loss"] - self.weight * variance_term(entries.float(), self.term, self.budget)
        if entries is not None and not self.generator.redrawn:
            sigma = entries.detach().float()
            metrics |= {"min_sigma": sigma.amin(1).mean(), "mean_sigma": sigma.mean()}
        return metrics

    def step_at(
        self,
        x: torch.Tensor,
        labels: torch.Tensor,
        rng: torch.Generator,
        places: torch.Tensor | None,
        progress: Progress,
    ) -> Step:
        """What the recipe is given for these inputs."""
        mean, scale = self.generator(x)
        return Step(
            model=Network(self.classifier, self.generator, x.ndim - 1, self.twins, self.layout),
            inputs=x,
            labels=labels,
            noise=NoiseSource(self.generator, self.law, x, mean, scale, rng),
            rng=rng,
            places=torch.arange(len(x), device=x.device) if places is None else places,
            progress=progress,
            share=self.share or Share(len(x)),
        )
