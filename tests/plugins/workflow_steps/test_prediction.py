"""Predictions over generated workflows: what was promised runs within a simulated day, and nothing else does.

The day is lived twice, by the plugin's engine on a database and by a model of the real rules that shares no code with
the plugin.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from console.core.backend import APPLIED, Attempts, Authority, Change, Draft, Operation
from console.core.item import ItemKey
from console.core.ports import Never
from console.core.query import NATURAL
from console.testing import FrozenClock
from plugins.workflow_steps.engine import Orchestrator
from plugins.workflow_steps.prediction import INCLUDE_FAILED, WAKE_TASK
from plugins.workflow_steps.rows import AT_WORK
from tests.depth import in_depth
from tests.plugins.workflow_steps.orchestrator_model import ModelStep, ModelTask, moments, simulate
from tests.plugins.workflow_steps.world import NOW, Workflow, postgres_workflow, sqlite_workflow
from tests.promises import Record

pytestmark = pytest.mark.timeout(1_800)  # a day is simulated in minutes, on a busy machine in many of them
TASK_STATES = (
    *["pending"] * 2, *["waiting_for_dependencies"] * 4, *["waiting_for_retry"] * 4, *["blocked_by_failures"] * 3,
    *["error"] * 3, "complete", "cancelled", "resolved_manually", "steps_in_process", "evaluating_results", None,
)
STEP_STATES = (
    *["pending"] * 4, *["waiting_for_retry"] * 3, *["complete"] * 3, *["error"] * 4, "cancelled", "resolved_manually",
    "in_progress", "enqueued",
)
KEEP, RESET = Operation(), Operation(attempts=Attempts.RESET)
WHOLE = Operation(attempts=Attempts.RESET, flags=frozenset({WAKE_TASK, INCLUDE_FAILED}))
WAKE = Operation(flags=frozenset({WAKE_TASK}))


class Generated:
    """Workflows in a database and in the model."""

    def __init__(self, workflow: Workflow, steps: int, seed: int) -> None:
        self._workflow = workflow
        self._chance = random.Random(seed)
        self.tasks: list[ModelTask] = []
        self.ids: dict[str, ModelStep] = {}
        self.task_of: dict[str, ModelTask] = {}
        workflow.run("BEGIN", [])
        while len(self.ids) < steps:
            self._add_task()
        workflow.run("COMMIT", [])
        self.backend = workflow.open(batch_size=10_000)

    def _add_task(self) -> None:
        chance, workflow = self._chance, self._workflow
        since, created = chance.choice((-1.0, -1.0, -10.0, -25.0, -35.0, -70.0, -3000.0)), chance.choice((-100.0, -1300.0, -1500.0))
        task = ModelTask(chance.choice(TASK_STATES), since, min(created, since))
        id = workflow.task(task.state, at(since), created=at(task.created))
        if chance.random() < 0.1:
            task.in_dead_letters = True
            workflow.dead_letter(id)
        elif chance.random() < 0.05:
            workflow.dead_letter(id, status="manually_resolved")
        self.tasks.append(task)
        named: list[tuple[str, ModelStep]] = []
        calm = chance.random() < 0.6  # most tasks have few steps in unusual states
        for _ in range(chance.randint(1, 6)):
            step = self._step(calm)
            named.append((self._insert(id, step), step))
            for parent_id, parent in named[:-1]:
                if chance.random() < 0.4:
                    step.parents.append(parent)
                    workflow.edge(parent_id, named[-1][0])
        task.steps = [step for _, step in named]
        for step_id, step in named:
            self.ids[step_id], self.task_of[step_id] = step, task

    def _step(self, calm: bool) -> ModelStep:
        chance = self._chance
        state = chance.choice(("pending", "complete", "pending")) if calm and chance.random() < 0.8 else chance.choice(STEP_STATES)
        step = ModelStep(f"step{chance.randint(1, 9)}", state)
        if state in ("waiting_for_retry", "error") or chance.random() < 0.2:
            step.attempts = chance.choice((None, 0, 1, 2, 3))
            step.max_attempts = chance.choice((None, 0, 1, 3, 3, 5))
            step.retryable = chance.choice((None, True, True, False))
            step.failures = [chance.choice((-0.5, -20.0, -90.0))]
            step.last_attempt = chance.choice((None, -5.0, -20.0))
            step.backoff = chance.choice((None, None, 1.0, 10.0, 17.0, 45.0, 1000.0))
        if not calm:
            step.processed, step.in_process = chance.random() < 0.05, chance.random() < 0.05
        return step

    def _insert(self, task: str, step: ModelStep) -> str:
        id = self._workflow.step(
            None, task=task, name=step.name, attempts=step.attempts, max_attempts=step.max_attempts, retryable=step.retryable,
            processed=step.processed, in_process=step.in_process,
            last_attempted_at=None if step.last_attempt is None else at(step.last_attempt),
            backoff_request_seconds=None if step.backoff is None else int(step.backoff * 60),
        )
        for moment in step.failures:
            self._workflow.move("workflow_step", id, "error", at(moment))
        if step.state != "pending" or step.failures or self._chance.random() < 0.5:
            if not (step.state == "error" and step.failures):
                self._workflow.move("workflow_step", id, step.state, at(-0.5))
            elif not step.failures:
                step.failures = [-0.5]
        return id

    # -- predictions and plans -------------------------------------------------------------------

    def predicted(self) -> dict[str, bool | None]:
        """Whether each step runs, for all steps that nobody works on."""
        found = self.backend.items([ItemKey("steps", (id,)) for id in self.ids], NOW)
        return {
            id: found[ItemKey("steps", (id,))].verdict.will_run_again
            for id, step in self.ids.items() if step.state not in AT_WORK
        }

    def plan(self, ids: Iterable[str], operation: Operation) -> list[Draft]:
        keys = [ItemKey("steps", (id,)) for id in ids]
        return [draft for batch in self.backend.drafts(keys, NATURAL, operation, NOW, Never()) for draft in batch]

    def carry_out(self, drafts: list[Draft], operation: Operation) -> set[str]:
        """Write the plan to the database and to the model; returns the steps that are promised to run."""
        planned = [draft for draft in drafts if draft.skipped is None]
        for unit, group in groupby(planned, key=lambda draft: draft.unit):
            members = list(group)
            before = members[0].before
            assert before is not None
            keys = tuple(ItemKey.parse(draft.key) for draft in members)
            change = Change(unit, keys, before, ())
            change = change._replace(after=self.backend.after(change, operation, NOW, NOW))
            assert self.backend.compare_and_set([change], operation, Authority("ann", "disk is back", None, "o1")) == [APPLIED]
            task = self.task_of[keys[0].parts[0]]
            for key in keys:
                _reset(self.ids[key.parts[0]], operation)
            if not task.polled(0):
                task.state, task.since = "waiting_for_retry", 0.0
        return {ItemKey.parse(draft.key).parts[0] for draft in planned}

    def live(self) -> tuple[set[str], set[str]]:
        """A day in the engine and in the model; returns the steps that each of them ran."""
        ran: set[str] = set()
        clock = FrozenClock(NOW)
        engine = Orchestrator(self.backend, lambda _, step: ran.add(step["id"]), clock, lambda _: None)
        for moment in moments():
            clock.tick(at(moment) - clock.now())
            while engine.cycle(Never()):
                pass
            engine.detect_stale()
        simulate(self.tasks)
        return ran, {id for id, step in self.ids.items() if step.ran}


def _reset(step: ModelStep, operation: Operation) -> None:
    """What an operator's reset does to a step. One that only waits is left alone except for its attempts."""
    if operation.attempts is Attempts.RESET:
        step.attempts = 0
    if step.state == "error":
        step.state, step.processed, step.in_process, step.backoff = "pending", False, False, None


