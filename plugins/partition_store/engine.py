"""The validator: the only one who says success or failed, one transaction per attempt.

What it decides and the attempt it counts are one guarded UPDATE, so a kill at any moment counts an attempt
once with its outcome, or not at all. It reads raw data and never writes it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from console.core.faults import BackendBusy, Unreachable
from console.core.ports import Clock, Stop
from console.core.text import neutralise
from console.sql.database import Row
from console.sql.sqlite import SqliteDatabase
from console.sql.times import IsoText
from console.sql.values import text
from plugins.partition_store.schema import CONTROL, KEY, TABLE
from plugins.partition_store.sink import METADATA, PAYLOAD, Partition, RawSink, parse_metadata, run_ids
from plugins.partition_store.writing import SAME_KEY

Handler = Callable[[Partition, dict[str, Any]], object]
_IDLE = 0.5
_GUARD = f"{SAME_KEY} AND status IS ? AND attempt_count IS ? AND updated_at IS ?"


class Rejected(Exception):
    """A run is not what it should be; the text is the partition's error."""


class Verified(NamedTuple):
    run_id: str
    record_count: int
    schema_version: str | None


class Taken(NamedTuple):
    """A partition to validate, as it was when it was chosen."""

    partition: Partition
    status: str
    attempts: int | None
    updated_at: str | None
    current_run_id: str | None


def accept(_partition: Partition, _metadata: dict[str, Any]) -> None:
    """A handler with no demands of its own."""


