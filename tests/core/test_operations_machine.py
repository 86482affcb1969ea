"""Workers, two consoles, crashes and the clock in any order: at most once, never while running, never lost.

The oracle is the trigger-filled table of `tests.faults.world`: SQLite itself writes down who changed which row, from
what and when. The trail must tell the same story.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from console.core.backend import Action, Attempts, Authority, Operation
from console.core.confirm import Limits
from console.core.executor import Progress
from console.core.faults import (
    AllSkipped,
    LeaseLost,
    NoSuchPlan,
    NotConfirmed,
    OverrideRunning,
    PlanExpired,
    PlanStale,
    Refused,
)
from console.core.operations import Operations
from console.core.override import Intent, OverrideState
from console.core.pace import Canary, Now, Over, Pace, Rate
from console.core.plan import Plan
from console.testing import StopFlag
from plugins._contract_queue import Claimed
from plugins.sqlite_queue.engine import AsyncTaskQueue
from tests.depth import examples
from tests.faults.world import NOON, ORIGIN, WHO, World, confirm, final_outcomes, marked, matching

STUCK_AFTER = timedelta(seconds=360)
TASKS = [
    ("f1", "FAILED", 4, 0), ("f2", "FAILED", 4, 0), ("f3", "FAILED", 4, 0), ("f4", "FAILED", 5, 0), ("f5", "FAILED", 2, 0),
    ("p1", "PENDING", 2, 600), ("p2", "PENDING", 3, 4000), ("w1", "PENDING", 0, -5), ("w2", "PENDING", 0, -1),
    ("r1", "RUNNING", 1, 0), ("r2", "RUNNING", 4, 0), ("d1", "DONE", 1, 0),
]  # id, status, attempts, seconds until due
LIMITS = Limits(chunk_target=timedelta(microseconds=1), canary_deadline=timedelta(seconds=2))
CRASHES = ("before_write", "after_write", "after_outcome")
SUSPENSIONS = ("settled", "resumed")
"""What the other console does with an override whose process hears and says nothing for a minute within its write."""
TROUBLES = [None, None, *CRASHES, *SUSPENSIONS]


class Crash(BaseException):
    """The process is gone in the middle of it."""


class Consoles(RuleBasedStateMachine):
    plans = Bundle("plans")
    overrides = Bundle("overrides")
    claims = Bundle("claims")

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="retriage-machine-"))
        self.world = World(self.folder)
        for id, status, attempts, due in TASKS:
            updated = NOON - (timedelta(minutes=1) if status == "RUNNING" else timedelta(hours=1))
            self.world.queue.put(id, status, attempts, due=NOON + timedelta(seconds=due), updated=updated)
        self.world.queue.forget()
        worker = self.world.queue.open(clock=self.world.clock)
        self.world._open.append(worker)
        self.queue = AsyncTaskQueue(worker.database, worker.policy, self.world.clock)
        self.crash: tuple[str, int] | None = None
        self.who, self.plan_id = 0, ""
        self.consoles = [self.console(), self.console()]

    def console(self) -> Operations:
        backend = self.world.queue.open(clock=self.world.clock)
        write = backend.compare_and_set

        def compare_and_set(changes: Any, operation: Operation, authority: Authority) -> Any:
            for point in SUSPENSIONS:
                self.reach(point)
            return write(changes, operation, authority)

        backend.compare_and_set = compare_and_set  # type: ignore[method-assign]
        return self.world.console(reach=self.reach, limits=LIMITS, backends=[backend])

    def reach(self, point: str) -> None:
        if self.crash and self.crash[0] == point:
            self.crash = (point, self.crash[1] - 1)
            if self.crash[1] == 0:
                self.crash = None
                if point not in SUSPENSIONS:
                    raise Crash
                self.suspend(point)

    def suspend(self, then: str) -> None:
        self.world.clock.tick(timedelta(seconds=61))
        other = self.consoles[1 - self.who]
        for settled in other.settle_unresolved(WHO, ORIGIN):
            if then == "resumed" and settled.plan_id == self.plan_id:
                other.resume(settled.override_id, WHO, ORIGIN)

    def act(self, name: str) -> None:
        """The oracle gets the name of who acts: between two steps of the machine nobody else writes."""
        self.world.queue.run("UPDATE oracle_actor SET name = ?, at = ?", (name, self.world.clock.now().isoformat()))

    def teardown(self) -> None:
        verified = self.world.trail().verify()
        self.world.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        assert verified.ok, verified.what

    # -- the attached system -------------------------------------------------------------------------

    @rule(target=claims)
    def claim(self) -> object:
        self.act("worker")
        task = self.queue.claim()
        return multiple() if task is None else task

    @rule(task=consumes(claims))
    def finish(self, task: Claimed) -> None:
        self.act("worker")
        self.queue.complete(task)

    @rule(task=consumes(claims))
    def fail(self, task: Claimed) -> None:
        self.act("worker")
        self.queue.fail(task, "ERR_TIMEOUT: again")

    @rule()
    def reclaim(self) -> None:
        self.act("worker")
        self.queue.reclaim()

    @rule(seconds=st.sampled_from([0.001, 1, 61, 301, 361, 3601]))
    def tick(self, seconds: float) -> None:
        self.world.clock.tick(timedelta(seconds=seconds))

    # -- consoles ------------------------------------------------------------------------------------

    @rule(
        target=plans,
        who=st.integers(0, 1),
        text=st.sampled_from(["condition:terminal", "condition:terminal,stuck,failed", "condition:*", "condition:retrying", "mark"]),
        marks=st.lists(st.sampled_from([task[0] for task in TASKS]), min_size=1, max_size=5),
        attempts=st.sampled_from(Attempts),
        pace=st.sampled_from([Now(), Over(timedelta(minutes=2)), Rate(2.0), Canary(1)]),
    )
    def propose(self, who: int, text: str, marks: list[str], attempts: Attempts, pace: Pace) -> Plan:
        self.act("nobody")
        selection = marked(*(f"queue/{id}" for id in marks)) if text == "mark" else matching(text, everything=True)
        return self.consoles[who].propose(selection, Operation(attempts=attempts), pace)

    @rule(target=plans, who=st.integers(0, 1), override=overrides)
    def undo(self, who: int, override: str) -> object:
        self.act("nobody")
        console = self.consoles[who]
        try:
            return console.undo(override)
        except PlanStale:
            plan = console.trail.plan(console.trail.override(override).plan_id)
            assert plan.operation.action == Action.UNDO
            return multiple()

    @rule(
        target=overrides, who=st.integers(0, 1), plan=plans, crash=st.sampled_from(TROUBLES),
        looks=st.sampled_from([None, None, 1, 2]),
    )
    def apply(self, who: int, plan: Plan, crash: str | None, looks: int | None) -> object:
        known = {override.override_id for override in self.consoles[who].trail.overrides()}
        self.world.clock.tick(timedelta(microseconds=1))  # no two overrides read the same microsecond from a real clock
        self._carry(who, crash, looks, plan, plan.id)
        begun = [override.override_id for override in self.consoles[who].trail.overrides() if override.override_id not in known]
        return multiple(*begun)

    @rule(who=st.integers(0, 1), override=overrides, crash=st.sampled_from(TROUBLES))
    def resume(self, who: int, override: str, crash: str | None) -> None:
        self.world.clock.tick(timedelta(microseconds=1))
        self._carry(who, crash, None, override, self.consoles[who].trail.override(override).plan_id)

    def _carry(self, who: int, crash: str | None, looks: int | None, what: Plan | str, plan_id: str) -> None:
        self.act(plan_id)
        self.who, self.plan_id = who, plan_id
        console, stop = self.consoles[who], StopFlag(after_looks=looks)
        self.crash = (crash, 1) if crash else None

        def watch(progress: Progress) -> None:
            if progress.done:
                self.reach("after_outcome")

        try:
            if isinstance(what, Plan):
                console.carry_out(what, confirm(what), stop, watch)
            else:
                form = console.resume_form(what)
                console.resume(what, WHO, ORIGIN, stop, watch, count=None if form is None else form.changes)
        except Crash:
            self.consoles[who] = self.console()
        except (OverrideRunning, PlanExpired, PlanStale, AllSkipped, LeaseLost, NoSuchPlan):  # an hour after its expiry it is purged
            pass
        finally:
            self.crash = None

    @rule(who=st.integers(0, 1), override=overrides)
    def stop(self, who: int, override: str) -> None:
        try:
            self.consoles[who].stop(override)
        except Refused:
            known = self.consoles[who].trail.override(override)
            assert known.state in (OverrideState.STOPPED, OverrideState.FINISHED) or not known.alive

    @rule(who=st.integers(0, 1))
    def settle(self, who: int) -> None:
        self.act("nobody")
        self.consoles[who].settle_unresolved(WHO, ORIGIN)

    @rule(who=st.integers(0, 1), plan=plans)
    def miscount(self, who: int, plan: Plan) -> None:
        self.act("nobody")
        with pytest.raises((NotConfirmed, PlanExpired, AllSkipped, NoSuchPlan)):
            self.consoles[who].carry_out(plan, confirm(plan, count=plan.changes + 1))

    # -- what always holds ---------------------------------------------------------------------------

    @invariant()
    def nothing_is_lost(self) -> None:
        assert self.world.queue.ids() == sorted(task[0] for task in TASKS)

    @invariant()
    def nobody_else_writes(self) -> None:
        assert self.world.queue.run("SELECT * FROM oracle WHERE actor IN ('', 'nobody')") == []

    @invariant()
    def at_most_once_per_override(self) -> None:
        twice = "SELECT actor, task_id FROM oracle WHERE actor <> 'worker' GROUP BY 1, 2 HAVING count(*) > 1"
        assert self.world.queue.run(twice) == []

    @invariant()
    def never_while_running_within_its_limit(self) -> None:
        for id, at, since in self.world.queue.run(
            "SELECT task_id, at, old_updated FROM oracle WHERE actor <> 'worker' AND old_status = 'RUNNING'"
        ):
            assert datetime.fromisoformat(at) - datetime.fromisoformat(since) > STUCK_AFTER, id

    @invariant()
    def done_stays_done(self) -> None:
        assert self.world.queue.run("SELECT * FROM oracle WHERE old_status = 'DONE'") == []

    @invariant()
    def trail_and_database_tell_the_same_story(self) -> None:
        trail = self.consoles[0].trail
        for override in trail.overrides():
            recorded = final_outcomes(trail, override.override_id)
            changed_in_fact = {
                f"queue/{id}"
                for (id,) in self.world.queue.run("SELECT DISTINCT task_id FROM oracle WHERE actor = ?", (override.plan_id,))
            }
            late = {
                outcome.key for intent in trail.intents(override.override_id) if _kind(trail, intent) == "late"
                for batch in trail.item_outcomes(intent.seq) for outcome in batch
            }
            assert all(len(times) == 1 or (key in late and times.count("applied") == 1) for key, times in recorded.items()), "one outcome per item"
            assert override.counts == Counter("applied" if "applied" in times else times[-1] for times in recorded.values())
            by_kind = {kind: {key for key, times in recorded.items() if kind in times} for kind in ("applied", "unknown")}
            announced = {
                row.key
                for intent in trail.open_intents(override.override_id)
                for first, last in intent.ranges
                for batch in trail.rows(intent.plan_id, first, last)
                for row in batch
            }
            assert by_kind["applied"] <= changed_in_fact, "nothing is said to have changed that did not"
            assert changed_in_fact <= by_kind["applied"] | by_kind["unknown"] | announced, "nothing changed in silence"


def _kind(trail: Any, intent: Intent) -> str:
    record = trail.record(intent.seq)
    assert record is not None
    return str(record.kind)


TestConsoles = Consoles.TestCase
TestConsoles.settings = settings(
    max_examples=examples(25), stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True
)
