"""Whatever is changed in the append-only tables is found, and named no later than where it is."""

from __future__ import annotations

import os
import random
import sqlite3
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from console.core.override import NOT_APPLIED, OverrideState
from console.core.ports import Verification
from console.trail import verify as verifying
from console.trail.anchor import AnchorLine, read_anchors
from console.trail.record import GENESIS, Kind, link, next_record
from console.trail.storage import Reading
from tests.depth import in_depth
from tests.trail.world import START, YES, begun, carried, chunk, results, silent, trail_at

TRIALS = 1000 if os.environ.get("RETRIAGE_FULL") else 150

Tampering = Callable[[sqlite3.Connection, random.Random], int]
"""Changes something; the first record that is not as it was."""


@pytest.fixture(scope="module")
def trail_file(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, list[AnchorLine]]:
    """A trail of several overrides, as bytes, and its anchors."""
    folder = tmp_path_factory.mktemp("trail")
    with trail_at(f"sqlite:///{folder}/trail.db", anchor=f"{folder}/anchors") as trail:
        for number in range(4):
            carried(trail, f"op{number}", chunks=4, size=3)
            trail.refuse({"why": "read-only"}, START)
            trail.mark(f"op{number}", OverrideState.FINISHED, "", START)
    return (folder / "trail.db").read_bytes(), list(read_anchors(folder / "anchors"))


class Tampered:
    """A copy of the trail that can be changed: no trigger is in the way."""

    def __init__(self, content: bytes, path: Path) -> None:
        self.path = path
        path.write_bytes(content)
        self.database = sqlite3.connect(path, isolation_level=None)
        for (name,) in self.database.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            self.database.execute(f"DROP TRIGGER {name}")

    def content(self) -> list[object]:
        return [self.database.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall() for table in ("record", "item_outcome")]

    def verify(self, anchors: list[AnchorLine]) -> Verification:
        self.database.close()
        with trail_at(f"sqlite:///{self.path}") as trail:
            return trail.verify(anchors)


@pytest.fixture
def tampered(trail_file: tuple[bytes, list[AnchorLine]], tmp_path: Path) -> Iterator[Tampered]:
    copy = Tampered(trail_file[0], tmp_path / "trail.db")
    yield copy
    copy.database.close()


def pick(database: sqlite3.Connection, chance: random.Random, table: str) -> tuple[object, ...]:
    return chance.choice(database.execute(f"SELECT * FROM {table}").fetchall())


def other(value: object, chance: random.Random) -> object:
    if isinstance(value, int):
        return value + chance.choice([-3, -1, 1, 1000])
    text = str(value)
    place = chance.randrange(len(text) + 1)
    return text[:place] + chance.choice("abc019\"{} \n\x1f") + text[place + chance.randrange(2) :]


def edit_record(database: sqlite3.Connection, chance: random.Random) -> int:
    seq, *values = pick(database, chance, "record")
    column = chance.randrange(5)
    name = ("kind", "at", "body", "prev", "hash")[column]
    database.execute(f"UPDATE record SET {name} = ? WHERE seq = ?", (other(values[column], chance), seq))
    return int(seq)


def edit_item(database: sqlite3.Connection, chance: random.Random) -> int:
    seq, ordinal, *values = pick(database, chance, "item_outcome")
    column = chance.randrange(3)
    name = ("key", "outcome", "detail")[column]
    database.execute(
        f"UPDATE item_outcome SET {name} = ? WHERE (seq, ordinal) = (?, ?)", (other(values[column], chance), seq, ordinal)
    )
    return int(seq)


def move_item(database: sqlite3.Connection, chance: random.Random) -> int:
    seq, ordinal, *values = pick(database, chance, "item_outcome")
    to = chance.choice([1, 2, 3, 5, 999, 0, -4])
    replaced = database.execute("SELECT * FROM item_outcome WHERE (seq, ordinal) = (?, ?)", (to, ordinal)).fetchone()
    database.execute("UPDATE OR REPLACE item_outcome SET seq = ? WHERE (seq, ordinal) = (?, ?)", (to, seq, ordinal))
    alike = replaced is not None and list(replaced[2:]) == values  # then the place it came to is as it was
    return int(seq) if alike else max(min(int(seq), to), 1)


