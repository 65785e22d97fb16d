"""Pictures of 224 × 224, d = 150,528: that every kind of noise works there, and what it costs.

    python experiments/imagenet_size.py function --pictures 200 --n 1000     MobileNetV2 on the sample of 200 pictures
    python experiments/imagenet_size.py speed --n 100000                     ResNet-50, seconds a certificate
    python experiments/imagenet_size.py train                                a certification-wise generator, seconds

Each part writes recorded/imagenet-PART.json. *function*: the clean-trained MobileNetV2 as it is, under noise small enough
for it, with every generator as it is before training (pattern and cosine scales are what they are; learned ones start in
the middle of their range). It shows that perturbing, certifying and the region work at this size, and how fast; the
accuracy of so few pictures, perhaps training pictures, says nothing and is not claimed. *speed*: an untrained ResNet-50
takes the same time as a trained one. *train*: steps of joint training on random pictures.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import tarfile
import time
from pathlib import Path
from typing import Any

import torch

import ucan
from ucan import SmoothedClassifier, data
from ucan.bench import machine
from ucan.data import InMemory
from ucan.models import build_model, load_model
from ucan.plan import CertifyPlan
from ucan.training import Trainer, TrainSettings, build_classifier

SHAPE = (3, 224, 224)
DIM = math.prod(SHAPE)
LAW = ucan.Gaussian(0.05)
HERE = Path(__file__).parent


def generators() -> dict[str, tuple[Any, float]]:
    """Each kind of noise, made when it is its turn, with the norm it certifies."""
    return {
        "isotropic": (lambda: ucan.Isotropic(), 2),
        "pattern": (lambda: ucan.Pattern(SHAPE), 2),
        "dataset-wise": (lambda: ucan.DatasetWise(SHAPE), 2),
        "certification-wise": (lambda: ucan.CertificationWise(3), 2),
        "basis-wise, cosines": (lambda: ucan.BasisWise.dct(SHAPE, DIM // 6, (0.25, 1.0)), 2),
        "composed, ℓ2": (lambda: ucan.Composed(3, norm=2), 2),
        "composed, ℓ∞": (lambda: ucan.Composed(3, norm=math.inf), math.inf),
    }


def pictures(root: Path, unpacked: Path, count: int) -> tuple[torch.Tensor, list[int]]:
    """Evenly spread pictures of the sample, with their classes among the thousand: every fifth has one."""
    if not (unpacked / "val").is_dir():
        with tarfile.open(root / "imagenet-sample" / "val200.tar") as archive:
            archive.extractall(unpacked, filter="data")
    sample = data.load(unpacked, "test", size=224)
    chosen = list(range(0, len(sample), max(1, len(sample) // count)))[:count]
    x, labels = sample.batch(chosen)
    return x, [5 * int(label) for label in labels]


def function(args: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Every generator: certified pictures, sizes, whether the region holds what it must, seconds a picture."""
    root = Path(os.environ["UCAN_DATA_DIR"])
    weights = root / "weights" / "mobilenet_v2_imagenet.safetensors"
    model = load_model("mobilenet_v2_rotated", weights, device=device)
    x, truth = pictures(root, args.runs / "imagenet-sample", args.pictures)
    rows = {}
    for name, (make, norm) in generators().items():
        torch.manual_seed(0)
        with torch.no_grad():
            M = make().to(device).eval()
        g = SmoothedClassifier(model, LAW, M, 1000)
        plan = CertifyPlan(n0=args.n0, n=args.n, norm=norm, precision=args.precision)
        start = time.perf_counter()
        outcomes = dict(g.certify_each(g.check_inputs(x, norm), plan))
        seconds = (time.perf_counter() - start) / len(x)
        claims = [outcomes[i] for i in range(len(x)) if not outcomes[i].abstained]
        right = sum(outcomes[i].prediction == truth[i] for i in range(len(x)))
        rows[name] = {
            "scope": M.scope, "norm": f"l{norm:g}", "pictures": len(x), "certified": len(claims), "right": right,
            "regions_hold": all(holds(c, device) for c in claims), "seconds_a_picture": round(seconds, 3),
            "median_radius": sorted(c.radius for c in claims)[len(claims) // 2] if claims else None,
            "median_alm": sorted(c.alm for c in claims)[len(claims) // 2] if claims else None,
        }  # fmt: skip
        print(name, rows[name], flush=True)
        del M, g
    return {
        "n": args.n,
        "n0": args.n0,
        "alpha": 0.001,
        "law": repr(LAW),
        "model": "MobileNetV2",
        "dim": DIM,
        "rows": rows,
    }


def holds(c: Any, device: torch.device) -> bool:
    """Just inside the certified radius along a random direction a change is in the region; 100 times that is not."""
    direction = torch.randn(1, *SHAPE, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(device)
    unit = direction / torch.linalg.vector_norm(direction, ord=c.norm)
    inside, outside = (c.region.contains(t * c.radius * unit).item() for t in (0.999, 100.0))
    sizes = [c.region.inscribed_radius(q) for q in (1, 2, math.inf)] + [c.alm, c.region.log_volume]
    return bool(inside and not outside and all(math.isfinite(s) for s in sizes))


def speed(args: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """ResNet-50: seconds a certificate under isotropic and under certification-wise noise, after a first one."""
    model = build_model("resnet50", SHAPE, 1000).to(device).eval()
    x = torch.rand(args.pictures, *SHAPE, generator=torch.Generator().manual_seed(0))
    rows: dict[str, float] = {}
    plain = SmoothedClassifier(model, ucan.Gaussian(1.0), None, 1000, args.backend)
    per_input = SmoothedClassifier(model, ucan.Gaussian(1.0), ucan.CertificationWise(3).to(device), 1000, args.backend)
    per_input.engine.prepared = plain.engine.prepared  # the network is the same: compile it once
    for name, g in (("isotropic", plain), ("certification-wise", per_input)):
        g.certify(x[:1], n=1000, precision=args.precision)  # compiles
        start = time.perf_counter()
        g.certify(x, n=args.n, precision=args.precision)
        rows[name] = (time.perf_counter() - start) / len(x)
        print(name, f"{rows[name]:.2f} s a certificate", flush=True)
    return {"n": args.n, "model": "ResNet-50", "inputs": len(x), "seconds_a_certificate": rows,
            "backend": args.backend, "precision": args.precision}  # fmt: skip


def train(args: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Seconds for one pass over so many random pictures, network and generator together; the second pass is timed."""
    images = torch.randint(0, 256, (args.pictures, *SHAPE), dtype=torch.uint8)
    dataset = InMemory(images, torch.arange(args.pictures) % 1000, [str(i) for i in range(1000)])
    gpu = device.type == "cuda"
    settings = TrainSettings(
        model=args.model, epochs=2, batch=args.batch, variance_term="min", precision="bf16-mixed" if gpu else "32-true",
        compile=gpu, law={"kind": "gaussian", "scale": 1.0}, generator={"kind": "certification-wise"},
    )  # fmt: skip
    folder = args.runs / f"imagenet-train-{int(time.time())}"
    Trainer(settings, dataset, build_classifier(settings, SHAPE, 1000), folder, device.type).run()
    epochs = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    seconds = epochs[1]["seconds"]
    print(f"{seconds:.1f} s for {args.pictures} pictures", flush=True)
    return {"model": args.model, "pictures": args.pictures, "batch": args.batch, "seconds": round(seconds, 2),
            "pictures_a_second": round(args.pictures // args.batch * args.batch / seconds, 1)}  # fmt: skip


def main() -> None:
    """One part, recorded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("function", "speed", "train"))
    parser.add_argument("--out", type=Path, default=HERE / "recorded")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where the pictures are unpacked")
    parser.add_argument("--pictures", type=int, help="how many (200, 4, 2048)")
    parser.add_argument("--n", type=int, help="votes a picture (1000, 100000)")
    parser.add_argument("--n0", type=int, default=100)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--model", default="resnet50", help="the network of `train`")
    parser.add_argument("--backend", default="compile")
    parser.add_argument("--precision", default="bf16" if torch.cuda.is_available() else None)
    args = parser.parse_args()
    usual = {"function": (200, 1000), "speed": (4, 100_000), "train": (2048, 0)}[args.part]
    args.pictures, args.n = args.pictures or usual[0], args.n or usual[1]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    found = {"function": function, "speed": speed, "train": train}[args.part](args, device)
    path = args.out / f"imagenet-{args.part}.json"
    path.write_text(
        json.dumps({**found, **machine(device), "ucan": ucan.__version__}, indent=1, ensure_ascii=False) + "\n"
    )


if __name__ == "__main__":
    main()
