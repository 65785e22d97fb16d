"""The identity of models: a SHA-256 over parameters and buffers, always up to date."""

from __future__ import annotations

import functools
import hashlib
import itertools
import sys
import sysconfig
import types
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

# Bytes that are looked at together on a device: much for a GPU to do at once, little beside its memory.
CHUNK = 2**27
_HASHES: weakref.WeakKeyDictionary[nn.Module, tuple[Any, str]] = weakref.WeakKeyDictionary()
PLAIN = (bool, int, float, complex, str, bytes, torch.dtype, type(None))
CONTAINERS = (dict, list, tuple, set, frozenset)


def weights_hash(model: Any) -> str | None:
    """SHA-256 over a module's parameters and buffers, by name; of a callable, its own ``weights_hash``, if it has one.

    Contents are read every time, since PyTorch does not count a change through ``.data``. For weights on a GPU, a checksum is
    computed on the device; they are copied and hashed only if it is new.
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


def identity(model: Any, model_id: str | None = None) -> str | None:
    """The identity of a model in evidence, runs and registries. None if it cannot be determined.

    A model file is identified by its hash; a model without weights by the ``model_id`` that the user gives; a module by its
    weights, its layers and their settings; anything else by a hash of its code and its data, if these can be read.
    """
    if has_weights(model):
        return _module_identity(model) if isinstance(model, nn.Module) else weights_hash(model)
    if model_id is not None:
        return f"id:{model_id}"
    digest = hashlib.sha256()
    try:
        _digest(model, digest, ())
    except (_Unknown, RecursionError):
        return None
    return f"code:{digest.hexdigest()}"


def has_weights(model: Any) -> bool:
    """Whether a model is identified by its own weights: a module with tensors, or a model file."""
    if isinstance(model, nn.Module):
        return any(True for _ in itertools.chain(model.parameters(), model.buffers()))
    return weights_hash(model) is not None


def _module_identity(model: nn.Module) -> str:
    digest = hashlib.sha256(str(weights_hash(model)).encode())
    _digest_module(model, digest, ())
    return f"module:{digest.hexdigest()}"


def _digest_module(model: nn.Module, digest: Any, above: tuple[int, ...]) -> None:
    """Layers with their settings: two networks with the same weights may answer differently.

    What cannot be followed counts by its type; the code of classes counts where it is the user's own.
    """
    for name, part in model.named_modules():
        digest.update(f"{name} {type(part).__module__} {type(part).__qualname__}".encode())
        _digest_methods(type(part), digest)
        for key, value in sorted(vars(part).items()):
            if key.startswith("_") or key == "training" or isinstance(value, nn.Module):
                continue
            if isinstance(value, torch.Tensor) and not _is_constant(value):
                continue
            inner = hashlib.sha256()
            try:
                _digest(value, inner, (*above, id(model)))
            except (_Unknown, RecursionError):
                inner = hashlib.sha256(type(value).__qualname__.encode())
            digest.update(f"{key} {inner.hexdigest()}".encode())


def state_hash(module: nn.Module) -> str:
    """SHA-256 over a module's weights, buffers and the public attributes of all its parts that are plain, or arrays of
    numbers.
    """
    plain = [
        (name, type(part).__qualname__, key, repr(value) if _is_plain(value) else _numbers_hash(value))
        for name, part in module.named_modules()
        for key, value in sorted(vars(part).items())
        if not key.startswith("_") and key != "training" and (_is_plain(value) or _is_constant(value))
    ]
    return hashlib.sha256(f"{weights_hash(module)} {plain}".encode()).hexdigest()


class _Unknown(Exception):
    """Something whose contents cannot be followed."""


def _digest(value: Any, digest: Any, above: tuple[int, ...]) -> None:
    """Feed a value's contents into the digest: what it is made of, not where it lies."""
    if id(value) in above:
        digest.update(b"again")
        return
    above = (*above, id(value))
    digest.update(type(value).__qualname__.encode())
    if isinstance(value, PLAIN):
        digest.update(repr(value).encode())
    elif isinstance(value, nn.Module):
        digest.update(str(weights_hash(value)).encode())
        _digest_module(value, digest, above)
    elif isinstance(value, torch.Tensor):
        digest.update(_sha256({"": value}).encode())
    elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
        digest.update(f"{value.dtype.str} {value.shape}".encode() + np.ascontiguousarray(value).tobytes())
    elif isinstance(value, type | types.ModuleType):
        digest.update(f"{getattr(value, '__module__', '')} {value.__name__}".encode())
        if isinstance(value, type):
            _digest_class(value, digest, above)
    elif isinstance(value, types.FunctionType):
        _digest_function(value, digest, above)
    elif isinstance(value, dict):
        digest.update(f"{len(value)}".encode())
        for key, held in sorted(value.items(), key=lambda item: repr(item[0])):
            _digest(key, digest, above)
            _digest(held, digest, above)
    elif isinstance(value, set | frozenset | list | tuple):
        digest.update(f"{len(value)}".encode())
        for item in value if isinstance(value, list | tuple) else sorted(value, key=repr):
            _digest(item, digest, above)
    elif isinstance(value, types.MethodType | functools.partial):
        _digest(value.__func__ if isinstance(value, types.MethodType) else value.func, digest, above)
        held = value.__self__ if isinstance(value, types.MethodType) else (value.args, value.keywords)
        _digest(held, digest, above)
    else:
        _digest_object(value, digest, above)


