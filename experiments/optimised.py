"""Noise optimised for each digit at its full budget: frozen radii beside the isotropic start, and what attacks make of them.

    python experiments/optimised.py data-dependent --out experiments/recorded/optimised-data-dependent.json
    python experiments/optimised.py ancer --out experiments/recorded/optimised-ancer.json  # ten minutes and more, one CPU core
    python experiments/optimised.py page                  # the table of docs/generators.md, from the records

One network (64-128-10, trained on noisy copies, σ = 0.25) on scikit-learn's digits; the ascent starts at σ = 0.15 and has the
authors' settings (900 steps of 100 copies; ANCER 100 more). Every attack is in 0.999 of the region. Live, the pipeline searches
for its noise anew at every point that is tested (the attack ``rescaled``). With a registry its answers are kept. The record
grows as it goes.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ucan import Certificate, Gaussian, Registry, SmoothedClassifier, __version__, data
from ucan.audit import Budget, attack
from ucan.generators.optimised import Ancer, DataDependent
from ucan.generators.rotated import Rancer
from ucan.storage import write_whole

TRAINED, SIGMA, FACTOR = 0.25, 0.15, 0.999
KINDS = {"data-dependent": DataDependent, "ancer": Ancer, "rancer": Rancer}
TEXTS = {"data-dependent": "data-dependent", "ancer": "ANCER", "rancer": "RANCER"}
RECORDED, PAGE = Path(__file__).parent / "recorded", Path(__file__).parents[1] / "docs" / "generators.md"


def network() -> nn.Module:
    """The classifier, trained here in seconds."""
    torch.manual_seed(0)
    train_set = data.load("digits", "train")
    x, y = torch.stack([train_set[i][0] for i in range(len(train_set))]), train_set.labels
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimiser = torch.optim.Adam(net.parameters(), lr=0.003)
    for _ in range(600):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(x + TRAINED * torch.randn_like(x)), y).backward()
        optimiser.step()
    return net.eval()


def size_of(outcomes: list[Any], labels: list[int]) -> dict[str, float]:
    """Mean ℓ2 radius and mean ALM (0 where wrong), and the share that is right."""
    right = [isinstance(c, Certificate) and c.prediction == y for c, y in zip(outcomes, labels, strict=True)]
    n = len(outcomes)
    return {
        "right": sum(right) / n,
        "radius": sum(c.radius for c, ok in zip(outcomes, right, strict=True) if ok) / n,
        "alm": sum(c.alm for c, ok in zip(outcomes, right, strict=True) if ok) / n,
    }


def merged(records: list[dict[str, Any]]) -> dict[str, Any]:
    """One record of several that share the digits: sizes from the one with the most digits, attacks added up."""
    whole = dict(max(records, key=lambda record: record["inputs"] if "frozen" in record else 0))
    attacked = [record["attacked"] for record in records if "attacked" in record]
    whole["attacked"] = {name: sum(each[name] for each in attacked) for name in attacked[0]}
    whole["registry"] = next(record["registry"] for record in records if "registry" in record)
    whole["complete"] = all(record["complete"] for record in records)
    return whole


def shown(value: float) -> str:
    """A size, rounded down."""
    return f"{math.floor(1000 * value) / 1000:.3f}"


def table(records: dict[str, dict[str, Any]]) -> list[str]:
    """The table of docs/generators.md; a kind that is not on record is named."""
    head = [
        "mean ℓ2 radius",
        "mean ALM (alternative Lebesgue measure)",
        "larger than at the start",
        "attacked",
        "broken frozen",
        "broken live",
    ]
    lines = ["| | " + " | ".join([*head, "with a registry: attacked", "broken"]) + " |", "|---|" + "--:|" * 8]
    first = next(iter(records.values()))
    for name, sizes, sigma in (("the start", "start", first["sigma"]), ("trained for", "trained_for", TRAINED)):
        found = first[sizes]
        lines.append(
            f"| isotropic, σ = {sigma:g} ({name}) | {shown(found['radius'])} | {shown(found['alm'])}"
            + " | –" * 6
            + " |"
        )
    for kind, text in TEXTS.items():
        if kind not in records:
            lines.append(f"| {text}, `frozen` | not measured" + " | –" * 7 + " |")
            continue
        one = records[kind]
        hit, kept = one["attacked"], one["registry"]
        cells = [shown(one["frozen"]["radius"]), shown(one["frozen"]["alm"]), f"{one['larger']} of {one['inputs']}"]
        cells += [
            str(v) for v in (hit["certificates"], hit["frozen"], hit["live"], kept["certificates"], kept["broken"])
        ]
        lines.append(f"| {text}, `frozen` | " + " | ".join(cells) + " |")
    return lines


def recorded() -> dict[str, dict[str, Any]]:
    """What is on record, by kind."""
    paths = {kind: RECORDED / f"optimised-{kind}.json" for kind in KINDS}
    return {kind: json.loads(path.read_text()) for kind, path in paths.items() if path.exists()}


def written(page: str) -> str:
    """The page with its table made anew."""
    block = re.compile(r"(<!-- optimised -->\n).*?(<!-- end -->)", re.DOTALL)
    return block.sub(lambda found: found[1] + "\n".join([*table(recorded()), found[2]]), page)


def main() -> None:
    """Certify, attack, keep the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=[*KINDS, "page"], help="page: only write the table of docs/generators.md")
    parser.add_argument("--out", type=Path, default=Path("optimised.json"))
    parser.add_argument("--merge", type=Path, nargs="+", help="only put these records together, of other digits each")
    parser.add_argument("--certificates", type=int, default=60)
    parser.add_argument(
        "--first", type=int, default=0, help="the number of the first digit, where several share the work"
    )
    parser.add_argument("--phase", choices=("all", "attack", "registry"), default="all")
    parser.add_argument("--n", type=int, default=2000)
    parser.add_argument("--quick", action="store_true", help="a small budget, to see that it runs")
    args = parser.parse_args()
    if args.kind == "page":
        PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
        return
    if args.merge:
        together = merged([json.loads(path.read_text()) for path in args.merge])
        write_whole(args.out, (json.dumps(together, indent=1) + "\n").encode())
        return
    test_set, law, net = data.load("digits", "test"), Gaussian(SIGMA), network()
    few: dict[str, Any] = {"steps": 20, "draws": 20} if args.quick else {}
    noise = KINDS[args.kind](net, law, **few)
    g, start = (SmoothedClassifier(net, law, m, num_classes=10) for m in (noise, None))
    chosen = range(args.first, args.first + args.certificates)
    x, labels = torch.stack([test_set[i][0] for i in chosen]), [int(test_set[i][1]) for i in chosen]
    budget, begun = Budget(), time.perf_counter()
    record: dict[str, Any] = {"complete": False, "kind": args.kind, "noise": repr(noise), "data": "digits", "seed": 0}
    record |= {
        "first": args.first,
        "inputs": len(x),
        "n": args.n,
        "alpha": 0.001,
        "sigma": SIGMA,
        "factor": FACTOR,
        "budget": vars(budget),
    }
    record |= {"ucan": __version__, "torch": torch.__version__, "hardware": "CPU"}

    def keep() -> None:
        record["seconds"] = round(time.perf_counter() - begun)
        write_whole(args.out, (json.dumps(record, indent=1) + "\n").encode())
        shown = ("start", "trained_for", "frozen", "attacked", "registry", "seconds")
        print({name: record.get(name) for name in shown}, flush=True)

    plain = start.certify(x, n=args.n)
    record["start"] = size_of(plain, labels)
    own = SmoothedClassifier(net, Gaussian(TRAINED), num_classes=10)
    record["trained_for"] = {"sigma": TRAINED, **size_of(own.certify(x, n=args.n), labels)}
    if args.phase != "registry":
        frozen = g.certify(x, n=args.n)
        record["frozen"] = size_of(frozen, labels)
        record["larger"] = sum(a.radius > b.radius for a, b in zip(frozen, plain, strict=True))
        keep()
        attack_all(g, x, frozen, budget, record, keep)
    if args.phase != "attack":
        with_memory(g, x, labels, args, budget, record, keep)
    record["complete"] = True
    keep()


