"""The registry: no two regions of different answer overlap, whatever is enrolled, by whomever, and whoever is killed."""

import json
import math
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog, minimize_scalar

import ucan
from ucan import Abstention, Certificate, Gaussian, InvalidInput, Laplace, Region, Registry, SmoothedClassifier
from ucan.certificate import from_dict, load_json, save_json
from ucan.errors import StoreError
from ucan.evidence import Evidence, Noise
from ucan.plan import CertifyPlan
from ucan.registry.database import _sketch_checksum
from ucan.registry.regions import Regions
from ucan.scales import Basis, Dense, Diagonal, Scalar
from ucan.sidecar import input_hash
from ucan.smoothed import COMPANY
from ucan.verify import verify

INF = math.inf
NORMS = (1, 2, INF)
every_norm = pytest.mark.parametrize("norm", NORMS)
SOURCE = Path(ucan.__file__).parents[1]
EVIDENCE = Evidence(
    counts=(900, 100, *[0] * 8),
    invalid=0,
    n0=100,
    n=1000,
    alpha=0.001,
    seed=0,
    law=Gaussian(scale=1.0),
    noise=Noise("a stub"),
    bound="binary",
    block=128,
    batch_size=128,
    precision="fp32",
    backend="eager",
    weights_hash=None,
    input_hash="0",
)


def claim(answer, scale, radius, norm, shape=None):
    """What a classifier might have said: a certificate, or for answer None an abstention."""
    if answer is None:
        return Abstention(norm, "frozen", EVIDENCE, "made up", 0.4)
    region = Region(scale, radius, norm, shape)
    return Certificate(
        norm, "frozen", EVIDENCE, prediction=answer, p_lower=0.9, p_upper=None, region=region, alm=region.alm
    )


def point(*values):
    return torch.tensor([values], dtype=torch.float64)


# --- the independent check ---


def overlap(norm, a, b):
    """Whether two open regions meet: by intervals, a linear program, or the overlap function of two ellipsoids."""
    (ca, sa, ra), (cb, sb, rb) = a, b
    d = len(ca)
    if ra == 0 or rb == 0:
        (centre, sigma, radius), p = (b, ca) if ra == 0 else (a, cb)
        return bool(np.linalg.norm((p - centre) / sigma, ord=norm) < radius)
    if norm == INF:
        return bool((np.abs(ca - cb) < ra * sa + rb * sb).all())
    if (
        norm == 2
    ):  # max over λ of min over y of (1−λ)f_a + λf_b, with f the squared sizes over R²: below 1 iff they meet

        def gap(lam):
            return -float(np.sum((ca - cb) ** 2 / ((ra * sa) ** 2 / (1 - lam) + (rb * sb) ** 2 / lam)))

        best = minimize_scalar(gap, bounds=(1e-12, 1 - 1e-12), method="bounded", options={"xatol": 1e-13})
        return bool(-best.fun < 1 - 1e-9)
    eye, zero = np.eye(d), np.zeros((d, d))  # the smallest t with a common point when both radii are t times as large
    none = np.zeros((d, 1))
    rows = [np.hstack([s * eye, p, q, none]) for s in (1, -1) for p, q in ((-eye, zero), (zero, -eye))]
    rows += [np.hstack([np.zeros(d), 1 / sa, np.zeros(d), -ra])[None], np.hstack([np.zeros(2 * d), 1 / sb, -rb])[None]]
    bound = np.concatenate([ca, cb, -ca, -cb, [0, 0]])
    cost = np.append(np.zeros(3 * d), 1.0)
    free = [(None, None)] * d + [(0, None)] * (2 * d + 1)
    return bool(linprog(cost, A_ub=np.vstack(rows), b_ub=bound, bounds=free, method="highs").fun < 1 - 1e-7)


def check(registry):
    """No two enrolments of different answer have a point in common; only those in overlapping boxes need a closer look."""
    entries = list(registry)
    centres = np.stack([entry.centre.double().flatten().numpy() for entry in entries])
    sigmas = np.stack([np.diag(entry.scale.dense(centres.shape[1]).numpy()) for entry in entries])
    radii = np.array([entry.radius for entry in entries])
    answers = np.array([-1 if entry.answer is None else entry.answer for entry in entries])
    halves = sigmas * radii[:, None]
    for i in range(len(entries)):
        other = answers[:i] != answers[i]
        assert (centres[:i][other] != centres[i]).any(1).all()
        boxes = (np.abs(centres[:i] - centres[i]) <= halves[:i] + halves[i]).all(1)
        for j in np.flatnonzero(other & boxes):
            a, b = ((centres[k], sigmas[k], radii[k]) for k in (i, j))
            assert not overlap(registry.norm, a, b), (entries[i], entries[j])
    return len(entries)


