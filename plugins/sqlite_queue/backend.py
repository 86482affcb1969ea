"""The contract over an attached SQLite queue of either dialect."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, Literal

import sqlalchemy as sa
from pydantic import BaseModel, ConfigDict

from console.core.backend import Authority, Change, Draft, Finding, Image, Order, Outcome, Said, Severity
from console.core.changes import Changes
from console.core.faults import NoSuchItem
from console.core.item import Attempt, Detail, ItemKey
from console.core.policy import FixedDelays, PolicyOverride, RetryPolicy, schedule_ahead
from console.core.ports import Clock, Stop
from console.core.query import Filter, Sort
from console.core.text import DETAIL_LIMIT
from console.sql.backend import SqlBackend, clock_finding, require_columns
from console.sql.database import Row
from console.sql.guarded import SqliteGuard
from console.sql.layout import Expression, Layout
from console.sql.sqlite import SqliteDatabase, sqlite_path
from console.sql.times import IsoText
from console.sql.values import text
from plugins import _contract_queue as contract
from plugins.sqlite_queue import schema
from plugins.sqlite_queue.requeue import ABILITIES, Requeue
from plugins.sqlite_queue.rows import AsyncTaskRows, ContractTaskRows

ASYNC_POLICY = RetryPolicy(
    max_attempts=4,
    backoff=FixedDelays((timedelta(minutes=5), timedelta(minutes=15), timedelta(minutes=60))),
    stuck_after=timedelta(seconds=360),
)
"""The analysis queue's own numbers: a first try and three retries; stuck a minute after its timeout."""


