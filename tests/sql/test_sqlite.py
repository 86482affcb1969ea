"""An attached SQLite file: what a reading connection refuses, deadlines, cancelling, waiting for a lock."""

from __future__ import annotations

import hashlib
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from datetime import timedelta
from pathlib import Path
from typing import cast

import pytest
import sqlalchemy as sa
from sqlalchemy.pool import QueuePool

from console.core.faults import BackendBusy, BackendFault, ConfigFault, DeadlineExceeded, ReadOnlyRefused
from console.core.ports import Never
from console.sql.database import Binds, BoundStatement, RowRefused, TransactionRefused
from console.sql.sqlite import SqliteDatabase, driver_of, sqlite_path
from console.sql.sqlite_faults import translate
from console.testing import NOON, StopFlag
from tests.patience import busy

FOREVER = "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n) SELECT count(*) FROM n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "some.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT UNIQUE)")
        connection.executemany("INSERT INTO t VALUES (?, ?)", [(n, f"row {n}") for n in range(1000)])
        connection.execute("CREATE VIEW v AS SELECT * FROM t")
    return path


@pytest.fixture(params=[False, True], ids=["normal", "read-only"])
def database(path: Path, request: pytest.FixtureRequest) -> Iterator[SqliteDatabase]:
    database = SqliteDatabase(path, read_only=request.param)
    yield database
    database.close()


def fetched(database: SqliteDatabase, sql: str) -> object:
    return database.fetch(sql, ())


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE t SET b = 'x'",
        "DELETE FROM t",
        "INSERT INTO t VALUES (5000, 'x')",
        "REPLACE INTO t VALUES (1, 'x')",
        "WITH one AS (SELECT 1) UPDATE t SET b = 'x' WHERE a IN one",
        "WITH one AS (SELECT 1) INSERT INTO t SELECT 5000, 'x' FROM one",
        "UPDATE t SET b = 'x' RETURNING a",
        "CREATE TABLE u (a)",
        "CREATE TEMP TABLE u (a)",
        "CREATE TEMP VIEW u AS SELECT 1",
        "CREATE INDEX i ON t (b)",
        "CREATE TRIGGER g AFTER UPDATE ON t BEGIN SELECT 1; END",
        "CREATE VIRTUAL TABLE u USING fts5(a)",
        "DROP TABLE t",
        "DROP VIEW v",
        "ALTER TABLE t ADD COLUMN c",
        "ATTACH DATABASE '{other}' AS other",
        "ATTACH DATABASE ':memory:' AS other",
        "DETACH DATABASE main",
        "VACUUM",
        "VACUUM INTO '{other}'",
        "REINDEX",
        "ANALYZE_EXECUTED",
        "PRAGMA writable_schema = 1",
        "PRAGMA query_only = 0",
        "PRAGMA journal_mode = WAL",
        "PRAGMA user_version = 7",
        "PRAGMA application_id = 7",
        "PRAGMA wal_checkpoint(TRUNCATE)",
        "PRAGMA schema_version = 9",
        "PRAGMA temp_store = 1",
        "PRAGMA locking_mode = EXCLUSIVE",
        "PRAGMA incremental_vacuum",
        "PRAGMA optimize",
        "PRAGMA data_store_directory = '/'",
        "SELECT load_extension('/lib/x.so')",
        "SELECT writefile('{other}', 'x')",
        "SAVEPOINT here",
    ],
)
def test_a_reading_connection_only_reads(database: SqliteDatabase, path: Path, sql: str) -> None:
    other = path.parent / "other.db"
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    with pytest.raises(BackendFault):
        fetched(database, sql.format(other=other))
    assert hashlib.sha256(path.read_bytes()).hexdigest() == before
    assert [file.name for file in path.parent.iterdir()] == ["some.db"]
    assert database.fetch("SELECT count(*) FROM v", ()) == [(1000,)]


@pytest.mark.parametrize("sql", ["SELECT max(a) FROM t", "SELECT json('1')", "PRAGMA table_info(t)", "PRAGMA index_list(t)",
                                 "PRAGMA table_list", "PRAGMA user_version", "WITH x AS (SELECT 1) SELECT * FROM x"])
def test_what_reads_is_allowed(database: SqliteDatabase, sql: str) -> None:
    assert fetched(database, sql) is not None


def test_a_query_without_end_is_given_up_and_the_next_one_works(path: Path) -> None:
    database = SqliteDatabase(path, deadline=timedelta(milliseconds=80))
    began = time.monotonic()
    with pytest.raises(DeadlineExceeded, match="was stopped"):
        database.fetch(FOREVER, ())
    took = time.monotonic() - began
    assert 0.08 <= took < 5 * busy()
    assert database.fetch("SELECT count(*) FROM t", ()) == [(1000,)]


