"""How to run it again: the commands behind a run, made from the fields of its config."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ucan import catalogue
from ucan.arithmetic import REAL
from ucan.audit.trials import MODES
from ucan.config import CONFIG, read_config
from ucan.errors import UcanError
from ucan.places import found_model, is_call
from ucan.runs.audited import AUDIT
from ucan.runs.config import AuditConfig, RunConfig, TrainConfig
from ucan.runs.fields import Leaf, Option, from_table, leaves
from ucan.runs.read import Run
from ucan.runs.router import is_router
from ucan.training import Together, TrainSettings, is_trained_run, preset_names, read_settings

LAWS = {target.partition(":")[2]: name for name, target in catalogue.LAWS.own.items()}
NOISES = {"Isotropic": None, "Pattern(norm=1)": "pattern-1", "Pattern(norm=2)": "pattern-2"}
NOISES["Pattern(norm=inf)"] = "pattern-inf"


def commands(run: Run) -> list[str]:
    """The commands that made this run, in order; a remark (#) where a setting is not on record."""
    folder, made = place(run.folder, run.base)
    if run.config.is_imported:
        return [line("import", *options(run.config), "-o", folder)]
    if run.config.kind == "recertify":
        return [line("recertify", *options(run.config), "-o", folder), _audit(run, folder)]
    model = found_model(run.config.model.spec or "", run.base)
    made += [text for one in Together.of(model).folders if is_trained_run(one) for text in _trained(one)]
    most = run.inputs + run.left_out
    given = options(run.config, trained=is_router(model) or (bool(model) and is_trained_run(model)))
    return [*made, line("certify", *given, "--max", most, "-o", folder), _audit(run, folder)]


def place(folder: Path, base: Path | None) -> tuple[Path, list[str]]:
    """A run's folder as the commands name it, and the change of directory that they need; none if it was started here."""
    if base is None or base == Path.cwd():
        return folder, []
    return Path(os.path.relpath(folder, base)), [shlex.join(["cd", os.path.relpath(base)])]


def options(config: Any, kind: str | None = None, trained: bool = False) -> Iterator[Any]:
    """Every field that is an option of the command, as one gives it; those that say what is usual are left out.

    ``kind`` is the command, if it is not the config's own kind: `ucan ask` has the options of `ucan certify`.
    """
    kind = kind or config.kind
    for leaf in leaves(type(config)):
        role = leaf.roles.get(kind)
        if not isinstance(role, Option) or (role.own and trained and not _optimised(leaf, config)):
            continue
        value = SPELLED[leaf.path](config) if kind == "certify" and leaf.path in SPELLED else leaf.of(config)
        if value is None or value == role.default:
            continue
        if role.name.startswith("-"):
            yield role.name
        if value is not True:
            yield f"{value:g}" if role.name == "--norm" else ",".join(value) if isinstance(value, tuple) else value


def _optimised(leaf: Leaf, config: Any) -> bool:
    """Whether this is `--noise` that was given for a trained run: noise optimised on its classifier."""
    return leaf.path == ("noise", "given") and config.noise.given is not None


def _noise(config: RunConfig) -> str | None:
    """`--noise` as it was given; of a run that does not tell, what its noise says of itself. A table's is by column."""
    if config.noise.sigma:
        return None
    return config.noise.given or NOISES.get(config.noise.described or "", "THE-SAME-SHAPE.npy")


def _sigma(config: RunConfig) -> str | None:
    """`--sigma` as it was given; where it came from a table that was given as an object, in numbers."""
    told = config.noise.sigma_given
    if told is not None or config.data.train is not None or not config.noise.sigma:
        return told
    return ",".join(f"{name}={value:g}" for name, value in config.noise.sigma.items())


# Fields that an option spells in another way.
SPELLED: dict[tuple[str, ...], Callable[[RunConfig], Any]] = {
    ("model", "spec"): lambda config: config.model.spec or "MODEL",
    ("data", "source"): lambda config: config.data.source or "DATA",
    ("law", "given"): lambda config: config.law.given or LAWS.get(config.law.name or ""),
    ("noise", "given"): _noise,
    ("noise", "sigma_given"): _sigma,
    ("sampling", "seed"): lambda config: None if config.sampling.seed_source else config.sampling.seed,
    ("sampling", "arithmetic"): lambda config: REAL if config.sampling.arithmetic == REAL else "grid",
}


def _audit(run: Run, folder: Path) -> str:
    """The audit as it was run; where it was not, how to."""
    trusted = ["--trust"] if run.config.model.trust or is_call(run.config.model.spec or "") else []
    if not run.attempts:
        return line("audit", folder, *trusted)
    path = run.folder / AUDIT / CONFIG
    try:
        config = from_table(AuditConfig, read_config(path), str(path))
    except UcanError:
        config = AuditConfig()
    modes = [mode for mode in MODES if any(a.mode == mode for a in run.attempts)]
    both = len(modes) == 2 or run.scope == "pipeline"
    factors = ",".join(f"{f:g}" for f in sorted({a.factor for a in run.attempts}))
    chosen = ["--max", len({a.idx for a in run.attempts}), *([] if both else ["--mode", modes[0]])]
    return line("audit", folder, *chosen, "--factors", factors, *options(config), *trusted)


def _trained(folder: str) -> list[str]:
    """The training command, by the preset whose settings these are; otherwise the folder's config has them all.

    A remark says which weights it began with.
    """
    path = Path(folder) / CONFIG
    config = from_table(TrainConfig, read_config(path), str(path))
    settings, start, remarks = TrainSettings.from_dict(dict(config.training)), list[str](), list[str]()
    if config.finetune is not None:
        start = ["--finetune", config.finetune]
        told = "without a record of which" if config.finetune_hash is None else f"SHA-256 {config.finetune_hash}"
        remarks = [f"# {folder}: began with the weights in {config.finetune}, {told}"]
    for name in preset_names():
        if read_settings(name) == settings:
            return [*remarks, line("train", name, *start, "-o", folder)]
    return [*remarks, f"# {folder}: trained with the settings under [training] in {path}"]


def line(command: str, *words: Any) -> str:
    """A command of ours, as a shell takes it."""
    return shlex.join(["ucan", command, *map(str, words)])
