"""A client of the service; it needs nothing but Python's standard library besides UCAN."""

from __future__ import annotations

import base64
import http.client
import io
import json
import math
import os
import re
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import SplitResult, urlsplit

import numpy as np
import torch

from ucan.certificate import Abstention, Certificate, Level, Prediction
from ucan.choices import norm_from_json, norm_to_json
from ucan.data.labelled import as_pixels
from ucan.errors import InvalidInput, ServiceError
from ucan.json_text import parse_json
from ucan.questions.record import Answer
from ucan.questions.records import from_dict
from ucan.sidecar import FILE_NAME

TENSORS = re.compile(f"^{FILE_NAME}$")
# A service reads numbers in one of these: that of its run's data.
PRECISIONS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
# Seconds between two tries where the service does not say.
PAUSE = 0.2

T = TypeVar("T")


class _Connection:
    """A connection of one thread, closed with the thread."""

    def __init__(self, made: http.client.HTTPConnection) -> None:
        self.made = made

    def __del__(self) -> None:
        self.made.close()


class Client:
    """Asks a service of ``ucan serve``; its answers are the records of ``g.certify`` and ``g.predict``.

    A record about another input, shape or norm than was asked about, at a larger α or with more votes, is a ServiceError. Of
    scope ``registry`` only shape and norm are compared: such an answer may be that of an input enrolled before.

    Args:
        url: the address that ``ucan serve`` printed, such as "http://127.0.0.1:8000".
        token: the bearer token; that of UCAN_TOKEN if None.
        timeout: seconds to wait for a connection and for an answer.
        patience: seconds to go on trying while the service is busy (429) or stopping (503).

    Several threads may share a client; each has a connection of its own.
    """

    def __init__(self, url: str, token: str | None = None, timeout: float = 120.0, patience: float = 60.0) -> None:
        self._parts = _address(url)
        self.url = url.rstrip("/")
        self._token = _token(os.environ.get("UCAN_TOKEN") if token is None else token)
        self.timeout, self.patience = timeout, patience
        self._own = threading.local()

    def __repr__(self) -> str:
        return f"Client({self.url!r})"

    def certify(self, x: Any, **options: Any) -> Certificate | Abstention:
        """The certificate of one input, a tensor or an array (*event) or (1, *event).

        Options: n, alpha, norm, stop, deadline, and seed where the service allows it.
        """
        return self._of(Certificate, self._asked("certify", x, options))

    def predict(self, x: Any, **options: Any) -> Prediction | Abstention:
        """The smoothed classifier's answer for one input. Options: n, alpha, stop (bool), deadline, seed."""
        return self._of(Prediction, self._asked("predict", x, options))

    def ask(self, x: Any, **options: Any) -> Answer | Abstention:
        """The answer to the service's question about one input, as ``certify`` of the library gives it.

        Options: n, alpha, norm, stop, deadline, and seed where the service allows it.
        """
        return self._of(Answer, self._asked("ask", x, options))

    def about(self) -> dict[str, Any]:
        """The service's shape, classes, norms, limits and defaults."""
        return self._object(self._get("/v1/about"))

    def metrics(self) -> str:
        """The service's numbers, in Prometheus's format."""
        return self._get("/metrics").decode()

    def healthy(self) -> bool:
        """Whether the service answers and is well."""
        try:
            return self._once("GET", "/healthz", None)[0] == 200
        except (OSError, http.client.HTTPException):
            self.close()  # the next question begins anew
            return False

    def post(self, kind: str, x: Any, options: dict[str, Any]) -> dict[str, Any]:
        """An answer as plain JSON values."""
        norm = {"norm": norm_to_json(options["norm"])} if "norm" in options else {}
        body = json.dumps({"input": {"npy": _npy(x)}, **options, **norm}, default=_plain).encode()
        return self._object(self._patiently("POST", f"/v1/{kind}", body))

    def close(self) -> None:
        """Close this thread's connection."""
        self._own.connection = None

    def _object(self, data: bytes) -> dict[str, Any]:
        """The JSON object of an answer."""
        try:
            found = parse_json(data.decode())
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise ServiceError(f"{self.url} does not answer as a service of `ucan serve` does: is it another program?")
        return found

    def _of(self, kind: type[T], outcome: Certificate | Abstention | Prediction | Answer) -> T | Abstention:
        """The outcome, of that kind or an abstention."""
        if isinstance(outcome, kind | Abstention):
            return outcome
        raise ServiceError(f"{self.url} answered another question than was asked: is it another version?")

    def _asked(self, kind: str, x: Any, options: dict[str, Any]) -> Certificate | Abstention | Prediction | Answer:
        outcome = self._restored(self.post(kind, x, options))
        if other := _mismatch(outcome, x, options):
            raise ServiceError(f"{self.url} answered something else than was asked: {other}. Do not rely on it.")
        return outcome

    def _restored(self, record: dict[str, Any]) -> Certificate | Abstention | Prediction | Answer:
        """The outcome of a record, with its files of tensors."""
        names = [name for name in _files(record) if TENSORS.match(name)]
        if not names:
            return _whole(from_dict(record))
        with tempfile.TemporaryDirectory(prefix="ucan-client-") as folder:
            for name in names:
                (Path(folder) / name).write_bytes(self._get(f"/v1/tensors/{name}"))
            return _whole(from_dict(record, folder))

    def _get(self, path: str) -> bytes:
        return self._patiently("GET", path, None)

    def _patiently(self, method: str, path: str, body: bytes | None) -> bytes:
        """The body of an answer; tries again while the service is busy, or its connection was closed in between."""
        last, failed = time.monotonic() + self.patience, 0
        while True:
            pause = PAUSE
            try:
                status, headers, data = self._once(method, path, body)
            except (OSError, http.client.HTTPException) as error:
                self.close()
                failed += 1
                if failed > 2 or isinstance(error, TimeoutError):
                    raise ServiceError(f"{self.url} cannot be reached: {error or type(error).__name__}.") from error
            else:
                if status == 200:
                    return data
                told = _error(data)
                waits = headers.get("retry-after")
                if status not in (429, 503) or waits is None or time.monotonic() >= last:
                    raise ServiceError(f"{self.url}: {told[1]} ({status})", status, told[0])
                pause = max(PAUSE, min(_seconds(waits), last - time.monotonic()))
            time.sleep(pause)

    def _once(self, method: str, path: str, body: bytes | None) -> tuple[int, dict[str, str], bytes]:
        held = getattr(self._own, "connection", None)
        if held is None:
            kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
            host = self._parts.hostname
            assert host is not None, "it was checked"
            held = self._own.connection = _Connection(kind(host, self._parts.port, timeout=self.timeout))
        connection = held.made
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        # A body may be refused before its end; the answer says why.
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.request(method, self._parts.path.rstrip("/") + path, body, headers)
        response = connection.getresponse()
        return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()


