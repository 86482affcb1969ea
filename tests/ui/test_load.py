"""A console that nobody touches asks little of the systems it watches, and what it shows says how old it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from time import monotonic

import pytest
import sqlalchemy as sa
from textual.pilot import Pilot

from console.core.budget import Meter
from console.process import SystemClock
from console.sql import counting
from console.ui.backend_calls import BackendCaller
from console.ui.screens.causes import CausesScreen, PassKind
from tests.patience import busy
from tests.plugins.postgres_analyses.world import TABLE, Table, postgres_table
from tests.ui.driving import console, failures, items, opened, screen_text, until
from tests.ui.world import make_async, open_queue, session

FAST = timedelta(milliseconds=50)
"""The refresh of these consoles: thirty refreshes take a second and a half."""
REFRESHES = 30


@pytest.fixture
def table() -> Iterator[Table]:
    """Twenty thousand analyses that are not indexed, a thousand of them terminal."""
    with postgres_table() as found:
        found.execute(
            f"INSERT INTO {TABLE} (vectorization_status, vectorization_error, dp_update_status, retry_count, processed_at)"
            " SELECT CASE WHEN n % 20 = 0 THEN 'failed' ELSE 'success' END, 'invalid json', 'success', 0, now()"
            " FROM generate_series(1, 20000) AS n"
        )
        found.execute(f"ANALYZE {TABLE}")
        yield found


def scans(table: Table) -> int:
    """How many times the whole table was read, by the server's own statistics."""
    table.execute("SELECT pg_stat_clear_snapshot()")
    ((found,),) = table.rows("SELECT seq_scan FROM pg_stat_user_tables WHERE relname = 'answer_analysis'")
    return int(found)


@asynccontextmanager
async def idle_on(table: Table, load: float, keys: str = "") -> AsyncIterator[Pilot[None]]:
    """A console on this table that shows a place and is left alone for thirty refreshes."""
    given = session([table.open(name="a")], SystemClock(), refresh=FAST, load=load)
    async with opened(given) as pilot:
        await until(pilot, lambda: console(pilot).monitor.healths["a"].counts)
        for key in keys:
            await pilot.press(key)
        await asyncio.sleep(0.5)
        yield pilot
        given.close()  # the server writes a connection's statistics at the latest when it ends


async def after_refreshes(table: Table, load: float, keys: str = "") -> int:
    """How often the table was scanned in thirty refreshes."""
    async with idle_on(table, load, keys):
        await asyncio.sleep(1.1)  # the server writes its statistics once a second
        before = scans(table)
        await asyncio.sleep(REFRESHES * FAST.total_seconds())
    await asyncio.sleep(0.1)
    return scans(table) - before


@pytest.mark.parametrize("place", ["1", "2", "3"])
async def test_reads_that_nobody_asked_for_wait_until_they_are_paid_for(table: Table, place: str) -> None:
    """Without the budget every refresh scans the table for each condition: hundreds of times here."""
    assert await after_refreshes(table, load=1e-5, keys=place) <= 40


async def test_a_place_that_is_not_on_screen_reads_nothing(table: Table) -> None:
    """Only the server's clock is asked, to see that it is alive."""
    backend, statements = table.open(name="a"), list[str]()
    sa.event.listen(backend.database._reader, "before_cursor_execute", lambda *given: statements.append(given[2]))
    given = session([backend], SystemClock(), refresh=FAST, load=1.0)
    async with opened(given) as pilot:
        await until(pilot, lambda: console(pilot).monitor.healths["a"].recent)
        await pilot.press("4")
        await until(pilot, lambda: not console(pilot).monitor._shown.is_set())
        await until(pilot, lambda: not console(pilot).callers["a"]._running)  # what is being read is read to its end
        await asyncio.sleep(0.2)
        statements.clear()
        await until(pilot, lambda: len(statements) >= 2)
    assert all("clock_timestamp" in sql for sql in statements), statements


async def test_a_person_does_not_wait(table: Table) -> None:
    """The budget is used up for hours; a key reads at once."""
    async with idle_on(table, load=1e-9, keys="2") as pilot:
        await until(pilot, lambda: items(pilot).item is not None)
        table.execute(f"UPDATE {TABLE} SET vectorization_error = 'read again' WHERE vectorization_status = 'failed'")
        await pilot.press("ctrl+r")
        await until(pilot, lambda: "read again" in screen_text(pilot))


