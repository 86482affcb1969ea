"""Groups: failures by cause, over all backends, while they stream by."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.content import Content
from textual.widgets import Static

from console.core.backend import Backend
from console.core.catalogue import A_GROUP
from console.core.faults import Fault
from console.core.grouping import Group
from console.core.groups import Groups
from console.core.plan import Matching
from console.core.query import Filter
from console.core.text import ago
from console.ui import cells, safe
from console.ui.actions import bindings_of
from console.ui.lanes import Raised, in_thread
from console.ui.messages import GroupsReady
from console.ui.screens.place import Place
from console.ui.widgets.filter_bar import FilterBar
from console.ui.widgets.group_list import JUDGED, GroupList
from console.ui.widgets.status_line import StatusLine


class GroupsScreen(Place):
    """Each round of grouping has a number; what an older one says is not shown."""

    PLACE = "groups"
    LEAST_BETWEEN = 15.0
    """Grouping reads every failure there is."""
    BINDINGS: ClassVar[list[BindingType]] = list(bindings_of("groups"))

    def __init__(self) -> None:
        super().__init__()
        self._generation = 0
        self._stop = Raised()
        self._busy = False
        self._rows = 0
        self._faults: list[Fault] = []

    def compose_place(self) -> ComposeResult:
        yield FilterBar("all failures by cause;  backend:…  condition:…  updated<2h")
        yield GroupList(self.desk.clock.now, self._recoverable, self.desk.runbook)
        yield Static(classes="empty")
        yield StatusLine(id="why")
        yield StatusLine(id="state")

    def on_mount(self) -> None:
        self.query_one(".empty").display = False
        self.table.focus()
        self._collect()

    @property
    def table(self) -> GroupList:
        return self.query_one(GroupList)

    @property
    def filter(self) -> Filter:
        return self.query_one(FilterBar).filter

    # -- grouping ----------------------------------------------------------------------------------

    def _read_again_if_shown(self) -> None:
        if not self._busy:
            super()._read_again_if_shown()

    def _collect(self) -> None:
        self._generation += 1
        self._stop.requested = True
        self._stop = Raised()
        self._busy = True
        backends = [lane.backend for lane in self.console_app.lanes if not lane.hangs]
        in_thread(partial(self._work, self._generation, self._stop, backends, self.filter))
        self._say()

    def _work(self, generation: int, stop: Raised, backends: list[Backend], filter: Filter) -> None:
        """In a thread of its own: it may take long, and a backend that hangs must not hold up the others' lanes."""
        collecting = Groups(backends, filter, self.desk.clock.now(), stop)
        collecting.partial = lambda groups: self._tell(generation, groups, collecting, False)
        try:
            groups = collecting.collect()
        except Fault as fault:
            collecting.faults["filter"] = fault
            groups = []
        if not stop.requested:
            self._tell(generation, groups, collecting, True)

    def _tell(self, generation: int, groups: list[Group], collecting: Groups, finished: bool) -> None:
        rows = sum(group.count for group in groups)
        self.post_message(GroupsReady(generation, groups, rows, finished, list(collecting.faults.values())))

    @on(GroupsReady)
    def _ready(self, message: GroupsReady) -> None:
        if message.generation != self._generation:
            return
        self._busy = not message.finished
        self._rows = message.rows
        self._faults = list(message.faults)
        self.table.groups = message.groups
        empty = message.finished and not message.groups
        self.table.display = not empty
        self.query_one(".empty").display = empty
        if empty:
            self.query_one(".empty", Static).update(self._nothing())
        self._say()
        self.refresh_bindings()

    def _recoverable(self, group: Group) -> bool | None:
        """By the policies of the backends it is in; None when they do not agree or there is no error text."""
        if group.signature is None:
            return None
        lanes = self.console_app.lanes
        said = {
            lanes[name].backend.policy.hopeless(group.sample) is None for name, _ in group.backends if name in lanes
        }
        return said.pop() if len(said) == 1 else None

    def read_again(self) -> None:
        self._collect()

    @on(FilterBar.Changed)
    def _filter_changed(self) -> None:
        self._collect()

    # -- words -------------------------------------------------------------------------------------

    @on(GroupList.Moved)
    def _moved(self) -> None:
        self._say()

    @on(GroupList.Chosen)
    def _chosen(self) -> None:
        self.action_open()

    def _say(self) -> None:
        group = self.table.group
        page = self.desk.runbook(group.sample) if group and group.sample else None
        why = self.query_one("#why", StatusLine)
        why.left = Content("") if group is None else self._told(group, page)
        state = self.query_one("#state", StatusLine)
        faults = [safe.phrase("[$error]✗ $fault[/]", fault=str(fault)) for fault in self._faults]
        state.left = Content.assemble(" ", Content("   ").join(faults)) if faults else Content("")
        busy = "reading… " if self._busy else ""
        state.right = safe.phrase(
            "[$muted]$busy[/]$groups [$muted]causes of[/] $rows [$muted]failures[/] ",
            busy=busy,
            groups=len(self.table.groups),
            rows=cells.thousands(self._rows),
        )

    def _told(self, group: Group, page: str | None) -> Content:
        """What a narrow list leaves out."""
        now = self.desk.clock.now()
        parts = [safe.phrase("[$muted]cause[/] $cause", cause=group.signature or "no error text")]
        if group.first is not None:
            parts.append(safe.phrase("[$muted]first[/] $first", first=ago(now - group.first)))
        judged = JUDGED[self._recoverable(group)].text
        parts.append(safe.phrase("[$muted]recoverable[/] $judged", judged=judged))
        if page:
            parts.append(safe.phrase("[$muted]runbook[/] $page", page=safe.link(page, page, "$primary")))
        return Content.assemble(" ", Content("   ").join(parts))

    def _nothing(self) -> Content:
        if self.filter.terms:
            return safe.phrase(
                "[b]Nothing matches[/]  [$accent]$filter[/]\n\n[$muted]/ changes the filter.[/]",
                filter=str(self.filter),
            )
        return Content.from_markup(
            "[b $success]✓ Nothing has failed.[/]\n\n[$muted]Groups appear here as soon as something does.[/]"
        )

    def errors_seen(self) -> dict[str, str]:
        return {group.signature: cells.telling_line(group.sample) for group in self.table.groups if group.signature}

    # -- actions -----------------------------------------------------------------------------------

    def has(self, need: str) -> bool:
        return self.table.group is not None if need == A_GROUP else True

    def action_filter(self) -> None:
        self.set_focus(self.query_one(FilterBar).input)

    def narrowed(self) -> Filter | None:
        """The filter that shows exactly the group under the cursor."""
        group = self.table.group
        if group is None:
            return None
        cause = f"signature:{group.signature}" if group.signature else "-signature:*"
        return self.filter.and_(Filter.parse(cause))

    def action_open(self) -> None:
        if (filter := self.narrowed()) is not None:
            self.console_app.show_failures(str(filter))

    def action_requeue(self) -> None:
        if (filter := self.narrowed()) is not None:
            self.console_app.plan(Matching(filter))

    def action_copy(self) -> None:
        if self.table.group is not None:
            self.console_app.copy(self.table.group.sample, "the error")

    def action_runbook(self) -> None:
        group = self.table.group
        page = self.desk.runbook(group.sample) if group is not None and group.sample else None
        if page:
            self.console_app.copy(page, "the runbook's address")
        else:
            self.console_app.say("No runbook is configured for this cause", severity="information")
