"""Guarded writes of mapped rows. The shared guards are used for a plain UPDATE by one key, `RowGuard` for the rest.

Every chunk is one transaction. Rows are locked with `FOR UPDATE SKIP LOCKED`, compared with the plan, and written by an
UPDATE, by the queue's own function or by several statements. An error in the write of a row affects only that row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from console.core.backend import APPLIED, Change, Image, Outcome, OutcomeKind
from console.core.item import ItemKey
from console.sql.database import Row, RowRefused, TransactionRefused, Writer
from console.sql.guarded import LOCKED, Target, conflict, halved, write_by_halves
from console.sql.sqlite import SqliteDatabase
from console.sql.values import plain
from plugins.sql_table.image import RowImage
from plugins.sql_table.layout import MappedLayout, is_integer
from plugins.sql_table.resolved import ResolvedMapping
from plugins.sql_table.statements import Statements

if TYPE_CHECKING:
    from console.sql.postgres import PostgresDatabase

Run = Callable[[str, Any], Sequence[Row]]
TWICE = Outcome(OutcomeKind.CHANGED_SINCE, "appears twice in the same write")
AT_WORK = Outcome(OutcomeKind.CHANGED_SINCE, "a worker holds its lock")


class Guard(Protocol):
    """Compares and sets the rows of changes."""

    def compare_and_set(self, changes: Sequence[Change]) -> list[Outcome]: ...

    def images(self, keys: Sequence[ItemKey]) -> dict[ItemKey, Image]: ...


def mapping_guard(resolved: ResolvedMapping, layout: MappedLayout, image: RowImage) -> Guard:
    """The shared guard where it fits, because it is faster; otherwise a RowGuard."""
    requeue, table = resolved.mapping.requeue, resolved.table
    assert requeue is not None
    key = layout.keys[0]
    integer = is_integer(key, sqlite=resolved.sqlite)
    plain_update = (
        requeue.function is None and not requeue.statements and requeue.lock is None and len(layout.keys) == 1
        and all(part.read is None and not part.stored.generated for part in image.parts) and table.is_table
        and not any(mark in table.name + (table.schema or "") for mark in (".", "%"))
        and (integer or "text" in key.type.lower() or "char" in key.type.lower())
    )
    if not plain_update:
        return RowGuard(resolved, layout, image)
    columns = tuple(part.column for part in image.parts)
    target = Target(table.full_name, resolved.mapping.keys[0], columns, integer_key=integer)
    return resolved.database.guard(target)


class RowGuard:
    """Writes rows with composite keys, parts of JSON columns, advisory locks, functions or statements."""

    def __init__(self, resolved: ResolvedMapping, layout: MappedLayout, image: RowImage) -> None:
        assert resolved.mapping.requeue is not None
        self._database: SqliteDatabase | PostgresDatabase = resolved.database
        self._sqlite = resolved.sqlite
        self._parts = image.parts
        self._keys = layout.keys
        self._stored = layout.stored
        self._by_update = resolved.mapping.requeue.function is None and not resolved.mapping.requeue.statements
        self._sql = Statements(resolved, layout, image)

    # -- reading ---------------------------------------------------------------------------------

    def images(self, keys: Sequence[ItemKey]) -> dict[ItemKey, Image]:
        return {key: image for key, (image, _) in self._seen(keys, self._database.fetch, self._sql.seen).items()}

    def _seen(self, keys: Sequence[ItemKey], run: Run, sql: str) -> dict[ItemKey, tuple[Image, bool]]:
        """The image of each row, and whether its lock was obtained."""
        found: dict[ItemKey, tuple[Image, bool]] = {}
        width = len(self._keys)
        for rows, by_text in self._rows(keys, run, sql):
            for row in rows:
                if key := by_text.get(tuple(map(str, row[:width]))):
                    found[key] = (tuple(map(plain, row[width:-1])), bool(row[-1]))
        return found

    def _rows(
        self, keys: Sequence[ItemKey], run: Run, sql: str
    ) -> list[tuple[Sequence[Row], dict[tuple[str, ...], ItemKey]]]:
        by_text = {key.parts: key for key in keys}
        if not keys:
            return []
        if self._sqlite:
            return [(run(sql, self._named(key)), by_text) for key in keys]
        columns = {f"k{n}": [key.parts[n] for key in keys] for n in range(len(self._keys))}
        return [(run(sql, columns), by_text)]

    def _named(self, key: ItemKey) -> dict[str, Any]:
        values = self._stored(key.parts) if self._sqlite else key.parts
        return {f"k{n}": value for n, value in enumerate(values)}

    # -- writing ---------------------------------------------------------------------------------

    def compare_and_set(self, changes: Sequence[Change]) -> list[Outcome]:
        """Write all changes. If an error of one row aborts the whole transaction, write each half on its own."""
        try:
            return self._compare_and_set(changes)
        except TransactionRefused as refused:
            return halved(changes, self.compare_and_set, refused)

    def _compare_and_set(self, changes: Sequence[Change]) -> list[Outcome]:
        outcomes: dict[int, Outcome] = {}
        with self._database.writing() as writer:
            keys = [change.keys[0] for change in changes]
            held = self._seen(keys, writer.execute, self._sql.held)
            now = held if len(held) == len(keys) else self._seen(keys, writer.execute, self._sql.seen)
            sound, met = [], set()
            for n, (change, key) in enumerate(zip(changes, keys, strict=True)):
                image = held.get(key, now.get(key, (None, False)))[0]
                if image != change.before:
                    outcomes[n] = conflict(change.before, image, tuple(part.name for part in self._parts))
                elif key in met:
                    outcomes[n] = TWICE
                elif key not in held:
                    outcomes[n] = LOCKED
                elif not held[key][1]:
                    outcomes[n] = AT_WORK
                else:
                    sound.append(n)
                met.add(key)
            outcomes |= write_by_halves(
                writer,
                sound,
                lambda some: dict(zip(some, self._write(writer, [changes[n] for n in some]), strict=True)),
            )
        return [outcomes[n] for n in range(len(changes))]

    def _write(self, writer: Writer, changes: Sequence[Change]) -> list[Outcome]:
        if self._by_update:
            return self._update(writer, changes)
        if self._sql.call:
            writer.execute(self._sql.call, self._sql.called_with(changes))
        for change in changes:
            given = {**self._named(change.keys[0]), **self._sql.times(change)}
            for number, sql in enumerate(self._sql.steps, 1):
                if not writer.execute(sql, given):
                    raise RowRefused(f"statement {number} changed no row")
        self._require_planned(writer, changes)
        return [APPLIED] * len(changes)

    def _update(self, writer: Writer, changes: Sequence[Change]) -> list[Outcome]:
        """Write by UPDATE, and read the rows again: a trigger may have left a row unchanged."""
        rows = [
            {**self._named(change.keys[0]), **{f"v{n}": value for n, value in enumerate(change.after)}}
            for change in changes
        ]
        writer.executemany(self._sql.update, rows)
        now = self._images(writer, changes)
        names = tuple(part.name for part in self._parts)
        return [
            conflict(change.before, image, names) if image == change.before != change.after else APPLIED
            for change, image in zip(changes, now, strict=True)
        ]

    def _images(self, writer: Writer, changes: Sequence[Change]) -> list[Image | None]:
        seen = self._seen([change.keys[0] for change in changes], writer.execute, self._sql.seen)
        return [seen.get(change.keys[0], (None, False))[0] for change in changes]

    def _require_planned(self, writer: Writer, changes: Sequence[Change]) -> None:
        """Raise RowRefused unless each row is now as planned."""
        names = tuple(part.name for part in self._parts)
        for change, image in zip(changes, self._images(writer, changes), strict=True):
            if image != change.after:
                difference = conflict(change.after, image, names).detail.replace("was", "planned was")
                raise RowRefused(f"the result differs from the plan: {difference}")
