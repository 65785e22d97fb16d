"""The base class of generators, which give μ and Σ, and the noise that is held at an input."""

from __future__ import annotations

import functools
import importlib
import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from ucan.arithmetic import Grid
from ucan.budget import Budget
from ucan.catalogue import GENERATORS, Made, arguments_of, as_plain, call, plain
from ucan.certificate import Scope
from ucan.errors import InvalidInput
from ucan.evidence import Noise
from ucan.fingerprint import state_hash
from ucan.generators.context import Context
from ucan.generators.sampled import as_sampled, check_fits, parts, same
from ucan.laws import Law
from ucan.region import Region
from ucan.scales import Scale, as_scale
from ucan.scales.base import all_finite

# Our modules whose classes were elsewhere when records were first written. Records and derived seeds name a class by its
# module, so they go on naming that one.
RECORDED_AS = {"ucan.generators.fixed": "ucan.generators.base"}
# Names that were here when whole generators were pickled, which names classes and functions by their module.
MOVED = {name: "ucan.generators.fixed" for name in ("Fixed", "Isotropic", "_rebuild")}


def __getattr__(name: str) -> Any:
    """A name that moved, where it is now: pickles of whole generators go on loading."""
    if name not in MOVED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(MOVED[name]), name)


class Generator(nn.Module):
    """Maps inputs to the offset μ and the scale Σ of their noise, y = x + μ + Σε, and declares the scope of its guarantee.

    ``scope`` is ``pipeline`` only if μ and Σ are the same for every input; a generator that depends on its input is
    ``frozen``: the certificate is then about the noise computed at this x and frozen there, not about a pipeline that
    recomputes it from a perturbed input.

    Implement ``forward``; everything else has a default. Properties of a kind of noise are declared by ``scope``,
    ``redrawn``, ``on_model``, ``one_at_a_time``, ``shifts_as_law``, ``proven``, ``learns_size``, ``own_norm``,
    ``own_step``, ``looks`` and ``tells``.
    """

    scope: ClassVar[Scope]
    redrawn: ClassVar[bool] = False  # whether every copy draws its own Σ, so that there is none to hold at an input
    shifts_as_law: ClassVar[bool] = False  # where it has regions of its own: whether ``law.shifted`` holds in them, too
    proven: ClassVar[tuple[str, ...]] = ()  # where it has regions of its own: what else their proof is about
    learns_size: ClassVar[bool] = False  # whether only a term of the loss keeps Σ from shrinking in training
    one_at_a_time: ClassVar[bool] = (
        False  # whether ``forward`` takes one input only, since each has a matrix of its own
    )
    on_model: ClassVar[bool] = False  # whether it is computed from the classifier, at every input
    _issued: _Issued | None = None  # the last issued noise: constant noise is copied once, for all its certificates

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """A kind with its own regions has its own theorem: that ``law.shifted`` holds in them is not inherited."""
        super().__init_subclass__(**kwargs)
        if "region" in vars(cls) and "shifts_as_law" not in vars(cls):
            cls.shifts_as_law = False

    def __new__(cls, *args: Any, **kwargs: Any) -> Generator:
        """Store the plain arguments, for ``repr`` and records."""
        self = super().__new__(cls)
        self.__dict__["_arguments"] = arguments_of(cls, args, kwargs)
        return self

    @classmethod
    def fitted(cls, context: Context, **parameters: Any) -> Generator:
        """Make this kind of noise for these inputs: with the given parameters, and ``shape`` or ``channels`` if it takes
        them.
        """
        made: Generator = call("generator", cls, parameters, shape=context.shape, channels=context.shape[0])
        return made

    @classmethod
    def needs_inputs(cls, parameters: Mapping[str, Any]) -> bool:
        """Whether ``fitted`` with these parameters needs the training inputs."""
        return False

    @classmethod
    def purposes(cls, parameters: Mapping[str, Any]) -> tuple[str, ...] | None:
        """The claims that such noise can be trained for, of linf, l2, l1, alm and budget; None for all."""
        return None

    @classmethod
    def tells(cls, settings: Mapping[str, Any]) -> bool:
        """Whether a certificate's Σ and μ determine such noise; False if the classifier gets another view of it."""
        return not own_ways(cls) and cls.view is Generator.view

    @property
    def own_norm(self) -> float | None:
        """The only norm that this noise was made for; None if the law decides."""
        return None

    @property
    def own_step(self) -> float | None:
        """The step of the only inputs that this noise was made for; None if any will do."""
        return None

    def norms(self, law: Law) -> tuple[float, ...]:
        """The norms against which this noise has a radius under this law."""
        return law.norms if self.own_norm is None else (self.own_norm,)

    def usual_norm(self, law: Law, budget: bool = False) -> float:
        """ℓ2 where the noise has such a radius; else its first norm, for a budget its largest, which boxes fit."""
        norms = self.norms(law)
        return 2 if 2 in norms else norms[-1 if budget else 0]

    @abstractmethod
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, Scale]:
        """(μ, Σ) for inputs (batch, *event). μ broadcasts against x; a diagonal Σ may hold one σ per input."""

    def view(self, y: torch.Tensor) -> torch.Tensor:
        """What the classifier gets of noisy inputs (…, *event); by default the inputs themselves."""
        return y

    def perturb(
        self,
        x: torch.Tensor,
        law: Law,
        n: int,
        rng: torch.Generator,
        noise: tuple[torch.Tensor, Scale] | None = None,
    ) -> torch.Tensor:
        """n noisy copies of every input: (batch, *event) → (n, batch, *event), before ``view``.

        ``noise`` is the result of ``forward`` for x, if the caller already has it.
        """
        if self.one_at_a_time and len(x) > 1:
            return torch.cat([self.perturb(one, law, n, rng, noise) for one in x.split(1)], dim=1)
        if noise is None:
            noise = self(x)  # before anything is drawn: it may be random itself
        return self.place(x, self.draw(x, law, n, rng), law, noise)

    def draw(self, x: torch.Tensor, law: Law, n: int, rng: torch.Generator) -> torch.Tensor:
        """What n noisy copies of every input are made from: draws ε (n, batch, …), from the law alone."""
        batch, event = x.shape[0], x.shape[1:]
        return law.sample(n * batch, event, rng, x.dtype).reshape(n, batch, *event)

    def place(
        self, x: torch.Tensor, eps: torch.Tensor, law: Law, noise: tuple[torch.Tensor, Scale] | None = None
    ) -> torch.Tensor:
        """The copies (n, batch, *event) that given draws make of inputs: x + μ + Σε; differentiable in x and ε."""
        mu, scale = self(x) if noise is None else noise
        return as_scale(scale).apply(eps) + (x + mu)

    def noise_size(self, x: torch.Tensor, law: Law, n: int, rng: torch.Generator) -> torch.Tensor:
        """The mean size of the noise in each entry of inputs like x (1, *event), in their units, over n draws: (*event)."""
        mu, _ = self(x)
        centre = torch.zeros_like(x) - mu  # x + μ is 0 here, so that nothing is lost in rounding
        return self.perturb(centre, law, n, rng)[:, 0].abs().mean(0)

    def perturb_into(self, out: torch.Tensor, x: torch.Tensor, law: Law, rngs: Sequence[torch.Generator]) -> None:
        """Fill blocks ``out`` (blocks, n, *event) with noisy copies of one input (1, *event).

        Block i holds what ``perturb`` gives from the i-th generator (on a GPU up to rounding), rounded to the precision
        of ``out``, which may have another one than the input, and another layout.
        """
        for block, rng in zip(out, rngs, strict=True):
            block.copy_(self.perturb(x, law, len(block), rng)[:, 0])

    def perturb_on_grid(
        self, out: torch.Tensor, x: torch.Tensor, law: Law, rngs: Sequence[torch.Generator], grid: Grid
    ) -> None:
        """Fill blocks ``out`` (blocks, n, *event) with copies of one input (1, *event), both it and its noise in whole steps.

        The noise is other noise than ``perturb_into`` draws from the same generators.
        """
        self._check_plain()
        mu, scale = self(x)
        grid.fill(out, x, law, mu, as_scale(scale), rngs)

    def grid_error(self, x: torch.Tensor, law: Law, grid: Grid) -> float:
        """τ: how far, in total variation, a copy of ``perturb_on_grid`` is from one under ideal noise, rounded."""
        self._check_plain()
        mu, scale = self.stated(x)
        return grid.error(law, as_scale(scale), mu, x.numel())

    def _check_plain(self) -> None:
        """Refuse noise other than x + μ + Σε that does not implement the grid."""
        copies = set(own_ways(type(self))) - {"region"}
        if copies and type(self).perturb_on_grid is Generator.perturb_on_grid:
            raise InvalidInput(
                f"{self.describe()} does not draw x + μ + Σε: implement perturb_on_grid and grid_error for it "
                "(documentation page “Sound arithmetic”), or leave step= out (on the command line --arithmetic real)."
            )

    def region(self, law: Law, p: float, norm: float, x: torch.Tensor, p_b: float | None = None) -> Region:
        """The region certified at one input (1, *event) when its class has probability at least p."""
        _, scale = self.stated(x)
        event = tuple(x.shape[1:])
        own = law.region_norm(norm)
        return Region.sharing(as_scale(scale), law.radius(p, own, math.prod(event), p_b), own, event)

    def budget_factor(self, law: Law, p: float, budget: Any, x: torch.Tensor, p_b: float | None = None) -> float:
        """The largest known ε such that no change within ε′·budget, ε′ < ε, changes the class certified at x (1, *event).

        ``budget`` is a number, a map of the input's shape or a ``Budget``; p and p_b as for ``region``. The best of the law's
        regions, and for a box and an elementwise Σ also the law's own ``box_factor``; never too large. A kind of noise with
        its own regions uses only those.
        """
        event = tuple(x.shape[1:])
        if type(self).region is not Generator.region:
            return max(self.region(law, p, own, x, p_b).budget_factor(budget) for own in law.region_norms())
        _, scale = self.stated(x)
        asked, sigma, dim = Budget.of(budget, event), as_scale(scale), math.prod(event)
        regions = (Region.sharing(sigma, law.radius(p, own, dim, p_b), own, event) for own in law.region_norms())
        best = max(region.budget_factor(asked) for region in regions)
        if sigma.elementwise and asked.groups is None:
            best = max(best, law.box_factor(p, sigma.solve(asked.limits[None])[0].cpu(), p_b))
        return best

    def at(self, x: torch.Tensor) -> Generator:
        """μ, Σ ← M: this generator with its noise computed at one input (1, *event) and frozen there."""
        with torch.no_grad():
            mu, sigma = self(x.clone())  # protects the certified input from a network that works in place
        return issued(self, x, mu.detach(), as_sampled(as_scale(sigma).detached(), x.dtype))

    def starting(self, x: torch.Tensor) -> Callable[[], Generator]:
        """``at`` in two halves: calling what is returned gives what ``at`` gives. A GPU may compute in between."""
        return functools.partial(self.at, x)

    def stated(self, x: torch.Tensor) -> tuple[torch.Tensor, Scale]:
        """(μ, Σ) as regions and certificates are made of them; held noise may have a copy of both on the host."""
        found: tuple[torch.Tensor, Scale] = self(x)
        return found

    def check_claim(self, law: Law, norm: float | None = None) -> None:
        """Refuse, before any work, a law or a norm that this noise has no guarantee for; by default the law decides."""

    def cap(self) -> float | None:
        """The largest scale that any direction can get at any input; None if unknown."""
        return None

    def __getstate__(self) -> dict[str, Any]:
        """Without what was issued: a copy of a generator, or one that was sent elsewhere, issues its own."""
        return {name: value for name, value in vars(self).items() if name != "_issued"}

    def turns(self, law: Law) -> int | None:
        """The number of different draws, equally likely, if they can be enumerated; None if they cannot."""
        return None

    def looks(self) -> bool:
        """Whether μ and Σ could depend on the input: True unless they are known not to."""
        return True

    def settings(self) -> dict[str, Any]:
        """The plain values that this noise was made with, as records keep them: its public attributes that are plain."""
        return {
            name: as_plain(value)
            for name, value in vars(self).items()
            if isinstance(value, bool | int | float | str) and not name.startswith("_") and name != "training"
        }

    def made(self) -> Made | None:
        """Its name in the catalogue and its parameters; None where it has no name, or parameters that are not plain."""
        known: Made | None = self.__dict__.get("_made")
        if known is not None:
            return known
        given = {n: v for n, v in self.__dict__.get("_arguments", {}).items() if n not in ("shape", "channels")}
        return GENERATORS.made(type(self), as_plain(given)) if plain(given) else None

    def __repr__(self) -> str:
        """The call that makes it; values that are not plain are left out."""
        given = self.__dict__.get("_arguments", {})
        return f"{type(self).__name__}({', '.join(f'{n}={_shown(v)}' for n, v in given.items())})"

    def record(self) -> Noise:
        """The record of this noise for evidence."""
        kind = type(self)
        return Noise(
            line=self.describe(),
            kind=kind.__qualname__,
            module=RECORDED_AS.get(kind.__module__, kind.__module__),
            settings=self.settings(),
            state=state_hash(self),
            constant=self.scope == "pipeline",
            made=self.made(),
        )

    def describe(self) -> str:
        """One line for certificates and tables."""
        return type(self).__name__


