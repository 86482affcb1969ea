"""Handing tasks back by their own queue's rules: what may be done, what it makes of a row, and why not."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime

import sqlalchemy as sa

from console.core.backend import (
    Abilities,
    Action,
    Budget,
    Change,
    Draft,
    Flag,
    Image,
    Order,
    UndoKind,
    image_texts,
)
from console.core.item import Condition, ItemKey
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

_PLAIN_ID = re.compile(r"[A-Za-z0-9_.~-]*").fullmatch
_ALIKE = 10_000
"""So many different verdicts are remembered while one batch is drafted."""
_Judged = tuple[Condition, str | None, str | None, str | None]
_new = tuple.__new__


class Requeue:
    """The drafts and after-images of one dialect."""

    def __init__(
        self, backend: str, policy: RetryPolicy, time: IsoText, rows: AsyncTaskRows | ContractTaskRows
    ) -> None:
        self._backend = backend
        self._policy = policy
        self._time = time
        self._rows = rows
        self._last_at: tuple[datetime | None, str] = (None, "")
        self._is_async = isinstance(rows, AsyncTaskRows)
        self.target = ASYNC_TARGET if self._is_async else TASKS_TARGET

    def columns(self, verdict_row: tuple[Expression, ...], has_rowid: bool) -> tuple[Expression, ...]:
        """What a draft needs: where the row is, everything a verdict is made of, and the rest of its image."""
        table = schema.ASYNC_TASKS if self._is_async else schema.TASKS
        place = table.c.rowid if has_rowid else sa.null()
        return (place, *verdict_row, table.c.updated_at if self._is_async else table.c.schedule)

    def drafts(self, rows: Sequence[Row], order: Order, now: datetime) -> list[Draft]:
        """One tight loop: a plan may take a million turns of it."""
        end = 1 + self._rows.width
        natives = [row[1:end] for row in rows]
        judged = self._judged_alike(natives, order, now)
        befores = _storable([self._rows.image_of(native, row[end]) for native, row in zip(natives, rows, strict=True)])
        drafts = []
        for row, before, (condition, signature, blocked, warning) in zip(rows, befores, judged, strict=True):
            id = row[1]
            key = self._key(id)
            if before is None or type(id) is not str or not is_unicode(id):
                drafts.append(Draft(key, "", "null", condition, None, STRANGE))
                continue
            unit = "" if row[0] is None else str(row[0])
            drafts.append(_new(Draft, (key, unit, before, condition, signature, blocked, warning)))
        return drafts

    def _key(self, id: object) -> str:
        plain = type(id) is str and _PLAIN_ID(id)
        return f"{self._backend}/{id}" if plain else str(ItemKey(self._backend, (text(id),)))

    def _judged_alike(self, natives: Sequence[Row], order: Order, now: datetime) -> list[_Judged]:
        """What fails alike is judged once, unless its age counts."""
        if self._policy.max_age is not None:
            return [self._judged(native, order, now) for native in natives]
        kinds = list(map(self._rows.timeless, natives))
        alike = {
            kind: self._judged(native, order, now)
            for kind, native in dict(zip(kinds, natives, strict=True)).items()
            if kind is not None
        }
        return [
            self._judged(native, order, now) if kind is None else alike[kind]
            for kind, native in zip(kinds, natives, strict=True)
        ]

    def _judged(self, verdict_row: Row, order: Order, now: datetime) -> _Judged:
        facts = self._rows.facts(verdict_row)
        verdict = judge(facts, self._policy, now)
        blocked, warning = decide(facts, verdict, order, self._policy, now)
        return verdict.condition, signature_of(facts.error) if facts.error else None, blocked, warning

    def after(self, change: Change, order: Order, at: datetime, due: datetime) -> Image:
        """PENDING at the release time; the error stays as evidence until a worker overwrites it."""
        attempts = 0 if order.budget is Budget.FRESH else change.before[1]
        written = self._written(at)
        when = written if due is at else self._time.encode(due)
        if self._is_async:
            return ("PENDING", attempts, when, written)
        return ("PENDING", attempts, when, with_eta(change.before[3], when), written)

    def _written(self, at: datetime) -> str:
        """The clock of a chunk is the same for all its rows."""
        if self._last_at[0] is not at:
            self._last_at = (at, self._time.encode(at))
        return self._last_at[1]


def _storable(images: Sequence[Row]) -> list[str | None]:
    """Images as JSON; None where a value is something a plan cannot hold or a driver cannot bind again."""
    try:
        texts = image_texts(images)
    except TypeError:
        return [_storable([image])[0] for image in images] if len(images) > 1 else [None]
    return [
        None if "\\udc" in text and not _is_unicode(image) else text
        for text, image in zip(texts, images, strict=True)
    ]


def _is_unicode(image: Row) -> bool:
    return all(is_unicode(value) for value in image if type(value) is str)
