"""`ucan explore`: one run in a local web page."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
import threading
from pathlib import Path
from typing import Annotated

import typer

from ucan.cli import words
from ucan.errors import InvalidInput, MissingExtra


def explore(
    run: Annotated[Path, typer.Argument(help="The folder of a `ucan certify`, `ucan train` or `ucan ask` run.")],
    model: words.MovedModelOption = None,
    source: words.MovedDataOption = None,
    weights: words.WeightsOption = None,
    host: Annotated[str, typer.Option(help="The address to listen on. Default: this machine only.")] = words.LOOPBACK,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="The port. Default: the first free one from 7860 on.")
    ] = None,
    device: words.DeviceOption = "auto",
    trust: words.TrustOption = False,
) -> None:
    """Open a run in the browser: certify a picture or a row of a table, and try the certificate.

    Choose an input of the run or upload a picture, change λ, n and α, and see the noise and the votes. A picture can be
    attacked; the values of a row can be changed. A run of `ucan ask` shows its answers, which can be checked and attacked.
    Everything runs on this machine. Press Ctrl-C to stop.

    Example: `ucan explore runs/mine`
    """
    from ucan.app.answers import AnswersSession
    from ucan.app.session import Session
    from ucan.runs.asked import is_ask_run
    from ucan.runs.jobs import device_of
    from ucan.service.application import is_loopback

    kind = AnswersSession if is_ask_run(run) else Session
    session = kind.open(run, model, source, weights, device_of(device), trust)
    with tempfile.TemporaryDirectory(prefix="ucan-explore-") as uploads:
        # Gradio reads both on import or when a page is made. They turn off its telemetry and keep uploads in a
        # temporary folder.
        os.environ.update(GRADIO_ANALYTICS_ENABLED="False", GRADIO_TEMP_DIR=uploads)
        try:
            from ucan.app.page import serve
        except ImportError as error:
            raise MissingExtra("exploring needs Gradio: pip install 'ucan[app]'") from error
        if not is_loopback(host):
            print(
                f"ucan: listening on {host}: anyone who can reach this machine can use the page and upload pictures. "
                f"There is no password.",
                file=sys.stderr,
            )
        try:
            _check_listening(host, port)
            page, address = serve(session, host, port)
        except OSError as error:
            where = f"{host}:{port}" if port is not None else host
            raise InvalidInput(
                f"the page cannot listen on {where}: it is in use or not permitted. Give another --host or --port."
            ) from error
        print(f"{session.name}: {address}\nPress Ctrl-C to stop.", flush=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            print("\nStopped.")
        finally:
            page.close(verbose=False)


def _check_listening(host: str, port: int | None) -> None:
    """Raise OSError if the address cannot be used; Gradio would try many ports instead."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port or 0, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        if os.name == "posix":  # elsewhere this would let two programs share the port
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)
