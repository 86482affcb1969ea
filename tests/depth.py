"""Marks what runs only with `./run test --all`: long tests that add depth to what a quick one covers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings

campaign = pytest.mark.campaign


def examples(count: int) -> int:
    """How many examples Hypothesis tries: so many with --all, a quarter of them otherwise."""
    return count if settings.default == settings.get_profile("all") else max(count // 4, 1)


def in_depth(values: Iterable[Any], quick: Iterable[Any]) -> list[Any]:
    """Values for `parametrize` or a fixture: the quick ones always, the others only with --all."""
    chosen = list(quick)
    found = [value if value in chosen else pytest.param(*_parts(value), marks=campaign) for value in values]
    assert set(chosen) <= set(values), "every quick value is one of the values"
    return found


def _parts(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)