def delete_record(database: sqlite3.Connection, chance: random.Random) -> int:
    seq = int(pick(database, chance, "record")[0])
    database.execute("DELETE FROM record WHERE seq = ?", (seq,))
    if chance.random() < 0.5:  # and close the gap
        for (later,) in database.execute("SELECT seq FROM record WHERE seq > ? ORDER BY seq", (seq,)).fetchall():
            database.execute("UPDATE record SET seq = ? WHERE seq = ?", (later - 1, later))
            database.execute("UPDATE item_outcome SET seq = ? WHERE seq = ?", (later - 1, later))
    return seq


def delete_items(database: sqlite3.Connection, chance: random.Random) -> int:
    seq, ordinal, *_ = pick(database, chance, "item_outcome")
    if chance.random() < 0.5:
        database.execute("DELETE FROM item_outcome WHERE seq = ?", (seq,))
    else:
        database.execute("DELETE FROM item_outcome WHERE (seq, ordinal) = (?, ?)", (seq, ordinal))
    return int(seq)


def swap_records(database: sqlite3.Connection, chance: random.Random) -> int:
    one, two = sorted(chance.sample(range(1, 45), 2))
    database.execute("UPDATE record SET seq = -1 WHERE seq = ?", (one,))
    database.execute("UPDATE record SET seq = ? WHERE seq = ?", (one, two))
    database.execute("UPDATE record SET seq = ? WHERE seq = -1", (two,))
    return one


def swap_items(database: sqlite3.Connection, chance: random.Random) -> int:
    one, two = pick(database, chance, "item_outcome"), pick(database, chance, "item_outcome")
    for place, values in ((one, two), (two, one)):
        database.execute("UPDATE item_outcome SET key = ?, outcome = ?, detail = ? WHERE (seq, ordinal) = (?, ?)", (*values[2:], *place[:2]))
    return min(int(one[0]), int(two[0]))


def insert_record(database: sqlite3.Connection, chance: random.Random) -> int:
    """A well-made record that links to the one before it, put in the middle or before the first."""
    seq = chance.randrange(-1, 40)
    if seq < 1:
        database.execute("INSERT INTO record VALUES (?, ?, ?, ?, ?, ?)", next_record(GENESIS, seq, Kind.REFUSAL, START, {}))
        return 1
    for (later,) in database.execute("SELECT seq FROM record WHERE seq >= ? ORDER BY seq DESC", (seq,)).fetchall():
        database.execute("UPDATE record SET seq = ? WHERE seq = ?", (later + 1, later))
        database.execute("UPDATE item_outcome SET seq = ? WHERE seq = ?", (later + 1, later))
    before = database.execute("SELECT hash FROM record WHERE seq = ?", (seq - 1,)).fetchone()
    row = next_record(before[0] if before else GENESIS, seq, Kind.REFUSAL, START, {"forged": True})
    database.execute("INSERT INTO record VALUES (?, ?, ?, ?, ?, ?)", row)
    return seq + 1  # the forged one is well made: it is the next that does not follow


def insert_item(database: sqlite3.Connection, chance: random.Random) -> int:
    seq, _, *values = pick(database, chance, "item_outcome")
    to = chance.choice([int(seq), 1, 2, 9, 10_000, 0, -2])
    where = chance.choice([10**6, -(10**6), 77])
    database.execute("INSERT INTO item_outcome VALUES (?, ?, ?, ?, ?)", (to, where, *values))
    return max(to, 1)


def rewrite(database: sqlite3.Connection, chance: random.Random) -> int:
    """Edit one record and compute every hash after it anew: only an anchor tells."""
    start = chance.randrange(1, 45)
    rows = database.execute("SELECT * FROM record WHERE seq >= ? ORDER BY seq", (start,)).fetchall()
    prev = rows[0][4]
    for seq, kind, at, body, _, _ in rows:
        body = body[:-1] + ',"zz":1}' if seq == start else body
        digest = link(prev, seq, kind, at, body)
        database.execute("UPDATE record SET body = ?, prev = ?, hash = ? WHERE seq = ?", (body, prev, digest, seq))
        prev = digest
    return 10**9


TAMPERINGS: list[Tampering] = [
    edit_record, edit_item, move_item, delete_record, delete_items, swap_records, swap_items, insert_record, insert_item, rewrite,
]


