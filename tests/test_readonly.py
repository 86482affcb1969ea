"""Audit mode: two layers, each sufficient alone. Every write path is tried; not a byte changes on disk."""

from __future__ import annotations

import inspect
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from console.core.backend import Action, Authority, Change, Operation, PageRequest, RunsEngine
from console.core.faults import BackendFault, Fault, ReadOnlyRefused
from console.core.item import ItemKey
from console.core.operations import Operations
from console.core.override import OverrideState, Request
from console.core.query import Filter
from console.sql.sqlite import SqliteDatabase, driver_of
from tests.faults.world import (
    KEEP,
    NOON,
    ORIGIN,
    RESET,
    WHO,
    QueueFile,
    World,
    confirm,
    hashes,
    matching,
    world_in,
)
from tests.patience import PATIENCE

ROOT = Path(__file__).parent.parent


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A queue and a trail with everything in them: a finished override, a stopped one, an unresolved one, an open plan."""

    class Crash(BaseException):
        pass

    def crash(point: str) -> None:
        if point == "after_write":
            raise Crash

    with world_in(tmp_path) as made:
        made.queue.fill(30)
        console = made.console()
        plan = console.propose(matching("condition:terminal", limit=10), KEEP)
        console.carry_out(plan, confirm(plan))
        console.propose(matching("condition:terminal", limit=5), KEEP)
        broken = made.console(reach=crash)
        plan = broken.propose(matching("condition:terminal", limit=10), KEEP)
        with pytest.raises(Crash):
            broken.carry_out(plan, confirm(plan))
        made.close()
        made._open.clear()
        made.clock.tick(timedelta(seconds=61))
        yield made


def attempts(console: Operations) -> dict[str, Callable[[], Any]]:
    """Every public way into a write of `Operations`, with arguments that would work if it were allowed."""
    trail = console.trail
    overrides = trail.overrides()
    finished = next(o for o in overrides if o.state is OverrideState.FINISHED)
    unresolved = next(o for o in overrides if o.state is not OverrideState.FINISHED)
    with closing(sqlite3.connect(f"file:{trail.place}?mode=ro&immutable=1", uri=True)) as trail_file:  # type: ignore[attr-defined]
        (open_plan,) = trail_file.execute("SELECT id FROM plan WHERE id NOT IN (SELECT plan_id FROM override_state)").fetchone()
    plan = trail.plan(open_plan)
    return {
        "carry_out": lambda: console.carry_out(plan, confirm(plan)),
        "resume": lambda: console.resume(unresolved.override_id, WHO, ORIGIN),
        "settle_unresolved": lambda: console.settle_unresolved(WHO, ORIGIN),
        "undo": lambda: console.undo(finished.override_id),
        "stop": lambda: console.stop(unresolved.override_id),
        "pause": lambda: console.pause(unresolved.override_id),
        "proceed": lambda: console.proceed(unresolved.override_id),
        "record_plan": lambda: console.record_plan(plan),
        "recorded_plan": lambda: console.recorded_plan(plan.id),
        "require_writable": console.require_writable,
    }


READING = {
    "propose", "foreseen", "results", "watch", "follow", "resume_form", "backends", "trail", "limits", "rules", "budgets",
    "read_only", "listen", "recording_refusals", "writable_backend",
}
"""What `Operations` offers that writes nothing in audit mode."""


def test_every_way_into_a_write_is_enumerated(world: World) -> None:
    console = world.console(read_only=True)
    public = {name for name, _ in inspect.getmembers(console) if not name.startswith("_")}
    assert public == attempts(console).keys() | READING


def test_the_core_refuses_every_write(world: World) -> None:
    before = hashes(world.folder)
    console = world.console(read_only=True)
    for name, attempt in attempts(console).items():
        with pytest.raises(ReadOnlyRefused):
            attempt()
        assert hashes(world.folder) == before, name
    assert len(console.trail.unresolved()) == 1, "what is unresolved is shown, and stays so"


def test_the_core_alone_is_sufficient(world: World) -> None:
    """Were the connections writable, the core would still refuse."""
    console = Operations(
        {"queue": world.queue.open(clock=world.clock)}, world.trail(), world.clock, read_only=True, owner="x"
    )
    rows = world.queue.rows()
    ways = attempts(console)
    with closing(sqlite3.connect(world.trail_file)) as trail_file:
        records = trail_file.execute("SELECT count(*) FROM record").fetchone()
    for attempt in ways.values():
        with pytest.raises(ReadOnlyRefused):
            attempt()
    with closing(sqlite3.connect(world.trail_file)) as trail_file:
        assert trail_file.execute("SELECT count(*) FROM record").fetchone() == records
    assert world.queue.rows() == rows


def test_the_connections_alone_are_sufficient(world: World) -> None:
    """Were the core not to refuse, neither the queue nor the trail could be written."""
    before = hashes(world.folder)
    console = world.console(read_only=True)
    console.read_only = False
    for name, attempt in attempts(console).items():
        if name != "require_writable":
            with pytest.raises(Fault):
                attempt()
        assert hashes(world.folder) == before, name
    with pytest.raises(Fault):
        console.propose(matching("condition:terminal"), RESET)
    assert hashes(world.folder) == before


def test_a_preview_reads_and_writes_nothing(world: World) -> None:
    before = hashes(world.folder)
    plan = world.console(read_only=True).propose(matching("condition:terminal"), RESET)
    assert plan.changes == 10
    assert hashes(world.folder) == before


def test_the_backend_refuses_a_write_of_its_own(world: World) -> None:
    before = hashes(world.folder)
    backend = world.queue.open(read_only=True, clock=world.clock)
    change = Change("1", (ItemKey("queue", ("t000001",)),), ("FAILED", 4, "", ""), ("PENDING", 0, "", ""))
    with pytest.raises(ReadOnlyRefused):
        backend.compare_and_set([change], Operation(Action.REQUEUE), Authority("ann", "why", None, "o1"))
    assert isinstance(backend, RunsEngine)
    with pytest.raises(ReadOnlyRefused):
        backend.run(lambda *_: None, world.clock, _Once(), lambda _: None)
    backend.close()
    assert hashes(world.folder) == before


class _Once:
    looked = False

    @property
    def requested(self) -> bool:
        self.looked, looked = True, self.looked
        return looked


def test_the_trail_refuses_every_write(world: World) -> None:
    before = hashes(world.folder)
    trail = world.trail(read_only=True)
    override = trail.overrides()[0]
    plan = trail.plan(override.plan_id)
    writes: list[Callable[[], object]] = [
        lambda: trail.add_blocks("p1", []),
        lambda: trail.seal(plan),
        lambda: trail.record_plan(plan, WHO, ORIGIN, NOON),
        lambda: trail.discard(plan.id),
        lambda: trail.begin("o1", plan, confirm(plan), "me", NOON),
        lambda: trail.take_over(override.override_id, "me", NOON, confirm(plan)),
        lambda: trail.intend(override.override_id, "me", {"backend": "queue", "ranges": [[0, 1]], "at": NOON.isoformat()}, NOON),
        lambda: trail.conclude(override.override_id, "me", 1, [], {}, NOON),
        lambda: trail.beat(override.override_id, "me", NOON),
        lambda: trail.ask(override.override_id, Request.STOP, WHO, ORIGIN),
        lambda: trail.mark(override.override_id, OverrideState.STOPPED, "", NOON),
        lambda: trail.refuse({}, NOON),
    ]
    for write in writes:
        with pytest.raises(ReadOnlyRefused):
            write()
    assert trail.verify().ok
    assert hashes(world.folder) == before


def test_no_trail_is_created(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.queue.fill(3)
    console = world.console(read_only=True)
    assert console.trail.overrides() == []
    assert console.trail.unresolved() == []
    console.propose(matching("condition:terminal"), KEEP)
    world.close()
    assert not world.trail_file.parent.exists()


# -- the raw connection ----------------------------------------------------------------------------------

RAW = [
    "UPDATE async_tasks SET status = 'PENDING'",
    "DELETE FROM async_tasks",
    "INSERT INTO async_tasks (task_id, next_run_at) VALUES ('x', '')",
    "REPLACE INTO async_tasks (task_id, next_run_at) VALUES ('t000001', '')",
    "UPDATE async_tasks SET status = 'PENDING' RETURNING task_id",
    "WITH x AS (SELECT 1) UPDATE async_tasks SET attempts = 0",
    "DROP TABLE async_tasks",
    "ALTER TABLE async_tasks ADD COLUMN x",
    "CREATE TABLE x (y)",
    "CREATE TEMP TABLE x (y)",
    "CREATE TEMP TRIGGER x AFTER INSERT ON async_tasks BEGIN SELECT 1; END",
    "CREATE TEMP VIEW x AS SELECT 1",
    "CREATE INDEX x ON async_tasks (attempts)",
    "CREATE VIRTUAL TABLE x USING fts5(y)",
    "ATTACH DATABASE '{folder}/other.db' AS other",
    "ATTACH DATABASE '{folder}/queue.db' AS again",
    "ATTACH DATABASE ':memory:' AS memory",
    "DETACH DATABASE main",
    "VACUUM",
    "VACUUM INTO '{folder}/copy.db'",
    "REINDEX",
    "ANALYZE_EXECUTED",
    "PRAGMA query_only = 0",
    "PRAGMA journal_mode = DELETE",
    "PRAGMA journal_mode = WAL",
    "PRAGMA user_version = 7",
    "PRAGMA application_id = 7",
    "PRAGMA writable_schema = 1",
    "PRAGMA wal_checkpoint(TRUNCATE)",
    "PRAGMA wal_checkpoint",
    "PRAGMA incremental_vacuum",
    "PRAGMA optimize",
    "PRAGMA auto_vacuum = 1",
    "PRAGMA page_size = 8192",
    "PRAGMA encoding = 'UTF-16'",
    "PRAGMA locking_mode = EXCLUSIVE",
    "PRAGMA synchronous = OFF",
    "PRAGMA temp_store_directory = '{folder}'",
    "PRAGMA wal_autocheckpoint = 1",
    "PRAGMA foreign_key_check",
    "PRAGMA schema_version = 3",
    "SELECT load_extension('x')",
    "SELECT * FROM pragma_journal_mode('DELETE')",
]


@pytest.mark.parametrize("sql", RAW)
def test_the_raw_connection_refuses(world: World, sql: str) -> None:
    before = hashes(world.folder)
    for path in (world.queue.path, world.trail_file):
        database = SqliteDatabase(path, read_only=True)
        statement = sql.format(folder=world.folder)
        if path == world.trail_file:
            statement = statement.replace("async_tasks", "record")
        with pytest.raises(BackendFault):
            database.fetch(statement, ())
        database.close()
        assert hashes(world.folder) == before


@pytest.mark.parametrize("journal", ["WAL", "DELETE"])
@pytest.mark.parametrize("mode", ["committed", "begun"])
def test_a_transaction_by_hand_writes_nothing(world: World, journal: str, mode: str) -> None:
    world.queue.script(f"PRAGMA journal_mode = {journal}")
    before = hashes(world.folder)
    database = SqliteDatabase(world.queue.path, read_only=True)
    with database._reader.connect() as connection:
        raw = driver_of(connection)
        raw.execute("BEGIN")
        with pytest.raises(sqlite3.DatabaseError):
            raw.execute("UPDATE async_tasks SET attempts = 0")
        if mode == "committed":
            raw.execute("COMMIT")
    with pytest.raises(ReadOnlyRefused), database.writing():
        pass
    database.close()
    assert hashes(world.folder) == before


# -- files ------------------------------------------------------------------------------------------------


def read_everything(console: Operations) -> None:
    backend = console.backends["queue"]
    every = Filter.parse("condition:*")
    page = backend.page(PageRequest(every, backend.now()))
    assert len(page.items) == 30
    backend.counts(every, backend.now())
    backend.item(page.items[0].key, backend.now())
    console.propose(matching("condition:terminal"), KEEP)
    console.trail.overrides()
    console.trail.unresolved()
    assert console.trail.verify().ok  # type: ignore[attr-defined]


def listing(folder: Path) -> set[str]:
    return {str(file.relative_to(folder)) for file in folder.rglob("*")}


def test_a_quiet_wal_database_is_left_as_it_is_without_stray_files(world: World) -> None:
    world.queue.script("PRAGMA wal_checkpoint(TRUNCATE)")
    assert not any(name.endswith(("-wal", "-shm")) for name in listing(world.folder))
    before, files = hashes(world.folder), listing(world.folder)
    read_everything(world.console(read_only=True))
    assert (hashes(world.folder), listing(world.folder)) == (before, files)
    world.close()
    assert (hashes(world.folder), listing(world.folder)) == (before, files)


def test_a_live_wal_is_read_and_left_as_it_is(world: World) -> None:
    with closing(sqlite3.connect(world.queue.path, isolation_level=None)) as writer:
        writer.execute("UPDATE async_tasks SET task_type = 'LIVE'")
        before = hashes(world.folder)
        assert (world.folder / "queue.db-wal").stat().st_size > 0
        console = world.console(read_only=True)
        read_everything(console)
        backend = console.backends["queue"]
        assert {item.type for item in backend.page(PageRequest(Filter.parse("condition:*"), backend.now())).items} == {"LIVE"}
        assert hashes(world.folder) == before
        console.backends["queue"].close()
        console.trail.close()  # type: ignore[attr-defined]
        assert hashes(world.folder) == before


@pytest.mark.parametrize("kept", [None, 1000, 32])
def test_what_a_crashed_writer_left_is_read_and_stays(tmp_path: Path, kept: int | None) -> None:
    """Whole, torn within its first transaction, or no more than begun: the log is somebody's only evidence."""
    queue, folder = QueueFile.create(tmp_path / "queue.db"), tmp_path / "crashed"
    queue.fill(5)
    folder.mkdir()
    with closing(sqlite3.connect(queue.path, isolation_level=None)) as writer:
        writer.execute("UPDATE async_tasks SET task_type = 'LIVE'")
        for name in ("queue.db", "queue.db-wal"):
            shutil.copy(tmp_path / name, folder)
    if kept:
        os.truncate(folder / "queue.db-wal", kept)
    before = hashes(folder)
    backend = QueueFile(folder / "queue.db").open(read_only=True)
    items = backend.page(PageRequest(Filter.parse("condition:*"), backend.now())).items
    assert [item.type for item in items] == ["ANALYZE_EXECUTED" if kept else "LIVE"] * 5
    backend.close()
    assert hashes(folder) == before


