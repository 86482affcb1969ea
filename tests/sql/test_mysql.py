"""MySQL and MariaDB on a real server: reading cannot write, deadlines, cancelling, exact text, faults without values."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pymysql
import pytest
import sqlalchemy as sa

from console.core.backend import PageRequest
from console.core.confirm import Confirmation
from console.core.faults import (
    BackendBusy,
    BackendFault,
    ConfigFault,
    DeadlineExceeded,
    NotPermitted,
    ReadOnlyRefused,
    Unreachable,
    WrongSchema,
)
from console.core.ports import Never
from console.core.query import Filter
from console.sql.checks import privilege_findings
from console.sql.database import Binds, BoundStatement, Row, RowRefused
from console.sql.mysql import MysqlDatabase
from console.sql.mysql_faults import message_of
from console.sql.server import READERS
from console.testing import StopFlag
from console.trail.store import open_trail
from tests import mariadb
from tests.patience import PATIENCE
from tests.plugins.postgres_analyses.operating import ANN, HERE, RealClock, operating
from tests.plugins.sql_table import home_made as home
from tests.plugins.sql_table.world import Queue, mapping, mysql_queue

DDL = """
CREATE TABLE jobs (id int PRIMARY KEY AUTO_INCREMENT, name varchar(40) UNIQUE, body longtext, at datetime(3));
INSERT INTO jobs (name, body) VALUES ('a', 'one'), ('B', 'two')
"""
NOW = datetime(2026, 11, 10, 12, tzinfo=UTC)


@pytest.fixture
def url() -> Iterator[str]:
    with mariadb.database(DDL) as found:
        yield found


def opened(url: str, seconds: float = PATIENCE, *, read_only: bool = False) -> Any:
    return closing(MysqlDatabase(url, read_only=read_only, deadline=timedelta(seconds=seconds)))



def test_few_connections_with_our_name_however_many_threads_read(url: str) -> None:
    with opened(url) as db, mariadb.connection(url) as other, other.cursor() as cursor:
        threads = [threading.Thread(target=db.fetch, args=("SELECT sleep(0.05)", ())) for _ in range(12)]
        for thread in threads:
            thread.start()
        cursor.execute("SELECT count(*) FROM information_schema.processlist WHERE db = database()")
        ((most,),) = cursor.fetchall()
        for thread in threads:
            thread.join()
        assert most - 1 <= READERS, "one is that of this test"
        with db._reader.connect() as ours:
            assert ours.connection.driver_connection._connect_attrs["program_name"] == "retriage"


def rows(url: str, sql: str) -> list[tuple[Any, ...]]:
    with mariadb.connection(url) as connection, connection.cursor() as cursor:
        cursor.execute(sql)
        return list(cursor.fetchall())


# --- reading only -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sql", [
    "UPDATE jobs SET body = 'x'", "DELETE FROM jobs", "INSERT INTO jobs (name) VALUES ('c')", "TRUNCATE jobs", "DROP TABLE jobs",
    "CREATE TABLE more (id int)",
])
def test_a_connection_for_reading_cannot_write(url: str, sql: str) -> None:
    with opened(url) as db, pytest.raises(BackendFault):
        db.fetch(sql, ())
    assert rows(url, "SELECT id, name, body FROM jobs ORDER BY id") == [(1, "a", "one"), (2, "B", "two")]


def test_a_function_that_is_called_while_reading_cannot_write(url: str) -> None:
    with mariadb.connection(url) as owner, owner.cursor() as cursor:
        cursor.execute("CREATE FUNCTION spoil() RETURNS int BEGIN UPDATE jobs SET body = 'x'; RETURN 1; END")
    with opened(url) as db:
        for _ in range(2):
            with pytest.raises(BackendFault, match="may only read"):
                db.fetch("SELECT spoil()", ())
    assert rows(url, "SELECT body FROM jobs ORDER BY id") == [("one",), ("two",)]


def test_read_only_mode_opens_no_write_transaction(url: str) -> None:
    with opened(url, read_only=True) as db, pytest.raises(ReadOnlyRefused), db.writing():
        pass


# --- time limits ----------------------------------------------------------------------------------------------


def test_a_slow_statement_ends_at_the_deadline(url: str) -> None:
    began = time.monotonic()
    with opened(url, 1) as db, pytest.raises(DeadlineExceeded):
        db.fetch("SELECT count(*) FROM jobs WHERE sleep(20) = 0", ())
    assert time.monotonic() - began < 10


def test_a_frozen_server_is_given_up_from_this_side(url: str) -> None:
    pid = mariadb.server().pid
    if pid is None:
        pytest.skip("MariaDB: the server is not ours to freeze")
    with opened(url, 1) as db:
        assert db.fetch("SELECT 1", ()) == ((1,),)
        os.kill(pid, signal.SIGSTOP)
        _until_stopped(pid)
        try:
            began = time.monotonic()
            with pytest.raises(DeadlineExceeded, match="does not answer"):
                db.fetch("SELECT 2", ())
            assert time.monotonic() - began < 10
        finally:
            os.kill(pid, signal.SIGCONT)
        assert _answer(db) == ((3,),)


def _until_stopped(pid: int) -> None:
    """A signal is only sent: until one of its threads has run, the server still answers."""
    end = time.monotonic() + PATIENCE
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        assert time.monotonic() < end
        time.sleep(0.01)


def _answer(db: MysqlDatabase) -> Sequence[Row]:
    """The server has just been woken: on a busy machine it may take longer than the deadline until it answers."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return db.fetch("SELECT 3", ())
        except BackendFault:
            if time.monotonic() > end:
                raise


