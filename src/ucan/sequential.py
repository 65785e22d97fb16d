"""Sampling that stops when the answer is known: many inputs share each forward pass, and leave it when settled."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch

from ucan.generators import Generator
from ucan.stopping import Radius, Stop
from ucan.votes import Fetched, Job, Stream, VoteCounter


@dataclass
class Candidate:
    """One input under test: its class c_A was chosen before, from other samples."""

    index: int
    x: torch.Tensor
    M: Generator
    stream: Stream
    c_A: int
    radius: Radius
    selection: torch.Tensor | None = None
    tally: torch.Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    drawn: int = 0
    next_block: int = 0
    next_look: float = 0.0
    skip: int = 0

    def goes_on(self, tally: torch.Tensor, drawn: int, block: int) -> None:
        """Begin with votes that were counted before, the first ``drawn`` of the stream; none of them is drawn again.

        Of a block that was not used up only the copies behind those votes count.
        """
        self.tally, self.drawn = tally, drawn
        self.next_block, self.skip = divmod(drawn, block)

    @property
    def hits(self) -> int:
        """Votes for c_A so far."""
        return int(self.tally[self.c_A]) if self.drawn else 0

    def add(self, tally: torch.Tensor, take: int, stop: Stop, cap: int, alpha: float) -> bool:
        """Take in the next block of votes, ``take`` of which count; whether that was the last one needed."""
        self.tally = tally if self.drawn == 0 else self.tally + tally
        self.drawn += take
        if self.drawn >= cap:
            return True
        if self.drawn < self.next_look:
            return False
        self.next_look = self.drawn * stop.growth
        return stop.settled(self.hits, self.drawn, cap, alpha, self.radius)


@dataclass(frozen=True)
class AllVotes(Stop):
    """No rule: every input uses all of its votes."""

    def settled(self, hits: int, drawn: int, cap: int, alpha: float, radius: Radius) -> bool:
        """Never before the cap."""
        return False

    def __str__(self) -> str:
        return "never"


def settle(
    counter: VoteCounter, candidates: Iterable[Candidate], stop: Stop, cap: int, alpha: float
) -> Iterator[Candidate]:
    """Each candidate once it is settled, or has used ``cap`` samples; in the order in which they finish.

    The rule looks at block boundaries in their order, so how many samples a candidate uses depends on its own votes alone,
    not on the company it had in its forward passes.
    """
    waiting = iter(candidates)
    flights: deque[tuple[list[Candidate], list[tuple[Candidate, Job]], Fetched]] = deque()

    def launch(cohort: list[Candidate]) -> None:
        cohort = [*cohort, *itertools.islice(waiting, max(0, counter.slots - len(cohort)))]
        if cohort:
            jobs = _share(cohort, counter, cap)
            flights.append((cohort, jobs, Fetched(counter.count([job for _, job in jobs]))))

    launch([])
    while flights:
        if len(flights) == 1 and flights[0][0][0].x.is_cuda:  # counted while the others' votes are looked at
            launch([])
        cohort, jobs, fetched = flights.popleft()
        finished: set[int] = set()
        for (candidate, job), tally in zip(jobs, fetched.wait(), strict=True):
            if candidate.index in finished:
                continue
            if candidate.add(tally, job.take - job.skip, stop, cap, alpha):
                finished.add(candidate.index)
                yield candidate
        launch([candidate for candidate in cohort if candidate.index not in finished])


def _share(active: list[Candidate], counter: VoteCounter, cap: int) -> list[tuple[Candidate, Job]]:
    """The next forward pass: as many blocks for each as fit, in order; never past the cap."""
    jobs = []
    for candidate in active:
        for _ in range(max(1, counter.slots // len(active))):
            take = min(counter.block, cap - candidate.next_block * counter.block)
            if take > candidate.skip:
                place = candidate.stream, candidate.next_block
                jobs.append((candidate, Job(candidate.M, candidate.x, *place, take, candidate.skip)))
                candidate.next_block, candidate.skip = candidate.next_block + 1, 0
    return jobs
