"""What every page has: the settings of a certificate, and the pace at which arriving votes are shown."""

from __future__ import annotations

import time
from collections.abc import Iterator

import gradio as gr

from ucan.app import panels
from ucan.app.session import Session
from ucan.certificate import Abstention, Certificate
from ucan.votes import Votes

# The least seconds between two looks at arriving votes.
LOOK = 0.1
CERTIFY = "Press “Certify” to watch the votes arrive."


class CertifyForm:
    """The part of a page where an input is certified: the settings and the button on the left, the answer on the right."""

    def __init__(self, session: Session) -> None:
        with gr.Column(scale=5, min_width=320):
            gr.HTML(panels.heading("Certify it", 2))
            self.scale, self.n, self.alpha = sliders(session)
            self.button = gr.Button("Certify", variant="primary", size="lg", elem_id="certify")
            self.counted = gr.HTML("", elem_id="counted")
        with gr.Column(scale=7, min_width=320):
            gr.HTML(panels.heading("The answer, and how far it holds"))
            self.result = gr.HTML(panels.hint(CERTIFY), elem_id="result")


def sliders(session: Session) -> tuple[gr.Slider, gr.Slider, gr.Slider]:
    """λ, n and α, at first as the run has them."""
    own, plan = session.scale, session.plan
    scale = gr.Slider(
        own / 4,
        own * 4,
        own,
        step=own / 20,
        label="λ, the scale of the noise",
        info=f"The run uses {own:g}. Under other noise certificates are as true, but the model was not made for it.",
        elem_id="scale",
    )
    n = gr.Slider(
        100,
        100_000,
        plan.n,
        step=100,
        label="n, the number of votes",
        info="More votes take longer and certify more. Choose before you look: further tries have a stricter bound.",
        elem_id="votes",
    )
    alpha = gr.Slider(
        0.0001,
        0.05,
        plan.alpha,
        step=0.0001,
        label="α, the risk",
        info="The probability with which a certificate may be false.",
        elem_id="alpha",
    )
    return scale, n, alpha


def looked_at(steps: Iterator[Votes | Certificate | Abstention]) -> Iterator[Votes | Certificate | Abstention]:
    """The steps of ``Session.certify`` without votes that come too soon after the last ones; the outcome always."""
    last = 0.0
    for step in steps:
        if not isinstance(step, Votes):
            yield step
        elif time.monotonic() - last >= LOOK:
            last = time.monotonic()
            yield step
