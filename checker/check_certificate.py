"""Check certificate files of UCAN, each by itself: does everything that it claims follow from the evidence that it holds?

    python check_certificate.py CERTIFICATE.json …

Needs Python 3.11 or later, NumPy and SciPy; neither PyTorch nor UCAN, and it shares no code with UCAN. The chain is
recomputed link by link: votes → bound on the probability p → radius R of the region → ball inside the region, ALM,
volume and factor of a budget. Answers to other questions (format 4) go the same way: from the votes of each label and pixel, or
from how many numbers of a regression lie beyond each end. A claim may be smaller than what follows, never larger (by more than
rounding, 1e-9 of it). Exit code 0: nothing is wrong. 1: something is. 2: the file, or a part of it, cannot be read or checked;
so it is with answers about labels, pixels and numbers that were written without these counts. Of several files each has a line,
with what is not ok below it, and the code is 1 if one is wrong, else 2 if one could not be checked.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
from scipy import fft, linalg, optimize, stats

CAP_SHARE = 0.2  # of α, what the sequential bound gives to the test at the cap
REST, MOVED = 0.9, 0.1  # of α, what a joint test has, and of that, what the bound on votes that change has
PARTS = 64  # of the range of the old classifier's p in a joint test
FIRST_LOOK = 50  # no look at the answers to a question is earlier
CAP_LOOK = 0.5  # of α, what the last look has; the others share the rest equally
ENDLESS = 1e308  # stands for an end that is infinite
SLACK = 1e-9  # what rounding may add to a number, relative to it
LARGEST = 4096  # the largest matrix that is inverted; a minute's work
CORNERS = 12  # up to so many coordinates that change, all corners of a box are looked at
CLIMBS = 20  # steps of the search for a change that leaves the region
# Clopper–Pearson bounds are about a number of votes that was fixed beforehand.
FIXED = ("binary", "randomised", "two-class", "paired", "joint", "exact", "majority", "top-two")
# The bounds that answers to other questions follow by; "decisions" name their rule and its places.
ANSWERS = {"interval": "order statistics", "top-k": "simultaneous", "confidence": "binary"}
RULES = ("holm", "bonferroni")
# The norms against which each law of noise has a radius.
NORMS: dict[str, tuple[float, ...]] = {
    "Gaussian": (1, 2, math.inf),
    "Laplace": (1,),
    "Uniform": (1, math.inf),
    "ExpInf": (1, math.inf),
    "PowerLaw": (1,),
    "GeneralNormal": (1,),
}
# Kinds of noise of the form x + μ + Σε, and whether μ and Σ are the same for every input.
KINDS = {"Isotropic": True, "Fixed": True, "Pattern": True, "DatasetWise": True, "BasisWise": True}
KINDS |= {"BudgetWise": True, "CertificationWise": False}
CELLS = "Splitting"  # noise that cuts the input's grid into cells; its draws can all be counted
# What a file may say of its guarantee, by scope: the sentence of today, and those of older versions.
FROZEN = "only the classifier whose noise was frozen at this input, not a pipeline that computes it anew"
STATEFUL = "the stateful classifier, in the order in which its inputs were enrolled"
GUARANTEES: dict[str, tuple[str, ...]] = {
    "pipeline": ("the deployed pipeline, at every input in the region",),
    "frozen": (f"{FROZEN} (documentation page “Whose guarantee it is”)", f"{FROZEN} (docs/scopes.md)", FROZEN),
    "registry": (
        f"{STATEFUL} (documentation page “A classifier with a memory”)",
        f"{STATEFUL} (docs/registry.md)",
        STATEFUL,
    ),
}
COMPOSED_SETTINGS = {"norm", "share", "spread", "net", "budget"}
FLOATS = {"float16": "<f2", "float32": "<f4", "float64": "<f8", "F16": "<f2", "F32": "<f4", "F64": "<f8"}
FLOATS |= {"int64": "<i8", "I64": "<i8"}
# A limit of a budget is 0 or at least this; a smaller one is read as this. Sizes below the other have no squares.
LEAST_LIMIT, LEAST_SIZE = 1e-100, 1e-150
NODES, WEIGHTS = np.polynomial.legendre.leggauss(300)
# What reading a damaged file may raise.
BROKEN = (
    OSError,
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    ArithmeticError,
    AttributeError,
    RecursionError,
    MemoryError,
)
LIMITS = """\
This checks arithmetic only. It cannot know that these votes were ever drawn, that the settings were fixed before the
first vote, or which model, noise and input are deployed. `ucan verify --replay` with model and input looks at those."""


class Unreadable(Exception):
    """The file is no certificate that this program can read."""


class NotChecked(Exception):
    """The file uses something that this program does not know."""


class Wrong(Exception):
    """A claim that does not follow."""


# --- reading ---


def field(record: Any, key: str) -> Any:
    """An entry that must be there."""
    if not isinstance(record, dict) or key not in record:
        raise Unreadable(f"there is no entry {key!r} where one must be")
    return record[key]


def number(record: Any, key: str, low: float = -math.inf, high: float = math.inf) -> float:
    """A finite number in [low, high]."""
    value = field(record, key)
    if type(value) not in (int, float) or not math.isfinite(value) or not low <= value <= high:
        raise Unreadable(f"{key} is {value!r}, and must be a number from {low:g} to {high:g}")
    return value


def whole(record: Any, key: str, low: int = 0) -> int:
    """A whole number of at least low."""
    if type(field(record, key)) is not int:
        raise Unreadable(f"{key} must be a whole number")
    return int(number(record, key, low, 1e15))


def votes_of(evidence: Any, key: str) -> list[int]:
    """Votes by class."""
    counts = field(evidence, key)
    if not isinstance(counts, list) or not counts or any(type(c) is not int or not 0 <= c <= 1e15 for c in counts):
        raise Unreadable(f"{key} must be a list of whole numbers of at least 0")
    return counts


def norm_of(record: Any, key: str = "norm") -> float | None:
    """A norm: 1, 2 or infinity; None where the record has none."""
    value = field(record, key)
    if value is not None and (isinstance(value, bool) or value not in (1, 2, "inf")):
        raise Unreadable(f"{key} must be 1, 2 or inf, got {value!r}")
    return math.inf if value == "inf" else value


def tensors_of(entry: Any, folder: Path) -> dict[str, np.ndarray]:
    """Tensors in float64: written out in the JSON, or in a safetensors file that is named by its own SHA-256."""
    if not isinstance(entry, dict):
        raise Unreadable("tensors must be an object")
    if "file" not in entry:
        return {name: _finite(np.array(field(t, "data"), FLOATS[field(t, "dtype")])) for name, t in entry.items()}
    name = str(entry["file"])
    if Path(name).name != name or not (folder / name).is_file():
        raise Unreadable(f"the file {name}, which holds tensors of this certificate, must lie beside it")
    data = (folder / name).read_bytes()
    if f"{hashlib.sha256(data).hexdigest()}.safetensors" != name:
        raise Wrong(f"the file {name} does not match the hash in its name: it was changed or is damaged")
    begin = 8 + int.from_bytes(data[:8], "little")
    found = {}
    for name, tensor in json.loads(data[8:begin]).items():
        if name != "__metadata__":
            first, end = tensor["data_offsets"]
            raw = np.frombuffer(data[begin + first : begin + end], FLOATS[tensor["dtype"]])
            found[name] = _finite(raw.reshape(tensor["shape"]))
    return found


def _finite(array: np.ndarray) -> np.ndarray:
    if not (array.size and np.isfinite(array).all()):
        raise Unreadable("a tensor is empty or holds numbers that are not finite")
    return array.astype(np.float64)


# --- from votes to probabilities ---


def turning_point(holds: Callable[[float], bool], low: float, high: float) -> float:
    """Where ``holds``, true at low and false at high, changes: by halving, to the last digit."""
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def at_least(k: int, n: int, alpha: float) -> float:
    """Clopper–Pearson from its definition: the largest p under which k or more of n votes are as rare as α."""
    return 0.0 if k == 0 else turning_point(lambda p: bool(stats.binom.sf(k - 1, n, p) <= alpha), 0.0, 1.0)


def parted(k: int, other: int, n: int) -> float:
    """The smallest α at which a lower bound from k of n votes is above an upper one from fewer, each at α/2.

    A level at which they part is found where one tail, which rises with p, meets the other, which falls: at any p the
    smaller of the two is not above it.
    """

    def tails(p: float) -> tuple[float, float]:
        return float(stats.binom.sf(k - 1, n, p)), float(stats.binom.cdf(other, n, p))

    met = turning_point(lambda p: tails(p)[0] <= tails(p)[1], 0.0, 1.0)
    return min(1.0, 2 * min(tails(met)))


def at_most_net(lost: int, gained: int, n: int, alpha: float) -> float:
    """The mean, at least 0, from which on every value is rejected by one who bets that less is lost, net of gains.

    He has a quarter of his money on each of four bets b; a vote x multiplies it by 1 − b(x − mean), x being 1 where it was
    lost, −1 where it was gained, else 0.
    """

    def open_to(mean: float) -> bool:
        logs = [
            lost * math.log(1 - b * (1 - mean)) + gained * math.log(1 + b * (1 + mean))
            + (n - lost - gained) * math.log(1 + b * mean)
            for b in (0.7, 0.45, 0.25, 0.12)
        ]  # fmt: skip
        top = max(logs)
        return top + math.log(sum(math.exp(each - top) for each in logs) / 4) < -math.log(alpha)

    if not open_to(0.0):
        return 0.0
    return 1.0 if open_to(1.0) else turning_point(open_to, 0.0, 1.0)


def at_least_joint(k: int, n: int, lost: int, gained: int, m: int, alpha: float) -> float:
    """The largest p under which k/n − (lost − gained)/m, or more, is as rare as α says, however many votes change.

    k of n votes are the old classifier's, the others those of m pairs. At most ``changed`` of the votes change, but with
    probability MOVED·α; the rest of α is the test's.
    """
    changed = 1 - at_least(m - lost - gained, m, MOVED * alpha)
    if m * changed > 1e8:
        raise NotChecked("so many votes in pairs change that this would take too long")
    span = math.ceil(10 * math.sqrt(m * changed)) + 60

    def over(p: float) -> float:
        ends = [min(1.0, max(0.0, p + changed * (2 * i / PARTS - 1))) for i in range(PARTS + 1)]
        if p < changed or p > 1 - changed:  # the parts are of equal width
            ends = np.linspace(ends[0], ends[-1], PARTS + 1).tolist()
        most = max(reached(p, *each) for each in itertools.pairwise(ends))
        return float(stats.norm.ppf(min(most, 1 - 1e-16)) - stats.norm.ppf((1 - MOVED) * alpha))

    def reached(p: float, low: float, high: float) -> float:
        """At most this often, if p_old is from low to high: the mean of h over the votes lost net of those gained."""
        net = min(changed, max(-changed, low - p))
        values, chances = net_votes((changed + net) / 2, (changed - net) / 2, m, span)
        least = k + n * (values - lost + gained) / m
        h = stats.binom.sf(np.floor(least) - 1, n, high)
        h -= (least - np.floor(least)) * (h - stats.binom.sf(np.floor(least), n, high))
        falls = -np.diff(h)
        turn = int(falls.argmax())
        if turn == len(falls) - 1:
            return 1.0
        h[:turn] = h[turn] + falls[turn] * np.arange(turn, 0, -1)  # convex: no fewer changes make its mean larger
        return float(chances @ h)

    agreed = math.exp(math.log((1 - MOVED) * alpha) / (n + m))  # not even if all votes agree, p is more
    high = min(agreed, max(0.0, k / n - (lost - gained) / m))
    if over(high) <= 0:
        return high
    return 0.0 if over(0.0) > 0 else float(optimize.brentq(over, 0.0, high, xtol=1e-13, rtol=1e-13))


def net_votes(lost: float, gained: float, m: int, span: int) -> tuple[np.ndarray, np.ndarray]:
    """How many more of m votes are lost than gained, up to ``span`` from the mean, and how likely each number is."""
    size = fft.next_fast_len(2 * span)
    values = round(m * (lost - gained)) - span + np.arange(size)
    turn = np.exp(-2j * np.pi * np.arange(size) / size)
    with np.errstate(divide="ignore"):
        spectrum = np.exp(m * np.log1p(lost * (turn - 1) + gained * (turn.conj() - 1)))
    return values, np.maximum(0.0, np.roll(fft.ifft(spectrum).real, -int(values[0])))


def at_least_randomised(k: int, n: int, alpha: float, uniform: float) -> float:
    """The largest p under which more than k of n votes, and a share of exactly k, are together as rare as α.

    Where all votes agree that share is 2α at least, or else all there is.
    """
    if k == n:
        uniform = min(1.0, max(uniform, 2 * alpha))

    def rare(p: float) -> bool:
        return bool(stats.binom.sf(k, n, p) + uniform * stats.binom.pmf(k, n, p) <= alpha)

    return turning_point(rare, 0.0, 1.0) if rare(0.0) else 0.0


def log_wealth(k: int, n: int, p0: float) -> float:
    """Log wealth of the bettor against "p ≤ p0": the mean, over the prior, of the likelihood ratio of q against p0.

    The prior is Beta(1/2, 1/2) above p0. With q = sin²θ it is uniform in θ, and the likelihood of n votes is a smooth
    bump in θ no wider than a few 1/√n: Gauss–Legendre over the bump gives every digit.
    """
    start, peak, width = math.asin(math.sqrt(p0)), math.asin(math.sqrt(k / n)), 12 / math.sqrt(n)
    low, high = max(start, min(peak - width, math.pi / 2 - width)), min(math.pi / 2, max(peak, start) + width)
    theta = (high + low) / 2 + (high - low) / 2 * NODES
    ratio = k * (2 * np.log(np.sin(theta)) - math.log(p0)) + (n - k) * (2 * np.log(np.cos(theta)) - math.log1p(-p0))
    top = float(ratio.max())
    mean = float(WEIGHTS @ np.exp(ratio - top)) / 2 * (high - low) / (math.pi / 2 - start)
    return top + math.log(mean)


def at_least_anytime(k: int, n: int, alpha: float) -> float:
    """The p below which every value is rejected by the bettor, whenever the votes ended."""
    goal = -math.log(alpha)
    return 0.0 if k == 0 else turning_point(lambda p: p == 0 or log_wealth(k, n, p) >= goal, 0.0, k / n)


def money(p0: float, cap: int, alpha: float, hits: int, votes: int) -> tuple[np.ndarray, np.ndarray]:
    """The alternatives of the bettor who stands at p0, and what he puts on each, having seen the votes that chose the class.

    Sixteen angles above asin √p0, each the same multiple of the last; money by the root of the distance, a quarter more on
    the farthest; then 7 parts in 10 of all of it are dealt out again by what those votes make likely.
    """
    start = math.asin(math.sqrt(p0))
    far = 0.95 * (math.pi / 2 - start)
    near = min(math.sqrt(0.75 * math.log(1 / alpha) / cap), far / 2)
    distance = near * (far / near) ** (np.arange(16) / 15)
    q = np.sin(start + distance) ** 2
    shares = 0.75 * np.sqrt(distance) / np.sqrt(distance).sum() + 0.25 * (np.arange(16) == 15)
    likelihood = hits * np.log(q) + (votes - hits) * np.log1p(-q)
    likely = shares * np.exp(likelihood - likelihood.max())
    return q, 0.3 * shares + 0.7 * likely / likely.sum()


def rejected(p: float, k: int, n: int, goal: float, q: np.ndarray, shares: np.ndarray) -> bool:
    """Whether a bettor who bets on those of his alternatives that exceed p has rejected it."""
    if p <= 0:
        return True
    if p >= k / n:
        return False
    with np.errstate(divide="ignore"):
        growth = np.log(shares) + k * np.log(q / p) + (n - k) * np.log((1 - q) / (1 - p))
    growth = growth[q > p]
    return bool(len(growth) and growth.max() + math.log(np.exp(growth - growth.max()).sum()) >= goal)


def at_least_sequential(
    k: int, n: int, cap: int, alpha: float, chose: tuple[int, int], thresholds: list[float]
) -> float:
    """The p up to which every value is rejected: by the bettor responsible for it, or at the cap by Clopper–Pearson.

    Bettors stand at 1/2 and at each threshold, and are responsible up to half of the way to the next, in the angle.
    """
    at_cap = at_least(k, n, CAP_SHARE * alpha) if n == cap else 0.0
    goal, low = -math.log((1 - CAP_SHARE) * alpha), 0.0
    stands = sorted({0.5, *thresholds})
    for stand, following in zip(stands, [*stands[1:], None], strict=True):
        middle = 0.0 if following is None else (math.asin(math.sqrt(stand)) + math.asin(math.sqrt(following))) / 2
        end = 1.0 if following is None else math.sin(middle) ** 2
        q, shares = money(stand, cap, alpha, *chose)
        if rejected(end, k, n, goal, q, shares):
            low = end
            continue
        found = turning_point(lambda p: p <= low or rejected(p, k, n, goal, q, shares), low, end)  # noqa: B023
        return max(at_cap, found)
    return max(at_cap, low)


# --- from probabilities to radii ---


def gaussian_quantile(p: float) -> float:
    """Φ⁻¹(p)."""
    return NormalDist().inv_cdf(p) if 0 < p < 1 else math.copysign(math.inf, p - 0.5)


def laplace_quantile(p: float) -> float:
    """The quantile of the unit Laplace distribution."""
    if not 0 < p < 1:
        return math.copysign(math.inf, p - 0.5)
    return math.log(2 * p) if p < 0.5 else -math.log(2 * (1 - p))


def general_quantile(p: float, beta: float) -> float:
    """The quantile of a coordinate with density ∝ exp(−|z|^β)."""
    if not beta >= 1:
        raise Wrong("general normal noise has a known radius for an exponent of at least 1 only")
    return float(stats.gennorm.ppf(p, beta)) if p < 0.5 else float(stats.gennorm.isf(1 - p, beta))


def radius_of(law: Any, norm: float, dim: int, p_a: float, p_b: float | None) -> float:
    """R at top-class probability p_a, every other class having at most p_b (None: 1 − p_a)."""
    name, lam = field(law, "name"), number(law, "scale", 0)
    if "module" in law or name not in NORMS:
        raise NotChecked(f"the law {name} does not come with UCAN")
    if norm not in NORMS[name]:
        raise Wrong(f"{name} noise has no known radius against {show(norm)}")
    rest = 1 - p_a if p_b is None else min(p_b, 1 - p_a)
    gap = p_a - rest
    if gap <= 0:
        return 0.0
    if name == "Gaussian":
        root = math.sqrt(dim) if norm == math.inf else 1
        return lam * (gaussian_quantile(p_a) - gaussian_quantile(rest)) / 2 / root
    if name == "Laplace" or (name == "ExpInf" and (norm == math.inf or dim == 1)):
        return lam * (laplace_quantile(p_a) - laplace_quantile(rest)) / 2
    if name == "GeneralNormal":
        beta = number(law, "beta")
        return lam * (general_quantile(p_a, beta) - general_quantile(rest, beta)) / 2
    if name == "Uniform":
        return lam * gap if norm == 1 else -2 * lam * math.expm1(math.log1p(-gap / 2) / dim)
    if name == "ExpInf":
        return lam * gap * dim
    a = number(law, "a")
    if a <= dim:
        raise Wrong(f"a power law with exponent {a:g} is no distribution in dimension {dim}")
    return lam * gap * dim / (a - dim)


def crossing_of(law: Any, norm: float, dim: int, p: float, floor: float) -> float:
    """How far a set of probability p can be moved, at least, before it has less than ``floor``; 0 if it has."""
    name, lam = field(law, "name"), number(law, "scale", 0)
    if "module" in law or name not in NORMS:
        raise NotChecked(f"the law {name} does not come with UCAN")
    if p <= floor:
        return 0.0
    if name == "Gaussian" and norm == 2:
        return lam * (gaussian_quantile(p) - gaussian_quantile(floor))
    if (name == "Laplace" and norm == 1) or (name == "ExpInf" and (norm == math.inf or dim == 1)):
        return lam * (laplace_quantile(p) - laplace_quantile(floor))
    if name == "GeneralNormal" and norm == 1:
        beta = number(law, "beta")
        return lam * (general_quantile(p, beta) - general_quantile(floor, beta))
    if name == "Uniform":
        return 2 * lam * (p - floor) if norm == 1 else -2 * lam * math.expm1(math.log1p(floor - p) / dim)
    raise NotChecked(f"how {name} noise carries a threshold in {show(norm)} is not known here")


def shifted(law: Any, norm: float, dim: int, p: float, r: float) -> float:
    """T_r(p): the least probability of a set of probability p after a move of size r."""
    name, lam = field(law, "name"), number(law, "scale", 0)
    if "module" in law or name not in NORMS:
        raise NotChecked(f"the law {name} does not come with UCAN")
    if norm not in NORMS[name]:
        raise Wrong(f"{name} noise has no known radius against {show(norm)}")
    if p <= 0:
        return 0.0
    if name == "Gaussian":
        root = math.sqrt(dim) if norm == math.inf else 1
        return math.erfc((r * root / lam - gaussian_quantile(p)) / math.sqrt(2)) / 2
    if name == "Laplace" or (name == "ExpInf" and (norm == math.inf or dim == 1)):
        end = laplace_quantile(p) - r / lam
        return math.exp(end) / 2 if end < 0 else 1 - math.exp(-end) / 2
    if name == "GeneralNormal":
        return float(stats.gennorm.cdf(general_quantile(p, number(law, "beta")) - r / lam, number(law, "beta")))
    if name == "Uniform":
        lost = r / (2 * lam) if norm == 1 else 1 - max(0.0, 1 - r / (2 * lam)) ** dim
    elif name == "ExpInf":
        lost = r / (2 * dim * lam)
    else:
        a = number(law, "a")
        if a <= dim:
            raise Wrong(f"a power law with exponent {a:g} is no distribution in dimension {dim}")
        lost = r * (a - dim) / (2 * dim * lam)
    return max(0.0, p - lost)


# --- from the region to balls and volumes ---


@dataclass
class Shape:
    """What is needed of Σ: ‖Σ⁻¹‖ from the asked norm to the region's, log|det Σ|, and what rounding may change of them."""

    inverse_norm: float
    log_det: float
    rounding: float = 0.0


