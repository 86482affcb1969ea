"""The plugin contract for a folder of task files."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import islice

from pydantic import BaseModel, ConfigDict

from console.core.backend import (
    COUNT_CAP,
    Authority,
    Buckets,
    Change,
    Count,
    Draft,
    ErrorBatch,
    Finding,
    Histogram,
    Image,
    Operation,
    Outcome,
    PageRequest,
    Timeline,
)
from console.core.faults import BackendBusy, BackendFault, ConfigFault, NoSuchItem, ReadOnlyRefused
from console.core.item import Condition, Detail, Item, ItemKey
from console.core.paths import expanded
from console.core.policy import Phase, PolicyOverride, RetryPolicy, schedule_ahead
from console.core.ports import Clock, Never, Stop
from console.core.query import Cursor, Field, Filter, Page, Sort, SortField
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

_BATCH = 500
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


class Options(BaseModel):
    """The config keys of this plugin, in addition to `plugin` and `policy`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str
    handler: str | None = None
    """`package.module:function`. `retriage run` calls it with each task."""


class FileQueue:
    """A folder of task files."""

    options = Options
    abilities = ABILITIES
    plugin = "file_queue"
    sorts = frozenset(SortField)
    offered_switches = (contract.INCLUDE_CLAIMED,)

    @classmethod
    def open(
        cls,
        name: str,
        options: Options,
        policy: PolicyOverride,
        *,
        read_only: bool,
        deadline: timedelta,  # noqa: ARG003  reading a folder can be cancelled but has no deadline
    ) -> FileQueue:
        return cls(name, options, policy.over(contract.POLICY), read_only=read_only)

    def __init__(self, name: str, options: Options, policy: RetryPolicy, *, read_only: bool = False) -> None:
        self.name = name
        self.policy = policy
        self.handler = options.handler
        self.base = expanded(options.path, ConfigFault).absolute()
        self.place = str(self.base)
        self._read_only = read_only
        self._rows = TaskRows(name, policy)
        self._decode = self._rows.time.decode
        self._index = Index(self.base, self._rows)
        self._planner = TaskPlanner(name, policy, self._rows)
        self._mover = Mover(self._index.queue)

    # -- reading ---------------------------------------------------------------------------------

    def now(self) -> datetime:
        """This machine's clock: files have none of their own."""
        return datetime.now(UTC)

    def page(self, request: PageRequest) -> Page:
        matching = self._matching(request.filter, request.sort, request.now, request.after, request.backward)
        found = list(islice(matching, request.limit + 1))
        more, shown = len(found) > request.limit, found[: request.limit]
        if not shown:
            return Page((), None, None)
        if request.backward:
            shown.reverse()
        started = request.after is not None
        has_next, has_previous = (started, more) if request.backward else (more, started)
        return Page(
            tuple([item for item, _ in shown]),
            shown[-1][1] if has_next else None,
            shown[0][1] if has_previous else None,
        )

    def _matching(
        self,
        filter: Filter,
        sort: Sort,
        now: datetime,
        after: Cursor | None = None,
        backward: bool = False,
        stop: Stop | None = None,
    ) -> Iterator[tuple[Item, Cursor]]:
        wanted, rest = filter.conditions(), filter.without(Field.CONDITION)
        stop = stop or Never()
        with self._faults():
            snapshot = self._index.snapshot()
        for number, (task, cursor) in enumerate(snapshot.walk(sort, after, backward)):
            if number % 1_000 == 0 and stop.requested:
                return
            if wanted.isdisjoint(_possible(task)):
                continue
            item = self._rows.item(task, now)
            if item.condition in wanted and rest.matches(item, now, (item.type,)):
                yield item, cursor

    def counts(self, filter: Filter, now: datetime, cap: int | None = COUNT_CAP) -> Mapping[Condition, Count]:
        wanted = filter.conditions()
        if filter.without(Field.CONDITION).terms:
            found = Counter(item.condition for item, _ in self._matching(filter, Sort(), now))
        else:
            with self._faults():
                tasks = self._index.snapshot().tasks.values()
            found = Counter(self._condition(task, now) for task in tasks if not wanted.isdisjoint(_possible(task)))
        return {
            condition: Count(cap, False) if cap is not None and found[condition] > cap else Count(found[condition])
            for condition in wanted
        }

    def _condition(self, task: Task, now: datetime) -> Condition:
        possible = _possible(task)
        if len(possible) == 1:
            return next(iter(possible))
        return self._rows.verdict(task, now).condition

    def errors(self, filter: Filter, now: datetime, stop: Stop) -> Iterator[ErrorBatch]:
        matching = self._matching(filter, Sort(), now, stop=stop)
        while not stop.requested and (batch := list(islice(matching, _BATCH))):
            yield ErrorBatch([(item.error, item.updated_at) for item, _ in batch], lambda at: at)

    def histogram(self, timeline: Timeline, filter: Filter, now: datetime, buckets: Buckets) -> Histogram:
        upcoming = timeline is Timeline.NEXT_RETRY
        times = (
            item.verdict.next_retry_at if upcoming else item.updated_at
            for item, _ in self._matching(filter, Sort(), now)
        )
        return buckets.histogram(at for at in times if at is not None)

    def items(self, keys: Sequence[ItemKey], now: datetime) -> Mapping[ItemKey, Item]:
        return {ItemKey(self.name, (task.id,)): self._rows.item(task, now) for task in self._tasks(keys).values()}

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
            return findings(self._index, self._mover, clock, self.now())

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

    def drafts(
        self, wanted: Sequence[ItemKey] | Filter, sort: Sort, operation: Operation, now: datetime, stop: Stop
    ) -> Iterator[Sequence[Draft]]:
        blocker = self._left_blocker(wanted, operation, now)
        if not isinstance(wanted, Filter):
            yield [self._planner.draft(task, operation, now, blocker) for task in self._tasks(wanted).values()]
            return
        matching = self._matching(wanted, sort, now, stop=stop)
        while not stop.requested and (batch := [item.key for item, _ in islice(matching, _BATCH)]):
            tasks = self._tasks(batch)
            yield [
                self._planner.draft(task, operation, now, blocker)
                for key in batch
                if (task := tasks.get(key.parts[0])) is not None
            ]

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
        item = self._rows.item(task, now)
        plain = wanted.without(Field.CONDITION)
        return item.condition in wanted.conditions() and plain.matches(item, now, (item.type,))

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

    def were_written(self, changes: Sequence[Change], at: datetime) -> Sequence[bool]:
        """A requeued task that has been claimed since: nothing else makes workers take it at that time."""
        tasks = self._tasks([change.keys[0] for change in changes])
        return [
            (task := tasks.get(_id_of(change.keys[0]))) is not None and self._was_requeued(change, task, at)
            for change in changes
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


def _possible(task: Task) -> frozenset[Condition]:
    if task.is_stuck_in_line:
        return frozenset({Condition.STUCK})
    return _POSSIBLE_CONDITIONS[Phase.UNKNOWN if task.problem is not None else task.facts.phase]
