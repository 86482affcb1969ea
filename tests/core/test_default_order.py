"""The default order: the worst and newest first, rows whose times make no sense last, in pages of any size."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from datetime import timedelta
from itertools import groupby, product
from pathlib import Path

import pytest

from console.core.backend import PageRequest
from console.core.default_order import page_in_default_order, time_makes_sense
from console.core.item import WORST_FIRST, Condition, Item
from console.core.listing import Listing
from console.core.query import NATURAL, Cursor, Filter
from plugins.sqlite_queue import SqliteQueue
from tests.ui.world import NOON, async_row, make_async, make_tasks, open_queue


@pytest.fixture
def queue(tmp_path: Path) -> SqliteQueue:
    make_async(tmp_path / "a.db", 90)
    with sqlite3.connect(tmp_path / "a.db") as db:
        for n, updated in enumerate(("9999-12-31T00:00:00+00:00", "2199-01-01T00:00:00+00:00", "not a time")):
            row = list(async_row(0, NOON))
            row[0], row[5], row[7], row[8] = f"odd-{n}", "9999-01-01T00:00:00+00:00", updated, updated
            db.execute("INSERT INTO async_tasks VALUES (?,?,?,?,?,?,?,?,?)", row)
    return open_queue(tmp_path / "a.db", "q")


def pages(queue: SqliteQueue, filter: Filter, limit: int, backward: bool) -> list[Item]:
    found: list[Item] = []
    after: Cursor | None = None
    while True:
        page = page_in_default_order(queue, PageRequest(filter, NOON, NATURAL, after, limit, backward))
        found = [*page.items, *found] if backward else [*found, *page.items]
        after = page.previous if backward else page.next
        if after is None:
            return found


def test_the_worst_come_first_and_within_a_condition_the_newest(queue: SqliteQueue) -> None:
    listed = pages(queue, Filter(), 100, False)
    by_condition = [(condition, list(items)) for condition, items in groupby(listed, key=lambda item: item.condition)]
    assert [condition for condition, _ in by_condition] == [c for c in WORST_FIRST if c in dict(by_condition)]
    terminal = dict(by_condition)[Condition.TERMINAL]
    assert [item.key.id for item in terminal[-3:]] == ["odd-2", "odd-1", "odd-0"]
    assert all(time_makes_sense(item, NOON) for item in terminal[:-3])
    retrying = [item.verdict.next_retry_at for item in dict(by_condition)[Condition.RETRYING]]
    assert retrying == sorted(retrying, key=lambda due: due or NOON)


@pytest.mark.parametrize(("limit", "backward"), list(product((1, 7, 30), (False, True))))
def test_pages_of_any_size_in_both_directions_are_the_same_list(
    queue: SqliteQueue, limit: int, backward: bool
) -> None:
    for text in ("", "condition:*", "condition:retrying,terminal attempts>=2"):
        whole = pages(queue, Filter.parse(text), 500, False)
        assert len({item.key for item in whole}) == len(whole)
        assert pages(queue, Filter.parse(text), limit, backward) == whole


def test_systems_are_merged_by_condition_and_time(queue: SqliteQueue, tmp_path: Path) -> None:
    make_tasks(tmp_path / "jobs.db", 40)
    jobs = open_queue(tmp_path / "jobs.db", "jobs", "tasks")
    listed = list(Listing([queue, jobs], Filter(), NOON))
    ranks = [WORST_FIRST.index(item.condition) for item in listed]
    assert ranks == sorted(ranks)
    assert {item.key.backend for item in listed[:5]} == {"q", "jobs"}
    assert len({item.key for item in listed}) == len(listed)


def test_a_large_table_without_an_index_is_read_in_one_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_async(tmp_path / "a.db", 60)
    with sqlite3.connect(tmp_path / "a.db") as db:
        for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL").fetchall():
            db.execute(f'DROP INDEX "{name}"')
    small = open_queue(tmp_path / "a.db", "q")
    assert not small.orders_by_time()
    listed = list(Listing([small], Filter(), NOON))
    newest = [item.updated_at for item in listed if item.condition is Condition.TERMINAL]
    assert newest == sorted(newest, key=lambda at: at or NOON, reverse=True)  # sorted by time, as it is small
    monkeypatch.setattr("console.sql.counting.LARGE", 10)
    large = open_queue(tmp_path / "a.db", "q")
    request = PageRequest(Filter(), NOON, limit=500)
    assert page_in_default_order(large, request) == large.page(request)


def test_a_time_makes_sense_between_2000_and_tomorrow(queue: SqliteQueue) -> None:
    item = pages(queue, Filter.parse("condition:terminal"), 1, False)[0]
    for moved, sensible in ((timedelta(hours=3), True), (timedelta(days=3), False), (-timedelta(days=11_000), False)):
        updated = item._replace(updated_at=NOON + moved, created_at=None)
        assert time_makes_sense(updated, NOON) is sensible
    assert not time_makes_sense(item._replace(updated_at=None, created_at=None), NOON)


def test_a_cursor_belongs_to_its_list(queue: SqliteQueue) -> None:
    request = PageRequest(Filter(), NOON, limit=3)
    first = page_in_default_order(queue, request)
    second = page_in_default_order(queue, replace(request, after=first.next))
    assert not {item.key for item in first.items} & {item.key for item in second.items}




@pytest.mark.parametrize("grows", [True, False])
def test_a_list_ends_as_it_began_when_its_table_becomes_large_or_small_meanwhile(
    queue: SqliteQueue, monkeypatch: pytest.MonkeyPatch, grows: bool
) -> None:
    costly = [not grows]
    monkeypatch.setattr(queue, "is_costly", lambda _: costly[-1], raising=True)
    expected = [item.key for item in pages(queue, Filter(), 500, False)]
    found: list[Item] = []
    after: Cursor | None = None
    while not found or after is not None:
        page = page_in_default_order(queue, PageRequest(Filter(), NOON, NATURAL, after, 7))
        found, after = [*found, *page.items], page.next
        costly.append(grows)
    assert [item.key for item in found] == expected
