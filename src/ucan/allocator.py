"""What a process that is ours alone tells the system's allocator; a library in somebody else's process does not."""

from __future__ import annotations

import ctypes


def keep_memory() -> None:
    """Let glibc keep what a forward pass on the CPU has freed for the next one.

    Handing it back to the system and taking it again costs up to a third of a small network's time. Nothing happens
    where there is no glibc.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    trim_threshold, mmap_threshold = -1, -3  # as malloc.h names them
    mallopt(trim_threshold, 2**30)
    mallopt(mmap_threshold, 2**25)  # the most that it takes
