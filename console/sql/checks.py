"""Findings every SQL plugin makes in the same words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from console.core.backend import Finding, Severity
from console.sql.sqlite import SqliteDatabase

if TYPE_CHECKING:
    from console.sql.postgres import PostgresDatabase


def privilege_findings(database: SqliteDatabase | PostgresDatabase, tables: Sequence[str]) -> Iterator[Finding]:
    """What our user could do, whatever we let it do."""
    if isinstance(database, SqliteDatabase):
        yield _of_file(database)
        return
    found = [database.privileges(table) for table in tables]
    role = found[0].role
    unwritable = [table for table, may in zip(tables, found, strict=True) if not may.can_write]
    if unwritable:
        yield Finding(
            Severity.WARNING,
            "privileges",
            f"role {role} can read but not write {', '.join(unwritable)}",
            "Requeue will fail; reading works. For an audit this is how it should be.",
        )
    else:
        yield Finding(Severity.OK, "privileges", f"role {role} could write; reading sessions are read-only")
    if found[0].superuser or any(may.owner for may in found):
        what = "is a superuser" if found[0].superuser else "owns the table"
        yield Finding(
            Severity.WARNING,
            "role",
            f"role {role} {what}: only this console's own sessions keep it from writing",
            "For an audit use a role with SELECT only; for requeues one with SELECT and UPDATE.",
        )


def _of_file(database: SqliteDatabase) -> Finding:
    if database.writable():
        return Finding(Severity.OK, "privileges", "this user can read and write the file")
    return Finding(
        Severity.WARNING,
        "privileges",
        "this user can read the file but not write it",
        "Requeue will fail; reading works.",
    )
