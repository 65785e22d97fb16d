"""`ucan serve`: a run's smoothed classifier over HTTP."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ucan.cli import words

if TYPE_CHECKING:
    from ucan.service.service import ServeJob


def serve(
    run: Annotated[Path, typer.Argument(help="The folder of a `ucan certify`, `ucan train` or `ucan ask` run.")],
    host: Annotated[str, typer.Option(help="The address to listen on. Default: this machine only.")] = words.LOOPBACK,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")] = 8000,
    registry: Annotated[
        Path | None,
        typer.Option(help="A registry: answers then hold across requests, processes and restarts (scope `registry`)."),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(help="A file with the bearer token that requests need. Default: UCAN_TOKEN, if it is set."),
    ] = None,
    model: words.MovedModelOption = None,
    source: words.MovedDataOption = None,
    weights: words.WeightsOption = None,
    device: words.DeviceOption = "auto",
    max_n: Annotated[int, typer.Option(min=1, help="The most votes per request.")] = 100_000,
    min_alpha: Annotated[float, typer.Option(help="The smallest α that may be asked for.")] = 1e-9,
    max_alpha: Annotated[float, typer.Option(help="The largest α that may be asked for.")] = 0.05,
    norms: Annotated[
        str | None, typer.Option(help="The norms that may be asked for, such as 2,inf. Default: all of the noise.")
    ] = None,
    allow_seed: Annotated[
        bool | None,
        typer.Option(
            "--allow-seed/--no-seed",
            help="Whether requests may choose their seed; whoever does can find a false certificate. Default: only if the "
            "service listens on this machine alone.",
        ),
    ] = None,
    alpha_budget: Annotated[
        float | None, typer.Option(help="The most that α may add up to in this server's life. Default: unlimited.")
    ] = None,
    deadline: Annotated[float, typer.Option(help="The longest time to an answer, in seconds.")] = 60.0,
    queue: Annotated[int, typer.Option(min=1, help="The most requests that wait; further ones get 429.")] = 256,
    max_body: Annotated[int, typer.Option(min=1, help="The largest body of a request, in bytes.")] = 10_000_000,
    slow: Annotated[float, typer.Option(help="Seconds for headers, and for a body, to arrive.")] = 10.0,
    drain: Annotated[
        float, typer.Option(help="Seconds to finish requests after SIGTERM; then they are refused.")
    ] = 30.0,
    log: Annotated[
        str, typer.Option(help="Where the log goes, as JSON lines: a file, - (standard error) or none.")
    ] = "-",
    replicas: Annotated[
        int | None,
        typer.Option(min=1, help="Run on Ray Serve with so many copies, each on its own GPU if there are any."),
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(help="The address of the Ray cluster for --replicas. Default: this machine.")
    ] = None,
    trust: words.TrustOption = False,
) -> None:
    """Answer predictions and certificates over HTTP, with the smoothed classifier of a run.

    Votes of concurrent requests share forward passes. Seeds are secret unless a request may choose them. Stop it with
    Ctrl-C or SIGTERM: requests that were begun are finished. GET /docs describes the interface.

    Example: `ucan serve runs/mine --port 8000`
    """
    from ucan.service.application import is_loopback
    from ucan.service.limits import Limits
    from ucan.service.server import check_address, token_of
    from ucan.service.service import ServeJob

    token = token_of(token_file)
    check_address(host, token)
    limits = Limits(
        n=max_n,
        least_alpha=min_alpha,
        alpha=max_alpha,
        norms=None if norms is None else _norms(norms),
        seeds=is_loopback(host) if allow_seed is None else allow_seed,
        deadline=deadline,
        queue=queue,
        body=max_body,
        slow=slow,
        alpha_budget=alpha_budget,
    )
    job = ServeJob(
        run=str(run),
        model=model,
        weights=None if weights is None else str(weights),
        data=source,
        device=device,
        registry=None if registry is None else str(registry),
        limits=limits,
        token=token,
        log=None if log == "none" else log,
        trust=trust,
    )
    if replicas is not None:
        from ucan.service.replicas import serve_replicas

        serve_replicas(job, host, port, replicas, cluster)
    else:
        _serve_here(job, host, port, drain)


def _serve_here(job: ServeJob, host: str, port: int, drain: float) -> None:
    """Serve from this process until it is told to stop."""
    from ucan.service.server import listening
    from ucan.service.server import serve as serving
    from ucan.service.service import Service

    with listening(host, port) as listener:
        service = Service.open(job)
        if service.deployed.remembers is not None and job.registry is None:
            print(
                f"ucan: this run answered through the registry {service.deployed.remembers}; without --registry the answers "
                f"have scope {service.scope}.",
                file=sys.stderr,
            )
        if service.scope == "frozen":
            print(
                "ucan: scope frozen: each guarantee is about the classifier whose noise is held at that input, and not about "
                "this service, which computes noise anew. --registry makes it hold "
                "(documentation page “A classifier with a memory”).",
                file=sys.stderr,
            )
        address = f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
        print(f"{service.deployed.name}: {address} (scope {service.scope})\nPress Ctrl-C to stop.", flush=True)
        try:
            serving(service, listener, drain)
        finally:
            service.close()


def _norms(text: str) -> tuple[float, ...]:
    from ucan.choices import NORMS, norm_word
    from ucan.errors import InvalidInput

    known = {norm_word(norm): norm for norm in NORMS}
    found = [part.strip() for part in text.split(",")]
    if not set(found) <= set(known):
        raise InvalidInput(f"--norms takes 1, 2 and inf, with commas, got {text!r}.")
    return tuple(known[part] for part in found)
