"""A table drawn line by line, with a fixed heading and a cursor. Rows are not widgets, so it can be very long."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from time import monotonic
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.reactive import reactive
from textual.strip import Strip

from console.actions.catalogue import MOVES
from console.ui import safe
from console.ui.cells import Cell, Column
from console.ui.textual_workarounds import TracksDirtyLines

GAP = 2
NARROW = 100
"""In a narrower list the gap may be smaller."""
KEPT_LINES = 400
PANEL_FROM = 3
"""The fewest lines of a panel below a list."""
TWICE_WITHIN = 1.0
"""Seconds in which g has to be pressed again."""
TONES = ("plain", "muted", "calm", "good", "warning", "error", "accent", "marked", "link")


def layout(
    columns: Sequence[Column], width: int, hidden: Collection[str] = (), gap: int = GAP
) -> list[tuple[int, int]]:
    """Index and width of each column that fits; those with the lowest rank are left out first."""
    kept = [index for index, column in enumerate(columns) if column.title not in hidden]

    def least(index: int) -> int:
        column = columns[index]
        return min(max(column.width, int(column.share * width)), max(column.most, column.width))

    def minimum(indexes: list[int]) -> int:
        return sum(map(least, indexes)) + gap * (len(indexes) - 1)

    while len(kept) > 1 and minimum(kept) > width:
        kept.remove(min(kept, key=lambda i: columns[i].rank))
    widths = {i: least(i) for i in kept}
    spare = width - minimum(kept)
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


class LineTable(TracksDirtyLines, can_focus=True):
    """The base of every list in the console. A subclass provides the number of rows and their cells."""

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
        Binding("home", "first", "First", show=False),
        Binding("g", "first_if_twice", "First", show=False),
        Binding(MOVES["Last"], "last", "Last", show=False),
    ]

    NARROW_GAP: ClassVar[int] = GAP
    """Cells between two columns of a narrow list."""

    cursor: reactive[int] = reactive(0, init=False, repaint=False)

    def __init__(
        self, columns: Sequence[Column], *, margin: int = 2, heading: bool = True, id: str | None = None
    ) -> None:
        super().__init__(id=id)
        self.columns = tuple(columns)
        self.heading_lines = int(heading)
        self.margin_left = margin
        """Width of the margin in which marks are drawn."""
        self.gap = GAP
        """Cells between two columns."""
        self._sorted_by: tuple[int, bool] | None = None
        self.hidden: frozenset[str] = frozenset()
        """The titles of the columns that a person has hidden."""
        self._widths: list[tuple[int, int]] = []
        self._laid_out_for = -1
        self._styles: dict[tuple[str, bool], Style] = {}
        self._lines: dict[int, Strip] = {}
        """The finished lines on screen, by line number."""
        self._whole: dict[int, tuple[Strip, Strip]] = {}
        """Finished lines by the identity of the drawn line: a row that scrolls is reused at another line."""
        self._drawn: dict[int, tuple[tuple[object, int, bool], Strip]] = {}
        self._g_pressed = 0.0

    # To be implemented by a subclass.

    def total(self) -> int:
        """The number of rows, which may be an estimate."""
        raise NotImplementedError

    def cells_at(self, row: int) -> Sequence[Cell] | Cell:
        """The cells of a row; a single cell takes the whole line."""
        raise NotImplementedError

    def mark_at(self, row: int) -> Cell:  # noqa: ARG002
        """The mark in front of a row."""
        return Cell("")

    def stamp(self, row: int) -> object:
        """Everything the row's drawing depends on. The row is drawn again when this changes."""
        raise NotImplementedError

    def moved(self) -> None:
        """The cursor has moved, or the row under it has changed."""

    @property
    def sorted_by(self) -> tuple[int, bool] | None:
        """Index of the sorted column, and whether it is descending."""
        return self._sorted_by

    @sorted_by.setter
    def sorted_by(self, sorted_by: tuple[int, bool] | None) -> None:
        if sorted_by != self._sorted_by:
            self._sorted_by = sorted_by
            self._laid_out_for = -1
            self._forget_drawn()

    # Drawing.

    @property
    def is_active(self) -> bool:
        """Whether keys move its cursor, which is drawn brighter then."""
        return self.has_focus

    @property
    def allow_vertical_scroll(self) -> bool:
        """Also before the scrollbar is laid out: a key may come right after the first rows."""
        return not (self.disabled or self.loading)

    @property
    def rows_shown(self) -> int:
        return max(self.scrollable_content_region.height - self.heading_lines, 1)

    @property
    def top(self) -> int:
        return self.scroll_offset.y

    def resized(self) -> None:
        """The number of rows has changed."""
        size = Size(0, self.total() + self.heading_lines)
        if size != self.virtual_size:
            self.virtual_size = size

    def rows_changed(self, at: int | None) -> None:
        """The rows have changed. Keep the cursor on the row that is at `at` now; None if it is gone."""
        self.resized()
        if at is None:
            self.set_reactive(LineTable.cursor, self.validate_cursor(self.cursor))
        elif at != self.cursor:
            self.scroll_to(y=self.top + at - self.cursor, animate=False)
            self.set_reactive(LineTable.cursor, at)
        self.repaint_changed()
        self.moved()

    def take_height(self, lines: int) -> bool:
        """Take as many of these lines as the rows need. Returns whether there is room for a panel below."""
        most = max(lines * 2 // 3, 4)
        wanted = max(self.total() + self.heading_lines, 2)
        leaves_room = lines - min(wanted, most) >= PANEL_FROM
        self.styles.height = min(wanted, most) if leaves_room else lines
        return leaves_room

    def get_content_width(self, container: Size, viewport: Size) -> int:  # noqa: ARG002
        return container.width

    def widths(self) -> list[tuple[int, int]]:
        width = self.scrollable_content_region.width
        if width != self._laid_out_for:
            self._laid_out_for = width
            self.gap = self.gap_for(width - self.margin_left - 1)
            columns = list(self.columns)
            if self.sorted_by is not None and self.gap < GAP:  # a cell more, so that the arrow does not touch the next
                index, column = self.sorted_by[0], columns[self.sorted_by[0]]
                columns[index] = column._replace(width=max(column.width, len(column.title) + column.right))
            self._widths = layout(columns, width - self.margin_left - 1, self.hidden, self.gap)
        return self._widths

    def gap_for(self, width: int) -> int:
        """The cells between two columns, where there is this much room for columns."""
        return self.NARROW_GAP if width + self.margin_left + 1 < NARROW else GAP

    def width_of(self, title: str) -> int:
        """The width of a column; 0 if it is not shown."""
        return next((size for index, size in self.widths() if self.columns[index].title == title), 0)

    def hide(self, titles: frozenset[str]) -> None:
        """Show all columns but these."""
        if titles != self.hidden:
            self.hidden = titles
            self._laid_out_for = -1
            self._forget_drawn()
            self.refresh()

    def tone(self, name: str, on_cursor: bool) -> Style:
        style = self._styles.get((name, on_cursor))
        if style is None:
            style = self.get_component_rich_style(f"tone--{name}")
            if on_cursor:
                cursor = "table--cursor" if self.is_active else "table--cursor-blurred"
                whole = self.get_component_rich_style(cursor)
                if self.app.native_ansi_color:
                    style = whole  # with 16 colours a tone would not be readable on the cursor
                    if self.app.no_color:
                        style += Style(reverse=self.is_active, underline=not self.is_active)
                else:
                    style += whole.without_color + Style(bgcolor=whole.bgcolor)
            self._styles[name, on_cursor] = style
        return style

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._forget_drawn()

    def render_lines(self, crop: Region) -> list[Strip]:
        """Return kept lines where they are not dirty. Textual asks every widget for all its lines on each repaint;
        a list has no border, padding or tint, so its lines can be used as they are."""
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

    def lines_dirty(self, regions: tuple[Region, ...]) -> None:
        if not regions:
            self._lines.clear()
            self._whole.clear()
        for region in regions:
            for y in region.line_range:
                self._lines.pop(y, None)

    def render_line(self, y: int) -> Strip:
        width = self.scrollable_content_region.width
        if y < self.heading_lines:
            return self._heading(width)
        row = self.top + y - self.heading_lines
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
            if column.right and self.gap < GAP:
                text += safe.fit(column.heading(size) + arrow, size, right=True) + " " * self.gap
            elif column.right:  # the arrow is drawn in the gap
                text += safe.fit(column.heading(size), size, right=True) + arrow.ljust(self.gap)
            else:
                text += safe.fit(f"{column.heading(size)} {arrow}".rstrip(), size) + " " * self.gap
        return Strip([Segment(safe.fit(text.rstrip(), width), style)], width)

    def _line(self, row: int, width: int, on_cursor: bool) -> Strip:
        cells = self.cells_at(row)
        mark = self.mark_at(row)
        blank = self.tone("plain", on_cursor)
        if on_cursor and self.is_active and not mark.text:
            mark = Cell("▌", "accent")
        segments = [Segment(safe.fit(mark.text, self.margin_left), self.tone(mark.tone, on_cursor))]
        used = self.margin_left
        if isinstance(cells, Cell):
            segments.append(Segment(safe.fit(cells.text, width - used), self.tone(cells.tone, on_cursor)))
            return Strip(segments, width)
        for index, size in self.widths():
            text, tone, link = cells[index]
            shown = safe.fit(text, size, self.columns[index].right)
            gap = " " * max(min(self.gap, width - used - size), 0)  # not beyond the edge
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

    def repaint_changed(self) -> None:
        """Repaint the lines that look different now. Most rows are as they were when they were read before."""
        for y in range(self.scrollable_content_region.height):
            shown = self._lines.get(y)
            if shown is None or shown != self._finished(self.render_line(y)):
                self.refresh(Region(0, y, self.size.width, 1))

    def repaint_row(self, row: int) -> None:
        line = row - self.top + self.heading_lines
        if self.heading_lines <= line < self.rows_shown + self.heading_lines:
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
        if event.y < self.heading_lines:
            self.heading_clicked(event.x)
        elif (row := self.row_of(event.y)) is not None:
            self.cursor = row
            if event.chain == 2:
                self.entered()

    def row_of(self, y: int) -> int | None:
        """The row that is drawn on this line."""
        row = self.top + y - self.heading_lines
        return row if y >= self.heading_lines and row < self.total() else None

    def heading_clicked(self, x: int) -> None:
        """The heading was clicked at this position."""

    def column_at(self, x: int) -> int | None:
        left = self.margin_left
        for index, size in self.widths():
            if left <= x < left + size + self.gap:
                return index
            left += size + self.gap
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

    def action_first_if_twice(self) -> None:
        """The first g only waits for the second."""
        now = monotonic()
        if now - self._g_pressed < TWICE_WITHIN:
            self.action_first()
        self._g_pressed = now

    def action_last(self) -> None:
        self.cursor = self.total() - 1
