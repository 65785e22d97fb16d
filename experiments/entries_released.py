"""Entries of the leaderboard for what others released: counted in their result files, in clones CLONES/OWNER+NAME/repo.

A released radius keeps three digits and may have been rounded up; it is taken as it stands.
"""

from __future__ import annotations

import hashlib
import io
import math
import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ucan.leaderboard.entry import FORMAT, Claim, Entry, Hashes, level_key
from ucan.leaderboard.making import entry_of
from ucan.results.imports import import_run

TEST_SET = 10_000
PIXELS = 3 * 32 * 32
GRID = tuple(k / 4 for k in range(10))  # ℓ2
BOXES = tuple(k / 255 for k in (2, 4, 6, 8))  # ℓ∞
LENGTHS = tuple(k / 2 for k in range(9))  # ℓ1


# --- files with a line for each picture, against ℓ2 and against boxes ---


@dataclass(frozen=True)
class Released:
    """Files of one repository: a pattern of their paths and how each is called. ``best``: only those that lead at a radius."""

    repository: str
    pattern: str
    by: str
    data: str = "cifar10"
    model: str = "ResNet-110"
    best: bool = False


NAMES = {
    "cat-rs": "CAT-RS", "catrs": "CAT-RS", "cohen": "Gaussian", "gaussian": "Gaussian", "stab": "Stability",
    "salman": "SmoothAdv", "smoothadv": "SmoothAdv", "macer": "MACER", "consistency": "Consistency",
    "smoothmix": "SmoothMix", "ours": "ACR", "mnist": "CAT-RS",
}  # fmt: skip
RELEASED = (
    Released("alinlab/smoothing-catrs", r"data/cifar10/noise_(?P<sigma>[\d.]+)/(?P<method>[a-z-]+)/noise_[\d.]+\.tsv",
             "Jeong, Kim and Shin, 2023"),
    Released("alinlab/smoothing-catrs", r"data/(?P<method>mnist)/noise_(?P<sigma>[\d.]+)/noise_[\d.]+\.tsv",
             "Jeong, Kim and Shin, 2023", "mnist", "LeNet"),
    Released("eth-sri/acr-weakness", r"data/certify/cifar10/(?P<method>\w+)/noise_(?P<sigma>[\d.]+)\.tsv",
             "Sun et al., 2025"),
    Released("jh-jeong/smoothmix", r"data/certify/cifar10/(?P<method>smoothmix)/noise_(?P<sigma>[\d.]+)(_adv)?",
             "Jeong et al., 2021"),
    Released("jh-jeong/smoothmix", r"data/certify/cifar10/(?P<method>consistency)/.*/cifar_resnet110/noise_(?P<sigma>[\d.]+)",
             "Jeong et al., 2021"),
    Released("jh-jeong/smoothmix", r"data/certify/mnist/(?P<method>[a-z]+).*/noise_(?P<sigma>[\d.]+)(_\d+)?",
             "Jeong et al., 2021", "mnist", "LeNet", best=True),
)  # fmt: skip


def git(clone: Path, *words: str) -> bytes:
    return subprocess.run(["git", "-C", str(clone), *words], check=True, capture_output=True).stdout


def clone_of(clones: Path, repository: str) -> Path:
    return clones / repository.replace("/", "+") / "repo"


def released_entries(clones: Path) -> dict[str, Entry]:
    """The entries of all released files, by their file's name."""
    found: dict[str, Entry] = {}
    for source in RELEASED:
        clone = clone_of(clones, source.repository)
        commit = git(clone, "rev-parse", "--short=7", "HEAD").decode().strip()
        paths = git(clone, "ls-tree", "-r", "--name-only", "HEAD").decode().splitlines()
        some = {}
        for path in paths:
            if match := re.fullmatch(source.pattern, path):
                made = _of_file(source, clone, commit, path, match)
                if made.claim.inputs == TEST_SET:
                    some[_file_name(source, path)] = made
        found |= leading(some, GRID) if source.best else some
    once = {one.hashes.results: name for name, one in reversed(found.items())}  # a file that two repositories have
    found = {name: one for name, one in found.items() if once[one.hashes.results] == name}
    boxes = {f"{name.removesuffix('.json')}-linf.json": _against_boxes(one) for name, one in found.items()
             if one.claim.data == "cifar10"}  # fmt: skip
    lines = {name: _at(one, GRID) for name, one in found.items()}
    return lines | leading(boxes, BOXES) | _of_tables(clones) | _of_arrays(clones)


def _file_name(source: Released, path: str) -> str:
    short = path.removeprefix("data/").removeprefix("certify/").removesuffix(".tsv")
    return f"{source.repository.split('/')[1]}-{re.sub(r'[^A-Za-z0-9.]+', '-', short)}.json"


def leading(some: dict[str, Entry], levels: Sequence[float]) -> dict[str, Entry]:
    """Those of which one has the most at some radius."""
    best = {max(some, key=lambda name: some[name].count(level) or 0) for level in levels} if some else set()
    return {name: some[name] for name in sorted(best)}


def _at(one: Entry, levels: Sequence[float]) -> Entry:
    """The entry at these radii alone."""
    return replace(one, certified={level_key(r): one.certified[level_key(r)] for r in levels})


