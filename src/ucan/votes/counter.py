"""Blocks of noisy copies → classifier → counts, on the device. The paper's ClassifySamples."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from ucan.arithmetic import Grid
from ucan.errors import ModelError
from ucan.generators import Generator
from ucan.guards import check_precision
from ucan.laws import Law
from ucan.votes.kept import Classes, Keep, Votes
from ucan.votes.streams import Stream, blocks, fitting, halved

TOO_SMALL = "not even a forward pass of one copy fits into the device's memory: use another device, or smaller inputs."


@contextmanager
def matmul_in(precision: str) -> Iterator[None]:
    """TF32 on request only: elsewhere it would be an approximation that nobody asked for."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision != "fp32"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


@dataclass(frozen=True)
class Form:
    """How inputs lie in memory: in which precision, and whether the channels of pictures come last."""

    dtype: torch.dtype
    channels_last: bool = False

    def of(self, batch: torch.Tensor) -> torch.Tensor:
        """A batch (n, *event) in this form: itself, where it is so already."""
        batch = batch.to(self.dtype)
        return batch.contiguous(memory_format=torch.channels_last) if self.channels_last else batch

    def empty(self, slots: int, block: int, like: torch.Tensor) -> torch.Tensor:
        """Memory (slots, block, *event) for copies of an input (1, *event), in this form when taken as one batch."""
        layout = torch.channels_last if self.channels_last else torch.contiguous_format
        size = (slots * block, *like.shape[1:])
        try:
            batch = torch.empty(size, dtype=self.dtype, device=like.device, memory_format=layout)
        except RuntimeError as error:  # a GPU has an error of its own for this, after which smaller batches are tried
            if isinstance(error, torch.OutOfMemoryError) or "allocate" not in str(error):
                raise
            raise ModelError(
                f"{size[0]:,} copies of an input do not fit in memory: give a smaller batch_size."
            ) from error
        found: torch.Tensor = batch.unflatten(0, (slots, block))
        return found


@dataclass(frozen=True)
class Job:
    """One block of votes: input (1, *event) under the generator M held at it; of its copies the first ``take`` count.

    A ``part`` of a block is classified without the rest: ``take`` copies after the first ``skip``.
    """

    M: Generator
    x: torch.Tensor
    stream: Stream
    number: int
    take: int
    skip: int = 0
    part: bool = False

    def length(self, block: int) -> int:
        """How many copies are classified."""
        return self.take if self.part else block


