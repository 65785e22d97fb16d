"""Certificates: to JSON and back without loss, and nothing damaged gets in."""

import dataclasses
import hashlib
import itertools
import json
import math

import pytest
import torch

from ucan import (
    Abstention,
    Certificate,
    ExpInf,
    Fixed,
    Gaussian,
    InvalidInput,
    Laplace,
    PowerLaw,
    Prediction,
    Region,
    SmoothedClassifier,
    Uniform,
)
from ucan.certificate import SCOPES, fits, from_dict, load_json, save_json
from ucan.choices import EARLIER
from ucan.errors import DoesNotFollow, StoreError
from ucan.scales import DCT, Basis, BlockDiagonal, Dense, LowRank
from ucan.sidecar import INLINE

INF = math.inf


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def positive(*shape, seed=0, dtype=torch.float64):
    return (0.3 + torch.rand(*shape, generator=rng(seed), dtype=torch.float64)).to(dtype)


def orthonormal(dim, seed=0):
    return torch.linalg.qr(torch.randn(dim, dim, generator=rng(seed), dtype=torch.float64))[0]


def top_left(batch):
    return (batch.flatten(1)[:, 0] > 0).long()


def outcome(scale=0.7, shape=(2, 2, 3), mean=None, law=None, norm=2, n=400, x0=3.0, **settings) -> Certificate:
    x = torch.full((1, *shape), x0)
    g = SmoothedClassifier(top_left, law or Gaussian(scale=0.3), Fixed(scale, mean), num_classes=2)
    return g.certify(x, n=n, norm=norm, **settings)[0]


def dense(dim, dtype=torch.float64):
    return (torch.randn(dim, dim, generator=rng(1), dtype=torch.float64) / 4 + 2 * torch.eye(dim)).to(dtype)


SMALL = {
    "scalar": 0.7,
    "diagonal": positive(2, 2, 3),
    "diagonal float32": positive(2, 2, 3, dtype=torch.float32),
    "dense": Dense(dense(12)),
    "dense float32": Dense(dense(12, torch.float32)),
    "basis": Basis(orthonormal(12), positive(12)),
    "dct": DCT(positive(2, 2, 3)),
    "low rank": LowRank(positive(12), torch.randn(12, 2, generator=rng(), dtype=torch.float64)),
    "blocks": BlockDiagonal([dense(k) for k in (1, 7, 4)]),
    "many blocks": BlockDiagonal([torch.full((1, 1), 1.0 + k) for k in range(12)]),
}
# 80 numbers to an event, 6,400 to a matrix: above what JSON keeps inline
WIDE = (5, 4, 4)
LARGE = {
    "dense": (Dense(dense(80)), WIDE),
    "basis": (Basis(orthonormal(80), positive(80)), WIDE),
    "low rank": (LowRank(positive(80), torch.randn(80, 60, generator=rng(), dtype=torch.float64) / 9), WIDE),
    "blocks": (BlockDiagonal([dense(79), dense(1)]), WIDE),
    "diagonal": (positive(3, 40, 40, dtype=torch.float32), (3, 40, 40)),
    "dct": (DCT(positive(3, 40, 40)), (3, 40, 40)),
}


def assert_same(a, b):
    """Every field, bit for bit."""
    assert type(a) is type(b)
    assert (a.norm, a.scope, a.evidence) == (b.norm, b.scope, b.evidence)
    assert a.abstained == b.abstained and a.counts.tolist() == b.counts.tolist() and a.invalid == b.invalid
    if isinstance(a, Prediction):
        assert (a.prediction, a.p_value) == (b.prediction, b.p_value)
    if isinstance(a, Abstention):
        assert (a.reason, a.p_lower) == (b.reason, b.p_lower)
    if isinstance(a, Certificate):
        for name in ("prediction", "p_lower", "p_upper", "alm", "radius", "log_volume"):
            assert getattr(a, name) == getattr(b, name), name
        assert (a.region.radius, a.region.norm, a.region.shape) == (b.region.radius, b.region.norm, b.region.shape)
        assert type(a.region.scale) is type(b.region.scale)
        mine, theirs = a.region.scale.tensors(), b.region.scale.tensors()
        assert list(mine) == list(theirs)
        for name in mine:
            assert mine[name].dtype == theirs[name].dtype and torch.equal(mine[name], theirs[name])
        assert getattr(a.region.scale, "value", None) == getattr(b.region.scale, "value", None)
        assert (a.mean is None) == (b.mean is None)
        if a.mean is not None:
            assert a.mean.dtype == b.mean.dtype and torch.equal(a.mean, b.mean)


