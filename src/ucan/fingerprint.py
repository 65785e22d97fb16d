"""Which weights answered: a SHA-256 over a model's parameters and buffers that never lags behind them."""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

# Bytes that are looked at together on a device: much for a GPU to do at once, little beside its memory.
CHUNK = 2**27
_HASHES: weakref.WeakKeyDictionary[nn.Module, tuple[Any, str]] = weakref.WeakKeyDictionary()


def weights_hash(model: Any) -> str | None:
    """SHA-256 over a module's parameters and buffers, by name; of a callable, its own ``weights_hash``, if it has one.

    Contents are looked at every time, since PyTorch does not count a change through ``.data``. Of weights on a GPU
    that is a checksum on the device; they are fetched and hashed only when it is a new one.
    """
    if not isinstance(model, nn.Module):
        own = getattr(model, "weights_hash", None)
        return own if isinstance(own, str) else None
    every = {**model.state_dict(), **dict(model.named_buffers())}  # a buffer need not be part of the state
    state = {name: t.detach() for name, t in sorted(every.items()) if isinstance(t, torch.Tensor)}
    if all(t.device.type == "cpu" for t in state.values()):
        return _sha256(state)
    kinds = tuple((name, t.dtype, t.shape, t.device) for name, t in state.items())
    now = (kinds, checksums(state.values()))
    known = _HASHES.get(model)
    if known is None or known[0] != now:
        known = _HASHES[model] = (now, _sha256(state))
    return known[1]


def _sha256(state: dict[str, torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for name, tensor in state.items():
        digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}".encode())
        digest.update(_bytes(tensor.cpu()).numpy().data)
    return digest.hexdigest()


def checksums(tensors: Iterable[torch.Tensor]) -> tuple[int, ...]:
    """64-bit sums over every bit and its place, computed where the tensors are; the host waits once."""
    sums = [_mixed(torch.cat(pieces)).sum() for pieces in _chunks(tensors)]
    return tuple(torch.stack([s.to(sums[0].device) for s in sums]).tolist()) if sums else ()


def _mixed(data: torch.Tensor) -> torch.Tensor:
    """Bytes as 64-bit words, each mixed with its place (the finaliser of splitmix64), so that no two changes cancel."""
    words = nn.functional.pad(data, (0, -len(data) % 8)).view(torch.int64)
    z = torch.arange(len(words), device=data.device).mul_(-7046029254386353131).add_(words)
    for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685)):
        z ^= (z >> shift) & (2 ** (64 - shift) - 1)
        z *= factor
    return z ^ ((z >> 31) & (2**33 - 1))


def _chunks(tensors: Iterable[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """The tensors' bytes in lists of about ``CHUNK``, each on one device."""
    pending: list[torch.Tensor] = []
    size = 0
    for tensor in tensors:
        for piece in _bytes(tensor).split(CHUNK):
            if pending and (size >= CHUNK or piece.device != pending[0].device):
                yield pending
                pending, size = [], 0
            pending.append(piece)
            size += len(piece)
    if pending:
        yield pending


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)
