"""A watch follows the items of an override until each was executed, and records the result once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import pytest

from console.core.backend import Abilities, Deletion, Operation, Throughput
from console.core.confirm import Limits
from console.core.events import EventKind, OverrideEvent
from console.core.executor import Progress
from console.core.faults import BackendBusy, BackendFault, DeadlineExceeded, ReadTooLong, Unreachable
from console.core.item import Item, ItemKey
from console.core.operations import Operations
from console.core.override import Override, OverrideState
from console.core.pace import Canary, Now, Over, Pace
from console.core.recovery import Result
from console.core.signature import signature_of
from console.core.watch import OverrideWatch, WatchProgress
from console.testing import StopFlag
from plugins.sqlite_queue import SqliteQueue
from tests.core.working_queue import CanaryWorld, WorkingClock
from tests.faults.world import KEEP, NOON, ORIGIN, RESET, TIMEOUT, WHO, confirm, matching

OTHER = "ERR_CARD: the card was declined"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[CanaryWorld]:
    made = CanaryWorld(tmp_path, clock=WorkingClock())
    made.worker(made.queue)
    yield made
    made.close()


def carried(world: CanaryWorld, count: int, pace: Pace | None = None, console: Operations | None = None) -> Override:
    world.queue.fill(count)
    console = console or world.console()
    plan = console.propose(matching("condition:terminal"), KEEP, pace or Now())
    return console.carry_out(plan, confirm(plan))


def counted(progress: WatchProgress) -> dict[str, int]:
    return {result.value: number for result, number in progress.counts.counts.items() if number}


def recorded(console: Operations, override: Override) -> dict[str, int]:
    body = console.trail.override(override.override_id).result
    assert body is not None
    return {name: number for name, number in body["results"].items() if number}


def results(console: Operations) -> list[int]:
    return [record.seq for record in console.trail.records() if record.kind == "result"]


def test_a_watch_ends_when_every_item_was_executed(world: CanaryWorld) -> None:
    world.clock.handle = lambda id: None if int(id[1:]) % 4 else (TIMEOUT if int(id[1:]) % 8 else OTHER)
    override = carried(world, 80)
    console, shown = world.console(), list[WatchProgress]()
    events: list[OverrideEvent] = []
    console.listen(events.append)
    progress = console.follow(console.watch(override.override_id), show=shown.append)
    assert counted(progress) == {"recovered": 60, "failed_again": 20}
    assert (progress.counts.same_cause, progress.complete, progress.over) == (10, True, True)
    assert dict(progress.counts.causes) == {signature_of(TIMEOUT): 10, signature_of(OTHER): 10}
    assert progress.counts.heads[signature_of(OTHER)] == OTHER
    assert len({len(shown), counted(shown[0])["not_run_yet"]}) == 2, "it was shown while items were waiting"
    assert world.clock.now() - NOON < timedelta(minutes=5), "it does not wait for its time to end"
    assert recorded(console, override) == {"recovered": 60, "failed_again": 20}
    assert [(event.kind, event.bad) for event in events] == [(EventKind.WATCH_ENDED, True)]
    assert events[0].text.endswith("60 of 80 recovered, 20 failed again (10 with the same cause)")


def test_the_error_of_a_traceback_is_named_in_one_line(world: CanaryWorld) -> None:
    said = 'Traceback (most recent call last)\n  File "jobs.py", line 1\nKeyError: rate'
    world.clock.handle = lambda _: said
    console = world.console()
    progress = console.follow(console.watch(carried(world, 4).override_id))
    assert progress.counts.heads[signature_of(said)] == "KeyError: rate"


def test_behind_every_number_are_its_items(world: CanaryWorld) -> None:
    world.clock.handle = lambda id: None if int(id[1:]) % 4 else (TIMEOUT if int(id[1:]) % 8 else OTHER)
    override = carried(world, 80)
    console = world.console()
    watch = console.watch(override.override_id)
    console.follow(watch)
    for result, number in watch.progress.counts.counts.items():
        keys = [one.key for batch in watch.items(result) for one in batch]
        assert len(set(keys)) == len(keys) == number
    failed = {one.key for batch in watch.items(Result.FAILED_AGAIN, same_cause=False) for one in batch}
    assert failed == {f"queue/t{n:06d}" for n in range(0, 80, 8)}
    assert {one.key for batch in watch.items(cause=signature_of(OTHER)) for one in batch} == failed
    stored = [one for batch in console.trail.item_results(override.override_id) for one in batch]
    assert stored == [one for batch in watch.items() for one in batch], "the trail has the same items"
    assert console.trail.verified().ok


def test_only_open_items_are_read_again(world: CanaryWorld) -> None:
    override = carried(world, 100)
    asked: list[int] = []

    class Counting(SqliteQueue):
        def items(self, keys, now):  # type: ignore[no-untyped-def]
            asked.append(len(keys))
            return super().items(keys, now)

    console = world.console(kind=Counting)
    console.follow(console.watch(override.override_id))
    assert asked[0] == 100
    assert asked == sorted(asked, reverse=True)
    assert sum(asked) < 100 * len(asked)


def test_a_watch_ends_with_its_time_and_says_what_is_open(world: CanaryWorld) -> None:
    world.clock.queues.clear()
    override = carried(world, 10)
    console = world.console(limits=Limits(watch_for=timedelta(minutes=10)))
    progress = console.follow(console.watch(override.override_id))
    assert (counted(progress), progress.complete) == ({"not_run_yet": 10}, False)
    assert timedelta(minutes=10) <= world.clock.now() - NOON < timedelta(minutes=11)
    assert recorded(console, override) == {"not_run_yet": 10}


class Interrupted(SqliteQueue):
    """A system that stops answering after some reads."""

    answers = 0
    fault: BackendFault = Unreachable("connection lost", where="queue")

    def items(self, keys: Sequence[ItemKey], now: datetime) -> Mapping[ItemKey, Item]:
        if self.answers == 0:
            raise self.fault
        self.answers -= 1
        return super().items(keys, now)


@pytest.mark.parametrize("fault", [Unreachable("connection lost"), BackendBusy("locked"), DeadlineExceeded("5 s"), ReadTooLong("1 s")])
@pytest.mark.parametrize("answers", [0, 1])
def test_a_watch_ends_with_its_time_when_a_system_does_not_answer(
    world: CanaryWorld, monkeypatch: pytest.MonkeyPatch, fault: BackendFault, answers: int
) -> None:
    world.clock.queues.clear()
    override = carried(world, 10)
    monkeypatch.setattr(Interrupted, "fault", fault)
    monkeypatch.setattr(Interrupted, "answers", answers)
    console = world.console(limits=Limits(watch_for=timedelta(minutes=10)), kind=Interrupted)
    said: list[WatchProgress] = []
    progress = console.follow(console.watch(override.override_id), show=said.append)
    assert (counted(progress), progress.unread, progress.complete) == ({"not_known": 10}, 0, False)
    assert timedelta(minutes=10) <= world.clock.now() - NOON < timedelta(minutes=11)
    assert recorded(console, override) == {"not_known": 10}
    whys = {why for one in said for why in one.faults.values()}
    assert whys == {str(fault) if isinstance(fault, ReadTooLong) else f"does not answer ({fault})"}
    assert counted(said[0]) == ({"not_run_yet": 10} if answers else {})
    assert said[0].unread == (0 if answers else 10)


def test_what_was_settled_before_a_system_stopped_answering_stays(
    world: CanaryWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    override = carried(world, 10)
    world.queue.run("UPDATE async_tasks SET status = 'DONE', updated_at = ? WHERE task_id < 't000004'", (world.clock.now().isoformat(),))
    world.clock.queues.clear()
    monkeypatch.setattr(Interrupted, "answers", 1)
    console = world.console(limits=Limits(watch_for=timedelta(minutes=10)), kind=Interrupted)
    watch = console.watch(override.override_id)
    settled = counted(watch.look())
    assert settled["not_run_yet"] == 6
    end = counted(console.follow(watch))
    assert end == {**{name: n for name, n in settled.items() if name != "not_run_yet"}, "not_known": 6}


def test_a_system_that_answers_again_is_followed_as_before(
    world: CanaryWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    override = carried(world, 10)
    console = world.console(kind=Interrupted)
    watch = console.watch(override.override_id)
    assert watch.look().unread == 10
    monkeypatch.setattr(Interrupted, "answers", -1)
    progress = console.follow(watch)
    assert (counted(progress), progress.faults) == ({"recovered": 10}, {})


def test_the_time_counts_from_the_last_due_time(world: CanaryWorld) -> None:
    world.clock.queues.clear()
    override = carried(world, 20, Over(timedelta(minutes=30)))
    assert override.note.startswith("The last item runs at 2026-11-10T12:2")
    assert override.note.endswith("The due times are stored in its system, so this process may end.")
    console = world.console(limits=Limits(watch_for=timedelta(minutes=5)))
    watch = console.watch(override.override_id)
    due = watch.progress.last_due_at
    assert due is not None
    assert timedelta(minutes=28) < due - NOON <= timedelta(minutes=30)
    assert watch.progress.ends_at == due + timedelta(minutes=5)
    console.follow(watch)
    assert world.clock.now() >= due + timedelta(minutes=5)


def test_items_that_were_written_later_are_taken_later(world: CanaryWorld) -> None:
    """The loop of their system takes ten a second. What a canary holds back waits until it is written."""

    class Loop(SqliteQueue):
        @cached_property
        def abilities(self) -> Abilities:
            return replace(super().abilities, throughput=Throughput(10, timedelta(seconds=1)))

    world.clock.per_nap = 1
    override = carried(world, 120, Canary(20), world.console(kind=Loop))
    written = [intent.at for intent in world.console().trail.intents(override.override_id)]
    assert written[-1] - written[0] > timedelta(seconds=5), "the canary was waited for"
    watch = world.console(kind=Loop).watch(override.override_id)
    assert watch.progress.last_due_at == written[-1] + timedelta(seconds=10)


def test_items_that_are_not_due_are_read_once_and_then_left_alone(world: CanaryWorld) -> None:
    override = carried(world, 60, Over(timedelta(minutes=60)))
    asked: list[int] = []

    class Counting(SqliteQueue):
        def items(self, keys, now):  # type: ignore[no-untyped-def]
            asked.append(len(keys))
            return super().items(keys, now)

    console = world.console(kind=Counting)
    progress = console.follow(console.watch(override.override_id))
    assert counted(progress) == {"recovered": 60}
    assert sum(asked) < 60 * 8, "about once a minute one becomes due, and is then read until it has run"


def test_an_item_that_the_override_did_not_change_hides_no_item_after_it(world: CanaryWorld) -> None:
    """Items of a pace are due one after another. One that somebody else had changed is never due."""
    world.queue.fill(40)
    console = world.console()
    plan = console.propose(matching("condition:terminal"), KEEP, Over(timedelta(minutes=40)))
    keys = [row.key for rows in console.trail.rows(plan.id, 0, 39) for row in rows]
    for key in (keys[20], keys[30], keys[39]):
        world.queue.run("UPDATE async_tasks SET status = 'DONE' WHERE task_id = ?", (key.removeprefix("queue/"),))
    override = console.carry_out(plan, confirm(plan))
    assert override.counts == {"applied": 37, "changed": 3}
    progress = console.follow(console.watch(override.override_id))
    assert (counted(progress), progress.complete) == ({"recovered": 37}, True)


def test_what_was_read_is_within_the_budget(world: CanaryWorld) -> None:
    """Each look costs a second of the system's time, so at 1 % there is one in a hundred seconds."""
    world.clock.queues.clear()
    override = carried(world, 10)
    looks: list[float] = []

    class Slow(SqliteQueue):
        def items(self, keys, now):  # type: ignore[no-untyped-def]
            from console.core.budget import charge

            looks.append(world.clock.now().timestamp())
            charge(1.0)
            return super().items(keys, now)

    console = world.console(kind=Slow, limits=Limits(watch_for=timedelta(minutes=20)))
    console.follow(console.watch(override.override_id))
    distances = [b - a for a, b in pairwise(looks)]
    assert min(distances[:-1]) >= 100, "the last look is made when the time is over"