@pytest.mark.parametrize("seed", range(TRIALS))
def test_tampering_is_found(tampered: Tampered, trail_file: tuple[bytes, list[AnchorLine]], seed: int) -> None:
    chance = random.Random(seed)
    tampering = TAMPERINGS[seed % len(TAMPERINGS)]
    before = tampered.content()
    first = 10**9
    while tampered.content() == before:  # two that are swapped may be alike
        first = tampering(tampered.database, chance)
    found = tampered.verify(trail_file[1])
    assert not found.ok
    assert found.first_bad is not None
    assert found.first_bad <= first
    assert found.what


def test_the_untouched_trail_is_intact(tampered: Tampered, trail_file: tuple[bytes, list[AnchorLine]]) -> None:
    assert tampered.verify(trail_file[1]) == Verification(True, 56, anchors=tuple(anchor.seq for anchor in trail_file[1]))


@pytest.mark.parametrize("left", [0, 14, 42, 55])
def test_a_cut_tail_is_found_by_the_anchor_only(
    trail_file: tuple[bytes, list[AnchorLine]], tmp_path: Path, left: int
) -> None:
    for name, anchors in (("without", []), ("with", trail_file[1])):
        copy = Tampered(trail_file[0], tmp_path / name)
        copy.database.execute("DELETE FROM record WHERE seq > ?", (left,))
        for table in ("item_outcome", "intent", "override_state", "plan"):
            copy.database.execute(f"DELETE FROM {table} WHERE seq > ?", (left,))
        found = copy.verify(anchors)
        assert found.ok == (not anchors)
        assert found.first_bad == (left + 1 if anchors else None)


@pytest.mark.parametrize("left", [0, 1, 2, 3, 20, 45])
def test_a_cut_tail_is_known_from_the_working_tables(tampered: Tampered, left: int) -> None:
    tampered.database.execute("DELETE FROM record WHERE seq > ?", (left,))
    tampered.database.execute("DELETE FROM item_outcome WHERE seq > ?", (left,))
    assert not tampered.verify([]).ok


OTHERWISE = "does not match it"
NOT_RECORDED = "without a record"


# Each override has fourteen records: planned, confirmed, anchor, four times intent and outcome, refusal, state, anchor.
@pytest.mark.parametrize("batch", [1, 5, 5_000])
@pytest.mark.parametrize(
    ("change", "seq", "what"),
    [
        ("UPDATE override_state SET confirmed = replace(confirmed, 'ann', 'bob') WHERE override_id = 'op1'", 16, OTHERWISE),
        ("UPDATE override_state SET confirmed = 'x' WHERE override_id = 'op1'", 16, OTHERWISE),
        ("UPDATE override_state SET plan_id = 'p' WHERE override_id = 'op1'", 16, OTHERWISE),
        ("UPDATE override_state SET started = '2026' WHERE override_id = 'op1'", 16, OTHERWISE),
        ("UPDATE override_state SET seq = 2 WHERE override_id = 'op1'", 16, OTHERWISE),
        ("UPDATE override_state SET override_id = 'opx' WHERE override_id = 'op1'", 16, "is missing"),
        ("DELETE FROM override_state WHERE override_id = 'op1'", 16, "is missing"),
        ("UPDATE override_state SET counts = '{}' WHERE override_id = 'op1'", 25, OTHERWISE),
        ("UPDATE override_state SET note = 'by order' WHERE override_id = 'op1'", 27, OTHERWISE),
        ("UPDATE override_state SET state = 'stopped' WHERE override_id = 'op1'", 27, OTHERWISE),
        ("INSERT INTO override_state SELECT 'opx', 16, plan_id, state, started, confirmed, counts, note, request, leases,"
         " undo_of, result FROM override_state WHERE override_id = 'op1'", 16, NOT_RECORDED),
        ("INSERT INTO override_state SELECT 'opx', 99, plan_id, state, started, confirmed, counts, note, request, leases,"
         " undo_of, result FROM override_state WHERE override_id = 'op1'", 99, NOT_RECORDED),
        ("UPDATE override_state SET undo_of = 'op0' WHERE override_id = 'op1'", 16, OTHERWISE),
        ("UPDATE override_state SET result = 27 WHERE override_id = 'op1'", 27, NOT_RECORDED),
        ("DELETE FROM intent WHERE seq = 18", 18, "is missing"),
        ("UPDATE intent SET override_id = 'op2' WHERE seq = 18", 18, OTHERWISE),
        ("UPDATE intent SET owner = 'me' WHERE seq = 18", 18, OTHERWISE),
        ("UPDATE intent SET concluded = NULL WHERE seq = 18", 19, OTHERWISE),
        ("UPDATE intent SET concluded = 21 WHERE seq = 18", 19, OTHERWISE),
        ("UPDATE intent SET concluded = 'x' WHERE seq = 18", 19, OTHERWISE),
        ("INSERT INTO intent VALUES (16, 'op1', 'me', NULL)", 16, NOT_RECORDED),
        ("INSERT INTO intent VALUES (99, 'op1', 'me', NULL)", 99, NOT_RECORDED),
        ("INSERT INTO intent VALUES (-5, 'op1', 'me', NULL)", 1, NOT_RECORDED),
        ("INSERT INTO intent VALUES ('x', 'op1', 'me', NULL)", 2**63 - 1, NOT_RECORDED),
    ],
)
def test_what_is_shown_is_what_was_recorded(
    tampered: Tampered, monkeypatch: pytest.MonkeyPatch, batch: int, change: str, seq: int, what: str
) -> None:
    monkeypatch.setattr(verifying, "_BATCH", batch)
    tampered.database.execute(change)
    found = tampered.verify([])
    assert (found.ok, found.first_bad) == (False, seq)
    assert what in found.what


