"""Lanes under many calls at once: each is answered, whatever the threads beside it do."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from console.ui.lanes import Lane
from tests.ui.world import make_async, open_queue


@pytest.fixture
def hurried() -> Iterator[None]:
    """Threads take turns as often as they can."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("hurried")
async def test_calls_that_end_together_are_all_answered(tmp_path: Path) -> None:
    make_async(tmp_path / "queue.db", 5)
    lane = Lane(open_queue(tmp_path / "queue.db", "queue"), deadline=30.0)
    for _ in range(1_500):
        answers = await asyncio.gather(*(lane.ask(lambda _, n=n: n) for n in range(40)))  # type: ignore[misc]
        assert answers == list(range(40))
