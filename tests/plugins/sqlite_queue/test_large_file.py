"""A large queue is read through its index: the work for a page does not grow with the table."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine

from console.core.backend import PageRequest
from console.core.query import Filter, Sort, SortField
from console.sql.conditions import epoch_function
from console.sql.times import IsoText
from console.testing import NOON
from plugins.sqlite_queue import SqliteQueue
from plugins.sqlite_queue.prediction import taken_at_functions
from plugins.sqlite_queue.schema import ASYNC_TASKS_DDL
from tests.plugins.sqlite_queue import queue_files as files

LARGE, SMALL = 300_000, 20_000
Asked = tuple[str, Any]

FILL = """
WITH RECURSIVE n(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM n WHERE n + 1 < ?)
INSERT INTO async_tasks SELECT printf('task-%08d', n), 'ANALYZE_EXECUTED', 'e' || n,
  CASE WHEN n % 5000 = 7 THEN 'RUNNING' WHEN n % 10 = 0 THEN 'FAILED' WHEN n % 10 = 1 THEN 'PENDING' ELSE 'DONE' END,
  1 + n / 10 % 4, strftime('%Y-%m-%dT%H:%M:%S+00:00', 1780000000 + n * 7, 'unixepoch'), 'ERR_X: upstream ' || n % 9,
  strftime('%Y-%m-%dT%H:%M:%S+00:00', 1780000000 + n, 'unixepoch'),
  strftime('%Y-%m-%dT%H:%M:%S+00:00', 1780000000 + n * 3, 'unixepoch') FROM n
"""


def built(path: Path, rows: int) -> Path:
    table, index, _ = ASYNC_TASKS_DDL.split(";")
    files.create(path, table)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute(FILL, (rows,))
        connection.execute(index)
    return path


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("large") / "queue.db", LARGE)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("small") / "queue.db", SMALL)


@pytest.fixture
def asked() -> Iterator[list[Asked]]:
    """Every statement a backend executes."""
    seen: list[Asked] = []

    def note(_connection: object, _cursor: object, sql: str, parameters: Any, _context: object, _many: bool) -> None:
        if not sql.startswith("PRAGMA"):
            seen.append((sql, parameters))

    event.listen(Engine, "before_cursor_execute", note)
    yield seen
    event.remove(Engine, "before_cursor_execute", note)


def driver(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path)
    time = IsoText()
    for name, function in {**time.functions, **epoch_function(time), **taken_at_functions()}.items():
        connection.create_function(name, 1, function, deterministic=True)
    return connection


def steps(path: Path, asked: list[Asked]) -> int:
    """What SQLite's virtual machine does for these statements, in hundreds of its steps."""
    count = 0

    def tick() -> int:
        nonlocal count
        count += 1
        return 0

    with closing(driver(path)) as connection:
        connection.set_progress_handler(tick, 100)
        for sql, parameters in asked:
            connection.execute(sql, parameters).fetchall()
    return count


def plan(path: Path, asked: list[Asked]) -> list[str]:
    with closing(driver(path)) as connection:
        return [
            detail for sql, parameters in asked
            for *_, detail in connection.execute(f"EXPLAIN QUERY PLAN {sql}", parameters)
        ]


def first_page(backend: SqliteQueue) -> None:
    assert len(backend.page(PageRequest(Filter(), NOON)).items) == 100


def next_page(backend: SqliteQueue) -> None:
    cursor = backend.page(PageRequest(Filter(), NOON)).next
    assert len(backend.page(PageRequest(Filter(), NOON, after=cursor)).items) == 100


def last_page(backend: SqliteQueue) -> None:
    assert len(backend.page(PageRequest(Filter(), NOON, backward=True)).items) == 100


def terminal_page(backend: SqliteQueue) -> None:
    assert len(backend.page(PageRequest(Filter.parse("condition:terminal"), NOON)).items) == 100


def unknown_page(backend: SqliteQueue) -> None:
    assert not backend.page(PageRequest(Filter.parse("condition:unknown"), NOON)).items


def capped_counts(backend: SqliteQueue) -> None:
    assert backend.counts(Filter.parse("condition:failed,terminal,retrying,unknown"), NOON, 300)


def single_items(backend: SqliteQueue) -> None:
    keys = [item.key for item in backend.page(PageRequest(Filter(), NOON)).items]
    assert len(backend.items(keys, NOON)) == 100


@pytest.mark.parametrize(
    "read", [first_page, next_page, last_page, terminal_page, unknown_page, capped_counts, single_items]
)
def test_reading_does_not_grow_with_the_table(
    large: Path, small: Path, asked: list[Asked], read: Callable[[SqliteQueue], None]
) -> None:
    read(files.open_queue(large))
    searched = plan(large, asked)
    assert searched
    assert not [detail for detail in searched if detail.startswith("SCAN async_tasks")], "\n".join(searched)
    of_large = steps(large, asked)
    asked.clear()
    read(files.open_queue(small))
    of_small = steps(small, asked)
    assert of_large <= 1.2 * of_small + 20, "fifteen times the rows, the same work"
    assert of_large < LARGE / 100, "less than a step a row"


@pytest.mark.parametrize("field", sorted(set(SortField) - {SortField.BACKEND}))
def test_other_sorts_find_rows_by_status_and_fetch_them_last(large: Path, asked: list[Asked], field: SortField) -> None:
    """No walk along another index per status, and no sorter full of rows."""
    backend = files.open_queue(large)
    asked.clear()
    page = backend.page(PageRequest(Filter(), NOON, Sort(field)))
    assert len(page.items) == 100
    searched = plan(large, asked)
    tables = [detail for detail in searched if "async_tasks" in detail and "MULTI" not in detail]
    status, rows = "INDEX idx_async_tasks_status_next_run", "USING INTEGER PRIMARY KEY (rowid=?)"
    assert all(status in detail or rows in detail for detail in tables), "\n".join(searched)
    assert sum(rows in detail for detail in tables) == 1, "\n".join(searched)


def test_the_steps_are_counted(large: Path) -> None:
    """The measure itself: a statement that reads the table is seen to."""
    assert steps(large, [("SELECT count(*) FROM async_tasks WHERE +last_error = 'x'", ())]) > LARGE / 100
    assert plan(large, [("SELECT count(*) FROM async_tasks WHERE +last_error = 'x'", ())]) == ["SCAN async_tasks"]
