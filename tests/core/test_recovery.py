"""The result of an override equals what the handlers of the queue's own worker counted."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from console.core.item import Condition, Item, ItemKey, Verdict
from console.core.pace import Now, Over
from console.core.recovery import ItemResult, Result, ResultCounts, result_of
from plugins.sqlite_queue.engine import AsyncTaskQueue
from tests.faults.world import KEEP, NOON, RESET, TIMEOUT, FrozenClock, World, confirm, matching

OTHER = "ERR_CARD: the card was declined"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, clock=FrozenClock(NOON))
    yield made
    made.close()


def found(world: World, override: str) -> dict[str, ItemResult]:
    return {one.key: one for batch in world.console().results(override) for one in batch}


def work(world: World, handled: dict[str, str | None], most: int) -> dict[str, str]:
    """The queue's own worker takes so many tasks. `running` where the handler has not returned."""
    backend = world.queue.open()
    queue, seen = AsyncTaskQueue(backend.database, backend.policy, world.clock), {}
    for _ in range(most):
        world.clock.tick(timedelta(milliseconds=1))
        if (task := queue.claim()) is None:
            break
        world.clock.tick(timedelta(milliseconds=1))
        answer = handled[task.id]
        if answer is None:
            queue.complete(task)
            seen[task.id] = Result.RECOVERED
        elif answer == "running":
            seen[task.id] = Result.RUNNING
        else:
            queue.fail(task, answer)
            seen[task.id] = Result.FAILED_AGAIN
    backend.close()
    return seen


@pytest.mark.parametrize("operation", [KEEP, RESET])
def test_the_results_are_what_the_handlers_counted(world: World, operation: object) -> None:
    chance = random.Random(7)
    ids = world.queue.fill(1_000)
    console = world.console()
    plan = console.propose(matching("condition:terminal"), operation, Now())  # type: ignore[arg-type]
    override = console.carry_out(plan, confirm(plan))
    handled = {id: chance.choice([None, None, TIMEOUT, OTHER, "running"]) for id in ids}
    seen = work(world, handled, 700)
    gone = {id for id in ids if id not in seen and chance.random() < 0.1}
    world.queue.script("".join(f"DELETE FROM async_tasks WHERE task_id = '{id}';" for id in gone))
    results = found(world, override.override_id)
    expected = {
        f"queue/{id}": seen.get(id, Result.NOT_KNOWN if id in gone else Result.NOT_RUN_YET) for id in ids
    }
    assert {key: one.result for key, one in results.items()} == expected
    same = {key for key, one in results.items() if one.same_cause}
    assert same == {f"queue/{id}" for id in seen if handled[id] == TIMEOUT}
    other = {key for key, one in results.items() if one.result is Result.FAILED_AGAIN and not one.same_cause}
    assert other == {f"queue/{id}" for id in seen if handled[id] == OTHER}


def test_an_item_that_waits_for_its_pace_has_not_run_yet(world: World) -> None:
    world.queue.fill(50)
    console = world.console()
    plan = console.propose(matching("condition:terminal"), KEEP, Over(timedelta(minutes=30)))
    override = console.carry_out(plan, confirm(plan))
    assert {one.result for one in found(world, override.override_id).values()} == {Result.NOT_RUN_YET}


def test_the_results_of_a_system_that_cannot_be_read_are_not_known(world: World) -> None:
    world.queue.fill(5)
    console = world.console()
    plan = console.propose(matching("condition:terminal"), KEEP, Now())
    override = console.carry_out(plan, confirm(plan))
    world.queue.script("DROP TABLE async_tasks")
    results = found(world, override.override_id)
    assert {one.result for one in results.values()} == {Result.NOT_KNOWN}
    assert all(one.detail for one in results.values())


@pytest.mark.parametrize("condition", Condition)
@pytest.mark.parametrize("executed", [None, -1, 1])
def test_only_an_execution_after_the_requeue_proves_anything(condition: Condition, executed: int | None) -> None:
    at = None if executed is None else NOON + timedelta(seconds=executed)
    later = NOON + timedelta(minutes=1)
    item = Item(ItemKey("q", ("1",)), "t", "s", 1, 3, Verdict(condition, "why"), "e", NOON, NOON, later, at)
    result = result_of(item, NOON)
    assert (result is Result.RUNNING) == (condition is Condition.RUNNING)
    if executed != 1:
        assert result not in (Result.RECOVERED, Result.FAILED_AGAIN)


def test_the_summary_is_one_sentence_in_the_words_of_the_product() -> None:
    counts = ResultCounts()
    results = [Result.RECOVERED] * 5 + [Result.FAILED_AGAIN] * 2 + [Result.CHANGED_BY_OTHERS]
    counts.add(ItemResult(n, f"q/{n}", result, "abc", n == 5) for n, result in enumerate(results))
    assert counts.summary() == (
        "5 of 8 recovered, 2 failed again (1 with the same cause), 1 changed by somebody else"
    )
    assert json.dumps(Counter(results)) == '{"recovered": 5, "failed_again": 2, "changed_by_others": 1}'
