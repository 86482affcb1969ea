"""A plan's rows as they are stored and hashed: some thousand together, packed into one text.

A row of its own for each item would make proposing twice as slow, and nothing ever asks for one of them alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from operator import methodcaller
from typing import Any, NamedTuple

from console.core.columns import Columns, woven
from console.core.faults import PlanAltered

FIRST_BLOCKED = -1_000_000_000
BLOCK_ITEMS = 5_000
"""How many rows are packed together at most."""
_BETWEEN, _MARK = "\x1f", "\x1e"


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


class PlanRows(Columns[PlanRow]):
    """Lines of a plan in order, column by column."""

    __slots__ = ("befores", "blocked", "keys", "ordinals", "units")

    def __init__(
        self,
        ordinals: Sequence[int] = (),
        keys: Sequence[str] = (),
        units: Sequence[str] = (),
        befores: Sequence[str] = (),
        blocked: Sequence[str | None] = (),
    ) -> None:
        self.ordinals = ordinals
        self.keys = keys
        self.units = units
        self.befores = befores
        self.blocked = blocked

    def _columns(self) -> tuple[Sequence[Any], ...]:
        return self.ordinals, self.keys, self.units, self.befores, self.blocked

    def _row(self, *values: Any) -> PlanRow:
        return PlanRow(*values)


class Block(NamedTuple):
    """Neighbouring rows of a plan: `items` ordinals from `first` on."""

    first: int
    items: int
    body: bytes


def pack(first: int, *columns: Sequence[str]) -> Block:
    """Keys, units and before-images, and for what is blocked the reasons, one of each for every row."""
    count = len(columns[0])
    line = ["", *[_BETWEEN] * (len(columns) - 1), "\n"]
    text = woven(line, columns)[:-1]
    fits = text.count(_BETWEEN) == count * (len(columns) - 1) and text.count("\n") == count - 1
    if not fits or text.startswith(_MARK):  # some text has a separator of its own in it
        text = _MARK + json.dumps(list(zip(*columns, strict=True)))
    return Block(first, count, text.encode("utf-8", "surrogatepass"))


def unpack(block: Block) -> PlanRows:
    """`PlanAltered` when it is not what `pack` has made."""
    width = 3 if block.first >= 0 else 4
    try:
        columns = _columns(block.body, width)
    except (ValueError, TypeError):
        columns = []
    if list(map(len, columns)) != [block.items] * width:
        raise PlanAltered("its rows cannot be read")
    reasons = [] if block.first < 0 else [[None] * block.items]
    return PlanRows(range(block.first, block.first + block.items), *columns, *reasons)


def _columns(body: bytes, width: int) -> list[list[str]]:
    """Of as many fields as there are; ValueError where lines have another number of them."""
    text = body.decode("utf-8", "surrogatepass")
    if text.startswith(_MARK):
        return [list(column) for column in zip(*json.loads(text[1:]), strict=True)]
    between = width - 1
    if set(map(methodcaller("count", _BETWEEN), text.split("\n"))) != {between}:
        raise ValueError(text)
    fields = text.replace("\n", _BETWEEN).split(_BETWEEN)
    return [fields[n::width] for n in range(width)]
