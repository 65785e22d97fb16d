"""The results of certify and predict: frozen records with their scope and their evidence."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from pathlib import Path
from typing import Any, ClassVar

import torch

from ucan import scales
from ucan.arithmetic import changes_in_words
from ucan.budget import Budget
from ucan.choices import SCOPES as SCOPES
from ucan.choices import Scope as Scope
from ucan.choices import check_choice, norm_from_json, norm_name, norm_to_json
from ucan.errors import DoesNotFollow, InvalidInput, UcanError
from ucan.evidence import Evidence
from ucan.region import Intersection, Region
from ucan.rounding import floor_digits
from ucan.sidecar import INLINE, is_small, tensors_from_json, tensors_to_json
from ucan.storage import storage, write_whole

FORMAT = 2
ROUTED = 3  # of an outcome with a choice, whose claim an older reader would take for a larger one
WHERE = "Give one of the files RUN/certificates/*.json, which `ucan certify --certificates` writes."
READABLE = (1, 2, 3)  # 1: version 0.1, with less evidence


@dataclass(frozen=True, eq=False)
class Outcome:
    """The common part of all results.

    ``choice``: the outcome by which a router (``ucan.Routed``) chose the classifier that answers; None of a single
    classifier.
    """

    norm: float | None
    scope: Scope
    evidence: Evidence
    choice: Any = field(default=None, kw_only=True)
    abstained: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_choice("the scope", self.scope, SCOPES)
        answer, classes = getattr(self, "prediction", None), len(self.evidence.counts)
        if answer is not None and not (type(answer) is int and 0 <= answer < classes):  # −1 would count from the end
            raise InvalidInput(f"the prediction must be one of the {classes} classes, got {answer!r}.")
        if answer is not None and getattr(self.choice, "top", answer) != answer:
            raise InvalidInput(f"the choice is about class {self.choice.top}, and the answer is {answer!r}.")

    @property
    def counts(self) -> torch.Tensor:
        """Estimation votes by class, int64; with ``invalid`` they add up to n."""
        return torch.tensor(self.evidence.counts, dtype=torch.int64)

    @property
    def invalid(self) -> int:
        """Votes for no class: NaN logits or a class out of range."""
        return self.evidence.invalid

    def to_dict(self, folder: str | Path | None = None) -> dict[str, Any]:
        """Plain JSON values; every kind of result has its own."""
        raise NotImplementedError

    @property
    def alpha(self) -> float:
        """The claim is false with probability at most this: the level of the answer and that of the choice."""
        return self.evidence.alpha + (0.0 if self.choice is None else self.choice.alpha)

    @property
    def chosen(self) -> int | None:
        """Of a choice: the number of the classifier that it names."""
        return getattr(self, "prediction", None)

    @property
    def expert(self) -> int | None:
        """The number of the classifier that a router's choice names; None of a single classifier."""
        return None if self.choice is None else self.choice.chosen

    @property
    def _claim(self) -> str:
        """The scope and the level of the claim."""
        evidence = self.evidence
        family = (
            f", one of {evidence.family:,} at {self.alpha * evidence.family:g} together" if evidence.family > 1 else ""
        )
        copy = f", of a copy in {evidence.precision}" if evidence.copy else ""
        held = f", {evidence.held.words()}" if evidence.held is not None else ""
        bound = ", by a randomised bound" if evidence.bound == "randomised" else ""
        routed = "" if self.choice is None else f", by expert {self.expert}"
        return f"scope {self.scope}, α = {self.alpha:g}{family}{bound}{copy}{held}{routed}"


