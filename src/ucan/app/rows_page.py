"""The page about a table: choose a row by its name, see how far its answer holds in each column, change its values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import gradio as gr

from ucan.app import panels
from ucan.app.controls import CERTIFY, CertifyForm, looked_at
from ucan.app.rows import Row, RowClaim, changed_row, choices, row_at, row_named, row_outcome, row_panel
from ucan.app.session import Session
from ucan.certificate import Certificate
from ucan.errors import UcanError
from ucan.votes import Votes

# Rows that the list shows; others are found by their name.
MOST = 1000
CHOOSE = "Choose a row above."


class RowsPage:
    """The page for one session on a table: ``blocks`` is what Gradio serves."""

    def __init__(self, session: Session) -> None:
        self.session = session
        first = row_at(session, session.numbers[0]) if session.numbers else None
        title = f"UCAN explore · {session.name}"
        with gr.Blocks(title=title, analytics_enabled=False, delete_cache=(600, 600)) as self.blocks:
            # The state of one visitor: the row at hand, and the last certificate.
            self.row, self.claim = gr.State(first), gr.State(None)
            gr.HTML(panels.header(session))
            with gr.Row(equal_height=False):
                self._lay_out_choice(first)
            with gr.Row(equal_height=False):
                self.form = CertifyForm(session)
            self._connect()

    def _lay_out_choice(self, first: Row | None) -> None:
        with gr.Column(scale=5, min_width=320):
            gr.HTML(panels.heading("Choose a row", 1))
            self.name = gr.Dropdown(
                choices(self.session, MOST),
                value=None if first is None else first.number,
                label="row",
                info="From the list, or type a name and press Enter.",
                allow_custom_value=True,
                elem_id="row",
            )
            names = [column.name for column in (self.session.table.varying if self.session.table else ())][:2]
            self.typed = gr.Textbox(
                label="or change its values",
                info="Columns that vary; the others stay as they are in the table. Empty: the row as it is.",
                placeholder=", ".join(f"{name}=number" for name in names),
                elem_id="typed",
            )
            self.change = gr.Button("Change", size="sm", elem_id="change")
            self.said = gr.HTML("", elem_id="said")
        with gr.Column(scale=7, min_width=320):
            gr.HTML(panels.heading("Its values, and the noise"))
            self.values = gr.HTML(self._values(first, self.session.scale, None), elem_id="values")

    def _connect(self) -> None:
        form = self.form
        silent: dict[str, Any] = {"show_progress": "hidden"}
        # Heavy work runs one job at a time for all visitors; choosing another row stops one's own job.
        heavy: dict[str, Any] = {"concurrency_limit": 1, "concurrency_id": "classifier", **silent}
        settings = [self.row, form.scale, form.n, form.alpha]
        results = [form.counted, form.result, self.said]
        certifying = form.button.click(self._on_certify, [*settings, self.claim], [*results, self.claim], **heavy)

        self.shown = [self.row, self.values, *results]
        choice: dict[str, Any] = {"outputs": self.shown, "cancels": [certifying], **silent}
        self.name.input(self._on_name, [self.name, form.scale, self.claim], **choice)
        typed = [self.row, self.typed, form.scale, self.claim]
        self.change.click(self._on_change, typed, **choice)
        self.typed.submit(self._on_change, typed, **choice)
        noise = {"inputs": [self.row, form.scale, self.claim], "outputs": [self.values], **silent}
        form.scale.change(self._values, trigger_mode="always_last", **noise)

    def _on_name(self, chosen: int | str | None, scale: float, claim: RowClaim | None) -> list[Any]:
        if chosen is None or chosen == "":  # emptied, to type another
            return [gr.skip()] * len(self.shown)
        session = self.session
        return self._show(
            lambda: row_named(session, chosen) if isinstance(chosen, str) else row_at(session, int(chosen)),
            scale,
            claim,
        )

    def _on_change(self, now: Row | None, text: str, scale: float, claim: RowClaim | None) -> list[Any]:
        if now is None:
            return [gr.skip()] * (len(self.shown) - 1) + [panels.message(CHOOSE)]
        return self._show(lambda: changed_row(self.session, now.number, text), scale, claim)

    def _show(self, choose: Callable[[], Row], scale: float, claim: RowClaim | None) -> list[Any]:
        """The newly chosen row without results; if it is refused, everything stays and the reason is shown."""
        try:
            now = choose()
            return [now, self._values(now, scale, claim), "", panels.hint(CERTIFY), ""]
        except UcanError as error:
            return [gr.skip()] * (len(self.shown) - 1) + [panels.message(str(error))]

    def _on_certify(
        self, now: Row | None, scale: float, n: int, alpha: float, claim: RowClaim | None
    ) -> Iterator[list[Any]]:
        """Votes as they come; the answer in words, or why there is none, when all are there."""
        if now is None:
            yield ["", panels.hint(CERTIFY), panels.message(CHOOSE), claim]
            return
        session, n = self.session, int(n)
        try:
            for step in looked_at(session.certify(now.x, scale, n, alpha, now.held)):
                if isinstance(step, Votes):
                    yield [panels.votes(session, step, n, None), panels.waiting(n), "", claim]
                    continue
                # The certificate of the row as it is stays at hand, to say which changes it covers.
                if not now.changed:
                    claim = RowClaim(now, step) if isinstance(step, Certificate) else None
                counts = panels.votes(session, Votes(step.counts, step.invalid), n, step.prediction)
                yield [counts, row_outcome(session, now, step), "", claim]
        except UcanError as error:
            yield ["", panels.hint(CERTIFY), panels.message(str(error)), claim]

    def _values(self, now: Row | None, scale: float, claim: RowClaim | None) -> str:
        return panels.hint(CHOOSE) if now is None else row_panel(self.session, now, scale, claim)
