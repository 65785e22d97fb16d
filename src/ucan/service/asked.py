"""A request as a record: what is asked of which input, within the operator's limits."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal
from urllib.parse import parse_qsl

import torch

from ucan.choices import Test, norm_from_json, norm_to_json
from ucan.errors import InvalidInput
from ucan.json_text import once
from ucan.plan import CertifyPlan, PredictPlan, random_seed
from ucan.questions.looks import question_stop
from ucan.service.inputs import Form
from ucan.service.limits import Limits
from ucan.stop_option import NORM_NAMES, parse_stop
from ucan.stopping import Stop

Kind = Literal["certify", "predict", "ask"]
# The most radii of a stopping rule: each costs time at every look.
MOST_RADII = 16
OPTIONS: Mapping[Kind, tuple[str, ...]] = {
    "certify": ("n", "alpha", "stop", "norm", "seed", "deadline"),
    "predict": ("n", "alpha", "stop", "seed", "deadline"),
    "ask": ("n", "alpha", "stop", "norm", "seed", "deadline"),
}
# Votes of a prediction, where the request does not say.
PREDICT_N = 1000


@dataclass(frozen=True, eq=False)
class Asked:
    """One request, checked. ``plan`` has its seed: the given one, or one of its own that nobody knows."""

    kind: Kind
    x: torch.Tensor
    plan: CertifyPlan | PredictPlan
    deadline: float


@dataclass(frozen=True, eq=False)
class Offer:
    """What a service answers: its inputs, the settings that a request leaves out, and the limits.

    With a ``memory`` (a registry) a prediction is the answer of a certificate. ``question`` is the name of the question that
    is asked of every input; None: certificates and predictions of one class.
    """

    form: Form
    certify: CertifyPlan
    norms: tuple[float, ...]
    limits: Limits
    memory: bool = False
    question: str | None = None

    def read(self, kind: Kind, content: str, query: bytes, body: bytes) -> Asked:
        """A request from its body: JSON, a picture or an .npy array; options of the latter stand in the query."""
        if content == "application/json":
            if query:
                raise InvalidInput("options of a JSON request stand in its body: leave out the query.")
            given = _object(body)
            if "input" not in given:
                raise InvalidInput('the body must be a JSON object with "input".')
            return self.asked(kind, self.form.read(given.pop("input")), given)
        x = self.form.from_npy(body) if content == "application/x-npy" else self.form.from_picture(body)
        return self.asked(kind, x, _options(query))

    def asked(self, kind: Kind, x: torch.Tensor, options: Mapping[str, Any]) -> Asked:
        """The request for a checked input (1, *event) with these options."""
        self._check_kind(kind)
        known = OPTIONS[kind]
        unknown = sorted(set(options) - set(known))
        if unknown:
            raise InvalidInput(f"unknown option {', '.join(unknown)[:100]}: {kind} takes {', '.join(known)}.")
        deadline = self._deadline(options.get("deadline"))
        plan = self._predict(options) if kind == "predict" else self._certify(options)
        return Asked(kind, x, plan, deadline)

    def _check_kind(self, kind: Kind) -> None:
        """Refuse what this service does not answer: a client of one class must not take another answer for a certificate."""
        if kind == "ask" and self.question is None:
            raise InvalidInput(
                "this service is about one class: use /v1/certify or /v1/predict, or serve a run of `ucan ask`."
            )
        if kind != "ask" and self.question is not None:
            raise InvalidInput(f"this service answers the question {self.question}: use /v1/ask.")

    def _certify(self, options: Mapping[str, Any]) -> CertifyPlan:
        plan = self.certify
        self._check_sampled(options)
        return replace(
            plan,
            n=self._n(options.get("n"), plan.n),
            alpha=self._alpha(options.get("alpha")),
            norm=self._norm(options["norm"]) if "norm" in options else plan.norm,
            stop=self._stop(options["stop"]) if "stop" in options else plan.stop,
            seed=self._seed(options.get("seed")),
        )

    def _stop(self, value: Any) -> Stop | None:
        """The rule of a request; that of a question is about radii alone."""
        rule = _stop(value)
        return rule if self.question is None or rule is None else question_stop(rule)

    def _predict(self, options: Mapping[str, Any]) -> CertifyPlan | PredictPlan:
        n, alpha = self._n(options.get("n"), PREDICT_N), self._alpha(options.get("alpha"))
        seed, stop = self._seed(options.get("seed")), options.get("stop", False)
        if not isinstance(stop, bool):
            raise InvalidInput(f"stop of a prediction must be true or false, got {_shown(stop)}.")
        self._check_sampled(options)
        own = self.certify
        if not self.memory:
            test: Test = "exact" if self.exact else "majority"
            number = own.n if self.exact else n
            return PredictPlan(number, alpha, seed, test, own.batch_size, stop, block=own.block)
        if stop:
            raise InvalidInput("with a registry a prediction is that of a certificate with n votes: leave out stop.")
        return replace(self.certify, n=self.certify.n if self.exact else n, alpha=alpha, seed=seed, stop=None)

    @property
    def exact(self) -> bool:
        """Whether all draws of the noise are counted, instead of some."""
        return self.certify.bound == "exact"

    def _check_sampled(self, options: Mapping[str, Any]) -> None:
        given = [name for name in ("n", "stop") if name in options]
        if self.exact and given:
            raise InvalidInput(f"this service counts all {self.certify.n:,} draws of its noise: leave out {given[0]}.")

    def _n(self, value: Any, default: int) -> int:
        if value is None:
            return min(default, self.limits.n)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= self.limits.n:
            raise InvalidInput(f"n must be a whole number from 1 to {self.limits.n:,}, got {_shown(value)}.")
        return value

    def _alpha(self, value: Any) -> float:
        limits = self.limits
        if value is None:
            return self.certify.alpha
        number = _number("alpha", value)
        if not limits.least_alpha <= number <= limits.alpha:
            raise InvalidInput(f"alpha must lie from {limits.least_alpha:g} to {limits.alpha:g}, got {_shown(value)}.")
        return number

    def _norm(self, value: Any) -> float:
        number = norm_from_json(value)
        if isinstance(number, bool) or number not in self.norms:
            told = ", ".join(json.dumps(norm_to_json(norm)) for norm in self.norms)
            raise InvalidInput(f"norm must be one of {told}, got {_shown(value)}.")
        return number if number == math.inf else int(number)

    def _seed(self, value: Any) -> int:
        if value is None:
            return random_seed()
        if not self.limits.seeds:
            raise InvalidInput(
                "this service chooses its seeds itself: leave out seed. Whoever chooses inputs and seeds can find a false "
                "certificate."
            )
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**128:
            raise InvalidInput(f"seed must be a whole number from 0 to 2**128 − 1, got {_shown(value)}.")
        return value

    def _deadline(self, value: Any) -> float:
        longest = self.limits.deadline
        if value is None:
            return longest
        number = _number("deadline", value)
        if not 0 < number <= longest:
            raise InvalidInput(f"deadline must be a number of seconds up to {longest:g}, got {_shown(value)}.")
        return number


def _object(body: bytes) -> dict[str, Any]:
    """The JSON object of a body; NaN and infinities, which are no JSON, are refused, and keys that occur twice."""

    def refuse(name: str) -> float:
        raise InvalidInput(f"it holds {name}, which is no JSON number")

    try:
        found = json.loads(body, parse_constant=refuse, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"the body is not valid JSON: {str(error)[:200]}.") from error
    if not isinstance(found, dict):
        raise InvalidInput("the body must be a JSON object.")
    return found


def _options(query: bytes) -> dict[str, Any]:
    """The options of a query; each value is JSON, or else a text."""
    try:
        pairs = parse_qsl(query.decode("ascii"), True, strict_parsing=bool(query), max_num_fields=20)
    except (ValueError, UnicodeDecodeError) as error:
        raise InvalidInput("the query must look like n=1000&alpha=0.001.") from error
    found: dict[str, Any] = {}
    for name, text in pairs:
        if name in found:
            raise InvalidInput(f"the option {name[:100]} is given twice.")
        found[name] = _value(text)
    return found


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _stop(value: Any) -> Stop | None:
    """A rule about radii, or a percentage; rules of other packages are the operator's to choose."""
    if value is None:
        return None
    named = isinstance(value, str) and value.strip()[:1].isalpha()
    if named and value.partition(":")[0].strip().lower() not in NORM_NAMES:
        raise InvalidInput(f'stop takes radii such as [0.25, 0.5] or a percentage such as "5%", got {_shown(value)}.')
    many = value if isinstance(value, list) else value.split(",") if isinstance(value, str) else [value]
    if len(many) > MOST_RADII or any(isinstance(one, bool | dict | list) for one in many):
        raise InvalidInput(f'stop takes up to {MOST_RADII} radii, or a percentage such as "5%", got {_shown(value)}.')
    return parse_stop(value)


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not -1e300 < value < 1e300:
        raise InvalidInput(f"{name} must be a number, got {_shown(value)}.")
    return float(value)


def _shown(value: Any) -> str:
    """A stranger's value in a message, cut short."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
