"""Guarded writes of mapped rows in MySQL and MariaDB, which have neither arrays nor `UPDATE … RETURNING`.

Rows are locked by key, in the order of their keys, with `FOR UPDATE SKIP LOCKED`. They are compared and written in the
same transaction, at READ COMMITTED.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from console.core.backend import APPLIED, Change, Image, Outcome
from console.core.item import ItemKey
from console.sql.database import Row, Writer
from console.sql.guarded import LOCKED
from plugins.sql_table.image import RowImage
from plugins.sql_table.layout import MappedLayout
from plugins.sql_table.resolved import ResolvedMapping
from plugins.sql_table.row_guard import RowGuard, Run
from plugins.sql_table.statements import Statements
from plugins.sql_table.tables import is_mysql
from plugins.sql_table.writes import WriteRule

_KEYS_PER_READ = 1_000
_PAUSES = (0.005, 0.01, 0.02, *(0.04,) * 20, *(0.08,) * 20)
"""Seconds before each further attempt to write the rows that others had locked: many, because workers lock for
milliseconds, but again and again."""


class MysqlStatements(Statements):
    """The statements of one mapping. `%(keys)s` is a list of keys, which the driver writes as a list of values."""

    def _mark(self, name: str, type: str = "") -> str:  # noqa: ARG002  values need no cast here
        return f"%({name})s"

    def _key_is_among(self) -> str:
        keys = [f"job.{self._quote(key)}" for key in self._resolved.mapping.keys]
        named = keys[0] if len(keys) == 1 else f"({', '.join(keys)})"
        return f"{named} IN %(keys)s"

    def _select(self, locking: str, lock: str | None) -> str:
        """Selects key and image of some rows. With `locking` it locks them; of joined rows, which it would lock too,
        it then selects only the keys."""
        if lock is not None:
            problem = "MySQL has no advisory locks that a transaction holds"
            raise self._resolved.fault(problem, self._rule.section, "lock")
        keys = ", ".join(f"job.{self._quote(key)}" for key in self._resolved.mapping.keys)
        if locking and self._resolved.joined:
            return f"SELECT {keys} FROM {self.table} AS job WHERE {self._key_is_among()} ORDER BY {keys}{locking}"
        order = f" ORDER BY {keys}{locking}" if locking else ""
        listed = ", ".join([keys, *(self._read(part) for part in self._parts), "1"])
        return f"SELECT {listed} FROM {self.table} AS job {self._joins()} WHERE {self._key_is_among()}{order}"

    def _update(self) -> str:
        written = [(n, part) for n, part in enumerate(self._parts) if part.is_set]
        sets = ", ".join(f"job.{self._quote(part.column)} = {self._written(n, part)}" for n, part in written)
        return f"UPDATE {self.table} AS job SET {sets} WHERE {self._key_is_among()}"

    def _delete(self) -> str:
        return f"DELETE job FROM {self.table} AS job WHERE {self._key_is_among()}"

    def _require_function(self, schema: str | None, name: str) -> None:  # noqa: ARG002
        raise self._resolved.fault("functions are called in PostgreSQL only", self._rule.section, "function")


class MysqlGuard(RowGuard):
    """Writes rows of MySQL and MariaDB."""

    def __init__(self, resolved: ResolvedMapping, layout: MappedLayout, image: RowImage, rule: WriteRule) -> None:
        super().__init__(resolved, layout, image, rule)
        self._joined = bool(resolved.joined)
        self._resolved = resolved

    @cached_property
    def _may_have_triggers(self) -> bool:
        assert is_mysql(self._resolved.database)
        return self._resolved.database.may_have_triggers(self._resolved.table.full_name)

    def _statements(
        self, resolved: ResolvedMapping, layout: MappedLayout, image: RowImage, rule: WriteRule
    ) -> Statements:
        return MysqlStatements(resolved, layout, image, rule)

    def compare_and_set(self, changes: Sequence[Change]) -> list[Outcome]:
        """Write all changes; those of locked rows again for a moment, each time in a transaction of its own.

        A worker that looks for its next job locks every row that it passes. It keeps them while it waits for a row
        that is locked here, so those that could be locked have to be let go first.
        """
        outcomes = super().compare_and_set(changes)
        for pause in _PAUSES:
            locked = [n for n, outcome in enumerate(outcomes) if outcome == LOCKED]
            if not locked:
                break
            time.sleep(pause)
            for n, outcome in zip(locked, super().compare_and_set([changes[n] for n in locked]), strict=True):
                outcomes[n] = outcome
        return outcomes

    def _seen(self, keys: Sequence[ItemKey], run: Run, sql: str) -> dict[ItemKey, tuple[Image, bool]]:
        """The image of each row. Joined rows are locked first, and read after that."""
        if self._joined and sql == self._sql.held:
            locked = {
                by_text[parts] for rows, by_text in self._rows(keys, run, sql) for row in rows
                if (parts := tuple(map(str, row))) in by_text
            }
            return super()._seen([key for key in keys if key in locked], run, self._sql.seen)
        return super()._seen(keys, run, sql)

    def _rows(
        self, keys: Sequence[ItemKey], run: Run, sql: str
    ) -> list[tuple[Sequence[Row], dict[tuple[str, ...], ItemKey]]]:
        by_text = {key.parts: key for key in keys}
        parts = [keys[start : start + _KEYS_PER_READ] for start in range(0, len(keys), _KEYS_PER_READ)]
        return [(run(sql, {"keys": self._values(some)}), by_text) for some in parts]

    def _values(self, keys: Sequence[ItemKey]) -> list[Any]:
        stored = [self._stored(key.parts) for key in keys]
        return [values[0] for values in stored] if len(self._keys) == 1 else stored

    def _named(self, key: ItemKey) -> dict[str, Any]:
        return {f"k{n}": value for n, value in enumerate(self._stored(key.parts))}

    def _changes(self, writer: Writer, sql: str, given: dict[str, Any]) -> int:
        return writer.change(sql, given)

    def _remove(self, writer: Writer, keys: Sequence[ItemKey]) -> None:
        writer.change(self._sql.delete, {"keys": self._values(keys)})

    def _update(self, writer: Writer, changes: Sequence[Change]) -> list[Outcome]:
        """The rows are locked, so without a trigger an UPDATE that finds all of them has written what it says."""
        if self._may_have_triggers or self._written(writer, changes) != len(changes):
            return super()._update(writer, changes)
        return [APPLIED] * len(changes)

    def _set(self, writer: Writer, changes: Sequence[Change]) -> None:
        self._written(writer, changes)

    def _written(self, writer: Writer, changes: Sequence[Change]) -> int:
        """Write with one UPDATE for all rows that get the same values; returns how many rows it found."""
        alike: dict[tuple[Any, ...], list[ItemKey]] = {}
        written = [n for n, part in enumerate(self._parts) if part.is_set]
        for change in changes:
            alike.setdefault(tuple(change.after[n] for n in written), []).append(change.keys[0])
        found = 0
        for values, keys in alike.items():
            given = {f"v{n}": value for n, value in zip(written, values, strict=True)}
            found += writer.change(self._sql.update, {**given, "keys": self._values(keys)})
        return found
