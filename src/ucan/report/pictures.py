"""Arrays as small pictures inside a page: inputs, and maps of the noise's offset and scale."""

from __future__ import annotations

import base64
import io

import numpy as np
import torch

from ucan.report.paint import LIGHT

SIDE = 112  # pictures with more pixels a side are shrunk to this
# Dark to light, evenly for the eye; and blue through white to brown, for numbers around 0.
SEQUENTIAL = ("#1d1147", "#3b2a85", "#4a5ea8", "#4c91b3", "#5fbfa9", "#a8dc94", "#f4f3b4")
NO_CLASS, GREY = -1, (205, 205, 205)
DIVERGING = ("#12477f", "#3f84bd", "#a6cbe3", "#f6f5f2", "#efc292", "#c07a2c", "#733c07")


def is_picture(shape: tuple[int, ...]) -> bool:
    """Whether inputs of this shape are grey or colour pictures."""
    return len(shape) == 3 and shape[0] in (1, 3) and min(shape[1:]) > 1


def as_picture(x: torch.Tensor) -> str:
    """Pixels (C, H, W) as a data URI; values outside [0, 1] are clipped."""
    pixels = (255 * x.detach().cpu().double().clamp(0, 1)).round().byte().movedim(0, -1).numpy()
    return _uri(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)


def as_map(values: np.ndarray, low: float, high: float, colours: tuple[str, ...] = SEQUENTIAL) -> str:
    """Numbers (H, W) as colours from ``low`` to ``high``, as a data URI."""
    place = np.clip((values - low) / max(high - low, 1e-12), 0, 1) * (len(colours) - 1)
    stops = np.array([[int(c[i : i + 2], 16) for i in (1, 3, 5)] for c in colours], dtype=np.float64)
    index = np.minimum(place.astype(int), len(colours) - 2)
    part = (place - index)[..., None]
    return _uri((stops[index] * (1 - part) + stops[index + 1] * part).round().astype(np.uint8))


def as_map_around_0(values: np.ndarray) -> str:
    """Numbers (H, W) as colours with 0 in the middle, as a data URI."""
    most = max(float(np.abs(values).max()), 1e-12)
    return as_map(values, -most, most, DIVERGING)


def as_classes(classes: np.ndarray) -> str:
    """Class numbers (H, W) as colours, as a data URI; grey where there is none (−1)."""
    colours = np.array([[int(c[i : i + 2], 16) for i in (1, 3, 5)] for c in LIGHT], dtype=np.uint8)
    found = colours[np.maximum(classes, 0) % len(colours)]
    found[classes == NO_CLASS] = GREY
    return _uri(found)


def as_delta(delta: torch.Tensor) -> str:
    """A change (C, H, W), averaged over channels, around 0."""
    return as_map_around_0(delta.detach().cpu().double().mean(0).numpy())


def _uri(pixels: np.ndarray) -> str:
    from PIL import Image

    picture = Image.fromarray(pixels)
    out = io.BytesIO()
    if max(picture.size) > SIDE:  # noise compresses badly without loss
        picture.thumbnail((SIDE, SIDE))
        picture.save(out, "WEBP", quality=80)
        return f"data:image/webp;base64,{base64.b64encode(out.getvalue()).decode()}"
    picture.save(out, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(out.getvalue()).decode()}"
