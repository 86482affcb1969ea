"""What an auditor reads: the records of the trail, and whether they are intact."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple


class Record(NamedTuple):
    """One link of the chain."""

    seq: int
    kind: str
    at: datetime
    body: dict[str, Any]
    prev: str
    hash: str


@dataclass(frozen=True, slots=True)
class Verification:
    """Whether the trail is intact; if not, the first bad record and what is wrong with it."""

    ok: bool
    records: int
    first_bad: int | None = None
    what: str = ""
