"""The guarded write: compares and sets the state and the control table, partition by partition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple

from console.core.backend import APPLIED, Authority, Change, Image, Outcome, OutcomeKind
from console.sql.database import Row, RowRefused, TransactionRefused, Writer
from console.sql.guarded import conflict, halved
from plugins.partition_store.rows import MARKS, SIGNED, SIGNS, PartitionImage, stored, stored_mark
from plugins.partition_store.schema import CONTROL, KEY, TABLE
from plugins.partition_store.sink import Partition
from plugins.partition_store.tables import SAME_KEY, Tables

_LOCKED = Outcome(OutcomeKind.CHANGED_SINCE, "locked by another transaction")
_NO_ROW = PartitionImage().state


class _PartitionChange(NamedTuple):
    """A change with its images by name; `partition` is None for a key that names no partition."""

    partition: Partition | None
    before: PartitionImage
    after: PartitionImage

    @classmethod
    def of(cls, change: Change) -> _PartitionChange:
        parts = change.keys[0].parts
        partition = Partition(*parts) if len(parts) == len(KEY) else None
        return cls(partition, PartitionImage(*change.before), PartitionImage(*change.after))

    @property
    def sets_marks(self) -> bool:
        return self.before.marks != self.after.marks

    def is_half_done(self, now: PartitionImage) -> bool:
        """Whether the state is written and the marks are not."""
        done = (*self.after.state, *self.before.marks)
        return now.compared == done and self.before.compared != done and self.after.compared != done


class PartitionWriter:
    """Compare-and-set on partitions. Every change of a partition locks its state row first."""

    def __init__(self, tables: Tables, backoff: str) -> None:
        self._tables = tables
        self._backoff = backoff

    def compare_and_set(self, changes: Sequence[Change], authority: Authority, at: datetime) -> list[Outcome]:
        if any(_PartitionChange.of(change).sets_marks for change in changes) and not self._tables.has_control():
            self._tables.create_control()
        return self._write(changes, (authority.who, stored(at), authority.reason))

    def _write(self, changes: Sequence[Change], signature: tuple[str, ...]) -> list[Outcome]:
        """Write in one transaction; in halves if a refused row rolled that transaction back."""
        try:
            return self._write_together(changes, signature)
        except TransactionRefused as refused:
            return halved(changes, lambda some: self._write(some, signature), refused)

    def _write_together(self, changes: Sequence[Change], signature: tuple[str, ...]) -> list[Outcome]:
        planned = list(map(_PartitionChange.of, changes))
        with self._tables.writing() as (state, control):
            now, locked = self._lock(planned, state, control)
            outcomes = []
            for change in planned:
                if change.partition in locked:
                    outcomes.append(_LOCKED)
                    continue
                found = None if change.partition is None else now.get(change.partition)
                outcome = self._write_one(state, control, change, found, signature)
                if outcome is APPLIED and change.partition is not None:
                    # A second change of the same partition is compared with this one.
                    now[change.partition] = change.after
                outcomes.append(outcome)
            return outcomes

    def _lock(
        self, changes: Sequence[_PartitionChange], state: Writer, control: Writer
    ) -> tuple[dict[Partition, PartitionImage], set[Partition]]:
        """The partitions as they are now, locked, and those that somebody else has locked."""
        partitions = list(dict.fromkeys(change.partition for change in changes if change.partition is not None))
        held = self._tables.held(state, partitions)
        images = self._tables.images(partitions, state.execute, control.execute)
        now = dict(zip(partitions, images, strict=True))
        return now, {p for p, image in now.items() if p not in held and image.state != _NO_ROW}

    def _write_one(
        self,
        state: Writer,
        control: Writer,
        change: _PartitionChange,
        now: PartitionImage | None,
        signature: tuple[str, ...],
    ) -> Outcome:
        partition, before, after = change
        if partition is None or now is None or now.compared != before.compared:
            gone = now is None or (now.state == _NO_ROW and before.state != _NO_ROW)
            return conflict(before, None if gone else now, PartitionImage._fields[:8])
        try:
            with state.savepoint():
                self._set_state(state, partition, before, after)
                if change.sets_marks:
                    with control.savepoint():
                        self._set_control(control, partition, change, signature)
        except RowRefused as refused:
            return Outcome(OutcomeKind.REJECTED, str(refused))
        return APPLIED

    def _set_state(self, writer: Writer, partition: Partition, before: PartitionImage, after: PartitionImage) -> None:
        if before.state == after.state:
            return
        if before.state == _NO_ROW:
            sql = (
                f"INSERT INTO {TABLE} ({', '.join(KEY)}, status, attempt_count, updated_at)"  # noqa: S608  names are ours
                " VALUES (?, ?, ?, ?, ?, ?, ?)"
            )
            self._set(writer, sql, (*partition, after.status, after.attempt_count, after.updated_at))
        elif after.state == _NO_ROW:
            self._set(writer, f"DELETE FROM {TABLE} WHERE {SAME_KEY}", partition)  # noqa: S608  names are ours
        else:
            sql = f"UPDATE {TABLE} SET status = ?, updated_at = ? WHERE {SAME_KEY}"  # noqa: S608  names are ours
            self._set(writer, sql, (after.status, after.updated_at, *partition))

    def _set_control(
        self, writer: Writer, partition: Partition, change: _PartitionChange, signature: tuple[str, ...]
    ) -> None:
        """Set the marks, each with who, when and why. An undo restores those of the mark it restores."""
        sql = f"INSERT INTO {CONTROL} ({', '.join(KEY)}) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"  # noqa: S608
        self._run(writer, sql, partition, control=True)
        sets: dict[str, Any] = {}
        for name, was, value in zip(MARKS, change.before.marks, change.after.marks, strict=True):
            if was == value:
                continue
            sets[name] = stored_mark(value) if name == "terminal" else value
            if name in SIGNED:
                signed = signature if sets[name] is not None else (None, None, None)
                sets.update(zip((f"{name}_by", f"{name}_at", f"{name}_why"), signed, strict=True))
            elif name == "next_run_at":
                sets["backoff_strategy"] = self._backoff if value is not None else None
        restored = dict(zip(SIGNS, change.after.signs or (), strict=False))
        sets |= {name: sign for name, sign in restored.items() if name in sets}
        assigned = ", ".join(f"{name} = ?" for name in sets)
        sql = f"UPDATE {CONTROL} SET {assigned} WHERE {SAME_KEY}"  # noqa: S608  names are ours
        self._set(writer, sql, (*sets.values(), *partition), control=True)

    def _set(self, writer: Writer, sql: str, parameters: Sequence[Any], *, control: bool = False) -> None:
        """Run a statement that must change one row; a trigger may silently ignore it."""
        if not self._run(writer, f"{sql} RETURNING 1", parameters, control=control):
            raise RowRefused("the database left it unchanged")

    def _run(self, writer: Writer, sql: str, parameters: Sequence[Any], *, control: bool = False) -> Sequence[Row]:
        database = self._tables.control if control else self._tables.state
        return writer.execute(self._tables.with_driver_marks(database, sql), list(parameters))

    # -- reconciling -----------------------------------------------------------------------------

    def images(self, changes: Sequence[Change], *, read_only: bool) -> list[Image | None]:
        """The partitions as they are now.

        With two databases, a crash between the two commits leaves the state changed and the marks not. That state is
        reverted first, so that each partition is as before or as after.
        """
        planned = {change.partition: change for change in map(_PartitionChange.of, changes) if change.partition}
        now = self._images(planned)
        halves = {p: planned[p] for p, image in now.items() if planned[p].is_half_done(image)}
        if halves and self._tables.apart and not read_only:
            self._revert(halves)
            now = self._images(planned)
        return [_present(change, now) for change in changes]

    def _images(self, planned: Mapping[Partition, _PartitionChange]) -> dict[Partition, PartitionImage]:
        return dict(zip(planned, self._tables.images(list(planned)), strict=True))

    def _revert(self, halves: Mapping[Partition, _PartitionChange]) -> None:
        with self._tables.writing() as (state, control):
            now, locked = self._lock(list(halves.values()), state, control)
            for partition, change in halves.items():
                if partition not in locked and change.is_half_done(now[partition]):
                    with suppress(RowRefused), state.savepoint():
                        self._set_state(state, partition, change.after, change.before)


def _present(change: Change, images: Mapping[Partition, PartitionImage]) -> Image | None:
    """The image of a change's partition; None if it is gone. No row is an image only for a backfill and its undo."""
    partition, before, after = _PartitionChange.of(change)
    now = None if partition is None else images.get(partition)
    if now is None or (now.state == _NO_ROW and _NO_ROW not in (before.state, after.state)):
        return None
    if now.compared == after.compared:
        return change.after
    return change.before if now.compared == before.compared else now.compared
