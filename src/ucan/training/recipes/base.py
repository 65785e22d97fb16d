"""What a recipe is: which noisy copies are drawn, and what loss they give."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields

import torch

from ucan.errors import InvalidInput


@dataclass(frozen=True)
class Recipe(ABC):
    """A way to train a classifier for smoothing: ``draws`` noisy copies of every input, and a loss of their logits."""

    draws: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.draws, int) or isinstance(self.draws, bool) or self.draws < 1:
            raise InvalidInput(f"[recipe] draws must be a whole number, 1 or above, got {self.draws!r}.")
        for name in (f.name for f in fields(self) if f.name != "draws"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not math.isfinite(value):
                raise InvalidInput(f"[recipe] {name} must be a finite number, got {value!r}.")

    @abstractmethod
    def loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The loss from logits (draws, batch, classes) and labels (batch,)."""


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy over all noisy copies: the paper's smoothing loss (−Σ y log ŷ; it prints the wrong sign)."""
    draws, batch, classes = logits.shape
    flat = logits.float().reshape(draws * batch, classes)
    return torch.nn.functional.cross_entropy(flat, labels.expand(draws, batch).reshape(-1))
