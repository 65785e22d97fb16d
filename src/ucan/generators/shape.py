"""Noise fitted to a budget: where it may be large at the same guarantee, and what the classifier is shown of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ucan.budget import Budget
from ucan.errors import InvalidInput
from ucan.laws import Law

# Added to what each coordinate says, as a share of the largest: no coordinate gets noise without end.
FLOOR = 0.05
# The noise of a coordinate that the budget leaves alone, as a share of the smallest other: next to none.
UNTOUCHED = 1e-3


def fitted_scales(
    budget: Any, data: Any, scale: float, harm: Any, power: float, floor: float, unit: Any
) -> tuple[Budget, torch.Tensor]:
    """The budget and the σ of ``Fixed.for_budget``, both of the input's shape."""
    known = budget if isinstance(budget, Budget) else torch.as_tensor(budget)
    std = None if data is None else moments_of(data)[1]
    like = harm if harm is not None else std
    asked = Budget.of(budget, torch.as_tensor(like).shape if known.shape == () and like is not None else known.shape)
    if unit is not None and asked.groups is not None:
        raise InvalidInput("a budget over groups needs coordinates of one unit: divide the inputs by theirs.")
    units = as_map("unit", 1.0 if unit is None else unit, asked.shape)
    if not bool((units > 0).all()):
        raise InvalidInput("unit must be above 0 in every coordinate.")
    salience = None
    if harm is not None:
        salience = as_map("harm", harm, asked.shape).sqrt() * units
    elif std is not None:
        salience = as_map("the data's spread", std, asked.shape) / units
    return asked, budget_scales(asked, salience, scale, power, floor, units)


def budget_scales(
    budget: Budget,
    salience: torch.Tensor | None,
    scale: float = 1.0,
    power: float = 0.5,
    floor: float = FLOOR,
    units: torch.Tensor | None = None,
) -> torch.Tensor:
    """σᵢ ∝ √(bᵢuᵢ) · (aᵢ + floor·max a)^(−power), of the input's shape, with Σ(bᵢ/σᵢ)² as that of isotropic noise.

    ``salience`` aᵢ ≥ 0 is the root of the harm wᵢ that noise of one unit uᵢ does in coordinate i, or None where all are
    alike. With power 1/2 and no floor this has the least Σ wᵢ(σᵢ/uᵢ)² of all σ with this sum (docs/shape.md). A group of
    coordinates has one σ, and its harm is their sum. Where the budget is 0, σ is a thousandth of the smallest other:
    nobody changes that coordinate, so noise there buys nothing, and Σ must stay invertible.
    """
    if not (math.isfinite(scale) and scale > 0):
        raise InvalidInput(f"scale must be a finite number above 0, got {scale!r}.")
    if not (math.isfinite(power) and power >= 0 and math.isfinite(floor) and floor >= 0):
        raise InvalidInput(f"power and floor must be numbers of at least 0, got {power!r} and {floor!r}.")
    limits = budget.limits.flatten()
    touched = limits > 0
    a = torch.ones_like(limits) if salience is None else _of_limits(salience, budget)
    if not bool(a[touched].any()):  # nothing says anything: all are alike
        a = torch.ones_like(a)
    a = a + floor * a[touched].max()
    if not bool((a[touched] > 0).all()):
        raise InvalidInput("where noise does no harm there is no largest scale: give a floor above 0.")
    u = 1.0 if units is None or budget.groups is not None else units.flatten()
    shape = (limits * u).sqrt() * a**-power
    shape = shape * (scale * (limits[touched] / shape[touched]).norm() / limits.norm())
    sigma = torch.where(touched, shape, UNTOUCHED * shape[touched].min())
    made = sigma.reshape(budget.shape) if budget.groups is None else sigma[budget.groups]
    return made.float()  # as noise is drawn with: what is certified is what is drawn


def _of_limits(salience: torch.Tensor, budget: Budget) -> torch.Tensor:
    """a for every limit: itself for boxes, the root of the sum of squares for groups."""
    if budget.groups is None:
        return salience.flatten()
    return torch.zeros_like(budget.limits).index_add_(0, budget.groups.flatten(), salience.flatten().square()).sqrt()


def as_map(what: str, value: Any, shape: tuple[int, ...]) -> torch.Tensor:
    """``value`` as finite numbers of at least 0 in float64, one for every coordinate."""
    made = torch.as_tensor(value).detach().to("cpu", torch.float64)
    if made.ndim == 0:
        made = made.expand(shape)
    if tuple(made.shape) != shape or not bool(((made >= 0) & made.isfinite()).all()):
        raise InvalidInput(
            f"{what} must be a map of the input's shape {shape} with finite numbers of at least 0, "
            f"got shape {tuple(made.shape)}."
        )
    return made


