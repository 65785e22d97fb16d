"""The settings of a certification or a prediction, checked once, before any work."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, fields
from numbers import Integral
from typing import Any, Literal, Self

from ucan.bounds import check_alpha
from ucan.budget import Budget
from ucan.choices import BOUNDS, TESTS, Test, check_choice, check_norm
from ucan.choices import Bound as Bound
from ucan.errors import InvalidInput
from ucan.evidence import MOST_SEED
from ucan.named_bounds import Ballot, bound_named
from ucan.stopping import Radii, Stop

# A seed for certify and predict: a number; None for a secret one from the system; "derived" for one that is computed from
# model, noise and data, so that nobody can choose it.
Seed = int | None | Literal["derived"]
RANDOM_BITS = 128
USUAL_ALPHA = 0.001  # of all certificates that the field publishes


class SecretSeed(int):
    """A random seed from the system: it is stored with the run and not published."""


class DerivedSeed(int):
    """A seed that nobody can choose: it is computed from what is certified, and from the data with this hash."""

    data_hash: str

    def __new__(cls, value: int, data_hash: str) -> Self:
        """The number, with the hash of the data."""
        made = super().__new__(cls, value)
        made.data_hash = data_hash
        return made

    def __getnewargs__(self) -> tuple[Any, ...]:
        """For pickling."""
        return int(self), self.data_hash


@dataclass(frozen=True)
class CertifyPlan:
    """The settings of Algorithm 1. ``alpha`` is shared by a ``family`` of this many certificates.

    With a ``budget``, ``stop`` is about its factor ε instead of the radius. ``block`` is the number of copies of an input
    that are drawn together, taken from the record when a run is continued or replayed; None: by the dimension.
    """

    n0: int = 100
    n: int = 100_000
    alpha: float = USUAL_ALPHA
    norm: float = 2
    seed: int = 0
    batch_size: int | None = None
    bound: Bound = "binary"
    stop: Stop | None = None
    precision: str | None = None
    family: int = 1
    budget: Budget | None = None
    block: int | None = None

    def __post_init__(self) -> None:
        check_count("n0", self.n0)
        check_count("n", self.n)
        check_count("family", self.family)
        check_alpha(self.alpha)
        check_norm(self.norm)
        check_seed(self.seed)
        for name in ("batch_size", "block"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        check_choice("bound", self.bound, BOUNDS)
        if self.stop is not None and self.bound in ("two-class", "randomised", "exact"):
            raise InvalidInput(
                f'stopping early has a bound of its own, and bound="{self.bound}" is for a fixed n: leave out one of them.'
            )
        if isinstance(self.stop, Radii) and self.stop.others:
            if self.budget is not None:
                raise InvalidInput(
                    "with a budget, stop= is about its factor ε, which has no norm: leave the norms out."
                )
            object.__setattr__(self, "stop", self.stop.in_one_norm(self.norm))
        if self.stop is not None and self.bound == "anytime":
            object.__setattr__(self, "stop", self.stop.anytime())
        _plain(self)

    def check_enough(self, shares: int = 1) -> None:
        """Refuse an n with which nothing can be certified, even if every vote agrees.

        A stopping rule, and a bound under which votes may be added later, make of n a part of what is drawn. ``shares``: of how
        many claims of one certificate each has an equal part of α, as in a router.
        """
        if self.stop is not None or self.bound not in ("binary", "two-class") or self._enough(self.n, shares):
            return
        least = next(n for n in itertools.count(self.n + 1) if self._enough(n, shares))
        shared = f" shared by {self.family:,} certificates" if self.family > 1 else ""
        shared += f", of which each of {shares} claims has a part" if shares > 1 else ""
        raise InvalidInput(
            f"no certificate is possible with n = {self.n} at α = {self.alpha:g}{shared}, even if every vote agrees: use "
            f"at least n = {least}."
        )

    def _enough(self, n: int, shares: int) -> bool:
        p_a, p_b = bound_named(self.bound).probabilities(Ballot(n, 0, n, self.level / shares))
        return p_a > (0.5 if p_b is None else p_b)

    def check_family(self, inputs: int) -> None:
        """Refuse a family that is smaller than the number of inputs."""
        if 1 < self.family < inputs:
            raise InvalidInput(f"family is {self.family}, but there are {inputs} inputs: give at least that many.")

    @property
    def level(self) -> float:
        """The α of each certificate: the family's α divided by its size (Bonferroni)."""
        return self.alpha / self.family

    @property
    def rule(self) -> str | None:
        """The stopping rule as text."""
        return None if self.stop is None else str(self.stop)

    @property
    def can_grow(self) -> bool:
        """Whether votes can be added beyond n."""
        return holds_at_every_n(self.bound, self.stop)


