"""What can be chosen by name, defined once with its text: scopes, norms, precisions, backends, arithmetics, bounds, tests.

Imports nothing heavy, so that the command line can show it at once. What a name does is defined where its work is done
(``ucan.bounds``, ``ucan.backends``, …), and a test holds the two together.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any, Literal

from ucan.errors import InvalidInput

Scope = Literal["pipeline", "frozen", "registry"]
# Whose guarantee it is, as the end of the sentence "The guarantee is about …".
SCOPES: dict[str, str] = {
    "pipeline": "the deployed pipeline, at every input in the region",
    "frozen": "only the classifier whose noise was frozen at this input, not a pipeline that computes it anew "
    "(docs/scopes.md)",
    "registry": "the stateful classifier, in the order in which its inputs were enrolled (docs/registry.md)",
}

NORMS: tuple[float, ...] = (1, 2, math.inf)

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
# How inputs and noise are added.
ARITHMETICS: dict[str, str] = {
    "grid": "in whole steps of the data, added exactly: sound in floating point",
    "real": "in the inputs' precision: the guarantee holds in real arithmetic",
}

Bound = Literal["binary", "randomised", "two-class", "anytime", "exact"]
# How a bound on the class's probability follows from votes (``ucan.bounds``).
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

# Training methods: what it is; its cost with its defaults, in forward-backward passes of an input and epoch; when to take it.
RECIPES: dict[str, tuple[str, float, str]] = {
    "augmentation": ("cross-entropy on noisy copies (Cohen)", 1, "a first look, a baseline, and learned noise"),
    "consistency": (
        "copies should agree with their mean (Jeong)",
        2,
        "the usual choice: strong at every radius for its cost",
    ),
    "stability": ("noisy answers like the clean one (Li)", 2, "where accuracy without noise matters as well"),
    "smoothadv": (
        "adversarial training of the smoothed classifier (Salman)",
        44,
        "small and middle radii, with time to spend",
    ),
    "macer": (
        "the radius itself as a loss, no attack (Zhai)",
        16,
        "where attacks do not fit: no gradient in the input is used",
    ),
    "smoothmix": (
        "inputs mixed with adversarial ones, less sure there (Jeong)",
        12,
        "over-confident classifiers, small radii",
    ),
    "catrs": ("the easiest copies of hard inputs, the hardest of sure ones (Jeong)", 22.8, "middle and large radii"),
    "drt": (
        "several networks with diverse gradients and large margins (Yang)",
        3,
        "ensembles alone; a pass is of all networks",
    ),
    "acr": (
        "drops hopeless inputs, weighs the rest, attacks the noise (Sun)",
        12.1,
        "a large mean radius or one large radius",
    ),
    "sphere": (
        "consistency under noise moved up the loss on its sphere (UCAN)",
        4.4,
        "large radii at little more than consistency",
    ),
    "denoise": (
        "a denoiser in front of a fixed classifier (Salman)",
        1,
        "a classifier that is there and must not be changed",
    ),
}


def check_choice(what: str, value: Any, choices: Collection[str]) -> None:
    """Refuse a value that is not among the choices, naming them."""
    if value not in choices:
        raise InvalidInput(f"{what} must be {one_of(choices)}, got {value!r}.")


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


def norm_to_json(norm: float | None) -> float | str | None:
    """A norm as JSON has it, which knows no infinity."""
    return "inf" if norm == math.inf else norm


def norm_from_json(norm: Any) -> Any:
    """The inverse of ``norm_to_json``."""
    return math.inf if norm == "inf" else norm


def check_norm(norm: float) -> None:
    """Refuse a norm other than ℓ1, ℓ2, ℓ∞."""
    if norm not in NORMS:
        raise InvalidInput(f"norm must be 1, 2 or math.inf, got {norm!r}.")
