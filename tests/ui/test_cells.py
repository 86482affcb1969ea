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
from console.ui.cause_past import trend
from console.ui.cells import ITEM_COLUMNS, Column, _short, next_retry, short_age, with_more
from console.ui.widgets.line_table import layout
from console.ui.widgets.system_table import _COLUMNS as SYSTEMS
from console.ui.widgets.upcoming_chart import short
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
    [(100, 0, 10, "·"), (100, 90, 10, "↑90"), (100, 10, 10, "→10"), (100, 3, 10, "↓3"), (5, 5, 0.2, "↑5")],
)
def test_a_trend_is_shown_by_an_arrow(count: int, recent: int, hours: float, shown: str) -> None:
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


@pytest.mark.parametrize(
    ("width", "shown"), [(30, "payments, jobs, mail"), (19, "payments, jobs +1"), (11, "payments +2"), (4, "payments +2")]
)
def test_names_without_room_are_counted(width: int, shown: str) -> None:
    assert with_more(["payments", "jobs", "mail"], width) == shown


def test_a_title_without_room_has_a_short_form() -> None:
    column = Column("24 h failures", 8, 5, short="24 h")
    assert (column.heading(13), column.heading(12)) == ("24 h failures", "24 h")
    assert Column("retrying", 8, 5).heading(4) == "retrying"


def test_a_column_with_a_share_comes_before_columns_of_a_lower_rank() -> None:
    columns = [Column("cause", 16, 9, grows=1, share=0.4), Column("count", 6, 8), Column("first", 20, 3)]
    assert layout(columns, 34) == [(0, 26), (1, 6)]
    assert layout(columns, 50) == [(0, 20), (1, 6), (2, 20)]
    assert layout(columns, 47) == [(0, 39), (1, 6)]


def test_the_worst_counts_of_a_system_are_left_out_last() -> None:
    for width, titles in ((37, ["system", "terminal", "stuck", "failed"]), (77, [column.title for column in SYSTEMS])):
        shown = max((layout(SYSTEMS, width, gap=gap) for gap in (1, 2)), key=len)
        assert [SYSTEMS[index].title for index, _ in shown][: len(titles)] == titles


@pytest.mark.parametrize("width", [76, 77])  # of 80 columns, with and without a scrollbar
def test_in_a_narrow_list_small_gaps_leave_room_for_every_column_and_the_error(width: int) -> None:
    columns = [column for column, _ in ITEM_COLUMNS]
    (error,) = (n for n, column in enumerate(columns) if column.title == "error")
    wide, narrow = (dict(layout(columns, width, {"type"}, gap)) for gap in (2, 1))
    assert len(wide) < len(narrow) == len(columns) - 1
    assert narrow[error] >= 17


def test_a_round_span_has_no_zeros_behind_it() -> None:
    spans = (timedelta(days=1), timedelta(hours=6), timedelta(minutes=15), timedelta(days=1, hours=10))
    assert [short(span) for span in spans] == ["1d", "6h", "15m", "1d10h"]
