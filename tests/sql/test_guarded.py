"""The guarded write: every change or its conflict, never another row, one outcome each, in order."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from console.core.backend import APPLIED, Change, Outcome, OutcomeKind
from console.core.faults import BackendBusy, BackendFault, WrongSchema
from console.core.item import ItemKey
from console.sql.guarded import SqliteGuard, Target, conflict
from console.sql.sqlite import SqliteDatabase
from tests.depth import examples

TARGET = Target("job", "id", ("state", "n"))
DDL = "CREATE TABLE job (id TEXT PRIMARY KEY, state TEXT, n INTEGER, other TEXT)"


class Jobs:
    def __init__(self, path: Path, ddl: str = DDL) -> None:
        self.path = path
        self.run(ddl)
        self.database = SqliteDatabase(path, deadline=timedelta(milliseconds=200))
        self.guard = SqliteGuard(self.database, TARGET)

    def run(self, sql: str, parameters: Any = ()) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            return connection.execute(sql, parameters).fetchall()

    def put(self, *rows: tuple[Any, ...]) -> None:
        for row in rows:
            self.run("INSERT INTO job (id, state, n) VALUES (?, ?, ?)", row)

    def rows(self) -> dict[str, tuple[Any, ...]]:
        return {id: (state, n) for id, state, n in self.run("SELECT id, state, n FROM job")}

    def place(self, id: str) -> str:
        return str(self.run("SELECT rowid FROM job WHERE id = ?", (id,))[0][0])


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    made = Jobs(tmp_path / "jobs.db")
    yield made
    made.database.close()


def change(id: str, before: tuple[Any, ...], after: tuple[Any, ...], unit: str = "") -> Change:
    return Change(unit, (ItemKey("jobs", (id,)),), before, after)


def changed_since(words: str) -> Outcome:
    return Outcome(OutcomeKind.CHANGED_SINCE, words)


def test_outcomes_come_in_the_order_of_the_changes(jobs: Jobs) -> None:
    jobs.put(("a", "bad", 1), ("b", "bad", 2), ("c", "good", 3))
    found = jobs.guard.compare_and_set(
        [
            change("c", ("bad", 3), ("new", 0)), change("a", ("bad", 1), ("new", 0)), change("z", ("bad", 1), ("new", 0)),
            change("b", ("bad", 9), ("new", 0)),
        ]
    )
    assert found == [changed_since("state is now good, was bad"), APPLIED, changed_since("no longer there"), changed_since("n is now 2, was 9")]
    assert jobs.rows() == {"a": ("new", 0), "b": ("bad", 2), "c": ("good", 3)}


def test_nothing_to_do(jobs: Jobs) -> None:
    assert jobs.guard.compare_and_set([]) == []


def test_null_is_a_value_to_compare(jobs: Jobs) -> None:
    jobs.put(("a", None, None), ("b", None, 1), ("c", "bad", 1))
    found = jobs.guard.compare_and_set([change(id, (None, None), ("new", 0)) for id in "abc"])
    assert found == [APPLIED, changed_since("n is now 1, was NULL"), changed_since("state is now bad, was NULL")]


def test_a_place_is_believed_only_with_its_key(jobs: Jobs) -> None:
    jobs.put(("a", "bad", 1), ("b", "bad", 1))
    places = {id: jobs.place(id) for id in "ab"}
    for id, place in (("a", "99"), ("b", places["a"]), ("a", places["b"])):  # the two change places
        jobs.run("UPDATE job SET rowid = ? WHERE id = ?", (place, id))
    assert jobs.guard.compare_and_set([change("a", ("bad", 1), ("new", 0), places["a"])]) == [APPLIED]
    assert jobs.rows() == {"a": ("new", 0), "b": ("bad", 1)}


def test_an_id_of_nineteen_digits_is_found(tmp_path: Path) -> None:
    """As snowflakes have them."""
    jobs = Jobs(tmp_path / "jobs.db", DDL.replace("id TEXT", "id INTEGER"))
    ids = [2**63 - 1, -(2**63), 1234567890123456789]
    jobs.put(*((id, "bad", 1) for id in ids))
    guard = SqliteGuard(jobs.database, replace(TARGET, integer_key=True))
    found = guard.compare_and_set([change(str(id), ("bad", 1), ("new", 0)) for id in (*ids, 2**63, -(2**63) - 1)])
    assert found == [APPLIED] * 3 + [changed_since("no longer there")] * 2
    jobs.database.close()


def test_negative_places_are_found_by_key(jobs: Jobs) -> None:
    jobs.run("INSERT INTO job (rowid, id, state, n) VALUES (-5, 'a', 'bad', 1)")
    assert jobs.guard.compare_and_set([change("a", ("bad", 1), ("new", 0), "-5")]) == [APPLIED]


def test_a_table_without_rowids(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path / "jobs.db", f"{DDL} WITHOUT ROWID")
    jobs.put(("a", "bad", 1), ("b", "bad", 1))
    assert jobs.guard.compare_and_set([change("a", ("bad", 1), ("new", 0)), change("b", ("bad", 2), ("new", 0))]) == [
        APPLIED, changed_since("n is now 1, was 2"),
    ]
    jobs.database.close()


def test_a_key_in_other_letters_is_another_row(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path / "jobs.db", DDL.replace("id TEXT", "id TEXT COLLATE NOCASE").replace("state TEXT", "state TEXT COLLATE NOCASE"))
    jobs.put(("ABC", "bad", 1), ("b", "BAD", 1))
    found = jobs.guard.compare_and_set([change("abc", ("bad", 1), ("new", 0)), change("b", ("bad", 1), ("new", 0))])
    assert found == [changed_since("no longer there"), changed_since("state is now BAD, was bad")]
    assert jobs.rows() == {"ABC": ("bad", 1), "b": ("BAD", 1)}
    jobs.database.close()


@pytest.mark.parametrize("name", ["chunk", "retriage_chunk", "t", "now", "a b", 'x"y'])
def test_a_table_of_any_name(jobs: Jobs, name: str) -> None:
    """Among them the names that the statement itself uses."""
    quoted = '"' + name.replace('"', '""') + '"'
    jobs.put(("a", "bad", 1), ("b", "bad", 1), ("c", "bad", 1))
    jobs.run(f"ALTER TABLE job RENAME TO {quoted}")
    guard = SqliteGuard(jobs.database, replace(TARGET, table=name))
    assert guard.compare_and_set([change("a", ("bad", 1), ("new", 0), "1")]) == [APPLIED]
    assert guard.compare_and_set([change(id, ("bad", 1), ("new", 0), "9") for id in "bc"]) == [APPLIED] * 2
    assert guard.compare_and_set([change("b", ("bad", 1), ("new", 0))]) == [changed_since("state is now new, was bad")]
    assert guard.images([ItemKey("jobs", ("c",))]) == {ItemKey("jobs", ("c",)): ("new", 0)}


def test_images_are_of_keys_to_the_letter(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path / "jobs.db", DDL.replace("id TEXT", "id TEXT COLLATE NOCASE"))
    jobs.put(("ABC", "bad", 1), ("b", "bad", 1))
    assert jobs.guard.images([ItemKey("jobs", (id,)) for id in ("abc", "b")]) == {ItemKey("jobs", ("b",)): ("bad", 1)}
    jobs.database.close()


def test_a_row_planned_twice_is_written_once_by_what_still_holds(jobs: Jobs) -> None:
    jobs.put(("a", "bad", 1), ("b", "bad", 1))
    stale, fresh = change("a", ("worse", 1), ("new", 0)), change("a", ("bad", 1), ("new", 0))
    for changes, expected in (
        ([stale, change("b", ("bad", 1), ("new", 0)), fresh], ["changed", "applied", "applied"]),
        ([fresh, stale], ["applied", "changed"]),
        ([fresh, fresh], ["changed", "applied"]),
    ):
        jobs.run("UPDATE job SET state = 'bad', n = 1")
        assert [outcome.kind.value for outcome in jobs.guard.compare_and_set(changes)] == expected
        assert jobs.rows()["a"] == ("new", 0)


@pytest.mark.parametrize("how", ["ABORT", "FAIL", "ROLLBACK"])
@pytest.mark.parametrize("refused", [{0}, {7}, {0, 1, 2}, {3, 12}, set(range(16))])
def test_rows_that_raise_fail_alone(jobs: Jobs, how: str, refused: set[int]) -> None:
    jobs.put(*((f"{n:02d}", "bad", n) for n in range(16)))
    for n in refused:
        jobs.run(f"CREATE TRIGGER no{n} BEFORE UPDATE ON job WHEN OLD.n = {n} BEGIN SELECT RAISE({how}, 'not {n}'); END")
    found = jobs.guard.compare_and_set([change(f"{n:02d}", ("bad", n), ("new", n)) for n in range(16)])
    assert found == [Outcome(OutcomeKind.REJECTED, f"not {n}") if n in refused else APPLIED for n in range(16)]
    assert {id for id, row in jobs.rows().items() if row[0] == "new"} == {f"{n:02d}" for n in range(16) if n not in refused}


def test_a_number_too_large_for_the_database_fails_alone(jobs: Jobs) -> None:
    jobs.put(*((f"{n:02d}", "bad", n) for n in range(16)))
    found = jobs.guard.compare_and_set([change(f"{n:02d}", ("bad", n), ("new", 2**63 if n == 5 else -n)) for n in range(16)])
    assert [n for n, outcome in enumerate(found) if outcome.kind is OutcomeKind.REJECTED] == [5]
    assert "too large" in found[5].detail
    assert {id for id, row in jobs.rows().items() if row[0] == "bad"} == {"05"}


def test_a_unique_index_lets_the_first_of_several_through(jobs: Jobs) -> None:
    jobs.run("CREATE UNIQUE INDEX one ON job (n) WHERE state = 'new'")
    jobs.put(("a", "bad", 1), ("b", "bad", 1), ("c", "bad", 2))
    found = jobs.guard.compare_and_set([change(id, ("bad", n), ("new", n)) for id, n in (("a", 1), ("b", 1), ("c", 2))])
    assert [outcome.kind.value for outcome in found] == ["applied", "rejected", "applied"]


def test_a_row_the_database_leaves_alone_is_said_to_be_left_alone(jobs: Jobs) -> None:
    jobs.put(("a", "bad", 1))
    jobs.run("CREATE TRIGGER no BEFORE UPDATE ON job BEGIN SELECT RAISE(IGNORE); END")
    assert jobs.guard.compare_and_set([change("a", ("bad", 1), ("new", 0))]) == [changed_since("the database left it unchanged")]


def test_a_locked_database_is_a_fault_and_changes_nothing(jobs: Jobs) -> None:
    jobs.put(("a", "bad", 1))
    with closing(sqlite3.connect(jobs.path, isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(BackendBusy):
            jobs.guard.compare_and_set([change("a", ("bad", 1), ("new", 0))])
    assert jobs.rows() == {"a": ("bad", 1)}
    assert jobs.guard.compare_and_set([change("a", ("bad", 1), ("new", 0))]) == [APPLIED]


def test_a_trigger_that_is_broken_is_a_fault_and_changes_nothing(jobs: Jobs) -> None:
    jobs.put(("a", "bad", 1), ("b", "bad", 1))
    jobs.run("CREATE TRIGGER no AFTER UPDATE ON job WHEN OLD.id = 'b' BEGIN INSERT INTO nowhere VALUES (1); END")
    with pytest.raises(WrongSchema):
        jobs.guard.compare_and_set([change(id, ("bad", 1), ("new", 0)) for id in "ab"])
    assert jobs.rows() == {"a": ("bad", 1), "b": ("bad", 1)}


def test_a_table_that_is_gone_is_a_fault(jobs: Jobs) -> None:
    jobs.run("DROP TABLE job")
    with pytest.raises(BackendFault):
        jobs.guard.compare_and_set([change("a", ("bad", 1), ("new", 0))])


def test_nothing_of_ours_is_left_in_the_database(jobs: Jobs) -> None:
    jobs.put(("a", "bad", 1))
    jobs.guard.compare_and_set([change("a", ("bad", 1), ("new", 0))])
    assert jobs.run("SELECT name FROM sqlite_master WHERE type = 'table'") == [("job",)]


def test_images_tell_what_is_there_now(jobs: Jobs) -> None:
    jobs.put(*((f"{n:04d}", "bad", n) for n in range(20)))
    keys = [ItemKey("jobs", (f"{n:04d}",)) for n in range(25)]
    assert jobs.guard.images(keys) == {key: ("bad", n) for n, key in enumerate(keys[:20])}
    assert jobs.guard.images([]) == {}


def test_images_of_more_keys_than_one_statement_takes(jobs: Jobs) -> None:
    jobs.run("WITH RECURSIVE c(x) AS (SELECT 0 UNION ALL SELECT x + 1 FROM c WHERE x < 1200) INSERT INTO job (id, state, n) SELECT x, 'bad', x FROM c")
    assert len(jobs.guard.images([ItemKey("jobs", (str(n),)) for n in range(1201)])) == 1201


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (None, "no longer there"), (("b", 1), "x is now b, was a"), (("a", None), "y is now NULL, was 1"),
        (("a" * 200, 1), f"x is now {'a' * 80}, was a"), (("a", 1), "the database left it unchanged"),
    ],
)
def test_a_conflict_names_the_first_column_that_differs(now: tuple[Any, ...] | None, said: str) -> None:
    assert conflict(("a", 1), now, ("x", "y")) == changed_since(said)


VALUES = st.sampled_from(["bad", "good", None, ""])
ROWS = st.dictionaries(st.sampled_from("abcdef"), st.tuples(VALUES, st.integers(0, 2)), max_size=6)


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=ROWS, planned=ROWS, shuffled=st.permutations("abcdef"))
def test_exactly_the_rows_that_are_as_planned_change(jobs: Jobs, rows: Any, planned: Any, shuffled: list[str]) -> None:
    """Against the plainest model: compare each row by hand, then set it. Places are guesses, right or wrong."""
    jobs.run("DELETE FROM job")
    jobs.put(*((id, *row) for id, row in rows.items()))
    places = dict(zip("abcdef", shuffled, strict=True))
    changes = [
        change(id, before, ("new", 7), jobs.place(places[id]) if places[id] in rows else "") for id, before in planned.items()
    ]
    found = jobs.guard.compare_and_set(changes)
    expected = {id: (("new", 7) if planned.get(id) == row else row) for id, row in rows.items()}
    assert jobs.rows() == expected
    assert [outcome.kind is OutcomeKind.APPLIED for outcome in found] == [rows.get(id) == before for id, before in planned.items()]
