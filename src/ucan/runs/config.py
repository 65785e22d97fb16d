"""The config of a run: one typed, frozen record, read from and written to the run's ``config.toml``.

A field is either an option of the command that made the run, or it states what it is derived from. So the command can
be rebuilt from the record, and two configs can be compared field by field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ucan import laws
from ucan.arithmetic import REAL
from ucan.config import CONFIG, differences, handed_out, read_config, to_toml
from ucan.errors import InvalidInput, StoreError
from ucan.evidence import law_to_json
from ucan.laws import Law
from ucan.places import base_of, same_model, same_place
from ucan.plan import CertifyPlan, PredictPlan, SecretSeed, Seed, derived_from, holds_at_every_n, is_secret
from ucan.runs.fields import Leaf, Option, entry, from_table, leaves, to_table
from ucan.stop_option import package_of, parse_stop
from ucan.stopping import Stop

OF_FILE = "told by the file that was imported"


@dataclass(frozen=True)
class ModelRef:
    """The classifier: how it was given, and its identity. ``spec`` is None for a Python object."""

    spec: str | None = entry("model", certify=Option("--model"), recertify=Option("--model"))
    weights: str | None = entry(
        "weights", later=True, certify=Option("--weights", own=True), recertify=Option("--weights")
    )
    classes: int | None = entry("given.classes", compared=False, certify=Option("--classes", own=True))
    model_id: str | None = entry("given.model_id", compared=False, certify=Option("--model-id", own=True))
    weights_hash: str | None = entry("weights_hash", certify="of the weights that were loaded")
    identity: str | None = entry("identity", later=True, certify="of weights, model id or code")
    class_names: tuple[str, ...] = entry("class_names", (), later=True, certify="of the model, or of the data")
    named: tuple[str, ...] = entry("given.class_names", (), compared=False, certify=Option("--class-names", ()))
    trust: bool | None = entry("given.trust", compared=False, certify=Option("--trust"))
    normalise: str | None = entry("normalise", certify=Option("--normalise", own=True))


@dataclass(frozen=True)
class DataRef:
    """The inputs: how they were given, which were selected, and the hash of them all. ``skip`` is None if unknown."""

    source: str | None = entry("data", certify=Option("--data"), recertify=Option("--data"))
    split: str | None = entry("split", certify=Option("--split", "test"))
    size: int | None = entry("size", certify=Option("--size"))
    channels: int | None = entry("channels", certify=Option("--channels"))
    skip: int | None = entry("skip", certify=Option("--skip", 1))
    fingerprint: str | None = entry("data_hash", certify="of the data that were loaded")
    target: str | None = entry("target", certify=Option("--target"))
    id: str | None = entry("id", certify=Option("--id"))
    train: str | None = entry("train", certify=Option("--train"))
    hold: tuple[str, ...] = entry("hold", (), certify=Option("--hold", ()))
    vary: tuple[str, ...] = entry("vary", (), certify=Option("--vary", ()))
    columns: tuple[str, ...] = entry("columns", (), certify="of the table that the model is given")
    unit: str | None = entry("unit", certify=Option("--unit"))


@dataclass(frozen=True)
class LawRef:
    """The noise law: as given, its name, its module if it is not part of UCAN, λ, exponent, other parameters."""

    given: str | None = entry("given.law", compared=False, certify=Option("--law", own=True))
    name: str | None = entry("law.name", certify="of the law; without `given`, the option")
    module: str | None = entry("law.module", certify="of a law that another package brings, found by its name")
    scale: float | None = entry("law.scale", certify=Option("--scale"))
    exponent: float | None = entry("law.a", certify=Option("--exponent", own=True))
    others: Mapping[str, Any] = entry("law.*", {}, certify="of a law that another package brings")

    @classmethod
    def of(cls, law: Law) -> LawRef:
        """The record of a law."""
        return from_table(cls, {"law": law_to_json(law)}, "the law")

    def surplus(self) -> list[str]:
        """The keys of its table that are no parameters of this law, if it is one of ours."""
        kind = getattr(laws, self.name or "", None) if self.module is None and self.name in laws.__all__ else None
        known = {one.name for one in fields(kind)} if is_dataclass(kind) else set(self.others)
        return [f"law.{name}" for name in self.others if name not in known]


@dataclass(frozen=True)
class NoiseRef:
    """The shape of the noise: as given, its description, its settings, and a hash of its state."""

    given: str | None = entry("given.noise", compared=False, certify=Option("--noise", own=True))
    described: str | None = entry("noise", certify="of the generator")
    settings: Mapping[str, Any] = entry("noise_settings", {}, later=True, certify="of the generator")
    state: str | None = entry("noise_hash", later=True, certify="of the generator")
    sigma_given: str | None = entry("given.sigma", compared=False, certify=Option("--sigma"))
    sigma: Mapping[str, float] = entry("sigma", {}, certify="of the columns' own noise, and of the training table")
    steps: Mapping[str, float] = entry("steps", {}, certify="of the table's columns that vary")


@dataclass(frozen=True)
class ClaimRef:
    """The claim: its scope, norm, ALM cap, budget and registry."""

    scope: str | None = entry("scope", certify="of the generator and the registry", imported=Option("--scope"))
    norm: float | None = entry("norm", certify=Option("--norm", 2.0), imported=Option("--norm"))
    alm_cap: float | None = entry("alm_cap", certify="of law and generator", imported=Option("--alm-cap"))
    budget: float | str | None = entry("budget", certify=Option("--budget"))
    budget_hash: str | None = entry("budget_hash", certify="of the budget", imported=OF_FILE)
    registry: str | None = entry("registry", certify=Option("--registry"))


@dataclass(frozen=True)
class Sampling:
    """How the votes are drawn and bounded. A field is None if the run does not state it."""

    n0: int | None = entry("n0", certify=Option("--n0", 100))
    n: int | None = entry("n", certify=Option("--n"), recertify=Option("--n"))
    alpha: float | None = entry("alpha", certify=Option("--alpha", 0.001), imported=OF_FILE)
    bound: str | None = entry("bound", certify=Option("--bound", "binary"))
    stop: str | None = entry("stop", certify=Option("--stop"), imported=OF_FILE)
    stop_package: str | None = entry("stop_package", later=True, certify="of a rule that another package brings")
    seed: int | str | None = entry("seed", certify=Option("--seed", 0))
    seed_source: str | None = entry("seed_source", certify=Option("--seed"))
    family: int | None = entry("family", certify=Option("--family"))
    batch_size: int | None = entry("batch_size", certify=Option("--batch-size"))
    precision: str | None = entry("precision", certify=Option("--precision"), recertify=Option("--precision"))
    arithmetic: str = entry("arithmetic", REAL, certify=Option("--arithmetic"))
    backend: str | None = entry(
        "backend",
        certify="settled when the run began; the votes are the same",
        recertify=Option("--backend", "function"),
    )

    @classmethod
    def of(cls, plan: CertifyPlan, arithmetic: str, backend: str | None, precision: str | None) -> Sampling:
        """The record of a plan."""
        seed, source = kept_seed(plan)
        return cls(
            n0=plan.n0,
            n=plan.n,
            alpha=plan.alpha,
            bound=plan.bound,
            stop=plan.rule,
            stop_package=package_of(plan.stop),
            seed=seed,
            seed_source=source,
            family=plan.family if plan.family > 1 else None,
            batch_size=plan.batch_size,
            precision=precision,
            arithmetic=arithmetic,
            backend=backend,
        )

    @property
    def can_grow(self) -> bool:
        """Whether a run can be continued with a larger n: its bound holds at every number of votes."""
        return holds_at_every_n(self.bound, self.rule)

    @property
    def rule(self) -> Stop | None:
        """The stopping rule."""
        return parse_stop(self.stop, self.stop_package)

    @property
    def number(self) -> int:
        """The seed, and whether it is secret."""
        return seed_number(self.seed, self.seed_source)

    def plan(self, norm: float | None) -> CertifyPlan:
        """The plan without its stopping rule and budget; defaults replace what the run does not state."""
        told: dict[str, Any] = {
            "n0": self.n0,
            "n": self.n,
            "alpha": self.alpha,
            "norm": norm,
            "batch_size": self.batch_size,
        }
        told |= {"bound": self.bound, "precision": self.precision, "family": self.family}
        known = {name: value for name, value in told.items() if value is not None}
        return CertifyPlan(seed=self.number, **known)


@dataclass(frozen=True)
class ImportRef:
    """The source of imported results, and what is known about them."""

    source: str | None = entry("source", imported=Option("FILE"))
    format: str | None = entry("format", imported=OF_FILE)
    sha256: tuple[str, ...] = entry("sha256", (), imported=OF_FILE)
    isotropic: bool | None = entry("isotropic", imported=Option("--isotropic", False))
    certified_at: float | None = entry("certified_at", imported=Option("--certified-at"))
    notes: tuple[str, ...] = entry("notes", (), imported=OF_FILE)


@dataclass(frozen=True)
class RunConfig:
    """The config of a certified or an imported run. Unknown fields are None."""

    kind: Literal["certify", "imported", "recertify"] = entry(
        "kind", "certify", certify="the command", imported="the command", recertify="the command"
    )
    ucan: str | None = entry("ucan", certify="the version at work")
    before: str | None = entry("before", recertify=Option("RUN"))
    started_in: str | None = entry(
        "started_in",
        later=True,
        compared=False,
        certify="the working directory, seen from the run's folder",
        recertify="that of the run before",
    )
    name: str | None = entry("name", certify="given in Python only", imported=Option("--name"))
    model: ModelRef = field(default_factory=ModelRef)
    data: DataRef = field(default_factory=DataRef)
    law: LawRef = field(default_factory=LawRef)
    noise: NoiseRef = field(default_factory=NoiseRef)
    claim: ClaimRef = field(default_factory=ClaimRef)
    sampling: Sampling = field(default_factory=Sampling)
    imported: ImportRef = field(default_factory=ImportRef)

    @classmethod
    def of(cls, table: Mapping[str, Any], where: str = "the config") -> RunConfig:
        """Read the config from a table of plain values."""
        return from_table(cls, table, where)

    @property
    def is_imported(self) -> bool:
        """Whether the results were imported from a file; then there are no certificates."""
        return self.kind == "imported"

    def to_table(self) -> dict[str, Any]:
        """Plain values, as in ``config.toml``."""
        return to_table(self)

    def shown(self) -> str:
        """The config as TOML to publish, without a secret seed."""
        return to_toml(handed_out(self.to_table()))


@dataclass(frozen=True)
class PredictConfig:
    """The config of one ``ucan predict``."""

    kind: Literal["predict"] = entry("kind", "predict")
    ucan: str | None = entry("ucan")
    model: ModelRef = field(default_factory=ModelRef)
    data: DataRef = field(default_factory=DataRef)
    most: int | None = entry("max", compared=False)  # a larger one adds inputs
    started_in: str | None = entry("started_in", later=True, compared=False)  # seen from the table's folder
    law: LawRef = field(default_factory=LawRef)
    noise: NoiseRef = field(default_factory=NoiseRef)
    num_classes: int | None = entry("classes")
    n: int | None = entry("n")
    alpha: float | None = entry("alpha")
    seed: int | str | None = entry("seed")
    seed_source: str | None = entry("seed_source")
    test: str | None = entry("test")
    batch_size: int | None = entry("batch_size")
    stop: bool | None = entry("stop")
    precision: str | None = entry("precision")
    arithmetic: str = entry("arithmetic", REAL)
    backend: str | None = entry("backend")

    @property
    def number(self) -> int:
        """The seed, and whether it is secret."""
        return seed_number(self.seed, self.seed_source)


@dataclass(frozen=True)
class AskConfig:
    """The config of a run of a question: its name and its settings, and what all runs have."""

    kind: Literal["ask"] = entry("kind", "ask")
    ucan: str | None = entry("ucan")
    started_in: str | None = entry("started_in", later=True, compared=False)  # seen from the run's folder
    question: str | None = entry("question")
    settings: Mapping[str, Any] = entry("asked", {})
    model: ModelRef = field(default_factory=ModelRef)
    data: DataRef = field(default_factory=DataRef)
    law: LawRef = field(default_factory=LawRef)
    noise: NoiseRef = field(default_factory=NoiseRef)
    claim: ClaimRef = field(default_factory=ClaimRef)
    sampling: Sampling = field(default_factory=Sampling)
    looks: tuple[int, ...] = entry("looks", ())  # the numbers of samples at which a stopping rule looks


@dataclass(frozen=True)
class AuditConfig:
    """The config of an audit: the attack, the hash of the weights, and the hash of the run's config."""

    kind: Literal["audit"] = entry("kind", "audit")
    ucan: str | None = entry("ucan")
    weights_hash: str | None = entry("weights_hash")
    steps: int | None = entry("steps", audit=Option("--steps"))
    draws: int | None = entry("draws", audit=Option("--draws"))
    restarts: int | None = entry("restarts", audit=Option("--restarts"))
    check: int | None = entry("check", audit=Option("--check"))
    level: float | None = entry("level", audit=Option("--level"))
    seed: int | None = entry("seed", audit=Option("--seed"))
    attack: str | None = entry("attack", audit=Option("--attack"))
    run: str | None = entry("run")


