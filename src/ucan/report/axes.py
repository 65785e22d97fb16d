"""The numbers on an axis."""

from __future__ import annotations

import math


def ticks(most: float, count: int) -> list[float]:
    """Round numbers from 0 to ``most``, about so many."""
    rough = most / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * 0.999)
    return [round(i * step, 12) for i in range(math.floor(most / step) + 1)]
