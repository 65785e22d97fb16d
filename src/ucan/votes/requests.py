"""All the votes wanted on many inputs: their blocks lie end to end and fill one forward pass after another."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ucan.generators import Generator
from ucan.passes import Fetched
from ucan.votes.counter import Job, VoteCounter
from ucan.votes.kept import Keep
from ucan.votes.streams import Stream, blocks


@dataclass(frozen=True)
class Request:
    """All the votes wanted on one input (1, *event) under the generator held at it: so many from each stream."""

    M: Generator
    x: torch.Tensor
    streams: tuple[tuple[Stream, int], ...]

    def jobs(self, block: int) -> list[tuple[int, Job]]:
        """Its blocks, each with the place of its stream."""
        return [
            (i, Job(self.M, self.x, stream, number, take))
            for i, (stream, n) in enumerate(self.streams)
            for number, take in blocks(n, block)
        ]


@dataclass
class _Open:
    """A request some of whose blocks are not counted yet, and what its streams have given so far, on the device."""

    request: Request
    kept: list[torch.Tensor | None]
    left: int


def count_requests(counter: VoteCounter, requests: Iterable[Request]) -> Iterator[tuple[Request, list[Any]]]:
    """Each request with what is kept of its streams' answers (of a classifier: votes), in order; the blocks of all of them
    fill one forward pass after another.

    A GPU is given its next pass before the results of the last are handed out, so that what is done with them costs
    it no time.
    """

    def jobs() -> Iterator[tuple[_Open, int, Job]]:
        for request in requests:
            own = request.jobs(counter.block)
            one = _Open(request, [None] * len(request.streams), len(own))
            yield from ((one, i, job) for i, job in own)

    waiting, finished = jobs(), deque[tuple[Request, Fetched]]()
    while batch := list(itertools.islice(waiting, counter.slots)):
        answers, start = counter.answers([job for *_, job in batch]), 0
        ready = len(finished)
        for (_, i), same in itertools.groupby(batch, key=lambda item: (id(item[0]), item[1])):
            members = list(same)
            one, first = members[0][0], members[0][2]
            takes = sum(job.take for *_, job in members)  # only a stream's last block is taken in part
            mine = answers[start : start + len(members)].flatten(0, 1)[:takes]
            n = one.request.streams[i][1]
            one.kept[i] = counter.keep.add(one.kept[i], mine, first.number * counter.block, n)
            start += len(members)
            one.left -= len(members)
            if one.left == 0:
                finished.append((one.request, Fetched(*(kept for kept in one.kept if kept is not None))))
        for _ in range(ready if answers.is_cuda else len(finished)):
            yield _received(counter.keep, *finished.popleft())
    for request, fetched in finished:
        yield _received(counter.keep, request, fetched)


def _received(keep: Keep, request: Request, fetched: Fetched) -> tuple[Request, list[Any]]:
    return request, [keep.received(one) for one in fetched.wait()]
