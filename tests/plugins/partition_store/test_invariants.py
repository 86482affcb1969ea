"""Seed §9 under everything at once: runs arriving, validators and operators at work, both killed at any point.

The oracle is the database: a trigger notes every change of a row, whoever makes it.
"""

from __future__ import annotations

import os
import random
import signal
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from console.core.backend import Operation
from console.core.item import ItemKey
from console.core.plan import Marked
from console.core.policy import PolicyOverride
from console.core.ports import Never
from console.process import SystemClock
from plugins.partition_store.actions import INCLUDE_TERMINAL, PartitionAction
from plugins.partition_store.engine import Validator
from tests.faults.processes import killer
from tests.faults.world import confirm
from tests.plugins.partition_store.consoles import ORIGIN, WHO, console_on
from tests.plugins.partition_store.stores import Store, part, run_id, tree_hash
from tests.plugins.postgres_analyses.server import database

P, ABSENT = part(), part(2)
KEY = ItemKey("parts", P)
SQLITE_ORACLE = """
CREATE TABLE oracle (n INTEGER PRIMARY KEY, old_status, new_status, old_attempts, new_attempts, old_run, new_run);
CREATE TRIGGER noted AFTER UPDATE ON partition_state BEGIN
    INSERT INTO oracle (old_status, new_status, old_attempts, new_attempts, old_run, new_run)
    VALUES (OLD.status, NEW.status, OLD.attempt_count, NEW.attempt_count, OLD.current_run_id, NEW.current_run_id);
END
"""
POSTGRES_ORACLE = """
CREATE TABLE oracle (n serial, old_status text, new_status text, old_attempts int, new_attempts int, old_run text, new_run text);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO oracle (old_status, new_status, old_attempts, new_attempts, old_run, new_run)
    VALUES (OLD.status, NEW.status, OLD.attempt_count, NEW.attempt_count, OLD.current_run_id, NEW.current_run_id);
    RETURN NEW;
END $$;
CREATE TRIGGER noted AFTER UPDATE ON partition_state FOR EACH ROW EXECUTE FUNCTION note()
"""
ORDERS = {
    "retry": Operation(), "insist": Operation(flags=frozenset({INCLUDE_TERMINAL})), "reprocess": Operation(PartitionAction.REPROCESS),
    "mark": Operation(PartitionAction.MARK_TERMINAL), "clear": Operation(PartitionAction.CLEAR_TERMINAL), "pause": Operation(PartitionAction.PAUSE), "unpause": Operation(PartitionAction.UNPAUSE),
    "backfill": Operation(PartitionAction.BACKFILL),
}
PLACES = ("_verify", "_ask", "_conclude", "after")
POINTS = ("before_write", "after_write")
EVENTS = st.lists(
    st.one_of(
        st.sampled_from(["good run", "bad run", "validate", *ORDERS]),
        st.tuples(st.just("killed validator"), st.sampled_from(PLACES)),
        st.tuples(st.just("killed operator"), st.sampled_from(sorted(ORDERS)), st.sampled_from(POINTS)),
    ),
    min_size=4, max_size=14,
)
ALLOWED = {
    ("pending", "success"), ("pending", "failed"), ("failed", "pending"), ("success", "success"), ("failed", "failed"), ("pending", "pending"),
}


