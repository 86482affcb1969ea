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
from console.trail.leases import owner_token
from console.trail.record import Kind
from console.trail.store import TrailStore, open_trail
from tests.postgres import Server
from tests.trail.world import START, FrozenClock, begun, carried, chunk, trail_at

DEADLINE = 4.0
"""Twice what is promised: this machine may be busy."""


@pytest.fixture
def url(postgres: Server) -> Iterator[str]:
    with postgres.database() as found:
        yield found


@pytest.fixture
def trail(url: str) -> Iterator[TrailStore]:
    with trail_at(url) as opened:
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


def test_a_frozen_server_is_reported_in_time_and_forgiven_later(trail: TrailStore, postgres: Server, url: str) -> None:
    _, owner = begun(trail)
    with frozen(postgres, url):
        for _ in range(2):  # on a kept connection, then on a new one
            start = time.monotonic()
            with pytest.raises(TrailUnavailable, match="does not answer"):
                trail.intend("op1", owner, chunk(0, 1), START)
            assert time.monotonic() - start < DEADLINE
    seq = trail.intend("op1", owner, chunk(0, 1), START)
    assert trail.verify().ok
    assert [intent.seq for intent in trail.open_intents("op1")][-1] == seq


def test_a_held_lock_is_reported_in_time(trail: TrailStore, url: str) -> None:
    _, owner = begun(trail)
    with psycopg.connect(url) as raw:
        raw.execute("LOCK TABLE retriage_trail.record")
        start = time.monotonic()
        with pytest.raises(TrailUnavailable, match="timeout"):
            trail.intend("op1", owner, chunk(0, 1), START)
        assert time.monotonic() - start < DEADLINE
    assert trail.intend("op1", owner, chunk(0, 1), START) == 3


def test_a_connection_cut_between_two_writes_is_replaced(trail: TrailStore, url: str) -> None:
    _, owner = begun(trail)
    trail.overrides()
    with psycopg.connect(url, autocommit=True) as raw:
        raw.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'retriage' AND datname = current_database()")
    assert trail.intend("op1", owner, chunk(0, 1), START) == 3
    assert [override.override_id for override in trail.overrides()] == ["op1"]


def test_a_connection_cut_in_a_transaction_changes_nothing(trail: TrailStore, url: str) -> None:
    carried(trail)

    def work(writing: object) -> None:
        pid = writing.all("SELECT pg_backend_pid()")[0][0]  # type: ignore[attr-defined]
        trail._chain.append(writing, Kind.REFUSAL, START, {})  # type: ignore[arg-type]
        with psycopg.connect(url, autocommit=True) as raw:
            raw.execute("SELECT pg_terminate_backend(%s)", (pid,))

    with pytest.raises(TrailUnavailable):
        trail._storage.write(work)
    assert len(trail.records()) == 8
    trail.refuse({}, START)
    assert trail.verify().ok


def test_a_dropped_trail_is_not_started_anew(trail: TrailStore, url: str) -> None:
    _, owner = begun(trail)
    with psycopg.connect(url, autocommit=True) as raw:
        raw.execute("DROP SCHEMA retriage_trail CASCADE")
    with pytest.raises(TrailUnavailable):
        trail.intend("op1", owner, chunk(0, 1), START)
    with pytest.raises(TrailUnavailable):
        trail.refuse({}, START)
    with psycopg.connect(url, autocommit=True) as raw:
        assert raw.execute("SELECT to_regnamespace('retriage_trail')").fetchone() == (None,)


def test_read_only_creates_nothing_and_changes_nothing(url: str) -> None:
    with trail_at(url, read_only=True) as trail:
        assert trail.overrides() == trail.unresolved() == []
        with pytest.raises(ReadOnlyRefused):
            trail.refuse({}, START)
    with psycopg.connect(url) as raw:
        assert raw.execute("SELECT to_regnamespace('retriage_trail')").fetchone() == (None,)
    with trail_at(url) as trail:
        carried(trail)
    with trail_at(url, read_only=True) as trail:
        assert trail.override("op1").counts == {"applied": 6}
        with pytest.raises(TrailUnavailable, match="read-only"):
            trail._storage.read(lambda reading: reading.all("DELETE FROM plan_block RETURNING 1"), [])


def test_an_unreachable_server_is_reported_without_its_password() -> None:
    with trail_at("postgresql://ann:s3cret@localhost:1/trail") as trail:
        for use in (lambda: trail.refuse({}, START), trail.overrides):
            with pytest.raises(TrailUnavailable) as caught:
                use()
            assert "s3cret" not in f"{caught.value}{caught.value!r}{trail.place}"


def test_other_databases_are_refused() -> None:
    with pytest.raises(ConfigFault, match="mysql"):
        open_trail("mysql://x/y", read_only=False, anchor=None, clock=FrozenClock())
    assert owner_token() != owner_token()
