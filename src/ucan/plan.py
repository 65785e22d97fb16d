"""What a certification or a prediction is asked to do: checked once, before any work."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal, get_args

from ucan.bounds import check_alpha
from ucan.errors import InvalidInput
from ucan.region import check_norm
from ucan.stopping import Stop

Bound = Literal["binary", "two-class", "anytime"]
Test = Literal["majority", "top-two"]


@dataclass(frozen=True)
class CertifyPlan:
    """The settings of Algorithm 1."""

    n0: int = 100
    n: int = 100_000
    alpha: float = 0.001
    norm: float = 2
    seed: int = 0
    batch_size: int | None = None
    bound: Bound = "binary"
    stop: Stop | None = None
    precision: str | None = None

    def __post_init__(self) -> None:
        check_count("n0", self.n0)
        check_count("n", self.n)
        check_alpha(self.alpha)
        check_norm(self.norm)
        check_seed(self.seed)
        if self.batch_size is not None:
            check_count("batch_size", self.batch_size)
        if self.bound not in get_args(Bound):
            raise InvalidInput(f'bound must be "binary", "two-class" or "anytime", got {self.bound!r}.')
        if self.stop is not None and self.bound != "binary":
            raise InvalidInput("stopping early needs the binary bound: leave bound= out, or stop=.")
        _plain(self)


@dataclass(frozen=True)
class PredictPlan:
    """The settings of Algorithm 2."""

    n: int = 1000
    alpha: float = 0.001
    seed: int = 0
    test: Test = "majority"
    batch_size: int | None = None
    stop: bool = False
    precision: str | None = None

    def __post_init__(self) -> None:
        check_count("n", self.n)
        check_alpha(self.alpha)
        check_seed(self.seed)
        if self.batch_size is not None:
            check_count("batch_size", self.batch_size)
        if self.test not in get_args(Test):
            raise InvalidInput(f'test must be "majority" or "top-two", got {self.test!r}.')
        if self.stop and self.test != "majority":
            raise InvalidInput("stopping early needs the majority test: leave test= out, or stop=.")
        _plain(self)


def _plain(plan: CertifyPlan | PredictPlan) -> None:
    """Numbers of numpy become Python's own: they end up in records, and JSON knows no others."""
    for name in ("n0", "n", "seed", "batch_size"):
        value = getattr(plan, name, None)
        if value is not None:
            object.__setattr__(plan, name, int(value))
    object.__setattr__(plan, "alpha", float(plan.alpha))


def check_count(name: str, value: Any) -> None:
    """Refuse anything but a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise InvalidInput(f"{name} must be a whole number of at least 1, got {value!r}.")


def check_seed(seed: Any) -> None:
    """Refuse a seed that is no whole number."""
    if isinstance(seed, bool) or not isinstance(seed, Integral):
        raise InvalidInput(f"seed must be a whole number, got {seed!r}.")
