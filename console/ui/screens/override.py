"""Override: one override while it is carried out, and afterwards the results of its items."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.message import Message
from textual.reactive import reactive
from textual.widgets import Static

from console.actions.catalogue import A_NUMBER, A_RUNNING_OVERRIDE, AN_ITEM, UNDOABLE, UNFINISHED
from console.core.backend import Action, OutcomeKind
from console.core.capabilities import ActionSpec
from console.core.item import ItemKey
from console.core.operations import Operations
from console.core.override import SKIPPED, Override, OverrideState
from console.core.plan import FIRST_SKIPPED
from console.core.ports import Trail
from console.core.reconcile import final_outcomes
from console.core.recovery import ItemResult, Result
from console.core.text import plural
from console.ui import export, safe
from console.ui.actions import bindings_of
from console.ui.backend_calls import off_loop
from console.ui.cells import Cell, Column, thousands
from console.ui.live_overrides import FollowedOverride
from console.ui.messages import OverrideItemsReady, OverrideProgressed, OverrideReady
from console.ui.outcomes import outcome_look, result_look
from console.ui.override_view import NOT_READ, OTHER_CAUSE, SAME_CAUSE, Figure, OverrideView
from console.ui.report import ask_for_report
from console.ui.screens.base import BaseScreen
from console.ui.screens.export import ExportScreen
from console.ui.widgets.charts import bar
from console.ui.widgets.entry_table import EntryTable
from console.ui.widgets.line_table import LineTable
from console.ui.widgets.status_line import StatusLine
from console.ui.widgets.text_pane import Panel, TextPane, wrapped

if TYPE_CHECKING:
    from console.ui.app import Console

_MAX_ITEMS = 2_000
_LOW = 16
"""With fewer lines, only the first line of the headline and the current step are shown."""
_FACTS_FROM = 5
"""The fewest lines for the facts, with the space and the rule above them."""
_BAR = 15
_FIGURE_COLUMNS = (
    Column("", 26, 9),
    Column("items", 8, 8, right=True),
    Column("", _BAR, 5),
    Column("", 14, 3, grows=1),
)
_ITEM_COLUMNS = (
    Column("system", 8, 4, grows=1, most=18),
    Column("id", 12, 9, grows=1, most=40),
    Column("result", 16, 8, grows=1, most=24),
    Column("detail", 20, 5, grows=4),
)


def _tab_of(followed: FollowedOverride, console: Console) -> str:
    """The latest override of this console has a tab of its own; the others belong to the Trail."""
    return "override" if followed is console.live_overrides.latest else "trail"


class FigureList(EntryTable[Figure]):
    """The numbers of an override. Enter lists the items behind the one under the cursor."""

    class Chosen(Message):
        """A number was double-clicked."""

    def __init__(self) -> None:
        super().__init__(_FIGURE_COLUMNS, margin=1)

    def identity(self, entry: Figure) -> str:
        return entry.id

    def stamp(self, row: int) -> object:
        return self.entries[row]

    def cells_at(self, row: int) -> Sequence[Cell]:
        _, sign, label, count, tone, share, meaning = self.entries[row]
        shown = tone if count else "muted"
        return (
            Cell(f"{sign} {safe.line(label)}", shown),
            Cell(thousands(count), shown),
            Cell(bar(share, _BAR).ljust(_BAR, "░") if share else "", shown),
            Cell(safe.line(meaning), "muted"),
        )

    def entered(self) -> None:
        self.post_message(self.Chosen())


class OverrideScreen(BaseScreen):
    """Live if this console carries it out. It is watched until each item was executed, or the watch time ends."""

    PLACE = "override"
    BINDINGS: ClassVar[list[BindingType]] = list(bindings_of("override"))
    AUTO_FOCUS = "FigureList"

    def __init__(self, followed: FollowedOverride) -> None:
        super().__init__()
        self.followed = followed
        self._override: Override | None = followed.override
        self._state: OverrideState | None = None
        """The state for which the keys were last checked."""
        self._shown: object = None

    @property
    def tab(self) -> str:
        return _tab_of(self.followed, self.console_app)

    def compose_content(self) -> ComposeResult:
        yield StatusLine(id="override-title")
        yield TextPane(id="headline")
        yield TextPane(id="steps")
        yield FigureList()
        yield Panel(id="facts")

    def on_mount(self) -> None:
        for pane in self.query(TextPane):
            pane.can_focus = isinstance(pane, Panel)
        self._show()

    def on_screen_resume(self) -> None:
        self.console_app.seen(self.followed.override_id)
        self.read_again()

    def on_resize(self) -> None:
        self._show()

    def read_again(self) -> None:
        self.start(self._read, "override")

    async def _read(self) -> None:
        trail, override_id = self.session.trail, self.followed.override_id
        if trail is None or override_id is None:
            return
        self.post_message(OverrideReady(await off_loop(lambda: trail.override(override_id))))

    @on(OverrideReady)
    def _ready(self, message: OverrideReady) -> None:
        self._override = message.override
        self._show()
        self.refresh_bindings()

    @on(OverrideProgressed)
    def _progressed(self) -> None:
        if self.followed.override is not None:
            self._override = self.followed.override
        self._show()
        self.console_app.seen(self.followed.override_id)
        known, self._state = self._state, self._view().state
        if known is not self._state:
            self.update_each_second()
            self.read_again()
            self.refresh_bindings()

    def ticked(self) -> None:
        if self.followed.running:
            self._show()

    def _view(self) -> OverrideView:
        session = self.session
        now, errors = session.clock.now(), self.console_app.errors_seen()
        return OverrideView(self.followed, self._override, now, session.actions, session.switches, errors)

    def _show(self) -> None:
        view = self._view()
        title = self.query_one("#override-title", StatusLine)
        error = view.errors.get(view.causes[0], "") if len(view.causes) == 1 else ""
        title.left = safe.phrase(
            " [b $accent]$title[/]  $selection  [$muted]$error[/]",
            title=view.title, selection=view.selection, error=error,
        )
        title.right = safe.phrase("[$muted]$by[/] ", by=view.by_whom() or self.session.who.login)
        figures = view.figures()
        if list(figures) != list(self.query_one(FigureList).entries):
            self.query_one(FigureList).entries = figures
        left, width = self.size.height - 3, max(self.size.width - 2, 20)  # without the bars and the title
        headline, steps = list(view.headline()), list(view.steps())
        if self.size.height < _LOW:
            headline, steps = headline[:1], [step for step in steps if step[0].tone == "accent"]
        for id, lines in (("headline", headline), ("steps", steps), ("facts", view.facts())):
            pane = self.query_one(f"#{id}", TextPane)
            found = tuple(lines)
            if found != pane.lines:
                pane.lines = found
            if id != "facts":
                height = sum(len(wrapped(line, width)) for line in found)
                pane.styles.height = height
                pane.display = bool(found)
                left -= height
        self._share_height(left, len(figures) + 1)

    def _share_height(self, left: int, wanted: int) -> None:
        """The numbers first; the facts and the space between only where there is room."""
        table, facts = self.query_one(FigureList), self.query_one("#facts", TextPane)
        spaced = left > wanted
        table.styles.margin = (int(spaced), 0, 0, 0)
        table.styles.height = max(min(wanted, left), 2)
        facts.display = left - wanted >= _FACTS_FROM

    def command(self) -> Sequence[str] | None:
        override_id = self.followed.override_id
        return None if override_id is None else ["overrides", "show", override_id]

    # -- actions -----------------------------------------------------------------------------------

    def has(self, need: str) -> bool:
        view = self._view()
        match need:
            case _ if need == A_RUNNING_OVERRIDE:
                return view.state in (OverrideState.RUNNING, OverrideState.PAUSED)
            case _ if need == UNFINISHED:
                return not view.state.over
            case _ if need == UNDOABLE:
                return view.action != Action.UNDO and bool(view.counts.get(OutcomeKind.APPLIED))
            case _ if need == A_NUMBER:
                figure = self.query_one(FigureList).entry
                return figure is not None and figure.items > 0 and figure.id != NOT_READ
        return super().has(need)

    @on(FigureList.Chosen)
    def action_open(self) -> None:
        figure = self.query_one(FigureList).entry
        if figure is not None and self.has(A_NUMBER):
            self.app.push_screen(OverrideItemsScreen(self.followed, figure, self._view().action))

    def action_pause(self) -> None:
        """Pause, continue or resume, whichever fits."""
        view = self._view()
        if view.state is OverrideState.RUNNING and (self.followed.running or self._is_alive()):
            self._request("pause")
        elif view.state is OverrideState.PAUSED and (self.followed.running or self._is_alive()):
            self._request("continue")
        elif self._override is not None:
            self.console_app.override_dialogs.resume(self._override)

    def _is_alive(self) -> bool:
        return self._override is not None and self._override.alive

    def action_stop(self) -> None:
        self._request("stop")

    def _request(self, what: str) -> None:
        override_id, operations = self.followed.override_id, self.session.operations
        if override_id is None or operations is None:
            return
        request, words = {
            "pause": (operations.pause, "Pausing after this chunk"),
            "continue": (operations.proceed, "Continuing"),
            "stop": (operations.stop, "Stopping after this chunk"),
        }[what]
        self.start(partial(off_loop, partial(request, override_id)), "request", exclusive=False)
        self.console_app.say(words)

    def action_undo(self) -> None:
        if self.followed.override_id is not None:
            self.console_app.override_dialogs.plan_undo(self.followed.override_id)

    def action_copy(self) -> None:
        if self.followed.override_id is not None:
            self.console_app.copy(self.followed.override_id, "the override id")

    def action_report(self) -> None:
        if self.followed.override_id is not None:
            ask_for_report(self, self.followed.override_id)

    def action_export(self) -> None:
        now, override_id = self.session.clock.now(), self.followed.override_id
        self.app.push_screen(ExportScreen("this override", f"override-{override_id}", now), self._export_to)

    def _export_to(self, path: str | None) -> None:
        if path:
            self.start(partial(self._exported, path), "export", exclusive=False)

    async def _exported(self, chosen: str) -> None:
        operations, override_id = self.session.operations, self.followed.override_id
        if operations is not None and override_id is not None:
            path = export.checked_path(chosen)
            written = await off_loop(lambda: export.write_override(path, operations.trail, override_id))
            self.console_app.say(f"Exported {thousands(written)} {plural(written, 'item')} to {path}")


class OverrideItems(LineTable):
    """The items behind one number of an override."""

    lines: reactive[Sequence[tuple[str, Cell, str]]] = reactive(tuple, init=False, repaint=False)
    """Key, what happened, and a detail."""

    class Chosen(Message):
        """An item was double-clicked."""

    def __init__(self) -> None:
        super().__init__(_ITEM_COLUMNS, margin=1)

    @property
    def key(self) -> ItemKey | None:
        return ItemKey.parse(self.lines[self.cursor][0]) if self.cursor < len(self.lines) else None

    def total(self) -> int:
        return len(self.lines)

    def watch_lines(self) -> None:
        self.rows_changed(None)

    def stamp(self, row: int) -> object:
        return self.lines[row]

    def cells_at(self, row: int) -> Sequence[Cell]:
        key, what, detail = self.lines[row]
        backend, _, id = key.partition("/")
        return Cell(safe.line(backend), "muted"), Cell(safe.line(id)), what, Cell(safe.line(detail), "muted")

    def entered(self) -> None:
        self.post_message(self.Chosen())


class OverrideItemsScreen(BaseScreen):
    """Lists the items behind one number of an override."""

    PLACE = "override_items"
    BINDINGS: ClassVar[list[BindingType]] = list(bindings_of("override_items"))

    def __init__(self, followed: FollowedOverride, figure: Figure, action: str) -> None:
        super().__init__()
        self._followed = followed
        self._figure = figure
        self._action = action
        self._errors: Mapping[str, str] = {}
        """Causes with one of their errors, as far as the lists have shown one."""

    @property
    def tab(self) -> str:
        return _tab_of(self._followed, self.console_app)

    def compose_content(self) -> ComposeResult:
        yield Static(id="items-title")
        yield OverrideItems()
        yield StatusLine(id="state")

    def on_mount(self) -> None:
        title = self.query_one("#items-title", Static)
        label = self._figure.label.strip()
        of = self._followed.override_id or ""
        title.update(safe.phrase(" [b]$label[/] [$muted]in override $id[/]", label=label, id=of))
        self.query_one(OverrideItems).focus()

    def on_screen_resume(self) -> None:
        self.read_again()

    def read_again(self) -> None:
        self.start(self._read, "items")

    async def _read(self) -> None:
        operations, override_id = self.session.operations, self._followed.override_id
        if operations is not None and override_id is not None:
            self._errors = self.console_app.errors_seen()
            lines = self._lines(operations, override_id, self.session.actions)
            found = await off_loop(lambda: list(islice(lines, _MAX_ITEMS + 1)))
            self.post_message(OverrideItemsReady(found))

    def _lines(
        self, operations: Operations, override_id: str, actions: Mapping[str, ActionSpec]
    ) -> Iterator[tuple[str, Cell, str]]:
        """Runs in a thread, so it asks nothing of the app."""
        trail, figure = operations.trail, self._figure.id
        if figure in list(OutcomeKind):
            look = outcome_look(figure, self._action, actions)
            meant = (outcome for outcome in final_outcomes(trail, override_id) if outcome.outcome == figure)
            listed = list(islice(meant, _MAX_ITEMS + 1))
            became = self._became(trail, override_id, {outcome.key for outcome in listed})
            for outcome in listed:
                detail = outcome.detail or became.get(outcome.key, "")
                yield outcome.key, Cell(f"{look.sign} {look.word}", look.tone), detail
        elif figure == SKIPPED:
            for rows in trail.rows(trail.override(override_id).plan_id, FIRST_SKIPPED, -1):
                yield from ((row.key, Cell(f"– {SKIPPED}", "muted"), row.skipped or "") for row in rows)
        else:
            watch = self._followed.watch
            errors = self._errors if watch is None else {**self._errors, **watch.progress.counts.heads}
            for one in self._results(trail, override_id):
                look = result_look(one.result)
                cause = errors.get(one.cause, f"cause {one.cause}") if one.cause else ""
                detail = one.detail or cause
                yield one.key, Cell(f"{look.sign} {look.word}", look.tone), detail

    def _results(self, trail: Trail, override_id: str) -> Iterator[ItemResult]:
        """The items with this result: as the watch knows them, or as they are on record."""
        figure = self._figure.id
        wanted = Result.FAILED_AGAIN if figure in (SAME_CAUSE, OTHER_CAUSE) else Result(figure)
        same = {SAME_CAUSE: True, OTHER_CAUSE: False}.get(figure)
        for one in self._all_results(trail, override_id):
            if one.result is wanted and (same is None or one.same_cause == same):
                yield one

    def _all_results(self, trail: Trail, override_id: str) -> Iterator[ItemResult]:
        watch = self._followed.watch
        for batch in trail.item_results(override_id) if watch is None else watch.items():
            yield from batch

    def _became(self, trail: Trail, override_id: str, keys: Collection[str]) -> dict[str, str]:
        """What became of these items after they were requeued, in words."""
        if self._figure.id != OutcomeKind.APPLIED or self._action != Action.REQUEUE:
            return {}
        found = (one for one in self._all_results(trail, override_id) if one.key in keys)
        return {one.key: f"{(look := result_look(one.result)).sign} {look.word}" for one in found}

    @on(OverrideItemsReady)
    def _ready(self, message: OverrideItemsReady) -> None:
        table, cursor = self.query_one(OverrideItems), self.query_one(OverrideItems).cursor
        table.lines = message.items[:_MAX_ITEMS]
        table.hide(frozenset() if any(detail for _, _, detail in table.lines) else frozenset({"detail"}))
        table.cursor = cursor
        more = len(message.items) > _MAX_ITEMS
        first = f"the first {thousands(_MAX_ITEMS)}; e in the override exports all"
        shown = first if more else f"{len(message.items)} {plural(len(message.items), 'item')}"
        self.query_one("#state", StatusLine).right = safe.phrase("[$muted]$shown[/] ", shown=shown)
        self.refresh_bindings()

    def has(self, need: str) -> bool:
        return bool(self.query_one(OverrideItems).total()) if need == AN_ITEM else super().has(need)

    @on(OverrideItems.Chosen)
    def action_open(self) -> None:
        if (key := self.query_one(OverrideItems).key) is not None:
            self.console_app.open_key(str(key))

    def action_copy(self) -> None:
        if (key := self.query_one(OverrideItems).key) is not None:
            self.console_app.copy(str(key), "the key of this item")
