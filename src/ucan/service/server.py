"""One process that serves: a socket, Uvicorn, and an orderly end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ucan.errors import InvalidInput, MissingExtra
from ucan.service.application import Application, is_loopback
from ucan.service.service import Service

# The shortest token: shorter ones can be guessed.
SHORTEST_TOKEN = 16
# The most bytes of a request's headers.
HEADERS = 65_536
# Seconds that an idle connection is kept, and that a client has to read its answer at the end.
IDLE, LEAVING = 15, 10


def token_of(file: str | Path | None) -> str | None:
    """The bearer token: of a file, or of the environment variable UCAN_TOKEN; None if there is neither."""
    if file is not None:
        try:
            token = Path(file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInput(f"the token file {file} cannot be read: {error}.") from error
        where = str(file)
    elif "UCAN_TOKEN" in os.environ:
        token, where = os.environ["UCAN_TOKEN"].strip(), "UCAN_TOKEN"
    else:
        return None
    if len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidInput(
            f"the token of {where} must have at least {SHORTEST_TOKEN} printable ASCII characters, without spaces: "
            "`openssl rand -hex 32` makes one."
        )
    return token


def check_address(host: str, token: str | None) -> None:
    """Refuse to listen where others can reach it, without a token."""
    if token is None and not is_loopback(host):
        raise InvalidInput(
            f"{host} can be reached by others, so that requests need a token: give --token-file, or set UCAN_TOKEN."
        )


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 takes a free one."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise InvalidInput(
            f"the service cannot listen on {host}:{port}: {error}. Give another --host or --port."
        ) from error


def serve(service: Service, listener: socket.socket, drain: float) -> None:
    """Serve until SIGTERM or SIGINT; then finish what was begun within ``drain`` seconds, refuse the rest, and return."""
    try:
        import uvicorn
    except ImportError as error:
        raise MissingExtra("serving needs Uvicorn: pip install 'ucan[serve]'") from error

    class Quiet(uvicorn.Server):
        """Leaves signals to us: it would raise them again at its end."""

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    limits = service.job.limits
    config = uvicorn.Config(
        Application(service),
        http=_impatient(limits.slow),
        ws="none",
        lifespan="off",
        loop="asyncio",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=True,
        proxy_headers=False,
        timeout_keep_alive=IDLE,
        timeout_graceful_shutdown=LEAVING,
    )
    asyncio.run(_served(service, Quiet(config), listener, drain))


async def _served(service: Service, server: Any, listener: socket.socket, drain: float) -> None:
    leave, now = asyncio.Event(), asyncio.Event()

    def asked_to_leave() -> None:
        (now if leave.is_set() else leave).set()

    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    for number in before:
        loop.add_signal_handler(number, asked_to_leave)
    ending = asyncio.create_task(_drained(service, server, leave, now, drain))
    try:
        await server.serve(sockets=[listener])
    finally:
        ending.cancel()
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)


async def _drained(service: Service, server: Any, leave: asyncio.Event, now: asyncio.Event, drain: float) -> None:
    """Wait for a signal, then until all is answered: new requests are refused from then on, with Retry-After."""
    await leave.wait()
    worker = service.worker
    worker.drain()
    last = asyncio.get_running_loop().time() + drain
    while worker.is_alive() and not now.is_set() and asyncio.get_running_loop().time() < last:
        await asyncio.sleep(0.02)
    worker.refuse_rest()
    while worker.is_alive():
        await asyncio.sleep(0.02)
    await asyncio.sleep(0.1)  # what was answered last is on its way
    server.should_exit = True


def _impatient(seconds: float) -> type[Any]:
    """Uvicorn's protocol, which closes a connection whose headers do not arrive in time, or have no end."""
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    base: Any = AutoHTTPProtocol

    class Impatient(base):  # type: ignore[misc]
        guard: asyncio.TimerHandle | None = None
        unread = 0

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._watch(transport)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is None or self.cycle.response_complete:
                self.unread += len(data)
                self._watch(self.transport)
                if self.unread > HEADERS:
                    self.transport.close()
                return
            self.unread = 0
            if self.guard is not None:
                self.guard.cancel()
                self.guard = None

        def connection_lost(self, exc: Exception | None) -> None:
            if self.guard is not None:
                self.guard.cancel()
                self.guard = None
            super().connection_lost(exc)

        def _watch(self, transport: Any) -> None:
            """From the first byte of headers, or from the beginning, on."""
            if self.guard is None:
                self.guard = asyncio.get_running_loop().call_later(seconds, self._late, transport)

        def _late(self, transport: Any) -> None:
            self.guard = None
            if self.cycle is None or self.cycle.response_complete:
                transport.close()

    return Impatient
