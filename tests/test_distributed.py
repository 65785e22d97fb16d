"""Several processes train as one: the same steps, whatever their number, and only the first writes."""

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import ucan
from ucan import ExpInf, Gaussian, InvalidInput, Laplace, PowerLaw, Uniform
from ucan.generators import Composed, Isotropic, Splitting
from ucan.training.batches import Batches, flip_and_crop
from ucan.training.share import Share, SharedBatchNorm, launched

pytest.importorskip("lightning_fabric")
CPU = torch.device("cpu")


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


# --- shares, in one process ---

WORLDS = [(8, 2), (7, 2), (10, 3), (5, 5)]


@pytest.mark.parametrize(("batch", "world"), WORLDS)
def test_shares_make_up_the_batch_and_their_means_its_mean(batch, world):
    shares = [Share(batch, rank, world) for rank in range(world)]
    assert sorted(i for share in shares for i in range(batch)[share.part]) == list(range(batch))
    values = torch.rand(batch, generator=rng(), dtype=torch.float64)
    mean = sum(share.fraction * values[share.part].mean() for share in shares)
    assert float(mean) == pytest.approx(float(values.mean()), rel=1e-12)


LAWS = [Gaussian(0.5), Laplace(0.5), Uniform(0.5), ExpInf(0.5), PowerLaw(0.5, a=30.0)]


@pytest.mark.parametrize(("batch", "world"), WORLDS)
@pytest.mark.parametrize("law", LAWS, ids=lambda law: type(law).__name__)
def test_a_share_gets_the_noise_of_its_places_in_the_whole_batch(law, batch, world):
    x = torch.rand(batch, 1, 3, 4, generator=rng())
    generators = [Isotropic()] + [Composed(1, norm=2, features=2, growth=2)] * isinstance(law, Gaussian)
    for generator in generators:
        whole = generator.perturb(x, law, 2, rng(1))
        for rank in range(world):
            share = Share(batch, rank, world)
            own, source = share.law(law), rng(1)
            assert isinstance(own, type(law)) and vars(own) == vars(law)
            part = generator.perturb(x[share.part], own, 2, source)
            assert torch.allclose(part, whole[:, share.part], atol=1e-6)
            assert torch.equal(torch.rand(3, generator=source), torch.rand(3, generator=_after(generator, x, law)))


@pytest.mark.parametrize(("batch", "world"), WORLDS)
def test_a_share_gets_the_cells_of_its_places_in_the_whole_batch(batch, world):
    """Splitting noise drew its own numbers: each process those of the first inputs, and not as many as the others."""
    x, law, noise = torch.rand(batch, 1, 3, 4, generator=rng()), Uniform(0.5), Splitting((1, 3, 4), 16)
    whole = noise.perturb(x, law, 2, rng(1))
    for rank in range(world):
        share, source = Share(batch, rank, world), rng(1)
        assert torch.equal(noise.perturb(x[share.part], share.law(law), 2, source), whole[:, share.part])
        assert torch.equal(torch.rand(3, generator=source), torch.rand(3, generator=_after(noise, x, law)))


def _after(generator, x, law):
    """The generator's state after the whole batch: a share leaves it there, too."""
    source = rng(1)
    generator.perturb(x, law, 2, source)
    return source


@pytest.mark.parametrize(("batch", "world"), WORLDS)
def test_a_share_is_flipped_and_cropped_as_in_the_whole_batch(batch, world):
    x = torch.rand(batch, 3, 8, 8, generator=rng())
    whole = flip_and_crop(x, rng(1))
    for rank in range(world):
        share = Share(batch, rank, world)
        assert torch.equal(flip_and_crop(x[share.part], rng(1), share=share), whole[share.part])


def test_a_process_is_given_its_share_of_every_batch():
    from ucan.data import InMemory

    pixels = torch.arange(20.0).reshape(20, 1, 1, 1) / 20
    dataset = InMemory(pixels, torch.arange(20) % 3, ["a", "b", "c"])
    whole = list(Batches(dataset, 7, 0, CPU).epoch(2))
    for rank in range(2):
        shares = list(Batches(dataset, 7, 0, CPU, rank, 2).epoch(2))
        assert len(shares) == len(whole) == 2
        for (x, labels, _), (all_x, all_labels, _) in zip(shares, whole, strict=True):
            assert torch.equal(x, all_x[rank::2]) and torch.equal(labels, all_labels[rank::2])


def test_a_batch_smaller_than_the_processes_is_refused():
    with pytest.raises(InvalidInput, match="batch of 3 cannot be shared by 4"):
        Share(3, 0, 4)


