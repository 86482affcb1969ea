"""The canary: a few first, the rest only once the backend shows that those were executed and did not fail again."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from console.core.advice import Advice, Step
from console.core.backend import Abilities, Deletion, Throughput
from console.core.budget import Meter, ReadingBudget, charge
from console.core.confirm import Limits
from console.core.executor import Progress
from console.core.faults import NotConfirmed
from console.core.operations import Operations
from console.core.override import Override, OverrideState
from console.core.pace import Canary
from console.core.signature import signature_of
from console.testing import StopFlag
from plugins.sqlite_queue import SqliteQueue
from plugins.sqlite_queue.engine import AsyncTaskQueue
from tests.core.working_queue import CanaryWorld, WorkingClock
from tests.faults.world import (
    KEEP,
    NOON,
    ORIGIN,
    RESET,
    TIMEOUT,
    WHO,
    QueueFile,
    confirm,
    matching,
    planned,
)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[CanaryWorld]:
    made = CanaryWorld(tmp_path, clock=WorkingClock())
    made.worker(made.queue)
    yield made
    made.close()


def carried(
    world: CanaryWorld, count: int = 200, size: int = 20, operation: object = KEEP, *, watch: Callable[[Progress], None] = lambda _: None,
    console: Operations | None = None, stop: object = None,
) -> Override:
    if not world.queue.ids():
        world.queue.fill(count)
    console = console or world.console()
    plan = console.propose(matching("condition:terminal"), operation, Canary(size))  # type: ignore[arg-type]
    return console.carry_out(plan, confirm(plan), stop, watch)  # type: ignore[arg-type]


def test_a_good_canary_goes_on_in_steps_of_five_times_as_many(world: CanaryWorld) -> None:
    requeued: dict[str, int] = {}

    def watch(progress: Progress) -> None:
        requeued[progress.stage] = sum(world.queue.requeued().values())

    override = carried(world, 200, watch=watch)
    assert (override.state, override.counts) == (OverrideState.FINISHED, {"applied": 200})
    assert requeued == {"queue · step 1 of 3": 20, "queue · step 2 of 3": 120, "queue · step 3 of 3": 200}


def test_a_step_is_not_begun_before_the_last_was_judged(world: CanaryWorld) -> None:
    def handle(id: str) -> str | None:
        done = world.queue.statuses()["DONE"]
        requeued = sum(world.queue.requeued().values())
        assert requeued == (20 if done < 20 else 120)
        return None

    world.clock.handle = handle
    carried(world, 200)
    assert len(world.clock.executed) == 120, "the last step is not waited for"


def test_a_bad_canary_stops_and_says_so(world: CanaryWorld) -> None:
    world.clock.handle = lambda id: TIMEOUT if int(id[1:]) % 2 else None
    override = carried(world)
    assert override.state is OverrideState.STOPPED
    assert "failed again with the same error (limit 20 %)" in override.note
    assert override.counts == {"applied": 20}
    assert sum(world.queue.requeued().values()) == 20


@pytest.mark.parametrize(("operation", "status"), [(KEEP, "FAILED"), (RESET, "PENDING")])
def test_failed_again_is_bad_whether_terminal_or_to_be_retried(world: CanaryWorld, operation: object, status: str) -> None:
    world.clock.handle = lambda _: TIMEOUT
    assert carried(world, operation=operation).state is OverrideState.STOPPED
    assert world.queue.row(world.clock.executed[0])["status"] == status


def test_another_error_is_bad_too_and_shown_apart(world: CanaryWorld) -> None:
    world.clock.handle = lambda _: "ERR_NEW: quite another story"
    override = carried(world)
    assert "failed again with another error (limit 20 %)" in override.note


def test_exactly_the_limit_is_not_more_than_the_limit(world: CanaryWorld) -> None:
    world.clock.handle = lambda _: TIMEOUT if len(world.clock.executed) in (3, 6, 9, 12) else None
    assert carried(world).state is OverrideState.FINISHED


def test_one_above_the_limit_stops(world: CanaryWorld) -> None:
    world.clock.handle = lambda _: TIMEOUT if len(world.clock.executed) in (3, 6, 9, 12, 15) else None
    override = carried(world)
    assert (override.state, override.counts) == (OverrideState.STOPPED, {"applied": 20})
    assert override.note == (
        f"Canary failed: 5 of 20 failed again with the same error (limit 20 %). Cause: {signature_of(TIMEOUT)[:8]} (5). "
        "180 items were not touched. Fix the cause, then make a new plan."
    )
    assert TIMEOUT not in override.note, "the text of an error may contain secrets, and the note goes on record"


def test_not_judged_by_the_deadline_stops(world: CanaryWorld) -> None:
    world.clock.queues.clear()
    override = carried(world, 40, console=world.console(limits=Limits(canary_deadline=timedelta(minutes=2))))
    assert override.state is OverrideState.STOPPED
    assert override.note == (
        "Canary stopped: 20 of 20 did not run in time. 20 items were not touched. Check its workers. Resume it to try a new canary."
    )
    assert timedelta(minutes=2) <= world.clock.now() - NOON < timedelta(minutes=3)
    assert Limits().canary_deadline == timedelta(minutes=15)


class SlowQueue(SqliteQueue):
    """A queue whose system takes two tasks a minute."""

    @cached_property
    def abilities(self) -> Abilities:
        return replace(super().abilities, throughput=Throughput(2, timedelta(minutes=1)))


def test_a_canary_waits_as_long_as_the_system_needs_for_it(world: CanaryWorld) -> None:
    """Twenty items at two a minute take ten minutes; the deadline of two minutes would stop the override."""
    world.clock.queues.clear()
    console = world.console(limits=Limits(canary_deadline=timedelta(minutes=2)), kind=SlowQueue)
    override = carried(world, 40, console=console)
    assert override.note == (
        "Canary stopped: 20 of 20 did not run in time. 20 items were not touched. Check its workers. Resume it to try a new canary."
    )
    assert timedelta(minutes=10) <= world.clock.now() - NOON < timedelta(minutes=11)


def test_a_plan_says_how_long_the_system_needs(world: CanaryWorld) -> None:
    world.queue.fill(41)
    console = world.console(kind=SlowQueue)
    plan = console.propose(matching("condition:terminal"), KEEP, Canary(20))
    assert plan.warnings["Its system takes at most 2 items every 1m, so it needs about 21m."] == 41
    override = carried(world, console=console, size=41)
    assert not console.undo(override.override_id).warnings


def test_some_not_judged_by_the_deadline_stops_though_the_others_are_good(world: CanaryWorld) -> None:
    world.clock.handle = lambda _: "for ever" if len(world.clock.executed) == 5 else None
    console = world.console(limits=Limits(canary_deadline=timedelta(minutes=2)))
    override = carried(world, console=console)
    assert override.note == (
        "Canary stopped: 1 of 20 did not run in time. 180 items were not touched. Check its workers. Resume it to try a new canary."
    )


def test_one_that_runs_past_its_limit_is_bad(world: CanaryWorld) -> None:
    world.clock.handle = lambda _: "for ever" if len(world.clock.executed) in range(1, 6) else None
    override = carried(world)
    assert "5 of 20 failed again" in override.note


def test_the_canary_is_per_backend(world: CanaryWorld, tmp_path: Path) -> None:
    other = QueueFile.create(tmp_path / "other.db")
    other.fill(200, prefix="o")
    world.queue.fill(200)
    world.worker(other)
    world.clock.handle = lambda id: TIMEOUT if id.startswith("o") else None
    backends = [world.queue.open(clock=world.clock), other.open(name="other", clock=world.clock)]
    override = carried(world, console=world.console(backends=backends))
    assert override.counts == {"applied": 220}
    assert (sum(world.queue.requeued().values()), sum(other.requeued().values())) == (200, 20)


def test_what_has_changed_is_not_waited_for(world: CanaryWorld) -> None:
    world.queue.fill(40)
    console = world.console()
    plan = console.propose(matching("condition:terminal"), KEEP, Canary(20))
    world.queue.run("UPDATE async_tasks SET attempts = 9 WHERE task_id GLOB '*[13579]'")
    assert console.carry_out(plan, confirm(plan)).counts == {"applied": 20, "changed": 20}


class DeletingQueue(SqliteQueue):
    """A queue whose system deletes finished tasks, and failed ones after a day."""

    @cached_property
    def abilities(self) -> Abilities:
        return replace(super().abilities, deletes_finished=Deletion(timedelta(days=1)))


@pytest.mark.parametrize("kind", [SqliteQueue, DeletingQueue])
def test_a_missing_item_is_good_only_where_finished_ones_are_deleted(
    world: CanaryWorld, kind: type[SqliteQueue]
) -> None:
    def handle(id: str) -> str | None:
        world.queue.run("DELETE FROM async_tasks WHERE task_id = ?", (id,))
        return None

    world.clock.handle = handle
    override = carried(world, 40, console=world.console(kind=kind))
    assert world.clock.now() - NOON >= timedelta(seconds=60), "a row that is moved is missing for a moment, too"
    if kind is DeletingQueue:
        assert (override.state, override.counts) == (OverrideState.FINISHED, {"applied": 40})
    else:
        assert (override.state, override.counts) == (OverrideState.STOPPED, {"applied": 20})
        assert override.note.startswith("Canary stopped: 20 of 20 are no longer there, so nobody can tell")


def test_a_plan_smaller_than_its_canary_has_nothing_to_wait_for(world: CanaryWorld) -> None:
    world.clock.queues.clear()
    assert carried(world, 20).counts == {"applied": 20}


def test_a_signal_while_waiting_ends_it(world: CanaryWorld) -> None:
    world.clock.queues.clear()
    stop = StopFlag()
    override = carried(world, stop=stop, watch=lambda progress: stop.set() if "not run yet" in progress.note else None)
    assert (override.state, override.note) == (OverrideState.STOPPED, "Stopped by a signal.")


def test_the_summary_is_reported_while_waiting(world: CanaryWorld) -> None:
    notes: list[str] = []
    console = world.console()
    console.budgets["queue"] = ReadingBudget(share=1.0)  # on a busy machine a look takes long
    carried(world, console=console, watch=lambda progress: notes.append(progress.note))
    assert "Canary: 7 of 20 recovered, 13 not run yet" in notes


def test_the_looks_at_a_canary_keep_to_the_budget_that_everything_else_shares(world: CanaryWorld) -> None:
    """A look that took ten seconds is not repeated before a thousand have passed, but once more at the end."""
    looks: list[timedelta] = []

    class Slow(SqliteQueue):
        def items(self, keys: Any, now: Any) -> Any:
            looks.append(world.clock.now() - NOON)
            charge(10.0)
            return super().items(keys, now)

    world.clock.queues.clear()
    world.queue.fill(40)
    console = world.console(kind=Slow, limits=Limits(canary_deadline=timedelta(minutes=30)))
    override = carried(world, console=console)
    assert "did not run in time" in override.note
    assert [round(look / timedelta(minutes=1)) for look in looks] == [0, 17, 30]
    budget = console.budgets["queue"]
    budget.wait("counts", time.monotonic())
    budget.note("counts", Meter(10.0, 1), time.monotonic())
    assert budget.wait("counts", time.monotonic()) > 1_900, "both have half of the share"


# -- a backend that does not answer while it is only watched ---------------------------------------------


class Locks:
    """Somebody who holds the whole queue file for himself from one look at the canary on, for so many looks."""

    def __init__(self, world: CanaryWorld, folder: Path, looks: int) -> None:
        world.queue = QueueFile.create(folder / "locked.db", wal=False)
        world.queue.fill(40)
        self.backend = world.queue.open(clock=world.clock, deadline=timedelta(milliseconds=300))
        self.notes: list[str] = []
        self._left = looks
        self._workers, world.clock.queues = AsyncTaskQueue(self.backend.database, self.backend.policy, world.clock), []
        self._clock = world.clock
        self._holder = sqlite3.connect(world.queue.path, isolation_level=None, timeout=30)

    def watch(self, progress: Progress) -> None:
        self.notes.append(progress.note)
        if "not run yet" not in progress.note:
            return
        if self._left and not self._holder.in_transaction:
            self._holder.execute("BEGIN EXCLUSIVE")
        elif self._holder.in_transaction:
            self._left -= 1
            if not self._left:
                self._holder.execute("ROLLBACK")
                self._clock.queues = [self._workers]

    def close(self) -> None:
        self._holder.close()


def test_a_look_that_fails_is_only_one_look_the_less(world: CanaryWorld, tmp_path: Path) -> None:
    with closing(Locks(world, tmp_path, looks=2)) as locks:
        override = carried(world, console=world.console(backends=[locks.backend]), watch=locks.watch)
        notes = [note for note in locks.notes if "another process holds its lock" in note]
    assert (override.state, override.counts) == (OverrideState.FINISHED, {"applied": 40})
    assert len(notes) == 2
    assert notes[0].startswith("Canary: 0 of 20 recovered, 20 not run yet. Reading failed and is tried again: ")
    assert "failed" not in override.note, "the note about one look ends with the next"


def test_a_canary_that_could_not_be_read_in_time_is_not_a_good_one(world: CanaryWorld, tmp_path: Path) -> None:
    with closing(Locks(world, tmp_path, looks=1_000)) as locks:
        limits = Limits(canary_deadline=timedelta(seconds=2))
        override = carried(world, console=world.console(backends=[locks.backend], limits=limits), watch=locks.watch)
    assert (override.state, override.counts) == (OverrideState.STOPPED, {"applied": 20})
    assert override.note.startswith("Canary stopped: its items could not be read (")
    assert "another process holds its lock" in override.note
    assert sum(world.queue.requeued().values()) == 20


def test_what_no_other_look_would_change_ends_it_at_once(world: CanaryWorld) -> None:
    def watch(progress: Progress) -> None:
        if "not run yet" in progress.note:
            world.queue.run("ALTER TABLE async_tasks RENAME TO moved")

    world.clock.queues.clear()
    override = carried(world, watch=watch)
    assert (override.state, override.counts) == (OverrideState.STOPPED, {"applied": 20})
    assert "no such table" in override.note
    assert world.clock.now() - NOON < timedelta(seconds=5)


# -- resuming: the canary is never skipped ---------------------------------------------------------------


class Crash(BaseException):
    pass


def test_a_crash_while_waiting_does_not_skip_the_judgement(world: CanaryWorld) -> None:
    world.clock.queues, workers = [], world.clock.queues

    def die(progress: Progress) -> None:
        if "not run yet" in progress.note:
            raise Crash

    console = world.console()
    with pytest.raises(Crash):
        carried(world, console=console, watch=die)
    world.clock.tick(timedelta(seconds=61))
    world.clock.queues, world.clock.handle = workers, lambda _: TIMEOUT
    override = world.console().resume(console.trail.overrides()[0].override_id, WHO, ORIGIN)
    assert (override.state, override.counts) == (OverrideState.STOPPED, {"applied": 20})
    assert "failed again with the same error" in override.note


def test_resuming_a_bad_canary_does_not_let_the_rest_go(world: CanaryWorld) -> None:
    world.clock.handle = lambda _: TIMEOUT
    console = world.console()
    override = carried(world, console=console)
    with pytest.raises(NotConfirmed):
        console.resume(override.override_id, WHO, ORIGIN)
    form = console.resume_form(override.override_id)
    assert form is not None
    assert form.question == "This changes 180 items. Type the number to confirm: "
    with pytest.raises(NotConfirmed, match="200 confirmed, but 180 items are left") as wrong:
        console.resume(override.override_id, WHO, ORIGIN, count=200)
    assert wrong.value.advice == Advice(Step.CONFIRM, "180"), "its plan cannot be applied a second time"
    again = console.resume(override.override_id, WHO, ORIGIN, count=180)
    assert (again.state, again.counts) == (OverrideState.STOPPED, {"applied": 40})
    assert "160 items were not touched" in again.note
    assert sum(world.queue.requeued().values()) == 40


def test_one_that_was_stopped_while_its_canary_failed_asks_again(world: CanaryWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever stops it while the canary waits must not let the rest go with one key."""
    monkeypatch.setattr("console.core.executor.BEAT", 0.0)
    console, other = world.console(), world.console()

    def stop(progress: Progress) -> None:
        if progress.canary is not None:
            other.stop(progress.override_id)

    override = carried(world, 40, console=console, watch=stop)
    assert (override.state, override.counts) == (OverrideState.STOPPED, {"applied": 20})
    assert override.note == "Stopped on request. 20 items were not touched. Resume it to continue."
    world.clock.handle = lambda _: TIMEOUT
    with pytest.raises(NotConfirmed):
        console.resume(override.override_id, WHO, ORIGIN)
    assert sum(world.queue.requeued().values()) == 20
    again = console.resume(override.override_id, WHO, ORIGIN, count=20)
    assert (again.state, again.counts) == (OverrideState.FINISHED, {"applied": 40})


