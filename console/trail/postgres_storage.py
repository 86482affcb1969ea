"""The trail in a PostgreSQL schema of its own, for a team. A server that does not answer counts as gone."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import lru_cache
from queue import Empty, SimpleQueue
from typing import Any, cast

import psycopg
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql.psycopg import dialect
from sqlalchemy.pool import QueuePool

from console.core.faults import ReadOnlyRefused, TrailUnavailable
from console.trail.schema import SCHEMA, VERSION, ddl
from console.trail.storage import PATIENCE, Reading, Row, T, Writing

_APPENDING = 0x7265_7472_6961_6765
"""The advisory lock that everyone who appends to a trail in this database takes first."""

_READING_PATIENCE = 5.0
_ROWS_AT_ONCE = 10_000
"""Rows in one COPY, so that a long one is not taken for a hung one."""

Connection = psycopg.Connection[Row]


@lru_cache(maxsize=256)
def _native(sql: str) -> Any:
    return sql.replace("?", "%s")


class _Watch:
    """Cuts a connection whose server has been silent for too long; its user gets an error at once.

    A statement timeout is the server's own promise: it is worth nothing when the server is frozen.
    """

    def __init__(self, connection: Connection, patience: float, place: str) -> None:
        self._connection = connection
        self._place = place
        self._patience = patience
        self._end = time.monotonic() + patience
        self._over = threading.Event()
        self.cut = False

    def again(self) -> None:
        """The server has answered."""
        self._end = time.monotonic() + self._patience

    def __enter__(self) -> _Watch:
        threading.Thread(target=self._look, name="trail-watch", daemon=True).start()
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._over.set()
        if self.cut and isinstance(error, psycopg.Error):
            raise TrailUnavailable("the server does not answer", where=self._place) from None

    def _look(self) -> None:
        while (left := self._end - time.monotonic()) > 0:
            if self._over.wait(left):
                return
        self.cut = True
        try:
            with socket.socket(fileno=os.dup(self._connection.fileno())) as wire:
                wire.shutdown(socket.SHUT_RDWR)
        except (OSError, psycopg.Error):
            return  # closed in the meantime: nothing to cut


class _Session:
    """Statements on one connection, each within the patience of its watch."""

    def __init__(self, connection: Connection, watch: _Watch) -> None:
        self._connection = connection
        self._watch = watch

    def all(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        cursor = self._connection.execute(_native(sql), tuple(parameters))
        rows = cursor.fetchall() if cursor.description else []
        self._watch.again()
        return rows

    def now(self, ours: datetime) -> datetime:  # noqa: ARG002  the server's counts
        """Consoles on several machines share this trail, and their clocks need not agree."""
        found: datetime = self.all("SELECT clock_timestamp()")[0][0]
        return found

    def run(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        changed = self._connection.execute(_native(sql), tuple(parameters)).rowcount
        self._watch.again()
        return changed

    def bulk(self, table: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
        statement: Any = f"COPY {table} ({', '.join(columns)}) FROM STDIN"
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            with self._connection.cursor() as cursor, cursor.copy(statement) as copy:
                for row in rows[start : start + _ROWS_AT_ONCE]:
                    copy.write_row(row)
            self._watch.again()


def _throw_away(answers: SimpleQueue[Connection | psycopg.Error]) -> None:
    """Close a connection that came too late; whoever takes it out of the queue does."""
    with suppress(Empty):
        late = answers.get_nowait()
        if isinstance(late, psycopg.Connection):
            late.close()


class PostgresStorage:
    """One trail in a database. Nothing is connected before the first use, nothing created before a write."""

    def __init__(self, url: str, *, read_only: bool) -> None:
        parsed = sa.make_url(url)
        self._dialect: Any = cast("Any", dialect)()
        self._arguments: dict[str, Any] = self._dialect.create_connect_args(parsed)[1]
        self.place = f"postgresql://{parsed.host or ''}/{parsed.database or ''}"
        self._read_only = read_only
        self._readers = QueuePool(
            cast("Any", lambda: self._connect(_READING_PATIENCE)),
            pool_size=2, max_overflow=6, timeout=_READING_PATIENCE, reset_on_return=None, use_lifo=True,
        )
        self._lock = threading.RLock()
        self._writer: Connection | None = None
        self._ready = False

    # -- connecting ------------------------------------------------------------------------------

    def _connect(self, patience: float) -> Connection:
        """libpq waits at least two seconds for a server that accepts but does not speak: too long for us."""
        answers: SimpleQueue[Connection | psycopg.Error] = SimpleQueue()
        given_up = threading.Event()

        def connect() -> None:
            try:
                answers.put(psycopg.connect(**self._settings(patience)))
            except psycopg.Error as error:
                answers.put(error)
            if given_up.is_set():
                _throw_away(answers)

        threading.Thread(target=connect, name="trail-connect", daemon=True).start()
        try:
            answer = answers.get(timeout=PATIENCE)
        except Empty:
            given_up.set()
            _throw_away(answers)
            raise TrailUnavailable("the server does not answer", where=self.place) from None
        if isinstance(answer, psycopg.Error):
            raise answer
        return answer

    def _settings(self, patience: float) -> dict[str, Any]:
        limit = int(patience * 800)  # in ms, and less than ours: the server says better what it waited for
        options = (
            f"-c search_path={SCHEMA} -c statement_timeout={limit} -c lock_timeout={limit}"
            f" -c synchronous_commit=on -c default_transaction_read_only={'on' if self._read_only else 'off'}"
        )
        given = self._arguments.get("options")
        return {
            "application_name": "retriage", "connect_timeout": 3, **self._arguments,
            "options": f"{given} {options}" if given else options,
            "autocommit": True, "client_encoding": "utf8", "prepare_threshold": None,
        }

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            said = error.diag.message_primary or str(error).strip().partition("\n")[0]
            raise TrailUnavailable(said or type(error).__name__, where=self.place) from None

    # -- reading ---------------------------------------------------------------------------------

    def read(self, work: Callable[[Reading], T], empty: T) -> T:
        with self._translated():
            for attempt in (1, 2):
                proxied = self._readers.connect()
                connection: Any = proxied.driver_connection
                watch = _Watch(connection, _READING_PATIENCE, self.place)
                try:
                    with watch:
                        session = _Session(connection, watch)
                        return work(session) if self._has_trail(session) else empty
                except (psycopg.OperationalError, TrailUnavailable):
                    try_again = attempt == 1 and connection.broken and not watch.cut
                    proxied.invalidate()
                    if not try_again:  # a kept connection may have died of a restart
                        raise
                finally:
                    proxied.close()
        raise AssertionError("unreachable")

    def _has_trail(self, session: _Session) -> bool:
        if not self._ready:
            if session.all("SELECT to_regclass('trail_schema')")[0][0] is None:
                return False
            self._check_version(session)
            self._ready = True
        return True

    def _check_version(self, session: _Session) -> None:
        found = session.all("SELECT max(version) FROM trail_schema")[0][0]
        if found != VERSION:
            raise TrailUnavailable(
                f"its tables are of version {found}, this program knows version {VERSION}", where=self.place
            )

    # -- writing ---------------------------------------------------------------------------------

    def write(self, work: Callable[[Writing], T], *, lasting: bool = True) -> T:
        if self._read_only:
            raise ReadOnlyRefused("the trail is opened for reading only", where=self.place)
        with self._lock, self._translated():
            connection = self._begun()
            try:
                with _Watch(connection, PATIENCE, self.place) as watch:
                    session = _Session(connection, watch)
                    if not self._ready:
                        self._create(session)
                    if not lasting:
                        session.run("SET LOCAL synchronous_commit = off")
                    result = work(session)
                    session.run("COMMIT")
                    self._ready = True
                    return result
            except BaseException:
                self._drop_writer()
                raise

    def _begun(self) -> Connection:
        """A transaction that holds the lock of all who append. A kept connection may have died: then another."""
        kept = self._writer is not None
        while True:
            if self._writer is None:
                self._writer = self._connect(PATIENCE)
            watch = _Watch(self._writer, PATIENCE, self.place)
            try:
                with watch:
                    self._writer.execute("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
                    watch.again()
                    self._writer.execute("SELECT pg_advisory_xact_lock(%s)", (_APPENDING,))
            except BaseException:
                try_again = kept and self._writer.broken and not watch.cut
                self._drop_writer()
                if not try_again:
                    raise
                kept = False
                continue
            return self._writer

    def _create(self, session: _Session) -> None:
        if session.all("SELECT to_regclass('trail_schema')")[0][0] is None:
            session.run(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
            for statement in ddl(self._dialect):
                session.run(statement)
        self._check_version(session)

    def _drop_writer(self) -> None:
        """The server rolls back what a closed connection had begun."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def close(self) -> None:
        with self._lock:
            self._drop_writer()
        self._readers.dispose()
