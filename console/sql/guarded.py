"""The guarded write: a whole chunk compared with its before-image and set, in one statement of one transaction.

Rows are found by the place the preview saw them at *and* by key, so that a table that was rewritten in
between (VACUUM renumbers rowids) can never lead to another row; what moved is found again by its key alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy.engine import Dialect

from console.core.backend import CHANGED, Change, Image, Outcome, OutcomeKind
from console.core.item import ItemKey
from console.sql.database import Database, Row, RowRefused, TransactionRefused, Writer
from console.sql.statement import is_unicode

_KEYS_PER_READ = 500
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,17}").fullmatch
"""As the database writes them; no more digits than its integers surely hold."""


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
        parts = key.parts
        if len(parts) != self.key_parts:
            return None
        value = parts[0]
        if self.integer_key:
            return int(value) if _INTEGER(value) else None
        return value if value.isascii() or is_unicode(value) else None

    def by_value(self, keys: Sequence[ItemKey]) -> dict[Any, ItemKey]:
        """The keys that some row may have, by what their column would hold."""
        return {value: key for key in keys if (value := self.key_of(key)) is not None}


class SqliteGuard:
    """Compare-and-set on an SQLite table whose rows are write units of their own."""

    def __init__(self, database: Database, target: Target) -> None:
        self._database = database
        self._target = target
        self._sql = _Statements(target, database.dialect)

    def swap(self, changes: Sequence[Change]) -> list[Outcome]:
        """Every change or its conflict, in one transaction that holds the write lock from the start.

        Only where a row's refusal takes the whole transaction with it are the halves written on their own.
        """
        keys = [self._target.key_of(change.keys[0]) for change in changes]
        numbers = dict(zip(keys, range(len(keys)), strict=True))
        if len(numbers) < len(changes):
            return self._one_by_key(changes, set(numbers.values()))
        try:
            return self._swap(changes, keys, numbers)
        except TransactionRefused as refused:
            if len(changes) == 1:
                return [Outcome(OutcomeKind.FAILED, str(refused))]
        middle = len(changes) // 2
        return self.swap(changes[:middle]) + self.swap(changes[middle:])

    def _one_by_key(self, changes: Sequence[Change], last: set[int]) -> list[Outcome]:
        """A row that moved while it was listed may have been planned twice: what was read later goes first."""
        chosen, rest = sorted(last), sorted(set(range(len(changes))) - last)
        outcomes = dict(zip(chosen, self.swap([changes[n] for n in chosen]), strict=True))
        outcomes.update(zip(rest, self.swap([changes[n] for n in rest]), strict=True))
        return [outcomes[n] for n in range(len(changes))]

    def _swap(self, changes: Sequence[Change], keys: list[Any], numbers: dict[Any, int]) -> list[Outcome]:
        outcomes: dict[int, Outcome] = {}
        with self._database.writing() as writer:
            writer.execute(self._sql.create)
            writer.execute(self._sql.clear)
            writer.executemany(self._sql.fill, list(self._lines(changes, keys)))
            placed = any(change.unit for change in changes)
            self._part(writer, 0, len(changes), numbers, outcomes, placed)
            if len(outcomes) < len(changes):
                self._explain(writer, changes, outcomes)
        return [outcomes[n] for n in range(len(changes))]

    def _part(
        self,
        writer: Writer,
        first: int,
        end: int,
        numbers: dict[Any, int],
        outcomes: dict[int, Outcome],
        placed: bool,
    ) -> None:
        """Set a part of the chunk; where a row refuses, halve until it stands alone, and go on without it."""
        try:
            with writer.savepoint():
                done: list[int] = []
                if placed:  # a table without rowids has no places
                    done = [numbers[key] for (key,) in writer.execute(self._sql.by_place, (first, end))]
                if len(done) < end - first:
                    done += [numbers[key] for (key,) in writer.execute(self._sql.by_key, (first, end))]
        except RowRefused as refused:
            if end - first == 1:
                outcomes[first] = Outcome(OutcomeKind.FAILED, str(refused))
                return
            middle = (first + end) // 2
            self._part(writer, first, middle, numbers, outcomes, placed)
            self._part(writer, middle, end, numbers, outcomes, placed)
        else:
            outcomes.update(dict.fromkeys(done, CHANGED))

    def _explain(self, writer: Writer, changes: Sequence[Change], outcomes: dict[int, Outcome]) -> None:
        now = {row[0]: row[1:] for row in writer.execute(self._sql.images_now)}
        for n, change in enumerate(changes):
            if n not in outcomes:
                outcomes[n] = conflict(change.before, now.get(n), self._target.image)

    def images(self, keys: Sequence[ItemKey]) -> dict[ItemKey, Image]:
        """The image of each of these rows as it is now; rows that are gone are missing."""
        found: dict[ItemKey, Image] = {}
        for start in range(0, len(keys), _KEYS_PER_READ):
            by_part = self._target.by_value(keys[start : start + _KEYS_PER_READ])
            rows = self._database.fetch(self._sql.images_of(len(by_part)), list(by_part))
            found.update({by_part[row[0]]: tuple(row[1:]) for row in rows})
        return found

    def _lines(self, changes: Sequence[Change], keys: list[Any]) -> Iterator[Row]:
        """What follows the image's columns in an image is the plugin's own note, not the row's."""
        width = len(self._target.image)
        for n, (key, (unit, _, before, after)) in enumerate(zip(keys, changes, strict=True)):
            yield (n, int(unit) if unit.isdecimal() else None, key, *before[:width], *after[:width])


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
        table, key = quote(target.table), quote(target.key)
        columns = [quote(column) for column in target.image]
        width = range(len(columns))
        befores, afters = [f"b{n}" for n in width], [f"a{n}" for n in width]
        names = ("n", "place", "key", *befores, *afters)
        self.create = (
            "CREATE TEMP TABLE IF NOT EXISTS retriage_chunk"
            f" (n INTEGER PRIMARY KEY, place INTEGER, {', '.join(names[2:])})"
        )
        self.clear = "DELETE FROM temp.retriage_chunk"
        self.fill = f"INSERT INTO temp.retriage_chunk VALUES ({', '.join('?' * len(names))})"
        sets = ", ".join(f"{column} = chunk.a{n}" for n, column in enumerate(columns))
        # To the letter, whatever collation a column has: another row of a NOCASE key is another row.
        guard = " AND ".join(f"{table}.{column} IS chunk.b{n} COLLATE BINARY" for n, column in enumerate(columns))
        guard += f" AND {table}.{key} = chunk.key COLLATE BINARY"
        update = (
            f"UPDATE {table} SET {sets} FROM temp.retriage_chunk AS chunk"
            f" WHERE chunk.n >= ? AND chunk.n < ? AND {{found}} AND {guard} RETURNING {table}.{key}"
        )
        self.by_place = update.format(found=f"{table}.rowid = chunk.place AND {table}.{key} = chunk.key")
        self.by_key = update.format(found=f"{table}.{key} = chunk.key")
        listed = ", ".join(f"{table}.{column}" for column in columns)
        self.images_now = (
            f"SELECT chunk.n, {listed} FROM temp.retriage_chunk AS chunk JOIN {table} ON {table}.{key} = chunk.key"
            f" AND {table}.{key} = chunk.key COLLATE BINARY"
        )
        self._images = f"SELECT {key}, {', '.join(columns)} FROM {table} WHERE {key} IN ({{marks}})"

    def images_of(self, count: int) -> str:
        return self._images.format(marks=", ".join("?" * count))
