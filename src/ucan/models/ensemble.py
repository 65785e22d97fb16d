"""Several networks as one classifier: their logits are averaged before the class is chosen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from ucan.errors import ModelError


class Called(nn.Module):
    """A function on batches, as a part of a network."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *arguments: torch.Tensor) -> Any:
        """Call the function."""
        return self.function(*arguments)


def as_module(model: Any, role: str) -> nn.Module:
    """Wrap a model as a module; refuses an object that cannot be called. ``role`` names it in the error."""
    if isinstance(model, nn.Module):
        return model
    if isinstance(model, type) or not callable(model):
        raise ModelError(f"{role} must be a torch.nn.Module or a function on batches, got {model!r}.")
    return Called(model)


class Ensemble(nn.Module):
    """The mean of the members' logits (boosting, Horváth et al., 2022): a class wins fewer votes by chance.

    members: networks, or functions on batches, that return logits for the same classes.
    mirrored: also evaluate every member on the mirror image (the last axis reversed) and average both.
    consensus: if given, the first ``consensus`` members are evaluated first. If they all choose the same class, their mean is
    the answer and the others are not evaluated. This is *another classifier*, not a faster version of the same one: its
    certificates are about it, and predict must use it as well. It is part of the classifier's identity.
    """

    def __init__(self, members: Sequence[Any], mirrored: bool = False, consensus: int | None = None) -> None:
        super().__init__()
        if not isinstance(members, Sequence) or not members:
            raise ModelError("an ensemble needs a list of at least one network.")
        if consensus is not None and len(members) < 3:
            raise ModelError(
                f"consensus is for three members and more, of which the first ones are asked first, and here are "
                f"{len(members)}: leave it out."
            )
        if consensus is not None and (type(consensus) is not int or not 2 <= consensus < len(members)):
            raise ModelError(
                f"consensus must be a whole number from 2 to {len(members) - 1}, fewer than the {len(members)} members, got "
                f"{consensus!r}."
            )
        self.members = nn.ModuleList(as_module(member, "a member of an ensemble") for member in members)
        self.mirrored = bool(mirrored)
        self.consensus = consensus
        self.eval()

    @property
    def jumps(self) -> bool:
        """Whether logits jump where rounding changes which members agree."""
        return self.consensus is not None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits (n, classes)."""
        if self.consensus is None:
            return self._logits(x, 0, len(self.members)).mean(0)
        first = self._logits(x, 0, self.consensus)  # shape: (consensus, n, classes)
        answers = first.argmax(-1)
        split = (answers != answers[0]).any(0)
        mean = first.mean(0)
        if bool(split.any()):
            others = self._logits(x[split], self.consensus, len(self.members))
            mean[split] = torch.cat((first[:, split], others)).mean(0)
        return mean

    def _logits(self, x: torch.Tensor, start: int, end: int) -> torch.Tensor:
        """The logits of these members, each the mean over its views: (members, n, classes)."""
        views = (x, x.flip(-1)) if self.mirrored else (x,)
        answers = []
        for member in self.members[start:end]:
            logits = [_tensor(member(view)) for view in views]
            answers.append(logits[0] if len(logits) == 1 else torch.stack(logits).mean(0))
            if answers[-1].shape != answers[0].shape:
                raise ModelError(
                    f"the members of an ensemble return logits of shapes {tuple(answers[0].shape)} and "
                    f"{tuple(answers[-1].shape)}: all must have the same classes."
                )
        return torch.stack(answers)


def _tensor(output: Any) -> torch.Tensor:
    """Logits as a tensor (n, classes)."""
    logits = getattr(output, "logits", output)
    if not isinstance(logits, torch.Tensor) or logits.ndim != 2:
        raise ModelError("a member of an ensemble must return logits (n, classes): class numbers cannot be averaged.")
    return logits


def networks_in(model: Any) -> int:
    """How many networks a classifier has: the members of its ensembles, also of ensembles within them; 1 without any."""
    if not isinstance(model, nn.Module):
        return 1
    holds = [child for child in model.children() if any(isinstance(part, Ensemble) for part in child.modules())]
    parts = list(model.members) if isinstance(model, Ensemble) else holds
    return sum(map(networks_in, parts)) or 1
