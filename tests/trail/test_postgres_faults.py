"""A team's trail in PostgreSQL that hangs, restarts, or is opened for reading only."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from console.core.faults import ConfigFault, ReadOnlyRefused, TrailUnavailable
from console.trail.owner import owner_token
from console.trail.record import Kind
from console.trail.store import TrailBook, open_book
from tests.postgres import Server
from tests.trail.world import START, FrozenClock, begun, book_at, carried, chunk

DEADLINE = 4.0
"""Twice what is promised: this machine may be busy."""


@pytest.fixture
def url(postgres: Server) -> Iterator[str]:
    with postgres.database() as found:
        yield found


@pytest.fixture
def book(url: str) -> Iterator[TrailBook]:
    with book_at(url) as opened:
        yield opened


@contextmanager
def frozen(server: Server, url: str) -> Iterator[None]:
    """Every process of the server that could answer us."""
    if server.pid is None:
        pytest.skip("the server is not ours to freeze")
    with psycopg.connect(url) as raw:
        rows = raw.execute("SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = current_database()")
        pids = [pid for (pid,) in rows]
    pids.append(server.pid)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def test_a_frozen_server_is_told_in_time_and_forgiven_later(book: TrailBook, postgres: Server, url: str) -> None:
    _, owner = begun(book)
    with frozen(postgres, url):
        for _ in range(2):  # on a kept connection, then on a new one
            start = time.monotonic()
            with pytest.raises(TrailUnavailable, match="does not answer"):
                book.intend("op1", owner, chunk(0, 1), START)
            assert time.monotonic() - start < DEADLINE
    seq = book.intend("op1", owner, chunk(0, 1), START)
    assert book.verify().ok
    assert [intent.seq for intent in book.open_intents("op1")][-1] == seq


def test_a_held_lock_is_told_in_time(book: TrailBook, url: str) -> None:
    _, owner = begun(book)
    with psycopg.connect(url) as raw:
        raw.execute("LOCK TABLE retriage_trail.record")
        start = time.monotonic()
        with pytest.raises(TrailUnavailable, match="timeout"):
            book.intend("op1", owner, chunk(0, 1), START)
        assert time.monotonic() - start < DEADLINE
    assert book.intend("op1", owner, chunk(0, 1), START) == 2


def test_a_connection_cut_between_two_writes_is_replaced(book: TrailBook, url: str) -> None:
    _, owner = begun(book)
    book.overrides()
    with psycopg.connect(url, autocommit=True) as raw:
        raw.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'retriage' AND datname = current_database()")
    assert book.intend("op1", owner, chunk(0, 1), START) == 2
    assert [override.op_id for override in book.overrides()] == ["op1"]


def test_a_connection_cut_in_a_transaction_changes_nothing(book: TrailBook, url: str) -> None:
    carried(book)

    def work(writing: object) -> None:
        pid = writing.all("SELECT pg_backend_pid()")[0][0]  # type: ignore[attr-defined]
        book._chain.append(writing, Kind.REFUSAL, START, {})  # type: ignore[arg-type]
        with psycopg.connect(url, autocommit=True) as raw:
            raw.execute("SELECT pg_terminate_backend(%s)", (pid,))

    with pytest.raises(TrailUnavailable):
        book._storage.write(work)
    assert len(book.records()) == 7
    book.refuse({}, START)
    assert book.verify().ok


def test_a_dropped_trail_is_not_started_anew(book: TrailBook, url: str) -> None:
    _, owner = begun(book)
    with psycopg.connect(url, autocommit=True) as raw:
        raw.execute("DROP SCHEMA retriage_trail CASCADE")
    with pytest.raises(TrailUnavailable):
        book.intend("op1", owner, chunk(0, 1), START)
    with pytest.raises(TrailUnavailable):
        book.refuse({}, START)
    with psycopg.connect(url, autocommit=True) as raw:
        assert raw.execute("SELECT to_regnamespace('retriage_trail')").fetchone() == (None,)


def test_read_only_creates_nothing_and_changes_nothing(url: str) -> None:
    with book_at(url, read_only=True) as book:
        assert book.overrides() == book.unresolved() == []
        with pytest.raises(ReadOnlyRefused):
            book.refuse({}, START)
    with psycopg.connect(url) as raw:
        assert raw.execute("SELECT to_regnamespace('retriage_trail')").fetchone() == (None,)
    with book_at(url) as book:
        carried(book)
    with book_at(url, read_only=True) as book:
        assert book.override("op1").counts == {"changed": 6}
        with pytest.raises(TrailUnavailable, match="read-only"):
            book._storage.read(lambda reading: reading.all("DELETE FROM plan_block RETURNING 1"), [])


def test_an_unreachable_server_is_told_without_its_password() -> None:
    with book_at("postgresql://ann:s3cret@localhost:1/trail") as book:
        for use in (lambda: book.refuse({}, START), book.overrides):
            with pytest.raises(TrailUnavailable) as caught:
                use()
            assert "s3cret" not in f"{caught.value}{caught.value!r}{book.place}"


def test_other_databases_are_refused() -> None:
    with pytest.raises(ConfigFault, match="mysql"):
        open_book("mysql://x/y", read_only=False, anchor=None, clock=FrozenClock())
    assert owner_token() != owner_token()
