"""A console that nobody touches asks little of the systems it watches, and what it shows says how old it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable, Iterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any

import pytest
import sqlalchemy as sa
from textual.pilot import Pilot

from console.core.backend import ErrorBatch
from console.core.budget import Meter, ReadingBudget, charge
from console.core.causes import Causes
from console.core.faults import DeadlineExceeded
from console.core.query import Filter
from console.core.session import Session
from console.process import SystemClock
from console.sql import counting
from console.ui import health
from console.ui.backend_calls import BackendCaller
from console.ui.screens.causes import CausesScreen, PassKind
from console.ui.screens.item import ItemScreen
from console.ui.widgets import item_preview
from tests.patience import PATIENCE, busy
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


async def scans(table: Table) -> int:
    """How many times the whole table was read, by the server's own statistics.

    A connection adds what it has read at the latest when it ends, so those of the console have to be closed.
    """
    ours = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'retriage' AND datname = current_database()"
    async with asyncio.timeout(PATIENCE):
        while table.rows(ours):
            await asyncio.sleep(0.05)
    table.execute("SELECT pg_stat_clear_snapshot()")
    ((found,),) = table.rows("SELECT seq_scan FROM pg_stat_user_tables WHERE relname = 'answer_analysis'")
    return int(found)


@asynccontextmanager
async def patient(given: Session) -> AsyncIterator[Pilot[None]]:
    """A console that waits for answers for as long as these tests do: one that it gave up would not be asked for again."""
    async with opened(given, deadline=PATIENCE) as pilot:
        yield pilot
    given.close()  # else its connections are open until they are collected, in some later test


@asynccontextmanager
async def idle_on(table: Table, load: float, keys: str = "") -> AsyncIterator[Pilot[None]]:
    """A console on this table that shows a place and is left alone for thirty refreshes."""
    given = session([table.open(name="a")], SystemClock(), refresh=FAST, load=load)
    async with patient(given) as pilot:
        await until(pilot, lambda: console(pilot).monitor.healths["a"].counts)
        for key in keys:
            await pilot.press(key)
        await asyncio.sleep(0.5)
        yield pilot


async def scans_when_idle(table: Table, load: float, keys: str = "") -> int:
    """How often the table was scanned for opening a place and for thirty refreshes of it."""
    before = await scans(table)
    async with idle_on(table, load, keys) as pilot:
        await until(pilot, lambda: not console(pilot).callers["a"]._running)  # nothing is cut off at the end
        await asyncio.sleep(REFRESHES * FAST.total_seconds())
    return await scans(table) - before


@pytest.mark.parametrize("place", ["1", "2", "3"])
async def test_reads_that_nobody_asked_for_wait_until_they_are_paid_for(
    table: Table, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening a place takes about twenty scans. Without the budget every refresh scans the table for each condition:
    hundreds of times here."""
    monkeypatch.setattr(health, "_BEAT", 0.05)  # as fast as the refresh, to know the round trip on a busy machine, too
    assert await scans_when_idle(table, load=1e-5, keys=place) <= 40


async def test_a_place_that_is_not_on_screen_reads_nothing(table: Table) -> None:
    """Only the server's clock is asked, to see that it is alive."""
    backend, statements = table.open(name="a"), list[str]()
    sa.event.listen(backend.database._reader, "before_cursor_execute", lambda *given: statements.append(given[2]))
    given = session([backend], SystemClock(), refresh=FAST, load=1.0)
    async with patient(given) as pilot:
        await until(pilot, lambda: console(pilot).monitor.healths["a"].recent)
        await pilot.press("4")
        await until(pilot, lambda: not console(pilot).monitor._shown.is_set())
        await until(pilot, lambda: not console(pilot).callers["a"]._running)  # what is being read is read to its end
        await asyncio.sleep(0.2)
        statements.clear()
        await until(pilot, lambda: len(statements) >= 2)
    assert all("clock_timestamp" in sql for sql in statements), statements


def test_new_failures_are_not_looked_for_where_that_reads_the_whole_table(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "LARGE", 10_000)
    backend, statements = table.open(name="a"), list[str]()
    first = Causes([backend], Filter(), backend.now())
    first.collect()
    sa.event.listen(backend.database._reader, "before_cursor_execute", lambda *given: statements.append(given[2]))
    again = Causes([backend], Filter(), backend.now(), passes=dict(first.passes), only_new={"a": first.now})
    statements.clear()
    assert again.collect() == first.collect()
    assert not [sql for sql in statements if TABLE in sql.replace('"', "")]
    assert again.costs["a"].seconds >= first.costs["a"].seconds, "it is not tried all the time"
    assert again.passes["a"].new is None
    backend.close()


