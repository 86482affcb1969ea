"""Guarded writes of mapped rows whose write is more than a plain UPDATE by one key.

Every chunk is one transaction. Rows are locked with `FOR UPDATE SKIP LOCKED`, compared with the plan, and written by an
UPDATE or DELETE, by the queue's own function or by several statements. An error in the write of a row affects only that
row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from console.core.backend import APPLIED, GONE, Change, Image, Outcome, OutcomeKind
from console.core.item import ItemKey
from console.core.text import plural
from console.sql.database import Row, RowRefused, TransactionRefused, Writer
from console.sql.guarded import LOCKED, Write, conflict, halved, write_by_halves, write_together
from console.sql.values import plain
from plugins.sql_table.image import RowImage
from plugins.sql_table.layout import MappedLayout
from plugins.sql_table.resolved import ResolvedMapping
from plugins.sql_table.statements import Statements
from plugins.sql_table.writes import WriteRule

Run = Callable[[str, Any], Sequence[Row]]
_Together = Callable[[Writer, Sequence[int], Write], dict[int, Outcome]]
TWICE = Outcome(OutcomeKind.CHANGED_SINCE, "appears twice in the same write")
AT_WORK = Outcome(OutcomeKind.CHANGED_SINCE, "a worker holds its lock")


class RowGuard:
    """Writes rows with composite keys, parts of JSON columns, advisory locks, functions or statements."""

    def __init__(self, resolved: ResolvedMapping, layout: MappedLayout, image: RowImage, rule: WriteRule) -> None:
        self._database = resolved.database
        self._sqlite = resolved.sqlite
        self._parts = image.parts
        self._keys = layout.keys
        self._stored = layout.stored
        self._rule = rule
        self._sql = self._statements(resolved, layout, image, rule)

    def _statements(
        self, resolved: ResolvedMapping, layout: MappedLayout, image: RowImage, rule: WriteRule
    ) -> Statements:
        return Statements(resolved, layout, image, rule)

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
        """Write all changes. If an error of one row aborts the whole transaction, write each half on its own.

        Nearly always no row is refused, and no savepoint is needed; otherwise all is repeated with them.
        """
        try:
            try:
                return self._compare_and_set(changes, write_together)
            except RowRefused:
                return self._compare_and_set(changes, write_by_halves)
        except TransactionRefused as refused:
            return halved(changes, self.compare_and_set, refused)

    def _compare_and_set(self, changes: Sequence[Change], write: _Together) -> list[Outcome]:
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
            outcomes |= write(
                writer,
                sound,
                lambda some: dict(zip(some, self._write(writer, [changes[n] for n in some]), strict=True)),
            )
        return [outcomes[n] for n in range(len(changes))]

    def _write(self, writer: Writer, changes: Sequence[Change]) -> list[Outcome]:
        if self._rule.by_update:
            return self._update(writer, changes)
        if self._rule.delete and not self._sql.call and not self._sql.steps:
            self._remove(writer, [change.keys[0] for change in changes])
        if self._sql.call:
            writer.execute(self._sql.call, self._sql.called_with(changes))
        for change in changes:
            given = {**self._named(change.keys[0]), **self._sql.times(change)}
            for number, sql in enumerate(self._sql.steps, 1):
                if (changed := self._changes(writer, sql, given)) != 1:
                    raise RowRefused(f"statement {number} changed {changed or 'no'} {plural(changed or 1, 'row')}")
        self._require_planned(writer, changes)
        return [APPLIED] * len(changes)

    def _changes(self, writer: Writer, sql: str, given: dict[str, Any]) -> int:
        """Execute one statement of a row; how many rows it has changed."""
        return len(writer.execute(sql, given))

    def _remove(self, writer: Writer, keys: Sequence[ItemKey]) -> None:
        writer.executemany(self._sql.delete, list(map(self._named, keys)))

    def _set(self, writer: Writer, changes: Sequence[Change]) -> None:
        rows = [
            {**self._named(change.keys[0]), **{f"v{n}": value for n, value in enumerate(change.after)}}
            for change in changes
        ]
        writer.executemany(self._sql.update, rows)

    def _update(self, writer: Writer, changes: Sequence[Change]) -> list[Outcome]:
        """Write by UPDATE, and read the rows again: a trigger may have left a row unchanged."""
        self._set(writer, changes)
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
            if change.after == GONE:
                if image is not None:
                    raise RowRefused("the database did not delete it")
            elif image != change.after:
                difference = conflict(change.after, image, names).detail.replace("was", "planned was")
                raise RowRefused(f"the result differs from the plan: {difference}")
