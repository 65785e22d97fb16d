"""When a certificate counts as broken: by a statistical test at a stated level."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import bdtrc

from ucan.bounds import at_most_p_value, check_alpha

# The level of the second test of a break, and the α of certifying it again. It does not depend on the number of certificates
# attacked or of interruptions: up to 2.5 million tests raise a false alarm with probability at most 2 · 10⁻¹⁰ each, 0.0005
# together. The count of breaks has another 0.0005.
SURE, COUNT = 1e-10, 0.0005


@dataclass(frozen=True)
class Decision:
    """``hits`` of ``total`` fresh votes were for the claim; ``answer`` is the class with the most. ``p_value`` is the
    probability of so few if the claim were true at this point.
    """

    broken: bool
    answer: int
    hits: int
    total: int
    p_value: float


def rival_of(counts: Sequence[int], c_A: int) -> int:
    """The class with the most votes besides c_A. Choose it on other votes than those that test it."""
    return max((c for c in range(len(counts)) if c != c_A), key=lambda c: counts[c])


def decide(
    counts: Sequence[int], invalid: int, c_A: int, level: float, rival: int | None = None, changed: bool = True
) -> Decision:
    """Whether fresh votes at a point of its region refute a certificate of class c_A.

    A binary certificate claims P(c_A) > 1/2, and is tested on all votes. With ``rival`` (a two-class certificate, whose
    class need not have a majority) the claim is P(c_A) > P(rival), tested on the votes for these two. In both cases a
    true claim is called broken with probability at most ``level``. With ``changed`` the most voted class must be another
    one as well; without it a class that has lost its majority, which the certificate excludes, may still lead.
    """
    check_alpha(level)
    hits = counts[c_A]
    total = sum(counts) + invalid if rival is None else hits + counts[rival]
    p_value = at_most_p_value(hits, total, 0.5) if total else 1.0
    answer = _leader(counts, c_A)
    return Decision(p_value <= level and (answer != c_A or not changed), answer, hits, total, p_value)


def decide_counted(counts: Sequence[int], invalid: int, c_A: int, promised: bool) -> Decision:
    """Whether all draws of the noise, counted at a point of its region, refute a certificate of class c_A.

    Nothing is left to chance: the p-value is 0 or 1. A certificate promises the lead, so a tie breaks it as well; where nothing
    is promised, another class must lead.
    """
    hits, rival = counts[c_A], counts[rival_of(counts, c_A)]
    broken = hits <= rival if promised else hits < rival
    return Decision(broken, _leader(counts, c_A), hits, sum(counts) + invalid, 0.0 if broken else 1.0)


def decide_level(
    counts: Sequence[int], invalid: int, c_A: int, threshold: float, level: float, rival: int | None
) -> Decision:
    """Whether fresh votes at a point refute that class c_A has more than a threshold, or with ``rival`` that this one has not.

    ``hits`` are the votes for the claim: those of c_A, or all but the rival's. A true claim is called broken with probability
    at most ``level``, if the rival was chosen by other votes.
    """
    check_alpha(level)
    total = sum(counts) + invalid
    hits, floor = (counts[c_A], threshold) if rival is None else (total - counts[rival], 1 - threshold)
    p_value = at_most_p_value(hits, total, floor) if total else 1.0
    return Decision(p_value <= level, _leader(counts, c_A), hits, total, p_value)


def _leader(counts: Sequence[int], c_A: int) -> int:
    """The class with the most votes; c_A in a tie, which is no changed answer."""
    return max(range(len(counts)), key=lambda c: (counts[c], c == c_A))


def allowed_breaks(inputs: int, chance: float) -> int:
    """How many of ``inputs`` inputs may have a broken claim by chance, each with probability at most ``chance``.

    The least k with P(Bin(inputs, chance) > k) ≤ 0.0005/((k + 1)(k + 2)). These sum to 0.0005, so with that probability at
    most the count is ever above it as inputs are added: an audit may be stopped at any time, inspected, and continued.
    """
    check_alpha(chance)
    return next(k for k in range(inputs + 1) if bdtrc(k, inputs, chance) <= COUNT / ((k + 1) * (k + 2)))
