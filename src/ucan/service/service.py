"""A service without its network: a deployed run, its worker, its α, its numbers and its log."""

from __future__ import annotations

import asyncio
import itertools
import json
import secrets
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from ucan.certificate import Abstention
from ucan.choices import norm_to_json
from ucan.errors import InvalidInput, StoreError
from ucan.questions.catalogue import name_of
from ucan.runs.jobs import device_of
from ucan.service.asked import Asked, Offer
from ucan.service.deployed import Deployed
from ucan.service.limits import Ledger, Limits
from ucan.service.metrics import Metrics
from ucan.service.task import Outcome, Refusal, Task
from ucan.service.worker import Worker
from ucan.sidecar import input_hash

# Files of large tensors that clients may still fetch.
KEPT_TENSORS = 512


@dataclass(frozen=True, kw_only=True)
class ServeJob:
    """The settings of a service: the options of ``ucan serve``.

    Args:
        run: the folder of a ``ucan certify``, ``ucan train`` or ``ucan ask`` run.
        model: the classifier, if it has moved since the run.
        weights: its weights, if they have moved.
        data: the inputs, if they have moved; only their step and precision are needed.
        device: "auto", "cpu", "cuda", ….
        registry: the file that makes answers hold across requests, processes and restarts (docs/registry.md).
        limits: what requests may ask for.
        token: the bearer token that requests must have; None: none is needed.
        log: where JSON lines go: a path, "-" for standard error, or None for nowhere.
        trust: allow a model file that can run code, and a module beside the run.
    """

    run: str
    model: str | None = None
    weights: str | None = None
    data: str | None = None
    device: str = "auto"
    registry: str | None = None
    limits: Limits = field(default_factory=Limits)
    token: str | None = field(default=None, repr=False)  # a job may be shown or logged
    log: str | None = "-"
    trust: bool = False


@dataclass(frozen=True)
class Reply:
    """An answer as it is sent: a status, a body of JSON, and when to try again."""

    status: int
    body: bytes
    retry_after: int | None = None


@dataclass(frozen=True)
class Answered:
    """A reply, and what the log says of it."""

    reply: Reply
    entry: Mapping[str, Any]


