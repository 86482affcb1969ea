"""Every file in the folder is shown with the reason why it is no task; none is hidden, followed or deleted."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from console.core.backend import Operation, PageRequest, Severity
from console.core.faults import NoSuchItem, Unreachable
from console.core.item import Condition, ItemKey
from console.core.ports import Never
from console.core.query import Filter, Sort
from console.testing import ALL, NOON, FrozenClock
from plugins.file_queue import FileQueue
from plugins.file_queue.folder import LARGEST_FILE
from tests.plugins.file_queue import folders

Make = Callable[[Path], object]


def raw(content: bytes, name: str = "x.done") -> Make:
    return lambda queue: (queue / name).write_bytes(content)


def holding(suffix: str = "done", **given: Any) -> Make:
    fields = {**folders.fields("x"), **given}
    return lambda queue: (queue / f"x.{suffix}").write_text(json.dumps(fields))


def link_out(queue: Path) -> None:
    secret = queue.parent.parent / "secret.json"
    secret.write_text(json.dumps(folders.fields("x", func_path="SECRET")))
    (queue / "x.done").symlink_to(secret)


def sparse(queue: Path) -> None:
    with (queue / "x.done").open("wb") as file:
        file.truncate(LARGEST_FILE + 1)


def twice(queue: Path) -> None:
    folders.write_task(queue.parent, "x", "FAILED")
    folders.write_task(queue.parent, "x", "PENDING")


BROKEN: dict[str, tuple[Make, str]] = {
    "empty": (raw(b""), "its file is empty: its writer is still at work"),
    "blank": (raw(b" \n\t"), "its file is empty"),
    "half-written": (raw(b'{"id": "x", "status": "FAI'), "is not valid JSON"),
    "binary": (raw(bytes(range(128, 256))), "is not UTF-8 text"),
    "nul": (raw(b"\0" * 64), "is not valid JSON"),
    "a-list": (raw(b"[1, 2]"), "is not a JSON object"),
    "a-number": (raw(b"7"), "is not a JSON object"),
    "null": (raw(b"null"), "is not a JSON object"),
    "deep": (raw(b"[" * 200_000), "nested too deeply"),
    "huge-number": (raw(b'{"attempts": ' + b"9" * 5000 + b"}"), "is not valid JSON"),
    "too-large": (sparse, "larger than 16 MiB"),
    "symlink-out": (link_out, "is a symlink; symlinks are not followed"),
    "symlink-dangling": (lambda queue: (queue / "x.done").symlink_to("/nowhere"), "is a symlink"),
    "folder": (lambda queue: (queue / "x.done").mkdir(), "is a folder, not a file"),
    "pipe": (lambda queue: os.mkfifo(queue / "x.done"), "is a pipe, not a file"),
    "other-id": (holding(id="../../etc/passwd"), "another name than the id inside, '../../etc/passwd'"),
    "id-no-text": (holding(id=["x"]), "another name than the id inside"),
    "status-of-another-name": (holding("task", status="CANCELLED"), "named .task but its status is 'CANCELLED', which blocks the queue"),
    "pickled": (raw(b"\x80\x05\x95\x10"), "is pickled: only the serializers JSON and msgspec can be read"),
    "running-decided": (holding("running", status="SUCCESS"), "named .running but its status is 'SUCCESS'"),
    "status-unknown": (holding(status="ZZZ"), "its status is 'ZZZ'"),
    "status-missing": (raw(b'{"id": "x"}'), "its status is ''"),
    "status-a-list": (holding(status=["FAILED"]), "its status is"),
    "twice": (twice, "exists as .done and .task at the same time"),
    "no-state": (raw(b"{}", "x"), "is not a task file"),
    "two-interrupted-moves": (
        lambda queue: [raw(b"{}", f"x.done.{token * 12}.retriage")(queue) for token in "ab"], "several interrupted moves"
    ),
}


def only(backend: FileQueue) -> Any:
    (item,) = backend.page(PageRequest(ALL, NOON)).items
    return item


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return folders.make(tmp_path / "jobs")


@pytest.mark.parametrize(("make", "why"), BROKEN.values(), ids=BROKEN)
def test_shown_as_unknown_with_the_reason(base: Path, make: Make, why: str) -> None:
    make(base / "queue")
    backend = folders.open_queue(base)
    names = folders.listing(base)
    item = only(backend)
    assert item.condition is Condition.UNKNOWN
    assert why in item.verdict.why
    assert item.key == ItemKey("files", ("x",))
    assert backend.items([item.key], NOON)[item.key].verdict == item.verdict
    detail = backend.item(item.key, NOON)
    assert "SECRET" not in repr(detail)
    assert backend.counts(Filter(), NOON)[Condition.UNKNOWN].value == 1
    ((draft,),) = backend.drafts([item.key], Sort(), Operation(), NOON, Never())
    assert draft.skipped is not None
    assert any(f.severity is Severity.WARNING and "cannot be read" in f.message for f in backend.check(FrozenClock()))
    assert folders.listing(base) == names, "nothing is deleted"


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[31m", "\u202eevil", ".hidden", "x" * 240, os.fsdecode(b"\xff\xfe")])
def test_names_that_are_not_ids(base: Path, name: str) -> None:
    folders.write_task(base, name)
    backend = folders.open_queue(base)
    item = only(backend)
    assert item.condition is Condition.UNKNOWN
    assert item.key.parts == (name,)
    assert ItemKey.parse(str(item.key)) == item.key
    assert backend.item(item.key, NOON).item.verdict == item.verdict


@pytest.mark.parametrize("id", ["../jobs/queue/a", "/etc/passwd", "..", ".", "", "a/b", "a\0b", "x" * 5000])
def test_keys_that_are_not_file_names_find_nothing(base: Path, id: str) -> None:
    folders.write_task(base, "a")
    backend = folders.open_queue(base)
    assert backend.items([ItemKey("files", (id,))], NOON) == {}
    with pytest.raises(NoSuchItem):
        backend.item(ItemKey("files", (id,)), NOON)


def test_a_broken_result_is_a_note(base: Path) -> None:
    folders.write_task(base, "a")
    (base / "results" / "a.result").write_text("{oops")
    backend = folders.open_queue(base)
    item = only(backend)
    assert item.condition is Condition.TERMINAL
    assert item.error is None
    assert any("result file is not valid JSON" in note for note in item.notes)
    assert ("results content", "{oops") in backend.item(item.key, NOON).native


def test_a_just_claimed_task_is_running(base: Path) -> None:
    folders.write_task(base, "a", "PENDING", suffix="running", attempts=1)
    item = only(folders.open_queue(base))
    assert item.condition is Condition.RUNNING
    assert any("its status is PENDING" in note for note in item.notes)


def test_an_interrupted_move_is_shown_as_the_original_task(base: Path) -> None:
    folders.write_task(base, "a", error="boom").rename(base / "queue" / "a.done.0123456789ab.retriage")
    backend = folders.open_queue(base)
    item = only(backend)
    assert item.condition is Condition.TERMINAL
    assert any("interrupted" in note for note in item.notes)
    assert any(f.subject == "moves" for f in backend.check(FrozenClock()))
    (change,) = folders.plan(backend, "a")
    assert change.before[0] == "done"


@pytest.mark.parametrize("name", ["queue", "results"])
def test_a_folder_that_is_a_symlink_is_not_followed(tmp_path: Path, name: str) -> None:
    base, elsewhere = folders.make(tmp_path / "jobs"), tmp_path / "elsewhere"
    (base / name).rename(elsewhere)
    (base / name).symlink_to(elsewhere)
    with pytest.raises(Unreachable, match="symlink"):
        folders.open_queue(base).page(PageRequest(ALL, NOON))


def test_a_missing_folder_is_a_fault_until_it_appears(tmp_path: Path) -> None:
    backend = folders.open_queue(tmp_path / "jobs")
    with pytest.raises(Unreachable, match="no such folder"):
        backend.counts(ALL, NOON)
    folders.write_task(folders.make(tmp_path / "jobs"), "a")
    assert only(backend).key.id == "a"


def test_writes_in_progress_are_not_items(base: Path) -> None:
    (base / "queue" / ".a.task.tmp").write_text("{")
    (base / "queue" / "a.0123456789ab.retriage-new").write_text("{")
    backend = folders.open_queue(base)
    assert backend.page(PageRequest(ALL, NOON)).items == ()
    for path in (base / "queue").iterdir():
        os.utime(path, (1, 1))
    assert len(folders.open_queue(base).page(PageRequest(ALL, NOON)).items) == 2, "after a minute they are no longer writes in progress"


def test_the_longest_possible_name_is_shown(tmp_path: Path) -> None:
    base = folders.make(tmp_path / "jobs")
    id = "x" * 250
    folders.write_task(base, id)
    backend = folders.open_queue(base)
    key = ItemKey("files", (id,))
    assert list(backend.items([key], NOON)) == [key]
    assert backend.item(key, NOON).item.key == key
    assert [item.key for item in backend.page(PageRequest(ALL, NOON)).items] == [key]
