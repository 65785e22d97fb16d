"""What both algorithms stand on: how f is run, how its votes are counted, and what the evidence says of that."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ucan.backends import Backend, prepare
from ucan.certificate import Evidence
from ucan.errors import ModelError
from ucan.fingerprint import plain_state, weights_hash
from ucan.generators import Generator
from ucan.generators.base import check_scope, unlike
from ucan.laws import Law
from ucan.plan import CertifyPlan, PredictPlan
from ucan.sequential import Candidate, settle
from ucan.sidecar import input_hash
from ucan.stopping import Stop
from ucan.votes import (
    Classifier,
    Request,
    Stream,
    VoteCounter,
    Votes,
    block_size,
    classify_samples,
    count_requests,
    forward_size,
    running_tallies,
    too_small,
)

# Ways of running f that are kept for when they are asked for again.
KEPT = 4


@dataclass(frozen=True)
class Setup:
    """How the votes on inputs of one shape are counted, and what their evidence says of it."""

    counter: VoteCounter
    backend: Backend
    weights: str | None

    def classify_samples(self, M: Generator, x: torch.Tensor, n: int, seed: int, phase: str) -> Votes:
        """n votes on one input (1, *event) under the generator held at it."""
        return classify_samples(self.counter, M, x, n, Stream(seed, input_hash(x), phase))

    def running_votes(self, M: Generator, x: torch.Tensor, n: int, seed: int, phase: str) -> Iterator[Votes]:
        """The same votes as they come: those so far, after every forward pass; the last are all n."""
        return map(Votes.of, running_tallies(self.counter, M, x, n, Stream(seed, input_hash(x), phase)))


class Engine:
    """Runs the classifier f under noise of one law and one generator. ``on_votes`` is told of every block of votes."""

    def __init__(self, f: Classifier, M: Generator, law: Law, backend: str) -> None:
        self.f = f
        self.M = M
        self.law = law
        self.backend = backend
        self.on_votes: Callable[[int], None] | None = None
        self.prepared: dict[Any, Backend] = {}
        self._fitting: dict[Any, int] = {}
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def setup(self, x: torch.Tensor, plan: CertifyPlan | PredictPlan) -> Setup:
        """For inputs like x (1, *event): everything that does not depend on their pixels."""
        weights = weights_hash(self.f.model)
        asked = plan.batch_size or forward_size(x.numel(), x.device)
        block = min(asked, block_size(x.numel()))
        place = (plan.precision, asked, x.shape, x.device)
        size = self._fitting.get(place, asked // block * block)
        while (backend := self._run(x, size, plan.precision, weights)) is None:
            if size == block:
                raise ModelError(too_small(block))
            size = self._fitting[place] = max(block, size // 2 // block * block)
            warnings.warn(f"out of memory: going on with forward passes of {size}.", RuntimeWarning, stacklevel=2)
        counter = VoteCounter(backend.vote, self.f.num_classes, self.law, block, size)
        counter.on_votes = self.on_votes
        return Setup(counter, backend, weights)

    def _run(self, x: torch.Tensor, size: int, precision: str | None, weights: str | None) -> Backend | None:
        """How f is run on forward passes of this shape: prepared once per state of f. None where they do not fit."""
        state = plain_state(self.f.model) if isinstance(self.f.model, nn.Module) else None
        key = (self.backend, precision, size, x.shape, x.dtype, x.device, weights, state)
        if key not in self.prepared:
            rng = torch.Generator(x.device).manual_seed(0)
            try:
                example = (
                    x + self.law.sample(size, x.shape[1:], rng, x.dtype) if self.backend != "eager" or precision else x
                )
                backend = prepare(self.f, self.M.view, example, self.backend, precision)
            except torch.OutOfMemoryError:
                return None
            for old in list(self.prepared)[: 1 - KEPT]:  # each may hold a copy of the network
                del self.prepared[old]
            self.prepared[key] = backend
        return self.prepared[key]

    def selected(
        self, inputs: Iterable[torch.Tensor], plan: CertifyPlan | PredictPlan, n0: int
    ) -> Iterator[tuple[Setup, int, torch.Tensor, Generator, torch.Tensor]]:
        """Each input with the generator held at it and its n0 selection counts."""
        for setup, i, request, (select,) in self.counted(inputs, plan, {"select": n0}):
            yield setup, i, request.x, request.M, select.counts

    def counted(
        self, inputs: Iterable[torch.Tensor], plan: CertifyPlan | PredictPlan, phases: dict[str, int]
    ) -> Iterator[tuple[Setup, int, Request, list[Votes]]]:
        """So many votes of each phase on each input; all inputs share forward passes."""
        waiting = iter(inputs)
        first = next(waiting, None)
        if first is None:
            return
        device = self.f.device or first.device
        setup = self.setup(first.to(device), plan)
        if device.type == "cuda":  # what was made so far is there when it is used beside the votes
            self._side(device).wait_stream(torch.cuda.current_stream(device))
        requests = self._requests(itertools.chain([first], waiting), device, plan.seed, phases)
        for i, (request, votes) in enumerate(self.answered(setup, requests)):
            yield setup, i, request, votes

    def answered(self, setup: Setup, requests: Iterator[Request]) -> Iterator[tuple[Request, list[Votes]]]:
        """Each request with the votes of its streams, in order."""
        return count_requests(setup.counter, requests)

    def _requests(
        self, inputs: Iterator[torch.Tensor], device: torch.device, seed: int, phases: dict[str, int]
    ) -> Iterator[Request]:
        """What is to be counted on each input."""
        elsewhere = None
        while True:
            with self.beside(device):
                x = next(inputs, None)
                if x is None:
                    return
                x = x.to(device)
                M, name = self.M.at(x), input_hash(x)
                if M.scope == "pipeline":  # held against every input: noise may follow only some of them
                    elsewhere = elsewhere or self.M.at(unlike(x))
                    check_scope(M, elsewhere, x)
            yield Request(M, x, tuple((Stream(seed, name, phase), n) for phase, n in phases.items()))

    @contextmanager
    def beside(self, device: torch.device) -> Iterator[None]:
        """For work on one input while a GPU counts the votes on others: there it does not queue up behind them."""
        if device.type != "cuda":
            yield
            return
        with torch.cuda.stream(self._side(device)):
            yield
        torch.cuda.current_stream(device).wait_stream(self._side(device))

    def _side(self, device: torch.device) -> torch.cuda.Stream:
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)
        return self._streams[device]

    def settled(
        self, setup: Setup, candidates: Iterable[Candidate], stop: Stop, plan: CertifyPlan | PredictPlan
    ) -> Iterator[Candidate]:
        """Each candidate when its votes satisfy the rule, or when it has used all n."""
        return settle(setup.counter, candidates, stop, plan.n, plan.alpha)

    def evidence(
        self, setup: Setup, x: torch.Tensor, votes: Votes, n0: int, n: int, plan: CertifyPlan | PredictPlan, bound: str
    ) -> Evidence:
        """Everything needed to check these votes, or to draw them again."""
        return Evidence(
            counts=tuple(votes.counts.tolist()),
            invalid=votes.invalid,
            n0=n0,
            n=n,
            alpha=plan.alpha,
            seed=plan.seed,
            law=self.law,
            generator=self.M.describe(),
            bound=bound,
            block=setup.counter.block,
            batch_size=setup.counter.size,
            precision=setup.backend.precision,
            backend=setup.backend.name,
            weights_hash=setup.weights,
            input_hash=input_hash(x),
        )
