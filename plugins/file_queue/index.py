"""What the folders hold, kept in memory and brought up to date by looking only at what changed.

A look lists both folders and compares each file's inode, size and times with those it was read at; only files
that differ are opened. A file that changed within the clock's grain of being read is read once more.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

from console.core.faults import DeadlineExceeded, Unreachable
from console.core.query import Cursor, Sort, SortField
from console.sql.values import text
from plugins.file_queue.folder import RESULT, Folder, Named, Stamp, State, Unusable, file_name, parse
from plugins.file_queue.rows import NO_RESULT, Result, Task, TaskRows, parse_object

_GRAIN = 50_000_000
"""Nanoseconds: a file system's clock may tick this slowly."""
_IN_FLIGHT = 60_000_000_000
"""Nanoseconds: a temp file younger than this is somebody's write in progress, not a leftover."""
_SMALL = 2_000
_LOOKS = 5
_BETWEEN_CANCELS = 256

File = tuple[str, Named, Stamp]


class _Entry(NamedTuple):
    files: tuple[File, ...]
    result: Stamp | None
    read_at: int
    task: Task | None

    def holds(self, files: tuple[File, ...], result: Stamp | None) -> bool:
        """Whether what was read is still what is there."""
        if self.files != files or self.result != result:
            return False
        newest = max((max(stamp.modified, stamp.changed) for _, _, stamp in files), default=0)
        if result is not None:
            newest = max(newest, result.modified, result.changed)
        return newest + _GRAIN < self.read_at


class _Order(NamedTuple):
    """Ids in ascending order of a value, and those without one."""

    valued: list[tuple[Any, str]]
    valueless: list[str]


class Snapshot:
    """All tasks at one look, and the orders they are paged in."""

    def __init__(self, tasks: Mapping[str, Task]) -> None:
        self.tasks = tasks
        self._orders: dict[SortField, _Order] = {}
        self._lock = Lock()

    def walk(self, sort: Sort, after: Cursor | None, backward: bool) -> Iterator[tuple[Task, Cursor]]:
        """From a cursor towards either end; tasks without the value come last in both directions."""
        field = sort.field or SortField.CREATED
        order = self._order(field)
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

    def _order(self, field: SortField) -> _Order:
        with self._lock:
            if field not in self._orders:
                self._orders[field] = self._sorted(field)
            return self._orders[field]

    def _sorted(self, field: SortField) -> _Order:
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


def _value(field: SortField, task: Task) -> Any:
    match field:
        case SortField.UPDATED:
            return task.updated_at
        case SortField.CREATED:
            return task.facts.born_at
        case SortField.NEXT:
            return task.due_at
        case SortField.ATTEMPTS:
            return task.facts.attempts
        case SortField.TYPE:
            return _bytes(text(task.row.func_path)) or None
        case SortField.ID:
            return _bytes(task.id)