def test_outcomes_print_as_one_line():
    c = outcome(scale=1.0)
    shown = str(c)
    assert shown == f"class 1 within an ℓ2 radius of {math.floor(c.radius * 1e4) / 1e4} (scope pipeline, α = 0.001)"
    abstained = outcome(x0=0.0)
    assert str(abstained) == f"abstained: {abstained.reason}"
    g = SmoothedClassifier(top_left, Gaussian(scale=0.3), num_classes=2)
    assert str(g.predict(torch.full((1, 4), 3.0))[0]) == "class 1 (scope pipeline, α = 0.001)"


@pytest.mark.parametrize("scale", SMALL.values(), ids=SMALL.keys())
def test_a_certificate_survives_json_without_loss(scale, tmp_path):
    c = outcome(scale)
    save_json(c, tmp_path / "c.json")
    assert_same(c, load_json(tmp_path / "c.json"))
    assert [f.name for f in tmp_path.iterdir()] == ["c.json"]  # small: inline, and nothing half-written
    assert_same(c, from_dict(json.loads(json.dumps(c.to_dict(), allow_nan=False))))


@pytest.mark.parametrize("name", LARGE)
def test_a_large_sigma_goes_into_a_file_named_by_its_hash(name, tmp_path):
    scale, shape = LARGE[name]
    c = outcome(scale, shape)
    save_json(c, tmp_path / "c.json")
    (file,) = (f for f in tmp_path.iterdir() if f.name != "c.json")
    assert file.name == f"{hashlib.sha256(file.read_bytes()).hexdigest()}.safetensors"
    assert file.name in (tmp_path / "c.json").read_text()
    assert (tmp_path / "c.json").stat().st_size < 10_000
    assert_same(c, load_json(tmp_path / "c.json"))


def test_one_sigma_is_written_once(tmp_path):
    scale, shape = LARGE["dense"]
    for i in range(3):
        save_json(outcome(scale, shape, seed=i), tmp_path / f"{i}.json")
    assert len(list(tmp_path.glob("*.safetensors"))) == 1
    assert len(list(tmp_path.iterdir())) == 4


def test_blocks_that_are_the_same_tensor_can_be_saved(tmp_path):
    block = dense(50)
    c = outcome(BlockDiagonal([block, block]), (100,))
    save_json(c, tmp_path / "c.json")
    assert_same(c, load_json(tmp_path / "c.json"))


def test_views_of_a_larger_tensor_can_be_saved(tmp_path):
    c = outcome(positive(2, 3, 40, 40).transpose(2, 3)[1], (3, 40, 40))
    save_json(c, tmp_path / "c.json")
    assert_same(c, load_json(tmp_path / "c.json"))


@pytest.mark.parametrize("shape", [(2, 2, 3), (3, 40, 40)], ids=["small", "large"])
def test_the_mean_is_kept(shape, tmp_path):
    mean = 0.1 * torch.randn(shape, generator=rng(2))
    c = outcome(0.7, shape, mean)
    assert torch.equal(c.mean, mean)
    save_json(c, tmp_path / "c.json")
    assert_same(c, load_json(tmp_path / "c.json"))
    assert len(list(tmp_path.glob("*.safetensors"))) == (shape == (3, 40, 40))


@pytest.mark.parametrize(
    ("law", "norm"),
    [
        (Gaussian(scale=0.3), INF),
        (Gaussian(scale=1 / 3), 1),
        (Laplace(scale=0.1), 1),
        (Uniform(scale=0.7), INF),
        (ExpInf(scale=0.05), INF),
        (PowerLaw(scale=0.3, a=17.25), 1),
    ],
    ids=str,
)
def test_every_law_and_norm_survives(law, norm, tmp_path):
    c = outcome(positive(2, 2, 3), law=law, norm=norm)
    assert isinstance(c, Certificate)
    save_json(c, tmp_path / "c.json")
    back = load_json(tmp_path / "c.json")
    assert_same(c, back)
    assert back.evidence.law == law and back.norm == norm
    record = json.loads((tmp_path / "c.json").read_text())
    assert record["norm"] == ("inf" if norm == INF else norm)


