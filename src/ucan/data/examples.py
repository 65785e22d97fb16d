"""Small data sets for every kind of question: two tables of scikit-learn's, and pictures of shapes drawn on the spot."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ucan.data.arrays import InMemory
from ucan.data.files import check_split
from ucan.errors import MissingExtra

# Every fourth is a test input.
FOURTH = 4
SIDE = 24
SHAPES = {"train": 600, "test": 200}
COLOURS = {1: (0.85, 0.25, 0.2), 2: (0.2, 0.35, 0.9)}  # of a disc, and of a square


def _table(name: str) -> Any:
    try:
        from sklearn import datasets
    except ImportError as error:
        raise MissingExtra(f"The data set {name} comes with scikit-learn: pip install 'ucan[train]'.") from error
    return datasets.load_diabetes(scaled=False) if name == "diabetes" else datasets.load_breast_cancer()


def _standardised(name: str, split: str) -> tuple[torch.Tensor, np.ndarray, Any]:
    """The rows of a split in standard deviations of the training rows, which rows these are, and the source."""
    check_split(split)
    source = _table(name)
    rows = np.asarray(source.data, dtype=np.float64)
    test = np.arange(len(rows)) % FOURTH == FOURTH - 1
    mean, std = rows[~test].mean(0), rows[~test].std(0)
    part = test if split == "test" else ~test
    return torch.from_numpy((rows[part] - mean) / std), part, source


def load_diabetes(split: str = "test") -> InMemory:
    """scikit-learn's 442 patients: ten numbers each, in standard deviations; the target is a measure of the disease."""
    rows, part, source = _standardised("diabetes", split)
    data = InMemory(rows, name=f"diabetes-{split}", unit="standard deviations")
    data.targets = torch.from_numpy(np.asarray(source.target, dtype=np.float64)[part])[:, None]
    return data


def load_breast_cancer(split: str = "test") -> InMemory:
    """scikit-learn's 569 tumours: thirty numbers each, in standard deviations; malignant or benign.

    As targets, three labels that are there or not: malignant, large (area above the median), and uneven (so the texture).
    """
    rows, part, source = _standardised("breast-cancer", split)
    labels = torch.from_numpy(np.asarray(source.target, dtype=np.int64)[part])
    whole = np.asarray(source.data)
    above = whole > np.median(whole, axis=0)
    names = list(source.feature_names)
    large, uneven = (above[part, names.index(name)] for name in ("mean area", "mean texture"))
    classes = tuple(map(str, source.target_names))
    data = InMemory(rows, labels, classes, f"breast-cancer-{split}", unit="standard deviations")
    data.targets = torch.from_numpy(np.stack([labels.numpy() == 0, large, uneven], 1).astype(np.int64))
    return data


def load_shapes(split: str = "test") -> InMemory:
    """Pictures (3, 24, 24) of a red disc and a blue square on grey, drawn from a fixed seed, in bytes.

    The targets are masks: 0 for the ground, 1 for the disc, 2 for the square; the disc lies in front.
    """
    check_split(split)
    rng = np.random.default_rng(20 + len(split))
    row, column = np.mgrid[:SIDE, :SIDE]
    pictures, masks = [], []
    for _ in range(SHAPES[split]):
        mask = np.zeros((SIDE, SIDE), dtype=np.int64)
        (y, x), half = rng.integers(4, SIDE - 4, 2), rng.integers(3, 6)
        mask[(abs(row - y) <= half) & (abs(column - x) <= half)] = 2
        (y, x), radius = rng.integers(5, SIDE - 5, 2), rng.integers(3, 6)
        mask[(row - y) ** 2 + (column - x) ** 2 <= radius**2] = 1
        picture = np.full((3, SIDE, SIDE), 0.5) + rng.normal(0, 0.04, (3, SIDE, SIDE))
        for shape, colour in COLOURS.items():
            picture = np.where(mask == shape, np.reshape(colour, (3, 1, 1)), picture)
        pictures.append(np.clip(255 * picture, 0, 255).round().astype(np.uint8))
        masks.append(mask)
    data = InMemory(np.stack(pictures), name=f"shapes-{split}")
    data.targets = torch.from_numpy(np.stack(masks))
    return data
