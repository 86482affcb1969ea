"""Promise: what is reported as changed survives a crash of the server."""

from __future__ import annotations

import os
import signal
import time
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta

import psycopg
import sqlalchemy as sa

from console.demo.server import binaries, running
from console.process import SystemClock
from console.sql.postgres import PostgresDatabase, setting_findings
from console.trail.store import open_trail
from tests.patience import PATIENCE
from tests.postgres import SETTINGS

SLOW = {**SETTINGS, "wal_writer_delay": "10s", "synchronous_commit": "on"}
"""The log is written only for commits that wait for it."""
NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)


def crash(url: str) -> None:
    """Kill one process of the server: all of it starts again, with what is on the disk."""
    with psycopg.connect(url) as victim, psycopg.connect(url, autocommit=True) as witness:
        os.kill(victim.info.backend_pid, signal.SIGKILL)
        end = time.monotonic() + PATIENCE
        with suppress(psycopg.Error):
            while time.monotonic() < end:
                witness.execute("SELECT 1")
        assert witness.closed


def rows(url: str) -> int:
    end = time.monotonic() + PATIENCE
    while True:
        try:
            with psycopg.connect(url) as connection:
                row = connection.execute("SELECT count(*) FROM t WHERE v = 1").fetchone()
                assert row is not None
                return int(row[0])
        except psycopg.OperationalError:
            assert time.monotonic() < end, "the server did not come back"
            time.sleep(0.05)


def test_a_role_without_synchronous_commit_loses_no_reported_change() -> None:
    found = binaries()
    assert found is not None
    with running(found, SLOW) as (server, _):
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute("CREATE TABLE t AS SELECT n AS id, 0 AS v FROM generate_series(1, 50) n")
            connection.execute("CREATE ROLE hasty LOGIN SUPERUSER")
            connection.execute("ALTER ROLE hasty SET synchronous_commit = off")
            connection.execute("CHECKPOINT")
        url = sa.make_url(server).set(username="hasty").render_as_string(hide_password=False)
        with closing(PostgresDatabase(url, deadline=timedelta(seconds=60))) as database:
            warned = [finding.message for finding in setting_findings(database.server_settings(), "hasty")]
            assert any("synchronous_commit=off" in message for message in warned)
            with database.writing() as writer:
                writer.execute("UPDATE t SET v = 1")
            crash(server)
            assert rows(server) == 50
        with closing(open_trail(url, read_only=False, anchor=None, clock=SystemClock())) as trail:
            trail.refuse({"why": "test"}, NOON)
            crash(server)
            assert rows(server) == 50
            assert trail.verified().records == 1
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute("ALTER ROLE hasty SET synchronous_commit = remote_apply")
        with closing(PostgresDatabase(url, deadline=timedelta(seconds=60))) as database, database.writing() as writer:
            assert writer.execute("SELECT current_setting('synchronous_commit')") == [("remote_apply",)], "it is stronger"
