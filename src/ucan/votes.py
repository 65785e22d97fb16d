"""The hot path: noisy copies of one input → classifier → counts. The paper's ClassifySamples.

Work comes in blocks. A block is one forward batch of fixed size; its noise is drawn whole, from a generator seeded by
(run seed, input, phase, block number). So the same seed gives the same noise bit for bit on a device type, however the
blocks are spread over workers or resumed; a tail block is drawn and classified whole, and only its first votes count.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ucan.errors import InvalidInput, ModelError
from ucan.generators import Generator
from ucan.laws import Law

# Numbers in one forward batch: 2^21 floats keep a CPU's caches and small GPUs content.
BLOCK_NUMBERS = 2**21


def block_size(dim: int, n: int) -> int:
    """Noisy copies per forward pass, a power of two: about 2^21 numbers, from 16 to 1024 copies, no more than n needs."""
    fitting = 2 ** int(math.log2(max(1, BLOCK_NUMBERS // dim)))
    needed = 2 ** math.ceil(math.log2(n))
    return min(max(16, min(1024, fitting)), max(16, needed))


@dataclass(frozen=True)
class Stream:
    """The source of noise for one input and one phase of one run; every block has its own generator."""

    seed: int
    input_hash: str
    phase: str

    def block(self, number: int, device: torch.device) -> torch.Generator:
        """The generator of one block. A CPU generator keeps only 32 bits of a seed, so 32 bits are what we give it."""
        digest = hashlib.sha256(f"{self.seed}/{self.input_hash}/{self.phase}".encode()).digest()
        return torch.Generator(device).manual_seed((int.from_bytes(digest[:4], "big") + number) % 2**32)


@dataclass(frozen=True)
class Votes:
    """How often each class was answered, and how often nothing valid was."""

    counts: torch.Tensor
    invalid: int


class Classifier:
    """Any callable that maps a batch to logits or to class indices, made to answer with valid class indices.

    The answer for a batch is an int64 tensor; ``num_classes`` stands for an invalid vote (NaN logits, or an index out of
    range), which counts for no class.
    """

    def __init__(self, model: Callable[[torch.Tensor], Any], num_classes: int) -> None:
        if not callable(model):
            raise ModelError(f"the model must be callable on a batch of inputs, got {type(model).__name__}.")
        if isinstance(num_classes, bool) or not isinstance(num_classes, int) or num_classes < 2:
            raise InvalidInput(f"num_classes must be a whole number of at least 2, got {num_classes!r}.")
        self.model = model
        self.num_classes = num_classes
        first = next(model.parameters(), None) if isinstance(model, nn.Module) else None
        self.device = first.device if first is not None else None
        self.dtype = first.dtype if first is not None and first.is_floating_point() else None

    def check_ready(self) -> None:
        """Refuse a module in training mode: its answers would depend on the batch, and no theorem covers that."""
        if isinstance(self.model, nn.Module):
            training = [name or "the model" for name, m in self.model.named_modules() if m.training]
            if training:
                raise ModelError(f"the model is in training mode ({training[0]}): call model.eval() first.")

    def __call__(self, batch: torch.Tensor) -> torch.Tensor:
        """One valid class index, or ``num_classes``, for each of the batch."""
        return self.to_votes(self.model(batch if self.dtype is None else batch.to(self.dtype)), len(batch))

    def to_votes(self, output: Any, size: int) -> torch.Tensor:
        """The model's output as votes; an output of the wrong shape is an error, since every vote would be wrong."""
        output = torch.as_tensor(output)
        if output.ndim == 1 and len(output) == size and not output.is_floating_point():
            valid = (output >= 0) & (output < self.num_classes)
            return torch.where(valid, output, self.num_classes).long()
        if output.ndim != 2 or len(output) != size or not output.is_floating_point():
            raise ModelError(
                f"the model answered a batch of {size} with {output.dtype} of shape {tuple(output.shape)}; it must give "
                f"logits of shape ({size}, {self.num_classes}) or whole class numbers of shape ({size},)."
            )
        if output.shape[1] != self.num_classes:
            raise ModelError(
                f"the model answers with {output.shape[1]} logits, but num_classes is {self.num_classes}: "
                f"use num_classes={output.shape[1]} (on the command line --classes)."
            )
        return torch.where(output.isnan().any(1), self.num_classes, output.argmax(1))


@torch.inference_mode()
def classify_samples(
    f: Classifier,
    generator: Generator,
    law: Law,
    x: torch.Tensor,
    n: int,
    stream: Stream,
    size: int,
    on_votes: Callable[[int], None] | None = None,
) -> Votes:
    """The votes of n noisy copies of one input (1, *event): counts (num_classes,) on the CPU, and the invalid ones.

    Nothing is copied to the host before the last block, so a GPU never waits for Python. ``on_votes`` is told of every
    block handed to the device, for a progress bar.
    """
    tally = torch.zeros(f.num_classes + 1, dtype=torch.int64, device=x.device)
    one = torch.ones(size, dtype=torch.int64, device=x.device)
    for number, take in blocks(n, size):
        noisy = generator.perturb(x, law, size, stream.block(number, x.device))[:, 0]
        votes = f(generator.view(noisy))[:take]
        tally.index_add_(0, votes.to(x.device), one[:take])
        if on_votes is not None:
            on_votes(take)
    counts = tally.cpu()
    return Votes(counts[:-1], int(counts[-1]))


def blocks(n: int, size: int) -> Iterator[tuple[int, int]]:
    """Block numbers, with how many of each block's copies count."""
    for number in range(math.ceil(n / size)):
        yield number, min(size, n - number * size)
