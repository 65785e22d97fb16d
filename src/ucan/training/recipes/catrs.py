"""CAT-RS (Jeong and Shin, 2023): the easiest copies, as many as the accuracy allows, and the hardest of sure inputs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional as F

from ucan.errors import InvalidInput
from ucan.training.recipes.ascent import cross_entropies, divergences, lengths, within
from ucan.training.recipes.base import Remembering, Task, check_spherical, check_terms, cross_entropy
from ucan.training.step import Outcome, Progress, Step
from ucan.training.survey import Survey, answers_of


@dataclass(frozen=True)
class CatRs(Remembering):
    """L_low + weight·L_high, of which the second counts where all copies are taken.

    L_low is the sum of the K smallest cross-entropies of the m copies, over m; K ~ Bin(m, share of the copies that are right),
    at least 1; with ``mask`` K ~ Bin(m, the label's share of p). L_high is the largest KL(p ‖ answer) over copies whose noise
    was moved up that divergence. After each step it is projected to within ``size`` of the draw ε that it began as, and then
    brought back to the mean and the size of ε (``like``), which may take it out of that ball again: it ends at most
    size/cos(½ arcsin(size/‖ε‖)) from ε in ℓ2, which is less than √2·size, or 2‖ε‖ where ``size`` exceeds ‖ε‖, about σ√d. The
    authors' order is the same. p is the smoothed answer of the input.

    For noise whose density depends on its ℓ2 norm alone (``Law.spherical``: Gaussian), under any Σ; other laws are refused.

    The authors take p from 10,000 votes of another network, trained beforehand with Gaussian noise. Here p comes from
    ``votes`` votes of this network itself, after a start with plain cross-entropy; so no second network is needed.

    draws: m.
    steps: T of the attack; the network is in evaluation mode there.
    size: of the ball, in ℓ2, that moved noise is projected to; a step is 2·size/T long.
    weight: λ; 0.5 / 1 / 2 at σ = 0.25 / 0.5 / 1.
    start: the share of the training with plain cross-entropy.
    mask: 1 for the authors' confidence mask, which they use on ImageNet.
    double: the epoch from which on the size is twice as large; 0 for none. The authors' is 80 of 90 on ImageNet.
    votes, every: p is counted from so many votes, anew every so many epochs.
    """

    draws: int = 4
    steps: int = 4
    size: float = 1.0
    weight: float = 0.5
    start: float = 0.2
    mask: int = 0
    double: int = 0
    votes: int = 100
    every: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        check_terms(self, "weight")
        if not 0 <= self.start <= 1 or self.size < 0 or min(self.votes, self.every, self.steps) < 1:
            raise InvalidInput(
                "[recipe] start is a share from 0 to 1, size 0 or more; votes, every and steps 1 or more."
            )
        if self.mask not in (0, 1) or self.double < 0:
            raise InvalidInput("[recipe] mask is 0 or 1, and double a number of epochs, or 0.")

    def prepare(self, task: Task) -> None:
        """Noise that has a sphere; room for the smoothed answers of all inputs."""
        check_spherical(task, "catrs")
        self.memory["answers"] = torch.zeros(task.inputs, task.num_classes, device=task.device)

    def before_epoch(self, survey: Survey) -> None:
        """Count the smoothed answers, when it begins and every so many epochs."""
        since = self._since(survey.progress)
        if since >= 0 and since % self.every == 0:
            classes = self.memory["answers"].shape[1]
            self.memory["answers"].copy_(survey.each(lambda step: smoothed_answers(step, self.votes, classes)))

    def step(self, step: Step) -> Outcome:
        """Plain cross-entropy before the start, then both losses."""
        eps = step.noise.draw(self.draws)
        begun = self._since(step.progress) >= 0
        wanted = self.memory["answers"][step.places]
        # First: on a GPU, a gradient that is taken between a pass and its own backward pass would overwrite that pass.
        moved = self.attacked(step, eps, wanted) if begun else eps
        logits = step.model(step.noise.place(eps))
        if not begun:
            return Outcome.of(cross_entropy(logits, step.labels), logits, step.labels)
        own = (logits.argmax(-1) == step.labels).float().mean(0)
        right = wanted.gather(1, step.labels[:, None])[:, 0] if self.mask else own
        taken = (step.uniform(self.draws) < right).sum(0).clamp_min(1)
        low = smallest(cross_entropies(logits, step.labels), taken).mean()
        hard = step.model(step.noise.place(moved))
        high = (divergences(wanted, hard).amax(0) * (taken == self.draws)).mean()
        return Outcome.of(low + self.weight * high, logits, step.labels, high=high)

    def attacked(self, step: Step, eps: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        """The noise, moved up the divergence from the smoothed answer."""
        moved, size = eps.detach(), self.size * (2 if 0 < self.double <= step.progress.epoch else 1)
        with step.model.aside():
            for _ in range(self.steps):
                place = moved.requires_grad_(True)
                loss = divergences(wanted, step.model(step.noise.place(place))).mean(0).sum()
                (gradient,) = torch.autograd.grad(loss, place)
                away = place.detach() + 2 * size / self.steps * gradient / lengths(gradient, 2) - eps
                moved = like(eps + within(away, size, 2), eps)
        return moved.detach()

    def cost(self, progress: Progress) -> float:
        """One pass per copy; after the start one more for each step, one more for the hard copies, and the votes."""
        since = self._since(progress)
        if since < 0:
            return self.draws
        return self.draws * (2 + self.steps) + self.votes / 3 * (since % self.every == 0)

    def _since(self, progress: Progress) -> int:
        """How many epochs ago the plain cross-entropy ended; below 0 before."""
        return progress.epoch - progress.epoch_at(self.start)


def smallest(losses: torch.Tensor, taken: torch.Tensor) -> torch.Tensor:
    """The sum of the ``taken`` (batch,) smallest of the losses (m, batch), over m."""
    ranks = torch.arange(len(losses), device=losses.device)[:, None]
    return (losses.sort(0).values * (ranks < taken)).sum(0) / len(losses)


def like(moved: torch.Tensor, eps: torch.Tensor) -> torch.Tensor:
    """Each draw with the mean of the draw it began as, and divided by the ratio of their root mean squares, as the authors do
    it.
    """
    dims = tuple(range(2, eps.ndim))
    (mean, root), (mean_0, root_0) = (
        (t.mean(dims, keepdim=True), t.square().mean(dims, keepdim=True).sqrt()) for t in (moved, eps)
    )
    return mean_0 + (moved - mean) / root.clamp_min(1e-12) * root_0


def smoothed_answers(step: Step, votes: int, classes: int) -> torch.Tensor:
    """The share of so many votes that each class gets: (batch, classes)."""
    counts = torch.zeros(len(step.labels), classes, device=step.inputs.device)
    for answers in answers_of(step, votes):
        counts += F.one_hot(answers, classes).sum(0)
    return counts / votes
