"""`ucan certify`: certificates for a user's own classifier, stored as they come."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from ucan import __version__
from ucan.allocator import keep_memory
from ucan.arithmetic import REAL, arithmetic_of, changes_in_words
from ucan.certificate import SCOPES, save_json
from ucan.cli import words
from ucan.cli.progress import Progress
from ucan.cluster import spread
from ucan.config import read_config
from ucan.errors import InvalidInput
from ucan.evidence import law_to_json
from ucan.fingerprint import weights_hash
from ucan.laws import norm_name
from ucan.plan import CertifyPlan, to_config
from ucan.registry import Registry, region_norm
from ucan.report.basis import rule_in_words
from ucan.results import Store
from ucan.results.formats import write
from ucan.results.metrics import NO_LABEL, labelled
from ucan.rounding import floor_percent, floor_significant
from ucan.smoothed import SmoothedClassifier
from ucan.stopping import parse_stop


def certify(
    model: words.ModelOption,
    source: words.DataOption,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The run's folder (it resumes where it stopped), or a `.tsv` file beside it."),
    ] = None,
    weights: words.WeightsOption = None,
    split: words.SplitOption = "test",
    size: words.SizeOption = None,
    channels: words.ChannelsOption = None,
    law: words.LawOption = None,
    scale: words.ScaleOption = None,
    exponent: words.ExponentOption = None,
    noise: words.NoiseOption = None,
    norm: words.NormOption = None,
    budget: words.BudgetOption = None,
    n0: Annotated[int, typer.Option(help="Samples that choose the class.")] = 100,
    n: Annotated[int, typer.Option(help="Samples that bound its probability.")] = 100_000,
    alpha: words.AlphaOption = 0.001,
    bound: Annotated[
        str,
        typer.Option(
            help="`binary`; `two-class`, which bounds the runner-up as well; or `anytime`, which holds for every n at once, "
            "so that one may certify an input again with more samples."
        ),
    ] = "binary",
    stop: Annotated[
        str | None,
        typer.Option(
            help="Stop sampling an input early: when it is known whether its radius reaches each of some radii "
            "(`0.5,1.0`), or when it is within a percentage of what more samples could give (`5%`)."
        ),
    ] = None,
    seed: words.NoiseSeedOption = "0",
    family: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="α is for so many certificates together, a number stated beforehand: each is made at α/FAMILY, and all "
            "of the run's are true at once with probability at least 1 − α.",
        ),
    ] = None,
    device: words.DeviceOption = "auto",
    precision: words.PrecisionOption = None,
    arithmetic: words.ArithmeticOption = None,
    backend: words.BackendOption = words.BackendName.auto,
    classes: words.ClassesOption = None,
    model_id: words.ModelIdOption = None,
    batch_size: words.BatchOption = None,
    skip: words.SkipOption = 1,
    most: words.MaxOption = None,
    certificates: Annotated[
        bool, typer.Option("--certificates", help="Also write each certificate as JSON, for `ucan verify`.")
    ] = False,
    registry: Annotated[
        Path | None,
        typer.Option(
            help="A file of answers already given, to keep to and to add to: inputs inside a stored region get its "
            "answer, and new regions overlap none of another answer (scope `registry`)."
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            help="Count the votes on a Ray cluster: its address, `auto` for the one of this machine, or `local`, which "
            "starts one here. The results are those of one process."
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Workers of the cluster, a GPU or a CPU core each; all that it has if not given."),
    ] = None,
    as_json: words.JsonOption = False,
    quiet: words.QuietOption = False,
) -> None:
    """Give every input an answer and a region in which it provably does not change.

    Results go into the run's folder one by one: stop it at any time, and the same command goes on where it stopped.
    `results.tsv` there is the field's own table (idx, label, predict, radius, correct, time; −1 is an abstention).

    Examples:
    `ucan certify --model mymodels:resnet --data images/ --scale 0.25`

    `ucan certify --model net.onnx --data test.npz --law laplace --norm 1 --n 10000 --max 100 -o run.tsv`

    `ucan certify --model mymodels:resnet --data images/ --size 224 --stop 0.5,1.0 --precision bf16`

    `ucan certify --model mymodels:resnet --data images/ --size 224 --cluster auto`

    `ucan certify --model runs/digits-budget --data digits --budget 1`
    """
    if workers is not None and cluster is None:
        raise InvalidInput("--workers are those of a cluster: add --cluster local, or a cluster's address.")
    where = words.device_of(device)
    selection = words.Selection.of(words.dataset_of(source, split, size, channels), skip, most)
    first = selection.first().to(where)
    g = words.smoothed_of(model, weights, law, scale, exponent, noise, classes, first, precision, model_id)
    # Where the run is depends on the norm, and that on the noise; in which arithmetic, on what was begun there.
    asked = words.budget_of(budget, tuple(first.shape[1:]), model)
    wanted = g.norm_for(None, asked) if norm is None and asked is not None else words.norm_of(norm, g.M)
    folder, tsv = _places(out, model, f"l{wanted:g}" if asked is None else "budget")
    known = _known(folder)
    begun_in = known.get("arithmetic", REAL) if known else None
    g = g.on_grid(words.step_for(arithmetic, selection.dataset, begun_in))
    plan = CertifyPlan(
        n0,
        n,
        alpha,
        wanted,
        0,
        batch_size,
        bound,  # type: ignore[arg-type]
        parse_stop(stop),
        family=family or 1,
        budget=asked,
    )
    g.check_inputs(first, plan.norm)
    selection.check(g.f.num_classes)
    if selection.lopsided and not quiet:
        print(f"warning: {selection.lopsided}", file=sys.stderr)
    if tsv.exists() and not (folder / "config.toml").exists():
        raise InvalidInput(f"{tsv} exists already and belongs to no run here; name another file, or remove it first.")
    scope = g.M.scope if registry is None else "registry"
    plan = g.seeded(plan, words.seed_of(seed, known), selection.dataset.fingerprint())
    if family is not None and len(selection.indices) > family:
        raise InvalidInput(
            f"--family {family} is for fewer certificates than the {len(selection.indices)} inputs chosen."
        )
    if known and g.engine.identity() is None:
        raise InvalidInput(
            f"{folder} holds a run, and nothing tells this model from others, so that going on with it could mix two: name "
            "the model with --model-id, in a new folder."
        )
    # The backend of another model's run does not matter: that the model is another is said below.
    begun = known.get("backend") if known.get("model") == model else None
    # A run from before weights, noise_hash and arithmetic were kept goes on without them.
    config = {
        "model": model,
        "weights": weights if "weights" in known or not known else None,
        "data": source,
        "split": split,
        "size": size,
        "channels": channels,
        "skip": skip,
        "registry": registry,
        **_settings(g, plan, selection, scope),
        "budget": budget if budget is None or asked is None or not _is_number(budget) else float(budget),
        "identity": g.engine.identity() if "identity" in known or not known else None,
        "noise_settings": dict(g.M.settings()) if "identity" in known or not known else None,
        "noise_hash": weights_hash(g.M) if "noise_hash" in known or not known else None,
        "arithmetic": arithmetic_of(g.grid) if "arithmetic" in known or not known or g.grid is not None else None,
        "backend": words.settle_backend(g, backend, plan, first, len(selection.indices), begun),
        # For whoever wants to run it again; what they lead to is told apart by the keys above.
        "given": known.get("given") if known else _given(noise, classes, model_id),
    }
    placed = partial(_placed, g, cluster, workers, where.type)
    with _memory(registry, g, first, plan) as memory, Store.create(folder, config) as store:
        with _written(store, tsv):
            _certify_all(placed, memory, selection, store, plan, certificates, quiet)
        summary = _summary(store, selection, folder, tsv, scope, plan, arithmetic_of(g.grid))
    print(json.dumps(summary) if as_json else _in_words(summary))


def _given(noise: str | None, classes: int | None, model_id: str | None) -> dict[str, Any] | None:
    """The words of options that the rest of a config does not spell out; None if there are none."""
    words_given = {"noise": noise, "classes": classes, "model_id": model_id}
    return {name: value for name, value in words_given.items() if value is not None} or None


def _settings(g: SmoothedClassifier, plan: CertifyPlan, selection: words.Selection, scope: str) -> dict[str, Any]:
    """What a run is frozen with beside the words that were given: what tells its weights, data and noise from others."""
    return {
        "kind": "certify",
        "ucan": __version__,
        "weights_hash": weights_hash(g.f.model),
        "data_hash": selection.dataset.fingerprint(),
        "law": law_to_json(g.law),
        "noise": g.M.describe(),
        "alm_cap": g.alm_cap,
        "scope": scope,
        **to_config(plan),
        "precision": g.engine.precision,
    }


@contextmanager
def _memory(
    path: Path | None, g: SmoothedClassifier, first: torch.Tensor, plan: CertifyPlan
) -> Iterator[Registry | None]:
    """The registry, if one is asked for and the classifier belongs to it."""
    if path is None:
        yield None
        return
    with Registry(path, region_norm(g, first, plan.norm)) as registry:
        registry.check(g, first, plan)
        yield registry


@contextmanager
def _written(store: Store, tsv: Path) -> Iterator[None]:
    """However the work ends, the table holds what is stored; who stops it is told how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"\nStopped; {len(store)} results are kept. The same command goes on from there.", file=sys.stderr)
        raise
    finally:
        if len(store):
            write(store, tsv, overwrite=True)


