"""Trail: the audit log of overrides and refused actions, and its integrity check."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import ClassVar

from rich.cells import cell_len
from textual import on
from textual.binding import BindingType
from textual.content import Content
from textual.message import Message

from console.actions.catalogue import AN_OVERRIDE, UNFINISHED
from console.core.faults import Fault
from console.core.override import Actions, Override, OverrideState, outcome_summary
from console.core.recovery import Result, ResultCounts
from console.core.text import plural
from console.ui import export, safe
from console.ui.actions import bindings_of
from console.ui.advice import fault_text
from console.ui.audit import AuditLog, Refusal, read_audit_log
from console.ui.backend_calls import off_loop
from console.ui.cells import Cell, Column, moment, short_age, thousands
from console.ui.live_overrides import FollowedOverride
from console.ui.messages import OverrideProgressed, TrailReady
from console.ui.override_view import OverrideView
from console.ui.report import ask_for_report
from console.ui.screens.base import EntriesScreen
from console.ui.screens.export import ExportScreen
from console.ui.widgets.entry_table import EntryTable
from console.ui.widgets.status_line import StatusLine
from console.ui.widgets.text_pane import Line

_COLUMNS = (
    Column("when", 20, 3),
    Column("age", 4, 7, right=True),
    Column("state", 15, 9),
    Column("who", 6, 5, grows=1, most=24),
    Column("result", 14, 8, grows=3, most=48, share=0.47),
    Column("reason", 12, 6, grows=6),
    Column("selection", 12, 1, grows=2),
)
_FITTED = {"state": 17, "who": 24, "result": 48}
"""Columns that are as wide as what is in them, and how wide they may be."""
_MEASURED = 100
"""So many entries are looked at to know how wide they are."""
REFUSED = Cell("⊘ refused", "warning")
Entry = Override | Refusal


class TrailList(EntryTable[Entry]):
    """Newest first. The cursor goes to an override that this console has just started."""

    class Moved(Message):
        """Another entry is under the cursor."""

    def __init__(
        self, own_override: Callable[[], str | None], results_now: Callable[[Override], ResultCounts | None]
    ) -> None:
        super().__init__(_COLUMNS, margin=1)
        self._results_now = results_now
        """What became of the items of an override so far, if this console watches them."""
        self.audit = AuditLog()
        self.now: datetime | None = None
        self.actions: Actions = {}
        """The plugins' own actions, for their words."""
        self._own_override = own_override
        """The id of the newest override that this console has started."""
        self._followed: str | None = None

    def identity(self, entry: Entry) -> str | int:
        return entry.override_id if isinstance(entry, Override) else entry.seq

    def watch_entries(self) -> None:
        self._fit_columns()
        super().watch_entries()

    def row_to_keep(self) -> int | None:
        own = self._own_override()
        if own is None or own == self._followed:
            return super().row_to_keep()
        row = next((row for row, entry in enumerate(self.entries) if self.identity(entry) == own), None)
        self._followed = self._followed if row is None else own
        return row

    def _fit_columns(self) -> None:
        """The state, the person and the result take what they need; the reason gets the rest."""
        cells = [self.cells_at(row) for row in range(min(self.total(), _MEASURED))]
        fitted = list(_COLUMNS)
        for index, column in enumerate(_COLUMNS):
            if column.title in _FITTED:
                widest = max((cell_len(row[index].text) for row in cells), default=0)
                most = max(min(widest, _FITTED[column.title]), len(column.title))
                fitted[index] = column._replace(width=min(column.width, most), grows=3, most=most)
        if tuple(fitted) != self.columns:
            self.columns = tuple(fitted)
            self._laid_out_for = -1
            self._forget_drawn()
            self.refresh()

    def moved(self) -> None:
        super().moved()
        self.screen.refresh_bindings()
        self.post_message(self.Moved())

    def stamp(self, row: int) -> object:
        entry = self.entries[row]
        return entry, self.audit, self._age(entry), self._result(entry) if isinstance(entry, Override) else None

    def _age(self, entry: Entry) -> str:
        at = entry.at if isinstance(entry, Refusal) else entry.started_at
        return "" if self.now is None else short_age(self.now - at)

    def cells_at(self, row: int) -> Sequence[Cell]:
        entry = self.entries[row]
        age = Cell(self._age(entry), "muted")
        if isinstance(entry, Refusal):
            return (
                Cell(moment(entry.at), "muted"),
                age,
                REFUSED,
                Cell(safe.line(entry.who)),
                Cell(safe.line(f"{entry.why}: {entry.detail}" if entry.detail else entry.why), "muted"),
                Cell(safe.line(entry.reason)),
                Cell(""),
            )
        return (
            Cell(moment(entry.started_at), "muted"),
            age,
            self.audit.state(entry),
            Cell(safe.line(entry.who)),
            self._result(entry),
            Cell(safe.line(entry.reason)),
            Cell(safe.line(str(entry.confirmed.get("selection", ""))), "muted"),
        )

    def _result(self, override: Override) -> Cell:
        """The results of its items so far; until one is known, the outcomes."""
        recorded = override.result
        results = self._results_now(override) if recorded is None else ResultCounts.of_record(recorded)
        if results is not None:
            good = "plain" if recorded is None else "good"
            return Cell(results.summary(), "warning" if results.counts[Result.FAILED_AGAIN] else good)
        return Cell(safe.line(outcome_summary(override.counts, override.action, self.actions)))

    def entered(self) -> None:
        if isinstance(self.screen, TrailScreen):
            self.screen.action_open()


def _refused_in_words(refusal: Refusal) -> Iterator[Line]:
    yield [Cell("⊘ Refused", "warning"), Cell(f"   {safe.line(refusal.why)}")]
    yield []
    for name, value in (("detail", refusal.detail), ("reason", refusal.reason), ("who", refusal.who)):
        if value:
            yield [Cell(f" {name:<18} ", "muted"), Cell(safe.line(value, 1_000))]


