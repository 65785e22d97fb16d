"""How fast certification is on this machine, as ratios within one run.

The yardsticks: the bare forward pass of the same network, as fast as the same backend runs it, on noisy inputs that lie
ready on the device in its own precision and layout (and, on a GPU, from float32 pictures); the textbook loop (repeat, add
noise, forward, argmax, copy to host, count); and the Adversarial Robustness Toolbox where it is installed.
"""

from __future__ import annotations

import functools
import math
import platform
from collections.abc import Collection
from dataclasses import dataclass, replace

import torch
from scipy.special import ndtr, ndtri
from torch import nn

from ucan import laws, scales
from ucan.allocator import keep_memory, usual_memory
from ucan.betting import votes_at_least
from ucan.engine import Setup
from ucan.generators import CertificationWise, Fixed, Generator
from ucan.laws import Law
from ucan.plan import CertifyPlan
from ucan.smoothed import SmoothedClassifier
from ucan.timing import Case, Row, Subject, Timed, Work, in_turns, set_beside
from ucan.votes import forward_size

# Of inputs certified on a grid: 8-bit pictures.
STEP = 1 / 255
# Of decisions that stop early.
ALPHA = 0.001
TEXTBOOK = Subject(Work.TEXTBOOK, precision="fp32")
TEXTBOOK_KEPT = replace(TEXTBOOK, work=Work.TEXTBOOK_KEPT)
# The noise that other laws and shapes are set beside.
ISOTROPIC = Subject(Work.NOISE, name="gaussian, isotropic")
# Certificates of few votes, without and with a generator for every input.
WITHOUT = Subject(Work.GENERATOR, name="isotropic")
PER_INPUT = Subject(Work.GENERATOR, name="certification-wise")


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
    """Measures one network on one device; every rate is the median of ``repeats`` timings after a warm-up.

    What is set beside each other is timed in turns, so that a machine that grows hot or busy does so for all of it.
    """

    def __init__(
        self,
        model: nn.Module,
        shape: tuple[int, ...],
        classes: int,
        n: int,
        repeats: int = 3,
        inputs: int | None = None,
    ) -> None:
        self.model = model.eval()
        self.device = next(model.parameters()).device
        self.shape = shape
        self.classes = classes
        self.n = n
        self.repeats = repeats
        self.keeps_memory = False
        self.size = forward_size(math.prod(shape), self.device)
        if inputs is None:  # what is done once in a call weighs more where a GPU takes thousands of inputs in a pass
            inputs = 8 if self.device.type == "cuda" and self.size > 1024 else 2
        # Bytes, so that they can be certified in whole steps as well.
        rng = torch.Generator().manual_seed(0)
        self.inputs = (torch.randint(0, 256, (inputs, *shape), generator=rng).float() / 255).to(self.device)
        self.x = self.inputs[:1]
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

    def measure(self, *cases: Case, repeats: int | None = None) -> list[Row]:
        """Time the cases in turns, set each beside another of them or an earlier row, and keep them."""
        timed = in_turns(cases, repeats or self.repeats, self.device)
        for one in timed.values():
            self.rows.append(self._compared(one, timed))
        return self.rows[-len(cases) :]

    def _compared(self, one: Timed, timed: dict[Subject, Timed]) -> Row:
        """Its row beside the yardstick that it names, where that was timed."""
        against = one.case.against
        if against == one.case.what:
            return one.row
        if against in timed:
            return one.beside(timed[against])
        known = next((row for row in reversed(self.rows) if row.what == against), None)
        return one.row if known is None else set_beside(one.row, known)

    # --- the cases ---

    def keep_memory(self) -> None:
        """On a CPU, let the process keep memory as `ucan certify` does; a user's own loop is timed without it and with it."""
        if self.device.type == "cpu":
            keep_memory()
            self.keeps_memory = True

    def textbook(self) -> list[Case]:
        """The loop that papers print, in fp32, with a batch of the same size: as it is, and where memory is kept, with it."""
        passes = max(1, min(self.n, 4 * self.size) // self.size)
        loop, samples = functools.partial(self._textbook, passes), passes * self.size
        if not self.keeps_memory:
            return [Case(TEXTBOOK, loop, samples)]
        largest = self._largest()

        def as_it_is() -> None:
            with usual_memory(largest):
                loop()

        return [Case(TEXTBOOK, as_it_is, samples), Case(TEXTBOOK_KEPT, loop, samples, TEXTBOOK)]

    @torch.no_grad()
    def _largest(self) -> int:
        """Bytes of the largest tensor in a pass of the textbook loop."""
        batch = self.x.repeat(self.size, *(1 for _ in self.shape))
        sizes = [batch.nbytes]

        def note(_: nn.Module, __: object, made: object) -> None:
            sizes.append(made.nbytes if isinstance(made, torch.Tensor) else 0)

        hooks = [part.register_forward_hook(note) for part in self.model.modules()]
        self.model(batch)
        for hook in hooks:
            hook.remove()
        return max(sizes)

    @torch.no_grad()
    def _textbook(self, passes: int) -> None:
        counts = torch.zeros(self.classes, dtype=torch.int64)
        with _true_fp32():
            for _ in range(passes):
                batch = self.x.repeat(self.size, *(1 for _ in self.shape))
                votes = self.model(batch + 0.25 * torch.randn_like(batch)).argmax(1).cpu()
                counts += torch.bincount(votes, minlength=self.classes)

    def ours(self, backend: str, precision: str | None) -> None:
        """The textbook loop, the bare network and our certificates with this backend and precision, in turns.

        The network is the one that gives the votes. Its inputs are noisy pictures that were made before: in its own precision
        and layout, on a GPU also in float32, from which they are brought to that.
        """
        g = self.smoothed(backend=backend)
        what = Subject(Work.CERTIFY, backend, precision or "fp32")
        setup = g.engine.setup(self.x, CertifyPlan(n=self.n, precision=precision))
        if setup.backend.name != backend:  # it cannot be compiled here: the warning has been given
            return
        on_grid = self.smoothed(backend=backend, step=STEP)
        on_grid.engine.prepared = g.engine.prepared  # the network is the same: compile it once
        samples, bare = len(self.inputs) * self.n, replace(what, work=Work.BARE)
        certify, grid = (
            functools.partial(each.certify, self.inputs, n=self.n, precision=precision) for each in (g, on_grid)
        )
        loops = self.textbook()
        timed = self.measure(
            *loops,
            *self._bare(setup, bare),
            Case(what, certify, samples, bare),
            Case(replace(what, work=Work.GRID), grid, samples, bare),
        )
        self.rows += [set_beside(timed[-2], loop) for loop in timed[: len(loops)]]

    def _bare(self, setup: Setup, what: Subject) -> list[Case]:
        """The network alone on as many samples as certificates ask for, or a few seconds' worth of them."""
        size, backend = setup.counter.size, setup.backend
        passes = max(1, len(self.inputs) * self.n // size)
        rng = torch.Generator(self.device).manual_seed(0)
        # Noisy pictures, as in a certificate: on plainer data a GPU draws less power and runs faster.
        with torch.inference_mode():
            plain = self.x + laws.Gaussian(0.25).sample(size, self.shape, rng)
            ready = plain if backend.form is None else backend.form.of(plain)

        @torch.inference_mode()
        def forward(batch: torch.Tensor) -> None:
            for _ in range(passes):
                backend.vote(batch if backend.form is None else backend.form.of(batch))

        cases = [Case(what, functools.partial(forward, ready), passes * size, TEXTBOOK)]
        if backend.form is not None:
            from_fp32 = replace(what, work=Work.BARE_FROM_FP32)
            cases.append(Case(from_fp32, functools.partial(forward, plain), passes * size, what))
        return cases

    def laws_and_shapes(self, backend: str, precision: str | None, only: Collection[str] | None = None) -> None:
        """Each law and each Σ (or only some) beside isotropic Gaussian noise."""
        dim = self.x.numel()
        sigma = 0.5 + torch.rand(self.shape, generator=torch.Generator().manual_seed(1)).to(self.device)
        kinds: dict[str, tuple[Law, Generator | None, float]] = {
            ISOTROPIC.name: (laws.Gaussian(0.25), None, 2),
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
            self.measure(Case(Subject(Work.NOISE, name=name), work, len(self.inputs) * self.n, ISOTROPIC))

    def generator(self, backend: str, precision: str | None) -> None:
        """What a per-input generator adds to a certificate of n = 1,000, in a run over several inputs."""
        if len(self.shape) != 3:
            return
        plain = self.smoothed(backend=backend)
        per_input = self.smoothed(generator=CertificationWise(self.shape[0]).to(self.device), backend=backend)
        per_input.engine.prepared = plain.engine.prepared
        inputs = 64 if self.device.type == "cuda" else 2  # a CPU has nothing to overlap
        x = torch.rand(inputs, *self.shape, generator=torch.Generator().manual_seed(1)).to(self.device)
        cases = []
        for what, g in ((WITHOUT, plain), (PER_INPUT, per_input)):
            work = functools.partial(g.certify, x, n=1000, precision=precision)
            cases.append(Case(what, work, 1000 * len(x), WITHOUT))
        self.measure(*cases, repeats=9 if inputs > 2 else None)  # a third of a second each, and a spread of percents

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
        (row,) = self.measure(Case(Subject(Work.TOOLBOX, precision="fp32"), work, len(x) * self.n))
        ours = max((r for r in self.rows if r.what.work is Work.CERTIFY), key=lambda r: r.rate, default=None)
        if ours is not None:
            self.rows.append(set_beside(ours, row))
        return row


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


class _true_fp32:
    """Convolutions in real fp32, not TF32, which PyTorch would use on a GPU."""

    def __enter__(self) -> None:
        self.before = torch.backends.cudnn.allow_tf32
        torch.backends.cudnn.allow_tf32 = False

    def __exit__(self, *_: object) -> None:
        torch.backends.cudnn.allow_tf32 = self.before
