"""Batches on the device, in an order that depends only on the seed and the epoch."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import torch

from ucan.data import InMemory, Labelled
from ucan.data.labelled import as_pixels
from ucan.errors import InvalidInput
from ucan.training.share import Share

# Number of batches that are decoded ahead.
AHEAD = 3


class Batch(NamedTuple):
    """Pixels in [0, 1], labels, and the inputs' numbers in the training set."""

    x: torch.Tensor
    labels: torch.Tensor
    places: torch.Tensor


class Batches:
    """All inputs once per epoch, shuffled by (seed, epoch); a shorter last batch is dropped.

    A data set in memory is kept on the device unchanged (bytes stay bytes); others are decoded when needed. With several
    processes, each gets its share of every batch.
    """

    def __init__(
        self, dataset: Labelled, size: int, seed: int, device: torch.device, rank: int = 0, world: int = 1
    ) -> None:
        self.dataset = dataset
        self.size = min(size, len(dataset))
        self.share = Share(self.size, rank, world)
        self.seed = seed
        self.device = device
        self._resident: tuple[torch.Tensor, torch.Tensor] | None = None
        if isinstance(dataset, InMemory):
            self._resident = (dataset.images.to(device), dataset.labels.to(device))

    def __len__(self) -> int:
        return len(self.dataset) // self.size

    def epoch(self, number: int, first: int = 0, weights: torch.Tensor | None = None) -> Iterator[Batch]:
        """The batches of one epoch, from batch ``first`` on, of this process's share.

        With weights (one for each input), as many inputs are drawn with replacement, in proportion to them.
        """
        rng = torch.Generator().manual_seed(epoch_seed(self.seed, number, "order"))
        if weights is None:
            order = torch.randperm(len(self.dataset), generator=rng)
        else:
            self._check_weights(weights)
            order = torch.multinomial(weights.detach().cpu().double(), len(self) * self.size, True, generator=rng)
        # An epoch's end leaves out a shorter batch, if there is one.
        yield from self._of(order[first * self.size : len(self) * self.size])

    def in_order(self) -> Iterator[Batch]:
        """All inputs in their own order, of this process's share; the last batch is padded from the start."""
        count = -(-len(self.dataset) // self.size) * self.size
        yield from self._of(torch.arange(count) % len(self.dataset))

    def _check_weights(self, weights: torch.Tensor) -> None:
        fine = weights.shape == (len(self.dataset),) and bool((weights >= 0).all()) and bool(weights.isfinite().all())
        if not fine or not bool(weights.any()):
            raise InvalidInput(
                f"a recipe's sampling must hold {len(self.dataset)} finite weights of at least 0, one for each training "
                f"input, and not only zeros; got shape {tuple(weights.shape)}."
            )

    def _of(self, order: torch.Tensor) -> Iterator[Batch]:
        if self._resident is not None:
            order = order.to(self.device)  # once: at each batch the host would wait for all that the device has to do
        parts = [part[self.share.part] for part in order.split(self.size) if len(part)]  # none at an epoch's end
        return self._decoded(parts) if self._resident is None else self._on_device(parts, *self._resident)

    def _on_device(self, parts: Sequence[torch.Tensor], images: torch.Tensor, labels: torch.Tensor) -> Iterator[Batch]:
        for indices in parts:
            yield Batch(as_pixels(images[indices]), labels[indices], indices)

    def _decoded(self, parts: Sequence[torch.Tensor]) -> Iterator[Batch]:
        """Batches decoded by several threads (Pillow lets go of Python's lock), a few ahead of the one in use."""
        workers = os.cpu_count() or 1
        with ThreadPoolExecutor(workers) as pool:
            ahead: deque[tuple[torch.Tensor, list[Future[tuple[torch.Tensor, torch.Tensor]]]]] = deque()
            waiting = iter(parts)
            while True:
                for indices in itertools.islice(waiting, AHEAD - len(ahead)):
                    decoding = [pool.submit(self.dataset.batch, some) for some in indices.tensor_split(workers)]
                    ahead.append((indices, decoding))
                if not ahead:
                    return
                indices, decoding = ahead.popleft()
                pieces = [future.result() for future in decoding]
                x, labels = (torch.cat(part) for part in zip(*pieces, strict=True))
                yield Batch(x.to(self.device), labels.to(self.device), indices.to(self.device))


def epoch_seed(seed: int, epoch: int, purpose: str) -> int:
    """A separate seed for every epoch and purpose, so that a resumed run needs no saved random state."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{epoch}/{purpose}".encode()).digest()[:4], "big")


def flip_and_crop(
    x: torch.Tensor, rng: torch.Generator, pad: int = 4, share: Share | None = None, flip: bool = True
) -> torch.Tensor:
    """Every image of a batch (b, c, h, w) cropped at random after zero padding, before that flipped at random, on its device.

    A share of a larger batch gets the same flips and crops as in the whole batch.
    """
    batch, _, height, width = x.shape
    whole, part = (batch, slice(None)) if share is None else (share.batch, share.part)
    if flip:
        turned = torch.randint(0, 2, (whole, 1, 1, 1), generator=rng, device=x.device, dtype=torch.bool)[part]
        x = torch.where(turned, x.flip(3), x)
    x = torch.nn.functional.pad(x, (pad,) * 4)
    top, left = torch.randint(0, 2 * pad + 1, (2, whole, 1), generator=rng, device=x.device)[:, part]
    rows = (top + torch.arange(height, device=x.device))[:, :, None]
    columns = (left + torch.arange(width, device=x.device))[:, None, :]
    images = torch.arange(batch, device=x.device)[:, None, None]
    return x[images, :, rows, columns].permute(0, 3, 1, 2).contiguous()
