"""Laws and noise by name, from the catalogues of UCAN and of installed packages."""

from __future__ import annotations

from typing import Any

from torch import nn

from ucan.catalogue import GENERATORS, PATTERNS, check_noise, parsed
from ucan.errors import InvalidInput
from ucan.evidence import make_law
from ucan.generators import Context, Fixed, Generator, make_generator
from ucan.laws import Law


def law_named(text: str | None, scale: float | None, exponent: float | None) -> Law:
    """The law that `--law NAME` or `--law 'NAME(parameter=value,…)'`, `--scale` and `--exponent` describe."""
    name, parameters = parsed(text or "gaussian")
    if scale is not None and "scale" in parameters and parameters["scale"] != scale:
        raise InvalidInput("--scale and --law give different scales: leave one out.")
    parameters.setdefault("scale", 0.25 if scale is None else scale)
    if name == "powerlaw" and exponent is None and "a" not in parameters:
        raise InvalidInput("the power law needs --exponent, a number above the dimension of the input.")
    if exponent is not None:
        if name != "powerlaw":
            raise InvalidInput(f"--exponent is for the power law, not for {name} noise.")
        parameters["a"] = exponent
    return make_law(name, parameters, "--law")


def noise_named(text: str, event: tuple[int, ...], law: Law, model: Any = None) -> Generator:
    """The noise that `--noise NAME` or `--noise 'NAME(parameter=value,…)'` describes: a generator, or a fixed Σ of a kind.

    Noise that is learned, or fitted to training inputs, cannot be made here: it is part of a trained run. ``model`` is the
    classifier, for noise that is optimised on it.
    """
    if text in PATTERNS:
        text = f"pattern(norm={PATTERNS[text]})"
    name, parameters = parsed(text)
    context = Context(event, law, model=model)
    if name not in GENERATORS.names():
        check_noise(text)
        return Fixed.fitted(context, scale={"kind": name, **parameters})
    kind = GENERATORS.load(name)
    made = None if kind.needs_inputs(parameters) else make_generator(name, parameters, context)
    given = {id(p) for p in model.parameters()} if isinstance(model, nn.Module) else set()
    if made is None or any(p.requires_grad and id(p) not in given for p in made.parameters()):
        how = "fitted to training inputs" if made is None else "learned in training"
        raise InvalidInput(
            f"--noise {name} is {how}: train with it (`ucan train`), and give the trained run's folder as --model."
        )
    return made
