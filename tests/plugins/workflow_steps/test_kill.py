"""Kills a requeue or cuts its connections: every step is reset once, with one transition, and recorded."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import psycopg
import pytest

from console.core.backend import Attempts, Operation
from console.core.query import Filter
from plugins.workflow_steps.prediction import WAKE_TASK
from tests.depth import in_depth
from tests.plugins.postgres_analyses.operating import ANN, HERE, Operator, operating
from tests.plugins.workflow_steps.world import Workflow, postgres_workflow

ROOT = Path(__file__).parents[3]
ITEMS = 300
WAKE = Operation(attempts=Attempts.RESET, flags=frozenset({WAKE_TASK}))
FILL = f"""
INSERT INTO tasker.named_steps VALUES (gen_random_uuid(), 'charge');
INSERT INTO tasker.workflow_steps (workflow_step_uuid, task_uuid, named_step_uuid, attempts, created_at, updated_at)
    SELECT gen_random_uuid(), ('00000000-0000-4000-8000-' || lpad((n / 2)::text, 12, '0'))::uuid, named_step_uuid, 3, now(), now()
    FROM generate_series(0, {ITEMS - 1}) n, tasker.named_steps;
INSERT INTO tasker.workflow_step_transitions (workflow_step_uuid, to_state, sort_key, most_recent, created_at, updated_at)
    SELECT workflow_step_uuid, 'error', 1, true, now(), now() FROM tasker.workflow_steps;
INSERT INTO tasker.task_transitions (task_uuid, to_state, sort_key, most_recent, created_at, updated_at)
    SELECT DISTINCT task_uuid, 'blocked_by_failures', 1, true, now(), now() FROM tasker.workflow_steps;
"""
CHILD = """
import sys
from datetime import timedelta
from pathlib import Path
from console.core.confirm import Limits
from console.core.query import Filter
from tests.plugins.postgres_analyses.operating import operating
from tests.plugins.workflow_steps.test_kill import WAKE
from tests.plugins.workflow_steps.world import Workflow
limits = Limits(chunk_target=timedelta(milliseconds=1))
with operating(Workflow(sys.argv[1], lambda *_: []).open(), Path(sys.argv[2]), limits=limits) as operator:
    plan = operator.plan(Filter.parse("condition:terminal"), operation=WAKE)
    print("ready", flush=True)
    operator.apply(plan)
"""


def assert_each_once(workflow: Workflow, operator: Operator, override_id: str) -> None:
    last = {o.ordinal: o.outcome for batch in operator.trail.outcomes(override_id) for o in batch}
    assert Counter(last.values()) == {"applied": ITEMS}
    assert len(last) == ITEMS
    for what, count in (("workflow_step", ITEMS), ("task", ITEMS // 2)):
        found = workflow.run(
            f"SELECT count(*), count(*) FILTER (WHERE most_recent), max(sort_key) FROM tasker.{what}_transitions", []
        )
        assert found == [(2 * count, count, 2)]
    assert workflow.run("SELECT count(*) FROM tasker.workflow_steps WHERE attempts = 0", []) == [(ITEMS,)]


@pytest.mark.parametrize("seed", in_depth(range(4), quick=[0]))
def test_killed_at_any_moment_and_resumed(seed: int, tmp_path: Path) -> None:
    with postgres_workflow(FILL) as workflow:
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, workflow.url, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        time.sleep(random.Random(seed).uniform(0.02, 0.3))
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        with operating(workflow.open(), tmp_path) as operator:
            operator.operations.settle_unresolved(ANN, HERE)
            for override in operator.trail.overrides():
                if not override.state.over:
                    operator.operations.resume(override.override_id, ANN, HERE)
                assert_each_once(workflow, operator, override.override_id)


@pytest.mark.parametrize("seed", in_depth(range(3), quick=[0]))
def test_connections_cut_in_mid_chunk(seed: int, tmp_path: Path) -> None:
    chance, done = random.Random(seed), threading.Event()

    def cut(url: str) -> None:
        with psycopg.connect(url, autocommit=True) as killer:
            for _ in range(4):
                if done.wait(chance.uniform(0.05, 0.4)):
                    return
                killer.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'retriage'"
                               " AND datname = current_database()")

    with postgres_workflow(FILL) as workflow, operating(workflow.open(), tmp_path) as operator:
        plan = operator.plan(Filter.parse("condition:terminal"), operation=WAKE)
        killer = threading.Thread(target=cut, args=(workflow.url,))
        killer.start()
        try:
            override = operator.apply(plan)
        finally:
            done.set()
            killer.join()
        if not override.state.over:
            override = operator.operations.resume(override.override_id, ANN, HERE)
        assert_each_once(workflow, operator, override.override_id)
