"""What the page says, as HTML: functions of a session and its outcomes. Every number that is shown rounds down."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np
import torch

from ucan.app.noise import noise_maps, noisy_copies
from ucan.app.session import Attacked, Session
from ucan.arithmetic import REAL, ROUNDED, step_name
from ucan.certificate import SCOPES, Abstention, Certificate
from ucan.laws import norm_name
from ucan.report.pictures import as_delta, as_map, as_map_around_0, as_picture
from ucan.rounding import ceil_digits, floor_digits, floor_percent
from ucan.scales import Scalar
from ucan.smoothed import SmoothedClassifier
from ucan.votes import Votes

# Classes that a bar chart shows; the rest share one bar.
MOST_BARS = 10
# What a scope means for somebody who has never heard the word.
PLAINLY = {
    "pipeline": "The noise is the same for every picture, or is drawn anew in a way that the proof covers, so the guarantee "
    "is about the classifier as you would deploy it: whoever changes the picture inside the region gets the same answer.",
    "frozen": "The noise was made for this very picture. The guarantee is about a classifier that goes on using exactly "
    "this noise. A deployed pipeline does not: it computes the noise anew from whatever picture it is given, and an "
    "attacker can use that. For the deployed pipeline nothing is guaranteed here.",
    "registry": "The guarantee is about the classifier together with its memory of the answers it has given.",
}


def header(session: Session) -> str:
    """The title, what this is about for somebody new, and what is known of the run."""
    g = session.g
    facts = (
        ("run", session.name),
        ("noise", f"{g.M.describe()} · {type(g.law).__name__}, λ = {g.law.scale:g}"),
        ("inputs", " × ".join(map(str, session.shape)) + f", {g.f.num_classes} classes"),
    )
    chips = "".join(f"<li><span>{escape(name)}</span>{escape(value)}</li>" for name, value in facts)
    notes = "".join(f'<p class="u-note">{escape(note)}</p>' for note in session.notes)
    return f"""
<header class="u-head">
  <p class="u-brand">UCAN <span>explore</span></p>
  <h1>How far can you trust this answer?</h1>
  <p class="u-lead">The classifier is asked about thousands of noisy copies of one picture. From a clear vote follows a
  proof: a region around the picture in which the answer cannot change. Choose a picture, have it certified, and then let
  an attacker try.</p>
  <ul class="u-chips">{chips}<li class="u-scope-{g.M.scope}"><span>scope</span>{g.M.scope}</li></ul>{notes}
</header>"""


def thumbnails(session: Session, numbers: Sequence[int], chosen: int | None) -> str:
    """Some inputs of the run's data as buttons."""
    buttons = []
    for number in numbers:
        x, label = session.item(number)
        name = "" if label < 0 else f", {session.class_name(label)}"
        pressed = "true" if number == chosen else "false"
        title = escape(f"input {number}{name}")
        buttons.append(
            f'<button type="button" data-number="{number}" aria-pressed="{pressed}" title="{title}" aria-label="{title}">'
            f'<img src="{as_picture(x[0])}" alt=""></button>'
        )
    return f'<div class="u-thumbs">{"".join(buttons)}</div>'


def noise(g: SmoothedClassifier, x: torch.Tensor, title: str, seed: int) -> str:
    """The input, μ, σ, and some noisy copies."""
    mu, sigma, exact = noise_maps(g, x)
    noisy, shown = noisy_copies(g, x, 4, seed)
    about = "" if exact else ", estimated"
    figures = [
        _figure(as_picture(x[0]), "the input", escape(title)),
        _figure(as_map_around_0(mu), "μ, the noise's offset", _range(mu)),
        _figure(as_map(sigma, 0.0, float(sigma.max())), "σ, the noise's scale", _range(sigma) + about),
    ]
    parts = [f'<div class="u-figures">{"".join(figures)}</div>', _strip("noisy copies", noisy)]
    if not torch.equal(noisy, shown):
        parts.append(_strip("… and what the classifier is shown of them", shown))
    return "".join(parts)


def votes(session: Session, seen: Votes, n: int, chosen: int | None) -> str:
    """The votes counted so far, of n; ``chosen`` is the class that they were to bound, once all are there."""
    count = int(seen.counts.sum()) + seen.invalid
    return f"""
<section class="u-votes">
  <p class="u-count"><b>{count:,}</b> of {n:,} votes</p>
  <div class="u-progress"><i style="width:{100 * count / n:.1f}%"></i></div>
  {_bars(session, seen, n, chosen)}
</section>"""


