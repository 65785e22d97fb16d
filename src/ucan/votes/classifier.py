"""The classifier f: any callable, made to answer with valid class indices, each input by itself."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from numbers import Integral
from typing import Any, ClassVar, Self

import torch
from torch import nn

from ucan.errors import InvalidInput, ModelError
from ucan.fingerprint import weights_hash
from ucan.votes.kept import Classes, Keep


class Classifier:
    """Any callable that maps a batch to logits or to class indices, made to answer with valid class indices.

    The answer for a batch is an int64 tensor; ``num_classes`` stands for an invalid vote (NaN logits, or an index out
    of range), which counts for no class. ``assumed``: nobody gave the number of classes, which an error then says.
    """

    has_logits: ClassVar[bool] = True  # a model's output (n, num_classes) in floating point is logits of classes

    def __init__(self, model: Callable[[torch.Tensor], Any], num_classes: int, assumed: bool = False) -> None:
        whole = isinstance(num_classes, Integral) and not isinstance(num_classes, bool)
        if not callable(model):
            raise ModelError(f"the model must be callable on a batch of inputs, got {type(model).__name__}.")
        if not whole or num_classes < 2:
            raise InvalidInput(f"num_classes must be a whole number of at least 2, got {num_classes!r}.")
        self.model = model
        self.num_classes, self.assumed = int(num_classes), assumed

    @property
    def keep(self) -> Keep:
        """What is kept of its answers."""
        return Classes(self.num_classes)

    def reading(self, model: Callable[[torch.Tensor], Any]) -> Self:
        """The answers of another model, read in the same way."""
        made = copy.copy(self)
        made.model = model
        return made

    @property
    def device(self) -> torch.device | None:
        """Where the module's weights are now; None for a plain function."""
        first = self._first()
        return None if first is None else first.device

    @property
    def dtype(self) -> torch.dtype | None:
        """The precision of the module's weights now; None where they do not tell."""
        first = self._first()
        return first.dtype if first is not None and first.is_floating_point() else None

    def _first(self) -> torch.Tensor | None:
        return next(self.model.parameters(), None) if isinstance(self.model, nn.Module) else None

    def check_ready(self) -> None:
        """Refuse a module in training mode: its answers would depend on the batch, and no theorem covers that."""
        if isinstance(self.model, nn.Module):
            training = [name or "the model" for name, m in self.model.named_modules() if m.training]
            if training:
                raise ModelError(f"the model is in training mode ({training[0]}): call model.eval() first.")

    def __call__(self, batch: torch.Tensor) -> torch.Tensor:
        """One valid class index, or ``num_classes``, for each of the batch."""
        dtype = self.dtype
        return self.to_votes(self.model(batch if dtype is None else batch.to(dtype)), len(batch))

    @torch.inference_mode()
    def check_apart(self, batches: Iterable[torch.Tensor], others: torch.Tensor) -> None:
        """Refuse a model that answers an input differently in other company, as batch norm on the batch's own statistics does.

        Its votes would not be independent draws, which every bound takes them for. A batch is asked together, one by one,
        and among those of ``others`` that get another answer: a model that answers with the majority of its batch gives
        one answer in all company of its own kind. A near tie may fall either way, so that one of several batches must
        pass. A model that draws at random answers otherwise every time: of that one only this is told, that it draws for each
        input of a batch, not once for all of them.
        """
        if not any(self._alike_in_company(batch, others) for batch in batches):
            raise ModelError(
                "the model answers an input differently in other company, so its votes are not independent and prove nothing. "
                "Batch norm without running statistics does that: give a model that answers each input by itself."
            )

    def _alike_in_company(self, batch: torch.Tensor, others: torch.Tensor) -> bool:
        together, again = self._answers(batch), self._answers(batch)
        self.to_votes(together, len(batch))  # an answer of the wrong shape is another fault
        if not self._agree(together, again):
            self._check_draws(batch)
            return True  # it draws at random
        apart = torch.cat([self._answers(one) for one in batch.split(1)])
        if not self._agree(together, apart):
            return False
        strange = self._strangers(apart, others)
        few = batch[: len(batch) // 4]  # outnumbered: the rest of the batch are strangers
        company = torch.cat(strange * len(batch))[: len(batch) - len(few)] if strange else batch[len(few) :]
        return self._agree(together[: len(few)], self._answers(torch.cat([few, company]))[: len(few)])

    def _check_draws(self, batch: torch.Tensor) -> None:
        """Refuse a model that draws once for a whole batch: the votes of a forward pass would be one draw, counted often."""
        same = batch[:1].expand_as(batch)
        passes = [self._answers(same) for _ in range(4)]
        if all(self._agree(one, one[:1].expand_as(one)) for one in passes) and not all(
            self._agree(passes[0], one) for one in passes
        ):
            raise ModelError(
                "the model answers at random, and draws once for a whole batch, so its votes are not independent and prove "
                "nothing: let it draw for each input of the batch."
            )

    @torch.inference_mode()
    def check_unchanged(self, batch: torch.Tensor) -> None:
        """Refuse a module whose weights or buffers change with what it is asked, as test-time adaptation does."""
        if not isinstance(self.model, nn.Module):
            return
        before = weights_hash(self.model)
        self._answers(batch)
        if weights_hash(self.model) != before:
            raise ModelError(
                "the model changes its own weights or buffers while it answers, so an answer depends on what was asked before "
                "and the votes prove nothing: give a model that stays as it is."
            )

    def differing(self, votes: torch.Tensor, others: torch.Tensor, tolerance: float) -> float:
        """The share of answers in which another way to run the model differs from it."""
        return float((votes != others).double().mean())

    def _strangers(self, answers: torch.Tensor, others: torch.Tensor) -> list[torch.Tensor]:
        """Those of the others that get another answer than most of these got."""
        own = int(self.to_votes(answers, len(answers)).mode().values)
        return [one for one in others.split(1) if int(self.to_votes(self._answers(one), 1)[0]) != own]

    def _answers(self, batch: torch.Tensor) -> torch.Tensor:
        """What the model says of a copy of the batch: it may work in place."""
        return as_answer(self.model(batch.clone() if self.dtype is None else batch.to(self.dtype, copy=True)))

    def _agree(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        """Whether two answers are one: class numbers exactly, logits up to rounding."""
        if not (one.is_floating_point() and one.ndim == 2):
            return one.shape == other.shape and torch.equal(one, other)
        # Answers are what logits differ by: neither a number added to all, nor a class masked out by −1e9, may hide the rest.
        one, other = (t.double() - t.double().amax(1, keepdim=True) for t in (one, other))
        shown = one.nan_to_num(posinf=0.0, neginf=0.0).topk(min(3, one.shape[1]), dim=1).values
        size = float(-shown[:, 1].mean() - shown[:, 1].min())
        # Other company may mean another algorithm, and a network may reckon in 16 bits whatever it gives out. Statistics of
        # the batch change a ResNet's answers by 0.4 of their size.
        return torch.allclose(one, other, rtol=2.0**-5, atol=size / 16, equal_nan=True)

    def to_votes(self, output: Any, size: int) -> torch.Tensor:
        """The model's output as votes; an output of the wrong shape is an error, since every vote would be wrong."""
        output = as_answer(output)
        if output.ndim == 1 and len(output) == size and not (output.is_floating_point() or output.is_complex()):
            index = output.long()  # first of all: in eight bits num_classes may be a class
            return torch.where((index >= 0) & (index < self.num_classes), index, self.num_classes)
        if output.ndim != 2 or len(output) != size or not output.is_floating_point():
            raise ModelError(
                f"the model answered a batch of {size} with {output.dtype} of shape {tuple(output.shape)}; it must "
                f"give logits of shape ({size}, {self.num_classes}) or whole class numbers of shape ({size},)."
            )
        if output.shape[1] == 1:
            raise ModelError(
                "the model answers with one number per input. If it is the logit of the second of two classes, "
                "ucan.models.adapt(model, x) makes it two; if it is a probability p, wrap it in a function that gives "
                "torch.cat([1 - p, p], 1)."
            )
        if output.shape[1] != self.num_classes:
            raise ModelError(
                f"the model answers with {output.shape[1]} logits, but num_classes is {self.num_classes}"
                f"{', the default' if self.assumed else ''}: use num_classes={output.shape[1]} (on the command line "
                f"--classes)."
            )
        return torch.where(output.isnan().any(1), self.num_classes, output.argmax(1))


def as_answer(output: Any) -> torch.Tensor:
    """What a model answered, as a tensor: itself, the logits of a record, or those in a tuple where only one can be meant."""
    if isinstance(output, torch.Tensor):
        return output
    inner = output.get("logits") if isinstance(output, dict) else getattr(output, "logits", None)
    if isinstance(inner, torch.Tensor):  # Hugging Face's models
        return inner
    if isinstance(output, tuple | list):
        found = [part for part in output if isinstance(part, torch.Tensor) and part.ndim in (1, 2)]
        if len(found) == 1:
            return found[0]
        if len(found) > 1:
            raise ModelError(
                f"the model answers with a {type(output).__name__} of {len(found)} tensors that could be its logits: wrap "
                "it in a function, or in a module, that gives the logits alone, such as lambda batch: model(batch)[0]."
            )
    try:
        return torch.as_tensor(output)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ModelError(
            f"the model answered with a {type(output).__name__}, not with a tensor of logits or class numbers: wrap it "
            "in a function that takes them out, such as lambda batch: model(batch).logits."
        ) from error
