"""`ucan leaderboard`: check an entry, and make the page of a folder of entries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ucan.cli import words
from ucan.cli.progress import Shown

leaderboard = typer.Typer(no_args_is_help=True, help="Check entries of a leaderboard, and make its page.")


@leaderboard.command()
def check(
    entry: Annotated[Path, typer.Argument(help="The entry, a JSON file.")],
    results: Annotated[
        Path | None,
        typer.Option(help="The run folder, or the file that the entry was counted in. Default: the entry's own."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="The model, if it has moved.")] = None,
    weights: words.WeightsOption = None,
    data: Annotated[str | None, typer.Option(help="The data, if they have moved.")] = None,
    inputs: Annotated[int, typer.Option(min=1, help="How many certificates are drawn at random and replayed.")] = 20,
    attacks: Annotated[int, typer.Option(min=0, help="How many of those are attacked.")] = 10,
    alpha: words.AlphaOption = 0.001,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the sample. Default: random, so that a submitter cannot know it.")
    ] = None,
    device: words.DeviceOption = "auto",
    trust: words.TrustOption = False,
    keep: Annotated[
        bool,
        typer.Option(
            "--keep", help="Write the outcome beside the entry, as NAME.check.json, for the leaderboard's page."
        ),
    ] = False,
    as_json: words.JsonOption = False,
    quiet: words.QuietOption = False,
) -> None:
    """Check an entry: hashes, counts, seed, and certificates drawn at random, replayed and attacked.

    A check that cannot be made says why. Exit codes: 0, nothing failed, which is not a proof; 1, a check failed; 2, the
    entry cannot be read; 130, interrupted: what was checked until then is said, and kept with --keep where no record of
    an earlier check is. True certificates fail the test with fresh votes with probability at most α, all together.

    Example: `ucan leaderboard check entry.json --results runs/mine`
    """
    from ucan.leaderboard.checking import check as run
    from ucan.leaderboard.checks import CheckJob
    from ucan.leaderboard.kept import kept_of, kept_path, write_kept

    job = CheckJob(
        entry=entry,
        results=results,
        model=model,
        weights=weights,
        data=data,
        inputs=inputs,
        attacks=attacks,
        alpha=alpha,
        seed=seed,
        device=device,
        trust=trust,
    )
    done = run(job, Shown("checking", quiet, kept=""))
    if as_json:
        typer.echo(json.dumps(done.to_dict()))
    else:
        marks = {"ok": "ok  ", "failed": "FAIL", "not checked": "not checked"}
        for one in done.checks:
            words.say(f"{marks[one.outcome]} {one.name}: {one.detail}")
        unchecked, failed = (", ".join(done.named(outcome)) for outcome in ("not checked", "failed"))
        rest = f" Not checked: {unchecked}." if unchecked else ""
        words.say(f"The entry does not stand ({failed})." if failed else f"No check failed; this is not a proof.{rest}")
    if keep:
        place = kept_path(entry)
        left = done.interrupted and done.stands and place.exists()
        if not left:
            write_kept(kept_of(job, done), place)
        if not as_json:
            words.say(f"Left {place} as it was: an interrupted check replaces none." if left else f"Wrote {place}.")
    if not done.stands or done.interrupted:
        raise typer.Exit(130 if done.stands else 1)


@leaderboard.command("page")
def make_page(
    folder: Annotated[Path, typer.Argument(help="The folder of entries.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write, in Markdown.")],
    title: Annotated[str, typer.Option(help="The title of the page.")] = "Leaderboard",
) -> None:
    """Make the page of a leaderboard from its entries. An entry that cannot be true is refused.

    Example: `ucan leaderboard page leaderboard -o leaderboard/README.md`
    """
    from ucan.errors import InvalidInput
    from ucan.leaderboard.entry import problems, read_entries, repeated
    from ucan.leaderboard.kept import read_all_kept
    from ucan.leaderboard.page import page
    from ucan.storage import storage, write_whole

    words.check_ending(output, "the page is Markdown", ".md", ".txt")
    entries = read_entries(folder)
    for path, one in entries.items():
        if wrong := problems(one):
            raise InvalidInput(f"{folder / path}: {'; '.join(wrong)}.")
    if twice := repeated(entries):
        raise InvalidInput(f"{folder}: {'; '.join(twice)}.")
    kept = read_all_kept(folder, entries)
    with storage(output):
        write_whole(output, page(entries, title, kept).encode())
    words.say(f"Wrote {output}: {len(entries)} entr{'y' if len(entries) == 1 else 'ies'}.")
