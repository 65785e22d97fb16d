"""Consistency regularisation (Jeong and Shin, 2020): noisy copies of one input should agree."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ucan.training.recipes.base import OfLogits, check_terms, cross_entropy


@dataclass(frozen=True)
class Consistency(OfLogits):
    """Cross-entropy + λ·mean KL(mean ‖ each) + η·entropy of the mean, over the copies' softmax outputs.

    λ = ``weight`` is 20 at σ = 0.25 and 10 at larger noise; η = ``entropy`` is 0.5 and is not multiplied by λ.
    """

    draws: int = 2
    weight: float = 10.0
    entropy: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_terms(self, "weight", "entropy")

    def loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The three terms."""
        return cross_entropy(logits, labels) + disagreement(logits, self.weight, self.entropy)


def disagreement(logits: torch.Tensor, weight: float, entropy: float) -> torch.Tensor:
    """weight·mean KL(mean ‖ each) + entropy·(entropy of the mean), over copies with logits (draws, batch, classes)."""
    log_each = torch.log_softmax(logits.float(), dim=-1)
    mean = log_each.exp().mean(0)
    log_mean = mean.clamp_min(1e-20).log()
    divergence = (mean * (log_mean - log_each)).sum(-1).mean()
    return weight * divergence - entropy * (mean * log_mean).sum(-1).mean()
