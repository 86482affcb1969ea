"""Many alike tuples, column by column: a million are usual, and an object each takes three times as long."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from itertools import compress
from typing import Any, Self, TypeVar, overload

T = TypeVar("T")


def woven(line: Sequence[str], columns: Sequence[Sequence[str]]) -> str:
    """For every row the texts of `line` with the row's value of each column between them, one row after another."""
    width = len(line) + len(columns)
    pieces = [""] * width
    pieces[::2] = line
    pieces *= len(columns[0])
    for n, column in enumerate(columns):
        pieces[2 * n + 1 :: width] = column
    return "".join(pieces)


class Columns(Sequence[T]):
    """A sequence that makes its members when they are asked for; whoever handles many takes the columns."""

    __slots__ = ()

    @abstractmethod
    def _columns(self) -> tuple[Sequence[Any], ...]:
        """In the order in which the class takes them."""

    @abstractmethod
    def _row(self, *values: Any) -> T:
        """A member, of its value in each column."""

    def only(self, wanted: Sequence[object]) -> Self:
        """Those for which it says so."""
        return type(self)(*(list(compress(column, wanted)) for column in self._columns()))

    def __add__(self, more: Self) -> Self:
        if not self or not more:
            return self if self else more
        pairs = zip(self._columns(), more._columns(), strict=True)
        return type(self)(*([*column, *other] for column, other in pairs))

    def __len__(self) -> int:
        return len(self._columns()[0])

    def __iter__(self) -> Iterator[T]:
        return map(self._row, *self._columns())

    @overload
    def __getitem__(self, place: int) -> T: ...
    @overload
    def __getitem__(self, place: slice) -> Self: ...
    def __getitem__(self, place: int | slice) -> T | Self:
        if isinstance(place, slice):
            return type(self)(*(column[place] for column in self._columns()))
        return self._row(*(column[place] for column in self._columns()))
