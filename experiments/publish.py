"""Publish a trained network: its folder as `ucan.sharing.push` writes it, with weights in half the bytes.

    python experiments/publish.py RUNS/NETWORK leaderboard/published/ROW

The weights are rounded to bfloat16, as votes in bf16 take them. That is another network by its hash: certify the published one.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from shutil import copyfile

import torch
from safetensors.torch import load_file, save_file

from ucan.config import CONFIG
from ucan.errors import InvalidInput
from ucan.sharing import push
from ucan.training.checkpoint import WEIGHTS, check_finished

MOST = 1_000_000  # bytes of weights in the repository


def publish(run: Path, place: Path) -> str:
    """Write the folder; the hash that `ucan.load` can ask for."""
    check_finished(run)
    kept = {name: _rounded(name, tensor) for name, tensor in load_file(run / WEIGHTS).items()}
    size = sum(tensor.nbytes for tensor in kept.values())
    if size > MOST:
        raise InvalidInput(f"the weights of {run} take {size:,} bytes, more than the {MOST:,} that are published here.")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / place.name
        folder.mkdir()
        copyfile(run / CONFIG, folder / CONFIG)
        save_file(kept, folder / WEIGHTS)
        return push(folder, place)


def _rounded(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Weights of the classifier in bfloat16; those of the noise, on which regions depend, as they are."""
    return tensor.bfloat16() if name.startswith("classifier.") and tensor.dtype == torch.float32 else tensor


def main() -> None:
    """Publish one network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="the folder of a training")
    parser.add_argument("place", type=Path, help="where to")
    asked = parser.parse_args()
    print(f"{asked.place}: sha256 {publish(asked.run, asked.place)}")


if __name__ == "__main__":
    main()
