"""Records: canonical bodies, chained by SHA-256 so that no edit, deletion, swap or insertion goes unseen."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from console.core.audit import Record
from console.core.faults import TrailBroken
from console.core.plan import canonical

GENESIS = "0" * 64
"""What the first record follows."""

AT_LENGTH = len("2026-11-01T12:00:00.000000Z")


class Kind(StrEnum):
    """What a record tells of."""

    SESSION = "session"
    CONFIRM = "confirm"
    INTENT = "intent"
    OUTCOME = "outcome"
    REFUSAL = "refusal"
    STATE = "state"
    TAKEOVER = "takeover"
    SETTLE = "settle"
    LATE = "late"
    ANCHOR = "anchor"


KINDS = frozenset(kind.value for kind in Kind)
CONCLUDING = frozenset({Kind.OUTCOME.value, Kind.SETTLE.value, Kind.LATE.value})
"""The kinds that item outcomes belong to."""

StoredRecord = tuple[int, str, str, str, str, str]
"""seq, kind, at, body, prev, hash: as the table keeps them."""


def stamp(moment: datetime) -> str:
    """The one spelling of an instant in the trail: UTC, microseconds, always of the same length."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def link(prev: str, seq: int, kind: str, at: str, body: str) -> str:
    """SHA-256 over the previous hash and the canonical JSON of this record; `body` is canonical already.

    Spelled out instead of parsed and dumped again: verifying a long trail is this line.
    """
    return hashlib.sha256(
        f'{prev}{{"at":"{at}","body":{body},"kind":"{kind}","seq":{seq}}}'.encode("utf-8", "surrogatepass")
    ).hexdigest()


def forge(prev: str, seq: int, kind: Kind, at: datetime, body: Mapping[str, Any]) -> StoredRecord:
    """The next record as it is stored."""
    text, when = canonical(dict(body)), stamp(at)
    return seq, kind.value, when, text, prev, link(prev, seq, kind.value, when, text)


def parsed(row: tuple[Any, ...]) -> Record:
    """A row of the table as a record."""
    seq, kind, at, body, prev, digest = row
    with legible(f"record {seq}"):
        return Record(seq, kind, moment(at), json.loads(body), prev, digest)


@contextmanager
def legible(what: str) -> Iterator[None]:
    """Whoever has edited the tables may have left what nobody can read: that is a broken trail, not a crash."""
    try:
        yield
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        raise TrailBroken(f"{what} cannot be read", fix="Run `retriage trail verify`.") from None


class BadRecord(Exception):
    """This record, or what belongs to it, is not what was written."""

    def __init__(self, seq: int, what: str) -> None:
        super().__init__(what)
        self.seq = seq
        self.what = what


def a_number(seq: Any) -> int:
    """The number of a record as a table has it; a forged one may not even be a number."""
    return seq if isinstance(seq, int) else 2**63 - 1


class ItemsDigest:
    """SHA-256 over the lines of the item outcomes of one record, in ordinal order, as they are stored."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self.count = 0

    def add(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Rows of seq, ordinal, key, outcome, detail."""
        lines = [f"{nth}\x1f{key}\x1f{outcome}\x1f{detail}\n" for _, nth, key, outcome, detail in rows]
        self._hash.update("".join(lines).encode("utf-8", "surrogatepass"))
        self.count += len(lines)

    def hexdigest(self) -> str:
        return self._hash.hexdigest()
