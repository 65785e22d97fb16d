"""The attacks of an audit by name. What they propose is checked by the judge: an attack can miss, and never lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ucan.audit.attacks import Aim, black_box_attack, gradient_attack
from ucan.audit.judge import Budget

# An attack: for each aim the perturbations (candidates, *event) that it came to.
Attack = Callable[[Sequence[Aim], Budget], Sequence[torch.Tensor]]


def gradient(aims: Sequence[Aim], budget: Budget) -> list[torch.Tensor]:
    """Projected gradient ascent through generator, noise and classifier."""
    return gradient_attack(aims, budget.steps, budget.draws, budget.restarts)


def black_box(aims: Sequence[Aim], budget: Budget) -> list[torch.Tensor]:
    """An evolution strategy on vote shares, for classifiers that only answer."""
    return [black_box_attack(aim, budget.steps, budget.draws) for aim in aims]
