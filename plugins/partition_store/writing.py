"""The guarded write: state and control table compared and set in one transaction, partition by partition."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from console.core.backend import CHANGED, Authority, Change, Image, Outcome, OutcomeKind
from console.core.text import ascii_lower
from console.sql.database import Database, RowRefused, Writer
from console.sql.guarded import conflict
from console.sql.sqlite import SqliteDatabase
from console.sql.times import IsoText
from plugins.partition_store.rows import BY_TEXT, IMAGE, STATE_PART, TEXT_MARKER
from plugins.partition_store.schema import CONTROL, CONTROL_DDL, KEY, TABLE
from plugins.partition_store.sink import Partition

SAME_KEY = " AND ".join(f"{name} = ?" for name in KEY)
_STATE = "status, attempt_count, updated_at, current_run_id"
_CONTROL = ("terminal", "paused", "next_run_at", "request")
_NOTHING: Image = (None,) * STATE_PART
_SIGNED = {"terminal": "terminal", "paused": "paused", "request": "request"}


class Desk:
    """Compare-and-set on partitions."""

    def __init__(self, database: SqliteDatabase, time: IsoText) -> None:
        self._database = database
        self._time = time

    def has_control(self) -> bool:
        return bool(self._database.columns(CONTROL))

    def swap(self, changes: Sequence[Change], authority: Authority, at: datetime) -> list[Outcome]:
        needed = any(change.before[STATE_PART:] != change.after[STATE_PART:] for change in changes)
        known = self.has_control()
        outcomes = []
        with self._database.writing() as writer:
            if needed and not known:
                writer.execute(CONTROL_DDL)
            for change in changes:
                try:
                    with writer.savepoint():
                        outcomes.append(self._one(writer, change, authority, at, known or needed))
                except RowRefused as refused:
                    outcomes.append(Outcome(OutcomeKind.FAILED, str(refused)))
        return outcomes

    def _one(self, writer: Writer, change: Change, authority: Authority, at: datetime, control: bool) -> Outcome:
        partition = Partition(*change.keys[0].parts)
        now = self._image(writer, partition, control)
        if now != change.before:
            gone = now[:STATE_PART] == _NOTHING and change.before[:STATE_PART] != _NOTHING
            return conflict(change.before, None if gone else now, IMAGE)
        self._set_state(writer, partition, change.before, change.after)
        if change.before[STATE_PART:] != change.after[STATE_PART:]:
            self._set_control(writer, partition, change, authority, self._time.encode(at))
        return CHANGED

    def _set_state(self, writer: Writer, partition: Partition, before: Image, after: Image) -> None:
        if before[:STATE_PART] == after[:STATE_PART]:
            return
        if before[:STATE_PART] == _NOTHING:
            writer.execute(
                f"INSERT INTO {TABLE} ({', '.join(KEY)}, status, attempt_count, updated_at)"  # noqa: S608  names are ours
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                (*partition, *after[:3]),
            )
        elif after[:STATE_PART] == _NOTHING:
            writer.execute(f"DELETE FROM {TABLE} WHERE {SAME_KEY}", partition)  # noqa: S608  names are ours
        else:
            writer.execute(
                f"UPDATE {TABLE} SET status = ?, updated_at = ? WHERE {SAME_KEY}",  # noqa: S608  names are ours
                (after[0], after[2], *partition),
            )

    def _set_control(self, writer: Writer, partition: Partition, change: Change, authority: Authority, at: str) -> None:
        """Who, when and why stand beside each mark that is set; a mark that is taken away takes them along."""
        writer.execute(
            f"INSERT INTO {CONTROL} ({', '.join(KEY)}) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",  # noqa: S608
            partition,
        )
        sets: dict[str, Any] = {}
        parts = zip(_CONTROL, change.before[STATE_PART:], change.after[STATE_PART:], strict=True)
        for name, was, value in parts:
            if was == value:
                continue
            sets[name] = None if value == BY_TEXT else value
            if name in _SIGNED:
                signed = (authority.who, at, authority.reason) if sets[name] is not None else (None, None, None)
                sets.update(zip((f"{name}_by", f"{name}_at", f"{name}_why"), signed, strict=True))
        if sets.get("request") is not None:
            sets["request_error"] = None
        assigned = ", ".join(f"{name} = ?" for name in sets)
        writer.execute(
            f"UPDATE {CONTROL} SET {assigned} WHERE {SAME_KEY}",  # noqa: S608  names are ours
            (*sets.values(), *partition),
        )

    # -- images ----------------------------------------------------------------------------------

    def _image(self, writer: Writer, partition: Partition, control: bool) -> Image:
        state = writer.execute(_select_state(), partition)
        marks = writer.execute(_select_control(), partition) if control else []
        return _joined(state, marks)

    def images(self, partitions: Sequence[Partition]) -> list[Image | None]:
        control = self.has_control()
        found: list[Image | None] = []
        for partition in partitions:
            state = self._database.fetch(_select_state(), partition)
            marks = self._database.fetch(_select_control(), partition) if control else []
            image = _joined(state, marks)
            found.append(image)
        return found


def _select_state() -> str:
    return f"SELECT {_STATE}, substr(error_message, 1, 4096) FROM {TABLE} WHERE {SAME_KEY}"  # noqa: S608  names are ours


def _select_control() -> str:
    return f"SELECT {', '.join(_CONTROL)} FROM {CONTROL} WHERE {SAME_KEY}"  # noqa: S608  names are ours


def _joined(state: Sequence[Any], marks: Sequence[Any]) -> Image:
    *row, error = state[0] if state else (*_NOTHING, None)
    terminal, paused, next_run, request = marks[0] if marks else (None,) * len(_CONTROL)
    by_text = isinstance(error, str) and TEXT_MARKER in ascii_lower(error)
    return (*row, terminal or (BY_TEXT if by_text else None), paused, next_run, request)


def control_row(database: Database, partition: Partition) -> dict[str, Any]:
    """Everything the control table keeps of one partition."""
    columns = list(database.columns(CONTROL))
    if not columns:
        return {}
    rows = database.fetch(f"SELECT {', '.join(columns)} FROM {CONTROL} WHERE {SAME_KEY}", partition)  # noqa: S608
    return dict(zip(columns, rows[0], strict=True)) if rows else {}
