"""The guarded write: a whole chunk compared with its before-image and set, in one statement of one transaction.

Rows are found by the place the preview saw them at *and* by key, so that a table that was rewritten in
between (VACUUM renumbers rowids) can never lead to another row; what moved is found again by its key alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy.engine import Dialect

from console.core.backend import CHANGED, Change, Image, Outcome, OutcomeKind
from console.core.changes import Changes, SoleKeys
from console.core.item import ItemKey
from console.sql.database import Database, RowRefused, TransactionRefused, Writer
from console.sql.statement import inserts, is_unicode

_KEYS_PER_READ = 500
INTEGER = "0|-?[1-9][0-9]{0,17}"
"""As the database writes them; no more digits than its integers surely hold."""
_is_integer = re.compile("0|-?[1-9][0-9]{0,18}").fullmatch


@dataclass(frozen=True, slots=True)
class Target:
    """The table a guarded write goes to: its key column and the columns of the image, in image order."""

    table: str
    key: str
    image: tuple[str, ...]
    integer_key: bool = False
    key_parts: int = 1
    """How many parts the keys of its items have; the first is the row's."""

    def key_of(self, key: ItemKey) -> Any:
        """The key as its column holds it; None where no row can have such a key."""
        return self._value(key.parts[0]) if len(key.parts) == self.key_parts else None

    def keys_of(self, changes: Changes) -> list[Any]:
        """The same for each of these."""
        ids = changes.keys.ids() if isinstance(changes.keys, SoleKeys) and self.key_parts == 1 else None
        if ids is None:
            return [self.key_of(keys[0]) for keys in changes.keys]
        return ids if not self.integer_key and "".join(ids).isascii() else list(map(self._value, ids))

    def _value(self, value: str) -> Any:
        if self.integer_key:
            return number if _is_integer(value) and -(2**63) <= (number := int(value)) < 2**63 else None
        return value if value.isascii() or is_unicode(value) else None

    def by_value(self, keys: Sequence[ItemKey]) -> dict[Any, ItemKey]:
        """The keys that some row may have, by what their column would hold."""
        return {value: key for key in keys if (value := self.key_of(key)) is not None}


def halved(
    changes: Sequence[Change], write: Callable[[Sequence[Change]], list[Outcome]], refused: Exception
) -> list[Outcome]:
    """A row's refusal took back what was written with it: each half on its own, until that row stands alone."""
    if len(changes) == 1:
        return [Outcome(OutcomeKind.FAILED, str(refused))]
    middle = len(changes) // 2
    return write(changes[:middle]) + write(changes[middle:])


