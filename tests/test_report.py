"""The report's parts by hand: curves, sentences, slices, figures, the gallery, the commands, and what is refused."""

import json
import math
import re
import shutil
import sqlite3
import sys
import xml.etree.ElementTree as ET
from contextlib import closing
from dataclasses import asdict, replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import escape
from typer.testing import CliRunner

import ucan
from ucan.audit import Attempt, Ledger, read_attempts
from ucan.cli import app, main
from ucan.errors import InvalidInput, StoreError
from ucan.plan import CertifyPlan
from ucan.report.accuracy import accuracy_section, lines_of
from ucan.report.evidence import audit_section, overview_section
from ucan.report.figures import Line, accuracy_chart, slice_chart, ticks, votes_chart
from ucan.report.gallery import _break_in_words, chosen, exhibit_run
from ucan.report.noise import pixel_scale
from ucan.report.page import GENERATOR, LIMIT, build_page, figure_files, galleries_of
from ucan.report.paint import DASHES, PAPER
from ucan.report.rerun import commands
from ucan.report.runs import Run, by_norm, read_runs
from ucan.report.sentences import most_trusted, sentences
from ucan.report.slices import cut
from ucan.results import Store
from ucan.results.curves import certified_curve
from ucan.results.imports import ROUNDED, complete, import_run
from ucan.results.metrics import certified_accuracy, certified_band
from ucan.rounding import floor_percent
from ucan.runs.config import RunConfig

SHAPE = (1, 4, 4)


def columns(radii, right=None, abstained=None, alm=2.0):
    radius = np.asarray(radii, dtype=np.float64)
    count = len(radius)
    right = np.ones(count, bool) if right is None else np.asarray(right, bool)
    quiet = np.zeros(count, bool) if abstained is None else np.asarray(abstained, bool)
    return complete(
        idx=np.arange(count),
        label=np.zeros(count, np.int64),
        prediction=np.where(quiet, -1, np.where(right, 0, 1)),
        abstained=quiet,
        correct=right & ~quiet,
        radius=np.where(quiet, 0.0, radius),
        alm=alm * np.where(quiet, 0.0, radius),
    )


def attempt(idx, broken, mode="live", scope="frozen", **more):
    values = dict(
        idx=idx,
        factor=0.999,
        mode=mode,
        scope=scope,
        covered=scope == "pipeline" or mode == "frozen",
        prediction=0,
        radius=0.5,
        alpha=0.001,
        broken=broken,
        answer=1 if broken else 0,
        hits=5 if broken else 1900,
        total=2000,
        p_value=0.0 if broken else 1.0,
        size=0.7,
        attack="gradient",
        seed=1,
        votes_seed=2,
    )
    return Attempt(**{**values, **more})


def run(label="ours", scope="pipeline", radii=(0.2, 0.4, 0.6, 0.8), norm=2, cap=0.5, attempts=(), **config):
    settings = {"alpha": 0.001, "data": "digits", **config}
    return Run(label, Path(label), scope, norm, cap, RunConfig.of(settings), columns(radii), tuple(attempts))


def moved(run, **data):
    """The run with another reference to its data."""
    return replace(run, config=replace(run.config, data=replace(run.config.data, **data)))


# --- curves ---


@given(
    st.lists(st.floats(0, 5).map(lambda r: round(r, 3)), min_size=1, max_size=60),
    st.integers(0, 10),
    st.integers(3, 70),
)
def test_a_curve_is_never_above_the_truth_and_its_band_never_inside_it(radii, wrong, most):
    c = columns([*radii, *([3.0] * wrong)], [True] * len(radii) + [False] * wrong)
    curve = certified_curve(c, "radius", most)
    assert len(curve.at) <= max(most, 3)
    at = np.unique(np.concatenate([np.linspace(0, 6, 301), radii, np.nextafter(radii, 9)]))
    index = np.searchsorted(curve.at, at, side="left")
    truth, (low, high) = certified_accuracy(c, at), certified_band(c, at)
    assert (curve.percent[index] <= 100 * truth + 1e-9).all()
    assert (curve.low[index] <= 100 * low + 1e-9).all() and (curve.high[index] >= 100 * high - 1e-9).all()


@given(st.lists(st.floats(0, 3).map(lambda r: round(r, 2)), min_size=1, max_size=50))
def test_a_short_curve_is_exact(radii):
    c = columns(radii)
    curve = certified_curve(c)
    for at in (*radii, 0.0, 0.005, 1.005, 4.0):
        assert f"{curve(at):.1f}" == floor_percent(float(certified_accuracy(c, at)))


def test_a_long_curve_stays_close():
    c = columns(np.random.default_rng(0).gamma(2.0, 0.5, 10_000), np.arange(10_000) % 7 > 0)
    curve = certified_curve(c)
    assert len(curve.at) <= 300
    at = np.linspace(0, 4, 500)
    assert max(100 * t - curve(a) for a, t in zip(at, certified_accuracy(c, at), strict=True)) < 0.6


def test_a_curve_by_alm_and_one_that_is_not_known():
    c = columns([1.0, 2.0])
    assert certified_curve(c, "alm")(2.5) == 50.0 and certified_curve(c, "radius")(2.5) == 0.0
    c["radius"][:] = math.nan
    assert certified_curve(c) is None
    nothing = certified_curve(columns([0.5], [False]))
    assert nothing.end == 0 and nothing(0.0) == 0.0


# --- sentences ---


def words(runs):
    return [sentence.text for sentence in sentences(runs)]


def test_three_sentences_say_which_run_to_trust_and_how_far():
    frozen = run("large", "frozen", [1.0, 1.2, 1.4, 1.6], attempts=[attempt(i, i < 3) for i in range(4)])
    trust, doubt, sure = words([run("small", radii=[0.1] * 4), run("good", radii=[0.2, 0.4, 0.6, 0.8]), frozen])
    assert "Trust good, which of the 2 runs" in trust and "100.0 % of 4 inputs" in trust and "below 0.5" in trust
    assert "50.0 %" in trust and "ℓ2 length" in trust
    assert "Do not rely on large" in doubt and "larger numbers" in doubt and "3 of 4 certificates broke" in doubt
    assert "at most 0.001" in sure and "between 6 and 94 %" in sure


