"""One list over several backends: order, signatures, and a backend that fails alone."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from console.core.backend import PageRequest
from console.core.budget import ReadCosts, charge, hold_limit
from console.core.causes import Causes
from console.core.faults import DeadlineExceeded, QueryFault, ReadTooLong, Unreachable, UsageFault
from console.core.item import Item
from console.core.listing import Listing, page_of, rank, upcoming
from console.core.query import Filter, Sort, SortField
from console.core.signature import signature_of
from console.testing import ALL, NOON, MemoryReader, StopFlag

MINUTE = timedelta(minutes=1)


class Breakable(MemoryReader):
    """A queue that can be made to fail."""

    broken: Exception | None = None

    def _matching(self, filter: Filter, now: datetime) -> list[Item]:
        if self.broken is not None:
            raise self.broken
        return super()._matching(filter, now)


def backend(name: str, *ages: float | None, **common: Any) -> Breakable:
    """Failed rows, updated so many minutes ago."""
    rows = {
        f"{name}{n}": {
            "status": "failed", "attempts": n, "error": f"ERR: cause {'abc'[n % 3]} of {n}", "type": "t",
            "updated": None if age is None else NOON - age * MINUTE, **common,
        }
        for n, age in enumerate(ages)
    }
    return Breakable(name, rows)


def ids(items: Any) -> list[str]:
    return [item.key.id for item in items]


def test_without_a_sort_backends_come_one_after_another_each_in_its_own_order() -> None:
    listing = Listing([backend("b", 1, 2), backend("a", 3, 4)], Filter(), NOON)
    assert ids(listing) == ["b1", "b0", "a1", "a0"]
    assert listing.answered == {"a", "b"}


@pytest.mark.parametrize(
    ("descending", "order"),
    [(True, ["a1", "b0", "a0", "b2", "b1", "a2"]), (False, ["b2", "a0", "b0", "a1", "b1", "a2"])],
)
def test_a_sort_merges_backends_and_what_has_no_value_comes_last(descending: bool, order: list[str]) -> None:
    listing = Listing([backend("b", 5, None, 9), backend("a", 7, 3, None)], Filter(), NOON, Sort(SortField.UPDATED, descending))
    assert ids(listing) == order


@pytest.mark.parametrize("field", SortField)
@pytest.mark.parametrize("descending", [True, False])
def test_every_sort_merges_in_rank_order(field: SortField, descending: bool) -> None:
    several = [backend("a", 1, None, 3, type="é"), backend("b", 2, 4, type=""), backend("c", 9, 9, 9, type="z")]
    sort = Sort(field, descending)
    ranks = list(map(rank(sort), Listing(several, Filter(), NOON, sort)))
    assert len(ranks) == 8
    assert not any(later < earlier for earlier, later in pairwise(ranks))


def test_ids_are_ordered_as_stored_not_as_written() -> None:
    """Percent-encoding would put a blank after an exclamation mark's neighbours."""
    odd = Breakable("m", {id: {"status": "failed", "attempts": 1} for id in ("é", "a b", "a!", "a~", "A", "a")})
    assert [item.key.parts[0] for item in Listing([odd], Filter(), NOON, Sort(SortField.ID, False))] == [
        "A", "a", "a b", "a!", "a~", "é",
    ]


def test_a_limit_is_over_all_backends_and_pages_follow_each_other() -> None:
    many = [backend("a", *range(700)), backend("b", *range(700))]
    assert len(list(Listing(many, Filter(), NOON, limit=5))) == 5
    found = ids(Listing(many, Filter(), NOON, Sort(SortField.UPDATED)))
    assert len(found) == len(set(found)) == 1400


def test_a_stop_ends_the_list() -> None:
    assert len(list(Listing([backend("a", *range(50))], Filter(), NOON, stop=StopFlag(after_looks=4)))) <= 4


class FailsLater(MemoryReader):
    """Answers one page and then breaks."""

    def page(self, request: PageRequest) -> Any:
        if request.after is not None:
            raise Unreachable("gone", where="here")
        return super().page(replace(request, limit=2))


