"""Check an answer to another question than one class against the deployed model and its noise."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ucan.errors import InvalidInput
from ucan.json_text import read_json
from ucan.questions.record import FORMAT, Answer
from ucan.questions.records import load_json
from ucan.questions.regression import Interval
from ucan.questions.smoothed import Smoothed
from ucan.replay_answer import NAME
from ucan.runs.ask import names_classes, smoothed_for
from ucan.runs.build import class_order, smoothed_with_names
from ucan.runs.progress import SILENT, Progress
from ucan.runs.verify import VerifyJob, deployed_step, input_of, with_model
from ucan.verify import Verdict, fresh_number
from ucan.verify_answer import verify_answer


@dataclass(frozen=True)
class VerifiedAnswer:
    """An answer and the verdict. ``undrawn``: a replay was asked for, and could not be made."""

    answer: Answer
    verdict: Verdict
    undrawn: bool = False

    @property
    def stands(self) -> bool:
        """Whether no check failed; this is not a proof of the claim."""
        return self.verdict.stands

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        claim = {"question": self.answer.task, "claim": str(self.answer), "scope": self.answer.scope}
        return {**claim, "stands": self.stands, "undrawn": self.undrawn, **asdict(self.verdict)}


def is_answer(path: str | Path) -> bool:
    """Whether a file holds the answer to another question than one class."""
    try:
        record = read_json(path)
    except (OSError, ValueError):  # whoever reads it as a certificate says what is wrong
        return False
    return isinstance(record, dict) and record.get("format") == FORMAT


def verify_asked(job: VerifyJob, progress: Progress = SILENT) -> VerifiedAnswer:
    """Compare an answer with the deployed model and noise, test it with fresh samples, and with ``replay`` draw it again."""
    answer, job = load_json(job.certificate), with_model(job)
    if not isinstance(answer, Answer):
        raise InvalidInput(f"{job.certificate} is not the answer to a question.")
    if job.range is not None and not isinstance(answer, Interval):
        raise InvalidInput(f"--range is for answers about numbers, and this one is about {answer.task}: leave it out.")
    if not job.states_noise:
        raise InvalidInput("give the noise of the deployed pipeline: --law, --scale and --noise, or a trained run.")
    given = input_of(job, answer.region.shape)
    x = given.x[None].to(job.place())
    g, order = _deployed(job, answer, x, given.step)
    data_hash = given.data_hash(order)
    with progress.working(1, 0, fresh_number(job.n, answer.evidence.n)):
        g.on_votes(progress.sampled)
        verdict = verify_answer(answer, g, x, job.n, job.alpha, job.seed, job.replay, data_hash, job.range)
        progress.finished("")
    unsure = any(check.name == NAME and not check.confirmed for check in verdict.checks)
    return VerifiedAnswer(answer, verdict, undrawn=job.replay and (answer.evidence.seed is None or unsure))


def _deployed(
    job: VerifyJob, answer: Answer, x: torch.Tensor, declared: float | None
) -> tuple[Smoothed, tuple[str, ...] | None]:
    """The model under the deployed noise, and the order of its classes that the data are in if the question is about them."""
    question, step = answer.question(), deployed_step(job, declared, answer.evidence.arithmetic)
    if names_classes(question):
        g, own = smoothed_with_names(job, x, step, [])
        return g, class_order(job, own, g.num_classes)
    if job.class_names is not None:
        raise InvalidInput(
            f"an answer about {answer.task} does not depend on names of classes: leave out --class-names."
        )
    return smoothed_for(job, question, x, step), None
