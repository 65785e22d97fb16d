"""The manifest of a published run: its files with their sizes and SHA-256, whose own SHA-256 is the run's hash."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from ucan.config import MANIFEST
from ucan.errors import StoreError
from ucan.json_text import parse_json

FORMAT = 1
# What a published run may hold: numbers, texts and graphs. Nothing that is unpickled or imported.
SUFFIXES = (
    *(".toml", ".sqlite", ".safetensors", ".json", ".jsonl", ".tsv", ".csv", ".html", ".md", ".npz", ".npy"),
    *(".onnx", ".skops", ".ubj", ".txt", ".cbm"),
)
# Of a database SQLite reads the pages in these files, where they are beside it, before its own.
JOURNALS = ("-wal", "-journal")
# What using a run leaves in its folder, and nothing reads as a part of it: hidden files, caches, locks, pages, SQLite's own.
LEFT_BY_USE = re.compile(r"(^|/)(\.|__pycache__/)|\.(html|lock|part)$|-(wal|shm|journal)$")
LARGEST = 16 * 2**30  # bytes of all files of a run together
MANY = 100_000  # files


@dataclass(frozen=True)
class Entry:
    """One file."""

    sha256: str
    size: int


@dataclass(frozen=True)
class Manifest:
    """The files of a run by their names, relative to its folder. ``sha256`` is the hash of the manifest as it is written."""

    files: Mapping[str, Entry]
    sha256: str

    @classmethod
    def of(cls, folder: Path) -> Manifest:
        """The manifest of all files in a folder, except the manifest itself."""
        found = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / MANIFEST)
        files = {path.relative_to(folder).as_posix(): Entry(file_hash(path), path.stat().st_size) for path in found}
        for name in files:
            check_name(name, str(folder))
        return cls(files, hashlib.sha256(_written(files)).hexdigest())

    @classmethod
    def read(cls, data: bytes, where: str) -> Manifest:
        """A manifest from its bytes; every name and number in it is checked."""
        try:
            table: Any = parse_json(data.decode())
            if table["ucan_manifest"] != FORMAT:
                raise StoreError(
                    f"{where} has manifest format {table['ucan_manifest']!r}; this version reads {FORMAT}."
                )
            files = {str(name): Entry(str(e["sha256"]), int(e["size"])) for name, e in table["files"].items()}
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            raise StoreError(f"{where}: its {MANIFEST} cannot be read ({error}).") from error
        for name, entry in files.items():
            check_name(name, where)
            if not re.fullmatch(r"[0-9a-f]{64}", entry.sha256) or entry.size < 0:
                raise StoreError(f"{where}: the manifest's entry of {name} is not a size and a SHA-256.")
        if len(files) > MANY or sum(entry.size for entry in files.values()) > LARGEST:
            raise StoreError(f"{where} has more than {MANY:,} files or {LARGEST // 2**30} GiB: it is not read.")
        return cls(files, hashlib.sha256(data).hexdigest())

    def write(self, folder: Path) -> None:
        """Write it into the folder that it is about."""
        (folder / MANIFEST).write_bytes(_written(self.files))

    def check(self, folder: Path) -> None:
        """Raise an error unless every file is there as it was published."""
        for name, entry in self.files.items():
            path = folder / name
            if not path.is_file():
                raise StoreError(f"{folder} lacks {name}, which its manifest lists: get the run again.")
            if path.stat().st_size != entry.size or file_hash(path) != entry.sha256:
                raise StoreError(f"{folder / name} is not the file that was published (its SHA-256 differs).")
            beside = [path.with_name(path.name + ending) for ending in JOURNALS if path.suffix.lower() == ".sqlite"]
            if found := [file.name for file in beside if file.exists() and file.stat().st_size]:
                raise StoreError(
                    f"{folder} has {found[0]}, which was not published and changes what {name} holds: remove it, or get "
                    "the run again."
                )

    def check_alone(self, folder: Path) -> None:
        """Raise an error if another file lies in the folder: an audit, data or a certificate would be read as the run's own."""
        inside = (path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
        names = (path.relative_to(folder).as_posix() for path in inside if path != folder / MANIFEST)
        for name in sorted(set(names) - set(self.files)):
            if not LEFT_BY_USE.search(name):
                raise StoreError(
                    f"{folder} has {name}, which was not published: the run with this hash has no such file, and it would be "
                    "read as a part of it. Move it elsewhere, or remove this folder to get the run again."
                )

    def check_hash(self, expected: str | None, where: str) -> None:
        """Raise an error unless this is the run with the expected hash."""
        if expected is not None and expected.lower() != self.sha256:
            raise StoreError(f"{where} is another run than expected: its hash is {self.sha256}, not {expected}.")


def check_name(name: str, where: str) -> None:
    """Refuse a file's name that leaves the folder, or a kind of file that could run code when it is read."""
    path = PurePosixPath(name)
    plain = (
        name == path.as_posix() and not path.is_absolute() and not re.search(r'[\\:\x00-\x1f*?"<>|\ud800-\udfff]', name)
    )
    if not plain or any(part.startswith(".") for part in path.parts) or name == MANIFEST:
        raise StoreError(f"{where}: {name!r} is not a file's name inside a run.")
    if path.suffix.lower() not in SUFFIXES:
        raise StoreError(f"{where}: {name} is of a kind that a published run does not hold ({', '.join(SUFFIXES)}).")


def file_hash(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _written(files: Mapping[str, Entry]) -> bytes:
    table = {name: {"sha256": e.sha256, "size": e.size} for name, e in sorted(files.items())}
    return (json.dumps({"ucan_manifest": FORMAT, "files": table}, indent=1, ensure_ascii=False) + "\n").encode()
