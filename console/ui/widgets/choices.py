"""Rows of a form: one of several options, chosen with the arrow keys, some switches, or a text."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import ClassVar, NamedTuple

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.geometry import Size
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget
from textual.widgets import Label

from console.ui import safe
from console.ui.widgets.filter_bar import QueryInput

NAME_WIDTH = 10
"""Cells for the name of a row."""
_GAP = "   "
_MOST_LINES = 2


class RowOption(NamedTuple):
    """A value and its name."""

    value: str
    label: str


class Switch(NamedTuple):
    """A switch that is on or off."""

    id: str
    label: str
    help: str = ""
    on: bool = False


class FormRow(Widget, can_focus=True):
    """A row of a form: its name, then what can be chosen. The arrow keys choose; letters never do."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "move(-1)", show=False),
        Binding("right", "move(1)", show=False),
    ]

    class LetterTyped(Message):
        """A character was typed, which chooses nothing here."""

        def __init__(self, row: FormRow) -> None:
            super().__init__()
            self.row = row

    def __init__(self, name: str, *, id: str) -> None:
        super().__init__(id=id)
        self._title = name
        self._spans: list[tuple[int, int, int, int]] = []
        """Line, first and last column and index of each choice, for the mouse."""
        self._in_words = False
        """Whether the last key was a letter: then a space stands between two words, and chooses nothing."""

    def heading(self) -> Content:
        style = "b $accent" if self.has_focus else "$muted"
        bar = "▌" if self.has_focus else " "
        return Content.assemble((bar, "$accent"), (safe.fit(self._title, NAME_WIDTH), style))

    def on_focus(self) -> None:
        self.refresh()

    def on_blur(self) -> None:
        self._in_words = False
        self.refresh()

    def on_key(self, event: events.Key) -> None:
        letter = event.is_printable and event.key != "space"
        if letter or (event.key == "space" and self._in_words):
            event.stop()
            self.post_message(self.LetterTyped(self))
        self._in_words = letter

    def on_click(self, event: events.Click) -> None:
        for line, begin, end, index in self._spans:
            if line == event.y and begin <= event.x < end:
                self.clicked(index)

    def clicked(self, index: int) -> None:
        """The choice with this index was clicked."""
        raise NotImplementedError

    def action_move(self, by: int) -> None:
        raise NotImplementedError


class OptionRow(FormRow):
    """One of several options, with what it leads to in the line below."""

    options: reactive[Sequence[RowOption]] = reactive(tuple, layout=True)
    chosen: reactive[int] = reactive(0, init=False)
    consequence: reactive[str] = reactive("", init=False, layout=True)

    class Changed(Message):
        """Another option was chosen by the person."""

        def __init__(self, row: OptionRow) -> None:
            super().__init__()
            self.row = row

    @property
    def value(self) -> str:
        return self.options[self.chosen].value if self.options else ""

    def choose(self, value: str) -> None:
        """Choose an option without a message."""
        values = [option.value for option in self.options]
        if value in values:
            self.chosen = values.index(value)

    def offer(self, options: Sequence[RowOption]) -> None:
        """Replace the options and keep the chosen one, if it is still there."""
        kept = self.value
        if tuple(options) != tuple(self.options):
            self.options = tuple(options)
            self.set_reactive(OptionRow.chosen, 0)
            self.choose(kept)
            self.refresh()

    def _below(self, width: int) -> list[str]:
        """The consequence in at most two lines."""
        lines = wrap(safe.line(self.consequence), max(width - NAME_WIDTH - 3, 20))[:_MOST_LINES]
        return lines or [""]

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:  # noqa: ARG002
        return 1 + len(self._below(width))

    def render(self) -> Content:
        room = self.size.width - NAME_WIDTH - 1
        labels = [safe.line(option.label) for option in self.options]
        pieces = [f"‹{label}›" if n == self.chosen else f" {label} " for n, label in enumerate(labels)]
        first = _first_shown([len(piece) + 1 for piece in pieces], self.chosen, room)
        line, at = [self.heading()], NAME_WIDTH + 1
        self._spans = []
        for n, piece in list(enumerate(pieces))[first:]:
            if at + len(piece) > self.size.width:
                break
            style = ("b $accent" if self.has_focus else "b") if n == self.chosen else "$muted"
            line.append(Content.assemble((piece, style), " "))
            self._spans.append((0, at, at + len(piece), n))
            at += len(piece) + 1
        indent = "\n" + " " * (NAME_WIDTH + 2)
        below = "".join(f"{indent}{safe.fit(text, room).rstrip()}" for text in self._below(self.size.width))
        return Content.assemble(*line, (below, "$muted"))

    def action_move(self, by: int) -> None:
        self._choose(self.chosen + by)

    def clicked(self, index: int) -> None:
        self._choose(index)

    def _choose(self, index: int) -> None:
        wanted = max(0, min(index, len(self.options) - 1))
        if wanted != self.chosen:
            self.chosen = wanted
            self.post_message(self.Changed(self))


