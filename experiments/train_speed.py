"""How fast `ucan train` is on this device: forward-backward passes a second, by recipe, on pictures made up on the spot.

    python experiments/train_speed.py consistency sphere --seconds 10 --out OUT/speed.json
    python experiments/train_speed.py drt --seconds 10 --profile                (three networks; all of their passes count)

Each recipe is trained as methods.py trains it (ResNet-18, 256 copies a step, bf16, compiled), for so many seconds after the
compiler is done. Beside the rate: seconds until the first epoch's 50th step, the share of the time in which the device
computes, what takes its time, and the places where the host waited for it. `--launch each` launches kernels one by one
instead of replaying them as a graph. Several copies of this program side by side show what more lanes give.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from methods import METHODS, settings_for

from ucan.bench import machine
from ucan.data import InMemory
from ucan.training import Trainer, loop
from ucan.training.classifier import build_classifier
from ucan.training.recipes import mean_cost

INPUTS, WARM, LOOKED_AT = 50_000, 50, 10


def pictures() -> InMemory:
    """As many as CIFAR-10 has, of noise: the speed does not depend on what they show."""
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (INPUTS, 3, 32, 32), dtype=torch.uint8, generator=rng)
    return InMemory(images, torch.randint(0, 10, (INPUTS,), generator=rng))


def waits(trainer: Trainer, batches: Any) -> dict[str, int]:
    """The lines of the package at which the host waited for the device, in a few steps."""
    found: Counter[str] = Counter()

    def noticed(message: Any, *_: Any, **__: Any) -> None:
        if "synchroniz" in str(message):
            own = [f for f in traceback.extract_stack() if "ucan" in f.filename or "torch" in f.filename]
            ours = [f for f in own if "/ucan/" in f.filename]
            found[f"{Path(ours[-1].filename).name}:{ours[-1].lineno} {ours[-1].line}" if ours else "?"] += 1

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = noticed
        torch.cuda.set_sync_debug_mode("warn")
        for batch in itertools.islice(batches, LOOKED_AT):
            trainer._train_step(batch)
        torch.cuda.set_sync_debug_mode("default")
    return dict(found)


def profiled(trainer: Trainer, batches: Any) -> dict[str, Any]:
    """The share of the time in which the device computes, and its largest kernels, over a few steps."""
    kinds = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=kinds) as profile:
        for batch in itertools.islice(batches, LOOKED_AT):
            trainer._train_step(batch)
        torch.cuda.synchronize()
    kernels: Counter[str] = Counter()
    number, begins, ends = 0, [], []
    for event in profile.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            kernels[event.name[:90]] += event.time_range.elapsed_us()
            number += 1
            begins.append(event.time_range.start)
            ends.append(event.time_range.end)
    host = sorted(profile.key_averages(), key=lambda e: -e.self_cpu_time_total)[:14]
    return {
        "kernels_ms_a_step": round(sum(kernels.values()) / 1000 / LOOKED_AT, 2),
        "wall_ms_a_step": round((max(ends) - min(begins)) / 1000 / LOOKED_AT, 2),
        "kernels_a_step": number // LOOKED_AT,
        "largest_ms_a_step": {name: round(us / 1000 / LOOKED_AT, 3) for name, us in kernels.most_common(16)},
        "host_ms_a_step": {e.key[:60]: round(e.self_cpu_time_total / 1000 / LOOKED_AT, 2) for e in host},
    }


def measured(name: str, data: InMemory, args: argparse.Namespace) -> dict[str, Any]:
    """One recipe."""
    method = METHODS[name]
    settings, _ = settings_for(method, 6_000_000, INPUTS, tuple(args.set))
    with tempfile.TemporaryDirectory() as folder:
        device, start = "cuda" if torch.cuda.is_available() else "cpu", time.perf_counter()
        trainer = Trainer(settings, data, build_classifier(settings, (3, 32, 32), 10), folder, device)
        trainer.joint.train()
        trainer.epoch = settings.epochs // 2  # recipes that begin to attack later do so by now
        batches = itertools.chain.from_iterable(trainer.batches.epoch(e) for e in itertools.count())
        for batch in itertools.islice(batches, WARM):
            trainer._train_step(batch)
        float(next(trainer.joint.parameters()).detach().sum())
        found: dict[str, Any] = {"recipe": name, "until_step_50": round(time.perf_counter() - start, 1)}
        start, steps = time.perf_counter(), 0
        while time.perf_counter() - start < args.seconds:
            for batch in itertools.islice(batches, 25):
                trainer._train_step(batch)
            float(next(trainer.joint.parameters()).detach().sum())
            steps += 25
        seconds = time.perf_counter() - start
        passes = steps * settings.batch * method.members * trainer.recipe.cost(trainer._progress())
        found |= {"ms_a_step": round(1000 * seconds / steps, 2), "passes_a_second": round(passes / seconds)}
        found |= {"mean_passes": mean_cost(trainer.recipe, settings.epochs), "epochs": settings.epochs}
        if args.profile and device == "cuda":
            found |= {"waits": waits(trainer, batches), "profile": profiled(trainer, batches)}
        return found


def main() -> None:
    """Measure the recipes that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", default=["consistency"])
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--launch", choices=("graph", "each"), default="graph")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--set", action="append", default=[], help="a change of the settings")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.launch == "each":
        loop._compiled = lambda classifier, recorded: torch.compile(classifier)
    torch._dynamo.config.recompile_limit = 64
    data, found = pictures(), {"machine": machine(torch.device("cuda" if torch.cuda.is_available() else "cpu"))}
    for name in args.rows:
        try:
            found[name] = measured(name, data, args)
        except RuntimeError as error:  # the others shall have their time
            found[name] = {"failed": f"{type(error).__name__}: {error}"[:1500]}
        print(args.launch, json.dumps(found[name]), flush=True)
        if args.out:
            args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
