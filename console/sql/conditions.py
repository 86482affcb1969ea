"""The conditions of a queue table as SQL predicates: `core.policy.judge`, written once more for the database.

`judge` reads `Facts` made from a row; `ConditionPredicates` reads the same facts as expressions. The contract suite
(`console.testing.exercise_backend`) proves on generated rows that both agree, and that every row has one condition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from console.core.item import Condition
from console.core.policy import Phase, RetryPolicy
from console.sql.database import Binds
from console.sql.layout import Expression, Predicate, Residual, everything
from console.sql.times import IsoText, TimeStyle, in_bytes
from console.sql.where import Where

if TYPE_CHECKING:
    from console.sql.table import Column, Meaning, QueueTable

LONGEST_TIME_LIMIT = 10**10
"""A row's own time limit counts for at most this many seconds, which Python and SQL can both add to a time."""

_EPOCH = "retriage_epoch"
_START = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def epoch_function(time: IsoText) -> dict[str, Callable[[Any], int | None]]:
    """The SQL function that an SQLite connection needs where rows have a time limit of their own.

    It turns a stored time into whole microseconds, so that SQL subtracts times as exactly as Python does.
    """

    def epoch(raw: bytes | None) -> int | None:
        at = time.decode_bytes(raw)
        return None if at is None else _microseconds(at)

    return {_EPOCH: epoch}


def _microseconds(instant: datetime) -> int:
    return (instant - _START) // _MICROSECOND


def whole_number(column: Expression, *, sqlite: bool) -> Expression:
    """A stored counter as `console.sql.values.whole_number` reads it: NULL and what is below zero are zero."""
    zero: Expression = sa.literal_column("0")
    number = sa.cast(column, sa.Integer if sqlite else sa.BigInteger)
    return (sa.func.max if sqlite else sa.func.greatest)(sa.func.coalesce(number, zero), zero)


def seconds(column: Expression, *, sqlite: bool) -> Expression:
    """A stored time limit in seconds, NULL where there is none."""
    longest: Expression = sa.literal_column(str(LONGEST_TIME_LIMIT))
    least = sa.func.min if sqlite else sa.func.least
    return sa.case((column.is_not(None), least(whole_number(column, sqlite=sqlite), longest)))


@dataclass(frozen=True, slots=True)
class FactColumns:
    """The expressions behind the `Facts` that a condition depends on."""

    attempts: Expression
    """Never NULL and never below zero: see `whole_number`."""
    error: Expression
    max_attempts: Expression | None = None
    """The row's own limit; NULL where the policy's limit counts."""
    retryable: Expression | None = None
    """The row's own flag; NULL where the policy decides."""
    since: Expression | None = None
    """The stored time from which a running item's time limit counts."""
    time_limit: Expression | None = None
    """The row's own limit in seconds; NULL where the policy's `stuck_after` counts."""
    has_grace: bool = False
    """The policy's `stuck_after` is added to the row's own limit."""
    stuck: Expression | None = None
    """Why a running row is stuck whatever its age; NULL if it is not."""
    born: Expression | None = None
    """The stored time from which `max_age` counts."""
    marker: Callable[[Binds], Predicate] | None = None
    """Whether the row carries an explicit mark of being terminal."""


def fact_columns(table: QueueTable, *, sqlite: bool) -> FactColumns:
    """The facts of a declared table."""

    def optional(column: Column | None) -> Expression | None:
        return None if column is None else table.expression(column)

    limit, own_time_limit = optional(table.max_attempts), optional(table.time_limit)
    return FactColumns(
        attempts=whole_number(table.expression(table.attempts), sqlite=sqlite),
        error=table.expression(table.error),
        max_attempts=None if limit is None else sa.case((limit.is_not(None), whole_number(limit, sqlite=sqlite))),
        since=optional(table.updated if table.since is None else table.since),
        time_limit=None if own_time_limit is None else seconds(own_time_limit, sqlite=sqlite),
        has_grace=table.has_grace,
        stuck=optional(table.stuck),
        born=optional(table.created),
    )


