"""Every recipe on equal terms: one network, one budget of forward-backward passes, one noise, one test set, one statistics.

    python experiments/methods.py --list
    python experiments/methods.py consistency smoothadv-0.25 --caps 10000 --seconds 500
    python experiments/methods.py --merge methods.json

A row trains the same ResNet-18 with one recipe at σ = 0.5, for as many epochs as 6 million passes last: 60 epochs of
consistency with two draws (a forward pass alone counts a third, `Recipe.cost`). Then every fifth test input is certified: one
set of votes decides the radii 0, 0.25, … 2.25 (up to --largest), with at most so many votes as --caps says, one pass over all
inputs for each cap; and 100 certificates are attacked. OUT/NAME.json grows as it goes, and so does OUT/audits/NAME.json; what
is there already is gone on with, also a training, from its last epoch. methods.sh puts several rows side by side on one GPU.

NAME-0.25 and NAME-1, or `--sigma`, do the same at other noise, with the methods' parameters there, into NAME-SIGMA.json.
`--all` goes on with all 10,000 test inputs after that, with the same caps.

Optimiser, schedule and precision are those of the preset cifar10-consistency. A step takes 256 noisy copies, as the authors'
programs do: 256/m inputs with m draws each. The moving average of the weights has a window of a twentieth of the steps.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from methods_stages import added, passed, stages_of
from rows import GRID, Row, radius
from suite import ALPHA, N0, Record, certify, in_order, loaded, packed, settings_of

from ucan import Certificate, Ensemble, SmoothedClassifier, __version__
from ucan.audit import Attempt, Budget, Ledger, audit_all, summarise
from ucan.bench import machine
from ucan.errors import UcanError
from ucan.fingerprint import weights_hash
from ucan.plan import CertifyPlan
from ucan.runs.train import TrainJob, trainer_of
from ucan.storage import write_whole
from ucan.training import TrainSettings, is_trained_run, load_run
from ucan.training.recipes import mean_cost

BASE, SIGMA, PASSES, COPIES = "cifar10-consistency", 0.5, 6_000_000, 256
EVERY, FIFTH, ALL, VOTES, FACTOR = 5, 2_000, 10_000, 100_000, 0.999


@dataclass(frozen=True)
class Method:
    """A recipe with its parameters at σ = 0.5, and where these are not the authors' own, why.

    ``shares`` are parameters that are numbers of epochs, given as shares of the training; ``elsewhere`` has those that are
    others at another σ, for every σ that the method was set for.
    """

    name: str
    recipe: str
    parameters: dict[str, float]
    shares: dict[str, float] = field(default_factory=dict)
    batch: int | None = None  # inputs in a step, where it is not 256 copies
    lr: float = 0.1
    members: int = 1
    differs: str = ""
    elsewhere: dict[float, dict[str, float]] = field(default_factory=dict)

    def at(self, sigma: float) -> Method:
        """With its parameters at this σ, under a name that says it."""
        if sigma == SIGMA:
            return self
        if sigma not in self.elsewhere:
            raise SystemExit(f"{self.name} has no parameters for σ = {sigma:g}; those that have: "
                             f"{', '.join(m.name for m in METHODS.values() if sigma in m.elsewhere) or 'none'}")  # fmt: skip
        name, parameters = f"{self.name}-{sigma:g}", self.parameters | self.elsewhere[sigma]
        return replace(self, name=name, parameters=parameters, elsewhere={})


WARM = {"warm": 1 / 15}  # 10 of the authors' 150 epochs
METHODS = {
    method.name: method
    for method in (
        Method("consistency", "consistency", {"draws": 2, "weight": 10.0, "entropy": 0.5},
               elsewhere={0.25: {"weight": 20.0}, 1.0: {}}),
        Method("catrs", "catrs", {"draws": 2, "steps": 4, "size": 1.0, "weight": 1.0, "start": 0.2, "votes": 48, "every": 1000},
               differs="m = 2 (the authors' 4 leaves 5 epochs); the smoothed answers are 48 votes of the network itself"),
        Method("acr", "acr", {"draws": 2, "start": 0.46, "drop": 0.4, "steps": 6, "length": 0.25, "every": 3},
               differs="m = 2 (the authors' 4 leaves 5 epochs); weights renewed every third epoch"),
        Method("smoothadv", "smoothadv", {"draws": 2, "steps": 2, "size": 2.0}, WARM,
               differs="T = 2, m = 2, ε = 2 is one of their settings for σ = 0.5; the released file has T = 10, m = 8, ε = 1",
               elsewhere={0.25: {"size": 1.0}, 1.0: {}}),
        Method("sphere", "sphere", {"draws": 2, "weight": 5.0, "entropy": 0.5, "start": 0.4, "steps": 2, "length": 0.3},
               elsewhere={0.25: {"length": 0.2}, 1.0: {"length": 0.5}}),
        Method("macer", "macer", {"draws": 8, "weight": 4.0, "margin": 8.0, "sharpness": 16.0}, batch=64, lr=0.03,
               differs="m = 8 (the authors' 16 leaves 7 epochs, and they train for 440); lr 0.03 instead of 0.01"),
        Method("smoothmix", "smoothmix", {"draws": 2, "steps": 4, "length": 1.0, "weight": 5.0, "one_step": 1}, WARM),
        Method("gaussian", "augmentation", {"draws": 1}),
        Method("stability", "stability", {"draws": 1, "weight": 2.0}),
        Method("drt", "drt", {"draws": 1, "diversity": 0.5, "margins": 2.0}, members=3,
               differs="written from the paper; the public program that we take to be the authors' squares the norm, takes "
                       "margins between each network's own first two classes, counts them where that network is right "
                       "(gradients where both of a pair are), and divides by what counts; trained from the start, "
                       "not fine-tuned; three networks share the budget"),
    )
}  # fmt: skip


# --- from a budget of passes to settings ---


def settings_for(
    method: Method, passes: float, inputs: int, more: tuple[str, ...] = (), sigma: float = SIGMA
) -> tuple[TrainSettings, list[str]]:
    """The settings that come nearest to so many passes on so many training inputs, and the preset's changes that make them."""
    batch = method.batch or COPIES // int(method.parameters["draws"])
    more = (f"law.scale={sigma}", *more)
    found = _with_epochs(method, 1, batch, inputs, more)
    for epochs in itertools.count(2):
        further = _with_epochs(method, epochs, batch, inputs, more)
        if abs(spent(method, further[0], inputs) - passes) > abs(spent(method, found[0], inputs) - passes):
            break
        found = further
    return found


