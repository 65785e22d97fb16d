"""On Ray itself: the same rows as one process while workers, nodes and the driver are killed."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from ucan import CertificationWise, Gaussian, SmoothedClassifier
from ucan.cluster import spread
from ucan.results import Store

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc")

SOURCE = Path(__file__).parents[1] / "src"


def children(of: int) -> dict[int, str]:
    """The processes below one, by number, with what they are called."""
    parents, names = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat, line = (entry / "stat").read_text(), (entry / "cmdline").read_bytes()
            except OSError:  # it has just ended
                continue
            state, parent = stat.rpartition(")")[2].split()[:2]
            if state != "Z":
                parents[int(entry.name)], names[int(entry.name)] = int(parent), line.decode(errors="replace")
    below = {of}
    while more := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= more
    return {pid: names[pid] for pid in below - {of}}


def workers(of: int) -> list[int]:
    return [pid for pid, name in children(of).items() if name.startswith("ray::Worker")]


def end(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:  # it was quicker
        return


def smoothed():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 4)).eval()
    return SmoothedClassifier(model, Gaussian(0.5), CertificationWise(1, features=2, growth=2), 4)


XS = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))
OPTIONS = {"n": 20_000, "seed": 1}


def test_rows_are_those_of_one_process_and_a_killed_worker_is_made_up_for():
    g, told = smoothed(), []
    with spread(g, "local", workers=2, tell=told.append) as h:
        assert [c.to_dict() for c in h.certify(XS, **OPTIONS)] == [c.to_dict() for c in g.certify(XS, **OPTIONS)]
        for _ in range(1000):  # on a busy machine the second is long in coming, and only a worker that is there is lost
            if all(member.ready for member in h.engine.pool.members):
                break
            h.certify(XS, **OPTIONS)
            time.sleep(0.1)
        before = workers(os.getpid())
        assert len(before) == 2
        hit = iter([before[0]])
        h.engine.on_votes = lambda n: [end(pid) for pid in [next(hit, None)] if pid]
        found = h.certify(XS, **OPTIONS, stop=[0.1, 0.4])
        assert [c.to_dict() for c in found] == [c.to_dict() for c in g.certify(XS, **OPTIONS, stop=[0.1, 0.4])]
        h.engine.on_votes = None
        noticed = False
        for _ in range(1000):  # a busy machine takes a while to tell
            h.certify(XS, **OPTIONS)
            noticed = any("was lost; its work is repeated" in line for line in told)
            if noticed:
                break
            time.sleep(0.1)
        assert noticed
    assert not ray.is_initialized() and not workers(os.getpid())


MODULE = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(torch.nn.Conv2d(1, 32, 3), torch.nn.Flatten(), torch.nn.Linear(32 * 36, 10))
    def forward(self, batch):
        return self.layers(batch)
"""
WORDS = ["certify", "--model", "nets:Net", "--data", "digits", "--max", "40", "--n", "10000", "--batch-size", "256"]


def start(place: Path, out: str, *more: str) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "ucan", *WORDS, "-o", out, *more]
    with open(place / f"{out}.log", "a") as log:
        return subprocess.Popen(words, cwd=place, env=environment, stdout=log, stderr=log)


def rows(folder: Path) -> tuple[list, list]:
    with Store.open(folder) as store:
        columns = store.columns()
        seconds = columns.pop("seconds")
        return [values.tolist() for values in columns.values()], [store.record(i) for i in range(len(seconds))]


def kill_at_random(place: Path, kills: int, seed: int, *more: str) -> list[str]:
    """Run after run, with workers and drivers killed at random moments; every finished one equals the undisturbed."""
    (place / "nets.py").write_text(MODULE)
    assert start(place, "one", *more).wait(timeout=600) == 0
    wanted, chance = rows(place / "one"), random.Random(seed)
    hit: list[str] = []
    run = 0
    while True:
        driver = start(place, f"run{run}", *more, "--cluster", "local", "--workers", "2")
        below: dict[int, str] = {}
        try:
            while driver.poll() is None:
                below |= children(driver.pid)
                there = workers(driver.pid)
                time.sleep(chance.uniform(0.0, 5.0) if there and len(hit) < kills else 0.2)
                if not there or len(hit) >= kills:
                    continue
                if chance.random() < 0.5:
                    end(driver.pid)
                    driver.wait()
                    hit.append("driver")
                elif there := workers(driver.pid):
                    end(chance.choice(there))
                    hit.append("worker")
        finally:
            for pid in (driver.pid, *below):  # Ray's own watchers would follow their driver only after minutes
                end(pid)
            driver.wait()
        log = (place / f"run{run}.log").read_text()
        assert driver.returncode == 0 or hit[-1] == "driver", log
        if driver.returncode == 0:
            assert rows(place / f"run{run}") == wanted
            if len(hit) >= kills:
                return hit
            run += 1


@pytest.mark.slow
@pytest.mark.parametrize("more", ([], ["--stop", "0.1,0.3"]), ids=("fixed", "stopping"))
def test_workers_and_drivers_killed_at_random_leave_the_rows_as_they_are(tmp_path, more):
    hit = kill_at_random(tmp_path, 20, 0, *more)
    assert {"driver", "worker"} <= set(hit)
    assert "was lost; its work is repeated." in "".join(log.read_text() for log in tmp_path.glob("run*.log"))


@pytest.mark.slow
def test_nodes_may_leave_and_join():
    from ray.cluster_utils import Cluster

    options = {"object_store_memory": 100 * 2**20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **options})
    try:
        nodes = [cluster.add_node(num_cpus=1, **options) for _ in range(2)]
        g, told = smoothed(), []
        wanted = [c.to_dict() for c in g.certify(XS, **OPTIONS)]
        with spread(g, cluster.address, workers=3, tell=told.append) as h:
            assert [c.to_dict() for c in h.certify(XS, **OPTIONS)] == wanted
            leaving = iter([nodes[0]])
            h.engine.on_votes = lambda n: [cluster.remove_node(node, allow_graceful=False) for node in leaving]
            assert [c.to_dict() for c in h.certify(XS, **OPTIONS)] == wanted
            for _ in range(100):
                if any("was lost" in line for line in told):
                    break
                assert [c.to_dict() for c in h.certify(XS, **OPTIONS)] == wanted
            assert any("was lost" in line for line in told)
            for _ in range(2):  # room for the one that was lost, and for the third, which never had any
                cluster.add_node(num_cpus=1, **options)
            for _ in range(200):
                if all(member.ready for member in h.engine.pool.members):
                    break
                assert [c.to_dict() for c in h.certify(XS, **OPTIONS)] == wanted
            assert all(member.ready for member in h.engine.pool.members)
            assert any(line.endswith("is back.") for line in told)
    finally:
        cluster.shutdown()
