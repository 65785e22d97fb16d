"""A level: a class's probability stays on its side of a threshold, by which a router (``ucan.Threshold``) chooses."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ucan.certificate.entries import region_to_json
from ucan.certificate.outcome import ROUTED, Claimed, check_number
from ucan.choices import norm_to_json
from ucan.errors import InvalidInput
from ucan.region import Region

HALF = 0.5


@dataclass(frozen=True, eq=False)
class Level(Claimed):
    """With probability at least 1 − α one class, ``top``, stays where it is against ``threshold`` on the whole ``region``.

    ``above``: it has more, and ``p`` is a lower bound on its probability at the input. Otherwise no *other* class has more, and
    ``p`` is an upper bound on all of them. The probabilities are those of expert ``of`` of a router (``ucan.Threshold``). Both
    sides are bounded, each at α/2, and one of them is claimed.

    ``floor``: where expert 0 answers by a claim about expert 1's veto (``allows``), its class has more than this under its own
    noise, τ of the rule, on the whole region of the answer. 1/2 otherwise.
    """

    threshold: float
    above: bool
    top: int
    p: float
    region: Region
    of: int = 0
    floor: float = HALF
    budget: ClassVar[None] = None
    budget_factor: ClassVar[None] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("a level's p", self.p, 1.0)
        if not 0 < self.threshold < 1 or (self.p > self.threshold) != self.above:
            raise InvalidInput("a level's p must be on its side of the threshold, which is above 0 and below 1.")
        if type(self.top) is not int or not 0 <= self.top < len(self.evidence.counts) or self.of not in (0, 1):
            raise InvalidInput("a level is about one of the classes, and about the first expert or the second.")
        check_number("a level's floor", self.floor, 1.0)
        if not HALF <= self.floor < 1 or (self.floor > HALF and not self.allows):
            raise InvalidInput("a level's floor is 1/2, or where a veto is not used at least that and below 1.")

    @property
    def allows(self) -> bool:
        """Whether the claim is that expert 1 does not use its veto, so that expert 0 answers."""
        return self.above and self.of == 1

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
        also = f" and above {self.floor!r} for expert 0" if self.floor > HALF else ""
        return f"{side} {self.threshold!r} for expert {self.of}{also} ({self._claim})"

    def to_dict(self, folder: str | Path | None = None) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "format": ROUTED,
            "kind": "level",
            "threshold": self.threshold,
            "above": self.above,
            "top": self.top,
            "of": self.of,
            **({"floor": self.floor} if self.floor > HALF else {}),
            "p": self.p,
            "radius": self.radius,
            "norm": norm_to_json(self.norm),
            "scope": self.scope,
            "region": region_to_json(self.region, Path(folder) if folder is not None else None),
            "evidence": self.evidence.to_dict(),
        }
