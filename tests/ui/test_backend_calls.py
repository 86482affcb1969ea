"""Many calls at once: each gets its answer, whatever the other threads do."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from console.core.query import NATURAL, Filter
from console.testing import NOON, Flag
from console.ui.backend_calls import BackendCaller, BackendCallers, off_loop
from console.ui.merged_pager import PageSource, Position
from tests.patience import PATIENCE
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
    caller = BackendCaller(open_queue(tmp_path / "queue.db", "queue"), deadline=30.0)
    for _ in range(1_500):
        answers = await asyncio.gather(*(caller.call(lambda _, n=n: n) for n in range(40)))  # type: ignore[misc]
        assert answers == list(range(40))


async def test_few_threads_do_what_few_can(tmp_path: Path) -> None:
    make_async(tmp_path / "queue.db", 5)
    callers = [BackendCaller(open_queue(tmp_path / "queue.db", name), deadline=30.0) for name in ("one", "two", "three")]
    used = {await off_loop(threading.get_ident) for _ in range(50)}
    for _ in range(50):
        used |= {await caller.call(lambda _: threading.get_ident()) for caller in callers}
    assert len(used) <= 2  # one may still be on its way to rest when the next is wanted


async def test_a_lane_does_no_more_than_four_at_once_and_then_the_rest(tmp_path: Path) -> None:
    make_async(tmp_path / "queue.db", 5)
    caller = BackendCaller(open_queue(tmp_path / "queue.db", "queue"), deadline=30.0)
    go_on, begun = threading.Event(), threading.Semaphore(0)

    def wait(number: int) -> int:
        begun.release()
        assert go_on.wait(30)
        return number

    asked = [asyncio.create_task(caller.call(lambda _, n=n: wait(n))) for n in range(9)]  # type: ignore[misc]
    for _ in range(4):
        assert await off_loop(lambda: begun.acquire(timeout=PATIENCE))
    assert not await off_loop(lambda: begun.acquire(timeout=0.2))
    go_on.set()
    assert await asyncio.gather(*asked) == list(range(9))


async def test_a_cancel_that_comes_with_the_answer_is_not_lost(tmp_path: Path) -> None:
    """Whoever asks again and again would otherwise go on after the console was left."""
    held = threading.Event()
    make_async(tmp_path / "queue.db", 5)
    caller = BackendCaller(open_queue(tmp_path / "queue.db", "queue"), deadline=5.0)
    asking = asyncio.create_task(caller.call(lambda _: held.wait(30)))
    while not caller._running:
        await asyncio.sleep(0.01)
    caller._running[0].answer.set_result(True)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    held.set()


@pytest.mark.parametrize("ticks", range(6))
async def test_nor_is_one_that_comes_with_a_page(tmp_path: Path, ticks: int) -> None:
    """At whatever turn of the loop between the answer and whoever waits for it."""
    make_async(tmp_path / "queue.db", 5)
    callers = BackendCallers([open_queue(tmp_path / "queue.db", "queue")], deadline=5.0)
    source = PageSource(callers, Filter.parse("condition:*"), NATURAL, False, lambda: NOON, Flag(), lambda: None)
    asking = asyncio.create_task(source._answer(callers["queue"], Position()))
    while not source._pending:
        await asyncio.sleep(0)
    (asked,) = source._pending.values()
    while not asked.task.done():
        await asyncio.sleep(0)
    for _ in range(ticks):
        await asyncio.sleep(0)
    cancelled = asking.cancel()
    await asyncio.wait([asking])
    assert asking.cancelled() == cancelled
