"""A trail in an SQLite file that is full, locked, read-only, deleted or replaced: nothing is half-written."""

from __future__ import annotations

import shutil
import signal
import sqlite3
import stat
import time
from pathlib import Path

import pytest

from console.core.faults import TrailBroken, TrailUnavailable
from console.core.override import OverrideState
from console.trail.schema import VERSION
from console.trail.store import TrailStore
from tests.depth import in_depth
from tests.patience import PATIENCE
from tests.trail.processes import output, python, with_little_room
from tests.trail.world import START, YES, begun, carried, chunk, results, sealed, trail_at, writing_connection

DEADLINE = 4.0
"""Twice what is promised: this machine may be busy."""


def file_of(trail: TrailStore) -> Path:
    return Path(trail.place)


def every_write_fails(trail: TrailStore, owner: str, words: str, fault: type[Exception] = TrailUnavailable) -> None:
    for write in (
        lambda: trail.intend("op1", owner, chunk(2, 3), START),
        lambda: trail.conclude("op1", owner, 2, results(0, 1), {}, START),
        lambda: trail.beat("op1", owner, START),
        lambda: trail.mark("op1", OverrideState.STOPPED, "", START),
        lambda: trail.refuse({}, START),
        lambda: trail.add_blocks("p", []),
        lambda: trail.take_over("op1", "x", START, YES),
    ):
        with pytest.raises(fault, match=words):
            write()


def test_opening_touches_nothing_and_a_first_write_creates_it_privately(tmp_path: Path) -> None:
    with trail_at(f"sqlite:///{tmp_path}/a/b/trail.db") as trail:
        assert trail.overrides() == trail.unresolved() == trail.history_of("queue/1") == []
        assert trail.verify().ok
        trail.discard("p1")
        assert list(tmp_path.iterdir()) == []
        trail.refuse({"why": "test"}, START)
        files = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
        assert files == {"a": 0o700, "b": 0o700, "trail.db": 0o600, "trail.db-wal": 0o600, "trail.db-shm": 0o600}
        mode, sync = (writing_connection(trail).execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous"))
        assert (mode, sync) == ("wal", 2)


def test_a_file_deleted_while_in_use_is_noticed(sqlite_trail: TrailStore) -> None:
    _, owner = begun(sqlite_trail)
    sqlite_trail.intend("op1", owner, chunk(0, 1), START)
    file_of(sqlite_trail).unlink()
    with pytest.raises(TrailUnavailable, match="deleted"):
        sqlite_trail.intend("op1", owner, chunk(2, 3), START)
    with pytest.raises(TrailUnavailable, match="deleted"):
        sqlite_trail.unresolved()
    assert not file_of(sqlite_trail).exists()


@pytest.mark.parametrize("how", ["deleted", "replaced"])
def test_a_file_that_was_only_read_so_far_is_not_started_anew(sqlite_url: str, how: str) -> None:
    with trail_at(sqlite_url) as trail:
        carried(trail)
        path = file_of(trail)
    with trail_at(sqlite_url) as trail:
        assert len(trail.records()) == 8
        if how == "replaced":
            shutil.copy(path, path.with_name("copy"))
            path.with_name("copy").replace(path)
        else:
            path.unlink()
        with pytest.raises(TrailUnavailable, match=how):
            trail.refuse({}, START)
    assert path.exists() == (how == "replaced")


def test_a_deleted_log_is_noticed(sqlite_trail: TrailStore) -> None:
    _, owner = begun(sqlite_trail)
    file_of(sqlite_trail).with_name("trail.db-wal").unlink()
    every_write_fails(sqlite_trail, owner, "deleted")


def test_a_replaced_file_is_noticed(sqlite_trail: TrailStore, tmp_path: Path) -> None:
    _, owner = begun(sqlite_trail)
    copy = tmp_path / "copy.db"
    shutil.copy(file_of(sqlite_trail), copy)
    copy.replace(file_of(sqlite_trail))
    every_write_fails(sqlite_trail, owner, "replaced")


@pytest.mark.parametrize("linked", ["file", "folder", "file not there yet"])
def test_a_trail_behind_a_symlink_is_written_and_read(tmp_path: Path, linked: str) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "state").mkdir()
    link, target = ("state/trail.db", "disk/real.db") if linked != "folder" else ("state/linked", "disk")
    if linked == "file":
        with trail_at(f"sqlite:///{tmp_path}/{target}") as trail:
            carried(trail)
    (tmp_path / link).symlink_to(tmp_path / target)
    url = f"sqlite:///{tmp_path}/{link}" + ("/real.db" if linked == "folder" else "")
    with trail_at(url) as trail:
        before = len(trail.records())
        trail.refuse({"why": "first"}, START)
        trail.refuse({"why": "second"}, START)
        with trail_at(url, read_only=True) as auditor:
            assert len(auditor.records()) == before + 2, "what is in the log of the real file is read too"
    assert [file.name for file in (tmp_path / "disk").iterdir()] == ["real.db"]


