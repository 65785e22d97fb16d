"""The filter before the exact check: short sketches of all centres in memory, which never lie further apart than they.

A sketch of x holds the means of x over the cells of a fixed partition, each times √(size of the cell), and the length of
what the means leave. Means over cells are an orthonormal projection, and lengths of remainders differ by no more than the
remainders do, so ‖sketch(x) − sketch(z)‖₂ ≤ ‖x − z‖₂. Natural pictures differ most in such means.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

CELLS = 192  # per picture: three channels of eight by eight
ROUND_OFF = 1e-6  # of the lengths: what rounding to float32 may add to a distance
TINY = 1e-36  # what float32 may lose of products near its smallest number
LARGEST = 1e12  # of an input's entries, so that float32 cannot overflow


class Cells:
    """A fixed partition of an event: a grid per channel for pictures (C, H, W), else runs of the flattened event."""

    def __init__(self, shape: Sequence[int]) -> None:
        self.dim = math.prod(shape)
        if self.dim <= CELLS:
            label = np.arange(self.dim)
        elif len(shape) == 3:
            channels, high, wide = shape
            side = max(1, math.isqrt(CELLS // channels))
            rows, columns = (np.arange(n) * min(side, n) // n for n in (high, wide))
            grid = rows[:, None] * side + columns[None]
            label = (np.arange(channels)[:, None, None] * side**2 + grid[None]).flatten()
        else:
            label = np.arange(self.dim) * CELLS // self.dim
        _, self.cell = np.unique(label, return_inverse=True)
        self.root_size = np.sqrt(np.bincount(self.cell))

    @property
    def length(self) -> int:
        """Numbers in a sketch."""
        return len(self.root_size) + 1

    def sketch(self, x: Array) -> Array:
        """The sketch of a flattened event, float32."""
        projected = np.bincount(self.cell, weights=x) / self.root_size
        rest = x - (projected / self.root_size)[self.cell]
        return np.append(projected, np.linalg.norm(rest)).astype(np.float32)


class Index:
    """All sketches, with each region's answer, its radius and the ℓ2 ball around it; grows by whole batches of rows."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.count = 0
        self._numbers = np.zeros(0, np.dtype([("id", "i8"), ("answer", "i8"), ("reach", "f8"), ("size", "f8")]))
        self._sketches = np.zeros((0, length), np.float32)

    @property
    def last(self) -> int:
        """The highest id so far; ids rise."""
        return int(self._numbers["id"][self.count - 1]) if self.count else 0

    def extend(self, rows: Sequence[tuple[int, int, float, bytes]]) -> None:
        """Rows (id, answer, reach, sketch), ids rising."""
        end = self.count + len(rows)
        if end > len(self._numbers):
            room = max(1024, end, 2 * len(self._numbers))
            self._numbers = np.concatenate(
                [self._numbers[: self.count], np.zeros(room - self.count, self._numbers.dtype)]
            )
            self._sketches = np.concatenate(
                [self._sketches[: self.count], np.zeros((room - self.count, self.length), np.float32)]
            )
        sketches = np.frombuffer(b"".join(row[3] for row in rows), "<f4").reshape(len(rows), self.length)
        self._sketches[self.count : end] = sketches
        numbers = self._numbers[self.count : end]
        for name, column in zip(("id", "answer", "reach"), zip(*(row[:3] for row in rows), strict=True), strict=True):
            numbers[name] = column
        numbers["size"] = np.sqrt(np.einsum("ij,ij->i", sketches, sketches, dtype=np.float64))
        self.count = end

    def agrees(self, number: int, answer: int, reach: float, sketch: Array) -> bool:
        """Whether the row of this id has these values, up to what another machine may round otherwise; ids rise by one."""
        row, own = self._numbers[number - 1], self._sketches[number - 1].astype(np.float64)
        apart = float(np.linalg.norm(own - sketch))
        same = bool(row["id"] == number and row["answer"] == answer)
        return (
            same
            and apart <= ROUND_OFF * float(row["size"]) + TINY
            and math.isclose(row["reach"], reach, rel_tol=ROUND_OFF)
        )

    def near(self, sketch: Array, within: float, answer: int | None = None) -> tuple[Array, Array, Array]:
        """(ids, gaps, reaches) of the regions, or of those with another answer, that may come this near to a point.

        By gap, which is at most the ℓ2 distance from the sketched point to the region, negative where the point may lie
        inside: no region is left out whose distance is ``within`` or less. A reach is that of the ball around a region.
        """
        numbers, q = self._numbers[: self.count], sketch.astype(np.float64)
        own = float(np.linalg.norm(q))
        dot = (self._sketches[: self.count] @ sketch).astype(np.float64)
        rounding = 2 * (self.length + 8) * 2.0**-23 * own * numbers["size"] + TINY
        squared = numbers["size"] ** 2 + own**2 - 2 * dot - rounding
        gaps = np.sqrt(np.maximum(squared, 0)) - ROUND_OFF * (own + numbers["size"]) - numbers["reach"]
        possible = gaps <= within
        if answer is not None:
            possible &= numbers["answer"] != answer
        chosen = np.flatnonzero(possible)
        order = chosen[np.argsort(gaps[chosen])]
        return numbers["id"][order], gaps[order], numbers["reach"][order]
