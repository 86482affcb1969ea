"""A server at its limit: an open console takes next to nothing of it, and answers keys at once."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa

from plugins.postgres_analyses.schema import ddl
from tests.depth import campaign
from tests.patience import busy
from tests.plugins.postgres_analyses.world import TABLE
from tests.postgres import running_server
from tests.ui.terminal import Terminal
from tests.ui.test_frozen import PROMISED, p95

ROWS = 600_000
SECONDS = 60.0
OPENING = 75.0
"""Seconds. A console begins to record the history within a minute."""
GENERATOR = """
import psycopg, sys
with psycopg.connect(sys.argv[1], autocommit=True) as connection:
    while True:
        connection.execute("SELECT count(*) FROM generate_series(1, 300000)")
"""


@contextmanager
def full_load(url: str, clients: int = 4) -> Iterator[None]:
    """Clients that keep every core of the server busy, in a database of their own."""
    working = [subprocess.Popen([sys.executable, "-c", GENERATOR, url]) for _ in range(clients)]
    try:
        yield
    finally:
        for one in working:
            one.kill()
            one.wait()


def active_time(connection: psycopg.Connection) -> float:
    """Seconds for which the server worked in this database. It writes that down when a connection ends at the latest."""
    connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name = 'retriage'"
    )
    time.sleep(1.0)
    row = connection.execute(
        "SELECT active_time / 1000 FROM pg_stat_database WHERE datname = current_database()"
    ).fetchone()
    assert row is not None
    return float(row[0])


@campaign
def test_a_loaded_server_is_left_alone_and_keys_are_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RETRIAGE_TEST_POSTGRES_URL", raising=False)
    with running_server() as server:
        assert server is not None
        with server.database() as url:
            connection = psycopg.connect(url, autocommit=True)
            connection.execute(ddl())
            connection.execute(
                f"INSERT INTO {TABLE} (vectorization_status, vectorization_error, dp_update_status, processed_at)"
                " SELECT CASE WHEN n % 10 = 0 THEN 'failed' ELSE 'success' END, 'connection timeout', 'success', now()"
                f" FROM generate_series(1, {ROWS}) AS n"
            )
            connection.execute(f"ANALYZE {TABLE}")
            config = tmp_path / "config.yaml"
            address = sa.make_url(url).render_as_string(hide_password=False)
            config.write_text(
                f'console: {{trail: "sqlite:///{tmp_path}/trail.db"}}\n'
                f'backends: {{a: {{plugin: postgres_analyses, url: "{address}", table: {TABLE}}}}}\n'
            )
            config.chmod(0o600)
            with full_load(server.url):
                terminal = Terminal([sys.executable, "-m", "console", "--config", str(config)], (40, 120))
                terminal.until("● 1")
                terminal.press("2")
                terminal.until("connection timeout")
                end = time.monotonic() + OPENING
                while time.monotonic() < end:  # what was asked for by opening the place, and the first sample
                    terminal.read()
                before, began = active_time(connection), time.monotonic()
                keys: list[float] = []
                while time.monotonic() - began < SECONDS:
                    keys += [terminal.timed(key) for key in "jjjjkjjjjk"]
                    time.sleep(2.0)
                share = (active_time(connection) - before) / (time.monotonic() - began)
                terminal.press("q")
                assert terminal.left() == 0
            connection.close()
    assert share < 0.01
    assert p95(keys) < PROMISED * busy()
