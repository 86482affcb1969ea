"""The words of a plan: what each item is, and what it would become."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from console.core.backend import Change
from console.core.item import ItemKey
from console.ui.preview import change_words

TODAY = date(2026, 11, 17)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (("FAILED", 4), ("PENDING", 4), "FAILED → PENDING · 4"),
        ((None, "x"), (7, "x"), "– → 7 · x"),
        (("2026-11-17T04:10:48+00:00",), ("2026-11-17T03:12:40.001309+00:00",), "04:10:48Z → 03:12:40Z"),
        (("2026-11-16T04:10:48Z",), ("2026-11-17T03:12:40Z",), "2026-11-16 04:10:48Z → 03:12:40Z"),
        (("2026-11-17 04:10:48+02:00",), (None,), "04:10:48+02:00 → –"),
        (("2026-11-17T04:10:48.5",), ("2026-11-17T04:10:48.5",), "04:10:48"),
        (
            ("2026-11-17T03:12:40.000001Z",),
            ("2026-11-17T03:12:40.000002Z",),
            "2026-11-17T03:12:40.000001Z → 2026-11-17T03:12:40.000002Z",
        ),
        (("2026-11-17T04:10:48 and more",), ("٢٠٢٦-11-17T04:10:48",), "2026-11-17T04:10:48 and more → ٢٠٢٦-11-17T04:10:48"),
        ((None, ["a", "error", 1]), (None, ["a", "pending", 2]), "– · a · error → pending · 1 → 2"),
        (("y" * 99,), ("y" * 99,), "y" * 60 + "…"),
    ],
)
def test_what_an_item_would_become(before: tuple[Any, ...], after: tuple[Any, ...], expected: str) -> None:
    assert change_words(Change("", (ItemKey("jobs", ("1",)),), before, after), TODAY) == expected