def test_a_frozen_run_is_never_the_one_to_trust():
    frozen, unknown = run("large", "frozen", [9.0] * 4), run("other", "unknown", [9.0] * 4)
    assert most_trusted([frozen, unknown]) is None
    trust, doubt, sure = words([frozen, unknown])
    assert trust.startswith("None of these runs") and "was not attacked" in doubt and "ucan audit large" in doubt
    assert "9" not in trust and sure.endswith("region.")
    assert "was never stated" in words([unknown, run()])[1]


def test_radii_of_different_norms_are_not_compared():
    runs = [run("small"), run("other", radii=[0.1] * 4), run("l1", radii=[9.0] * 4, norm=1), run("f", "frozen", norm=1)]
    trust, doubt, _ = words(runs)
    assert "Trust small, which of the 2 runs" in trust and "larger" not in doubt


def test_a_registry_comes_after_a_pipeline_and_is_named():
    registry = run("kept", "registry", [9.0] * 4)
    assert most_trusted([registry, run()]).label == "ours"
    assert "Trust kept together with its registry" in words([registry])[0]


def test_a_run_whose_audit_found_a_bug_is_not_trusted():
    broken = [attempt(i, i < 2, scope="pipeline", bug=True) for i in range(4)]
    bad = run("bad", radii=[9.0] * 4, attempts=broken)
    trust, doubt, _ = words([bad, run()])
    assert "Trust ours" in trust and "Do not trust bad: the audit broke 2 of 4" in doubt
    line = lines_of([bad], [bad], "radius")[0]
    assert line.note == "refuted by audit" and line.note in accuracy_chart([line], "radius", "", width=360)
    assert "bad: the audit broke 2 of 4 certificates" in overview_section([bad])


def test_what_a_bug_refutes_is_shown_as_a_claim_only(place, tmp_path):
    folder = shutil.copytree(place / "plain", tmp_path / "wrong")
    broken = attempt(1, True, scope="pipeline", prediction=1, answer=0, bug=True)
    Ledger(folder / "audit", {"kind": "audit", "steps": 7}).add(broken.to_dict())
    runs = read_runs([folder])
    page = build_page(runs, galleries_of(runs))
    assert 'class="n best"' not in page and page.count("; refuted by the audit</figcaption>") == 1
    assert page.count("What this page shows of it is what it claims, and not to be relied on.") == 2


def test_what_the_audit_did_where_nothing_is_frozen():
    held = run(attempts=[attempt(i, False, scope="pipeline") for i in range(4)])
    assert "tried 4 certificates of ours" in words([held])[1] and "proves nothing" in words([held])[1]
    assert "were not attacked" in words([run()])[1]


def test_what_broke_is_counted_in_certificates_where_the_guarantee_covers_them():
    """Under a registry two certificates may rest on one claim, and an audit may have attacked more of them elsewhere."""
    shared = [attempt(i, i < 2, "frozen", "registry", claim="one", bug=True) for i in range(4)]
    assert "the audit broke 2 of 4 certificates" in words([run("kept", "registry", attempts=shared)])[1]


def test_a_verdict_follows_from_what_was_attacked():
    live = [attempt(i, False) for i in range(4)]
    assert "held, as the proof says" not in audit_section([run(scope="frozen", attempts=live)])
    both_modes = [*live, *(attempt(i, False, "frozen") for i in range(4))]
    assert "held, as the proof says" in audit_section([run(scope="frozen", attempts=both_modes)])
    one = [
        attempt(i, i == 0, scope="pipeline", bug=True) for i in range(4)
    ]  # as few as chance allows, but certified again
    section = audit_section([run(attempts=one)])
    assert "a bug" in section and "more broke than chance allows" not in section


def test_what_an_imported_file_does_not_tell_is_no_0(tmp_path):
    for name, values in (("pA", [0.9, -1.0, 0.4, 0.7]), ("radius", [1.0, 0.5, 0.0, 0.3]), ("varianceterm", [1.0] * 4)):
        np.save(tmp_path / f"a_results_{name}.npy", np.array(values))
    import_run(tmp_path / "a_results_pA.npy", tmp_path / "theirs")
    runs = read_runs([tmp_path / "theirs"])
    numbers = re.findall(r'<td class="n">([^<]*)</td>', overview_section(runs))
    assert numbers[:3] == ["4", "50.0", "–"]  # inputs, right, abstained: wrong answers and abstentions look the same
    assert re.findall(r'<td class="n">([^<]*)</td>', audit_section(runs))[0] == "–"  # certificates of a positive radius


def test_numbers_in_sentences_round_down():
    third = run(radii=[0.4999999] * 2 + [0.0])
    third.columns["correct"][2] = False
    assert "66.6 % of 3 inputs" in words([third])[0] and "below 0.49" in words([third])[0]
    assert "below 12345.6," in words([run(radii=[12345.67] * 4)])[0]


def test_sentences_where_little_is_certified_or_known():
    assert words([run(radii=[0.0] * 4)])[0].startswith("None of these runs")
    few = words([run(radii=[0.5, 0.0, 0.0, 0.0])])[0]
    assert "25.0 %" in few and "below 0.06" in few
    untold = run("theirs", "frozen", kind="imported")
    untold.columns["radius"][:] = math.nan
    assert "100.0 % right)" in words([untold])[1]
    assert "pixels" not in words([run(data="x.npz")])[0] and "pixels" in words([run()])[0]


def unlabelled(one, count=None):
    """The run with so many labels fewer: all, or the last ones."""
    rows = slice(None) if count is None else slice(-count, None)
    one.columns["label"][rows], one.columns["correct"][rows] = -1, False
    return one


