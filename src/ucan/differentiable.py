"""The smoothed classifier as a differentiable module, for attacks and fine-tuning by other packages."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from ucan.errors import InvalidInput, ModelError
from ucan.plan import check_count
from ucan.smoothed import SmoothedClassifier


class Differentiable(nn.Module):
    """log mean softmax f(x + μ + Σε) over draws ε: a soft smoothed classifier, differentiable in inputs and weights.

    Its outputs (batch, num_classes) are logarithms of probabilities, so they serve as logits. They are an estimate from few
    draws and certify nothing; ``SmoothedClassifier`` does. Gradients flow to the inputs, through noise that depends on them,
    and to the weights of classifier and generator.

    Args:
        g: the smoothed classifier; its model must give logits and let gradients through.
        draws: noisy copies per input and call.
        seed: None draws fresh noise in every call, as an adversary should expect it; a number uses the same noise in every
            call, which makes this a fixed function.
    """

    def __init__(self, g: SmoothedClassifier, draws: int = 16, seed: int | None = None) -> None:
        super().__init__()
        check_count("draws", draws)
        if not isinstance(g, SmoothedClassifier):
            raise InvalidInput(f"g must be a ucan.SmoothedClassifier, got {type(g).__name__}.")
        self.law, self.draws, self.seed = g.law, draws, seed
        self.num_classes = g.f.num_classes
        self.generator = g.M
        self.model: Any = g.f.model
        self._rng: dict[torch.device, torch.Generator] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Log-probabilities (batch, num_classes) for inputs (batch, *event)."""
        copies = self.generator.perturb(x, self.law, self.draws, self._source(x.device))
        logits = self.model(self.generator.view(copies.flatten(0, 1)))
        logits = getattr(logits, "logits", logits)
        if not isinstance(logits, torch.Tensor) or not logits.is_floating_point() or logits.ndim != 2:
            raise ModelError(
                "a differentiable classifier must give logits (n, classes); class numbers have no gradient."
            )
        each = logits.float().log_softmax(-1).reshape(self.draws, len(x), -1)
        return each.logsumexp(0) - math.log(self.draws)

    def _source(self, device: torch.device) -> torch.Generator:
        if self.seed is not None:
            return torch.Generator(device).manual_seed(self.seed)
        if device not in self._rng:
            self._rng[device] = torch.Generator(device)
            self._rng[device].seed()
        return self._rng[device]
