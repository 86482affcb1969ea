"""A mapping resolved against the attached database: every name is looked up and every expression is tried.

A mapping that does not fit raises WrongSchema with the location in the mapping and what the table has instead.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa

from console.core.faults import BackendFault, WrongSchema
from console.core.text import closest
from console.sql.layout import Expression, Predicate
from console.sql.sqlite import SqliteDatabase
from console.sql.values import ExactText
from plugins.sql_table.fragments import fragment
from plugins.sql_table.mapping import Join, Limit, Options, Source, TableMapping
from plugins.sql_table.mapping_types import TABLE_ALIAS, RowRule
from plugins.sql_table.tables import Column, Table, find_table, is_mysql, quoted

if TYPE_CHECKING:
    from console.sql.open_database import AnyDatabase

_KINDS: Mapping[str, type] = {
    **dict.fromkeys(("smallint", "integer", "bigint"), int), **dict.fromkeys(("text", "character varying"), str),
    "boolean": bool,
}
_INTEGERS = frozenset({"smallint", "integer", "bigint"})
_IS_NOT_NULL = re.compile(r"(\w+)\.(\w+) IS NOT NULL", re.I)
_SIMPLE = re.compile("(small|big)?int|uuid|text|char|time|date|bool|numeric|json", re.I)
_KEYS = frozenset({"smallint", "integer", "bigint", "uuid", "text", "character varying", "character"})


def bound(value: Any) -> Expression:
    """A bound value without a type, which an enum column accepts as well as a text column."""
    return sa.bindparam(None, value, type_=sa.types.NullType(), unique=True)


class ResolvedColumn(NamedTuple):
    """A column or expression of the mapping, and its type in this database."""

    expression: Expression
    column: Column

    @property
    def type(self) -> str:
        return self.column.type


@dataclass(frozen=True, slots=True)
class ResolvedMapping:
    """A mapping with its tables in the attached database."""

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

    @property
    def mysql(self) -> bool:
        return is_mysql(self.database)

    # -- columns and expressions -----------------------------------------------------------------

    def column(self, name: str, *loc: str | int) -> ResolvedColumn:
        """A column of the mapped table, or `alias.column` of a join."""
        table, alias, rest = self.table, self.main, name
        if name not in self.table.columns and "." in name:
            first, _, last = name.partition(".")
            if first in self.joined:
                (table, alias), rest = self.joined[first], last
        if rest not in table.columns:
            problem = f"table {table.full_name!r} has no column {rest!r}"
            raise self.fault(problem, *loc, fix=_suggestion(rest, table.columns))
        return ResolvedColumn(alias.c[rest], table.columns[rest])

    def lookup(self, source: Source | Limit, *loc: str | int) -> ResolvedColumn:
        if source.column is not None:
            return self.column(source.column, *loc)
        assert source.expression is not None
        return self.expression(source.expression, *loc)

    def predicate(self, text: str, *loc: str | int) -> Predicate:
        found = self.expression(text, *loc)
        if not self.sqlite and found.type != "boolean" and not (self.mysql and found.type in _INTEGERS):
            raise self.fault(f"is {found.type}, not boolean", *loc)
        if (named := _IS_NOT_NULL.fullmatch(text)) and self._is_simple(named[1], named[2]):
            # Its opposite is then `IS NULL`, which an index serves.
            return sa.literal_column(f"{named[1]}.{named[2]}").is_not(None)
        return sa.literal_column(f"({self.read_sql(text)})", sa.Boolean())

    def _is_simple(self, alias: str, name: str) -> bool:
        """Whether this is a column whose values are either NULL or not; a composite value can be neither."""
        table = self.table if alias == TABLE_ALIAS else self.joined[alias][0] if alias in self.joined else None
        column = None if table is None else table.columns.get(name)
        return column is not None and (self.sqlite or _SIMPLE.match(column.type) is not None)

    def reason(self, rules: Sequence[RowRule], *loc: str | int) -> Expression | None:
        """The sentence of the first rule that is true for a row, else NULL; None without rules."""
        cases = [(self.predicate(rule.when, *loc, n, "when"), bound(rule.why)) for n, rule in enumerate(rules)]
        return sa.cast(sa.case(*cases), sa.Text) if cases else None

    def expression(self, text: str, *loc: str | int) -> ResolvedColumn:
        """Try an expression on zero rows, so that the database reports any mistake in it."""
        made: Expression = sa.literal_column(f"({self.read_sql(text, *loc)})")
        select = sa.select(made.label("e")).select_from(self.source).where(sa.literal_column("1 = 0", sa.Boolean()))
        try:
            if isinstance(self.database, SqliteDatabase):
                self.database.fetch(str(select.compile(dialect=self.database.dialect)), ())
                return ResolvedColumn(made, Column(""))
            if is_mysql(self.database):
                kind = self.database.type_of(str(select.compile(dialect=self.database.dialect)))
                return ResolvedColumn(sa.type_coerce(made, _type_of(kind)), Column(kind))
            tried = select.subquery("tried")
            one = sa.select(sa.literal_column("1")).subquery("one")
            asked = sa.select(sa.cast(sa.func.pg_typeof(tried.c.e), sa.Text)).select_from(
                one.outerjoin(tried, sa.true())
            )
            rows = self.database.fetch(str(asked.compile(dialect=self.database.dialect)), {})
        except BackendFault as fault:
            raise self.fault(f"the database rejects the expression: {fault.detail}", *loc) from None
        return ResolvedColumn(made, Column(rows[0][0]))

    def read_sql(self, text: str, *loc: str | int, value: str | None = None) -> str:
        """The SQL of a fragment for a SQLAlchemy literal, which escapes it for the driver. `value` replaces :value."""
        found = fragment(text) if value is None else fragment(text, frozenset({"value"}))
        names = {name: self._name(name, *loc).replace("%%", "%") for name in found.tables}
        return found.sql(names, lambda name: name if value is None else value)

    def names(self, text: str, binds: frozenset[str], *loc: str | int) -> dict[str, str]:
        """The tables in a statement, quoted for the driver."""
        return {name: self._name(name, *loc) for name in fragment(text, binds).tables}

    def _name(self, table: str, *loc: str | int) -> str:
        here = self.options.tables.get(table, table)
        if find_table(self.database, self.mapping.schema_, here) is None:
            raise self.fault(f"there is no table {here!r}", *loc)
        return quoted(self.database, self.mapping.schema_, here)

    def fault(self, detail: str, *loc: str | int, fix: str = "") -> WrongSchema:
        where = self.options.where(*loc)
        key = ".".join(map(str, loc))
        message = f"{key}: {detail}" if key else detail
        return WrongSchema(message, where=f"{where}: {self.database.place}" if where else self.database.place, fix=fix)

    def require_fit(self, value: str | int | bool | None, column: Column, *loc: str | int) -> None:
        """Raise WrongSchema unless the column can hold the value."""
        if value is None:
            if column.not_null:
                raise self.fault("the column must not be NULL", *loc)
        elif self.sqlite:
            return
        elif column.labels is not None:
            if value not in column.labels:
                fix = f"Its values are {', '.join(column.labels)}."
                raise self.fault(f"{value!r} is not a value of {column.type}", *loc, fix=fix)
        elif type(value) is not _KINDS.get(column.type, type(value)):
            raise self.fault(f"{value!r} does not fit a column of type {column.type}", *loc)

    # -- keys ------------------------------------------------------------------------------------

    def key_columns(self) -> tuple[ResolvedColumn, ...]:
        """The key columns; raises WrongSchema unless they identify every row."""
        names = self.mapping.keys
        found = tuple(self.column(name, "key") for name in names)
        for name, one in zip(names, found, strict=True):
            if name not in self.table.columns:
                raise self.fault(f"{name!r} is not a column of {self.table.full_name!r} itself", "key")
            if not self.sqlite and one.type not in _KEYS:
                raise self.fault(f"{name!r} is {one.type}; a key must be a number, a uuid or text", "key")
        if not self.table.is_unique(names):
            unique = [", ".join(sorted(columns)) for columns in self.table.unique]
            fix = f"Unique are: {'; '.join(unique)}." if unique else "The table needs a primary key or a unique index."
            raise self.fault(f"{', '.join(names)} is not unique", "key", fix=fix)
        if nullable := [name for name, one in zip(names, found, strict=True) if not one.column.not_null]:
            raise self.fault(f"{nullable[0]!r} can be NULL, so it cannot be a key", "key")
        return tuple(map(self._with_type, found))

    def _with_type(self, found: ResolvedColumn) -> ResolvedColumn:
        """Give an untyped column of SQLite the type of its first row."""
        if not self.sqlite or (found.type and "BLOB" not in found.type.upper()):
            return found
        select = sa.select(sa.func.typeof(found.expression)).select_from(self.main).limit(1)
        asked = select.compile(dialect=self.database.dialect, compile_kwargs={"literal_binds": True})
        rows = self.database.fetch(str(asked), ())
        return found._replace(column=replace(found.column, type="INTEGER" if rows == [("integer",)] else "TEXT"))


def resolve(database: AnyDatabase, mapping: TableMapping, options: Options) -> ResolvedMapping:
    """Look up the tables of a mapping; raises WrongSchema."""
    if isinstance(database, SqliteDatabase) and mapping.schema_ is not None:
        mapping = mapping.model_copy(update={"schema_": None})
    table = find_table(database, mapping.schema_, mapping.table)
    if table is None:
        name = f"{mapping.schema_}.{mapping.table}" if mapping.schema_ else mapping.table
        where = options.where("table")
        raise WrongSchema(
            f"there is no table {name!r}", where=f"{where}: {database.place}" if where else database.place,
            fix="Check url, schema and table in the config. `retriage map` lists the tables.",
        )
    main = _clause(database, table).alias(TABLE_ALIAS)
    here = ResolvedMapping(database, mapping, options, table, main, main, {})
    joined = {alias: _joined(here, alias, join) for alias, join in mapping.joins.items()}
    source: Any = main
    for alias, (_, clause) in joined.items():
        source = source.outerjoin(clause, _matched(main, clause, mapping.joins[alias]))
    return ResolvedMapping(database, mapping, options, table, main, source, joined)


def _type_of(kind: str) -> Any:
    """The type in MySQL, where text has to be compared exactly."""
    return ExactText() if kind in ("text", "character varying", "character", "enum") else sa.types.NullType()


def _clause(database: AnyDatabase, table: Table) -> sa.TableClause:
    if is_mysql(database):
        listed: list[Any] = [sa.column(name, _type_of(column.type)) for name, column in table.columns.items()]
    else:
        listed = [sa.column(name) for name in dict.fromkeys((*table.columns, "ctid", "rowid"))]
    return sa.table(table.name, *listed, schema=table.schema)


def _joined(here: ResolvedMapping, alias: str, join: Join) -> tuple[Table, Any]:
    schema = here.mapping.schema_ if join.schema_ is None else join.schema_
    found = find_table(here.database, None if here.sqlite else schema, join.table)
    if found is None:
        raise here.fault(f"there is no table {join.table!r}", "joins", alias, "table")
    for theirs, ours in join.match.items():
        if theirs not in found.columns:
            raise here.fault(f"table {found.full_name!r} has no column {theirs!r}", "joins", alias, "match",
                             fix=_suggestion(theirs, found.columns))
        here.column(ours, "joins", alias, "match")
    if not found.is_unique(tuple(join.match)):
        raise here.fault(
            f"{found.full_name!r} can have several rows for one job", "joins", alias, "match",
            fix="The matched columns need a unique index. A table of past attempts belongs under history.",
        )
    return found, _clause(here.database, found).alias(alias)


def _matched(main: Any, other: Any, join: Join) -> Any:
    return sa.and_(*(other.c[theirs] == main.c[ours] for theirs, ours in join.match.items()))


def _suggestion(name: str, known: Sequence[str] | Mapping[str, Any]) -> str:
    close = closest(name, known)
    return f"Did you mean {close!r}?" if close else f"It has {', '.join(known)}."
