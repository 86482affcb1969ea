"""What is known about an item, as lines: for the Item screen and the preview beside a list."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from itertools import groupby
from typing import NamedTuple

from rich.cells import cell_len

from console.core.cause_life import CauseLife
from console.core.item import Attempt, Detail, Item
from console.core.text import ago, countdown, telling_line
from console.ui import cells, safe
from console.ui.cells import Cell
from console.ui.widgets.text_pane import Line

RUNS_AGAIN = {
    True: Cell("runs again automatically", "calm"),
    False: Cell("does not run again automatically", "muted"),
    None: Cell("cannot tell whether it runs again", "warning"),
}
_ROW_VALUE = 4_000
_LONGEST_NAME = 30


class ItemText(NamedTuple):
    """An item, its details if they were read, the overrides of it, and the time to compare with."""

    item: Item
    detail: Detail | None
    overrides: Sequence[tuple[datetime, str]]
    now: datetime
    runbook: str | None = None
    life: CauseLife | None = None
    """That of its cause."""

    def verdict(self) -> Iterator[Line]:
        state = cells.condition(self.item.condition)
        yield [Cell(f"{state.text}  ", state.tone), Cell(safe.line(self.item.verdict.why, 400))]
        yield [RUNS_AGAIN[self.item.verdict.will_run_again]]

    def facts(self, *, all: bool = True) -> Iterator[Line]:
        """Names and values: all of them, or only those that a list does not show in full."""
        item, now = self.item, self.now
        if item.type:
            yield pair("type", item.type)
        if all:
            yield pair("native status", item.native_status)
        yield pair("attempts", cells.attempts(item, now).text)
        window = item.verdict.next_retry
        if window is not None:
            until = "" if window.exact else f" – {compact(window.latest, now)}"
            when = f"{compact(window.earliest, now)}{until}"
            yield pair("next retry", f"{when} · {cells.next_retry(item, now).text}")
        elif all:
            yield pair("recoverable", {None: "unclear", True: "yes", False: "no"}[item.verdict.recoverable])
        for name, at in (("created", item.created_at), ("updated", item.updated_at)):
            if at is not None and (all or name == "updated"):
                yield pair(name, when_and_ago(at, now))
        if item.expires_at is not None:
            left = cells.expiry(item, now)
            yield pair("expires", f"{compact(item.expires_at, now)} · {left.text}", left.tone)
        if item.signature is not None:
            yield pair("cause", f"{item.signature} · {self.life.detail}" if self.life is not None else item.signature)
        if self.runbook:
            yield pair("runbook", self.runbook, "link", safe.address(self.runbook))
        for note in item.notes:
            yield [Cell("⚠ ", "warning"), Cell(safe.line(note, 400))]
        if all and self.detail:
            yield from (pair(name, value) for name, value in self.detail.extra)

    def error(self) -> Iterator[Line]:
        text = self.detail.error if self.detail else self.item.error
        if not text:
            yield [Cell("no error text", "muted")]
            return
        yield from ([Cell(line)] for line in safe.lines(text))

    def timeline(self) -> Iterator[Line]:
        """What comes next, then what happened, the newest first."""
        schedule = self.detail.schedule if self.detail else ()
        if schedule:
            yield [Cell("Next", "muted")]
            yield from ([Cell("  ○ ", "calm"), Cell(safe.line(step))] for step in schedule)
            yield []
        yield [Cell("History", "muted")]
        yield from self.history()

    def history(self, most: int | None = None) -> Iterator[Line]:
        attempts = self.detail.attempts if self.detail else ()
        if not attempts and not self.overrides:
            yield [Cell("  no history is stored", "muted")]
            return
        newest_first = list(reversed(attempts))[:most]
        shown = {telling(self.detail.error if self.detail else self.item.error)}
        for error, same in groupby(newest_first, key=lambda attempt: attempt.error):
            yield from attempt_lines(list(same), error, self.now, known=shown)
            shown.add(telling(error))
        for at, words in self.overrides:
            yield [Cell("  ◆ ", "accent"), Cell(safe.line(f"{when_and_ago(at, self.now)}  {words}", 400))]

    def native(self) -> Iterator[Line]:
        if self.detail is None:
            yield [Cell("reading…", "muted")]
            return
        width = min(max((cell_len(safe.line(name)) for name, _ in self.detail.native), default=0), _LONGEST_NAME)
        for name, value in self.detail.native:
            title = Cell(f"{safe.fit(safe.line(name), width)}  ", "muted")
            if value is None:
                yield [title, Cell("NULL", "muted")]
                continue
            first, *more = safe.lines(value, _ROW_VALUE)
            yield [title, Cell(first)]
            yield from ([Cell(" " * (width + 2)), Cell(line)] for line in more)


def telling(error: str | None) -> str:
    return telling_line(error) if error else ""


def pair(name: str, value: str, tone: str = "plain", link: str = "") -> Line:
    return [Cell(f"{safe.fit(safe.line(name), 13)} ", "muted"), Cell(safe.line(value, 1_000), tone, link)]


def compact(at: datetime, now: datetime) -> str:
    """A time without the day if that is today."""
    return f"{at:%H:%M:%S}" if at.date() == now.date() else f"{at:%Y-%m-%d %H:%M:%S}"


def when_and_ago(at: datetime, now: datetime) -> str:
    return f"{compact(at, now)} · {ago(now - at)}"


def attempt_lines(
    attempts: Sequence[Attempt], error: str | None, now: datetime, known: Collection[str]
) -> Iterator[Line]:
    """Consecutive attempts with the same error: one line each, the error once, and not if it is `known`."""
    for attempt in attempts:
        parts = [f"{attempt.number}" if attempt.number is not None else "", attempt.outcome]
        parts.append("time unknown" if attempt.at is None else when_and_ago(attempt.at, now))
        if attempt.took is not None:
            parts.append(f"took {countdown(attempt.took)}")
        if attempt.next_delay is not None:
            parts.append(f"then waited {countdown(attempt.next_delay)}")
        bad = attempt.error is not None
        text = "  ".join(part for part in parts if part)
        yield [Cell("  ● ", "error" if bad else "good"), Cell(safe.line(text, 400))]
    if error and (line := telling(error)) not in known:
        yield [Cell("  │ ", "muted"), Cell(safe.line(line), "muted")]
