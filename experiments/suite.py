"""Train and certify the rows of rows.py on a budget of seconds, most important first; whatever stops it, it goes on.

    python experiments/suite.py --list
    python experiments/suite.py --choose 'cifar10-*' --seconds 500
    python experiments/suite.py --seconds 1400 --shard 1/3 &      (and 2/3, 3/3: three processes share one GPU)
    python experiments/suite.py --only 'mnist-*' --passes 10000:100000
    python experiments/suite.py --only cifar10-ensemble-0.32 --network 2      (trains one network of an ensemble, no more)

Weights are kept under --runs and not trained again. Where they are gone, the row is trained once more: if that gives the
same weights bit for bit, as it often does on the same kind of GPU, the record is gone on with. Each row's record,
OUT/NAME.json, is written as it grows: settings, seed, hardware, times, votes used, and for every input how many levels of
each claim it reached. The work is done in passes INPUTS:VOTES, all rows in each before the next: first few votes for every
input, then more for those that are still open. What is undecided counts as not certified, so every state of a record is
true.

Inputs come in a fixed order whose beginnings are even parts of the test set (every 20th, every 10th, …). n₀ = 100 votes
choose the class; where that is wrong, nothing can be certified and no more votes are cast. The others vote until every
level is decided at α = 0.001 by bounds that hold whenever one looks (ucan.stopping), or the pass's votes are used up or will
not do; a later pass goes on where the vote stopped, with the same noise stream. No training is begun that will not fit into
the seconds left, by the estimates of rows.py and the pace measured so far; votes are cast until the last second.
"""

from __future__ import annotations

import argparse
import fnmatch
import functools
import itertools
import json
import math
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rows import CHOICES, ROWS, START, Choice, Row, certify_seconds, expected_samples, run_name, train_seconds
from torch import nn

from ucan import SmoothedClassifier, __version__, data
from ucan.bench import machine
from ucan.data import Labelled
from ucan.errors import InvalidInput, UcanError
from ucan.fingerprint import weights_hash
from ucan.plan import CertifyPlan
from ucan.rounding import floor_percent
from ucan.runs.levels import Claim, Levels, decide, within
from ucan.runs.train import TrainJob, changed, trainer_of
from ucan.storage import write_whole
from ucan.training import TrainSettings, is_trained_run, load_run, read_settings

ALPHA, N0 = 0.001, 100
RESIDUES = (0, 10, 5, 15, 2, 12, 7, 17, 3, 13, 8, 18, 1, 11, 6, 16, 4, 14, 9, 19)
DIGITS = "0123456789ABCDEF"  # levels reached; "." is an input that was not looked at
SAVE_EVERY = 30.0


def in_order(count: int) -> list[int]:
    """All inputs, so that the first 1/20, 1/10, 3/20 … are spread evenly over them."""
    return [i for r in RESIDUES for i in range(r, count, len(RESIDUES))]


# --- the record of a row ---


