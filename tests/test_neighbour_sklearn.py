"""scikit-learn's own checks of an estimator, cross-validation, and certificates against a closed form."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import ucan
from ucan.neighbours.sklearn import SmoothedEstimator

# None of scikit-learn's checks is left out: an entry would be "name of the check": "why it does not apply".
NOT_FOR_US: dict[str, str] = {}


@pytest.fixture(scope="module")
def cancer() -> tuple[np.ndarray, np.ndarray]:
    X, y = load_breast_cancer(return_X_y=True)
    return X[::3], y[::3]


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
def test_it_passes_the_checks_of_scikit_learn() -> None:
    results = check_estimator(SmoothedEstimator(n=20), expected_failed_checks=NOT_FOR_US, on_fail=None)
    failed = {r["check_name"]: r["exception"] for r in results if r["status"] == "failed"}
    assert failed == {}
    assert sum(r["status"] == "passed" for r in results) > 40
    assert {r["check_name"] for r in results if r["status"] == "xfail"} == set(NOT_FOR_US)


def test_cross_validation_and_search(cancer: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = cancer
    scores = cross_val_score(SmoothedEstimator(n=50), X, y, cv=3)
    assert scores.min() > 0.9
    at = {r: cross_val_score(SmoothedEstimator(), X, y, cv=3, scoring=certified(r)).mean() for r in (0.0, 1.0, 100.0)}
    assert scores.mean() + 0.02 > at[0.0] > at[1.0] > 0.3 and at[100.0] == 0
    search = GridSearchCV(SmoothedEstimator(n=50), {"scale": [0.5, 1.0]}, cv=2).fit(X, y)
    assert search.best_params_["scale"] in (0.5, 1.0)


def certified(radius: float) -> Any:
    return lambda model, X, y: model.certified_score(X, y, radius=radius, n=200)


def test_certificates_against_the_radius_of_a_linear_classifier() -> None:
    """Σ is diagonal, the classifier linear: the true radius in units of σ is |w·x + b| / ‖σw‖."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3)) * [1.0, 10.0, 0.1]
    y = np.where(X @ [1.0, 0.1, 5.0] > 0.2, "yes", "no")
    model = SmoothedEstimator(LogisticRegression(max_iter=1000), copies=0).fit(X, y)
    w, b = model.estimator_.coef_[0], float(model.estimator_.intercept_[0])
    rows = X[:20]
    true = np.abs(rows @ w + b) / np.linalg.norm(model.sigma_ * w)
    outcomes = model.certify(rows, n=20_000)
    for row, c, r in zip(rows, outcomes, true, strict=True):
        if isinstance(c, ucan.Abstention):
            assert r < 0.05
            continue
        assert c.scope == "pipeline"
        assert model.classes_[c.prediction] == ("yes" if row @ w + b > 0 else "no")
        assert 0.9 * min(r, 3.0) - 0.05 <= c.region.radius <= r
    assert list(model.predict(rows)) == list(np.where(rows @ w + b > 0, "yes", "no"))
    shares = model.predict_proba(rows)[:, 1]
    signed = (rows @ w + b) / np.linalg.norm(model.sigma_ * w)
    truth = np.array([0.5 * math.erfc(-s / math.sqrt(2)) for s in signed])
    assert np.abs(shares - truth).max() < 5 * 0.5 / math.sqrt(model.n)


def test_the_noise_is_fixed_when_it_is_fitted(cancer: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = cancer
    model = SmoothedEstimator(n=50).fit(X, y)
    before = model.sigma_.copy()
    model.predict(X[:5] * 2)
    assert (model.sigma_ == before).all()
    (c,) = model.certify(X[:1], n=200)
    assert isinstance(c, ucan.Certificate)
    assert torch.allclose(c.region.reach(), c.region.radius * torch.from_numpy(before))
    again = clone(model).fit(X, y)
    assert (again.predict_proba(X[:9]) == model.predict_proba(X[:9])).all()
    fresh = clone(model).set_params(random_state=None).fit(X, y)
    assert (fresh.predict_proba(X) != fresh.predict_proba(X)).any()


def test_a_data_frame_keeps_its_names(cancer: tuple[np.ndarray, np.ndarray]) -> None:
    pandas = pytest.importorskip("pandas", reason="frames need pandas")
    frame = pandas.DataFrame(cancer[0][:, :4], columns=["radius", "texture", "perimeter", "area"])
    model = SmoothedEstimator(make_pipeline(StandardScaler(), RidgeClassifier()), n=50).fit(frame, cancer[1])
    assert list(model.estimator_.feature_names_in_) == list(frame.columns)
    assert model.score(frame, cancer[1]) > 0.8
    (c,) = model.certify(frame.iloc[:1], n=500)
    assert c.evidence.n == 500


def test_noise_of_size_zero_is_refused() -> None:
    X = np.array([[0.0, 1.0], [0.0, 2.0], [0.0, 3.0], [0.0, 4.0]])
    with pytest.raises(ucan.InvalidInput, match="column 0 would have noise of size 0"):
        SmoothedEstimator().fit(X, [0, 1, 0, 1])
    with pytest.raises(ucan.InvalidInput, match="sigma, one positive number per column"):
        SmoothedEstimator(sigma=[1.0, -1.0]).fit(X, [0, 1, 0, 1])
    for sigma in ([1.0, 1.0, 1.0], [[1.0, 1.0]]):
        with pytest.raises(ucan.InvalidInput, match="X has 2 columns: give a number for each"):
            SmoothedEstimator(sigma=sigma).fit(X, [0, 1, 0, 1])
