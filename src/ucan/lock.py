"""A writer lock that the system releases when its process ends, for any reason."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import IO

from ucan.errors import StoreError

LOCK = ".lock"  # the file in a run's folder
# POSIX locks do not exclude their own process, so the locks of this process are recorded here.
_HELD: set[str] = set()


class WriterLock:
    """Held from the constructor to ``release``. The file stays; only the system's lock on it counts.

    A POSIX record lock: gone with its process after SIGKILL, and not inherited by forked workers.
    """

    def __init__(self, path: Path) -> None:
        self._key = os.path.realpath(path)
        if self._key in _HELD:
            raise StoreError(_message(path, "this process"))
        self._file = open(path, "a+", encoding="utf-8")  # noqa: SIM115 — held open as long as the lock
        if not _acquire(self._file):
            self._file.seek(0)
            holder = self._file.read().strip() or "another process"
            self._file.close()
            raise StoreError(_message(path, holder))
        _HELD.add(self._key)
        self._file.truncate(0)
        self._file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        self._file.flush()

    def release(self) -> None:
        """Release the lock; calling it twice is allowed."""
        if not self._file.closed:
            self._file.close()
            _HELD.discard(self._key)


def _acquire(file: IO[str]) -> bool:
    try:
        import fcntl
    except ImportError:  # Windows: a byte far behind the text, so that the holder's name stays readable
        import msvcrt

        file.seek(1 << 20)
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
        except OSError:
            return False
        return True
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


def _message(path: Path, holder: str) -> str:
    return (
        f"{path.parent} is being written by {holder}. A run has one writer at a time: wait for it. To read the run, use "
        f"`ucan compare` or ucan.results.Store.open."
    )
