"""Causes: failures with the same error, over all systems."""

from __future__ import annotations

from enum import Enum
from functools import partial
from time import monotonic
from typing import ClassVar

from textual import on
from textual.binding import BindingType
from textual.content import Content
from textual.widgets import Static

from console.actions.catalogue import A_CAUSE
from console.core.budget import HOLD_LIMIT
from console.core.cause_count import Cause
from console.core.causes import CausePass, Causes
from console.core.faults import Fault
from console.core.plan import Matching
from console.core.query import Filter
from console.core.text import ago, as_of
from console.ui import cells, safe
from console.ui.actions import bindings_of
from console.ui.advice import fault_text
from console.ui.backend_calls import BackendCaller, CancelFlag, in_thread
from console.ui.messages import CausesReady
from console.ui.screens.base import ListScreen
from console.ui.widgets.cause_list import RECOVERABLE, CauseList, unnamed
from console.ui.widgets.filter_bar import FilterBar
from console.ui.widgets.status_line import StatusLine


class PassKind(Enum):
    """What of the failures is read."""

    FULL = "all"
    NEW = "since the last pass"


class CausesScreen(ListScreen):
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

    def make_list(self) -> CauseList:
        return CauseList(self.session.clock.now, self._recoverable, self.session.runbook)

    def on_mount(self) -> None:
        self._count(asked=True)

    @property
    def table(self) -> CauseList:
        return self.query_one(CauseList)

    # -- counting ----------------------------------------------------------------------------------

    def refresh_if_shown(self) -> None:
        if self.is_current and not self._busy:
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
        counting = Causes([caller.backend for caller in callers], self.filter, self.session.clock.now(), self._stop)
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
        """Not through the callers: it may take long, and a backend that hangs must not delay the others."""
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
        self._passes = counting.passes

    @on(CausesReady)
    def _ready(self, message: CausesReady) -> None:
        if message.generation != self._generation:
            return
        self._busy = not message.finished
        if message.counting is not None:
            self._keep(message.counting)
        self._rows = message.rows
        self._faults = list(message.faults)
        self.table.causes = message.causes
        empty = message.finished and not message.causes
        self.table.display = not empty
        self.query_one(".empty").display = empty
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
        self._count(asked=True)

    @on(FilterBar.Changed)
    def _filter_changed(self) -> None:
        self._count(asked=True)

    def ticked(self) -> None:
        if self._age() != self._shown_age:
            self._update_status()

    def _age(self) -> str:
        """How old the oldest pass is, if it is older than the refresh."""
        passes = [one.at for one in self._passes.values()]
        return as_of(self.session.clock.now() - min(passes), self.session.refresh) if passes else ""

    # -- status -------------------------------------------------------------------------------------

    @on(CauseList.Moved)
    def _moved(self) -> None:
        self._update_status()

    @on(CauseList.Chosen)
    def _chosen(self) -> None:
        self.action_open()

    def _update_status(self) -> None:
        cause = self.table.cause
        page = self.session.runbook(cause.sample) if cause and cause.sample else None
        why = self.query_one("#why", StatusLine)
        why.left = Content("") if cause is None else self._details(cause, page)
        state = self.query_one("#state", StatusLine)
        faults = [safe.phrase("[$error]✗ $fault[/]", fault=fault_text(fault)) for fault in self._faults]
        state.left = Content.assemble(" ", Content("   ").join(faults)) if faults else Content("")
        busy = "reading… " if self._busy else ""
        self._shown_age = self._age()
        about = "~" if any(one.new is not None for one in self._passes.values()) else ""
        state.right = safe.phrase(
            "[$muted]$age$busy[/]$causes [$muted]causes of[/] $rows [$muted]failures[/] ",
            busy=busy,
            age=f"{self._shown_age}   " if self._shown_age else "",
            causes=sum(not cause.overflow for cause in self.table.causes),
            rows=f"{about}{cells.thousands(self._rows)}",
        )

    def _details(self, cause: Cause, page: str | None) -> Content:
        """The details that a narrow list leaves out."""
        now = self.session.clock.now()
        parts = [safe.phrase("[$muted]cause[/] $cause", cause=cause.signature or unnamed(cause))]
        if cause.first is not None:
            parts.append(safe.phrase("[$muted]first[/] $first", first=ago(now - cause.first)))
        recoverable = RECOVERABLE[self._recoverable(cause)].text
        parts.append(safe.phrase("[$muted]recoverable[/] $recoverable", recoverable=recoverable))
        if page:
            parts.append(safe.phrase("[$muted]runbook[/] $page", page=safe.link(page, page, "$primary")))
        return Content.assemble(" ", Content("   ").join(parts))

    def _empty_text(self) -> Content:
        if self.filter.terms:
            return safe.phrase(
                "[b]Nothing matches[/]  [$accent]$filter[/]\n\n[$muted]Press / to change the filter.[/]",
                filter=str(self.filter),
            )
        return Content.from_markup(
            "[b $success]✓ No failures.[/]\n\n[$muted]As soon as something fails, its cause is listed here.[/]"
        )

    def errors_seen(self) -> dict[str, str]:
        return {cause.signature: cells.telling_line(cause.sample) for cause in self.table.causes if cause.signature}

    # -- actions -----------------------------------------------------------------------------------

    def has(self, need: str) -> bool:
        cause = self.table.cause
        return cause is not None and not cause.overflow if need == A_CAUSE else True

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

    def action_copy(self) -> None:
        if self.table.cause is not None:
            self.console_app.copy(self.table.cause.sample, "the error")

    def action_runbook(self) -> None:
        cause = self.table.cause
        page = self.session.runbook(cause.sample) if cause is not None and cause.sample else None
        if page:
            self.console_app.copy(page, "the runbook link")
        else:
            self.console_app.say("No runbook is configured for this cause.")
