"""The guarded write on SQLite: one statement compares a whole chunk with its before-images and sets it.

A row is found by the rowid that the plan saw *and* by its key. A table that was rewritten since (VACUUM renumbers
rowids) therefore never leads to another row; a row that has moved is found again by its key alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy.engine import Dialect

from console.core.backend import APPLIED, Change, Image, Outcome, OutcomeKind
from console.core.item import ItemKey
from console.sql.database import Database, RowRefused, TransactionRefused, Writer, inserts
from console.sql.values import is_unicode

_KEYS_PER_READ = 500
LOCKED = Outcome(OutcomeKind.CHANGED_SINCE, "locked by another transaction")
_is_integer = re.compile("0|-?[1-9][0-9]{0,18}").fullmatch


@dataclass(frozen=True, slots=True)
class Target:
    """The table that a guarded write goes to."""

    table: str
    key: str
    """The key column."""
    columns: tuple[str, ...]
    """The columns of an image, in the image's order. Values behind them are the plugin's own, not the row's."""
    integer_key: bool = False
    key_parts: int = 1
    """How many parts an item's key has. The first one is the value of the key column."""

    def key_of(self, key: ItemKey) -> Any:
        """The value of the key column for an item; None if no row can have it."""
        if len(key.parts) != self.key_parts:
            return None
        value = key.parts[0]
        if self.integer_key:
            return number if _is_integer(value) and -(2**63) <= (number := int(value)) < 2**63 else None
        return value if is_unicode(value) else None

    def by_value(self, keys: Sequence[ItemKey]) -> dict[Any, ItemKey]:
        """The keys that a row may have, by the value of the key column."""
        return {value: key for key in keys if (value := self.key_of(key)) is not None}

    def images_by_column(self, images: Sequence[Image]) -> list[tuple[Any, ...]]:
        """The values of each column, for all of these images."""
        return list(zip(*images, strict=True))[: len(self.columns)]


def halved(
    changes: Sequence[Change], write: Callable[[Sequence[Change]], list[Outcome]], refused: Exception
) -> list[Outcome]:
    """Write both halves on their own, because one refused row took back what was written with it."""
    if len(changes) == 1:
        return [Outcome(OutcomeKind.REJECTED, str(refused))]
    middle = len(changes) // 2
    return write(changes[:middle]) + write(changes[middle:])


Write = Callable[[Sequence[int]], dict[int, Outcome]]
"""Writes the changes with these numbers; returns the outcomes that it knows, by number."""


def write_together(writer: Writer, numbers: Sequence[int], write: Write) -> dict[int, Outcome]:  # noqa: ARG001
    """Write some changes of a transaction. If a row is rejected, the whole transaction ends: raises RowRefused."""
    return write(numbers) if numbers else {}


def write_by_halves(writer: Writer, numbers: Sequence[int], write: Write) -> dict[int, Outcome]:
    """Write some changes of a transaction. If a row is rejected, halve them until it is alone; the others go on."""
    if not numbers:
        return {}
    try:
        with writer.savepoint():
            return write(numbers)
    except RowRefused as refused:
        if len(numbers) == 1:
            return {numbers[0]: Outcome(OutcomeKind.REJECTED, str(refused))}
    middle = len(numbers) // 2
    return write_by_halves(writer, numbers[:middle], write) | write_by_halves(writer, numbers[middle:], write)


class SqliteGuard:
    """Compare-and-set on an SQLite table in which each row is a write unit."""

    def __init__(self, database: Database, target: Target) -> None:
        self._database = database
        self._target = target
        self._sql = _Statements(target, database.dialect)

    def compare_and_set(self, changes: Sequence[Change]) -> list[Outcome]:
        """One outcome for each change, from one transaction that holds the write lock from the start.

        Halves are written on their own only if a refused row rolls back the whole transaction, or the driver cannot
        bind one of its values.
        """
        if not changes:
            return []
        chunk = _Chunk(changes, self._target)
        if len(chunk.numbers) < len(changes):
            return self._one_by_key(chunk)
        try:
            return self._compare_and_set(chunk)
        except (RowRefused, TransactionRefused) as refused:
            return halved(changes, self.compare_and_set, refused)

    def _one_by_key(self, chunk: _Chunk) -> list[Outcome]:
        """Write a row that was planned twice, because it moved while it was listed: the later plan goes first."""
        last = set(chunk.numbers.values())
        numbers = [*sorted(last), *(n for n in range(chunk.count) if n not in last)]
        later, earlier = ([chunk.changes[n] for n in some] for some in (numbers[: len(last)], numbers[len(last) :]))
        outcomes = dict(zip(numbers, [*self.compare_and_set(later), *self.compare_and_set(earlier)], strict=True))
        return [outcomes[n] for n in range(chunk.count)]

    def _compare_and_set(self, chunk: _Chunk) -> list[Outcome]:
        return [APPLIED] * chunk.count if self._whole(chunk) else self._one_by_one(chunk)

    def _whole(self, chunk: _Chunk) -> bool:
        """Set all rows or none. Nearly always every row is unchanged, and no savepoint or RETURNING is needed."""
        sql = self._sql.update(chunk, by_rowid=chunk.has_rowids, returning=False)
        try:
            with self._database.writing() as writer:
                self._prepare(writer, chunk)
                writer.execute(sql, chunk.parameters(0, chunk.count))
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
        """Set the rows that are unchanged, and find out why the others are not."""
        with self._database.writing() as writer:
            self._prepare(writer, chunk)
            outcomes = write_by_halves(writer, range(chunk.count), partial(self._set_unchanged, writer, chunk))
            if len(outcomes) < chunk.count:
                self._explain(writer, chunk.changes, outcomes)
        return [outcomes[n] for n in range(chunk.count)]

    def _set_unchanged(self, writer: Writer, chunk: _Chunk, numbers: Sequence[int]) -> dict[int, Outcome]:
        """Set those of these consecutive rows that are unchanged, by rowid first."""
        done: list[int] = []
        for by_rowid in (True, False) if chunk.has_rowids else (False,):
            if len(done) < len(numbers):
                sql = self._sql.update(chunk, by_rowid=by_rowid, returning=True)
                keys = writer.execute(sql, chunk.parameters(numbers[0], numbers[-1] + 1))
                done += [chunk.numbers[key] for (key,) in keys]
        return dict.fromkeys(done, APPLIED)

    def _explain(self, writer: Writer, changes: Sequence[Change], outcomes: dict[int, Outcome]) -> None:
        now = {row[0]: row[1:] for row in writer.execute(self._sql.images_now)}
        for n, change in enumerate(changes):
            if n not in outcomes:
                outcomes[n] = conflict(change.before, now.get(n), self._target.columns)

    def images(self, keys: Sequence[ItemKey]) -> dict[ItemKey, Image]:
        """The image of each row as it is now, without the rows that are gone."""
        found: dict[ItemKey, Image] = {}
        for start in range(0, len(keys), _KEYS_PER_READ):
            by_part = self._target.by_value(keys[start : start + _KEYS_PER_READ])
            rows = self._database.fetch(self._sql.images_of(len(by_part)), list(by_part))
            found.update({by_part[row[0]]: tuple(row[1:]) for row in rows if row[0] in by_part})
        return found


