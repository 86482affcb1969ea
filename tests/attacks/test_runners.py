"""Promise: however runners are killed and suspended, every override is finished, nothing is lost and nothing done twice."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from console.core.backend import Attempts, Operation
from console.core.confirm import Confirmation
from console.core.operations import Operations
from console.core.override import TERMINAL_GONE, OverrideState
from console.core.plan import Matching
from console.core.ports import Never
from console.core.query import Filter
from console.sessions import open_session
from console.settings import load
from tests.cli.place import Place, environment, failed
from tests.depth import campaign
from tests.faults.world import ORIGIN, WHO, QueueFile
from tests.patience import PATIENCE
from tests.plugins.postgres_analyses.server import database


@dataclass
class Fleet:
    """Queues with an oracle each, a shared trail, and processes of `retriage runner`."""

    place: Place
    queues: dict[str, QueueFile] = field(default_factory=dict)
    running: list[subprocess.Popen[str]] = field(default_factory=list)

    def add_queue(self, name: str, batches: int, size: int) -> None:
        queue = QueueFile.create(self.place.folder / f"{name}.db")
        for batch in range(batches):
            queue.fill(size, prefix=f"b{batch:03d}-")
            queue.run("UPDATE async_tasks SET last_error = ? WHERE task_id LIKE ?", (f"batch {batch:03d}", f"b{batch:03d}-%"))
        queue.forget()
        self.queues[name] = queue
        self.place.attach(name)

    @contextmanager
    def console(self) -> Iterator[Operations]:
        session = open_session(load(self.place.write_config()), stop=Never(), needs_trail=True)
        assert session.operations is not None
        try:
            yield session.operations
        finally:
            session.close()

    def confirm(self, batches: int) -> None:
        """One detached override for each batch of each queue."""
        with self.console() as console:
            for batch in range(batches):
                for name in self.queues:
                    wanted = Matching(Filter.parse(f'backend:{name} error~"batch {batch:03d}"'))
                    plan = console.propose(wanted, Operation(attempts=Attempts.RESET))
                    console.carry_out(plan, Confirmation(WHO, ORIGIN, "provider is back", plan.changes), detached=True)

    def start(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "console", "--config", str(self.place.write_config()), "runner"],
            env=environment(self.place.folder), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True,
        )
        self.running.append(process)
        return process

    def end(self) -> None:
        for process in self.running:
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()

    def states(self) -> dict[OverrideState, int]:
        with self.console() as console:
            found = [override.state for override in console.trail.overrides()]
        return {state: found.count(state) for state in OverrideState if state in found}

    def judge(self, overrides: int, size: int) -> None:
        assert self.states() == {OverrideState.FINISHED: overrides}
        for queue in self.queues.values():
            requeued = queue.requeued()
            assert len(requeued) == len(queue.ids()), "none lost"
            assert set(requeued.values()) == {1}, "none twice"
        with self.console() as console:
            assert console.trail.verified().what == ""
            for override in console.trail.overrides():
                assert override.counts == {"applied": size}


@pytest.fixture
def fleet(place: Place) -> Iterator[Fleet]:
    place.deadline = "60s"
    found = Fleet(place)
    yield found
    found.end()


def settled(fleet: Fleet, overrides: int, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if fleet.states().get(OverrideState.FINISHED) == overrides:
            return True
        time.sleep(0.5)
    return False


def test_a_killed_runner_is_replaced_by_another(fleet: Fleet) -> None:
    fleet.add_queue("jobs", batches=4, size=300)
    fleet.confirm(4)
    first = fleet.start()
    queue = fleet.queues["jobs"]
    end = time.monotonic() + PATIENCE
    while not queue.touched():
        assert time.monotonic() < end
        time.sleep(0.01)
    first.kill()
    fleet.start()
    assert settled(fleet, 4, PATIENCE)
    fleet.judge(4, 300)


def test_sigterm_ends_a_runner_and_queues_its_overrides(fleet: Fleet) -> None:
    fleet.add_queue("jobs", batches=2, size=300)
    fleet.confirm(2)
    process = fleet.start()
    queue = fleet.queues["jobs"]
    end = time.monotonic() + PATIENCE
    while not queue.touched():
        assert time.monotonic() < end
        time.sleep(0.01)
    process.terminate()
    assert process.wait(PATIENCE) == 0
    assert set(fleet.states()) <= {OverrideState.QUEUED, OverrideState.FINISHED}
    fleet.start()
    assert settled(fleet, 2, PATIENCE)
    fleet.judge(2, 300)


@campaign
def test_three_runners_on_one_postgres_trail_are_killed_and_suspended(fleet: Fleet) -> None:
    """100 overrides. Runners are killed and suspended all the time, one of them until another has taken over."""
    with database() as url:
        fleet.place.console = f'  trail: "{url}"\n'
        for name in ("jobs", "mail", "billing", "search"):
            fleet.add_queue(name, batches=25, size=400)
        fleet.confirm(25)
        chance = random.Random(4711)
        alive = [fleet.start() for _ in range(3)]
        suspended: tuple[subprocess.Popen[str], float] | None = None
        killed = stopped = 0
        began = time.monotonic()
        while fleet.states().get(OverrideState.FINISHED, 0) < 100 and time.monotonic() - began < 900:
            if suspended is None and killed == 1:  # long enough for the others to take its overrides over
                suspended = alive.pop(), time.monotonic() + 75
                suspended[0].send_signal(signal.SIGSTOP)
                stopped += 1
                alive.append(fleet.start())
            if suspended is not None and time.monotonic() > suspended[1]:
                suspended[0].send_signal(signal.SIGCONT)
            time.sleep(chance.uniform(0.2, 2.5))
            index = chance.randrange(len(alive))
            if chance.random() < 0.5:
                alive[index].kill()
                alive[index].wait()
                killed += 1
                alive[index] = fleet.start()
            else:
                alive[index].send_signal(signal.SIGSTOP)
                time.sleep(chance.uniform(0.1, 1.5))
                alive[index].send_signal(signal.SIGCONT)
                stopped += 1
        if suspended is not None:
            suspended[0].send_signal(signal.SIGCONT)
        assert settled(fleet, 100, 300), fleet.states()
        assert killed
        assert stopped
        time.sleep(3)  # what a suspended process still writes would show
        fleet.judge(100, 400)


# --- a terminal that goes away ------------------------------------------------------------------------


def records(place: Place, *arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in place.run(*arguments, "--format", "jsonl").out.splitlines()]


@pytest.mark.parametrize(("number", "taken"), [(signal.SIGHUP, True), (signal.SIGTERM, False)], ids=["SIGHUP", "SIGTERM"])
def test_a_runner_continues_after_a_lost_terminal_and_not_after_a_stop(place: Place, number: signal.Signals, taken: bool) -> None:
    place.deadline = "60s"
    place.queue("jobs", *(failed(str(n)) for n in range(40)))
    process = place.spawn("requeue", "--where", "condition:terminal", "--attempts", "reset", "--pace", "canary 5", "--reason", "r", "--confirm", "40")
    try:
        end = time.monotonic() + PATIENCE
        while '"outcome"' not in place.run("trail", "list").out:
            assert time.monotonic() < end
            time.sleep(0.05)
        process.send_signal(number)
        assert process.wait(PATIENCE) == 1
    finally:
        process.kill()
        process.communicate()
    (override,) = records(place, "overrides", "list")
    assert (override["note"] == TERMINAL_GONE) == taken
    runner = place.spawn("runner", "--take-over")
    try:
        kinds: list[str] = []
        end = time.monotonic() + (PATIENCE if taken else 4)
        while "takeover" not in kinds and time.monotonic() < end:
            kinds = [record["kind"] for record in records(place, "trail", "list")]
            time.sleep(0.1)
        assert ("takeover" in kinds) == taken
    finally:
        runner.terminate()
        runner.communicate(timeout=PATIENCE)
    assert place.run("trail", "verify").code == 0
