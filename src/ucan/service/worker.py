"""The thread that owns the classifier: it takes requests as they come, and lets their votes share forward passes."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ucan.allocator import keep_memory
from ucan.certificate import Abstention, Certificate, Prediction
from ucan.engine import Issuer, Setup
from ucan.errors import InvalidInput, SingularScale, StoreError, UnsupportedNorm, first_line
from ucan.plan import CertifyPlan
from ucan.registry import Registry, region_norm
from ucan.registry.memory import answer_alone
from ucan.sequential import PART, Terms, settle_each
from ucan.service.asked import Asked
from ucan.service.deployed import Deployed
from ucan.service.limits import Ledger
from ucan.service.metrics import Metrics
from ucan.service.task import Arrivals, Entrant, Outcome, Refusal, Task

# Seconds between two looks at who has waited too long.
SWEEP = 0.02
# What follows from a request: its options, its input, and the noise that is computed from the input.
REFUSED = (InvalidInput, UnsupportedNorm, SingularScale)
# A service that failed so many requests in a row, each by itself, says that it is not well.
UNWELL = 3


class Worker(threading.Thread):
    """Answers requests one after the other and many at once; each as if it were alone.

    Only this thread runs the classifier and uses the registry.
    """

    def __init__(
        self, deployed: Deployed, queue: int, metrics: Metrics, ledger: Ledger, registry: Path | None = None
    ) -> None:
        super().__init__(name="ucan-worker", daemon=True)
        self.deployed, self.g, self.algorithm, self.most = deployed, deployed.g, deployed.algorithm, queue
        self.metrics, self.ledger = metrics, ledger
        self.path = registry
        self.draining = False
        self.failures = 0
        self._waiting: deque[Task] = deque()
        self._under_way: dict[int, Task] = {}
        self._changed = threading.Condition()
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._number = 0
        self._swept = self._finished_at = time.monotonic()
        self._pace = 0.05  # seconds per answer, lately
        self._memory: Registry | None = None
        self._known: dict[tuple[float, float], dict[str, Any]] = {}
        self._setup: Setup
        self._issue: Issuer

    # --- for other threads ---

    def begin(self) -> None:
        """Start, and wait until the classifier is ready; raises what went wrong."""
        self.start()
        self._ready.wait()
        if self._error is not None:
            raise self._error

    def submit(self, asked: Asked, done: Callable[[Outcome | Refusal], None]) -> Task | Refusal:
        """Take a request into the queue; or say why not."""
        with self._changed:
            if self.draining or not self.is_alive():
                return Refusal(503, "stopping", "this service is stopping: try again.", self.wait_advised())
            if len(self._waiting) >= self.most:
                said = f"{len(self._waiting)} requests are waiting, which is the most: try again later."
                return Refusal(429, "busy", said, self.wait_advised())
            if not self.ledger.take(asked.plan.level):
                said = (
                    f"the α of this server's life is spent: {self.ledger.spent:.6g} of {self.ledger.budget:g}. Its operator "
                    f"must start another."
                )
                return Refusal(403, "alpha-spent", said)
            task = Task(asked, done, time.monotonic() + asked.deadline)
            self._waiting.append(task)
            self._changed.notify()
            return task

    def drain(self) -> None:
        """Take no more requests; those that were taken are answered."""
        with self._changed:
            self.draining = True
            self._changed.notify()

    def refuse_rest(self) -> None:
        """Refuse what is not answered yet: waiting requests now, those under way after their forward pass."""
        self.drain()
        with self._changed:
            for task in (*self._waiting, *self._under_way.values()):
                task.until = -math.inf

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._waiting)

    @property
    def under_way(self) -> int:
        """Requests whose votes are being drawn."""
        return len(self._under_way)

    @property
    def well(self) -> bool:
        """Whether it can be expected to answer."""
        return self.is_alive() and self.failures < UNWELL

    def wait_advised(self) -> int:
        """After how many seconds to try again: about when the queue is empty."""
        return max(1, min(60, math.ceil(self._pace * (len(self._waiting) + len(self._under_way)))))

    # --- the thread ---

    def run(self) -> None:
        """Answer until it is told to stop and nothing is left."""
        try:
            self._prepare()
        except BaseException as error:
            self._error = error
            if self._memory is not None:
                self._memory.close()
            return
        finally:
            self._ready.set()
        seats = max(1, self._setup.counter.capacity // (2 * PART))
        try:
            while self._wait():
                try:
                    for candidate in settle_each(self._setup.counter, Arrivals(self._next), seats):
                        self._conclude(candidate)
                except Exception:  # the model's: somebody's input, or all of them
                    self._one_by_one()
        finally:  # by a bug, if anybody is left: they are told so, and so is everybody who comes
            with self._changed:
                self.draining = True
                left, self._under_way = [*self._waiting, *self._under_way.values()], {}
                self._waiting.clear()
            for task in left:
                task.done(Refusal(500, "internal", "the service has failed and must be started again."))
            if self._memory is not None:
                self._memory.close()

    def _prepare(self) -> None:
        g, form, plan = self.g, self.deployed.form, self.deployed.plan
        (x,) = g.check_inputs(torch.zeros(1, *form.shape, dtype=form.dtype), plan.norm)
        if x.device.type == "cpu":
            keep_memory()
        g.on_votes(self._voted)
        self._setup = g.engine.setup(x, plan)
        self._issue = Issuer(g.engine, x.device)
        if self.path is not None:
            classifier = self.deployed.classifier
            self._memory = Registry(self.path, region_norm(classifier, x, plan.norm))
            self._memory.check(classifier, x, plan)

    def _wait(self) -> bool:
        """Wait for a request; False if none will come any more."""
        with self._changed:
            while not self._waiting and not self.draining:
                self._changed.wait()
            return bool(self._waiting)

    def _next(self) -> tuple[Entrant, Terms] | None:
        """The next request that needs votes; those before it are answered without. None: nobody waits now."""
        while True:
            with self._changed:
                if not self._waiting:
                    return None
                task = self._waiting.popleft()
            try:
                found = self._begun(task)
            except Exception as error:
                self._fail(task, error)
                continue
            if found is not None:
                return found

    def _begun(self, task: Task) -> tuple[Entrant, Terms] | None:
        """Its first step; None if that answers it."""
        if task.over():
            self._cut_off(task)
            return None
        g, plan, device = self.g, task.asked.plan, self._issue.device
        with g.engine.beside(device):
            if self._memory is not None and (stored := self._stored(task, self._memory)) is not None:
                self._answer(task, self._told(task, stored))
                return None
            x, M = self._issue(task.asked.x)
            self._number += 1
            candidate = self.algorithm.begun(self._setup, self._number, x, M, plan)
        task.candidate = candidate
        self._under_way[candidate.index] = task
        return candidate, Terms(self.algorithm.rule(plan), plan.n, plan.level, task.over)

    def _stored(self, task: Task, memory: Registry) -> Certificate | Abstention | None:
        plan = task.asked.plan
        assert isinstance(plan, CertifyPlan), "with a registry predictions are certified, too"
        key = (plan.norm, plan.level)
        if key not in self._known or not len(memory):  # what the first enrolment settles may be another process's
            self._known[key] = memory.check(self.deployed.classifier, task.asked.x.to(self._issue.device), plan)
        return memory.stored(task.asked.x, plan.norm)

    def _conclude(self, candidate: Entrant) -> None:
        """Answer the request of a candidate whose votes have ended."""
        task = self._under_way.pop(candidate.index)
        task.spent = True
        try:
            if task.gone or not candidate.settled:
                self._cut_off(task)
                return
            plan, outcome = task.asked.plan, self.algorithm.ended(self._setup, candidate, task.asked.plan)
            if self._memory is not None:
                assert isinstance(plan, CertifyPlan) and not isinstance(outcome, Prediction), "all are certificates"
                outcome = self._memory.enrol(candidate.x, outcome, self._known[plan.norm, plan.level])
                outcome = self._told(task, outcome)
            self._answer(task, outcome)
        except Exception as error:
            self._fail(task, error)

    def _told(self, task: Task, outcome: Certificate | Abstention) -> Outcome:
        """The registry's answer as it was asked for: a certificate, or its prediction alone."""
        if task.asked.kind == "certify":
            return outcome
        x, M = self._issue(task.asked.x)
        return answer_alone(outcome, self.g.arithmetic_error(M, x))

    def _cut_off(self, task: Task) -> None:
        """Its deadline came before its votes, or nobody waits for it, or the service stops."""
        if task.gone:
            self._done(task, Refusal(499, "gone", "the client hung up."))
            return
        if task.until == -math.inf:
            self._done(task, Refusal(503, "stopping", "this service is stopping: try again.", self.wait_advised()))
            return
        drawn = 0 if task.candidate is None else task.candidate.drawn
        plan = task.asked.plan
        reason = f"the deadline of {task.asked.deadline:g} s came after {drawn:,} of up to {plan.n:,} votes; nothing is claimed"
        x = task.asked.x.to(self._issue.device)
        outcome = self.algorithm.unfinished(self._setup, x, task.candidate, plan, reason)
        self.metrics.add("ucan_deadlines_total")
        self._answer(task, outcome if self._memory is None else replace(outcome, scope="registry"))

    def _answer(self, task: Task, outcome: Outcome) -> None:
        now = time.monotonic()
        if self._waiting or self._under_way:
            self._pace += 0.1 * (min(60.0, now - self._finished_at) - self._pace)
        self._finished_at = now
        self.failures = 0
        self._done(task, outcome)

    def _done(self, task: Task, result: Outcome | Refusal) -> None:
        if not task.spent:  # no vote was drawn: nothing new is claimed
            self.ledger.give_back(task.asked.plan.level)
        task.done(result)

    def _fail(self, task: Task, error: Exception) -> None:
        """An error about this request, or in answering it."""
        if isinstance(error, REFUSED):
            self._done(task, Refusal(400, "refused", str(error)))
            return
        self.failures += 1
        kind = "store" if isinstance(error, StoreError) else "model"
        self._done(
            task, Refusal(500, f"{kind}-failed", f"{type(error).__name__}: {first_line(error, 'no message')[:300]}")
        )

    def _one_by_one(self) -> None:
        """A forward pass failed. Its votes are drawn again for each request alone, so that one spoils no other's answer."""
        tasks, self._under_way = list(self._under_way.values()), {}
        for task in tasks:
            try:
                found = self._begun(task)
                if found is not None:
                    for candidate in settle_each(self._setup.counter, [found]):
                        self._conclude(candidate)
            except Exception as error:
                if task.candidate is not None:
                    self._under_way.pop(task.candidate.index, None)
                task.spent = True
                self._fail(task, error)

    def _voted(self, count: int) -> None:
        """After every forward pass."""
        self.metrics.add("ucan_votes_total", count)
        self.metrics.add("ucan_forward_passes_total")
        now = time.monotonic()
        if now - self._swept < SWEEP:
            return
        self._swept = now
        with self._changed:
            over = [task for task in self._waiting if task.over()]
            for task in over:
                self._waiting.remove(task)
        for task in over:
            self._cut_off(task)
