"""Comparison tables by hand: shares, best within a scope, improvement, envelope, notes, and the three looks."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner

import ucan
from ucan.cli import app
from ucan.cli.compare import compare
from ucan.cli.exchange import export_run, import_results
from ucan.data import InMemory
from ucan.errors import InvalidInput, StoreError
from ucan.report.evidence import overview_section
from ucan.report.page import build_page, galleries_of
from ucan.report.render import in_markdown, latex, markdown, render, terminal
from ucan.report.runs import read_runs
from ucan.report.tables import RADII, Table, comparison, first_axis
from ucan.results import Store
from ucan.results.formats import write
from ucan.results.imports import ROUNDED, complete, import_run
from ucan.runs.certify import CertifyJob, certify
from ucan.runs.read import Run

AT = (0.0, 0.5, 1.0)


def make(
    folder: Path, radii: list[float], rows: int, idx: np.ndarray | None = None, unlabelled: int = 0, **config: object
) -> Path:
    """A run of ``rows`` inputs, right with these radii and wrong with a large one on the rest; the last have no label."""
    radius = np.array(radii + [9.0] * (rows - len(radii)))
    right, known = np.arange(rows) < len(radii), np.arange(rows) < rows - unlabelled
    settings = {"kind": "imported", "norm": 2, **config}
    columns = complete(
        idx=np.arange(rows) if idx is None else idx,
        label=np.where(known, 0, -1),
        prediction=np.where(right, 0, 1),
        abstained=np.zeros(rows, bool),
        correct=right & known,
        radius=radius,
        alm=2 * radius,
    )
    with Store.create(folder, settings) as store:
        store.extend(columns)
    return folder


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    return make(tmp_path / "ours", [0.2] * 10 + [0.7] * 20 + [1.2] * 27, 100, scope="frozen", alm_cap=1.0)


@pytest.fixture
def cohen(tmp_path: Path) -> Path:
    return make(tmp_path / "cohen_0.5", [0.2] * 30 + [0.7] * 20, 100, scope="pipeline", alm_cap=1.0)


@pytest.fixture
def wide(tmp_path: Path) -> Path:
    return make(tmp_path / "cohen_1.0", [0.7] * 20 + [1.2] * 9, 100, scope="pipeline", alm_cap=1.0)


def cells(table: Table) -> list[tuple[str, ...]]:
    return [line for line, _ in table.lines()]


def test_shares_by_hand(ours: Path, cohen: Path, wide: Path) -> None:
    table = comparison([ours, cohen, wide], AT)
    assert table.header == ("run", "scope", "ALM cap", "0", "0.5", "1")
    assert cells(table) == [
        ("ours", "frozen", "1", "57.0", "47.0", "27.0"),
        ("cohen_0.5", "pipeline", "1", "50.0", "20.0", "0.0"),
        ("cohen_1.0", "pipeline", "1", "29.0", "29.0", "9.0"),
    ]
    assert table.title == "Certified accuracy in % by ℓ2 radius, 100 inputs"
    by_alm = comparison([cohen], (0, 1.4, 1.5), "alm")
    assert cells(by_alm)[0][3:] == ("50.0", "20.0", "0.0") and "ALM" in by_alm.title


def test_shares_round_down(tmp_path: Path) -> None:
    run = make(tmp_path / "run", [1.0, 1.0], 3)
    assert cells(comparison([run], [0], digits=0))[0][3] == "66" and cells(comparison([run], [0]))[0][3] == "66.6"


@pytest.mark.parametrize("skip", [1, 20])
def test_an_interrupted_run_counts_up_to_the_first_gap(tmp_path: Path, skip: int) -> None:
    """Sure inputs finish early: with those behind the gap the share at 1 would be 9 of 12."""
    radii = [1.2, 1.2, 0.2, 1.2] + [1.2] * 6 + [0.2]
    places = skip * np.array([0, 1, 2, 3, 5, 6, 7, 9, 10, 11, 12, 14])
    stopped = make(tmp_path / "stopped", radii, 12, idx=places, scope="pipeline", skip=skip)
    with Store.open(stopped) as store:
        columns, behind = store.gapless(("idx",))
        assert behind == 8 and columns["idx"].tolist() == (skip * np.arange(4)).tolist()
        assert len(store.columns()["idx"]) == 12  # nothing is lost
    table = comparison([stopped], AT)
    assert cells(table) == [("stopped", "pipeline", "–", "100.0", "75.0", "75.0")] and table.rows[0].inputs == 4
    assert table.title == "Certified accuracy in % by ℓ2 radius, 4 inputs"  # a share of 4 is no share of all
    assert "stopped was interrupted: 8 results behind an unfinished input are left out" in table.notes[0]
    with Store.open(stopped) as store:
        write(store, tmp_path / "s.tsv")
        write(store, tmp_path / "s.json", "json")
    assert len((tmp_path / "s.tsv").read_text().splitlines()) == 1 + 4
    assert json.loads((tmp_path / "s.tsv.json").read_text())["left_out"] == 8
    assert [row["idx"] for row in json.loads((tmp_path / "s.json").read_text())["rows"]] == [
        0,
        skip,
        2 * skip,
        3 * skip,
    ]
    (run,) = read_runs([stopped])
    assert (run.inputs, run.left_out) == (4, 8) and "8 results behind an unfinished input" in overview_section([run])
    whole = make(tmp_path / "whole", radii, 12, idx=skip * np.arange(12), scope="pipeline", skip=skip)
    assert not comparison([whole], AT).notes and read_runs([whole])[0].left_out == 0
    first = make(tmp_path / "first", radii, 12, idx=skip * np.arange(1, 13), scope="pipeline", skip=skip)
    with pytest.raises(StoreError, match="no certificates yet"):
        read_runs([first])


def test_the_best_is_marked_within_a_scope(ours: Path, cohen: Path, wide: Path) -> None:
    table = comparison([ours, cohen, wide], AT)
    assert [row.best for row in table.rows] == [(True, True, True), (True, False, False), (False, True, True)]
    assert comparison([cohen], AT).rows[0].best == (True, True, False)  # 0 % is nobody's best


def test_alm_is_compared_under_one_cap(tmp_path: Path) -> None:
    capped = make(tmp_path / "a", [1.0] * 5, 10, scope="pipeline", alm_cap=1.0)
    larger = make(tmp_path / "b", [1.0] * 9, 10, scope="pipeline", alm_cap=10.00001)
    uncapped = make(tmp_path / "c", [1.0] * 10, 10, scope="pipeline")
    table = comparison([capped, larger, uncapped], [1.0], "alm")
    assert [row.best for row in table.rows] == [(True,), (True,), (False,)]
    assert [row[2] for row in cells(table)] == ["1", "10.0001", "–"]  # rounded up: no scale is larger
    assert any("common cap" in note for note in table.notes)
    with pytest.raises(InvalidInput, match="mixes ALM caps"):
        comparison([], [1.0], "alm", envelopes={"all": [capped, larger]})


def test_improvement_over_the_best_baseline(ours: Path, cohen: Path, wide: Path) -> None:
    table = comparison([ours, cohen], AT, baselines=[cohen, wide])
    assert [row.kind for row in table.rows] == ["run", "run", "run", "improvement"]
    assert [row.name for row in table.rows][:3] == ["cohen_0.5", "cohen_1.0", "ours"]
    assert table.rows[3].values == pytest.approx((7 / 50, 18 / 29, 18 / 9))
    assert cells(table)[3][3:] == ("+14.0", "+62.0", "+200.0")  # 18/29 = 62.07 %
    assert "across scopes" in table.rows[3].name and any("different guarantees" in note for note in table.notes)
    worse = comparison([wide], (0.0, 2.0), baselines=[cohen])
    assert cells(worse)[2][3:] == ("-42.0", "–") and "across scopes" not in worse.rows[2].name


def test_an_improvement_says_across_what_it_goes(tmp_path: Path) -> None:
    base = make(tmp_path / "base", [1.0] * 5, 10, scope="pipeline", alm_cap=1.0, alpha=0.001)
    wider = make(tmp_path / "wider", [1.0] * 9, 10, scope="pipeline", alm_cap=10.0, alpha=0.001)
    bolder = make(tmp_path / "bolder", [1.0] * 9, 10, scope="pipeline", alm_cap=1.0, alpha=0.5)
    kinds = {
        metric: comparison([wider, bolder], [1.0], metric, baselines=[base]).rows[2::2] for metric in ("radius", "alm")
    }
    assert ["across caps" in row.name for row in kinds["alm"]] == [True, False]
    assert not any("across caps" in row.name for row in kinds["radius"])
    table = comparison([bolder], [1.0], "alm", baselines=[base])
    assert r"(relative, at another $\alpha$)" in render(table, "latex")
    assert all(["at another α" in row.name for row in rows] == [False, True] for rows in kinds.values())


def test_the_envelope_of_runs_of_different_length_names_no_number_of_inputs(tmp_path: Path, cohen: Path) -> None:
    short = make(tmp_path / "short", [1.0], 7, scope="pipeline")
    assert "inputs" not in comparison([], AT, envelopes={"E": [cohen, short]}).title


def test_the_envelope_is_a_row_of_its_own(ours: Path, cohen: Path, wide: Path) -> None:
    table = comparison([ours], AT, envelopes={"Cohen": [cohen, wide]})
    row = table.rows[1]
    assert row.name == "Cohen (best of cohen_0.5, cohen_1.0)" and row.kind == "envelope"
    assert row.values == (0.5, 0.29, 0.09) and row.scope == "pipeline"
    with pytest.raises(InvalidInput, match="mixes the scopes frozen, pipeline"):
        comparison([], AT, envelopes={"all": [ours, cohen]})


def test_an_envelope_says_that_its_runs_were_interrupted(tmp_path: Path) -> None:
    places = np.array([0, 1, 3])
    cut = [make(tmp_path / name, [1.0] * 3, 3, idx=places, scope="pipeline", skip=1) for name in "ab"]
    notes = comparison([], AT, envelopes={"both": cut}).notes
    assert notes == (
        "both (best of a, b) was interrupted: 2 results behind an unfinished input are left out; `ucan certify` goes on",
    )


def test_where_sampling_stopped_shares_are_lower_bounds(tmp_path: Path) -> None:
    """The stopped run leads where its rule decided, and elsewhere can only deny the mark."""
    full = make(tmp_path / "full", [0.2] * 20 + [0.7] * 40 + [1.2] * 10, 100, scope="pipeline", alm_cap=1.0)
    early = make(tmp_path / "early", [0.5] * 48 + [1.2] * 15, 100, scope="pipeline", alm_cap=1.0, stop="0.5")
    table = comparison([full, early], AT)
    assert cells(table)[1][3:] == ("63.0", "63.0", "15.0")
    assert [row.best for row in table.rows] == [(True, False, False), (False, True, False)]
    said = "early: sampling stopped once radius 0.5 was decided, by a bound a little below that of a fixed n: elsewhere these "
    said += "are lower bounds"
    assert table.notes == (said,) and said in markdown(table)
    by_alm = comparison([full, early], (1.0,), "alm")
    assert [row.best for row in by_alm.rows] == [(False,), (False,)]
    assert "of a fixed n: by ALM these are lower bounds" in by_alm.notes[-1]
    improved = comparison([full], AT, baselines=[early]).rows[2]
    assert [math.isnan(v) for v in improved.values] == [True, False, True]
    within = make(tmp_path / "within", [9.0] * 90, 100, scope="pipeline", stop="5%")
    table = comparison([within, early], AT)
    assert not any(any(row.best) for row in table.rows)
    assert "sampling stopped within 5% of what more samples could give by the same bound" in table.notes[0]
    both = comparison([], AT, envelopes={"E": [full, early]})
    assert both.rows[0].best == (False, True, False) and "E (best of full, early): sampling stopped" in both.notes[0]
    two = make(tmp_path / "two", [1.0], 1, scope="pipeline", stop="0.5,1.0")
    assert "once the radii 0.5 and 1 were decided" in comparison([two], AT).notes[0]


def test_what_stopped_or_was_rounded_stays_so_through_a_file(tmp_path: Path) -> None:
    run = make(tmp_path / "run", [0.5], 2, scope="pipeline", stop="0.5", notes=["its radii are odd"])
    with Store.open(run) as store:
        write(store, tmp_path / "r.tsv")
    import_run(tmp_path / "r.tsv", tmp_path / "back", name="run")
    assert comparison([tmp_path / "back"], AT).notes == comparison([run], AT).notes
    assert comparison([run], AT).notes[1] == "run: its radii are odd"
    (tmp_path / "r.tsv.json").unlink()
    import_run(tmp_path / "r.tsv", tmp_path / "bare", name="bare", scope="pipeline")
    assert comparison([tmp_path / "bare"], AT).notes == (f"bare: {ROUNDED}",)


@pytest.mark.parametrize("radius, rounded", [("0.617", True), ("1.2e-05", True), ("0.0617", True), ("0.61743", False)])
def test_radii_with_more_digits_are_not_said_to_have_three(tmp_path: Path, radius: str, rounded: bool) -> None:
    (tmp_path / "t.tsv").write_text(f"idx\tlabel\tpredict\tradius\tcorrect\ttime\n0\t1\t1\t{radius}\t1\t0:00:01\n")
    found = import_run(tmp_path / "t.tsv", tmp_path / "run", scope="pipeline")
    assert found.notes == ((ROUNDED,) if rounded else ())


def test_without_labels_there_are_no_shares(tmp_path: Path) -> None:
    none = make(tmp_path / "none", [1.2] * 10, 40, unlabelled=40, scope="pipeline")
    some = make(tmp_path / "some", [1.2] * 10, 40, unlabelled=20, scope="pipeline")
    table = comparison([none, some], AT, bands=True)
    assert cells(table)[0][3:] == ("–", "–", "–") and cells(table)[1][3].startswith("50.0 [")
    assert table.notes[:2] == (
        "none: the labels are unknown: 40 of 40 inputs have a certificate, right or wrong",
        "some: the labels of 20 of 40 inputs are unknown: shares are over the other 20",
    )


def test_the_best_is_marked_among_runs_on_the_same_inputs(tmp_path: Path) -> None:
    def on(name: str, right: int, rows: int = 10, **config: object) -> Path:
        return make(tmp_path / name, [1.0] * right, rows, scope="pipeline", **config)

    a, b = on("a", 5, data="digits", data_hash="1"), on("b", 4, data="digits", data_hash="1")
    other = on("other", 9, data="mnist", split="test", data_hash="2")
    table = comparison([a, b, other], (0.0,))
    assert [row.best for row in table.rows] == [(True,), (False,), (True,)]
    said = "not the same inputs, so only rows on the same ones compare: a, b: 10 of digits; other: 10 of mnist (test)"
    assert table.notes == (said,) and comparison([a, b], (0.0,)).notes == ()
    fewer = on("fewer", 5, 6, data="digits", data_hash="1", skip=1)
    table = comparison([a, fewer], (0.0,), baselines=[fewer])
    assert [row.best for row in table.rows[:2]] == [(True,), (True,)] and "6 of digits" in table.notes[0]
    assert "on other inputs" in table.rows[2].name
    theirs = on("theirs", 8)  # nobody knows of what
    table = comparison([a, other, theirs], (0.0,))
    assert [row.best for row in table.rows] == [(False,), (True,), (False,)]
    mixed = comparison([a], (0.0,), envelopes={"E": [a, other]})
    assert mixed.rows[0].best == (True,) and "E (best of a, other): 10 of digits and 10 of mnist" in mixed.notes[0]


def test_scopes_in_words(ours: Path, cohen: Path, tmp_path: Path) -> None:
    unknown = make(tmp_path / "theirs", [1.0], 100)
    notes = comparison([ours, cohen, unknown], AT).notes
    assert notes[0] == (
        "frozen: holds for the noise frozen at each input, not for a deployed pipeline that recomputes it; "
        "see the documentation page “Whose guarantee it is”"
    )
    assert notes[1].startswith("unknown:") and comparison([cohen], AT).notes == ()
    assert cells(comparison([unknown], AT))[0][1] == "unknown"


def test_what_does_not_compare_is_said(tmp_path: Path, cohen: Path) -> None:
    linf = make(tmp_path / "linf", [1.0], 100, norm=math.inf)
    with pytest.raises(InvalidInput, match=r"different norms.*linf ℓ∞"):
        comparison([cohen, linf], AT)
    short = make(tmp_path / "short", [1.0], 7, norm=None)
    notes = comparison([cohen, short], AT).notes
    assert any("norm not stated: short" in n for n in notes) and any("cohen_0.5 100, short 7" in n for n in notes)
    with pytest.raises(InvalidInput, match="nothing to compare"):
        comparison([], AT)
    with pytest.raises(InvalidInput, match="at least one radius"):
        comparison([cohen], [])


def test_claims_that_may_be_false_more_often_are_said_and_not_ranked(tmp_path: Path) -> None:
    """Whoever takes a larger α gets larger radii."""
    sure = make(tmp_path / "sure", [1.0] * 50, 100, scope="pipeline", alpha=0.001)
    bold = make(tmp_path / "bold", [1.0] * 60, 100, scope="pipeline", alpha=0.5)
    theirs = make(tmp_path / "theirs", [1.0] * 55, 100, scope="pipeline")
    table = comparison([sure, bold], AT)
    assert all(row.best == (True, True, True) for row in table.rows)
    assert any("not the same α" in n and "sure 0.001, bold 0.5" in n for n in table.notes)
    both = comparison([], AT, envelopes={"both": [sure, bold]})
    assert any("0.001 and 0.5" in n for n in both.notes)
    assert not any("same α" in n for n in comparison([sure, theirs], AT).notes)
    assert comparison([sure, theirs], AT).rows[0].best == (False, False, False)


def test_a_radius_is_not_shown_larger_than_it_is(cohen: Path) -> None:
    assert comparison([cohen], radii=(0.99999999, 1.0, 1.2345678)).header[3:] == ("0.999999", "1", "1.23456")


def test_an_empty_run_and_equal_names(tmp_path: Path) -> None:
    Store.create(tmp_path / "a" / "run", {}).close()
    other = make(tmp_path / "b" / "run", [1.0], 1)
    table = comparison([tmp_path / "a" / "run", other], [0])
    assert cells(table)[0][3] == "–" and [row.name for row in table.rows] == ["run (1)", "run (2)"]


def test_bands_round_outwards(cohen: Path) -> None:
    assert cells(comparison([cohen], [0, 1.0], bands=True))[0][3:] == ("50.0 [39.8, 60.2]", "0.0 [0.0, 3.7]")


# --- looks ---


def test_markdown(ours: Path, cohen: Path) -> None:
    lines = markdown(comparison([ours, cohen], AT)).splitlines()
    assert lines[2:6] == [
        "| run | scope | ALM cap | 0 | 0.5 | 1 |",
        "|---|---|--:|--:|--:|--:|",
        "| ours | frozen | 1 | **57.0** | **47.0** | **27.0** |",
        "| cohen_0.5 | pipeline | 1 | **50.0** | **20.0** | 0.0 |",
    ]
    assert lines[-1].startswith("frozen: holds for")


def test_latex_is_escaped_and_balanced(ours: Path, cohen: Path, tmp_path: Path) -> None:
    odd = make(tmp_path / "odd", [1.0], 100, name="50% & more_{x} ~^\\")
    text = latex(comparison([ours, odd], AT, baselines=[cohen]))
    assert r"cohen\_0.5 & pipeline & 1 & \textbf{50.0} & \textbf{20.0} & 0.0 \\" in text
    assert r"50\% \& more\_\{x\} \textasciitilde{}\textasciicircum{}\textbackslash{} & unknown & --" in text
    assert r"by $\ell_2$ radius, 100 inputs}" in text and text.isascii()
    assert text.count(r"\begin{") == text.count(r"\end{") == 2


def test_terminal_marks_the_best_with_and_without_bold(
    ours: Path, cohen: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = comparison([ours, cohen], AT)
    plain = terminal(table)
    assert "57.0*" in plain and "\x1b" not in plain and "0.0*" not in plain.replace("50.0*", "").replace("20.0*", "")
    assert "frozen: holds for the noise frozen at each input" in plain
    assert max(map(len, terminal(table, width=60).splitlines())) <= 60

    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    bold = terminal(table)
    assert "\x1b[1m57.0\x1b[0m" in bold and "*" not in bold
    with pytest.raises(InvalidInput, match="terminal, markdown and latex"):
        render(table, "html")  # type: ignore[arg-type]


def test_a_narrow_terminal_cuts_no_number(tmp_path: Path) -> None:
    """Each grid names run and scope, and every cell of the wide table stands whole in one of the narrow ones."""
    folders = [
        make(tmp_path / name, [0.3, 1.2], 3, scope="frozen") for name in ("short", "a-run-with-a-rather-long-name")
    ]
    table = comparison(folders, [0, 0.25, 0.5, 0.75, 1, 1.25, 1.5], bands=True)
    for width in (100, 80, 60, 40):
        text = terminal(table, width)
        words = re.findall(r"[^\s┃│*]+", text)
        grids = text.count("┏")
        assert max(map(len, text.splitlines())) <= max(width, 60), width
        assert words.count("frozen") == 2 * grids + 1 and words.count("short") == grids, width  # and one in a note
        for cell in [*table.header, *cells(table)[0]]:
            assert set(cell.split()) <= set(words), (width, cell)


# --- commands ---


def invoke(*words: object) -> str:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command("compare")(compare)
    app.command("export")(export_run)
    app.command("import")(import_results)
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None:
        raise result.exception
    return result.output


def test_a_runs_name_is_no_markup() -> None:
    said = in_markdown("a \\| pipeline | **9** <img src=x> [b](javascript:c) __d__ e_f `g`\n| h")
    assert said == (
        "a &#92;\\| pipeline \\| &#42;&#42;9&#42;&#42; &lt;img src=x&gt; &#91;b&#93;(javascript:c) &#95;&#95;d&#95;&#95; "
        "e_f `g` \\| h"
    )


def test_the_name_of_a_run_in_a_markdown_table(tmp_path: Path) -> None:
    named = make(tmp_path / "run", [0.2], 2, name="<b>|`", scope="frozen")
    table = comparison([named], [0.0])
    assert "| &lt;b&gt;\\|&#96; | frozen |" in render(table, "markdown") and "<b>" not in render(table, "markdown")


def test_compare_command(ours: Path, cohen: Path, wide: Path, tmp_path: Path) -> None:
    shown = invoke("compare", ours, "--baseline", cohen, "--envelope", f"C={cohen},{wide}", "--radii", "0,1")
    assert "57.0*" in shown and "best of" in shown and "improvement" in shown
    file = tmp_path / "table.md"
    invoke("compare", ours, "--at", "alm", "--format", "markdown", "-o", file, "--bands", "--radii", "0")
    assert "| ours | frozen | 1 | **57.0 [46.7, 66.9]** |" in file.read_text()
    for name, begins in (("by-ending.md", "Certified"), ("by-ending.tex", r"\begin{table}")):
        assert f"Wrote {tmp_path / name}" in invoke("compare", ours, "-o", tmp_path / name, "--radii", "0")
        assert (tmp_path / name).read_text().startswith(begins)
    assert "| ours | frozen |" in (tmp_path / "by-ending.md").read_text()
    with pytest.raises(InvalidInput, match="already exists"):
        invoke("compare", ours, "-o", file)
    invoke("compare", ours, "--format", "latex", "-o", file, "--force")
    assert file.read_text().startswith(r"\begin{table}")


@pytest.mark.parametrize("words", [("--radii", "0;1"), ("--envelope", "nonsense"), ("--envelope", "=a,b")])
def test_compare_command_says_what_it_wants(cohen: Path, words: tuple[str, str]) -> None:
    with pytest.raises(InvalidInput, match=f"{words[0]} takes"):
        invoke("compare", cohen, *words)


def test_export_and_import_commands(cohen: Path, tmp_path: Path) -> None:
    assert "scope pipeline" in invoke("export", cohen, "-o", tmp_path / "c.tsv")
    (tmp_path / "c.tsv.json").unlink()
    said = invoke("import", tmp_path / "c.tsv", "-o", tmp_path / "back", "--norm", "2", "--name", "Cohen's")
    assert "scope unknown" in said and "do not read it as one for a deployed pipeline" in said
    assert cells(comparison([tmp_path / "back"], AT)) == [("Cohen's", "unknown", "–", "50.0", "20.0", "0.0")]
    invoke("export", cohen, "-o", tmp_path / "c.json")
    assert (tmp_path / "c.json").read_text().startswith("{")


# --- the axis in units of Σ ---


def shaped_run(folder: Path, sigma: float, seed: int = 0) -> Path:
    """A run of four inputs whose first coordinate has this scale, and the others 1; the answer depends on the others."""
    noise = ucan.Fixed(torch.tensor([sigma, 1.0, 1.0, 1.0]).reshape(1, 2, 2))
    x = torch.full((4, 1, 2, 2), 0.9)
    certify(
        CertifyJob(
            model=lambda y: (y.flatten(1)[:, 1:].sum(1) > 1.2).long(), data=InMemory(x, [1, 1, 1, 0]), noise=noise,
            classes=2, scale=0.5, n=200, n0=20, seed=seed, model_id="sum",
        ),
        folder,
    )  # fmt: skip
    return folder


def test_shares_in_units_of_sigma_are_those_of_the_radius_before_sigma(tmp_path: Path) -> None:
    run = Run.open(shaped_run(tmp_path / "a", 3e-4))
    radii = [run.outcome(i).region.radius for i in range(4)]  # type: ignore[union-attr]
    assert run.shaped and run.measured("sigma")["sigma"].tolist() == radii
    assert max(run.columns["radius"]) <= 3.01e-4 * max(radii)
    row = comparison([run], (0.0, 0.3, min(radii), 99.0), "sigma").rows[0]
    assert row.values == (0.75, 0.75, 0.75, 0.0)


def test_an_axis_on_which_everything_is_0_is_not_offered_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny, usual = Run.open(shaped_run(tmp_path / "tiny", 3e-4)), Run.open(shaped_run(tmp_path / "usual", 1.0))
    small = Run.open(shaped_run(tmp_path / "small", 0.02))
    assert first_axis([tiny])[0] == "sigma" and first_axis([tiny])[1][1] > 0
    assert first_axis([usual]) == ("radius", RADII) and first_axis([tiny, usual])[0] == "radius"
    measure, columns = first_axis([small])  # its radii are small, but there
    assert measure == "radius" and 0 < columns[-1] <= max(small.columns["radius"])
    done = CliRunner().invoke(app, ["compare", str(tmp_path / "tiny")])
    assert (
        done.exit_code == 0 and "in units of Σ" in done.stdout and "By radius everything beyond 0 is 0 %" in done.stderr
    )
    by_radius = CliRunner().invoke(app, ["compare", str(tmp_path / "tiny"), "--at", "radius"])
    assert "by ℓ2 radius" in by_radius.stdout and by_radius.exit_code == 0
    page = build_page([tiny], galleries_of([tiny]))
    assert page.index("against R, the radius in units of Σ") < page.index("against the ℓ2 radius")


def test_units_of_different_noise_are_not_ranked_against_each_other(tmp_path: Path) -> None:
    tiny, usual = shaped_run(tmp_path / "tiny", 3e-4), shaped_run(tmp_path / "usual", 1.0)
    again = shaped_run(tmp_path / "again", 1.0, seed=1)
    table = comparison([tiny, usual, again], (0.0, 0.3), "sigma")
    assert any("not the same Σ" in note for note in table.notes)
    assert all(all(row.best) for row in table.rows)  # each the best of its own Σ
    assert Run.open(usual).units == Run.open(again).units != Run.open(tiny).units
    with pytest.raises(InvalidInput, match="mixes runs under other Σ"):
        comparison([], (0.0, 0.3), "sigma", envelopes={"E": [tiny, usual]})
    apart = comparison([], (0.0, 0.3), "sigma", envelopes={"E": [tiny], "F": [usual, again]})
    assert any("not the same Σ" in note for note in apart.notes) and all(all(row.best) for row in apart.rows)
