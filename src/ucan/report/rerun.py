"""How to run it again: the commands behind a run, from what its folder and its model's folder say."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from ucan import catalogue
from ucan.arithmetic import REAL
from ucan.audit.ledger import CONFIG
from ucan.audit.trials import MODES
from ucan.config import read_config
from ucan.errors import UcanError
from ucan.report.runs import AUDIT, Run
from ucan.training import is_trained_run, preset_names, read_settings

LAWS = {target.partition(":")[2]: name for name, target in catalogue.LAWS.own.items()}
NOISES = {"Isotropic": None, "Pattern(norm=1)": "pattern-1", "Pattern(norm=2)": "pattern-2"}
NOISES["Pattern(norm=inf)"] = "pattern-inf"


def commands(run: Run) -> list[str]:
    """The commands that made this run, in order; a remark (#) where a setting is not on record."""
    if run.config.get("kind") == "imported":
        return [_line("import", run.config.get("source", "FILE"), o=run.folder, scope=run.scope)]
    model = str(run.config.get("model", "MODEL"))
    made = _trained(model) if is_trained_run(model) else []
    return [*made, _certify(run, model), _audit(run)]


def _certify(run: Run, model: str) -> str:
    config = run.config
    law, trained = dict(config.get("law", {})), is_trained_run(model)
    given = dict(config.get("given", {}))
    noise = given.get("noise") or NOISES.get(config.get("noise", ""), "THE-SAME-SHAPE.npy")
    own = {
        "weights": config.get("weights"),
        "classes": given.get("classes"),
        "model_id": given.get("model_id"),
        "law": LAWS.get(law.get("name", ""), _law_from_outside(law)),
        "exponent": law.get("a"),
        "noise": noise,
    }
    options = {
        "model": model,
        "data": config.get("data", "DATA"),
        "split": _unless(config.get("split"), "test"),
        "size": config.get("size"),
        "channels": config.get("channels"),
        **({} if trained else own),
        "scale": law.get("scale"),
        "norm": _unless("2" if run.norm is None else f"{run.norm:g}", "2"),
        "budget": config.get("budget"),
        "n0": _unless(config.get("n0"), 100),
        "n": config.get("n"),
        "alpha": _unless(config.get("alpha"), 0.001),
        "bound": _unless(config.get("bound"), "binary"),
        "stop": config.get("stop"),
        "seed": config.get("seed_source") or _unless(config.get("seed"), 0),
        "family": config.get("family"),
        "precision": config.get("precision"),
        "arithmetic": "grid" if config.get("arithmetic", REAL) != REAL else REAL,
        "batch_size": config.get("batch_size"),
        "registry": config.get("registry"),
        "skip": _unless(config.get("skip"), 1),
        "max": run.inputs + run.left_out,
        "o": run.folder,
    }
    return _line("certify", **options)


def _law_from_outside(law: dict[str, Any]) -> str | None:
    """A law that a package adds, as the command line takes it."""
    own = {name: value for name, value in law.items() if name not in ("name", "module", "kind", "package", "scale")}
    return str(catalogue.Made(law["kind"], law.get("package"), own)) if "kind" in law else None


def _audit(run: Run) -> str:
    """The audit as it was run; where it was not, how to."""
    if not run.attempts:
        return _line("audit", run.folder)
    try:
        budget = read_config(run.folder / AUDIT / CONFIG)
    except UcanError:
        budget = {}
    modes = [mode for mode in MODES if any(a.mode == mode for a in run.attempts)]
    both = len(modes) == 2 or run.scope == "pipeline"
    names = ("steps", "draws", "restarts", "check", "level", "seed")
    return _line(
        "audit",
        run.folder,
        max=len({a.idx for a in run.attempts}),
        mode=None if both else modes[0],
        factors=",".join(f"{f:g}" for f in sorted({a.factor for a in run.attempts})),
        **{name: budget.get(name) for name in names},
    )


def _trained(folder: str) -> list[str]:
    """The training command, by the preset whose settings these are; otherwise the folder's config has them all."""
    training = read_config(Path(folder) / "config.toml").get("training", {})
    for name in preset_names():
        settings = read_settings(name).to_dict()
        if {k: v for k, v in settings.items() if v is not None} == training:
            return [_line("train", name, o=folder)]
    return [f"# {folder}: trained with the settings under [training] in {Path(folder) / 'config.toml'}"]


def _unless(value: Any, default: Any) -> Any:
    """The value, or None where leaving it out means the same."""
    return None if value == default else value


def _line(command: str, *words: Any, **options: Any) -> str:
    parts = ["ucan", command, *(str(word) for word in words)]
    for name, value in options.items():
        if value is not None:
            parts += ["-o" if name == "o" else f"--{name.replace('_', '-')}", str(value)]
    return shlex.join(parts)
