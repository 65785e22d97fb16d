"""A request on its way through the worker, and what may become of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ucan.certificate import Abstention, Certificate, Prediction
from ucan.questions.enquiry import Enquiry
from ucan.questions.record import Answer
from ucan.sequential import Candidate, Terms
from ucan.service.asked import Asked

Outcome = Certificate | Abstention | Prediction | Answer
# An input under way, for a class or for a question.
Entrant = Candidate | Enquiry


@dataclass(frozen=True)
class Refusal:
    """Why there is no answer: an HTTP status, a word for programs, a sentence for people; when to try again."""

    status: int
    code: str
    message: str
    retry_after: int | None = None


@dataclass(eq=False)
class Task:
    """A request on its way. ``done`` is called once, from the worker's thread; ``spent``: votes were drawn for it."""

    asked: Asked
    done: Callable[[Outcome | Refusal], None]
    until: float
    gone: bool = False  # nobody waits for the answer any more
    spent: bool = False
    candidate: Entrant | None = None

    @property
    def late(self) -> bool:
        """Whether its deadline has passed."""
        return time.monotonic() >= self.until

    def over(self) -> bool:
        """Whether further votes are in vain."""
        return self.gone or self.late


class Arrivals(Iterator[tuple[Entrant, Terms]]):
    """Who has come by now. It ends whenever nobody waits, and goes on when somebody has come."""

    def __init__(self, take: Callable[[], tuple[Entrant, Terms] | None]) -> None:
        self._take = take

    def __next__(self) -> tuple[Entrant, Terms]:
        found = self._take()
        if found is None:
            raise StopIteration
        return found