async def test_a_server_that_was_only_slow_is_not_asked_for_everything_again(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "_BEAT", 0.05)
    given = session([table.open(name="a")], SystemClock(), refresh=FAST, load=1e-9)
    async with patient(given) as pilot:
        caller, monitor = console(pilot).callers["a"], console(pilot).monitor
        await until(pilot, lambda: monitor.healths["a"].recent and ("counts", Filter()) in caller.budget._figures)
        monkeypatch.setattr(health, "_BEAT_DEADLINE", 1e-6)
        await until(pilot, lambda: monitor.healths["a"].fault)
        caller.budget.note(("counts", Filter()), Meter(10_000.0, 1), monotonic())  # one that cost nothing is read again
        known = caller.budget._figures[("counts", Filter())].read_at
        monkeypatch.setattr(health, "_BEAT_DEADLINE", 5.0)
        await until(pilot, lambda: monitor.healths["a"].fault is None)
        await asyncio.sleep(0.5)
        assert caller.budget._figures[("counts", Filter())].read_at == known


async def test_checking_a_system_again_waits_for_the_budget(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "_CHECK_EVERY", 0.01)
    backend, statements = table.open(name="a"), list[str]()
    sa.event.listen(backend.database._reader, "before_cursor_execute", lambda *given: statements.append(given[2]))
    given = session([backend], SystemClock(), refresh=FAST)
    async with patient(given) as pilot:
        await until(pilot, lambda: console(pilot).monitor.healths["a"].findings)
        caller = console(pilot).callers["a"]
        await until(pilot, lambda: not caller._asking)
        caller.budget.note("check", Meter(10_000.0, 1), monotonic())  # a small table's costs next to nothing
        await asyncio.sleep(0.5)
        statements.clear()
        await asyncio.sleep(REFRESHES * FAST.total_seconds())
        assert not [sql for sql in statements if "has_table_privilege" in sql]


async def test_causes_that_could_not_be_counted_wait_for_the_budget(tmp_path: Path) -> None:
    """Those of the other system are counted at every refresh."""
    for name in ("good", "bad"):
        make_async(tmp_path / f"{name}.db", 5)
    good, bad = (open_queue(tmp_path / f"{name}.db", name) for name in ("good", "bad"))
    statements = list[str]()
    async with patient(session([good, bad], SystemClock(), refresh=FAST, load=0.5)) as pilot:
        await until(pilot, lambda: console(pilot).monitor.healths["bad"].counts)
        with bad.database.writing() as writer:
            writer.execute("ALTER TABLE async_tasks RENAME TO gone", ())
        await pilot.press("3")
        screen = pilot.app.screen
        assert isinstance(screen, CausesScreen)
        await until(pilot, lambda: "good" in screen._passes and not screen._busy)
        console(pilot).callers["bad"].budget.note((PassKind.FULL, screen.filter), Meter(10_000.0, 1), monotonic())
        generation = screen._generation
        sa.event.listen(bad.database._reader, "before_cursor_execute", lambda *given: statements.append(given[2]))
        await until(pilot, lambda: screen._generation > generation + 3)
        assert not [sql for sql in statements if "async_tasks" in sql]


