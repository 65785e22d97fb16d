"""When the model fails in the midst of a job: which results are kept, and how to go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from ucan.errors import ModelError, UcanError

T = TypeVar("T")


def answered(outcomes: Iterator[T], kept: Callable[[], int], where: Path | None) -> Iterator[T]:
    """Yield the outcomes; if the model raises an error, say in one line how many results ``where`` keeps."""
    try:
        yield from outcomes
    except (UcanError, OSError):
        raise
    except Exception as error:  # whatever the user's model raises
        said = (str(error).strip().splitlines() or ["no message"])[0].rstrip(".")
        if where is not None and kept():
            rest = f"{kept()} results are kept in {where}; run the same command again to resume."
        else:
            rest = "No result was finished, and nothing was written."
        raise ModelError(f"the model failed during the run: {type(error).__name__}: {said}. {rest}") from error
