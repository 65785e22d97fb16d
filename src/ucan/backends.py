"""How the classifier is run: eager or compiled, in which precision; always checked against the model as it was given.

A certificate is about the classifier as it was run, so backend and precision stand in its evidence.
"""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ucan.choices import BACKENDS, check_choice
from ucan.choices import PRECISIONS as PRECISIONS
from ucan.errors import InvalidInput, ModelError, first_line, in_one_line
from ucan.passes import recorded
from ucan.runtimes import RUNTIMES, check_usable, installed, loaded
from ucan.votes import Classifier, Form, matmul_in

# The largest difference to the given model's logits, relative to their spread, that a backend may show.
TOLERANCE = {"fp32": 2e-3, "tf32": 3e-2, "bf16": 0.15}

# Of a model that answers with class numbers, the share of votes that another way of running it may change.
DIFFERING = 0.02
# The share of a batch that rounding may move far in a model whose logits jump (``Ensemble.jumps``).
JUMPING = 0.25

DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16}
# Weights become constants, so that batch norm folds into convolutions and layouts are chosen once. ``tuned`` also times
# several kernels for each layer: a minute or more at the start, and much faster where channels are few.
OPTIONS: dict[str, dict[str, bool | int]] = {
    "compile": {"freezing": True},
    "tuned": {
        "freezing": True,
        "max_autotune": True,
        "autotune_num_choices_displayed": 0,
        "max_autotune_report_choices_stats": False,
    },
}

# Convolutions of no more channels than this are left to ``tuned`` to choose kernels for; for wider ones the library's are best.
NARROW = 64
# Launching a forward pass may take this share of the time that it runs; above, it is recorded as one graph.
LAUNCHING = 0.1

Vote = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Backend:
    """A way to get votes from noisy inputs, and its name for the evidence.

    ``form`` is how the network wants its inputs in memory, where noise can be written so at once; None for as they are.
    """

    vote: Vote
    name: str
    precision: str
    form: Form | None = None


def prepare(
    f: Classifier, view: Callable[[torch.Tensor], torch.Tensor], example: torch.Tensor, name: str, precision: str | None
) -> Backend:
    """The fastest faithful way to run f∘view on batches like ``example`` (size, *event).

    Without a precision the model runs in its own. A model that refuses to compile runs eagerly, after one warning that
    says why; a backend whose logits leave the tolerance is refused.
    """
    check_choice("backend", name, BACKENDS)
    if precision is not None:
        check_choice("precision", precision, PRECISIONS)
    own = precision_name(f.dtype or example.dtype)
    if not isinstance(f.model, nn.Module):
        if precision not in (None, own) or name in (*OPTIONS, *RUNTIMES):
            raise InvalidInput("precision and backend are for PyTorch modules; this classifier is a plain function.")
        return Backend(lambda noisy: f(view(noisy)), "function", own)
    if precision in (None, own) and name == "eager":
        return Backend(_in_precision(lambda noisy: f(view(noisy)), own), "eager", own)
    wanted = precision or own
    if name in RUNTIMES:
        check_usable(name, example.device, wanted)
    others = installed(wanted) if example.device.type == "cpu" else ()
    candidates = ("eager", "compile", *others) if name == "auto" else (name,)
    made = [backend for kind in candidates if (backend := _module_backend(f, view, example, wanted, kind))]
    if not made:  # compilation failed: the warning has been given
        made = [_must(_module_backend(f, view, example, wanted, "eager"))]
    return made[0] if len(made) == 1 else min(made, key=lambda backend: _seconds(backend, example))


def precision_name(dtype: torch.dtype) -> str:
    """What certificates call a dtype."""
    return {torch.float32: "fp32", torch.bfloat16: "bf16"}.get(dtype, str(dtype).removeprefix("torch."))


