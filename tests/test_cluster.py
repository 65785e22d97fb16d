"""Votes counted by workers: the same as those of one process, in any order and whatever happens to the workers."""

import itertools
import json
import pickle
import random
import sys
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from typer.testing import CliRunner

from fake_ray import FakeRay
from ucan import (
    BasisWise,
    CertificationWise,
    Composed,
    DatasetWise,
    Fixed,
    Gaussian,
    InvalidInput,
    Isotropic,
    ModelError,
    SmoothedClassifier,
    SmoothedLabels,
    SmoothedRegressor,
    SmoothedSegmenter,
)
from ucan.cli import app
from ucan.cluster import engine as cluster_engine
from ucan.cluster import spread
from ucan.cluster.parcel import Codec, Package, Piece, Unit
from ucan.cluster.worker import Report, Worker
from ucan.errors import ClusterError, MissingExtra
from ucan.held import Coordinates
from ucan.plan import CertifyPlan
from ucan.results import Store
from ucan.results.answers import AnswerStore
from ucan.scales import Dense
from ucan.smoothed import COMPANY
from ucan.votes import Classifier, Stream, VoteCounter

SHAPE, DIM, CLASSES = (1, 4, 4), 16, 3
CPU = torch.device("cpu")


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def classifier(seed=1):
    model = nn.Sequential(nn.Flatten(), nn.Linear(DIM, CLASSES)).eval()
    with torch.no_grad():
        model[1].weight.copy_(torch.randn(CLASSES, DIM, generator=rng(seed)))
        model[1].bias.zero_()
    return model


XS = torch.rand(7, *SHAPE, generator=rng(2))
OPTIONS = {"n0": 20, "n": 300, "alpha": 0.01, "seed": 3, "batch_size": 32}
PLANS = {
    "fixed": OPTIONS,
    "long selection": {**OPTIONS, "n0": 50},
    "two-class": {**OPTIONS, "bound": "two-class"},
    "radii": {**OPTIONS, "stop": [0.0, 0.1]},
    "within": {**OPTIONS, "n": 3000, "stop": "20%"},
}


def generators():
    torch.manual_seed(0)
    return {
        "isotropic": None,
        "a map and an offset": Fixed(0.5 + torch.rand(SHAPE, generator=rng()), 0.1 * torch.ones(SHAPE)),
        "a matrix": Fixed(Dense(torch.eye(DIM) + 0.05 * torch.rand(DIM, DIM, generator=rng()))),
        "dataset-wise": DatasetWise(SHAPE),
        "certification-wise": CertificationWise(1, features=2, growth=2),
        "basis-wise": BasisWise.pca(torch.rand(40, *SHAPE, generator=rng()), leading=6),
        "composed": Composed(1, norm=2, features=2, growth=2),
    }


def smoothed(generator=None, model=None, **options):
    return SmoothedClassifier(model or classifier(), Gaussian(0.5), generator, CLASSES, **options)


@pytest.fixture
def fake(monkeypatch):
    """A Ray of our own; calling it again makes another."""

    def make(*args, **options):
        ray = FakeRay(*args, **options)
        monkeypatch.setitem(sys.modules, "ray", ray)
        return ray

    return make


@pytest.fixture
def short_units(monkeypatch):
    """Every unit is one forward pass."""
    monkeypatch.setattr(cluster_engine, "UNIT_SECONDS", 0.0)
    monkeypatch.setattr(cluster_engine, "UNITS_PER_SECOND", 1e9)


def outcomes(found):
    return [outcome.to_dict() for outcome in found]


# --- the same votes ---


@pytest.mark.parametrize(
    "asked",
    ({"top": 2}, {"confidence": 0.4}, {"top": 2, "stop": 0.3}, {"confidence": 0.4, "stop": [0.1, 0.3]}),
    ids=str,
)
def test_so_are_the_answers_to_questions_about_classes(asked, fake):
    fake(seed=5)
    g, options = smoothed(), {**OPTIONS, "n": 1000, **asked}
    with spread(g) as h:
        found = outcomes(h.certify(XS, **options))
    assert found == outcomes(g.certify(XS, **options)) and any(one["kind"] != "abstention" for one in found)
    assert "stop" not in asked or len({one["evidence"]["n"] for one in found}) > 1