def test_how_many_were_launched(monkeypatch):
    for name in [name for name in os.environ if name.startswith("SLURM_") or name.endswith("WORLD_SIZE")]:
        monkeypatch.delenv(name)
    assert launched() == (1, 1)
    monkeypatch.setenv("SLURM_NTASKS", "8")
    assert launched() == (1, 1)  # a job with room for eight, but no srun
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "8")
    monkeypatch.setenv("SLURM_STEP_NUM_NODES", "2")
    assert launched() == (4, 2)
    monkeypatch.setenv("WORLD_SIZE", "6")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert launched() == (2, 3)  # torchrun, also inside Slurm


# --- processes ---


def environment(**more):
    paths = [str(Path(ucan.__file__).parents[1]), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    path = os.pathsep.join(paths)
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **more}


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def torchrun(place: Path, processes: int, *words: str, **options) -> subprocess.Popen:
    head = [sys.executable]
    if processes > 1:
        head += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    return subprocess.Popen(
        [*head, *words],
        cwd=place,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **options,
    )


def finished(process: subprocess.Popen) -> str:
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output[-4000:]
    return output


STATISTICS = """
    import sys, torch, torch.distributed as dist
    from torch import nn
    from ucan.training.share import share_statistics
    dist.init_process_group("gloo")
    rank, holders = dist.get_rank(), sys.getrefcount(dist.group.WORLD)
    for kind, shape in ((nn.BatchNorm2d, (7, 3, 4, 4)), (nn.BatchNorm1d, (9, 3)), (nn.BatchNorm1d, (5, 3, 6))):
        for options in ({}, {"affine": False}, {"momentum": None}, {"track_running_stats": False}):
            torch.manual_seed(0)
            x = torch.randn(shape, dtype=torch.float32)
            target = torch.randn(shape)
            plain, ours = kind(3, **options), share_statistics(nn.Sequential(kind(3, **options)), torch.device("cpu"))
            for _ in range(2):
                whole, part = x.clone().requires_grad_(), x[rank::2].clone().requires_grad_()
                (plain(whole) * target).sum().backward()
                (ours(part) * target[rank::2]).sum().backward()
                assert torch.allclose(ours(part), plain(whole)[rank::2], atol=1e-5)
                assert torch.allclose(part.grad, whole.grad[rank::2], atol=1e-5), (kind, options)
            for (name, a), (_, b) in zip(ours[0].state_dict().items(), plain.state_dict().items(), strict=True):
                assert torch.allclose(a, b, atol=1e-5), name
            for a, b in zip(ours.parameters(), plain.parameters(), strict=True):
                dist.all_reduce(a.grad)
                assert torch.allclose(a.grad, b.grad, atol=1e-4)
            assert torch.allclose(ours.eval()(x), plain.eval()(x), atol=1e-5)
    for dtype, close in ((torch.float64, 1e-12), (torch.bfloat16, 0.05)):
        x = torch.randn(7, 3, 4, 4).to(dtype)
        plain, norm = nn.BatchNorm2d(3).to(dtype), share_statistics(nn.BatchNorm2d(3).to(dtype), torch.device("cpu"))
        assert torch.allclose(norm(x[rank::2]), plain(x)[rank::2], atol=close), dtype
        assert torch.allclose(norm.running_var, plain.running_var, atol=close), dtype
    print("the same", flush=True)
    dist.barrier()
    assert sys.getrefcount(dist.group.WORLD) == holders, "who still holds the group keeps its threads past its end"
    dist.destroy_process_group()  # else gloo's threads may abort the process at its end
"""


def test_batch_norm_over_two_processes_is_that_of_the_whole_batch(tmp_path):
    (tmp_path / "program.py").write_text(textwrap.dedent(STATISTICS))
    assert finished(torchrun(tmp_path, 2, "program.py")).count("the same") == 2


def test_outside_training_shared_batch_norm_is_plain():
    plain = nn.BatchNorm2d(2)
    plain.running_mean.copy_(torch.tensor([0.3, -0.2]))
    x = torch.rand(4, 2, 3, 3, generator=rng())
    wanted = plain.eval()(x)
    plain.__class__ = SharedBatchNorm
    assert torch.equal(plain(x), wanted)


KINDS = {
    "batch norm, odd batch": {"model": "resnet20", "batch": 51},
    "per input": {
        "variance_term": "min",
        "variance_weight": 0.2,
        "augment": True,
        "ema": 0.9,
        "batch": 65,
        "generator": {"kind": "certification-wise", "features": 3, "growth": 2},
    },
    "consistency": {"recipe": {"kind": "consistency"}, "generator": {"kind": "pattern"}},
    "composed": {"batch": 33, "generator": {"kind": "composed", "features": 3, "growth": 2}},
    "learned for all": {"batch": 10, "variance_term": "logmean", "generator": {"kind": "dataset-wise"}},
}
TRAIN = """
import json, sys
sys.modules["torch.utils.tensorboard"] = sys.modules["torchmetrics"] = None  # seconds to import
from test_distributed import train
train(sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]))
"""


