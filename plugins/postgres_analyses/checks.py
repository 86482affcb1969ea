"""The findings of `retriage check` for a table of analyses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from console.core.backend import Finding, Severity
from console.core.faults import DeadlineExceeded
from console.core.ports import Clock
from console.sql.checks import clock_finding, index_finding, privilege_findings, unused_max_age
from console.sql.database import Binds, BoundStatement
from console.sql.row_security import row_security_findings
from console.sql.where import Where
from plugins.postgres_analyses.loop_order import LoopOrder
from plugins.postgres_analyses.prediction import PER_CYCLE

if TYPE_CHECKING:
    from plugins.postgres_analyses.backend import PostgresAnalyses

_SOON = timedelta(seconds=60)


def findings(backend: PostgresAnalyses, clock: Clock) -> Sequence[Finding]:
    return [
        Finding(Severity.OK, "schema", f"table {backend.table} has the expected columns"),
        *(index_finding(backend.database, backend.table, (f"{name}_status", "id")) for name in backend.pipelines),
        *privilege_findings(backend.database, [backend.table]),
        *row_security_findings(backend),
        Finding(Severity.OK, "guard", "strong: retry_count or a status changes on every transition"),
        clock_finding(backend.database, clock),
        _future(backend),
        *_starving(backend),
        *([unused_max_age("the loop retries analyses of any age")] if backend.has_max_age else []),
    ]


def _starving(backend: PostgresAnalyses) -> Iterator[Finding]:
    """Pipelines in which rows that the loop always skips take all its places."""
    table, time = backend.analysis_table(), backend.attached.time
    order = LoopOrder(table, backend.policy, time, Where("", backend.database.dialect, time, backend.policy))
    source = table.alias("t")
    for pipeline in backend.pipelines:
        select = sa.select(sa.func.count()).select_from(source).where(order.blocks(source.c, pipeline))
        ((count,),) = backend.database.read(BoundStatement(select, Binds()), backend.now())
        if count >= PER_CYCLE:
            yield Finding(
                Severity.WARNING,
                "starvation",
                f"the loop looks at {PER_CYCLE} failed rows of {pipeline} at a time, and always skips {count} that come"
                " first; rows behind them never run",
                'Requeue them with "include unrecoverable", or set their status to skipped.',
            )


def _future(backend: PostgresAnalyses) -> Finding:
    """Times in the future mean that the columns have another time zone than configured."""
    binds, table, time = Binds(), backend.analysis_table().alias("t"), backend.attached.time
    soon = binds.from_now(time.bound, _SOON)
    ahead = [time.compared(table.c[name]) > soon for name in ("last_retry_at", "processed_at")]
    one: Any = sa.literal_column("1")
    select = sa.select(one).select_from(table).where(sa.or_(*ahead)).limit(one)
    try:
        found = backend.database.read(BoundStatement(select, binds), backend.now())
    except DeadlineExceeded:
        return Finding(Severity.WARNING, "time zone", "not checked: the table is too large",
                       "Set time_zone if ages are wrong by whole hours.")
    zone = getattr(time, "zone", "UTC")
    if not found:
        return Finding(Severity.OK, "time zone", f"no attempt is in the future (read as {zone})")
    return Finding(
        Severity.WARNING,
        "time zone",
        f"some last attempts are in the future (read as {zone})",
        "Set time_zone to the time zone of the application's database sessions.",
    )