class ConditionPredicates:
    """For each phase, the predicate of every condition that a row in this phase may have."""

    def __init__(self, facts: FactColumns, policy: RetryPolicy, where: Where, time: TimeStyle) -> None:
        self._facts = facts
        self._policy = policy
        self._where = where
        self._time = time

    def of(self, meaning: Meaning) -> dict[Condition, Residual]:
        """The predicates of the rows whose status means this."""
        match meaning:
            case Condition():
                return {meaning: everything}
            case Phase.READY:
                return self._ready()
            case Phase.FAILED:
                return self._failed()
            case Phase.RUNNING:
                return {Condition.STUCK: self.stuck, Condition.RUNNING: lambda binds: sa.not_(self.stuck(binds))}
            case Phase.DONE:
                return {Condition.DONE: everything}
            case Phase.CANCELLED:
                return {Condition.CANCELLED: everything}
            case Phase.UNKNOWN:
                return {Condition.UNKNOWN: everything}

    def _ready(self) -> dict[Condition, Residual]:
        none_yet = self._facts.attempts <= sa.literal_column("0")
        return {Condition.WAITING: lambda _: none_yet, Condition.RETRYING: lambda _: sa.not_(none_yet)}

    def _failed(self) -> dict[Condition, Residual]:
        again = self._policy.retries_failed and self._policy.backoff is not None
        return {
            Condition.TERMINAL: self.terminal,
            Condition.RETRYING if again else Condition.FAILED: lambda binds: sa.not_(self.terminal(binds)),
        }

    def terminal(self, binds: Binds) -> Predicate:
        """Whether its system has given up a failed item; never NULL."""
        return sa.or_(sa.false(), *self._terminal_reasons(binds))

    def _terminal_reasons(self, binds: Binds) -> Iterator[Predicate]:
        facts, policy = self._facts, self._policy
        if facts.marker is not None:
            yield holds(facts.marker(binds))
        if policy.unrecoverable:
            yield holds(self._where.hopeless(facts.error, binds))
        configured = None if policy.max_attempts is None else sa.literal(policy.max_attempts)
        limit = configured if facts.max_attempts is None else sa.func.coalesce(facts.max_attempts, configured)
        if limit is not None:
            yield holds(facts.attempts >= limit)
        tried = facts.attempts >= sa.literal_column("1")
        if facts.retryable is not None:
            yield sa.and_(sa.not_(sa.func.coalesce(facts.retryable, _constant(policy.retryable))), tried)
        elif not policy.retryable:
            yield tried
        if policy.max_age is not None and facts.born is not None:
            yield holds(self._time.compared(facts.born) <= binds.from_now(self._time.bound, -policy.max_age))

    def stuck(self, binds: Binds) -> Predicate:
        """Whether a running item is stuck: its system shows that, or it runs for longer than its limit; never NULL."""
        if self._facts.stuck is None:
            return self._over_limit(binds)
        return sa.or_(self._facts.stuck.is_not(None), self._over_limit(binds))

    def _over_limit(self, binds: Binds) -> Predicate:
        facts, allowed = self._facts, self._policy.stuck_after
        if facts.since is None:
            return sa.false()
        if facts.time_limit is None:
            if allowed is None:
                return sa.false()
            return holds(self._time.compared(facts.since) < binds.from_now(self._time.bound, -allowed))
        limit = facts.time_limit * self._one_second()
        if allowed is not None and facts.has_grace:
            limit = sa.func.coalesce(limit, self._span(timedelta(0))) + self._span(allowed)
        elif allowed is not None:
            limit = sa.func.coalesce(limit, self._span(allowed))
        return holds(self._running_for(facts.since, binds) > limit)

    def _running_for(self, since: Expression, binds: Binds) -> Expression:
        if isinstance(self._time, IsoText):
            began: Expression = getattr(sa.func, _EPOCH)(in_bytes(since))
            return binds.from_now(_microseconds) - began
        return binds.from_now(self._time.bound) - self._time.compared(since)

    def _one_second(self) -> Expression:
        return self._span(timedelta(seconds=1))

    def _span(self, span: timedelta) -> Expression:
        """A span of time in the unit of `_running_for`."""
        whole = span // _MICROSECOND
        return sa.literal_column(str(whole) if isinstance(self._time, IsoText) else f"interval '{whole} microseconds'")


def holds(predicate: Predicate) -> Predicate:
    """Whether it is true: neither false nor NULL."""
    return sa.func.coalesce(predicate, sa.false())


def _constant(value: bool) -> Predicate:
    return sa.true() if value else sa.false()