def waiting(n: int) -> str:
    """What stands in the certificate's place while votes arrive: no number before its time."""
    return hint(
        f"Nothing is certified yet: the bound is about all {n:,} votes together, and the class it speaks of was chosen by "
        "other votes before these."
    )


def outcome(session: Session, result: Certificate | Abstention, label: int) -> str:
    """The answer with its certificate, or why there is none, and the settings that it rests on."""
    evidence = result.evidence
    card = _certificate(session, result, label) if isinstance(result, Certificate) else _abstention(result)
    other_scale = (
        f" The run's own λ is {session.scale:g}: the claim is just as true under this noise, but the network was not "
        "made for it, so expect other votes."
        if evidence.law.scale != session.scale
        else ""
    )
    return f"""{card}
{_tries(*session.risk(evidence.input_hash))}
<p class="u-quiet">n = {evidence.n:,} votes, and {evidence.n0:,} others that chose the class · α = {evidence.alpha:g} ·
λ = {evidence.law.scale:g} · seed {evidence.seed} · bound {evidence.bound}. The same numbers as <code>g.certify</code>
gives with these settings.{escape(other_scale)}</p>"""


def adversary(session: Session) -> str:
    """Who attacks what, and where the answer must hold."""
    text = (
        "The attacker knows the weights, the noise and the region, and looks for the change of the picture that hurts most. "
        "Inside the region the answer must hold; outside nothing was promised."
    )
    frozen = (
        "Two classifiers are attacked: the live pipeline, which computes its noise from the attacked picture, and the one "
        "whose noise stays frozen as it was for the original. Only the second is covered by a frozen guarantee."
    )
    more = f"<p>{frozen}</p>" if session.g.M.scope == "frozen" else ""
    return f'<div class="u-prose"><p>{text}</p>{more}</div>'


def attacks(session: Session, certificate: Certificate, done: Sequence[Attacked], left: int) -> str:
    """What the attacks came to, with placeholders for those still at work."""
    cards = [_attack(session, certificate, one) for one in done]
    cards += [
        '<article class="u-attack u-waiting" aria-busy="true"><p>The attacker is searching …</p></article>'
    ] * left
    proves = (
        '<p class="u-quiet">An attack is a search: that it finds nothing proves nothing, the certificate does. Each point is '
        "judged by votes that the search never saw.</p>"
    )
    return f'<div class="u-attacks">{"".join(cards)}</div>{proves}'


def message(text: str) -> str:
    """Something that the user should know before going on."""
    return f'<p class="u-alert" role="alert">{escape(text)}</p>'


def hint(text: str) -> str:
    """An empty panel's invitation."""
    return f'<p class="u-hint">{escape(text)}</p>'


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


def _certificate(session: Session, c: Certificate, label: int) -> str:
    name, norm = escape(session.class_name(c.prediction)), norm_name(c.norm if c.norm is not None else c.region.norm)
    sure, radius = floor_percent(1 - c.evidence.alpha, 3).rstrip("0").rstrip("."), floor_digits(c.radius, 4)
    cap = session.smoothed(c.evidence.law.scale).alm_cap
    capped = "no cap is known: do not compare" if cap is None else f"under the cap {cap:.4g} on the noise's scales"
    frozen = "as long as the noise stays frozen as it was computed for this picture, " if c.scope == "frozen" else ""
    region, ball = c.region, isinstance(c.region.scale, Scalar) and c.norm in (None, c.region.norm)
    whole = c.evidence.arithmetic != REAL and not c.evidence.arithmetic.endswith(ROUNDED)
    steps = f", by whole multiples of {step_name(c.evidence.arithmetic)}," if whole else ""
    within = f"{{δ : ‖Σ⁻¹δ‖ < {floor_digits(region.radius, 4)}}} in {norm_name(region.norm)}"
    beyond = "" if ball else f" The region itself, {within}, contains this ball and may reach further."
    if c.budget is not None and c.budget_factor is not None:
        beyond += f" It also stays under {escape(c.budget.words())}, ε = {floor_digits(c.budget_factor, 4)}."
    return f"""
<article class="u-card" aria-live="polite">
  <div class="u-answer"><span>answer</span><b>{name}</b>{_label(session, c.prediction, label)}</div>
  <dl class="u-tiles">
    <div><dt>probability p</dt><dd>≥ {floor_digits(c.p_lower, 4)}</dd><p>of this answer under noise</p></div>
    <div><dt>radius, {norm}</dt><dd>{radius}</dd><p>the largest ball in the region</p></div>
    <div><dt>ALM</dt><dd>{floor_digits(c.alm, 4)}</dd><p>a size, {capped}</p></div>
  </dl>
  <p>With probability at least {sure} %, {frozen}<b>no change of {norm} length below {radius}{steps} moves the answer away from
  {name}.</b>{beyond}</p>
  {_scope(c.scope)}
</article>"""


