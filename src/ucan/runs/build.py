"""Build objects from what a user gives: law, noise, budget, arithmetic, and the smoothed classifier or router.

Each can be given by name, as on the command line, or as a Python object.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ucan.arithmetic import Grid, arithmetic_of, step_of
from ucan.budget import Budget, read_budget
from ucan.catalogue import GENERATORS, parsed
from ucan.data import Labelled
from ucan.data.tables import Table
from ucan.errors import InvalidInput
from ucan.generators import Fixed, Generator, Isotropic
from ucan.laws import Law
from ucan.models import BUILT_IN, load_model
from ucan.models.adapt import adapt, normalised
from ucan.models.factory import is_random
from ucan.routed import Deployed, Routed
from ucan.runs.jobs import Model, Pipeline, Selection
from ucan.runs.parts import law_named, noise_named
from ucan.runs.router import is_router, read_router
from ucan.scales import Dense
from ucan.smoothed import SmoothedClassifier
from ucan.tabular import SmoothedTable, as_amounts
from ucan.training import is_trained_run, load_run


def law_of(law: str | Law | None, scale: float | None, exponent: float | None) -> Law:
    """The law with this name (Gaussian if None), or the given law; ``scale`` replaces λ."""
    if isinstance(law, Law):
        if exponent is not None:
            raise InvalidInput("a law given as an object has its own parameters: leave exponent out.")
        return law if scale is None else replace(law, scale=scale)
    return law_named(law, scale, exponent)


def generator_of(noise: str | Generator | None, event: tuple[int, ...], law: Law, model: Any = None) -> Generator:
    """The generator that `--noise` describes, for inputs of this shape and this classifier; a generator stays as it is."""
    if isinstance(noise, Generator):
        return noise
    path = Path(noise or "")
    if path.suffix != ".npy":
        return noise_named(noise or "isotropic", event, law, model)
    sigma = _array("--noise", path).float()
    dim = math.prod(event)
    if sigma.shape == (dim, dim) and sigma.shape != event:
        return Fixed(Dense(sigma))
    if sigma.ndim and sigma.numel() != dim:
        raise InvalidInput(
            f"--noise: {path} has shape {tuple(sigma.shape)}; inputs have {event}, so give that or {dim}×{dim}."
        )
    return Fixed(sigma.reshape(event) if sigma.ndim else float(sigma))


def budget_of(budget: Any, dataset: Labelled, model: Model, trust: bool = False) -> Budget | None:
    """The budget that `--budget` describes, for these data; a number or an array is used directly.

    For a table it is given by column: "income=5%,age=1", or a mapping.
    """
    event = dataset.event_shape
    by_column = isinstance(budget, Mapping) or (isinstance(budget, str) and ("=" in budget or budget.endswith(".toml")))
    if by_column:
        if not isinstance(dataset, Table):
            raise InvalidInput(
                f"--budget by column is for tables, and {dataset.name} is not a table: give a number or a .npy file."
            )
        return dataset.budget(as_amounts(budget, "--budget"))
    if budget is None or not isinstance(budget, str):
        return None if budget is None else Budget.of(budget, event)
    if budget == "trained":
        own = load_run(model, trust=trust).budget if isinstance(model, str) and is_trained_run(model) else None
        if own is None:
            raise InvalidInput(f"--budget trained: {model} is not a run that was trained for a budget.")
        return Budget.of(own, event)
    if Path(budget).suffix in (".npy", ".npz"):
        try:
            return read_budget(budget, event)
        except InvalidInput as error:
            raise InvalidInput(f"--budget: {error}") from error
    try:
        return Budget.of(float(budget), event)
    except ValueError as error:
        raise InvalidInput(
            f"--budget takes a number above 0, a .npy or .npz file, trained, or column=number for tables; got "
            f"{budget!r}."
        ) from error


def budget_word(budget: Any) -> float | str | None:
    """The budget as given, if it is a word or a number."""
    if not isinstance(budget, str):
        return float(budget) if isinstance(budget, int | float) else None
    try:
        return float(budget)
    except ValueError:
        return budget


def _array(option: str, path: Path) -> torch.Tensor:
    try:
        return torch.from_numpy(np.load(path, allow_pickle=False))
    except (OSError, ValueError, TypeError, EOFError) as error:
        raise InvalidInput(f"{option}: {path} cannot be read as a numeric .npy file: {error}.") from error


def norm_of(norm: float | None, g: Deployed) -> float:
    """The norm. If None: that of its noise if it has exactly one, else 2."""
    if norm is not None:
        return norm
    return g.own_norm or 2.0


def step_for(arithmetic: str | None, dataset: Labelled, known: str | None) -> float | torch.Tensor | None:
    """The step of a job's inputs; ``known`` is the arithmetic of the run that it continues, if any."""
    if arithmetic is None and known is not None:
        declared = Grid.of(dataset.step)  # the name alone does not determine one step per column
        return dataset.step if arithmetic_of(declared) == known else step_of(known)
    if arithmetic == "grid" and dataset.step is None:
        raise InvalidInput(
            f"--arithmetic grid: the values of {dataset.name} have no known step. Save pictures as bytes (an .npz with "
            f"x of type uint8, or 8-bit pictures) and numbers with few decimals, or use --arithmetic real."
        )
    return None if arithmetic == "real" else dataset.step


