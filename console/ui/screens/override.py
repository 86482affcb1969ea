"""Override: one override as the trail recorded it, with the outcome of every item."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType

from console.actions.catalogue import UNFINISHED
from console.core.faults import Fault
from console.core.override import ItemOutcome, Override, outcome_summary
from console.core.ports import Trail
from console.ui import safe
from console.ui.actions import bindings_of
from console.ui.advice import fault_text, switch_name
from console.ui.backend_calls import off_loop
from console.ui.cells import Cell, moment
from console.ui.messages import OutcomesReady
from console.ui.outcomes import outcome_look
from console.ui.screens.base import BaseScreen
from console.ui.widgets.text_pane import Line, TextPane

_MAX_ITEMS = 2_000

_NAMES = {
    "action": "action",
    "attempts": "attempts",
    "pace": "pace",
    "selection": "selection",
    "undo_of": "undo of",
    "count": "confirmed",
    "facts.login": "login",
    "facts.uid": "uid",
    "facts.uid_outside": "uid outside",
    "facts.loginuid": "logged in as",
    "facts.audit_session": "audit session",
    "facts.host": "host",
    "facts.tty": "terminal",
    "facts.pid": "process",
    "facts.preloaded": "preloaded",
    "facts.version": "version",
    "claims.name": "claims to be",
    "claims.login": "claims login",
    "claims.host": "claims host",
    "claims.ssh_peer": "claims ssh from",
    "claims.sudo_user": "claims sudo by",
    "clock_behind": "clock behind",
    "plan_id": "plan",
    "plan_hash": "plan hash",
}
"""The fields of the confirmation that are shown, in this order."""


class OverrideScreen(BaseScreen):
    """Read from the trail, and read again while it is shown."""

    PLACE = "override"
    TAB = "trail"
    BINDINGS: ClassVar[list[BindingType]] = list(bindings_of("override"))

    def __init__(self, override: Override) -> None:
        super().__init__()
        self._override = override
        self._outcomes: tuple[ItemOutcome, ...] = ()
        self._fault: Fault | None = None

    def compose_content(self) -> ComposeResult:
        pane = TextPane(id="record")
        pane.border_title = safe.phrase("[b]Override $id[/]", id=self._override.override_id)
        yield pane

    def on_mount(self) -> None:
        self.query_one(TextPane).focus()
        self._show()

    def on_screen_resume(self) -> None:
        self.read_again()

    def read_again(self) -> None:
        self.start(self._read, "outcomes")

    async def _read(self) -> None:
        trail, override_id = self.session.trail, self._override.override_id
        if trail is None:
            return
        try:
            found = await off_loop(lambda: (trail.override(override_id), _first_outcomes(trail, override_id)))
        except Fault as fault:
            self.post_message(OutcomesReady(self._override, (), fault))
        else:
            self.post_message(OutcomesReady(*found))

    @on(OutcomesReady)
    def _ready(self, message: OutcomesReady) -> None:
        self._override = message.override
        self._outcomes = tuple(message.outcomes)
        self._fault = message.fault
        self._show()

    def _show(self) -> None:
        lines = tuple(self._lines())
        pane = self.query_one(TextPane)
        if lines != pane.lines:
            pane.lines = lines

    def _lines(self) -> Iterator[Line]:
        override, session = self._override, self.console_app.session
        if self._fault is not None:
            yield [Cell("✗ ", "error"), Cell(safe.line(fault_text(self._fault), 400), "error")]
        yield _pair("state", f"{override.state}  {override.note}".strip())
        yield _pair("result", outcome_summary(override.counts, override.action, session.actions))
        yield _pair("started", moment(override.started_at))
        yield _pair("who", override.who)
        yield _pair("reason", override.reason)
        yield _pair("ticket", override.ticket or "–")
        yield []
        fields = dict(_fields(override.confirmed))
        yield from (_pair(words, fields[name]) for name, words in _NAMES.items() if name in fields)
        if flags := override.confirmed.get("flags"):
            yield _pair("switches", ", ".join(switch_name(str(flag), session.switches) for flag in flags))
        for part in override.confirmed.get("parts", ()):
            yield _pair(
                str(part.get("backend", "")),
                f"{part.get('changes', 0)} of {part.get('selected', 0)} at {part.get('place', '')}",
            )
        yield []
        yield [Cell("items", "muted")]
        for item in self._outcomes:
            look = outcome_look(item.outcome, override.action, session.actions)
            word = safe.fit(f"{look.sign} {look.word}", 25)
            detail = f"  {safe.line(item.detail)}" if item.detail else ""
            yield [Cell(f"  {word}", look.tone), Cell(f"{safe.line(item.key)}{detail}")]
        if len(self._outcomes) == _MAX_ITEMS:
            yield [Cell(f"  only the first {_MAX_ITEMS}; `retriage trail export` writes all", "muted")]

    def has(self, need: str) -> bool:
        return not self._override.state.over if need == UNFINISHED else True

    def action_back(self) -> None:
        self.dismiss(None)

    def action_undo(self) -> None:
        self.console_app.plan_undo(self._override.override_id)

    def action_resume(self) -> None:
        self.console_app.resume(self._override)

    def action_copy(self) -> None:
        self.console_app.copy(self._override.override_id, "the override id")


def _first_outcomes(trail: Trail, override_id: str) -> list[ItemOutcome]:
    first = islice((outcome for batch in trail.outcomes(override_id) for outcome in batch), _MAX_ITEMS)
    return list({outcome.ordinal: outcome for outcome in first}.values())


def _pair(name: str, value: str) -> Line:
    return [Cell(f"{safe.fit(safe.line(name), 14)} ", "muted"), Cell(safe.line(value, 1_000))]


def _fields(body: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """The fields of a record that have a value; a nested field is named `outer.inner`."""
    for name, value in body.items():
        if isinstance(value, Mapping):
            yield from _fields(value, f"{prefix}{name}.")
        elif value not in (None, ""):
            yield f"{prefix}{name}", str(value)
