"""For plugin authors: a clock to hold, a backend in memory, and the suite that holds a backend to the contract.

    def make() -> Harness:
        backend = MyBackend.open(...)
        return Harness(backend, put=lambda samples: my_rows(samples), clock=FrozenClock(), statuses=("ready", …))

    @pytest.mark.parametrize("promise", PROMISES)
    def test_contract(promise): exercise_backend(make, promise)

Everything is checked through the contract's own methods, on rows that cover every native status, odd
counters, times that are none, and hostile text. `exercise_backend(make)` alone checks all of it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any, NamedTuple

from console.core.backend import (
    COUNT_CAP,
    Backend,
    Count,
    ErrorBatch,
    Finding,
    Histogram,
    PageRequest,
    Severity,
    Timeline,
)
from console.core.faults import BackendFault, NoSuchItem
from console.core.item import ERROR_HEAD, Attempt, Condition, Detail, Item, ItemKey
from console.core.listing import rank
from console.core.policy import Facts, Phase, RetryPolicy, judge, schedule_ahead
from console.core.ports import Clock, Never, Stop
from console.core.query import (
    COMPARISONS,
    NATURAL,
    Cursor,
    Field,
    Filter,
    Glob,
    Op,
    Page,
    Sort,
    SortField,
    Term,
    Value,
)

__all__ = [
    "ALL", "PROMISES", "ContractBroken", "Flag", "FrozenClock", "Harness", "MemoryBackend", "Sample",
    "exercise_backend", "samples",
]

NOON = datetime(2026, 11, 10, 12, tzinfo=UTC)
ALL = Filter.parse("condition:*")


class FrozenClock:
    """Stands still until somebody sleeps or ticks; whoever sleeps is awake at once."""

    def __init__(self, at: datetime = NOON) -> None:
        self._at = at

    def now(self) -> datetime:
        return self._at

    def sleep(self, seconds: float) -> None:
        self.tick(timedelta(seconds=max(seconds, 0)))

    def tick(self, by: timedelta = timedelta(seconds=1)) -> datetime:
        self._at += by
        return self._at


class Flag:
    """A Stop that somebody raises, or that raises itself at the n-th look."""

    def __init__(self, after_looks: int | None = None) -> None:
        self._raised = False
        self._looks_left = after_looks

    def set(self) -> None:
        self._raised = True

    @property
    def requested(self) -> bool:
        if self._looks_left is not None:
            self._looks_left -= 1
            self._raised = self._raised or self._looks_left < 0
        return self._raised


# --- a backend in memory ------------------------------------------------------------------------------

_PHASES = {str(phase): phase for phase in Phase if phase is not Phase.UNKNOWN}


class MemoryBackend:
    """The whole reading contract over a dict of rows: id → status, attempts, due, error, type, created, updated,
    reference. The statuses are those of `Phase`; whatever else a row holds is shown, never a crash."""

    plugin = "memory"
    sorts = frozenset(SortField)

    def __init__(
        self, name: str = "memory", rows: Mapping[str, Mapping[str, Any]] | None = None,
        policy: RetryPolicy | None = None, clock: Clock | None = None,
    ) -> None:
        self.name = name
        self.place = "memory"
        self.rows = dict(rows or {})
        self.policy = policy or RetryPolicy(max_attempts=3)
        self.clock = clock or FrozenClock()
        self.broken: Exception | None = None
        """What every read raises from now on."""

    def check(self, clock: Clock) -> Sequence[Finding]:
        self._require_whole()
        agrees = abs(self.now() - clock.now()) <= timedelta(seconds=5)
        return [
            Finding(Severity.OK, "schema", "rows are dicts"),
            Finding(Severity.OK, "guard", "none needed: nothing is written"),
            Finding(Severity.OK if agrees else Severity.WARNING, "clock", "agrees" if agrees else "differs"),
        ]

    def now(self) -> datetime:
        return self.clock.now()

    def counts(self, filter: Filter, now: datetime, cap: int | None = COUNT_CAP) -> Mapping[Condition, Count]:
        found = Counter(item.condition for item in self._chosen(filter, now))
        return {
            wanted: Count(found[wanted]) if cap is None or found[wanted] <= cap else Count(cap, exact=False)
            for wanted in filter.conditions()
        }

    def page(self, request: PageRequest) -> Page:
        numbers = {id: number for number, id in enumerate(self.rows)}
        placed = [
            (_place(item, numbers[item.key.parts[0]], request.sort), item)
            for item in self._chosen(request.filter, request.now)
        ]
        placed.sort(key=lambda pair: _order(pair[0], request.sort), reverse=request.backward)
        past = [pair for pair in placed if request.after is None or _is_past(pair[0], request.after, request)]
        shown = past[: request.limit]
        if request.backward:
            shown.reverse()
        if not shown:
            return Page((), None, None)
        more, known = len(past) > request.limit, request.after is not None
        ahead, behind = (known, more) if request.backward else (more, known)
        return Page(
            tuple(item for _, item in shown), shown[-1][0] if ahead else None, shown[0][0] if behind else None
        )

    def errors(self, filter: Filter, now: datetime, stop: Stop) -> Iterator[ErrorBatch]:
        found = [(item.error, item.updated_at) for item in self._chosen(filter, now)]
        for start in range(0, len(found), 10):
            if stop.requested:
                return
            yield ErrorBatch(found[start : start + 10], lambda at: at)

    def histogram(
        self, timeline: Timeline, filter: Filter, now: datetime, start: datetime, width: timedelta, buckets: int
    ) -> Histogram:
        counts = Counter(
            min(max((at - start) // width, -1), buckets) for item in self._chosen(filter, now)
            if (at := _time_of(item, timeline)) is not None
        )
        return Histogram(start, width, tuple(counts[n] for n in range(buckets)), counts[-1], counts[buckets])

    def item(self, key: ItemKey, now: datetime) -> Detail:
        found = self.items([key], now).get(key)
        if found is None:
            raise NoSuchItem(str(key))
        row = self.rows[key.parts[0]]
        facts, _ = _facts(row)
        history = (Attempt(found.attempts, found.updated_at, "failed", found.error),) if found.attempts else ()
        native = tuple((name, None if value is None else str(value)) for name, value in row.items())
        error = row.get("error")
        return Detail(
            found, error if isinstance(error, str) else found.error, history,
            tuple(schedule_ahead(facts, self.policy, found.verdict, now)), native,
        )

    def items(self, keys: Sequence[ItemKey], now: datetime) -> Mapping[ItemKey, Item]:
        self._require_whole()
        known = (k for k in keys if k.backend == self.name and len(k.parts) == 1 and k.parts[0] in self.rows)
        return {key: self._read(key.parts[0], now) for key in known}

    def cancel(self) -> None:
        """Nothing in memory takes long enough."""

    def close(self) -> None:
        """Nothing is held."""

    def _require_whole(self) -> None:
        if self.broken is not None:
            raise self.broken

    def _chosen(self, filter: Filter, now: datetime) -> list[Item]:
        self._require_whole()
        wanted, rest = filter.conditions(), filter.without(Field.CONDITION)
        return [
            item for id in list(self.rows)
            if (item := self._read(id, now)).condition in wanted and rest.matches(item, now, self.references(item))
        ]

    def references(self, item: Item) -> Sequence[str]:
        reference = self.rows[item.key.parts[0]].get("reference")
        return [reference] if isinstance(reference, str) else []

    def _read(self, id: str, now: datetime) -> Item:
        row = self.rows[id]
        facts, notes = _facts(row)
        limit = self.policy.max_attempts if facts.max_attempts is None else facts.max_attempts
        return Item(
            ItemKey(self.name, (id,)), str(row.get("type") or ""), facts.native_status, facts.attempts, limit,
            judge(facts, self.policy, now), facts.error, facts.born_at, _time(row.get("updated")), now, notes=notes,
        )


def _place(item: Item, number: int, sort: Sort) -> Cursor:
    if sort.field is None:
        return Cursor(None, False, (number,))
    ranked = rank(sort)(item)
    return Cursor(ranked, ranked[0] == 1, (number,))


def _order(place: Cursor, sort: Sort) -> tuple[Any, Any]:
    """Ties go the same way as the sort: what was added last comes first when it is descending."""
    number: Any = place.key[0]
    return (place.value if sort.field else 0, -number if sort.descending else number)


def _is_past(place: Cursor, after: Cursor, request: PageRequest) -> bool:
    here, edge = _order(place, request.sort), _order(after, request.sort)
    return here < edge if request.backward else edge < here


def _time(raw: Any) -> datetime | None:
    return raw if isinstance(raw, datetime) and raw.tzinfo is not None else None


def _facts(row: Mapping[str, Any]) -> tuple[Facts, tuple[str, ...]]:
    raw, status = row.get("attempts"), row.get("status")
    attempts = max(raw, 0) if isinstance(raw, int) else 0
    times = {name: _time(row.get(name)) for name in ("due", "created", "updated")}
    notes = [f"{name} is not a time" for name, at in times.items() if at is None and row.get(name) is not None]
    if attempts != raw:
        notes.append(f"attempts is {raw!r}, read as {attempts}")
    phase = _PHASES.get(status, Phase.UNKNOWN) if isinstance(status, str) else Phase.UNKNOWN
    error = row.get("error")
    return Facts(
        phase, "" if status is None else str(status), attempts, max_attempts=row.get("max_attempts"),
        error=error[:ERROR_HEAD] if isinstance(error, str) else None,
        due_at=times["due"] if phase is Phase.READY else None, since=times["updated"], born_at=times["created"],
    ), tuple(notes)


def _time_of(item: Item, timeline: Timeline) -> datetime | None:
    return item.verdict.next_retry_at if timeline is Timeline.NEXT_RETRY else item.updated_at


# --- what a backend is given ----------------------------------------------------------------------------


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


def samples(statuses: Sequence[str], now: datetime, seed: int = 1) -> list[Sample]:
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
        for number, (status, attempts) in enumerate(product((*statuses, *_STRANGE), _COUNTERS))
    ]


# --- the suite ------------------------------------------------------------------------------------------


class ContractBroken(AssertionError):
    """A backend does not keep a promise of `console.core.backend`."""


def _require(kept: bool, *message: object) -> None:
    if not kept:
        raise ContractBroken(" ".join(map(str, message)))


class World:
    """A harness with rows in it, and all of its items as one long page shows them."""

    def __init__(self, make: Callable[[], Harness], every: int = 1) -> None:
        self.harness = make()
        self.backend = self.harness.backend
        self.clock = self.harness.clock
        self.now = self.clock.now()
        self.total = self.harness.put(samples(self.harness.statuses, self.now)[::every])
        self.items = list(self.listed(ALL))

    def listed(self, filter: Filter, sort: Sort = NATURAL) -> tuple[Item, ...]:
        page = self.backend.page(PageRequest(filter, self.now, sort, limit=100_000))
        _require(page.next is None and page.previous is None, "a page that holds everything has no neighbours")
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


def _same(found: Iterable[Item], expected: Iterable[Item], about: object) -> None:
    have, want = Counter(item.key for item in found), Counter(item.key for item in expected)
    if have != want:
        extra, lost = [str(k) for k in have - want][:3], [str(k) for k in want - have][:3]
        found_and_fit = f"{have.total()} items where {want.total()} fit"
        raise ContractBroken(f"{about}: {found_and_fit}; too many {extra}, missing {lost}")


def _conditions_partition(world: World) -> None:
    """Every row has exactly one condition, and the predicate that finds it is the verdict it is shown with."""
    _require(len(world.items) == world.total, f"{world.total} rows were written, condition:* lists {len(world.items)}")
    counts = world.backend.counts(ALL, world.now, None)
    _require(all(count.exact for count in counts.values()), "a count without a cap is exact")
    _require(sum(c.value for c in counts.values()) == world.total, "counts over all conditions add up to", world.total)
    for condition in Condition:
        asked = Filter.parse(f"condition:{condition}")
        judged = [item for item in world.items if item.condition is condition]
        _same(world.listed(asked), judged, f"condition:{condition}, by predicate and as judged")
        alone = world.backend.counts(asked, world.now, None)
        _require(alone == {condition: Count(len(judged))}, f"count of {condition} is {alone}, judged {len(judged)}")


def _counts_are_capped(world: World) -> None:
    exact = world.backend.counts(ALL, world.now, None)
    for cap in (1, 3, max(count.value for count in exact.values())):
        for condition, count in world.backend.counts(ALL, world.now, cap).items():
            full = exact[condition].value
            _require(count == (Count(full) if full <= cap else Count(cap, exact=False)),
                     f"{condition}: {count} (exact: {count.exact}) of {full} with a cap of {cap}")


def _pages_are_complete(world: World) -> None:
    """Every page size and order, both ways: each item once, always in the same order, what has no value last."""
    for sort in world.orders():
        name = str(sort) or f"its own order, descending {sort.descending}"
        whole = world.listed(ALL, sort)
        _same(whole, world.items, f"sorted by {name}")
        if sort.field is not None:
            ranks = list(map(rank(sort), whole))
            for one, other, item in zip(ranks, ranks[1:], whole[1:], strict=False):
                _require(not other < one, f"sorted by {name}: {item.key} comes too late")
        for limit in range(1, 8):
            for backward in (False, True):
                pages = [page.items for page in world.walk(sort, limit, backward)]
                _require(all(len(page) == limit for page in pages[:-1]), f"pages by {name} are full but the last")
                found = sum(pages[::-1] if backward else pages, ())
                _require(found == whole, f"pages of {limit} by {name}, backward {backward}, are not the whole list")


def _pages_lead_back(world: World) -> None:
    for sort in world.orders():
        request = PageRequest(ALL, world.now, sort, limit=4)
        first = world.backend.page(request)
        _require(first.previous is None, "nothing lies before the first page")
        second = world.backend.page(replace(request, after=first.next))
        repeated = world.backend.page(replace(request, after=first.next))
        _require(second == repeated, f"the same cursor by {sort} leads to the same page twice")
        back = world.backend.page(replace(request, after=second.previous, backward=True))
        _require(back.items == first.items, f"back from the second page by {sort} is not the first")
        again = world.backend.page(replace(request, after=back.next))
        _require(again.items == second.items, f"forward again by {sort} is not the second page")
        last = world.backend.page(replace(request, backward=True))
        _require(last.next is None, "nothing lies after the last page")
        _require(last.items == world.listed(ALL, sort)[-4:], f"the last page by {sort} is not the end of the list")


def _filters_agree(world: World) -> None:
    """A filter finds in the backend exactly what `Filter.matches` finds among the items."""
    for number, filter in enumerate((*_written_filters(world), *_random_filters(world, 50))):
        expected = world.fitting(filter)
        _same(world.listed(filter), expected, f"filter {str(filter)!r}")
        if number % 5:
            continue
        counted = sum(count.value for count in world.backend.counts(filter, world.now, None).values())
        _require(counted == len(expected), f"filter {str(filter)!r} counts {counted}, fits {len(expected)}")


def _written_filters(world: World) -> Iterator[Filter]:
    yield Filter()
    plain = next(item.key for item in world.items if item.key.id == "/".join(item.key.parts))
    texts = (
        "-condition:done", "condition:f*,*ing", "status:*", "-status:*", 'status:""', "type:*", 'type:""',
        "-type:ANALYZE_A",
        "error:*", "-error:*", 'error:""', "error~TIMEOUT", "error~é", "error~É", 'error~"100%_[a]?*"', "error~beyond",
        "recoverable:yes", "recoverable:no", "-recoverable:yes", "recoverable:yes,no", "attempts:0,3", "attempts>2",
        "-attempts<=4", "created>1h", "created<=1h", "updated<300s", "-updated>=1d", "next<0s", "next>0s", "-next<1h",
        "created>1000w", "updated>2026-01-01", "created<9999-12-31", "created>=0001-01-01", "ref-7", "REF-7",
        f"key:{plain}", f"key:{plain.id}", f"key~{plain.id}", f"key:{plain.id}*", f"-key:{plain.id}", "key:*",
    )
    yield from (Filter.parse(f"{text} condition:*" if "condition" not in text else text) for text in texts)
    for item in world.items[::20]:
        yield Filter((Term(Field.KEY, Op.EQUALS, (str(item.key),)), *ALL.terms))


def _random_filters(world: World, count: int, seed: int = 7) -> Iterator[Filter]:
    chance = random.Random(seed)
    for _ in range(count):
        terms = [_random_term(world, chance) for _ in range(chance.choice((1, 1, 2)))]
        yield Filter((*terms, *ALL.terms)) if chance.random() < 0.8 else Filter(tuple(terms))


def _random_term(world: World, chance: random.Random) -> Term:
    item, other = chance.choice(world.items), chance.choice(world.items)
    by = chance.choice((Field.TYPE, Field.STATUS, Field.ERROR, Field.ATTEMPTS, Field.CREATED, Field.UPDATED, Field.NEXT,
                        Field.TEXT))
    op = Op.CONTAINS
    values: tuple[Value, ...] = (_piece(item.error or item.type or "a", chance),)
    if by is Field.ATTEMPTS:
        op, values = chance.choice(list(COMPARISONS)), (min(item.attempts, 2**31 - 1),)
    elif by in (Field.CREATED, Field.UPDATED, Field.NEXT):
        at = item.updated_at or item.created_at or world.now
        ago = at - world.now if by is Field.NEXT else world.now - at
        op, values = chance.choice(list(COMPARISONS)), (chance.choice((at, ago)),)
    elif by is not Field.TEXT and chance.random() < 0.6:
        known = {Field.TYPE: (item.type, other.type), Field.STATUS: (item.native_status, other.native_status)}
        one, two = known.get(by, (item.error or "", other.error or ""))
        glob = Glob((one[: chance.randint(0, 3)], one[len(one) - chance.randint(0, min(3, len(one))) :]))
        op, values = Op.EQUALS, (chance.choice((one, glob)), two)
    return Term(by, op, values, negated=chance.random() < 0.3)


def _piece(text: str, chance: random.Random) -> Value:
    start = chance.randrange(len(text))
    piece = text[start : start + chance.randint(1, 8)]
    return chance.choice((piece, piece.swapcase() if piece.isascii() else piece))


def _errors_stream(world: World) -> None:
    for filter in (ALL, Filter(), Filter.parse("error~timeout condition:*")):
        batches = list(world.backend.errors(filter, world.now, Never()))
        read = Counter((error, batch.instant(at)) for batch in batches for error, at in batch.rows)
        shown = Counter((item.error, item.updated_at) for item in world.fitting(filter))
        _require(read == shown, f"the error stream of {str(filter)!r} is not that of its items:",
                 list((read - shown) + (shown - read))[:2])
    stopped = Flag()
    stopped.set()
    _require(not list(world.backend.errors(ALL, world.now, stopped)), "a stream that is stopped at once gives nothing")


def _histograms_add_up(world: World) -> None:
    width = timedelta(minutes=5)
    for timeline, filter, back in product(Timeline, (ALL, Filter(), Filter.parse("attempts>1")), (0, 5, 1000)):
        start = world.now - back * width
        found = world.backend.histogram(timeline, filter, world.now, start, width, 7)
        times = [at for item in world.fitting(filter) if (at := _time_of(item, timeline)) is not None]
        inside = Counter((at - start) // width for at in times)
        expected = Histogram(
            start, width, tuple(inside[n] for n in range(7)), sum(at < start for at in times),
            sum(at >= start + 7 * width for at in times),
        )
        _require(found == expected, f"histogram of {timeline} for {str(filter)!r}: {found}, by its items {expected}")


def _single_items_agree(world: World) -> None:
    unique = {item.key: item for item in world.items}
    _require(len(unique) == world.total, "every item has a key of its own")
    together = world.backend.items(list(unique), world.now)
    _require(dict(together) == unique, "items() and page() agree",
             [key for key, item in unique.items() if together.get(key) != item][:2])
    for key, item in unique.items():
        _require(ItemKey.parse(str(key)) == key, f"{key} reads back as itself")
        _require(key.backend == world.backend.name, f"{key} names its backend")
        detail = world.backend.item(key, world.now)
        _require(detail.item == item, f"item({key}) is what page() lists")
        begins = item.error is None or (detail.error or "").startswith(item.error)
        _require(begins, f"{key}: the full error begins as the list's")
        _require(bool(detail.native), f"{key} shows its native row")
    name = world.backend.name
    absent = [ItemKey(name, parts) for parts in (("no such",), (), ("a", "b"), ("\udcff",), ("",), ("x" * 5000,))]
    _require(not world.backend.items(absent, world.now), "keys of nothing find nothing")
    _require(not world.backend.items([], world.now), "no keys find nothing")
    for key in absent:
        try:
            world.backend.item(key, world.now)
        except NoSuchItem:
            continue
        raise ContractBroken(f"item({key}) finds something where nothing is")


def _only_faults_escape(world: World) -> None:
    """Whatever is asked, an answer or a BackendFault comes back."""
    early, late = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
    odd = ("\ud800", "\udcff", "\0", "x" * 100_000)
    asked = [
        *(Filter((Term(by, Op.CONTAINS, (text,)), *ALL.terms))
          for text in odd for by in (Field.TEXT, Field.KEY)),
        *(Filter((Term(Field.KEY, Op.EQUALS, (text,)),)) for text in odd),
        *(Filter((Term(by, Op.ABOVE, (value,)), *ALL.terms))
          for by in (Field.CREATED, Field.NEXT) for value in (early, late, timedelta.max, timedelta.min)),
        Filter(tuple(Term(Field.ERROR, Op.CONTAINS, (f"word {n}",)) for n in range(12))),
    ]
    for filter, now in (*((filter, world.now) for filter in asked), (ALL, early), (ALL, late)):
        try:
            world.backend.page(PageRequest(filter, now, limit=5))
            world.backend.counts(filter, now)
            for _ in world.backend.errors(filter, now, Never()):
                pass
        except BackendFault:
            continue
        except Exception as error:  # the promise is about every other exception
            asked_for = f"{str(filter)[:80]!r} at {now}"
            raise ContractBroken(f"{type(error).__name__} escapes for {asked_for}: {error}") from error


def _check_tells(world: World) -> None:
    findings = world.backend.check(_AtBackends(world.backend))
    subjects = {finding.subject for finding in findings}
    _require({"schema", "guard", "clock"} <= subjects, "check looks at schema, guard and clock, not only at", subjects)
    _require(all(f.message for f in findings), "every finding says something")
    _require(all(f.fix for f in findings if f.severity is not Severity.OK), "what is not ok comes with a fix")
    skewed = world.backend.check(_AtBackends(world.backend, timedelta(minutes=3)))
    told = any(f.subject == "clock" and f.severity is not Severity.OK for f in skewed)
    _require(told, "three minutes of skew are told")
    _require(world.backend.now().utcoffset() == timedelta(0), "the backend's clock is aware and in UTC")


class _AtBackends:
    """A clock that shows the backend's time, perhaps wrongly."""

    def __init__(self, backend: Backend, ahead: timedelta = timedelta(0)) -> None:
        self._backend = backend
        self._ahead = ahead

    def now(self) -> datetime:
        return self._backend.now() + self._ahead

    def sleep(self, seconds: float) -> None:
        """Nobody waits here."""


