"""Attack certificates of shape.py's classifiers inside their boxes, with the weights that it kept (--weights).

    python experiments/shape_attacks.py --data mnist --method learned --scale 0.75 --weights DIR --out OUT.json

Test inputs are certified anew, in order, by ``certify(budget=1)`` with n votes, and those with ε > 0 are attacked by the
project's auditor inside 0.999 of the box and of the region, until so many have been. OUT.json is written after every fifty:
how many were attacked, how many broke, and whether that is a bug by the auditor's rule.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path

import shape
import torch

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
    model, noise = shape.network(args.data, known.shape), shape.METHODS[args.method](known)
    kept = torch.load(shape.weights_path(args.weights, args.method, args.scale, args.seed), map_location="cpu")
    model.load_state_dict(kept["classifier"])
    noise.load_state_dict(kept["generator"])
    return SmoothedClassifier(model.to(device).eval(), law, noise.to(device).eval(), 10)


def attacked(g: SmoothedClassifier, args: argparse.Namespace, device: torch.device) -> None:
    """Certify and attack, fifty at a time, until there are enough or the time is over."""
    begun, test = time.monotonic(), data.load(args.data, "test")
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
        took, summary = round(time.monotonic() - begun, 1), summarise(attempts).to_dict()
        record = about | {
            "alpha": plan.alpha, "precision": precision or "fp32", "budget": vars(effort), "summary": summary,
            "audit_seconds": took, "machine": machine(device), "ucan": ucan.__version__,
        }  # fmt: skip
        write_whole(args.out, (json.dumps(record, indent=1) + "\n").encode())
        print(f"{args.data} {args.method} λ={args.scale:g}: {len(attempts)} attacked, broken {summary['broken']}, "
              f"bug {summary['bug']}, {took:.0f} s", flush=True)  # fmt: skip
        if took > args.seconds:
            return


def norm_of(g: SmoothedClassifier) -> dict[str, float]:
    """The norm of the radius beside ε: composed noise has one of its own."""
    return {"norm": g.M.norm} if isinstance(g.M, ucan.Composed) else {}


def effort_of(args: argparse.Namespace) -> Budget:
    return Budget(steps=args.steps, draws=args.draws, restarts=args.restarts, check=args.check)


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
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--draws", type=int, default=8)
    parser.add_argument("--restarts", type=int, default=2)
    parser.add_argument("--check", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no fifty are begun after so many seconds")
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    attacked(rebuilt(args, device), args, device)


if __name__ == "__main__":
    main()