def _digest_function(function: types.FunctionType, digest: Any, above: tuple[int, ...]) -> None:
    """A function by its code, its defaults, what it closed over, and the globals that it names."""
    code = function.__code__
    digest.update(code.co_code)
    _digest_code(code, digest, above)
    _digest((function.__defaults__, function.__kwdefaults__), digest, above)
    _digest([cell.cell_contents for cell in function.__closure__ or ()], digest, above)
    for name in sorted(_names(code)):
        if name in function.__globals__:
            digest.update(name.encode())
            _digest(function.__globals__[name], digest, above)


def _digest_class(kind: type, digest: Any, above: tuple[int, ...]) -> None:
    """The functions and plain attributes of a class of the user's own; of a library's classes the name is enough."""
    for base in kind.__mro__:
        if not _is_own(base) or id(base) in above:
            continue
        for name, value in sorted(vars(base).items()):
            found = getattr(value, "__func__", getattr(value, "fget", value))  # static, class methods and properties
            if isinstance(found, (types.FunctionType, *PLAIN)) and name not in (
                "__module__",
                "__doc__",
                "__qualname__",
            ):
                digest.update(name.encode())
                _digest(found, digest, (*above, id(base)))


def _digest_methods(kind: type, digest: Any) -> None:
    """The code of a module's own class alone: what a network answers by is in its parts, and globals may be counters."""
    for base in kind.__mro__:
        for name, value in sorted(vars(base).items()) if _is_own(base) else ():
            if isinstance(value, types.FunctionType):
                digest.update(name.encode() + value.__code__.co_code)
                _digest_code(value.__code__, digest, ())


@functools.lru_cache(maxsize=4096)
def _is_own(kind: type) -> bool:
    """Whether a class is neither Python's, nor ours, nor that of an installed package."""
    module = sys.modules.get(kind.__module__)
    if kind.__module__ == "__main__":
        return True
    file = getattr(module, "__file__", None)
    if file is None or kind.__module__.partition(".")[0] == "ucan":
        return False
    parts = Path(file).parts
    return not ({"site-packages", "dist-packages"} & set(parts) or file.startswith(sysconfig.get_paths()["stdlib"]))


def _digest_code(code: types.CodeType, digest: Any, above: tuple[int, ...]) -> None:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            digest.update(constant.co_code)
            _digest_code(constant, digest, above)
        else:
            _digest(constant, digest, above)
    digest.update(repr((code.co_names, code.co_varnames)).encode())


def _names(code: types.CodeType) -> set[str]:
    """The global names in a function and in the functions inside it."""
    inner = (_names(constant) for constant in code.co_consts if isinstance(constant, types.CodeType))
    return set(code.co_names).union(*inner)


def _digest_object(value: Any, digest: Any, above: tuple[int, ...]) -> None:
    """Any other object as pickling takes it apart; nothing is written."""
    try:
        parts = value.__reduce_ex__(4)
    except Exception as error:  # whatever an object says that cannot be taken apart
        raise _Unknown from error
    if isinstance(parts, str):
        digest.update(parts.encode())
        return
    made, arguments, *state = parts
    digest.update(f"{type(value).__module__} {getattr(made, '__qualname__', '')}".encode())
    _digest_class(type(value), digest, above)
    _digest(arguments, digest, above)
    for part in state:
        _digest(list(part) if part is not None and hasattr(part, "__next__") else part, digest, above)


def plain_state(model: nn.Module) -> tuple[Any, ...]:
    """The switches and numbers that a module's parts keep beside their weights: a copy made under others answers otherwise.

    Tensors and arrays that are neither weights nor buffers count by their content. Of a container that holds more than all
    those, such as the hooks, it is the length.
    """
    return tuple(
        (name, type(module), key, _content(value))
        for name, module in model.named_modules()
        for key, value in vars(module).items()
        if isinstance(value, PLAIN)
        or _is_constant(value)
        or (isinstance(value, CONTAINERS) and value)  # most are empty
    )


def _content(value: Any) -> Any:
    if isinstance(value, PLAIN):
        return value
    if _is_constant(value):
        return _numbers_hash(value)
    if _is_plain(value):
        return repr(value)
    inner = value.values() if isinstance(value, dict) else value
    return tuple(map(_numbers_hash, inner)) if all(map(_is_constant, inner)) else len(value)


def _is_constant(value: Any) -> bool:
    """Whether a value is an array of numbers that somebody set, no weight and not what a forward pass left behind."""
    if isinstance(value, torch.Tensor):
        kept = isinstance(value, nn.Parameter) or value.grad_fn is not None or value.is_inference()
        return not kept and value.layout == torch.strided
    return isinstance(value, np.ndarray) and not value.dtype.hasobject


def _numbers_hash(value: torch.Tensor | np.ndarray) -> str:
    digest = hashlib.sha256()
    _digest(value, digest, ())
    return digest.hexdigest()


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
