"""delayed_job on MariaDB, read and written by a mapping. Its worker is not ours: a few statements do what its own does.
Triggers are the oracle. What has succeeded is deleted, so a table of them says that nothing is lost."""

from __future__ import annotations

import random
import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import pymysql
import sqlalchemy as sa

from console.core.policy import PolicyOverride
from console.core.ports import Clock, Stop
from plugins.sql_table import SqlTable
from plugins.sql_table.mapping import Options
from tests import mariadb
from tests.faults.systems import System
from tests.plugins.sql_table.systems import SYSTEMS

TABLES = (
    "CREATE TABLE notes (id varchar(20))",
    "CREATE TABLE succeeded (id varchar(20))",
    "CREATE TABLE oracle (n bigint AUTO_INCREMENT PRIMARY KEY, id varchar(20), kind varchar(9))",
    """CREATE TRIGGER note AFTER UPDATE ON delayed_jobs FOR EACH ROW INSERT INTO oracle (id, kind) VALUES (OLD.id,
        CASE WHEN OLD.failed_at IS NOT NULL AND NEW.failed_at IS NULL THEN 'back'
             WHEN OLD.locked_at IS NULL AND NEW.locked_at IS NOT NULL THEN 'taken' ELSE 'changed' END)""",
    "CREATE TRIGGER note_deleted AFTER DELETE ON delayed_jobs FOR EACH ROW INSERT INTO oracle (id, kind) VALUES (OLD.id, 'deleted')",
)
CHANGES = (
    "DELETE FROM delayed_jobs WHERE id = %s",
    "UPDATE delayed_jobs SET attempts = attempts + 1 WHERE id = %s",
    "UPDATE delayed_jobs SET locked_at = utc_timestamp(6) + INTERVAL 1 SECOND, locked_by = 'worker' WHERE id = %s",
    "UPDATE delayed_jobs SET updated_at = updated_at + INTERVAL 1 SECOND WHERE id = %s",
    "UPDATE delayed_jobs SET id = id + 10000000 WHERE id = %s",
)


