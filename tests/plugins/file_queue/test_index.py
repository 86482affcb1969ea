"""The index reads only what changed, sees every change, and can be used from several threads."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from console.core.backend import Authority, Operation, PageRequest
from console.core.faults import DeadlineExceeded
from console.core.item import Condition
from console.core.query import Filter
from console.testing import ALL, NOON
from plugins.file_queue import FileQueue
from plugins.file_queue.folder import Folder
from plugins.file_queue.index import _Limit
from tests.depth import campaign
from tests.plugins.file_queue import folders

MANY = 100_000


@contextmanager
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    names: list[str] = []
    real = Folder.read

    def read(self: Folder, name: str) -> bytes:
        names.append(name)
        return real(self, name)

    with monkeypatch.context() as patch:
        patch.setattr(Folder, "read", read)
        yield names


def settle() -> None:
    """Wait longer than the clock tick within which a new file is read again."""
    time.sleep(0.12)


def ids(backend: FileQueue, query: str = "condition:*") -> set[str]:
    return {item.key.id for item in backend.page(PageRequest(Filter.parse(query), NOON, limit=1000)).items}


def test_only_what_changed_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = folders.make(tmp_path / "jobs")
    for n in range(50):
        folders.write_task(base, f"t{n}", error="boom")
    settle()
    backend = folders.open_queue(base)
    with opened(monkeypatch) as first:
        assert len(ids(backend)) == 50
    with opened(monkeypatch) as second:
        assert len(ids(backend)) == 50
    folders.write_task(base, "t1", "SUCCESS", attempts=1)
    folders.write_result(base, "t2", "FAILED", "another error")
    (base / "queue" / "t3.done").unlink()
    folders.write_task(base, "new", "PENDING")
    with opened(monkeypatch) as third:
        assert len(ids(backend)) == 50
        assert ids(backend, "error~another") == {"t2"}
    assert len(first) == 100
    assert second == []
    assert set(third) == {"t1.done", "t1.result", "t2.done", "t2.result", "new.task"}


def test_a_rewrite_of_the_same_size_within_one_clock_tick_is_seen(tmp_path: Path) -> None:
    base = folders.make(tmp_path / "jobs")
    path = folders.write_task(base, "a", attempts=1)
    backend = folders.open_queue(base)
    for attempts in range(2, 9):
        path.write_text(json.dumps(folders.fields("a", attempts=attempts)))
        assert backend.page(PageRequest(ALL, NOON)).items[0].attempts == attempts


@campaign
def test_a_hundred_thousand_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second listing opens no file; pages, counts and a requeue afterwards open only what they touch. Finished tasks
    are read in full once, when somebody asks for them."""
    base = folders.make(tmp_path / "jobs")
    done = {name: value for name, value in folders.fields("", "SUCCESS").items() if name != "id"}
    for n in range(MANY):
        path = base / "queue" / f"{n}.done"
        if n % 1000 == 0:
            folders.write_task(base, str(n), "FAILED", error="boom")
        elif n % 1000 == 1:
            path.write_text(json.dumps(done))
            first_of_these = path
        else:
            path.hardlink_to(first_of_these)
    settle()
    backend = folders.open_queue(base)
    with opened(monkeypatch) as first:
        assert len(ids(backend, "condition:terminal")) == MANY // 1000
    with opened(monkeypatch) as later:
        counts = backend.counts(ALL, NOON, None)
        assert len(ids(backend, "condition:terminal")) == MANY // 1000
    with opened(monkeypatch) as finished:
        page = backend.page(PageRequest(ALL, NOON, limit=100))
        assert page.next is not None
    with opened(monkeypatch) as again:
        assert len(backend.page(PageRequest(ALL, NOON, after=page.next, limit=100)).items) == 100
    assert counts[Condition.DONE].value == MANY - MANY // 1000
    assert len(first) == MANY + MANY // 1000
    assert later == again == []
    assert len(finished) == MANY - MANY // 1000
    changes = folders.plan(backend, "0", "1000")
    backend.compare_and_set(changes, Operation(), Authority("ops", "test", None, "o1"))
    with opened(monkeypatch) as after:
        assert len(ids(backend, "condition:terminal")) == MANY // 1000 - 2
    assert set(after) == {"0.task", "0.result", "1000.task", "1000.result"}