def regions_as_law(M: Generator) -> bool:
    """Whether its radii grow with p as the law's own do, in a proportion that is the same wherever Σ is.

    Not where regions follow a theorem of their own: then they may grow otherwise, and differ between inputs.
    """
    return type(M).region is Generator.region or M.shifts_as_law


def own_ways(kind: type[Generator]) -> tuple[str, ...]:
    """The methods by which a kind of noise makes copies or regions in its own way; none of plain noise, x + μ + Σε."""
    ways = ("draw", "place", "perturb", "region")
    return tuple(name for name in ways if getattr(kind, name) is not getattr(Generator, name))


class Held(Generator):
    """Another generator's noise, computed at one input and frozen there, with the same scope and view."""

    mean: torch.Tensor
    scale: Scale
    _on_host: tuple[torch.Tensor, Scale] | None
    _line: str
    _of: Generator

    def __new__(cls, *args: Any, **kwargs: Any) -> Held:
        """Without the arguments: it is made for every input, and no record has it."""
        return nn.Module.__new__(cls)

    def __init__(
        self,
        source: Generator,
        mean: torch.Tensor,
        scale: Scale,
        on_host: tuple[torch.Tensor, Scale] | None = None,
    ) -> None:
        super().__init__()
        # Past nn.Module's own bookkeeping, which takes longer than all else here: nothing of it is a part of this module.
        vars(self).update(
            training=False,
            scope=source.scope,
            view=source.view,
            mean=mean.detach(),
            scale=scale,
            _on_host=on_host,
            _line=source.describe(),
            _of=source,
        )

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, Scale]:
        """The held μ and Σ."""
        return self.mean, self.scale

    def stated(self, x: torch.Tensor) -> tuple[torch.Tensor, Scale]:
        """The same, on the host where a copy is there."""
        return self._on_host or (self.mean, self.scale)

    def perturb_into(self, out: torch.Tensor, x: torch.Tensor, law: Law, rngs: Sequence[torch.Generator]) -> None:
        """Drawn block by block; a scalar or a diagonal Σ shapes them all at once and in place.

        A matrix shapes each block by itself: a product over more rows may round differently, and a block's noise must not
        depend on the other blocks.
        """
        centre = x + self.mean
        drawn = out if out.dtype == x.dtype and out.is_contiguous() else x.new_empty(out.shape)
        if self.scale.elementwise:
            law.sample_blocks(drawn, rngs)
            self.scale.apply_around(drawn, centre, out)
            return
        for block, rng in zip(drawn, rngs, strict=True):
            law.sample_into(block, rng)
            self.scale.apply_around(block, centre, block)
        if drawn is not out:
            out.copy_(drawn)

    def looks(self) -> bool:
        """No: it is held."""
        return False

    def record(self) -> Noise:
        """The source's."""
        return self._of.record()

    def describe(self) -> str:
        """The source's line."""
        return self._line


