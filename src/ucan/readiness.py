"""Checks before any work: the inputs, whether the model answers each input independently, whether the noise is as
declared.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ucan.errors import InvalidInput, ModelError, UcanError, in_one_line
from ucan.fingerprint import plain_state
from ucan.generators import Generator
from ucan.guards import (
    SAME,
    check_constant,
    check_from_the_start,
    check_lost,
    check_moves,
    check_precision,
    check_theorem,
    fresh,
    unlike,
)
from ucan.sizes import Sizes
from ucan.votes import LARGE, TOO_SMALL, Classifier

# Number of noisy copies that a model must answer alike in a batch and one by one; fewer for very large inputs.
COMPANY = 8
FEW = 4
# How far other company may move what a view shows, by rounding, as a share of its size.
SHOWN = 2.0**-8
# The most copies of an input in memory at once, in these checks and for blocks of one copy, besides the model.
COPIES = 64
# The numbers of channels that pictures have.
CHANNELS = (1, 3, 4)
TRANSPOSED = "Channels come first: x.permute(0, 3, 1, 2) in PyTorch, x.transpose(0, 3, 1, 2) in NumPy."


class Readiness:
    """Checks that a classifier f under a generator's noise can process inputs; each kind of input is tried once."""

    def __init__(self, f: Classifier, M: Generator, sizes: Sizes) -> None:
        self.f, self.M, self.law, self.sizes = f, M, sizes.law, sizes
        self._answered: set[Any] = set()

    def inputs(self, x: torch.Tensor, norm: float | None) -> list[torch.Tensor]:
        """The inputs as a list, each (1, *event) on the model's device; raises an error before any work."""
        self.f.check_ready()
        check_evaluating(self.M)
        check_batch(x)
        check_room(x, self.f.device or x.device)
        if self.sizes.grid is not None:
            self.sizes.grid.check_fits(x.shape[1:])
        if norm is not None:
            self.law.radius(0.5, norm, x[0].numel())  # refuses a norm or a dimension that the law does not support
        check_theorem(self.M)
        self.M.check_claim(self.law, norm)
        device = self.f.device or x.device
        check_precision(device)
        self.M.to(device)
        # Noise in 16 bits does not have the law's distribution, so it is not drawn in 16 bits. Copies protect the caller's
        # tensor, and the input that is certified, from a model that works in place.
        dtype = torch.promote_types(x.dtype, torch.float32)
        inputs = [x[i : i + 1].detach().clone().to(device, dtype) for i in range(len(x))]
        self._check_answer(inputs[0])
        return inputs

    def _check_answer(self, x: torch.Tensor) -> None:
        """Raise an error, before any work, if the model cannot answer inputs like x (1, *event). Each shape is tried once,
        until the model's switches change.

        The same for a generator whose noise contradicts its scope.
        """
        kind = (x.shape, x.dtype, x.device, plain_state(self.f.model) if isinstance(self.f.model, nn.Module) else None)
        if kind in self._answered:
            return
        held = check_from_the_start(self.M, x, self.law)  # refuses noise that does not fit
        if self.sizes.grid is None:
            check_lost(held, x, self.law)
        else:
            self.sizes.error(held, x)  # refuses noise that cannot be drawn on the grid
        rng = fresh(x.device)
        with torch.inference_mode():
            copies = held.perturb(x, self.law, _company(x), rng)[:, 0]
            shown = self.M.view(copies.clone())
        elsewhere = self.M.at(unlike(x))  # a view that stores its input now stores another input
        check_moves(held, x, self.law)
        if held.scope == "pipeline":
            check_constant(held, elsewhere, x, self.law)
        try:
            with torch.inference_mode():
                if not torch.allclose(shown, self.M.view(copies), rtol=SAME, atol=SAME, equal_nan=True):
                    raise InvalidInput(
                        f"{self.M.describe()}: its view depends on the clean input, not only on the noisy one, so it cannot "
                        f"be part of a classifier: write a view without state."
                    )
                self._check_alone(x)
                self._check_view(copies, x)
                self._check_company(held, x, rng)
                self.f.check_unchanged(shown)
        except UcanError:
            raise
        except torch.OutOfMemoryError as error:
            raise ModelError(
                "a forward pass of a few copies does not fit into the device's memory, and with one alone it cannot be checked "
                "that votes are independent: use another device, or smaller inputs."
            ) from error
        except Exception as error:  # whatever the user's model raises
            raise cannot_answer(x, error) from error
        self._answered.add(kind)

    def _check_alone(self, x: torch.Tensor) -> None:
        """Raise an error if the model cannot answer x (1, *event) itself."""
        try:
            self.f(self.M.view(x.clone()))
        except torch.OutOfMemoryError as error:
            raise ModelError(TOO_SMALL) from error

    def _check_view(self, copies: torch.Tensor, x: torch.Tensor) -> None:
        """Refuse a view that shows a copy otherwise in other company, as batch norm on the batch's own statistics does."""
        strange = [10 * unlike(x).expand_as(copies), torch.zeros_like(copies)]
        shown = self.M.view(copies.clone())
        alone = torch.cat([self.M.view(one) for one in copies.clone().split(1)])
        ways = [alone, *(self.M.view(torch.cat([copies, others]))[: len(copies)] for others in strange)]
        size = float(shown.abs().nan_to_num(posinf=0.0).amax()) if shown.numel() else 0.0
        if not all(torch.allclose(shown, way, rtol=0, atol=SHOWN * size, equal_nan=True) for way in ways):
            raise InvalidInput(
                f"{self.M.describe()}: its view shows an input otherwise in other company, so its votes are not independent "
                "and prove nothing: write a view that looks at each input by itself."
            )

    def _check_company(self, held: Generator, x: torch.Tensor, rng: torch.Generator) -> None:
        """Refuse a model whose answer to a noisy copy of x (1, *event) depends on the rest of its batch."""
        far = torch.cat([scale * (y - y.mean()) for scale in (1, 10) for y in (unlike(x), unlike(x))])
        others = self.M.view(torch.cat([far, -x, torch.zeros_like(x)]))
        draws = (self.M.view(held.perturb(x, self.law, _company(x), rng)[:, 0]) for _ in range(3))
        self.f.check_apart(draws, others)


