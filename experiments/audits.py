"""Train every kind of noise, certify, and let the auditor attack at least so many certificates of each.

    python experiments/audits.py mnist --out OUT --certificates 500
    python experiments/audits.py cifar10 --out OUT --only certification-wise --certificates 150 --min-radius 0.5
    python experiments/audits.py rows --runs runs/suite --only cifar10-alm 'cifar10-isotropic-*' --certificates 100

The last form attacks rows of the suite with the weights that it trained, those that have some. Each run is recorded in a
file of its own, OUT/DATA-NAME.json (a row's in OUT/NAME.json): the settings, how many certificates were attacked at which
shares of their regions, how many broke, and whether that is a bug by the auditor's rule. A recorded run is not run again,
so several processes can share the list (--only).
"""

from __future__ import annotations

import argparse
import fnmatch
import itertools
import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rows import ROWS
from suite import changes_of, runs_of, smoothed

from ucan import Certificate, SmoothedClassifier, __version__, data
from ucan.audit import Attempt, Budget, Ledger, audit_all, summarise
from ucan.data import Labelled
from ucan.fingerprint import weights_hash
from ucan.models.cnn import CNN
from ucan.plan import CertifyPlan
from ucan.runs.train import changed
from ucan.storage import write_whole
from ucan.training import Trainer, build_classifier, is_trained_run, read_settings

HERE = Path(__file__).parent
LAPLACE = ["law.kind=laplace", "law.scale=0.5"]
UNIFORM = ["law.kind=uniform", "law.scale=1.0"]
EXPINF = ["law.kind=expinf", "law.scale=0.002"]
COMPOSED = ["generator.kind=composed", "generator.share=0.25", "generator_lr=0.002"]
DIGITS = ["law.scale=0.5"]
SMALL = ["generator.features=4", "generator.growth=4"]
RUNS: dict[str, dict[str, tuple[str, list[str], float]]] = {
    "digits": {
        "isotropic": ("digits-isotropic", DIGITS, 2),
        "pattern": ("digits-pattern", DIGITS, 2),
        "dataset-wise": ("digits-dataset", [], 2),
        "basis-wise": ("digits-basis", [], 2),
        "composed-linf": ("digits-isotropic", [*DIGITS, *COMPOSED, *SMALL, "generator.norm=inf"], math.inf),
        "composed-l2": ("digits-isotropic", [*DIGITS, *COMPOSED, *SMALL, "generator.norm=2"], 2),
        "isotropic-linf": ("digits-isotropic", DIGITS, math.inf),
        "isotropic-l1": ("digits-isotropic", DIGITS, 1),
        "laplace-l1": ("digits-isotropic", LAPLACE, 1),
        "uniform-l1": ("digits-isotropic", UNIFORM, 1),
        "expinf-linf": ("digits-isotropic", ['law={kind="expinf", std=0.5}'], math.inf),
        "certification-laplace-l1": ("digits-certification", ['law={kind="laplace", std=1.0}', *SMALL], 1),
        "certification-linf": ("digits-certification", SMALL, math.inf),
        "certification-uniform-l1": ("digits-certification", ['law={kind="uniform", std=1.0}', *SMALL], 1),
    },
    "mnist": {
        "isotropic": ("mnist-isotropic-fast", ["law.scale=0.5"], 2),
        "pattern": ("mnist-pattern-fast", [], 2),
        "dataset-wise": ("mnist-dataset-fast", [], 2),
        "basis-wise": ("mnist-basis-fast", [], 2),
        "composed-linf": ("mnist-isotropic-fast", ["law.scale=0.5", *COMPOSED, "generator.norm=inf"], math.inf),
        "composed-l2": ("mnist-isotropic-fast", ["law.scale=0.5", *COMPOSED, "generator.norm=2"], 2),
        "certification-wise": ("mnist-certification-fast", [], 2),
        "isotropic-linf": ("mnist-isotropic-fast", ["law.scale=0.5"], math.inf),
        "isotropic-l1": ("mnist-isotropic-fast", ["law.scale=0.5"], 1),
        "laplace-l1": ("mnist-isotropic-fast", LAPLACE, 1),
        "uniform-l1": ("mnist-isotropic-fast", UNIFORM, 1),
        "expinf-linf": ("mnist-isotropic-fast", EXPINF, math.inf),
    },
    "cifar10": {
        "certification-wise": ("cifar10-certification-fast", [], 2),
        "basis-wise": ("cifar10-basis", [], 2),
    },
}


@dataclass(frozen=True)
class Target:
    """A trained classifier under its noise, and what its record says of it."""

    g: SmoothedClassifier
    norm: float
    about: dict[str, Any]
    test_set: Labelled
    train_set: Labelled


