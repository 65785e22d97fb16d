"""What can be chosen by name, defined once with its text: scopes, norms, precisions, backends, bounds, tests,
training methods.

Imports nothing heavy, so that the command line can show it at once. What a name does is defined where its work is done
(``ucan.named_bounds``, ``ucan.backends``, …), and a test holds the two together.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

from ucan.errors import InvalidInput

Scope = Literal["pipeline", "frozen", "registry"]
# Whose guarantee it is, as the end of the sentence "The guarantee is about …".
SCOPES: dict[str, str] = {
    "pipeline": "the deployed pipeline, at every input in the region",
    "frozen": "only the classifier whose noise was frozen at this input, not a pipeline that computes it anew "
    "(documentation page “Whose guarantee it is”)",
    "registry": "the stateful classifier, in the order in which its inputs were enrolled "
    "(documentation page “A classifier with a memory”)",
}
# What older versions wrote of a scope, in files that are read as well.
EARLIER: dict[str, tuple[str, ...]] = {
    "pipeline": (),
    "frozen": (
        "only the classifier whose noise was frozen at this input, not a pipeline that computes it anew",
        "only the classifier whose noise was frozen at this input, not a pipeline that computes it anew (docs/scopes.md)",
    ),
    "registry": (
        "the stateful classifier, in the order in which its inputs were enrolled",
        "the stateful classifier, in the order in which its inputs were enrolled (docs/registry.md)",
    ),
}

NORMS: tuple[float, ...] = (1, 2, math.inf)

# ALM where it first appears in a text.
ALM = "ALM (alternative Lebesgue measure)"

# What the classifier computes in.
PRECISIONS: dict[str, str] = {
    "fp32": "float32 throughout",
    "tf32": "float32, with matrix products in TF32 on GPUs that have it",
    "bf16": "bfloat16",
}
# How the classifier is run.
BACKENDS: dict[str, str] = {
    "eager": "as it is",
    "compile": "compiled by torch.compile",
    "tuned": "compiled, with the kernels of each layer chosen by timing them",
    "onnxruntime": "by ONNX Runtime, on a CPU",
    "openvino": "by OpenVINO, on a CPU",
    "auto": "eager, compiled or, on a CPU, by another runtime that is installed, whichever is fastest",
}

Bound = Literal["binary", "randomised", "two-class", "anytime", "exact"]
# How a bound on the class's probability follows from votes (``ucan.named_bounds``).
BOUNDS: dict[str, str] = {
    "binary": "Clopper–Pearson for the class, all other classes together having the rest",
    "randomised": "Clopper–Pearson for the class, made exact by one uniform number that follows from the seed",
    "two-class": "Clopper–Pearson for the class and for its runner-up, at α/2 each",
    "anytime": "a bound that holds at every number of votes at once",
    "exact": "all draws of the noise are counted, so that nothing is left to chance; for splitting noise",
}

Test = Literal["majority", "top-two", "exact"]
# How a prediction is tested.
TESTS: dict[str, str] = {
    "majority": "one-sided: the class has more than half of the probability",
    "top-two": "two-sided, between the two most voted classes; also answers where no class has a majority",
    "exact": "all draws of the noise are counted; for splitting noise",
}


@dataclass(frozen=True)
class Method:
    """A training recipe in one line: what it is, its forward-backward passes for each input of an epoch, when to take it.

    m are noisy copies, T steps of an attack.
    """

    what: str
    cost: str
    when: str

    def __str__(self) -> str:
        """The line."""
        return f"{self.what}; {self.cost}; {self.when}"


# The recipes of ``ucan.catalogue.RECIPES`` (docs/methods.md compares them).
METHODS: dict[str, Method] = {
    "augmentation": Method(
        "cross-entropy on noisy copies (Cohen et al., 2019)",
        "m passes, m = 1",
        "as the baseline, and where clean accuracy counts more than radii",
    ),
    "consistency": Method(
        "two noisy copies should agree (Jeong and Shin, 2020)",
        "m passes, m = 2",
        "first: cheap, and at equal cost the best from 1 to 1.5 times the noise's scale, at 2 nearly so",
    ),
    "stability": Method(
        "the noisy copy should answer as the clean input does (Li et al., 2019)",
        "1 + m passes, m = 1",
        "to compare with the literature: at equal cost consistency certifies more from the noise's scale on",
    ),
    "smoothadv": Method(
        "adversarial training through the noise (Salman et al., 2019)",
        "m(1 + T) passes, m = 2 to 8, T = 2 to 10",
        "for radii of 2.5 times the noise's scale and more, at the price of clean accuracy",
    ),
    "macer": Method(
        "the certified radius itself as a loss (Zhai et al., 2020)",
        "m passes, m = 16",
        "without an attack, where there is time for some hundred epochs",
    ),
    "smoothmix": Method(
        "inputs mixed with adversarial ones, less sure there (Jeong et al., 2021)",
        "m(2 + T) passes, m = 2, T = 4",
        "for large radii, where there is time for 100 epochs and more",
    ),
    "catrs": Method(
        "the easiest copies of hard inputs, the hardest of sure ones (Jeong and Shin, 2023)",
        "m(2 + T) passes, m = 4, T = 4",
        "for large radii, where there is time for 100 epochs and more",
    ),
    "drt": Method(
        "networks of an ensemble that fail in different directions (Yang et al., 2022)",
        "about 3m passes of every network",
        "for an ensemble of networks that are trained already: at equal cost behind one network of consistency",
    ),
    "acr": Method(
        "drop hopeless inputs, weigh the rest, attack the noise (Sun et al., 2025)",
        "m, then m(1 + T) passes, m = 4, T = 3 to 6",
        "for the largest radii, where there is time for 100 epochs and more",
    ),
    "sphere": Method(
        "consistency under noise that is attacked on its own sphere (UCAN)",
        "m, then m(1 + T) passes, m = 2, T = 2",
        "for radii of twice the noise's scale and more",
    ),
    "denoise": Method(
        "a denoiser in front of a fixed classifier (Salman et al., 2020)",
        "1 pass",
        "for a classifier that is there and must not be changed",
    ),
}


def check_choice(what: str, value: Any, choices: Collection[str]) -> None:
    """Refuse a value that is not among the choices, naming them."""
    if value not in choices:
        raise InvalidInput(f"{what} must be {one_of(choices)}, got {value!r}.")


def check_list(name: str, value: Any) -> None:
    """Refuse a single text where a list of texts belongs: it would be read letter by letter."""
    if isinstance(value, str):
        raise InvalidInput(f"{name} takes a list, got {value!r}: give [{json.dumps(value, ensure_ascii=False)}].")


def one_of(choices: Collection[str]) -> str:
    """The choices as a sentence has them: "a", "b" or "c"."""
    *others, last = (f'"{name}"' for name in choices)
    return f"{', '.join(others)} or {last}" if others else last


# --- norms ---


def norm_name(norm: float) -> str:
    """The norm as people write it: ℓ1, ℓ2, ℓ∞."""
    return "ℓ∞" if norm == math.inf else f"ℓ{norm:g}"


def norm_word(norm: float) -> str:
    """The norm as options and file names have it: 1, 2, inf."""
    return f"{norm:g}"


def norm_code(norm: float) -> str:
    """The norm as Python code has it: 1, 2, math.inf."""
    return "math.inf" if norm == math.inf else norm_word(norm)


def norm_to_json(norm: float | None) -> float | str | None:
    """A norm as JSON has it, which knows no infinity."""
    return "inf" if norm == math.inf else norm


def norm_from_json(norm: Any) -> Any:
    """The inverse of ``norm_to_json``."""
    return math.inf if norm == "inf" else norm


def check_norm(norm: float) -> None:
    """Refuse a norm other than ℓ1, ℓ2, ℓ∞."""
    if norm not in NORMS or isinstance(norm, bool):
        text = ", a number and no text" if isinstance(norm, str) else ""
        raise InvalidInput(f"norm must be 1, 2 or math.inf{text}, got {norm!r}.")
