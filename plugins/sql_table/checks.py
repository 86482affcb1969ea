"""The findings of `retriage check` for a mapped table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from console.core.backend import Action, Finding, Flag, Operation, Severity
from console.core.ports import Clock, Never
from console.core.query import NATURAL, Filter
from console.sql.checks import clock_finding, privilege_findings
from console.sql.row_security import row_security_findings

if TYPE_CHECKING:
    from plugins.sql_table.backend import SqlTable
    from plugins.sql_table.requeue import MappingPlanner


_SAMPLE = 100
"""How many rows `check` tries a requeue on, without writing anything."""


def findings(backend: SqlTable, clock: Clock) -> Sequence[Finding]:
    mapping = backend.attached.mapping
    return [
        Finding(Severity.OK, "schema", f"table {mapping.table.full_name} fits the mapping"),
        *_statuses(backend),
        *_index(backend),
        *_privileges(backend),
        *row_security_findings(backend),
        *_guard(backend),
        *prediction_findings(backend),
        clock_finding(backend.database, clock),
    ]


def _statuses(backend: SqlTable) -> Iterator[Finding]:
    status = backend.mapping.status
    if not status.cases and not status.values:
        message = f"no value of {status.column or 'status'} is mapped: every item is shown as unknown"
        fix = f"Map the values whose meaning you know in {backend.where('status')}."
        yield Finding(Severity.WARNING, "status", message, fix)


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
        message = "the table can be read; other privileges are not checked, because its name has a . or %"
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
    """Whether the mapping calls rows ready after a requeue, and over after a discard. A status column was checked
    before."""
    planner = backend.attached.planner
    if planner is None:
        return
    flags = frozenset({Flag.INCLUDE_UNRECOVERABLE.value})
    for attempts in sorted(backend.abilities.attempts):
        sampled, wrong = _tried(backend, planner, Operation(attempts=attempts, flags=flags))
        for why, count in wrong.items():
            message = f"{count} of {sampled} rows would not run after a requeue with attempts {attempts.value}. {why}"
            yield Finding(Severity.ERROR, "requeue", message, f"Correct {backend.where('requeue', 'set')}.")
    if backend.abilities.discard is not None:
        sampled, wrong = _tried(backend, planner, Operation(Action.DISCARD))
        for why, count in wrong.items():
            message = f"{count} of {sampled} rows could still run after a discard. {why}"
            yield Finding(Severity.ERROR, "discard", message, f"Correct {backend.where('discard', 'set')}.")


def _tried(backend: SqlTable, planner: MappingPlanner, operation: Operation) -> tuple[int, Counter[str]]:
    """How many rows were tried, and what is wrong with an operation on them, with the number of rows."""
    columns, now = planner.columns(operation), backend.now()
    rows = next(backend.reader.walk(Filter.parse("condition:*"), NATURAL, columns, now, Never(), _SAMPLE), [])
    return len(rows), planner.not_as_meant(rows, operation, now)
