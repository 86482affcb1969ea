"""An in-memory index of the task files, refreshed incrementally.

A refresh lists both folders and compares each file's inode, size and times with the values from its last read. Only
files that differ are opened. A file that was read within one clock tick of its last change is read again, because a
further change in the same tick would not be visible.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Any, NamedTuple

from console.core.faults import DeadlineExceeded, Unreachable
from console.core.query import Cursor, Sort, SortField
from console.core.text import and_list, duration
from console.sql.values import text
from plugins.file_queue.folder import RESULT, Folder, ParsedName, Stamp, State, UnreadableFile, file_name, parse_name
from plugins.file_queue.rows import NO_RESULT, Result, Task, TaskRows, parse_object

_CLOCK_TICK = 50_000_000
"""Nanoseconds. The clock of a file system may be this coarse."""
_IN_FLIGHT = 60_000_000_000
"""Nanoseconds. A younger temporary file is a write in progress, an older one was left by a crash."""
_SMALL = 2_000
_MAX_LISTINGS = 5
_CANCEL_INTERVAL = 256
_LATEST = datetime.max.replace(tzinfo=UTC)
"""Where a file that blocks the queue is in the default order, which is newest first."""

File = tuple[str, ParsedName, Stamp]


class _Entry(NamedTuple):
    files: tuple[File, ...]
    result: Stamp | None
    read_at: int
    task: Task | None

    def holds(self, files: tuple[File, ...], result: Stamp | None) -> bool:
        """Whether the files are still those that were read."""
        if self.files != files or self.result != result:
            return False
        newest = max((max(stamp.modified, stamp.changed) for _, _, stamp in files), default=0)
        if result is not None:
            newest = max(newest, result.modified, result.changed)
        return newest + _CLOCK_TICK < self.read_at


class _Order(NamedTuple):
    """Ids in ascending order of a sort value, and the ids of tasks without that value."""

    valued: list[tuple[Any, str]]
    valueless: list[str]


class Snapshot:
    """All tasks at one moment, and the orders they are paged in."""

    def __init__(self, tasks: Mapping[str, Task], rows: TaskRows) -> None:
        self.blocker = min((task.blocker for task in tasks.values() if task.blocker is not None), default=None)
        """The first file at which workers stop."""
        if self.blocker is not None:
            tasks = {id: rows.behind(task, self.blocker) for id, task in tasks.items()}
        self.tasks = tasks
        self._orders: dict[SortField | None, _Order] = {}
        self._lock = Lock()

    def walk(self, sort: Sort, after: Cursor | None, backward: bool) -> Iterator[tuple[Task, Cursor]]:
        """Iterate from a cursor in either direction. Tasks without the sort value come last in every order."""
        order = self._order(sort.field)
        descending = sort.descending
        parts: list[Iterable[tuple[Any, str, bool]]] = []
        if after is None or not after.is_null or backward:
            edge = None if after is None or after.is_null else (after.value, str(after.key[0]))
            parts.append((v, id, False) for v, id in _run(order.valued, edge, descending != backward))
        if after is None or after.is_null or not backward:
            rest = str(after.key[0]) if after is not None and after.is_null else None
            parts.append((None, id, True) for id in _run(order.valueless, rest, descending != backward))
        for part in reversed(parts) if backward else parts:
            for value, id, is_null in part:
                yield self.tasks[id], Cursor(value, is_null, (id,))

    def _order(self, field: SortField | None) -> _Order:
        with self._lock:
            if field not in self._orders:
                self._orders[field] = self._sorted(field)
            return self._orders[field]

    def _sorted(self, field: SortField | None) -> _Order:
        valued: list[tuple[Any, str]] = []
        valueless: list[str] = []
        for id, task in self.tasks.items():
            value = _value(field, task)
            if value is None:
                valueless.append(id)
            else:
                valued.append((value, id))
        valued.sort()
        valueless.sort()
        return _Order(valued, valueless)


def _value(field: SortField | None, task: Task) -> Any:
    match field:
        case None:
            return _LATEST if task.blocker is not None else task.facts.born_at
        case SortField.UPDATED:
            return task.updated_at
        case SortField.CREATED:
            return task.facts.born_at
        case SortField.NEXT:
            return task.due_at
        case SortField.ATTEMPTS:
            return task.facts.attempts
        case SortField.TYPE:
            return _bytes(text(task.row.type)) or None
        case SortField.ID:
            return _bytes(task.id)


def _bytes(text: str) -> bytes:
    """Text sorts by its bytes, as in every backend."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def _run(ordered: list[Any], edge: Any, falling: bool) -> Iterator[Any]:
    if falling:
        start = len(ordered) if edge is None else bisect_left(ordered, edge)
        return (ordered[n] for n in range(start - 1, -1, -1))
    start = 0 if edge is None else bisect_right(ordered, edge)
    return (ordered[n] for n in range(start, len(ordered)))