@dataclass(frozen=True, eq=False)
class Settled:
    """A smoothed classifier in real arithmetic for the selected inputs, and the names of its classes if known."""

    g: Deployed
    selection: Selection
    class_names: tuple[str, ...] | None
    sigma: Mapping[str, float]
    remarks: tuple[str, ...]


def settle(asked: Pipeline, selection: Selection, where: torch.device) -> Settled:
    """Build the classifier, and prepare the inputs for it: a table's columns, and labels in the model's class order."""
    dataset, remarks = selection.dataset, list[str]()
    if isinstance(dataset, Table):
        made = _on_table(asked, dataset, where, remarks)
        chosen = replace(selection, dataset=made.table)
        remarks += _repeated(made.table.names or ()) + _refused(made, selection.indices)
        return Settled(made.smoothed, chosen, made.table.classes, made.sigma, tuple(remarks))
    if asked.sigma is not None:
        raise InvalidInput(
            f"--sigma is the noise of a table's columns, and {dataset.name} is not a table: use --scale and --noise."
        )
    first = selection.first().to(where)
    g: Deployed
    g, own = (
        (routed_of(asked, first), None) if is_router(asked.spec) else smoothed_with_names(asked, first, None, remarks)
    )
    order = class_order(asked, own, g.num_classes)
    ordered = selection.in_order(order)
    remarks += _by_number(dataset, order, g.num_classes)
    return Settled(g, ordered, order or ordered.dataset.classes, {}, tuple(remarks))


def class_order(asked: Pipeline, own: tuple[str, ...] | None, num_classes: int) -> tuple[str, ...] | None:
    """The classes in the order by which labels are numbered: as given, else the model's own; None if neither is known."""
    names = None if asked.class_names is None else tuple(asked.class_names)
    if names is not None and len(names) != num_classes:
        raise InvalidInput(f"{len(names)} class names were given, but the model has {num_classes} classes.")
    return names or own


def _by_number(dataset: Labelled, order: tuple[str, ...] | None, num_classes: int) -> list[str]:
    """A remark if the data name their classes, and these names do not tell which of the model's classes each one is."""
    known, own = dataset.classes, set(order or ())
    if known is None or (own and set(known) <= own):
        return []
    if len(known) == num_classes and not set(known) & own:  # other names for the same classes, as a rule
        return []
    why = "whose names the model does not have" if order else f"and the model has {num_classes} without names"
    return [
        f"{dataset.name} has {len(known)} classes ({', '.join(known[:3])}{', …' if len(known) > 3 else ''}), {why}: they are "
        "taken for the first ones of the model, in this order. If that is wrong, the names and what counts as correct are "
        "wrong, too: give the names of all its classes, in its order (--class-names)."
    ]


