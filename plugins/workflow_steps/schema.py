"""The tables as their system creates them, and how the console reads them, in PostgreSQL and in SQLite."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from console.core.item import Condition
from console.core.policy import RetryPolicy, later
from console.sql.layout import Expression, Layout, Predicate, Residual, Roles, Segment, everything, outside
from console.sql.statement import Binds
from console.sql.times import IsoText, Naive, in_bytes
from console.sql.where import Where, head_of
from plugins.workflow_steps.rows import AT_WORK, FINISHED, LONGEST_BACKOFF, READY, StepRows, wait_of

STEPS = (
    "workflow_step_uuid", "task_uuid", "named_step_uuid", "retryable", "max_attempts", "in_process", "processed",
    "processed_at", "attempts", "last_attempted_at", "backoff_request_seconds", "inputs", "results", "created_at",
    "updated_at",
)
TRANSITIONS = (
    "workflow_step_uuid", "to_state", "from_state", "metadata", "sort_key", "most_recent", "created_at", "updated_at",
)
TASK_TRANSITIONS = (
    "task_uuid", "to_state", "from_state", "metadata", "sort_key", "most_recent", "created_at", "updated_at",
)
TABLES = {
    "workflow_steps": STEPS,
    "workflow_step_transitions": TRANSITIONS,
    "named_steps": ("named_step_uuid", "name"),
    "workflow_step_edges": ("from_step_uuid", "to_step_uuid"),
    "task_transitions": TASK_TRANSITIONS,
}
BOOLEANS = frozenset({"most_recent", "retryable", "in_process", "processed"})
LATER = "retriage_later"
"""An SQL function of our own for SQLite: a stored time plus seconds."""

_ERRORS = (
    ("results", "error", "message"), ("results", "error"), ("results", "message"), ("metadata", "error", "message"),
    ("metadata", "error"), ("metadata", "error_message"), ("metadata", "message"), ("metadata", "reason"),
)
"""Where the message of a failure is looked for, the first that is there."""


def ddl(schema: str = "tasker", *, sqlite: bool = False) -> str:
    """What the system itself creates: for demo and tests, never run on an attached database."""
    uuid, json, dot = ("TEXT", "TEXT", "") if sqlite else ("uuid", "jsonb", f"{schema}.")
    key = "INTEGER PRIMARY KEY" if sqlite else "bigserial PRIMARY KEY"
    change = (
        f"to_state TEXT NOT NULL, from_state TEXT, metadata {json}, sort_key INTEGER NOT NULL,"
        " most_recent BOOLEAN NOT NULL, created_at TIMESTAMP NOT NULL, updated_at TIMESTAMP NOT NULL"
    )
    statements = [
        *([] if sqlite else [f"CREATE SCHEMA IF NOT EXISTS {schema}"]),
        f"CREATE TABLE {dot}named_steps (named_step_uuid {uuid} PRIMARY KEY, name TEXT NOT NULL)",
        f"CREATE TABLE {dot}workflow_steps (workflow_step_uuid {uuid} PRIMARY KEY, task_uuid {uuid} NOT NULL,"
        f" named_step_uuid {uuid} NOT NULL, retryable BOOLEAN DEFAULT true, max_attempts INTEGER DEFAULT 3,"
        " in_process BOOLEAN DEFAULT false, processed BOOLEAN DEFAULT false, processed_at TIMESTAMP, attempts INTEGER,"
        f" last_attempted_at TIMESTAMP, backoff_request_seconds INTEGER, inputs {json}, results {json},"
        f" created_at TIMESTAMP, updated_at TIMESTAMP, priority INTEGER, checkpoint {json})",
        f"CREATE TABLE {dot}workflow_step_transitions (id {key}, workflow_step_uuid {uuid} NOT NULL, {change})",
        f"CREATE TABLE {dot}workflow_step_edges (from_step_uuid {uuid} NOT NULL, to_step_uuid {uuid} NOT NULL)",
        f"CREATE TABLE {dot}task_transitions (id {key}, task_uuid {uuid} NOT NULL, {change})",
        f"CREATE UNIQUE INDEX step_sort ON {dot}workflow_step_transitions (workflow_step_uuid, sort_key)",
        f"CREATE UNIQUE INDEX step_recent ON {dot}workflow_step_transitions (workflow_step_uuid) WHERE most_recent",
        f"CREATE UNIQUE INDEX task_sort ON {dot}task_transitions (task_uuid, sort_key)",
        f"CREATE UNIQUE INDEX task_recent ON {dot}task_transitions (task_uuid) WHERE most_recent",
    ]
    if sqlite:
        statements = [s.replace("INDEX step_", "INDEX s_").replace("INDEX task_", "INDEX t_") for s in statements]
    return "; ".join(statements) + ";"


def later_of(time: IsoText) -> Callable[[bytes | None, int], str | None]:
    """`LATER` for this way of storing times."""

    def told(base: bytes | None, seconds: int) -> str | None:
        at = time.decode_bytes(base)
        return None if at is None else time.bound(later(at, wait_of(seconds)))

    return told


@dataclass(frozen=True, slots=True)
class Place:
    """In which schema of which kind of database the tables are."""

    schema: str
    sqlite: bool

    def name(self, table: str) -> str:
        return table if self.sqlite else f"{self.schema}.{table}"

    def table(self, name: str, alias: str) -> Any:
        columns: list[Any] = [
            sa.column(column, sa.Boolean() if column in BOOLEANS else None)
            for column in TABLES[name]
        ]
        return sa.table(name, *columns, schema=None if self.sqlite else self.schema).alias(alias)


class Steps:
    """The expressions over a step, its most recent transition and its name."""

    def __init__(self, place: Place, policy: RetryPolicy, time: Naive | IsoText, where: Where) -> None:
        self._place = place
        self._policy = policy
        self._time = time
        self._where = where
        self.step = place.table("workflow_steps", "s")
        self._state = place.table("workflow_step_transitions", "t")
        self._named = place.table("named_steps", "n")
        s, t, n = self.step.c, self._state.c, self._named.c
        recent = sa.and_(t.workflow_step_uuid == s.workflow_step_uuid, t.most_recent.is_(sa.true()))
        self.source = self.step.outerjoin(self._state, recent).outerjoin(
            self._named, n.named_step_uuid == s.named_step_uuid
        )
        self.state: Expression = sa.func.coalesce(t.to_state, sa.literal_column("'pending'"))
        self.attempts = _whole(s.attempts)
        limit = sa.case((s.max_attempts.is_(None), _number(policy.max_attempts or 0)), else_=_whole(s.max_attempts))
        retryable = sa.func.coalesce(s.retryable, sa.true() if policy.retryable else sa.false(), type_=sa.Boolean())
        self.eligible: Predicate = sa.or_(
            self.attempts == _number(0), sa.and_(retryable.is_(sa.true()), self.attempts < limit)
        )
        self.error = self._error()

    # -- errors and times ------------------------------------------------------------------------

    def _error(self) -> Expression:
        found = [sa.func.nullif(self._path(*path), sa.literal_column("''")) for path in _ERRORS]
        whole = sa.case((self.state == sa.literal_column("'error'"), sa.cast(self.step.c.results, sa.Text)))
        return sa.case((self.state.in_(_texts(*FINISHED)), sa.null()), else_=sa.func.coalesce(*found, whole))

    def _path(self, column: str, *path: str) -> Expression:
        stored = (self.step if column == "results" else self._state).c[column]
        if self._place.sqlite:
            at: Any = sa.literal_column("'$." + ".".join(path) + "'")
            return sa.case(
                (sa.func.json_valid(stored) == _number(1), sa.cast(sa.func.json_extract(stored, at), sa.Text))
            )
        return cast(
            "Expression",
            sa.func.jsonb_extract_path_text(sa.cast(stored, JSONB), *_texts(*path)),
        )

    def _failed_at(self) -> Expression:
        past = self._place.table("workflow_step_transitions", "f")
        failures = sa.select(sa.func.max(past.c.created_at)).where(
            past.c.workflow_step_uuid == self.step.c.workflow_step_uuid,
            past.c.to_state == sa.literal_column("'error'"),
        )
        return cast("Expression", failures.correlate(self.step).scalar_subquery())

    def _next(self) -> Expression:
        s = self.step.c
        grown = [(self.attempts == _number(n), _number(2**n)) for n in range(6)]
        own = sa.case(*grown, else_=_number(LONGEST_BACKOFF))
        attempted = self._time.compared(s.last_attempted_at)
        told = sa.and_(attempted.is_not(None), s.backoff_request_seconds.is_not(None))
        later = sa.case(
            (told, self._later(s.last_attempted_at, _whole(s.backoff_request_seconds))),
            else_=self._later(self._failed_at(), own),
        )
        retrying = sa.and_(
            self.state.in_(_texts(*READY)), self.attempts > _number(0), self.eligible, sa.not_(self._held())
        )
        return sa.case((retrying, later))

    def _later(self, base: Expression, seconds: Expression) -> Expression:
        if isinstance(self._time, IsoText):
            return cast("Expression", getattr(sa.func, LATER)(in_bytes(base), seconds))
        wait: Any = sa.cast(seconds, sa.BigInteger) * sa.literal_column("interval '1 second'")
        return self._time.later(base, wait)

    def _held(self) -> Predicate:
        s = self.step.c
        return sa.or_(s.in_process.is_(sa.true()), s.processed.is_(sa.true()))

    # -- layout ----------------------------------------------------------------------------------

    def roles(self) -> Roles:
        s, t, n = self.step.c, self._state.c, self._named.c
        name = sa.cast(n.name, sa.Text) if self._place.sqlite else sa.collate(sa.cast(n.name, sa.Text), "C")
        return Roles(
            key=(s.workflow_step_uuid,),
            tie=(s.workflow_step_uuid,),
            row=(
                s.workflow_step_uuid, name, self.state, t.created_at, self._failed_at(), head_of(self.error),
                s.attempts, s.max_attempts, s.retryable, s.in_process, s.processed, s.last_attempted_at,
                s.backoff_request_seconds, s.created_at, s.updated_at,
            ),
            type=name,
            status=self.state,
            attempts=self.attempts,
            error=self.error,
            created=s.created_at,
            updated=s.updated_at,
            next=self._next(),
            references=(s.task_uuid,),
            native_key=self._native_key,
        )

    def _native_key(self, parts: tuple[str, ...]) -> tuple[Any, ...] | None:
        if self._place.sqlite:
            return parts
        return (UUID(parts[0]),) if is_uuid(parts[0]) else None

    def segments(self) -> tuple[Segment, ...]:
        roles, groups = self.roles(), self._groups()
        listed = [
            Segment(self.source, self.state.in_(_texts(*states)), roles, cases) for states, cases in groups.items()
        ]
        known = [state for states in groups for state in states]
        return (*listed, Segment(self.source, outside(self.state, known), roles, {Condition.UNKNOWN: everything}))

    def _groups(self) -> dict[tuple[str, ...], dict[Condition, Residual]]:
        none = self.attempts == _number(0)

        def hopeless(binds: Binds) -> Predicate:
            return sa.func.coalesce(self._where.hopeless(self.error, binds), sa.false())

        def stuck(binds: Binds) -> Predicate:
            if self._policy.stuck_after is None:
                return sa.false()
            old = binds.from_now(self._time.bound, -self._policy.stuck_after)
            return sa.func.coalesce(self._time.compared(self._state.c.created_at) < old, sa.false())

        return {
            READY: {
                Condition.WAITING: lambda _: none,
                Condition.RETRYING: lambda _: sa.and_(sa.not_(none), self.eligible),
                Condition.TERMINAL: lambda _: sa.not_(self.eligible),
            },
            AT_WORK: {Condition.STUCK: stuck, Condition.RUNNING: lambda binds: sa.not_(stuck(binds))},
            ("error",): {
                Condition.FAILED: lambda binds: sa.and_(self.eligible, sa.not_(hopeless(binds))),
                Condition.TERMINAL: lambda binds: sa.or_(sa.not_(self.eligible), hopeless(binds)),
            },
            FINISHED: {Condition.DONE: everything},
            ("cancelled",): {Condition.CANCELLED: everything},
        }

    # -- what a plan needs to know besides -------------------------------------------------------

    def outlook(self) -> tuple[Expression, ...]:
        """Task, its state and since when, and the names of parents that are not complete."""
        s = self.step.c
        tasks = self._place.table("task_transitions", "tt")

        def of_task(column: Any) -> Expression:
            found = sa.select(column).where(tasks.c.task_uuid == s.task_uuid, tasks.c.most_recent.is_(sa.true()))
            return cast("Expression", found.correlate(self.step).limit(_number(1)).scalar_subquery())

        return (s.task_uuid, of_task(tasks.c.to_state), of_task(tasks.c.created_at), self.waits_for())

    def waits_for(self) -> Expression:
        edge = self._place.table("workflow_step_edges", "e")
        parent, name = self._place.table("workflow_steps", "p"), self._place.table("named_steps", "pn")
        state = self._place.table("workflow_step_transitions", "pt")
        joined = (
            edge.join(parent, parent.c.workflow_step_uuid == edge.c.from_step_uuid)
            .outerjoin(name, name.c.named_step_uuid == parent.c.named_step_uuid)
            .outerjoin(
                state,
                sa.and_(state.c.workflow_step_uuid == parent.c.workflow_step_uuid, state.c.most_recent.is_(sa.true())),
            )
        )
        listed = sa.func.group_concat if self._place.sqlite else sa.func.string_agg
        now = sa.func.coalesce(state.c.to_state, sa.literal_column("'pending'"))
        names = sa.select(listed(sa.cast(name.c.name, sa.Text), sa.literal_column("', '"))).select_from(joined).where(
            edge.c.to_step_uuid == self.step.c.workflow_step_uuid, now.not_in(_texts(*FINISHED))
        )
        return cast("Expression", names.correlate(self.step).scalar_subquery())


def is_uuid(text: str) -> bool:
    """As the server writes one: a key that reads otherwise is another text, and names nothing."""
    try:
        return str(UUID(text)) == text
    except ValueError:
        return False


def _whole(column: Any) -> Expression:
    """A stored number as `whole_number` reads it."""
    number = sa.cast(column, sa.BigInteger)
    return sa.case((number > _number(0), number), else_=_number(0))


def _number(n: int) -> Expression:
    return sa.literal_column(str(n))


def _texts(*texts: str) -> list[Expression]:
    return [sa.literal_column(f"'{text}'") for text in texts]


def layout(steps: Steps, rows: StepRows, time: Naive | IsoText) -> Layout:
    return Layout(
        steps.segments(),
        rows.read,
        time,
        natural=lambda _: None,
        nullable=frozenset({"updated", "created", "next", "type"}),
        leads_are_indexed=False,
    )
