"""What is refused at every input, since no theorem covers it: noise lost in rounding, noise that follows its input."""

from __future__ import annotations

import copy
import functools
import secrets
import weakref

import torch

from ucan.errors import InvalidInput
from ucan.generators import Generator
from ucan.generators.base import Held
from ucan.laws import Law
from ucan.region import Region
from ucan.scales import Scale, as_scale

# How far, relative to itself, Σ may differ from place to place and count as the same: the rounding of a device.
SAME = 1e-5
# The same for μ, as a share of the noise.
SAME_OFFSET = 1e-4
# Draws from which the size of noise is guessed.
DRAWS = 16
# The spacing of floating-point numbers at x + μ, as a share of the noise there, above which noise counts as lost. A radius
# is then off by less than half of that.
LOST = 1 / 128
# Points inside a certified region at which noise that may look at its input is made again.
PROBES = 4
# ‖Σ⁻¹‖₂ of matrices, as long as they are kept.
_LEAST: weakref.WeakKeyDictionary[Scale, float] = weakref.WeakKeyDictionary()
_SIZES: weakref.WeakKeyDictionary[Generator, tuple[Law, torch.Tensor]] = weakref.WeakKeyDictionary()


def fresh(device: torch.device) -> torch.Generator:
    """A source of randomness that cannot be known beforehand: a check against fixed points can be passed on purpose."""
    return torch.Generator(device).manual_seed(secrets.randbits(32))


def unlike(x: torch.Tensor) -> torch.Tensor:
    """An input of x's kind (1, *event) that has nothing to do with it."""
    return torch.randn(x.shape, generator=fresh(x.device), dtype=x.dtype, device=x.device)


@torch.no_grad()
def noise_size(held: Generator, x: torch.Tensor, law: Law) -> torch.Tensor:
    """The mean size of the noise in each entry of inputs like x (1, *event), guessed from a few draws; shape (*event)."""
    known = _SIZES.get(held)
    if known is None or known[0] != law or known[1].shape != x.shape[1:]:
        mu, _ = held(x)
        centre = torch.zeros_like(x) - mu  # where x + μ is 0, so that nothing is lost
        rng = torch.Generator(x.device).manual_seed(0)
        known = _SIZES[held] = (law, held.perturb(centre, law, DRAWS, rng)[:, 0].abs().mean(0))
    return known[1]


@torch.no_grad()
def check_lost(held: Generator, x: torch.Tensor, law: Law) -> None:
    """Refuse an x (1, *event) or a μ beside which the noise is lost in the arithmetic used.

    Then inputs that differ by more than their noise look alike, and others that differ by less look different.
    """
    mu, sigma = held(x)
    size = noise_size(held, x, law)
    scale = as_scale(sigma)
    if not scale.elementwise:
        _check_least(held, x + mu, size, scale, law)
    beside = torch.maximum(x[0].abs(), torch.maximum(mu.abs().expand_as(x)[0], (x + mu)[0].abs()))
    lost = torch.finfo(x.dtype).eps * beside > LOST * size
    if lost.any():
        where = tuple(lost.nonzero()[0].tolist())
        what = "x" if x[0].abs()[where] >= mu.abs().expand_as(x)[0][where] else "μ"
        raise InvalidInput(
            f"{held.describe()}: {what} is so large beside the noise that the noise is lost in rounding: at entry "
            f"{list(where)} {what} is {float(beside[where]):.3g} and the noise {float(size[where]):.3g}, in "
            f"{str(x.dtype).removeprefix('torch.')}. {_cure(x.dtype, what)}"
        )


def _check_least(held: Generator, centre: torch.Tensor, size: torch.Tensor, scale: Scale, law: Law) -> None:
    """Of noise that mixes entries: refuse it where rounding a noisy copy moves it by a good part of the least direction's."""
    if scale not in _LEAST:
        _LEAST[scale] = scale.inverse_norm(2, 2, centre[0].numel())
    reach = float(torch.linalg.vector_norm((centre[0].abs() + 3 * size).double()))
    lost = torch.finfo(centre.dtype).eps * reach * _LEAST[scale] / _unit_size(law, centre[0].numel())
    if lost > LOST:
        raise InvalidInput(
            f"{held.describe()}: the noise in some direction is lost in rounding beside the input and the noise in others: "
            f"rounding to {str(centre.dtype).removeprefix('torch.')} moves a copy by {lost:.2g} of it. Use float64 inputs, or "
            "scales that differ less."
        )