class Index:
    """The tasks of one queue. Safe to use from several threads."""

    def __init__(self, base: Path, rows: TaskRows, deadline: timedelta | None = None) -> None:
        self.queue = base / "queue"
        self.results = base / "results"
        self._rows = rows
        self.deadline = deadline
        """How long a refresh may take. What it has read by then is kept, and the next one continues."""
        self._entries: dict[str, _Entry] = {}
        self._snapshot: Snapshot | None = None
        self._seen: tuple[int, int] = (0, 0)
        self._looked_at = 0
        self._cost = 0
        self._lock = Lock()
        self.generation = 0
        """How often reading was cancelled."""

    def cancel(self) -> None:
        self.generation += 1

    def forget(self) -> None:
        """Refresh at the next access, however recent the last refresh was: this process has just written."""
        self._looked_at = 0

    # -- all tasks -------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        limit = _Limit(self)
        with self._lock, self._folders() as (queue, results):
            if self._snapshot is not None and self._is_fresh(queue, results):
                return self._snapshot
            began = time.time_ns()
            self._seen = (os.fstat(queue.fd).st_mtime_ns, os.fstat(results.fd).st_mtime_ns)
            changed = self._refresh(queue, results, limit)
            if changed or self._snapshot is None:
                found = {id: e.task for id, e in self._entries.items() if e.task is not None}
                self._snapshot = Snapshot(found, self._rows)
            self._looked_at = time.time_ns()
            self._cost = self._looked_at - began
            return self._snapshot

    def _folders(self) -> _FolderPair:
        return _FolderPair(self.queue, self.results)

    def _is_fresh(self, queue: Folder, results: Folder) -> bool:
        """Whether the last snapshot can be reused: consecutive pages of a large, unchanged folder share one refresh."""
        if len(self._entries) < _SMALL:
            return False
        if time.time_ns() - self._looked_at > min(3 * self._cost, 1_000_000_000):
            return False
        now = (os.fstat(queue.fd).st_mtime_ns, os.fstat(results.fd).st_mtime_ns)
        return now == self._seen and max(now) + _CLOCK_TICK < self._looked_at - self._cost

    def _refresh(self, queue: Folder, results: Folder, limit: _Limit) -> bool:
        """Read what changed; returns whether anything did.

        A listing may miss a file that is being renamed. Later refreshes search for known tasks that are missing; the
        first one knows no tasks yet, so it lists a folder that has just changed twice.
        """
        began = time.time_ns()
        found = self._listed(queue, limit)
        result_stamps = dict(_stamps(results, RESULT))
        missing = self._entries.keys() - found.keys()
        if self._snapshot is None and os.fstat(queue.fd).st_mtime_ns + _CLOCK_TICK >= began:
            missing |= self._listed(queue, limit).keys() - found.keys()
        changed = bool(missing)
        read = 0
        for number, (id, files) in enumerate(found.items()):
            known = self._entries.get(id)
            result = result_stamps.get(id)
            if known is not None and known.holds(files, result):
                continue
            if read % _CANCEL_INTERVAL == 0:
                limit.check(f"{number} of {len(found)} files were read", late=read > 0)
            read += 1
            changed = True
            entry = self._read(queue, results, id, files, result)
            if entry is None or entry.task is None:
                missing.add(id)
            else:
                self._entries[id] = entry
        found_again = self._search(queue, results, missing, limit)
        for id in missing:
            if id in found_again:
                self._entries[id] = found_again[id]
            else:
                self._entries.pop(id, None)
        return changed

    def _listed(self, queue: Folder, limit: _Limit) -> dict[str, tuple[File, ...]]:
        found: dict[str, tuple[File, ...]] = {}
        try:
            with os.scandir(queue.fd) as entries:
                for number, entry in enumerate(entries):
                    if number % _CANCEL_INTERVAL == 0:
                        limit.check(f"{number} files were listed")
                    named = parse_name(entry.name)
                    files = found.setdefault(named.id, ())
                    try:
                        stamp = Stamp.of(entry.stat(follow_symlinks=False))
                    except FileNotFoundError:
                        continue
                    found[named.id] = (*files, (entry.name, named, stamp))
        except OSError as error:
            raise Unreachable(error.strerror or str(error), where=str(self.queue)) from None
        return found

    # -- single tasks ----------------------------------------------------------------------------

    def tasks(self, ids: Iterable[str]) -> dict[str, Task]:
        """Read some tasks from their files."""
        with self._folders() as (queue, results):
            names = dict.fromkeys(id for id in ids if "/" not in id and "\0" not in id)
            found = self._search(queue, results, names, _Limit(self))
        blocker = None if self._snapshot is None else self._snapshot.blocker
        return {
            id: self._rows.behind(task, blocker)
            for id in names
            if id in found and (task := found[id].task) is not None
        }

    def _search(self, queue: Folder, results: Folder, ids: Iterable[str], limit: _Limit) -> dict[str, _Entry]:
        """Find tasks by their three possible names, and by listing the folder for those without any of them.

        A listing may miss a file that is renamed at the same time, so a task counts as gone only after several
        listings. Each listing serves all tasks that are searched for.
        """
        found: dict[str, _Entry] = {}
        left = set(ids)
        listed: dict[str, tuple[File, ...]] = {}
        for attempt in range(_MAX_LISTINGS):
            if not left:
                break
            if attempt:
                listed = self._listed(queue, limit)
            for id in left:
                files = by_name(queue, id) or listed.get(id, ())
                stat = results.stat(f"{id}{RESULT}") if files else None
                result = None if stat is None else Stamp.of(stat)
                if files and (entry := self._read(queue, results, id, files, result)) is not None:
                    found[id] = entry
            left = {id for id in left if id not in found or found[id].task is None}
        return found

    def _read(
        self, queue: Folder, results: Folder, id: str, files: tuple[File, ...], result: Stamp | None
    ) -> _Entry | None:
        """Read one task; None if its file was renamed since it was listed."""
        read_at = time.time_ns()
        if sum(named.state is not None and not named.token for _, named, _ in files) > 1:
            files = tuple(file for file in files if _exists(queue, file))
        if not files:
            return None
        try:
            content = NO_RESULT if result is None else _result(results, id)
            return _Entry(files, result, read_at, self._task(queue, id, files, content, read_at))
        except FileNotFoundError:
            return None

    def _task(self, queue: Folder, id: str, files: tuple[File, ...], result: Result, now: int) -> Task | None:
        plain = [file for file in files if file[1].state and not file[1].token]
        private = [file for file in files if file[1].state and file[1].token]
        others = [file for file in files if not file[1].state]
        old = (name for name, _, stamp in others if stamp.modified + _IN_FLIGHT < now)
        notes = tuple(f"the folder also contains {name!r}" for name in old)
        if len(plain) > 1:
            states = and_list(sorted(f".{named.state}" for _, named, _ in plain))
            return self._rows.broken(id, None, plain[0][2], f"exists as {states} at the same time", result, notes)
        if plain:
            notes += tuple(f"an interrupted move left {name!r}" for name, _, _ in private)
            return self._content(queue, id, plain[0], result, notes)
        if len(private) == 1:
            note = f"its file is {private[0][0]!r}: the move is in progress or was interrupted"
            return self._content(queue, id, private[0], result, (note, *notes))
        if private:
            names = ", ".join(repr(name) for name, _, _ in private)
            return self._rows.broken(id, None, private[0][2], f"several interrupted moves: {names}", result, notes)
        name, named, stamp = others[0]
        young = stamp.modified + _IN_FLIGHT >= now
        if young and (named.token or name.startswith(".") or name.endswith(".tmp")):
            return None
        return self._rows.broken(id, None, stamp, "is not a task file: unknown extension", result)

    def _content(self, queue: Folder, id: str, file: File, result: Result, notes: tuple[str, ...]) -> Task:
        name, named, stamp = file
        state = named.state
        assert state is not None
        try:
            return self._rows.task(id, state, parse_object(queue.read(name)), stamp, result, notes)
        except UnreadableFile as why:
            return self._rows.broken(id, state, stamp, f"its file {why}", result, notes)


