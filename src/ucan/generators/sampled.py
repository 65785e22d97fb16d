"""μ and Σ as noise is drawn with them: of the inputs' precision, of their shape, and still the same numbers or not."""

from __future__ import annotations

import math
import weakref

import torch

from ucan.certificate import fits
from ucan.errors import InvalidInput
from ucan.scales import Scale

# Σ rounded to another precision, cached as long as it exists: a matrix is checked and inverted once.
_SAMPLED: weakref.WeakKeyDictionary[Scale, dict[torch.dtype, Scale]] = weakref.WeakKeyDictionary()


def as_sampled(scale: Scale, dtype: torch.dtype) -> Scale:
    """A full Σ as noise is drawn with it, rounded to the inputs' precision: that one is certified, no other.

    Of a badly conditioned matrix rounding can change the smallest scales by any factor; of entries that each stand for
    themselves it changes none by more than its last digit.
    """
    wide = {n: t for n, t in scale.tensors().items() if torch.promote_types(t.dtype, dtype) != dtype}
    if scale.elementwise or not wide:
        return scale
    rounded = {n: t.to(dtype) if n in wide else t for n, t in scale.tensors().items()}
    known = _SAMPLED.setdefault(scale, {})
    if dtype not in known or not all(same(t, rounded[n]) for n, t in known[dtype].tensors().items()):
        made = scale.with_tensors(rounded)
        made.check()
        known[dtype] = made.copied()
    return known[dtype]


def check_fits(name: str, x: torch.Tensor, mean: torch.Tensor, scale: Scale) -> None:
    """Refuse, before any work, μ and Σ that do not fit inputs like x (1, *event)."""
    scale.check_dim(math.prod(x.shape[1:]))
    if not fits(mean.shape, x.shape):
        raise InvalidInput(f"{name}: μ of shape {tuple(mean.shape)} does not fit inputs of {tuple(x.shape[1:])}.")


def parts(mean: torch.Tensor, scale: Scale) -> dict[str, torch.Tensor]:
    """The tensors that μ and Σ are made of, by name."""
    return {"μ": mean, **scale.content()}


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors hold the same numbers, in the same place and precision."""
    return a.device == b.device and a.dtype == b.dtype and torch.equal(a, b)
