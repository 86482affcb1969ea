"""The declaration of a queue table. This is the manual for a plugin that reads and requeues rows of one SQL table.

A plugin says once what each column means, what each native status means, and what a requeue and a discard write.
Everything else follows from that: pages, counts, filters, conditions (in Python and in SQL), plans, guarded writes,
undo, item details and the findings of `retriage check`.

    TASKS = QueueTable(
        table=columns_of("tasks", "id", "kind", "state", "tries", "run_at", "error", "created_at", "updated_at"),
        key="id",
        type="kind",
        status="state",
        statuses={"queued": Phase.READY, "working": Phase.RUNNING, "dead": Phase.FAILED, "ok": Phase.DONE,
                  "cancelled": Phase.CANCELLED},
        attempts="tries",
        due="run_at",
        error="error",
        created="created_at",
        updated="updated_at",
        index=("state", "run_at"),
        requeue=RequeueRule(
            guard=("state", "tries", "updated_at", "created_at"),
            assigns={"state": "queued", "run_at": StoredTime.DUE, "updated_at": StoredTime.NOW},
            resets={"tries": 0},
        ),
        discard=DiscardRule(assigns={"state": "cancelled", "updated_at": StoredTime.NOW}),
    )

    class Tasks(QueueTableBackend):
        @classmethod
        def open(cls, name, options, policy, *, read_only, deadline):
            database = open_database(options.url, read_only=read_only, deadline=deadline)
            return cls(name, "tasks", database, TASKS, policy.over(OWN_POLICY), IsoText())

A column is given by its name in `table`. Where its meaning is not one column (a join, a JSON field), give a SQLAlchemy
expression instead. `console.testing.exercise_backend` and `exercise_requeue` hold the result to the contract.

A plugin whose system has rules of its own overrides single methods of `QueueTableBackend`, or uses the parts:
`conditions.ConditionPredicates` for the predicates, `guarded.SqliteGuard` and `guarded_postgres.PostgresGuard` for the
writes, `core.action_rules` for the reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any, Literal, NamedTuple, assert_never

import sqlalchemy as sa
from sqlalchemy.sql.selectable import FromClause

from console.core.action_rules import Decision, decide, decide_discard
from console.core.backend import (
    NO_DISCARD_RULE,
    Abilities,
    Action,
    Attempts,
    DiscardAbility,
    Flag,
    Operation,
    Throughput,
    UndoKind,
)
from console.core.item import Condition, Verdict
from console.core.policy import Facts, Phase, RetryPolicy
from console.core.prediction import Prediction
from console.sql.layout import Expression

Column = str | Expression
"""A column of the declared table by its name, or any expression over what is read."""

ROW_ADDRESSES = ("rowid", "ctid")
"""How SQLite and PostgreSQL address a row. Every declared table has both; each database uses its own."""


Meaning = Phase | Literal[Condition.WAITING, Condition.RETRYING, Condition.TERMINAL]
"""What a native status means: a phase, in which counters, errors and times decide the condition, or one of the
conditions waiting, retrying and terminal, which nothing else changes."""


def phase_of(meaning: Meaning) -> Phase:
    """The phase of an item whose status means this."""
    match meaning:
        case Phase():
            return meaning
        case Condition.WAITING | Condition.RETRYING:
            return Phase.READY
        case Condition.TERMINAL:
            return Phase.FAILED
        case _:
            assert_never(meaning)


class StoredTime(Enum):
    """A time that a requeue writes, in the way the table stores times."""

    NOW = "now"
    """When the override writes the row, by the database's own clock."""
    DUE = "due"
    """When the item may run: now, or later if the plan has a pace."""


class StoredRow(NamedTuple):
    """One row by what its columns mean; None where the table has no such column or it was not read."""

    key: Any = None
    type: Any = None
    status: Any = None
    attempts: Any = None
    max_attempts: Any = None
    due: Any = None
    time_limit: Any = None
    error: Any = None
    created: Any = None
    updated: Any = None
    since: Any = None
    executed: Any = None
    recorded: Any = None
    stuck: Any = None
    held: Any = None
    expires: Any = None


