"""The attacks of an audit by name. The judge tests every proposal, so an attack can miss a break but never invent one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from ucan.audit.attacks import Aim, black_box_attack, gradient_attack
from ucan.audit.judge import Budget

# Multiples of the noise found at an input, under which noise that is found anew at every input is attacked.
SCALES = (0.1, 0.25, 0.5, 1.0)
# Of the points found under each, how many are tested, and the votes that say which.
WORST, WORST_VOTES = 2, 64
# An attack returns perturbations (candidates, *event) for each aim.
Attack = Callable[[Sequence[Aim], Budget], Sequence[torch.Tensor]]


def gradient(aims: Sequence[Aim], budget: Budget) -> list[torch.Tensor]:
    """Projected gradient ascent through generator, noise and classifier."""
    return gradient_attack(aims, budget.steps, budget.draws, budget.restarts)


def black_box(aims: Sequence[Aim], budget: Budget) -> list[torch.Tensor]:
    """An evolution strategy on vote shares, for classifiers without gradients."""
    return [black_box_attack(aim, budget.steps, budget.draws) for aim in aims]


def rescaled(aims: Sequence[Aim], budget: Budget) -> list[torch.Tensor]:
    """Gradient ascent with the noise held as it is at the input, and at parts of it.

    For noise that is searched for at every input. It has no gradient, and finding it takes thousands of passes. But a point
    near which the classifier answers otherwise under *smaller* noise may be one from which the search finds that smaller
    noise. Only the judge looks at the noise that is found there.
    """
    found = []
    for aim in aims:
        g, held = aim.g, aim.g.M.at(aim.x)
        laws = [replace(g.law, scale=part * g.law.scale) for part in SCALES]
        near = [g.again(law=law, generator=held, backend="eager") for law in laws]
        some = [replace(aim, g=each, enough=lambda _: False) for each in near]
        tried = [(each, gradient_attack([each], budget.steps, budget.draws, 1)[0]) for each in some]
        found.append(torch.cat([_worst(each, points) for each, points in tried]))
    return found


@torch.no_grad()
def _worst(aim: Aim, deltas: torch.Tensor) -> torch.Tensor:
    """The perturbations with the fewest votes for the claim, under the noise of the aim."""
    noisy = aim.g.M.perturb(aim.x + deltas, aim.g.law, WORST_VOTES, aim.rng)
    votes = aim.g.f(aim.g.M.view(noisy.flatten(0, 1))).reshape(WORST_VOTES, len(deltas))
    return deltas[aim.held(votes).double().mean(0).argsort()[:WORST]]