def _first_shown(widths: Sequence[int], chosen: int, room: int) -> int:
    """The first option to show, so that the chosen one fits."""
    first = 0
    while first < chosen and sum(widths[first : chosen + 1]) > room:
        first += 1
    return first


class SwitchRow(FormRow):
    """Several switches. The arrow keys go from one to the next; space turns it on or off."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("space", "switch", show=False)]

    switches: reactive[Sequence[Switch]] = reactive(tuple, layout=True)
    at: reactive[int] = reactive(0, init=False)

    class Changed(Message):
        """A switch was turned on or off by the person."""

    class Moved(Message):
        """Another switch is under the cursor."""

    @property
    def current(self) -> Switch | None:
        return self.switches[self.at] if self.at < len(self.switches) else None

    def validate_at(self, at: int) -> int:
        return max(0, min(at, len(self.switches) - 1))

    def watch_switches(self) -> None:
        self.at = self.validate_at(self.at)
        self.display = bool(self.switches)

    def _lines(self, width: int) -> list[list[tuple[int, str]]]:
        """The switches that fit in each line."""
        lines: list[list[tuple[int, str]]] = [[]]
        used = 0
        for n, switch in enumerate(self.switches):
            piece = f"[{'x' if switch.on else ' '}] {safe.line(switch.label)}"
            if lines[-1] and used + len(_GAP) + len(piece) > width - NAME_WIDTH - 1:
                lines.append([])
                used = 0
            used += len(piece) + (len(_GAP) if lines[-1] else 0)
            lines[-1].append((n, piece))
        return lines

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:  # noqa: ARG002
        return len(self._lines(width))

    def render(self) -> Content:
        parts: list[Content | str] = []
        self._spans = []
        for y, line in enumerate(self._lines(self.size.width)):
            parts.append(self.heading() if y == 0 else "\n" + " " * (NAME_WIDTH + 1))
            at = NAME_WIDTH + 1
            for n, piece in line:
                here = self.has_focus and n == self.at
                style = "b $accent" if here else "b" if self.switches[n].on else ""
                parts += [Content.assemble((piece, f"{style} reverse" if here else style)), _GAP]
                self._spans.append((y, at, at + len(piece), n))
                at += len(piece) + len(_GAP)
        return Content.assemble(*parts)

    def action_move(self, by: int) -> None:
        self.at += by
        self.post_message(self.Moved())

    def clicked(self, index: int) -> None:
        self.at = index
        self.action_switch()

    def action_switch(self) -> None:
        if self.current is not None:
            changed = list(self.switches)
            changed[self.at] = self.current._replace(on=not self.current.on)
            self.switches = tuple(changed)
            self.post_message(self.Changed())


class TextRow(Horizontal):
    """A field of the form in which text is typed."""

    def __init__(self, name: str, id: str, placeholder: str = "") -> None:
        super().__init__(id=f"{id}-row", classes="row")
        self._title = name
        self._field = QueryInput(id=id, placeholder=placeholder, select_on_focus=False)

    def compose(self) -> ComposeResult:
        yield Label("", classes="bar")
        yield Label(safe.fit(self._title, NAME_WIDTH), classes="name")
        yield self._field