def _address(url: str) -> SplitResult:
    """The parts of a service's address."""
    with suppress(ValueError, TypeError, AttributeError):  # a port that is no number, brackets without an end
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port):
            return parts
    raise InvalidInput(f"url must look like http://127.0.0.1:8000, got {url!r}.")


def _token(text: str | None) -> str | None:
    """A token as a header may have it: without the line end of the file that it was read from."""
    found = None if text is None else text.strip()
    if found is not None and not (found.isascii() and found.isprintable()):
        raise InvalidInput("the token must consist of printable ASCII characters.")
    return found


def _seconds(text: str) -> float:
    """The seconds of a Retry-After; a proxy may give a date, for which it is asked again soon."""
    with suppress(ValueError):
        return float(text) if math.isfinite(float(text)) else PAUSE
    return PAUSE


def _array(x: Any) -> np.ndarray:
    """An input as it is sent."""
    if hasattr(x, "detach"):
        x = x.detach().cpu()
        x = x.float() if x.is_floating_point() and x.element_size() == 2 else x  # NumPy has no bfloat16
    return np.asarray(x)


def _npy(x: Any) -> str:
    """An array as a base64 .npy."""
    file = io.BytesIO()
    try:
        np.save(file, _array(x), allow_pickle=False)
    except (ValueError, TypeError) as error:
        raise InvalidInput("the input must be a tensor or an array of numbers.") from error
    return base64.b64encode(file.getvalue()).decode()


def _plain(value: Any) -> Any:
    """A NumPy number or an array of an option as plain values."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise InvalidInput(f"an option must be a number, a text or a list of them, got a {type(value).__name__}.")


def _files(entry: Any) -> list[str]:
    """The files of tensors that a record refers to."""
    if isinstance(entry, dict):
        own = [entry["file"]] if isinstance(entry.get("file"), str) else []
        return own + [name for value in entry.values() for name in _files(value)]
    return [name for value in entry for name in _files(value)] if isinstance(entry, list) else []


def _error(data: bytes) -> tuple[str, str]:
    try:
        found = json.loads(data)
        return str(found["error"]), str(found["message"])
    except (ValueError, KeyError, TypeError):
        return "unknown", data[:200].decode(errors="replace")


def _mismatch(outcome: Certificate | Abstention | Prediction | Answer, x: Any, options: dict[str, Any]) -> str:
    """How an outcome differs from what was asked about x, in words; empty if it fits."""
    shape, region = tuple(np.shape(x)), outcome.region if isinstance(outcome, Certificate | Answer) else None
    if region is not None and tuple(region.shape) not in (shape, shape[1:] if shape[:1] == (1,) else shape):
        return f"it is about inputs of shape {tuple(region.shape)}, and this one has {shape}"
    if options.get("norm") is not None and outcome.norm != norm_from_json(norm_to_json(options["norm"])):
        return f"it is about norm {outcome.norm}, and {options['norm']} was asked for"
    if outcome.scope == "registry":  # its votes may be those of an input enrolled before, with the options of that time
        return ""
    evidence = outcome.evidence
    if not any(evidence.is_about(read) for read in _readings(x)):
        return "it is about another input"
    for name, own, room in (("alpha", outcome.alpha, 1e-9), ("n", evidence.n, 0.0)):
        asked = _plain(options[name]) if hasattr(options.get(name), "tolist") else options.get(name)
        if isinstance(asked, int | float) and not own <= asked * (1 + room):
            return f"its {name} is {own:g}, and {asked:g} was asked for"
    return ""


def _readings(x: Any) -> list[torch.Tensor]:
    """An input as a service may read it: bytes as 0 to 1, numbers in each precision."""
    sent = _array(x)
    numbers = (
        as_pixels(torch.from_numpy(np.array(sent, order="C")))
        if sent.dtype == np.uint8
        else torch.tensor(sent.astype(np.float64))
    )
    return [numbers.to(precision) for precision in PRECISIONS]


def _whole(
    outcome: Certificate | Abstention | Prediction | Level | Answer,
) -> Certificate | Abstention | Prediction | Answer:
    """The outcome; a router's choice alone is no answer."""
    if isinstance(outcome, Level):
        raise ServiceError("the service answered with a router's choice alone: is it another version?")
    return outcome
