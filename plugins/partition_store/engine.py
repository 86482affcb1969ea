"""The validator: it alone sets success or failed, in one transaction for each attempt.

One guarded UPDATE stores the result and counts the attempt. So a kill at any moment counts an attempt once with its
result, or not at all. The validator reads raw data and never writes it.
"""

from __future__ import annotations

import codecs
import io
import json
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, NamedTuple

from console.core.faults import BackendBusy, Unreachable
from console.core.handlers import as_text, message_of
from console.core.ports import Clock, Stop
from console.core.text import neutralise
from console.sql.database import Row, RowRefused, TransactionRefused
from console.sql.sqlite import SqliteDatabase
from console.sql.values import text
from plugins.partition_store.rows import stored
from plugins.partition_store.schema import CONTROL, KEY, TABLE, given_control
from plugins.partition_store.sink import (
    METADATA,
    PAYLOAD,
    NotJudged,
    Partition,
    RawSink,
    parse_metadata,
    run_ids,
    stated_count,
)
from plugins.partition_store.tables import SAME_KEY, Tables

Handler = Callable[[Partition, dict[str, Any]], object]
_IDLE = 0.5
_AT_ONCE, _FEW = 500, 20


class Rejected(Exception):
    """A run is not valid. The text becomes the partition's error."""


class Verified(NamedTuple):
    """A valid run."""

    run_id: str
    record_count: int
    schema_version: str | None


class Taken(NamedTuple):
    """A partition to validate, as it was when it was read."""

    partition: Partition
    status: str
    attempts: int | None
    updated_at: Any
    current_run_id: str | None


def accept(_partition: Partition, _metadata: dict[str, Any]) -> None:
    """A handler that accepts every run."""


