"""How what is certified follows from a bound on p: the region, the factor of a budget; and back, for stopping rules."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from scipy import optimize, special

from ucan.arithmetic import ROUNDED_DOWN, Grid
from ucan.budget import Budget
from ucan.generators import Generator
from ucan.generators.base import regions_as_law
from ucan.laws import Law
from ucan.plan import CertifyPlan
from ucan.region import Region
from ucan.stopping import Radius

# A probability at which every law has a radius: to learn how radii grow with it.
LIKELY = 0.75


@dataclass(frozen=True, eq=False)
class Sizes:
    """What noise of this law certifies at an input, in real arithmetic or on a grid; M is the generator held there."""

    law: Law
    grid: Grid | None

    def error(self, M: Generator, x: torch.Tensor) -> float:
        """τ: how far the votes on x (1, *event) may be from votes under ideal noise, in total variation; 0 if real."""
        return 0.0 if self.grid is None else self.grid.checked(M.grid_error(x, self.law, self.grid))

    def region(self, M: Generator, x: torch.Tensor, p_a: float, p_b: float | None, norm: float) -> Region | None:
        """The region that these probabilities certify around x, rounding paid; None where rounding takes all of it."""
        ideal = M.region(self.law, p_a, norm, x, p_b)
        return ideal if self.grid is None else self.grid.region(ideal, x)

    def budget_factor(
        self, M: Generator, x: torch.Tensor, p_a: float, p_b: float | None, budget: Budget, region: Region
    ) -> float:
        """The largest known ε such that p_a and p_b rule out every change within ε′·budget, ε′ < ε, at x (1, *event).

        ``region`` is what they certify there, rounding paid. On a grid ε is rounded down as a radius is. An input off the
        grid is rounded, and so is what comes in its place: there ε is what fits into the region that has paid for both.
        """
        if self.grid is not None and not self.grid.holds(x):
            return region.budget_factor(budget)
        ideal = M.budget_factor(self.law, p_a, budget, x, p_b)
        return ideal if self.grid is None else ideal * ROUNDED_DOWN

    def decided(self, M: Generator, x: torch.Tensor, plan: CertifyPlan) -> Radius:
        """How what a stopping rule decides follows from p at x, and back: the inscribed radius, or ε with a budget."""
        found = self._decided(M, x, plan)
        if plan.budget is not None:
            return found
        return replace(found, in_norm=functools.cache(lambda norm: self._decided(M, x, replace(plan, norm=norm))))

    def _decided(self, M: Generator, x: torch.Tensor, plan: CertifyPlan) -> Radius:
        law, norm, budget, dim = self.law, plan.norm, plan.budget, x.numel()
        sample = M.region(law, LIKELY, norm, x)
        if not regions_as_law(M) or (budget is not None and len(law.region_norms()) > 1):
            return self._searched(M, x, budget, norm if budget is None else sample.norm)
        unit = Region.sharing(sample.scale, 1.0, sample.norm, sample.shape)
        factor = unit.inscribed_radius(norm) if budget is None else unit.budget_factor(budget)
        # R beside the law's own radius: the same, but for composed noise with a budget.
        own = sample.radius / law.radius(LIKELY, sample.norm, dim)
        if self.grid is not None:
            return self._on_grid(self.grid, sample, factor, own, M, x)
        return Radius(
            of=lambda p: factor * own * law.radius(p, sample.norm, dim),
            probability=functools.cache(lambda r: law.probability(r / factor / own, sample.norm, dim)),
        )

    def _on_grid(self, grid: Grid, sample: Region, factor: float, own: float, M: Generator, x: torch.Tensor) -> Radius:
        """The same on a grid: p pays τ, and R pays for what had to be rounded and is rounded down itself."""
        tau, paid = self.error(M, x), grid.payment(sample, x)

        def of(p: float) -> float:
            R = own * self.law.radius(min(1.0, max(0.0, p - tau)), sample.norm, x.numel())
            return float(factor * max(0.0, R * ROUNDED_DOWN - paid))

        def probability(r: float) -> float:
            p: float = self.law.probability((r / factor + paid) / ROUNDED_DOWN / own, sample.norm, x.numel())
            return p + tau

        return Radius(of=of, probability=functools.cache(probability))

    def _searched(self, M: Generator, x: torch.Tensor, budget: Budget | None, norm: float) -> Radius:
        """Radius or ε from p, and back by a search: of regions that do not grow with p as the law's radius does, of a law
        that knows several regions, or boxes that are none.
        """
        tau = self.error(M, x)

        def of(p: float) -> float:
            p = min(1.0, max(0.0, p - tau))
            region = self.region(M, x, p, None, norm)
            if region is None:
                return 0.0
            return (
                region.inscribed_radius(norm) if budget is None else self.budget_factor(M, x, p, None, budget, region)
            )

        return Radius(of=of, probability=functools.cache(functools.partial(inverse, of, 0.5 + tau)))


def inverse(of: Callable[[float], float], low: float, size: float) -> float:
    """The p from ``low`` up at which a size that rises with p reaches this one; NaN where none below 1 does.

    Searched in Φ⁻¹(p), in which radii are nearly straight.
    """
    high = math.nextafter(1.0, 0.0)
    if not of(high) >= size:
        return math.nan
    if of(low) >= size:
        return low
    z = optimize.brentq(
        lambda z: of(float(special.ndtr(z))) - size, special.ndtri(low), special.ndtri(high), xtol=1e-14
    )
    p, step = min(float(special.ndtr(z)), high), 2.0**-53
    while p < high and of(p) < size:
        p, step = min(high, p + step), 2 * step
    return p


def alm_of(region: Region, law: Law, p_a: float, p_b: float | None, norm: float) -> float:
    """|det Σ|^(1/d) times the radius before Σ in the norm asked for, less what the region has paid."""
    asked, own = (law.radius(p_a, q, region.dim, p_b) for q in (norm, region.norm))
    return region.mean_scale * asked * (region.radius / own) if own > 0 else 0.0