def test_cancel_ends_the_statement_on_the_server_too(url: str) -> None:
    found: list[Exception] = []

    def read(db: MysqlDatabase) -> None:
        try:
            db.fetch("SELECT count(*) FROM jobs WHERE sleep(60) = 0", ())
        except DeadlineExceeded as fault:
            found.append(fault)

    with opened(url, 120) as db:
        reading = threading.Thread(target=read, args=(db,))
        reading.start()
        wait_for(lambda: running(url, "sleep(60)"))
        db.cancel()
        reading.join(PATIENCE)
        assert "cancelled" in str(found[0])
        wait_for(lambda: not running(url, "sleep(60)"))
        assert db.fetch("SELECT 1", ()) == ((1,),)


def running(url: str, text: str) -> bool:
    return any(text in str(row) for row in rows(url, "SELECT info FROM information_schema.processlist WHERE command = 'Query'"
                                                     " AND id <> connection_id()"))


def wait_for(done: Any) -> None:
    end = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < end
        time.sleep(0.02)


# --- connections ------------------------------------------------------------------------------------------------


def test_it_names_itself_and_keeps_few_connections(url: str) -> None:
    with opened(url) as db:
        threads = [threading.Thread(target=db.fetch, args=("SELECT sleep(0.3)", ())) for _ in range(6)]
        for thread in threads:
            thread.start()
        time.sleep(0.2)
        name = sa.make_url(url).database
        ours = rows(url, f"SELECT count(*) FROM information_schema.processlist WHERE db = '{name}' AND id <> connection_id()")
        for thread in threads:
            thread.join()
        assert ours[0][0] <= 2
        ((zone, collation, mode),) = db.fetch("SELECT @@time_zone, @@collation_connection, @@sql_mode", ())
        assert zone == "+00:00"
        assert collation.endswith("_bin")
        assert "NO_BACKSLASH_ESCAPES" in mode


def test_a_connection_that_has_died_is_replaced(url: str) -> None:
    with opened(url) as db:
        ((id,),) = db.fetch("SELECT connection_id()", ())
        rows(url, f"KILL {id}")
        assert db.fetch("SELECT 1", ()) == ((1,),)


