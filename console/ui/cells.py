"""Formats the fields of an item as cells of a list."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from rich.cells import cell_len

from console.actions.tones import tone
from console.core.item import Condition, Item
from console.core.query import SortField
from console.core.text import FAR, ago, countdown, instant, telling_line
from console.ui import safe

if TYPE_CHECKING:
    from console.core.backend import Count

_ZERO = timedelta(0)
_SOON_GONE = timedelta(days=1)
_AN_HOUR = timedelta(hours=1)
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
    short: str = ""
    """Its title where the whole one has no room."""
    share: float = 0.0
    """The part of the list's width it has before columns of a lower rank are shown."""

    def heading(self, width: int) -> str:
        return self.title if len(self.title) <= width else self.short or self.title


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
        if item.expires_at is not None and (left := item.expires_at - now) < _SOON_GONE:
            return Cell(f"gone <{max(left, _ZERO) // _AN_HOUR + 1}h", "warning")
        return Cell(
            "never" if item.condition in (Condition.TERMINAL, Condition.FAILED, Condition.STUCK) else "", "muted"
        )
    ahead = window.earliest - now
    if ahead <= _ZERO:
        return Cell("due now", "calm")
    if ahead >= FAR:
        return Cell(f"{window.earliest:%Y-%m-%d}", "warning")
    return Cell(f"{'in' if window.exact else '≥'} {countdown(ahead)}", "calm")


def expiry(item: Item, now: datetime) -> Cell:
    """When its system deletes it. Within a day it is a warning."""
    if item.expires_at is None:
        return Cell("")
    left = item.expires_at - now
    if left >= FAR:
        return Cell(f"{item.expires_at:%Y-%m-%d}", "muted")
    tone = "warning" if left < _SOON_GONE else "muted"
    return Cell(f"gone in {countdown(left)}" if left > _ZERO else "gone soon", tone)


def error(item: Item, now: datetime) -> Cell:  # noqa: ARG001
    return Cell(safe.line(telling_line(item.error))) if item.error else Cell(safe.line(item.verdict.why), "muted")


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
    """A number; one of 10 000 or more with thin spaces between groups of three digits."""
    return f"{number:,}".replace(",", "\u2009") if number >= 10_000 else str(number)


def with_more(names: Sequence[str], width: int) -> str:
    """The names, or as many as fit and how many more there are."""
    text = ", ".join(names)
    for shown in range(len(names) - 1, 0, -1):
        if cell_len(text) <= width:
            break
        text = f"{', '.join(names[:shown])} +{len(names) - shown}"
    return text


Render = Callable[[Item, datetime], Cell]

ITEM_COLUMNS: tuple[tuple[Column, Render], ...] = (
    (Column("condition", 10, 9), state),
    (Column("system", 8, 7, grows=2, most=16, sort=SortField.BACKEND), backend),
    (Column("id", 9, 8, grows=1, most=36, sort=SortField.ID), identity),
    (Column("attempts", 8, 5, right=True, sort=SortField.ATTEMPTS), attempts),
    (Column("next retry", 10, 6, right=True, sort=SortField.NEXT, ticks=True), next_retry),
    (Column("updated", 7, 3, right=True, sort=SortField.UPDATED, ticks=True), age),
    (Column("type", 8, 1, grows=1, most=20, sort=SortField.TYPE), kind),
    (Column("error", 12, 10, grows=8, share=0.23), error),
)
"""In the order they are shown, each with the function that formats it."""