@dataclass
class Record:
    """What is known of a row so far, and where it is kept."""

    path: Path
    about: dict[str, Any]
    levels: Levels
    seconds: float = 0.0

    @classmethod
    def of(cls, path: Path, about: dict[str, Any], claims: tuple[Claim, ...], total: int) -> Record:
        """As recorded, to be gone on with by the same classifier only; or from the start."""
        if not path.exists():
            return cls(path, about, Levels(claims, total))
        old = json.loads(path.read_text())
        alike = ("weights", "noise", "members", "mirrored", "preset", "changes", "precision", "backend", "seed")
        same = all(old[k] == about[k] for k in alike if k in old)
        asked = {key: claim["levels"] for key, claim in old["claims"].items()}
        if not same or old["of"] != total or asked != {claim.key: list(claim.levels) for claim in claims}:
            raise InvalidInput(f"{path} is about another classifier or other levels: remove it to begin anew.")
        found = {key: unpacked(claim["reached"], total) for key, claim in old["claims"].items()}
        votes = {int(i): (k, n) for i, (k, n) in old["open"].items()}
        about = {**about, "train_seconds": old["train_seconds"]}
        return cls(path, about, Levels(claims, total, found, votes, old["samples"]), old["certify_seconds"])

    @classmethod
    def of_these(cls, path: Path, about: dict[str, Any], claims: tuple[Claim, ...], total: int) -> Record:
        """The same; a record of other weights or levels is put into the folder "earlier" beside it, and a new one begun."""
        try:
            return cls.of(path, about, claims, total)
        except InvalidInput:
            aside = path.parent / "earlier" / f"{path.stem}-{json.loads(path.read_text())['weights'][:8]}.json"
            aside.parent.mkdir(exist_ok=True)
            path.rename(aside)
            print(f"{path.stem}: other weights or levels than recorded, now in {aside}; begun anew", flush=True)
            return cls.of(path, about, claims, total)

    @property
    def seen(self) -> int:
        """How many inputs were looked at."""
        return len(looked_at(packed(next(iter(self.levels.reached.values())))))

    def to_dict(self, row: Row) -> dict[str, Any]:
        """Plain JSON values; shares in percent, rounded down, of the inputs looked at."""
        seen, levels = self.seen, self.levels
        texts = {claim: packed(levels.reached[claim.key]) for claim in levels.claims}
        return {
            **self.about,
            "inputs": seen,
            "of": levels.total,
            "complete": seen >= min(row.inputs, levels.total) and not levels.open,
            "samples": levels.samples,
            "certify_seconds": round(self.seconds, 1),
            "accuracy": {claim.key: shares(text, claim.levels) for claim, text in texts.items()},
            "claims": {claim.key: {"levels": list(claim.levels), "reached": text} for claim, text in texts.items()},
            "open": {str(i): list(state) for i, state in sorted(levels.open.items())},
        }

    def save(self, row: Row) -> None:
        """Whole or not at all."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self.path, (json.dumps(self.to_dict(row), ensure_ascii=False) + "\n").encode())


def close(path: Path) -> None:
    """Forget which inputs are open, and keep how many there are: without the weights no vote can be added to theirs."""
    found = json.loads(path.read_text())
    if found.get("open"):
        found |= {"undecided": undecided(found), "open": {}}
        write_whole(path, (json.dumps(found, ensure_ascii=False) + "\n").encode())


def undecided(found: dict[str, Any]) -> dict[str, int]:
    """Of a record's inputs, how many are undecided, and the most votes that one of those has."""
    if "undecided" in found:
        return {**found["undecided"]}
    among = set(in_order(found["of"])[: found["inputs"]])
    votes = [n for i, (_, n) in found["open"].items() if int(i) in among]
    return {"inputs": len(votes), "votes": max(votes, default=found["n"])}


def packed(reached: list[int | None]) -> str:
    """One digit an input, in the order of ``in_order``, as far as it was looked at."""
    digits = ("." if (count := reached[i]) is None else DIGITS[count] for i in in_order(len(reached)))
    return "".join(digits).rstrip(".")


def unpacked(text: str, total: int) -> list[int | None]:
    """The inverse."""
    reached: list[int | None] = [None] * total
    for i, digit in zip(in_order(total), text, strict=False):
        reached[i] = None if digit == "." else DIGITS.index(digit)
    return reached


def looked_at(text: str) -> str:
    """The digits before the first input that was not looked at.

    Those behind a gap are left out: a gap is where a vote took long, so without it they would look better than they are.
    """
    return text.partition(".")[0]


def shares(text: str, levels: tuple[float, ...] | list[float]) -> dict[str, str]:
    """Certified accuracy in percent at each level, rounded down to a tenth, of the inputs looked at (``packed``)."""
    counts = [DIGITS.index(c) for c in looked_at(text)]
    return {
        f"{level:.6g}": floor_percent(sum(c > i for c in counts) / len(counts)) if counts else "–"
        for i, level in enumerate(levels)
    }


# --- the work on one row ---


@functools.cache
def loaded(name: str, split: str) -> Labelled:
    """A data set, read once in a process."""
    return data.load(name, split)


def settings_of(preset: str, changes: list[str]) -> TrainSettings:
    """The preset with its changes; a GPU's precision and compiler are asked for only where there is one."""
    found = changed(read_settings(preset), changes)
    return found if torch.cuda.is_available() else replace(found, precision="32-true", compile=False)


