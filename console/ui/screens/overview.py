"""Overview: one line per system, the causes that matter now, and the retries of the next hour or day."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from heapq import nlargest
from time import monotonic
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widgets import Static

from console.actions.catalogue import NO_CONFIG
from console.core.backend import Histogram
from console.core.budget import HOLD_LIMIT
from console.core.cause_count import Cause
from console.core.cause_life import CauseLife, CauseState
from console.core.causes import CausePass, Causes
from console.core.faults import Fault
from console.core.history import History, Snapshot, Trend
from console.core.query import Filter
from console.core.session import Session
from console.core.text import ago, as_of, telling_line
from console.ui import cells, safe
from console.ui.actions import bindings_of
from console.ui.backend_calls import CancelFlag, in_thread, off_loop
from console.ui.cause_past import read_lives, read_trends
from console.ui.cells import Cell
from console.ui.health import BUCKETS, Health
from console.ui.item_text import pair
from console.ui.messages import SystemPastReady, TopCausesReady
from console.ui.past import ShowsPast
from console.ui.side_panel import Chart, arranged
from console.ui.system_past import read_system_past
from console.ui.widgets.past_chart import PastChart
from console.ui.widgets.system_table import Ages, SystemTable, ages_of, fault_words
from console.ui.widgets.text_pane import Line, TextPane
from console.ui.widgets.top_causes import TopCauses, life_cell
from console.ui.widgets.upcoming_chart import UpcomingChart

_WELCOME = """[b]No systems are configured yet.[/b]

Add them to [$accent]$config[/] and start again:

[$muted]  backends:
    jobs:
      plugin: sqlite_queue
      dialect: tasks
      url: "sqlite:////srv/jobs/queue.db"[/]

[$accent]config.example.yaml[/] shows every option.
[$accent]retriage check[/] tests the config.
[$accent]retriage demo[/] opens a demo with made-up systems.$offer"""
_OFFER = """