def moments_of(data: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and standard deviation of every coordinate over inputs (n, *event), in float64."""
    inputs = torch.as_tensor(data).detach()
    if inputs.ndim < 2 or len(inputs) < 2:
        raise InvalidInput(f"data must hold at least two inputs (n, *event), got shape {tuple(inputs.shape)}.")
    mean = inputs.mean(0, dtype=torch.float64)
    square = torch.zeros_like(mean)
    for part in inputs.split(4096):
        square += (part - mean).square().sum(0)
    std = (square / len(inputs)).sqrt()
    if not bool(std.isfinite().all()):
        raise InvalidInput("data holds a value that is not finite.")
    return mean.cpu(), std.cpu()


def harm_of(
    model: Callable[[torch.Tensor], torch.Tensor],
    data: torch.Tensor,
    law: Law | None = None,
    generator: Any = None,
    draws: int = 1,
    batch: int = 256,
    seed: int = 0,
) -> torch.Tensor:
    """The harm wᵢ of noise in coordinate i: the mean square of the derivative of the answer's lead, over inputs.

    For shaping noise in two rounds: train a first model, measure its harm, shape the noise, train again. ``model`` maps a
    batch to logits and can be differentiated; the lead is the largest logit less the log-sum of the others' exponents.
    With a law (and a generator) the derivative is taken at ``draws`` noisy copies of each input, where the model works.
    Of a linear model of two classes wᵢ is the square of its weight, for which σᵢ ∝ √bᵢ·wᵢ^(−1/4) certifies the exact box.
    A measure of where noise hurts, and no part of any guarantee: that one holds for every Σ.
    """
    if len(data) < 1 or draws < 1:
        raise InvalidInput("harm_of needs at least one input and one draw.")
    rng = torch.Generator(data.device).manual_seed(seed)
    total = torch.zeros(data.shape[1:], dtype=torch.float64, device=data.device)
    for x in data.detach().split(batch):
        for _ in range(draws if law is not None else 1):
            y = _noisy(x, law, generator, rng).detach().requires_grad_(True)
            with torch.enable_grad():
                logits = model(y if generator is None else generator.view(y))
                top = logits.argmax(1, keepdim=True)
                others = logits.scatter(1, top, -torch.inf)
                lead = (logits.gather(1, top)[:, 0] - others.logsumexp(1)).sum()
            (gradient,) = torch.autograd.grad(lead, y)
            total += gradient.double().square().sum(0)
    return (total / (len(data) * (draws if law is not None else 1))).cpu()


def _noisy(x: torch.Tensor, law: Law | None, generator: Any, rng: torch.Generator) -> torch.Tensor:
    if law is None:
        return x
    if generator is not None:
        copies: torch.Tensor = generator.perturb(x, law, 1, rng)[0]
        return copies
    return x + law.sample(len(x), x.shape[1:], rng, x.dtype)


class Estimate(nn.Module):
    """The linear estimate of an input from its noisy copy, coordinate by coordinate: centre + gain∘(y − origin).

    A fixed map, so it is part of the classifier and the guarantee covers it. With signal mean m, variance v and noise
    variance σ², the best linear estimate is m + (y − m)·v/(v + σ²): strong noise is damped where it is, before it reaches
    a classifier whose filters are the same everywhere.
    """

    centre: torch.Tensor
    gain: torch.Tensor
    origin: torch.Tensor

    def __init__(self, centre: torch.Tensor, gain: torch.Tensor, origin: torch.Tensor) -> None:
        super().__init__()
        for name, value in (("centre", centre), ("gain", gain), ("origin", origin)):
            if not bool(torch.isfinite(value).all()):
                raise InvalidInput(f"Estimate: {name} holds a value that is not finite.")
            self.register_buffer(name, value.detach().float().clone())

    @classmethod
    def of(cls, data: Any, noise: Any, standard: bool = False) -> Estimate:
        """From the mean and variance of inputs (n, *event), and the noise's standard deviation in every coordinate.

        ``standard`` gives the estimate in units of the signal's own standard deviation, around 0, for a classifier that is
        trained on it: (y − m)·√v/(v + σ²). Without it the estimate is in the input's own units, for any classifier.
        """
        mean, std = moments_of(data)
        spread = torch.as_tensor(noise).detach().cpu().double().expand(mean.shape)
        below = std.square() + spread.square()
        if standard:
            return cls(torch.zeros_like(mean), std / below, mean)
        return cls(mean, std.square() / below, mean)

    @classmethod
    def placeholder(cls, shape: tuple[int, ...]) -> Estimate:
        """The identity, to be overwritten by saved tensors."""
        return cls(torch.zeros(shape), torch.ones(shape), torch.zeros(shape))

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        """The estimate of inputs from their noisy copies (…, *event)."""
        gain = self.gain.to(y)
        return torch.addcmul((self.centre - self.gain * self.origin).to(y), y, gain)
