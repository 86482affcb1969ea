"""Propose: exact keys and before-images, what is skipped and why, and what is refused."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from console.core.backend import Flag, Operation
from console.core.confirm import Limits
from console.core.faults import (
    NoSuchPlan,
    NotNarrowed,
    QueryFault,
    ReadOnlyRefused,
    TooMany,
    TrailUnavailable,
    Unreachable,
    UsageFault,
)
from console.core.operations import Operations
from console.core.pace import Over
from console.core.policy import PolicyOverride
from console.core.query import Sort, SortField
from console.core.signature import signature_of
from console.testing import StopFlag
from plugins.sqlite_queue.schema import TASKS_DDL
from tests.faults.world import (
    KEEP,
    NOON,
    RESET,
    QueueFile,
    World,
    confirm,
    marked,
    matching,
    planned,
    why_blocked,
    world_in,
)
from tests.patience import busy


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with world_in(tmp_path) as made:
        yield made


def skipped(world: World, key: str, operation: Operation = KEEP, **options: object) -> str | None:
    console = world.console(**options)
    plan = console.propose(marked(key), operation)
    return why_blocked(console, plan).get(key)


# -- what is skipped, and why ----------------------------------------------------------------------------


def test_waiting_is_skipped(world: World) -> None:
    key = world.queue.put("a", "PENDING", 0, due=NOON + timedelta(hours=1), error=None)
    assert skipped(world, key) == "Has not failed; it waits for its first run."
    assert skipped(world, key, RESET) == "Has not failed; it waits for its first run."


def test_waiting_with_an_old_error_after_a_reset_is_skipped(world: World) -> None:
    key = world.queue.put("a", "PENDING", 0, due=NOON)
    assert skipped(world, key) == "Has not failed; it waits for its first run."


def test_running_within_its_limit_is_skipped(world: World) -> None:
    key = world.queue.put("a", "RUNNING", 2, updated=NOON - timedelta(seconds=360))
    assert skipped(world, key) == "Running, within its time limit."
    assert skipped(world, key, RESET) == "Running, within its time limit."


def test_done_is_skipped(world: World) -> None:
    assert skipped(world, world.queue.put("a", "DONE", 1)) == "Already done."


def test_cancelled_is_skipped(world: World, tmp_path: Path) -> None:
    jobs = QueueFile.create(tmp_path / "jobs.db", oracle=False, ddl=TASKS_DDL)
    jobs.run("INSERT INTO tasks (id, status, attempts, max_retries, schedule) VALUES ('c', 'CANCELLED', 1, 3, '{}')")
    backend = jobs.open(name="jobs", dialect="tasks", clock=world.clock)
    assert skipped(world, "jobs/c", backends=[backend]) == "Was cancelled."


def test_an_unknown_status_is_skipped(world: World, tmp_path: Path) -> None:
    jobs = QueueFile.create(tmp_path / "jobs.db", oracle=False, ddl=TASKS_DDL)
    jobs.run("INSERT INTO tasks (id, status, attempts, max_retries, schedule) VALUES ('c', 'PARKED', 1, 3, '{}')")
    backend = jobs.open(name="jobs", dialect="tasks", clock=world.clock)
    assert skipped(world, "jobs/c", backends=[backend]) == "Its native status is unknown, so no rule applies."


def test_a_retrying_item_is_pulled_forward_with_keep_only(world: World) -> None:
    key = world.queue.put("a", "PENDING", 2, due=NOON + timedelta(minutes=9))
    assert skipped(world, key) is None
    assert skipped(world, key, RESET) == "Already scheduled; it can only be run earlier, with its attempts kept."


def test_a_retry_that_is_due_needs_no_pulling(world: World) -> None:
    key = world.queue.put("a", "PENDING", 2, due=NOON)
    assert skipped(world, key) == "Already scheduled; runs when due."


def test_a_stuck_item_with_attempts_left_may_go_and_the_plan_warns_of_its_old_worker(world: World) -> None:
    key = world.queue.put("a", "RUNNING", 2, updated=NOON - timedelta(seconds=361))
    plan = world.console().propose(marked(key), KEEP)
    assert plan.changes == 1
    assert plan.warnings == {"Ran longer than its limit; the old worker may still be alive.": 1}


def test_a_stuck_item_without_attempts_left_needs_reset_attempts(world: World) -> None:
    key = world.queue.put("a", "RUNNING", 4, updated=NOON - timedelta(seconds=361))
    assert skipped(world, key) == "No attempts left, so its system would ignore it."
    assert skipped(world, key, RESET) is None


def test_keep_on_a_used_up_item_warns_that_it_is_one_more_execution(world: World) -> None:
    plan = world.console().propose(marked(world.queue.put("a")), KEEP)
    assert plan.warnings == {"Attempts are kept: one more try, then terminal.": 1}
    assert world.console().propose(marked("queue/a"), RESET).warnings == {}


def test_an_unrecoverable_error_is_skipped_unless_allowed(world: World) -> None:
    key = world.queue.put("a", error="ERR_AUTH: invalid api key")
    policy = PolicyOverride(unrecoverable=("invalid api key",))
    assert skipped(world, key, policy=policy) == "Its error is not recoverable."
    assert skipped(world, key, Operation(flags=frozenset({Flag.INCLUDE_UNRECOVERABLE})), policy=policy) is None


def test_a_key_that_does_not_exist_is_skipped_not_an_error(world: World) -> None:
    world.queue.put("a")
    console = world.console()
    plan = console.propose(marked("queue/a", "queue/nowhere"), KEEP)
    assert (plan.selected, plan.changes) == (2, 1)
    assert why_blocked(console, plan) == {"queue/nowhere": "No such item."}


def test_a_key_of_an_unknown_backend_is_unreachable(world: World) -> None:
    with pytest.raises(Unreachable, match="elsewhere"):
        world.console().propose(marked("elsewhere/a"), KEEP)


def test_reasons_are_counted(world: World) -> None:
    world.queue.put("a", "DONE", 1)
    world.queue.put("b", "DONE", 1)
    world.queue.put("c")
    plan = world.console().propose(matching("condition:*", everything=True), KEEP)
    assert plan.skipped == {"Already done.": 2}
    assert plan.by_condition == {"terminal": 1}
    assert plan.by_cause == {signature_of("ERR_TIMEOUT: upstream timed out"): 1}


def test_a_batch_with_nothing_in_it_does_not_end_the_plan(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.queue.put("a")
    world.queue.put("b")
    console = world.console()
    backend = console.backends["queue"]
    drafts = backend.drafts

    def with_gaps(*arguments: object) -> Iterator[object]:
        for batch in drafts(*arguments):
            for draft in batch:
                yield from ([], [draft])

    monkeypatch.setattr(backend, "drafts", with_gaps)
    assert console.propose(matching("condition:terminal"), KEEP).changes == 2


# -- the frozen rows -------------------------------------------------------------------------------------


def test_the_before_image_is_the_guard_and_what_is_assigned_and_never_the_error(world: World) -> None:
    world.queue.put("a", error="SECRET: password hunter2")
    console = world.console()
    plan = console.propose(marked("queue/a"), KEEP)
    (row,) = planned(console, plan)
    image = world.queue.row("a")
    assert row.before == tuple(image[c] for c in ("status", "attempts", "next_run_at", "created_at", "updated_at"))
    assert "hunter2" not in str([row, plan])


def test_a_key_marked_twice_is_planned_once(world: World) -> None:
    world.queue.put("a")
    assert world.console().propose(marked("queue/a", "queue/a"), KEEP).changes == 1
    only_read = Operations({"queue": world.queue.open()}, world.trail(), world.clock, read_only_backends=frozenset({"queue"}))
    assert only_read.propose(marked("queue/a", "queue/a"), KEEP).skipped == {"queue is read-only in the config.": 1}


def test_changing_budget_or_release_makes_a_new_plan(world: World) -> None:
    world.queue.put("a")
    console = world.console()
    plans = [
        console.propose(marked("queue/a"), KEEP),
        console.propose(marked("queue/a"), RESET),
        console.propose(marked("queue/a"), KEEP, Over(timedelta(minutes=30))),
    ]
    assert len({plan.id for plan in plans}) == len({plan.hash for plan in plans}) == 3


def test_a_stored_plan_comes_back_as_it_was(world: World) -> None:
    world.queue.fill(7)
    plan = world.console().propose(matching("condition:terminal"), RESET, Over(timedelta(minutes=30)))
    assert world.console().trail.plan(plan.id) == plan


def test_proposing_writes_nothing_to_the_queue(world: World) -> None:
    world.queue.fill(50)
    before = world.queue.rows()
    world.queue.forget()
    world.console().propose(matching("condition:terminal"), RESET)
    assert world.queue.rows() == before
    assert world.queue.touched() == set()


# -- selections ------------------------------------------------------------------------------------------


def test_nothing_narrows_is_refused(world: World) -> None:
    world.queue.fill(3)
    for text in ("", "condition:*", "backend:*"):
        with pytest.raises(NotNarrowed):
            world.console().propose(matching(text), KEEP)
    assert world.console().propose(matching("", everything=True), KEEP).changes == 3


def test_limit_takes_the_first_in_sort_order(world: World) -> None:
    for n, hours in enumerate((5, 1, 4, 2, 3)):
        world.queue.put(f"t{n}", updated=NOON - timedelta(hours=hours))
    console = world.console()
    for descending, expected in ((True, ["t1", "t3", "t4"]), (False, ["t0", "t2", "t4"])):
        selection = matching("condition:terminal", sort=Sort(SortField.UPDATED, descending=descending), limit=3)
        plan = console.propose(selection, KEEP)
        assert [row.key for row in planned(console, plan)] == [f"queue/{id}" for id in expected]


def test_limit_holds_over_several_backends_together(world: World, tmp_path: Path) -> None:
    world.queue.fill(4)
    other = QueueFile.create(tmp_path / "other.db")
    other.fill(4)
    backends = [world.queue.open(clock=world.clock), other.open(name="other", clock=world.clock)]
    plan = world.console(backends=backends).propose(matching("condition:terminal", limit=6), KEEP)
    assert [(part.backend, part.first, part.changes) for part in plan.parts] == [("queue", 0, 4), ("other", 4, 2)]


def test_the_first_by_a_column_are_the_first_of_all_backends_as_they_are_listed(world: World, tmp_path: Path) -> None:
    other = QueueFile.create(tmp_path / "other.db")
    for n in range(3):
        world.queue.put(f"old{n}", updated=NOON - timedelta(hours=10 + n))
        other.put(f"new{n}", updated=NOON - timedelta(minutes=10 + n))
    backends = [world.queue.open(clock=world.clock), other.open(name="other", clock=world.clock)]
    console = world.console(backends=backends)
    sort = Sort(SortField.UPDATED, descending=True)
    plan = console.propose(matching("condition:terminal", sort=sort, limit=4), KEEP)
    assert sorted(row.key for row in planned(console, plan)) == ["other/new0", "other/new1", "other/new2", "queue/old0"]
    assert plan.selection == str(matching("condition:terminal", sort=sort, limit=4))


def test_more_than_max_items_is_refused_with_the_count_and_stores_nothing(world: World) -> None:
    world.queue.fill(12)
    console = world.console(limits=Limits(max_items=10))
    with pytest.raises(TooMany, match="12 items are selected, but a plan may have at most 10"):
        console.propose(matching("condition:terminal"), KEEP)
    with pytest.raises(TooMany, match="12 items are selected, but a plan may have at most 10"):
        console.propose(marked(*(f"queue/{id}" for id in world.queue.ids())), KEEP)
    with closing(sqlite3.connect(world.trail_file)) as trail:
        assert trail.execute("SELECT count(*) FROM plan_block").fetchone() == (0,)
    assert console.propose(matching("condition:terminal", limit=10), KEEP).changes == 10


def test_too_many_of_a_limit_names_the_limit(world: World) -> None:
    world.queue.fill(15)
    with pytest.raises(TooMany, match="12 items are selected, but a plan may have at most 10"):
        world.console(limits=Limits(max_items=10)).propose(matching("condition:terminal", limit=12), KEEP)


def test_exactly_max_items_is_allowed(world: World) -> None:
    world.queue.fill(10)
    assert world.console(limits=Limits(max_items=10)).propose(matching("condition:terminal"), KEEP).changes == 10


def test_selection_by_signature_takes_that_cause_only(world: World) -> None:
    for n in range(3):
        world.queue.put(f"t{n}")
        world.queue.put(f"d{n}", error=f"ERR_DISK: no space on volume {n}")
    console = world.console()
    wanted = signature_of("ERR_DISK: no space on volume 1")
    plan = console.propose(matching(f"cause:{wanted}"), KEEP)
    assert sorted(row.key for row in planned(console, plan)) == [f"queue/d{n}" for n in range(3)]
    assert plan.by_cause == {wanted: 3}


def test_a_signature_selection_keeps_the_sort_order_and_the_limit(world: World) -> None:
    for n, hours in enumerate((5, 1, 4, 2, 3)):
        world.queue.put(f"t{n}", updated=NOON - timedelta(hours=hours))
    console = world.console()
    text = f"cause:{signature_of('ERR_TIMEOUT: upstream timed out')}"
    plan = console.propose(matching(text, sort=Sort(SortField.UPDATED), limit=3), KEEP)
    descending = Sort(SortField.UPDATED).descending
    expected = ["t1", "t3", "t4"] if descending else ["t0", "t2", "t4"]
    assert [row.key for row in planned(console, plan)] == [f"queue/{id}" for id in expected]


def two_causes() -> tuple[str, str, str]:
    """Errors whose signatures begin alike, and how."""
    met: dict[str, str] = {}
    for n in range(100_000):
        letters = "".join(chr(97 + int(digit)) for digit in str(n))
        error = f"ERR_{letters.upper()}: {letters} broke"
        head = signature_of(error)[:4]
        if head in met and signature_of(met[head]) != signature_of(error):
            return met[head], error, head
        met[head] = error
    raise AssertionError("a hash that never begins alike")


@pytest.mark.parametrize("apart", [False, True])
def test_an_ambiguous_signature_prefix_is_a_mistake_and_stores_nothing(world: World, tmp_path: Path, apart: bool) -> None:
    first, second, head = two_causes()
    other = QueueFile.create(tmp_path / "other.db")
    world.queue.put("a", error=first)
    (other if apart else world.queue).put("b", error=second)
    backends = [world.queue.open(clock=world.clock), other.open(name="other", clock=world.clock)]
    console = world.console(backends=backends)
    with pytest.raises(QueryFault, match="matches both"):
        console.propose(matching(f"cause:{head}"), KEEP)
    assert console.propose(matching(f"cause:{signature_of(first)}"), KEEP).changes == 1
    with closing(sqlite3.connect(world.trail_file)) as trail:
        assert trail.execute("SELECT count(*) FROM plan_block").fetchone() == (1,)
    assert console.propose(matching(f"cause:{signature_of(second)}"), KEEP).changes == 1


# -- being stopped, being read-only, an unwilling trail --------------------------------------------------


def test_a_stopped_proposal_stores_nothing(world: World) -> None:
    world.queue.fill(10)
    console = world.console()
    stop = StopFlag()
    stop.set()
    with pytest.raises(UsageFault, match="Stopped"):
        console.propose(matching("condition:terminal"), KEEP, stop=stop)
    assert not world.trail_file.exists()


def test_read_only_previews_and_stores_nothing(world: World) -> None:
    world.queue.fill(5)
    console = world.console(read_only=True)
    plan = console.propose(matching("condition:terminal"), RESET)
    assert (plan.changes, plan.by_condition) == (5, {"terminal": 5})
    assert not world.trail_file.exists()
    with pytest.raises(ReadOnlyRefused):
        console.carry_out(plan, confirm(plan))
    with pytest.raises(NoSuchPlan):
        world.console().carry_out(plan, confirm(plan))


def test_proposing_while_the_trail_hangs_is_refused_soon_with_that_reason(world: World) -> None:
    """The lock may come after the first rows were stored; cleaning up must not make it two waits."""
    world.queue.fill(6_000)
    console = world.console()
    console.propose(matching("condition:terminal", limit=1), KEEP)
    holder = sqlite3.connect(world.trail_file, isolation_level=None)

    class LockMidway:
        looks = 0

        @property
        def requested(self) -> bool:
            self.looks += 1
            if self.looks == 4:
                holder.execute("BEGIN IMMEDIATE")
            return False

    began = time.monotonic()
    try:
        with pytest.raises(TrailUnavailable, match="locked"):
            console.propose(matching("condition:terminal"), KEEP, stop=LockMidway())
        assert time.monotonic() - began < (2 + 1) * busy()
    finally:
        holder.close()