def shape_of(entry: Any, folder: Path, dim: int, q: float, p: float) -> Shape:
    """Σ measured by dense matrices, block by block; a diagonal one entry by entry."""
    sigma = diagonal_of(entry, folder, dim)
    if sigma is not None:
        return Shape(joined(1 / sigma, q, p), float(np.log(sigma).sum()))
    inverse = inverse_of(entry, folder, dim)
    norms = np.array([block_norm(block, q, p) for block in inverse.blocks])
    return Shape(measured(joined(norms, q, p)), inverse.log_det, inverse.rounding)


@dataclass
class Inverse:
    """Σ⁻¹ by its blocks along the diagonal, log|det Σ|, and what rounding may change of them."""

    blocks: list[np.ndarray]
    log_det: float
    rounding: float


def inverse_of(entry: Any, folder: Path, dim: int) -> Inverse:
    """Σ inverted, block by block."""
    kind, tensors = field(entry, "kind"), tensors_of(field(entry, "tensors"), folder)
    inverses, log_det, rounding = [], 0.0, 0.0
    for block in blocks_of(kind, tensors):
        try:
            inverses.append(np.linalg.inv(block))
        except np.linalg.LinAlgError as error:
            raise Wrong("Σ cannot be inverted") from error
        log_det += float(np.linalg.slogdet(block)[1])
        rounding = max(rounding, 2.0**-50 * float(np.linalg.norm(block) * np.linalg.norm(inverses[-1])))
    if not rounding <= 0.01:
        raise NotChecked("Σ is so nearly singular that its inverse cannot be trusted")
    if (size := sum(map(len, inverses))) != dim:
        raise Wrong(f"Σ acts on {size} dimensions, and the region has {dim}")
    if kind == "Basis":  # |det Q| = 1, up to the rounding of Q
        log_det = float(np.log(tensors["s"]).sum())
    return Inverse(inverses, log_det, rounding)


