"""Failures: the triage list over all backends."""

from __future__ import annotations

import asyncio
from functools import partial
from time import monotonic
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.content import Content
from textual.reactive import reactive
from textual.timer import Timer
from textual.widgets import Static

from console.core.backend import Count
from console.core.catalogue import AN_ITEM, MARKS
from console.core.faults import Refused
from console.core.item import Condition, Item
from console.core.listing import Listing
from console.core.paths import expanded
from console.core.plan import Marked, Matching
from console.core.query import Field, Filter, Sort, SortField
from console.ui import cells, export, safe, views
from console.ui.actions import bindings_of
from console.ui.lanes import off_loop
from console.ui.messages import CountsReady
from console.ui.screens.item import ItemScreen
from console.ui.screens.pick import Choice, PickScreen
from console.ui.screens.place import Place
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
_A_MOMENT = 0.2
_REST = 4
_HINT = "what needs eyes;  condition:terminal  error~timeout  updated<2h  …"


class FailuresScreen(Place):
    """The parent of the list: owns the question, shows how many, what is marked, and why of the item."""

    PLACE = "failures"
    BINDINGS: ClassVar[list[BindingType]] = list(bindings_of("failures"))

    sort: reactive[Sort] = reactive(Sort, init=False)

    def __init__(self) -> None:
        super().__init__()
        self._generation = 0
        self._count: tuple[int, bool] | None = None
        self._silent = 0
        """How many backends did not answer when it was counted."""
        self._soon: Timer | None = None
        self._possible: tuple[bool, bool] | None = None
        self._counted_at = self._counting_took = 0.0

    def compose_place(self) -> ComposeResult:
        yield FilterBar(_HINT)
        yield ItemList(self.console_app.lanes, self.desk.clock.now)
        yield Static(classes="empty")
        yield StatusLine(id="why")
        yield StatusLine(id="state")

    def on_mount(self) -> None:
        self.query_one(".empty").display = False
        self.table.focus()
        if self.table.question is None:
            self._ask()

    async def reseated(self, renamed: bool) -> None:
        await super().reseated(renamed)
        self.table.reseat(self.console_app.lanes)
        self._recount()

    @property
    def table(self) -> ItemList:
        return self.query_one(ItemList)

    @property
    def bar(self) -> FilterBar:
        return self.query_one(FilterBar)

    @property
    def filter(self) -> Filter:
        return self.bar.filter

    def narrow(self, text: str) -> None:
        """Show what matches this filter."""
        self.table.clear_marks()
        self.bar.set_text(text)
        self.table.focus()

    def errors_seen(self) -> dict[str, str]:
        return {i.signature: cells.telling_line(i.error) for i in self.table.items_read() if i.signature and i.error}

    def planned(self) -> None:
        self.table.clear_marks()

    # -- the question ------------------------------------------------------------------------------

    def _ask(self) -> None:
        self._generation += 1
        self._count = None
        self._silent = 0
        self.table.estimate = None
        self.table.question = Question(self.filter, self.sort)
        self._recount()
        self._say()

    def _recount(self) -> None:
        if not self.filter.terms_for(Field.SIGNATURE):
            self.start(partial(self._counted, self._generation, self.filter), "counts")

    async def _counted(self, generation: int, filter: Filter) -> None:
        now, began = self.desk.clock.now(), monotonic()
        meant = [
            (lane, asked) for lane in self.console_app.lanes if (asked := filter.for_backend(lane.name)) is not None
        ]
        answers = await asyncio.gather(
            *(lane.ask(lambda backend, asked=asked: backend.counts(asked, now)) for lane, asked in meant),  # type: ignore[misc]
            return_exceptions=True,
        )
        self._counted_at = monotonic()
        self._counting_took = self._counted_at - began
        found: list[Count] = [
            count for answer in answers if not isinstance(answer, BaseException) for count in answer.values()
        ]
        silent = [
            lane.name for (lane, _), answer in zip(meant, answers, strict=True) if isinstance(answer, BaseException)
        ]
        exact = all(count.exact for count in found)
        self.post_message(CountsReady(generation, sum(count.value for count in found), exact, silent))

    @on(CountsReady)
    def _counts_ready(self, message: CountsReady) -> None:
        if message.generation != self._generation:
            return
        self._count = (message.rows, message.exact and not message.silent)
        self._silent = len(message.silent)
        self.table.estimate = message.rows
        self._say()

    def read_again(self) -> None:
        """Counting a large backend takes long; it is then done more rarely than the list is read."""
        self.table.reload()
        if monotonic() - self._counted_at > _REST * self._counting_took:
            self._recount()

    @on(FilterBar.Changed)
    def _filter_changed(self) -> None:
        self.table.clear_marks()
        self._ask()

    def watch_sort(self) -> None:
        self._ask()

    # -- what the list tells -----------------------------------------------------------------------

    @on(ItemList.Moved)
    def _moved(self) -> None:
        """The list is repainted first and alone; what is said about the item follows a moment later."""
        if self._soon is None:
            self._soon = self.set_timer(_A_MOMENT, self._say)

    def _why(self, item: Item | None) -> Content:
        if item is None:
            return Content("")
        symbol, tone = cells.condition(item.condition).text, cells.TONES[item.condition]
        colour = {"error": "$error", "warning": "$warning", "good": "$success"}.get(tone, f"${tone}")
        return safe.phrase(f" [{colour}]$symbol[/]  $why", symbol=symbol, why=item.verdict.why)

    @on(ItemList.MarksChanged)
    @on(ItemList.Loaded)
    def _changed(self) -> None:
        self._say()
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

    def _say(self) -> None:
        self._soon = None
        items = self.table
        self.query_one("#why", StatusLine).left = self._why(items.item)
        state = self.query_one("#state", StatusLine)
        state.right = self._position()
        state.left = self._marks()
        empty = items.empty
        if empty != self.query_one(".empty").display:
            self.query_one(".empty", Static).update(self._nothing())
            self.query_one(".empty").display = empty
            items.display = not empty
            if self.focused is None and not empty:
                items.focus()

    def _position(self) -> Content:
        items = self.table
        if not items.total():
            return Content("")
        if items.complete:  # a backend that does not answer has one row, which says so
            total = cells.count(Count(max(items.total() - self._silent, 0), exact=not self._silent))
        elif self._count is not None:
            total = cells.count(Count(max(self._count[0], items.total() - 1), self._count[1]))
        else:
            total = "…"
        where = (
            f"{items.cursor + 1:,}".replace(",", "\u2009") if not items.from_end or items.complete else "near the end"
        )
        scanned = f"   scanned {cells.thousands(items.scanned)}" if items.scanned else ""
        order = f"   by {self.sort.field} {'↓' if self.sort.descending else '↑'}" if self.sort.field else ""
        return safe.phrase(
            "[$muted]$order   [/]$where [$muted]of[/] $total[$muted]$scanned[/] ",
            order=order,
            where=where,
            total=total,
            scanned=scanned,
        )

    def _marks(self) -> Content:
        items = self.table
        if items.everything:
            return Content.from_markup(" [b $marked]● all that match[/] [$muted]are marked, u takes it back[/]")
        if items.marks:
            return safe.phrase(" [b $marked]● $count marked[/]", count=cells.thousands(len(items.marks)))
        return Content("")

    def _nothing(self) -> Content:
        if not self.desk.entries:
            return Content.from_markup("[b]No backends are configured.[/]\n\n[$muted]1 shows what to do.[/]")
        if self.filter.terms:
            return safe.phrase(
                "[b]Nothing matches[/]  [$accent]$filter[/]\n\n[$muted]/ changes the filter, "
                "escape there drops it; condition:* also shows what is done or waiting.[/]",
                filter=str(self.filter),
            )
        return Content.from_markup(
            "[b $success]✓ Nothing needs eyes.[/]\n\n[$muted]No item is retrying, failed, terminal, "
            "stuck or unknown.\n/ condition:* shows everything there is.[/]"
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

    def action_filter(self) -> None:
        self.set_focus(self.bar.input)

    def action_mark(self) -> None:
        self.table.toggle_mark()

    def action_mark_range(self) -> None:
        if missed := self.table.mark_range():
            self.console_app.say(
                f"{cells.thousands(missed)} rows of the range are not kept here and are not marked: "
                "narrow the filter and mark all matching instead",
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
        choices = [Choice(text, name, text) for name, text in views.known(self.desk.views).items()]
        choices += [Choice(f"condition:{c}", str(c), f"condition:{c}") for c in Condition]
        choices.append(Choice("", "what needs eyes", "no filter"))
        self.app.push_screen(PickScreen("Views", choices), lambda text: None if text is None else self.narrow(text))

    def action_save_view(self) -> None:
        text = str(self.filter)
        self.app.push_screen(
            PickScreen("Save this view", (), free="a name for it"), lambda name: self._save_view(name, text)
        )

    def _save_view(self, name: str | None, text: str) -> None:
        if name:
            self.start(partial(self._view_saved, name, text), "view", exclusive=False)

    async def _view_saved(self, name: str, text: str) -> None:
        await off_loop(lambda: views.save(name, text))
        self.console_app.say(f"Saved as {name}: f finds it")

    def action_export(self) -> None:
        stamp = f"retriage-{self.desk.clock.now():%Y%m%dT%H%M%SZ}"
        choices = [
            Choice(f"{stamp}.jsonl", f"{stamp}.jsonl", "one JSON object per line"),
            Choice(f"{stamp}.csv", f"{stamp}.csv", "for a spreadsheet"),
        ]
        free = "or a path of your own, ending in .jsonl or .csv"
        self.app.push_screen(PickScreen("Export to", choices, free=free), self._export_to)

    def _export_to(self, chosen: str | None) -> None:
        if chosen:
            self.start(partial(self._exported, chosen), "export", exclusive=False)

    async def _exported(self, chosen: str) -> None:
        path = expanded(chosen, Refused)
        table, backends, now = (
            self.table,
            [lane.backend for lane in self.console_app.lanes if not lane.hangs],
            self.desk.clock.now(),
        )
        keys = () if table.everything else tuple(table.marks)
        listing = Listing(backends, self.filter, now, self.sort)
        written = await off_loop(lambda: export.write(path, export.named(backends, keys, now) if keys else listing))
        self.console_app.say(f"Wrote {written} items to {path}")
        for fault in listing.faults.values():
            self.console_app.say(str(fault), severity="error")

    def action_copy(self) -> None:
        items = self.table
        if items.everything:
            self.console_app.say("All that match are marked: export them instead", severity="warning")
        elif items.marks:
            self.console_app.copy("\n".join(map(str, items.marks)), f"{len(items.marks)} keys")
        elif items.item is not None:
            self.console_app.copy(str(items.item.key), "the key")
