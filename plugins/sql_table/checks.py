"""What `retriage check` looks at in a mapped table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from console.core.backend import Finding, Severity
from console.core.policy import FOREVER
from console.core.ports import Clock
from console.sql.backend import clock_finding
from console.sql.checks import privilege_findings

if TYPE_CHECKING:
    from plugins.sql_table.backend import SqlTable


def findings(backend: SqlTable, clock: Clock) -> Sequence[Finding]:
    attached = backend.known.attached
    return [
        Finding(Severity.OK, "schema", f"table {attached.table.shown} is as the mapping says"),
        *_index(backend),
        *_privileges(backend),
        *_guard(backend),
        clock_finding(backend.database, clock),
        *_limit(backend),
    ]


def _index(backend: SqlTable) -> Iterator[Finding]:
    column = backend.mapping.status.column
    if column is None:
        yield Finding(Severity.OK, "index", "conditions are predicates: what serves them is its own system's choice")
    elif backend.known.reading.indexed:
        yield Finding(Severity.OK, "index", f"an index finds rows by {column}")
    else:
        yield Finding(
            Severity.WARNING, "index", f"no index on {column}: lists and counts of a large table read all of it",
            f"If it is yours to change: CREATE INDEX ON {backend.known.attached.table.shown} ({column});",
        )


def _privileges(backend: SqlTable) -> Iterator[Finding]:
    table = backend.known.attached.table
    if "%" in table.shown or "." in table.name:
        yield Finding(Severity.OK, "privileges", "the table can be read; a name like this is not asked about further")
        return
    yield from privilege_findings(backend.database, [table.shown])


def _guard(backend: SqlTable) -> Iterator[Finding]:
    if backend.mapping.requeue is None:
        yield Finding(Severity.OK, "guard", "none needed: the mapping has no requeue")
    elif backend.abilities.guard_is_weak:
        yield Finding(
            Severity.WARNING, "guard", "weak: no column of it changes on every transition",
            "Add the attempts column, or one that is set on every update, to requeue.guard.",
        )
    else:
        yield Finding(Severity.OK, "guard", f"strong: {', '.join(backend.abilities.guard)}")


def _limit(backend: SqlTable) -> Iterator[Finding]:
    limit = backend.policy.max_attempts
    if limit is not None and limit >= FOREVER:
        yield Finding(
            Severity.WARNING, "policy", f"max_attempts {limit} means for ever", "Set a limit somebody would wait for."
        )