def _bytes(text: str) -> bytes:
    """Text is ordered as its bytes are, as everywhere in the console."""
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
    """The tasks of one queue, looked up incrementally. Safe to use from several threads."""

    def __init__(self, base: Path, rows: TaskRows) -> None:
        self.queue = base / "queue"
        self.results = base / "results"
        self._rows = rows
        self._entries: dict[str, _Entry] = {}
        self._snapshot: Snapshot | None = None
        self._seen: tuple[int, int] = (0, 0)
        self._looked_at = 0
        self._cost = 0
        self._lock = Lock()
        self._generation = 0

    def cancel(self) -> None:
        self._generation += 1

    def forget(self) -> None:
        """What was written by this process is looked at again, however short ago the last look was."""
        self._looked_at = 0

    # -- all of it -------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        generation = self._generation
        with self._lock, self._folders() as (queue, results):
            if self._snapshot is not None and self._is_fresh(queue, results):
                return self._snapshot
            began = time.time_ns()
            self._seen = (os.fstat(queue.fd).st_mtime_ns, os.fstat(results.fd).st_mtime_ns)
            changed = self._look(queue, results, generation)
            if changed or self._snapshot is None:
                self._snapshot = Snapshot({id: e.task for id, e in self._entries.items() if e.task is not None})
            self._looked_at = time.time_ns()
            self._cost = self._looked_at - began
            return self._snapshot

    def _folders(self) -> _Both:
        return _Both(self.queue, self.results)

    def _is_fresh(self, queue: Folder, results: Folder) -> bool:
        """Pages of a large folder that follow each other share one look, unless the folders changed."""
        if len(self._entries) < _SMALL:
            return False
        if time.time_ns() - self._looked_at > min(3 * self._cost, 1_000_000_000):
            return False
        now = (os.fstat(queue.fd).st_mtime_ns, os.fstat(results.fd).st_mtime_ns)
        return now == self._seen and max(now) + _GRAIN < self._looked_at - self._cost

    def _look(self, queue: Folder, results: Folder, generation: int) -> bool:
        """Whether anything changed. At the first look nothing is known that could be missed, so a folder in motion is
        listed twice."""
        began = time.time_ns()
        found = self._listed(queue, generation)
        told = dict(_stamps(results, RESULT))
        lost = self._entries.keys() - found.keys()
        if self._snapshot is None and os.fstat(queue.fd).st_mtime_ns + _GRAIN >= began:
            lost |= self._listed(queue, generation).keys() - found.keys()
        changed = bool(lost)
        for number, (id, files) in enumerate(found.items()):
            known = self._entries.get(id)
            result = told.get(id)
            if known is not None and known.holds(files, result):
                continue
            if number % _BETWEEN_CANCELS == 0 and generation != self._generation:
                raise DeadlineExceeded("reading the folder was given up", where=str(self.queue))
            changed = True
            entry = self._read(queue, results, id, files, result)
            if entry is None or entry.task is None:
                lost.add(id)
            else:
                self._entries[id] = entry
        again = self._again(queue, results, lost, generation)
        for id in lost:
            if id in again:
                self._entries[id] = again[id]
            else:
                self._entries.pop(id, None)
        return changed

    def _listed(self, queue: Folder, generation: int) -> dict[str, tuple[File, ...]]:
        found: dict[str, tuple[File, ...]] = {}
        try:
            with os.scandir(queue.fd) as entries:
                for number, entry in enumerate(entries):
                    if number % _BETWEEN_CANCELS == 0 and generation != self._generation:
                        raise DeadlineExceeded("listing the folder was given up", where=str(self.queue))
                    named = parse(entry.name)
                    files = found.setdefault(named.id, ())
                    try:
                        stamp = Stamp.of(entry.stat(follow_symlinks=False))
                    except FileNotFoundError:
                        continue
                    found[named.id] = (*files, (entry.name, named, stamp))
        except OSError as error:
            raise Unreachable(error.strerror or str(error), where=str(self.queue)) from None
        return found

    # -- one task --------------------------------------------------------------------------------

    def tasks(self, ids: Iterable[str]) -> dict[str, Task]:
        """Some tasks as their files are this moment."""
        with self._folders() as (queue, results):
            names = dict.fromkeys(id for id in ids if "/" not in id and "\0" not in id)
            found = self._again(queue, results, names, self._generation)
        return {id: task for id in names if id in found and (task := found[id].task) is not None}

    def _again(self, queue: Folder, results: Folder, ids: Iterable[str], generation: int) -> dict[str, _Entry]:
        """Tasks by their three names, and by listing the folder for those that have none of them.

        Files move while we look, and a listing shows what is renamed meanwhile under neither name: only what
        several looks do not show is gone. Each look lists the folder once, however many are looked for.
        """
        found: dict[str, _Entry] = {}
        left = set(ids)
        listed: dict[str, tuple[File, ...]] = {}
        for look in range(_LOOKS):
            if not left:
                break
            if look:
                listed = self._listed(queue, generation)
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
        """None when the file moved on since it was listed."""
        read_at = time.time_ns()
        if sum(named.state is not None and not named.token for _, named, _ in files) > 1:
            files = tuple(file for file in files if _still(queue, file))
        if not files:
            return None
        try:
            told = NO_RESULT if result is None else _result(results, id)
            return _Entry(files, result, read_at, self._task(queue, id, files, told, read_at))
        except FileNotFoundError:
            return None

    def _task(self, queue: Folder, id: str, files: tuple[File, ...], result: Result, now: int) -> Task | None:
        plain = [file for file in files if file[1].state and not file[1].token]
        private = [file for file in files if file[1].state and file[1].token]
        others = [file for file in files if not file[1].state]
        notes = tuple(f"beside it lies {name!r}" for name, _, stamp in others if stamp.modified + _IN_FLIGHT < now)
        if len(plain) > 1:
            states = " and ".join(sorted(f".{named.state}" for _, named, _ in plain))
            return self._rows.broken(id, None, plain[0][2], f"exists as {states} at once", result, notes)
        if plain:
            notes += tuple(f"an interrupted move left {name!r}" for name, _, _ in private)
            return self._content(queue, id, plain[0], result, notes)
        if len(private) == 1:
            note = f"its file is {private[0][0]!r}: being moved now, or the move was interrupted"
            return self._content(queue, id, private[0], result, (note, *notes))
        if private:
            names = ", ".join(repr(name) for name, _, _ in private)
            return self._rows.broken(id, None, private[0][2], f"several interrupted moves: {names}", result, notes)
        name, named, stamp = others[0]
        young = stamp.modified + _IN_FLIGHT >= now
        if young and (named.token or name.startswith(".") or name.endswith(".tmp")):
            return None
        return self._rows.broken(id, None, stamp, "is no task file: its name ends in no state", result)

    def _content(self, queue: Folder, id: str, file: File, result: Result, notes: tuple[str, ...]) -> Task:
        name, named, stamp = file
        state = named.state
        assert state is not None
        try:
            return self._rows.task(id, state, parse_object(queue.read(name)), stamp, result, notes)
        except Unusable as why:
            return self._rows.broken(id, state, stamp, f"its file {why}", result, notes)


class _Both:
    """Both folders, open together."""

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
            found.append((name, Named(id, state), Stamp.of(stat)))
    return tuple(found)


def _still(queue: Folder, file: File) -> bool:
    return not file[1].state or bool(file[1].token) or queue.stat(file[0]) is not None


def _result(results: Folder, id: str) -> Result:
    try:
        return Result.of(results.read(f"{id}{RESULT}"))
    except FileNotFoundError:
        return NO_RESULT
    except Unusable as why:
        return Result.unusable(why)
