"""An audited trail: read to the last record, and not a byte of it changed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from console.core.faults import ReadOnlyRefused, TrailUnavailable
from console.core.override import OverrideState, Request
from console.core.packing import pack
from console.trail.store import TrailBook
from tests.trail.world import START, YES, book_at, carried, chunk, make_plan, plan_rows, results

LATER = START + timedelta(minutes=5)

WRITES: dict[str, Callable[[TrailBook], object]] = {
    "add_blocks": lambda book: book.add_blocks("p1", [pack(0, ["queue/a"], ["a"], ["[]"])]),
    "seal": lambda book: book.seal(make_plan(plan_rows(1))),
    "begin": lambda book: book.begin("op9", make_plan(plan_rows(1)), YES, "me", START),
    "intend": lambda book: book.intend("op1", "me", chunk(0, 1), START),
    "conclude": lambda book: book.conclude("op1", "me", 2, results(0, 1), {}, START),
    "beat": lambda book: book.beat("op1", "me", START),
    "mark": lambda book: book.mark("op1", OverrideState.FINISHED, "", START),
    "refuse": lambda book: book.refuse({}, START),
    "session": lambda book: book.session({}, START),
}


def hashes(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir() if not path.name.endswith("-shm")}


def read_everything(book: TrailBook) -> None:
    assert book.verify().ok
    override = book.override("op1")
    assert [override.op_id for override in book.overrides()] == ["op1"]
    assert book.plan(override.plan_id).hash
    assert sum(len(batch) for batch in book.rows(override.plan_id, 0, 99)) == 6
    assert sum(len(batch) for batch in book.outcomes("op1")) == 6
    assert len(book.intents("op1")) == 3
    assert book.history_of("queue/000001")
    assert book.unresolved() == []


@pytest.mark.parametrize("write", WRITES)
def test_every_write_is_refused_and_nothing_is_created(tmp_path: Path, write: str) -> None:
    with book_at(f"sqlite:///{tmp_path}/state/trail.db", read_only=True) as book:
        with pytest.raises(ReadOnlyRefused):
            WRITES[write](book)
        assert book.overrides() == book.records() == book.intents("op1") == list(book.rows("p", 0, 9)) == []
    assert list(tmp_path.iterdir()) == []


def test_writes_that_look_first_are_refused_too(sqlite_url: str, tmp_path: Path) -> None:
    with book_at(sqlite_url) as book:
        carried(book)
    before = hashes(tmp_path / "state")
    with book_at(sqlite_url, read_only=True) as book:
        for write in (
            *WRITES.values(),
            lambda book: book.take_over("op1", "me", LATER, YES),
            lambda book: book.ask("op1", Request.STOP),
            lambda book: book.discard(book.override("op1").plan_id),
        ):
            with pytest.raises(ReadOnlyRefused):
                write(book)
    assert hashes(tmp_path / "state") == before


def test_a_quiet_trail_is_read_without_a_trace(sqlite_url: str, tmp_path: Path) -> None:
    with book_at(sqlite_url) as book:
        carried(book)
    before = hashes(tmp_path / "state")
    with book_at(sqlite_url, read_only=True) as book:
        read_everything(book)
        assert hashes(tmp_path / "state") == before
    assert hashes(tmp_path / "state") == before
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["trail.db"]


def test_a_trail_in_use_is_read_as_it_grows(sqlite_url: str, tmp_path: Path) -> None:
    with book_at(sqlite_url, read_only=True) as reader:
        assert reader.records() == []
        with book_at(sqlite_url) as book:
            carried(book)
            before = hashes(tmp_path / "state")
            read_everything(reader)
            assert hashes(tmp_path / "state") == before
            book.refuse({}, START)
            assert len(reader.records()) == 8
        assert len(reader.records()) == 8
        with book_at(sqlite_url) as book:
            book.refuse({}, START)
            assert len(reader.records()) == 9


def test_the_connection_itself_cannot_write(sqlite_url: str) -> None:
    with book_at(sqlite_url) as book:
        carried(book)
    with book_at(sqlite_url, read_only=True) as book:
        for statement in ("DELETE FROM plan_block", "PRAGMA journal_mode = DELETE", "ATTACH 'x.db' AS x", "VACUUM INTO 'x.db'"):
            with pytest.raises(TrailUnavailable, match="authoriz"):
                book._storage.read(lambda reading, statement=statement: reading.all(statement), [])
