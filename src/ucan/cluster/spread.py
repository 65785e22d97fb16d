"""A smoothed model on a Ray cluster: connect, request workers, and disconnect."""

from __future__ import annotations

import copy
import logging
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from ucan.cluster.engine import ClusterEngine
from ucan.cluster.pool import Pool
from ucan.errors import ClusterError, InvalidInput, MissingExtra
from ucan.questions.smoothed import Smoothed

# Bytes of a local cluster's object store: inputs under way, no noise. What does not fit goes to disk.
STORE = 2**28


Served = TypeVar("Served", bound=Smoothed)


@contextmanager
def spread(
    g: Served,
    address: str = "local",
    workers: int | None = None,
    tell: Callable[[str], None] | None = None,
    device: str | None = None,
) -> Iterator[Served]:
    """g with its votes counted by workers of a Ray cluster, while the context is open.

    The outcomes are the same as those of g with the same seed, for any number of workers, even if workers are lost.
    ``address`` is a running cluster's ("auto": the one of this machine), or "local", which starts one here and ends it
    afterwards. g is a ``SmoothedClassifier``, ``SmoothedRegressor``, ``SmoothedSegmenter`` or ``SmoothedLabels``. A worker
    is a GPU or a core of a CPU, as ``device`` says ("cuda", "cpu"; by default where g's classifier is), and by default
    there are as many as the cluster has. ``tell`` receives messages about lost and restarted workers; by default a logger.
    A process that is already connected to Ray uses that connection, whatever the address, and keeps it.
    """
    tell = tell or logging.getLogger("ucan.cluster").info
    if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 1):
        raise InvalidInput(f"workers must be a whole number of at least 1, got {workers!r}.")
    device = device or ("cpu" if g.f.device is None else g.f.device.type)
    with _connected(address, workers if device == "cpu" else None) as ray:
        have = int(ray.cluster_resources().get("GPU" if device == "cuda" else "CPU", 0))
        number = _number(workers, have, device)
        tell(f"{number} workers, a {'GPU' if device == 'cuda' else 'CPU core'} each, are being started.")
        pool = Pool(number, device, tell)
        try:
            served = copy.copy(g)
            served.engine = ClusterEngine(g.engine, pool)
            yield served
        finally:
            pool.close()


def _number(workers: int | None, have: int, device: str) -> int:
    """As many as were asked for, also if the cluster is yet to grow to them; else all that it has."""
    if workers is None and not have:
        raise ClusterError(
            f"the cluster has no {'GPU' if device == 'cuda' else 'CPU'}: give the number of workers to wait for."
        )
    return workers or have


@contextmanager
def _connected(address: str, cores: int | None) -> Iterator[Any]:
    try:
        import ray
    except ImportError as error:
        raise MissingExtra("a cluster needs Ray: pip install 'ucan[cluster]'") from error
    if ray.is_initialized():  # the caller's own connection: used, and left as it is
        yield ray
        return
    _check_address(address)
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if address == "local":
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_worker_niceness", "0")  # its workers are this command's own work
        quiet |= {"include_dashboard": False, "object_store_memory": STORE, "num_cpus": cores}
    try:
        ray.init(address=address, **quiet)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise ClusterError(
            f"cannot connect to a Ray cluster at {address!r}: {error} Start one with `ray start --head`, or use local."
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_address(address: str) -> None:
    """Refuse host:port if nothing listens there; Ray itself would retry for minutes."""
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if not colon:
        return
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, ValueError) as error:
        raise ClusterError(
            f"nothing answers at {address!r} ({error}): check host and port; `ray start --head` prints them."
        ) from error
