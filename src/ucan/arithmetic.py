"""Sound arithmetic: inputs and noise on a grid, added as whole numbers, and what is left to chance (docs/arithmetic.md).

In floating point x + noise is not x plus noise of one fixed law: which numbers can occur depends on x, and a classifier can
exploit that. Here an input is whole numbers k of steps, noise is drawn in float64 without looking at it and rounded to whole
steps, and k + noise is exact. Rounding after adding and adding after rounding are then the same, so the classifier that looks
at the sum is a fixed function of x plus ideal noise, and every radius of the theory holds for changes in whole steps. The
noise drawn differs from ideal rounded noise by a total variation of at most ``Grid.error``, which is subtracted from the
bounds on probabilities.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any
from weakref import WeakKeyDictionary

import torch

from ucan.errors import InvalidInput
from ucan.laws import CELL, UNIT, Law
from ucan.passes import Pass
from ucan.region import Region
from ucan.scales import Scale
from ucan.scales.base import RowBounds

REAL = "real"
# At the end of the word, for an input that was no whole multiple of the step.
ROUNDED = ", rounded"
# An input is on the grid if it is off by no more than so many units in the last place of its own precision.
NEAR = 2.0
# Whole numbers up to here are exact in float64, and so is the sum of two of them.
LARGEST = 2.0**51
# A total variation beyond this would show in every bound.
MOST = 1e-3
# What the functions that turn counts into probabilities may be off by (float64, a few digits to spare).
STATISTICS = 2.0**-40
# Dividing an input by the step and rounding loses less than this, relative to inputs up to 256 times as large.
DIVIDED = 2.0**-44
# Radii of a grid certificate are rounded down by this: more than the laws' radius functions may be off, relative to them.
ROUNDED_DOWN = 1 - 2.0**-29


@dataclass(frozen=True, eq=False)
class Grid:
    """The grid of inputs whose entries are whole multiples of ``step``: one number, or one per entry of the event's shape."""

    step: float | torch.Tensor
    _known: WeakKeyDictionary[Scale, dict[Any, float]] = field(default_factory=WeakKeyDictionary, repr=False)
    _steps: dict[torch.device, torch.Tensor] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, step: Any) -> Grid | None:
        """None for None; else the grid of that step, which must be above 0 everywhere."""
        if step is None:
            return None
        if isinstance(step, bool | str):
            raise InvalidInput(f"step must be a number above 0 such as 1/255, or a tensor of them, got {step!r}.")
        if not isinstance(step, Real):
            try:
                step = torch.as_tensor(step).detach().double().cpu().clone()
            except (TypeError, ValueError, RuntimeError) as error:
                raise InvalidInput(f"step must be a number above 0, or a tensor of them, not {step!r}.") from error
        values = torch.as_tensor(step, dtype=torch.float64)
        if values.numel() == 0 or not bool((values.isfinite() & (values > 0)).all()):
            raise InvalidInput(f"step must be finite and above 0 everywhere, got {step!r}.")
        return cls(float(values) if values.ndim == 0 else values)

    @property
    def name(self) -> str:
        """1/255, the number itself, or 12 digits of the hash of one step per entry."""
        if isinstance(self.step, torch.Tensor):
            return hashlib.sha256(self.step.contiguous().numpy().tobytes()).hexdigest()[:12]
        parts = 1 / self.step
        if round(parts) >= 1 and abs(parts - round(parts)) <= 1e-9:
            return f"1/{round(parts)}"
        return repr(self.step)

    def check_fits(self, event: Sequence[int]) -> None:
        """Refuse steps of another shape than the event's."""
        if isinstance(self.step, torch.Tensor) and self.step.shape != tuple(event):
            raise InvalidInput(
                f"step has shape {tuple(self.step.shape)}, but inputs have shape {tuple(event)}: give one step, or one per "
                f"entry."
            )

    def steps(self, device: torch.device) -> torch.Tensor:
        """The steps on a device in float64: flat, one per entry, or without an axis if they are all one."""
        if device not in self._steps:
            with torch.inference_mode(False):
                self._steps[device] = torch.as_tensor(self.step, dtype=torch.float64).to(device)
        found = self._steps[device]
        return found.reshape(-1) if found.ndim else found

    # --- inputs ---

    def integers(self, x: torch.Tensor) -> torch.Tensor:
        """K = round(x/step) of one input (1, *event): whole numbers (d,), in float64."""
        return (x.detach().double().reshape(-1) / self.steps(x.device)).round()

    def floats(self, k: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """k·step, a product in float64 and one cast."""
        return (k * self.steps(k.device)).to(dtype)

    def holds(self, x: torch.Tensor) -> bool:
        """Whether every entry of x is, up to rounding in its own precision, a whole multiple of its step."""
        k = self.integers(x)
        if not bool((k.abs() <= LARGEST).all()):
            raise InvalidInput(
                "an input is too many steps from 0 for its whole numbers to be exact: use a larger step."
            )
        beside = (x.detach().double().reshape(-1) / self.steps(x.device) - k).abs()
        return bool((beside <= (NEAR * torch.finfo(x.dtype).eps * k.abs()).clamp_max(1 / 8)).all())

    def arithmetic(self, x: torch.Tensor) -> str:
        """What the evidence of an input says: grid(1/255), or that it had to be rounded first."""
        return arithmetic_of(self) if self.holds(x) else f"{arithmetic_of(self)}{ROUNDED}"

    # --- noise ---

    def fill(
        self,
        out: torch.Tensor,
        x: torch.Tensor,
        law: Law,
        mean: torch.Tensor,
        scale: Scale,
        rngs: Sequence[torch.Generator],
    ) -> None:
        """Fill blocks ``out`` (blocks, n, *event) with (k + round((μ + Σε)/step))·step, each block from its generator.

        That is rounded to the input's precision, and then to that of ``out`` where it has another one.
        """
        dim, k, step = x.numel(), self.integers(x), self.steps(x.device)
        offset = mean.detach().double().expand(x.shape).reshape(-1) if mean.ndim else mean.detach().double()
        rows: list[torch.Tensor] = []
        if scale.elementwise:
            unit = torch.full((1, dim), law.scale, dtype=torch.float64, device=x.device)
            factor = scale.apply_bounded(unit)[0] / step
            rows = [row.expand(dim) for row in (factor, offset / step, k, step)]
            if x.is_cuda and law.fusible and out.shape[:2].numel() > 1:
                return _fill_fused(out, x.dtype, law, rows, rngs)
        flat = _flat(out, x.dtype)
        for block, rng in zip(flat, rngs, strict=True):
            if scale.elementwise:
                _put(block, law.unit_parts(_uniform(law, len(block), dim, rng), dim), rows)
            else:
                z = unit_draws(law, len(block), dim, rng).mul_(law.scale)
                block.copy_(scale.apply_bounded(z).add_(offset).div_(step).round_().add_(k).mul_(step))
        _return(out, flat)

    def error(self, law: Law, scale: Scale, mean: torch.Tensor, dim: int) -> float:
        """τ: the total variation between what ``fill`` draws and ideal rounded noise is at most this; see the proof."""
        known = self._known.setdefault(scale, {})
        if (law, dim) not in known:
            known[law, dim] = self.error_of(law, scale.row_bounds(dim), torch.zeros((), dtype=torch.float64), dim)
        if not bool(mean.any()):
            return known[law, dim]
        return self.error_of(law, scale.row_bounds(dim), mean.detach().double().abs().max().cpu(), dim)

    def error_of(self, law: Law, rows: RowBounds, mean: torch.Tensor, dim: int) -> float:
        """τ from bounds on the rows of Σ and an offset, in float64 on the host."""
        drawn = law.draw_error(dim, rows.width)
        lengths, moved = self._in_steps(law.scale * rows.lengths, dim), self._in_steps(mean.abs(), dim)
        reach = drawn.reach * math.sqrt(rows.width) * float(lengths.max()) + float(moved.max())
        if not reach <= LARGEST:
            raise InvalidInput(f"the noise reaches {reach:.3g} steps, too many to be added exactly: use a larger step.")
        peaks = drawn.peak * (1 + 2e-8) / lengths.clamp_min(1e-300)
        near = 2 * float((self.row_errors(law, rows, mean, dim) * (1 + peaks)).sum())
        crossed = 2 * CELL * float((drawn.travel * lengths * (1 + 2 * peaks) + drawn.pieces).sum())
        return (near + crossed) * (1 + 2.0**-20) + drawn.failure + STATISTICS

    def row_errors(self, law: Law, rows: RowBounds, mean: torch.Tensor, dim: int) -> torch.Tensor:
        """How far each entry of (μ + Σε)/step, as computed from some uniform numbers, may be from the exact one (d,).

        Outside the event of probability ``failure`` that the law's ``draw_error`` names.
        """
        drawn = law.draw_error(dim, rows.width)
        size = min(drawn.size, drawn.reach * math.sqrt(rows.width))  # of the entries of z that a row meets
        lengths, lost = self._in_steps(law.scale * rows.lengths, dim), self._in_steps(law.scale * rows.lost, dim)
        return ((drawn.drift + 5 * UNIT) * lengths + UNIT * lost) * size + 3 * UNIT * self._in_steps(mean.abs(), dim)

    def _in_steps(self, values: torch.Tensor, dim: int) -> torch.Tensor:
        """Values in steps (d,) on the host, a little too large rather than too small."""
        return (values.cpu().double() * (1 + 1e-8) / self.steps(torch.device("cpu"))).expand(dim)

    def checked(self, error: float) -> float:
        """τ, if it leaves something to certify."""
        if not error <= MOST:
            raise InvalidInput(
                f"noise on the grid of step {self.name} may differ from ideal noise with probability {error:.2g} per draw, "
                f"too much to certify anything: use a larger scale, a larger step, or a simpler Σ (or --arithmetic real)."
            )
        return error

    # --- regions ---

    def region(self, region: Region, x: torch.Tensor) -> Region | None:
        """The region that holds around x (1, *event) when ``region`` holds around its rounded self; None if none is left.

        For an input on the grid it is the same one, its radius rounded down. Another input, and whatever comes in its place,
        is rounded first, so that both roundings are taken from the radius; then it holds for changes of any kind.
        """
        radius = region.radius * ROUNDED_DOWN - self.payment(region, x)
        return Region.sharing(region.scale, radius, region.norm, region.shape) if radius > 0 else None

    def payment(self, region: Region, x: torch.Tensor) -> float:
        """What rounding takes from a radius: ‖Σ⁻¹(x − round x)‖ + ‖Σ⁻¹diag(step/2)‖_(∞→p); 0 on the grid."""
        if self.holds(x):
            return 0.0
        step, where = self.steps(x.device), _device_of(region.scale, x.device)
        moved = x.detach().double().reshape(1, -1) - self.integers(x) * step
        there = float(region.size(moved.to(where))[0])
        # What dividing by the step may be off by, for x and for what comes in its place.
        half = step / 2 + DIVIDED * (x.detach().double().abs().max() + step.max())
        if region.scale.elementwise and step.ndim:
            others = float(region.size(half[None].to(where))[0])
        else:
            others = float(half.max()) * region.scale.inverse_norm(math.inf, region.norm, x.numel())
        return (there + others) * (1 + 2.0**-40)


def _device_of(scale: Scale, default: torch.device) -> torch.device:
    return next((tensor.device for tensor in scale.tensors().values()), default)


def unit_draws(law: Law, n: int, dim: int, rng: torch.Generator) -> torch.Tensor:
    """Draw n times from the law at λ = 1 in float64, shape (n, dim), with the error that ``law.draw_error`` states."""
    return law.units(_uniform(law, n, dim, rng), dim)


def _uniform(law: Law, n: int, dim: int, rng: torch.Generator) -> torch.Tensor:
    return torch.empty(n, law.uniforms(dim), dtype=torch.float64, device=rng.device).uniform_(generator=rng)


def _flat(out: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Memory (blocks, n, d) for what is to stand in ``out`` (blocks, n, *event): its own, where it is in order."""
    flat = (*out.shape[:2], out.shape[2:].numel())
    return out.view(flat) if out.is_contiguous() and out.dtype == dtype else out.new_empty(flat, dtype=dtype)


def _return(out: torch.Tensor, flat: torch.Tensor) -> None:
    """Bring to ``out`` what was made in such memory."""
    if flat.data_ptr() != out.data_ptr():
        out.copy_(flat.view(out.shape))


def _put(block: torch.Tensor, parts: Sequence[torch.Tensor], rows: Sequence[torch.Tensor]) -> None:
    """Fill a block (n, d) with (k + round(factor∘z + offset))·step, z being these parts side by side."""
    start = 0
    for z in parts:
        here = slice(start, start + z.shape[-1])
        factor, offset, k, step = (row[here] for row in rows)
        block[:, here] = z.mul_(factor).add_(offset).round_().add_(k).mul_(step)
        start += z.shape[-1]


# --- on a GPU all that follows the draw is one pass, and another that brings it into the network's form ---

_FUSED: dict[type[Law], Pass] = {}


def _fill_fused(
    out: torch.Tensor, dtype: torch.dtype, law: Law, rows: Sequence[torch.Tensor], rngs: Sequence[torch.Generator]
) -> None:
    """Fill blocks (blocks, n, *event) by compiled passes over the uniform numbers."""
    kind, (blocks, n, dim) = type(law), (*out.shape[:2], out.shape[2:].numel())
    if kind not in _FUSED:
        _FUSED[kind] = Pass(_pass_of(kind(scale=1.0)))
    uniform = torch.empty(blocks, n, law.uniforms(dim), dtype=torch.float64, device=out.device)
    for block, rng in zip(uniform, rngs, strict=True):
        block.uniform_(generator=rng)
    parts = _FUSED[kind](uniform.flatten(0, 1), *rows, dim, dtype, out.dtype)
    _SIDE_BY_SIDE(out.flatten(0, 1), *parts)


def _side_by_side(out: torch.Tensor, *parts: torch.Tensor) -> None:
    out.copy_(torch.cat(parts, -1).view(out.shape))


_SIDE_BY_SIDE = Pass(_side_by_side)


def _pass_of(law: Law) -> Callable[..., list[torch.Tensor]]:
    """Each part by itself, and not side by side: then what they have in common is computed once."""

    def one_pass(
        uniform: torch.Tensor,
        factor: torch.Tensor,
        offset: torch.Tensor,
        k: torch.Tensor,
        step: torch.Tensor,
        dim: int,
        inputs: torch.dtype,
        dtype: torch.dtype,
    ) -> list[torch.Tensor]:
        made, start = [], 0
        for z in law.unit_parts(uniform, dim):
            end = start + z.shape[-1]
            v = (z * factor[start:end] + offset[start:end]).round()
            made.append(((v + k[start:end]) * step[start:end]).to(inputs).to(dtype))
            start = end
        return made

    return one_pass


# --- the word in the evidence ---


def arithmetic_of(grid: Grid | None) -> str:
    """The name of a pipeline's arithmetic in runs and evidence: real, or grid(1/255)."""
    return REAL if grid is None else f"grid({grid.name})"


OWN_STEPS = "the steps given"  # one step per entry, of which a record has a hash


def step_of(arithmetic: str) -> float | None:
    """The step that an evidence's ``arithmetic`` names; None for real. One step per entry cannot be told from its hash."""
    if arithmetic == REAL:
        return None
    if match := re.fullmatch(r"grid\(1/(\d+)\)(, rounded)?", arithmetic):
        return 1 / int(match[1])
    try:
        match = re.fullmatch(r"grid\((.*)\)(, rounded)?", arithmetic)
        if match is None or re.fullmatch(r"[0-9a-f]{12}", match[1]):
            raise ValueError
        return float(match[1])
    except ValueError as error:
        raise InvalidInput(
            f"this certificate's arithmetic is {arithmetic}, which does not state its steps: check it with the pipeline that "
            f"made it."
        ) from error


def step_name(arithmetic: str) -> str:
    """The step that an evidence's ``arithmetic`` names, as it is written there; "" for real."""
    if arithmetic == REAL:
        return ""
    step = arithmetic.removesuffix(ROUNDED).removeprefix("grid(").removesuffix(")")
    return OWN_STEPS if re.fullmatch(r"[0-9a-f]{12}", step) else step


def arithmetic_name(arithmetic: str) -> str:
    """An evidence's ``arithmetic`` as it is shown: without the hash that stands for one step per entry."""
    return "grid" if step_name(arithmetic) == OWN_STEPS else arithmetic


def changes_in_words(arithmetic: str) -> str:
    """For which changes of an input a certificate of this arithmetic holds, as the end of a sentence; "" for real."""
    if arithmetic == REAL:
        return ""
    steps = step_name(arithmetic)
    if arithmetic.endswith(ROUNDED):
        return f"for any change, inputs being rounded to whole multiples of {steps}"
    return f"for changes by whole multiples of {steps}"
