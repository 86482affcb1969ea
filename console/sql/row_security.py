"""Row-level security of PostgreSQL. It hides rows from a role without any error, so an empty list may mean nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.sql import visitors

from console.core.backend import Finding, Severity
from console.core.faults import RowsHidden
from console.sql.database import Database
from console.sql.layout import Layout

if TYPE_CHECKING:
    from console.sql.backend import SqlBackend

_FIX = "Use a role that owns the table, has BYPASSRLS, or has a policy that shows it all rows."


def restricted_tables(database: Database, layout: Layout) -> tuple[str, ...]:
    """The tables that are read and whose rows are hidden from our role by policies, as quoted names."""
    if database.dialect.name != "postgresql":
        return ()
    sources = {id(segment.source): segment.source for segment in layout.segments}
    tables = [
        part for source in sources.values() for part in visitors.iterate(source) if isinstance(part, sa.TableClause)
    ]
    names = list(dict.fromkeys(database.dialect.identifier_preparer.format_table(table) for table in tables))
    rows = database.fetch(
        "SELECT t.name FROM unnest(%(names)s::text[]) AS t(name)"
        " WHERE to_regclass(t.name) IS NOT NULL AND row_security_active(to_regclass(t.name))", {"names": names},
    )
    return tuple(name for (name,) in rows)


def require_visible_rows(database: Database, tables: Sequence[str]) -> None:
    """Raise RowsHidden if our role sees no row of one of these tables."""
    for table in tables:
        if not database.fetch(f"SELECT 1 FROM {table} LIMIT 1", {}):  # noqa: S608  a quoted name
            ((role,),) = database.fetch("SELECT current_user::text", {})
            raise RowsHidden(f"role {role} sees no row of {table}", where=database.place, fix=_FIX)


def row_security_findings(backend: SqlBackend) -> Iterator[Finding]:
    for table in backend.restricted_tables:
        message = f"row-level security hides rows of {table} from this role: lists and counts are incomplete"
        yield Finding(Severity.ERROR, "row security", message, _FIX)
