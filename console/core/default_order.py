"""The default order of a list: the worst condition first, and within it the newest item first.

A page walks through the conditions of one backend, each in the order that the backend's index serves. A large table
without such an index is read in one pass in the backend's own order instead. Between backends the heads of their pages
decide. It is not a global sort, and costs what a page of each condition costs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from console.core.backend import Backend, PageRequest
from console.core.capabilities import KnowsCost, KnowsOrder
from console.core.item import WORST_FIRST, Condition, Item
from console.core.query import NATURAL, Cursor, Field, Filter, Op, Page, Sort, SortField, Term

_RANK = {condition: rank for rank, condition in enumerate(WORST_FIRST)}
_HEAD = 100
"""How many rows of a condition are looked at for times that make no sense."""
_CLOCKS_DIFFER = timedelta(days=1)
_EARLIEST = datetime(2000, 1, 1, tzinfo=UTC)


def is_read_in_one_pass(backend: Backend, now: datetime) -> bool:
    """Whether a large table without an index per condition keeps this backend from the default order."""
    return isinstance(backend, KnowsCost) and backend.is_costly(now)


def reads_all_to_sort(backend: Backend, now: datetime) -> bool:
    """Whether another order than the default one reads a table that is not small."""
    return is_read_in_one_pass(backend, now) or (isinstance(backend, KnowsOrder) and backend.orders_by_time())


def time_makes_sense(item: Item, now: datetime) -> bool:
    """Whether the time by which the item is placed is there, neither long before computers nor in the future."""
    at = _time_of(item)
    if at is None or at < _EARLIEST:
        return False
    return item.condition is Condition.RETRYING or at <= now + _CLOCKS_DIFFER


def _time_of(item: Item) -> datetime | None:
    if item.condition is Condition.RETRYING:
        return item.verdict.next_retry_at or item.updated_at or item.created_at
    return item.updated_at or item.created_at


def default_rank(item: Item, now: datetime) -> tuple[Any, ...]:
    """Where the head of a page is placed among the heads of other backends."""
    at = _time_of(item)
    sensible = at is not None and time_makes_sense(item, now)
    seconds = at.timestamp() if at is not None and sensible else 0.0
    newest_first = seconds if item.condition is Condition.RETRYING else -seconds
    return _RANK[item.condition], not sensible, newest_first


@dataclass(frozen=True, slots=True)
class _Stage:
    """The items of one condition, or those at its beginning whose times make no sense: they come after the others."""

    filter: Filter
    sort: Sort
    senseless: bool


def _stages(backend: Backend, filter: Filter) -> list[_Stage]:
    by_time = not isinstance(backend, KnowsOrder) or backend.orders_by_time()
    sorted_by_time = not by_time and SortField.UPDATED in backend.sorts
    others = filter.without(Field.CONDITION)
    found = []
    for condition in WORST_FIRST:
        if condition not in filter.conditions():
            continue
        wanted = Filter((*others.terms, Term(Field.CONDITION, Op.EQUALS, (condition,))))
        if condition is Condition.RETRYING:
            sort = Sort(SortField.NEXT, descending=False) if sorted_by_time else Sort(None, descending=False)
        else:
            sort = Sort(SortField.UPDATED) if sorted_by_time else NATURAL
        found += [_Stage(wanted, sort, False), _Stage(wanted, sort, True)]
    return found


def page_in_default_order(backend: Backend, request: PageRequest) -> Page:
    """One page in the default order. It leads on in the direction in which it was read, and not back.

    Its cursor is one of the backend with the number of the stage.
    """
    if request.sort.field is not None or not _is_in_stages(backend, request):
        return backend.page(request)
    stages = _stages(backend, request.filter)
    order = list(range(len(stages)))
    if request.backward:
        order.reverse()
    start = _PagePosition(order[0] if order else 0, None) if request.after is None else request.after.value
    assert isinstance(start, _PagePosition)
    found: list[Item] = []
    for number in order[order.index(start.stage) :] if order else ():
        after = start.cursor if number == start.stage else None
        page = _page_of_stage(backend, stages[number], replace(request, after=after, limit=request.limit - len(found)))
        onward = page.previous if request.backward else page.next
        found = [*page.items, *found] if request.backward else [*found, *page.items]
        if onward is not None:
            return _whole_page(found, _PagePosition(number, onward), request)
        if len(found) >= request.limit:
            rest = order[order.index(number) + 1 :]
            return _whole_page(found, _PagePosition(rest[0], None) if rest else None, request)
    return _whole_page(found, None, request)


def _is_in_stages(backend: Backend, request: PageRequest) -> bool:
    """Whether the condition decides first. A page that goes on is read as the first one was, whatever the table's size
    is now."""
    if request.after is not None:
        return isinstance(request.after.value, _PagePosition)
    return not is_read_in_one_pass(backend, request.now)


class _PagePosition(NamedTuple):
    """Where a page goes on: in which stage, and after which row of it."""

    stage: int
    cursor: Cursor | None


def _whole_page(found: list[Item], onward: _PagePosition | None, request: PageRequest) -> Page:
    cursor = None if onward is None else Cursor(onward, False, ())
    return Page(tuple(found), None, cursor) if request.backward else Page(tuple(found), cursor, None)


def _page_of_stage(backend: Backend, stage: _Stage, request: PageRequest) -> Page:
    asked = replace(request, filter=stage.filter, sort=stage.sort)
    if stage.senseless:
        return Page(tuple(_senseless_head(backend, asked)), None, None) if request.after is None else _NOTHING
    if request.backward:
        page = backend.page(asked)
        moved = {item.key for item in _senseless_head(backend, asked)}
        return page._replace(items=tuple(item for item in page.items if item.key not in moved)) if moved else page
    if request.after is not None:
        return backend.page(asked)
    page = backend.page(replace(asked, limit=max(request.limit, _HEAD)))
    return page._replace(items=page.items[sum(1 for _ in _leading(page.items, request.now)) :])


_NOTHING = Page((), None, None)


def _senseless_head(backend: Backend, asked: PageRequest) -> Iterator[Item]:
    """The items at the beginning of a condition whose times make no sense."""
    page = backend.page(replace(asked, after=None, backward=False, limit=_HEAD))
    return _leading(page.items, asked.now)


def _leading(items: tuple[Item, ...], now: datetime) -> Iterator[Item]:
    for item in items[:_HEAD]:
        if time_makes_sense(item, now):
            return
        yield item
