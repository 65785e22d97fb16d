"""A level: a class's probability stays on its side of a threshold, by which a router (``ucan.Threshold``) chooses."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ucan.certificate.entries import region_to_json
from ucan.certificate.outcome import ROUTED, Outcome, check_number
from ucan.choices import norm_to_json
from ucan.errors import InvalidInput
from ucan.region import Region


@dataclass(frozen=True, eq=False)
class Level(Outcome):
    """With probability at least 1 − α one class, ``top``, stays where it is against ``threshold`` on the whole ``region``.

    ``above``: it has more, and ``p`` is a lower bound on its probability at the input. Otherwise no *other* class has more, and
    ``p`` is an upper bound on all of them. The probabilities are those of expert ``of`` of a router (``ucan.Threshold``). Both
    sides are bounded, each at α/2, and one of them is claimed.
    """

    threshold: float
    above: bool
    top: int
    p: float
    region: Region
    of: int = 0
    budget: ClassVar[None] = None
    budget_factor: ClassVar[None] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("a level's p", self.p, 1.0)
        if not 0 < self.threshold < 1 or (self.p > self.threshold) != self.above:
            raise InvalidInput("a level's p must be on its side of the threshold, which is above 0 and below 1.")
        if type(self.top) is not int or not 0 <= self.top < len(self.evidence.counts) or self.of not in (0, 1):
            raise InvalidInput("a level is about one of the classes, and about the first expert or the second.")

    @property
    def chosen(self) -> int:
        """Expert 0 above; below, expert 1, whose answer no other one can take the place of."""
        return 0 if self.above else 1

    @property
    def radius(self) -> float:
        """The largest known ball of the norm asked for inside the region."""
        return self.region.inscribed_radius(self.norm)

    @property
    def size(self) -> float:
        """The radius."""
        return self.radius

    def __str__(self) -> str:
        """The claim in one line."""
        side = f"class {self.top} above" if self.above else f"no class but {self.top} above"
        return f"{side} {self.threshold:g} for expert {self.of} ({self._claim})"

    def to_dict(self, folder: str | Path | None = None) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "format": ROUTED,
            "kind": "level",
            "threshold": self.threshold,
            "above": self.above,
            "top": self.top,
            "of": self.of,
            "p": self.p,
            "radius": self.radius,
            "norm": norm_to_json(self.norm),
            "scope": self.scope,
            "region": region_to_json(self.region, Path(folder) if folder is not None else None),
            "evidence": self.evidence.to_dict(),
        }
