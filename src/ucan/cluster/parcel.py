"""What travels to a worker: the classifier once, every input once, and then only which blocks to count."""

from __future__ import annotations

import copy
import io
import itertools
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from ucan.errors import ModelError
from ucan.generators import Generator
from ucan.laws import Law
from ucan.plan import CertifyPlan, PredictPlan
from ucan.votes import Job, Stream


@dataclass(frozen=True)
class Package:
    """Everything that does not depend on the input: sent to each worker once, as bytes, on the CPU."""

    model: Any
    num_classes: int
    M: Generator
    law: Law
    backend: str
    plan: CertifyPlan | PredictPlan
    first: torch.Tensor

    def pack(self) -> bytes:
        """The bytes; tensors come from the device as they lie there, strides and all."""
        from ray import cloudpickle

        sent = replace(self, model=_on_cpu(self.model), M=_on_cpu(self.M), first=self.first.cpu())
        with _sendable("the classifier"):
            return cloudpickle.dumps(sent)


@contextmanager
def _sendable(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # whatever a user's class holds that cannot be written down
        raise ModelError(
            f"{what} cannot be sent to workers ({type(error).__name__}: {error}): make it of modules, tensors and plain "
            "values, in a module that the workers can import."
        ) from error


def _on_cpu(model: Any) -> Any:
    on_gpu = isinstance(model, nn.Module) and any(
        t.is_cuda for t in itertools.chain(model.parameters(), model.buffers())
    )
    return copy.deepcopy(model).cpu() if on_gpu else model


# --- inputs, and generators held at them ---


def known_tensors(M: Generator) -> list[torch.Tensor]:
    """What a worker has already, as part of the generator."""
    return [*M.parameters(), *M.buffers()]


class _Pickler(pickle.Pickler):
    """Leaves out the generator and its tensors, which the worker has, and writes other tensors for any device."""

    def __init__(self, file: io.BytesIO, M: Generator) -> None:
        super().__init__(file, protocol=5)
        self.M = M
        self.known = {_place(t): i for i, t in enumerate(known_tensors(M))}

    def persistent_id(self, obj: Any) -> Any:
        if obj is self.M:
            return ("generator",)
        if not isinstance(obj, torch.Tensor):
            return None
        if _place(obj) in self.known:
            return ("known", self.known[_place(obj)])
        flat = obj.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        return ("tensor", flat.numpy().tobytes(), obj.dtype, tuple(obj.shape))


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, M: Generator, device: torch.device) -> None:
        super().__init__(file)
        self.M = M
        self.device = device

    def persistent_load(self, pid: Any) -> Any:
        if pid[0] == "generator":
            return self.M
        if pid[0] == "known":
            return known_tensors(self.M)[pid[1]]
        _, data, dtype, shape = pid
        flat = torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0, dtype=dtype)
        return flat.reshape(shape).to(self.device)


def _place(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Where a tensor lies: two of the same place hold the same numbers."""
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()


def to_bytes(thing: Any, M: Generator) -> bytes:
    """An input, or a generator held at it, for workers that have the generator M."""
    file = io.BytesIO()
    with _sendable(f"{type(thing).__name__} of {M.describe()}"):
        _Pickler(file, M).dump(thing)
    return file.getvalue()


def from_bytes(data: bytes, M: Generator, device: torch.device) -> Any:
    """The inverse of ``to_bytes``, on a worker's device."""
    return _Unpickler(io.BytesIO(data), M, device).load()


# --- work ---


@dataclass(frozen=True)
class Piece:
    """Consecutive blocks of one input and one phase: of the last only ``take`` votes count, of the others all.

    ``x`` and ``M`` are references into Ray's object store, from which a machine fetches each once.
    """

    x: Any
    M: Any
    stream: Stream
    first: int
    count: int
    take: int

    def jobs(self, x: torch.Tensor, M: Generator, block: int) -> Iterator[Job]:
        """The blocks, for a vote counter."""
        last = self.first + self.count - 1
        for number in range(self.first, last + 1):
            yield Job(M, x, self.stream, number, self.take if number == last else block)


@dataclass(frozen=True)
class Unit:
    """What a worker is asked in one call: pieces, answered by one row of counts each, or by one for each block."""

    pieces: tuple[Piece, ...]
    by_block: bool

    @property
    def blocks(self) -> int:
        """How many blocks there are to count."""
        return sum(piece.count for piece in self.pieces)