def diagonal_of(entry: Any, folder: Path, dim: int) -> np.ndarray | None:
    """The scales of a scalar or a diagonal Σ; None for any other."""
    if (kind := field(entry, "kind")) not in ("Scalar", "Diagonal"):
        return None
    sigma = np.full(dim, float(number(entry, "value"))) if kind == "Scalar" else None
    sigma = tensors_of(field(entry, "tensors"), folder)["sigma"].ravel() if sigma is None else sigma
    if len(sigma) != dim or not (sigma > 0).all():
        raise Wrong(f"Σ needs {dim} scales above 0")
    return sigma


def blocks_of(kind: str, tensors: dict[str, np.ndarray]) -> Iterator[np.ndarray]:
    """The dense matrices along the diagonal of Σ."""
    if any(len(t) > LARGEST for t in tensors.values()) or math.prod(tensors.get("s", np.ones(1)).shape[-2:]) > LARGEST:
        raise NotChecked(f"Σ of the kind {kind} is larger than {LARGEST} × {LARGEST}")
    if kind == "Dense":
        yield tensors["matrix"]
    elif kind == "BlockDiagonal":
        yield from (tensors[f"blocks.{i}"] for i in range(len(tensors)))
    elif kind == "LowRank":
        if not (tensors["diag"] > 0).all():
            raise Wrong("the diagonal of a low-rank Σ must be above 0")
        yield np.diag(tensors["diag"].ravel()) + tensors["factor"] @ tensors["factor"].T
    elif kind == "Spiked":
        f, base = tensors["factor"], float(tensors["base"].ravel()[0])
        sigma = base * np.eye(len(f)) + (f * tensors["gains"].ravel()) @ f.T
        if not (base > 0 and np.linalg.eigvalsh(sigma)[0] > 0):
            raise Wrong("a spiked Σ must be positive definite")
        yield sigma
    elif kind == "Basis":
        q, s = tensors["basis"], tensors["s"].ravel()
        if not (s > 0).all() or np.linalg.norm(q.T @ q - np.eye(len(q)), 2) > 1e-4:
            raise Wrong("the scales of a basis must be above 0, and its columns orthonormal")
        yield q * s
    elif kind == "DCT":
        s = tensors["s"]
        if not (s > 0).all():
            raise Wrong("the scales of the cosine basis must be above 0")
        height, width = s.shape[-2:]
        units = np.eye(height * width).reshape(-1, height, width)
        cosines = fft.idctn(units, axes=(1, 2), norm="ortho").reshape(height * width, -1).T
        yield from (cosines * channel for channel in s.reshape(-1, height * width))
    else:
        raise NotChecked(f"Σ of the kind {kind!r} is unknown")


def block_norm(a: np.ndarray, q: float, p: float) -> float:
    """‖A‖_(q→p): exact, or for ∞→2, ∞→1 and 2→1, which nobody can compute, the smaller of two bounds from above."""
    if q == 1:
        return float(np.linalg.norm(a, ord=p, axis=0).max())
    if p == math.inf:
        return float(np.linalg.norm(a, ord=1 if q == math.inf else 2, axis=1).max())
    spectral, root = float(np.linalg.norm(a, 2)), math.sqrt(len(a))
    if q == p:
        return spectral
    if q == 2:
        return min(root * spectral, float(np.linalg.norm(np.abs(a).sum(0))))
    return min((root if p == 2 else len(a)) * spectral, float(np.linalg.norm(np.abs(a).sum(1), ord=p)))


def joined(norms: np.ndarray, q: float, p: float) -> float:
    """‖·‖_(q→p) of a block-diagonal matrix from its blocks' norms: the largest for q ≤ p, else their s-norm."""
    return float(norms.max()) if q <= p else length(norms, 1 / (1 / p - 1 / q))


def length(entries: np.ndarray, p: float) -> float:
    """‖entries‖ₚ, also where the square of an entry is no number."""
    most = float(np.abs(entries).max(initial=0))
    return most * float(np.linalg.norm(entries / most, ord=p)) if 0 < most < math.inf else most


def measured(size: float) -> float:
    """A size, if the squares that it is made of are numbers of full precision."""
    if not size >= LEAST_SIZE:
        raise NotChecked(f"a size of {size:g} in units of the noise is too small to be measured")
    return size


# --- from the region to budgets ---


@dataclass
class Budget:
    """A limit for every coordinate, or for every group of coordinates; ``groups`` has the group of each, or is None."""

    limits: np.ndarray
    groups: np.ndarray | None


def budget_of(entry: Any, folder: Path, dim: int) -> Budget:
    """The budget of a certificate about so many coordinates."""
    shape, tensors = field(entry, "shape"), tensors_of(entry["tensors"], folder) if "tensors" in entry else {}
    if not isinstance(shape, list) or any(type(s) is not int or s < 1 for s in shape) or math.prod(shape) != dim:
        raise Wrong(f"the budget is of the shape {shape}, and the region has {dim} dimensions")
    groups = tensors["groups"] if "groups" in tensors else entry.get("groups")
    count = dim if groups is None else whole(entry, "count", 1)
    limits = np.asarray(tensors["limits"] if "limits" in tensors else field(entry, "limits"), np.float64)
    limits = np.full(count, float(limits)) if limits.ndim == 0 else limits.ravel()
    if len(limits) != count or not ((limits >= 0) & (limits <= 1e100)).all() or not limits.any():
        raise Wrong(f"a budget has {count} finite limits of at least 0 here, not all of them 0")
    limits = np.where(limits > 0, np.maximum(limits, LEAST_LIMIT), 0.0)
    if groups is None:
        return Budget(limits, None)
    numbers = np.asarray(groups, np.float64).ravel()
    if len(numbers) != dim or not ((numbers >= 0) & (numbers < count) & (numbers % 1 == 0)).all():
        raise Wrong(
            f"every one of the {dim} coordinates is in one of the {count} groups, and these numbers say otherwise"
        )
    return Budget(limits, numbers.astype(np.int64))


def budget_size(budget: Budget, weight: np.ndarray, p: float) -> float:
    """The largest ‖weight∘δ‖ₚ over the budget; weight is 1/σ. Each group has its worst case by itself."""
    if budget.groups is None:
        return measured(length(budget.limits * weight, p))
    worst = np.zeros(len(budget.limits))
    if p == 1:  # by Cauchy and Schwarz the most of Σ wᵢ|δᵢ| where ‖δ‖₂ ≤ b is b‖w‖₂
        np.hypot.at(worst, budget.groups, weight)
    else:
        np.maximum.at(worst, budget.groups, weight)
    return measured(length(budget.limits * worst, p))


def full_size(budget: Budget, inverse: Inverse, p: float) -> float:
    """An upper bound on ‖Σ⁻¹δ‖ₚ over the budget for a full Σ; exact for p = ∞ and where few coordinates of a box change."""
    if budget.groups is None:  # each block has its worst case by itself
        starts = np.cumsum([len(block) for block in inverse.blocks])[:-1]
        pieces = zip(inverse.blocks, np.split(budget.limits, starts), strict=True)
        return measured(float(np.linalg.norm([box_size(block, limits, p) for block, limits in pieces], ord=p)))
    a = linalg.block_diag(*inverse.blocks)
    rows = np.zeros((len(a), len(budget.limits)))
    np.hypot.at(rows.T, budget.groups, a.T)
    by_rows = float(np.linalg.norm(rows @ budget.limits, ord=p))
    counts = np.bincount(budget.groups, minlength=len(budget.limits))
    lengths = {1: budget.limits @ np.sqrt(counts), 2: np.linalg.norm(budget.limits), math.inf: budget.limits.max()}
    spectral = np.linalg.norm(a * box_of(budget), 2) * math.sqrt((budget.limits > 0).sum())
    return measured(min(by_rows, by_balls(inverse.blocks, lengths, float(spectral), p)))


def box_size(a: np.ndarray, limits: np.ndarray, p: float) -> float:
    """An upper bound on ‖Aδ‖ₚ over |δᵢ| ≤ bᵢ: by all corners if they are few, else the smallest of several bounds."""
    free = np.flatnonzero(limits)
    if len(free) == 0:
        return 0.0
    if len(free) <= CORNERS:  # a convex function is largest at a corner; opposite corners are alike
        signs = 1 - 2.0 * ((np.arange(2 ** (len(free) - 1))[:, None] >> np.arange(len(free))) & 1)
        return float(np.linalg.norm((signs * limits[free]) @ a[:, free].T, ord=p, axis=1).max())
    by_rows = float(np.linalg.norm(np.abs(a) @ limits, ord=p))
    lengths = {q: np.linalg.norm(limits, ord=q) for q in (1, 2, math.inf)}
    spectral = np.linalg.norm(a * limits, 2) * math.sqrt(len(free))
    return min(by_rows, by_balls([a], lengths, float(spectral), p))


def by_balls(blocks: list[np.ndarray], lengths: dict[float, Any], spectral: float, p: float) -> float:
    """Upper bounds on ‖Aδ‖ₚ from one on ‖Aδ‖₂, and from the lengths of δ in each norm."""
    if p == math.inf:  # the rows are exact
        return math.inf
    over = (joined(np.array([block_norm(a, q, p) for a in blocks]), q, p) * float(n) for q, n in lengths.items())
    return min(spectral * (1 if p == 2 else math.sqrt(sum(map(len, blocks)))), *over)


def full_reach(budget: Budget, inverse: Inverse, p: float) -> float:
    """A lower bound on the largest ‖Σ⁻¹δ‖ₚ over the budget: a change that reaches it is found by climbing."""
    starts = np.cumsum([len(block) for block in inverse.blocks])[:-1]
    if budget.groups is None and all((b > 0).sum() <= CORNERS for b in np.split(budget.limits, starts)):
        return full_size(budget, inverse, p)
    a = linalg.block_diag(*inverse.blocks)
    _, _, directions = np.linalg.svd(a * box_of(budget), full_matrices=False)
    row = max(a, key=lambda row: float(row @ most_along(budget, row)))  # which is exact for p = ∞
    best = 0.0
    for start in (directions[0], row, np.ones(a.shape[1])):
        delta = most_along(budget, start)
        for _ in range(CLIMBS):
            image = a @ delta
            best = max(best, float(np.linalg.norm(image, ord=p)))
            slope = np.sign(image) if p == 1 else image if p == 2 else np.eye(len(a))[np.abs(image).argmax()]
            delta = most_along(budget, slope @ a)
    return best


