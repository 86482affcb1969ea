"""A mapping held against the attached database: every name found, every expression tried, every type fit.

What does not fit is a WrongSchema that names the place in the mapping and what the table has instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa

from console.core.faults import BackendFault, WrongSchema
from console.core.text import closest
from console.sql.layout import Expression, Predicate
from console.sql.sqlite import SqliteDatabase
from plugins.sql_table.fragments import fragment
from plugins.sql_table.mapping import Join, Limit, Options, Source, TableMapping
from plugins.sql_table.tables import Column, Table, look_at, quoted
from plugins.sql_table.vocabulary import MAIN

if TYPE_CHECKING:
    from plugins.sql_table.tables import AnyDatabase

_KINDS: Mapping[str, type] = {
    **dict.fromkeys(("smallint", "integer", "bigint"), int), **dict.fromkeys(("text", "character varying"), str),
    "boolean": bool,
}
_KEYS = frozenset({"smallint", "integer", "bigint", "uuid", "text", "character varying", "character"})


class Found(NamedTuple):
    """A part of the mapping as an expression, and its type in this database."""

    expression: Expression
    column: Column

    @property
    def type(self) -> str:
        return self.column.type


@dataclass(frozen=True, slots=True)
class Attached:
    """The tables of a mapping as they are here."""

    database: AnyDatabase
    mapping: TableMapping
    options: Options
    table: Table
    main: Any
    source: Any
    joined: Mapping[str, tuple[Table, Any]]

    @property
    def sqlite(self) -> bool:
        return isinstance(self.database, SqliteDatabase)

    # -- finding ---------------------------------------------------------------------------------

    def column(self, name: str, *loc: str | int) -> Found:
        """One of our columns, or `alias.column` of a join."""
        table, alias, rest = self.table, self.main, name
        if name not in self.table.columns and "." in name:
            first, _, last = name.partition(".")
            if first in self.joined:
                (table, alias), rest = self.joined[first], last
        if rest not in table.columns:
            raise self.wrong(f"table {table.shown!r} has no column {rest!r}", *loc, fix=_meant(rest, table.columns))
        return Found(alias.c[rest], table.columns[rest])

    def found(self, source: Source | Limit, *loc: str | int) -> Found:
        if source.column is not None:
            return self.column(source.column, *loc)
        assert source.expression is not None
        return self.expression(source.expression, *loc)

    def predicate(self, text: str, *loc: str | int) -> Predicate:
        found = self.expression(text, *loc)
        if not self.sqlite and found.type != "boolean":
            raise self.wrong(f"is {found.type}, not true or false", *loc)
        return sa.literal_column(f"({self.read_sql(text)})", sa.Boolean())

    def expression(self, text: str, *loc: str | int) -> Found:
        """An expression, tried on no rows: the database itself says what is wrong with it."""
        made: Expression = sa.literal_column(f"({self.read_sql(text, *loc)})")
        select = sa.select(made.label("e")).select_from(self.source).where(sa.literal_column("1 = 0", sa.Boolean()))
        try:
            if isinstance(self.database, SqliteDatabase):
                self.database.fetch(str(select.compile(dialect=self.database.dialect)), ())
                return Found(made, Column(""))
            tried = select.subquery("tried")
            one = sa.select(sa.literal_column("1")).subquery("one")
            asked = sa.select(sa.cast(sa.func.pg_typeof(tried.c.e), sa.Text)).select_from(
                one.outerjoin(tried, sa.true())
            )
            rows = self.database.fetch(str(asked.compile(dialect=self.database.dialect)), {})
        except BackendFault as fault:
            raise self.wrong(f"the expression does not work here: {fault.detail}", *loc) from None
        return Found(made, Column(rows[0][0]))

    def read_sql(self, text: str, *loc: str | int) -> str:
        """As a literal of SQLAlchemy, which escapes what its driver needs escaped."""
        return fragment(text).sql({name: self._name(name, *loc).replace("%%", "%") for name in fragment(text).tables})

    def names(self, text: str, binds: frozenset[str], *loc: str | int) -> dict[str, str]:
        """The tables a statement names, quoted for the driver."""
        return {name: self._name(name, *loc) for name in fragment(text, binds).tables}

    def _name(self, table: str, *loc: str | int) -> str:
        here = self.options.tables.get(table, table)
        if look_at(self.database, self.mapping.schema_, here) is None:
            raise self.wrong(f"there is no table {here!r}", *loc)
        return quoted(self.database, self.mapping.schema_, here)

    def wrong(self, detail: str, *loc: str | int, fix: str = "") -> WrongSchema:
        where = self.options.where(*loc)
        key = ".".join(map(str, loc))
        told = f"{key}: {detail}" if key else detail
        return WrongSchema(told, where=f"{where}: {self.database.place}" if where else self.database.place, fix=fix)

    def require_fit(self, value: str | int | bool | None, column: Column, *loc: str | int) -> None:
        """A value of the mapping is one the column can hold."""
        if value is None:
            if column.not_null:
                raise self.wrong("the column may not be NULL", *loc)
        elif self.sqlite:
            return
        elif column.labels is not None:
            if value not in column.labels:
                fix = f"It has {', '.join(column.labels)}."
                raise self.wrong(f"{value!r} is no value of {column.type}", *loc, fix=fix)
        elif type(value) is not _KINDS.get(column.type, type(value)):
            raise self.wrong(f"{value!r} does not fit a column of type {column.type}", *loc)

    # -- keys ------------------------------------------------------------------------------------

    def key_columns(self) -> tuple[Found, ...]:
        """The key, which must tell every row from every other."""
        names = self.mapping.keys
        found = tuple(self.column(name, "key") for name in names)
        for name, one in zip(names, found, strict=True):
            if name not in self.table.columns:
                raise self.wrong(f"{name!r} is not a column of {self.table.shown!r} itself", "key")
            if not self.sqlite and one.type not in _KEYS:
                raise self.wrong(f"{name!r} is {one.type}; a key is a number, a uuid or text", "key")
        if not self.table.tells_apart(names):
            known = [", ".join(sorted(columns)) for columns in self.table.unique]
            fix = f"Unique here: {'; '.join(known)}." if known else "It needs a primary key or a unique index."
            raise self.wrong(f"{', '.join(names)} may be the same in two rows", "key", fix=fix)
        if nullable := [name for name, one in zip(names, found, strict=True) if not one.column.not_null]:
            raise self.wrong(f"{nullable[0]!r} may be NULL, so it cannot be a key", "key")
        return tuple(map(self._as_held, found))

    def _as_held(self, found: Found) -> Found:
        """A column of SQLite that takes whatever it is given is of the type its first row has."""
        if not self.sqlite or (found.type and "BLOB" not in found.type.upper()):
            return found
        select = sa.select(sa.func.typeof(found.expression)).select_from(self.main).limit(1)
        asked = select.compile(dialect=self.database.dialect, compile_kwargs={"literal_binds": True})
        rows = self.database.fetch(str(asked), ())
        return found._replace(column=replace(found.column, type="INTEGER" if rows == [("integer",)] else "TEXT"))


def attach(database: AnyDatabase, mapping: TableMapping, options: Options) -> Attached:
    """Find the tables; raises WrongSchema."""
    if isinstance(database, SqliteDatabase) and mapping.schema_ is not None:
        mapping = mapping.model_copy(update={"schema_": None})
    table = look_at(database, mapping.schema_, mapping.table)
    if table is None:
        shown = f"{mapping.schema_}.{mapping.table}" if mapping.schema_ else mapping.table
        where = options.where("table")
        raise WrongSchema(
            f"there is no table {shown!r}", where=f"{where}: {database.place}" if where else database.place,
            fix="Check url, schema and table in the config; `retriage map` lists what is there.",
        )
    main = _clause(table).alias(MAIN)
    here = Attached(database, mapping, options, table, main, main, {})
    joined = {alias: _joined(here, alias, join) for alias, join in mapping.joins.items()}
    source: Any = main
    for alias, (_, clause) in joined.items():
        source = source.outerjoin(clause, _matched(main, clause, mapping.joins[alias]))
    return Attached(database, mapping, options, table, main, source, joined)


def _clause(table: Table) -> sa.TableClause:
    listed: list[Any] = [sa.column(name) for name in dict.fromkeys((*table.columns, "ctid", "rowid"))]
    return sa.table(table.name, *listed, schema=table.schema)


def _joined(here: Attached, alias: str, join: Join) -> tuple[Table, Any]:
    schema = here.mapping.schema_ if join.schema_ is None else join.schema_
    found = look_at(here.database, None if here.sqlite else schema, join.table)
    if found is None:
        raise here.wrong(f"there is no table {join.table!r}", "joins", alias, "table")
    for theirs, ours in join.match.items():
        if theirs not in found.columns:
            raise here.wrong(f"table {found.shown!r} has no column {theirs!r}", "joins", alias, "match",
                             fix=_meant(theirs, found.columns))
        here.column(ours, "joins", alias, "match")
    if not found.tells_apart(tuple(join.match)):
        raise here.wrong(
            f"{found.shown!r} may have several rows for one of ours", "joins", alias, "match",
            fix="A join needs a unique index on what it is matched by; past attempts belong under history.",
        )
    return found, _clause(found).alias(alias)


def _matched(main: Any, other: Any, join: Join) -> Any:
    return sa.and_(*(other.c[theirs] == main.c[ours] for theirs, ours in join.match.items()))


def _meant(name: str, known: Sequence[str] | Mapping[str, Any]) -> str:
    close = closest(name, known)
    return f"Did you mean {close!r}?" if close else f"It has {', '.join(known)}."
