"""Words for the preview of a plan."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import date, timedelta
from typing import assert_never

from console.core.backend import Attempts, Change, Image, UndoKind
from console.core.item import Condition
from console.core.pace import Canary, Now, Over, Rate
from console.core.plan import Plan
from console.core.text import countdown, keep_ends
from console.ui import cells, safe
from console.ui.cells import Cell, thousands
from console.ui.widgets.text_pane import Line

_LONGEST = 300
_MAX_LINES = 8
_MAX_VALUE = 60
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:\.\d+)?(Z|[+-]\d\d:\d\d)?", re.ASCII)


def change_words(change: Change, today: date) -> str:
    """The values before and after a change. Times are shortened, unless that would hide the change."""
    pairs = zip(_flat(change.before), _flat(change.after), strict=False)
    return " · ".join(_pair(before, after, today) for before, after in pairs)


def _flat(image: Image) -> Iterator[object]:
    for value in image:
        yield from value if isinstance(value, (list, tuple)) else (value,)


def _pair(before: object, after: object, today: date) -> str:
    if before == after:
        return _value(before, today)
    short = _value(before, today), _value(after, today)
    return " → ".join(short if short[0] != short[1] else (_value(before), _value(after)))


def _value(value: object, today: date | None = None) -> str:
    text = "–" if value is None else str(value)
    if today is not None and (found := _TIME.fullmatch(text)):
        day, time, zone = found.groups()
        return f"{'' if day == today.isoformat() else f'{day} '}{time}{'Z' if zone in ('+00:00', 'Z') else zone or ''}"
    return text if len(text) <= _MAX_VALUE else f"{text[:_MAX_VALUE]}…"


def counted(title: str, counts: Mapping[str, int], tone: str) -> Iterator[Line]:
    """A title and its texts with their counts, the most frequent first."""
    if not counts:
        return
    yield []
    yield [Cell(title, "muted")]
    ranked = sorted(counts.items(), key=lambda pair: -pair[1])
    for text, count in ranked[:_MAX_LINES]:
        shown = safe.line(keep_ends(text, _LONGEST), _LONGEST)
        yield [Cell(f"  {safe.fit(thousands(count), 8, right=True)}  "), Cell(shown, tone)]
    if len(ranked) > _MAX_LINES:
        rest = sum(count for _, count in ranked[_MAX_LINES:])
        yield [
            Cell(f"  {safe.fit(thousands(rest), 8, right=True)}  "),
            Cell(f"{len(ranked) - _MAX_LINES} others", "muted"),
        ]


def condition(name: str) -> str:
    return cells.condition(Condition(name)).text if name in list(Condition) else name


def undo_words(undo: UndoKind) -> str:
    match undo:
        case UndoKind.EXACT:
            return "can be undone until a worker picks it up"
        case UndoKind.COMPENSATING:
            return "can be undone by a further change"
        case UndoKind.NONE:
            return "cannot be undone"
        case _:
            assert_never(undo)


def pace_words(plan: Plan) -> str:
    match plan.pace:
        case Now():
            return "all at once, now"
        case Over(window=window):
            return f"spread over {countdown(window)}, {_interval(window / max(plan.changes, 1))}"
        case Rate(per_second=rate):
            last = timedelta(seconds=max(plan.changes - 1, 0) / rate)
            return f"{_interval(timedelta(seconds=1 / rate))}, the last one in {countdown(last)}"
        case Canary() as canary:
            steps = max((len(canary.steps(part.changes)) for part in plan.parts), default=0) - 1
            if steps <= 0:
                return f"at most {canary.size} per system, so all are in the canary"
            rest = "the rest" if steps == 1 else f"the rest in {steps} steps"
            return f"{canary.size} per system first; if they succeed, {rest}"
        case _:
            assert_never(plan.pace)


def _interval(each: timedelta) -> str:
    """How often an item is due."""
    seconds = each.total_seconds()
    if seconds < 1:
        return f"{1 / max(seconds, 1e-6):.3g} per second"
    if seconds < 60:
        return f"one every {seconds:.3g} s"
    if seconds < 3600:
        return f"one every {seconds / 60:.3g} min"
    return f"one every {seconds / 3600:.3g} h"


def attempts_words(attempts: Attempts) -> str:
    match attempts:
        case Attempts.RESET:
            return "reset: counted from 0 again"
        case Attempts.KEEP:
            return "keep: an item with none left gets one more try, then is terminal"
        case _:
            assert_never(attempts)
