"""Handing tasks back by their own queue's rules: what may be done, what it makes of a row, and why not."""

from __future__ import annotations

import string
from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import repeat
from typing import Any, cast

import sqlalchemy as sa

from console.core.backend import (
    Abilities,
    Action,
    Budget,
    Drafts,
    Flag,
    Image,
    Order,
    Said,
    UndoKind,
    image_texts,
)
from console.core.item import ItemKey
from console.core.policy import RetryPolicy, judge
from console.core.signature import signature_of
from console.sql.database import Row
from console.sql.guarded import Target
from console.sql.layout import Expression
from console.sql.statement import is_unicode
from console.sql.times import IsoText
from console.sql.values import text
from plugins._contract_queue import STRANGE, decide
from plugins.sqlite_queue import schema
from plugins.sqlite_queue.engine import with_eta
from plugins.sqlite_queue.rows import AsyncTaskRows, ContractTaskRows

ABILITIES = Abilities(
    actions=frozenset({Action.REQUEUE, Action.UNDO}),
    budgets=frozenset(Budget),
    undo=UndoKind.EXACT,
    stores_due_time=True,
    guard=("status", "attempts", "updated_at"),
    flags=frozenset({Flag.ALLOW_UNRECOVERABLE}),
)

ASYNC_TARGET = Target("async_tasks", "task_id", ("status", "attempts", "next_run_at", "updated_at"))
TASKS_TARGET = Target("tasks", "id", ("status", "attempts", "eta", "schedule", "updated_at"))

_ALIKE = 10_000
"""About so many different verdicts are remembered while a plan is drafted."""
_PLAIN = (string.ascii_letters + string.digits + "_.~-").encode()
"""What stands in a key as it is."""


class Requeue:
    """The drafts and after-images of one dialect."""

    def __init__(
        self, backend: str, policy: RetryPolicy, time: IsoText, rows: AsyncTaskRows | ContractTaskRows
    ) -> None:
        self._backend = backend
        self._policy = policy
        self._time = time
        self._rows = rows
        self._is_async = isinstance(rows, AsyncTaskRows)
        unread = rows.unjudged if policy.max_age is not None else (*rows.unjudged, rows.born)
        self._needed = [n for n in range(rows.width) if n not in unread]
        read = [*self._needed, *([] if self._is_async else [rows.width])]
        self._place = len(read)
        self._image = [read.index(n) for n in rows.image]
        self._alike = [read.index(n) for n in rows.alike]
        self.target = ASYNC_TARGET if self._is_async else TASKS_TARGET

    def columns(self, verdict_row: tuple[Expression, ...], has_rowid: bool) -> tuple[Expression, ...]:
        """What a draft needs: what a verdict and an image are made of, and where the row is."""
        table = schema.ASYNC_TASKS if self._is_async else schema.TASKS
        rest = () if self._is_async else (table.c.schedule,)
        return (*(verdict_row[n] for n in self._needed), *rest, table.c.rowid if has_rowid else sa.null())

    def drafts(self, rows: Sequence[Row], order: Order, now: datetime, alike: dict[Row, Said]) -> Drafts:
        """Column by column: a plan may have a million of them. `alike` is what was said of earlier ones."""
        if not rows:
            return Drafts((), (), (), ())
        columns = list(zip(*rows, strict=True))
        keys, odd = self._keys(columns[0])
        befores = _storable([columns[n] for n in self._image])
        said = self._said_alike(rows, columns, order, now, alike)
        places = columns[self._place]
        units = list(map(str, places)) if None not in places else ["" if p is None else str(p) for p in places]
        if None in befores:
            odd.update(n for n, before in enumerate(befores) if before is None)
        for n in odd:
            units[n], befores[n], said[n] = "", "null", (*said[n][:2], STRANGE, None)
        return Drafts(keys, units, cast("list[str]", befores), said)

    def _keys(self, ids: Sequence[Any]) -> tuple[list[str], set[int]]:
        """Item keys, and the places of those a driver could not bind again."""
        try:
            joined = "".join(ids)
        except TypeError:
            joined = "\0"
        if joined.isascii() and not joined.encode().translate(None, _PLAIN):
            start = f"{self._backend}/"
            return [start + id for id in ids], set()
        odd = {n for n, id in enumerate(ids) if type(id) is not str or not is_unicode(id)}
        return [str(ItemKey(self._backend, (text(id),))) for id in ids], odd

    def _said_alike(
        self, rows: Sequence[Row], columns: Sequence[Row], order: Order, now: datetime, alike: dict[Row, Said]
    ) -> list[Said]:
        """What fails alike is judged once, unless its age counts."""
        if self._policy.max_age is not None:
            return [self._said(row, order, now) for row in rows]
        kinds = list(zip(*(columns[n] for n in self._alike), strict=True))
        if len(alike) > _ALIKE:
            alike.clear()
        said = list(map(alike.get, kinds))
        for n, known in enumerate(said) if None in said else ():
            if known is None and (known := alike.get(kinds[n])) is None:
                known = self._said(rows[n], order, now)
                if kinds[n][0] == "FAILED":
                    alike[kinds[n]] = known
            said[n] = known
        return cast("list[Said]", said)

    def _said(self, row: Row, order: Order, now: datetime) -> Said:
        whole: list[Any] = [None] * self._rows.width
        for n, value in zip(self._needed, row, strict=False):
            whole[n] = value
        facts = self._rows.facts(tuple(whole))
        verdict = judge(facts, self._policy, now)
        blocked, warning = decide(facts, verdict, order, self._policy, now)
        return verdict.condition, signature_of(facts.error) if facts.error else None, blocked, warning

    def afters(self, befores: Sequence[Image], order: Order, at: datetime, dues: Sequence[datetime]) -> list[Image]:
        """PENDING at the release time; the error stays as evidence until a worker overwrites it."""
        written = self._time.encode(at)
        at_once = dues.count(at) == len(dues)
        whens = [written] * len(dues) if at_once else self._time.encode_all(dues)
        attempts = repeat(0) if order.budget is Budget.FRESH else (before[1] for before in befores)
        columns: list[Iterable[Any]] = [repeat("PENDING"), attempts, whens, repeat(written)]
        if not self._is_async:
            columns.insert(3, (with_eta(before[3], when) for before, when in zip(befores, whens, strict=True)))
        return list(zip(*columns, strict=False))


def _storable(columns: Sequence[Sequence[Any]]) -> list[str | None]:
    """Images as JSON; None where a value is something a plan cannot hold or a driver cannot bind again."""
    try:
        texts = image_texts(columns)
    except TypeError:
        rows = list(zip(*columns, strict=True))
        return [_storable([(value,) for value in row])[0] for row in rows] if len(rows) > 1 else [None]
    if "\\udc" not in "".join(texts):
        return list[str | None](texts)
    return [text if _is_unicode(image) else None for text, image in zip(texts, zip(*columns, strict=True), strict=True)]


def _is_unicode(image: Row) -> bool:
    return all(is_unicode(value) for value in image if type(value) is str)