class SqliteGuard:
    """Compare-and-set on an SQLite table whose rows are write units of their own."""

    def __init__(self, database: Database, target: Target) -> None:
        self._database = database
        self._target = target
        self._sql = _Statements(target, database.dialect)

    def swap(self, changes: Sequence[Change]) -> list[Outcome]:
        """Every change or its conflict, in one transaction that holds the write lock from the start.

        Only where a row's refusal takes the whole transaction with it, or a row holds what cannot even be handed over,
        are the halves written on their own.
        """
        if not changes:
            return []
        chunk = _Chunk(Changes.of(changes), self._target)
        if len(chunk.numbers) < len(changes):
            return self._one_by_key(chunk)
        try:
            return self._swap(chunk)
        except (RowRefused, TransactionRefused) as refused:
            return halved(changes, self.swap, refused)

    def _one_by_key(self, chunk: _Chunk) -> list[Outcome]:
        """A row that moved while it was listed may have been planned twice: what was read later goes first."""
        chosen = set(chunk.numbers.values())
        is_last = [n in chosen for n in range(chunk.count)]
        later = iter(self.swap(chunk.changes.only(is_last)))
        earlier = iter(self.swap(chunk.changes.only([not last for last in is_last])))
        return [next(later) if last else next(earlier) for last in is_last]

    def _swap(self, chunk: _Chunk) -> list[Outcome]:
        return [CHANGED] * chunk.count if self._whole(chunk) else self._one_by_one(chunk)

    def _whole(self, chunk: _Chunk) -> bool:
        """Set all of it or nothing: nearly always every row is as it was and where it was, and nobody has to tell
        which were not. A refusal takes everything back, so that no page is kept aside to take back a part."""
        sql = self._sql.update(chunk, by_place=chunk.placed, told=False)
        try:
            with self._database.writing() as writer:
                self._prepare(writer, chunk)
                writer.execute(sql, chunk.given(0, chunk.count))
                if writer.execute("SELECT changes()") != [(chunk.count,)]:
                    raise _NotAll
        except (_NotAll, RowRefused, TransactionRefused):
            return False
        return True

    def _prepare(self, writer: Writer, chunk: _Chunk) -> None:
        writer.execute(self._sql.create)
        writer.execute(self._sql.clear)
        rows = list(zip(*chunk.columns.values(), strict=True))
        for sql, some in inserts(f"temp.retriage_chunk ({', '.join(chunk.columns)})", rows):
            writer.executemany(sql, some)

    def _one_by_one(self, chunk: _Chunk) -> list[Outcome]:
        """Set what is as it was, and tell why the others are left."""
        outcomes: dict[int, Outcome] = {}
        with self._database.writing() as writer:
            self._prepare(writer, chunk)
            self._part(writer, chunk, 0, chunk.count, outcomes)
            if len(outcomes) < chunk.count:
                self._explain(writer, chunk.changes, outcomes)
        return [outcomes[n] for n in range(chunk.count)]

    def _part(self, writer: Writer, chunk: _Chunk, first: int, end: int, outcomes: dict[int, Outcome]) -> None:
        """Set a part of the chunk; where a row refuses, halve until it stands alone, and go on without it."""
        try:
            with writer.savepoint():
                done: list[int] = []
                if chunk.placed:
                    done = self._set(writer, chunk, first, end, by_place=True)
                if len(done) < end - first:
                    done += self._set(writer, chunk, first, end, by_place=False)
        except RowRefused as refused:
            if end - first == 1:
                outcomes[first] = Outcome(OutcomeKind.FAILED, str(refused))
                return
            middle = (first + end) // 2
            self._part(writer, chunk, first, middle, outcomes)
            self._part(writer, chunk, middle, end, outcomes)
        else:
            outcomes.update(dict.fromkeys(done, CHANGED))

    def _set(self, writer: Writer, chunk: _Chunk, first: int, end: int, *, by_place: bool) -> list[int]:
        sql = self._sql.update(chunk, by_place=by_place, told=True)
        return [chunk.numbers[key] for (key,) in writer.execute(sql, chunk.given(first, end))]

    def _explain(self, writer: Writer, changes: Changes, outcomes: dict[int, Outcome]) -> None:
        now = {row[0]: row[1:] for row in writer.execute(self._sql.images_now)}
        for n, before in enumerate(changes.befores):
            if n not in outcomes:
                outcomes[n] = conflict(before, now.get(n), self._target.image)

    def images(self, keys: Sequence[ItemKey]) -> dict[ItemKey, Image]:
        """The image of each of these rows as it is now; rows that are gone are missing."""
        found: dict[ItemKey, Image] = {}
        for start in range(0, len(keys), _KEYS_PER_READ):
            by_part = self._target.by_value(keys[start : start + _KEYS_PER_READ])
            rows = self._database.fetch(self._sql.images_of(len(by_part)), list(by_part))
            found.update({by_part[row[0]]: tuple(row[1:]) for row in rows if row[0] in by_part})
        return found


class _NotAll(Exception):
    """Some row is not as it was, or not where it was."""


class _Chunk:
    """Changes as they are handed to the database: what differs from row to row in columns, what all share once."""

    def __init__(self, changes: Changes, target: Target) -> None:
        self.changes = changes
        self.count = len(changes)
        keys = target.keys_of(changes)
        self.numbers: dict[Any, int] = dict(zip(keys, range(self.count), strict=True))
        self.placed = any(changes.units)
        """A table without rowids has no places."""
        self.columns: dict[str, Sequence[Any]] = {"n": range(self.count), "place": _places(changes.units), "key": keys}
        self.shared: dict[str, str] = {}
        for side, images in (("b", changes.befores), ("a", changes.afters)):
            # What follows the image's columns in an image is the plugin's own note, not the row's.
            for n, values in enumerate(list(zip(*images, strict=True))[: len(target.image)]):
                self._add(f"{side}{n}", values)

    def _add(self, name: str, values: Sequence[Any]) -> None:
        """Text only is shared: a column of text would take a bound number for text, but not one from a column."""
        if type(values[0]) is str and values.count(values[0]) == self.count:
            self.shared[name] = values[0]
        else:
            self.columns[name] = values

    def given(self, first: int, end: int) -> dict[str, Any]:
        return {**self.shared, "first": first, "end": end}


