"""Residual networks: by depth 6n + 2 for CIFAR-10, and by stages of basic or bottleneck blocks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from ucan.errors import ModelError


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)


def _initialise(model: nn.Module) -> None:
    """He's initialisation of every convolution, so that the variance of the gradients survives the depth."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut; where the shape changes the shortcut is a 1 x 1 projection."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int = 1, project: bool = True) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv(inputs, width, 3, stride), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = _conv(width, width, 3), nn.BatchNorm2d(width)
        self.downsample = _projection(inputs, width, stride) if project else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The block's features, of the block's width."""
        out = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        found: torch.Tensor = (out + self.shortcut(x)).relu()
        return found

    def shortcut(self, x: torch.Tensor) -> torch.Tensor:
        """The input, brought to the output's shape."""
        return x if self.downsample is None else self.downsample(x)


class PaddedBlock(BasicBlock):
    """A basic block whose shortcut has no parameters: every second pixel, zero channels on both sides."""

    def __init__(self, inputs: int, width: int, stride: int = 1) -> None:
        super().__init__(inputs, width, stride, project=False)
        self.stride, self.padding = stride, (width - inputs) // 2

    def shortcut(self, x: torch.Tensor) -> torch.Tensor:
        """The input, brought to the output's shape."""
        if self.stride == 1 and self.padding == 0:
            return x
        return nn.functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.padding, self.padding))


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3 (which carries the stride) and 1 x 1 convolutions beside a shortcut; four times as wide at the end."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv(inputs, width, 1), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = _conv(width, width, 3, stride), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = _conv(width, 4 * width, 1), nn.BatchNorm2d(4 * width)
        self.downsample = _projection(inputs, 4 * width, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The block's features, of four times the block's width."""
        out = self.bn1(self.conv1(x)).relu()
        out = self.bn2(self.conv2(out)).relu()
        out = self.bn3(self.conv3(out))
        found: torch.Tensor = (out + (x if self.downsample is None else self.downsample(x))).relu()
        return found


def _projection(inputs: int, outputs: int, stride: int) -> nn.Sequential | None:
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(_conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))


def _stage(block: type[BasicBlock] | type[Bottleneck], inputs: int, width: int, count: int, stride: int) -> nn.Module:
    first = block(inputs, width, stride)
    return nn.Sequential(first, *(block(width * block.expansion, width) for _ in range(count - 1)))


class CifarResNet(nn.Module):
    """The residual network of depth 6n + 2 for 32 px: three stages of n blocks, 16, 32 and 64 channels wide."""

    def __init__(self, depth: int = 20, in_channels: int = 3, num_classes: int = 10) -> None:
        super().__init__()
        if depth < 8 or depth % 6 != 2:
            raise ModelError(f"a CIFAR ResNet's depth is 6n + 2 (20, 32, 44, 56, 110), got {depth}.")
        n = (depth - 2) // 6
        self.conv1, self.bn1 = _conv(in_channels, 16, 3), nn.BatchNorm2d(16)
        self.layer1 = _stage(PaddedBlock, 16, 16, n, 1)
        self.layer2 = _stage(PaddedBlock, 16, 32, n, 2)
        self.layer3 = _stage(PaddedBlock, 32, 64, n, 2)
        self.linear = nn.Linear(64, num_classes)
        _initialise(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits (n, num_classes) of a batch (n, in_channels, height, width)."""
        x = self.bn1(self.conv1(x)).relu()
        x = self.layer3(self.layer2(self.layer1(x)))
        found: torch.Tensor = self.linear(x.mean((2, 3)))
        return found


class ResNet(nn.Module):
    """Four stages of blocks, 64, 128, 256 and 512 wide; parameters are named as in torchvision.

    ``small``: for 32 px the stem is one 3 x 3 convolution; otherwise, for 224 px, 7 x 7 with stride 2 and max-pooling.
    """

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        counts: Sequence[int],
        in_channels: int = 3,
        num_classes: int = 1000,
        small: bool = False,
    ) -> None:
        super().__init__()
        self.conv1 = _conv(in_channels, 64, 3) if small else _conv(in_channels, 64, 7, 2)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.Identity() if small else nn.MaxPool2d(3, stride=2, padding=1)
        k = block.expansion
        self.layer1 = _stage(block, 64, 64, counts[0], 1)
        self.layer2 = _stage(block, 64 * k, 128, counts[1], 2)
        self.layer3 = _stage(block, 128 * k, 256, counts[2], 2)
        self.layer4 = _stage(block, 256 * k, 512, counts[3], 2)
        self.fc = nn.Linear(512 * k, num_classes)
        _initialise(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits (n, num_classes) of a batch (n, in_channels, height, width)."""
        x = self.maxpool(self.bn1(self.conv1(x)).relu())
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        found: torch.Tensor = self.fc(x.mean((2, 3)))
        return found


def resnet18_small(in_channels: int = 3, num_classes: int = 10) -> ResNet:
    """ResNet-18 for 32 px."""
    return ResNet(BasicBlock, (2, 2, 2, 2), in_channels, num_classes, small=True)


def resnet50(in_channels: int = 3, num_classes: int = 1000) -> ResNet:
    """ResNet-50 for 224 px."""
    return ResNet(Bottleneck, (3, 4, 6, 3), in_channels, num_classes)
