"""The words of a plan: what each item is, and what it would become."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from console.core.backend import GONE, Change
from console.core.item import ItemKey
from console.testing import MemoryQueue
from console.ui.preview import PlannedItem, item_tables, planned_item

NOW = datetime(2026, 11, 17, 3, 12, 40, tzinfo=UTC)
EARLIER = "2026-11-17T02:00:00+00:00"


class Named(MemoryQueue):
    """Names the values of its images; nothing else of it is used."""

    def __init__(self) -> None:
        pass


def become(before: Any, after: Any) -> str:
    """What the status of an item is and would become."""
    image = (before, 0, None, None), (after, 0, None, None)
    return planned_item("jobs/1", Change("", (ItemKey("jobs", ("1",)),), *image), Named(), NOW).changes.get("status", "")


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("FAILED", "PENDING", "FAILED → PENDING"),
        (None, 7, "– → 7"),
        ("x", "x", ""),
        ("2026-11-17T04:10:48+00:00", "2026-11-17T03:10:40.001309+00:00", "04:10:48Z → 03:10:40Z"),
        ("2026-11-16T04:10:48Z", "2026-11-17T03:12:40Z", "2026-11-16 04:10:48Z → now"),
        ("2026-11-17 04:10:48+02:00", None, "04:10:48+02:00 → –"),
        (
            "2026-11-17T03:02:40.000001Z",
            "2026-11-17T03:02:40.000002Z",
            "2026-11-17T03:02:40.000001Z → 2026-11-17T03:02:40.000002Z",
        ),
        ("2026-11-17T04:10:48 and more", "٢٠٢٦-11-17T04:10:48", "2026-11-17T04:10:48 and more → ٢٠٢٦-11-17T04:10:48"),
        ("a", "y" * 99, f"a → {'y' * 40}…"),
    ],
)
def test_what_a_value_would_become(before: Any, after: Any, expected: str) -> None:
    assert become(before, after) == expected


def test_columns_are_named_and_only_what_changes_is_shown() -> None:
    change = Change("", (ItemKey("jobs", ("1",)),), ("dead", 4, None, EARLIER), ("ready", 0, None, EARLIER))
    item = planned_item("jobs/1", change, Named(), NOW)
    assert item.changes == {"status": "dead → ready", "attempts": "4 → 0"}
    assert list(planned_item("jobs/1", change, object(), NOW).changes) == ["column 1", "column 2"]
    assert planned_item("jobs/1", change._replace(after=GONE), Named(), NOW).changes == {"row": "deleted"}


def test_an_item_whose_change_has_no_room_is_written_out() -> None:
    """Else its row would be empty: each unit of an analysis has a column of its own."""
    rows = [
        PlannedItem("analyses", "82/vectors", {"vectors_status": "failed → skipped"}, {}, ("vectors_status",)),
        PlannedItem("analyses", "69/update", {"update_status": "failed → skipped"}, {}, ("update_status",)),
    ]
    lines = ["".join(cell.text for cell in line) for line in item_tables(rows, 46)]
    assert lines == [
        "  analyses    change", "  82/vectors  vectors_status failed → skipped", "  69/update   update_status failed → skipped"
    ]


def test_what_has_no_room_in_the_table_is_named() -> None:
    change = Change("", (ItemKey("jobs", ("1",)),), ("dead", 4, None, EARLIER), ("ready", 0, None, NOW.isoformat()))
    items = [planned_item("jobs/1", change, Named(), NOW)]
    wide, narrow = (["".join(cell.text for cell in line) for line in item_tables(items, width)] for width in (80, 32))
    assert wide == ["  jobs  status        attempts  updated", "  1     dead → ready  4 → 0     02:00:00Z → now"]
    assert narrow == ["  jobs  status        attempts", "  1     dead → ready  4 → 0", "  no room for: updated"]
