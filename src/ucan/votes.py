"""The hot path: noisy copies → classifier → counts. The paper's ClassifySamples.

Noise comes in blocks. A block is a fixed number of copies of one input, which depends on the input's dimension alone; it
is drawn whole, from a generator seeded by (run seed, input, phase, block number). A forward pass takes as many blocks as
fill it, of one input or of several; where not even one fits, a block is classified in parts. So the same seed gives the
same noise bit for bit on a device type, whatever the size of forward passes and however the blocks are packed, spread
over workers or resumed; of a tail block only the first votes count.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import itertools
import math
import warnings
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, ClassVar, Self

import torch
from torch import nn

from ucan.arithmetic import Grid
from ucan.errors import InvalidInput, ModelError
from ucan.generators import Generator, Turn
from ucan.laws import Law
from ucan.passes import Fetched

# Above this dimension not even 16 copies are held at once.
LARGE = 2**20


def block_size(dim: int) -> int:
    """Copies per block of noise, a power of two from 16 to 128: small enough to hold, large enough to draw fast.

    Of inputs with more than 2²⁰ numbers fewer: what 2²⁴ numbers hold, and in the end one.
    """
    return min(128, max(16 if dim <= LARGE else 1, _power_of_two(2**24 // dim)))


def forward_size(dim: int, device: torch.device) -> int:
    """Copies per forward pass: what fills the device. A CPU's caches are small; a GPU wants thousands of small images."""
    if device.type == "cpu":
        return max(block_size(dim), min(512, _power_of_two(2**19 // dim)))
    return max(block_size(dim), min(4096, _power_of_two(2**27 // dim)))


def _power_of_two(bound: int) -> int:
    return int(2 ** int(math.log2(max(1, bound))))


@dataclass(frozen=True)
class Stream:
    """The source of noise for one input and one phase of one run; every block has its own generator.

    ``given`` is the key of a stream that is drawn again by someone who does not know the seed.
    """

    seed: int | None
    input_hash: str
    phase: str
    given: str | None = None

    @functools.cached_property
    def key(self) -> str:
        """All that the noise follows from: who has it can draw this stream again, and no other."""
        if self.given is not None:
            return self.given
        return hashlib.sha256(f"{self.seed}/{self.input_hash}/{self.phase}".encode()).hexdigest()

    def block(self, number: int, device: torch.device) -> torch.Generator:
        """The generator of one block. A CPU generator keeps only 32 bits of a seed, so 32 bits are what we give it."""
        return torch.Generator(device).manual_seed((int(self.key[:8], 16) + number) % 2**32)


class Enumeration(Stream):
    """All draws of a noise in their order, in place of random ones."""

    def block(self, number: int, device: torch.device) -> Turn:  # type: ignore[override]
        """The draws of one block."""
        return Turn(number)


ENUMERATED = "enumerate"  # the phase whose votes are all draws of the noise


def stream_of(seed: int | None, input_hash: str, phase: str) -> Stream:
    """The stream of a phase of a run at an input."""
    return (Enumeration if phase == ENUMERATED else Stream)(seed, input_hash, phase)


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
        batch = torch.empty(size, dtype=self.dtype, device=like.device, memory_format=layout)
        found: torch.Tensor = batch.unflatten(0, (slots, block))
        return found


@dataclass(frozen=True)
class Votes:
    """How often each class was answered, and how often nothing valid was."""

    counts: torch.Tensor
    invalid: int

    @classmethod
    def of(cls, tally: torch.Tensor) -> Votes:
        """From a tally (num_classes + 1,), whose last entry counts the invalid votes."""
        tally = tally.cpu()
        return cls(tally[:-1], int(tally[-1]))


class Keep(ABC):
    """What is kept of the answers to the noisy copies of one input: it grows pass by pass, in bounded memory.

    ``adds_up``: what is kept of some answers and what is kept of others add up to what is kept of all of them.
    """

    adds_up: ClassVar[bool] = True

    @abstractmethod
    def add(self, kept: torch.Tensor | None, answers: torch.Tensor, start: int, n: int) -> torch.Tensor:
        """What is kept after these answers (copies, *answer) as well, of the n there will be; ``start`` came before them."""

    @abstractmethod
    def received(self, kept: torch.Tensor) -> Any:
        """What is made of it on the host, once all answers are there."""

    def so_far(self, kept: Any, seen: int) -> Any:
        """The same before the end, of the answers seen so far."""
        return self.received(kept)


@dataclass(frozen=True)
class Classes(Keep):
    """How often each class was answered; the last count is that of invalid answers."""

    num_classes: int

    def add(self, kept: torch.Tensor | None, answers: torch.Tensor, start: int, n: int) -> torch.Tensor:
        """The tally (num_classes + 1,) so far."""
        if kept is None:
            kept = torch.zeros(self.num_classes + 1, dtype=torch.int64, device=answers.device)
        return kept.scatter_add_(0, answers, torch.ones_like(answers))

    def received(self, kept: torch.Tensor) -> Votes:
        """The votes."""
        return Votes.of(kept)


class Classifier:
    """Any callable that maps a batch to logits or to class indices, made to answer with valid class indices.

    The answer for a batch is an int64 tensor; ``num_classes`` stands for an invalid vote (NaN logits, or an index out
    of range), which counts for no class. ``assumed``: nobody gave the number of classes, which an error then says.
    """

    has_logits: ClassVar[bool] = True  # a model's output (n, num_classes) in floating point is logits of classes

    def __init__(self, model: Callable[[torch.Tensor], Any], num_classes: int, assumed: bool = False) -> None:
        whole = isinstance(num_classes, Integral) and not isinstance(num_classes, bool)
        if not callable(model):
            raise ModelError(f"the model must be callable on a batch of inputs, got {type(model).__name__}.")
        if not whole or num_classes < 2:
            raise InvalidInput(f"num_classes must be a whole number of at least 2, got {num_classes!r}.")
        self.model = model
        self.num_classes, self.assumed = int(num_classes), assumed

    @property
    def keep(self) -> Keep:
        """What is kept of its answers."""
        return Classes(self.num_classes)

    def reading(self, model: Callable[[torch.Tensor], Any]) -> Self:
        """The answers of another model, read in the same way."""
        made = copy.copy(self)
        made.model = model
        return made

    @property
    def device(self) -> torch.device | None:
        """Where the module's weights are now; None for a plain function."""
        first = self._first()
        return None if first is None else first.device

    @property
    def dtype(self) -> torch.dtype | None:
        """The precision of the module's weights now; None where they do not tell."""
        first = self._first()
        return first.dtype if first is not None and first.is_floating_point() else None

    def _first(self) -> torch.Tensor | None:
        return next(self.model.parameters(), None) if isinstance(self.model, nn.Module) else None

    def check_ready(self) -> None:
        """Refuse a module in training mode: its answers would depend on the batch, and no theorem covers that."""
        if isinstance(self.model, nn.Module):
            training = [name or "the model" for name, m in self.model.named_modules() if m.training]
            if training:
                raise ModelError(f"the model is in training mode ({training[0]}): call model.eval() first.")

    def __call__(self, batch: torch.Tensor) -> torch.Tensor:
        """One valid class index, or ``num_classes``, for each of the batch."""
        dtype = self.dtype
        return self.to_votes(self.model(batch if dtype is None else batch.to(dtype)), len(batch))

    @torch.inference_mode()
    def check_apart(self, batches: Iterable[torch.Tensor], others: torch.Tensor) -> None:
        """Refuse a model that answers an input differently in other company, as batch norm on the batch's own statistics does.

        Its votes would not be independent draws, which every bound takes them for. A batch is asked together, one by one,
        and among those of ``others`` that get another answer: a model that answers with the majority of its batch gives
        one answer in all company of its own kind. A near tie may fall either way, so that one of several batches must
        pass. A model that draws at random answers otherwise every time: of that one nothing can be told here.
        """
        if not any(self._alike_in_company(batch, others) for batch in batches):
            raise ModelError(
                "the model answers an input differently in other company, so its votes are not independent and prove nothing. "
                "Batch norm without running statistics does that: give a model that answers each input by itself."
            )

    def _alike_in_company(self, batch: torch.Tensor, others: torch.Tensor) -> bool:
        together, again = self._answers(batch), self._answers(batch)
        self.to_votes(together, len(batch))  # an answer of the wrong shape is another fault
        if not self._agree(together, again):
            return True  # it draws at random
        apart = torch.cat([self._answers(one) for one in batch.split(1)])
        if not self._agree(together, apart):
            return False
        strange = self._strangers(apart, others)
        few = batch[: len(batch) // 4]  # outnumbered: the rest of the batch are strangers
        company = torch.cat(strange * len(batch))[: len(batch) - len(few)] if strange else batch[len(few) :]
        return self._agree(together[: len(few)], self._answers(torch.cat([few, company]))[: len(few)])

    def differing(self, votes: torch.Tensor, others: torch.Tensor, tolerance: float) -> float:
        """The share of answers in which another way to run the model differs from it."""
        return float((votes != others).double().mean())

    def _strangers(self, answers: torch.Tensor, others: torch.Tensor) -> list[torch.Tensor]:
        """Those of the others that get another answer than most of these got."""
        own = int(self.to_votes(answers, len(answers)).mode().values)
        return [one for one in others.split(1) if int(self.to_votes(self._answers(one), 1)[0]) != own]

    def _answers(self, batch: torch.Tensor) -> torch.Tensor:
        """What the model says of a copy of the batch: it may work in place."""
        return as_answer(self.model(batch.clone() if self.dtype is None else batch.to(self.dtype, copy=True)))

    def _agree(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        """Whether two answers are one: class numbers exactly, logits up to rounding."""
        if not (one.is_floating_point() and one.ndim == 2):
            return one.shape == other.shape and torch.equal(one, other)
        # Answers are what logits differ by: neither a number added to all, nor a class masked out by −1e9, may hide the rest.
        one, other = (t.double() - t.double().amax(1, keepdim=True) for t in (one, other))
        shown = one.nan_to_num(posinf=0.0, neginf=0.0).topk(min(3, one.shape[1]), dim=1).values
        size = float(-shown[:, 1].mean() - shown[:, 1].min())
        # Other company may mean another algorithm, and a network may reckon in 16 bits whatever it gives out. Statistics of
        # the batch change a ResNet's answers by 0.4 of their size.
        room = max(16 * torch.finfo(one.dtype).eps, 1 / 16) * size
        return torch.allclose(one, other, rtol=2.0**-5, atol=room, equal_nan=True)

    def to_votes(self, output: Any, size: int) -> torch.Tensor:
        """The model's output as votes; an output of the wrong shape is an error, since every vote would be wrong."""
        output = as_answer(output)
        if output.ndim == 1 and len(output) == size and not (output.is_floating_point() or output.is_complex()):
            index = output.long()  # first of all: in eight bits num_classes may be a class
            return torch.where((index >= 0) & (index < self.num_classes), index, self.num_classes)
        if output.ndim != 2 or len(output) != size or not output.is_floating_point():
            raise ModelError(
                f"the model answered a batch of {size} with {output.dtype} of shape {tuple(output.shape)}; it must "
                f"give logits of shape ({size}, {self.num_classes}) or whole class numbers of shape ({size},)."
            )
        if output.shape[1] == 1:
            raise ModelError(
                "the model answers with one number per input. If it is the logit of the second of two classes, "
                "ucan.models.adapt(model, x) makes it two; if it is a probability p, wrap it in a function that gives "
                "torch.cat([1 - p, p], 1)."
            )
        if output.shape[1] != self.num_classes:
            raise ModelError(
                f"the model answers with {output.shape[1]} logits, but num_classes is {self.num_classes}"
                f"{', the default' if self.assumed else ''}: use num_classes={output.shape[1]} (on the command line "
                f"--classes)."
            )
        return torch.where(output.isnan().any(1), self.num_classes, output.argmax(1))


def as_answer(output: Any) -> torch.Tensor:
    """What a model answered, as a tensor: itself, the logits of a record, or those in a tuple where only one can be meant."""
    if isinstance(output, torch.Tensor):
        return output
    inner = output.get("logits") if isinstance(output, dict) else getattr(output, "logits", None)
    if isinstance(inner, torch.Tensor):  # Hugging Face's models
        return inner
    if isinstance(output, tuple | list):
        found = [part for part in output if isinstance(part, torch.Tensor) and part.ndim in (1, 2)]
        if len(found) == 1:
            return found[0]
        if len(found) > 1:
            raise ModelError(
                f"the model answers with a {type(output).__name__} of {len(found)} tensors that could be its logits: wrap "
                "it in a function, or in a module, that gives the logits alone, such as lambda batch: model(batch)[0]."
            )
    try:
        return torch.as_tensor(output)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ModelError(
            f"the model answered with a {type(output).__name__}, not with a tensor of logits or class numbers: wrap it "
            "in a function that takes them out, such as lambda batch: model(batch).logits."
        ) from error


TOO_SMALL = "not even a forward pass of one copy fits into the device's memory: use another device, or smaller inputs."


def fitting(size: int, block: int) -> int:
    """The size of a forward pass that was asked for, in whole blocks where it holds one."""
    return size if size < block else size // block * block


def halved(size: int, block: int) -> int:
    """The next smaller forward pass, in whole blocks while there are several."""
    return size // block // 2 * block if size >= 2 * block else size // 2


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


def blocks(n: int, size: int) -> Iterator[tuple[int, int]]:
    """Block numbers, with how many of each block's copies count."""
    for number in range(math.ceil(n / size)):
        yield number, min(size, n - number * size)


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
