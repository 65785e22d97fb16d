"""When a certificate counts as broken: only beyond sampling doubt, at a stated level."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import bdtr

from ucan.bounds import at_most_p_value, check_alpha


@dataclass(frozen=True)
class Decision:
    """``hits`` of ``total`` fresh votes were for the certified class; ``answer`` led. ``p_value`` is how likely so few
    would be if the certificate were true at this point.
    """

    broken: bool
    answer: int
    hits: int
    total: int
    p_value: float


def rival_of(counts: Sequence[int], c_A: int) -> int:
    """The class with most votes besides c_A. To be chosen from other votes than those that then test it."""
    return max((c for c in range(len(counts)) if c != c_A), key=lambda c: counts[c])


def decide(counts: Sequence[int], invalid: int, c_A: int, level: float, rival: int | None = None) -> Decision:
    """Whether fresh votes at a point of its region refute a certificate of class c_A.

    A binary certificate claims P(c_A) > 1/2, and is tested on all votes. With ``rival`` (a two-class certificate, whose
    class need not have a majority) the claim is P(c_A) > P(rival), tested on the votes for these two. In both cases a
    true claim is called broken with probability at most ``level``, and the most voted class must be another one.
    """
    check_alpha(level)
    hits = counts[c_A]
    total = sum(counts) + invalid if rival is None else hits + counts[rival]
    p_value = at_most_p_value(hits, total, 0.5) if total else 1.0
    answer = max(
        range(len(counts)), key=lambda c: (counts[c], c == c_A)
    )  # where none leads, the answer has not changed
    return Decision(p_value <= level and answer != c_A, answer, hits, total, p_value)


def allowed_breaks(certificates: int, alpha: float, confidence: float = 0.999) -> int:
    """The quantile of Binomial(certificates, α): more broken ones than this are no accident that α allows."""
    check_alpha(alpha)
    return next(k for k in range(certificates + 1) if bdtr(k, certificates, alpha) >= confidence)
