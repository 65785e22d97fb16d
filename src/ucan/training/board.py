"""What TensorBoard shows of a training run."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class Board:
    """What TensorBoard shows of a run: one file each time it is started or resumed; nothing where TensorBoard is missing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._writer: Any = None

    def add(self, epoch: int, means: dict[str, float]) -> None:
        """The means of one epoch; what an earlier start left of this epoch and later ones no longer counts."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:  # metrics.jsonl holds the same numbers
            return
        if self._writer is None:
            self._writer = SummaryWriter(str(self.folder), purge_step=epoch or None)
        for name, value in means.items():
            self._writer.add_scalar(name, value, epoch)
        self._writer.flush()

    def close(self) -> None:
        """Let go of the file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
