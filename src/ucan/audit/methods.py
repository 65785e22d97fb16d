"""The attacks of an audit by name. The judge tests every proposal, so an attack can miss a break but never invent one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ucan.audit.attacks import Aim, black_box_attack, gradient_attack
from ucan.audit.judge import Budget

# An attack returns perturbations (candidates, *event) for each aim.
Attack = Callable[[Sequence[Aim], Budget], Sequence[torch.Tensor]]


def gradient(aims: Sequence[Aim], budget: Budget) -> list[torch.Tensor]:
    """Projected gradient ascent through generator, noise and classifier."""
    return gradient_attack(aims, budget.steps, budget.draws, budget.restarts)


def black_box(aims: Sequence[Aim], budget: Budget) -> list[torch.Tensor]:
    """An evolution strategy on vote shares, for classifiers without gradients."""
    return [black_box_attack(aim, budget.steps, budget.draws) for aim in aims]
