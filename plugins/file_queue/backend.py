"""The plugin contract for a folder of task files."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from console.core.backend import (
    COUNT_CAP,
    Abilities,
    Authority,
    Change,
    Count,
    Draft,
    Finding,
    Image,
    Operation,
    Outcome,
)
from console.core.capabilities import FoundQueue
from console.core.faults import BackendBusy, BackendFault, ConfigFault, NoSuchItem, ReadOnlyRefused
from console.core.item import Condition, Detail, Item, ItemKey
from console.core.paths import expanded
from console.core.policy import Phase, PolicyOverride, RetryPolicy, schedule_ahead
from console.core.ports import Clock, Stop
from console.core.query import COLUMN_SORTS, Cursor, Field, Filter, Sort
from console.keyed.reader import KeyedReader, Walk, capped
from console.sql.table_rows import last_attempts
from plugins import _contract_queue as contract
from plugins.file_queue.checks import findings
from plugins.file_queue.detail import TaskFiles, full_error
from plugins.file_queue.folder import State
from plugins.file_queue.index import Index
from plugins.file_queue.moves import Move, Mover
from plugins.file_queue.prediction import Blocker, due_time
from plugins.file_queue.requeue import ABILITIES, TaskPlanner
from plugins.file_queue.rows import Task, TaskImage, TaskRows

_LONGEST_ID = 255
"""In bytes, the limit of file systems."""
_POSSIBLE_CONDITIONS = {
    Phase.DONE: frozenset({Condition.DONE}),
    Phase.CANCELLED: frozenset({Condition.CANCELLED}),
    Phase.UNKNOWN: frozenset({Condition.UNKNOWN}),
    Phase.READY: frozenset({Condition.WAITING, Condition.RETRYING}),
    Phase.RUNNING: frozenset({Condition.RUNNING, Condition.STUCK}),
    Phase.FAILED: frozenset({Condition.FAILED, Condition.TERMINAL}),
}
"""The conditions of each phase. A task that cannot match a filter need not be judged."""
_FINISHED = frozenset({Condition.DONE, Condition.CANCELLED})


class Options(BaseModel):
    """The config keys of this plugin, in addition to `plugin` and `policy`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str
    handler: str | None = None
    """`package.module:function`. `retriage run` calls it with each task."""