def train(folder: str, changes: dict, count: int) -> None:
    """Train on some digits, in as many processes as were launched."""
    from ucan import data
    from ucan.training import Trainer, TrainSettings, build_classifier

    settings = TrainSettings.from_dict({"epochs": 2, **changes})
    dataset = data.load("digits", "train").subset(torch.arange(count))
    model = build_classifier(settings, dataset.event_shape, dataset.num_classes)
    Trainer(settings, dataset, model, folder, "cpu").run()


def trained_by(place: Path, processes: int, out: str, changes: dict, count: int = 220) -> subprocess.Popen:
    (place / "program.py").write_text(TRAIN)
    return torchrun(place, processes, "program.py", out, json.dumps(changes), str(count))


def curve(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def same_curve(one: Path, other: Path, tolerance: float = 2e-4) -> None:
    first, second = curve(one), curve(other)
    assert [line["epoch"] for line in first] == [line["epoch"] for line in second]
    for a, b in zip(first, second, strict=True):
        assert a.keys() == b.keys()
        for name in a.keys() & {"loss", "min_sigma", "mean_sigma"}:
            assert a[name] == pytest.approx(b[name], rel=tolerance), (name, a, b)
        assert a["correct"] == pytest.approx(b["correct"], abs=0.02)


def test_two_processes_give_the_curve_of_one(tmp_path):
    together = trained_by(tmp_path, 2, "two", KINDS["per input"])
    train(str(tmp_path / "one"), KINDS["per input"], 220)
    finished(together)
    same_curve(tmp_path / "one", tmp_path / "two")
    a, b = (load_file(tmp_path / name / "weights.safetensors") for name in ("one", "two"))
    assert a.keys() == b.keys() and all(torch.allclose(a[k], b[k], atol=1e-3) for k in a)


@pytest.mark.slow
@pytest.mark.parametrize("processes", (2, 3))
@pytest.mark.parametrize("kind", KINDS)
def test_any_number_of_processes_gives_the_curve_of_one(tmp_path, kind, processes):
    train(str(tmp_path / "one"), {"epochs": 3, **KINDS[kind]}, 300)
    finished(trained_by(tmp_path, processes, "many", {"epochs": 3, **KINDS[kind]}, 300))
    same_curve(tmp_path / "one", tmp_path / "many", 2e-3 if "batch norm" in kind else 2e-4)


@pytest.mark.slow
def test_a_run_goes_on_with_another_number_of_processes(tmp_path):
    """Stopped by a signal, as a scheduler sends it: once with three processes, once with one, then to the end with two."""
    changes = {"epochs": 40, "batch": 33, "augment": True, "ema": 0.9}
    train(str(tmp_path / "one"), changes, 300)
    stopped = 0
    for processes in (3, 1, 2):
        running = trained_by(tmp_path, processes, "many", changes, 300)
        before = epochs(tmp_path / "many")
        while stopped < 2 and running.poll() is None and epochs(tmp_path / "many") < before + 8:
            time.sleep(0.05)
        if stopped < 2:
            running.send_signal(signal.SIGTERM)
            running.communicate(timeout=300)
            assert running.returncode != 0 and not (tmp_path / "many" / "weights.safetensors").exists()
            assert (tmp_path / "many" / "checkpoint.pt").exists()
            stopped += 1
        else:
            finished(running)
    same_curve(tmp_path / "one", tmp_path / "many")


def epochs(folder: Path) -> int:
    return len(curve(folder)) if (folder / "metrics.jsonl").exists() else 0


@pytest.mark.slow
def test_slurm_starts_them_as_well(tmp_path):
    """Two processes with the variables that srun would give them."""
    (tmp_path / "program.py").write_text(TRAIN)
    train(str(tmp_path / "one"), KINDS["composed"], 220)
    given = {
        "SLURM_JOB_ID": "77",
        "SLURM_JOB_NAME": "train",
        "SLURM_NTASKS": "2",
        "SLURM_NTASKS_PER_NODE": "2",
        "SLURM_NNODES": "1",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_NUM_NODES": "1",
        "SLURM_NODEID": "0",
        "SLURM_NODELIST": "localhost",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    words = [sys.executable, "program.py", "many", json.dumps(KINDS["composed"]), "220"]
    processes = [
        subprocess.Popen(
            words,
            cwd=tmp_path,
            env=environment(**given, SLURM_PROCID=str(rank), SLURM_LOCALID=str(rank)),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    for process in processes:
        finished(process)
    same_curve(tmp_path / "one", tmp_path / "many")
