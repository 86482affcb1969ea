"""The index that is kept between processes: never needed, never believed where a file has changed, private."""

from __future__ import annotations

import json
import os
import random
import threading
import zlib
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from console.core.backend import Finding, PageRequest
from console.core.faults import DeadlineExceeded
from console.core.item import Item
from console.core.query import Filter
from console.testing import ALL, NOON, FrozenClock
from plugins.file_queue import FileQueue
from plugins.file_queue.entries import CLOCK_TICK
from plugins.file_queue.folder import Folder
from plugins.file_queue.index_file import IndexFile
from tests.plugins.file_queue import folders
from tests.plugins.file_queue.test_index import opened, settle

UNFINISHED = Filter.parse("")
HOSTILE = ("line\nbreak", "\udcff\udc80", "tab\tname", '"quoted"', "☃", ".hidden")


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep also the index of a small folder, and believe what was read one clock tick after a change."""
    monkeypatch.setattr("plugins.file_queue.index._WORTH_KEEPING", 1)
    monkeypatch.setattr("plugins.file_queue.entries._MARGIN", CLOCK_TICK)


def process(base: Path, *, read_only: bool = False, deadline: timedelta = timedelta(minutes=10)) -> FileQueue:
    """The backend as another process opens it."""
    backend = folders.open_queue(base, read_only=read_only, deadline=deadline)
    backend.keep_index(base.parent / "cache")
    return backend


def page(backend: FileQueue, filter: Filter = UNFINISHED) -> tuple[Item, ...]:
    return backend.page(PageRequest(filter, NOON, limit=5_000)).items


def kept(base: Path) -> Path:
    (path,) = (base.parent / "cache" / "file_queue").iterdir()
    return path


def mixed(base: Path) -> Path:
    """Every kind of task, under usual and hostile names."""
    folders.make(base)
    for n in range(4):
        folders.write_task(base, f"failed{n}", error="boom")
        folders.write_task(base, f"done{n}", "SUCCESS", error=None)
        folders.write_task(base, f"renamed{n}", "RUNNING", suffix="done")
        folders.write_result(base, f"renamed{n}", "SUCCESS", None)
        folders.write_task(base, f"waiting{n}", "PENDING", attempts=0)
        folders.write_task(base, f"retrying{n}", "PENDING", attempts=1, error="again")
        folders.write_task(base, f"running{n}", "RUNNING")
    folders.write_task(base, "cancelled", "CANCELLED")
    folders.write_task(base, "its-name").rename(base / "queue" / "another.done")
    folders.write_task(base, "twice", "PENDING")
    folders.write_task(base, "twice", "RUNNING")
    (base / "queue" / "broken.done").write_text("{")
    (base / "queue" / "link.task").symlink_to(base / "queue" / "failed0.done")
    (base / "results" / "done0.result").symlink_to(base / "results" / "failed0.result")
    for name in HOSTILE:
        folders.write_task(base, name, error="b\udc80m")
    settle()
    return base


def line(values: Any) -> bytes:
    text = json.dumps(values).encode()
    return b"%08x %b\n" % (zlib.crc32(text), text)


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("filter", [UNFINISHED, ALL], ids=["unfinished", "all"])
def test_the_next_process_opens_only_what_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, filter: Filter) -> None:
    base = mixed(tmp_path / "jobs")
    never_kept = {"broken.done", "link.task", "twice.task", "twice.running"}
    first = page(process(base), filter)
    with opened(monkeypatch) as read:
        assert page(process(base), filter) == first
    assert set(read) <= {*never_kept, "done0.done", "done0.result"}
    folders.write_task(base, "done1", "FAILED", attempts=1, error="not so done")
    folders.write_task(base, "failed1", "PENDING")
    (base / "queue" / "failed1.done").unlink()
    folders.write_result(base, "failed2", "FAILED", "another error")
    folders.write_result(base, "renamed1", "FAILED", "no success")
    (base / "results" / "renamed2.result").unlink()
    (base / "queue" / "failed3.done").unlink()
    (base / "queue" / "waiting0.task").rename(base / "queue" / "waiting0.running")
    folders.write_task(base, "new", "PENDING")
    with opened(monkeypatch) as read:
        third = page(process(base), filter)
    changed = {"done1.done", "failed1.task", "failed2.done", "renamed1.done", "renamed2.done", "waiting0.running", "new.task"}
    assert changed <= {name for name in read if not name.endswith(".result")} <= {*changed, *never_kept, "done0.done"}
    assert third == page(folders.open_queue(base), filter)
    assert third != first


@pytest.mark.usefixtures("_small")
def test_finished_tasks_are_read_when_somebody_asks_for_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = mixed(tmp_path / "jobs")
    everything = page(folders.open_queue(base), ALL)
    page(process(base))
    backend = process(base)
    with opened(monkeypatch) as read:
        counts = backend.counts(ALL, NOON, None)
        findings = backend.check(FrozenClock())
    assert not [name for name in read if name.startswith(("done", "renamed", "cancelled"))]
    assert {condition: count.value for condition, count in counts.items() if count.value} == {
        condition: sum(item.condition is condition for item in everything) for condition in {item.condition for item in everything}
    }
    assert f"{len(everything)} tasks" in next(found.message for found in findings if found.subject == "schema")
    assert page(backend, ALL) == everything
    with opened(monkeypatch) as read:
        assert page(process(base), ALL) == everything
    assert not [name for name in read if name.startswith(("done2", "renamed", "cancelled"))]


def test_a_task_that_just_changed_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plugins.file_queue.index._WORTH_KEEPING", 1)
    base = folders.make(tmp_path / "jobs")
    path = folders.write_task(base, "a", attempts=1)
    settle()
    assert page(process(base))[0].attempts == 1
    with opened(monkeypatch) as read:
        assert page(process(base))[0].attempts == 1
    assert read == ["a.done"]
    for attempts in range(2, 9):  # of the same size, within one clock tick
        path.write_text(json.dumps(folders.fields("a", attempts=attempts)))
        assert page(process(base))[0].attempts == attempts


@pytest.mark.usefixtures("_small")
def test_the_latest_time_is_also_that_of_a_finished_task(tmp_path: Path) -> None:
    base = folders.make(tmp_path / "jobs")
    folders.write_task(base, "a", "SUCCESS", updated_at="2999-01-01T00:00:00+00:00")
    settle()
    page(process(base))

    def clock(found: list[Finding]) -> str:
        return next(one.message for one in found if one.subject == "clock" and "updated" in one.message)

    class Now:
        def now(self) -> Any:
            return folders.open_queue(base).now()

        def sleep(self, seconds: float) -> None:
            raise AssertionError(seconds)

    assert "in the future" in clock(list(process(base).check(Now())))


# --- what is in the file ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_small")
def test_the_file_is_private_and_has_no_arguments(tmp_path: Path) -> None:
    base = mixed(tmp_path / "jobs")
    folders.write_task(base, "secret", kwargs={"x": folders.PAYLOAD})
    settle()
    page(process(base), ALL)
    assert kept(base).stat().st_mode & 0o777 == 0o600
    assert kept(base).parent.stat().st_mode & 0o777 == 0o700
    assert b"secret" in kept(base).read_bytes()
    assert folders.PAYLOAD.encode() not in kept(base).read_bytes()


def test_a_small_folder_is_not_worth_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plugins.file_queue.entries._MARGIN", CLOCK_TICK)
    page(process(mixed(tmp_path / "jobs")), ALL)
    assert not (tmp_path / "cache").exists()


@pytest.mark.usefixtures("_small")
def test_read_only_reads_it_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = mixed(tmp_path / "jobs")
    page(process(base, read_only=True), ALL)
    assert not (tmp_path / "cache").exists()
    expected = page(process(base), ALL)
    before = folders.fingerprint(tmp_path)
    with opened(monkeypatch) as read:
        assert page(process(base, read_only=True), ALL) == expected
    assert "failed0.done" not in read
    folders.write_task(base, "new")
    page(process(base, read_only=True), ALL)
    (base / "queue" / "new.done").unlink()
    after = folders.fingerprint(tmp_path)
    del before["jobs/queue"], after["jobs/queue"]  # the time at which the test changed it
    assert after == before


@pytest.mark.usefixtures("_small")
def test_its_size_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = mixed(tmp_path / "jobs")
    monkeypatch.setattr("plugins.file_queue.index_file._PER_LINE", 3)
    monkeypatch.setattr("plugins.file_queue.index_file.LARGEST", 5_000)
    with opened(monkeypatch) as all_read:
        expected = page(process(base), ALL)
    assert 1_000 < kept(base).stat().st_size <= 5_000
    with opened(monkeypatch) as read:
        assert page(process(base), ALL) == expected
    assert 0 < len(read) < len(all_read)
    monkeypatch.setattr("plugins.file_queue.index_file.LARGEST", 1_000)
    with opened(monkeypatch) as read:
        assert page(process(base), ALL) == expected
    assert len(read) == len(all_read), "a file that is too large is not read"


@pytest.mark.usefixtures("_small")
def test_a_huge_content_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = folders.make(tmp_path / "jobs")
    folders.write_task(base, "huge", func_path="x" * 1_000_000)
    folders.write_task(base, "deep", schedule=json.loads('{"a":' * 800 + "1" + "}" * 800))
    folders.write_task(base, "plain")
    settle()
    expected = page(process(base))
    assert kept(base).stat().st_size < 50_000
    with opened(monkeypatch) as read:
        assert page(process(base)) == expected
    assert "huge.done" in read
    assert "plain.done" not in read


# --- damaged, foreign, stale ----------------------------------------------------------------------------------


def foreign_header(path: Path) -> None:
    _, *rest = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(line(["file_queue index", 1, "/another/queue", [[1, 2], [1, 3]]]) + b"".join(rest))


def readable_by_others(path: Path) -> None:
    path.chmod(0o644)


def folder_readable_by_others(path: Path) -> None:
    path.parent.chmod(0o755)


def link(path: Path) -> None:
    path.rename(path.parent.parent / "elsewhere")
    path.symlink_to(path.parent.parent / "elsewhere")


def link_to_the_folder(path: Path) -> None:
    path.parent.rename(path.parent.parent / "elsewhere")
    path.parent.symlink_to(path.parent.parent / "elsewhere")


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def no_text(path: Path) -> None:
    path.write_bytes(random.Random(1).randbytes(10_000))


DAMAGES = (foreign_header, readable_by_others, folder_readable_by_others, link, link_to_the_folder, a_folder, a_pipe, no_text)


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_file_that_is_not_ours_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Path], None]) -> None:
    base = mixed(tmp_path / "jobs")
    expected = page(process(base), ALL)
    damage(kept(base))
    with opened(monkeypatch) as read:
        assert page(process(base), ALL) == expected
    assert "failed0.done" in read
    assert page(process(base), ALL) == expected


@pytest.mark.usefixtures("_small")
def test_a_damaged_line_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plugins.file_queue.index_file._PER_LINE", 5)
    base = mixed(tmp_path / "jobs")
    expected = page(process(base), ALL)
    whole = kept(base).read_bytes()
    chance = random.Random(7)
    for _ in range(60):
        damaged = bytearray(whole)
        if chance.random() < 0.3:
            del damaged[chance.randrange(len(damaged)) :]
        else:
            damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        kept(base).write_bytes(damaged)
        assert page(process(base), ALL) == expected


@pytest.mark.usefixtures("_small")
def test_values_of_any_kind_are_not_believed(tmp_path: Path) -> None:
    """Each value of each entry is replaced by others, with a right checksum."""
    base = mixed(tmp_path / "jobs")
    expected = page(process(base), ALL)
    header, *lines = kept(base).read_bytes().splitlines(keepends=True)
    entries = [entry for one in lines for entry in json.loads(one.partition(b" ")[2])]
    wild: list[Any] = [
        None, 0, -1, 1e300, True, "", "x", "running", "../../etc/passwd", [], {}, [None], [1, 2, 3], [1, 2, 3, "4"], [1.0] * 4, ["running", None],
        ["done", 5], ["done", "x" * 100, 1], "[]", "[[], []]", '[{}, [1, [], null, null, null]]', '[{}, [null, ["x"], null, null, null]]',
        '[{"status": []}, ["x", [], null, "5", null]]', "[" * 5_000, [[["deep"]]],
    ]
    chance = random.Random(3)
    for number in range(100):
        wrong = json.loads(json.dumps(entries))
        for entry in wrong:
            entry[chance.randrange(6)] = chance.choice(wild)
        kept(base).write_bytes(header + line([*wrong, *wild]))
        assert page(process(base), ALL) == expected, number


@pytest.mark.usefixtures("_small")
def test_another_folder_at_the_same_path_is_read_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = mixed(tmp_path / "jobs")
    page(process(base), ALL)
    base.rename(tmp_path / "old")
    expected = page(folders.open_queue(mixed(base)), ALL)
    with opened(monkeypatch) as read:
        assert page(process(base), ALL) == expected
    assert "failed0.done" in read


@pytest.mark.usefixtures("_small")
def test_what_killed_processes_left_is_removed(tmp_path: Path) -> None:
    base = mixed(tmp_path / "jobs")
    place = tmp_path / "cache" / "file_queue"
    place.mkdir(parents=True, mode=0o700)
    ages = {"a.index": 40, "b.index": 20, "c.index.0123.new": 1, "d.index.0123.new": 0, "not-ours": 400}
    for name, days in ages.items():
        (place / name).touch()
        at = (place / name).stat().st_mtime - days * 86_400
        os.utime(place / name, (at, at))
    page(process(base), ALL)
    left = {path.name for path in place.iterdir()}
    assert left & ages.keys() == {"b.index", "d.index.0123.new", "not-ours"}
    assert len(left) == 4


@pytest.mark.usefixtures("_small")
def test_a_place_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    base = mixed(tmp_path / "jobs")
    (tmp_path / "cache").write_text("a file in the way")
    assert page(process(base), ALL) == page(folders.open_queue(base), ALL)


@pytest.mark.usefixtures("_small")
def test_processes_that_keep_it_at_the_same_time_do_no_harm(tmp_path: Path) -> None:
    base = mixed(tmp_path / "jobs")
    expected = page(folders.open_queue(base), ALL)
    found: list[Any] = []

    def work() -> None:
        for _ in range(10):
            found.append(page(process(base), ALL))

    page(process(base), ALL)
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    with Folder(base / "queue") as queue, Folder(base / "results") as results:
        file = IndexFile(tmp_path / "cache" / "file_queue", base / "queue")
        while any(thread.is_alive() for thread in threads):
            entries = list(file.load((queue, results)))
            assert entries
            assert file.save((queue, results), entries)
    for thread in threads:
        thread.join()
    assert found == [expected] * 40
    assert len(list((tmp_path / "cache" / "file_queue").iterdir())) == 1


# --- the deadline ----------------------------------------------------------------------------------------------

SLOW = timedelta(seconds=7)


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that cannot be read in seven looks at the clock, each a second after the last."""
    monkeypatch.setattr("plugins.file_queue.entries._MARGIN", CLOCK_TICK)
    base = folders.make(tmp_path / "jobs")
    for n in range(1_200):
        folders.write_task(base, f"t{n}")
    settle()
    ticks = iter(range(10**9))
    monkeypatch.setattr("plugins.file_queue.index.monotonic", lambda: next(ticks))
    return base


def test_the_next_process_continues_where_the_deadline_ended_the_first(slow: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    faults: list[DeadlineExceeded] = []
    with opened(monkeypatch) as read:
        for _ in range(10):
            try:
                found = page(process(slow, deadline=SLOW))
                break
            except DeadlineExceeded as fault:
                faults.append(fault)
    assert len(found) == 1_200
    assert "of 1200 files were read in 7s" in str(faults[0])
    assert "it continues where it stopped" in faults[0].fix
    assert len(read) == len(set(read)) == 1_200, "no file was read twice"


def test_it_continues_only_where_it_was_kept(slow: Path) -> None:
    with pytest.raises(DeadlineExceeded) as fault:
        page(process(slow, deadline=SLOW, read_only=True))
    assert fault.value.fix.startswith("Raise `deadline`")
    assert not (slow.parent / "cache").exists()