def test_two_class_certificates_survive(tmp_path):
    c = outcome(0.7, bound="two-class")
    assert c.p_upper is not None
    save_json(c, tmp_path / "c.json")
    assert_same(c, load_json(tmp_path / "c.json"))


@pytest.mark.parametrize("norm", (2, INF))
def test_an_abstention_survives(norm, tmp_path):
    a = outcome(0.7, x0=0.0, norm=norm)
    assert isinstance(a, Abstention) and a.reason
    save_json(a, tmp_path / "a.json")
    assert_same(a, load_json(tmp_path / "a.json"))


def test_a_place_that_cannot_be_written_is_said(tmp_path):
    c = outcome(1.0, (2,))
    with pytest.raises(InvalidInput, match=r"there is no folder .*nowhere"):
        save_json(c, tmp_path / "nowhere" / "c.json")
    (tmp_path / "taken").mkdir()
    with pytest.raises(StoreError, match="cannot be read or written"):
        save_json(c, tmp_path / "taken")


@pytest.mark.parametrize("x0", (0.0, 3.0), ids=["abstention", "prediction"])
def test_a_prediction_survives(x0, tmp_path):
    (p,) = SmoothedClassifier(top_left, Gaussian(scale=0.3), None, 2).predict(torch.full((1, 5), x0), n=200)
    assert isinstance(p, Prediction if x0 else Abstention)
    save_json(p, tmp_path / "p.json")
    assert_same(p, load_json(tmp_path / "p.json"))


def test_the_record_says_what_is_guaranteed_and_how_it_was_found():
    c = outcome(positive(2, 2, 3))
    record = c.to_dict()
    assert record["kind"] == "certificate" and record["scope"] == "pipeline"
    assert record["guarantee"] == SCOPES["pipeline"]
    evidence = record["evidence"]
    assert sum(evidence["counts"]) + evidence["invalid"] == evidence["n"] == 400
    assert evidence["law"] == {"name": "Gaussian", "scale": 0.3}
    assert evidence["arithmetic"] == "real" and evidence["precision"] == "fp32"
    for name in ("radius", "alm", "log_volume", "p_lower"):
        assert record[name] == getattr(c, name)
    assert "not" in SCOPES["frozen"] and set(SCOPES) == {"pipeline", "frozen", "registry"}


def test_records_are_frozen():
    c = outcome()
    with pytest.raises(dataclasses.FrozenInstanceError):
        c.radius = 5.0
    with pytest.raises(dataclasses.FrozenInstanceError):
        c.evidence.n = 10


# --- what must not get in ---


@pytest.fixture
def large(tmp_path):
    scale, shape = LARGE["dense"]
    assert sum(t.numel() for t in scale.tensors().values()) > INLINE
    save_json(outcome(scale, shape), tmp_path / "c.json")
    return tmp_path / "c.json", next(tmp_path.glob("*.safetensors"))


def test_a_damaged_sidecar_is_refused(large):
    path, file = large
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(bytes(data))
    with pytest.raises(InvalidInput, match="damaged"):
        load_json(path)
    file.write_bytes(b"")
    with pytest.raises(InvalidInput, match="damaged"):
        load_json(path)


def test_a_missing_sidecar_is_refused(large):
    path, file = large
    file.unlink()
    with pytest.raises(InvalidInput, match=file.name):
        load_json(path)


@dataclasses.dataclass(frozen=True)
class Wide(Gaussian):
    """A law of the user's own, with a parameter of its own."""

    factor: float = 2.0


def test_a_law_of_ones_own_comes_back_where_its_class_is_known():
    law = Wide(scale=0.3, factor=3.0)
    record = json.loads(json.dumps(outcome(law=law).to_dict()))
    assert record["evidence"]["law"] == {"name": "Wide", "module": __name__, "scale": 0.3, "factor": 3.0}
    assert from_dict(record).evidence.law == law
    assert "module" not in outcome(law=Gaussian(scale=0.3)).to_dict()["evidence"]["law"]


