"""Learned noise: once for a data set, or computed for every input."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from ucan.budget import Budget
from ucan.errors import InvalidInput
from ucan.generators.base import Generator, issued
from ucan.generators.context import SHOWN, Context, check_shown
from ucan.generators.fitted import closed_form
from ucan.generators.shape import as_map
from ucan.passes import Fetched, recorded
from ucan.scales import Diagonal, Scale

# The smallest σ as a share of the largest: a learned scale stays invertible whatever the optimiser does.
FLOOR = 1e-3


def bounded_scale(raw: torch.Tensor, gamma: float) -> torch.Tensor:
    """σ in (γ/1000, γ): floor + (γ − floor)(1 + tanh)/2. Unlike |γ·tanh| it is smooth everywhere."""
    floor = FLOOR * gamma
    return floor + (gamma - floor) * (1 + torch.tanh(raw)) / 2


def bounded_offset(raw: torch.Tensor, gamma: float) -> torch.Tensor:
    """μ in (−γ, γ): γ·tanh."""
    return gamma * torch.tanh(raw)


def run_in_own(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """A network's answer in the precision of x, which may be another one than the network's: float64 for large numbers."""
    own = next((p.dtype for p in net.parameters() if p.is_floating_point()), x.dtype)
    found: torch.Tensor = net(x) if own == x.dtype else net(x.to(own)).to(x.dtype)
    return found


def check_gamma(gamma: float) -> float:
    """Return γ if it is valid."""
    if not (math.isfinite(gamma) and gamma > 0):
        raise InvalidInput(f"gamma must be a finite number above 0, got {gamma!r}.")
    return float(gamma)


def keep_signal(module: nn.Module, signal: tuple[Any, Any] | None) -> None:
    """Buffers with the mean and the standard deviation of the data, which estimates of an input use; None without them."""
    for name, given in zip(("signal_mean", "signal_std"), signal or (None, None), strict=True):
        module.register_buffer(name, None if given is None else torch.as_tensor(given).detach().float().clone())


class DatasetWise(Generator):
    """One μ and one diagonal Σ for the whole data set, learned with the classifier. Scope: ``pipeline``.

    Two networks of five linear layers (128, 256, 512, 1024, d), side by side, turn a constant into μ and σ. What they
    learn is a constant of the deployment, so the guarantee covers the deployed pipeline.

    Args:
        shape: the shape of an input.
        gamma: γ, the largest σ and the largest |μ|.
        offset: whether μ is learned; if False, μ = 0.
    """

    scope = "pipeline"
    learns_size = True

    def __init__(self, shape: Sequence[int], gamma: float = 1.0, offset: bool = True) -> None:
        super().__init__()
        self.shape = tuple(shape)
        self.gamma = check_gamma(gamma)
        self.register_buffer("constant", torch.ones(1, 1))
        dim = math.prod(self.shape)
        self.sigma_net = _constant_mlp(dim)
        self.mu_net = _constant_mlp(dim) if offset else None

    def cap(self) -> float:
        """γ."""
        return self.gamma

    def looks(self) -> bool:
        """No: the networks see a constant."""
        return type(self).forward is not DatasetWise.forward

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, Scale]:
        """The learned μ and σ, the same for every input."""
        sigma = bounded_scale(self.sigma_net(self.constant), self.gamma).reshape(self.shape)
        if self.mu_net is None:
            return sigma.new_zeros(()), Diagonal(sigma)
        return bounded_offset(self.mu_net(self.constant), self.gamma).reshape(self.shape), Diagonal(sigma)


def _constant_mlp(dim: int) -> nn.Sequential:
    widths = (1, 128, 256, 512, 1024)
    layers: list[nn.Module] = []
    for narrow, wide in pairwise(widths):
        layers += [nn.Linear(narrow, wide), nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers, nn.Linear(widths[-1], dim))


class BudgetWise(Generator):
    """One diagonal Σ for the whole data set, learned at a fixed guarantee for a budget. Scope: ``pipeline``.

    σ = start∘spread^(tanh/2), scaled so that mean (bᵢ/σᵢ)² is that of isotropic noise of this ``scale``: whatever is
    learned, the same p certifies the same box, so the classifier's loss alone decides where the noise is.

    Args:
        shape: the shape of an input.
        budget: b, a number or a map above 0.
        scale: the scale of isotropic noise with the same guarantee.
        start: a map above 0 to start from, such as the σ of ``Fixed.for_budget``; 1 if None.
        spread: before scaling, no σ differs from ``start`` by more than a factor of √spread.
        signal: the mean and standard deviation of the inputs, as maps. The classifier then gets the linear estimate
            (y − m)·√v/(v + (noise·σ)²); if None, the noisy copy.
        noise: the law's standard deviation, for the estimate.
    """

    scope = "pipeline"
    budget: torch.Tensor
    start: torch.Tensor
    signal_mean: torch.Tensor | None
    signal_std: torch.Tensor | None

    def __init__(
        self,
        shape: Sequence[int],
        budget: Any = 1.0,
        scale: float = 1.0,
        start: Any = None,
        spread: float = 100.0,
        signal: tuple[Any, Any] | None = None,
        noise: float = 1.0,
    ) -> None:
        super().__init__()
        self.shape = tuple(shape)
        limits = Budget.of(budget, self.shape)
        if limits.groups is not None or not bool((limits.limits > 0).all()):
            raise InvalidInput("learned noise needs a budget above 0 for every coordinate.")
        if not 1 <= spread <= 1e6:
            raise InvalidInput(
                f"spread, the largest change of a σ over the smallest, must lie in [1, 1e6], got {spread!r}."
            )
        first = as_map("start", 1.0 if start is None else start, self.shape)
        if not bool((first > 0).all()):
            raise InvalidInput("start must be above 0 in every coordinate.")
        self.scale, self.spread, self.noise = check_gamma(scale), float(spread), check_gamma(noise)
        self.register_buffer("budget", limits.limits.float())
        self.register_buffer("start", first.float().clone())
        self.raw = nn.Parameter(torch.zeros(self.shape))
        keep_signal(self, signal)

    @classmethod
    def fitted(cls, context: Context, show: str = "copy", power: float = 0.5, **parameters: Any) -> Generator:
        """Learned from the closed form on; ``show`` is what the classifier sees."""
        check_shown(show, SHOWN[::2])
        start = closed_form(context, power)
        noise = context.law.std(context.limits.dim)
        return cls(context.shape, context.limits, start=start, signal=context.signal(show), noise=noise, **parameters)

    @classmethod
    def needs_inputs(cls, parameters: Mapping[str, Any]) -> bool:
        """Always."""
        return True

    @classmethod
    def purposes(cls, parameters: Mapping[str, Any]) -> tuple[str, ...]:
        """A budget; 1 everywhere is ℓ∞."""
        return ("linf", "budget")

    def sigma(self) -> torch.Tensor:
        """The learned σ."""
        shape = self.start * self.spread ** (torch.tanh(self.raw) / 2)
        to_budget = ((self.budget / shape).square().mean() / self.budget.square().mean()).sqrt()
        return self.scale * to_budget * shape

    def cap(self) -> float:
        """The largest σ learned."""
        return float(self.sigma().detach().max())

    def looks(self) -> bool:
        """No: σ is a constant of the deployment."""
        return type(self).forward is not BudgetWise.forward

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, Scale]:
        """μ = 0 and the learned σ, the same for every input."""
        return x.new_zeros(()), Diagonal(self.sigma())

    def view(self, y: torch.Tensor) -> torch.Tensor:
        """The noisy inputs, or the linear estimate from them."""
        if self.signal_mean is None or self.signal_std is None:
            return y
        std = self.signal_std
        gain = std / (std * std + (self.noise * self.sigma()).square())
        return (y - self.signal_mean.to(y)) * gain.to(y)

    def describe(self) -> str:
        """The scale of isotropic noise with the same guarantee, and whether the classifier is shown an estimate."""
        return f"BudgetWise(scale {self.scale:g}{'' if self.signal_std is None else ', estimate'})"


class CertificationWise(Generator):
    """μ and σ computed from each input, as the paper's strongest variant does. Scope: ``frozen``.

    Two convolutional networks, one after the other: μ from x, then σ from x + μ. **What a certificate of this generator
    guarantees:** the classifier whose noise was computed at this x and then frozen keeps its answer in the region.
    **What it does not:** a deployed pipeline recomputes μ and σ from the perturbed input, and an attacker who knows that
    can change its answer well inside the region.

    Args:
        channels: the number of channels of an input.
        gamma: γ, the largest σ and the largest |μ|.
        features: the number of features of each network's first convolution.
        growth: the number of features that each further convolution adds.
        offset: whether μ is computed; if False, μ = 0.
    """

    scope = "frozen"
    learns_size = True
    _graph: tuple[Any, Callable[[torch.Tensor], tuple[torch.Tensor, ...]]] | None = None

    def __init__(
        self, channels: int, gamma: float = 1.0, features: int = 16, growth: int = 16, offset: bool = True
    ) -> None:
        super().__init__()
        self.gamma = check_gamma(gamma)
        self.mu_net = DenseBlock(channels, features, growth) if offset else None
        self.sigma_net = DenseBlock(channels, features, growth)

    def cap(self) -> float:
        """γ."""
        return self.gamma

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, Scale]:
        """μ(x) and σ(x + μ(x)), one of each per input."""
        mu, sigma = self.maps(x)
        return mu, Diagonal(sigma)

    def maps(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The same as two tensors of x's shape; nothing is looked at, so that a GPU need not be waited for."""
        mu = torch.zeros_like(x) if self.mu_net is None else bounded_offset(run_in_own(self.mu_net, x), self.gamma)
        return mu, bounded_scale(run_in_own(self.sigma_net, x + mu), self.gamma)

    def at(self, x: torch.Tensor) -> Generator:
        """μ, Σ ← M, at this input."""
        return self.starting(x)()

    def starting(self, x: torch.Tensor) -> Callable[[], Generator]:
        """On a GPU both maps are one recorded graph, and are on their way to the host when this returns."""
        if not x.is_cuda or type(self).forward is not CertificationWise.forward:
            return functools.partial(Generator.at, self, x)
        with torch.no_grad():
            (both,) = self._recorded(x)  # in memory of its own
        mu, sigma = both
        there = Fetched(both)

        def held() -> Generator:
            mean, scales = (half.clone() for half in there.wait()[0])  # certificates keep no memory of the driver's
            return issued(self, x, mu, Diagonal(sigma), (mean, Diagonal(scales)))

        return held

    def _both(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        """``maps`` one above the other, so that they are copied and fetched in one step."""
        return (torch.stack(self.maps(x)),)

    def _recorded(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """``_both`` of x (1, *event), by a graph that is recorded for the networks as they lie in memory."""
        weights = tuple((p.data_ptr(), p.shape) for p in self.parameters())
        key = (x.shape, x.dtype, x.device, self.gamma, torch.backends.cudnn.allow_tf32, weights)
        if self._graph is None or self._graph[0] != key:
            self._graph = key, recorded(self._both, x)
        return self._graph[1](x)

    def __getstate__(self) -> dict[str, Any]:
        """Without the graph, which is of this process."""
        return {name: value for name, value in super().__getstate__().items() if name != "_graph"}


class DenseBlock(nn.Module):
    """Four convolutions with leaky ReLU, each seeing all before it, and one that maps them back to the image."""

    def __init__(self, channels: int, features: int, growth: int) -> None:
        super().__init__()
        for name, value in (("channels", channels), ("features", features), ("growth", growth)):
            if not isinstance(value, int) or value < 1:
                raise InvalidInput(f"{name} must be a whole number, 1 or above, got {value!r}.")
        widths = [channels, channels + features, channels + features + growth, channels + features + 2 * growth]
        grown = [features, growth, growth, growth]
        self.convolutions = nn.ModuleList(
            nn.Conv2d(seen, new, 3, padding=1) for seen, new in zip(widths, grown, strict=True)
        )
        self.output = nn.Conv2d(channels + features + 3 * growth, channels, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, channels, H, W) → the same shape, unbounded."""
        seen = x
        for convolution in self.convolutions:
            seen = torch.cat([seen, nn.functional.leaky_relu(convolution(seen), 0.2)], dim=1)
        found: torch.Tensor = self.output(seen)
        return found
