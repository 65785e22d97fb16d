"""`ucan recertify`: certificates for the classifier that replaces the one of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ucan.cli import words
from ucan.cli.progress import Shown

if TYPE_CHECKING:
    from ucan.runs.recertify import Recertified


def recertify(
    run: Annotated[Path, typer.Argument(help="The folder of a `ucan certify` run.")],
    model: Annotated[str | None, typer.Option(help="The new classifier. Default: the run's own.")] = None,
    weights: words.WeightsOption = None,
    precision: words.PrecisionOption = None,
    backend: Annotated[
        words.BackendName | None, typer.Option(help="How the new classifier is run. Default: as the run's own was.")
    ] = None,
    n: Annotated[
        int | None, typer.Option(min=1, help="Votes in pairs per input. Default: a tenth of the run's n.")
    ] = None,
    source: words.MovedDataOption = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The new run's folder. Default: RUN-recertified.")
    ] = None,
    certificates: words.CertificatesOption = False,
    device: words.DeviceOption = "auto",
    trust: words.TrustOption = False,
    as_json: words.JsonOption = False,
    quiet: words.QuietOption = False,
) -> None:
    """Certify a quantised, compiled or retrained classifier with few votes, from the certificates of the old one.

    Both classifiers vote on the same noise. What the new one loses is bounded and subtracted, at the same α
    (documentation page “When the model changes: certificates from votes in pairs”). Where the old certificate is nearly
    sure, fresh votes are drawn instead. Law, noise and classes must be those of the run.

    Examples:
    `ucan recertify runs/mine --precision bf16`

    `ucan recertify runs/mine --model runs/finetuned -o runs/finetuned-l2`
    """
    from ucan.runs.recertify import RecertifyJob
    from ucan.runs.recertify import recertify as certified

    job = RecertifyJob(
        run=run,
        model=model,
        weights=weights,
        precision=None if precision is None else precision.value,
        backend=None if backend is None else backend.value,
        n=n,
        certificates=certificates,
        data=source,
        device=device,
        trust=trust,
    )
    done = certified(job, out, Shown("recertifying", quiet))
    print(json.dumps(done.to_dict()) if as_json else in_words(done))


def in_words(done: Recertified) -> str:
    """What a recertification came to."""
    from ucan.rounding import floor_percent

    kept = "" if done.radii_kept is None else f", with {floor_percent(done.radii_kept)} % of their radius"
    share = f"{done.votes_now:,} votes instead of {done.votes_before:,}"
    return (
        f"{words.counted(done.inputs, 'input')}: {done.now} certificates where there were {done.before}{kept}; {share}.\n"
        f"Results: {done.run / 'results.tsv'} (run folder {done.run})"
    )
