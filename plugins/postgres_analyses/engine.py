"""The system's own retry loop: every minute, a few failed analyses of each pipeline are tried again.

A row is taken by one guarded UPDATE (`FOR UPDATE SKIP LOCKED`, so two loops never take the same one), which
counts the retry and sets it pending; what the handler makes of it is written only while the row is still as
it was taken. One row or one cycle that fails is logged, and the loop goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import sqlalchemy as sa

from console.core.faults import Fault
from console.core.handlers import message_of
from console.core.policy import RetryPolicy, later
from console.core.ports import Clock, Stop
from console.core.text import ascii_lower
from console.sql.database import Database, Row, RowRefused
from console.sql.layout import Expression, Predicate
from console.sql.statement import Binds, Prepared
from console.sql.times import IsoText, Naive
from console.sql.values import text
from console.sql.where import Where
from plugins.postgres_analyses.requeue import CYCLE, PER_CYCLE
from plugins.postgres_analyses.schema import Place, delays

ERROR_LENGTH = 500
_NAP = 1.0

Handler = Callable[[str, Mapping[str, Any]], object]
"""Called with the pipeline and the analysis; what it raises is the failure."""


Due = Callable[[Any, str, Binds], Predicate]
"""What is to be taken: the predicate of a pipeline over the table."""


class Taken(NamedTuple):
    """An analysis this loop holds, as its claim left it."""

    id: int
    user_answer_id: int | None
    error: str | None
    retry_count: int
    last_retry_at: Any


@dataclass(slots=True)
class Statistics:
    """What the loop has done since it began."""

    total_retries: int = 0
    successes: int = 0
    failures: int = 0

    @property
    def success_rate(self) -> float:
        return 100 * self.successes / self.total_retries if self.total_retries else 0.0

    def __str__(self) -> str:
        return (
            f"{self.total_retries} retries: {self.successes} succeeded, {self.failures} failed,"
            f" success rate {self.success_rate:.1f}%"
        )


@dataclass(slots=True)
class RetryLoop:
    """The loop over one table, with a handler for each pipeline."""

    database: Database
    place: Place
    policy: RetryPolicy
    time: Naive | IsoText
    clock: Clock
    handlers: Mapping[str, Handler]
    log: Callable[[str], None]
    statistics: Statistics = field(default_factory=Statistics)

    def run(self, stop: Stop) -> int:
        self.log("Starting automatic retry system")
        while not stop.requested:
            try:
                self.cycle(stop)
            except Fault as fault:
                self.log(f"Error in retry cycle: {fault}")
            self._rest(stop)
        self.log(f"Automatic retry system stopped; {self.statistics}")
        return self.statistics.total_retries

    def _rest(self, stop: Stop) -> None:
        until = self.clock.now() + CYCLE
        while not stop.requested and (left := (until - self.clock.now()).total_seconds()) > 0:
            self.clock.sleep(min(left, _NAP))

    def cycle(self, stop: Stop) -> dict[str, int]:
        """Everything that is due now, within the limits: retries per pipeline, and stuck ones."""
        done = dict.fromkeys(self.place.pipelines, 0)
        for pipeline in self.place.pipelines:
            done[pipeline] = self._attempted(pipeline, self._failed, stop)
            self._tell_skipped(pipeline)
        done["stuck"] = sum(self._attempted(p, self._stuck, stop) for p in self.place.pipelines)
        told = ", ".join(f"{name.removesuffix('_update')}={count}" for name, count in done.items())
        self.log(f"Retry cycle completed: {told}")
        return done

    def _attempted(self, pipeline: str, due: Due, stop: Stop) -> int:
        count = 0
        try:
            while count < PER_CYCLE and not stop.requested:
                taken = self._take(pipeline, due)
                if taken is None:
                    break
                count += 1
                self._retry(pipeline, taken)
        except Fault as fault:
            self.log(f"Error retrying {pipeline}: {fault}")
        return count

    # -- one analysis ----------------------------------------------------------------------------

    def _retry(self, pipeline: str, taken: Taken) -> None:
        self.log(f"Retrying {pipeline} for analysis {taken.id}")
        self.statistics.total_retries += 1
        analysis = {
            "id": taken.id, "user_answer_id": taken.user_answer_id, "retry_count": taken.retry_count,
            "error": taken.error,
        }
        try:
            self.handlers[pipeline](pipeline, analysis)
        except Exception as error:  # noqa: BLE001  whatever a handler raises is this analysis's failure
            self.statistics.failures += 1
            message = message_of(error)
            self._finish(pipeline, taken, "failed", message[:ERROR_LENGTH])
            self.log(f"Retry of {pipeline} failed for analysis {taken.id}: {message}")
        else:
            self.statistics.successes += 1
            self._finish(pipeline, taken, "success", None)
            self.log(f"Successfully retried {pipeline} for analysis {taken.id}")

    def _take(self, pipeline: str, due: Due) -> Taken | None:
        """The oldest that is due, counted and set pending in one UPDATE guarded by the status seen."""
        binds, table = Binds(), self.place.alias("due")
        base = sa.func.coalesce(table.c.last_retry_at, table.c.processed_at)
        oldest = (
            sa.select(table.c.id)
            .where(due(table, pipeline, binds))
            .order_by(self.time.compared(base), table.c.id)
            .limit(sa.literal_column("1"))
            .with_for_update(skip_locked=True)
        )
        target = self.place.alias("due").element
        seen = sa.select(oldest.subquery().c.id).scalar_subquery()
        update = (
            sa.update(target)
            .where(target.c.id == seen)
            .values({
                target.c.retry_count: target.c.retry_count + sa.literal_column("1"),
                target.c.last_retry_at: binds.from_now(self.time.encode),
                target.c[f"{pipeline}_status"]: sa.literal_column("'pending'"),
            })
            .returning(
                target.c.id, target.c.user_answer_id, target.c[f"{pipeline}_error"], target.c.retry_count,
                target.c.last_retry_at,
            )
        )
        rows = self._write(update, binds)
        return Taken(*rows[0]) if rows else None

    def _finish(self, pipeline: str, taken: Taken, status: str, error: str | None) -> None:
        binds, target = Binds(), self.place.alias("due").element
        values: dict[Any, Any] = {
            target.c[f"{pipeline}_status"]: binds.value(status),
            target.c[f"{pipeline}_error"]: binds.value(error),
        }
        if status == "success":
            values[target.c[f"{pipeline}_completed_at"]] = binds.from_now(self.time.encode)
        update = (
            sa.update(target)
            .where(
                target.c.id == binds.value(taken.id),
                target.c[f"{pipeline}_status"] == sa.literal_column("'pending'"),
                target.c.retry_count == binds.value(taken.retry_count),
                target.c.last_retry_at == binds.value(taken.last_retry_at),
            )
            .values(values)
            .returning(target.c.id)
        )
        if not self._write(update, binds):
            self.log(f"Analysis {taken.id} changed while {pipeline} was being retried; its outcome is not written")

    def _write(self, update: Any, binds: Binds) -> list[Row]:
        statement = Prepared(update, binds, self.database.dialect)
        with self.database.writing() as writer:
            try:
                return list(writer.execute(statement.sql, statement.parameters(self.clock.now(), {})))
            except RowRefused as refused:
                raise Fault(str(refused)) from None

    # -- what is due -----------------------------------------------------------------------------

    def _room(self, table: Any) -> Predicate:
        number: Expression = table.c.retry_count
        return number < sa.literal_column(str((self.policy.max_attempts or 1) - 1))

    def _failed(self, table: Any, pipeline: str, binds: Binds) -> Predicate:
        error = table.c[f"{pipeline}_error"]
        hopeless = Where("", self.database.dialect, self.time, self.policy).hopeless(error, binds)
        return sa.and_(
            table.c[f"{pipeline}_status"] == sa.literal_column("'failed'"),
            self._room(table),
            self._waited(table, binds),
            sa.not_(sa.func.coalesce(hopeless, sa.false())),
        )

    def _waited(self, table: Any, binds: Binds) -> Predicate:
        base = self.time.compared(sa.func.coalesce(table.c.last_retry_at, table.c.processed_at))
        waits = delays(self.policy)

        def over(wait: timedelta) -> Predicate:
            return base <= binds.from_now(self.time.bound, -wait)

        number: Expression = table.c.retry_count
        each = [sa.and_(number == sa.literal_column(str(n)), over(wait)) for n, wait in enumerate(waits[:-1])]
        return sa.or_(*each, sa.and_(number >= sa.literal_column(str(len(waits) - 1)), over(waits[-1])))

    def _stuck(self, table: Any, pipeline: str, binds: Binds) -> Predicate:
        """Pending for too long; one that a loop took a moment ago is being worked on, however old it is."""
        limit = self.policy.stuck_after or timedelta(0)
        old = binds.from_now(self.time.bound, -limit)
        return sa.and_(
            table.c[f"{pipeline}_status"] == sa.literal_column("'pending'"),
            self._room(table),
            self.time.compared(table.c.processed_at) < old,
            sa.func.coalesce(self.time.compared(table.c.last_retry_at) < old, sa.true()),
        )

    # -- what is not -----------------------------------------------------------------------------

    def _tell_skipped(self, pipeline: str) -> None:
        """The oldest few that were passed over, and why."""
        binds, table = Binds(), self.place.alias("due")
        base = sa.func.coalesce(table.c.last_retry_at, table.c.processed_at)
        select = (
            sa.select(table.c.id, table.c[f"{pipeline}_error"], table.c.retry_count, base)
            .where(table.c[f"{pipeline}_status"] == sa.literal_column("'failed'"), self._room(table))
            .order_by(base, table.c.id)
            .limit(sa.literal_column(str(PER_CYCLE)))
        )
        now = self.clock.now()
        for row in self.database.read(Prepared(select, binds, self.database.dialect), now):
            if line := self._skipped(row, now):
                self.log(line)

    def _skipped(self, row: Row, now: datetime) -> str | None:
        id, error, retries, base = row
        if self.policy.hopeless(ascii_lower(text(error))):
            return f"Skipping non-recoverable error of analysis {id}"
        at, waits = self.time.decode(base), delays(self.policy)
        if at is None or not isinstance(retries, int):
            return f"Skipping analysis {id}: when it was last tried is not known"
        left = later(at, waits[min(max(retries, 0), len(waits) - 1)]) - now
        if left <= timedelta(0):
            return None
        return f"Skipping analysis {id}: need to wait {left.total_seconds() / 60:.1f} more minutes"
