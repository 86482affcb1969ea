"""The guarded write of mapped rows: by the shared guards where a row is found by one plain key, here for the rest.

Every chunk is one transaction: rows are taken `FOR UPDATE SKIP LOCKED`, compared with the plan, and written by an
UPDATE, by the system's own function, or by several statements; whatever a row's own write raises is that row's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from console.core.backend import CHANGED, Change, Image, Outcome, OutcomeKind
from console.core.item import ItemKey
from console.sql.database import Row, RowRefused, TransactionRefused, Writer
from console.sql.guarded import SqliteGuard, Target, conflict, halved
from console.sql.sqlite import SqliteDatabase
from console.sql.values import plain
from plugins.sql_table.attaching import Attached
from plugins.sql_table.image import RowImage
from plugins.sql_table.reading import Reading, is_integer
from plugins.sql_table.statements import Statements

if TYPE_CHECKING:
    from console.sql.postgres import PostgresDatabase

Run = Callable[[str, Any], Sequence[Row]]
LOCKED = Outcome(OutcomeKind.CONFLICTED, "locked by someone else's transaction")
TWICE = Outcome(OutcomeKind.CONFLICTED, "is in the same write twice")
AT_WORK = Outcome(OutcomeKind.CONFLICTED, "a worker holds its lock")


class Guard(Protocol):
    """Compares and sets the rows of changes."""

    def swap(self, changes: Sequence[Change]) -> list[Outcome]: ...

    def images(self, keys: Sequence[ItemKey]) -> dict[ItemKey, Image]: ...


def guard_for(attached: Attached, reading: Reading, image: RowImage) -> Guard:
    """The shared guard where it fits, which is faster; else one that can say more."""
    requeue, table = attached.mapping.requeue, attached.table
    assert requeue is not None
    key = reading.keys[0]
    integer = is_integer(key, sqlite=attached.sqlite)
    plain_update = (
        requeue.function is None and not requeue.statements and requeue.lock is None and len(reading.keys) == 1
        and all(part.read is None and not part.stored.generated for part in image.parts) and table.is_table
        and not any(mark in table.name + (table.schema or "") for mark in (".", "%"))
        and (integer or "text" in key.type.lower() or "char" in key.type.lower())
    )
    if not plain_update:
        return RowGuard(attached, reading, image)
    columns = tuple(part.column for part in image.parts)
    target = Target(table.shown, attached.mapping.keys[0], columns, integer_key=integer)
    if isinstance(attached.database, SqliteDatabase):
        return SqliteGuard(attached.database, target)
    from console.sql.guarded_postgres import PostgresGuard

    return PostgresGuard(attached.database, target)


class RowGuard:
    """Rows with keys of several columns, parts of JSON, locks outside of the row, functions and statements."""

    def __init__(self, attached: Attached, reading: Reading, image: RowImage) -> None:
        assert attached.mapping.requeue is not None
        self._database: SqliteDatabase | PostgresDatabase = attached.database
        self._sqlite = attached.sqlite
        self._parts = image.parts
        self._keys = reading.keys
        self._stored = reading.stored
        self._by_update = attached.mapping.requeue.function is None and not attached.mapping.requeue.statements
        self._sql = Statements(attached, reading, image)

    # -- reading ---------------------------------------------------------------------------------

    def images(self, keys: Sequence[ItemKey]) -> dict[ItemKey, Image]:
        return {key: image for key, (image, _) in self._seen(keys, self._database.fetch, self._sql.seen).items()}

    def _seen(self, keys: Sequence[ItemKey], run: Run, sql: str) -> dict[ItemKey, tuple[Image, bool]]:
        """Each row's image, and whether its lock is ours."""
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

    def swap(self, changes: Sequence[Change]) -> list[Outcome]:
        """Where a row's refusal takes the whole transaction with it, the halves are written on their own."""
        try:
            return self._swap(changes)
        except TransactionRefused as refused:
            return halved(changes, self.swap, refused)

    def _swap(self, changes: Sequence[Change]) -> list[Outcome]:
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
            self._part(writer, changes, sound, outcomes)
        return [outcomes[n] for n in range(len(changes))]

    def _part(
        self, writer: Writer, changes: Sequence[Change], numbers: list[int], outcomes: dict[int, Outcome]
    ) -> None:
        """Write some rows; where one is refused, halve until it stands alone, and go on without it."""
        if not numbers:
            return
        try:
            with writer.savepoint():
                written = self._write(writer, [changes[n] for n in numbers])
        except RowRefused as refused:
            if len(numbers) == 1:
                outcomes[numbers[0]] = Outcome(OutcomeKind.FAILED, str(refused))
                return
            middle = len(numbers) // 2
            self._part(writer, changes, numbers[:middle], outcomes)
            self._part(writer, changes, numbers[middle:], outcomes)
        else:
            outcomes.update(zip(numbers, written, strict=True))

    def _write(self, writer: Writer, changes: Sequence[Change]) -> list[Outcome]:
        if self._by_update:
            return self._update(writer, changes)
        if self._sql.call:
            writer.execute(self._sql.call, self._sql.called_with(changes))
        for change in changes:
            given = {**self._named(change.keys[0]), **self._sql.times(change)}
            for number, sql in enumerate(self._sql.steps, 1):
                if not writer.execute(sql, given):
                    raise RowRefused(f"statement {number} changed nothing")
        self._require_as_planned(writer, changes)
        return [CHANGED] * len(changes)

    def _update(self, writer: Writer, changes: Sequence[Change]) -> list[Outcome]:
        """A trigger may have left a row as it was, and nothing but the row tells."""
        rows = [
            {**self._named(change.keys[0]), **{f"v{n}": value for n, value in enumerate(change.after)}}
            for change in changes
        ]
        writer.executemany(self._sql.update, rows)
        now = self._images(writer, changes)
        names = tuple(part.name for part in self._parts)
        return [
            conflict(change.before, image, names) if image == change.before != change.after else CHANGED
            for change, image in zip(changes, now, strict=True)
        ]

    def _images(self, writer: Writer, changes: Sequence[Change]) -> list[Image | None]:
        seen = self._seen([change.keys[0] for change in changes], writer.execute, self._sql.seen)
        return [seen.get(change.keys[0], (None, False))[0] for change in changes]

    def _require_as_planned(self, writer: Writer, changes: Sequence[Change]) -> None:
        """What the database made of a row must be what the plan said."""
        names = tuple(part.name for part in self._parts)
        for change, image in zip(changes, self._images(writer, changes), strict=True):
            if image != change.after:
                made = conflict(change.after, image, names).detail.replace("was", "planned was")
                raise RowRefused(f"its own system made something else of it: {made}")
