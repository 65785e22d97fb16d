"""The panels of the page as HTML, made from a session and its outcomes. Every number shown is rounded down."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from markupsafe import Markup

from ucan.app.noise import noise_maps, noisy_copies
from ucan.app.session import Attacked, Session
from ucan.arithmetic import REAL, ROUNDED, step_name
from ucan.certificate import SCOPES, Abstention, Certificate
from ucan.laws import norm_name
from ucan.report.markup import Macros
from ucan.report.pictures import as_delta, as_map, as_map_around_0, as_picture
from ucan.rounding import ceil_digits, ceil_significant, floor_digits, floor_sure
from ucan.scales import Scalar
from ucan.smoothed import SmoothedClassifier
from ucan.votes import Votes

_PANELS = Macros("ucan.app", "panels.html")
# Classes that a bar chart shows; the rest share one bar.
MOST_BARS = 10
# What a scope means, for readers who do not know the term.
PLAINLY = {
    "pipeline": "The noise is the same for every {thing}, or is drawn in a way that the proof covers, so the guarantee is "
    "about the classifier as you would deploy it: any change of the {thing} inside the region gives the same answer.",
    "frozen": "The noise was computed from this {thing}. The guarantee is about a classifier that keeps using exactly this "
    "noise. A deployed pipeline does not: it computes new noise from each {thing} it is given, and an attacker can use "
    "that. For the deployed pipeline nothing is guaranteed here.",
    "registry": "The guarantee is about the classifier together with its registry of the answers it has given.",
}


def heading(words: str, step: int | None = None) -> Markup:
    """The heading of a part of the page; ``step`` is its number."""
    return _PANELS.heading(words, step)


def header(session: Session) -> Markup:
    """The title, a short introduction, and the facts about the run."""
    g = session.g
    facts = (
        ("run", session.name),
        ("noise", f"{g.M.describe()} · {type(g.law).__name__}, λ = {g.law.scale:g}"),
        ("inputs", f"{_inputs(session)}, {g.f.num_classes} classes"),
    )
    return _PANELS.header(session, facts, thing(session))


def thumbnails(session: Session, numbers: Sequence[int], chosen: int | None) -> Markup:
    """Some inputs of the run's data as buttons."""
    pictures = []
    for number in numbers:
        x, label = session.item(number)
        name = "" if label < 0 else f", {session.class_name(label)}"
        pictures.append((number, f"input {number}{name}", as_picture(x[0])))
    return _PANELS.thumbnails(pictures, chosen)


def noise(g: SmoothedClassifier, x: torch.Tensor, title: str, seed: int) -> Markup:
    """The input, μ, σ, and some noisy copies."""
    mu, sigma, exact = noise_maps(g, x)
    noisy, shown = noisy_copies(g, x, 4, seed)
    figures = (
        (as_picture(x[0]), "the input", title),
        (as_map_around_0(mu), "μ, the noise's offset", _range(mu)),
        (
            as_map(sigma, 0.0, float(sigma.max())),
            "σ, the noise's scale",
            _range(sigma) + ("" if exact else ", estimated"),
        ),
    )
    strips = [("noisy copies", map(as_picture, noisy))]
    if not torch.equal(noisy, shown):
        strips.append(("… and what the classifier is shown of them", map(as_picture, shown)))
    return _PANELS.noise(figures, strips)


def votes(session: Session, seen: Votes, n: int, chosen: int | None) -> Markup:
    """The votes counted so far, of n; ``chosen`` is the class whose probability they bound, once all are counted."""
    return _PANELS.votes(int(seen.counts.sum()) + seen.invalid, n, _bars(session, seen, chosen))


def waiting(n: int) -> Markup:
    """The text in place of the certificate while votes are counted; no number is shown before all are."""
    return hint(
        f"Nothing is certified yet: the bound is about all {n:,} votes together, and the class it speaks of was chosen by "
        "other votes before these."
    )


def outcome(session: Session, result: Certificate | Abstention, label: int) -> Markup:
    """The answer with its certificate, or why there is none, and the settings that it rests on."""
    card = abstention(session, result) if isinstance(result, Abstention) else _certificate(session, result, label)
    return card + settings(session, result)


def abstention(session: Session, result: Abstention) -> Markup:
    """Why there is no certificate."""
    return _PANELS.abstention(result.reason_with(session.class_names), thing(session))


def settings(session: Session, result: Certificate | Abstention) -> Markup:
    """The settings that an outcome rests on, and the number of tries on this input."""
    evidence = result.evidence
    count, risk = session.risk(evidence.input_hash, evidence.held)
    at_most = ceil_digits(float(f"{risk:.12g}"), 4)  # sums of α are off by a last bit
    return _PANELS.settings(session, evidence, count, at_most, thing(session))


def sure(c: Certificate) -> str:
    """The probability in percent with which a certificate is true."""
    return floor_sure(c.evidence.alpha)


def within_budget(c: Certificate) -> str:
    """What a certificate says of its budget, as a further sentence; empty if it has none."""
    if c.budget is None or c.budget_factor is None:
        return ""
    return f" It also stays under {c.budget.words()}, ε = {floor_digits(c.budget_factor, 4)}."


def plainly(session: Session, scope: str) -> str:
    """What a scope means for an input of this session."""
    return PLAINLY[scope].format(thing=thing(session))


def thing(session: Session) -> str:
    """What an input of the session is called."""
    return "picture" if session.table is None else "row"


def adversary(session: Session) -> Markup:
    """What the attacker does, and where the answer must hold."""
    return _PANELS.adversary(session.g.M.scope == "frozen")


