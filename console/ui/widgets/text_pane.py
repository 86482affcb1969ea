"""A scrollable text with wrapping and search, drawn line by line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from time import monotonic
from typing import ClassVar

from rich.cells import cell_len, get_character_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from console.core.text import ascii_lower
from console.ui.cells import Cell
from console.ui.widgets.line_table import TONES, TWICE_WITHIN

Line = Sequence[Cell]
"""The pieces of one line. If it is too long, the last piece wraps and is indented to where it begins."""


def wrapped(line: Line, width: int) -> list[list[Cell]]:
    """The line as rows of at most `width` cells."""
    if not line:
        return [[]]
    *heads, body = line
    indent = sum(cell_len(head.text) for head in heads)
    if indent + cell_len(body.text) <= width:
        return [list(line)]
    if indent > width * 2 // 3:
        indent = 0
        heads, body = [], Cell("".join(piece.text for piece in line), body.tone, body.link)
    pieces = _chopped(body.text, max(width - indent, 8))
    first = [*heads, Cell(pieces[0], body.tone, body.link)]
    return [first, *([Cell(" " * indent), Cell(piece, body.tone, body.link)] for piece in pieces[1:])]


def _chopped(text: str, width: int) -> list[str]:
    """The text as rows, broken at a space if there is one in the second half of the row."""
    rows, at = [], 0
    while (fits := _fitting(text, at, width)) < len(text) - at:
        cut = text.rfind(" ", at + fits // 2, at + fits + 1)
        end = cut if cut > at else at + fits
        rows.append(text[at:end])
        at = end + 1 if cut > at else end
    return [*rows, text[at:]]


def _fitting(text: str, at: int, width: int) -> int:
    """How many characters fit in a row. They are measured one by one only if some are not one cell wide."""
    some = text[at : at + width]
    if some.isascii() or (len(some) == width == cell_len(some) and text[at + width : at + width + 1].isascii()):
        return len(some)
    cells, end = 0, at
    while end < len(text) and (cells := cells + get_character_cell_size(text[end])) <= width:
        end += 1
    return end - at


class TextPane(ScrollView, can_focus=True):
    """Shows `lines` and highlights `needle` in them."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"pane--match", *(f"tone--{tone}" for tone in TONES)}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("k", "scroll_up", "Up", show=False),
        Binding("j", "scroll_down", "Down", show=False),
        Binding("G", "scroll_end", "End", show=False),
        Binding("g", "home_if_twice", "Start", show=False),
        Binding("ctrl+f", "page_down", "Page down", show=False),
        Binding("ctrl+b", "page_up", "Page up", show=False),
    ]

    lines: reactive[tuple[Line, ...]] = reactive(tuple, init=False)
    needle: reactive[str] = reactive("", init=False)

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._rows: list[list[Cell]] = []
        self._width = 0
        self.matches: list[int] = []
        self._match = -1
        self._g_pressed = 0.0

    def action_home_if_twice(self) -> None:
        """The first g only waits for the second."""
        now = monotonic()
        if now - self._g_pressed < TWICE_WITHIN:
            self.scroll_home(animate=False)
        self._g_pressed = now

    def watch_lines(self) -> None:
        self._wrap()

    def on_resize(self) -> None:
        if self.scrollable_content_region.width != self._width:
            self._wrap()

    def watch_show_vertical_scrollbar(self) -> None:
        """The scrollbar takes a column of the text without a resize event."""
        self.call_after_refresh(self.on_resize)

    def _wrap(self) -> None:
        self._width = self.scrollable_content_region.width
        if self._width <= 0:
            return
        self._rows = [row for line in self.lines for row in wrapped(line, self._width)]
        self.virtual_size = Size(0, len(self._rows))
        self._find()
        self.refresh()

    def get_content_width(self, container: Size, viewport: Size) -> int:  # noqa: ARG002
        return container.width

    def watch_needle(self) -> None:
        self._find()
        self._match = -1
        self.refresh()

    def _find(self) -> None:
        low = ascii_lower(self.needle)
        self.matches = [
            n for n, row in enumerate(self._rows) if low and low in ascii_lower("".join(cell.text for cell in row))
        ]

    def go_to_match(self, by: int) -> bool:
        """Scroll to the next or previous match; False if there is none."""
        if not self.matches:
            return False
        self._match = (self._match + by) % len(self.matches) if self._match >= 0 or by > 0 else len(self.matches) - 1
        self.scroll_to(y=max(self.matches[self._match] - 2, 0), animate=False)
        return True

    def render_line(self, y: int) -> Strip:
        width = self.scrollable_content_region.width
        index = self.scroll_offset.y + y
        if index >= len(self._rows):
            return Strip.blank(width, self.rich_style)
        segments = [segment for cell in self._rows[index] for segment in self._segments(cell)]
        return Strip(segments).adjust_cell_length(width, self.rich_style)

    def _segments(self, cell: Cell) -> Iterable[Segment]:
        style = self.get_component_rich_style(f"tone--{cell.tone}")
        if cell.link:
            style += Style(link=cell.link)
        low = ascii_lower(self.needle)
        if not low:
            yield Segment(cell.text, style)
            return
        found = self.get_component_rich_style("pane--match")
        at, text = 0, ascii_lower(cell.text)
        while (hit := text.find(low, at)) >= 0:
            yield Segment(cell.text[at:hit], style)
            yield Segment(cell.text[hit : hit + len(low)], found)
            at = hit + len(low)
        yield Segment(cell.text[at:], style)


class Panel(TextPane):
    """A text beside or below a list. It gets the keys by a key only: a click must not take them from the list."""

    FOCUS_ON_CLICK = False
