"""Models from files of other programs: torch.export (.pt2) and ONNX. Each becomes a plain callable on batches."""

from __future__ import annotations

import hashlib
import warnings
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Self

import torch
from torch import nn

from ucan.errors import MissingExtra, ModelError


class FileModel(ABC):
    """A classifier from a file: maps a batch (n, *event) of any size n to the file's first output.

    ``weights_hash`` is the file's SHA-256, for certificates; None if it does not hold the weights itself.
    A file may fix its batch size, or bound it. Then batches are split to fit, and the last part is padded with copies of its
    last input, whose outputs are dropped.
    """

    def __init__(self, path: Path, device: torch.device) -> None:
        self.path = path
        self.device = device
        self.weights_hash: str | None = hashlib.sha256(path.read_bytes()).hexdigest()
        self.smallest: int = 1
        self.largest: int | None = None

    def __call__(self, batch: torch.Tensor) -> torch.Tensor:
        """The outputs for the batch, one row per input; differentiable in the batch if it asks for that and the file can."""
        step = self.largest or len(batch)
        with torch.set_grad_enabled(torch.is_grad_enabled() and batch.requires_grad):
            return torch.cat([self._piece(batch[i : i + step]) for i in range(0, len(batch), step)])

    def _piece(self, batch: torch.Tensor) -> torch.Tensor:
        lacking = max(0, self.smallest - len(batch))
        filled = torch.cat([batch, batch[-1:].expand(lacking, *batch.shape[1:])]) if lacking else batch
        try:
            answers = self.run(filled)
        except Exception as error:  # a foreign runtime raises its own errors
            raise ModelError(
                f"{self.path} failed on a batch of shape {tuple(filled.shape)}: {error} Check that the images have the "
                "shape it was exported for; if it takes only one batch size, give it as --batch-size."
            ) from error
        if not isinstance(answers, torch.Tensor) or answers.ndim == 0 or len(answers) != len(filled):
            raise ModelError(
                f"{self.path} does not return one row per input: export a model whose first output is the logits; if its "
                f"batch size is fixed, give it as --batch-size."
            )
        return answers[: len(batch)]

    @abstractmethod
    def run(self, batch: torch.Tensor) -> Any:
        """The file's first output for a batch of a size that it takes."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r})"

    def __reduce__(self) -> Any:
        """Pickled by its path: another process opens the file again, on the first device of that kind."""
        return type(self), (self.path.resolve(), torch.device(self.device.type))


class ExportedModel(FileModel):
    """A program written by torch.export.save."""

    def __init__(self, path: Path, device: torch.device) -> None:
        super().__init__(path, device)
        try:
            with warnings.catch_warnings():
                # torch's reader (at least up to 2.11) wraps read-only bytes; they are never written.
                warnings.filterwarnings("ignore", "The given buffer is not writable", UserWarning)
                program = torch.export.load(path)
        except Exception as error:  # damaged archives raise almost anything
            raise ModelError(f"{path} cannot be read ({error}): write it with torch.export.save.") from error
        _check_inference(program, path)
        shape = _input_shape(program, path)
        if isinstance(shape[0], int):
            self.smallest = self.largest = shape[0]
        else:
            self.smallest, self.largest = _bounds(program, shape[0])
        if device.type != "cpu":
            from torch.export.passes import move_to_device_pass

            program = move_to_device_pass(program, str(device))
        self.module = program.module()

    def run(self, batch: torch.Tensor) -> Any:
        """The program's output; the first if there are several."""
        answers = self.module(batch.to(self.device))
        return answers[0] if isinstance(answers, (tuple, list)) else answers

    def as_module(self) -> nn.Module:
        """The program as a module with its weights, to measure its speed (`ucan bench`)."""
        return _Program(self)