def _with_epochs(
    method: Method, epochs: int, batch: int, inputs: int, more: tuple[str, ...]
) -> tuple[TrainSettings, list[str]]:
    steps = epochs * max(1, inputs // batch)
    values = {**method.parameters, **{name: round(share * epochs, 2) for name, share in method.shares.items()}}
    table = ", ".join([f'kind="{method.recipe}"', *(f"{name}={value}" for name, value in values.items())])
    changes = [
        f"recipe={{{table}}}",
        f"epochs={epochs}",
        f"batch={batch}",
        f"lr={method.lr}",
        f"ema={max(0.0, round(1 - 20 / steps, 5))}",
        *([f"networks={method.members}"] if method.members > 1 else []),
        *more,
    ]
    return settings_of(BASE, changes), changes


def spent(method: Method, settings: TrainSettings, inputs: int) -> float:
    """Forward-backward passes of the whole training, of all networks together."""
    return mean_cost(settings.build_recipe(), settings.epochs) * settings.epochs * inputs * method.members


# --- one row ---


@dataclass(frozen=True)
class Job:
    """A method, its settings and where its files are."""

    method: Method
    settings: TrainSettings
    changes: list[str]
    row: Row
    args: argparse.Namespace

    @classmethod
    def of(cls, method: Method, args: argparse.Namespace) -> Job:
        """With the budget and the certification that the command line asks for."""
        method = method.at(args.sigma)
        settings, changes = settings_for(
            method, args.passes, len(loaded("cifar10", "train")), tuple(args.set), args.sigma
        )
        inputs, asked = ALL if args.all else args.inputs, (level for level in GRID if level <= args.largest)
        row = Row(
            method.name, "docs/methods.md", BASE, tuple(changes), (radius(*asked),), inputs, args.votes,
            members=method.members, mirrored=args.mirrored,
        )  # fmt: skip
        return cls(method, settings, changes, row, args)

    @property
    def folder(self) -> Path:
        """The training run."""
        return self.args.runs / self.method.name

    @property
    def path(self) -> Path:
        """The record."""
        return self.args.out / f"{self.method.name}.json"

    def train(self) -> None:
        """Train, or go on with it; the seconds of all attempts are kept beside the weights."""
        if is_trained_run(self.folder):
            return
        start, clock = time.monotonic(), Path(f"{self.folder}.seconds")
        before = float(clock.read_text()) if clock.exists() else 0.0
        job = TrainJob(settings=self.settings, data=loaded("cifar10", "train"))
        trainer_of(job, self.folder, lambda *_: clock.write_text(f"{before + time.monotonic() - start:.1f}")).run()
        clock.write_text(f"{before + time.monotonic() - start:.1f}")

    def smoothed(self, backend: str) -> SmoothedClassifier:
        """The trained classifier under its noise, on the device."""
        run = load_run(self.folder)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        model = Ensemble([run.classifier], mirrored=True) if self.args.mirrored else run.classifier
        return SmoothedClassifier(model.to(device), run.law, run.generator.to(device), run.num_classes, backend)

    @functools.cached_property
    def voting(self) -> SmoothedClassifier:
        """Made, and compiled, once for all passes of this process."""
        return self.smoothed(self.args.backend)

    def certify(self, inputs: int, cap: int, deadline: float) -> None:
        """One pass over the first so many inputs, with up to ``cap`` votes each."""
        test_set, start = loaded("cifar10", "test"), time.monotonic()
        record = Record.of_these(self.path, self.about(self.voting), self.row.claims, len(test_set))
        known = stages_of(json.loads(self.path.read_text())) if self.path.exists() else []  # of these weights
        if passed(known, inputs) >= cap:
            return
        record.about |= {"passed": passed(known, 1), "stages": [vars(one) for one in known]}
        certify(self.voting, test_set, record, self.row, inputs, cap, deadline)
        if time.monotonic() < deadline:
            (reached,) = record.levels.reached.values()
            record.about["stages"] = added(known, inputs, cap, packed(reached))
            record.about["passed"] = max(record.about["passed"], cap)
            record.save(self.row)
        print(f"{self.method.name}: {record.seen} inputs, {len(record.levels.open)} open after {cap} votes at most, "
              f"{time.monotonic() - start:.0f} s, {record.to_dict(self.row)['accuracy']}", flush=True)  # fmt: skip

    def about(self, g: SmoothedClassifier) -> dict[str, Any]:
        """What the record says besides its numbers."""
        seconds = Path(f"{self.folder}.seconds")
        passes = spent(self.method, self.settings, len(loaded("cifar10", "train")))
        return {
            "method": self.method.name, "recipe": self.settings.recipe, "differs": self.method.differs,
            "passes": round(passes), "passes_per_input": round(passes / len(loaded("cifar10", "train")), 2),
            "preset": BASE, "changes": self.changes, "seed": self.settings.seed, "epochs": self.settings.epochs,
            "batch": self.settings.batch, "law": repr(g.law), "generator": g.M.describe(), "scope": g.M.scope,
            "members": self.method.members, "mirrored": self.args.mirrored, "n0": N0, "n": self.row.n, "alpha": ALPHA,
            "weights": weights_hash(g.f.model), "noise": weights_hash(g.M),
            "precision": "bf16" if torch.cuda.is_available() else "fp32", "backend": self.args.backend,
            "train_seconds": float(seconds.read_text()) if seconds.exists() else None,
            "ucan": __version__, "torch": torch.__version__, "python": platform.python_version(),
            "hardware": machine(g.f.device or torch.device("cpu"))["device"],
        }  # fmt: skip

    def attack(self) -> None:
        """Certify inputs of the same list once more, each by itself, and attack them near the edge of their regions."""
        path = self.args.out / "audits" / f"{self.method.name}.json"
        known = json.loads(path.read_text()) if path.exists() else {"complete": False}
        if known["complete"] and known["weights"] == weights_hash(self.voting.f.model):
            return
        g, budget = self.smoothed("eager"), Budget()
        device = g.f.device or torch.device("cpu")
        plan = CertifyPlan(n=self.args.audit_n, precision="bf16" if device.type == "cuda" else None)
        ledger = Ledger(self.args.runs / f"{self.method.name}-audit", {"kind": "audit", "n": plan.n, **vars(budget)})
        start, attempts = time.monotonic(), list[Attempt]()
        waiting, wanted = self._cases(g, plan, device), self.args.certificates
        while some := list(itertools.islice(waiting, min(50, wanted - attacked(attempts)))):
            attempts += audit_all(g, some, ledger, factors=(FACTOR,), budget=budget)
            kept = {
                "complete": attacked(attempts) >= wanted, "weights": weights_hash(g.f.model), "n": plan.n, "alpha": plan.alpha,
                "factor": FACTOR, "budget": vars(budget), "summary": summarise(attempts, EVERY).to_dict(),
                "seconds": round(time.monotonic() - start, 1),
            }  # fmt: skip
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, (json.dumps(kept, indent=1) + "\n").encode())
        found = summarise(attempts, EVERY)
        print(f"{self.method.name}: {found.attacked} attacked, broken {found.broken}, "
              f"{time.monotonic() - start:.0f} s", flush=True)  # fmt: skip

    def _cases(
        self, g: SmoothedClassifier, plan: CertifyPlan, device: torch.device
    ) -> Iterator[tuple[int, torch.Tensor, Certificate]]:
        test_set = loaded("cifar10", "test")
        numbers = in_order(len(test_set))[: self.args.inputs]
        inputs = (test_set[i][0][None].to(device) for i in numbers)
        for k, outcome in g.certify_each(inputs, plan):
            if isinstance(outcome, Certificate) and outcome.radius > 0:
                yield numbers[k], test_set[numbers[k]][0][None].to(device), outcome


