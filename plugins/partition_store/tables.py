"""Access to the two tables, which may be in two databases.

The state table belongs to the pipeline, the control table to this console. Usually both are in one database. With
`control_url` the control table is in another one, and its rows are given to every statement on the state table: to
PostgreSQL as one bound JSON value, to SQLite as a function that finds them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from console.sql.database import ParameterizedDatabase, Row, Writer
from console.sql.sqlite import SqliteDatabase
from console.sql.times import Aware, IsoText
from console.sql.values import as_bytes, text, whole_number
from plugins.partition_store.rows import MARKS, STATE_COLUMNS, PartitionImage, digest_of, stored, terminal_mark
from plugins.partition_store.schema import CONTROL, CONTROLS, DIGEST, KEY, MARK, ROWS, TABLE, control_ddl, text_digest
from plugins.partition_store.sink import Partition

if TYPE_CHECKING:
    from console.sql.postgres import PostgresDatabase

    Attached = SqliteDatabase | PostgresDatabase

Run = Callable[[str, Any], Sequence[Row]]

SAME_KEY = " AND ".join(f"{name} = ?" for name in KEY)
_AT_ONCE = 500


class Marks:
    """The control rows as last read, for the SQL function that gives them to SQLite."""

    def __init__(self) -> None:
        self.rows: dict[tuple[bytes, ...], Row] = {}

    @property
    def functions(self) -> dict[str, Callable[..., Any]]:
        return {MARK: self._look_up, DIGEST: digest_of}

    def _look_up(self, place: int, *key: bytes | None) -> Any:
        row = self.rows.get(cast("tuple[bytes, ...]", key))
        return None if row is None else row[place]

    def keep(self, rows: Sequence[Row]) -> None:
        self.rows = {tuple(as_bytes(text(part)) for part in row[:4]): row[4:] for row in rows}


class Tables:
    """Both tables, in one database or in two."""

    def __init__(self, state: Attached, control: Attached | None = None, marks: Marks | None = None) -> None:
        self.state = state
        self.control: Attached = state if control is None else control
        self.apart = control is not None
        self.time: IsoText | Aware = IsoText() if isinstance(state, SqliteDatabase) else Aware()
        self._marks = marks or Marks()

    # -- statements ------------------------------------------------------------------------------

    @staticmethod
    def with_driver_marks(database: Attached, sql: str) -> str:
        """SQL with the parameter marks of the database's driver."""
        return sql if isinstance(database, SqliteDatabase) else sql.replace("?", "%s")

    def fetch(self, sql: str, parameters: Sequence[Any], *, control: bool = False) -> list[Row]:
        database = self.control if control else self.state
        return database.fetch(self.with_driver_marks(database, sql), list(parameters))

    # -- the control table -----------------------------------------------------------------------

    def has_control(self) -> bool:
        return bool(self.control.columns(CONTROL))

    def create_control(self) -> None:
        """Create the console's own table. If two consoles do so at once, one of them waits."""
        sqlite = isinstance(self.control, SqliteDatabase)
        with self.control.writing() as writer:
            if not sqlite:  # in PostgreSQL both sessions could find no table, and one of them would fail
                writer.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (CONTROL,))
            writer.execute(control_ddl(sqlite=sqlite))

    def control_row(self, partition: Partition) -> dict[str, Any]:
        """The whole row of one partition in the control table."""
        columns = list(self.control.columns(CONTROL))
        if not columns:
            return {}
        sql = f"SELECT {', '.join(columns)} FROM {CONTROL} WHERE {SAME_KEY}"  # noqa: S608  names are ours
        rows = self.fetch(sql, partition, control=True)
        return dict(zip(columns, rows[0], strict=True)) if rows else {}

    # -- images ----------------------------------------------------------------------------------

    def images(
        self, partitions: Sequence[Partition], state: Run | None = None, control: Run | None = None
    ) -> list[PartitionImage]:
        """Each partition as it is now, without signs; only NULLs for a partition without a row."""
        digest = text_digest("error_message", sqlite=isinstance(self.state, SqliteDatabase))
        columns = f"{', '.join(STATE_COLUMNS)}, {digest}"
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
            yield self.with_driver_marks(database, sql), [part for partition in some for part in partition]

    def held(self, writer: Writer, partitions: Sequence[Partition]) -> set[Partition]:
        """Lock rows of the state table until the end of the transaction; the partitions that nobody else has locked."""
        if isinstance(self.state, SqliteDatabase):
            return set(partitions)
        found: set[Partition] = set()
        for sql, parameters in self._chosen(self.state, "1", TABLE, partitions, " FOR UPDATE SKIP LOCKED"):
            found.update(_key(row) for row in writer.execute(sql, parameters))
        return found

    @contextmanager
    def writing(self) -> Iterator[tuple[Writer, Writer]]:
        """Transactions on the state and the control table; one and the same if both are in one database.

        Of two, the state is committed first: if the other commit is lost, the state can be reverted exactly.
        """
        if not self.apart:
            with self.state.writing() as writer:
                yield writer, writer
            return
        with self.control.writing() as ours, self.state.writing() as theirs:
            yield theirs, ours

    # -- reading both together -------------------------------------------------------------------

    def read_control(self) -> str:
        """Read the control table from its own database for the next statement; all of it as one JSON value."""
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


def _joined(state: Row | None, marks: Row | None) -> PartitionImage:
    # The digest comes from SQL, because a driver may not be able to read the error.
    row = dict(zip((*STATE_COLUMNS, "digest"), state or (), strict=False))
    digest = row.pop("digest", None)
    values = {name: stored(value) for name, value in {**row, **dict(zip(MARKS, marks or (), strict=False))}.items()}
    image = PartitionImage(**values)
    return image._replace(terminal=terminal_mark(image.terminal, whole_number(image.attempt_count), digest))


class Joined(ParameterizedDatabase):
    """The state's database; its statements also get the control rows from the other database."""

    def __init__(self, tables: Tables) -> None:
        super().__init__(tables.state, lambda _: {ROWS: tables.read_control()})
        self._tables = tables

    def cancel(self) -> None:
        super().cancel()
        self._tables.control.cancel()

    def close(self) -> None:
        self._tables.close()