class FileQueue(KeyedReader[Task]):
    """A folder of task files."""

    options = Options
    schemes = ("file",)
    abilities = ABILITIES
    plugin = "file_queue"
    sorts = COLUMN_SORTS
    offered_switches = (contract.INCLUDE_CLAIMED,)

    @classmethod
    def discover(cls, url: str, *, deadline: timedelta) -> Sequence[FoundQueue]:
        del deadline  # a folder answers at once
        base = Path(url).absolute()
        found = base.is_dir() and (base / "queue").is_dir() and (base / "results").is_dir()
        return [FoundQueue("task-files", f"task files in {base}", {"path": str(base)})] if found else []

    @classmethod
    def open(
        cls,
        name: str,
        options: Options,
        policy: PolicyOverride,
        *,
        read_only: bool,
        deadline: timedelta,
    ) -> FileQueue:
        return cls(name, options, policy.over(contract.POLICY), read_only=read_only, deadline=deadline)

    @classmethod
    def systems(cls) -> dict[str, Abilities]:
        return {"contract queue in files": ABILITIES}

    def __init__(
        self, name: str, options: Options, policy: RetryPolicy, *, read_only: bool = False,
        deadline: timedelta | None = None,
    ) -> None:
        self.name = name
        self.policy = policy
        self.handler = options.handler
        self.base = expanded(options.path, ConfigFault).absolute()
        self.place = str(self.base)
        self._read_only = read_only
        self._rows = TaskRows(name, policy)
        self._decode = self._rows.time.decode
        self._index = Index(self.base, self._rows, deadline)
        self._planner = TaskPlanner(name, policy, self._rows)
        self._mover = Mover(self._index.queue)

    def keep_index(self, folder: Path) -> None:
        self._index.keep_in(folder / "file_queue", write=not self._read_only)

    # -- reading ---------------------------------------------------------------------------------

    def now(self) -> datetime:
        """This machine's clock: files have none of their own."""
        return datetime.now(UTC)

    def walk(self, walk: Walk) -> Iterator[tuple[Task, Cursor]]:
        with self._faults():
            snapshot = self._index.snapshot(whole=not _FINISHED.isdisjoint(walk.conditions))
        return snapshot.walk(walk.sort, walk.after, walk.backward)

    def to_item(self, entry: Task, now: datetime) -> Item:
        return self._rows.item(entry, now)

    def whole_error(self, entry: Task, item: Item) -> str | None:
        with self._faults():
            return full_error(TaskFiles.read(self._index, entry)) or item.error

    def possible(self, entry: Task) -> frozenset[Condition]:
        if entry.is_stuck_in_line:
            return frozenset({Condition.STUCK})
        return _POSSIBLE_CONDITIONS[Phase.UNKNOWN if entry.problem is not None else entry.facts.phase]

    def condition(self, entry: Task, now: datetime) -> Condition:
        possible = self.possible(entry)
        return next(iter(possible)) if len(possible) == 1 else self._rows.verdict(entry, now).condition

    def counts(self, filter: Filter, now: datetime, cap: int | None = COUNT_CAP) -> Mapping[Condition, Count]:
        if filter.without(Field.CONDITION).terms:
            return super().counts(filter, now, cap)
        with self._faults():
            snapshot = self._index.snapshot()
        known = snapshot.finished
        found = Counter(one.condition for one in known.values())
        found.update(self.condition(task, now) for task in snapshot.tasks.values() if task.id not in known)
        return {condition: capped(found[condition], cap) for condition in filter.conditions()}

    def lookup(self, keys: Sequence[ItemKey]) -> Mapping[ItemKey, Task]:
        return {ItemKey(self.name, (id,)): task for id, task in self._tasks(keys).items()}

    def _tasks(self, keys: Sequence[ItemKey]) -> dict[str, Task]:
        ids = [key.parts[0] for key in keys if key.backend == self.name and len(key.parts) == 1]
        with self._faults():
            return self._index.tasks(ids)

    def item(self, key: ItemKey, now: datetime) -> Detail:
        with self._faults():
            self._index.snapshot()  # which knows whether another file blocks this task
        task = next(iter(self._tasks([key]).values()), None)
        if task is None:
            raise NoSuchItem(str(key))
        item = self._rows.item(task, now)
        with self._faults():
            files = TaskFiles.read(self._index, task)
        return Detail(
            item,
            full_error(files) or item.error,
            last_attempts(item, full_error(files), self._decode(files.result.get("finished_at")), task.row.recorded),
            tuple(schedule_ahead(task.facts, self.policy, item.verdict, now)) if task.problem is None else (),
            files.fields,
            files.names,
        )

    def check(self, clock: Clock) -> Sequence[Finding]:
        with self._faults():
            return findings(self._index, self._mover, self._decode, clock, self.now())

    def cancel(self) -> None:
        self._index.cancel()

    def close(self) -> None:
        """Nothing to close: folders are opened only while they are read."""

    @contextmanager
    def _faults(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise BackendFault(error.strerror or str(error), where=self.place) from None

    # -- requeue ---------------------------------------------------------------------------------

    def drafter(
        self, wanted: Sequence[ItemKey] | Filter, operation: Operation, now: datetime
    ) -> Callable[[Task, Item | None], Draft]:
        blocker = self._left_blocker(wanted, operation, now)
        return lambda task, _: self._planner.draft(task, operation, now, blocker)

    def selected(
        self, wanted: Filter, now: datetime, sort: Sort, stop: Stop
    ) -> Iterator[Sequence[tuple[Task, Item | None]]]:
        """Read again: the index may be a little old."""
        for found in super().selected(wanted, now, sort, stop):
            keys = [ItemKey(self.name, (task.id,)) for task, _ in found]
            tasks = self.lookup(keys)
            yield [(tasks[key], None) for key in keys if key in tasks]

    def _left_blocker(
        self, wanted: Sequence[ItemKey] | Filter, operation: Operation, now: datetime
    ) -> Blocker | None:
        """The first file that blocks the queue, among those that this plan does not repair."""
        with self._faults():
            tasks = self._index.snapshot().tasks.values()
        left = [
            task.blocker
            for task in tasks
            if task.blocker is not None
            and not (self._is_wanted(task, wanted, now) and self._planner.draft(task, operation, now).skipped is None)
        ]
        return min(left, default=None)

    def _is_wanted(self, task: Task, wanted: Sequence[ItemKey] | Filter, now: datetime) -> bool:
        if not isinstance(wanted, Filter):
            return ItemKey(self.name, (task.id,)) in wanted
        return self._match(task, wanted.conditions(), wanted.without(Field.CONDITION), now) is not None

    def after(self, change: Change, operation: Operation, at: datetime, due: datetime) -> Image:
        return self._planner.after(change, operation, at, due)

    def compare_and_set(
        self, changes: Sequence[Change], operation: Operation, authority: Authority,  # noqa: ARG002
    ) -> Sequence[Outcome]:
        if self._read_only:
            raise ReadOnlyRefused(where=self.place)
        moves = [Move(_id_of(change.keys[0]), change.before, change.after) for change in changes]
        try:
            with self._faults():
                return self._mover.compare_and_set(moves)
        finally:
            self._index.forget()

    def images(self, changes: Sequence[Change]) -> Sequence[Image | None]:
        """The current images. Interrupted moves are completed or reverted first, unless the backend is read-only."""
        ids = [_id_of(change.keys[0]) for change in changes]
        with self._faults():
            if not self._read_only:
                self._mover.recover(ids)
            return self._mover.images(ids)

    def columns_of(self, key: ItemKey, image: Image) -> Mapping[str, Any]:  # noqa: ARG002
        named = TaskImage(*image)._asdict()
        schedule = named.pop("schedule")
        return {**named, "eta": schedule.get("eta")} if isinstance(schedule, dict) else named

    def were_written(self, changes: Sequence[Change], at: datetime, override_id: str) -> Sequence[bool | None]:  # noqa: ARG002
        """A requeued task that has been claimed since: nothing else makes workers take it at that time."""
        tasks = self._tasks([change.keys[0] for change in changes])
        return [
            (task is not None and self._was_requeued(change, task, at)) or None
            for change in changes
            for task in [tasks.get(_id_of(change.keys[0]))]
        ]

    def _was_requeued(self, change: Change, task: Task, at: datetime) -> bool:
        before, after = TaskImage(*change.before), TaskImage(*change.after)
        claimed = max(filter(None, map(self._decode, (task.row.executed, task.began))), default=None)
        if claimed is None or claimed < at or after.name != State.TASK:
            return False
        if before.name == State.TASK and before.status == "PENDING":
            due = due_time(before.schedule.get("eta"))
            return isinstance(due, str) or (due is not None and claimed < due)
        return before.name != State.RUNNING  # whose worker may have failed and been tried again

    # -- the queue's own loop ----------------------------------------------------------------------

    def run(self, handler: Callable[..., object], clock: Clock, stop: Stop, log: Callable[[str], None]) -> int:
        from plugins.file_queue.engine import FileTaskQueue

        if self._read_only:
            raise ReadOnlyRefused(where=self.place)
        with self._faults():
            self._recover_moves(log)
            return contract.work(FileTaskQueue(self.base, self.policy, clock), handler, clock, stop, log)

    def _recover_moves(self, log: Callable[[str], None]) -> None:
        """Complete or revert moves that a crash interrupted. If another process is moving files, only log that."""
        if unfinished := self._mover.unfinished():
            try:
                self._mover.recover(unfinished)
            except BackendBusy as busy:
                log(f"{len(unfinished)} tasks have an unfinished move: {busy.detail}")


def _id_of(key: ItemKey) -> str:
    """The id in a key; empty, which matches no file, if the key cannot be a file name."""
    id = key.parts[0] if len(key.parts) == 1 else ""
    return "" if "/" in id or "\0" in id or len(os.fsencode(id)) > _LONGEST_ID else id

