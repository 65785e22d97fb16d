"""The evidence of a claim: a record from which it can be checked, or its votes drawn again."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import torch

from ucan import laws
from ucan.bounds import uniform_of
from ucan.catalogue import LAWS, Made, call
from ucan.errors import DoesNotFollow, InvalidInput
from ucan.held import Held
from ucan.json_text import check_text, shown
from ucan.laws import Law
from ucan.named_bounds import Ballot
from ucan.sidecar import exact_hash, input_hash

# Numbers of claims and seeds beyond these nobody has; arithmetic in floats would fail on them.
MOST_CLAIMS = 10**15
MOST_SEED = 2**256
MOST_WHOLE = 2**53
KEY = re.compile("[0-9a-f]{8,}")  # of a stream: the hash that its noise follows from
TEXTS = ("bound", "precision", "backend", "input_hash", "arithmetic", "phase")
TEXTS_OR_NONE = ("weights_hash", "stop", "device", "model", "exact_hash", "data_hash")


@dataclass(frozen=True)
class Noise:
    """The noise of a claim: which kind of generator, made with what, in which state.

    ``kind`` and ``module`` name the generator's class, ``settings`` are the plain values that it was made with, ``state``
    is a SHA-256 of its weights, buffers and plain attributes. ``constant``: μ and Σ are the same for every input, or the
    guarantee covers the pipeline for another reason (composed noise). ``line`` is for display and is never compared.
    ``made`` says how to rebuild it: its name in the catalogue of generators, its package, and its parameters; None if it has
    no name, or was made from objects. A record of version 0.1 has only the line.
    """

    line: str
    kind: str | None = None
    module: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    state: str | None = None
    constant: bool | None = None
    made: Made | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.settings, Mapping):
            raise InvalidInput(f"the settings of a noise are values by name, got {self.settings!r}.")
        check_text("line of a noise", self.line)
        for name in ("kind", "module", "state"):
            check_text(f"{name} of a noise", getattr(self, name), needed=False)
        if not (self.constant is None or isinstance(self.constant, bool)):
            raise InvalidInput(f"constant of a noise is true or false, or none, got {shown(self.constant)}.")
        if self.made is not None:
            check_text("made.name of a noise", self.made.name)
            check_text("made.package of a noise", self.made.package, needed=False)
            if not isinstance(self.made.parameters, Mapping):
                raise InvalidInput(f"made.parameters of a noise are values by name, got {shown(self.made.parameters)}.")

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Noise:
        """From JSON's values."""
        made = record.get("made")
        return cls(**{**record, "made": None if made is None else Made(**made)})

    @property
    def complete(self) -> bool:
        """Whether the record is complete; a record of version 0.1 has only its line."""
        return self.kind is not None

    def differences(self, other: Noise) -> list[str]:
        """The differences from another noise, as text; empty if they are the same."""
        if not (self.complete and other.complete):
            return [] if self.line == other.line else [f"the noise is {self.line}, not {other.line}"]
        found = [
            f"its {name} is {mine!r}, not {theirs!r}"
            for name in ("kind", "module", "constant")
            if (mine := getattr(self, name)) != (theirs := getattr(other, name))
        ]
        for name in sorted({*self.settings, *other.settings}):
            mine, theirs = self.settings.get(name), other.settings.get(name)
            if mine != theirs:
                found.append(f"its {name} is {mine!r}, not {theirs!r}")
        if self.state != other.state:
            found.append("its weights or parameters differ")
        return found


@dataclass(frozen=True)
class Pairs:
    """Votes of two classifiers on the same noise: the evidence of the earlier one, how many of its votes for the class the
    new one lost, and how many others it gained; None in records from before these were counted.
    """

    before: Evidence
    lost: int
    gained: int | None = None