class Pixels(nn.Module):
    def forward(self, batch):
        return torch.cat([batch, 0.2 - batch, -batch], 1)


QUESTIONS = {
    "numbers": (SmoothedRegressor, {"radius": [0.1, 0.3]}),
    "numbers in double precision": (SmoothedRegressor, {"radius": 0.1}),
    "within": (SmoothedRegressor, {"within": 2.0, "n0": 90}),
    "within, stopped": (SmoothedRegressor, {"within": 2.0, "n0": 90, "stop": [0.1, 0.6]}),
    "labels": (SmoothedLabels, {"radius": 0.1}),
    "labels, stopped": (SmoothedLabels, {"radius": 0.1, "stop": 0.1}),
    "pixels": (SmoothedSegmenter, {}),
    "pixels, stopped": (SmoothedSegmenter, {"radius": 0.2, "stop": 0.2}),
}


@pytest.mark.parametrize("name", QUESTIONS)
@pytest.mark.parametrize("seed", (0, 1))
def test_so_are_the_answers_to_other_questions(name, seed, fake, short_units):
    """Numbers, labels and pixels: bit for bit those of one process, in any order and with workers that are lost."""
    random_ = random.Random(seed)
    ray = fake(seed=seed, faults=lambda actor, call: "lose" if call == "count" and random_.random() < 0.1 else None)
    kind, asked = QUESTIONS[name]
    own = {"num_classes": 3} if kind is SmoothedSegmenter else {}
    model = Pixels().eval() if kind is SmoothedSegmenter else classifier()
    xs = XS
    if "double" in name:
        model, xs = model.double(), XS.double()
    g, options = kind(model, Gaussian(0.5), **own), {"n": 1000, "batch_size": 32, **asked}
    with spread(g, workers=3) as h:
        found = outcomes(h.certify(xs, **options))
    assert found == outcomes(g.certify(xs, **options)) and any(one["kind"] != "abstention" for one in found)
    assert any(call == "count" for call, _ in ray.answers)
    assert "stop" not in asked or len({one["evidence"]["n"] for one in found}) > 1


def test_pixels_are_counted_by_the_workers(fake):
    """What comes back is a count for each class and pixel, however many votes: not the votes themselves."""
    ray = fake()
    g = SmoothedSegmenter(Pixels().eval(), Gaussian(0.5), num_classes=3)
    with spread(g, workers=1) as h:
        h.certify(XS[:1], n=4096, batch_size=4096)
    assert max(size for call, size in ray.answers if call == "count") < 4 * 2 * DIM * 8 < 4096 * DIM


@pytest.mark.parametrize("plan", PLANS)
def test_the_outcomes_are_those_of_one_process(plan, fake):
    fake()
    g = smoothed()
    with spread(g) as h:
        assert outcomes(h.certify(XS, **PLANS[plan])) == outcomes(g.certify(XS, **PLANS[plan]))


@pytest.mark.parametrize("name", generators())
def test_so_they_are_under_every_kind_of_noise(name, fake):
    fake()
    g = smoothed(generators()[name])
    for plan in ("fixed", "radii"):
        with spread(g) as h:
            assert outcomes(h.certify(XS, **PLANS[plan])) == outcomes(g.certify(XS, **PLANS[plan])), plan


ONE_PROCESS = {plan: outcomes(smoothed().certify(XS, **options)) for plan, options in PLANS.items()}


@settings(max_examples=30)
@given(
    plan=st.sampled_from(list(PLANS)), workers=st.integers(1, 5), seed=st.integers(0, 10**6), rate=st.floats(0.0, 0.3)
)
def test_whatever_the_workers_the_order_and_the_losses(plan, workers, seed, rate):
    chance, in_a_row = random.Random(seed), 0

    def faults(actor, name):
        nonlocal in_a_row
        lost = in_a_row < 6 and chance.random() < rate  # more of them without an answer, and one worker gives up
        in_a_row = in_a_row + 1 if lost else 0 if name == "count" else in_a_row
        return "lose" if lost else None

    ray = FakeRay(seed, faults)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "ray", ray)
        with spread(smoothed(), workers=workers) as h:
            assert outcomes(h.certify(XS, **PLANS[plan])) == ONE_PROCESS[plan]
    assert len(ray.actors) == workers and all(actor.dead for actor in ray.actors)  # sent home


