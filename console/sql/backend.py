"""What every SQL plugin's backend is made of; the plugin adds its checks, its details and its writes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from threading import RLock

from console.core.backend import (
    COUNT_CAP,
    Count,
    ErrorBatch,
    Finding,
    Histogram,
    PageRequest,
    Severity,
    Timeline,
)
from console.core.faults import WrongSchema
from console.core.item import Condition, Item, ItemKey
from console.core.policy import RetryPolicy
from console.core.ports import Clock, Stop
from console.core.query import Filter, Page, SortField
from console.core.text import countdown
from console.sql.database import Database
from console.sql.layout import Layout
from console.sql.reader import Reader

CLOCK_SKEW = timedelta(seconds=5)


class SqlBackend(ABC):
    """The reading half of the contract. Nothing is opened before the first read, and a failed attempt to
    attach is made again at the next one: a database that comes back is found again."""

    sorts = frozenset(SortField)

    def __init__(self, name: str, plugin: str, place: str, database: Database, policy: RetryPolicy) -> None:
        self.name = name
        self.plugin = plugin
        self.place = place
        self.policy = policy
        self._database = database
        self._attached: Reader | None = None
        self._attaching = RLock()

    @abstractmethod
    def _layout(self) -> Layout:
        """Look at the tables and say how to read them; raises WrongSchema when they are others."""

    @property
    def _reader(self) -> Reader:
        """Attached once, whoever asks first: what a plugin keeps of its tables fits this reader's statements only."""
        if self._attached is None:
            with self._attaching:
                if self._attached is None:
                    self._attached = Reader(self.name, self._database, self._layout(), self.policy)
        return self._attached

    @property
    def reader(self) -> Reader:
        """What reads the tables, for a plugin's own engine and checks."""
        return self._reader

    def now(self) -> datetime:
        return self._database.now()

    def counts(self, filter: Filter, now: datetime, cap: int | None = COUNT_CAP) -> Mapping[Condition, Count]:
        return self._reader.counts(filter, now, cap)

    def page(self, request: PageRequest) -> Page:
        return self._reader.page(request)

    def errors(self, filter: Filter, now: datetime, stop: Stop) -> Iterator[ErrorBatch]:
        return self._reader.errors(filter, now, stop)

    def histogram(
        self,
        timeline: Timeline,
        filter: Filter,
        now: datetime,
        start: datetime,
        width: timedelta,
        buckets: int,
    ) -> Histogram:
        return self._reader.histogram(timeline, filter, now, start, width, buckets)

    def items(self, keys: Sequence[ItemKey], now: datetime) -> Mapping[ItemKey, Item]:
        return self._reader.items(keys, now)

    def cancel(self) -> None:
        self._database.cancel()

    def close(self) -> None:
        self._database.close()


def clock_finding(database: Database, clock: Clock) -> Finding:
    """Whether the backend's clock and ours agree well enough to speak of due times."""
    skew = database.now() - clock.now()
    if abs(skew) <= CLOCK_SKEW:
        return Finding(Severity.OK, "clock", "agrees with this machine's")
    direction = "ahead of" if skew > timedelta(0) else "behind"
    return Finding(
        Severity.WARNING,
        "clock",
        f"is {countdown(abs(skew))} {direction} this machine's",
        "Due times and ages are read by the backend's clock; set both by NTP.",
    )


def require_columns(database: Database, table: str, wanted: Sequence[str]) -> None:
    """A table without the columns a plugin reads is some other table: say which are missing."""
    present = database.columns(table)
    if not present:
        raise WrongSchema(
            f"there is no table {table!r}",
            where=database.place,
            fix="Check the url, the dialect and the table name in the config.",
        )
    if missing := [column for column in wanted if column not in present]:
        raise WrongSchema(
            f"table {table!r} has no column {', '.join(missing)}",
            where=database.place,
            fix=f"It has {', '.join(present)}.",
        )
