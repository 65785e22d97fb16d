"""Fitted regressors as callables on batches of numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from ucan.errors import ModelError
from ucan.fingerprint import identity


class Predicting:
    """A fitted regressor with ``predict``: maps a batch (n, *event), flattened, to numbers (n,) or (n, targets)."""

    def __init__(self, model: Any) -> None:
        self.model = model

    @property
    def weights_hash(self) -> str | None:
        """Of what it holds; None where nobody can tell."""
        return identity(self.model)

    def __call__(self, batch: torch.Tensor) -> torch.Tensor:
        """The numbers in float64."""
        rows = batch.detach().cpu().double().reshape(len(batch), -1).numpy()
        found = np.asarray(self.model.predict(rows), dtype=np.float64)
        return torch.from_numpy(np.ascontiguousarray(found)).to(batch.device)


def as_numbers(model: Any) -> Any:
    """The callable that a model is: itself, or a fitted regressor's ``predict``; a classifier is refused."""
    if isinstance(model, nn.Module | Predicting) or not callable(getattr(model, "predict", None)):
        return model
    if hasattr(model, "classes_"):
        raise ModelError(
            f"{type(model).__name__} is a classifier, and its classes are no numbers to take percentiles of: use "
            f"SmoothedClassifier, or give a regressor."
        )
    return Predicting(model)