def test_long_units_give_the_same_votes_as_short_ones(fake, short_units, monkeypatch):
    g = smoothed()
    for seconds in (0.0, 1e9):
        fake()
        monkeypatch.setattr(cluster_engine, "UNIT_SECONDS", seconds)
        with spread(g) as h:
            assert outcomes(h.certify(XS, **OPTIONS)) == ONE_PROCESS["fixed"]
            passes = h.engine.setup(XS[:1], CertifyPlan(**OPTIONS)).counter.passes
        assert passes == 1 if seconds == 0 else passes > 1


def test_one_input_is_spread_over_all_workers(fake, short_units):
    ray = fake(cpus=4)
    with spread(smoothed()) as h:
        h.certify(XS[:1], **{**OPTIONS, "n": 3000})
    counted = {id(actor) for actor, _ in ray.fetched}
    assert len(counted) == 4


def test_equal_inputs_do_not_get_into_each_others_way(fake):
    twice = torch.cat([XS[:1], XS[:1], XS[1:2]])
    g = smoothed()
    for plan in ("fixed", "radii"):
        fake()
        with spread(g) as h:
            found = outcomes(h.certify(twice, **PLANS[plan]))
            assert found == outcomes(g.certify(twice, **PLANS[plan])) and found[0] == found[1]


def test_predictions_and_single_votes_are_counted_there_too(fake):
    ray = fake()
    g = smoothed()
    with spread(g) as h:
        for stop in (False, True):
            options = {"n": 200, "seed": 1, "batch_size": 32, "stop": stop}
            assert outcomes(h.predict(XS, **options)) == outcomes(g.predict(XS, **options))
        ours, theirs = h.votes(XS[:1], 100, 5, "verify"), g.votes(XS[:1], 100, 5, "verify")
        assert ours.counts.equal(theirs.counts)
    assert sum(name == "count" for name, _ in ray.answers) > 10


def test_the_classifier_is_sent_again_when_it_has_changed(fake):
    ray = fake()
    model = classifier()
    g = smoothed(model=model)
    with spread(g) as h:
        before = outcomes(h.certify(XS[:2], **OPTIONS))
        h.certify(XS[:2], **OPTIONS)
        assert sum(name == "prepare" for name, _ in ray.sent) == 3
        with torch.no_grad():
            model[1].weight.neg_()
        after = outcomes(h.certify(XS[:2], **OPTIONS))
    assert after != before and after == outcomes(g.certify(XS[:2], **OPTIONS))


def test_a_loop_may_be_left_early(fake):
    fake()
    with spread(smoothed()) as h:
        for plan in ("fixed", "radii"):
            ucan_plan = CertifyPlan(**{**PLANS[plan], "stop": None})
            next(iter(h.certify_each(list(XS.split(1)), ucan_plan)))
            assert outcomes(h.certify(XS, **PLANS[plan])) == ONE_PROCESS[plan]


def test_progress_hears_of_every_vote(fake):
    fake()
    told = []
    with spread(smoothed()) as h:
        h.engine.on_votes = told.append
        h.certify(XS, **OPTIONS)
    assert sum(told) == len(XS) * (OPTIONS["n0"] + OPTIONS["n"])


# --- held coordinates: another classifier at other values, with the same workers ---


def with_held():
    """A classifier of 16 numbers of which two are held, and inputs with their held values: a, b, a."""
    model = nn.Linear(DIM, CLASSES).eval()
    with torch.no_grad():
        model.weight.copy_(torch.randn(CLASSES, DIM, generator=rng(1)))
    rows = Coordinates(model, (DIM,), (0, 5), CLASSES)
    whole = torch.rand(3, DIM, generator=rng(2))
    whole[2, [0, 5]] = whole[0, [0, 5]]
    whole[1, [0, 5]] = torch.tensor([9.0, -9.0])
    return smoothed(model=rows), [rows.split(one[None]) for one in whole]