def _repeated(names: Sequence[str]) -> list[str]:
    """A remark if several rows have the same name."""
    first: dict[str, int] = {}
    for row, name in enumerate(names):
        if first.setdefault(name, row) != row:
            return [
                f"several rows have the same name (rows {first[name]} and {row}: {name}): in the answers only idx tells them "
                "apart. Give --id a column in which every row has its own value."
            ]
    return []


def _refused(made: SmoothedTable, indices: Sequence[int]) -> list[str]:
    """A remark if the model refuses some of the rows, such as those with a category that it was not trained on."""
    found = made.rows.refused(made.table, indices)
    if not found:
        return []
    first, why = next(iter(found.items()))
    return [
        f"the model refuses {len(found):,} of {len(indices):,} rows as they are, without noise, the first of them row {first} "
        f"(from 0): {why.rstrip('.')}. What it refuses is a vote for no class, and takes long: leave these rows out, or "
        "correct them."
    ]


def _on_table(asked: Pipeline, table: Table, where: torch.device, remarks: list[str]) -> SmoothedTable:
    """Smooth a model on a table; the noise is given by column."""
    if asked.noise is not None:
        raise InvalidInput("the noise of a table is given by column: use --sigma and --train, and leave out --noise.")
    if isinstance(asked.model, str) and is_trained_run(asked.model):
        raise InvalidInput(f"{asked.model} was trained on pictures, not on tables: give an estimator or a network.")
    model = loaded(asked, where, table.event_shape, remarks)
    own = isinstance(asked.law, Law) or (asked.law is not None and "scale" in parsed(asked.law)[1])
    law = law_of(asked.law, 1.0 if asked.scale is None and not own else asked.scale, asked.exponent)
    if asked.precision is not None:
        raise InvalidInput("--precision is not supported for tables: leave it out.")
    return SmoothedTable(
        model, table, asked.sigma, law, 1.0, asked.classes, asked.class_names, asked.model_id, step=False
    )


def loaded(asked: Pipeline, where: torch.device, event: tuple[int, ...], remarks: list[str] | None = None) -> Any:
    """The model: loaded by name, or the given object; warnings about it are appended to ``remarks``."""
    model, weights = asked.model, asked.weights
    if not isinstance(model, str):
        if weights is not None:
            raise InvalidInput("a model given as an object already has its weights: leave weights out.")
        found = model
    elif model in BUILT_IN and weights is None:
        raise InvalidInput(
            f"{model} has no trained weights: give them with --weights, or train it (`ucan train list`)."
        )
    else:
        found = load_model(model, weights, asked.classes, where, event, trust=asked.trust)
        if weights is None and ":" in model and is_random(found, lambda: load_model(model, device=where)):
            (remarks if remarks is not None else []).append(
                f"{model} returns different weights each time it is called, so its weights are random. The results are "
                f"valid only for the weights of this call. Load trained weights in the function, or give --weights."
            )
    if asked.normalise is not None:
        if not isinstance(asked.normalise, str):
            raise InvalidInput(
                "normalise is a name here, which the run's folder can keep: imagenet, cifar10, half or model. For your own "
                "mean and std put the normalisation into the model, as `ucan.models.load_model(…, normalise=(mean, std))` does."
            )
        if not isinstance(found, nn.Module):
            raise InvalidInput("--normalise needs a PyTorch network, and this model is not one: leave it out.")
        found = normalised(found, asked.normalise, event[0])
    return found


def smoothed_of(
    asked: Pipeline, first: torch.Tensor, step: float | None = None, remarks: list[str] | None = None
) -> SmoothedClassifier:
    """Build the smoothed classifier for inputs like ``first`` (1, *event), on the device of ``first``.

    Warnings about the model are appended to ``remarks``.
    """
    return smoothed_with_names(asked, first, step, [] if remarks is None else remarks)[0]


