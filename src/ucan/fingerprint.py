"""Which weights answered: a SHA-256 over a model's parameters and buffers that never lags behind them."""

from __future__ import annotations

import hashlib
import itertools
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

# Bytes that are looked at together on a device: much for a GPU to do at once, little beside its memory.
CHUNK = 2**27
_HASHES: weakref.WeakKeyDictionary[nn.Module, tuple[Any, str]] = weakref.WeakKeyDictionary()
PLAIN = (bool, int, float, complex, str, bytes, torch.dtype, type(None))
CONTAINERS = (dict, list, tuple, set, frozenset)


def weights_hash(model: Any) -> str | None:
    """SHA-256 over a module's parameters and buffers, by name; of a callable, its own ``weights_hash``, if it has one.

    Contents are looked at every time, since PyTorch does not count a change through ``.data``. Of weights on a GPU
    that is a checksum on the device; they are fetched and hashed only when it is a new one.
    """
    if not isinstance(model, nn.Module):
        own = getattr(model, "weights_hash", None)
        return own if isinstance(own, str) else None
    every = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    state = dict(sorted(every, key=lambda item: item[0]))
    if all(t.device.type == "cpu" for t in state.values()):
        return _sha256(state)
    kinds = tuple((name, t.dtype, t.shape, t.device) for name, t in state.items())
    now = (kinds, checksums(state.values()))
    known = _HASHES.get(model)
    if known is None or known[0] != now:
        known = _HASHES[model] = (now, _sha256(state))
    return known[1]


def plain_state(model: nn.Module) -> tuple[Any, ...]:
    """The switches and numbers that a module's parts keep beside their tensors: a copy made under others answers otherwise.

    Of a container that holds more than those, such as the hooks, it is the length.
    """
    return tuple(
        (
            name,
            type(module),
            key,
            value if isinstance(value, PLAIN) else repr(value) if _is_plain(value) else len(value),
        )
        for name, module in model.named_modules()
        for key, value in vars(module).items()
        if isinstance(value, PLAIN) or (isinstance(value, CONTAINERS) and value)  # most are empty
    )


def _is_plain(value: Any) -> bool:
    """Whether a value is written out in full by its repr: a number, a text or a switch, or a container of such."""
    if isinstance(value, dict):
        return all(map(_is_plain, itertools.chain(value, value.values())))
    return all(map(_is_plain, value)) if isinstance(value, CONTAINERS) else isinstance(value, PLAIN)


def _sha256(state: dict[str, torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for name, tensor in state.items():
        digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}".encode())
        digest.update(_bytes(tensor.detach().cpu().reshape(-1)).numpy().data)
    return digest.hexdigest()


@torch.no_grad()
def checksums(tensors: Iterable[torch.Tensor]) -> tuple[int, ...]:
    """64-bit sums over every bit and its place, computed where the tensors are; the host waits once."""
    sums = [_mixed(_bytes(torch.cat(pieces))).sum() for pieces in _chunks(tensors)]
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
    """The tensors, flat, in lists of about ``CHUNK`` bytes, each of one device and dtype; in few calls, for their sake."""
    pending: dict[Any, list[torch.Tensor]] = {}
    sizes: dict[Any, int] = {}
    for tensor in tensors:
        flat, kind = tensor.reshape(-1), (tensor.device, tensor.dtype)
        most = CHUNK // tensor.itemsize
        for piece in flat.split(most) if len(flat) > most else (flat,):
            pending.setdefault(kind, []).append(piece)
            sizes[kind] = sizes.get(kind, 0) + piece.nbytes
            if sizes[kind] >= CHUNK:
                yield pending.pop(kind)
                sizes[kind] = 0
    yield from pending.values()


def _bytes(flat: torch.Tensor) -> torch.Tensor:
    return flat.contiguous().view(torch.uint8)
