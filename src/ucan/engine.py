"""The common part of both algorithms: how f is run, how its votes are counted, and their evidence."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ucan.arithmetic import REAL, Grid, arithmetic_of
from ucan.backends import Backend, prepare
from ucan.choices import BACKENDS
from ucan.errors import ModelError
from ucan.evidence import Evidence, Noise, law_to_json
from ucan.fingerprint import identity, plain_state, weights_hash
from ucan.generators import Generator
from ucan.guards import as_drawn, check_constant, check_elsewhere, check_lost
from ucan.held import held_of
from ucan.laws import Law
from ucan.plan import CertifyPlan, PredictPlan, derived_from, is_secret
from ucan.sequential import Sitting, settle
from ucan.sidecar import exact_hash, input_hash
from ucan.stopping import Stop
from ucan.version import __version__
from ucan.votes import (
    TOO_SMALL,
    Classifier,
    Request,
    Stream,
    VoteCounter,
    Votes,
    block_size,
    classify_samples,
    count_requests,
    fitting,
    forward_size,
    halved,
    running_tallies,
    stream_of,
)

# Number of prepared backends of f that are cached.
KEPT = 4
# Inputs for which a GPU computes the noise ahead of their votes.
AHEAD = 8


@dataclass(frozen=True)
class Setup:
    """How the votes on inputs of one shape are counted, and the related evidence."""

    counter: VoteCounter
    backend: Backend
    weights: str | None
    identify: Callable[[], str | None]
    noise: Noise

    @functools.cached_property
    def model(self) -> str | None:
        """The classifier's identity. Computed on first use, while a GPU counts votes."""
        return self.identify()

    def classify_samples(self, M: Generator, x: torch.Tensor, n: int, seed: int, phase: str) -> Votes:
        """n votes on one input (1, *event) under the generator held at it."""
        return classify_samples(self.counter, M, x, n, stream_of(seed, input_hash(x), phase))

    def running_votes(self, M: Generator, x: torch.Tensor, n: int, seed: int, phase: str) -> Iterator[Votes]:
        """The same votes as they come: those so far, after every forward pass; the last are all n."""
        return map(Votes.of, running_tallies(self.counter, M, x, n, stream_of(seed, input_hash(x), phase)))


