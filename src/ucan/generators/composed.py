"""Noise that adapts to each input and still covers the deployed pipeline: two looks, composed."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ucan.arithmetic import Grid, unit_draws
from ucan.budget import Budget
from ucan.errors import InvalidInput, UnsupportedNorm
from ucan.evidence import Noise
from ucan.generators.base import Generator
from ucan.generators.context import SHOWN, Context, check_shown, fits
from ucan.generators.fitted import closed_form
from ucan.generators.learned import DenseBlock, keep_signal, run_in_own
from ucan.generators.shape import as_map
from ucan.laws import Gaussian, Law, norm_name
from ucan.laws.base import SHAVE
from ucan.region import Region
from ucan.scales import Diagonal, Scalar, Scale
from ucan.scales.base import RowBounds

# The second look gets this much more noise than its budget requires, so that rounding in float32 never exceeds the budget.
HEADROOM = 1 + 2.0**-18
# The largest entry of a prior shape; 1 over it is the smallest. Beyond, squares in float32 are not finite.
LARGEST = 1e12
# Looks by which a network is tested for mixing them, and how many of them it is also asked about one by one.
LOOKS, APART = 16, 3


class Composed(Generator):
    """Adaptive smoothing by Gaussian composition, for the law N(0, σ²I). Scope: ``pipeline``.

    With t = ``share``, σ₁ = σ/√t and σ₂ = σ/√(1−t), every noisy copy is made of two looks at x:

        y₁ = x + N(0, σ₁²I)                      the first look, all that the network ever sees
        y₂ = x + s∘N(0, I),  s = s(y₁) > 0       the second, with noise chosen by the network
        y  = (y₁/σ₁² + y₂/s²) / (1/σ₁² + 1/s²)   what the classifier gets

    **What is guaranteed.** For every value of y₁, moving x by ‖δ‖ < r changes the second look as moving a unit Gaussian
    by at most r/σ₂ (ℓ2: every sᵢ ≥ σ₂) or r√d/σ₂ (ℓ∞: Σ sᵢ⁻² ≤ d/σ₂²). The first look adds r/σ₁ or r√d/σ₁, and the two
    compose to their root of squares, r/σ or r√d/σ, *whatever the network does* (Gaussian differential privacy). So the
    class of the pipeline, which draws both looks for each input it is given, holds on the ball of radius σΦ⁻¹(p) in
    ℓ2, σΦ⁻¹(p)/√d in ℓ∞, exactly as for isotropic noise; p is the probability over both looks.

    The network gives a shape w = spread^(tanh/2) in [1/√spread, √spread], which is then scaled to the budget of the
    norm: s = σ₂ w √mean(w⁻²) for ℓ∞, s = σ₂ w / min w for ℓ2. Under ℓ∞ noise can be small where y₁ shows that it matters;
    under ℓ2 a shape gains nothing. ``net`` is any module (n, *event) → (n, *event) that processes each input independently;
    without it, ``channels`` makes the network of certification-wise noise.

    **A budget in place of ℓ∞.** With ``budget``, a map b > 0 of the input's shape, the second look's budget is
    Σ bᵢ²/sᵢ² ≤ Σ bᵢ²/σ₂², so a change with |δᵢ| ≤ εbᵢ moves the two looks by at most ε‖b‖₂/σ, and the region is the box
    |δᵢ| < εbᵢ with ε = σΦ⁻¹(p)/‖b‖₂; b = 1 is ℓ∞. ``prior``, a map above 0 (the σ of ``Fixed.for_budget``, say), is a fixed
    shape of both looks, scaled to Σ(bᵢ/priorᵢ)² = Σ bᵢ²; the network's shape multiplies it. With ``signal``, the mean and
    standard deviation of the inputs (as maps), network and classifier are shown linear estimates in units of that
    deviation, (y − m)·√v/(v + noise variance): each copy's own noise is known, and what is made of the looks costs nothing.
    """

    scope = "pipeline"
    redrawn = True
    proven = ("_joined", "first_scale", "second_scale", "_on_budget")
    shifts_as_law = True  # two Gaussian looks compose to one for every set, not only for the likeliest class
    budget: torch.Tensor | None
    prior: torch.Tensor | None
    signal_mean: torch.Tensor | None
    signal_std: torch.Tensor | None

    def __init__(
        self,
        channels: int | None = None,
        norm: float = math.inf,
        share: float = 0.5,
        spread: float = 100.0,
        features: int = 16,
        growth: int = 16,
        net: nn.Module | None = None,
        budget: Any = None,
        prior: Any = None,
        signal: tuple[Any, Any] | None = None,
    ) -> None:
        super().__init__()
        if norm not in (2, math.inf):
            raise UnsupportedNorm(f"composed noise needs norm 2 or math.inf, got {norm!r}.")
        if not 0 < share < 1:
            raise InvalidInput(f"share, the first look's part of the budget, must lie between 0 and 1, got {share!r}.")
        if not 1 <= spread <= 1e6:
            raise InvalidInput(f"spread, the largest s over the smallest, must lie in [1, 1e6], got {spread!r}.")
        if (channels is None) == (net is None):
            raise InvalidInput("give Composed either the images' channels, or your own net.")
        self.norm = norm
        self.share = float(share)
        self.spread = float(spread)
        self.net = net or DenseBlock(channels or 0, features, growth)
        if (budget is not None or prior is not None) and norm != math.inf:
            raise UnsupportedNorm("a budget and a prior shape need norm math.inf.")
        self.register_buffer("budget", None if budget is None else _positive("budget", budget))
        shape = None if prior is None else _positive("prior", prior)
        if shape is not None and not (float(shape.min()) >= 1 / LARGEST and float(shape.max()) <= LARGEST):
            raise InvalidInput(
                f"the prior shape must lie within [{1 / LARGEST:g}, {LARGEST:g}], or its squares are not finite: only its "
                "proportions count, so divide it by its mean."
            )
        self.register_buffer("prior", shape)
        keep_signal(self, signal)

    @classmethod
    def fitted(
        cls, context: Context, show: str = "copy", power: float | None = None, norm: float = math.inf, **parameters: Any
    ) -> Generator:
        """For the budget, where there is one; with a power, both looks have the closed form's shape to start from."""
        if context.budget is None and power is None and show == "copy":
            return super().fitted(context, norm=norm, **parameters)
        check_shown(show, SHOWN[::2])
        prior = None if power is None else closed_form(context, power)
        limits, signal = context.limits.limits, context.signal(show)
        return cls(context.shape[0], norm=norm, budget=limits, prior=prior, signal=signal, **parameters)

    @classmethod
    def needs_inputs(cls, parameters: Mapping[str, Any]) -> bool:
        """Where its shape or what it shows is fitted to them."""
        return fits(parameters)

    @classmethod
    def purposes(cls, parameters: Mapping[str, Any]) -> tuple[str, ...]:
        """The norm that it is made for."""
        return ("l2",) if str(parameters.get("norm", "inf")) == "2" else ("linf", "budget")

    @classmethod
    def tells(cls, settings: Mapping[str, Any]) -> bool:
        """No: its Σ is that of the region, not of the noise."""
        return False

    @property
    def own_norm(self) -> float:
        """The one that it was made for."""
        return self.norm

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, Scale]:
        """μ = 0 and Σ = I, or diag(b): what the certificate says of its region, a ball or a box.

        Not what ``perturb`` adds: that noise is no fixed x + μ + Σε, since every copy draws its own s.
        """
        return x.new_zeros(()), Scalar(1.0) if self.budget is None else Diagonal(self.budget)

    def first_scale(self, law: Law) -> torch.Tensor | float:
        """The first look's standard deviation, one number or a map; it meets its share of the budget."""
        sigma_1 = law.scale / math.sqrt(self.share)
        return sigma_1 if self.prior is None else self._on_budget(self.prior[None], sigma_1)[0]

    def _on_budget(self, shape: torch.Tensor, sigma: float) -> torch.Tensor:
        """Shapes (n, *event) scaled to Σ(bᵢ/sᵢ)² = Σ(bᵢ/σ)², from the sound side."""
        shares = 1 / (shape * shape)
        if self.budget is not None:
            b = self.budget.to(shape.device).double()
            shares = shares * (b * b / (b * b).mean())
        root = shares.mean(tuple(range(1, shape.ndim)), keepdim=True, dtype=torch.float64).sqrt()
        return shape * (HEADROOM * sigma * root).to(shape.dtype)

    def estimate(self, y: torch.Tensor, variance: torch.Tensor | float) -> torch.Tensor:
        """What is shown of a look with noise of this variance: itself, or its linear estimate in units of the signal."""
        if self.signal_mean is None or self.signal_std is None:
            return y
        std = self.signal_std.to(y)
        return (y - self.signal_mean.to(y)) * (std / (std * std + variance))

    def second_scale(self, y1: torch.Tensor, law: Law) -> torch.Tensor:
        """s for first looks (n, *event), from them alone; it meets the norm's budget, from the sound side."""
        raw = run_in_own(self.net, y1)
        if raw.shape != y1.shape:
            raise InvalidInput(
                f"the net returned shape {tuple(raw.shape)} for inputs of shape {tuple(y1.shape)}; the shapes "
                f"must agree."
            )
        shape = self.spread ** (torch.tanh(raw.to(torch.promote_types(raw.dtype, torch.float32))) / 2)
        sigma_2 = law.scale / math.sqrt(1 - self.share)
        if self.norm == 2:
            to_budget = 1 / shape.amin(tuple(range(1, shape.ndim)), keepdim=True)
            return shape * (HEADROOM * sigma_2 * to_budget).to(shape.dtype)
        if self.prior is not None:
            shape = shape * self.prior.to(shape)
        return self._on_budget(shape, sigma_2)

    def draw(self, x: torch.Tensor, law: Law, n: int, rng: torch.Generator) -> torch.Tensor:
        """The draws of both looks: (n, batch, 2, *event)."""
        batch, event = x.shape[0], x.shape[1:]
        draws = law.sample(2 * n * batch, event, rng, torch.promote_types(x.dtype, torch.float32))
        return draws.reshape(2, n, batch, *event).movedim(0, 2)

    def place(
        self, x: torch.Tensor, eps: torch.Tensor, law: Law, noise: tuple[torch.Tensor, Scale] | None = None
    ) -> torch.Tensor:
        """Copies of every input, each with a first look and an s of its own; differentiable in the network.

        ``noise`` is not used: there is none to hold.
        """
        return self.estimate(*self._joined(x, eps, law)).to(x.dtype)

    def noise_size(self, x: torch.Tensor, law: Law, n: int, rng: torch.Generator) -> torch.Tensor:
        """That of the two looks joined: the estimate that is shown of them has other units, and is 0 without a signal."""
        centre = torch.zeros_like(x)
        return self._joined(centre, self.draw(centre, law, n, rng), law)[0][:, 0].abs().mean(0)

    def _joined(self, x: torch.Tensor, eps: torch.Tensor, law: Law) -> tuple[torch.Tensor, torch.Tensor]:
        """Both looks of every copy as one, in the input's units, and the variance of its noise."""
        self.check_claim(law)
        first, second = eps.unbind(2)
        sigma_1 = self.first_scale(law)
        if isinstance(sigma_1, torch.Tensor):
            sigma_1 = sigma_1.to(eps)
        y1 = x + first / math.sqrt(self.share) if self.prior is None else x + sigma_1 * (first / law.scale)
        s = self.second_scale(self.estimate(y1, sigma_1**2).flatten(0, 1), law).reshape(y1.shape)
        y2 = x + s * (second / law.scale)
        both = (s * s * y1 + sigma_1**2 * y2) / (s * s + sigma_1**2)
        return both, s * s * sigma_1**2 / (s * s + sigma_1**2)

    def perturb_on_grid(
        self, out: torch.Tensor, x: torch.Tensor, law: Law, rngs: Sequence[torch.Generator], grid: Grid
    ) -> None:
        """Both looks in whole steps. What the classifier is shown is a function of the two, so the guarantee covers it."""
        self.check_claim(law)
        k, step, dim = grid.integers(x), grid.steps(x.device), x.numel()
        sigma_1 = torch.as_tensor(self.first_scale(law), dtype=torch.float64, device=x.device).reshape(-1)
        for block, rng in zip(out, rngs, strict=True):
            first, second = unit_draws(law, 2 * len(block), dim, rng).chunk(2)
            y1 = first.mul_(sigma_1).div_(step).round_().add_(k)
            seen = self.estimate(grid.floats(y1, x.dtype).reshape(block.shape), self._as_event(sigma_1**2, x))
            s = self.second_scale(seen, law).reshape(y1.shape).double()
            y2 = second.mul_(s).div_(step).round_().add_(k)
            together = (s * s * (y1 * step) + sigma_1**2 * (y2 * step)) / (s * s + sigma_1**2)
            variance = (s * s * sigma_1**2 / (s * s + sigma_1**2)).reshape(block.shape)
            block.copy_(self.estimate(together.reshape(block.shape), variance))

    @staticmethod
    def _as_event(flat: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """One number, or one per entry, in the shape and precision of the input."""
        return (flat[0] if len(flat) == 1 else flat.reshape(x.shape[1:])).to(x.dtype)

    def grid_error(self, x: torch.Tensor, law: Law, grid: Grid) -> float:
        """The first look's error, and the largest that the second can have: it grows with s, which ``spread`` bounds.

        Whatever the network answers, sᵢ is at most spread·σ₂·qᵢ√mean(w/q²): q is the prior, w the budget's weights.
        """
        first = torch.as_tensor(self.first_scale(law), dtype=torch.float64).cpu().reshape(-1) / law.scale
        prior = torch.ones(1, dtype=torch.float64) if self.prior is None else self.prior.double().cpu().reshape(-1)
        weights = (
            torch.ones(1, dtype=torch.float64) if self.budget is None else self.budget.double().cpu().reshape(-1) ** 2
        )
        root = (weights / weights.mean() / prior**2).mean().sqrt()
        longest = 1.001 * self.spread / math.sqrt(1 - self.share) * prior * root  # in units of λ
        zero = torch.zeros((), dtype=torch.float64)
        return sum(grid.error_of(law, RowBounds(rows, rows, 1), zero, x.numel()) for rows in (first, longest))

    def region(self, law: Law, p: float, norm: float, x: torch.Tensor, p_b: float | None = None) -> Region:
        """The ball of the norm that this noise was made for, or the box of its budget."""
        self.check_claim(law, norm)
        event = tuple(x.shape[1:])
        if self.budget is None:
            return Region(1.0, law.radius(p, norm, math.prod(event), p_b), norm, event)
        length = Budget.of(self.budget, event).length(2)
        return Region(self.budget, law.radius(p, 2, math.prod(event), p_b) * (1 - SHAVE) / length, math.inf, event)

    def budget_factor(self, law: Law, p: float, budget: Any, x: torch.Tensor, p_b: float | None = None) -> float:
        """That of its region: of a ball, or of the box of its own budget, in which any other budget fits so often."""
        return self.region(law, p, self.norm, x, p_b).budget_factor(budget)

    def at(self, x: torch.Tensor) -> Generator:
        """The same noise, for one input. Nothing is held: the guarantee is about looks that are drawn anew."""
        self._check_apart(x)
        return Redrawn(self)

    @torch.no_grad()
    def _check_apart(self, x: torch.Tensor) -> None:
        """Refuse a network that mixes the looks of a batch: one copy would be shaped by many looks at x, and only one
        is paid for.

        The scales that follow are compared, entry by entry, each against itself: an output that is large elsewhere, or
        beyond where tanh ends, hides nothing. Looks cannot be known beforehand, and some have company of another kind.
        """
        rng = torch.Generator(x.device).manual_seed(secrets.randbits(32))
        noise = torch.randn(LOOKS, *x.shape[1:], generator=rng, device=x.device, dtype=x.dtype)
        noise[LOOKS // 2 :] *= 10
        looks, unit = x + noise, Gaussian(1.0)
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):  # it rounds too much to tell networks apart
            together = self.second_scale(looks, unit)
            apart = torch.cat([self.second_scale(look, unit) for look in looks[:APART].split(1)])
            among = self.second_scale(torch.cat([looks[:APART], noise[APART:]]), unit)[:APART]
        room = max(1e-3, 16 * torch.finfo(self._dtype(x)).eps)  # a device rounds otherwise in another batch
        if not all(torch.allclose(s, together[:APART], rtol=room, atol=0, equal_nan=True) for s in (apart, among)):
            raise InvalidInput(
                "composed noise: the network's output for a look depends on the rest of the batch, so the guarantee does not "
                "hold. Call eval() on it (batch norm, dropout), or use a network that processes each look independently."
            )

    def _dtype(self, x: torch.Tensor) -> torch.dtype:
        """What the network computes in."""
        first = next(self.net.parameters(), None)
        return x.dtype if first is None or not first.is_floating_point() else first.dtype

    def looks(self) -> bool:
        """No: what the certificate says of its region is the same at every input."""
        return type(self).forward is not Composed.forward

    def settings(self) -> dict[str, Any]:
        """The norm, the shares, the kind of network, and whether there is a budget; that is part of the state."""
        budget = {} if self.budget is None else {"budget": True}
        return {**super().settings(), "net": type(self.net).__qualname__, **budget}

    def check_claim(self, law: Law, norm: float | None = None) -> None:
        """Refuse a law other than the Gaussian, and a norm other than its own."""
        if not isinstance(law, Gaussian):
            raise InvalidInput(f"composed noise needs the Gaussian law, got {type(law).__name__}.")
        if norm is not None and norm != self.norm:
            raise UnsupportedNorm(
                f"this noise was composed for {norm_name(self.norm)} and has no radius against {norm_name(norm)}: "
                "make one with Composed(norm=…), or use its own norm."
            )

    def cap(self) -> float:
        """1: the region is a ball in the units of the law; the largest limit of its budget, where it has one."""
        return 1.0 if self.budget is None else float(self.budget.max())

    def describe(self) -> str:
        """The norm, and the first look's share of the budget."""
        what = norm_name(self.norm) if self.budget is None else "budget"
        return f"Composed({what}, share {self.share:g}, spread {self.spread:g})"


def _positive(name: str, value: Any) -> torch.Tensor:
    """A map above 0 in float32."""
    given = value.box if isinstance(value, Budget) and value.groups is None else value
    if isinstance(given, Budget):
        raise InvalidInput("composed noise takes a budget for every coordinate, not over groups.")
    made = as_map(name, given, tuple(torch.as_tensor(given).shape)).float()
    if made.ndim == 0 or not bool((made > 0).all()):
        raise InvalidInput(f"composed noise needs a {name} above 0 in every coordinate, as a map of the input's shape.")
    return made.clone()


class Redrawn(Generator):
    """Noise with nothing to hold, at one input: the same as at any other, under an identity of its own."""

    redrawn = True

    def __init__(self, source: Generator) -> None:
        super().__init__()
        self.training = False
        self.scope = source.scope  # type: ignore[misc]
        self.shifts_as_law = source.shifts_as_law  # type: ignore[misc]
        self.source = source

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, Scale]:
        """What the source says."""
        found: tuple[torch.Tensor, Scale] = self.source(x)
        return found

    def draw(self, x: torch.Tensor, law: Law, n: int, rng: torch.Generator) -> torch.Tensor:
        """The source's draws."""
        return self.source.draw(x, law, n, rng)

    def place(
        self, x: torch.Tensor, eps: torch.Tensor, law: Law, noise: tuple[torch.Tensor, Scale] | None = None
    ) -> torch.Tensor:
        """The source's copies."""
        return self.source.place(x, eps, law)

    def noise_size(self, x: torch.Tensor, law: Law, n: int, rng: torch.Generator) -> torch.Tensor:
        """The source's."""
        return self.source.noise_size(x, law, n, rng)

    def perturb_on_grid(
        self, out: torch.Tensor, x: torch.Tensor, law: Law, rngs: Sequence[torch.Generator], grid: Grid
    ) -> None:
        """The source's copies."""
        self.source.perturb_on_grid(out, x, law, rngs, grid)

    def grid_error(self, x: torch.Tensor, law: Law, grid: Grid) -> float:
        """The source's."""
        return self.source.grid_error(x, law, grid)

    def region(self, law: Law, p: float, norm: float, x: torch.Tensor, p_b: float | None = None) -> Region:
        """The source's ball or box."""
        return self.source.region(law, p, norm, x, p_b)

    def looks(self) -> bool:
        """As the source."""
        return self.source.looks()

    def record(self) -> Noise:
        """The source's."""
        return self.source.record()

    def budget_factor(self, law: Law, p: float, budget: Any, x: torch.Tensor, p_b: float | None = None) -> float:
        """The source's."""
        return self.source.budget_factor(law, p, budget, x, p_b)

    def describe(self) -> str:
        """The source's line."""
        return self.source.describe()
