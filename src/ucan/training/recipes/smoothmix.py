"""SmoothMix (Jeong et al., 2021): inputs mixed with adversarial ones, towards an answer that is less sure."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ucan.errors import InvalidInput
from ucan.training.recipes.ascent import divergences, slope, within
from ucan.training.recipes.base import Recipe, cross_entropy
from ucan.training.step import Outcome, Progress, Step


@dataclass(frozen=True)
class SmoothMix(Recipe):
    """Cross-entropy + weight·KL(mixed answer ‖ answer at the mixed input), where the smoothed answer is right.

    The adversarial input is ``steps`` steps up the smoothed loss, of any distance; mixed with a share u of at most a half, the
    wanted answer is (1 − u)·(the smoothed answer) + u·(all classes alike).

    It goes with any noise. The attack is in ℓ2, also where the law certifies against another norm.

    draws: m, noisy copies, the same for all passes.
    steps: T, steps of the attack; the network is in evaluation mode there.
    length: of a step in ℓ2, in pixel units: 0.5 / 1 / 2 at σ = 0.25 / 0.5 / 1.
    weight: η.
    warm: epochs over which the weight (and with ``one_step`` the first step) grows from 0.
    one_step: 1 for the variant whose clean side is the input after one step; the best at σ = 0.5 and 1.
    low, high: the range that inputs are kept in.
    """

    draws: int = 2
    steps: int = 4
    length: float = 0.5
    weight: float = 5.0
    warm: float = 10.0
    one_step: int = 0
    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps < 1 or min(self.length, self.warm, self.weight) < 0 or not self.low < self.high:
            raise InvalidInput("[recipe] steps is 1 or more; length, warm and weight 0 or more; low is below high.")
        if self.one_step not in (0, 1):
            raise InvalidInput(f"[recipe] one_step is 0 or 1, got {self.one_step!r}.")

    def step(self, step: Step) -> Outcome:
        """The attack, then the inputs and their mixtures under the same noise."""
        eps, ramp = step.noise.draw(self.draws), step.progress.ramp(self.warm)
        near, far = self.ends(step, eps, ramp)
        logits = step.model(step.noise.place(eps, near))
        smoothed = logits.float().softmax(-1).mean(0)
        share = step.uniform()[0] / 2
        broad = share.to(near.dtype).reshape(-1, *[1] * (near.ndim - 1))
        mixed = step.model(step.noise.place(eps, torch.lerp(near, far, broad)))
        wanted = torch.lerp(smoothed, torch.full_like(smoothed, 1 / smoothed.shape[-1]), share[:, None])
        right = (smoothed.argmax(-1) == step.labels).float()
        mixing = (right * divergences(wanted, mixed)).mean()
        loss = cross_entropy(logits, step.labels) + self.weight * ramp * mixing
        return Outcome.of(loss, logits, step.labels, mixing=mixing)

    def ends(self, step: Step, eps: torch.Tensor, ramp: float) -> tuple[torch.Tensor, torch.Tensor]:
        """The two inputs that are mixed: the clean side, and the adversarial one."""
        x = step.inputs.detach()
        near, far = x, x
        with step.model.aside():
            for number in range(self.steps):
                far = (far + self.length * slope(step, eps, far)).clamp(self.low, self.high)
                if self.one_step and number == 0:
                    near = (x + within(far - x, ramp * self.length, lead=1)).clamp(self.low, self.high)
        return near, far

    def cost(self, progress: Progress) -> float:
        """One pass per copy for every step of the attack, and two for the loss."""
        return self.draws * (2 + self.steps)
