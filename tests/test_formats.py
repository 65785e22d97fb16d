"""Export and import: Cohen's script agrees with us, every codebase's file is read, and nothing is overwritten."""

import csv
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import ucan
from ucan.choices import SCOPES
from ucan.cli import app
from ucan.errors import InvalidInput, MissingExtra, StoreError, UcanError
from ucan.report.tables import comparison
from ucan.results import Store
from ucan.results.formats import write
from ucan.results.imports import import_run, read
from ucan.results.store import COLUMNS
from ucan.runs.config import read_run_config

RADII = (0.0, 0.05, 0.1, 0.2, 0.25, 0.3, 2.0)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty inputs of a small classifier with anisotropic noise: right, wrong and abstaining."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = torch.nn.Linear(8, 3).eval()
    g = ucan.SmoothedClassifier(model, ucan.Gaussian(scale=0.5), ucan.Fixed(torch.linspace(0.5, 1, 8)), num_classes=3)
    x = torch.randn(40, 8, generator=torch.Generator().manual_seed(1)) * 2
    folder = tmp_path_factory.mktemp("runs") / "ours"
    with Store.create(folder, {"alm_cap": 1.0, "norm": 2, "n": 100, "alpha": 0.001}) as store:
        for i, outcome in enumerate(g.certify(x, n=100)):
            label = int(model(x[i]).argmax()) if i % 5 else 0
            store.add(2 * i, label, outcome, 0.125)
    return folder


def export(run: Path, path: Path, kind: str, overwrite: bool = False) -> list[Path]:
    with Store.open(run) as store:
        return write(store, path, kind, overwrite)  # type: ignore[arg-type]


def columns(run: Path) -> dict[str, np.ndarray]:
    with Store.open(run) as store:
        return store.columns()


# --- export ---


