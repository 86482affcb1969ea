"""The base of every dialog, and the note that replaces a screen in a terminal that is too small for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, TypeVar, cast

from textual import events, on
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen
from textual.widgets import Static

from console.ui.textual_workarounds import ClosesItself

if TYPE_CHECKING:
    from console.ui.app import Console

Result = TypeVar("Result")

SMALLEST = (40, 10)
"""Columns and lines below which a screen shows one line only."""
_NOTE = f"Too small: {SMALLEST[0]}×{SMALLEST[1]} or more"


class SmallTerminal(ClosesItself[Result]):
    """A screen that shows one line in place of its content while the terminal is too small."""

    @on(events.Resize)
    def _is_it_too_small(self, event: events.Resize) -> None:
        tiny = event.size.width < SMALLEST[0] or event.size.height < SMALLEST[1]
        if tiny and not self.query(".too-small"):
            self.mount(Static(_NOTE, classes="too-small", markup=False))
        self.set_class(tiny, "tiny")


class Dialog(ModalScreen[Result], SmallTerminal[Result]):
    """A dialog. Escape closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "Close", show=False)]

    def hint(self, text: str) -> None:
        """Say why a key did nothing."""
        cast("Console", self.app).hint(text, "warning")
