"""The page about pictures, and the start of any page: Gradio connects a session with its panels.

Nothing is sent to other machines or loaded from them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr
import torch

from ucan.app import panels
from ucan.app.answers import AnswersSession
from ucan.app.answers_page import AnswersPage
from ucan.app.controls import CERTIFY, CertifyForm, looked_at
from ucan.app.rows_page import RowsPage
from ucan.app.session import INSIDE, MOST_BYTES, Attacked, Session
from ucan.audit import modes_of
from ucan.certificate import Certificate
from ucan.errors import UcanError
from ucan.votes import Votes

# Pictures on one page of thumbnails.
THUMBS = 24
CHOOSE = "Choose a picture above, or drop one."
ATTACK = "Certify a picture first; then an attacker may try."
# Thumbnails are plain HTML, so this script reports which one was clicked.
PICK = """element.addEventListener('click', event => {
  const button = event.target.closest('button[data-number]')
  if (button) trigger('click', {number: Number(button.dataset.number)})
})"""


@dataclass(frozen=True, eq=False)
class Chosen:
    """The input at hand (1, *event), with its label (−1: unknown) and what to call it."""

    x: torch.Tensor
    label: int
    title: str
    number: int | None


@dataclass(frozen=True, eq=False)
class Claim:
    """A certificate, and the input that it is about."""

    chosen: Chosen
    certificate: Certificate


class Page:
    """The page for one session on pictures: ``blocks`` is what Gradio serves."""

    def __init__(self, session: Session) -> None:
        self.session = session
        first = self._pick(session.numbers[0]) if session.numbers else None
        title = f"UCAN explore · {session.name}"
        with gr.Blocks(title=title, analytics_enabled=False, delete_cache=(600, 600)) as self.blocks:
            # The state of one visitor: the input, its certificate, the page of thumbnails, the seed of the noise.
            self.chosen, self.claim, self.start, self.seed = gr.State(first), gr.State(None), gr.State(0), gr.State(0)
            gr.HTML(panels.header(session))
            with gr.Row(equal_height=False):
                self._lay_out_choice(first)
            with gr.Row(equal_height=False):
                self.form = CertifyForm(session)
            with gr.Row(equal_height=False):
                self._lay_out_attack()
            self.attacked = gr.HTML(panels.hint(ATTACK), elem_id="attacked")
            self._connect()

    # --- what is where; on a telephone one below the other, in this order ---

    def _lay_out_choice(self, first: Chosen | None) -> None:
        some = bool(self.session.numbers)
        with gr.Column(scale=5, min_width=320):
            gr.HTML(panels.heading("Choose a picture", 1))
            self.thumbs = gr.HTML(self._thumbs(0, first), elem_id="thumbs", js_on_load=PICK, visible=some)
            with gr.Row(visible=some, elem_id="numbers"):
                number = None if first is None else first.number
                self.number = gr.Number(number, label="input number", precision=0, elem_id="number", min_width=120)
                self.more = gr.Button("More pictures", elem_id="more", min_width=120)
            self.file = gr.File(label="or drop a picture of your own", elem_id="drop", height=150)
            self.said = gr.HTML("", elem_id="said")
        with gr.Column(scale=7, min_width=320):
            gr.HTML(panels.heading("The noise"))
            self.noise = gr.HTML(self._noise(first, self.session.scale, 0), elem_id="noise")
            self.again = gr.Button("Draw other noise", size="sm", elem_id="again")

    def _lay_out_attack(self) -> None:
        with gr.Column(scale=5, min_width=320):
            gr.HTML(panels.heading("Attack it", 3))
            self.multiple = gr.Slider(
                0.1,
                3.0,
                2.0,
                step=0.1,
                label="how far the attacker may go, as a multiple of the region",
                info=f"It is tried within {INSIDE:g} × the region as well.",
                elem_id="multiple",
            )
            self.attack = gr.Button("Attack", variant="stop", size="lg", elem_id="attack")
        with gr.Column(scale=7, min_width=320):
            gr.HTML(panels.heading("What to watch for") + panels.adversary(self.session))

    # --- what happens when ---

    def _connect(self) -> None:
        form = self.form
        silent: dict[str, Any] = {"show_progress": "hidden"}
        # Heavy work runs one job at a time for all visitors; choosing another input stops one's own job.
        heavy: dict[str, Any] = {"concurrency_limit": 1, "concurrency_id": "classifier", **silent}
        settings = [self.chosen, form.scale, form.n, form.alpha]
        results = [form.counted, form.result, self.claim, self.attacked, self.said]
        certifying = form.button.click(self._on_certify, settings, results, **heavy)
        attacking = self.attack.click(self._on_attack, [self.claim, self.multiple], [self.attacked], **heavy)

        self.shown = [self.chosen, self.number, self.thumbs, self.noise, *results]
        choice: dict[str, Any] = {"outputs": self.shown, "cancels": [certifying, attacking], **silent}
        self.thumbs.click(self._on_thumb, [form.scale, self.start], **choice)
        self.number.input(self._on_number, [self.number, form.scale, self.start], trigger_mode="always_last", **choice)
        self.file.upload(self._on_drop, [self.file, form.scale, self.start], **choice)

        self.more.click(self._on_more, [self.start, self.chosen], [self.start, self.thumbs], **silent)
        drawn = {"inputs": [self.chosen, form.scale, self.seed], "outputs": [self.noise, self.seed], **silent}
        self.again.click(self._on_draw, **drawn)
        form.scale.change(self._on_draw, trigger_mode="always_last", **drawn)

    def _on_thumb(self, scale: float, start: int, event: gr.EventData) -> list[Any]:
        return self._show(lambda: self._pick(int(event.number)), scale, start)

    def _on_number(self, number: float | None, scale: float, start: int) -> list[Any]:
        if number is None:  # emptied, to type another
            return [gr.skip()] * len(self.shown)
        return self._show(lambda: self._pick(int(number)), scale, start)

    def _on_drop(self, path: str, scale: float, start: int) -> list[Any]:
        return self._show(lambda: Chosen(self.session.decode(path), -1, Path(path).name, None), scale, start)

    def _show(self, choose: Callable[[], Chosen], scale: float, start: int) -> list[Any]:
        """The newly chosen input without results; if it is refused, everything stays and the reason is shown."""
        try:
            now = choose()
            noise = self._noise(now, scale, 0)
        except UcanError as error:
            return [gr.skip()] * (len(self.shown) - 1) + [panels.message(str(error))]
        unknown = ["", panels.hint(CERTIFY), None, panels.hint(ATTACK), ""]
        return [now, now.number, self._thumbs(start, now), noise, *unknown]

    def _on_more(self, start: int, now: Chosen | None) -> tuple[int, str]:
        following = start + THUMBS if start + THUMBS < len(self.session.numbers) else 0
        return following, self._thumbs(following, now)

    def _on_draw(self, now: Chosen | None, scale: float, seed: int) -> tuple[str, int]:
        return self._noise(now, scale, seed + 1), seed + 1

    def _on_certify(self, now: Chosen | None, scale: float, n: int, alpha: float) -> Iterator[list[Any]]:
        """Votes as they come; the certificate, or why there is none, when all are there."""
        if now is None:
            yield ["", panels.hint(CERTIFY), None, panels.hint(ATTACK), panels.message(CHOOSE)]
            return
        try:
            yield from self._certified(now, scale, int(n), alpha)
        except UcanError as error:
            yield ["", panels.hint(CERTIFY), None, panels.hint(ATTACK), panels.message(str(error))]

    def _certified(self, now: Chosen, scale: float, n: int, alpha: float) -> Iterator[list[Any]]:
        session = self.session
        for step in looked_at(session.certify(now.x, scale, n, alpha)):
            if not isinstance(step, Votes):
                claim = Claim(now, step) if isinstance(step, Certificate) else None
                then = (
                    "Press “Attack” to see whether it holds." if claim else "It abstained: there is nothing to attack."
                )
                counts = panels.votes(session, Votes(step.counts, step.invalid), n, step.prediction)
                yield [counts, panels.outcome(session, step, now.label), claim, panels.hint(then), ""]
            else:
                yield [panels.votes(session, step, n, None), panels.waiting(n), None, panels.hint(ATTACK), ""]

    def _on_attack(self, claim: Claim | None, multiple: float) -> Iterator[str]:
        """The attack panel, one card fuller each time."""
        if claim is None:
            yield panels.message(ATTACK)
            return
        certificate, multiples = claim.certificate, sorted({INSIDE, float(multiple)})
        total = len(multiples) * len(modes_of(certificate.scope, "both"))
        done: list[Attacked] = []
        try:
            yield panels.attacks(self.session, certificate, done, total)
            for one in self.session.attack(claim.chosen.x, certificate, multiples):
                done.append(one)
                yield panels.attacks(self.session, certificate, done, total - len(done))
        except UcanError as error:
            yield panels.message(str(error))

    # --- the parts ---

    def _pick(self, number: int) -> Chosen:
        x, label = self.session.item(number)
        name = "" if label < 0 else f", label {self.session.class_name(label)}"
        return Chosen(x, label, f"input {number}{name}", number)

    def _thumbs(self, start: int, now: Chosen | None) -> str:
        numbers = self.session.numbers[start : start + THUMBS]
        return panels.thumbnails(self.session, numbers, None if now is None else now.number)

    def _noise(self, now: Chosen | None, scale: float, seed: int) -> str:
        return (
            panels.hint(CHOOSE) if now is None else panels.noise(self.session.smoothed(scale), now.x, now.title, seed)
        )


def page_of(session: Session | AnswersSession) -> gr.Blocks:
    """The page that a run has: of pictures, of rows, or of answers to a question."""
    page: Any
    if isinstance(session, AnswersSession):
        page = AnswersPage(session)
    else:
        page = Page(session) if session.table is None else RowsPage(session)
    made: gr.Blocks = page.blocks
    return made


def serve(session: Session | AnswersSession, host: str, port: int | None) -> tuple[gr.Blocks, str]:
    """Start the page in the background; it and its address. ``close()`` ends it."""
    page = page_of(session)
    system = ["ui-sans-serif", "system-ui", "sans-serif"]  # no font is fetched from anywhere
    theme = gr.themes.Base(
        primary_hue="teal", neutral_hue="slate", font=system, font_mono=["ui-monospace", "monospace"]
    )
    _, address, _ = page.queue(default_concurrency_limit=1).launch(
        server_name=host,
        server_port=port,
        share=False,
        quiet=True,
        prevent_thread_lock=True,
        max_file_size=MOST_BYTES,
        footer_links=[],
        run_history=False,
        ssr_mode=False,
        theme=theme,
        css=(Path(__file__).parent / "page.css").read_text(encoding="utf-8"),
    )
    return page, address
