"""Many calls at once: each gets its answer, whatever the other threads do."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic

import pytest

from console.core.budget import Meter, charge
from console.core.faults import DeadlineExceeded
from console.core.query import NATURAL, Filter
from console.testing import NOON, StopFlag
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


async def test_a_backend_gets_no_more_than_four_calls_at_once_and_then_the_rest(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("cancelled", [False, True])
async def test_what_a_call_costs_after_nobody_waits_for_it_is_noted_too(tmp_path: Path, cancelled: bool) -> None:
    """It has taken too long, or its place was left. The system works on it all the same."""
    held = threading.Event()
    make_async(tmp_path / "queue.db", 5)
    caller = BackendCaller(open_queue(tmp_path / "queue.db", "queue"), deadline=PATIENCE if cancelled else 0.05)

    def work(_: object) -> None:
        charge(1.0)
        assert held.wait(PATIENCE)
        charge(7.0)

    asking = asyncio.create_task(caller.call(work, question="figure", asked=False))
    while not caller._running:
        await asyncio.sleep(0.01)
    if cancelled:
        asking.cancel()
    with pytest.raises(asyncio.CancelledError if cancelled else DeadlineExceeded):
        await asking
    held.set()
    while caller._running:
        await asyncio.sleep(0.01)
    assert caller.budget.cost("figure") == pytest.approx(8.0)


async def test_a_call_that_never_began_leaves_the_known_cost_of_its_question(tmp_path: Path) -> None:
    held = threading.Event()
    make_async(tmp_path / "queue.db", 5)
    caller = BackendCaller(open_queue(tmp_path / "queue.db", "queue"), deadline=PATIENCE)
    caller.budget.note("figure", Meter(3.0, 1), 0.0)
    running = [asyncio.create_task(caller.call(lambda _: held.wait(PATIENCE))) for _ in range(4)]
    while len(caller._running) < 4:
        await asyncio.sleep(0.01)
    asking = asyncio.create_task(caller.call(lambda _: None, question="figure", asked=False))
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait([asking])
    assert caller.budget.cost("figure") == pytest.approx(3.0)
    held.set()
    await asyncio.gather(*running)


@pytest.mark.parametrize("ticks", range(6))
async def test_nor_is_one_that_comes_with_a_page(tmp_path: Path, ticks: int) -> None:
    """At whatever turn of the loop between the answer and whoever waits for it."""
    make_async(tmp_path / "queue.db", 5)
    callers = BackendCallers([open_queue(tmp_path / "queue.db", "queue")], deadline=5.0)
    source = PageSource(callers, Filter.parse("condition:*"), NATURAL, False, lambda: NOON, StopFlag(), lambda: None)
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


async def test_an_answer_that_comes_late_is_kept(tmp_path: Path) -> None:
    """On a busy machine the first count may take longer than the deadline; the next try may be minutes away."""
    asked: list[int] = []
    answer_now = threading.Event()

    def slow(_: object) -> int:
        asked.append(1)
        answer_now.wait(PATIENCE)
        return 36

    make_async(tmp_path / "queue.db", 5)
    caller = BackendCaller(open_queue(tmp_path / "queue.db", "queue"), deadline=0.1)
    with pytest.raises(DeadlineExceeded):
        await caller.read("counts", slow, asked=True)
    answer_now.set()
    end = monotonic() + PATIENCE
    while True:
        with suppress(DeadlineExceeded):
            assert (await caller.read("counts", slow)).value == 36
            break
        assert monotonic() < end
        await asyncio.sleep(0.01)
    assert asked == [1]
