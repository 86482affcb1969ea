"""An audited trail: read to the last record, and not a byte of it changed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from console.core.faults import ReadOnlyRefused, TrailUnavailable
from console.core.override import OverrideState, Request
from console.core.plan import pack
from console.trail.store import TrailStore
from tests.trail.world import START, YES, carried, chunk, make_plan, plan_rows, results, trail_at

LATER = START + timedelta(minutes=5)

WRITES: dict[str, Callable[[TrailStore], object]] = {
    "add_blocks": lambda trail: trail.add_blocks("p1", [pack(0, ["queue/a"], ["a"], [()], [None], [None])]),
    "seal": lambda trail: trail.seal(make_plan(plan_rows(1))),
    "begin": lambda trail: trail.begin("op9", make_plan(plan_rows(1)), YES, "me", START),
    "intend": lambda trail: trail.intend("op1", "me", chunk(0, 1), START),
    "conclude": lambda trail: trail.conclude("op1", "me", 2, results(0, 1), {}, START),
    "beat": lambda trail: trail.beat("op1", "me", START),
    "mark": lambda trail: trail.mark("op1", OverrideState.FINISHED, "", START),
    "refuse": lambda trail: trail.refuse({}, START),
}


def hashes(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir() if not path.name.endswith("-shm")}


def read_everything(trail: TrailStore) -> None:
    assert trail.verify().ok
    override = trail.override("op1")
    assert [override.override_id for override in trail.overrides()] == ["op1"]
    assert trail.plan(override.plan_id).hash
    assert sum(len(batch) for batch in trail.rows(override.plan_id, 0, 99)) == 6
    assert sum(len(batch) for batch in trail.outcomes("op1")) == 6
    assert len(trail.intents("op1")) == 3
    assert trail.history_of("queue/000001")
    assert trail.unresolved() == []


@pytest.mark.parametrize("write", WRITES)
def test_every_write_is_refused_and_nothing_is_created(tmp_path: Path, write: str) -> None:
    with trail_at(f"sqlite:///{tmp_path}/state/trail.db", read_only=True) as trail:
        with pytest.raises(ReadOnlyRefused):
            WRITES[write](trail)
        assert trail.overrides() == trail.records() == trail.intents("op1") == list(trail.rows("p", 0, 9)) == []
    assert list(tmp_path.iterdir()) == []


def test_writes_that_look_first_are_refused_too(sqlite_url: str, tmp_path: Path) -> None:
    with trail_at(sqlite_url) as trail:
        carried(trail)
    before = hashes(tmp_path / "state")
    with trail_at(sqlite_url, read_only=True) as trail:
        for write in (
            *WRITES.values(),
            lambda trail: trail.take_over("op1", "me", LATER, YES),
            lambda trail: trail.ask("op1", Request.STOP, YES.who, YES.origin),
            lambda trail: trail.discard(trail.override("op1").plan_id),
        ):
            with pytest.raises(ReadOnlyRefused):
                write(trail)
    assert hashes(tmp_path / "state") == before


def test_a_quiet_trail_is_read_without_a_trace(sqlite_url: str, tmp_path: Path) -> None:
    with trail_at(sqlite_url) as trail:
        carried(trail)
    before = hashes(tmp_path / "state")
    with trail_at(sqlite_url, read_only=True) as trail:
        read_everything(trail)
        assert hashes(tmp_path / "state") == before
    assert hashes(tmp_path / "state") == before
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["trail.db"]


def test_a_trail_in_use_is_read_as_it_grows(sqlite_url: str, tmp_path: Path) -> None:
    with trail_at(sqlite_url, read_only=True) as reader:
        assert reader.records() == []
        with trail_at(sqlite_url) as trail:
            carried(trail)
            before = hashes(tmp_path / "state")
            read_everything(reader)
            assert hashes(tmp_path / "state") == before
            trail.refuse({}, START)
            assert len(reader.records()) == 9
        assert len(reader.records()) == 9
        with trail_at(sqlite_url) as trail:
            trail.refuse({}, START)
            assert len(reader.records()) == 10


def test_the_connection_itself_cannot_write(sqlite_url: str) -> None:
    with trail_at(sqlite_url) as trail:
        carried(trail)
    with trail_at(sqlite_url, read_only=True) as trail:
        for statement in ("DELETE FROM plan_block", "PRAGMA journal_mode = DELETE", "ATTACH 'x.db' AS x", "VACUUM INTO 'x.db'"):
            with pytest.raises(TrailUnavailable, match="authoriz"):
                trail._storage.read(lambda reading, statement=statement: reading.all(statement), [])
