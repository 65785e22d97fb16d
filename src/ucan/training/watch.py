"""Certified accuracy on the held-out part while a classifier is trained.

It is cheap: few inputs, few votes, every so many epochs. It is a number to watch, not the result of the training, which
`ucan certify` measures. It uses random numbers of its own, so the trained weights are the same with and without it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from ucan.budget import Budget
from ucan.data import Labelled
from ucan.generators import Generator
from ucan.laws import Law
from ucan.smoothed import SmoothedClassifier
from ucan.training.joint import Joint

# How many inputs are certified, with how many votes, and at which α.
INPUTS, SELECT, VOTES, ALPHA = 100, 20, 100, 0.001
CERTIFIED = "held_out_certified"


@dataclass(frozen=True)
class Checked:
    """How many of ``inputs`` held-out inputs have a certificate for their label, and their mean size.

    ``radius`` is the mean certified radius, or the mean ε of the budget, where a wrong answer and an abstention count 0.
    ``scope`` is that of the certificates.
    """

    certified: int
    inputs: int
    radius: float
    norm: float
    scope: str

    def metrics(self) -> dict[str, float]:
        """The numbers for the log and the progress line."""
        return {CERTIFIED: self.certified / self.inputs, "held_out_radius": self.radius}

    def about(self) -> dict[str, str | int | float]:
        """What the numbers are about, for the training record."""
        norm = "inf" if self.norm == math.inf else self.norm
        return {
            "held_out_scope": self.scope,
            "held_out_inputs": self.inputs,
            "held_out_n": VOTES,
            "held_out_norm": norm,
        }


class Watch:
    """The held-out inputs of a training run and what is certified on them."""

    def __init__(self, held_out: Labelled, classes: int, law: Law, generator: Generator, every: int) -> None:
        known = (held_out.labels >= 0).nonzero().flatten()
        self.inputs, self.labels = held_out.batch(known[:: max(1, len(known) // INPUTS)][:INPUTS])
        self.classes = classes
        self.law = law
        self.every = every
        self.step = generator.own_step
        self.norm = float(generator.usual_norm(law))

    def due(self, epoch: int, epochs: int) -> bool:
        """Whether this epoch, counted from 0, ends with a check; the last one does."""
        return bool(self.every and len(self.inputs)) and ((epoch + 1) % self.every == 0 or epoch + 1 == epochs)

    def check(self, joint: Joint, average: dict[str, torch.Tensor] | None, device: torch.device) -> Checked:
        """Certify the held-out inputs with the weights that would be saved now."""
        budget = None if joint.budget is None else Budget(joint.budget.cpu())
        with _resting(joint, average), torch.random.fork_rng(devices=[]):
            g = SmoothedClassifier(joint.classifier, self.law, joint.generator, self.classes, step=self.step)
            outcomes = g.certify(
                self.inputs.to(device), n0=SELECT, n=VOTES, alpha=ALPHA, norm=self.norm, budget=budget, seed=0
            )
        right = [c for c, label in zip(outcomes, self.labels.tolist(), strict=True) if c.prediction == label]
        sizes = [c.size for c in right if c.size > 0]
        return Checked(len(sizes), len(outcomes), sum(sizes) / len(outcomes), self.norm, outcomes[0].scope)


@contextmanager
def _resting(joint: Joint, average: dict[str, torch.Tensor] | None) -> Iterator[None]:
    """The module in evaluation mode, with the weights of the moving average if there is one; then as it was before."""
    parts: list[nn.Module] = list(joint.modules())
    modes = [part.training for part in parts]
    own = None if average is None else {name: value.detach().clone() for name, value in joint.state_dict().items()}
    try:
        if average is not None:
            joint.load_state_dict(average)
        joint.eval()
        yield
    finally:
        if own is not None:
            joint.load_state_dict(own)
        for part, mode in zip(parts, modes, strict=True):
            part.training = mode
