"""Compare trained runs on the part of the training set that was held out, by the share of votes alone.

    python experiments/sketch.py RUN … --radii 0.5,0.75 --inputs 2500 --votes 1000 --mirrored

For choices: of every input, the share of right votes p̂ under the run's own isotropic Gaussian noise, and whether σΦ⁻¹(p̂) is at
least the radius. No confidence bound, no certificate, and nothing of the test set. The last line names the run with the
largest share at the last radius.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from scipy.special import ndtr

import ucan
from ucan.training import load_run

COPIES = 4000  # noisy pictures of one forward pass


@torch.no_grad()
def right_votes(folder: str, inputs: int, votes: int, mirrored: bool) -> tuple[torch.Tensor, float]:
    """Of each held-out input the share of votes for its class, and σ."""
    run, device = load_run(folder), torch.device("cuda" if torch.cuda.is_available() else "cpu")
    settings = run.settings
    if not isinstance(run.law, ucan.Gaussian) or not isinstance(run.generator, ucan.Isotropic):
        raise SystemExit(f"{folder} was not trained under isotropic Gaussian noise.")
    _, apart = ucan.data.held_out(ucan.data.load(settings.data, split="train"), settings.held_out, settings.seed)
    count = min(inputs, len(apart))
    x, labels = (each.to(device) for each in apart.batch(torch.arange(count)))
    model = run.classifier.to(device, memory_format=torch.channels_last).eval()
    rng = torch.Generator(device).manual_seed(1)
    right = torch.zeros(count, device=device)
    size = max(1, COPIES // votes)
    with torch.autocast(device.type, torch.bfloat16):
        for start in range(0, count, size):
            some = x[start : start + size].repeat_interleave(votes, 0)
            noisy = some + run.law.scale * torch.randn(some.shape, generator=rng, device=device)
            logits = model(noisy).float() + (model(noisy.flip(3)).float() if mirrored else 0)
            hits = logits.argmax(1) == labels[start : start + size].repeat_interleave(votes)
            right[start : start + size] = hits.float().reshape(-1, votes).mean(1)
    return right.cpu(), float(run.law.scale)


def main() -> None:
    """Print a line of JSON for every run, and the best one's name."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--radii", type=lambda text: [float(each) for each in text.split(",")], required=True)
    parser.add_argument("--inputs", type=int, default=2500)
    parser.add_argument("--votes", type=int, default=1000)
    parser.add_argument("--mirrored", action="store_true")
    asked = parser.parse_args()
    best = []
    for folder in asked.runs:
        share, scale = right_votes(folder, asked.inputs, asked.votes, asked.mirrored)
        at = {f"{r:g}": round(100 * float((share > ndtr(r / scale)).float().mean()), 2) for r in asked.radii}
        print(
            json.dumps({"run": Path(folder).name, "inputs": len(share), "votes": asked.votes, "share": at}), flush=True
        )
        best.append((at[f"{asked.radii[-1]:g}"], folder))
    print(max(best)[1])


if __name__ == "__main__":
    main()
