"""Whom a job tells how it goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Progress:
    """Told what a job does, as it does it. This one says nothing; ``ucan.cli.progress`` has one that shows it."""

    @contextmanager
    def working(self, todo: int, done: int, samples: int) -> Iterator[None]:
        """The work goes on in this context: ``todo`` items of up to so many samples each; ``done`` are done already."""
        yield

    def sampled(self, count: int) -> None:
        """So many more samples of the item in progress are classified."""

    def finished(self, note: str) -> None:
        """One more item is done, and its result is kept; ``note`` says how things stand."""

    def say(self, line: str) -> None:
        """Something happened, such as the loss of a worker."""

    def remark(self, line: str) -> None:
        """Something that the reader may want to know."""

    def warn(self, line: str) -> None:
        """Something that the reader must know."""


SILENT = Progress()
