"""Other runtimes for a PyTorch module on a CPU, where they are installed: ONNX Runtime and OpenVINO.

Both compile a network for batches of one shape, and on a CPU both are often faster than PyTorch itself. Their answers are
held against the module's like those of any other backend.

Both record what a module does with one batch. A module that looks at values to decide what to do, such as an early exit,
would go on doing what it did for that batch: it is refused.
"""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Callable
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ucan.errors import InvalidInput, ModelError, first_line

# What each of them computes in, as PRECISIONS of ``backends`` calls it.
RUNTIMES: dict[str, tuple[str, ...]] = {"onnxruntime": ("fp32",), "openvino": ("fp32", "bf16")}

Logits = Callable[[torch.Tensor], torch.Tensor]


def installed(precision: str) -> tuple[str, ...]:
    """The runtimes that are there and compute in this precision."""
    return tuple(name for name, known in RUNTIMES.items() if precision in known and find_spec(name) is not None)


def check_usable(name: str, device: torch.device, precision: str) -> None:
    """Refuse, before any work, a runtime that is not there, or that does not run what is asked for."""
    if find_spec(name) is None:
        raise InvalidInput(f"backend='{name}' needs a package that is not installed: pip install {name}.")
    if device.type != "cpu":
        raise InvalidInput(f"backend='{name}' is for CPUs, the model is on {device.type}: use compile or tuned there.")
    if precision not in RUNTIMES[name]:
        known = " and ".join(RUNTIMES[name])
        raise InvalidInput(
            f"backend='{name}' computes in {known}, not in {precision}: use another precision or backend."
        )


def loaded(name: str, module: nn.Module, example: torch.Tensor, precision: str) -> Logits:
    """A float32 module in evaluation mode, on batches of the example's shape."""
    _refuse_decisions(module, example)
    with _quiet():
        return _onnxruntime(module, example) if name == "onnxruntime" else _openvino(module, example, precision)


def _refuse_decisions(module: nn.Module, example: torch.Tensor) -> None:
    """Refuse a module whose Python code reads a number that follows from its inputs: what it does with it would be fixed."""
    with torch.inference_mode(False), torch.no_grad():  # in inference mode numbers are read past the dispatcher
        batch = example.clone()
        trace = _Trace(batch)
        with _Reads(trace), _Exports(trace):
            module(batch)
    if trace.read:
        raise InvalidInput(
            "its forward reads values of tensors in Python, and a recording would keep those of one batch"
        )


class _Trace:
    """What has been computed from a batch, by the memory that it lies in; whether a number of that was read."""

    def __init__(self, batch: torch.Tensor) -> None:
        self.read = False
        self._kept = [batch]  # so that no other tensor gets the memory of one that is gone
        self._known = {batch.untyped_storage()._cdata}

    def has(self, values: Any) -> bool:
        """Whether one of these arguments follows from the batch."""
        return any(one.untyped_storage()._cdata in self._known for one in _tensors(values))

    def add(self, values: Any) -> None:
        """These follow from it."""
        for one in _tensors(values):
            self._kept.append(one)
            self._known.add(one.untyped_storage()._cdata)


def _tensors(values: Any) -> list[torch.Tensor]:
    return [one for one in tree_leaves(values) if isinstance(one, torch.Tensor)]


class _Reads(TorchDispatchMode):
    """Notices a number that Python takes out of a tensor: bool(), float(), item(), torch.equal; or can take out of its shape:
    nonzero(), a mask.
    """

    def __init__(self, trace: _Trace) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.trace = trace

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if self.trace.has((args, kwargs)):
            self.trace.read |= func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default)
            self.trace.read |= _sized_by_values(func, args)
            given = dict(zip((one.name for one in func._schema.arguments), args, strict=False)) | (kwargs or {})
            self.trace.add((found, [given.get(one.name) for one in func._schema.arguments if one.is_write]))
        return found


def _sized_by_values(func: Any, args: Any) -> bool:
    """Whether the shape of a result follows from the values given: Python can read it without reading a number."""
    if func is torch.ops.aten.index.Tensor:  # by numbers it takes the shape of these
        return any(one.dtype in (torch.bool, torch.uint8) for one in _tensors(args[1]))
    return torch.Tag.dynamic_output_shape in func.tags


class _Exports(TorchFunctionMode):
    """Notices whole tensors that leave PyTorch, past its dispatcher."""

    def __init__(self, trace: _Trace) -> None:
        super().__init__()
        self.trace = trace

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.Tensor.numpy, torch.Tensor.tolist, torch.Tensor.__array__, torch.Tensor.__dlpack__):
            self.trace.read |= self.trace.has(args[0])
        return func(*args, **(kwargs or {}))


def _onnxruntime(module: nn.Module, example: torch.Tensor) -> Logits:
    import onnxruntime

    file = io.BytesIO()
    # The exporter that needs no further package; it takes a file in memory, whatever its types say.
    torch.onnx.export(module, (example,), file, dynamo=False)  # type: ignore[arg-type]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    # Between two passes PyTorch has work for the same cores: no thread is to spin there.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(file.getvalue(), options, providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()

    def logits(batch: torch.Tensor) -> torch.Tensor:
        try:
            return torch.from_numpy(session.run(None, {given.name: batch.contiguous().numpy()})[0])
        except Exception as error:  # its errors have no class of their own
            raise ModelError(
                f"ONNX Runtime cannot run the model on another batch ({first_line(error)}): use backend='eager'."
            ) from error

    return logits


def _openvino(module: nn.Module, example: torch.Tensor, precision: str) -> Logits:
    import openvino

    wanted = {"fp32": openvino.Type.f32, "bf16": openvino.Type.bf16}[precision]
    converted = openvino.convert_model(module, example_input=example, input=[list(example.shape)])
    settings = {
        "INFERENCE_PRECISION_HINT": wanted,
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "PERFORMANCE_HINT": "LATENCY",  # all threads work on one pass
    }
    network = openvino.Core().compile_model(converted, "CPU", settings)
    if network.get_property("INFERENCE_PRECISION_HINT") != wanted:  # it would take another one without a word
        raise InvalidInput(f"OpenVINO does not compute in {precision} on this CPU: use another precision or backend.")
    request = network.create_infer_request()

    def logits(batch: torch.Tensor) -> torch.Tensor:
        request.infer([batch.contiguous().numpy()], share_inputs=True)
        return torch.from_numpy(request.get_output_tensor(0).data.copy())

    return logits


@contextmanager
def _quiet():  # type: ignore[no-untyped-def]
    """Without what exporters say about themselves."""
    loud = logging.getLogger("torch.onnx")
    level = loud.level
    loud.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        loud.setLevel(level)
