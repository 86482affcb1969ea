"""What the author of a plugin gives to the contract suites, and the rows that the suites make."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import cycle, islice, product
from typing import Any, Generic, NamedTuple, Self, TypeVar

from console.core.backend import Backend, PageRequest
from console.core.excerpt import LIMIT as EXCERPT
from console.core.item import Item, ItemKey
from console.core.query import NATURAL, Filter, Page, Sort
from console.testing.clock import FrozenClock

ALL = Filter.parse("condition:*")
QUICK_ROWS = 3
"""Unless a suite is thorough, it writes every n-th row: each status with some of the counters."""
One = TypeVar("One")
Other = TypeVar("Other")


class Sample(NamedTuple):
    """One row, in no system's format. A time is a datetime, None, or text that is not a time. A harness stores it."""

    id: str
    status: str | None
    attempts: Any
    due: Any = None
    error: str | None = None
    created: Any = None
    updated: Any = None
    type: str | None = "job"
    reference: str | None = None
    max_attempts: Any = None
    timeout: Any = None


@dataclass(frozen=True, slots=True)
class Store:
    """Reads and changes the store without the backend. Needed for a backend that can requeue."""

    rows: Callable[[], Mapping[ItemKey, object]]
    """Everything that is stored of each item. Items that share a row have the same value."""
    touch: Callable[[ItemKey], None]
    """Change the item as its own system would, so that it differs from a plan."""
    remove: Callable[[ItemKey], None]
    """Delete the item."""
    read_only: Callable[[], Backend]
    """Open the same store again, read-only."""
    payload: str = ""
    """A text in the payload of every item, if the system stores a payload."""
    execute: Callable[[ItemKey, str | None], None] | None = None
    """Execute a requeued item as a worker of its system does, a second after the requeue: it succeeds, or fails with
    this error. A system that deletes finished items deletes it. Without this function, the suite cannot check that
    executions are noticed."""
    takes: Callable[[ItemKey], bool] | None = None
    """Whether a worker of its system takes the item, now or when it is due. Without this function, the suite believes
    what the backend says about its own items."""


@dataclass(frozen=True, slots=True)
class Harness:
    """An open backend on an empty store, and what the suites need to know about it."""

    backend: Backend
    put: Callable[[Sequence[Sample]], int]
    """Store these rows as the system would, changed where it cannot hold a value. Returns the number of items."""
    statuses: Sequence[str]
    """Every native status that the plugin knows."""
    clock: FrozenClock = field(default_factory=FrozenClock)
    references: Callable[[Item], Sequence[str]] = lambda _: ()
    """What a bare word in a filter looks at besides error and key."""
    fingerprint: Callable[[], object] = lambda: None
    """Changes when anything in the store changes."""
    store: Store | None = None
    """Needed by `exercise_requeue`."""


_STRANGE = (None, "", "failed?", "Failed", "ZZZ", "\u202eDELIAF", "\udcff")
_COUNTERS = (0, 1, 2, 3, 4, 5, -3, 2**31, 2**62, None, "many", " 2x", 1.5, "\u0663")
_LIMITS = (None, None, 3, 0, -1, "2", 2**40)
_AGES = (0, 0.000001, 1, 60, 299, 300, 360, 360.5, 3599, 3600, 3601, 86_400, 40 * 86_400, 400 * 86_400, -1, -90, -4000)
_NO_TIMES = (None, "soon", "", "0000-00-00", "2026-13-45", "12", "\udcff")
_HOSTILE = (
    "\x1b]52;c;aGk=\x07 [/x] [@click=app.quit] \u202e\u200b e\u0301 \u00e9 \U0001f4a5 'quoted\" 100%_[a]?*\\ \ttab"
)
_ERRORS = (
    None, "", "ERR_TIMEOUT: upstream timed out", "err_timeout: UPSTREAM timed out", "ERR_AUTH: Invalid API key",
    "ERR: invalid json", _HOSTILE, "two\nlines", "\u00c4RGER with \u00dcmlauts", "bytes \udcff\udc80 that are no text",
    "x" * EXCERPT + " in the middle of a long error " + "x" * EXCERPT + "\nat its end",
)
_TYPES = ("ANALYZE_A", "analyze_b", "", None, "t*[x]", "\u00fcber", "T")
_IDS = (
    "{}", "job-{}", "{}", "a/b {}%2F", "{}\u00fc\U0001f4a5", "'{}\";--", "\udcfe{}", "[@click=x]{}\n", "{}", "JOB-{}",
)


