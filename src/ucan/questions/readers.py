"""What an answer of a model is: numbers, or a class at each of many places; and what is kept of many answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from ucan.errors import ModelError
from ucan.votes import Classifier, Keep, as_answer

# Numbers of this size are as good as infinite: files have this for ±∞, and for a value that is missing, which JSON lacks.
ENDLESS = 1e308
# Answers that are counted at once.
AT_ONCE = 2**22


@dataclass(frozen=True, eq=False)
class Sample:
    """The numbers that n noisy copies were answered with, float64 (n, *outputs); NaN where there was no number."""

    values: torch.Tensor

    @property
    def n(self) -> int:
        """The number of copies."""
        return len(self.values)

    @property
    def invalid(self) -> int:
        """Copies with an answer that is not a number."""
        return int(self.values.flatten(1).isnan().any(1).sum())


@dataclass(frozen=True, eq=False)
class Counts:
    """How often each class was answered at each place, int64 (classes + 1, *places); the last are invalid answers."""

    tally: torch.Tensor

    @property
    def n(self) -> int:
        """The number of copies."""
        return int(self.tally.flatten(1)[:, 0].sum())

    @property
    def chosen(self) -> torch.Tensor:
        """The most answered class at each place, int64."""
        return self.tally[:-1].argmax(0)

    @property
    def invalid(self) -> int:
        """The most invalid answers at any place."""
        return int(self.tally[-1].max())

    def of(self, classes: torch.Tensor) -> np.ndarray:
        """How often these classes (*places) were answered."""
        found: np.ndarray = self.tally.gather(0, classes[None])[0].numpy()
        return found


def _check_shape(shape: torch.Size, answers: torch.Tensor) -> None:
    """Refuse answers of another shape than those before, which would be spread over places that they are not about."""
    if answers.shape[1:] != shape:
        raise ModelError(
            f"the model answered with shape {tuple(shape)} for one noisy copy and {tuple(answers.shape[1:])} for another: it "
            f"must give as many numbers, boxes or pixels for every copy (pad them with NaN, or with a class for nothing)."
        )


class KeepNumbers(Keep):
    """All numbers, in the precision of the answers: n times as many as one answer has."""

    adds_up: ClassVar[bool] = False

    def add(self, kept: torch.Tensor | None, answers: torch.Tensor, start: int, n: int) -> torch.Tensor:
        """The numbers so far."""
        if kept is None:
            kept = torch.full((n, *answers.shape[1:]), torch.nan, dtype=answers.dtype, device=answers.device)
        _check_shape(kept.shape[1:], answers)
        kept[start : start + len(answers)] = answers
        return kept

    def received(self, kept: torch.Tensor) -> Sample:
        """All of them."""
        return Sample(kept.double())

    def so_far(self, kept: torch.Tensor, seen: int) -> Sample:
        """The first of them."""
        return self.received(kept[:seen])


@dataclass(frozen=True)
class KeepCounts(Keep):
    """A count for each class and place, however many copies there are."""

    num_classes: int

    def add(self, kept: torch.Tensor | None, answers: torch.Tensor, start: int, n: int) -> torch.Tensor:
        """The counts so far; some copies at a time, so that nothing large is made beside the answers."""
        if kept is None:
            size = (self.num_classes + 1, *answers.shape[1:])
            kept = torch.zeros(size, dtype=torch.int32, device=answers.device)
        _check_shape(kept.shape[1:], answers)
        flat, one = kept.flatten(1), torch.ones((), dtype=torch.int32, device=answers.device)
        for part in answers.flatten(1).split(max(1, AT_ONCE // flat.shape[1])):
            flat.scatter_add_(0, part.long(), one.expand(part.shape))
        return kept

    def received(self, kept: torch.Tensor) -> Counts:
        """The counts."""
        return Counts(kept.long())


class Numbers(Classifier):
    """Any callable from a batch to one number, or an array of numbers, for each input."""

    has_logits: ClassVar[bool] = False

    def __init__(self, model: Callable[[torch.Tensor], Any]) -> None:
        super().__init__(model, 2)  # it has no classes; a classifier must name at least two

    @property
    def keep(self) -> Keep:
        """All numbers."""
        return KeepNumbers()

    def to_votes(self, output: Any, size: int) -> torch.Tensor:
        """The numbers (size, *outputs), with at least one axis of outputs; infinite ones are as good as none."""
        output = as_answer(output)
        if output.ndim < 1 or len(output) != size or output.is_complex():
            raise ModelError(
                f"the model answered a batch of {size} with {output.dtype} of shape {tuple(output.shape)}; it must give one "
                f"number for each input, or an array of numbers, of shape ({size}, …)."
            )
        exact = output.dtype == torch.float64 or not output.is_floating_point()  # float32 has whole numbers to 2²⁴ only
        numbers = output.double() if exact else output.float()
        numbers = numbers[:, None] if numbers.ndim == 1 else numbers
        endless = numbers.abs() >= ENDLESS if exact else numbers.isinf()
        return torch.where(endless, torch.nan, numbers)

    def differing(self, votes: torch.Tensor, others: torch.Tensor, tolerance: float) -> float:
        """The share of numbers that are off by more than this share of how much the numbers spread, and of their size.

        What is the difference of large numbers inside a model is rounded at their size, so that some of it counts.
        """
        known = votes.nan_to_num()
        room = tolerance * (known.std(0) + 0.01 * known.abs().mean(0))
        wrong = ~((votes - others).abs() <= room) & ~(votes.isnan() & others.isnan())
        return float(wrong.double().mean())

    def _agree(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        """Whether two answers are the same, up to a share of how much answers differ from each other."""
        if one.shape != other.shape:
            return False
        one, other = (t.double().flatten(1) if t.ndim > 1 else t.double()[:, None] for t in (one, other))
        room = 2.0**-5 * (one.nan_to_num().amax(0) - one.nan_to_num().amin(0)) + 1e-6 * one.nan_to_num().abs().amax(0)
        apart = (one - other).abs()
        return bool((one.isnan() == other.isnan()).all() and (apart.nan_to_num() <= room).all())

    def _strangers(self, answers: torch.Tensor, others: torch.Tensor) -> list[torch.Tensor]:
        """All of them: numbers of a batch's own scale say nothing."""
        return list(others.split(1))


