"""Refused actions, read from the trail."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

from console.core import faults
from console.core.ports import Record, Trail


class Refusal(NamedTuple):
    """An action that was refused."""

    at: datetime
    seq: int
    why: str
    detail: str
    reason: str
    who: str


def refusals(trail: Trail, limit: int = 500) -> list[Refusal]:
    """The refusals among the newest records."""
    return [_refusal(record) for record in trail.newest(limit=limit) if record.kind == "refusal"]


def _refusal(record: Record) -> Refusal:
    body = record.body
    who = body.get("who")
    login = str(who.get("login", "")) if isinstance(who, Mapping) else str(who or "")
    why, detail, reason = (str(body.get(name, "")) for name in ("why", "detail", "reason"))
    return Refusal(record.at, record.seq, _sentence(why), detail, reason, login)


def _sentence(kind: str) -> str:
    """The sentence of the fault class with this name; the name itself if it is unknown."""
    fault = getattr(faults, kind, None)
    known = isinstance(fault, type) and issubclass(fault, faults.Fault)
    return (fault.__doc__ or kind).removeprefix("Refused: ") if known else kind
