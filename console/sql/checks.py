"""Findings that all SQL plugins share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from console.core.backend import Finding, Severity
from console.core.faults import WrongSchema
from console.core.ports import Clock
from console.core.text import countdown
from console.sql.database import Database
from console.sql.sqlite import SqliteDatabase

if TYPE_CHECKING:
    from console.sql.mysql import MysqlDatabase
    from console.sql.postgres import PostgresDatabase

    AnyDatabase = SqliteDatabase | PostgresDatabase | MysqlDatabase

CLOCK_SKEW = timedelta(seconds=5)


def privilege_findings(
    database: AnyDatabase, tables: Sequence[str], missing: Sequence[str] | None = None
) -> Iterator[Finding]:
    """What our user may do with these tables. By default a write needs UPDATE; a plugin can say what is missing."""
    if isinstance(database, SqliteDatabase):
        yield _file_finding(database)
        return
    found = [database.privileges(table) for table in tables]
    role = found[0].role
    unwritable = [table for table, may in zip(tables, found, strict=True) if not may.can_write]
    if missing is not None:
        lacks = f"role {role} lacks {', '.join(missing)}" if missing else None
    else:
        lacks = f"role {role} can read but not write {', '.join(unwritable)}" if unwritable else None
    if lacks:
        yield Finding(
            Severity.WARNING,
            "privileges",
            lacks,
            "Reading works, requeueing will fail. That is enough for an audit.",
        )
    else:
        yield Finding(Severity.OK, "privileges", f"role {role} may write; our connections for reading are read-only")
    yield from database.server_findings(role)
    if found[0].superuser or any(may.owner for may in found):
        what = "is a superuser" if found[0].superuser else "owns the table"
        yield Finding(
            Severity.WARNING,
            "role",
            f"role {role} {what}, so only our read-only connections keep it from writing",
            "Use a role with SELECT for an audit, with SELECT and UPDATE for requeueing.",
        )


def index_finding(database: AnyDatabase, table: str, columns: Sequence[str]) -> Finding:
    """Whether an index on these columns serves the lists."""
    listed = ", ".join(columns)
    if database.has_index(table, tuple(columns)):
        return Finding(Severity.OK, "index", f"({listed}) serves the list")
    name = "_".join((table.rpartition(".")[2], *columns))
    return Finding(
        Severity.WARNING,
        "index",
        f"no index on {columns[0]}: lists and counts read the whole table",
        f"If you may change it: CREATE INDEX {name} ON {table} ({listed});",
    )


def _file_finding(database: SqliteDatabase) -> Finding:
    if database.writable():
        return Finding(Severity.OK, "privileges", "this user can read and write the file")
    return Finding(
        Severity.WARNING,
        "privileges",
        "this user can read the file but not write to it",
        "Reading works, requeueing will fail.",
    )


def clock_finding(database: Database, clock: Clock) -> Finding:
    """Whether the backend's clock agrees with this machine's."""
    skew = database.now() - clock.now()
    if abs(skew) <= CLOCK_SKEW:
        return Finding(Severity.OK, "clock", "agrees with this machine's")
    direction = "ahead of" if skew > timedelta(0) else "behind"
    return Finding(
        Severity.WARNING,
        "clock",
        f"is {countdown(abs(skew))} {direction} this machine's",
        "Due times and ages are read by the backend's clock; set both by NTP.",
    )


def unused_max_age(why: str) -> Finding:
    """For a system whose own rules know no age: the policy of the config names one."""
    return Finding(
        Severity.WARNING, "policy", f"max_age has no effect: {why}", "Remove max_age from this backend's policy."
    )


def require_columns(database: Database, table: str, wanted: Sequence[str]) -> None:
    """Raise WrongSchema unless the table has these columns."""
    present = database.columns(table)
    if not present:
        raise WrongSchema(
            f"there is no table {table!r}",
            where=database.place,
            fix="Check the url, the dialect and the table name in the config.",
        )
    if missing := [column for column in wanted if column not in present]:
        raise WrongSchema(
            f"table {table!r} has no column {', '.join(missing)}",
            where=database.place,
            fix=f"It has {', '.join(present)}.",
        )