def _certify_all(
    placed: Callable[[Progress], AbstractContextManager[SmoothedClassifier]],
    memory: Registry | None,
    selection: words.Selection,
    store: Store,
    plan: CertifyPlan,
    certificates: bool,
    quiet: bool,
) -> None:
    done = store.done()
    todo = [index for index in selection.indices if index not in done]
    if done and not quiet:
        print(f"{len(done)} inputs are done already, {len(todo)} to go.", file=sys.stderr)
    if certificates:
        _write_certificates(store, sorted(done))
    if not todo:
        return
    earlier = store.columns(("label", "correct"))
    right, known = int(earlier["correct"].sum()), int(labelled(earlier).sum())
    invalid = votes = 0
    with Progress("certifying", len(todo), plan.n0 + plan.n, quiet) as progress, placed(progress) as g:
        g.engine.on_votes = progress.sampled
        last = time.perf_counter()
        inputs = (selection.dataset[index][0][None] for index in todo)
        answers = g.certify_each(inputs, plan) if memory is None else memory.certify_each(g, inputs, plan)
        for number, outcome in answers:
            index, label, now = todo[number], int(selection.dataset.labels[todo[number]]), time.perf_counter()
            store.add(index, label, outcome, now - last)
            last = now
            if certificates:
                save_json(outcome, _certificate_path(store, index))
            right, known = right + (outcome.prediction == label), known + (label != NO_LABEL)
            invalid, votes = invalid + outcome.invalid, votes + outcome.evidence.n
            # Under a stopping rule the sure inputs come first: a share of those would promise too much.
            unknown = plan.stop is not None or not known
            progress.finished("" if unknown else f"accuracy {floor_percent(right / known)} %")
    if invalid:
        print(
            f"warning: {invalid:,} of {votes:,} votes were for no class, since the model answered with NaN or a class "
            "number out of range; they count against every answer.",
            file=sys.stderr,
        )


