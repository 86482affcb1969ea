"""The words of a plan's preview."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import date

from console.core.backend import Budget, Change, Image, UndoKind
from console.core.item import Condition
from console.core.plan import Plan
from console.core.release import Canary, Now, Over, Rate
from console.core.text import CONDITION_WORDS, countdown
from console.ui import cells, safe
from console.ui.cells import Cell, thousands
from console.ui.widgets.text_pane import Line

UNDO = {
    UndoKind.EXACT: "can be undone exactly while nobody has claimed it",
    UndoKind.COMPENSATING: "can be undone by a compensating change",
    UndoKind.NONE: "cannot be undone",
}
_LONGEST_LIST = 8
_LONGEST_VALUE = 60
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:\.\d+)?(Z|[+-]\d\d:\d\d)?", re.ASCII)


def becoming(change: Change, today: date) -> str:
    """What the guard compares, and what it would be set to. Times are shortened, unless that would hide a change."""
    pairs = zip(_flat(change.before), _flat(change.after), strict=False)
    return " · ".join(_pair(was, will, today) for was, will in pairs)


def _flat(image: Image) -> Iterator[object]:
    """A unit of several parts, one after the other."""
    for value in image:
        yield from value if isinstance(value, (list, tuple)) else (value,)


def _pair(was: object, will: object, today: date) -> str:
    if was == will:
        return _value(was, today)
    short = _value(was, today), _value(will, today)
    return " → ".join(short if short[0] != short[1] else (_value(was), _value(will)))


def _value(value: object, today: date | None = None) -> str:
    text = "–" if value is None else str(value)
    if today is not None and (found := _TIME.fullmatch(text)):
        day, time, zone = found.groups()
        return f"{'' if day == today.isoformat() else f'{day} '}{time}{'Z' if zone in ('+00:00', 'Z') else zone or ''}"
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"


def counted(title: str, counts: Mapping[str, int], tone: str) -> Iterator[Line]:
    if not counts:
        return
    yield []
    yield [Cell(title, "muted")]
    ranked = sorted(counts.items(), key=lambda pair: -pair[1])
    for text, count in ranked[:_LONGEST_LIST]:
        yield [Cell(f"  {safe.fit(thousands(count), 8, right=True)}  "), Cell(safe.line(text, 300), tone)]
    if len(ranked) > _LONGEST_LIST:
        rest = sum(count for _, count in ranked[_LONGEST_LIST:])
        yield [
            Cell(f"  {safe.fit(thousands(rest), 8, right=True)}  "),
            Cell(f"{len(ranked) - _LONGEST_LIST} others", "muted"),
        ]


def condition(name: str) -> str:
    return cells.condition(Condition(name)).text if name in CONDITION_WORDS else name


def release_words(plan: Plan) -> str:
    match plan.release:
        case Now():
            return "all at once, now"
        case Over(window=window):
            each = window / max(plan.changes, 1)
            return f"spread over {countdown(window)}, one every {max(each.total_seconds(), 0.001):.3g} s"
        case Rate(per_second=rate):
            return f"{rate:g} per second, the last one {plan.changes / rate:.0f} s later"
        case Canary() as canary:
            steps = max((len(canary.steps(share.changes)) for share in plan.shares), default=0)
            return f"{canary.size} per backend first; the rest in {max(steps - 1, 0)} growing steps once those succeed"


def budget_words(budget: Budget) -> str:
    if budget is Budget.FRESH:
        return "fresh: attempts start again at 0"
    return "keep: attempts stay as they are; an item with none left gets one more try"
