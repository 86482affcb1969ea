"""A PostgreSQL database that belongs to someone else: deadlines, cancelling, read-only sessions, faults in words."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa
from psycopg.sql import SQL, Identifier

from console.core.faults import (
    BackendBusy,
    BackendFault,
    ConfigFault,
    DeadlineExceeded,
    ReadOnlyRefused,
    Unreachable,
    WrongSchema,
)
from console.core.ports import Never
from console.sql.database import Binds, BoundStatement, RowRefused
from console.sql.postgres import READERS, WRITERS, PostgresDatabase
from console.testing import StopFlag
from tests.patience import PATIENCE, busy
from tests.plugins.postgres_analyses.server import database
from tests.postgres import running_server

SOON = timedelta(seconds=2)
PASSWORD = "k4n4ry-p4ss"


@pytest.fixture
def url() -> Iterator[str]:
    with database("CREATE TABLE t (id int PRIMARY KEY, v int CHECK (v < 100)); INSERT INTO t SELECT n, n FROM generate_series(1, 50) n") as found:
        yield found


@pytest.fixture
def db(url: str) -> Iterator[PostgresDatabase]:
    found = PostgresDatabase(url, deadline=timedelta(seconds=20))
    yield found
    found.close()


def statement_of(sql: str) -> BoundStatement:
    return BoundStatement(sa.text(sql), Binds())


def test_reading_sessions_cannot_write_and_say_who_they_are(db: PostgresDatabase) -> None:
    for statement in ("INSERT INTO t VALUES (99, 1)", "UPDATE t SET v = 1", "DROP TABLE t", "CREATE TABLE u (x int)"):
        with pytest.raises(BackendFault, match="may only read"):
            db.fetch(statement, ())
    assert db.fetch("SELECT current_setting('application_name'), count(*) FROM t", ()) == [("retriage", 50)]


def test_several_statements_at_once_are_refused(db: PostgresDatabase) -> None:
    with pytest.raises(BackendFault, match="cannot insert multiple commands"):
        db.fetch("SET default_transaction_read_only = off; DELETE FROM t", ())
    assert db.fetch("SELECT count(*) FROM t", ()) == [(50,)]


def test_a_read_only_database_has_no_writer(url: str) -> None:
    db = PostgresDatabase(url, read_only=True)
    with pytest.raises(ReadOnlyRefused):
        db.writing().__enter__()
    db.close()


def test_few_connections_however_many_threads_read(db: PostgresDatabase, url: str) -> None:
    threads = [threading.Thread(target=db.fetch, args=("SELECT pg_sleep(0.05)", ())) for _ in range(12)]
    for thread in threads:
        thread.start()
    with psycopg.connect(url) as other:
        most = other.execute("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'retriage'").fetchone()
    for thread in threads:
        thread.join()
    assert most is not None
    assert most[0] <= READERS + WRITERS + 1


def test_the_deadline_is_the_servers_too(url: str) -> None:
    db = PostgresDatabase(url, deadline=timedelta(seconds=1))
    began = time.monotonic()
    with pytest.raises(DeadlineExceeded):
        db.fetch("SELECT pg_sleep(30)", ())
    assert time.monotonic() - began < 5 * busy()
    assert db.fetch("SELECT 1", ()) == [(1,)]
    db.close()


def test_cancel_ends_the_query_on_the_server(db: PostgresDatabase, url: str) -> None:
    threading.Timer(0.3, db.cancel).start()
    with pytest.raises(DeadlineExceeded, match="was cancelled"):
        db.fetch("SELECT pg_sleep(19)", ())
    with psycopg.connect(url) as other:
        running = other.execute("SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep(19)%' AND state = 'active'").fetchone()
    assert running == (0,)
    db.cancel()
    assert db.fetch("SELECT 1", ()) == [(1,)]


def test_a_frozen_server_is_given_up_and_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RETRIAGE_TEST_POSTGRES_URL", raising=False)
    with running_server() as server:
        assert server is not None
        db = PostgresDatabase(server.url, deadline=timedelta(seconds=2))
        db.fetch("SELECT 1", ())
        frozen = [server.pid, *children(server.pid)]
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        try:
            for _ in range(2):  # on a kept connection, then on a new one
                began = time.monotonic()
                with pytest.raises(BackendFault):
                    db.fetch("SELECT 1", ())
                assert time.monotonic() - began < 5 * busy()
            began = time.monotonic()
            db.cancel()
            with pytest.raises(BackendFault), db.writing() as writer:
                writer.execute("SELECT 1")
            assert time.monotonic() - began < 5 * busy()
        finally:
            for pid in frozen:
                os.kill(pid, signal.SIGCONT)
        assert db.fetch("SELECT 1", ()) == [(1,)]
        db.close()


def children(pid: int | None) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_kept_connection_that_died_is_replaced(db: PostgresDatabase, url: str) -> None:
    with psycopg.connect(url, autocommit=True) as other:
        for _ in range(3):
            db.fetch("SELECT 1", ())
            with db.writing() as writer:
                writer.execute("SELECT 1")
            other.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'retriage'"
                          " AND datname = current_database()")
    assert db.fetch("SELECT 1", ()) == [(1,)]


def test_streams_come_in_batches_and_end_early(db: PostgresDatabase) -> None:
    statement = statement_of("SELECT id FROM t ORDER BY id")
    batches = list(db.stream(statement, datetime.now(UTC), Never(), 20))
    assert [len(batch) for batch in batches] == [20, 20, 10]
    assert len(list(db.stream(statement, datetime.now(UTC), StopFlag(after_looks=1), 20))) == 1
    abandoned = db.stream(statement, datetime.now(UTC), Never(), 20)
    next(abandoned)
    abandoned.close()
    assert db.fetch("SELECT 1", ()) == [(1,)]


def test_a_connection_at_work_is_closed_when_its_work_ends_after_the_database_was_closed(url: str) -> None:
    db, taken, closed = PostgresDatabase(url), threading.Event(), threading.Event()

    def work(db: PostgresDatabase) -> None:
        for _ in db.stream(statement_of("SELECT 1"), datetime.now(UTC), Never()):
            taken.set()
            assert closed.wait(PATIENCE)
        with db.writing() as writer:  # a thread that was given up may even open a new connection
            writer.execute("SELECT 1")

    thread = threading.Thread(target=work, args=(db,))
    thread.start()
    assert taken.wait(PATIENCE)
    db.close()
    closed.set()
    thread.join()
    assert [db._reader.pool.checkedin(), db._writer.pool.checkedin()] == [0, 0]  # type: ignore[attr-defined]
    del db
    gc.collect()  # one that is still open warns here


def test_the_deadline_of_a_stream_does_not_run_while_its_rows_are_worked_on(url: str) -> None:
    with closing(PostgresDatabase(url, deadline=timedelta(milliseconds=500))) as db:
        statement = statement_of("SELECT id FROM t ORDER BY id")
        sizes = []
        for rows in db.stream(statement, datetime.now(UTC), Never(), 20):
            sizes.append(len(rows))
            time.sleep(0.8)
        assert sizes == [20, 20, 10]
        slow = statement_of("SELECT id, pg_sleep(0.1) FROM t ORDER BY id")
        with pytest.raises(DeadlineExceeded):
            list(db.stream(slow, datetime.now(UTC), Never(), 20))


def test_a_writer_commits_or_leaves_nothing(db: PostgresDatabase) -> None:
    with db.writing() as writer:
        writer.execute("UPDATE t SET v = 0 WHERE id = 1")
        with pytest.raises(RowRefused, match='violates check constraint "t_v_check"') as refused, writer.savepoint():
            writer.execute("UPDATE t SET v = 12345 WHERE id = 2")
        assert "12345" not in str(refused.value)
    with pytest.raises(ZeroDivisionError), db.writing() as writer:
        assert writer.execute("UPDATE t SET v = 0 RETURNING 1 / 1") == [1 / 0]
    assert db.fetch("SELECT count(*) FROM t WHERE v = 0", ()) == [(1,)]


def test_a_table_someone_else_locks_is_busy_not_a_hang(url: str) -> None:
    db = PostgresDatabase(url, deadline=timedelta(seconds=1))
    with psycopg.connect(url) as other:
        other.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        with pytest.raises((BackendBusy, DeadlineExceeded)):
            db.fetch("SELECT * FROM t", ())
        with pytest.raises((BackendBusy, DeadlineExceeded)), db.writing() as writer:
            writer.execute("UPDATE t SET v = 1")
    db.close()


def test_faults_are_in_words_and_without_passwords(db: PostgresDatabase, url: str, tmp_path: Path) -> None:
    with pytest.raises(WrongSchema, match='relation "nowhere" does not exist'):
        db.fetch("SELECT * FROM nowhere", ())
    with pytest.raises(WrongSchema, match="nothing"):
        db.fetch("SELECT nothing FROM t", ())
    given = sa.make_url(url)
    for wrong, words in (
        (given.set(username="nobody_here", password=PASSWORD), "refuses this user"),
        (given.set(database="not_there", password=PASSWORD), "does not exist"),
        (given.set(query={"host": str(tmp_path)}, password=PASSWORD), "No such file"),
        (given.set(query={}, host="127.0.0.1", port=9, password=PASSWORD), "refused"),
    ):
        broken = PostgresDatabase(wrong.render_as_string(hide_password=False))
        with pytest.raises(Unreachable, match=words) as fault:
            broken.now()
        assert PASSWORD not in f"{fault.value} {fault.value.args} {broken.place} {vars(fault.value)}"
        broken.close()


def test_a_url_of_something_else_is_a_mistake_in_the_config() -> None:
    for wrong in ("mysql://x/y", "nonsense"):
        with pytest.raises(ConfigFault):
            PostgresDatabase(wrong)


def test_a_role_without_the_privilege_is_reported(db: PostgresDatabase, url: str) -> None:
    role = f"weak_{os.getpid()}"
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute(f"CREATE ROLE {role} LOGIN")
        try:
            weak = PostgresDatabase(sa.make_url(url).set(username=role).render_as_string())
            with pytest.raises(BackendFault, match="lacks a privilege"):
                weak.fetch("SELECT * FROM t", ())
            assert not weak.privileges("t").can_write
            assert not weak.privileges("t").owner
            weak.close()
        finally:
            owner.execute(f"DROP ROLE {role}")
    assert db.privileges("t").superuser


@pytest.mark.parametrize("name", ["done 100%", "%s", 'a"b', "50%.of it"])
def test_a_table_is_found_by_any_name(db: PostgresDatabase, url: str, name: str) -> None:
    schema, _, table = name.rpartition(".")
    with psycopg.connect(url, autocommit=True) as owner, owner.cursor() as cursor:
        if schema:
            cursor.execute(SQL("CREATE SCHEMA {}").format(Identifier(schema)))
        where = Identifier(*filter(None, (schema, table)))
        cursor.execute(SQL("CREATE TABLE {} (a int PRIMARY KEY, b text)").format(where))
    assert db.columns(name) == {"a": "integer", "b": "text"}
    assert db.has_index(name, ("a",))
    assert not db.has_index(name, ("b",))
    assert not db.has_index("not_there", ("b",))
    assert db.privileges(name).owner
    assert db.fetch(f"SELECT count(*) FROM {db.quoted(name)}", ()) == [(0,)]


def test_the_servers_clock_and_zone(db: PostgresDatabase) -> None:
    assert abs(db.now() - datetime.now(UTC)) < timedelta(seconds=30)
    assert str(db.zone()) == "Europe/Berlin"


def test_text_no_database_can_hold_finds_nothing(db: PostgresDatabase) -> None:
    for odd in ("a\0b", "\udcff", "\ud800"):
        assert db.fetch("SELECT 1 WHERE 'x' = %s::text", [odd]) == []


def test_the_driver_is_not_loaded_for_sqlite() -> None:
    import subprocess
    import sys

    code = "import console.sql.open_database, plugins.postgres_analyses, plugins.workflow_steps, sys; print('psycopg' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_the_drivers_own_log_is_not_written_to_the_terminal() -> None:
    """A connection that is cut in the middle of a pipeline is raised and logged; only the first is for us."""
    said = "import console.sql.postgres, logging; [logging.getLogger(n).error('error ignored') for n in ('psycopg', 'sqlalchemy.pool')]"
    ran = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, check=True)
    assert ran.stderr == ""


def test_no_connection_is_lost_when_its_watch_cannot_begin(db: PostgresDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine may have no thread left for the one that watches; what comes after must not wait for ever."""
    begin, left = db._watchdog.begin, iter(range(READERS + 2))

    def out_of_threads(*arguments: object) -> object:
        if next(left, None) is not None:
            raise RuntimeError("can't start new thread")
        return begin(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(db._watchdog, "begin", out_of_threads)
    for _ in range(READERS + 2):
        with pytest.raises(RuntimeError, match="new thread"):
            db.fetch("SELECT 1", ())
    assert db.fetch("SELECT 1", ()) == [(1,)]


@pytest.mark.parametrize(
    ("ddl", "served"),
    [
        ("CREATE INDEX ON t (v, id)", True),
        ("CREATE INDEX ON t (v, id) WHERE v > 5", False),
        ("CREATE INDEX ON t (id, v)", False),
        ("CREATE INDEX ON t ((v + 1), id)", False),
        ("CREATE INDEX i ON t (v, id); UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'i'::regclass", False),
    ],
)
def test_which_index_serves(db: PostgresDatabase, url: str, ddl: str, served: bool) -> None:
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute(ddl)
    assert db.has_index("t", ("v", "id")) is served


def test_a_server_that_freezes_while_sqlalchemy_sets_a_connection_up_is_given_up(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = PostgresDatabase(url, deadline=timedelta(seconds=1))
    monkeypatch.setattr(
        type(db.dialect), "_get_server_version_info", lambda _, connection: connection.exec_driver_sql("SET statement_timeout = 0") and connection.exec_driver_sql("SELECT pg_sleep(30)")
    )
    began = time.monotonic()
    with pytest.raises(BackendFault):
        db.fetch("SELECT 1", ())
    assert time.monotonic() - began < 10
    monkeypatch.undo()
    assert db.fetch("SELECT 1", ()) == [(1,)]
    db.close()
