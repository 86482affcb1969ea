"""A list drawn line by line: fixed heading, columns that give way when it is narrow, a cursor. No row is a widget."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from console.core.catalogue import MOVES
from console.ui import safe
from console.ui.cells import Cell, Column

GAP = 2
KEPT_LINES = 400
TONES = ("plain", "muted", "calm", "good", "warning", "error", "accent", "marked", "link")


def layout(columns: Sequence[Column], width: int) -> list[tuple[int, int]]:
    """Index and width of every column there is room for; the lowest rank is dropped first."""
    kept = list(range(len(columns)))

    def least(indexes: list[int]) -> int:
        return sum(columns[i].width for i in indexes) + GAP * (len(indexes) - 1)

    while len(kept) > 1 and least(kept) > width:
        kept.remove(min(kept, key=lambda i: columns[i].rank))
    widths = {i: columns[i].width for i in kept}
    spare = width - least(kept)
    while spare > 0:
        growing = [i for i in kept if columns[i].grows and widths[i] < columns[i].most]
        if not growing:
            break
        shares = sum(columns[i].grows for i in growing)
        given = 0
        for i in growing:
            more = min(max(spare * columns[i].grows // shares, 1), columns[i].most - widths[i], spare - given)
            widths[i] += more
            given += more
        spare -= given
    return [(i, widths[i]) for i in kept]


class LineTable(ScrollView, can_focus=True):
    """The base of every list in the console. A subclass says how many rows there are and what is in them."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "table--heading",
        "table--cursor",
        "table--cursor-blurred",
        *(f"tone--{tone}" for tone in TONES),
    }
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(MOVES["Up"], "move(-1)", "Up", show=False),
        Binding(MOVES["Down"], "move(1)", "Down", show=False),
        Binding(MOVES["Page up"], "page(-1)", "Page up", show=False),
        Binding(MOVES["Page down"], "page(1)", "Page down", show=False),
        Binding(MOVES["First"], "first", "First", show=False),
        Binding(MOVES["Last"], "last", "Last", show=False),
    ]

    cursor: reactive[int] = reactive(0, init=False, repaint=False)

    def __init__(self, columns: Sequence[Column], *, margin: int = 2, id: str | None = None) -> None:
        super().__init__(id=id)
        self.columns = tuple(columns)
        self.margin_left = margin
        """Cells before the first column, where a mark is drawn."""
        self.sorted_by: tuple[int, bool] | None = None
        """Which column is sorted by, and whether from large to small."""
        self._widths: list[tuple[int, int]] = []
        self._laid_out_for = -1
        self._styles: dict[tuple[str, bool], Style] = {}
        self._lines: dict[int, Strip] = {}
        """What is on the screen, by line."""
        self._whole: dict[int, tuple[Strip, Strip]] = {}
        """Drawn lines as the terminal gets them, by identity: a row that scrolls is the same line elsewhere."""
        self._drawn: dict[int, tuple[tuple[object, int, bool], Strip]] = {}

    # What a subclass says.

    def total(self) -> int:
        """How many rows there are, or seem to be."""
        raise NotImplementedError

    def cells_at(self, row: int) -> Sequence[Cell] | Cell:
        """The cells of a row; a single cell is drawn over the whole line."""
        raise NotImplementedError

    def mark_at(self, row: int) -> Cell:  # noqa: ARG002
        """What stands before the row."""
        return Cell("")

    def stamp(self, row: int) -> object:
        """What a row's drawing depends on; while it is equal, the row is not drawn again."""
        raise NotImplementedError

    def moved(self) -> None:
        """The cursor is on another row, or there is another row under it."""

    # Drawing.

    @property
    def allow_vertical_scroll(self) -> bool:
        """Also before its scrollbar is laid out: a key may come between the first rows and that."""
        return not self._check_disabled()

    @property
    def rows_shown(self) -> int:
        return max(self.scrollable_content_region.height - 1, 1)

    @property
    def top(self) -> int:
        return self.scroll_offset.y

    def resized(self) -> None:
        """The number of rows has changed."""
        size = Size(0, self.total() + 1)
        if size != self.virtual_size:
            self.virtual_size = size

    def rows_changed(self, at: int | None) -> None:
        """There are other rows now. What was under the cursor is at this one and stays there, or is gone."""
        self.resized()
        if at is None:
            self.set_reactive(LineTable.cursor, self.validate_cursor(self.cursor))
        elif at != self.cursor:
            self.scroll_to(y=self.top + at - self.cursor, animate=False)
            self.set_reactive(LineTable.cursor, at)
        self.refresh()
        self.moved()

    def get_content_width(self, container: Size, viewport: Size) -> int:  # noqa: ARG002
        return container.width

    def widths(self) -> list[tuple[int, int]]:
        width = self.scrollable_content_region.width
        if width != self._laid_out_for:
            self._laid_out_for = width
            self._widths = layout(self.columns, width - self.margin_left - 1)
        return self._widths

    def tone(self, name: str, on_cursor: bool) -> Style:
        style = self._styles.get((name, on_cursor))
        if style is None:
            style = self.get_component_rich_style(f"tone--{name}")
            if on_cursor:
                cursor = "table--cursor" if self.has_focus else "table--cursor-blurred"
                whole = self.get_component_rich_style(cursor)
                if self.app.native_ansi_color:
                    style = whole  # sixteen colours leave no room for a tone on the cursor
                    if self.app.no_color:
                        style += Style(reverse=self.has_focus, underline=not self.has_focus)
                else:
                    style += whole.without_color + Style(bgcolor=whole.bgcolor)
            self._styles[name, on_cursor] = style
        return style

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._forget_drawn()

    def render_lines(self, crop: Region) -> list[Strip]:
        """Straight from the lines that are drawn already. Every repaint of anything asks every widget for all of
        its lines; a list has no border, padding, tint or link to add to them, and only a dirty line has changed."""
        lines, found = self._lines, []
        for y in crop.line_range:
            strip = lines.get(y)
            if strip is None:
                strip = lines[y] = self._finished(self.render_line(y))
            found.append(strip)
        if crop.x or crop.width != self.outer_size.width:
            return [strip.crop(crop.x, crop.right) for strip in found]
        return found

    def _finished(self, strip: Strip) -> Strip:
        known = self._whole.get(id(strip))
        if known is not None and known[0] is strip:
            return known[1]
        whole = strip.adjust_cell_length(self.outer_size.width, self.rich_style)
        for line_filter in self.get_line_filters():
            whole = whole.apply_filter(line_filter, self.background_colors[1])
        if len(self._whole) >= KEPT_LINES:
            self._whole.clear()
        self._whole[id(strip)] = (strip, whole)
        return whole

    def _set_dirty(self, *regions: Region) -> None:
        super()._set_dirty(*regions)
        if not regions:
            self._lines.clear()
            self._whole.clear()
        for region in regions:
            for y in region.line_range:
                self._lines.pop(y, None)

    def render_line(self, y: int) -> Strip:
        width = self.scrollable_content_region.width
        if y == 0:
            return self._heading(width)
        row = self.top + y - 1
        if row >= self.total():
            return Strip.blank(width, self.rich_style)
        on_cursor = row == self.cursor
        stamp = (self.stamp(row), width, on_cursor)
        drawn = self._drawn.get(row)
        if drawn is None or drawn[0] != stamp:
            if len(self._drawn) >= KEPT_LINES:
                self._drawn.clear()
            drawn = self._drawn[row] = (stamp, self._line(row, width, on_cursor))
        return drawn[1]

    def _heading(self, width: int) -> Strip:
        style = self.get_component_rich_style("table--heading")
        text = " " * self.margin_left
        for index, size in self.widths():
            column = self.columns[index]
            arrow = "" if self.sorted_by is None or self.sorted_by[0] != index else "↓" if self.sorted_by[1] else "↑"
            if column.right:  # no room to spare: the arrow stands in the gap
                text += safe.fit(column.title, size, right=True) + arrow.ljust(GAP)
            else:
                text += safe.fit(f"{column.title} {arrow}".rstrip(), size) + " " * GAP
        return Strip([Segment(safe.fit(text.rstrip(), width), style)], width)

    def _line(self, row: int, width: int, on_cursor: bool) -> Strip:
        cells = self.cells_at(row)
        mark = self.mark_at(row)
        blank = self.tone("plain", on_cursor)
        segments = [Segment(safe.fit(mark.text, self.margin_left), self.tone(mark.tone, on_cursor))]
        used = self.margin_left
        if isinstance(cells, Cell):
            segments.append(Segment(safe.fit(cells.text, width - used), self.tone(cells.tone, on_cursor)))
            return Strip(segments, width)
        for index, size in self.widths():
            text, tone, link = cells[index]
            shown = safe.fit(text, size, self.columns[index].right)
            gap = " " * max(min(GAP, width - used - size), 0)  # to the edge and no further: cropping is remembered
            if link:
                style = self.tone(tone, on_cursor) + Style(link=link)
                segments += (Segment(shown.rstrip(), style), Segment(" " * (size - len(shown.rstrip())) + gap, blank))
            else:
                segments.append(Segment(shown + gap, self.tone(tone, on_cursor)))
            used += size + len(gap)
        if used < width:
            segments.append(Segment(" " * (width - used), blank))
        strip = Strip(Segment.simplify(segments), max(used, width))
        return strip.crop(0, width) if used > width else strip

    def repaint_row(self, row: int) -> None:
        line = row - self.top + 1
        if 1 <= line <= self.rows_shown:
            self.refresh(Region(0, line, self.size.width, 1))

    # Moving.

    def validate_cursor(self, cursor: int) -> int:
        return max(0, min(cursor, self.total() - 1))

    def watch_cursor(self, old: int, new: int) -> None:
        self.repaint_row(old)
        self.repaint_row(new)
        self.show_row(new)
        self.moved()

    def show_row(self, row: int) -> None:
        if row < self.top:
            self.scroll_to(y=row, animate=False)
        elif row >= self.top + self.rows_shown:
            self.scroll_to(y=row - self.rows_shown + 1, animate=False)

    def _forget_drawn(self) -> None:
        self._styles.clear()
        self._drawn.clear()

    def on_focus(self) -> None:
        self._forget_drawn()
        self.repaint_row(self.cursor)

    def on_blur(self) -> None:
        self._forget_drawn()
        self.repaint_row(self.cursor)

    def on_click(self, event: events.Click) -> None:
        if event.y == 0:
            self.heading_clicked(event.x)
        elif (row := self.top + event.y - 1) < self.total():
            self.cursor = row
            if event.chain == 2:
                self.entered()

    def heading_clicked(self, x: int) -> None:
        """A column's title was clicked."""

    def column_at(self, x: int) -> int | None:
        left = self.margin_left
        for index, size in self.widths():
            if left <= x < left + size + GAP:
                return index
            left += size + GAP
        return None

    def entered(self) -> None:
        """The row under the cursor was chosen."""

    def action_move(self, by: int) -> None:
        self.cursor += by

    def action_page(self, by: int) -> None:
        step = by * max(self.rows_shown - 1, 1)
        top = max(0, min(self.top + step, self.total() - self.rows_shown))
        self.scroll_to(y=top, animate=False)
        self.cursor += step

    def action_first(self) -> None:
        self.cursor = 0

    def action_last(self) -> None:
        self.cursor = self.total() - 1
