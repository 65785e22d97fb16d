"""An engine whose votes are counted by a pool of workers: the same votes, block for block, as in one process."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from ucan.backends import Backend
from ucan.cluster.parcel import Codec, Package, Piece, Unit
from ucan.cluster.pool import Pool
from ucan.engine import Engine, Setup
from ucan.errors import ClusterError
from ucan.fingerprint import weights_hash
from ucan.generators import Generator
from ucan.plan import CertifyPlan, PredictPlan
from ucan.sequential import Candidate, Terms
from ucan.stopping import Stop
from ucan.votes import Classifier, Job, Request, Stream, VoteCounter

# Seconds of work in a unit: long compared with the cost of a request (a millisecond), short compared with that of a lost
# worker.
UNIT_SECONDS = 0.5
# Units that the driver asks for in a second, at most: with very many workers units grow longer instead.
UNITS_PER_SECOND = 200
# Inputs under way whose references are kept, at most; one that is needed again is put into the object store again.
AT_HAND = 4096


@dataclass(frozen=True)
class Run:
    """Consecutive blocks of one input and phase, of the last of which ``take`` votes count; ``owner`` gets the rows."""

    owner: Any
    M: Generator
    x: torch.Tensor
    stream: Stream
    first: int
    count: int
    take: int


class RemoteCounter(VoteCounter):
    """A vote counter whose forward passes are run by workers."""

    def __init__(self, pool: Pool, M: Generator, f: Classifier, law: Any, block: int, size: int) -> None:
        super().__init__(_elsewhere, f.num_classes, law, block, size, keep=f.keep)
        self.pool = pool
        self.codec = Codec(M)
        self.passes = 1  # forward passes in a unit
        self.package = pool.package  # what the workers were sent for it
        self.refs: OrderedDict[int, tuple[torch.Tensor, Any, Any]] = OrderedDict()
        self.held: tuple[bytes, Any] = (b"", None)

    def count(self, jobs: Sequence[Job]) -> torch.Tensor:
        """The tallies (jobs, num_classes + 1) of at most ``slots`` blocks, from one forward pass of one worker."""
        answer: list[np.ndarray] = []
        runs = [Run(None, job.M, job.x, job.stream, job.number, 1, job.take) for job in jobs]
        self.ask(runs, answer.append, urgent=True)
        while not answer:
            self.step()
        return torch.from_numpy(answer[0]).to(jobs[0].x.device)

    def ask(self, runs: Sequence[Run], then: Any, in_order: bool = False, urgent: bool = False) -> None:
        """Have blocks counted as one unit: ``then`` gets what is kept of each run, or the answers of each block in order."""
        self._check_current()
        pieces = tuple(Piece(*self._sent(run), run.stream, run.first, run.count, run.take) for run in runs)
        unit = Unit(pieces, in_order)

        def answered(rows: np.ndarray, seconds: float) -> None:
            passes = math.ceil(unit.blocks / self.slots)
            wanted = max(UNIT_SECONDS, len(self.pool.members) / UNITS_PER_SECOND)
            self.passes = max(1, min(2 * self.passes, int(wanted * passes / seconds)))
            if self.on_votes is not None:
                self.on_votes(sum((piece.count - 1) * self.block + piece.take for piece in pieces))
            then(rows if rows.dtype.kind == "f" else rows.astype(np.int64))

        self.pool.submit(unit, answered, urgent)

    def step(self) -> None:
        """Wait for answers."""
        self._check_current()
        self.pool.step()

    @property
    def current(self) -> bool:
        """Whether the workers still have the classifier that this counter is for."""
        return self.pool.package is self.package

    def _check_current(self) -> None:
        """Refuse to ask workers who have another classifier by now: its votes would count for this one."""
        if not self.current:
            raise ClusterError(
                "the workers were given another classifier in the meantime: finish the inputs of one classifier first."
            )

    def _sent(self, run: Run) -> tuple[Any, Any]:
        """References to the input and to the generator held at it; noise that all inputs share is sent once."""
        if id(run.x) not in self.refs:
            held = self.codec.encode(run.M)
            if held != self.held[0]:
                self.held = held, self.pool.ray.put(held)
            self.refs[id(run.x)] = run.x, self.pool.ray.put(self.codec.encode(run.x)), self.held[1]
            if len(self.refs) > AT_HAND:
                self.refs.popitem(last=False)
        self.refs.move_to_end(id(run.x))
        return self.refs[id(run.x)][1:]

    def finished(self, x: torch.Tensor) -> None:
        """No more votes on this input: the object store may forget it."""
        self.refs.pop(id(x), None)


@dataclass
class _Open:
    """A request some of whose blocks are not counted yet, and what is kept of its streams so far."""

    request: Request
    kept: list[torch.Tensor | None]
    left: int

    @property
    def urgent(self) -> bool:
        """Whether it only chooses a class: others wait for that."""
        return all(stream.phase == "select" for stream, _ in self.request.streams)


class ClusterEngine(Engine):
    """An engine for the same classifier and noise as another, which lets a pool of workers count."""

    def __init__(self, engine: Engine, pool: Pool) -> None:
        super().__init__(engine.f, engine.M, engine.law, engine.backend, engine.precision, engine.model_id, engine.grid)
        self.pool = pool
        self._known: tuple[Any, Setup, RemoteCounter] | None = None

    def setup(self, x: torch.Tensor, plan: CertifyPlan | PredictPlan) -> Setup:
        """For inputs like x (1, *event): the classifier is sent to the workers, once per state of its weights."""
        weights, noise = weights_hash(self.f.model), self.M.record()
        kind = (x.shape, x.dtype, x.device.type)
        asked = replace(plan, precision=self.precision_of(plan))
        key = (self.backend, asked.precision, plan.batch_size, plan.block, kind, self.identity(), noise, self.state())
        # Another classifier may have been sent since: that of other held columns, see ``placed``.
        if self._known is None or self._known[0] != key or not self._known[2].current:
            step = None if self.grid is None else self.grid.step
            package = Package(self.f, self.M, self.law, self._backend(x, plan), asked, x, step)
            report = self.pool.prepare(package.pack())
            if report.weights != weights:
                raise ClusterError(
                    "the workers have other weights than this process: make sure that they read the same model file."
                )
            counter = RemoteCounter(self.pool, self.M, self.f, self.law, report.block, report.size)
            backend = Backend(_elsewhere, report.backend, report.precision)
            self._known = key, Setup(counter, backend, weights, self.identity, noise), counter
        self._known[1].counter.on_votes = self.on_votes
        return self._known[1]

    def placed(self, engine: Engine) -> Engine:
        """Another classifier with the same workers, who have one of them at a time."""
        return ClusterEngine(engine, self.pool)

    def _backend(self, x: torch.Tensor, plan: CertifyPlan | PredictPlan) -> str:
        """What all workers run: ``auto`` is decided here, once, or they might choose differently."""
        if self.backend != "auto":
            return self.backend
        chosen = super().setup(x, plan).backend.name
        return "eager" if chosen == "function" else chosen

    def answered(self, setup: Setup, requests: Iterator[Request]) -> Iterator[tuple[Request, list[Any]]]:
        """Each request with what is kept of its streams, in order; as many are under way as keep all workers busy.

        Workers add up what adds up; other answers come as they are.
        """
        counter: Any = setup.counter
        keep = counter.keep
        order: deque[_Open] = deque()
        units = _units(requests, counter, order)
        ahead = 2 * counter.slots * len(self.pool.members)  # classes chosen before their estimation can begin
        while True:
            while self.pool.hungry or not order or (order[-1].urgent and len(order) < ahead):
                runs = next(units, None)
                if runs is None:
                    break
                counter.ask(runs, _add(runs, counter), in_order=not keep.adds_up, urgent=order[-1].urgent)
            if not order:
                return
            while order and order[0].left == 0:
                one = order.popleft()
                if not one.urgent:
                    counter.finished(one.request.x)
                yield one.request, [keep.received(kept) for kept in one.kept]
            if order:
                counter.step()

    def settled(
        self, setup: Setup, candidates: Iterable[Any], stop: Stop, plan: CertifyPlan | PredictPlan
    ) -> Iterator[Any]:
        """Each candidate when its votes satisfy the rule, or when it has used all n; in the order in which they finish.

        A rule sees a candidate's blocks in order, whichever worker counted them and whenever they arrived. While there are
        enough inputs, each candidate has at most one block in progress, so that no block is wasted.
        """
        counter: Any = setup.counter
        table = _Table(iter(candidates), counter, plan.n)
        while True:
            while (self.pool.hungry or not table.active) and (runs := table.next_runs()):
                counter.ask(runs, table.arrived(runs), in_order=True)
            if not table.active:
                return
            counter.step()
            yield from table.settled(stop, plan.level)


class _Table:
    """The candidates under test, the blocks that were asked for, and those that came too early to be looked at."""

    def __init__(self, waiting: Iterator[Candidate], counter: RemoteCounter, cap: int) -> None:
        self.waiting = waiting
        self.counter = counter
        self.cap = cap
        self.active: dict[int, Candidate] = {}
        self.asked: Counter[int] = Counter()
        self.free: deque[int] = deque()
        self.early: dict[int, dict[tuple[Stream, int], torch.Tensor]] = {}
        self.touched: set[int] = set()

    def next_runs(self) -> list[Run]:
        """A unit: a block each of those that wait for none, then of new ones; if those are few, further blocks.

        It is shorter than units without a rule, since every block of it is of another input.
        """
        most = self.counter.slots * max(1, self.counter.passes // 5)
        chosen: Counter[int] = Counter()
        while self.free and chosen.total() < most:
            self._choose(self.free.popleft(), chosen)
        while chosen.total() < most and (new := next(self.waiting, None)) is not None:
            self.active[new.index] = new
            self.early[new.index] = {}
            self._choose(new.index, chosen)
        while chosen.total() < self.counter.slots:  # in vain if their candidate settles before: one forward pass only
            left = [i for i, c in self.active.items() if self._blocks_left(c, chosen[i])]
            if not left:
                break
            self._choose(min(left, key=lambda i: self.asked[i]), chosen)
        return [self._run(self.active[index], count) for index, count in chosen.items()]

    def _choose(self, index: int, chosen: Counter[int]) -> None:
        if index in self.active and self._blocks_left(self.active[index], chosen[index]):
            chosen[index] += 1
            self.asked[index] += 1

    def _blocks_left(self, candidate: Candidate, chosen: int) -> bool:
        return (candidate.place // self.counter.block + chosen) * self.counter.block < candidate.end(self.cap)

    def _run(self, candidate: Candidate, count: int) -> Run:
        first, block = candidate.place // self.counter.block, self.counter.block
        candidate.place = (first + count) * block
        take = min(block, candidate.end(self.cap) - (first + count - 1) * block)
        return Run(candidate, candidate.M, candidate.x, candidate.source, first, count, take)

    def arrived(self, runs: list[Run]) -> Any:
        """What to do with the votes of these runs, when they come."""

        def then(rows: np.ndarray) -> None:
            numbers = ((run, number) for run in runs for number in range(run.first, run.first + run.count))
            for (run, number), row in zip(numbers, torch.from_numpy(rows), strict=True):
                index = run.owner.index
                self.asked[index] -= 1
                if index in self.active:
                    self.early[index][run.stream, number] = row
                    self.touched.add(index)

        return then

    def settled(self, stop: Stop, alpha: float) -> Iterator[Candidate]:
        """Look at what arrived, block by block in order; those that are settled leave."""
        touched, self.touched = sorted(self.touched), set()
        for index in touched:
            candidate = self.active[index]
            if self._look(candidate, self.early[index], stop, alpha):
                del self.active[index], self.early[index]
                self.counter.finished(candidate.x)
                yield candidate
            elif self.asked[index] == 0:
                self.free.append(index)

    def _look(
        self, candidate: Candidate, early: dict[tuple[Stream, int], torch.Tensor], stop: Stop, alpha: float
    ) -> bool:
        """Whether its next blocks, as far as they are here, settle a candidate; those of a class already chosen are in
        vain.
        """
        block, terms = self.counter.block, Terms(stop, self.cap, alpha)
        while (votes := early.pop((candidate.source, candidate.seen // block), None)) is not None:
            known = candidate.seen % block  # of a candidate that goes on after a part of a block
            end = min(block, candidate.end(self.cap) - candidate.seen + known)
            if candidate.add(votes[known:end], self.counter.num_classes, terms, block):
                return True
        return False


def _units(requests: Iterator[Request], counter: RemoteCounter, order: deque[_Open]) -> Iterator[list[Run]]:
    """The blocks of all requests, cut into units of as many forward passes as the counter thinks right; urgent ones of
    one.
    """
    runs, room = list[Run](), 0
    for request in requests:
        totals = [math.ceil(n / counter.block) for _, n in request.streams]
        one = _Open(request, [None] * len(totals), sum(totals))
        order.append(one)
        for i, (stream, n) in enumerate(request.streams):
            first = 0
            while first < totals[i]:
                room = room or (1 if one.urgent else counter.passes) * counter.slots
                count = min(room, totals[i] - first)
                take = min(counter.block, n - (first + count - 1) * counter.block)
                runs.append(Run((one, i), request.M, request.x, stream, first, count, take))
                first, room = first + count, room - count
                if room == 0:
                    yield runs
                    runs = []
    if runs:
        yield runs


def _add(runs: list[Run], counter: RemoteCounter) -> Any:
    """What to do with the rows of these runs, when they come: add them to what is kept of their requests."""
    keep, block = counter.keep, counter.block

    def then(rows: np.ndarray) -> None:
        lengths = [1 if keep.adds_up else run.count for run in runs]
        for run, part in zip(runs, torch.from_numpy(rows).split(lengths), strict=True):
            one, i = run.owner
            if keep.adds_up:
                one.kept[i] = part[0] if one.kept[i] is None else one.kept[i] + part[0]
            else:
                answers = part.flatten(0, 1)[: (run.count - 1) * block + run.take]
                one.kept[i] = keep.add(one.kept[i], answers, run.first * block, one.request.streams[i][1])
            one.left -= run.count

    return then


def _elsewhere(noisy: torch.Tensor) -> torch.Tensor:
    """A placeholder for the vote function, since the workers count the votes."""
    raise AssertionError("the votes of a cluster are counted by its workers")
