"""Recorded graphs on a stand-in for a GPU, and what is done on the host for one input."""

import contextlib
import math
from types import SimpleNamespace

import pytest
import torch

from ucan import CertificationWise, Gaussian, InvalidInput, SmoothedClassifier
from ucan.engine import AHEAD, Engine
from ucan.errors import SingularScale
from ucan.generators.base import issued
from ucan.guards import DRAWS, noise_size
from ucan.passes import Fetched, Recorded, recorded
from ucan.scales import Diagonal
from ucan.sequential import PART, Candidate, Terms
from ucan.sidecar import input_hash, on_host
from ucan.stopping import AtRadii, Radius
from ucan.votes import Stream


class StandIn:
    """A stream, an event and a graph that does nothing but count."""

    def __init__(self, *_):
        self.waited = []

    def wait_stream(self, other): ...

    def wait_event(self, event):
        self.waited.append(event)

    def record_event(self):
        return StandIn()

    def record(self, stream): ...

    def synchronize(self): ...


@pytest.fixture
def stand_in(monkeypatch):
    """Records a function by remembering what it gave: replaying computes it again, into the same memory."""
    here = StandIn()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: here)
    monkeypatch.setattr(torch.cuda, "Stream", StandIn)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", StandIn)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, **_: contextlib.nullcontext())

    def record(function, example):
        made = Recorded(function, example)

        def replay():
            for kept, now in zip(made._found, function(made._batch), strict=True):
                kept.copy_(now)

        made._graph.replay = replay
        return made

    return record


@pytest.mark.parametrize("inference", (False, True))
def test_a_recorded_function_gives_its_results_in_memory_of_their_own(stand_in, inference):
    with torch.inference_mode(inference):
        made = stand_in(lambda batch: (2 * batch, batch.sum(1)), torch.zeros(3, 2))
    first, second = torch.rand(3, 2), torch.rand(3, 2)
    twice, sums = made(first)
    assert torch.equal(made(second)[0], 2 * second)
    assert torch.equal(twice, 2 * first) and torch.equal(sums, first.sum(1))  # not overwritten
    assert not twice.requires_grad and twice.is_inference() == inference


def test_other_shapes_and_types_go_to_the_function_itself(stand_in):
    made = stand_in(lambda batch: (2 * batch,), torch.zeros(3, 2))
    for batch in (torch.rand(5, 2), torch.rand(3, 2, dtype=torch.float64)):
        (found,) = made(batch)
        assert torch.equal(found, 2 * batch) and found.dtype == batch.dtype


def test_on_a_cpu_nothing_is_recorded():
    def function(batch):
        return (batch,)

    assert recorded(function, torch.zeros(2)) is function


# --- noise whose μ and Σ were fetched to the host ---


def per_input():
    torch.manual_seed(0)
    return CertificationWise(1, features=2, growth=2).eval()


def test_regions_are_made_from_the_copies_on_the_host():
    M, x = per_input(), torch.rand(1, 1, 4, 4)
    with torch.no_grad():
        mu, sigma = M.maps(x)
    plain, held = M.at(x), issued(M, x, mu, Diagonal(sigma), (mu.clone(), Diagonal(sigma.clone())))
    assert held(x)[1] is not held.stated(x)[1] and plain.stated(x) == plain(x)
    law = Gaussian(0.3)
    one, other = (each.region(law, 0.9, 2, x) for each in (plain, held))
    assert one.scale is not other.scale and one.inscribed_radius() == other.inscribed_radius()
    assert held.budget_factor(law, 0.9, 1.0, x) == plain.budget_factor(law, 0.9, 1.0, x)
    draws = [torch.empty(1, 8, 1, 4, 4) for _ in range(2)]
    for each, out in zip((plain, held), draws, strict=True):
        each.perturb_into(out, x, law, [torch.Generator().manual_seed(1)])
    assert torch.equal(*draws)


