"""The workers of a run. Each has one unit queued ahead; the work of a lost worker is given to the others.

Ray starts the workers, places them, and starts a lost one again where there is room. This module only tracks which worker has
which unit: every unit is answered exactly once, by any worker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ucan.cluster.parcel import Unit
from ucan.cluster.worker import Report, Worker
from ucan.errors import ClusterError

# Units that a worker has been asked for: the one it counts, and the next.
AHEAD = 2
# Seconds after which a pool without workers says that it is waiting for some.
PATIENCE = 60.0


Then = Callable[[np.ndarray, float], None]  # is given a unit's rows, and the seconds that they took


@dataclass(frozen=True)
class Ticket:
    """A unit that was asked for, and what is to be done with its answer."""

    unit: Unit
    then: Then


@dataclass
class _Member:
    actor: Any
    number: int
    asked: int = 0
    awake: bool = False
    ready: bool = False
    lost: int = 0


@dataclass(frozen=True)
class _Asked:
    """Who was asked for what, in which life of theirs and under which package; no ticket: to wake, then to prepare."""

    member: _Member
    life: int
    package: Any
    ticket: Ticket | None


class Pool:
    """``workers`` actors on a Ray cluster, on a GPU or a CPU core each. ``tell`` receives messages about them."""

    def __init__(self, workers: int, device: str, tell: Callable[[str], None]) -> None:
        import ray

        self.ray = ray
        self.tell = tell
        self.device = device
        self.asked_for = workers
        # Not retried by Ray: the other workers take over a lost worker's units at once.
        options: dict[str, Any] = {"num_cpus": 1, "max_restarts": -1, "max_task_retries": 0}
        kind: Any = ray.remote(**options, num_gpus=1 if device == "cuda" else 0)(Worker)
        self.members = [_Member(kind.remote(), i + 1) for i in range(workers)]
        self.queue: deque[Ticket] = deque()
        self.flying: dict[Any, _Asked] = {}
        self.package: Any = None
        self.report: Report | None = None
        self.lost_in_a_row = 0

    # --- what the engine asks ---

    def prepare(self, package: bytes) -> Report:
        """Send this to every worker, and wait for the first that is ready; the others join when they are."""
        self.forget()
        self.package, self.report = self.ray.put(package), None
        for member in self.members:
            self._start(member)
        while self.report is None:
            self.step()
        return self.report

    def submit(self, unit: Unit, then: Then, urgent: bool = False) -> None:
        """Queue a unit; ``then`` is called with its answer, from within ``step``."""
        (self.queue.appendleft if urgent else self.queue.append)(Ticket(unit, then))
        self._feed()

    @property
    def hungry(self) -> bool:
        """Whether more units should be queued, so that no worker is idle."""
        return len(self.queue) < len(self.members)

    def step(self) -> None:
        """Take in what has been answered, waiting for one answer at least, and hand out what is queued."""
        done, _ = self.ray.wait(list(self.flying), num_returns=1, timeout=PATIENCE)
        if not done and not any(member.ready for member in self.members):
            loading = any(member.awake for member in self.members)
            room = f"waiting for room for {len(self.members)} on the cluster"
            waits = "they are loading the classifier" if loading else room
            self.tell(f"no worker is ready yet: {waits}.")
        if done:
            done, _ = self.ray.wait(list(self.flying), num_returns=len(self.flying), timeout=0)
        for ref in done:
            self._take(ref)
        self._feed()

    def forget(self) -> None:
        """Drop what is queued: nobody waits for it any more."""
        self.queue.clear()

    def close(self) -> None:
        """Stop the workers."""
        for member in self.members:
            self.ray.kill(member.actor)

    # --- who has what ---

    def _start(self, member: _Member) -> None:
        member.awake = member.ready = False
        # This call alone is repeated by Ray until the worker is there, or there again: it cannot be what ends a worker.
        ref = member.actor.wake.options(max_task_retries=-1).remote()
        self.flying[ref] = _Asked(member, member.lost, self.package, None)

    def _prepare(self, member: _Member) -> None:
        member.awake = True
        ref = member.actor.prepare.remote(self.package, self.device)
        self.flying[ref] = _Asked(member, member.lost, self.package, None)

    def _feed(self) -> None:
        while self.queue:
            member = min((m for m in self.members if m.ready), key=lambda m: m.asked, default=None)
            if member is None or member.asked >= AHEAD:
                return
            ticket = self.queue.popleft()
            member.asked += 1
            self.flying[member.actor.count.remote(ticket.unit)] = _Asked(member, member.lost, self.package, ticket)

    def _take(self, ref: Any) -> None:
        asked = self.flying.pop(ref)
        member, ticket, current = asked.member, asked.ticket, asked.package is self.package
        errors = self.ray.exceptions
        try:
            answer = self.ray.get(ref)
        except (errors.RayActorError, errors.ObjectLostError) as error:
            if ticket is not None and current:
                self.queue.appendleft(ticket)
            if asked.life == member.lost:
                self._lost(member, error)
            return
        except errors.RayTaskError as error:
            raise (error.cause if isinstance(error.cause, Exception) else error) from None
        if ticket is not None:
            self.lost_in_a_row = 0
            if asked.life == member.lost:
                member.asked -= 1
            if current:
                ticket.then(*answer)
        elif current and asked.life == member.lost:
            if isinstance(answer, Report):
                self._joined(member, answer)
            else:
                self._prepare(member)

    def _lost(self, member: _Member, error: Exception) -> None:
        member.lost += 1
        member.asked = 0
        self.lost_in_a_row += 1
        if self.lost_in_a_row > 3 * len(self.members) + 3:
            raise ClusterError(
                f"workers were lost {self.lost_in_a_row} times in a row: the classifier ends its process, or the machine "
                f"stops it, perhaps for lack of memory. See Ray's log."
            )
        if isinstance(error, self.ray.exceptions.ActorDiedError):  # for good: Ray will not start it again
            member.ready = False
            self.members.remove(member)
            if not self.members:
                raise ClusterError(f"no worker is left: {_reason(error)}") from error
            self.tell(f"worker {member.number} is lost for good ({_reason(error)}); the others continue.")
            return
        self.tell(f"worker {member.number} of {self.asked_for} was lost; its work is repeated.")
        self._start(member)

    def _joined(self, member: _Member, report: Report) -> None:
        if self.report is None:
            self.report = report
        elif replace(report, device=self.report.device) != self.report:
            raise ClusterError(
                f"worker {member.number} runs a different classifier than the first worker: {report} instead of "
                f"{self.report}. "
                "All machines need the same model files and the same versions of PyTorch."
            )
        elif report.device != self.report.device:
            self.tell(
                f"worker {member.number} is a {report.device}, the first a {self.report.device}: votes that are nearly "
                "ties may differ from those of one device."
            )
        if member.lost:
            self.tell(f"worker {member.number} of {self.asked_for} is back.")
        member.ready = True


def _reason(error: Exception) -> str:
    """The last line of Ray's message, which names the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