class Places(Classifier):
    """Any callable from a batch to a class at each of many places: the pixels of a mask.

    The model gives logits (n, num_classes, *places) or class numbers (n, *places), whole numbers.
    """

    has_logits: ClassVar[bool] = False

    @property
    def keep(self) -> Keep:
        """A count for each class and place."""
        return KeepCounts(self.num_classes)

    def to_votes(self, output: Any, size: int) -> torch.Tensor:
        """The classes (size, *places) in as few bytes as they need; ``num_classes`` stands for an invalid answer."""
        output = as_answer(output)
        kind = torch.uint8 if self.num_classes < 255 else torch.int32
        if output.ndim >= 2 and len(output) == size and not (output.is_floating_point() or output.is_complex()):
            index = output.long()
            return torch.where((index >= 0) & (index < self.num_classes), index, self.num_classes).to(kind)
        if output.ndim < 3 or len(output) != size or output.shape[1] != self.num_classes:
            raise ModelError(
                f"the model answered a batch of {size} with {output.dtype} of shape {tuple(output.shape)}; it must give "
                f"logits of shape ({size}, {self.num_classes}, height, width) or whole class numbers ({size}, height, width)."
            )
        # The last of the largest, in a few passes: on a CPU many times as fast as argmax across the first axis.
        best = output.amax(1, keepdim=True)
        number = torch.arange(self.num_classes, dtype=kind, device=output.device)
        index = ((output == best) * number.reshape(-1, *[1] * (output.ndim - 2))).amax(1)
        votes: torch.Tensor = index.masked_fill(best[:, 0].isnan(), self.num_classes)
        return votes

    def margins(self, output: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        """How far the logits of these classes (*places) are ahead of the others', (n, places); ±1 for class numbers."""
        output = as_answer(output)
        wanted = classes.to(output.device).expand(len(output), *classes.shape)
        if not output.is_floating_point():
            return torch.where(output == wanted, 1.0, -1.0).flatten(1)
        own = output.gather(1, wanted[:, None])
        others = output.scatter(1, wanted[:, None], -torch.inf).amax(1)
        return (own[:, 0] - others).flatten(1)

    def _agree(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        """Whether two answers have the same class at nearly all places: near ties may fall either way."""
        mine, theirs = self.to_votes(one, len(one)), self.to_votes(other, len(other))
        return mine.shape == theirs.shape and float((mine != theirs).double().mean()) <= 2.0**-5

    def _strangers(self, answers: torch.Tensor, others: torch.Tensor) -> list[torch.Tensor]:
        """All of them."""
        return list(others.split(1))


class Labels(Places):
    """Any callable from a batch to whether each label is there: logits (n, labels), above 0 for yes, or whole 0 and 1."""

    def __init__(self, model: Callable[[torch.Tensor], Any]) -> None:
        super().__init__(model, 2)

    def to_votes(self, output: Any, size: int) -> torch.Tensor:
        """1 where a label is there, 0 where not, (size, labels); 2 for an invalid answer."""
        output = as_answer(output)
        if output.ndim != 2 or len(output) != size or output.is_complex():
            raise ModelError(
                f"the model answered a batch of {size} with {output.dtype} of shape {tuple(output.shape)}; it must give one "
                f"logit for each label, of shape ({size}, labels)."
            )
        if output.is_floating_point():
            return torch.where(output.isnan(), 2, output > 0).to(torch.uint8)
        index = output.long()
        return torch.where((index >= 0) & (index < 2), index, 2).to(torch.uint8)

    def margins(self, output: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        """How far each label's logit is on the side of these answers, (n, labels)."""
        output = as_answer(output)
        signs = 2 * classes.to(output.device).double() - 1
        centred = output if output.is_floating_point() else output - 0.5
        return centred * signs.to(centred.dtype)
