"""The contract over an attached folder of task files."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import islice

from pydantic import BaseModel, ConfigDict

from console.core.backend import (
    COUNT_CAP,
    Authority,
    Change,
    Count,
    Draft,
    ErrorBatch,
    Finding,
    Histogram,
    Image,
    Order,
    Outcome,
    PageRequest,
    Timeline,
)
from console.core.faults import BackendBusy, BackendFault, ConfigFault, NoSuchItem, ReadOnlyRefused
from console.core.item import Condition, Detail, Item, ItemKey
from console.core.paths import expanded
from console.core.policy import Phase, PolicyOverride, RetryPolicy, judge, schedule_ahead
from console.core.ports import Clock, Never, Stop
from console.core.query import Cursor, Field, Filter, Page, Sort, SortField
from plugins import _contract_queue as contract
from plugins.file_queue.checks import findings
from plugins.file_queue.detail import Native, full_error, history
from plugins.file_queue.index import Index
from plugins.file_queue.moves import Move, Mover
from plugins.file_queue.requeue import ABILITIES, Requeue
from plugins.file_queue.rows import Task, TaskRows

_BATCH = 500
_LONGEST_ID = 255
"""No file name is longer."""
_ALWAYS = {
    Phase.DONE: frozenset({Condition.DONE}),
    Phase.CANCELLED: frozenset({Condition.CANCELLED}),
    Phase.UNKNOWN: frozenset({Condition.UNKNOWN}),
    Phase.READY: frozenset({Condition.WAITING, Condition.RETRYING}),
    Phase.RUNNING: frozenset({Condition.RUNNING, Condition.STUCK}),
    Phase.FAILED: frozenset({Condition.FAILED, Condition.TERMINAL}),
}
"""The conditions a phase can have: what cannot be asked for need not be judged."""


class Options(BaseModel):
    """The config keys of this plugin, beside `plugin` and `policy`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str
    handler: str | None = None
    """`package.module:function`, called with each task by `retriage run`."""


