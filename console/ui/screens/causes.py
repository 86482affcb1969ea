"""Causes: failures with the same error, over all systems."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from enum import Enum
from functools import partial
from itertools import islice
from time import monotonic
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.content import Content
from textual.widgets import Static

from console.actions.catalogue import A_CAUSE, A_STATEFUL_CAUSE
from console.core.budget import HOLD_LIMIT
from console.core.cause_count import Cause
from console.core.cause_life import CauseLife, CauseState, CauseStates, Snooze
from console.core.causes import CausePass, Causes
from console.core.faults import Fault
from console.core.history import Snapshot, Trend, causes_then, sparkline
from console.core.override import Override, outcome_summary
from console.core.plan import Matching
from console.core.query import Filter
from console.core.recovery import ResultCounts
from console.core.text import ago, as_of, plural, telling_line
from console.last_looked import last_looked, note_look
from console.ui import cells, safe
from console.ui.actions import bindings_of
from console.ui.advice import fault_text
from console.ui.audit import AuditLog
from console.ui.backend_calls import BackendCaller, CancelFlag, in_thread, off_loop
from console.ui.cause_past import CausePast, marks_below, read_past
from console.ui.cells import Cell
from console.ui.messages import CausesReady
from console.ui.past import ShowsPast
from console.ui.report import ask_for_report
from console.ui.screens.base import ListScreen
from console.ui.screens.pick import Choice, PickScreen
from console.ui.widgets.cause_list import RECOVERABLE, CauseColumn, CauseList, CauseSort, unnamed
from console.ui.widgets.filter_bar import FilterBar
from console.ui.widgets.status_line import StatusLine
from console.ui.widgets.text_pane import Line, Panel

_ERROR_LINES = 12
_OTHER_LINES = 4
"""Of the top bar, the filter, the status and the footer."""
_NOTES = 3
_SNOOZES: dict[str, tuple[str, Callable[[datetime], Snooze]]] = {
    "1h": ("for an hour", lambda now: Snooze(now + timedelta(hours=1))),
    "4h": ("for four hours", lambda now: Snooze(now + timedelta(hours=4))),
    "1d": ("for a day", lambda now: Snooze(now + timedelta(days=1))),
    "doubles": ("until it doubles", lambda _: Snooze(doubles=True)),
    "another": ("until it reaches another system", lambda _: Snooze(another_system=True)),
}
_OVERRIDES, _OVERRIDES_READ = 5, 200
"""How many overrides of a cause are shown, and how many of the newest are searched for them."""


class PassKind(Enum):
    """Which failures are read."""

    FULL = "all"
    NEW = "since the last pass"


class CausesScreen(ShowsPast, ListScreen):
    """Counts the failures per cause in a thread. Each count has a generation; results of an older one are dropped."""

    PLACE = "causes"
    HINT = "all failures   try: backend:jobs  condition:terminal  updated<2h"
    BINDINGS: ClassVar[list[BindingType]] = list(bindings_of("causes"))

    def __init__(self) -> None:
        super().__init__()
        self._generation = 0
        self._stop = CancelFlag()
        self._busy = False
        self._rows = 0
        self._faults: list[Fault] = []
        self._passes: dict[str, CausePass] = {}
        """The last pass over the failures of each backend."""
        self._shown_age = ""
        self._titled = ""
        """The cause in the title of the panel."""
        self._audit = AuditLog()
        self._looked: datetime | None = None

    def make_list(self) -> CauseList:
        has_states = self.session.causes is not None
        return CauseList(self.session.clock.now, self._recoverable, self.session.runbook, has_states=has_states)

    def compose_content(self) -> ComposeResult:
        yield FilterBar(self.HINT)
        yield self.make_list()
        yield Static(classes="empty")
        yield Panel(id="cause")
        yield StatusLine(id="state")

    def on_mount(self) -> None:
        self._look()
        self._count(asked=True)

    def _look(self) -> None:
        """Remember when this person looked before. The demo has a file of its own."""
        views = self.session.views_file
        folder = None if views is None else views.parent
        self._looked = last_looked(folder)
        if not self.session.read_only:
            note_look(self.session.clock.now(), folder)

    def on_resize(self) -> None:
        self._share_height()

    def _share_height(self) -> None:
        """Give the panel the lines that the list does not need."""
        has_room = self.table.take_height(self.size.height - _OTHER_LINES)
        self.query_one("#cause").display = has_room and self.table.display

    def on_screen_resume(self) -> None:
        self.start(self._read_overrides, "overrides")

    async def _read_past(self) -> None:
        """Read the states and trends of the causes that are listed."""
        session, causes = self.session, tuple(self.table.causes)
        at = None if self.then is None else self.then.at
        with suppress(Fault):  # the Trail shows why it cannot be read
            shown, looked = at or session.clock.now(), self._looked
            self._show_past(await off_loop(lambda: read_past(session, causes, shown, at, looked)))

    def _show_past(self, past: CausePast) -> None:
        if past != self.table.past:
            self.table.past = past
            self.table.causes = tuple(self.table.causes)
            self.table.refresh()
            self._update_status()

    async def _read_overrides(self) -> None:
        """Read the overrides, to show what was done about a cause before."""
        trail = self.session.trail
        if trail is not None:
            with suppress(Fault):  # the Trail shows why it cannot be read
                self._audit = await off_loop(lambda: AuditLog(trail.overrides(_OVERRIDES_READ)))
                self._update_status()

    @property
    def table(self) -> CauseList:
        return self.query_one(CauseList)

    # -- the past ----------------------------------------------------------------------------------

    def show_past(self, then: Snapshot) -> None:
        causes = causes_then(then, self.session.names, self.filter)
        self._generation += 1  # what is being counted now is of no interest
        self._stop.requested = True
        self._busy = False
        self._rows = sum(cause.count for cause in causes)
        self._faults = []
        self.then = then
        self._show_causes(causes, finished=True)

    def show_present(self) -> None:
        self._count(asked=True)

    def action_report(self) -> None:
        ask_for_report(self)

    # -- counting ----------------------------------------------------------------------------------

    def refresh_if_shown(self) -> None:
        if self.is_current and not self._busy and self.then is None:
            self._count(asked=False)

    def _count(self, *, asked: bool) -> None:
        """Read all failures again if a person `asked`, else what the reading budget allows."""
        callers = [caller for caller in self.console_app.callers if not caller.hangs]
        if asked:
            self._passes.clear()
        due = {caller.name: PassKind.FULL if asked else self._due(caller) for caller in callers}
        if not asked and not any(due.values()):
            self._update_status()
            return
        self._generation += 1
        self._stop.requested = True
        self._stop = CancelFlag()
        self._busy = True
        # Those with neither a pass nor one that is due have failed, and wait.
        read = [caller.backend for caller in callers if due[caller.name] or caller.name in self._passes]
        counting = Causes(read, self.filter, self.session.clock.now(), self._stop)
        counting.passes = dict(self._passes)
        counting.again = {name for name, kind in due.items() if kind is PassKind.FULL}
        counting.hold_limit = None if asked else HOLD_LIMIT
        counting.only_new = {
            name: one.at for name, one in self._passes.items() if due.get(name) is PassKind.NEW
        }
        in_thread(partial(self._count_in_thread, self._generation, counting, asked))
        self._update_status()

    def _due(self, caller: BackendCaller) -> PassKind | None:
        """Which pass over the failures of a backend the budget allows now."""
        now = monotonic()
        if caller.budget.wait((PassKind.FULL, self.filter), now) <= 0:
            return PassKind.FULL
        if caller.name not in self._passes:
            return None
        # Only where an index finds them are new failures much cheaper than all of them.
        full, new = (caller.budget.cost((kind, self.filter)) for kind in (PassKind.FULL, PassKind.NEW))
        if new > full / 4 or caller.budget.wait((PassKind.NEW, self.filter), now) > 0:
            return None
        return PassKind.NEW

    def _count_in_thread(self, generation: int, counting: Causes, asked: bool) -> None:
        """Count without the callers: it may take long, and a backend that hangs must not delay the others."""
        if asked:
            counting.partial = lambda causes: self._post(generation, causes, counting, False)
        try:
            causes = counting.collect()
        except Fault as fault:
            counting.faults["filter"] = fault
            causes = []
        if not counting.stop.requested:
            self._post(generation, causes, counting, True)

    def _post(self, generation: int, causes: list[Cause], counting: Causes, finished: bool) -> None:
        rows = sum(cause.count for cause in causes)
        faults = list(counting.faults.values())
        self.post_message(CausesReady(generation, causes, rows, finished, faults, counting if finished else None))

    def _keep(self, counting: Causes) -> None:
        """Keep the passes for the next refresh, and charge what they cost to the budget."""
        for name, cost in counting.costs.items():
            kind = PassKind.NEW if name in counting.only_new else PassKind.FULL
            self.console_app.callers[name].budget.note((kind, self.filter), cost, monotonic())
        self._passes = counting.finished_passes(self._passes)

    @on(CausesReady)
    def _ready(self, message: CausesReady) -> None:
        if message.generation != self._generation:
            return
        self._busy = not message.finished
        if message.counting is not None:
            self._keep(message.counting)
        self._rows = message.rows
        self._faults = list(message.faults)
        self._show_causes(message.causes, finished=message.finished)

    def _show_causes(self, causes: Sequence[Cause], *, finished: bool) -> None:
        self.table.causes = causes
        if finished:
            self.start(self._read_past, "past")
        empty = finished and not causes
        self.table.display = not empty
        self.query_one(".empty").display = empty
        self._share_height()
        if empty:
            self.query_one(".empty", Static).update(self._empty_text())
        self._update_status()
        self.refresh_bindings()

    def _recoverable(self, cause: Cause) -> bool | None:
        """By the policies of its backends; None if they do not agree or there is no error text."""
        if cause.signature is None:
            return None
        callers = self.console_app.callers
        answers = {
            callers[name].backend.policy.hopeless(cause.sample) is None for name, _ in cause.backends if name in callers
        }
        return answers.pop() if len(answers) == 1 else None

    def read_again(self) -> None:
        self.then = None
        self._count(asked=True)

    @on(FilterBar.Changed)
    def _filter_changed(self) -> None:
        self.read_again()

    def ticked(self) -> None:
        if self._age() != self._shown_age:
            self._update_status()

    def _age(self) -> str:
        """How old the oldest pass is, if it is older than the refresh."""
        if self.then is not None:
            return self.past_words
        passes = [one.at for one in self._passes.values()]
        return as_of(self.session.clock.now() - min(passes), self.session.refresh) if passes else ""

    # -- status -------------------------------------------------------------------------------------

    @on(CauseList.Moved)
    def _moved(self) -> None:
        self._update_status()

    @on(CauseList.Chosen)
    def _chosen(self) -> None:
        self.action_open()

    @on(CauseList.Sorted)
    def _sorted(self) -> None:
        self._update_status()

    def _update_status(self) -> None:
        self._show_panel(self.table.cause)
        state = self.query_one("#state", StatusLine)
        faults = [safe.phrase("[$error]✗ $fault[/]", fault=fault_text(fault)) for fault in self._faults]
        state.left = Content.assemble(" ", Content("   ").join(faults)) if faults else Content("")
        busy = "reading… " if self._busy else ""
        causes = sum(not cause.overflow for cause in self.table.causes)
        self._shown_age = self._age()
        new = 0 if self.then is not None else sum(map(self.table.past.is_new_to_you, self.table.causes))
        partly_new = any(one.new is not None for one in self._passes.values())
        about = "~" if partly_new or any(cause.estimated for cause in self.table.causes) else ""
        state.right = safe.phrase(
            "[$muted]$age$order$busy[/]$causes [$muted]$named of[/] $rows [$muted]$failures$new[/] ",
            new=f", * {new} new since you looked" if new else "",
            busy=busy,
            order="" if self.table.sort == CauseSort() else f"by {self.table.sort}   ",
            age=f"{self._shown_age}   " if self._shown_age else "",
            causes=causes,
            named=plural(causes, "cause"),
            failures=plural(self._rows, "failure"),
            rows=f"{about}{cells.thousands(self._rows)}",
        )

    def _show_panel(self, cause: Cause | None) -> None:
        panel = self.query_one("#cause", Panel)
        lines = () if cause is None else tuple(self._panel(cause))
        if lines != panel.lines:
            panel.lines = lines
        name = "" if cause is None else self._name_of(cause)
        if name != self._titled:  # to set it repaints the panel
            self._titled = name
            panel.border_title = safe.phrase("cause [b]$name[/]", name=name) if name else ""

    def _name_of(self, cause: Cause) -> str:
        return cause.signature or unnamed(cause)

    def _panel(self, cause: Cause) -> Iterator[Line]:
        """One error in full, where and when it was seen, what was done about it, and the runbook."""
        now = self.session.clock.now()
        for line in safe.lines(cause.sample)[:_ERROR_LINES] if cause.sample else ():
            yield [Cell(line)]
        yield []
        yield _pair("systems", "   ".join(f"{name} {cells.thousands(count)}" for name, count in cause.backends))
        seen = [f"{title} {_seen(at, now)}" for title, at in (("first", cause.first), ("last", cause.last)) if at]
        if seen:
            yield _pair("seen", "   ".join(seen))
        yield from self._state(cause)
        for n, override in enumerate(self._overrides_of(cause)):
            what = f"{override.who} {ago(now - override.started_at)}: {self._became(override)}"
            yield _pair("overrides" if n == 0 else "", f"{what} (reason: {override.reason})")
        yield from self._life(cause)
        yield _pair("recoverable", RECOVERABLE[self._recoverable(cause)].text)
        if page := self._runbook(cause):
            yield [Cell(f"{'runbook':<13}", "muted"), Cell(safe.line(page), "link", safe.address(page))]

    def _became(self, override: Override) -> str:
        """What became of its items; until that is known, what was done to them."""
        if override.result is not None:
            return ResultCounts.of_record(override.result).summary()
        if (results := self.console_app.live_overrides.results_of(override)) is not None:
            return results.summary()
        return outcome_summary(override.counts, override.action, self.session.actions)

    def _state(self, cause: Cause) -> Iterator[Line]:
        """Its state, and who takes care of it."""
        if self.session.causes is not None and cause.signature is not None:
            life = self.table.past.life(cause)
            owner = f"   owner {life.owner}" if life.owner else ""
            yield _pair("state", f"{life.detail}{owner}")

    def _life(self, cause: Cause) -> Iterator[Line]:
        """What people wrote about it, and how often it failed in the last day."""
        if self.session.causes is None or cause.signature is None:
            return
        life, trend = self.table.past.life(cause), self.table.past.trend(cause)
        for note in life.notes[-_NOTES:]:
            yield _pair("note", f"{note.by} {ago(self.session.clock.now() - note.at)}: {note.text}")
        if trend is not None and trend.known:
            yield _pair("last 24 h", sparkline(trend.values))
            yield from self._marks_below(trend)
        if mark := self.table.past.began_after(cause):
            yield _pair("began after", f"{mark.text} ({mark.at:%m-%d %H:%M}Z, {mark.by})")

    def _marks_below(self, trend: Trend) -> Iterator[Line]:
        """The deploy marks below the chart, each at its time."""
        row, words = marks_below(trend, self.table.past.marks)
        if words:
            yield [Cell(f"{'':<13}{row}  ", "accent"), Cell(safe.line(words, 200), "muted")]

    def _overrides_of(self, cause: Cause) -> list[Override]:
        """The newest overrides of this cause."""
        known = (o for o in self._audit.overrides if cause.signature in (o.confirmed.get("causes") or ()))
        return list(islice(known, _OVERRIDES))

    def _runbook(self, cause: Cause) -> str | None:
        return self.session.runbook(cause.sample) if cause.sample else None

    def _empty_text(self) -> Content:
        if self.filter.terms:
            return safe.phrase(
                "[b]Nothing matches[/]  [$accent]$filter[/]\n\n[$muted]Press $key to change the filter.[/]",
                filter=str(self.filter), key=self.console_app.key("filter", "causes"),
            )
        return Content.from_markup(
            "[b $success]✓ No failures.[/]\n\n[$muted]As soon as something fails, its cause is listed here.[/]"
        )

    def errors_seen(self) -> dict[str, str]:
        listed = self.query(CauseList)  # other screens ask too, also while the console closes and the list is gone
        causes = listed.first().causes if listed else ()
        return {cause.signature: telling_line(cause.sample) for cause in causes if cause.signature}

    def lives_seen(self) -> Mapping[str, CauseLife]:
        listed = self.query(CauseList)
        return listed.first().past.lives if listed and self.then is None else {}

    # -- actions -----------------------------------------------------------------------------------

    def has(self, need: str) -> bool:
        cause = self.table.cause
        if need == A_STATEFUL_CAUSE:
            return cause is not None and cause.signature is not None and self.session.causes is not None
        return cause is not None and not cause.overflow if need == A_CAUSE else super().has(need)

    def narrowed(self) -> Filter | None:
        """The filter for the failures of the cause under the cursor."""
        cause = self.table.cause
        if cause is None or cause.overflow:
            return None
        term = f"cause:{cause.signature}" if cause.signature else "-cause:*"
        return self.filter.and_(Filter.parse(term))

    def action_open(self) -> None:
        if (filter := self.narrowed()) is not None:
            self.console_app.show_failures(str(filter))

    def action_requeue(self) -> None:
        if (filter := self.narrowed()) is not None:
            self.console_app.plan(Matching(filter))

    def action_discard(self) -> None:
        if (filter := self.narrowed()) is not None:
            self.console_app.plan(Matching(filter), "discard")

    # -- the life of a cause -----------------------------------------------------------------------

    def action_acknowledge(self) -> None:
        if (cause := self._named_cause()) is not None:
            acknowledged = self.table.past.life(cause).state is CauseState.ACKNOWLEDGED
            done = "No longer acknowledged" if acknowledged else "Acknowledged. It is listed below the others"
            self._change(lambda states: (states.reopen if acknowledged else states.acknowledge)(cause), done)

    def action_snooze(self) -> None:
        if (cause := self._named_cause()) is not None:
            choices = [Choice(id, title) for id, (title, _) in _SNOOZES.items()]
            self.app.push_screen(PickScreen("Snooze this cause", choices, enter="snooze"), partial(self._snooze, cause))

    def _snooze(self, cause: Cause, chosen: str | None) -> None:
        if chosen is not None:
            title, snooze = _SNOOZES[chosen]
            until = snooze(self.session.clock.now())
            self._change(lambda states: states.snooze(cause, until), f"Snoozed {title}")

    def action_note(self) -> None:
        if (cause := self._named_cause()) is not None:
            ask = PickScreen("Note on this cause", (), free="what others should know", enter="add")
            self.app.push_screen(ask, partial(self._note, cause))

    def _note(self, cause: Cause, text: str | None) -> None:
        if text:
            self._change(lambda states: states.note(cause, text), "Noted")

    def action_assign(self) -> None:
        if (cause := self._named_cause()) is not None:
            me = self.session.who.login
            choices = [Choice(me, me, "you"), Choice("", "nobody", "remove the owner")]
            ask = PickScreen("Who takes care of this cause", choices, free="a name", enter="assign")
            self.app.push_screen(ask, partial(self._assign, cause))

    def _assign(self, cause: Cause, owner: str | None) -> None:
        if owner is not None:
            done = f"Assigned to {owner}" if owner else "It has no owner now"
            self._change(lambda states: states.assign(cause, owner), done)

    def action_resolve(self) -> None:
        if (cause := self._named_cause()) is not None:
            resolved = self.table.past.life(cause).state is CauseState.RESOLVED
            done = "No longer resolved" if resolved else "Resolved. It is shown as regressed if it fails again"
            self._change(lambda states: (states.reopen if resolved else states.resolve)(cause), done)

    def _named_cause(self) -> Cause | None:
        cause = self.table.cause
        if cause is None or cause.signature is None:
            self.console_app.hint("Failures without error text have no cause.")
            return None
        return cause

    def _change(self, change: Callable[[CauseStates], None], done: str) -> None:
        self.table.decided = None if self.table.cause is None else self.table.cause.signature
        self.start(partial(self._changed, change, done), "cause", exclusive=False)

    async def _changed(self, change: Callable[[CauseStates], None], done: str) -> None:
        states = self.session.causes
        if states is not None:
            await off_loop(lambda: change(states))
            self.console_app.say(f"{done}.")
            await self._read_past()

    def action_sort(self) -> None:
        now = self.table.sort
        choices = [
            Choice(column.value, column.value, f"now {now}, choose it again to reverse" if column is now.column else "")
            for column in self.table.sortable
        ]
        self.app.push_screen(PickScreen("Sort by", choices, enter="sort"), self._sort_by)

    def _sort_by(self, chosen: str | None) -> None:
        if chosen:
            self.table.choose_sort(CauseColumn(chosen))

    def action_copy(self) -> None:
        if self.table.cause is not None:
            self.console_app.copy(self.table.cause.sample, "the error")

    def action_runbook(self) -> None:
        cause = self.table.cause
        page = self._runbook(cause) if cause is not None else None
        if page:
            self.console_app.copy(page, "the runbook link")
        else:
            self.console_app.hint("No runbook is configured for this cause.")


def _pair(name: str, value: str) -> Line:
    return [Cell(f"{name:<13}", "muted"), Cell(safe.line(value, 400))]


def _seen(at: datetime, now: datetime) -> str:
    day = "" if at.date() == now.date() else f"{at:%Y-%m-%d} "
    return f"{day}{at:%H:%M:%S}Z · {ago(now - at)}"
