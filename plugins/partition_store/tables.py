"""Where the two tables are, and how their databases spell and store things.

The state table belongs to the pipeline, the control table to this console. Usually both are in one database;
`control_url` moves ours elsewhere, and then its rows go along with every statement: to PostgreSQL as one bound
value, to SQLite as a function that looks them up.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from console.core.backend import Image
from console.core.item import ERROR_HEAD
from console.core.ports import Stop
from console.sql.database import Row, Writer
from console.sql.sqlite import SqliteDatabase
from console.sql.statement import Prepared, as_bytes
from console.sql.times import Aware, IsoText
from console.sql.values import text
from plugins.partition_store.rows import BY_TEXT, STATE_PART, TEXT_MARKER, stored
from plugins.partition_store.schema import CONTROL, CONTROLS, KEY, MARK, ROWS, TABLE, control_ddl
from plugins.partition_store.sink import Partition

if TYPE_CHECKING:
    from console.sql.postgres import PostgresDatabase

    Attached = SqliteDatabase | PostgresDatabase

Run = Callable[[str, Any], Sequence[Row]]

SAME_KEY = " AND ".join(f"{name} = ?" for name in KEY)
NOTHING: Image = (None,) * STATE_PART
MARKS = ("terminal", "paused", "next_run_at", "request")
_STATE = "status, attempt_count, updated_at, current_run_id"
_HEAD = f"CAST(substr(error_message, 1, {ERROR_HEAD}) AS TEXT)"
_AT_ONCE = 500


class Marks:
    """The control rows as they were before the last statement, for SQLite's function of our own."""

    def __init__(self) -> None:
        self.rows: dict[tuple[bytes, ...], Row] = {}

    @property
    def functions(self) -> dict[str, Callable[..., Any]]:
        return {MARK: self._look_up}

    def _look_up(self, place: int, *key: bytes | None) -> Any:
        row = self.rows.get(cast("tuple[bytes, ...]", key))
        return None if row is None else row[place]

    def keep(self, rows: Sequence[Row]) -> None:
        self.rows = {tuple(as_bytes(text(part)) for part in row[:4]): row[4:] for row in rows}