def box_of(budget: Budget) -> np.ndarray:
    """The limit of every coordinate by itself."""
    return budget.limits if budget.groups is None else budget.limits[budget.groups]


def most_along(budget: Budget, direction: np.ndarray) -> np.ndarray:
    """The change within the budget that goes furthest in a direction."""
    if budget.groups is None:
        return budget.limits * np.where(direction < 0, -1.0, 1.0)
    squares = np.zeros(len(budget.limits))
    np.add.at(squares, budget.groups, direction**2)
    lengths = np.sqrt(squares)[budget.groups]
    return box_of(budget) * np.divide(direction, lengths, out=np.zeros_like(direction), where=lengths > 0)


def uniform_box(law: Any, share: np.ndarray, p_a: float, p_b: float | None) -> float:
    """The largest ε with Π(1 − ε·share/(2λ)) ≥ 1 − gap/2: the volume that two boxes of uniform noise do not share."""
    half, gap = share / (2 * number(law, "scale", 0)), p_a - (1 - p_a if p_b is None else min(p_b, 1 - p_a))
    if gap <= 0:
        return 0.0
    target, most = math.log1p(-gap / 2), 1 / float(half.max())
    return turning_point(lambda e: e < most and float(np.log1p(-e * half).sum()) >= target, 0.0, most)


# --- the checks ---


def show(norm: float) -> str:
    """The norm as people write it."""
    return "ℓ∞" if norm == math.inf else f"ℓ{norm:g}"


def follows(what: str, claimed: float, limit: float, slack: float = SLACK) -> str:
    """That a claim is not above what follows, in words."""
    if not claimed <= limit + slack * abs(limit):
        raise Wrong(f"{what} {claimed:.12g} is claimed, and no more than {limit:.12g} follows")
    return f"{what} {claimed:.12g} is not above {limit:.12g}" + (f" (to {slack:.1g})" if slack > SLACK else "")


