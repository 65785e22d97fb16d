"""TensorBoard logs of a training run."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class Board:
    """TensorBoard logs of a run: one file each time it is started or resumed; none if TensorBoard is not installed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._writer: Any = None

    def add(self, epoch: int, means: dict[str, float]) -> None:
        """The means of one epoch; earlier entries of this epoch and later ones are discarded."""
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
        """Close the file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