def test_the_check_sees_an_overlap():
    for norm in NORMS:
        a = (np.zeros(2), np.ones(2), 1.0)
        for far, meets in ((2.001, False), (1.999, True)):
            assert overlap(norm, a, (np.array([far, 0.0]), np.array([1.0, 3.0]), 1.0)) is meets
        assert overlap(norm, a, (np.array([0.5, 0.0]), np.ones(2), 0.0))
        assert not overlap(norm, a, (np.array([1.5, 0.0]), np.ones(2), 0.0))


# --- any sequence of enrolments ---

SCALES = st.sampled_from([0.05, 0.3, 1.0, 2.5])
ENROLMENT = st.tuples(
    st.lists(st.integers(-6, 6), min_size=3, max_size=3),
    st.lists(SCALES, min_size=3, max_size=3),
    st.sampled_from([0.1, 0.5, 1.0, 4.0]),
    st.sampled_from([None, 0, 0, 1, 1, 2]),
)


@every_norm
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=40)
@given(sequence=st.lists(ENROLMENT, min_size=1, max_size=14), dim=st.sampled_from([1, 2, 3]), data=st.data())
def test_no_two_regions_of_different_answer_overlap_after_any_sequence(norm, sequence, dim, data, tmp_path):
    path = tmp_path / f"{time.monotonic_ns()}.sqlite"
    with Registry(path, norm) as registry:
        for centre, sigma, radius, answer in sequence:
            x = torch.tensor([centre[:dim]], dtype=torch.float64) / 4
            before, found = len(registry), registry.lookup(x)
            given_ = registry.enrol(x, claim(answer, torch.tensor(sigma[:dim], dtype=torch.float64), radius, norm))
            assert given_.scope == "registry" and len(registry) == before + (found is None)
            if found is not None:
                assert given_.prediction == found.answer
            elif not given_.abstained:
                assert given_.prediction == answer and 0 < given_.region.radius <= radius
        check(registry)
        entries = list(registry)
        for _ in range(5):  # whoever asks inside a region gets its answer, and a region inside it
            entry = data.draw(st.sampled_from(entries))
            if entry.answer is None:
                assert registry.lookup(entry.centre[None]).answer is None
                continue
            step = torch.tensor([data.draw(st.lists(st.floats(-1, 1), min_size=dim, max_size=dim))]).double()
            size = torch.linalg.vector_norm(step, ord=norm).clamp_min(1e-9)
            delta = (
                entry.scale.apply(step / size) * entry.radius * data.draw(st.sampled_from([0.0, 0.5, 0.99, 0.999999]))
            )
            answer = registry.enrol(entry.centre[None] + delta, claim(None, None, 0, norm))
            assert answer.prediction == entry.answer


@every_norm
def test_a_query_inside_a_stored_region_gets_its_answer_and_what_is_left_of_it(norm, tmp_path):
    sigma = torch.tensor([0.5, 2.0], dtype=torch.float64)
    with Registry(tmp_path / "r", norm) as registry:
        first = registry.enrol(point(0, 0), claim(1, sigma, 1.0, norm))
        assert first.region.radius == 1.0 and first.scope == "registry" and len(registry) == 1
        inside = point(0.2, 0.4)
        c = registry.enrol(inside, claim(0, sigma, 9.0, norm))
        assert c.prediction == 1 and len(registry) == 1
        used = float(torch.linalg.vector_norm(inside / sigma, ord=norm))
        assert c.region.radius == pytest.approx(1 - used, rel=1e-9) and c.region.radius <= 1 - used
        assert c.alm == pytest.approx(first.alm * (1 - used))
        again = registry.enrol(point(0, 0), claim(0, sigma, 9.0, norm))
        assert again.prediction == 1 and again.region.radius == 1.0


@every_norm
def test_a_new_region_is_shrunk_until_it_touches(norm, tmp_path):
    with Registry(tmp_path / "r", norm) as registry:
        registry.enrol(point(0, 0), claim(0, 1.0, 1.0, norm, (2,)))
        c = registry.enrol(point(3, 0), claim(1, torch.tensor([2.0, 5.0]).double(), 50.0, norm))
        assert c.prediction == 1
        if norm == INF:  # 3 = 1 + 2·r in the first coordinate
            assert c.region.radius == pytest.approx(1.0, rel=1e-8)
        assert check(registry) == 2
        same = registry.enrol(point(0, 3), claim(0, 1.0, 2.5, norm, (2,)))  # overlaps only its own kind, or is inside
        assert same.prediction in (0, 1) and check(registry) in (2, 3)


