"""Failures: one list of items over all systems."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Container
from textual.content import Content
from textual.reactive import reactive
from textual.timer import Timer
from textual.widgets import Static

from console.actions.catalogue import AN_ITEM, MARKS
from console.core.backend import Count, total_of
from console.core.default_order import is_read_in_one_pass, reads_all_to_sort
from console.core.faults import Fault
from console.core.item import Condition, Item
from console.core.listing import Listing
from console.core.plan import Marked, Matching
from console.core.query import COLUMN_SORTS, Field, Filter, Sort, SortField
from console.core.text import as_of, plural, telling_line
from console.ui import cells, export, safe
from console.ui.actions import bindings_of
from console.ui.advice import fault_text
from console.ui.backend_calls import off_loop
from console.ui.command_line import filter_words
from console.ui.completion import Vocabulary
from console.ui.health import counts_of
from console.ui.messages import CountsReady
from console.ui.screens.base import ListScreen
from console.ui.screens.pick import Choice, Extra, PickScreen
from console.ui.views import SavedViews
from console.ui.widgets.filter_bar import FilterBar
from console.ui.widgets.item_list import ItemList, Question
from console.ui.widgets.item_preview import ItemPreview
from console.ui.widgets.status_line import StatusLine

if TYPE_CHECKING:
    from console.ui.screens.arrange import Arrangement

_STATUS_DELAY = 0.2
_BELOW = 30
"""The fewest lines with which the preview is below the list."""
_BESIDE = 140
"""The fewest columns with which it is to the right of the list: with fewer, the errors in the list have no room."""
_BESIDE_IF_LOW = 120
"""The same in a terminal with too few lines to have it below."""
_NAMED = 2
"""Where a sort is slow, at most this many systems are named; of more, only the number is shown."""
_SORTS: Mapping[str, SortField | None] = {
    "condition": None, "system": SortField.BACKEND, "id": SortField.ID, "attempts": SortField.ATTEMPTS,
    "next retry": SortField.NEXT, "updated": SortField.UPDATED, "type": SortField.TYPE,
}


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
        self._silent: tuple[str, ...] = ()
        """The backends that did not answer when the rows were counted."""
        self._soon: Timer | None = None
        self._possible: tuple[bool, bool] | None = None
        self._age = ""
        self._wants_preview = True
        self._unsorted: tuple[str, ...] = ()
        """The systems whose large table has no index for the default order."""

    def compose_content(self) -> ComposeResult:
        yield FilterBar(self.HINT, Vocabulary(self.session.names, SavedViews(self.session).known()))
        with Container(id="listed"):
            yield ItemList(self.console_app.callers, self.session.clock.now)
            yield Static(classes="empty")
            yield ItemPreview(id="preview")
        yield StatusLine(id="why")
        yield StatusLine(id="state")

    def on_mount(self) -> None:
        self.table.hide(frozenset({"type"}))
        self._arrange_panes()
        self._ask()

    @on(events.Resize)
    def _arrange_panes(self) -> None:
        """The preview is beside the list where there is room, else below it, else not there."""
        below = self.size.height >= _BELOW
        beside = self.size.width >= (_BESIDE if below else _BESIDE_IF_LOW)
        preview = self.preview
        shown = self._wants_preview and (beside or below)
        self.query_one("#listed").set_class(beside, "beside")
        preview.display = shown and not self.table.empty
        self.query_one("#why").display = not preview.display
        if shown:
            preview.asked = self.table.is_moved
            preview.item = self.table.item

    @property
    def preview(self) -> ItemPreview:
        return self.query_one(ItemPreview)

    @property
    def table(self) -> ItemList:
        return self.query_one(ItemList)

    def narrow(self, text: str) -> None:
        """Show the items that match this filter, without marks."""
        self.table.clear_marks()
        super().narrow(text)

    def back(self) -> Callable[[], object] | None:
        return self.table.clear_marks if self.has(MARKS) else super().back()

    def command(self) -> Sequence[str]:
        return ["list", *filter_words(self.filter, self.sort)]

    def errors_seen(self) -> dict[str, str]:
        listed = self.query(ItemList)  # other screens ask too, also before the list is there and after it is gone
        read = listed.first().items_read() if listed else ()
        return {item.signature: telling_line(item.error) for item in read if item.signature and item.error}

    def planned(self) -> None:
        self.table.clear_marks()

    # -- filter and sort ------------------------------------------------------------------------------

    def _ask(self) -> None:
        self._generation += 1
        self._count = None
        self._silent = ()
        self.table.estimate = None
        self.table.question = Question(self.filter, self.sort)
        self._recount(asked=True)
        self._update_status()
        self.start(self._look_at_order, "order")

    async def _look_at_order(self) -> None:
        """Which systems cannot be listed in the default order."""
        now, found = self.session.clock.now(), []
        for caller in self.console_app.callers:
            with suppress(Fault):
                if await caller.call(lambda backend: is_read_in_one_pass(backend, now)):
                    found.append(caller.name)
        self._unsorted = tuple(found)
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
        self._silent = tuple(message.silent)
        self.table.estimate = rows.value
        self._update_status()

    def refresh_if_shown(self) -> None:
        if self.is_current:
            self.table.reload(asked=False)
            self._recount(asked=False)

    def read_again(self) -> None:
        """A person asks: read and count the rows again."""
        self.preview.forget()
        self.table.reload()
        self._recount(asked=True)

    def ticked(self) -> None:
        age = as_of(timedelta(seconds=self.table.age()), self.session.refresh)
        if age != self._age:
            self._age = age
            self._update_status()
        elif self.preview.display:
            self.preview.show_now()

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
        error = telling_line(item.error) if item.error else ""  # the list may have little room for it
        return safe.phrase(
            f" [{colour}]$condition[/]  $why  [$muted]$error[/]", condition=text, why=item.verdict.why, error=error
        )

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
        from console.ui.screens.item import ItemScreen  # late, to have the first rows sooner

        self.app.push_screen(ItemScreen(message.item, self._step))

    def _step(self, by: int) -> Item | None:
        """Move the cursor, for the Item screen that lies on this one; None where there is no further item."""
        before = self.table.cursor
        self.table.cursor += by
        return self.table.item if self.table.cursor != before else None

    def _update_status(self) -> None:
        self._soon = None
        items = self.table
        if self.preview.display:
            self.preview.asked = items.is_moved
            self.preview.item = items.item
        else:
            self.query_one("#why", StatusLine).left = self._verdict(items.item)
        self.bar.vocabulary.types |= {item.type for item in items.items_read() if item.type}
        state = self.query_one("#state", StatusLine)
        state.right = self._position()
        state.left = self._marks()
        empty = items.empty
        if empty != self.query_one(".empty").display:
            self.query_one(".empty", Static).update(self._empty_text())
            self.query_one(".empty").display = empty
            items.display = not empty
            self._arrange_panes()
            if self.focused is None and not empty:
                items.focus()

    def _position(self) -> Content:
        items = self.table
        if not items.total():
            return Content("")
        if items.complete:  # a backend that does not answer has one row for its fault
            total = cells.count(Count(max(items.total() - len(self._silent), 0), exact=not self._silent))
        elif self._count is not None:
            total = cells.count(self._count._replace(value=max(self._count.value, items.total() - 1)))
        else:
            total = "…"
        where = (
            f"{items.cursor + 1:,}".replace(",", "\u2009") if not items.from_end or items.complete else "near the end"
        )
        scanned = f"   scanned {cells.thousands(items.scanned)}" if items.scanned else ""
        order = f"   {self._order_words()}"
        return safe.phrase(
            "[$muted]$age$order   [/]$where [$muted]of[/] $total[$muted]$scanned[/] ",
            age=self._age,
            order=order,
            where=where,
            total=total,
            scanned=scanned,
        )

    def _order_words(self) -> str:
        if self.sort.field is SortField.BACKEND:
            return f"by system {'↓' if self.sort.descending else '↑'}"
        if self.sort.field is not None:
            return f"by {self.sort.field} {'↓' if self.sort.descending else '↑'}"
        return "worst first" + "".join(f", {name} by id" for name in self._unsorted)

    def _marks(self) -> Content:
        items = self.table
        if items.everything:
            count = "all" if self._count is None else cells.count(self._count)
            return safe.phrase(" [b $marked]● $count marked: all that match[/]", count=count)
        if items.marks:
            return safe.phrase(" [b $marked]● $count marked[/]", count=cells.thousands(len(items.marks)))
        if self._silent:
            return safe.phrase(" [$error]✗ no answer from[/] $systems", systems=", ".join(self._silent))
        return Content("")

    def _empty_text(self) -> Content:
        if not self.session.entries:
            return safe.phrase(
                "[b]No systems are configured.[/]\n\n[$muted]Press $key to see how to add one.[/]",
                key=self.console_app.key("overview"),
            )
        if self.filter.terms:
            return safe.phrase(
                "[b]Nothing matches[/]  [$accent]$filter[/]\n\n[$muted]Press $key to change the filter. "
                "Add condition:* to include items that are done or waiting.[/]",
                filter=str(self.filter), key=self.console_app.key("filter", "failures"),
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
        return super().has(need)

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
        self._plan("requeue")

    def action_discard(self) -> None:
        self._plan("discard")

    def _plan(self, action: str) -> None:
        items = self.table
        if items.everything:
            self.console_app.plan(Matching(self.filter, self.sort, everything=True), action)
        elif keys := tuple(items.marks) or ((items.item.key,) if items.item else ()):
            self.console_app.plan(Marked(keys), action)

    def action_same_cause(self) -> None:
        item = self.table.item
        if item is None or item.signature is None:
            self.console_app.hint("This item has no error text, so it has no cause.")
        else:
            self.console_app.show_failures(f"cause:{item.signature}")

    def action_unmark(self) -> None:
        self.table.clear_marks()

    def action_mark_up(self) -> None:
        self.table.extend_mark(-1)

    def action_mark_down(self) -> None:
        self.table.extend_mark(1)

    def action_preview(self) -> None:
        if self.size.width < _BESIDE_IF_LOW and self.size.height < _BELOW:
            needs = f"{_BESIDE_IF_LOW} columns or {_BELOW} lines"
            self.console_app.hint(f"The preview needs {needs}. Enter opens the item.")
            return
        self._wants_preview = not self._wants_preview
        self._arrange_panes()
        self._update_status()

    def action_sort(self) -> None:
        self.start(self._offer_orders, "orders")

    async def _offer_orders(self) -> None:
        from console.ui.screens.arrange import Arrangement, ArrangeScreen, Row  # late, as above

        slow = await self._slow_sorts()
        rows = []
        for column in self.table.columns:
            sort, sortable = _SORTS.get(column.title), column.title in _SORTS
            cost = slow.get(sort, "") if sort is not None else ", ".join(f"{name} by id" for name in self._unsorted)
            rows.append(Row(column.title, sort, sortable, cost=cost if sortable else "cannot be sorted by"))
        rows.append(Row("created", SortField.CREATED, can_hide=False, cost=slow.get(SortField.CREATED, "")))
        self.app.push_screen(ArrangeScreen(rows, Arrangement(self.sort, self.table.hidden)), self._arranged)

    async def _slow_sorts(self) -> dict[SortField, str]:
        """What sorting by each column costs, where no index serves it or a system cannot do it."""
        found: dict[SortField, str] = {}
        now = self.session.clock.now()
        for field in SortField:
            cannot = [c.name for c in self.console_app.callers if field not in (*c.backend.sorts, SortField.BACKEND)]
            if cannot:
                found[field] = f"not in {', '.join(cannot)}"
        large = []
        for caller in self.console_app.callers:
            with suppress(Fault):
                if await caller.call(lambda backend: reads_all_to_sort(backend, now)):
                    large.append(caller.name)
        for field in COLUMN_SORTS if large else ():
            whole = ", ".join(large) if len(large) <= _NAMED else f"{len(large)} systems"
            found.setdefault(field, f"no index: reads all of {whole}")
        return found

    def _arranged(self, chosen: Arrangement | None) -> None:
        if chosen is not None:
            self.table.hide(chosen.hidden)
            self.sort = chosen.sort

    def action_views(self) -> None:
        known = self.views.known()
        own = self.views.saved()
        choices = [Choice(text, name, text, "saved" if name in own else "") for name, text in known.items()]
        choices += [Choice(f"condition:{c}", str(c), f"condition:{c}") for c in Condition]
        choices.append(Choice("", "needs attention", "no filter"))
        extras = {} if self.session.read_only else {
            "ctrl+e": Extra("rename", self._rename_view), "ctrl+d": Extra("delete", self._delete_view)
        }
        picker = PickScreen("Views", choices, extras=extras)
        self.app.push_screen(picker, lambda text: None if text is None else self.narrow(text))

    def _rename_view(self, choice: Choice) -> None:
        def renamed(new: str | None) -> None:
            if new:
                self.start(partial(self._change_views, partial(self.views.rename, choice.title, new)), "view")

        self.app.push_screen(PickScreen(f"Rename {choice.title}", (), free="new name", enter="rename"), renamed)

    def _delete_view(self, choice: Choice) -> None:
        self.start(partial(self._change_views, partial(self.views.delete, choice.title)), "view")

    async def _change_views(self, change: Callable[[], None]) -> None:
        await off_loop(change)
        self.bar.vocabulary.views = self.views.known()
        self.action_views()

    @property
    def views(self) -> SavedViews:
        return SavedViews(self.session)

    def action_save_view(self) -> None:
        text = str(self.filter)
        self.app.push_screen(
            PickScreen("Save this view", (), free="name of the view", enter="save"),
            lambda name: self._save_view(name, text),
        )

    def _save_view(self, name: str | None, text: str) -> None:
        if name:
            self.start(partial(self._view_saved, name, text), "view", exclusive=False)

    async def _view_saved(self, name: str, text: str) -> None:
        await off_loop(lambda: self.views.save(name, text))
        self.bar.vocabulary.views = self.views.known()
        self.console_app.say(f"Saved as {name}. Press {self.console_app.key('views', 'failures')} to choose it.")

    def action_export(self) -> None:
        what = "the marked items" if self.has(MARKS) else "all items that match"
        from console.ui.screens.export import ExportScreen  # late, as above

        self.app.push_screen(ExportScreen(what, "retriage", self.session.clock.now()), self._export_to)

    def _export_to(self, chosen: str | None) -> None:
        if chosen:
            self.start(partial(self._exported, chosen), "export", exclusive=False)

    async def _exported(self, chosen: str) -> None:
        path = export.checked_path(chosen)
        table, backends, now = (
            self.table,
            [caller.backend for caller in self.console_app.callers if not caller.hangs],
            self.session.clock.now(),
        )
        keys = () if table.everything else tuple(table.marks)
        listing = Listing(backends, self.filter, now, self.sort)
        written = await off_loop(lambda: export.write(path, export.named(backends, keys, now) if keys else listing))
        self.console_app.say(f"Exported {written} {plural(written, 'item')} to {path}")
        for fault in listing.faults.values():
            self.console_app.say(fault_text(fault), severity="error")

    def action_copy(self) -> None:
        items = self.table
        if items.everything:
            key = self.console_app.key("export", "failures")
            self.console_app.hint(f"All that match are marked. Press {key} to export them instead.", severity="warning")
        elif items.marks:
            marked = len(items.marks)
            self.console_app.copy("\n".join(map(str, items.marks)), f"{marked} {plural(marked, 'key')}")
        elif items.item is not None:
            self.console_app.copy(str(items.item.key), "the key of this item")
