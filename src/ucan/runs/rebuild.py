"""What a run was about, from what it says of itself: its data, and its classifier under its noise."""

from __future__ import annotations

from pathlib import Path

import torch

from ucan.arithmetic import step_of
from ucan.backends import PRECISIONS
from ucan.certificate import Abstention, Certificate
from ucan.data import Labelled, load
from ucan.errors import InvalidInput
from ucan.models import load_model
from ucan.runs.config import DataRef, ModelRef
from ucan.smoothed import SmoothedClassifier
from ucan.training import is_trained_run, load_run
from ucan.verify import noise_again


def data_of(data: DataRef, source: str | None = None) -> Labelled:
    """The inputs that a run certified, or those at ``source`` if they have moved."""
    named = source or data.source
    if named is None:
        raise InvalidInput("this run does not say which data it certified: name them with --data.")
    return load(named, data.split or "test", size=data.size, channels=data.channels or 3)


def pipeline_of(
    known: ModelRef,
    outcome: Certificate | Abstention,
    device: torch.device,
    model: str | None = None,
    weights: str | Path | None = None,
) -> SmoothedClassifier:
    """The deployed pipeline behind an outcome of a run: a trained run's with its generator, or one under fixed noise.

    ``model`` and ``weights`` say where they are, if not where the run says; another model brings its own weights.
    """
    if model is None:
        model, weights = known.spec, weights or known.weights
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
