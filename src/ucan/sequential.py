"""Sampling that stops when the answer is known: many inputs share each forward pass, and leave it when settled."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from ucan.generators import Generator
from ucan.passes import Fetched
from ucan.stopping import Case, Radius, Stop, Watch
from ucan.votes import Job, Stream, VoteCounter

# Copies that are classified together at least, where a block is not classified whole: drawing a block costs something, too.
PART = 16


@dataclass
class Selecting:
    """The votes that choose a class: up to ``n0``, and fewer where one class leads by ``lead`` votes."""

    stream: Stream
    n0: int
    lead: int
    tally: np.ndarray
    drawn: int = 0

    @classmethod
    def done(cls, stream: Stream, counts: Sequence[int], n0: int) -> Selecting:
        """The votes that chose a class before, as evidence has them."""
        return cls(stream, n0, n0, np.array([*counts, n0 - sum(counts)]), n0)

    def needed(self) -> int:
        """How many further votes it takes at least."""
        return max(1, min(self.n0 - self.drawn, self.lead - self._ahead(self.tally)))

    def add(self, votes: np.ndarray) -> bool:
        """Take in further votes, as many as it needs; whether the class is chosen."""
        for vote in votes.tolist():
            self.tally[vote] += 1
            self.drawn += 1
            if self.drawn >= self.n0 or self._ahead(self.tally) >= self.lead:
                return True
        return False

    @staticmethod
    def _ahead(tally: np.ndarray) -> int:
        """By how many votes the leading class leads; the last entry counts votes for none."""
        second, first = np.sort(tally[:-1])[-2:]
        return int(first - second)


@dataclass
class Candidate:
    """One input under test. Its class c_A was chosen before, from other samples; or is yet to be, by ``selecting``."""

    index: int
    x: torch.Tensor
    M: Generator
    stream: Stream
    c_A: int
    radius: Radius
    selecting: Selecting | None = None
    tally: torch.Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    drawn: int = 0
    place: int = 0  # copies of the present stream that were asked for
    chosen: Selecting | None = None
    watch: Watch | None = None

    def goes_on(self, tally: torch.Tensor, drawn: int) -> None:
        """Begin with votes that were counted before, the first ``drawn`` of the stream; none of them is drawn again."""
        self.tally, self.drawn, self.place = tally, drawn, drawn

    @property
    def hits(self) -> int:
        """Votes for c_A so far."""
        return int(self.tally[self.c_A]) if self.drawn else 0

    @property
    def source(self) -> Stream:
        """The stream that its next votes come from."""
        return self.stream if self.selecting is None else self.selecting.stream

    def end(self, cap: int) -> int:
        """Where that stream ends."""
        return cap if self.selecting is None else self.selecting.n0

    @property
    def seen(self) -> int:
        """How many votes of that stream were looked at."""
        return self.drawn if self.selecting is None else self.selecting.drawn

    def worthwhile(self, stop: Stop, case: Case) -> int:
        """How many copies to classify next: what a decision takes at least, and not many times a few.

        Nor more than a block, or than there were so far: a radius that takes many votes may be given up after a few.
        """
        if self.selecting is not None:
            return max(PART, self.selecting.needed())
        needed = min(self._watch(stop, case).needed(self.hits, self.drawn), max(case.block, self.drawn))
        return max(PART, needed, self.drawn // 8)

    def add(self, votes: torch.Tensor, classes: int, stop: Stop, case: Case) -> bool:
        """Take in further votes, in order; whether those were the last ones needed."""
        answers = votes.numpy()
        if self.selecting is not None:
            if self.selecting.add(answers):
                self.chosen, self.selecting, self.place = self.selecting, None, 0
                self.c_A = int(self.chosen.tally[:-1].argmax())
            return False
        taken = self._watch(stop, case).look(self.hits, self.drawn, answers == self.c_A)
        counted = torch.bincount(votes[:taken], minlength=classes + 1)
        self.tally = counted if self.drawn == 0 else self.tally + counted
        self.drawn += len(answers) if taken is None else taken
        return taken is not None or self.drawn >= case.cap

    def _watch(self, stop: Stop, case: Case) -> Watch:
        if self.watch is None:
            chose = (0, 0) if self.chosen is None else (int(self.chosen.tally[self.c_A]), self.chosen.drawn)
            self.watch = stop.watch(replace(case, radius=self.radius, chose=chose))
        return self.watch

    def jobs(self, copies: int, block: int) -> Iterator[Job]:
        """The next so many copies of its stream, block by block."""
        end = self.place + copies
        while self.place < end:
            skip = self.place % block
            take = min(block - skip, end - self.place)
            yield Job(self.M, self.x, self.source, self.place // block, take, skip, part=take < block)
            self.place += take


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

    A rule sees each candidate's votes in their order, so how many it uses depends on its own votes alone, not on the company
    it had in its forward passes.
    """
    waiting = iter(candidates)
    flights: deque[tuple[list[Candidate], list[tuple[Candidate, Job]], Fetched]] = deque()

    def case_of(candidate: Candidate) -> Case:
        return Case(cap, alpha, candidate.radius, counter.block)

    def launch(cohort: list[Candidate]) -> None:
        copies = _share(cohort, waiting, counter.capacity, cap, lambda c: c.worthwhile(stop, case_of(c)))
        jobs = [(c, job) for c, count in copies for job in c.jobs(count, counter.block)]
        if jobs:
            served = {c.index for c, _ in copies}
            kept = [
                *(c for c in cohort if c.index not in served),
                *(c for c, _ in copies),
            ]  # who had to wait comes first
            flights.append((kept, jobs, Fetched(counter.answers([job for _, job in jobs]))))

    launch([])
    while flights:
        if len(flights) == 1 and flights[0][0][0].x.is_cuda:  # counted while the others' votes are looked at
            launch([])
        cohort, jobs, fetched = flights.popleft()
        finished: set[int] = set()
        for (candidate, job), votes in zip(jobs, fetched.wait(), strict=True):
            if candidate.index in finished or candidate.source != job.stream:
                continue  # asked for in vain: it is settled, or its class is chosen
            if candidate.add(votes[: job.take], counter.num_classes, stop, case_of(candidate)):
                finished.add(candidate.index)
                yield candidate
        launch([candidate for candidate in cohort if candidate.index not in finished])


def _share(
    cohort: list[Candidate],
    waiting: Iterator[Candidate],
    room: int,
    cap: int,
    worthwhile: Callable[[Candidate], int],
) -> list[tuple[Candidate, int]]:
    """How many copies of whom the next forward pass takes: what is worthwhile of each, then of new ones, where there is room.

    Places that are still empty take further copies of the same, since they cost as much; never past the end of a stream.
    """
    copies: list[tuple[Candidate, int]] = []
    few, wanted = min(PART, room), iter(cohort)
    while room > 0:
        candidate = next(wanted, None)
        if candidate is None and room >= few:
            candidate = next(waiting, None)
        if candidate is None:
            break
        count = min(room, candidate.end(cap) - candidate.place, worthwhile(candidate))
        copies.append((candidate, count))
        room -= count
    more, rest = divmod(room, max(1, len(copies)))
    return [(c, min(n + more + (i < rest), c.end(cap) - c.place)) for i, (c, n) in enumerate(copies)]
