"""Load one input: a picture, or an array."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from ucan.data.labelled import as_pixels
from ucan.data.pictures import SUFFIXES, decoded
from ucan.errors import InvalidInput


def load_picture_or_array(path: Path, shape: Sequence[int], size: int | None = None) -> torch.Tensor:
    """A picture or an .npy array as pixels in [0, 1] of the given event shape.

    With ``size`` a picture is resized and cropped as those of a folder are (``ImageFolder``).
    """
    if path.suffix.lower() == ".npy":
        if size is not None:
            raise InvalidInput(f"only pictures can be resized, and {path} is an array: leave the size out.")
        try:
            x = torch.from_numpy(np.load(path, allow_pickle=False))
        except (OSError, ValueError, TypeError, EOFError) as error:
            raise InvalidInput(f"{path} cannot be read as a numeric .npy file: {error}.") from error
    else:
        x = decoded(path, size, shape[0])
    if x.numel() != math.prod(shape):
        raise InvalidInput(f"{path} has shape {tuple(x.shape)}, but an input of shape {tuple(shape)} is needed.")
    return as_pixels(x.reshape(tuple(shape)))


def is_single(path: Path) -> bool:
    """Whether a path is a file that holds one input."""
    return path.is_file() and (path.suffix.lower() == ".npy" or path.suffix.lower() in SUFFIXES)
