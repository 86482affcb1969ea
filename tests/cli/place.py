"""A folder with real SQLite queues and a config, and the real command line on it."""

from __future__ import annotations

import os
import re
import secrets
import sqlite3
import subprocess
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from console.__main__ import main
from plugins.sqlite_queue.schema import ASYNC_TASKS_DDL, TASKS_DDL

NOW = datetime.now(UTC).replace(microsecond=0)
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u200b\u200d]")


def at(seconds: float) -> str:
    return (NOW + timedelta(seconds=seconds)).isoformat()


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str

    def __post_init__(self) -> None:
        assert not CONTROLS.search(self.out), f"a control in {self.out!r}"
        assert not CONTROLS.search(self.err), f"a control in {self.err!r}"
        assert "Traceback" not in self.err


@dataclass
class Place:
    """Queues by name, and the config that attaches to them."""

    folder: Path
    capsys: pytest.CaptureFixture[str]
    sections: dict[str, str] = field(default_factory=dict)
    console: str = ""
    after: str = ""
    """More sections of the config."""
    deadline: str = "500ms"

    @property
    def config(self) -> Path:
        return self.folder / "config.yaml"

    def attach(self, name: str, url: str = "", dialect: str = "async_tasks", more: str = "") -> None:
        url = url or f"sqlite:///{self.folder}/{name}.db"
        self.sections[name] = f'  {name}: {{plugin: sqlite_queue, dialect: {dialect}, url: "{url}"{more}}}\n'

    def queue(self, name: str, *rows: tuple[Any, ...], more: str = "", ddl: str = ASYNC_TASKS_DDL) -> Path:
        """An `async_tasks` queue with these rows, attached."""
        path = self.folder / f"{name}.db"
        with sqlite3.connect(path) as connection:
            connection.executescript(ddl)
            connection.executemany("INSERT INTO async_tasks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
        connection.close()
        self.attach(name, more=more)
        return path

    def use_wal(self, *names: str) -> None:
        """Else a sample reads a queue for 50 ms at most, which is not enough on a busy machine."""
        for name in names:
            connection = sqlite3.connect(self.folder / f"{name}.db")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.close()

    def contract_queue(self, name: str, *rows: tuple[Any, ...], more: str = "") -> Path:
        path = self.folder / f"{name}.db"
        with sqlite3.connect(path) as connection:
            connection.executescript(TASKS_DDL)
            connection.executemany(f"INSERT INTO tasks VALUES ({','.join('?' * 14)})", rows)
        connection.close()
        self.attach(name, dialect="tasks", more=more)
        return path

    def write_config(self) -> Path:
        """Replaced at once: a process that was started earlier may be reading it."""
        text = f"console:\n  deadline: {self.deadline}\n{self.console}backends:\n{''.join(self.sections.values()) or '  {}'}{self.after}"
        new = self.folder / f"config.yaml.{secrets.token_hex(4)}"
        new.write_text(text)
        new.chmod(0o600)
        return new.replace(self.config)

    def run(self, *arguments: str) -> Done:
        """In this process."""
        code = main(["--config", str(self.write_config()), *arguments])
        out, err = self.capsys.readouterr()
        return Done(code, out, err)

    def spawn(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """In a process of its own."""
        command = [sys.executable, "-m", "console", "--config", str(self.write_config()), *arguments]
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(self.folder), **options
        )


def environment(home: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "RETRIAGE_", "COV_"))}
    root = str(Path(__file__).parents[2])
    return {**kept, "HOME": str(home), "PYTHONPATH": f"{root}:{home}", "COLUMNS": "200"}


def failed(id: Any, error: Any = "ERR_X: it broke", attempts: Any = 4, status: Any = "FAILED", **other: Any) -> tuple[Any, ...]:
    """A row of `async_tasks`."""
    row = {
        "task_id": id, "task_type": "ANALYZE_EXECUTED", "entity_id": f"e-{id}", "status": status, "attempts": attempts,
        "next_run_at": at(-60), "last_error": error, "created_at": at(-7200), "updated_at": at(-60), **other,
    }
    return tuple(row.values())


def retrying(id: str, due: float, attempts: int = 1, error: str = "ERR_TIMEOUT: too slow") -> tuple[Any, ...]:
    return failed(id, error, attempts, "PENDING", next_run_at=at(due))
