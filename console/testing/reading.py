"""What every backend promises about reading."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import cycle, product

from console.core.backend import Backend, Buckets, Count, Histogram, PageRequest, Severity, Timeline
from console.core.excerpt import excerpt
from console.core.faults import BackendFault, NoSuchItem
from console.core.item import Condition, Item, ItemKey
from console.core.listing import rank
from console.core.ports import Never
from console.core.query import AHEAD, COMPARISONS, Field, Filter, Glob, Op, Term, Value
from console.testing.clock import StopFlag
from console.testing.harness import ALL, QUICK_ROWS, ContractBroken, Harness, Suite, World, require, same


def _conditions_partition(world: World) -> None:
    """Every row has exactly one condition, and a filter by condition finds it under the one it is shown with."""
    require(len(world.items) == world.total, f"{world.total} rows were written, condition:* lists {len(world.items)}")
    counts = world.backend.counts(ALL, world.now, None)
    require(all(count.exact for count in counts.values()), "a count without a cap is not exact")
    require(sum(c.value for c in counts.values()) == world.total, "the counts do not add up to", world.total)
    for condition in Condition:
        asked = Filter.parse(f"condition:{condition}")
        judged = [item for item in world.items if item.condition is condition]
        same(world.listed(asked), judged, f"condition:{condition}, by predicate and as judged")
        alone = world.backend.counts(asked, world.now, None)
        require(alone == {condition: Count(len(judged))}, f"count of {condition} is {alone}, judged {len(judged)}")


def _counts_are_capped(world: World) -> None:
    exact = world.backend.counts(ALL, world.now, None)
    for cap in (1, 3, max(count.value for count in exact.values())):
        for condition, count in world.backend.counts(ALL, world.now, cap).items():
            full = exact[condition].value
            require(count == (Count(full) if full <= cap else Count(cap, exact=False)),
                     f"{condition}: {count} (exact: {count.exact}) of {full} with a cap of {cap}")


_QUICK_WALKS = ((1, False), (7, True), (7, False), (1, True))
"""Page size and direction for each order in turn, when not each is tried with each."""


def _pages_are_complete(world: World) -> None:
    """Pages of any size, in both directions: each item once, in the same order, items without a value last."""
    for number, sort in enumerate(world.orders()):
        name = str(sort) or f"its own order, descending {sort.descending}"
        whole = world.listed(ALL, sort)
        same(whole, world.items, f"sorted by {name}")
        if sort.field is not None:
            ranks = list(map(rank(sort), whole))
            for one, other, item in zip(ranks, ranks[1:], whole[1:], strict=False):
                require(not other < one, f"sorted by {name}: {item.key} is out of order")
        every_walk = list(product(range(1, 8), (False, True)))
        for limit, backward in every_walk if world.thorough else [_QUICK_WALKS[number % 4]]:
            pages = [page.items for page in world.walk(sort, limit, backward)]
            require(
                all(len(page) == limit for page in pages[:-1]), f"a page by {name} that is not the last is not full"
            )
            found = sum(pages[::-1] if backward else pages, ())
            require(found == whole, f"pages of {limit} by {name}, backward {backward}, are not the whole list")


def _pages_lead_back(world: World) -> None:
    every_order = world.orders()
    for sort in every_order if world.thorough else [*every_order[::4], *every_order[3::4]]:
        request = PageRequest(ALL, world.now, sort, limit=4)
        first = world.backend.page(request)
        require(first.previous is None, "the first page has a previous one")
        second = world.backend.page(replace(request, after=first.next))
        repeated = world.backend.page(replace(request, after=first.next))
        require(second == repeated, f"the same cursor by {sort} leads to different pages")
        back = world.backend.page(replace(request, after=second.previous, backward=True))
        require(back.items == first.items, f"back from the second page by {sort} is not the first")
        again = world.backend.page(replace(request, after=back.next))
        require(again.items == second.items, f"forward again by {sort} is not the second page")
        last = world.backend.page(replace(request, backward=True))
        require(last.next is None, "the last page has a next one")
        require(last.items == world.listed(ALL, sort)[-4:], f"the last page by {sort} is not the end of the list")


def _filters_agree(world: World) -> None:
    """A filter selects the same items in the backend as `Filter.matches` does in Python."""
    for number, filter in enumerate((*_written_filters(world), *_random_filters(world, 50 if world.thorough else 10))):
        expected = world.fitting(filter)
        same(world.listed(filter), expected, f"filter {str(filter)!r}")
        if number % 5:
            continue
        counted = sum(count.value for count in world.backend.counts(filter, world.now, None).values())
        require(counted == len(expected), f"filter {str(filter)!r} counts {counted} items, but {len(expected)} match")


def _written_filters(world: World) -> Iterator[Filter]:
    yield Filter()
    plain = next(item.key for item in world.items if item.key.id == "/".join(item.key.parts))
    texts = (
        "-condition:done", "condition:f*,*ing", "status:*", "-status:*", 'status:""', "type:*", 'type:""',
        "-type:ANALYZE_A",
        "error:*", "-error:*", 'error:""', "error~TIMEOUT", "error~é", "error~É", 'error~"100%_[a]?*"',
        'error~"of a long error"',
        'error~"at its end"',
        "recoverable:yes", "recoverable:no", "-recoverable:yes", "recoverable:yes,no", "attempts:0,3", "attempts>2",
        "-attempts<=4", "created>1h", "created<=1h", "updated<300s", "-updated>=1d", "next<0s", "next>0s", "-next<1h",
        "expires<6h", "-expires<1d",
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
                        Field.EXPIRES, Field.TEXT))
    op = Op.CONTAINS
    values: tuple[Value, ...] = (_piece(item.error or item.type or "a", chance),)
    if by is Field.ATTEMPTS:
        op, values = chance.choice(list(COMPARISONS)), (min(item.attempts, 2**31 - 1),)
    elif by in (Field.CREATED, Field.UPDATED, *AHEAD):
        at = item.updated_at or item.created_at or world.now
        ago = at - world.now if by in AHEAD else world.now - at
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
        require(read == shown, f"the error stream of {str(filter)!r} is not that of its items:",
                 list((read - shown) + (shown - read))[:2])
    stopped = StopFlag()
    stopped.set()
    require(
        not list(world.backend.errors(ALL, world.now, stopped)), "errors() gives rows although a stop was requested"
    )


def _histograms_add_up(world: World) -> None:
    width = timedelta(minutes=5)
    for timeline, filter, back in product(Timeline, (ALL, Filter(), Filter.parse("attempts>1")), (0, 5, 1000)):
        start = world.now - back * width
        found = world.backend.histogram(timeline, filter, world.now, Buckets(start, width, 7))
        times = [at for item in world.fitting(filter) if (at := _time(item, timeline)) is not None]
        inside = Counter((at - start) // width for at in times)
        expected = Histogram(
            start, width, tuple(inside[n] for n in range(7)), sum(at < start for at in times),
            sum(at >= start + 7 * width for at in times),
        )
        require(found == expected, f"histogram of {timeline} for {str(filter)!r}: {found}, by its items {expected}")


def _time(item: Item, timeline: Timeline) -> datetime | None:
    return item.verdict.next_retry_at if timeline is Timeline.NEXT_RETRY else item.updated_at


def _single_items_agree(world: World) -> None:
    unique = {item.key: item for item in world.items}
    require(len(unique) == world.total, "two items have the same key")
    together = world.backend.items(list(unique), world.now)
    require(dict(together) == unique, "items() and page() differ:",
             [key for key, item in unique.items() if together.get(key) != item][:2])
    for key, item in list(unique.items())[:: 1 if world.thorough else 4]:
        require(ItemKey.parse(str(key)) == key, f"{key} does not parse back to itself")
        require(key.backend == world.backend.name, f"{key} does not name its backend")
        detail = world.backend.item(key, world.now)
        require(detail.item == item, f"item({key}) differs from what page() lists")
        shown = item.error is None or excerpt(detail.error or "") == item.error
        require(shown, f"{key}: the list does not show an excerpt of the full error")
        require(bool(detail.native), f"{key} has no native row")
    name = world.backend.name
    absent = [ItemKey(name, parts) for parts in (("no such",), (), ("a", "b"), ("\udcff",), ("",), ("x" * 5000,))]
    require(not world.backend.items(absent, world.now), "items() finds keys that do not exist")
    require(not world.backend.items([], world.now), "items() without keys finds something")
    for key in absent:
        try:
            world.backend.item(key, world.now)
        except NoSuchItem:
            continue
        raise ContractBroken(f"item({key}) finds something where nothing is")


def _only_faults_escape(world: World) -> None:
    """Odd questions get an answer or a BackendFault, never another exception."""
    early, late = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
    odd = ("\ud800", "\udcff", "\0", "x" * 100_000)
    asked = [
        *(Filter((Term(by, Op.CONTAINS, (text,)), *ALL.terms))
          for text in odd for by in (Field.TEXT, Field.KEY)),
        *(Filter((Term(Field.KEY, Op.EQUALS, (text,)),)) for text in odd),
        *(Filter((Term(by, Op.ABOVE, (value,)), *ALL.terms))
          for by in (Field.CREATED, *AHEAD) for value in (early, late, timedelta.max, timedelta.min)),
        Filter(tuple(Term(Field.ERROR, Op.CONTAINS, (f"word {n}",)) for n in range(12))),
    ]
    questions: tuple[Callable[[Filter, datetime], object], ...] = (
        lambda filter, now: world.backend.page(PageRequest(filter, now, limit=5)),
        world.backend.counts,
        lambda filter, now: list(world.backend.errors(filter, now, Never())),
    )
    moments = [*((filter, world.now) for filter in asked), (ALL, early), (ALL, late)]
    for (filter, now), ask in product(moments, questions) if world.thorough else zip(moments, cycle(questions)):
        try:
            ask(filter, now)
        except BackendFault:
            continue
        except Exception as error:  # the promise is about every other exception
            asked_for = f"{str(filter)[:80]!r} at {now}"
            raise ContractBroken(f"{type(error).__name__} escapes for {asked_for}: {error}") from error


def _check_reports(world: World) -> None:
    findings = world.backend.check(_AtBackends(world.backend))
    subjects = {finding.subject for finding in findings}
    require({"schema", "guard", "clock"} <= subjects, "check() has to report on schema, guard and clock:", subjects)
    require(all(f.message for f in findings), "a finding has no message")
    require(all(f.fix for f in findings if f.severity is not Severity.OK), "a finding that is not OK has no fix")
    skewed = world.backend.check(_AtBackends(world.backend, timedelta(minutes=3)))
    reported = any(f.subject == "clock" and f.severity is not Severity.OK for f in skewed)
    require(reported, "check() does not report a clock that differs by three minutes")
    require(world.backend.now().utcoffset() == timedelta(0), "now() is not an aware time in UTC")


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
    for promise in (_conditions_partition, _errors_stream, _histograms_add_up, _single_items_agree, _check_reports):
        if world.thorough or promise not in world.kept:
            promise(world)
    require(world.harness.fingerprint() == world.untouched, "reading changed the store")


def _cancel_and_close_are_safe(world: World) -> None:
    world.backend.cancel()
    require(list(world.listed(ALL)) == world.items, "a cancel while nothing is read breaks the next read")
    world.backend.close()
    world.backend.close()
    world.backend.cancel()
    with suppress(BackendFault):
        world.backend.counts(ALL, world.now)


PROMISES: Mapping[str, Callable[[World], None]] = {
    promise.__name__.removeprefix("_"): promise
    for promise in (
        _conditions_partition, _counts_are_capped, _pages_are_complete, _pages_lead_back, _filters_agree,
        _errors_stream, _histograms_add_up, _single_items_agree, _only_faults_escape, _check_reports,
        _reading_changes_nothing, _cancel_and_close_are_safe,
    )
}
"""Every promise about reading, by name."""

_ROWS = {"pages_are_complete": 9, "pages_lead_back": 9}
"""Promises that page through everything many times use every n-th row only."""

_CLOSES = frozenset({"cancel_and_close_are_safe"})


class BackendSuite(Suite[World]):
    """Checks what a backend promises about reading."""

    def check(self, name: str) -> None:
        """Check the promise of this name. Raises ContractBroken."""
        every = _ROWS.get(name, 1 if self.thorough else QUICK_ROWS)
        self.run(
            PROMISES[name], lambda: World(self.make, every, thorough=self.thorough),
            None if name in _CLOSES else every,
        )


def exercise_backend(make: Callable[[], Harness], *promises: str, thorough: bool = False) -> None:
    """Check some promises of a backend, or all; `make` opens an empty one each time. Raises ContractBroken."""
    with BackendSuite(make, thorough=thorough) as suite:
        for name in promises or PROMISES:
            suite.check(name)
