"""The guarded write of mapped rows: by the shared guards where a row is found by one plain key, here for the rest.

Every chunk is one transaction: rows are taken `FOR UPDATE SKIP LOCKED`, compared with the plan, and written by an
UPDATE, by the system's own function, or by several statements; whatever a row's own write raises is that row's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from console.core.backend import CHANGED, Change, Image, Outcome, OutcomeKind
from console.core.item import ItemKey
from console.sql.database import Row, RowRefused, Writer
from console.sql.guarded import SqliteGuard, Target, conflict
from console.sql.sqlite import SqliteDatabase
from console.sql.values import plain
from plugins.sql_table.attaching import Attached
from plugins.sql_table.fragments import fragment
from plugins.sql_table.handing_back import Argument, FunctionCall
from plugins.sql_table.reading import Reading, is_integer
from plugins.sql_table.requeue import Handing, Part
from plugins.sql_table.tables import quoted
from plugins.sql_table.vocabulary import WRITTEN

if TYPE_CHECKING:
    from console.sql.postgres import PostgresDatabase

Run = Callable[[str, Any], Sequence[Row]]
LOCKED = Outcome(OutcomeKind.CONFLICTED, "locked by someone else's transaction")
TWICE = Outcome(OutcomeKind.CONFLICTED, "is in the same write twice")
AT_WORK = Outcome(OutcomeKind.CONFLICTED, "a worker holds its lock")


class Guard(Protocol):
    """Compares and sets the rows of changes."""

    def swap(self, changes: Sequence[Change]) -> list[Outcome]: ...

    def images(self, keys: Sequence[ItemKey]) -> dict[ItemKey, Image]: ...


def guard_for(attached: Attached, reading: Reading, handing: Handing) -> Guard:
    """The shared guard where it fits, which is faster; else one that can say more."""
    requeue, table = attached.mapping.requeue, attached.table
    assert requeue is not None
    key = reading.keys[0]
    integer = is_integer(key, sqlite=attached.sqlite)
    plain_update = (
        requeue.function is None and not requeue.statements and requeue.lock is None and len(reading.keys) == 1
        and all(part.read is None and not part.stored.generated for part in handing.parts) and table.is_table
        and not any(mark in table.name + (table.schema or "") for mark in (".", "%"))
        and (integer or "text" in key.type.lower() or "char" in key.type.lower())
    )
    if not plain_update:
        return RowGuard(attached, reading, handing)
    columns = tuple(part.column for part in handing.parts)
    target = Target(table.shown, attached.mapping.keys[0], columns, integer_key=integer)
    if isinstance(attached.database, SqliteDatabase):
        return SqliteGuard(attached.database, target)
    from console.sql.guarded_postgres import PostgresGuard

    return PostgresGuard(attached.database, target)


class RowGuard:
    """Rows with keys of several columns, parts of JSON, locks outside of the row, functions and statements."""

    def __init__(self, attached: Attached, reading: Reading, handing: Handing) -> None:
        assert attached.mapping.requeue is not None
        self._database: SqliteDatabase | PostgresDatabase = attached.database
        self._sqlite = attached.sqlite
        self._parts = handing.parts
        self._keys = reading.keys
        self._by_update = attached.mapping.requeue.function is None and not attached.mapping.requeue.statements
        self._sql = _Statements(attached, reading, handing)

    # -- reading ---------------------------------------------------------------------------------

    def images(self, keys: Sequence[ItemKey]) -> dict[ItemKey, Image]:
        return {key: image for key, (image, _) in self._seen(keys, self._database.fetch, self._sql.seen).items()}

    def _seen(self, keys: Sequence[ItemKey], run: Run, sql: str) -> dict[ItemKey, tuple[Image, bool]]:
        """Each row's image, and whether its lock is ours."""
        found: dict[ItemKey, tuple[Image, bool]] = {}
        width = len(self._keys)
        for rows, by_text in self._rows(keys, run, sql):
            for row in rows:
                key = by_text[tuple(map(str, row[:width]))]
                found[key] = (tuple(map(plain, row[width:-1])), bool(row[-1]))
        return found

    def _rows(
        self, keys: Sequence[ItemKey], run: Run, sql: str
    ) -> list[tuple[Sequence[Row], dict[tuple[str, ...], ItemKey]]]:
        by_text = {key.parts: key for key in keys}
        if not keys:
            return []
        if self._sqlite:
            return [(run(sql, self._named(key)), by_text) for key in keys]
        columns = {f"k{n}": [key.parts[n] for key in keys] for n in range(len(self._keys))}
        return [(run(sql, columns), by_text)]

    def _named(self, key: ItemKey) -> dict[str, Any]:
        values = (
            int(part) if self._sqlite and is_integer(found, sqlite=True) else part
            for part, found in zip(key.parts, self._keys, strict=True)
        )
        return {f"k{n}": value for n, value in enumerate(values)}

    # -- writing ---------------------------------------------------------------------------------

    def swap(self, changes: Sequence[Change]) -> list[Outcome]:
        outcomes: dict[int, Outcome] = {}
        with self._database.writing() as writer:
            keys = [change.keys[0] for change in changes]
            held = self._seen(keys, writer.execute, self._sql.held)
            now = held if len(held) == len(keys) else self._seen(keys, writer.execute, self._sql.seen)
            sound, met = [], set()
            for n, (change, key) in enumerate(zip(changes, keys, strict=True)):
                image = held.get(key, now.get(key, (None, False)))[0]
                if image != change.before:
                    outcomes[n] = conflict(change.before, image, tuple(part.name for part in self._parts))
                elif key in met:
                    outcomes[n] = TWICE
                elif key not in held:
                    outcomes[n] = LOCKED
                elif not held[key][1]:
                    outcomes[n] = AT_WORK
                else:
                    sound.append(n)
                met.add(key)
            self._part(writer, changes, sound, outcomes)
        return [outcomes[n] for n in range(len(changes))]

    def _part(
        self, writer: Writer, changes: Sequence[Change], numbers: list[int], outcomes: dict[int, Outcome]
    ) -> None:
        """Write some rows; where one is refused, halve until it stands alone, and go on without it."""
        if not numbers:
            return
        try:
            with writer.savepoint():
                self._write(writer, [changes[n] for n in numbers])
        except RowRefused as refused:
            if len(numbers) == 1:
                outcomes[numbers[0]] = Outcome(OutcomeKind.FAILED, str(refused))
                return
            middle = len(numbers) // 2
            self._part(writer, changes, numbers[:middle], outcomes)
            self._part(writer, changes, numbers[middle:], outcomes)
        else:
            outcomes.update(dict.fromkeys(numbers, CHANGED))

    def _write(self, writer: Writer, changes: Sequence[Change]) -> None:
        if self._by_update:
            rows = [
                {**self._named(change.keys[0]), **{f"v{n}": value for n, value in enumerate(change.after)}}
                for change in changes
            ]
            writer.executemany(self._sql.update, rows)
            return
        for change in changes:
            given = {**self._named(change.keys[0]), **self._sql.times(change)}
            for number, sql in enumerate(self._sql.steps, 1):
                if not writer.execute(sql, given) and self._sql.must_return:
                    raise RowRefused(f"statement {number} changed nothing")
        self._require_as_planned(writer, changes)

    def _require_as_planned(self, writer: Writer, changes: Sequence[Change]) -> None:
        """What the database made of a row must be what the plan said."""
        seen = self._seen([change.keys[0] for change in changes], writer.execute, self._sql.seen)
        names = tuple(part.name for part in self._parts)
        for change in changes:
            image = seen.get(change.keys[0], (None, False))[0]
            if image != change.after:
                made = conflict(change.after, image, names).detail.replace("was", "planned was")
                raise RowRefused(f"its own system made something else of it: {made}")


