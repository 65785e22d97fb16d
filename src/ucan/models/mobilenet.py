"""MobileNetV2: inverted residuals with linear bottlenecks, for 224 px on small machines."""

from __future__ import annotations

import torch
from torch import nn

# Expansion, output channels, number of blocks, stride of the first: the table of the architecture's definition.
STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def _conv_relu6(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU6())


class InvertedResidual(nn.Module):
    """Widen by 1 x 1, filter each channel by 3 x 3, narrow by 1 x 1 without ReLU; added to the input if shapes agree."""

    def __init__(self, inputs: int, outputs: int, expansion: int, stride: int) -> None:
        super().__init__()
        wide = inputs * expansion
        widen = [_conv_relu6(inputs, wide, 1)] if expansion != 1 else []
        self.conv = nn.Sequential(
            *widen,
            _conv_relu6(wide, wide, 3, stride, groups=wide),
            nn.Conv2d(wide, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The block's features."""
        found: torch.Tensor = x + self.conv(x) if self.residual else self.conv(x)
        return found


class MobileNetV2(nn.Module):
    """MobileNetV2 of width 1.0; parameters are named as in torchvision."""

    def __init__(self, in_channels: int = 3, num_classes: int = 1000) -> None:
        super().__init__()
        layers: list[nn.Module] = [_conv_relu6(in_channels, 32, 3, 2)]
        width = 32
        for expansion, channels, count, stride in STAGES:
            for i in range(count):
                layers.append(InvertedResidual(width, channels, expansion, stride if i == 0 else 1))
                width = channels
        layers.append(_conv_relu6(width, 1280, 1))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, num_classes))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits (n, num_classes) of a batch (n, in_channels, height, width)."""
        found: torch.Tensor = self.classifier(self.features(x).mean((2, 3)))
        return found


class Rotate(nn.Module):
    """Pictures turned by 180 degrees, for weights whose kernels were turned (padding on the other side, as TensorFlow's)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The turned batch."""
        return x.flip((2, 3))
