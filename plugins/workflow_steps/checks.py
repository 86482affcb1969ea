"""The findings of `retriage check` for workflow steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from console.core.backend import Finding, Severity
from console.core.faults import DeadlineExceeded
from console.core.policy import FOREVER
from console.core.ports import Clock
from console.sql.checks import clock_finding, index_finding, privilege_findings, unused_max_age
from console.sql.database import Binds, BoundStatement
from console.sql.row_security import row_security_findings
from console.sql.sqlite import SqliteDatabase
from console.sql.values import text, whole_number
from plugins.workflow_steps.rows import is_true
from plugins.workflow_steps.schema import DEAD_LETTERS

if TYPE_CHECKING:
    from plugins.workflow_steps.backend import WorkflowSteps

_STATE = ("from_state", "to_state", "sort_key", "metadata", "most_recent", "created_at", "updated_at")
_NEEDED = (
    ("UPDATE", "workflow_steps", (
        "attempts", "in_process", "processed", "processed_at", "backoff_request_seconds", "updated_at",
    )),
    ("UPDATE", "workflow_step_transitions", ("most_recent", "updated_at")),
    ("INSERT", "workflow_step_transitions", ("workflow_step_uuid", *_STATE)),
    ("UPDATE", "task_transitions", ("most_recent", "updated_at")),
    ("INSERT", "task_transitions", ("task_uuid", *_STATE)),
)
"""What a requeue writes."""
_MOST = 200


def findings(backend: WorkflowSteps, clock: Clock) -> Sequence[Finding]:
    tables = backend.tables
    return [
        Finding(Severity.OK, "schema", f"{tables.name('workflow_steps')} and its tables have the expected columns"),
        index_finding(backend.database, tables.name("workflow_step_transitions"), ("workflow_step_uuid",)),
        *privilege_findings(backend.database, [tables.name("workflow_steps")], _missing(backend)),
        *row_security_findings(backend),
        Finding(Severity.OK, "guard", "strong: sort_key grows with every transition"),
        clock_finding(backend.database, clock),
        *_limits(backend),
        *([unused_max_age("this system has no limit on the age of a step")] if backend.has_max_age else []),
        *_dead_letters(backend),
    ]


def _missing(backend: WorkflowSteps) -> list[str]:
    """The privileges that a requeue needs and our role does not have."""
    database, tables = backend.database, backend.tables
    if isinstance(database, SqliteDatabase):
        return []
    return [
        f"{privilege} on {tables.name(table)}"
        for privilege, table, columns in _NEEDED
        if not database.may(tables.name(table), privilege, columns)
    ]


def _dead_letters(backend: WorkflowSteps) -> Iterator[Finding]:
    """The tasks that the system itself has given up."""
    if not backend.has_dead_letters:
        return
    letters = backend.tables.alias(DEAD_LETTERS, "q")
    reason: Any = sa.cast(letters.c.dlq_reason, sa.Text)
    pending = sa.cast(letters.c.resolution_status, sa.Text) == sa.literal_column("'pending'")
    select = sa.select(reason, sa.func.count()).select_from(letters).where(pending).group_by(reason).order_by(reason)
    rows = backend.database.read(BoundStatement(select, Binds()), backend.now())
    if not rows:
        yield Finding(Severity.OK, "dead letters", "no task is in the dead letter queue")
        return
    listed = ", ".join(f"{text(reason)} {count}" for reason, count in rows)
    yield Finding(
        Severity.WARNING, "dead letters", f"tasks are in the dead letter queue: {listed}",
        "Its system runs none of their steps. Wake a task, or resolve its entry there.",
    )


def _limits(backend: WorkflowSteps) -> Iterator[Finding]:
    """Warn of limits with an unexpected effect, once per named step, max_attempts and retryable."""
    binds = Binds()
    step, named = backend.tables.alias("workflow_steps", "s"), backend.tables.alias("named_steps", "n")
    columns: list[Any] = [named.c.name, step.c.max_attempts, step.c.retryable]
    select = (
        sa.select(*columns)
        .select_from(step.outerjoin(named, named.c.named_step_uuid == step.c.named_step_uuid))
        .where(
            sa.or_(
                step.c.max_attempts <= sa.literal_column("0"),
                step.c.max_attempts >= sa.literal_column(str(FOREVER)),
                sa.and_(step.c.retryable.is_(sa.false()), step.c.max_attempts > sa.literal_column("1")),
            )
        )
        .distinct()
        .order_by(*columns)
        .limit(sa.literal_column(str(_MOST)))
    )
    try:
        rows = backend.database.read(BoundStatement(select, binds), backend.now())
    except DeadlineExceeded:
        yield Finding(Severity.WARNING, "limits", "not checked: the table is too large",
                      "Raise the deadline to check the limits.")
        return
    for name, limit, retryable in rows:
        yield _limit(text(name), limit, retryable)


def _limit(name: str, limit: Any, retryable: Any) -> Finding:
    if whole_number(limit) <= 0:
        message = f"step {name} has max_attempts {limit}, which allows only the first execution"
        fix = "Use max_attempts 1 for a single execution."
    elif retryable is not None and not is_true(retryable):
        message = f"step {name} is not retryable, so max_attempts {limit} means 1"
        fix = "Set max_attempts 1, or make it retryable."
    else:
        message = f"step {name} has max_attempts {limit}, which is practically unlimited"
        fix = "Set a lower limit."
    return Finding(Severity.WARNING, "limits", message, fix)