def test_many_deleted_files_cost_only_a_few_listings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A nightly clean-up of finished tasks must not slow down the next listing."""
    base = folders.make(tmp_path / "jobs")
    for n in range(400):
        folders.write_task(base, f"t{n}", "SUCCESS")
    backend = folders.open_queue(base)
    assert len(ids(backend)) == 400
    for n in range(100, 400):
        (base / "queue" / f"t{n}.done").unlink()
    listings = []
    real = os.scandir
    monkeypatch.setattr("plugins.file_queue.index.os.scandir", lambda fd: listings.append(fd) or real(fd))
    assert len(ids(backend)) == 100
    assert len(listings) < 10


def test_cancel_stops_reading_and_keeps_what_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = folders.make(tmp_path / "jobs")
    for n in range(600):
        folders.write_task(base, f"t{n}")
    settle()
    backend = folders.open_queue(base)
    real, reads = Folder.read, []

    def read(self: Folder, name: str) -> bytes:
        reads.append(name)
        if len(reads) == 100:
            backend.cancel()
        return real(self, name)

    monkeypatch.setattr(Folder, "read", read)
    with pytest.raises(DeadlineExceeded):
        backend.counts(ALL, NOON)
    read_before = len(reads)
    assert 100 <= read_before < 600
    assert len(ids(backend)) == 600
    assert len(reads) == 600


def test_reading_from_threads_while_files_move(tmp_path: Path) -> None:
    """Every page has every task, whichever name its file has at that moment."""
    base = folders.make(tmp_path / "jobs")
    wanted = {f"t{n}" for n in range(30)}
    for id in wanted:
        folders.write_task(base, id, "PENDING", attempts=1)
    backend = folders.open_queue(base)
    over = threading.Event()
    missed: list[set[str]] = []

    def look() -> None:
        while not over.is_set():
            seen = {item.key.id for item in backend.page(PageRequest(ALL, NOON, limit=1000)).items}
            if seen != wanted:
                missed.append(wanted - seen)

    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    end = time.monotonic() + 1
    queue = base / "queue"
    while time.monotonic() < end:
        for id in wanted:
            (queue / f"{id}.task").rename(queue / f"{id}.running")
        for id in wanted:
            (queue / f"{id}.running").rename(queue / f"{id}.task")
    over.set()
    for thread in threads:
        thread.join()
    assert missed == []


def test_tasks_that_move_while_the_folder_is_first_listed_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One is renamed between the listing and its read, one is renamed so that the listing misses it."""
    base = folders.make(tmp_path / "jobs")
    for id in ("stays", "moves", "passes"):
        folders.write_task(base, id, "PENDING")
    real = os.scandir
    listings: list[int] = []

    @contextmanager
    def moving(fd: int) -> Iterator[Iterator[os.DirEntry[str]]]:
        with real(fd) as entries:
            listed = list(entries)
        if not listings:
            listed = [entry for entry in listed if entry.name != "passes.task"]
            for id in ("moves", "passes"):
                (base / "queue" / f"{id}.task").rename(base / "queue" / f"{id}.running")
        listings.append(fd)
        yield iter(listed)

    monkeypatch.setattr("plugins.file_queue.index.os.scandir", moving)
    assert ids(folders.open_queue(base)) == {"stays", "moves", "passes"}


def test_a_new_task_does_not_shift_the_pages_after_a_cursor(tmp_path: Path) -> None:
    base = folders.make(tmp_path / "jobs")
    for n in range(10):
        folders.write_task(base, f"t{n}", created_at=(NOON - timedelta(minutes=n)).isoformat())
    backend = folders.open_queue(base)
    first = backend.page(PageRequest(ALL, NOON, limit=4))
    folders.write_task(base, "newer", created_at=NOON.isoformat())
    second = backend.page(PageRequest(ALL, NOON, after=first.next, limit=4))
    assert [item.key.id for item in (*first.items, *second.items)] == [f"t{n}" for n in range(8)]


def test_a_task_listed_under_two_names_that_are_both_gone_is_searched_again(tmp_path: Path) -> None:
    """A listing during renames may contain two names of one task, both of which are gone afterwards."""
    base = folders.make(tmp_path)
    for suffix in ("task", "running"):
        folders.write_task(base, "a", "PENDING", suffix=suffix)
    index = folders.open_queue(base)._index
    with Folder(base / "queue") as queue, Folder(base / "results") as results:
        listed = index._listed(queue, _Limit(index))["a"]
        for path in (base / "queue").iterdir():
            path.unlink()
        assert len(listed) == 2
        assert index._read(queue, results, "a", listed, whole=True) is None