def check_evaluating(M: Generator) -> None:
    """Refuse a generator in training mode: what it gives could depend on the batch."""
    training = [name or "the generator" for name, part in M.named_modules() if part.training]
    if training:
        raise InvalidInput(f"the generator is in training mode ({training[0]}): call its eval() first.")


def _company(x: torch.Tensor) -> int:
    """The number of noisy copies of x (1, *event) to try in one batch."""
    return COMPANY if x.numel() <= LARGE else FEW


def check_room(x: torch.Tensor, device: torch.device) -> None:
    """Refuse, before any work, inputs (batch, *event) whose noisy copies do not fit in memory."""
    dim = x[0].numel()
    if dim <= LARGE:
        return
    needed, free = COPIES * dim * max(4, x.element_size()), free_memory(device)
    if free is not None and needed > free:
        raise InvalidInput(
            f"inputs of {dim:,} numbers need about {needed / 2**30:.1f} GiB of memory for their noisy copies, but only "
            f"{free / 2**30:.1f} GiB are free: use smaller inputs, or a machine with more memory."
        )


def free_memory(device: torch.device) -> int | None:
    """Free bytes on a device; None if unknown."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None


def check_batch(x: torch.Tensor) -> None:
    """Refuse anything but a batch (batch, *event) of finite floating-point numbers."""
    if not isinstance(x, torch.Tensor):
        raise InvalidInput(f"x must be a torch tensor of shape (batch, *event), got {type(x).__name__}{_tensor_of(x)}.")
    if not x.is_floating_point():
        advice = (
            "x.float() / 255 for 8-bit pictures"
            if x.dtype == torch.uint8
            else "x.double() for numbers; noise cannot be added to token ids, but to their embeddings "
            "(ucan.models.Embedded)"
        )
        raise InvalidInput(f"x must hold floating-point numbers, got {x.dtype}: {advice}.")
    if x.layout != torch.strided or torch.finfo(x.dtype).bits < 16:
        raise InvalidInput(
            f"x must be a dense tensor of 16 bits or more, got {x.dtype} in layout {x.layout}: use x.to_dense(), x.float()."
        )
    if x.ndim < 2 or x.numel() == 0:
        one = ": give one input as x[None]" if x.ndim == 1 and x.numel() else ""
        raise InvalidInput(f"x must be a non-empty batch of shape (batch, *event), got {tuple(x.shape)}{one}.")
    if not torch.isfinite(x).all():
        first = (~torch.isfinite(x)).nonzero()[0].tolist()
        raise InvalidInput(f"x{first} is {x[tuple(first)].item()}: every entry must be a finite number.")


def _tensor_of(x: object) -> str:
    """What to give instead of something that is no tensor, as the end of a sentence."""
    kind = type(x).__module__.partition(".")[0]
    if kind == "numpy":
        return ": use torch.from_numpy(x)"
    if kind in ("pandas", "polars"):
        return ": for a table, use ucan.SmoothedTable"
    return ""


def cannot_answer(x: torch.Tensor, error: Exception) -> ModelError:
    """The error to raise if a model fails on an input like x (1, *event)."""
    return ModelError(
        f"the model fails on an input of shape {tuple(x.shape[1:])}: {in_one_line(error).rstrip('.')}. Check "
        f"that the model takes this shape{_reshaped(tuple(x.shape[1:]))}"
    )


def channels_last(event: tuple[int, ...]) -> bool:
    """Whether an input of this shape looks like a picture whose channels come last."""
    return len(event) == 3 and event[-1] in CHANNELS and event[0] not in CHANNELS


def _reshaped(event: tuple[int, ...]) -> str:
    """How inputs of this shape may have been meant, as the end of a message."""
    if len(event) == 1:
        return ". Flattened pictures need their shape back: x.reshape(-1, channels, height, width)."
    if len(event) == 2:
        return (
            ": the first dimension is that of the batch, so one input is given as x[None], and pictures without channels as "
            "x[:, None]."
        )
    if channels_last(event):
        return f". {TRANSPOSED}"
    return ". (On the command line, --size and --channels change the shape of a folder's pictures.)"