class Tables:
    """Both tables, whichever databases they are in."""

    def __init__(self, state: Attached, control: Attached | None = None, marks: Marks | None = None) -> None:
        self.state = state
        self.control: Attached = state if control is None else control
        self.apart = control is not None
        self.time: IsoText | Aware = IsoText() if isinstance(state, SqliteDatabase) else Aware()
        self._marks = marks or Marks()

    # -- how it is spelled -----------------------------------------------------------------------

    @staticmethod
    def spelled(database: Attached, sql: str) -> str:
        return sql if isinstance(database, SqliteDatabase) else sql.replace("?", "%s")

    def fetch(self, sql: str, parameters: Sequence[Any], *, control: bool = False) -> list[Row]:
        database = self.control if control else self.state
        return database.fetch(self.spelled(database, sql), list(parameters))

    # -- the control table -----------------------------------------------------------------------

    def has_control(self) -> bool:
        return bool(self.control.columns(CONTROL))

    def create_control(self) -> None:
        """Ours, so that nobody else's schema is touched; of two consoles that both come to it first, one waits."""
        sqlite = isinstance(self.control, SqliteDatabase)
        with self.control.writing() as writer:
            if not sqlite:  # PostgreSQL lets two sessions find out together that there is none, and refuses one of them
                writer.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (CONTROL,))
            writer.execute(control_ddl(sqlite=sqlite))

    def control_row(self, partition: Partition) -> dict[str, Any]:
        """Everything the control table keeps of one partition."""
        columns = list(self.control.columns(CONTROL))
        if not columns:
            return {}
        sql = f"SELECT {', '.join(columns)} FROM {CONTROL} WHERE {SAME_KEY}"  # noqa: S608  names are ours
        rows = self.fetch(sql, partition, control=True)
        return dict(zip(columns, rows[0], strict=True)) if rows else {}

    # -- images ----------------------------------------------------------------------------------

    def images(
        self, partitions: Sequence[Partition], state: Run | None = None, control: Run | None = None
    ) -> list[Image]:
        """Each partition as it is now; nothing but NULLs where there is no row of it."""
        columns = f"{_STATE}, {_marked_by_text(sqlite=isinstance(self.state, SqliteDatabase))}"
        states = self._by_key(self.state, columns, TABLE, partitions, state)
        marks = self._by_key(self.control, ", ".join(MARKS), CONTROL, partitions, control) if self.has_control() else {}
        return [_joined(states.get(partition), marks.get(partition)) for partition in partitions]

    def _by_key(
        self, database: Attached, columns: str, table: str, partitions: Sequence[Partition], run: Run | None
    ) -> dict[Partition, Row]:
        found: dict[Partition, Row] = {}
        for sql, parameters in self._chosen(database, columns, table, partitions):
            rows = run(sql, parameters) if run is not None else database.fetch(sql, parameters)
            found.update({_key(row): row[4:] for row in rows})
        return found

    def _chosen(
        self, database: Attached, columns: str, table: str, partitions: Sequence[Partition], lock: str = ""
    ) -> Iterator[tuple[str, list[str]]]:
        marks = "(?, ?, ?, ?)" if isinstance(database, SqliteDatabase) else "(?, ?, ?, CAST(? AS date))"
        for start in range(0, len(partitions), _AT_ONCE):
            some = partitions[start : start + _AT_ONCE]
            sql = (
                f"SELECT {', '.join(KEY)}, {columns} FROM {table}"  # noqa: S608  names are ours
                f" WHERE ({', '.join(KEY)}) IN (VALUES {', '.join([marks] * len(some))}){lock}"
            )
            yield self.spelled(database, sql), [part for partition in some for part in partition]

    def held(self, writer: Writer, partitions: Sequence[Partition]) -> set[Partition]:
        """The rows of the state table nobody else holds, ours until the end of this transaction."""
        if isinstance(self.state, SqliteDatabase):
            return set(partitions)
        found: set[Partition] = set()
        for sql, parameters in self._chosen(self.state, "1", TABLE, partitions, " FOR UPDATE SKIP LOCKED"):
            found.update(_key(row) for row in writer.execute(sql, parameters))
        return found

    @contextmanager
    def writing(self) -> Iterator[tuple[Writer, Writer]]:
        """Transactions on the state and on the control table: the same one, unless the tables live apart.

        Apart, the state is committed first: if the other commit is lost, the state can be taken back exactly.
        """
        if not self.apart:
            with self.state.writing() as writer:
                yield writer, writer
            return
        with self.control.writing() as ours, self.state.writing() as theirs:
            yield theirs, ours

    # -- reading both together -------------------------------------------------------------------

    def look(self) -> str:
        """Read the control table that lives apart, for the statement to come; all of it as one JSON value."""
        rows: list[Row] = []
        if self.has_control():
            found = self.control.fetch(f"SELECT {', '.join((*KEY, *CONTROLS))} FROM {CONTROL}", ())  # noqa: S608
            rows = [tuple(map(stored, row)) for row in found]
        self._marks.keep(rows)
        return json.dumps(rows)

    def close(self) -> None:
        self.state.close()
        if self.apart:
            self.control.close()


def _key(row: Row) -> Partition:
    return Partition(*(text(stored(part)) for part in row[:4]))


def _marked_by_text(*, sqlite: bool) -> str:
    """Told by the database: an error need not be text that a driver can read."""
    if sqlite:
        return f"instr(lower({_HEAD}), '{TEXT_MARKER}') > 0"
    return f"strpos(lower({_HEAD} COLLATE \"C\"), '{TEXT_MARKER}') > 0"


def _joined(state: Row | None, marks: Row | None) -> Image:
    *row, by_text = state if state is not None else (*NOTHING, None)
    terminal, paused, next_run, request = marks if marks is not None else (None,) * len(MARKS)
    return (*map(stored, row), terminal or (BY_TEXT if by_text else None), paused, stored(next_run), request)


class Joined:
    """The state's database, whose statements are given the control rows from the other one as well."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._inner = tables.state
        self.dialect = tables.state.dialect
        self.place = tables.state.place
        self.columns = tables.state.columns
        self.fetch = tables.state.fetch
        self.writing = tables.state.writing
        self.now = tables.state.now
        self.close = tables.close

    def read(self, statement: Prepared, now: datetime, given: Mapping[str, Any] | None = None) -> list[Row]:
        return self._inner.read(statement, now, {**(given or {}), ROWS: self._tables.look()})

    def stream(self, statement: Prepared, now: datetime, stop: Stop, size: int = 5_000) -> Iterator[list[Row]]:
        return self._inner.stream(_Given(statement, {ROWS: self._tables.look()}), now, stop, size)

    def cancel(self) -> None:
        self._inner.cancel()
        self._tables.control.cancel()


class _Given(Prepared):
    """A statement some of whose values are known already."""

    def __init__(self, statement: Prepared, given: Mapping[str, Any]) -> None:
        self.sql = statement.sql
        self._statement = statement
        self._given = given

    def parameters(self, now: datetime, given: Mapping[str, Any]) -> Any:
        return self._statement.parameters(now, {**given, **self._given})
