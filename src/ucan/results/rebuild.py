"""What a run was about, from what it says of itself: its data, and its classifier under its noise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ucan import data
from ucan.arithmetic import step_of
from ucan.backends import PRECISIONS
from ucan.certificate import Abstention, Certificate
from ucan.data import Labelled
from ucan.errors import InvalidInput
from ucan.models import load_model
from ucan.smoothed import SmoothedClassifier
from ucan.training import is_trained_run, load_run
from ucan.verify import noise_again


def data_of(config: dict[str, Any], source: str | None = None) -> Labelled:
    """The inputs that a run certified, or those at ``source`` if they have moved."""
    named = source or config.get("data")
    if named is None:
        raise InvalidInput("this run does not say which data it certified: name them with --data.")
    return data.load(named, config.get("split", "test"), size=config.get("size"), channels=config.get("channels") or 3)


def pipeline_of(
    config: dict[str, Any],
    outcome: Certificate | Abstention,
    device: torch.device,
    model: str | None = None,
    weights: str | Path | None = None,
) -> SmoothedClassifier:
    """The deployed pipeline behind an outcome of a run: a trained run's with its generator, or one under fixed noise.

    ``model`` and ``weights`` say where they are, if not where the run says; another model brings its own weights.
    """
    if model is None:
        model, weights = config.get("model"), weights or config.get("weights")
    if model is None:
        raise InvalidInput("this run does not say which model it certified: name it with --model.")
    law, classes, precision = outcome.evidence.law, len(outcome.evidence.counts), _precision(outcome)
    step = step_of(outcome.evidence.arithmetic)
    if is_trained_run(model):
        trained = load_run(model)
        return SmoothedClassifier(
            trained.classifier.to(device), law, trained.generator, classes, precision=precision, step=step
        )
    certificate = outcome if isinstance(outcome, Certificate) else None
    shape = None if certificate is None else certificate.region.shape
    noise = noise_again(outcome)
    named = outcome.evidence.model or ""
    return SmoothedClassifier(
        load_model(model, weights, classes, device, shape),
        law,
        noise,
        classes,
        precision=precision,
        model_id=named.removeprefix("id:") if named.startswith("id:") else None,
        step=step,
    )


def _precision(outcome: Certificate | Abstention) -> str | None:
    """The precision that is the classifier's, if it is one to ask for."""
    claimed = outcome.evidence.precision
    return claimed if claimed in PRECISIONS and not outcome.evidence.copy else None
