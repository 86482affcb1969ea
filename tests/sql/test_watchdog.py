"""Deadlines held from this side, on connections to a real server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import psycopg
import pytest

from console.sql.watchdog import Watch, Watchdog
from tests.plugins.postgres_analyses.server import database


@pytest.fixture
def connection() -> Iterator[psycopg.Connection]:
    with database("") as url, psycopg.connect(url, autocommit=True) as found:
        yield found


def by_deadline(_watchdog: Watchdog, watch: Watch) -> None:
    watch.end = time.monotonic()


def by_hand(watchdog: Watchdog, _watch: Watch) -> None:
    watchdog.cancel()


@pytest.mark.parametrize("give_up", [by_deadline, by_hand])
def test_once_a_watch_has_ended_its_connection_is_not_cut(
    connection: psycopg.Connection, give_up: Callable[[Watchdog, Watch], None]
) -> None:
    """The next statement, perhaps somebody else's, may be running on it by then, or on another of the same number."""
    watchdog = Watchdog()
    watch = watchdog.begin(connection, 60)
    about_to_cut, cut_off = threading.Event(), watch.cut_off

    def held_up() -> None:
        about_to_cut.set()
        time.sleep(0.5)
        cut_off()

    watch.cut_off = held_up
    give_up(watchdog, watch)
    assert about_to_cut.wait(10)
    watchdog.end(watch)
    first = watch.cut
    time.sleep(1)
    assert watch.cut == first


def test_a_silent_connection_is_cut(connection: psycopg.Connection) -> None:
    watchdog = Watchdog()
    watch = watchdog.begin(connection, 0.2)
    with pytest.raises(psycopg.OperationalError):
        connection.execute("SELECT pg_sleep(30)")
    watchdog.end(watch)
    assert watch.cut
