"""A canary password in every place a config can have one is seen nowhere: no output, no screen, no file, no process list."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest

from console.process import write_crash_file
from plugins.partition_store.schema import STATE_DDL
from plugins.sqlite_queue.schema import ASYNC_TASKS_DDL
from tests.patience import PATIENCE
from tests.plugins.postgres_analyses.server import database
from tests.plugins.postgres_analyses.world import TABLE, ddl
from tests.ui.terminal import Terminal

ROOT = Path(__file__).parents[1]
CANARY = "hunter2"
"""Every secret of this test has it in it, with a word for its place."""

CONFIG = """
console:
  operator: ann
  deadline: 2s
  trail: "{trail}"
  anchor: {home}/anchors
backends:
  written:     {{plugin: postgres_analyses, url: "{written}"}}
  from-env:    {{plugin: postgres_analyses, url: "{from_env}"}}
  refused:     {{plugin: workflow_steps, url: "postgresql://ann:hunter2-refused@127.0.0.1:1/app"}}
  odd:         {{plugin: workflow_steps, url: "postgresql://ann:hunter2%40odd%2F%3F@127.0.0.1:1/app?sslmode=disable"}}
  no-such-kind: {{plugin: sqlite_queue, url: "mysql://ann:hunter2-driver@db/app"}}
  parts:       {{plugin: partition_store, url: "sqlite:///{home}/parts.db", control_url: "{control}",
                 raw_sink: "s3://bucket/prefix", s3: {{endpoint: "http://ann:hunter2-endpoint@127.0.0.1:1", secret_access_key: hunter2-s3key}}}}
  queue:       {{plugin: sqlite_queue, url: "sqlite:///{home}/queue.db"}}
"""
COMMANDS = [
    ("check",), ("plugins",), ("list",), ("list", "--where", "condition:*", "--format", "json"), ("causes",), ("upcoming",),
    ("list", "--backend", "written", "--format", "csv"), ("show", "written/1/vectorization"), ("show", "queue/t1"),
    ("show", "refused/x"), ("plan", "--all"), ("requeue", "--key", "queue/t1", "--reason", "disk is back", "--confirm", "1"),
    ("requeue", "--key", "written/1/vectorization", "--attempts", "reset", "--reason", "disk is back", "--confirm", "1"),
    ("overrides", "list"), ("trail", "list"), ("trail", "verify"), ("trail", "export"), ("trail", "export", "--format", "csv"),
    ("trail", "unresolved"), ("map", "written"), ("map", "refused"), ("run", "refused"), ("state", "inspect"), ("--read-only", "check"),
    ("--read-only", "list", "--format", "jsonl"),
]


@dataclass(frozen=True)
class Home:
    """Where the operator is at home: a config full of secrets, and every file that came of it."""

    folder: Path
    trail_url: str

    @property
    def config(self) -> Path:
        return self.folder / "config.yaml"

    @property
    def surroundings(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "RETRIAGE_", "PG", "AWS_"))}
        return {
            **kept, "HOME": str(self.folder), "PYTHONPATH": str(ROOT), "DB_PASSWORD": "hunter2-env", "COLUMNS": "300",
            "AWS_ACCESS_KEY_ID": "hunter2-awsid", "AWS_SECRET_ACCESS_KEY": "hunter2-awskey", "AWS_EC2_METADATA_DISABLED": "true",
        }

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "console", "--config", str(self.config), *words], env=self.surroundings, cwd=ROOT,
            text=True, capture_output=True, timeout=PATIENCE,
        )

    def leaks(self) -> list[str]:
        """Files next to the config that have the canary in them."""
        files = (path for path in self.folder.rglob("*") if path.is_file() and path != self.config)
        return [str(path.relative_to(self.folder)) for path in files if CANARY.encode() in path.read_bytes()]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    folder = tmp_path_factory.mktemp("home")
    rows = f"INSERT INTO {TABLE} (vectorization_status, vectorization_error, retry_count, processed_at) VALUES ('failed', 'timeout', 3, now() - interval '1 day');"
    with database(f"{ddl()} {rows}") as url, database() as trail, database() as control:
        urls = {
            "written": _with(url, "hunter2-written"), "from_env": _with(url, "${DB_PASSWORD}"), "trail": _with(trail, "hunter2-trail"),
            "control": _with(control, "hunter2-control"),
        }
        _queues(folder)
        config = folder / "config.yaml"
        config.write_text(CONFIG.format(home=folder, **urls))
        config.chmod(0o600)
        yield Home(folder, trail)


def _with(url: str, password: str) -> str:
    """The test's server trusts everyone, so any password will do."""
    shown = password if password.startswith("$") else quote(password)
    return url.replace("postgresql://postgres@", f"postgresql://postgres:{shown}@", 1)


def _queues(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "queue.db")) as queue, queue:
        queue.executescript(ASYNC_TASKS_DDL)
        queue.execute("INSERT INTO async_tasks VALUES ('t1', 'A', 'e', 'FAILED', 4, '2026-01-01', 'ERR_X', '2026-01-01', '2026-01-01')")
    with closing(sqlite3.connect(folder / "parts.db")) as parts, parts:
        parts.executescript(STATE_DDL)
        parts.execute("INSERT INTO partition_state VALUES ('ads', 'c', 'q', '2026-01-01', 'failed', NULL, NULL, NULL, NULL, 'x', 1)")


