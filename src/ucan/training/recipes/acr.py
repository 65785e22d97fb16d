"""The recipe of Sun et al. (2025), who show how to raise the average certified radius: drop, weigh, and attack the noise."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ucan.bounds import lower_bound
from ucan.errors import InvalidInput
from ucan.training.recipes.base import Remembering, Task, check_spherical, cross_entropy
from ucan.training.recipes.sphere import VOTES, climbed
from ucan.training.step import Outcome, Progress, Step
from ucan.training.survey import Survey, right_share

# The least share of votes that a weight is computed from.
SURE = 0.75
# The level of the bound that it is computed from.
ALPHA = 0.1


@dataclass(frozen=True)
class Acr(Remembering):
    """Cross-entropy on noisy copies; after a start three things more.

    1. Inputs that fewer than ``drop`` of 100 votes get right are left out from then on.
    2. The others are drawn with weight Φ⁻¹(lower bound of p), from ``votes`` votes each, renewed every ``every`` epochs, or
       with equal weights.
    3. The noise is moved on its own sphere up the loss, and kept where the answer first changes.

    For noise whose density depends on its ℓ2 norm alone (``Law.spherical``: Gaussian), under any Σ; other laws are refused.

    draws: m, noisy copies of every input.
    start: the share of the training before; 60, 70 and 60 of 150 epochs at σ = 0.25 / 0.5 / 1.
    drop: t; 0.5 / 0.4 / 0.4.
    votes, every: for the weights; ``every`` is 0 for equal ones, as on ImageNet. From fewer than 14 votes the bound at the
    least share, 3/4, may be below 1/2: inputs there then have weight 0, and are not drawn.
    steps: T of the attack; 3 / 6 / 4.
    length: e of a step; 0.25 / 0.25 / 0.5.
    """

    draws: int = 4
    start: float = 0.4
    drop: float = 0.5
    votes: int = 16
    every: int = 10
    steps: int = 3
    length: float = 0.25

    def __post_init__(self) -> None:
        super().__post_init__()
        shares = 0 <= self.start <= 1 and 0 <= self.drop <= 1
        if not shares or min(self.votes, self.steps) < 1 or self.every < 0 or self.length < 0:
            raise InvalidInput(
                "[recipe] start and drop are shares from 0 to 1; votes and steps 1 or more, every and length 0 or more."
            )

    def prepare(self, task: Task) -> None:
        """Noise that has a sphere; every input once, to begin with."""
        check_spherical(task, "acr")
        self.memory["kept"] = torch.ones(task.inputs, dtype=torch.bool, device=task.device)
        self.memory["weights"] = torch.zeros(task.inputs, device=task.device)

    @property
    def asks_first(self) -> bool:
        """With a start of 0 the inputs to drop are found before the first step."""
        return self.drop > 0 and self.start == 0

    def before_epoch(self, survey: Survey) -> None:
        """Drop once, when it begins; weigh then and every so many epochs."""
        since = self._since(survey.progress)
        if since < 0:
            return
        if since == 0 and self.drop > 0:
            self.memory["kept"].copy_(survey.each(lambda step: right_share(step, VOTES)) >= self.drop)
        if self.every == 0:
            self.memory["weights"].copy_(self.memory["kept"])
        elif since % self.every == 0:
            shares = survey.each(lambda step: right_share(step, self.votes))
            self.memory["weights"].copy_(weights_of(shares, self.votes) * self.memory["kept"])

    def sampling(self) -> torch.Tensor | None:
        """By the weights, once there are any."""
        weights = self.memory["weights"]
        return weights if bool(weights.any()) else None

    def step(self, step: Step) -> Outcome:
        """Cross-entropy, under attacked noise once it began."""
        eps = step.noise.draw(self.draws)
        if self._since(step.progress) >= 0:
            eps = climbed(step, eps, self.steps, self.length, first_flip=True)
        logits = step.model(step.noise.place(eps))
        return Outcome.of(cross_entropy(logits, step.labels), logits, step.labels)

    def cost(self, progress: Progress) -> float:
        """One pass per copy, one more for every step of the attack, and the votes of the survey."""
        since = self._since(progress)
        if since < 0:
            return self.draws
        weighed = self.every > 0 and since % self.every == 0
        surveyed = VOTES * (since == 0 and self.drop > 0) + self.votes * weighed
        return self.draws * (1 + self.steps) + surveyed / 3

    def _since(self, progress: Progress) -> int:
        """How many epochs ago the three things began; below 0 before."""
        return progress.epoch - progress.epoch_at(self.start)


def weights_of(shares: torch.Tensor, votes: int) -> torch.Tensor:
    """Φ⁻¹ of the lower confidence bound from these shares of the votes, none counted as below 3/4."""
    bounds = torch.tensor([lower_bound(k, votes, ALPHA) if k else 0.0 for k in range(votes + 1)], dtype=torch.float64)
    # Shares are counts over votes: rounded, since in float32 a count of 32 of 41 comes back as a little less.
    counted = (shares * votes).round().clamp_min(math.floor(SURE * votes)).long().cpu()
    found: torch.Tensor = torch.special.ndtri(bounds[counted]).clamp_min(0).float().to(shares.device)
    return found
