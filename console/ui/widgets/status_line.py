"""A line of status text."""

from __future__ import annotations

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget


class StatusLine(Widget):
    """`left` is cut where both do not fit."""

    left: reactive[Content] = reactive(Content)
    right: reactive[Content] = reactive(Content)

    def render(self) -> Content:
        room = self.size.width - self.right.cell_length - 2
        left = self.left.truncate(max(room, 0), ellipsis=True)
        return Content.assemble(left, " " * max(room - left.cell_length + 2, 0), self.right)