def test_without_labels_the_certificates_are_counted_and_nothing_is_called_right_or_wrong():
    trust, _, sure = words([unlabelled(run(radii=[0.5] * 36 + [0.0] * 4))])
    assert "labels are unknown" in trust and "36 of 40 inputs have a certificate" in trust and "%" not in trust
    assert sure.endswith("region.")
    assert words([unlabelled(run()), run("known")])[0].startswith("Trust known: it")
    assert words([unlabelled(run("f", "frozen"))])[0].startswith("None of these runs")
    assert (
        "(the labels are unknown: 4 of 4 inputs have a certificate, right or wrong)"
        in words([unlabelled(run("f", "frozen"))])[1]
    )
    some = words([unlabelled(run(radii=[0.5] * 8), 4)])
    assert "100.0 % of 4 inputs whose label is known" in some[0] and "since 4 inputs are a sample" in some[2]


def test_a_page_without_labels():
    bare, half = unlabelled(run("bare")), unlabelled(run("half"), 2)
    assert set(chosen(bare).values()) == {"largest radius", "smallest radius"}
    section = accuracy_section([bare])
    assert "bare has no curve: the labels are unknown: 4 of 4 inputs have a certificate" in section
    assert "<table>" not in section and lines_of([bare], [bare], "radius") == []
    overview = overview_section([bare, half])
    assert 'class="n">–</td><td class="n">0.0</td><td class="n">–</td>' in overview
    assert "half: the labels of 2 of 4 inputs are unknown: shares are over the other 2." in overview


def test_runs_on_other_inputs_are_not_ranked():
    here = [run("a", data_hash="1"), run("b", radii=[0.1] * 4, data_hash="1")]
    there = run("c", radii=[9.0] * 4, data_hash="2")
    trust = words([*here, there])[0]
    assert trust.startswith("Trust a, which of the 2 runs") and trust.endswith("not to be compared with it: c.")
    assert "reaches furthest" not in words([here[0], there])[0]
    assert words([here[0], run("imported", radii=[9.0] * 4)])[0].startswith("Trust imported, which of the 2 runs")
    frozen = run("f", "frozen", [9.0] * 4, data_hash="2")
    assert "whatever its numbers" in words([here[0], frozen])[1]


def test_a_run_whose_claims_may_be_false_more_often_is_not_ranked():
    bold = run("bold", radii=[9.0] * 4, alpha=0.5)
    for order in ([run(), bold], [bold, run()]):
        trust = words(order)[0]
        assert trust.startswith("Trust ours:") and "reaches furthest" not in trust
        assert trust.endswith("at another α, and not to be compared with it: bold.")


def test_a_run_that_stopped_early_is_not_said_to_be_behind():
    early = run("early", radii=[0.1] * 4, stop="0.1")
    assert "reaches furthest" not in words([run(), early])[0]
    assert "which of the 2 runs" in words([run(), run("low", radii=[0.1] * 4), early])[0]
    ahead = words([run("early", radii=[9.0] * 4, stop="0.5"), run()])[0]
    assert "Trust early, which of the 2 runs" in ahead and ahead.endswith(
        "Sampling stopped once radius 0.5 was decided, by a bound a little below that of a fixed n: elsewhere these are "
        "lower bounds."
    )


def test_the_overview_under_a_stopping_rule_and_its_rounding():
    early = run("early", radii=[0.5] * 3, stop="0.25,0.5")
    early.columns["n"], early.columns["abstained"] = np.array([100, 300, 8000]), np.array([False, False, True])
    section = overview_section([early])
    assert "up to 8,000, mean 2,800" in section and "asked about each input" not in section
    assert "0.25 and 0.5 were decided, by a bound a little below that of a fixed n. Its radii" in section
    assert '<td class="n">33.4</td>' in section  # a third, and no less, abstained
    early.columns["n"][:] = 300
    assert '<td class="n">300</td>' in overview_section([early])
    assert "sampling stopped early" in accuracy_chart(lines_of([early], [early], "radius"), "x", "about")


def test_a_band_needs_a_sample():
    assert "are a sample" in words([run()])[2]
    assert "sample" not in words([run(scope="registry")])[2]
    first = run(radii=[0.2] * 6)
    first.columns["label"][:] = first.columns["prediction"][:] = [0, 0, 0, 1, 1, 1]
    assert "are a sample" in words([first])[2]
    first.columns["prediction"][5], first.columns["correct"][5] = 7, False  # there is a class 7, and no input of it
    assert "sample" not in words([first])[2]
    first.columns["label"][:] = [1, 0, 0, 1, 0, 1]  # a small sample may lack a class
    assert "are a sample" in words([first])[2]


# --- slices ---


def certificate(scale, norm=2, asked=None, radius=0.6):
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3)).eval()
    g = ucan.SmoothedClassifier(model, ucan.Gaussian(scale=1.0), ucan.Fixed(scale), num_classes=3)
    c = next(c for c in g.certify(torch.randn(40, *SHAPE), n=200) if not c.abstained)
    object.__setattr__(c, "region", ucan.Region(scale, radius, norm, SHAPE))
    object.__setattr__(c, "norm", asked or norm)
    object.__setattr__(c, "radius", c.region.inscribed_radius(c.norm))
    return c


def scales():
    torch.manual_seed(0)
    q = torch.linalg.qr(torch.randn(16, 16))[0]
    return {
        "scalar": 2.0,
        "diagonal": torch.linspace(0.5, 2, 16).reshape(SHAPE),
        "basis": ucan.scales.Basis(q, torch.linspace(0.5, 2, 16)),
        "cosines": ucan.scales.DCT(torch.linspace(0.5, 2, 16).reshape(SHAPE)),
        "dense": ucan.scales.Dense(torch.eye(16) + 0.1 * torch.rand(16, 16)),
        "low rank": ucan.scales.LowRank(torch.ones(16), 0.5 * torch.randn(16, 2)),
    }


