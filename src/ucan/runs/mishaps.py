"""When the model fails in the midst of a job: which results are kept, and how to go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from ucan.errors import ModelError, UcanError, in_one_line

T = TypeVar("T")


def answered(outcomes: Iterator[T], kept: Callable[[], int], where: Path | None) -> Iterator[T]:
    """Yield the outcomes; if the model raises an error, say in one line how many results ``where`` keeps."""
    try:
        yield from outcomes
    except (UcanError, OSError):
        raise
    except Exception as error:  # whatever the user's model raises
        if where is not None and kept():
            rest = f"{kept()} results are kept in {where}; run the same command again to resume."
        else:
            rest = "No result was finished, and nothing was written."
        raise ModelError(f"the model failed during the run: {in_one_line(error).rstrip('.')}. {rest}") from error
