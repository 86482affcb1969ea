"""What every backend promises about reading."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product

from console.core.backend import Backend, Count, Histogram, PageRequest, Severity, Timeline
from console.core.faults import BackendFault, NoSuchItem
from console.core.item import Condition, ItemKey
from console.core.listing import rank
from console.core.ports import Never
from console.core.query import COMPARISONS, Field, Filter, Glob, Op, Term, Value
from console.testing.clock import Flag
from console.testing.harness import ALL, ContractBroken, Harness, World, require, same
from console.testing.memory import time_of


def _conditions_partition(world: World) -> None:
    """Every row has exactly one condition, and the predicate that finds it is the verdict it is shown with."""
    require(len(world.items) == world.total, f"{world.total} rows were written, condition:* lists {len(world.items)}")
    counts = world.backend.counts(ALL, world.now, None)
    require(all(count.exact for count in counts.values()), "a count without a cap is exact")
    require(sum(c.value for c in counts.values()) == world.total, "counts over all conditions add up to", world.total)
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


def _pages_are_complete(world: World) -> None:
    """Every page size and order, both ways: each item once, always in the same order, what has no value last."""
    for sort in world.orders():
        name = str(sort) or f"its own order, descending {sort.descending}"
        whole = world.listed(ALL, sort)
        same(whole, world.items, f"sorted by {name}")
        if sort.field is not None:
            ranks = list(map(rank(sort), whole))
            for one, other, item in zip(ranks, ranks[1:], whole[1:], strict=False):
                require(not other < one, f"sorted by {name}: {item.key} comes too late")
        for limit in range(1, 8):
            for backward in (False, True):
                pages = [page.items for page in world.walk(sort, limit, backward)]
                require(all(len(page) == limit for page in pages[:-1]), f"pages by {name} are full but the last")
                found = sum(pages[::-1] if backward else pages, ())
                require(found == whole, f"pages of {limit} by {name}, backward {backward}, are not the whole list")


def _pages_lead_back(world: World) -> None:
    for sort in world.orders():
        request = PageRequest(ALL, world.now, sort, limit=4)
        first = world.backend.page(request)
        require(first.previous is None, "nothing lies before the first page")
        second = world.backend.page(replace(request, after=first.next))
        repeated = world.backend.page(replace(request, after=first.next))
        require(second == repeated, f"the same cursor by {sort} leads to the same page twice")
        back = world.backend.page(replace(request, after=second.previous, backward=True))
        require(back.items == first.items, f"back from the second page by {sort} is not the first")
        again = world.backend.page(replace(request, after=back.next))
        require(again.items == second.items, f"forward again by {sort} is not the second page")
        last = world.backend.page(replace(request, backward=True))
        require(last.next is None, "nothing lies after the last page")
        require(last.items == world.listed(ALL, sort)[-4:], f"the last page by {sort} is not the end of the list")


def _filters_agree(world: World) -> None:
    """A filter finds in the backend exactly what `Filter.matches` finds among the items."""
    for number, filter in enumerate((*_written_filters(world), *_random_filters(world, 50))):
        expected = world.fitting(filter)
        same(world.listed(filter), expected, f"filter {str(filter)!r}")
        if number % 5:
            continue
        counted = sum(count.value for count in world.backend.counts(filter, world.now, None).values())
        require(counted == len(expected), f"filter {str(filter)!r} counts {counted}, fits {len(expected)}")


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
        require(read == shown, f"the error stream of {str(filter)!r} is not that of its items:",
                 list((read - shown) + (shown - read))[:2])
    stopped = Flag()
    stopped.set()
    require(not list(world.backend.errors(ALL, world.now, stopped)), "a stream that is stopped at once gives nothing")


def _histograms_add_up(world: World) -> None:
    width = timedelta(minutes=5)
    for timeline, filter, back in product(Timeline, (ALL, Filter(), Filter.parse("attempts>1")), (0, 5, 1000)):
        start = world.now - back * width
        found = world.backend.histogram(timeline, filter, world.now, start, width, 7)
        times = [at for item in world.fitting(filter) if (at := time_of(item, timeline)) is not None]
        inside = Counter((at - start) // width for at in times)
        expected = Histogram(
            start, width, tuple(inside[n] for n in range(7)), sum(at < start for at in times),
            sum(at >= start + 7 * width for at in times),
        )
        require(found == expected, f"histogram of {timeline} for {str(filter)!r}: {found}, by its items {expected}")


def _single_items_agree(world: World) -> None:
    unique = {item.key: item for item in world.items}
    require(len(unique) == world.total, "every item has a key of its own")
    together = world.backend.items(list(unique), world.now)
    require(dict(together) == unique, "items() and page() agree",
             [key for key, item in unique.items() if together.get(key) != item][:2])
    for key, item in unique.items():
        require(ItemKey.parse(str(key)) == key, f"{key} reads back as itself")
        require(key.backend == world.backend.name, f"{key} names its backend")
        detail = world.backend.item(key, world.now)
        require(detail.item == item, f"item({key}) is what page() lists")
        begins = item.error is None or (detail.error or "").startswith(item.error)
        require(begins, f"{key}: the full error begins as the list's")
        require(bool(detail.native), f"{key} shows its native row")
    name = world.backend.name
    absent = [ItemKey(name, parts) for parts in (("no such",), (), ("a", "b"), ("\udcff",), ("",), ("x" * 5000,))]
    require(not world.backend.items(absent, world.now), "keys of nothing find nothing")
    require(not world.backend.items([], world.now), "no keys find nothing")
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
    require({"schema", "guard", "clock"} <= subjects, "check looks at schema, guard and clock, not only at", subjects)
    require(all(f.message for f in findings), "every finding says something")
    require(all(f.fix for f in findings if f.severity is not Severity.OK), "what is not ok comes with a fix")
    skewed = world.backend.check(_AtBackends(world.backend, timedelta(minutes=3)))
    told = any(f.subject == "clock" and f.severity is not Severity.OK for f in skewed)
    require(told, "three minutes of skew are told")
    require(world.backend.now().utcoffset() == timedelta(0), "the backend's clock is aware and in UTC")


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
    require(world.harness.fingerprint() == before, "reading leaves no trace in the store")


def _cancel_and_close_are_safe(world: World) -> None:
    world.backend.cancel()
    require(list(world.listed(ALL)) == world.items, "a cancel while nothing is read spoils no later read")
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