class _Program(nn.Module):
    """A program of torch.export as a module. It has no modes: what it was exported in, it stays in."""

    def __init__(self, model: ExportedModel) -> None:
        super().__init__()
        self.program = model.module
        self.model = model
        for part in self.modules():  # exported for inference: `_check_inference` has looked
            part.training = False

    def train(self, mode: bool = True) -> Self:
        """Nothing to change: the program beneath refuses to be asked."""
        return self

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """The outputs for the batch."""
        return self.model(batch)


def _input_shape(program: torch.export.ExportedProgram, path: Path) -> tuple[Any, ...]:
    """The shape of the program's only input; sizes that may vary are not ints."""
    names = program.graph_signature.user_inputs
    values = [node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder" and node.name in names]
    if len(values) != 1 or not isinstance(values[0], torch.Tensor) or values[0].ndim < 1:
        raise ModelError(f"{path} takes {len(values)} inputs; a classifier takes one batch: export it that way.")
    return tuple(values[0].shape)


def _bounds(program: torch.export.ExportedProgram, size: Any) -> tuple[int, int | None]:
    """The batch sizes that a program with a dynamic batch takes: at least, and at most if bounded."""
    limits = program.range_constraints.get(size.node.expr)
    if limits is None:
        return 1, None
    upper = int(limits.upper) if getattr(limits.upper, "is_Integer", False) else None
    return max(1, int(limits.lower)), upper


def _check_inference(program: torch.export.ExportedProgram, path: Path) -> None:
    """Refuse a program exported in training mode: its outputs depend on the rest of the batch or on chance."""
    # Where each operation has the argument that says "training": as exported, and after decomposition.
    position = {"dropout": 2, "native_dropout": 2, "batch_norm": 5}
    position |= {"_native_batch_norm_legit": 5, "_native_batch_norm_legit_functional": 5}
    for node in program.graph.nodes:
        name = getattr(node.target, "_opname", "") if node.op == "call_function" else ""
        where = position.get(name, -1)
        if 0 <= where < len(node.args) and node.args[where] is True:
            raise ModelError(f"{path} was exported in training mode ({name}): call model.eval() and export it again.")


class OnnxModel(FileModel):
    """An ONNX graph, run by onnxruntime: on the GPU if asked for and possible, otherwise on as many threads as torch."""

    def __init__(self, path: Path, device: torch.device) -> None:
        super().__init__(path, device)
        try:
            import onnxruntime
        except ImportError as error:
            raise MissingExtra(f"{path} needs onnxruntime: pip install 'ucan[onnx]'.") from error
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3  # errors only: they come back as exceptions
        providers: list[Any] = ["CPUExecutionProvider"]
        if device.type == "cuda" and "CUDAExecutionProvider" in onnxruntime.get_available_providers():
            providers.insert(0, ("CUDAExecutionProvider", {"device_id": device.index or 0}))
        try:
            self.session = onnxruntime.InferenceSession(str(path), options, providers=providers)
        except Exception as error:  # onnxruntime's exceptions have no common base
            raise ModelError(f"{path} cannot be read as ONNX ({error}): export the model again.") from error
        inputs = self.session.get_inputs()
        types = {"tensor(float)": torch.float32, "tensor(float16)": torch.float16, "tensor(double)": torch.float64}
        if len(inputs) != 1 or inputs[0].type not in types or not inputs[0].shape:
            given = ", ".join(f"{i.name} {i.type} {i.shape}" for i in inputs)
            raise ModelError(f"{path} takes {given or 'nothing'}; a classifier takes one batch of floats.")
        self.input, self.dtype = inputs[0].name, types[inputs[0].type]
        if isinstance(inputs[0].shape[0], int):
            self.smallest = self.largest = max(1, inputs[0].shape[0])
        self.output = self.session.get_outputs()[0].name
        if b"location" in path.read_bytes():  # how a graph names the file beside it that holds its weights
            self.weights_hash = None

    def run(self, batch: torch.Tensor) -> torch.Tensor:
        """The graph's first output, on the batch's device."""
        pixels = batch.detach().to("cpu", self.dtype).numpy()
        (answers,) = self.session.run([self.output], {self.input: pixels})
        return torch.as_tensor(answers).to(batch.device)