@functools.lru_cache(maxsize=64)
def _unit_size(law: Law, dim: int) -> float:
    """The mean size of the law's own noise in one coordinate, before Σ."""
    return float(law.sample(DRAWS, (dim,), torch.Generator().manual_seed(0), torch.float64).abs().mean())


def _cure(dtype: torch.dtype, what: str) -> str:
    offset = "a smaller μ" if what == "μ" else "inputs with an offset taken off (a timestamp as days since the first)"
    return f"Use {offset}, or a larger scale." if dtype == torch.float64 else f"Use float64 inputs, or {offset}."


@torch.no_grad()
def check_constant(here: Generator, elsewhere: Generator, x: torch.Tensor, law: Law) -> None:
    """Refuse a claim of the pipeline where the noise held at x (1, *event) is another than that held elsewhere.

    The best that can be done from outside: code that wants to hide that it looks at its input always can.
    """
    if here is elsewhere:
        return
    (mu, scale), (other_mu, other) = ((m, as_scale(s)) for m, s in (here(x), elsewhere(x)))
    apart = (mu.expand_as(x) - other_mu.expand_as(x))[0].abs()
    if not (bool((apart <= SAME_OFFSET * noise_size(here, x, law)).all()) and (scale is other or _alike(scale, other))):
        raise InvalidInput(
            f"{here.describe()} declares the scope pipeline, but its μ or Σ depends on the input: its certificates "
            "hold for noise that is frozen at each input. Declare the scope frozen (docs/scopes.md)."
        )


def check_elsewhere(M: Generator, held: Generator, x: torch.Tensor, law: Law) -> None:
    """Refuse a claim of the pipeline where noise is another than that held at x (1, *event) at inputs unlike it."""
    for point in (unlike(x), 10 * unlike(x), torch.zeros_like(x), torch.ones_like(x)):
        check_constant(held, M.at(point), x, law)


def check_from_the_start(M: Generator, x: torch.Tensor, law: Law) -> Generator:
    """The noise held at x (1, *event); refused if it is remembered from the first input that the generator is shown."""
    twin = None
    if M.scope == "pipeline" and M.looks():
        try:
            twin = copy.deepcopy(M)
        except Exception:  # whatever a generator of the user's holds: then there is nothing to compare with
            twin = None
    held = M.at(x)
    if twin is not None:
        check_constant(held, twin.at(unlike(x)), x, law)
    return held


@torch.no_grad()
def check_inside(M: Generator, held: Generator, x: torch.Tensor, region: Region, law: Law) -> None:
    """Make the noise again at points inside a certified region: noise that is constant only near x is no pipeline's."""
    if M.scope != "pipeline" or not M.looks() or not isinstance(held, Held):
        return
    u = torch.randn(PROBES, *x.shape[1:], generator=fresh(x.device), dtype=x.dtype, device=x.device)
    delta = torch.cat([region.scale.to(x.device).apply(u), torch.ones_like(x), -torch.ones_like(x)])
    sizes = region.size(delta.double()).to(x.device).reshape(-1, *[1] * (x.ndim - 1))
    for point in (x + (0.99 * region.radius / sizes * delta).to(x.dtype)).split(1):
        check_constant(held, M.at(point), x, law)


def _alike(scale: Scale, other: Scale) -> bool:
    """Whether two Σ of one generator are made of the same numbers, each up to the rounding of a device."""

    def alike(a: torch.Tensor, b: torch.Tensor) -> bool:
        return a is b or (a.shape == b.shape and torch.allclose(a, b, rtol=SAME, atol=0))

    return scale.same_as(other, alike)
