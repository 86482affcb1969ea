"""Trail: every override and refusal, what is unresolved on top; and whether the chain is whole."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.content import Content
from textual.reactive import reactive
from textual.widgets import Static

from console.core.catalogue import AN_OVERRIDE, UNFINISHED
from console.core.faults import Fault
from console.core.override import Override, OverrideState
from console.ui import safe
from console.ui.actions import bindings_of
from console.ui.audit import Refusal, auditor_of, refusals
from console.ui.cells import Cell, Column, moment, short_age, thousands
from console.ui.lanes import off_loop
from console.ui.messages import TrailReady
from console.ui.screens.override import OverrideScreen
from console.ui.screens.place import Place
from console.ui.widgets.line_table import LineTable
from console.ui.widgets.status_line import StatusLine

_COLUMNS = (
    Column("when", 20, 8),
    Column("age", 4, 2, right=True),
    Column("state", 13, 9),
    Column("who", 8, 5, grows=1, most=24),
    Column("changed", 8, 7, right=True),
    Column("conflicts", 9, 4, right=True),
    Column("failed", 6, 3, right=True),
    Column("reason", 14, 6, grows=4),
    Column("what", 12, 1, grows=3),
)
_STATES = {
    OverrideState.RUNNING: Cell("▸ running", "calm"),
    OverrideState.PAUSED: Cell("‖ paused", "warning"),
    OverrideState.STOPPED: Cell("■ stopped", "warning"),
    OverrideState.FINISHED: Cell("✓ finished", "good"),
}
UNRESOLVED = Cell("! unresolved", "error")
LEFT = Cell("! left alone", "error")
"""Said to be running, but whoever carried it out is gone."""
REFUSED = Cell("⊘ refused", "warning")
Entry = Override | Refusal


class TrailList(LineTable):
    """Unresolved first, then newest first; the cursor stays on its entry."""

    entries: reactive[Sequence[Entry]] = reactive(tuple, init=False, repaint=False)

    def __init__(self) -> None:
        super().__init__(_COLUMNS, margin=1)
        self.unresolved: frozenset[str] = frozenset()
        self.now: datetime | None = None
        self._under: Entry | None = None

    @property
    def entry(self) -> Entry | None:
        return self.entries[self.cursor] if self.cursor < len(self.entries) else None

    def total(self) -> int:
        return len(self.entries)

    def watch_entries(self, entries: Sequence[Entry]) -> None:
        under = self._under
        self.rows_changed(None if under is None else next((n for n, e in enumerate(entries) if _same(e, under)), None))

    def moved(self) -> None:
        self._under = self.entry
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
            UNRESOLVED if entry.op_id in self.unresolved else _state(entry),
            Cell(safe.line(entry.who)),
            Cell(thousands(counts.get("changed", 0))),
            _count(counts.get("conflicted", 0), "warning"),
            _count(counts.get("failed", 0), "error"),
            Cell(safe.line(entry.reason)),
            Cell(safe.line(str(entry.confirmed.get("selection", entry.note or ""))), "muted"),
        )


def _same(one: Entry, other: Entry) -> bool:
    if isinstance(one, Override) and isinstance(other, Override):
        return one.op_id == other.op_id
    return isinstance(one, Refusal) and isinstance(other, Refusal) and one.seq == other.seq


def _state(override: Override) -> Cell:
    return LEFT if override.state is OverrideState.RUNNING and not override.alive else _STATES[override.state]


def _count(number: int, tone: str) -> Cell:
    return Cell(thousands(number), tone) if number else Cell("–", "muted")


class TrailScreen(Place):
    """What was done, by whom and why."""

    PLACE = "trail"
    BINDINGS: ClassVar[list[BindingType]] = list(bindings_of("trail"))

    def __init__(self) -> None:
        super().__init__()
        self._proof: Content | None = None
        """What the last verifying has found."""

    def compose_place(self) -> ComposeResult:
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
        self.table.now = self.desk.clock.now()
        self.table.refresh()

    def read_again(self) -> None:
        self.start(self._read, "trail")

    async def _read(self) -> None:
        book = self.desk.book
        if book is None:
            self.post_message(TrailReady((), (), ()))
            return
        try:
            overrides, refused, unresolved = await off_loop(
                lambda: (book.overrides(500), refusals(book), book.unresolved())
            )
        except Fault as fault:
            self.post_message(TrailReady((), (), (), fault))
        else:
            self.post_message(TrailReady(overrides, refused, unresolved))

    @on(TrailReady)
    def _ready(self, message: TrailReady) -> None:
        table = self.table
        table.unresolved = frozenset(intent.op_id for intent in message.unresolved)
        entries: list[Entry] = [*message.overrides, *message.refusals]
        entries.sort(key=lambda e: e.at if isinstance(e, Refusal) else e.started_at, reverse=True)
        entries.sort(key=lambda e: isinstance(e, Refusal) or e.op_id not in table.unresolved)
        table.entries = entries
        empty = not entries
        table.display = not empty
        self.query_one(".empty").display = empty
        if empty:
            self.query_one(".empty", Static).update(self._nothing(message.fault))
        state = self.query_one("#state", StatusLine)
        state.right = safe.phrase(
            "$count [$muted]$overrides,[/] $refused [$muted]$refusals[/] ",
            count=len(message.overrides),
            overrides="override" if len(message.overrides) == 1 else "overrides",
            refused=len(message.refusals),
            refusals="refusal" if len(message.refusals) == 1 else "refusals",
        )
        self._tell()
        self.refresh_bindings()

    def _tell(self) -> None:
        """What is open, and what was proved: that says of itself when, so it stands until it is proved again."""
        told = []
        if unresolved := len(self.table.unresolved):
            told.append(safe.phrase(" [b $error]! $count unresolved[/]", count=unresolved))
            if not self._proof and not self.desk.read_only:
                told.append(Content.from_markup(" [$muted]x settles and resumes[/]"))
        if self._proof:
            told.append(self._proof)
        self.query_one("#state", StatusLine).left = Content.assemble(*told)

    def _nothing(self, fault: Fault | None) -> Content:
        if fault is not None:
            return safe.phrase("[b $error]✗ The trail cannot be read.[/]\n\n$fault", fault=str(fault))
        if self.desk.book is None:
            return Content.from_markup(
                "[b]There is no trail here.[/]\n\n[$muted]Without one nothing can be changed.[/]"
            )
        return Content.from_markup(
            "[b]Nothing has been overridden yet.[/]\n\n[$muted]Every requeue, and every refusal, is "
            "recorded here with who, when and why.[/]"
        )

    # -- actions -----------------------------------------------------------------------------------

    def has(self, need: str) -> bool:
        override = self._override()
        if need == UNFINISHED:
            return override is not None and (not override.state.over or override.op_id in self.table.unresolved)
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
            self.console_app.plan_undo(override.op_id)

    def action_verify(self) -> None:
        self.start(self._verified, "verify")

    async def _verified(self) -> None:
        auditor = auditor_of(self.desk.book)
        if auditor is None:
            self.console_app.say("This trail cannot be verified from here", severity="warning")
            return
        self._prove(Content.from_markup(" [$muted]verifying…[/]"))
        try:
            found = await off_loop(lambda: auditor.verified(self.desk.anchor_file))
        except Fault:
            self._prove(None)
            raise
        if found.ok:
            proof = safe.phrase(
                " [$success]✓ intact[/] [$muted]$count records, as of $now[/]",
                count=thousands(found.records),
                now=f"{self.desk.clock.now():%H:%M:%S}Z",
            )
        else:
            proof = safe.phrase(" [b $error]✗ broken at record $seq:[/] $what", seq=found.first_bad, what=found.what)
            told = f"The trail is broken at record {found.first_bad}: {found.what}. Nothing after it can be relied on."
            self.console_app.say(told, severity="error")  # whole: the line below may be too short for it
        self._prove(proof)

    def _prove(self, proof: Content | None) -> None:
        self._proof = proof
        self._tell()

    def action_copy(self) -> None:
        if (override := self._override()) is not None:
            self.console_app.copy(override.op_id, "the override's id")