def test_a_stream_is_complete_and_can_be_left(url: str) -> None:
    with mariadb.connection(url) as connection, connection.cursor() as cursor:
        cursor.execute("INSERT INTO jobs (name) SELECT concat('n', seq) FROM seq_1_to_20000")
    statement = BoundStatement(sa.text("SELECT id FROM jobs ORDER BY id"), Binds())
    with opened(url) as db:
        batches = list(db.stream(statement, NOW, Never(), 3_000))
        assert sum(map(len, batches)) == 20_002
        assert [len(batch) for batch in batches[:6]] == [3_000] * 6
        stop = StopFlag()
        for _ in db.stream(statement, NOW, stop, 100):
            stop.set()
        assert db.fetch("SELECT count(*) FROM jobs", ()) == ((20_002,),)


# --- writing ------------------------------------------------------------------------------------------------------


def test_a_refused_row_does_not_end_the_transaction_and_no_value_is_shown(url: str) -> None:
    with opened(url) as db, db.writing() as writer:
        with pytest.raises(RowRefused) as refused, writer.savepoint():
            writer.execute("UPDATE jobs SET name = %s WHERE id = 2", ("a",))
        assert str(refused.value) == "Duplicate entry for key 'name'"
        with pytest.raises(RowRefused) as refused, writer.savepoint():
            writer.execute("UPDATE jobs SET at = %s WHERE id = 2", ("secret",))
        assert "secret" not in str(refused.value)
        assert writer.change("UPDATE jobs SET body = %s WHERE id = 2", ("it's \\ new",)) == 1
    assert rows(url, "SELECT body FROM jobs WHERE id = 2") == [("it's \\ new",)]


def test_every_transaction_is_ended_once(url: str) -> None:
    asked = "SHOW SESSION STATUS LIKE 'Questions'"

    def open_transactions() -> object:
        return rows(url, "SELECT count(*) FROM information_schema.innodb_trx")[0][0]

    def written() -> int:
        with db.writing() as writer:
            return int(writer.execute(asked)[0][1])

    def failing(then: str) -> None:
        with db.writing() as writer:
            writer.change("UPDATE jobs SET body = 'lost' WHERE id = 1")
            writer.execute(then)
            raise ZeroDivisionError

    with opened(url) as db:
        first, second = (int(db.fetch(asked, ())[0][1]) for _ in range(2))
        assert second - first == 3, "its own transaction: START, the statement, COMMIT"
        assert -written() + written() == 3
        with pytest.raises(WrongSchema):
            db.fetch("SELECT nothing FROM jobs", ())
        with pytest.raises(WrongSchema):
            failing("SELECT nothing FROM jobs")
        with pytest.raises(ZeroDivisionError):
            failing("SELECT 1")
        assert open_transactions() == 0
    assert rows(url, "SELECT body FROM jobs WHERE id = 1") == [("one",)]


@pytest.mark.parametrize(("given", "shown"), [
    ("Duplicate entry 'it''s for key' for key 'PRIMARY'", "Duplicate entry for key 'PRIMARY'"),
    ("Incorrect datetime value: 'x for column' for column `a`.`b` at row 1", "Incorrect datetime value for column `a`.`b` at row 1"),
    ("Unknown column 'x' in 'field list'", "Unknown column 'x' in 'field list'"),
])
def test_messages_without_values(given: str, shown: str) -> None:
    assert message_of(pymysql.OperationalError(1, given)) == shown


# --- faults -------------------------------------------------------------------------------------------------------


def test_faults_say_what_to_do(url: str) -> None:
    with opened(url) as db:
        with pytest.raises(WrongSchema):
            db.fetch("SELECT * FROM nothing", ())
        with pytest.raises(WrongSchema, match="nope"):
            db.fetch("SELECT nope FROM jobs", ())
    with opened("mysql://root@127.0.0.1:1/x") as db, pytest.raises(Unreachable):
        db.fetch("SELECT 1", ())
    missing = sa.make_url(url).set(database="missing").render_as_string(hide_password=False)
    with opened(missing) as db, pytest.raises(Unreachable, match="missing"):
        db.fetch("SELECT 1", ())
    with pytest.raises(ConfigFault, match="names no database"):
        MysqlDatabase("mysql://root@localhost")