def changes_of(row: Row, out: Path) -> list[str]:
    """The row's changes, and what its choice came to; its first option as long as nothing was chosen."""
    if row.choice is None:
        return list(row.changes)
    choice = next(c for c in CHOICES if c.name == row.choice)
    path = out / f"choice-{choice.name}.json"
    chosen = json.loads(path.read_text())["chosen"] if path.exists() else list(choice.options[0])
    return [*row.changes, *chosen]


def run_of(row: Row, seed: int, out: Path, runs: Path, more: list[str]) -> tuple[Path, TrainSettings]:
    """The folder and the settings of the row's training with this seed; 0 is the preset's."""
    changes = [*changes_of(row, out), *more, *([f"seed={seed}"] if seed else [])]
    return runs / run_name(row.preset, changes), settings_of(row.preset, changes)


def runs_of(row: Row, out: Path, runs: Path, more: list[str]) -> dict[Path, TrainSettings]:
    """The training runs that a row is made of, by their folders, from the seeds 0, 1, …"""
    return dict(run_of(row, seed, out, runs, more) for seed in range(row.members))


def trained(folder: Path, settings: TrainSettings, finetune: Path | None = None) -> float:
    """Train into the folder unless that is done; the seconds it took."""
    if is_trained_run(folder):
        return 0.0
    start = time.monotonic()
    trainer_of(TrainJob(settings=settings, data=loaded(settings.data, "train"), finetune=finetune), folder).run()
    return time.monotonic() - start


def train_row(row: Row, seed: int, out: Path, runs: Path, more: list[str]) -> float:
    """Train the row's network of this seed unless that is done; before it, the one of the same seed that it begins with, whose
    seconds do not count.
    """
    folder, settings = run_of(row, seed, out, runs, more)
    if row.onto is None or is_trained_run(folder):
        return trained(folder, settings)
    (first,) = (one for one in ROWS if one.name == row.onto)
    train_row(first, settings.seed, out, runs, more)  # the row itself may set a seed
    return trained(folder, settings, run_of(first, settings.seed, out, runs, more)[0])


