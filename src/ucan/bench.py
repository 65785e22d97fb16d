"""How fast certification is on this machine, as ratios within one run.

The yardsticks: the bare forward pass of the same network, as fast as the same backend runs it, on noisy inputs that are
ready for it; the textbook loop (repeat, add noise, forward, argmax, copy to host, count); and the Adversarial Robustness
Toolbox where it is installed.
"""

from __future__ import annotations

import copy
import ctypes
import functools
import gc
import platform
import re
import sys
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from scipy.special import ndtr, ndtri
from torch import nn

from ucan import laws, scales
from ucan.backends import OPTIONS
from ucan.betting import votes_at_least
from ucan.generators import CertificationWise, Fixed, Generator
from ucan.laws import Law
from ucan.plan import CertifyPlan
from ucan.smoothed import SmoothedClassifier
from ucan.votes import forward_size

# Of inputs certified on a grid: 8-bit pictures.
STEP = 1 / 255
# Of decisions that stop early.
ALPHA = 0.001


@dataclass(frozen=True)
class Row:
    """One measurement: what, samples per second, the ratio to a yardstick, and peak memory in MiB above what was there."""

    what: str
    rate: float
    ratio: float | None = None
    against: str = ""
    memory: float | None = None


@dataclass(frozen=True)
class Stopped:
    """Samples that a decision "is the radius at least r?" takes, those that choose the class included.

    ``fixed`` would be drawn without stopping. ``limit`` is what any test at this α needs at least that is sure to find the
    radius reached, log(1/α)/KL(p‖p₀); None where it is not reached, or not within ``fixed`` samples.
    """

    probability: float
    radius: float  # in multiples of λ
    fixed: int
    mean: float
    limit: float | None = None


