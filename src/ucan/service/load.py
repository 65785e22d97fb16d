"""A load generator: many clients that ask a running service for certificates, and what they saw."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ucan.allocator import keep_memory
from ucan.errors import InvalidInput, ServiceError, UcanError
from ucan.runs.jobs import device_of
from ucan.runs.read import Run
from ucan.runs.rebuild import data_of
from ucan.service.client import Client
from ucan.service.deployed import Deployed


@dataclass(frozen=True)
class Load:
    """What clients saw of a service. Times are in seconds; ``statuses`` counts refusals by what they said.

    ``client_seconds`` is the processor time of the load generator; ``server_seconds`` that of the service, where its process
    could be watched, and ``server_memory`` its memory in MiB at the first and at the last look. ``server_answers`` is how many
    answers the service says it has given in the meantime: as many as arrived, if none was lost or given twice.
    """

    clients: int
    seconds: float
    answers: int
    abstentions: int
    statuses: dict[str, int]
    median: float
    p99: float
    slowest: float
    client_seconds: float
    server_answers: int
    server_seconds: float | None = None
    server_memory: tuple[float, float] | None = None

    @property
    def rate(self) -> float:
        """Answers per second."""
        return self.answers / self.seconds

    @property
    def per_processor_second(self) -> float | None:
        """Answers per second of the server's processor time."""
        return self.answers / self.server_seconds if self.server_seconds else None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**asdict(self), "rate": self.rate, "per_processor_second": self.per_processor_second}


# Inputs at most that are certified without the service, to compare.
BASELINE = 400
RANDOM = "random inputs, which may take more or fewer votes than real ones"


def random_inputs(shape: Sequence[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Inputs of the shape that a service takes, where no others are at hand."""
    return torch.rand(256, *shape, generator=torch.Generator().manual_seed(0), dtype=dtype)


def generate(
    url: str,
    inputs: Sequence[torch.Tensor] | torch.Tensor,
    clients: int = 32,
    seconds: float = 10.0,
    options: dict[str, Any] | None = None,
    token: str | None = None,
    pid: int | None = None,
) -> Load:
    """Load a service: each client asks again as soon as it has its answer, until the time is over.

    Args:
        url: the service's address.
        inputs: what they ask about, in turns.
        clients: how many ask at once.
        seconds: for how long.
        options: those of a request.
        token: the bearer token.
        pid: the service's process, to read its processor time and memory where the system tells (Linux).
    """
    if clients < 1 or seconds <= 0 or not len(inputs):
        raise InvalidInput("a load needs at least one client, some time and an input.")
    client, waits, statuses = Client(url, token), list[float](), Counter[str]()
    lock, abstained = threading.Lock(), [0]
    given = certificates_given(client)
    before, memory = usage(pid), resident(pid)
    began, own = time.monotonic(), time.process_time()

    def ask(number: int) -> None:
        turn = number
        while time.monotonic() < began + seconds:
            start = time.monotonic()
            try:
                record = client.post("certify", inputs[turn % len(inputs)], dict(options or {}))
            except ServiceError as error:
                with lock:
                    statuses[f"{error.status} {error.code}"] += 1
                continue
            with lock:
                waits.append(time.monotonic() - start)
                abstained[0] += record["kind"] == "abstention"
            turn += clients
        client.close()

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took, after = time.monotonic() - began, usage(pid)
    held = resident(pid)
    median, p99, slowest = (within(waits, share) for share in (0.5, 0.99, 1.0))
    return Load(
        clients=clients,
        seconds=took,
        answers=len(waits),
        abstentions=abstained[0],
        statuses=dict(statuses),
        median=median,
        p99=p99,
        slowest=slowest,
        client_seconds=time.process_time() - own,
        server_answers=certificates_given(client) - given,
        server_seconds=None if before is None or after is None else after - before,
        server_memory=None if memory is None or held is None else (memory, held),
    )


def within(waits: Sequence[float], share: float) -> float:
    """The time within which at least this share of the answers came; NaN if none did."""
    return float(np.quantile(waits, share, method="inverted_cdf")) if waits else math.nan


@dataclass(frozen=True)
class Measured:
    """A service under load, and what ``ucan certify`` makes of the same inputs in the same time of a processor.

    ``inputs`` says what was sent. ``alone`` is certificates per processor second without a service; None if that was not
    measured.
    """

    load: Load
    inputs: str
    alone: float | None = None

    @property
    def ratio(self) -> float | None:
        """Certificates per processor second of the service, as a share of those without it."""
        rate = self.load.per_processor_second
        return None if rate is None or self.alone is None else rate / self.alone

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**self.load.to_dict(), "inputs": self.inputs, "alone": self.alone, "ratio": self.ratio}


def measure_run(run: str | Path, clients: int, seconds: float, device: str = "auto", trust: bool = False) -> Measured:
    """Serve a run from a process of its own, load it, end it; then certify up to 400 of its inputs without it.

    With ``trust``, code that whoever made the run has chosen may run.
    """
    deployed = Deployed.open(run, device=device_of(device), trust=trust)
    inputs, sent = run_inputs(run, deployed, trust)
    with serving(run, "--device", device, *(["--trust"] if trust else [])) as (url, pid):
        generate(url, inputs, clients, min(5.0, seconds))  # to warm up
        load = generate(url, inputs, clients, seconds, pid=pid)
    plan = deployed.plan
    keep_memory()
    began = time.process_time()
    done = sum(1 for _ in deployed.classifier.certify_each((x[None] for x in inputs[:BASELINE]), plan))
    return Measured(load, sent, done / (time.process_time() - began))


def run_inputs(run: str | Path, deployed: Deployed, trust: bool = False) -> tuple[torch.Tensor, str]:
    """The inputs of a certified run's data set, if they are here, at most 1,024, else random ones; and which they are."""
    try:
        opened = Run.open(run)
        data = data_of(opened.config.data, base=opened.base, trust=trust)
        return torch.stack([data[i][0] for i in range(min(1024, len(data)))]), f"inputs of {data.name}"
    except UcanError as error:
        made = random_inputs(deployed.form.shape, deployed.form.dtype)
        return made, f"{RANDOM}, for the run's own are not there ({error})"


@contextmanager
def serving(run: str | Path, *options: str) -> Iterator[tuple[str, int]]:
    """`ucan serve RUN` in a process of its own, on a free port of this machine: its address and its process."""
    words = [sys.executable, "-m", "ucan", "serve", str(run), "--port", "0", "--log", "none", *options]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline() if process.stdout is not None else ""
            found = re.search(r"http://\S+", line)
            if found is None:
                raise ServiceError(f"`ucan serve {run}` did not start: its message stands above.")
            yield found[0], process.pid
        finally:
            process.terminate()
            process.wait()


def certificates_given(client: Client) -> int:
    """How many requests for a certificate a service has answered."""
    found = re.search(r'^ucan_requests_total{path="/v1/certify",status="200"} (\d+)$', client.metrics(), re.MULTILINE)
    return int(found[1]) if found else 0


def usage(pid: int | None) -> float | None:
    """The processor seconds of a process so far; None where the system does not tell."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident(pid: int | None) -> float | None:
    """The memory of a process in MiB; None where the system does not tell."""
    try:
        with open(f"/proc/{pid}/statm", encoding="utf-8") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    except OSError:
        return None
