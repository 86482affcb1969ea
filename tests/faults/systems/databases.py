"""Systems in PostgreSQL: a database of their own on one server, which the process that made it runs."""

from __future__ import annotations

import secrets
from collections import Counter
from typing import Any

import psycopg
import sqlalchemy as sa

from tests.faults.systems import System
from tests.plugins.postgres_analyses.server import ZONE, server

MINE = "FROM pg_stat_activity WHERE application_name = 'retriage' AND datname = current_database()"


class DatabaseSystem(System):
    """What is the same of every system in PostgreSQL."""

    ddl = ""

    @property
    def url(self) -> str:
        return (self.folder / "url").read_text()

    def make(self) -> None:
        name = f"f_{secrets.token_hex(8)}"
        server().execute(f"CREATE DATABASE {name}")
        url = sa.make_url(server().url).set(database=name).render_as_string(hide_password=False)
        (self.folder / "url").write_text(url)
        self.run(f"ALTER DATABASE {name} SET timezone = '{ZONE}'")
        self.script(self.ddl)

    def run(self, sql: str, *values: Any) -> list[Any]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(sql, values or None)
            return cursor.fetchall() if cursor.description else []

    def script(self, sql: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(sql)

    def for_each(self, sql: str, ids: list[str]) -> None:
        with psycopg.connect(self.url) as connection:
            for id in ids:
                connection.execute(sql.encode(), {"id": id})

    def cut(self) -> int:
        """End every connection the console has at this moment; how many there were."""
        return len(self.run(f"SELECT pg_terminate_backend(pid) {MINE}"))

    def drop(self) -> None:
        server().execute(f"DROP DATABASE {sa.make_url(self.url).database} WITH (FORCE)")

    def touched(self) -> set[str]:
        return {id for (id,) in self.run("SELECT DISTINCT id FROM oracle")}

    def forget(self) -> None:
        self.run("DELETE FROM oracle")

    def notes(self) -> Counter[str]:
        return Counter(dict(self.run("SELECT id, count(*) FROM notes GROUP BY 1")))
