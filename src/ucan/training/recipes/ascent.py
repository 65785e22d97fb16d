"""What recipes that attack while they train have in common: losses copy by copy, and steps up them of a given length."""

from __future__ import annotations

import math

import torch
from torch.nn import functional as F

from ucan.training.step import Step


def cross_entropies(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The cross-entropy of every copy: logits (n, batch, classes) → (n, batch)."""
    n, batch, classes = logits.shape
    flat = F.cross_entropy(logits.float().reshape(-1, classes), labels.repeat(n), reduction="none")
    return flat.reshape(n, batch)


def smoothed_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """−log of the mean probability of the label over the copies: logits (n, batch, classes) → (batch,)."""
    mean = F.log_softmax(logits.float(), -1).logsumexp(0) - math.log(len(logits))
    return F.nll_loss(mean, labels, reduction="none")


def divergences(wanted: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """KL(wanted ‖ softmax) of every copy: wanted (batch, classes), logits (n, batch, classes) → (n, batch)."""
    given = torch.xlogy(wanted, wanted).sum(-1)
    return given - (wanted * F.log_softmax(logits.float(), -1)).sum(-1)


def lengths(values: torch.Tensor, lead: int) -> torch.Tensor:
    """ℓ2 norms over all but the first ``lead`` dimensions, kept as 1s so that they broadcast; never 0."""
    flat = values.flatten(lead).norm(dim=lead).clamp_min(1e-12)
    found: torch.Tensor = flat.reshape(*values.shape[:lead], *[1] * (values.ndim - lead))
    return found


def slope(step: Step, eps: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """The direction in which the smoothed loss of inputs at ``at``, under these draws, rises fastest; of length 1 for each."""
    place = at.detach().requires_grad_(True)
    loss = smoothed_loss(step.model(step.noise.place(eps, place)), step.labels).sum()
    (gradient,) = torch.autograd.grad(loss, place)
    return gradient.detach() / lengths(gradient.detach(), 1)


def within(delta: torch.Tensor, size: float, lead: int) -> torch.Tensor:
    """Changes brought back to an ℓ2 norm of at most ``size``."""
    return delta * (size / lengths(delta, lead)).clamp_max(1.0)