def _against_boxes(one: Entry) -> Entry:
    """What an entry against ℓ2 certifies against |δᵢ| ≤ ε in every pixel, which is within ‖δ‖₂ ≤ ε√d."""
    counts = {level_key(eps): one.certified[level_key(eps * math.sqrt(PIXELS))] for eps in BOXES}
    claim = replace(one.claim, norm=math.inf)
    return replace(one, claim=claim, certified=counts, about=f"{one.about}; by ‖δ‖₂ ≤ ε√d")


def _of_file(source: Released, clone: Path, commit: str, path: str, match: re.Match[str]) -> Entry:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "released.tsv"
        file.write_bytes(git(clone, "show", f"HEAD:{path}"))
        import_run(file, Path(folder) / "run", "pipeline", 2.0)
        made = entry_of(Path(folder) / "run", levels=(*GRID, *(eps * math.sqrt(PIXELS) for eps in BOXES)))
    name = NAMES[match["method"]] + (" with SmoothAdv" if "/consistency/salman" in path else "")
    name += ", one-step" if path.endswith("_adv") else ""
    claim = replace(made.claim, data=source.data, split="test", n=100_000, alpha=0.001, networks=1, extra_data=False)
    return replace(
        made,
        name=f"{name}, σ = {float(match['sigma']):g}",
        by=source.by,
        about=f"{source.model}, isotropic Gaussian noise",
        source=f"github.com/{source.repository}, {path}, commit {commit}",
        claim=claim,
        hashes=Hashes(results=made.hashes.results),
    )


# --- the best at each radius, as a table ---

TABLES = {  # the best of some 300 runs at each radius, not one classifier: the repository has its shares, not its rows
    "cifar10_ours": ("SmoothAdv, best of all runs", "Salman et al., 2019"),
    "cifar10_original": ("Cohen, best over σ", "Cohen et al., 2019, in the repository of Salman et al."),
}


def _of_tables(clones: Path) -> dict[str, Entry]:
    repository = "Hadisalman/smoothing-adversarial"
    clone = clone_of(clones, repository)
    commit = git(clone, "rev-parse", "--short=7", "HEAD").decode().strip()
    found = {}
    for table, (name, by) in TABLES.items():
        path = f"analysis/radii_to_best_models/{table}"
        text = git(clone, "show", f"HEAD:{path}")
        lines = [line.split() for line in text.decode().splitlines()[1:]]
        shares = {float(line[0]): float(line[1]) for line in lines}
        found[f"smoothing-adversarial-{table.replace('_', '-')}.json"] = Entry(
            FORMAT, name, "imported", by, "ResNet-110; at each radius the best of its runs: not one classifier",
            f"github.com/{repository}, {path}, commit {commit}",
            claim=Claim("cifar10", "test", TEST_SET, 2.0, "pipeline", 100_000, 0.001, 1, False),
            certified={level_key(r): round(shares[r] * TEST_SET) for r in GRID},
            hashes=Hashes(results=hashlib.sha256(text).hexdigest()),
        )  # fmt: skip
    return found


# --- arrays, against ℓ1 ---

ARRAYS = "alevine0/smoothingSplittingNoise"
NOISES = {"uniform": "Uniform", "split": "Splitting", "split_derandomized": "Splitting, exact"}


def _of_arrays(clones: Path) -> dict[str, Entry]:
    """Levine and Feizi's networks against ℓ1: those that lead at a radius, of each noise; σ is its standard deviation."""
    clone = clone_of(clones, ARRAYS)
    commit = git(clone, "rev-parse", "--short=7", "HEAD").decode().strip()
    paths = git(clone, "ls-tree", "-r", "--name-only", "HEAD").decode().splitlines()
    found: dict[str, Entry] = {}
    for noise, name in NOISES.items():
        some = {}
        for path in paths:
            match = re.fullmatch(
                rf"checkpoints/cifar_{noise}_(?P<sigma>[\d.]+)(?P<stable>_stabilized)?/radius_l1\.npy", path
            )
            if match:
                made = _of_array(clone, commit, path, name, float(match["sigma"]), bool(match["stable"]))
                some[f"smoothingSplittingNoise-{Path(path).parent.name.replace('_', '-')}.json"] = made
        found |= leading(some, LENGTHS)
    return found


def _of_array(clone: Path, commit: str, path: str, name: str, sigma: float, stable: bool) -> Entry:
    folder = path.rsplit("/", 1)[0]
    read = [git(clone, "show", f"HEAD:{folder}/{part}.npy") for part in ("preds", "labels", "radius_l1")]
    shares, labels, radii = (np.load(io.BytesIO(part)) for part in read)
    right = (shares.argmax(1) == labels) & (radii > 0)
    exact = name.endswith("exact")
    return Entry(
        FORMAT,
        f"{name}{', with Stability' if stable else ''}, σ = {sigma:g}",
        "imported",
        "Levine and Feizi, 2021",
        "WideResNet-40" + ("; every draw counted" if exact else ""),
        f"github.com/{ARRAYS}, {folder}, commit {commit}",
        claim=Claim(
            "cifar10",
            "test",
            len(labels),
            1.0,
            "pipeline",
            int(2 * math.sqrt(3) * sigma * 255) if exact else 100_000,
            0.0 if exact else 0.001,
            1,
            False,
        ),
        certified={level_key(r): int((right & (radii >= r)).sum()) for r in LENGTHS},
        hashes=Hashes(results=hashlib.sha256(b"".join(read)).hexdigest()),
    )