class Service:
    """Answers requests from any number of asyncio tasks of one event loop."""

    def __init__(self, deployed: Deployed, job: ServeJob) -> None:
        limits, g = job.limits, deployed.g
        self.job, self.deployed = job, deployed
        self.metrics, self.ledger = _declared(), Ledger(limits.alpha_budget)
        norms = tuple(norm for norm in deployed.norms if limits.norms is None or norm in limits.norms)
        plan = deployed.plan
        if plan.norm not in norms:
            if not norms:
                raise InvalidInput(f"none of the allowed norms is supported by this noise: it has {deployed.norms}.")
            plan = replace(plan, norm=norms[-1])
        if job.registry is not None and deployed.question is not None:
            raise InvalidInput(
                "a registry stores answers of one class: leave it out, or serve a run of `ucan certify`."
            )
        if job.registry is not None and plan.budget is not None:
            raise InvalidInput("a registry stores regions and supports no budgets: serve a run without a budget.")
        alpha = min(max(plan.alpha, limits.least_alpha), limits.alpha)
        if plan.bound == "exact" and plan.n > limits.n:
            raise InvalidInput(f"this run counts all {plan.n:,} draws of its noise: allow as many votes (--max-n).")
        plan = replace(plan, n=min(plan.n, limits.n), alpha=alpha)
        self.deployed = deployed = replace(deployed, plan=plan, norms=norms)
        asks = None if deployed.question is None else name_of(deployed.question)
        self.offer = Offer(deployed.form, plan, norms, limits, job.registry is not None, asks)
        self.scope = "registry" if job.registry is not None else g.M.scope
        path = None if job.registry is None else Path(job.registry)
        self.worker = Worker(deployed, limits.queue, self.metrics, self.ledger, path)
        self._log = _Log.at(job.log)
        self._tensors: Path | None = None
        self._numbers = itertools.count(1)
        self._name = secrets.token_hex(4)
        self._gauges()

    @classmethod
    def open(cls, job: ServeJob) -> Service:
        """Rebuild the run's classifier, and start to answer."""
        deployed = Deployed.open(job.run, job.model, job.weights, job.data, device_of(job.device), job.trust)
        service = cls(deployed, job)
        service.worker.begin()
        return service

    def _gauges(self) -> None:
        worker, metrics, ledger = self.worker, self.metrics, self.ledger
        metrics.gauge("ucan_queue", "Requests that wait.", lambda: worker.waiting)
        metrics.gauge("ucan_under_way", "Requests whose votes are being drawn.", lambda: worker.under_way)
        metrics.gauge(
            "ucan_alpha_spent", "The sum of alpha over all claims of this server's life.", lambda: ledger.spent
        )
        budget = ledger.budget
        if budget is not None:
            metrics.gauge("ucan_alpha_budget", "The most that ucan_alpha_spent may become.", lambda: budget)

    # --- requests ---

    def request_id(self) -> str:
        """A name for a request, unique to this server's life."""
        return f"{self._name}-{next(self._numbers)}"

    def submit(self, asked: Asked) -> tuple[asyncio.Future[Answered], Task | Refusal]:
        """Hand a request to the worker: a future with its answer, and the task."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answered] = loop.create_future()

        def settle(answer: Answered) -> None:
            if not future.done():
                future.set_result(answer)

        def done(result: Outcome | Refusal) -> None:
            answer = self._answered(asked, result)
            try:
                loop.call_soon_threadsafe(settle, answer)
            except RuntimeError:  # the loop has ended: nobody waits
                return

        return future, self.worker.submit(asked, done)

    def _answered(self, asked: Asked, result: Outcome | Refusal) -> Answered:
        """An answer as it is sent: the fields of a certificate's JSON, or an error."""
        if not isinstance(result, Refusal):
            try:
                told = json.dumps(result.to_dict(self._folder()), ensure_ascii=False, allow_nan=False)
                self.metrics.add("ucan_outcomes_total", kind=type(result).__name__.lower())
                return Answered(Reply(200, told.encode()), described(asked, result))
            except (OSError, ValueError) as error:
                result = Refusal(500, "answer-failed", f"the answer cannot be written: {error}")
        return Answered(refused(result), described(asked, result))

    def tensors(self, name: str) -> bytes | None:
        """A file of large tensors that an answer refers to."""
        if self._tensors is None:
            return None
        try:
            return (self._tensors / name).read_bytes()
        except FileNotFoundError:  # never written, or the worker has just removed it
            return None

    def _folder(self) -> Path:
        """Where large tensors of answers are kept for a while; the oldest leave."""
        if self._tensors is None:
            self._tensors = Path(tempfile.mkdtemp(prefix="ucan-serve-"))
        files = list(self._tensors.iterdir())
        if len(files) > KEPT_TENSORS:
            for file in sorted(files, key=lambda one: one.stat().st_mtime)[: KEPT_TENSORS // 2]:
                file.unlink()
        return self._tensors

    def log(self, **entry: Any) -> None:
        """One line about a request."""
        self._log.write(entry)

    def close(self) -> None:
        """Remove what was kept for clients; after the worker has ended."""
        if self._tensors is not None:
            shutil.rmtree(self._tensors, ignore_errors=True)
        self._log.close()

    def about(self) -> dict[str, Any]:
        """What a client may want to know, as plain JSON values."""
        limits = self.job.limits
        told = self.deployed.about()
        return {
            **told,
            "scope": self.scope,
            "limits": {
                "n": limits.n,
                "alpha": [limits.least_alpha, limits.alpha],
                "seeds": limits.seeds,
                "deadline": limits.deadline,
                "body": limits.body,
            },
        }


def refused(refusal: Refusal) -> Reply:
    """An error as it is sent."""
    body = json.dumps({"error": refusal.code, "message": refusal.message}, ensure_ascii=False).encode()
    return Reply(refusal.status, body, refusal.retry_after)


def described(asked: Asked, result: Outcome | Refusal) -> Mapping[str, Any]:
    """What a log says of a request and its answer: hashes and numbers, no inputs."""
    plan = asked.plan
    told: dict[str, Any] = {
        "input": input_hash(asked.x),
        "n": plan.n,
        "alpha": plan.alpha,
        "stop": plan.rule,
        "norm": norm_to_json(getattr(plan, "norm", None)),
        "seed": str(int(plan.seed)),
    }
    if isinstance(result, Refusal):
        return {**told, "error": result.code}
    said = {"prediction": getattr(result, "prediction", None), "scope": result.scope, "votes": result.evidence.n}
    if isinstance(result, Abstention):
        return {**told, **said, "reason": result.reason}
    return {**told, **said, "radius": getattr(result, "radius", None)}


def _declared() -> Metrics:
    metrics = Metrics()
    metrics.counter("ucan_requests_total", "Requests by path and status.")
    metrics.counter("ucan_votes_total", "Votes drawn.")
    metrics.counter("ucan_forward_passes_total", "Forward passes.")
    metrics.counter("ucan_deadlines_total", "Abstentions because a deadline came first.")
    metrics.counter("ucan_outcomes_total", "Answers by kind.")
    started = time.time()
    metrics.gauge("ucan_start_time_seconds", "When this server began, in seconds since 1970.", lambda: started)
    return metrics


class _Log:
    """JSON lines, written whole; several threads may write."""

    def __init__(self, file: TextIO | None, own: bool) -> None:
        self._file, self._own, self._lock = file, own, threading.Lock()

    @classmethod
    def at(cls, place: str | None) -> _Log:
        """To a file that is continued, to standard error ("-"), or nowhere."""
        if place is None or place == "-":
            return cls(None if place is None else sys.stderr, False)
        try:
            return cls(open(place, "a", encoding="utf-8", buffering=1), True)
        except OSError as error:
            raise StoreError(f"the log {place} cannot be written: {error}.") from error

    def write(self, entry: Mapping[str, Any]) -> None:
        """One line. A full disk ends the log, not the service."""
        if self._file is None:
            return
        line = json.dumps({"time": datetime.now(UTC).isoformat(timespec="milliseconds"), **entry}, ensure_ascii=False)
        with self._lock:
            try:
                self._file.write(line + "\n")
                self._file.flush()
            except (OSError, ValueError):
                return

    def close(self) -> None:
        """Close the file."""
        if self._own and self._file is not None:
            self._file.close()
