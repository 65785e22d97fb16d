"""What a recipe is: which noisy copies are drawn, and what loss they give."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Recipe(ABC):
    """A way to train a classifier for smoothing: ``draws`` noisy copies of every input, and a loss of their logits."""

    draws: int = 1

    @abstractmethod
    def loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The loss from logits (draws, batch, classes) and labels (batch,)."""


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy over all noisy copies: the paper's smoothing loss (−Σ y log ŷ; it prints the wrong sign)."""
    draws, batch, classes = logits.shape
    flat = logits.float().reshape(draws * batch, classes)
    return torch.nn.functional.cross_entropy(flat, labels.expand(draws, batch).reshape(-1))
