"""The words of a plan's preview."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from console.core.backend import Budget, Change, UndoKind
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


def becoming(change: Change) -> str:
    """What the guard compares, and what it would be set to."""
    pairs = ((_value(was), _value(will)) for was, will in zip(change.before, change.after, strict=False))
    return " · ".join(was if was == will else f"{was} → {will}" for was, will in pairs)


def _value(value: object) -> str:
    text = "–" if value is None else str(value)
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
