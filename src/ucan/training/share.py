"""Training with several processes: each takes its share of every batch, and the steps are those of the whole batch."""

from __future__ import annotations

import atexit
import gc
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import nn

from ucan.errors import InvalidInput
from ucan.laws import Law


@dataclass(frozen=True)
class Share:
    """The share of one process in a batch: every ``world``-th input, starting at its rank."""

    batch: int
    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        if self.batch < self.world:
            raise InvalidInput(
                f"a batch of {self.batch} cannot be shared by {self.world} processes: start fewer, or raise batch."
            )

    @property
    def part(self) -> slice:
        """Its places in the batch."""
        return slice(self.rank, None, self.world)

    @property
    def fraction(self) -> float:
        """Its part of the batch's mean: shares differ by one input where the batch does not divide."""
        return len(range(self.batch)[self.part]) / self.batch

    def law(self, law: Law) -> Law:
        """The same law, whose draws for this share are those that the whole batch would get in its places.

        So the noise is that of a single process. Every process draws all of it: a small part of a training step.
        """
        if self.world == 1:
            return law
        batch, part = self.batch, self.part
        size = len(range(batch)[part])

        class Shared(type(law)):  # type: ignore[misc]
            def sample(
                self, n: int, shape: Sequence[int], rng: torch.Generator, dtype: torch.dtype = torch.float32
            ) -> torch.Tensor:
                whole = super().sample(n // size * batch, shape, rng, dtype)
                found: torch.Tensor = whole.reshape(-1, batch, *shape)[:, part].flatten(0, 1)
                return found

        return Shared(**vars(law))


def launched() -> tuple[int, int]:
    """(processes per node, nodes) as torchrun or Slurm have started them; (1, 1) without either."""
    env = os.environ
    if int(env.get("WORLD_SIZE", "1")) > 1:
        local = int(env.get("LOCAL_WORLD_SIZE", env["WORLD_SIZE"]))
        return local, int(env["WORLD_SIZE"]) // local
    if int(env.get("SLURM_STEP_NUM_TASKS", "1")) > 1:  # what srun starts; the job's own script has no such number
        nodes = int(env.get("SLURM_STEP_NUM_NODES", "1"))
        return int(env["SLURM_STEP_NUM_TASKS"]) // nodes, nodes
    return 1, 1


class Leaving:
    """Closes the connection of the processes before Python exits, and ends its threads.

    gloo's threads hold the tensors of the last operations. One that gives a tensor back while Python exits is killed, and
    takes the process with it ("terminate called without an active exception"). They end when nothing holds the connection
    any more, and the module that averages gradients (``Trainer.wrapped``) does: while there is a Trainer, or garbage in a
    cycle with one, destroying the group alone does not end them.

    There is no barrier here: where one process failed, the others would wait for it. ``Trainer.run`` ends with one.
    """

    def __init__(self) -> None:
        self._trainers: WeakSet[Any] = WeakSet()
        self._expected = False

    def expect(self, trainer: Any) -> None:
        """Leave in order, also if this Trainer is still there then."""
        if not self._expected:
            atexit.register(self.leave)
        self._expected = True
        self._trainers.add(trainer)

    def leave(self) -> None:
        """Once, at the end. The group goes last: only it waits for its threads without keeping Python from them."""
        for trainer in self._trainers:
            trainer.wrapped = None
        gc.collect()
        if dist.is_available() and dist.is_initialized():
            dist.destroy_process_group()


LEAVING = Leaving()


def share_statistics(model: nn.Module, device: torch.device) -> nn.Module:
    """The model with batch norm over the whole batch instead of each process's share; same weights, same names."""
    if device.type == "cuda":
        found: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        return found
    for module in model.modules():
        if type(module) in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d):
            module.__class__ = SharedBatchNorm
    return model


class SharedBatchNorm(nn.modules.batchnorm._BatchNorm):
    """Batch norm whose mean and variance are those of all processes' inputs; torch's own does that on GPUs only."""

    def _check_input_dim(self, input: torch.Tensor) -> None:
        """Any number of dimensions after the channels."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """In training, normalise by the statistics of all processes; otherwise plain batch norm."""
        if not self.training:
            return super().forward(input)
        x = input if input.dtype == torch.float64 else input.float()
        dims = [0, *range(2, input.ndim)]
        count = torch.tensor(x.numel() // x.shape[1], dtype=torch.float64)
        dist.all_reduce(count)
        mean = _sum(x.sum(dims)) / count
        shape = (1, -1, *[1] * (x.ndim - 2))
        centred = x - mean.reshape(shape)
        var = _sum(centred.square().sum(dims)) / count
        if self.track_running_stats:
            self._remember(mean.detach(), var.detach() * count / (count - 1))
        normal = centred * (var + self.eps).rsqrt().reshape(shape)
        if self.affine:
            normal = normal * self.weight.reshape(shape) + self.bias.reshape(shape)
        return normal.to(input.dtype)

    def _remember(self, mean: torch.Tensor, var: torch.Tensor) -> None:
        running: Any = self
        running.num_batches_tracked.add_(1)
        step = self.momentum if self.momentum is not None else 1 / float(running.num_batches_tracked)
        running.running_mean.lerp_(mean.to(running.running_mean), step)
        running.running_var.lerp_(var.to(running.running_var), step)


def summed(tensor: torch.Tensor) -> torch.Tensor:
    """The sum over all processes, without gradients."""
    total = tensor.detach().clone()
    dist.all_reduce(total)
    return total


def gathered(values: torch.Tensor, share: Share) -> torch.Tensor:
    """The values (share, …) of all processes, in the order of the whole batch; without gradients."""
    if share.world == 1:
        return values
    most = -(-share.batch // share.world)
    padded = torch.cat([values, values[:1]])[:most] if len(values) < most else values  # shares differ by one at most
    parts = [torch.empty_like(padded) for _ in range(share.world)]
    dist.all_gather(parts, padded.contiguous())
    return torch.stack(parts, 1).flatten(0, 1)[: share.batch]


class _Sum(torch.autograd.Function):
    """The sum over all processes; its gradient is the sum of theirs, which can be differentiated again, as drt does.

    Not the one of ``torch.distributed.nn``: its functions keep the group of the time of their import, and so its threads,
    past ``Leaving``.
    """

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        return summed(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return _sum(gradients[0])


def _sum(tensor: torch.Tensor) -> torch.Tensor:
    """The sum over all processes, through which gradients flow to all of them."""
    apply: Any = _Sum.apply
    found: torch.Tensor = apply(tensor)
    return found
