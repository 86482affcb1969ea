"""Appending to the chain, which is only done when the end of it is what it was."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from console.core.faults import TrailBroken
from console.trail.record import GENESIS, Kind, forge, link
from console.trail.storage import Row, Writing

_LAST_TWO = "SELECT seq, kind, at, body, prev, hash FROM record ORDER BY seq DESC LIMIT 2"
_INSERT = "INSERT INTO record (seq, kind, at, body, prev, hash) VALUES (?, ?, ?, ?, ?, ?)"
_HASH_OF = "SELECT hash FROM record WHERE seq = ?"


class Head(NamedTuple):
    """The end of the chain."""

    seq: int
    hash: str


EMPTY = Head(0, GENESIS)


class Chain:
    """Appends, and remembers what it wrote last, so that a trail rewritten behind our back is noticed."""

    def __init__(self) -> None:
        self._seen = EMPTY

    def append(
        self, writing: Writing, kind: Kind, at: datetime, body: Mapping[str, Any], after: Head | None = None
    ) -> Head:
        """One record, in the caller's transaction; `after` is the end of the chain if already asked for."""
        last = after or self.end(writing)
        row = forge(last.hash, last.seq + 1, kind, at, body)
        writing.run(_INSERT, row)
        return Head(row[0], row[5])

    def saw(self, head: Head) -> None:
        """This record is durable; it may never be missing or different again."""
        if head.seq > self._seen.seq:
            self._seen = head

    def end(self, writing: Writing) -> Head:
        """The last record; `TrailBroken` unless it is intact and what we saw before is still there."""
        rows = writing.all(_LAST_TWO)
        before = Head(rows[1][0], rows[1][5]) if len(rows) > 1 else EMPTY
        if not rows:
            head = EMPTY
        elif not _follows(before, rows[0]):
            raise TrailBroken(f"record {rows[0][0]} is not what was written", fix="Run trail verify.")
        else:
            head = Head(rows[0][0], rows[0][5])
        self._insist_on_seen(writing, head)
        return head

    def _insist_on_seen(self, writing: Writing, head: Head) -> None:
        if self._seen in (head, EMPTY):
            return
        if writing.all(_HASH_OF, (self._seen.seq,)) != [(self._seen.hash,)]:
            raise TrailBroken(f"record {self._seen.seq} is not there any more", fix="Run trail verify.")


def _follows(before: Head, row: Row) -> bool:
    seq, kind, at, body, prev, digest = row
    return bool(seq == before.seq + 1 and prev == before.hash and digest == link(prev, seq, kind, at, body))
