"""Records: canonical bodies, chained by SHA-256, so that every edit, deletion, swap or insertion is found."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from math import ceil
from typing import Any, NamedTuple

from console.core.advice import Advice, Step
from console.core.faults import TrailBroken
from console.core.plan import canonical
from console.core.ports import Record, latest_time
from console.trail.storage import Row, Writing

GENESIS = "0" * 64
"""The previous hash of the first record."""

VERIFY = Advice(Step.VERIFY_TRAIL)
AT_LENGTH = len("2026-11-01T12:00:00.000000Z")

_LAST_TWO = "SELECT seq, kind, at, body, prev, hash FROM record ORDER BY seq DESC LIMIT 2"
_INSERT = "INSERT INTO record (seq, kind, at, body, prev, hash) VALUES (?, ?, ?, ?, ?, ?)"
_HASH_OF = "SELECT hash FROM record WHERE seq = ?"


class Kind(StrEnum):
    """The kinds of records."""

    PLANNED = "planned"
    """A plan was made: what it would change, with its hash."""
    PLAN_DROPPED = "plan_dropped"
    """A plan was deleted without being applied."""
    SUBMITTED = "submitted"
    """A plan was submitted, for somebody else to approve. Its approval is the confirmation that names it."""
    REJECTED = "rejected"
    """Somebody rejected a proposal."""
    WITHDRAWN = "withdrawn"
    """The proposer gave a proposal up."""
    POLICY = "policy"
    """The rules in force from now on: permissions, limits and approvals."""
    CONFIRMED = "confirmed"
    """Somebody confirmed a plan; its override begins."""
    INTENT = "intent"
    """These items are about to be changed."""
    OUTCOME = "outcome"
    """What an intent did, recorded by the process that announced it."""
    REFUSAL = "refusal"
    """A confirmation was refused."""
    STATE = "state"
    """An override was paused, resumed, stopped or finished."""
    REQUESTED = "requested"
    """Somebody asked a running override to pause, stop or continue."""
    TAKEOVER = "takeover"
    """Another process continues an override."""
    SETTLE = "settle"
    """What an intent did, found out later by reading the backend."""
    LATE = "late"
    """More that an intent did, reported by its process after somebody else had settled it."""
    RESULT = "result"
    """The results of an override, item by item."""
    CAUSE = "cause"
    """Somebody acknowledged, snoozed, resolved, reopened or assigned a cause, or wrote a note about it."""
    ANCHOR = "anchor"
    """The end of the chain was written to a second place."""


KINDS = frozenset(kind.value for kind in Kind)
CONCLUDING = frozenset({Kind.OUTCOME.value, Kind.SETTLE.value, Kind.LATE.value})
"""The kinds that item outcomes belong to."""

StoredRecord = tuple[int, str, str, str, str, str]
"""seq, kind, at, body, prev, hash: a row of the table."""


def stamp(moment: datetime) -> str:
    """A time as text: UTC, with microseconds, always of the same length."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def moment(text: str) -> datetime:
    """Read what `stamp` wrote. `ValueError` for a time without a zone: it could not be compared with others."""
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError(text)
    return found


def link(prev: str, seq: int, kind: str, at: str, body: str) -> str:
    """The hash of a record: SHA-256 over the previous hash and its canonical JSON. `body` is canonical already.

    The JSON is put together as text, because parsing and dumping it again would dominate the time of verifying.
    """
    return hashlib.sha256(
        f'{prev}{{"at":"{at}","body":{body},"kind":"{kind}","seq":{seq}}}'.encode("utf-8", "surrogatepass")
    ).hexdigest()


def next_record(prev: str, seq: int, kind: Kind, at: datetime, body: Mapping[str, Any]) -> StoredRecord:
    """The row of the next record."""
    text, when = canonical(dict(body)), stamp(at)
    return seq, kind.value, when, text, prev, link(prev, seq, kind.value, when, text)


def parsed(row: tuple[Any, ...]) -> Record:
    """Read a row of the table."""
    seq, kind, at, body, prev, digest = row
    with legible(f"record {seq}"):
        "".join((kind, prev, digest))  # fails unless these are texts
        return Record(seq, kind, moment(at), json.loads(body), prev, digest)


@contextmanager
def legible(what: str) -> Iterator[None]:
    """Raise `TrailBroken` instead of a programming error: an edited table may hold anything."""
    try:
        yield
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        raise TrailBroken(f"{what} cannot be read", advice=VERIFY) from None