def test_a_script_for_cohens_format_agrees_with_compare(run: Path, tmp_path: Path) -> None:
    export(run, tmp_path / "ours.tsv", "tsv")
    with open(tmp_path / "ours.tsv", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    assert list(rows[0]) == ["idx", "label", "predict", "radius", "correct", "time"]
    ours = comparison([run], RADII).rows[0].values
    theirs = [np.mean([int(row["correct"]) and float(row["radius"]) >= r for row in rows]) for r in RADII]
    assert list(ours) == theirs and 0 < theirs[3] < theirs[0] < 1
    abstained = [row for row in rows if row["predict"] == "-1"]
    assert abstained and all(float(row["radius"]) == 0 and row["correct"] == "0" for row in abstained)
    assert all(float(row["time"]) == 0.125 for row in rows) and [int(row["idx"]) for row in rows][:3] == [0, 2, 4]


def test_the_same_with_pandas(run: Path, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    export(run, tmp_path / "ours.tsv", "tsv")
    df = pandas.read_csv(tmp_path / "ours.tsv", delimiter="\t")
    theirs = [(df["correct"] & (df["radius"] >= r)).mean() for r in RADII]
    assert theirs == list(comparison([run], RADII).rows[0].values)


def test_exported_radii_are_rounded_down(run: Path, tmp_path: Path) -> None:
    export(run, tmp_path / "ours.tsv", "tsv")
    with open(tmp_path / "ours.tsv", newline="") as file:
        written = [float(row["radius"]) for row in csv.DictReader(file, delimiter="\t")]
    exact = columns(run)["radius"].tolist()
    assert all(w <= e and e - w <= 1e-5 * e for w, e in zip(written, exact, strict=True)) and written != exact


@pytest.mark.parametrize("kind", ["tsv", "csv"])
def test_the_sidecar_says_whose_guarantee_it_is(run: Path, tmp_path: Path, kind: str) -> None:
    files = export(run, tmp_path / f"ours.{kind}", kind)
    assert files == [tmp_path / f"ours.{kind}", tmp_path / f"ours.{kind}.json"]
    about = json.loads(files[1].read_text())
    assert about["scope"] == "pipeline" and "deployed pipeline" in about["guarantee"]
    assert about["norm"] == 2 and about["alm_cap"] == 1.0 and about["config"]["n"] == 100


def test_csv_keeps_full_precision(run: Path, tmp_path: Path) -> None:
    export(run, tmp_path / "ours.csv", "csv")
    with open(tmp_path / "ours.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    expected = columns(run)
    assert list(rows[0]) == [*COLUMNS, "scope"] and {row["scope"] for row in rows} == {"pipeline"}
    for name, values in expected.items():
        assert [float(row[name]) for row in rows] == values.astype(float).tolist()


def test_json_carries_the_evidence(run: Path, tmp_path: Path) -> None:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    export(run, tmp_path / "ours.json", "json")
    whole = json.loads((tmp_path / "ours.json").read_text(), parse_constant=refuse)
    assert whole["scope"] == "pipeline" and len(whole["rows"]) == 40
    with Store.open(run) as store:
        assert whole["rows"][3]["record"] == store.record(6)
        assert whole["rows"][3]["radius"] == store.outcome(6).radius


def test_parquet(run: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    export(run, tmp_path / "ours.parquet", "parquet")
    table = parquet.read_table(tmp_path / "ours.parquet")
    assert json.loads(table.schema.metadata[b"ucan"])["scope"] == "pipeline"
    for name, values in columns(run).items():
        assert table[name].to_numpy().tolist() == values.tolist() and table[name].to_numpy().dtype == values.dtype
    assert set(table["scope"].to_pylist()) == {"pipeline"}


def test_parquet_without_pyarrow_names_the_extra(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match=r"ucan\[results\]"):
        export(run, tmp_path / "ours.parquet", "parquet")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["tsv", "csv", "parquet", "json"])
def test_a_config_that_states_a_smaller_alpha_is_not_exported(run: Path, tmp_path: Path, kind: str) -> None:
    shutil.copytree(run, tmp_path / "run")
    config = tmp_path / "run" / "config.toml"
    text = config.read_text()
    for alpha, said in {
        "1e-06": "states α = 1e-06, but its certificates were made at 0.001",
        "nan": "nan is not a valid value of alpha",
        "'0.001'": "'0.001' is not a valid value of alpha",
    }.items():
        config.write_text(text.replace("alpha = 0.001", f"alpha = {alpha}"))
        with pytest.raises(StoreError, match=said):
            export(tmp_path / "run", tmp_path / f"ours.{kind}", kind)
        assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("existing", ["ours.tsv", "ours.tsv.json"])
def test_nothing_is_overwritten_unasked(run: Path, tmp_path: Path, existing: str) -> None:
    (tmp_path / existing).write_text("precious")
    with pytest.raises(InvalidInput, match=r"exists? already"):
        export(run, tmp_path / "ours.tsv", "tsv")
    assert [p.name for p in tmp_path.iterdir()] == [existing] and (tmp_path / existing).read_text() == "precious"
    export(run, tmp_path / "ours.tsv", "tsv", overwrite=True)
    assert (tmp_path / "ours.tsv").read_text().startswith("idx\tlabel")


def test_a_path_that_cannot_be_written(run: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"no folder .*nowhere to write ours.tsv to"):
        export(run, tmp_path / "nowhere" / "ours.tsv", "tsv")
    with pytest.raises(InvalidInput, match="the format must be"):
        export(run, tmp_path / "ours.xls", "xls")
    assert not list(tmp_path.iterdir())


def test_no_heavy_imports() -> None:
    code = (
        "import sys, ucan.results, ucan.results.formats, ucan.results.imports, ucan.report.tables, ucan.report.render\n"
    )
    code += "sys.exit(', '.join({'pandas', 'pyarrow', 'rich', 'typer'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.strip() == ""


# --- import ---

TEXTS = {
    "Cohen et al.": "idx\tlabel\tpredict\tradius\tcorrect\ttime\n"
    "0\t3\t3\t0.82\t1\t0:00:12.500000\n20\t8\t8\t1.9\t1\t1 day, 0:00:01\n40\t8\t1\t0.5\t0\t0:01:00\n60\t0\t-1\t0.0\t0\t3.5\n",
    "ANCER": "idx\tlabel\tpredict\tradius\tradius_proxy\tcorrect\tmin_sigma\ttime\n"
    "0\t3\t3\t0.82\t1.1\t1\t0.2\t0:00:01\n20\t8\t8\t1.9\t2.5\t1\t0.2\t0:00:01\n"
    "40\t8\t1\t0.5\t0.6\t0\t0.2\t0:00:01\n60\t0\t-1\t0.0\t0.0\t0\t0.2\t0:00:01\n",
    "data-dependent smoothing": "idx\tlabel\tpredict\tradius\tcorrect\tsigma\ttime\n"
    "0\t3\t3\t0.82\t1\t0.3\t0:00:01\n20\t8\t8\t1.9\t1\t0.3\t0:00:01\n"
    "40\t8\t1\t0.5\t0\t0.3\t0:00:01\n60\t0\t-1\t0.0\t0\t0.3\t0:00:01\n",
    "adaptive randomized smoothing": "idx \t label \t predict \t linf_radius \t prob_lb \t correct \t time\n"
    "0 \t 3 \t 3 \t 0.82 \t 0.98 \t 1 \t 0:00:01\n20 \t 8 \t 8 \t 1.9 \t 0.999 \t 1 \t 0:00:01\n"
    "40 \t 8 \t 1 \t 0.5 \t 0.8 \t 0 \t 0:00:01\n60 \t 0 \t 0 \t -0.03 \t 0.4 \t 1 \t 0:00:01\n",
}


@pytest.mark.parametrize("kind", TEXTS)
def test_tables_of_other_codebases(tmp_path: Path, kind: str) -> None:
    (tmp_path / "log.txt").write_text(TEXTS[kind])
    found = import_run(tmp_path / "log.txt", tmp_path / "run")
    assert found.format == kind and found.norm == {"ANCER": None, "adaptive randomized smoothing": math.inf}.get(
        kind, 2
    )
    c = columns(tmp_path / "run")
    assert c["idx"].tolist() == [0, 20, 40, 60] and c["label"].tolist() == [3, 8, 8, 0]
    assert c["prediction"].tolist() == [3, 8, 1, -1] and c["abstained"].tolist() == [False] * 3 + [True]
    assert c["correct"].tolist() == [True, True, False, False] and c["radius"].tolist() == [0.82, 1.9, 0.5, 0.0]
    assert np.isnan(c["alm"]).all() == (kind != "ANCER")
    if kind == "ANCER":
        assert c["alm"].tolist() == [1.1, 2.5, 0.6, 0.0]
    if kind == "adaptive randomized smoothing":
        assert c["p_lower"].tolist() == [0.98, 0.999, 0.8, 0.4]
    assert c["seconds"].tolist() == ([12.5, 86401.0, 60.0, 3.5] if kind == "Cohen et al." else [1.0] * 4)
    table = comparison([tmp_path / "run"], [0, 0.5, 1.0])
    assert table.rows[0].values == (0.5, 0.5, 0.25) and table.rows[0].scope == "unknown"
    with Store.open(tmp_path / "run") as store:
        assert store.config["kind"] == "imported" and store.config["source"].endswith("log.txt")
        with pytest.raises(InvalidInput, match="has no evidence"):
            store.outcome(0)


def test_smoothing_ensembles_proves_one_radius(tmp_path: Path) -> None:
    header = "idx\tlabel\tpredict\tradius proved\tcorrect\tlevels_needed\testimated_pr\ttime\n"
    rows = "0\t3\t3\t1\t1\t0\t0.99\t0:00:01\n20\t8\t1\t1\t0\t0\t0.99\t0:00:01\n40\t8\t-1\t-1\t0\t1\t0.6\t0:00:01\n"
    (tmp_path / "log.tsv").write_text(header + rows)
    told = read(tmp_path / "log.tsv", certified_at=0.75)
    assert told.columns["radius"].tolist() == [0.75, 0.75, 0.0] and told.columns["abstained"].tolist() == [0, 0, 1]
    untold = read(tmp_path / "log.tsv")
    assert np.isnan(untold.columns["radius"][:2]).all() and "certified-at" in untold.notes[0]
    (tmp_path / "radii.tsv").write_text(header + rows.replace("3\t3\t1\t", "3\t3\t0.5\t"))
    assert read(tmp_path / "radii.tsv").columns["radius"].tolist() == [0.5, 1.0, 0.0]


def test_rs4a(tmp_path: Path) -> None:
    arrays = {
        "preds": np.eye(3)[[0, 1, 2, 0]] * 0.9,
        "labels": np.array([0.0, 1.0, 0.0, 0.0]),
        "prob_lb": np.array([0.9, 0.99, 0.8, 0.4]),
        "preds_nll": np.zeros(4),
        "radius_l1": np.array([0.5, 1.5, 0.4, -0.1]),
        "radius_l2": np.array([0.4, 1.2, 0.3, -0.1]),
        "radius_linf": np.array([0.01, 0.02, 0.01, -0.1]),
    }
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    for norm, radius in [(None, [0.4, 1.2, 0.3, 0.0]), (1, [0.5, 1.5, 0.4, 0.0]), (math.inf, [0.01, 0.02, 0.01, 0.0])]:
        found = read(tmp_path, norm=norm)
        assert found.columns["radius"].tolist() == radius and found.norm == (norm or 2)
        assert found.columns["prediction"].tolist() == [0, 1, 2, -1]
        assert found.columns["correct"].tolist() == [True, True, False, False]
    assert read(tmp_path / "radius_l1.npy", norm=1).columns["idx"].tolist() == [0, 1, 2, 3]
    (tmp_path / "labels.npy").unlink()
    with pytest.raises(InvalidInput, match=r"labels\.npy is missing"):
        read(tmp_path)


@pytest.mark.parametrize("iso", [False, True])
def test_the_papers_own(tmp_path: Path, iso: bool) -> None:
    prefix = tmp_path / "mnist_pattern_Gaussian_sigma1.0_results_"
    np.save(f"{prefix}pA.npy", np.array([0.9, -1.0, 0.99]))
    np.save(f"{prefix}radius.npy", np.array([1.2, 0.7, 2.3]))
    np.save(f"{prefix}varianceterm.npy", np.array([] if iso else [0.9, 0.9, 0.9]))
    for source in (tmp_path, Path(f"{prefix}radius.npy")):
        found = read(source)
        sizes, unknown = ("radius", "alm") if iso else ("alm", "radius")
        assert found.columns[sizes].tolist() == [1.2, 0.0, 2.3] and np.isnan(found.columns[unknown]).all()
        assert found.columns["correct"].tolist() == [True, False, True]
    import_run(tmp_path, tmp_path / "run", scope="frozen", alm_cap=1.0)
    by = "radius" if iso else "alm"
    row = comparison([tmp_path / "run"], [0, 1.0, 2.0], by).rows[0]  # type: ignore[arg-type]
    assert row.values == (2 / 3, 2 / 3, 1 / 3) and row.scope == "frozen" and row.alm_cap == 1.0
    if not iso:
        assert comparison([tmp_path / "run"], [0, 1.0]).lines()[0][0][3:] == ("66.6", "–")
        with pytest.raises(InvalidInput, match="has no radius"):
            export(tmp_path / "run", tmp_path / "out.tsv", "tsv")
        assert not list(tmp_path.glob("*out.tsv*"))


def test_our_own_export_comes_back_with_its_scope(run: Path, tmp_path: Path) -> None:
    export(run, tmp_path / "ours.tsv", "tsv")
    import_run(tmp_path / "ours.tsv", tmp_path / "back")
    with Store.open(tmp_path / "back") as store:
        assert (store.scope, store.norm, store.config["alm_cap"]) == ("pipeline", 2, 1.0)
        assert store.config["alpha"] == 0.001  # else it would be ranked among claims of any α
    for claim, words in (
        ({"norm": math.inf}, "radii are in another norm"),
        ({"alm_cap": 0.5}, "ALM cap is 1, not 0.5"),
    ):
        with pytest.raises(InvalidInput, match=words):
            import_run(tmp_path / "ours.tsv", tmp_path / "claimed", **claim)
    assert comparison([tmp_path / "back"], RADII).rows[0].values == comparison([run], RADII).rows[0].values
    about = json.loads((tmp_path / "ours.tsv.json").read_text())
    (tmp_path / "ours.tsv.json").write_text(json.dumps({**about, "scope": "frozen", "guarantee": SCOPES["frozen"]}))
    with pytest.raises(InvalidInput, match="its scope is frozen, not pipeline"):
        import_run(tmp_path / "ours.tsv", tmp_path / "claimed", scope="pipeline")


def test_export_says_how_many_results_the_file_holds(tmp_path: Path) -> None:
    (tmp_path / "log.tsv").write_text("idx\tlabel\tpredict\tradius\tcorrect\n0\t1\t1\t0.5\t1\n")
    found = read(tmp_path / "log.tsv").columns
    with Store.create(tmp_path / "run", {"skip": 1, "norm": 2}) as store:  # interrupted: input 1 is unfinished
        for idx in (0, 2, 3):
            store.extend({**found, "idx": np.array([idx])})
    result = CliRunner().invoke(app, ["export", str(tmp_path / "run"), "-o", str(tmp_path / "out.tsv")])
    assert "out.tsv.json: 1 results (2 more after an unfinished input are left out)" in result.stdout
    assert len((tmp_path / "out.tsv").read_text().splitlines()) == 2


def test_isotropic_noise_has_alm_equal_to_the_radius(tmp_path: Path) -> None:
    (tmp_path / "log.tsv").write_text(TEXTS["Cohen et al."])
    assert read(tmp_path / "log.tsv", isotropic=True).columns["alm"].tolist() == [0.82, 1.9, 0.5, 0.0]


def test_importing_twice_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "log.tsv").write_text(TEXTS["Cohen et al."])
    import_run(tmp_path / "log.tsv", tmp_path / "run")
    with pytest.raises(InvalidInput, match="already holds"):
        import_run(tmp_path / "log.tsv", tmp_path / "run")
    with pytest.raises(InvalidInput, match="scope: the run has 'unknown', asked for 'pipeline'"):
        import_run(tmp_path / "log.tsv", tmp_path / "run", scope="pipeline")
    assert len(columns(tmp_path / "run")["idx"]) == 4


PREDICT = "idx\tlabel\tpredict\tcorrect\ttime\n0\t3\t3\t1\t0:00:01\n"
COHEN = TEXTS["Cohen et al."]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (PREDICT, r"no column radius.*predict\.py"),
        (
            PREDICT.replace("predict\tcorrect", "predict\tbasePredict\tcorrect").replace("\t3\t1", "\t3\t3\t1"),
            "predict.py",
        ),
        *((COHEN.replace(f"{name}\t", "", 1), f"lacks the column {name}") for name in ("idx", "label", "predict")),
        (COHEN.replace("correct\t", "", 1), "lacks the column correct"),
        ("", "not a tab-separated table"),
        ("idx,label,predict,radius,correct,time\n0,1,1,0.5,1,3\n", "not a tab-separated table"),
        (COHEN.splitlines()[0] + "\n", "no rows"),
        (COHEN + "80\t1\t1", "line 6 has 3 fields"),
        (COHEN.replace("0.82", "much"), "line 2: radius is 'much', not a finite number"),
        (COHEN.replace("0.82", "nan"), "line 2: radius is 'nan'"),
        (COHEN.replace("\t1.9\t1\t", "\t1.9\t2\t"), "line 3: correct is '2', not 0 or 1"),
        (COHEN.replace("20\t8", "0\t8"), "more than one row for idx 0"),
        *((COHEN.replace("20\t8\t", f"20\t{label}\t"), "line 3: correct is 1, but predict") for label in (7, -1)),
        (COHEN.replace("label", "idx"), "has a repeated column name"),
        *(
            (
                COHEN.replace("20\t8", f"{idx}\t8"),
                r"line 3: idx is .*, not a whole number from -2\^63 to 2\^63 - 1: correct",
            )
            for idx in (10**30, "1e30", -(2**63) - 1, 2**63)
        ),
        (COHEN.replace("\n20\t8", f"\n20\t{10**30}"), "line 3: label is"),
    ],
)
def test_files_that_do_not_fit(tmp_path: Path, text: str, words: str) -> None:
    lines = text.splitlines()
    if "lacks" in words:  # the rows lose the same field as the header
        gone = ["idx", "label", "predict", "radius", "correct", "time"].index(words.split()[-1])
        lines[1:] = ["\t".join(f for i, f in enumerate(line.split("\t")) if i != gone) for line in lines[1:]]
    (tmp_path / "log.tsv").write_text("\n".join(lines))
    with pytest.raises(InvalidInput, match=words):
        import_run(tmp_path / "log.tsv", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_radius_column_removed_is_named(tmp_path: Path) -> None:
    (tmp_path / "log.tsv").write_text("idx\tlabel\tpredict\tradius_proxy\tcorrect\n0\t1\t1\t0.5\t1\n")
    with pytest.raises(InvalidInput, match="lacks the column radius"):
        read(tmp_path / "log.tsv")


def test_sources_that_are_not_results(tmp_path: Path) -> None:
    for source in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(InvalidInput):
            read(source)
    (tmp_path / "image.png").write_bytes(b"\x89PNG\r\n\x1a\n\xff\xfe")
    (tmp_path / "x_results_pA.npy").write_bytes(b"no array")
    for name in ("image.png", "x_results_pA.npy"):
        with pytest.raises(UcanError, match="cannot be read"):
            read(tmp_path / name)
    with pytest.raises(InvalidInput, match="scope must be one of"):
        import_run(tmp_path / "image.png", tmp_path / "run", scope="certain")


def test_a_sidecar_vouches_for_its_own_table_alone(run: Path, tmp_path: Path) -> None:
    table, sidecar = tmp_path / "y.tsv", tmp_path / "y.tsv.json"
    with Store.open(run) as store:
        write(store, table)
    import_run(table, tmp_path / "own")
    assert Store.open(tmp_path / "own").scope == "pipeline"
    table.write_text(table.read_text() + "99\t0\t0\t3.5\t1\t0.1\n")
    with pytest.raises(InvalidInput, match="is about another table"):
        import_run(table, tmp_path / "other")
    about = json.loads(sidecar.read_text())
    del about["sha256"]
    sidecar.write_text(json.dumps(about))
    import_run(table, tmp_path / "older")
    assert "does not say of which table it is" in " ".join(read_run_config(tmp_path / "older").imported.notes)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"config": []}, "its config is no table"),
        ({"norm": 7}, "norm"),
        ({"alm_cap": "big"}, "numbers above 0"),
        ({"config": {"notes": "one"}}, "a list of notes"),
        ({"scope": "frozen"}, "its guarantee or its config is of another scope"),
        (
            {"scope": "frozen", "guarantee": SCOPES["frozen"], "config": {"scope": "pipeline"}},
            "its guarantee or its config is of another scope",
        ),
        ({"guarantee": SCOPES["frozen"]}, "its guarantee or its config is of another scope"),
        ({"scope": "everything"}, "states the scope 'everything', which is none of"),
        ({"scope": ["pipeline"]}, "which is none of"),
        ({"ucan_export": 2}, "has export format 2; this version of UCAN reads format 1"),
    ],
)
def test_a_sidecar_with_other_values_is_refused(run: Path, tmp_path: Path, change: dict, said: str) -> None:
    table, sidecar = tmp_path / "y.tsv", tmp_path / "y.tsv.json"
    with Store.open(run) as store:
        write(store, table)
    sidecar.write_text(json.dumps(json.loads(sidecar.read_text()) | change))
    with pytest.raises(InvalidInput, match=said):
        import_run(table, tmp_path / "imported")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"ucan_export": 1, "scope": "frozen", "norm": 2, "scope": "pipeline"}', "'scope' occurs twice"),
        ("[" * 100_000, "nested too deeply"),
        ('{"ucan_export": 1, "scope": "pipeline", "norm": ' + "9" * 5000 + "}", "too many digits"),
    ],
)
def test_a_sidecar_is_read_with_one_meaning(run: Path, tmp_path: Path, text: str, said: str) -> None:
    table, sidecar = tmp_path / "y.tsv", tmp_path / "y.tsv.json"
    with Store.open(run) as store:
        write(store, table)
    sidecar.write_text(text)
    with pytest.raises(InvalidInput, match=said):
        import_run(table, tmp_path / "imported")
