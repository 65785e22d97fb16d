"""The backend of a job: as asked for, as an existing run had it, or compiled only if the job is long enough."""

from __future__ import annotations

import time

import torch
from torch import nn

from ucan.errors import InvalidInput
from ucan.plan import CertifyPlan, PredictPlan
from ucan.questions.smoothed import Smoothed
from ucan.routed import Deployed
from ucan.votes import forward_size

# For an eager job shorter than this, in seconds, compiling takes longer than it saves.
WORTH_COMPILING = 120.0


def settle_backend(
    g: Deployed,
    choice: str,
    plan: CertifyPlan | PredictPlan,
    first: torch.Tensor,
    inputs: int,
    known: str | None = None,
) -> str:
    """Set the backend of g's classifier and return its name; ``known`` is the backend of an existing run.

    The parts of a router have one each; names that differ are separated by commas.
    """
    begun = [None] * len(g.parts) if known is None else known.split(",")
    begun = begun * len(g.parts) if len(begun) == 1 else begun
    names = [settle_one(part, choice, plan, first, inputs, own) for part, own in zip(g.parts, begun, strict=True)]
    return names[0] if len(set(names)) == 1 else ",".join(names)


def settle_one(
    g: Smoothed,
    choice: str,
    plan: CertifyPlan | PredictPlan,
    first: torch.Tensor,
    inputs: int,
    known: str | None = None,
) -> str:
    """Set the backend of one smoothed classifier."""
    if known is not None and choice in ("auto", known):
        g.engine.backend = "eager" if known == "function" else known
        if (found := g.backend_for(first, plan)) != known:
            raise InvalidInput(
                f"this run was started with backend {known}, but here the model runs with {found}: use a new folder, "
                f"or continue on a machine with that backend."
            )
        return known
    g.engine.backend = choice
    if choice == "auto" and not _worth_compiling(g, plan, first, inputs):
        g.engine.backend = "eager"
    return g.backend_for(first, plan)


def _worth_compiling(g: Smoothed, plan: CertifyPlan | PredictPlan, first: torch.Tensor, inputs: int) -> bool:
    """Whether the job is long enough to compile, assuming that no input stops early; times one or two forward
    passes.
    """
    if not isinstance(g.f.model, nn.Module):
        return False
    size = plan.batch_size or forward_size(first.numel(), first.device)
    samples = inputs * (plan.n + (plan.n0 if isinstance(plan, CertifyPlan) else 0))
    batch = g.M.view(first.expand(size, *first.shape[1:]).contiguous())
    for _ in range(2):  # the first pass includes warm-up time
        start = time.perf_counter()
        try:
            with torch.inference_mode():
                g.f(batch).flatten()[0].item()  # waits for the device
        except torch.OutOfMemoryError:  # smaller passes will be tried, without compiling
            return False
        if (time.perf_counter() - start) * samples / size < WORTH_COMPILING:
            return False
    return True