async def test_the_age_of_a_figure_is_shown_and_rows_on_screen_are_read_by_key(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page waits for the budget. Its rows do not: they are found by their keys."""
    given = session([table.open(name="a")], SystemClock(), refresh=FAST, load=0.5)
    async with opened(given) as pilot:
        screen = await failures(pilot)
        question = next(iter(q for q in console(pilot).callers["a"].budget._figures if q[0] == "page"))  # type: ignore[index]
        figure = console(pilot).callers["a"].budget._figures[question]
        figure.cost = 1_000.0  # as if it had been a very large table
        table.execute(f"UPDATE {TABLE} SET vectorization_error = 'by its key' WHERE vectorization_status = 'failed'")
        await until(pilot, lambda: "by its key" in screen_text(pilot))
        assert figure is console(pilot).callers["a"].budget._figures[question], "the page was not read again"
        await until(pilot, lambda: "as of" in screen_text(pilot))
        assert screen.table.age() > 0


async def test_estimates_are_marked(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "LARGE", 10_000)
    given = session([table.open(name="a")], SystemClock(), refresh=FAST)
    async with opened(given) as pilot:
        await until(pilot, lambda: "~" in screen_text(pilot))
        await until(pilot, lambda: "ctrl+r reads its history" in screen_text(pilot))
        await pilot.press("ctrl+r")
        await until(pilot, lambda: console(pilot).monitor.healths["a"].recent)
        await until(pilot, lambda: "ctrl+r reads its history" not in screen_text(pilot))
        await until(pilot, lambda: not console(pilot).callers["a"]._running)  # nothing is cut off at the end


async def test_everybody_with_the_same_question_gets_the_same_answer(tmp_path: Path) -> None:
    make_async(tmp_path / "queue.db", 50)
    caller = BackendCaller(open_queue(tmp_path / "queue.db", "queue"), deadline=30.0)
    asked = 0

    def count(backend: object) -> int:
        nonlocal asked
        asked += 1
        return asked

    together = await asyncio.gather(*(caller.read("counts", count) for _ in range(5)))
    assert {answer.value for answer in together} == {1}
    assert (await caller.read("counts", count)).value == 1, "not before the next refresh"
    assert (await caller.read("counts", count, asked=True)).value == 2


async def test_a_change_in_a_table_of_ten_thousand_rows_is_on_screen_within_the_refresh(tmp_path: Path) -> None:
    make_async(tmp_path / "queue.db", 10_000)
    queue = open_queue(tmp_path / "queue.db", "queue")
    async with opened(session([queue], SystemClock(), refresh=timedelta(seconds=5))) as pilot:
        await failures(pilot)
        first = items(pilot).item
        assert first is not None
        with queue.database.writing() as writer:
            writer.execute("UPDATE async_tasks SET last_error = 'another error' WHERE task_id = ?", (first.key.id,))
        changed = monotonic()
        await until(pilot, lambda: "another error" in screen_text(pilot))
        assert monotonic() - changed < 5.5 * busy()


async def test_causes_are_the_last_pass_and_what_is_new_until_the_budget_allows_the_next(tmp_path: Path) -> None:
    make_async(tmp_path / "queue.db", 300, now=SystemClock().now())
    queue = open_queue(tmp_path / "queue.db", "queue")
    async with opened(session([queue], SystemClock(), refresh=FAST, load=0.5)) as pilot:
        await pilot.press("3")
        screen = pilot.app.screen
        assert isinstance(screen, CausesScreen)
        await until(pilot, lambda: screen._passes and not screen._busy)
        known = screen._rows
        budget = console(pilot).callers["queue"].budget
        budget.note((PassKind.FULL, screen.filter), Meter(10_000.0, 1), monotonic())  # as if it were very large
        with queue.database.writing() as writer:
            writer.execute(
                "INSERT INTO async_tasks VALUES ('new', 'EMBED', 'e', 'FAILED', 4, ?, 'a new cause', ?, ?)",
                [SystemClock().now().isoformat()] * 3,
            )
        await until(pilot, lambda: any("a new cause" in cause.sample for cause in screen.table.causes))
        assert screen._rows > known
        await until(pilot, lambda: "causes of ~" in screen_text(pilot))
        await until(pilot, lambda: "as of" in screen_text(pilot))
        await pilot.press("ctrl+r")
        await until(pilot, lambda: "causes of ~" not in screen_text(pilot) and screen._rows == known + 1)