def test_an_override_that_is_carried_out_is_followed_from_its_first_items(world: CanaryWorld) -> None:
    """The canary and the watch have the same results, at the same time."""
    world.queue.fill(60)
    console = world.console()
    plan = console.propose(matching("condition:terminal"), KEEP, Canary(10))
    seen: list[tuple[int, int]] = []

    def look(progress: object) -> None:
        override = console.trail.overrides()[0]
        watch = world.console().watch(override.override_id)
        watch.look(asked=True)
        seen.append((watch.progress.total, watch.progress.counts.counts[Result.RECOVERED]))
        assert not watch.progress.over

    override = console.carry_out(plan, confirm(plan), watch=look)
    canary = [recovered for total, recovered in seen if total == 10]  # how often it is looked at depends on the machine
    assert canary[0] == 0
    assert canary == sorted(canary)
    assert seen[-1][0] == 60
    assert override.state is OverrideState.FINISHED


def test_a_watch_learns_what_the_canary_reads(world: CanaryWorld) -> None:
    """The step of a canary and the results never disagree, also while the watch may not read for itself."""
    world.queue.fill(100)
    world.clock.handle = lambda id: OTHER if int(id.removeprefix("t")) % 10 == 0 else None

    class Slow(SqliteQueue):
        def items(self, keys, now):  # type: ignore[no-untyped-def]
            from console.core.budget import charge

            charge(1.0)
            return super().items(keys, now)

    console, watches = world.console(), list[OverrideWatch]()
    plan = console.propose(matching("condition:terminal"), KEEP, Canary(10))
    steps: list[int] = []

    def look(progress: Progress) -> None:
        if not watches:
            watches.append(world.console(kind=Slow).watch(progress.override_id))
        (watch,) = watches
        watch.learn(progress.observed)
        counts = watch.look().counts
        if progress.canary is not None and progress.observed:
            known = {result: counts.counts[result] for result in (Result.RECOVERED, Result.FAILED_AGAIN)}
            steps.append(progress.canary.step)
            assert known[Result.RECOVERED] >= progress.canary.recovered
            assert known[Result.FAILED_AGAIN] >= progress.canary.failed_again
            assert counts.counts[Result.RUNNING] == progress.canary.running

    override = console.carry_out(plan, confirm(plan), watch=look)
    assert override.state is OverrideState.FINISHED
    assert set(steps) == {1, 2}
    assert counted(watches[0].progress) == {"recovered": 54, "failed_again": 6}, "the last step is not judged"


