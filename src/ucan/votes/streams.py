"""Blocks of noise, each from a generator seeded by (run seed, input, phase, block number), and the sizes of blocks and passes.

A block is a fixed number of copies of one input, which depends on the input's dimension alone; it is drawn whole. So the
same seed gives the same noise bit for bit on a device type, whatever the size of forward passes.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from ucan.generators import Turn

# Above this dimension not even 16 copies are held at once.
LARGE = 2**20


def block_size(dim: int) -> int:
    """Copies per block of noise, a power of two from 16 to 128: small enough to hold, large enough to draw fast.

    Of inputs with more than 2²⁰ numbers fewer: what 2²⁴ numbers hold, and in the end one.
    """
    return min(128, max(16 if dim <= LARGE else 1, _power_of_two(2**24 // dim)))


def forward_size(dim: int, device: torch.device) -> int:
    """Copies per forward pass: what fills the device. A CPU's caches are small; a GPU wants thousands of small images."""
    if device.type == "cpu":
        return max(block_size(dim), min(512, _power_of_two(2**19 // dim)))
    return max(block_size(dim), min(4096, _power_of_two(2**27 // dim)))


def replayed_size(stated: int, dim: int, device: torch.device) -> int:
    """The size of a forward pass as a record states it, up to four times the usual one, so that no file fills the memory.

    Votes do not depend on it, but for rounding.
    """
    return min(stated, 4 * forward_size(dim, device))


def _power_of_two(bound: int) -> int:
    return int(2 ** int(math.log2(max(1, bound))))


def blocks(n: int, size: int) -> Iterator[tuple[int, int]]:
    """Block numbers, with how many of each block's copies count."""
    for number in range(math.ceil(n / size)):
        yield number, min(size, n - number * size)


def fitting(size: int, block: int) -> int:
    """The size of a forward pass that was asked for, in whole blocks where it holds one."""
    return size if size < block else size // block * block


def halved(size: int, block: int) -> int:
    """The next smaller forward pass, in whole blocks while there are several."""
    return size // block // 2 * block if size >= 2 * block else size // 2


@dataclass(frozen=True)
class Stream:
    """The source of noise for one input and one phase of one run; every block has its own generator.

    ``given`` is the key of a stream that is drawn again by someone who does not know the seed.
    """

    seed: int | None
    input_hash: str
    phase: str
    given: str | None = None

    @functools.cached_property
    def key(self) -> str:
        """All that the noise follows from: who has it can draw this stream again, and no other."""
        if self.given is not None:
            return self.given
        return hashlib.sha256(f"{self.seed}/{self.input_hash}/{self.phase}".encode()).hexdigest()

    def block(self, number: int, device: torch.device) -> torch.Generator:
        """The generator of one block. A CPU generator keeps only 32 bits of a seed, so 32 bits are what we give it."""
        return torch.Generator(device).manual_seed((int(self.key[:8], 16) + number) % 2**32)


class Enumeration(Stream):
    """All draws of a noise in their order, in place of random ones."""

    def block(self, number: int, device: torch.device) -> Turn:  # type: ignore[override]
        """The draws of one block."""
        return Turn(number)


ENUMERATED = "enumerate"  # the phase whose votes are all draws of the noise


def stream_of(seed: int | None, input_hash: str, phase: str) -> Stream:
    """The stream of a phase of a run at an input."""
    return (Enumeration if phase == ENUMERATED else Stream)(seed, input_hash, phase)
