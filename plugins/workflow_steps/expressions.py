"""How a step is read: its state, error, attempts and times as expressions, and what decides whether it ever runs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import cached_property
from typing import Any, cast
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from console.core.item import Condition
from console.core.policy import Phase, RetryPolicy, later
from console.sql.conditions import ConditionPredicates, FactColumns, holds, whole_number
from console.sql.database import Binds, FromNow, shifted
from console.sql.layout import Expression, Layout, Predicate, Residual, Roles, Segment, outside
from console.sql.times import IsoText, Naive, in_bytes
from console.sql.where import Where, shown_error
from plugins.workflow_steps.prediction import POLLED_STATES, READY, WORKING_STATES
from plugins.workflow_steps.rows import AT_WORK, FINISHED, LONGEST_BACKOFF, PHASES, StepRows, wait_of
from plugins.workflow_steps.schema import DEAD_LETTERS, StepTables, is_uuid, texts

ADD_SECONDS = "retriage_later"
"""The name of an SQL function that Retriage adds to SQLite: a stored time plus seconds."""

_ERRORS = (
    ("results", "error", "message"), ("results", "error"), ("results", "message"), ("metadata", "error", "message"),
    ("metadata", "error"), ("metadata", "error_message"), ("metadata", "message"), ("metadata", "reason"),
    ("metadata", "event", "Fail"), ("metadata", "event", "WaitForRetry"),
)
"""Where to find the message of a failure. The first one with a value is used."""
_FAILURES = ("Fail", "WaitForRetry")
"""The events of a failure. The system stores an event as JSON text within the metadata: `{"Fail":"card declined"}`."""
_LIMITS = {state: limit for state, limit in POLLED_STATES.items() if limit is not None}


def add_seconds_function(time: IsoText) -> Callable[[bytes | None, int], str | None]:
    """The function `ADD_SECONDS` for times that are stored like this."""

    def add_seconds(base: bytes | None, seconds: int) -> str | None:
        at = time.decode_bytes(base)
        return None if at is None else time.bound(later(at, wait_of(seconds)))

    return add_seconds


class StepExpressions:
    """The expressions over a step, its most recent transition, its name, and its task."""

    def __init__(self, tables: StepTables, policy: RetryPolicy, time: Naive | IsoText, where: Where) -> None:
        self._tables = tables
        self._policy = policy
        self._time = time
        self._where = where
        self.step = tables.alias("workflow_steps", "s")
        self._state = tables.alias("workflow_step_transitions", "t")
        self._named = tables.alias("named_steps", "n")
        self._task_state = tables.alias("task_transitions", "tt")
        self._task = tables.alias("tasks", "k")
        s, n, task = self.step.c, self._named.c, self._task.c
        self.source = (
            self.step.outerjoin(self._state, _recent(self._state, s.workflow_step_uuid))
            .outerjoin(self._named, n.named_step_uuid == s.named_step_uuid)
            .outerjoin(self._task_state, _recent(self._task_state, s.task_uuid))
            .outerjoin(self._task, task.task_uuid == s.task_uuid)
        )
        self.state = _state_of(self._state)
        self.attempts = whole_number(s.attempts, sqlite=tables.sqlite)
        self.eligible = self._eligible(self.step)
        self.error = self._error()
        self._is_ready = self.state.in_(texts(*READY))

    def _limit(self, step: Any) -> Expression:
        own = whole_number(step.c.max_attempts, sqlite=self._tables.sqlite)
        return sa.case((step.c.max_attempts.is_(None), _number(self._policy.max_attempts or 0)), else_=own)

    def _eligible(self, step: Any) -> Predicate:
        attempts = whole_number(step.c.attempts, sqlite=self._tables.sqlite)
        usual = sa.true() if self._policy.retryable else sa.false()
        retryable = sa.func.coalesce(step.c.retryable, usual, type_=sa.Boolean())
        return sa.or_(attempts == _number(0), sa.and_(retryable.is_(sa.true()), attempts < self._limit(step)))

    # -- errors and times ------------------------------------------------------------------------

    def _error(self) -> Expression:
        found = [sa.func.nullif(self._path(*path), sa.literal_column("''")) for path in _ERRORS]
        failed = sa.case((self.state == sa.literal_column("'error'"), sa.cast(self.step.c.results, sa.Text)))
        return sa.case(
            (self.state.in_(texts(*FINISHED)), sa.null()), else_=sa.func.coalesce(*found, self._event(), failed)
        )

    def _event(self) -> Expression:
        """The message in the event of a failure."""
        event = self._path("metadata", "event")
        starts = {name: f'{{"{name}":"' for name in _FAILURES}
        return sa.case(*(
            (
                event.like(sa.literal_column(f"'{start}%\"}}'")),
                sa.func.substr(event, _number(len(start) + 1), sa.func.length(event) - _number(len(start) + 2)),
            )
            for start in starts.values()
        ))

    def _path(self, column: str, *path: str) -> Expression:
        stored = (self.step if column == "results" else self._state).c[column]
        if self._tables.sqlite:
            at: Any = sa.literal_column("'$." + ".".join(path) + "'")
            return sa.case(
                (sa.func.json_valid(stored) == _number(1), sa.cast(sa.func.json_extract(stored, at), sa.Text))
            )
        return cast(
            "Expression",
            sa.func.jsonb_extract_path_text(sa.cast(stored, JSONB), *texts(*path)),
        )

    def _failed_at(self) -> Expression:
        past = self._tables.alias("workflow_step_transitions", "f")
        return self._one(sa.select(sa.func.max(past.c.created_at)).where(
            past.c.workflow_step_uuid == self.step.c.workflow_step_uuid,
            past.c.to_state == sa.literal_column("'error'"),
        ))

    def _next(self) -> Expression:
        s = self.step.c
        grown = [(s.attempts.is_(None), _number(2)), *((self.attempts == _number(n), _number(2**n)) for n in range(6))]
        own = sa.case(*grown, else_=_number(LONGEST_BACKOFF))
        attempted = self._time.compared(s.last_attempted_at)
        requested = sa.and_(attempted.is_not(None), s.backoff_request_seconds.is_not(None))
        seconds = whole_number(s.backoff_request_seconds, sqlite=self._tables.sqlite)
        return sa.case(
            (requested, self._later(s.last_attempted_at, seconds)),
            else_=self._later(self._failed_at(), own),
        )

    def _later(self, base: Expression, seconds: Expression) -> Expression:
        if isinstance(self._time, IsoText):
            return cast("Expression", getattr(sa.func, ADD_SECONDS)(in_bytes(base), seconds))
        wait: Any = sa.cast(seconds, sa.BigInteger) * sa.literal_column("interval '1 second'")
        return self._time.later(base, wait)

    # -- task and parents ------------------------------------------------------------------------

    def _one(self, select: Any) -> Expression:
        """A value that another table has for this step."""
        return cast("Expression", select.correlate(self.step).scalar_subquery())

    def _failed_siblings(self) -> Expression:
        """How many other steps of the task are in error."""
        other, state = self._tables.alias("workflow_steps", "o"), self._tables.alias("workflow_step_transitions", "ot")
        joined = other.join(state, _recent(state, other.c.workflow_step_uuid))
        return self._one(sa.select(sa.func.count()).select_from(joined).where(
            other.c.task_uuid == self.step.c.task_uuid,
            other.c.workflow_step_uuid != self.step.c.workflow_step_uuid,
            state.c.to_state == sa.literal_column("'error'"),
        ))

    def _dead_letter(self) -> Expression:
        """Why the task is in the dead letter queue."""
        if not self._tables.has_dead_letters:
            return sa.null()
        letter = self._tables.alias(DEAD_LETTERS, "q")
        return self._one(sa.select(sa.func.max(sa.cast(letter.c.dlq_reason, sa.Text))).where(
            letter.c.task_uuid == self.step.c.task_uuid,
            sa.cast(letter.c.resolution_status, sa.Text) == sa.literal_column("'pending'"),
        ))

    def _waits_for(self) -> Expression:
        """The names of the parents that are not complete."""
        parents = self._unfinished(self.step.c.workflow_step_uuid, "e")
        parent, name = self._tables.alias("workflow_steps", "p"), self._tables.alias("named_steps", "pn")
        listed = sa.func.group_concat if self._tables.sqlite else sa.func.string_agg
        found = parents.correlate(self.step).subquery("parents")
        joined = found.join(parent, parent.c.workflow_step_uuid == found.c.id).join(
            name, name.c.named_step_uuid == parent.c.named_step_uuid
        )
        return self._one(
            sa.select(listed(sa.cast(name.c.name, sa.Text), sa.literal_column("', '"))).select_from(joined)
        )

    def _unfinished(self, child: Expression, alias: str, *sources: Any) -> Any:
        """The parents of a step that are neither complete nor resolved."""
        edge = self._tables.alias("workflow_step_edges", alias)
        state = self._tables.alias("workflow_step_transitions", f"{alias}t")
        start = edge if not sources else sources[0].join(edge, edge.c.to_step_uuid == child)
        joined = start.outerjoin(state, _recent(state, edge.c.from_step_uuid))
        open_ = _state_of(state).not_in(texts(*FINISHED))
        found = sa.select(edge.c.from_step_uuid.label("id")).select_from(joined)
        return found.where(open_) if sources else found.where(edge.c.to_step_uuid == child, open_)

    def _ancestor(self, which: Callable[[Any, Expression], Predicate]) -> Expression:
        """The name of an unfinished ancestor of this kind, given its row and state."""
        direct = self._unfinished(self.step.c.workflow_step_uuid, "e0").correlate(self.step)
        above = direct.cte("ancestors", recursive=True, nesting=True)
        above = above.union(self._unfinished(above.c.id, "e1", above))
        step, name = self._tables.alias("workflow_steps", "a"), self._tables.alias("named_steps", "an")
        state = self._tables.alias("workflow_step_transitions", "at")
        joined = (
            above.join(step, step.c.workflow_step_uuid == above.c.id)
            .outerjoin(name, name.c.named_step_uuid == step.c.named_step_uuid)
            .outerjoin(state, _recent(state, above.c.id))
        )
        found = sa.func.min(sa.func.coalesce(sa.cast(name.c.name, sa.Text), sa.literal_column("'?'")))
        return self._one(sa.select(found).select_from(joined).where(which(step, _state_of(state))))

    def _never_completes(self, step: Any, state: Expression) -> Predicate:
        possible = texts("error", *READY, *AT_WORK)  # one in error counts among the failed steps of the task
        ready = state.in_(texts(*READY))
        held = sa.or_(_is_marked(step), sa.not_(self._eligible(step)))
        return sa.or_(state.not_in(possible), sa.and_(ready, held))

    def _may_fail(self, step: Any, state: Expression) -> Predicate:
        attempts = whole_number(step.c.attempts, sqlite=self._tables.sqlite)
        tried = sa.or_(attempts > _number(0), step.c.backoff_request_seconds.is_not(None))
        return sa.or_(state.in_(texts(*AT_WORK)), sa.and_(state.in_(texts(*READY)), tried))

    # -- layout ----------------------------------------------------------------------------------

    def roles(self) -> Roles:
        s, t, n, tt, task = self.step.c, self._state.c, self._named.c, self._task_state.c, self._task.c
        name = sa.cast(n.name, sa.Text) if self._tables.sqlite else sa.collate(sa.cast(n.name, sa.Text), "C")
        return Roles(
            key=(s.workflow_step_uuid,),
            tiebreaker=(s.workflow_step_uuid,),
            row=(
                s.workflow_step_uuid, name, self.state, t.created_at, self._failed_at(), shown_error(self.error),
                s.attempts, s.max_attempts, s.retryable, s.in_process, s.processed, s.last_attempted_at,
                s.backoff_request_seconds, s.created_at, s.updated_at, s.task_uuid, tt.to_state, tt.created_at,
                task.created_at, task.priority, self._dead_letter(), self._failed_siblings(), self._waits_for(),
                self._if_ready(self._ancestor(self._never_completes)), self._if_ready(self._ancestor(self._may_fail)),
            ),
            type=name,
            status=self.state,
            attempts=self.attempts,
            error=self.error,
            created=s.created_at,
            updated=s.updated_at,
            next=sa.case((sa.and_(self._is_ready, self.eligible, sa.not_(self._never_runs)), self._next())),
            references=(s.task_uuid,),
            native_key=self._native_key,
        )

    def _if_ready(self, expression: Expression) -> Expression:
        return sa.case((sa.or_(self._is_ready, self.state == sa.literal_column("'error'")), expression))

    def _native_key(self, parts: tuple[str, ...]) -> tuple[Any, ...] | None:
        if self._tables.sqlite:
            return parts
        return (UUID(parts[0]),) if is_uuid(parts[0]) else None

    def segments(self) -> tuple[Segment, ...]:
        roles, of = self.roles(), self._predicates().of
        ready = Segment(self.source, self._is_ready, roles, self._ready())
        others = [
            Segment(self.source, self.state.in_(texts(*states)), roles, of(phase))
            for phase, states in _states_by_phase().items()
        ]
        unknown = Segment(self.source, outside(self.state, PHASES), roles, of(Phase.UNKNOWN))
        return (ready, *others, unknown)

    def _predicates(self) -> ConditionPredicates:
        own, limit = self.step.c.retryable, self._limit(self.step)
        facts = FactColumns(
            attempts=self.attempts,
            error=self.error,
            max_attempts=sa.case((limit < _number(1), _number(1)), else_=limit),
            retryable=sa.case((own.is_not(None), own.is_(sa.true()))),
            since=self._state.c.created_at,
        )
        return ConditionPredicates(facts, self._policy, self._where, self._time)

    def _ready(self) -> dict[Condition, Residual]:
        none_yet = self.attempts == _number(0)
        return {
            Condition.TERMINAL: lambda _: sa.not_(self.eligible),
            Condition.STUCK: lambda _: sa.and_(self.eligible, self._never_runs),
            Condition.WAITING: lambda _: sa.and_(none_yet, sa.not_(self._never_runs)),
            Condition.RETRYING: lambda _: sa.and_(sa.not_(none_yet), self.eligible, sa.not_(self._never_runs)),
        }

    @cached_property
    def _never_runs(self) -> Predicate:
        """Whether `predict` says that a ready and eligible step does not run; never NULL."""
        state, since = self._task_state.c.to_state, self._time.compared(self._task_state.c.created_at)
        stale = (sa.and_(state == sa.literal_column(f"'{name}'"), since < Binds.given(name)) for name in _LIMITS)
        polled = state.in_(texts(*POLLED_STATES, *WORKING_STATES))
        return sa.or_(
            _is_marked(self.step),
            sa.not_(holds(polled)),
            *map(holds, stale),
            self._failed_siblings() > _number(0),
            self._ancestor(self._never_completes).is_not(None),
        )

    @property
    def moving(self) -> dict[str, FromNow]:
        """The parameters of `_never_runs`: since when a task may have been in its state."""

        def before(limit: timedelta) -> FromNow:
            return lambda now: self._time.bound(shifted(now, -limit))

        return {name: before(limit) for name, limit in _LIMITS.items()}


def _recent(transitions: Any, id: Expression) -> Predicate:
    """Whether a transition is the most recent one of this step or task."""
    owner = transitions.c[0]
    return sa.and_(owner == id, transitions.c.most_recent.is_(sa.true()))


def _state_of(transitions: Any) -> Expression:
    return sa.func.coalesce(transitions.c.to_state, sa.literal_column("'pending'"))


def _is_marked(step: Any) -> Predicate:
    return sa.or_(step.c.in_process.is_(sa.true()), step.c.processed.is_(sa.true()))


def _states_by_phase() -> dict[Phase, list[str]]:
    found: dict[Phase, list[str]] = {}
    for state, phase in PHASES.items():
        if phase is not Phase.READY:
            found.setdefault(phase, []).append(state)
    return found


def _number(n: int) -> Expression:
    return sa.literal_column(str(n))


def layout(steps: StepExpressions, rows: StepRows, time: Naive | IsoText) -> Layout:
    return Layout(
        steps.segments(),
        rows.read,
        time,
        natural=lambda _: None,
        nullable=frozenset({"updated", "created", "next", "type"}),
        moving=steps.moving,
        segments_are_indexed=False,
    )
