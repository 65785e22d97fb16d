"""What a certificate costs at the limit, on one GPU and in one run: `python experiments/gpu_limits.py OUT_FOLDER`.

- generator: what a per-input generator adds at n = 1,000 on ResNet-110, with and without recorded graphs;
- stopping: votes and certified shares of decisions at four radii against a fixed n (ResNet-20, trained without noise);
- all: CIFAR-10's test pictures with ResNet-18, ten radii in one pass, and the votes over the least that any test needs;
- recertify: ResNet-18 from fp32 to bf16, a tenth of the votes in pairs.

Pictures are read from UCAN_DATA_DIR. ResNet-18 comes from `--weights` (a folder of `ucan train`, or a file of weights); else it
is trained here for half a minute. Each part writes what it has to OUT_FOLDER/limits.json as it goes. On a CPU, or with --small,
all of it is tiny: to see that it runs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ucan import CertificationWise, Gaussian, SmoothedClassifier, data
from ucan.bench import machine
from ucan.deciding import IN_PAIRS, Kept, OnData, Outcome, decided, kept
from ucan.models import build_model, load_model
from ucan.passes import Recorded
from ucan.plan import CertifyPlan
from ucan.stopping import AtRadii
from ucan.training import load_run

RADII = tuple(0.25 * i for i in range(10))
ALPHA, SIGMA = 0.001, 0.5
CIFAR = (3, 32, 32)


@dataclass
class Work:
    """What the parts share: where results go, when all of it must end, and how large it is."""

    out: Path
    ends: float
    small: bool
    weights: str | None
    inputs: int
    record: dict[str, Any] = field(default_factory=dict)
    seen: list[tuple[int, float]] = field(default_factory=list)  # numbers and radii of certified test pictures

    @property
    def device(self) -> torch.device:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")

    @property
    def how(self) -> tuple[str, str | None]:
        """Backend and precision of votes: a CPU has no time for a compiler here."""
        return ("compile", "bf16") if self.device.type == "cuda" else ("eager", None)

    def left(self) -> float:
        return self.ends - time.monotonic()

    def put(self, part: str, **values: Any) -> None:
        """Add to a part's record, on the screen and on disk: what was measured so far outlasts whatever comes."""
        self.record.setdefault(part, {}).update(values)
        print(f"{part}: {json.dumps(values)[:2000]}", flush=True)
        file = self.out / "limits.json"
        file.with_suffix(".part").write_text(json.dumps(self.record, indent=1) + "\n")
        os.replace(file.with_suffix(".part"), file)

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def timed(self, work: Callable[[], Any]) -> float:
        """Seconds."""
        self.wait()
        start = time.perf_counter()
        work()
        self.wait()
        return time.perf_counter() - start


# --- a generator for every input ---


@contextlib.contextmanager
def as_before() -> Iterator[None]:
    """Kernels launched one by one, as without recorded graphs."""
    replay = Recorded.__call__
    Recorded.__call__ = lambda self, batch: self._function(batch)  # type: ignore[method-assign]
    try:
        yield
    finally:
        Recorded.__call__ = replay  # type: ignore[method-assign]


