"""The result of an override equals what the handlers of the system's own workers counted, for every plugin with an engine.

The oracle is the handler: it decides whether an execution succeeds, fails with one of two errors, or kills its worker,
and counts what it decided. Before the workers begin, others delete some items and end some without an execution.
Nothing of the console is asked about any of it.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from console.core import recovery
from console.core.recovery import Result, ResultCounts
from console.core.watch import OverrideWatch
from console.process import SystemClock
from tests.depth import in_depth
from tests.faults import systems
from tests.faults.processes import close, console_of, propose
from tests.faults.world import confirm

ITEMS, MANY = 60, 1_000
KINDS = (
    "sqlite_queue", "sqlite_queue-tasks", "file_queue", "partition_store", "postgres_analyses", "workflow_steps",
    "sql_table", "sql_table-statements", *(kind for kind in systems.KINDS if kind == "sql_table-mysql"),
)
"""The systems whose workers are ours to run. Queues in Redis have the workers of their own libraries."""
IDLE, LONGEST_BACKOFF = 40, 2.0
"""A worker that has slept so often, and for longer than any backoff here, finds nothing more to do."""
INVISIBLE = ("partition_store",)
"""Systems that do not show that an item is being executed: after its worker has died, it is simply taken again."""
STUCK_AT_ONCE = ("sql_table-statements", "postgres_analyses")
"""Systems in which the item of a dead worker is stuck at once, and nothing shows whether it was executed."""
DELETED = {"sql_table-mysql": "recovered"}
"""Of an item that somebody else has deleted nothing is known, except where finished items are deleted, too."""
ENDED = {"sql_table-statements": "recovered", "postgres_analyses": "not_known"}
"""What was ended without an execution was changed by somebody else, except where it looks as if it had been executed, or
nothing shows whether it was."""
STARVES = "postgres_analyses"
"""Its loop looks at the ten oldest rows only. As soon as those have failed again and are not due, it takes no others."""


TROUBLES = ("none", "deaths", "others too")


class Died(BaseException):
    """The worker is gone in the middle of an execution; nothing of it is written."""


class HandlerOracle(SystemClock):
    """The handler, and the clock of the worker, by which it is known when there is nothing more to do."""

    def __init__(self, seed: int, *, deadly: bool) -> None:
        self._chance = random.Random(seed)
        self._kinds = ["done"] * 12 + ["timeout"] * 4 + ["declined"] * 3 + ["died"] * deadly
        self.counts: Counter[str] = Counter()
        self._idle, self._last = 0, time.monotonic()

    def handle(self, *_: object) -> None:
        self._idle, self._last = 0, time.monotonic()
        kind = self._chance.choice(self._kinds)
        self.counts[kind] += 1
        if kind == "died":
            raise Died
        if kind != "done":
            raise RuntimeError("upstream timed out" if kind == "timeout" else "the card was declined")

    def sleep(self, seconds: float) -> None:
        self._idle += 1
        time.sleep(min(seconds, 0.01))

    @property
    def requested(self) -> bool:
        return self._idle > IDLE and time.monotonic() - self._last > LONGEST_BACKOFF

    def work(self, system: systems.System) -> None:
        """Workers one after another: when one has died, the next one begins."""
        while not self.requested:
            try:
                system.work(self.handle, self, self)
            except Died:
                continue


@pytest.fixture(autouse=True)
def no_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """An item that was deleted must be missing for a while; a test has no minute."""
    monkeypatch.setattr(recovery, "GONE_FOR", recovery.GONE_FOR / 60)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    if (tmp_path / "system").exists():
        systems.of(tmp_path).drop()


@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.parametrize(
    ("kind", "items"),
    in_depth([(kind, n) for kind in KINDS for n in (ITEMS, MANY)], quick=[(kind, ITEMS) for kind in KINDS]),
)
def test_the_result_is_what_the_handlers_counted(folder: Path, kind: str, items: int, trouble: str) -> None:
    system, ids = systems.create(kind, folder, items)
    console = console_of(folder)
    plan = propose(console, folder)
    override = console.carry_out(plan, confirm(plan))
    assert override.counts == {"applied": len(ids)}
    watch = console.watch(override.override_id)
    assert watch.look(asked=True).counts.record() == Counter(dict.fromkeys(Result, 0), not_run_yet=len(ids))
    deleted, ended = (ids[::20], ids[7::20]) if trouble == "others too" else ([], [])
    system.delete(deleted)
    system.take_back(ended)
    oracle = HandlerOracle(items, deadly=trouble != "none")
    oracle.work(system)
    counts = settled(watch)
    died = 0 if kind in INVISIBLE else oracle.counts["died"]
    executed = oracle.counts["done"] + oracle.counts["timeout"] + oracle.counts["declined"]
    not_run = len(ids) - len(deleted) - len(ended) - executed - died
    if kind in STUCK_AT_ONCE:
        died, not_run = 0, not_run + died
    expected = Counter(
        recovered=oracle.counts["done"], failed_again=oracle.counts["timeout"] + oracle.counts["declined"], running=died, not_run_yet=not_run,
    )
    expected[DELETED.get(kind, "not_known")] += len(deleted)
    expected[ENDED.get(kind, "changed_by_others")] += len(ended)
    assert counts.record() == {**dict.fromkeys(Result, 0), **expected}
    assert not_run == 0 or trouble != "none" or kind == STARVES, "every item was taken"
    if counts.causes:  # some of these systems keep no error text
        failed = sorted(number for kind in ("timeout", "declined") if (number := oracle.counts[kind]))
        assert sorted(counts.causes.values()) == failed
    for result, number in counts.counts.items():
        assert sum(len(batch) for batch in watch.items(result)) == number
    if not watch.progress.open:
        console.follow(watch)
        recorded = console.trail.override(override.override_id).results
        assert recorded is not None
        assert recorded.record() == counts.record()
        assert console.trail.verified().ok
    close(console)


def settled(watch: OverrideWatch) -> ResultCounts:
    """The results, once items that are missing were looked for twice."""
    watch.look(asked=True)
    time.sleep(recovery.GONE_FOR.total_seconds())
    return watch.look(asked=True).counts


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "sql_table-statements"])
def test_what_was_undone_was_changed_by_somebody_else(folder: Path, kind: str) -> None:
    """An undo is a change by somebody else, also where it brings a counter back that was reset."""
    systems.create(kind, folder, 20)
    console = console_of(folder)
    plan = propose(console, folder)
    override = console.carry_out(plan, confirm(plan))
    undo = console.undo(override.override_id)
    assert console.carry_out(undo, confirm(undo)).counts == {"applied": plan.changes}
    watch = console.watch(override.override_id)
    counts = watch.look(asked=True).counts.record()
    assert counts == Counter(dict.fromkeys(Result, 0), changed_by_others=plan.changes)
    close(console)