def smoothed_with_names(
    asked: Pipeline, first: torch.Tensor, step: Any, remarks: list[str]
) -> tuple[SmoothedClassifier, tuple[str, ...] | None]:
    """Return the smoothed classifier, and the class names that the model stores."""
    event = tuple(first.shape[1:])
    if isinstance(asked.model, str) and is_trained_run(asked.model):
        return _trained(asked, asked.model, first, step)
    f = adapt(loaded(asked, first.device, event, remarks), first, asked.classes)
    law = law_of(asked.law, asked.scale, asked.exponent)
    noise = generator_of(asked.noise, event, law, f.model)
    g = SmoothedClassifier(
        f.model, law, noise, f.num_classes, precision=asked.precision, model_id=asked.model_id, step=step
    )
    return g, f.classes


def _trained(
    asked: Pipeline, folder: str, first: torch.Tensor, step: float | None
) -> tuple[SmoothedClassifier, tuple[str, ...] | None]:
    """Load a trained run with its own noise, of which only λ can be changed; and the names of its classes."""
    options = {
        "--law": asked.law,
        "--exponent": asked.exponent,
        "--noise": None if _is_optimised(asked.noise) else asked.noise,
        "--weights": asked.weights,
        "--model-id": asked.model_id,
        "--normalise": asked.normalise,
    }
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise InvalidInput(f"{folder} is a trained run with its own network and noise: leave out {', '.join(given)}.")
    run = load_run(folder, trust=asked.trust)
    if asked.classes not in (None, run.num_classes):
        raise InvalidInput(f"{folder} was trained with {run.num_classes} classes: leave out --classes.")
    if run.shape != tuple(first.shape[1:]):
        raise InvalidInput(
            f"{folder} was trained on inputs of shape {run.shape}, but these have shape {tuple(first.shape[1:])}."
        )
    law = run.law if asked.scale is None else replace(run.law, scale=asked.scale)
    model, noise = run.classifier.to(first.device), run.generator
    if asked.noise is not None:
        if not isinstance(noise, Isotropic):
            raise InvalidInput(
                f"{folder} was trained with {noise.describe()} noise, and only isotropic noise is optimised."
            )
        noise = generator_of(asked.noise, run.shape, law, model)
    g = SmoothedClassifier(model, law, noise, run.num_classes, precision=asked.precision, step=step)
    return g, run.classes


def _is_optimised(noise: str | Generator | None) -> bool:
    """Whether this noise is computed from the classifier, so that a trained run can have it in place of its own."""
    if not isinstance(noise, str):
        return isinstance(noise, Generator) and noise.on_model
    name = parsed(noise)[0]
    return name in GENERATORS.names() and bool(getattr(GENERATORS.load(name), "on_model", False))


def routed_of(asked: Pipeline, first: torch.Tensor, step: float | None = None) -> Routed:
    """Build the router of a file for inputs like ``first`` (1, *event), on the device of ``first``."""
    options: dict[str, Any] = {
        "--law": asked.law,
        "--scale": asked.scale,
        "--exponent": asked.exponent,
        "--noise": asked.noise,
    }
    options |= {"--weights": asked.weights, "--model-id": asked.model_id, "--normalise": asked.normalise}
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise InvalidInput(f"{asked.spec} states the noise and the model of every part: leave out {', '.join(given)}.")
    plan = read_router(str(asked.spec))
    # A trained run knows its number of classes; of any other selector it is the number of experts.
    own = None if plan.selector and is_trained_run(plan.selector["model"]) else len(plan.experts)
    built = [
        smoothed_of(replace(asked, classes=own if part is plan.selector else asked.classes, **part), first, step)
        for part in plan.parts
    ]
    return plan.of(built)