def _write_certificates(store: Store, indices: Sequence[int]) -> None:
    """Certificates of an earlier run of this command that are not there: it was stopped, or did not ask for them."""
    (store.folder / "certificates").mkdir(exist_ok=True)
    for index in indices:
        if not _certificate_path(store, index).exists():
            save_json(store.outcome(index), _certificate_path(store, index))


def _certificate_path(store: Store, index: int) -> Path:
    return store.folder / "certificates" / f"{index}.json"


@contextmanager
def _placed(
    g: SmoothedClassifier, cluster: str | None, workers: int | None, device: str, progress: Progress
) -> Iterator[SmoothedClassifier]:
    """Where the votes are counted: in this process, or by the workers of a cluster."""
    if cluster is None:
        if device == "cpu":
            keep_memory()
        yield g
        return
    # Ray itself writes of lost workers to standard output, which belongs to results.
    with redirect_stdout(sys.stderr), spread(g, cluster, workers, progress.say, device) as served:
        yield served


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _known(folder: Path) -> dict[str, Any]:
    """The config of the run in this folder; empty where there is none."""
    path = folder / "config.toml"
    return read_config(path) if path.is_file() else {}


def _places(out: Path | None, model: str, claim: str) -> tuple[Path, Path]:
    """The run's folder and its TSV."""
    if out is None:
        name = "".join(c if c.isalnum() else "-" for c in Path(model).name.removesuffix(".onnx").removesuffix(".pt2"))
        out = Path("runs") / f"{name}-{claim}"
    if out.suffix in (".csv", ".json", ".parquet"):
        raise InvalidInput(
            f"{out} is no name for a run's folder: give a folder or a .tsv, then `ucan export FOLDER -o {out}`."
        )
    if out.suffix == ".tsv":
        return out.with_suffix(""), out
    return out, out / "results.tsv"