def test_a_new_canary_does_not_end_for_the_reason_of_the_old_one(world: CanaryWorld) -> None:
    world.clock.handle = lambda _: TIMEOUT
    console = world.console()
    override = carried(world, console=console)
    world.clock.handle = lambda _: None
    stages: list[str] = []
    again = console.resume(
        override.override_id, WHO, ORIGIN, count=180, watch=lambda progress: stages.append(progress.stage)
    )
    assert (again.state, again.counts) == (OverrideState.FINISHED, {"applied": 200})
    assert stages[0] == "queue · step 1 of 3", "20 of the 180 that are left, then 100, then 60"
    assert set(world.queue.requeued().values()) == {1}


def test_resuming_once_the_workers_are_back_goes_on(world: CanaryWorld) -> None:
    world.clock.queues, workers = [], world.clock.queues
    console = world.console(limits=Limits(canary_deadline=timedelta(minutes=1)))
    override = carried(world, console=console)
    assert "did not run in time" in override.note
    world.clock.queues = workers
    assert console.resume(override.override_id, WHO, ORIGIN, count=180).counts == {"applied": 200}
    assert set(world.queue.requeued().values()) == {1}


def test_a_canary_whose_items_all_changed_proves_nothing_so_the_next_few_are_it(world: CanaryWorld) -> None:
    world.queue.fill(12)
    console = world.console()
    plan = console.propose(matching("condition:terminal"), KEEP, Canary(3))
    for row in planned(console, plan)[:3]:
        world.queue.run("UPDATE async_tasks SET attempts = attempts + 1 WHERE task_id = ?", (row.key.split("/")[1],))
    requeued: dict[str, int] = {}

    def watch(progress: Progress) -> None:
        requeued[progress.stage] = sum(world.queue.requeued().values())

    world.clock.handle = lambda _: TIMEOUT
    override = console.carry_out(plan, confirm(plan), watch=watch)
    assert (override.state, override.counts) == (OverrideState.STOPPED, {"changed": 3, "applied": 3})
    assert requeued == {"queue · step 1 of 2": 0, "queue · step 2 of 3": 3}


def test_a_pause_is_not_counted_against_the_canary(world: CanaryWorld) -> None:
    """And what was executed meanwhile is looked at before anybody says that it was not."""
    world.queue.fill(30)
    console = world.console(limits=Limits(canary_deadline=timedelta(seconds=3)))
    plan = console.propose(matching("condition:terminal"), KEEP, Canary(5))
    looks = iter(range(1_000))
    world.clock.per_nap = 0

    def watch(progress: Progress) -> None:
        (known,) = console.trail.overrides()
        if progress.paused:
            world.clock.tick(timedelta(seconds=50))
            console.proceed(known.override_id)
            world.clock.per_nap = 5
        elif next(looks) == 3:
            console.pause(known.override_id)
            time.sleep(1.1)  # until it looks again at what is asked of it

    override = console.carry_out(plan, confirm(plan), watch=watch)
    assert (override.state, override.counts) == (OverrideState.FINISHED, {"applied": 30})
