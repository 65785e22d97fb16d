"""How a network's logits change along a direction of its inputs, in a form that can be compiled and differentiated once more.

A loss that contains ∇ₓm(x), the gradient of a number m by the inputs, is differentiated by the weights. PyTorch does that by
going backward through a backward pass, which its compiler does not support. But for a fixed direction v, ⟨v, ∇ₓm⟩ is the
derivative of m along v, which one forward pass gives with the logits: what is left is one backward pass, as for any other loss.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ucan.errors import first_line

Pair = tuple[torch.Tensor, torch.Tensor]
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
# Of these the way along a direction gives other gradients, without a word: dropout draws anew in every pass, and PyTorch takes
# the others' statistics for constants, as it does in batch norm.
UNFIT = (nn.LayerNorm, nn.modules.instancenorm._InstanceNorm, nn.modules.dropout._DropoutNd)


def along(network: Callable[[torch.Tensor], torch.Tensor], inputs: torch.Tensor, direction: torch.Tensor) -> Pair:
    """Logits and their derivative along a direction of the inputs; both can be differentiated by the weights."""
    logits, change, *_ = torch.func.jvp(network, (inputs,), (direction,))
    return logits, change


class OpenBatchNorm(nn.modules.batchnorm._BatchNorm):
    """Batch norm by the batch, without a memory, in operations that have all derivatives.

    PyTorch's own takes the batch's statistics for constants when it differentiates the derivative along a direction.
    """

    def _check_input_dim(self, input: torch.Tensor) -> None:
        """Any number of dimensions after the channels."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalised by the batch in training; otherwise plain batch norm."""
        if not self.training:
            return super().forward(input)
        x = input if input.dtype == torch.float64 else input.float()
        var, mean = torch.var_mean(x, [0, *range(2, x.ndim)], correction=0, keepdim=True)
        normal = (x - mean) * (var + self.eps).rsqrt()
        if self.affine:
            shape = (1, -1, *[1] * (x.ndim - 2))
            normal = normal * self.weight.reshape(shape) + self.bias.reshape(shape)
        return normal.to(input.dtype)


def twin_of(network: nn.Module) -> nn.Module:
    """The same network with the very same weights, whose passes leave its running statistics alone."""
    shared: dict[int, Any] = {id(tensor): tensor for tensor in (*network.parameters(), *network.buffers())}
    twin = copy.deepcopy(network, shared)
    for module in twin.modules():
        if type(module) in NORMS:
            module.__class__ = OpenBatchNorm
    return twin


class Tangent:
    """``along`` of one network, by a compiled form of it that several networks share.

    Where a network has a part without such derivatives, or the compiler fails, it says so once and answers None from then on.
    """

    def __init__(self, network: nn.Module, compiled: Callable[..., Pair] = along) -> None:
        self.network = network
        self.twin = twin_of(network)
        self.compiled = compiled
        unfit = [type(module).__name__ for module in network.modules() if isinstance(module, UNFIT)]
        self.failed = bool(unfit)
        if unfit:
            _warn(f"{unfit[0]} has other derivatives there")

    def __call__(
        self, shown: Callable[[torch.Tensor], torch.Tensor], inputs: torch.Tensor, direction: torch.Tensor
    ) -> Pair | None:
        """Logits of what is ``shown`` of the inputs, in the network's own mode, and their derivative along the direction."""
        if self.failed:
            return None
        for mine, its in zip(self.twin.modules(), self.network.modules(), strict=True):
            mine.training = its.training  # each by itself: a part may be frozen
        try:
            return self.compiled(self.twin, *along(shown, inputs, direction))
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, NotImplementedError) as error:
            self.failed = True
            _warn(first_line(error))
            return None


def _warn(why: str) -> None:
    warnings.warn(f"a slower way is taken, since this network has no compiled derivative: {why}", stacklevel=3)
