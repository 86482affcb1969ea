"""The guarded write on PostgreSQL: one statement in READ COMMITTED locks, compares and sets a chunk of rows.

With two statements, one that compares and one that sets, two writers record the wrong outcomes. A row found by its
ctid alone may be another row by now. So one statement takes the rows `FOR UPDATE SKIP LOCKED` by ctid *and* key with
their before-images, and sets the rows that it took, in the partition it found them in. A second pass finds rows that
have moved by their key alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from console.core.backend import APPLIED, Change, Image, Outcome
from console.core.item import ItemKey
from console.sql.database import RowRefused, Writer
from console.sql.guarded import LOCKED, Target, conflict, write_by_halves
from console.sql.values import castable, plain

if TYPE_CHECKING:
    from console.sql.postgres import PostgresDatabase

_Work = Callable[[Writer, "_Chunk", Sequence[int]], dict[int, Outcome]]
_CTID = re.compile(r"\(\d+,\d+\)").search


def array_text(values: Sequence[Any]) -> str:
    """Values as the text of an array. Faster than the driver's own lists, which inspect each value several times."""
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
    """Changes as arrays, one for each column; a value that all rows share is bound once instead."""

    def __init__(self, changes: Sequence[Change], target: Target) -> None:
        self.changes = changes
        self.count = len(changes)
        ctids = [found[0] if (found := _CTID(change.unit)) else None for change in changes]
        keys = [target.key_of(change.keys[0]) for change in changes]
        self._arrays: dict[str, Sequence[Any]] = {"place": ctids, "key": keys}
        self._shared: dict[str, Any] = {}
        befores, afters = [change.before for change in changes], [change.after for change in changes]
        for side, images in (("b", befores), ("a", afters)):
            for n, values in enumerate(target.images_by_column(images)):
                if values.count(values[0]) == self.count:
                    self._shared[f"{side}{n}"] = values[0]
                else:
                    self._arrays[f"{side}{n}"] = values
        self.shared = frozenset(self._shared)

    def parameters(self, numbers: Sequence[int]) -> dict[str, Any]:
        """The parameters of a statement for the changes with these numbers."""
        whole = len(numbers) == self.count
        arrays = {
            name: array_text(values if whole else [values[n] for n in numbers])
            for name, values in self._arrays.items()
        }
        return {**self._shared, **arrays, "all": len(numbers)}


class PostgresGuard:
    """Compare-and-set on a PostgreSQL table in which each row is a write unit."""

    def __init__(self, database: PostgresDatabase, target: Target) -> None:
        self._database = database
        self._target = target
        self._sql = _Statements(database, target)

    def compare_and_set(self, changes: Sequence[Change]) -> list[Outcome]:
        """One outcome for each change, from one transaction."""
        if not changes:
            return []
        chunk = _Chunk(changes, self._target)
        try:
            return self._compare_and_set(chunk, self._whole)
        except RowRefused:
            return self._compare_and_set(chunk, self._by_halves)

    def _compare_and_set(self, chunk: _Chunk, work: _Work) -> list[Outcome]:
        with self._database.writing() as writer:
            outcomes = work(writer, chunk, range(chunk.count))
            if len(outcomes) < chunk.count:
                left = [n for n in range(chunk.count) if n not in outcomes]
                self._explain(writer, chunk.changes, left, outcomes)
        return [outcomes[n] for n in range(chunk.count)]

    def _whole(self, writer: Writer, chunk: _Chunk, numbers: Sequence[int]) -> dict[int, Outcome]:
        """Set the rows without savepoints. Nearly always no row is refused; otherwise all is repeated with them."""
        done = self._set(writer, chunk, numbers, by_ctid=True)
        if len(done) < len(numbers):
            done = [*done, *self._set(writer, chunk, sorted(set(numbers) - set(done)), by_ctid=False)]
        return dict.fromkeys(done, APPLIED)

    def _by_halves(self, writer: Writer, chunk: _Chunk, numbers: Sequence[int]) -> dict[int, Outcome]:
        return write_by_halves(writer, numbers, partial(self._whole, writer, chunk))

    def _set(self, writer: Writer, chunk: _Chunk, numbers: Sequence[int], *, by_ctid: bool) -> Sequence[int]:
        """The numbers of the rows that were locked and set."""
        ((done,),) = writer.execute(self._sql.update(by_ctid, chunk.shared), chunk.parameters(numbers))
        return numbers if done is None else [numbers[n - 1] for n in done]

    def _explain(
        self, writer: Writer, changes: Sequence[Change], left: list[int], outcomes: dict[int, Outcome]
    ) -> None:
        keys = [self._target.key_of(changes[n].keys[0]) for n in left]
        now = {row[0]: tuple(map(plain, row[1:])) for row in writer.execute(self._sql.images, {"key": keys})}
        width = len(self._target.columns)
        same = [n for n, key in zip(left, keys, strict=True) if now.get(key) == tuple(changes[n].before[:width])]
        held = [self._target.key_of(changes[n].keys[0]) for n in same]
        free = {key for (key,) in writer.execute(self._sql.lock, {"key": held})} if held else set()
        for n, key in zip(left, keys, strict=True):
            locked = n in same and key not in free
            outcomes[n] = LOCKED if locked else conflict(changes[n].before, now.get(key), self._target.columns)

    def images(self, keys: Sequence[ItemKey]) -> dict[ItemKey, Image]:
        """The image of each row as it is now, without the rows that are gone."""
        by_value = self._target.by_value(keys)
        rows = self._database.fetch(self._sql.images, {"key": list(by_value)})
        return {by_value[row[0]]: tuple(map(plain, row[1:])) for row in rows if row[0] in by_value}