def attacks(session: Session, certificate: Certificate, done: Sequence[Attacked], left: int) -> Markup:
    """The outcomes of the attacks, with placeholders for those still running."""
    return _PANELS.attacks([_attack(session, certificate, one) for one in done], left)


def message(text: str) -> Markup:
    """A message that the user should read before going on."""
    return _PANELS.message(text)


def hint(text: str) -> Markup:
    """The text of an empty panel: what to do next."""
    return _PANELS.hint(text)


def verdict(certificate: Certificate, attacked: Attacked) -> tuple[str, str, str]:
    """(tone, headline, what it means) of one attack. The tones are good, bad, warn and plain."""
    attempt = attacked.attempt
    held = not attempt.broken and attacked.answer == certificate.prediction
    if attempt.size == 0:
        return "plain", "Nothing found", "No change that was tried costs the answer any votes; the original was tested."
    if attempt.size >= 1:
        headline = "changed" if attempt.broken else "held" if held else "too close to call"
        return "plain", f"Outside the region: {headline}", "No promise was made about this picture, and none is broken."
    if not attempt.broken and not held:
        return "warn", "Too close to call", "The votes at this picture neither keep nor change the answer clearly."
    if not attempt.covered:
        if held:
            return "plain", "Held, without a promise", "The certificate does not cover the live pipeline."
        return (
            "warn",
            "Broken inside the region",
            "No contradiction: this is the pipeline that computes its noise anew from the attacked picture, and the "
            "guarantee, of scope frozen, never covered it. Do not rely on this radius for a deployed classifier.",
        )
    if held:
        return "good", "Held, as guaranteed", "The answer stays what the certificate says."
    if attempt.bug:
        return (
            "bad",
            "Broken: a bug",
            "Certified again with ten times the votes, the claim still covers this picture. The radius, the noise or the "
            "votes are wrong: please report it.",
        )
    return (
        "bad",
        "Broken: a false certificate",
        f"α = {attempt.alpha:g} allows this for one certificate in {1 / attempt.alpha:,.0f}; certified again with ten times "
        "the votes, this picture is no longer covered.",
    )


# --- the parts ---


def _inputs(session: Session) -> str:
    table = session.table
    if table is None:
        return " × ".join(map(str, session.shape))
    return f"{len(table.varying)} columns that vary, {len(table.held)} held"


def _certificate(session: Session, c: Certificate, label: int) -> Markup:
    cap = session.smoothed(c.evidence.law.scale).alm_cap
    region, ball = c.region, isinstance(c.region.scale, Scalar) and c.norm in (None, c.region.norm)
    whole = c.evidence.arithmetic != REAL and not c.evidence.arithmetic.endswith(ROUNDED)
    within = f"{{δ : ‖Σ⁻¹δ‖ < {floor_digits(region.radius, 4)}}} in {norm_name(region.norm)}"
    beyond = "" if ball else f" The region itself, {within}, contains this ball and may reach further."
    return _PANELS.certificate(
        answer=session.class_name(c.prediction),
        label=None if label < 0 else session.class_name(label),
        p=floor_digits(c.p_lower, 4),
        norm=norm_name(c.norm if c.norm is not None else region.norm),
        radius=floor_digits(c.radius, 4),
        alm=floor_digits(c.alm, 4),
        capped="no cap is known: do not compare"
        if cap is None
        else f"under the cap {ceil_significant(cap, 4)} on the noise's scales",
        sure=sure(c),
        steps=f", by whole multiples of {step_name(c.evidence.arithmetic)}," if whole else "",
        beyond=beyond + within_budget(c),
        scope=c.scope,
        whose=SCOPES[c.scope],
        plainly=plainly(session, c.scope),
    )


def _attack(session: Session, certificate: Certificate, one: Attacked) -> Markup:
    delta = torch.zeros_like(one.point) if one.delta is None else one.delta
    norm = certificate.norm or certificate.region.norm
    answer = "no clear majority" if one.answer is None else session.class_name(one.answer)
    figures = (
        (as_picture(one.point[0]), "attacked", f"answer: {answer}"),
        (as_delta(delta[0]), "the change δ", f"up to ± {float(delta.abs().max()):.3f}"),
    )
    return _PANELS.attack(
        one.attempt,
        *verdict(certificate, one),
        figures=figures,
        rows=_bars(session, one.votes, certificate.prediction, 4),
        total=max(1, int(one.votes.counts.sum()) + one.votes.invalid),
        size=floor_digits(one.attempt.size, 3),
        length=floor_digits(float(torch.linalg.vector_norm(delta.double(), ord=norm)), 4),
        norm=norm_name(norm),
    )


def _bars(session: Session, votes: Votes, chosen: int | None, most: int = MOST_BARS) -> list[tuple[str, int, bool]]:
    """(name, votes, whether it is the chosen class) of each class; of more than ``most`` the largest, and the rest together."""
    counts = votes.counts.tolist()
    kept = list(range(len(counts)))
    if len(counts) > most:
        largest = sorted(kept, key=lambda c: (c != chosen, -counts[c]))[:most]
        kept = sorted(largest, key=lambda c: -counts[c])
    rows = [(session.class_name(c), counts[c], c == chosen) for c in kept]
    if len(kept) < len(counts):
        rows.append(("all others", sum(counts) - sum(counts[c] for c in kept), False))
    if votes.invalid:
        rows.append(("invalid", votes.invalid, False))
    return rows


def _range(values: np.ndarray) -> str:
    low, high = (f"{float(v):.3f}".replace("-", "−") for v in (values.min(), values.max()))
    return f"{low} everywhere" if low == high else f"{low} to {high}"