@pytest.mark.parametrize("sort", [Sort(), Sort(SortField.UPDATED)])
def test_a_backend_that_fails_is_noted_and_the_others_go_on(sort: Sort) -> None:
    broken = backend("broken", 1)
    broken.broken = Unreachable("no route", where="memory")
    half = FailsLater("half", backend("half", 1, 2, 3, 4).rows)
    listing = Listing([broken, half, backend("fine", 5, 6)], Filter(), NOON, sort)
    found = ids(listing)
    assert sorted(found) == ["fine0", "fine1", *sorted(id for id in found if id.startswith("half"))]
    assert 4 <= len(found) < 6
    assert {name: str(fault) for name, fault in listing.faults.items()} == {
        "broken": "memory: Cannot connect: no route",
        "half": "here: Cannot connect: gone",
    }
    assert listing.answered == {"half", "fine"}


def test_a_plugin_that_raises_anything_else_breaks_only_itself() -> None:
    """Strangers' plugins break the contract; the list must not."""
    stranger = backend("stranger", 1)
    stranger.broken = ZeroDivisionError("division by zero")
    listing = Listing([stranger, backend("fine", 5)], Filter(), NOON)
    assert ids(listing) == ["fine0"]
    assert "ZeroDivisionError" in str(listing.faults["stranger"])
    causes = Causes([stranger, backend("fine", 5)], Filter(), NOON)
    assert [cause.count for cause in causes.collect()] == [1]
    assert set(causes.faults) == {"stranger"}
    _, faults = upcoming([stranger, backend("fine", 5)], ALL, NOON, NOON + MINUTE, 4)
    assert set(faults) == {"stranger"}


def test_a_backend_that_is_not_meant_is_not_asked() -> None:
    broken = backend("broken", 1)
    broken.broken = Unreachable("no route")
    listing = Listing([broken, backend("fine", 5)], Filter.parse("backend:f*"), NOON)
    assert ids(listing) == ["fine0"]
    assert not listing.faults
    assert page_of(broken, PageRequest(Filter.parse("backend:other"), NOON)).items == ()


def test_a_sort_nobody_offers_is_refused() -> None:
    stiff = backend("stiff", 1)
    stiff.sorts = frozenset({SortField.ID})  # type: ignore[misc]
    with pytest.raises(UsageFault, match=r"Cannot sort 'stiff' by type.*It can be sorted by id\."):
        list(Listing([stiff], Filter(), NOON, Sort(SortField.TYPE)))


# --- signatures -----------------------------------------------------------------------------------------


def prefixes() -> tuple[Breakable, str, str]:
    """A backend with two causes whose signatures share their first four digits."""
    seen: dict[str, str] = {}
    for n in range(100_000):
        word = "".join("abcdefghij"[int(digit)] for digit in str(n))
        text = f"ERR: cause {word}"
        signature = signature_of(text)
        if (other := seen.setdefault(signature[:4], text)) != text and signature_of(other) != signature:
            rows = {f"i{k}": {"status": "failed", "attempts": 1, "error": e} for k, e in enumerate((text, other) * 3)}
            return Breakable("m", rows), signature, signature_of(other)
    raise AssertionError


def test_a_prefix_of_two_signatures_is_a_mistake() -> None:
    both, one, other = prefixes()
    short, long = Filter.parse(f"cause:{one[:4]}"), Filter.parse(f"cause:{one}")
    with pytest.raises(QueryFault, match=f"Cause {one[:4]} matches both .*Write more digits"):
        list(Listing([both], short, NOON))
    with pytest.raises(QueryFault, match=f"Cause {one[:4]} matches both"):
        Causes([both], short, NOON).collect()
    assert len(list(Listing([both], long, NOON))) == 3
    assert [cause.signature for cause in Causes([both], long, NOON).collect()] == [one]
    negated = Filter.parse(f"-cause:{one}")
    assert {item.signature for item in Listing([both], negated, NOON)} == {other}
    assert [cause.signature for cause in Causes([both], negated, NOON).collect()] == [other]
    assert len(list(Listing([both], Filter.parse("cause:*"), NOON))) == 6


