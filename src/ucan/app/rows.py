"""The row of a table at hand: chosen by its name, or changed by hand, with its panels as HTML."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from markupsafe import Markup

from ucan.app import panels
from ucan.app.session import Session
from ucan.arithmetic import ROUNDED
from ucan.certificate import SCOPES, Abstention, Certificate
from ucan.data.tables import Table
from ucan.errors import InvalidInput
from ucan.held import Held
from ucan.laws import norm_name
from ucan.reach import Reach
from ucan.report.markup import Macros
from ucan.report.noise import pixel_scale
from ucan.rounding import floor_digits, floor_grouped
from ucan.scales import as_scale
from ucan.tabular import row_answer

_ROWS = Macros("ucan.app", "rows.html")


@dataclass(frozen=True, eq=False)
class Row:
    """A row: the columns that vary (1, m) in their own units, the held ones, its label (−1: unknown), and its name.

    ``number`` is its place in the table; ``changed`` names the columns with another value than there.
    """

    x: torch.Tensor
    held: Held | None
    label: int
    name: str
    number: int
    changed: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class RowClaim:
    """A certificate, and the row that it is about."""

    row: Row
    certificate: Certificate


def table_of(session: Session) -> Table:
    """The table of a session that has one."""
    assert session.table is not None, "pictures have their own page"
    return session.table


def row_at(session: Session, number: int) -> Row:
    """One row of the table by its number."""
    x, label = session.item(number)
    table = table_of(session)
    name = f"row {number}" if table.names is None else table.name_of(number)
    return Row(x, table.held_at(number), label, name, number)


def row_named(session: Session, name: str) -> Row:
    """One row of the table by its name."""
    table, name = table_of(session), name.strip()
    found = [number for number in range(len(table)) if table.name_of(number) == name]
    if not found:
        raise InvalidInput(f"{table.name} has no row called {name!r}.")
    if len(found) > 1:
        raise InvalidInput(f"{table.name} has {len(found)} rows called {name!r}: choose one from the list.")
    return row_at(session, found[0])


def choices(session: Session, most: int) -> list[tuple[str, int]]:
    """The first rows of the run by name, with their numbers; names that occur twice are told apart."""
    table, numbers = table_of(session), session.numbers[:most]
    names = [table.name_of(number) for number in numbers]
    twice = len(set(names)) < len(names)
    return [(f"{name} (row {i})" if twice else name, i) for name, i in zip(names, numbers, strict=True)]


def changed_row(session: Session, number: int, text: str) -> Row:
    """A row of the table with other values in columns that vary, from a text such as "income=41000, age=30"."""
    table, row = table_of(session), row_at(session, number)
    places = {column.name: place for place, column in enumerate(table.varying)}
    held = {column.name for column in table.held}
    x, names = row.x.clone(), []
    for part in filter(None, map(str.strip, text.split(","))):
        name, equals, value = (piece.strip() for piece in part.rpartition("="))
        if not equals:
            raise InvalidInput(
                f'{part!r} is no change: write "{table.varying[0].name}=number", without thousands separators.'
            )
        if name in held:
            raise InvalidInput(
                f"{name} is held: no certificate covers a change of it. Choose a row that has another value."
            )
        if name not in places:
            raise InvalidInput(f"{table.name} has no column {name!r} that varies; these do: {', '.join(places)}.")
        x[0, places[name]] = _number(name, value)
        names.append(name)
    moved = tuple(name for name in dict.fromkeys(names) if x[0, places[name]] != row.x[0, places[name]])
    if not moved:
        return row
    session.smoothed(session.scale, row.held).check_inputs(x, session.plan.norm)
    grid = session.g.grid
    if grid is not None and not grid.holds(x):  # a certificate of the row covers changes by whole steps alone
        steps = ", ".join(f"{name} {table.steps[name]:g}" for name in moved)
        raise InvalidInput(f"the run is about changes by whole steps ({steps}): give whole multiples of them.")
    return replace(row, x=x, label=-1, name=f"{row.name}, changed", changed=moved)


def answer_of(session: Session, row: Row, certificate: Certificate) -> Reach:
    """What a certificate of a row says of every column."""
    reach = row_answer(table_of(session), row.number, certificate).reach
    assert reach is not None, "a certificate has a reach"
    return reach


# --- the panels ---


def row_panel(session: Session, row: Row, scale: float, claim: RowClaim | None = None) -> Markup:
    """The values of a row, the noise of each column, and the held ones marked.

    With the certificate of the row as it is in the table, a changed row says whether that certificate covers it.
    """
    table = table_of(session)
    values = iter(row.x[0].tolist())
    original = iter(session.item(row.number)[0][0].tolist())
    noise = iter(_noise(session, row, scale))
    held = {} if row.held is None else row.held.to_dict()
    lines = []
    for column in table.columns:
        if column.held:
            lines.append((column.name, _shown(held[column.name]), "", f"held ({column.held})", True))
            continue
        value, before, sigma = next(values), next(original), next(noise)
        was = f"was {_shown(before)}" if column.name in row.changed else ""
        lines.append((column.name, _shown(value), was, f"{sigma:.4g}", False))
    label = None if row.label < 0 else session.class_name(row.label)
    return _ROWS.values(row.name, label, lines, *_covered(session, row, claim))


def row_outcome(session: Session, row: Row, result: Certificate | Abstention) -> Markup:
    """The answer in words with the reach of every column, or why there is none, and the settings that it rests on."""
    settings = panels.settings(session, result)
    if isinstance(result, Abstention):
        return panels.abstention(session, result) + settings
    reach, region = answer_of(session, row, result), result.region
    moves = [(m.column, floor_grouped(m.alone), floor_grouped(m.together)) for m in reach.moves]
    card = _ROWS.certificate(
        answer=session.class_name(result.prediction),
        label=None if row.label < 0 else session.class_name(row.label),
        p=floor_digits(result.p_lower, 4),
        norm=norm_name(region.norm),
        radius=floor_digits(region.radius, 4),
        sure=panels.sure(result),
        words=reach.words(),
        budget=panels.within_budget(result),
        moves=moves,
        held=reach.held,
        scope=result.scope,
        whose=SCOPES[result.scope],
        plainly=panels.plainly(session, result.scope),
    )
    return card + settings


def _covered(session: Session, row: Row, claim: RowClaim | None) -> tuple[bool, str]:
    """Whether the certificate of the row as it is in the table covers the changed one, in words; empty if there is none."""
    if not row.changed or claim is None or claim.row.changed or claim.row.number != row.number:
        return False, ""
    certificate = claim.certificate
    if certificate.evidence.arithmetic.endswith(ROUNDED):  # it is about the rounded row, so the change is another one
        return False, ""
    inside = bool(certificate.region.contains((row.x - claim.row.x).double().cpu())[0])
    answer = session.class_name(certificate.prediction)
    if inside and certificate.scope == "pipeline":
        noise = f"λ = {certificate.evidence.law.scale:g}"
        return True, (
            f"The certificate of {claim.row.name} covers this change: under its noise ({noise}) the answer is "
            f"{answer} here, too, with probability at least {panels.sure(certificate)} %."
        )
    return False, f"The certificate of {claim.row.name} does not cover this change: it says nothing of the answer here."


def _noise(session: Session, row: Row, scale: float) -> list[float]:
    """λσ of each column that varies: the lengths of Σ's rows."""
    g = session.smoothed(scale, row.held)
    with torch.no_grad():
        _, sigma = g.M.at(row.x)(row.x)
    known = pixel_scale(as_scale(sigma).to("cpu"), (1, row.x.shape[1]))
    return [math.nan] * row.x.shape[1] if known is None else (g.law.scale * known).tolist()


def _number(name: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InvalidInput(f"{name} takes a number, got {value!r}.")
    return number


def _shown(value: float | str) -> str:
    """A value of a row exactly as it is: thousands apart, no digit left out."""
    if isinstance(value, str):
        return value
    return f"{int(value):,}" if float(value).is_integer() and abs(value) < 1e15 else repr(value)