def test_abstentions_are_answers_of_their_own(tmp_path):
    with Registry(tmp_path / "r", 2) as registry:
        a = registry.enrol(point(0, 0), claim(None, None, 0, 2))
        assert a.abstained and a.scope == "registry" and a.reason == "made up"
        c = registry.enrol(point(3, 4), claim(1, 1.0, 99.0, 2, (2,)))
        assert c.region.radius == pytest.approx(5, rel=1e-8) and c.region.radius <= 5
        again = registry.enrol(point(0, 0), claim(1, 1.0, 99.0, 2, (2,)))
        assert again.abstained and again.reason == "made up" and len(registry) == 2


def test_where_there_is_no_room_it_abstains(tmp_path):
    with Registry(tmp_path / "r", INF) as registry:
        registry.enrol(point(0), claim(0, 1.0, 1.0, INF, (1,)))
        c = registry.enrol(point(1 + 5e-11), claim(1, 1.0, 1.0, INF, (1,)))
        assert c.abstained and "touches" in c.reason and len(registry) == 2


def test_full_scales_in_l2(tmp_path):
    rng = np.random.default_rng(0)
    q = torch.from_numpy(np.linalg.qr(rng.normal(size=(3, 3)))[0])
    shapes = [Basis(q, torch.tensor([0.2, 1.0, 2.0]).double()), Dense(torch.eye(3).double() + 0.3), Scalar(0.5)]
    with Registry(tmp_path / "r") as registry:
        for i in range(24):
            x = torch.from_numpy(rng.normal(size=(1, 3)))
            registry.enrol(x, claim(i % 3 if i % 7 else None, shapes[i % 3], 1.0, 2, (3,)))
        entries = list(registry)
        regions = [(e, Region(e.scale, e.radius, 2, (3,))) for e in entries]
        steps = torch.from_numpy(rng.normal(size=(4000, 3)))
        steps = steps / steps.norm(dim=1, keepdim=True) * torch.from_numpy(rng.uniform(0, 1, (4000, 1))) ** (1 / 3)
        for a, region in regions:
            points = a.centre + a.scale.apply(steps) * region.radius
            for b, other in regions:
                if a.answer != b.answer and a.answer is not None:
                    assert not other.contains(points - b.centre).any()
        connection = sqlite3.connect(tmp_path / "r")
        assert connection.execute("SELECT count(*) FROM scales").fetchone()[0] <= 4  # each Σ once
        connection.close()
    with Registry(tmp_path / "r") as registry:
        assert [e.radius for e in registry] == [e.radius for e in entries]
        assert torch.equal(next(iter(registry)).centre, entries[0].centre)
    with Registry(tmp_path / "inf", INF) as registry, pytest.raises(ucan.UnsupportedNorm, match="ℓ2"):
        registry.enrol(point(0, 0, 0), claim(0, shapes[0], 1.0, INF))


# --- with a classifier ---


class Leaning(ucan.Generator):
    """μ(x) = 5x, σ = 1: the noise of the page on scopes, whose frozen certificates contradict each other."""

    scope = "frozen"

    def forward(self, x):
        return 5 * x, Scalar(1.0)


def test_it_mends_the_contradicting_certificates_of_input_dependent_noise(tmp_path):
    g = SmoothedClassifier(lambda y: (y[:, 0] >= 1).long(), Gaussian(scale=1.0), Leaning(), num_classes=2)
    x = torch.tensor([[0.0], [2.0], [1.2]])
    frozen = g.certify(x, n=5000)
    assert frozen[0].prediction == 0 and frozen[2].prediction == 1
    assert bool(frozen[2].region.contains(torch.tensor([[-1.2]])))  # class 1 at 0, says this one; class 0, the first
    with Registry(tmp_path / "r") as registry:
        a, b, c = registry.certify(g, x, n=5000)
        assert (a.prediction, b.prediction) == (0, 1) and {a.scope, b.scope, c.scope} == {"registry"}
        assert a.radius == frozen[0].radius and a.evidence == frozen[0].evidence
        assert c.prediction == registry.lookup(x[2:]).answer
        assert torch.equal(a.mean if a.mean is not None else torch.zeros(1, 1), x[:1] * 5)
        check(registry)
        (again,) = registry.certify(g, torch.tensor([[0.3]]), n=5000)
        assert again.prediction == 0 and again.evidence == a.evidence  # where the pipeline alone would say 1
        assert again.radius == pytest.approx(a.radius - 0.3, rel=1e-6)


