"""A line of the screen that says one thing, and is cheap to change."""

from __future__ import annotations

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget


class StatusLine(Widget):
    """`left` and `right` are content already; the left gives way."""

    left: reactive[Content] = reactive(Content)
    right: reactive[Content] = reactive(Content)

    def render(self) -> Content:
        room = self.size.width - self.right.cell_length - 2
        left = self.left.truncate(max(room, 0), ellipsis=True)
        return Content.assemble(left, " " * max(room - left.cell_length + 2, 0), self.right)
