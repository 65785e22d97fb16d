"""Fitted estimators as classifiers: scikit-learn and whole pipelines, XGBoost, LightGBM, CatBoost, or anything with predict."""

from __future__ import annotations

import copy
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from ucan.errors import ModelError, OtherClasses, in_one_line
from ucan.fingerprint import identity

# A row that an estimator cannot answer: a vote for no class.
NO_CLASS = -1
# With these errors an estimator refuses a row; with others it is broken.
REFUSALS = (ValueError, ArithmeticError)


def label_name(value: Any) -> str:
    """A class as people write it: 1 for 1.0, the text itself, True and False."""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value)


class Estimator(ABC):
    """A fitted estimator: maps rows to class numbers. What it knows of itself: its classes, and the columns it takes.

    A row that it refuses (a logarithm of a negative number, say) is answered by no class, which is a fixed answer to that
    row and counts against every claim; an estimator that has answered nothing yet says why instead.
    """

    def __init__(
        self,
        model: Any,
        classes: Sequence[str] | None,
        num_classes: int,
        features: Sequence[str] | None = None,
        width: int | None = None,
        file_hash: str | None = None,
    ) -> None:
        self.model, self.num_classes = model, num_classes
        self.classes = None if classes is None else tuple(classes)
        self._called = None if features is None else tuple(features)
        self.features = _own(self._called)
        self.width, self._file_hash = width, file_hash
        self._has_answered = False

    @abstractmethod
    def numbers(self, rows: Any) -> np.ndarray:
        """The class number of each row of an array or a frame; may raise ValueError."""

    @property
    def weights_hash(self) -> str | None:
        """Of the file that it came from, or of what it holds; None where nobody can tell."""
        return self._file_hash or identity(self.model)

    def among(self, columns: Sequence[str]) -> Estimator:
        """The estimator for a table of these columns: names that a library could have made up are names where all are there."""
        if self._called is None or self.features is not None or not set(self._called) <= set(columns):
            return self
        named = copy.copy(self)
        named.features = self._called
        return named

    def __call__(self, batch: torch.Tensor) -> torch.Tensor:
        """Class numbers for a batch (n, *event) of numbers, flattened, in the order of its columns."""
        flat = batch.detach().cpu().double().reshape(len(batch), -1).numpy()
        return self.answers(flat if self.features is None else framed(self.features, list(flat.T))).to(batch.device)

    def answers(self, rows: Any) -> torch.Tensor:
        """Class numbers (n,) for an array or a frame; −1 for rows that the estimator refuses."""
        found = self._found(rows, 0, len(rows))
        self._has_answered = True
        return torch.from_numpy(found)

    def _found(self, rows: Any, start: int, end: int) -> np.ndarray:
        """The answers to rows start … end; those among them that are refused are found by halving."""
        part = _rows(rows, start, end)
        try:
            with np.errstate(all="ignore"):  # what noise makes of a logarithm is no news, and invalid votes are counted
                return self.numbers(part).astype(np.int64)
        except REFUSALS as error:
            if not self._has_answered:
                raise ModelError(
                    f"{type(self.model).__name__} cannot answer these rows: {in_one_line(error)}"
                ) from error
            if end - start == 1:
                return np.full(1, NO_CLASS)
            middle = (start + end) // 2
            return np.concatenate([self._found(rows, start, middle), self._found(rows, middle, end)])

    def unanswered(self, rows: Any) -> dict[int, Exception]:
        """The rows of an array or a frame that it does not answer, by their place, each with the error that says why."""
        try:
            with np.errstate(all="ignore"):
                self.numbers(rows)
        except Exception as error:  # whatever the user's model raises
            if len(rows) == 1:
                return {0: error}
            half = len(rows) // 2
            later = self.unanswered(_rows(rows, half, len(rows)))
            return self.unanswered(_rows(rows, 0, half)) | {half + place: why for place, why in later.items()}
        self._has_answered = True
        return {}

    def __getstate__(self) -> dict[str, Any]:
        """Without the mark that it has answered: that is no part of the model."""
        return {**vars(self), "_has_answered": False}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self.model).__name__}, {self.num_classes} classes)"


class Predicting(Estimator):
    """Anything with ``predict`` that answers with one of its ``classes_``, as scikit-learn has it."""

    def __init__(self, model: Any, file_hash: str | None = None) -> None:
        known = np.asarray(model.classes_)
        if known.ndim != 1 or len(known) < 2:
            raise ModelError(
                f"{type(model).__name__} has {known.size} classes of shape {known.shape}: one target is needed."
            )
        self._number = {value: i for i, value in enumerate(known.tolist())}
        width = getattr(model, "n_features_in_", None)
        names = [label_name(value) for value in known.tolist()]
        super().__init__(model, names, len(known), _feature_names(model), width, file_hash)

    def numbers(self, rows: Any) -> np.ndarray:
        """By ``predict``, which is what is deployed."""
        with warnings.catch_warnings():  # LightGBM makes up names for an array, and then misses them in the next one
            warnings.filterwarnings("ignore", "X does not have valid feature names", UserWarning)
            found = np.asarray(self.model.predict(rows)).reshape(len(rows), -1)
        if found.shape[1] != 1:
            raise ModelError(
                f"{type(self.model).__name__}.predict answers {found.shape[1]} targets: give one of one target."
            )
        return np.array([self._number.get(value, NO_CLASS) for value in found[:, 0].tolist()])