def _summary(
    store: Store, selection: words.Selection, folder: Path, tsv: Path, scope: str, plan: CertifyPlan, arithmetic: str
) -> dict[str, Any]:
    """Of the inputs asked for; an earlier, longer call may have left more."""
    columns = {name: column[: len(selection.indices)] for name, column in store.gapless()[0].items()}
    count, known = len(columns["idx"]), labelled(columns)
    certified = columns["radius"][columns["correct"]]
    return {
        "run": str(folder),
        "tsv": str(tsv),
        "inputs": count,
        "labelled": int(known.sum()),
        "accuracy": math.floor(1e6 * columns["correct"][known].mean()) / 1e6 if known.any() else None,
        "abstained": int(columns["abstained"].sum()),
        "median_correct_radius": float(torch.tensor(certified).median()) if len(certified) else None,
        "scope": scope,
        "guarantee": SCOPES[scope],
        "arithmetic": arithmetic,
        "norm": "inf" if plan.norm == math.inf else plan.norm,
        **({} if plan.budget is None else {"budget": plan.budget.words(), "budget_hash": plan.budget.key}),
        "stop": None if plan.stop is None else str(plan.stop),
        "mean_samples": float(columns["n"].mean()) if count else None,
    }


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _changes(arithmetic: str) -> str:
    """For which changes the guarantee holds, where that is not for all; a line of its own."""
    words = changes_in_words(arithmetic)
    return f"Arithmetic {arithmetic}: it holds {words}, and is sound in floating point.\n" if words else ""


def _in_words(summary: dict[str, Any]) -> str:
    if not summary["inputs"]:
        return "No input was certified."
    radius = summary["median_correct_radius"]
    norm = norm_name(float(summary["norm"]))
    claim = f"under {summary['budget']}, ε =" if "budget" in summary else f"with an {norm} radius of"
    middle = f", half of them {claim} {floor_significant(radius, 4)} or more" if radius is not None else ""
    of = "" if summary["labelled"] == summary["inputs"] else f" of the {summary['labelled']} whose label is known"
    share = (
        f"{summary['inputs'] - summary['abstained']} with a certificate, right or wrong (the labels are unknown)"
        if summary["accuracy"] is None
        else f"{math.floor(1000 * summary['accuracy']) / 10} %{of} certified correctly{middle}"
    )
    stopped = rule_in_words(parse_stop(summary["stop"]), "budget" in summary)
    samples = f"{summary['mean_samples']:,.0f} samples an input on average"
    early = f"{stopped[0].upper()}{stopped[1:]}. {samples}.\n" if stopped else ""
    return (
        f"{_counted(summary['inputs'], 'input')}: {share}; {_counted(summary['abstained'], 'abstention')}.\n{early}"
        f"Scope {summary['scope']}: the guarantee is about {SCOPES[summary['scope']]}.\n{_changes(summary['arithmetic'])}"
        f"Results: {summary['tsv']} (run folder {summary['run']})"
    )
