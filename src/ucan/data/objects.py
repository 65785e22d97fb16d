"""Data as Python objects: arrays, torch datasets and loaders, Hugging Face data sets, `package.module:dataset`. Each is read
once, into memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from ucan.data.arrays import InMemory
from ucan.data.labelled import UNKNOWN, Labelled
from ucan.data.pictures import pixels_of
from ucan.errors import InvalidInput, in_one_line
from ucan.places import import_from_here

INPUTS = ("image", "img", "pixel_values", "input", "inputs", "x", "data", "audio")
LABELS = ("label", "labels", "y", "target", "fine_label", "class")


def as_dataset(source: Any, name: str = "data", unit: str | None = None) -> Labelled:
    """Convert data to a data set: an array of inputs, a pair (inputs, labels), a torch Dataset or DataLoader, a Hugging Face
    set.

    Items are (input, label), an input alone, or a mapping with an input (image, x, …) and a label (label, y, …). ``unit``
    is the unit of inputs that are not pixels in [0, 1]; their values are then used unchanged.
    """
    if isinstance(source, Labelled):
        return source
    if isinstance(source, np.ndarray | torch.Tensor):
        return InMemory(source, name=name, unit=unit)
    if isinstance(source, tuple) and len(source) == 2 and all(isinstance(p, np.ndarray | torch.Tensor) for p in source):
        return InMemory(source[0], source[1], name=name, unit=unit)
    if isinstance(source, Mapping):
        raise InvalidInput(
            f"{name}: a mapping ({', '.join(map(str, list(source)[:4]))}) is no data set: give the pair (inputs, labels), one "
            "of its splits, or the columns of a table as ucan.Table."
        )
    inputs, labels = [], []
    for x, label in _items(source, name):
        inputs.append(x)
        labels.append(label)
    if not inputs:
        raise InvalidInput(f"{name} is empty.")
    shapes = {tuple(x.shape) for x in inputs}
    if len(shapes) > 1:
        shown = ", ".join(map(str, sorted(shapes)[:3]))
        raise InvalidInput(f"{name} has inputs of different shapes ({shown}): resize them to one shape.")
    return InMemory(torch.stack(inputs), torch.tensor(labels), class_names(source), name, unit=unit)


def named_dataset(spec: str, unit: str | None = None) -> Labelled:
    """Import ``package.module:dataset``; a function or a class is called without arguments."""
    module_name, _, attribute = spec.partition(":")
    try:
        found: Any = import_from_here(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
        made = found() if isinstance(found, type) or _is_maker(found) else found
    except (Exception, SystemExit) as error:  # whatever the user's module raises
        raise InvalidInput(f"--data {spec}: {in_one_line(error)}. Give package.module:name of a data set.") from error
    return as_dataset(made, attribute, unit)


def is_named(source: str) -> bool:
    """Whether a text is ``package.module:name``, not a path."""
    module, colon, name = source.partition(":")
    return bool(colon) and all(part.isidentifier() for part in (*module.split("."), *name.split(".")))


def class_names(source: Any) -> tuple[str, ...] | None:
    """The class names that a data set stores: torchvision's ``classes``, Hugging Face's features."""
    for feature in dict(getattr(source, "features", None) or {}).values():
        if getattr(feature, "names", None):
            return tuple(map(str, feature.names))
    inner = getattr(source, "dataset", source)
    names = getattr(inner, "classes", None)
    if isinstance(names, list | tuple) and names and all(isinstance(n, str) for n in names):
        return tuple(names)
    return None


def _is_maker(found: Any) -> bool:
    return callable(found) and not hasattr(found, "__len__") and not hasattr(found, "__iter__")


def _items(source: Any, name: str) -> Iterator[tuple[torch.Tensor, int]]:
    """Iterate over the items of any supported container."""
    if isinstance(source, torch.utils.data.DataLoader):
        for batch in source:
            x, labels = _parts(batch, name)
            count = len(x)
            for i in range(count):
                yield as_input(x[i], name), UNKNOWN if labels is None else _label(labels[i], name)
        return
    if not hasattr(source, "__iter__") and not hasattr(source, "__getitem__"):
        raise InvalidInput(
            f"{name}: a {type(source).__name__} cannot be used as data: give an array, a data set or a table."
        )
    items = (source[i] for i in range(len(source))) if hasattr(source, "__len__") else iter(source)
    for item in items:
        x, label = _parts(item, name)
        yield as_input(x, name), UNKNOWN if label is None else _label(label, name)


def _parts(item: Any, name: str) -> tuple[Any, Any]:
    """An item as its input and its label, None if there is none."""
    if isinstance(item, Mapping):
        x = next((key for key in INPUTS if key in item), None)
        if x is None:
            raise InvalidInput(
                f"{name}: items have {', '.join(map(str, item))}; the input should be one of {', '.join(INPUTS)}."
            )
        y = next((key for key in LABELS if key in item), None)
        return item[x], None if y is None else item[y]
    if isinstance(item, tuple | list) and len(item) >= 2 and not isinstance(item[0], int | float):
        return item[0], item[1]
    return (item[0], None) if isinstance(item, tuple | list) and len(item) == 1 else (item, None)


def as_input(value: Any, name: str) -> torch.Tensor:
    """One input as a tensor: a tensor, an array, nested lists, or a picture, whose channels come first."""
    if isinstance(value, torch.Tensor):
        return value
    if type(value).__module__.partition(".")[0] == "PIL":
        return pixels_of(value.convert("L" if value.mode in ("L", "1") else "RGB"))
    if isinstance(value, Mapping) and "array" in value:  # Hugging Face's audio
        value = value["array"]
    try:
        return torch.as_tensor(np.asarray(value))
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            f"{name}: an input is a {type(value).__name__}, not numbers: give tensors or pictures."
        ) from error


def _label(value: Any, name: str) -> int:
    number = np.asarray(value.cpu() if isinstance(value, torch.Tensor) else value)
    if number.size != 1:
        raise InvalidInput(
            f"{name}: a label is {number.tolist()!r}: give the class number; for one-hot labels, label.argmax()."
        )
    if number.dtype.kind not in "uib" or number.dtype.kind == "b":
        raise InvalidInput(f"{name}: a label is {number.item()!r}: give a whole class number, counted from 0.")
    return int(number.reshape(()))