def test_a_record_cannot_have_a_module_imported(tmp_path, monkeypatch):
    (tmp_path / "trap.py").write_text("raise SystemExit('this ran')")
    monkeypatch.syspath_prepend(str(tmp_path))
    record = outcome().to_dict()
    for module, name in (("trap", "Gaussian"), ("trap", "system"), (__name__, "Narrow"), ("os", "system")):
        record["evidence"]["law"] = {"name": name, "module": module, "scale": 1.0}
        with pytest.raises(InvalidInput, match=f"{module}: import that module first"):
            from_dict(record)


def test_a_sidecar_elsewhere_is_refused(large, tmp_path):
    path, file = large
    record = json.loads(path.read_text())
    (tmp_path / "inner").mkdir()
    record["region"]["scale"]["tensors"]["file"] = f"../{file.name}"
    with pytest.raises(InvalidInput):
        from_dict(record, tmp_path / "inner")
    with pytest.raises(InvalidInput):
        from_dict(json.loads(path.read_text()))  # no folder given


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "null", "{}", '{"format": 99}'])
def test_a_file_that_is_no_certificate_is_refused(text, tmp_path):
    (tmp_path / "c.json").write_text(text)
    with pytest.raises(InvalidInput):
        load_json(tmp_path / "c.json")


def test_an_unreadable_file_is_refused(tmp_path):
    with pytest.raises(InvalidInput):
        load_json(tmp_path / "nowhere.json")
    with pytest.raises(InvalidInput):
        load_json(tmp_path)
    (tmp_path / "c.json").write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(InvalidInput):
        load_json(tmp_path / "c.json")


def edit(*path, value=None, remove=False):
    def change(record):
        inner = record
        for key in path[:-1]:
            inner = inner[key]
        if remove:
            del inner[path[-1]]
        else:
            inner[path[-1]] = value

    return change


TAMPERED = {
    "other format": edit("format", value=3),
    "no format": edit("format", remove=True),
    "no kind": edit("kind", remove=True),
    "unknown kind": edit("kind", value="something else"),
    "no region": edit("region", remove=True),
    "no evidence": edit("evidence", remove=True),
    "evidence of another version": edit("evidence", "surprise", value=1),
    "no law": edit("evidence", "law", remove=True),
    "unknown law": edit("evidence", "law", "name", value="Cauchy"),
    "law with a bad scale": edit("evidence", "law", "scale", value=-1.0),
    "law with a foreign parameter": edit("evidence", "law", "a", value=2.0),
    "unknown scale": edit("region", "scale", "kind", value="Toeplitz"),
    "private scale": edit("region", "scale", "kind", value="__doc__"),
    "singular scale": edit("region", "scale", "tensors", "sigma", "data", 0, 0, 0, value=0.0),
    "scale of another size": edit("region", "shape", value=[5]),
    "ragged scale": edit("region", "scale", "tensors", "sigma", "data", 0, value=[1.0]),
    "scale of an unknown dtype": edit("region", "scale", "tensors", "sigma", "dtype", value="float33"),
    "scale of no dtype": edit("region", "scale", "tensors", "sigma", "dtype", value="nn"),
    "negative radius": edit("region", "radius", value=-1.0),
    "radius text": edit("region", "radius", value="wide"),
    "norm unknown": edit("norm", value="two"),
    "region norm unknown": edit("region", "norm", value=3),
    "region a list": edit("region", value=[]),
    "evidence a list": edit("evidence", value=[]),
    "scale a number": edit("region", "scale", value=1.0),
    "unknown scope": edit("scope", value="everything"),
    "class that counts from the end": edit("prediction", value=-1),
    "class that is a truth value": edit("prediction", value=True),
    "class beyond the last": edit("prediction", value=100),
    "fewer votes than were counted": edit("evidence", "n", value=10),
    "more votes than were counted": edit("evidence", "invalid", value=10**6),
    "votes taken away": edit("evidence", "invalid", value=-1),
    "no streams": edit("evidence", "streams", value=None),
    "a stream without a key": edit("evidence", "streams", "estimate", value=None),
    "versions a list": edit("evidence", "versions", value=["torch"]),
    "no settings of the noise": edit("evidence", "noise", "settings", value=None),
}


@pytest.mark.parametrize("case", TAMPERED)
def test_a_tampered_record_is_refused(case):
    record = json.loads(json.dumps(outcome(positive(2, 2, 3)).to_dict()))
    from_dict(json.loads(json.dumps(record)))
    TAMPERED[case](record)
    with pytest.raises((InvalidInput, ValueError)) as error:
        from_dict(record)
    assert type(error.value).__module__.startswith("ucan"), f"untyped {error.value!r}"


