"""The control plane: when a retry may run, what is paused or marked, by whom; in our own table and nowhere else."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from console.core.backend import Change, Flag, Operation, PageRequest
from console.core.faults import ReadOnlyRefused
from console.core.item import Condition, ItemKey
from console.core.policy import PolicyOverride
from console.core.query import Filter
from console.testing import ALL, NOON
from plugins.partition_store.actions import INCLUDE_TERMINAL, PartitionAction
from plugins.partition_store.backend import POLICY
from plugins.partition_store.schema import CONTROL
from plugins.partition_store.tables import Tables
from tests.plugins.partition_store.consoles import ORIGIN, WHO, carry_out, console_on, last_outcomes
from tests.plugins.partition_store.stores import OWN, Store, act, drafts, part, run_id, skipped, undo
from tests.plugins.partition_store.stores import WHO as AUTHORITY
from tests.plugins.postgres_analyses.server import database

RESPECT_BACKOFF = Operation(flags=frozenset({Flag.RESPECT_BACKOFF}))
MINUTE = timedelta(minutes=1)


def failed_at(store: Store, at: datetime, attempts: int, day: int = 9) -> ItemKey:
    store.run(part(day), run_id(1, day))
    return store.put(part(day), attempt_count=attempts, updated_at=at.isoformat())


@pytest.mark.parametrize(("attempts", "minutes"), [(1, 5), (2, 30), (3, 120), (4, 120), (50, 120)])
def test_the_recommended_backoff_and_its_jitter(store: Store, attempts: int, minutes: int) -> None:
    assert POLICY.delay_after(attempts) == (0.8 * minutes * MINUTE, 1.2 * minutes * MINUTE)
    backend = store.open(PolicyOverride())
    waits = set()
    for day in range(1, 9):
        key = failed_at(store, NOON, attempts, day)
        act(backend, key, RESPECT_BACKOFF, NOON)
        due = backend.items([key], NOON)[key].verdict.next_retry_at
        assert due is not None
        assert 0.8 * minutes * MINUTE <= due - NOON <= 1.2 * minutes * MINUTE
        waits.add(due)
    assert len(waits) == 8, "jitter keeps them from running all at once"
    assert {strategy for (strategy,) in store.marks("backoff_strategy")} == {"5m ×6 up to 2h ±20%"}


def test_our_validator_waits_until_then_and_clears_it(store: Store) -> None:
    key = failed_at(store, NOON, 1)
    backend = store.open()
    act(backend, key, RESPECT_BACKOFF, NOON)
    (item,) = backend.page(PageRequest(Filter.parse("next<10m condition:retrying"), NOON)).items
    assert item.key == key
    assert store.validate(backend) == 0
    store.clock.tick(7 * MINUTE)
    assert store.validate(backend) == 1
    assert store.marks("next_run_at", "backoff_strategy") == [(None, None)]


def test_a_backoff_that_is_over_waits_for_nothing(store: Store) -> None:
    key = failed_at(store, NOON - timedelta(hours=3), 2)
    backend = store.open()
    act(backend, key, RESPECT_BACKOFF, NOON)
    assert not store.has_control(), "an action that marks nothing creates nothing"
    assert store.validate(backend) == 1


def test_an_early_retry_is_warned_of(store: Store) -> None:
    key = failed_at(store, NOON - MINUTE, 1)
    (draft,) = drafts(store.open(), [key])
    assert (draft.skipped, draft.warning.text) == (None, "Retried before its recommended backoff is over.")
    (draft,) = drafts(store.open(), [key], RESPECT_BACKOFF)
    assert draft.warning is None
    (draft,) = drafts(store.open(), [key], now=NOON + 5 * MINUTE)
    assert draft.warning is None


def test_a_release_over_time_is_stored_for_our_validator_only(store: Store, tmp_path: Path) -> None:
    keys = [failed_at(store, NOON, 1, day) for day in range(1, 5)]
    backend = store.open()
    assert backend.abilities.stores_due_time
    assert not store.open(validator=False).abilities.stores_due_time
    with console_on(backend, tmp_path) as operations:
        override = carry_out(operations, Operation(), *keys, pace="over 8h")
        assert override.counts == {"applied": 4}
    due = [item.verdict.next_retry_at for item in backend.items(keys, NOON).values()]
    assert len(set(due)) == 4
    store.clock = type(store.clock)(datetime.now(NOON.tzinfo))
    assert store.validate(backend) <= 1, "the others wait"


def test_marks_say_who_when_and_why(store: Store) -> None:
    key = failed_at(store, NOON, 1)
    backend = store.open()
    act(backend, key, Operation(PartitionAction.MARK_TERMINAL))
    act(backend, key, Operation(PartitionAction.PAUSE))
    ((terminal, by, at, why, paused, paused_by, paused_at, paused_why),) = store.marks(
        "terminal", "terminal_by", "terminal_at", "terminal_why", "paused", "paused_by", "paused_at", "paused_why"
    )
    assert (terminal, by, why, paused, paused_by, paused_why) == ("marked", "ops", "because", "paused", "ops", "because")
    for stamp in (at, paused_at):
        assert abs(datetime.fromisoformat(stamp) - backend.now()) < timedelta(minutes=5)
    act(backend, key, Operation(PartitionAction.UNPAUSE))
    assert store.marks("paused", "paused_by", "paused_at", "paused_why") == [(None,) * 4]


def test_undo_brings_back_who_when_and_why(store: Store) -> None:
    signs = ("terminal_by", "terminal_at", "terminal_why", "paused_by", "paused_at", "paused_why")
    key = failed_at(store, NOON, 1)
    backend = store.open()
    act(backend, key, Operation(PartitionAction.MARK_TERMINAL))
    act(backend, key, Operation(PartitionAction.PAUSE))
    alice = ("alice", "2026-01-01T00:00:00+00:00", "customer left", "bob", "2026-01-02T00:00:00+00:00", "holidays")
    store.sql(f"UPDATE {CONTROL} SET {', '.join(f'{name} = ?' for name in signs)}", alice)
    unpaused = act(backend, key, Operation(PartitionAction.UNPAUSE))
    cleared = act(backend, key, Operation(flags=frozenset({INCLUDE_TERMINAL})))
    assert store.marks(*signs)[0][0] is None
    undo(backend, cleared)
    undo(backend, unpaused)
    assert store.marks(*signs) == [alice]


def test_undo_of_a_reprocessing_leaves_what_the_last_one_said(store: Store) -> None:
    store.run(part(), run_id(1))
    key = store.put(part(), "success")
    backend = store.open()
    undo(backend, act(backend, key, Operation(PartitionAction.REPROCESS)))
    store.sql(f"UPDATE {CONTROL} SET request_error = 'count mismatch'")
    undo(backend, act(backend, key, Operation(PartitionAction.REPROCESS)))
    assert store.marks("request", "request_error") == [(None, "count mismatch")]


def test_nothing_is_created_by_reading_or_in_read_only_mode(store: Store) -> None:
    key = failed_at(store, NOON, 1)
    backend = store.open(read_only=True)
    backend.page(PageRequest(ALL, NOON))
    backend.item(key, NOON)
    backend.check(store.clock)
    (draft,) = drafts(backend, [key], Operation(PartitionAction.PAUSE))
    assert draft.skipped is None
    change = Change("", (key,), ("failed",), ("failed", "paused"))
    with pytest.raises(ReadOnlyRefused):
        backend.compare_and_set([change], Operation(PartitionAction.PAUSE), AUTHORITY)
    assert not store.has_control()


def test_two_consoles_create_the_table_together(store: Store) -> None:
    keys = [failed_at(store, NOON, 1, day) for day in range(1, 7)]

    def pause(key: ItemKey) -> None:
        act(store.open(), key, Operation(PartitionAction.PAUSE))

    with ThreadPoolExecutor(len(keys)) as consoles:
        assert list(consoles.map(pause, keys)) == [None] * 6
    assert len(store.marks("paused")) == 6


def test_consoles_that_find_no_table_at_the_same_moment_make_one(store: Store) -> None:
    consoles = [store.open().tables for _ in range(4)]
    assert not any(tables.has_control() for tables in consoles)
    with ThreadPoolExecutor(len(consoles)) as pool:
        for _ in range(30):
            assert list(pool.map(Tables.create_control, consoles)) == [None] * 4
            assert store.has_control()
            with consoles[0].control.writing() as writer:
                writer.execute(f"DROP TABLE {CONTROL}")


def test_a_failed_backfill_stays_behind_new_data_when_requeued(store: Store) -> None:
    backend = store.open()
    act(backend, ItemKey("parts", part(1)), Operation(PartitionAction.BACKFILL))
    store.run(part(1), run_id(1, 1), counted=9)
    assert store.validate(backend) == 1
    store.run(part(1), run_id(2, 1))
    act(backend, ItemKey("parts", part(1)), Operation(), store.clock.tick())
    store.put(part(2), "pending", attempt_count=0)
    store.run(part(2), run_id(1, 2))
    operation: list[str] = []
    validator = store.validator(backend, handler=lambda p, _: operation.append(p.logical_date[-2:]))
    store.clock.tick()
    for _ in range(2):
        validator.cycle(lambda _: None, NoStop())
    assert operation == ["02", "01"]
    assert store.marks("request") == [(None,)], "a success is no backfill any more"


class NoStop:
    requested = False


def test_backfills_are_taken_a_few_at_a_time(store: Store) -> None:
    backend = store.open()
    for day in range(1, 29):
        act(backend, ItemKey("parts", part(day)), Operation(PartitionAction.BACKFILL), NOON + timedelta(days=30))
    assert store.validate(backend) == 20
    assert store.validate(backend) == 8


def test_where_the_validator_is_not_ours_a_backfill_is_warned_of(store: Store) -> None:
    backend = store.open(validator=False)
    (draft,) = drafts(backend, [ItemKey("parts", part(1))], Operation(PartitionAction.BACKFILL))
    assert "or they delay new data" in draft.warning.text


@pytest.mark.parametrize("kind", ["postgres"], indirect=True)
def test_a_row_someone_else_holds_has_changed_and_is_not_waited_for(store: Store) -> None:
    key = failed_at(store, NOON, 1)
    backend = store.open()
    (draft,) = drafts(backend, [key])
    change = Change("", (key,), draft.before, ())
    change = change._replace(after=backend.after(change, Operation(), NOON, NOON))
    with psycopg.connect(store.url) as holder:
        holder.execute("SELECT * FROM partition_state FOR UPDATE")
        (outcome,) = backend.compare_and_set([change], Operation(), AUTHORITY)
        assert (outcome.kind, outcome.detail) == ("changed", "locked by another transaction")
        holder.rollback()
    (outcome,) = backend.compare_and_set([change], Operation(), AUTHORITY)
    assert outcome.kind == "applied"


REFUSALS = {
    "abort": "raise(ABORT, 'not this one')",
    "rollback": "raise(ROLLBACK, 'not this one')",
    "ignore": "raise(IGNORE)",
}


@pytest.mark.parametrize("how", REFUSALS)
def test_a_partition_that_is_refused_or_passed_over_is_failed_alone(store: Store, tmp_path: Path, how: str) -> None:
    keys = [failed_at(store, NOON, 1, day) for day in range(1, 6)]
    expected = "the database left it unchanged" if how == "ignore" else "not this one"
    if store.is_sqlite:
        store.sql(
            f"CREATE TRIGGER no BEFORE UPDATE ON partition_state WHEN new.logical_date = '{keys[3].parts[3]}'"
            f" BEGIN SELECT {REFUSALS[how]}; END"
        )
    else:
        does = "RETURN NULL" if how == "ignore" else "RAISE EXCEPTION 'not this one'"
        store.sql(f"CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {does}; END $$")
        store.sql(
            "CREATE TRIGGER no BEFORE UPDATE ON partition_state FOR EACH ROW"
            f" WHEN (new.logical_date = '{keys[3].parts[3]}') EXECUTE FUNCTION no()"
        )
    with console_on(store.open(), tmp_path) as operations:
        override = carry_out(operations, Operation(), *keys)
        assert override.counts == {"applied": 4, "rejected": 1}
        (failed,) = (o for batch in operations.trail.outcomes(override.override_id) for o in batch if o.outcome == "rejected")
    assert (failed.key, failed.detail) == (str(keys[3]), expected)
    assert [store.row(part(day))["status"] for day in range(1, 6)] == ["pending"] * 3 + ["failed", "pending"]


# --- our table in another database ------------------------------------------------------------------


@pytest.fixture(params=["sqlite", "postgres"])
def elsewhere(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "postgres":
        with database() as url:
            yield url
        return
    with closing(sqlite3.connect(tmp_path / "control.db")) as made:
        made.execute("CREATE TABLE other (x)")
    yield f"sqlite:///{tmp_path}/control.db"


def test_the_table_lives_elsewhere(store: Store, elsewhere: str) -> None:
    key = failed_at(store, NOON, 1)
    backend = store.open(control_url=elsewhere)
    act(backend, key, Operation(PartitionAction.MARK_TERMINAL))
    assert not store.has_control()
    assert store.marks("terminal", "terminal_by", url=elsewhere) == [("marked", "ops")]
    assert backend.page(PageRequest(Filter.parse("condition:terminal"), NOON)).items[0].key == key
    change = act(backend, key, Operation(flags=frozenset({INCLUDE_TERMINAL, Flag.RESPECT_BACKOFF})), NOON)
    assert backend.items([key], NOON)[key].condition is Condition.RETRYING
    assert store.validate(backend) == 0
    undo(backend, change)
    assert store.row(part())["status"] == "failed"
    act(backend, key, Operation(flags=frozenset({INCLUDE_TERMINAL})), NOON)
    assert store.validate(backend) == 1
    assert skipped(backend, key) == "Already done; reprocess it instead."
    act(backend, key, Operation(PartitionAction.REPROCESS), store.clock.now())
    assert store.validate(backend) == 1
    assert store.marks("request", url=elsewhere) == [(None,)]


def test_killed_between_the_two_commits_it_is_taken_back_and_done_again(store: Store, elsewhere: str, tmp_path: Path) -> None:
    keys = [failed_at(store, NOON, 3, day) for day in (1, 2, 3)]
    insist = Operation(flags=frozenset({INCLUDE_TERMINAL}))
    backend = store.open(OWN, control_url=elsewhere)
    for key in keys:
        act(backend, key, Operation(PartitionAction.MARK_TERMINAL))
    backend.close()
    child = os.fork()
    if child == 0:
        Tables.writing = _dying  # type: ignore[method-assign]
        try:
            with console_on(store.open(OWN, control_url=elsewhere), tmp_path) as operations:
                carry_out(operations, insist, *keys)
        finally:
            os._exit(1)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
    assert {store.row(part(day))["status"] for day in (1, 2, 3)} == {"pending"}, "the state was committed, the marks were not"
    assert {mark for (mark,) in store.marks("terminal", url=elsewhere)} == {"marked"}
    with console_on(store.open(OWN, control_url=elsewhere), tmp_path) as operations:
        (override,) = operations.trail.overrides()
        ended = operations.resume(override.override_id, WHO, ORIGIN)
        assert ended.counts == {"applied": 3}
        recorded = last_outcomes(operations, override.override_id)
        assert all(outcomes == ["not_applied", "applied"] or outcomes[-1] == "applied" for outcomes in recorded.values())
        assert operations.trail.verified().ok
    assert {mark for (mark,) in store.marks("terminal", url=elsewhere)} == {None}
    assert {store.row(part(day))["status"] for day in (1, 2, 3)} == {"pending"}


@contextmanager
def _dying(self: Tables) -> Iterator[Any]:
    with self.control.writing() as ours:
        with self.state.writing() as theirs:
            yield theirs, ours
        os.kill(os.getpid(), signal.SIGKILL)
