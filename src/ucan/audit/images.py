"""The worst breaks as pictures: the input, the perturbation, the perturbed input."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from ucan.audit.ledger import Ledger, load_break
from ucan.audit.trials import Attempt

SAVED = 8  # breaks that are saved as pictures, at most
SIDE = 160  # the least number of pixels of a panel's smaller side


def worst(attempts: Sequence[Attempt]) -> list[Attempt]:
    """The strongest breaks: inside the smallest fraction of the region first, then by the fewest votes left."""
    own = [a for a in attempts if a.broken and a.same_as is None]
    return sorted(own, key=lambda a: (a.factor, a.hits / max(1, a.total), a.idx))[:SAVED]


def save_images(ledger: Ledger, attempts: Sequence[Attempt]) -> list[Path]:
    """Write the worst breaks as PNG files next to their δ; inputs that are not pictures are skipped."""
    paths = []
    for attempt in worst(attempts):
        source = ledger.path_of(attempt.to_dict())
        if not source.is_file():
            continue
        _, x, delta = load_break(source)
        if x.ndim == 4 and x.shape[1] in (1, 3):
            paths.append(save_panels(source.with_suffix(".png"), x[0].double(), delta[0]))
    return paths


def save_panels(path: Path, x: torch.Tensor, delta: torch.Tensor) -> Path:
    """Input, δ (grey is 0, its largest entry black or white) and perturbed input (clipped to [0, 1]), side by side."""
    from PIL import Image

    grey = 0.5 + 0.5 * delta / delta.abs().max().clamp_min(1e-12)
    gap = torch.ones(x.shape[0], x.shape[1], 1, dtype=x.dtype)
    strip = torch.cat([x, gap, grey, gap, x + delta], dim=2).clamp(0, 1)
    pixels = (255 * strip).round().byte().movedim(0, -1).numpy()
    picture = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    times = max(1, SIDE // min(x.shape[1:]))
    picture.resize((picture.width * times, picture.height * times), Image.Resampling.NEAREST).save(path)
    return path
