"""Going back in the recorded past, reports from the console, and recording while it is open."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from console.core.backend import Attempts, Operation
from console.core.cause_life import CauseState, CauseStates
from console.core.causes import Causes
from console.core.confirm import Confirmation, Who
from console.core.faults import HistoryUnavailable
from console.core.history import RecordResult
from console.core.plan import Matching
from console.core.query import Filter
from console.core.session import Session
from console.history.recorder import HistoryRecorder, Sampler, snapshot_of
from console.history.samples import SampleWriter
from console.history.store import HistoryStore, open_history
from console.last_looked import last_looked, note_look
from console.testing.clock import FrozenClock
from console.ui.backend_calls import CancelFlag
from console.ui.past import ShowsPast
from console.ui.recording import record_while_open
from console.ui.screens.causes import CausesScreen
from console.ui.screens.overview import OverviewScreen
from console.ui.widgets.past_chart import AXIS, PastChart
from console.ui.widgets.system_table import SystemTable
from console.ui.widgets.time_line import TimeLine
from console.ui.widgets.top_causes import TopCauses
from tests.history.world import reading
from tests.ui.driving import NARROW, WIDE, opened, screen_text, toasts, until
from tests.ui.test_causes import causes, with_states

ERROR = "aa11bb22cc33"


@contextmanager
def with_past(folder: Path, *, sampled: bool = False) -> Iterator[Session]:
    """A session whose history has other figures than its systems: 77 failures half an hour ago, 99 an hour ago."""
    given = with_states(folder)
    history = open_history(f"sqlite:///{folder}/history.db", read_only=False)
    writer, now = SampleWriter(history.storage, "me"), given.clock.now()
    for minutes, count in ((60, 99), (50, 99), (40, 88), (30, 77), (20, 66), (10, 55)):
        shown = replace(reading("jobs", {ERROR: count}, retrying=4, due=3), sampled=sampled)
        writer.write([shown], now - timedelta(minutes=minutes))
    yield replace(given, history=history, sample=lambda: snapshot_of(Sampler(given.entries).read(now), now))
    history.close()


async def test_in_the_past_the_line_below_the_causes_fits(tmp_path: Path) -> None:
    with with_past(tmp_path) as given:
        note_look(given.clock.now() - timedelta(days=2), tmp_path / "state")
        async with opened(given, NARROW) as pilot:
            screen = await causes(pilot)
            await until(pilot, lambda: "new since you looked" in screen_text(pilot))
            await pilot.press(",")
            await until(pilot, lambda: screen.then is not None and "esc: now" in screen_text(pilot))
            assert re.search(r"as recorded .* esc: now +1 cause of .* failures *$", screen_text(pilot), re.MULTILINE)


async def test_causes_as_they_were(tmp_path: Path) -> None:
    with with_past(tmp_path) as given:
        async with opened(given, NARROW) as pilot:
            await pilot.press("3")
            screen = pilot.app.screen
            assert isinstance(screen, CausesScreen)
            await until(pilot, lambda: screen.table.causes and not screen._busy)
            live = {cause.signature for cause in screen.table.causes}
            assert ERROR not in live
            await pilot.press("comma")
            await until(pilot, lambda: [cause.count for cause in screen.table.causes] == [55])
            shown_at = given.clock.now() - timedelta(minutes=10)
            assert f"as recorded {shown_at:%m-%d %H:%M}Z, 10m ago" in " ".join(screen_text(pilot).split())
            await pilot.press("comma", "comma")
            await until(pilot, lambda: [cause.count for cause in screen.table.causes] == [77])
            await pilot.press("r")
            await until(pilot, lambda: "this is the past" in toasts(pilot))
            assert pilot.app.screen is screen
            await pilot.press("full_stop")
            await until(pilot, lambda: [cause.count for cause in screen.table.causes] == [66])
            await pilot.press("escape")
            await until(pilot, lambda: {cause.signature for cause in screen.table.causes} == live)
            assert screen.then is None


async def test_the_charts_of_the_past_do_not_call_it_now(tmp_path: Path) -> None:
    with with_past(tmp_path) as given:
        async with opened(given, WIDE) as pilot:
            screen = pilot.app.screen
            assert isinstance(screen, OverviewScreen)
            await until(pilot, lambda: "└-24h" in screen_text(pilot) and "└now" in screen_text(pilot))
            charts = lambda: [line.split(" │ ")[0] for line in screen_text(pilot).splitlines() if "└" in line]  # noqa: E731
            assert [line.split()[0] for line in charts()] == ["└-24h", "└now"]
            await pilot.press("comma")
            shown_at = given.clock.now() - timedelta(minutes=10)
            await until(pilot, lambda: screen.then is not None and f"└{shown_at:%H:%M} " in screen_text(pilot))
            assert charts()[0].split()[-1] == f"{shown_at:%H:%M}"
            await pilot.press("escape")
            await until(pilot, lambda: "└now" in screen_text(pilot))


async def test_causes_that_were_counted_in_a_sample_say_so_in_the_past(tmp_path: Path) -> None:
    with with_past(tmp_path, sampled=True) as given:
        async with opened(given, NARROW) as pilot:
            await until(pilot, lambda: pilot.app.screen.query_one(TopCauses).causes)
            await pilot.press("comma")
            await until(pilot, lambda: re.search(r" ~55 .*jobs", screen_text(pilot)))
            await pilot.press("3", "comma")
            await until(pilot, lambda: "1 cause of ~55 failures" in " ".join(screen_text(pilot).split()))
            assert re.search(r" ~55 .*jobs", screen_text(pilot))


async def test_the_past_begins_somewhere_and_ends_now(tmp_path: Path) -> None:
    with with_past(tmp_path) as given:
        async with opened(given, NARROW) as pilot:
            await pilot.press("3")
            screen = pilot.app.screen
            assert isinstance(screen, CausesScreen)
            await until(pilot, lambda: screen.table.causes and not screen._busy)
            assert given.history is not None
            first, _ = given.history.recorded() or (None, None)
            await pilot.press(*["comma"] * 7)  # faster than they are answered
            await until(pilot, lambda: screen.then is not None and screen.then.at == first)
            assert [cause.count for cause in screen.table.causes] == [99]
            await pilot.press("comma")
            await until(pilot, lambda: "Nothing older is recorded" in toasts(pilot))
            await pilot.press(*["full_stop"] * 8)
            await until(pilot, lambda: screen.then is None)


async def test_the_overview_as_it_was(tmp_path: Path) -> None:
    with with_past(tmp_path) as given:
        async with opened(given, NARROW) as pilot:
            screen = pilot.app.screen
            assert isinstance(screen, OverviewScreen)
            await until(pilot, lambda: screen.query_one(TopCauses).causes)
            await pilot.press("comma")
            await until(pilot, lambda: [cause.count for cause in screen.query_one(TopCauses).causes] == [55])
            shown = {health.name: health for health in screen.query_one(SystemTable).healths}
            assert sum(count.value for count in shown["jobs"].counts.values()) == 59
            assert not shown["analysis-queue"].answered  # nothing was recorded about it
            assert given.history is not None
            _, last = given.history.recorded() or (None, None)
            await until(pilot, lambda: f" {last:%m-%d %H:%M}Z, 10m ago " in screen_text(pilot).splitlines()[0])
            screen.update_each_second()
            assert [cause.count for cause in screen.query_one(TopCauses).causes] == [55]
            await pilot.press("escape")
            await until(pilot, lambda: len(screen.query_one(TopCauses).causes) > 1)
            await until(pilot, lambda: all(health.answered for health in screen.query_one(SystemTable).healths))


async def test_the_past_has_a_line_of_time_with_deploys_and_overrides(tmp_path: Path) -> None:
    with with_past(tmp_path) as given:
        now, operations = given.clock.now(), given.operations
        assert operations is not None
        assert isinstance(given.history, HistoryStore)
        plan = operations.propose(Matching(Filter.parse("condition:terminal error~limit"), limit=3), Operation(attempts=Attempts.RESET))
        override = operations.carry_out(plan, Confirmation(given.who, given.origin, "the limits are lifted", plan.changes))
        given.history.add_mark("api [b]v1[/b]", "ann", now - timedelta(minutes=34))
        for place in ("1", "3"):
            async with opened(given, NARROW) as pilot:
                await pilot.press(place)
                screen = pilot.app.screen
                assert isinstance(screen, ShowsPast)
                await until(pilot, lambda: screen.query_one(TimeLine).display is False)  # noqa: B023
                await pilot.press(*["comma"] * 3)
                await until(pilot, lambda: "api [b]v1[/b] 3m before" in screen_text(pilot))
                text = screen_text(pilot)
                assert f"{override.override_id} " in text
                assert "31m later" in text
                line = next(one for one in text.splitlines() if "▲─" in one and " now" in one)
                assert line.index("│") < line.index("▲") < line.index("●")
                await pilot.press("escape")
                await until(pilot, lambda: "31m later" not in screen_text(pilot))


async def test_the_panel_of_a_cause_says_after_which_deploy_it_began_and_leaves_gaps_empty(tmp_path: Path) -> None:
    with with_past(tmp_path) as given:
        history, now = given.history, given.clock.now()
        assert isinstance(history, HistoryStore)
        async with opened(given, WIDE) as pilot:
            screen = await causes(pilot)
            cause = screen.table.cause
            assert cause is not None
            signature = cause.signature or ""
            life = screen.table.past.life(cause)
            assert life.first_seen is not None
            SampleWriter(history.storage, "other").write([reading("jobs", {signature: 3})], now - timedelta(minutes=1))
            history.add_mark("api v9", "ann", life.first_seen - timedelta(minutes=4))
            history.add_mark("web v2", "bo", now - timedelta(minutes=90))
            await pilot.press("ctrl+r")
            await until(pilot, lambda: "began after  api v9" in screen_text(pilot))
            text = screen_text(pilot)
            assert re.search(r"last 24 h +·{23}▇", text), text  # nothing was recorded before: no data, and no zeros
            assert re.search(r"▴ +▴ +17:20 api v9   01:42 web v2", text), text


async def test_what_is_new_since_this_person_looked_is_marked(tmp_path: Path) -> None:
    given = with_states(tmp_path)
    folder, now = tmp_path / "state", given.clock.now()
    note_look(now - timedelta(days=2), folder)
    async with opened(given, WIDE) as pilot:
        screen = await causes(pilot)
        new = sum(map(screen.table.past.is_new_to_you, screen.table.causes))
        assert new
        await until(pilot, lambda: f"* {new} new since you looked" in screen_text(pilot))
    assert last_looked(folder) == now
    async with opened(given, WIDE) as pilot:
        await causes(pilot)
        assert "new since you looked" not in screen_text(pilot)
    note_look(now - timedelta(days=2), folder)
    async with opened(replace(given, read_only=True), WIDE) as pilot:
        await causes(pilot)
    assert last_looked(folder) == now - timedelta(days=2)  # read-only mode writes nothing


def forget_all(history: HistoryStore) -> None:
    """So that older samples can be written."""
    with history.storage.writing() as transaction:
        for table in ("point", "coverage", "series"):
            transaction.run(f"DELETE FROM @{table}")


async def test_the_last_day_is_as_recorded_and_shows_the_deploys(tmp_path: Path) -> None:
    """Where most of it was; so a requeue does not rewrite the past. Hours in which nothing was recorded are no zeros."""
    with with_past(tmp_path) as given:
        history, now = given.history, given.clock.now()
        assert isinstance(history, HistoryStore)
        writer = SampleWriter(history.storage, "me")
        history.add_mark("api v1.2.3", "ann", now - timedelta(hours=6))
        async with opened(given, WIDE) as pilot:
            screen = pilot.app.screen
            assert isinstance(screen, OverviewScreen)
            await until(pilot, lambda: screen.query(PastChart))
            chart = screen.query_one(PastChart)
            await until(pilot, lambda: "by the rows' times" in screen_text(pilot))  # an hour is too little
            assert not chart.recorded
            forget_all(history)
            for quarter in range(80, 0, -1):
                at, count = now - quarter * timedelta(minutes=15), 40 if quarter > 24 else 80
                writer.write([reading("jobs", {ERROR: count}), reading("analysis-queue", {ERROR: 1})], at)
            screen._read_past()
            await until(pilot, lambda: chart.recorded and chart.display)
            await until(pilot, lambda: "failed items, last 24 h" in screen_text(pilot))
            shown = screen_text(pilot)
            assert "81 now   as recorded   │ api v1.2.3 6h ago" in shown
            lines = shown.splitlines()
            first = next(n for n, line in enumerate(lines) if "failed items, last 24 h" in line)
            deploy = AXIS + chart._room * 3 // 4
            assert {lines[n][deploy] for n in range(first + 1, first + 5)} == {"│"}
            row = next(line for line in lines if line.strip().startswith("jobs "))
            assert re.search("·+▄+▇+ ", row), row


async def test_without_a_history_the_rows_tell_the_last_day(tmp_path: Path) -> None:
    async with opened(with_states(tmp_path), WIDE) as pilot:
        await until(pilot, lambda: "by the rows' times" in screen_text(pilot) and "-24h" in screen_text(pilot))
        assert not pilot.app.screen.query_one(PastChart).recorded


async def test_overview_says_how_many_causes_it_does_not_list(tmp_path: Path) -> None:
    with with_past(tmp_path) as given:
        assert isinstance(given.history, HistoryStore)
        forget_all(given.history)
        many = {f"{number:012x}": number + 1 for number in range(60)}
        SampleWriter(given.history.storage, "me").write([reading("jobs", many)], given.clock.now() - timedelta(minutes=10))
        async with opened(given, NARROW) as pilot:
            await until(pilot, lambda: "top causes" in screen_text(pilot))
            await pilot.press("comma")
            await until(pilot, lambda: "top 40 of 60 causes" in screen_text(pilot))
            await pilot.press("escape")
            await until(pilot, lambda: "top causes" in screen_text(pilot))


async def test_a_report_is_written(tmp_path: Path) -> None:
    with with_past(tmp_path) as given:
        async with opened(given) as pilot:
            screen = pilot.app.screen
            assert isinstance(screen, OverviewScreen)
            await until(pilot, lambda: screen.query_one(TopCauses).causes)
            await pilot.press("R")
            await until(pilot, lambda: pilot.app.screen is not screen and pilot.app.focused is not None)
            field = pilot.app.focused
            field.value = str(tmp_path / "handover.html")  # type: ignore[union-attr]
            await pilot.press("enter")
            await until(pilot, lambda: "Wrote" in toasts(pilot))
        text = (tmp_path / "handover.html").read_text()
        assert "Hand-over, 12h to" in text
        assert "rate limit" in text


# --- recording


class CountingRecorder(HistoryRecorder):
    """Ends the console after some samples."""

    def __init__(self, history: HistoryStore, clock: FrozenClock, stop: CancelFlag, fails: int) -> None:
        super().__init__(history.storage, SampleWriter(history.storage, "console"), Sampler(()), clock)
        self.results: list[RecordResult | None] = []
        self._stop, self._fails = stop, fails

    def record(self) -> RecordResult:
        self._stop.requested = len(self.results) >= 4
        if len(self.results) < self._fails:
            self.results.append(None)
            raise HistoryUnavailable("the disk is full")
        self.results.append(super().record())
        return RecordResult.RECORDED


def test_the_open_console_records_every_minute_and_says_once_why_it_cannot(tmp_path: Path) -> None:
    stop, clock = CancelFlag(), FrozenClock()
    history = open_history(f"sqlite:///{tmp_path}/history.db", read_only=False)
    recorder = CountingRecorder(history, clock, stop, fails=2)
    given = replace(with_states(tmp_path), clock=clock, recorder=lambda _budgets: recorder)
    said: list[str] = []
    thread = threading.Thread(target=record_while_open, args=(given, {}, stop, said.append))
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert recorder.results == [None, None, RecordResult.RECORDED, RecordResult.RECORDED, RecordResult.RECORDED]
    assert said == ["The history cannot be used: the disk is full"]
    history.close()
    for off in ({"recorder": None}, {"record_history": False}):
        record_while_open(replace(given, **off), {}, CancelFlag(), said.append)  # returns at once


async def test_overview_and_causes_agree_about_a_cause_that_began_days_ago(tmp_path: Path) -> None:
    """Its items may be new, but the history has seen the cause before: it is ongoing, not new."""
    with with_past(tmp_path) as given:
        history, now = given.history, given.clock.now()
        assert isinstance(history, HistoryStore)
        async with opened(given, NARROW) as pilot:
            overview = pilot.app.screen
            assert isinstance(overview, OverviewScreen)
            await until(pilot, lambda: overview.query_one(TopCauses).lives)
            signature = next(iter(overview.query_one(TopCauses).lives))
            SampleWriter(history.storage, "other").write([reading("jobs", {signature: 3})], now - timedelta(days=3))
            await pilot.press("ctrl+r")
            await until(pilot, lambda: overview.query_one(TopCauses).lives[signature].state is CauseState.ONGOING)
            await pilot.press("3")
            screen = pilot.app.screen
            assert isinstance(screen, CausesScreen)
            await until(pilot, lambda: screen.table.past.lives.get(signature))
            assert screen.table.past.lives[signature].state is CauseState.ONGOING


async def test_overview_and_the_preview_of_an_item_name_what_had_resolved_its_cause(tmp_path: Path) -> None:
    given = with_states(tmp_path)
    assert given.causes is not None
    assert given.trail is not None
    found = Causes(given.backends, Filter.parse(""), given.clock.now()).collect()
    cause = max((one for one in found if one.signature), key=lambda one: one.count)
    assert cause.last is not None
    earlier = FrozenClock(cause.last - timedelta(days=5))
    CauseStates(given.trail, earlier, Who(1001, "cy"), given.origin).resolve(cause, "fixed")
    async with opened(given, WIDE) as pilot:
        overview = pilot.app.screen
        assert isinstance(overview, OverviewScreen)
        await until(pilot, lambda: overview.query_one(TopCauses).lives)
        await pilot.press("tab")
        causes = overview.query_one(TopCauses)
        while causes.cause is None or causes.cause.signature != cause.signature:
            await pilot.press("down")
        await until(pilot, lambda: re.search(r"regressed *\n.* resolved by +cy ", screen_text(pilot)))
        await pilot.press("enter")
        await until(pilot, lambda: f"{cause.signature} · regressed, had been" in screen_text(pilot))
