"""Attack true claims of every kind of question, and the same claims about regions that are too large.

    python experiments/questions_audit.py [--claims 500] [--out experiments/recorded/questions-audit.json]

The models are those for which claims are as tight as any: planes, and the percentiles of a line. Each claim is attacked at
0.999 of its region, once as it is and once as if its region were 1.3 times as large (a planted fault). Where n samples show
less than is true, a claim that is too large may still be true: of planes it is known how many of them are false.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

import ucan
from ucan.audit import Budget
from ucan.audit.answers import Try, attack_answer
from ucan.questions.record import Answer
from ucan.questions.smoothed import Smoothed
from ucan.region import Region
from ucan.storage import write_whole

QUICK = Budget(steps=6, draws=8, check=500)
FAULT = 1.3


class Half(nn.Module):
    """Two classes split by a plane: the claim is as tight as any."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits (n, 2)."""
        return torch.stack([torch.zeros_like(x[:, 0]), x.flatten(1)[:, :4].sum(1) + 1], 1)


class Thirds(nn.Module):
    """Class 0 beyond a plane, and two others that share the rest evenly: for the first two the worst there is."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits (n, 3)."""
        x = x.flatten(1)
        behind = -20 * (x[:, 0] + 0.2)
        return torch.stack([torch.zeros_like(behind), behind + x[:, 1], behind - x[:, 1]], 1)


class Planes(nn.Module):
    """A plane for each label, and for each pixel."""

    def __init__(self, places: int) -> None:
        super().__init__()
        self.register_buffer("w", torch.randn(places, 4, generator=torch.Generator().manual_seed(0)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits (n, 5) of labels, or (n, 2, 4, 4) of pixels."""
        found = x.flatten(1) @ self.w.to(x).T
        if len(self.w) == 5:
            return found
        return torch.stack([-found, found], 1).unflatten(2, (4, 4))


def line(batch: torch.Tensor) -> torch.Tensor:
    """A number that moves as fast as any along one direction."""
    return batch @ torch.tensor([1.0, -2.0, 0.5, 0.0])


def first(batch: torch.Tensor) -> torch.Tensor:
    """The first number."""
    return batch[:, 0]


def two(seed: int = 0) -> nn.Module:
    """Two numbers, each of a direction of its own."""
    made = nn.Linear(4, 2)
    with torch.no_grad():
        for part in made.parameters():
            part.copy_(torch.rand(part.shape, generator=torch.Generator().manual_seed(seed)) - 0.5)
    return made.eval()


@dataclass(frozen=True)
class Kind:
    """A kind of claim: the inputs that it is made for, the smoothed model, and how it is asked.

    ``holds`` is up to which size a claim about an input (1, 4) is true, where that is known.
    """

    made_for: Callable[[torch.Tensor], torch.Tensor]
    smoothed: Callable[[], Any]
    options: dict[str, Any]
    holds: Callable[[torch.Tensor, Any], float] | None = None


def to_the_plane(x: torch.Tensor, answer: Any) -> float:
    """How far the plane of ``Half`` is."""
    return float(x.sum() + 1) / 2


def to_the_nearest(x: torch.Tensor, answer: Any) -> float:
    """How far the nearest plane of a place with an answer is."""
    w = Planes(answer.answers.numel()).w
    return float(((w @ x[0]).abs() / w.norm(dim=1))[answer.certified.flatten()].min())


LAW, THREE = ucan.Gaussian(0.5), ucan.Gaussian(0.3)
MANY = {"n": 20_000}
PLACES = {"radius": 0.2, "rule": "bonferroni"}
KINDS = {
    "regression": Kind(torch.clone, lambda: ucan.SmoothedRegressor(line, LAW), {"radius": 0.4}),
    "backwards": Kind(torch.clone, lambda: ucan.SmoothedRegressor(two(), LAW), {"within": 0.5, "n0": 2000}),
    "laplace": Kind(torch.clone, lambda: ucan.SmoothedRegressor(first, ucan.Laplace(0.5)), {"radius": 0.4, "norm": 1}),
    "top-1": Kind(
        lambda x: 0.3 * x.abs(),
        lambda: ucan.SmoothedClassifier(Half().eval(), LAW, num_classes=2),
        {"top": 1},
        to_the_plane,
    ),
    "top-2": Kind(
        lambda x: 0.3 * x.abs() * torch.tensor([1.0, 0.0, 0.0, 0.0]),
        lambda: ucan.SmoothedClassifier(Thirds().eval(), LAW, num_classes=3),
        {"top": 2},
    ),
    "confidence": Kind(
        lambda x: 0.3 * x.abs(),
        lambda: ucan.SmoothedClassifier(Half().eval(), LAW, num_classes=2),
        {"confidence": 0.6},
    ),
    "labels": Kind(torch.clone, lambda: ucan.SmoothedLabels(Planes(5).eval(), THREE), PLACES, to_the_nearest),
    "segmentation": Kind(torch.clone, lambda: ucan.SmoothedSegmenter(Planes(16).eval(), THREE), PLACES, to_the_nearest),
}


def inputs(count: int, seed: int = 1) -> torch.Tensor:
    """Four numbers each."""
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))


def claims(name: str, count: int) -> tuple[Any, list[tuple[torch.Tensor, Answer]]]:
    """A smoothed model, and the first so many claims of a radius above 0.1, each with its input (1, 4)."""
    kind = KINDS[name]
    g, found = kind.smoothed(), list[tuple[torch.Tensor, Answer]]()
    for seed in range(1, 100):
        x = kind.made_for(inputs(max(5, count // 4), seed))
        answers = g.certify(x, **{**MANY, **kind.options})
        found += [(x[i : i + 1], one) for i, one in enumerate(answers) if not one.abstained and one.region.radius > 0.1]
        if len(found) >= count:
            break
    return g, found[:count]


def fault(answer: Answer, factor: float = FAULT) -> Answer:
    """The same claim over a region that is too large."""
    region = answer.region
    return replace(answer, region=Region.sharing(region.scale, factor * region.radius, region.norm, region.shape))


def attacked(g: Smoothed, cases: list[tuple[torch.Tensor, Answer]], planted: bool) -> Iterator[Try]:
    """An attack on each claim, or on one that is too large."""
    for number, (x, answer) in enumerate(cases):
        yield attack_answer(g, x, fault(answer) if planted else answer, 0.999, QUICK, number)[0]


def main() -> None:
    """Attack all kinds, and write what broke."""
    options = argparse.ArgumentParser()
    options.add_argument("--claims", type=int, default=500)
    options.add_argument("--out", type=Path, default=Path(__file__).parent / "recorded" / "questions-audit.json")
    options.add_argument("--kinds", nargs="+", choices=[*KINDS], default=[*KINDS], help="others keep what is recorded")
    asked = options.parse_args()
    rows = json.loads(asked.out.read_text())["kinds"] if {*asked.kinds} != {*KINDS} else {}
    for name in asked.kinds:
        g, cases = claims(name, asked.claims)
        broken, planted = (sum(one.broken for one in attacked(g, cases, too_large)) for too_large in (False, True))
        rows[name] = {"claims": len(cases), "broken": broken, "planted_found": planted}
        if (holds := KINDS[name].holds) is not None:
            rows[name]["planted_false"] = sum(holds(x, one) < FAULT * 0.999 * one.region.radius for x, one in cases)
        print(name, rows[name], flush=True)
    record = {"ucan": ucan.__version__, "alpha": 0.001, "inside": 0.999, "fault": FAULT, "kinds": rows}
    write_whole(asked.out, json.dumps(record, indent=1).encode() + b"\n")


if __name__ == "__main__":
    main()