@pytest.mark.parametrize("plan", ("fixed", "radii", "within"))
def test_held_columns_travel_with_the_classifier(plan, fake):
    ray = fake()
    g, inputs = with_held()
    with spread(g) as h:
        found = [outcomes(h.holding(held).certify(x, **PLANS[plan])) for x, held in inputs]
        (x, held), (_, other), _ = inputs
        a, b = h.holding(held), h.holding(other)
        answers = [outcomes(one.certify(x, **OPTIONS)) for one in (a, b, a)]
        assert answers[0] == answers[2] != answers[1]
    assert found == [outcomes(g.holding(held).certify(x, **PLANS[plan])) for x, held in inputs]
    assert sum(name == "prepare" for name, _ in ray.sent) >= 6  # each time the held values change


def test_workers_have_one_classifier_at_a_time(fake, short_units):
    fake()
    g, inputs = with_held()
    (x, held), (y, other), _ = inputs
    with spread(g) as h:
        begun = h.holding(held).certify_each([x, x + 1, x + 2], CertifyPlan(**{**OPTIONS, "n": 3000}))
        next(begun)
        assert outcomes(h.holding(other).certify(y, **OPTIONS)) == outcomes(g.holding(other).certify(y, **OPTIONS))
        with pytest.raises(ClusterError, match="finish the inputs of one classifier first"):
            list(begun)


# --- what travels ---


def test_an_input_goes_to_a_worker_once_and_noise_never(fake, short_units):
    ray = fake(cpus=2)
    big = torch.rand(3, 1, 32, 32, generator=rng())
    model = nn.Sequential(nn.Flatten(), nn.Linear(1024, CLASSES)).eval()
    sigma = 0.5 + torch.rand(1, 32, 32, generator=rng())
    with spread(SmoothedClassifier(model, Gaussian(0.5), Fixed(sigma), CLASSES)) as h:
        h.certify(big, n=20_000, batch_size=256)
    assert len(ray.fetched) == len(set(ray.fetched))
    put = sorted(len(thing) for thing in ray.things.values())
    noise, *inputs, package = put
    assert len(inputs) == 3 and all(4096 < size < 4600 for size in inputs) and noise < 900
    assert package < 40_000
    units = [size for name, size in ray.sent if name == "count"]
    rows = [size for name, size in ray.answers if name == "count"]
    assert len(units) > 50 and max(units) < 1000 and max(rows) < 500
    assert sum(units) + sum(rows) < 20_000 * 1024 * 4 / 100  # far from even one input's noise


def test_per_input_noise_travels_with_its_input(fake):
    ray = fake(cpus=1)
    with spread(smoothed(generators()["certification-wise"])) as h:
        h.certify(XS, **OPTIONS)
    assert len(ray.things) == 1 + 2 * len(XS)
    assert len(ray.fetched) == 2 * len(XS)


def test_noise_that_all_inputs_share_is_sent_once(fake):
    for name in ("isotropic", "dataset-wise", "basis-wise", "composed"):
        ray = fake(cpus=1)
        with spread(smoothed(generators()[name])) as h:
            h.certify(XS, **OPTIONS)
        assert len(ray.things) == 1 + 1 + len(XS), name


@pytest.mark.parametrize("name", ("a matrix", "basis-wise", "composed", "certification-wise"))
def test_what_a_worker_has_is_not_sent_again(name):
    M = generators()[name] or Isotropic()
    x = XS[:1]
    here, there = Codec(M), Codec(pickle.loads(pickle.dumps(M)))
    data = here.encode(M.at(x))
    own = 2 * DIM * 4 if name == "certification-wise" else 0
    assert len(data) < 1100 + own
    noise = [m.perturb(x, Gaussian(0.5), 4, rng(5)) for m in (M.at(x), there.decode(data, CPU))]
    assert torch.equal(*noise)
    for sent in (x, x.double(), x.bfloat16()):
        found = there.decode(here.encode(sent), CPU)
        assert found.dtype == sent.dtype and torch.equal(found, sent)


