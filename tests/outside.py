"""A package beside ours, made in a folder: its code, and the entry points that installing it would leave."""

from pathlib import Path

CODE = '''
import math
from dataclasses import dataclass

import torch
from scipy.special import ndtri

import ucan
from ucan.scales import Diagonal
from ucan.stopping import Stop
from ucan.training.recipes import OfLogits, cross_entropy


@dataclass(frozen=True)
class Halved(ucan.Law):
    """Gaussian noise that claims a share of its radius."""

    share: float = 0.5
    norms = (2,)

    def _draw(self, n, dim, rng, dtype):
        return torch.empty(n, dim, device=rng.device, dtype=dtype).normal_(0, self.scale, generator=rng)

    def _unit_std(self, dim):
        return 1.0

    def _radius(self, p_a, p_b, norm, dim):
        return self.share * self.scale * (ndtri(p_a) - ndtri(p_b)) / 2


class Stripes(ucan.Generator):
    """Two scales in turn, row by row."""

    scope = "pipeline"

    def __init__(self, shape, even=0.5, odd=1.0):
        super().__init__()
        sigma = torch.full(tuple(shape), float(even))
        sigma[..., 1::2, :] = odd
        self.register_buffer("sigma", sigma)

    def forward(self, x):
        return x.new_zeros(()), Diagonal(self.sigma)


class Ramp(Diagonal):
    """Scales that rise from left to right."""

    def __init__(self, shape, low=0.5, high=1.0):
        super().__init__(torch.linspace(low, high, shape[-1]).expand(*shape).contiguous())


@dataclass(frozen=True)
class Gentle(OfLogits):
    """Cross-entropy with soft labels."""

    draws: int = 2
    smoothing: float = 0.1

    def loss(self, logits, labels):
        flat = logits.float().flatten(0, 1)
        return torch.nn.functional.cross_entropy(flat, labels.repeat(self.draws), label_smoothing=self.smoothing)


@dataclass(frozen=True)
class Patient(Stop):
    """So many votes, and no more."""

    votes: int = 128

    def settled(self, hits, drawn, cap, alpha, radius):
        return drawn >= self.votes

    def __str__(self):
        return f"patient(votes={self.votes})"


def nudge(aims, budget):
    """One random point at the edge of every ball."""
    return [aim.ball.place(aim.ball.random(1, aim.x, aim.rng)) for aim in aims]


def blocks(split):
    """Eight grey pictures of two classes."""
    x = torch.arange(8).float().reshape(8, 1, 1, 1).expand(8, 1, 8, 8) / 8
    return [(picture, i // 4) for i, picture in enumerate(x)]
'''
ENTRIES = """
[ucan.laws]
halved = toy_parts:Halved

[ucan.generators]
stripes = toy_parts:Stripes

[ucan.scales]
ramp = toy_parts:Ramp

[ucan.recipes]
gentle = toy_parts:Gentle

[ucan.stops]
patient = toy_parts:Patient

[ucan.attacks]
nudge = toy_parts:nudge

[ucan.readers]
blocks = toy_parts:blocks
"""


def install(folder: Path, code: str = CODE, entries: str = ENTRIES, name: str = "toy-parts") -> Path:
    """What `pip install` would leave of a package: its module, and its metadata."""
    folder.mkdir(parents=True, exist_ok=True)
    module = name.replace("-", "_")
    (folder / f"{module}.py").write_text(code)
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entries)
    return folder
