"""An in-memory index of the task files, refreshed incrementally.

A refresh lists the queue folder and compares each file's inode, size and times with the values from its last read. Only
files that differ are opened. A file that was read within one clock tick of its last change is read again, because a
further change in the same tick would not be visible.

Of a finished task only that is remembered, until somebody asks for finished tasks: they are most of a folder, and lists
leave them out. Between two processes the index is kept in a file, if there is a place for it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from threading import Lock
from time import monotonic

from console.core.faults import DeadlineExceeded, Unreachable
from console.core.text import and_list, duration
from plugins.file_queue.entries import CLOCK_TICK, NOT_READ, Entry, File, decoded, entry_of, from_kept, to_keep
from plugins.file_queue.folder import RESULT, Folder, ParsedName, Stamp, State, UnreadableFile, file_name, parse_name
from plugins.file_queue.index_file import IndexFile
from plugins.file_queue.rows import (
    NO_RESULT,
    Content,
    Result,
    Task,
    TaskRows,
    finished_as,
    needs_result,
    own_fields,
)
from plugins.file_queue.snapshot import Snapshot

_IN_FLIGHT = 60_000_000_000
"""Nanoseconds. A younger temporary file is a write in progress, an older one was left by a crash."""
_SMALL = 2_000
_MAX_LISTINGS = 5
_CANCEL_INTERVAL = 256
_CONTINUES = (
    "Repeat this: it continues where it stopped. Or raise `deadline` in the config, or move finished files away."
)
_WORTH_KEEPING = 1_000
"""How many newly read tasks are worth writing the index file, which is then also a tenth of it or more."""


class Index:
    """The tasks of one queue. Safe to use from several threads."""

    def __init__(self, base: Path, rows: TaskRows, deadline: timedelta | None = None) -> None:
        self.queue = base / "queue"
        self.results = base / "results"
        self._rows = rows
        self.deadline = deadline
        """How long a refresh may take. What it has read by then is kept, and the next one continues."""
        self._entries: dict[str, Entry] = {}
        self._snapshot: Snapshot | None = None
        self._outdated = False
        """Whether entries have changed since the snapshot was made."""
        self._seen: tuple[int, int] = (0, 0)
        self._looked_at = 0
        self._looked_at_all = False
        self._cost = 0
        self._lock = Lock()
        self._file: IndexFile | None = None
        self._writes_file = False
        self._not_loaded = False
        self._unsaved = 0
        self.generation = 0
        """How often reading was cancelled."""

    def keep_in(self, folder: Path, *, write: bool) -> None:
        """Continue from the index that another process has kept in this folder; with `write`, also keep it there."""
        self._file = IndexFile(folder, self.queue)
        self._writes_file, self._not_loaded = write, True

    def cancel(self) -> None:
        self.generation += 1

    def forget(self) -> None:
        """Refresh at the next access, however recent the last refresh was: this process has just written."""
        self._looked_at = 0

    # -- all tasks -------------------------------------------------------------------------------

    def snapshot(self, *, whole: bool = False) -> Snapshot:
        """All tasks; with `whole`, also those that are finished are read in full."""
        limit = _Limit(self)
        with self._lock, self._folders() as folders:
            queue, results = folders
            if self._snapshot is not None and self._is_fresh(queue, results, whole=whole):
                return self._snapshot
            self._load(folders)
            began = time.time_ns()
            self._seen = (os.fstat(queue.fd).st_mtime_ns, os.fstat(results.fd).st_mtime_ns)
            try:
                self._refresh(queue, results, limit, whole=whole)
            except DeadlineExceeded as fault:
                if limit.expired and self._save(folders, least=1):
                    fault.fix = _CONTINUES
                raise
            self._save(folders, least=max(_WORTH_KEEPING, len(self._entries) // 10))
            if self._snapshot is None or self._outdated or (whole and not self._snapshot.whole):
                tasks = {
                    id: e.task
                    for id, e in self._entries.items()
                    if e.task is not None and (whole or e.finished is None)
                }
                finished = {id: e.finished for id, e in self._entries.items() if e.finished is not None}
                self._snapshot = Snapshot(tasks, finished, self._rows, whole=whole)
                self._outdated = False
            self._looked_at = time.time_ns()
            self._looked_at_all = whole
            self._cost = self._looked_at - began
            return self._snapshot

    def _load(self, folders: tuple[Folder, Folder]) -> None:
        """Take over what another process has kept, before the first refresh."""
        if self._file is None or not self._not_loaded:
            return
        self._not_loaded = False
        for kept in self._file.load(folders):
            with suppress(ValueError, TypeError, LookupError):
                id, entry = from_kept(kept)
                self._entries[id] = entry

    def _save(self, folders: tuple[Folder, Folder], *, least: int) -> bool:
        """Keep the index for other processes, if at least so many tasks were read since it was last kept."""
        if self._file is None or not self._writes_file or self._unsaved < least:
            return False
        self._unsaved = 0
        kept = (to_keep(id, entry) for id, entry in self._entries.items())
        return self._file.save(folders, (one for one in kept if one is not None))

    def _folders(self) -> _FolderPair:
        return _FolderPair(self.queue, self.results)

    def _is_fresh(self, queue: Folder, results: Folder, *, whole: bool) -> bool:
        """Whether the last snapshot can be reused: consecutive pages of a large, unchanged folder share one refresh."""
        if len(self._entries) < _SMALL or (whole and not self._looked_at_all):
            return False
        if time.time_ns() - self._looked_at > min(3 * self._cost, 1_000_000_000):
            return False
        now = (os.fstat(queue.fd).st_mtime_ns, os.fstat(results.fd).st_mtime_ns)
        return now == self._seen and max(now) + CLOCK_TICK < self._looked_at - self._cost

    def _refresh(self, queue: Folder, results: Folder, limit: _Limit, *, whole: bool) -> None:
        """Read what changed.

        A listing may miss a file that is being renamed. Later refreshes search for known tasks that are missing; the
        first one only knows tasks of an earlier process, so it lists a folder that has just changed twice.
        """
        began = time.time_ns()
        found = self._listed(queue, limit)
        missing = self._entries.keys() - found.keys()
        if self._snapshot is None:
            for id in missing:
                del self._entries[id]
            missing = set()
            if os.fstat(queue.fd).st_mtime_ns + CLOCK_TICK >= began:
                missing = self._listed(queue, limit).keys() - found.keys()
        self._outdated |= bool(missing)
        read = 0
        for number, (id, files) in enumerate(found.items()):
            if self._is_known(results, id, files, whole=whole):
                if number % _CANCEL_INTERVAL == 0:
                    limit.check("", late=False)
                continue
            if read % _CANCEL_INTERVAL == 0:
                limit.check(f"{number} of {len(found)} files were read", late=read > 0)
            read += 1
            self._outdated = True
            entry = self._read(queue, results, id, files, whole=whole)
            if entry is None or not entry.is_task:
                missing.add(id)
            else:
                self._entries[id] = entry
                self._unsaved += entry.lasting
        found_again = self._search(queue, results, missing, limit, whole=whole)
        for id in missing:
            if id in found_again:
                self._entries[id] = found_again[id]
            else:
                self._entries.pop(id, None)

    def _is_known(self, results: Folder, id: str, files: tuple[File, ...], *, whole: bool) -> bool:
        """Whether a task's entry is still true and says enough."""
        entry = self._entries.get(id)
        if entry is None or not entry.settled or entry.files != files:
            return False
        if (whole or entry.result != NOT_READ) and _stamp(results, id) != entry.result:
            return False
        if entry.task is not None or (entry.finished is not None and not whole):
            return True
        if not isinstance(entry.content, str):
            return False
        try:
            content = decoded(entry.content)
        except (ValueError, TypeError, RecursionError):
            return False
        _, named, stamp = files[0]
        assert named.state is not None
        task = self._rows.task(id, named.state, content.fields, stamp, content.result)
        self._entries[id] = entry._replace(task=task)
        self._outdated = True
        return True

    def _listed(self, queue: Folder, limit: _Limit) -> dict[str, tuple[File, ...]]:
        found: dict[str, tuple[File, ...]] = {}
        try:
            with os.scandir(queue.fd) as entries:
                for number, entry in enumerate(entries):
                    if number % _CANCEL_INTERVAL == 0:
                        limit.check(f"{number} files were listed")
                    named = parse_name(entry.name)
                    try:
                        file = (entry.name, named, Stamp.of(entry.stat(follow_symlinks=False)))
                    except FileNotFoundError:
                        found.setdefault(named.id, ())
                        continue
                    others = found.get(named.id)
                    found[named.id] = (*others, file) if others else (file,)
        except OSError as error:
            raise Unreachable(error.strerror or str(error), where=str(self.queue)) from None
        return found

    # -- single tasks ----------------------------------------------------------------------------

    def tasks(self, ids: Iterable[str]) -> dict[str, Task]:
        """Read some tasks from their files."""
        with self._folders() as (queue, results):
            names = dict.fromkeys(id for id in ids if "/" not in id and "\0" not in id)
            found = self._search(queue, results, names, _Limit(self), whole=True)
        blocker = None if self._snapshot is None else self._snapshot.blocker
        return {
            id: self._rows.behind(task, blocker)
            for id in names
            if id in found and (task := found[id].task) is not None
        }

    def _search(
        self, queue: Folder, results: Folder, ids: Iterable[str], limit: _Limit, *, whole: bool
    ) -> dict[str, Entry]:
        """Find tasks by their three possible names, and by listing the folder for those without any of them.

        A listing may miss a file that is renamed at the same time, so a task counts as gone only after several
        listings. Each listing serves all tasks that are searched for.
        """
        found: dict[str, Entry] = {}
        left = set(ids)
        listed: dict[str, tuple[File, ...]] = {}
        for attempt in range(_MAX_LISTINGS):
            if not left:
                break
            if attempt:
                listed = self._listed(queue, limit)
            for id in left:
                files = by_name(queue, id) or listed.get(id, ())
                if files and (entry := self._read(queue, results, id, files, whole=whole)) is not None:
                    found[id] = entry
            left = {id for id in left if id not in found or not found[id].is_task}
        return found

    def _read(
        self, queue: Folder, results: Folder, id: str, files: tuple[File, ...], *, whole: bool
    ) -> Entry | None:
        """Read one task; None if its file was renamed since it was listed."""
        if sum(named.state is not None and not named.token for _, named, _ in files) > 1:
            files = tuple(file for file in files if _exists(queue, file))
        if not files:
            return None
        read_at = time.time_ns()
        try:
            if len(files) == 1 and files[0][1].state is not None and not files[0][1].token:
                return self._plain_task(queue, results, id, files[0], read_at, whole=whole)
            stamp, result = _result(results, id)
            return entry_of(files, stamp, read_at, self._task(queue, id, files, result, read_at))
        except FileNotFoundError:
            return None

    def _plain_task(
        self, queue: Folder, results: Folder, id: str, file: File, read_at: int, *, whole: bool
    ) -> Entry:
        """Read a task that has one file, with a name that tells its state."""
        name, named, stamp = file
        state = named.state
        assert state is not None
        try:
            fields = own_fields(queue.read(name))
        except UnreadableFile as why:
            result_stamp, result = _result(results, id)
            broken = self._rows.broken(id, state, stamp, f"its file {why}", result)
            return entry_of((file,), result_stamp, read_at, broken)
        if not whole and not needs_result(state, fields) and (done := finished_as(id, state, fields, NO_RESULT)):
            return entry_of((file,), NOT_READ, read_at, finished=done)
        result_stamp, result = _result(results, id)
        done = finished_as(id, state, fields, result)
        if done is not None and not whole:
            return entry_of((file,), result_stamp, read_at, finished=done)
        task = self._rows.task(id, state, fields, stamp, result)
        content = Content(fields, result) if self._writes_file and not result.notes else None
        return entry_of((file,), result_stamp, read_at, task, done, content)

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
            return self._rows.task(id, state, own_fields(queue.read(name)), stamp, result, notes)
        except UnreadableFile as why:
            return self._rows.broken(id, state, stamp, f"its file {why}", result, notes)


class _Limit:
    """When one refresh has to end: it was cancelled, or the deadline has passed."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._generation = index.generation
        self._until = None if index.deadline is None else monotonic() + index.deadline.total_seconds()
        self.expired = False

    def check(self, done: str, *, late: bool = True) -> None:
        """Raises `DeadlineExceeded` with what was done so far; with `late` off, only if it was cancelled."""
        where = str(self._index.queue)
        if self._generation != self._index.generation:
            raise DeadlineExceeded("reading the folder was cancelled", where=where)
        if late and self._until is not None and monotonic() > self._until:
            assert self._index.deadline is not None
            self.expired = True
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


def _stamp(results: Folder, id: str) -> Stamp | None:
    """The version of a task's result file; None if there is none."""
    found = results.stat(f"{id}{RESULT}")
    return None if found is None else Stamp.of(found)


def _result(results: Folder, id: str) -> tuple[Stamp | None, Result]:
    stamp = _stamp(results, id)
    if stamp is None:
        return None, NO_RESULT
    try:
        return stamp, Result.parse(results.read(f"{id}{RESULT}"))
    except FileNotFoundError:
        return stamp, NO_RESULT
    except UnreadableFile as why:
        return stamp, Result.unreadable(why)