@dataclass(frozen=True)
class TrainConfig:
    """The config of a training run: its settings as a table, which ``TrainSettings`` reads, and its data."""

    kind: Literal["train"] = entry("kind", "train")
    ucan: str | None = entry("ucan")
    shape: tuple[int, ...] = entry("shape", ())
    num_classes: int | None = entry("num_classes")
    class_names: tuple[str, ...] = entry("class_names", (), later=True)
    data_hash: str | None = entry("data_hash")
    finetune: str | None = entry("finetune")
    finetune_hash: str | None = entry("finetune_hash")
    started_in: str | None = entry("started_in")
    training: Mapping[str, Any] = entry("training", {})


def kept_seed(plan: CertifyPlan | PredictPlan) -> tuple[int | str, str | None]:
    """A plan's seed as stored in a config, and its origin unless it was given.

    A random or derived seed is stored as text, since it is too large for a TOML integer.
    """
    source = "random" if is_secret(plan.seed) else "derived" if derived_from(plan.seed) is not None else None
    return (f"{int(plan.seed):#x}" if source else plan.seed), source


def seed_number(seed: int | str | None, source: str | None) -> int:
    """A seed from a config."""
    try:
        number = int(seed, 16) if isinstance(seed, str) else int(seed or 0)
    except ValueError as error:
        raise StoreError(f"the config states the seed {seed!r}, which is no number: it was changed.") from error
    return SecretSeed(number) if source == "random" else number


