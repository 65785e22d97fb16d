"""Weights from files, without executing what a file may contain."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ucan.errors import ModelError, first_line
from ucan.models.build import BuiltIn

# The keys under which checkpoints store weights, next to the state of an optimiser.
WRAPPERS = ("state_dict", "model_state_dict", "model")

# The name by which torch.compile holds the model in its own.
COMPILED = "_orig_mod"


def read_weights(path: str | Path) -> dict[str, torch.Tensor]:
    """The tensors in a .safetensors file, or in a PyTorch file (alone, or under 'state_dict'), by name, on the CPU.

    The keys "model_state_dict" and "model" of other checkpoints are recognised as well.
    """
    path = Path(path)
    if not path.is_file():
        raise ModelError(f"there is no weights file {path}: check the path.")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            content: Any = load_file(path)
        else:
            with warnings.catch_warnings():
                warnings.filterwarnings(
                    "ignore", "'torch.load' received a zip file", UserWarning
                )  # it is refused below
                content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged files make either reader raise almost anything
        # PyTorch's message suggests an unsafe way to load the file; it is not repeated.
        reason = f" ({first_line(error)})" if path.suffix == ".safetensors" or isinstance(error, OSError) else ""
        raise ModelError(
            f"{path} cannot be read as weights{reason}: give .safetensors, or a PyTorch file that holds tensors only, such "
            "as torch.save(model.state_dict(), path). A file with a whole pickled model is not opened, since that could run "
            "code."
        ) from error
    if isinstance(content, dict):
        content = next((content[key] for key in WRAPPERS if isinstance(content.get(key), dict)), content)
    if not isinstance(content, dict) or not content or not all(isinstance(v, torch.Tensor) for v in content.values()):
        keys = f" with {_few(map(str, content))}" if isinstance(content, dict) else ""
        raise ModelError(
            f"{path} holds a {type(content).__name__}{keys}, not weights by name: save model.state_dict() instead."
        )
    return content


def load_weights(model: nn.Module, path: str | Path) -> None:
    """Load a file's weights into the model. Names and shapes must match exactly.

    What wrappers add to the names is removed: "module." (DataParallel), "_orig_mod." (torch.compile), and another first part
    of all names that the model does not have ("model." of a Lightning module). From the weights of a training run, which hold
    classifier and generator, the classifier's are used. A built-in model also accepts the weights of its network alone, and
    keeps its own normalisation.
    """
    given = read_weights(path)
    target: nn.Module = getattr(model, COMPILED, model)  # a compiled model has the weights of the model in it
    given = _unwrapped(given, target)
    if _of_a_run(given) and not any(k.startswith("classifier.") for k in target.state_dict()):
        given = classifier_part(given)
    if isinstance(target, BuiltIn) and not any(key.startswith("network.") for key in given):
        target = target.network
    _check_fit(target, given, Path(path))
    target.load_state_dict(given, strict=False)


def _unwrapped(given: dict[str, torch.Tensor], model: nn.Module) -> dict[str, torch.Tensor]:
    """The weights by the names that the model has, without those of what was around it when they were saved; as they are given
    if they have nothing in common with the model's.
    """
    own = {
        name
        for each in ([model, model.network] if isinstance(model, BuiltIn) else [model])
        for name in each.state_dict()
    }
    kept = any(COMPILED in name for name in own)
    found = {name if kept else name.replace(f"{COMPILED}.", ""): value for name, value in given.items()}
    while not own & found.keys() and all("." in name for name in found):
        if len({name.partition(".")[0] for name in found}) > 1 or _of_a_run(found):
            break
        found = {name.partition(".")[2]: value for name, value in found.items()}
    return found if own & found.keys() or _of_a_run(found) else given


def classifier_part(given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The classifier's own among the weights of a training run."""
    return {k.removeprefix("classifier."): v for k, v in given.items() if k.startswith("classifier.")}


def _of_a_run(given: dict[str, torch.Tensor]) -> bool:
    return {key.partition(".")[0] for key in given} <= {"classifier", "generator", "budget"}


def _check_fit(model: nn.Module, given: dict[str, torch.Tensor], path: Path) -> None:
    wanted = {key: value for key, value in model.state_dict().items() if isinstance(value, torch.Tensor)}
    # A counter that is only used in training; files from before 2018 lack it.
    missing = [key for key in wanted if key not in given and not key.endswith("num_batches_tracked")]
    unexpected = [key for key in given if key not in wanted]
    misshaped = [
        f"{key} {tuple(given[key].shape)} instead of {tuple(wanted[key].shape)}"
        for key in wanted
        if key in given and given[key].shape != wanted[key].shape
    ]
    problems = [
        f"{len(keys)} {what} ({_few(keys)})"
        for what, keys in (("missing", missing), ("unexpected", unexpected), ("misshaped", misshaped))
        if keys
    ]
    if problems:
        raise ModelError(
            f"{path} does not fit the model: {'; '.join(problems)}. Choose the architecture, the channels and the number "
            "of classes that these weights were trained with."
        )


def _few(keys: Iterable[str], limit: int = 3) -> str:
    keys = list(keys)
    return ", ".join(keys[:limit]) + (", …" if len(keys) > limit else "")
