"""Adversarial Robustness Toolbox: the smoothed classifier as its estimator, so that its attacks run against it."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from ucan.certificate import Abstention, Certificate
from ucan.differentiable import Differentiable
from ucan.errors import InvalidInput, MissingExtra
from ucan.smoothed import SmoothedClassifier

try:
    from art.estimators.classification import PyTorchClassifier
except ImportError as error:
    raise MissingExtra("this needs the Adversarial Robustness Toolbox: pip install 'ucan[art]'.") from error


class ArtClassifier(PyTorchClassifier):  # type: ignore[misc]
    """A smoothed classifier g for ART's attacks and metrics.

    ``predict`` gives the shares of votes, so that an attack succeeds only if g's own majority changes. ``loss_gradient`` and
    ``class_gradient`` are those of ``ucan.Differentiable(g)``, the mean of the gradients over noisy copies. ``certify`` gives
    UCAN's certificates, as records.

    Args:
        g: the smoothed classifier; gradients need a model that gives logits.
        input_shape: the shape of one input.
        clip_values: the least and the largest value that an attack may use.
        n: votes for each input in ``predict``.
        draws: noisy copies behind each gradient.
        seed: the seed of votes and gradients; None draws fresh noise for each gradient, and the votes have seed 0.
    """

    estimator_params: ClassVar[list[str]] = [*PyTorchClassifier.estimator_params, "g", "n", "draws", "seed"]

    def __init__(
        self,
        g: SmoothedClassifier,
        input_shape: tuple[int, ...],
        clip_values: tuple[float, float] | None = (0.0, 1.0),
        n: int = 100,
        draws: int = 16,
        seed: int | None = None,
    ) -> None:
        self.g, self.n, self.draws, self.seed = g, n, draws, seed
        parameter = next(iter(g.f.model.parameters()), None) if isinstance(g.f.model, nn.Module) else None
        super().__init__(
            Differentiable(g, draws, seed).eval(),
            nn.CrossEntropyLoss(),  # of log-probabilities: their negative logarithm at the label
            input_shape,
            g.f.num_classes,
            clip_values=clip_values,
            device_type="gpu" if parameter is not None and parameter.is_cuda else "cpu",
        )

    def predict(self, x: np.ndarray, batch_size: int = 128, training_mode: bool = False, **_: Any) -> np.ndarray:
        """The shares of n votes for inputs x, (inputs, classes).

        ``batch_size`` and ``training_mode`` are ART's and change nothing: the votes choose their batches, and there is no
        training mode.
        """
        outcomes = self.g.predict(self._tensor(x), n=self.n, seed=self.seed or 0)
        counts = np.array([outcome.evidence.counts for outcome in outcomes], dtype=np.float32)
        return counts / self.n

    def certify(self, x: np.ndarray, n: int = 10_000, **options: Any) -> list[Certificate | Abstention]:
        """A certificate or an abstention for each input; ``options`` are those of ``SmoothedClassifier.certify``."""
        return self.g.certify(self._tensor(x), n=n, **options)

    def fit(self, *_: Any, **__: Any) -> None:
        """Refused: a smoothed classifier is trained before it is smoothed."""
        raise InvalidInput("an ArtClassifier is not trained: train the model (`ucan train`, or your own loop) before.")

    def _tensor(self, x: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32)).to(self.device)