def test_a_radius_of_a_version_that_bounded_the_inverse_otherwise_is_read():
    """Of a badly conditioned Σ versions add different errors: their files are read, and get the radius of this one."""
    scale = LowRank(torch.full((12,), 1e-4, dtype=torch.float64), 10 * torch.ones(12, 1, dtype=torch.float64))
    known = outcome()
    made = dataclasses.replace(known, region=Region(scale, 1.0, 2, known.region.shape))
    record, lost = made.to_dict(), scale.lost
    assert 2e-9 < lost < 1e-6
    for more in (lost, -lost):
        assert from_dict({**record, "radius": record["radius"] * (1 + more)}).radius == made.radius
    with pytest.raises(DoesNotFollow, match="radius"):
        from_dict({**record, "radius": record["radius"] * (1 + 10 * lost)})
    q = torch.linalg.qr(torch.randn(12, 12, generator=rng(), dtype=torch.float64).float()).Q
    scale = Basis(q, torch.logspace(0, -4.5, 12))
    made = dataclasses.replace(known, region=Region(scale, 1.0, 2, known.region.shape), norm=INF)
    assert scale.inverse_error > 2e-9  # by which its radius was smaller
    record = made.to_dict()
    assert from_dict({**record, "radius": record["radius"] / (1 + scale.inverse_error)}).radius == made.radius


def test_a_radius_larger_than_the_regions_is_not_believed():
    for name in ("radius", "log_volume"):
        record = outcome(positive(2, 2, 3)).to_dict() | {name: 100.0}
        with pytest.raises(InvalidInput, match=name):
            from_dict(record)


@pytest.mark.parametrize("words", [SCOPES["pipeline"] + ", and everywhere else", SCOPES["frozen"], None, 3, []])
def test_a_guarantee_that_is_not_the_sentence_of_the_scope_is_not_believed(words):
    record = outcome().to_dict()
    with pytest.raises(DoesNotFollow, match="guarantee is not that of its scope, pipeline") as error:
        from_dict(record | {"guarantee": words})
    assert error.value.field == "guarantee"


def test_a_guarantee_of_an_older_version_or_none_is_read():
    record = outcome().to_dict()
    del record["guarantee"]
    from_dict(record)
    for scope, sentences in EARLIER.items():
        for sentence in (SCOPES[scope], *sentences):
            assert from_dict(record | {"scope": scope, "guarantee": sentence}).scope == scope


@pytest.mark.parametrize("value", [math.nan, -0.1, 1.1, True, "0.5"])
def test_no_result_states_a_probability_that_is_none(value):
    g = SmoothedClassifier(top_left, Gaussian(scale=0.3), None, 2)
    (answer,), (unsure,) = g.predict(torch.ones(1, 5), n=50), g.certify(torch.zeros(1, 5), n=50)
    assert isinstance(unsure, Abstention)
    for result, name in ((answer, "p_value"), (unsure, "p_lower"), (outcome(), "p_lower")):
        with pytest.raises(InvalidInput, match=f"'s {name} must be a number of at least 0"):
            dataclasses.replace(result, **{name: value})
        with pytest.raises(InvalidInput, match=f"'s {name} must be a number of at least 0"):
            from_dict(result.to_dict() | {name: value})


@pytest.mark.parametrize("votes", [(5,), (5, 5, 0), (-1, 5), (5.0, 5), (60, 60)])
def test_votes_that_cannot_have_chosen_the_class_are_refused(votes):
    evidence = outcome().evidence
    assert len(evidence.counts) == 2 and evidence.n0 < 120
    with pytest.raises(InvalidInput, match="that chose the class"):
        dataclasses.replace(evidence, selection=votes)


@pytest.mark.parametrize("cap", [399, 0, -1, 400.0, 400.5, True, "400", [400]])
def test_a_number_of_planned_votes_that_cannot_be_is_refused(cap):
    c = outcome(stop="0.25")
    assert c.evidence.n < 400 == c.evidence.cap
    fixed = outcome().to_dict()
    assert fixed["evidence"]["cap"] == fixed["evidence"]["n"] == 400
    for made in (
        lambda: from_dict(fixed | {"evidence": fixed["evidence"] | {"cap": cap}}),
        lambda: dataclasses.replace(outcome().evidence, cap=cap),
    ):
        with pytest.raises(DoesNotFollow, match="must be a whole number of at least n = 400") as error:
            made()
        assert error.value.field == "cap"
    assert dataclasses.replace(c.evidence, cap=None).cap is None  # version 0.1


