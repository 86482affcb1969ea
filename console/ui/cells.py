"""Formats the fields of an item as cells of a list."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple, assert_never

from console.core.item import Condition, Item
from console.core.query import SortField
from console.core.text import FAR, ago, countdown, first_line, instant
from console.ui import safe

if TYPE_CHECKING:
    from console.core.backend import Count

_ZERO = timedelta(0)
_A_MINUTE = timedelta(minutes=1)
"""Clocks may differ this much; smaller negative ages are shown as 0."""


class Cell(NamedTuple):
    """A safe text and its tone; the theme maps tones to colours."""

    text: str
    tone: str = "plain"
    link: str = ""
    """The address it links to, already checked."""


class Column(NamedTuple):
    """A column of a list. In a narrow terminal the columns with the lowest rank are left out."""

    title: str
    width: int
    rank: int
    right: bool = False
    grows: int = 0
    """Its share of the spare width; `width` is then the minimum."""
    most: int = 1_000
    sort: SortField | None = None
    ticks: bool = False
    """Its text depends on the time."""


def tone(of: Condition) -> str:
    """The tone of a condition."""
    match of:
        case Condition.WAITING | Condition.CANCELLED:
            return "muted"
        case Condition.RUNNING | Condition.DONE:
            return "good"
        case Condition.RETRYING:
            return "calm"
        case Condition.FAILED | Condition.UNKNOWN:
            return "warning"
        case Condition.TERMINAL | Condition.STUCK:
            return "error"
        case _:
            assert_never(of)


def condition(of: Condition) -> Cell:
    return Cell(f"{of.symbol} {of}", tone(of))


def backend(item: Item, now: datetime) -> Cell:  # noqa: ARG001
    return Cell(safe.line(item.key.backend), "muted")


def identity(item: Item, now: datetime) -> Cell:  # noqa: ARG001
    return Cell(safe.line(item.key.id))


def kind(item: Item, now: datetime) -> Cell:  # noqa: ARG001
    return Cell(safe.line(item.type), "muted")


def state(item: Item, now: datetime) -> Cell:  # noqa: ARG001
    return condition(item.condition)


def attempts(item: Item, now: datetime) -> Cell:  # noqa: ARG001
    if item.max_attempts is None:
        return Cell(_short(item.attempts))
    used_up = item.attempts >= item.max_attempts
    return Cell(f"{_short(item.attempts)}/{_short(item.max_attempts)}", "error" if used_up else "plain")


def next_retry(item: Item, now: datetime) -> Cell:
    window = item.verdict.next_retry
    if item.verdict.will_run_again is None:
        return Cell("not known", "warning")
    if window is None:
        if item.verdict.will_run_again:
            return Cell("automatic", "calm")
        return Cell(
            "never" if item.condition in (Condition.TERMINAL, Condition.FAILED, Condition.STUCK) else "", "muted"
        )
    ahead = window.earliest - now
    if ahead <= _ZERO:
        return Cell("due now", "calm")
    if ahead >= FAR:
        return Cell(f"{window.earliest:%Y-%m-%d}", "warning")
    return Cell(f"{'in' if window.exact else '≥'} {countdown(ahead)}", "calm")


def error(item: Item, now: datetime) -> Cell:  # noqa: ARG001
    return Cell(safe.line(telling_line(item.error)) if item.error else "")


def telling_line(error: str) -> str:
    """The first line; of a Python traceback the line that names the exception."""
    first = first_line(error[:1000])
    if not first.startswith("Traceback (most recent call last)"):
        return first
    return next((line for line in reversed(error.splitlines()) if line and not line[0].isspace()), first)


def age(item: Item, now: datetime) -> Cell:
    moment = item.updated_at or item.created_at
    return Cell("" if moment is None else short_age(now - moment), "muted")


def moment(at: datetime) -> str:
    """A time to the second."""
    return instant(at.replace(microsecond=0))


def short_age(span: timedelta) -> str:
    """An age in its largest unit, such as `4m` or `3d`; `-3m` for a time in the future."""
    shown = ago(abs(span)).removesuffix(" ago")
    return f"-{shown}" if span < -_A_MINUTE else shown


def _short(number: int) -> str:
    """A number in at most five characters."""
    for size, unit in ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**4, "k")):
        if abs(number) >= size:
            count = number // size if unit != "k" else number // 1000
            return f"{count}{unit}" if abs(count) < 10_000 else "∞" if number > 0 else "-∞"
    return str(number)


def count(value: Count) -> str:
    return f"{value.sign}{thousands(value.value)}"


def thousands(number: int) -> str:
    """A number with thin spaces between groups of three digits, from 10 000 on."""
    return f"{number:,}".replace(",", "\u2009") if number >= 10_000 else str(number)


Render = Callable[[Item, datetime], Cell]

ITEM_COLUMNS: tuple[tuple[Column, Render], ...] = (
    (Column("system", 8, 4, grows=1, most=18), backend),
    (Column("id", 10, 9, grows=2, most=40, sort=SortField.ID), identity),
    (Column("type", 8, 1, grows=1, most=22, sort=SortField.TYPE), kind),
    (Column("condition", 11, 8), state),
    (Column("attempts", 8, 6, right=True, sort=SortField.ATTEMPTS), attempts),
    (Column("next retry", 10, 7, right=True, sort=SortField.NEXT, ticks=True), next_retry),
    (Column("error", 18, 5, grows=6), error),
    (Column("updated", 7, 3, right=True, sort=SortField.UPDATED, ticks=True), age),
)
"""In the order they are shown, each with the function that formats it."""
