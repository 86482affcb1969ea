"""The guarded write on PostgreSQL: rows are locked, compared and set by one statement in READ COMMITTED.

Two statements, one that compares and one that sets, mis-record under two writers; a row found by its place
alone may be another by now. So one statement takes the rows `FOR UPDATE SKIP LOCKED` by place *and* key, with
their before-image, and sets what it took. What moved is taken in a second pass by its key alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from console.core.backend import CHANGED, Change, Image, Outcome, OutcomeKind
from console.core.item import ItemKey
from console.sql.database import RowRefused, Writer
from console.sql.guarded import Target, conflict
from console.sql.postgres import PostgresDatabase
from console.sql.values import plain

LOCKED = Outcome(OutcomeKind.CONFLICTED, "locked by someone else's transaction")
_PLACE = re.compile(r"\(\d+,\d+\)")


class PostgresGuard:
    """Compare-and-set on a table whose rows are write units of their own."""

    def __init__(self, database: PostgresDatabase, target: Target) -> None:
        self._database = database
        self._target = target
        self._sql = _Statements(database, target)

    def swap(self, changes: Sequence[Change]) -> list[Outcome]:
        """Every change or its conflict, in one transaction."""
        outcomes: dict[int, Outcome] = {}
        with self._database.writing() as writer:
            self._part(writer, changes, 0, len(changes), outcomes)
            if left := [n for n in range(len(changes)) if n not in outcomes]:
                self._explain(writer, changes, left, outcomes)
        return [outcomes[n] for n in range(len(changes))]

    def _part(
        self, writer: Writer, changes: Sequence[Change], first: int, end: int, outcomes: dict[int, Outcome]
    ) -> None:
        """Set a part of the chunk; where a row refuses, halve until it stands alone, and go on without it."""
        try:
            with writer.savepoint():
                done = [n for (n,) in writer.execute(self._sql.by_place, self._given(changes, range(first, end)))]
                if len(done) < end - first:
                    left = sorted(set(range(first, end)) - set(done))
                    done += [n for (n,) in writer.execute(self._sql.by_key, self._given(changes, left))]
        except RowRefused as refused:
            if end - first == 1:
                outcomes[first] = Outcome(OutcomeKind.FAILED, str(refused))
                return
            middle = (first + end) // 2
            self._part(writer, changes, first, middle, outcomes)
            self._part(writer, changes, middle, end, outcomes)
        else:
            outcomes.update(dict.fromkeys(done, CHANGED))

    def _given(self, changes: Sequence[Change], numbers: Sequence[int]) -> dict[str, Any]:
        some = [changes[n] for n in numbers]
        given: dict[str, Any] = {
            "n": list(numbers),
            "place": [found[0] if (found := _PLACE.search(change.unit)) else None for change in some],
            "key": [self._target.key_of(change.keys[0]) for change in some],
        }
        for place in range(len(self._target.image)):
            given[f"b{place}"] = [change.before[place] for change in some]
            given[f"a{place}"] = [change.after[place] for change in some]
        return given

    def _explain(
        self, writer: Writer, changes: Sequence[Change], left: list[int], outcomes: dict[int, Outcome]
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
        types: Mapping[str, str] = database.columns(target.table)
        table, key = database.quoted(target.table), quote(target.key)
        columns = [quote(column) for column in target.image]
        kinds = [types[column] for column in target.image]
        arrays = [
            "%(n)s::int[]", "%(place)s::text[]::tid[]", f"%(key)s::{types[target.key]}[]",
            *(f"%(b{n})s::{kind}[]" for n, kind in enumerate(kinds)),
            *(f"%(a{n})s::{kind}[]" for n, kind in enumerate(kinds)),
        ]
        names = ["n", "place", "key", *(f"b{n}" for n in range(len(kinds))), *(f"a{n}" for n in range(len(kinds)))]
        guard = " AND ".join(f"t.{column} IS NOT DISTINCT FROM c.b{n}" for n, column in enumerate(columns))
        sets = ", ".join(f"{column} = c.a{n}" for n, column in enumerate(columns))
        update = (
            f"WITH chunk AS (SELECT * FROM unnest({', '.join(arrays)}) AS c({', '.join(names)})),"
            f" taken AS MATERIALIZED (SELECT c.n, t.ctid AS place FROM chunk c JOIN {table} t ON {{found}}"
            f" WHERE {guard} FOR UPDATE OF t SKIP LOCKED)"
            f" UPDATE {table} AS t SET {sets} FROM taken JOIN chunk c ON c.n = taken.n"
            " WHERE t.ctid = taken.place RETURNING c.n"
        )
        self.by_place = update.format(found=f"t.ctid = c.place AND t.{key} = c.key")
        self.by_key = update.format(found=f"t.{key} = c.key")
        listed = ", ".join(f"t.{column}" for column in columns)
        those = f"{table} t WHERE t.{key} = ANY(%(key)s::{types[target.key]}[])"
        self.lock = f"SELECT t.{key} FROM {those} FOR UPDATE SKIP LOCKED"
        self.images = f"SELECT t.{key}, {listed} FROM {those}"