@pytest.mark.parametrize("name", scales())
@pytest.mark.parametrize("norm, asked", [(2, 2), (1, 1), (2, math.inf)])
def test_a_slice_lies_on_the_edge_and_holds_its_ball(name, norm, asked):
    c = certificate(scales()[name], norm, asked)
    drawn = cut(c)
    assert drawn.region.shape == drawn.ball.shape
    lengths = np.linalg.norm(drawn.region, axis=1)
    assert (np.linalg.norm(drawn.ball, axis=1) <= lengths * (1 + 1e-9)).all()
    assert drawn.most == pytest.approx(np.abs(drawn.region).max(), rel=1e-9)
    if norm == 2:
        assert drawn.reach == pytest.approx((lengths.min(), lengths.max()), rel=1e-6)
        singular = torch.linalg.svdvals(c.region.scale.dense(16))
        assert drawn.reach == pytest.approx((0.6 * singular[-1].item(), 0.6 * singular[0].item()), rel=1e-5)


def test_a_slice_needs_two_dimensions_and_a_radius():
    c = certificate(2.0)
    object.__setattr__(c, "region", ucan.Region(2.0, 0.5, 2, (1,)))
    assert cut(c) is None
    c = certificate(2.0, radius=0.0)
    assert cut(c) is None


# --- figures ---


def test_charts_are_xml_with_a_colour_per_run_and_a_line_per_scope():
    runs = [run(scope, scope) for scope in DASHES]
    svg = accuracy_chart(lines_of(runs, runs, "radius"), "ℓ2 radius", "about", PAPER)
    ET.fromstring(svg)
    for number, (scope, dash) in enumerate(DASHES.items()):
        assert svg.count(PAPER.run(number)) == 3, scope  # band, line, legend
        assert not dash or svg.count(f'stroke-dasharray="{dash}"') == 2, scope
    assert "certified accuracy in %" in svg and "ℓ2 radius" in svg


def test_names_in_charts_are_escaped_and_cut():
    line = Line("<b>" * 60, "pipeline", 0, certified_curve(columns([0.5])))
    for width in (760, 360):
        svg = accuracy_chart([line], "x", 'a "quote" & <', PAPER, width)
        ET.fromstring(svg)
        assert "<b>" not in svg and "…" in svg


def test_different_caps_are_named_in_the_legend_of_alm_alone():
    runs = [run("one", cap=0.5000001), run("two", cap=1.0), run("three", cap=None)]
    labels = [line.label for line in lines_of(runs, runs, "alm")]
    assert labels == ["one (cap 0.500001)", "two (cap 1)", "three (no cap stated)"]
    assert [line.label for line in lines_of(runs, runs, "radius")] == ["one", "two", "three"]
    assert [line.label for line in lines_of(runs[:1], runs[:1], "alm")] == ["one"]


def test_breaks_stand_beside_a_frozen_run_in_the_legend():
    frozen = run("f", "frozen", attempts=[attempt(0, True), attempt(1, False), attempt(1, False, "frozen")])
    for width in (760, 360):
        svg = accuracy_chart(lines_of([frozen], [frozen], "radius"), "x", "about", width=width)
        assert "1 of 2 broken when attacked" in svg


def test_a_note_without_room_stands_below_and_the_rest_makes_way():
    curve = certified_curve(columns([0.5]))
    note = "sampling stopped early, 10 of 10 broken when attacked"
    rows = [Line("certification-wise", "frozen", 0, curve, note), Line("isotropic", "pipeline", 1, curve)]
    svg = ET.fromstring(accuracy_chart(rows, "x", "about", PAPER, 360))
    said = {"".join(text.itertext()): float(text.get("y", 0)) for text in svg.findall(".//{*}text")}
    parts = [y for words, y in said.items() if len(words) > 3 and words in note]
    first, second = (next(y for words, y in said.items() if words.startswith(row.label)) for row in rows)
    assert len(parts) == 2 and first < min(parts) < max(parts) < second
    assert second + 8 < float(svg.get("height", 0)) < second + 30


@pytest.mark.parametrize("most, count", [(1.4, 8), (0.9, 8), (0.0039, 4), (120.0, 4), (1e-3, 8)])
def test_ticks_are_round_and_within(most, count):
    found = ticks(most, count)
    assert found[0] == 0 and found[-1] <= most and count / 2.6 <= len(found) <= count + 2
    assert all(len(f"{t:g}".replace("0.", "").strip("0")) <= 3 for t in found)


def test_votes_of_many_classes_show_the_largest():
    counts = [0] * 1000
    counts[7], counts[512] = 900, 100
    svg = votes_chart(counts, 7, 512)
    ET.fromstring(svg)
    assert "class 7: 900" in svg and "class 512: 100" in svg and svg.count("<rect") == 11
    ET.fromstring(votes_chart((3, 4), None, -1))


def test_a_chart_without_any_valid_vote_says_so():
    assert "Votes by class. None is valid." in votes_chart((0, 0), None, 1)


def test_votes_have_the_names_of_the_classes():
    svg = votes_chart((3, 40, 1), 1, 1, names=("no", "a <very> long name indeed", "yes"))
    below = [text.text for text in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]
    assert below == ["no", "a <very…", "yes"]
    assert (
        "a &lt;very&gt; long name indeed: 40 votes" in svg
        and "no: 3" in svg
        and "class" not in svg.split("</title>")[1]
    )
    many = votes_chart(range(10), 9, 9, names=[f"class of {k}" for k in range(10)])
    assert [text.text for text in ET.fromstring(many).iter("{http://www.w3.org/2000/svg}text")] == list("0123456789")
    assert "class of 9: 9 votes" in many


def test_a_slice_is_drawn():
    ET.fromstring(slice_chart(cut(certificate(scales()["basis"])), 1.5, 0, "frozen", "a <slice>"))


# --- runs on disk ---