def test_a_user_that_can_only_read(url: str) -> None:
    name = sa.make_url(url).database
    user = f"r{str(name)[-10:]}"
    rows(url, f"CREATE USER {user}@localhost")
    rows(url, f"GRANT SELECT ON `{name}`.* TO {user}@localhost")
    try:
        theirs = sa.make_url(url).set(username=user).render_as_string(hide_password=False)
        with opened(theirs) as db:
            assert db.privileges("jobs")[1:3] == (False, False)
            assert db.fetch("SELECT count(*) FROM jobs", ()) == ((2,),)
            with pytest.raises(NotPermitted), db.writing() as writer:
                writer.execute("UPDATE jobs SET body = 'x'")
            assert "can read but not write jobs" in next(privilege_findings(db, ["jobs"])).message
        with opened(url) as db:
            assert db.privileges("jobs")[1:3] == (True, True)
    finally:
        rows(url, f"DROP USER {user}@localhost")


def test_a_trail_cannot_be_kept_in_mysql() -> None:
    for kind in ("mysql", "mariadb"):
        with pytest.raises(ConfigFault, match=f"A trail cannot be stored in {kind}"):
            open_trail(f"{kind}://root@localhost/trail", read_only=False, anchor=None, clock=RealClock())


# --- a mapped table -------------------------------------------------------------------------------------------------


@pytest.fixture
def queue() -> Iterator[Queue]:
    with mysql_queue(home.TASKS_DDL, mapping(home.TASKS)) as found:
        yield found


def put(queue: Queue, tenant: str, state: str = "bounced", **values: Any) -> None:
    queue.insert("tasks", tenant=tenant, **{"run no": 1}, state=state, tries=1, changed="2026-11-10 12:00:00", **values)


def test_keys_and_statuses_are_exact_although_the_collation_ignores_case(queue: Queue) -> None:
    put(queue, "acme")
    put(queue, "other", "BOUNCED")
    put(queue, "padded", "bounced ")
    with closing(queue.open()) as backend:
        everything = {i.key.parts[0]: i.condition.value for i in backend.page(PageRequest(Filter.parse("condition:*"), NOW)).items}
        assert everything == {"acme": "failed", "other": "unknown", "padded": "unknown"}
        for asked, found in (("key:acme/1", 1), ("key:ACME/1", 0), ("status:bounced", 1), ("status:Bounced", 0)):
            assert len(backend.page(PageRequest(Filter.parse(f"{asked} condition:*"), NOW)).items) == found, asked
        key = next(iter(backend.page(PageRequest(Filter.parse("condition:failed"), NOW)).items)).key
        assert list(backend.items([key, key._replace(parts=("ACME", "1"))], NOW)) == [key]


def test_unsigned_counters_are_read_as_they_are() -> None:
    ddl = "CREATE TABLE jobs (id int PRIMARY KEY, state varchar(9), tries smallint unsigned NOT NULL, most int unsigned)"
    rule = "{table: jobs, key: id, status: {column: state, failed: [failed]}, attempts: tries, max_attempts: most}"
    with mysql_queue(ddl, mapping(rule)) as found, closing(found.open()) as backend:
        found.insert("jobs", id=1, state="failed", tries=2, most=3)
        (item,) = backend.page(PageRequest(Filter.parse("attempts:2"), NOW)).items
        assert (item.attempts, item.max_attempts) == (2, 3)


def test_no_savepoint_is_made_while_no_row_is_refused(queue: Queue, tmp_path: Path) -> None:
    put(queue, "a")
    put(queue, "b")
    made = "SHOW GLOBAL STATUS LIKE 'Com_savepoint'"
    with operating(queue.open(), tmp_path) as ann:
        plan = ann.plan(Filter.parse("condition:failed"))
        before = queue.one(made)
        override = ann.operations.carry_out(plan, Confirmation(ANN, HERE, "disk is back", plan.changes))
        assert ann.outcomes(override) == {("applied", ""): 2}
        assert queue.one(made) == before