def _module_backend(
    f: Classifier, view: Callable[[torch.Tensor], torch.Tensor], example: torch.Tensor, precision: str, kind: str
) -> Backend | None:
    """One module backend, checked; None where it cannot be compiled."""
    logits, form = _network(f, view, example, precision, kind)

    def vote(noisy: torch.Tensor) -> torch.Tensor:
        return f.to_votes(logits(noisy), len(noisy))

    run = _compiled(vote, OPTIONS[kind]) if kind in OPTIONS else vote
    with torch.inference_mode():  # as votes are: what is compiled for other tensors would be compiled again
        ready = example.clone() if form is None else form.of(example.clone())
    with matmul_in(precision):
        if (kind in OPTIONS or kind in RUNTIMES) and not _compiles(run, ready, kind):
            return None
        try:
            _check(f, view, example, ready, logits, run, precision, kind)
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            raise ModelError(
                f"the model cannot run in {precision} ({first_line(error)}): leave precision out, or let "
                "its forward keep the dtype that it is given."
            ) from error
        if kind in OPTIONS:
            run = _recorded(run, ready)

    return Backend(_in_precision(run, precision), kind, precision, form)


def _compiles(run: Callable[[torch.Tensor], torch.Tensor], ready: torch.Tensor, kind: str) -> bool:
    """Whether a first pass, which compiles the model, succeeds; otherwise a warning says why not."""
    try:
        with torch.inference_mode(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the compiler's own, about itself
            run(ready)
    except torch.OutOfMemoryError:
        raise  # smaller passes may fit
    except Exception as error:  # whatever the compiler could not digest
        warnings.warn(
            f"the model cannot be compiled by {kind} ({first_line(error)}): another backend runs it.",
            RuntimeWarning,
            stacklevel=4,
        )
        return False
    return True


def _network(
    f: Classifier, view: Callable[[torch.Tensor], torch.Tensor], example: torch.Tensor, precision: str, kind: str
) -> tuple[Vote, Form | None]:
    """The logits of f∘view on a copy of the network in this precision, and the form of inputs that suits it.

    On a GPU noise is written in that form at once, where the view shows all of it: every further pass over the noise costs
    a percent of the forward pass. Otherwise inputs come as they are, and are brought to it here.
    """
    model: nn.Module = f.model  # type: ignore[assignment]
    dtype = torch.float32 if kind in RUNTIMES else DTYPES.get(precision, f.dtype or torch.float32)
    try:
        twin = copy.deepcopy(model).to(dtype=dtype).eval().requires_grad_(False)
    except Exception as error:  # whatever a module of the user's holds
        raise ModelError(
            f"the model cannot be copied ({error}), which another precision and compiling need: leave precision out and "
            "use backend='eager'."
        ) from error
    suited = Form(dtype, channels_last=example.ndim == 4 and kind not in RUNTIMES)
    if suited.channels_last:
        twin = twin.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    made: list[Vote] = []
    with matmul_in(precision):
        network = _folded(twin, model, suited.of(view(example)), kind) if kind in OPTIONS else twin

    def logits(noisy: torch.Tensor) -> torch.Tensor:
        if kind not in RUNTIMES:
            found: torch.Tensor = network(suited.of(view(noisy)))
            return found
        if not made:
            made.append(loaded(kind, twin, suited.of(view(noisy)).clone(), precision))
        return made[0](suited.of(view(noisy)))

    return logits, suited if example.is_cuda and view(example) is example else None


def _folded(twin: nn.Module, model: nn.Module, ready: torch.Tensor, kind: str) -> nn.Module:
    """The twin in fewer passes over memory, where it is a network of convolutions in 16 bits on a GPU; else itself."""
    if not (ready.is_cuda and ready.dtype == torch.bfloat16 and ready.ndim == 4):
        return twin
    from ucan.folding import folded

    try:
        found = folded(twin, model, ready, NARROW if kind == "tuned" else 0)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # a fault of folding itself: the answers are right without it
        warnings.warn(
            f"the model could not be folded ({in_one_line(error)}), and is compiled as it is: votes are right, and slower. "
            "Please report this, with the model.",
            RuntimeWarning,
            stacklevel=2,
        )
        return twin
    if found is None:
        return twin
    try:
        with torch.inference_mode():
            found(ready)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:  # cuDNN has no kernels for these convolutions
        return twin
    return found


def _compiled(vote: Vote, options: dict[str, bool | int]) -> Vote:
    """The vote compiled for one shape. Every classifier of a process counts towards the compiler's limit of variants, and
    past it the compiler would silently run eagerly: the limit is raised, and reaching it is an error. So is a part of
    the network that cannot be compiled.
    """
    known: dict[str, Any] = {name: value for name, value in options.items() if hasattr(torch._inductor.config, name)}
    run = torch.compile(vote, fullgraph=True, dynamic=False, options=known)

    def limited(noisy: torch.Tensor) -> torch.Tensor:
        # Options reach the compiler only after the weights were made arguments of the graph: that they are constants must
        # be known before.
        frozen = torch._inductor.config.patch(freezing=options["freezing"])
        with torch._dynamo.config.patch(recompile_limit=256, fail_on_recompile_limit_hit=True), frozen:
            return run(noisy)

    return limited


@torch.inference_mode()
def _recorded(vote: Vote, ready: torch.Tensor) -> Vote:
    """The compiled vote as one CUDA graph, where the host would be busy with launching its kernels, and memory is plenty.

    A graph keeps the memory of a forward pass for itself.
    """
    if not ready.is_cuda:
        return vote
    free, memory = torch.cuda.mem_get_info(ready.device)
    torch.cuda.synchronize(ready.device)
    start = time.perf_counter()
    vote(ready)
    launched = time.perf_counter() - start
    torch.cuda.synchronize(ready.device)
    if free < memory / 2 or launched < LAUNCHING * (time.perf_counter() - start):
        return vote
    run = recorded(lambda noisy: (vote(noisy),), ready)
    return lambda noisy: run(noisy)[0]


def _in_precision(vote: Vote, precision: str) -> Vote:
    def voted(noisy: torch.Tensor) -> torch.Tensor:
        with matmul_in(precision):
            return vote(noisy)

    return voted


@torch.inference_mode()
def _check(
    f: Classifier,
    view: Any,
    example: torch.Tensor,
    ready: torch.Tensor,
    logits: Any,
    run: Vote,
    precision: str,
    kind: str,
) -> None:
    """Refuse a backend that does not answer as the given model does, on this batch, within the precision's tolerance.

    ``ready`` is the batch in the form that the backend takes.
    """
    with matmul_in("fp32"):
        truth = f.model(view(example) if f.dtype is None else view(example).to(f.dtype))
    names = (precision, precision_name(f.dtype or example.dtype))
    tolerance = max(TOLERANCE.get(name, TOLERANCE["fp32"]) for name in names)
    if not isinstance(truth, torch.Tensor) or truth.ndim != 2 or not f.has_logits:  # no margins to compare
        votes = f.to_votes(truth, len(example))
        share = f.differing(votes, run(ready), tolerance)
        if share > DIFFERING:
            raise ModelError(
                f"the {kind} backend in {precision} disagrees with the model in {share:.1%} of the votes. Use "
                "backend='eager' and precision=None."
            )
        return
    valid = ~truth.isnan().any(1)  # a vote that is invalid anyway has no logits to compare
    if not valid.any():
        return
    truth, answer, votes = truth[valid].float(), logits(ready)[valid].float(), run(ready)[valid]
    spread = float((truth.amax(1) - truth.amin(1)).mean()) or 1.0
    apart = (answer - truth).abs().amax(1) / spread
    # Where the model itself jumps, rounding may move some of a batch far; a wrong backend moves more of it.
    jumps = bool(getattr(f.model, "jumps", False)) and float((apart <= tolerance).double().mean()) >= 1 - JUMPING
    kept = (apart <= tolerance) if jumps else torch.ones_like(apart, dtype=torch.bool)
    distance, top = float(apart[kept].max()), truth.topk(2, dim=1).values
    clear = kept & ((top[:, 0] - top[:, 1]) > 4 * tolerance * spread)
    differing = int((votes != truth.argmax(1))[clear].sum())
    if not distance <= tolerance or differing:
        raise ModelError(
            f"the {kind} backend in {precision} disagrees with the model: logits differ by {distance:.2g} of their "
            f"spread, and {differing} of {int(clear.sum())} clear votes differ. Use backend='eager' and precision=None."
        )


@torch.inference_mode()
def _seconds(backend: Backend, example: torch.Tensor, repeats: int = 3) -> float:
    """The best of a few timings of one forward pass."""
    best, ready = float("inf"), example if backend.form is None else backend.form.of(example)
    for _ in range(repeats):
        start = time.perf_counter()
        backend.vote(ready).flatten()[0].item()  # waits for the device
        best = min(best, time.perf_counter() - start)
    return best


def _must(backend: Backend | None) -> Backend:
    assert backend is not None, "an eager backend always exists"
    return backend