@dataclass(frozen=True, eq=False)
class Certificate(Outcome):
    """With probability at least 1 − α over the noise drawn, the answer is ``prediction`` on the whole ``region``.

    ``scope`` says which classifier this is about (``ucan.choices.SCOPES``). ``radius`` is the largest ball of the requested
    ``norm`` inside the region. ``mean`` is the offset μ of the noise, None for 0. ``p_lower`` bounds the probability of the
    answer from below, ``p_upper`` that of every other class from above (None: 1 − p_lower). ``alm`` is the alternative
    Lebesgue measure of the region, and ``evidence`` is what all of it follows from.

    With a ``budget``, no change within ε·budget changes the answer either, for every ε strictly below
    ``budget_factor``. That set can be larger than what fits into the region (Uniform noise, docs/shape.md).

    Of a router, ``choice`` is the certificate of the choice. The region is then where both hold, the radius the smaller of
    the two, and there is no ALM (NaN). Evidence and ``p_lower`` are the answer's; ``alpha`` is that of both together.
    """

    prediction: int
    p_lower: float
    p_upper: float | None
    region: Region
    alm: float
    mean: torch.Tensor | None = None
    budget: Budget | None = None
    budget_factor: float | None = None
    radius: float = field(init=False)
    log_volume: float = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.choice is not None:
            self._settle_choice(self.choice)
        _check_number("p_lower", self.p_lower, 1.0)
        if self.choice is None:
            _check_number("alm", self.alm, math.inf)
        if self.p_upper is not None:
            _check_number("p_upper", self.p_upper, 1.0)
        if self.mean is not None and not fits(self.mean.shape, (1, *self.region.shape)):
            raise InvalidInput(
                f"the offset μ of shape {tuple(self.mean.shape)} does not fit inputs of {self.region.shape}."
            )
        if (self.budget is None) != (self.budget_factor is None):
            raise InvalidInput("a certificate has a budget and its factor, or neither.")
        object.__setattr__(self, "radius", self.region.inscribed_radius(self.norm))
        object.__setattr__(self, "log_volume", self.region.log_volume)

    def _settle_choice(self, choice: Any) -> None:
        """Cut the region to where the choice holds, too; both must be about one input, one norm and one budget."""
        mine, other = self.evidence, choice.evidence
        if choice.abstained or mine.exact_hash != other.exact_hash or self.norm != choice.norm:
            raise InvalidInput("a choice must be certified, about the input and the norm of the answer.")
        if (self.budget_factor is None) != (choice.budget_factor is None):
            raise InvalidInput("a choice and its answer are certified for the same budget, or both without one.")
        if self.scope == "registry" or (self.scope == "pipeline" and choice.scope != "pipeline"):
            raise InvalidInput("the scope of a router is pipeline only if that of the choice is, and never registry.")
        own = getattr(self.region, "parts", (self.region,))[0]
        object.__setattr__(self, "region", Intersection.of(own, choice.region))
        object.__setattr__(self, "alm", math.nan)
        if self.budget_factor is not None:
            object.__setattr__(self, "budget_factor", min(self.budget_factor, choice.budget_factor))

    def __str__(self) -> str:
        """The claim in one line; its radius or its factor is rounded down."""
        changes = changes_in_words(self.evidence.arithmetic)
        about = f"{self._claim}, {changes}" if changes else self._claim
        if self.budget is not None and self.budget_factor is not None:
            factor = floor_digits(self.budget_factor, 4)
            return f"class {self.prediction} under {self.budget.words()}, ε = {factor} ({about})"
        norm = norm_name(self.norm if self.norm is not None else self.region.norm)
        radius = floor_digits(self.radius, 4)
        return f"class {self.prediction} within an {norm} radius of {radius} ({about})"

    @property
    def size(self) -> float:
        """The factor of the budget if there is one, else the radius."""
        return self.radius if self.budget_factor is None else self.budget_factor

    @property
    def answer(self) -> Certificate:
        """The certificate of the answer alone: itself, or of a router what the chosen classifier certifies."""
        if self.choice is None:
            return self
        own = self.region.parts[0]  # type: ignore[attr-defined]
        return replace(self, choice=None, region=own, alm=0.0)  # no ALM is claimed

    @property
    def most_budget_factor(self) -> float:
        """The largest ε that p, the law and Σ of this record allow, in exact arithmetic; 0 without a budget."""
        if self.budget is None:
            return 0.0
        if self.choice is not None:
            return min(self.answer.most_budget_factor, float(self.choice.most_budget_factor))
        law, region, best = self.evidence.law, self.region, self.region.budget_factor(self.budget)
        if region.norm not in law.region_norms():  # composed noise has its own kind of region
            return best
        for norm in law.region_norms():
            radius = law.radius(self.p_lower, norm, region.dim, self.p_upper)
            other = Region.sharing(region.scale, radius, norm, region.shape)
            best = max(best, other.budget_factor(self.budget))
        if region.scale.elementwise and self.budget.groups is None:
            scaled = region.scale.solve(self.budget.limits[None])[0].cpu()
            best = max(best, law.box_factor(self.p_lower, scaled, self.p_upper))
        return best

    def to_dict(self, folder: str | Path | None = None) -> dict[str, Any]:
        """Plain JSON values. A large Σ or μ is stored as a file in ``folder`` and referred to by name."""
        where = Path(folder) if folder is not None else None
        routed = self.choice is not None
        return {
            "format": ROUTED if routed else FORMAT,
            "kind": "certificate",
            "prediction": self.prediction,
            "p_lower": self.p_lower,
            "p_upper": self.p_upper,
            "radius": self.radius,
            "alm": None if routed else self.alm,
            "log_volume": self.log_volume if self.radius > 0 and not routed else None,
            "norm": norm_to_json(self.norm),
            "scope": self.scope,
            "guarantee": SCOPES[self.scope],
            "region": region_to_json(self.region, where),
            "mean": None if self.mean is None else tensors_to_json({"mean": self.mean}, where),
            **budget_to_json(self.budget, where),
            **({} if self.budget_factor is None else {"budget_factor": self.budget_factor}),
            **_choice_to_json(self.choice, folder),
            "evidence": self.evidence.to_dict(),
        }


