"""Tensors as pictures in a page: pixels, maps of μ and σ, perturbations. Small PNG files inside the page itself."""

from __future__ import annotations

import base64
import io

import numpy as np
import torch

from ucan.generators import Composed
from ucan.scales import as_scale
from ucan.smoothed import SmoothedClassifier

# Colours from low to high; both read on light and on dark ground, and in grey.
RISING = ((38, 24, 74), (58, 76, 145), (38, 130, 142), (83, 186, 118), (247, 224, 92))
DIVERGING = ((33, 92, 175), (132, 178, 222), (243, 242, 240), (238, 156, 120), (178, 40, 48))
# Above this dimension a Σ that is no map is not written out as a matrix; its scales are then estimated from draws.
MOST_DENSE, DRAWS = 4096, 64


def data_uri(pixels: torch.Tensor) -> str:
    """Pixels (channels, height, width), clipped to [0, 1], as a PNG inside an address."""
    from PIL import Image

    grid = (255 * pixels.detach().cpu().double().clamp(0, 1)).round().byte().movedim(0, -1).numpy()
    return _png(Image.fromarray(grid[..., 0] if grid.shape[-1] == 1 else grid))


def map_uri(values: torch.Tensor, low: float, high: float, colours: tuple[tuple[int, int, int], ...]) -> str:
    """Values (height, width) between ``low`` and ``high`` in colours, as a PNG inside an address."""
    from PIL import Image

    span = (high - low) or 1.0
    place = (((values.detach().cpu().double() - low) / span).clamp(0, 1) * (len(colours) - 1)).numpy()
    stops = np.arange(len(colours))
    grid = np.stack([np.interp(place, stops, channel) for channel in zip(*colours, strict=True)], axis=-1)
    return _png(Image.fromarray(grid.round().astype(np.uint8)))


def amplified(delta: torch.Tensor) -> tuple[torch.Tensor, float]:
    """A perturbation (channels, height, width) around grey, its largest entry black or white, and by how much it grew."""
    factor = 0.5 / max(float(delta.abs().max()), 1e-12)
    return 0.5 + factor * delta, factor


def noise_maps(g: SmoothedClassifier, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, bool]:
    """μ and the noise's scale with λ at each pixel of one input (1, *event), means over channels: (height, width) each.

    The scale of a pixel is λ times the length of Σ's row. The last value says whether it is exact, or estimated from
    draws, as it is where Σ is too large to be written out and where every copy draws its own.
    """
    M, shape = g.M.at(x), x.shape[1:]
    with torch.no_grad():
        mu, sigma = M(x)
        scale = as_scale(sigma)
        offset = mu.double().expand(1, *shape)[0]
        exact = not isinstance(g.M, Composed) and (scale.elementwise or x.numel() <= MOST_DENSE)
        if not exact:
            rng = torch.Generator(x.device).manual_seed(0)
            spread = M.perturb(x, g.law, DRAWS, rng)[:, 0].double().std(0) * (g.law.scale / g.law.std(x.numel()))
        elif scale.elementwise:
            spread = g.law.scale * scale.apply(torch.ones(1, *shape, dtype=torch.float64, device=x.device))[0]
        else:
            spread = g.law.scale * scale.dense(x.numel()).norm(dim=1).reshape(shape)
    return offset.mean(0), spread.mean(0), exact


def noisy_copies(g: SmoothedClassifier, x: torch.Tensor, count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Some noisy copies of one input (1, *event), and what the classifier is shown of them: (count, *event) each."""
    with torch.no_grad():
        noisy = g.M.at(x).perturb(x, g.law, count, torch.Generator(x.device).manual_seed(seed))[:, 0]
        return noisy, g.M.view(noisy)


def _png(picture: object) -> str:
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")  # type: ignore[attr-defined]
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
