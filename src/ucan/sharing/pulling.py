"""Get a published run: only the files that its manifest lists, each checked while it is read."""

from __future__ import annotations

import hashlib
import http.client
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO
from urllib.parse import quote, urlsplit

from ucan.config import MANIFEST
from ucan.errors import InvalidInput, MissingExtra, StoreError, first_line
from ucan.sharing.manifest import LARGEST, Entry, Manifest
from ucan.sharing.places import HUB, cache_folder, hub_name, is_archive, is_url
from ucan.version import __version__

SHARE = 2**20  # bytes read at once
SECONDS = 60.0  # without an answer
LARGEST_MANIFEST = 16 * 2**20


class Source(ABC):
    """A published run, wherever it is: files by name."""

    def __init__(self, where: str) -> None:
        self.where = where

    @abstractmethod
    def open(self, name: str) -> IO[bytes]:
        """The bytes of one file; KeyError or OSError if there is none."""

    def manifest(self) -> tuple[Manifest, bytes]:
        """Its manifest, and the bytes of it."""
        try:
            with self.open(MANIFEST) as file:
                data = file.read(LARGEST_MANIFEST + 1)
        except (InvalidInput, MissingExtra):
            raise
        except Exception as error:  # on damaged files zipfile, tarfile and what they read with raise almost anything
            raise StoreError(
                f"{self.where} has no {MANIFEST} that can be read ({error}): `push` writes one."
            ) from error
        if len(data) > LARGEST_MANIFEST:
            raise StoreError(f"{self.where}: its {MANIFEST} is larger than {LARGEST_MANIFEST // 2**20} MiB.")
        return Manifest.read(data, self.where), data

    def copy(self, name: str, entry: Entry, target: Path) -> None:
        """Copy one file, and refuse it if it is not the one that the manifest lists."""
        digest, size = hashlib.sha256(), 0
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with self.open(name) as file, target.open("wb") as copy:
                while size <= entry.size and (part := file.read(SHARE)):
                    digest.update(part)
                    size += len(part)
                    copy.write(part)
        except (InvalidInput, MissingExtra):
            raise
        except Exception as error:  # as above
            raise StoreError(f"{self.where}: {name} cannot be read ({error}).") from error
        if size != entry.size or digest.hexdigest() != entry.sha256:
            raise StoreError(f"{self.where}: {name} is not the file that was published (its SHA-256 differs).")


class Online(Source):
    """A folder on a web server."""

    def open(self, name: str) -> IO[bytes]:
        """By its address below the folder's."""
        return _asked(f"{self.where.rstrip('/')}/{quote(name)}")


class Archive(Source):
    """A zip or a tar file. Its files may be at the top, or all in one folder."""

    def __init__(self, path: Path, where: str) -> None:
        super().__init__(where)
        self.zip = zipfile.ZipFile(path) if zipfile.is_zipfile(path) else None
        self.tar = tarfile.open(path) if self.zip is None else None  # noqa: SIM115  (closed by close)
        names = self.zip.namelist() if self.zip else self.tar.getnames() if self.tar else []
        tops = sorted((name for name in names if name.rpartition("/")[2] == MANIFEST), key=lambda n: n.count("/"))
        self.top = tops[0].removesuffix(MANIFEST) if tops else ""

    def open(self, name: str) -> IO[bytes]:
        """A member that is a plain file."""
        if self.zip is not None:
            return self.zip.open(self.top + name)
        found = None if self.tar is None else self.tar.extractfile(self.top + name)
        if found is None:
            raise KeyError(name)
        return found

    def close(self) -> None:
        """Close the file."""
        for opened in (self.zip, self.tar):
            if opened is not None:
                opened.close()


class Hub(Source):
    """A repository of the Hugging Face hub."""

    def open(self, name: str) -> IO[bytes]:
        """By huggingface_hub, which keeps a copy of its own."""
        # A name without hf: may as well be a path that is misspelt, or seen from another directory.
        absent = "" if self.where.startswith(HUB) else f"there is no folder {self.where} here: check the path. "
        try:
            from huggingface_hub import hf_hub_download
        except ImportError as error:
            raise MissingExtra(
                f"{absent}To look for {self.where} on the Hugging Face hub: pip install 'ucan[hub]'."
            ) from error
        repository, revision = hub_name(self.where)
        try:
            return open(hf_hub_download(repository, name, revision=revision), "rb")
        except MissingExtra:
            raise
        except Exception as error:  # its errors have no common base
            raise InvalidInput(
                f"{absent}Of {repository} and its {name} the Hugging Face hub says: {first_line(error)}"
            ) from error