def generator(work: Work) -> None:
    """Certificates of n = 1,000 with a generator for every input beside isotropic ones, in turns."""
    name, inputs, backend = ("cnn", 4, "eager") if work.small else ("resnet110", 64, "tuned")
    precision = work.how[1]
    torch.manual_seed(0)
    model = build_model(name, CIFAR, 10).to(work.device).eval()
    x = torch.rand(inputs, *CIFAR, generator=torch.Generator().manual_seed(1)).to(work.device)
    per_input = CertificationWise(CIFAR[0]).to(work.device)
    plain, own = (SmoothedClassifier(model, Gaussian(0.25), M, 10, backend) for M in (None, per_input))
    own.engine.prepared = plain.engine.prepared
    cases = {"isotropic": plain, "certification-wise": own}
    first = {what: work.timed(lambda g=g: g.certify(x[:8], n=1000, precision=precision)) for what, g in cases.items()}
    (prepared,) = plain.engine.prepared.values()
    work.put("generator", model=name, inputs=inputs, backend=prepared.name, prepare_seconds=first)

    def counts(g: SmoothedClassifier) -> list[tuple[int, ...]]:
        return [one.evidence.counts for one in g.certify(x, n=1000, precision=precision)]

    def medians(repeats: int) -> dict[str, Any]:
        seconds: dict[str, list[float]] = {what: [] for what in cases}
        for _ in range(1 if work.small else repeats):
            for what, g in cases.items():
                seconds[what].append(work.timed(lambda g=g: g.certify(x, n=1000, precision=precision)))
        found = {what: statistics.median(each) for what, each in seconds.items()}
        pairs = zip(seconds["certification-wise"], seconds["isotropic"], strict=True)
        ratios = sorted(one / other for one, other in pairs)
        added = found["certification-wise"] / found["isotropic"] - 1
        rates = {what: inputs * 1000 / each for what, each in found.items()}
        return {"samples_a_second": rates, "added": added, "ratios_in_turns": ratios}

    voted = {what: counts(g) for what, g in cases.items()}
    work.put("generator", **medians(9))
    with as_before():
        same = {what: counts(g) == voted[what] for what, g in cases.items()}
        work.put("generator", same_votes_without_graphs=same, without_graphs=medians(3))
    if work.device.type == "cuda":
        work.put("generator", **profiled(lambda: counts(own)))