def test_two_watchers_record_one_result(world: CanaryWorld) -> None:
    override = carried(world, 40)
    consoles = [world.console(), world.console()]
    watches = [console.watch(override.override_id) for console in consoles]
    while not all(watch.look().over for watch in watches):
        world.clock.sleep(5)
    events: list[OverrideEvent] = []
    for console, watch in zip(consoles, watches, strict=True):
        console.listen(events.append)
        console.follow(watch)
    assert len(results(consoles[0])) == len(events) == 1
    assert recorded(consoles[1], override) == {"recovered": 40}
    assert consoles[0].trail.verified().ok


def test_a_watch_that_is_picked_up_later_has_the_right_counts(world: CanaryWorld) -> None:
    override = carried(world, 60)
    first = world.console()
    first.follow(first.watch(override.override_id), StopFlag(after_looks=3))
    assert not results(first), "it was closed in mid-watch"
    world.clock.tick(timedelta(days=2))
    second = world.console()
    progress = second.follow(second.watch(override.override_id))
    assert counted(progress) == recorded(second, override) == {"recovered": 60}


def test_a_console_that_comes_back_after_the_time_still_looks_at_everything(world: CanaryWorld) -> None:
    world.clock.queues, workers = [], world.clock.queues
    override = carried(world, 30)
    world.clock.queues = workers
    for _ in range(10):
        world.clock.sleep(1)
    world.clock.tick(timedelta(days=3))
    console = world.console()
    assert counted(console.follow(console.watch(override.override_id))) == {"recovered": 30}