def test_cancel_from_another_thread(path: Path) -> None:
    database = SqliteDatabase(path, deadline=timedelta(minutes=1))
    raised: list[BaseException] = []
    reading = threading.Event()

    def read() -> None:
        try:
            reading.set()
            database.fetch(FOREVER, ())
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    reading.wait()
    while thread.is_alive():
        database.cancel()
        thread.join(0.01)
    assert [type(error) for error in raised] == [DeadlineExceeded]
    assert database.fetch("SELECT count(*) FROM t", ()) == [(1000,)]


def statement_of(sql: str) -> BoundStatement:
    return BoundStatement(sa.text(sql), Binds())


def test_a_stream_cancelled_between_two_batches_ends_with_a_fault(path: Path) -> None:
    """The consumer may be anywhere when somebody cancels; the rest must not be read as if nothing had been."""
    database = SqliteDatabase(path)
    every = "SELECT x.a FROM t AS x, t AS y, t AS z"
    stream = database.stream(statement_of(every), NOON, Never(), size=10)
    assert len(next(stream)) == 10
    database.cancel()
    with pytest.raises(DeadlineExceeded):
        for _ in stream:
            pass


def test_a_stream_ends_where_it_is_stopped(path: Path) -> None:
    database = SqliteDatabase(path)
    stop = StopFlag(after_looks=3)
    batches = list(database.stream(statement_of("SELECT a FROM t"), NOON, stop, size=10))
    assert [len(batch) for batch in batches] == [10, 10, 10]


def test_a_stream_that_is_let_go_leaves_no_transaction(path: Path) -> None:
    database = SqliteDatabase(path)
    stream = database.stream(statement_of("SELECT a FROM t"), NOON, Never(), size=10)
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    with database.writing() as writer:
        writer.execute("DELETE FROM t")
    assert database.fetch("SELECT count(*) FROM t", ()) == [(0,)]


