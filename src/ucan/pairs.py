"""Votes of two classifiers on the same noise: a bound on the new one's probability, from these and from the old one's votes.

Pure functions in float64. The proof stands in docs/recertify.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy import special

# Into so many parts the possible p of the old classifier are divided; each is judged by its worst ends.
CELLS = 64
# What rounding may take from the probability of one net change, and more than what lies outside the window of net changes.
ROUNDING = 1e-13
# The bound is at most this below the largest p that is rejected.
PRECISION = 1e-10

Excess = Callable[[float, int | None], tuple[float, int]]


def joint_lower_bound(hits: int, n: int, lost: int, gained: int, m: int, alpha: float, changed: float) -> float:
    """With probability at least 1 − α, the new classifier's p is not below this, if P(lost) + P(gained) is at most ``changed``.

    ``hits`` of n votes of the old classifier are for the class; of m further draws, shown to both, ``lost`` and ``gained``
    changed sides. A p is rejected if under no classifiers with p_new ≤ p the estimate hits/n − (lost − gained)/m reaches what
    was observed with a probability above α. The bound is never above that of n + m votes that all agree. n and m must be
    fixed in advance.
    """
    estimate = min(math.exp(math.log(alpha) / (n + m)), max(0.0, hits / n - (lost - gained) / m))

    def excess(p: float, cell: int | None) -> tuple[float, int]:
        """Above 0 where p is not rejected, nearly linear in p, and the cell that says so; or what a given one says."""
        tails = estimate_tails(hits, n, lost - gained, m, p, changed, cell)
        most = min(max(float(tails.max()), 1e-300), 1 - 1e-16)  # finite at both ends, so that a line can be drawn
        return float(special.ndtri(most) - special.ndtri(alpha)), int(tails.argmax())

    spread = math.sqrt(estimate * (1 - estimate) / n + changed / m)
    p, (over, cell) = estimate, excess(estimate, None)
    while over > 0 and p > 0:
        # As long as one cell stands for all, p goes down to what that one rejects; then all are asked.
        p = _rejected_below(p, over, max(1e-6, -spread * special.ndtri(alpha)), excess, cell)
        over, cell = excess(p, None)
    return p if over <= 0 else 0.0


def _rejected_below(high: float, at_high: float, step: float, excess: Excess, cell: int) -> float:
    """From a p down to one that this cell rejects, at most ``PRECISION`` below one that it does not; 0 if it rejects none."""
    low, at_low = high, at_high
    while at_low > 0:
        if low == 0:
            return 0.0
        high, at_high = low, at_low
        low, step = max(0.0, low - step), 2 * step
        at_low, _ = excess(low, cell)
    side = 0
    while high - low > PRECISION:  # the Illinois method
        middle = low + (high - low) * at_low / (at_low - at_high)
        middle = min(max(middle, low + PRECISION / 2), high - PRECISION / 2)
        found, _ = excess(middle, cell)
        if found <= 0:
            low, at_low, at_high = middle, found, at_high / (2 if side < 0 else 1)
        else:
            high, at_high, at_low = middle, found, at_low / (2 if side > 0 else 1)
        side = -1 if found <= 0 else 1
    return low


def estimate_tails(
    hits: int, n: int, net: int, m: int, p: float, changed: float, cell: int | None = None
) -> np.ndarray:
    """For each cell of p_old, or for one, a bound on P(the estimate is at least hits/n − net/m) where p_new is at most p.

    Under p_new = p, with d = p_old − p and T votes lost net of those gained, this is E h(T), h(t) = P(Bin(n, p_old) ≥
    hits + (t − net)·n/m). It rises with p_old and falls with d; so in a cell the largest p_old and the smallest d are taken.
    h is replaced by a convex function that is not below it, for which the worst is that as many votes change as can.
    """
    ends = np.linspace(max(0.0, p - changed), min(1.0, p + changed), CELLS + 1)
    ends = ends if cell is None else ends[cell : cell + 2]
    d = np.clip(ends[:-1] - p, -changed, changed)
    first, chances = net_changes(d, m, changed)
    at = hits + (first[:, None] + np.arange(chances.shape[1]) - net) * (n / m)
    tails = _convex(_tail(at, n, ends[1:, None]))
    found: np.ndarray = (chances * tails).sum(1)
    return found


def net_changes(d: np.ndarray, m: int, changed: float) -> tuple[np.ndarray, np.ndarray]:
    """The distribution of the votes lost less those gained in m draws, P(lost) ± P(gained) being ``changed`` and d.

    The first value of a window around each mean, and the probabilities of the values from there on: not below the true ones.
    By Bernstein's inequality less than 1e-19 lies outside, and the discrete Fourier transform adds it to what is inside.
    """
    half = math.ceil(10 * math.sqrt(m * changed) + 60)
    centre = np.rint(m * d)
    number = np.arange(half + 1)
    angle = np.pi * number / half
    # One draw has the transform 1 − fewer − i·turned. Of m draws a rounding of 1 itself would come out m times as large.
    fewer, turned = 2 * changed * np.sin(angle / 2) ** 2, d[:, None] * np.sin(angle)
    with np.errstate(divide="ignore"):
        size = np.exp(m / 2 * np.log1p(np.maximum(fewer * (fewer - 2) + turned**2, -1.0)))
    phase = angle * centre[:, None] - m * np.arctan2(turned, 1 - fewer)
    moved = size * np.exp(1j * phase) * (1 - 2 * (number % 2))
    return centre - half, np.maximum(np.fft.irfft(moved, 2 * half, axis=1), 0.0) + ROUNDING


def _tail(at: np.ndarray, n: int, p: np.ndarray) -> np.ndarray:
    """P(Bin(n, p) ≥ at), between whole numbers linear in ``at``: never below the probability itself."""
    whole = np.floor(at)
    found, part = _tail_at(whole, n, p), at - whole
    return found if not part.any() else (1 - part) * found + part * _tail_at(whole + 1, n, p)


def _tail_at(k: np.ndarray, n: int, p: np.ndarray) -> np.ndarray:
    inside = np.clip(k, 1, n)
    found: np.ndarray = np.where(k > n, 0.0, special.betainc(inside, n - inside + 1, p))
    return np.where(k <= 0, 1.0, found)


def _convex(tails: np.ndarray) -> np.ndarray:
    """Rows that fall, ever faster and then ever more slowly: what comes before the steepest step is replaced by a line.

    Its slope is that of the steepest step, so that the row is convex and nowhere below what it was. Where that step is the
    last of a row, what follows may be steeper: there 1 takes the place of the whole row.
    """
    steps = tails[:, :-1] - tails[:, 1:]
    at = steps.argmax(1)[:, None]
    slope, height = np.take_along_axis(steps, at, 1), np.take_along_axis(tails, at, 1)
    ahead = at - np.arange(tails.shape[1])
    found = np.where(ahead > 0, height + ahead * slope, tails)
    return np.where(at == steps.shape[1] - 1, np.maximum(1.0, found), found)
