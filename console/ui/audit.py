"""What an auditor asks of the trail beyond what core needs of it; a trail that can answer is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple, Protocol, runtime_checkable

from console.core import faults
from console.core.audit import Record, Verification


@runtime_checkable
class Audits(Protocol):
    """A book that shows its records and proves them."""

    def verified(self, anchors: str | None = None) -> Verification: ...

    def newest(self, *, before: int | None = None, limit: int = 100) -> Sequence[Record]: ...


class Refusal(NamedTuple):
    """Something somebody wanted and did not get."""

    at: datetime
    seq: int
    why: str
    detail: str
    reason: str
    who: str


def auditor_of(book: object) -> Audits | None:
    return book if isinstance(book, Audits) else None


def refusals(book: object, limit: int = 500) -> list[Refusal]:
    """Those among the newest records."""
    auditor = auditor_of(book)
    if auditor is None:
        return []
    return [_refusal(record) for record in auditor.newest(limit=limit) if record.kind == "refusal"]


def _refusal(record: Record) -> Refusal:
    body = record.body
    who = body.get("who")
    login = str(who.get("login", "")) if isinstance(who, Mapping) else str(who or "")
    why, detail, reason = (str(body.get(name, "")) for name in ("why", "detail", "reason"))
    return Refusal(record.at, record.seq, _sentence(why), detail, reason, login)


def _sentence(kind: str) -> str:
    """A fault's own words for the name it is recorded by; a name this version does not know stays as it is."""
    fault = getattr(faults, kind, None)
    known = isinstance(fault, type) and issubclass(fault, faults.Fault)
    return (fault.__doc__ or kind).removeprefix("Refused: ") if known else kind
