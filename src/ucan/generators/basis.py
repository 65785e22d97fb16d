"""Noise in a basis of the data: little in the directions of the pictures, more in the others."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ucan.catalogue import call
from ucan.errors import InvalidInput
from ucan.generators.base import Generator
from ucan.generators.context import Context
from ucan.generators.learned import bounded_scale, check_gamma
from ucan.scales import DCT, Basis, Scale
from ucan.scales.dct import cosine_matrix

# Above this dimension the d×d matrix of principal components is too large: use the cosine basis.
MAX_PCA = 4096
BASES = ("pca", "dct")


class Directions(nn.Module):
    """An orthonormal basis of the input space, its directions ordered from the leading one on."""

    dim: int

    @abstractmethod
    def scale(self, s: torch.Tensor) -> Scale:
        """Σ with these scales (d,), in the directions' order."""

    @abstractmethod
    def leading(self, y: torch.Tensor, count: int) -> torch.Tensor:
        """The projection of y (…, *event) onto the leading directions, in image space."""


class PrincipalComponents(Directions):
    """The principal components of a set of images; the rest of an image is replaced by the mean image's."""

    components: torch.Tensor
    centre: torch.Tensor

    def __init__(self, components: torch.Tensor, centre: torch.Tensor) -> None:
        super().__init__()
        self.dim = len(centre)
        self.register_buffer("components", components)
        self.register_buffer("centre", centre)

    @classmethod
    def of(cls, images: torch.Tensor) -> PrincipalComponents:
        """From images (n, *event)."""
        if len(images) < 1 or not bool(images.isfinite().all()):
            raise InvalidInput(f"PCA needs images (n, *event) of finite numbers, got shape {tuple(images.shape)}.")
        flat = images.flatten(1).double()
        if flat.shape[1] > MAX_PCA:
            raise InvalidInput(
                f"PCA in {flat.shape[1]} dimensions needs a matrix of that size squared: use BasisWise.dct."
            )
        centre = flat.mean(0)
        _, vectors = torch.linalg.eigh((flat - centre).T @ (flat - centre))
        return cls(vectors.flip(1).float().contiguous(), centre.float())

    @classmethod
    def placeholder(cls, dim: int) -> PrincipalComponents:
        """The standard basis, to be overwritten by saved components."""
        return cls(torch.eye(dim), torch.zeros(dim))

    def scale(self, s: torch.Tensor) -> Scale:
        """Q diag(s)."""
        return Basis(self.components, s)

    def leading(self, y: torch.Tensor, count: int) -> torch.Tensor:
        """M + Q_k Q_kᵀ (y − m)."""
        q = self.components[:, :count].to(y)
        centre = self.centre.to(y)
        return torch.addmm(centre, (y.reshape(-1, self.dim) - centre) @ q, q.T).reshape(y.shape)


class Cosines(Directions):
    """The two-dimensional cosine basis, from low frequencies to high, channels side by side. O(d) memory."""

    order: torch.Tensor
    rows: torch.Tensor
    columns: torch.Tensor

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        if len(shape) < 2:
            raise InvalidInput(f"BasisWise.dct needs an image's shape (…, H, W), got {tuple(shape)}.")
        self.shape = tuple(shape)
        self.dim = math.prod(shape)
        rows = torch.arange(shape[-2])[:, None] / shape[-2]
        columns = torch.arange(shape[-1])[None] / shape[-1]
        frequency = (rows**2 + columns**2).expand(self.shape)
        self.register_buffer("order", frequency.flatten().argsort(stable=True))
        self.register_buffer("rows", cosine_matrix(shape[-2]).float())
        self.register_buffer("columns", cosine_matrix(shape[-1]).float())

    def scale(self, s: torch.Tensor) -> Scale:
        """The cosine Σ with each scale at its frequency."""
        return DCT(torch.empty_like(s).index_copy(0, self.order, s).reshape(self.shape))

    def leading(self, y: torch.Tensor, count: int) -> torch.Tensor:
        """The low-pass of y."""
        rows, columns = self.rows.to(y), self.columns.to(y)
        kept = torch.zeros(self.dim, device=y.device, dtype=y.dtype)
        kept[self.order[:count]] = 1
        images = y.reshape(-1, *self.shape)
        return (rows.T @ ((rows @ images @ columns.T) * kept.reshape(self.shape)) @ columns).reshape(y.shape)


