"""Items: one unit of work in a backend, as a frozen snapshot of what was read."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from urllib.parse import quote, unquote

from console.core.faults import KeyFault
from console.core.signature import signature_of

ERROR_HEAD = 4096
"""How much of an error a list reads, groups by and matches patterns on; the detail view reads on."""

_BACKEND = re.compile(r"[a-z0-9-]+")
_PLAIN = re.compile(r"[A-Za-z0-9_.~-]*")


class Condition(StrEnum):
    """The console's reading of a native status."""

    WAITING = "waiting"
    RUNNING = "running"
    RETRYING = "retrying"
    FAILED = "failed"
    TERMINAL = "terminal"
    STUCK = "stuck"
    DONE = "done"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"


NEEDS_EYES = (
    Condition.RETRYING,
    Condition.FAILED,
    Condition.TERMINAL,
    Condition.STUCK,
    Condition.UNKNOWN,
)
"""What a person is shown unless they ask for a condition."""


def is_backend_name(name: str) -> bool:
    return _BACKEND.fullmatch(name) is not None


@dataclass(frozen=True, slots=True, order=True)
class ItemKey:
    """`backend/part[/part…]`, each part percent-encoded: stable, copyable, accepted wherever a KEY is."""

    backend: str
    parts: tuple[str, ...]

    @property
    def id(self) -> str:
        return "/".join(
            part if _PLAIN.fullmatch(part) else quote(part, safe="", errors="surrogateescape")
            for part in self.parts
        )

    def __str__(self) -> str:
        return f"{self.backend}/{self.id}"

    @classmethod
    def parse(cls, text: str) -> ItemKey:
        backend, slash, rest = text.strip().partition("/")
        if not slash or not is_backend_name(backend):
            raise KeyFault(repr(text), fix="A key looks like backend/id; copy it from `retriage list`.")
        return cls(backend, tuple(unquote(part, errors="surrogateescape") for part in rest.split("/")))


@dataclass(frozen=True, slots=True)
class Window:
    """When something happens: an instant, or bounds where jitter decides."""

    earliest: datetime
    latest: datetime

    @classmethod
    def at(cls, instant: datetime) -> Window:
        return cls(instant, instant)

    @property
    def exact(self) -> bool:
        return self.earliest == self.latest


@dataclass(frozen=True, slots=True)
class Attempt:
    """One execution, as far as the backend keeps it, or one override this console's trail knows of."""

    number: int | None
    at: datetime | None
    outcome: str
    error: str | None = None
    took: timedelta | None = None
    next_delay: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """Condition, why in one sentence, when it runs next, and whether it runs again without a person."""

    condition: Condition
    why: str
    next_retry: Window | None = None
    will_run_again: bool = False
    recoverable: bool | None = None

    @property
    def next_retry_at(self) -> datetime | None:
        return self.next_retry.earliest if self.next_retry else None


@dataclass(frozen=True, slots=True)
class Item:
    """A snapshot of one item at `read_at`. `error` is cut to ERROR_HEAD in lists."""

    key: ItemKey
    type: str
    native_status: str
    attempts: int
    max_attempts: int | None
    verdict: Verdict
    error: str | None
    created_at: datetime | None
    updated_at: datetime | None
    read_at: datetime
    executed_at: datetime | None = None
    """When the backend last shows an execution of it; what a canary is judged by."""
    notes: tuple[str, ...] = ()
    """What is odd or worth knowing about this row, in words."""

    @property
    def condition(self) -> Condition:
        return self.verdict.condition

    @property
    def signature(self) -> str | None:
        return signature_of(self.error) if self.error else None


@dataclass(frozen=True, slots=True)
class Detail:
    """One item with all its backend keeps: history, the schedule ahead, the native row, the full error."""

    item: Item
    error: str | None
    attempts: tuple[Attempt, ...] = ()
    schedule: tuple[str, ...] = ()
    native: tuple[tuple[str, str | None], ...] = ()
    extra: tuple[tuple[str, str], ...] = field(default=())