@dataclass(frozen=True)
class Evidence:
    """The evidence of a claim: everything needed to check it or to draw its votes again.

    ``alpha`` is the level of this one claim; with ``family`` = N it is one of N claims, a number fixed in advance, which are
    all true at once with probability at least 1 − N·alpha. ``input_hash`` is of the input's float32 bytes, from which its
    noise follows; ``exact_hash`` of its numbers in float64. ``cap`` is the number of votes that were planned: n is smaller
    where a rule, ``stop``, ended sampling. ``selection`` are the votes that chose the class. ``streams`` holds the key of the
    noise of each phase: with it the votes can be drawn again, and it reveals nothing about other inputs if the seed is secret
    (then ``seed`` is None). ``model`` is the classifier's identity (``ucan.fingerprint.identity``). ``data_hash``: the seed
    was derived, and these are the data that it was derived from. ``copy``: the precision was requested in the call, so this
    is about a copy of the classifier. ``thresholds`` are the probabilities of the stopping rule, increasing, if the bound
    depends on them (``ucan.named_bounds.Sequential``). ``looks``: the numbers of answers at which a question's rule looks, the
    last being the cap; ``alpha`` is shared over them (``ucan.questions.looks``). ``pairs``: the claim follows from that of
    another classifier, and the votes
    are of this one on noise that both were shown (``ucan.recertify``). ``held``: the columns that had no noise, with their
    values; the claim covers no change of them.
    """

    counts: tuple[int, ...]
    invalid: int
    n0: int
    n: int
    alpha: float
    seed: int | None
    law: Law
    noise: Noise
    bound: str
    block: int
    batch_size: int
    precision: str
    backend: str
    weights_hash: str | None
    input_hash: str
    arithmetic: str = "real"
    phase: str = "estimate"
    stop: str | None = None
    cap: int | None = None
    selection: tuple[int, ...] | None = None
    device: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    streams: Mapping[str, str] = field(default_factory=dict)
    model: str | None = None
    exact_hash: str | None = None
    family: int = 1
    data_hash: str | None = None
    copy: bool = False
    held: Held | None = None
    thresholds: tuple[float, ...] = ()
    pairs: Pairs | None = None
    looks: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if type(self.family) is not int or not 1 <= self.family <= MOST_CLAIMS:
            raise InvalidInput(
                f"a family is a whole number of certificates, from 1 to {MOST_CLAIMS:,}, got {shown(self.family)}."
            )
        if not (isinstance(self.alpha, int | float) and 0 < self.alpha < 1):
            raise InvalidInput(f"alpha must lie strictly between 0 and 1, got {self.alpha!r}.")
        if not all(isinstance(p, float) and 0 < p < 1 for p in self.thresholds) or list(self.thresholds) != sorted(
            set(self.thresholds)
        ):
            raise InvalidInput(f"thresholds are rising probabilities, got {self.thresholds!r}.")
        for name, least in (("block", 1), ("batch_size", 1), ("n0", 0), ("n", 0)):
            if type(getattr(self, name)) is not int or getattr(self, name) < least:
                raise InvalidInput(
                    f"{name} of evidence is a whole number of at least {least}, got {getattr(self, name)!r}: it was changed or "
                    f"is damaged. Ask for the file again where it was issued."
                )
        self._check_types()
        votes = (*self.counts, self.invalid)
        if any(type(vote) is not int or vote < 0 for vote in votes) or sum(votes) != self.n:
            raise DoesNotFollow(
                f"the votes {votes} do not add up to n = {self.n!r}: this evidence was changed or is damaged.", "counts"
            )
        self._check_cap()
        if self.pairs is not None:
            self._check_pairs(self.pairs)
        if self.looks and (list(self.looks) != sorted(set(self.looks)) or self.looks[-1] != self.cap):
            raise InvalidInput(f"looks are rising numbers up to the cap of {self.cap}, got {self.looks!r}.")
        if self.looks and self.n not in self.looks:
            raise InvalidInput(f"nobody looked after {self.n} answers, only after {self.looks!r}.")
        if self.selection is not None:
            self._check_selection(self.selection)

    def _check_types(self) -> None:
        """Refuse texts, numbers and flags of another type: whoever reads a file must not be stopped by an error of Python's."""
        for name in TEXTS:
            check_text(f"{name} of evidence", getattr(self, name))
        for name in TEXTS_OR_NONE:
            check_text(f"{name} of evidence", getattr(self, name), needed=False)
        for name in ("streams", "versions"):
            told = getattr(self, name)
            if not isinstance(told, Mapping):
                raise InvalidInput(f"{name} of evidence are texts by name, got {shown(told)}.")
            for key, text in told.items():
                check_text(f"the name of one of the {name} of evidence", key)
                check_text(f"{name}.{key} of evidence", text)
        for phase, key in self.streams.items():
            if not KEY.fullmatch(key):
                raise InvalidInput(f"streams.{phase} of evidence is a key in hexadecimal digits, got {shown(key)}.")
        if not (self.seed is None or (isinstance(self.seed, int) and type(self.seed) is not bool)):
            raise InvalidInput(f"seed of evidence is a whole number, or none, got {shown(self.seed)}.")
        if abs(self.seed or 0) >= MOST_SEED:
            raise InvalidInput(f"seed of evidence has at most 256 bits, got {shown(self.seed)}.")
        if not isinstance(self.copy, bool):
            raise InvalidInput(f"copy of evidence is true or false, got {shown(self.copy)}.")
        for name, value in vars(self.law).items():
            if isinstance(value, int) and abs(value) > MOST_WHOLE:
                raise InvalidInput(f"{name} of the law is larger than any that is computed with: {shown(value)}.")

    def _check_cap(self) -> None:
        """Refuse a number of planned votes that is none, or smaller than the number that was drawn; version 0.1 had none."""
        if self.cap is not None and (type(self.cap) is not int or self.cap < self.n):
            raise DoesNotFollow(
                f"cap, the number of votes that were planned, must be a whole number of at least n = {self.n}, got "
                f"{self.cap!r}: this evidence was changed or is damaged. Ask for the file again where it was issued.",
                "cap",
            )

    def _check_selection(self, chosen: tuple[int, ...]) -> None:
        """Refuse votes that cannot have chosen the class: not one number for each class, or more than n0 votes."""
        whole = all(type(vote) is int and vote >= 0 for vote in chosen)
        if not whole or len(chosen) != len(self.counts) or sum(chosen) > self.n0:
            raise DoesNotFollow(
                f"the votes {chosen} that chose the class are not at most {self.n0!r} for {len(self.counts)} classes: this "
                f"evidence was changed or is damaged.",
                "selection",
            )

    def _check_pairs(self, pairs: Pairs) -> None:
        """Refuse pairs whose first part is about something else."""
        before = pairs.before
        if type(pairs.lost) is not int or not 0 <= pairs.lost <= self.n:
            raise InvalidInput(f"{pairs.lost!r} of {self.n} paired votes cannot be lost.")
        if pairs.gained is not None and (type(pairs.gained) is not int or not 0 <= pairs.gained <= self.n - pairs.lost):
            raise InvalidInput(f"{pairs.gained!r} of {self.n} paired votes cannot be gained beside {pairs.lost} lost.")
        mine, other = ((e.input_hash, e.held, e.law, e.arithmetic, len(e.counts)) for e in (self, before))
        # input_hash is of float32 numbers; version 0.1 had no hash of the exact ones.
        exact = None in (before.exact_hash, self.exact_hash) or before.exact_hash == self.exact_hash
        if mine != other or not exact or before.noise.differences(self.noise):
            raise InvalidInput(
                "the earlier votes have another input, held columns, law, noise or number of classes than the paired votes."
            )
        if set(self.streams.values()) & set(before.streams.values()):
            raise InvalidInput("the paired votes are on noise of the earlier votes, and must not depend on them.")

    def is_about(self, x: torch.Tensor) -> bool:
        """Whether x (1, *event) is exactly this input; evidence of version 0.1 only has its float32 values."""
        return input_hash(x) == self.input_hash and self.exact_hash in (None, exact_hash(x))

    @property
    def identity(self) -> str | None:
        """The classifier's identity; None if the evidence does not state it."""
        return self.model or self.weights_hash

    @property
    def generator(self) -> str:
        """The noise in one line, for tables."""
        return self.noise.line

    @property
    def uniform(self) -> float:
        """The number that a randomised bound on these votes goes by; 1, which gains nothing, if their stream has no key."""
        return uniform_of(self.streams[self.phase]) if self.phase in self.streams else 1.0

    @property
    def planned(self) -> bool:
        """Whether the number of votes was fixed before the first one, and no rule could have ended them earlier."""
        return self.stop is None and self.cap in (None, self.n)

    def ballot(self, answer: int) -> Ballot:
        """The votes in the form that the bound on this class's probability needs."""
        others = max((count for c, count in enumerate(self.counts) if c != answer), default=0)
        chose = (0, 0) if self.selection is None else (self.selection[answer], self.n0)
        return Ballot(
            self.counts[answer],
            others,
            self.n,
            self.alpha,
            self.planned,
            self.cap or self.n,
            chose,
            self.thresholds,
            None if self.pairs is None else (self.pairs.before.bound, self.pairs.before.ballot(answer)),
            0 if self.pairs is None else self.pairs.lost,
            self.uniform,
            None if self.pairs is None else self.pairs.gained,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        thresholds, held, pairs, looks = (plain.pop(name) for name in ("thresholds", "held", "pairs", "looks"))
        return {
            **plain,
            **({} if held is None else {"held": held.to_dict()}),
            "counts": list(self.counts),
            "selection": None if self.selection is None else list(self.selection),
            "law": law_to_json(self.law),
            "noise": asdict(self.noise),
            "versions": dict(self.versions),
            "streams": dict(self.streams),
            **({"thresholds": list(thresholds)} if thresholds else {}),
            **({"looks": list(looks)} if looks else {}),
            **({} if pairs is None else {"pairs": _pairs_to_dict(pairs)}),
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Evidence:
        """The inverse of ``to_dict``; also reads what version 0.1 wrote, where noise was one line of text."""
        plain = dict(record)
        noise = Noise(line=plain.pop("generator")) if is_first_version(plain) else Noise.from_dict(plain["noise"])
        selection, pairs = plain.get("selection"), plain.get("pairs")
        return cls(
            **{
                **plain,
                "counts": tuple(plain["counts"]),
                "selection": None if selection is None else tuple(selection),
                "thresholds": tuple(plain.get("thresholds", ())),
                "looks": tuple(plain.get("looks", ())),
                "pairs": None
                if pairs is None
                else Pairs(cls.from_dict(pairs["before"]), pairs["lost"], pairs.get("gained")),
                "law": law_from_json(plain["law"]),
                "noise": noise,
                "held": None if plain.get("held") is None else Held.from_dict(plain["held"]),
            }
        )


def is_first_version(record: Mapping[str, Any]) -> bool:
    """Whether version 0.1 wrote this evidence, which had fewer entries: its noise is a line of text."""
    return "generator" in record


def _pairs_to_dict(pairs: Pairs) -> dict[str, Any]:
    gained = {} if pairs.gained is None else {"gained": pairs.gained}
    return {"before": pairs.before.to_dict(), "lost": pairs.lost, **gained}


def law_to_json(law: Law) -> dict[str, Any]:
    """A law as its name and parameters; for a law from another package, also its module and its package.

    ``kind`` is then its name in the catalogue of laws.
    """
    cls = type(law)
    if getattr(laws, cls.__name__, None) is cls:
        return {"name": cls.__name__, **asdict(law)}
    made = LAWS.made(cls, {})
    registered = {} if made is None else {"kind": made.name, "package": made.package}
    return {"name": cls.__name__, "module": cls.__module__, **registered, **asdict(law)}


def law_from_json(entry: Mapping[str, Any]) -> Law:
    """Rebuild a law: one of UCAN's, or one that an installed package adds by name.

    A record never causes another module to be imported, since that would run its code; the user must import it.
    """
    parameters = dict(entry)
    name, module = parameters.pop("name"), parameters.pop("module", None)
    kind, package = parameters.pop("kind", None), parameters.pop("package", None)
    if module is None:
        found: Law = own_kind(laws, name)(**parameters)
        return found
    if kind is not None:
        law: Law = call("law", LAWS.load(kind, package=package), parameters)
        return law
    known = [cls for cls in subclasses(Law) if (cls.__module__, cls.__name__) == (module, name)]
    if not known:
        raise InvalidInput(f"this record's law is {name} of the module {module}: import that module first.")
    made: Law = known[-1](**parameters)
    return made


def make_law(name: str, parameters: Mapping[str, Any], where: str | None = None) -> Law:
    """The law of this name in the catalogue, with these parameters."""
    made = call("law", LAWS.load(name, where), parameters)
    if not isinstance(made, Law):
        raise InvalidInput(f"[law] {name!r} returned a {type(made).__name__}, which is not a ucan.Law.")
    return made


def own_kind(module: Any, name: str) -> Any:
    """A public class of a module of UCAN's, by its name in a record."""
    if name not in module.__all__:
        raise InvalidInput(f"this record names {name!r}, which this version does not know.")
    return getattr(module, name)


def subclasses(kind: Any) -> list[Any]:
    """All classes that derive from this one and are known by now."""
    direct: list[Any] = kind.__subclasses__()
    return direct + [inner for outer in direct for inner in subclasses(outer)]