def attack_all(
    g: SmoothedClassifier, x: torch.Tensor, frozen: list[Any], budget: Budget, record: dict[str, Any], keep: Callable
) -> None:
    """Every certificate frozen and live."""
    made = [(i, c) for i, c in enumerate(frozen) if isinstance(c, Certificate) and c.radius > 0]
    tally: dict[str, int] = {"certificates": 0, "frozen": 0, "live": 0, "live_changed": 0}
    for i, c in made:
        held, _ = attack(g, x[i : i + 1], c, "frozen", FACTOR, budget, i)
        live, _ = attack(g, x[i : i + 1], c, "live", FACTOR, budget, i)
        tally["certificates"] += 1
        tally["frozen"] += held.broken
        tally["live"] += live.broken
        tally["live_changed"] += live.changed
        record["attacked"] = tally
        keep()


def with_memory(
    g: SmoothedClassifier, x: torch.Tensor, labels: list[int], args: argparse.Namespace, budget: Budget,
    record: dict[str, Any], keep: Callable,
) -> None:  # fmt: skip
    """A registry in front of the pipeline, and every certificate that it gives attacked."""
    path = args.out.with_suffix(".sqlite")
    path.unlink(missing_ok=True)
    with Registry(path) as registry:
        kept = registry.certify(g, x, n=args.n)
        told: dict[str, Any] = {**size_of(kept, labels), "certificates": 0, "broken": 0}
        for i, c in enumerate(kept):
            if isinstance(c, Certificate) and c.radius > 0:
                told["certificates"] += 1
                told["broken"] += attack(g, x[i : i + 1], c, "live", FACTOR, budget, i, registry)[0].broken
                record["registry"] = told
                keep()
    path.unlink()


if __name__ == "__main__":
    main()