def _check_number(name: str, value: Any, most: float) -> None:
    """Refuse anything but a number from 0 to ``most``."""
    if isinstance(value, bool) or not (isinstance(value, Real) and 0 <= float(value) <= most):
        raise InvalidInput(
            f"a certificate's {name} must be a number of at least 0, and at most {most:g}, got {value!r}."
        )


def fits(offset: Sequence[int], inputs: Sequence[int]) -> bool:
    """Whether a tensor of the first shape, an offset μ, can be added to one of the second and leaves it its shape.

    By hand: ``torch.broadcast_shapes`` takes longer than all else that a certificate checks.
    """
    there = inputs[len(inputs) - len(offset) :] if len(offset) <= len(inputs) else ()
    return len(there) == len(offset) and all(own in (1, length) for own, length in zip(offset, there, strict=True))


@dataclass(frozen=True, eq=False)
class Abstention(Outcome):
    """No claim is made, for the stated ``reason``: radius 0, no region, and budget factor 0.

    ``p_lower`` is the bound on the probability of the most voted class, too low for a claim. ``norm``, ``scope``, ``budget``,
    ``evidence`` and ``choice`` are those that a certificate would have had.
    """

    reason: str
    p_lower: float = 0.0
    budget: Budget | None = None
    abstained: ClassVar[bool] = True
    prediction: ClassVar[None] = None
    region: ClassVar[None] = None
    radius: ClassVar[float] = 0.0
    size: ClassVar[float] = 0.0
    budget_factor: ClassVar[float] = 0.0
    alm: ClassVar[float] = 0.0
    log_volume: ClassVar[float] = -math.inf

    def __str__(self) -> str:
        """The reason in one line."""
        return f"abstained: {self.reason}"

    def to_dict(self, folder: str | Path | None = None) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "format": FORMAT if self.choice is None else ROUTED,
            "kind": "abstention",
            "reason": self.reason,
            "p_lower": self.p_lower,
            "norm": norm_to_json(self.norm),
            "scope": self.scope,
            **budget_to_json(self.budget, Path(folder) if folder is not None else None),
            **_choice_to_json(self.choice, folder),
            "evidence": self.evidence.to_dict(),
        }