def test_a_result_of_a_stopped_override_is_replaced_when_it_was_resumed(world: CanaryWorld) -> None:
    world.clock.handle = lambda _: TIMEOUT
    console = world.console()
    override = carried(world, 100, Canary(20), console)
    assert override.stopped_by_canary
    console.follow(console.watch(override.override_id))
    assert recorded(console, override) == {"failed_again": 20}
    assert console.trail.verified().ok
    world.clock.handle = lambda _: None
    console.resume(override.override_id, WHO, ORIGIN, count=80)
    assert console.trail.override(override.override_id).result is None
    assert console.trail.verified().ok
    console.follow(console.watch(override.override_id))
    assert recorded(console, override) == {"recovered": 80, "failed_again": 20}
    assert len(results(console)) == 2
    assert console.trail.verified().ok


def test_a_watch_whose_time_is_over_begins_anew_when_the_override_is_resumed(world: CanaryWorld) -> None:
    world.clock.handle = lambda _: TIMEOUT
    console = world.console()
    override = carried(world, 100, Canary(20), console)
    assert override.stopped_by_canary
    watch = console.watch(override.override_id)
    watch.reads = False  # as while its backend does not answer
    world.clock.tick(timedelta(hours=2))
    assert not watch.look().over
    world.clock.handle = lambda _: None
    console.resume(override.override_id, WHO, ORIGIN, count=80)
    world.clock.queues.clear()
    watch.reads = True
    progress = watch.look()
    assert (counted(progress).get("not_run_yet", 0) > 0, progress.over) == (True, False)


@pytest.mark.parametrize("operation", [KEEP, RESET])
def test_an_override_and_its_undo_name_each_other(world: CanaryWorld, operation: Operation) -> None:
    """What was undone was not executed, although a counter that was reset is back."""
    world.clock.queues.clear()
    console = world.console()
    world.queue.fill(10)
    requeue = console.propose(matching("condition:terminal"), operation, Now())
    override = console.carry_out(requeue, confirm(requeue))
    plan = console.undo(override.override_id)
    undo = console.carry_out(plan, confirm(plan))
    assert undo.undo_of == override.override_id
    assert console.trail.override(override.override_id).undone_by == (undo.override_id,)
    assert [one.undone_by for one in console.trail.overrides()] == [(), (undo.override_id,)]
    progress = console.follow(console.watch(override.override_id))
    assert counted(progress) == {"changed_by_others": 10}


