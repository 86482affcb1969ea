"""When a system deletes an item is a fact of the item: a filter, a JSON field and a column."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from console.cli.items import expiry_text
from console.core.export import FIELDS, record
from console.core.item import Condition, Item, ItemKey, Verdict
from console.core.query import Filter

NOW = datetime(2026, 11, 18, 12, tzinfo=UTC)


def item(expires_in: timedelta | None) -> Item:
    expires = None if expires_in is None else NOW + expires_in
    verdict = Verdict(Condition.TERMINAL, "given up")
    return Item(ItemKey("q", ("1",)), "job", "failed", 1, 1, verdict, "boom", NOW, NOW, NOW, expires_at=expires)


def test_a_filter_finds_what_is_deleted_soon() -> None:
    soon, late, never = item(timedelta(hours=5)), item(timedelta(days=3)), item(None)
    for text, expected in (
        ("expires<6h", [True, False, False]),
        ("-expires<6h", [False, True, True]),
        ("expires>1d", [False, True, False]),
        ("expires<2026-11-19", [True, False, False]),
    ):
        assert [Filter.parse(text).matches(one, NOW) for one in (soon, late, never)] == expected, text
    assert str(Filter.parse("expires<6h")) == "expires<6h"


def test_expiry_is_a_field_and_a_column() -> None:
    assert "expires_at" in FIELDS
    assert record(item(timedelta(hours=5)))["expires_at"] == NOW + timedelta(hours=5)
    shown = [expiry_text(item(left), NOW) for left in (None, timedelta(hours=5), timedelta(0), timedelta(days=900))]
    assert shown == ["", "in 5h 00m", "any time now", "2029-05-06"]


def test_an_item_that_is_soon_gone_says_so_in_the_list_of_the_console() -> None:
    from console.ui.cells import expiry, next_retry

    shown = [next_retry(item(left), NOW).text for left in (None, timedelta(minutes=5), timedelta(hours=22, minutes=9), timedelta(days=2))]
    assert shown == ["never", "gone <1h", "gone <23h", "never"]
    assert expiry(item(timedelta(hours=5)), NOW).text == "gone in 5h 00m"
    assert expiry(item(timedelta(hours=-5)), NOW).text == "gone soon"