class Leaning(ucan.Generator):
    """Noise that looks at its input."""

    scope = "frozen"

    def forward(self, x):
        return 0.1 * x, ucan.scales.Diagonal(0.5 + 0.2 * x.clamp(-1, 2))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Two runs, one frozen and audited, on six pictures of which the third is undecided."""
    folder = tmp_path_factory.mktemp("report")
    level = torch.tensor([0.1, 0.9, 0.5, 0.43, 0.8, 0.9])
    x = level[:, None, None, None].expand(6, *SHAPE).contiguous()
    labels = [0, 1, 0, 0, 1, 0]
    np.savez(folder / "data.npz", x=x.numpy(), y=np.array(labels))

    def net(batch):
        bright = batch.flatten(1).mean(1) - 0.5
        return torch.stack([-10 * bright, 10 * bright], dim=1)

    plan = CertifyPlan(n0=20, n=300)
    for name, generator in (("plain <&>", ucan.Isotropic()), ("leaning", Leaning())):
        g = ucan.SmoothedClassifier(net, ucan.Gaussian(scale=0.25), generator, 2)
        config = {
            "kind": "certify",
            "name": name,
            "data": str(folder / "data.npz"),
            "split": "test",
            "model": "tiny:net",
        }
        config |= {"law": {"name": "Gaussian", "scale": 0.25}, "noise": g.M.describe(), "alm_cap": 0.25}
        config |= {"scope": generator.scope, **asdict(plan)}
        with Store.create(folder / name.split()[0], config) as store:
            for i, outcome in enumerate(g.certify(x, n0=plan.n0, n=plan.n)):
                store.add(i, labels[i], outcome, 0.1)
    ledger = Ledger(folder / "leaning" / "audit", {"kind": "audit", "steps": 7})
    broken = attempt(1, True, prediction=1, answer=0)
    ledger.keep(broken.to_dict(), x[1:2], torch.full((1, *SHAPE), -0.1, dtype=torch.float64))
    for one in (broken, attempt(0, False)):
        ledger.add(one.to_dict())
    return folder


def both(place):
    return read_runs([place / "plain", place / "leaning"])


def test_runs_are_read_with_their_audits(place):
    plain, leaning = both(place)
    assert (plain.label, plain.scope, plain.inputs, plain.certificates, plain.audit) == (
        "plain <&>",
        "pipeline",
        6,
        5,
        None,
    )
    assert leaning.scope == "frozen" and leaning.audit.broken == {"live": 1} and leaning.attacked("live") == 2
    assert len(read_runs([place / "plain", place / "plain"])) == 1
    assert [len(group) for group in by_norm([run(), run("b", norm=1), run("c")])] == [2, 1]


def test_runs_of_one_name_are_told_apart(place, tmp_path):
    for name in ("a", "b"):
        with Store.create(tmp_path / name, {"kind": "imported", "name": "same", "norm": 2}) as store:
            store.extend(columns([0.5]))
    assert [r.label for r in read_runs([tmp_path / "a", tmp_path / "b"])] == ["same (1)", "same (2)"]


def test_an_audit_that_goes_on_can_be_read_and_a_damaged_one_cannot(tmp_path):
    assert read_attempts(tmp_path) == []
    lines = [json.dumps(attempt(i, False).to_dict()) for i in (0, 1)] + [json.dumps(attempt(0, True).to_dict())]
    (tmp_path / "attempts.jsonl").write_text("\n".join(lines) + '\n{"idx": 7, "fac')
    found = {a.idx: a.broken for a in read_attempts(tmp_path)}
    assert found == {0: True, 1: False}
    whole = json.loads(lines[0])
    for damaged in ("no json", json.dumps({**whole, "attack": 5}), json.dumps({**whole, "idx": [1]}), "[1]"):
        (tmp_path / "attempts.jsonl").write_text(damaged + "\n")
        with pytest.raises(StoreError, match="is damaged: line 1 is not the record of an attempt"):
            read_attempts(tmp_path)


def test_the_gallery_shows_the_broken_the_best_the_worst_and_the_abstained(place):
    plain, leaning = both(place)
    assert set(chosen(plain).values()) >= {"largest radius", "smallest radius", "certified, but wrong", "abstained"}
    assert next(iter(chosen(leaning).items())) == (1, "broken by the audit")
    first, second = galleries_of([plain, leaning])
    best = next(e for e in first.exhibits if e.why == "largest radius")
    assert [p.name for p in best.panels] == ["input", "offset μ", "scale λσ", "a noisy copy"]
    assert [p.note for p in best.panels[1:3]] == ["0 everywhere", "0.25 everywhere"]
    assert all(p.uri.startswith("data:image/png;base64,") for p in best.panels)
    quiet = next(e for e in first.exhibits if e.why == "abstained")
    assert quiet.answer is None and quiet.words[0].startswith("No claim") and len(quiet.panels) == 4
    broken = second.exhibits[0]
    assert [p.name for p in broken.panels][-2:] == ["the change δ", "changed input"]
    assert "at 70.0 % of the way" in broken.words[-1] and "if the noise stays" in broken.words[1]
    assert first.typical is not None and first.typical.slice is not None and first.missing == ()


def recorded(folder, place, change):
    """A copy of a run whose records are changed."""
    shutil.copytree(place, folder)
    with closing(sqlite3.connect(folder / "results.sqlite")) as db:
        for idx, text in db.execute("SELECT idx, record FROM records").fetchall():
            record = json.loads(text)
            change(record)
            db.execute("UPDATE records SET record = ? WHERE idx = ?", (json.dumps(record), idx))
        db.commit()
    (changed,) = read_runs([folder])
    return changed


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"radius": 99.0, "p_lower": 0.9999999}, "radius does not follow from its region"),
        ({"p_lower": None}, "p_lower must be a number"),
        ({"p_lower": "x"}, "p_lower must be a number"),
        ({"prediction": 10**30}, "the prediction must be one of the 2 classes"),
        ({"prediction": None}, "the prediction must be one of the 2 classes"),
        ({"kind": "prediction"}, "not a complete certificate record"),
        ({"reason": 5, "kind": "abstention"}, "an abstention's reason is a text"),
        ({"region": {"norm": 2, "radius": 0.5, "shape": ["x"], "scale": {"kind": "Scalar", "value": 1.0}}}, ""),
    ],
)
def test_a_record_that_does_not_hold_together_is_listed_and_not_shown(change, said, place, tmp_path):
    run = recorded(tmp_path / "run", place / "plain", lambda record: record.update(change))
    (gallery,) = galleries_of([run])
    assert all(one.answer is None for one in gallery.exhibits) and gallery.typical is None
    assert len(gallery.missing) > 2 and all(
        re.search(rf"^(Input|The region of input) \d cannot be shown: .*{said}", one) for one in gallery.missing
    )
    page = build_page([run], [gallery])
    assert "cannot be shown" in page and "below 99" not in page


def test_a_record_without_a_part_of_it_is_listed_and_not_shown(place, tmp_path):
    for name in ("p_lower", "prediction", "radius", "evidence.noise"):
        first, _, rest = name.partition(".")

        def without(record, first=first, rest=rest):
            (record[first] if rest else record).pop(rest or first, None)

        run = recorded(tmp_path / name, place / "plain", without)
        (gallery,) = galleries_of([run])
        certified = [one for one in gallery.exhibits if one.answer is not None]
        assert not certified and "is not a complete certificate record" in gallery.missing[0]
        build_page([run], [gallery])


def test_a_class_without_a_name_is_called_by_its_number(place):
    (plain,) = read_runs([place / "plain"])
    named = replace(plain, config=replace(plain.config, model=replace(plain.config.model, class_names=("", "lit"))))
    says = [one.words[0] for one in exhibit_run(named, {}).exhibits]
    assert "The answer is class 0, which is right." in says and "The answer is lit, but the label is 0." in says


def test_alpha_that_is_none_is_refused_and_a_row_without_a_label_is_never_right(place, tmp_path):
    shutil.copytree(place / "plain", tmp_path / "run")
    config = tmp_path / "run" / "config.toml"
    text = config.read_text()
    for alpha in ("nan", "-1.0", "0"):
        config.write_text(text.replace("alpha = 0.001", f"alpha = {alpha}"))
        with pytest.raises(StoreError, match=r"config\.toml: .* is not a valid value of alpha"):
            read_runs([tmp_path / "run"])
    config.write_text(text)
    with closing(sqlite3.connect(tmp_path / "run" / "results.sqlite")) as db:
        db.execute("UPDATE outcomes SET label = -1, correct = 1")
        db.execute("UPDATE outcomes SET label = prediction WHERE idx = 0")
        db.commit()
    runs = read_runs([tmp_path / "run"])
    assert runs[0].labelled == 1 and runs[0].curve().percent.max() <= 100
    build_page(runs, galleries_of(runs))


def test_a_break_in_words_says_who_was_asked_and_which_votes_count():
    assert "after which the pipeline that computes its noise anew answers class 1" in _break_in_words(
        attempt(0, True), False
    )
    lost = _break_in_words(attempt(0, True, scope="pipeline", prediction=3, answer=3), False)
    assert "after which the pipeline no longer gives class 3 a majority" in lost and "answers" not in lost
    two = _break_in_words(attempt(0, True, scope="pipeline"), True)
    assert "the pipeline answers class 1**: class 0 is left with 5 of 2,000 votes for it or its rival." in two
    memory = _break_in_words(attempt(0, True, scope="registry", hits=0, total=1, stateful=True), False)
    assert memory.endswith("the classifier with its memory answers class 1**.")


def test_composed_noise_has_no_one_scale_to_show(place, monkeypatch):
    source = ucan.Composed(channels=1, norm=2, features=2, growth=2).eval()
    monkeypatch.setattr("ucan.report.noise._source", lambda run, missing, trust: source)
    (gallery,) = galleries_of(both(place)[:1])
    assert [p.name for p in gallery.exhibits[0].panels] == ["input", "offset μ", "a noisy copy"]


def test_an_audit_behind_a_gap_is_counted_and_shown(place, tmp_path):
    """Six results, the fourth not finished: what stands behind it is left out of shares, but can be attacked."""
    with Store.open(place / "plain") as whole, Store.create(tmp_path / "cut", {**whole.config, "skip": 1}) as store:
        labels = whole.columns(("label",))["label"]
        for idx in (0, 1, 2, 4, 5):
            store.add(idx, labels[idx], whole.outcome(idx), 0.1)
    ledger = Ledger(tmp_path / "cut" / "audit", {"kind": "audit"})
    for idx in (0, 1, 4, 5):
        ledger.add(attempt(idx, idx == 5, scope="pipeline").to_dict())
    (cut_off,) = read_runs([tmp_path / "cut"])
    assert (cut_off.inputs, cut_off.left_out, cut_off.certificates, cut_off.certificates_left_out) == (3, 2, 2, 2)
    assert '<td class="n">4</td><td class="n">4</td>' in audit_section([cut_off])
    assert "every figure but those of the audit" in overview_section([cut_off])
    shown = exhibit_run(cut_off, {}).exhibits[0]
    assert (shown.idx, shown.truth, shown.why) == (5, 0, "broken by the audit")


def test_an_import_s_caveat_stands_on_the_page(tmp_path):
    (tmp_path / "r.tsv").write_text("idx\tlabel\tpredict\tradius\tcorrect\ttime\n0\t0\t0\t0.5\t1\t0:00:01\n")
    import_run(tmp_path / "r.tsv", tmp_path / "theirs")
    runs = read_runs([tmp_path / "theirs"])
    assert f"theirs: {ROUNDED}" in build_page(runs, galleries_of(runs))


def test_the_noise_of_a_frozen_abstention_is_not_guessed(place):
    _, leaning = both(place)
    quiet = [e for e in exhibit_run(leaning, {}).exhibits if e.why == "abstained"]
    assert [[p.name for p in e.panels] for e in quiet] in ([], [["input"]])


def test_data_that_are_gone_or_changed_are_said_to_be(place, tmp_path):
    (plain,) = read_runs([place / "plain"])
    gone = moved(plain, source=str(tmp_path / "gone.npz"))
    gallery = exhibit_run(gone, {})
    assert "data cannot be read" in gallery.missing[0] and all(not e.panels for e in gallery.exhibits)
    with np.load(place / "data.npz") as arrays:
        np.savez(tmp_path / "other.npz", x=1 - arrays["x"], y=arrays["y"])
    changed = moved(plain, source=str(tmp_path / "other.npz"))
    gallery = exhibit_run(changed, {})
    assert "no longer those that were certified" in gallery.missing[0]
    assert len(gallery.exhibits) == 4 and all(e.counts for e in gallery.exhibits)
    page = build_page([gone], [exhibit_run(gone, {})])
    assert "data cannot be read" in page and "Certified accuracy" in page


def test_an_answer_from_a_registry_says_whose_votes_it_shows(place, tmp_path):
    with np.load(place / "data.npz") as arrays:
        x, labels = torch.from_numpy(arrays["x"]), arrays["y"]
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 2)).eval()
    with torch.no_grad():
        net[1].weight.copy_(torch.tensor([[-1.0], [1.0]]).expand(2, 16))
        net[1].bias.copy_(torch.tensor([8.0, -8.0]))
    g = ucan.SmoothedClassifier(net, ucan.Gaussian(scale=0.25), num_classes=2)
    config = {"kind": "certify", "data": str(place / "data.npz"), "norm": 2, "scope": "registry"}
    with Store.create(tmp_path / "kept", config) as store, ucan.Registry(tmp_path / "answers.sqlite") as registry:
        _, first, second = registry.certify(g, torch.cat([x[:1] + 0.001, x[:2]]), n=300)
        store.add(0, int(labels[0]), first, 0.1)
        store.add(1, int(labels[1]), second, 0.1)
    (kept,) = read_runs([tmp_path / "kept"])
    gallery = exhibit_run(kept, {})
    assert kept.scope == "registry" and gallery.missing == ()
    said = {one.idx: " ".join(one.words) for one in gallery.exhibits}
    assert len(said) == 2 and all("as long as the registry is kept" in text for text in said.values())
    assert "enrolled before" in said[0] and "enrolled before" not in said[1]
    changed = moved(kept, fingerprint="another")
    assert "no longer those" in exhibit_run(changed, {}).missing[0]


def test_the_scale_in_each_pixel_is_that_of_the_rows_of_sigma():
    for scale in scales().values():
        sigma = ucan.Fixed(scale).scale
        truth = torch.linalg.vector_norm(sigma.dense(16), dim=1).reshape(SHAPE).mean(0)
        assert np.allclose(pixel_scale(sigma, SHAPE), truth, rtol=1e-5)


def test_the_commands_name_what_was_run(place):
    certify, audit = commands(both(place)[1])
    assert certify.startswith("ucan certify --model tiny:net --data ") and "--n 300" in certify and "--n0 20" in certify
    assert "--alpha" not in certify and "--max 6" in certify
    assert audit.startswith(f"ucan audit {place / 'leaning'} --max 2 --mode live --factors 0.999 --steps 7")
    assert commands(both(place)[0])[1] == f"ucan audit '{place}/plain'".replace("'", "")
    known = CliRunner().invoke(app, ["certify", "--help"], terminal_width=200).output
    assert all(word in known for word in re.findall(r"--[a-z-]+", certify))


# --- the page ---


class Tags(HTMLParser):
    """Which elements there are, and that they close in order."""

    def __init__(self):
        super().__init__()
        self.open, self.seen, self.attributes = [], [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        self.attributes.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "img", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def parsed(page):
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    return tags


HOSTILE = """<script>alert(1)<b>&amp;"onload='x'""" + "</title>{{ 7 * 7 }}**"


