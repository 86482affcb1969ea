"""`python -m console.demo.workers CONFIG SPEED`: the world's own systems at work, until the console is gone.

Every backend with an engine gets a thread that runs it with the handler its config names. The webhooks' outbox is an
application's own table, with the application's own loop.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from threading import Event, Thread
from time import sleep

from console import registry
from console.core.backend import RunsEngine
from console.core.desk import Unavailable
from console.core.faults import Fault
from console.demo.companion import when_alone
from console.demo.webhooks import deliver
from console.process import SystemClock
from console.settings import load
from plugins.postgres_analyses import PostgresAnalyses
from plugins.postgres_analyses.engine import RetryLoop
from plugins.postgres_analyses.requeue import CYCLE

_AFTER_A_FAULT = 2.0
_GRACE = 0.5
Log = Callable[[str], None]


class _Leaving:
    """A Stop that is requested once the console is gone."""

    def __init__(self) -> None:
        self._event = Event()

    @property
    def requested(self) -> bool:
        return self._event.is_set()

    def wait(self, seconds: float) -> None:
        self._event.wait(seconds)

    def leave(self) -> None:
        self._event.set()
        sleep(_GRACE)
        os._exit(0)  # whatever an engine still waits for


def main(config: str, speed: str) -> None:
    leaving = _Leaving()
    when_alone(leaving.leave)
    threads = []
    with (Path(config).parent / "workers.log").open("w", buffering=1) as file:
        for backend in registry.open_all(load(Path(config))):
            if isinstance(backend, Unavailable) or not isinstance(backend, RunsEngine) or not backend.handler:
                continue
            log = _log_of(backend.name, file.write)
            thread = Thread(target=_keep_running, args=(backend, int(speed), leaving, log), daemon=True)
            thread.start()
            threads.append(thread)
        deliveries = Thread(target=deliver, args=(Path(config).parent, int(speed), leaving), daemon=True)
        deliveries.start()
        for thread in (*threads, deliveries):
            thread.join()


def _log_of(name: str, write: Callable[[str], object]) -> Log:
    def log(text: str) -> None:
        write(f"{datetime.now(UTC):%H:%M:%S}Z {name}: {text!r}\n")

    return log


def _keep_running(backend: RunsEngine, speed: int, leaving: _Leaving, log: Log) -> None:
    """An engine that meets a fault is started again, as an operator's supervisor would."""
    module, _, function = (backend.handler or "").partition(":")
    handler = getattr(import_module(module), function)
    while not leaving.requested:
        try:
            if isinstance(backend, PostgresAnalyses):
                _retry_often(backend, handler, speed, leaving, log)
            else:
                backend.run(handler, SystemClock(), leaving, log)
        except Fault as fault:
            log(str(fault))
            leaving.wait(_AFTER_A_FAULT)


def _retry_often(
    backend: PostgresAnalyses, handler: Callable[..., object], speed: int, leaving: _Leaving, log: Log
) -> None:
    """This system looks around once a minute, which is too rarely for a world that is in a hurry."""
    handlers = dict.fromkeys(backend.pipelines, handler)
    loop = RetryLoop(
        backend.database, backend.layout_place(), backend.policy, backend.known.time, SystemClock(), handlers, log
    )
    while not leaving.requested:
        loop.cycle(leaving)
        leaving.wait(CYCLE.total_seconds() / speed)


if __name__ == "__main__":
    main(*sys.argv[1:])
