"""Small models for ``ucan.data.examples``, fitted on the spot in closed form: to try every kind of question.

Each is made by a function without arguments, so that it can be given by name: ``--model ucan.models.examples:diabetes``.
"""

from __future__ import annotations

import torch
from torch import nn

from ucan.data import load

# Weights are rounded to this, so that they are the same on every machine.
DIGITS = 4
PATCH = 5


def _fitted(rows: torch.Tensor, goals: torch.Tensor, ridge: float) -> nn.Linear:
    """Ridge regression of the goals (n, k) on rows (n, d), with an offset."""
    rows, goals = rows.double(), goals.double()
    mean, level = rows.mean(0), goals.mean(0)
    centred = rows - mean
    square = centred.T @ centred + ridge * len(rows) * torch.eye(rows.shape[1], dtype=torch.float64)
    weight = torch.linalg.solve(square, centred.T @ (goals - level)).T.contiguous()
    layer = nn.Linear(rows.shape[1], goals.shape[1])
    with torch.no_grad():
        layer.weight.copy_(weight.round(decimals=DIGITS))
        layer.bias.copy_((level - weight @ mean).round(decimals=DIGITS))
    return layer.eval()


def _signs(targets: torch.Tensor) -> torch.Tensor:
    return 2 * targets.double() - 1


def diabetes() -> nn.Module:
    """Regression: the measure of the disease from ten numbers (n, 10) → (n, 1)."""
    data = load("diabetes", "train")
    assert data.targets is not None, "the reader gives them"
    return _fitted(data.batch(range(len(data)))[0], data.targets, 0.01)


def breast_cancer() -> nn.Module:
    """Three labels from thirty numbers: logits (n, 3), above 0 for malignant, large and uneven."""
    data = load("breast-cancer", "train")
    assert data.targets is not None, "the reader gives them"
    return _fitted(data.batch(range(len(data)))[0], _signs(data.targets), 0.1)


def digits() -> nn.Module:
    """Ten classes from pictures of digits (n, 1, 8, 8): logits (n, 10)."""
    data = load("digits", "train")
    x, labels = data.batch(range(len(data)))
    goals = _signs(nn.functional.one_hot(labels, 10))
    return nn.Sequential(nn.Flatten(), _fitted(x.flatten(1), 4 * goals, 0.02)).eval()


def shapes() -> nn.Module:
    """Segmentation: ground, disc or square at each pixel of pictures (n, 3, 24, 24): logits (n, 3, 24, 24)."""
    data = load("shapes", "train").subset(range(100))
    x, masks = data.batch(range(100))[0], _targets(100)
    patches = nn.functional.unfold(x, PATCH, padding=PATCH // 2)  # (n, 3·5·5, pixels)
    rows = patches.transpose(1, 2).flatten(0, 1)
    line = _fitted(rows, 4 * _signs(nn.functional.one_hot(masks.flatten(), 3)), 0.02)
    network = nn.Conv2d(3, 3, PATCH, padding=PATCH // 2)
    with torch.no_grad():
        network.weight.copy_(line.weight.reshape(3, 3, PATCH, PATCH))
        assert network.bias is not None, "it has one by default"
        network.bias.copy_(line.bias)
    return network.eval()


def _targets(count: int) -> torch.Tensor:
    targets = load("shapes", "train").targets
    assert targets is not None, "the reader gives them"
    return targets[:count]


class Boxes(nn.Module):
    """The box around the red disc: (n, 4), top, left, bottom and right in pixels, from where its class is likely."""

    def __init__(self, segmenter: nn.Module) -> None:
        super().__init__()
        self.segmenter = segmenter

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Mean and spread of the disc's pixels; a disc of radius r has a spread of r/2 along each axis."""
        likely = self.segmenter(x).softmax(1)[:, 1] ** 2
        likely = likely / likely.sum((1, 2), keepdim=True).clamp_min(1e-6)
        place = torch.arange(x.shape[-1], dtype=x.dtype, device=x.device)
        down, across = likely.sum(2), likely.sum(1)
        middle = torch.stack([down @ place, across @ place], 1)
        spread = torch.stack([down @ place**2, across @ place**2], 1) - middle**2
        half = 2 * spread.clamp_min(0).sqrt()
        return torch.cat([middle - half, middle + half], 1)


def boxes() -> nn.Module:
    """Boxes of the disc in pictures of shapes: (n, 3, 24, 24) → (n, 4)."""
    return Boxes(shapes()).eval()
