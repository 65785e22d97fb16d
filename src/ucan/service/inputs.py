"""Inputs from strangers: checked before anything is allocated for them, and never unpickled."""

from __future__ import annotations

import base64
import binascii
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ucan.data.labelled import as_pixels
from ucan.data.pictures import converted, open_untrusted, pixels_of
from ucan.errors import InvalidInput, first_line

NUMBERS = ("float16", "float32", "float64", "uint8")
# The longest header of an .npy array: its type and its shape.
HEADER = 1000


@dataclass(frozen=True)
class Form:
    """The inputs that a service takes: their shape and precision; ``size``: pictures are resized and cropped to it."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    size: int | None = None

    def read(self, value: Any) -> torch.Tensor:
        """The ``input`` of a request, decoded from JSON: nested lists, {"npy": base64} or {"image": base64}."""
        if isinstance(value, list):
            return self._checked(_from_lists(value))
        if not isinstance(value, dict) or set(value) not in ({"npy"}, {"image"}):
            raise InvalidInput(
                'input must be nested lists of numbers, {"npy": "…"} with a base64 .npy array, or {"image": "…"} with a '
                "base64 picture."
            )
        ((kind, text),) = value.items()
        if not isinstance(text, str):
            raise InvalidInput(f"input.{kind} must be a base64 text, got {type(text).__name__}.")
        try:
            data = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError) as error:
            raise InvalidInput(f"input.{kind} is not valid base64: {error}.") from error
        return self.from_npy(data) if kind == "npy" else self.from_picture(data)

    def from_npy(self, data: bytes) -> torch.Tensor:
        """An array in NumPy's format. Its header is checked before its numbers are read; objects are refused."""
        file = io.BytesIO(data)
        try:
            version = np.lib.format.read_magic(file)
            if version not in ((1, 0), (2, 0)):
                raise ValueError(f"version {version} is not supported")
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, fortran, dtype = read(file, max_header_size=HEADER)
        except Exception as error:  # NumPy reads the header as Python text: its parsers raise almost anything
            raise InvalidInput(f"this is not an .npy array: {first_line(error, 'no message')[:200]}") from error
        if dtype.name not in NUMBERS:
            raise InvalidInput(f"the array holds {dtype.name}; {', '.join(NUMBERS)} are accepted.")
        self._check_shape(shape)
        rest = data[file.tell() :]
        if len(rest) != math.prod(shape) * dtype.itemsize:
            raise InvalidInput(f"the array of shape {tuple(shape)} is cut off, or has more bytes than it should.")
        found = np.frombuffer(rest, dtype).reshape(shape, order="F" if fortran else "C")
        return self._checked(np.ascontiguousarray(found, dtype=dtype.newbyteorder("=")))

    def from_picture(self, data: bytes) -> torch.Tensor:
        """A picture file; of exactly the size of the inputs, unless the run resizes its pictures."""
        if len(self.shape) != 3 or self.shape[0] not in (1, 3):
            raise InvalidInput(f"inputs of shape {self.shape} are no pictures with 1 or 3 channels: send an array.")
        with open_untrusted(io.BytesIO(data), "the input") as picture:
            width, height = picture.size
            _, high, wide = self.shape
            if self.size is None and (width, height) != (wide, high):
                raise InvalidInput(f"the picture has {width} × {height} pixels; inputs have {wide} × {high}: scale it.")
            shown = converted(picture, "RGB" if self.shape[0] == 3 else "L")
        return self._checked(pixels_of(shown, self.size).numpy())

    def _check_shape(self, shape: Sequence[int]) -> None:
        whole = all(type(side) is int for side in shape)  # a header may say True, which Python takes for 1
        if not whole or tuple(shape) not in (self.shape, (1, *self.shape)):
            raise InvalidInput(f"the input has shape {tuple(shape)}, but {self.shape} is needed.")

    def _checked(self, numbers: np.ndarray) -> torch.Tensor:
        """The input (1, *event), finite and in this precision."""
        self._check_shape(numbers.shape)
        found = torch.from_numpy(np.array(numbers, copy=True))
        x = (as_pixels(found) if found.dtype == torch.uint8 else found).to(self.dtype).reshape(1, *self.shape)
        if not torch.isfinite(x).all():
            raise InvalidInput(f"the input holds NaN or infinity, or a number beyond {self.dtype}.")
        return x


def _from_lists(value: list[Any]) -> np.ndarray:
    try:
        found = np.asarray(value)
    except ValueError as error:
        raise InvalidInput("input must be nested lists of numbers, all rows of the same length.") from error
    if found.dtype.kind not in "iuf" or found.dtype.itemsize > 8:
        raise InvalidInput("input must be nested lists of numbers, and nothing else.")
    return found.astype(np.float64)