def _places(units: Sequence[str]) -> list[int | None]:
    if all(units) and "".join(units).isdecimal():
        return list(map(int, units))
    return [int(unit) if unit.isdecimal() else None for unit in units]


def conflict(before: Image, now: Image | None, columns: tuple[str, ...]) -> Outcome:
    """Why a row was left alone, by the first column that is no longer what the preview saw."""
    if now is None:
        return Outcome(OutcomeKind.CONFLICTED, "no longer there")
    for column, was, found in zip(columns, before, now, strict=False):
        if was != found:
            return Outcome(OutcomeKind.CONFLICTED, f"{column} is now {_shown(found)}, was {_shown(was)}")
    return Outcome(OutcomeKind.CONFLICTED, "left as it was by the database itself")


def _shown(value: Any) -> str:
    return "NULL" if value is None else str(value)[:80]


class _Statements:
    """The statements of one target, with every name quoted by the dialect and every value bound."""

    def __init__(self, target: Target, dialect: Dialect) -> None:
        quote = dialect.identifier_preparer.quote
        table, key = f"main.{quote(target.table)}", quote(target.key)
        columns = [quote(column) for column in target.image]
        width = range(len(columns))
        befores, afters = [f"b{n}" for n in width], [f"a{n}" for n in width]
        names = ("n", "place", "key", *befores, *afters)
        self.create = (
            "CREATE TEMP TABLE IF NOT EXISTS retriage_chunk"
            f" (n INTEGER PRIMARY KEY, place INTEGER, {', '.join(names[2:])})"
        )
        self.clear = "DELETE FROM temp.retriage_chunk"
        self._table, self._key, self._columns = table, key, columns
        self._updates: dict[tuple[frozenset[str], bool, bool], str] = {}
        listed = ", ".join(f"job.{column}" for column in columns)
        self.images_now = (
            f"SELECT chunk.n, {listed} FROM temp.retriage_chunk AS chunk JOIN {table} AS job ON job.{key} = chunk.key"
            f" AND job.{key} = chunk.key COLLATE BINARY"
        )
        self._images = f"SELECT {key}, {', '.join(columns)} FROM {table} WHERE {key} IN ({{marks}})"

    def update(self, chunk: _Chunk, *, by_place: bool, told: bool) -> str:
        """`told`: it returns the keys of the rows it has set, and a refusal does not take back what was before it."""
        kind = frozenset(chunk.shared), by_place, told
        if kind not in self._updates:
            self._updates[kind] = self._update(*kind)
        return self._updates[kind]

    def _update(self, shared: frozenset[str], by_place: bool, told: bool) -> str:
        table, key = self._table, self._key

        def value(name: str) -> str:
            return f":{name}" if name in shared else f"chunk.{name}"

        numbered = list(enumerate(self._columns))
        sets = ", ".join(f"{column} = {value(f'a{n}')}" for n, column in numbered)
        # To the letter, whatever collation a column has: another row of a NOCASE key is another row.
        guard = " AND ".join(f"job.{column} IS {value(f'b{n}')} COLLATE BINARY" for n, column in numbered)
        found = "job.rowid = chunk.place" if by_place else f"job.{key} = chunk.key"
        return (
            f"UPDATE {'' if told else 'OR ROLLBACK '}{table} AS job SET {sets} FROM temp.retriage_chunk AS chunk"
            f" WHERE chunk.n >= :first AND chunk.n < :end AND {found}"
            f" AND job.{key} = chunk.key COLLATE BINARY AND {guard}{f' RETURNING {key}' if told else ''}"
        )

    def images_of(self, count: int) -> str:
        return self._images.format(marks=", ".join("?" * count))
