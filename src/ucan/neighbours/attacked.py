"""What an attack of another package did: certificates at the inputs, answers by votes where the attack moved them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ucan.audit.inputs import covered_step
from ucan.certificate import Abstention, Certificate, Prediction
from ucan.errors import InvalidInput
from ucan.smoothed import SmoothedClassifier


@dataclass(frozen=True, eq=False)
class Attacked:
    """One input, the certificate there (``before``), and the smoothed classifier's answer where an attack moved it (``after``).

    ``size`` is the length of the change in the certificate's norm. ``inside`` says whether the certified region holds the
    change; on a grid, the one that is left when the moved input was rounded to it, as the classifier rounds it. ``changed``:
    the answer there is proven to be another class (an abstention is no other answer).
    """

    before: Certificate | Abstention
    after: Prediction | Abstention
    size: float
    inside: bool

    @property
    def changed(self) -> bool:
        """Whether the answers differ; False where one of the two is an abstention."""
        classes = self.before.prediction, self.after.prediction
        return None not in classes and classes[0] != classes[1]

    @property
    def refutes(self) -> bool:
        """Whether the certificate is false, with at most α's chance of a wrong answer on each side.

        A certificate of scope ``frozen`` says nothing about noise that is computed from the moved input, so it cannot be
        refuted here: `ucan audit` attacks it as it is meant.
        """
        return self.inside and self.changed and self.before.scope == "pipeline"


def attacked(
    g: SmoothedClassifier,
    x: torch.Tensor,
    moved: torch.Tensor,
    certificates: Sequence[Certificate | Abstention] | None = None,
    n: int = 1000,
    alpha: float = 0.001,
    seed: int = 0,
) -> list[Attacked]:
    """What changed between inputs x and where an attack moved them, both (batch, *event).

    Args:
        g: the smoothed classifier that was attacked.
        x: the inputs.
        moved: the attack's results, in the same order.
        certificates: those of x, if there are any already; otherwise they are made with n votes.
        n: votes for each answer.
        alpha: α of certificates and answers.
        seed: the seed of the noise.
    """
    if x.shape != moved.shape:
        raise InvalidInput(f"the inputs have shape {tuple(x.shape)}, the moved ones {tuple(moved.shape)}: give pairs.")
    befores = g.certify(x, n=n, alpha=alpha, seed=seed) if certificates is None else list(certificates)
    afters = g.predict(moved, n=n, alpha=alpha, seed=seed)
    deltas = moved.detach().cpu().double() - x.detach().cpu().double()
    sizes = [float(torch.linalg.vector_norm(d, one.norm or 2)) for one, d in zip(befores, deltas, strict=True)]
    inside = [_holds(g, one, x[i : i + 1], moved[i : i + 1]) for i, one in enumerate(befores)]
    return [Attacked(*one) for one in zip(befores, afters, sizes, inside, strict=True)]


def _holds(g: SmoothedClassifier, outcome: Certificate | Abstention, x: torch.Tensor, moved: torch.Tensor) -> bool:
    """Whether the region holds what g sees of the change from x to ``moved``, both (1, *event)."""
    if not isinstance(outcome, Certificate):
        return False
    delta = moved.detach().cpu().double() - x.detach().cpu().double()
    if g.grid is not None and covered_step(g, outcome) is not None:  # both inputs are rounded
        steps = g.grid.integers(moved.cpu()) - g.grid.integers(x.cpu())
        delta = (steps * g.grid.steps(steps.device)).reshape(delta.shape)
    return bool(outcome.region.contains(delta).all())
