"""What `retriage check` says about a folder of task files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

from console.core.backend import Finding, Severity
from console.core.faults import BackendFault
from console.core.ports import Clock
from console.core.text import countdown
from plugins.file_queue.folder import RESULT, Folder
from plugins.file_queue.index import Index
from plugins.file_queue.moves import Mover

_SKEW = timedelta(seconds=5)


def findings(index: Index, mover: Mover, clock: Clock, now: datetime) -> list[Finding]:
    tasks = index.snapshot().tasks
    broken = sum(task.problem is not None for task in tasks.values())
    found = [Finding(Severity.OK, "schema", f"{len(tasks)} tasks in queue/, results in results/")]
    if broken:
        found.append(
            Finding(
                Severity.WARNING,
                "files",
                f"{broken} cannot be read as tasks",
                "They are listed with condition:unknown, each with its reason.",
            )
        )
    found += _leftovers(mover)
    found += _orphans(index)
    found.append(_privileges(index.queue, index.results))
    found.append(_lock(index.queue))
    found.append(Finding(Severity.OK, "guard", "strong: updated_at changes on every transition"))
    latest = max((task.updated_at for task in tasks.values() if task.updated_at), default=now)
    found.append(_clock(now, clock, latest))
    return found


def _leftovers(mover: Mover) -> Iterator[Finding]:
    if left := mover.leftovers():
        yield Finding(
            Severity.WARNING,
            "moves",
            f"{len(left)} tasks are being moved, or their move was interrupted",
            "If no override is running, resume the interrupted one: it settles them.",
        )


def _orphans(index: Index) -> Iterator[Finding]:
    with Folder(index.results) as results:
        told = {name.removesuffix(RESULT) for name in results.names() if name.endswith(RESULT)}
    if lonely := len(told - index.snapshot().tasks.keys()):
        yield Finding(Severity.OK, "results", f"{lonely} result files belong to tasks that are gone")


def _privileges(*folders: Path) -> Finding:
    closed = [folder.name for folder in folders if not os.access(folder, os.R_OK | os.W_OK | os.X_OK)]
    if not closed:
        return Finding(Severity.OK, "privileges", "this user can read and write the folders")
    return Finding(
        Severity.WARNING,
        "privileges",
        f"this user cannot write {' and '.join(f'{name}/' for name in closed)}",
        "Requeue will fail; reading works.",
    )


def _lock(queue: Path) -> Finding:
    try:
        with Folder(queue) as folder, folder.locked(alone=True):
            return Finding(Severity.OK, "lock", "the folder can be locked")
    except BackendFault as fault:
        return Finding(
            Severity.WARNING,
            "lock",
            fault.detail,
            "Requeue will fail: an interrupted move could not be told from a running one.",
        )


def _clock(now: datetime, clock: Clock, latest: datetime) -> Finding:
    skew = now - clock.now()
    if abs(skew) > _SKEW:
        return Finding(Severity.WARNING, "clock", f"differs by {countdown(abs(skew))} from this console's")
    if latest - now > _SKEW:
        return Finding(
            Severity.WARNING,
            "clock",
            f"a task was updated {countdown(latest - now)} in the future",
            "The workers' clock is ahead of this machine's; set both by NTP.",
        )
    return Finding(Severity.OK, "clock", "agrees with this machine's")
