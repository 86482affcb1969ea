"""Bad input, one clear fault or note each: rows that hold anything, files that are none, text that is no text."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
import tracemalloc
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from console.core.action_rules import NOT_STORABLE
from console.core.backend import Operation, PageRequest
from console.core.excerpt import GAP, LIMIT
from console.core.faults import BackendBusy, BackendFault, Unreachable, WrongSchema
from console.core.item import Condition, ItemKey
from console.core.ports import Never
from console.core.query import Filter, Sort, SortField
from console.testing import ALL, NOON
from plugins.sqlite_queue import SqliteQueue
from plugins.sqlite_queue.schema import ASYNC_TASKS_DDL, TASKS_DDL
from tests.plugins.sqlite_queue import queue_files as files

ROOT = Path(__file__).parents[3]
PAST = (NOON - timedelta(minutes=10)).isoformat()
FINE = {
    "task_id": "fine", "task_type": "T", "status": "FAILED", "attempts": 4, "next_run_at": PAST, "last_error": "ERR: x",
    "created_at": PAST, "updated_at": PAST,
}


def queue_with(path: Path, *rows: dict[str, Any], ddl: str = files.UNCHECKED) -> SqliteQueue:
    files.create(path, ddl)
    files.insert(path, "async_tasks", [FINE, *rows])
    return files.open_queue(path)


# --- rows -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("id", [7, 7.5, b"blob", b"7"])
def test_a_task_whose_id_is_no_text_is_shown_by_its_key(tmp_path: Path, id: Any) -> None:
    loose = files.UNCHECKED.replace("task_id TEXT", "task_id")
    with closing(queue_with(tmp_path / "q.db", FINE | {"task_id": id, "last_error": "ERR: mine"}, ddl=loose)) as queue:
        (key,) = [item.key for item in queue.page(PageRequest(ALL, NOON)).items if item.key.id != "fine"]
        detail = queue.item(key, NOON)
        assert (detail.item.key, detail.error, dict(detail.native)["status"]) == (key, "ERR: mine", "FAILED")
        (drafts,) = queue.drafts([key], Sort(), Operation(), NOON, Never())
        assert [(draft.key, draft.skipped) for draft in drafts] == [(str(key), NOT_STORABLE)]


@pytest.mark.parametrize(
    ("changed", "condition", "note"),
    [
        ({"attempts": None}, Condition.FAILED, "attempts is NULL, read as 0"),
        ({"attempts": -7}, Condition.FAILED, "attempts is -7, read as 0"),
        ({"attempts": 2**62}, Condition.TERMINAL, None),
        ({"attempts": 1e30}, Condition.TERMINAL, "attempts is 1e+30, read as 9223372036854775807"),
        ({"attempts": 2.9}, Condition.FAILED, "attempts is 2.9, read as 2"),
        ({"attempts": "4 or so"}, Condition.TERMINAL, "attempts is '4 or so', read as 4"),
        ({"attempts": "٤"}, Condition.FAILED, "attempts is '٤', read as 0"),
        ({"attempts": b"4"}, Condition.TERMINAL, "attempts is b'4', read as 4"),
        ({"attempts": "0" * 30 + "4"}, Condition.TERMINAL, None),
        ({"status": None}, Condition.UNKNOWN, None),
        ({"status": "failed"}, Condition.UNKNOWN, None),
        ({"status": "PAUSED"}, Condition.UNKNOWN, None),
        ({"status": b"FAILED"}, Condition.UNKNOWN, None),
        ({"status": 5}, Condition.UNKNOWN, None),
        ({"status": "PENDING", "next_run_at": "soon"}, Condition.RETRYING, "next_run_at is not a time: 'soon'"),
        ({"status": "PENDING", "next_run_at": ""}, Condition.RETRYING, "next_run_at is not a time: ''"),
        ({"status": "PENDING", "next_run_at": "2026-02-30T00:00:00+00:00"}, Condition.RETRYING,
         "next_run_at is not a time: '2026-02-30T00:00:00+00:00'"),
        ({"status": "PENDING", "next_run_at": "9999-12-31T23:59:59-01:00"}, Condition.RETRYING,
         "next_run_at is not a time: '9999-12-31T23:59:59-01:00'"),
        ({"status": "RUNNING", "updated_at": 12}, Condition.RUNNING, "updated_at is not a time: '12'"),
        ({"status": "RUNNING", "updated_at": None}, Condition.RUNNING, None),
        ({"created_at": b"\xff"}, Condition.TERMINAL, r"created_at is not a time: '\udcff'"),
        ({"created_at": "9999-12-31T23:59:59.999999+00:00"}, Condition.TERMINAL, None),
        ({"task_type": None, "last_error": None, "entity_id": None, "created_at": None}, Condition.TERMINAL, None),
        ({"task_id": None}, Condition.TERMINAL, None),
        ({"task_id": b"blob"}, Condition.TERMINAL, None),
        ({"task_id": ""}, Condition.TERMINAL, None),
        ({"last_error": b"\x00\xff"}, Condition.TERMINAL, None),
    ],
    ids=repr,
)
def test_an_odd_row_is_an_item_and_the_others_are_unaffected(
    tmp_path: Path, changed: dict[str, Any], condition: Condition, note: str | None
) -> None:
    backend = queue_with(tmp_path / "queue.db", {**FINE, "task_id": "odd", **changed})
    items = backend.page(PageRequest(ALL, NOON)).items
    (odd,) = [item for item in items if item.key.id != "fine"]
    assert odd.condition is condition
    assert odd.notes == (() if note is None else (note,))
    assert backend.item(odd.key, NOON).item == odd
    assert [item.condition for item in items if item.key.id == "fine"] == [Condition.TERMINAL]
    assert backend.counts(Filter.parse(f"condition:{condition}"), NOON)[condition].value == 1 + (condition is Condition.TERMINAL)
    if "status" in changed and condition is Condition.UNKNOWN:
        assert odd.verdict.why == f"unknown status {odd.native_status!r}"


def test_a_pending_task_without_a_time_is_never_taken(tmp_path: Path) -> None:
    lost = {"task_id": "lost", "task_type": "ANALYZE_EXECUTED", "status": "PENDING", "next_run_at": None}
    backend = queue_with(tmp_path / "queue.db", {**FINE, **lost})
    verdict = backend.item(ItemKey("queue", ("lost",)), NOON).item.verdict
    assert not verdict.will_run_again
    assert verdict.why == "its system ignores it: next_run_at is NULL"


def test_null_due_times_are_listed_on_every_page(tmp_path: Path) -> None:
    rows = [{**FINE, "task_id": f"n{n}", "next_run_at": None} for n in range(5)]
    backend = queue_with(tmp_path / "queue.db", *rows)
    request, seen = PageRequest(ALL, NOON, limit=2), []
    while True:
        page = backend.page(request)
        seen += [item.key.id for item in page.items]
        if page.next is None:
            break
        request = PageRequest(ALL, NOON, limit=2, after=page.next)
    assert seen == ["fine", "n4", "n3", "n2", "n1", "n0"]


TEXTS = ("task_id", "task_type", "entity_id", "status", "next_run_at", "last_error", "created_at", "updated_at")


@pytest.mark.parametrize("ddl", [files.UNCHECKED, files.WITHOUT_ROWID], ids=["rowid", "without-rowid"])
@pytest.mark.parametrize("column", TEXTS)
def test_text_that_is_not_utf8(tmp_path: Path, column: str, ddl: str) -> None:
    """In every column, the key too: listed, paged over, shown, streamed, found by filter and by key."""
    rows = [{**FINE, "task_id": f"t{n}", column: f"\udcff{n}\udc80"} for n in range(3)]
    backend = queue_with(tmp_path / "queue.db", *rows, ddl=ddl)
    for sort in (Sort(), Sort(SortField.ID), Sort(SortField.TYPE), Sort(SortField.UPDATED)):
        request, seen = PageRequest(ALL, NOON, sort, limit=1), []
        while True:
            page = backend.page(request)
            seen += page.items
            if page.next is None:
                break
            request = PageRequest(ALL, NOON, sort, limit=1, after=page.next)
        assert len(seen) == len({item.key for item in seen}) == 4
    for item in seen:
        assert backend.item(ItemKey.parse(str(item.key)), NOON).item == item
    assert sum(len(batch.rows) for batch in backend.errors(ALL, NOON, Never())) == 4
    wanted = {"task_type": "type~\udcff1", "last_error": "error~\udcff1", "task_id": "key~%FF1", "entity_id": "\udcff1"}
    if column in wanted:
        assert len(backend.page(PageRequest(Filter.parse(f"{wanted[column]} condition:*"), NOON)).items) == 1


def test_a_huge_error_costs_a_page_nothing(tmp_path: Path) -> None:
    size = 20_000_000
    backend = queue_with(tmp_path / "queue.db", {**FINE, "task_id": "huge", "last_error": "ERR: " + "x" * size})
    backend.page(PageRequest(ALL, NOON))
    tracemalloc.start()
    try:
        page = backend.page(PageRequest(ALL, NOON))
        for batch in backend.errors(ALL, NOON, Never()):
            assert all(len(error or "") <= LIMIT + len(GAP) for error, _ in batch.rows)
        assert not backend.page(PageRequest(Filter.parse("error~nothing condition:*"), NOON)).items
        detail = backend.item(ItemKey("queue", ("huge",)), NOON)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert max(len(item.error or "") for item in page.items) == LIMIT + len(GAP)
    assert len(detail.error or "") == 200_000
    assert peak < size / 10


# --- files ----------------------------------------------------------------------------------------------


def missing(path: Path) -> None:
    path.unlink(missing_ok=True)


def directory(path: Path) -> None:
    path.mkdir()


def no_database(path: Path) -> None:
    path.write_bytes(b"this is a text file, not a database, and long enough to have a header" * 20)


def empty(path: Path) -> None:
    path.touch()


def truncated(path: Path) -> None:
    files.create(path, ASYNC_TASKS_DDL)
    files.insert(path, "async_tasks", [{**FINE, "task_id": f"t{n}", "last_error": "x" * 500} for n in range(500)])
    path.write_bytes(path.read_bytes()[:8192])


def other_columns(path: Path) -> None:
    files.create(path, "CREATE TABLE async_tasks (id TEXT, state TEXT)")


def other_tables(path: Path) -> None:
    files.create(path, TASKS_DDL)


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize(
    ("make", "fault", "says"),
    [
        (missing, Unreachable, "there is no such file"),
        (directory, Unreachable, "this is a directory, not a database file"),
        (no_database, Unreachable, "the file is not an SQLite database"),
        (empty, WrongSchema, "there is no table 'async_tasks'"),
        (truncated, Unreachable, "the database file is damaged"),
        (other_columns, WrongSchema, "table 'async_tasks' has no column task_id, task_type, entity_id"),
        (other_tables, WrongSchema, "there is no table 'async_tasks'"),
    ],
)
def test_a_file_that_is_no_queue(
    tmp_path: Path, make: Any, fault: type[BackendFault], says: str, read_only: bool
) -> None:
    path = tmp_path / "queue.db"
    make(path)
    backend = files.open_queue(path, read_only=read_only)
    with pytest.raises(fault) as raised:
        backend.page(PageRequest(ALL, NOON))
    assert says in str(raised.value)
    assert str(path) in str(raised.value)
    if make is missing:
        assert not path.exists(), "nothing is created by looking"


def test_a_database_that_comes_back_is_found_again(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    backend = files.open_queue(path)
    with pytest.raises(Unreachable):
        backend.counts(ALL, NOON)
    files.create(path, ASYNC_TASKS_DDL)
    assert sum(count.value for count in backend.counts(ALL, NOON).values()) == 0


def test_a_locked_file_is_named_as_such(tmp_path: Path) -> None:
    path = files.create(tmp_path / "queue.db", ASYNC_TASKS_DDL)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        backend = files.open_queue(path, deadline=timedelta(milliseconds=50))
        with pytest.raises(BackendBusy, match="another process holds its lock"):
            backend.page(PageRequest(ALL, NOON))
    assert backend.page(PageRequest(ALL, NOON)).items == ()


# --- reading leaves no trace ----------------------------------------------------------------------------

READ = """
import os, sys
from console.core.backend import PageRequest
from console.core.ports import Never
from console.testing import ALL, NOON
from tests.plugins.sqlite_queue.queue_files import open_queue
from pathlib import Path
backend = open_queue(Path(sys.argv[1]), read_only=True)
if sys.argv[2:]:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
page = backend.page(PageRequest(ALL, NOON))
assert sum(count.value for count in backend.counts(ALL, NOON).values()) == len(page.items)
assert sum(len(batch.rows) for batch in backend.errors(ALL, NOON, Never())) == len(page.items)
backend.item(page.items[0].key, NOON)
backend.close()
print(len(page.items))
"""


def read_elsewhere(path: Path, *, as_nobody: bool) -> subprocess.CompletedProcess[str]:
    """In a process of its own, as one who owns nothing here."""
    command = [sys.executable, "-c", READ, str(path), *(["as nobody"] if as_nobody else [])]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.mark.parametrize("wal", [False, True], ids=["journal", "quiet-wal"])
@pytest.mark.parametrize("as_nobody", [False, True], ids=["owner", "no-right-to-write"])
def test_reading_only_leaves_no_trace(wal: bool, as_nobody: bool) -> None:
    if as_nobody and os.geteuid() != 0:
        pytest.skip("only root can become somebody else")
    with TemporaryDirectory() as folder:  # pytest's own folders let nobody else in
        path = files.create(Path(folder) / "queue.db", files.UNCHECKED, wal=wal)
        files.insert(path, "async_tasks", [FINE])
        Path(folder).chmod(0o555)
        before = files.file_hash(path)
        done = read_elsewhere(path, as_nobody=as_nobody)
        assert (done.stdout, done.stderr) == ("1\n", "")
        assert files.file_hash(path) == before
        assert set(before) == {"queue.db"}


def test_a_live_wal_is_read_and_left_alone(tmp_path: Path) -> None:
    """Rows that are only in the -wal are seen, and new ones as they come."""
    path = files.create(tmp_path / "queue.db", files.UNCHECKED, wal=True)
    with closing(sqlite3.connect(path, isolation_level=None)) as worker:
        worker.execute("PRAGMA wal_autocheckpoint = 0")
        add = "INSERT INTO async_tasks (task_id, status, attempts, next_run_at) VALUES (?, 'FAILED', 4, ?)"
        worker.execute(add, ("in the wal", PAST))
        before = {name: digest for name, digest in files.file_hash(path).items() if not name.endswith("-shm")}
        backend = files.open_queue(path, read_only=True)
        assert [item.key.id for item in backend.page(PageRequest(ALL, NOON)).items] == ["in%20the%20wal"]
        assert {n: d for n, d in files.file_hash(path).items() if not n.endswith("-shm")} == before
        worker.execute(add, ("later", PAST))
        assert len(backend.page(PageRequest(ALL, NOON)).items) == 2
        backend.close()


def test_cancel_gives_up_what_is_being_read(tmp_path: Path) -> None:
    path = files.create(tmp_path / "queue.db", files.UNINDEXED)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "WITH RECURSIVE n(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM n WHERE n < 100000)"
            " INSERT INTO async_tasks (task_id, status, attempts, next_run_at, last_error)"
            " SELECT n, 'FAILED', 4, '', hex(randomblob(40)) FROM n"
        )
    backend = files.open_queue(path)
    backend.page(PageRequest(ALL, NOON, limit=1))
    slow = Filter.parse("error~nowhere -error~zz condition:*")

    def count_until_cancelled() -> None:
        for _ in range(200):
            backend.counts(slow, NOON, None)

    over = threading.Event()

    def keep_cancelling() -> None:
        while not over.wait(0.001):
            backend.cancel()

    canceller = threading.Thread(target=keep_cancelling)
    canceller.start()
    try:
        with pytest.raises(BackendFault, match="was stopped"):
            count_until_cancelled()
    finally:
        over.set()
        canceller.join()
    assert backend.counts(slow, NOON, None)[Condition.TERMINAL].value == 0