class Validator:
    """Validates the newest run of each pending partition, and of each success with a reprocess request."""

    def __init__(self, tables: Tables, sink: RawSink, clock: Clock, handler: Handler = accept) -> None:
        self._tables = tables
        self._sink = sink
        self._clock = clock
        self._handler = handler

    def work(self, stop: Stop, log: Callable[[str], None]) -> int:
        attempts = 0
        while not stop.requested:
            done = self.cycle(log, stop)
            attempts += done
            if not done:
                self._clock.sleep(_IDLE)
        return attempts

    def cycle(self, log: Callable[[str], None], stop: Stop) -> int:
        """Validate once what is due now; returns the number of attempts.

        Backfills wait until nothing else is due, and then only a few are taken at a time, so that they do not delay
        new data.
        """
        made = 0
        for taken in [*self.due(), *self.requested()] or self.due(backfills=True):
            if stop.requested:
                break
            try:
                made += self.attempt(taken, log)
            except Unreachable as fault:
                log(f"{'/'.join(taken.partition)} not tried: {fault.detail}")
            except NotJudged as problem:
                log(f"{'/'.join(taken.partition)} not judged: {problem}")
            except (RowRefused, TransactionRefused) as refused:
                log(f"{'/'.join(taken.partition)} tried and not counted: {refused}")
        return made

    def due(self, *, backfills: bool = False) -> list[Taken]:
        """Pending partitions, newest day first, without those that are paused or not due yet."""
        if not self._tables.has_control():
            return [] if backfills else self._chosen("", "p.status = 'pending'", (), _AT_ONCE)
        control, given = self._control()
        where = (
            "p.status = 'pending' AND c.paused IS NULL AND (c.next_run_at IS NULL OR c.next_run_at <= ?)"
            f" AND coalesce(c.request, '') {'=' if backfills else '<>'} 'backfill'"
        )
        now = self._tables.time.encode(self._clock.now())
        return self._chosen(f" LEFT JOIN {control}", where, (*given, now), _FEW if backfills else _AT_ONCE)

    def requested(self) -> list[Taken]:
        """Successful partitions with a reprocess request."""
        if not self._tables.has_control():
            return []
        control, given = self._control()
        where = (
            "p.status = 'success' AND c.request = 'reprocess' AND c.paused IS NULL"
            " AND (c.next_run_at IS NULL OR c.next_run_at <= ?)"
        )
        now = self._tables.time.encode(self._clock.now())
        return self._chosen(f" JOIN {control}", where, (*given, now), _AT_ONCE)

    def _control(self) -> tuple[str, Row]:
        same = " AND ".join(f"c.{name} = p.{name}" for name in KEY)
        if not self._tables.apart:
            return f"{CONTROL} c ON {same}", ()
        sqlite = isinstance(self._tables.state, SqliteDatabase)
        given = self._tables.read_control()
        return f"({given_control('?', sqlite=sqlite)}) c ON {same}", () if sqlite else (given,)

    def _chosen(self, join: str, where: str, parameters: Row, limit: int) -> list[Taken]:
        columns = ", ".join(f"p.{name}" for name in (*KEY, "status", "attempt_count", "updated_at", "current_run_id"))
        rows = self._tables.fetch(
            f"SELECT {columns} FROM {TABLE} p{join} WHERE {where}"  # noqa: S608  names are ours
            f" ORDER BY p.logical_date DESC LIMIT {limit}",
            parameters,
        )
        return [Taken(Partition(*(text(stored(part)) for part in row[:4])), *row[4:]) for row in rows]

    # -- one attempt -----------------------------------------------------------------------------

    def attempt(self, taken: Taken, log: Callable[[str], None]) -> bool:
        """Make one attempt; False if somebody else changed the partition meanwhile, so that it does not count."""
        name = "/".join(taken.partition)
        try:
            verified = self._verify(taken.partition)
        except Rejected as rejected:
            why = as_text(str(rejected))
            counted = self._failed(taken, why)
            log(f"{name} failed: {why}")
        else:
            counted = self._succeeded(taken, verified)
            log(f"{name} success: run {verified.run_id}")
        return counted

    def _verify(self, partition: Partition) -> Verified:
        if partition.invalid:
            raise Rejected(partition.invalid)
        ids = run_ids(self._sink, partition)
        if not ids:
            raise Rejected("MISSING_RUN: the raw sink has no run")
        newest = ids[-1]
        files = self._sink.sizes(partition).get(newest, {})
        if missing := {PAYLOAD, METADATA} - files.keys():
            raise Rejected(f"UNSEALED: run {newest} has no {' and no '.join(sorted(missing))}")
        try:
            metadata = parse_metadata(self._sink.metadata(partition, newest))
            counted = sum(1 for line in _lines(self._sink.payload(partition, newest)) if json.loads(line) is not ...)
            stated = stated_count(metadata, counted)
        except FileNotFoundError:
            raise Rejected(f"UNREADABLE: run {newest} changed while it was read") from None
        except NotJudged:
            raise
        except (ValueError, RecursionError) as error:
            raise Rejected(f"UNREADABLE: run {newest}: {neutralise(str(error), 150)}") from None
        if counted != stated:
            raise Rejected(f"COUNT_MISMATCH: {counted} records, metadata says {stated}")
        self._ask_handler(partition, metadata)
        version = metadata.get("schema_version")
        return Verified(newest, counted, None if version is None else as_text(text(version))[:200])

    def _ask_handler(self, partition: Partition, metadata: dict[str, Any]) -> None:
        try:
            self._handler(partition, metadata)
        except Exception as error:  # noqa: BLE001  whatever a handler raises is the partition's failure
            raise Rejected(f"REJECTED: {message_of(error)}") from None

    def _succeeded(self, taken: Taken, verified: Verified) -> bool:
        """Store a success. `current_run_id` only ever moves to a newer run."""
        newer = taken.current_run_id is None or verified.run_id > taken.current_run_id
        moved = ", current_run_id = ?, record_count = ?, schema_version = ?" if newer else ""
        return self._conclude(
            taken, f"status = 'success', error_message = NULL{moved}", tuple(verified) if newer else ()
        )

    def _failed(self, taken: Taken, error: str) -> bool:
        if taken.status == "success":
            return self._conclude(taken, "", (), error)
        return self._conclude(taken, "status = 'failed', error_message = ?", (error,), keeps="backfill")

    def _conclude(
        self, taken: Taken, sets: str, values: Row, request_error: str | None = None, keeps: str = ""
    ) -> bool:
        """Store a result with one guarded UPDATE, and clear the request it fulfils.

        A failed backfill stays a backfill, so that requeueing it does not put it before new data.
        """
        tables = self._tables
        now = tables.time.encode(self._clock.now())
        assigned = f"attempt_count = coalesce(attempt_count, 0) + 1, updated_at = ?{', ' if sets else ''}{sets}"
        has_control = tables.has_control()
        same = "IS" if isinstance(tables.state, SqliteDatabase) else "IS NOT DISTINCT FROM"
        update = tables.with_driver_marks(
            tables.state,
            f"UPDATE {TABLE} SET {assigned} WHERE {SAME_KEY} AND status = ? AND attempt_count {same} ?"  # noqa: S608
            f" AND updated_at {same} ? RETURNING 1",
        )
        clear = tables.with_driver_marks(
            tables.control,
            f"UPDATE {CONTROL} SET request = CASE WHEN request = ? THEN request END, request_error = ?,"  # noqa: S608
            f" next_run_at = NULL, backoff_strategy = NULL WHERE {SAME_KEY}",
        )
        for _ in range(60):
            try:
                with tables.writing() as (state, control):
                    guard = (*taken.partition, taken.status, taken.attempts, taken.updated_at)
                    won = state.execute(update, (now, *values, *guard))
                    if won and has_control:
                        control.execute(clear, (keeps, request_error, *taken.partition))
                    return bool(won)
            except BackendBusy:
                continue
        raise BackendBusy("it was locked for minutes", where=tables.state.place)


def _lines(pieces: Iterator[bytes]) -> Iterator[str]:
    """The lines of a text in UTF-8, without empty ones. They end with `\\n`, `\\r` or both."""
    decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8")(), translate=True)
    rest = ""
    for piece in chain(filter(None, pieces), [b""]):
        *whole, rest = (rest + decoder.decode(piece, final=not piece)).split("\n")
        yield from (line for line in whole if line.strip())
    if rest.strip():
        yield rest