class Scoring(Estimator):
    """A booster of XGBoost or LightGBM by itself: scores (n,) of the second of two classes, or (n, k)."""

    def __init__(self, model: Any, file_hash: str | None = None) -> None:
        self.kind = type(model).__module__.partition(".")[0]
        if self.kind == "xgboost":
            features, width, num_classes = model.feature_names, model.num_features(), _xgboost_classes(model)
        else:
            features, width = model.feature_name(), model.num_feature()
            num_classes = max(2, int(model.params.get("num_class", model.num_model_per_iteration())))
        super().__init__(model, None, num_classes, features, width, file_hash)

    def numbers(self, rows: Any) -> np.ndarray:
        """The class of the largest score; of one score, whether it is above 1/2."""
        if self.kind == "xgboost":
            import xgboost

            rows = xgboost.DMatrix(rows, feature_names=None if self.features is None else list(self.features))
        scores = np.asarray(self.model.predict(rows))
        if scores.ndim == 2:
            return np.asarray(scores.argmax(1))
        return (scores > 0.5).astype(np.int64) if self.num_classes == 2 else scores.astype(np.int64)


def as_estimator(model: Any, file_hash: str | None = None) -> Estimator | None:
    """The estimator that an object is; None for a module, a function, or anything else that is no estimator."""
    if isinstance(model, Estimator):
        return model
    if isinstance(model, nn.Module | type) or not callable(getattr(model, "predict", None)):
        return None
    package = type(model).__module__.partition(".")[0]
    if package in ("xgboost", "lightgbm") and type(model).__name__ == "Booster":
        return Scoring(model, file_hash)
    name = type(model).__name__
    if not hasattr(model, "classes_"):
        if _is_regressor(model):
            raise ModelError(f"{name} is a regressor, and a certificate is about classes: give a classifier.")
        if hasattr(model, "fit"):
            raise ModelError(f"{name} is not fitted, or no classifier: it has no classes_. Call fit first.")
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return Predicting(model, file_hash)


def check_classes(model: Any, num_classes: int | None) -> None:
    """Refuse another number of classes than an estimator has: the number of a network's logits is refused in these words."""
    if isinstance(model, Estimator) and num_classes not in (None, model.num_classes):
        raise OtherClasses(
            f"the model answers with {model.num_classes} classes, but num_classes is {num_classes}: use "
            f"num_classes={model.num_classes} (on the command line --classes).",
            model.num_classes,
        )


def known_classes(model: Any) -> int | None:
    """The number of classes that a model tells: an estimator, a classifier of rows, timm's and Hugging Face's modules."""
    for found in (getattr(model, "num_classes", None), getattr(getattr(model, "config", None), "num_labels", None)):
        if isinstance(found, int) and not isinstance(found, bool) and found >= 2:
            return found
    return None


def framed(names: Sequence[str], columns: Sequence[Any]) -> Any:
    """Columns by name as estimators that know names want them."""
    try:
        import pandas
    except ImportError as error:
        raise ModelError("this model takes columns by name, which needs pandas: pip install pandas.") from error
    return pandas.DataFrame(dict(zip(names, columns, strict=True)))


def _rows(rows: Any, start: int, end: int) -> Any:
    """Rows start … end of an array or a frame."""
    return rows[start:end] if isinstance(rows, np.ndarray) else rows.iloc[start:end]


def _feature_names(model: Any) -> list[str] | None:
    for attribute in ("feature_names_in_", "feature_names_"):
        try:
            found = getattr(model, attribute)
        except Exception:  # XGBoost and CatBoost raise errors of their own where there are none
            continue
        if found is not None:
            return [str(name) for name in found]
    return None


def _own(names: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Names that someone gave; None for those that a library makes up: 0, 1, …; f0, f1, …; Column_0, Column_1, …"""
    made_up = [tuple(f"{word}{i}" for i in range(len(names or ()))) for word in ("", "f", "Column_")]
    return None if names in made_up else names


def _is_regressor(model: Any) -> bool:
    if type(model).__module__.partition(".")[0] == "sklearn":
        from sklearn.base import is_regressor

        return bool(is_regressor(model))
    return "Regressor" in type(model).__name__


def _xgboost_classes(booster: Any) -> int:
    import json

    parameters = json.loads(booster.save_config())["learner"]["learner_model_param"]
    return max(2, int(parameters["num_class"]))
