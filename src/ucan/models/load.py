"""A classifier from a line of text: what the command line's --model means."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from ucan.errors import ModelError
from ucan.models.build import BUILT_IN, build_model
from ucan.models.foreign import ExportedModel, OnnxModel
from ucan.models.normalise import Statistics
from ucan.models.weights import load_weights

Model = Callable[[torch.Tensor], Any]


def load_model(
    spec: str,
    weights: str | Path | None = None,
    num_classes: int | None = None,
    device: str | torch.device = "cpu",
    event_shape: Sequence[int] | None = None,
    normalise: str | Statistics = "auto",
) -> Model:
    """The classifier that ``spec`` names, on the device; a module comes in evaluation mode.

    ``spec`` is one of
    - a built-in model's name, made for ``event_shape`` and ``num_classes`` with ``normalise`` as in build_model;
    - ``package.module:attribute``, importable also from the current directory: a module as it is, a module's class
      called without arguments, or any other callable, which then is the classifier itself;
    - a ``.pt2`` file of torch.export, or an ``.onnx`` file.

    ``weights`` is a file for load_weights; the last kind carries its own.
    """
    place = _check_device(device)
    kind = Path(spec).suffix.lower()
    if spec in BUILT_IN:
        model: Any = build_model(spec, event_shape, num_classes, normalise)
    elif kind in (".pt2", ".onnx"):
        if weights is not None:
            raise ModelError(f"{spec} carries its own weights: leave out {weights}.")
        if not Path(spec).is_file():
            raise ModelError(f"there is no model file {spec}: check the path.")
        return ExportedModel(Path(spec), place) if kind == ".pt2" else OnnxModel(Path(spec), place)
    elif ":" in spec:
        model = _import_model(spec)
    else:
        raise ModelError(
            f"{spec!r} names no model: give package.module:attribute, a .pt2 or .onnx file, or one of "
            f"{', '.join(BUILT_IN)}."
        )
    if not isinstance(model, nn.Module):
        if weights is not None:
            raise ModelError(
                f"{spec} is no torch.nn.Module, so {weights} cannot be put into it: leave the weights out."
            )
        return model
    if weights is not None:
        load_weights(model, weights)
    return _ready(model, place)


def _check_device(device: str | torch.device) -> torch.device:
    try:
        place = torch.device(device)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ModelError(f"device {str(device)!r} cannot be used ({error}): choose cpu, or one you have.") from error
    return place


def _ready(model: nn.Module, device: torch.device) -> Model:
    """The module on the device and in evaluation mode; what torch.export made has no modes, so it is called as it is."""
    model = model.to(device)
    try:
        return model.eval()
    except NotImplementedError:
        return lambda batch: model(batch)


def _import_model(spec: str) -> Any:
    """What ``package.module:attribute`` stands for, as something to call on a batch."""
    module_name, _, attribute = spec.partition(":")
    if not module_name or not attribute:
        raise ModelError(f"{spec!r} is incomplete: write package.module:attribute.")
    if module_name.endswith(".py") or "/" in module_name or "\\" in module_name:
        raise ModelError(
            f"{spec!r} is a path: write package.module:attribute, such as {Path(module_name).stem}:{attribute}, from the "
            "folder that holds it."
        )
    found: Any = _import_module(module_name)
    for name in attribute.split("."):
        if not hasattr(found, name):
            raise ModelError(f"{module_name} has no {attribute!r}; it has {_public_names(found)}.")
        found = getattr(found, name)
    if isinstance(found, type):
        return _instantiate(found, spec)
    if not callable(found):
        raise ModelError(
            f"{spec} is a {type(found).__name__}, which cannot be called on a batch: name a torch.nn.Module or a function."
        )
    return found


def _import_module(name: str) -> ModuleType:
    """Import from the current directory as well; it stays importable, since a model may import more when it runs."""
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise ModelError(
                f"there is no module {error.name!r}: install it, or run from the folder that holds it ({here} was "
                "searched)."
            ) from error
        raise ModelError(f"{name} cannot be imported: {error}. Install what it needs.") from error
    except (Exception, SystemExit) as error:
        raise ModelError(f"{name} cannot be imported: {type(error).__name__}: {error}. Correct it first.") from error


def _instantiate(kind: type, spec: str) -> nn.Module:
    if not issubclass(kind, nn.Module):
        raise ModelError(f"{spec} is a class, but no torch.nn.Module: name an instance of it, or a function.")
    try:
        return kind()
    except Exception as error:
        raise ModelError(
            f"{spec} cannot be made without arguments ({error}): name an instance, such as net = {kind.__name__}(…)."
        ) from error


def _public_names(owner: object, limit: int = 8) -> str:
    own = getattr(owner, "__name__", None)
    names = [n for n, value in vars(owner).items() if not n.startswith("_") and not isinstance(value, ModuleType)]
    # What the module defines itself comes before what it imports.
    names.sort(key=lambda n: getattr(vars(owner)[n], "__module__", own) != own)
    return (", ".join(names[:limit]) + (", …" if len(names) > limit else "")) or "nothing public"
