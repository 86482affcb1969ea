"""A document without a format: what a report says, as blocks.

All text in it may be hostile. The writers of Markdown and HTML make it safe.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from console.core.backend import Histogram
from console.core.history import Trend

LONGEST_TEXT = 4_000
"""How many characters of a text a report shows."""


class Event(NamedTuple):
    """A line on the time axis of a chart."""

    at: datetime
    label: str


@dataclass(frozen=True, slots=True)
class Heading:
    """The title of the document (level 1), of a section (2) or of a part of one (3)."""

    level: int
    text: str


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Sentences. `warning` is for what needs somebody's attention."""

    text: str
    warning: bool = False


@dataclass(frozen=True, slots=True)
class FactList:
    """Names and values."""

    pairs: Sequence[tuple[str, str]]


class TwoLines(NamedTuple):
    """A text, and what is less important below it. `strong` is for what needs somebody's attention."""

    text: str
    below: str = ""
    strong: bool = False


Cell = str | TwoLines | Trend | None


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells. A trend is drawn small. The rows may be many; they are read once, while they are written."""

    columns: Sequence[str]
    rows: Iterable[Sequence[Cell]]
    numbers: frozenset[int] = frozenset()
    """The columns that hold numbers."""
    long: frozenset[int] = frozenset()
    """The columns that get the most room, and whose texts may be broken anywhere: error texts, keys, hashes."""
    whole: frozenset[int] = frozenset()
    """The columns whose texts stay on one line: times, kinds."""


@dataclass(frozen=True, slots=True)
class TrendChart:
    """A figure over time, with events on the same time axis."""

    title: str
    trend: Trend
    events: Sequence[Event] = ()


@dataclass(frozen=True, slots=True)
class BarChart:
    """Counts per step of time."""

    title: str
    histogram: Histogram


@dataclass(frozen=True, slots=True)
class Notes:
    """What people wrote: when, who, what."""

    lines: Sequence[tuple[str, str, str]]


Block = Heading | Paragraph | FactList | Table | TrendChart | BarChart | Notes


@dataclass(frozen=True, slots=True)
class Document:
    """A whole report."""

    title: str
    blocks: Iterable[Block]