def test_a_row_locked_by_another_transaction_is_not_touched(queue: Queue, tmp_path: Path) -> None:
    put(queue, "held")
    put(queue, "free")
    with operating(queue.open(), tmp_path) as ann, mariadb.connection(queue.url) as other:
        plan = ann.plan(Filter.parse("condition:failed"))
        other.begin()
        with other.cursor() as cursor:
            cursor.execute("SELECT * FROM tasks WHERE tenant = 'held' FOR UPDATE")
        override = ann.operations.carry_out(plan, Confirmation(ANN, HERE, "disk is back", plan.changes))
        assert ann.outcomes(override) == {("applied", ""): 1, ("changed", "locked by another transaction"): 1}
        other.rollback()
    assert queue.run("SELECT tenant, state FROM tasks ORDER BY tenant", []) == [("free", "queued"), ("held", "bounced")]


def test_a_lock_that_is_held_for_a_moment_is_waited_for(queue: Queue, tmp_path: Path) -> None:
    """A worker that looks for its next job locks every row that it passes, for as long as its statement takes."""
    put(queue, "held")
    put(queue, "free")
    with operating(queue.open(), tmp_path) as ann, mariadb.connection(queue.url) as other:
        plan = ann.plan(Filter.parse("condition:failed"))
        guard = ann.backend.attached.guards["requeue"]
        tried, locked = threading.Event(), guard._rows

        def rows_(*given: Any) -> Any:
            found = locked(*given)
            tried.set()
            return found

        guard._rows = rows_
        other.begin()
        with other.cursor() as cursor:
            cursor.execute("SELECT * FROM tasks WHERE tenant = 'held' FOR UPDATE")
        letting_go = threading.Thread(target=lambda: (tried.wait(PATIENCE), other.rollback()))
        letting_go.start()
        override = ann.apply(plan)
        letting_go.join()
        assert ann.outcomes(override) == {("applied", ""): 2}


def test_a_trigger_that_keeps_or_refuses_a_row_is_that_rows_outcome(queue: Queue, tmp_path: Path) -> None:
    for tenant in ("a", "b", "c"):
        put(queue, tenant)
    queue.run(
        "CREATE TRIGGER guard BEFORE UPDATE ON tasks FOR EACH ROW BEGIN"
        " IF OLD.tenant = 'a' THEN SET NEW.state = OLD.state, NEW.due = OLD.due, NEW.changed = OLD.changed; END IF;"
        " IF OLD.tenant = 'b' THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not on Mondays'; END IF; END", [],
    )
    with operating(queue.open(), tmp_path) as ann:
        override = ann.apply(ann.plan(Filter.parse("condition:failed")))
        assert ann.outcomes(override) == {
            ("applied", ""): 1, ("rejected", "not on Mondays"): 1, ("changed", "the database left it unchanged"): 1,
        }


def test_undo_restores_the_row(queue: Queue, tmp_path: Path) -> None:
    put(queue, "a", due="2026-11-10 11:00:00.123456", error="boom")
    before = queue.run("SELECT * FROM tasks", [])
    with operating(queue.open(), tmp_path) as ann:
        override = ann.apply(ann.plan(Filter.parse("condition:failed")))
        assert queue.one("SELECT state FROM tasks") == ("queued",)
        ann.apply(ann.operations.undo(override.override_id))
    assert queue.run("SELECT * FROM tasks", []) == before


def test_a_deadlock_is_a_fault_and_nothing_is_half_written(queue: Queue, tmp_path: Path) -> None:
    put(queue, "a")
    with closing(queue.open()) as backend, mariadb.connection(queue.url) as other:
        other.begin()
        with other.cursor() as cursor:
            cursor.execute("LOCK TABLES tasks WRITE")
        with pytest.raises(BackendBusy), backend.database.writing() as writer:
            writer.execute("UPDATE tasks SET state = 'queued'")
    assert queue.one("SELECT state FROM tasks") == ("bounced",)
