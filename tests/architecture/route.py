"""The modules below the screens that run from `r` to the UPDATE, and from a fetched row to its line in `retriage list`.

`python -m tests.architecture.route` prints them with their functions. docs/exercises.md has the numbers.
"""

from __future__ import annotations

import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from types import FrameType
from typing import Any

from console.__main__ import AppContext
from console.cli.parser import parse
from console.core.backend import Action, Operation
from console.core.confirm import Confirmation
from console.core.item import ItemKey
from console.core.plan import Marked
from console.core.session import Session
from plugins.sqlite_queue.schema import ASYNC_TASKS_DDL

ROOT = Path(__file__).parents[2]
Route = dict[str, set[str]]
"""Module → the functions that ran in it."""


class _Tracer:
    """Notes which of our functions are called: from the first call of one on, and until the call of another."""

    def __init__(self, *, since: str = "", until: str = "") -> None:
        self.route: Route = {}
        self._runs, self._since, self._until = not since, since, until

    def __call__(self, frame: FrameType, event: str, _argument: Any) -> None:
        code = frame.f_code
        if event != "call":
            return
        if self._since and code.co_qualname == self._since:
            self._runs, self._since = True, ""
        if not self._runs:
            return
        path = Path(code.co_filename)
        if path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in ("console", "plugins"):
            self.route.setdefault(str(path.relative_to(ROOT)), set()).add(code.co_qualname)
        if self._until and code.co_qualname == self._until:
            self._runs = False


def _traced(do: Callable[[], object], tracer: _Tracer) -> Route:
    sys.setprofile(tracer)
    try:
        do()
    finally:
        sys.setprofile(None)
    return tracer.route


@contextmanager
def _place() -> Iterator[Path]:
    """A config with one SQLite queue of a few failed tasks, and a trail."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with closing(sqlite3.connect(folder / "queue.db")) as database:
            database.executescript(ASYNC_TASKS_DDL)
            database.executemany(
                "INSERT INTO async_tasks VALUES (?, 'ANALYZE_EXECUTED', ?, 'FAILED', 1, '2026-01-01T00:00:00+00:00',"
                " 'ERR_TIMEOUT: timed out', '2026-01-01T00:00:00+00:00', '2026-01-01T00:00:00+00:00')",
                [(f"t{n}", f"e{n}") for n in range(4)],
            )
            database.commit()
        config = folder / "config.yaml"
        config.write_text(
            f"console:\n  operator: ann\n  trail: sqlite:///{folder}/trail.db\n"
            f"history:\n  url: sqlite:///{folder}/history.db\n"
            f"backends:\n  mail: {{plugin: sqlite_queue, dialect: async_tasks, url: 'sqlite:///{folder}/queue.db'}}\n"
        )
        yield config


@contextmanager
def _context(config: Path, *command: str) -> Iterator[AppContext]:
    context = AppContext(parse(["--config", str(config), *command], "0"))
    try:
        yield context
    finally:
        context.close()


def _requeue(session: Session, number: int) -> None:
    operations = session.operations
    assert operations is not None
    plan = operations.propose(Marked((ItemKey("mail", (f"t{number}",)),)), Operation(Action.REQUEUE))
    operations.record_plan(plan)
    done = operations.carry_out(plan, Confirmation(session.who, session.origin, "to see the route", 1), session.stop)
    assert done.counts == {"applied": 1}


def to_the_update() -> Route:
    """From the plan to the guarded UPDATE, in a process that has carried out an override before."""
    with _place() as config, _context(config, "trail", "list") as context:
        session = context.session()
        _requeue(session, 0)
        return _traced(lambda: _requeue(session, 1), _Tracer(until="SqliteGuard._whole"))


def to_the_line() -> Route:
    """From the first rows that were fetched to the printed table, in a process that has printed it before."""
    with _place() as config, _context(config, "list", "--format", "table") as context, redirect_stdout(StringIO()):
        context.run_command()
        return _traced(context.run_command, _Tracer(since="Reader._as_page"))


def main() -> None:
    for title, route in (("From r to the UPDATE", to_the_update()), ("From a row to its line", to_the_line())):
        sys.stdout.write(f"{title}: {len(route)} modules\n")
        for module in sorted(route):
            sys.stdout.write(f"  {module}: {', '.join(sorted(route[module]))}\n")


if __name__ == "__main__":
    main()
