"""Trail: the audit log of overrides and refused actions, and its integrity check."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import ClassVar, assert_never

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.content import Content
from textual.reactive import reactive
from textual.widgets import Static

from console.actions.catalogue import AN_OVERRIDE, UNFINISHED
from console.core.backend import OutcomeKind
from console.core.faults import Fault
from console.core.override import Actions, Override, OverrideState, past_tense
from console.ui import safe
from console.ui.actions import bindings_of
from console.ui.advice import fault_text
from console.ui.audit import Refusal, refusals
from console.ui.backend_calls import off_loop
from console.ui.cells import Cell, Column, moment, short_age, thousands
from console.ui.messages import TrailReady
from console.ui.screens.base import BaseScreen
from console.ui.screens.override import OverrideScreen
from console.ui.widgets.line_table import LineTable
from console.ui.widgets.status_line import StatusLine

_COLUMNS = (
    Column("when", 20, 8),
    Column("age", 4, 2, right=True),
    Column("state", 13, 9),
    Column("who", 8, 5, grows=1, most=24),
    Column("result", 13, 7, right=True),
    Column("changed", 7, 4, right=True),
    Column("rejected", 8, 3, right=True),
    Column("reason", 14, 6, grows=4),
    Column("filter", 12, 1, grows=3),
)
UNRESOLVED = Cell("! unresolved", "error")
ABANDONED = Cell("! abandoned", "error")
"""Recorded as running, but its process is gone."""
REFUSED = Cell("⊘ refused", "warning")
Entry = Override | Refusal


class TrailList(LineTable):
    """Unresolved overrides first, then the newest; the cursor stays on its entry."""

    entries: reactive[Sequence[Entry]] = reactive(tuple, init=False, repaint=False)

    def __init__(self) -> None:
        super().__init__(_COLUMNS, margin=1)
        self.unresolved: frozenset[str] = frozenset()
        self.now: datetime | None = None
        self.actions: Actions = {}
        """The plugins' own actions, for their words."""
        self._at_cursor: Entry | None = None

    @property
    def entry(self) -> Entry | None:
        return self.entries[self.cursor] if self.cursor < len(self.entries) else None

    def total(self) -> int:
        return len(self.entries)

    def watch_entries(self, entries: Sequence[Entry]) -> None:
        before = self._at_cursor
        rows = (row for row, entry in enumerate(entries) if before is not None and _same(entry, before))
        self.rows_changed(next(rows, None))

    def moved(self) -> None:
        self._at_cursor = self.entry
        self.screen.refresh_bindings()

    def stamp(self, row: int) -> object:
        return self.entries[row], self.unresolved, self.now

    def cells_at(self, row: int) -> Sequence[Cell]:
        entry = self.entries[row]
        at = entry.at if isinstance(entry, Refusal) else entry.started_at
        age = Cell("" if self.now is None else short_age(self.now - at), "muted")
        if isinstance(entry, Refusal):
            return (
                Cell(moment(at)),
                age,
                REFUSED,
                Cell(safe.line(entry.who)),
                Cell(""),
                Cell(""),
                Cell(""),
                Cell(safe.line(entry.reason)),
                Cell(safe.line(f"{entry.why} {entry.detail}"), "muted"),
            )
        counts = entry.counts
        return (
            Cell(moment(at)),
            age,
            UNRESOLVED if entry.override_id in self.unresolved else _state(entry),
            Cell(safe.line(entry.who)),
            Cell(f"{thousands(counts.get(OutcomeKind.APPLIED, 0))} {past_tense(entry.action, self.actions)}"),
            _count(counts.get(OutcomeKind.CHANGED_SINCE, 0), "warning"),
            _count(counts.get(OutcomeKind.REJECTED, 0), "error"),
            Cell(safe.line(entry.reason)),
            Cell(safe.line(str(entry.confirmed.get("selection", entry.note or ""))), "muted"),
        )


def _same(one: Entry, other: Entry) -> bool:
    if isinstance(one, Override) and isinstance(other, Override):
        return one.override_id == other.override_id
    return isinstance(one, Refusal) and isinstance(other, Refusal) and one.seq == other.seq


def _state(override: Override) -> Cell:
    match override.state:
        case OverrideState.RUNNING:
            return Cell("▸ running", "calm") if override.alive else ABANDONED
        case OverrideState.PAUSED:
            return Cell("‖ paused", "warning")
        case OverrideState.STOPPED:
            return Cell("■ stopped", "warning")
        case OverrideState.FINISHED:
            return Cell("✓ finished", "good")
        case _:
            assert_never(override.state)


def _count(number: int, tone: str) -> Cell:
    return Cell(thousands(number), tone) if number else Cell("–", "muted")


