"""Exploring a run, without a browser: the same numbers as certify, uploads that are refused, attacks put into words."""

import itertools
import math
import re
import shutil
import socket
import struct
import sys
import zlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from typer.testing import CliRunner

import ucan
from ucan import data
from ucan.app import panels
from ucan.app.noise import noise_maps
from ucan.app.session import INSIDE, MOST_BYTES, Attacked, Session
from ucan.arithmetic import arithmetic_of
from ucan.audit import Attempt, Budget
from ucan.bounds import anytime_lower_bound
from ucan.certificate import SCOPES, Abstention, Certificate
from ucan.cli import app, main
from ucan.cli.explore import _check_listening
from ucan.data import InMemory
from ucan.data.pictures import MOST_PIXELS
from ucan.errors import InvalidInput, StoreError
from ucan.generators.base import Generator
from ucan.plan import CertifyPlan
from ucan.results import Store
from ucan.runs.read import Run
from ucan.scales import Basis, Scalar
from ucan.service.application import is_loopback
from ucan.service.deployed import Deployed
from ucan.votes import Votes

SHAPE = (1, 4, 4)
QUICK = Budget(steps=10, draws=8, restarts=1, check=1000)


class Bright(nn.Module):
    """Class 1 where a picture is brighter than a half, class 0 where it is darker."""

    def __init__(self):
        super().__init__()
        self.steep = nn.Parameter(torch.tensor(10.0))

    def forward(self, batch):
        bright = self.steep * (batch.flatten(1).mean(1) - 0.5)
        return torch.stack([-bright, bright], dim=1)


class Leaning(Generator):
    """μ(x) = 5 (x − 0.9): noise that looks at its input, so what is live moves six times as fast as what is frozen."""

    scope = "frozen"

    def forward(self, x):
        return 5 * (x - 0.9), Scalar(1.0)

    def cap(self):
        return 1.0


LEVELS = torch.tensor([0.9, 0.5, 0.1])


def session(generator=None, classes=("dark", "bright"), **more) -> Session:
    """Three pictures: bright, undecided, dark."""
    images = LEVELS[:, None, None, None].expand(3, *SHAPE)
    dataset = InMemory(images, [1, 0, 0], classes, "levels")
    g = ucan.SmoothedClassifier(Bright().eval(), ucan.Gaussian(0.5), generator, num_classes=2)
    made = Session("levels", g, CertifyPlan(n=1000), SHAPE, dataset, (0, 1, 2), ())
    return replace(made, **more)


def certified(some: Session, number=0, scale=None, n=1000, alpha=0.001):
    *_, outcome = some.certify(some.item(number)[0], scale or some.scale, n, alpha)
    return outcome


