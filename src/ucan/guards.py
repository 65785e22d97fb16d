"""Cases that no theorem covers, refused at every input: noise lost in rounding, and noise that depends on the input."""

from __future__ import annotations

import copy
import functools
import secrets
import weakref
from inspect import getattr_static

import torch

from ucan.errors import InvalidInput, in_one_line
from ucan.generators import Generator
from ucan.generators.base import Held, own_ways
from ucan.laws import Law
from ucan.region import Region
from ucan.scales import Scale, as_scale
from ucan.sidecar import on_host

# Relative difference up to which two Σ count as the same: the rounding of a device.
SAME = 1e-5
# The same for μ, relative to the noise.
SAME_OFFSET = 1e-4
# Number of draws from which the size of the noise is estimated.
DRAWS = 16
# The spacing of floating-point numbers at x + μ, relative to the noise, above which the noise counts as lost. Below it, a
# radius is off by less than half of that.
LOST = 1 / 128
# Number of points inside a certified region at which noise that may depend on its input is computed again.
PROBES = 4
# The methods that make noisy copies.
COPYING = ("draw", "place", "perturb", "perturb_into", "perturb_on_grid", "grid_error")
# ‖Σ⁻¹‖₂ of matrices, cached as long as they exist.
_LEAST: weakref.WeakKeyDictionary[Scale, float] = weakref.WeakKeyDictionary()
_SIZES: weakref.WeakKeyDictionary[Generator, tuple[Law, torch.Tensor]] = weakref.WeakKeyDictionary()


def fresh(device: torch.device) -> torch.Generator:
    """An unpredictable random generator: code could be written to pass a check at fixed points."""
    return torch.Generator(device).manual_seed(secrets.randbits(32))


def check_precision(device: torch.device) -> None:
    """Refuse to work inside ``torch.autocast``, which rounds noise and network without a word in the evidence."""
    if torch.is_autocast_enabled(device.type):
        raise InvalidInput(
            "votes are not counted inside torch.autocast, which would round the noise and run the model in another precision "
            "than the certificate says: leave that block, and ask for precision='bf16' instead."
        )


def as_drawn(x: torch.Tensor, device: torch.device) -> torch.Tensor:
    """An input as its noise is drawn: on this device, 16 bits in float32, since noise in 16 bits does not have the law's
    distribution.
    """
    return x.to(device, torch.promote_types(x.dtype, torch.float32))


def unlike(x: torch.Tensor) -> torch.Tensor:
    """A random input of x's shape (1, *event), unrelated to x."""
    return torch.randn(x.shape, generator=fresh(x.device), dtype=x.dtype, device=x.device)


@torch.no_grad()
def noise_size(held: Generator, x: torch.Tensor, law: Law) -> torch.Tensor:
    """The mean size of the noise in each entry of inputs like x (1, *event), estimated from a few draws; shape (*event)."""
    if isinstance(held, Held) and held.scale.elementwise:  # noise is a product, so that the law's own draws do for all
        return (
            as_scale(held.stated(x)[1]).apply(_unit_sizes(law, tuple(x.shape[1:]), x.dtype)).abs().reshape(x.shape[1:])
        )
    known = _SIZES.get(held)
    if known is None or known[0] != law or known[1].shape != x.shape[1:]:
        rng = torch.Generator(x.device).manual_seed(0)
        known = _SIZES[held] = (law, held.noise_size(x, law, DRAWS, rng))
    return known[1]


