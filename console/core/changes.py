"""A chunk of changes column by column, for backends that write many at once."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Protocol, overload, runtime_checkable

from console.core.backend import Change, Image, Order, Requeues
from console.core.columns import Columns
from console.core.item import ItemKey


class SoleKeys(Sequence[tuple[ItemKey, ...]]):
    """The keys of changes of one item each, as they are written: taken apart when somebody asks for one."""

    __slots__ = ("backend", "texts")

    def __init__(self, backend: str, texts: Sequence[str]) -> None:
        self.backend = backend
        self.texts = texts

    def ids(self) -> list[str] | None:
        """The one part of each key; None where some key has several, or one that is not written as it is."""
        start = len(self.backend) + 1
        ids = [text[start:] for text in self.texts]
        whole = "".join(ids)
        return None if "/" in whole or "%" in whole else ids

    def __len__(self) -> int:
        return len(self.texts)

    @overload
    def __getitem__(self, place: int) -> tuple[ItemKey, ...]: ...
    @overload
    def __getitem__(self, place: slice) -> SoleKeys: ...
    def __getitem__(self, place: int | slice) -> tuple[ItemKey, ...] | SoleKeys:
        if isinstance(place, slice):
            return SoleKeys(self.backend, self.texts[place])
        return (ItemKey.known(self.backend, self.texts[place]),)


class Changes(Columns[Change]):
    """Many changes, column by column: what `swap`, `images` and `afters` are given."""

    __slots__ = ("afters", "befores", "keys", "units")

    def __init__(
        self,
        units: Sequence[str],
        keys: Sequence[tuple[ItemKey, ...]],
        befores: Sequence[Image],
        afters: Sequence[Image],
    ) -> None:
        self.units = units
        self.keys = keys
        self.befores = befores
        self.afters = afters

    @classmethod
    def of(cls, changes: Sequence[Change]) -> Changes:
        if isinstance(changes, Changes):
            return changes
        return cls(*zip(*changes, strict=True)) if changes else cls((), (), (), ())

    def to(self, afters: Sequence[Image]) -> Changes:
        """The same units from the same images to these."""
        return Changes(self.units, self.keys, self.befores, afters)

    def _columns(self) -> tuple[Sequence[Any], ...]:
        return self.units, self.keys, self.befores, self.afters

    def _row(self, *values: Any) -> Change:
        return Change(*values)


@runtime_checkable
class RequeuesMany(Requeues, Protocol):
    """One that makes the after-images of a whole chunk faster than one by one."""

    def afters(self, changes: Changes, order: Order, at: datetime, dues: Sequence[datetime]) -> Sequence[Image]:
        """Exactly what `after` says of each of these, the first due at the first of `dues` and so on."""


def afters_of(
    backend: Requeues, changes: Changes, order: Order, at: datetime, dues: Sequence[datetime]
) -> Sequence[Image]:
    """At once where the backend can, else one by one."""
    if isinstance(backend, RequeuesMany):
        return backend.afters(changes, order, at, dues)
    return [backend.after(change, order, at, due) for change, due in zip(changes, dues, strict=True)]