def test_a_quiet_database_that_comes_alive_is_seen(world: World) -> None:
    console = world.console(read_only=True)
    backend = console.backends["queue"]
    types = lambda: {item.type for item in backend.page(PageRequest(Filter.parse("condition:*"), backend.now())).items}  # noqa: E731
    assert types() == {"ANALYZE_EXECUTED"}
    with closing(sqlite3.connect(world.queue.path, isolation_level=None)) as writer:
        writer.execute("UPDATE async_tasks SET task_type = 'LIVE'")
        assert types() == {"LIVE"}
    assert types() == {"LIVE"}


AS_NOBODY = """
import os, sys
from pathlib import Path
from tests.test_readonly import read_everything
from tests.faults.world import *
from console.core.operations import Operations
from console.trail.store import open_trail
if os.getuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
folder = Path(sys.argv[1])
try:
    (folder / "probe").touch()
    sys.exit("this folder can be written")
except OSError:
    pass
clock = FrozenClock(NOON)
trail = open_trail(f"sqlite:///{folder}/state/trail.db", read_only=True, anchor=None, clock=clock)
console = Operations({"queue": QueueFile(folder / "queue.db").open(clock=clock, read_only=True)}, trail, clock, read_only=True)
read_everything(console)
print("read")
"""


@pytest.mark.parametrize("live", [False, True])
def test_in_a_folder_one_cannot_write(live: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="retriage-readonly-") as name:
        folder = Path(name)
        with world_in(folder) as world:
            world.queue.fill(30)
            console = world.console()
            plan = console.propose(matching("condition:terminal", limit=10), KEEP)
            console.carry_out(plan, confirm(plan))
        writers = [sqlite3.connect(path, isolation_level=None) for path in (world.queue.path, world.trail_file) if live]
        for writer in writers:
            writer.execute("CREATE TABLE live (x)")
        for file in (folder, *folder.rglob("*")):
            file.chmod(0o555 if file.is_dir() else 0o444)
        before, files = hashes(folder), listing(folder)
        ran = subprocess.run(
            [sys.executable, "-c", AS_NOBODY, str(folder)], cwd=ROOT, text=True, capture_output=True, timeout=PATIENCE,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        )
        assert (ran.stdout, ran.returncode) == ("read\n", 0), ran.stderr
        assert (hashes(folder), listing(folder)) == (before, files)
        for file in (folder, *folder.rglob("*")):
            file.chmod(0o755)
        for writer in writers:
            writer.close()


def test_a_rollback_journal_database_is_left_as_it_is(tmp_path: Path) -> None:
    queue = QueueFile.create(tmp_path / "old.db", wal=False)
    queue.fill(5)
    before, files = hashes(tmp_path), listing(tmp_path)
    backend = queue.open(read_only=True)
    assert len(backend.page(PageRequest(Filter.parse("condition:*"), backend.now())).items) == 5
    backend.close()
    assert (hashes(tmp_path), listing(tmp_path)) == (before, files)