def test_what_it_returns_can_be_saved_and_read(tmp_path):
    g = SmoothedClassifier(
        lambda y: (y.sum(1) > 0).long(), Gaussian(scale=0.5), ucan.Fixed(torch.tensor([0.5, 2.0])), 2
    )
    with Registry(tmp_path / "r") as registry:
        outcomes = registry.certify(g, torch.tensor([[1.0, 1.0], [0.0, 0.0], [1.1, 1.0]]), n=500)
        assert [c.prediction for c in outcomes] == [1, None, 1]
        for i, c in enumerate(outcomes):
            save_json(c, tmp_path / f"{i}.json")
            again = load_json(tmp_path / f"{i}.json")
            assert again.to_dict() == c.to_dict() == from_dict(json.loads(json.dumps(c.to_dict()))).to_dict()
        assert ucan.scales.Diagonal is type(outcomes[2].region.scale) and len(registry) == 2


def test_at_the_rim_the_answer_is_kept_and_nothing_is_claimed(tmp_path):
    with Registry(tmp_path / "r") as registry:
        registry.enrol(point(0.0), claim(1, 1.0, 1.0, 2, (1,)))
        c = registry.enrol(point(1 - 1e-13), claim(0, 1.0, 1.0, 2, (1,)))
        assert c.prediction == 1 and c.radius == 0 and len(registry) == 1
        save_json(c, tmp_path / "c.json")
        assert load_json(tmp_path / "c.json").log_volume == -INF


def test_norms_laws_and_shapes_that_do_not_fit_are_refused_before_any_vote(tmp_path):
    calls = []
    model = lambda y: calls.append(len(y)) or torch.zeros(len(y), dtype=torch.long)  # noqa: E731
    with Registry(tmp_path / "r", norm=INF) as registry:
        with pytest.raises(ucan.UnsupportedNorm, match="ℓ2 regions"):  # Gaussian noise makes ℓ2 regions against ℓ∞
            registry.certify(SmoothedClassifier(model, Gaussian(scale=1.0), None, 2), point(0, 0))
        assert max(calls) <= COMPANY  # the question whether the model answers at all, and each input by itself
        composed = ucan.Composed(net=torch.nn.Identity(), norm=INF)
        (c,) = registry.certify(SmoothedClassifier(model, Gaussian(scale=1.0), composed, 2), point(0, 0).float(), n=200)
        assert c.region.norm == INF and c.scope == "registry"
    with Registry(tmp_path / "one", norm=1) as registry:
        rotated = ucan.Fixed(Basis(torch.eye(2).double(), torch.ones(2).double()))
        with pytest.raises(ucan.UnsupportedNorm, match="ℓ2 only"):
            registry.certify(SmoothedClassifier(model, Laplace(scale=1.0), rotated, 2), point(0, 0))
        registry.enrol(point(0, 0), claim(None, None, 0, 1))
        with pytest.raises(InvalidInput, match="shape"):
            registry.lookup(point(0, 0, 0))
        with pytest.raises(InvalidInput, match="shape"):
            registry.enrol(point(0, 0, 0), claim(None, None, 0, 1))
        with pytest.raises(InvalidInput, match="ℓ2"):
            registry.enrol(point(4, 4), claim(1, 1.0, 1.0, 2, (2,)))
        with pytest.raises(InvalidInput, match="finite"):
            registry.enrol(point(math.nan, 4), claim(1, 1.0, 1.0, 1, (2,)))
        with pytest.raises(InvalidInput, match="finite"):
            registry.enrol(point(4, 4), claim(1, 1.0, INF, 1, (2,)))
        with pytest.raises(InvalidInput, match="this input"):
            registry.enrol(point(4, 4), claim(1, 1.0, 1.0, 1, (3,)))
        with pytest.raises(InvalidInput, match="one input"):
            registry.lookup(torch.zeros(3, 2))
        assert len(registry) == 1


# --- the file ---


def test_a_registry_has_one_norm_and_says_so(tmp_path):
    with Registry(tmp_path / "r", norm=1):
        pass
    with Registry(tmp_path / "r") as registry:
        assert registry.norm == 1 and len(registry) == 0
    with pytest.raises(InvalidInput, match="registry of ℓ1 regions"):
        Registry(tmp_path / "r", norm=2)
    with pytest.raises(InvalidInput):
        Registry(tmp_path / "bad", norm=3)


