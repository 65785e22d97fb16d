"""How much a probability can change when an input moves within a region: T_r, for the noise held at one input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ucan.arithmetic import ROUNDED_DOWN
from ucan.errors import InvalidInput
from ucan.generators import Generator
from ucan.generators.base import regions_as_law
from ucan.laws import Gaussian, Law
from ucan.region import Region
from ucan.sizes import LIKELY, Sizes

# Halving a radius ends when it is known to this relative precision.
FINE = 1e-12
# No radius is searched beyond so many times λ: no law of finitely many votes has one.
FAR = 1e6


@dataclass(frozen=True, eq=False)
class Shift:
    """T_r for moves ‖Σ⁻¹δ‖ ≤ r at one input, in the norm of its regions; ``tau`` is the arithmetic's error in probabilities.

    ``own`` is the region's radius beside the law's own (1, but for composed noise), ``paid`` what rounding an input that is
    off the grid takes from a radius.
    """

    law: Law
    unit: Region
    own: float
    paid: float
    tau: float
    rounded: bool

    @classmethod
    def at(cls, M: Generator, x: torch.Tensor, sizes: Sizes, norm: float) -> Shift:
        """For the generator held at x (1, *event), against the norm asked for."""
        law, grid = sizes.law, sizes.grid
        sample = M.region(law, LIKELY, norm, x)
        own = sample.radius / law.radius(LIKELY, sample.norm, x.numel())
        if not regions_as_law(M):
            raise InvalidInput(
                f"{M.describe()} has a theorem of its own about one class, and how it shifts probabilities is not known: ask "
                f"about one class, or use other noise."
            )
        if own != 1 and not isinstance(law, Gaussian):
            raise InvalidInput(
                f"{M.describe()} has regions of its own, and how {type(law).__name__} noise shifts probabilities in them is "
                f"not known: use Gaussian noise."
            )
        unit = Region.sharing(sample.scale, 1.0, sample.norm, sample.shape)
        paid = 0.0 if grid is None else grid.payment(sample, x)
        return cls(law, unit, own, paid, sizes.error(M, x), grid is not None)

    @property
    def norm(self) -> float:
        """The norm of the region."""
        return self.unit.norm

    def region(self, r: float) -> Region:
        """All moves of size below r."""
        return Region.sharing(self.unit.scale, r, self.unit.norm, self.unit.shape)

    def least(self, p: Any, r: float) -> Any:
        """The least probability that a set of probability p has after a move of size r: T_r(p)."""
        return self.law.shifted(p, self.moved(r), self.norm, self.unit.dim)

    def most(self, p: Any, r: float) -> Any:
        """The largest that a set of probability p has afterwards: 1 − T_r(1 − p)."""
        return 1 - self.least(1 - np.asarray(p, dtype=np.float64), r)

    def moved(self, r: float) -> float:
        """The move in the law's own units, rounding paid."""
        per, paid = self.line
        return float(per * r + paid)

    @property
    def line(self) -> tuple[float, float]:
        """What a radius is multiplied by, and what is added to it, to be a move in the law's own units."""
        return 1 / (self.own * (ROUNDED_DOWN if self.rounded else 1.0)), self.paid / self.own

    def threshold(self, r: float) -> float:
        """The probability at which a class keeps its majority up to r; NaN where there is none."""
        return float(self.law.probability(self.moved(r), self.norm, self.unit.dim))

    def radii(self, p: Any) -> np.ndarray:
        """The radii up to which classes of probability at least p keep their majority."""
        found = self.own * np.asarray(self.law.radius(p, self.norm, self.unit.dim))
        return np.maximum(0.0, (found * ROUNDED_DOWN if self.rounded else found) - self.paid)

    def largest(self, holds: Callable[[float], bool]) -> float:
        """The largest r at which a statement holds that fails from some r on; from below, and 0 where it never holds."""
        end = self.law.scale * self.own * FAR
        low, high = 0.0, self.law.scale * self.own
        if not holds(low):
            return 0.0
        while holds(high):
            low, high = high, 2 * high
            if high > end:
                return low
        least = self.law.scale * self.own / FAR**5  # a statement may hold at 0 alone
        while high - low > FINE * high and high > least:
            middle = (low + high) / 2
            low, high = (middle, high) if holds(middle) else (low, middle)
        return low
