"""The rows of the failures list: an item, or a line in place of one."""

from __future__ import annotations

from typing import NamedTuple

from console.core.faults import Fault
from console.core.item import Item, ItemKey
from console.ui import safe
from console.ui.cells import Cell


class Gap(NamedTuple):
    """A backend that has not answered yet, or that failed."""

    backend: str
    fault: Fault | None = None


class Departed(NamedTuple):
    """The item under the cursor, kept there although the list no longer contains it."""

    item: Item
    exists: bool


Row = Item | Gap | Departed


def key_of(row: Row | None) -> ItemKey | None:
    match row:
        case Item():
            return row.key
        case Departed():
            return row.item.key
        case _:
            return None


def line_of(row: Gap | Departed | None) -> Cell:
    """The text of a row that is not an item."""
    match row:
        case Departed(item=item, exists=exists):
            why = "no longer matches this filter" if exists else "no longer exists"
            return Cell(safe.line(f"{item.key}  {why}"), "muted")
        case Gap(backend=backend, fault=None):
            return Cell(safe.line(f"{backend}: waiting for an answer…"), "muted")
        case Gap(backend=backend, fault=fault):
            return Cell(safe.line(f"{backend}: {str(fault).removeprefix(f'{backend}: ')}"), "error")
        case None:
            return Cell("·  ·  ·", "muted")


def sign(row: Row | None, marked: bool) -> Cell:
    """The symbol in front of a row."""
    match row:
        case Gap(fault=None):
            return Cell("⋯", "muted")
        case Gap():
            return Cell("✗", "error")
        case Item() | Departed() if marked:
            return Cell("●", "marked")
        case _:
            return Cell("")