@pytest.mark.parametrize("plan", ("fixed", "radii"))
def test_references_are_kept_only_while_an_input_is_under_way(plan, fake, monkeypatch):
    fake()
    with spread(smoothed()) as h:
        assert outcomes(h.certify(XS, **PLANS[plan])) == ONE_PROCESS[plan]
        assert not h.engine.setup(XS[:1], CertifyPlan(**{**PLANS[plan], "stop": None})).counter.refs
    monkeypatch.setattr(cluster_engine, "AT_HAND", 2)
    fake()
    with spread(smoothed()) as h:
        assert outcomes(h.certify(XS, **PLANS[plan])) == ONE_PROCESS[plan]


def test_a_worker_forgets_what_it_has_no_room_for(fake, monkeypatch):
    monkeypatch.setattr("ucan.cluster.worker.REMEMBERED", 1000)
    ray = fake(cpus=1)
    with spread(smoothed()) as h:
        found = outcomes(h.certify(XS, **{**PLANS["radii"]}))
        assert len(ray.actors[0].process.things) < len(XS)
    assert found == ONE_PROCESS["radii"] and len(ray.fetched) > len(set(ray.fetched))


def test_counts_travel_in_the_fewest_bytes():
    worker = Worker()
    package = Package(
        Classifier(classifier(), CLASSES), Isotropic(), Gaussian(0.5), "eager", CertifyPlan(**OPTIONS), XS[:1]
    )
    report = worker.prepare(pickle.dumps(package), "cpu")
    assert (report.block, report.size, report.backend, report.precision) == (128, 32, "eager", "fp32")
    worker._get = {"x": XS[:1], "M": Isotropic().at(XS[:1])}.get
    pieces = (Piece("x", "M", Stream(0, "h", "select"), 0, 1, 20), Piece("x", "M", Stream(0, "h", "estimate"), 2, 9, 7))
    rows, seconds = worker.count(Unit(pieces, in_order=False))
    assert rows.sum(1).tolist() == [20, 8 * 128 + 7] and rows.dtype == np.uint16 and seconds > 0
    each, _ = worker.count(Unit(pieces, in_order=True))
    assert each.shape == (10, 128) and each.dtype == np.uint8
    in_order = np.concatenate([*each[1:9], each[9, :7]])
    assert np.bincount(in_order, minlength=CLASSES + 1).tolist() == rows[1].tolist()
    many, _ = worker.count(Unit((Piece("x", "M", Stream(0, "h", "estimate"), 0, 40, 128),), in_order=False))
    assert many.sum() == 40 * 128 and many.dtype == np.uint16


# --- what happens to workers is said ---


def test_losses_and_returns_are_told(fake):
    told, lost = [], iter([None, "lose"])
    fake(faults=lambda actor, name: next(lost, None) if name == "count" else None, cpus=2)
    with spread(smoothed(), tell=told.append) as h:
        assert outcomes(h.certify(XS, **OPTIONS)) == ONE_PROCESS["fixed"]
    assert told[0] == "2 workers, a CPU core each, are being started."
    assert "was lost; its work is repeated" in told[1] and told[2].endswith("is back.")
    assert len(told) == 3


def test_a_worker_that_is_gone_for_good_leaves_its_work_to_the_others(fake):
    told, fate = [], iter([None, "gone"])
    fake(faults=lambda actor, name: next(fate, None) if name == "count" else None, cpus=2)
    with spread(smoothed(), tell=told.append) as h:
        assert outcomes(h.certify(XS, **OPTIONS)) == ONE_PROCESS["fixed"]
    assert "lost for good (killed by signal 9); the others continue" in told[1]


def test_when_none_is_left_it_is_an_error(fake):
    fake(faults=lambda actor, name: "gone" if name == "count" else None)
    with spread(smoothed()) as h, pytest.raises(ClusterError, match="no worker is left: killed by signal 9"):
        h.certify(XS, **OPTIONS)


@pytest.mark.parametrize("deadly", ("prepare", "count"))
def test_a_classifier_that_ends_every_worker_ends_the_run(deadly, fake):
    fake(faults=lambda actor, name: "lose" if name == deadly else None)
    with spread(smoothed()) as h, pytest.raises(ClusterError, match="times in a row"):
        h.certify(XS, **OPTIONS)


def test_waiting_for_a_cluster_is_told(fake):
    ray, told = fake(), []
    ray.stuck = True

    def tell(line):
        told.append(line)
        ray.stuck = len(told) < 3

    with spread(smoothed(), tell=tell) as h:
        h.certify(XS[:1], **OPTIONS)
    assert told[1] == told[2] == "no worker is ready yet: waiting for room for 3 on the cluster."