class _NotAll(Exception):
    """A row has changed or moved since the plan."""


class _Chunk:
    """Changes as columns of a temporary table; a text that all rows share is bound once instead."""

    def __init__(self, changes: Sequence[Change], target: Target) -> None:
        self.changes = changes
        self.count = len(changes)
        keys = [target.key_of(change.keys[0]) for change in changes]
        self.numbers: dict[Any, int] = dict(zip(keys, range(self.count), strict=True))
        rowids = [int(change.unit) if change.unit.isdecimal() else None for change in changes]
        self.has_rowids = any(rowid is not None for rowid in rowids)
        self.columns: dict[str, Sequence[Any]] = {"n": range(self.count), "place": rowids, "key": keys}
        self.shared: dict[str, str] = {}
        befores, afters = [change.before for change in changes], [change.after for change in changes]
        for side, images in (("b", befores), ("a", afters)):
            for n, values in enumerate(target.images_by_column(images)):
                self._add(f"{side}{n}", values)

    def _add(self, name: str, values: Sequence[Any]) -> None:
        """Share only text: compared with a text column, a bound number would become text, one from a column not."""
        if type(values[0]) is str and values.count(values[0]) == self.count:
            self.shared[name] = values[0]
        else:
            self.columns[name] = values

    def parameters(self, first: int, end: int) -> dict[str, Any]:
        return {**self.shared, "first": first, "end": end}


def conflict(before: Image, now: Image | None, columns: tuple[str, ...]) -> Outcome:
    """Why a row was not changed: the first column that differs from the plan."""
    if now is None:
        return Outcome(OutcomeKind.CHANGED_SINCE, "no longer there")
    for column, was, found in zip(columns, before, now, strict=False):
        if was != found:
            return Outcome(OutcomeKind.CHANGED_SINCE, f"{column} is now {_shown(found)}, was {_shown(was)}")
    return Outcome(OutcomeKind.CHANGED_SINCE, "the database left it unchanged")


def _shown(value: Any) -> str:
    return "NULL" if value is None else str(value)[:80]


class _Statements:
    """The statements of one target. Names are quoted by the dialect, values are bound."""

    def __init__(self, target: Target, dialect: Dialect) -> None:
        quote = dialect.identifier_preparer.quote
        table, key = f"main.{quote(target.table)}", quote(target.key)
        columns = [quote(column) for column in target.columns]
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

    def update(self, chunk: _Chunk, *, by_rowid: bool, returning: bool) -> str:
        """With `returning` it returns the keys of the rows it has set; without, a refused row rolls everything back."""
        kind = frozenset(chunk.shared), by_rowid, returning
        if kind not in self._updates:
            self._updates[kind] = self._update(*kind)
        return self._updates[kind]

    def _update(self, shared: frozenset[str], by_rowid: bool, returning: bool) -> str:
        table, key = self._table, self._key

        def value(name: str) -> str:
            return f":{name}" if name in shared else f"chunk.{name}"

        numbered = list(enumerate(self._columns))
        sets = ", ".join(f"{column} = {value(f'a{n}')}" for n, column in numbered)
        # Compared exactly, whatever collation a column has: in a NOCASE key, 'A' and 'a' are two rows.
        guard = " AND ".join(f"job.{column} IS {value(f'b{n}')} COLLATE BINARY" for n, column in numbered)
        found = "job.rowid = chunk.place" if by_rowid else f"job.{key} = chunk.key"
        return (
            f"UPDATE {'' if returning else 'OR ROLLBACK '}{table} AS job SET {sets} FROM temp.retriage_chunk AS chunk"
            f" WHERE chunk.n >= :first AND chunk.n < :end AND {found}"
            f" AND job.{key} = chunk.key COLLATE BINARY AND {guard}{f' RETURNING {key}' if returning else ''}"
        )

    def images_of(self, count: int) -> str:
        return self._images.format(marks=", ".join("?" * count))
