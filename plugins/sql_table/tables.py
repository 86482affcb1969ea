"""The tables of the attached database, read from its catalogue."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from console.sql.sqlite import SqliteDatabase

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from console.sql.mysql import MysqlDatabase
    from console.sql.open_database import AnyDatabase
    from console.sql.postgres import PostgresDatabase


@dataclass(frozen=True, slots=True)
class Column:
    """One column, with its type as the database names it."""

    type: str
    not_null: bool = False
    generated: bool = False
    precision: int | None = None
    """Fractional digits of a second, if the type limits them."""
    labels: tuple[str, ...] | None = None
    """The values of an enum."""
    default: str | None = None
    """The SQL of its default value."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table or view."""

    schema: str | None
    name: str
    columns: Mapping[str, Column]
    unique: tuple[frozenset[str], ...] = ()
    """Column sets with a unique index; partial indexes and expressions do not count."""
    is_table: bool = True

    @property
    def full_name(self) -> str:
        return f"{self.schema}.{self.name}" if self.schema else self.name

    def is_unique(self, columns: tuple[str, ...]) -> bool:
        return any(found <= frozenset(columns) for found in self.unique)


def find_table(database: AnyDatabase, schema: str | None, name: str) -> Table | None:
    """The table or view of that name, or None."""
    if isinstance(database, SqliteDatabase):
        return _in_sqlite(database, name)
    return _in_mysql(database, schema, name) if is_mysql(database) else _in_postgres(database, schema, name)


def is_mysql(database: AnyDatabase) -> TypeIs[MysqlDatabase]:
    """Whether this is MySQL or MariaDB. Its module, and so its driver, is loaded only where it is used."""
    return database.dialect.name == "mysql"


def all_tables(database: AnyDatabase) -> list[tuple[str | None, str]]:
    """(schema, name) of every readable table; the schema only if the name alone does not find the table."""
    if isinstance(database, SqliteDatabase):
        rows = database.fetch(
            "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
            " ORDER BY name", (),
        )
        return [(None, str(name)) for (name,) in rows]
    if is_mysql(database):
        # Other databases of the server belong to other applications.
        found = database.fetch(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = database() ORDER BY 1", ()
        )
        return [(None, name) for (name,) in found]
    return _postgres_tables(database, readable=True)


def unreadable_tables(database: AnyDatabase) -> list[tuple[str | None, str]]:
    """(schema, name) of every table that our role may not read. Other databases than PostgreSQL do not show them."""
    if isinstance(database, SqliteDatabase) or is_mysql(database):
        return []
    return _postgres_tables(database, readable=False)


def _postgres_tables(database: AnyDatabase, *, readable: bool) -> list[tuple[str | None, str]]:
    found = database.fetch(
        "SELECT CASE WHEN pg_table_is_visible(c.oid) THEN NULL ELSE n.nspname::text END, c.relname::text"
        " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE c.relkind IN ('r', 'p', 'v') AND NOT c.relispartition AND n.nspname NOT LIKE 'pg\\_%%'"
        " AND n.nspname <> 'information_schema' AND %(readable)s ="
        " (has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT'))"
        " ORDER BY n.nspname, c.relname", {"readable": readable},
    )
    return [(schema, name) for schema, name in found]


def quoted(database: AnyDatabase, schema: str | None, name: str) -> str:
    """A table's quoted name for SQL text."""
    quote = database.dialect.identifier_preparer.quote_identifier
    return quote(name) if schema is None or isinstance(database, SqliteDatabase) else f"{quote(schema)}.{quote(name)}"


def _in_sqlite(database: SqliteDatabase, name: str) -> Table | None:
    quote = database.dialect.identifier_preparer.quote_identifier
    rows = database.fetch(f"PRAGMA table_xinfo({quote(name)})", ())
    if not rows:
        return None
    columns = {
        column: Column(kind, bool(not_null) or bool(key), generated=hidden in (2, 3), default=default)
        for _, column, kind, not_null, default, key, hidden in rows if hidden != 1
    }
    unique = []
    if key := frozenset(row[1] for row in rows if row[5]):
        unique.append(key)
    for _, index, is_unique, _, partial in database.fetch(f"PRAGMA index_list({quote(name)})", ()):
        indexed = [part for _, _, part in database.fetch(f"PRAGMA index_info({quote(index)})", ())]
        if is_unique and not partial and None not in indexed:
            unique.append(frozenset(indexed))
    return Table(None, name, columns, tuple(unique), database.has_rowid(name))


