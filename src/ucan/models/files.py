"""Estimators and TorchScript from files. A pickle can run code when it is read, so it is never read by default."""

from __future__ import annotations

import hashlib
import json
import pickle
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ucan.errors import MissingExtra, ModelError, first_line
from ucan.estimators import Estimator, as_estimator

PICKLES = (".joblib", ".pkl", ".pickle")
SUFFIXES = (*PICKLES, ".skops", ".ubj", ".json", ".txt", ".cbm")
SCRIPTS = (".ts", ".torchscript", ".jit")


def load_estimator(path: Path, trust: bool = False) -> Estimator:
    """Load a fitted estimator from a file; pickles only with ``trust``, since they can run code."""
    if not path.is_file():
        raise ModelError(f"there is no model file {path}: check the path.")
    kind = path.suffix.lower()
    if kind in PICKLES and not trust:
        raise ModelError(
            f"{path} is a pickle, and reading a pickle can run any code. If you trust its author, add --trust (trust=True in "
            f"Python). Skops files and the native formats of boosters do not need it."
        )
    readers: dict[str, Callable[[Path], Any]] = {
        ".skops": lambda file: _read_skops(file, trust),
        ".ubj": _read_xgboost,
        ".json": _read_xgboost,
        ".txt": _read_lightgbm,
        ".cbm": _read_catboost,
    }
    try:
        model = readers.get(kind, _read_pickle)(path)
    except (MissingExtra, ModelError):
        raise
    except Exception as error:  # each library raises errors of its own
        raise ModelError(f"{path} cannot be read as a model: {first_line(error)}") from error
    found = as_estimator(model, hashlib.sha256(path.read_bytes()).hexdigest())
    if found is None:
        raise ModelError(f"{path} holds a {type(model).__name__}, which has no predict: give a fitted classifier.")
    return found


def _read_pickle(path: Path) -> Any:
    if path.suffix.lower() == ".joblib":
        return _package("joblib", path).load(path)
    with path.open("rb") as file:
        return pickle.load(file)


def _read_skops(path: Path, trust: bool) -> Any:
    io = _package("skops.io", path)
    unknown = io.get_untrusted_types(file=path)
    if unknown and not trust:
        raise ModelError(
            f"{path} holds types that skops does not know to be safe ({', '.join(map(str, unknown[:3]))}). If you trust its "
            f"author, add --trust (trust=True in Python)."
        )
    return io.load(path, trusted=unknown)


def _read_xgboost(path: Path) -> Any:
    if path.suffix.lower() == ".json" and "learner" not in json.loads(path.read_text(encoding="utf-8")):
        raise ModelError(f"{path} is not an XGBoost model: save one with model.save_model.")
    booster = _package("xgboost", path).Booster()
    booster.load_model(path)
    return booster


def _read_lightgbm(path: Path) -> Any:
    with path.open(encoding="utf-8", errors="replace") as file:
        if not file.readline().startswith("tree"):
            raise ModelError(f"{path} is not a LightGBM model: save one with booster.save_model.")
    return _package("lightgbm", path).Booster(model_file=str(path))


def _read_catboost(path: Path) -> Any:
    return _package("catboost", path).CatBoostClassifier().load_model(str(path))


def _package(name: str, path: Path) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise MissingExtra(f"{path} needs {package}: pip install {package}.") from error


# --- TorchScript ---


def is_script(path: Path) -> bool:
    """Whether a file is a TorchScript program: by its suffix, or a .pt or .pth archive with code in it."""
    if path.suffix.lower() in SCRIPTS:
        return True
    if path.suffix.lower() not in (".pt", ".pth") or not path.is_file() or not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any("/code/" in name for name in archive.namelist())


def load_script(path: Path, device: torch.device) -> nn.Module:
    """A TorchScript program as a module, in evaluation mode."""
    if not path.is_file():
        raise ModelError(f"there is no model file {path}: check the path.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            found: nn.Module = torch.jit.load(str(path), map_location=device).eval()
            return found
    except (RuntimeError, ValueError, OSError) as error:
        raise ModelError(f"{path} cannot be read as TorchScript ({first_line(error)}).") from error
