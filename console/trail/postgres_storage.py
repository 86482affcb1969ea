"""The trail in a PostgreSQL schema of its own, for a team. A server that does not answer counts as gone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import lru_cache
from queue import Empty, SimpleQueue
from typing import Any

import psycopg

from console.core.faults import ReadOnlyRefused, TrailUnavailable, TrailUnreadable
from console.sql.database import Writer, as_fault
from console.sql.postgres import ASK_IF_READ_ONLY, DriverConnection, PostgresDatabase
from console.trail.record import stamp
from console.trail.schema import SCHEMA, SELECT_VERSION, ddl
from console.trail.storage import PATIENCE, Reading, Row, T, Writing, require_version

_APPEND_LOCK = 0x7265_7472_6961_6765
"""The advisory lock that every writer of a trail in this database takes first."""

_BEGIN = """SELECT set_config('search_path', ?, true), pg_advisory_xact_lock(?), session_user::text,
    coalesce(host(inet_client_addr()), ''), clock_timestamp()"""
"""The time comes last: it is asked for when the lock is held."""
_TRAIL_HERE = """SELECT count(*) > 0, coalesce(bool_and(has_schema_privilege(n.oid, 'USAGE')), false)
    FROM pg_namespace AS n JOIN pg_class AS c ON c.relnamespace = n.oid
    WHERE n.nspname = ? AND c.relname = 'trail_schema'"""
_HIDDEN_ROWS = """SELECT c.relname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE n.nspname = ? AND c.relkind = 'r' AND row_security_active(c.oid) ORDER BY c.relname"""
_PUBLIC_WRITES = """SELECT DISTINCT c.relname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace,
    aclexplode(c.relacl) AS a WHERE n.nspname = ? AND a.grantee = 0
    AND a.privilege_type IN ('INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'TRIGGER') ORDER BY 1"""
_OWNER = """SELECT DISTINCT session_user::text FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE n.nspname = ? AND c.relkind = 'r' AND pg_has_role(session_user, c.relowner, 'MEMBER')"""
_READ_DEADLINE = timedelta(seconds=5)
_ROWS_PER_COPY = 10_000
"""A long bulk insert is cut into several, so that each answers within the deadline."""


@lru_cache(maxsize=256)
def _native(sql: str) -> str:
    """The statement with the driver's own placeholders."""
    return sql.replace("?", "%s")


class _TrailDatabase(PostgresDatabase):
    """The trail's connections: in its own schema, with a short wait for a server that does not answer."""

    def __init__(self, url: str, *, read_only: bool) -> None:
        super().__init__(
            url,
            read_only=read_only,
            deadline=_READ_DEADLINE,
            write_deadline=timedelta(seconds=PATIENCE),
            # Set in each transaction: a pooler may drop what is set when a session begins.
            asked=f"{ASK_IF_READ_ONLY}, set_config('search_path', '{SCHEMA}', true)",
        )

    def _open(self, settings: dict[str, Any]) -> DriverConnection:
        """Connect in a thread, because libpq waits at least two seconds for a server that does not answer."""
        answers: SimpleQueue[DriverConnection | Exception] = SimpleQueue()
        given_up = threading.Event()

        def connect() -> None:
            try:
                answers.put(psycopg.connect(**{"connect_timeout": 3, **settings, "prepare_threshold": None}))
            except (psycopg.Error, TypeError, ValueError) as error:
                answers.put(error)
            if given_up.is_set():
                _close_late(answers)

        threading.Thread(target=connect, name="trail-connect", daemon=True).start()
        try:
            answer = answers.get(timeout=PATIENCE)
        except Empty:
            given_up.set()
            _close_late(answers)
            raise TrailUnavailable("the server does not answer", where=self.place) from None
        if isinstance(answer, Exception):
            raise answer
        return answer


def _close_late(answers: SimpleQueue[DriverConnection | Exception]) -> None:
    """Close a connection that came too late; the thread that takes it out of the queue closes it."""
    with suppress(Empty):
        late = answers.get_nowait()
        if isinstance(late, psycopg.Connection):
            late.close()


class _Reading:
    """Statements that only read, each on a connection of the pool."""

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database

    def all(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        return self._database.fetch(_native(sql), tuple(parameters))

    def now(self, ours: datetime) -> datetime:  # noqa: ARG002  the server's time is the common one
        return self._database.now()


class _Transaction:
    """One transaction that holds the lock of all writers."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        ((_, _, role, address, now),) = self.all(_BEGIN, (SCHEMA, _APPEND_LOCK))
        self.facts: Mapping[str, Any] = {"session_user": role, "address": address, "at": stamp(now)}

    def all(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        return self._writer.execute(_native(sql), tuple(parameters))

    def now(self, ours: datetime) -> datetime:  # noqa: ARG002  the server's time is the common one
        """Consoles on several machines share this trail, and their clocks may differ."""
        found: datetime = self.all("SELECT clock_timestamp()")[0][0]
        return found

    def run(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        return self._writer.change(_native(sql), tuple(parameters))

    def bulk(self, table: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
        statement: Any = f"COPY {table} ({', '.join(columns)}) FROM STDIN"
        for start in range(0, len(rows), _ROWS_PER_COPY):
            with self._writer.driver() as driver, driver.cursor() as cursor, cursor.copy(statement) as copy:
                for row in rows[start : start + _ROWS_PER_COPY]:
                    copy.write_row(row)


class PostgresStorage:
    """One trail in a database. Nothing is connected before the first use, nothing created before a write."""

    def __init__(self, url: str, *, read_only: bool) -> None:
        self._database = _TrailDatabase(url, read_only=read_only)
        self.place = self._database.place
        self._read_only = read_only
        self._lock = threading.RLock()
        self._ready = False

    # -- reading ---------------------------------------------------------------------------------

    def read(self, work: Callable[[Reading], T], empty: T) -> T:
        with as_fault(TrailUnreadable, self.place):
            reading = _Reading(self._database)
            return work(reading) if self._has_trail(reading) else empty

    def _has_trail(self, reading: Reading) -> bool:
        if not self._ready:
            if not self._has_tables(reading):
                return False
            require_version(reading.all(SELECT_VERSION)[0][0], self.place, TrailUnreadable)
            self._ready = True
        return True

    def _has_tables(self, reading: Reading) -> bool:
        """Whether there is a trail. One that this role cannot read, or not all of, is not taken for an empty one."""
        ((found, visible),) = reading.all(_TRAIL_HERE, (SCHEMA,))
        if not found:
            return False
        if not visible:
            fix = f"Grant USAGE on schema {SCHEMA} and SELECT on its tables to this role."
            raise TrailUnreadable("this role may not use its schema", where=self.place, fix=fix)
        if hidden := [name for (name,) in reading.all(_HIDDEN_ROWS, (SCHEMA,))]:
            what = f"row security hides rows of {', '.join(hidden)} from this role"
            raise TrailUnreadable(what, where=self.place, fix="Disable row security on the trail's tables.")
        return True

    def exposed(self) -> str:
        nothing: list[Row] = []
        tables = [name for (name,) in self.read(lambda reading: reading.all(_PUBLIC_WRITES, (SCHEMA,)), nothing)]
        return f"every role may write {', '.join(tables)}" if tables else ""

    def owning_role(self) -> str:
        nothing: list[Row] = []
        return next((role for (role,) in self.read(lambda reading: reading.all(_OWNER, (SCHEMA,)), nothing)), "")

    # -- writing ---------------------------------------------------------------------------------

    def write(self, work: Callable[[Writing], T], *, lasting: bool = True) -> T:
        if self._read_only:
            raise ReadOnlyRefused("the trail is opened for reading only", where=self.place)
        with self._lock, as_fault(TrailUnavailable, self.place):
            with self._database.writing() as writer:
                transaction = _Transaction(writer)
                if not self._ready:
                    self._create(transaction)
                if not lasting:
                    transaction.run("SET LOCAL synchronous_commit = off")
                result = work(transaction)
            self._ready = True
            return result

    def _create(self, transaction: _Transaction) -> None:
        if not self._has_tables(transaction):
            transaction.run(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
            for statement in ddl(self._database.dialect):
                transaction.run(statement)
        require_version(transaction.all(SELECT_VERSION)[0][0], self.place)

    def close(self) -> None:
        with self._lock:
            self._database.close()
