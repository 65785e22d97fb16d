"""Σ: the shapes that noise can take."""

from __future__ import annotations

from typing import Any

import torch

from ucan.errors import InvalidInput
from ucan.scales.base import Scale
from ucan.scales.basis import Basis
from ucan.scales.dct import DCT
from ucan.scales.diagonal import Diagonal, Scalar
from ucan.scales.matrix import BlockDiagonal, Dense, LowRank

__all__ = ["DCT", "Basis", "BlockDiagonal", "Dense", "Diagonal", "LowRank", "Scalar", "Scale", "as_scale"]


def as_scale(value: Any) -> Scale:
    """A float as a scalar Σ, a tensor or array of the input's shape as a diagonal one; a Σ as it is."""
    if isinstance(value, Scale):
        return value
    if isinstance(value, bool | str) or value is None:
        raise InvalidInput(f"a scale is a number, a tensor of the input's shape or one of ucan.scales, not {value!r}.")
    if isinstance(value, int | float):
        return Scalar(float(value))
    try:
        tensor = torch.as_tensor(value)
    except (RuntimeError, TypeError, ValueError) as error:
        raise InvalidInput(
            f"a scale is a number, a tensor of the input's shape or one of ucan.scales, not a {type(value).__name__}."
        ) from error
    return Scalar(float(tensor.detach())) if tensor.ndim == 0 else Diagonal(tensor)
