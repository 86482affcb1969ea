"""All tasks of a queue at one moment, in the orders that they are paged in."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from threading import Lock
from typing import Any, NamedTuple

from console.core.query import Cursor, Sort, SortField
from console.sql.values import text
from plugins.file_queue.rows import Finished, Task, TaskRows

_LATEST = datetime.max.replace(tzinfo=UTC)
"""Where a file that blocks the queue is in the default order, which is newest first."""


class _Order(NamedTuple):
    """Ids in ascending order of a sort value, and the ids of tasks without that value."""

    valued: list[tuple[Any, str]]
    valueless: list[str]


class Snapshot:
    """All tasks at one moment. A finished task may be known only by its condition; then it is not among `tasks`."""

    def __init__(
        self, tasks: Mapping[str, Task], finished: Mapping[str, Finished], rows: TaskRows, *, whole: bool
    ) -> None:
        self.blocker = min((task.blocker for task in tasks.values() if task.blocker is not None), default=None)
        """The first file at which workers stop."""
        if self.blocker is not None:
            tasks = {id: rows.behind(task, self.blocker) for id, task in tasks.items()}
        self.tasks = tasks
        self.finished = finished
        self.whole = whole
        """Whether the finished tasks are among `tasks`."""
        self._orders: dict[SortField | None, _Order] = {}
        self._lock = Lock()

    @property
    def ids(self) -> set[str]:
        return self.tasks.keys() | self.finished.keys()

    def walk(self, sort: Sort, after: Cursor | None, backward: bool) -> Iterator[tuple[Task, Cursor]]:
        """Iterate from a cursor in either direction. Tasks without the sort value come last in every order."""
        order = self._order(sort.field)
        descending = sort.descending
        parts: list[Iterable[tuple[Any, str, bool]]] = []
        if after is None or not after.is_null or backward:
            edge = None if after is None or after.is_null else (after.value, str(after.key[0]))
            parts.append((v, id, False) for v, id in _run(order.valued, edge, descending != backward))
        if after is None or after.is_null or not backward:
            rest = str(after.key[0]) if after is not None and after.is_null else None
            parts.append((None, id, True) for id in _run(order.valueless, rest, descending != backward))
        for part in reversed(parts) if backward else parts:
            for value, id, is_null in part:
                yield self.tasks[id], Cursor(value, is_null, (id,))

    def _order(self, field: SortField | None) -> _Order:
        with self._lock:
            if field not in self._orders:
                self._orders[field] = self._sorted(field)
            return self._orders[field]

    def _sorted(self, field: SortField | None) -> _Order:
        valued: list[tuple[Any, str]] = []
        valueless: list[str] = []
        for id, task in self.tasks.items():
            value = _value(field, task)
            if value is None:
                valueless.append(id)
            else:
                valued.append((value, id))
        valued.sort()
        valueless.sort()
        return _Order(valued, valueless)


def _value(field: SortField | None, task: Task) -> Any:
    match field:
        case None:
            return _LATEST if task.blocker is not None else task.facts.born_at
        case SortField.UPDATED:
            return task.updated_at
        case SortField.CREATED:
            return task.facts.born_at
        case SortField.NEXT:
            return task.due_at
        case SortField.ATTEMPTS:
            return task.facts.attempts
        case SortField.TYPE:
            return _bytes(text(task.row.type)) or None
        case SortField.ID:
            return _bytes(task.id)


def _bytes(text: str) -> bytes:
    """Text sorts by its bytes, as in every backend."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def _run(ordered: list[Any], edge: Any, falling: bool) -> Iterator[Any]:
    if falling:
        start = len(ordered) if edge is None else bisect_left(ordered, edge)
        return (ordered[n] for n in range(start - 1, -1, -1))
    start = 0 if edge is None else bisect_right(ordered, edge)
    return (ordered[n] for n in range(start, len(ordered)))
