"""A table drawn line by line, with a fixed heading and a cursor. Rows are not widgets, so it can be very long."""

from __future__ import annotations

from collections.abc import Sequence
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
KEPT_LINES = 400
TONES = ("plain", "muted", "calm", "good", "warning", "error", "accent", "marked", "link")


def layout(columns: Sequence[Column], width: int) -> list[tuple[int, int]]:
    """Index and width of each column that fits; those with the lowest rank are left out first."""
    kept = list(range(len(columns)))

    def minimum(indexes: list[int]) -> int:
        return sum(columns[i].width for i in indexes) + GAP * (len(indexes) - 1)

    while len(kept) > 1 and minimum(kept) > width:
        kept.remove(min(kept, key=lambda i: columns[i].rank))
    widths = {i: columns[i].width for i in kept}
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
        Binding(MOVES["First"], "first", "First", show=False),
        Binding(MOVES["Last"], "last", "Last", show=False),
    ]

    cursor: reactive[int] = reactive(0, init=False, repaint=False)

    def __init__(self, columns: Sequence[Column], *, margin: int = 2, id: str | None = None) -> None:
        super().__init__(id=id)
        self.columns = tuple(columns)
        self.margin_left = margin
        """Width of the margin in which marks are drawn."""
        self.sorted_by: tuple[int, bool] | None = None
        """Index of the sorted column, and whether it is descending."""
        self._widths: list[tuple[int, int]] = []
        self._laid_out_for = -1
        self._styles: dict[tuple[str, bool], Style] = {}
        self._lines: dict[int, Strip] = {}
        """The finished lines on screen, by line number."""
        self._whole: dict[int, tuple[Strip, Strip]] = {}
        """Finished lines by the identity of the drawn line: a row that scrolls is reused at another line."""
        self._drawn: dict[int, tuple[tuple[object, int, bool], Strip]] = {}

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

    # Drawing.

    @property
    def allow_vertical_scroll(self) -> bool:
        """Also before the scrollbar is laid out: a key may come right after the first rows."""
        return not (self.disabled or self.loading)

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
        """The rows have changed. Keep the cursor on the row that is at `at` now; None if it is gone."""
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
                    style = whole  # with 16 colours a tone would not be readable on the cursor
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
            if column.right:  # the arrow is drawn in the gap
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
            gap = " " * max(min(GAP, width - used - size), 0)  # not beyond the edge
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
        """The heading was clicked at this position."""

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
