"""The same application on Ray Serve: several copies, on the GPUs of one machine or of many."""

from __future__ import annotations

import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

from ucan.errors import ClusterError, InvalidInput, MissingExtra
from ucan.service.application import Application
from ucan.service.service import ServeJob, Service

NAME = "ucan"


def application(job: ServeJob, replicas: int = 1, gpus: float = 0) -> Any:
    """The service as a Ray Serve application, for ``ray.serve.run``.

    Every replica is a whole service: its own copy of the classifier, its own queue. A registry must be a file that all of
    them share. A budget of α is refused: Ray starts a replica again that has ended, and would begin its budget anew.
    """
    if job.limits.alpha_budget is not None:
        raise InvalidInput("a budget of α is counted by one process: leave out --alpha-budget, or --replicas.")
    serve = _ray_serve()

    def build() -> Application:
        return Application(Service.open(job))

    deployment = serve.deployment(
        name=NAME,
        num_replicas=replicas,
        max_ongoing_requests=job.limits.queue + 64,  # our queue says no, and says when to try again
        ray_actor_options={"num_cpus": 1, "num_gpus": gpus},
        graceful_shutdown_timeout_s=60,
    )(serve.ingress(build)())
    return deployment.bind()


def serve_replicas(job: ServeJob, host: str, port: int, replicas: int, cluster: str | None) -> None:
    """Run so many copies until SIGTERM or SIGINT."""
    if port == 0:
        raise InvalidInput("Ray Serve needs a port: give --port.")
    serve = _ray_serve()
    import ray

    job = replace(
        job,
        run=str(Path(job.run).resolve()),
        registry=_absolute(job.registry),
        weights=_absolute(job.weights),
        log=None if job.log == "-" else _absolute(job.log),  # Ray collects what replicas print
    )
    try:
        own = {"include_dashboard": False} if cluster is None else {"address": cluster}
        ray.init(ignore_reinit_error=True, log_to_driver=False, **own)
        gpus = 1 if ray.cluster_resources().get("GPU", 0) >= replicas else 0
        serve.start(http_options={"host": host, "port": port})
        serve.run(application(job, replicas, gpus), name=NAME, route_prefix="/")
    except RuntimeError as error:
        raise ClusterError(f"Ray Serve did not start: {error}") from error
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):  # not before: Ray sets handlers of its own
        signal.signal(number, lambda *_: ended.set())
    print(f"{replicas} replicas on http://{host}:{port}\nPress Ctrl-C to stop.", flush=True)
    ended.wait()
    serve.shutdown()
    ray.shutdown()


def _absolute(path: str | None) -> str | None:
    """Replicas start in another folder."""
    return None if path is None else str(Path(path).resolve())


def _ray_serve() -> Any:
    try:
        from ray import serve
    except ImportError as error:
        raise MissingExtra("several replicas need Ray Serve: pip install 'ucan[serve-cluster]'") from error
    return serve
