"""The paper's two-layer convolutional network for MNIST."""

from __future__ import annotations

import torch
from torch import nn

from ucan.errors import ModelError


class CNN(nn.Module):
    """Two 4 x 4 convolutions with stride 2 and ReLU, then one linear layer; for square pictures.

    Strides instead of pooling make it many times faster on a CPU.
    The first convolution has ``width`` channels, the second twice as many: 16, or 64 for pictures of at most 16 pixels,
    which can afford them. With ``hidden`` a linear layer of so many units, with ReLU, comes before the last one.
    """

    hidden: nn.Linear | None

    def __init__(
        self, in_channels: int = 1, size: int = 28, num_classes: int = 10, width: int | None = None, hidden: int = 0
    ) -> None:
        super().__init__()
        width = (64 if size <= 16 else 16) if width is None else width
        if size < 4:
            raise ModelError(f"the cnn halves pictures twice, so they need at least 4 x 4 pixels, got {size} x {size}.")
        self.conv1 = nn.Conv2d(in_channels, width, 4, stride=2, padding=1)
        self.conv2 = nn.Conv2d(width, 2 * width, 4, stride=2, padding=1)
        features = 2 * width * (size // 4) ** 2
        # Registered even where there is none: a plain attribute would belong to the model's identity.
        self.register_module("hidden", nn.Linear(features, hidden) if hidden else None)
        self.linear = nn.Linear(hidden or features, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits (n, num_classes) of a batch (n, in_channels, size, size)."""
        x = self.conv2(self.conv1(x).relu()).relu().flatten(1)
        if self.hidden is not None:
            x = self.hidden(x).relu()
        found: torch.Tensor = self.linear(x)
        return found