class Engine:
    """Runs the classifier f under noise of one law and one generator. ``on_votes`` is called for every block of votes.

    With a ``grid`` inputs and noise are whole numbers of its steps.
    """

    def __init__(
        self,
        f: Classifier,
        M: Generator,
        law: Law,
        backend: str,
        precision: str | None = None,
        model_id: str | None = None,
        grid: Grid | None = None,
    ) -> None:
        self.f = f
        self.M = M
        self.law = law
        self.backend = backend
        self.precision = precision
        self.model_id = model_id
        self.grid = grid
        self.on_votes: Callable[[int], None] | None = None
        self.prepared: dict[Any, Backend] = {}
        self._fitting: dict[Any, int] = {}
        self._streams: dict[tuple[torch.device, str], torch.cuda.Stream] = {}

    def setup(self, x: torch.Tensor, plan: CertifyPlan | PredictPlan) -> Setup:
        """For inputs like x (1, *event): everything that does not depend on their pixels."""
        weights, precision, noise = weights_hash(self.f.model), self.precision_of(plan), self.M.record()
        block = block_size(x.numel())
        if (
            plan.block is not None and derived_from(plan.seed) is None
        ):  # among noises of a derived seed nobody may choose
            block = plan.block
        asked = plan.batch_size or max(block, forward_size(x.numel(), x.device))
        place = (precision, asked, block, x.shape, x.device)
        size = self._fitting.get(place, fitting(asked, block))
        while (backend := self._run(x, size, precision, weights, noise)) is None:
            if size == 1:
                raise ModelError(TOO_SMALL)
            size = self._fitting[place] = halved(size, block)
            warnings.warn(f"out of memory: going on with forward passes of {size}.", RuntimeWarning, stacklevel=2)
        form, keep = backend.form, self.f.keep
        counter = VoteCounter(backend.vote, self.f.num_classes, self.law, block, size, self.grid, form, keep)
        counter.on_votes = self.on_votes
        return Setup(counter, backend, weights, self.identity, noise)

    def arithmetic(self, x: torch.Tensor) -> str:
        """The name of the arithmetic of votes at x (1, *event), as evidence has it."""
        return REAL if self.grid is None else self.grid.arithmetic(x)

    def placed(self, engine: Engine) -> Engine:
        """The engine of another classifier, with its votes counted where this one's are."""
        return engine

    @contextmanager
    def running(self, backend: str) -> Iterator[None]:
        """Inside, f is run in this way; a name that no run has, such as "auto" or that of a function, changes nothing."""
        own = self.backend
        self.backend = backend if backend in BACKENDS and backend != "auto" else own
        try:
            yield
        finally:
            self.backend = own

    def precision_of(self, plan: CertifyPlan | PredictPlan) -> str | None:
        """The precision to run f in: the requested one, or else the classifier's."""
        return self.precision if plan.precision is None else plan.precision

    def identity(self) -> str | None:
        """The classifier's identity."""
        return identity(self.f.model, self.model_id)

    def _run(
        self, x: torch.Tensor, size: int, precision: str | None, weights: str | None, noise: Noise
    ) -> Backend | None:
        """How f is run on forward passes of this shape: prepared once per state of f and of the view. None where they do not
        fit.
        """
        key = (self.backend, precision, size, x.shape, x.dtype, x.device, weights, noise.state, self.state())
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

    def state(self) -> tuple[Any, ...]:
        """What classifier and generator keep beside their weights: copies that were made of them under other values answer
        otherwise.
        """
        return tuple(plain_state(part) for part in (self.f.model, self.M) if isinstance(part, nn.Module))

    def derived_seed(self, data_hash: str) -> int:
        """The seed that follows from model, noise and data (the hash of the inputs or of the data set).

        So nobody can try several seeds and keep the best. The number of votes, α and similar settings do not change it.
        """
        noise = self.M.record()
        parts = {
            "model": self.identity(),
            "law": law_to_json(self.law),
            "noise": [noise.kind, noise.module, dict(noise.settings), noise.state],
            "precision": self.precision,
            **({} if self.grid is None else {"arithmetic": arithmetic_of(self.grid)}),
            "data": data_hash,
        }
        return int(hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32], 16)

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
        for setup, requests in self._begun(inputs, plan, phases):
            for i, (request, votes) in enumerate(self.answered(setup, requests)):
                yield setup, i, request, votes

    def held(
        self, inputs: Iterable[torch.Tensor], plan: CertifyPlan | PredictPlan
    ) -> Iterator[tuple[Setup, int, torch.Tensor, Generator]]:
        """Each input with the generator held at it; no votes are cast."""
        for setup, requests in self._begun(inputs, plan, {}):
            for i, request in enumerate(requests):
                yield setup, i, request.x, request.M

    def _begun(
        self, inputs: Iterable[torch.Tensor], plan: CertifyPlan | PredictPlan, phases: dict[str, int]
    ) -> Iterator[tuple[Setup, Iterator[Request]]]:
        """How votes are counted, and what is to be counted; nothing where there are no inputs."""
        waiting = iter(inputs)
        first = next(waiting, None)
        if first is None:
            return
        device = self.f.device or first.device
        setup = self.setup(as_drawn(first, device), plan)
        if device.type == "cuda":  # what was made so far is there when it is used beside the votes
            self._side(device).wait_stream(torch.cuda.current_stream(device))
        yield setup, self._requests(itertools.chain([first], waiting), device, plan.seed, phases)

    def answered(self, setup: Setup, requests: Iterator[Request]) -> Iterator[tuple[Request, list[Votes]]]:
        """Each request with the votes of its streams, in order."""
        return count_requests(setup.counter, requests)

    def _requests(
        self, inputs: Iterator[torch.Tensor], device: torch.device, seed: int, phases: dict[str, int]
    ) -> Iterator[Request]:
        """What is to be counted on each input."""
        issue, started = Issuer(self, device), self._started(inputs, device)
        while True:
            with self.beside(device):
                following = next(started, None)
                if following is None:
                    return
                x, M = issue(*following)
                name = input_hash(x)
            yield Request(M, x, tuple((stream_of(seed, name, phase), n) for phase, n in phases.items()))

    def _started(
        self, inputs: Iterator[torch.Tensor], device: torch.device
    ) -> Iterator[tuple[torch.Tensor, Callable[[], Generator]]]:
        """Each input with its noise, which a GPU begins to compute for some inputs ahead: between the kernels of forward
        passes each of its own has to wait for its turn.
        """
        most = AHEAD if device.type == "cuda" and self.M.looks() else 0
        ahead, under_way = min(1, most), deque[tuple[torch.Tensor, Callable[[], Generator]]]()
        for x in inputs:
            there = as_drawn(x, device)
            with self._apart(device) if most else nullcontext():
                under_way.append((there, self.M.starting(there)))
            if len(under_way) > ahead:
                yield under_way.popleft()
                ahead = min(ahead + 1, most)  # by and by: at the beginning the device has nothing to do yet
        yield from under_way

    @contextmanager
    def beside(self, device: torch.device) -> Iterator[None]:
        """For work on one input while a GPU counts the votes on others: there it does not queue up behind them."""
        if device.type != "cuda":
            yield
            return
        with torch.cuda.stream(self._side(device)):
            yield
        torch.cuda.current_stream(device).wait_stream(self._side(device))

    @contextmanager
    def _apart(self, device: torch.device) -> Iterator[None]:
        """For work that nobody waits for on the device: the host does, when it needs the result. Else forward passes would
        wait for the noise of inputs that are not theirs.
        """
        stream = self._side(device, "ahead")
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            yield

    def _side(self, device: torch.device, purpose: str = "beside") -> torch.cuda.Stream:
        if (device, purpose) not in self._streams:
            self._streams[device, purpose] = torch.cuda.Stream(device)
        return self._streams[device, purpose]

    def settled(
        self, setup: Setup, candidates: Iterable[Sitting], stop: Stop, plan: CertifyPlan | PredictPlan
    ) -> Iterator[Sitting]:
        """Each candidate when its votes satisfy the rule, or when it has used all n."""
        return settle(setup.counter, candidates, stop, plan.n, plan.level)

    def evidence(
        self,
        setup: Setup,
        x: torch.Tensor,
        votes: Votes,
        selection: torch.Tensor | None,
        n0: int,
        n: int,
        plan: CertifyPlan | PredictPlan,
        bound: str,
        thresholds: tuple[float, ...] = (),
        looks: tuple[int, ...] = (),
    ) -> Evidence:
        """Everything needed to check these votes, or to draw them again; ``selection`` chose the class, where others did."""
        name, phase = input_hash(x), "estimate" if isinstance(plan, CertifyPlan) else "predict"
        phases = [] if bound == "exact" else [phase] if selection is None else ["select", phase]  # exact: none drawn
        return Evidence(
            counts=tuple(votes.counts.tolist()),
            invalid=votes.invalid,
            n0=n0,
            n=n,
            alpha=plan.level,
            seed=None if is_secret(plan.seed) else int(plan.seed),
            law=self.law,
            noise=setup.noise,
            bound=bound,
            block=setup.counter.block,
            batch_size=setup.counter.size,
            precision=setup.backend.precision,
            backend=setup.backend.name,
            weights_hash=setup.weights,
            input_hash=name,
            arithmetic=self.arithmetic(x),
            phase=phase,
            stop=plan.rule,
            cap=plan.n,
            selection=None if selection is None else tuple(selection.tolist()),
            device=device_name(x.device),
            versions={"ucan": __version__, "torch": torch.__version__},
            streams={each: Stream(plan.seed, name, each).key for each in phases},
            model=setup.model,
            exact_hash=exact_hash(x),
            family=plan.family,
            data_hash=derived_from(plan.seed),
            copy=plan.precision not in (None, self.precision),
            thresholds=thresholds,
            looks=looks,
            held=held_of(self.f.model),
        )


