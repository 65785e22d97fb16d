"""What is kept of the answers to noisy copies: of a classifier, how often each class was answered."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch


@dataclass(frozen=True)
class Votes:
    """How often each class was answered, and how often nothing valid was."""

    counts: torch.Tensor
    invalid: int

    @classmethod
    def of(cls, tally: torch.Tensor) -> Votes:
        """From a tally (num_classes + 1,), whose last entry counts the invalid votes."""
        tally = tally.cpu()
        return cls(tally[:-1], int(tally[-1]))


class Keep(ABC):
    """What is kept of the answers to the noisy copies of one input: it grows pass by pass, in bounded memory.

    ``adds_up``: what is kept of some answers and what is kept of others add up to what is kept of all of them.
    """

    adds_up: ClassVar[bool] = True

    @abstractmethod
    def add(self, kept: torch.Tensor | None, answers: torch.Tensor, start: int, n: int) -> torch.Tensor:
        """What is kept after these answers (copies, *answer) as well, of the n there will be; ``start`` came before them."""

    @abstractmethod
    def received(self, kept: torch.Tensor) -> Any:
        """What is made of it on the host, once all answers are there."""

    def so_far(self, kept: Any, seen: int) -> Any:
        """The same before the end, of the answers seen so far."""
        return self.received(kept)


@dataclass(frozen=True)
class Classes(Keep):
    """How often each class was answered; the last count is that of invalid answers."""

    num_classes: int

    def add(self, kept: torch.Tensor | None, answers: torch.Tensor, start: int, n: int) -> torch.Tensor:
        """The tally (num_classes + 1,) so far."""
        if kept is None:
            kept = torch.zeros(self.num_classes + 1, dtype=torch.int64, device=answers.device)
        return kept.scatter_add_(0, answers, torch.ones_like(answers))

    def received(self, kept: torch.Tensor) -> Votes:
        """The votes."""
        return Votes.of(kept)
