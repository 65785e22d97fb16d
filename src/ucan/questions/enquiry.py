"""One question to a smoothed model, input by input: many inputs share forward passes, and leave them when decided."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ucan.certificate import Abstention
from ucan.engine import Engine, Setup
from ucan.generators import Generator
from ucan.plan import CertifyPlan
from ucan.questions.looks import looks_of
from ucan.questions.question import Asked, Question, evidence_of
from ucan.questions.record import Answer
from ucan.questions.shift import Shift
from ucan.sequential import PART, AllVotes, Seated, Terms
from ucan.sidecar import input_hash
from ucan.sizes import Sizes
from ucan.stopping import Radii, Stop
from ucan.votes import Stream

# What the evidence of answers that were cut off is called: nothing follows from them.
CUT_OFF = "none"


@dataclass
class Enquiry(Seated):
    """One input under a question: what is kept of its answers, first of those that choose what the others test.

    ``streams`` are those that are not finished. ``looks`` are the numbers of answers at which they are looked at, the last
    being the cap; ``asked`` is what there was at the last look.
    """

    enquirer: Enquirer
    setup: Setup
    plan: CertifyPlan
    shift: Shift
    streams: tuple[Stream, ...]
    looks: tuple[int, ...]
    kept: torch.Tensor | None = None
    seen: int = 0
    select: Any = None
    asked: Asked | None = None

    @property
    def source(self) -> Stream:
        """The stream that its next copies come from."""
        return self.streams[0]

    @property
    def selecting(self) -> bool:
        """Whether its answers choose what others are to test."""
        return len(self.streams) > 1

    @property
    def drawn(self) -> int:
        """Answers so far, those that choose apart."""
        return 0 if self.selecting else self.seen

    def end(self, cap: int) -> int:
        """Where the present stream ends."""
        return self.plan.n0 if self.selecting else cap

    def worthwhile(self, terms: Terms, block: int) -> int:
        """What is missing to the next look."""
        ends = (self.plan.n0,) if self.selecting else self.looks
        return max(PART, next((n - self.place for n in ends if n > self.place), 1))

    def add(self, votes: torch.Tensor, classes: int, terms: Terms, block: int) -> bool:
        """Take in further answers, in order, up to the look that settles the question."""
        while len(votes) and not self.settled:
            end = self.plan.n0 if self.selecting else next(n for n in self.looks if n > self.seen)
            part, votes = votes[: end - self.seen], votes[end - self.seen :]
            self.kept = self.setup.counter.keep.add(self.kept, part, self.seen, self.end(terms.cap))
            self.seen += len(part)
            if self.seen < end:
                continue
            if self.selecting:
                self.select, self.streams = self._so_far(), self.streams[1:]
                self.kept, self.seen, self.place = None, 0, 0
                return False
            self.asked = self._look()
            self.settled = self.seen >= terms.cap or self.enquirer.settled(self.asked)
        return self.settled

    def so_far(self) -> tuple[Any, Any, int]:
        """What was kept of the answers that choose and of the others, None where they are not there yet; how many others."""
        return self.select, self._so_far() if self.drawn else None, self.drawn

    def _so_far(self) -> Any:
        return self.setup.counter.keep.so_far(self.kept, self.seen)

    def _look(self) -> Asked:
        looks = self.looks if self.plan.stop is not None else ()
        about = (self.enquirer.engine, self.setup, self.M, self.x, self.plan, self.shift)
        return Asked(*about, self.select, self._so_far(), self.seen, looks)


@dataclass(frozen=True, eq=False)
class Enquirer:
    """A question to the model of an engine; it begins and ends inputs as ``SmoothedClassifier`` does those of a class."""

    engine: Engine
    sizes: Sizes
    question: Question

    def rule(self, plan: CertifyPlan) -> Stop:
        """The rule that ends the answers of a plan; without one all of them are used."""
        return plan.stop or AllVotes()

    def settled(self, asked: Asked) -> bool:
        """Whether the answers so far decide the question at the radii of the rule."""
        stop = asked.plan.stop
        with self.engine.beside(asked.x.device):
            return isinstance(stop, Radii) and self.question.settled(asked, stop.radii)

    def begun(self, setup: Setup, i: int, x: torch.Tensor, M: Generator, plan: CertifyPlan) -> Enquiry:
        """One input (1, *event) before its first answer; a rule that the question cannot have is refused."""
        self.question.check(self.engine.f, plan.stop)
        with self.engine.beside(x.device):
            shift, name = Shift.at(M, x, self.sizes, plan.norm), input_hash(x)
        phases = ("select", "estimate") if self.question.selects else ("estimate",)
        streams = tuple(Stream(plan.seed, name, phase) for phase in phases)
        looks = (plan.n,) if plan.stop is None else looks_of(plan.n)
        return Enquiry(i, x, M, self, setup, plan, shift, streams, looks)

    def ended(self, setup: Setup, enquiry: Enquiry, plan: CertifyPlan) -> Answer | Abstention:
        """The answer for an input whose answers its rule or its cap has ended."""
        assert enquiry.asked is not None, "it is settled"
        with self.engine.beside(enquiry.x.device):
            return self.question.conclude(enquiry.asked)

    def unfinished(
        self, setup: Setup, x: torch.Tensor, enquiry: Enquiry | None, plan: CertifyPlan, reason: str
    ) -> Abstention:
        """The abstention for an input (1, *event) whose answers were cut off: they prove nothing, and nothing is claimed."""
        select, estimate, n = (None, None, 0) if enquiry is None else enquiry.so_far()
        with self.engine.beside(x.device):
            evidence = evidence_of(self.engine, setup, x, plan, select, estimate, n, CUT_OFF)
        return Abstention(plan.norm, self.engine.M.scope, evidence, reason, budget=plan.budget)
