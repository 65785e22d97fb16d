"""Sampling that stops when the answer is known: many inputs share each forward pass, and leave it when settled."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

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


def never() -> bool:
    """For terms that last until the votes are in."""
    return False


@dataclass(frozen=True)
class Terms:
    """On which terms a candidate is tested: its rule, its cap and its α; and whether they are ``over`` before the end.

    A candidate whose terms are over leaves with the votes that it has, which prove nothing: its rule has not ended them.
    """

    stop: Stop
    cap: int
    alpha: float
    over: Callable[[], bool] = never


@dataclass
class Seated(ABC):
    """One input (1, *event) whose noisy copies share forward passes with others', until its answers settle what is asked.

    ``place`` are the copies of the present stream that were asked for, ``settled`` says whether its rule or its cap has ended
    them.
    """

    index: int
    x: torch.Tensor
    M: Generator
    place: int = field(default=0, kw_only=True)
    settled: bool = field(default=False, kw_only=True)

    @property
    @abstractmethod
    def source(self) -> Stream:
        """The stream that its next copies come from."""

    @abstractmethod
    def end(self, cap: int) -> int:
        """Where that stream ends."""

    @abstractmethod
    def worthwhile(self, terms: Terms, block: int) -> int:
        """How many copies to classify next."""

    @abstractmethod
    def add(self, votes: torch.Tensor, classes: int, terms: Terms, block: int) -> bool:
        """Take in further answers (copies, *answer), in order; whether those were the last ones needed."""

    def jobs(self, copies: int, block: int) -> Iterator[Job]:
        """The next so many copies of its stream, block by block."""
        end = self.place + copies
        while self.place < end:
            skip = self.place % block
            take = min(block - skip, end - self.place)
            yield Job(self.M, self.x, self.source, self.place // block, take, skip, part=take < block)
            self.place += take


@dataclass
class Candidate(Seated):
    """One input under test. Its class c_A was chosen before, from other samples; or is yet to be, by ``selecting``."""

    stream: Stream
    c_A: int
    radius: Radius
    selecting: Selecting | None = None
    counts: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    drawn: int = 0
    chosen: Selecting | None = None
    watch: Watch | None = None

    def goes_on(self, tally: torch.Tensor, drawn: int) -> None:
        """Begin with votes that were counted before, the first ``drawn`` of the stream; none of them is drawn again."""
        self.counts, self.drawn, self.place = tally.numpy().copy(), drawn, drawn

    @property
    def tally(self) -> torch.Tensor:
        """Its votes by class so far, the last entry those for none."""
        return torch.from_numpy(self.counts)

    @property
    def hits(self) -> int:
        """Votes for c_A so far."""
        return int(self.counts[self.c_A]) if self.drawn else 0

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

    def worthwhile(self, terms: Terms, block: int) -> int:
        """How many copies to classify next: what a decision takes at least, and not many times a few.

        Nor more than a block, or than there were so far: a radius that takes many votes may be given up after a few.
        """
        if self.selecting is not None:
            return max(PART, self.selecting.needed())
        needed = min(self._watch(terms, block).needed(self.hits, self.drawn), max(block, self.drawn))
        return max(PART, needed, self.drawn // 8)

    def add(self, votes: torch.Tensor, classes: int, terms: Terms, block: int) -> bool:
        """Take in further votes, in order; whether those were the last ones needed."""
        answers = votes.numpy()
        if self.selecting is not None:
            if self.selecting.add(answers):
                self.chosen, self.selecting, self.place = self.selecting, None, 0
                self.c_A = int(self.chosen.tally[:-1].argmax())
            return False
        taken = self._watch(terms, block).look(self.hits, self.drawn, answers == self.c_A)
        counted = np.bincount(answers[:taken], minlength=classes + 1)
        self.counts = counted if self.drawn == 0 else self.counts + counted
        self.drawn += len(answers) if taken is None else taken
        self.settled = taken is not None or self.drawn >= terms.cap
        return self.settled

    def _watch(self, terms: Terms, block: int) -> Watch:
        if self.watch is None:
            chose = (0, 0) if self.chosen is None else (int(self.chosen.tally[self.c_A]), self.chosen.drawn)
            self.watch = terms.stop.watch(Case(terms.cap, terms.alpha, self.radius, block, chose))
        return self.watch


@dataclass(frozen=True)
class AllVotes(Stop):
    """No rule: every input uses all of its votes."""

    def settled(self, hits: int, drawn: int, cap: int, alpha: float, radius: Radius) -> bool:
        """Never before the cap."""
        return False

    def __str__(self) -> str:
        return "never"


Sitting = TypeVar("Sitting", bound=Seated)


def settle(
    counter: VoteCounter, candidates: Iterable[Sitting], stop: Stop, cap: int, alpha: float
) -> Iterator[Sitting]:
    """Each candidate once it is settled, or has used ``cap`` samples; in the order in which they finish.

    A rule sees each candidate's votes in their order, so how many it uses depends on its own votes alone, not on the company
    it had in its forward passes.
    """
    terms = Terms(stop, cap, alpha)
    return settle_each(counter, ((candidate, terms) for candidate in candidates))


@dataclass(frozen=True, eq=False)
class _Seat(Generic[Sitting]):
    """A candidate in the forward passes, on its terms."""

    candidate: Sitting
    terms: Terms
    block: int

    def worthwhile(self) -> int:
        """How many copies to classify next."""
        return self.candidate.worthwhile(self.terms, self.block)

    def whole(self, copies: int) -> int:
        """So many copies or a few more, up to the end of a block, once the first block is over.

        A part of a block costs the noise of all of it.
        """
        end = self.candidate.place + copies
        return copies if end <= self.block else copies - end % -self.block

    @property
    def left(self) -> int:
        """How many copies of its present stream were not asked for yet."""
        return self.candidate.end(self.terms.cap) - self.candidate.place


def settle_each(counter: VoteCounter, arrivals: Iterable[tuple[Sitting, Terms]], seats: int = 0) -> Iterator[Sitting]:
    """The same, each candidate on terms of its own; it ends when no pass is under way and nobody has arrived.

    New candidates are taken where a pass has room that those under way do not need. With ``seats`` they are taken while fewer
    than so many are under way, and all of them have their turns: so a long one does not keep short ones waiting.
    """
    waiting = iter(arrivals)
    flights: deque[tuple[list[_Seat[Sitting]], list[tuple[_Seat[Sitting], Job]], Fetched]] = deque()
    under_way = 0

    def seated() -> _Seat[Sitting] | None:
        nonlocal under_way
        found = next(waiting, None)
        if found is None:
            return None
        under_way += 1
        candidate, terms = found
        return _Seat(candidate, terms, counter.block)

    def launch(cohort: list[_Seat[Sitting]]) -> None:
        new: list[_Seat[Sitting]] = []
        while under_way < seats and (one := seated()) is not None:
            new.append(one)
        turns = [*new, *cohort]
        copies = _share(turns, seated, counter.capacity, counter.capacity // 4 if seats else None)
        jobs = [(seat, job) for seat, count in copies for job in seat.candidate.jobs(count, counter.block)]
        if jobs:
            served = {id(seat) for seat, _ in copies}
            kept = [*(seat for seat in turns if id(seat) not in served), *(seat for seat, _ in copies)]
            # who had to wait comes first
            flights.append((kept, jobs, Fetched(counter.answers([job for _, job in jobs]))))

    launch([])
    while flights:
        if len(flights) == 1 and flights[0][0][0].candidate.x.is_cuda:  # counted while the others' votes are looked at
            launch([])
        cohort, jobs, fetched = flights.popleft()
        finished: set[int] = set()
        for (seat, job), votes in zip(jobs, fetched.wait()[0], strict=True):
            candidate = seat.candidate
            if id(seat) in finished or candidate.source != job.stream:
                continue  # asked for in vain: it is settled, or its class is chosen
            if candidate.add(votes[: job.take], counter.num_classes, seat.terms, seat.block):
                finished.add(id(seat))
                yield candidate
        for seat in cohort:
            if id(seat) not in finished and seat.terms.over():
                finished.add(id(seat))
                yield seat.candidate
        under_way -= len(finished)
        launch([seat for seat in cohort if id(seat) not in finished])


def _share(
    cohort: list[_Seat[Sitting]], seated: Callable[[], _Seat[Sitting] | None], room: int, most: int | None
) -> list[tuple[_Seat[Sitting], int]]:
    """How many copies of whom the next forward pass takes: what is worthwhile of each, then of new ones, where there is room.

    Places that are still empty take further copies of the same, since they cost as much; never past the end of a stream.
    Before that nobody has more than ``most``.
    """
    copies: list[tuple[_Seat[Sitting], int]] = []
    few, wanted = min(PART, room), iter(cohort)
    while room > 0:
        seat = next(wanted, None)
        if seat is None and room >= few:
            seat = seated()
        if seat is None:
            break
        count = seat.whole(seat.worthwhile())
        count = min(room, seat.left, count if most is None else min(count, max(PART, most)))
        copies.append((seat, count))
        room -= count
    return _filled(copies, room)


def _filled(copies: list[tuple[_Seat[Sitting], int]], room: int) -> list[tuple[_Seat[Sitting], int]]:
    """The same with places that would stay empty taken: by whole blocks for each in turn, and by less for the last."""
    found = []
    for i, (seat, count) in enumerate(copies):
        turns = len(copies) - i
        more = room if turns == 1 else -(-(room // seat.block) // turns) * seat.block
        more = min(more, seat.left - count)
        found.append((seat, count + more))
        room -= more
    return found
