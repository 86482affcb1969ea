"""What a plugin's author gives the suite, and what the suite makes of it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import product
from typing import Any, NamedTuple

from console.core.backend import Backend, PageRequest
from console.core.item import ERROR_HEAD, Item, ItemKey
from console.core.query import NATURAL, Filter, Page, Sort
from console.testing.clock import FrozenClock

ALL = Filter.parse("condition:*")


class Sample(NamedTuple):
    """One row in nobody's format. A time is a datetime, None, or text that is none; a harness writes it natively."""

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
    """What happens to items behind the backend's back, and what is really stored of them: by the store's own
    means, never through the backend. Needed of a backend that hands items back."""

    rows: Callable[[], Mapping[ItemKey, object]]
    """Everything stored of each item; items that share a row share what is stored."""
    touch: Callable[[ItemKey], None]
    """The item's own system goes on with it, so that it is no longer what a plan has seen."""
    remove: Callable[[ItemKey], None]
    """The item is gone."""
    read_only: Callable[[], Backend]
    """The same store, opened again, unable to write."""
    payload: str = ""
    """A text that is part of every item's payload, where the system keeps one."""


@dataclass(frozen=True, slots=True)
class Harness:
    """An open backend over an empty store, and what the suite needs to know of it."""

    backend: Backend
    put: Callable[[Sequence[Sample]], int]
    """Write rows the way the system would hold them, bent where the store cannot; how many items that makes."""
    statuses: Sequence[str]
    """Every native status the plugin has a rule for."""
    clock: FrozenClock = field(default_factory=FrozenClock)
    references: Callable[[Item], Sequence[str]] = lambda _: ()
    """What a bare word also looks at, besides error and key."""
    fingerprint: Callable[[], object] = lambda: None
    """Changes when anything in the store changes."""
    store: Store | None = None
    """What `exercise_requeue` needs besides."""


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
    "x" * ERROR_HEAD + " beyond the head",
)
_TYPES = ("ANALYZE_A", "analyze_b", "", None, "t*[x]", "\u00fcber", "T")
_IDS = (
    "{}", "job-{}", "{}", "a/b {}%2F", "{}\u00fc\U0001f4a5", "'{}\";--", "\udcfe{}", "[@click=x]{}\n", "{}", "JOB-{}",
)


def samples(statuses: Sequence[str], now: datetime, seed: int = 1, first: int = 0) -> list[Sample]:
    """Rows of every status with every counter; times, errors, types and ids from the ordinary to the hostile."""
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
    """A backend does not keep a promise of `console.core.backend`."""


def require(kept: bool, *message: object) -> None:
    if not kept:
        raise ContractBroken(" ".join(map(str, message)))


class World:
    """A harness with rows in it, and all of its items as one long page shows them."""

    def __init__(self, make: Callable[[], Harness], every: int = 1, rounds: int = 1) -> None:
        self.harness = make()
        self.backend = self.harness.backend
        self.clock = self.harness.clock
        self.now = self.clock.now()
        rows: list[Sample] = []
        for seed in range(1, rounds + 1):
            rows += samples(self.harness.statuses, self.now, seed, len(rows))
        self.total = self.harness.put(rows[::every])
        self.items = list(self.listed(ALL))

    def listed(self, filter: Filter, sort: Sort = NATURAL) -> tuple[Item, ...]:
        page = self.backend.page(PageRequest(filter, self.now, sort, limit=100_000))
        require(page.next is None and page.previous is None, "a page that holds everything has no neighbours")
        return page.items

    def fitting(self, filter: Filter) -> list[Item]:
        wanted = filter.conditions()
        return [
            item for item in self.items
            if item.condition in wanted and filter.matches(item, self.now, self.harness.references(item))
        ]

    def walk(self, sort: Sort, limit: int, backward: bool, filter: Filter = ALL) -> Iterator[Page]:
        request = PageRequest(filter, self.now, sort, limit=limit, backward=backward)
        for _ in range(self.total + 2):
            page = self.backend.page(request)
            yield page
            cursor = page.previous if backward else page.next
            if cursor is None:
                return
            request = replace(request, after=cursor)
        raise ContractBroken(f"paging by {str(sort) or 'the own order'!r} never ends")

    def orders(self) -> list[Sort]:
        chosen = [Sort(by, descending) for by in sorted(self.backend.sorts) for descending in (False, True)]
        return [Sort(), Sort(None, descending=False), *chosen]


def same(found: Iterable[Item], expected: Iterable[Item], about: object) -> None:
    have, want = Counter(item.key for item in found), Counter(item.key for item in expected)
    if have != want:
        extra, lost = [str(k) for k in have - want][:3], [str(k) for k in want - have][:3]
        found_and_fit = f"{have.total()} items where {want.total()} fit"
        raise ContractBroken(f"{about}: {found_and_fit}; too many {extra}, missing {lost}")

