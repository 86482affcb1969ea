"""The guarded write on PostgreSQL: rows are locked, compared and set by one statement in READ COMMITTED.

Two statements, one that compares and one that sets, mis-record under two writers; a row found by its place
alone may be another by now. So one statement takes the rows `FOR UPDATE SKIP LOCKED` by place *and* key, with
their before-image, and sets what it took, in the partition it took it from. What moved is taken in a second pass by
its key alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from console.core.backend import CHANGED, Change, Image, Outcome, OutcomeKind
from console.core.changes import Changes, SoleKeys
from console.core.item import ItemKey
from console.sql.database import RowRefused, Writer
from console.sql.guarded import INTEGER, Target, conflict
from console.sql.postgres import PostgresDatabase
from console.sql.values import castable, plain

_Work = Callable[[Writer, "_Chunk", Sequence[int]], dict[int, Outcome]]
LOCKED = Outcome(OutcomeKind.CONFLICTED, "locked by someone else's transaction")
_PLACE = re.compile(r"\(\d+,\d+\)").search
_PLACED_LINES = re.compile(r"^[^(\n]*(\(\d+,\d+\))$", re.MULTILINE).findall


def array_text(values: Sequence[Any]) -> str:
    """Values as an array the server reads itself: the driver would look at each of them several times."""
    kinds = set(map(type, values))
    if kinds == {int}:
        return f"{{{','.join(map(str, values))}}}"
    if kinds == {str}:
        text = '","'.join(values)
        if "\\" not in text and text.count('"') == 2 * (len(values) - 1):
            return f'{{"{text}"}}'
    return f"{{{','.join(map(_element, values))}}}"


def _element(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


class _Chunk:
    """Changes as they are handed to the server: what differs from row to row as arrays, what all share as one value."""

    def __init__(self, changes: Changes, target: Target) -> None:
        self.changes = changes
        self.count = len(changes)
        self._arrays: dict[str, Sequence[Any]] = {"place": _places(changes.units), "key": _keys(changes, target)}
        self._shared: dict[str, Any] = {}
        for side, images in (("b", changes.befores), ("a", changes.afters)):
            # What follows the image's columns in an image is the plugin's own note, not the row's.
            for n, values in enumerate(list(zip(*images, strict=True))[: len(target.image)]):
                if values.count(values[0]) == self.count:
                    self._shared[f"{side}{n}"] = values[0]
                else:
                    self._arrays[f"{side}{n}"] = values
        self.shared = frozenset(self._shared)

    def given(self, numbers: Sequence[int]) -> dict[str, Any]:
        """The parameters of a statement on these of the changes."""
        whole = len(numbers) == self.count
        arrays = {
            name: array_text(values if whole else [values[n] for n in numbers])
            for name, values in self._arrays.items()
        }
        return {**self._shared, **arrays, "all": len(numbers)}


def _places(units: Sequence[str]) -> Sequence[str | None]:
    text = "\n".join(units)
    found: list[str] = _PLACED_LINES(text)
    if len(found) == len(units) == text.count("\n") + 1:
        return found
    return [place[0] if (place := _PLACE(unit)) else None for unit in units]


def _keys(changes: Changes, target: Target) -> Sequence[Any]:
    """Integers stay the text they are written as, where that is all there is to look at."""
    if target.integer_key and isinstance(changes.keys, SoleKeys):
        rest = "/[^/%\n]*" * (target.key_parts - 1)
        text = "\n".join(changes.keys.texts)
        found = re.findall(f"^{re.escape(changes.keys.backend)}/({INTEGER}){rest}$", text, re.MULTILINE)
        if len(found) == len(changes) == text.count("\n") + 1:
            return found
    return target.keys_of(changes)


class PostgresGuard:
    """Compare-and-set on a table whose rows are write units of their own."""

    def __init__(self, database: PostgresDatabase, target: Target) -> None:
        self._database = database
        self._target = target
        self._sql = _Statements(database, target)

    def swap(self, changes: Sequence[Change]) -> list[Outcome]:
        """Every change or its conflict, in one transaction."""
        if not changes:
            return []
        chunk = _Chunk(Changes.of(changes), self._target)
        try:
            return self._swap(chunk, self._whole)
        except RowRefused:
            return self._swap(chunk, self._part)

    def _swap(self, chunk: _Chunk, work: _Work) -> list[Outcome]:
        with self._database.writing() as writer:
            outcomes = work(writer, chunk, range(chunk.count))
            if len(outcomes) < chunk.count:
                left = [n for n in range(chunk.count) if n not in outcomes]
                self._explain(writer, chunk.changes, left, outcomes)
        return [outcomes[n] for n in range(chunk.count)]

    def _whole(self, writer: Writer, chunk: _Chunk, numbers: Sequence[int]) -> dict[int, Outcome]:
        """Nearly always no row refuses, and no savepoint is needed; where one does, all is done again with them."""
        done = self._set(writer, chunk, numbers, by_place=True)
        if len(done) < len(numbers):
            done = [*done, *self._set(writer, chunk, sorted(set(numbers) - set(done)), by_place=False)]
        return dict.fromkeys(done, CHANGED)

    def _part(self, writer: Writer, chunk: _Chunk, numbers: Sequence[int]) -> dict[int, Outcome]:
        """Set a part of the chunk; where a row refuses, halve until it stands alone, and go on without it."""
        try:
            with writer.savepoint():
                return self._whole(writer, chunk, numbers)
        except RowRefused as refused:
            if len(numbers) == 1:
                return {numbers[0]: Outcome(OutcomeKind.FAILED, str(refused))}
            middle = len(numbers) // 2
            first = self._part(writer, chunk, numbers[:middle])
            return first | self._part(writer, chunk, numbers[middle:])

    def _set(self, writer: Writer, chunk: _Chunk, numbers: Sequence[int], *, by_place: bool) -> Sequence[int]:
        """Which of these were taken and set."""
        ((done,),) = writer.execute(self._sql.update(by_place, chunk.shared), chunk.given(numbers))
        return numbers if done is None else [numbers[n - 1] for n in done]

    def _explain(
        self, writer: Writer, changes: Changes, left: list[int], outcomes: dict[int, Outcome]
    ) -> None:
        keys = [self._target.key_of(changes[n].keys[0]) for n in left]
        now = {row[0]: tuple(map(plain, row[1:])) for row in writer.execute(self._sql.images, {"key": keys})}
        width = len(self._target.image)
        same = [n for n, key in zip(left, keys, strict=True) if now.get(key) == tuple(changes[n].before[:width])]
        held = [self._target.key_of(changes[n].keys[0]) for n in same]
        free = {key for (key,) in writer.execute(self._sql.lock, {"key": held})} if held else set()
        for n, key in zip(left, keys, strict=True):
            locked = n in same and key not in free
            outcomes[n] = LOCKED if locked else conflict(changes[n].before, now.get(key), self._target.image)

    def images(self, keys: Sequence[ItemKey]) -> dict[ItemKey, Image]:
        """The image of each of these rows as it is now; rows that are gone are missing."""
        by_value = self._target.by_value(keys)
        rows = self._database.fetch(self._sql.images, {"key": list(by_value)})
        return {by_value[row[0]]: tuple(map(plain, row[1:])) for row in rows if row[0] in by_value}


class _Statements:
    """The statements of one target, with every name quoted by the dialect and every value bound."""

    def __init__(self, database: PostgresDatabase, target: Target) -> None:
        quote = database.dialect.identifier_preparer.quote_identifier
        types = {name: castable(kind) for name, kind in database.columns(target.table).items()}
        table, key = database.quoted(target.table), quote(target.key)
        columns = [quote(column) for column in target.image]
        self._table, self._key, self._key_type = table, key, types[target.key]
        self._columns = columns
        self._kinds = [types[column] for column in target.image]
        self._updates: dict[tuple[bool, frozenset[str]], str] = {}
        listed = ", ".join(f"t.{column}" for column in columns)
        those = f"{table} t WHERE t.{key} = ANY(%(key)s::{types[target.key]}[])"
        self.lock = f"SELECT t.{key} FROM {those} FOR UPDATE SKIP LOCKED"
        self.images = f"SELECT t.{key}, {listed} FROM {those}"

    def update(self, by_place: bool, same: frozenset[str]) -> str:
        """Lock and set what is as it was; `same` are the values that all rows of the chunk share."""
        if (by_place, same) not in self._updates:
            self._updates[by_place, same] = self._update(by_place, same)
        return self._updates[by_place, same]

    def _update(self, by_place: bool, same: frozenset[str]) -> str:
        arrays = {"place": "tid", "key": self._key_type}
        values: dict[str, str] = {}
        for side, place in (("b", "c"), ("a", "taken")):
            for n, kind in enumerate(self._kinds):
                name = f"{side}{n}"
                values[name] = f"%({name})s::{kind}" if name in same else f"{place}.{name}"
                if name not in same:
                    arrays[name] = kind
        # From a query of its own, so that the planner does not see how many there are and read the whole table instead.
        unnested = ", ".join(f"(SELECT %({name})s::{kind}[])" for name, kind in arrays.items())
        numbered = list(enumerate(self._columns))
        guard = " AND ".join(f"t.{column} IS NOT DISTINCT FROM {values[f'b{n}']}" for n, column in numbered)
        sets = ", ".join(f"{column} = {values[f'a{n}']}" for n, column in numbered)
        kept = "".join(f", c.{name}" for name in arrays if name.startswith("a"))
        found = f"t.{self._key} = c.key"
        return (
            f"WITH taken AS MATERIALIZED (SELECT c.n, t.tableoid AS part, t.ctid AS place{kept}"
            f" FROM unnest({unnested}) WITH ORDINALITY AS c({', '.join(arrays)}, n) JOIN {self._table} t"
            f" ON {f't.ctid = c.place AND {found}' if by_place else found}"
            f" WHERE {guard} FOR UPDATE OF t SKIP LOCKED),"
            f" done AS (UPDATE {self._table} AS t SET {sets} FROM taken"
            " WHERE t.ctid = taken.place AND t.tableoid = taken.part RETURNING taken.n)"
            # Nearly always all of them are set, and nobody has to tell which.
            " SELECT CASE WHEN count(*) < %(all)s THEN coalesce(array_agg(n), '{}') END FROM done"
        )