class BasisWise(Generator):
    """A fixed Σ in a basis of the data, and a classifier that gets only the leading directions. Scope: ``pipeline``.

    Σ = Q diag(s) and μ = 0 are constants of the deployment. ``view`` gives the classifier the leading directions of a
    noisy input, in image space, so any classifier fits; it is part of the classifier, and the guarantee covers it.
    In the dropped directions noise costs no accuracy: they can have the largest scale that the cap allows.

    Args:
        directions: the basis; ``BasisWise.pca`` and ``BasisWise.dct`` make it.
        leading: the number of directions that the classifier gets.
        scale: (scale of the leading directions, scale of the others), or one scale per direction.
        bands: if given, the leading directions are divided into this many bands of equal size, whose scales are learned,
            starting from ``scale``.
        cap: the largest learned scale.
    """

    scope = "pipeline"
    s: torch.Tensor
    band: torch.Tensor

    def __init__(
        self, directions: Directions, leading: int, scale: Any = (0.25, 1.0), bands: int | None = None, cap: float = 1.0
    ) -> None:
        super().__init__()
        if not isinstance(leading, int) or not 1 <= leading <= directions.dim:
            raise InvalidInput(
                f"leading must be a whole number between 1 and the dimension {directions.dim}, got {leading!r}."
            )
        self.directions = directions
        self.leading = leading
        self.band_cap = check_gamma(cap)
        s = _scales(scale, leading, directions.dim)
        self.register_buffer("s", s)
        directions.scale(s).check()
        self.raw: nn.Parameter | None = None
        if bands is not None:
            if not isinstance(bands, int) or not 1 <= bands <= leading:
                raise InvalidInput(f"bands must be a whole number between 1 and leading = {leading}, got {bands!r}.")
            if s.max() > cap:
                raise InvalidInput(f"scale holds {float(s.max()):g}, above the cap {cap:g}.")
            band = torch.arange(leading) * bands // leading
            starts = torch.zeros(bands).index_add_(0, band, s[:leading]) / band.bincount(minlength=bands)
            self.register_buffer("band", band)
            self.raw = nn.Parameter(torch.atanh((2 * starts / self.band_cap - 1).clamp(-0.999, 0.999)))

    @classmethod
    def fitted(cls, context: Context, basis: str = "pca", **parameters: Any) -> Generator:
        """In the principal components of the training inputs, or with ``basis`` "dct" in the cosine basis."""
        if basis not in BASES:
            raise InvalidInput(f"generator.basis must be one of {', '.join(BASES)}, got {basis!r}.")
        directions: Directions
        if basis == "dct":
            directions = Cosines(context.shape)
        elif context.images is None:
            directions = PrincipalComponents.placeholder(math.prod(context.shape))
        else:
            directions = PrincipalComponents.of(context.images)
        made: Generator = call("generator", cls, {"directions": directions, **parameters})
        return made

    @classmethod
    def needs_inputs(cls, parameters: Mapping[str, Any]) -> bool:
        """For principal components."""
        return bool(parameters.get("basis", "pca") == "pca")

    @classmethod
    def pca(
        cls,
        images: torch.Tensor,
        leading: int = 512,
        scale: Any = (0.25, 1.0),
        bands: int | None = None,
        cap: float = 1.0,
    ) -> BasisWise:
        """Noise in the principal components of training images (n, *event), pixels in [0, 1]; other arguments as above."""
        return cls(PrincipalComponents.of(images), leading, scale, bands, cap)

    @classmethod
    def dct(
        cls,
        shape: Sequence[int],
        leading: int | None = None,
        scale: Any = (0.25, 1.0),
        bands: int | None = None,
        cap: float = 1.0,
    ) -> BasisWise:
        """Noise in the cosine basis, for inputs too large for PCA; by default a sixth of the frequencies lead."""
        sixth = max(1, math.prod(shape) // 6)
        return cls(Cosines(shape), sixth if leading is None else leading, scale, bands, cap)

    def looks(self) -> bool:
        """No: the scales are constants of the deployment."""
        return type(self).forward is not BasisWise.forward

    def settings(self) -> dict[str, Any]:
        """The basis, how much of it leads, and the cap on learned scales."""
        return {**super().settings(), "directions": type(self.directions).__name__}

    def cap(self) -> float:
        """The largest scale given, or the cap on learned ones."""
        fixed = float(self.s.max())
        return fixed if self.raw is None else max(self.band_cap, fixed)

    def scales(self) -> torch.Tensor:
        """One scale per direction, leading first."""
        if self.raw is None:
            return self.s
        return torch.cat([bounded_scale(self.raw, self.band_cap)[self.band], self.s[self.leading :]])

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, Scale]:
        """μ = 0 and Σ = Q diag(s), the same for every input."""
        return x.new_zeros(()), self.directions.scale(self.scales())

    def view(self, y: torch.Tensor) -> torch.Tensor:
        """The leading directions of noisy inputs, in image space."""
        return self.directions.leading(y, self.leading)

    def describe(self) -> str:
        """The basis and how much of it leads."""
        return f"BasisWise({type(self.directions).__name__}, leading={self.leading})"


def _scales(scale: Any, leading: int, dim: int) -> torch.Tensor:
    given = torch.as_tensor(scale, dtype=torch.float32)
    if given.shape == (dim,):
        return given.clone()
    if given.shape != (2,):
        raise InvalidInput(f"scale must be (leading, rest) or hold {dim} numbers, got shape {tuple(given.shape)}.")
    return torch.cat([given[0].expand(leading), given[1].expand(dim - leading)])
