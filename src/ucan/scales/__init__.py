"""Σ: the shapes that noise can take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch

from ucan.catalogue import SCALES, call, parsed
from ucan.errors import InvalidInput
from ucan.scales.base import Scale
from ucan.scales.basis import Basis
from ucan.scales.dct import DCT
from ucan.scales.diagonal import Diagonal, Scalar
from ucan.scales.matrix import BlockDiagonal, Dense, LowRank
from ucan.scales.spiked import Spiked

__all__ = [
    "DCT",
    "Basis",
    "BlockDiagonal",
    "Dense",
    "Diagonal",
    "LowRank",
    "Scalar",
    "Scale",
    "Spiked",
    "as_scale",
]
OWN: dict[str, type[Scale]] = {
    kind.__name__: kind for kind in (Scalar, Diagonal, Dense, Basis, DCT, LowRank, BlockDiagonal, Spiked)
}


def as_scale(value: Any) -> Scale:
    """A float as a scalar Σ, a tensor or array of the input's shape as a diagonal one; a Σ is returned unchanged."""
    if isinstance(value, Scale):
        return value
    if isinstance(value, bool | str) or value is None:
        raise InvalidInput(
            f"a scale must be a number, a tensor of the input's shape or one of ucan.scales, got {value!r}."
        )
    if isinstance(value, int | float):
        return Scalar(float(value))
    try:
        tensor = torch.as_tensor(value)
    except (RuntimeError, TypeError, ValueError) as error:
        raise InvalidInput(
            f"a scale must be a number, a tensor of the input's shape or one of ucan.scales, got a {type(value).__name__}."
        ) from error
    return Scalar(float(tensor.detach())) if tensor.ndim == 0 else Diagonal(tensor)


def make_scale(given: str | Mapping[str, Any], shape: tuple[int, ...]) -> Scale:
    """A Σ by its name in the catalogue: ``NAME``, ``NAME(parameter=value,…)``, or a table with ``kind`` and parameters."""
    if isinstance(given, str):
        name, parameters = parsed(given)
    else:
        name, parameters = str(given.get("kind")), {key: value for key, value in given.items() if key != "kind"}
    made = call("scale", SCALES.load(name, "the scale's kind"), parameters, shape=shape, channels=shape[0])
    if not isinstance(made, Scale):
        raise InvalidInput(f"[scale] {name!r} returned a {type(made).__name__}, which is not a ucan.scales.Scale.")
    return made


def kind_name(scale: Scale) -> str:
    """The kind of a Σ as files name it: the class of one of ours, ``name@package`` of one that a package adds."""
    made = SCALES.made(type(scale), {})
    return type(scale).__name__ if made is None or made.package is None else f"{made.name}@{made.package}"


def restored(kind: str, content: Mapping[str, Any]) -> Scale:
    """A Σ from what a file holds of it: its kind, as ``kind_name`` gives it, and its tensors and numbers by name."""
    name, at, package = kind.partition("@")
    if not at:
        if kind not in OWN:
            raise InvalidInput(f"this record names a Σ of the kind {kind!r}, which this version does not know.")
        return Scalar(float(content["value"])) if kind == Scalar.__name__ else OWN[kind].of_tensors(dict(content))
    outside = SCALES.load(name, package=package)
    if not (isinstance(outside, type) and issubclass(outside, Scale)):
        raise InvalidInput(f"{name!r} of the package {package} is not a ucan.scales.Scale.")
    made = outside.__new__(outside)
    for each in fields(outside):
        value = content[each.name]
        number = isinstance(value, torch.Tensor) and str(each.type) in ("float", "int")
        object.__setattr__(made, each.name, value.item() if number else value)
    return made
