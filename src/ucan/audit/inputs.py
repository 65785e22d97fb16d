"""The inputs that an attack can reach: x + δ as the classifier sees it, and the change that it really is."""

from __future__ import annotations

import math

import torch

from ucan.arithmetic import ROUNDED
from ucan.audit.claims import Claim, Sized
from ucan.smoothed import SmoothedClassifier

# A point that rounding moved outside is shrunk by the smallest of these fractions that brings it inside.
SHRINKS = (0.0, 1e-7, 3e-7, 1e-6, 1e-5, 1e-4, 1e-3)
# How many times a grid point is pulled in before it is dropped.
PULLS = 64
# How many coordinates are changed by the least, each alone, where nothing else than x is known to be inside.
LEAST = 2


def covered_step(g: SmoothedClassifier, certificate: Claim) -> float | torch.Tensor | None:
    """The step of the changes for which a certificate of g holds; None if it holds for any change."""
    return None if certificate.evidence.arithmetic.endswith(ROUNDED) else g.step


def reachable(
    x: torch.Tensor, delta: torch.Tensor, region: Sized, limit: float, step: float | torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The perturbed inputs as the classifier sees them, and the perturbations that they really are, in float64.

    x + δ is rounded to the input's precision; what counts is fl(x + δ) − x, and only where its size is below the limit; in a
    region that is ‖Σ⁻¹(fl(x + δ) − x)‖ₚ.
    A δ that rounding moved outside is shrunk by up to a thousandth; one that stays outside is dropped.

    With ``step`` (a number, or a tensor of the event's shape) inputs are whole multiples of it: x + δ is rounded to the
    nearest, and where that leads outside, single coordinates are pulled back towards x, a step at a time. A δ that rounds to
    nothing moves its largest coordinates by a step each, as many as stay inside.
    """
    if step is not None:
        return _on_grid(x, delta, region, limit, torch.as_tensor(step, dtype=torch.float64, device=x.device))
    left, inputs, deltas = delta.double(), [x[:0]], [x[:0].double()]
    for shrink in SHRINKS:
        z, actual, inside = _seen(x, (x.double() + (1 - shrink) * left).to(x.dtype), region, limit)
        inputs.append(z[inside])
        deltas.append(actual[inside])
        left = left[~inside]
        if not len(left):
            break
    return torch.cat(inputs), torch.cat(deltas)


def _seen(
    x: torch.Tensor, z: torch.Tensor, region: Sized, limit: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Perturbed inputs, their actual perturbations, and which of them are strictly inside."""
    actual = z.double() - x.double()
    return z, actual, torch.isfinite(z).flatten(1).all(1) & (region.size(actual) < limit).to(z.device)


def another_inside(x: torch.Tensor, region: Sized, limit: float, step: float | torch.Tensor | None) -> bool:
    """Whether one of the least changes leads to another input inside: auditors of before did not look for them."""
    return bool(reachable(x, least_changes(x, region, step), region, limit, step)[1].any())


def _on_grid(
    x: torch.Tensor, delta: torch.Tensor, region: Sized, limit: float, step: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The points of the grid nearest to x + δ, pulled towards x until they lie inside."""
    inputs, deltas = [x[:0]], [x[:0].double()]
    home = (x.double() / step).round()
    for wanted in (row[None] for row in delta.double() if torch.isfinite(row).all()):
        moved = ((x.double() + wanted) / step).round() - home  # in whole steps
        if not moved.any():
            moved = _in_few(x, home, wanted, step, region, limit)
        for _ in range(PULLS):
            z, actual, inside = _seen(x, _at(x, home, moved, step), region, limit)
            # In the input's precision a point on the edge may seem to be inside; in whole steps it is not.
            if inside[0] and float(region.size(moved * step)[0]) < limit:
                inputs.append(z)
                deltas.append(actual)
                break
            moved = _pulled(x, home, moved, wanted, step, region, limit)
    return torch.cat(inputs), torch.cat(deltas)


def _at(x: torch.Tensor, home: torch.Tensor, moved: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
    """The inputs at this many steps from x; a coordinate that does not move keeps its exact value."""
    return torch.where(moved == 0, x, ((home + moved) * step).to(x.dtype))


def _in_few(
    x: torch.Tensor, home: torch.Tensor, wanted: torch.Tensor, step: torch.Tensor, region: Sized, limit: float
) -> torch.Tensor:
    """A change that is too evenly spread for whole steps, as one step in as many of its largest coordinates as fit inside."""
    order = (wanted / step).abs().flatten().argsort(descending=True)

    def moved(count: int) -> torch.Tensor:
        chosen = torch.zeros_like(wanted, dtype=torch.bool).flatten()
        chosen[order[:count]] = True
        return wanted.sign() * chosen.reshape(wanted.shape)

    low, high = 0, len(order) + 1
    while high - low > 1:
        middle = (low + high) // 2
        inside = _seen(x, _at(x, home, moved(middle), step), region, limit)[2]
        low, high = (middle, high) if inside[0] else (low, middle)
    return moved(low)


def _pulled(
    x: torch.Tensor,
    home: torch.Tensor,
    moved: torch.Tensor,
    wanted: torch.Tensor,
    step: torch.Tensor,
    region: Sized,
    limit: float,
) -> torch.Tensor:
    """The same point with as few coordinates as possible pulled by one step to be inside; all of them if that is not enough.

    Coordinates that rounding moved furthest out are pulled first.
    """
    excess = torch.where(moved == 0, -torch.inf, (moved * step).abs() - wanted.abs()).flatten()
    order, most = excess.argsort(descending=True), int((moved != 0).sum())

    def pull(count: int) -> torch.Tensor:
        chosen = torch.zeros_like(excess, dtype=torch.bool)
        chosen[order[:count]] = True
        return moved - moved.sign() * chosen.reshape(moved.shape)

    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        inside = _seen(x, _at(x, home, pull(middle), step), region, limit)[2]
        low, high = (low, middle) if inside[0] else (middle, high)
    return pull(high)


def least_changes(x: torch.Tensor, inside: Sized, step: float | torch.Tensor | None) -> torch.Tensor:
    """The least changes (few, *event) of one coordinate alone: by a step, or to the next number of the input's precision.

    Of the coordinates that may change furthest beside that: if none of these changes is inside, no other input lies inside
    that differs from x in a single coordinate.
    """
    here = x.detach().cpu()
    if step is None:
        towards = torch.where(here == 0, math.inf, 0.0).to(here.dtype)
        least = torch.nextafter(here, towards).double() - here.double()
    else:
        least = torch.as_tensor(step, dtype=torch.float64).cpu().expand(here.shape)
    furthest = (inside.reach().cpu().flatten() / least.abs().flatten()).topk(min(LEAST, least.numel())).indices
    found = torch.zeros(len(furthest), least.numel(), dtype=torch.float64)
    found[torch.arange(len(furthest)), furthest] = least.flatten()[furthest]
    return found.reshape(-1, *x.shape[1:]).to(x.device)
