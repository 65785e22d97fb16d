"""The random numbers of layers such as dropout: PyTorch's own generators, the CPU's and that of the device."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch

CPU, CUDA = "layers", "layers_cuda"  # their names in a checkpoint


def own_draws() -> AbstractContextManager[None]:
    """Within it, PyTorch's own generators may be seeded and drawn from: they belong to the whole process, and are as before
    afterwards.
    """
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    return torch.random.fork_rng(devices=gpus)


def layers_state(device: torch.device) -> dict[str, torch.Tensor]:
    """The states of the generators that layers on this device draw from; on a GPU dropout draws from the GPU's."""
    own = {CUDA: torch.cuda.get_rng_state(device)} if device.type == "cuda" else {}
    return {CPU: torch.get_rng_state(), **own}


def restore_layers(state: dict[str, Any], device: torch.device) -> None:
    """Go on from these states; that of a GPU is absent in older checkpoints and in those of other devices."""
    torch.set_rng_state(state[CPU])
    if device.type == "cuda" and CUDA in state:
        torch.cuda.set_rng_state(state[CUDA], device)