def test_text_that_is_not_utf8_in_the_middle_of_a_stream_is_given_once(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE t SET b = CAST(x'ff' AS TEXT) WHERE a = 77")
    database = SqliteDatabase(path)
    batches = list(database.stream(statement_of("SELECT a, b FROM t ORDER BY a"), NOON, Never(), size=10))
    rows = [row for batch in batches for row in batch]
    assert [a for a, _ in rows] == list(range(1000))
    assert rows[77] == (77, "\udcff")


def test_the_slower_decoder_goes_when_nothing_needs_it_any_more(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE t SET b = CAST(x'ff' AS TEXT) WHERE a = 77")
    database = SqliteDatabase(path)

    def decoder() -> object:
        with database._reader.connect() as connection:
            return driver_of(connection).text_factory

    for _ in range(2):
        assert database.fetch("SELECT b FROM t WHERE a = 77", ()) == [("\udcff",)]
        assert decoder() is not str
    assert database.fetch("SELECT b FROM t WHERE a = 79", ()) == [("row 79",)]
    assert decoder() is str


def test_a_read_only_database_refuses_to_write(path: Path) -> None:
    database = SqliteDatabase(path, read_only=True)
    with pytest.raises(ReadOnlyRefused), database.writing():
        pass


def test_a_database_behind_a_symlink_is_read_with_the_log_beside_the_real_file(path: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "elsewhere" / "link.db"
    link.symlink_to(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("CREATE TABLE fresh (n)")  # in the log alone
        with closing(SqliteDatabase(link, read_only=True)) as database:
            assert database.columns("fresh") == {"n": ""}
    assert list(link.parent.iterdir()) == [link]


def test_a_write_is_whole_or_nothing_and_a_savepoint_a_part_of_it(path: Path) -> None:
    database = SqliteDatabase(path)
    with database.writing() as writer:
        writer.execute("UPDATE t SET b = 'kept' WHERE a = 1")
        with pytest.raises(RowRefused), writer.savepoint():  # noqa: PT012  both belong to the part that fails
            writer.execute("UPDATE t SET b = 'lost' WHERE a = 2")
            writer.execute("UPDATE t SET b = 'kept' WHERE a = 3")
    assert database.fetch("SELECT b FROM t WHERE a IN (1, 2, 3)", ()) == [("kept",), ("row 2",), ("row 3",)]
    with pytest.raises(ZeroDivisionError), database.writing() as writer:  # noqa: PT012
        writer.execute("DELETE FROM t")
        raise ZeroDivisionError
    assert database.fetch("SELECT count(*) FROM t", ()) == [(1000,)]


@pytest.mark.parametrize(
    ("how", "refused"), [("ABORT", RowRefused), ("FAIL", RowRefused), ("ROLLBACK", TransactionRefused)]
)
def test_a_refusal_tells_whether_the_transaction_still_stands(path: Path, how: str, refused: type[Exception]) -> None:
    rewritten(path, f"CREATE TRIGGER no BEFORE UPDATE ON t BEGIN SELECT RAISE({how}, 'no way'); END")
    sql = "UPDATE t SET b = 'x' WHERE a = ?"
    with closing(SqliteDatabase(path)) as database:
        with pytest.raises(refused, match="no way"), database.writing() as writer:
            writer.execute(sql, (1,))
        with pytest.raises(refused, match="no way"), database.writing() as writer:
            writer.executemany(sql, [(1,), (2,)])


def test_a_number_too_large_is_a_refusal(path: Path) -> None:
    with closing(SqliteDatabase(path)) as database, database.writing() as writer:
        with pytest.raises(RowRefused, match="too large"):
            writer.execute("UPDATE t SET b = ? WHERE a = 1", (2**63,))
        with pytest.raises(RowRefused, match="too large"):
            writer.executemany("UPDATE t SET b = ? WHERE a = 1", [(1,), (2**63,)])


def test_a_writer_waits_for_its_turn(path: Path) -> None:
    slow = SqliteDatabase(path, deadline=timedelta(milliseconds=60))
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(BackendBusy, match="another process holds its lock"), slow.writing():
            pass
        other.execute("ROLLBACK")
    with slow.writing() as writer:
        writer.execute("DELETE FROM t WHERE a = 1")


def test_a_write_transaction_holds_the_lock_before_its_first_statement(path: Path) -> None:
    """So that what it reads cannot change before it writes."""
    other = sqlite3.connect(path, timeout=0)
    with closing(other), SqliteDatabase(path).writing(), pytest.raises(sqlite3.OperationalError, match="locked"):
        other.execute("BEGIN IMMEDIATE")


def test_two_writers_lose_no_update(path: Path) -> None:
    database = SqliteDatabase(path)

    def add() -> None:
        for _ in range(50):
            with database.writing() as writer:
                ((seen,),) = writer.execute("SELECT b FROM t WHERE a = 0")
                writer.execute("UPDATE t SET b = ? WHERE a = 0", (str(int(seen) + 1),))

    with database.writing() as writer:
        writer.execute("UPDATE t SET b = '0' WHERE a = 0")
    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert database.fetch("SELECT b FROM t WHERE a = 0", ()) == [("200",)]


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "postgresql://h/d"])
def test_a_url_names_a_file(url: str) -> None:
    with pytest.raises(ConfigFault, match="must name a file"):
        sqlite_path(url)


def test_what_sqlite_says_is_said_in_our_words() -> None:
    said = str(translate(sqlite3.OperationalError("database is locked"), "/srv/q.db"))
    assert said == "/srv/q.db: The system is busy: another process holds its lock (database is locked)"
    assert type(translate(sqlite3.OperationalError("something new"), "x")) is BackendFault


@pytest.mark.parametrize(("table", "rowid"), [("t", True), ("v", False), ("w", False), ("hides", False), ("none", False)])
def test_which_tables_have_a_rowid(path: Path, table: str, rowid: bool) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE w (a TEXT PRIMARY KEY) WITHOUT ROWID")
        connection.execute("CREATE TABLE hides (a TEXT PRIMARY KEY, RowId INTEGER)")
    assert SqliteDatabase(path).has_rowid(table) is rowid


@pytest.mark.parametrize(
    ("ddl", "served"),
    [
        ("CREATE INDEX i ON t (b, a)", True),
        ("CREATE INDEX i ON t (b, a) WHERE a > 5", False),
        ("CREATE INDEX i ON t (a, b)", False),
        ("CREATE INDEX i ON t (lower(b), a)", False),
    ],
)
def test_which_index_serves(path: Path, ddl: str, served: bool) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(ddl)
    assert SqliteDatabase(path).has_index("t", ("b", "a")) is served




def moving(path: Path, at: int, change: Callable[[], None]) -> SqliteDatabase:
    """A quiet database in audit mode, changed by someone else when its function `poke` is called that often."""
    calls = 0

    def poke(value: object) -> object:
        nonlocal calls
        calls += 1
        if calls == at:
            change()
        return value

    return SqliteDatabase(path, read_only=True, functions={"poke": poke})


def rewritten(path: Path, sql: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute(sql)


@pytest.fixture
def quiet(path: Path) -> Path:
    """Nobody has it open, and its pages are more than the cache of one statement takes at once."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("UPDATE t SET b = b || printf('%.*c', 3000, 'x')")
    return path


def test_a_file_that_moves_under_a_read_is_read_again_and_not_called_damaged(quiet: Path) -> None:
    """A connection that sees no lock meets pages of both states, and at worst what looks like no database."""
    with closing(moving(quiet, 100, lambda: rewritten(quiet, "DELETE FROM t WHERE a % 2 = 0 OR a > 700"))) as database:
        assert len(database.fetch("SELECT poke(a), b FROM t", ())) == 350


def test_a_read_given_up_while_the_file_moves_is_not_begun_again(quiet: Path) -> None:
    calls: list[int] = []

    def poke(value: int) -> int:
        calls.append(value)
        rewritten(quiet, "UPDATE t SET b = b || '.'")
        return value

    database = SqliteDatabase(quiet, read_only=True, deadline=timedelta(milliseconds=100), functions={"poke": poke})
    with closing(database), pytest.raises(DeadlineExceeded):
        database.fetch(f"SELECT poke(1), ({FOREVER})", ())
    assert calls == [1]


@pytest.mark.parametrize("sql", ["DELETE FROM t WHERE a % 2 = 0 OR a > 700", "UPDATE t SET b = 'new' || a", "DROP TABLE t"])
def test_a_stream_of_a_file_that_moves_says_so_instead_of_mixing_two_states(quiet: Path, sql: str) -> None:
    with closing(SqliteDatabase(quiet, read_only=True)) as database:
        stream = database.stream(statement_of("SELECT a, b FROM t"), NOON, Never(), size=10)
        assert len(next(stream)) == 10
        rewritten(quiet, sql)
        with pytest.raises(BackendBusy, match="changed while it was read"):
            list(stream)


def test_a_stream_that_has_given_nothing_yet_is_begun_again(quiet: Path) -> None:
    with closing(moving(quiet, 5, lambda: rewritten(quiet, "DELETE FROM t WHERE a % 2 = 0 OR a > 700"))) as database:
        stream = database.stream(statement_of("SELECT poke(a), b FROM t"), NOON, Never(), size=10)
        assert sum(map(len, stream)) == 350


def test_a_read_is_of_one_state_although_another_thread_has_seen_the_file_move(quiet: Path) -> None:
    """Which state a read began with is its own to know."""

    def change() -> None:
        rewritten(quiet, "UPDATE t SET b = 'new' || a")
        database.fetch("SELECT 1", ())

    with closing(moving(quiet, 100, change)) as database:
        rows = database.fetch("SELECT poke(a), b FROM t", ())
    assert {b[:3] for _, b in rows} == {"new"}


def test_the_deadline_of_a_stream_does_not_run_while_its_rows_are_worked_on(path: Path) -> None:
    with closing(SqliteDatabase(path, deadline=timedelta(milliseconds=500))) as database:
        slow = "SELECT x.a, (SELECT count(*) FROM t AS y, t AS z WHERE y.a < x.a + 5) FROM t AS x LIMIT 30"
        for _ in database.stream(statement_of(slow), NOON, Never(), size=10):
            time.sleep(0.6)


def test_connections_are_used_again_and_few_are_kept(path: Path) -> None:
    database = SqliteDatabase(path)
    with ExitStack() as stack:
        used = {driver_of(stack.enter_context(database._reader.connect())) for _ in range(10)}
    pool = cast("QueuePool", database._reader.pool)
    assert (len(used), pool.checkedin()) == (10, 4)
    with database._reader.connect() as connection:
        assert driver_of(connection) in used
    database.close()
    assert cast("QueuePool", database._reader.pool).checkedin() == 0


def test_values_are_read_and_compared_as_stored_whatever_type_a_column_is_declared_with(path: Path) -> None:
    """A before-image must be what is stored: SQLAlchemy's types would make 2 a truth value and raise for the text."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE odd (flag BOOLEAN, at TIMESTAMP)")
        connection.execute("INSERT INTO odd VALUES (2, 'no time')")
    odd = sa.table("odd", sa.column("flag", sa.Boolean()), sa.column("at", sa.DateTime()))
    binds = Binds()
    statement = sa.select(odd.c.flag, odd.c.at).where(odd.c.flag == binds.value(2), odd.c.at == binds.value("no time"))
    with closing(SqliteDatabase(path)) as database:
        assert database.read(BoundStatement(statement, binds), NOON) == [(2, "no time")]


def test_sql_functions_are_those_of_the_database(path: Path) -> None:
    """SQLAlchemy's dialect would put a `floor` of Python's in their place, which fails for NULL."""
    with closing(sqlite3.connect(path)) as plain, closing(SqliteDatabase(path)) as database:
        for function in ("floor(NULL)", "regexp('a', 'b')"):
            try:
                expected: object = plain.execute(f"SELECT {function}").fetchall()
            except sqlite3.OperationalError:
                with pytest.raises(BackendFault, match="no such function"):
                    database.fetch(f"SELECT {function}", ())
            else:
                assert database.fetch(f"SELECT {function}", ()) == expected
