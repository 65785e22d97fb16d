"""`ucan verify`: check a certificate from someone else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ucan.cli import words
from ucan.cli.progress import Shown

if TYPE_CHECKING:
    from ucan.certificate import Certificate
    from ucan.errors import DoesNotFollow
    from ucan.replay import Replay
    from ucan.runs.ask_verify import VerifiedAnswer
    from ucan.runs.verify import Verified
    from ucan.verify import Check

UNDRAWN = " Its votes were not drawn again, as --replay asks: that these are its own counts is not checked."


def verify(
    certificate: Annotated[Path, typer.Argument(help="The certificate, a JSON file.")],
    model: words.ModelOption,
    source: Annotated[
        str, typer.Option("--input", help="The input: an image, an `.npy` array, or any `--data` source with --index.")
    ],
    weights: words.WeightsOption = None,
    law: words.LawOption = None,
    scale: words.ScaleOption = None,
    exponent: words.ExponentOption = None,
    noise: words.NoiseOption = None,
    target: words.TargetOption = None,
    train: words.TrainTableOption = None,
    sigma: words.SigmaOption = None,
    hold: words.HoldOption = None,
    vary: words.VaryOption = None,
    trust: words.TrustOption = False,
    model_id: words.ModelIdOption = None,
    class_names: words.ClassNamesOption = None,
    arithmetic: Annotated[
        words.ArithmeticName | None,
        typer.Option(
            help="The arithmetic of the deployed pipeline: `grid`, with the step of the input's source or of --step, "
            "or `real`. Default: real for a certificate in real arithmetic, else grid."
        ),
    ] = None,
    given_step: Annotated[
        str | None,
        typer.Option(
            "--step", help="The step of the deployed pipeline's grid, such as 1/255, if the source does not state it."
        ),
    ] = None,
    precision: words.PrecisionOption = None,
    registry: Annotated[
        Path | None, typer.Option(help="The registry that issued the certificate, if its scope is `registry`.")
    ] = None,
    size: words.SizeOption = None,
    split: words.SplitOption = "test",
    index: Annotated[int | None, typer.Option(help="The input's number in a data source.")] = None,
    n: Annotated[
        int | None,
        typer.Option(help="Number of fresh samples. Default: as many as the certificate has, at most 1,000,000."),
    ] = None,
    alpha: words.AlphaOption = 0.001,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the fresh samples. Default: random, from the system.")
    ] = None,
    again: Annotated[
        bool,
        typer.Option("--replay", help="Also redraw the certificate's own noise and compare the counts."),
    ] = False,
    limits: Annotated[
        str | None,
        typer.Option(
            "--range",
            help="What the deployed regressor's outputs are at least and at most (`0,1`), for an answer that rests on a range.",
        ),
    ] = None,
    device: words.DeviceOption = "auto",
    as_json: words.JsonOption = False,
    quiet: words.QuietOption = False,
) -> None:
    """Check a certificate against the deployed classifier, and test it with fresh samples.

    --model is what is deployed: a trained run, a model as for `ucan certify`, or a run of `ucan certify`, whose model is then
    taken. The noise is that of the trained run, or the one given by --law, --scale, --exponent and --noise. Without either,
    the verdict is about the noise that the certificate states, and confirms no pipeline.

    Exit codes: 0, no check failed, which is not a proof of the claim; 1, a check failed; 2, the claim could not be
    checked, or with --replay its noise could not be drawn again here. Fresh samples reject a true claim with
    probability at most α. A replay proves that the counts belong to their noise, not that the seed and n were chosen
    in advance.

    Examples:
    `ucan verify 17.json --model runs/mine --input digits --index 17`

    `ucan verify 17.json --model mymodels:resnet --scale 0.25 --input digit.png --replay`
    """
    options = locals()
    from ucan.runs.verify import VerifyJob
    from ucan.runs.verify import verify as run

    renamed = ("source", "given_step", "again", "limits")
    job = words.job_of(
        VerifyJob, options, renamed, input=source, step=given_step, seed=seed, replay=again, range=_range(limits)
    )
    from ucan.errors import DoesNotFollow
    from ucan.runs.ask_verify import is_answer, verify_asked

    try:
        if is_answer(certificate):
            asked = verify_asked(job, Shown("verifying", quiet, kept=""))
            _show_answer(asked, str(certificate), as_json)
            raise typer.Exit(_code(asked))
        done = run(job, Shown("verifying", quiet, kept=""))
    except DoesNotFollow as error:  # no votes are needed to see that this claim is false
        _show_contradiction(error, str(certificate), as_json)
        raise typer.Exit(1) from error
    if as_json:
        typer.echo(json.dumps({"certificate": str(certificate), **done.to_dict()}))
    else:
        _show(done)
    raise typer.Exit(_code(done))


def _range(text: str | None) -> tuple[float, float] | None:
    """The two ends of --range, if it is given."""
    ends = words.numbers_of("--range", text)
    if not ends:
        return None
    if len(ends) != 2 or not ends[0] < ends[1]:
        from ucan.errors import InvalidInput

        raise InvalidInput(f"--range takes two numbers such as 0,1, the smaller one first, got {text!r}.")
    return ends


def _code(done: Verified | VerifiedAnswer) -> int:
    """The exit code: a replay that was asked for and not made is neither a failure nor a success."""
    return 1 if not done.stands else 2 if done.undrawn else 0


def _show_contradiction(error: DoesNotFollow, name: str, as_json: bool) -> None:
    """Show the verdict on a record whose fields contradict each other."""
    if as_json:
        check = {"name": error.field, "passed": False, "detail": str(error)}
        typer.echo(json.dumps({"certificate": name, "stands": False, "checks": [check]}))
        return
    words.say(f"FAIL {error.field}: {error}")
    words.say(f"The claim does not stand ({error.field}): the record contradicts itself, and no votes were drawn.")


def _mark(check: Check) -> str:
    """How a check is marked: what was not confirmed is not marked as in order."""
    from ucan.replay_answer import NAME

    unsure = "not checked" if check.name == NAME else "not confirmed"
    return "FAIL" if not check.passed else "ok  " if check.confirmed else unsure


def _show_answer(done: VerifiedAnswer, name: str, as_json: bool) -> None:
    """Show the verdict on the answer to another question."""
    if as_json:
        typer.echo(json.dumps({"certificate": name, **done.to_dict()}))
        return
    for check in done.verdict.checks:
        words.say(f"{_mark(check)} {check.name}: {check.detail}")
    if done.undrawn and done.answer.evidence.seed is None:
        words.say("not checked replay: its seed is secret")
    failed = ", ".join(check.name for check in done.verdict.checks if not check.passed)
    unknown = "" if done.verdict.confirms is not None else f" Scope {done.answer.scope} is not confirmed, since "
    if unknown and any(check.name == "precision" for check in done.verdict.checks):
        precision = done.answer.evidence.precision
        unknown += f"it is about a copy in {precision}: give --precision {precision} if that is what is deployed."
    elif unknown:
        unknown += (
            "it rests on a range of the outputs that was not checked: give what they are at least and at most, --range."
        )
    stands = (
        f"The claim stands: {done.answer}.{unknown} This is not a proof: a claim that is slightly too large can pass as well."
        f"{UNDRAWN if done.undrawn else ''}"
    )
    words.say(stands if done.stands else f"The claim does not stand ({failed}).")


def _show(done: Verified) -> None:
    from ucan.plan import USUAL_ALPHA
    from ucan.rounding import ceil_significant, floor_significant
    from ucan.verify import MOST, STATED

    record, verdict, redrawn = done.certificate, done.verdict, done.replay
    for check in verdict.checks:
        words.say(f"{_mark(check)} {check.name}: {check.detail}")
    if redrawn is not None:
        mark = "FAIL" if not redrawn.stands else "ok  " if redrawn.drawn else "not checked"
        words.say(f"{mark} replay: {redrawn.outcome}: {redrawn.detail}{_chosen(redrawn, record)}")
    tested = f"{verdict.n:,} fresh votes at level {verdict.alpha:g}"
    if verdict.n == MOST < record.evidence.n:
        tested += f" (the certificate has {record.evidence.n:,}; --n draws as many as you like)"
    named = "" if done.answer in (None, str(record.prediction)) else f" (counted from 0), which is {done.answer},"
    about = f"The claim stands against {tested}: class {record.prediction}{named} on the whole region"
    if record.alpha != verdict.alpha or record.alpha != USUAL_ALPHA:  # which needs no mention
        about += f", false with probability at most α = {ceil_significant(record.alpha)}"
    if record.budget is not None and record.budget_factor is not None:
        about += f" and under {record.budget.words()}, ε = {floor_significant(record.budget_factor)}"
    weak = "This is not a proof: a claim that is slightly too large can pass as well."
    weak += UNDRAWN if done.undrawn else ""
    failed = [check.name for check in verdict.checks if not check.passed]
    if redrawn is not None and not redrawn.stands and failed:
        words.say(f"The claim does not stand ({', '.join([*failed, 'replay'])}), tested with {tested}.")
    elif redrawn is not None and not redrawn.stands:
        noise = "its counts are not those of its own noise" if redrawn.counts else "its noise is not as it is stated"
        why = (
            noise
            if redrawn.outcome == "differs"
            else "its seed is stated to follow from model, noise and data, and does not"
        )
        words.say(f"The claim does not stand (replay): {why}.")
    elif verdict.confirms is not None:
        own = f", for {verdict.about}" if verdict.about == STATED else ""
        words.say(f"{about}, scope {verdict.confirms}{own}{_steps(record)}. {weak}")
    elif verdict.stands:
        words.say(f"{about}, for {verdict.about}. Scope {record.scope} is not confirmed, since {_why_not(done)} {weak}")
    else:
        words.say(f"The claim does not stand ({', '.join(failed)}), tested with {tested}.")


def _why_not(done: Verified) -> str:
    """Say why a claim that stands confirms no scope, and what to do."""
    from ucan.verify import STATED

    if done.verdict.about == STATED and done.certificate.scope == "pipeline":
        return (
            "the noise of the pipeline was not given: give the trained run as --model, or --law, --scale and --noise (for "
            "a table --train or --sigma)."
        )
    if not done.verdict.tested:
        return "so few fresh votes could not have rejected it: give a larger --n."
    precision = done.certificate.evidence.precision
    return f"it is about a copy in {precision}: give --precision {precision} if that is what is deployed."


def _steps(record: Certificate) -> str:
    """Say for which changes of the input the claim holds."""
    from ucan.arithmetic import changes_in_words

    changes = changes_in_words(record.evidence.arithmetic)
    return f", {changes}" if changes else ""


def _chosen(redrawn: Replay, record: Certificate) -> str:
    """Say whether the noise and n could be chosen freely."""
    if redrawn.derived is None:
        return ". This does not prove that the seed and n were chosen in advance"
    if not redrawn.derived:
        return ". The seed does not follow from model, noise and data"
    any_n = record.evidence.bound == "anytime"  # it holds whenever sampling ended
    return ". The seed follows from model, noise and data" + (
        "" if any_n else ". This does not prove that n was chosen in advance"
    )