class TrailScreen(BaseScreen):
    """What was done, by whom, when and why."""

    PLACE = "trail"
    BINDINGS: ClassVar[list[BindingType]] = list(bindings_of("trail"))

    def __init__(self) -> None:
        super().__init__()
        self._verification: Content | None = None
        """The result of the last integrity check."""

    def compose_content(self) -> ComposeResult:
        yield TrailList()
        yield Static(classes="empty")
        yield StatusLine(id="state")

    def on_mount(self) -> None:
        self.query_one(".empty").display = False
        self.table.focus()

    def on_screen_resume(self) -> None:
        self.read_again()

    @property
    def table(self) -> TrailList:
        return self.query_one(TrailList)

    def ticked(self) -> None:
        self.table.now = self.session.clock.now()
        self.table.refresh()

    def read_again(self) -> None:
        self.start(self._read, "trail")

    async def _read(self) -> None:
        trail = self.session.trail
        if trail is None:
            self.post_message(TrailReady((), (), ()))
            return
        try:
            overrides, refused, unresolved = await off_loop(
                lambda: (trail.overrides(500), refusals(trail), trail.unresolved())
            )
        except Fault as fault:
            self.post_message(TrailReady((), (), (), fault))
        else:
            self.post_message(TrailReady(overrides, refused, unresolved))

    @on(TrailReady)
    def _ready(self, message: TrailReady) -> None:
        table = self.table
        table.actions = self.session.actions
        table.unresolved = frozenset(intent.override_id for intent in message.unresolved)
        entries: list[Entry] = [*message.overrides, *message.refusals]
        entries.sort(key=lambda e: e.at if isinstance(e, Refusal) else e.started_at, reverse=True)
        entries.sort(key=lambda e: isinstance(e, Refusal) or e.override_id not in table.unresolved)
        table.entries = entries
        empty = not entries
        table.display = not empty
        self.query_one(".empty").display = empty
        if empty:
            self.query_one(".empty", Static).update(self._empty_text(message.fault))
        state = self.query_one("#state", StatusLine)
        state.right = safe.phrase(
            "$count [$muted]$overrides,[/] $refused [$muted]$refusals[/] ",
            count=len(message.overrides),
            overrides="override" if len(message.overrides) == 1 else "overrides",
            refused=len(message.refusals),
            refusals="refusal" if len(message.refusals) == 1 else "refusals",
        )
        self._update_status()
        self.refresh_bindings()

    def _update_status(self) -> None:
        parts = []
        if unresolved := len(self.table.unresolved):
            parts.append(safe.phrase(" [b $error]! $count unresolved[/]", count=unresolved))
            if not self._verification and not self.session.read_only:
                parts.append(Content.from_markup(" [$muted]x resumes it[/]"))
        if self._verification:
            parts.append(self._verification)
        self.query_one("#state", StatusLine).left = Content.assemble(*parts)

    def _empty_text(self, fault: Fault | None) -> Content:
        if fault is not None:
            return safe.phrase("[b $error]✗ The trail cannot be read.[/]\n\n$fault", fault=fault_text(fault))
        if self.session.trail is None:
            return Content.from_markup(
                "[b]There is no trail.[/]\n\n[$muted]Without one, nothing can be changed.[/]"
            )
        return Content.from_markup(
            "[b]No overrides yet.[/]\n\n[$muted]Every requeue and every refused action is recorded here, "
            "with who, when and why.[/]"
        )

    # -- actions -----------------------------------------------------------------------------------

    def has(self, need: str) -> bool:
        override = self._override()
        if need == UNFINISHED:
            return override is not None and (not override.state.over or override.override_id in self.table.unresolved)
        return override is not None if need == AN_OVERRIDE else True

    def _override(self) -> Override | None:
        entry = self.table.entry
        return entry if isinstance(entry, Override) else None

    def action_open(self) -> None:
        if (override := self._override()) is not None:
            self.app.push_screen(OverrideScreen(override))

    def action_resume(self) -> None:
        if (override := self._override()) is not None:
            self.console_app.resume(override)

    def action_undo(self) -> None:
        if (override := self._override()) is not None:
            self.console_app.plan_undo(override.override_id)

    def action_verify(self) -> None:
        self.start(self._verify, "verify")

    async def _verify(self) -> None:
        trail = self.session.trail
        if trail is None:
            self.console_app.say("There is no trail to verify.", severity="warning")
            return
        self._show_verification(Content.from_markup(" [$muted]verifying…[/]"))
        try:
            found = await off_loop(lambda: trail.verified(self.session.anchor_file))
        except Fault:
            self._show_verification(None)
            raise
        if found.ok:
            result = safe.phrase(
                " [$success]✓ intact[/] [$muted]$count records at $now[/]",
                count=thousands(found.records),
                now=f"{self.session.clock.now():%H:%M:%S}Z",
            )
        else:
            result = safe.phrase(" [b $error]✗ broken at record $seq:[/] $what", seq=found.first_bad, what=found.what)
            text = f"The trail is broken at record {found.first_bad}: {found.what}. Do not rely on what follows it."
            self.console_app.say(text, severity="error")  # the status line may be too short for it
        self._show_verification(result)

    def _show_verification(self, result: Content | None) -> None:
        self._verification = result
        self._update_status()

    def action_copy(self) -> None:
        if (override := self._override()) is not None:
            self.console_app.copy(override.override_id, "the override id")
