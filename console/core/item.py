"""Items: one unit of work in a backend, as a frozen snapshot of what was read.

What a page makes a hundred of is a NamedTuple: a frozen dataclass takes five times as long to make.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple
from urllib.parse import quote, unquote

from console.core.faults import KeyFault

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


class ItemKey(NamedTuple):
    """`backend/part[/part…]`, each part percent-encoded: stable, copyable, accepted wherever a KEY is."""

    backend: str
    parts: tuple[str, ...]

    @property
    def id(self) -> str:
        return "/".join(part if _PLAIN.fullmatch(part) else _quoted(part) for part in self.parts)

    def __str__(self) -> str:
        return f"{self.backend}/{self.id}"

    @classmethod
    def known(cls, backend: str, text: str) -> ItemKey:
        """A key of this backend that was written by `str`: no need to look at it twice."""
        id = text[len(backend) + 1 :]
        if "%" not in id:
            return cls(backend, tuple(id.split("/")))
        return cls(backend, tuple(map(unquoted, id.split("/"))))

    @classmethod
    def parse(cls, text: str) -> ItemKey:
        backend, slash, rest = text.strip().partition("/")
        if not slash or not is_backend_name(backend):
            raise KeyFault(repr(text), fix="A key looks like backend/id; copy it from `retriage list`.")
        return cls(backend, tuple(map(unquoted, rest.split("/"))))


_SURROGATE = re.compile("([\ud800-\udfff])")
_ESCAPED_SURROGATE = re.compile("%u([0-9A-Fa-f]{4})")


def _quoted(part: str) -> str:
    """Percent-encoded: bytes that are no text as those bytes, half a surrogate pair as %uD83D."""
    try:
        encoded = quote(part, safe="", errors="surrogateescape")
        if unquote(encoded, errors="surrogateescape") == part:
            return encoded
    except UnicodeEncodeError:
        pass
    pieces = _SURROGATE.split(part)
    return "".join(f"%u{ord(p):04X}" if n % 2 else quote(p, safe="") for n, p in enumerate(pieces))


def unquoted(text: str) -> str:
    """A part of a key as its backend holds it."""
    if "%u" not in text:
        return unquote(text, errors="surrogateescape")
    pieces = _ESCAPED_SURROGATE.split(text)
    return "".join(chr(int(p, 16)) if n % 2 else unquote(p, errors="surrogateescape") for n, p in enumerate(pieces))


class Window(NamedTuple):
    """When something happens: an instant, or bounds where jitter decides."""

    earliest: datetime
    latest: datetime

    @classmethod
    def at(cls, instant: datetime) -> Window:
        return cls(instant, instant)

    @property
    def exact(self) -> bool:
        return self.earliest == self.latest


class Attempt(NamedTuple):
    """One execution, as far as the backend keeps it, or one override this console's trail knows of."""

    number: int | None
    at: datetime | None
    outcome: str
    error: str | None = None
    took: timedelta | None = None
    next_delay: timedelta | None = None


class Verdict(NamedTuple):
    """Condition, why in one sentence, when it runs next, and whether it runs again without a person."""

    condition: Condition
    why: str
    next_retry: Window | None = None
    will_run_again: bool = False
    recoverable: bool | None = None

    @property
    def next_retry_at(self) -> datetime | None:
        return self.next_retry.earliest if self.next_retry else None


class Item(NamedTuple):
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
        if not self.error:
            return None
        from console.core.signature import signature_of  # its patterns take a while to be made, and no row shows it

        return signature_of(self.error)


class Detail(NamedTuple):
    """One item with all its backend keeps: history, the schedule ahead, the native row, the full error."""

    item: Item
    error: str | None
    attempts: tuple[Attempt, ...] = ()
    schedule: tuple[str, ...] = ()
    native: tuple[tuple[str, str | None], ...] = ()
    extra: tuple[tuple[str, str], ...] = ()