@pytest.mark.parametrize(
    ("change", "seq"),
    [
        ("DELETE FROM intent WHERE seq = 9", 9), ("UPDATE intent SET concluded = 8 WHERE seq = 9", 9),
        ("UPDATE intent SET concluded = 99 WHERE seq = 9", 9), ("UPDATE override_state SET counts = '{}'", 8),
        ("UPDATE override_state SET state = 'finished'", 2), ("UPDATE override_state SET note = 'x'", 2),
    ],
)
def test_what_was_left_unresolved_cannot_be_hidden(sqlite_url: str, change: str, seq: int) -> None:
    with trail_at(sqlite_url) as trail:
        carried(trail)
        trail.intend("op1", trail.override("op1").owner, chunk(6, 7), START)
        assert trail.verify().ok
        with sqlite3.connect(sqlite_url.removeprefix("sqlite:///")) as raw:
            raw.execute(change)
        raw.close()
        assert trail.verify().first_bad == seq


def test_overrides_that_were_taken_over_settled_or_abandoned_are_as_recorded(url: str) -> None:
    with trail_at(url) as trail:
        _, owner = begun(trail, "op1", changes=6)
        trail.mark("op1", OverrideState.PAUSED, "", START, owner=owner)
        trail.mark("op1", OverrideState.RUNNING, "", START, owner=owner)
        seq = trail.intend("op1", owner, chunk(0, 1), START)
        later = START + timedelta(seconds=61)
        silent(trail)
        trail.take_over("op1", "settler", later, YES)
        trail.conclude("op1", "settler", seq, [*results(0, 0), *results(1, 1, NOT_APPLIED)], {}, later)
        trail.mark("op1", OverrideState.STOPPED, "n\x00\ud800", later)
        assert trail.verify().what == ""
        trail.take_over("op1", "again", later, YES)
        seq = trail.intend("op1", "again", chunk(1, 5), later)
        trail.conclude("op1", "again", seq, results(1, 5, "failed"), {}, later)
        silent(trail)
        begun(trail, "op2", now=later)
        assert trail.override("op1").state is OverrideState.STOPPED
        assert trail.verify().what == ""
        silent(trail)
        trail.take_over("op1", "last", later, YES)
        trail.mark("op1", OverrideState.FINISHED, "", later)
        assert trail.verify().what == ""


@pytest.mark.parametrize(
    ("change", "seq", "what"),
    [
        ("UPDATE record SET body = '{}' WHERE seq = 4", 4, "edited"),
        ("UPDATE record SET body = NULL, at = NULL WHERE seq = 4", 4, "edited"),
        ("UPDATE record SET hash = 'x' WHERE seq = 56", 56, "edited"),
        ("UPDATE record SET prev = 'x' WHERE seq = 4", 4, "follow"),
        ("DELETE FROM record WHERE seq = 4", 4, "missing"),
        ("UPDATE item_outcome SET detail = 'x' WHERE (seq, ordinal) = (5, 1)", 5, "item outcomes were edited"),
        ("DELETE FROM item_outcome WHERE (seq, ordinal) = (5, 1)", 5, "1 of its item outcomes"),
        ("INSERT INTO item_outcome VALUES (5, 99, 'k', 'changed', '')", 5, "too many"),
        ("INSERT INTO item_outcome VALUES (2, 0, 'k', 'changed', '')", 2, "without a record"),
        ("INSERT INTO item_outcome VALUES (99, 0, 'k', 'changed', '')", 99, "without a record"),
        ("INSERT INTO item_outcome VALUES ('x', 'y', 'k', 'changed', '')", 2**63 - 1, "without a record"),
        ("INSERT INTO item_outcome VALUES (0, 0, 'k', 'changed', '')", 1, "before"),
    ],
)
def test_it_says_what_is_wrong(tampered: Tampered, change: str, seq: int, what: str) -> None:
    tampered.database.execute("PRAGMA writable_schema = 1")
    tampered.database.execute("UPDATE sqlite_master SET sql = replace(sql, ' NOT NULL', '') WHERE name = 'record'")
    tampered.database.close()
    tampered.database = sqlite3.connect(tampered.path, isolation_level=None)
    tampered.database.execute(change)
    found = tampered.verify([])
    assert (found.ok, found.first_bad) == (False, seq)
    assert what in found.what


