"""Normalisation as a model's first layer: a model takes pixels in [0, 1], and noise is always in pixel units."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from ucan.errors import ModelError

Statistics = tuple[Sequence[float], Sequence[float]]

# Mean and standard deviation per channel, in pixel units.
IMAGENET: Statistics = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CIFAR10: Statistics = ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
HALF: Statistics = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


class Normalise(nn.Module):
    """(x − mean) / std, channel by channel, of a batch (n, channels, height, width). Saved with the weights."""

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        if len(mean) != len(std) or not len(mean) or not all(s > 0 for s in std):
            raise ModelError(f"Normalise needs one mean and one std > 0 for each channel, got {mean!r} and {std!r}.")
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32)[:, None, None])
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32)[:, None, None])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The normalised batch, of the same shape."""
        if x.ndim != 4 or x.shape[1] != len(self.mean):
            raise ModelError(
                f"the model normalises {len(self.mean)} channels, but was given a batch of shape {tuple(x.shape)} "
                "instead of (n, channels, height, width): choose a model for these images, or other images."
            )
        return (x - self.mean) / self.std
