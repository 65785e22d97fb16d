"""Ctrl-C and SIGTERM, which a scheduler sends: both interrupt a command, so that finished work is kept."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


class _Interrupts:
    """Remembers an interrupt: Python only prints one that is raised where nothing can catch it, such as in a callback of the
    garbage collector while a network is compiled, and the command would go on.
    """

    def __init__(self) -> None:
        self.came = False

    def raised(self, *_: object) -> None:
        self.came = True
        raise KeyboardInterrupt

    def check(self) -> None:
        """Raise an interrupt that was lost; called wherever a command tells its progress."""
        if self.came:
            raise KeyboardInterrupt

    @staticmethod
    def over() -> None:
        """Ignore Ctrl-C from now on: the command has ended by one, and a second would only interrupt Python's own exit."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    @contextmanager
    def heard(self) -> Iterator[None]:
        """The context of a command. What ignores Ctrl-C, as a job in the background of a script does, goes on ignoring it.

        An error after an interrupt is the interrupt: Ctrl-C also ends a compiler that PyTorch waits for, which it reports.
        """
        self.came = False
        heard = [
            number
            for number in (signal.SIGINT, signal.SIGTERM)
            if signal.getsignal(number) not in (None, signal.SIG_IGN)
        ]
        before = {number: signal.signal(number, self.raised) for number in heard}
        try:
            yield
        except Exception as error:
            if self.came:
                raise KeyboardInterrupt from error
            raise
        finally:
            self.came = False
            for number, handler in before.items():
                signal.signal(number, handler)


INTERRUPTS = _Interrupts()