class _Limit:
    """When one refresh has to end: it was cancelled, or the deadline has passed."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._generation = index.generation
        self._until = None if index.deadline is None else monotonic() + index.deadline.total_seconds()

    def check(self, done: str, *, late: bool = True) -> None:
        """Raises `DeadlineExceeded` with what was done so far; with `late` off, only if it was cancelled."""
        where = str(self._index.queue)
        if self._generation != self._index.generation:
            raise DeadlineExceeded("reading the folder was cancelled", where=where)
        if late and self._until is not None and monotonic() > self._until:
            assert self._index.deadline is not None
            raise DeadlineExceeded(
                f"{done} in {duration(self._index.deadline)}", where=where,
                fix="Raise `deadline` in the config, or move finished files away.",
            )


class _FolderPair:
    """Both folders, opened and closed together."""

    def __init__(self, queue: Path, results: Path) -> None:
        self._queue = Folder(queue)
        try:
            self._results = Folder(results)
        except BaseException:
            self._queue.__exit__()
            raise

    def __enter__(self) -> tuple[Folder, Folder]:
        return self._queue, self._results

    def __exit__(self, *_: object) -> None:
        self._queue.__exit__()
        self._results.__exit__()


def _stamps(folder: Folder, suffix: str) -> Iterator[tuple[str, Stamp]]:
    with os.scandir(folder.fd) as entries:
        for entry in entries:
            if entry.name.endswith(suffix):
                try:
                    yield entry.name.removesuffix(suffix), Stamp.of(entry.stat(follow_symlinks=False))
                except FileNotFoundError:
                    continue


def by_name(queue: Folder, id: str) -> tuple[File, ...]:
    found = []
    for state in State:
        name = file_name(id, state)
        try:
            stat = queue.stat(name)
        except OSError:
            continue
        if stat is not None:
            found.append((name, ParsedName(id, state), Stamp.of(stat)))
    return tuple(found)


def _exists(queue: Folder, file: File) -> bool:
    return not file[1].state or bool(file[1].token) or queue.stat(file[0]) is not None


def _result(results: Folder, id: str) -> Result:
    try:
        return Result.parse(results.read(f"{id}{RESULT}"))
    except FileNotFoundError:
        return NO_RESULT
    except UnreadableFile as why:
        return Result.unreadable(why)
