"""`ucan.load`: the smoothed classifier of a run, wherever the run is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ucan.config import CONFIG, MANIFEST, read_config
from ucan.errors import InvalidInput
from ucan.models.build import BUILT_IN
from ucan.service.deployed import Deployed
from ucan.sharing.pulling import pull
from ucan.smoothed import SmoothedClassifier


def load(
    where: str | Path, sha256: str | None = None, device: str | torch.device = "cpu", trust: bool = False
) -> SmoothedClassifier:
    """The smoothed classifier of a run: model, noise, precision and arithmetic as the run has them.

    Args:
        where: the folder of a run of ``ucan certify`` or ``ucan train``; a ``.zip`` or ``.tar`` file of one that
            ``ucan.sharing.push`` wrote; the address of either (``https://…``, also with ``#sha256=…``); or a repository of the
            Hugging Face hub, ``hf:owner/name@revision``.
        sha256: the hash that ``push`` gave: another run is refused.
        device: where the model runs.
        trust: allows a published run to import code by name (package.module:name), and reads pickles.

    A model that is not the one that the run certified is refused. A run from elsewhere is read without running any code of
    its author: weights are safetensors, graphs ONNX, configs TOML.
    """
    folder = pull(where, sha256)
    if (folder / MANIFEST).is_file() and not trust:
        for config in sorted(folder.rglob(CONFIG)):
            check_code(read_config(config), config)
    return Deployed.open(folder, device=torch.device(device), trust=trust).classifier


def check_code(config: dict[str, Any], path: Path) -> None:
    """Refuse a published config that names code, or files outside of its run."""
    training = config.get("training", {})
    if not isinstance(training, dict):
        raise InvalidInput(f"{path}: training must be a table, got {training!r}: it was not written by `push`.")
    if config.get("started_in", ".") != ".":
        raise InvalidInput(f"{path}: started_in leads out of the run: it was not written by `push`.")
    for text in (config.get("model"), config.get("weights"), training.get("model")):
        for part in () if text is None else str(text).split(","):
            if part.strip() not in BUILT_IN and not _inside(part.strip(), path.parent):
                raise _refused(str(text), path)
    for text in (config.get("data"), training.get("data")):
        if text is not None and ":" in str(text):
            raise _refused(str(text), path)


def _inside(part: str, folder: Path) -> bool:
    try:
        found = (folder / part).resolve()
        return ":" not in part and found.is_relative_to(folder.resolve()) and found.exists()
    except (OSError, ValueError, RuntimeError):  # too long, with a null byte, or links in a circle: no path of any file
        return False


def _refused(text: str, path: Path) -> InvalidInput:
    return InvalidInput(
        f"{path} names {text!r}, which is code, or a file outside of the run. If you trust its author and have installed "
        "what it needs: ucan.load(…, trust=True)."
    )