@pytest.mark.parametrize("common", [{}, {"error": "ERR: cause a of 0"}], ids=["every third", "all"])
def test_pages_by_signature_lead_there_and_back(common: dict[str, str]) -> None:
    many = backend("m", *range(1600), **common)
    wanted = signature_of("ERR: cause a of 0")
    request = PageRequest(Filter.parse(f"cause:{wanted}"), NOON, Sort.parse("updated"), limit=100)
    first = page_of(many, request)
    assert first.scanned is not None
    assert {item.signature for item in first.items} == {wanted}
    assert first.previous is None
    second = page_of(many, replace(request, after=first.next))
    back = page_of(many, replace(request, after=second.previous, backward=True))
    assert back.items == first.items
    again = page_of(many, replace(request, after=back.next))
    assert again.items == second.items
    last = page_of(many, replace(request, backward=True))
    assert last.next is None


def test_upcoming_says_per_backend_what_comes() -> None:
    rows = {f"r{n}": {"status": "ready", "attempts": 1, "due": NOON + n * MINUTE} for n in range(6)}
    broken = backend("broken", 1)
    broken.broken = Unreachable("no route")
    found, faults = upcoming([Breakable("m", rows), broken], Filter(), NOON, NOON + 4 * MINUTE, 4)
    assert found["m"].counts == (1, 1, 1, 1)
    assert (found["m"].before, found["m"].after) == (0, 2)
    assert set(faults) == {"broken"}
    with pytest.raises(UsageFault, match="by cause"):
        upcoming([Breakable("m", rows)], Filter.parse("cause:abcd"), NOON, NOON + MINUTE, 1)


# --- what reading costs


class Charging(Breakable):
    """A queue whose reads cost 2 s, as it says."""

    limits: tuple[float | None, ...] = ()

    def _matching(self, filter: Filter, now: datetime) -> list[Item]:
        charge(2.0)
        self.limits += (hold_limit(),)
        return super()._matching(filter, now)


@pytest.mark.parametrize("what", ["list", "upcoming"])
def test_the_cost_of_each_backend_is_added_up(what: str) -> None:
    slow, costs = Charging("slow", {}), ReadCosts(hold_limit=7.0)
    cheap = backend("cheap", 1)
    if what == "list":
        assert ids(Listing([slow, cheap], ALL, NOON, costs=costs)) == ["cheap0"]
    else:
        upcoming([slow, cheap], ALL, NOON, NOON + MINUTE, 4, costs)
    assert set(slow.limits) == {7.0}
    assert costs.meters["slow"].seconds == 2.0 * costs.meters["slow"].statements > 0
    assert costs.meters["cheap"].statements == 0


def test_a_read_that_timed_out_costs_at_least_what_was_charged() -> None:
    def given_up() -> None:
        charge(2.0)
        raise DeadlineExceeded("60 s")

    costs = ReadCosts()
    with pytest.raises(DeadlineExceeded), costs.of("one"):
        given_up()
    assert (costs.meters["one"].seconds > 2.0, costs.meters["one"].statements) == (True, 2)


def test_a_first_count_of_causes_that_takes_too_long_is_no_complete_one() -> None:
    """Else the few failures that were read would pass for all of them."""
    busy = backend("busy", 1, 2)
    busy.broken = ReadTooLong("its writers would wait")
    counting = Causes([busy], Filter(), NOON, hold_limit=0.05)
    assert counting.collect() == []
    assert (set(counting.faults), counting.answered, counting.finished_passes({})) == ({"busy"}, set(), {})


def test_a_later_count_of_causes_that_takes_too_long_leaves_the_earlier_one() -> None:
    busy = backend("busy", 1, 2)
    first = Causes([busy], Filter(), NOON)
    known = first.collect()
    busy.broken = ReadTooLong("its writers would wait")
    again = Causes([busy], Filter(), NOON, hold_limit=0.05, passes=first.passes, again={"busy"})
    assert again.collect() == known
    assert again.faults == {}