def _shown(value: Any) -> str:
    return "…" if value is ... else repr(value)


@dataclass(frozen=True)
class _Issued:
    """Noise that was issued: the copy, and the tensors that it was copied from."""

    held: Held
    sources: dict[str, torch.Tensor]

    def still(self, tensors: dict[str, torch.Tensor], scale: Scale) -> bool:
        """Whether these tensors, which μ and Σ are made of now, hold what was copied.

        Their numbers are compared every time: PyTorch does not count a change through ``.data``.
        """
        if type(scale) is not type(self.held.scale) or tensors.keys() != self.sources.keys():
            return False
        copies = parts(self.held.mean, self.held.scale)
        return all(same(tensor, copies[name]) for name, tensor in tensors.items())


def issued(
    source: Generator,
    x: torch.Tensor,
    mean: torch.Tensor,
    scale: Scale,
    on_host: tuple[torch.Tensor, Scale] | None = None,
) -> Generator:
    """μ and Σ checked for inputs like x (1, *event) and copied to their own memory.

    Noise is drawn and regions are made from that copy, so a certificate does not change if the generator does. As long as μ
    and Σ stay the same, all inputs share one copy. ``on_host`` are copies of both that the caller has fetched: they are
    looked at instead of asking the device, and regions are made from them. Such noise is not shared, and μ and Σ are taken as
    they are: the caller made them for this input alone.
    """
    tensors, last = parts(mean, scale), source._issued
    if on_host is None and last is not None and last.still(tensors, scale):
        check_fits(source.describe(), x, mean, scale)
        return last.held
    _check_plain_kind(source)
    own = scale.copied() if on_host is None else scale
    seen_mean, seen = on_host or (mean, own)
    if not all_finite(seen_mean):
        raise InvalidInput(f"{source.describe()}: μ holds a value that is not finite.")
    seen.known("check", seen.check)
    check_fits(source.describe(), x, mean, own)
    held = Held(source, mean.detach().clone() if on_host is None else mean, own, on_host)
    source._issued = _Issued(held, tensors)
    return held


def _check_plain_kind(source: Generator) -> None:
    """Refuse to hold noise as x + μ + Σε that draws its copies, or makes its regions, in its own way."""
    own = own_ways(type(source))
    if own:
        raise InvalidInput(
            f"{type(source).__name__} has {' and '.join(own)} of its own, which noise held as x + μ + Σε does not use: "
            "override at, too (documentation page “Generators: choosing the noise”), to return a generator that does, such "
            "as the generator itself."
        )


def copies_issued(source: Generator) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(copy, original) of the tensors that μ and Σ were last issued from."""
    last = source._issued
    if last is None:
        return []
    copies = parts(last.held.mean, last.held.scale)
    return [(copies[name], original) for name, original in last.sources.items()]
