"""The SQL of a guarded write, with quoted names and bound values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from console.core.backend import Change
from console.sql.sqlite import SqliteDatabase
from console.sql.values import castable
from plugins.sql_table.change_schema import Argument, FunctionCall
from plugins.sql_table.fragments import fragment
from plugins.sql_table.image import ImageColumn, RowImage
from plugins.sql_table.layout import MappedLayout
from plugins.sql_table.mapping_types import STATEMENT_VALUES
from plugins.sql_table.resolved import ResolvedMapping
from plugins.sql_table.tables import quoted
from plugins.sql_table.writes import WriteRule


class Statements:
    """The statements of one action on one mapping."""

    def __init__(self, resolved: ResolvedMapping, layout: MappedLayout, image: RowImage, rule: WriteRule) -> None:
        self._rule = rule
        self._resolved = resolved
        self._parts = image.parts
        self._sqlite = resolved.sqlite
        self._key_types = [found.type for found in layout.keys]
        quote = resolved.database.dialect.identifier_preparer.quote_identifier
        self._quote: Callable[[str], str] = quote
        self.table = quoted(resolved.database, resolved.table.schema, resolved.table.name)
        self.seen = self._select("", None)
        self.held = self._select("" if self._sqlite else " FOR UPDATE SKIP LOCKED", rule.lock)
        self.update = self._update()
        self.delete = self._delete()
        self._times = self._all_times()
        self.call = None if rule.function is None else self._call(rule.function)
        self.steps = self._all_steps()

    def _mark(self, name: str, type: str = "") -> str:
        if self._sqlite:
            return f":{name}"
        return f"%({name})s::{castable(type)}" if type else f"%({name})s"

    def _key_is(self, table: str) -> str:
        """Compares a key exactly, even if the SQLite column has a NOCASE collation."""
        keys = self._resolved.mapping.keys
        same = [
            f"{table}.{self._quote(key)} = {self._mark(f'k{n}', type)}"
            for n, (key, type) in enumerate(zip(keys, self._key_types, strict=True))
        ]
        return " AND ".join([*same, *(f"{one} COLLATE BINARY" for one in same if self._sqlite)])

    def _select(self, locking: str, lock: str | None) -> str:
        """Selects key, image and lock of some rows. A subquery selects the rows, so that no other lock is tried."""
        keys = [f"job.{self._quote(key)}" for key in self._resolved.mapping.keys]
        own = None if lock is None else self._driver_sql(lock, frozenset(), self._names(lock))
        listed = ", ".join([*keys, *(self._read(part) for part in self._parts), f"({own})" if own else "1"])
        if self._sqlite:
            return f"SELECT {listed} FROM {self.table} AS job {self._joins()} WHERE {self._key_is('job')}"
        arrays = ", ".join(self._mark(f"k{n}", f"{type}[]") for n, type in enumerate(self._key_types))
        chosen = ", ".join(f"x.{self._quote(key)}" for key in self._resolved.mapping.keys)
        taken = f"SELECT x.* FROM {self.table} AS x WHERE ({chosen}) IN (SELECT * FROM unnest({arrays})){locking}"
        return f"SELECT {listed} FROM ({taken}) AS job {self._joins()}"

    def _read(self, part: ImageColumn) -> str:
        if part.read is not None:
            return f"({self._driver_sql(part.read, frozenset(), self._names(part.read))})"
        alias, _, column = part.column.partition(".")
        if part.column not in self._resolved.table.columns and alias in self._resolved.joined:
            return f"{self._quote(alias)}.{self._quote(column)}"
        return f"job.{self._quote(part.column)}"

    def _joins(self) -> str:
        joined = []
        for alias, (table, _) in self._resolved.joined.items():
            match = self._resolved.mapping.joins[alias].match
            name, other = quoted(self._resolved.database, table.schema, table.name), self._quote(alias)
            same = " AND ".join(f"{other}.{self._quote(a)} = job.{self._quote(b)}" for a, b in match.items())
            joined.append(f"LEFT JOIN {name} AS {other} ON {same}")
        return " ".join(joined)

    def _driver_sql(self, text: str, binds: frozenset[str], tables: Mapping[str, str], **marks: str) -> str:
        """A fragment for the driver; `marks` replaces the placeholders of single values."""
        doubled = "%" if self._sqlite else "%%"
        return fragment(text, binds).sql(
            tables, lambda name: marks.get(name, self._mark(name)), lambda sql: sql.replace("%", doubled)
        )

    def _names(self, text: str) -> dict[str, str]:
        return self._resolved.names(text, STATEMENT_VALUES | {"value"}, self._rule.section)

    def _update(self) -> str:
        written = [(n, part) for n, part in enumerate(self._parts) if part.is_set]
        sets = ", ".join(f"{self._quote(part.column)} = {self._written(n, part)}" for n, part in written)
        name = self.table if self._sqlite else f"{self.table} AS job"
        return f"UPDATE {name} SET {sets} WHERE {self._key_is(self.table if self._sqlite else 'job')}"

    def _delete(self) -> str:
        name = self.table if self._sqlite else f"{self.table} AS job"
        return f"DELETE FROM {name} WHERE {self._key_is(self.table if self._sqlite else 'job')}"

    def _written(self, n: int, part: ImageColumn) -> str:
        mark = self._mark(f"v{n}", part.stored.type)
        if part.write is None:
            return mark
        return self._driver_sql(part.write, frozenset({"value"}), self._names(part.write), value=mark)

    # -- functions and statements ----------------------------------------------------------------

    def _all_steps(self) -> list[str]:
        steps = []
        for n, text in enumerate(self._rule.statements):
            names = self._resolved.names(text, STATEMENT_VALUES, self._rule.section, "statements", n)
            steps.append(self._driver_sql(text, STATEMENT_VALUES, names, key=self._mark("k0", self._key_types[0])))
        return steps

    def _call(self, function: FunctionCall) -> str:
        """One statement that calls the function for many rows."""
        schema = function.schema_ or self._resolved.mapping.schema_
        self._require_function(schema, function.name)
        given = function.arguments
        if isinstance(given, Mapping):
            listed = [f"{self._quote(name)} => {self._argument(value)}" for name, value in given.items()]
        else:
            listed = [self._argument(value) for value in given]
        name = self._quote(function.name) if schema is None else f"{self._quote(schema)}.{self._quote(function.name)}"
        arrays = [self._mark("k0", f"{self._key_types[0]}[]"), *(self._mark(time, "text[]") for time in self._times)]
        columns = ["k0", *(f"at_{time}" for time in self._times)]
        chosen = f"unnest({', '.join(arrays)}) AS chosen({', '.join(columns)})"
        return f"SELECT {name}({', '.join(listed)}) FROM {chosen}"

    def _require_function(self, schema: str | None, name: str) -> None:
        if isinstance(self._resolved.database, SqliteDatabase):
            raise self._resolved.fault("SQLite has no stored functions", self._rule.section, "function")
        found = self._resolved.database.fetch(
            "SELECT 1 FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE p.proname = %(name)s"
            " AND CASE WHEN %(schema)s::text IS NULL THEN pg_function_is_visible(p.oid)"
            " ELSE n.nspname = %(schema)s END", {"name": name, "schema": schema},
        )
        if not found:
            raise self._resolved.fault(f"there is no function {name!r}", self._rule.section, "function", "name")

    def _argument(self, value: Argument) -> str:
        match value:
            case "key":
                return "chosen.k0"
            case "keys":
                return "ARRAY[chosen.k0]"
            case "now" | "due":
                return f"chosen.at_{value}::{self._parts[self._times[value]].stored.type}"
            case None:
                return "NULL"
            case bool():
                return "TRUE" if value else "FALSE"
            case _:
                return str(value)

    def _all_times(self) -> dict[str, int]:
        """The positions of `now` and `due` in the after-image, if they are used."""
        given = {name: assigned.time for name, assigned in self._rule.set.items() if assigned.time}
        names = [part.name for part in self._parts]
        return {time: names.index(name) for name, time in given.items()}

    def times(self, change: Change) -> dict[str, Any]:
        """The values of `:now` and `:due` from the after-image."""
        return {name: change.after[place] for name, place in self._times.items()}

    def called_with(self, changes: Sequence[Change]) -> dict[str, Any]:
        times = {name: [change.after[place] for change in changes] for name, place in self._times.items()}
        return {"k0": [change.keys[0].parts[0] for change in changes], **times}