class Ensemble(nn.Module):
    """Several classifiers, or one at a picture and its mirror image, as one by the mean logits: fewer chance votes."""

    def __init__(self, members: Sequence[nn.Module], mirrored: bool) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.mirrored = mirrored

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The mean logits."""
        views = (x, x.flip(-1)) if self.mirrored else (x,)
        return torch.stack([member(view) for member in self.members for view in views]).mean(0)


@functools.cache
def smoothed(folders: tuple[Path, ...], mirrored: bool, backend: str) -> SmoothedClassifier:
    """The trained classifier under its noise, on the device; made, and compiled, once for all passes.

    Of several networks together, trained alike: their noise is the same.
    """
    runs = [load_run(folder) for folder in folders]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    first, classifiers = runs[0], [run.classifier for run in runs]
    classifier = Ensemble(classifiers, mirrored).eval() if mirrored or len(runs) > 1 else classifiers[0]
    return SmoothedClassifier(classifier.to(device), first.law, first.generator.to(device), first.num_classes, backend)


def certify(
    g: SmoothedClassifier, dataset: Labelled, record: Record, row: Row, inputs: int, cap: int, deadline: float
) -> None:
    """One pass: the first ``inputs`` inputs, up to ``cap`` votes each, until the deadline."""
    start, before, n = time.monotonic(), record.seconds, min(cap, row.n)
    plan = CertifyPlan(N0, n, ALPHA, row.claims[0].norm, precision="bf16" if torch.cuda.is_available() else None)
    wanted = record.levels.unfinished(in_order(len(dataset))[: min(inputs, row.inputs)], n)
    for _ in decide(g, dataset, record.levels, wanted, plan, row.n, deadline, SAVE_EVERY):
        record.seconds = before + time.monotonic() - start
        record.save(row)


def estimate(row: Row, settings: TrainSettings, untrained: int, inputs: int, cap: int, missing: float = 0) -> float:
    """Seconds that training so many networks and so many further inputs should take; Σ counts as 1 here.

    ``missing`` are the votes that inputs left open by an earlier pass may still use; two thirds at most, it is assumed.
    """
    dim = math.prod(loaded(settings.data, "test").event_shape)
    law = settings.build_law(dim)
    p0 = np.concatenate([np.asarray(law.probability(np.array(c.levels), c.norm, dim)) for c in row.claims])
    draws = settings.build_recipe().draws
    training = untrained * train_seconds(settings.model, settings.generator["kind"], settings.epochs, draws)
    p0 = within(p0, cap, ALPHA)
    samples = expected_samples(p0[~np.isnan(p0)], cap)
    certifying = certify_seconds(settings.model, inputs, samples) + certify_seconds(settings.model, 1, missing / 1.5)
    return training + row.members * (1 + row.mirrored) * certifying


# --- the runner ---


class Suite:
    """Rows, a clock, and the pace: how the time taken so far compares with what was estimated."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.deadline = time.monotonic() + args.seconds
        self.expected = self.spent = START if torch.cuda.is_available() else 1.0

    @property
    def pace(self) -> float:
        """Taken over estimated; between a half and three, lest one odd row decide."""
        return min(3.0, max(0.5, self.spent / self.expected))

    def fits(self, name: str, cost: float) -> bool:
        """Whether to begin; says so if not."""
        left = self.deadline - time.monotonic()
        if cost * self.pace > left:
            print(f"{name}: left for later, about {cost * self.pace:.0f} s of {left:.0f} s left", flush=True)
            return False
        return True

    def row(self, row: Row, inputs: int, cap: int) -> None:
        """One row in one pass, if anything is left to do and it fits."""
        args, path = self.args, self.args.out / f"{row.name}.json"
        members = runs_of(row, args.out, args.runs, args.set)
        settings = next(iter(members.values()))
        test_set = loaded(settings.data, "test")
        old = json.loads(path.read_text()) if path.exists() else {"inputs": 0, "open": {}, "complete": False}
        further = max(0, min(inputs, row.inputs, len(test_set)) - old["inputs"])
        missing = sum(max(0, min(cap, row.n) - 128 - n) for _, n in old["open"].values())
        if old["complete"] or "undecided" in old or further + missing == 0:
            return
        untrained = [folder for folder in members if not is_trained_run(folder)]
        cost = estimate(row, settings, len(untrained), further, min(cap, row.n), missing)
        certifying = cost if not untrained else estimate(row, settings, 0, further, min(cap, row.n), missing)
        # A vote that is cut short is of use, a training that is cut short is not.
        if not self.fits(row.name, cost - certifying + min(certifying, 20)):
            return
        start = time.monotonic()
        training = sum(train_row(row, seed, args.out, args.runs, args.set) for seed in range(row.members))
        g = smoothed(tuple(members), row.mirrored, args.backend)
        record = self.record(row, self.about(row, settings, g, training), len(test_set))
        certify(g, test_set, record, row, inputs, cap, self.deadline)
        self.expected, self.spent = self.expected + cost, self.spent + time.monotonic() - start
        print(f"{row.name}: {record.seen} inputs, {len(record.levels.open)} open, trained in {training:.0f} s, "
              f"certified in {record.seconds:.0f} s, {record.to_dict(row)['accuracy']}", flush=True)  # fmt: skip

    def network(self, row: Row, number: int) -> None:
        """Train the network of that number, from 1 on, if the row has one and it fits: each can have a process of its own."""
        if number > row.members:
            return
        which = (row, number - 1, self.args.out, self.args.runs, self.args.set)
        folder, settings = run_of(*which)
        if not is_trained_run(folder) and self.fits(f"{row.name}, network {number}", estimate(row, settings, 1, 0, 1)):
            print(f"{row.name}, network {number}: trained in {train_row(*which):.0f} s", flush=True)

    def record(self, row: Row, about: dict[str, Any], total: int) -> Record:
        """As far as it is known, of these very weights; a record of others is put into OUT/earlier, and a new one begun."""
        return Record.of_these(self.args.out / f"{row.name}.json", about, row.claims, total)

    def about(self, row: Row, settings: TrainSettings, g: SmoothedClassifier, training: float) -> dict[str, Any]:
        """What a record says besides its numbers."""
        largest = g.M.cap()
        x = loaded(settings.data, "test")[0][0][None].to(g.f.device)
        region = g.M.at(x).region(g.law, 0.75, row.claims[0].norm, x)
        return {
            "row": row.name, "feeds": row.feeds, "preset": row.preset, "seed": settings.seed,
            "changes": [*changes_of(row, self.args.out), *self.args.set], **row.begins_with,
            "law": repr(g.law), "generator": g.M.describe(), "scope": g.M.scope,
            "cap": None if largest is None else g.law.scale * largest,
            "mean_scale": region.mean_scale if g.M.scope == "pipeline" else None,
            "members": row.members, "mirrored": row.mirrored, "n0": N0, "n": row.n, "alpha": ALPHA,
            "weights": weights_hash(g.f.model), "noise": weights_hash(g.M),
            "precision": "bf16" if torch.cuda.is_available() else "fp32", "backend": self.args.backend,
            "date": time.strftime("%Y-%m-%d", time.gmtime()), "train_seconds": round(training, 1),
            "ucan": __version__, "torch": torch.__version__,
            "python": platform.python_version(), "hardware": machine(g.f.device or torch.device("cpu"))["device"],
        }  # fmt: skip

    def choose(self, choice: Choice) -> None:
        """Train every option on a part of the training set and certify the held-out rest; record who does best."""
        path = self.args.out / f"choice-{choice.name}.json"
        known: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"options": []}
        for option in choice.options:
            if any(o["changes"] == list(option) for o in known["options"]):
                continue
            asked = (*choice.changes, *option, f"held_out={choice.held_out}")
            row = Row(choice.name, "choice", choice.preset, asked, (choice.claim,), choice.inputs, choice.n)
            changes = [*asked, *self.args.set]
            settings = settings_of(choice.preset, changes)
            folder = self.args.runs / run_name(choice.preset, changes)
            cost = estimate(row, settings, 0 if is_trained_run(folder) else 1, choice.inputs, choice.n)
            if not self.fits(f"{choice.name} {option}", cost):
                return
            start = time.monotonic()
            training = trained(folder, settings)
            _, held = data.held_out(loaded(settings.data, "train"), choice.held_out, settings.seed)
            g = smoothed((folder,), False, "eager")  # few votes: compiling would take longer
            record = Record.of(folder / "held-out.json", self.about(row, settings, g, training), row.claims, len(held))
            certify(g, held, record, row, choice.inputs, choice.n, math.inf)
            self.expected, self.spent = self.expected + cost, self.spent + time.monotonic() - start
            accuracy = shares(packed(record.levels.reached[choice.claim.key]), choice.claim.levels)
            known["options"].append({"changes": list(option), "accuracy": accuracy, "inputs": record.seen,
                                     "train_seconds": round(training, 1)})  # fmt: skip
            known |= {"preset": choice.preset, "base": list(choice.changes), "held_out": choice.held_out,
                      "claim": choice.claim.key, "chosen": best_option(known["options"]),
                      "complete": len(known["options"]) == len(choice.options)}  # fmt: skip
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, (json.dumps(known, indent=1, ensure_ascii=False) + "\n").encode())
            print(f"{choice.name} {option}: {accuracy}", flush=True)