Press [b $accent]D[/] to open the demo now. It touches nothing of yours."""

_PANEL_FROM = (132, 30)
"""The smallest terminal with a panel about the system or cause under the cursor: columns and lines."""
_CHART_LINES = 8
_MOST_CAUSES = 40
_PANEL_CAUSES = 8
_CAUSES = ("causes", Filter())
"""The question of the reading budget."""
_PAST_EVERY = 60.0


class OverviewScreen(ShowsPast):
    """Where the console opens."""

    PLACE = "overview"
    BINDINGS: ClassVar[list[BindingType]] = list(bindings_of("overview"))

    def __init__(self) -> None:
        super().__init__()
        self._stop = CancelFlag()
        self._counting = False
        self._passes: dict[str, CausePass] = {}
        self._causes: Sequence[Cause] = ()
        self._trends: Mapping[str, Trend] = {}
        """How often the causes failed in the last day, by their signatures."""
        self._expiring = ""
        """The warning of what is deleted soon, as it is shown."""
        self._height = 0
        """For how many lines the room was given."""
        self._past_read = 0.0
        """When the history was read last, by the steady clock."""
        self._skipped: list[str] = []
        """Systems with too many failures to count them without being asked."""
        self._uncounted: list[str] = []
        """Systems whose causes could not be read."""

    def compose_content(self) -> ComposeResult:
        if not self.session.entries:
            offer = Content.from_markup(_OFFER) if self.console_app.offers_demo else Content("")
            yield Static(safe.phrase(_WELCOME, config=self.session.config, offer=offer), classes="welcome")
            return
        with Horizontal(id="overview"):
            with Vertical():
                yield SystemTable(list(self.console_app.monitor.healths.values()))
                yield Static(id="expiring")
                yield TopCauses(self.session.clock.now)
                yield PastChart()
                yield UpcomingChart()
            yield TextPane(id="panel")

    def on_mount(self) -> None:
        for panel in self.query("#panel").results(TextPane):
            panel.can_focus = False
        for causes in self.query(TopCauses):
            causes.note = "counting…"
        self._give_room()

    @on(events.Resize)
    def _give_room(self) -> None:
        """Systems get at most half of the height, the chart what is left, the causes what lies between."""
        if not self.query(SystemTable):
            return
        height = self._height = self._room_now
        systems, causes, _ = self._tables
        rows = min(len(self.session.entries), max(height // 2 - 1, 2))
        systems.give_room(rows)
        systems.styles.height = rows + 1
        left = height - rows - 1 - self.query_one("#expiring").display
        wanted = max(len(causes.causes), 1) + 1
        past = self.query_one(PastChart)
        charts = min(_CHART_LINES, left // 2)
        if past.counts and left >= 3 * _CHART_LINES:
            charts = max(2 * _CHART_LINES, left * 9 // 20)
        lines = max(min(wanted, left - charts), 2)
        causes.styles.height = lines
        past.display = bool(past.counts) and left - lines >= 2 * _CHART_LINES
        self.query_one("#panel").display = self.size.width >= _PANEL_FROM[0] and self.size.height >= _PANEL_FROM[1]
        self._fill_panel()

    @property
    def _room_now(self) -> int:
        """The lines between the bars, without those that the tour takes."""
        return self.size.height - 2 - sum(panel.outer_size.height for panel in self.query("TourPanel"))

    @property
    def _tables(self) -> tuple[SystemTable, TopCauses, UpcomingChart]:
        return self.query_one(SystemTable), self.query_one(TopCauses), self.query_one(UpcomingChart)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "demo" and not self.has(NO_CONFIG):
            return False  # hidden, not greyed
        return super().check_action(action, parameters)

    def ticked(self) -> None:
        if not self.query(SystemTable) or self.then is not None:
            return
        self._show_expiring()
        if self._height != self._room_now:
            self._give_room()
        now, healths = self.session.clock.now(), self.console_app.monitor.healths
        systems, _, chart = self._tables
        if list(systems.healths) != list(healths.values()):
            systems.healths = list(healths.values())
        read = [at for health in healths.values() if (at := health.read_at.get("retries")) is not None]
        chart.healths = dict(healths)
        chart.age = as_of(now - min(read), self.session.refresh) if read else ""
        self._show_rows_past()
        self._fill_panel()
        if not self._counting and self._are_causes_missing(healths):
            self._count_causes(asked=False)

    def _show_expiring(self) -> None:
        """Warn of failures that their systems delete within a day."""
        healths = () if self.then is not None else self.console_app.monitor.healths.values()
        found = [(health.name, health.expiring) for health in healths if health.expiring is not None]
        counted = [f"{cells.count(count)} in {name}" for name, count in found if count.value]
        words = f"⚠ Deleted within a day: {', '.join(counted)}. Filter: expires<1d" if counted else ""
        if words == self._expiring:
            return
        self._expiring = words
        line = self.query_one("#expiring", Static)
        line.update(safe.phrase("$words", words=words))
        line.display = bool(words)
        self._give_room()

    def on_screen_resume(self) -> None:
        self.console_app.monitor.show(True)
        self._read_past()

    def on_screen_suspend(self) -> None:
        self.console_app.monitor.show(False)
        self._stop.requested = True
        self._counting = False

    # -- the past ----------------------------------------------------------------------------------

    def show_past(self, then: Snapshot) -> None:
        self._stop.requested = True
        self._counting = False
        systems, causes, chart = self._tables
        healths = {name: _then(health, then) for name, health in self.console_app.monitor.healths.items()}
        systems.healths = list(healths.values())
        chart.healths, self.then = healths, then
        self._show_expiring()
        chart.age = self.past_words
        chart.moment = self.query_one(PastChart).moment = f"{then.at:%H:%M}"
        self._read_past(then.at)
        states = self.session.causes
        named = [cause for cause in then.causes if cause.signature]
        causes.lives = {} if states is None else {str(c.signature): states.life(c, c.first, then.at) for c in named}
        self._show_causes(then.causes)

    def show_present(self) -> None:
        self.query_one(UpcomingChart).moment = self.query_one(PastChart).moment = ""
        self.ticked()
        self._read_past()
        self._passes.clear()
        self._count_causes(asked=True)

    def _read_past(self, end: datetime | None = None) -> None:
        """Read the last day from the history, if there is one."""
        if self.session.history is not None and self.query(PastChart):
            self._past_read = monotonic()
            self.start(partial(self._past_in_thread, self.session.history, end or self.session.clock.now()), "past")

    async def _past_in_thread(self, history: History, end: datetime) -> None:
        with suppress(Fault):  # the place that records says why it cannot be read
            self.post_message(SystemPastReady(await off_loop(lambda: read_system_past(history, end)), end))

    @on(SystemPastReady)
    def _past_ready(self, message: SystemPastReady) -> None:
        if self.then is not None and message.end != self.then.at:
            return
        self._tables[0].past = message.past
        chart = self.query_one(PastChart)
        counts = message.past.total(self.session.names)
        chart.recorded = bool(counts)
        if counts:
            chart.counts, chart.marks, chart.end = counts, message.past.marks, message.end
        self._give_room()

    def _show_rows_past(self) -> None:
        """Without a history, what the rows' own times say. It is read again every minute."""
        if monotonic() - self._past_read > _PAST_EVERY:
            self._read_past()
        chart = self.query_one(PastChart)
        recents = [h.recent.counts for h in self.console_app.monitor.healths.values() if h.recent is not None]
        if not chart.recorded and recents:
            before = bool(chart.counts)
            chart.counts = [sum(hour) for hour in zip(*recents, strict=True)]
            if not before:
                self._give_room()

    def action_report(self) -> None:
        from console.ui.report import ask_for_report  # late, to keep the first frame fast

        ask_for_report(self)

    # -- causes ------------------------------------------------------------------------------------

    def refresh_if_shown(self) -> None:
        if self.is_current and self.then is None:
            self._count_causes(asked=False)

    def read_again(self) -> None:
        self.then = None
        self._count_causes(asked=True)

    def _are_causes_missing(self, healths: Mapping[str, Health]) -> bool:
        """Whether a system has causes to count at once: on the first look, or because its counts came after that."""
        if not all(health.answered or health.fault is not None for health in healths.values()):
            return False
        live = {name for name, health in healths.items() if health.fault is None and _is_countable(health)}
        return not self._passes or not live <= self._passes.keys()

    def _count_causes(self, *, asked: bool) -> None:
        """Count in a thread what the reading budget allows; all if a person asks."""
        if self._counting or not self.query(TopCauses):
            return
        healths, now = self.console_app.monitor.healths, monotonic()
        callers = [c for c in self.console_app.callers if not c.hangs and healths[c.name].fault is None]
        few = [c for c in callers if asked or _is_countable(healths[c.name])]
        self._skipped = [c.name for c in callers if c not in few and _is_counted(healths[c.name])]
        due = {c.name for c in few if asked or c.budget.wait(_CAUSES, now) <= 0}
        if not due:
            if not few:
                self._show_causes(())
            return
        self._counting = True
        self._stop = CancelFlag()
        read = [c.backend for c in few if c.name in due or c.name in self._passes]  # the others have failed, and wait
        counting = Causes(read, Filter(), self.session.clock.now(), self._stop)
        counting.passes, counting.again = dict(self._passes), due
        counting.hold_limit = None if asked else HOLD_LIMIT
        in_thread(partial(self._count_in_thread, counting, self.session))

    def _count_in_thread(self, counting: Causes, session: Session) -> None:
        try:
            causes = counting.collect()
        except Fault:
            causes = []
        lives: Mapping[str, CauseLife] = {}
        trends: Mapping[str, Trend] = {}
        with suppress(Fault):
            lives = read_lives(session, causes)
            trends = read_trends(session, nlargest(_MOST_CAUSES, causes, key=lambda cause: cause.count))
        if not counting.stop.requested:
            self.post_message(TopCausesReady(causes, lives, trends, counting))

    @on(TopCausesReady)
    def _causes_ready(self, message: TopCausesReady) -> None:
        self._counting = False
        for name, cost in message.counting.costs.items():
            self.console_app.callers[name].budget.note(_CAUSES, cost, monotonic())
        self._passes = message.counting.finished_passes(self._passes)
        self._uncounted = [name for name in message.counting.faults if name not in self._passes]
        if self.then is not None:
            return
        self.query_one(TopCauses).lives, self._trends = message.lives, message.trends
        self._show_causes(message.causes)

    def _show_causes(self, causes: Sequence[Cause]) -> None:
        listed = self.query_one(TopCauses)
        named = [cause for cause in causes if not cause.overflow]
        listed_last = {signature for signature, life in listed.lives.items() if life.state.is_listed_last}
        listed.note = self._no_causes()
        self._causes = sorted(named, key=lambda c: (c.signature in listed_last, c.signature is None, -c.count))
        listed.causes = self._causes[:_MOST_CAUSES]
        listed.hidden_causes = len(self._causes) - len(listed.causes)
        self._give_room()

    def _no_causes(self) -> str:
        if self._skipped:
            return f"too many failures in {', '.join(self._skipped)}: ctrl+r counts their causes"
        if self._uncounted:
            return f"the causes of {', '.join(self._uncounted)} could not be counted"
        known = self.console_app.monitor.healths.values()
        return "no failures" if all(h.fault is not None or _is_counted(h) for h in known) else "counting…"

    def errors_seen(self) -> dict[str, str]:
        listed = self.query(TopCauses)
        causes = listed.first().causes if listed else ()
        return {cause.signature: telling_line(cause.sample) for cause in causes if cause.signature}

    def lives_seen(self) -> Mapping[str, CauseLife]:
        listed = self.query(TopCauses)
        return listed.first().lives if listed and self.then is None else {}

    # -- the panel ---------------------------------------------------------------------------------

    @on(SystemTable.Moved)
    @on(TopCauses.Moved)
    @on(events.DescendantFocus)
    def _fill_panel(self) -> None:
        panel = self.query_one("#panel", TextPane)
        if not panel.display:
            return
        systems, causes, _ = self._tables
        width, height = panel.size.width - 1, panel.size.height
        if causes.has_focus and causes.cause is not None:
            life = causes.lives.get(causes.cause.signature or "")
            lines = arranged(*self._about_cause(causes.cause, life), width, height)
        else:
            health = systems.health
            lines = () if health is None else arranged(*self._about_system(health), width, height)
        if lines != panel.lines:
            panel.lines = lines

    def _about_system(self, health: Health) -> tuple[list[Line], list[Chart], list[Line]]:
        """Texts, charts and a list about a system."""
        ages = ages_of(health, self.session.clock.now(), self.session.refresh)
        charts = [*self._trend(health, ages.failures), *self._retries(health)]
        return list(self._facts_of(health, ages)), charts, list(self._causes_of(health))

    def _facts_of(self, health: Health, ages: Ages) -> Iterator[Line]:
        mode = "   read-only" if health.read_only else ""
        yield [Cell(safe.line(health.name), "accent"), Cell(safe.line(f"  {health.plugin}{mode}"), "muted")]
        yield [Cell(safe.line(health.place), "muted")]
        yield []
        if health.fault is not None:
            yield [Cell("✗ ", "error"), Cell(safe.line(fault_words(health.fault), 600), "error")]
            yield []
        since = "" if health.since is None else f"{health.since:%H:%M:%S}Z"
        state = "down" if health.fault is not None else "live" if health.answered else "connecting…"
        yield pair("state", f"{state} since {since}" if since else state)
        if health.policy is not None:
            yield pair("policy", str(health.policy))
        if ages.oldest:
            yield pair("oldest", ages.oldest)
        if ages.counts:
            yield pair("counted", ages.counts)
        for warning in health.warnings:
            yield [Cell("⚠ ", "warning"), Cell(safe.line(warning, 400))]

    def _trend(self, health: Health, age: str) -> Iterator[Chart]:
        recorded = self._tables[0].past.counts(health.name, BUCKETS // 2)
        counts: Sequence[int | None] = recorded or (health.recent.counts if health.recent is not None else ())
        known = [count for count in counts if count is not None]
        if not any(known):
            return
        if recorded:
            title: Line = [Cell(f"{cells.thousands(known[-1])} failed items; the last 24 h, as recorded", "muted")]
        else:
            total = f"{cells.thousands(sum(known))} failures in 24 h, by the rows' times  "
            title = [Cell(total, "muted"), Cell(age, "muted")]
        yield Chart(title, counts, "warning", ("-24h", "now"))

    def _retries(self, health: Health) -> Iterator[Chart]:
        if health.soon is not None and any(health.soon.counts):
            title = f"{cells.thousands(sum(health.soon.counts))} retries in the next hour"
            yield Chart([Cell(title, "muted")], health.soon.counts, "calm", ("now", "+1h"))

    def _causes_of(self, health: Health) -> Iterator[Line]:
        here = {cause: count for cause in self._causes for name, count in cause.backends if name == health.name}
        if not here:
            return
        yield [Cell("causes", "muted")]
        for cause, count in sorted(here.items(), key=lambda pair: -pair[1])[:_PANEL_CAUSES]:
            text = telling_line(cause.sample) if cause.signature else "no error text"
            yield [Cell(f"{safe.fit(cells.thousands(count), 6, right=True)}  "), Cell(safe.line(text, 60), "muted")]

    def _about_cause(self, cause: Cause, life: CauseLife | None) -> tuple[list[Line], list[Chart], list[Line]]:
        """Texts and a chart about a cause."""
        trend = self._trends.get(cause.signature or "") if self.then is None else None
        charts = []
        if trend is not None and any(trend.known):
            title = f"{cells.thousands(trend.known[-1])} failed items; the last 24 h, as recorded"
            charts.append(Chart([Cell(title, "muted")], trend.values, "warning", ("-24h", "now")))
        return list(self._facts_of_cause(cause, life)), charts, []

    def _facts_of_cause(self, cause: Cause, life: CauseLife | None) -> Iterator[Line]:
        now = self.session.clock.now()
        yield [Cell(safe.line(f"cause {cause.signature or ''}"), "accent")]
        if life is not None:
            yield [life_cell(life)]
            if life.state is CauseState.REGRESSED:
                yield pair("resolved by", life.by)
        yield []
        for name, count in cause.backends:
            yield pair(name, cells.thousands(count))
        for name, at in (("first", cause.first), ("last", cause.last)):
            if at is not None:
                yield pair(name, ago(now - at))
        if cause.sample and (page := self.session.runbook(cause.sample)):
            yield pair("runbook", page, "link", safe.address(page))
        yield []
        yield from ([Cell(line)] for line in safe.lines(cause.sample))

    # -- actions -----------------------------------------------------------------------------------

    def has(self, need: str) -> bool:
        if need == NO_CONFIG:
            return self.console_app.offers_demo and not self.session.entries
        return bool(self.session.entries)

    def command(self) -> Sequence[str]:
        return ["causes" if self.query(TopCauses) and self._tables[1].has_focus else "upcoming"]

    @on(SystemTable.Chosen)
    @on(TopCauses.Chosen)
    def _chosen(self) -> None:
        self.action_open()

    def action_open(self) -> None:
        systems, causes, _ = self._tables
        if causes.has_focus:
            cause = causes.cause
            if cause is not None:
                self.console_app.show_failures(f"cause:{cause.signature}" if cause.signature else "-cause:*")
        elif systems.health is not None:
            self.console_app.show_failures(f"backend:{systems.health.name}")
        else:
            systems.list_all()

    def action_next_list(self) -> None:
        systems, causes, _ = self._tables
        (causes if systems.has_focus else systems).focus()

    def action_demo(self) -> None:
        self.console_app.open_demo()

    def action_span(self) -> None:
        chart = self._tables[2]
        chart.day = not chart.day

    def action_copy(self) -> None:
        health = self._tables[0].health
        if health is not None:
            self.console_app.copy(health.place, "the address of this system")


def _then(health: Health, then: Snapshot) -> Health:
    """What was recorded about a system; without figures if nothing was."""
    system = then.systems.get(health.name)
    nothing = replace(health, fault=None, since=None, oldest=None, expiring=None, recent=None, later=None)
    known = replace(nothing, read_at={}, findings=())
    if system is None:
        return replace(known, counts={}, soon=None, answered=False)
    return replace(known, counts=system.counts, soon=_per_minute(system.upcoming), answered=True)


def _per_minute(recorded: Histogram | None) -> Histogram | None:
    """Retries recorded in steps of five minutes, in the buckets of the chart: evenly within a step."""
    if recorded is None:
        return None
    each = BUCKETS // len(recorded.counts)
    counts = tuple(count // each + (n < count % each) for count in recorded.counts for n in range(each))
    return recorded._replace(width=recorded.width / each, counts=counts)


def _is_counted(health: Health) -> bool:
    """Whether its counts are known. A system may answer before they are."""
    return "counts" in health.read_at


def _is_countable(health: Health) -> bool:
    """Whether its failures are few enough to be counted by cause without being asked."""
    return _is_counted(health) and not health.on_request and all(count.exact for count in health.counts.values())