def test_the_config_is_read_and_its_backends_are_tried(home: Home) -> None:
    """Otherwise nothing below would prove anything."""
    done = home.run("check")
    for name in ("written", "from-env", "refused", "odd", "parts", "queue"):
        assert name in done.stdout + done.stderr, done


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_command_tells(home: Home, command: tuple[str, ...]) -> None:
    done = home.run(*command)
    assert CANARY not in done.stdout
    assert CANARY not in done.stderr
    assert "Traceback" not in done.stderr
    assert "Internal error" not in done.stderr, done.stderr
    assert home.leaks() == []


def test_the_trail_keeps_no_secret(home: Home) -> None:
    home.run("requeue", "--key", "queue/t1", "--reason", "disk is back", "--confirm", "1")
    with psycopg.connect(home.trail_url) as trail:
        tables = trail.execute("SELECT quote_ident(schemaname) || '.' || quote_ident(tablename) FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema')")
        kept = {name: repr(trail.execute(f"SELECT * FROM {name}").fetchall()) for (name,) in tables.fetchall()}
    assert any("disk is back" in rows for rows in kept.values())
    assert [name for name, rows in kept.items() if CANARY in rows] == []


def test_no_screen_shows_one_nor_the_process_list(home: Home) -> None:
    terminal = Terminal([sys.executable, "-m", "console", "--config", str(home.config)], (50, 200), home.surroundings)
    terminal.until("written")
    for keys in ("2", "/condition:*\r", "\r", "\x1b", "3", "4", "1", "?", "\x1b", "\x10", "\x1b"):
        terminal.press(keys)
        terminal.read()
    lines = subprocess.run(["ps", "-eo", "args", "ww"], text=True, capture_output=True, check=True).stdout
    cmdline = Path(f"/proc/{terminal.child.pid}/cmdline").read_bytes()
    terminal.press("q")
    terminal.left()
    assert CANARY.encode() not in terminal.sent
    assert CANARY.encode() not in cmdline
    assert CANARY not in lines
    assert home.leaks() == []


@pytest.mark.parametrize("line", [
    'q: {plugin: workflow_steps, url: "postgresql://db/app?password=hunter2-query"}',
    'q: {plugin: workflow_steps, url: "postgresql://db/app?sslpassword=hunter2-query"}',
    'q: {plugin: workflow_steps, url: "postgresql://u:hunter2@odd@db/app"}',
    'q: {plugin: workflow_steps, url: ["postgresql://u:hunter2-list@db/app"]}',
    'q: {plugin: workflow_steps, url: {postgresql: "//u:hunter2-map@db/app"}}',
    'q: {plugin: workflow_steps, urll: "postgresql://u:hunter2-typo@db/app"}',
    'q: {plugin: workflow_steps, url: "postgresql://u:hunter2-twice@db/app", url: x}',
    'q: {plugin: workflow_steps, url: "postgresql://u:${NO_SUCH:-hunter2-default}@[::1/app"}',
    'q: {plugin: file_queue, path: "/srv", password: hunter2-unknown}',
    'q: {plugin: partition_store, url: "sqlite:////x.db", raw_sink: "s3://ann:hunter2-sink@bucket/p"}',
    'q: {plugin: partition_store, url: "sqlite:////x.db", raw_sink: "ftp://ann:hunter2-ftp@host/p"}',
    'q: {plugin: "postgresql://u:hunter2-plugin@db/app"}',
    'q: {plugin: sql_table, preset: river, url: "postgresql://u:hunter2-preset@127.0.0.1:1/app"}',
    'q: {plugin: workflow_steps, url: "postgresql://u:hunter2-unclosed@db/app}',
])
def test_a_mistake_in_the_config_is_reported_without_the_secret(tmp_path: Path, line: str) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(f"console: {{trail: 'sqlite:///{tmp_path}/trail.db', deadline: 1s}}\nbackends:\n  {line}\n")
    config.chmod(0o600)
    done = Home(tmp_path, "").run("check")
    assert done.returncode, done
    assert CANARY not in done.stdout + done.stderr
    assert "Internal error" not in done.stderr
    assert Home(tmp_path, "").leaks() == []


@pytest.mark.parametrize("place", [
    "postgresql://u:hunter2-map@db/app", "postgresql://db/app?password=hunter2-map", "postgresql://u:hunter2%40@127.0.0.1:1/app",
])
def test_a_password_on_the_command_line_is_refused_and_not_repeated(tmp_path: Path, place: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "console", "map", place], cwd=ROOT, text=True, capture_output=True,
        env={**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 2
    assert CANARY not in done.stdout + done.stderr


def test_a_crash_file_has_neither_locals_nor_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    def connect(password: str) -> None:
        raise RuntimeError(f"connect postgresql://ann:{password}@db/app failed: password={password}")

    with pytest.raises(RuntimeError) as raised:
        connect("hunter2-crash")
    path = write_crash_file(raised.value, "retriage check")
    assert path is not None
    assert "connect postgresql://ann:***@db/app failed" in path.read_text()
    assert CANARY not in path.read_text().replace('connect("hunter2-crash")', "")
    assert path.stat().st_mode & 0o077 == 0
