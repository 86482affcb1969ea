"""Items: one unit of work in a backend, as a frozen snapshot of what was read.

Types that a page creates by the hundred are NamedTuples, because a frozen dataclass takes five times as long to create.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple
from urllib.parse import quote, unquote

from console.core.advice import Advice, Step
from console.core.faults import KeyFault

_BACKEND = re.compile(r"[a-z0-9-]+")
_PLAIN = re.compile(r"[A-Za-z0-9_.~-]*")


class Condition(StrEnum):
    """What a native status means to an operator, the same in every system."""

    WAITING = "waiting"
    RUNNING = "running"
    RETRYING = "retrying"
    FAILED = "failed"
    TERMINAL = "terminal"
    STUCK = "stuck"
    DONE = "done"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"

    @property
    def symbol(self) -> str:
        """One narrow character, so that colour is never the only difference."""
        return _SYMBOLS[self]


_SYMBOLS = dict(zip(Condition, "◌▸↻✗⊗!✓-?", strict=True))

NEEDS_ATTENTION = (
    Condition.RETRYING,
    Condition.FAILED,
    Condition.TERMINAL,
    Condition.STUCK,
    Condition.UNKNOWN,
)
"""What lists show unless a filter asks for conditions."""

WORST_FIRST = (
    Condition.STUCK, Condition.TERMINAL, Condition.FAILED, Condition.UNKNOWN, Condition.RETRYING,
    Condition.RUNNING, Condition.WAITING, Condition.CANCELLED, Condition.DONE,
)
"""The order of the conditions in lists. A condition that is not among them would never be listed."""
assert set(WORST_FIRST) == set(Condition)


def is_backend_name(name: str) -> bool:
    return _BACKEND.fullmatch(name) is not None


class ItemKey(NamedTuple):
    """`backend/part[/part…]`, each part percent-encoded. Stable, easy to copy, accepted wherever a KEY is expected."""

    backend: str
    parts: tuple[str, ...]

    @property
    def id(self) -> str:
        return "/".join(part if _PLAIN.fullmatch(part) else _quoted(part) for part in self.parts)

    def __str__(self) -> str:
        return f"{self.backend}/{self.id}"

    @classmethod
    def known(cls, backend: str, text: str) -> ItemKey:
        """Read a key of this backend that `str` wrote, without checking it."""
        id = text[len(backend) + 1 :]
        if "%" not in id:
            return cls(backend, tuple(id.split("/")))
        return cls(backend, tuple(map(unquoted, id.split("/"))))

    @classmethod
    def parse(cls, text: str) -> ItemKey:
        backend, slash, rest = text.strip().partition("/")
        if not slash or not is_backend_name(backend):
            raise KeyFault(repr(text), fix="A key looks like backend/id.", advice=Advice(Step.COPY_KEY))
        return cls(backend, tuple(map(unquoted, rest.split("/"))))


_SURROGATE = re.compile("([\ud800-\udfff])")
_ESCAPED_SURROGATE = re.compile("%u([0-9A-Fa-f]{4})")


def _quoted(part: str) -> str:
    """Percent-encode a part. Bytes that are not UTF-8 stay those bytes; half a surrogate pair becomes %uD83D."""
    try:
        encoded = quote(part, safe="", errors="surrogateescape")
        if unquote(encoded, errors="surrogateescape") == part:
            return encoded
    except UnicodeEncodeError:
        pass
    pieces = _SURROGATE.split(part)
    return "".join(f"%u{ord(p):04X}" if n % 2 else quote(p, safe="") for n, p in enumerate(pieces))


def unquoted(text: str) -> str:
    """Decode a part of a key."""
    if "%u" not in text:
        return unquote(text, errors="surrogateescape")
    pieces = _ESCAPED_SURROGATE.split(text)
    return "".join(chr(int(p, 16)) if n % 2 else unquote(p, errors="surrogateescape") for n, p in enumerate(pieces))


class Window(NamedTuple):
    """When something happens: an exact time, or two bounds where jitter is involved."""

    earliest: datetime
    latest: datetime

    @classmethod
    def at(cls, instant: datetime) -> Window:
        return cls(instant, instant)

    @property
    def exact(self) -> bool:
        return self.earliest == self.latest


class Attempt(NamedTuple):
    """One execution that the backend has stored, or one override in the trail."""

    number: int | None
    at: datetime | None
    outcome: str
    error: str | None = None
    took: timedelta | None = None
    next_delay: timedelta | None = None


class Verdict(NamedTuple):
    """The condition of an item, why, when it runs next, and whether it runs again without a person."""

    condition: Condition
    why: str
    next_retry: Window | None = None
    will_run_again: bool | None = False
    """None: cannot tell; `why` says why not."""
    recoverable: bool | None = None

    @property
    def next_retry_at(self) -> datetime | None:
        return self.next_retry.earliest if self.next_retry else None


class Item(NamedTuple):
    """One item as it was at `read_at`. In lists, `error` is an excerpt of a long one."""

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
    """The last execution that the backend shows; a canary is judged by it."""
    notes: tuple[str, ...] = ()
    """Anything unusual about this row, as sentences."""
    expires_at: datetime | None = None
    """When its system deletes it, whether anybody has looked at it or not."""

    @property
    def condition(self) -> Condition:
        return self.verdict.condition

    @property
    def signature(self) -> str | None:
        if not self.error:
            return None
        from console.core.signature import signature_of  # slow to import, and no list shows it

        return signature_of(self.error)


class Detail(NamedTuple):
    """One item with everything its backend has: history, the next attempts, the native row, the full error."""

    item: Item
    error: str | None
    attempts: tuple[Attempt, ...] = ()
    schedule: tuple[str, ...] = ()
    native: tuple[tuple[str, str | None], ...] = ()
    extra: tuple[tuple[str, str], ...] = ()