class Issuer:
    """Issues the noise of one input after the other, each held at its input and checked there."""

    def __init__(self, engine: Engine, device: torch.device) -> None:
        self.engine, self.device = engine, device
        self._elsewhere: Generator | None = None
        self._held: tuple[Any, Generator] | None = None

    def __call__(
        self, x: torch.Tensor, started: Callable[[], Generator] | None = None
    ) -> tuple[torch.Tensor, Generator]:
        """An input (1, *event) on the device, and the generator held at it; ``started`` gives noise that is under way."""
        generator, law = self.engine.M, self.engine.law
        x = as_drawn(x, self.device)
        kind = (x.shape, x.dtype)
        if self._held is not None and self._held[0] == kind:
            M = self._held[1]
        else:
            M = generator.at(x) if started is None else started()
            # Noise that does not look at its input is issued once for all inputs of a call, in the state that their
            # evidence names: comparing a large matrix with its copy takes longer than all else done for an input.
            self._held = None if generator.looks() else (kind, M)
        if self.engine.grid is None:
            check_lost(M, x, law)
        if M.scope == "pipeline" and generator.looks():  # at every input: noise may follow only some of them
            if self._elsewhere is None:
                check_elsewhere(generator, M, x, law)
            else:
                check_constant(M, self._elsewhere, x, law)
            self._elsewhere = M
        return x, M


def device_name(device: torch.device) -> str:
    """A device as evidence names it: other kinds of GPU draw other noise from the same seed."""
    return f"cuda: {torch.cuda.get_device_name(device)}" if device.type == "cuda" else device.type
