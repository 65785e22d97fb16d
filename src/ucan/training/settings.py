"""The settings of a training run: one TOML file, checked before anything starts."""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from ucan.budget import Budget
from ucan.catalogue import GENERATORS, LAWS, RECIPES, Catalogue, call
from ucan.errors import InvalidInput
from ucan.evidence import make_law
from ucan.generators import Context, Generator, make_generator
from ucan.laws import Law
from ucan.training.budgets import build_budget, check_budget
from ucan.training.recipes import Recipe

PRECISIONS = ("32-true", "64-true", "bf16-mixed", "bf16-true", "16-mixed", "16-true")
PARTS: dict[str, Catalogue] = {"law": LAWS, "generator": GENERATORS, "recipe": RECIPES}
OPTIMISERS, SCHEDULES = ("adam", "sgd", "momentum"), ("constant", "cosine", "one-cycle", "steps")


@dataclass(frozen=True)
class TrainSettings:
    """A training run. The tables ``law``, ``generator`` and ``recipe`` hold a ``kind`` and its parameters.

    ``budget`` is the set of changes to protect against: a table with ``limit``, ``limits`` or ``spread``. With ``denoiser``,
    a table with the ``width`` and ``depth`` of a DnCNN, this network is trained in front of the model, whose weights are fixed.
    """

    data: str = "digits"
    size: int | None = None  # pictures in a folder are resized and cropped to this
    model: str = "cnn"
    networks: int | None = None  # so many of them as an ensemble, from the seeds seed, seed + 1, …
    epochs: int = 20
    batch: int = 128
    optimiser: str = "adam"
    lr: float = 1e-3
    generator_lr: float | None = None
    weight_decay: float = 0.0
    schedule: str = "cosine"
    lr_drops: list[int] | None = None  # schedule "steps": after so many epochs the learning rate falls to a tenth
    precision: str = "32-true"
    compile: bool = False
    ema: float = 0.0
    augment: bool = False
    flip: bool = True  # with augment; not for pictures that mean something else in a mirror, such as digits
    shift: int = 4  # with augment: the most pixels by which a picture is moved, each way
    held_out: float = 0.0
    certify_every: int = 5  # epochs between two checks of certified accuracy on the held-out part; 0: none
    variance_term: str = "none"
    variance_weight: float = 1.0
    seed: int = 0
    law: dict[str, Any] = field(default_factory=lambda: {"kind": "gaussian", "scale": 0.25})
    generator: dict[str, Any] = field(default_factory=lambda: {"kind": "isotropic"})
    recipe: dict[str, Any] = field(default_factory=lambda: {"kind": "augmentation"})
    budget: dict[str, Any] | None = None
    denoiser: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        for f in fields(self):
            _check_type(f.name, getattr(self, f.name), str(f.type))
        _one_of("optimiser", self.optimiser, OPTIMISERS)
        _one_of("schedule", self.schedule, SCHEDULES)
        _one_of("precision", self.precision, PRECISIONS)
        if "std" in self.law and "scale" in self.law:
            raise InvalidInput(
                "the law has both scale and std: give the whole table with one of them, "
                f"as in --set 'law={{kind=\"{self.law.get('kind')}\", std={self.law['std']}}}'."
            )
        for name, catalogue in PARTS.items():
            catalogue.check(getattr(self, name).get("kind"), f"{name}.kind")
        check_budget(self.budget)
        self._check_drops()
        if (self.denoiser is not None) != (self.recipe.get("kind") == "denoise"):
            raise InvalidInput(
                'a [denoiser] is trained by [recipe] kind = "denoise", and that recipe trains nothing else.'
            )
        self._check_numbers()

    def _check_drops(self) -> None:
        drops = self.lr_drops
        if (self.schedule == "steps") != bool(drops):
            raise InvalidInput(
                'schedule = "steps" and lr_drops belong together: after how many epochs the learning rate falls to a tenth, '
                "such as lr_drops = [50, 100]; with another schedule lr_drops = []."
            )
        if not drops:
            return
        whole = all(isinstance(each, int) and not isinstance(each, bool) for each in drops)
        if not whole or any(after <= before for before, after in pairwise([0, *drops])):
            raise InvalidInput(f"lr_drops must be rising whole numbers of epochs, from 1 on, got {drops!r}.")

    def _check_numbers(self) -> None:
        if self.networks is not None and self.networks < 2:
            raise InvalidInput(
                f"networks is the number of networks of an ensemble, 2 or more, got {self.networks!r}: leave it out for one."
            )
        for name in ("epochs", "batch"):
            if getattr(self, name) < 1:
                raise InvalidInput(f"{name} must be at least 1, got {getattr(self, name)!r}.")
        if self.shift < 0:
            raise InvalidInput(f"shift must be 0 (none) or a number of pixels, got {self.shift!r}.")
        if self.certify_every < 0:
            raise InvalidInput(f"certify_every must be 0 (never) or a number of epochs, got {self.certify_every!r}.")
        for name in ("ema", "held_out"):
            if not 0 <= getattr(self, name) < 1:
                raise InvalidInput(f"{name} must lie in [0, 1), got {getattr(self, name)!r}.")
        if not (math.isfinite(self.lr) and self.lr > 0):
            raise InvalidInput(f"lr must be a finite number above 0, got {self.lr!r}.")
        for name in ("generator_lr", "weight_decay"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise InvalidInput(f"{name} must be a finite number, 0 or above, got {value!r}.")
        if not math.isfinite(self.variance_weight):
            raise InvalidInput(f"variance_weight must be a finite number, got {self.variance_weight!r}.")
        if not -(2**63) <= self.seed < 2**64:  # what torch takes
            raise InvalidInput(f"seed must lie between -2**63 and 2**64 - 1, got {self.seed!r}.")

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for TOML."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TrainSettings:
        """From TOML's values; an unknown key is an error that lists the known ones."""
        known = {f.name for f in fields(cls)}
        unknown = sorted(values.keys() - known)
        if unknown:
            raise InvalidInput(f"unknown settings {', '.join(unknown)}; the settings are {', '.join(sorted(known))}.")
        return cls(**values)

    def build_law(self, dim: int) -> Law:
        """The noise law; ``std`` instead of ``scale`` asks for a per-coordinate standard deviation."""
        kind, parameters = self._part("law")
        if "std" in parameters:
            made: Law = call("law", LAWS.load(kind).from_std, {"dim": dim, **parameters})
            return made
        return make_law(kind, parameters)

    def build_recipe(self) -> Recipe:
        """The recipe."""
        kind, parameters = self._part("recipe")
        made = call("recipe", RECIPES.load(kind), parameters)
        if not isinstance(made, Recipe):
            raise InvalidInput(
                f"[recipe] {kind!r} returned a {type(made).__name__}, which is not a ucan.training.recipes.Recipe."
            )
        return made

    def wants_images(self) -> bool:
        """Whether the noise, or the budget, is made from the training inputs."""
        kind, parameters = self._part("generator")
        return GENERATORS.load(kind).needs_inputs(parameters) or "spread" in (self.budget or {})

    def build_budget(self, shape: Sequence[int], images: torch.Tensor | None) -> Budget | None:
        """The budget that the noise is to protect from, if the settings name one."""
        return None if self.budget is None else build_budget(self.budget, shape, images)

    def build_generator(self, shape: Sequence[int], images: torch.Tensor | None) -> Generator:
        """The generator for inputs of this shape; ``images`` (training pixels) are what a PCA basis is made of, and what
        noise for a budget is fitted to.

        Without images these are placeholders, to be filled from saved weights.
        """
        kind, parameters = self._part("generator")
        law, budget = self.build_law(math.prod(shape)), self.build_budget(shape, images)
        return make_generator(kind, parameters, Context(tuple(shape), law, images, budget))

    def _part(self, name: str) -> tuple[str, dict[str, Any]]:
        """The kind and the parameters of a table."""
        table = getattr(self, name)
        return table["kind"], {key: value for key, value in table.items() if key != "kind"}


def preset_names() -> list[str]:
    """The presets that come with the package."""
    folder = resources.files("ucan.training") / "presets"
    return sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml"))


def preset_text(name: str) -> str:
    """The text of a preset: TOML with comments, to copy and edit."""
    if name not in preset_names():
        raise InvalidInput(f"there is no preset {name!r}; presets: {', '.join(preset_names())}.")
    return (resources.files("ucan.training") / "presets" / f"{name}.toml").read_text(encoding="utf-8")


def read_settings(source: str | Path) -> TrainSettings:
    """Settings from a TOML file, which may be the ``config.toml`` of a training run, or from the preset of that name."""
    if str(source) in preset_names():
        text = preset_text(str(source))
    else:
        path = Path(source)
        if not path.is_file():
            near = difflib.get_close_matches(str(source), preset_names())
            meant = f"did you mean {' or '.join(near)}? " if near else ""
            raise InvalidInput(
                f"{source!r} is neither a file nor a preset: {meant}`ucan train list` shows all presets."
            )
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise InvalidInput(f"{source} is not UTF-8 text: save it in UTF-8 ({error}).") from error
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput(f"{source} cannot be read as training settings: {error}.") from error
    if "run_format" in values:  # the config of a run, with its settings as one table
        if not isinstance(values.get("training"), dict):
            raise InvalidInput(
                f"{source} belongs to a run of another kind ({values.get('kind')}): give that of a training run."
            )
        values = values["training"]
    return TrainSettings.from_dict(values)


def _check_type(name: str, value: Any, wanted: str) -> None:
    """Refuse a value of another kind than the field's annotation names."""
    if value is None and "None" in wanted:
        return
    kind = wanted.split(" | ")[0].split("[")[0]
    accepted = {"str": str, "int": int, "float": int | float, "bool": bool, "dict": dict, "list": list}[kind]
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind != "bool"):
        words = {
            "str": "text",
            "int": "a whole number",
            "float": "a number",
            "bool": "true or false",
            "dict": "a table",
            "list": "a list",
        }
        raise InvalidInput(f"{name} must be {words[kind]}, got {value!r}.")


def _one_of(name: str, value: Any, known: tuple[str, ...]) -> None:
    if value not in known:
        raise InvalidInput(f"{name} must be one of {', '.join(known)}, got {value!r}.")