_MYSQL_TYPES: Mapping[str, str] = {
    "tinyint": "smallint", "smallint": "smallint", "mediumint": "integer", "int": "integer", "bigint": "bigint",
    "varchar": "character varying", "char": "character", "decimal": "numeric", "double": "double precision",
    "float": "real", **dict.fromkeys(("tinytext", "text", "mediumtext", "longtext"), "text"),
    **dict.fromkeys(("tinyblob", "blob", "mediumblob", "longblob", "binary", "varbinary"), "blob"),
}
_LABEL = re.compile(r"'((?:[^']|'')*)'")


def _in_mysql(database: MysqlDatabase, schema: str | None, name: str) -> Table | None:
    here = "table_schema = coalesce(%s, database()) AND table_name = %s"
    rows = database.fetch(
        "SELECT column_name, data_type, is_nullable = 'NO', extra LIKE '%%GENERATED%%' OR extra LIKE '%%VIRTUAL%%',"
        " datetime_precision, CASE WHEN data_type = 'enum' THEN column_type END, column_default"
        f" FROM information_schema.columns WHERE {here} ORDER BY ordinal_position", (schema, name),
    )
    if not rows:
        return None
    columns = {
        column: Column(
            _MYSQL_TYPES.get(kind, kind), bool(not_null), bool(generated), precision,
            None if labels is None else tuple(label.replace("''", "'") for label in _LABEL.findall(labels)), default,
        )
        for column, kind, not_null, generated, precision, labels, default in rows
    }
    indexes = database.fetch(
        "SELECT group_concat(column_name ORDER BY seq_in_index SEPARATOR '\n') FROM information_schema.statistics"
        f" WHERE {here} GROUP BY index_name HAVING min(non_unique) = 0 AND sum(sub_part IS NOT NULL) = 0"
        " AND sum(column_name IS NULL) = 0", (schema, name),
    )
    ((is_table,),) = database.fetch(
        f"SELECT table_type = 'BASE TABLE' FROM information_schema.tables WHERE {here}", (schema, name)
    )
    return Table(schema, name, columns, tuple(frozenset(names.split("\n")) for (names,) in indexes), bool(is_table))


def _in_postgres(database: PostgresDatabase, schema: str | None, name: str) -> Table | None:
    found = database.fetch(
        "SELECT c.oid::int8, n.nspname::text, c.relkind IN ('r', 'p') FROM pg_class c"
        " JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE c.relname = %(name)s AND c.relkind IN ('r', 'p', 'v', 'm', 'f')"
        " AND CASE WHEN %(schema)s::text IS NULL THEN pg_table_is_visible(c.oid) ELSE n.nspname = %(schema)s END",
        {"name": name, "schema": schema},
    )
    if not found:
        return None
    oid, _, is_table = found[0]
    rows = database.fetch(
        "SELECT a.attname::text, format_type(a.atttypid, NULL), a.attnotnull, a.attgenerated <> '',"
        " CASE WHEN t.typname IN ('timestamp', 'timestamptz') AND a.atttypmod >= 0 THEN a.atttypmod END,"
        " CASE WHEN t.typtype = 'e' THEN (SELECT array_agg(e.enumlabel::text ORDER BY e.enumsortorder)"
        " FROM pg_enum e WHERE e.enumtypid = t.oid) END, pg_get_expr(d.adbin, d.adrelid)"
        " FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid"
        " LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum"
        " WHERE a.attrelid = %(oid)s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum", {"oid": oid},
    )
    columns = {
        column: Column(kind, not_null, generated, precision, None if labels is None else tuple(labels), default)
        for column, kind, not_null, generated, precision, labels, default in rows
    }
    indexes = database.fetch(
        "SELECT array_agg(a.attname::text) FROM pg_index i CROSS JOIN unnest(i.indkey[0:i.indnkeyatts - 1]) k(number)"
        " LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number"
        " WHERE i.indrelid = %(oid)s AND i.indisunique AND i.indisvalid AND i.indpred IS NULL"
        " GROUP BY i.indexrelid HAVING bool_and(a.attnum IS NOT NULL)", {"oid": oid},
    )
    return Table(schema, name, columns, tuple(frozenset(names) for (names,) in indexes), is_table)
