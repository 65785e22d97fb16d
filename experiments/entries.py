"""Writes the entries of `leaderboard/`: ours from the records, others' from the result files that they released, and the page.

    python experiments/entries.py                          ours, and the page
    python experiments/entries.py --released CLONES        others', counted in clones of their repositories, CLONES/OWNER+NAME

A released radius keeps three digits and may have been rounded up; it is taken as it stands.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from suite import DIGITS, looked_at

from ucan.leaderboard.entry import FORMAT, Attacked, Claim, Entry, Hashes, Made, level_key, read_entries, write_entry
from ucan.leaderboard.making import entry_of
from ucan.leaderboard.page import page
from ucan.results.imports import import_run

HERE = Path(__file__).parent
RECORDED, BOARD = HERE / "recorded", HERE.parent / "leaderboard"
TEST_SET = 10_000
GRID = tuple(k / 4 for k in range(10))
NORMS = {"l1": 1.0, "l2": 2.0, "linf": float("inf")}


# --- ours ---


def day(path: Path, found: dict[str, Any], folder: Path = RECORDED) -> str | None:
    """When a record was made: as it says, or else when it came into the repository (`recorded/dates.json`)."""
    dates = folder / "dates.json"
    known = json.loads(dates.read_text()) if dates.exists() else {}
    return found.get("date") or known.get(path.relative_to(folder).as_posix())


def counted(claim: dict[str, Any]) -> dict[str, int]:
    """How many inputs reached each level."""
    seen = looked_at(claim["reached"])
    return {level_key(r): sum(DIGITS.index(c) > k for c in seen) for k, r in enumerate(claim["levels"])}


def attacked(folder: Path, row: str, norm: str) -> Attacked:
    """What the audit of a row in this norm found where its guarantee covers it."""
    path = folder / "audits" / f"{row}.json"
    found = json.loads(path.read_text()) if path.exists() else None
    if found is None or float(found["norm"]) != NORMS[norm]:
        return Attacked()
    summary = found["summary"]
    return Attacked(summary["attacked"], summary["covered_breaks"], summary["bug"])


def recorded_entries(folder: Path = RECORDED) -> dict[str, Entry]:
    """An entry for every row on the whole test set and every norm, by its file's name."""
    found = {}
    for path in sorted((folder / "suite").glob("*.json")):
        record = json.loads(path.read_text())
        if record.get("inputs") != TEST_SET:
            continue
        for key in record["claims"]:
            norm, by = key.split()
            if by == "radius":
                one = _of_record(path, record, norm, folder)
                found[f"{one.name}.json"] = one
    return found


def _of_record(path: Path, record: dict[str, Any], norm: str, folder: Path) -> Entry:
    row, several = record["row"], sum(key.endswith("radius") for key in record["claims"]) > 1
    votes = record.get("undecided", {}).get("votes")
    open_votes = max((n for _, n in record["open"].values()), default=None)
    asked = {key: record.get(key) for key in ("preset", "changes", "seed", "members", "mirrored")}
    minutes = [round(record[f"{what}_seconds"] / 60, 1) or None for what in ("train", "certify")]
    return Entry(
        format=FORMAT,
        name=f"{row}-{norm}" if several else row,
        origin="record",
        by="UCAN",
        about=_about(record),
        source=f"experiments/recorded/suite/{path.name}",
        claim=Claim(
            record["preset"].split("-")[0],
            "test",
            record["inputs"],
            NORMS[norm],
            record["scope"],
            votes or open_votes or record["n"],
            record["alpha"],
            record.get("members", 1),
            False,
        ),
        certified=counted(record["claims"][f"{norm} radius"]),
        audit=attacked(folder, row, norm),
        made=Made(day(path, record, folder), record["hardware"], minutes[0], minutes[1], record["ucan"]),
        hashes=Hashes(
            weights=record["weights"],
            config=hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest(),
            results=hashlib.sha256(path.read_bytes()).hexdigest(),
        ),
    )


def _about(record: dict[str, Any]) -> str:
    mirrored = ", picture and mirror image averaged" if record.get("mirrored") else ""
    changes = " ".join(f"`{change}`" for change in record["changes"])
    return f"preset `{record['preset']}`{' with ' if changes else ''}{changes}{mirrored}; {record['law']}"


# --- others', by their released files ---


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
TABLES = {  # the best of some 300 runs at each radius, not one classifier: the repository has its shares, not its rows
    "cifar10_ours": ("SmoothAdv, best of all runs", "Salman et al., 2019"),
    "cifar10_original": ("Cohen, best over σ", "Cohen et al., 2019, in the repository of Salman et al."),
}


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
        found |= _leading(some) if source.best else some
    once = {one.hashes.results: name for name, one in reversed(found.items())}  # a file that two repositories have
    return {name: one for name, one in found.items() if once[one.hashes.results] == name} | _of_tables(clones)


def _file_name(source: Released, path: str) -> str:
    short = path.removeprefix("data/").removeprefix("certify/").removesuffix(".tsv")
    return f"{source.repository.split('/')[1]}-{re.sub(r'[^A-Za-z0-9.]+', '-', short)}.json"


def _leading(some: dict[str, Entry]) -> dict[str, Entry]:
    """Those of which one has the most at some radius."""
    best = {max(some, key=lambda name: some[name].count(level) or 0) for level in GRID}
    return {name: some[name] for name in sorted(best)}


def _of_file(source: Released, clone: Path, commit: str, path: str, match: re.Match[str]) -> Entry:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "released.tsv"
        file.write_bytes(git(clone, "show", f"HEAD:{path}"))
        import_run(file, Path(folder) / "run", "pipeline", 2.0)
        made = entry_of(Path(folder) / "run", levels=GRID)
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


def board_page(folder: Path = BOARD) -> str:
    return page(read_entries(folder), "Leaderboard")


def main() -> None:
    """Write entries and page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--released", type=Path, help="a folder with clones of the others' repositories")
    args = parser.parse_args()
    parts = {"ours": recorded_entries()}
    if args.released:
        parts["imported"] = released_entries(args.released)
    for part, entries in parts.items():
        (BOARD / part).mkdir(parents=True, exist_ok=True)
        for old in (BOARD / part).glob("*.json"):
            old.unlink()
        for name, one in entries.items():
            write_entry(one, BOARD / part / name)
    (BOARD / "README.md").write_text(board_page(), encoding="utf-8")


if __name__ == "__main__":
    main()
