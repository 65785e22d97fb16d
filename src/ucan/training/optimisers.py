"""Optimisers and learning rates, as the settings of a training run say."""

from __future__ import annotations

import math
from typing import Any

import torch

from ucan.errors import InvalidInput, TrainingError
from ucan.training.joint import Joint
from ucan.training.settings import TrainSettings


def schedule(name: str, done: float, drops: int = 0) -> float:
    """The share of the peak learning rate after the given share of all steps; with "steps", after so many drops."""
    if name == "constant":
        return 1.0
    if name == "steps":
        return 0.1**drops
    if name == "cosine":
        return 0.5 * (1 + math.cos(math.pi * done))
    warm = 0.2  # one-cycle: a straight line up, then a cosine down
    return max(0.04, done / warm) if done < warm else 0.5 * (1 + math.cos(math.pi * (done - warm) / (1 - warm)))


def build_optimisers(settings: TrainSettings, joint: Joint) -> list[torch.optim.Optimizer]:
    """One for the classifier, as the settings say; Adam for the generator, if it has anything to learn."""
    weights = [p for p in joint.classifier.parameters() if p.requires_grad]
    groups = [{"params": weights, "lr": settings.lr, "peak": settings.lr}]
    learned = [p for p in joint.generator.parameters() if p.requires_grad]
    if not weights and not learned:
        raise TrainingError(
            "the model has no weights to train: all of them are frozen (requires_grad), and so is the noise."
        )
    if settings.precision == "16-true" and (settings.optimiser == "adam" or learned):
        # Its 1e-8 is 0 in 16 bits, and the mean square of small gradients, too: the first steps divide 0 by 0.
        raise InvalidInput(
            "in precision 16-true all weights that Adam trains become NaN, and it trains "
            + ("the classifier" if settings.optimiser == "adam" else "the noise")
            + ". Set precision to 16-mixed, bf16-true or 32-true."
        )
    if settings.optimiser == "adam":
        optimisers: list[torch.optim.Optimizer] = [torch.optim.AdamW(groups, weight_decay=settings.weight_decay)]
    else:
        one_kernel = all(p.is_cuda for p in weights)
        decay, ahead = settings.weight_decay, settings.optimiser == "sgd"
        optimisers = [torch.optim.SGD(groups, momentum=0.9, nesterov=ahead, weight_decay=decay, fused=one_kernel)]
    if learned:
        # No weight decay: it would pull the scales towards the middle of their range.
        lr = settings.lr if settings.generator_lr is None else settings.generator_lr
        optimisers.append(torch.optim.Adam([{"params": learned, "lr": lr, "peak": lr}]))
    return optimisers


def load_optimiser(optimiser: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """Load an optimiser's state; whether it is one kernel goes by the device here, not by that of the checkpoint."""
    own = [group.get("fused") for group in optimiser.param_groups]
    optimiser.load_state_dict(saved)
    for group, fused in zip(optimiser.param_groups, own, strict=True):
        group["fused"] = fused
