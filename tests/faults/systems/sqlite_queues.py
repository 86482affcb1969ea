"""The two SQLite queues, with a trigger as their oracle."""

from __future__ import annotations

import json
import random
import sqlite3
from collections import Counter
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

from console.core.policy import PolicyOverride
from plugins.sqlite_queue import SqliteQueue
from plugins.sqlite_queue.backend import Options
from plugins.sqlite_queue.schema import ASYNC_TASKS_DDL, TASKS_DDL
from tests.faults.systems import System

ORACLE = """
CREATE TABLE oracle (n INTEGER PRIMARY KEY, id TEXT, was TEXT, now TEXT);
CREATE TRIGGER oracle_update AFTER UPDATE ON {table} BEGIN
    INSERT INTO oracle (id, was, now) VALUES (OLD.{key}, OLD.status, NEW.status);
END;
CREATE TRIGGER oracle_delete AFTER DELETE ON {table} BEGIN
    INSERT INTO oracle (id, was) VALUES (OLD.{key}, OLD.status);
END;
CREATE TRIGGER oracle_insert AFTER INSERT ON {table} BEGIN
    INSERT INTO oracle (id, now) VALUES (NEW.{key}, NEW.status);
END;
CREATE TABLE notes (id TEXT);
"""


class SqliteSystem(System):
    """What is the same of every queue that is one table of an SQLite file."""

    ddl = ""
    table, key, failed, pending = "", "", "FAILED", "PENDING"
    error, due = "last_error", "next_run_at"
    dialect: Any = "async_tasks"

    def run(self, sql: str, *values: Any) -> list[Any]:
        with closing(sqlite3.connect(self.folder / "queue.db", isolation_level=None, timeout=30)) as connection:
            return connection.execute(sql, values).fetchall()

    def row(self, n: int, at: str) -> tuple[Any, ...]:
        raise NotImplementedError

    def create(self, items: int) -> list[str]:
        began = datetime.now(UTC) - timedelta(hours=1)
        rows = [self.row(n, (began + timedelta(microseconds=n + 1)).isoformat()) for n in range(items)]
        with closing(sqlite3.connect(self.folder / "queue.db", isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.executescript(self.ddl)
            connection.execute("BEGIN")
            connection.executemany(f"INSERT INTO {self.table} VALUES ({', '.join('?' * len(rows[0]))})", rows)
            connection.execute("COMMIT")
            connection.executescript(ORACLE.format(table=self.table, key=self.key))
        return sorted(self.present())

    def open(self, deadline: timedelta = timedelta(seconds=30)) -> SqliteQueue:
        # Its workers look often, so that they get in the way of the console.
        options = Options(url=f"sqlite:///{self.folder}/queue.db", dialect=self.dialect, every="10ms")
        return SqliteQueue.open(self.name, options, PolicyOverride(), read_only=False, deadline=deadline)

    def present(self) -> set[str]:
        return {id for (id,) in self.run(f"SELECT {self.key} FROM {self.table}")}

    def requeued(self) -> Counter[str]:
        back = self.run("SELECT id, count(*) FROM oracle WHERE was = ? AND now = ? GROUP BY 1", self.failed, self.pending)
        return Counter(dict(back))

    def touched(self) -> set[str]:
        return {id for (id,) in self.run("SELECT DISTINCT id FROM oracle")}

    def forget(self) -> None:
        self.run("DELETE FROM oracle")

    def taken(self) -> bool:
        return bool(self.run("SELECT 1 FROM oracle WHERE was = ? AND now <> ? LIMIT 1", self.pending, self.pending))

    def mutate(self, ids: list[str], chance: random.Random) -> None:
        moment = datetime.now(UTC) - timedelta(minutes=chance.randrange(1, 50), microseconds=chance.randrange(10**6))
        table, key = self.table, self.key
        with closing(sqlite3.connect(self.folder / "queue.db", isolation_level=None)) as connection:
            connection.execute("BEGIN")
            for id in ids:
                sql, *values = chance.choice((
                    (f"UPDATE {table} SET status = 'RUNNING', attempts = attempts + 1 WHERE {key} = ?",),
                    (f"UPDATE {table} SET status = 'DONE', {self.error} = NULL WHERE {key} = ?",),
                    (f"UPDATE {table} SET attempts = attempts + 1 WHERE {key} = ?",),
                    (f"UPDATE {table} SET updated_at = ? WHERE {key} = ?", moment.isoformat()),
                    (f"UPDATE {table} SET {self.due} = ? WHERE {key} = ?", moment.isoformat()),
                    (f"DELETE FROM {table} WHERE {key} = ?",),
                    (f"UPDATE {table} SET {key} = {key} || '-moved' WHERE {key} = ?",),
                ))
                connection.execute(sql, (*values, id))
            connection.execute("COMMIT")

    def _for_each(self, sql: str, ids: list[str]) -> None:
        with closing(sqlite3.connect(self.folder / "queue.db")) as connection, connection:
            connection.executemany(f"{sql} WHERE {self.key} = ?", [(id,) for id in ids])

    def delete(self, ids: list[str]) -> None:
        self._for_each(f"DELETE FROM {self.table}", ids)

    def take_back(self, ids: list[str]) -> None:
        now = datetime.now(UTC).isoformat()
        self._for_each(f"UPDATE {self.table} SET status = '{self.failed}', updated_at = '{now}'", ids)

    def naive(self, chunk: int = 100) -> bool:
        with closing(sqlite3.connect(self.folder / "queue.db", isolation_level=None, timeout=30)) as connection:
            rows = connection.execute(
                f"UPDATE {self.table} SET status = 'PENDING', {self.due} = strftime('%Y-%m-%dT%H:%M:%S+00:00', 'now') WHERE {self.key} IN"
                f" (SELECT {self.key} FROM {self.table} WHERE status = 'FAILED' ORDER BY 1 LIMIT ?) AND status = 'FAILED'"
                f" RETURNING {self.key}", (chunk,),
            ).fetchall()
            connection.executemany("INSERT INTO notes VALUES (?)", rows)
        return bool(rows)

    def notes(self) -> Counter[str]:
        return Counter(dict(self.run("SELECT id, count(*) FROM notes GROUP BY 1")))


class AnalysisQueue(SqliteSystem):
    ddl, table, key = ASYNC_TASKS_DDL, "async_tasks", "task_id"

    def row(self, n: int, at: str) -> tuple[Any, ...]:
        return (f"t{n:06d}", "ANALYZE_EXECUTED", "entity", "FAILED", 4, at, "ERR_TIMEOUT: upstream timed out", at, at)


class ContractQueue(SqliteSystem):
    ddl, table, key = TASKS_DDL, "tasks", "id"
    error, due, dialect = "error", "eta", "tasks"

    def row(self, n: int, at: str) -> tuple[Any, ...]:
        schedule = json.dumps({"eta": at})
        return (f"t{n:06d}", "jobs.send", "[]", "{}", "FAILED", schedule, at, 3, None, 3, at, at, at, "upstream timed out")
