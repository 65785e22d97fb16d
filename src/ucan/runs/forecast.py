"""A dry run: check a job and time a few of its votes, without writing anything."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ucan.arithmetic import arithmetic_of
from ucan.data.tables import Table
from ucan.results.database import OUTCOMES
from ucan.results.folder import results_in
from ucan.results.store import Store
from ucan.runs.prepare import CertifyJob, prepared
from ucan.runs.progress import SILENT, Progress
from ucan.votes import forward_size


@dataclass(frozen=True)
class Planned:
    """The result of a dry run: the number of inputs and samples, and their rate."""

    run: Path
    inputs: int
    done: int
    samples: int
    rate: float
    varying: Mapping[str, float]
    held: tuple[str, ...]
    class_names: tuple[str, ...] | None
    arithmetic: str

    @property
    def seconds(self) -> float:
        """The estimated time left if no input stops early."""
        return (self.inputs - self.done) * self.samples / self.rate


def forecast(job: CertifyJob, out: str | Path | None = None, progress: Progress = SILENT) -> Planned:
    """Check a job as ``certify`` does, and time a few of its votes; nothing is written.

    Args:
        job: the job to check.
        out: the run's folder, as for ``certify``.
        progress: receives messages; silent by default.
    """
    work = prepared(job, out, progress)
    g, size = work.here, forward_size(work.first.numel(), work.first.device)
    for _ in range(2):  # the first pass includes warm-up time
        start = time.perf_counter()
        g.parts[-1].votes(work.first, size, 1, "plan")
        elapsed = time.perf_counter() - start
    done = 0
    if results_in(work.folder, OUTCOMES):
        with Store.open(work.folder) as store:
            done = len(store.done() & set(work.selection.indices))
    data = work.selection.dataset
    held = tuple(column.name for column in data.held) if isinstance(data, Table) else ()
    samples = (work.plan.n0 + work.plan.n) * min(2, len(g.parts))  # a router asks the selector and one expert
    arithmetic = arithmetic_of(work.g.grid)
    count = len(work.selection.indices)
    names = work.class_names
    return Planned(work.folder, count, done, samples, size / elapsed, work.sigma, held, names, arithmetic)
