"""The plugin contract over the results of Celery in Redis. Nothing can be changed.

Publishing a task again cannot be guarded: Celery keeps no task that could be compared, and a message that a worker has
fetched cannot be taken back. So this plugin only reads.
"""

from __future__ import annotations

import re
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from threading import Lock
from typing import Any

from pydantic import BaseModel, ConfigDict

from console.core.backend import Abilities, Finding, Severity, UndoKind
from console.core.capabilities import FoundQueue
from console.core.faults import NoSuchItem
from console.core.item import Condition, Detail, Item, ItemKey
from console.core.policy import PolicyOverride, RetryPolicy
from console.core.ports import Clock
from console.core.query import Cursor
from console.keyed.reader import KeyedReader, Walk
from console.keyed.redis_checks import clock_finding, privileges_finding, version_finding
from console.keyed.redis_server import RedisServer, raw, text
from plugins.celery import tasks
from plugins.celery.tasks import CeleryRows, CeleryTask

_PREFIX = "celery-task-meta-"
CANNOT_CHANGE = Abilities(frozenset(), frozenset(), UndoKind.NONE, stores_due_time=False, guard=())
_SCAN, _BATCH = 5_000, 500
_MOST = 200_000
"""The largest number of results that are listed. If there are more, it is not defined which."""
_LEAST_LIFE, _COSTS = 2.0, 50
"""A list of the keys is used for two seconds, or for fifty times as long as it took to make."""


class Options(BaseModel):
    """The config keys of this plugin, besides `plugin` and `policy`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str
    """The result backend: `redis://host:6379/0`, `rediss://…` or `unix:///path/to/socket?db=0`."""
    key_prefix: str = ""
    """Celery's `global_keyprefix`, if the application sets one."""


