"""Splitting noise: every coordinate's range is cut into cells, and the classifier gets the middle of the input's cell.

Of Levine and Feizi, for inputs on a grid against ℓ1; with a scale per coordinate. All its draws can be enumerated, so that
probabilities are counted and not estimated (``bound="exact"``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ucan.arithmetic import Grid
from ucan.choices import norm_name
from ucan.errors import InvalidInput, UnsupportedNorm
from ucan.generators.base import Generator
from ucan.laws import Law, Uniform
from ucan.region import Region
from ucan.scales import Diagonal, Scalar, Scale

# Above this many draws nobody would wait for their enumeration.
MOST_TURNS = 2**20
NO_GRID = (
    "splitting noise is for inputs on a grid: give step=1/{steps} to SmoothedClassifier (on the command line "
    "--arithmetic grid)."
)


@dataclass(frozen=True)
class Turn:
    """Stands for a block's random generator where the draws of a noise are enumerated: the block with this number."""

    number: int

    def first(self, size: int) -> int:
        """The number of the first draw of the block, if every block has this many."""
        return self.number * size


class Splitting(Generator):
    """Cells in place of added noise, for inputs that are whole multiples of 1/steps. Scope: ``pipeline``; norm: ℓ1.

    Coordinate i is cut at oᵢ + ½, oᵢ + ½ + wᵢ, … steps, where wᵢ = 2λσᵢ·steps is the width of its cells and λ the scale of
    the law, ``Uniform``. The offsets of all coordinates follow from one draw t, oᵢ = (t + vᵢ) mod wᵢ with fixed vᵢ, and t is
    uniform on 0, …, L − 1, L the least common multiple of the widths. A change of coordinate i by δᵢ moves it to another cell
    in at most |δᵢ|·steps of every wᵢ consecutive t; so in at most a share Σ|δᵢ|/(2λσᵢ) of all t the classifier gets something
    else, and no class gains or loses more. This is the ℓ1 guarantee of uniform noise with half-widths λσᵢ, without a bound
    from samples where all L draws are counted.

    Args:
        shape: the inputs' shape.
        steps: the number of steps from 0 to 1; 255 for 8-bit pictures.
        scale: σ, a number or a tensor of the inputs' shape. Every 2λσᵢ·steps must be a whole number, and L at most 2²⁰.
        seed: chooses the fixed vᵢ.
    """

    scope = "pipeline"
    redrawn = True
    proven = ("widths", "turns", "_drawn", "_turn_of", "_middle")
    shifts: torch.Tensor
    sigma: torch.Tensor

    def __init__(self, shape: Sequence[int], steps: int = 255, scale: Any = 1.0, seed: int = 0) -> None:
        super().__init__()
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
            raise InvalidInput(f"steps must be a whole number of at least 1, got {steps!r}; 8-bit pictures have 255.")
        sigma = torch.as_tensor(scale, dtype=torch.float64).detach().clone()
        if sigma.ndim and tuple(sigma.shape) != tuple(shape):
            raise InvalidInput(f"scale has shape {tuple(sigma.shape)}, but the inputs have {tuple(shape)}.")
        if not bool((torch.isfinite(sigma) & (sigma > 0)).all()):
            raise InvalidInput("scale must be above 0 in every coordinate.")
        self.steps = steps
        self.register_buffer("sigma", sigma)
        drawn = np.random.default_rng(seed).integers(0, 2**31, tuple(shape))
        self.register_buffer("shifts", torch.from_numpy(drawn))

    @classmethod
    def tells(cls, settings: Mapping[str, Any]) -> bool:
        """No: its Σ is that of the region."""
        return False

    @property
    def own_norm(self) -> float:
        """ℓ1."""
        return 1

    @property
    def own_step(self) -> float:
        """1/steps: its cells are for inputs on that grid."""
        return 1 / self.steps

    def check_claim(self, law: Law, norm: float | None = None) -> None:
        """Refuse a law other than the uniform one, a norm other than ℓ1, and widths that are no whole number of steps."""
        if not isinstance(law, Uniform):
            raise InvalidInput(f"splitting noise needs the uniform law, got {type(law).__name__}: use ucan.Uniform.")
        if norm not in (None, 1):
            raise UnsupportedNorm(f"splitting noise has no radius against {norm_name(norm or 0)}: use norm=1.")
        self.turns(law)

    def widths(self, law: Law) -> torch.Tensor:
        """wᵢ, the cells' widths in steps: one number, or one per coordinate."""
        exact = 2 * law.scale * self.steps * self.sigma.double()
        whole = exact.round()
        # What is left of rounding is less than what a radius on a grid gives away (arithmetic.ROUNDED_DOWN).
        if bool(((exact - whole).abs() > 1e-9 * whole).any()) or bool((whole < 1).any()):
            wrong = float(exact.flatten()[int((exact - whole).abs().argmax())])
            better = max(1, round(wrong)) / (2 * self.steps)
            raise InvalidInput(
                f"cells {wrong:g} steps wide: 2·λ·σ·{self.steps} must be a whole number in every coordinate; λ·σ = {better!r} "
                "is the nearest here."
            )
        return whole.long()

    def turns(self, law: Law) -> int:
        """L, the number of different draws: the least common multiple of the widths."""
        found = math.lcm(*{int(width) for width in self.widths(law).flatten().unique()})
        if found > MOST_TURNS:
            raise InvalidInput(
                f"these widths of cells repeat only after {found:,} draws: take widths that divide a number of at most "
                f"{MOST_TURNS:,}."
            )
        return found

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, Scale]:
        """μ = 0 and Σ = diag(σ): what the certificate says of its region. Nothing is added to the input."""
        sigma = self.sigma
        return x.new_zeros(()), Diagonal(sigma.to(x.device)) if sigma.ndim else Scalar(float(sigma))

    def draw(self, x: torch.Tensor, law: Law, n: int, rng: torch.Generator) -> torch.Tensor:
        """One t for each copy (n, batch, 1, …)."""
        # From the law, which draws the noise of a share of a batch as in the whole batch.
        u = (law.sample(n * len(x), (1,), rng, torch.float64) / law.scale + 1) / 2
        t = self._turn_of(u, self.turns(law))
        return t.reshape(n, len(x), *(1 for _ in x.shape[1:]))

    @classmethod
    def _drawn(cls, turns: int, n: int, rng: torch.Generator) -> torch.Tensor:
        return cls._turn_of(torch.rand(n, generator=rng, device=rng.device, dtype=torch.float64), turns)

    @staticmethod
    def _turn_of(u: torch.Tensor, turns: int) -> torch.Tensor:
        return (u * turns).long().clamp_(max=turns - 1)

    def place(
        self, x: torch.Tensor, eps: torch.Tensor, law: Law, noise: tuple[torch.Tensor, Scale] | None = None
    ) -> torch.Tensor:
        """The middle of the cell of x, rounded to whole steps; its gradient is that of x itself, for attacks."""
        middle = self._middle((x.double() * self.steps).round().long(), eps, self.widths(law)).to(x.dtype)
        return middle + (x - x.detach()) if x.requires_grad else middle

    def _middle(self, k: torch.Tensor, t: torch.Tensor, widths: torch.Tensor) -> torch.Tensor:
        """The middles of the cells, clipped to [0, 1], that draws t cut around inputs k in whole steps, in float64."""
        widths, shifts = widths.to(k.device), self.shifts.to(k.device)
        offset = (t + shifts) % widths
        cell = torch.div(k - offset - 1, widths, rounding_mode="floor")
        low = (offset + cell * widths).double() + 0.5
        return (low.clamp(min=0) + (low + widths).clamp(max=self.steps)) / (2 * self.steps)

    def perturb_into(self, out: torch.Tensor, x: torch.Tensor, law: Law, rngs: Sequence[Any]) -> None:
        """Refused: off a grid the cells prove nothing."""
        raise InvalidInput(NO_GRID.format(steps=self.steps))

    def perturb_on_grid(self, out: torch.Tensor, x: torch.Tensor, law: Law, rngs: Sequence[Any], grid: Grid) -> None:
        """Blocks of cells' middles; from a ``Turn`` the draws of that turn in order, else random ones."""
        self.check_grid(grid)
        k, turns, widths = grid.integers(x).long().reshape(x.shape), self.turns(law), self.widths(law)
        ones = tuple(1 for _ in x.shape[1:])
        for block, rng in zip(out, rngs, strict=True):
            if isinstance(rng, Turn):
                t = (rng.first(len(block)) + torch.arange(len(block), device=x.device)) % turns
            else:
                t = self._drawn(turns, len(block), rng)
            block.copy_(self._middle(k, t.reshape(-1, *ones), widths))

    def check_grid(self, grid: Grid) -> None:
        """Refuse a grid of another step than its own."""
        step = torch.as_tensor(grid.step, dtype=torch.float64)
        if not bool(((step * self.steps - 1).abs() < 1e-9).all()):
            raise InvalidInput(
                f"this noise cuts steps of 1/{self.steps}, and the inputs' step is {grid.step}: they must agree."
            )

    def grid_error(self, x: torch.Tensor, law: Law, grid: Grid) -> float:
        """All is whole numbers; only a random t is not exactly uniform, by a part of 2⁻⁵³ for each of its values."""
        return self.turns(law) * 2.0**-52

    def region(self, law: Law, p: float, norm: float, x: torch.Tensor, p_b: float | None = None) -> Region:
        """The ℓ1 region of uniform noise with the half-widths λσ."""
        self.check_claim(law, norm)
        event = tuple(x.shape[1:])
        return Region.sharing(self(x)[1], law.radius(p, 1, math.prod(event), p_b), 1, event)

    def budget_factor(self, law: Law, p: float, budget: Any, x: torch.Tensor, p_b: float | None = None) -> float:
        """That of its region: the offsets are not independent, so the product of uniform noise does not hold."""
        return self.region(law, p, 1, x, p_b).budget_factor(budget)

    def at(self, x: torch.Tensor) -> Generator:
        """The same noise, which does not depend on the input."""
        if tuple(x.shape[1:]) != tuple(self.shifts.shape):
            raise InvalidInput(
                f"this noise is for inputs of shape {tuple(self.shifts.shape)}, got {tuple(x.shape[1:])}."
            )
        return self

    def looks(self) -> bool:
        """Whether a subclass computes its noise from the input; splitting noise itself does not."""
        return type(self).forward is not Splitting.forward

    def cap(self) -> float:
        """The largest σ."""
        return float(self.sigma.max())

    def describe(self) -> str:
        """The number of steps."""
        return f"Splitting(1/{self.steps})"
