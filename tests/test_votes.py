"""Votes: blocks, seeds, and every kind of answer that a classifier can give."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from ucan import Fixed, Gaussian, InvalidInput, Isotropic, ModelError
from ucan.votes import (
    Classifier,
    Job,
    Request,
    Stream,
    VoteCounter,
    block_size,
    blocks,
    classify_samples,
    count_requests,
    forward_size,
)

LAW = Gaussian(scale=1.0)
X = torch.zeros(1, 2, 3)
CPU = torch.device("cpu")


def by_sign(batch):
    """Class 1 where the first number is positive."""
    return (batch.flatten(1)[:, 0] > 0).long()


def counter(model, num_classes=3, size=8, forward=None):
    return VoteCounter(Classifier(model, num_classes), num_classes, LAW, size, forward or size)


def votes_of(model, n, size, seed=0, num_classes=3, x=X, phase="estimate", generator=None, forward=None):
    M = (generator or Isotropic()).at(x)
    return classify_samples(counter(model, num_classes, size, forward), M, x, n, Stream(seed, "hash", phase))


class Recorder:
    """A classifier that remembers what it was shown."""

    def __init__(self):
        self.batches = []

    def __call__(self, batch):
        self.batches.append(batch.clone())
        return by_sign(batch)


# --- blocks and seeds ---


@given(n=st.integers(1, 5000), size=st.integers(1, 700))
def test_blocks_are_numbered_and_count_every_copy_once(n, size):
    pairs = list(blocks(n, size))
    assert [number for number, _ in pairs] == list(range(len(pairs)))
    assert sum(take for _, take in pairs) == n
    assert all(take == size for _, take in pairs[:-1]) and 1 <= pairs[-1][1] <= size


def test_a_tail_block_is_drawn_whole_and_only_its_first_votes_count():
    model = Recorder()
    votes = votes_of(model, n=21, size=8)
    assert [len(batch) for batch in model.batches] == [8, 8, 8]
    expected = by_sign(torch.cat(model.batches)[:21])
    assert votes.counts.tolist() == [int((expected == 0).sum()), int((expected == 1).sum()), 0]
    assert votes.invalid == 0
    assert votes.counts.dtype == torch.int64


def test_more_samples_extend_fewer():
    short, long = Recorder(), Recorder()
    votes_of(short, n=16, size=8)
    votes_of(long, n=40, size=8)
    assert all(torch.equal(a, b) for a, b in zip(short.batches, long.batches, strict=False))
    assert len(long.batches) == 5


def test_blocks_have_noise_of_their_own():
    model = Recorder()
    votes_of(model, n=24, size=8)
    assert not any(torch.equal(model.batches[i], model.batches[j]) for i, j in ((0, 1), (0, 2), (1, 2)))


def shown(**changes):
    model = Recorder()
    votes_of(model, n=8, size=8, **changes)
    return model.batches[0]


def test_noise_depends_on_seed_phase_and_input_hash_and_on_nothing_else():
    assert torch.equal(shown(), shown())
    torch.manual_seed(123)
    assert torch.equal(shown(), shown(seed=0))
    assert not torch.equal(shown(), shown(seed=1))
    assert not torch.equal(shown(), shown(phase="select"))
    one, other = (Stream(0, name, "estimate").block(0, CPU).initial_seed() for name in ("hash", "other"))
    assert one != other


def test_block_seeds_fit_the_thirty_two_bits_a_cpu_generator_keeps():
    stream = Stream(7, "hash", "estimate")
    seeds = [stream.block(number, CPU).initial_seed() for number in range(200)]
    assert len(set(seeds)) == 200 and all(0 <= s < 2**32 for s in seeds)
    assert Stream(7, "hash", "estimate").block(5, CPU).initial_seed() == seeds[5]


def test_the_global_generator_is_left_alone():
    before = torch.get_rng_state()
    votes_of(by_sign, n=20, size=8)
    assert torch.equal(before, torch.get_rng_state())


def test_the_classifier_sees_x_plus_mu_plus_noise():
    x = torch.full((1, 2, 3), 5.0)
    model = Recorder()
    votes_of(model, n=4000, size=4000, x=x, generator=Fixed(torch.full((2, 3), 0.5), mean=torch.full((2, 3), 2.0)))
    batch = model.batches[0]
    assert batch.shape == (4000, 2, 3)
    assert float(batch.mean()) == pytest.approx(7.0, abs=0.02) and float(batch.std()) == pytest.approx(0.5, abs=0.01)


def test_progress_is_told_of_every_counted_vote():
    told = []
    one = counter(by_sign)
    one.on_votes = told.append
    classify_samples(one, Isotropic().at(X), X, 21, Stream(0, "hash", "estimate"))
    assert told == [8, 8, 5]


@pytest.mark.parametrize("forward", (8, 16, 24, 64, 67, 1024))
def test_packing_blocks_into_larger_passes_changes_no_noise_and_no_vote(forward):
    alone, packed = Recorder(), Recorder()
    expected = votes_of(alone, n=61, size=8)
    votes = votes_of(packed, n=61, size=8, forward=forward)
    assert votes.counts.tolist() == expected.counts.tolist() and votes.invalid == 0
    assert {len(batch) for batch in packed.batches} == {
        max(8, forward // 8 * 8)
    }  # one shape, so that one compilation does
    assert torch.equal(torch.cat(packed.batches)[:61], torch.cat(alone.batches)[:61])


def test_inputs_that_share_a_pass_get_the_votes_they_get_alone():
    xs = torch.tensor([[-1.0, 0.0], [0.3, 0.0], [2.0, 0.0]])
    streams = [Stream(0, str(i), "estimate") for i in range(3)]
    jobs = [
        Job(Isotropic().at(x[None]), x[None], stream, number, take)
        for (x, stream), (number, take) in zip(zip(xs, streams, strict=True), ((0, 8), (3, 5), (1, 1)), strict=True)
    ]
    together = counter(by_sign, forward=32).count(jobs)
    alone = torch.cat([counter(by_sign).count([job]) for job in jobs])
    assert torch.equal(together, alone) and together.sum(1).tolist() == [8, 5, 1]
    assert together.shape == (3, 4) and together.dtype == torch.int64


@given(dim=st.integers(1, 300_000))
def test_block_and_pass_are_powers_of_two_and_a_pass_holds_whole_blocks(dim):
    block, cpu, gpu = block_size(dim), forward_size(dim, CPU), forward_size(dim, torch.device("cuda"))
    assert all(v & (v - 1) == 0 for v in (block, cpu, gpu))
    assert 16 <= block <= cpu <= gpu and cpu % block == gpu % block == 0


# --- what a classifier may answer ---


def logits_of(classes, width=3):
    return nn.functional.one_hot(classes, width).float()


ANSWERS = {
    "logits": lambda b: logits_of(by_sign(b)),
    "double logits": lambda b: logits_of(by_sign(b)).double(),
    "half logits": lambda b: logits_of(by_sign(b)).half(),
    "class indices": by_sign,
    "int32 indices": lambda b: by_sign(b).int(),
    "int8 indices": lambda b: by_sign(b).to(torch.int8),
    "boolean": lambda b: by_sign(b).bool(),
    "numpy logits": lambda b: logits_of(by_sign(b)).numpy(),
    "numpy indices": lambda b: by_sign(b).numpy(),
    "numpy from numpy": lambda b: (b.numpy().reshape(len(b), -1)[:, 0] > 0).astype(np.int64),
    "list of indices": lambda b: by_sign(b).tolist(),
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_every_kind_of_answer_gives_the_same_votes(kind):
    votes = votes_of(ANSWERS[kind], n=50, size=16)
    assert votes.counts.tolist() == votes_of(by_sign, n=50, size=16).counts.tolist()
    assert 0 < int(votes.counts[0]) < 50 and votes.invalid == 0


INVALID_VOTES = {
    "nan in one logit": lambda b: torch.where(
        by_sign(b)[:, None] > 0, torch.tensor([math.nan, 0.0, 1.0]), torch.ones(3)
    ),
    "all nan": lambda b: torch.where(by_sign(b)[:, None] > 0, math.nan, torch.ones(len(b), 3)),
    "index too large": lambda b: torch.where(by_sign(b) > 0, 3, 0),
    "index far too large": lambda b: torch.where(by_sign(b) > 0, 10**12, 0),
    "index negative": lambda b: torch.where(by_sign(b) > 0, -1, 0),
    "int8 negative": lambda b: torch.where(by_sign(b) > 0, -1, 0).to(torch.int8),
    "numpy negative": lambda b: torch.where(by_sign(b) > 0, -1, 0).numpy(),
}


@pytest.mark.parametrize("kind", INVALID_VOTES)
def test_invalid_votes_are_counted_for_no_class(kind):
    reference = votes_of(by_sign, n=50, size=16)
    votes = votes_of(INVALID_VOTES[kind], n=50, size=16)
    assert votes.invalid == int(reference.counts[1]) > 0
    assert votes.counts.tolist() == [int(reference.counts[0]), 0, 0]
    assert int(votes.counts.sum()) + votes.invalid == 50


@pytest.mark.parametrize("dtype", (torch.int8, torch.int16, torch.int64))
def test_an_invalid_index_in_a_narrow_dtype_never_wraps_into_a_class(dtype):
    """num_classes itself stands for an invalid vote, and 256 does not fit into eight bits."""
    votes = Classifier(by_sign, 256).to_votes(torch.tensor([-1, 3], dtype=dtype), 2)
    assert votes.tolist() == [256, 3]


WRONG_OUTPUT = {
    "too few logits": lambda b: torch.zeros(len(b), 2),
    "too many logits": lambda b: torch.zeros(len(b), 10),
    "one answer for all": lambda b: torch.zeros(3),
    "scalar": lambda b: torch.zeros(()),
    "half the batch": lambda b: torch.zeros(len(b) // 2, 3),
    "half the indices": lambda b: torch.zeros(len(b) // 2, dtype=torch.int64),
    "float indices": lambda b: torch.zeros(len(b)),
    "integer logits": lambda b: torch.zeros(len(b), 3, dtype=torch.int64),
    "spatial logits": lambda b: torch.zeros(len(b), 3, 4),
    "complex": lambda b: torch.zeros(len(b), 3, dtype=torch.complex64),
}


@pytest.mark.parametrize("kind", WRONG_OUTPUT)
def test_an_output_of_the_wrong_shape_is_an_error(kind):
    with pytest.raises(ModelError):
        votes_of(WRONG_OUTPUT[kind], n=20, size=16)


@pytest.mark.parametrize("answer", [None, "cat", {"logits": 1}], ids=repr)
def test_an_output_that_is_no_tensor_is_an_error(answer):
    with pytest.raises(ModelError, match=f"{type(answer).__name__}, not with a tensor.*wrap it"):
        votes_of(lambda b: answer, n=20, size=16)


def test_wrong_width_names_both_numbers():
    with pytest.raises(ModelError, match=r"10 logits.*num_classes is 3"):
        votes_of(WRONG_OUTPUT["too many logits"], n=20, size=16)


@pytest.mark.parametrize("num_classes", (1, 0, -3, 2.0, True, "10", None))
def test_class_count_must_be_a_whole_number_of_at_least_two(num_classes):
    with pytest.raises(InvalidInput):
        Classifier(by_sign, num_classes)


def test_a_model_must_be_callable():
    with pytest.raises(ModelError, match="callable"):
        Classifier(torch.ones(3), 3)


def test_a_module_in_training_mode_is_refused_down_to_its_last_layer():
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, 3), nn.Dropout(0.5)).eval()
    Classifier(model, 3).check_ready()
    model[2].train()
    with pytest.raises(ModelError, match=r"eval\(\)"):
        Classifier(model, 3).check_ready()
    with pytest.raises(ModelError, match="training mode"):
        Classifier(nn.Linear(2, 3), 3).check_ready()


def test_inputs_are_cast_to_the_models_precision_after_the_noise_was_added():
    seen = []

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1, dtype=torch.float32))

        def forward(self, batch):
            seen.append(batch.dtype)
            return by_sign(batch)

    votes_of(Model().eval(), n=8, size=8, x=X.double())
    assert seen == [torch.float32]
    assert shown(x=X.double()).dtype == torch.float64


def test_no_gradient_is_recorded():
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, 3)).eval()
    flags = []
    model.register_forward_hook(lambda module, args, output: flags.append(output.requires_grad))
    votes_of(model, n=8, size=8)
    assert flags == [False]


# --- many inputs at once ---


@given(
    wanted=st.lists(st.lists(st.integers(1, 60), min_size=1, max_size=3), min_size=1, max_size=5),
    slots=st.integers(1, 6),
)
def test_requests_share_forward_passes_and_each_gets_the_votes_it_would_get_alone(wanted, slots):
    model, size = Recorder(), 8
    M = Isotropic()
    inputs = [torch.full((1, 2, 3), 0.3 * i) for i in range(len(wanted))]
    requests = [
        Request(M.at(x), x, tuple((Stream(0, f"input {i}", f"phase {j}"), n) for j, n in enumerate(ns)))
        for i, (x, ns) in enumerate(zip(inputs, wanted, strict=True))
    ]
    found = list(count_requests(counter(model, size=size, forward=slots * size), iter(requests)))
    assert [request for request, _ in found] == requests
    for request, votes in found:
        alone = [
            classify_samples(counter(by_sign, size=size), request.M, request.x, n, stream)
            for stream, n in request.streams
        ]
        assert [v.counts.tolist() for v in votes] == [v.counts.tolist() for v in alone]
    blocks_wanted = sum(math.ceil(n / size) for ns in wanted for n in ns)
    assert len(model.batches) == math.ceil(blocks_wanted / slots)


def test_inputs_are_asked_for_as_they_are_needed():
    taken = []

    def requests():
        for i in range(100):
            taken.append(i)
            x = torch.full((1, 2, 3), float(i))
            yield Request(Isotropic().at(x), x, ((Stream(0, str(i), "estimate"), 16),))

    results = count_requests(counter(by_sign, size=8, forward=32), requests())
    next(results)
    assert len(taken) <= 3