@dataclass(frozen=True, eq=False)
class Prediction(Outcome):
    """The smoothed classifier's answer, ``prediction``; wrong with probability at most α over the noise drawn.

    ``p_value`` is that of the test which found the votes too clear for chance. ``scope``, ``evidence`` and ``choice`` are as
    in a certificate; ``norm`` is None.
    """

    prediction: int
    p_value: float

    def __str__(self) -> str:
        """The answer in one line."""
        return f"class {self.prediction} ({self._claim})"

    def to_dict(self, folder: str | Path | None = None) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "format": FORMAT if self.choice is None else ROUTED,
            "kind": "prediction",
            "prediction": self.prediction,
            "p_value": self.p_value,
            "norm": norm_to_json(self.norm),
            "scope": self.scope,
            **_choice_to_json(self.choice, folder),
            "evidence": self.evidence.to_dict(),
        }


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
        _check_number("p", self.p, 1.0)
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


def from_dict(
    record: dict[str, Any], folder: str | Path | None = None
) -> Certificate | Abstention | Prediction | Level:
    """Rebuild a result from its ``to_dict``, without loss; ``folder`` holds the file of a large Σ."""
    if record.get("format") not in READABLE:
        known = ", ".join(map(str, READABLE))
        raise InvalidInput(f"this record has format {record.get('format')!r}; this version reads formats {known}.")
    if record.get("kind") != "level" and (record["format"] == ROUTED) != (record.get("choice") is not None):
        raise InvalidInput(
            f"this record has format {record['format']}, but format {ROUTED} is that of a router, with a choice."
        )
    where = Path(folder) if folder is not None else None
    try:
        shared = {
            "norm": norm_from_json(record["norm"]),
            "scope": record["scope"],
            "evidence": Evidence.from_dict(record["evidence"]),
            "choice": None if record.get("choice") is None else from_dict(record["choice"], folder),
        }
        if record["kind"] == "abstention":
            return Abstention(
                **shared,
                reason=record["reason"],
                p_lower=record["p_lower"],
                budget=budget_from_json(record.get("budget"), where),
            )
        if record["kind"] == "prediction":
            return Prediction(**shared, prediction=record["prediction"], p_value=record["p_value"])
        region = region_from_json(record["region"], where)
        if record["kind"] == "level":
            told = {name: record[name] for name in ("threshold", "above", "top", "p", "of")}
            return Level(**shared, **told, region=region)
        mean = None if record["mean"] is None else tensors_from_json(record["mean"], where)["mean"]
        certificate = Certificate(
            **shared,
            prediction=record["prediction"],
            p_lower=record["p_lower"],
            p_upper=record["p_upper"],
            region=region,
            alm=math.nan if record["alm"] is None else record["alm"],
            mean=mean,
            budget=budget_from_json(record.get("budget"), where),
            budget_factor=record.get("budget_factor"),
        )
        _check_budget_factor(certificate)
        _check_sizes(certificate, record)
        return certificate
    except UcanError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError) as error:
        raise InvalidInput(f"this is not a complete certificate record: {error}.") from error


def _choice_to_json(choice: Outcome | None, folder: str | Path | None) -> dict[str, Any]:
    """The JSON entry of the choice of a router, if there is one."""
    return {} if choice is None else {"choice": choice.to_dict(folder)}


def save_json(outcome: Outcome, path: str | Path) -> None:
    """Write a result as JSON, atomically; large tensors are written to files next to it."""
    path = Path(path)
    if not path.parent.is_dir():
        raise InvalidInput(f"there is no folder {path.parent} to write {path.name} to: create it first.")
    with storage(path):
        text = json.dumps(outcome.to_dict(path.parent), indent=1, ensure_ascii=False, allow_nan=False)
        write_whole(path, text.encode())


def load_json(path: str | Path) -> Certificate | Abstention | Prediction | Level:
    """Read a result that ``save_json`` wrote."""
    path = Path(path)
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        if path.is_dir():
            raise InvalidInput(f"{path} is a folder, and a certificate is a file. {WHERE}") from error
        if path.suffix in (".tsv", ".csv", ".sqlite"):
            raise InvalidInput(f"{path} holds the results of many inputs, not a certificate. {WHERE}") from error
        raise InvalidInput(f"{path} cannot be read as a certificate: {error}. {WHERE}") from error
    if not isinstance(record, dict):
        raise InvalidInput(f"{path} cannot be read as a certificate: it holds no JSON object.")
    if "format" not in record:
        raise InvalidInput(f"{path} is not a certificate. {WHERE}")
    return from_dict(record, path.parent)


