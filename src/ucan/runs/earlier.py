"""An earlier version of UCAN, measured by its own `ucan bench` in a process of its own."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from ucan.errors import InvalidInput
from ucan.timing import Subject, Work

# Inputs of a certificate's timing in versions that do not say how many: all of those took so many.
UNSAID = 2


def source_of(package: Path) -> str:
    """The SHA-256 of a package's Python files, names and contents: which code it was, whether or not a commit is known."""
    found = hashlib.sha256()
    for path in sorted(package.rglob("*.py"), key=lambda one: one.relative_to(package).as_posix()):
        content = path.read_bytes()
        found.update(f"{path.relative_to(package).as_posix()} {len(content)}\n".encode() + content)
    return found.hexdigest()


@dataclass(frozen=True)
class Before:
    """What an earlier version has measured: samples per second of its certificates, and of how many inputs at once."""

    rate: float
    inputs: int


@dataclass(frozen=True)
class Earlier:
    """A checkout of an earlier version, run by this interpreter with its packages."""

    folder: Path
    device: str | torch.device = "auto"
    trust: bool = False

    def __post_init__(self) -> None:
        """Refuse, before anything is measured, a folder that this interpreter does not take the package from."""
        source = self.folder.resolve() / "src"
        if not (source / "ucan" / "__main__.py").is_file():
            raise InvalidInput(
                f"{self.folder} is no checkout of UCAN: make one by `git worktree add {self.folder} COMMIT`."
            )
        place = Path(self._run("-c", "import ucan; print(ucan.__file__)").strip()).resolve()
        if not place.is_relative_to(source):
            raise InvalidInput(f"Python takes ucan from {place} instead of {source}: uninstall the package there.")

    @property
    def source(self) -> str:
        """Which code it is."""
        return source_of(self.folder / "src" / "ucan")

    def measured(
        self,
        model: str,
        shape: tuple[int, ...] | None,
        weights: str | Path | None,
        n: int,
        choice: tuple[str, str | None],
    ) -> Before:
        """Its certificates of one model by one backend and precision."""
        backend, precision = choice[0], choice[1] or "fp32"
        words = ["--model", model, "--n", str(n), "--precision", precision, "--backend", backend]
        words += ["--device", str(self.device), "--no-shapes", "--no-art", "--json", "--quiet"]
        words += [] if shape is None else ["--shape", ",".join(map(str, shape))]
        words += [] if weights is None else ["--weights", str(weights)]
        known = self._run("-m", "ucan", "bench", "--help")
        words += ["--decisions", "0"] if "--decisions" in known else []
        words += ["--trust"] if self.trust and "--trust" in known else []
        told = json.loads(self._run("-m", "ucan", "bench", *words))
        what = str(Subject(Work.CERTIFY, backend, precision))
        rates = [row["rate"] for row in told["rows"] if row["what"] == what]
        if not rates:
            raise InvalidInput(f"{self.folder} has measured no certificate with {backend} in {precision}.")
        networks = told.get("networks") or [{}]
        return Before(float(rates[0]), int(networks[0].get("inputs", UNSAID)))

    def _run(self, *words: str) -> str:
        """What its interpreter prints; what went wrong is an error with its last line."""
        path = os.pathsep.join([str(self.folder.resolve() / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": path, "COLUMNS": "200"}
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True, env=environment, check=False)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise InvalidInput(f"{self.folder} cannot be measured: {last}")
        return done.stdout
