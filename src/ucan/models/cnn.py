"""The paper's two-layer convolutional network for MNIST."""

from __future__ import annotations

import torch
from torch import nn

from ucan.errors import ModelError


class CNN(nn.Module):
    """Two 3 x 3 convolutions, each with ReLU and 2 x 2 max-pooling, then one linear layer; for square pictures."""

    def __init__(self, in_channels: int = 1, size: int = 28, num_classes: int = 10, width: int = 32) -> None:
        super().__init__()
        if size < 4:
            raise ModelError(f"the cnn pools twice, so pictures need at least 4 x 4 pixels, got {size} x {size}.")
        self.conv1 = nn.Conv2d(in_channels, width, 3, padding=1)
        self.conv2 = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.linear = nn.Linear(2 * width * (size // 4) ** 2, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits (n, num_classes) of a batch (n, in_channels, size, size)."""
        x = nn.functional.max_pool2d(self.conv1(x).relu(), 2)
        x = nn.functional.max_pool2d(self.conv2(x).relu(), 2)
        return self.linear(x.flatten(1))