@pytest.mark.parametrize("linked", ["trail.db", "state"])
def test_a_symlink_that_leads_elsewhere_by_now_is_a_replaced_file(tmp_path: Path, linked: str) -> None:
    for disk in ("one", "two"):
        with trail_at(f"sqlite:///{tmp_path}/{disk}/trail.db") as trail:
            carried(trail)
    path = tmp_path / linked
    target = "trail.db" if linked == "trail.db" else "."
    path.symlink_to(tmp_path / "one" / target)
    with trail_at(f"sqlite:///{path}" + ("/trail.db" if linked == "state" else "")) as trail:
        trail.refuse({}, START)
        path.unlink()
        path.symlink_to(tmp_path / "two" / target)
        with pytest.raises(TrailUnavailable, match="replaced"):
            trail.refuse({}, START)
        path.unlink()
        with pytest.raises(TrailUnavailable, match="deleted"):
            trail.refuse({}, START)


def test_records_that_vanish_behind_our_back_are_noticed(sqlite_trail: TrailStore) -> None:
    carried(sqlite_trail)
    owner = sqlite_trail.override("op1").owner
    other = sqlite3.connect(file_of(sqlite_trail), isolation_level=None)
    for trigger in ("record_no_delete", "item_outcome_no_delete"):
        other.execute(f"DROP TRIGGER {trigger}")
    other.execute("DELETE FROM item_outcome WHERE seq > 4")
    other.execute("DELETE FROM record WHERE seq > 4")
    other.close()
    for write in (
        lambda: sqlite_trail.intend("op1", owner, chunk(2, 3), START),
        lambda: sqlite_trail.mark("op1", OverrideState.STOPPED, "", START),
        lambda: sqlite_trail.refuse({}, START),
    ):
        with pytest.raises(TrailBroken, match="record 8"):
            write()
    assert [record.seq for record in sqlite_trail.records()] == [1, 2, 3, 4]


@pytest.mark.parametrize("change", ["body = '{}'", "prev = hash", "hash = 'x'"])
def test_nothing_is_appended_to_an_edited_end(sqlite_url: str, change: str) -> None:
    with trail_at(sqlite_url) as trail:
        carried(trail)
        path = file_of(trail)
    raw = sqlite3.connect(path, isolation_level=None)
    raw.execute("DROP TRIGGER record_no_update")
    raw.execute(f"UPDATE record SET {change} WHERE seq = 8")
    raw.close()
    with trail_at(sqlite_url) as trail:
        with pytest.raises(TrailBroken, match="record 8"):
            trail.refuse({}, START)
        assert len(trail.records()) == 8


def test_a_damaged_file_is_a_broken_trail(tmp_path: Path) -> None:
    path = tmp_path / "trail.db"
    path.write_bytes(b"this is not a database, but it is long enough to be read as a header" * 20)
    before = path.read_bytes()
    with trail_at(f"sqlite:///{path}") as trail:
        with pytest.raises(TrailBroken):
            trail.refuse({}, START)
        with pytest.raises(TrailBroken):
            trail.overrides()
    assert path.read_bytes() == before


