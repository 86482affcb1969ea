"""Dialogs with a list of choices, filtered by typing; and the dialog that shows a command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, NamedTuple

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.reactive import reactive
from textual.widgets import Input, Static

from console.core.text import ascii_lower
from console.ui import safe
from console.ui.cells import Cell, Column
from console.ui.screens.dialog import Dialog
from console.ui.widgets.filter_bar import QueryInput
from console.ui.widgets.line_table import LineTable

_MOST_ROWS = 16
_TITLE, _NARROW_TITLE, _NARROW = 24, 16, 100
"""Cells for the titles, where there are hints; and in a terminal with fewer columns."""


class Choice(NamedTuple):
    """A value to return, with its title, a hint and the key that does the same without the dialog."""

    value: str
    title: str
    hint: str = ""
    key: str = ""
    why_not: str = ""
    """Why it cannot be chosen now."""


def matching(choices: Sequence[Choice], typed: str) -> list[Choice]:
    """The choices with every typed word in them, those whose title begins with the first word before the others."""
    words = ascii_lower(typed).split()
    found = [c for c in choices if all(word in ascii_lower(f"{c.title} {c.hint} {c.key}") for word in words)]
    return sorted(found, key=lambda c: _rank(ascii_lower(c.title), words)) if words else found


def _rank(title: str, words: Sequence[str]) -> int:
    if title.startswith(words[0]):
        return 0
    return 1 if all(word in title for word in words) else 2


class ChoiceList(LineTable):
    """One choice per line: title, hint, key."""

    choices: reactive[Sequence[Choice]] = reactive(tuple, init=False, repaint=False)

    class Chosen(Message):
        """A choice was clicked."""

    def __init__(self, columns: Sequence[Column]) -> None:
        super().__init__(columns, margin=1, heading=False)

    @property
    def is_active(self) -> bool:
        """The input above has the focus, and passes its arrow keys on."""
        return True

    def total(self) -> int:
        return len(self.choices)

    def watch_choices(self) -> None:
        self.set_reactive(LineTable.cursor, 0)
        self.scroll_to(y=0, animate=False)
        self.rows_changed(0)

    def stamp(self, row: int) -> object:
        return self.choices[row]

    def cells_at(self, row: int) -> Sequence[Cell]:
        choice = self.choices[row]
        title, hint = Cell(safe.line(choice.title)), Cell(safe.line(choice.why_not or choice.hint), "muted")
        if choice.why_not:
            return title._replace(tone="muted"), hint, Cell(choice.key, "muted")
        return title, hint, Cell(choice.key, "accent")

    def on_click(self, event: events.Click) -> None:
        event.prevent_default()
        if (row := self.row_of(event.y)) is not None:
            self.cursor = row
            self.post_message(self.Chosen())


class Extra(NamedTuple):
    """A key of a dialog that does something else with a choice than choosing it."""

    label: str
    action: Callable[[Choice], object]


class PickScreen(Dialog[str | None]):
    """Enter returns the highlighted choice, or, if `free` is set and nothing matches, the typed text.

    `enter` says in one word what enter does.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down,ctrl+n", "move(1)", "Down", show=False),
        Binding("up", "move(-1)", "Up", show=False),
        Binding("pagedown", "page(1)", "Page down", show=False),
        Binding("pageup", "page(-1)", "Page up", show=False),
    ]

    def __init__(
        self,
        title: str,
        choices: Sequence[Choice],
        *,
        free: str = "",
        enter: str = "choose",
        extras: Mapping[str, Extra] | None = None,
    ) -> None:
        super().__init__()
        self._title = title
        self._choices = choices
        self._free = free
        self._enter = enter
        self._extras = extras or {}

    def compose(self) -> ComposeResult:
        title = max((len(c.title) for c in self._choices), default=8)
        hints = any(c.hint or c.why_not for c in self._choices)
        keys = max((len(c.key) for c in self._choices), default=0)
        columns = (
            Column("", min(title, _NARROW_TITLE if self.app.size.width < _NARROW else _TITLE), 9, grows=int(not hints)),
            Column("", 8, 5, grows=3),
            Column("", keys, 7, right=True),
        )[: 3 if hints or keys else 1]
        with Vertical(classes="dialog picker") as dialog:
            dialog.border_title = safe.phrase("[b]$title[/]", title=self._title)
            dialog.border_subtitle = self._keys_help()
            yield QueryInput(placeholder=self._free or "type to filter")
            yield ChoiceList(columns)
            yield Static("Nothing matches.", classes="nothing", markup=False)

    def _keys_help(self) -> str:
        named = ((key.replace("ctrl+", "^"), extra.label) for key, extra in self._extras.items())
        keys = "  ".join(f"[$accent]{key}[/] {label}" for key, label in named)
        return f"{keys}  [$accent]enter[/] {self._enter}  [$accent]esc[/] close".strip()

    def on_mount(self) -> None:
        self._show("")
        self.set_focus(self.query_one(QueryInput))  # now: the next key may already be there

    def _show(self, typed: str) -> None:
        found = matching(self._choices, typed)
        listed = self.query_one(ChoiceList)
        listed.choices = found
        listed.styles.height = min(len(found), _MOST_ROWS)
        listed.display = bool(found)
        self.query_one(QueryInput).set_class(bool(self._free) and not found, "alone")
        self.query_one(".nothing").display = not found and not self._free

    @property
    def chosen(self) -> Choice | None:
        listed = self.query_one(ChoiceList)
        return listed.choices[listed.cursor] if listed.choices else None

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        self._show(event.value)

    @on(Input.Submitted)
    @on(ChoiceList.Chosen)
    def _entered(self) -> None:
        typed = self.query_one(QueryInput).value.strip()
        if self.chosen is not None and self.chosen.why_not:
            self.hint(self.chosen.why_not)
        elif self.chosen is not None:
            self.dismiss(self.chosen.value)
        elif self._free and typed:
            self.dismiss(typed)
        elif self._free:
            self.hint(f"Nothing is typed yet ({self._free}).")

    def on_key(self, event: events.Key) -> None:
        extra = self._extras.get(event.key)
        if extra is not None and self.chosen is not None:
            event.stop()
            chosen = self.chosen
            self.dismiss(None)
            self.app.call_later(extra.action, chosen)  # by the app: a closed dialog gets no answer

    def action_move(self, by: int) -> None:
        listed = self.query_one(ChoiceList)
        if listed.choices:
            listed.cursor = (listed.cursor + by) % len(listed.choices)

    def action_page(self, by: int) -> None:
        self.query_one(ChoiceList).action_page(by)


class CommandScreen(Dialog[bool]):
    """Shows a command line. Returns whether it is to be copied."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,y", "dismiss(True)", "Copy", show=False),
        Binding("c", "dismiss(None)", "Close", show=False),
    ]

    def __init__(self, command: str) -> None:
        super().__init__()
        self._command = command

    def compose(self) -> ComposeResult:
        command = safe.block(self._command, 4_000)
        line = Static(safe.phrase("[$muted]>[/] $command", command=command), classes="dialog")
        line.border_title = safe.phrase("[b]The same on the command line[/]")
        line.border_subtitle = safe.phrase("[$accent]enter[/] copy  [$accent]esc[/] close")
        yield line