def test_waiting_for_a_classifier_that_takes_long_to_load_is_told(fake):
    told = []

    def slow(actor, name):
        ray.stuck = len(told) == 1 and name == "wake"

    def tell(line):
        told.append(line)
        ray.stuck = False

    ray = fake(faults=slow)
    with spread(smoothed(), tell=tell) as h:
        h.certify(XS[:1], **OPTIONS)
    assert told[1:] == ["no worker is ready yet: they are loading the classifier."]


def test_a_worker_that_is_lost_while_it_waits_for_another_classifier_joins_once(fake):
    model, told = classifier(), []
    g = smoothed(model=model)
    lost = iter(["lose"])
    ray = fake(cpus=2)
    with spread(g, tell=told.append) as h:
        h.certify(XS, **OPTIONS)
        ray.faults = lambda actor, name: next(lost, None) if name in ("wake", "prepare") else None
        with torch.no_grad():
            model[1].weight.neg_()
        for _ in range(3):
            assert outcomes(h.certify(XS, **OPTIONS)) == outcomes(g.certify(XS, **OPTIONS))
    assert sum(line.endswith("is back.") for line in told) <= 1


def test_an_error_of_the_classifier_is_raised_as_it_is(fake):
    class Fails(nn.Module):
        def forward(self, batch):
            if len(batch) > COMPANY:
                raise ZeroDivisionError("an input that it cannot take")
            return batch.flatten(1)[:, :CLASSES]

    fake().cloudpickle = type("Same", (), {"dumps": staticmethod(lambda package: package)})
    with pytest.MonkeyPatch.context() as patch, spread(smoothed(model=Fails().eval())) as h:
        patch.setattr("ucan.cluster.worker.pickle.loads", lambda data: data)
        with pytest.raises(ZeroDivisionError, match="cannot take"):
            h.certify(XS, **OPTIONS)


def test_workers_that_run_other_classifiers_are_refused(fake, monkeypatch):
    reports = itertools.cycle(Report("cpu", "eager", precision, None, 32, 32) for precision in ("fp32", "bf16"))
    monkeypatch.setattr(Worker, "prepare", lambda self, data, device: next(reports))
    fake(cpus=2, faults=lambda actor, name: "lose" if name == "count" else None)
    model = lambda batch: batch.flatten(1)[:, 0].long()  # noqa: E731
    monkeypatch.setattr("ucan.cluster.parcel.Package.pack", lambda self: b"")
    with spread(smoothed(model=model)) as h, pytest.raises(ClusterError, match=r"a different classifier.*bf16"):
        h.certify(XS, **OPTIONS)


def test_other_weights_on_the_workers_are_refused(fake, monkeypatch):
    monkeypatch.setattr(Worker, "prepare", lambda self, data, device: Report("cpu", "eager", "fp32", "abc", 32, 32))
    fake()
    with spread(smoothed()) as h, pytest.raises(ClusterError, match="other weights"):
        h.certify(XS, **OPTIONS)


def test_a_forward_pass_that_does_not_fit_names_one_that_may(fake, monkeypatch):
    real, calls = VoteCounter._forward, []

    def scarce(self, jobs):
        calls.append(self.size)
        if self.size > 32:
            raise torch.OutOfMemoryError("too much")
        return real(self, jobs)

    fake()
    monkeypatch.setattr(VoteCounter, "_forward", scarce)
    monkeypatch.setattr("ucan.engine.block_size", lambda dim: 32)
    with spread(smoothed()) as h, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ModelError, match="--batch-size 32"):
            h.certify(XS, **{**OPTIONS, "batch_size": 64})


def test_the_backend_is_chosen_once_for_all_workers(fake, monkeypatch):
    monkeypatch.setattr("ucan.backends._compiled", lambda vote, *_: vote)  # a compiler takes its time
    ray = fake()
    with spread(smoothed(backend="auto")) as h:
        h.certify(XS[:1], **{**OPTIONS, "n": 3000})
    assert len({actor.process.engine.backend for actor in ray.actors}) == 1
    assert ray.actors[0].process.engine.backend != "auto"


