"""The page about a run of a question: choose an input, see its answer, check it with fresh samples, attack it."""

from __future__ import annotations

from typing import Any

import gradio as gr

from ucan.app import panels
from ucan.app.answers import AnswersSession, answer_panel, attack_panel, header, input_panel, verdict_panel
from ucan.errors import UcanError

# Inputs that the list shows; others are found by their number.
MOST = 1000
TRY = "Check the claim with fresh samples, or attack it."


class AnswersPage:
    """The page for the answers of one run: ``blocks`` is what Gradio serves."""

    def __init__(self, session: AnswersSession) -> None:
        self.session = session
        first = session.numbers[0]
        title = f"UCAN explore · {session.name}"
        with gr.Blocks(title=title, analytics_enabled=False) as self.blocks:
            gr.HTML(header(session))
            with gr.Row(equal_height=False):
                with gr.Column(scale=5, min_width=320):
                    self._lay_out_choice(first)
                with gr.Column(scale=7, min_width=320):
                    gr.HTML(panels.heading("The answer, and how far it holds"))
                    self.result = gr.HTML(answer_panel(session, first), elem_id="result")
            with gr.Row(equal_height=False):
                with gr.Column(scale=5, min_width=320):
                    self._lay_out_trial()
                with gr.Column(scale=7, min_width=320):
                    gr.HTML(panels.heading("What came of it"))
                    self.tried = gr.HTML(panels.hint(TRY), elem_id="tried")
            self._connect()

    def _lay_out_choice(self, first: int) -> None:
        gr.HTML(panels.heading("Choose an input", 1))
        names = [(self.session.title(number), number) for number in self.session.numbers[:MOST]]
        self.number = gr.Dropdown(
            names,
            value=first,
            label="input",
            info="From the list, or type its number and press Enter.",
            allow_custom_value=True,
            elem_id="input",
        )
        self.shown = gr.HTML(input_panel(self.session, first), elem_id="shown")

    def _lay_out_trial(self) -> None:
        gr.HTML(panels.heading("Try the claim", 2))
        able = self.session.g is not None
        self.check = gr.Button("Check with fresh samples", size="lg", elem_id="check", interactive=able)
        self.multiple = gr.Slider(
            0.1,
            3.0,
            0.9,
            step=0.1,
            label="how far the attacker may go, as a multiple of the region",
            elem_id="multiple",
        )
        self.attack = gr.Button("Attack", variant="stop", size="lg", elem_id="attack", interactive=able)

    def _connect(self) -> None:
        silent: dict[str, Any] = {"show_progress": "hidden"}
        # Heavy work runs one job at a time for all visitors; choosing another input stops one's own job.
        heavy: dict[str, Any] = {"concurrency_limit": 1, "concurrency_id": "model", "show_progress": "minimal"}
        checking = self.check.click(self._on_check, [self.number], [self.tried], **heavy)
        attacking = self.attack.click(self._on_attack, [self.number, self.multiple], [self.tried], **heavy)
        shown = [self.shown, self.result, self.tried]
        self.number.input(self._on_number, [self.number], shown, cancels=[checking, attacking], **silent)

    def _on_number(self, chosen: int | str | None) -> list[Any]:
        if chosen is None or chosen == "":  # emptied, to type another
            return [gr.skip()] * 3
        try:
            number = self.session.number_of(chosen)
            return [input_panel(self.session, number), answer_panel(self.session, number), panels.hint(TRY)]
        except UcanError as error:
            return [gr.skip(), gr.skip(), panels.message(str(error))]

    def _on_check(self, chosen: int | str | None) -> str:
        try:
            return verdict_panel(self.session.check(self.session.number_of(chosen)))
        except UcanError as error:
            return panels.message(str(error))

    def _on_attack(self, chosen: int | str | None, multiple: float) -> str:
        try:
            return attack_panel(self.session.attack(self.session.number_of(chosen), float(multiple)))
        except UcanError as error:
            return panels.message(str(error))
