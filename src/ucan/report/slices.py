"""A two-dimensional slice through a certified region, beside the ball inside it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from ucan.certificate import Certificate
from ucan.scales import Scalar, Scale

ANGLES = 240
LARGEST = 1024  # dimensions up to which a full Σ is decomposed for its directions; beyond, it would take too long


@dataclass(frozen=True, eq=False)
class Slice:
    """Outlines (angles, 2): the first coordinate along the direction of the smallest scale, the second of the largest.

    ``reach`` is how far the region goes in these two directions.
    """

    region: np.ndarray
    ball: np.ndarray
    reach: tuple[float, float]

    @property
    def most(self) -> float:
        """The half width that shows all of it."""
        return float(np.abs(self.region).max())


def cut(certificate: Certificate) -> Slice | None:
    """The slice through x along the directions in which the noise is least and most; None if there are no such two.

    Exact along every angle: a direction v leaves the region at R/‖Σ⁻¹v‖; of several regions at the first of theirs.
    """
    region, norm = certificate.region, certificate.norm
    plane = directions(region.scale, region.dim)
    if plane is None or norm is None or not certificate.radius > 0:
        return None
    angle = torch.arange(ANGLES, dtype=torch.float64) * (2 * torch.pi / ANGLES)
    circle = torch.stack([angle.cos(), angle.sin()], dim=1)
    edge = circle * (region.radius / region.size(circle @ plane))[:, None]
    ball = circle * (certificate.radius / torch.linalg.vector_norm(circle @ plane, ord=norm, dim=1))[:, None]
    across, up = (region.radius / region.size(plane)).tolist()
    return Slice(edge.numpy(), ball.numpy(), (across, up))


def directions(scale: Scale, dim: int) -> torch.Tensor | None:
    """Two orthonormal directions (2, d): of the smallest scale, and of the largest."""
    if dim < 2:
        return None
    unit = torch.eye(2, dim, dtype=torch.float64)
    if isinstance(scale, Scalar):
        return unit
    entries = _entries(scale)
    if entries is not None:
        least, most = int(entries.argmin()), int(entries.argmax())
        if least == most:  # all the same
            least, most = 0, 1
        chosen = torch.zeros(2, dim, dtype=torch.float64)
        chosen[0, least] = chosen[1, most] = 1.0
        return torch.nn.functional.normalize(scale.apply(chosen.reshape(2, dim)), dim=1)
    if dim > LARGEST:
        return None
    left, _, _ = torch.linalg.svd(scale.dense(dim))
    return torch.stack([left[:, -1], left[:, 0]])


def _entries(scale: Scale) -> torch.Tensor | None:
    """One scale per direction, for the kinds of Σ whose columns are orthogonal."""
    tensors = scale.tensors()
    found = tensors.get("sigma", tensors.get("s"))
    return None if found is None else found.flatten()