class Bench:
    """Measures one network on one device; every rate is the best of ``repeats`` timings after a warm-up."""

    def __init__(self, model: nn.Module, shape: tuple[int, ...], classes: int, n: int, repeats: int = 3) -> None:
        self.model = model.eval()
        self.device = next(model.parameters()).device
        self.shape = shape
        self.classes = classes
        self.n = n
        self.repeats = repeats
        # Bytes, so that they can be certified in whole steps as well.
        rng = torch.Generator().manual_seed(0)
        self.inputs = (torch.randint(0, 256, (2, *shape), generator=rng).float() / 255).to(self.device)
        self.x = self.inputs[:1]
        self.size = forward_size(self.x.numel(), self.device)
        self.rows: list[Row] = []

    def smoothed(
        self,
        law: Law | None = None,
        generator: Generator | None = None,
        backend: str = "eager",
        step: float | None = None,
    ) -> SmoothedClassifier:
        """Our classifier under the given noise."""
        return SmoothedClassifier(self.model, law or laws.Gaussian(0.25), generator, self.classes, backend, step=step)

    def rate(self, work: Callable[[], Any], samples: int) -> tuple[float, float | None]:
        """Samples per second of ``work``, and its peak memory above what was there."""
        work()
        memory = _DeviceMemory() if self.device.type == "cuda" else _ProcessMemory()
        best = float("inf")
        for _ in range(self.repeats):
            self._wait()
            start = time.perf_counter()
            work()
            self._wait()
            best = min(best, time.perf_counter() - start)
        peak = memory.peak()
        return samples / best, peak

    def measure(self, what: str, work: Callable[[], Any], samples: int, against: str = "") -> Row:
        """Measure, set beside an earlier row, and keep."""
        rate, memory = self.rate(work, samples)
        yardstick = next((row.rate for row in self.rows if row.what == against), None) if against != what else None
        row = Row(what, rate, None if yardstick is None else rate / yardstick, against if yardstick else "", memory)
        self.rows.append(row)
        return row

    # --- the cases ---

    def textbook(self) -> Row:
        """The loop that papers print, in fp32, with a batch of the same size."""
        passes = max(1, min(self.n, 4 * self.size) // self.size)
        return self.measure("textbook loop, fp32", lambda: self._textbook(passes), passes * self.size)

    @torch.no_grad()
    def _textbook(self, passes: int) -> None:
        counts = torch.zeros(self.classes, dtype=torch.int64)
        with _true_fp32():
            for _ in range(passes):
                batch = self.x.repeat(self.size, *(1 for _ in self.shape))
                votes = self.model(batch + 0.25 * torch.randn_like(batch)).argmax(1).cpu()
                counts += torch.bincount(votes, minlength=self.classes)

    def ours(self, backend: str, precision: str | None) -> None:
        """The bare network on inputs that are ready for it, and our certificates, with this backend and precision."""
        g = self.smoothed(backend=backend)
        name = f"{backend}, {precision or 'fp32'}"
        setup = g.engine.setup(self.x, CertifyPlan(n=self.n, precision=precision))
        counter = setup.counter
        if setup.backend.name != backend:  # it cannot be compiled here: the warning has been given
            return
        passes = max(1, self.n // counter.size)
        network, batch = self._bare(backend, precision, counter.size)

        @torch.inference_mode()
        def forward() -> None:
            for _ in range(passes):
                network(batch)

        self.measure(f"bare forward, {name}", forward, passes * counter.size, "textbook loop, fp32")
        work = functools.partial(g.certify, self.inputs, n=self.n, precision=precision)
        certified = self.measure(f"certify, {name}", work, len(self.inputs) * self.n, f"bare forward, {name}")
        self.rows.append(_against(certified, self.rows, "textbook loop, fp32"))
        on_grid = self.smoothed(backend=backend, step=STEP)
        on_grid.engine.prepared = g.engine.prepared  # the network is the same: compile it once
        work = functools.partial(on_grid.certify, self.inputs, n=self.n, precision=precision)
        self.measure(f"certify on the grid, {name}", work, len(self.inputs) * self.n, f"certify, {name}")

    def _bare(
        self, backend: str, precision: str | None, size: int
    ) -> tuple[Callable[[torch.Tensor], Any], torch.Tensor]:
        """The network alone, as fast as the backend runs it, and a batch in its dtype and layout."""
        dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        network: Any = copy.deepcopy(self.model).to(dtype)
        # Noisy images, as in a certificate: on plainer data a GPU draws less power and runs faster.
        rng = torch.Generator(self.device).manual_seed(0)
        batch = (self.x + laws.Gaussian(0.25).sample(size, self.shape, rng)).to(dtype)
        if backend in OPTIONS or precision is not None:  # as our own backends do
            network = network.to(memory_format=torch.channels_last) if len(self.shape) == 3 else network
            batch = batch.contiguous(memory_format=torch.channels_last) if len(self.shape) == 3 else batch
        return (
            torch.compile(network, dynamic=False, options=dict(OPTIONS[backend])) if backend in OPTIONS else network
        ), batch

    def laws_and_shapes(self, backend: str, precision: str | None, only: Collection[str] | None = None) -> None:
        """Each law and each Σ (or only some) beside isotropic Gaussian noise."""
        dim = self.x.numel()
        sigma = 0.5 + torch.rand(self.shape, generator=torch.Generator().manual_seed(1)).to(self.device)
        kinds: dict[str, tuple[Law, Generator | None, float]] = {
            "gaussian, isotropic": (laws.Gaussian(0.25), None, 2),
            "laplace": (laws.Laplace.from_std(0.25, dim), None, 1),
            "uniform": (laws.Uniform.from_std(0.25, dim), None, 1),
            "expinf": (laws.ExpInf.from_std(0.25, dim), None, 1),
            "powerlaw": (laws.PowerLaw.from_std(0.25, dim, a=dim + 1000), None, 1),
            "gaussian, diagonal Σ": (laws.Gaussian(0.25), Fixed(sigma), 2),
        }
        if len(self.shape) == 3:
            kinds["gaussian, DCT Σ"] = (laws.Gaussian(0.25), Fixed(scales.DCT(sigma)), 2)
        if dim <= 4096:
            basis = torch.linalg.qr(torch.randn(dim, dim, generator=torch.Generator().manual_seed(2)))[0].to(
                self.device
            )
            kinds["gaussian, basis Σ"] = (laws.Gaussian(0.25), Fixed(scales.Basis(basis, sigma.flatten())), 2)
        shared = self.smoothed(backend=backend)
        for name, (law, generator, norm) in kinds.items():
            if only is not None and name not in only:
                continue
            g = self.smoothed(law, generator, backend)
            g.engine.prepared = shared.engine.prepared  # the network is the same: compile it once
            work = functools.partial(g.certify, self.inputs, n=self.n, norm=norm, precision=precision)
            self.measure(name, work, len(self.inputs) * self.n, "gaussian, isotropic")

    def generator(self, backend: str, precision: str | None) -> None:
        """What a per-input generator adds to a certificate of n = 1,000, in a run over several inputs."""
        if len(self.shape) != 3:
            return
        plain = self.smoothed(backend=backend)
        per_input = self.smoothed(generator=CertificationWise(self.shape[0]).to(self.device), backend=backend)
        per_input.engine.prepared = plain.engine.prepared
        inputs = 16 if self.device.type == "cuda" else 2  # a CPU has nothing to overlap
        x = torch.rand(inputs, *self.shape, generator=torch.Generator().manual_seed(1)).to(self.device)
        for name, g in (("isotropic", plain), ("certification-wise", per_input)):
            work = functools.partial(g.certify, x, n=1000, precision=precision)
            self.measure(f"n = 1,000, {name}", work, 1000 * len(x), "n = 1,000, isotropic")

    def stopping(self) -> list[Stopped]:
        """Samples used where the true probability is known: a threshold under one-dimensional Gaussian noise."""
        found = []
        for p in (0.9, 0.99, 0.999):
            g = SmoothedClassifier(lambda y: (y[:, 0] > 0).long(), laws.Gaussian(1.0), num_classes=2)
            x = torch.full((1, 1), float(ndtri(p)))
            for r in (0.0, 1.0, 2.0):
                made = [g.certify(x, n=self.n, alpha=ALPHA, stop=r, seed=seed)[0].evidence for seed in range(20)]
                limit = votes_at_least(p, float(ndtr(r)), ALPHA)
                mean = sum(e.n + e.n0 for e in made) / len(made)
                found.append(Stopped(p, r, self.n, mean, limit if limit < self.n else None))
        return found

    def art(self, batch: int) -> Row | None:
        """The Adversarial Robustness Toolbox's certify, same n, model and batch; None where it is not installed."""
        try:
            import statsmodels  # noqa: F401  (the toolbox imports it only when it certifies)
            from art.estimators.certification.randomized_smoothing import PyTorchRandomizedSmoothing
        except ImportError:
            return None
        smooth = PyTorchRandomizedSmoothing(
            model=self.model,
            loss=nn.CrossEntropyLoss(),
            input_shape=self.shape,
            nb_classes=self.classes,
            sample_size=100,
            scale=0.25,
            alpha=0.001,
            device_type="gpu" if self.device.type == "cuda" else "cpu",
        )
        x = self.inputs.cpu().numpy()
        work = functools.partial(smooth.certify, x, n=self.n, batch_size=batch)
        row = self.measure("ART certify, fp32", work, len(x) * self.n)
        ours = max((r for r in self.rows if r.what.startswith("certify, ")), key=lambda r: r.rate, default=None)
        if ours is not None:
            self.rows.append(_against(ours, self.rows, row.what))
        return row

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


class _DeviceMemory:
    """Peak memory of a GPU from here on."""

    def __init__(self) -> None:
        torch.cuda.synchronize()
        self._before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()

    def peak(self) -> float | None:
        """In MiB, above what was there."""
        return (torch.cuda.max_memory_allocated() - self._before) / 2**20


class _ProcessMemory:
    """Peak memory of this process from here on, as Linux counts it; elsewhere nobody tells."""

    def __init__(self) -> None:
        gc.collect()
        if sys.platform == "linux":
            ctypes.CDLL(None).malloc_trim(0)  # what was freed before is not to be used again uncounted
            Path("/proc/self/clear_refs").write_text("5")
        self._before = self._read("VmRSS")

    def peak(self) -> float | None:
        """In MiB, above what was there."""
        now = self._read("VmHWM")
        return None if now is None or self._before is None else (now - self._before) / 2**10

    @staticmethod
    def _read(field: str) -> int | None:
        status = Path("/proc/self/status")
        found = re.search(rf"^{field}:\s+(\d+) kB", status.read_text(), re.MULTILINE) if status.exists() else None
        return int(found[1]) if found else None


def machine(device: torch.device) -> dict[str, str]:
    """What the numbers were measured on."""
    name = (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"{platform.processor() or platform.machine()} CPU"
    )
    return {
        "device": name,
        "threads": str(torch.get_num_threads()),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def _against(row: Row, rows: list[Row], other: str) -> Row:
    yardstick = next(r.rate for r in rows if r.what == other)
    return Row(row.what, row.rate, row.rate / yardstick, other, row.memory)


class _true_fp32:
    """Convolutions in real fp32, not TF32, which PyTorch would use on a GPU."""

    def __enter__(self) -> None:
        self.before = torch.backends.cudnn.allow_tf32
        torch.backends.cudnn.allow_tf32 = False

    def __exit__(self, *_: object) -> None:
        torch.backends.cudnn.allow_tf32 = self.before
