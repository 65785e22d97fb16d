"""Show progress: a live bar on a terminal, plain lines elsewhere, nothing when quiet."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ucan.cli.interrupts import INTERRUPTS
from ucan.cli.words import counted
from ucan.runs import progress

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

# Seconds between two lines of a log.
LOG_INTERVAL = 15.0


def duration(seconds: float) -> str:
    """Seconds in readable form: 42 s, 3 min 20 s, 2 h 05 min."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


class Progress:
    """Counts finished items and samples, and shows the rate and the time left.

    The time left takes into account the samples of the current item, so it stays accurate when one item takes minutes.
    Everything is written to standard error; standard output is reserved for results.
    """

    def __init__(self, label: str, total: int, samples_per_item: int, quiet: bool = False) -> None:
        self.label = label
        self.total = total
        self.per_item = max(1, samples_per_item)
        self.items = self.samples = self.within = 0
        self.note = ""
        self.start = self.last_log = time.monotonic()
        self.quiet = quiet
        self._bar = None if quiet or not sys.stderr.isatty() else self._make_bar()

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif not self.quiet and self.items:
            print(self.line(), file=sys.stderr, flush=True)

    def sampled(self, count: int) -> None:
        """``count`` more samples of the current item were classified."""
        INTERRUPTS.check()
        self.samples += count
        self.within = min(self.per_item, self.within + count)
        self._show()

    def finished(self, note: str) -> None:
        """One more item is done; ``note`` is shown with the progress."""
        self.items += 1
        self.within = 0
        self.note = note
        self._show()
        INTERRUPTS.check()

    def say(self, line: str) -> None:
        """Print a message on its own line, above the bar."""
        if self._bar is not None:
            self._bar.console.print(line, highlight=False)
        elif not self.quiet:
            print(line, file=sys.stderr, flush=True)

    @property
    def fraction(self) -> float:
        """The fraction of the work that is done."""
        return min(1.0, (self.items + self.within / self.per_item) / max(1, self.total))

    def line(self) -> str:
        """The state in one line, the most important part first, since a narrow terminal cuts off the end."""
        elapsed = time.monotonic() - self.start
        left = duration(elapsed * (1 / self.fraction - 1)) if self.fraction > 0 else "?"
        # Not all work draws samples.
        sampled = f", {self.samples / elapsed:,.0f} samples/s" if elapsed > 0 and self.samples else ""
        rates = f"{self.items / elapsed:.3g} items/s{sampled}" if elapsed > 0 else ""
        time_left = f"done in {duration(elapsed)}" if self.items >= self.total else f"{left} left"
        parts = [f"{self.label} {self.items}/{self.total}", time_left, self.note, rates]
        return ", ".join(part for part in parts if part)

    def _show(self) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=self.fraction, text=self.line())
        elif not self.quiet and time.monotonic() - self.last_log >= LOG_INTERVAL:
            self.last_log = time.monotonic()
            print(self.line(), file=sys.stderr, flush=True)

    def _make_bar(self) -> RichProgress:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        bar = Progress(
            BarColumn(bar_width=24), TextColumn("{task.fields[text]}"), console=Console(stderr=True), transient=False
        )
        self._task = bar.add_task("", total=1.0, text=self.label)
        return bar


class Shown(progress.Progress):
    """Shows the progress of a job on standard error.

    ``noun`` is one of the things that it works on; ``kept`` one of those that an interruption leaves, empty if there are none.
    """

    def __init__(self, label: str, quiet: bool, noun: str = "input", kept: str = "result") -> None:
        self.label = label
        self.quiet = quiet
        self.noun = noun
        self.kept = kept
        self.done = 0
        self._shown: Progress | None = None

    @contextmanager
    def working(self, todo: int, done: int, samples: int) -> Iterator[None]:
        """Show the rate and the time left while the context is open."""
        self.done = done
        if done:
            self._print(f"{_there(done, self.noun)} already done, {todo} left.")
        with Progress(self.label, todo, samples, self.quiet or not todo) as self._shown:
            try:
                yield
            except KeyboardInterrupt:
                if self.kept:
                    print(f"\nStopped; {self.stopped()}.", file=sys.stderr)
                raise

    def stopped(self) -> str:
        """What is kept of the work."""
        return f"{_there(self.done, self.kept)} kept. Run the same command again to resume"

    def sampled(self, count: int) -> None:
        """Update the time left."""
        if self._shown is not None:
            self._shown.sampled(count)

    def finished(self, note: str) -> None:
        """One more."""
        self.done += 1
        if self._shown is not None:
            self._shown.finished(note)

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        if self._shown is not None:
            self._shown.say(line)

    def remark(self, line: str) -> None:
        """A warning, unless quiet."""
        self._print(f"warning: {line}")

    def warn(self, line: str) -> None:
        """A warning, also when quiet."""
        print(f"warning: {line}", file=sys.stderr)

    def _print(self, line: str) -> None:
        if not self.quiet:
            print(line, file=sys.stderr)


def _there(count: int, noun: str) -> str:
    return f"{counted(count, noun)} {'is' if count == 1 else 'are'}"