def ucan_says(*words: object) -> str:
    result = CliRunner().invoke(app, [str(w) for w in words])
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certification-wise network after one epoch, and certificates of six digits."""
    pytest.importorskip("sklearn")
    folder = tmp_path_factory.mktemp("digits")
    ucan_says("train", "digits-certification", "--set", "epochs=1", "-o", folder / "net", "-q")
    words = ("--model", folder / "net", "--data", "digits", "--n", 300, "--seed", 5, "--skip", 2, "--max", 6)
    ucan_says("certify", *words, "-q", "-o", folder / "run")
    return folder


# --- what is certified ---


def test_a_certified_run_gives_its_own_certificates_again(digits):
    some = Session.open(digits / "run")
    assert some.numbers == (0, 2, 4, 6, 8, 10) and some.shape == (1, 8, 8)
    assert (some.plan.n, some.plan.seed, some.plan.alpha) == (300, 5, 0.001)
    with Store.open(digits / "run") as store:
        for number in some.numbers:
            outcome = certified(some, number, n=some.plan.n, alpha=some.plan.alpha)
            assert outcome.to_dict() == store.outcome(number).to_dict()


@pytest.mark.parametrize(("factor", "n", "alpha"), [(1.0, 500, 0.001), (0.5, 700, 0.01), (2.0, 600, 0.05)])
def test_the_outcome_is_that_of_certify(digits, factor, n, alpha):
    some = Session.open(digits / "net")
    scale, (x, _) = factor * some.scale, some.item(3)
    *votes, outcome = some.certify(x, scale, n, alpha)
    law = replace(some.g.law, scale=scale)
    g = ucan.SmoothedClassifier(some.g.f.model, law, some.g.M, 10, step=some.dataset.step)
    (wanted,) = g.certify(x, n0=some.plan.n0, n=n, alpha=alpha, norm=some.plan.norm, seed=some.plan.seed)
    assert outcome.to_dict() == wanted.to_dict() and outcome.evidence.law.scale == scale
    assert all(isinstance(v, Votes) for v in votes)
    assert votes[-1].counts.tolist() == wanted.counts.tolist()


def test_settings_that_make_no_sense_are_refused():
    some = session()
    x, _ = some.item(0)
    for scale, n, alpha in ((0.5, 0, 0.001), (0.5, 100, 0.0), (0.5, 100, 1.0), (0.0, 100, 0.001), (math.nan, 9, 0.1)):
        with pytest.raises(InvalidInput):
            list(some.certify(x, scale, n, alpha))


def test_an_undecided_picture_abstains_and_says_why():
    some = session()
    outcome = certified(some, 1)
    assert isinstance(outcome, Abstention)
    text = panels.outcome(some, outcome, 0)
    assert "It abstains" in text and "the lower bound 0." in text and "not above 1/2" in text and "radius" not in text


def test_a_further_try_has_the_bound_that_allows_for_it():
    """Clopper–Pearson is about an n fixed before looking: raising n until it certifies would spend α each time."""
    some = session()
    x, label = some.item(1)
    first = certified(some, 1, n=500)
    assert first.evidence.bound == "binary" and "Try" not in panels.outcome(some, first, label)
    for tries, n in enumerate((1000, 4000, 300), 2):
        again = certified(some, 1, n=n)
        (wanted,) = some.g.certify(x, n=n, bound="anytime")
        assert again.to_dict() == wanted.to_dict() and again.evidence.bound == "anytime"
        text = " ".join(panels.outcome(some, again, label).split())
        assert f"Try {tries} on this picture" in text and "at most 0.0020:" in text and "bound anytime." in text
    assert certified(some, 1, n=500).to_dict() == first.to_dict()  # no further look: the same votes, the same answer
    assert some.risk(first.evidence.input_hash) == (4, pytest.approx(0.002))

    certified(some, 1, scale=0.25, alpha=0.01)  # another λ is another claim
    certified(some, 1, alpha=0.02)
    assert some.risk(first.evidence.input_hash) == (6, pytest.approx(0.001 + 0.02 + 0.01))
    assert certified(some, 0).evidence.bound == "binary"  # another picture, another claim


def test_the_runs_own_result_is_said_not_to_be_a_try():
    """It has the same votes: an n that was chosen because of it is not fixed before looking."""
    some = session()
    outcome, told = certified(some, 1, n=500), "If the run itself certified this"
    assert told not in panels.outcome(some, outcome, 0)  # of a trained run, which has no results
    some = replace(some, certified=True)
    assert told in panels.outcome(some, outcome, 0)
    assert told not in panels.outcome(some, certified(some, 1, n=1000), 0)  # whose bound holds at every n
    other = list(some.certify(some.item(2)[0], 2 * some.scale, 500, 0.001))[-1]
    assert told not in panels.outcome(some, other, 0)  # at another λ the votes are others


def test_a_try_that_was_broken_off_counts():
    some = session()
    x, _ = some.item(0)
    next(some.certify(x, some.scale, 1000, 0.001))
    again = certified(some, 0, n=2000)
    assert again.evidence.bound == "anytime"
    assert again.p_lower == anytime_lower_bound(int(again.counts[1]), 2000, 0.001)


def test_more_votes_of_one_seed_begin_with_the_fewer():
    """What the bound for every n is about: one sequence of votes, seen to different lengths."""
    some = session()
    seen = [torch.as_tensor(certified(some, 1, n=n).counts) for n in (100, 101, 1000, 1030, 5000)]
    assert all((later >= earlier).all() for earlier, later in itertools.pairwise(seen))


def test_trained_runs_open_with_every_noise(digits):
    some = Session.open(digits / "net")
    assert some.g.M.scope == "frozen" and some.plan == CertifyPlan(n=10_000) and len(some.numbers) == len(some.dataset)
    with pytest.raises(InvalidInput, match="leave out --model"):
        Session.open(digits / "net", model="else:where")


def test_a_trained_run_has_the_arithmetic_of_its_data_as_certify_and_the_service_have_it(digits, monkeypatch):
    opened = [of.open(digits / "net", device=torch.device("cpu")).g for of in (Session, Deployed)]
    taken = Run.open(digits / "run").config.sampling.arithmetic
    assert taken == "grid(1/16)" and [arithmetic_of(g.grid) for g in opened] == [taken, taken]
    for module in ("ucan.app.session", "ucan.service.deployed"):
        monkeypatch.setattr(f"{module}.data_of", lambda *_: (_ for _ in ()).throw(InvalidInput("they are gone")))
    opened = [of.open(digits / "net", device=torch.device("cpu")).g for of in (Session, Deployed)]
    assert [g.grid for g in opened] == [None, None]  # nobody knows the step


# --- what cannot be explored ---


def test_what_is_no_run_is_refused(digits, tmp_path):
    with pytest.raises(InvalidInput, match="no folder"):
        Session.open(tmp_path / "nothing")
    with pytest.raises(StoreError, match="not a run folder"):
        Session.open(tmp_path)
    config = (digits / "run" / "config.toml").read_text()
    Store.create(tmp_path / "begun", {"kind": "certify"}).close()
    with pytest.raises(InvalidInput, match="no results yet"):
        Session.open(tmp_path / "begun")
    assert (digits / "run" / "config.toml").read_text() == config


def test_a_run_without_evidence_is_refused(tmp_path):
    (tmp_path / "theirs.tsv").write_text("idx\tlabel\tpredict\tradius\tcorrect\ttime\n0\t1\t1\t0.5\t1\t0:00:01\n")
    ucan_says("import", tmp_path / "theirs.tsv", "-o", tmp_path / "theirs")
    with pytest.raises(InvalidInput, match="was imported"):
        Session.open(tmp_path / "theirs")


def test_data_that_are_gone_leave_the_drop(digits, tmp_path, monkeypatch):
    images, labels = data.load("digits").batch(range(4))
    np.savez(tmp_path / "some.npz", x=images.numpy(), y=labels.numpy())
    words = ("--model", digits / "net", "--data", tmp_path / "some.npz", "--n", 100, "-q", "-o", tmp_path / "run")
    ucan_says("certify", *words)
    (tmp_path / "some.npz").rename(tmp_path / "moved.npz")
    gone = Session.open(tmp_path / "run")
    assert gone.dataset is None and gone.numbers == () and "Drop a picture instead" in panels.header(gone)
    with pytest.raises(InvalidInput, match="drop a picture"):
        gone.item(0)
    Image.new("L", (8, 8), 90).save(tmp_path / "grey.png")
    assert gone.decode(tmp_path / "grey.png").shape == (1, 1, 8, 8)
    found = Session.open(tmp_path / "run", source=str(tmp_path / "moved.npz"))
    assert found.numbers == (0, 1, 2, 3)
    with pytest.raises(InvalidInput, match="no data set"):
        Session.open(tmp_path / "run", source=str(tmp_path / "nowhere.npz"))


def test_a_model_that_has_changed_since_is_said(digits, tmp_path):
    shutil.copytree(digits / "run", tmp_path / "run")
    config = tmp_path / "run" / "config.toml"
    config.write_text(re.sub(r'weights_hash = "\w+"', 'weights_hash = "else"', config.read_text()))
    assert Session.open(digits / "run").notes == ()
    assert "has changed since this run" in panels.header(Session.open(tmp_path / "run"))


def test_inputs_that_are_no_pictures_are_refused(tmp_path, monkeypatch):
    (tmp_path / "vectors.py").write_text(
        "import torch\n\ndef net(batch):\n    return torch.stack([-batch.sum(1), batch.sum(1)], dim=1)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    np.savez("v.npz", x=np.ones((3, 5), dtype=np.float32), y=np.ones(3, dtype=np.int64))
    ucan_says("certify", "--model", "vectors:net", "--data", "v.npz", "--n", 100, "-q", "-o", "run")
    with pytest.raises(InvalidInput, match="no pictures"):
        Session.open("run")


def test_numbers_beyond_the_data_are_refused():
    for number in (-1, 3):
        with pytest.raises(InvalidInput, match="inputs 0 to 2"):
            session().item(number)


# --- uploads ---


def chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def bomb(width: int, height: int) -> bytes:
    """A PNG of a few bytes that claims to have this many pixels."""
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 64)) + chunk(b"IEND", b"")
    )


def test_a_picture_of_the_models_size_is_taken_pixel_by_pixel(tmp_path):
    pixels = np.arange(16, dtype=np.uint8).reshape(4, 4) * 15
    Image.fromarray(pixels).save(tmp_path / "a.png")
    x = session().decode(tmp_path / "a.png")
    assert x.shape == (1, *SHAPE) and torch.equal(x[0, 0], torch.from_numpy(pixels).float() / 255)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "P", "LA", "CMYK", "1"])
def test_any_size_and_any_colours_become_the_models(tmp_path, mode, channels):
    """As those of a folder of pictures are."""
    rng = np.random.default_rng(0)
    picture = Image.fromarray(rng.integers(0, 255, (30, 50, 3), dtype=np.uint8)).convert(mode)
    name = f"a.{'jpg' if mode == 'CMYK' else 'png'}"
    picture.save(tmp_path / name)
    some = session(shape=(channels, 4, 4))
    wanted, _ = data.ImageFolder(tmp_path, size=4, channels=channels)[0]
    assert torch.equal(some.decode(tmp_path / name)[0], wanted)


def refusals(folder: Path) -> dict[str, str]:
    """Files that are refused, with what is said."""
    whole = folder / "whole.png"
    Image.effect_noise((64, 64), 50).save(whole)
    body = whole.read_bytes()
    files = {
        "words.png": (b"this is no picture", "no picture"),
        "empty.png": (b"", "no picture"),
        "page.svg": (b'<svg xmlns="http://www.w3.org/2000/svg"/>', "no picture"),
        "script.eps": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 4\n%%EndComments\n", "no picture"),
        "cut.png": (body[: len(body) // 2], "cannot be decoded"),
        "header.png": (body[:30], "cannot be decoded|no picture"),
        "bomb.png": (bomb(8000, 7000), "8000 × 7000 pixels; at most"),
        "larger.png": (bomb(12_000, 10_000), "pixels; at most"),
        "giant.png": (bomb(60_000, 60_000), "far too many pixels"),
        "heavy.png": (body + b"\0" * MOST_BYTES, "bytes; at most"),
        "array.npy": (b"\x93NUMPY", "is an array"),
    }
    for name, (content, _) in files.items():
        (folder / name).write_bytes(content)
    Image.fromarray(np.zeros((4, 4), dtype=np.uint16)).save(folder / "deep.png")
    return {**{name: said for name, (_, said) in files.items()}, "deep.png": "more than 8 bits"}


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_what_is_no_picture_or_too_large_is_refused_before_it_is_decoded(tmp_path):
    assert MOST_PIXELS < 8000 * 7000
    some = session()
    for name, said in refusals(tmp_path).items():
        with pytest.raises(InvalidInput, match=said) as refused:
            some.decode(tmp_path / name)
        assert str(refused.value).startswith(name), "the file by its name, without the folder"
    assert some.decode(tmp_path / "whole.png").shape == (1, *SHAPE)


def test_only_square_models_have_pictures_resized(tmp_path):
    Image.new("L", (6, 4)).save(tmp_path / "a.png")
    assert session(shape=(1, 4, 6)).decode(tmp_path / "a.png").shape == (1, 1, 4, 6)
    with pytest.raises(InvalidInput, match="exactly 6 × 5"):
        session(shape=(1, 5, 6)).decode(tmp_path / "a.png")


# --- attacks ---


def test_noise_that_looks_at_its_input_breaks_live_and_holds_frozen():
    some = session(Leaning())
    certificate = certified(some)
    assert certificate.scope == "frozen" and certificate.prediction == 1
    found = {
        (a.attempt.mode, a.attempt.factor): a for a in some.attack(some.item(0)[0], certificate, (INSIDE, 3.0), QUICK)
    }
    assert list(found) == [("live", INSIDE), ("frozen", INSIDE), ("live", 3.0), ("frozen", 3.0)]
    assert [panels.verdict(certificate, a)[0] for a in found.values()] == ["warn", "good", "plain", "plain"]
    live, frozen = found["live", INSIDE], found["frozen", INSIDE]
    assert live.answer == 0 and bool(certificate.region.contains(live.delta)[0])
    assert frozen.answer == 1 and frozen.attempt.covered and not frozen.attempt.broken
    assert found["frozen", 3.0].answer == 0 and not found["frozen", 3.0].attempt.covered
    text = panels.attacks(some, certificate, list(found.values()), 0)
    assert "Held, as guaranteed" in text and "never covered it" in text and "Outside the region: changed" in text


def test_noise_that_is_the_same_everywhere_is_attacked_once_and_holds_inside():
    some = session()
    certificate = certified(some, scale=0.4)
    found = list(some.attack(some.item(0)[0], certificate, (INSIDE, 3.0), QUICK))
    assert [a.attempt.mode for a in found] == ["live", "live"]
    assert [panels.verdict(certificate, a)[:2] for a in found] == [
        ("good", "Held, as guaranteed"),
        ("plain", "Outside the region: changed"),
    ]
    assert int(found[1].votes.counts.sum()) == QUICK.check
    assert found[1].attempt.hits == int(found[1].votes.counts[1]), "the votes shown are those that decided"


def attempt(**more) -> Attempt:
    usual = {
        "idx": 0,
        "factor": 0.9,
        "mode": "live",
        "scope": "pipeline",
        "covered": True,
        "prediction": 1,
        "radius": 1.0,
    }
    usual |= {"alpha": 0.001, "broken": False, "answer": 1, "hits": 900, "total": 1000, "p_value": 1.0, "size": 0.89}
    return Attempt(**{**usual, "attack": "gradient", "seed": 0, "votes_seed": 0, **more})


@pytest.mark.parametrize(
    ("answer", "more", "tone", "said"),
    [
        (1, {}, "good", "Held, as guaranteed"),
        (1, {"size": 0.0}, "plain", "Nothing found"),
        (None, {}, "warn", "Too close to call"),
        (0, {"broken": True}, "bad", "one certificate in 1,000"),
        (0, {"broken": True, "bug": True}, "bad", "please report it"),
        (0, {"broken": True, "covered": False, "scope": "frozen"}, "warn", "never covered it"),
        (1, {"covered": False, "scope": "frozen"}, "plain", "without a promise"),
        (0, {"broken": True, "covered": False, "size": 1.0}, "plain", "Outside the region: changed"),
        (1, {"covered": False, "size": 1.4}, "plain", "Outside the region: held"),
        (None, {"covered": False, "size": 1.4}, "plain", "Outside the region: too close to call"),
    ],
)
def test_every_verdict_in_words(answer, more, tone, said):
    certificate = certified(session())
    point = torch.zeros(1, *SHAPE)
    seen = Attacked(attempt(**more), None, point, answer, Votes(torch.tensor([1, 9]), 0))
    got, headline, text = panels.verdict(certificate, seen)
    assert got == tone and said in f"{headline}. {text}"


# --- what is shown ---


def test_arriving_votes_are_shown_as_counts_alone():
    some = session()
    first = next(iter(some.certify(some.item(0)[0], 0.5, 1000, 0.001)))
    text = panels.votes(some, first, 1000, None) + panels.waiting(1000)
    assert f"<b>{int(first.counts.sum()):,}</b> of 1,000 votes" in text and "Nothing is certified yet" in text
    assert "radius" not in text and "ALM" not in text and "≥" not in text


def test_a_region_that_is_no_ball_is_shown_beside_its_ball():
    sigma = torch.linspace(0.5, 2, 16).reshape(SHAPE)
    for noise, norm, ball in ((None, 2, True), (None, math.inf, False), (ucan.Fixed(sigma), 2, False)):
        some = session(noise, plan=CertifyPlan(n=1000, norm=norm))
        certificate = certified(some)
        text = panels.outcome(some, certificate, 1).unescape()
        whole = f"‖Σ⁻¹δ‖ < {math.floor(certificate.region.radius * 1e4) / 1e4:.4f}}} in ℓ2"
        assert (whole in text) != ball and f"radius, {'ℓ∞' if norm == math.inf else 'ℓ2'}" in text


def test_shown_numbers_round_down():
    some = session()
    certificate = certified(some)
    shown = panels.outcome(some, replace(certificate, p_lower=0.99999, alm=1.23459), 1)
    assert "≥ 0.9999<" in shown and ">1.2345<" in shown
    assert f">{math.floor(certificate.radius * 1e4) / 1e4}<" in shown and "at least 99.9 %" in shown


@pytest.mark.parametrize("alpha", [1e-6, 1e-10, 1e-17, 1e-200])
def test_no_guarantee_is_shown_as_certain(alpha):
    """A small α was shown as 100 % and as a risk of 0.0000."""
    some = session()
    certified(some, n=2000, alpha=alpha)
    again = certified(some, n=4000, alpha=alpha)
    shown = " ".join(panels.outcome(some, again, 1).split())
    assert "at least 99.999 %" in shown and "at most 0.0001:" in shown


def test_a_frozen_guarantee_never_looks_like_one_of_the_pipeline():
    for generator, scope, other in ((None, "pipeline", "frozen"), (Leaning(), "frozen", "pipeline")):
        some = session(generator)
        text = panels.header(some) + panels.outcome(some, certified(some), 1)
        assert SCOPES[scope] in " ".join(text.split()) and f"Scope {scope}" in text
        assert SCOPES[other] not in " ".join(text.split()) and f"Scope {other}" not in text
        assert ("stays frozen" in text) == ("nothing is guaranteed here" in text) == (scope == "frozen")


def test_a_wrong_answer_and_other_noise_are_said():
    some = session()
    assert "wrong: its label is dark" in panels.outcome(some, certified(some), 0)
    usual, other = panels.outcome(some, certified(some), 1), panels.outcome(some, certified(some, scale=0.3), 1)
    assert "right, by its label" in usual and "own λ is" not in usual
    assert "The run's own λ is 0.5" in other and "λ = 0.3" in other


def test_alm_is_shown_with_its_cap():
    some = session()
    for scale, cap in ((0.3, "0.3"), (0.30001, "0.3001")):  # rounded up: no scale is larger
        said = panels.outcome(some, certified(some, scale=scale), 1).unescape()
        assert f"under the cap {cap} on the noise's scales" in said

    class Uncapped(Leaning):
        def cap(self):
            return None

    some = session(Uncapped())
    assert "no cap is known" in panels.outcome(some, certified(some), 1)


def test_names_are_text_and_not_markup(tmp_path):
    some = session(classes=("dark", "<img src=x onerror=alert(1)>"), name="<b>run</b>")
    certificate = certified(some)
    x, _ = some.item(0)
    text = panels.header(some) + panels.outcome(some, certificate, 0) + panels.thumbnails(some, [0, 1], 0)
    text += panels.message("<i>no</i>") + panels.noise(some.g, x, "<u>file</u>", 0)
    text += panels.attacks(some, certificate, list(some.attack(x, certificate, (0.5,), QUICK)), 1)
    text += panels.votes(some, Votes(torch.tensor([3, 4]), 0), 10, 1) + panels.hint("<i>no</i>")
    text += panels.outcome(some, certificate, 1) + panels.header(replace(some, notes=("<i>no</i>",)))
    for raw in ("<img src=x", "<b>run", "<i>no", "<u>file"):
        assert raw not in text
    quoted = session(classes=("dark", "'\" onload=alert(1) x='"))
    assert " onload=" not in re.sub(r'"[^"]*"', '""', panels.thumbnails(quoted, [0, 1, 2], 0))


def test_many_classes_share_the_last_bar():
    some = session(None, None)
    votes = Votes(torch.arange(30), 7)
    text = panels.votes(some, votes, 500, None)
    assert text.count("<tr") == 12 and "all others" in text and "invalid" in text
    assert f">{sum(range(20)):,}</td>" in text


def test_noise_maps_are_the_lengths_of_the_rows_of_sigma():
    q = torch.linalg.qr(torch.randn(16, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)).Q
    for scale in (Scalar(2.0), torch.linspace(0.5, 2, 16).reshape(SHAPE), Basis(q, torch.linspace(0.1, 1, 16))):
        g = ucan.SmoothedClassifier(Bright().eval(), ucan.Gaussian(0.5), ucan.Fixed(scale), 2)
        x = torch.rand(1, *SHAPE, generator=torch.Generator().manual_seed(1))
        mu, sigma, exact = noise_maps(g, x)
        dense = g.M.scale.dense(16)
        assert exact and not mu.any()
        assert np.allclose(sigma, 0.5 * dense.square().sum(1).sqrt().reshape(4, 4))


def test_noise_that_every_copy_draws_anew_is_estimated():
    g = ucan.SmoothedClassifier(Bright().eval(), ucan.Gaussian(0.5), ucan.Composed(channels=1), 2)
    _, sigma, exact = noise_maps(g, torch.rand(1, *SHAPE))
    assert not exact and (sigma > 0).all()
    assert ", estimated" in panels.noise(g, torch.rand(1, *SHAPE), "x", 0)


def test_what_the_classifier_is_shown_is_shown_where_it_is_less():
    images = torch.rand(40, *SHAPE, generator=torch.Generator().manual_seed(0))
    basis = ucan.BasisWise.pca(images, leading=4, scale=(0.25, 1.0))
    for generator, times in ((basis, 1), (ucan.Isotropic(), 0)):
        g = ucan.SmoothedClassifier(Bright().eval(), ucan.Gaussian(0.5), generator, 2)
        assert panels.noise(g, images[:1], "x", 0).count("what the classifier is shown") == times


# --- the command ---


def test_only_this_machine_is_loopback():
    assert is_loopback("127.0.0.1") and is_loopback("localhost") and is_loopback("::1")
    assert not is_loopback("0.0.0.0") and not is_loopback("192.168.0.7") and not is_loopback("example.org")


def test_an_address_that_is_not_ours_is_refused_at_once():
    for host in ("203.0.113.7", "256.1.1.1"):  # kept for documentation; none at all
        with pytest.raises(OSError):
            _check_listening(host, None)
    _check_listening("127.0.0.1", None)
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError):
        _check_listening("127.0.0.1", taken.getsockname()[1])


def test_the_command_explains_itself_and_refuses_in_words(tmp_path, monkeypatch, capsys):
    text = CliRunner().invoke(app, ["explore", "--help"]).output
    assert "Example" in text and "--host" in text and "127.0.0.1" in text
    monkeypatch.setattr(sys, "argv", ["ucan", "explore", str(tmp_path)])
    with pytest.raises(SystemExit) as leaving:
        main()
    assert leaving.value.code == 2 and "not a run folder" in capsys.readouterr().err


def test_without_gradio_the_extra_is_named(digits, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "gradio", None)
    monkeypatch.delitem(sys.modules, "ucan.app.page", raising=False)
    monkeypatch.setattr(sys, "argv", ["ucan", "explore", str(digits / "run")])
    with pytest.raises(SystemExit) as leaving:
        main()
    assert leaving.value.code == 2 and "ucan[app]" in capsys.readouterr().err


@pytest.mark.parametrize(("host", "warned"), [("127.0.0.1", False), ("0.0.0.0", True)])
def test_an_open_host_is_warned_of_and_a_port_in_use_refused(digits, monkeypatch, capsys, host, warned):
    def serve(*_):
        raise OSError("in use")

    monkeypatch.setitem(sys.modules, "ucan.app.page", SimpleNamespace(serve=serve))
    monkeypatch.setattr(sys, "argv", ["ucan", "explore", str(digits / "run"), "--host", host, "--port", "7999"])
    with pytest.raises(SystemExit) as leaving:
        main()
    said = capsys.readouterr().err
    assert leaving.value.code == 2 and f"cannot listen on {host}:7999" in said
    assert ("There is no password" in said) == warned


def test_a_certificate_is_what_is_attacked():
    some = session()
    assert isinstance(certified(some), Certificate)
    with pytest.raises(InvalidInput, match="another input"):
        list(some.attack(some.item(2)[0], certified(some), (0.5,), QUICK))


def test_a_run_for_a_budget_says_its_factor(digits, tmp_path):
    words = ("--model", digits / "net", "--data", "digits", "--n", 300, "--max", 2, "--budget", 0.5, "-q")
    ucan_says("certify", *words, "-o", tmp_path / "run")
    some = Session.open(tmp_path / "run")
    outcome = certified(some, 0, n=some.plan.n, alpha=some.plan.alpha)
    with Store.open(tmp_path / "run") as store:
        assert outcome.to_dict() == store.outcome(0).to_dict()
    assert "It also stays under every change of at most 0.5·ε in each coordinate, ε = " in panels.outcome(
        some, outcome, 0
    )
