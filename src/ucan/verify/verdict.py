"""The result of verifying: checks, each with its detail, and the verdict that they make."""

from __future__ import annotations

from dataclasses import dataclass

from ucan.choices import Scope

DEPLOYED = "the classifier and the noise that were given"
STATED = "the noise as the certificate states it"
# What a check says of its subject: the first if it passed, else the second.
IS, FOLLOWS = ("is", "is not"), ("follows", "does not follow")
# The most that rounding can add to a recomputed number.
SLACK = 1 + 1e-9


@dataclass(frozen=True)
class Check:
    """One check: its name, whether it passed, and details. ``confirmed`` False: nothing was found wrong, nor right."""

    name: str
    passed: bool
    detail: str
    confirmed: bool = True

    @classmethod
    def worded(cls, name: str, subject: str, passed: bool, verbs: tuple[str, str], rest: str) -> Check:
        """A check with a sentence for its result: the first verb if it passed, else the second."""
        return cls(name, passed, f"{subject} {verbs[0] if passed else verbs[1]} {rest}")


@dataclass(frozen=True)
class Verdict:
    """All checks, with n fresh votes at level α. A claim stands if no check failed; this is not a proof.

    ``about`` is what the certificate was compared with: the given classifier and noise, or, if the deployed noise was not
    given, the noise as the certificate states it. ``tested``: the fresh votes were enough to reject a false claim. ``confirms``
    is the scope in which the claim stands: None if a check failed, if nothing was tested, if the claim is about a copy in
    another precision than the deployed one, if it rests on a range of the outputs that was not checked, and if it is about
    the pipeline but the pipeline's noise was not given.
    """

    checks: tuple[Check, ...]
    n: int
    alpha: float
    about: str = DEPLOYED
    confirms: Scope | None = None
    tested: bool = True

    @property
    def stands(self) -> bool:
        """True if no check failed."""
        return all(check.passed for check in self.checks)
