"""What a process that is ours alone tells the system's allocator; a library in somebody else's process does not."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

# Bytes: where glibc's limit for a block begins, and the most that it takes.
LEAST, MOST = 2**17, 2**25


def keep_memory() -> None:
    """Let glibc keep what a forward pass on the CPU has freed for the next one.

    Handing it back to the system and taking it again costs up to a third of a small network's time. Nothing happens
    where there is no glibc.
    """
    _set_thresholds(trim=2**30, block=MOST)


@contextmanager
def usual_memory(largest: int) -> Iterator[None]:
    """Inside, glibc does what it does by itself in a process that frees blocks of ``largest`` bytes; then memory is kept.

    By itself it takes blocks from its own memory up to the largest that was ever freed (32 MiB at most), and gives back to the
    system what is more than twice that at the end. Once told otherwise it stays with what it was told: so it is told this.
    """
    block = min(max(largest, LEAST), MOST)
    _set_thresholds(trim=2 * block, block=block)
    try:
        yield
    finally:
        keep_memory()


def _set_thresholds(trim: int, block: int) -> None:
    """``block``: larger ones come from the system, one by one; ``trim``: so much that is free at the end stays."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    trim_threshold, mmap_threshold = -1, -3  # as malloc.h names them
    mallopt(trim_threshold, trim)
    mallopt(mmap_threshold, block)