def test_the_trail_in_postgres_is_verified_too(postgres: object) -> None:
    import psycopg

    with postgres.database() as url, trail_at(url) as trail:  # type: ignore[attr-defined]
        carried(trail, chunks=3, size=3)
        assert trail.verify().ok
        with psycopg.connect(url, autocommit=True) as raw:
            for change in (
                "UPDATE retriage_trail.record SET body = '{}'", "DELETE FROM retriage_trail.item_outcome",
                "TRUNCATE retriage_trail.record", "TRUNCATE retriage_trail.item_outcome",
                "INSERT INTO retriage_trail.record VALUES (99, 'session', '', '', '', '')",
                "INSERT INTO retriage_trail.item_outcome VALUES (3, 99, '', '', '')",
            ):
                with pytest.raises(psycopg.errors.RaiseException):
                    raw.execute("SET search_path = retriage_trail; " + change)
            raw.execute("SET session_replication_role = replica")
            raw.execute("UPDATE retriage_trail.item_outcome SET outcome = 'failed' WHERE ordinal = 4")
        assert (trail.verify().first_bad, trail.verify().what) == (6, "its item outcomes were edited")


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE record SET body = '{}'", "DELETE FROM record WHERE seq = 3", "UPDATE item_outcome SET detail = ''",
        "DELETE FROM item_outcome", "INSERT INTO record VALUES (99, 'session', '', '', '', '')",
        "INSERT OR REPLACE INTO record VALUES (3, 'session', '', '', '', '')",
        "INSERT OR REPLACE INTO item_outcome VALUES (3, 0, 'k', 'changed', '')",
        "INSERT INTO item_outcome VALUES (3, 99, 'k', 'changed', '')",
    ],
)
def test_triggers_stop_accidents(trail_file: tuple[bytes, list[AnchorLine]], tmp_path: Path, change: str) -> None:
    path = tmp_path / "trail.db"
    path.write_bytes(trail_file[0])
    database = sqlite3.connect(path)
    with pytest.raises(sqlite3.IntegrityError):
        database.execute(change)
    database.close()


class Meanwhile:
    """A storage that others write to whenever somebody has read from it."""

    def __init__(self, storage: Any, steps: Iterator[None]) -> None:
        self._storage = storage
        self._steps = steps

    def read(self, work: Callable[[Reading], Any], empty: Any) -> Any:
        found = self._storage.read(work, empty)
        next(self._steps, None)
        return found


@pytest.mark.parametrize("batch", in_depth([1, 2, 3, 5_000], quick=[3]))
def test_a_trail_that_grows_while_it_is_verified_is_intact(url: str, monkeypatch: pytest.MonkeyPatch, batch: int) -> None:
    monkeypatch.setattr(verifying, "_BATCH", batch)
    with trail_at(url) as trail:
        carried(trail, "op1", chunks=2, size=3, places=("/a",))
        _, owner = begun(trail, "op2", places=("/b",), changes=400)

        def steps() -> Iterator[None]:
            for number in range(200):
                seq = trail.intend("op2", owner, chunk(number * 2, number * 2 + 1), START)
                yield
                trail.conclude("op2", owner, seq, results(number * 2, number * 2 + 1), {"backend": "queue"}, START)
                yield

        growing: Any = Meanwhile(trail._storage, steps())
        for _ in range(4):
            assert verifying.verify(growing).what == ""
        assert len(trail.records()) > 10
        assert trail.verify().ok