Assigned = object
"""What a requeue writes into a column: a `StoredTime`, a plain value, or a function of the column's present value and
the due time as it is stored."""
Compute = Callable[[Any, Any], Any]
Predict = Callable[[StoredRow], Prediction]
Decide = Callable[[Facts, Verdict, Operation, RetryPolicy, datetime], Decision]


def columns_of(table: str, *columns: str, schema: str | None = None) -> sa.TableClause:
    """A table to declare, with its columns by name."""
    return sa.table(table, *(sa.column(column) for column in (*ROW_ADDRESSES, *columns)), schema=schema)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequeueRule:
    """What a requeue writes, what must be unchanged for that, and when it is not done."""

    guard: tuple[str, ...]
    """Columns that must still be as the plan saw them, besides those that are written. At least one of them should
    change whenever the system touches the row, and one should never change (when it was created, a UUID), so that
    another row with the same key is noticed."""
    assigns: Mapping[str, Assigned]
    """What every requeue writes, by column."""
    resets: Mapping[str, Assigned] = field(default_factory=dict)
    """What it writes besides when the attempts are reset. Empty: this table's attempts cannot be reset."""
    decide: Decide = decide
    """Why an item is skipped, or what to warn of."""
    flags: frozenset[str] = frozenset({Flag.INCLUDE_UNRECOVERABLE})
    """The switches that `decide` looks at."""
    throughput: Throughput | None = None
    """How fast its system takes requeued rows, if its loop limits that."""
    changes_on_every_transition: str | None = None
    """The guard column that makes the guard strong; None if a change and a change back would go unnoticed."""

    @property
    def attempts(self) -> frozenset[Attempts]:
        return frozenset(Attempts) if self.resets else frozenset({Attempts.KEEP})


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscardRule:
    """What a discard writes, so that its system never runs the item again. It has the guard of the requeue."""

    assigns: Mapping[str, Assigned]
    """What it writes, by column. The status should be one that its system itself uses for an item it has given up."""
    takes_terminal: bool = False
    """Also takes terminal items, because its system has a way to close them."""
    decide: Decide | None = None
    """Why an item is skipped, or what to warn of. None: the usual rule, `core.action_rules`."""

    def decision(
        self, facts: Facts, verdict: Verdict, operation: Operation, policy: RetryPolicy, now: datetime
    ) -> Decision:
        if self.decide is not None:
            return self.decide(facts, verdict, operation, policy, now)
        return decide_discard(verdict.condition, takes_terminal=self.takes_terminal)