class _Statements:
    """The statements of one mapping, with every name quoted by the dialect and every value bound."""

    def __init__(self, attached: Attached, reading: Reading, handing: Handing) -> None:
        requeue = attached.mapping.requeue
        assert requeue is not None
        self._attached = attached
        self._parts = handing.parts
        self._sqlite = attached.sqlite
        self._key_types = [found.type for found in reading.keys]
        quote = attached.database.dialect.identifier_preparer.quote_identifier
        self._quote: Callable[[str], str] = quote
        self.table = quoted(attached.database, attached.table.schema, attached.table.name)
        self.seen = self._select("", None)
        self.held = self._select("" if self._sqlite else " FOR UPDATE SKIP LOCKED", requeue.lock)
        self.update = self._update()
        self.must_return = bool(requeue.statements)
        self.steps = self._steps()
        self._times = {"now": self._time_for("now"), "due": self._time_for("due")}

    def _mark(self, name: str, type: str = "") -> str:
        if self._sqlite:
            return f":{name}"
        return f"%({name})s::{type}" if type else f"%({name})s"

    def _key_is(self, table: str) -> str:
        keys = self._attached.mapping.keys
        return " AND ".join(
            f"{table}.{self._quote(key)} = {self._mark(f'k{n}', type)}"
            for n, (key, type) in enumerate(zip(keys, self._key_types, strict=True))
        )

    def _select(self, locking: str, lock: str | None) -> str:
        """Key, image and lock of some rows; taken first, so that a lock is tried on no other."""
        keys = [f"job.{self._quote(key)}" for key in self._attached.mapping.keys]
        own = lock if lock is None else fragment(lock).driver_sql(self._names(lock), sqlite=self._sqlite)
        listed = ", ".join([*keys, *(self._read(part) for part in self._parts), f"({own})" if own else "1"])
        if self._sqlite:
            return f"SELECT {listed} FROM {self.table} AS job {self._joins()} WHERE {self._key_is('job')}"
        arrays = ", ".join(self._mark(f"k{n}", f"{type}[]") for n, type in enumerate(self._key_types))
        chosen = ", ".join(f"x.{self._quote(key)}" for key in self._attached.mapping.keys)
        taken = f"SELECT x.* FROM {self.table} AS x WHERE ({chosen}) IN (SELECT * FROM unnest({arrays})){locking}"
        return f"SELECT {listed} FROM ({taken}) AS job {self._joins()}"

    def _read(self, part: Part) -> str:
        if part.read is not None:
            return f"({fragment(part.read).driver_sql(self._names(part.read), sqlite=self._sqlite)})"
        alias, _, column = part.column.partition(".")
        if part.column not in self._attached.table.columns and alias in self._attached.joined:
            return f"{self._quote(alias)}.{self._quote(column)}"
        return f"job.{self._quote(part.column)}"

    def _joins(self) -> str:
        joined = []
        for alias, (table, _) in self._attached.joined.items():
            match = self._attached.mapping.joins[alias].match
            name, other = quoted(self._attached.database, table.schema, table.name), self._quote(alias)
            same = " AND ".join(f"{other}.{self._quote(a)} = job.{self._quote(b)}" for a, b in match.items())
            joined.append(f"LEFT JOIN {name} AS {other} ON {same}")
        return " ".join(joined)

    def _names(self, text: str) -> dict[str, str]:
        return self._attached.names(text, WRITTEN | {"value"}, "requeue")

    def _update(self) -> str:
        written = [(n, part) for n, part in enumerate(self._parts) if part.is_set]
        sets = ", ".join(f"{self._quote(part.column)} = {self._written(n, part)}" for n, part in written)
        name = self.table if self._sqlite else f"{self.table} AS job"
        return f"UPDATE {name} SET {sets} WHERE {self._key_is(self.table if self._sqlite else 'job')}"

    def _written(self, n: int, part: Part) -> str:
        mark = self._mark(f"v{n}", part.stored.type)
        if part.write is None:
            return mark
        pieces = fragment(part.write, frozenset({"value"}))
        return pieces.driver_sql(self._names(part.write), sqlite=self._sqlite).replace(self._mark("value"), mark)

    # -- functions and statements ----------------------------------------------------------------

    def _steps(self) -> list[str]:
        requeue = self._attached.mapping.requeue
        assert requeue is not None
        if requeue.function is not None:
            return [self._call(requeue.function)]
        key = self._mark("k0", self._key_types[0])
        steps = []
        for n, text in enumerate(requeue.statements):
            names = self._attached.names(text, WRITTEN, "requeue", "statements", n)
            steps.append(fragment(text, WRITTEN).driver_sql(names, sqlite=self._sqlite).replace(self._mark("key"), key))
        return steps

    def _call(self, function: FunctionCall) -> str:
        schema = function.schema_ or self._attached.mapping.schema_
        self._require_function(schema, function.name)
        given = function.arguments
        if isinstance(given, Mapping):
            listed = [f"{self._quote(name)} => {self._argument(value)}" for name, value in given.items()]
        else:
            listed = [self._argument(value) for value in given]
        name = self._quote(function.name) if schema is None else f"{self._quote(schema)}.{self._quote(function.name)}"
        return f"SELECT {name}({', '.join(listed)})"

    def _require_function(self, schema: str | None, name: str) -> None:
        if isinstance(self._attached.database, SqliteDatabase):
            raise self._attached.wrong("SQLite has no stored functions", "requeue", "function")
        found = self._attached.database.fetch(
            "SELECT 1 FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE p.proname = %(name)s"
            " AND CASE WHEN %(schema)s::text IS NULL THEN pg_function_is_visible(p.oid)"
            " ELSE n.nspname = %(schema)s END", {"name": name, "schema": schema},
        )
        if not found:
            raise self._attached.wrong(f"there is no function {name!r}", "requeue", "function", "name")

    def _argument(self, value: Argument) -> str:
        match value:
            case "key":
                return self._mark("k0", self._key_types[0])
            case "keys":
                return f"ARRAY[{self._mark('k0', self._key_types[0])}]"
            case "now" | "due":
                return self._mark(value)
            case None:
                return "NULL"
            case _:
                return str(value)

    def _time_for(self, name: str) -> int | None:
        """Which part of the after-image holds that time."""
        requeue = self._attached.mapping.requeue
        assert requeue is not None
        timed = [n for n, part in enumerate(self._parts) if (a := requeue.set.get(part.name)) and a.time == name]
        return timed[0] if timed else None

    def times(self, change: Change) -> dict[str, Any]:
        """`:now` and `:due` as the after-image has them."""
        return {name: None if place is None else change.after[place] for name, place in self._times.items()}
