"""One override of the trail: who, when, from where, why, and what became of every item."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType

from console.core.catalogue import UNFINISHED
from console.core.faults import Fault
from console.core.override import ItemOutcome, Override
from console.core.ports import Book
from console.ui import safe
from console.ui.actions import bindings_of
from console.ui.cells import Cell, moment, thousands
from console.ui.lanes import off_loop
from console.ui.messages import OutcomesReady
from console.ui.screens.place import Place
from console.ui.widgets.text_pane import Line, TextPane

_SHOWN = 2_000
_TONES = {
    "changed": "good",
    "conflicted": "warning",
    "failed": "error",
    "indeterminate": "error",
    "not_applied": "muted",
}

_SAID_ELSEWHERE = frozenset(
    {"by", "reason", "ticket", "plan_id", "op_id", "shares", "blocked", "warnings", "by_condition", "by_signature"}
)


_WORDS = {
    "selection": "filter",
    "whence.host": "from host",
    "whence.tty": "terminal",
    "whence.ssh_peer": "ssh from",
    "whence.pid": "process",
    "whence.version": "version",
    "who.login": "login",
    "who.uid": "uid",
    "who.claimed": "says they are",
}


class OverrideScreen(Place):
    """The record as the trail keeps it."""

    PLACE = "override"
    TAB = "trail"
    BINDINGS: ClassVar[list[BindingType]] = list(bindings_of("override"))

    def __init__(self, override: Override) -> None:
        super().__init__()
        self._override = override
        self._outcomes: tuple[ItemOutcome, ...] = ()
        self._fault: Fault | None = None

    def compose_place(self) -> ComposeResult:
        pane = TextPane(id="record")
        pane.border_title = safe.phrase("[b]override $id[/]", id=self._override.op_id)
        yield pane

    def on_mount(self) -> None:
        self.query_one(TextPane).focus()
        self._show()

    def on_screen_resume(self) -> None:
        self.read_again()

    def read_again(self) -> None:
        self.start(self._read, "outcomes")

    async def _read(self) -> None:
        book, op_id = self.desk.book, self._override.op_id
        if book is None:
            return
        try:
            found = await off_loop(lambda: (book.override(op_id), _first(book, op_id)))
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
        lines = tuple(self._told())
        pane = self.query_one(TextPane)
        if lines != pane.lines:
            pane.lines = lines

    def _told(self) -> Iterator[Line]:
        override = self._override
        if self._fault is not None:
            yield [Cell("✗ ", "error"), Cell(safe.line(str(self._fault), 400), "error")]
        yield _pair("state", f"{override.state}  {override.note}".strip())
        yield _pair("started", moment(override.started_at))
        yield _pair("who", override.who)
        yield _pair("reason", override.reason)
        yield _pair("ticket", override.ticket or "–")
        yield _pair("plan", override.plan_id)
        for name, value in _flat(override.confirmed):
            if name.partition(".")[0] not in _SAID_ELSEWHERE:
                yield _pair(_WORDS.get(name, name.replace("_", " ")), value)
        for share in override.confirmed.get("shares", ()):
            yield _pair(
                str(share.get("backend", "")),
                f"{share.get('changes', 0)} of {share.get('selected', 0)} at {share.get('place', '')}",
            )
        yield []
        for outcome, count in sorted(override.counts.items()):
            yield [
                Cell(f"  {safe.fit(thousands(count), 10, right=True)}  "),
                Cell(safe.line(outcome.replace("_", " ")), _TONES.get(outcome, "plain")),
            ]
        yield []
        yield [Cell("item by item", "muted")]
        for item in self._outcomes:
            detail = f"  {safe.line(item.detail)}" if item.detail else ""
            yield [
                Cell(f"  {safe.fit(safe.line(item.outcome.replace('_', ' ')), 14)}", _TONES.get(item.outcome, "plain")),
                Cell(f"{safe.line(item.key)}{detail}"),
            ]
        if len(self._outcomes) == _SHOWN:
            yield [Cell(f"  the first {_SHOWN}; retriage trail export has all", "muted")]

    def has(self, need: str) -> bool:
        return not self._override.state.over if need == UNFINISHED else True

    def action_back(self) -> None:
        self.dismiss(None)

    def action_undo(self) -> None:
        self.console_app.plan_undo(self._override.op_id)

    def action_resume(self) -> None:
        self.console_app.resume(self._override)

    def action_copy(self) -> None:
        self.console_app.copy(self._override.op_id, "the override's id")


def _first(book: Book, op_id: str) -> list[ItemOutcome]:
    return list(islice((outcome for batch in book.outcomes(op_id) for outcome in batch), _SHOWN))


def _pair(name: str, value: str) -> Line:
    return [Cell(f"{safe.fit(safe.line(name), 14)} ", "muted"), Cell(safe.line(value, 1_000))]


def _flat(body: Mapping[str, Any], lead: str = "") -> Iterator[tuple[str, str]]:
    """The fields of a record by name, nested ones with a point between."""
    for name, value in body.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{lead}{name}.")
        elif value not in (None, "", [], {}):
            yield f"{lead}{name}", str(value)