def test_what_is_wrong_is_found_on_the_host():
    M, x = per_input(), torch.rand(1, 1, 4, 4)
    fine, bad = torch.ones(1, 1, 4, 4), torch.ones(1, 1, 4, 4)
    bad[0, 0, 1, 2] = math.nan
    with pytest.raises(InvalidInput, match="μ holds a value that is not finite"):
        issued(M, x, fine, Diagonal(fine), (bad, Diagonal(fine)))
    with pytest.raises(SingularScale, match=r"sigma\[0, 0, 0, 0\] is 0"):
        issued(M, x, fine, Diagonal(fine), (fine, Diagonal(0 * fine)))


def test_what_is_begun_for_an_input_ends_as_at_does():
    M, x = per_input(), torch.rand(3, 1, 4, 4)
    begun = [M.starting(one) for one in x.split(1)]
    for one, noise in zip(x.split(1), begun, strict=True):
        for mine, other in zip(noise()(one), M.at(one)(one), strict=True):
            assert torch.equal(getattr(mine, "sigma", mine), getattr(other, "sigma", other))


def test_what_a_gpu_begins_is_fetched_in_one_step_and_ends_as_at_does(stand_in, monkeypatch):
    M, x = per_input(), torch.rand(1, 1, 4, 4)
    at = M.at(x)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    monkeypatch.setattr("ucan.generators.learned.recorded", stand_in)
    fetched = []
    wait = Fetched.wait
    monkeypatch.setattr(Fetched, "wait", lambda self: fetched.append(wait(self)) or fetched[-1])
    held = M.starting(x)()
    monkeypatch.undo()
    assert len(fetched) == 1 and torch.equal(fetched[0][0][0], at.mean)
    for mu, sigma in (held(x), held.stated(x)):
        assert torch.equal(mu, at.mean) and torch.equal(sigma.sigma, at.scale.sigma)
    (mean, scale), kept = held.stated(x), fetched[0][0].data_ptr()
    assert mean.untyped_storage().data_ptr() != kept != scale.sigma.untyped_storage().data_ptr()
    assert mean.untyped_storage().nbytes() == 4 * 16  # each in memory of its own


def test_noise_is_begun_some_inputs_ahead_but_the_first_does_not_wait_for_them():
    class Begun:
        dtype = torch.float32

        def __init__(self, number):
            self.number = number

        def to(self, device, dtype):
            return self

    begun, counts = [], []
    M = SimpleNamespace(looks=lambda: True, starting=lambda x: begun.append(x.number))
    engine = SimpleNamespace(M=M, _apart=lambda device: contextlib.nullcontext())
    device = SimpleNamespace(type="cuda")
    for number, (x, _) in enumerate(Engine._started(engine, map(Begun, range(20)), device)):
        assert x.number == number
        counts.append(len(begun))
    assert counts == [2, 4, 6, 8, 10, 12, 14, 16, *range(17, 21), *[20] * 8] and AHEAD == 8


def test_the_size_of_elementwise_noise_is_that_of_its_draws():
    M, x, law = per_input(), torch.rand(1, 1, 4, 4), Gaussian(0.3)
    held = M.at(x)
    drawn = held.perturb(x, law, DRAWS, torch.Generator().manual_seed(0))[:, 0] - (x + held(x)[0])[0]
    assert torch.allclose(noise_size(held, x, law), drawn.abs().mean(0), rtol=1e-4, atol=1e-6)


def test_an_input_changed_in_place_is_another_one():
    x = torch.rand(1, 3)
    before = input_hash(x)
    assert on_host(x).data_ptr() == x.data_ptr()
    x[0, 1] += 1
    assert input_hash(x) != before


# --- how much is classified ---


def test_a_radius_that_takes_many_votes_does_not_fill_a_forward_pass_before_it_can_be_given_up():
    law = Gaussian(0.5)
    radius, stop = Radius(law.radius, law.probability), AtRadii(tuple(0.25 * i for i in range(8)))
    terms = Terms(stop, 100_000, 0.001)
    g = SmoothedClassifier(lambda y: (y[:, 0] > 0).long(), law, num_classes=2)
    x = torch.zeros(1, 2)
    candidate = Candidate(0, x, g.held_at(x), Stream(0, "", "estimate"), 0, radius)
    assert candidate.worthwhile(terms, 128) == 128
    candidate.add(torch.zeros(512, dtype=torch.int64), 2, terms, 128)
    assert PART < candidate.worthwhile(terms, 128) == 512
