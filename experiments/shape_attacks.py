"""Attack certificates of shape.py's classifiers inside their boxes, with the weights that it kept (--weights).

    python experiments/shape_attacks.py --data mnist --method learned --scale 0.75 --weights DIR --out OUT.json

Test inputs are certified anew, in order, by ``certify(budget=1)`` with n votes, and those with ε > 0 are attacked by the
project's auditor inside 0.999 of the box and of the region, until so many have been. OUT.json is written after every fifty:
how many were attacked, how many broke, and whether that is a bug by the auditor's rule. What is stored beside it is not
attacked again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import shape
import torch
from torch import nn

import ucan
from ucan import Certificate, SmoothedClassifier, data
from ucan.audit import Attempt, Budget, Ledger, audit_all, summarise
from ucan.bench import machine
from ucan.config import write_whole
from ucan.generators.shape import moments_of
from ucan.plan import CertifyPlan

FACTOR = 0.999  # of the box; the smaller ones lie inside it


def rebuilt(args: argparse.Namespace, device: torch.device) -> SmoothedClassifier:
    """The classifier of a final job under its noise, with the weights that were kept of it."""
    train = data.load(args.data, "train")
    x = train.batch(torch.arange(len(train)))[0].to(device)
    law = ucan.Gaussian(args.scale)
    known = shape.Known(x, *(m.double().cpu() for m in moments_of(x)), law)
    if args.method == "two-round":
        known = replace(known, first=kept(args, known, "isotropic"))
    model, noise = kept(args, known, args.method)
    return SmoothedClassifier(model, law, noise, 10)


def kept(args: argparse.Namespace, known: shape.Known, method: str) -> tuple[nn.Module, ucan.Generator]:
    """Classifier and generator of a final job, from its weights."""
    model, noise = shape.network(args.data, known.shape), shape.METHODS[method](known)
    state = torch.load(shape.weights_path(args.weights, method, args.scale, args.seed), map_location="cpu")
    model.load_state_dict(state["classifier"])
    noise.load_state_dict(state["generator"])
    return model.to(known.x.device).eval(), noise.to(known.x.device).eval()


def attacked(g: SmoothedClassifier, args: argparse.Namespace, device: torch.device) -> None:
    """Certify and attack, fifty at a time, until there are enough or the time is over."""
    earlier = json.loads(args.out.read_text())["audit_seconds"] if args.out.exists() else 0.0
    begun, test = time.monotonic() - earlier, data.load(args.data, "test")
    inputs = [test[i][0][None].to(device) for i in range(min(len(test), 4 * args.certificates))]
    precision = "bf16" if device.type == "cuda" else None  # as shape.py certifies
    budget = ucan.Budget.of(1.0, tuple(inputs[0].shape[1:]))
    plan, effort = CertifyPlan(n=args.n, precision=precision, budget=budget, **norm_of(g)), effort_of(args)
    about = {"data": args.data, "method": args.method, "scale": args.scale, "seed": args.seed, "n": args.n}
    ledger = Ledger(args.out.with_suffix(""), {"kind": "audit", **about, **vars(effort)})

    def cases() -> Iterator[tuple[int, torch.Tensor, Certificate]]:
        for i, outcome in g.certify_each(inputs, plan):
            if isinstance(outcome, Certificate) and outcome.budget_factor:
                yield i, inputs[i], outcome

    waiting, attempts = cases(), list[Attempt]()
    while some := list(itertools.islice(waiting, min(50, args.certificates - len(attempts)))):
        attempts += audit_all(g, some, ledger, factors=(FACTOR,), budget=effort)
        record = record_of(about, plan, effort, attempts, time.monotonic() - begun, device)
        write_whole(args.out, (json.dumps(record, indent=1) + "\n").encode())
        print(in_a_line(record), flush=True)
        if record["audit_seconds"] > args.seconds:
            return


def record_of(
    about: dict[str, Any], plan: CertifyPlan, effort: Budget, attempts: list[Attempt], took: float, device: torch.device
) -> dict[str, Any]:
    """What is kept of an audit: what was certified and attacked, how hard, and what came of it."""
    return about | {
        "alpha": plan.alpha, "precision": plan.precision or "fp32", "budget": vars(effort),
        "summary": summarise(attempts).to_dict(), "audit_seconds": round(took, 1), "machine": machine(device),
        "date": date.today().isoformat(), "ucan": ucan.__version__,
    }  # fmt: skip


def in_a_line(record: dict[str, Any]) -> str:
    found = record["summary"]
    name = f"{record['data']} {record.get('model', '')} {record['method']} λ={record['scale']:g} seed {record['seed']}"
    counts = f"{found['attacked']} attacked, broken {found['broken']}, bug {found['bug']}"
    return f"{name}: {counts}, {record['audit_seconds']:.0f} s"


def norm_of(g: SmoothedClassifier) -> dict[str, float]:
    """The norm of the radius beside ε: composed noise has one of its own."""
    return {"norm": g.M.norm} if isinstance(g.M, ucan.Composed) else {}


def effort_of(args: argparse.Namespace) -> Budget:
    return Budget(steps=args.steps, draws=args.draws, restarts=args.restarts, check=args.check)


def add_effort(parser: argparse.ArgumentParser) -> None:
    for name, default in (("steps", 20), ("draws", 8), ("restarts", 2), ("check", 2000)):
        parser.add_argument(f"--{name}", type=int, default=default)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="mnist", choices=sorted(shape.LEVELS))
    parser.add_argument("--method", required=True, choices=list(shape.METHODS))
    parser.add_argument("--scale", type=float, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--certificates", type=int, default=500)
    parser.add_argument("--n", type=int, default=10_000)
    add_effort(parser)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no fifty are begun after so many seconds")
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    attacked(rebuilt(args, device), args, device)


if __name__ == "__main__":
    main()