class Validator:
    """Validates the newest run of each pending partition, and of each success that is to be reprocessed."""

    def __init__(self, database: SqliteDatabase, sink: RawSink, clock: Clock, handler: Handler = accept) -> None:
        self._database = database
        self._sink = sink
        self._clock = clock
        self._handler = handler
        self._time = IsoText()

    def work(self, stop: Stop, log: Callable[[str], None]) -> int:
        attempts = 0
        while not stop.requested:
            done = self.cycle(log, stop)
            attempts += done
            if not done:
                self._clock.sleep(_IDLE)
        return attempts

    def cycle(self, log: Callable[[str], None], stop: Stop) -> int:
        """Everything that is due now, once; how many attempts that made."""
        made = 0
        for taken in [*self._due(), *self._requested()]:
            if stop.requested:
                break
            try:
                made += self.attempt(taken, log)
            except Unreachable as fault:
                log(f"{'/'.join(taken.partition)} not tried: {fault.detail}")
        return made

    def _due(self) -> list[Taken]:
        """Pending ones, fresh data before backfills, newest day first; neither paused nor before their time."""
        now = self._time.encode(self._clock.now())
        if not self._database.columns(CONTROL):
            return self._chosen("", "p.status = 'pending'", "", ())
        join = f" LEFT JOIN {CONTROL} c ON {' AND '.join(f'c.{name} = p.{name}' for name in KEY)}"
        where = "p.status = 'pending' AND c.paused IS NULL AND (c.next_run_at IS NULL OR c.next_run_at <= ?)"
        return self._chosen(join, where, "coalesce(c.request, '') = 'backfill', ", (now,))

    def _requested(self) -> list[Taken]:
        if not self._database.columns(CONTROL):
            return []
        join = f" JOIN {CONTROL} c ON {' AND '.join(f'c.{name} = p.{name}' for name in KEY)}"
        where = "p.status = 'success' AND c.request = 'reprocess' AND c.paused IS NULL"
        return self._chosen(join, where, "", ())

    def _chosen(self, join: str, where: str, first: str, parameters: Row) -> list[Taken]:
        columns = ", ".join(f"p.{name}" for name in (*KEY, "status", "attempt_count", "updated_at", "current_run_id"))
        rows = self._database.fetch(
            f"SELECT {columns} FROM {TABLE} p{join} WHERE {where}"  # noqa: S608  names are ours
            f" ORDER BY {first}p.logical_date DESC LIMIT 500",
            parameters,
        )
        return [Taken(Partition(*(text(part) for part in row[:4])), *row[4:]) for row in rows]

    # -- one attempt -----------------------------------------------------------------------------

    def attempt(self, taken: Taken, log: Callable[[str], None]) -> bool:
        """Whether the attempt counted: not when somebody else changed the partition meanwhile."""
        name = "/".join(taken.partition)
        try:
            verified = self._verify(taken.partition)
        except Rejected as rejected:
            counted = self._failed(taken, str(rejected))
            log(f"{name} failed: {rejected}")
        else:
            counted = self._succeeded(taken, verified)
            log(f"{name} success: run {verified.run_id}")
        return counted

    def _verify(self, partition: Partition) -> Verified:
        if partition.invalid:
            raise Rejected(partition.invalid)
        ids = run_ids(self._sink, partition)
        if not ids:
            raise Rejected("MISSING_RUN: the raw sink shows no run")
        newest = ids[-1]
        files = self._sink.sizes(partition).get(newest, {})
        if missing := {PAYLOAD, METADATA} - files.keys():
            raise Rejected(f"UNSEALED: run {newest} has no {' and no '.join(sorted(missing))}")
        try:
            told = parse_metadata(self._sink.metadata(partition, newest))
            counted = sum(1 for line in _lines(self._sink.payload(partition, newest)) if json.loads(line) is not ...)
        except FileNotFoundError:
            raise Rejected(f"UNREADABLE: run {newest} changed while it was read") from None
        except (ValueError, RecursionError) as error:
            raise Rejected(f"UNREADABLE: run {newest}: {neutralise(str(error), 150)}") from None
        if counted != told["record_count"]:
            raise Rejected(f"COUNT_MISMATCH: {counted} records, metadata says {told['record_count']}")
        self._ask(partition, told)
        version = told.get("schema_version")
        return Verified(newest, counted, None if version is None else text(version)[:200])

    def _ask(self, partition: Partition, told: dict[str, Any]) -> None:
        try:
            self._handler(partition, told)
        except Exception as error:  # noqa: BLE001  whatever a handler raises is the partition's failure
            raise Rejected(f"REJECTED: {str(error) or type(error).__name__}") from None

    def _succeeded(self, taken: Taken, verified: Verified) -> bool:
        """The authority only ever moves to a newer run; an attempt that finds none newer leaves it where it is."""
        newer = taken.current_run_id is None or verified.run_id > taken.current_run_id
        moved = ", current_run_id = ?, record_count = ?, schema_version = ?" if newer else ""
        return self._conclude(
            taken, f"status = 'success', error_message = NULL{moved}", tuple(verified) if newer else ()
        )

    def _failed(self, taken: Taken, error: str) -> bool:
        if taken.status == "success":
            return self._conclude(taken, "", (), error)
        return self._conclude(taken, "status = 'failed', error_message = ?", (error,))

    def _conclude(self, taken: Taken, sets: str, values: Row, request_error: str | None = None) -> bool:
        now = self._time.encode(self._clock.now())
        assigned = f"attempt_count = coalesce(attempt_count, 0) + 1, updated_at = ?{', ' if sets else ''}{sets}"
        has_control = bool(self._database.columns(CONTROL))
        guard = (*taken.partition, taken.status, taken.attempts, taken.updated_at)
        for _ in range(60):
            try:
                with self._database.writing() as writer:
                    won = writer.execute(
                        f"UPDATE {TABLE} SET {assigned} WHERE {_GUARD} RETURNING 1",  # noqa: S608  names are ours
                        (now, *values, *guard),
                    )
                    if won and has_control:
                        writer.execute(
                            f"UPDATE {CONTROL} SET request = NULL, request_error = ?, next_run_at = NULL"  # noqa: S608
                            f" WHERE {SAME_KEY}",
                            (request_error, *taken.partition),
                        )
                    return bool(won)
            except BackendBusy:
                continue
        raise BackendBusy("no turn to write for minutes", where=self._database.place)


def _lines(pieces: Iterator[bytes]) -> Iterator[bytes]:
    rest = b""
    for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        yield from (line for line in whole if line.strip())
    if rest.strip():
        yield rest
