"""scikit-learn: the smoothed classifier of any classifier, as an estimator for pipelines, searches and cross-validation."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ucan.certificate import Abstention, Certificate
from ucan.data.tables import SHARE, spread_of
from ucan.errors import InvalidInput, MissingExtra
from ucan.estimators import framed
from ucan.generators import Fixed
from ucan.laws import Gaussian, Law
from ucan.smoothed import SmoothedClassifier

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise MissingExtra("this needs scikit-learn 1.6 or later: pip install 'ucan[sklearn]'.") from error


class SmoothedEstimator(ClassifierMixin, MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier that answers with the class that another one gives most often under noise in every column.

    Noise is part of this classifier: ``fit`` decides its size from the training rows and it is the same for every row
    afterwards, so certificates have the scope ``pipeline``. ``predict`` answers every row, as scikit-learn expects, with the
    class of the most votes; ``certify`` says which answers are proven, and how far, and abstains from the others.

    Args:
        estimator: the classifier that is fitted and asked; logistic regression on standardised columns if None.
        sigma: the noise of each column in its own unit, an array of one number per column; a quarter of the column's
            spread in the training rows if None.
        law: the noise law; Gaussian if None.
        scale: λ of the Gaussian law, a factor on every sigma.
        copies: noisy copies of each training row that the estimator is fitted on, in place of the row itself; 0 fits it on
            the rows as they are.
        n: votes for each row in ``predict`` and ``predict_proba``.
        random_state: the seed of all noise, an integer; None takes fresh noise in every call.

    Attributes:
        estimator_: the fitted classifier.
        sigma_: the noise of each column in its own unit.
        classes_: the classes, in the order of a certificate's class numbers.
    """

    def __init__(
        self,
        estimator: Any = None,
        *,
        sigma: Any = None,
        law: Law | None = None,
        scale: float = 1.0,
        copies: int = 4,
        n: int = 200,
        random_state: int | None = 0,
    ) -> None:
        self.estimator = estimator
        self.sigma = sigma
        self.law = law
        self.scale = scale
        self.copies = copies
        self.n = n
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> SmoothedEstimator:
        """Choose the noise from the rows X, (rows, columns), and fit the estimator on noisy copies of them, with labels y."""
        X, y = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=2)
        check_classification_targets(y)
        if len(np.unique(y)) < 2:
            raise InvalidInput(f"y has one class, {y[0]!r}: a classifier needs at least two.")
        self.sigma_ = self._sigma_of(X)
        rows, labels = self._noisy(X, y)
        inner = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
        self.estimator_ = (inner if self.estimator is None else clone(self.estimator)).fit(self._named(rows), labels)
        self.classes_ = self.estimator_.classes_  # whose numbers are those of certificates
        return self

    @property
    def smoothed_(self) -> SmoothedClassifier:
        """The smoothed classifier itself, on tensors of rows."""
        check_is_fitted(self, "estimator_")
        noise = Fixed(torch.from_numpy(self.sigma_))
        return SmoothedClassifier(self.estimator_, self._law(), noise, len(self.classes_))

    def predict(self, X: Any) -> np.ndarray:
        """The class of each row that most of n votes are for; the majority need not be significant."""
        shares = self.predict_proba(X)
        return np.asarray(self.classes_[shares.argmax(1)])

    def predict_proba(self, X: Any) -> np.ndarray:
        """The share of the votes for each class, (rows, classes): an estimate of the probabilities that define g."""
        rows = self._rows(X)
        outcomes = self.smoothed_.predict(rows, n=self.n, seed=self.random_state)
        counts = np.array([outcome.evidence.counts for outcome in outcomes], dtype=np.float64)
        counts[counts.sum(1) == 0] = 1.0  # no vote was valid: nothing speaks for any class
        return np.asarray(counts / counts.sum(1, keepdims=True))

    def certify(self, X: Any, n: int = 10_000, **options: Any) -> list[Certificate | Abstention]:
        """A certificate or an abstention for each row; ``options`` are those of ``SmoothedClassifier.certify``.

        ``classes_[c.prediction]`` is the class; ``c.region.reach()`` says how far each column may move alone, in its own
        unit; ``c.region.radius`` is the radius with every column in units of its ``sigma_``.
        """
        return self.smoothed_.certify(self._rows(X), n=n, **{"seed": self.random_state, **options})

    def certified_score(self, X: Any, y: Any, radius: float = 0.0, n: int = 1000, **options: Any) -> float:
        """The share of rows whose label is certified for every change of ‖δ/sigma_‖₂ up to ``radius``: certified accuracy.

        For searches and cross-validation: ``scoring=lambda model, X, y: model.certified_score(X, y, radius=0.5)``.
        """
        outcomes = self.certify(X, n=n, **options)
        right = [
            isinstance(c, Certificate) and self.classes_[c.prediction] == label and c.region.radius > radius
            for c, label in zip(outcomes, np.asarray(y), strict=True)
        ]
        return float(np.mean(right))

    def _law(self) -> Law:
        return Gaussian(scale=self.scale) if self.law is None else self.law

    def _sigma_of(self, X: np.ndarray) -> np.ndarray:
        if self.sigma is not None:
            given = np.asarray(self.sigma, dtype=np.float64)
            if given.shape not in ((), (1,), (X.shape[1],)):
                raise InvalidInput(
                    f"sigma has shape {given.shape}, and X has {X.shape[1]} columns: give a number for each."
                )
            sigma = np.broadcast_to(given, X.shape[1]).copy()
        else:
            sigma = np.array([SHARE * spread_of(column) for column in X.T])
        bad = np.flatnonzero(~(np.isfinite(sigma) & (sigma > 0)))
        if len(bad):
            raise InvalidInput(
                f"column {bad[0]} would have noise of size {sigma[bad[0]]:g}: leave a column out that has one value only, or "
                "give sigma, one positive number per column."
            )
        return sigma

    def _noisy(self, X: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The rows to fit on, with their labels."""
        if self.copies == 0:
            return X, y
        rng = torch.Generator()
        _ = rng.seed() if self.random_state is None else rng.manual_seed(self.random_state)
        noise = self._law().sample(self.copies * len(X), X.shape[1:], rng, torch.float64).numpy()
        return np.tile(X, (self.copies, 1)) + noise * self.sigma_, np.tile(y, self.copies)

    def _named(self, rows: np.ndarray) -> Any:
        """The rows as the estimator takes them: with the columns' names if there are any."""
        names = getattr(self, "feature_names_in_", None)
        return rows if names is None else framed(list(names), list(rows.T))

    def _rows(self, X: Any) -> torch.Tensor:
        check_is_fitted(self, "estimator_")
        return torch.from_numpy(np.array(validate_data(self, X, dtype=np.float64, reset=False)))