def _abstention(result: Abstention) -> str:
    return f"""
<article class="u-card u-abstained" aria-live="polite">
  <div class="u-answer"><span>answer</span><b>none</b></div>
  <p><b>It abstains:</b> {escape(result.reason)}. Nothing is claimed about this picture; more votes may help (by a bound
  that allows for the further try), another noise, or nothing.</p>
</article>"""


def _tries(count: int, risk: float) -> str:
    """What certifying one picture again costs; nothing to say of the first try."""
    if count < 2:
        return ""
    at_most = ceil_digits(round(risk, 9), 4)  # sums of α are off by a last bit
    return f"""<p class="u-quiet"><b>Try {count} on this picture.</b> The risk that any of the {count} answers is false is at
  most {at_most}: at each λ, once α for the first try, whose n was fixed before looking, and once α for all others
  together, whose bound holds for every n at once and is a little lower.</p>"""


def _scope(scope: str) -> str:
    return f"""<div class="u-scope u-scope-{scope}"><p><b>Scope {scope}.</b> The guarantee is about
  {escape(SCOPES[scope])}.</p><p>{escape(PLAINLY[scope])}</p></div>"""


def _label(session: Session, prediction: int, label: int) -> str:
    if label < 0:
        return ""
    if label == prediction:
        return '<em class="u-right">right, by its label</em>'
    return f'<em class="u-wrong">wrong: its label is {escape(session.class_name(label))}</em>'


def _attack(session: Session, certificate: Certificate, one: Attacked) -> str:
    attempt = one.attempt
    tone, headline, text = verdict(certificate, one)
    who = "Noise frozen at the original" if attempt.mode == "frozen" else "The live pipeline"
    delta = torch.zeros_like(one.point) if one.delta is None else one.delta
    length = float(torch.linalg.vector_norm(delta.double(), ord=certificate.norm or certificate.region.norm))
    norm = norm_name(certificate.norm or certificate.region.norm)
    answer = "no clear majority" if one.answer is None else session.class_name(one.answer)
    change = as_delta(delta[0])
    return f"""
<article class="u-attack u-{tone}">
  <h3>{headline}</h3>
  <p class="u-where">{who}, attacked within {attempt.factor:g} × the region</p>
  <div class="u-scene">
    <div class="u-figures">
      {_figure(as_picture(one.point[0]), "attacked", "answer: " + escape(answer))}
      {_figure(change, "the change δ", f"up to ± {float(delta.abs().max()):.3f}")}
    </div>
    {_bars(session, one.votes, int(one.votes.counts.sum()) + one.votes.invalid, certificate.prediction, 4)}
  </div>
  <p class="u-where">The point tested lies at {floor_digits(attempt.size, 3)} × the region, {floor_digits(length, 4)} away
  in {norm}.</p>
  <p>{escape(text)}</p>
</article>"""


def _bars(session: Session, votes: Votes, n: int, chosen: int | None, most: int = MOST_BARS) -> str:
    """One bar per class, as long as its share of n; beyond ``most`` classes the largest, and the rest together."""
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
    lines = "".join(
        f'<tr{" class=u-chosen" if mine else ""}><th scope="row">{escape(name)}</th>'
        f'<td class="u-bar"><i style="width:{100 * count / max(1, n):.2f}%"></i></td><td>{count:,}</td></tr>'
        for name, count, mine in rows
    )
    return f'<table class="u-bars" aria-label="votes by class"><tbody>{lines}</tbody></table>'


def _figure(source: str, name: str, caption: str) -> str:
    return f'<figure><img src="{source}" alt="{name}"><figcaption><b>{name}</b><br>{caption}</figcaption></figure>'


def _strip(name: str, pictures: torch.Tensor) -> str:
    images = "".join(f'<img src="{as_picture(picture)}" alt="">' for picture in pictures)
    return (
        f'<figure class="u-strip"><div>{images}</div><figcaption><b>{name}</b>, clipped to [0, 1]</figcaption></figure>'
    )


def _range(values: np.ndarray) -> str:
    low, high = (f"{float(v):.3f}".replace("-", "−") for v in (values.min(), values.max()))
    return f"{low} everywhere" if low == high else f"{low} to {high}"
