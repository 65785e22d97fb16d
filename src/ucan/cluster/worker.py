"""The code of a worker: it prepares the classifier once, and counts the requested blocks of votes."""

from __future__ import annotations

import itertools
import os
import pickle
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from ucan.allocator import keep_memory
from ucan.arithmetic import Grid
from ucan.cluster.parcel import Codec, Package, Unit
from ucan.engine import Engine, Setup
from ucan.errors import ModelError
from ucan.votes import Job

# Inputs and generators that a worker remembers, in bytes: what it needs again it fetches again.
REMEMBERED = 2**28


@dataclass(frozen=True)
class Report:
    """How a worker runs the classifier. All workers must report the same, or their votes would belong to different
    classifiers.
    """

    device: str
    backend: str
    precision: str
    weights: str | None
    block: int
    size: int


class Worker:
    """One device that counts votes: a GPU, or one core of a CPU."""

    def __init__(self) -> None:
        self.engine: Engine
        self.setup: Setup
        self.codec: Codec
        self.report: Report
        self.device: torch.device
        self.things: OrderedDict[str, tuple[Any, int]] = OrderedDict()
        self.bytes = 0

    def wake(self) -> int:
        """Answers with its number as soon as the process is there."""
        return os.getpid()

    def prepare(self, data: bytes, device: str) -> Report:
        """Take in a package; afterwards units can be counted."""
        self.device = torch.device(device)
        if device == "cpu":
            torch.set_num_threads(1)  # a worker is one core
            keep_memory()
        try:
            package: Package = pickle.loads(data)
        except Exception as error:  # most often a module that is not installed here
            raise ModelError(
                f"a worker cannot load the classifier ({type(error).__name__}: {error}): workers need the same packages and "
                f"the same model files as the driver."
            ) from error
        f, grid = package.f, Grid.of(package.step)
        f = f.reading(f.model.to(self.device)) if isinstance(f.model, nn.Module) else f
        self.engine = Engine(f, package.M.to(self.device), package.law, package.backend, grid=grid)
        self.setup = self.engine.setup(package.first.to(self.device), package.plan)
        self.codec = Codec(self.engine.M)
        self.things.clear()
        self.bytes = 0
        counter, backend = self.setup.counter, self.setup.backend
        self.report = Report(
            _name(self.device), backend.name, backend.precision, self.setup.weights, counter.block, counter.size
        )
        return self.report

    def count(self, unit: Unit) -> tuple[np.ndarray, float]:
        """What a unit asks for (what is kept of each piece; or the answers of each block), and the seconds that it took."""
        start = time.perf_counter()
        counter, jobs = self.setup.counter, list[tuple[int, Job]]()
        for i, piece in enumerate(unit.pieces):
            jobs += ((i, job) for job in piece.jobs(self._get(piece.x), self._get(piece.M), counter.block))
        kept: list[Any] = [None] * len(unit.pieces)
        found = list[torch.Tensor]()
        for first in range(0, len(jobs), counter.slots):
            batch = jobs[first : first + counter.slots]
            answers = counter.answers([job for _, job in batch])
            if unit.in_order:
                found.append(answers)
            else:
                self._keep(kept, batch, answers)
        if counter.size != self.report.size:
            raise ModelError(
                f"a forward pass of {self.report.size} does not fit into a worker's memory, and all workers must use the "
                f"same size: use --batch-size {counter.size} (batch_size=) or less, in a new run."
            )
        rows = (torch.cat(found) if unit.in_order else torch.stack(kept)).cpu().numpy()
        if rows.dtype.kind != "f":
            rows = rows.astype(np.min_scalar_type(int(rows.max())))
        return rows, time.perf_counter() - start

    def _keep(self, kept: list[Any], batch: list[tuple[int, Job]], answers: torch.Tensor) -> None:
        """Add the answers (jobs, block, *answer) of a forward pass to what is kept of their pieces."""
        keep, start = self.setup.counter.keep, 0
        for i, same in itertools.groupby(batch, key=lambda item: item[0]):
            takes = [job.take for _, job in same]  # only a stream's last block is taken in part
            mine = answers[start : start + len(takes)].flatten(0, 1)[: sum(takes)]
            kept[i] = keep.add(kept[i], mine, 0, 0)  # what adds up does not ask where it is in its stream
            start += len(takes)

    def _get(self, ref: Any) -> Any:
        """An input, or a generator held at it: remembered, or fetched from the object store."""
        import ray

        name = ref.hex()
        if name not in self.things:
            data = ray.get(ref)
            self.things[name] = self.codec.decode(data, self.device), len(data)
            self.bytes += len(data)
        self.things.move_to_end(name)
        while self.bytes > REMEMBERED and len(self.things) > 1:
            self.bytes -= self.things.popitem(last=False)[1][1]
        return self.things[name][0]


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