@torch.no_grad()
def check_lost(held: Generator, x: torch.Tensor, law: Law) -> None:
    """Refuse an x (1, *event) or a μ so large that the noise is lost in rounding.

    Then inputs that differ by more than the noise can look alike, and inputs that differ by less can look different.
    """
    size = noise_size(held, x, law)
    mu, sigma = held.stated(x)
    mu, x = mu.to(size.device), on_host(x) if size.device.type == "cpu" else x
    scale = as_scale(sigma)
    if not scale.elementwise:
        _check_least(held, x + mu, size, scale, law)
    beside = torch.maximum(x[0].abs(), torch.maximum(mu.abs().expand_as(x)[0], (x + mu)[0].abs()))
    number = torch.finfo(x.dtype)
    lost = number.eps * beside.clamp_min(number.tiny) > LOST * size  # below tiny numbers stand no closer than there
    if lost.any():
        where = tuple(lost.nonzero()[0].tolist())
        if beside[where] <= number.tiny:
            raise InvalidInput(
                f"{held.describe()}: the noise is lost in rounding: at entry {list(where)} it is {float(size[where]):.3g}, and "
                f"numbers in {str(x.dtype).removeprefix('torch.')} stand {number.tiny * number.eps:.3g} apart. "
                f"Use {'' if x.dtype == torch.float64 else 'float64 inputs, or '}a larger scale."
            )
        what = "x" if x[0].abs()[where] >= mu.abs().expand_as(x)[0][where] else "μ"
        raise InvalidInput(
            f"{held.describe()}: {what} is so large that the noise is lost in rounding: at entry "
            f"{list(where)} {what} is {float(beside[where]):.3g} and the noise {float(size[where]):.3g}, in "
            f"{str(x.dtype).removeprefix('torch.')}. {_cure(x.dtype, what)}"
        )


def _check_least(held: Generator, centre: torch.Tensor, size: torch.Tensor, scale: Scale, law: Law) -> None:
    """For noise that mixes entries: refuse it if rounding a noisy copy is not small compared with the noise in its weakest
    direction.
    """
    if scale not in _LEAST:
        _LEAST[scale] = scale.inverse_norm(2, 2, centre[0].numel())
    reach = float(torch.linalg.vector_norm((centre[0].abs() + 3 * size).double()))
    lost = torch.finfo(centre.dtype).eps * reach * _LEAST[scale] / _unit_size(law, centre[0].numel())
    if lost > LOST:
        raise InvalidInput(
            f"{held.describe()}: the noise in some direction is lost in rounding, compared with the input and the noise in "
            f"other directions: "
            f"rounding to {str(centre.dtype).removeprefix('torch.')} moves a copy by {lost:.2g} of it. Use float64 inputs, "
            f"or "
            "scales that differ less."
        )


