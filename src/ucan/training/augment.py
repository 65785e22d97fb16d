"""Random changes of a batch of pictures, on its device. A share of a larger batch is changed as in the whole batch."""

from __future__ import annotations

import torch

from ucan.training.share import Share


def flip_and_crop(x: torch.Tensor, rng: torch.Generator, pad: int = 4, share: Share | None = None) -> torch.Tensor:
    """Every image of a batch (b, c, h, w) flipped at random and cropped at random after zero padding, on its device."""
    batch, _, height, width = x.shape
    whole, part = (batch, slice(None)) if share is None else (share.batch, share.part)
    flip = torch.randint(0, 2, (whole, 1, 1, 1), generator=rng, device=x.device, dtype=torch.bool)[part]
    x = torch.nn.functional.pad(torch.where(flip, x.flip(3), x), (pad,) * 4)
    top, left = torch.randint(0, 2 * pad + 1, (2, whole, 1), generator=rng, device=x.device)[:, part]
    rows = (top + torch.arange(height, device=x.device))[:, :, None]
    columns = (left + torch.arange(width, device=x.device))[:, None, :]
    images = torch.arange(batch, device=x.device)[:, None, None]
    return x[images, :, rows, columns].permute(0, 3, 1, 2).contiguous()


def cutmix(
    x: torch.Tensor, others: torch.Tensor, part_mixed: float, rng: torch.Generator, share: Share | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Into a part of the pictures (b, c, h, w) a rectangle of another one is pasted, at its own place (Yun et al., 2019).

    The rectangle has the picture's proportions, a uniform share of its area and a uniform centre; what is outside is cut off.

    Returns:
        The pictures, and the share of its own pixels that each has left (b,).
    """
    batch, _, height, width = x.shape
    whole, part = (batch, slice(None)) if share is None else (share.batch, share.part)
    mixed, area, down, right = torch.rand(4, whole, generator=rng, device=x.device)[:, part]
    side = torch.where(mixed < part_mixed, area.sqrt(), 0.0)
    rows = _span(down, side, height)
    columns = _span(right, side, width)
    inside = rows[:, :, None] & columns[:, None, :]
    return torch.where(inside[:, None], others, x), 1 - inside.float().mean((1, 2))


def _span(centre: torch.Tensor, side: torch.Tensor, size: int) -> torch.Tensor:
    """Which of ``size`` places lie nearer to the centre than half a side, both as shares of it: (b, size)."""
    places = (torch.arange(size, device=centre.device) + 0.5) / size
    return (places - centre[:, None]).abs() < side[:, None] / 2
