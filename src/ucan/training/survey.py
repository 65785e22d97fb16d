"""Evaluate all training inputs between two epochs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from ucan.training.step import Progress, Step


@dataclass(frozen=True)
class Survey:
    """All training inputs, without augmentation, for a recipe that evaluates them before an epoch.

    ``steps`` gives them in batches of one size, the last one filled up from the start; ``scope`` is entered around the
    passes.
    """

    progress: Progress
    inputs: int
    steps: Callable[[], Iterator[Step]]
    scope: Callable[[], AbstractContextManager[object]]

    def each(self, answer: Callable[[Step], torch.Tensor]) -> torch.Tensor:
        """The values of ``answer`` (batch → (batch, …)) for every training input: (inputs, …), the same in all processes.

        The classifier is in evaluation mode, and there are no gradients.
        """
        found: torch.Tensor | None = None
        with self.scope(), torch.no_grad():
            for step in self.steps():
                with step.model.aside():
                    values = step.together(answer(step))
                if found is None:
                    found = values.new_zeros(self.inputs, *values.shape[1:])
                found[step.together(step.places)] = values
        assert found is not None  # a training set is never empty
        return found


def answers_of(step: Step, votes: int) -> Iterator[torch.Tensor]:
    """The answers to so many noisy copies (n, batch); a few at a time, to fit into memory."""
    for begun in range(0, votes, 4):
        yield step.model(step.noise.copies(min(4, votes - begun))).argmax(-1)


def right_share(step: Step, votes: int) -> torch.Tensor:
    """The share of so many noisy copies that are answered correctly (batch,)."""
    right = torch.zeros(len(step.labels), device=step.inputs.device)
    for answers in answers_of(step, votes):
        right += (answers == step.labels).sum(0)
    return right / votes
