"""The stored regions: which of them contains a point, and how large another may be without meeting them."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from ucan.certificate import ABSTAINED
from ucan.errors import InvalidInput, StoreError
from ucan.registry.database import Database, Row
from ucan.registry.separation import MARGIN, Vector, allowed_radius, may_contain, outer_radius
from ucan.registry.sketch import LARGEST, Cells, Index
from ucan.scales import Scale

KEPT = 2**30  # bytes of Σ matrices cached in memory: a dozen full ones of 3,072 dimensions, in double precision


@dataclass(frozen=True, eq=False)
class Entry:
    """One enrolment: ``answer`` (None: an abstention) holds on the region around ``centre``, and at the centre."""

    number: int
    centre: torch.Tensor
    scale: Scale
    radius: float
    answer: int | None


class Regions:
    """The regions in a registry's file, found by a filter in memory before the exact check of each."""

    def __init__(self, store: Database) -> None:
        self._store = store
        self._norm: float | None = None
        self._cells: Cells | None = None
        self._index: Index | None = None
        self._again: Index | None = None  # the same, made from the regions themselves; as far as it was needed
        self._scales: OrderedDict[int, Scale] = OrderedDict()  # most recently used last
        self._kept = 0  # bytes of these

    @property
    def norm(self) -> float | None:
        """The norm of the regions; None if not set yet."""
        if self._norm is None:
            with self._store.storage():
                self._norm = self._store.norm()
        return self._norm

    @property
    def metric(self) -> float:
        """The norm to measure in. If there is none yet, only points are stored, and any norm will do."""
        return 2 if self.norm is None else self.norm

    @property
    def count(self) -> int:
        """How many there are, as of the last ``refresh``."""
        return 0 if self._index is None else self._index.count

    def refresh(self) -> None:
        """Bring the filter up to date with what has been enrolled, here and by other processes."""
        rows = self._store.sketches(0 if self._index is None else self._index.last)
        if self._index is None and rows:
            shape = self._store.shape()
            assert shape is not None, "it is settled before the first enrolment"
            self._cells = Cells(shape)
            self._index = Index(self._cells.length)
        if self._index is not None and rows:
            self._index.extend(rows)

    def forget(self) -> None:
        """Forget what was read within a transaction that failed: a Σ may not have been stored, nor the norm set."""
        self._scales.clear()
        self._kept = 0
        self._norm = None

    def containing(self, point: Vector) -> Entry | None:
        """The first enrolment that contains the point; if rounding makes it uncertain, it counts as contained."""
        if self._cells is None or self._index is None:
            return None
        ids, _, reaches = self._index.near(self._cells.sketch(point), 0.0)
        for i in np.argsort(ids):
            row = self._store.read(int(ids[i]))
            offset = point - flat(row.tensors["centre"][None])
            if not offset.any():
                return self.entry(int(ids[i]), row)
            if np.linalg.norm(offset) > reaches[i] * (1 + MARGIN):  # outside the ball around it: no need for Σ
                continue
            if may_contain(self.scale(row.scale), self.metric, row.radius, offset):
                return self.entry(int(ids[i]), row)
        return None

    def room(self, point: Vector, number: int, radius: float, answer: int) -> float:
        """The radius up to which the region at this point, under Σ of this number, meets no region of another answer."""
        scale = self.scale(number)
        if self._cells is None or self._index is None:
            return radius
        stretch = outer_radius(scale, self.metric, 1.0, len(point))
        ids, gaps, reaches = self._index.near(self._cells.sketch(point), radius * stretch, answer)
        for other, gap, reach in zip(ids, gaps, reaches, strict=True):
            if gap > radius * stretch:  # nor can any after it
                break
            row = self._store.read(int(other))
            offset = flat(row.tensors["centre"][None]) - point
            if np.linalg.norm(offset) * (1 - MARGIN) - reach > radius * stretch:  # the balls around both are apart
                continue
            theirs = scale if row.scale == number else self.scale(row.scale)
            radius = min(radius, allowed_radius(self.metric, offset, scale, theirs, row.radius))
        return radius

    def apart(self, entry: Entry) -> bool:
        """Whether a region meets none of another answer: of any two, the later one is as small as the earlier one demands.

        From centres and Σ, as they were enrolled; rounding may add MARGIN to a radius that is computed again. The filter is not
        trusted here: a StoreError if it is not what the regions give.
        """
        assert self._cells is not None, "the entry was sketched"
        point, own = flat(entry.centre[None]), self._store.read(entry.number).scale
        reach = outer_radius(entry.scale, self.metric, entry.radius, len(point))
        ids, _, reaches = self._from_regions(self._cells).near(self._cells.sketch(point), reach)
        for number, theirs in zip(ids.tolist(), reaches.tolist(), strict=True):
            row = self._store.read(number)
            offset = flat(row.tensors["centre"][None]) - point
            if row.answer == entry.answer or np.linalg.norm(offset) * (1 - MARGIN) - theirs > reach:
                continue
            rival = self.entry(number, row)
            if row.scale == own:  # one Σ for both, also where the cache has read it twice
                rival = replace(rival, scale=entry.scale)
            first, last = (rival, entry) if number < entry.number else (entry, rival)
            room = allowed_radius(
                self.metric, offset if first is rival else -offset, last.scale, first.scale, first.radius
            )
            if last.radius > room * (1 + MARGIN):
                return False
        return True

    def _from_regions(self, cells: Cells) -> Index:
        """The filter, made again from centres, Σ and radii; each row once. A stored one that differs is damage.

        Whoever writes the file can give a sketch a checksum, too: one that lies elsewhere would hide its region.
        """
        assert self._index is not None, "there is a row"
        if self._again is None:
            self._again = Index(cells.length)
        rows = []
        for number in range(self._again.last + 1, self._index.last + 1):
            row = self._store.read(number)
            point = flat(row.tensors["centre"][None])
            reach = self._reach(row, len(point))
            sketch = cells.sketch(point) if len(point) == cells.dim else None
            if sketch is None or not self._index.agrees(number, row.answer, reach, sketch):
                raise StoreError(
                    f"{self._store.path} is damaged: the sketch of enrolment {number} is not that of its region, so that the "
                    "region could not be found. Restore it from a copy."
                )
            rows.append((number, row.answer, reach, sketch.astype("<f4").tobytes()))
        if rows:
            self._again.extend(rows)
        return self._again

    def rivals(self, point: Vector, answer: int | None, count: int) -> list[Entry]:
        """Enrolments with another answer, ordered by the distance of their regions to this point."""
        if self._cells is None or self._index is None:
            return []
        own = ABSTAINED if answer is None else answer
        ids, _, _ = self._index.near(self._cells.sketch(point), math.inf, own)
        return [self.entry(int(number)) for number in ids[:count]]

    def add(self, row: Row, point: Vector, shape: Sequence[int]) -> None:
        """Write a row about this point, an input of this shape; within the transaction that made it."""
        cells = Cells(shape) if self._cells is None else self._cells
        self._store.add(row, self._reach(row, len(point)), cells.sketch(point).astype("<f4").tobytes())

    def _reach(self, row: Row, dim: int) -> float:
        """The radius of an ℓ2 ball around the region of a row."""
        return outer_radius(self.scale(row.scale), self.metric, row.radius, dim) if row.radius else 0.0

    def entry(self, number: int, row: Row | None = None) -> Entry:
        """The enrolment of this number; ``row``, if it was read."""
        row = row or self._store.read(number)
        answer = None if row.answer == ABSTAINED else row.answer
        return Entry(number, row.tensors["centre"], self.scale(row.scale), row.radius, answer)

    def scale(self, number: int) -> Scale:
        """Σ of this number, of those in the file."""
        if number not in self._scales:
            self._scales[number] = self._store.read_scale(number)
            self._kept += _bytes(self._scales[number])
            while len(self._scales) > 1 and self._kept > KEPT:
                self._kept -= _bytes(self._scales.popitem(last=False)[1])
        self._scales.move_to_end(number)
        return self._scales[number]


def _bytes(scale: Scale) -> int:
    return sum(tensor.nbytes for tensor in scale.tensors().values())


def flat(x: torch.Tensor) -> Vector:
    """An input (1, *event) as a float64 vector."""
    if x.ndim < 2 or len(x) != 1:
        raise InvalidInput(f"give one input at a time, of shape (1, *event), got {tuple(x.shape)}.")
    point = np.asarray(x.detach().double().cpu().flatten().numpy())
    if not (np.abs(point) <= LARGEST).all():
        raise InvalidInput(f"x holds a value that is not finite, or above {LARGEST:g}.")
    return point