def begun_seed(seed: Seed, begun: Sampling | PredictConfig | None) -> Seed:
    """The requested seed; a run that was started with a random seed keeps it."""
    return begun.number if seed is None and begun is not None and begun.seed_source == "random" else seed


def read_run_config(folder: Path, kinds: tuple[str, ...] = ("certify", "imported")) -> RunConfig | None:
    """Read the config of the run in a folder; None if there is none."""
    path = folder / CONFIG
    if not path.is_file():
        return None
    table = read_config(path)
    kind = table.get("kind", "certify")
    if kind not in kinds:
        raise InvalidInput(f"{folder} holds a run of another kind ({kind}); nothing was changed. Give a new folder.")
    return RunConfig.of(table, str(path))


def changes(begun: Any, asked: Any) -> list[str]:
    """One line per field that differs between two configs; fields that the older version did not store are skipped."""
    unknown = [leaf for leaf in leaves(type(begun)) if leaf.later and leaf.of(begun) in (None, {}, ())]
    spelled = [leaf for leaf in leaves(type(begun)) if not leaf.compared]
    before, after = (_without(to_table(config), [*unknown, *spelled]) for config in (begun, asked))
    return differences(before, after)


def respelled(begun: Any, asked: Any, folder: Path) -> Any:
    """The requested config with the paths of the run in ``folder`` where they lead to the same files from here."""
    base = base_of(folder, begun.started_in)
    model, data = asked.model, asked.data
    if same_model(begun.model.spec, base, model.spec):
        model = replace(model, spec=begun.model.spec)
    if same_place(begun.model.weights, base, model.weights):
        model = replace(model, weights=begun.model.weights)
    for name in ("source", "train"):
        if same_place(getattr(begun.data, name), base, getattr(data, name)):
            data = replace(data, **{name: getattr(begun.data, name)})
    moved = replace(asked, model=model, data=data)
    if isinstance(asked, PredictConfig):
        return moved
    claim = asked.claim
    for name in ("registry", "budget"):
        old, new = getattr(begun.claim, name), getattr(claim, name)
        if isinstance(old, str) and isinstance(new, str) and same_place(old, base, new):
            claim = replace(claim, **{name: old})
    return replace(moved, claim=claim)


def _without(table: dict[str, Any], left_out: list[Leaf]) -> dict[str, Any]:
    """The table without these fields."""
    for leaf in left_out:
        place = table
        for name in leaf.key[:-1]:
            place = place.get(name, {})
        place.pop(leaf.key[-1], None)
    return table