class BadRecord(Exception):
    """This record, or something that belongs to it, is not as it was written."""

    def __init__(self, seq: int, what: str) -> None:
        super().__init__(what)
        self.seq = seq
        self.what = what


def a_number(seq: Any) -> int:
    """A record's number. In an edited table it may be anything; then a number after all others."""
    return seq if isinstance(seq, int) else 2**63 - 1


class ItemsDigest:
    """SHA-256 over the stored item outcomes or item results of one record, in order."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self.count = 0

    def add(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Rows of seq, ordinal, key and two more texts: outcome and detail, or result and cause."""
        lines = [f"{nth}\x1f{key}\x1f{what}\x1f{more}\n" for _, nth, key, what, more in rows]
        self._hash.update("".join(lines).encode("utf-8", "surrogatepass"))
        self.count += len(lines)

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


class Head(NamedTuple):
    """The end of the chain."""

    seq: int
    hash: str
    at: str = ""
    body: str = ""

    @property
    def latest(self) -> datetime:
        """The latest time that any record has so far, even if the clock was set back since."""
        return latest_time(moment(self.at), json.loads(self.body))


_CLOCKS_DIFFER = 5
"""Seconds that the clocks of two machines may differ without being noted."""

EMPTY = Head(0, GENESIS)


class Chain:
    """Appends records, and remembers the last one it wrote, to notice when the trail is rewritten meanwhile."""

    def __init__(self, last_anchor: Callable[[], Head | None] = lambda: None) -> None:
        self._seen = EMPTY
        self._last_anchor = last_anchor
        self._looked = False

    def look_at_anchor(self) -> None:
        """Compare the chain with the last readable anchor at the next append, and at the first one anyway."""
        self._looked = False

    def append(
        self, writing: Writing, kind: Kind, at: datetime, body: Mapping[str, Any], after: Head | None = None
    ) -> Head:
        """Add one record in the caller's transaction. `after` is the end of the chain, if the caller has read it."""
        last = after or self.end(writing)
        behind = (last.latest - at).total_seconds() if last.at else 0
        noted = {**body, "clock_behind": ceil(behind)} if behind > _CLOCKS_DIFFER else body
        if writing.facts:
            noted = {**noted, "server": writing.facts}
        row = next_record(last.hash, last.seq + 1, kind, at, noted)
        writing.run(_INSERT, row)
        return Head(row[0], row[5], row[2], row[3])

    def remember(self, head: Head) -> None:
        """Remember that this record is durable: from now on it must stay as it is."""
        if head.seq > self._seen.seq:
            self._seen = head

    def end(self, writing: Writing) -> Head:
        """The last record. `TrailBroken` unless it is intact and the remembered record is still there."""
        rows = writing.all(_LAST_TWO)
        before = Head(rows[1][0], rows[1][5]) if len(rows) > 1 else EMPTY
        if not rows:
            head = EMPTY
        elif not _follows(before, rows[0]):
            raise TrailBroken(f"record {rows[0][0]} was altered", advice=VERIFY)
        else:
            head = Head(rows[0][0], rows[0][5], rows[0][2], rows[0][3])
        self._require_seen(writing, head)
        if not self._looked:
            self._require_anchored(writing)
            self._looked = True
        return head

    def _require_anchored(self, writing: Writing) -> None:
        """`TrailBroken` unless the chain continues its last readable anchor. Nobody else appends meanwhile."""
        anchor = self._last_anchor()
        if anchor is not None and writing.all(_HASH_OF, (anchor.seq,)) != [(anchor.hash,)]:
            raise TrailBroken(
                f"it does not match its last anchor, for record {anchor.seq}: the end of the trail was cut off or"
                " rewritten, or the anchor belongs to another trail", advice=VERIFY,
            )

    def _require_seen(self, writing: Writing, head: Head) -> None:
        if self._seen in (head, EMPTY):
            return
        if writing.all(_HASH_OF, (self._seen.seq,)) != [(self._seen.hash,)]:
            raise TrailBroken(f"record {self._seen.seq} is gone or was changed", advice=VERIFY)


def _follows(before: Head, row: Row) -> bool:
    seq, kind, at, body, prev, digest = row
    return bool(seq == before.seq + 1 and prev == before.hash and digest == link(prev, seq, kind, at, body))