class VoteCounter:
    """Runs blocks of votes through the classifier, as many at once as fill a forward pass; or one block in parts.

    Everything stays on the device: noise, shaping, cast, forward pass, argmax, counting. Forward passes all have the
    same shape (a short one is padded), so a compiled network is compiled once.
    """

    def __init__(
        self,
        vote: Callable[[torch.Tensor], torch.Tensor],
        num_classes: int,
        law: Law,
        block: int,
        size: int,
        grid: Grid | None = None,
        form: Form | None = None,
        keep: Keep | None = None,
    ) -> None:
        self.vote = vote
        self.keep = keep or Classes(num_classes)
        self.num_classes = num_classes
        self.law = law
        self.grid = grid
        self.form = form
        self.block = block
        self.size = fitting(size, block)
        self.on_votes: Callable[[int], None] | None = None

    @property
    def slots(self) -> int:
        """Blocks that are drawn together: those of a forward pass, and one where a pass holds less than that."""
        return max(1, self.size // self.block)

    def count(self, jobs: Sequence[Job]) -> torch.Tensor:
        """The tallies (jobs, num_classes + 1) of at most ``slots`` blocks, on the device."""
        votes = self.answers(jobs)
        takes = torch.tensor([job.take for job in jobs]).to(votes.device, non_blocking=True)
        counted = torch.arange(self.block, device=votes.device) < takes[:, None]
        tally = torch.zeros(len(jobs), self.num_classes + 1, dtype=torch.int64, device=votes.device)
        return tally.scatter_add_(1, votes, counted.long())

    def answers(self, jobs: Sequence[Job]) -> torch.Tensor:
        """The votes (jobs, block) of at most ``slots`` blocks in their order, on the device; past ``take`` they say nothing.

        If a forward pass does not fit into memory, passes are half as large from then on; the noise stays the same.
        """
        while (votes := self._answers(jobs)) is None:  # outside the handler, which would keep the failed pass alive
            self.size = halved(self.size, self.block)
            warnings.warn(f"out of memory: going on with forward passes of {self.size}.", RuntimeWarning, stacklevel=3)
        if self.on_votes is not None:
            self.on_votes(sum(job.take for job in jobs))
        return votes

    @property
    def capacity(self) -> int:
        """Copies that are held at once: those of a forward pass, or of the block that is classified in parts."""
        return max(self.size, self.block)

    def _answers(self, jobs: Sequence[Job]) -> torch.Tensor | None:
        """The votes, or None if a forward pass of this size does not fit and a smaller one may."""
        try:
            return torch.cat([self._forward(part) for part in _parts(jobs, self.block, self.capacity)])
        except torch.OutOfMemoryError as error:
            if self.size == 1:
                raise ModelError(TOO_SMALL) from error
            return None

    @torch.inference_mode()
    def _forward(self, jobs: Sequence[Job]) -> torch.Tensor:
        check_precision(jobs[0].x.device)
        with matmul_in("fp32"):
            noisy = self._noisy(jobs)
        lengths = [job.length(self.block) for job in jobs]
        if self.size >= self.block:
            votes = self.vote(noisy).to(noisy.device)
        else:
            votes = self._in_parts(noisy, sum(lengths[:-1]) + jobs[-1].take)
        if not any(job.part for job in jobs):
            found: torch.Tensor = votes.unflatten(0, (-1, self.block))[: len(jobs)]
            return found
        # In one step for all jobs: launching one for each takes longer than a forward pass.
        places = torch.cat([i * self.block + torch.arange(length) for i, length in enumerate(lengths)])
        rows = votes.new_zeros(len(jobs) * self.block, *votes.shape[1:])
        rows[places.to(votes.device, non_blocking=True)] = votes[: len(places)]
        made: torch.Tensor = rows.unflatten(0, (-1, self.block))
        return made

    def _in_parts(self, noisy: torch.Tensor, used: int) -> torch.Tensor:
        """The votes of the first ``used`` copies, from forward passes that hold less than a block."""
        votes: torch.Tensor | None = None
        for start in range(0, used, self.size):
            part = noisy[start : start + self.size]
            # A part of its own: a model that works in place may have what it is shown, but not the rest of the block.
            shown = (self.form or Form(part.dtype)).empty(1, self.size, part[:1])[0].zero_()
            shown[: len(part)] = part
            found = self.vote(shown).to(noisy.device)[: len(part)]
            votes = found.new_zeros(len(noisy), *found.shape[1:]) if votes is None else votes
            votes[start : start + self.size] = found
        assert votes is not None, "a block has at least one copy that counts"
        return votes

    def _noisy(self, jobs: Sequence[Job]) -> torch.Tensor:
        """The noisy copies (capacity, *event); places without a job count for nothing."""
        x, start = jobs[0].x, 0
        form = self.form or Form(x.dtype)
        noisy = form.empty(1, self.capacity, x)[0]
        # One input's blocks are shaped together.
        for (*_, part), same in itertools.groupby(jobs, key=lambda job: (id(job.M), id(job.x), job.part)):
            for run in [[job] for job in same] if part else [list(same)]:
                length = sum(job.length(self.block) for job in run)
                # A part has the noise that it has in its block, which is drawn whole.
                out = form.empty(1, self.block, x)[0] if part else noisy[start : start + length]
                self._draw(out.unflatten(0, (len(run), self.block)), run)
                if part:
                    noisy[start : start + length] = out[run[0].skip : run[0].skip + length]
                start += length
        noisy[start:] = 0
        return noisy

    def _draw(self, out: torch.Tensor, run: Sequence[Job]) -> None:
        """Fill blocks (blocks, block, *event) of one input, each from its generator."""
        first = run[0]
        rngs = [job.stream.block(job.number, first.x.device) for job in run]
        if self.grid is None:
            first.M.perturb_into(out, first.x, self.law, rngs)
        else:
            first.M.perturb_on_grid(out, first.x, self.law, rngs, self.grid)


def running_tallies(
    counter: VoteCounter, M: Generator, x: torch.Tensor, n: int, stream: Stream
) -> Iterator[torch.Tensor]:
    """The tally (num_classes + 1,) of n noisy copies of one input (1, *event), so far: on the device, pass by pass."""
    tally = torch.zeros(counter.num_classes + 1, dtype=torch.int64, device=x.device)
    jobs = (Job(M, x, stream, number, take) for number, take in blocks(n, counter.block))
    while batch := list(itertools.islice(jobs, counter.slots)):
        tally = tally + counter.count(batch).sum(0)
        yield tally


def classify_samples(counter: VoteCounter, M: Generator, x: torch.Tensor, n: int, stream: Stream) -> Votes:
    """The votes of n noisy copies of one input (1, *event); the host waits for the device once, at the end."""
    *_, tally = running_tallies(counter, M, x, n, stream)
    return Votes.of(tally)


def _parts(jobs: Sequence[Job], block: int, capacity: int) -> Iterator[Sequence[Job]]:
    """The jobs in turns that fit into a capacity of copies."""
    turn, used = list[Job](), 0
    for job in jobs:
        if used + job.length(block) > capacity:
            yield turn
            turn, used = [], 0
        turn.append(job)
        used += job.length(block)
    if turn:
        yield turn
