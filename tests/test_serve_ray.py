"""The same application on Ray Serve, with two replicas on this machine."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from served import inputs, thirds
from ucan import Client, Gaussian, SmoothedClassifier
from ucan.runs.certify import CertifyJob, certify

pytest.importorskip("ray.serve")
pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]
XS = inputs()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def test_two_replicas_answer_as_the_library_does(tmp_path):
    np.savez(tmp_path / "data.npz", x=XS.numpy(), y=np.zeros(len(XS), np.int64))
    job = CertifyJob(model="served:thirds", data=str(tmp_path / "data.npz"), law="gaussian", scale=0.25, n=400)
    certify(job, tmp_path / "run")
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path, "RAY_USAGE_STATS_ENABLED": "0"}
    words = ["serve", "run", "--replicas", "2", "--port", str(free_port()), "--log", str(tmp_path / "log")]
    with subprocess.Popen(
        [sys.executable, "-m", "ucan", *words], stdout=subprocess.PIPE, text=True, env=env, cwd=tmp_path
    ) as process:
        try:
            lines = iter(process.stdout.readline, "")
            url = next(found[0] for line in lines if (found := re.search(r"http://127[\d.:]+", line)))
            compare(url)
            process.send_signal(signal.SIGTERM)
            assert process.wait(120) == 0
        finally:
            process.kill()
    logged = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert len({line["id"].split("-")[0] for line in logged}) == 2  # both have answered
    assert {line["status"] for line in logged} == {200}


def as_json(outcome: Any) -> Any:
    return json.loads(json.dumps(outcome.to_dict()))


def compare(url: str) -> None:
    g, wrong = SmoothedClassifier(thirds(), Gaussian(0.25), None, 3), []
    g.check_inputs(XS)
    options = [
        {"n": 1000, "stop": [0.1, 0.25]},
        {"n": 500, "alpha": 0.01},
        {"n": 900, "norm": float("inf")},
        {"n": 2000},
    ]

    def ask(number: int) -> None:
        client = Client(url)
        for i in range(number, len(XS), 4):
            asked = {**options[number], "seed": 10 * number + i}
            (wanted,) = g.certify(XS[i : i + 1], **asked)
            (likely,) = g.predict(XS[i : i + 1], n=200, seed=i)
            found = [client.certify(XS[i], **asked), client.predict(XS[i], n=200, seed=i)]
            if list(map(as_json, found)) != list(map(as_json, (wanted, likely))):
                wrong.append((i, asked))
        client.close()

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
