"""Plain noise augmentation (Cohen et al., 2019): cross-entropy on noisy copies."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ucan.training.recipes.base import OfLogits, cross_entropy


@dataclass(frozen=True)
class Augmentation(OfLogits):
    """Cross-entropy under the noise that certification will use."""

    draws: int = 1

    def loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Mean cross-entropy."""
        return cross_entropy(logits, labels)