def _reading_changes_nothing(world: World) -> None:
    before = world.harness.fingerprint()
    for promise in (_conditions_partition, _errors_stream, _histograms_add_up, _single_items_agree, _check_tells):
        promise(world)
    _require(world.harness.fingerprint() == before, "reading leaves no trace in the store")


def _cancel_and_close_are_safe(world: World) -> None:
    world.backend.cancel()
    _require(list(world.listed(ALL)) == world.items, "a cancel while nothing is read spoils no later read")
    world.backend.close()
    world.backend.close()
    world.backend.cancel()
    with suppress(BackendFault):
        world.backend.counts(ALL, world.now)


PROMISES: Mapping[str, Callable[[World], None]] = {
    promise.__name__.removeprefix("_"): promise
    for promise in (
        _conditions_partition, _counts_are_capped, _pages_are_complete, _pages_lead_back, _filters_agree,
        _errors_stream, _histograms_add_up, _single_items_agree, _only_faults_escape, _check_tells,
        _reading_changes_nothing, _cancel_and_close_are_safe,
    )
}
"""Everything a backend promises about reading, by name."""

_SLOW = frozenset({"pages_are_complete", "pages_lead_back"})
"""Promises whose check pages through everything many times: on a part of the rows."""


def exercise_backend(make: Callable[[], Harness], *promises: str) -> None:
    """Hold a backend to some promises, or to all; `make` gives an empty one each time. Raises ContractBroken."""
    for name in promises or PROMISES:
        world = World(make, every=9 if name in _SLOW else 1)
        try:
            PROMISES[name](world)
        finally:
            world.backend.close()