def holds_at_every_n(bound: str | None, stop: Stop | None) -> bool:
    """Whether what this bound, or this rule, certifies holds at every number of votes, so that more can be added."""
    return bound == "anytime" or (stop is not None and stop.bound == "anytime")


@dataclass(frozen=True)
class PredictPlan:
    """The settings of Algorithm 2."""

    n: int = 1000
    alpha: float = USUAL_ALPHA
    seed: int = 0
    test: Test = "majority"
    batch_size: int | None = None
    stop: bool = False
    precision: str | None = None
    block: int | None = None

    def __post_init__(self) -> None:
        check_count("n", self.n)
        check_alpha(self.alpha)
        check_seed(self.seed)
        for name in ("batch_size", "block"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        check_choice("test", self.test, TESTS)
        if self.stop and self.test != "majority":
            raise InvalidInput('stopping early needs test="majority": leave out test= or stop=.')
        if self.test == "majority" and not self.stop and self.alpha >= 0.5:  # one vote more than half would answer
            raise InvalidInput(f"the majority test needs an alpha below 1/2, got {self.alpha!r}; 0.001 is usual.")
        _plain(self)

    @property
    def level(self) -> float:
        """The α of each answer."""
        return self.alpha

    @property
    def family(self) -> int:
        """Each answer has its own α."""
        return 1

    @property
    def rule(self) -> str | None:
        """The stopping rule as text."""
        return "majority" if self.stop else None


def random_seed() -> SecretSeed:
    """A random seed from the system, too long to be guessed."""
    return SecretSeed(secrets.randbits(RANDOM_BITS))


def is_secret(seed: int) -> bool:
    """Whether a seed must not be published."""
    return isinstance(seed, SecretSeed)


def derived_from(seed: int) -> str | None:
    """The hash of the data that a seed was derived from; None for a given or a random seed."""
    return seed.data_hash if isinstance(seed, DerivedSeed) else None


def _plain(plan: CertifyPlan | PredictPlan) -> None:
    """Convert numpy numbers to Python numbers, since they are stored as JSON."""
    for name in ("n0", "n", "seed", "batch_size", "block"):
        value = getattr(plan, name, None)
        if value is not None and not isinstance(value, int):
            object.__setattr__(plan, name, int(value))
    object.__setattr__(plan, "alpha", float(plan.alpha))


MOST = 10**15


def check_count(name: str, value: Any) -> None:
    """Refuse anything but a whole number of at least 1, and one that no machine will ever count to."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise InvalidInput(f"{name} must be a whole number of at least 1, got {value!r}.")
    if int(value) > MOST:
        raise InvalidInput(f"{name} must be at most {MOST:,}, got {value!r}.")


def check_options(who: str, options: Mapping[str, Any], plan: type[CertifyPlan] | type[PredictPlan]) -> None:
    """Refuse options that are none of a plan's, such as those of other questions."""
    known = [field.name for field in fields(plan) if field.name != "block"]
    for name in options:
        if name not in known:
            raise InvalidInput(f"{who} takes no {name}=; its options are {', '.join(known)}.")


def given_seed(seed: Any) -> int:
    """The given seed, or 0 as a placeholder for a random or derived one; refuses everything else."""
    if seed is None or seed == "derived":
        return 0
    check_seed(seed)
    return seed if isinstance(seed, int) else int(seed)


def check_seed(seed: Any) -> None:
    """Refuse a seed that is not a whole number."""
    if isinstance(seed, bool) or not isinstance(seed, Integral):
        raise InvalidInput(f'seed must be a whole number, None for a random secret seed, or "derived"; got {seed!r}.')
    if abs(int(seed)) >= MOST_SEED:
        bits = MOST_SEED.bit_length() - 1
        raise InvalidInput(f"seed must have at most {bits} bits, and this one has {int(seed).bit_length()}.")