def samples(statuses: Sequence[str], now: datetime, seed: int = 1, first: int = 0) -> list[Sample]:
    """Rows with every status and every counter; their times, errors, types and ids may be ordinary or hostile."""
    chance = random.Random(seed)

    def some_time() -> Any:
        if chance.random() < 0.2:
            return chance.choice(_NO_TIMES)
        return now - timedelta(seconds=chance.choice(_AGES))

    return [
        Sample(
            chance.choice(_IDS).format(f"{number:04}"), status, attempts, some_time(), chance.choice(_ERRORS),
            some_time(), some_time(), chance.choice(_TYPES), chance.choice((None, "ref-7", "Ref-\u00df")),
            chance.choice(_LIMITS), chance.choice((None, 0, 30, 10**6, -5, 2**62)),
        )
        for number, (status, attempts) in enumerate(product((*statuses, *_STRANGE), _COUNTERS), first)
    ]


class ContractBroken(AssertionError):
    """A backend does not keep a promise of the contract in `console.core.backend`."""


def require(kept: bool, *message: object) -> None:
    if not kept:
        raise ContractBroken(" ".join(map(str, message)))


class World:
    """A harness filled with rows, and all of its items as one long page shows them."""

    def __init__(
        self, make: Callable[[], Harness], every: int = 1, rounds: int = 1, *, thorough: bool = False
    ) -> None:
        """Write every n-th sample row of this many rounds. With `thorough`, promises try more combinations."""
        self.thorough = thorough
        self.harness = make()
        self.backend = self.harness.backend
        self.clock = self.harness.clock
        self.now = self.clock.now()
        rows: list[Sample] = []
        for seed in range(1, rounds + 1):
            rows += samples(self.harness.statuses, self.now, seed, len(rows))
        self.total = self.harness.put(rows[::every])
        self.untouched = self.harness.fingerprint()
        self.items = list(self.listed(ALL))
        self.whole_errors = {
            item.key: self.backend.item(item.key, self.now).error
            for item in self.items if item.error is not None and len(item.error) > EXCERPT
        }
        """Of the items whose error is listed as an excerpt."""
        self.kept: set[object] = set()
        """The promises that have been checked in this world."""

    def listed(self, filter: Filter, sort: Sort = NATURAL) -> tuple[Item, ...]:
        page = self.backend.page(PageRequest(filter, self.now, sort, limit=100_000))
        require(page.next is None and page.previous is None, "a page with all items has a next or previous page")
        return page.items

    def fitting(self, filter: Filter) -> list[Item]:
        wanted = filter.conditions()
        return [
            item for item in self.items
            if item.condition in wanted and filter.matches(self._whole(item), self.now, self.harness.references(item))
        ]

    def _whole(self, item: Item) -> Item:
        return item._replace(error=self.whole_errors.get(item.key, item.error))

    def walk(self, sort: Sort, limit: int, backward: bool, filter: Filter = ALL) -> Iterator[Page]:
        request = PageRequest(filter, self.now, sort, limit=limit, backward=backward)
        for _ in range(self.total + 2):
            page = self.backend.page(request)
            yield page
            cursor = page.previous if backward else page.next
            if cursor is None:
                return
            request = replace(request, after=cursor)
        raise ContractBroken(f"paging by {str(sort) or 'its own order'!r} never ends")

    def orders(self) -> list[Sort]:
        chosen = [Sort(by, descending) for by in sorted(self.backend.sorts) for descending in (False, True)]
        return [Sort(), Sort(None, descending=False), *chosen]

    def combinations(self, ones: Sequence[One], others: Sequence[Other]) -> list[tuple[One, Other]]:
        """Each with each when thorough; otherwise each of both at least once."""
        if self.thorough:
            return list(product(ones, others))
        count = max(len(ones), len(others)) if ones and others else 0
        return list(islice(zip(cycle(ones), cycle(others), strict=False), count))


W = TypeVar("W", bound=World)


class Suite(Generic[W]):
    """Checks the promises of one backend, one at a time. Promises that only read share a world.

    Use it as a context manager, so that the shared worlds are closed.
    """

    def __init__(self, make: Callable[[], Harness], *, thorough: bool = False) -> None:
        """`make` opens the backend over an empty store each time it is called."""
        self.make = make
        self.thorough = thorough
        self._shared: dict[Hashable, W] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for world in self._shared.values():
            world.backend.close()
        self._shared.clear()

    def run(self, promise: Callable[[W], None], build: Callable[[], W], shared_as: Hashable | None) -> None:
        """Run a promise in a new world, or in the one that has been built under this name."""
        world = self._shared.pop(shared_as, None) or build()
        try:
            promise(world)
        except BaseException:
            world.backend.close()
            raise
        world.kept.add(promise)
        if shared_as is None:
            world.backend.close()
        else:
            self._shared[shared_as] = world


def same(found: Iterable[Item], expected: Iterable[Item], about: object) -> None:
    have, want = Counter(item.key for item in found), Counter(item.key for item in expected)
    if have != want:
        extra, lost = [str(k) for k in have - want][:3], [str(k) for k in want - have][:3]
        found_and_fit = f"{have.total()} items instead of {want.total()}"
        raise ContractBroken(f"{about}: {found_and_fit}; too many {extra}, missing {lost}")

