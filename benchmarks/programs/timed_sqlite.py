"""`python -m benchmarks.programs.timed_sqlite CONFIG REPORT FILE`: a console, and how long SQLite worked on FILE."""

from __future__ import annotations

import json
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

total = 0.0
running = 0
lock = threading.Lock()


def timed(work: Callable[..., Any], *given: Any) -> Any:
    global total, running
    began = time.perf_counter()
    with lock:
        running += 1
    try:
        return work(*given)
    finally:
        with lock:
            total += time.perf_counter() - began
            running -= 1


class TimedCursor(sqlite3.Cursor):
    """Rows are computed while they are fetched."""

    def execute(self, *given: Any) -> TimedCursor:
        timed(super().execute, *given)
        return self

    def fetchall(self) -> list[Any]:
        return list(timed(super().fetchall))

    def fetchmany(self, *given: Any) -> list[Any]:
        return list(timed(super().fetchmany, *given))


class TimedConnection(sqlite3.Connection):
    """A connection whose cursors are timed."""

    def cursor(self, factory: Any = TimedCursor) -> Any:
        return super().cursor(factory)


def time_connections(is_watched: Callable[[str], bool]) -> None:
    """From now on, time the connections to these databases."""
    connect = sqlite3.connect

    def connect_timed(database: Any, *given: Any, **more: Any) -> sqlite3.Connection:
        if is_watched(str(database)):
            more["factory"] = TimedConnection
        connection: sqlite3.Connection = connect(database, *given, **more)
        return connection

    sqlite3.connect = connect_timed  # type: ignore[assignment]


def report_to(path: Path) -> None:
    while True:
        unfinished = path.with_suffix(".part")
        unfinished.write_text(json.dumps((total, running)))
        unfinished.rename(path)
        time.sleep(0.2)


def main() -> int:
    config, report, watched = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    time_connections(lambda database: watched in database)
    threading.Thread(target=report_to, args=(report,), daemon=True).start()
    sys.argv = ["retriage", "--config", config]
    from console.__main__ import main as run

    return run() or 0


if __name__ == "__main__":
    sys.exit(main())
