"""Kills a requeue: nothing is lost or done twice, and everything is recorded. A trigger in the database counts."""

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
from tests.depth import in_depth
from tests.plugins.postgres_analyses.operating import ANN, HERE, Operator, operating
from tests.plugins.postgres_analyses.world import TABLE, Table, postgres_table

ROOT = Path(__file__).parents[3]
ITEMS = 600
RESET = Operation(attempts=Attempts.RESET)
ORACLE = """
CREATE TABLE oracle (id int);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO oracle VALUES (new.id); RETURN new; END $$;
CREATE TRIGGER note AFTER UPDATE ON selfology.answer_analysis FOR EACH ROW
    WHEN (old.retry_count = 3 AND new.retry_count = 0) EXECUTE FUNCTION note();
"""
CHILD = """
import sys
from datetime import timedelta
from pathlib import Path
from console.core.confirm import Limits
from console.core.query import Filter
from tests.plugins.postgres_analyses.operating import operating
from tests.plugins.postgres_analyses.test_kill import RESET
from tests.plugins.postgres_analyses.world import Table
table = Table(sys.argv[1], lambda *_: [])
limits = Limits(chunk_target=timedelta(milliseconds=1))
with operating(table.open(), Path(sys.argv[2]), limits=limits) as operator:
    plan = operator.plan(Filter.parse("condition:terminal"), operation=RESET)
    print("ready", flush=True)
    operator.apply(plan)
"""


def fill(table: Table) -> None:
    table.execute(
        f"INSERT INTO {TABLE} (vectorization_status, vectorization_error, retry_count, processed_at)"
        f" SELECT 'failed', 'timeout', 3, now() - interval '1 hour' FROM generate_series(1, {ITEMS})"
    )


def requeued(table: Table) -> Counter[int]:
    with psycopg.connect(table.url) as connection:
        return Counter(id for (id,) in connection.execute("SELECT id FROM oracle"))


def recorded(operator: Operator, override_id: str) -> Counter[str]:
    last = {o.ordinal: o.outcome for batch in operator.trail.outcomes(override_id) for o in batch}
    assert len(last) == ITEMS
    return Counter(last.values())


@pytest.mark.parametrize("seed", in_depth(range(6), quick=[0, 3]))
def test_killed_at_any_moment_and_resumed(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    with postgres_table(ORACLE) as table:
        fill(table)
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, table.url, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        time.sleep(chance.uniform(0, 0.25))
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        with operating(table.open(), tmp_path) as operator:
            operator.operations.settle_unresolved(ANN, HERE)
            started = operator.trail.overrides()
            if not started:
                assert not requeued(table)
                return
            (override,) = started
            if not override.state.over:
                override = operator.operations.resume(override.override_id, ANN, HERE)
            assert recorded(operator, override.override_id) == {"applied": ITEMS}
            assert requeued(table) == Counter(range(1, ITEMS + 1))
            assert operator.trail.verify().ok


@pytest.mark.parametrize("seed", in_depth(range(4), quick=[0]))
def test_connections_cut_in_mid_chunk(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    done = threading.Event()

    def cut(url: str) -> None:
        with psycopg.connect(url, autocommit=True) as killer:
            for _ in range(8):  # not for ever: on a busy machine no chunk would get through between two of them
                if done.wait(chance.uniform(0.01, 0.2)):
                    return
                killer.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'retriage'"
                    " AND datname = current_database()"
                )

    with postgres_table(ORACLE) as table:
        fill(table)
        with operating(table.open(), tmp_path) as operator:
            plan = operator.plan(Filter.parse("condition:terminal"), operation=RESET)
            killer = threading.Thread(target=cut, args=(table.url,))
            killer.start()
            try:
                override = operator.apply(plan)
                for _ in range(20):
                    if override.state.over:
                        break
                    override = operator.operations.resume(override.override_id, ANN, HERE)
            finally:
                done.set()
                killer.join()
            if not override.state.over:
                override = operator.operations.resume(override.override_id, ANN, HERE)
            assert recorded(operator, override.override_id) == {"applied": ITEMS}
            assert requeued(table) == Counter(range(1, ITEMS + 1))
