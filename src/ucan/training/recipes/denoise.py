"""Training of a denoiser in front of a fixed classifier (denoised smoothing, Salman et al., 2020)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional as F

from ucan.errors import InvalidInput
from ucan.models import Denoised
from ucan.training.recipes.base import Recipe
from ucan.training.step import Outcome, Progress, Step


@dataclass(frozen=True)
class Denoise(Recipe):
    """mse·‖D(x + ε) − x‖² (the mean over pixels) + stability·(cross-entropy of f(D(x + ε)) towards the class f(x)).

    draws: noisy copies of every input; the authors take 1.
    mse: the weight of the squared error; the authors take 1 with stability 0, or
    stability: the weight of the stability loss, 1 with mse 0. f is the fixed classifier; no labels are used.
    """

    draws: int = 1
    mse: float = 1.0
    stability: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.mse, self.stability) < 0 or self.mse + self.stability == 0:
            raise InvalidInput("[recipe] mse and stability must be 0 or above, and not both 0.")

    def step(self, step: Step) -> Outcome:
        """One pass through denoiser and classifier; with the stability loss one of the classifier on clean inputs, too."""
        system = step.model.module
        if not isinstance(system, Denoised):
            raise InvalidInput("the recipe denoise trains a [denoiser] in front of the model: add that table.")
        noisy = step.noise.copies(self.draws)
        shown = step.noise.generator.view(noisy.flatten(0, 1))
        clean = system.cleaned(shown)
        logits = system.classifier(clean)
        error = F.mse_loss(clean.float(), step.inputs.repeat(self.draws, *[1] * (step.inputs.ndim - 1)).float())
        loss = self.mse * error
        shown_metrics = {"mse": error}
        if self.stability:
            with torch.no_grad():
                answers = system.classifier(step.inputs).argmax(-1)
            far = F.cross_entropy(logits.float(), answers.repeat(self.draws))
            loss = loss + self.stability * far
            shown_metrics["stability"] = far
        return Outcome.of(loss, logits.reshape(self.draws, len(step.inputs), -1), step.labels, **shown_metrics)

    def cost(self, progress: Progress) -> float:
        """One pass per copy; a forward pass of the classifier for the stability loss."""
        return self.draws + (1 / 3 if self.stability else 0.0)
