"""Pack a run to be published: its config, results and model in one folder, with a card and a manifest."""

from __future__ import annotations

import re
import shutil
import sqlite3
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from ucan.config import CONFIG, MANIFEST, handed_out, read_config, write_config
from ucan.errors import InvalidInput, MissingExtra
from ucan.models.build import BUILT_IN
from ucan.places import base_of, found
from ucan.sharing.card import card
from ucan.sharing.manifest import SUFFIXES, Manifest
from ucan.sharing.places import HUB, hub_name
from ucan.storage import storage
from ucan.training import Together, is_trained_run

MODEL = "model"  # the folder of a run's model, inside the published run
# The state of work in progress, which is nobody's result: a registry in the folder is that of one deployment.
LEFT_OUT = re.compile(r"(^|/)(\.|checkpoint|registry|tensorboard/)|-(wal|shm)$|\.(pt|lock|part)$")
WEIGHTS = (".safetensors", ".onnx", ".skops", ".ubj", ".json", ".txt", ".cbm")


def push(run: str | Path, to: str | Path, private: bool = False) -> str:
    """Publish a run of ``ucan certify`` or ``ucan train``, with its model and a card, so that ``ucan.load(to)`` opens it.

    Args:
        run: the run's folder.
        to: a new folder, a ``.zip`` file, or ``hf:owner/name``, a repository of the Hugging Face hub.
        private: whether a new repository of the hub is private.

    Returns:
        The hash of what was published: the SHA-256 of its manifest, for ``ucan.load(…, sha256=…)``.

    A random seed, which is secret, is left out; so are checkpoints and registries. A model that is code
    (package.module:name) is not included, and one whose file could run code when it is read (a pickle, TorchScript, .pt2)
    is refused.
    """
    run, target = Path(run), str(to)
    if not (run / CONFIG).is_file():
        raise InvalidInput(f"{run} is not the folder of a run: it has no {CONFIG}.")
    kind = read_config(run / CONFIG).get("kind", "certify")
    if kind not in ("certify", "train"):
        raise InvalidInput(f"{run} is a run of the kind {kind!r}: what is published is a run of certify or train.")
    if kind == "train" and not is_trained_run(run):
        raise InvalidInput(f"{run} is a `ucan train` run that is not finished: run its command again, then publish it.")
    if target.startswith(HUB):
        return _to_hub(run, hub_name(target)[0], private)
    place = Path(to)
    if place.exists():
        raise InvalidInput(f"{place} exists: give a new folder or file.")
    with packed(run) as (folder, manifest):
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.suffix.lower() == ".zip":
            _zip(folder, place)
        else:
            shutil.copytree(folder, place)
        return manifest.sha256


@contextmanager
def packed(run: Path) -> Iterator[tuple[Path, Manifest]]:
    """A temporary folder with what is published of a run."""
    with tempfile.TemporaryDirectory() as temporary, storage(run):
        folder = Path(temporary) / run.resolve().name
        folder.mkdir()
        config = _config(run, folder)
        write_config(folder / CONFIG, config)
        _copy(run, folder)
        (folder / "README.md").write_text(card(folder, run.resolve().name), encoding="utf-8")
        manifest = Manifest.of(folder)
        manifest.write(folder)
        yield folder, manifest


def _config(run: Path, folder: Path) -> dict[str, Any]:
    """The run's config to publish: without a secret seed, its paths leading to what is inside."""
    config = handed_out(read_config(run / CONFIG))
    base = base_of(run, config.get("started_in"))
    config["started_in"] = "."
    if config.get("kind") != "train":
        for key in ("model", "weights"):
            if key in config:
                config[key] = _with_model(str(config[key]), base, folder)
    return config


def _with_model(spec: str, base: Path | None, folder: Path) -> str:
    """Copy a model's files into the folder; the spec that leads to them there."""
    if spec in BUILT_IN or (":" in spec and not Path(spec).exists()):
        return spec
    together, parts = Together.of(spec), list[str]()
    for part in together.folders:
        source = Path(found(part, base))
        inside = f"{MODEL}/{len(parts)}" if not together.alone else MODEL
        if is_trained_run(source):
            (folder / inside).mkdir(parents=True)
            write_config(folder / inside / CONFIG, _config(source, folder / inside))
            _copy(source, folder / inside)
        elif source.is_file() and source.suffix.lower() in WEIGHTS:
            inside = f"{inside}/{source.name}"
            (folder / inside).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, folder / inside)
        elif source.exists():
            raise InvalidInput(
                f"{source} is not published: reading it can run code, or it is unfinished. Give weights as .safetensors and "
                "models as .onnx or as runs of `ucan train`."
            )
        else:
            raise InvalidInput(f"the run's model {part!r} is not here, so that it cannot be published with it.")
        parts.append(inside)
    return ",".join((*parts, *together.options))


def _copy(run: Path, folder: Path) -> None:
    """Copy a run's results and weights, without what is in progress, and databases as they are at this moment."""
    for path in sorted(run.rglob("*")):
        name = path.relative_to(run).as_posix()
        known = path.suffix.lower() in SUFFIXES and not LEFT_OUT.search(name)
        if not path.is_file() or path.is_symlink() or not known or name in (CONFIG, MANIFEST, "README.md"):
            continue
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".sqlite":
            _copy_database(path, folder / name)
        else:
            shutil.copyfile(path, folder / name)


def _copy_database(source: Path, target: Path) -> None:
    """One file, without the journal that a writer keeps beside it."""
    with (
        closing(sqlite3.connect(f"{source.resolve().as_uri()}?mode=ro", uri=True)) as old,
        closing(sqlite3.connect(target)) as new,
    ):
        old.backup(new)
        new.execute("PRAGMA journal_mode = DELETE")


def _zip(folder: Path, place: Path) -> None:
    with zipfile.ZipFile(place, "x", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                archive.write(path, path.relative_to(folder).as_posix())


def _to_hub(run: Path, name: str, private: bool) -> str:
    try:
        from huggingface_hub import HfApi
    except ImportError as error:
        raise MissingExtra("the Hugging Face hub needs huggingface_hub: pip install 'ucan[hub]'.") from error
    with packed(run) as (folder, manifest):
        api = HfApi()
        api.create_repo(name, private=private, exist_ok=True)
        api.upload_folder(
            repo_id=name,
            folder_path=str(folder),
            commit_message=f"UCAN run {manifest.sha256[:12]}",
            delete_patterns="*",
        )
        return manifest.sha256
