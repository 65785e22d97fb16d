"""The page: Gradio's wiring between a session and its panels. Nothing leaves the machine, and nothing comes from outside."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr
import torch

from ucan.app import panels
from ucan.app.session import INSIDE, MOST_BYTES, Attacked, Session
from ucan.certificate import Certificate
from ucan.errors import UcanError
from ucan.votes import Votes

# Pictures on one page of thumbnails, and the least seconds between two looks at arriving votes.
THUMBS, LOOK = 24, 0.1
CHOOSE = "Choose a picture above, or drop one."
CERTIFY = "Press “Certify” to watch the votes arrive."
ATTACK = "Certify a picture first; then an attacker may try."
# What the page's own buttons do: thumbnails are plain HTML, so a click says which one it was.
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


def build(session: Session) -> gr.Blocks:
    """The page for one session."""
    first = _pick(session, session.numbers[0]) if session.numbers else None
    with gr.Blocks(title=f"UCAN explore · {session.name}", analytics_enabled=False, delete_cache=(600, 600)) as page:
        chosen, claim, start, draw = gr.State(first), gr.State(None), gr.State(0), gr.State(0)
        gr.HTML(panels.header(session))
        with gr.Row(equal_height=False):
            with gr.Column(scale=5, min_width=320):
                gr.HTML("<h2><span>1</span> Choose a picture</h2>")
                thumbs = gr.HTML(
                    _thumbs(session, 0, first), elem_id="thumbs", js_on_load=PICK, visible=bool(session.numbers)
                )
                with gr.Row(visible=bool(session.numbers), elem_id="numbers"):
                    number = gr.Number(
                        value=None if first is None else first.number,
                        label="input number",
                        precision=0,
                        minimum=0,
                        elem_id="number",
                        min_width=120,
                    )
                    more = gr.Button("More pictures", elem_id="more", min_width=120)
                file = gr.File(label="or drop a picture of your own", elem_id="drop", height=150)
                said = gr.HTML("", elem_id="said")
            with gr.Column(scale=7, min_width=320):
                gr.HTML("<h2>The noise</h2>")
                noise = gr.HTML(_noise(session, first, session.scale, 0), elem_id="noise")
                again = gr.Button("Draw other noise", size="sm", elem_id="again")
        with gr.Row(equal_height=False):
            with gr.Column(scale=5, min_width=320):
                gr.HTML("<h2><span>2</span> Certify it</h2>")
                scale = gr.Slider(
                    session.scale / 4,
                    session.scale * 4,
                    session.scale,
                    step=session.scale / 20,
                    label="λ, the scale of the noise",
                    info=f"The run uses {session.scale:g}. Under other noise certificates are as true, but the network was "
                    "not made for it.",
                    elem_id="scale",
                )
                votes = gr.Slider(
                    100,
                    100_000,
                    session.plan.n,
                    step=100,
                    label="n, the number of votes",
                    info="More votes take longer and certify more.",
                    elem_id="votes",
                )
                alpha = gr.Slider(
                    0.0001,
                    0.05,
                    session.plan.alpha,
                    step=0.0001,
                    label="α, the risk",
                    info="The probability with which a certificate may be false.",
                    elem_id="alpha",
                )
                certify = gr.Button("Certify", variant="primary", size="lg", elem_id="certify")
                counted = gr.HTML("", elem_id="counted")
            with gr.Column(scale=7, min_width=320):
                gr.HTML("<h2>The answer, and how far it holds</h2>")
                result = gr.HTML(panels.hint(CERTIFY), elem_id="result")
        with gr.Row(equal_height=False):
            with gr.Column(scale=5, min_width=320):
                gr.HTML("<h2><span>3</span> Attack it</h2>")
                multiple = gr.Slider(
                    0.1,
                    3.0,
                    2.0,
                    step=0.1,
                    label="how far the attacker may go, as a multiple of the region",
                    info=f"It is tried within {INSIDE:g} × the region as well.",
                    elem_id="multiple",
                )
                attack = gr.Button("Attack", variant="stop", size="lg", elem_id="attack")
            with gr.Column(scale=7, min_width=320):
                gr.HTML("<h2>What to watch for</h2>" + panels.adversary(session))
        attacked = gr.HTML(panels.hint(ATTACK), elem_id="attacked")

        # Heavy work goes one at a time; whatever chooses another input stops it.
        heavy: dict[str, Any] = {"concurrency_limit": 1, "concurrency_id": "classifier"}
        run = certify.click(
            _certifier(session),
            [chosen, scale, votes, alpha],
            [counted, result, claim, attacked, said],
            show_progress="hidden",
            **heavy,
        )
        try_it = attack.click(_attacker(session), [claim, multiple], [attacked], show_progress="hidden", **heavy)

        picked = [chosen, number, thumbs, noise, claim, counted, result, attacked, said]
        common: dict[str, Any] = {"outputs": picked, "cancels": [run, try_it], "show_progress": "hidden"}

        def show(new: Chosen, first_thumb: int, lam: float) -> list[Any]:
            return [
                new,
                new.number,
                _thumbs(session, first_thumb, new),
                _noise(session, new, lam, 0),
                None,
                "",
                panels.hint(CERTIFY),
                panels.hint(ATTACK),
                "",
            ]

        def by_click(lam: float, first_thumb: int, event: gr.EventData) -> list[Any]:
            return _or_say(lambda: show(_pick(session, int(event.number)), first_thumb, lam), len(picked))

        def by_number(wanted: float | None, lam: float, first_thumb: int) -> list[Any]:
            if wanted is None:  # emptied, to type another
                return [gr.skip()] * len(picked)
            return _or_say(lambda: show(_pick(session, int(wanted)), first_thumb, lam), len(picked))

        def by_drop(path: str | None, lam: float, first_thumb: int) -> list[Any]:
            if path is None:
                return [gr.skip()] * len(picked)
            return _or_say(lambda: show(_dropped(session, Path(path)), first_thumb, lam), len(picked))

        def turn(first_thumb: int, now: Chosen | None) -> tuple[int, str]:
            following = first_thumb + THUMBS
            following = following if following < len(session.numbers) else 0
            return following, _thumbs(session, following, now)

        def redraw(now: Chosen | None, lam: float, seed: int) -> tuple[str, int]:
            return _noise(session, now, lam, seed + 1), seed + 1

        thumbs.click(by_click, [scale, start], **common)
        number.input(by_number, [number, scale, start], trigger_mode="always_last", **common)
        file.upload(by_drop, [file, scale, start], **common)
        more.click(turn, [start, chosen], [start, thumbs], show_progress="hidden")
        again.click(redraw, [chosen, scale, draw], [noise, draw], show_progress="hidden")
        scale.change(redraw, [chosen, scale, draw], [noise, draw], trigger_mode="always_last", show_progress="hidden")
    return page


def _certifier(session: Session) -> Callable[..., Iterator[list[Any]]]:
    def certify(now: Chosen | None, lam: float, n: int, alpha: float) -> Iterator[list[Any]]:
        """Yields the votes, the result panel, the claim, the attack panel and what is said."""
        if now is None:
            yield ["", panels.hint(CERTIFY), None, panels.hint(ATTACK), panels.message(CHOOSE)]
            return
        try:
            last, seen = 0.0, Votes(torch.zeros(session.g.f.num_classes, dtype=torch.int64), 0)
            for step in session.certify(now.x, lam, n, alpha):
                if isinstance(step, Votes):
                    seen = step
                    if time.monotonic() - last >= LOOK:
                        last = time.monotonic()
                        counts = panels.votes(session, seen, int(n), None)
                        yield [counts, panels.waiting(int(n)), None, panels.hint(ATTACK), ""]
                    continue
                claim = Claim(now, step) if isinstance(step, Certificate) else None
                then = (
                    "Press “Attack” to see whether it holds." if claim else "It abstained: there is nothing to attack."
                )
                counts = panels.votes(session, seen, int(n), step.prediction)
                yield [counts, panels.outcome(session, step, now.label), claim, panels.hint(then), ""]
        except UcanError as error:
            yield ["", panels.hint(CERTIFY), None, panels.hint(ATTACK), panels.message(str(error))]

    return certify


def _attacker(session: Session) -> Callable[..., Iterator[str]]:
    def attack(claim: Claim | None, multiple: float) -> Iterator[str]:
        """Yields the attack panel, one card fuller each time."""
        if claim is None:
            yield panels.message(ATTACK)
            return
        certificate = claim.certificate
        done: list[Attacked] = []
        multiples = sorted({INSIDE, float(multiple)})
        total = len(multiples) * (1 if certificate.scope == "pipeline" else 2)
        yield panels.attacks(session, certificate, done, total)
        try:
            for one in session.attack(claim.chosen.x, certificate, multiples):
                done.append(one)
                yield panels.attacks(session, certificate, done, total - len(done))
        except UcanError as error:
            yield panels.message(str(error))

    return attack


def _pick(session: Session, number: int) -> Chosen:
    x, label = session.item(number)
    name = "" if label < 0 else f", label {session.class_name(label)}"
    return Chosen(x, label, f"input {number}{name}", number)


def _dropped(session: Session, path: Path) -> Chosen:
    return Chosen(session.decode(path), -1, path.name, None)


def _or_say(work: Callable[[], list[Any]], outputs: int) -> list[Any]:
    """What the work gives; if it refuses, everything stays as it is and the last output says why."""
    try:
        return work()
    except UcanError as error:
        return [gr.skip()] * (outputs - 1) + [panels.message(str(error))]


def _thumbs(session: Session, first: int, now: Chosen | None) -> str:
    return panels.thumbnails(session, session.numbers[first : first + THUMBS], None if now is None else now.number)


def _noise(session: Session, now: Chosen | None, scale: float, seed: int) -> str:
    return panels.hint(CHOOSE) if now is None else panels.noise(session.smoothed(scale), now.x, now.title, seed)


def serve(session: Session, host: str, port: int | None) -> tuple[gr.Blocks, str]:
    """Start the page in the background; it and its address. ``close()`` ends it."""
    page = build(session)
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