def test_what_cannot_be_sent_is_refused_in_words(fake):
    fake()
    g = smoothed(model=lambda batch: batch.flatten(1)[:, :CLASSES])  # plain pickle takes no lambda
    with spread(g) as h, pytest.raises(ModelError, match="cannot be sent to workers"):
        h.certify(XS, **OPTIONS)


# --- asking for a cluster ---


def test_without_ray_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"pip install 'ucan\[cluster\]'"), spread(smoothed()):
        pass


@pytest.mark.parametrize("address", ("127.0.0.1:1", "ray://127.0.0.1:1", "nowhere:port"))
def test_an_address_at_which_nobody_listens_is_refused_at_once(address, fake):
    fake().is_initialized = lambda: False
    with pytest.raises(ClusterError, match="nothing answers"), spread(smoothed(), address):
        pass


@pytest.mark.parametrize("workers", (0, -1, 2.5, True))
def test_a_wrong_number_of_workers_is_refused(workers, fake):
    fake()
    with pytest.raises(InvalidInput, match="workers"), spread(smoothed(), workers=workers):
        pass


def test_a_cluster_without_room_is_refused_unless_workers_are_named(fake):
    fake(cpus=0)
    with pytest.raises(ClusterError, match="has no CPU"), spread(smoothed()):
        pass
    with pytest.raises(ClusterError, match="has no GPU"), spread(smoothed(), device="cuda"):
        pass
    with spread(smoothed(), workers=2) as h:
        assert outcomes(h.certify(XS, **OPTIONS)) == ONE_PROCESS["fixed"]


def test_the_engine_of_the_caller_stays_its_own(fake):
    fake()
    g = smoothed()
    engine = g.engine
    with spread(g) as h:
        assert h.engine is not engine and h.M is g.M
    assert g.engine is engine


def run(*words):
    result = CliRunner().invoke(app, ["certify", *words], catch_exceptions=True)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nets.py").write_text("from ucan.models import build_model\nnet = build_model('cnn', (1, 8, 8), 10)\n")
    return tmp_path


WORDS = ["--model", "nets:net", "--data", "digits", "--max", "5", "--n", "300", "--batch-size", "64", "-q"]


@pytest.mark.parametrize("more", ([], ["--stop", "0.0,0.1"], ["--registry", "memory.sqlite"]), ids=str)
def test_the_command_gives_the_same_rows(place, fake, more):
    fake()
    first = [word.replace("memory", "one") for word in more]
    run(*WORDS, *first, "-o", "one")
    result = run(*WORDS, *more, "-o", "many", "--cluster", "auto", "--workers", "2", "--json")
    assert '"inputs": 5' in result.stdout
    one, many = Store.open("one"), Store.open("many")
    for i in range(5):
        assert one.record(i) == many.record(i)


LOANS = """customer,income,age,job,approved
A-1,52000,41,clerk,yes
A-2,38000,29,miner,no
A-3,61000,35,clerk,yes
A-4,41000,52,miner,no
"""
CREDIT = """
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
import pandas as pd
train = pd.read_csv("loans.csv")
encode = make_column_transformer((OneHotEncoder(), ["job"]), (StandardScaler(), ["income", "age"]))
model = make_pipeline(encode, LogisticRegression()).fit(train[["income", "age", "job"]], train["approved"])
"""


def test_a_table_with_held_columns_gives_the_same_rows(tmp_path, monkeypatch, fake):
    pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loans.csv").write_text(LOANS)
    (tmp_path / "credit.py").write_text(CREDIT)
    words = ["--model", "credit:model", "--data", "loans.csv", "--target", "approved", "--id", "customer"]
    (tmp_path / "train.csv").write_text(LOANS)
    words += ["--train", "train.csv", "--n", "300", "-q"]
    ray = fake()
    run(*words, "-o", "one")
    run(*words, "-o", "many", "--cluster", "auto", "--workers", "2")
    one, many = Store.open("one"), Store.open("many")
    assert [one.record(i) for i in range(4)] == [many.record(i) for i in range(4)]
    assert {one.record(i)["evidence"]["held"]["job"] for i in range(4)} == {"clerk", "miner"}
    assert any(name == "count" for name, _ in ray.answers)


