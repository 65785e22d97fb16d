"""Memory: what a forward pass needs is bounded whatever n is, and running out of it changes no vote."""

import math
import os
import subprocess
import sys
import textwrap
import warnings
import weakref
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import ucan
from ucan import BasisWise, Fixed, Gaussian, InvalidInput, ModelError, SmoothedClassifier
from ucan.generators import Isotropic
from ucan.plan import CertifyPlan
from ucan.readiness import COPIES
from ucan.replay import replay
from ucan.scales import Dense
from ucan.sequential import Candidate, settle
from ucan.stopping import AtRadii, Radius
from ucan.votes import Classifier, Job, Stream, VoteCounter, block_size, classify_samples

LAW = Gaussian(scale=1.0)
X = torch.tensor([[0.4, 0.0, 0.0]])


def by_sign(batch):
    return (batch.flatten(1)[:, 0] > 0).long()


class Small:
    """A classifier on a device that holds no more than ``limit`` copies."""

    def __init__(self, limit, model=by_sign):
        self.limit, self.model, self.sizes = limit, model, []

    def __call__(self, batch):
        self.sizes.append(len(batch))
        if len(batch) > self.limit:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate more than there is.")
        return self.model(batch)


def counter(model, size, block=16):
    return VoteCounter(Classifier(model, 2), 2, LAW, block, size)


