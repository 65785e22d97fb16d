"""Load a classifier from a text, as given to --model."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from ucan.errors import ModelError
from ucan.models.build import BUILT_IN, build_model
from ucan.models.factory import made_with, split_call
from ucan.models.files import SUFFIXES, is_script, load_estimator, load_script
from ucan.models.foreign import ExportedModel, OnnxModel
from ucan.models.normalise import Statistics
from ucan.models.weights import load_weights
from ucan.places import import_from_here

Model = Callable[[torch.Tensor], Any]


def load_model(
    spec: str,
    weights: str | Path | None = None,
    num_classes: int | None = None,
    device: str | torch.device = "cpu",
    event_shape: Sequence[int] | None = None,
    normalise: str | Statistics = "auto",
    trust: bool = False,
) -> Model:
    """Load the classifier that ``spec`` names onto the device; a module is put in evaluation mode.

    ``spec`` is one of
    - a built-in model's name, made for ``event_shape`` and ``num_classes`` with ``normalise`` as in build_model;
    - ``package.module:attribute``, importable also from the current directory: a module; a module class or a function without
      required arguments, which is called to make it; or any other callable or fitted estimator, which is the classifier
      itself; ``package.module:make(depth=20)`` calls it with these values;
    - a ``.pt2`` file of torch.export, an ``.onnx`` file, or a TorchScript program;
    - a fitted estimator: ``.skops``, XGBoost's ``.json`` and ``.ubj``, LightGBM's ``.txt``, CatBoost's ``.cbm``, and with
      ``trust`` also ``.joblib`` and ``.pkl``, which run code when they are read.

    ``weights`` is a file for load_weights; the last two kinds contain their own weights.
    """
    place = _check_device(device)
    kind = Path(spec).suffix.lower()
    if spec in BUILT_IN:
        model: Any = build_model(spec, event_shape, num_classes, normalise)
    elif kind in (".pt2", ".onnx", *SUFFIXES) or is_script(Path(spec)):
        if weights is not None:
            raise ModelError(f"{spec} contains its own weights: leave out {weights}.")
        return _from_file(Path(spec), place, trust)
    elif ":" in spec:
        model = _import_model(spec)
    else:
        raise ModelError(_no_model(spec))
    if not isinstance(model, nn.Module):
        if weights is not None:
            raise ModelError(
                f"{spec} is not a torch.nn.Module, so {weights} cannot be loaded into it: leave the weights out."
            )
        function: Model = model
        return function
    if weights is not None:
        load_weights(model, weights)
    return _ready(model, place)


def _from_file(path: Path, device: torch.device, trust: bool) -> Model:
    kind = path.suffix.lower()
    if kind in (".pt2", ".onnx") and not path.is_file():
        raise ModelError(f"there is no model file {path}: check the path.")
    if kind in SUFFIXES:
        return load_estimator(path, trust)
    if kind in (".pt2", ".onnx"):
        return ExportedModel(path, device) if kind == ".pt2" else OnnxModel(path, device)
    return load_script(path, device)


def _no_model(spec: str) -> str:
    """The error message for a spec of an unknown kind."""
    kinds = (
        f"package.module:attribute, a .pt2 or .onnx file, an estimator's file ({', '.join(SUFFIXES)}), the folder of a "
        f"trained run, or one of {', '.join(BUILT_IN)}"
    )
    if Path(spec).suffix.lower() in (".pt", ".pth", ".ckpt", ".bin", ".safetensors"):
        return (
            f"{spec} may hold weights, but not the network: give the network as --model "
            f"package.module:name and this file as --weights, or write the whole model with torch.export.save (.pt2)."
        )
    if Path(spec).is_dir():
        if (Path(spec) / "checkpoint.pt").is_file():
            return f"{spec} is a `ucan train` run that is not finished: run its command again, which goes on where it stopped."
        return f"{spec} is a folder, but not of a finished `ucan train` run: give one, or {kinds}."
    return f"{spec!r} is not a model: give {kinds}."


def _check_device(device: str | torch.device) -> torch.device:
    try:
        place = torch.device(device)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ModelError(
            f"device {str(device)!r} cannot be used ({error}): choose cpu, or an available device."
        ) from error
    return place


def _ready(model: nn.Module, device: torch.device) -> Model:
    """The module on the device and in evaluation mode; a module from torch.export has no modes and is used unchanged."""
    model = model.to(device)
    try:
        return model.eval()
    except NotImplementedError:
        return lambda batch: model(batch)


def _import_model(spec: str) -> Any:
    """Import ``package.module:attribute``: a callable on batches, or a fitted estimator."""
    named, call = split_call(spec)
    module_name, _, attribute = named.partition(":")
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
            raise ModelError(f"{module_name} has no {attribute!r}; it has {_public_names(found, name)}.")
        found = getattr(found, name)
    if call is not None:
        return made_with(found, call, spec)
    if isinstance(found, type):
        return _instantiate(found, spec)
    if not callable(found):
        if callable(getattr(found, "predict", None)):  # what it is, those who use it find out
            return found
        raise ModelError(
            f"{spec} is a {type(found).__name__}, which cannot be called on a batch: give a torch.nn.Module or a function."
        )
    return _made_by(found, spec) if inspect.isfunction(found) and _needs_nothing(found) else found


def _import_module(name: str) -> ModuleType:
    """Import a user's module; the error says what is wrong with it."""
    try:
        return import_from_here(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise ModelError(
                f"there is no module {error.name!r}: install it, or run from the folder that holds it ({Path.cwd()} was "
                "searched; with --trust, the directory that a run was started in is, too)."
            ) from error
        raise ModelError(f"{name} cannot be imported: {error}. Install what it needs.") from error
    except (Exception, SystemExit) as error:
        raise ModelError(f"{name} cannot be imported: {type(error).__name__}: {error}. Correct it first.") from error


def _instantiate(kind: type, spec: str) -> nn.Module:
    if not issubclass(kind, nn.Module):
        raise ModelError(f"{spec} is a class, but not a torch.nn.Module: give an instance of it, or a function.")
    try:
        return kind()
    except (Exception, SystemExit) as error:
        raise ModelError(
            f"{spec} cannot be made without arguments ({error}): give an instance, such as net = {kind.__name__}(…)."
        ) from error


def _needs_nothing(function: Callable[..., Any]) -> bool:
    """Whether a function can be called without arguments; a function on batches cannot."""
    parameters = inspect.signature(function).parameters.values()
    return all(
        p.kind is p.VAR_KEYWORD or (p.default is not p.empty and p.kind is not p.VAR_POSITIONAL) for p in parameters
    )


def _made_by(function: Callable[..., Any], spec: str) -> Any:
    """Call a function without required arguments to make the model."""
    try:
        made = function()
    except (Exception, SystemExit) as error:
        raise ModelError(
            f"{spec} was called to make the model, and failed: {type(error).__name__}: {error}."
        ) from error
    if isinstance(made, type) or not (callable(made) or callable(getattr(made, "predict", None))):
        raise ModelError(
            f"{spec} has no required argument, so it was called to make the model, but it returned a {type(made).__name__}: "
            f"give a function that takes a batch, or one that returns a torch.nn.Module."
        )
    return made


def _public_names(owner: object, sought: str, limit: int = 8) -> str:
    """Suggestions: similar names first, then the module's own names, then its imports."""
    own = getattr(owner, "__name__", None)
    names = [n for n, value in vars(owner).items() if not n.startswith("_") and not isinstance(value, ModuleType)]
    similar = get_close_matches(sought, names, limit, 0.7)
    rest = sorted(set(names) - set(similar), key=names.index)
    names = similar + sorted(rest, key=lambda n: getattr(vars(owner)[n], "__module__", own) != own)
    return (", ".join(names[:limit]) + (", …" if len(names) > limit else "")) or "nothing public"
