"""Whatever a row claims, its cell says it in few characters."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from console.core.backend import PageRequest
from console.core.cause_count import Cause
from console.core.query import Filter
from console.ui import safe
from console.ui.cells import ITEM_COLUMNS, _short, next_retry, short_age
from console.ui.widgets.cause_list import trend
from console.ui.widgets.line_table import layout
from tests.ui.world import NOON, make_async, open_queue

LAST = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (0, "0"), (-5, "-5"), (9_999, "9999"), (10_000, "10k"), (123_456, "123k"), (2**31 - 1, "2G"),
        (2**63 - 1, "∞"), (-(2**63), "-∞"),
    ],
)  # fmt: skip
def test_numbers_are_short(number: int, shown: str) -> None:
    assert _short(number) == shown


@pytest.mark.parametrize(
    ("days", "shown"),
    [(0, "now"), (3, "3d"), (400, "400d"), (2_000, "5y"), (700_000, "1917y"), (-3, "-3d"), (-2_913_000, "-7980y")],
)
def test_ages_are_short(days: int, shown: str) -> None:
    assert short_age(timedelta(days=days)) == shown


def test_a_retry_in_the_year_9999_is_a_date(tmp_path: Path) -> None:
    make_async(tmp_path / "a.db", 0)
    with sqlite3.connect(tmp_path / "a.db") as db:
        db.execute(
            "INSERT INTO async_tasks VALUES ('late', 'T', 'e', 'PENDING', 1, ?, 'x', ?, ?)",
            (LAST.isoformat(), NOON.isoformat(), NOON.isoformat()),
        )
    queue = open_queue(tmp_path / "a.db", "queue")
    (item,) = queue.page(PageRequest(Filter(), NOON)).items
    assert next_retry(item, NOON).text == "9999-12-31"
    widths = dict(layout([column for column, _ in ITEM_COLUMNS], 77))
    for index, (column, render) in enumerate(ITEM_COLUMNS):
        if index in widths and not column.grows:
            assert len(render(item, NOON).text) <= widths[index], column.title
    queue.close()


@pytest.mark.parametrize(
    ("count", "recent", "hours", "shown"),
    [(100, 0, 10, "↓ –"), (100, 90, 10, "↑ +90"), (100, 10, 10, "→ +10"), (100, 3, 10, "↓ +3"), (5, 5, 0.2, "↑ +5")],
)
def test_a_trend_is_told_by_an_arrow(count: int, recent: int, hours: float, shown: str) -> None:
    first = NOON - timedelta(hours=hours)
    cause = Cause("7f3a", "boom", count, recent, first, NOON, (("queue", count),))
    assert trend(cause, NOON).text == shown


@pytest.mark.parametrize(
    ("address", "led"),
    [
        ("https://wiki.example/a?b=c#d", True), ("http://x", True), ("javascript:alert(1)", False), ("ftp://x", False),
        ("https://x/\x1b]8;;", False), ("https://x y", False), ("https://x/\u202e", False), ("", False),
    ],
)  # fmt: skip
def test_only_a_plain_address_becomes_a_link(address: str, led: bool) -> None:
    assert bool(safe.address(address)) is led
    styles = [span.style for span in safe.link(address or "-", address).spans]
    assert any(getattr(style, "link", None) for style in styles) is led