def trained_here(source: str, name: str, args: argparse.Namespace) -> Target:
    """One of ``RUNS``, trained now."""
    preset, changes, norm = RUNS[source][name]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    settings = changed(read_settings(preset), changes + args.set)
    train_set, test_set = data.load(settings.data, "train"), data.load(settings.data, "test")
    if source == "digits":  # a small network, so that thousands of attacks take minutes on a CPU
        classifier: torch.nn.Module = CNN(1, 8, 10, width=8)
    else:
        classifier = build_classifier(settings, train_set.event_shape, train_set.num_classes)
    start = time.perf_counter()
    trainer = Trainer(settings, train_set, classifier, args.runs / f"{source}-{name}", device)
    trainer.run()
    trainer.joint.load_state_dict(trainer.final_state())
    joint = trainer.joint.eval()
    about = {"preset": preset, "changes": changes + args.set, "seed": settings.seed,
             "train_seconds": round(time.perf_counter() - start, 1)}  # fmt: skip
    g = SmoothedClassifier(joint.classifier, trainer.law, joint.generator, train_set.num_classes)
    return Target(g, norm, about, test_set, train_set)


def of_suite(name: str, args: argparse.Namespace) -> Target | None:
    """A row of the suite, with the weights in its folder; none where it is not trained."""
    row = next(row for row in ROWS if row.name == name)
    members = runs_of(row, args.suite, args.runs, args.set)
    if not all(is_trained_run(folder) for folder in members):
        return None
    settings = next(iter(members.values()))
    g = smoothed(tuple(members), row.mirrored, "eager")
    about = {"preset": row.preset, "changes": [*changes_of(row, args.suite), *args.set], "seed": settings.seed,
             "members": row.members, "mirrored": row.mirrored, "weights": weights_hash(g.f.model)}  # fmt: skip
    return Target(g, row.claims[0].norm, about, data.load(settings.data, "test"), data.load(settings.data, "train"))


def run(target: Target, name: str, args: argparse.Namespace, path: Path) -> None:
    """Certify test inputs and attack what was certified; the record is kept as it grows."""
    g, norm, test_set = target.g, target.norm, target.test_set
    device = g.f.device or torch.device("cpu")
    precision = "bf16" if device.type == "cuda" else None  # as the suite certifies
    plan, budget = CertifyPlan(n=args.n, norm=norm, precision=precision), Budget()
    g.check_inputs(test_set[0][0][None].to(device), norm)
    ledger = Ledger(args.runs / f"{path.stem}-audit", {"kind": "audit", "n": args.n, **vars(budget)})
    inputs = [*(test_set[i][0] for i in range(min(len(test_set), 4 * args.certificates)))]
    more = min(len(target.train_set), 4 * args.certificates - len(inputs))  # a small test set is soon used up
    inputs += [target.train_set[i][0] for i in range(more)]
    start = time.perf_counter()

    def cases() -> Iterator[tuple[int, torch.Tensor, Certificate]]:
        for i, outcome in g.certify_each((x[None].to(device) for x in inputs), plan):
            if isinstance(outcome, Certificate) and outcome.radius >= args.min_radius and outcome.radius > 0:
                yield i, inputs[i][None].to(device), outcome

    def record(attempts: list[Attempt], complete: bool) -> None:
        summary = summarise(attempts).to_dict()
        kept = {
            "complete": complete, **target.about, "norm": str(norm), "n": args.n, "alpha": plan.alpha,
            "precision": precision or "fp32", "min_radius": args.min_radius, "budget": vars(budget), "summary": summary,
            "audit_seconds": round(time.perf_counter() - start, 1), "ucan": __version__, "torch": torch.__version__,
            "hardware": torch.cuda.get_device_name() if device.type == "cuda" else "CPU",
        }  # fmt: skip
        write_whole(path, (json.dumps(kept, indent=1) + "\n").encode())
        print(f"{name}: {summary['attacked']} attacked, broken {summary['broken']}, bug {summary['bug']}, "
              f"{time.perf_counter() - start:.0f} s", flush=True)  # fmt: skip

    waiting, attempts, attacked = cases(), list[Attempt](), 0
    while some := list(itertools.islice(waiting, min(50, args.certificates - attacked))):
        attempts += audit_all(g, some, ledger, budget=budget)
        attacked += len(some)
        record(attempts, attacked == args.certificates)


def main() -> None:
    """Run what is asked for and not yet recorded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", choices=[*sorted(RUNS), "rows"])
    parser.add_argument("--out", type=Path, default=HERE / "recorded" / "audits")
    parser.add_argument("--suite", type=Path, default=HERE / "recorded" / "suite", help="the records of the suite")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where the trained weights go")
    parser.add_argument("--only", nargs="*", default=["*"], help="names, with wildcards")
    parser.add_argument("--certificates", type=int, default=500)
    parser.add_argument("--min-radius", type=float, default=0.0)
    parser.add_argument("--n", type=int, default=10_000)
    parser.add_argument(
        "--set", nargs="*", action="extend", default=[], help="settings to change in every run, key=value"
    )
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    rows = args.data == "rows"
    for name in [row.name for row in ROWS] if rows else RUNS[args.data]:
        path = args.out / (f"{name}.json" if rows else f"{args.data}-{name}.json")
        if not any(fnmatch.fnmatch(name, glob) for glob in args.only):
            continue
        if path.exists() and json.loads(path.read_text())["complete"]:
            continue
        if target := of_suite(name, args) if rows else trained_here(args.data, name, args):
            run(target, name, args, path)
        else:
            print(f"{name}: no weights under {args.runs}", flush=True)


if __name__ == "__main__":
    main()
