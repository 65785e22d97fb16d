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
from ucan.generators.base import copies_issued
from ucan.laws import Law
from ucan.plan import CertifyPlan, PredictPlan
from ucan.votes import Classifier, Job, Stream


@dataclass(frozen=True)
class Package:
    """Everything that does not depend on the input: sent to each worker once, as bytes, on the CPU."""

    f: Classifier
    M: Generator
    law: Law
    backend: str
    plan: CertifyPlan | PredictPlan
    first: torch.Tensor
    step: float | torch.Tensor | None = None

    def pack(self) -> bytes:
        """The bytes; tensors come from the device as they lie there, strides and all."""
        from ray import cloudpickle

        sent = replace(self, f=self.f.reading(_on_cpu(self.f.model)), M=_on_cpu(self.M), first=self.first.cpu())
        with _sendable("the classifier"):
            found: bytes = cloudpickle.dumps(sent)
            return found


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


class Codec:
    """Writes inputs, and generators held at them, for workers that have the generator M; and reads them there.

    What M holds is left out, so that noise which all inputs share costs a few hundred bytes, whatever the size of Σ.
    Other tensors are written for any device.
    """

    def __init__(self, M: Generator) -> None:
        self.M = M
        self.known: list[torch.Tensor] = []
        _Recorder(self.known).dump(M)
        self.places = {_place(tensor): i for i, tensor in reversed(list(enumerate(self.known)))}

    def encode(self, thing: Any) -> bytes:
        """The bytes of an input, or of a generator held at it."""
        file = io.BytesIO()
        # Noise is held in copies of what M is made of: of those the worker has the originals.
        copies = {_place(c): self.places[_place(o)] for c, o in copies_issued(self.M) if _place(o) in self.places}
        with _sendable(f"{type(thing).__name__} of {self.M.describe()}"):
            _Pickler(file, self.M, {**self.places, **copies}).dump(thing)
        return file.getvalue()

    def decode(self, data: bytes, device: torch.device) -> Any:
        """The inverse of ``encode``, with the tensors on a worker's device."""
        return _Unpickler(io.BytesIO(data), self, device).load()


class _Recorder(pickle.Pickler):
    """Notes the tensors of an object in the order in which pickling meets them, the same wherever the object is."""

    def __init__(self, met: list[torch.Tensor]) -> None:
        super().__init__(io.BytesIO())
        self.met = met

    def persistent_id(self, obj: Any) -> Any:
        if isinstance(obj, torch.Tensor):
            self.met.append(obj)
            return "tensor"
        return None


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, M: Generator, places: dict[tuple[Any, ...], int]) -> None:
        super().__init__(file, protocol=5)
        self.M, self.places = M, places

    def persistent_id(self, obj: Any) -> Any:
        if obj is self.M:
            return ("generator",)
        if not isinstance(obj, torch.Tensor):
            return None
        if _place(obj) in self.places:
            return ("known", self.places[_place(obj)])
        flat = obj.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        return ("tensor", flat.numpy().tobytes(), obj.dtype, tuple(obj.shape))


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, codec: Codec, device: torch.device) -> None:
        super().__init__(file)
        self.codec = codec
        self.device = device

    def persistent_load(self, pid: Any) -> Any:
        if pid[0] == "generator":
            return self.codec.M
        if pid[0] == "known":
            return self.codec.known[pid[1]]
        _, data, dtype, shape = pid
        return torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape).to(self.device)


def _place(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Where a tensor lies: two of the same place hold the same numbers."""
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()


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
    """What a worker is asked in one call: pieces, answered by a row of counts each, or by the votes of each block in order."""

    pieces: tuple[Piece, ...]
    in_order: bool

    @property
    def blocks(self) -> int:
        """How many blocks there are to count."""
        return sum(piece.count for piece in self.pieces)