def pull(where: str | Path, sha256: str | None = None) -> Path:
    """The folder of the run at a path, a URL or a hub name; what comes from elsewhere is kept in the user's cache.

    Args:
        where: the folder of a run; a ``.zip`` or ``.tar`` file that ``push`` wrote; the address of either
            (``https://…``, also with ``#sha256=…``); or a repository of the Hugging Face hub, ``hf:owner/name@revision``.
        sha256: the hash that ``push`` gave: the folder holds the files of that run and no others that are read. Without it a
            run's files are checked against its own manifest, which protects from damage, and not from somebody who may change
            both.
    """
    place, _, fragment = str(where).partition("#sha256=")
    expected = sha256 or fragment or None
    if Path(place).is_dir():
        _check_folder(Path(place), expected)
        return Path(place)
    if expected is not None:
        kept = cache_folder() / "runs" / expected.lower()
        if kept.is_dir():
            _check_folder(kept, expected)
            return kept
    with _source(place, isinstance(where, str)) as source:
        return _kept(source, expected)


def _check_folder(folder: Path, expected: str | None, alone: bool = True) -> None:
    """Refuse a changed run; of one that was asked for by its hash, if ``alone``, other files beside it as well."""
    path = folder / MANIFEST
    if not path.is_file():
        if expected is not None:
            raise StoreError(f"{folder} has no {MANIFEST}, so that its hash cannot be checked: `push` writes one.")
        return
    manifest = Manifest.read(path.read_bytes(), str(folder))
    manifest.check_hash(expected, str(folder))
    manifest.check(folder)
    if expected is not None and alone:
        manifest.check_alone(folder)


@contextmanager
def _source(place: str, named: bool) -> Iterator[Source]:
    """Where a run is read from; ``named``: it may be a name on the hub without hf: before it, which a ``Path`` is not."""
    with ExitStack() as stack:
        if is_url(place) and not is_archive(_path_of(place)):
            yield Online(place.removesuffix(MANIFEST))
        elif is_url(place) or Path(place).is_file():
            path = stack.enter_context(_downloaded(place)) if is_url(place) else Path(place)
            try:
                archive = Archive(path, place)
            except Exception as error:  # as above
                raise StoreError(
                    f"{place} is no zip or tar file that can be read ({first_line(error).rstrip(':')})."
                ) from error
            stack.callback(archive.close)
            yield archive
        elif place.startswith(HUB) or (named and place.count("/") == 1 and not Path(place).parent.exists()):
            yield Hub(place)
        else:
            raise InvalidInput(
                f"there is no run at {place!r}: give a folder, a .zip or .tar file, a URL, or hf:owner/name."
            )


def _path_of(url: str) -> str:
    try:
        return urlsplit(url).path
    except ValueError as error:
        raise InvalidInput(f"{url!r} is no address ({error}): give one such as https://example.org/run.zip.") from error


def _kept(source: Source, expected: str | None) -> Path:
    """The run in the cache, in a folder named by its hash; copied there if it is not there yet."""
    manifest, data = source.manifest()
    manifest.check_hash(expected, source.where)
    folder = cache_folder() / "runs" / manifest.sha256
    if folder.is_dir():
        _check_folder(folder, manifest.sha256, alone=expected is not None)
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        part = Path(temporary) / "run"
        part.mkdir()
        for name, entry in manifest.files.items():
            source.copy(name, entry, part / name)
        (part / MANIFEST).write_bytes(data)
        try:
            part.rename(folder)
        except OSError:  # another process was first
            _check_folder(folder, manifest.sha256, alone=expected is not None)
    return folder


@contextmanager
def _downloaded(url: str) -> Iterator[Path]:
    """A file from the network in a temporary place."""
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "archive"
        try:
            with _asked(url) as answer, path.open("wb") as file:
                shutil.copyfileobj(_Limited(answer), file, SHARE)
        except StoreError:
            raise
        except (OSError, http.client.HTTPException) as error:
            raise StoreError(f"{url} cannot be read: {error}.") from error
        yield path


class _Limited:
    """A stream that raises an error once more than the largest size was read."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream, self.left = stream, LARGEST

    def read(self, size: int = -1) -> bytes:
        part = self.stream.read(size)
        self.left -= len(part)
        if self.left < 0:
            raise StoreError(f"the archive is larger than {LARGEST // 2**30} GiB: it is not read.")
        return part


def _asked(url: str) -> IO[bytes]:
    request = urllib.request.Request(url, headers={"User-Agent": f"ucan/{__version__}"})
    try:
        answer: IO[bytes] = urllib.request.urlopen(request, timeout=SECONDS)
    except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError) as error:
        raise StoreError(f"{url} cannot be read: {error}.") from error
    return answer
