"""Models made by a call, ``package.module:make(depth=20)``, with literal values only; no expression is evaluated."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from ucan.errors import ModelError
from ucan.fingerprint import weights_hash


@dataclass(frozen=True)
class Call:
    """The arguments of a call, as plain values."""

    positional: tuple[Any, ...]
    named: dict[str, Any]


def split_call(spec: str) -> tuple[str, Call | None]:
    """Split ``pkg:make(depth=20)`` into its name and its arguments; None if there is no call."""
    name, bracket, rest = spec.partition("(")
    if not bracket:
        return spec, None
    wrong = ModelError(
        f"{spec!r}: the arguments must be literal values, such as make(depth=20, name='wide', sizes=[1, 2])."
    )
    try:
        node = ast.parse(f"made({rest}", mode="eval").body
    except SyntaxError as error:
        raise wrong from error
    if (
        not isinstance(node, ast.Call)
        or not isinstance(node.func, ast.Name)
        or any(k.arg is None for k in node.keywords)
    ):
        raise wrong
    try:
        positional = tuple(ast.literal_eval(argument) for argument in node.args)
        return name, Call(positional, {str(k.arg): ast.literal_eval(k.value) for k in node.keywords})
    except ValueError as error:
        raise wrong from error


def made_with(maker: Any, call: Call, spec: str) -> Any:
    """Call a function or a class with these arguments."""
    if not callable(maker):
        raise ModelError(f"{spec}: a {type(maker).__name__} cannot be called: leave the parentheses out.")
    try:
        return maker(*call.positional, **call.named)
    except (Exception, SystemExit) as error:  # whatever the user's code raises
        raise ModelError(f"{spec} failed: {type(error).__name__}: {error}.") from error


def is_random(made: Any, make: Callable[[], Any]) -> bool:
    """Whether making the network again gives different weights, so that its weights are random."""
    if not isinstance(made, nn.Module) or not any(True for _ in made.parameters()):
        return False
    again = make()
    return again is not made and weights_hash(again) != weights_hash(made)