class FileQueue:
    """A folder of task files that belongs to someone else."""

    options = Options
    abilities = ABILITIES
    plugin = "file_queue"
    sorts = frozenset(SortField)

    @classmethod
    def open(
        cls,
        name: str,
        options: Options,
        policy: PolicyOverride,
        *,
        read_only: bool,
        deadline: timedelta,  # noqa: ARG003  a folder is read until it is read, or cancelled
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
        self._index = Index(self.base, self._rows)
        self._requeue = Requeue(name, policy, self._rows)
        self._mover = Mover(self._index.queue)

    # -- reading ---------------------------------------------------------------------------------

    def now(self) -> datetime:
        """Files have no clock but their host's."""
        return datetime.now(UTC)

    def page(self, request: PageRequest) -> Page:
        chosen = self._chosen(request.filter, request.sort, request.now, request.after, request.backward)
        found = list(islice(chosen, request.limit + 1))
        more, shown = len(found) > request.limit, found[: request.limit]
        if not shown:
            return Page((), None, None)
        if request.backward:
            shown.reverse()
        came = request.after is not None
        ahead, behind = (came, more) if request.backward else (more, came)
        return Page(
            tuple([item for item, _ in shown]),
            shown[-1][1] if ahead else None,
            shown[0][1] if behind else None,
        )

    def _chosen(
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
            found = Counter(item.condition for item, _ in self._chosen(filter, Sort(), now))
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
        return judge(task.facts, self.policy, now).condition

    def errors(self, filter: Filter, now: datetime, stop: Stop) -> Iterator[ErrorBatch]:
        chosen = self._chosen(filter, Sort(), now, stop=stop)
        while not stop.requested and (batch := list(islice(chosen, _BATCH))):
            yield ErrorBatch([(item.error, item.updated_at) for item, _ in batch], lambda at: at)

    def histogram(
        self,
        timeline: Timeline,
        filter: Filter,
        now: datetime,
        start: datetime,
        width: timedelta,
        buckets: int,
    ) -> Histogram:
        counts = [0] * (buckets + 2)
        edges = [start + width * n for n in range(buckets + 1)]
        for item, _ in self._chosen(filter, Sort(), now):
            at = item.verdict.next_retry_at if timeline is Timeline.NEXT_RETRY else item.updated_at
            if at is not None:
                counts[bisect_right(edges, at)] += 1
        return Histogram(start, width, tuple(counts[1:-1]), counts[0], counts[-1])

    def items(self, keys: Sequence[ItemKey], now: datetime) -> Mapping[ItemKey, Item]:
        return {ItemKey(self.name, (task.id,)): self._rows.item(task, now) for task in self._tasks(keys).values()}

    def _tasks(self, keys: Sequence[ItemKey]) -> dict[str, Task]:
        ids = [key.parts[0] for key in keys if key.backend == self.name and len(key.parts) == 1]
        with self._faults():
            return self._index.tasks(ids)

    def item(self, key: ItemKey, now: datetime) -> Detail:
        task = next(iter(self._tasks([key]).values()), None)
        if task is None:
            raise NoSuchItem(str(key))
        item = self._rows.item(task, now)
        with self._faults():
            native = Native.read(self._index, task)
        return Detail(
            item,
            full_error(native) or item.error,
            history(native, item, self._rows.time.decode),
            tuple(schedule_ahead(task.facts, self.policy, item.verdict, now)) if task.problem is None else (),
            native.shown,
            native.files,
        )

    def check(self, clock: Clock) -> Sequence[Finding]:
        with self._faults():
            return findings(self._index, self._mover, clock, self.now())

    def cancel(self) -> None:
        self._index.cancel()

    def close(self) -> None:
        """Folders are opened for each look and closed after it."""

    @contextmanager
    def _faults(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise BackendFault(error.strerror or str(error), where=self.place) from None

    # -- requeue ---------------------------------------------------------------------------------

    def drafts(
        self, wanted: Sequence[ItemKey] | Filter, sort: Sort, order: Order, now: datetime, stop: Stop
    ) -> Iterator[Sequence[Draft]]:
        if not isinstance(wanted, Filter):
            yield [self._requeue.draft(task, order, now) for task in self._tasks(wanted).values()]
            return
        chosen = self._chosen(wanted, sort, now, stop=stop)
        while not stop.requested and (batch := [item.key for item, _ in islice(chosen, _BATCH)]):
            tasks = self._tasks(batch)
            yield [
                self._requeue.draft(task, order, now) for key in batch if (task := tasks.get(key.parts[0])) is not None
            ]

    def after(self, change: Change, order: Order, at: datetime, due: datetime) -> Image:
        return self._requeue.after(change, order, at, due)

    def swap(self, changes: Sequence[Change], order: Order, authority: Authority) -> Sequence[Outcome]:  # noqa: ARG002
        if self._read_only:
            raise ReadOnlyRefused(where=self.place)
        moves = [Move(_id_of(change.keys[0]), change.before, change.after) for change in changes]
        try:
            with self._faults():
                return self._mover.swap(moves)
        finally:
            self._index.forget()

    def images(self, changes: Sequence[Change]) -> Sequence[Image | None]:
        """What a crash left half-moved is finished or taken back first, unless nothing may be written."""
        ids = [_id_of(change.keys[0]) for change in changes]
        with self._faults():
            if not self._read_only:
                self._mover.clear_up(ids)
            return self._mover.images(ids)

    # -- the queue's own loop ----------------------------------------------------------------------

    def run(self, handler: Callable[..., object], clock: Clock, stop: Stop, log: Callable[[str], None]) -> int:
        from plugins.file_queue.engine import FileTaskQueue

        if self._read_only:
            raise ReadOnlyRefused(where=self.place)
        with self._faults():
            self._begin(log)
            return contract.work(FileTaskQueue(self.base, self.policy, clock), handler, clock, stop, log)

    def _begin(self, log: Callable[[str], None]) -> None:
        """Clear up after whoever died here. While others move files that has to wait, but the work has not."""
        if left := self._mover.leftovers():
            try:
                self._mover.clear_up(left)
            except BackendBusy as busy:
                log(f"{len(left)} tasks are being moved, or were left so: {busy.detail}")


def _id_of(key: ItemKey) -> str:
    """The id a key names; none of our files has the empty one, which stands for every key that cannot be a name."""
    id = key.parts[0] if len(key.parts) == 1 else ""
    return "" if "/" in id or "\0" in id or len(os.fsencode(id)) > _LONGEST_ID else id


def _possible(task: Task) -> frozenset[Condition]:
    return _ALWAYS[Phase.UNKNOWN if task.problem is not None else task.facts.phase]