class Claim:
    """One outcome and the checks of it; each answers in words, or raises ``Wrong`` or ``NotChecked``."""

    formats: tuple[int, ...] = (1, 2, 3)
    kinds: tuple[str, ...] = ("certificate", "abstention", "prediction", "level")

    def __init__(self, record: Any, folder: Path) -> None:
        self.record, self.folder, self.evidence = record, folder, field(record, "evidence")
        self.kind, self.format = field(record, "kind"), field(record, "format")
        if self.format not in self.formats or self.kind not in self.kinds:
            raise Unreadable(f"this is a {self.kind!r} of format {self.format!r}, which is unknown")
        # An abstention that claims nothing may have had no vote: a deadline came first.
        self.nothing = self.kind == "abstention" and record.get("p_lower") == 0
        self.counts, self.n = votes_of(self.evidence, "counts"), whole(self.evidence, "n", 0 if self.nothing else 1)
        self.alpha, self.bound = number(self.evidence, "alpha", 1e-300, 1 - 2.0**-53), field(self.evidence, "bound")
        old = self.evidence.get("generator")
        self.told = field(self.evidence, "noise") if old is None else {"line": old}
        self.old = self.told.get("kind") is None
        for holder, key in ((self.evidence, "streams"), (self.told, "settings")):
            if not isinstance(holder.get(key, {}), dict):
                raise Unreadable(f"{key} must be an object")
        self.asked = norm_of(record)
        if self.kind in ("certificate", "level"):
            self.place()
        if self.kind == "certificate":
            self.p_a = number(record, "p_lower", 0, 1)
            self.p_b = None if field(record, "p_upper") is None else number(record, "p_upper", 0, 1)

    def place(self) -> None:
        """Read the region."""
        self.region = field(self.record, "region")
        shape = field(self.region, "shape")
        if not isinstance(shape, list) or not shape or any(type(s) is not int or s < 1 for s in shape):
            raise Unreadable("the region's shape must be a list of whole numbers above 0")
        self.dim, self.R = math.prod(shape), number(self.region, "radius", 0)
        self.norm = norm_of(self.region)
        if self.norm is None:
            raise Unreadable("the region has no norm")
        self.asked = self.norm if self.asked is None else self.asked

    def checks(self) -> dict[str, Callable[[], str]]:
        """The checks of this kind of outcome, in order."""
        every: dict[str, Callable[[], str]] = {"votes": self.votes, "settings": self.settings}
        if self.record.get("choice") is not None:
            every["choice"] = self.choice
        if self.kind == "abstention":
            return {**every, "bound": self.abstained}
        if self.kind == "level":
            return {**every, "scope": self.scope, "side": self.side, "region": self.kept, "radius": self.radius}
        every = {**every, "scope": self.scope, "class": self.chosen}
        if self.kind == "prediction":
            return {**every, "test": self.test}
        every |= {"bound": self.bounds, "region": self.regions, "radius": self.radius, "size": self.size}
        return {**every, "budget": self.budget} if "budget" in self.record or "budget_factor" in self.record else every

    def choice(self) -> str:
        """The choice of a router is about the same input and norm, and its answer claims no more; it has its own checks."""
        choice = Claim(self.record["choice"], self.folder)
        if self.format != 3 or choice.kind == "abstention" or choice.record.get("choice") is not None:
            raise Wrong("the choice of a router is a certificate, a level or a prediction of its own, in format 3")
        answer = None if self.kind == "abstention" else whole(self.record, "prediction")
        if choice.kind == "level" and answer is not None and whole(choice.record, "top") != answer:
            raise Wrong("what is claimed of a threshold is about another class than the answer")
        mine, other = (field(claim.evidence, "exact_hash") for claim in (self, choice))
        # A prediction is about no norm, although a level that it has for its choice has a region.
        asked = choice.asked if self.kind == "certificate" else norm_of(choice.record)
        if mine is None or mine != other or self.asked != asked:
            raise Wrong("the choice is about another input or another norm")
        if field(self.record, "scope") == "pipeline" and field(choice.record, "scope") != "pipeline":
            raise Wrong("the scope is pipeline, and that of the choice is not")
        if choice.kind == "level":
            self.above_floor(choice.record)
        if self.kind != "certificate":
            return "the choice is about the same input"
        entries = [claim.record.get("budget") for claim in (self, choice)]
        mine, other = ({k: v for k, v in (entry or {}).items() if k != "name"} for entry in entries)
        if mine != other:
            raise Wrong("the choice is about another budget")
        for name in ("radius", "budget_factor"):
            if name in self.record:
                follows(name, number(self.record, name, 0), number(choice.record, name, 0))
        return "the choice is about the same input, and no more is claimed than it covers"

    def above_floor(self, level: dict[str, Any]) -> None:
        """Where expert 0 answers, allowed by a veto, its class keeps more than the floor, and not only the lead."""
        floor = number(level, "floor", 0.5, 1 - 2.0**-53) if "floor" in level else 0.5
        allows = field(level, "above") is True and whole(level, "of") == 1
        if floor > 0.5 and not allows:
            raise Wrong("a floor is claimed of an answer that no veto allows")
        if self.kind == "prediction" and allows:
            least = float(stats.binom.sf(self.counts[whole(self.record, "prediction")] - 1, self.n, floor))
            if number(self.record, "p_value", 0, 1) < least * (1 - SLACK):
                raise Wrong(f"the p-value against {floor:g} is {least:.12g}, and less is claimed")
        if self.kind == "certificate" and allows and (floor > 0.5 or self.p_b is not None):
            limit = crossing_of(field(self.evidence, "law"), self.norm, self.dim, self.p_a, floor) - self.rounding()
            follows(f"a region with more than {floor:g} of radius", self.R, limit)

    def side(self) -> str:
        """The bound on p follows from the votes at α/2, and p is on its side of the threshold."""
        if self.bound != "binary":
            raise Wrong(f"a level is bounded by the binary bound, and this one is {self.bound!r}")
        top, p, threshold = whole(self.record, "top"), number(self.record, "p", 0, 1), number(self.record, "threshold")
        if top >= len(self.counts) or not 0 < threshold < 1 or (p > threshold) != field(self.record, "above"):
            raise Wrong("the class is none of the votes', or p is not on its side of the threshold")
        if self.record["above"]:
            return follows(f"p of class {top}", p, at_least(self.counts[top], self.n, self.alpha / 2))
        most = max((count for c, count in enumerate(self.counts) if c != top), default=0)
        least = 1 - at_least(self.n - most, self.n, self.alpha / 2)
        if p < least * (1 - SLACK):
            raise Wrong(f"at most {p:.12g} is claimed of every class but {top}, and {least:.12g} follows")
        return f"p of every class but {top}, {p:.12g}, is not below {least:.12g}"

    def kept(self) -> str:
        """The radius of the region in which a bounded probability stays on its side of the threshold."""
        law, p, threshold = (
            field(self.evidence, "law"),
            number(self.record, "p", 0, 1),
            number(self.record, "threshold"),
        )
        have, floor = (p, threshold) if field(self.record, "above") else (1 - p, 1 - threshold)
        kind, own, _ = self.noise()
        if not own or kind not in KINDS:
            raise NotChecked(f"noise of the kind {kind!r} is unknown: it may make another region")
        limit = crossing_of(law, self.norm, self.dim, have, floor) - self.rounding()
        return follows(f"{show(self.norm)} region of radius", self.R, limit)

    def votes(self) -> str:
        """The votes add up to n."""
        total = sum(self.counts) + whole(self.evidence, "invalid")
        if total != self.n:
            raise Wrong(f"the votes add up to {total}, and n is {self.n}")
        return f"{self.n} votes on {len(self.counts)} classes add up"

    def settings(self) -> str:
        """A bound for a fixed number of votes has that number; α is a level."""
        cap, stop = self.evidence.get("cap"), self.evidence.get("stop")
        if cap is not None and self.n > whole(self.evidence, "cap", 1):
            raise Wrong(f"{self.n} votes were counted, and {cap} were planned")
        if self.bound in FIXED and (stop is not None or cap not in (None, self.n)) and not self.nothing:
            raise Wrong(
                f"the {self.bound} bound needs a fixed number of votes, and sampling ended at {self.n} of {cap}"
            )
        family = whole(self.evidence, "family", 1) if "family" in self.evidence else 1
        return f"bound {self.bound}, alpha {self.alpha:g}" + (f", one of {family} claims" if family > 1 else "")

    def noise(self) -> tuple[str, bool, dict[str, Any]]:
        """The kind of the noise, whether it comes with UCAN, and its settings; version 0.1 has a line, Composed(ℓ∞, …)."""
        if self.old:
            name, _, rest = str(self.told.get("line")).partition("(")
            return name, True, {"norm": {"ℓ∞": "inf", "ℓ2": 2}.get(rest.partition(",")[0])}
        own = str(field(self.told, "module")).startswith("ucan.generators.")
        return str(self.told["kind"]), own, field(self.told, "settings")

    def scope(self) -> str:
        """Noise that follows the input does not carry the scope pipeline; the guarantee in words is that of the scope."""
        scope = field(self.record, "scope")
        if not isinstance(scope, str) or scope not in GUARANTEES:
            raise Unreadable(f"the scope {scope!r} is unknown")
        if "guarantee" in self.record and self.record["guarantee"] not in GUARANTEES[scope]:
            raise Wrong(f"the guarantee says {self.record['guarantee']!r}, which is not that of the scope {scope}")
        if scope == "pipeline":
            kind, _, _ = self.noise()
            constant = KINDS.get(kind, kind in ("Composed", CELLS)) if self.old else self.told.get("constant")
            if not constant or KINDS.get(kind) is False:
                raise Wrong(f"nothing shows that {kind} noise is the same at every input: the scope can only be frozen")
        return f"{scope}, as the evidence says of its noise{self.held()}"

    def held(self) -> str:
        """The columns that had no noise: the claim covers no change of them."""
        held = self.evidence.get("held")
        if held is None:
            return ""
        if not isinstance(held, dict) or not held or any(not isinstance(v, int | float | str) for v in held.values()):
            raise Unreadable("held must name columns with their values")
        return f"; {', '.join(held)} had no noise, and no change of them is covered"

    def chosen(self) -> str:
        """The class is the one that the votes of the selection chose."""
        evidence = self.evidence
        while "pairs" in evidence:  # the first of several classifiers that took each other's place has chosen
            evidence = field(evidence["pairs"], "before")
        prediction, selection = whole(self.record, "prediction"), evidence.get("selection")
        if prediction >= len(self.counts):
            raise Wrong(f"class {prediction} is none of the {len(self.counts)}")
        chosen = selection is not None and any(votes_of(evidence, "selection"))
        if not chosen and self.kind == "certificate" and field(evidence, "bound") != "exact":
            if self.old:
                return f"class {prediction}; version 0.1 kept no votes that chose it"
            raise NotChecked("the votes that chose the class are missing")
        votes = votes_of(evidence, "counts" if selection is None else "selection")
        if len(votes) != len(self.counts) or votes[prediction] < max(votes):
            raise Wrong(f"class {prediction} is not the one that the votes {votes} chose")
        if selection is not None and sum(votes) > whole(evidence, "n0"):
            raise Wrong("more votes chose the class than were drawn for that")
        return f"class {prediction} has most of the votes that chose it"

    @property
    def level(self) -> float:
        """The level of the claim: α, or beside a level half of it, since two bounds on the same expert share α.

        The two-class bound is both of them, and shares α itself.
        """
        choice = self.record.get("choice")
        beside = choice is not None and field(choice, "kind") == "level" and self.bound != "two-class"
        return self.alpha / 2 if beside else self.alpha

    def allowed(self, answer: int) -> float:
        """The bound on the probability of a class that the votes allow."""
        return self.allowed_by(self.evidence, answer, self.level)

    def allowed_by(self, evidence: Any, answer: int, alpha: float) -> float:
        """The same of any evidence, at any level."""
        bound, n, hits = field(evidence, "bound"), whole(evidence, "n", 1), votes_of(evidence, "counts")[answer]
        ended = evidence.get("stop") is not None or evidence.get("cap") not in (None, n)
        if bound in FIXED and ended and evidence is not self.evidence:  # of its own, "settings" tells
            raise Wrong(f"the {bound} bound of the votes before needs a fixed number of them")
        if bound == "anytime":
            return at_least_anytime(hits, n, alpha)
        if bound == "sequential":
            return self.sequential(evidence, hits, n, alpha)
        if bound in ("paired", "joint"):
            return self.paired(evidence, answer, n, alpha)
        if bound == "exact":
            self.counted(n)
            return hits / n
        if bound == "randomised":
            return at_least_randomised(hits, n, alpha, self.uniform(evidence))
        if bound not in ("binary", "two-class"):
            raise NotChecked(f"the bound {bound!r} is unknown")
        return at_least(hits, n, alpha if bound == "binary" else alpha / 2)

    def counted(self, n: int) -> None:
        """The votes can be all draws of the noise: there are as many as its cells allow, and the inputs are on its grid."""
        kind, own, settings = self.noise()
        law = field(self.evidence, "law")
        if kind != CELLS or not own or law["name"] != "Uniform":
            raise Wrong(f"the draws of {kind} noise under the law {law['name']} cannot all be counted")
        steps = whole(settings, "steps", 1)
        if not str(self.evidence.get("arithmetic")).startswith(f"grid(1/{steps})"):
            raise Wrong(f"noise that cuts steps of 1/{steps} needs inputs on that grid")
        if self.kind != "certificate":
            return
        sigma = diagonal_of(field(self.region, "scale"), self.folder, self.dim)
        if sigma is None:
            raise Wrong("noise that cuts cells has one scale per coordinate")
        exact = np.unique(2 * number(law, "scale", 0) * steps * sigma)
        widths = [round(float(width)) for width in exact]
        if min(widths) < 1 or np.abs(exact / widths - 1).max() > 1e-9 or n != math.lcm(*widths):
            raise Wrong(f"{n} votes are not all draws of cells {widths[:4]} steps wide")

    def uniform(self, evidence: Any) -> float:
        """The number of a randomised bound: 52 bits of a hash of the stream's key, which follows from a seed that is told."""
        phase, seed = field(evidence, "phase"), evidence.get("seed")
        if phase != "estimate":
            raise Wrong(f"a randomised bound is for votes of the phase estimate, and these are of {phase!r}")
        key = field(field(evidence, "streams"), phase)
        if seed is not None:
            text = f"{seed}/{field(evidence, 'input_hash')}/{phase}"
            if type(seed) is not int or hashlib.sha256(text.encode()).hexdigest() != key:
                raise Wrong("the stream's key, from which the bound's uniform number follows, is not that of the seed")
        return (int(hashlib.sha256(f"{key}/bound".encode()).hexdigest()[:13], 16) + 0.5) / 2**52

    def paired(self, evidence: Any, answer: int, n: int, alpha: float) -> float:
        """The bound on p before at α/2, less that on what was lost at α/2; or, if gains are told, less the better at α/4.

        If it is a joint one: that of one test of all votes.
        """
        pairs = field(evidence, "pairs")
        before, lost = field(pairs, "before"), whole(pairs, "lost")
        if lost > n - votes_of(evidence, "counts")[answer]:
            raise Wrong(f"{lost} votes in pairs are said to be lost, and fewer went to other classes")
        exact = {each.get("exact_hash") for each in (before, evidence)} - {None}  # version 0.1 had none
        told = [(field(each, "input_hash"), field(each, "law"), each.get("held")) for each in (before, evidence)]
        if told[0] != told[1] or len(exact) > 1:
            raise Wrong("the votes before are about another input, other held columns or another law")
        if len(votes_of(before, "counts")) != len(votes_of(evidence, "counts")):
            raise Wrong("the votes before are on another number of classes")
        if sum(votes_of(before, "counts")) + whole(before, "invalid") != whole(before, "n", 1):
            raise Wrong("the votes before do not add up to their number")
        if not same_noise(before, evidence):
            raise Wrong("the votes before are on another noise, or it was added in another arithmetic")
        if {*before.get("streams", {}).values()} & {*evidence.get("streams", {}).values()}:
            raise Wrong("the votes in pairs are on the noise of the votes before, and must not depend on them")
        if field(evidence, "bound") == "joint":
            field(pairs, "gained")
        loss = 1 - at_least(n - lost, n, alpha / 2)
        if "gained" in pairs:
            gained = whole(pairs, "gained")
            if gained > votes_of(evidence, "counts")[answer]:
                raise Wrong(f"{gained} votes in pairs are said to be gained, and fewer went to the class")
            if evidence["bound"] == "joint":
                return self.joint(before, answer, lost, gained, n, alpha)
            loss = min(1 - at_least(n - lost, n, alpha / 4), at_most_net(lost, gained, n, alpha / 4))
        return max(0.0, self.allowed_by(before, answer, alpha / 2) - loss)

    def joint(self, before: Any, answer: int, lost: int, gained: int, m: int, alpha: float) -> float:
        """One test of the votes before, which must be a fixed number of them, and of those in pairs."""
        bound, n = field(before, "bound"), whole(before, "n", 1)
        ended = before.get("stop") is not None or before.get("cap") not in (None, n)
        if bound not in FIXED[:3] or ended:
            raise Wrong(f"a joint test needs a fixed number of votes before, and their bound is {bound!r}")
        hits = votes_of(before, "counts")[answer]
        if hits > n or lost + gained > m:
            raise Wrong("more votes are told than were drawn")
        return at_least_joint(hits, n, lost, gained, m, REST * alpha)

    def sequential(self, evidence: Any, hits: int, n: int, alpha: float) -> float:
        """The bound of votes that ended when given radii were decided."""
        thresholds = field(evidence, "thresholds")
        if not isinstance(thresholds, list) or not thresholds or any(type(p) is not float for p in thresholds):
            raise Unreadable("thresholds must be a list of numbers")
        if not all(0 < p < 1 for p in thresholds) or thresholds != sorted(set(thresholds)):
            raise Wrong("thresholds must be probabilities, each above the last")
        selection, n0 = votes_of(evidence, "selection"), whole(evidence, "n0")
        if sum(selection) > n0:
            raise Wrong("more votes chose the class than were drawn for that")
        chose = (max(selection), n0)  # the class is the one with most of them
        return at_least_sequential(hits, n, whole(evidence, "cap", 1), alpha, chose, thresholds)

    def bounds(self) -> str:
        """The bounds on the probabilities follow from the votes, and the class leads by them."""
        prediction = whole(self.record, "prediction")
        said = follows("p", self.p_a, self.allowed(prediction))
        if not (self.p_a > 0.5 or (self.p_b is not None and self.p_a > self.p_b)):
            rival = "" if self.p_b is None else f", nor above {self.p_b:.12g}, the bound on every other class"
            raise Wrong(f"p of {self.p_a:.12g} is not above 1/2{rival}: nothing follows, not even at the input itself")
        if (self.bound in ("two-class", "exact")) != (self.p_b is not None):
            raise Wrong(f"p_upper belongs to the two-class and the exact bound, and this one is {self.bound}")
        if self.p_b is None:
            return said
        most = max((c for i, c in enumerate(self.counts) if i != prediction), default=0)
        least = 1 - at_least(self.n - most, self.n, self.level / 2) if self.bound == "two-class" else most / self.n
        if not self.p_b * (1 + SLACK) >= least:
            raise Wrong(f"p of {self.p_b:.12g} at most is claimed for the other classes, and {least:.12g} follows")
        return f"{said}; {self.p_b:.12g} for the others is not below {least:.12g}"

    def abstained(self) -> str:
        """An abstention claims nothing but p_lower, of a class that it need not name."""
        p = number(self.record, "p_lower", 0, 1)
        votes = self.counts if self.evidence.get("selection") is None else votes_of(self.evidence, "selection")
        answer = self.counts.index(max(self.counts)) if self.bound in FIXED[:3] else votes.index(max(votes))
        return follows("p", p, self.allowed(answer)) if p else "nothing is claimed"

    def test(self) -> str:
        """The p-value of a prediction follows, and is at most its level."""
        hits = self.counts[whole(self.record, "prediction")]
        if self.bound == "anytime":
            least = min(1.0, math.exp(-log_wealth(hits, self.n, 0.5)))
        elif self.bound == "top-two" or (self.bound == "two-class" and self.record.get("choice") is None):
            other = sorted(self.counts)[-2] if len(self.counts) > 1 else 0
            least = min(1.0, 2 * float(stats.binom.sf(hits - 1, hits + other, 0.5)))
        elif self.bound == "exact":
            self.counted(self.n)
            least = 0.0 if hits > sorted(self.counts)[-2] else 1.0
        elif self.bound in ("sequential", "paired", "joint"):  # of an answer that a registry took from a certificate
            least = self.level if self.allowed(whole(self.record, "prediction")) > 0.5 else 1.0
        elif self.bound == "two-class" and (choice := self.record.get("choice")) is not None:
            if field(choice, "kind") == "level" and field(choice, "above") is not False:
                raise Wrong("an answer of expert 0 has more than its floor, and two bounds show a lead alone")
            most = max((c for i, c in enumerate(self.counts) if i != self.record["prediction"]), default=0)
            least = parted(hits, most, self.n)
        elif self.bound in FIXED:
            least = float(stats.binom.sf(hits - 1, self.n, 0.5))
        else:
            raise NotChecked(f"the test {self.bound!r} is unknown")
        claimed = number(self.record, "p_value", 0, 1)
        if not claimed >= least * (1 - SLACK):
            raise Wrong(f"the p-value {claimed:.12g} is claimed, and {least:.12g} follows")
        if claimed > self.level and field(self.record, "scope") != "registry":  # a registry keeps to an earlier answer
            raise Wrong(f"the p-value {claimed:.12g} is above its level, {self.level:g}")
        return f"the p-value {claimed:.6g} is not below {least:.6g}"

    def regions(self) -> str:
        """Norm and radius of the region follow from p by the law and the kind of noise."""
        law = field(self.evidence, "law")
        limit = radius_of(law, self.norm, self.dim, self.p_a, self.p_b)
        kind, own, settings = self.noise()
        if (
            not own
            or kind not in (*KINDS, "Composed", CELLS)
            or (kind == "Composed" and {*settings} - COMPOSED_SETTINGS)
        ):
            raise NotChecked(f"noise of the kind {kind!r} is unknown: it may make another region")
        if settings.get("sigma") == "Scalar" and "scale" in settings:
            stated = {"kind": "Scalar", "value": settings["scale"]}
            if field(self.region, "scale") != stated:
                raise Wrong(f"the noise is stated with Σ = {settings['scale']!r}, and the region with another Σ")
        if kind == CELLS and (law["name"] != "Uniform" or not self.norm == self.asked == 1):
            raise Wrong("noise that cuts cells makes ℓ1 regions under the uniform law, and no other")
        gaussian = law["name"] == "Gaussian"
        if kind == "Composed":
            box, ball = bool(settings.get("budget")), field(self.region, "scale") == {"kind": "Scalar", "value": 1.0}
            if not (gaussian and (box or ball) and norm_of(settings) == self.norm == self.asked):
                raise Wrong("composed noise makes Gaussian balls of the norm that it was made for, and no other region")
            if box:
                sigma = diagonal_of(field(self.region, "scale"), self.folder, self.dim)
                if sigma is None or self.norm != math.inf:
                    raise Wrong("composed noise with a budget makes boxes of its limits, and no other region")
                limit = radius_of(law, 2, self.dim, self.p_a, self.p_b) / length(sigma, 2)
        elif self.norm != (2 if gaussian else self.asked):
            raise Wrong(f"{law['name']} noise makes no {show(self.norm)} region against {show(self.asked)}")
        return follows(f"{show(self.norm)} region of radius", self.R, limit - self.rounding())

    def rounding(self) -> float:
        """What the radius must have paid at least where the input was rounded to a grid: that of the attacker's input."""
        arithmetic = str(self.evidence.get("arithmetic", "real"))
        if not arithmetic.endswith(", rounded"):
            return 0.0
        try:
            step = float(Fraction(arithmetic.removeprefix("grid(").removesuffix("), rounded")))
        except (ValueError, ZeroDivisionError) as error:
            raise NotChecked(f"the arithmetic {arithmetic!r} does not tell its step") from error
        others = shape_of(field(self.region, "scale"), self.folder, self.dim, math.inf, self.norm)
        return step / 2 * others.inverse_norm * (1 - 1e-6)

    @property
    def shape(self) -> Shape:
        """Σ, measured for the norm asked for."""
        if not hasattr(self, "_shape"):
            scale, mean = field(self.region, "scale"), None if self.kind == "level" else field(self.record, "mean")
            if mean is not None:  # it does not enter, but its file must be the one that is named
                tensors_of(mean, self.folder)
            self._shape = shape_of(scale, self.folder, self.dim, self.asked, self.norm)
        return self._shape

    def radius(self) -> str:
        """The ball of the norm asked for lies in the region."""
        claimed, slack = number(self.record, "radius", 0), max(SLACK, self.shape.rounding)
        return follows(f"{show(self.asked)} radius", claimed, self.R / self.shape.inverse_norm, slack)

    def size(self) -> str:
        """ALM and log-volume follow from the region; ALM is said in the norm asked for."""
        law, d, slack = field(self.evidence, "law"), self.dim, max(SLACK, self.shape.rounding)
        own, asked = (radius_of(law, q, d, self.p_a, self.p_b) for q in (self.norm, self.asked))
        if self.record.get("choice") is not None:
            if field(self.record, "alm") is not None or field(self.record, "log_volume") is not None:
                raise Wrong("what two regions cut out has no ALM and no known volume")
            return "no ALM and no volume are claimed"
        alm = math.exp(self.shape.log_det / d) * self.R * (asked / own if own else 0)
        said = follows("ALM", number(self.record, "alm", 0), alm, slack)
        if field(self.record, "log_volume") is None:
            return f"{said}; no volume is claimed"
        if self.R == 0:
            raise Wrong("a region of radius 0 has no volume")
        terms = [d * math.log(2 * self.R), self.shape.log_det]
        if self.norm != math.inf:
            terms += [d * math.lgamma(1 + 1 / self.norm), -math.lgamma(1 + d / self.norm)]
        claimed, volume = number(self.record, "log_volume"), math.fsum(terms)
        if not claimed <= volume + slack * max(1.0, *map(abs, terms)):
            raise Wrong(f"log-volume {claimed:.12g} is claimed, and {volume:.12g} follows")
        return f"{said}; log-volume {claimed:.12g} is not above {volume:.12g}"

    def budget(self) -> str:
        """The factor of the budget follows from p by the law, the kind of noise and Σ."""
        claimed, law = number(self.record, "budget_factor", 0), field(self.evidence, "law")
        asked = budget_of(field(self.record, "budget"), self.folder, self.dim)
        kind, own, _ = self.noise()
        if not own or kind not in (*KINDS, "Composed", CELLS):
            raise NotChecked(f"noise of the kind {kind!r} is unknown: it may make another region")
        if "module" in law or law["name"] not in NORMS:
            raise NotChecked(f"the law {law['name']} does not come with UCAN")
        radii = {self.norm: self.R}
        if kind in KINDS:
            for q in {2: (2,)}.get(self.norm, NORMS[law["name"]]):  # Gaussian noise makes ℓ2 regions alone
                radii[q] = max(radii.get(q, 0.0), radius_of(law, q, self.dim, self.p_a, self.p_b))
        scale = field(self.region, "scale")
        sigma = diagonal_of(scale, self.folder, self.dim)
        if sigma is None:
            return self.full_budget(claimed, asked, radii, inverse_of(scale, self.folder, self.dim))
        limit = max(radius / budget_size(asked, 1 / sigma, q) for q, radius in radii.items())
        if law["name"] == "Uniform" and kind in KINDS and asked.groups is None:
            limit = max(limit, uniform_box(law, asked.limits / sigma, self.p_a, self.p_b))
        return follows("budget factor", claimed, limit)

    def full_budget(self, claimed: float, asked: Budget, radii: dict[float, float], inverse: Inverse) -> str:
        """The factor under a full Σ: shown by upper bounds on ‖Σ⁻¹δ‖, or refuted by a change that leaves the region."""
        slack = max(SLACK, inverse.rounding)
        shown = max(radius / full_size(asked, inverse, q) for q, radius in radii.items())
        if claimed <= shown * (1 + slack):
            return follows("budget factor", claimed, shown, slack)
        most = max(radius / full_reach(asked, inverse, q) for q, radius in radii.items())
        if claimed > most * (1 + slack):
            raise Wrong(f"budget factor {claimed:.12g} is claimed, and a change at {most:.12g} leaves the region")
        raise NotChecked(f"budget factor {claimed:.12g} is above {shown:.12g}, which is shown here, and not refuted")


