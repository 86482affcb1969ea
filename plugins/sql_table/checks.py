"""The findings of `retriage check` for a mapped table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from console.core.backend import Finding, Flag, Operation, Severity
from console.core.policy import FOREVER
from console.core.ports import Clock, Never
from console.core.query import NATURAL, Filter
from console.sql.checks import clock_finding, privilege_findings
from console.sql.row_security import row_security_findings

if TYPE_CHECKING:
    from plugins.sql_table.backend import SqlTable


_SAMPLE = 100
"""How many rows `check` tries a requeue on, without writing anything."""


def findings(backend: SqlTable, clock: Clock) -> Sequence[Finding]:
    mapping = backend.attached.mapping
    return [
        Finding(Severity.OK, "schema", f"table {mapping.table.full_name} fits the mapping"),
        *_index(backend),
        *_privileges(backend),
        *row_security_findings(backend),
        *_guard(backend),
        *prediction_findings(backend),
        clock_finding(backend.database, clock),
        *_limit(backend),
    ]


def _index(backend: SqlTable) -> Iterator[Finding]:
    column = backend.mapping.status.column
    if column is None:
        yield Finding(Severity.OK, "index", "conditions are predicates; their indexes are not checked")
    elif backend.attached.layout.indexed:
        yield Finding(Severity.OK, "index", f"an index on {column} serves the list")
    else:
        yield Finding(
            Severity.WARNING, "index", f"no index on {column}: lists and counts read the whole table",
            f"If you may change it: CREATE INDEX ON {backend.attached.mapping.table.full_name} ({column});",
        )


def _privileges(backend: SqlTable) -> Iterator[Finding]:
    table = backend.attached.mapping.table
    if "%" in table.full_name or "." in table.name:
        message = "the table can be read; for a name like this, other privileges are not checked"
        yield Finding(Severity.OK, "privileges", message)
        return
    yield from privilege_findings(backend.database, [table.full_name])


def _guard(backend: SqlTable) -> Iterator[Finding]:
    if backend.mapping.requeue is None:
        yield Finding(Severity.OK, "guard", "not needed: the mapping has no requeue section")
    elif backend.abilities.guard_is_weak:
        yield Finding(
            Severity.WARNING, "guard", "weak: no guard column changes on every transition",
            "Add the attempts column, or a column that every update sets, to requeue.guard.",
        )
    else:
        yield Finding(Severity.OK, "guard", f"strong: {', '.join(backend.abilities.guard)}")


def prediction_findings(backend: SqlTable) -> Iterator[Finding]:
    """Whether the mapping calls some rows ready after a requeue. A status column was checked before."""
    planner = backend.attached.planner
    now, flags = backend.now(), frozenset({Flag.INCLUDE_UNRECOVERABLE.value})
    for attempts in sorted(backend.abilities.attempts) if planner is not None else ():
        assert planner is not None
        operation = Operation(attempts=attempts, flags=flags)
        columns = (*backend.attached.layout.roles.row, *planner.columns(attempts))
        rows = next(backend.reader.walk(Filter.parse("condition:*"), NATURAL, columns, now, Never(), _SAMPLE), [])
        for why, count in planner.not_taken(rows, operation, now).items():
            message = f"{count} of {len(rows)} rows would not run after a requeue with attempts {attempts.value}. {why}"
            yield Finding(Severity.ERROR, "requeue", message, f"Correct {backend.where('requeue', 'set')}.")


def _limit(backend: SqlTable) -> Iterator[Finding]:
    limit = backend.policy.max_attempts
    if limit is not None and limit >= FOREVER:
        message = f"max_attempts {limit} is practically unlimited"
        yield Finding(Severity.WARNING, "policy", message, "Set a lower limit.")
