"""The noise at one input for display: μ and σ in each pixel, and noisy copies."""

from __future__ import annotations

import numpy as np
import torch

from ucan.report.noise import pixel_scale
from ucan.scales import as_scale
from ucan.smoothed import SmoothedClassifier

# Draws from which the scale in each pixel is estimated where it cannot be worked out.
DRAWS = 64


def noise_maps(g: SmoothedClassifier, x: torch.Tensor) -> tuple[np.ndarray, np.ndarray, bool]:
    """μ and the noise's scale with λ in each pixel of one input (1, *event), means over channels: (height, width) each.

    The last value says whether the scale is exact (λ times the length of Σ's row), or estimated from draws, as it is
    where Σ is too large to be written out and where every copy draws its own.
    """
    M = g.M.at(x)
    with torch.no_grad():
        mu, sigma = M(x)
        offset = mu.double().expand_as(x)[0].mean(0).cpu().numpy()
        known = None if g.M.redrawn else pixel_scale(as_scale(sigma).to("cpu"), tuple(x.shape[1:]))
        if known is not None:
            return offset, g.law.scale * known, True
        noisy = M.perturb(x, g.law, DRAWS, torch.Generator(x.device).manual_seed(0))[:, 0].double()
        unit = g.law.std(x.numel()) / g.law.scale
        return offset, (noisy.std(0).mean(0) / unit).cpu().numpy(), False


def noisy_copies(g: SmoothedClassifier, x: torch.Tensor, count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Some noisy copies of one input (1, *event), and what the classifier is shown of them: (count, *event) each."""
    with torch.no_grad():
        noisy = g.M.at(x).perturb(x, g.law, count, torch.Generator(x.device).manual_seed(seed))[:, 0]
        return noisy, g.M.view(noisy)