def attacked(attempts: list[Attempt]) -> int:
    """How many certificates these attempts are about."""
    return len({attempt.idx for attempt in attempts})


# --- the command ---


def listed(args: argparse.Namespace) -> None:
    """What every row would do."""
    for method in METHODS.values():
        job = Job.of(method, args)
        passes = spent(method, job.settings, len(loaded("cifar10", "train")))
        steps = job.settings.epochs * (len(loaded("cifar10", "train")) // job.settings.batch)
        print(f"{method.name:12} {job.settings.epochs:4} epochs, {steps:6} steps, {passes / 1e6:5.2f} million passes, "
              f"ema {job.settings.ema}, {job.settings.recipe}")  # fmt: skip


def merged(out: Path) -> dict[str, Any]:
    """All records with their audits, in the order of the list; those at another σ apart."""
    others = [method.at(sigma).name for method in METHODS.values() for sigma in method.elsewhere]
    rows = {name: found for name in METHODS if (found := _kept(out, name)) is not None}
    elsewhere = {name: found for name in others if (found := _kept(out, name)) is not None}
    return {"passes": PASSES, "sigma": SIGMA, "every": EVERY, "rows": rows, "elsewhere": elsewhere}


def _kept(out: Path, name: str) -> dict[str, Any] | None:
    """The record of a row with its audit, if there is one."""
    path, audit = out / f"{name}.json", out / "audits" / f"{name}.json"
    if not path.exists():
        return None
    found: dict[str, Any] = json.loads(path.read_text())
    return found | {"audit": json.loads(audit.read_text()) if audit.exists() else None}


def asked() -> argparse.Namespace:
    """The words of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", help=f"of {', '.join(METHODS)}; by default all; NAME-SIGMA for another σ")
    parser.add_argument("--out", type=Path, default=Path("methods"), help="where the records go")
    parser.add_argument("--runs", type=Path, default=Path("runs/methods"), help="where the trained weights go")
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument(
        "--training", type=float, default=0.0, help="begin no training with fewer seconds left than this"
    )
    parser.add_argument("--sigma", type=float, default=SIGMA, help="the scale of the noise: 0.25, 0.5 or 1")
    parser.add_argument("--passes", type=float, default=PASSES, help="forward-backward passes of a training")
    parser.add_argument(
        "--inputs", type=int, default=FIFTH, help="the first so many in an even order; 2,000: every fifth"
    )
    parser.add_argument("--all", action="store_true", help="then all 10,000, with the same votes")
    parser.add_argument("--votes", type=int, default=VOTES, help="the most that an input may ever have")
    parser.add_argument(
        "--caps", type=int, nargs="*", default=[10_000, VOTES], help="votes an input may have in each pass"
    )
    parser.add_argument(
        "--largest",
        type=float,
        default=GRID[-1],
        help="the largest radius that is decided; 3σ and more take most of the votes",
    )
    parser.add_argument("--certificates", type=int, default=100, help="attacked after the first pass; 0 for none")
    parser.add_argument("--audit-n", type=int, default=10_000, help="votes of an attacked certificate")
    parser.add_argument(
        "--mirrored", action="store_true", help="answer by the mean logits of a picture and its mirror image"
    )
    parser.add_argument("--backend", default="compile", choices=["eager", "compile"])
    parser.add_argument(
        "--set", nargs="*", action="extend", default=[], help="settings to change in every row, key=value"
    )
    parser.add_argument("--list", action="store_true", help="say what would be trained, and end")
    parser.add_argument("--merge", type=Path, help="put all records of OUT into one file, and end")
    return parser.parse_args()


def asked_for(word: str, args: argparse.Namespace) -> Job:
    """A row by its name, or by name and σ (consistency-0.25)."""
    name, _, sigma = word.partition("-")
    if name not in METHODS:
        raise SystemExit(f"there is no row {word!r}; rows: {', '.join(METHODS)}, each also with -0.25 or -1 behind it.")
    return Job.of(METHODS[name], argparse.Namespace(**vars(args) | ({"sigma": float(sigma)} if sigma else {})))


def stages(args: argparse.Namespace) -> list[tuple[int, int]]:
    """(inputs, votes) of each pass."""
    return [(inputs, cap) for inputs in ([args.inputs, ALL] if args.all else [args.inputs]) for cap in args.caps]


def main() -> None:
    """Rows in the given order, as long as the seconds last."""
    args = asked()
    if args.list:
        return listed(args)
    if args.merge:
        write_whole(args.merge, (json.dumps(merged(args.out), ensure_ascii=False) + "\n").encode())
        return None
    if torch.cuda.is_available():
        torch._dynamo.config.recompile_limit = 64  # training, attack and votes are graphs of their own
    deadline, failed = time.monotonic() + args.seconds, []
    for name in args.rows or METHODS:
        job = asked_for(name, args)
        if not is_trained_run(job.folder) and deadline - time.monotonic() < args.training:
            print(f"{name}: no time left to train it", flush=True)
            continue
        try:
            job.train()
            for number, (inputs, cap) in enumerate(stages(args)):
                if number == 0 or time.monotonic() < deadline:
                    job.certify(inputs, cap, deadline)
                if number == 0 and args.certificates and time.monotonic() < deadline:
                    job.attack()
        except (UcanError, RuntimeError) as error:  # the others shall have their time
            failed.append(name)
            print(f"{name} FAILED: {type(error).__name__}: {error}", flush=True)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
