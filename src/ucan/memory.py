"""Peak memory of a GPU, or of this process, while something runs."""

from __future__ import annotations

import ctypes
import gc
import re
import sys
from pathlib import Path

import torch


def watched(device: torch.device) -> _OfDevice | _OfProcess:
    """Watches the memory of this device from here on; on a CPU that of the process."""
    return _OfDevice() if device.type == "cuda" else _OfProcess()


class _OfDevice:
    """Peak memory of a GPU from here on."""

    def __init__(self) -> None:
        torch.cuda.synchronize()
        self._before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()

    def peak(self) -> float | None:
        """In MiB, above what was there."""
        return (torch.cuda.max_memory_allocated() - self._before) / 2**20


class _OfProcess:
    """Peak memory of this process from here on, as Linux counts it; elsewhere nobody tells."""

    def __init__(self) -> None:
        gc.collect()
        if sys.platform == "linux":
            ctypes.CDLL(None).malloc_trim(0)  # what was freed before is not to be used again uncounted
            Path("/proc/self/clear_refs").write_text("5")
        self._before = self._read("VmRSS")

    def peak(self) -> float | None:
        """In MiB, above what was there."""
        now = self._read("VmHWM")
        return None if now is None or self._before is None else (now - self._before) / 2**10

    @staticmethod
    def _read(field: str) -> int | None:
        status = Path("/proc/self/status")
        found = re.search(rf"^{field}:\s+(\d+) kB", status.read_text(), re.MULTILINE) if status.exists() else None
        return int(found[1]) if found else None
