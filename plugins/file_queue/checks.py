"""The findings of `retriage check` for a folder of task files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path

from console.core.backend import Finding, Severity
from console.core.faults import BackendFault
from console.core.ports import Clock
from console.core.text import and_list, countdown, plural
from plugins.file_queue.folder import RESULT, Folder
from plugins.file_queue.index import Index
from plugins.file_queue.moves import Mover

_SKEW = timedelta(seconds=5)


def findings(
    index: Index, mover: Mover, decode: Callable[[str | None], datetime | None], clock: Clock, now: datetime
) -> list[Finding]:
    snapshot = index.snapshot()
    tasks = snapshot.tasks
    broken = sum(task.problem is not None for task in tasks.values())
    found = [Finding(Severity.OK, "schema", f"{len(snapshot.ids)} tasks in queue/, results in results/")]
    if broken:
        found.append(
            Finding(
                Severity.WARNING,
                "files",
                f"{broken} {plural(broken, 'file')} cannot be read as tasks",
                "List them with the filter condition:unknown; each shows its reason.",
            )
        )
    found.append(_serializer(sum("pickled" in (task.problem or "") for task in tasks.values())))
    if snapshot.blocker is not None:
        found.append(
            Finding(
                Severity.ERROR,
                "queue",
                f"{snapshot.blocker.id!r} blocks the queue: no later task is taken",
                "Requeue it.",
            )
        )
    found += _leftovers(mover)
    found += _orphans(index)
    found.append(_privileges(index.queue, index.results))
    found.append(_lock(index.queue))
    found.append(Finding(Severity.OK, "guard", "strong: updated_at changes on every transition"))
    times = [task.updated_at for task in tasks.values()]
    times += [decode(task.updated_at) for task in snapshot.finished.values()]
    found.append(_clock(now, clock, max(filter(None, times), default=now)))
    return found


def _serializer(pickled: int) -> Finding:
    if not pickled:
        return Finding(Severity.OK, "serializer", "the files are JSON (serializer json or msgspec)")
    files = f"{pickled} {plural(pickled, 'file was', 'files were')}"
    return Finding(
        Severity.WARNING,
        "serializer",
        f"{files} written by the serializer cloudpickle and cannot be read",
        "Reading such a file would run code from it. Use the serializer json or msgspec.",
    )


def _leftovers(mover: Mover) -> Iterator[Finding]:
    if left := mover.unfinished():
        yield Finding(
            Severity.WARNING,
            "moves",
            f"{len(left)} tasks are being moved, or their move was interrupted",
            "If no override is running, resume the interrupted override; that completes the moves.",
        )


def _orphans(index: Index) -> Iterator[Finding]:
    with Folder(index.results) as results:
        ids = {name.removesuffix(RESULT) for name in results.names() if name.endswith(RESULT)}
    if orphans := len(ids - index.snapshot().ids):
        yield Finding(Severity.OK, "results", f"{orphans} result files belong to tasks that no longer exist")


def _privileges(*folders: Path) -> Finding:
    not_writable = [folder.name for folder in folders if not os.access(folder, os.R_OK | os.W_OK | os.X_OK)]
    if not not_writable:
        return Finding(Severity.OK, "privileges", "this user can read and write the folders")
    return Finding(
        Severity.WARNING,
        "privileges",
        f"this user cannot write {and_list([f'{name}/' for name in not_writable])}",
        "Reading works, requeueing will fail.",
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
            "Requeueing will fail: without the lock, an interrupted move looks like a running one.",
        )


def _clock(now: datetime, clock: Clock, latest: datetime) -> Finding:
    skew = now - clock.now()
    if abs(skew) > _SKEW:
        return Finding(Severity.WARNING, "clock", f"differs by {countdown(abs(skew))} from this machine's")
    if latest - now > _SKEW:
        return Finding(
            Severity.WARNING,
            "clock",
            f"a task was updated {countdown(latest - now)} in the future",
            "The workers' clock is ahead of this machine's. Synchronise both with NTP.",
        )
    return Finding(Severity.OK, "clock", "agrees with this machine's")