def best_option(options: list[dict[str, Any]]) -> list[str]:
    """The changes of the option with the largest mean certified accuracy over the levels above 0; the first of equals."""
    best = max(options, key=lambda o: sum(float(share) for level, share in o["accuracy"].items() if float(level) > 0))
    changes: list[str] = best["changes"]
    return changes


def chosen_rows(rows: list[Row], only: list[str], shard: str, out: Path) -> list[Row]:
    """The rows whose names match; of k shards the i-th, with all rows of one training run in the same."""
    matching = [row for row in rows if any(fnmatch.fnmatch(row.name, glob) for glob in only or ["*"])]
    number, of = (int(part) for part in shard.split("/"))
    names = [run_name(row.preset, changes_of(row, out)) for row in matching]
    places = {name: k for k, name in enumerate(dict.fromkeys(names))}
    return [row for row, name in zip(matching, names, strict=True) if places[name] % of == number - 1]


def table(out: Path, rows: list[Row]) -> None:
    """What is recorded of these rows."""
    for row in rows:
        path = out / f"{row.name}.json"
        if path.exists():
            record = json.loads(path.read_text())
            print(f"{row.name} ({record['scope']}, {record['inputs']} inputs, {len(record['open'])} open)")
            for key, accuracy in record["accuracy"].items():
                print(f"  {key:12}", "  ".join(f"{level} {share}" for level, share in accuracy.items()))


