"""Item → cells; the only place an item becomes words."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from console.core.item import Condition, Item
from console.core.query import SortField
from console.core.text import CONDITION_WORDS, FAR, ago, countdown, first_line, instant
from console.ui import safe

if TYPE_CHECKING:
    from console.core.backend import Count

_ZERO = timedelta(0)
_A_MINUTE = timedelta(minutes=1)
"""Two clocks may differ that much without a word."""


class Cell(NamedTuple):
    """A harmless text and what it means; the theme decides what a tone looks like."""

    text: str
    tone: str = "plain"
    link: str = ""
    """Where the terminal leads from here; an address made harmless already."""


class Column(NamedTuple):
    """A column of a list. When there is no room the one with the lowest rank goes first."""

    title: str
    width: int
    rank: int
    right: bool = False
    grows: int = 0
    """Its share of the width that is left over; its `width` is then the least it takes."""
    most: int = 1_000
    sort: SortField | None = None
    ticks: bool = False


TONES: dict[Condition, str] = {
    Condition.WAITING: "muted",
    Condition.RUNNING: "good",
    Condition.RETRYING: "calm",
    Condition.FAILED: "warning",
    Condition.TERMINAL: "error",
    Condition.STUCK: "error",
    Condition.DONE: "good",
    Condition.CANCELLED: "muted",
    Condition.UNKNOWN: "warning",
}


def condition(of: Condition) -> Cell:
    symbol, word = CONDITION_WORDS[of]
    return Cell(f"{symbol} {word}", TONES[of])


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
    if window is None:
        if item.verdict.will_run_again:
            return Cell("by itself", "calm")
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
    """The first line, but of a Python traceback the one that names the exception."""
    first = first_line(error[:1000])
    if not first.startswith("Traceback (most recent call last)"):
        return first
    return next((line for line in reversed(error.splitlines()) if line and not line[0].isspace()), first)


def age(item: Item, now: datetime) -> Cell:
    moment = item.updated_at or item.created_at
    return Cell("" if moment is None else short_age(now - moment), "muted")


def moment(at: datetime) -> str:
    """To the second; nobody reads further at night."""
    return instant(at.replace(microsecond=0))


def short_age(span: timedelta) -> str:
    """`4m`, `3d`, `2y`: the largest unit only; `-3m` for what is dated ahead of the clock."""
    shown = ago(abs(span)).removesuffix(" ago")
    return f"-{shown}" if span < -_A_MINUTE else shown


def _short(number: int) -> str:
    """In three or four characters, whatever a row claims."""
    for size, unit in ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**4, "k")):
        if abs(number) >= size:
            count = number // size if unit != "k" else number // 1000
            return f"{count}{unit}" if abs(count) < 10_000 else "∞" if number > 0 else "-∞"
    return str(number)


def count(value: Count) -> str:
    return thousands(value.value) if value.exact else f"≥ {thousands(value.value)}"


def thousands(number: int) -> str:
    """`12 345` with thin gaps: digits are read in threes."""
    return f"{number:,}".replace(",", "\u2009") if number >= 10_000 else str(number)


Render = Callable[[Item, datetime], Cell]

ITEM_COLUMNS: tuple[tuple[Column, Render], ...] = (
    (Column("backend", 8, 4, grows=1, most=18), backend),
    (Column("item", 10, 9, grows=2, most=40, sort=SortField.ID), identity),
    (Column("type", 8, 1, grows=1, most=22, sort=SortField.TYPE), kind),
    (Column("condition", 11, 8), state),
    (Column("tries", 5, 6, right=True, sort=SortField.ATTEMPTS), attempts),
    (Column("next retry", 10, 7, right=True, sort=SortField.NEXT, ticks=True), next_retry),
    (Column("error", 20, 5, grows=6), error),
    (Column("age", 4, 3, right=True, sort=SortField.UPDATED, ticks=True), age),
)
"""In the order they are shown."""