def run_alone(program, folder):
    """What a program prints in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(Path(ucan.__file__).parents[1]), "OMP_NUM_THREADS": "1"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def votes(one, n=500):
    return classify_samples(one, Isotropic().at(X), X, n, Stream(0, "hash", "estimate")).counts.tolist()


# --- running out of memory ---


def test_running_out_of_memory_halves_the_pass_warns_once_and_changes_no_vote():
    model, told = Small(limit=64), []
    one = counter(model, 128)
    one.on_votes = told.append
    with pytest.warns(RuntimeWarning, match=r"out of memory.* 64") as seen:
        result = votes(one)
    assert len(seen) == 1 and one.size == 64
    assert result == votes(counter(by_sign, 128)) and sum(result) == 500
    assert model.sizes == [128, 64, 64, *[64] * 6]  # the pass that failed is made again in halves, the rest fits
    assert sum(told) == 500


@pytest.mark.parametrize("limit", (1, 3, 16, 40, 100, 255))
def test_it_halves_until_it_fits(limit):
    one = counter(Small(limit), 256)
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        result = votes(one)
    assert one.size == 2 ** int(math.log2(limit)) and result == votes(counter(by_sign, 256))


def test_a_block_that_does_not_fit_is_classified_in_parts_and_a_copy_that_does_not_is_an_error():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one = counter(Small(limit=5), 64)
        assert votes(one) == votes(counter(by_sign, 64)) and one.size == 4
        with pytest.raises(ModelError, match="not even a forward pass of one copy"):
            votes(counter(Small(limit=0), 64))


class SmallModule(torch.nn.Module):
    """What fits is no state of its own, or it would be looked at again when that changes."""

    def __init__(self, limit):
        super().__init__()
        self.memory, self.inner = SimpleNamespace(limit=limit), torch.nn.Linear(3, 2)

    def forward(self, batch):
        if len(batch) > self.memory.limit:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return self.inner(batch)


@pytest.mark.parametrize(("backend", "precision"), [("eager", "bf16"), ("auto", None), ("auto", "bf16")])
def test_a_backend_that_is_prepared_where_memory_is_short_takes_smaller_passes(backend, precision, monkeypatch):
    monkeypatch.setattr("ucan.backends._compiled", lambda vote, options: vote)  # compiling itself is not the point
    torch.manual_seed(0)
    model = SmallModule(limit=200).eval()
    g = SmoothedClassifier(model, LAW, None, 2, backend)
    with pytest.warns(RuntimeWarning, match="out of memory: going on with forward passes of") as seen:
        (c,) = g.certify(X, n=500, precision=precision)
    assert sum("out of memory" in str(w.message) for w in seen) == 2 and c.evidence.batch_size == 128  # 512, 256, 128
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (again,) = g.certify(X, n=500, precision=precision)  # remembered
    model.memory.limit = 10**9
    (whole,) = SmoothedClassifier(model, LAW, None, 2, backend).certify(X, n=500, precision=precision)
    assert again.evidence.counts == c.evidence.counts == whole.evidence.counts
    h = SmoothedClassifier(model, LAW, None, 2, backend)
    h.check_inputs(X)
    model.memory.limit = 0
    with pytest.raises(ModelError, match="not even a forward pass"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        h.certify(X, n=500, precision=precision)


def test_inputs_that_share_a_pass_keep_their_votes_when_memory_runs_out():
    jobs = [Job(Isotropic().at(X), X, Stream(0, str(i), "estimate"), i, 16 - i) for i in range(8)]
    with pytest.warns(RuntimeWarning, match="out of memory"):
        halved = counter(Small(limit=64), 128).count(jobs)
    assert torch.equal(halved, counter(by_sign, 128).count(jobs)) and halved.sum(1).tolist() == [
        16 - i for i in range(8)
    ]


def test_sampling_that_stops_uses_the_same_samples_when_memory_runs_out():
    def settled(model):
        radius = Radius(LAW.radius, LAW.probability)
        candidates = [
            Candidate(i, x := torch.tensor([[0.2 * i, 0.0]]), Isotropic().at(x), Stream(0, str(i), "e"), 1, radius)
            for i in range(12)
        ]
        done = settle(counter(model, 128), candidates, AtRadii((0.5,)), 1000, 0.01)
        return {c.index: (c.drawn, c.tally.tolist()) for c in done}

    with pytest.warns(RuntimeWarning, match="out of memory") as seen:
        halved = settled(Small(limit=32))
    assert halved == settled(by_sign) and len(seen) <= 2  # 128 → 64 → 32


def test_the_failed_pass_is_let_go_before_the_next_one_is_made():
    alive = []

    class Watching(Small):
        def __call__(self, batch):
            alive.append([reference() is not None for reference in self.references])
            self.references.append(weakref.ref(batch))
            return super().__call__(batch)

    model = Watching(limit=64)
    model.references = []
    with pytest.warns(RuntimeWarning, match="out of memory"):
        votes(counter(model, 128), n=128)
    assert alive[1] == [False]


def certified(model, stop=None, inputs=3):
    g = SmoothedClassifier(model, LAW, None, 2)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        outcomes = g.certify(X + 0.1 * torch.arange(inputs)[:, None], n0=100, n=1500, batch_size=512, stop=stop)
    return outcomes, [str(w.message) for w in seen]


@pytest.mark.parametrize("stop", (None, 0.3))
def test_certificates_are_the_same_when_memory_runs_out(stop):
    tight, messages = certified(Small(limit=300), stop)
    plenty, none = certified(by_sign, stop)
    assert [c.evidence.counts for c in tight] == [c.evidence.counts for c in plenty]
    assert messages and not none and all("256" in message for message in messages)


def test_a_batch_of_inputs_runs_out_of_memory_once():
    assert len(certified(Small(limit=300))[1]) == 1


@pytest.mark.parametrize("stop", (None, 0.3))
def test_the_evidence_says_which_forward_pass_was_used(stop):
    assert {c.evidence.batch_size for c in certified(Small(limit=300), stop)[0]} == {256}


# --- packing ---


@pytest.mark.parametrize("n", (100, 1000))
def test_votes_are_the_same_for_every_size_of_the_forward_pass_and_in_any_company(n):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 4)).eval()
    g = SmoothedClassifier(net, LAW, None, 4)
    x = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    together = {b: [c.evidence.counts for c in g.certify(x, n=n, batch_size=b)] for b in (128, 256, 512)}
    alone = [g.certify(x[i : i + 1], n=n, batch_size=128)[0].evidence.counts for i in range(3)]
    assert together[128] == together[256] == together[512] == alone
    assert all(sum(counts) == n for counts in alone)


@pytest.mark.parametrize("stop", (None, 0.3, "10%"))
@pytest.mark.parametrize("generator", [None, Fixed(Dense(torch.eye(3) + 0.1))], ids=["I", "dense"])
def test_votes_are_the_same_whatever_the_batch_size(stop, generator):
    g = SmoothedClassifier(by_sign, LAW, generator, 2)
    x = X + 0.3 * torch.arange(3)[:, None]
    made = {b: g.certify(x, n=1500, stop=stop, batch_size=b) for b in (None, 1, 7, 64, 128, 1700)}
    counts = {b: [(c.evidence.counts, c.evidence.n, c.evidence.selection) for c in cs] for b, cs in made.items()}
    assert all(found == counts[None] for found in counts.values())
    assert [made[b][0].evidence.batch_size for b in (1, 7, 64, 128, 1700)] == [1, 7, 64, 128, 1664]
    assert {c.evidence.block for cs in made.values() for c in cs} == {128}


def test_a_block_in_parts_shows_the_model_nothing_but_whole_parts_of_one_size():
    seen = []

    def model(batch):
        seen.append(len(batch))
        batch.fill_(-1.0)  # works in place, which must not reach the copies that are yet to be shown
        return torch.zeros(len(batch), dtype=torch.int64)

    votes(VoteCounter(Classifier(model, 2), 2, LAW, 16, 7), n=18)
    assert seen == [7, 7, 7, 7]  # of the tail block only what counts


@pytest.mark.parametrize("made, here", [(7, None), (None, 7), (64, 1700)])
def test_evidence_made_under_another_batch_size_is_drawn_again(made, here):
    g = SmoothedClassifier(by_sign, LAW, None, 2)
    (c,) = g.certify(X, n=1000, batch_size=made)
    evidence = replace(c.evidence, batch_size=here or 512)
    assert replay(replace(c, evidence=evidence), g, X).outcome == "same"


def test_a_recorded_block_wins():
    """Version 0.1 drew smaller blocks for smaller forward passes: its evidence is drawn again as it was."""
    g = SmoothedClassifier(by_sign, LAW, None, 2)
    plan = CertifyPlan(n=1000, batch_size=64, block=64)
    ((_, old),) = g.certify_each(g.check_inputs(X), plan)
    (new,) = g.certify(X, n=1000, batch_size=64)
    assert old.evidence.block == 64 and old.evidence.counts != new.evidence.counts
    assert replay(old, g, X).outcome == replay(new, g, X).outcome == "same"


# --- very large inputs ---


def test_blocks_shrink_above_a_million_numbers_and_nowhere_else():
    sizes = {d: block_size(d) for d in (1, 3072, 150_528, 2**18, 2**20, 2**20 + 1, 2**22, 2**24, 2**28)}
    assert list(sizes.values()) == [128, 128, 64, 64, 16, 8, 4, 1, 1]


def test_an_input_that_does_not_fit_into_memory_is_refused_before_any_work(monkeypatch):
    monkeypatch.setattr("ucan.readiness.free_memory", lambda device: 2**28)
    asked = []
    g = SmoothedClassifier(lambda b: asked.append(1) or by_sign(b), LAW, None, 2)
    with pytest.raises(InvalidInput, match=r"4,194,304 numbers.* GiB .*smaller inputs"):
        g.certify(torch.zeros(1, 1, 2048, 2048), n=100)
    assert not asked


def test_a_large_input_is_certified_in_bounded_memory(tmp_path):
    program = textwrap.dedent(
        """
        import resource, torch
        from ucan import Gaussian, SmoothedClassifier
        g = SmoothedClassifier(lambda b: (b.flatten(1)[:, 0] > -1).long(), Gaussian(scale=1.0), None, 2)
        g.certify(torch.zeros(1, 1, 8, 8), n=100)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        (c,) = g.certify(torch.zeros(1, 1, 2900, 2900), n0=4, n=8)
        print(before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, c.evidence.block)
        """
    )
    before, after, block = map(int, run_alone(program, tmp_path).split())
    copy = 2900 * 2900 * 4 // 1024
    assert block == 1 and after - before < COPIES * copy


# --- bounded, whatever n is ---


class Widest:
    """Remembers the most copies that ever lay in one batch, and how many batches are alive at once."""

    def __init__(self):
        self.most, self.alive, self.at_once = 0, weakref.WeakSet(), 0

    def __call__(self, batch):
        storage = batch.untyped_storage()
        self.most = max(self.most, storage.nbytes())
        self.alive.add(batch)
        self.at_once = max(self.at_once, len(self.alive))
        return by_sign(batch)


@pytest.mark.parametrize(
    "generator", [None, Fixed(Dense(torch.eye(64))), BasisWise.dct((8, 8))], ids=["I", "dense", "dct"]
)
@pytest.mark.parametrize("stop", (None, 0.05))
def test_no_batch_grows_with_n_and_none_is_kept(generator, stop):
    x, sizes = torch.zeros(1, 8, 8), []
    for n in (1000, 6000):
        model = Widest()
        SmoothedClassifier(model, LAW, generator, 2).certify(x, n=n, batch_size=256, stop=stop)
        sizes.append(model.most)
        assert model.at_once <= 2
    assert sizes[0] == sizes[1] == 256 * 64 * 4


def test_peak_memory_does_not_grow_with_the_number_of_samples(tmp_path):
    program = textwrap.dedent(
        """
        import resource, torch
        from torch import nn
        from ucan import Gaussian, SmoothedClassifier
        model = nn.Sequential(nn.Flatten(), nn.Linear(1024, 4)).eval()
        g = SmoothedClassifier(model, Gaussian(scale=1.0), None, 4)
        x = torch.rand(1, 1, 32, 32)
        for settings in ({"n": 2000}, {"n": 50_000}, {"n": 6000, "stop": "0.1%"}):
            g.certify(x, **settings)
            print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        """
    )
    few, many, stopped = (int(line) * 1024 for line in run_alone(program, tmp_path).split())
    assert many - few < 16 * 2**20  # 48,000 more copies are 197 MB; a block is half of one
    assert stopped - few < 32 * 2**20


def test_a_batch_that_a_cpu_cannot_hold_is_refused_in_words():
    g = SmoothedClassifier(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)).eval(), Gaussian(0.5), num_classes=2)
    with pytest.raises(ModelError, match="do not fit in memory: give a smaller batch_size"):
        g.certify(torch.rand(1, 1, 2, 2), n=300, batch_size=10**14)
