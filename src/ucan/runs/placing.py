"""Where the votes of a job are counted: in this process, or on the workers of a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from ucan.allocator import keep_memory
from ucan.cluster import spread
from ucan.errors import InvalidInput
from ucan.runs.progress import Progress

Placed = TypeVar("Placed")


def check_workers(cluster: str | None, workers: int | None) -> None:
    """Refuse a number of workers without a cluster."""
    if workers is not None and cluster is None:
        raise InvalidInput("--workers needs a cluster: add --cluster local, or a cluster's address.")


@contextmanager
def placed(
    g: Placed, cluster: str | None, workers: int | None, device: torch.device, progress: Progress
) -> Iterator[Placed]:
    """The smoothed model with its votes counted here, or with ``cluster`` by that many workers of it."""
    if cluster is None:
        if device.type == "cpu":
            keep_memory()
        yield g
        return
    one: Any = g
    with spread(one, cluster, workers, progress.say, device.type) as served:
        yield served