def test_somebody_elses_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "theirs.db"
    raw = sqlite3.connect(path)
    raw.execute("CREATE TABLE plan (x)")
    raw.close()
    with trail_at(f"sqlite:///{path}") as trail, pytest.raises(TrailUnavailable):
        trail.refuse({}, START)
    raw = sqlite3.connect(path)
    assert raw.execute("SELECT name FROM sqlite_master").fetchall() == [("plan",)]
    raw.close()


def test_tables_of_a_newer_version_are_refused(sqlite_url: str) -> None:
    with trail_at(sqlite_url) as trail:
        trail.refuse({}, START)
        path = file_of(trail)
    raw = sqlite3.connect(path, isolation_level=None)
    raw.execute("UPDATE trail_schema SET version = version + 1")
    raw.close()
    with trail_at(sqlite_url) as trail:
        for use in (lambda: trail.refuse({}, START), trail.overrides):
            with pytest.raises(TrailUnavailable, match=f"format {VERSION + 1}"):
                use()


def test_a_lock_held_by_another_process_is_reported_in_time(sqlite_trail: TrailStore) -> None:
    _, owner = begun(sqlite_trail)
    holder = sqlite3.connect(file_of(sqlite_trail), isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    start = time.monotonic()
    with pytest.raises(TrailUnavailable, match="locked"):
        sqlite_trail.intend("op1", owner, chunk(0, 1), START)
    assert time.monotonic() - start < DEADLINE
    assert sqlite_trail.override("op1").counts == {}
    holder.execute("ROLLBACK")
    holder.close()
    assert sqlite_trail.intend("op1", owner, chunk(0, 1), START) == 3


def test_a_full_database_takes_all_or_nothing(sqlite_trail: TrailStore) -> None:
    _, owner = begun(sqlite_trail)
    seq = sqlite_trail.intend("op1", owner, chunk(0, 49_999), START)
    connection = writing_connection(sqlite_trail)
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages + 40}")
    with pytest.raises(TrailUnavailable, match="full"):
        sqlite_trail.conclude("op1", owner, seq, results(0, 49_999), {}, START)
    assert list(sqlite_trail.outcomes("op1")) == []
    assert [intent.seq for intent in sqlite_trail.open_intents("op1")] == [seq]
    assert sqlite_trail.verify().ok
    connection.execute("PRAGMA max_page_count = 1000000")
    sqlite_trail.conclude("op1", owner, seq, results(0, 49_999), {}, START)
    assert sqlite_trail.verify().ok


FILL = """
with trail_at(sys.argv[1]) as trail:
    _, owner = begun(trail, owner="elsewhere")
    last = 0
    try:
        while True:
            last = trail.intend("op1", owner, {**chunk(0, 1), "padding": "x" * 5000}, START)
    except TrailUnavailable as fault:
        print(last, trail.override("op1").override_id)
"""


def test_a_full_disk_keeps_what_it_promised(sqlite_url: str) -> None:
    promised, readable = output(python(FILL, sqlite_url, prepare=with_little_room)).split()
    assert (int(promised) > 5, readable) == (True, "op1")
    with trail_at(sqlite_url) as trail:
        found = trail.verify()
        assert found.ok
        assert found.records == int(promised)
        assert trail.intend("op1", "elsewhere", chunk(0, 1), START) == int(promised) + 1


WRITE_AND_READ = """
from tests.trail.processes import as_nobody
with trail_at(sys.argv[2]) as trail:  # loads all that is needed, which another user may not be able to read
    carried(trail)
    trail.overrides()
as_nobody()
with trail_at(sys.argv[1]) as trail:
    try:
        trail.refuse({}, START)
        print("written")
    except TrailUnavailable:
        print("refused", len(trail.overrides()))
"""