def structure_with(text, place, folder):
    """The elements and attributes of a page on runs whose every free text is this one."""
    folder.mkdir()
    made = folder / text.replace("/", "|")
    with Store.open(place / "leaning") as whole:
        free = {key: text for key in ("name", "model", "data", "split", "noise", "weights", "registry")}
        with Store.create(made, {**whole.config, **free, "given": {"noise": text}}) as store:
            for idx, label in enumerate(whole.columns(("label",))["label"]):
                store.add(idx, label, whole.outcome(idx), 0.1)
    with Store.create(folder / "imported", {"kind": "imported", **free, "source": text, "notes": [text]}) as store:
        store.extend(columns([0.5]))
    runs = read_runs([made, folder / "imported"])
    galleries = galleries_of(runs)
    page = build_page(runs, galleries)
    assert f"<title>UCAN report: {escape(text)}" in page
    tags = parsed(page)
    drawn = [parsed(svg).seen for svg in figure_files(runs, galleries).values()]
    return [(tag, sorted(found)) for tag, found in tags.attributes], tags.seen, drawn


def test_no_text_of_a_run_becomes_markup(place, tmp_path):
    harmless = structure_with("x" * len(HOSTILE), place, tmp_path / "harmless")
    assert structure_with(HOSTILE, place, tmp_path / "hostile") == harmless


