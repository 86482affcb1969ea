"""What `retriage check` looks at in a table of analyses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from console.core.backend import Finding, Severity
from console.core.faults import DeadlineExceeded
from console.core.ports import Clock
from console.sql.backend import clock_finding
from console.sql.checks import privilege_findings
from console.sql.statement import Binds, Prepared

if TYPE_CHECKING:
    from plugins.postgres_analyses.backend import PostgresAnalyses

_SOON = timedelta(seconds=60)


def findings(backend: PostgresAnalyses, clock: Clock) -> Sequence[Finding]:
    return [
        Finding(Severity.OK, "schema", f"table {backend.table} is as expected"),
        *_index(backend),
        *privilege_findings(backend.database, [backend.table]),
        Finding(Severity.OK, "guard", "strong: retry_count or a status changes on every transition"),
        clock_finding(backend.database, clock),
        _future(backend),
        *_unknown_rules(backend),
    ]


def _index(backend: PostgresAnalyses) -> Iterator[Finding]:
    for pipeline in backend.pipelines:
        if backend.database.has_index(backend.table, (f"{pipeline}_status", "id")):
            yield Finding(Severity.OK, "index", f"({pipeline}_status, id) serves the list")
            continue
        yield Finding(
            Severity.WARNING,
            "index",
            f"no index on {pipeline}_status: lists and counts of a large table read all of it",
            f"If it is yours to change: CREATE INDEX ON {backend.table} ({pipeline}_status, id);",
        )


def _unknown_rules(backend: PostgresAnalyses) -> Iterator[Finding]:
    if backend.has_max_age:
        yield Finding(
            Severity.WARNING,
            "policy",
            "max_age is set, but this loop retries however old an analysis is: it is not applied",
            "Remove max_age from this backend's policy.",
        )


def _future(backend: PostgresAnalyses) -> Finding:
    """Times ahead of the clock mean that the columns are written in another zone than we read them in."""
    binds, table, time = Binds(), backend.layout_place().alias("t"), backend.known.time
    soon = binds.from_now(time.bound, _SOON)
    ahead = [time.compared(table.c[name]) > soon for name in ("last_retry_at", "processed_at")]
    one: Any = sa.literal_column("1")
    select = sa.select(one).select_from(table).where(sa.or_(*ahead)).limit(one)
    try:
        found = backend.database.read(Prepared(select, binds, backend.database.dialect), backend.now())
    except DeadlineExceeded:
        return Finding(Severity.WARNING, "time zone", "the table is too large to look for times in the future",
                       "Set time_zone if ages look wrong by whole hours.")
    zone = getattr(time, "zone", "UTC")
    if not found:
        return Finding(Severity.OK, "time zone", f"no attempt lies in the future, read in {zone}")
    return Finding(
        Severity.WARNING,
        "time zone",
        f"some last attempts lie in the future, read in {zone}",
        "Set time_zone to the zone of the application's sessions.",
    )