async def test_causes_wait_until_it_is_known_how_many_failures_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow system answers before its counts are there. It may have millions of failures."""
    make_async(tmp_path / "queue.db", 50)
    queue, known, streams = open_queue(tmp_path / "queue.db", "queue"), Event(), list[str]()
    counts, errors = queue.counts, queue.errors

    def streamed(*given: Any) -> Iterator[ErrorBatch]:
        streams.append("errors")
        return errors(*given)

    monkeypatch.setattr(queue, "counts", lambda *given: counts(*given) if known.wait(PATIENCE) else {})
    monkeypatch.setattr(queue, "errors", streamed)
    async with patient(session([queue], SystemClock(), refresh=FAST, load=1.0)) as pilot:
        await until(pilot, lambda: console(pilot).monitor.healths["queue"].answered)
        await asyncio.sleep(10 * FAST.total_seconds())
        assert not streams
        assert "counting…" in screen_text(pilot)
        known.set()
        await until(pilot, lambda: streams)


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
    note = ReadingBudget.note

    def note_as_of_a_very_large_table(self: ReadingBudget, question: Hashable, meter: Meter, now: float) -> None:
        is_page = isinstance(question, tuple) and question[0] == "page"
        note(self, question, Meter(1_000.0, 1) if is_page else meter, now)

    monkeypatch.setattr(ReadingBudget, "note", note_as_of_a_very_large_table)
    given = session([table.open(name="a")], SystemClock(), refresh=FAST, load=0.5)
    async with patient(given) as pilot:
        screen = await failures(pilot)
        await until(pilot, lambda: "as of" in screen_text(pilot))
        table.execute(f"UPDATE {TABLE} SET vectorization_error = 'by its key' WHERE vectorization_status = 'failed'")
        await until(pilot, lambda: "by its key" in screen_text(pilot))
        await until(pilot, lambda: "as of" in screen_text(pilot))
        assert screen.table.age() > 0


async def test_estimates_are_marked(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "LARGE", 10_000)
    given = session([table.open(name="a")], SystemClock(), refresh=FAST)
    async with patient(given) as pilot:
        await until(pilot, lambda: "~" in screen_text(pilot))
        await until(pilot, lambda: "ctrl+r reads it" in screen_text(pilot))
        await pilot.press("ctrl+r")
        await until(pilot, lambda: console(pilot).monitor.healths["a"].recent)
        await until(pilot, lambda: "ctrl+r reads it" not in screen_text(pilot))
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


async def test_a_person_who_asks_during_a_refresh_gets_an_answer_of_their_own(tmp_path: Path) -> None:
    """The refresh leaves out what is costly."""
    make_async(tmp_path / "queue.db", 50)
    caller, go = BackendCaller(open_queue(tmp_path / "queue.db", "queue"), deadline=PATIENCE), Event()
    refresh = asyncio.create_task(caller.read("figure", lambda _: go.wait(PATIENCE) and None))
    await asyncio.sleep(0)
    asked = [asyncio.create_task(caller.read("figure", lambda _: "all", asked=True)) for _ in range(2)]
    await asyncio.sleep(0.05)
    go.set()
    assert (await refresh).value is None
    assert [(await one).value for one in asked] == ["all", "all"]


async def test_a_change_in_a_table_of_ten_thousand_rows_is_on_screen_within_the_refresh(tmp_path: Path) -> None:
    make_async(tmp_path / "queue.db", 10_000)
    queue = open_queue(tmp_path / "queue.db", "queue")
    async with patient(session([queue], SystemClock(), refresh=timedelta(seconds=5))) as pilot:
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
    async with patient(session([queue], SystemClock(), refresh=FAST, load=0.5)) as pilot:
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


# --- every other read that nobody asked for ----------------------------------------------------------


class CountedQueue:
    """A queue of which every read of this kind is counted, and costs ten seconds."""

    def __init__(self, path: Path, rows: int, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
        make_async(path, rows)
        self.queue, self.calls = open_queue(path, "queue"), 0
        read = getattr(self.queue, method)

        def counted(*given: Any) -> Any:
            self.calls += 1
            charge(10.0)
            return read(*given)

        monkeypatch.setattr(self.queue, method, counted)

    def session(self) -> Session:
        return session([self.queue], SystemClock(), refresh=FAST)

    async def calls_when_idle(self) -> int:
        """How many more there are in ten refreshes."""
        before = self.calls
        await asyncio.sleep(10 * FAST.total_seconds())
        return self.calls - before


async def test_an_open_item_is_read_again_as_often_as_the_budget_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = CountedQueue(tmp_path / "queue.db", 5, "item", monkeypatch)
    async with patient(counted.session()) as pilot:
        await failures(pilot)
        await pilot.press("enter")
        screen = pilot.app.screen
        assert isinstance(screen, ItemScreen)
        await until(pilot, lambda: screen._detail is not None)
        await asyncio.sleep(0.5)  # the preview of the list is read, too
        assert await counted.calls_when_idle() == 0
        known = counted.calls
        await pilot.press("ctrl+r")
        await until(pilot, lambda: counted.calls > known)
        assert screen._read_at is not None
        screen._read_at -= timedelta(seconds=70)
        await until(pilot, lambda: "as of 1m" in screen_text(pilot))


async def test_the_preview_of_an_item_that_a_refresh_has_put_first_waits_for_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(item_preview, "_SETTLED", 0.01)
    counted = CountedQueue(tmp_path / "queue.db", 3, "item", monkeypatch)
    async with patient(counted.session()) as pilot:
        screen = await failures(pilot)
        await until(pilot, lambda: counted.calls and screen.preview._reading is None)  # it may have been too slow
        for n in range(4):
            now = SystemClock().now().isoformat()
            with counted.queue.database.writing() as writer:
                row = (f"new{n}", "EMBED", "e", "FAILED", 4, now, "a new failure", now, now)
                writer.execute("INSERT INTO async_tasks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
            await until(pilot, lambda n=n: screen.preview.item.key.id == f"new{n}")  # type: ignore[misc, union-attr]
            await asyncio.sleep(0.1)
        assert counted.calls == 1
        await pilot.press("j")
        await until(pilot, lambda: screen.preview.item.key in screen.preview._details)  # type: ignore[union-attr]
        assert counted.calls == 2


@pytest.mark.parametrize("fails", [False, True])
async def test_a_preview_that_takes_longer_than_a_refresh_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """A person has moved to the item. The refreshes that read its row again are no reason to read its details again."""
    monkeypatch.setattr(item_preview, "_SETTLED", 0.01)
    counted, go_on = CountedQueue(tmp_path / "queue.db", 3, "item", monkeypatch), Event()
    read = counted.queue.item

    def slow(*given: Any) -> Any:
        found = read(*given)
        assert go_on.wait(PATIENCE)
        if fails:
            raise DeadlineExceeded("the query was cancelled", where="queue")
        return found

    async with patient(counted.session()) as pilot:
        screen = await failures(pilot)
        await until(pilot, lambda: counted.calls and screen.preview._reading is None)  # it may have been too slow
        monkeypatch.setattr(counted.queue, "item", slow)
        await pilot.press("j")
        await until(pilot, lambda: counted.calls == 2)

        async def refreshed() -> None:
            for _ in range(5):
                assert screen.preview.item is not None
                seen = screen.preview.item.read_at
                await until(pilot, lambda seen=seen: screen.preview.item.read_at > seen)  # type: ignore[misc, union-attr]

        await refreshed()
        assert counted.calls == 2
        go_on.set()
        await until(pilot, lambda: screen.preview._reading is None)
        assert bool(screen.preview._fault) == fails
        await refreshed()
        assert counted.calls == 2
        await pilot.press("ctrl+r")
        await until(pilot, lambda: counted.calls == 3)


async def test_an_item_that_left_the_list_is_looked_for_as_often_as_the_budget_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = CountedQueue(tmp_path / "queue.db", 9, "items", monkeypatch)
    async with patient(counted.session()) as pilot:
        await failures(pilot)
        await pilot.press("j")
        found = items(pilot).item
        assert found is not None
        with counted.queue.database.writing() as writer:
            writer.execute("UPDATE async_tasks SET status = 'DONE' WHERE task_id = ?", (found.key.id,))
        await until(pilot, lambda: "no longer matches" in screen_text(pilot))
        assert await counted.calls_when_idle() == 0


async def test_rows_read_ahead_are_not_read_again_at_every_refresh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = CountedQueue(tmp_path / "queue.db", 600, "page", monkeypatch)
    async with patient(counted.session()) as pilot:
        await failures(pilot)
        items(pilot).cursor = 90
        await until(pilot, lambda: items(pilot).item is not None and items(pilot)._wanted() is None)
        await until(pilot, lambda: not items(pilot)._reading)
        assert counted.calls >= 2
        assert await counted.calls_when_idle() == 0
        known = counted.calls
        await pilot.press("ctrl+r")
        await until(pilot, lambda: counted.calls > known)


async def test_one_slow_answer_does_not_make_every_read_seem_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the console starts, the first answer takes longer than the way to the system and back."""
    counted, asked = CountedQueue(tmp_path / "queue.db", 5, "page", monkeypatch), 0
    now = counted.queue.now

    def first_is_slow() -> datetime:
        nonlocal asked
        asked += 1
        charge(20.0 if asked == 1 else 0.0)
        return now()

    monkeypatch.setattr(counted.queue, "now", first_is_slow)
    async with patient(counted.session()) as pilot:
        await failures(pilot)
        await until(pilot, lambda: console(pilot).callers["queue"].budget._trips)
        known = counted.calls
        await pilot.press("ctrl+r")
        await until(pilot, lambda: counted.calls > known and not items(pilot)._reading)
        assert await counted.calls_when_idle() == 0
