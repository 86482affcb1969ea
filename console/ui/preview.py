"""Words for the preview of a plan."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, NamedTuple, assert_never

from rich.cells import cell_len

from console.core.action_rules import ONE_MORE_TRY
from console.core.backend import GONE, Action, Attempts, Change, UndoKind
from console.core.capabilities import NamesColumns
from console.core.confirm import Limits
from console.core.item import Condition, ItemKey
from console.core.pace import Canary, Now, Over, Pace, Rate
from console.core.plan import Plan
from console.core.text import countdown, keep_ends
from console.ui import cells, safe
from console.ui.cells import Cell, thousands
from console.ui.widgets.text_pane import Line

_LONGEST = 300
_MAX_LINES = 8
_MAX_VALUE = 40
_GAP = 2
_NARROWEST_ID = 12
_NOW = timedelta(seconds=30)
"""A time this near to the one at which the plan was made is shown as "now"."""
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:\.\d+)?(Z|[+-]\d\d:\d\d)?", re.ASCII)


class PlannedItem(NamedTuple):
    """An item of a plan, and how its columns change."""

    backend: str
    id: str
    changes: Mapping[str, str]
    """Column → "4 → 0", for the columns that change."""
    kept: Mapping[str, str] = MappingProxyType({})
    """Column → its value, for the columns that do not change."""
    columns: tuple[str, ...] = ()
    """All columns of its system, in their order."""


def planned_item(key: str, change: Change, backend: object, now: datetime) -> PlannedItem:
    """What a plan will do to one item. Columns without a name are numbered."""
    item = ItemKey.parse(key)
    if change.after == GONE:
        return PlannedItem(item.backend, item.id, {"row": "deleted"}, columns=("row",))
    before, after = (_named(item, image, backend) for image in (change.before, change.after))
    changed = {name: _pair(before.get(name), after[name], now) for name in after if before.get(name) != after[name]}
    kept = {name: _value(after[name], now) for name in after if name not in changed}
    return PlannedItem(item.backend, item.id, changed, kept, tuple(after))


def _named(key: ItemKey, image: Sequence[Any], backend: object) -> Mapping[str, Any]:
    if isinstance(backend, NamesColumns):
        return backend.columns_of(key, tuple(image))
    return {f"column {n}": value for n, value in enumerate(image, 1)}


def _pair(before: object, after: object, now: datetime) -> str:
    short = _value(before, now), "now" if _is_now(after, now) else _value(after, now)
    return " → ".join(short if short[0] != short[1] else (_value(before), _value(after)))


def _value(value: object, now: datetime | None = None) -> str:
    """A value in few characters. With a time `now`, times are shortened."""
    text = "–" if value is None else str(value)
    if now is not None and (found := _TIME.fullmatch(text)):
        day, time, zone = found.groups()
        here = "" if day == now.date().isoformat() else f"{day} "
        return f"{here}{time}{'Z' if zone in ('+00:00', 'Z') else zone or ''}"
    return text if len(text) <= _MAX_VALUE else f"{text[:_MAX_VALUE]}…"


def _is_now(value: object, now: datetime) -> bool:
    text = str(value)
    try:
        at = datetime.fromisoformat(text) if _TIME.fullmatch(text) else None
    except ValueError:
        return False
    if at is None:
        return False
    return abs((at if at.tzinfo else at.replace(tzinfo=now.tzinfo)) - now) < _NOW


def item_tables(items: Sequence[PlannedItem], width: int) -> Iterator[Line]:
    """The items as one table per system, with the names of the columns that change above them."""
    for backend in dict.fromkeys(item.backend for item in items):
        yield from _table(backend, [item for item in items if item.backend == backend], width)


def _table(backend: str, items: Sequence[PlannedItem], width: int) -> Iterator[Line]:
    changing = {name for item in items for name in item.changes}
    names = [name for name in dict.fromkeys(name for item in items for name in item.columns) if name in changing]
    sizes = [max(_width(name, (_shown(item, name).text for item in items)), 1) for name in names]
    ids = min(_width(backend, (item.id for item in items)), max(width // 3, _NARROWEST_ID))
    shown, used = [], 2 + ids
    for name, size in zip(names, sizes, strict=True):
        if used + _GAP + size <= width:
            shown.append((name, size))
            used += _GAP + size
    if any(item.changes and item.changes.keys().isdisjoint(dict(shown)) for item in items):
        yield [Cell(f"  {safe.fit(safe.line(backend), ids)}  "), Cell("change", "muted")]
        for item in items:
            change = "   ".join(f"{name} {words}" for name, words in item.changes.items())
            yield [Cell(f"  {safe.fit(safe.line(item.id), ids)}  ", "muted"), Cell(safe.line(change))]
        return
    titles = (Cell(safe.line(name), "muted") for name, _ in shown)
    sizes = [size for _, size in shown]
    yield [Cell(f"  {safe.fit(safe.line(backend), ids)}  "), *_row(titles, sizes)]
    for item in items:
        values = (_shown(item, name) for name, _ in shown)
        yield [Cell(f"  {safe.fit(safe.line(item.id), ids)}  ", "muted"), *_row(values, sizes)]
    if len(shown) < len(names):
        hidden = ", ".join(name for name in names if name not in dict(shown))
        yield [Cell("  "), Cell(f"no room for: {safe.line(hidden)}", "muted")]


def _shown(item: PlannedItem, column: str) -> Cell:
    """The change of a column, or its value if it stays as it is."""
    change = item.changes.get(column)
    return Cell(safe.line(item.kept.get(column, "")), "muted") if change is None else Cell(safe.line(change))


def _row(values: Iterable[Cell], sizes: Sequence[int]) -> Iterator[Cell]:
    for place, (value, size) in enumerate(zip(values, sizes, strict=True), 1):
        text = safe.fit(value.text, size)
        yield value._replace(text=f"{text}{' ' * _GAP}" if place < len(sizes) else text.rstrip())


def _width(title: str, texts: Iterable[str]) -> int:
    return max(cell_len(safe.line(text)) for text in (title, *texts))


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


def undo_words(undo: UndoKind, action: str) -> str:
    match undo:
        case UndoKind.EXACT if action == Action.REQUEUE:
            return "can be undone until a worker picks it up"
        case UndoKind.EXACT:
            return "can be undone until somebody changes it"
        case UndoKind.COMPENSATING:
            return "can be undone by a further change"
        case UndoKind.NONE:
            return "cannot be undone"
        case _:
            assert_never(undo)


def pace_words(pace: Pace, plan: Plan, limits: Limits) -> str:
    """What a pace means for the items of a plan."""
    match pace:
        case Now():
            return "all at once"
        case Over(window=window):
            return f"spread over {countdown(window)}, {_interval(window / max(plan.changes, 1))}"
        case Rate(per_second=rate):
            last = timedelta(seconds=max(plan.changes - 1, 0) / rate)
            return f"{_interval(timedelta(seconds=1 / rate))}, the last one in {countdown(last)}"
        case Canary() as canary:
            return _canary_words(canary, plan, limits)
        case _:
            assert_never(pace)


def _canary_words(canary: Canary, plan: Plan, limits: Limits) -> str:
    sizes = [part.changes for part in plan.parts if part.changes]
    steps = max((len(canary.steps(size)) for size in sizes), default=0) - 1
    where = " per system" if len(sizes) > 1 else ""
    if steps <= 0:
        return f"at most {canary.size}{where}, so all are in the canary"
    rest = "the rest" if steps == 1 else f"the rest in {steps} steps"
    return f"{canary.size}{where} first; {rest} while at most {limits.canary_failure_limit * 100:.0f}\u2009% fail again"


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


def attempts_words(attempts: Attempts, plan: Plan) -> str:
    """What a choice of attempts means for the items of a plan."""
    match attempts:
        case Attempts.RESET:
            return "counted from 0 again"
        case Attempts.KEEP:
            last = plan.warnings.get(ONE_MORE_TRY.text, 0)
            if not last:
                return "the counter does not change"
            return f"{thousands(last)} {'item gets' if last == 1 else 'items get'} one more try, then terminal"
        case _:
            assert_never(attempts)
