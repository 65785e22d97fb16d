"""Tensors in JSON: small ones inline, large ones once in a safetensors file named by its own hash."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch.utils.weak import WeakTensorKeyDictionary

from ucan.errors import InvalidInput
from ucan.storage import write_whole

# Up to this many numbers stay in the JSON itself: a digit or a small image, readable by eye and by any tool.
INLINE = 4096
# What a file of tensors is called, as a pattern: the SHA-256 of its bytes.
FILE_NAME = r"[0-9a-f]{64}\.safetensors"
# Copies on the host of tensors on a device, as long as those exist, with the version that was copied.
_ON_HOST: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def tensor_hash(tensor: torch.Tensor) -> str:
    """SHA-256 of a tensor's bytes as they are."""
    flat = tensor.detach().cpu().contiguous().flatten()
    if flat.numel() == 1:  # it may have any stride, 0 if it is a column that NumPy made, and bytes need that of 1
        flat = flat.clone(memory_format=torch.contiguous_format)
    return hashlib.sha256(flat.view(torch.uint8).numpy().tobytes()).hexdigest()


def on_host(x: torch.Tensor) -> torch.Tensor:
    """A tensor on the host: itself, or a copy, which is made once for each state of a tensor on a device."""
    if x.device.type == "cpu" or x.is_inference():
        return x.cpu()
    known: tuple[int, torch.Tensor] | None = _ON_HOST.get(x)
    if known is None or known[0] != x._version:
        known = _ON_HOST[x] = (x._version, x.detach().cpu())
    return known[1]


def input_hash(x: torch.Tensor) -> str:
    """SHA-256 of an input's float32 bytes: its identity for seeds and certificates."""
    return tensor_hash(on_host(x).detach().float())


def exact_hash(x: torch.Tensor) -> str:
    """SHA-256 of an input's numbers in float64: two inputs that float32 cannot tell apart are two."""
    return tensor_hash(on_host(x).detach().double())


def batch_hash(inputs: Iterable[torch.Tensor]) -> str:
    """SHA-256 over the identities of several inputs, in their order."""
    return hashlib.sha256("/".join(map(exact_hash, inputs)).encode()).hexdigest()


def is_small(tensors: dict[str, torch.Tensor]) -> bool:
    """Whether JSON keeps these tensors itself."""
    return sum(t.numel() for t in tensors.values()) <= INLINE


def tensors_to_json(tensors: dict[str, torch.Tensor], folder: Path | None) -> dict[str, Any]:
    """What JSON keeps of these tensors; large ones are written to ``folder`` (if given) and referred to by name."""
    if is_small(tensors):
        return {
            name: {"dtype": str(t.dtype).removeprefix("torch."), "data": t.detach().cpu().tolist()}
            for name, t in tensors.items()
        }
    # Clones: two names may stand for the same memory, which the file format refuses.
    data = save({name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()})
    file = f"{hashlib.sha256(data).hexdigest()}.safetensors"
    if folder is not None and not (folder / file).exists():
        write_whole(folder / file, data)
    return {"file": file}


def tensors_from_json(entry: dict[str, Any], folder: Path | None) -> dict[str, torch.Tensor]:
    """The inverse of ``tensors_to_json``; a file is checked against the hash in its name."""
    if "file" not in entry:
        return {name: torch.tensor(t["data"], dtype=getattr(torch, t["dtype"])) for name, t in entry.items()}
    name = str(entry["file"])
    if folder is None or Path(name).name != name or not (folder / name).is_file():
        raise InvalidInput(f"the file {name}, which holds this record's tensors, must be in the same folder.")
    data = (folder / name).read_bytes()
    if f"{hashlib.sha256(data).hexdigest()}.safetensors" != name:
        raise InvalidInput(f"{folder / name} does not match the hash in its name: it is damaged or was changed.")
    return load(data)