@every_norm
def test_a_new_registry_takes_its_norm_from_its_first_region(norm, tmp_path):
    with Registry(tmp_path / "r") as registry, Registry(tmp_path / "r") as other:
        assert registry.norm is None and registry.lookup(point(0, 0)) is None
        registry.enrol(point(0, 0), claim(None, None, 0, 2))  # a point has no norm
        assert registry.norm is None and registry.lookup(point(0, 0)).answer is None
        assert registry.lookup(point(0, 1)) is None
        with pytest.raises(InvalidInput, match="finite"):
            registry.enrol(point(3, 4), claim(1, 1.0, INF, norm, (2,)))
        assert registry.norm is None  # what failed settled nothing
        registry.enrol(point(3, 4), claim(1, 1.0, 99.0, norm, (2,)))
        assert registry.norm == other.norm == norm and check(registry) == 2
        with pytest.raises(InvalidInput, match="one norm"):
            other.enrol(point(9, 9), claim(1, 1.0, 1.0, 2 if norm == 1 else 1, (2,)))


def test_the_first_region_of_a_new_registry_is_that_of_the_noise(tmp_path):
    model = lambda y: torch.zeros(len(y), dtype=torch.long)  # noqa: E731
    with Registry(tmp_path / "r") as registry:  # Gaussian noise makes ℓ2 regions against ℓ∞
        (c,) = registry.certify(
            SmoothedClassifier(model, Gaussian(scale=1.0), None, 2), point(0, 0).float(), n=200, norm=INF
        )
        assert (registry.norm, c.norm, c.region.norm) == (2, INF, 2)


# --- whose answers they are ---


def linear(weight):
    net = torch.nn.Linear(2, 2, bias=False).eval()
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[-weight, 0.0], [weight, 0.0]]))
    return net


def test_another_classifier_or_another_alpha_is_refused_before_any_vote(tmp_path):
    x, law = torch.tensor([[1.0, 0.0]]), Gaussian(scale=1.0)
    wide = ucan.Fixed(torch.tensor([1.0, 2.0]))
    g = SmoothedClassifier(linear(1.0), law, wide, 2)
    with Registry(tmp_path / "r") as registry:
        registry.certify(g, x, n=200)
        others = {
            "weights": SmoothedClassifier(linear(2.0), law, wide, 2),
            "law": SmoothedClassifier(linear(1.0), Gaussian(scale=0.5), wide, 2),
            "noise": SmoothedClassifier(linear(1.0), law, None, 2),
            "noise weights": SmoothedClassifier(linear(1.0), law, ucan.Fixed(torch.tensor([1.0, 3.0])), 2),
            "precision": SmoothedClassifier(linear(1.0).double(), law, wide, 2),
        }
        for what, other in others.items():
            for point_ in (x, x + 99):  # also where its memory would answer
                with pytest.raises(InvalidInput, match=f"another classifier .*{what} ") as refused:
                    registry.certify(other, point_, n=200)
                assert "use another file" in str(refused.value)
        with pytest.raises(InvalidInput, match=r"alpha 0\.001, this one 0\.01"):
            registry.certify(g, x, n=200, alpha=0.01)
        with pytest.raises(InvalidInput, match="another classifier"):
            registry.enrol(x, others["law"].certify(x, n=200)[0])
        assert len(registry) == 1
        again = SmoothedClassifier(linear(1.0), law, ucan.Fixed(torch.tensor([1.0, 2.0])), 2)
        registry.certify(again, x + 99, n=300, bound="two-class", seed=5)  # the same one, asked otherwise
        assert len(registry) == 2


def test_weights_that_change_while_it_works_are_noticed(tmp_path):
    net = linear(1.0)
    g = SmoothedClassifier(net, Gaussian(scale=1.0), None, 2)
    with Registry(tmp_path / "r") as registry:
        inputs = (torch.tensor([[10.0 * i, 0.0]]) for i in range(1, 4))
        answers = registry.certify_each(g, inputs, CertifyPlan(n=200))
        next(answers)
        net.weight.data.mul_(2)
        with pytest.raises(InvalidInput, match="another classifier"):
            next(answers)