def dies(work: Callable[[], object]) -> None:
    """In a child of its own, which is killed at the end if it was not before."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])


def die(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class World:
    """One partition and one that has no row yet, and everybody who works on them."""

    def __init__(self, base: Path, url: str) -> None:
        self.folder = base
        self.store = Store(base / "etl", url=url)
        watch(self.store)
        self.store.put(P, "pending", attempt_count=0)
        self.store.clock = SystemClock()  # type: ignore[assignment]
        self.runs = 0
        self.raw: dict[str, str] = {}

    def open(self) -> Any:
        return self.store.open(PolicyOverride(max_attempts=3))

    def happen(self, event: Any) -> None:
        match event:
            case "good run" | "bad run":
                self.runs += 1
                self.store.run(P, run_id(self.runs % 24, 9 + self.runs // 24), counted=None if event == "good run" else 99)
                grown = tree_hash(self.store.raw)
                files = {path: hash for path, hash in self.raw.items() if path.endswith((".jsonl", ".json"))}
                assert files.items() <= grown.items(), "runs are immutable"
                self.raw = grown
            case "validate":
                self.validate()
            case ("killed validator", place):
                dies(lambda: self.validate(place))
            case ("killed operator", name, point):
                dies(lambda: self.operate(name, killer(point)))
                self.resume()
            case name:
                self.operate(name)

    def validate(self, die_at: str = "") -> None:
        if die_at and die_at != "after":
            setattr(Validator, die_at, die)
        with ExitStack() as stack:
            backend = self.open()
            stack.callback(backend.close)
            Validator(backend.tables, backend.sink, SystemClock()).cycle(lambda _: None, Never())

    def operate(self, name: str, reach: Callable[[str], None] = lambda _: None) -> None:
        backend = self.open()
        key = ItemKey("parts", ABSENT) if name == "backfill" else KEY
        before = self.store.row(P)
        assert before is not None
        with console_on(backend, self.folder, reach) as operations:
            plan = operations.propose(Marked((key,)), ORDERS[name])
            if before["status"] == "pending" and name in ("retry", "insist"):
                assert plan.changes == 0, "never two retries of one partition at the same time"
            if plan.changes:
                operations.carry_out(plan, confirm(plan))
        backend.close()

    def resume(self) -> None:
        """What the next start of a console does."""
        backend = self.open()
        with console_on(backend, self.folder) as operations:
            operations.settle_unresolved(WHO, ORIGIN)
            for override in operations.trail.overrides():
                if not override.state.over:
                    assert operations.resume(override.override_id, WHO, ORIGIN).state.over
            assert not operations.trail.unresolved()
            assert operations.trail.verified().ok
        backend.close()

    def check(self) -> None:
        assert tree_hash(self.store.raw) == self.raw, "nobody but the extractor writes raw data"
        row = self.store.row(P)
        assert row is not None
        if row["current_run_id"] is not None:
            assert self.store.folder(P, row["current_run_id"]).is_dir(), "the authority exists"
        assert row["status"] != "success" or row["current_run_id"] is not None
        noted = self.store.sql("SELECT old_status, new_status, old_attempts, new_attempts, old_run, new_run FROM oracle ORDER BY n")
        for old, new, tried, then, run, moved in noted:
            assert (old, new) in ALLOWED
            assert then - tried in (0, 1), "an attempt is counted once, and never taken back"
            if (old, new) == ("failed", "pending"):
                assert (then, moved) == (tried, run), "an operator touches neither counter nor authority"
            if (old, new) in {("pending", "success"), ("pending", "failed")}:
                assert then == tried + 1, "every attempt counts"
            assert run is None or (moved is not None and moved >= run), "the authority never goes back"


@pytest.mark.parametrize(("url", "examples"), [("sqlite", 25), ("postgres", 8)])
def test_any_order_of_events_and_kills_keeps_the_invariants(url: str, examples: int, thorough: bool) -> None:
    @settings(
        max_examples=examples if thorough else examples // 4, deadline=None, suppress_health_check=list(HealthCheck), phases=(Phase.explicit, Phase.generate, Phase.shrink)
    )
    @given(EVENTS)
    def holds(events: list[Any]) -> None:
        with ExitStack() as stack:
            place = stack.enter_context(database()) if url == "postgres" else ""
            world = World(Path(stack.enter_context(tempfile.TemporaryDirectory())), place)
            for event in events:
                world.happen(event)
                world.check()

    holds()


def test_validators_killed_at_random_moments_count_every_attempt_once(store: Store, thorough: bool) -> None:
    """Two validators at work on twenty-eight partitions, killed again and again while they are."""
    chance = random.Random(7)
    watch(store)
    for day in range(1, 29):
        store.put(part(day), "pending", attempt_count=0)
        store.run(part(day), run_id(1, day), records=200, counted=None if day % 3 else 7)
    for _ in range(12 if thorough else 4):
        children = [_validating(store, chance.randrange(2**31)) for _ in range(2)]
        time.sleep(chance.uniform(0.05, 0.25))
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    backend = store.open()
    while Validator(backend.tables, backend.sink, SystemClock()).cycle(lambda _: None, Never()):
        pass
    assert {row[4] for row in store.rows()} == {"success", "failed"}
    noted = store.sql("SELECT old_status, new_status, old_attempts, new_attempts FROM oracle ORDER BY n")
    assert len(noted) == 28, "each partition was decided once, by whichever validator lived long enough"
    assert {(old, then - tried) for old, _, tried, then in noted} == {("pending", 1)}
    assert {row[10] for row in store.rows()} == {1}


def watch(store: Store) -> None:
    if not store.is_sqlite:
        store.sql(POSTGRES_ORACLE)
        return
    first, second = SQLITE_ORACLE.split(";\n", 1)
    store.sql(first)
    store.sql(second)


def _validating(store: Store, seed: int) -> int:
    child = os.fork()
    if child == 0:
        chance = random.Random(seed)

        def slow(*_: Any) -> None:
            time.sleep(chance.random() * 0.02)

        try:
            backend = store.open()
            Validator(backend.tables, backend.sink, SystemClock(), slow).work(Never(), lambda _: None)
        finally:
            os._exit(0)
    return child