class Options(BaseModel):
    """The config keys of this plugin, beside `plugin` and `policy`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str
    dialect: Literal["async_tasks", "tasks"] = "async_tasks"
    handler: str | None = None
    """`package.module:function`, called with each task by `retriage run`."""


class SqliteQueue(SqlBackend):
    """An SQLite task queue that belongs to someone else."""

    options = Options
    abilities = ABILITIES

    @classmethod
    def open(
        cls, name: str, options: Options, policy: PolicyOverride, *, read_only: bool, deadline: timedelta
    ) -> SqliteQueue:
        time = IsoText()
        database = SqliteDatabase(
            sqlite_path(options.url),
            read_only=read_only,
            deadline=deadline,
            functions={schema.EPOCH: schema.epoch_of(time)},
        )
        own = ASYNC_POLICY if options.dialect == "async_tasks" else contract.POLICY
        return cls(name, options, policy.over(own), database, time)

    def __init__(
        self, name: str, options: Options, policy: RetryPolicy, database: SqliteDatabase, time: IsoText
    ) -> None:
        super().__init__(name, "sqlite_queue", f"{database.place} ({options.dialect})", database, policy)
        self.handler = options.handler
        self.database = database
        self.dialect = options.dialect
        self.time = time
        rows = AsyncTaskRows if options.dialect == "async_tasks" else ContractTaskRows
        self._rows: AsyncTaskRows | ContractTaskRows = rows(name, policy, time)
        self._requeue = Requeue(name, policy, time, self._rows)
        self._guard = SqliteGuard(database, self._requeue.target)

    def _layout(self) -> Layout:
        if isinstance(self._rows, AsyncTaskRows):
            require_columns(self.database, "async_tasks", schema.ASYNC_COLUMNS)
            return schema.async_tasks_layout(
                self.name, self.database, self.policy, self.time, self._rows, self._physical()
            )
        require_columns(self.database, "tasks", schema.TASK_COLUMNS)
        require_columns(self.database, "results", schema.RESULT_COLUMNS)
        return schema.tasks_layout(self.name, self.database, self.policy, self.time, self._rows, self._physical())

    def _physical(self) -> schema.Physical:
        table, due = ("async_tasks", "next_run_at") if self.dialect == "async_tasks" else ("tasks", "eta")
        return schema.Physical(self.database.has_rowid(table), self.database.has_index(table, ("status", due)))

    # -- check -----------------------------------------------------------------------------------

    def check(self, clock: Clock) -> Sequence[Finding]:
        self._layout()
        table = "async_tasks" if self.dialect == "async_tasks" else "tasks"
        return [
            Finding(Severity.OK, "schema", f"table {table} is as expected"),
            self._index_finding(table),
            self._privilege_finding(),
            Finding(Severity.OK, "guard", "strong: updated_at changes on every transition"),
            clock_finding(self.database, clock),
        ]

    def _index_finding(self, table: str) -> Finding:
        if self._physical().indexed:
            return Finding(Severity.OK, "index", "(status, due time) serves the list")
        due = "next_run_at" if self.dialect == "async_tasks" else "eta"
        return Finding(
            Severity.WARNING,
            "index",
            "no index on status: lists and counts of a large table read all of it",
            f"If it is yours to change: CREATE INDEX {table}_status_due ON {table} (status, {due});",
        )

    def _privilege_finding(self) -> Finding:
        if self.database.writable():
            return Finding(Severity.OK, "privileges", "this user can read and write the file")
        return Finding(
            Severity.WARNING,
            "privileges",
            "this user can read the file but not write it",
            "Requeue will fail; reading works.",
        )

    # -- requeue ---------------------------------------------------------------------------------

    def drafts(
        self, wanted: Sequence[ItemKey] | Filter, sort: Sort, order: Order, now: datetime, stop: Stop
    ) -> Iterator[Sequence[Draft]]:
        verdict_row = self._reader.layout.segments[0].roles.row
        columns = self._requeue.columns(verdict_row, self._physical().has_rowid)
        if isinstance(wanted, Filter):
            batches: Iterable[Sequence[Row]] = self._reader.walk(wanted, sort, columns, now, stop)
        else:
            batches = [list(self._reader.rows(wanted, now, columns))]
        alike: dict[Row, Said] = {}
        for rows in batches:
            yield self._requeue.drafts(rows, order, now, alike)

    def after(self, change: Change, order: Order, at: datetime, due: datetime) -> Image:
        return self._requeue.afters([change.before], order, at, [due])[0]

    def afters(self, changes: Changes, order: Order, at: datetime, dues: Sequence[datetime]) -> Sequence[Image]:
        return self._requeue.afters(changes.befores, order, at, dues)

    def swap(self, changes: Sequence[Change], order: Order, authority: Authority) -> Sequence[Outcome]:  # noqa: ARG002
        return self._guard.swap(changes)

    def images(self, changes: Sequence[Change]) -> Sequence[Image | None]:
        found = self._guard.images([change.keys[0] for change in changes])
        return [found.get(change.keys[0]) for change in changes]

    # -- one item --------------------------------------------------------------------------------

    def item(self, key: ItemKey, now: datetime) -> Detail:
        rows = list(self._reader.rows([key], now))
        if not rows:
            raise NoSuchItem(str(key))
        item = self._rows.read(rows[0], now)
        native = self._native(key, now)
        error = dict(native).get("last_error" if self.dialect == "async_tasks" else "results.error")
        facts = self._rows.facts(rows[0])
        return Detail(
            item,
            error if error else item.error,
            self._history(dict(native), item.attempts),
            tuple(schedule_ahead(facts, self.policy, item.verdict, now)),
            native,
        )

    def _native(self, key: ItemKey, now: datetime) -> tuple[tuple[str, str | None], ...]:
        """Every column as text, each cut to what a detail view shows."""
        rows = list(self._reader.rows([key], now, tuple(self._detailed.values())))
        values = rows[0] if rows else (None,) * len(self._detailed)
        return tuple(
            (name, None if value is None else text(value))
            for name, value in zip(self._detailed, values, strict=True)
        )

    @cached_property
    def _detailed(self) -> dict[str, Expression]:
        if self.dialect == "async_tasks":
            columns = [(name, schema.ASYNC_TASKS.c[name]) for name in schema.ASYNC_COLUMNS]
        else:
            columns = [(name, schema.TASKS.c[name]) for name in schema.TASK_COLUMNS]
            columns += [(f"results.{name}", schema.RESULTS.c[name]) for name in schema.RESULT_COLUMNS]
        first: Any = sa.literal_column("1")
        limit: Any = sa.literal_column(str(DETAIL_LIMIT))
        return {name: sa.func.substr(column, first, limit).label(f"n{n}") for n, (name, column) in enumerate(columns)}

    def _history(self, native: dict[str, str | None], attempts: int) -> tuple[Attempt, ...]:
        """These queues keep the last attempt only."""
        if attempts <= 0:
            return ()
        decode = self.time.decode
        if self.dialect == "async_tasks":
            at = decode(native["updated_at"])
            outcome = "failed" if native["last_error"] else (native["status"] or "").lower()
            return (Attempt(attempts, at, outcome, native["last_error"]),)
        began, ended = decode(native["last_attempt_at"]), decode(native["results.finished_at"])
        took = ended - began if began and ended and ended >= began else None
        outcome = "failed" if native["results.error"] else (native["status"] or "").lower()
        return (Attempt(attempts, began or ended, outcome, native["results.error"], took),)

    # -- the queue's own loop ----------------------------------------------------------------------

    def run(self, handler: Callable[..., object], clock: Clock, stop: Stop, log: Callable[[str], None]) -> int:
        from plugins.sqlite_queue.engine import AsyncTaskQueue, ContractQueue

        self._layout()
        queue: contract.Queue
        if self.dialect == "async_tasks":
            queue = AsyncTaskQueue(self.database, self.policy, clock, self.time)
        else:
            queue = ContractQueue(self.database, self.policy, clock)
        return contract.work(queue, handler, clock, stop, log)
