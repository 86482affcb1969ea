"""Promise: a cut trail connection or a killed process loses nothing, and a canary is judged before the rest follows."""

from __future__ import annotations

import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import psycopg

from console.core.executor import Progress
from console.core.faults import TrailUnavailable
from console.core.operations import Operations
from console.core.override import OverrideState
from console.trail.leases import owner_token
from tests.cli.place import Place, failed
from tests.faults.world import KEEP, ORIGIN, WHO, confirm, matching, world_in
from tests.patience import PATIENCE
from tests.plugins.postgres_analyses.server import database
from tests.trail.world import trail_at

CUT = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'retriage'"


def test_the_connections_of_the_trail_are_cut_again_and_again(tmp_path: Path) -> None:
    with database() as url, psycopg.connect(url, autocommit=True) as other, world_in(tmp_path) as world:
        world.queue.fill(1_500)
        with trail_at(url, world.clock) as trail:
            console = Operations({"queue": world.queue.open(clock=world.clock)}, trail, world.clock, owner=owner_token())
            plan = console.propose(matching("condition:terminal"), KEEP)

            def watch(_progress: Progress) -> None:
                other.execute(CUT)

            try:
                override = console.carry_out(plan, confirm(plan), watch=watch)
            except TrailUnavailable:
                (override,) = trail.overrides()
            for _ in range(20):
                if override.state is OverrideState.FINISHED:
                    break
                override = console.resume(override.override_id, WHO, ORIGIN)
            assert override.counts == {"applied": plan.changes}
            assert sum(row[3] == "PENDING" for row in world.queue.rows()) == plan.changes
            assert trail.verified().what == ""


def pending(path: Path) -> int:
    with closing(sqlite3.connect(path)) as queue:
        found: int = queue.execute("SELECT count(*) FROM async_tasks WHERE status = 'PENDING'").fetchone()[0]
    return found


def test_killed_while_it_waits_for_the_canary(place: Place) -> None:
    path = place.queue("jobs", *(failed(str(n)) for n in range(40)))
    asked = ("requeue", "--where", "condition:terminal", "--attempts", "reset", "--pace", "canary 5", "--reason", "r", "--confirm", "40")
    process = place.spawn(*asked)
    try:
        end = time.monotonic() + PATIENCE
        while pending(path) < 5:
            assert time.monotonic() < end
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert pending(path) == 5
    done = place.run("overrides", "list", "--format", "jsonl")
    override = done.out.split('"override_id": "')[1].split('"')[0]
    resumed = place.spawn("overrides", "resume", override)
    try:
        while '"kind": "takeover"' not in place.run("trail", "list", "--format", "jsonl").out:
            assert time.monotonic() < end + PATIENCE
            assert resumed.poll() is None, resumed.communicate()
            time.sleep(0.05)
        time.sleep(1.5)  # several looks at the canary
        assert pending(path) == 5, "nobody has run the canary, so nothing follows it"
        resumed.send_signal(signal.SIGTERM)
        assert resumed.wait(PATIENCE) == 1
    finally:
        resumed.kill()
        resumed.communicate()
    assert pending(path) == 5
    assert place.run("trail", "verify").code == 0
