"""The service over HTTP, as an ASGI application: any ASGI server runs it, Uvicorn and Ray Serve among them."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from ucan.errors import InvalidInput
from ucan.service.asked import Asked, Kind
from ucan.service.openapi import certificate_schema, docs_page, openapi
from ucan.service.service import Reply, Service, described, refused
from ucan.service.task import Refusal
from ucan.sidecar import FILE_NAME

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

JSON = b"application/json"
KINDS: dict[str, Kind] = {"/v1/certify": "certify", "/v1/predict": "predict", "/v1/ask": "ask"}
TENSORS = re.compile(f"^/v1/tensors/({FILE_NAME})$")
PICTURES = re.compile(r"^image/[a-z0-9.+-]{1,40}$")
# Bodies above this are decoded beside the event loop, which goes on answering others.
LARGE = 65_536
# Requests that are read or answered at once, beyond those that the queue holds.
SPARE = 1000
OPEN = ("/healthz", "/docs", "/openapi.json", "/v1/certificate.schema.json")


class _Refused(Exception):
    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


class _Gone(Exception):
    """The client has hung up."""


class Application:
    """POST /v1/certify, /v1/predict and /v1/ask; GET /v1/about, /v1/tensors/…, /healthz, /metrics, /docs, /openapi.json."""

    def __init__(self, service: Service) -> None:
        self.service = service
        token = service.job.token
        self._token = None if token is None else token.encode("latin-1")
        self._present = 0
        self._decoding = asyncio.Semaphore(2)  # a picture of a few bytes may take much memory

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        request_id = self.service.request_id()
        self._present += 1
        try:
            reply, content, entry = await self._answered(scope, receive)
        except _Gone:
            self.service.metrics.add("ucan_requests_total", path=_known_path(scope["path"]), status="499")
            self.service.log(id=request_id, path=_known_path(scope["path"]), status=499)
            return
        finally:
            self._present -= 1
        path = _known_path(scope["path"])
        self.service.metrics.add("ucan_requests_total", path=path, status=str(reply.status))
        if scope["method"] == "POST":
            self.service.log(id=request_id, path=path, status=reply.status, **entry)
        headers = [(b"content-type", content), (b"content-length", str(len(reply.body)).encode())]
        headers += [(b"x-request-id", request_id.encode()), (b"cache-control", b"no-store")]
        headers += [(b"x-content-type-options", b"nosniff")]
        if reply.retry_after is not None:
            headers.append((b"retry-after", str(reply.retry_after).encode()))
        if reply.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        if self.service.worker.draining or reply.status in (408, 413):
            headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        await send({"type": "http.response.body", "body": reply.body})

    async def _answered(self, scope: Scope, receive: Receive) -> tuple[Reply, bytes, dict[str, Any]]:
        """The reply, its content type, and what the log says of it."""
        try:
            self._admit(scope)
            kind = KINDS.get(scope["path"])
            if kind is None:
                return (*self._page(scope), {})
            if self._present > self.service.job.limits.queue + SPARE:
                raise _Refused(Refusal(503, "crowded", "too many requests at once: try again.", 1))
            if scope["method"] != "POST":
                raise _Refused(Refusal(405, "method", f"{scope['path']} takes POST."))
            began = time.monotonic()
            asked = await self._asked(kind, scope, receive)
            reply, entry = await self._result(asked, receive)
            self.service.metrics.observe(time.monotonic() - began)
            return reply, JSON, {**entry, "ms": round(1e3 * (time.monotonic() - began), 3)}
        except _Refused as error:
            return refused(error.refusal), JSON, {"error": error.refusal.code}
        except _Gone:
            raise
        except Exception as error:  # ours: one request's bug is not the others'
            return (
                refused(Refusal(500, "internal", "the service failed on this request.")),
                JSON,
                {"error": repr(error)},
            )

    def _admit(self, scope: Scope) -> None:
        """Refuse who may not ask, before anything is read."""
        if self._token is None:
            host = _header(scope, b"host") or ""
            if not is_loopback(host.rpartition(":")[0].strip("[]") if re.search(r":\d+$", host) else host.strip("[]")):
                # A page in a browser can make any name mean this machine; it cannot make it mean localhost.
                said = "without a token only requests to localhost are answered: use that name, or set a token."
                raise _Refused(Refusal(403, "host", said))
            return
        if scope["path"] in OPEN:
            return
        kind, _, given = (_header(scope, b"authorization") or "").partition(" ")
        if kind.lower() != "bearer" or not hmac.compare_digest(given.strip().encode("latin-1"), self._token):
            raise _Refused(Refusal(401, "token", "give the service's token: Authorization: Bearer …"))

    def _page(self, scope: Scope) -> tuple[Reply, bytes]:
        """Everything but claims."""
        path, service = scope["path"], self.service
        if scope["method"] not in ("GET", "HEAD"):
            raise _Refused(Refusal(405 if path in OPEN else 404, "method", f"there is no {path} to send anything to."))
        if path == "/healthz":
            draining, well = service.worker.draining, service.worker.well
            status = "draining" if draining else "ok" if well else "failing"
            reply = Reply(200 if status == "ok" else 503, json.dumps({"status": status}).encode())
            return reply, JSON
        if path == "/metrics":
            return Reply(200, service.metrics.text().encode()), b"text/plain; version=0.0.4; charset=utf-8"
        if path == "/docs":
            return Reply(200, docs_page(service.deployed.name).encode()), b"text/html; charset=utf-8"
        if path == "/openapi.json":
            return Reply(200, json.dumps(openapi()).encode()), JSON
        if path == "/v1/certificate.schema.json":
            return Reply(200, certificate_schema()), JSON
        if path == "/v1/about":
            return Reply(200, json.dumps(service.about(), ensure_ascii=False).encode()), JSON
        if found := TENSORS.match(path):
            data = service.tensors(found[1])
            if data is not None:
                return Reply(200, data), b"application/octet-stream"
        raise _Refused(Refusal(404, "path", "there is nothing here: GET /docs lists what there is."))

    async def _asked(self, kind: Kind, scope: Scope, receive: Receive) -> Asked:
        """The request, read and checked."""
        content = (_header(scope, b"content-type") or "").partition(";")[0].strip().lower()
        if content not in ("application/json", "application/x-npy") and not PICTURES.match(content):
            said = "Content-Type must be application/json, application/x-npy, or image/… for a picture."
            raise _Refused(Refusal(415, "content-type", said))
        body = await self._body(scope, receive)
        try:
            given = (kind, content, scope.get("query_string", b""), body)
            if len(body) <= LARGE and content == "application/json":
                return self.service.offer.read(*given)
            async with self._decoding:
                return await asyncio.to_thread(self.service.offer.read, *given)
        except InvalidInput as error:
            raise _Refused(Refusal(400, "request", str(error))) from error

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        """The body, up to the limits of size and time."""
        limits = self.service.job.limits
        said = f"the body is larger than {limits.body:,} bytes, which is the most."
        length = _header(scope, b"content-length")
        if length is not None and (not length.isdigit() or int(length[:20]) > limits.body):
            raise _Refused(Refusal(413, "too-large", said))
        parts, size = list[bytes](), 0
        try:
            async with asyncio.timeout(limits.slow):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _Gone
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > limits.body:
                        raise _Refused(Refusal(413, "too-large", said))
                    if not message.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError as error:
            late = f"the body did not arrive within {limits.slow:g} s."
            raise _Refused(Refusal(408, "slow", late)) from error

    async def _result(self, asked: Asked, receive: Receive) -> tuple[Reply, dict[str, Any]]:
        """The worker's answer; the work is dropped if the client hangs up."""
        future, task = self.service.submit(asked)
        if isinstance(task, Refusal):
            return refused(task), dict(described(asked, task))
        leaving = asyncio.ensure_future(receive())
        either: set[asyncio.Future[Any]] = {future, leaving}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not future.done():
                task.gone = True
                raise _Gone
        finally:
            leaving.cancel()
        answer = future.result()
        return answer.reply, dict(answer.entry)


def is_loopback(host: str) -> bool:
    """Whether a host name means this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _known_path(path: str) -> str:
    """A path as metrics and logs have it: never a stranger's text."""
    if TENSORS.match(path):
        return "/v1/tensors"
    return path if path in (*KINDS, *OPEN, "/metrics", "/v1/about") else "other"


def _header(scope: Scope, name: bytes) -> str | None:
    found = next((value for key, value in scope["headers"] if key == name), None)
    return None if found is None else found.decode("latin-1")


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
