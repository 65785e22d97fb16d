"""How a GPU is kept busy: functions that are one compiled pass or one recorded graph, and results fetched without waiting."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch


class Pass:
    """A function made of elementwise operations, compiled for a GPU; run as it is where that fails, after one warning.

    Each further pass over the noise costs a percent of the votes.

    The first axis of the tensors in ``dynamic`` places may have any length: that is no reason to compile again.
    """

    def __init__(self, function: Callable[..., Any], dynamic: tuple[int, ...] = (0,)) -> None:
        self._function = function
        self._dynamic = dynamic
        self._compiled: Callable[..., Any] | None = None
        self._fails = False

    def __call__(self, *arguments: Any) -> Any:
        """What the function gives."""
        if self._fails:
            return self._function(*arguments)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the compiler's own, about itself
                return self._run(*arguments)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # whatever a compiler raises
            warnings.warn(f"noise is made without a compiler ({type(error).__name__}).", RuntimeWarning, 2)
            self._fails = True
            return self._function(*arguments)

    def _run(self, *arguments: Any) -> Any:
        self._compiled = self._compiled or torch.compile(self._function)  # here: that loads the compiler
        for place in self._dynamic:
            torch._dynamo.mark_dynamic(arguments[place], 0)
        # Shapes, precisions and parameters are constants of what is compiled, and a process may use many.
        with torch._dynamo.config.patch(recompile_limit=256):
            return self._compiled(*arguments)


class Fetched:
    """Tensors on their way to the host; ``wait`` ends when all are there, whatever the device was told to do after them."""

    def __init__(self, *tensors: torch.Tensor) -> None:
        self._there = tuple(tensor.to("cpu", non_blocking=True) for tensor in tensors)
        devices = [tensor.device for tensor in tensors if tensor.is_cuda]
        self._event = torch.cuda.current_stream(devices[0]).record_event() if devices else None

    def wait(self) -> tuple[torch.Tensor, ...]:
        """The tensors on the host."""
        if self._event is not None:
            self._event.synchronize()
        return self._there


class Recorded:
    """A function of a batch of one shape, recorded once as a CUDA graph: launching its kernels is one call from then on.

    The kernels are those that the function launches, so that the results are the same bit for bit. It must launch the same
    ones for every batch and never wait for the device, and what it reads besides the batch must stay where it is. Batches
    of other shapes are given to the function itself. Threads and streams may share one.
    """

    def __init__(self, function: Callable[[torch.Tensor], tuple[torch.Tensor, ...]], example: torch.Tensor) -> None:
        self._function = function
        self._inference = torch.is_inference_mode_enabled()  # tensors of that mode are another kind
        self._lock = threading.Lock()
        self._batch = example.clone()
        self._graph = torch.cuda.CUDAGraph()
        here, aside = torch.cuda.current_stream(example.device), torch.cuda.Stream(example.device)
        aside.wait_stream(here)
        with torch.cuda.stream(aside):  # libraries choose their kernels in the first calls
            for _ in range(2):
                function(self._batch)
        here.wait_stream(aside)
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._found = function(self._batch)
        self._done = here.record_event()

    def __call__(self, batch: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """What the function gives, in memory of its own."""
        if (batch.shape, batch.dtype) != (self._batch.shape, self._batch.dtype):
            return self._function(batch)
        here = torch.cuda.current_stream(batch.device)
        with self._lock, torch.inference_mode(self._inference), torch.no_grad():
            here.wait_event(self._done)
            self._batch.copy_(batch)
            self._graph.replay()
            found = tuple(each.clone() for each in self._found)
            self._done.record(here)
        return found


def recorded(
    function: Callable[[torch.Tensor], tuple[torch.Tensor, ...]], example: torch.Tensor
) -> Callable[[torch.Tensor], tuple[torch.Tensor, ...]]:
    """The function recorded for batches like the example; itself where that cannot be done or gives other numbers."""
    if not example.is_cuda:
        return function
    try:
        made = Recorded(function, example)
        same = all(map(torch.equal, made(example.clone()), function(example.clone())))
    except RuntimeError:  # it waits for the device, or there is no memory for it
        return function
    return made if same else function
