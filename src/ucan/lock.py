"""A writer lock that the system releases when its process ends, for any reason."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO

from ucan.errors import StoreError

LOCK = ".lock"  # the file in a run's folder
# POSIX locks do not exclude their own process, so the locks of this process are recorded here. Its threads take turns: whoever
# closes a file gives up the lock on it, also one that another thread has just taken.
_HELD: set[str] = set()
_TURN = threading.Lock()
# How often a lock is tried whose file is removed each time.
TRIES = 100


class WriterLock:
    """Held from the constructor to ``release`` or ``remove``. Only the system's lock on the file counts.

    A POSIX record lock: gone with its process after SIGKILL, and not inherited by forked workers. ``advice`` tells those who
    are refused what else they can do.
    """

    def __init__(self, path: Path, advice: str = "") -> None:
        self._key = os.path.realpath(path)
        with _TURN:
            if self._key in _HELD:
                raise _refused(path, "this process", advice)
            self._file = _locked(path, advice)
            _HELD.add(self._key)

    def release(self) -> None:
        """Release the lock; calling it twice is allowed."""
        with _TURN:
            if not self._file.closed:
                self._file.close()
                _HELD.discard(self._key)

    def remove(self) -> None:
        """Remove the file and release the lock; what cannot be removed stays.

        In this order: once it is released, the file may be another writer's. Windows removes no file that anybody has open, so
        there the order is the other one, and just as safe.
        """
        if os.name == "posix":
            self._unlink()
            self.release()
        else:
            self.release()
            self._unlink()

    def _unlink(self) -> None:
        with suppress(OSError):
            os.unlink(self._key)


def _locked(path: Path, advice: str) -> IO[str]:
    """The file at this path, locked, with the name of its holder in it."""
    for _ in range(TRIES):
        with ExitStack() as opened:
            file = opened.enter_context(open(path, "a+", encoding="utf-8"))
            if not _acquire(file):
                file.seek(0)
                raise _refused(path, file.read().strip() or "another process", advice)
            if not _is_at(file, path):  # its last holder has removed it: others lock the next one
                continue
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
            file.flush()
            opened.pop_all()
            return file
    raise StoreError(f"{path} cannot be locked, it is removed each time: end what else is at work in {path.parent}.")


def _is_at(file: IO[str], path: Path) -> bool:
    """Whether an open file is still the one at this path."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False


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


def _refused(path: Path, holder: str, advice: str) -> StoreError:
    said = f"{path.parent} is being written by {holder}. It has one writer at a time: wait for it."
    return StoreError(f"{said} {advice}".rstrip())