def test_a_run_begun_in_one_process_goes_on_in_a_cluster(place, fake):
    fake()
    few = [word if word != "5" else "2" for word in WORDS]
    run(*few, "-o", "run")
    run(*WORDS, "-o", "run", "--cluster", "auto")
    run(*WORDS, "-o", "whole")
    assert [Store.open("run").record(i) for i in range(5)] == [Store.open("whole").record(i) for i in range(5)]


def test_more_votes_go_on_in_a_cluster_where_the_last_block_ended_and_none_counts_twice(place, fake):
    """300 votes are two blocks and a part of the third, whose rest comes first."""
    fake()
    words = [*WORDS, "--bound", "anytime"]
    run(*words, "-o", "run")
    longer = [word if word != "300" else "700" for word in words]
    with pytest.raises(InvalidInput, match="only in one process"):
        run(*longer, "-o", "run", "--cluster", "auto")
    run(*longer, "-o", "run", "--time", "1e-9")  # one input has them all
    run(*longer, "-o", "run", "--cluster", "auto")
    run(*longer, "-o", "whole")
    counts = [[Store.open(name).record(i)["evidence"]["counts"] for i in range(5)] for name in ("run", "whole")]
    assert counts[0] == counts[1]


@pytest.mark.parametrize("more", ([], ["--stop", "0.1"]), ids=str)
def test_a_question_gives_the_same_rows(tmp_path, monkeypatch, fake, more):
    monkeypatch.chdir(tmp_path)
    ray = fake()
    words = ["--top", "3", "--model", "ucan.models.examples:digits", "--data", "digits", "--scale", "0.5"]
    words += ["--max", "4", "--n", "500", "-q", *more]

    def ask(question, *options):
        result = CliRunner().invoke(app, ["ask", question, *options])
        if isinstance(result.exception, InvalidInput):
            raise result.exception
        return json.loads(result.stdout) if "--json" in options else result

    ask("top-k", *words, "-o", "one")
    assert ask("top-k", *words, "-o", "many", "--cluster", "auto", "--workers", "2", "--json")["inputs"] == 4
    assert any(name == "count" for name, _ in ray.answers)
    rows = [[(i, answer.to_dict()) for i, answer in AnswerStore.open(run).answers()] for run in ("one", "many")]
    assert rows[0] == rows[1] and len(rows[0]) == 4
    again = fake()
    ask("top-k", *words, "-o", "one", "--cluster", "auto")
    assert not again.actors
    with pytest.raises(InvalidInput, match="--cluster local"):
        ask("top-k", *words, "-o", "other", "--workers", "2")


@pytest.mark.parametrize(
    "words",
    (
        ["regression", "--radius", "0.1,0.2", "--model", "ucan.models.examples:diabetes", "--data", "diabetes"],
        ["labels", "--radius", "0.1", "--model", "ucan.models.examples:breast_cancer", "--data", "breast-cancer"],
    ),
    ids=lambda words: words[0],
)
def test_so_do_numbers_and_labels(tmp_path, monkeypatch, fake, words):
    monkeypatch.chdir(tmp_path)
    ray, words = fake(), [*words, "--max", "4", "--n", "500", "-q"]
    for more in (["-o", "one"], ["-o", "many", "--cluster", "auto", "--workers", "2"]):
        assert CliRunner().invoke(app, ["ask", *words, *more]).exit_code == 0
    assert any(name == "count" for name, _ in ray.answers)
    rows = [[(i, answer.to_dict()) for i, answer in AnswerStore.open(run).answers()] for run in ("one", "many")]
    assert rows[0] == rows[1] and len(rows[0]) == 4


def test_a_finished_run_starts_no_cluster(place, fake):
    run(*WORDS, "-o", "run")
    ray = fake()
    run(*WORDS, "-o", "run", "--cluster", "auto")
    assert not ray.actors


def test_workers_without_a_cluster_are_refused(place):
    with pytest.raises(InvalidInput, match="--cluster local"):
        run(*WORDS, "--workers", "2")


def test_the_command_says_what_to_install(place, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"ucan\[cluster\]"):
        run(*WORDS, "--cluster", "local")