@functools.lru_cache(maxsize=8)
def _unit_sizes(law: Law, event: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """The mean size of a few draws of the law in each entry, on the host."""
    return law.sample(DRAWS, event, torch.Generator().manual_seed(0), dtype).abs().mean(0)


@functools.lru_cache(maxsize=64)
def _unit_size(law: Law, dim: int) -> float:
    """The mean size of the law's own noise in one coordinate, before Σ."""
    return float(law.sample(DRAWS, (dim,), torch.Generator().manual_seed(0), torch.float64).abs().mean())


def _cure(dtype: torch.dtype, what: str) -> str:
    offset = "a smaller μ" if what == "μ" else "inputs with an offset subtracted (a timestamp as days since the first)"
    return f"Use {offset}, or a larger scale." if dtype == torch.float64 else f"Use float64 inputs, or {offset}."


@torch.no_grad()
def check_constant(here: Generator, elsewhere: Generator, x: torch.Tensor, law: Law) -> None:
    """Refuse scope pipeline if the noise frozen at x (1, *event) differs from the noise frozen at another input.

    This cannot detect code that hides its dependence on the input on purpose.
    """
    if here is elsewhere:
        return
    (mu, scale), (other_mu, other) = ((m, as_scale(s)) for m, s in (here(x), elsewhere(x)))
    apart = (mu.expand_as(x) - other_mu.expand_as(x))[0].abs()
    size = noise_size(here, x, law).to(apart.device)
    if not (bool((apart <= SAME_OFFSET * size).all()) and (scale is other or _alike(scale, other))):
        raise InvalidInput(
            f"{here.describe()} declares the scope pipeline, but its μ or Σ depends on the input: its certificates hold only "
            f"for noise frozen at each input. Declare the scope frozen (documentation page “Whose guarantee it is”)."
        )


def check_elsewhere(M: Generator, held: Generator, x: torch.Tensor, law: Law) -> None:
    """Refuse scope pipeline if the noise at unrelated inputs differs from that frozen at x (1, *event)."""
    for point in (unlike(x), 10 * unlike(x), torch.zeros_like(x), torch.ones_like(x)):
        check_constant(held, M.at(point), x, law)


def check_theorem(M: Generator) -> None:
    """Refuse a subclass that has the regions of its parent, whose proof is about the parent's copies, and makes its own."""
    mine = type(M)
    owner: type[Generator] = next(kind for kind in mine.__mro__ if "region" in vars(kind))
    if owner is Generator:  # those of x + μ + Σε, against which copies are tested at every input
        return
    changed = [
        name for name in (*COPYING, *owner.proven) if getattr_static(mine, name) is not getattr_static(owner, name)
    ]
    if changed:
        raise InvalidInput(
            f"{mine.__name__} overrides {' and '.join(changed)}, but inherits the regions of {owner.__name__}, and their proof "
            "does not cover other noisy copies: override region, too, with a theorem of its own."
        )


@torch.no_grad()
def check_moves(held: Generator, x: torch.Tensor, law: Law) -> None:
    """Refuse noise that makes copies in its own way, but has the regions of x + μ + Σε, if a copy does not move as its input
    does.

    Those regions are for a shift of the noise's distribution: the same draw must land x′ − x further at x′ than at x.
    """
    own = own_ways(type(held))
    if not own or "region" in own:
        return
    seed = secrets.randbits(32)

    def copies(point: torch.Tensor) -> torch.Tensor:
        return held.perturb(point, law, DRAWS, torch.Generator(x.device).manual_seed(seed))

    here, size = copies(x), noise_size(held, x, law)
    for point in (x + size.mean() * unlike(x), unlike(x), 10 * unlike(x), torch.zeros_like(x)):
        there = copies(point)
        apart = ((there - here) - (point - x)).abs()
        rounding = 8 * torch.finfo(x.dtype).eps * torch.maximum(there.abs(), here.abs())
        if not bool((apart <= SAME_OFFSET * size + rounding).all()):
            raise InvalidInput(
                f"{held.describe()} has {' and '.join(own)} of its own, by which a noisy copy does not move as its input does, "
                "so the regions of x + μ + Σε do not hold for it: give it a region of its own, with its own theorem, or let "
                "at return noise that is frozen at the input."
            )


def check_from_the_start(M: Generator, x: torch.Tensor, law: Law) -> Generator:
    """The noise frozen at x (1, *event); refused if the generator stores it from the first input that it sees."""
    twin = None
    if M.scope == "pipeline" and M.looks():
        twin = _copied(M)
    held = M.at(x)
    if twin is not None:
        check_constant(held, twin.at(unlike(x)), x, law)
    return held


def _copied(M: Generator) -> Generator:
    """A copy of a user's generator. What it keeps of a training step, which no copy could take a gradient from, is detached."""
    kept = (value for module in M.modules() for value in vars(module).values() if isinstance(value, torch.Tensor))
    memo = {id(value): value.detach().clone() for value in kept if not value.is_leaf}
    try:
        return copy.deepcopy(M, memo)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # whatever a user's generator raises
        raise InvalidInput(
            f"{M.describe()} declares the scope pipeline, but cannot be copied ({in_one_line(error)}), so that it cannot be "
            "checked whether it stores its noise from the first input: make it work with copy.deepcopy, with the tensors "
            "that it keeps detached, or declare the scope frozen."
        ) from error


@torch.no_grad()
def check_inside(M: Generator, held: Generator, x: torch.Tensor, region: Region, law: Law) -> None:
    """Compute the noise again at points inside a certified region: scope pipeline needs noise that is constant there, too."""
    if M.scope != "pipeline" or not M.looks() or not isinstance(held, Held):
        return
    u = torch.randn(PROBES, *x.shape[1:], generator=fresh(x.device), dtype=x.dtype, device=x.device)
    delta = torch.cat([region.scale.to(x.device).apply(u), torch.ones_like(x), -torch.ones_like(x)])
    sizes = region.size(delta.double()).to(x.device).reshape(-1, *[1] * (x.ndim - 1))
    for point in (x + (0.99 * region.radius / sizes * delta).to(x.dtype)).split(1):
        check_constant(held, M.at(point), x, law)


def _alike(scale: Scale, other: Scale) -> bool:
    """Whether two Σ of one generator have the same numbers, up to the rounding of a device."""

    def alike(a: torch.Tensor, b: torch.Tensor) -> bool:
        return a is b or (a.shape == b.shape and torch.allclose(a, b, rtol=SAME, atol=0))

    return scale.same_as(other, alike)
