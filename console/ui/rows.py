"""What stands in a list: an item, or what is there instead of one, and its words."""

from __future__ import annotations

from typing import NamedTuple

from console.core.faults import Fault
from console.core.item import Item, ItemKey
from console.ui import safe
from console.ui.cells import Cell


class Gap(NamedTuple):
    """Where a backend has not answered, or will not."""

    backend: str
    fault: Fault | None = None


class Departed(NamedTuple):
    """The item under the cursor, kept in its place although the list no longer has it there."""

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


def stand_in(row: Gap | Departed | None) -> Cell:
    """The one line of a row that is no item."""
    match row:
        case Departed(item=item, exists=exists):
            said = "moved: it is elsewhere in this list or outside the filter now" if exists else "gone"
            return Cell(safe.line(f"{item.key}  {said}"), "muted")
        case Gap(backend=backend, fault=None):
            return Cell(safe.line(f"{backend} has not answered yet, its rows come when it does"), "muted")
        case Gap(backend=backend, fault=fault):
            return Cell(safe.line(f"{backend}: {str(fault).removeprefix(f'{backend}: ')}"), "error")
        case None:
            return Cell("·  ·  ·", "muted")


def sign(row: Row | None, marked: bool) -> Cell:
    """What stands before a row."""
    match row:
        case Gap(fault=None):
            return Cell("⋯", "muted")
        case Gap():
            return Cell("✗", "error")
        case Item() | Departed() if marked:
            return Cell("●", "marked")
        case _:
            return Cell("")
