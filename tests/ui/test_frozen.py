"""A PostgreSQL that is stopped in its tracks: its card says so, everything else goes on, and the console can be left."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from plugins.postgres_analyses.schema import ddl
from tests.depth import campaign
from tests.patience import busy
from tests.plugins.postgres_analyses.world import TABLE
from tests.postgres import Server, running_server
from tests.ui.terminal import Terminal
from tests.ui.world import make_async

PROMISED = 0.1
"""Seconds from a key to its repaint, nineteen times of twenty."""


@contextmanager
def frozen(server: Server) -> Iterator[None]:
    assert server.pid is not None
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    stopped = [server.pid, *map(int, children)]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)


def config(folder: Path, url: str) -> Path:
    make_async(folder / "live.db", 300)
    path = folder / "config.yaml"
    path.write_text(
        f"""
console: {{trail: "sqlite:///{folder}/trail.db", refresh: 1s}}
backends:
  ice: {{plugin: postgres_analyses, url: "{url}", table: {TABLE}}}
  live: {{plugin: sqlite_queue, url: "sqlite:///{folder}/live.db"}}
"""
    )
    path.chmod(0o600)
    return path


def p95(seconds: list[float]) -> float:
    return sorted(seconds)[int(len(seconds) * 0.95)]


@campaign
def test_a_stopped_server_is_seen_and_slows_nothing(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delenv("RETRIAGE_TEST_POSTGRES_URL", raising=False)
    with running_server() as server:
        assert server is not None
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute(ddl())
            connection.execute(
                f"INSERT INTO {TABLE} (vectorization_status, vectorization_error, dp_update_status, processed_at)"
                " SELECT 'failed', 'connection timeout', 'success', now() FROM generate_series(1, 40)"
            )
        terminal = Terminal([sys.executable, "-m", "console", "--config", str(config(tmp_path, server.url))], (40, 120))
        terminal.until("● 2")
        terminal.press("2")
        terminal.until("task-00")
        terminal.press("/backend:ice\r")
        terminal.until("connection timeout")
        terminal.press("/\x01\x0bbackend:live\r")
        terminal.until("task-00")
        before = [terminal.timed(key) for key in "jjjjkjjjjk" * 4]
        with frozen(server):
            began = time.monotonic()
            during = [terminal.timed(key) for key in "jjjjkjjjjk" * 4]
            terminal.until("1 down", within=5.5 * busy() - (time.monotonic() - began))
            during += [terminal.timed(key) for key in "kkkkjkkkkj" * 4]
            terminal.press("1")
            shown = terminal.until("✗ down")
            assert "● live" in shown
            terminal.press("2/\x01\x0bbackend:ice,live\r")  # home, and kill to the end of the line
            terminal.until("answer")  # "ice has not answered yet", then "ice: Timed out"
            terminal.until("task-00")
            terminal.press("q")
            assert terminal.left() == 0
    assert p95(during) < max(PROMISED * busy(), 2 * p95(before))  # a machine that is busy with other things is forgiven