class DelayedJobs(System):
    """Failed jobs of delayed_job in a database of their own on one server, which the process that made it runs."""

    name = "mapped"
    others_lock_rows = True  # a worker every row that it passes; a connection that was cut, until it is rolled back

    def create(self, items: int) -> list[str]:
        name = f"f_{secrets.token_hex(8)}"
        with mariadb.connection(mariadb.server().url) as server, server.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
        url = sa.make_url(mariadb.server().url).set(database=name).render_as_string(hide_password=False)
        (self.folder / "url").write_text(url)
        for statement in (*SYSTEMS["delayed_job_mysql"].ddl.split(";\n"), *TABLES):
            self.run(statement)
        self.run(
            "INSERT INTO delayed_jobs (attempts, handler, last_error, run_at, failed_at, created_at, updated_at)"
            " SELECT 25, '--- !ruby/struct:Mail', 'timeout', utc_timestamp(6) - INTERVAL 1 HOUR, utc_timestamp(6) - INTERVAL 1 HOUR,"
            f" utc_timestamp(6) - INTERVAL 2 HOUR, utc_timestamp(6) - INTERVAL 1 HOUR + INTERVAL seq MICROSECOND FROM seq_1_to_{items}"
        )
        return sorted(self.present())

    @property
    def url(self) -> str:
        return (self.folder / "url").read_text()

    @contextmanager
    def connected(self) -> Iterator[Any]:
        with mariadb.connection(self.url) as connection:
            connection.autocommit(False)
            yield connection

    def run(self, sql: str, *values: Any) -> list[Any]:
        with mariadb.connection(self.url) as connection, connection.cursor() as cursor:
            cursor.execute(sql, values or None)
            return list(cursor.fetchall()) if cursor.description else []

    def open(self, deadline: timedelta = timedelta(seconds=30)) -> SqlTable:
        options = Options(url=self.url, preset="delayed_job_mysql")
        return SqlTable.open(self.name, options, PolicyOverride(), read_only=False, deadline=deadline)

    def present(self) -> set[str]:
        return {str(id) for (id,) in self.run("SELECT id FROM delayed_jobs UNION SELECT id FROM succeeded")}

    def requeued(self) -> Counter[str]:
        return Counter(dict(self.run("SELECT id, count(*) FROM oracle WHERE kind = 'back' GROUP BY 1")))

    def touched(self) -> set[str]:
        return {id for (id,) in self.run("SELECT DISTINCT id FROM oracle")}

    def forget(self) -> None:
        self.run("DELETE FROM oracle")

    def taken(self) -> bool:
        return bool(self.run("SELECT 1 FROM oracle WHERE kind = 'taken' LIMIT 1"))

    def notes(self) -> Counter[str]:
        return Counter(dict(self.run("SELECT id, count(*) FROM notes GROUP BY 1")))

    def cut(self) -> int:
        """End every connection to this database but one's own; how many there were."""
        name = sa.make_url(self.url).database
        with mariadb.connection(mariadb.server().url) as server, server.cursor() as cursor:
            cursor.execute("SELECT id FROM information_schema.processlist WHERE db = %s", [name])
            ended = 0
            for (id,) in cursor.fetchall():
                with suppress(pymysql.OperationalError):  # it has ended by itself
                    cursor.execute(f"KILL {id}")
                    ended += 1
            return ended

    def work(self, handler: Callable[..., object], clock: Clock, stop: Stop) -> None:
        with self.connected() as connection, connection.cursor() as cursor:
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
            while not stop.requested:
                cursor.execute("SELECT id FROM delayed_jobs WHERE failed_at IS NULL AND locked_at IS NULL AND run_at <= utc_timestamp(6)"
                               " ORDER BY priority, run_at LIMIT 1 FOR UPDATE SKIP LOCKED")
                found = cursor.fetchone()
                if found is None:
                    connection.rollback()
                    clock.sleep(0.02)
                    continue
                cursor.execute("UPDATE delayed_jobs SET locked_at = utc_timestamp(6), locked_by = 'worker' WHERE id = %s", found)
                connection.commit()
                self._end(cursor, handler, found)
                connection.commit()

    def _end(self, cursor: Any, handler: Callable[..., object], found: Any) -> None:
        try:
            handler("job", {})
        except RuntimeError as error:
            cursor.execute("UPDATE delayed_jobs SET failed_at = utc_timestamp(6), attempts = attempts + 1, locked_at = NULL, last_error = %s,"
                           " locked_by = NULL, updated_at = utc_timestamp(6) WHERE id = %s", (str(error), *found))
        else:
            cursor.execute("INSERT INTO succeeded VALUES (%s)", found)
            cursor.execute("DELETE FROM delayed_jobs WHERE id = %s", found)

    def mutate(self, ids: list[str], chance: random.Random) -> None:
        for id in ids:
            self.run(chance.choice(CHANGES), id)

    def delete(self, ids: list[str]) -> None:
        self._for_each("DELETE FROM delayed_jobs WHERE id = %s", ids)

    def take_back(self, ids: list[str]) -> None:
        self._for_each("UPDATE delayed_jobs SET failed_at = utc_timestamp(6) WHERE id = %s", ids)

    def _for_each(self, sql: str, ids: list[str]) -> None:
        with self.connected() as connection, connection.cursor() as cursor:
            cursor.executemany(sql, [(id,) for id in ids])
            connection.commit()

    def naive(self, chunk: int = 100) -> bool:
        with self.connected() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT id FROM delayed_jobs WHERE failed_at IS NOT NULL ORDER BY id LIMIT %s", [chunk])
            found = cursor.fetchall()
            for id in found:
                cursor.execute("UPDATE delayed_jobs SET failed_at = NULL, run_at = utc_timestamp(6), locked_at = NULL WHERE id = %s", id)
                connection.commit()
            cursor.executemany("INSERT INTO notes VALUES (%s)", found)
            connection.commit()
            return bool(found)

    def drop(self) -> None:
        with mariadb.connection(mariadb.server().url) as server, server.cursor() as cursor:
            cursor.execute(f"DROP DATABASE {sa.make_url(self.url).database}")
