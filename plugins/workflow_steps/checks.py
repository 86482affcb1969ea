"""What `retriage check` looks at in the tables of workflow steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from console.core.backend import Finding, Severity
from console.core.faults import DeadlineExceeded
from console.core.policy import FOREVER
from console.core.ports import Clock
from console.sql.backend import clock_finding
from console.sql.checks import privilege_findings
from console.sql.statement import Binds, Prepared
from console.sql.values import text, whole_number
from plugins.workflow_steps.rows import is_true

if TYPE_CHECKING:
    from plugins.workflow_steps.backend import WorkflowSteps

_WRITTEN = ("workflow_steps", "workflow_step_transitions", "task_transitions")
_MOST = 200


def findings(backend: WorkflowSteps, clock: Clock) -> Sequence[Finding]:
    place = backend.layout_place
    return [
        Finding(Severity.OK, "schema", f"the tables beside {place.name('workflow_steps')} are as expected"),
        *_index(backend),
        *privilege_findings(backend.database, [place.name(table) for table in _WRITTEN]),
        Finding(Severity.OK, "guard", "strong: sort_key grows with every transition"),
        clock_finding(backend.database, clock),
        *_limits(backend),
        *_unknown_rules(backend),
    ]


def _index(backend: WorkflowSteps) -> Iterator[Finding]:
    table = backend.layout_place.name("workflow_step_transitions")
    if backend.database.has_index(table, ("workflow_step_uuid",)):
        yield Finding(Severity.OK, "index", "the state of a step is found by an index")
        return
    yield Finding(
        Severity.WARNING,
        "index",
        "no index on workflow_step_uuid: the state of every step is looked for in the whole table",
        f"If it is yours to change: CREATE INDEX ON {table} (workflow_step_uuid, sort_key);",
    )


def _limits(backend: WorkflowSteps) -> Iterator[Finding]:
    """Numbers that do not do what they seem to say, per distinct named step, max_attempts and retryable."""
    binds = Binds()
    step, named = backend.layout_place.table("workflow_steps", "s"), backend.layout_place.table("named_steps", "n")
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
        rows = backend.database.read(Prepared(select, binds, backend.database.dialect), backend.now())
    except DeadlineExceeded:
        yield Finding(Severity.WARNING, "limits", "the table is too large to look at every step's limits",
                      "Raise the deadline to have them looked at.")
        return
    for name, limit, retryable in rows:
        yield _limit(text(name), limit, retryable)


def _limit(name: str, limit: Any, retryable: Any) -> Finding:
    if whole_number(limit) <= 0:
        message = f"step {name} has max_attempts {limit}: only its first execution is allowed"
        fix = "Use max_attempts 1 for a single execution."
    elif retryable is not None and not is_true(retryable):
        message = f"step {name} is not retryable: max_attempts {limit} is the same as 1"
        fix = "Set max_attempts 1, or make it retryable."
    else:
        message = f"step {name} has max_attempts {limit}, which means for ever"
        fix = "Set a limit somebody would wait for."
    return Finding(Severity.WARNING, "limits", message, fix)


def _unknown_rules(backend: WorkflowSteps) -> Iterator[Finding]:
    if backend.has_max_age:
        yield Finding(
            Severity.WARNING,
            "policy",
            "max_age is set, but this system knows no age: it is not applied",
            "Remove max_age from this backend's policy.",
        )
