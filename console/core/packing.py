"""A plan's rows as they are stored and hashed: some thousand together, packed into one text.

A row of its own for each item would make proposing twice as slow, and nothing ever asks for one of them alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from console.core.faults import PlanAltered

FIRST_BLOCKED = -1_000_000_000
BLOCK_ITEMS = 5_000
"""How many rows are packed together at most."""
_BETWEEN, _MARK = "\x1f", "\x1e"
_new = tuple.__new__


class PlanRow(NamedTuple):
    """One line of a plan.

    What would change is numbered from 0 without gaps, so that an item's place in the release is its
    ordinal; what is blocked is numbered from FIRST_BLOCKED on, below zero, and never touched.
    """

    ordinal: int
    key: str
    unit: str
    before: str
    blocked: str | None


class Block(NamedTuple):
    """Neighbouring rows of a plan: `items` ordinals from `first` on."""

    first: int
    items: int
    body: bytes


def pack(first: int, *columns: Sequence[str]) -> Block:
    """Keys, units and before-images, and for what is blocked the reasons, one of each for every row."""
    count = len(columns[0])
    text = "\n".join(map(_BETWEEN.join, zip(*columns, strict=True)))
    fits = text.count(_BETWEEN) == count * (len(columns) - 1) and text.count("\n") == count - 1
    if not fits or text.startswith(_MARK):  # some text has a separator of its own in it
        text = _MARK + json.dumps(list(zip(*columns, strict=True)))
    return Block(first, count, text.encode("utf-8", "surrogatepass"))


def unpack(block: Block) -> list[PlanRow]:
    """`PlanAltered` when it is not what `pack` has made."""
    reason = () if block.first < 0 else (None,)
    try:
        rows = [_new(PlanRow, (n, *line, *reason)) for n, line in enumerate(_lines(block.body), block.first)]
    except (ValueError, TypeError):
        rows = []
    if len(rows) != block.items or set(map(len, rows)) != {len(PlanRow._fields)}:
        raise PlanAltered("its rows cannot be read")
    return rows


def _lines(body: bytes) -> list[list[str]]:
    text = body.decode("utf-8", "surrogatepass")
    if text.startswith(_MARK):
        lines: list[list[str]] = json.loads(text[1:])
        return lines
    return [line.split(_BETWEEN) for line in text.split("\n")]