def asked() -> argparse.Namespace:
    """The words of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "recorded" / "suite")
    parser.add_argument("--runs", type=Path, default=Path("runs/suite"), help="where the trained weights go")
    parser.add_argument("--only", nargs="*", default=[], help="names of rows, with wildcards")
    parser.add_argument(
        "--choose", nargs="*", help="first decide these choices, with wildcards; then rows only with --only"
    )
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--shard", default="1/1", help="this process's part of the rows, such as 2/3")
    parser.add_argument("--network", type=int, metavar="K", help="only train, and only the K-th network of each row")
    parser.add_argument("--passes", nargs="*", default=["10000:2000", "10000:10000", "10000:100000"])
    parser.add_argument("--backend", default="eager", choices=("eager", "compile", "tuned"))
    parser.add_argument(
        "--set", nargs="*", action="extend", default=[], help="settings to change in every run, key=value"
    )
    parser.add_argument(
        "--list", action="store_true", help="the rows with the seconds of training and of each pass, estimated"
    )
    parser.add_argument("--close", action="store_true", help="make the records small, for good: see `close`")
    return parser.parse_args()


def listed(rows: list[Row], passes: list[tuple[int, ...]], out: Path, more: list[str]) -> None:
    """The rows with the seconds of training and of each pass, estimated."""
    for row in rows:
        settings = settings_of(row.preset, [*changes_of(row, out), *more])
        totals = [estimate(row, settings, 0, min(i, row.inputs), min(n, row.n)) for i, n in passes]
        training = estimate(row, settings, row.members, 0, 1)
        further = [max(0.0, after - before) for before, after in itertools.pairwise([0.0, *totals])]
        print(f"{row.name:42} {row.feeds:40} {training:6.0f} s +", *(f"{cost:6.0f} s" for cost in further))


def passed(suite: Suite, rows: list[Row], passes: list[tuple[int, ...]]) -> set[str]:
    """Every row in each pass, as long as there is time; the names of those that failed."""
    failed = set()
    for inputs, cap in passes:
        for row in rows:
            if time.monotonic() < suite.deadline and row.name not in failed:
                try:
                    suite.row(row, inputs, cap)
                except (UcanError, RuntimeError) as error:  # the others shall have their time
                    failed.add(row.name)
                    print(f"{row.name} FAILED: {type(error).__name__}: {error}", flush=True)
    return failed


def main() -> None:
    """Choices, or passes over rows, as long as the seconds last."""
    args = asked()
    if args.close:
        for path in sorted(args.out.glob("*.json")):
            close(path)
        return
    suite = Suite(args)
    rows = chosen_rows(ROWS, args.only, args.shard, args.out)
    passes = [tuple(map(int, one.split(":"))) for one in args.passes]
    if torch.cuda.is_available():
        torch._dynamo.config.recompile_limit = 64  # every row trains a network of its own in this process
    if args.choose is not None:
        for choice in CHOICES:
            if any(fnmatch.fnmatch(choice.name, glob) for glob in args.choose or ["*"]):
                suite.choose(choice)
        if not args.only:
            return
    if args.list:
        listed(rows, passes, args.out, args.set)
        return
    if args.network is not None:
        for row in rows:
            suite.network(row, args.network)
        return
    failed = passed(suite, rows, passes)
    table(args.out, rows)
    if failed:
        raise SystemExit(f"failed: {', '.join(sorted(failed))}")


if __name__ == "__main__":
    main()
