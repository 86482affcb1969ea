"""Failures: one list of items over all systems."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from functools import partial
from typing import ClassVar

from textual import on
from textual.binding import BindingType
from textual.content import Content
from textual.reactive import reactive
from textual.timer import Timer
from textual.widgets import Static

from console.actions.catalogue import AN_ITEM, MARKS
from console.core.backend import Count, total_of
from console.core.faults import Refused
from console.core.item import Condition, Item
from console.core.listing import Listing
from console.core.paths import expanded
from console.core.plan import Marked, Matching
from console.core.query import Field, Filter, Sort, SortField
from console.core.text import as_of
from console.ui import cells, export, safe, views
from console.ui.actions import bindings_of
from console.ui.advice import fault_text
from console.ui.backend_calls import off_loop
from console.ui.health import counts_of
from console.ui.messages import CountsReady
from console.ui.screens.base import ListScreen
from console.ui.screens.item import ItemScreen
from console.ui.screens.pick import Choice, PickScreen
from console.ui.widgets.filter_bar import FilterBar
from console.ui.widgets.item_list import ItemList, Question
from console.ui.widgets.status_line import StatusLine

_SORTS: tuple[SortField | None, ...] = (
    None,
    SortField.UPDATED,
    SortField.NEXT,
    SortField.ATTEMPTS,
    SortField.TYPE,
    SortField.ID,
    SortField.CREATED,
)
_STATUS_DELAY = 0.2


class FailuresScreen(ListScreen):
    """Owns the filter and sort of the list, and shows the number of rows, the marks and the item's verdict."""

    PLACE = "failures"
    HINT = "needs attention   try: condition:terminal  error~timeout  updated<2h"
    BINDINGS: ClassVar[list[BindingType]] = list(bindings_of("failures"))

    sort: reactive[Sort] = reactive(Sort, init=False)

    def __init__(self) -> None:
        super().__init__()
        self._generation = 0
        self._count: Count | None = None
        self._silent = 0
        """How many backends did not answer when the rows were counted."""
        self._soon: Timer | None = None
        self._possible: tuple[bool, bool] | None = None
        self._age = ""

    def make_list(self) -> ItemList:
        return ItemList(self.console_app.callers, self.session.clock.now)

    def on_mount(self) -> None:
        self._ask()

    @property
    def table(self) -> ItemList:
        return self.query_one(ItemList)

    def narrow(self, text: str) -> None:
        """Show the items that match this filter, without marks."""
        self.table.clear_marks()
        self.bar.set_text(text)
        self.table.focus()

    def errors_seen(self) -> dict[str, str]:
        return {i.signature: cells.telling_line(i.error) for i in self.table.items_read() if i.signature and i.error}

    def planned(self) -> None:
        self.table.clear_marks()

    # -- filter and sort ------------------------------------------------------------------------------

    def _ask(self) -> None:
        self._generation += 1
        self._count = None
        self._silent = 0
        self.table.estimate = None
        self.table.question = Question(self.filter, self.sort)
        self._recount(asked=True)
        self._update_status()

    def _recount(self, *, asked: bool) -> None:
        if not self.filter.terms_for(Field.CAUSE):
            self.start(partial(self._counted, self._generation, self.filter, asked), "counts")

    async def _counted(self, generation: int, filter: Filter, asked: bool) -> None:
        each = ((caller, filter.for_backend(caller.name)) for caller in self.console_app.callers)
        meant = [(caller, wanted) for caller, wanted in each if wanted is not None]
        answers = await asyncio.gather(
            *(counts_of(caller, wanted, self.session.clock, asked=asked) for caller, wanted in meant),
            return_exceptions=True,
        )
        found = [count for answer in answers if not isinstance(answer, BaseException) for count in answer[0].values()]
        silent = [
            caller.name for (caller, _), answer in zip(meant, answers, strict=True) if isinstance(answer, BaseException)
        ]
        self.post_message(CountsReady(generation, total_of(found), silent))

    @on(CountsReady)
    def _counts_ready(self, message: CountsReady) -> None:
        if message.generation != self._generation:
            return
        rows = message.rows
        self._count = rows if rows.estimated else Count(rows.value, rows.exact and not message.silent)
        self._silent = len(message.silent)
        self.table.estimate = rows.value
        self._update_status()

    def refresh_if_shown(self) -> None:
        if self.is_current:
            self.table.reload(asked=False)
            self._recount(asked=False)

    def read_again(self) -> None:
        """A person asks: read and count the rows again."""
        self.table.reload()
        self._recount(asked=True)

    def ticked(self) -> None:
        age = as_of(timedelta(seconds=self.table.age()), self.session.refresh)
        if age != self._age:
            self._age = age
            self._update_status()

    @on(FilterBar.Changed)
    def _filter_changed(self) -> None:
        self.table.clear_marks()
        self._ask()

    def watch_sort(self) -> None:
        self._ask()

    # -- status -----------------------------------------------------------------------

    @on(ItemList.Moved)
    def _moved(self) -> None:
        """Repaint the list first; the status follows a moment later."""
        if self._soon is None:
            self._soon = self.set_timer(_STATUS_DELAY, self._update_status)

    def _verdict(self, item: Item | None) -> Content:
        if item is None:
            return Content("")
        text, tone = cells.condition(item.condition)[:2]
        colour = {"error": "$error", "warning": "$warning", "good": "$success"}.get(tone, f"${tone}")
        return safe.phrase(f" [{colour}]$condition[/]  $why", condition=text, why=item.verdict.why)

    @on(ItemList.MarksChanged)
    @on(ItemList.Loaded)
    def _changed(self) -> None:
        self._update_status()
        possible = (self.has(AN_ITEM), self.has(MARKS))
        if possible != self._possible:
            self._possible = possible
            self.refresh_bindings()

    @on(ItemList.Refused)
    def _refused(self, message: ItemList.Refused) -> None:
        self.bar.problem = str(message.fault)

    @on(ItemList.SortAsked)
    def _sort_asked(self, message: ItemList.SortAsked) -> None:
        self.sort = message.sort

    @on(ItemList.Chosen)
    def _chosen(self, message: ItemList.Chosen) -> None:
        self.app.push_screen(ItemScreen(message.item))

    def _update_status(self) -> None:
        self._soon = None
        items = self.table
        self.query_one("#why", StatusLine).left = self._verdict(items.item)
        state = self.query_one("#state", StatusLine)
        state.right = self._position()
        state.left = self._marks()
        empty = items.empty
        if empty != self.query_one(".empty").display:
            self.query_one(".empty", Static).update(self._empty_text())
            self.query_one(".empty").display = empty
            items.display = not empty
            if self.focused is None and not empty:
                items.focus()

    def _position(self) -> Content:
        items = self.table
        if not items.total():
            return Content("")
        if items.complete:  # a backend that does not answer has one row for its fault
            total = cells.count(Count(max(items.total() - self._silent, 0), exact=not self._silent))
        elif self._count is not None:
            total = cells.count(self._count._replace(value=max(self._count.value, items.total() - 1)))
        else:
            total = "…"
        where = (
            f"{items.cursor + 1:,}".replace(",", "\u2009") if not items.from_end or items.complete else "near the end"
        )
        scanned = f"   scanned {cells.thousands(items.scanned)}" if items.scanned else ""
        order = f"   by {self.sort.field} {'↓' if self.sort.descending else '↑'}" if self.sort.field else ""
        return safe.phrase(
            "[$muted]$age$order   [/]$where [$muted]of[/] $total[$muted]$scanned[/] ",
            age=self._age,
            order=order,
            where=where,
            total=total,
            scanned=scanned,
        )

    def _marks(self) -> Content:
        items = self.table
        if items.everything:
            return Content.from_markup(" [b $marked]● all that match are marked[/] [$muted]u clears the marks[/]")
        if items.marks:
            return safe.phrase(" [b $marked]● $count marked[/]", count=cells.thousands(len(items.marks)))
        return Content("")

    def _empty_text(self) -> Content:
        if not self.session.entries:
            return Content.from_markup("[b]No systems are configured.[/]\n\n[$muted]Press 1 to see how to add one.[/]")
        if self.filter.terms:
            return safe.phrase(
                "[b]Nothing matches[/]  [$accent]$filter[/]\n\n[$muted]Press / to change the filter. "
                "Add condition:* to include items that are done or waiting.[/]",
                filter=str(self.filter),
            )
        return Content.from_markup(
            "[b $success]✓ Nothing needs attention.[/]\n\n[$muted]No item is retrying, failed, terminal, "
            "stuck or unknown.\nFilter by condition:* to see every item.[/]"
        )

    # -- actions -----------------------------------------------------------------------------------

    def has(self, need: str) -> bool:
        if need == AN_ITEM:
            return bool(self.table.total())
        if need == MARKS:
            return bool(self.table.marks) or self.table.everything
        return True

    def action_open(self) -> None:
        self.table.entered()

    def action_mark(self) -> None:
        self.table.toggle_mark()

    def action_mark_range(self) -> None:
        if missed := self.table.mark_range():
            self.console_app.say(
                f"{cells.thousands(missed)} rows of this range were not marked: they are no longer in memory. "
                "Narrow the filter and press A to mark all that match.",
                severity="warning",
            )

    def action_mark_screen(self) -> None:
        self.table.mark_visible()

    def action_mark_matching(self) -> None:
        self.table.everything = True

    def action_requeue(self) -> None:
        items = self.table
        if items.everything:
            self.console_app.plan(Matching(self.filter, self.sort, everything=True))
        elif keys := tuple(items.marks) or ((items.item.key,) if items.item else ()):
            self.console_app.plan(Marked(keys))

    def action_unmark(self) -> None:
        self.table.clear_marks()

    def action_sort(self) -> None:
        following = _SORTS[(_SORTS.index(self.sort.field) + 1) % len(_SORTS)]
        self.sort = Sort() if following is None else Sort.parse(following)

    def action_reverse(self) -> None:
        if self.sort.field is not None:
            self.sort = Sort(self.sort.field, not self.sort.descending)

    def action_views(self) -> None:
        choices = [Choice(text, name, text) for name, text in views.known(self.session.views).items()]
        choices += [Choice(f"condition:{c}", str(c), f"condition:{c}") for c in Condition]
        choices.append(Choice("", "needs attention", "no filter"))
        self.app.push_screen(PickScreen("Views", choices), lambda text: None if text is None else self.narrow(text))

    def action_save_view(self) -> None:
        text = str(self.filter)
        self.app.push_screen(
            PickScreen("Save this view", (), free="name of the view"), lambda name: self._save_view(name, text)
        )

    def _save_view(self, name: str | None, text: str) -> None:
        if name:
            self.start(partial(self._view_saved, name, text), "view", exclusive=False)

    async def _view_saved(self, name: str, text: str) -> None:
        await off_loop(lambda: views.save(name, text))
        self.console_app.say(f"Saved as {name}. Press f to choose it.")

    def action_export(self) -> None:
        stamp = f"retriage-{self.session.clock.now():%Y%m%dT%H%M%SZ}"
        choices = [
            Choice(f"{stamp}.jsonl", f"{stamp}.jsonl", "one JSON object per line"),
            Choice(f"{stamp}.csv", f"{stamp}.csv", "for a spreadsheet"),
        ]
        free = "or your own path, ending in .jsonl or .csv"
        self.app.push_screen(PickScreen("Export to", choices, free=free), self._export_to)

    def _export_to(self, chosen: str | None) -> None:
        if chosen:
            self.start(partial(self._exported, chosen), "export", exclusive=False)

    async def _exported(self, chosen: str) -> None:
        path = expanded(chosen, Refused)
        table, backends, now = (
            self.table,
            [caller.backend for caller in self.console_app.callers if not caller.hangs],
            self.session.clock.now(),
        )
        keys = () if table.everything else tuple(table.marks)
        listing = Listing(backends, self.filter, now, self.sort)
        written = await off_loop(lambda: export.write(path, export.named(backends, keys, now) if keys else listing))
        self.console_app.say(f"Exported {written} items to {path}")
        for fault in listing.faults.values():
            self.console_app.say(fault_text(fault), severity="error")

    def action_copy(self) -> None:
        items = self.table
        if items.everything:
            self.console_app.say("All that match are marked. Press e to export them instead.", severity="warning")
        elif items.marks:
            self.console_app.copy("\n".join(map(str, items.marks)), f"{len(items.marks)} keys")
        elif items.item is not None:
            self.console_app.copy(str(items.item.key), "the key of this item")