def test_a_row_that_vanishes_is_recovered_only_where_finished_rows_are_deleted(world: CanaryWorld) -> None:
    def handle(id: str) -> None:
        world.queue.run("DELETE FROM async_tasks WHERE task_id = ?", (id,))

    world.clock.handle = handle
    override = carried(world, 20)
    for _ in range(5):
        world.clock.sleep(1)

    class Deleting(SqliteQueue):
        @cached_property
        def abilities(self) -> Abilities:
            return replace(super().abilities, deletes_finished=Deletion(timedelta(days=1)))

    class DeletingAll(SqliteQueue):
        @cached_property
        def abilities(self) -> Abilities:
            return replace(super().abilities, deletes_finished=Deletion(timedelta(seconds=1)))

    for kind, result in ((SqliteQueue, "not_known"), (DeletingAll, "not_known"), (Deleting, "recovered")):
        console, began = world.console(kind=kind, read_only=True), world.clock.now()
        progress = console.follow(console.watch(override.override_id))
        assert counted(progress) == {result: 20}
        assert timedelta(seconds=60) <= world.clock.now() - began < timedelta(seconds=80)
    assert not results(console), "read-only watches record nothing"


def test_a_row_that_vanishes_later_keeps_the_result_on_record(world: CanaryWorld) -> None:
    """Systems delete old rows. What was recorded before is still known."""
    world.clock.handle = lambda id: TIMEOUT if int(id[1:]) % 4 == 0 else None
    override = carried(world, 20)
    console = world.console()
    console.follow(console.watch(override.override_id))
    world.queue.run("DELETE FROM async_tasks WHERE task_id >= 't000004'")
    watch = world.console().watch(override.override_id)
    found = [one for batch in watch.read_all() for one in batch]
    assert counted(watch.progress) == {"recovered": 15, "failed_again": 5}
    assert watch.progress.counts.same_cause == 5
    assert [one.detail for one in found].count("No longer there. This is its result on record.") == 16


def test_an_item_that_others_change_is_not_taken_for_executed(world: CanaryWorld) -> None:
    """Somebody postpones items, closes some and takes some back. None of them was executed."""
    world.clock.queues, workers = [], world.clock.queues
    override = carried(world, 40)
    world.clock.tick(timedelta(seconds=1))
    now = world.clock.now().isoformat()
    late = (world.clock.now() + timedelta(minutes=20)).isoformat()
    world.queue.run("UPDATE async_tasks SET next_run_at = ?, updated_at = ? WHERE task_id < 't000010'", (late, now))
    world.queue.run("UPDATE async_tasks SET status = 'DONE', updated_at = ? WHERE task_id BETWEEN 't000010' AND 't000019'", (now,))
    world.queue.run("UPDATE async_tasks SET status = 'FAILED', updated_at = ? WHERE task_id BETWEEN 't000020' AND 't000029'", (now,))
    console = world.console()
    watch = console.watch(override.override_id)
    watch.look()
    assert counted(watch.progress) == {"not_run_yet": 20, "changed_by_others": 20}
    world.clock.queues = workers
    assert counted(console.follow(watch)) == {"recovered": 20, "changed_by_others": 20}


def test_a_worker_that_dies_leaves_an_item_that_is_followed_until_it_runs_again(world: CanaryWorld) -> None:
    world.queue.fill(20)
    console = world.console()
    plan = console.propose(matching("condition:terminal"), RESET, Now())
    override = console.carry_out(plan, confirm(plan))
    died: Counter[str] = Counter()

    def handle(id: str) -> str | None:
        died[id] += 1
        return "for ever" if died[id] == 1 and int(id[1:]) % 5 == 0 else None

    world.clock.handle = handle
    watch = console.watch(override.override_id)
    for _ in range(5):
        world.clock.sleep(1)
    watch.look()
    assert counted(watch.progress) == {"recovered": 16, "running": 4}
    world.clock.tick(timedelta(minutes=7))
    watch.look()
    assert counted(watch.progress) == {"recovered": 16, "failed_again": 4}
    assert (watch.progress.open, watch.progress.counts.same_cause) == (4, 0)
    for queue in world.clock.queues:
        queue.reclaim()
    for _ in range(5):
        world.clock.sleep(1)
    assert counted(console.follow(watch)) == {"recovered": 20}
