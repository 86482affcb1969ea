"""The columns of a printed table, and the width there is for them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")
_WIDTH_WITHOUT_TERMINAL = 120


class Column(NamedTuple, Generic[T]):
    """One column of a table: its text, and how it becomes narrower on a narrow terminal."""

    title: str
    text: Callable[[T], str]
    style: Callable[[T], str] | None = None
    dropped: int = 0
    """The column with the highest number is left out first; 0 is never left out."""
    least: int | None = None
    """It may be cut to this width. None: it is cut only when nothing else can be."""
    right: bool = False
    wraps: bool = False
    optional: bool = False
    """Left out if it is empty in every row."""


def terminal_width() -> int:
    return shutil.get_terminal_size((_WIDTH_WITHOUT_TERMINAL, 24)).columns
