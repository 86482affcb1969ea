"""The retry loop of this system: every minute it retries a few failed analyses of each pipeline.

It decides in the order that `prediction` describes: first the ten oldest rows, then which of them it skips. One guarded
UPDATE claims a row, so that two loops never claim the same one, counts the retry and sets the status to pending. The
handler's result is written only if the row is unchanged since the claim. An error in one row or one cycle is logged,
and the loop continues.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

import sqlalchemy as sa

from console.core.faults import Fault
from console.core.handlers import message_of
from console.core.policy import RetryPolicy, later
from console.core.ports import Clock, Stop
from console.sql.database import Binds, BoundStatement, Database, Row, RowRefused
from console.sql.layout import Expression, Predicate
from console.sql.times import IsoText, Naive
from console.sql.values import text
from plugins.postgres_analyses.loop_order import AnalysisTable
from plugins.postgres_analyses.prediction import CYCLE, PER_CYCLE, Schedule

ERROR_LENGTH = 500
_POLL_INTERVAL = 1.0

Handler = Callable[[str, Mapping[str, Any]], object]
"""Called with the pipeline and the analysis. An exception is a failure."""


class ClaimedAnalysis(NamedTuple):
    """An analysis that this loop has claimed, as it was right after the claim."""

    id: int
    user_answer_id: int | None
    error: str | None
    retry_count: int
    last_retry_at: Any


class SeenAnalysis(NamedTuple):
    """A row as the loop has read it."""

    id: int
    retry_count: Any
    last_retry_at: Any
    processed_at: Any
    statuses: Mapping[str, Any]
    errors: Mapping[str, Any]


@dataclass(slots=True)
class Statistics:
    """What the loop has done since it started."""

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
    table: AnalysisTable
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
            self._wait(stop)
        self.log(f"Automatic retry system stopped; {self.statistics}")
        return self.statistics.total_retries

    def _wait(self, stop: Stop) -> None:
        until = self.clock.now() + CYCLE
        while not stop.requested and (left := (until - self.clock.now()).total_seconds()) > 0:
            self.clock.sleep(min(left, _POLL_INTERVAL))

    def cycle(self, stop: Stop) -> dict[str, int]:
        """Retry what is due, up to the limit; returns the number per pipeline and of stuck rows."""
        done = {p: self._guarded(p, partial(self._retry_failed, p, stop)) for p in self.table.pipelines}
        done["stuck"] = self._guarded("stuck analyses", partial(self._retry_stuck, stop))
        counts = ", ".join(f"{name.removesuffix('_update')}={count}" for name, count in done.items())
        self.log(f"Retry cycle completed: {counts}")
        return done

    def _guarded(self, what: str, retry: Callable[[], int]) -> int:
        try:
            return retry()
        except Fault as fault:
            self.log(f"Error retrying {what}: {fault}")
            return 0

    def _retry_failed(self, pipeline: str, stop: Stop) -> int:
        """Retry the failed rows among the ten oldest, except those that it skips."""
        count, now = 0, self.clock.now()
        for row in self._oldest(partial(self._failed, pipeline)):
            if stop.requested:
                break
            if line := self._skipped(pipeline, row, now):
                self.log(line)
            elif claimed := self._claim(pipeline, row, "failed"):
                count += 1
                self._retry(pipeline, claimed)
        return count

    def _retry_stuck(self, stop: Stop) -> int:
        """Retry every pending pipeline of the ten oldest rows that have been pending for too long."""
        count = 0
        for row in self._oldest(self._stuck):
            current: SeenAnalysis = row
            for pipeline in self.table.pipelines:
                if stop.requested or row.statuses[pipeline] != "pending":
                    continue
                if claimed := self._claim(pipeline, current, "pending"):
                    count += 1
                    self._retry(pipeline, claimed)
                    current = row._replace(retry_count=claimed.retry_count, last_retry_at=claimed.last_retry_at)
        return count

    # -- one analysis ----------------------------------------------------------------------------

    def _retry(self, pipeline: str, claimed: ClaimedAnalysis) -> None:
        self.log(f"Retrying {pipeline} for analysis {claimed.id}")
        self.statistics.total_retries += 1
        analysis = {
            "id": claimed.id, "user_answer_id": claimed.user_answer_id, "retry_count": claimed.retry_count,
            "error": claimed.error,
        }
        try:
            self.handlers[pipeline](pipeline, analysis)
        except Exception as error:  # noqa: BLE001  any exception of the handler is a failure of this analysis
            self.statistics.failures += 1
            message = message_of(error)
            self._finish(pipeline, claimed, "failed", message[:ERROR_LENGTH])
            self.log(f"Retry of {pipeline} failed for analysis {claimed.id}: {message}")
        else:
            self.statistics.successes += 1
            self._finish(pipeline, claimed, "success", None)
            self.log(f"Successfully retried {pipeline} for analysis {claimed.id}")

    def _claim(self, pipeline: str, seen: SeenAnalysis, status: str) -> ClaimedAnalysis | None:
        """Claim a row that is still as it was read: one UPDATE counts the retry and sets it pending."""
        binds, target = Binds(), self.table.alias("due").element
        last: Expression = target.c.last_retry_at
        unchanged = last.is_(None) if seen.last_retry_at is None else last == binds.value(seen.last_retry_at)
        update = (
            sa.update(target)
            .where(
                target.c.id == binds.value(seen.id),
                target.c[f"{pipeline}_status"] == binds.value(status),
                target.c.retry_count == binds.value(seen.retry_count),
                unchanged,
            )
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
        return ClaimedAnalysis(*rows[0]) if rows else None

    def _finish(self, pipeline: str, claimed: ClaimedAnalysis, status: str, error: str | None) -> None:
        binds, target = Binds(), self.table.alias("due").element
        values: dict[Any, Any] = {
            target.c[f"{pipeline}_status"]: binds.value(status),
            target.c[f"{pipeline}_error"]: binds.value(error),
        }
        if status == "success":
            values[target.c[f"{pipeline}_completed_at"]] = binds.from_now(self.time.encode)
        update = (
            sa.update(target)
            .where(
                target.c.id == binds.value(claimed.id),
                target.c[f"{pipeline}_status"] == sa.literal_column("'pending'"),
                target.c.retry_count == binds.value(claimed.retry_count),
                target.c.last_retry_at == binds.value(claimed.last_retry_at),
            )
            .values(values)
            .returning(target.c.id)
        )
        if not self._write(update, binds):
            self.log(f"Analysis {claimed.id} changed while {pipeline} was being retried; its result is not written")

    def _write(self, update: Any, binds: Binds) -> list[Row]:
        with self.database.writing() as writer:
            try:
                return list(writer.run(BoundStatement(update, binds), self.clock.now()))
            except RowRefused as refused:
                raise Fault(str(refused)) from None

    # -- what it looks at ------------------------------------------------------------------------

    def _oldest(self, which: Callable[[Any, Binds], Predicate]) -> list[SeenAnalysis]:
        """The ten rows with the oldest `processed_at`."""
        binds, table = Binds(), self.table.alias("due")
        c, names = table.c, self.table.pipelines
        room: Predicate = c.retry_count < sa.literal_column(str(Schedule.of(self.policy).retries))
        answered = c.user_answer_id.is_not(None) if self.table.needs_answer else sa.true()
        select = (
            sa.select(
                c.id, c.retry_count, c.last_retry_at, c.processed_at,
                *(c[f"{name}_status"] for name in names), *(c[f"{name}_error"] for name in names),
            )
            .where(which(c, binds), room, answered)
            .order_by(self.time.compared(c.processed_at).asc().nulls_last(), c.id)
            .limit(sa.literal_column(str(PER_CYCLE)))
        )
        rows = self.database.read(BoundStatement(select, binds), self.clock.now())
        return [
            SeenAnalysis(
                id, retry_count, last_retry_at, processed_at,
                dict(zip(names, rest[: len(names)], strict=True)), dict(zip(names, rest[len(names) :], strict=True)),
            )
            for id, retry_count, last_retry_at, processed_at, *rest in rows
        ]

    def _failed(self, pipeline: str, c: Any, binds: Binds) -> Predicate:
        """Failed, and not retried in the last minute."""
        recent = self.time.compared(c.last_retry_at) >= binds.from_now(self.time.bound, -self._rest)
        failed = c[f"{pipeline}_status"] == sa.literal_column("'failed'")
        return sa.and_(failed, sa.not_(sa.func.coalesce(recent, sa.false())))

    @property
    def _rest(self) -> timedelta:
        return min(CYCLE, *Schedule.of(self.policy).delays)

    def _stuck(self, c: Any, binds: Binds) -> Predicate:
        """Pending for too long. Not those that this or another loop has claimed recently: they may still run."""
        old = binds.from_now(self.time.bound, -(self.policy.stuck_after or timedelta(0)))
        pending = [c[f"{name}_status"] == sa.literal_column("'pending'") for name in self.table.pipelines]
        return sa.and_(
            sa.or_(*pending),
            self.time.compared(c.processed_at) < old,
            sa.func.coalesce(self.time.compared(c.last_retry_at) < old, sa.true()),
        )

    def _skipped(self, pipeline: str, row: SeenAnalysis, now: datetime) -> str | None:
        """Why a failed row is not retried now; None if it is."""
        base = row.processed_at if row.last_retry_at is None else row.last_retry_at
        at = self.time.decode(base)
        if base is not None and at is None:
            return f"Skipping analysis {row.id}: the time of its last try is unknown"
        left = timedelta(0) if at is None else later(at, Schedule.of(self.policy).delay(row.retry_count)) - now
        if left > timedelta(0):
            return f"Skipping analysis {row.id}: need to wait {left.total_seconds() / 60:.1f} more minutes"
        if self.policy.hopeless(text(row.errors[pipeline])):
            return f"Skipping non-recoverable error of analysis {row.id}"
        return None
