"""Noise that follows a fixed picture: little in the middle of the image, more towards its border."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ucan.errors import InvalidInput
from ucan.generators.fixed import Fixed
from ucan.region import check_norm


def pixel_centres(size: int) -> torch.Tensor:
    """Centres of ``size`` pixels whose edges span [−1, 1]."""
    return (2 * torch.arange(size, dtype=torch.float64) + 1) / size - 1


def pattern(shape: Sequence[int], norm: float, kappa: float, iota: float, mean: float) -> torch.Tensor:
    """σ(a, b) = κ‖(a, b)‖ₚ² + ι at the pixel centres of [−1, 1]², rescaled to the given mean, in every channel."""
    a = pixel_centres(shape[-2])[:, None].expand(shape[-2], shape[-1])
    b = pixel_centres(shape[-1])[None].expand(shape[-2], shape[-1])
    sigma = kappa * torch.linalg.vector_norm(torch.stack([a, b]), ord=norm, dim=0) ** 2 + iota
    found: torch.Tensor = (sigma * (mean / sigma.mean())).float().expand(*shape).contiguous()
    return found


class Pattern(Fixed):
    """Pattern-wise noise: σ(a, b) = κ‖(a, b)‖ₚ² + ι, μ = 0. Scope: ``pipeline``.

    (a, b) are pixel centres spanning [−1, 1]². For your own map use ``ucan.Fixed``.

    Args:
        shape: the shape of an input, (…, H, W).
        norm: p, the norm of (a, b): 1, 2 or math.inf.
        kappa: κ, at least 0; 0 gives isotropic noise.
        iota: ι, above 0, the noise in the centre before rescaling.
        mean: the mean to which σ is rescaled.
    """

    def __init__(
        self, shape: Sequence[int], norm: float = 2, kappa: float = 1.0, iota: float = 1.0, mean: float = 1.0
    ) -> None:
        check_norm(norm)
        if len(shape) < 2:
            raise InvalidInput(f"Pattern needs an image's shape (…, H, W), got {tuple(shape)}.")
        if not (kappa >= 0 and iota > 0 and mean > 0 and math.isfinite(kappa + iota + mean)):
            raise InvalidInput(f"Pattern needs kappa >= 0, iota > 0 and mean > 0, got {kappa}, {iota}, {mean}.")
        super().__init__(pattern(shape, norm, kappa, iota, mean))
        self.norm = norm

    def describe(self) -> str:
        """The pattern's norm."""
        return f"Pattern(norm={self.norm:g})"