@pytest.fixture
def open_folder() -> object:
    import tempfile

    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("mode", ["file", "folder", "no folder"])
def test_without_permission_it_is_refused_and_reads_go_on(open_folder: Path, tmp_path: Path, mode: str) -> None:
    path = open_folder / "in" / "trail.db"
    if mode != "no folder":
        with trail_at(f"sqlite:///{path}") as trail:
            carried(trail)
        path.chmod(0o444 if mode == "file" else 0o666)
    else:
        path.parent.mkdir()
    path.parent.chmod(0o777 if mode == "file" else 0o555)
    listed = {entry.name: entry.read_bytes() for entry in path.parent.iterdir()}
    said = output(python(WRITE_AND_READ, f"sqlite:///{path}", f"sqlite:///{tmp_path}/warm.db"))
    assert said == ("refused 0" if mode == "no folder" else "refused 1")
    after = {entry.name: entry.read_bytes() for entry in path.parent.iterdir() if not entry.name.endswith(("-shm", "-wal"))}
    assert after == listed
    path.parent.chmod(0o777)


APPEND = """
with trail_at(sys.argv[1]) as trail:
    sys.stdin.readline()
    for n in range(60):
        trail.refuse({"by": sys.argv[2], "n": n}, START)
"""


def test_two_processes_keep_one_chain(url: str) -> None:
    processes = [python(APPEND, url, name) for name in "ab"]
    for process in processes:
        process.stdin.write("go\n")  # type: ignore[union-attr]
        process.stdin.flush()  # type: ignore[union-attr]
    for process in processes:
        output(process)
    with trail_at(url) as trail:
        records = trail.records()
        assert trail.verify().ok
    assert [record.seq for record in records] == list(range(1, 121))
    for name in "ab":
        assert [record.body["n"] for record in records if record.body["by"] == name] == list(range(60))


CARRY = """
with trail_at(sys.argv[1]) as trail:
    plan, owner = begun(trail, changes=4)
    for first in (0, 2):
        seq = trail.intend("op1", owner, chunk(first, first + 1), START)
        trail.conclude("op1", owner, seq, results(first, first + 1), {}, START)
    trail.mark("op1", OverrideState.FINISHED, "", START)
"""


@pytest.mark.parametrize(
    ("point", "records", "open_intents"),
    in_depth([
        ("before_intent", 2, 0), ("after_intent", 3, 1), ("before_outcome", 3, 1), ("after_outcome", 4, 0),
        ("before_intent:2", 4, 0), ("after_intent:2", 5, 1), ("after_outcome:2", 6, 0), ("before_state", 6, 0), ("after_state", 7, 0),
    ], quick=[("after_intent", 3, 1), ("after_outcome:2", 6, 0), ("before_state", 6, 0)]),
)
def test_killed_at_a_fault_point_everything_returned_is_there(url: str, point: str, records: int, open_intents: int) -> None:
    process = python(CARRY, url, RETRIAGE_FAULT_POINT=point)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == -signal.SIGKILL
    with trail_at(url) as trail:
        assert len(trail.records()) == records
        assert len(trail.unresolved()) == open_intents  # at once: its process is gone from this machine
        assert trail.verify().ok
        if point != "after_state":
            trail.take_over("op1", "me", START, YES)
            assert trail.override("op1").owner == "me"


def test_a_plan_that_was_sealed_survives_a_kill(url: str) -> None:
    code = "trail = open_trail(sys.argv[1], read_only=False, anchor=None, clock=FrozenClock()); plan = sealed(trail, changes=7000); print(plan.id, flush=True); import os; os.kill(os.getpid(), 9)"
    said, _ = python(code, url).communicate(timeout=PATIENCE)
    with trail_at(url) as trail:
        assert sum(len(batch) for batch in trail.rows(said.strip(), 0, 10_000)) == 7000
        assert sealed(trail).id != said.strip()