def profiled(call: Callable[[], Any]) -> dict[str, Any]:
    """What the host does most, under the profiler."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        call()
        torch.cuda.synchronize()
    rows = sorted(seen.key_averages(), key=lambda row: -row.self_cpu_time_total)[:15]
    return {"host_ms": {row.key[:60]: [row.count, round(row.self_cpu_time_total / 1000, 2)] for row in rows}}


# --- decisions at single radii, against a fixed n ---


def stopping(work: Work) -> None:
    """Samples that decisions at fixed radii need, and what is certified, against a fixed n (for which a CPU has no time)."""
    scale, inputs, cap = 0.08, 4 if work.small else 200, 200 if work.small else 100_000
    backend, precision = work.how
    file = Path(os.environ["UCAN_DATA_DIR"]) / "weights" / "cifar10_resnet20.safetensors"
    if not file.is_file():
        return work.put("stopping", left_out=f"{file} is not there")
    model = load_model("resnet20", file, device=work.device, event_shape=CIFAR, num_classes=10, normalise="imagenet")
    test = data.load("cifar10")
    chosen = list(range(0, len(test), len(test) // inputs))[:inputs]
    x, labels = test.batch(chosen)
    g = SmoothedClassifier(model, Gaussian(scale), num_classes=10, backend=backend)

    def certified(stop: AtRadii | None) -> tuple[np.ndarray, np.ndarray, float]:
        """The radius for the right class, −1 where there is none, and the samples of every input; seconds."""
        plan = CertifyPlan(n=cap, alpha=ALPHA, precision=precision, stop=stop)
        start = time.perf_counter()
        found = dict(g.certify_each((one[None].to(work.device) for one in x), plan))
        radii = [o.radius if o.radius > 0 and o.prediction == labels[i] else -1.0 for i, o in sorted(found.items())]
        used = [found[i].evidence.n + found[i].evidence.n0 for i in range(inputs)]
        return np.array(radii), np.array(used), time.perf_counter() - start

    work.put("stopping", scale=scale, inputs=inputs, cap=cap, model="resnet20, clean")
    fixed, _, seconds = certified(None)
    work.put("stopping", fixed_seconds=seconds)
    for multiple in (0.0, 0.5, 1.0, 2.0):
        radii, used, seconds = certified(AtRadii((multiple * scale,)))
        row = {
            "mean_samples": float(used.mean()),
            "fewer": cap / float(used.mean()),
            "certified_fixed": float((fixed >= multiple * scale).mean()),
            "certified_stopping": float((radii >= multiple * scale).mean()),
            "seconds": seconds,
        }
        work.put("stopping", **{f"r/λ = {multiple:g}": row})


# --- a ResNet-18 ---


def resnet18(work: Work) -> nn.Module:
    """From the given weights, or trained here for a short time under noise."""
    if work.weights is not None:
        try:
            found = given(work.weights, work.device)
            work.put("resnet18", weights=work.weights)
            return found
        except Exception as error:  # whatever it is: half a minute makes another one
            work.put("resnet18", weights=f"{work.weights} cannot be used: {str(error)[:300]}")
    torch.manual_seed(0)
    model = build_model("cnn" if work.small else "resnet18", CIFAR, 10).to(work.device)
    seconds = 5.0 if work.small else 30.0
    work.put("resnet18", trained_seconds=seconds, **train(model, work, seconds))
    return model.eval()


def given(weights: str, device: torch.device) -> nn.Module:
    """The network of a training run, or with these weights."""
    if Path(weights).is_dir():
        return load_run(weights).classifier.to(device).eval()
    found = load_model("resnet18", weights, 10, device, CIFAR)
    assert isinstance(found, nn.Module)
    return found


def train(model: nn.Module, work: Work, seconds: float) -> dict[str, float]:
    """Noise of σ = 0.5, flips and shifts; the learning rate follows the clock."""
    train_set = data.load("cifar10", "train")
    images, labels = (t.to(work.device) for t in train_set.batch(range(500 if work.small else len(train_set))))
    model.train().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    size, most = (32, 0.05) if work.small else (512, 0.4)
    optimiser = torch.optim.SGD(model.parameters(), lr=most, momentum=0.9, weight_decay=5e-4, nesterov=True)
    start, steps, loss = time.monotonic(), 0, torch.zeros(())
    while (done := (time.monotonic() - start) / seconds) < 1:
        optimiser.param_groups[0]["lr"] = most * min(done / 0.2, (1 - done) / 0.8)
        chosen = torch.randint(len(images), (size,), device=work.device)
        x = images[chosen]
        x = torch.where(torch.rand(size, 1, 1, 1, device=work.device) < 0.5, x.flip(3), x)
        x = torch.roll(x, (int(torch.randint(-4, 5, ())), int(torch.randint(-4, 5, ()))), (2, 3))
        x = (x + SIGMA * torch.randn_like(x)).contiguous(memory_format=torch.channels_last)
        with torch.autocast(work.device.type, torch.bfloat16, enabled=work.device.type == "cuda"):
            loss = nn.functional.cross_entropy(model(x), labels[chosen])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        steps += 1
        if steps % 20 == 0:
            work.wait()  # or the clock would run ahead of the device
    model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    return {"epochs": steps * size / len(images), "last_loss": float(loss.detach())}


# --- the whole test set at ten radii ---


def everything(work: Work, model: nn.Module, seconds: float) -> None:
    """Ten radii in one pass for as many test pictures as there is time for, in an order that makes any beginning a sample."""
    backend, precision = work.how
    test, cap = data.load("cifar10"), 1000 if work.small else 100_000
    order = [i * 7919 % len(test) for i in range(min(work.inputs, len(test)))]
    images, labels = test.batch(order)
    answers = dict(zip(order, labels.tolist(), strict=True))
    g = SmoothedClassifier(model, Gaussian(SIGMA), num_classes=10, backend=backend)
    plan = CertifyPlan(n=cap, alpha=ALPHA, precision=precision)
    drawn = [0]
    g.engine.on_votes = lambda votes: drawn.__setitem__(0, drawn[0] + votes)
    prepare = work.timed(lambda: g.backend_for(images[:1].to(work.device), plan))
    began, fed = time.monotonic(), [0]

    def inputs() -> Iterator[torch.Tensor]:
        for one in images:
            if time.monotonic() - began > 0.75 * seconds:  # those under way are finished in the rest of the time
                return
            fed[0] += 1
            yield one[None].to(work.device)

    rows: list[Outcome] = []

    def told() -> dict[str, Any]:
        seconds = time.monotonic() - began
        all_of_it = OnData.of(rows, seconds, RADII, g.law, plan)
        right = [row.radius for row in rows if row.prediction == answers[row.index]]
        whole = len(rows) == fed[0] > 0
        return {
            **asdict(all_of_it),
            "begun": fed[0],
            "votes_classified": drawn[0],
            "mean_votes": all_of_it.votes / max(1, len(rows)),
            "votes_a_second": all_of_it.votes / seconds,
            "seconds_for_10000": seconds * 10_000 / len(rows) if whole else None,
            "certified": {f"{radius:g}": sum(r >= radius for r in right) / max(1, len(rows)) for radius in RADII},
        }

    work.put("all", cap=cap, radii=RADII, sigma=SIGMA, prepare_seconds=prepare)
    with (work.out / "all.jsonl").open("a") as journal:
        for outcome in decided(g, inputs(), RADII, plan):
            rows.append(replace(outcome, index=order[outcome.index]))
            journal.write(json.dumps(asdict(rows[-1])) + "\n")
            if len(rows) % 500 == 0:
                journal.flush()
                work.put("all", **told())
            if time.monotonic() - began > 1.2 * seconds:
                break
    work.put("all", **told())
    work.seen = [(row.index, row.radius) for row in rows if row.radius > 0]


# --- from fp32 to bf16 ---


def again(work: Work, model: nn.Module, seconds: float) -> None:
    """Certificates of n = 100,000 in fp32, then of the bf16 network from a tenth of the votes in pairs."""
    backend, n = work.how[0], 1000 if work.small else 100_000
    old, new = (
        SmoothedClassifier(model, Gaussian(SIGMA), num_classes=10, backend=backend, precision=precision)
        for precision in ("fp32", "bf16")
    )
    if not work.seen:
        return work.put("recertify", left_out="no picture was certified before")
    # One picture near each of some R/λ, in an order in which any beginning is spread over all of them.
    wanted = [0.5 + 1.9 * (i * 0.618034 % 1) for i in range(2 if work.small else 24)]
    test, known, rows = data.load("cifar10"), dict(work.seen), list[Kept]()
    start = time.monotonic()
    for ratio in wanted:
        idx = min(known, key=lambda i: abs(known[i] / SIGMA - ratio))
        known.pop(idx)
        x = test[idx][0][None].to(work.device)
        one = kept(old, new, x, n)
        rows += [] if one is None else [one]
        inside = [row for row in rows if IN_PAIRS[0] <= row.radius <= IN_PAIRS[1]]
        shares = {
            f"{how}_{what}": by(told)
            for what in ("kept", "of_fresh") for how, by in (("mean", statistics.fmean), ("least", min))
            if (told := [getattr(row, what) for row in inside if getattr(row, what) is not None])
        }  # fmt: skip
        work.put("recertify", rows=[asdict(row) for row in rows], **shares)
        if time.monotonic() - start > seconds or not known:
            break


def main() -> None:
    """Each part by itself: what fails is said in the record, and the rest goes on."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--weights", help="a folder of `ucan train`, or a file of ResNet-18's weights")
    parser.add_argument("--parts", nargs="+", default=["generator", "stopping", "all", "recertify"])
    parser.add_argument("--seconds", type=float, default=230, help="for all of it")
    parser.add_argument("--inputs", type=int, default=10_000, help="test pictures at ten radii, if there is time")
    parser.add_argument("--small", action="store_true")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    small = asked.small or not torch.cuda.is_available()
    work = Work(asked.out, time.monotonic() + asked.seconds, small, asked.weights, asked.inputs)
    work.record["machine"] = machine(work.device)
    made: list[nn.Module] = []

    def real(part: Callable[[Work, nn.Module, float], None], reserve: float) -> None:
        if not made:
            made.append(resnet18(work))
        part(work, made[0], max(5.0, work.left() - reserve))

    reserve = 50.0 if "recertify" in asked.parts else 5.0
    parts = {
        "generator": lambda: generator(work),
        "stopping": lambda: stopping(work),
        "all": lambda: real(everything, reserve),
        "recertify": lambda: real(again, 8.0),
    }
    for name in asked.parts:
        start = time.monotonic()
        try:
            parts[name]()
            work.put(name, whole_seconds=time.monotonic() - start)
        except Exception:
            work.put(name, failed=traceback.format_exc()[-1500:])
    sys.stdout.flush()


if __name__ == "__main__":
    main()