class _Statements:
    """The statements of one target. Names are quoted by the dialect, values are bound."""

    def __init__(self, database: PostgresDatabase, target: Target) -> None:
        quote = database.dialect.identifier_preparer.quote_identifier
        types = {name: castable(kind) for name, kind in database.columns(target.table).items()}
        table, key = database.quoted(target.table), quote(target.key)
        columns = [quote(column) for column in target.columns]
        self._table, self._key, self._key_type = table, key, types[target.key]
        self._columns = columns
        self._kinds = [types[column] for column in target.columns]
        self._updates: dict[tuple[bool, frozenset[str]], str] = {}
        listed = ", ".join(f"t.{column}" for column in columns)
        those = f"{table} t WHERE t.{key} = ANY(%(key)s::{types[target.key]}[])"
        self.lock = f"SELECT t.{key} FROM {those} FOR UPDATE SKIP LOCKED"
        self.images = f"SELECT t.{key}, {listed} FROM {those}"

    def update(self, by_ctid: bool, same: frozenset[str]) -> str:
        """Lock and set the rows that are unchanged; `same` names the values that all rows of the chunk share."""
        if (by_ctid, same) not in self._updates:
            self._updates[by_ctid, same] = self._update(by_ctid, same)
        return self._updates[by_ctid, same]

    def _update(self, by_ctid: bool, same: frozenset[str]) -> str:
        arrays = {"place": "tid", "key": self._key_type}
        values: dict[str, str] = {}
        for side, place in (("b", "c"), ("a", "taken")):
            for n, kind in enumerate(self._kinds):
                name = f"{side}{n}"
                values[name] = f"%({name})s::{kind}" if name in same else f"{place}.{name}"
                if name not in same:
                    arrays[name] = kind
        # Each array comes from a subquery: seeing how long it is, the planner might read the whole table instead.
        unnested = ", ".join(f"(SELECT %({name})s::{kind}[])" for name, kind in arrays.items())
        numbered = list(enumerate(self._columns))
        guard = " AND ".join(f"t.{column} IS NOT DISTINCT FROM {values[f'b{n}']}" for n, column in numbered)
        sets = ", ".join(f"{column} = {values[f'a{n}']}" for n, column in numbered)
        kept = "".join(f", c.{name}" for name in arrays if name.startswith("a"))
        found = f"t.{self._key} = c.key"
        return (
            f"WITH taken AS MATERIALIZED (SELECT c.n, t.tableoid AS part, t.ctid AS place{kept}"
            f" FROM unnest({unnested}) WITH ORDINALITY AS c({', '.join(arrays)}, n) JOIN {self._table} t"
            f" ON {f't.ctid = c.place AND {found}' if by_ctid else found}"
            f" WHERE {guard} FOR UPDATE OF t SKIP LOCKED),"
            f" done AS (UPDATE {self._table} AS t SET {sets} FROM taken"
            " WHERE t.ctid = taken.place AND t.tableoid = taken.part RETURNING taken.n)"
            # Nearly always all of them are set, and the list of numbers is not needed.
            " SELECT CASE WHEN count(*) < %(all)s THEN coalesce(array_agg(n), '{}') END FROM done"
        )