def test_foreign_and_damaged_files_are_refused(tmp_path):
    (tmp_path / "text").write_bytes(b"not a database at all" * 500)
    with pytest.raises(StoreError, match="not a SQLite file"):
        Registry(tmp_path / "text")
    with closing(sqlite3.connect(tmp_path / "other")) as db, db:
        db.execute("CREATE TABLE t (x)")
    db.close()
    with pytest.raises(StoreError, match="another kind"):
        Registry(tmp_path / "other")
    with pytest.raises(StoreError):
        Registry(tmp_path / "no" / "folder")
    with Registry(tmp_path / "r") as registry:
        registry.enrol(point(0, 0), claim(1, 1.0, 1.0, 2, (2,)))
    for damage in (
        "UPDATE regions SET radius = 99",
        "UPDATE scales SET kind = 'Dense'",
        "DELETE FROM regions",
        "UPDATE sketches SET reach = 0",
        "UPDATE sketches SET answer = 0",
        "UPDATE sketches SET sketch = randomblob(12)",
        "UPDATE sketches SET id = 2",
        "DELETE FROM sketches",
    ):
        copy = tmp_path / "copy"
        copy.write_bytes((tmp_path / "r").read_bytes())
        with closing(sqlite3.connect(copy)) as db, db:
            db.execute(damage)
        db.close()
        with Registry(copy) as registry, pytest.raises(StoreError, match="damaged"):
            registry.lookup(point(0, 0))
    with closing(sqlite3.connect(tmp_path / "r")) as db, db:
        db.execute("PRAGMA user_version = 9")
    db.close()
    with pytest.raises(StoreError, match="version 9"):
        Registry(tmp_path / "r")


def test_a_failed_enrolment_leaves_nothing_behind(tmp_path, monkeypatch):
    with Registry(tmp_path / "r") as registry:
        full = sqlite3.OperationalError("database or disk is full")
        full.sqlite_errorcode = sqlite3.SQLITE_FULL
        monkeypatch.setattr(registry._store, "add", lambda *_: (_ for _ in ()).throw(full))
        with pytest.raises(StoreError, match="no space left"):
            registry.enrol(point(0, 0), claim(1, 1.0, 1.0, 2, (2,)))
        monkeypatch.undo()
        assert len(registry) == 0
        registry.enrol(point(0, 0, 0), claim(1, 1.0, 1.0, 2, (3,)))  # not even the shape was settled
        assert len(registry) == 1


def test_two_registries_on_one_file_see_each_other(tmp_path):
    with Registry(tmp_path / "r") as a, Registry(tmp_path / "r") as b:
        a.enrol(point(0, 0), claim(1, 1.0, 1.0, 2, (2,)))
        assert b.lookup(point(0.5, 0)).answer == 1
        c = b.enrol(point(2, 0), claim(0, 1.0, 9.0, 2, (2,)))
        assert c.region.radius == pytest.approx(1, rel=1e-8) and len(a) == len(b) == 2
        assert a.enrol(point(1.5, 0), claim(1, 1.0, 9.0, 2, (2,))).prediction == 0


def test_it_is_durable_by_its_settings(tmp_path):
    with Registry(tmp_path / "r") as registry:
        db = registry._store._db
        assert db.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
        assert db.execute("PRAGMA synchronous").fetchone()[0] == 2  # FULL


# --- crashes, and several processes at once ---

WORKER = """
import sys, random
sys.path.insert(0, {tests!r})
import torch
from test_registry import Registry, claim
path, norm, seed, count = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
norm = norm if norm == float("inf") else int(norm)
torch.set_num_threads(1)
rng = random.Random(seed)
registry = Registry(path, norm)
print("ready", flush=True)
for _ in range(count):
    x = torch.tensor([[rng.uniform(-1, 1) for _ in range(3)]], dtype=torch.float64)
    sigma = torch.tensor([rng.choice([0.1, 0.5, 1.5]) for _ in range(3)], dtype=torch.float64)
    answer = rng.choice([None, 0, 1, 2, 3])
    given = registry.enrol(x, claim(answer, sigma, rng.choice([0.05, 0.2, 0.6]), norm))
    print(repr(x[0].tolist()), given.prediction, flush=True)
"""