class CeleryResults(KeyedReader[CeleryTask]):
    """The results of Celery's tasks on one Redis server."""

    options = Options
    plugin = "celery"
    schemes = ("redis", "rediss", "unix")
    sorts = frozenset[Any]()
    scan_limit = 20_000

    @classmethod
    def discover(cls, url: str, *, deadline: timedelta) -> Sequence[FoundQueue]:
        """The results of Celery on a server, if there are any."""
        opened = cls.open("celery", Options(url=url), PolicyOverride(), read_only=True, deadline=deadline)
        try:
            found = opened._listed()
        finally:
            opened.close()
        return [FoundQueue("celery", "Celery, results in Redis", {"url": url}, "It can only be read.")] if found else []

    @classmethod
    def systems(cls) -> Mapping[str, Abilities]:
        return {"Celery (Python), results in Redis": CANNOT_CHANGE}

    @classmethod
    def open(
        cls, name: str, options: Options, policy: PolicyOverride, *, read_only: bool, deadline: timedelta
    ) -> CeleryResults:
        del read_only  # it never writes
        server = RedisServer(options.url, read_only=True, deadline=deadline)
        return cls(name, server, policy.over(RetryPolicy()), options)

    def __init__(self, name: str, server: RedisServer, policy: RetryPolicy, options: Options) -> None:
        self.name = name
        self.policy = policy
        self.place = server.place
        self._server = server
        self._prefix = f"{options.key_prefix}{_PREFIX}"
        self._rows = CeleryRows(name, policy)
        self._ids: list[str] = []
        self._more = False
        self._read_at, self._cost = float("-inf"), 0.0
        self._lock = Lock()

    # -- reading -------------------------------------------------------------------------------------

    def now(self) -> datetime:
        return self._server.now()

    def _listed(self) -> list[str]:
        """The ids of all results in order. Redis has no order of keys, so they are listed and sorted here."""
        with self._lock:
            began = time.monotonic()
            if began - self._read_at > max(_LEAST_LIFE, _COSTS * self._cost):
                found, self._more = self._scanned()
                self._ids = sorted(found)
                self._read_at = time.monotonic()
                self._cost = self._read_at - began
            return self._ids

    def _scanned(self) -> tuple[set[str], bool]:
        pattern = re.sub(r"([\\*?\[\]])", r"\\\1", self._prefix) + "*"
        found: set[str] = set()
        cursor, cut = b"0", len(raw(self._prefix))
        while True:
            cursor, keys = self._server.call("SCAN", cursor, "MATCH", pattern, "COUNT", _SCAN)
            found.update(text(key[cut:]) for key in keys)
            if cursor == b"0" or len(found) >= _MOST:
                return found, cursor != b"0"

    def walk(self, walk: Walk) -> Iterator[tuple[CeleryTask, Cursor]]:
        ids = self._listed()
        forward = walk.sort.descending != walk.backward
        if walk.after is not None:
            edge = str(walk.after.key[0])
            ids = ids[bisect_right(ids, edge) :] if forward else ids[: bisect_left(ids, edge)]
        ordered = ids if forward else ids[::-1]
        for start in range(0, len(ordered), _BATCH):
            for task in self._read(ordered[start : start + _BATCH]):
                yield task, Cursor(None, False, (task.id,))

    def _read(self, ids: Sequence[str]) -> list[CeleryTask]:
        keys = [raw(self._prefix) + raw(id) for id in ids]
        replies = self._server.pipeline([command for key in keys for command in (("GET", key), ("PTTL", key))])
        values = zip(ids, replies[::2], replies[1::2], strict=True)
        return [CeleryTask(id, value, int(life)) for id, value, life in values if value is not None]

    def lookup(self, keys: Sequence[ItemKey]) -> Mapping[ItemKey, CeleryTask]:
        own = dict.fromkeys(key.parts[0] for key in keys if key.backend == self.name and len(key.parts) == 1)
        ids = [id for id in own if raw(id)]
        found: dict[ItemKey, CeleryTask] = {}
        for start in range(0, len(ids), _BATCH):
            found |= {ItemKey(self.name, (task.id,)): task for task in self._read(ids[start : start + _BATCH])}
        return found

    def to_item(self, entry: CeleryTask, now: datetime) -> Item:
        return self._rows.item(entry, now)

    def possible(self, entry: CeleryTask) -> frozenset[Condition]:
        return frozenset({entry.condition})

    def references(self, entry: CeleryTask, item: Item) -> Sequence[str]:
        return (item.type, entry.text("queue"))

    def whole_error(self, entry: CeleryTask, item: Item) -> str | None:  # noqa: ARG002
        return entry.error

    def item(self, key: ItemKey, now: datetime) -> Detail:
        task = self.lookup([key]).get(key)
        if task is None:
            raise NoSuchItem(str(key))
        return Detail(
            self.to_item(task, now), task.error, tasks.attempts_of(task), (), tasks.native(task),
            (("worker", task.text("worker")), ("queue", task.text("queue"))),
        )

    def is_costly(self, now: datetime) -> bool:  # noqa: ARG002  the contract passes it
        return True  # every figure reads every result

    def check(self, clock: Clock) -> Sequence[Finding]:
        return [
            version_finding(self._server) or self._schema(),
            Finding(Severity.OK, "guard", "nothing can be changed here: Celery cannot requeue a task safely"),
            clock_finding(self._server, clock),
            privileges_finding(self._server, read_only=True),
        ]

    def _schema(self) -> Finding:
        ids = self._listed()
        if not ids:
            fix = "Check the URL and its database number. Only tasks whose results are kept in Redis can be read."
            return Finding(Severity.WARNING, "schema", "no Celery result was found", fix)
        if self._more:
            fix = "Let results expire earlier (result_expires), or ignore those that nobody needs."
            return Finding(Severity.WARNING, "schema", f"more than {_MOST} results: some are not listed", fix)
        return Finding(Severity.OK, "schema", f"{len(ids)} results")

    def cancel(self) -> None:
        self._server.cancel()

    def close(self) -> None:
        self._server.close()
