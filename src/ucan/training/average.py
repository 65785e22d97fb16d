"""The moving average of the weights while they are trained."""

from __future__ import annotations

import torch
from torch import nn


class Average:
    """The moving average of a module's state; what is no floating-point number is copied.

    The module's own tensors are held, since going through its names at every step takes longer than the average itself.
    Where a module puts another tensor in the place of one, as in ``self.seen = self.seen + 1``, they are collected again.
    """

    def __init__(self, average: dict[str, torch.Tensor], module: nn.Module) -> None:
        self.average, self.module = average, module
        self._collect()

    def update(self, decay: float) -> None:
        """average ← decay·average + (1 − decay)·state."""
        if any(owner.get(name) is not held for owner, name, held in self.places):
            self._collect()
        with torch.no_grad():
            torch._foreach_lerp_(*self.floats, 1 - decay)
            if self.others[0]:
                torch._foreach_copy_(*self.others)

    def _collect(self) -> None:
        """The tensors of the module's state, and where each is held; one that a module makes for its state is nowhere."""
        state = self.module.state_dict(keep_vars=True)
        owned = {
            f"{path}.{name}" if path else name: (owner, name)
            for path, part in self.module.named_modules(remove_duplicate=False)
            for owner in (part._parameters, part._buffers)
            for name in owner
        }
        self.places = [(*owned.get(name, ({}, name)), state[name]) for name in self.average]
        floats = [name for name, kept in self.average.items() if kept.is_floating_point()]
        others = [name for name, kept in self.average.items() if not kept.is_floating_point()]
        self.floats, self.others = (
            ([self.average[name] for name in names], [state[name] for name in names]) for names in (floats, others)
        )
