"""foolbox: the smoothed classifier as its model, so that its attacks run against it."""

from __future__ import annotations

import warnings
from typing import Any

from ucan.differentiable import Differentiable
from ucan.errors import MissingExtra
from ucan.smoothed import SmoothedClassifier

try:
    with warnings.catch_warnings():  # foolbox 3.3 imports a name that SciPy has moved
        warnings.simplefilter("ignore", DeprecationWarning)
        from foolbox.models.pytorch import PyTorchModel
except ImportError as error:
    raise MissingExtra("this needs foolbox: pip install 'ucan[foolbox]'.") from error


def foolbox_model(
    g: SmoothedClassifier, bounds: tuple[float, float] = (0.0, 1.0), draws: int = 16, seed: int | None = None
) -> Any:
    """The soft smoothed classifier of g (``ucan.Differentiable``) as foolbox's model.

    foolbox decides by its outputs whether an attack succeeded, which is an estimate from few draws: ask
    ``ucan.neighbours.attacked.attacked`` what g itself answers. Its attacks take gradients of noisy functions as they come;
    ``seed`` gives them one fixed function instead.

    Args:
        g: the smoothed classifier; its model must give logits.
        bounds: the least and the largest value of an input.
        draws: noisy copies per input and call.
        seed: None draws fresh noise in every call.
    """
    soft = Differentiable(g, draws, seed).eval()
    weights = next(soft.parameters(), None)
    return PyTorchModel(soft, bounds=bounds, device="cpu" if weights is None else weights.device)
