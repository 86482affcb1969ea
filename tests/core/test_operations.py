"""Confirm and carry out: exactly the confirmed plan; what changed since is reported; every refusal is recorded."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest

from console.core.backend import Change, Outcome
from console.core.confirm import Limits
from console.core.events import EventKind, OverrideEvent
from console.core.executor import Progress
from console.core.faults import (
    AllSkipped,
    LeaseLost,
    NoSuchOverride,
    NotConfirmed,
    OverrideRunning,
    PlanAltered,
    PlanExpired,
    PlanStale,
    Unreachable,
)
from console.core.override import OverrideState
from console.core.pace import Now, Over, Pace, Rate
from console.core.query import Sort, SortField
from console.testing import MemoryReader, StopFlag
from plugins.sqlite_queue import SqliteQueue
from plugins.sqlite_queue.schema import ASYNC_TASKS, ASYNC_TASKS_DDL, TASKS_DDL
from tests.faults.world import (
    KEEP,
    NOON,
    ORIGIN,
    RESET,
    WHO,
    QueueFile,
    World,
    confirm,
    marked,
    matching,
    outcomes,
    planned,
    refusals,
    world_in,
)
from tests.patience import PATIENCE

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with world_in(tmp_path) as made:
        yield made


def at(text: object) -> datetime:
    assert isinstance(text, str)
    return datetime.fromisoformat(text)


# -- what a requeue does to a row ------------------------------------------------------------------------


def test_keep_leaves_the_counter_and_the_error(world: World) -> None:
    key = world.queue.put("a")
    console = world.console()
    override = console.carry_out((plan := console.propose(marked(key), KEEP)), confirm(plan))
    assert (override.state, override.counts) == (OverrideState.FINISHED, {"applied": 1})
    row = world.queue.row("a")
    assert (row["status"], row["attempts"], row["last_error"]) == ("PENDING", 4, "ERR_TIMEOUT: upstream timed out")
    assert at(row["next_run_at"]) == at(row["updated_at"]) == NOON
    assert at(row["created_at"]) == NOON - timedelta(hours=3)


def test_reset_sets_the_counter_to_zero(world: World) -> None:
    key = world.queue.put("a")
    console = world.console()
    console.carry_out((plan := console.propose(marked(key), RESET)), confirm(plan))
    assert (world.queue.row("a")["status"], world.queue.row("a")["attempts"]) == ("PENDING", 0)


@pytest.mark.parametrize("pace", [Now(), Over(timedelta(minutes=30))], ids=str)
def test_what_is_foreseen_is_what_is_written(world: World, pace: Pace) -> None:
    for n in range(5):
        world.queue.put(f"a{n}", attempts=4 + n)
    console = world.console()
    plan = console.propose(matching("condition:terminal"), RESET, pace)
    foreseen = dict(console.foreseen(plan, 3))
    assert len(foreseen) == 3
    assert all((change.before[0], change.after[:2]) == ("FAILED", ("PENDING", 0)) for change in foreseen.values())
    console.carry_out(plan, confirm(plan))
    for key, change in foreseen.items():
        row = world.queue.row(key.rpartition("/")[2])
        assert change.after == tuple(row[name] for name in ("status", "attempts", "next_run_at", "created_at", "updated_at"))


def test_pulled_forward_changes_the_due_time_and_nothing_else(world: World) -> None:
    key = world.queue.put("a", "PENDING", 2, due=NOON + timedelta(minutes=15))
    console = world.console()
    console.carry_out((plan := console.propose(marked(key), KEEP)), confirm(plan))
    row = world.queue.row("a")
    assert (row["status"], row["attempts"], at(row["next_run_at"]), at(row["updated_at"])) == ("PENDING", 2, NOON, NOON)


def test_a_stuck_item_goes_back_to_pending(world: World) -> None:
    world.queue.put("left", "RUNNING", 2, updated=NOON - timedelta(hours=1))
    world.queue.put("used", "RUNNING", 4, updated=NOON - timedelta(hours=1))
    console = world.console()
    plan = console.propose(matching("condition:stuck"), KEEP)
    console.carry_out(plan, confirm(plan))
    assert (world.queue.row("left")["status"], world.queue.row("left")["attempts"]) == ("PENDING", 2)
    assert world.queue.row("used")["status"] == "RUNNING"
    plan = console.propose(matching("condition:stuck"), RESET)
    console.carry_out(plan, confirm(plan))
    assert (world.queue.row("used")["status"], world.queue.row("used")["attempts"]) == ("PENDING", 0)


def test_the_contract_queue_gets_its_eta_in_both_places_and_keeps_its_result(world: World, tmp_path: Path) -> None:
    jobs = QueueFile.create(tmp_path / "jobs.db", oracle=False, ddl=TASKS_DDL)
    jobs.run(
        "INSERT INTO tasks (id, func_path, status, schedule, attempts, max_retries, updated_at)"
        " VALUES ('j', 'f', 'FAILED', '{\"eta\": null, \"interval\": 60}', 3, 3, '2026-11-10T11:00:00+00:00')"
    )
    jobs.run("INSERT INTO results (task_id, status, error) VALUES ('j', 'FAILED', 'boom')")
    console = world.console(backends=[jobs.open(name="jobs", dialect="tasks", clock=world.clock)])
    plan = console.propose(marked("jobs/j"), RESET, Over(timedelta(minutes=10)))
    console.carry_out(plan, confirm(plan))
    ((status, attempts, eta, schedule),) = jobs.run("SELECT status, attempts, eta, schedule FROM tasks")
    assert (status, attempts) == ("PENDING", 0)
    assert schedule == f'{{"eta": "{eta}", "interval": 60}}'
    assert NOON <= at(eta) < NOON + timedelta(minutes=10)
    assert jobs.run("SELECT error FROM results") == [("boom",)]


# -- pace: written into the rows ----------------------------------------------------------------------


def test_over_a_window_each_item_is_within_its_own_share_of_it(world: World) -> None:
    world.queue.fill(30)
    console = world.console()
    plan = console.propose(matching("condition:terminal"), KEEP, Over(timedelta(minutes=30)))
    console.carry_out(plan, confirm(plan))
    due = [at(world.queue.row(row.key.split("/")[1])["next_run_at"]) for row in planned(console, plan)]
    for n, moment in enumerate(due):
        assert NOON + timedelta(minutes=n) <= moment < NOON + timedelta(minutes=n + 1)
    assert len({(moment - NOON) % timedelta(minutes=1) for moment in due}) > 20, "with jitter"


def test_a_rate_is_so_many_per_second(world: World) -> None:
    world.queue.fill(10)
    console = world.console()
    plan = console.propose(matching("condition:terminal"), KEEP, Rate(4))
    console.carry_out(plan, confirm(plan))
    due = [at(world.queue.row(row.key.split("/")[1])["next_run_at"]) for row in planned(console, plan)]
    assert due == [NOON + timedelta(seconds=n / 4) for n in range(10)]


def test_the_spread_is_seeded_from_the_plan(world: World) -> None:
    """The same plan gives the same moments when they are computed again; another plan gives others."""
    world.queue.fill(20)
    console = world.console()
    plan = console.propose(matching("condition:terminal"), KEEP, Over(timedelta(minutes=30)))
    offsets = [plan.pace.offset(n, 20, plan.hash) for n in range(20)]
    console.carry_out(plan, confirm(plan))
    due = [at(world.queue.row(row.key.split("/")[1])["next_run_at"]) - NOON for row in planned(console, plan)]
    assert due == offsets
    assert offsets != [plan.pace.offset(n, 20, "another") for n in range(20)]


class Undated(SqliteQueue):
    """The same queue, did its system not read the due time."""

    abilities = replace(ASYNC_TASKS.abilities, stores_due_time=False)


def test_where_no_due_time_is_stored_the_override_paces_itself_and_says_so(world: World) -> None:
    world.queue.fill(40)
    console = world.console(kind=Undated)
    plan = console.propose(matching("condition:terminal"), KEEP, Over(timedelta(seconds=60)))
    notes: set[str] = set()
    began = world.clock.now()
    override = console.carry_out(plan, confirm(plan), watch=lambda progress: notes.add(progress.note[:21]))
    assert override.counts == {"applied": 40}
    assert timedelta(seconds=55) < world.clock.now() - began <= timedelta(seconds=61)
    assert "Paced by this process" in notes
    moments = sorted({at(row[8]) for row in world.queue.rows()})
    assert len(moments) > 30, "requeued one after another, each due when it was"
    assert all(row[5] == row[8] for row in world.queue.rows())


# -- confirmation rules, and refusals on record ----------------------------------------------------------


def test_an_expired_plan_is_refused(world: World) -> None:
    world.queue.fill(1)
    console = world.console()
    plan = console.propose(matching("condition:terminal"), KEEP)
    world.clock.tick(timedelta(minutes=15))
    with pytest.raises(PlanExpired):
        console.carry_out(plan, confirm(plan))
    assert world.queue.statuses() == {"FAILED": 1}
    assert [r["why"] for r in refusals(console.trail)] == ["PlanExpired"]


def test_editing_a_plans_times_does_not_make_it_last(world: World) -> None:
    world.queue.fill(1)
    console = world.console()
    plan = console.propose(matching("condition:terminal"), KEEP)
    world.trail_run("UPDATE plan SET created = '2099-01-01T00:00:00.000000Z', expires = '2099-01-01T00:00:00.000000Z'")
    world.clock.tick(timedelta(minutes=15))
    with pytest.raises(PlanAltered):
        console.carry_out(plan, confirm(plan))
    assert world.queue.statuses() == {"FAILED": 1}


def test_a_plan_is_good_until_the_last_moment_and_expiry_ends_nothing_that_runs(world: World) -> None:
    world.queue.fill(60)
    console = world.console(kind=Undated)
    plan = console.propose(matching("condition:terminal"), KEEP, Over(timedelta(hours=1)))
    world.clock.tick(timedelta(minutes=15) - timedelta(microseconds=1))
    assert console.carry_out(plan, confirm(plan)).counts == {"applied": 60}


@pytest.mark.parametrize(
    ("reason", "count", "said"),
    [("", 3, "a reason is required"), (" \t\n", 3, "a reason is required"), ("why", 2, "2 confirmed, but the plan changes 3")],
)
def test_reason_and_count_must_be_given(world: World, reason: str, count: int, said: str) -> None:
    world.queue.fill(3)
    console = world.console()
    plan = console.propose(matching("condition:terminal"), KEEP)
    with pytest.raises(NotConfirmed, match=said):
        console.carry_out(plan, confirm(plan, reason=reason, count=count))
    (refusal,) = refusals(console.trail)
    assert (refusal["why"], refusal["detail"], refusal["plan_hash"]) == ("NotConfirmed", said, plan.hash)
    assert (refusal["facts"]["uid"], refusal["facts"]["login"]) == (1000, "ann")
    assert refusal["claims"] == {"name": "Ann A.", "ssh_peer": "10.0.0.9"}
    assert world.queue.statuses() == {"FAILED": 3}
    assert console.carry_out(plan, confirm(plan)).counts == {"applied": 3}, "it may still be confirmed rightly"


def test_all_skipped_is_refused_with_the_reasons(world: World) -> None:
    world.queue.put("a", "DONE", 1)
    console = world.console()
    plan = console.propose(marked("queue/a"), KEEP)
    with pytest.raises(AllSkipped, match="Already done"):
        console.carry_out(plan, confirm(plan))
    assert [r["why"] for r in refusals(console.trail)] == ["AllSkipped"]


def test_nothing_selected_is_refused(world: World) -> None:
    console = world.console()
    plan = console.propose(matching("condition:terminal"), KEEP)
    with pytest.raises(AllSkipped, match="Nothing was selected"):
        console.carry_out(plan, confirm(plan))


def in_block(old: str, new: str, where: str = "first >= 0") -> str:
    """SQL that replaces a piece of the packed rows."""
    return f"UPDATE plan_block SET body = CAST(replace(CAST(body AS TEXT), {old}, {new}) AS BLOB) WHERE {where}"


@pytest.mark.parametrize(
    "alter",
    [
        in_block("'FAILED\",4'", "'FAILED\",3'"),
        in_block("'queue/t000001'", "'queue/t000009'"),
        in_block("'[\"3\",'", "'[\"77\",'"),
        in_block("'],['", "'],[],['"),
        in_block("'Already done.'", "''", "first < 0"),
        in_block("',[\"Already done.\"]'", "''", "first < 0"),
        "UPDATE plan_block SET body = CAST(body AS TEXT)",
        "UPDATE plan_block SET body = x'ff'",
        "UPDATE plan_block SET items = items - 1 WHERE first = 0",
        "UPDATE plan_block SET items = 0 WHERE first = 0",
        "UPDATE plan_block SET first = 1 WHERE first = 0",
        "DELETE FROM plan_block WHERE first = 0",
        "DELETE FROM plan_block WHERE first < 0",
        "UPDATE plan SET body = replace(body, 'keep', 'reset')",
        "UPDATE plan SET body = replace(body, '\"created_at\": \"2026', '\"created_at\": \"2027')",
        "UPDATE plan SET expires = '2027-11-01T12:00:00.000000Z'",
        "UPDATE plan SET body = replace(body, '[\"now\", 0]', '[\"over\", 1000000]')",
        "UPDATE plan SET hash = replace(hash, substr(hash, 1, 1), 'x')",
    ],
)
def test_an_altered_plan_is_not_applied(world: World, alter: str) -> None:
    world.queue.fill(3)
    world.queue.put("done", "DONE", 1)
    console = world.console()
    plan = console.propose(matching("condition:*", everything=True), KEEP)
    world.queue.forget()
    world.trail_run(alter)
    with pytest.raises(PlanAltered):
        console.carry_out(plan, confirm(plan))
    assert world.queue.touched() == set()
    assert [r["why"] for r in refusals(console.trail)] == ["PlanAltered"]


def test_a_plan_is_applied_once(world: World) -> None:
    world.queue.fill(3)
    console = world.console()
    plan = console.propose(matching("condition:terminal"), KEEP)
    console.carry_out(plan, confirm(plan))
    before = world.queue.rows()
    for again in (console, world.console()):
        with pytest.raises(PlanStale, match="applied already"):
            again.carry_out(plan, confirm(plan))
    assert world.queue.rows() == before
    assert [r["why"] for r in refusals(console.trail)] == ["PlanStale", "PlanStale"]


def test_a_plan_for_another_place_is_stale(world: World, tmp_path: Path) -> None:
    world.queue.fill(3)
    console = world.console()
    plan = console.propose(matching("condition:terminal"), KEEP)
    other = QueueFile.create(tmp_path / "moved.db")
    other.fill(3)
    other.forget()
    moved = world.console(backends=[other.open(clock=world.clock)])
    with pytest.raises(PlanStale, match="The plan was made for"):
        moved.carry_out(plan, confirm(plan))
    with pytest.raises(Unreachable):
        world.console(backends=[]).carry_out(plan, confirm(plan))
    assert other.touched() == set()


class StopMidway:
    """Holds an override between two chunks while something else is tried."""

    def __init__(self, tried: object, chunks: int = 1) -> None:
        self._tried = tried
        self._chunks = chunks

    def __call__(self, progress: Progress) -> None:
        self._chunks -= 1
        if self._chunks == 0:
            self._tried()  # type: ignore[operator]


OTHER_PROCESS = """
import sys
from pathlib import Path
from datetime import UTC, datetime
from console.core.faults import Fault
from tests.faults.world import *
from console.trail.leases import owner_token
from console.trail.store import open_trail
from console.core.operations import Operations
folder, verb, id = sys.argv[1:]
clock = FrozenClock(NOON)
trail = open_trail(f"sqlite:///{folder}/state/trail.db", read_only=False, anchor=None, clock=clock)
console = Operations({"queue": QueueFile(Path(folder) / "queue.db").open(clock=clock)}, trail, clock, owner=owner_token())
try:
    if verb == "carry_out":
        plan = trail.plan(id)
        console.carry_out(plan, confirm(plan))
    elif verb == "resume":
        console.resume(id, WHO, ORIGIN)
    else:
        getattr(console, verb)(id)
    print("done")
