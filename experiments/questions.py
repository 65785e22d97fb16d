"""The cost of other questions beside classification by the same network, as ratios within one run.

    python experiments/questions.py [--device cuda] [--n 4096] [--inputs 4] [--rounds 3]

Each round times all questions in turn; on a CPU by the time that the process itself has had, so that other work on the machine
does not count. A ratio is the samples a second of a question
beside those of classification in the same round; the median over rounds is shown. Pixels are compared with classification by
the same network with its logits averaged over pixels.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

import ucan


def network(outputs: int, width: int) -> nn.Sequential:
    """Three convolutions on pictures (3, 32, 32), with as many outputs at each pixel."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, outputs, 1),
    )


def pooled(inner: nn.Module) -> nn.Module:
    """One number for each output: the mean over pixels."""
    return nn.Sequential(inner, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def main() -> None:
    """Time every question and print its ratio."""
    options = argparse.ArgumentParser()
    options.add_argument("--device", default="cpu")
    options.add_argument("--n", type=int, default=4096)
    options.add_argument("--inputs", type=int, default=4)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--width", type=int, default=32)
    asked = options.parse_args()
    pixels = network(10, asked.width).to(asked.device).eval()
    net, law = pooled(pixels).to(asked.device).eval(), ucan.Gaussian(0.25)
    x = torch.rand(asked.inputs, 3, 32, 32, generator=torch.Generator().manual_seed(1)).to(asked.device)
    classifier, n = ucan.SmoothedClassifier(net, law, num_classes=10), asked.n
    regressor, labels = ucan.SmoothedRegressor(net, law), ucan.SmoothedLabels(net, law)
    segmenter = ucan.SmoothedSegmenter(pixels, law, num_classes=10)
    radii = [0.01 * i for i in range(1, 21)]
    questions: dict[str, Callable[[], object]] = {
        "classification": lambda: classifier.certify(x, n=n),
        "top-k": lambda: classifier.certify(x, n=n, top=3),
        "confidence": lambda: classifier.certify(x, n=n, confidence=0.6),
        "regression": lambda: regressor.certify(x, radius=0.1, n=n),
        "regression, 20 radii": lambda: regressor.certify(x, radius=radii, n=n),
        "labels": lambda: labels.certify(x, radius=0.1, n=n),
        "segmentation": lambda: segmenter.certify(x, radius=0.1, n=n),
    }
    clock = time.process_time if asked.device == "cpu" else time.perf_counter
    seconds: dict[str, list[float]] = {name: [] for name in questions}
    for number in range(asked.rounds + 1):  # the first is for warming up
        for name, ask in questions.items():
            begin = clock()
            ask()
            if number:
                seconds[name].append(clock() - begin)
    for name, times in seconds.items():
        ratio = statistics.median(a / b for a, b in zip(seconds["classification"], times, strict=True))
        rate = asked.inputs * n / statistics.median(times)
        print(f"{name:22} {rate:10,.0f} samples a second   {ratio:.3f} of classification")


if __name__ == "__main__":
    main()