class TrailScreen(EntriesScreen):
    """What was done, by whom, when and why."""

    PLACE = "trail"
    BINDINGS: ClassVar[list[BindingType]] = list(bindings_of("trail"))

    def __init__(self) -> None:
        super().__init__()
        self._verification: Content | None = None
        """The result of the last integrity check."""

    def make_list(self) -> TrailList:
        return TrailList(self._own_override, self.console_app.live_overrides.results_of)

    @on(TrailList.Moved)
    def _show_entry(self) -> None:
        """Show what the list has no room for."""
        entry = self.table.entry
        lines: tuple[Line, ...] = ()
        if isinstance(entry, Override):
            session, known = self.session, self.console_app.live_overrides.known(entry.override_id)
            followed = known or FollowedOverride(override=entry, ended_clock=0.0)
            now, errors = session.clock.now(), self.console_app.errors_seen()
            view = OverrideView(followed, entry, now, session.actions, session.switches, errors)
            lines = (*view.headline(), (), *view.in_numbers(), *view.facts())
        elif entry is not None:
            lines = tuple(_refused_in_words(entry))
        self.show_entry(lines)

    @on(OverrideProgressed)
    def _progressed(self) -> None:
        self.table.repaint_changed()
        self._show_entry()


    def _own_override(self) -> str | None:
        latest = self.console_app.live_overrides.latest
        return None if latest is None else latest.override_id

    @property
    def table(self) -> TrailList:
        return self.query_one(TrailList)

    def ticked(self) -> None:
        self.table.now = self.session.clock.now()
        self.table.repaint_changed()

    def read_again(self) -> None:
        self.start(self._read, "trail")

    async def _read(self) -> None:
        trail = self.session.trail
        if trail is None:
            self.post_message(TrailReady(AuditLog()))
            return
        try:
            log = await off_loop(lambda: read_audit_log(trail))
        except Fault as fault:
            self.post_message(TrailReady(AuditLog(), fault))
        else:
            self.post_message(TrailReady(log))

    @on(TrailReady)
    def _ready(self, message: TrailReady) -> None:
        table, log = self.table, message.log
        table.actions, table.audit = self.session.actions, log
        entries: list[Entry] = [*log.overrides, *log.refusals]
        entries.sort(key=lambda e: e.at if isinstance(e, Refusal) else e.started_at, reverse=True)
        table.entries = entries
        self.show_list(filled=bool(entries), fault=message.fault)
        self._show_entry()
        state = self.query_one("#state", StatusLine)
        state.right = safe.phrase(
            "$count [$muted]$overrides,[/] $refused [$muted]$refusals[/] ",
            count=len(log.overrides),
            overrides=plural(len(log.overrides), "override"),
            refused=len(log.refusals),
            refusals=plural(len(log.refusals), "refusal"),
        )
        self._update_status()
        self.refresh_bindings()

    def _update_status(self) -> None:
        parts = []
        if unresolved := len(self.table.audit.unresolved):
            parts.append(safe.phrase(" [b $error]! $count unresolved[/]", count=unresolved))
            if not self._verification and not self.session.read_only:
                parts.append(Content.from_markup(" [$muted]p resumes it[/]"))
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
            unresolved = self.table.audit.unresolved
            return override is not None and (not override.state.over or override.override_id in unresolved)
        return override is not None if need == AN_OVERRIDE else super().has(need)

    def _override(self) -> Override | None:
        entry = self.table.entry
        return entry if isinstance(entry, Override) else None

    def action_open(self) -> None:
        if (override := self._override()) is not None:
            self.console_app.override_dialogs.show(override)

    def action_resume(self) -> None:
        override, operations = self._override(), self.session.operations
        if override is None:
            return
        if override.state is OverrideState.PAUSED and override.alive and operations is not None:
            self.start(partial(off_loop, partial(operations.proceed, override.override_id)), "request", exclusive=False)
            self.console_app.say("Continuing")
        else:
            self.console_app.override_dialogs.resume(override)

    def action_undo(self) -> None:
        if (override := self._override()) is not None:
            self.console_app.override_dialogs.plan_undo(override.override_id)

    def action_verify(self) -> None:
        self.start(self._verify, "verify")

    async def _verify(self) -> None:
        trail = self.session.trail
        if trail is None:
            self.console_app.hint("There is no trail to verify.", severity="warning")
            return
        self._show_verification(Content.from_markup(" [$muted]verifying…[/]"))
        try:
            anchors = self.session.anchor_file
            found = await off_loop(lambda: trail.verified(anchors))
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

    def command(self) -> Sequence[str]:
        override = self._override()
        return ["trail", "list"] if override is None else ["overrides", "show", override.override_id]

    def action_report(self) -> None:
        if (override := self._override()) is not None:
            ask_for_report(self, override.override_id)

    def action_export(self) -> None:
        self.app.push_screen(ExportScreen("the trail", "retriage-trail", self.session.clock.now()), self._export_to)

    def _export_to(self, path: str | None) -> None:
        if path:
            self.start(partial(self._exported, path), "export", exclusive=False)

    async def _exported(self, chosen: str) -> None:
        trail = self.session.trail
        if trail is not None:
            path = export.checked_path(chosen)
            form = export.format_of(path)
            count = await off_loop(lambda: export.write_with(path, lambda out: trail.export(out, form, items=True)))
            self.console_app.say(f"Exported {thousands(count)} {plural(count, 'record')} to {path}")

    def action_copy(self) -> None:
        if (override := self._override()) is not None:
            self.console_app.copy(override.override_id, "the override id")
