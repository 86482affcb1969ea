"""The sandbox world: building it, against raw executemany of the same rows into the same tables."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from benchmarks.data import CACHE
from benchmarks.measure import Result, compare
from console.cli.context import DemoOptions
from console.demo.build import open_demo

Table = tuple[str, list[tuple[Any, ...]]]


def cases(quick: bool) -> Iterator[Result]:
    scale = 100_000 if quick else 1_000_000
    world, raw = CACHE / "world", CACHE / "world-raw"
    _build(world, scale)
    stores = {path.name: _read(path) for path in sorted(world.glob("*.db"))}
    yield compare(
        f"demo --scale {scale}", 3.0, lambda: _build(world, scale), lambda: _insert(raw, stores),
        turns=3 if quick else 1, note="against executemany of the same rows, in one transaction a file",
    )
    for folder in (world, raw):
        shutil.rmtree(folder)


def _build(folder: Path, scale: int) -> None:
    with ExitStack() as keep:
        open_demo(DemoOptions(str(folder), scale, 1, reset=True), lambda *_: None, keep)


def _read(path: Path) -> tuple[list[str], list[Table]]:
    """The statements that made a file, and all rows of its tables."""
    with closing(sqlite3.connect(path)) as connection:
        connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        made = connection.execute("SELECT name, type, sql FROM sqlite_master WHERE sql NOT NULL").fetchall()
        tables = [name for name, kind, _ in made if kind == "table"]
        rows = [(name, connection.execute(f"SELECT * FROM {name}").fetchall()) for name in tables]
    return [sql for _, _, sql in made], rows


def _insert(folder: Path, stores: dict[str, tuple[list[str], list[Table]]]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, (statements, tables) in stores.items():
        with closing(sqlite3.connect(folder / name, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous = OFF")
            for statement in statements:
                connection.execute(statement)
            connection.execute("BEGIN")
            for table, rows in tables:
                if rows:
                    marks = ", ".join("?" * len(rows[0]))
                    connection.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
            connection.execute("COMMIT")