def start(path, norm, seed, count):
    env = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    code = WORKER.format(tests=str(Path(__file__).parent))
    return subprocess.Popen(
        [sys.executable, "-c", code, str(path), str(norm), str(seed), str(count)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
    )


def acknowledged(worker):
    """(centre, answer) of what the worker was told is stored; a line cut short by the kill was not."""
    text, errors = worker.communicate(timeout=300)
    lines = text.split("\n")[:-1]
    assert worker.returncode in (0, -signal.SIGKILL), errors
    pairs = [line.rsplit(" ", 1) for line in lines if line.startswith("[")]
    return [(json.loads(x), None if answer == "None" else int(answer)) for x, answer in pairs]


def check_answers(registry, answers):
    """Every acknowledged answer is still the answer there."""
    for x, answer in answers:
        found = registry.lookup(point(*x))
        assert found is not None and found.answer == answer


def test_a_killed_process_loses_nothing_that_was_acknowledged(tmp_path):
    path = tmp_path / "r"
    worker = start(path, 2, 0, 10**6)
    for _ in range(60):
        assert worker.stdout.readline()
    worker.kill()
    answers = acknowledged(worker)
    with Registry(path) as registry:
        assert check(registry) >= 20
        check_answers(registry, answers)
        registry.enrol(point(9, 9, 9), claim(1, 1.0, 1.0, 2, (3,)))


def test_several_processes_enrol_at_once(tmp_path):
    workers = [start(tmp_path / "r", INF, seed, 40) for seed in range(4)]
    answers = [pair for worker in workers for pair in acknowledged(worker)]
    assert len(answers) == 160
    with Registry(tmp_path / "r") as registry:
        assert check(registry) > 40
        check_answers(registry, answers)


@pytest.mark.slow
@every_norm
def test_eight_processes_killed_at_random(tmp_path, norm):
    rng = random.Random(norm if norm != INF else 9)
    path, answers, seed = tmp_path / "r", [], 0
    for _ in range(4):
        workers = [start(path, norm, seed + i, 100) for i in range(8)]
        seed += 8
        for worker in workers:
            worker.stdout.readline()
        for worker in rng.sample(workers, 6):
            time.sleep(rng.uniform(0, 0.3))
            worker.kill()
        for worker in workers:
            answers += acknowledged(worker)
    with Registry(path) as registry:
        assert check(registry) > 100
        check_answers(registry, answers)
        assert len(answers) > 800


def test_the_stored_record_is_the_shrunk_one(tmp_path):
    with Registry(tmp_path / "r") as registry:
        registry.enrol(point(0, 0), claim(0, 1.0, 1.0, 2, (2,)))
        made = claim(1, Diagonal(torch.tensor([1.0, 1.0]).double()), 5.0, 2)
        c = registry.enrol(point(3, 0), replace(made, p_upper=0.05))
        again = registry.enrol(point(3, 0), made)
        assert again.region.radius == c.region.radius < 2.0 and again.p_upper == 0.05
        assert again.alm == pytest.approx(c.alm)
        assert c.alm == pytest.approx(c.region.radius)


@every_norm
def test_regions_that_overlap_are_found(norm, tmp_path, monkeypatch):
    """A registry that was made without shrinking; regions of one answer may overlap."""
    x = point(0.0, 0.0, 0.0), point(1.0, 0.0, 0.0)
    wide = claim(0, Scalar(1.0), 0.8, norm, (3,)), claim(1, Diagonal(torch.tensor([1.0, 2.0, 0.5])), 0.8, norm)
    with Registry(tmp_path / "honest", norm) as honest:
        assert [honest.enrol(*each).region.radius < 0.8 for each in zip(x, about(x, wide), strict=True)] == [
            False,
            True,
        ]
        assert all(honest.apart(entry) for entry in honest)
    with Registry(tmp_path / "forged", norm) as forged:
        with monkeypatch.context() as patched:
            patched.setattr(Regions, "room", lambda self, point, number, radius, answer: radius)
            given = [forged.enrol(*each) for each in zip(x, about(x, wide), strict=True)]
        assert [each.region.radius for each in given] == [0.8, 0.8]
        assert not any(forged.apart(entry) for entry in forged)
    with Registry(tmp_path / "same", norm) as same:
        for each in zip(x, about(x, (wide[0], replace(wide[1], prediction=0))), strict=True):
            same.enrol(*each)
        assert all(same.apart(entry) for entry in same)


def test_verify_confirms_no_region_that_meets_one_of_another_answer(tmp_path, monkeypatch):
    g = SmoothedClassifier(lambda y: (y[:, 0] >= 1).long(), Gaussian(scale=1.0), Leaning(), num_classes=2)
    x = torch.tensor([[0.0], [1.2]])
    for name in ("honest", "forged"):
        with Registry(tmp_path / name) as registry:
            if name == "forged":
                monkeypatch.setattr(Regions, "room", lambda self, point, number, radius, answer: radius)
                monkeypatch.setattr(Regions, "containing", lambda self, point: None)
            given = registry.certify(g, x, n=5000)
            monkeypatch.undo()
            sure = [each for each in zip(given, x.split(1), strict=True) if not each[0].abstained]
            assert sure
            verdicts = [verify(c, g, x1, seed=5, registry=registry) for c, x1 in sure if registry.issuer(x1, c)]
            assert verdicts and all(v.stands == (name == "honest") for v in verdicts)
            for v in verdicts if name == "forged" else ():
                assert v.confirms is None and [c.name for c in v.checks if not c.passed] == ["scope"]


def about(inputs, claims):
    """Claims with the hashes of their inputs."""
    return [
        replace(each, evidence=replace(each.evidence, input_hash=input_hash(x)))
        for x, each in zip(inputs, claims, strict=True)
    ]


def test_no_region_of_an_honest_registry_meets_another(tmp_path):
    """Of any sequence, in every norm and with a full Σ in ℓ2: the room is computed again as it was when it was enrolled."""
    rng = np.random.default_rng(0)
    for norm in NORMS:
        sigmas = [Scalar(0.7), Diagonal(torch.tensor([0.5, 1.5, 1.0]))]
        sigmas += [Dense(torch.tensor(rng.normal(size=(3, 3)) / 4 + np.eye(3)))] if norm == 2 else []
        with Registry(tmp_path / f"r{norm}", norm) as registry:
            for _ in range(60):
                x = torch.from_numpy(rng.uniform(-1, 1, (1, 3)))
                answer = (None, 0, 1, 2)[rng.integers(4)]
                made = claim(answer, sigmas[rng.integers(len(sigmas))], float(rng.choice([0.05, 0.2, 0.6])), norm, (3,))
                registry.enrol(x, *about([x], [made]))
            certified = [entry for entry in registry if entry.answer is not None]
            assert len(certified) > 10 and all(registry.apart(entry) for entry in certified)


def test_an_outcome_about_another_input_that_has_the_same_float32_numbers_is_refused(tmp_path):
    here, there = torch.tensor([[1.0]], dtype=torch.float64), torch.tensor([[1.0 + 1e-9]], dtype=torch.float64)
    g = SmoothedClassifier(lambda x: (x[:, 0] > 1 + 5e-10).long(), Gaussian(1e-10), num_classes=2, model_id="m")
    (c,) = g.certify(here, n=500)
    with Registry(tmp_path / "r") as registry:
        with pytest.raises(InvalidInput, match="another input"):
            registry.enrol(there, c)
        assert registry.enrol(here, c).prediction == 0


def _changed_sketch(path, number, reach=None, move=0.0):
    """Move a stored sketch, or change its reach, with the checksum of what is then there."""
    with closing(sqlite3.connect(path)) as db:
        answer, old, data = db.execute("SELECT answer, reach, sketch FROM sketches WHERE id = ?", (number,)).fetchone()
        reach, data = old if reach is None else reach, (np.frombuffer(data, "<f4") + np.float32(move)).tobytes()
        values = reach, data, _sketch_checksum(answer, reach, data), number
        db.execute("UPDATE sketches SET reach = ?, sketch = ?, checksum = ? WHERE id = ?", values)
        db.commit()


@every_norm
@pytest.mark.parametrize(
    "change", [{"move": 1000.0}, {"reach": 0.01}, {"reach": 9.0}, {"move": math.nan}, {"move": 1e-4}]
)
def test_a_region_that_its_sketch_hides_is_found(norm, change, tmp_path, monkeypatch):
    """Whoever writes the file can give a changed sketch its checksum; the region would not be looked at."""
    x = point(0.0, 0.0, 0.0), point(1.0, 0.0, 0.0)
    wide = about(
        x, (claim(0, Scalar(1.0), 0.8, norm, (3,)), claim(1, Diagonal(torch.tensor([1.0, 2.0, 0.5])), 0.8, norm))
    )
    with Registry(tmp_path / "r", norm) as registry, monkeypatch.context() as patched:
        patched.setattr(Regions, "room", lambda self, point, number, radius, answer: radius)
        for each in zip(x, wide, strict=True):
            registry.enrol(*each)
    _changed_sketch(tmp_path / "r", 2, **change)
    with Registry(tmp_path / "r") as registry:
        first = next(iter(registry))
        with pytest.raises(StoreError, match="is damaged: the sketch of enrolment 2 is not that of its region"):
            registry.apart(first)
