"""The description of the service: OpenAPI 3.1, and a page of it that loads nothing from elsewhere."""

from __future__ import annotations

import functools
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, select_autoescape

from ucan.choices import NORMS, norm_to_json
from ucan.data.pictures import FORMAT_NAMES
from ucan.version import __version__

NUMBER: dict[str, Any] = {"type": "number"}
INPUT: dict[str, Any] = {
    "description": "The input, of the shape that GET /v1/about states.",
    "oneOf": [
        {"type": "array", "items": {}, "description": "nested lists of numbers"},
        {
            "type": "object",
            "properties": {"npy": {"type": "string", "contentEncoding": "base64"}},
            "required": ["npy"],
            "description": "a base64 .npy array: float16, float32, float64, or uint8 (0 to 255 stand for 0 to 1)",
        },
        {
            "type": "object",
            "properties": {"image": {"type": "string", "contentEncoding": "base64"}},
            "required": ["image"],
            "description": f"a base64 picture: {FORMAT_NAMES}; 8 bits per channel",
        },
    ],
}
SHARED: dict[str, Any] = {
    "n": {"type": "integer", "minimum": 1, "description": "The most votes."},
    "alpha": {**NUMBER, "description": "The probability with which the claim may be false."},
    "seed": {
        "type": "integer",
        "minimum": 0,
        "description": "The seed, where the operator allows it. Default: secret.",
    },
    "deadline": {**NUMBER, "description": "Seconds until an answer is needed; after that it is an abstention."},
}
CERTIFY: dict[str, Any] = {
    **SHARED,
    "norm": {"enum": [*map(norm_to_json, NORMS)], "description": "The norm of the radius."},
    "stop": {
        "description": 'Stop early: a radius, several, a percentage such as "5%"; null: all n votes.',
        "oneOf": [NUMBER, {"type": "array", "items": NUMBER}, {"type": "string"}, {"type": "null"}],
    },
}
PREDICT: dict[str, Any] = {
    **SHARED,
    "stop": {"type": "boolean", "description": "Stop as soon as the answer is clear."},
}
ASK: dict[str, Any] = {
    **CERTIFY,
    "stop": {
        "description": "Stop early when the question is decided at this radius, before Σ, or at several; null: all n samples.",
        "oneOf": [NUMBER, {"type": "array", "items": NUMBER}, {"type": "string"}, {"type": "null"}],
    },
}
ERRORS = {
    "400": "The request is not valid; the message says why.",
    "401": "The token is missing or wrong.",
    "403": "The α of this server's life is spent; or, without a token, the request was not to localhost.",
    "408": "The body came too slowly.",
    "413": "The body is too large.",
    "415": "The content type is not supported.",
    "429": "Too many requests wait. Retry-After says when to try again.",
    "500": "The model failed on this input.",
    "503": "The service is stopping. Retry-After says when to try again.",
}


def openapi() -> dict[str, Any]:
    """The OpenAPI document."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "UCAN: a smoothed classifier", "version": __version__, "description": ABOUT},
        "security": [{"token": []}, {}],
        "paths": {
            "/v1/certify": {"post": _claim("Certify an input", CERTIFY, "a certificate or an abstention")},
            "/v1/predict": {"post": _claim("Predict the class of an input", PREDICT, "a prediction or an abstention")},
            "/v1/ask": {
                "post": _claim(
                    "Ask the service's question about an input, where it serves a run of `ucan ask`",
                    ASK,
                    "an answer (a record of format 4) or an abstention",
                    {"type": "object"},
                )
            },
            "/v1/about": {"get": _page("Shape, classes, norms, limits and defaults", "application/json")},
            "/v1/tensors/{file}": {
                "get": {
                    **_page("A large Σ or μ that an answer refers to by its hash", "application/octet-stream"),
                    "parameters": [{"name": "file", "in": "path", "required": True, "schema": {"type": "string"}}],
                }
            },
            "/healthz": {
                "get": {**_page("Whether the service answers: 200 or 503", "application/json"), "security": []}
            },
            "/metrics": {"get": _page("Numbers for Prometheus", "text/plain")},
        },
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {"Outcome": {"$ref": "/v1/certificate.schema.json"}},
        },
    }


ABOUT = (
    "Answers are claims about the smoothed classifier that was deployed, each false with probability at most alpha. Their "
    "scope says what is guaranteed. An abstention claims nothing and has a reason."
)


OUTCOME = {"$ref": "#/components/schemas/Outcome"}


def _claim(summary: str, options: dict[str, Any], answer: str, record: dict[str, Any] | None = None) -> dict[str, Any]:
    schema = {
        "type": "object",
        "required": ["input"],
        "additionalProperties": False,
        "properties": {"input": INPUT, **options},
    }
    raw = {"schema": {"type": "string", "format": "binary"}}
    query = [{"name": name, "in": "query", "schema": one} for name, one in options.items()]
    outcome = {"application/json": {"schema": OUTCOME if record is None else record}}
    return {
        "summary": summary,
        "parameters": query,
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": schema}, "application/x-npy": raw, "image/*": raw},
        },
        "responses": {
            "200": {"description": f"The answer: {answer}, with its evidence.", "content": outcome},
            **{status: {"description": text} for status, text in ERRORS.items()},
        },
    }


def _page(summary: str, content: str) -> dict[str, Any]:
    return {"summary": summary, "responses": {"200": {"description": summary, "content": {content: {}}}}}


@functools.cache
def certificate_schema() -> bytes:
    """The schema of answers, as it is stored with the package."""
    return (resources.files("ucan") / "certificate.schema.json").read_bytes()


@functools.cache
def docs_page(name: str) -> str:
    """The description as a page."""
    pages = Environment(loader=PackageLoader("ucan.service"), autoescape=select_autoescape(default=True))
    found = openapi()
    return pages.get_template("docs.html").render(name=name, api=found, errors=ERRORS)
