"""The callbacks of a job's progress."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Progress:
    """Receives the progress of a job. This class ignores it; ``ucan.cli.progress`` has one that shows it."""

    @contextmanager
    def working(self, todo: int, done: int, samples: int) -> Iterator[None]:
        """The context of the work: ``todo`` items of up to ``samples`` samples each; ``done`` items are already done."""
        yield

    def sampled(self, count: int) -> None:
        """``count`` more samples of the current item were classified."""

    def finished(self, note: str) -> None:
        """One more item is done and stored; ``note`` is a short status, such as the accuracy so far."""

    def say(self, line: str) -> None:
        """Something happened, such as the loss of a worker."""

    def remark(self, line: str) -> None:
        """A remark; hidden when quiet."""

    def warn(self, line: str) -> None:
        """A warning; never hidden."""


SILENT = Progress()