def test_the_page_is_whole_and_names_are_escaped(place):
    runs = both(place)
    for one in runs:
        object.__setattr__(one, "label", "</script><script>alert(1)</script>" + one.label)
    page = build_page(runs, galleries_of(runs))
    tags = parsed(page)
    assert tags.seen.count("script") == 3  # two charts' data, and the page's own
    assert "<script>alert" not in page and len(page.encode()) < LIMIT
    assert tags.seen.count("h1") == 1 and "button" in tags.seen
    ids = [a["id"] for _, a in tags.attributes if "id" in a]
    assert len(ids) == len(set(ids))
    links = [a["href"] for tag, a in tags.attributes if tag == "a"]
    assert all(link.startswith("#") and link[1:] in ids for link in links)
    assert all(a.get("alt") for tag, a in tags.attributes if tag == "img")
    assert all(a.get("scope") for tag, a in tags.attributes if tag == "th")
    outside = re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?(?!data:|#)[^"')\s>]+""", page)
    assert outside == []


def test_a_frozen_number_is_marked_wherever_it_stands(place):
    runs = both(place)
    page = build_page(runs, galleries_of(runs))
    assert "407 of the 408" in page and 'id="scope-frozen"' in page
    for table in re.findall(r"<table>.*?</table>", page, re.DOTALL):
        row = next(r for r in re.findall(r"<tr>.*?</tr>", table, re.DOTALL) if "leaning" in r)
        assert 'class="chip frozen"' in row
    assert "not audited" in page and "1 of 2" in page


def test_every_figure_that_stands_alone_names_run_and_scope_in_words(place):
    runs = both(place)
    galleries = galleries_of(runs)
    drawn = figure_files(runs, galleries)
    for number, (one, gallery) in enumerate(zip(runs, galleries, strict=True)):
        own = {name: svg for name, svg in drawn.items() if name.split("-")[1] == str(number + 1)}
        inputs = [svg for name, svg in own.items() if name.startswith("input-")]
        assert len(inputs) == len(gallery.exhibits) and any(name.startswith("slice-") for name in own)
        for svg in own.values():
            said = ["".join(text.itertext()) for text in ET.fromstring(svg).findall(".//{*}text")]
            assert any(one.label in words and one.scope in words for words in said)
        pictures = [len(ET.fromstring(svg).findall(".//{*}image")) for svg in inputs]
        assert pictures == [len(exhibit.panels) for exhibit in gallery.exhibits] and max(pictures) >= 3


def test_norms_are_never_mixed_in_a_chart(tmp_path):
    for name, norm in (("two", 2), ("one", 1), ("unsaid", None)):
        config = {"kind": "imported", "name": name, "norm": norm, "scope": "pipeline"}
        with Store.create(tmp_path / name, config) as store:
            store.extend(columns([0.5, 0.7]))
    runs = read_runs([tmp_path / name for name in ("two", "one", "unsaid")])
    drawn = figure_files(runs, galleries_of(runs))
    assert set(drawn) == {f"{by}-{norm}" for by in ("radius", "alm") for norm in ("l2", "l1", "unknown-norm")}
    assert "two" in drawn["radius-l2"] and "one" not in drawn["radius-l2"].split("<g")[-1]
    page = build_page(runs, galleries_of(runs))
    parsed(page)
    assert "were imported" in page and "imported results cannot be attacked" in page


def test_galleries_that_do_not_fit_are_left_out_and_named(place, monkeypatch):
    runs = both(place)
    whole = build_page(runs, galleries_of(runs))
    monkeypatch.setattr("ucan.report.page.LIMIT", len(whole.encode()) - 4000)
    smaller = build_page(runs, galleries_of(runs))
    assert "Left out, to keep this page small: leaning" in smaller and len(smaller) < len(whole)


# --- the command ---


def ok(*words):
    result = CliRunner().invoke(app, [str(w) for w in words])
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def refused(capsys, monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["ucan", *map(str, words)])
    with pytest.raises(SystemExit) as leaving:
        main()
    said = capsys.readouterr()
    assert leaving.value.code == 2 and said.out == "" and "Traceback" not in said.err
    return said.err


def test_the_command_writes_a_page_and_replaces_an_older_one(place, tmp_path):
    page = tmp_path / "report.html"
    assert ok("report", place / "plain", "-o", page).strip() == f"Report: {page}"
    first = page.read_text()
    assert GENERATOR in first[:1000]
    assert ok("report", place / "plain", place / "leaning", "-o", page, "-q") == ""
    assert page.read_text() != first and [p.name for p in tmp_path.iterdir()] == ["report.html"]
    ok("report", place / "plain", "-o", page, "--no-gallery")
    assert 'id="gallery"' not in page.read_text()


def test_figures_are_written_as_svg_and_png(place, tmp_path, capsys, monkeypatch):
    pytest.importorskip("vl_convert")
    ok("report", place / "plain", "-o", tmp_path / "r.html", "--figures", tmp_path / "new" / "figures")
    found = {p.name for p in (tmp_path / "new" / "figures").iterdir()}
    assert {"radius-l2.svg", "radius-l2.png", "alm-l2.png", "slice-1-plain.svg"} <= found
    assert {Path(name).stem for name in found if name.endswith("svg")} == {
        Path(n).stem for n in found if n.endswith("png")
    }
    assert (tmp_path / "new" / "figures" / "radius-l2.png").read_bytes().startswith(b"\x89PNG")
    words = ("report", place / "plain", "-o", tmp_path / "r.html", "--figures", tmp_path / "new" / "figures")
    assert "Use --force to overwrite" in refused(capsys, monkeypatch, *words)
    ok(*words, "--force")


def test_what_cannot_be_reported_is_refused_and_nothing_is_overwritten(place, tmp_path, capsys, monkeypatch):
    page, empty = tmp_path / "report.html", tmp_path / "empty"
    Store.create(empty, {"kind": "certify"}).close()
    (tmp_path / "mine.html").write_text("my own page")
    for words, message in (
        ((tmp_path / "nowhere",), "is not a folder"),
        ((tmp_path,), "is not a run folder"),
        ((empty,), "has no certificates yet"),
        ((place / "plain", "-o", tmp_path / "no" / "r.html"), "create it"),
        ((place / "plain", "-o", tmp_path), "is a folder"),
        ((place / "plain", "-o", tmp_path / "mine.html"), "is not a UCAN report"),
        ((place / "plain", "--figures", tmp_path / "mine.html"), "is a file"),
    ):
        given = words if "-o" in words else (*words, "-o", page)
        assert message in refused(capsys, monkeypatch, "report", *given), message
        assert not page.exists()
    assert (tmp_path / "mine.html").read_text() == "my own page"
    ok("report", place / "plain", "-o", tmp_path / "mine.html", "--force")
    with pytest.raises(InvalidInput, match="at least one run"):
        read_runs([])


def test_a_disk_that_refuses_leaves_the_older_page(place, tmp_path, capsys, monkeypatch):
    page = tmp_path / "report.html"
    ok("report", place / "plain", "-o", page)
    before = page.read_bytes()

    def full(path, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sys.modules["ucan.cli.report"], "write_whole", full)
    assert "no space left" in refused(capsys, monkeypatch, "report", place / "plain", "-o", page)
    assert page.read_bytes() == before
