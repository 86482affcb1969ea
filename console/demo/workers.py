"""`python -m console.demo.workers CONFIG SPEED`: runs the workers of the demo's systems until the parent exits.

Every backend with an engine gets a thread that runs it with the handler named in its config. The webhooks' outbox is
an application's own table, with the application's own loop.
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
from console.core.faults import Fault
from console.core.session import Unavailable
from console.demo import thumbnails
from console.demo.child_process import on_parent_exit
from console.demo.webhooks import deliver
from console.process import SystemClock
from console.settings import load
from plugins.postgres_analyses import PostgresAnalyses
from plugins.postgres_analyses.engine import RetryLoop
from plugins.postgres_analyses.prediction import CYCLE

_SECONDS_AFTER_FAULT = 2.0
_SECONDS_TO_FINISH = 0.5
Log = Callable[[str], None]


class _ParentGone:
    """A Stop that is requested when the parent process is gone."""

    def __init__(self) -> None:
        self._event = Event()

    @property
    def requested(self) -> bool:
        return self._event.is_set()

    def wait(self, seconds: float) -> None:
        self._event.wait(seconds)

    def leave(self) -> None:
        self._event.set()
        sleep(_SECONDS_TO_FINISH)
        os._exit(0)  # even while an engine is still waiting for something


def main(config: str, speed: str) -> None:
    parent_gone = _ParentGone()
    on_parent_exit(parent_gone.leave)
    threads = []
    log = os.open(Path(config).parent / "workers.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(log, "w", buffering=1) as file:
        loaded = load(Path(config))
        for backend in registry.open_all(loaded):
            if isinstance(backend, Unavailable) or not isinstance(backend, RunsEngine) or not backend.handler:
                continue
            arguments = (backend, int(speed), parent_gone, _log_of(backend.name, file.write))
            thread = Thread(target=_keep_running, args=arguments, daemon=True)
            thread.start()
            threads.append(thread)
        for url in [str(one.options.values["url"]) for one in loaded.backends if one.plugin == "rq"]:
            thread = Thread(target=thumbnails.work, args=(url, int(speed), parent_gone), daemon=True)
            thread.start()
            threads.append(thread)
        deliveries = Thread(target=deliver, args=(Path(config).parent, int(speed), parent_gone), daemon=True)
        deliveries.start()
        for thread in (*threads, deliveries):
            thread.join()


def _log_of(name: str, write: Callable[[str], object]) -> Log:
    def log(text: str) -> None:
        write(f"{datetime.now(UTC):%H:%M:%S}Z {name}: {text!r}\n")

    return log


def _keep_running(backend: RunsEngine, speed: int, parent_gone: _ParentGone, log: Log) -> None:
    """Run an engine, and start it again after a fault, as a supervisor would."""
    module, _, function = (backend.handler or "").partition(":")
    handler = getattr(import_module(module), function)
    while not parent_gone.requested:
        try:
            if isinstance(backend, PostgresAnalyses):
                _retry_often(backend, handler, speed, parent_gone, log)
            else:
                backend.run(handler, SystemClock(), parent_gone, log)
        except Fault as fault:
            log(str(fault))
            parent_gone.wait(_SECONDS_AFTER_FAULT)


def _retry_often(
    backend: PostgresAnalyses, handler: Callable[..., object], speed: int, parent_gone: _ParentGone, log: Log
) -> None:
    """Run this system's cycle, which is once a minute in reality, as often as the demo's speed asks for."""
    handlers = dict.fromkeys(backend.pipelines, handler)
    loop = RetryLoop(
        backend.database, backend.analysis_table(), backend.policy, backend.attached.time, SystemClock(), handlers, log
    )
    while not parent_gone.requested:
        loop.cycle(parent_gone)
        parent_gone.wait(CYCLE.total_seconds() / speed)


if __name__ == "__main__":
    main(*sys.argv[1:])