def at(minutes: float) -> datetime:
    return NOW + timedelta(minutes=minutes)


@pytest.fixture(params=in_depth(("sqlite", "postgres"), ["sqlite"]))
def generated(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    with world(request.param, tmp_path, seed=11) as made:
        yield made


@contextmanager
def world(kind: str, tmp_path: Path, seed: int) -> Iterator[Generated]:
    memory = Path("/dev/shm")  # a simulated day writes thousands of times
    folder = TemporaryDirectory(dir=memory if memory.exists() else tmp_path)
    made = postgres_workflow() if kind == "postgres" else sqlite_workflow(Path(folder.name) / "steps.db")
    with folder, made as workflow:
        generated = Generated(workflow, 1_500, seed)
        yield generated
        generated.backend.close()


@pytest.mark.parametrize(("kind", "seed"), in_depth(
    [("sqlite", 11), ("postgres", 11), *(("sqlite", seed) for seed in range(20, 27))], [("sqlite", 11)],
))
def test_what_is_predicted_to_run_runs_and_nothing_else(
    kind: str, seed: int, tmp_path: Path, promises: Record
) -> None:
    with world(kind, tmp_path, seed) as generated:
        predicted = generated.predicted()
        by_engine, by_model = generated.live()
    assert by_engine == by_model
    promises("workflow_steps", predicted, by_model)
    counts = Counter(predicted.values())
    assert counts[True] > 100
    assert counts[None] < counts.total() * 0.2


@pytest.mark.parametrize("operation", in_depth((WHOLE, WAKE, RESET, KEEP), [WHOLE, KEEP]), ids=["whole", "wake", "reset", "keep"])
def test_what_a_plan_promises_runs_and_what_it_skips_does_not(
    generated: Generated, operation: Operation, promises: Record
) -> None:
    chance = random.Random(3)
    chosen = [id for id, step in generated.ids.items() if step.state not in AT_WORK and chance.random() < 0.6]
    before = generated.predicted()
    drafts = generated.plan(chosen, operation)
    promised = generated.carry_out(drafts, operation)
    skipped = {ItemKey.parse(draft.key).parts[0] for draft in drafts} - promised
    after = generated.predicted()
    assert all(after[id] for id in promised)
    by_engine, by_model = generated.live()
    assert by_engine == by_model
    promises("workflow_steps, after a plan", after, by_model)
    assert promised <= by_model, [_about(generated, id, True) for id in list(promised - by_model)[:5]]
    failed = {id for id in skipped if generated.ids[id].state == "error"}
    assert not failed & by_model
    assert {id for id in skipped if after[id] is False}.isdisjoint(by_model)
    assert len(promised) > (100 if WAKE_TASK in operation.flags else 5)
    assert before.keys() == after.keys()


def _about(generated: Generated, id: str, will: bool | None) -> Any:
    item = generated.backend.item(ItemKey("steps", (id,)), NOW)
    return will, item.item.verdict, item.extra, generated.ids[id], generated.task_of[id]