def _check_sizes(certificate: Certificate, record: dict[str, Any]) -> None:
    """Refuse a record whose radius or volume is not that of its region."""
    for name in ("radius", "log_volume") if certificate.choice is None else ("radius",):
        stored = -math.inf if record[name] is None else record[name]  # the log-volume of an empty region
        if not math.isclose(stored, getattr(certificate, name), rel_tol=1e-9, abs_tol=1e-12):
            raise DoesNotFollow(
                f"this record's {name} does not follow from its region: it is {stored!r}, and the region gives "
                f"{getattr(certificate, name)!r}. It was changed or is damaged.",
                name,
            )


def _check_budget_factor(certificate: Certificate) -> None:
    """Refuse a factor of the budget that is larger than what p, the law and Σ allow."""
    claimed = certificate.budget_factor
    if claimed is None:
        return
    if type(claimed) not in (int, float) or not 0 <= claimed <= certificate.most_budget_factor * (1 + 1e-9):
        raise DoesNotFollow(
            "this record's budget_factor does not follow from its region, law and budget: it was changed or is damaged.",
            "budget_factor",
        )


def budget_to_json(budget: Budget | None, folder: Path | None) -> dict[str, Any]:
    """The JSON entry of a budget, if there is one; large maps are written to a file, like a large Σ."""
    if budget is None:
        return {}
    record = budget.to_dict()
    large = {name: record.pop(name) for name in ("limits", "groups") if isinstance(record.get(name), list)}
    if sum(map(len, large.values())) <= INLINE:
        return {"budget": {**record, **large}}
    maps = {"limits": budget.limits, **({} if budget.groups is None else {"groups": budget.groups})}
    return {"budget": {**record, "tensors": tensors_to_json({n: maps[n].flatten() for n in large}, folder)}}


def budget_from_json(entry: dict[str, Any] | None, folder: Path | None) -> Budget | None:
    """The inverse of ``budget_to_json``."""
    if entry is None:
        return None
    plain = {name: value for name, value in entry.items() if name != "tensors"}
    return Budget.from_dict({**plain, **(tensors_from_json(entry["tensors"], folder) if "tensors" in entry else {})})


def region_to_json(region: Region, folder: Path | None) -> dict[str, Any]:
    """The JSON entry of a region; a large Σ is written to a file."""
    return {
        "norm": norm_to_json(region.norm),
        "radius": region.radius,
        "shape": list(region.shape),
        "scale": _scale_to_json(region.scale, folder),
    }


def region_from_json(entry: dict[str, Any], folder: Path | None) -> Region:
    """The inverse of ``region_to_json``."""
    scale = _scale_from_json(entry["scale"], folder)
    return Region(scale, entry["radius"], norm_from_json(entry["norm"]), entry["shape"])


def _scale_to_json(scale: scales.Scale, folder: Path | None) -> dict[str, Any]:
    if isinstance(scale, scales.Scalar):
        return {"kind": "Scalar", "value": scale.value}
    kind, tensors = scales.kind_name(scale), scale.tensors()
    if "@" in kind:  # a kind from another package may have plain numbers besides tensors
        tensors = scale.content()
    if is_small(tensors):
        return {"kind": kind, "tensors": tensors_to_json(tensors, folder)}
    # Many certificates share one Σ: its hash is taken once, and its file is written where it is missing.
    entry = scale.known("file", lambda: tensors_to_json(tensors, None))
    if folder is not None and not (folder / entry["file"]).exists():
        tensors_to_json(tensors, folder)
    return {"kind": kind, "tensors": entry}


def _scale_from_json(entry: dict[str, Any], folder: Path | None) -> scales.Scale:
    if "value" in entry:
        return scales.restored(entry["kind"], {"value": entry["value"]})
    return scales.restored(entry["kind"], tensors_from_json(entry["tensors"], folder))