CANNOT_WRITE = Abilities(frozenset(), frozenset(), UndoKind.NONE, stores_due_time=False, guard=())
"""The abilities of a backend that only reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueTable:
    """One queue table: what its columns and statuses mean, and what a requeue does."""

    table: sa.TableClause
    """From `columns_of`. This is the table that is written."""
    source: FromClause | None = None
    """What is read, if that is more than the table: the table joined with others, one row for each of its rows."""
    requires: tuple[sa.TableClause, ...] = ()
    """The other tables of `source`. A missing column is a `WrongSchema` fault, and their columns are shown too."""

    key: str | tuple[str, ...]
    """The column that identifies a row. `QueueTableBackend` supports one column, `TableRows` several."""
    integer_key: bool = False
    """The key is a whole number; otherwise text or a UUID."""
    type: Column
    status: Column
    statuses: Mapping[Any, Meaning]
    """Native status → its meaning. Any other status is `unknown`."""
    attempts: Column
    """Executions so far, the first one included."""
    error: Column
    max_attempts: Column | None = None
    """The row's own limit. The policy's counts where it is NULL."""
    due: Column | None = None
    """When its system takes a ready row."""
    needs_due: bool = False
    """Its system never takes a ready row whose due time is NULL."""
    predict: Predict | None = None
    """Whether and when its system takes a row, given by its stored values, once its status is ready. None: when it is
    due. A plan skips rows that it would not take."""
    time_limit: Column | None = None
    """How many seconds a row may run before it is stuck. The policy's `stuck_after` counts where it is NULL."""
    has_grace: bool = False
    """Its system does not enforce `time_limit`: a row is stuck only `stuck_after` later."""
    stuck_note: Callable[[StoredRow], str] | None = None
    """What else the verdict on a stuck row says."""
    created: Column | None = None
    updated: Column | None = None
    """When the row last changed."""
    since: Column | None = None
    """When a running item began; its time limit counts from here. None: `updated`."""
    executed: Column | None = None
    """When the last attempt began. None: `updated`, once there was an attempt."""
    counts_executions: bool = False
    """`attempts`, a column of the guard, grows with every execution and by nothing else. Then it proves that
    a requeued item was executed. Otherwise `executed` has to, by being later than the requeue."""
    finished: Column | None = None
    """When the last attempt ended, for the item's details."""
    recorded: Column | None = None
    """The number of the attempt that the error belongs to. None: the last attempt."""
    references: tuple[Column, ...] = ()
    """What a bare word in a filter is also searched in."""
    reclaims: bool | None = False
    """Its system runs stuck rows again by itself while attempts are left. None: nobody can tell."""
    stuck: Column | None = None
    """Why a running row is stuck whatever its age, as a sentence; NULL if it is not."""
    expires: Column | None = None
    """When its system deletes a row, finished or not."""
    held: Column | None = None
    """Why its system does not take a ready row for now, as a sentence; NULL if it does."""

    index: tuple[str, ...] = ()
    """Status and then the column that lists are ordered by: the index that makes lists of a large table quick."""
    requeue: RequeueRule | None = None
    discard: DiscardRule | None = None
    """Needs `requeue` too, for its guard."""
    no_discard: str = NO_DISCARD_RULE
    """Why there is no `discard`, as a sentence."""

    @property
    def abilities(self) -> Abilities:
        rule, discard = self.requeue, self.discard
        if rule is None:
            return CANNOT_WRITE
        actions = {Action.REQUEUE, Action.UNDO, *(() if discard is None else (Action.DISCARD,))}
        return Abilities(
            actions=frozenset(actions),
            attempts=rule.attempts,
            undo=UndoKind.EXACT,
            stores_due_time=StoredTime.DUE in rule.assigns.values(),
            guard=rule.guard,
            guard_is_weak=rule.changes_on_every_transition is None,
            flags=rule.flags,
            throughput=rule.throughput,
            execution_counter=str(self.attempts) if self.counts_executions else None,
            discard=None if discard is None else DiscardAbility(takes_terminal=discard.takes_terminal),
            no_discard=self.no_discard,
        )

    def rule(self, action: Action) -> RequeueRule | DiscardRule | None:
        """The rule of an action. An undo writes the before-image, which needs none."""
        match action:
            case Action.REQUEUE:
                return self.requeue
            case Action.DISCARD:
                return self.discard
            case Action.UNDO:
                return None
            case _:
                assert_never(action)

    def writes(self, action: Action, attempts: Attempts) -> Mapping[str, Assigned]:
        """What an action writes, by column."""
        rule = self.rule(action)
        if isinstance(rule, RequeueRule) and attempts is Attempts.RESET:
            return {**rule.assigns, **rule.resets}
        return {} if rule is None else rule.assigns

    def expression(self, column: Column) -> Expression:
        return self.table.c[column] if isinstance(column, str) else column

    def or_null(self, column: Column | None) -> Expression:
        return sa.null() if column is None else self.expression(column)

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.key,) if isinstance(self.key, str) else self.key

    @property
    def reads(self) -> FromClause:
        return self.table if self.source is None else self.source

    @property
    def image(self) -> tuple[str, ...]:
        """The columns that a write compares and sets, in the table's order."""
        rule = self.requeue
        used = set() if rule is None else {*rule.guard, *rule.assigns, *rule.resets}
        used |= set() if self.discard is None else {*self.discard.assigns}
        return tuple(name for name in names_of(self.table) if name in used)


def names_of(table: sa.TableClause) -> list[str]:
    """The names of a declared table's columns."""
    return [column.name for column in table.c if column.name not in ROW_ADDRESSES]
