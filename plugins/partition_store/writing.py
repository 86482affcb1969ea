"""The guarded write: state and control table compared and set, partition by partition, nothing else touched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from console.core.backend import CHANGED, Authority, Change, Image, Outcome, OutcomeKind
from console.sql.database import Row, RowRefused, TransactionRefused, Writer
from console.sql.guarded import conflict, halved
from plugins.partition_store.rows import BY_TEXT, IMAGE, SIGNED, SIGNS, STATE_PART, stored
from plugins.partition_store.schema import CONTROL, KEY, TABLE
from plugins.partition_store.sink import Partition
from plugins.partition_store.tables import MARKS, NOTHING, SAME_KEY, Tables

_HELD: Image = ("held by someone else",)
_LOCKED = Outcome(OutcomeKind.CONFLICTED, "locked by someone else's transaction")


class Desk:
    """Compare-and-set on partitions. Whoever changes either table of a partition holds its state row first."""

    def __init__(self, tables: Tables, backoff: str) -> None:
        self._tables = tables
        self._backoff = backoff

    def swap(self, changes: Sequence[Change], authority: Authority, at: datetime) -> list[Outcome]:
        if any(_marks(change.before) != _marks(change.after) for change in changes) and not self._tables.has_control():
            self._tables.create_control()
        return self._swap(changes, (authority.who, stored(at), authority.reason))

    def _swap(self, changes: Sequence[Change], signature: tuple[str, ...]) -> list[Outcome]:
        """In one transaction, unless a row's refusal takes that back as a whole: then its halves in their own."""
        try:
            return self._together(changes, signature)
        except TransactionRefused as refused:
            return halved(changes, lambda some: self._swap(some, signature), refused)

    def _together(self, changes: Sequence[Change], signature: tuple[str, ...]) -> list[Outcome]:
        with self._tables.writing() as (state, control):
            now = self._seen(changes, state, control)
            outcomes = []
            for change in changes:
                partition = _partition(change)
                outcome = self._one(state, control, change, now.get(partition), signature)
                if outcome is CHANGED:  # the same partition a second time is no longer as it was planned
                    now[partition] = _compared(change.after)
                outcomes.append(outcome)
            return outcomes

    def _seen(self, changes: Sequence[Change], state: Writer, control: Writer) -> dict[Partition | None, Image | None]:
        """The partitions as they are while this transaction holds them, or that somebody else does."""
        partitions = list(dict.fromkeys(p for change in changes if (p := _partition(change)) is not None))
        held = self._tables.held(state, partitions)
        now = self._tables.images(partitions, state.execute, control.execute)
        pairs = zip(partitions, now, strict=True)
        return {p: image if p in held or _state(image) == NOTHING else _HELD for p, image in pairs}

    def _one(
        self, state: Writer, control: Writer, change: Change, now: Image | None, signature: tuple[str, ...]
    ) -> Outcome:
        partition = _partition(change)
        if now is _HELD:
            return _LOCKED
        if partition is None or now is None or now != _compared(change.before):
            gone = now is None or (_state(now) == NOTHING and _state(change.before) != NOTHING)
            return conflict(change.before, None if gone else now, IMAGE)
        try:
            with state.savepoint():
                self._set_state(state, partition, change.before, change.after)
                if _marks(change.before) != _marks(change.after):
                    with control.savepoint():
                        self._set_control(control, partition, change, signature)
        except RowRefused as refused:
            return Outcome(OutcomeKind.FAILED, str(refused))
        return CHANGED

    def _set_state(self, writer: Writer, partition: Partition, before: Image, after: Image) -> None:
        if _state(before) == _state(after):
            return
        if _state(before) == NOTHING:
            sql = (
                f"INSERT INTO {TABLE} ({', '.join(KEY)}, status, attempt_count, updated_at)"  # noqa: S608  names are ours
                " VALUES (?, ?, ?, ?, ?, ?, ?)"
            )
            self._set(writer, sql, (*partition, *after[:3]))
        elif _state(after) == NOTHING:
            self._set(writer, f"DELETE FROM {TABLE} WHERE {SAME_KEY}", partition)  # noqa: S608  names are ours
        else:
            sql = f"UPDATE {TABLE} SET status = ?, updated_at = ? WHERE {SAME_KEY}"  # noqa: S608  names are ours
            self._set(writer, sql, (after[0], after[2], *partition))

    def _set_control(self, writer: Writer, partition: Partition, change: Change, signature: tuple[str, ...]) -> None:
        """Who, when and why stand beside each mark that is set; a mark that is taken away takes them along, and one
        that an undo brings back has its own again."""
        sql = f"INSERT INTO {CONTROL} ({', '.join(KEY)}) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"  # noqa: S608
        self._run(writer, sql, partition, control=True)
        sets: dict[str, Any] = {}
        for name, was, value in zip(MARKS, _marks(change.before), _marks(change.after), strict=True):
            if was == value:
                continue
            sets[name] = None if value == BY_TEXT else value
            if name in SIGNED:
                signed = signature if sets[name] is not None else (None, None, None)
                sets.update(zip((f"{name}_by", f"{name}_at", f"{name}_why"), signed, strict=True))
            elif name == "next_run_at":
                sets["backoff_strategy"] = self._backoff if value is not None else None
        sets |= {name: sign for name, sign in _signs(change.after).items() if name in sets}
        assigned = ", ".join(f"{name} = ?" for name in sets)
        sql = f"UPDATE {CONTROL} SET {assigned} WHERE {SAME_KEY}"  # noqa: S608  names are ours
        self._set(writer, sql, (*sets.values(), *partition), control=True)

    def _set(self, writer: Writer, sql: str, parameters: Sequence[Any], *, control: bool = False) -> None:
        """A trigger may pass over a row without a word."""
        if not self._run(writer, f"{sql} RETURNING 1", parameters, control=control):
            raise RowRefused("left as it was by the database itself")

    def _run(self, writer: Writer, sql: str, parameters: Sequence[Any], *, control: bool = False) -> Sequence[Row]:
        database = self._tables.control if control else self._tables.state
        return writer.execute(self._tables.spelled(database, sql), list(parameters))

    # -- settling --------------------------------------------------------------------------------

    def images(self, changes: Sequence[Change], *, read_only: bool) -> list[Image | None]:
        """As they are now. Where the tables live apart, a crash between the two commits left the state changed
        and the marks not: that state is taken back first, so that each partition is as before or as after."""
        known = {p: change for change in changes if (p := _partition(change)) is not None}
        now = self._images(known)
        halves = [p for p, image in now.items() if _is_half(known[p], image)] if self._tables.apart else []
        if halves and not read_only:
            self._take_back({p: known[p] for p in halves})
            now = self._images(known)
        return [_unless_gone(change, now.get(p) if (p := _partition(change)) else None) for change in changes]

    def _images(self, known: Mapping[Partition, Change]) -> dict[Partition, Image]:
        return dict(zip(known, self._tables.images(list(known)), strict=True))

    def _take_back(self, halves: Mapping[Partition, Change]) -> None:
        with self._tables.writing() as (state, control):
            now = self._seen(list(halves.values()), state, control)
            for partition, change in halves.items():
                image = now.get(partition)
                if image is not None and _is_half(change, image):
                    with suppress(RowRefused), state.savepoint():
                        self._set_state(state, partition, change.after, change.before)


def _is_half(change: Change, now: Image) -> bool:
    done = (*_state(change.after), *_marks(change.before))
    return now == done and _compared(change.before) != done and _compared(change.after) != done


def _partition(change: Change) -> Partition | None:
    """None for a key that names no partition."""
    parts = change.keys[0].parts
    return Partition(*parts) if len(parts) == len(KEY) else None


def _unless_gone(change: Change, now: Image | None) -> Image | None:
    """No row is an image too, but only for what is to come or to go."""
    if now is None or (_state(now) == NOTHING and NOTHING not in (_state(change.before), _state(change.after))):
        return None
    return next((image for image in (change.after, change.before) if _compared(image) == now), now)


def _compared(image: Image) -> Image:
    return tuple(image[: len(IMAGE)])


def _signs(image: Image) -> dict[str, Any]:
    """Who set the marks, when and why; nothing where an action decides that."""
    (signs,) = image[len(IMAGE) :] or (None,)
    return dict(zip(SIGNS, signs or (), strict=False))


def _state(image: Image) -> Image:
    return tuple(image[:STATE_PART])


def _marks(image: Image) -> Image:
    return tuple(image[STATE_PART : len(IMAGE)])