class Answered(Claim):
    """An answer to another question than one class (format 4), and the checks of it."""

    formats = (4,)
    kinds = ("interval", "top-k", "confidence", "decisions")

    def __init__(self, record: Any, folder: Path) -> None:
        super().__init__(record, folder)
        self.place()
        self.tau, self.law = number(record, "tau", 0, 1), field(self.evidence, "law")

    def checks(self) -> dict[str, Callable[[], str]]:
        """The checks of this kind of answer, in order."""
        every: dict[str, Callable[[], str]] = {"votes": self.votes, "settings": self.settings, "scope": self.scope}
        every["noise"] = self.known
        if "budget" in self.record or "budget_factor" in self.record:
            every["budget"] = self.budget
        if self.kind == "confidence":
            return {**every, "class": self.chosen, "bound": self.bounds, "region": self.confident}
        if self.kind == "top-k":
            return {**every, "labels": self.labels, "bound": self.simultaneous, "region": self.among}
        if self.kind == "decisions":
            return {
                **every,
                "places": self.places,
                "bound": self.shared,
                "region": self.decided,
                "answers": self.hits,
            }
        if "within" in self.record:
            return {**every, "ends": self.ends, "region": self.kept_within, "answers": self.outside}
        return {
            **every,
            "ends": self.ends,
            "range": self.assumed,
            "region": self.intervals,
            "answers": self.beyond,
        }

    # --- what all of them share ---

    @property
    def level(self) -> float:
        """The level of what is concluded: α, or the share of the look at which sampling ended."""
        looks = self.evidence.get("looks")
        if not looks or len(looks) == 1:
            return self.alpha
        return self.alpha * (CAP_LOOK if self.n == looks[-1] else (1 - CAP_LOOK) / (len(looks) - 1))

    def settings(self) -> str:
        """A number of samples that was fixed; or one of the looks that follow from the cap, and the bound's name says which."""
        looks, cap, stop = (self.evidence.get(name) for name in ("looks", "cap", "stop"))
        if "family" in self.evidence:
            whole(self.evidence, "family", 1)
        name, _, told = str(self.bound).partition(", look ")
        if looks is None:
            if cap is not None:
                whole(self.evidence, "cap", 1)
            if stop is not None or cap not in (None, self.n) or told:
                raise Wrong(f"no looks are told, and sampling ended at {self.n} of {cap} by the rule {stop!r}")
            self.named(name)
            return f"bound {name}, alpha {self.alpha:g}, a fixed number of samples"
        rule = [whole(self.evidence, "cap", 1)]
        while (half := -(-rule[0] // 2)) >= FIRST_LOOK:
            rule.insert(0, half)
        if looks != rule or self.n not in rule or stop is None:
            raise Wrong(f"looks at {looks} are told, and {self.n} samples; those of {cap} are {rule}")
        if told != f"{rule.index(self.n) + 1} of {len(rule)}":
            raise Wrong(f"the bound is {self.bound!r}, and this is look {rule.index(self.n) + 1} of {len(rule)}")
        self.named(name)
        return f"bound {name}, alpha {self.level:g} of {self.alpha:g} at look {told}"

    def named(self, name: str) -> None:
        """The bound's name is the one that an answer of this kind follows by; of decisions the check of their places tells."""
        own = ANSWERS.get(self.kind)
        if own is None or name == own:
            return
        if name in (*FIXED, "anytime", "sequential", *ANSWERS.values()) or name.partition(" over ")[0] in RULES:
            raise Wrong(f"an answer of the kind {self.kind!r} has the bound {own!r}, and this one is {name!r}")
        raise NotChecked(f"the bound {name!r} is unknown")

    def known(self) -> str:
        """The noise makes regions of this norm, by T_r of its law; Σ can be inverted."""
        shape_of(field(self.region, "scale"), self.folder, self.dim, self.norm, self.norm)
        return f"{self.noise()[0]} noise makes {show(self.norm)} regions, {self.own:.6g} times the law's"

    @property
    def own(self) -> float:
        """A region's radius beside the law's own."""
        if not hasattr(self, "_own"):
            self._own = self.factor()
        return self._own

    def factor(self) -> float:
        """1, but for composed noise with a budget, which makes Gaussian boxes."""
        kind, own, settings = self.noise()
        gaussian = field(self.law, "name") == "Gaussian"
        if kind == "Composed" and own and not {*settings} - COMPOSED_SETTINGS:
            box, ball = bool(settings.get("budget")), field(self.region, "scale") == {"kind": "Scalar", "value": 1.0}
            if not (gaussian and (box or ball) and norm_of(settings) == self.norm == self.asked):
                raise Wrong("composed noise makes Gaussian balls of the norm that it was made for, and no other region")
            if not box:
                return 1.0
            sigma = diagonal_of(field(self.region, "scale"), self.folder, self.dim)
            if sigma is None or self.norm != math.inf:
                raise Wrong("composed noise with a budget makes boxes of its limits, and no other region")
            return math.sqrt(self.dim) / float(np.linalg.norm(sigma))
        if not own or kind not in KINDS:
            raise NotChecked(f"noise of the kind {kind!r} is unknown: it may make another region")
        if self.norm != (2 if gaussian else self.asked):
            raise Wrong(f"{self.law['name']} noise makes no {show(self.norm)} region against {show(self.asked)}")
        return 1.0

    def least(self, p: float, r: float) -> float:
        """T_r(p), with what rounding an input costs."""
        moved = (r + self.paid) / self.own
        return shifted(self.law, self.norm, self.dim, p, moved) if moved else p

    @property
    def paid(self) -> float:
        """What a move costs at least where inputs are rounded to a grid."""
        if not hasattr(self, "_paid"):
            self._paid = self.rounding()
        return self._paid

    def reached(self, holds: Callable[[float], bool]) -> float:
        """The largest radius at which a statement holds; it must hold at the input itself, where an answer has one."""
        if not holds(0.0):
            raise Wrong("what is claimed does not follow from the bounds, not even at the input itself")
        far = 1e6 * number(self.law, "scale", 0)
        if holds(far):
            raise NotChecked("the claim holds at every radius, which nothing here can show")
        return turning_point(holds, 0.0, far)

    def budget(self) -> str:
        """The budget times its factor lies in the region."""
        claimed, scale = number(self.record, "budget_factor", 0), field(self.region, "scale")
        asked = budget_of(field(self.record, "budget"), self.folder, self.dim)
        sigma = diagonal_of(scale, self.folder, self.dim)
        if sigma is None:
            return self.full_budget(claimed, asked, {self.norm: self.R}, inverse_of(scale, self.folder, self.dim))
        return follows("budget factor", claimed, self.R / budget_size(asked, 1 / sigma, self.norm))

    def counts_of(self, found: dict[str, np.ndarray], *names: str) -> list[np.ndarray]:
        """Votes of each place or end; a file that was written without them leaves open whether its bounds follow."""
        if any(name not in found for name in names):
            what = "how many numbers lie beyond each end" if self.kind == "interval" else "the votes of each place"
            raise NotChecked(f"the file does not say {what}: `ucan verify --replay` draws them again")
        for name in names:
            if (found[name] != np.round(found[name])).any() or found[name].min() < 0 or found[name].max() > self.n:
                raise Wrong(f"{name} must be whole numbers from 0 to {self.n}")
        return [found[name].astype(np.int64) for name in names]

    def list_of(self, key: str, low: float = 0, high: float = math.inf) -> list[float]:
        """A list of finite numbers."""
        values = field(self.record, key)
        if not isinstance(values, list) or not values:
            raise Unreadable(f"{key} must be a list of numbers")
        return [number({key: value}, key, low, high) for value in values]

    # --- confidence ---

    def chosen(self) -> str:
        """The class is the one that the votes of the selection chose."""
        votes_of(self.evidence, "selection")
        return super().chosen()

    def bounds(self) -> str:
        """P follows from the votes, less what the arithmetic may change."""
        allowed = at_least(self.counts[whole(self.record, "prediction")], self.n, self.level)
        return follows("p", number(self.record, "p_lower", 0, 1), max(0.0, allowed - self.tau))

    def confident(self) -> str:
        """T_r(p) stays at the level up to the radius; the line by which radii become moves makes none smaller."""
        p, level = number(self.record, "p_lower", 0, 1), number(self.record, "confidence", 0, 1)
        per, paid = self.list_of("line")
        if per * self.own < 1 - SLACK or paid * self.own < self.paid * (1 - SLACK):
            raise Wrong(f"moves are said to cost {per:.12g} times their size and {paid:.3g}, and they cost more")
        return follows("radius", self.R, self.reached(lambda r: self.least(p, r) >= level))

    # --- the first k labels ---

    def labels(self) -> str:
        """The labels are the k most voted of the selection, in falling order."""
        k, labels, votes = (
            whole(self.record, "k", 1),
            field(self.record, "labels"),
            votes_of(self.evidence, "selection"),
        )
        if not isinstance(labels, list) or len({*labels}) != len(labels) or len(labels) != k >= 1:
            raise Wrong(f"{labels} are not {k} labels")
        if len(votes) != len(self.counts) or any(type(c) is not int or not 0 <= c < len(votes) for c in labels):
            raise Wrong(f"{labels} are none of the {len(self.counts)} classes")
        if [votes[c] for c in labels] != sorted(votes, reverse=True)[:k] or self.record.get("prediction") != labels[0]:
            raise Wrong(f"{labels} are not the {k} labels that the votes {votes} chose")
        if sum(votes) > whole(self.evidence, "n0"):
            raise Wrong("more votes chose the labels than were drawn for that")
        return f"{labels} have most of the votes that chose them"

    def simultaneous(self) -> str:
        """All bounds follow at once, with α shared by k from below and all classes from above."""
        labels, lows, highs = field(self.record, "labels"), self.list_of("p_lowers"), self.list_of("p_uppers")
        if len(highs) != len(self.counts) or len(lows) != len(labels):
            raise Wrong("every label has a lower bound, and every class an upper one")
        alpha = self.level / (whole(self.record, "k", 1) + len(self.counts))
        for label, low in zip(labels, lows, strict=True):
            follows("p", low, max(0.0, at_least(self.counts[label], self.n, alpha) - self.tau))
        for count, high in zip(self.counts, highs, strict=True):
            least = min(1.0, 1 - at_least(self.n - count, self.n, alpha) + self.tau)
            if not high >= least * (1 - SLACK):
                raise Wrong(f"p of {high:.12g} at most is claimed, and {least:.12g} follows")
        return f"{len(lows)} bounds from below and {len(highs)} from above follow"

    def among(self) -> str:
        """Each label stays among the first k up to its radius, and the region is that of the first."""
        labels, radii = field(self.record, "labels"), self.list_of("radii")
        lows, highs, k = self.list_of("p_lowers", 0, 1), self.list_of("p_uppers", 0, 1), whole(self.record, "k", 1)
        if len(radii) != len(labels):
            raise Wrong("every label has a radius")
        for place, (label, low, radius) in enumerate(zip(labels, lows, radii, strict=True)):
            if place and radius == 0:  # of the first label something is claimed
                continue
            strong = sorted((high for c, high in enumerate(highs) if c != label), reverse=True)[:k]
            sums = [min(1 - low, total) for total in itertools.accumulate(reversed(strong))]

            def stays(r: float, low: float = low, sums: list[float] = sums) -> bool:
                gains = ((1 - self.least(1 - total, r)) / (t + 1) for t, total in enumerate(sums))
                return len(sums) < k or self.least(low, r) > min(gains)

            follows(f"radius of label {label}", radius, self.reached(stays))
        return follows("radius", self.R, radii[0])

    # --- labels and pixels ---

    def maps(self) -> dict[str, np.ndarray]:
        """Answers, classes that were chosen, radii and bounds at every place."""
        found = tensors_of(field(self.record, "maps"), self.folder)
        names = ("answers", "selected", "radii", "p_lowers")
        if any(name not in found for name in names) or len({each.shape for each in found.values()}) != 1:
            raise Unreadable("answers, selected, radii and p_lowers must be maps of the same places")
        return {name: each.ravel() for name, each in found.items()}

    def places(self) -> str:
        """An answer is the class that was chosen there; where there is none nothing is claimed."""
        maps, rule = self.maps(), field(self.record, "rule")
        held = maps["answers"] != -1
        if not held.any() or (maps["answers"] != maps["selected"])[held].any() or (maps["selected"] < 0).any():
            raise Wrong("an answer is not the class that was chosen, or there is none")
        if self.record.get("what") not in ("labels", "segmentation"):
            raise Unreadable(f"what is {self.record.get('what')!r}, and must be labels or segmentation")
        if self.record["what"] == "labels" and maps["selected"].max() > 1:
            raise Wrong("a label is there, 1, or not, 0")
        if maps["radii"][~held].any() or (maps["radii"] < 0).any():
            raise Wrong("a radius is claimed where there is no answer")
        if str(self.bound).partition(", look ")[0] != f"{rule} over {held.size}" or rule not in RULES:
            raise Wrong(f"the rule {rule} over {held.size} places is not the bound {self.bound!r}")
        if abs(number(self.record, "share", 0, 1) - held.mean()) > SLACK:
            raise Wrong(f"{held.sum()} of {held.size} places have an answer, and another share is told")
        return f"{held.sum()} of {held.size} places have an answer"

    def shared(self) -> str:
        """No bound is above what n votes that all agree would show, at a share of α; Holm's first share is the same."""
        lows = self.maps()["p_lowers"]
        most = at_least(self.n, self.n, self.level / lows.size) - self.tau
        return follows("the largest p", float(lows.max()), max(0.0, most))

    def decided(self) -> str:
        """Each bound bears a majority and its radius; Holm's rule has one radius; the region is the smallest."""
        maps, asked = self.maps(), field(self.record, "asked")
        held = maps["answers"] != -1
        radii, lows = maps["radii"][held], maps["p_lowers"][held]
        if field(self.record, "rule") == "holm" and (asked is None or {*radii} != {number(self.record, "asked", 0)}):
            raise Wrong("Holm's rule decides at the one radius that was asked for")
        if asked is not None and (radii < number(self.record, "asked", 0)).any():
            raise Wrong("a radius is below the one that was asked for")
        least = float(lows.min())
        # Holm's rule shows that p is above the bound, which at the radius 0 is 1/2, up to rounding.
        if not (least > 0.5 or (self.record["rule"] == "holm" and least >= 0.5 * (1 - SLACK))):
            raise Wrong(f"an answer has p of {least:.12g}, which is not above 1/2: it is none")
        for low, radius in {*zip(lows.tolist(), radii.tolist(), strict=True)}:
            follows("radius", radius, self.own * radius_of(self.law, self.norm, self.dim, low, None) - self.paid)
        return follows("radius", self.R, float(radii.min()))

    def hits(self) -> str:
        """The votes of each place bear its bound: by Bonferroni's rule alone, by Holm's as one of those before it."""
        maps = self.maps()
        (hits,), held, m = self.counts_of(maps, "hits"), maps["answers"] != -1, maps["answers"].size
        if field(self.record, "rule") == "bonferroni":
            for k, low in {*zip(hits[held].tolist(), maps["p_lowers"][held].tolist(), strict=True)}:
                follows(f"p of {k} votes", low, max(0.0, at_least(k, self.n, self.level / m) - self.tau))
            return f"{held.sum()} bounds follow from {self.n} votes at each of {m} places"
        p = min(1.0, float(maps["p_lowers"][held].max()) + self.tau)
        # Of m places the one with the most votes is tested at α/m, the next at α/(m − 1), and so on to the first that fails.
        few, before = int(hits[held].min()), 0
        for k in sorted({*hits.tolist()} | {few}, reverse=True):
            if k < few:
                break
            here = int((hits == k).sum())
            surprise = float(stats.binom.sf(k - 1, self.n, p))
            # Equal counts pass or fail one after another: the first of them has the smallest share.
            if here and surprise > self.level / (m - before) * (1 + SLACK):
                raise Wrong(
                    f"{k} of {self.n} votes do not show a p above {p:.12g} as number {before + 1} of {m} places"
                )
            before += here
        return f"{held.sum()} answers follow by Holm's rule from {self.n} votes at each of {m} places"

    # --- numbers ---

    def tensors(self) -> dict[str, np.ndarray]:
        """The value (*outputs), and (radii, *outputs) of ends and of the probabilities to be beyond them."""
        found, radii = tensors_of(field(self.record, "ends"), self.folder), self.list_of("radii")
        names = ("lowers", "uppers", "below", "above")
        names += tuple(name for name in ("under", "over") if name in found)
        if any(field(found, name).shape != (len(radii), *field(found, "value").shape) for name in names):
            raise Unreadable("ends must be of one shape, a row for each radius")
        return {name: t.reshape(-1 if name == "value" else (len(radii), -1)) for name, t in found.items()}

    def limits(self) -> tuple[float, float]:
        """The range that outputs are said to have by their nature."""
        low, high = field(self.record, "limits")
        low = -ENDLESS if low is None else number({"the least": low}, "the least")
        return low, ENDLESS if high is None else number({"the most": high}, "the most")

    def ends(self) -> str:
        """The value lies between its ends, which are ± t beside it where that was asked for; what is shown is what they are."""
        found, record, (low, high) = self.tensors(), self.record, self.limits()
        if "within" in record:
            t = number(record, "within", 0)
            if (found["lowers"] != found["value"] - t).any() or (found["uppers"] != found["value"] + t).any():
                raise Wrong(f"the ends are not the value ± {t:g}")
        elif not ((low <= found["lowers"]) & (found["lowers"] <= found["uppers"]) & (found["uppers"] <= high)).all():
            raise Wrong("a lower end is above its upper one, or an end is outside of the range of the outputs")
        value = found["value"]  # beyond ENDLESS: no number was answered
        if ((abs(value) < ENDLESS) & ((value < found["lowers"]) | (value > found["uppers"])).any(0)).any():
            raise Wrong("a value lies outside of its own interval")
        for shown, name in (("lower", "lowers"), ("upper", "uppers")):
            true = [None if abs(end) >= ENDLESS else end for end in found[name][-1].tolist()]
            if shown in record and record[shown] != true:
                raise Wrong(f"what is shown as {shown} is not what the ends are")
        return f"{found['value'].size} outputs at {len(self.list_of('radii'))} radii"

    def assumed(self) -> str:
        """No end is that of the stated range, which nothing in the file can show."""
        found, (low, high) = self.tensors(), self.limits()
        at_low, at_high = (
            low > -ENDLESS and (found["lowers"] <= low).any(),
            high < ENDLESS and (found["uppers"] >= high).any(),
        )
        if at_low or at_high:
            ends = [f"at least {low:g}"] * (low > -ENDLESS) + [f"at most {high:g}"] * (high < ENDLESS)
            raise NotChecked(f"an end rests on the stated range of the outputs, {' and '.join(ends)}")
        return "no end rests on a stated range of the outputs"

    def intervals(self) -> str:
        """The levels of the order statistics are T_r(p) and T_r(1 − p); where no draw will do, an end is infinite."""
        found, p, radii = self.tensors(), number(self.record, "p", 0, 1), self.list_of("radii")
        if radii != sorted({*radii}):
            raise Wrong("the radii do not rise")
        low, high = self.limits()
        rest = math.nextafter(1 - p, 0) if p < 1e-6 else 1 - p  # not above 1 − p, where a far move brings that back
        alpha = self.level / (2 * found["value"].size * len(radii))
        for i, r in enumerate(radii):
            for side, level in (("below", self.least(p, r)), ("above", self.least(rest, r))):
                follows(f"probability {side}", float(found[side][i].max()), level)
                if (1 - max(0.0, level - self.tau)) ** self.n <= alpha * (1 + SLACK):
                    continue
                free = found["lowers"][i] <= low if side == "below" else found["uppers"][i] >= high
                if not free.all():
                    raise Wrong(f"{self.n} samples give no end {side} at the radius {r:g}, and one is claimed")
        return follows("radius", self.R, radii[-1])

    def kept_within(self) -> str:
        """± t is kept while T_r of what is inside does; no bound is below what samples that are all inside would show."""
        found, p, radii = self.tensors(), number(self.record, "p", 0, 1), self.list_of("radii")
        least = min(1.0, 1 - at_least(self.n, self.n, self.level / (2 * found["value"].size)) + self.tau)
        below, above = (float(found[side].max()) for side in ("below", "above"))
        if min(float(found[side].min()) for side in ("below", "above")) < least * (1 - SLACK) or len(radii) != 1:
            raise Wrong(f"{self.n} samples show no probability below {least:.12g} to be outside")

        def stays(r: float) -> bool:
            return self.least(1 - below, r) > 1 - p and self.least(1 - above, r) >= p

        follows("radius", radii[0], self.reached(stays))
        return follows("radius", self.R, radii[0])

    def beyond(self) -> str:
        """Each end is an order statistic of its level: so few numbers lie beyond it that more would be expected."""
        found, (low, high) = self.tensors(), self.limits()
        under, over = self.counts_of(found, "under", "over")
        alpha, most = self.level / (2 * under.size), 1 - SLACK
        for side, counts, claims in (
            ("below", under, found["lowers"] > low),
            ("above", over, found["uppers"] < high),
        ):
            for k, level in {*zip(counts[claims].tolist(), found[side][claims].tolist(), strict=True)}:
                if not stats.binom.cdf(k, self.n, max(0.0, level - self.tau)) * most <= alpha:
                    raise Wrong(
                        f"{k} of {self.n} numbers lie {side} an end, which is too many for the level {level:.12g}"
                    )
        return f"{under.size} ends on either side are order statistics of their levels"

    def outside(self) -> str:
        """The probabilities to be outside of ± t follow from how many numbers are."""
        found = self.tensors()
        counts = self.counts_of(found, "under", "over")
        alpha = self.level / (2 * counts[0].size)
        for side, number_of in zip(("below", "above"), counts, strict=True):
            for k, claimed in {*zip(number_of.ravel().tolist(), found[side].ravel().tolist(), strict=True)}:
                least = min(1.0, 1 - at_least(self.n - k, self.n, alpha) + self.tau)
                if not claimed >= least * (1 - SLACK):
                    raise Wrong(f"a probability {side} of {claimed:.12g} at most is claimed, and {least:.12g} follows")
        return f"{counts[0].size} bounds on either side follow from {self.n} numbers"


def same_noise(one: Any, other: Any) -> bool:
    """Whether two pieces of evidence tell of the same noise; of version 0.1 there is only a line to compare."""
    told = [{k: v for k, v in field(each, "noise").items() if k != "made"} for each in (one, other)]
    if all(noise.get("kind") is not None for noise in told):
        told = [{k: v for k, v in noise.items() if k != "line"} for noise in told]
    else:
        told = [{"line": field(noise, "line")} for noise in told]
    return told[0] == told[1] and one.get("arithmetic", "real") == other.get("arithmetic", "real")


def check(record: Any, folder: Path) -> list[tuple[str, str, str]]:
    """(verdict, name, words) of every check; a verdict is "ok", "FAIL" or "not checked"."""
    other = isinstance(record, dict) and record.get("format") in Answered.formats
    claim, lines = (Answered if other else Claim)(record, folder), []
    for name, look in claim.checks().items():
        try:
            with np.errstate(all="ignore"):  # what is not finite is never taken for an answer
                lines.append(("ok", name, look()))
        except (NotChecked, Unreadable) as unknown:
            lines.append(("not checked", name, str(unknown)))
        except BROKEN as error:
            lines.append(("not checked", name, f"it cannot be read: {type(error).__name__}: {error}"))
        except Wrong as wrong:
            lines.append(("FAIL", name, str(wrong)))
    if isinstance(record.get("choice"), dict):
        lines += [(verdict, f"choice: {name}", words) for verdict, name, words in check(record["choice"], folder)]
    return lines


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; one that says a thing twice is refused, since readers differ in which they take."""
    if len(dict(pairs)) != len(pairs):
        raise Unreadable("an entry occurs twice")
    return dict(pairs)


def instead(path: Path, error: Exception) -> str:
    """What a path that cannot be read as a certificate is."""
    if path.is_dir():
        return "is a folder, and a certificate is a file"
    if path.is_file() and not path.stat().st_size:
        return "is empty"
    if path.suffix in (".tsv", ".csv", ".sqlite"):
        return "holds the results of many inputs, not a certificate"
    return f"cannot be read as a certificate: {type(error).__name__}: {error}"


def looked_at(path: Path) -> tuple[int, list[str]]:
    """The exit code of one file, and what is to be said of it."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=unique)
        lines = check(record, path.parent)
    except Unreadable as error:
        return 2, [f"{path} cannot be checked: {error}."]
    except BROKEN as error:
        return 2, [
            f"{path} {instead(path, error)}. Give one of the files in a run's folder certificates, such as 17.json."
        ]
    verdicts = {verdict for verdict, _, _ in lines}
    code = 1 if "FAIL" in verdicts else 2 if "not checked" in verdicts else 0
    return code, [f"{verdict:<11} {name}: {words}" for verdict, name, words in lines]


def printable(text: str) -> str:
    """Escapes in place of control characters: what a file says must not rewrite the reader's terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def main(arguments: list[str]) -> int:
    """Check the files, say what was found, and give the exit code: the worst, 1 before 2 before 0."""
    if not arguments or any(word.startswith("-") for word in arguments):
        print(__doc__)
        return 2
    several, codes = len(arguments) > 1, []
    for path in map(Path, arguments):
        code, lines = looked_at(path)
        codes.append(code)
        if several:
            print(printable(f"{('ok', 'FAIL', 'not checked')[code]:<11} {path}"))
            lines = [f"    {line}" for line in lines if not line.startswith("ok ")]
        for line in lines:
            print(printable(line))
    if several:
        print(f"{len(codes)} files: {codes.count(0)} ok, {codes.count(1)} wrong, {codes.count(2)} not checked in all.")
    worst = 1 if 1 in codes else max(codes)
    print(("Nothing is wrong.", "Something is wrong.", "Not everything could be checked.")[worst])
    print(LIMITS)
    return worst


if __name__ == "__main__":
    sys.stdout.reconfigure(errors="backslashreplace")  # a terminal without ℓ and Σ gets their numbers
    sys.exit(main(sys.argv[1:]))