def test_a_record_that_cannot_be_written_leaves_nothing_behind(tmp_path):
    c = outcome()
    noise = dataclasses.replace(c.evidence.noise, settings={"share": math.nan})
    unwritable = dataclasses.replace(c.evidence, noise=noise)
    with pytest.raises(ValueError):
        save_json(dataclasses.replace(c, evidence=unwritable), tmp_path / "c.json")
    assert list(tmp_path.iterdir()) == []


def test_saving_replaces_an_older_record_whole(tmp_path):
    first, second = outcome(seed=1), outcome(seed=2)
    save_json(first, tmp_path / "c.json")
    save_json(second, tmp_path / "c.json")
    assert_same(second, load_json(tmp_path / "c.json"))
    assert len(list(tmp_path.iterdir())) == 1


def test_an_offset_fits_where_broadcasting_leaves_inputs_their_shape():
    def broadcast(offset, inputs):
        try:
            return torch.broadcast_shapes(offset, inputs) == inputs
        except RuntimeError:
            return False

    shapes = [shape for length in range(4) for shape in itertools.product((0, 1, 2, 3), repeat=length)]
    for offset, inputs in itertools.product(shapes, shapes):
        assert fits(offset, inputs) == broadcast(offset, torch.Size(inputs))


HALF = "\ud800"  # of a character that needs two


@pytest.mark.parametrize(
    ("path", "value"),
    [
        *[(("seed",), value) for value in (HALF, "0x10", 1.0, True, [1], 2**256, -(10**400))],
        *[(("family",), value) for value in (10**400, 10**15 + 1, 0, True, 2.0)],
        *[(("streams", "estimate"), value) for value in (HALF, "no hexadecimal digits", "", 5, None)],
        *[(("streams",), value) for value in (None, [], {HALF: "0" * 64})],
        *[(("law", "scale"), value) for value in (10**30, -(10**400), "0.3", None, True, math.nan)],
        *[(("noise", name), value) for name in ("kind", "module", "state", "line") for value in (-1, HALF, [])],
        *[(("noise", "constant"), value) for value in (1, 0, "true", 0.5)],
        *[(("noise", "made", "name"), value) for value in (None, HALF, 1)],
        (("noise", "made", "parameters"), []),
        *[((name,), value) for name in ("bound", "precision", "input_hash") for value in (None, HALF, 1)],
        *[((name,), value) for name in ("device", "model", "stop", "weights_hash") for value in ([1], HALF, 1)],
        *[(("copy",), value) for value in (None, 1, "false")],
        *[(("versions", "torch"), value) for value in (HALF, 2.0, None)],
    ],
)
def test_evidence_of_other_types_is_refused_in_words(path, value):
    """Not by an error of Python's, wherever these values would be used."""
    record = json.loads(json.dumps(outcome().to_dict()))
    from_dict(record)
    place = record["evidence"]
    for name in path[:-1]:
        place = place[name]
    assert path[-1] in place
    place[path[-1]] = value
    with pytest.raises(InvalidInput, match=r"evidence|noise|law|scale|family|device|complete") as error:
        from_dict(record)
    str(error.value).encode()


def test_seeds_and_families_that_there_are_stay():
    for settings in ({"seed": 2**128 - 1}, {"seed": -3}, {"seed": None}, {"seed": "derived"}, {"family": 10**6}):
        c = outcome(**settings)
        assert from_dict(json.loads(json.dumps(c.to_dict()))).to_dict() == c.to_dict()
    c = outcome(law=Gaussian(scale=1))  # a whole number, as it was given
    assert from_dict(c.to_dict()).evidence.law == c.evidence.law


def test_a_reason_that_is_no_text_is_refused():
    (unsure,) = SmoothedClassifier(top_left, Gaussian(scale=0.3), None, 2).certify(torch.zeros(1, 5), n=50)
    for reason in (None, 5, HALF, ["x"]):
        with pytest.raises(InvalidInput, match="an abstention's reason"):
            from_dict(unsure.to_dict() | {"reason": reason})
