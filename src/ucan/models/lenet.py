"""The LeNet that published work on smoothing trains on MNIST."""

from __future__ import annotations

import torch
from torch import nn

from ucan.errors import ModelError


class LeNet(nn.Module):
    """Two 5 x 5 convolutions without padding, 20 and 50 channels, each with ReLU and 2 x 2 max-pooling, then linear layers
    with 500 units and one for each class; for square pictures. 0.43 million weights at 28 px.
    """

    def __init__(self, in_channels: int = 1, size: int = 28, num_classes: int = 10) -> None:
        super().__init__()
        side = ((size - 4) // 2 - 4) // 2
        if side < 1:
            raise ModelError(f"the lenet needs pictures of at least 16 x 16 pixels, got {size} x {size}.")
        self.conv1, self.conv2 = nn.Conv2d(in_channels, 20, 5), nn.Conv2d(20, 50, 5)
        self.pool = nn.MaxPool2d(2)
        self.hidden = nn.Linear(50 * side**2, 500)
        self.linear = nn.Linear(500, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits (n, num_classes) of a batch (n, in_channels, size, size)."""
        x = self.pool(self.conv1(x)).relu()  # as ReLU before the pooling, on a quarter of the values
        x = self.pool(self.conv2(x)).relu()
        found: torch.Tensor = self.linear(self.hidden(x.flatten(1)).relu())
        return found