except Fault as fault:
    print(type(fault).__name__)
"""


def elsewhere(world: World, verb: str, id: str) -> str:
    """What another process sees."""
    ran = subprocess.run(
        [sys.executable, "-c", OTHER_PROCESS, str(world.folder), verb, id], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def test_one_running_override_per_backend_also_from_another_process(world: World) -> None:
    world.queue.fill(100)
    console = world.console()
    first = console.propose(matching("condition:terminal", limit=50), KEEP)
    second = console.propose(matching("condition:terminal", sort=Sort(SortField.UPDATED), limit=50), KEEP)
    said: list[str] = []

    def try_others() -> None:
        with pytest.raises(OverrideRunning):
            world.console().carry_out(second, confirm(second))
        with pytest.raises(OverrideRunning):
            console.carry_out(second, confirm(second))
        said.append(elsewhere(world, "carry_out", second.id))

    console.carry_out(first, confirm(first), watch=StopMidway(try_others))
    assert said == ["OverrideRunning"]
    assert [r["why"] for r in refusals(console.trail)] == ["OverrideRunning"] * 3
    assert world.console().carry_out(second, confirm(second)).state is OverrideState.FINISHED


def test_no_lease_is_taken_when_one_of_several_backends_is_busy(world: World, tmp_path: Path) -> None:
    world.queue.fill(30)
    other = QueueFile.create(tmp_path / "other.db")
    other.fill(30)

    def both() -> list[SqliteQueue]:
        return [world.queue.open(clock=world.clock), other.open(name="other", clock=world.clock)]

    one, two = world.console(backends=both()), world.console(backends=both())
    on_other = one.propose(matching("backend:other"), KEEP)
    over_both = one.propose(matching("condition:terminal"), KEEP)
    on_queue = one.propose(matching("backend:queue"), RESET)

    def meanwhile() -> None:
        with pytest.raises(OverrideRunning):
            two.carry_out(over_both, confirm(over_both))
        assert two.carry_out(on_queue, confirm(on_queue)).counts == {"applied": 30}

    assert one.carry_out(on_other, confirm(on_other), watch=StopMidway(meanwhile)).counts == {"applied": 30}


# -- changed since the plan -------------------------------------------------------------------------------------------


def test_what_changed_since_the_preview_is_reported_and_untouched(world: World) -> None:
    keys = [world.queue.put(id) for id in "abcdef"]
    console = world.console()
    plan = console.propose(marked(*keys), KEEP)
    world.queue.run("UPDATE async_tasks SET attempts = 5 WHERE task_id = 'a'")
    world.queue.run("UPDATE async_tasks SET updated_at = '2026-11-10T11:59:00+00:00' WHERE task_id = 'b'")
    world.queue.run("UPDATE async_tasks SET status = 'DONE' WHERE task_id = 'c'")
    world.queue.run("DELETE FROM async_tasks WHERE task_id = 'd'")
    world.queue.run("UPDATE async_tasks SET attempts = NULL WHERE task_id = 'e'")
    world.queue.forget()
    override = console.carry_out(plan, confirm(plan))
    assert override.counts == {"applied": 1, "changed": 5}
    assert outcomes(console, override) == {
        "queue/a": ("changed", "attempts is now 5, was 4"),
        "queue/b": ("changed", "updated_at is now 2026-11-10T11:59:00+00:00, was 2026-11-10T11:00:00+00:00"),
        "queue/c": ("changed", "status is now DONE, was FAILED"),
        "queue/d": ("changed", "no longer there"),
        "queue/e": ("changed", "attempts is now NULL, was 4"),
        "queue/f": ("applied", ""),
    }
    assert world.queue.touched() == {"f"}


def test_a_row_that_came_back_with_the_same_key_and_the_same_values_is_the_planned_one(world: World) -> None:
    world.queue.put("a")
    console = world.console()
    plan = console.propose(marked("queue/a"), KEEP)
    world.queue.run("DELETE FROM async_tasks")
    world.queue.put("other")
    world.queue.put("a")
    assert console.carry_out(plan, confirm(plan)).counts == {"applied": 1}
    assert world.queue.row("other")["status"] == "FAILED"


UNINDEXED = ASYNC_TASKS_DDL[: ASYNC_TASKS_DDL.index("CREATE INDEX")].replace(" PRIMARY KEY", "")
"""VACUUM renumbers only the rows of a table that has no index at all."""
REWRITE = """CREATE TABLE moved AS SELECT * FROM async_tasks; DELETE FROM async_tasks;
INSERT INTO async_tasks SELECT * FROM moved ORDER BY task_id DESC; DROP TABLE moved;"""


@pytest.mark.parametrize(("ddl", "statement"), [(UNINDEXED, "VACUUM"), (ASYNC_TASKS_DDL, REWRITE)], ids=["vacuum", "rewritten"])
def test_rows_renumbered_between_plan_and_apply_are_found_by_key(world: World, tmp_path: Path, ddl: str, statement: str) -> None:
    queue = QueueFile.create(tmp_path / "moving.db", ddl=ddl)
    ids = queue.fill(200)
    console = world.console(backends=[queue.open(clock=world.clock)])
    plan = console.propose(matching("condition:terminal", limit=60), KEEP)
    wanted = {row.key.split("/")[1] for row in planned(console, plan)}
    gone = [id for n, id in enumerate(ids) if n % 3 == 0]
    with closing(sqlite3.connect(queue.path, isolation_level=None)) as connection:
        before = dict(connection.execute("SELECT task_id, rowid FROM async_tasks").fetchall())
        connection.executemany("DELETE FROM async_tasks WHERE task_id = ?", [(id,) for id in gone])
        connection.executescript(statement)
        after = dict(connection.execute("SELECT task_id, rowid FROM async_tasks").fetchall())
    assert any(after[id] != before[id] for id in wanted - set(gone)), "rows were renumbered, or this shows nothing"
    queue.forget()
    override = console.carry_out(plan, confirm(plan))
    assert queue.touched() == wanted - set(gone)
    assert override.counts == {"applied": len(wanted - set(gone)), "changed": len(wanted & set(gone))}


# -- one item's error is that item's outcome -------------------------------------------------------------


@pytest.mark.parametrize(
    ("ddl", "said"),
    [
        ("CREATE UNIQUE INDEX one_pending ON async_tasks (entity_id, task_type) WHERE status = 'PENDING';", "UNIQUE constraint failed"),
        ("CREATE TRIGGER no BEFORE UPDATE ON async_tasks WHEN OLD.task_id GLOB '*7' BEGIN SELECT RAISE(ABORT, 'not sevens'); END;", "not sevens"),
        ("CREATE TRIGGER no BEFORE UPDATE ON async_tasks WHEN OLD.task_id GLOB '*7' BEGIN SELECT RAISE(FAIL, 'not sevens'); END;", "not sevens"),
        ("CREATE TRIGGER no AFTER UPDATE ON async_tasks WHEN OLD.task_id GLOB '*7' BEGIN SELECT RAISE(ROLLBACK, 'not sevens'); END;", "not sevens"),
    ],
    ids=["unique", "abort", "fail", "rollback"],
)
def test_a_row_that_raises_fails_alone(world: World, ddl: str, said: str) -> None:
    world.queue.fill(100)
    if "UNIQUE" in ddl:  # ten of them may not be pending at once
        world.queue.run("UPDATE async_tasks SET entity_id = task_id WHERE task_id NOT GLOB '*7'")
        world.queue.put("held", "PENDING", 0)
    world.queue.forget()
    console = world.console()
    plan = console.propose(matching("condition:terminal"), KEEP)
    world.queue.script(ddl)
    override = console.carry_out(plan, confirm(plan))
    assert override.state is OverrideState.FINISHED
    assert override.counts == {"applied": 90, "rejected": 10}
    failed = {key for key, (outcome, _) in outcomes(console, override).items() if outcome == "rejected"}
    assert failed == {f"queue/t{n:06d}" for n in range(7, 100, 10)}
    assert all(said in detail for outcome, detail in outcomes(console, override).values() if outcome == "rejected")
    assert set(world.queue.requeued()) == {f"t{n:06d}" for n in range(100) if n % 10 != 7}


def test_a_check_in_the_attached_database_fails_alone(world: World, tmp_path: Path) -> None:
    ddl = ASYNC_TASKS_DDL.replace("attempts INTEGER DEFAULT 0", "attempts INTEGER CHECK (attempts <> 0 OR entity_id <> 'entity')")
    queue = QueueFile.create(tmp_path / "checked.db", ddl=ddl)
    queue.fill(50)
    queue.run("UPDATE async_tasks SET entity_id = 'free' WHERE task_id GLOB '*[02468]'")
    console = world.console(backends=[queue.open(clock=world.clock)])
    plan = console.propose(matching("condition:terminal"), RESET)
    override = console.carry_out(plan, confirm(plan))
    assert override.counts == {"applied": 25, "rejected": 25}
    assert queue.statuses() == {"PENDING": 25, "FAILED": 25}


def test_a_row_the_database_leaves_alone_is_not_said_to_have_changed(world: World) -> None:
    world.queue.fill(10)
    world.queue.script(
        "CREATE TRIGGER no BEFORE UPDATE ON async_tasks WHEN OLD.task_id GLOB '*7' BEGIN SELECT RAISE(IGNORE); END;"
    )
    console = world.console()
    plan = console.propose(matching("condition:terminal"), KEEP)
    override = console.carry_out(plan, confirm(plan))
    assert override.counts == {"applied": 9, "changed": 1}
    assert outcomes(console, override)["queue/t000007"] == ("changed", "the database left it unchanged")


def test_a_table_without_rowid_is_written_too_in_chunks(world: World, tmp_path: Path) -> None:
    queue = QueueFile.create(tmp_path / "rowless.db", ddl=ASYNC_TASKS_DDL.replace("\n);", "\n) WITHOUT ROWID;", 1))
    queue.fill(1_200)
    console = world.console(backends=[queue.open(clock=world.clock)])
    plan = console.propose(matching("condition:terminal"), KEEP)
    override = console.carry_out(plan, confirm(plan))
    assert override.counts == {"applied": 1_200}
    assert len(console.trail.intents(override.override_id)) > 1, "never the whole plan in one transaction"


# -- plans over several backends -------------------------------------------------------------------------


def test_backends_are_carried_out_one_after_another(world: World, tmp_path: Path) -> None:
    world.queue.fill(30)
    other = QueueFile.create(tmp_path / "other.db")
    other.fill(20)
    console = world.console(backends=[world.queue.open(clock=world.clock), other.open(name="other", clock=world.clock)])
    plan = console.propose(matching("condition:terminal"), KEEP)
    override = console.carry_out(plan, confirm(plan))
    assert override.counts == {"applied": 50}
    assert [intent.backend for intent in console.trail.intents(override.override_id)] == ["queue", "other"]
    assert (world.queue.statuses(), other.statuses()) == ({"PENDING": 30}, {"PENDING": 20})


@pytest.mark.parametrize("blocked_first", [True, False])
def test_a_backend_in_which_everything_is_skipped_takes_nothing_from_the_others(
    world: World, tmp_path: Path, blocked_first: bool
) -> None:
    """The same ids live in both, so a mix-up would find rows."""
    twin = QueueFile.create(tmp_path / "twin.db")
    twin.fill(5)
    for id in twin.ids():
        world.queue.put(id, "DONE", 1)
    world.queue.forget()
    backends = [world.queue.open(name="aaaaa", clock=world.clock), twin.open(name="bbbbb", clock=world.clock)]
    console = world.console(backends=backends if blocked_first else backends[::-1])
    plan = console.propose(matching("condition:*", everything=True), KEEP)
    assert {part.backend: part.changes for part in plan.parts} == {"aaaaa": 0, "bbbbb": 5}
    override = console.carry_out(plan, confirm(plan))
    assert override.counts == {"applied": 5}
    assert (world.queue.touched(), twin.statuses()) == (set(), {"PENDING": 5})


# -- stopping, pausing -----------------------------------------------------------------------------------


def small_chunks(world: World) -> Limits:
    return Limits(chunk_target=timedelta(microseconds=1))


def test_a_signal_finishes_the_chunk_and_the_rest_can_be_resumed(world: World) -> None:
    world.queue.fill(800)
    console = world.console(limits=small_chunks(world))
    plan = console.propose(matching("condition:terminal"), KEEP)
    stop = StopFlag()
    override = console.carry_out(plan, confirm(plan), stop, watch=lambda _: stop.set())
    assert (override.state, override.note) == (OverrideState.STOPPED, "Stopped by a signal.")
    assert console.trail.open_intents(override.override_id) == []
    done = override.counts["applied"]
    assert 0 < done < 800
    assert world.queue.statuses() == {"PENDING": done, "FAILED": 800 - done}
    resumed = world.console().resume(override.override_id, WHO, ORIGIN)
    assert (resumed.state, resumed.counts) == (OverrideState.FINISHED, {"applied": 800})
    assert set(world.queue.requeued().values()) == {1}


def test_stop_from_another_process_ends_after_the_chunk(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("console.core.executor.BEAT", 0.0)
    world.queue.fill(800)
    console = world.console(limits=small_chunks(world))
    plan = console.propose(matching("condition:terminal"), KEEP)
    said: list[str] = []

    def ask() -> None:
        said.append(elsewhere(world, "stop", console.trail.overrides()[0].override_id))

    override = console.carry_out(plan, confirm(plan), watch=StopMidway(ask))
    assert said == ["done"]
    left = 800 - override.counts["applied"]
    assert 0 < left < 800
    assert (override.state, override.note) == (OverrideState.STOPPED, f"Stopped on request. {left} items were not touched. Resume it to continue.")
    assert elsewhere(world, "resume", override.override_id) == "done"
    assert world.queue.statuses() == {"PENDING": 800}


def test_pause_and_continue_from_another_process(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("console.core.executor.BEAT", 0.0)
    world.queue.fill(800)
    console = world.console(limits=small_chunks(world))
    plan = console.propose(matching("condition:terminal"), KEEP)
    seen: list[tuple[str, int]] = []
    asked = False

    def watch(progress: Progress) -> None:
        nonlocal asked
        state = console.trail.override(progress.override_id).state
        if not asked:
            asked = True
            assert elsewhere(world, "pause", progress.override_id) == "done"
        elif progress.paused:
            seen.append((state.value, world.queue.statuses()["PENDING"]))
            assert elsewhere(world, "proceed", progress.override_id) == "done"

    override = console.carry_out(plan, confirm(plan), watch=watch)
    assert (override.state, override.counts) == (OverrideState.FINISHED, {"applied": 800})
    assert [state for state, _ in seen] == ["paused"]
    assert 0 < seen[0][1] < 800


def test_stop_while_paused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("console.core.executor.BEAT", 0.0)
    world.queue.fill(800)
    console, other = world.console(limits=small_chunks(world)), world.console()
    plan = console.propose(matching("condition:terminal"), KEEP)

    def watch(progress: Progress) -> None:
        if progress.paused:
            other.stop(progress.override_id)
        else:
            other.pause(progress.override_id)

    override = console.carry_out(plan, confirm(plan), watch=watch)
    assert override.state is OverrideState.STOPPED
    assert override.note.startswith("Stopped on request. ")


def test_a_signal_while_paused_ends_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("console.core.executor.BEAT", 0.0)
    world.queue.fill(800)
    console, other, stop = world.console(limits=small_chunks(world)), world.console(), StopFlag()
    plan = console.propose(matching("condition:terminal"), KEEP)

    def watch(progress: Progress) -> None:
        if progress.paused:
            stop.set()
        else:
            other.pause(progress.override_id)

    override = console.carry_out(plan, confirm(plan), stop, watch)
    assert (override.state, override.note) == (OverrideState.STOPPED, "Stopped by a signal while paused.")


def test_an_unknown_override_cannot_be_asked_anything(world: World) -> None:
    console = world.console()
    for verb in (console.stop, console.pause, console.proceed, console.undo):
        with pytest.raises(NoSuchOverride):
            verb("o123")


def test_whoever_lost_the_lease_ends_nothing_of_the_new_owners(world: World) -> None:
    """Silent for more than a minute, taken over, and only then asked to stop: that concerns the old one alone."""
    world.queue.fill(800)
    old, new, stop = world.console(limits=small_chunks(world)), world.console(limits=small_chunks(world)), StopFlag()
    plan = old.propose(matching("condition:terminal"), KEEP)
    states: list[OverrideState] = []

    def silent(progress: Progress) -> None:
        if stop.requested:
            return
        stop.set()
        world.clock.tick(timedelta(seconds=61))
        new.trail.take_over(progress.override_id, new._owner, world.clock.now(), confirm(plan))
        states.append(new.trail.override(progress.override_id).state)

    events: list[OverrideEvent] = []
    old.listen(events.append)
    with pytest.raises(LeaseLost):
        old.carry_out(plan, confirm(plan), stop, silent)
    (override,) = new.trail.overrides()
    assert [(event.kind, event.override_id, event.bad) for event in events] == [(EventKind.TAKEN_OVER, override.override_id, True)]
    assert states == [OverrideState.RUNNING]
    assert (override.state, override.owner) == (OverrideState.RUNNING, new._owner)


# -- an unwilling backend --------------------------------------------------------------------------------


def test_a_locked_queue_is_waited_for_and_nothing_is_reported_as_failed(world: World) -> None:
    world.queue.fill(40)
    backend = world.queue.open(clock=world.clock, deadline=timedelta(milliseconds=50))
    console = world.console(backends=[backend])
    plan = console.propose(matching("condition:terminal"), KEEP)
    holder = sqlite3.connect(world.queue.path, isolation_level=None, check_same_thread=False)
    holder.execute("BEGIN IMMEDIATE")
    sleep, naps = world.clock.sleep, []

    def release_after_three(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 3:
            holder.close()
        sleep(seconds)

    world.clock.sleep = release_after_three  # type: ignore[method-assign]
    override = console.carry_out(plan, confirm(plan))
    assert (override.state, override.counts) == (OverrideState.FINISHED, {"applied": 40})
    assert set(world.queue.requeued().values()) == {1}


def test_a_queue_that_stays_locked_stops_the_override_and_it_can_be_resumed(world: World) -> None:
    world.queue.fill(40)
    backend = world.queue.open(clock=world.clock, deadline=timedelta(milliseconds=50))
    console = world.console(backends=[backend])
    plan = console.propose(matching("condition:terminal"), KEEP)
    holder = sqlite3.connect(world.queue.path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    override = console.carry_out(plan, confirm(plan))
    assert (override.state, override.counts) == (OverrideState.STOPPED, {})
    assert "did not accept the write: another process holds its lock (database is locked). Resume when it does." in override.note
    assert world.clock.now() - NOON == timedelta(seconds=0.5 + 1 + 2 + 4 + 8), "it waits between two tries, not after the last"
    holder.close()
    assert console.resume(override.override_id, WHO, ORIGIN).counts == {"applied": 40}
    assert console.trail.verify().ok


def test_a_signal_counts_while_waiting_for_a_locked_queue(world: World) -> None:
    """However long the wait has grown, it is slept in short naps."""
    world.queue.fill(5)
    backend = world.queue.open(clock=world.clock, deadline=timedelta(milliseconds=20))
    console = world.console(backends=[backend])
    plan = console.propose(matching("condition:terminal"), KEEP)
    holder = sqlite3.connect(world.queue.path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    sleep, naps = world.clock.sleep, []

    def note(seconds: float) -> None:
        naps.append(seconds)
        sleep(seconds)

    world.clock.sleep = note  # type: ignore[method-assign]
    console.carry_out(plan, confirm(plan))
    holder.close()
    assert sum(naps) > 10
    assert max(naps) <= 0.5


class CutOff(SqliteQueue):
    """A queue whose connection is lost at commit: once before it was written, once after."""

    cuts: ClassVar = ["before", "after"]

    def compare_and_set(self, changes: object, operation: object, authority: object) -> object:  # type: ignore[override]
        cut = self.cuts.pop(0) if self.cuts else ""
        written: list[Outcome] = []
        if cut != "before":
            written = list(super().compare_and_set(changes, operation, authority))  # type: ignore[arg-type]
        if cut:
            raise Unreachable("connection lost", where=self.name)
        return written


def test_a_connection_lost_at_commit_is_settled_by_re_reading(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CutOff, "cuts", ["before", "after"])
    world.queue.fill(30)
    console = world.console(kind=CutOff)
    plan = console.propose(matching("condition:terminal"), KEEP)
    override = console.carry_out(plan, confirm(plan))
    assert (override.state, override.counts) == (OverrideState.FINISHED, {"applied": 30})
    assert set(world.queue.requeued().values()) == {1}
    assert len(console.trail.intents(override.override_id)) == 2


class Gone(SqliteQueue):
    """A queue that is lost at commit and cannot be asked whether it was written."""

    lost = True

    def compare_and_set(self, changes: object, operation: object, authority: object) -> object:  # type: ignore[override]
        written = super().compare_and_set(changes, operation, authority)  # type: ignore[arg-type]
        if self.lost:
            raise Unreachable("connection lost", where=self.name)
        return written

    def images(self, changes: list[Change]) -> object:  # type: ignore[override]
        if self.lost:
            raise Unreachable("connection lost", where=self.name)
        return super().images(changes)


def test_what_cannot_be_asked_stays_unresolved_until_it_can(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.queue.fill(30)
    console = world.console(kind=Gone)
    plan = console.propose(matching("condition:terminal"), KEEP)
    override = console.carry_out(plan, confirm(plan))
    assert (override.state, override.counts) == (OverrideState.STOPPED, {})
    assert "is not known yet" in override.note
    assert len(console.trail.unresolved()) == 1
    assert console.settle_unresolved(WHO, ORIGIN) == [], "it still cannot be asked"
    assert len(console.trail.unresolved()) == 1
    stopped = console.resume(override.override_id, WHO, ORIGIN)
    assert stopped.state is OverrideState.STOPPED
    monkeypatch.setattr(Gone, "lost", False)
    (settled,) = console.settle_unresolved(WHO, ORIGIN)
    assert settled.counts == {"applied": 30}
    assert console.trail.unresolved() == []
    assert console.resume(override.override_id, WHO, ORIGIN).state is OverrideState.FINISHED
    assert set(world.queue.requeued().values()) == {1}


# -- what keeps others from writing ----------------------------------------------------------------------


def test_what_was_settled_by_another_in_the_meantime_is_not_written(world: World) -> None:
    """A process that was suspended between its intent and its write comes back to find its lease gone."""
    world.queue.fill(5)
    other = world.console()

    def suspended(point: str) -> None:
        if point == "before_write":
            world.clock.tick(timedelta(seconds=90))
            assert len(other.settle_unresolved(WHO, ORIGIN)) == 1

    console = world.console(reach=suspended)
    plan = console.propose(matching("condition:terminal"), KEEP)
    with pytest.raises(LeaseLost):
        console.carry_out(plan, confirm(plan))
    assert world.queue.statuses() == {"FAILED": 5}
    (override,) = other.trail.overrides()
    assert {what for what, _ in outcomes(other, override).values()} == {"not_applied"}


@pytest.mark.parametrize("then", ["settled", "resumed"])
def test_what_was_written_after_another_had_settled_it_is_on_record(world: World, then: str) -> None:
    """A process that was suspended within its write, for longer than anybody waits for it."""
    world.queue.fill(5)
    other, backend = world.console(), world.queue.open(clock=world.clock)
    write, away = backend.compare_and_set, []

    def suspended(changes: Any, operation: Any, authority: Any) -> Any:
        if not away:
            world.clock.tick(timedelta(seconds=90))
            away.extend(other.settle_unresolved(WHO, ORIGIN))
            if then == "resumed":
                other.resume(away[0].override_id, WHO, ORIGIN)
        return write(changes, operation, authority)

    backend.compare_and_set = suspended  # type: ignore[method-assign]
    console = world.console(backends=[backend])
    plan = console.propose(matching("condition:terminal"), KEEP)
    with pytest.raises(LeaseLost):
        console.carry_out(plan, confirm(plan))
    (override,) = other.trail.overrides()
    assert (len(away), override.counts) == (1, {"applied": 5})
    assert {what for what, _ in outcomes(other, override).values()} == {"applied"}
    if then == "settled":
        finished = other.resume(override.override_id, WHO, ORIGIN)
        assert (finished.state, finished.counts) == (OverrideState.FINISHED, {"applied": 5})
    assert set(world.queue.requeued().values()) == {1}
    assert other.undo(override.override_id).changes == 5
    assert other.trail.verify().what == ""


def test_a_backend_where_all_is_skipped_need_not_take_writes(world: World) -> None:
    world.queue.fill(3)
    row = {"status": "failed", "attempts": 3, "error": "e", "created": NOON, "updated": NOON}
    memory: Any = MemoryReader("memory", {"x": row}, clock=world.clock)
    console = world.console(backends=[world.queue.open(clock=world.clock), memory])
    plan = console.propose(matching("condition:terminal,failed"), KEEP)
    assert plan.skipped == {"memory cannot requeue items.": 1}
    assert console.carry_out(plan, confirm(plan)).counts == {"applied": 3}


def test_undoing_goes_as_far_as_there_are_backends(world: World, tmp_path: Path) -> None:
    other = QueueFile.create(tmp_path / "other.db")
    world.queue.fill(2)
    other.fill(3)
    both = [world.queue.open(clock=world.clock), other.open(name="other", clock=world.clock)]
    console = world.console(backends=both)
    plan = console.propose(matching("condition:terminal"), KEEP)
    override = console.carry_out(plan, confirm(plan))
    without = world.console(backends=[other.open(name="other", clock=world.clock)])
    undo = without.undo(override.override_id)
    ((why, count),) = undo.skipped.items()
    assert (undo.changes, count) == (3, 2)
    assert "not configured" in why
    assert without.carry_out(undo, confirm(undo)).counts == {"applied": 3}
    assert (world.queue.statuses(), other.statuses()) == ({"PENDING": 2}, {"FAILED": 3})
