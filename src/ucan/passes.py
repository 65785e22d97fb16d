"""Functions of tensors that a GPU runs as one compiled pass: each further pass over the noise costs a percent of the votes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch


class Pass:
    """A function made of elementwise operations, compiled for a GPU; run as it is where that fails, after one warning.

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
